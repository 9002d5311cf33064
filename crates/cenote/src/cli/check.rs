//! `cenote check`: every tree, index and list, through the server if one runs, else by opening the database here.

use super::client::{Connection, connect};
use super::say;
use super::{CheckOptions, Failure};
use crate::config::{RunOptions, Settings};
use crate::database;
use cenote_engine::CheckReport;
use std::process::ExitCode;

/// Checks the database that the options mean. Fails if something is wrong with it.
///
/// # Errors
/// The server or the database cannot be asked.
pub fn run(options: CheckOptions) -> Result<ExitCode, Failure> {
    let report = match connect(&options.connect)? {
        Some(mut server) => online(&mut server)?,
        None => offline(&options)?,
    };
    Ok(print(&report))
}

fn online(server: &mut Connection) -> Result<CheckReport, Failure> {
    say!("checking through the server at {}", server.address);
    let findings = server.ask("CENOTE CHECK")?;
    let mut report = CheckReport::default();
    for row in &findings.rows {
        let text = findings.field(row, "text").to_owned();
        match findings.field(row, "kind") {
            "problem" => report.problems.push(text),
            _ => report.summary.push(text),
        }
    }
    Ok(report)
}

fn offline(options: &CheckOptions) -> Result<CheckReport, Failure> {
    let run = RunOptions {
        data: options.connect.data.clone(),
        memory: options.memory.clone(),
        storage: options.storage.clone(),
        ..RunOptions::default()
    };
    let settings = Settings::resolve(run)?;
    match &settings.storage {
        Some(storage) => say!("checking what is on the storage nodes {}", storage.nodes.join(", ")),
        None => say!("no server runs: checking the files in {}", settings.data.display()),
    }
    let engine = database::open_existing(&settings)?;
    let report = engine.check()?;
    engine.shutdown()?;
    Ok(report)
}

fn print(report: &CheckReport) -> ExitCode {
    report.summary.iter().for_each(|line| say!("  {line}"));
    report.problems.iter().for_each(|line| say!("  PROBLEM: {line}"));
    if report.problems.is_empty() {
        say!("all is well");
        return ExitCode::SUCCESS;
    }
    say!(
        "{} problems. Make a copy of the data directory before anything else, then restore the last backup (cenote \
         restore), or dump what can still be read (COPY ... TO STDOUT)",
        report.problems.len()
    );
    ExitCode::FAILURE
}
