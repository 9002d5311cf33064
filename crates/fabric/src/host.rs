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

use cenote_base::rt::atomic::{AtomicU32, AtomicU64};
use core::ops::Deref;

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
                debug_assert!(p.cast::<Self>().is_aligned());
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
