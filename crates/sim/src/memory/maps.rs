//! Address ranges: what devices, views and tags are made of, and every access that the simulator itself makes to them.
//!
//! A [`Map`] is used by one thread (it is neither `Send` nor `Sync`) and read and written by value, inside its bounds.
//! Programs use the same bytes through [`Map::base`], on the same thread. A [`Window`] does not keep the range: killed
//! processes never drop what they hold.
//!
//! A view of an incoherent device begins as poison: each of its pages is a private copy-on-write mapping of one file
//! that holds nothing else, so what was never fetched costs nothing, and reads as poison from the first byte.

#![allow(unsafe_code, reason = "maps memory, and accesses it by address")]

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::sync::OnceLock;

/// What a byte is that was not fetched.
pub const POISON: u8 = 0xDB;

/// Maps are so many bytes long, or a multiple.
const LINE: usize = 64;

/// Bytes of the file of poison.
const POISON_LEN: usize = 16 << 20;

/// A mapped range, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    range: Range,
    /// False once it is dropped.
    is_there: Rc<Cell<bool>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.is_there.set(false);
        // SAFETY: the range is ours. Each access is made through a `Map`, which keeps it, or a `Window`, which looks
        // whether it is there; programs that were given its base do not run any more.
        let _ = unsafe { munmap(self.range.base.as_ptr().cast(), self.range.len) };
    }
}

/// A mapped range, or one of several holders of it. Its bytes are there until the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    range: Range,
    mapping: Rc<Mapping>,
}

/// Arrays of `N` bytes in a mapped range, to be looked at for as long as others hold it: any later access is a panic.
#[derive(Debug)]
pub(crate) struct Window<const N: usize> {
    arrays: NonNull<[u8; N]>,
    count: usize,
    is_there: Rc<Cell<bool>>,
}

/// Where a range lies: a copy, beside what keeps it, since each access looks at it.
#[derive(Debug, Clone, Copy)]
struct Range {
    base: NonNull<u8>,
    len: usize,
}

impl Range {
    /// The address of `len` bytes from `at` on.
    fn at(self, at: usize, len: usize) -> *mut u8 {
        let is_inside = self.len.checked_sub(len).is_some_and(|last| at <= last);
        assert!(is_inside, "an access inside of its map");
        // SAFETY: inside the range, by the check.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// The address of the `N` bytes at `at`, a multiple of `N`. (One comparison, where the compiler knows the multiple.)
    #[inline(always)]
    fn array<const N: usize>(self, at: usize) -> *mut [u8; N] {
        const { assert!(LINE.is_multiple_of(N), "whole arrays fill a line, and lines fill a map") };
        assert!(
            at < self.len && at.is_multiple_of(N),
            "an aligned access inside of its map"
        );
        // SAFETY: at a multiple of `N` inside the range, whose length is one, too: all `N` bytes are inside.
        unsafe { self.base.as_ptr().add(at).cast() }
    }
}

/// Memory without a name, of `len` bytes, all zero: takes space as it is used.
pub(crate) fn file(name: &str, len: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, len)?;
    Ok(fd)
}

