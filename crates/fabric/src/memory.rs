//! The mapped bytes of a region: where they lie, and which components are told of what is done to them.
//!
//! [`Span`](crate::Span)s and atomics borrow a [`RegionMemory`], [`coherence`](crate::coherence) flushes its lines,
//! [`observe`](crate::observe) announces accesses to it. A [`Region`](crate::Region) is such memory with a header, and
//! is given wherever memory is asked for.

use crate::map::Mapping;
use cenote_base::rt::memory::{Access, Device};
use core::fmt;
use std::sync::{Arc, OnceLock};

/// Told of the write-backs and fences of a region's lines.
pub trait FlushSink: Send + Sync {
    /// The calling thread writes the lines of a range back.
    fn write_back(&self, memory: &RegionMemory, off: u64, len: usize);

    /// The calling thread's write-backs before this are in memory.
    fn fence(&self);

    /// They are there before what is written back later.
    fn order(&self) {
        self.fence();
    }
}

/// The mapped bytes of a region. See the module.
pub struct RegionMemory {
    mapping: Mapping,
    name: String,
    id: u32,
    /// Accessors announce themselves: it lies on a simulated device, or a sink was installed when it was made.
    watched: bool,
    /// Told before a line may leave the cache: the mirror.
    mirror: OnceLock<Arc<dyn FlushSink>>,
    /// Told after a line was written back: a test that loses hosts.
    flush_sink: OnceLock<Arc<dyn FlushSink>>,
}

impl RegionMemory {
    /// `observed`: a sink is installed that accesses are announced to.
    pub(crate) fn new(mapping: Mapping, name: String, observed: bool) -> Self {
        Self {
            watched: mapping.device().is_some() || observed,
            mapping,
            name,
            id: 0,
            mirror: OnceLock::new(),
            flush_sink: OnceLock::new(),
        }
    }

    /// What its region is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of its region within the database; 0 before its header is known.
    #[inline(always)]
    pub fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn set_id(&mut self, id: u32) {
        self.id = id;
    }

    #[inline(always)]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Its length in bytes, header included.
    #[inline(always)]
    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Whether it is of no bytes: never that of a region, which has a header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its first byte, for crates whose unsafe code has an address of its own.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.mapping.base().as_ptr()
    }

    /// Whether its accessors announce themselves: see [`observe`](crate::observe).
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// Whether it lies on a simulated device.
    #[inline]
    pub fn is_simulated(&self) -> bool {
        self.device().is_some()
    }

    /// The simulated device that it lies on.
    #[inline(always)]
    pub(crate) fn device(&self) -> Option<&dyn Device> {
        self.mapping.device()
    }

    /// Tells the simulated device alone, if there is one, of an access; no preemption point. For atomics that are used
    /// raw because they are used in destructors; everything else announces by itself.
    #[inline(always)]
    pub fn touch_device(&self, off: u64, len: u32, access: Access) {
        if self.watched {
            self.touch_device_watched(off, len, access);
        }
    }

    #[cold]
    #[inline(never)]
    fn touch_device_watched(&self, off: u64, len: u32, access: Access) {
        if let Some(device) = self.device() {
            device.touch(off, len, access);
        }
    }

    /// Asks the processor for the line at `off`, which will be used soon, if there is one; or the simulated device. No
    /// access, and not announced.
    #[inline(always)]
    pub fn prefetch(&self, off: u64) {
        if off >= self.len() {
            return;
        }
        match self.watched {
            false => crate::raw::prefetch(self.base().wrapping_add(off as usize)),
            true => self.prefetch_device(off),
        }
    }

    #[cold]
    #[inline(never)]
    fn prefetch_device(&self, off: u64) {
        if let Some(device) = self.device() {
            device.prefetch(off);
        }
    }

    /// From here on `mirror` is told before a line may leave the cache. Once only.
    pub(crate) fn set_mirror(&self, mirror: Arc<dyn FlushSink>) {
        assert!(
            self.mirror.set(mirror).is_ok(),
            "region memory has one place for a mirror"
        );
    }

    #[inline]
    pub(crate) fn mirror(&self) -> Option<&dyn FlushSink> {
        self.mirror.get().map(|mirror| &**mirror)
    }

    /// From here on `sink` is told of write-backs and fences after they were done: false if another one is told
    /// already. For tests that lose a host.
    pub fn tell_flushes(&self, sink: Arc<dyn FlushSink>) -> bool {
        self.flush_sink.set(sink).is_ok()
    }

    #[inline]
    pub(crate) fn flush_sink(&self) -> Option<&dyn FlushSink> {
        self.flush_sink.get().map(|sink| &**sink)
    }
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionMemory({}, {} bytes)", self.name, self.len())
    }
}
