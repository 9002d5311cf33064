//! A file or device that several hosts share, for the code that cuts it into ranges: what is in it is not looked at.

use crate::backing::{Backing, Kind};
use crate::coherence;
use crate::memory::RegionMemory;
use crate::observe;
use crate::range::FileRange;
use cenote_base::Result;
use cenote_base::rt::fault::{Fault, planted};
use std::path::Path;

/// Bytes that are mapped at once to be erased or written back.
const STEP: u64 = 64 << 20;

/// See the module. It takes no lock: what it is used for is agreed on elsewhere.
pub struct SharedDevice {
    backing: Backing,
    len: u64,
}

impl SharedDevice {
    /// Opens what is there.
    ///
    /// # Errors
    /// [`Error::Io`](cenote_base::Error::Io) if there is nothing; [`Error::Mismatch`](cenote_base::Error::Mismatch) if
    /// it is neither a file nor a devdax device; [`Error::Invalid`](cenote_base::Error::Invalid) if its memory is
    /// beyond the caches of a processor that cannot write lines back.
    pub fn open(path: &Path) -> Result<Self> {
        let backing = Backing::beside_at(path, None)?;
        if backing.is_beyond_caches() {
            coherence::require(coherence::write_back_kind(), &backing.named())?;
        }
        let len = backing.len()?;
        Ok(Self { backing, len })
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.backing.kind
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "memory, not a collection")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What offsets and lengths of its ranges are multiples of.
    pub fn align(&self) -> u64 {
        self.backing.align as u64
    }

    /// Whether other hosts can reach its memory, so that this host's caches are not all there is to it.
    pub fn is_beyond_caches(&self) -> bool {
        self.backing.is_beyond_caches()
    }

    /// Maps a range of it, as long as what comes back lives.
    ///
    /// # Errors
    /// [`Error::Mismatch`](cenote_base::Error::Mismatch) if it has no such range; those of mapping.
    pub fn map(&self, range: FileRange) -> Result<RegionMemory> {
        let backing = Backing::beside_at(&self.backing.path, Some(range))?;
        let len = usize::try_from(range.bytes).unwrap_or(usize::MAX);
        Ok(observe::memory(backing.map(len)?, backing.named()))
    }

    /// Makes a range zeros, in memory and not in this host's caches: a line that stayed there would be read by a later
    /// holder of this host, whatever others have stored meanwhile.
    ///
    /// # Errors
    /// As [`SharedDevice::map`].
    pub fn erase(&self, range: FileRange) -> Result<()> {
        // Not every file system makes holes.
        if self.kind() == Kind::File && Backing::beside_at(&self.backing.path, Some(range))?.discard().is_ok() {
            return Ok(());
        }
        self.each_step(range, |memory| {
            memory.span(0, memory.len()).zero(0, memory.len() as usize);
            coherence::flush(memory, 0, memory.len() as usize);
            if !planted(Fault::EraseDrop) {
                coherence::invalidate(memory, 0, memory.len() as usize);
            }
        })
    }

    /// Writes back what this host's caches hold of a range, whichever of its processes has stored it, and drops it: it
    /// comes over no later store of another host, and this host's next loads see what others have stored.
    ///
    /// # Errors
    /// As [`SharedDevice::map`].
    pub fn write_back(&self, range: FileRange) -> Result<()> {
        if !self.is_beyond_caches() {
            return Ok(());
        }
        self.each_step(range, |memory| {
            coherence::flush(memory, 0, memory.len() as usize);
            coherence::invalidate(memory, 0, memory.len() as usize);
        })
    }

    /// Steps are whole units of alignment: the range is.
    fn each_step(&self, range: FileRange, work: impl Fn(&RegionMemory)) -> Result<()> {
        let step = STEP.next_multiple_of(self.align());
        for at in (0..range.bytes).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let bytes = step.min(range.bytes - at);
            let offset = range.offset + at;
            work(&self.map(FileRange { offset, bytes })?);
        }
        Ok(())
    }
}

impl core::fmt::Debug for SharedDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({:?})", self.backing.path.display(), self.kind())
    }
}
