//! What awaits a sync of a node's log, by the numbers of the Raft library's *readies*: what it wants done at once.
//!
//! Invariants:
//! - one sync at a time;
//! - what promises that something is kept leaves when that is synced, in the order of readies;
//! - what promises nothing, a heartbeat's answer, leaves at once, unless the vote or the term is not synced.

use std::collections::VecDeque;

use cenote_base::Result;
use cenote_base::rt::{self, Nanos};
use raft::eraftpb::{Message, MessageType};

use crate::raft_log::{RaftLog, Unsynced};

/// See the module.
#[derive(Default)]
pub(crate) struct Awaited {
    /// The last ready that was written.
    written: u64,
    /// The last one that brought entries or a vote, and a vote.
    wanted: u64,
    vote: u64,
    /// Up to here all is synced.
    synced: u64,
    messages: VecDeque<(u64, Vec<Message>)>,
    /// Since when a sync is under way.
    began: Option<Nanos>,
}

/// A write that is under way, and a sync where one is wanted.
pub(crate) struct Sync {
    /// What it is of.
    unsynced: Unsynced,
    /// The ready up to which it is synced; `None`: nothing waits for that.
    to: Option<u64>,
}

impl Sync {
    /// # Errors
    /// An I/O error, after which the log is not to be used.
    pub fn run(&mut self) -> Result<()> {
        match self.to {
            Some(_) => self.unsynced.sync(),
            None => self.unsynced.write(),
        }
    }
}

impl Awaited {
    /// A ready was written: with these messages, which promise what it brought. Those of them that promise nothing
    /// leave at once, and are returned.
    pub fn note(&mut self, ready: u64, is_wanted: bool, has_vote: bool, messages: Vec<Message>) -> Vec<Message> {
        assert!(ready > self.written, "readies come in order");
        self.written = ready;
        if is_wanted {
            self.wanted = ready;
        }
        if has_vote {
            self.vote = ready;
        }
        // A node that speaks in a term has it on its drive.
        let speaks = self.vote <= self.synced;
        let promises = |message: &Message| !speaks || message.msg_type() != MessageType::MsgHeartbeatResponse;
        let (awaited, free): (Vec<_>, Vec<_>) = messages.into_iter().partition(promises);
        if !awaited.is_empty() {
            self.messages.push_back((ready, awaited));
        }
        free
    }

    /// Whether something is to be synced.
    pub fn is_wanted(&self) -> bool {
        self.wanted > self.synced
    }

    /// What is in memory alone is to be written; none is under way that was begun before.
    pub fn begin(&mut self, log: &mut RaftLog) -> Option<Sync> {
        let is_wanted = self.is_wanted();
        if self.began.is_some() || !is_wanted && !log.has_changes() {
            return None;
        }
        self.began = Some(rt::now());
        Some(Sync {
            unsynced: log.unsynced(),
            to: is_wanted.then_some(self.written),
        })
    }

    /// What has begun is over.
    pub fn end(&mut self, sync: Sync, log: &mut RaftLog) {
        assert!(self.began.take().is_some(), "a write ends that has begun");
        let Some(ready) = sync.to else {
            return log.note_written(sync.unsynced);
        };
        assert!(
            self.synced < ready && ready <= self.written,
            "a sync is of what was written"
        );
        log.note_synced(sync.unsynced);
        self.synced = ready;
    }

    pub fn is_under_way(&self) -> bool {
        self.began.is_some()
    }

    /// How long the sync has taken that is under way.
    pub fn takes(&self) -> Nanos {
        self.began.map_or(Nanos::ZERO, |began| rt::now().since(began))
    }

    /// The ready up to which all is as durable as it has to be, and the messages that awaited it.
    pub fn release(&mut self) -> (u64, Vec<Message>) {
        if !self.is_wanted() {
            self.synced = self.written;
        }
        let ready = self.messages.partition_point(|(ready, _)| *ready <= self.synced);
        let free = self.messages.drain(..ready).flat_map(|(_, messages)| messages);
        (self.synced, free.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::eraftpb::HardState;

    fn message(kind: MessageType) -> Message {
        Message {
            msg_type: kind.into(),
            ..Message::default()
        }
    }

    fn kinds(messages: &[Message]) -> Vec<MessageType> {
        messages.iter().map(Message::msg_type).collect()
    }

    fn log() -> (tempfile::TempDir, RaftLog) {
        let dir = tempfile::tempdir().expect("a directory");
        let log = RaftLog::open(dir.path(), 64 << 10, (0, 0), false).expect("opens");
        (dir, log)
    }

    use MessageType::{MsgAppendResponse, MsgHeartbeatResponse, MsgRequestVoteResponse};

    #[test]
    fn promises_await_their_sync_and_answers_to_heartbeats_do_not() {
        let (mut awaited, (_dir, mut log)) = (Awaited::default(), log());
        let free = awaited.note(1, true, false, vec![message(MsgAppendResponse)]);
        assert!(free.is_empty());
        let mut sync = awaited.begin(&mut log).expect("wanted");
        assert!(awaited.begin(&mut log).is_none(), "one sync at a time");
        let free = awaited.note(
            2,
            false,
            false,
            vec![message(MsgHeartbeatResponse), message(MsgAppendResponse)],
        );
        assert_eq!(kinds(&free), [MsgHeartbeatResponse]);
        assert_eq!(awaited.release(), (0, vec![]));
        sync.run().expect("synced");
        awaited.end(sync, &mut log);
        let (ready, free) = awaited.release();
        assert_eq!(ready, 2, "the second brought nothing to sync");
        assert_eq!(kinds(&free), [MsgAppendResponse; 2]);
        assert!(awaited.begin(&mut log).is_none());
        // How far is committed is written, and nothing waits for it.
        log.set_hard_state(&HardState::default()).expect("put");
        let mut write = awaited.begin(&mut log).expect("there is something to write");
        assert!(
            awaited
                .note(3, false, false, vec![message(MsgAppendResponse)])
                .is_empty()
        );
        assert_eq!(kinds(&awaited.release().1), [MsgAppendResponse]);
        write.run().expect("written");
        awaited.end(write, &mut log);
        assert!(awaited.begin(&mut log).is_none());
    }

    #[test]
    fn nothing_is_said_in_a_term_that_is_not_synced() {
        let (mut awaited, (_dir, mut log)) = (Awaited::default(), log());
        let vote = vec![message(MsgRequestVoteResponse), message(MsgHeartbeatResponse)];
        assert!(awaited.note(1, true, true, vote).is_empty());
        let sync = awaited.begin(&mut log).expect("wanted");
        assert!(
            awaited
                .note(2, true, false, vec![message(MsgHeartbeatResponse)])
                .is_empty()
        );
        awaited.end(sync, &mut log);
        let (ready, free) = awaited.release();
        assert_eq!(
            (ready, kinds(&free)),
            (1, vec![MsgRequestVoteResponse, MsgHeartbeatResponse])
        );
        let sync = awaited.begin(&mut log).expect("what came meanwhile is synced, too");
        awaited.end(sync, &mut log);
        assert_eq!(kinds(&awaited.release().1), [MsgHeartbeatResponse]);
    }
}
