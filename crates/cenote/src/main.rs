//! The program `cenote`; see the library of the same name.

use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    cenote::cli::main(Instant::now())
}
