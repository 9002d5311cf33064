//! A foothold in a file: it shows that this process has it mapped, before any of it is used.
//!
//! A memory node that fences former holders looks which processes map a file (`/proc/PID/maps`). A process that was
//! told that memory is its own, and has not mapped it yet, is not seen there. So it takes a foothold first, and then
//! asks again.

use crate::backing::Backing;
use crate::map::{Mapping, page_size};
use crate::range::FileRange;
use cenote_base::{Error, Result};
use std::path::Path;

/// The first page of a file, mapped as long as this lives. Nothing can be done with it.
pub struct Foothold {
    _page: Mapping,
}

impl Foothold {
    /// Takes one; `None` if there is no such file.
    ///
    /// # Errors
    /// Those of opening and mapping the file.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        Self::at(path, None)
    }

    /// As [`Foothold::of`], in a range of a file or device.
    ///
    /// # Errors
    /// As [`Foothold::of`]; [`Error::Mismatch`] if the file has no such range.
    pub fn at(path: &Path, range: Option<FileRange>) -> Result<Option<Self>> {
        let backing = match Backing::beside_at(path, range) {
            Ok(backing) => backing,
            Err(Error::Io {
                kind: std::io::ErrorKind::NotFound,
                ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Also of a file that is empty yet: nothing is read of it.
        let page = backing.map(backing.align.max(page_size()))?;
        Ok(Some(Self { _page: page }))
    }
}

impl core::fmt::Debug for Foothold {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Foothold")
    }
}
