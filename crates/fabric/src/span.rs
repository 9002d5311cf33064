//! A part of a region, and every way to read and write it that is sound under races.
//!
//! A span is a copyable handle: where the part lies, how long it is, and which region it is of.
//! Offsets are relative to it. Invariants:
//! - no access leaves the span: each is checked with one comparison;
//! - **a read outside yields zeros**, never a panic: an optimistic reader follows offsets that may be torn, and learns
//!   so only when it validates. A reader that believes its bytes asks
//!   [`Span::contains`];
//! - **a write outside panics**: a writer holds the latch and knows its offsets;
//! - values are little endian; any alignment is fine, except for atomics;
//! - where the region is watched ([`observe`](crate::observe)), each access is announced first; else that costs one
//!   load and a branch. [`Span::quiet`] gives the same bytes to code that has announced already. Atomics are announced
//!   by their operations.

use crate::host::{HostAtomicU32, HostAtomicU64, PodAtomicU32, PodAtomicU64};
use crate::memory::RegionMemory;
use crate::observe::{self, Access};
use crate::raw;
use cenote_base::crc;
use core::cmp::Ordering;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

/// How long a span is: known when it runs (`usize`), or when it is compiled ([`Fixed`]), which
/// leaves one comparison with a constant of each check.
pub trait Length: Copy {
    /// The length in bytes.
    fn bytes(self) -> usize;
}

impl Length for usize {
    #[inline(always)]
    fn bytes(self) -> usize {
        self
    }
}

/// The length `N`.
#[derive(Clone, Copy)]
pub struct Fixed<const N: usize>;

impl<const N: usize> Length for Fixed<N> {
    #[inline(always)]
    fn bytes(self) -> usize {
        N
    }
}

/// A span of `N` bytes: a page, say.
pub type Block<'a, const N: usize> = Span<'a, Fixed<N>>;

/// A part of a region. See the module.
#[derive(Clone, Copy)]
pub struct Span<'a, L: Length = usize> {
    bytes: Quiet<'a, L>,
    memory: &'a RegionMemory,
}

/// The bytes of a span, whose accesses are not announced: for code that has announced them
/// ([`observe`](crate::observe)). Every accessor is as [`Span`]'s.
#[derive(Clone, Copy)]
pub struct Quiet<'a, L: Length = usize> {
    base: NonNull<u8>,
    len: L,
    _memory: PhantomData<&'a RegionMemory>,
}

// SAFETY: the memory is mapped while the region is borrowed, and is accessed only by the ways of
// `raw` and by atomics, which are sound from any thread.
unsafe impl<L: Length + Send> Send for Quiet<'_, L> {}
// SAFETY: as above; a shared span offers nothing else.
unsafe impl<L: Length + Sync> Sync for Quiet<'_, L> {}

/// Large copies are announced and done in chunks of this.
const CHUNK: usize = 4096;

#[cold]
#[inline(never)]
fn outside(off: usize, len: usize, span: usize) -> ! {
    panic!("write of {len} bytes at {off} of a span of {span} bytes")
}

macro_rules! value {
    ($get:ident, $set:ident, $load:ident, $store:ident, $t:ty, $name:literal) => {
        impl<L: Length> Quiet<'_, L> {
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
        }

        impl<L: Length> Span<'_, L> {
            #[doc = concat!("The ", $name, " at `off`; zero if it is not all inside.")]
            #[inline(always)]
            pub fn $get(&self, off: usize) -> $t {
                self.announce(off, size_of::<$t>(), Access::Read);
                self.bytes.$get(off)
            }

            #[doc = concat!("Writes the ", $name, " at `off`; panics if it is not all inside.")]
            #[inline(always)]
            pub fn $set(&self, off: usize, v: $t) {
                self.announce(off, size_of::<$t>(), Access::Write);
                self.bytes.$set(off, v);
            }
        }
    };
}

value!(u16, set_u16, load_u16, store_u16, u16, "`u16`");
value!(u32, set_u32, load_u32, store_u32, u32, "`u32`");
value!(u64, set_u64, load_u64, store_u64, u64, "`u64`");
value!(u8, set_u8, load_u8, store_u8, u8, "byte");

