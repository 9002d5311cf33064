//! A worker: runs seeds one after the other and says in lines what came of each.
//!
//! ```text
//! begin SEED
//! ok SEED <tab> count=n <tab> …
//! fail SEED <tab> count=n <tab> …
//! | line of what is wrong, and of the last steps
//! end SEED
//! ```

use std::io::Write;

use cenote_base::rt::fault::{self, Fault};

use crate::worlds::{self, Limits, Name, Plan, Tally, Verdict, panics};

/// Memory beyond which a worker ends, for another to go on.
const MEMORY_MAX: u64 = 1 << 30;

/// What a worker is to do.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The world; `None`: all in turn, by the seed.
    pub world: Option<Name>,
    /// First seed.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// Distance from one to the next.
    pub stride: u64,
    /// How far each may go.
    pub limits: Limits,
    /// What is broken on purpose.
    pub plant: Option<Fault>,
}

/// The world of a seed.
pub fn world_of(world: Option<Name>, seed: u64) -> Name {
    world.unwrap_or(Name::ALL[(seed % Name::ALL.len() as u64) as usize])
}

/// Runs the seeds, and ends early when memory is used up or one has failed.
///
/// # Errors
/// Those of printing.
pub fn work(job: Job) -> std::io::Result<()> {
    panics::keep();
    let _planted = job.plant.map(fault::plant);
    let mut out = std::io::stdout();
    for n in 0..job.seeds {
        let seed = job.first + n * job.stride;
        writeln!(out, "begin {seed}")?;
        out.flush()?;
        let verdict = worlds::run(Plan::draw(world_of(job.world, seed), seed, job.limits));
        report(&mut out, seed, &verdict)?;
        if !verdict.problems.is_empty() || resident() > MEMORY_MAX {
            break;
        }
    }
    Ok(())
}

fn report(out: &mut impl Write, seed: u64, verdict: &Verdict) -> std::io::Result<()> {
    let word = if verdict.problems.is_empty() { "ok" } else { "fail" };
    let counts: Vec<String> = verdict
        .tally
        .0
        .iter()
        .map(|(what, n)| format!("\t{what}={n}"))
        .collect();
    writeln!(out, "{word} {seed}\tdigest={}{}", verdict.digest >> 1, counts.concat())?;
    if !verdict.problems.is_empty() {
        let lines = verdict.problems.iter().flat_map(|p| p.lines());
        let steps = verdict.story.iter().map(String::as_str);
        for line in lines.chain(std::iter::once("the last steps:")).chain(steps) {
            writeln!(out, "| {line}")?;
        }
        writeln!(out, "end {seed}")?;
    }
    out.flush()
}

/// Bytes of memory that this process uses.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// Counts in a line of a worker.
pub fn counts(line: &str) -> Tally {
    let mut tally = Tally::default();
    for part in line.split('\t').skip(1) {
        if let Some((what, n)) = part.split_once('=') {
            tally.add(what, n.parse().unwrap_or(0));
        }
    }
    tally
}
