//! Which frame, and which latch slot: numbers that are not taken for one another, nor for a count or a position.
//!
//! A word of the region that names a frame holds its index + 1, and 0 for "none": a *link*. What a link says is checked
//! where it is used, since other processes have written it.

use std::fmt;
use std::ops::Range;

use cenote_base::rt;

/// A frame, by its place among the frames of the region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FrameIndex(u32);

impl FrameIndex {
    /// The frame at `index`.
    #[inline(always)]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// As a number.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// As a place in a slice with an element for each frame.
    #[inline(always)]
    pub const fn place(self) -> usize {
        self.0 as usize
    }

    /// The frames `range`, in order.
    pub fn all(range: Range<u32>) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        range.map(Self)
    }

    /// The frame that a link names, if it names one.
    #[inline(always)]
    pub const fn from_link(link: u32) -> Option<Self> {
        match link.checked_sub(1) {
            Some(index) => Some(Self(index)),
            None => None,
        }
    }

    /// As [`FrameIndex::from_link`], for a reader that looks whether there is such a frame: "none" is none that can be.
    #[inline(always)]
    pub const fn from_link_unchecked(link: u32) -> Self {
        Self(link.wrapping_sub(1))
    }

    /// The link that names `frame`.
    #[inline(always)]
    pub const fn link_to(frame: Option<Self>) -> u32 {
        match frame {
            Some(frame) => frame.0 + 1,
            None => 0,
        }
    }
}

impl fmt::Display for FrameIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FrameIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A latch slot, by its place among the slots of the region: the slot of the thread with that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct SlotIndex(u16);

const _: () = assert!(
    rt::MAX_THREADS <= u16::MAX as usize + 1,
    "the number of a thread names its latch slot"
);

impl SlotIndex {
    /// The slot of the calling thread; a small region may not have it.
    #[inline(always)]
    pub fn mine() -> Self {
        Self(rt::thread_slot() as u16)
    }

    /// As a place in a slice with an element for each slot, or for each thread.
    #[inline(always)]
    pub const fn place(self) -> usize {
        self.0 as usize
    }

    /// How many slots there are up to this one.
    #[inline(always)]
    pub const fn count(self) -> u32 {
        self.0 as u32 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_names_a_frame_or_none() {
        for index in [0, 1, u32::MAX - 1] {
            let frame = FrameIndex::new(index);
            let link = FrameIndex::link_to(Some(frame));
            assert_eq!(link, index + 1, "what a region's word holds");
            assert_eq!(FrameIndex::from_link(link), Some(frame));
            assert_eq!(FrameIndex::from_link_unchecked(link), frame);
        }
        assert_eq!((FrameIndex::link_to(None), FrameIndex::from_link(0)), (0, None));
        assert_eq!(FrameIndex::from_link_unchecked(0).raw(), u32::MAX);
    }
}
