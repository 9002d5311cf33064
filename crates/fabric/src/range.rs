//! A range of a file or device that holds more than one region: what the pool grants of a device that several hosts
//! share.

use cenote_base::error::IoContext;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of a file or device, from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileRange {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl FileRange {
    /// Its end, if it does not wrap.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }

    /// Whether it has a byte in common with `other`. One that wraps has, with all.
    pub fn overlaps(&self, other: &FileRange) -> bool {
        match (self.end(), other.end()) {
            (Some(end), Some(others)) => self.offset < others && other.offset < end,
            _ => true,
        }
    }

    /// Refuses one that a file of `len` bytes does not hold, or that cannot be mapped.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub(crate) fn check(&self, name: &str, len: u64, align: usize) -> Result<()> {
        let is_aligned = |n: u64| n.is_multiple_of(align as u64);
        let fits = self.bytes > 0 && self.end().is_some_and(|end| end <= len);
        match fits && is_aligned(self.offset) && is_aligned(self.bytes) {
            true => Ok(()),
            false => Err(Error::Mismatch(format!(
                "{name}: {} at offset {} are no range of {} in steps of {}",
                ByteSize(self.bytes),
                self.offset,
                ByteSize(len),
                ByteSize(align as u64)
            ))),
        }
    }

    /// Locks it for what has the file open here (an open file description); false if it is locked already. The lock
    /// of the whole file is another, which users of ranges do not take.
    pub(crate) fn lock(&self, file: &OwnedFd, name: &str) -> Result<bool> {
        let lock = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: as_off(self.offset, name)?,
            l_len: as_off(self.bytes, name)?,
            l_pid: 0,
        };
        // SAFETY: asks for a lock by a record that lives over the call; no memory is touched.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        if done == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error).doing(|| format!("locking {name}")),
        }
    }
}

fn as_off(n: u64, name: &str) -> Result<libc::off_t> {
    libc::off_t::try_from(n).map_err(|_| Error::Mismatch(format!("{name}: {n} is no offset")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_where_they_share_a_byte() {
        let range = |offset, bytes| FileRange { offset, bytes };
        assert!(range(0, 10).overlaps(&range(9, 1)));
        assert!(!range(0, 10).overlaps(&range(10, 1)));
        assert!(!range(10, 1).overlaps(&range(0, 10)));
        assert!(
            range(u64::MAX, 2).overlaps(&range(0, u64::MAX)),
            "one that wraps is kept apart from all"
        );
    }

    #[test]
    fn what_a_file_does_not_hold_is_refused() {
        let check = |offset, bytes| FileRange { offset, bytes }.check("it", 1 << 20, 4096);
        assert!(check(4096, 8192).is_ok());
        for (offset, bytes) in [(0, 0), (1, 4096), (4096, 1), (1 << 20, 4096), (u64::MAX - 4095, 8192)] {
            assert!(
                matches!(check(offset, bytes), Err(Error::Mismatch(_))),
                "{offset} {bytes}"
            );
        }
    }
}