impl<L: Length> Quiet<'_, L> {
    /// Its length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.bytes()
    }

    /// Whether it is of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `len` bytes at `off` are all inside.
    #[inline(always)]
    pub fn contains(&self, off: usize, len: usize) -> bool {
        // Saturation makes an absurd offset a great one; for small ones the compiler drops it.
        off.saturating_add(len) <= self.len()
    }

    #[inline(always)]
    fn checked(&self, off: usize, len: usize) -> *mut u8 {
        if !self.contains(off, len) {
            outside(off, len, self.len());
        }
        // SAFETY: inside the span, by the check.
        unsafe { self.base.as_ptr().add(off) }
    }

    /// Fills `dst` from `off`; with zeros, and false, if that is not all inside.
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

    /// Appends `len` bytes from `off` to `dst`; nothing, and false, if they are not all inside.
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
    pub fn copy_from<M: Length>(&self, off: usize, from: Quiet<'_, M>) {
        let len = from.len();
        let p = self.checked(off, len);
        let (to, source) = (p as usize, from.base.as_ptr() as usize);
        assert!(to + len <= source || source + len <= to, "the spans overlap");
        // SAFETY: both inside their spans and apart, by the checks.
        unsafe { raw::copy(from.base.as_ptr(), p, len) };
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
        let common = &other[..len.min(other.len())];
        // SAFETY: `off + common.len() <= off + len`, inside the span.
        let ours = unsafe { self.base.as_ptr().add(off) };
        // SAFETY: as above.
        let order = unsafe { compare(ours, common) };
        order.then(len.cmp(&other.len()))
    }

    /// Whether `len` bytes at `off` are those of `other`; false if they are not all inside.
    #[inline]
    pub fn eq(&self, off: usize, other: &[u8]) -> bool {
        self.contains(off, other.len()) && self.cmp(off, other.len(), other) == Ordering::Equal
    }
}

impl<'a, L: Length> Span<'a, L> {
    /// # Safety
    /// `len` bytes from `base` on are mapped writable while `memory` lives.
    #[inline(always)]
    pub(crate) unsafe fn new(base: NonNull<u8>, len: L, memory: &'a RegionMemory) -> Self {
        let _memory = PhantomData;
        let bytes = Quiet { base, len, _memory };
        Self { bytes, memory }
    }

