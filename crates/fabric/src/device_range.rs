//! A range of a simulated device, as a device of its own: what a process maps of memory that hosts share.

use crate::range::FileRange;
use cenote_base::rt::memory::{Access, Device};
use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

/// See the module. The range was checked to lie inside the device, at whole pages.
#[derive(Debug)]
pub(crate) struct DeviceRange {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) range: FileRange,
}

impl Device for DeviceRange {
    fn base(&self) -> NonNull<u8> {
        let base = self.device.base().as_ptr().wrapping_add(self.range.offset as usize);
        NonNull::new(base).expect("inside of a view")
    }

    fn len(&self) -> u64 {
        self.range.bytes
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        match len <= self.range.bytes {
            true => Ok(()),
            false => Err(io::Error::other(format!("the range has {} bytes", self.range.bytes))),
        }
    }

    fn try_lock(&self) -> bool {
        self.device.try_lock()
    }

    fn unlock(&self) {
        self.device.unlock();
    }

    fn window(&self) -> u64 {
        let window = self.device.window().saturating_sub(self.range.offset);
        window.min(self.range.bytes)
    }

    fn touch(&self, off: u64, len: u32, access: Access) {
        self.device.touch(self.range.offset + off, len, access);
    }

    fn prefetch(&self, off: u64) {
        self.device.prefetch(self.range.offset + off);
    }

    fn write_back(&self, off: u64, len: u64) {
        self.device.write_back(self.range.offset + off, len);
    }

    fn fence(&self) {
        self.device.fence();
    }

    fn invalidate(&self, off: u64, len: u64) {
        self.device.invalidate(self.range.offset + off, len);
    }

    fn store_uncached(&self, off: u64, value: u64) {
        self.device.store_uncached(self.range.offset + off, value);
    }

    fn host(&self) -> u64 {
        self.device.host()
    }
}
