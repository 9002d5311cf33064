//! The frames in the region: the one place of this crate where memory is reached through pointers.
//!
//! [`Frames`] gives the fixed structures of a region (header, buckets, latch slots, descriptors) as slices of
//! atomics, and a page as a [`Span`], whose accesses are bounds-checked and word-wise. What is *in* those
//! words is not believed here or anywhere: indices are checked where they are used.
//!
//! Invariants:
//! - the slices lie inside the mapping, do not overlap, and consist of atomics only: any bytes are valid;
//! - the mapping lives as long as the [`Region`] that `Frames` holds.

#![allow(unsafe_code, reason = "this module is an address of unsafe code (design, section 3)")]

use std::ptr::NonNull;
use std::sync::Arc;

use cenote_base::{Error, PAGE_SIZE, Result};
use cenote_fabric::observe::Access;
use cenote_fabric::{Region, Span, coherence};

use crate::index::{FrameIndex, SlotIndex};
use crate::layout::{Descriptor, Geometry, LINE, LatchSlot, PoolHeader};
use crate::words::FrameLink;

/// A region seen as frames.
pub struct Frames {
    region: Arc<Region>,
    geometry: Geometry,
    header: NonNull<PoolHeader>,
    buckets: NonNull<FrameLink>,
    slots: NonNull<LatchSlot>,
    descriptors: NonNull<Descriptor>,
}

// SAFETY: the pointers lead to atomics in the mapping of `region`, which is Send and Sync and
// is kept alive by the Arc beside them.
unsafe impl Send for Frames {}
// SAFETY: as above; all access through the pointers is by shared reference to atomics.
unsafe impl Sync for Frames {}

impl Frames {
    /// Sees `region` as laid out by `geometry`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the geometry does not fit the region.
    pub fn new(region: Arc<Region>, geometry: Geometry) -> Result<Self> {
        if geometry.end() > region.len() || Geometry::plan(geometry.region_len, geometry.ring_len)? != geometry {
            return Err(Error::Invalid("the pool's geometry does not fit the region".into()));
        }
        let at = |offset: u64| {
            // SAFETY: `plan` gave the geometry, whose parts all end at or before `geometry.end()`, which is
            // at most the mapping's length: the result points into the mapping.
            let place = unsafe { region.base().add(offset as usize) };
            NonNull::new(place).expect("a mapping does not begin at address zero")
        };
        let (header, buckets) = (at(Geometry::HEADER_AT).cast(), at(geometry.buckets_at).cast());
        let (slots, descriptors) = (at(geometry.slots_at).cast(), at(geometry.descriptors_at).cast());
        let aligned = region.base().addr().is_multiple_of(4096);
        if !aligned {
            return Err(Error::Invalid("a region must be mapped at a page boundary".into()));
        }
        Ok(Self {
            region,
            geometry,
            header,
            buckets,
            slots,
            descriptors,
        })
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where things lie in it.
    #[inline(always)]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How many frames.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.geometry.frames
    }

    /// The pool's header.
    #[inline(always)]
    pub fn header(&self) -> &PoolHeader {
        // SAFETY: `new` placed it inside the mapping, at a multiple of 4096 from a base that is one; it
        // consists of atomics; the mapping lives as long as `self.region`.
        unsafe { self.header.as_ref() }
    }

    /// The heads of the hash chains.
    #[inline(always)]
    pub fn buckets(&self) -> &[FrameLink] {
        // SAFETY: as for `header`; `plan` keeps `buckets` words free for this part.
        unsafe { std::slice::from_raw_parts(self.buckets.as_ptr(), self.geometry.buckets as usize) }
    }

    /// The latch slots.
    #[inline(always)]
    pub fn slots(&self) -> &[LatchSlot] {
        // SAFETY: as for `header`; `plan` keeps as many slots free for this part.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), self.geometry.threads()) }
    }

    /// The latch slot `slot`, if the region has it.
    #[inline(always)]
    pub fn slot(&self, slot: SlotIndex) -> Option<&LatchSlot> {
        self.slots().get(slot.place())
    }

    /// Whether there is such a frame.
    #[inline(always)]
    pub fn has(&self, frame: FrameIndex) -> bool {
        frame.raw() < self.count()
    }

    /// All descriptors.
    #[inline(always)]
    pub fn descriptors(&self) -> &[Descriptor] {
        // SAFETY: as for `header`; `plan` keeps `frames` descriptors free for this part.
        unsafe { std::slice::from_raw_parts(self.descriptors.as_ptr(), self.geometry.frames as usize) }
    }

    /// The descriptor of `frame`.
    ///
    /// # Panics
    /// If there is no such frame: what comes from the region is checked before.
    #[inline(always)]
    pub fn descriptor(&self, frame: FrameIndex) -> &Descriptor {
        &self.descriptors()[frame.place()]
    }

    /// The descriptor of `frame`, if there is such a frame.
    #[inline(always)]
    pub fn find(&self, frame: FrameIndex) -> Option<&Descriptor> {
        self.descriptors().get(frame.place())
    }

    /// The page of `frame`.
    #[inline(always)]
    pub fn page(&self, frame: FrameIndex) -> Span<'_> {
        self.region.span(self.geometry.page_at(frame), PAGE_SIZE as u64)
    }

    /// Before the latch of `frame` is used raw: destructors pass no preemption point, and a simulated device must know.
    #[inline(always)]
    pub fn touch_latch(&self, frame: FrameIndex) {
        self.region.touch_device(self.descriptor_at(frame), 8, Access::Write);
    }

    /// Before `descriptor` is read raw, as a whole.
    #[inline(always)]
    pub fn touch_descriptor(&self, frame: FrameIndex) {
        self.region
            .touch_device(self.descriptor_at(frame), LINE as u32, Access::Read);
    }

    /// Before what lies at `place`, in one of the structures, is used raw.
    #[inline(always)]
    pub fn touch_raw<T>(&self, place: &T, access: Access) {
        if self.region.is_watched() {
            let off = std::ptr::from_ref(place).addr() - self.region.base().addr();
            self.region.touch_device(off as u64, size_of::<T>() as u32, access);
        }
    }

    /// Begins to write back what lies at `place`, in one of the structures.
    pub fn write_back<T>(&self, place: &T) {
        let off = std::ptr::from_ref(place).addr() - self.region.base().addr();
        coherence::write_back(&self.region, off as u64, size_of::<T>());
    }

    /// Where the descriptor of `frame` lies in the region.
    #[inline(always)]
    pub fn descriptor_at(&self, frame: FrameIndex) -> u64 {
        self.geometry.descriptor_at(frame)
    }
}
