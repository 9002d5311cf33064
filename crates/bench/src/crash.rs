//! How long a crash is felt: kills after different lengths of load, in each kind of memory, with the check after each.

use crate::demo::{self, Options, Shown};
use crate::ledger;
use crate::load;
use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::{IoContext, Result};
use std::time::Duration;

/// Runs one kill for each of `lengths` (load before the kill) and each memory kind, and prints a table.
///
/// # Errors
/// [`crate::Error::Server`] if a server does not start, answer or stop; [`crate::Error::Sql`] if a statement fails;
/// [`crate::Error::Io`] of
/// a file or process. [`crate::Error::Lost`] if anything acknowledged was lost.
pub fn run(options: &Options, lengths: &[Duration], kinds: &[String]) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let mut all = Vec::new();
    for kind in kinds {
        for length in lengths {
            let mut shown = one(options, kind, *length)?;
            shown.memory = format!("{kind}, {} s", length.as_secs());
            all.push(shown);
        }
    }
    println!("\n{}", demo::table(&all));
    all.iter().try_for_each(|s| s.verdict.must_hold())
}

fn one(options: &Options, kind: &str, length: Duration) -> Result<Shown> {
    let data = options.out.join("data-crash");
    let _ = std::fs::remove_dir_all(&data);
    let server = CenoteOptions {
        program: options.program.clone(),
        data: data.clone(),
        memory: kind.into(),
        memory_size: options.memory_size.clone(),
        port: free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    };
    let running = Server::cenote(&server)?;
    let mut client = load::connect(server.port)?;
    ledger::prepare(&mut client, options.accounts, |_| {})?;
    drop(client);
    let shown = demo::kill_under_load(
        &Options {
            before: length,
            ..options.clone()
        },
        &server,
        running,
    )?;
    std::fs::remove_dir_all(&data).context("removing the data directory")?;
    Ok(shown)
}