    /// The same bytes, for code that has announced what it does.
    #[inline(always)]
    pub fn quiet(&self) -> Quiet<'a, L> {
        self.bytes
    }

    /// Announces an access, where the region is watched. A range outside of the span is not accessed.
    #[inline(always)]
    fn announce(&self, off: usize, len: usize, access: Access) {
        if self.memory.is_watched() {
            self.announce_watched(off, len, access);
        }
    }

    #[cold]
    #[inline(never)]
    fn announce_watched(&self, off: usize, len: usize, access: Access) {
        if len > 0 && self.contains(off, len) {
            observe::announce(self.memory, self.offset() + off as u64, len as u32, access);
        }
    }

    /// Calls `each` for the chunks of a range, announced one by one: offset in the span, range in the buffer.
    #[cold]
    #[inline(never)]
    fn chunks(&self, off: usize, len: usize, access: Access, mut each: impl FnMut(usize, Range<usize>)) {
        for at in (0..len).step_by(CHUNK) {
            let end = (at + CHUNK).min(len);
            self.announce_watched(off + at, end - at, access);
            each(off + at, at..end);
        }
    }

    /// Its length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it is of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of `N` bytes at `off`; panics if it is not all inside.
    #[inline(always)]
    pub fn block<const N: usize>(&self, off: usize) -> Block<'a, N> {
        let p = self.bytes.checked(off, N);
        // SAFETY: inside this span, so not null, and mapped while the region lives.
        unsafe { Span::new(NonNull::new_unchecked(p), Fixed, self.memory) }
    }

    /// The memory it is a part of.
    #[inline(always)]
    pub fn memory(&self) -> &'a RegionMemory {
        self.memory
    }

    /// Where it begins in its region, in bytes.
    #[inline]
    pub fn offset(&self) -> u64 {
        (self.as_ptr() as usize - self.memory.base() as usize) as u64
    }

    /// Its address, for those whose unsafe code has an address of its own.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut u8 {
        self.bytes.base.as_ptr()
    }

    /// Whether `len` bytes at `off` are all inside.
    #[inline(always)]
    pub fn contains(&self, off: usize, len: usize) -> bool {
        self.bytes.contains(off, len)
    }

    /// The part of `len` bytes at `off`; panics if it is not all inside.
    #[inline]
    pub fn part(&self, off: usize, len: usize) -> Span<'a> {
        let p = self.bytes.checked(off, len);
        // SAFETY: inside this span, so not null, and mapped while the region lives.
        unsafe { Span::new(NonNull::new_unchecked(p), len, self.memory) }
    }

    /// The atomic at `off`; panics if it is not inside or not aligned.
    #[inline(always)]
    pub fn atomic_u64(&self, off: usize) -> &'a HostAtomicU64 {
        let p = self.bytes.checked(off, 8);
        assert!((p as usize).is_multiple_of(8), "an atomic must be aligned");
        // SAFETY: inside the span and aligned, by the checks; mapped while the region lives.
        unsafe { HostAtomicU64::at(p) }
    }

    /// The atomic at `off`; panics if it is not inside or not aligned.
    #[inline(always)]
    pub fn atomic_u32(&self, off: usize) -> &'a HostAtomicU32 {
        let p = self.bytes.checked(off, 4);
        assert!((p as usize).is_multiple_of(4), "an atomic must be aligned");
        // SAFETY: inside the span and aligned, by the checks; mapped while the region lives.
        unsafe { HostAtomicU32::at(p) }
    }

    /// The atomic at `off`, for a window that hardware keeps coherent; panics if it is not inside or not aligned.
    pub(crate) fn pod_atomic_u64(&self, off: usize) -> &'a PodAtomicU64 {
        let p = self.bytes.checked(off, 8);
        assert!((p as usize).is_multiple_of(8), "an atomic must be aligned");
        // SAFETY: as in `atomic_u64`.
        unsafe { PodAtomicU64::at(p) }
    }

    /// As [`Span::pod_atomic_u64`].
    pub(crate) fn pod_atomic_u32(&self, off: usize) -> &'a PodAtomicU32 {
        let p = self.bytes.checked(off, 4);
        assert!((p as usize).is_multiple_of(4), "an atomic must be aligned");
        // SAFETY: as in `atomic_u32`.
        unsafe { PodAtomicU32::at(p) }
    }

    /// Fills `dst` from `off`. If that is not all inside, `dst` is filled with zeros and the
    /// answer is false.
    #[inline(always)]
    pub fn copy_out(&self, off: usize, dst: &mut [u8]) -> bool {
        if self.memory.is_watched() && self.contains(off, dst.len()) {
            self.chunks(off, dst.len(), Access::Read, |from, part| {
                self.bytes.copy_out(from, &mut dst[part]);
            });
            return true;
        }
        self.bytes.copy_out(off, dst)
    }

    /// Appends `len` bytes from `off` to `dst`. If they are not all inside, nothing is appended
    /// and the answer is false.
    #[inline]
    pub fn append_to(&self, off: usize, len: usize, dst: &mut Vec<u8>) -> bool {
        if self.memory.is_watched() && self.contains(off, len) {
            self.chunks(off, len, Access::Read, |from, part| {
                self.bytes.append_to(from, part.len(), dst);
            });
            return true;
        }
        self.bytes.append_to(off, len, dst)
    }

    /// Copies `src` to `off`; panics if it is not all inside.
    #[inline(always)]
    pub fn copy_in(&self, off: usize, src: &[u8]) {
        if self.memory.is_watched() && self.contains(off, src.len()) {
            return self.chunks(off, src.len(), Access::Write, |to, part| {
                self.bytes.copy_in(to, &src[part])
            });
        }
        self.bytes.copy_in(off, src);
    }

    /// Copies all of `from` to `off`; the two must not overlap. Panics if it is not all inside.
    pub fn copy_from<M: Length>(&self, off: usize, from: Span<'_, M>) {
        if self.memory.is_watched() || from.memory.is_watched() {
            return self.copy_in(off, &from.to_vec());
        }
        self.bytes.copy_from(off, from.bytes);
    }

    /// Moves `len` bytes from `src` to `dst`, which may overlap; panics if they are not all inside.
    #[inline]
    pub fn move_within(&self, src: usize, dst: usize, len: usize) {
        if self.memory.is_watched() && self.contains(src, len) {
            return self.move_watched(src, dst, len);
        }
        self.bytes.move_within(src, dst, len);
    }

    /// Through a buffer: reads and writes are announced apart, as the lines of both need not be in the cache at once.
    #[cold]
    #[inline(never)]
    fn move_watched(&self, src: usize, dst: usize, len: usize) {
        let mut buffer = Vec::with_capacity(len);
        self.append_to(src, len, &mut buffer);
        self.copy_in(dst, &buffer);
    }

    /// Zeros `len` bytes at `off`; panics if they are not all inside.
    pub fn zero(&self, off: usize, len: usize) {
        if self.memory.is_watched() && self.contains(off, len) {
            return self.chunks(off, len, Access::Write, |to, part| self.bytes.zero(to, part.len()));
        }
        self.bytes.zero(off, len);
    }

    /// Compares `len` bytes at `off` with `other`, as slices compare. If they are not all inside
    /// the answer is `Less`.
    #[inline]
    pub fn cmp(&self, off: usize, len: usize, other: &[u8]) -> Ordering {
        self.announce(off, len, Access::Read);
        self.bytes.cmp(off, len, other)
    }

    /// Whether `len` bytes at `off` are those of `other`; false if they are not all inside.
    #[inline]
    pub fn eq(&self, off: usize, other: &[u8]) -> bool {
        self.announce(off, other.len(), Access::Read);
        self.bytes.eq(off, other)
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
        self.append_to(0, self.len(), &mut bytes);
        bytes
    }
}