fn poison() -> io::Result<&'static File> {
    static FILE: OnceLock<File> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file);
    }
    let made = File::from(file("cenote-poison", POISON_LEN as u64)?);
    made.write_all_at(&vec![POISON; POISON_LEN], 0)?;
    Ok(FILE.get_or_init(|| made))
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Map {
    fn new(base: *mut core::ffi::c_void, len: usize) -> io::Result<Self> {
        assert!(len.is_multiple_of(LINE), "a map of whole lines");
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let range = Range { base, len };
        let is_there = Rc::new(Cell::new(true));
        Ok(Self {
            range,
            mapping: Rc::new(Mapping { range, is_there }),
        })
    }

    /// Zeros that take memory as they are written.
    pub(crate) fn zeros(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh range at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), len, READ_WRITE, flags)? };
        Self::new(base, len)
    }

    /// As [`Map::zeros`], for what is accessed all over: in pages of 2 MiB where the system has them, so that looking
    /// up addresses takes little time.
    pub(crate) fn wide_zeros(len: usize) -> io::Result<Self> {
        const WIDE: usize = 2 << 20;
        if len < WIDE {
            return Self::zeros(len);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh range at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), len + WIDE, READ_WRITE, flags)? };
        let before = base.addr().next_multiple_of(WIDE) - base.addr();
        let pages = len.next_multiple_of(rustix::param::page_size());
        // SAFETY: what is before and behind the aligned part of that range, which no thread uses yet.
        unsafe {
            if before > 0 {
                munmap(base, before)?;
            }
            if pages < len + WIDE - before {
                munmap(base.byte_add(before + pages), len + WIDE - before - pages)?;
            }
        }
        // SAFETY: inside the range; its bytes stay what they are. A system that has no such pages refuses, and is slow.
        let _ = unsafe { madvise(base.byte_add(before), len, Advice::LinuxHugepage) };
        // SAFETY: inside the range.
        Self::new(unsafe { base.byte_add(before) }, len)
    }

    /// The first `len` bytes of a file, shared.
    pub(crate) fn of(file: &impl AsFd, len: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh range at an address of the kernel's choice.
        let base = unsafe { mmap(null_mut(), len, READ_WRITE, flags, file, 0)? };
        Self::new(base, len)
    }

    /// Poison, but for the first `window` bytes (whole pages), which are those of `memory`.
    pub(crate) fn view(len: usize, window: usize, memory: &impl AsFd) -> io::Result<Self> {
        let map = Self::zeros(len)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        for at in (window..len).step_by(POISON_LEN) {
            let part = POISON_LEN.min(len - at);
            // SAFETY: replaces addresses of `map`, which no thread uses yet.
            unsafe { mmap(map.range.at(at, part).cast(), part, READ_WRITE, flags, poison()?, 0)? };
        }
        if window > 0 {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: as above.
            unsafe { mmap(map.range.at(0, window).cast(), window, READ_WRITE, flags, memory, 0)? };
        }
        Ok(map)
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len
    }

    /// Its first byte, for programs.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.range.base
    }

    /// The `N` bytes at `at`, a multiple of `N`.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: inside the range (`array`), which is mapped to be read; bytes of any value are an array.
        unsafe { self.range.array::<N>(at).read() }
    }

    /// Stores `bytes` at `at`, a multiple of `N`.
    #[inline(always)]
    pub(crate) fn write<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        // SAFETY: inside the range (`array`), which is mapped to be written; no reference to it is given out.
        unsafe { self.range.array::<N>(at).write(bytes) };
    }

    /// Makes `len` bytes from `at` on zero.
    pub(crate) fn clear(&self, at: usize, len: usize) {
        // SAFETY: as in `write`.
        unsafe { self.range.at(at, len).write_bytes(0, len) };
    }

    /// A copy of `len` bytes from `at` on.
    pub(crate) fn copy(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: inside the range (`at`); `bytes` is as long, and memory of its own.
        unsafe { self.range.at(at, len).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// `count` arrays of `N` bytes, from number `first` on; the window does not keep them.
    pub(crate) fn window<const N: usize>(&self, first: usize, count: usize) -> Window<N> {
        let arrays = NonNull::new(self.range.at(first * N, count * N).cast());
        Window {
            arrays: arrays.expect("an address inside of a map"),
            count,
            is_there: Rc::clone(&self.mapping.is_there),
        }
    }
}

impl<const N: usize> Window<N> {
    /// Whether all arrays pass, from number `first` to number `last`.
    #[inline(always)]
    pub(crate) fn all(&self, first: usize, last: usize, pass: impl Fn([u8; N]) -> bool) -> bool {
        assert!(first <= last && last < self.count, "an access inside of its window");
        assert!(self.is_there.get(), "memory of a world that is over");
        let mut at = first;
        loop {
            // SAFETY: an array of the window, since `at` is at most `last`, by the first check; the window is there, by
            // the second.
            if !pass(unsafe { self.arrays.add(at).read() }) {
                return false;
            }
            if at == last {
                return true;
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Map;

    #[test]
    fn accesses_stay_inside_and_end_with_the_map() {
        let map = Map::zeros(4096).expect("a page");
        let (other, window) = (map.clone(), map.window::<2>(32, 2016));
        map.write(4094, [1, 2]);
        assert_eq!(other.read(4094), [1, 2]);
        let looks = |first, last| window.all(first, last, |two: [u8; 2]| two == [0, 0]);
        assert!(looks(0, 2014) && !looks(2014, 2015) && !looks(2015, 2015));
        map.clear(4095, 1);
        assert_eq!(map.copy(4093, 3), [0, 1, 0]);
        let fails = |access: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err();
        assert!(fails(&|| _ = map.read::<2>(4096)) && fails(&|| map.write(usize::MAX, [0])));
        assert!(fails(&|| _ = map.read::<2>(4093)), "not at a multiple");
        assert!(fails(&|| map.clear(1, 4096)) && fails(&|| _ = map.copy(4097, 0)));
        assert!(fails(&|| _ = looks(0, 2016)) && fails(&|| _ = looks(2, 1)));
        assert!(fails(&|| _ = looks(usize::MAX, usize::MAX)) && fails(&|| _ = map.window::<2>(32, 2017)));
        drop(map);
        assert!(looks(7, 8), "another holder keeps it");
        drop(other);
        assert!(fails(&|| _ = looks(7, 8)));
    }
}
