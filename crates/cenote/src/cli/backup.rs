//! `cenote backup`: a consistent copy, through the server if one runs, else by opening the database here.

use super::client::connect;
use super::say;
use super::{BackupOptions, Failure};
use crate::config::{RunOptions, Settings};
use crate::database;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes the copy.
///
/// # Errors
/// The directory is not empty, there is no database, or the copy fails.
pub fn run(options: BackupOptions) -> Result<ExitCode, Failure> {
    let to = must_be_empty(&options.to)?;
    match connect(&options.connect)? {
        Some(mut server) => {
            say!(
                "copying the database of the server at {} to {}",
                server.address,
                to.display()
            );
            let path = to
                .to_str()
                .ok_or("the backup's path is not valid UTF-8: name another directory")?;
            server.ask(&format!("CENOTE BACKUP '{}'", path.replace('\'', "''")))?;
        }
        None => {
            let run = RunOptions {
                data: options.connect.data,
                memory: options.memory,
                storage: options.storage,
                ..RunOptions::default()
            };
            let settings = Settings::resolve(run)?;
            let from = match &settings.storage {
                Some(storage) => format!("what is on the storage nodes {}", storage.nodes.join(", ")),
                None => settings.data.display().to_string(),
            };
            say!("no server runs: copying {from} to {}", to.display());
            let engine = database::open_existing(&settings)?;
            engine.backup(&to)?;
            engine.shutdown()?;
        }
    }
    say!("done. To use it: cenote restore {} --data NEW", to.display());
    Ok(ExitCode::SUCCESS)
}

/// The directory's absolute path, since the server has a working directory of its own.
fn must_be_empty(dir: &Path) -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir(dir).map_or(0, Iterator::count);
    if entries > 0 {
        return Err(format!(
            "{} is not empty: a backup needs an empty directory; name another one",
            dir.display()
        )
        .into());
    }
    Ok(std::path::absolute(dir)?)
}
