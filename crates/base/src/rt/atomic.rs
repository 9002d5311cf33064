//! Atomics with a preemption point before each operation.
//!
//! The methods are those of `core::sync::atomic`. With the operating system the point is one
//! load and one branch; under `--cfg no_seam` nothing is left of it.

use super::access;
use super::memory::Access::{Read, Write};
use super::seam::Seam;
pub use core::sync::atomic::{Ordering, compiler_fence, fence};
use core::{fmt, sync::atomic as raw};

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[doc = concat!("`core::sync::atomic::", stringify!($name), "` with preemption points.")]
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name(raw::$name);

        impl $name {
            /// With the value `v`.
            #[inline]
            pub const fn new(v: $value) -> Self {
                Self(raw::$name::new(v))
            }

            /// The atomic without preemption points.
            #[inline]
            pub const fn as_raw(&self) -> &raw::$name {
                &self.0
            }

            /// Reads.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                access(&self.0, Read);
                self.0.load(order)
            }

            /// Writes.
            #[inline]
            pub fn store(&self, v: $value, order: Ordering) {
                access(&self.0, Write);
                self.0.store(v, order);
            }

            /// Reads, within an operation that has asked: see [`super::seam`].
            #[inline(always)]
            pub fn load_by<S: Seam>(&self, seam: S, order: Ordering) -> $value {
                seam.access(&self.0, Read);
                self.0.load(order)
            }

            /// Writes, within an operation that has asked: see [`super::seam`].
            #[inline(always)]
            pub fn store_by<S: Seam>(&self, seam: S, v: $value, order: Ordering) {
                seam.access(&self.0, Write);
                self.0.store(v, order);
            }

            /// Writes, and returns what was there.
            #[inline]
            pub fn swap(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.swap(v, order)
            }

            /// Writes `new` if `current` is there; what was there, as `Ok` if it was.
            ///
            /// # Errors
            /// The value that is there, if it is another than `current`.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                access(&self.0, Write);
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As [`Self::compare_exchange`], and may fail without a reason.
            ///
            /// # Errors
            /// The value that is there, if it is another than `current`; or by chance, where it is `current`.
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                access(&self.0, Write);
                self.0.compare_exchange_weak(current, new, success, failure)
            }

            /// Applies `f` until it meets no change by others or answers `None`.
            ///
            /// # Errors
            /// The value that is there, if `f` answers `None` for it.
            #[inline]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut now = self.load(fetch);
                while let Some(next) = f(now) {
                    match self.compare_exchange_weak(now, next, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(seen) => now = seen,
                    }
                }
                Err(now)
            }

            /// Bitwise and; what was there.
            #[inline]
            pub fn fetch_and(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.fetch_and(v, order)
            }

            /// Bitwise or; what was there.
            #[inline]
            pub fn fetch_or(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.fetch_or(v, order)
            }

            /// Bitwise exclusive or; what was there.
            #[inline]
            pub fn fetch_xor(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.fetch_xor(v, order)
            }

            /// The value, to the one owner.
            #[inline]
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// The value, and no atomic any more.
            #[inline]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }

        impl From<$value> for $name {
            fn from(v: $value) -> Self {
                Self::new(v)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! arithmetic {
    ($name:ident, $value:ty) => {
        impl $name {
            /// Adds, wrapping; what was there.
            #[inline]
            pub fn fetch_add(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.fetch_add(v, order)
            }

            /// Subtracts, wrapping; what was there.
            #[inline]
            pub fn fetch_sub(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.fetch_sub(v, order)
            }

            /// Keeps the greater; what was there.
            #[inline]
            pub fn fetch_max(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.fetch_max(v, order)
            }

            /// Keeps the lesser; what was there.
            #[inline]
            pub fn fetch_min(&self, v: $value, order: Ordering) -> $value {
                access(&self.0, Write);
                self.0.fetch_min(v, order)
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
atomic!(AtomicI32, i32);
atomic!(AtomicI64, i64);
atomic!(AtomicBool, bool);
arithmetic!(AtomicU8, u8);
arithmetic!(AtomicU16, u16);
arithmetic!(AtomicU32, u32);
arithmetic!(AtomicU64, u64);
arithmetic!(AtomicUsize, usize);
arithmetic!(AtomicI32, i32);
arithmetic!(AtomicI64, i64);
