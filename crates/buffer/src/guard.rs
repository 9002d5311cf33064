//! Guards of readers: optimistic and shared. (Writers hold theirs in a mini-transaction, [`crate::mtr`].)

use std::marker::PhantomData;

use cenote_base::PageId;
use cenote_base::rt::atomic::{Ordering, fence};
use cenote_base::rt::seam::{Points, Seam};
use cenote_fabric::observe::{Access, Asks, Observer};

use crate::index::FrameIndex;
use crate::latch;
use crate::layout::Descriptor;
use crate::pool::Pool;
use crate::view::PageView;

/// The page changed while it was read: what was read is void, begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart;

/// A page read without a latch: every value is a guess until [`OptGuard::validate`] says it was one state.
#[derive(Clone, Copy)]
pub struct OptGuard<'p> {
    pub(crate) pool: &'p Pool,
    descriptor: &'p Descriptor,
    pub(crate) frame: FrameIndex,
    pub(crate) version: u64,
}

impl<'p> OptGuard<'p> {
    #[inline(always)]
    pub(crate) fn new(pool: &'p Pool, descriptor: &'p Descriptor, frame: FrameIndex, version: u64) -> Self {
        Self {
            pool,
            descriptor,
            frame,
            version,
        }
    }

    /// The page; each access asks whether an observer is installed.
    #[inline(always)]
    pub fn view(&self) -> PageView<'p> {
        self.view_as(Asks)
    }

    /// The page, seen by `observer`, which is told too of what finding it took: bucket and descriptor.
    #[inline(always)]
    pub fn view_as<O: Observer>(&self, observer: O) -> PageView<'p, O> {
        self.pool.announce(self.frame, observer, Access::Read);
        PageView::new(self.pool.frames.page(self.frame), observer)
    }

    /// Whether all that was read since the guard was made is of one state of the page.
    #[inline(always)]
    pub fn valid(&self) -> bool {
        self.valid_by(Points)
    }

    /// [`OptGuard::valid`], within an operation that has asked what its preemption points are.
    #[inline(always)]
    pub fn valid_by<S: Seam>(&self, seam: S) -> bool {
        // The loads of the page come before the load of the latch.
        fence(Ordering::Acquire);
        let word = self.descriptor.latch.load_by(seam, Ordering::Relaxed);
        latch::version(word) == self.version && !latch::is_exclusive(word)
    }

    /// [`OptGuard::valid`] as a result.
    ///
    /// # Errors
    /// [`Restart`] if the page changed.
    #[inline(always)]
    pub fn validate(&self) -> Result<(), Restart> {
        if self.valid() { Ok(()) } else { Err(Restart) }
    }
}

/// A page held against writers. Not to be held while waiting for anything but pages, in latch order.
pub struct SharedGuard<'p> {
    pool: &'p Pool,
    frame: FrameIndex,
    page: PageId,
    /// The hold is counted once, and no thread may outlive it by sending it away.
    _here: PhantomData<*const ()>,
}

impl<'p> SharedGuard<'p> {
    pub(crate) fn new(pool: &'p Pool, frame: FrameIndex, page: PageId) -> Self {
        Self {
            pool,
            frame,
            page,
            _here: PhantomData,
        }
    }

    /// The page.
    pub fn view(&self) -> PageView<'_> {
        self.view_as(Asks)
    }

    /// The page, seen by `observer`; see [`OptGuard::view_as`].
    pub fn view_as<O: Observer>(&self, observer: O) -> PageView<'_, O> {
        self.pool.announce(self.frame, observer, Access::Write);
        PageView::new(self.pool.frames.page(self.frame), observer)
    }

    /// Which page it is.
    pub fn page(&self) -> PageId {
        self.page
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        self.pool.unlatch_shared(self.frame);
    }
}
