//! Finding the regions that lie about: for `cenote region list`, and to name at start what
//! databases that are gone have left.

use crate::header::{HEADER_SIZE, Identity, State};
use cenote_base::error::IoContext;
use cenote_base::rt::fs::OpenOptions;
use cenote_base::rt::os;
use cenote_base::{Error, Result};
use std::path::{Path, PathBuf};

/// Where shared memory is mounted.
pub const SHM_DIR: &str = "/dev/shm";

/// What the names of region files begin with.
const PREFIX: &str = "cenote-";

/// Where the region of a database lies unless told otherwise.
pub fn default_path(database: u128) -> PathBuf {
    Path::new(SHM_DIR).join(format!("{PREFIX}{database:032x}"))
}

/// A region that was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// Bytes of space that it takes.
    pub allocated: u64,
    /// Whether a process has it open.
    pub in_use: bool,
    /// What it is and how far it can be believed, or why that cannot be known.
    pub content: Result<(Identity, State)>,
}

/// The region files in a directory, sorted by name.
pub fn list(dir: &Path) -> Result<Vec<Found>> {
    let names = os::file_system()
        .list(dir)
        .doing(|| format!("listing {}", dir.display()))?;
    names
        .iter()
        .filter(|n| n.starts_with(PREFIX))
        .map(|n| peek(&dir.join(n)))
        .collect()
}

/// Looks at a region file without opening it as one: whoever has it open is not disturbed.
pub fn peek(path: &Path) -> Result<Found> {
    let named = || format!("region {}", path.display());
    let file = os::file_system().open(path, OpenOptions::READ).doing(named)?;
    let mut header = vec![0; HEADER_SIZE];
    let filled = file.read_at(&mut header, 0).doing(named)?;
    Ok(Found {
        path: path.to_owned(),
        allocated: file.allocated().doing(named)?,
        in_use: !file.lock_exclusive().doing(named)?,
        content: read_header(&header[..filled]),
    })
}

fn read_header(header: &[u8]) -> Result<(Identity, State)> {
    let identity = Identity::decode(header)?;
    let state = (header.len() == HEADER_SIZE).then(|| State::newest(header)).flatten();
    let (_, state) = state.ok_or_else(|| Error::Corrupt("both state slots".into()))?;
    Ok((identity, state))
}

/// Removes a region's file. [`Error::Busy`] if a process has it open.
pub fn remove(path: &Path) -> Result<()> {
    let named = || format!("region {}", path.display());
    let files = os::file_system();
    let file = files.open(path, OpenOptions::WRITE).doing(named)?;
    if !file.lock_exclusive().doing(named)? {
        return Err(Error::Busy(format!("{} is in use by another process", named())));
    }
    files.remove(path).doing(named)
}
