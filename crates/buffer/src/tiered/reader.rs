//! The tier of a reader: pages out of the remote memory that the database's server fills, those that it may believe;
//! all others come from storage nodes.
//!
//! A page is believed if the copy's name said the truth as of the last change that the reader knows of
//! ([`KnownChanges`]), and if the copy has no change that is beyond the reader's moment. What is found not to be so
//! costs two trips more than storage alone.
//!
//! Lock order: `known` and `link` are each taken under nothing, and not held while bytes move.

use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_storage::Storage;
use cenote_storage::follower::Follower;
use cenote_storage::nodes::Changes;

use super::look::{Look, ReadLink, Seen};
use super::source::RemoteSource;
use crate::known_changes::KnownChanges;
use crate::lists::Hint;
use crate::lower::{Fetched, Lower, Trace, read_storage, read_storage_many, with_below};
use crate::stats::TierStats;

/// How long the way to remote memory is waited for, each time.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// See the module.
pub(crate) struct ReaderTier {
    storage: Arc<Storage>,
    source: RemoteSource,
    link: Mutex<Option<Arc<ReadLink>>>,
    known: Mutex<KnownChanges>,
    counts: ReaderCounts,
}

#[derive(Default)]
struct ReaderCounts {
    hits: AtomicU64,
    misses: AtomicU64,
    refused: AtomicU64,
    losses: AtomicU64,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.as_raw().fetch_add(more, Ordering::Relaxed);
}

impl ReaderTier {
    /// Of a reader that is at its first moment. Where there is no memory to reach yet, it goes on with storage alone.
    pub fn open(storage: &Arc<Storage>, source: RemoteSource, follower: &Follower) -> Self {
        let tier = Self {
            storage: Arc::clone(storage),
            source,
            link: Mutex::default(),
            known: Mutex::new(KnownChanges::begin(follower.place().at.end)),
            counts: ReaderCounts::default(),
        };
        tier.connect("remote memory cannot be read yet");
        tier
    }

    fn connect(&self, failed: &str) {
        let database = self.storage.control().get().database;
        match ReadLink::connect(&self.source, (database, PATIENCE)) {
            Ok(link) => *self.link.lock() = Some(Arc::new(link)),
            Err(error) if !failed.is_empty() => {
                eprintln!("cenote: {failed}: {error}; pages come from storage nodes");
            }
            Err(_) => {}
        }
    }

    fn lose(&self, link: &Arc<ReadLink>, error: &Error) {
        let mut current = self.link.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            *current = None;
            drop(current);
            add(&self.counts.losses, 1);
            let peer = link.peer();
            eprintln!("cenote: remote memory of {peer}: {error}; pages come from storage nodes");
        }
    }

    /// The server that fills remote memory is to know what readers use of it, and would.
    fn note_asked(&self, pages: &[PageId], hint: Hint) {
        if let (Some(follower), Hint::Warm, true) = (self.storage.follower(), hint, self.link.lock().is_some()) {
            follower.note_asked(pages);
        }
    }

    /// Of each page what remote memory has, if that may be believed as of the reader's moment.
    fn read_remote(&self, pages: &[PageId]) -> Vec<Option<Fetched>> {
        let none = || pages.iter().map(|_| None).collect();
        let Some(link) = self.link.lock().clone() else {
            return none();
        };
        // The frames of these pages are in the hash: a move that changes one of them drops it.
        let Some(Ok(at)) = self.storage.follower().map(|follower| follower.readable()) else {
            return none();
        };
        match link.look(pages) {
            Ok(look) => self.believed(pages, look, at.end),
            Err(error) => {
                self.lose(&link, &error);
                none()
            }
        }
    }

    fn believed(&self, pages: &[PageId], look: Look, at: Lsn) -> Vec<Option<Fetched>> {
        let needed: Vec<Lsn> = {
            let mut known = self.known.lock();
            known.seen(look.watermark);
            pages.iter().map(|page| known.needed(*page)).collect()
        };
        let is_told = |needed: &Lsn| look.watermark >= *needed || planted(Fault::WatermarkUnread);
        let is_past = |seen: &Seen| seen.lsn <= at || planted(Fault::CopyAhead);
        let found = look.pages.into_iter().zip(needed);
        let found: Vec<Option<Fetched>> = found
            .map(|(seen, needed)| {
                let seen = seen.filter(|seen| is_told(&needed) && is_past(seen))?;
                Some(fetched(seen))
            })
            .collect();
        add(&self.counts.refused, look.torn);
        add(&self.counts.hits, found.iter().flatten().count() as u64);
        found
    }

    fn read_below(&self, pages: &[PageId]) -> Vec<Result<Fetched>> {
        add(&self.counts.misses, pages.len() as u64);
        match pages {
            [] => Vec::new(),
            [page] => vec![read_storage(&self.storage, *page)],
            several => read_storage_many(&self.storage, several),
        }
    }
}

fn fetched(seen: Seen) -> Fetched {
    assert!(seen.bytes.len() == PAGE_SIZE, "a copy is the whole of a page");
    Fetched {
        bytes: seen.bytes,
        read: PageRead::Present,
        from_storage: false,
        trace: Trace::saved(seen.lsn),
    }
}

impl Lower for ReaderTier {
    fn read(&self, page: PageId, hint: Hint) -> Result<Fetched> {
        let read = self.read_many(&[page], hint).pop();
        read.unwrap_or_else(|| Err(Error::corrupt(format!("no answer for page {page}"))))
    }

    fn read_many(&self, pages: &[PageId], hint: Hint) -> Vec<Result<Fetched>> {
        self.note_asked(pages, hint);
        with_below(pages, self.read_remote(pages), |missing| self.read_below(missing))
    }

    fn moving(&self, changes: &Changes) {
        let is_reached = self.link.lock().is_some();
        let mut known = self.known.lock();
        match is_reached {
            true if planted(Fault::ChangeUnknown) => {}
            true => known.note(changes),
            false => known.pass(changes),
        }
    }

    fn known_changes(&self) -> Option<KnownChanges> {
        Some(self.known.lock().clone())
    }

    fn needs_maintenance(&self) -> bool {
        true
    }

    /// Looks for remote memory that was lost, or that was not there yet.
    fn maintain(&self) {
        if self.link.lock().is_none() {
            self.connect("");
            if self.link.lock().is_some() {
                eprintln!("cenote: remote memory is read");
            }
        }
        let link = self.link.lock().clone();
        if let Some(link) = link {
            let database = self.storage.control().get().database;
            link.reach_wanted(&self.source, (database, PATIENCE));
        }
    }

    fn stats(&self) -> Option<TierStats> {
        let get = |counter: &AtomicU64| counter.as_raw().load(Ordering::Relaxed);
        let link = self.link.lock().clone();
        let (bytes, slots) = link.as_ref().map_or((0, 0), |link| link.size());
        let hits = get(&self.counts.hits);
        Some(TierStats {
            bytes,
            slots,
            slabs: link.map_or(0, |link| link.slabs()),
            hits,
            misses: get(&self.counts.misses),
            pages_refused: get(&self.counts.refused),
            losses: get(&self.counts.losses),
            bytes_read: hits * PAGE_SIZE as u64,
            ..TierStats::default()
        })
    }
}
