//! The page accesses of TPC-C's transactions, by the server's own executors.

use super::options::{Load, Options, Sizes};
use super::{prepare, round};
use crate::Result;
use crate::traced::Traced;
use indicatif::ProgressBar;
use std::path::Path;
use std::time::Duration;

/// Memory for a warehouse and its new orders, MiB, and what any number needs.
const MEMORY_MIB: (u64, u64) = (200, 512);
/// Parts of a trace: what comes first lets memory settle.
pub const PARTS: [&str; 2] = ["settling", "measured"];

/// What is traced.
#[derive(Debug, Clone, Copy)]
pub struct TraceOptions {
    /// Warehouses, of standard size.
    pub warehouses: i32,
    /// Terminals, without waits.
    pub terminals: u32,
    /// Seconds of each of the [`PARTS`].
    pub seconds: [f64; 2],
    /// Decides data and inputs.
    pub seed: u64,
}

/// Makes a server with the warehouses, in memory that holds them all, and writes what terminals ask for to `file`, in
/// two [`PARTS`].
///
/// # Errors
/// [`crate::Error::Server`] if no server can be started; [`crate::Error::Sql`] if it refuses something.
pub fn trace(program: Option<&Path>, of: TraceOptions, file: &Path, bar: &ProgressBar) -> Result<()> {
    let mut server = Traced::start(program, MEMORY_MIB.1 + MEMORY_MIB.0 * of.warehouses as u64)?;
    let mut options = Options {
        url: server.url().into(),
        out: None,
        warehouses: of.warehouses,
        sizes: Sizes::STANDARD,
        terminals: of.terminals,
        measured: Duration::ZERO,
        warmup: Duration::ZERO,
        rounds: 1,
        load: Load::Always,
        seed: of.seed,
        has_waits: false,
        isolation: "read committed".into(),
        server_pid: None,
    };
    bar.set_message("loading TPC-C");
    prepare(&options)?;
    server.begin(file)?;
    for ((part, seconds), seed) in PARTS.iter().zip(of.seconds).zip(of.seed..) {
        bar.set_message(format!("tracing, {part}"));
        options.measured = Duration::from_secs_f64(seconds);
        round(&options, seed)?;
        server.mark(part)?;
        bar.inc(1);
    }
    server.end()
}
