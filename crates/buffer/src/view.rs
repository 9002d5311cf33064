//! A page as readers see it: words and comparisons, never references.
//!
//! A page may change while an optimistic reader looks at it, so a view lends nothing: it loads or copies, word by word,
//! and the guard's holder asks afterwards whether what was read belongs together. Values read from a page are offsets
//! and lengths that may be nonsense: every access is checked against the page's bounds and one outside reads zeros
//! ([`PageView::reaches`] asks). Torn data never leads out of the page.
//!
//! A view is generic over the observer, to whom each access is announced before it is made: with
//! [`Off`](cenote_fabric::observe::Off), for callers that have asked whether an observer is installed, nothing of it is
//! left in the code; with [`Asks`] each access asks.

use std::cmp::Ordering;

use cenote_base::PAGE_SIZE;
use cenote_fabric::observe::{Access, Asks, Observer};
use cenote_fabric::{Quiet, Span};

/// A page that may be read.
#[derive(Clone, Copy)]
pub struct PageView<'a, O: Observer = Asks> {
    span: Span<'a>,
    observer: O,
}

impl<'a, O: Observer> PageView<'a, O> {
    /// The page in `span`, which is of [`PAGE_SIZE`] bytes.
    #[inline(always)]
    pub(crate) fn new(span: Span<'a>, observer: O) -> Self {
        Self { span, observer }
    }

    /// The same page, seen by another observer.
    #[inline(always)]
    pub fn observed<P: Observer>(self, observer: P) -> PageView<'a, P> {
        PageView {
            span: self.span,
            observer,
        }
    }

    /// The observer.
    #[inline(always)]
    pub fn observer(&self) -> O {
        self.observer
    }

    /// Whether `length` bytes at `offset` are inside the page.
    #[inline(always)]
    pub fn reaches(&self, offset: usize, length: usize) -> bool {
        offset <= PAGE_SIZE && length <= PAGE_SIZE - offset
    }

    #[inline(always)]
    fn touch(&self, offset: usize, length: usize) {
        if O::ON && self.observer.is_on() {
            self.touch_observed(offset, length);
        }
    }

    #[inline(never)]
    fn touch_observed(&self, offset: usize, length: usize) {
        if length > 0 && self.reaches(offset, length) {
            let at = self.span.offset() + offset as u64;
            self.observer.touch(self.span.memory(), at, length as u32, Access::Read);
        }
    }

    /// Asks the processor for the line at `offset`, which will be read soon. No access, and not announced.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        if self.reaches(offset, 1) {
            self.span.memory().prefetch(self.span.offset() + offset as u64);
        }
    }

    /// The bytes, once announced.
    #[inline(always)]
    fn bytes(&self) -> Quiet<'a> {
        self.span.quiet()
    }

    /// The byte at `offset`; 0 outside the page.
    #[inline(always)]
    pub fn u8(&self, offset: usize) -> u8 {
        self.touch(offset, 1);
        self.bytes().u8(offset)
    }

    /// Two bytes at `offset`; 0 outside the page.
    #[inline(always)]
    pub fn u16(&self, offset: usize) -> u16 {
        self.touch(offset, 2);
        self.bytes().u16(offset)
    }

    /// Four bytes at `offset`; 0 outside the page.
    #[inline(always)]
    pub fn u32(&self, offset: usize) -> u32 {
        self.touch(offset, 4);
        self.bytes().u32(offset)
    }

    /// Eight bytes at `offset`; 0 outside the page.
    #[inline(always)]
    pub fn u64(&self, offset: usize) -> u64 {
        self.touch(offset, 8);
        self.bytes().u64(offset)
    }

    /// Compares `length` bytes at `offset` with `other`; what is outside the page does not exist.
    #[inline(always)]
    pub fn cmp(&self, offset: usize, length: usize, other: &[u8]) -> Ordering {
        let (offset, length) = self.within(offset, length);
        self.touch(offset, length);
        self.bytes().cmp(offset, length, other)
    }

    /// Appends `length` bytes at `offset` to `out`; what is outside the page does not exist.
    #[inline]
    pub fn copy_to(&self, offset: usize, length: usize, out: &mut Vec<u8>) {
        let (offset, length) = self.within(offset, length);
        self.touch(offset, length);
        self.bytes().append_to(offset, length, out);
    }

    /// Fills `out` with the bytes at `offset`; those outside the page stay as they are.
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let (offset, length) = self.within(offset, out.len());
        self.touch(offset, length);
        self.bytes().copy_out(offset, &mut out[..length]);
    }

    #[inline(always)]
    fn within(&self, offset: usize, length: usize) -> (usize, usize) {
        let offset = offset.min(PAGE_SIZE);
        (offset, length.min(PAGE_SIZE - offset))
    }
}
