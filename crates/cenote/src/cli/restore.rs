//! `cenote restore`: a data directory from a backup.

use super::Failure;
use super::say;
use std::path::Path;
use std::process::ExitCode;

/// Makes the data directory.
pub fn run(from: &Path, data: &Path) -> Result<ExitCode, Failure> {
    crate::database::restore(from, data)?;
    say!(
        "restored {} from {}; start it with: cenote run --data {}",
        data.display(),
        from.display(),
        data.display()
    );
    Ok(ExitCode::SUCCESS)
}
