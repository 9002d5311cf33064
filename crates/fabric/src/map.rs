//! Owns a mapping: its address range from `mmap` to `munmap`, and what the kernel is told of it. Or a host's view of a
//! simulated device, which is mapped by the simulator.

use cenote_base::rt::memory::Device;
use core::ptr::NonNull;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A mapped range, readable and writable, of shared or anonymous memory.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The host's view of a simulated device; it stays mapped while this lives.
    device: Option<Arc<dyn Device>>,
}

// SAFETY: a mapping is an address range; what is done with the memory is the span's business.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const HUGE: usize = 2 << 20;

/// Bytes of a page of the machine.
pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a number. (Not through rustix, which reads it from memory that valgrind hides.)
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

impl Mapping {
    /// `len` bytes of a file or device from `offset` on, shared with others that map it.
    pub(crate) fn shared(fd: BorrowedFd<'_>, len: usize, align: usize, offset: u64) -> io::Result<Self> {
        let space = Reserved::new(len, align.max(HUGE))?;
        // SAFETY: replaces addresses that `space` owns and that are not in use.
        let base = unsafe {
            mmap(
                space.aligned.cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                offset,
            )?
        };
        let mapping = space.keep(base.cast(), len)?;
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// `len` bytes of zeros that no other process maps.
    ///
    /// # Errors
    /// The error of `mmap`, if there are not so many addresses or is not so much memory.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let space = Reserved::new(len, HUGE)?;
        // SAFETY: replaces addresses that `space` owns and that are not in use.
        let base = unsafe {
            mmap_anonymous(
                space.aligned.cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )?
        };
        space.keep(base.cast(), len)
    }

    /// The first `len` bytes of a host's view.
    pub(crate) fn view(device: Arc<dyn Device>, len: usize) -> Self {
        Self {
            base: device.base(),
            len,
            device: Some(device),
        }
    }

    #[inline(always)]
    pub(crate) fn device(&self) -> Option<&dyn Device> {
        self.device.as_deref()
    }

    /// Its first byte, for crates whose unsafe code has an address of its own.
    #[inline(always)]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "memory, not a collection")]
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A child of `fork` does not have it: it has no right to the memory, and a process that maps memory without a
    /// right is ended.
    fn keep_from_children(&self) {
        // SAFETY: the range is ours; this advice changes no contents. It fails for no mapping that was just made.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontFork) };
    }

    /// Asks for huge pages; the kernel may refuse.
    pub(crate) fn advise_huge(&self) {
        // SAFETY: the range is ours; this advice changes no contents.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Maps the pages of a range now, so that first use does not fault. Fails if there is no
    /// memory for them; `ErrorKind::InvalidInput` on kernels before 5.14.
    pub(crate) fn populate(&self, off: usize, len: usize) -> io::Result<()> {
        assert!(
            off.checked_add(len).is_some_and(|end| end <= self.len),
            "a range of the mapping"
        );
        // SAFETY: the range is inside the mapping; this advice changes no contents.
        unsafe {
            let at = self.base.as_ptr().add(off).cast();
            madvise(at, len, Advice::LinuxPopulateWrite)?;
        }
        Ok(())
    }

    /// Gathers the pages of a range into huge ones, whole ones of them; what is there already is only mapped. Needs
    /// no setting of the machine (`shmem_enabled` is for pages to come). An error where there is no huge page to be
    /// had, and on kernels before 6.1.
    pub(crate) fn collapse(&self, off: usize, len: usize) -> io::Result<()> {
        const MADV_COLLAPSE: libc::c_int = 25;
        assert!(
            off.checked_add(len).is_some_and(|end| end <= self.len),
            "a range of the mapping"
        );
        // SAFETY: the range is inside the mapping; the kernel keeps the contents.
        let done = unsafe { libc::madvise(self.base.as_ptr().add(off).cast(), len, MADV_COLLAPSE) };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Binds the memory to a NUMA node: pages not there yet will come from it, others move.
    pub(crate) fn bind(&self, node: u32) -> io::Result<()> {
        const MPOL_BIND: libc::c_int = 2;
        const MPOL_MF_MOVE: libc::c_uint = 2;
        const NODES: u32 = 1024;
        if node >= NODES {
            return Err(io::Error::other(format!("NUMA node {node} is beyond {NODES}")));
        }
        let mut mask = [0u64; NODES as usize / 64];
        mask[node as usize / 64] = 1 << (node % 64);
        // SAFETY: the range is ours, and the mask has the length that is told.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                MPOL_BIND,
                mask.as_ptr(),
                u64::from(NODES) + 1,
                MPOL_MF_MOVE,
            )
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.device.is_some() {
            return;
        }
        // SAFETY: the range is ours, and spans borrow the region that owns this mapping, so none
        // is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Address space without memory, large enough to hold an aligned range.
struct Reserved {
    start: NonNull<u8>,
    aligned: *mut u8,
    total: usize,
}

impl Reserved {
    fn new(len: usize, align: usize) -> io::Result<Self> {
        let total = len.checked_add(align).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh range at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                total,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let offset = start.as_ptr().align_offset(align);
        // SAFETY: `offset < align`, so the result lies inside the range.
        let aligned = unsafe { start.as_ptr().add(offset) };
        Ok(Self { start, aligned, total })
    }

    /// Hands the aligned part over to a mapping and gives the rest back.
    fn keep(self, base: *mut u8, len: usize) -> io::Result<Mapping> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        assert!(
            base.as_ptr() == self.aligned,
            "a fixed mapping lies where it was asked for"
        );
        let page = page_size();
        let head = base.as_ptr() as usize - self.start.as_ptr() as usize;
        let tail_at = (head + len).next_multiple_of(page);
        // SAFETY: both ranges are of this reservation and outside the mapping made in it.
        unsafe {
            if head > 0 {
                munmap(self.start.as_ptr().cast(), head)?;
            }
            if tail_at < self.total {
                munmap(self.start.as_ptr().add(tail_at).cast(), self.total - tail_at)?;
            }
        }
        core::mem::forget(self);
        Ok(Mapping {
            base,
            len,
            device: None,
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the range is ours and nothing of it was handed over.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.total) };
    }
}
