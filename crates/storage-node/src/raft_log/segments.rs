//! Segments of the log as files, which are made ahead.

use std::path::{Path, PathBuf};

use cenote_base::Result;
use cenote_base::error::IoContext;
use cenote_base::rt::fs::{self, OpenOptions};

/// Bytes of zeros that are written at a time.
pub(super) const ZEROS: usize = 1 << 20;

/// The file of a segment.
pub(super) fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.log"))
}

/// A segment of which nothing is needed: it becomes a spare one, or goes. To be done without a lock that others want.
pub(crate) struct Retired {
    pub(super) path: PathBuf,
    pub(super) spare: Option<PathBuf>,
}

impl Retired {
    /// The spare one, if it is that now.
    ///
    /// # Errors
    /// An I/O error; nothing is lost.
    pub fn retire(self) -> Result<Option<PathBuf>> {
        match &self.spare {
            Some(spare) => fs::rename(&self.path, spare).doing(|| format!("renaming {}", self.path.display()))?,
            None => fs::remove(&self.path).doing(|| format!("removing {}", self.path.display()))?,
        }
        Ok(self.spare)
    }
}

/// A segment that is to be made ahead.
pub(crate) struct SpareWanted {
    pub(super) path: PathBuf,
    pub(super) segment: u64,
}

impl SpareWanted {
    /// The segment.
    ///
    /// # Errors
    /// An I/O error; nothing is left then.
    pub fn make(self) -> Result<PathBuf> {
        let making = make_zeros(&self.path.with_extension("making"), self.segment)?;
        fs::rename(&making, &self.path).doing(|| format!("making {}", self.path.display()))?;
        Ok(self.path)
    }
}

/// A file of zeros with its space taken, synced.
pub(super) fn make_zeros(path: &Path, length: u64) -> Result<PathBuf> {
    let made = (|| {
        let file = fs::open(path, OpenOptions::TRUNCATE)?;
        file.allocate(0, length)?;
        let zeros = vec![0; ZEROS.min(length as usize)];
        for at in (0..length).step_by(zeros.len()) {
            let length = zeros.len().min((length - at) as usize);
            file.write_at(&zeros[..length], at)?;
        }
        file.sync_data()
    })();
    if made.is_err() {
        // Half a segment would take up the space that is short.
        let _ = fs::remove(path);
    }
    made.doing(|| format!("making {}", path.display()))?;
    Ok(path.to_owned())
}
