//! The names of files and directories in a data directory, and errors that name them.

use std::io;
use std::path::{Path, PathBuf};

use cenote_base::Result;
use cenote_base::error::IoContext;

/// The directory of the log's segments.
pub(crate) fn log_dir(data: &Path) -> PathBuf {
    data.join("log")
}

/// The directory of the spaces.
pub(crate) fn spaces_dir(data: &Path) -> PathBuf {
    data.join("spaces")
}

/// The name of a space's file, in the directory of the spaces.
pub(crate) fn space_name(space: u32) -> String {
    format!("{space:08x}.pages")
}

/// The space whose file has this name, if it is one's.
pub(crate) fn space_of(name: &str) -> Option<u32> {
    let stem = name.strip_suffix(".pages").filter(|stem| stem.len() == 8)?;
    u32::from_str_radix(stem, 16).ok()
}

/// Adds to an error what was being done, and to which file or directory.
pub(crate) fn doing<T>(result: io::Result<T>, what: &str, path: &Path) -> Result<T> {
    result.doing(|| format!("{what} {}", path.display()))
}
