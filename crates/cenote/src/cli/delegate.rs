//! `cenote bench`, `cenote demo` and `cenote sim`: other programs, since nothing that serves may depend on what
//! measures or simulates.

use super::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Becomes `cenote-bench`. `bench` is its main purpose, other words its verbs.
///
/// # Errors
/// The program is not beside this one, nor in the PATH.
pub fn run(verb: &str, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    become_program("cenote-bench", (verb != "bench").then_some(verb), arguments)
}

/// Becomes `cenote-sim`.
///
/// # Errors
/// The program is not beside this one, nor in the PATH.
pub fn simulate(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    become_program("cenote-sim", None, arguments)
}

/// Becomes a program that lies beside this one or in the PATH.
fn become_program(name: &str, verb: Option<&str>, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.join(name)));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| name.into());
    let error = Command::new(program).args(verb).args(arguments).exec();
    Err(
        format!("cannot start {name}: {error}. Build it with `make build`, or put it beside cenote or in the PATH")
            .into(),
    )
}
