//! Atomics in region memory.
//!
//! [`HostAtomicU64`] and [`HostAtomicU32`] hold among the threads of one host, anywhere in a region. Among hosts they
//! promise nothing: a region need not be hardware-coherent (design, section 4). [`PodAtomicU64`] and [`PodAtomicU32`]
//! hold among all hosts of the pod, and can be had from a region's [`Window`] only, the bytes that
//! hardware keeps coherent; a CXL 2.0 switch has none. Each operation is a preemption point of the runtime.
//!
//! ```
//! use cenote_base::rt::atomic::Ordering;
//! use cenote_fabric::{Identity, Region, RegionOptions};
//!
//! let options = RegionOptions { window: 8192, ..RegionOptions::default() };
//! let region = Region::dram(65536, Identity::default(), options)?;
//! let owner = region.window().atomic_u64(4096).expect("inside the window");
//! owner.store(7, Ordering::Release);
//! assert!(region.window().atomic_u64(8192).is_none(), "outside");
//! # Ok::<(), cenote_base::Error>(())
//! ```
//!
//! Elsewhere there is none to be had:
//!
//! ```compile_fail
//! use cenote_fabric::{Identity, PodAtomicU64, Region, RegionOptions};
//!
//! let region = Region::dram(65536, Identity::default(), RegionOptions::default()).expect("memory");
//! let owner: &PodAtomicU64 = region.atomic_u64(4096); // this one holds on its host only
//! ```

use crate::memory::RegionMemory;
use cenote_base::rt::atomic::{AtomicU32, AtomicU64};
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;

macro_rules! host_atomic {
    ($name:ident, $inner:ident, $among:literal) => {
        #[doc = concat!("A `", stringify!($inner), "` in a region, among ", $among, ".")]
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl Deref for $name {
            type Target = $inner;
            #[inline(always)]
            fn deref(&self) -> &$inner {
                &self.0
            }
        }

        impl $name {
            /// The atomic at `p`.
            ///
            /// # Safety
            /// `p` is aligned to the atomic's size, and mapped for `'a`.
            #[inline(always)]
            pub(crate) unsafe fn at<'a>(p: *mut u8) -> &'a Self {
                // SAFETY: by the caller's promise; every bit pattern is a value, and the type is
                // transparent over an atomic, so sharing it among threads is sound.
                unsafe { &*p.cast::<Self>() }
            }
        }
    };
}

host_atomic!(HostAtomicU64, AtomicU64, "threads of one host");
host_atomic!(HostAtomicU32, AtomicU32, "threads of one host");
host_atomic!(PodAtomicU64, AtomicU64, "all hosts of the pod");
host_atomic!(PodAtomicU32, AtomicU32, "all hosts of the pod");

/// Aligned words, each `STRIDE` bytes after the other, in memory that `O` keeps mapped: checked once, when they are
/// made, so that each use costs one comparison.
pub(crate) struct Spaced<const STRIDE: usize, O> {
    first: NonNull<u8>,
    count: usize,
    owner: Arc<O>,
}

// SAFETY: the words are mapped while the owner that it has a share of lives, and are reached as atomics only.
unsafe impl<const STRIDE: usize, O: Send + Sync> Send for Spaced<STRIDE, O> {}
// SAFETY: as above; shared, it offers nothing else.
unsafe impl<const STRIDE: usize, O: Send + Sync> Sync for Spaced<STRIDE, O> {}

impl<const STRIDE: usize, O: Deref<Target = RegionMemory>> Spaced<STRIDE, O> {
    /// The `count` words at `off`, `off + STRIDE`, and so on; panics if they overlap, or are not all inside and
    /// aligned to 8 bytes.
    pub(crate) fn new(owner: Arc<O>, off: u64, count: usize) -> Self {
        let len = STRIDE.checked_mul(count).expect("a length in memory") as u64;
        let is_inside = off.checked_add(len).is_some_and(|end| end <= owner.len());
        assert!(is_inside, "words outside of their region");
        let is_apart = STRIDE >= 8 && STRIDE.is_multiple_of(8);
        assert!(is_apart, "words do not overlap and are aligned: {STRIDE} bytes apart");
        let first = NonNull::new(owner.base().wrapping_add(off as usize)).expect("mapped memory is not at null");
        assert!(first.cast::<u64>().is_aligned(), "words are aligned");
        Self { first, count, owner }
    }
}

impl<const STRIDE: usize, O> Spaced<STRIDE, O> {
    /// The word with this number, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, n: usize) -> Option<&HostAtomicU64> {
        if n >= self.count {
            return None;
        }
        // SAFETY: `n < count`, so all of it is inside the memory and aligned, as `new` has checked; it is mapped while
        // the owner lives.
        Some(unsafe { HostAtomicU64::at(self.first.as_ptr().add(n * STRIDE)) })
    }

    /// Where the word with this number lies, if there is one: for a hint, not for an access.
    #[inline(always)]
    pub(crate) fn place(&self, n: usize) -> Option<*mut u8> {
        (n < self.count).then(|| self.first.as_ptr().wrapping_add(n * STRIDE))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// What keeps them mapped.
    pub(crate) fn owner(&self) -> &Arc<O> {
        &self.owner
    }
}
