//! Finds region files: for `cenote region list`, and to name at a start the regions that former databases have left.

use crate::backing::Backing;
use crate::header::{self, HEADER_SIZE, Identity, State};
use crate::map::Mapping;
use crate::range::FileRange;
use crate::{coherence, observe};
use cenote_base::error::IoContext;
use cenote_base::rt::fs::OpenOptions;
use cenote_base::rt::memory::Device;
use cenote_base::rt::{self, os};
use cenote_base::{Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
///
/// # Errors
/// [`Error::Io`] if the directory or one of the files cannot be read. A file that is no region is no error: its
/// [`Found::content`] says so. Directories are passed over, and what is removed meanwhile.
pub fn list(dir: &Path) -> Result<Vec<Found>> {
    let names = os::file_system()
        .list(dir)
        .doing(|| format!("listing {}", dir.display()))?;
    names
        .iter()
        .filter(|n| n.starts_with(PREFIX))
        .map(|n| peek(&dir.join(n)))
        .filter(|found| !matches!(found, Err(error) if is_no_file(error)))
        .collect()
}

fn is_no_file(error: &Error) -> bool {
    matches!(
        error,
        Error::Io {
            kind: ErrorKind::NotFound | ErrorKind::IsADirectory,
            ..
        }
    )
}

/// Looks at a region file without opening it as one: a process that has it open is not disturbed.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened or read. What is wrong with its header is in [`Found::content`].
pub fn peek(path: &Path) -> Result<Found> {
    let named = || format!("region {}", path.display());
    if let Some(device) = rt::memory(path) {
        return peek_simulated(path, device);
    }
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

/// As [`peek`], at a range of a file or device; without one, as [`peek`].
///
/// # Errors
/// As [`peek`]; [`Error::Mismatch`] if the file has no such range.
pub fn peek_at(path: &Path, range: Option<FileRange>) -> Result<Found> {
    let Some(range) = range else { return peek(path) };
    let (backing, in_use) = match Backing::open_at(path, false, Some(range)) {
        Err(Error::Busy(_)) => (Backing::beside_at(path, Some(range))?, true),
        backing => (backing?, false),
    };
    Ok(Found {
        path: path.to_owned(),
        allocated: range.bytes,
        in_use,
        content: read_header(&head_in(&backing)?),
    })
}

/// As [`is_blank`], of a range of a file or device; without one, as [`is_blank`].
pub fn is_blank_at(path: &Path, range: Option<FileRange>) -> bool {
    let Some(range) = range else { return is_blank(path) };
    let head = Backing::beside_at(path, Some(range)).and_then(|backing| head_in(&backing));
    head.is_ok_and(|head| header::is_blank(&head))
}

/// Whether a file or device begins with nothing (or with a region whose making was cut off): it may be made a region.
pub fn is_blank(path: &Path) -> bool {
    if let Some(device) = rt::memory(path) {
        return device.is_empty() || header::is_blank(&header_of(path, device));
    }
    // A file of the machine, also where the database's files are others.
    let mut head = vec![0; HEADER_SIZE];
    let file = os::file_system().open(path, OpenOptions::READ);
    match file.and_then(|f| f.read_at(&mut head, 0)) {
        Ok(n) => header::is_blank(&head[..n]),
        // A devdax device can be mapped and not read.
        Err(_) => head_of(path).is_ok_and(|head| header::is_blank(&head)),
    }
}

/// No lines are dropped while a process uses it: what another host wrote may not be seen then.
fn peek_simulated(path: &Path, device: Arc<dyn Device>) -> Result<Found> {
    if device.is_empty() {
        return Err(Error::io(
            format!("region {}", path.display()),
            ErrorKind::NotFound.into(),
        ));
    }
    let mine = device.try_lock();
    if mine {
        device.invalidate(0, HEADER_SIZE as u64);
        device.unlock();
    }
    Ok(Found {
        path: path.to_owned(),
        allocated: device.len(),
        in_use: !mine,
        content: read_header(&header_of(path, device)),
    })
}

/// The bytes of the header on a simulated device.
fn header_of(path: &Path, device: Arc<dyn Device>) -> Vec<u8> {
    let memory = observe::memory(Mapping::view(device, HEADER_SIZE), format!("region {}", path.display()));
    memory.span(0, HEADER_SIZE as u64).to_vec()
}

/// The first bytes of what can be mapped, whatever they are.
fn head_of(path: &Path) -> Result<Vec<u8>> {
    head_in(&Backing::open(path, false)?)
}

fn head_in(backing: &Backing) -> Result<Vec<u8>> {
    let memory = observe::memory(
        backing.map(HEADER_SIZE.next_multiple_of(backing.align))?,
        backing.named(),
    );
    if backing.is_beyond_caches() {
        coherence::invalidate(&memory, 0, HEADER_SIZE);
    }
    Ok(memory.span(0, HEADER_SIZE as u64).to_vec())
}

fn read_header(header: &[u8]) -> Result<(Identity, State)> {
    let identity = Identity::decode(header)?;
    let state = (header.len() == HEADER_SIZE).then(|| State::newest(header)).flatten();
    let (_, state) = state.ok_or_else(|| Error::Corrupt("both state slots".into()))?;
    Ok((identity, state))
}

/// Removes a region's file.
///
/// # Errors
/// [`Error::Busy`] if a process has it open, [`Error::Io`] if there is none or it cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let named = || format!("region {}", path.display());
    if let Some(device) = rt::memory(path) {
        if !device.try_lock() {
            return Err(Error::Busy(format!("{} is in use by another process", named())));
        }
        let removed = device.resize(0).doing(named);
        device.unlock();
        return removed;
    }
    let files = os::file_system();
    let file = files.open(path, OpenOptions::WRITE).doing(named)?;
    if !file.lock_exclusive().doing(named)? {
        return Err(Error::Busy(format!("{} is in use by another process", named())));
    }
    files.remove(path).doing(named)
}
