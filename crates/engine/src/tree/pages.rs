//! The tree's view of the buffer: latched pages and optimistic views as [`PageRead`] and [`PageWrite`].

use std::cmp::Ordering;

pub(crate) use cenote_buffer::{Hint, Mtr, OptGuard, PageH, PageView, Pool};
use cenote_fabric::observe::Observer;

use super::layout::{PageRead, PageWrite};

impl<O: Observer> PageRead for PageView<'_, O> {
    #[inline(always)]
    fn u8(self, off: usize) -> u8 {
        PageView::u8(&self, off)
    }

    #[inline(always)]
    fn u16(self, off: usize) -> u16 {
        PageView::u16(&self, off)
    }

    #[inline(always)]
    fn u32(self, off: usize) -> u32 {
        PageView::u32(&self, off)
    }

    #[inline(always)]
    fn compare(self, off: usize, len: usize, with: &[u8]) -> Ordering {
        PageView::cmp(&self, off, len, with)
    }

    #[inline(always)]
    fn copy_to(self, off: usize, len: usize, out: &mut Vec<u8>) {
        PageView::copy_to(&self, off, len, out);
    }
}

/// A page latched exclusively in a mini-transaction.
pub(crate) struct Latched<'m, 'p> {
    pub m: &'m mut Mtr<'p>,
    pub h: PageH,
}

impl PageWrite for Latched<'_, '_> {
    type View<'v>
        = PageView<'v>
    where
        Self: 'v;

    fn view(&self) -> PageView<'_> {
        self.m.view(self.h)
    }

    fn write(&mut self, off: usize, bytes: &[u8]) {
        self.m.write(self.h, off, bytes);
    }

    fn shift(&mut self, from: usize, to: usize, len: usize) {
        self.m.move_bytes(self.h, from, to, len);
    }
}

/// Borrows the page `h` of `m` for reading and writing.
pub(crate) fn latched<'m, 'p>(m: &'m mut Mtr<'p>, h: PageH) -> Latched<'m, 'p> {
    Latched { m, h }
}
