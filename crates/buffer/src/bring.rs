//! Pages that a thread is about to ask for one after the other are read together: batched key prepare (PolarDB
//! Serverless, section 4.2).
//!
//! A thread that knows the leaves of many keys says so ([`Pool::bring`]): those that no frame has are claimed frames,
//! entered in the hash, and read side by side, by one doorbell from remote memory or as one batch from storage. So it
//! waits once, and not once a page. While it holds latches of several frames it waits for bytes alone, and for no other
//! thread's latch or frame.
//!
//! Whether that is worth a look at the hash for each leaf, its own misses say: [`Pool::misses_lately`].

use cenote_base::{PageId, Result};

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
        let most = TOGETHER_MOST.min((self.frames.count() / SHARE).max(1) as usize);
        for pages in pages.chunks(most) {
            let is_missing = |page: &&PageId| self.hash.find(&self.frames, key_of(**page)).is_none();
            let missing: Vec<PageId> = pages.iter().filter(is_missing).copied().collect();
            if !missing.is_empty() {
                self.missed();
                self.make_room_for(missing.len());
                self.read_together(self.claim_for(&missing));
            }
        }
    }

    /// Nothing is held yet, so that frames may be waited for.
    fn make_room_for(&self, wanted: usize) {
        let free = self.free_now(&self.lists()) as usize;
        if free < wanted && !self.is_reserving() && !self.reserve_on_demand() {
            // A failure is told to the thread that needs a frame.
            let _ = self.evict_some(wanted - free);
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

    fn read_together(&self, claimed: Vec<(Latched, PageId)>) {
        let pages: Vec<PageId> = claimed.iter().map(|(_, page)| *page).collect();
        let reading = self.under_way.read(pages.len());
        let fetched = self.lower.read_many(&pages);
        drop(reading);
        assert!(fetched.len() == claimed.len(), "each page that is read has an outcome");
        for ((claimed, page), fetched) in claimed.into_iter().zip(fetched) {
            self.take_in_or_free(claimed, page, fetched);
        }
        bump(&self.counters().pages_prefetched, pages.len() as u64);
    }

    fn take_in_or_free(&self, claimed: Latched, page: PageId, fetched: Result<Fetched>) {
        match fetched.and_then(|fetched| self.take_in(claimed, page, &fetched, false)) {
            Ok(trace) => {
                self.settle(claimed, Hint::Warm.list(), &trace);
                self.unlatch(claimed, true);
            }
            Err(_) => _ = self.unpublish(claimed),
        }
    }

    /// Whether the calling thread has missed pages not long ago, so that it is worth while to [bring](Pool::bring)
    /// what it is about to ask for. Each question counts.
    #[inline]
    pub fn misses_lately(&self) -> bool {
        self.expectations.get().ask()
    }

    pub(crate) fn missed(&self) {
        if self.brings {
            self.expectations.get().missed();
        }
    }
}
