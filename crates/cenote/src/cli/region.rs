//! `cenote region`: memory that servers left behind in shared memory.

use super::Failure;
use super::say;
use crate::regions::{self, Owner};
use cenote_base::units::ByteSize;
use cenote_fabric::{self as fabric, Found};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lists all regions.
///
/// # Errors
/// Those of reading the directory of regions.
pub fn list() -> Result<ExitCode, Failure> {
    let found = regions::all()?;
    if found.is_empty() {
        say!("no regions in {}", fabric::SHM_DIR);
    }
    for region in &found {
        say!(
            "{}  {:>8}  {}",
            region.path.display(),
            ByteSize(region.allocated).to_string(),
            describe(region)
        );
    }
    if found
        .iter()
        .any(|region| matches!(regions::owner(region), Owner::Gone(_)))
    {
        say!("remove those whose database is gone with: cenote region remove --orphaned");
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(region: &Found) -> String {
    match regions::owner(region) {
        Owner::Running(dir) => format!("in use by the server on {dir}"),
        Owner::There(dir) => format!("kept for {dir}"),
        Owner::Gone(dir) => format!("its database {dir} is gone"),
        Owner::Unknown(why) => format!("unreadable: {why}"),
    }
}

/// Removes the regions named, or those whose database is gone.
///
/// # Errors
/// No region is named, or one is in use.
pub fn remove(paths: &[PathBuf], orphaned: bool) -> Result<ExitCode, Failure> {
    let paths = match orphaned {
        true => regions::orphaned()?.into_iter().map(|region| region.path).collect(),
        false => paths.to_vec(),
    };
    if paths.is_empty() && !orphaned {
        return Err("name the regions to remove (see `cenote region list`), or give --orphaned".into());
    }
    for path in &paths {
        remove_one(path)?;
    }
    say!("{} regions removed", paths.len());
    Ok(ExitCode::SUCCESS)
}

fn remove_one(path: &Path) -> Result<(), Failure> {
    let found = fabric::peek(path)?;
    if let (Owner::Unknown(why), false) = (regions::owner(&found), regions::has_region_name(path)) {
        return Err(format!("{} is not a region ({why}); it is left alone", path.display()).into());
    }
    fabric::remove(path)?;
    say!("removed {}", path.display());
    Ok(())
}
