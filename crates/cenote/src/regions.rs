//! Regions in shared memory and the databases that they belong to.

use cenote_base::Result;
use cenote_fabric::{self as fabric, Found};
use std::path::Path;

/// Whose a region is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// A process has it open; the data directory.
    Running(String),
    /// The data directory is there; its next server will use it.
    There(String),
    /// The data directory is gone.
    Gone(String),
    /// Its header cannot be read.
    Unknown(String),
}

/// All regions in shared memory.
///
/// # Errors
/// Those of reading the directory of regions.
pub fn all() -> Result<Vec<Found>> {
    fabric::list(Path::new(fabric::SHM_DIR))
}

/// Whose a region is.
pub fn owner(region: &Found) -> Owner {
    match &region.content {
        Err(error) => Owner::Unknown(error.to_string()),
        Ok((identity, _)) if region.in_use => Owner::Running(identity.directory.clone()),
        Ok((identity, _)) if Path::new(&identity.directory).is_dir() => Owner::There(identity.directory.clone()),
        Ok((identity, _)) => Owner::Gone(identity.directory.clone()),
    }
}

/// Regions whose data directory is gone and that no process uses.
///
/// # Errors
/// Those of reading the directory of regions.
pub fn orphaned() -> Result<Vec<Found>> {
    let mut found = all()?;
    found.retain(|region| matches!(owner(region), Owner::Gone(_)));
    Ok(found)
}

/// Bytes of the region in shared memory that belongs to a data directory, if there is one.
pub fn length_for(data: &Path) -> Option<u64> {
    let data = std::fs::canonicalize(data).ok()?;
    let of_data = |region: &Found| {
        let identity = &region.content.as_ref().ok()?.0;
        (std::fs::canonicalize(&identity.directory).ok()? == data).then_some(identity.length)
    };
    all().ok()?.iter().find_map(of_data)
}

/// Whether a file lies and is named as regions are.
pub fn has_region_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    path.parent() == Some(Path::new(fabric::SHM_DIR)) && name.starts_with("cenote-")
}
