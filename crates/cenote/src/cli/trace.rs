//! `cenote trace`: the page accesses of a running server, in a file.

use super::client::{Connection, connect};
use super::{ConnectOptions, Failure, say};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two lines that say how it goes.
const TELL_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct TraceOptions {
    /// File to be made, on the server's machine
    #[arg(value_name = "FILE", required_unless_present = "end")]
    file: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectOptions,
    /// Seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// End a trace that is under way: one whose `cenote trace` was interrupted
    #[arg(long, conflicts_with = "file")]
    end: bool,
}

/// Begins a trace, waits, and ends it; or ends one.
///
/// # Errors
/// No server runs; a trace is under way already, or none; the file is there, or cannot be written.
pub fn run(options: &TraceOptions) -> Result<ExitCode, Failure> {
    let mut server =
        connect(&options.connect)?.ok_or("no server runs on that data directory: a trace is of a running server")?;
    if let Some(file) = &options.file {
        begin(&mut server, file)?;
        wait(Duration::from_secs(options.seconds));
    }
    let ended = server.ask("CENOTE TRACE END")?;
    for row in &ended.rows {
        let field = |name| ended.field(row, name);
        say!(
            "{} accesses to pages by {} threads, {} bytes: {}",
            field("accesses"),
            field("threads"),
            field("bytes"),
            field("file")
        );
        say!("What other memory would make of it: cenote replay {}", field("file"));
    }
    Ok(ExitCode::SUCCESS)
}

fn begin(server: &mut Connection, file: &Path) -> Result<(), Failure> {
    let path = std::path::absolute(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let path = path
        .to_str()
        .ok_or("the file's path is not valid UTF-8: name another one")?;
    server.ask(&format!("CENOTE TRACE '{}'", path.replace('\'', "''")))?;
    Ok(())
}

fn wait(whole: Duration) {
    let begun = Instant::now();
    loop {
        let left = whole.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return;
        }
        say!("tracing; {} s more", left.as_secs().max(1));
        std::thread::sleep(left.min(TELL_EVERY));
    }
}