impl RegionMemory {
    /// The part of `len` bytes at `off`; panics if it is not all inside.
    #[inline(always)]
    pub fn span(&self, off: u64, len: u64) -> Span<'_> {
        let inside = off.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(inside, "a span outside its region");
        // SAFETY: inside the mapping, by the check, and the mapping lives while `self` is borrowed.
        unsafe { Span::new(self.mapping().base().add(off as usize), len as usize, self) }
    }

    /// The part of `N` bytes at `off`; panics if it is not all inside.
    #[inline(always)]
    pub fn block<const N: usize>(&self, off: u64) -> Block<'_, N> {
        self.span(off, N as u64).block(0)
    }

    /// The atomic at `off`; panics if it is outside or not aligned.
    #[inline(always)]
    pub fn atomic_u64(&self, off: u64) -> &HostAtomicU64 {
        self.span(off, 8).atomic_u64(0)
    }

    /// The atomic at `off`; panics if it is outside or not aligned.
    #[inline(always)]
    pub fn atomic_u32(&self, off: u64) -> &HostAtomicU32 {
        self.span(off, 4).atomic_u32(0)
    }
}

/// Compares as many bytes at `ours` as `theirs` has.
///
/// # Safety
/// They are mapped.
#[inline(always)]
unsafe fn compare(ours: *const u8, theirs: &[u8]) -> Ordering {
    let len = theirs.len();
    // SAFETY: each access lies below `len`, at `ours` and in `theirs`.
    unsafe {
        if len < 8 {
            return compare_short(ours, theirs);
        }
        // The last word overlaps the one before, whose bytes are equal then.
        let last = len - 8;
        let mut at = 0;
        loop {
            let at_or_last = at.min(last);
            let word = *theirs[at_or_last..].first_chunk().expect("8 bytes before the end");
            let (a, b) = (raw::load_u64(ours.add(at_or_last)), u64::from_le_bytes(word));
            if a != b {
                return a.swap_bytes().cmp(&b.swap_bytes());
            }
            at += 8;
            if at >= len {
                return Ordering::Equal;
            }
        }
    }
}

/// As [`compare`], for fewer than 8 bytes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn compare_short(ours: *const u8, theirs: &[u8]) -> Ordering {
    let (mut at, mut order) = (0, Ordering::Equal);
    // SAFETY: each access lies below `theirs.len()`.
    unsafe {
        if let Some(word) = theirs.first_chunk() {
            let (a, b) = (raw::load_u32(ours), u32::from_le_bytes(*word));
            (at, order) = (4, a.swap_bytes().cmp(&b.swap_bytes()));
        }
        while order.is_eq() && at < theirs.len() {
            order = raw::load_u8(ours.add(at)).cmp(&theirs[at]);
            at += 1;
        }
    }
    order
}

impl<L: Length> core::fmt::Debug for Span<'_, L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Span(region {}, {}+{})", self.memory.id(), self.offset(), self.len())
    }
}
