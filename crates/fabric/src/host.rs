//! Atomics in region memory that hold among the threads of one host.
//!
//! Among hosts they promise nothing: a region need not be hardware-coherent (design, section 4).
//! Each operation is a preemption point of the runtime.

use cenote_base::rt::atomic::{AtomicU32, AtomicU64};
use core::ops::Deref;

macro_rules! host_atomic {
    ($name:ident, $inner:ident) => {
        #[doc = concat!("A `", stringify!($inner), "` in a region, among threads of one host.")]
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

host_atomic!(HostAtomicU64, AtomicU64);
host_atomic!(HostAtomicU32, AtomicU32);
