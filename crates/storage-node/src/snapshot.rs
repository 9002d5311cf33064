//! The state that a leader gives to a node that lacks entries which the leader does not keep any more: Raft's snapshot,
//! without pages, which the node takes from any of the others ([`crate::pages`]).
//!
//! ```text
//! leader    ── MsgSnapshot: entry S, the state as of it, the first entry that is kept ──▶ node
//! node      has S already, or needs none before the first kept: says how far it is
//!           else: `state` with all pages lacking, saved ─▶ Raft log begins anew behind S ─▶ the node starts anew
//! ```
//!
//! A snapshot is lost now and then, like each message. So a leader that has heard nothing about one gives another.

use std::collections::BTreeMap;

use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use raft::eraftpb::{Message, Snapshot};
use raft::{ProgressTracker, StorageError};

use crate::codec::{Reader, Writer};
use crate::machine::Machine;
use crate::pages::{Checkpoint, Lacking, Saved};

/// How long a leader waits for word of a snapshot.
const WORD: Nanos = Nanos::from_secs(2);
/// Between two messages about a state that is too long.
const SAID_AGAIN: Nanos = Nanos::from_secs(60);
/// Bytes of a state at most: it has to fit into a message.
const BYTES_MAX: usize = 900 << 10;

/// A state for a node that lacks entries: the Raft library asks for it, and the thread that has the state makes it.
#[derive(Debug, Default)]
pub(crate) struct Offer(Mutex<Offered>);

#[derive(Debug, Default)]
struct Offered {
    is_wanted: bool,
    made: Option<Snapshot>,
    /// When it is said again that a state is too long.
    said: Nanos,
}

impl Offer {
    /// The state that was made since it was asked for; the library asks again until there is one. `first` is the first
    /// entry that is kept: the log goes on behind the state.
    pub fn take(&self, first: u64) -> raft::Result<Snapshot> {
        let mut offered = self.0.lock();
        offered.made.take_if(|made| made.get_metadata().index + 1 < first);
        offered.is_wanted = offered.made.is_none();
        let later = raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        offered.made.take().ok_or(later)
    }

    pub fn is_wanted(&self) -> bool {
        self.0.lock().is_wanted
    }

    /// Of a leader whose first entry is `first`.
    pub fn make(&self, checkpoint: &Checkpoint, first: u64, nodes: &[u64]) {
        let data = Writer::default().u64(first).bytes(&checkpoint.machine.encode()).done();
        if data.len() > BYTES_MAX {
            return self.say_too_long(data.len());
        }
        let mut snapshot = Snapshot {
            data,
            ..Snapshot::default()
        };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = checkpoint.entry;
        metadata.mut_conf_state().voters = nodes.to_vec();
        let mut offered = self.0.lock();
        (offered.is_wanted, offered.made) = (false, Some(snapshot));
    }

    fn say_too_long(&self, bytes: usize) {
        let mut offered = self.0.lock();
        if rt::now() >= offered.said {
            offered.said = rt::now() + SAID_AGAIN;
            eprintln!(
                "cenote storage: a node was away for too long, and the state that it should be given has {bytes} \
                 bytes, {BYTES_MAX} at most can be"
            );
        }
    }
}

/// A state that came from a leader.
#[derive(Debug)]
pub(crate) struct Given {
    pub checkpoint: Checkpoint,
    /// The first entry that the leader keeps.
    pub first: u64,
}

impl Given {
    /// # Errors
    /// [`Error::Corrupt`] for a message without one.
    pub fn of(message: &Message) -> Result<Given> {
        let snapshot = message.get_snapshot();
        let mut r = Reader::new(&snapshot.data, "a state of another storage node");
        let (first, machine) = (r.u64()?, Machine::decode(r.bytes()?)?);
        r.end()?;
        let entry = (snapshot.get_metadata().index, snapshot.get_metadata().term);
        let can_be = entry.0 < u64::MAX / 2 && (1..=entry.0 + 1).contains(&first) && entry.1 <= message.term;
        if !can_be {
            return Err(Error::corrupt(format!("a state as of entry {} cannot be", entry.0)));
        }
        Ok(Given {
            checkpoint: Checkpoint { entry, machine },
            first,
        })
    }

    /// What the node saves: all pages are lacking.
    pub fn saved(self) -> Saved {
        Saved {
            lacking: Some(Lacking::all_of(&self.checkpoint)),
            checkpoint: self.checkpoint,
        }
    }
}

/// When each node was given a state of which nothing was heard yet.
#[derive(Debug, Default)]
pub(crate) struct Pending(BTreeMap<u64, Nanos>);

impl Pending {
    /// Nodes to which another state should be given.
    pub fn overdue(&mut self, progress: &ProgressTracker) -> Vec<u64> {
        let now = rt::now();
        let waits = |node: &u64| {
            let of = progress.get(*node);
            of.is_some_and(|of| of.state == raft::ProgressState::Snapshot)
        };
        self.0.retain(|node, _| waits(node));
        for (node, _) in progress.iter().filter(|(node, _)| waits(node)) {
            self.0.entry(*node).or_insert(now + WORD);
        }
        let overdue: Vec<u64> = self.0.iter().filter(|(_, at)| **at <= now).map(|(n, _)| *n).collect();
        self.0.retain(|node, _| !overdue.contains(node));
        overdue
    }
}
