//! Address ranges: what devices, views and tags are made of.
//!
//! A view of an incoherent device begins as poison: each of its pages is a private copy-on-write mapping of one file
//! that holds nothing else, so what was never fetched costs nothing, and reads as poison from the first byte.

#![allow(unsafe_code, reason = "maps memory")]

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

/// What a byte is that was not fetched.
pub const POISON: u8 = 0xDB;

/// Bytes of the file of poison.
const POISON_LEN: usize = 16 << 20;

/// A mapped range, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range; its holders decide which thread uses the memory, and when.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

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
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Zeros that take memory as they are written.
    pub(crate) fn zeros(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh range at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), len, READ_WRITE, flags)? };
        Self::new(base, len)
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
            unsafe { mmap(map.at(at).cast(), part, READ_WRITE, flags, poison()?, 0)? };
        }
        if window > 0 {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: as above.
            unsafe { mmap(map.at(0).cast(), window, READ_WRITE, flags, memory, 0)? };
        }
        Ok(map)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of byte `at`.
    pub(crate) fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.len, "an address inside the map");
        // SAFETY: inside, by the check.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and no holder of addresses in it lives longer than this does.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
