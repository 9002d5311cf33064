//! `cenote bench` and `cenote demo`: another program, since nothing that serves may depend on what measures.

use super::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "cenote-bench";

/// Becomes `cenote-bench`, which lies beside this program or in the PATH. `bench` is its main purpose, other words its verbs.
pub fn run(verb: &str, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into());
    let verb = (verb != "bench").then_some(verb);
    let error = Command::new(program).args(verb).args(arguments).exec();
    Err(
        format!("cannot start {PROGRAM}: {error}. Build it with `make build`, or put it beside cenote or in the PATH")
            .into(),
    )
}
