//! The tier of a reader in the pod of the database's server: pages out of that server's frames, where they can be had
//! as of the reader's moment; all others come from what lies below.
//!
//! Whose frames are read is decided anew with each moment: a server that takes the database has its own frames, and
//! those of the former one end to count with the entry that lets it write.
//!
//! Lock order: `frames` is taken under nothing, and not held while bytes move.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, PAGE_SIZE, PageId, Result};
use cenote_storage::Storage;
use cenote_storage::nodes::{Changes, Moment};

use crate::known_changes::KnownChanges;
use crate::lists::Hint;
use crate::lower::{Fetched, Lower, Trace, with_below};
use crate::pod_frames::{PageInPod, PodFrames, Served};
use crate::stats::{PodStats, TierStats};

/// See the module.
pub(crate) struct PodTier {
    storage: Arc<Storage>,
    /// Regions of servers of this pod: one of them may be that of the server that has the database.
    regions: Vec<PathBuf>,
    frames: Mutex<Option<(Served, Arc<PodFrames>)>>,
    /// What was said last.
    said: Mutex<String>,
    below: Box<dyn Lower>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl PodTier {
    /// In front of `below`.
    pub fn new(storage: &Arc<Storage>, regions: Vec<PathBuf>, below: Box<dyn Lower>) -> Self {
        let tier = Self {
            storage: Arc::clone(storage),
            regions,
            frames: Mutex::default(),
            said: Mutex::default(),
            below,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        tier.look_for_frames();
        tier
    }

    /// The reader's moment, and which start's frames have pages as of that; none while it moves.
    fn readable(&self) -> Option<(Moment, Served)> {
        let (at, epoch) = self.storage.follower()?.readable_of().ok()?;
        let database = self.storage.control().get().database;
        Some((at, Served { database, epoch }))
    }

    /// Finds the frames of the server that has the database, unless they are known.
    fn look_for_frames(&self) {
        let Some((_, by)) = self.readable() else { return };
        if self.frames.lock().as_ref().is_some_and(|(known, _)| *known == by) {
            return;
        }
        let mut failed = String::new();
        let mut serves = |path: &PathBuf| match PodFrames::open(path) {
            Ok(frames) => (frames.served() == Some(by)).then(|| Arc::new(frames)),
            Err(error) => {
                failed.push_str(&format!("; {error}"));
                None
            }
        };
        let found = self.regions.iter().find_map(&mut serves);
        match &found {
            Some(_) => self.say("pages are read in the frames of the server, over the pod's memory".into()),
            None => self.say(format!(
                "the server that has the database has no frames in this pod's memory{failed}"
            )),
        }
        *self.frames.lock() = found.map(|frames| (by, frames));
    }

    /// What is so again and again is said once.
    fn say(&self, what: String) {
        let mut said = self.said.lock();
        if *said != what {
            eprintln!("cenote: {what}");
            *said = what;
        }
    }

    fn read_in_pod(&self, pages: &[PageId]) -> Vec<Option<Fetched>> {
        let known = self.frames.lock().clone();
        // The frames of these pages are in this pool's hash: a move that changes one of them drops it.
        let is_same = |known: Served, by: Served| known == by || planted(Fault::PodStartUnread);
        let found = known.zip(self.readable());
        let found = found.filter(|((known, _), (_, by))| is_same(*known, *by));
        // Before anything is copied: a region that its server begins anew.
        let found =
            found.filter(|((known, frames), _)| frames.served() == Some(*known) || planted(Fault::PodStartUnread));
        let read = |page: &PageId| {
            let ((by, frames), (at, _)) = found.as_ref()?;
            frames.read(*page, at.end, *by).map(fetched)
        };
        let all: Vec<Option<Fetched>> = pages.iter().map(read).collect();
        let hits = all.iter().flatten().count() as u64;
        self.hits.as_raw().fetch_add(hits, Ordering::Relaxed);
        let misses = all.len() as u64 - hits;
        self.misses.as_raw().fetch_add(misses, Ordering::Relaxed);
        all
    }
}

fn fetched(page: PageInPod) -> Fetched {
    assert!(page.bytes.len() == PAGE_SIZE, "a frame has the whole of a page");
    Fetched {
        bytes: page.bytes,
        read: PageRead::Present,
        from_storage: false,
        trace: Trace::saved(page.lsn),
    }
}

impl Lower for PodTier {
    fn read(&self, page: PageId, hint: Hint) -> Result<Fetched> {
        let read = self.read_many(&[page], hint).pop();
        read.unwrap_or_else(|| Err(Error::corrupt(format!("no answer for page {page}"))))
    }

    fn read_many(&self, pages: &[PageId], hint: Hint) -> Vec<Result<Fetched>> {
        with_below(pages, self.read_in_pod(pages), |missing| match missing {
            [] => Vec::new(),
            [page] => vec![self.below.read(*page, hint)],
            several => self.below.read_many(several, hint),
        })
    }

    fn moving(&self, changes: &Changes) {
        self.below.moving(changes);
    }

    fn known_changes(&self) -> Option<KnownChanges> {
        self.below.known_changes()
    }

    fn needs_maintenance(&self) -> bool {
        true
    }

    fn maintain(&self) {
        self.look_for_frames();
        if self.below.needs_maintenance() {
            self.below.maintain();
        }
    }

    fn stats(&self) -> Option<TierStats> {
        self.below.stats()
    }

    fn pod_stats(&self) -> Option<PodStats> {
        let frames = self.frames.lock().as_ref().map(|(_, frames)| Arc::clone(frames));
        Some(PodStats {
            bytes: frames.as_ref().map_or(0, |frames| frames.bytes()),
            frames: frames.as_ref().map_or(0, |frames| frames.frames()),
            hits: self.hits.as_raw().load(Ordering::Relaxed),
            misses: self.misses.as_raw().load(Ordering::Relaxed),
        })
    }
}
