//! A part of a region, and every way to read and write it that is sound under races.
//!
//! A span is a copyable handle: where the part lies, how long it is, and which region it is of.
//! Offsets are relative to it. Invariants:
//! - no access leaves the span: each is checked with one comparison;
//! - **a read outside yields zeros**, never a panic: an optimistic reader follows offsets that may
//!   be torn, and learns so only when it validates. One who believes its bytes asks
//!   [`Span::contains`];
//! - **a write outside panics**: a writer holds the latch and knows its offsets;
//! - values are little endian; any alignment is fine, except for atomics.

use crate::host::{HostAtomicU32, HostAtomicU64};
use crate::{Region, raw};
use cenote_base::crc;
use core::cmp::Ordering;
use core::ptr::NonNull;

/// A part of a region. See the module.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    base: NonNull<u8>,
    len: usize,
    region: &'a Region,
}

// SAFETY: the memory is mapped while the region is borrowed, and is accessed only by the ways of
// `raw` and by atomics, which are sound from any thread.
unsafe impl Send for Span<'_> {}
// SAFETY: as above; a shared span offers nothing else.
unsafe impl Sync for Span<'_> {}

#[cold]
#[inline(never)]
fn outside(off: usize, len: usize, span: usize) -> ! {
    panic!("write of {len} bytes at {off} of a span of {span} bytes")
}

macro_rules! value {
    ($get:ident, $set:ident, $load:ident, $store:ident, $t:ty, $name:literal) => {
        #[doc = concat!("The ", $name, " at `off`; zero if it is not all inside.")]
        #[inline(always)]
        pub fn $get(&self, off: usize) -> $t {
            if !self.contains(off, size_of::<$t>()) {
                return 0;
            }
            // SAFETY: inside the span, by the check.
            unsafe { raw::$load(self.base.as_ptr().add(off)) }
        }

        #[doc = concat!("Writes the ", $name, " at `off`; panics if it is not all inside.")]
        #[inline(always)]
        pub fn $set(&self, off: usize, v: $t) {
            let p = self.checked(off, size_of::<$t>());
            // SAFETY: inside the span, by the check.
            unsafe { raw::$store(p, v) }
        }
    };
}

