//! `cenote restore`: a data directory from a backup.

use super::Failure;
use super::say;
use cenote_base::units::ByteSize;
use std::path::Path;
use std::process::ExitCode;

/// Makes the data directory.
///
/// # Errors
/// The backup is damaged, or the data directory is not empty.
pub fn run(from: &Path, data: &Path) -> Result<ExitCode, Failure> {
    let report = crate::database::restore(from, data)?;
    say!(
        "restored {}: {} pages in {} spaces, {} of log; start it with: cenote run --data {}",
        data.display(),
        report.pages,
        report.spaces,
        ByteSize(report.log_bytes),
        data.display()
    );
    Ok(ExitCode::SUCCESS)
}
