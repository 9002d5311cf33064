//! `cenote version`.

use super::Failure;
use std::process::ExitCode;

/// Prints the versions.
pub fn run() -> Result<ExitCode, Failure> {
    println!("cenote {}", env!("CARGO_PKG_VERSION"));
    println!(
        "PostgreSQL protocol 3.0, as server version {}",
        cenote_sql::SERVER_VERSION
    );
    println!("region format {}", cenote_fabric::FORMAT_VERSION);
    Ok(ExitCode::SUCCESS)
}