impl<'a> Span<'a> {
    /// # Safety
    /// `len` bytes from `base` on are mapped writable while `region` lives.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize, region: &'a Region) -> Self {
        Self { base, len, region }
    }

    /// Its length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The region it is a part of.
    #[inline(always)]
    pub fn region(&self) -> &'a Region {
        self.region
    }

    /// The number of its region.
    #[inline]
    pub fn region_id(&self) -> u32 {
        self.region.id()
    }

    /// Where it begins in its region, in bytes.
    #[inline]
    pub fn offset(&self) -> u64 {
        (self.base.as_ptr() as usize - self.region.base_address()) as u64
    }

    /// Its address, for those whose unsafe code has an address of its own.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Whether `len` bytes at `off` are all inside.
    #[inline(always)]
    pub fn contains(&self, off: usize, len: usize) -> bool {
        len <= self.len && off <= self.len - len
    }

    #[inline(always)]
    fn checked(&self, off: usize, len: usize) -> *mut u8 {
        if !self.contains(off, len) {
            outside(off, len, self.len);
        }
        // SAFETY: inside the span, by the check.
        unsafe { self.base.as_ptr().add(off) }
    }

    /// The part of `len` bytes at `off`; panics if it is not all inside.
    #[inline]
    pub fn part(&self, off: usize, len: usize) -> Span<'a> {
        let p = self.checked(off, len);
        // SAFETY: inside this span, so not null, and mapped while the region lives.
        unsafe { Span::new(NonNull::new_unchecked(p), len, self.region) }
    }

    value!(u16, set_u16, load_u16, store_u16, u16, "`u16`");
    value!(u32, set_u32, load_u32, store_u32, u32, "`u32`");
    value!(u64, set_u64, load_u64, store_u64, u64, "`u64`");
    value!(u8, set_u8, load_u8, store_u8, u8, "byte");

    /// The atomic at `off`; panics if it is not inside or not aligned.
    #[inline(always)]
    pub fn atomic_u64(&self, off: usize) -> &'a HostAtomicU64 {
        let p = self.checked(off, 8);
        assert!((p as usize).is_multiple_of(8), "an atomic must be aligned");
        // SAFETY: inside the span and aligned, by the checks; mapped while the region lives.
        unsafe { HostAtomicU64::at(p) }
    }

    /// The atomic at `off`; panics if it is not inside or not aligned.
    #[inline(always)]
    pub fn atomic_u32(&self, off: usize) -> &'a HostAtomicU32 {
        let p = self.checked(off, 4);
        assert!((p as usize).is_multiple_of(4), "an atomic must be aligned");
        // SAFETY: inside the span and aligned, by the checks; mapped while the region lives.
        unsafe { HostAtomicU32::at(p) }
    }

    /// Fills `dst` from `off`. If that is not all inside, `dst` is filled with zeros and the
    /// answer is false.
    #[inline(always)]
    pub fn copy_out(&self, off: usize, dst: &mut [u8]) -> bool {
        if !self.contains(off, dst.len()) {
            dst.fill(0);
            return false;
        }
        // SAFETY: inside the span, by the check; `dst` is exclusively borrowed and no region
        // memory, which is never lent as a slice.
        unsafe { raw::copy(self.base.as_ptr().add(off), dst.as_mut_ptr(), dst.len()) };
        true
    }

    /// Appends `len` bytes from `off` to `dst`. If they are not all inside, nothing is appended
    /// and the answer is false.
    #[inline]
    pub fn append_to(&self, off: usize, len: usize, dst: &mut Vec<u8>) -> bool {
        if !self.contains(off, len) {
            return false;
        }
        dst.reserve(len);
        let end = dst.len();
        // SAFETY: inside the span, by the check; `dst` has room for `len` bytes after its end,
        // which the copy initialises before they count.
        unsafe {
            raw::copy(self.base.as_ptr().add(off), dst.as_mut_ptr().add(end), len);
            dst.set_len(end + len);
        }
        true
    }

    /// Copies `src` to `off`; panics if it is not all inside.
    #[inline(always)]
    pub fn copy_in(&self, off: usize, src: &[u8]) {
        let p = self.checked(off, src.len());
        // SAFETY: inside the span, by the check; `src` is no region memory.
        unsafe { raw::copy(src.as_ptr(), p, src.len()) };
    }

    /// Copies all of `from` to `off`; the two must not overlap. Panics if it is not all inside.
    pub fn copy_from(&self, off: usize, from: Span<'_>) {
        let p = self.checked(off, from.len);
        let (to, source) = (p as usize, from.base.as_ptr() as usize);
        assert!(to + from.len <= source || source + from.len <= to, "the spans overlap");
        // SAFETY: both inside their spans and apart, by the checks.
        unsafe { raw::copy(from.base.as_ptr(), p, from.len) };
    }

    /// Moves `len` bytes from `src` to `dst`, which may overlap; panics if they are not all inside.
    #[inline]
    pub fn move_within(&self, src: usize, dst: usize, len: usize) {
        let (from, to) = (self.checked(src, len), self.checked(dst, len));
        // SAFETY: both inside the span, by the checks.
        unsafe { raw::move_bytes(from, to, len) };
    }

    /// Zeros `len` bytes at `off`; panics if they are not all inside.
    pub fn zero(&self, off: usize, len: usize) {
        let p = self.checked(off, len);
        // SAFETY: inside the span, by the check.
        unsafe { raw::zero(p, len) };
    }

    /// Compares `len` bytes at `off` with `other`, as slices compare. If they are not all inside
    /// the answer is `Less`.
    #[inline]
    pub fn cmp(&self, off: usize, len: usize, other: &[u8]) -> Ordering {
        if !self.contains(off, len) {
            return Ordering::Less;
        }
        let common = len.min(other.len());
        let (words, rest) = other[..common].as_chunks::<8>();
        let mut at = off;
        for word in words {
            // SAFETY: `at + 8 <= off + common`, inside the span.
            let ours = unsafe { raw::load_u64(self.base.as_ptr().add(at)) };
            let theirs = u64::from_le_bytes(*word);
            if ours != theirs {
                return ours.swap_bytes().cmp(&theirs.swap_bytes());
            }
            at += 8;
        }
        for byte in rest {
            // SAFETY: `at < off + common`, inside the span.
            let ours = unsafe { raw::load_u8(self.base.as_ptr().add(at)) };
            if ours != *byte {
                return ours.cmp(byte);
            }
            at += 1;
        }
        len.cmp(&other.len())
    }

    /// Whether `len` bytes at `off` are those of `other`; false if they are not all inside.
    #[inline]
    pub fn eq(&self, off: usize, other: &[u8]) -> bool {
        self.contains(off, other.len()) && self.cmp(off, other.len(), other) == Ordering::Equal
    }

    /// The checksum of `len` bytes at `off`, of which none may be changing; of none if they are
    /// not all inside.
    pub fn crc32c(&self, off: usize, len: usize) -> u32 {
        let mut chunk = [0u8; 2048];
        let mut crc = crc::crc32c(&[]);
        if !self.contains(off, len) {
            return crc;
        }
        for at in (0..len).step_by(chunk.len()) {
            let part = &mut chunk[..(len - at).min(2048)];
            self.copy_out(off + at, part);
            crc = crc::append(crc, part);
        }
        crc
    }

    /// All of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(0, self.len, &mut bytes);
        bytes
    }
}

impl core::fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Span(region {}, {}+{})", self.region.id(), self.offset(), self.len)
    }
}
