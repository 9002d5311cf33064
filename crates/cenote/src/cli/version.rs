//! `cenote version`.

use super::Failure;
use super::say;
use std::process::ExitCode;

/// Prints the versions.
///
/// # Errors
/// Those of printing.
pub fn run() -> Result<ExitCode, Failure> {
    say!("cenote {}", env!("CARGO_PKG_VERSION"));
    say!(
        "PostgreSQL protocol 3.0, as server version {}",
        cenote_sql::SERVER_VERSION
    );
    say!("region format {}", cenote_fabric::FORMAT_VERSION);
    Ok(ExitCode::SUCCESS)
}
