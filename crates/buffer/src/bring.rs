//! Pages that a thread is about to ask for one after the other are read together: batched key prepare (PolarDB
//! Serverless, section 4.2).
//!
//! A thread that knows the leaves of many keys says so ([`Pool::bring`]): those that no frame has are claimed frames,
//! entered in the hash, and read side by side, by one doorbell from remote memory or as one batch from storage. So it
//! waits once, and not once a page. While it holds latches of several frames it waits for bytes, and for no thread that
//! may wait for one of them.
//!
//! Whether that is worth a look at the hash for each leaf, its own misses say: [`Pool::misses_lately`].

use cenote_base::page_io::PageRead;
use cenote_base::{Error, PageId, Result};

use crate::hash::key_of;
use crate::layout::SLOT_FRAMES;
use crate::lists::Hint;
use crate::lower::Fetched;
use crate::pool::Pool;
use crate::slots::Latched;
use crate::stats::bump;

/// Pages read together at most.
const TOGETHER_MOST: usize = 32;
/// Of a small pool, at most this share of its frames.
const SHARE: u32 = 16;

// What a thread holds besides finds room in its slot.
const _: () = assert!(TOGETHER_MOST * 2 < SLOT_FRAMES);

impl Pool {
    /// Reads those of `pages` that no frame has, side by side. The caller holds no latch. What there is no room for is
    /// left to the thread that asks for the page, and so is what cannot be read.
    pub fn bring(&self, pages: &[PageId]) {
        if self.observed.is_on() {
            self.observed.tell_pages(pages, false);
        }
        pages
            .chunks(self.together_most())
            .for_each(|pages| self.bring_some(pages, Hint::Warm));
    }

    /// Pages that are brought in one go, at most.
    pub(crate) fn together_most(&self) -> usize {
        match self.brings {
            true => TOGETHER_MOST.min((self.frames.count() / SHARE).max(1) as usize),
            false => 1,
        }
    }

    /// So many pages at most.
    pub(crate) fn bring_some(&self, pages: &[PageId], hint: Hint) {
        let is_missing = |page: &&PageId| self.hash.find(&self.frames, key_of(**page)).is_none();
        let missing: Vec<PageId> = pages.iter().filter(is_missing).copied().collect();
        if missing.is_empty() {
            return;
        }
        self.missed();
        self.make_some_room(missing.len());
        self.read_together(self.claim_for(&missing), hint);
    }

    /// Where the evictor does not keep up. Nothing is held yet.
    fn make_some_room(&self, wanted: usize) {
        let low = wanted.min(self.reserve_target() as usize / 2);
        if (self.free_now(&self.lists()) as usize) < low {
            // A failure, and a wait, are left to the thread that needs a frame.
            let _ = self.evict_for_itself();
        }
    }

    /// Frames for these pages, as far as frames are free, and none has come meanwhile.
    fn claim_for(&self, pages: &[PageId]) -> Vec<(Latched, PageId)> {
        let claim = |page: &PageId| Some((self.claim_free().ok()??, *page));
        let claimed = pages.iter().map_while(claim);
        // What is broken says so to the thread that asks for the page.
        let is_its = |(frame, page): &(Latched, PageId)| matches!(self.publish(*frame, *page), Ok(None));
        claimed.filter(is_its).collect()
    }

    fn read_together(&self, claimed: Vec<(Latched, PageId)>, hint: Hint) {
        let pages: Vec<PageId> = claimed.iter().map(|(_, page)| *page).collect();
        let reading = self.under_way.read(pages.len());
        let fetched = self.lower.read_many(&pages, hint);
        drop(reading);
        assert!(fetched.len() == claimed.len(), "each page that is read has an outcome");
        for ((claimed, page), fetched) in claimed.into_iter().zip(fetched) {
            self.take_in_or_free((claimed, page), fetched, hint);
        }
    }

    fn take_in_or_free(&self, (claimed, page): (Latched, PageId), fetched: Result<Fetched>, hint: Hint) {
        // What readers ask for comes over the network: it may be no page of the database.
        let fetched = fetched.and_then(|fetched| match (hint, fetched.read) {
            (Hint::OfReader, PageRead::NeverWritten) => Err(Error::Invalid(format!("page {page} was never written"))),
            _ => Ok(fetched),
        });
        match fetched.and_then(|fetched| self.take_in(claimed, page, &fetched, false)) {
            Ok(trace) => {
                match hint {
                    Hint::OfReader => bump(&self.counters().pages_filled, 1),
                    Hint::Warm | Hint::Scan => bump(&self.counters().pages_prefetched, 1),
                    Hint::ToSave => {}
                }
                self.settle(claimed, hint.list(), &trace);
                self.unlatch(claimed, true);
            }
            Err(_) => _ = self.unpublish(claimed),
        }
    }

    /// Whether the calling thread has missed pages not long ago, so that it is worth while to [bring](Pool::bring)
    /// what it is about to ask for. Each question counts. An observer of accesses is to hear of all that would be
    /// brought.
    #[inline]
    pub fn misses_lately(&self) -> bool {
        self.expectations.get().ask() || self.observed.is_on()
    }

    pub(crate) fn missed(&self) {
        if self.brings {
            self.expectations.get().missed();
        }
    }
}
