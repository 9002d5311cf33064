//! The program `cenote`; see the library of the same name.

use std::process::ExitCode;
use std::time::Instant;

/// Statements allocate and free on one thread, which glibc's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cenote::cli::main(Instant::now())
}
