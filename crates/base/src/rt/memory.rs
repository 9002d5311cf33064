//! Memory that a runtime provides: devices that a simulated host sees through its own cache.
//!
//! With the operating system there is none: `fabric` maps files and devices, and the processor's cache is the
//! machine's. The simulator puts its own in their place: [`Runtime::memory`](super::Runtime::memory) finds the device
//! that "lies at" a path, [`Runtime::local_memory`](super::Runtime::local_memory) makes memory of the host. A device
//! shows itself to a host as a *view*: bytes at an address, right only in the lines that the host has fetched. Hence
//! the two duties of its user:
//! - every access is told before it is made ([`Device::touch`]; atomics of [`atomic`](super::atomic) tell theirs by
//!   address, through [`Runtime::access`](super::Runtime::access)), and made before the next preemption point;
//! - what another host must see, or what must survive the host, is written back and fenced.

use core::fmt::Debug;
use core::ptr::NonNull;
use std::io;

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes, or reads and writes.
    Write,
}

/// A host's view of a memory device. Offsets and lengths are in bytes; ranges are widened to lines of 64 bytes and lie
/// inside the device.
pub trait Device: Debug + Send + Sync {
    /// The first byte of the view, at a multiple of 4096. The same for all processes of one host.
    fn base(&self) -> NonNull<u8>;

    /// Bytes in use: 0 before the first [`Device::resize`].
    fn len(&self) -> u64;

    /// Whether nothing was ever put there.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Uses `len` bytes from now on; new ones are zero. An error when the device is smaller. The view does not move.
    fn resize(&self, len: u64) -> io::Result<()>;

    /// Takes the device for the calling process, until [`Device::unlock`] or the process's end; false if another
    /// process of any host has it.
    fn try_lock(&self) -> bool;

    /// Gives it back.
    fn unlock(&self);

    /// Bytes from the start on that are coherent among hosts in hardware.
    fn window(&self) -> u64;

    /// `len` bytes at `off` are about to be read or written. No preemption point.
    fn touch(&self, off: u64, len: u32, access: Access);

    /// Asks for the line at `off`, which will be used soon: the thread goes on, and waits for the rest of the way when
    /// it uses the line. A hint, no access: nothing need come of it.
    fn prefetch(&self, off: u64) {
        let _ = off;
    }

    /// Begins writing the lines of a range back; a [`Device::fence`] of the same thread completes it.
    fn write_back(&self, off: u64, len: u64);

    /// What this thread has begun to write back is in memory.
    fn fence(&self);

    /// Drops the lines of a range from the host's cache (dirty ones are written back, which is a hazard); done when it
    /// returns.
    fn invalidate(&self, off: u64, len: u64);

    /// Stores the aligned word at `off` to memory, past the cache.
    fn store_uncached(&self, off: u64, value: u64);

    /// Which host this is a view of, and which of its lives: another number after the host was lost. Never 0.
    fn host(&self) -> u64;

    /// Told by its user: what lies where (name, offset, length), for tables of traffic.
    fn describe(&self, parts: &[(&'static str, u64, u64)]) {
        let _ = parts;
    }
}
