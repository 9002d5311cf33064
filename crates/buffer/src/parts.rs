//! What a mini-transaction holds, kept by its thread for the next one.

use cenote_base::{PAGE_SIZE, PageId};
use cenote_storage::redo::GroupBuilder;

use crate::layout::LINE;
use crate::slots::Latched;

/// A page of a mini-transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageH(u16);

impl PageH {
    /// That at `place` among those held.
    #[inline]
    pub(crate) fn at(place: usize) -> Self {
        assert!(
            place <= u16::MAX as usize,
            "a page's handle names its place among those held"
        );
        Self(place as u16)
    }

    /// Its place among those held.
    #[inline]
    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }
}

/// A place whose value is known at commit ([`Mtr::write_patched_u64`]).
pub(crate) struct Place {
    pub held: PageH,
    pub offset: usize,
    pub in_group: usize,
}

/// One page, latched.
pub(crate) struct Held {
    pub latched: Latched,
    pub page: PageId,
    /// Handle of its redo record; `None` while unchanged.
    pub record: Option<usize>,
    /// Bytes of redo so far, about.
    pub redo: usize,
    /// The image is logged instead of operations.
    pub image: bool,
    /// The record begins with init or image: the chain begins anew.
    pub base: bool,
    pub released: bool,
    /// Lines changed, a bit each; kept under `host` survival.
    pub dirty: [u64; PAGE_SIZE / LINE / 64],
}

/// What a mini-transaction needs, kept for the thread's next.
#[derive(Default)]
pub(crate) struct Parts {
    pub held: Vec<Held>,
    pub group: GroupBuilder,
    pub places: Vec<Place>,
    pub image: Vec<u8>,
}
