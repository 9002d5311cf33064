//! Read-ahead: pages that will be asked for soon are brought in by a thread in the background.
//!
//! A request is a hint: it is dropped when requests pile up, when the page is there, and when there is no free frame at
//! hand. Those that are left are read together ([`Pool::bring`]). Pages read ahead enter the cold list, where they stay
//! long enough to be met by the scan that wished for them, and leave before pages that were asked for.

use cenote_base::PageId;
use cenote_base::rt::atomic::Ordering;

use crate::hash::key_of;
use crate::lists::Hint;
use crate::pool::Pool;

/// Requests that may wait.
const REQUESTS_MAX: usize = 1024;

impl Pool {
    /// Asks for pages to be read in the background. Never waits, never fails.
    pub fn prefetch(&self, pages: &[PageId]) {
        if self.observed.is_on() {
            self.observed.tell_pages(pages, true);
        }
        let missing = |page: &&PageId| self.hash.find(&self.frames, key_of(**page)).is_none();
        let mut wanted = self.signals.wanted.lock();
        let before = wanted.len();
        let room = REQUESTS_MAX.saturating_sub(before);
        wanted.extend(pages.iter().filter(missing).take(room));
        assert!(
            wanted.len() <= REQUESTS_MAX,
            "no more than {REQUESTS_MAX} pages wait to be read ahead"
        );
        if wanted.len() > before {
            drop(wanted);
            self.signals.prefetch.set();
        }
    }

    /// The background's work: reads what is wished for.
    pub(crate) fn read_ahead(&self) {
        let mut wanted = std::mem::take(&mut *self.signals.wanted.lock());
        wanted.sort_unstable();
        wanted.dedup();
        for pages in wanted.chunks(self.together_most()) {
            if self.signals.stop.load(Ordering::Relaxed) {
                return;
            }
            // A page that cannot be read says so to the thread that asks for it.
            self.bring_some(pages, Hint::Scan);
        }
    }
}
