//! `cenote replay`: one's own trace, on memory of several sizes.

use super::super::options::{Progress, parallel_at_most};
use super::super::pod::System;
use super::{PartMeasured, Run, Stage, Workload};
use crate::table::{lay_out, thousands};
use crate::{Error, Result};
use cenote_buffer::FRAMES_MIN;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

/// What is replayed.
#[derive(Debug, Clone)]
pub struct Options {
    /// What `cenote trace` wrote.
    pub trace: PathBuf,
    /// Shares of the trace's pages that local memory has room for.
    pub local: Vec<f64>,
    /// Shares that remote memory has room for; 0: there is none. 1 holds all.
    pub remote: Vec<f64>,
    /// What the trace's processor times are multiplied by.
    pub processor: f64,
    /// Whether all is done by one thread, in the trace's order.
    pub one_thread: bool,
    /// Of the simulation.
    pub seed: u64,
}

/// A share of at most all, as `25%` or `0.25`.
///
/// # Errors
/// What is wrong with it.
pub fn share(text: &str) -> std::result::Result<f64, String> {
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.parse::<f64>().map_err(|error| format!("{text:?}: {error}"))? / of;
    match (0.0..=1.0).contains(&share) {
        true => Ok(share),
        false => Err(format!("{text:?} is no share: 0% to 100%")),
    }
}

/// All of it local, and each pair of sizes.
fn systems(options: &Options) -> Vec<System> {
    let pairs = options
        .local
        .iter()
        .flat_map(|local| options.remote.iter().map(move |remote| (*local, *remote)));
    let smaller = pairs
        .filter(|(local, _)| *local < 1.0)
        .map(|(local, remote)| match remote {
            0.0 => System::Vanilla(local),
            1.0 => System::Tiered(local),
            remote => System::Limited { local, remote },
        });
    std::iter::once(System::Vanilla(1.0)).chain(smaller).collect()
}

/// Runs the trace on each and prints what it takes.
///
/// # Errors
/// [`Error::Io`] if the trace cannot be read; [`Error::Simulation`] if it is none, or a world cannot be set up.
pub fn run(options: &Options) -> Result<()> {
    let workload = Arc::new(Workload::read(&options.trace)?);
    println!("{}", described(&workload));
    refuse_few_frames(options, workload.pages)?;
    let progress = Progress::default();
    let stage = Stage::built(workload.pages, options.seed, &progress)?;
    let systems = systems(options);
    let bar = progress.bar("replaying", (systems.len() * workload.parts.len()) as u64);
    let results = parallel_at_most(stage.runs_at_once(), &systems, |system| {
        let run = Run {
            system: *system,
            processor: options.processor,
            brings: true,
            one_thread: options.one_thread,
            seed: options.seed,
        };
        stage.run(&workload, run, &|| bar.inc(1))
    });
    bar.finish_and_clear();
    let results: Vec<Vec<PartMeasured>> = results.into_iter().collect::<Result<_>>()?;
    println!("{}", table(&systems, &results));
    if workload.parts.len() > 1 {
        println!("{}", by_part(&workload, &systems, &results));
    }
    println!(
        "Simulated (profiles rdma, storage, dram): the pool is the real one, the memory is not. Processor times are the \
         trace's; times in which clients, locks and commits were waited for are in none of the numbers."
    );
    Ok(())
}

/// A pool has at least so many frames: less of it would be labelled so, and not be it.
fn refuse_few_frames(options: &Options, pages: u32) -> Result<()> {
    let frames = |share: &f64| share * f64::from(pages);
    match options.local.iter().find(|share| frames(share) < f64::from(FRAMES_MIN)) {
        None => Ok(()),
        Some(share) => Err(Error::Refused(format!(
            "--local {:.1}% is {:.0} of {pages} pages: a pool has at least {FRAMES_MIN}",
            share * 100.0,
            frames(share)
        ))),
    }
}

fn described(workload: &Workload) -> String {
    let steps = workload.parts.iter().map(|part| part.steps.len()).sum::<usize>();
    let all = workload.parts.iter().flat_map(|part| &part.steps);
    let threads: HashSet<u32> = all.map(|step| step.thread).collect();
    format!(
        "{} steps of {} threads over {} pages ({:.1} MiB) in {} parts",
        thousands(steps as f64),
        threads.len(),
        thousands(f64::from(workload.pages)),
        f64::from(workload.pages) / 64.0,
        workload.parts.len()
    )
}

fn table(systems: &[System], results: &[Vec<PartMeasured>]) -> String {
    let sum = |parts: &[PartMeasured], of: fn(&PartMeasured) -> u64| parts.iter().map(of).sum::<u64>() as f64;
    let all = sum(&results[0], |part| part.time.raw());
    let row = |(system, parts): (&System, &Vec<PartMeasured>)| {
        let time = sum(parts, |part| part.time.raw());
        let (hits, misses) = (sum(parts, |part| part.hits), sum(parts, |part| part.misses));
        vec![
            named(*system),
            format!("{:.3}", time / 1e9),
            format!("{:.2}", time / all),
            format!("{:.2}%", 100.0 * hits / (hits + misses).max(1.0)),
            thousands(sum(parts, |part| part.remote)),
            thousands(sum(parts, |part| part.stored)),
        ]
    };
    let header = [
        "memory",
        "seconds",
        "to all local",
        "local hits",
        "pages from remote memory",
        "from storage",
    ];
    lay_out(&header, &systems.iter().zip(results).map(row).collect::<Vec<_>>())
}

fn by_part(workload: &Workload, systems: &[System], results: &[Vec<PartMeasured>]) -> String {
    let mut header = vec!["milliseconds".to_string()];
    header.extend(systems.iter().map(|system| named(*system)));
    let row = |(i, part): (usize, &super::workload::Part)| {
        let times = results
            .iter()
            .map(|parts| format!("{:.1}", parts[i].time.as_secs_f64() * 1e3));
        std::iter::once(part.name.clone()).chain(times).collect()
    };
    let rows: Vec<Vec<String>> = workload.parts.iter().enumerate().map(row).collect();
    lay_out(&header.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

fn named(system: System) -> String {
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    match system {
        System::Vanilla(share) if share >= 1.0 => "all local".into(),
        System::Vanilla(local) => format!("{} local", percent(local)),
        System::Tiered(local) => format!("{} local, remote", percent(local)),
        System::Limited { local, remote } => format!("{} local, {} remote", percent(local), percent(remote)),
        other => other.name(),
    }
}

impl Options {
    /// # Errors
    /// [`Error::Refused`] of numbers that mean nothing.
    pub fn checked(self) -> Result<Options> {
        match self.processor.is_finite() && self.processor >= 0.0 && self.processor <= 1e6 {
            true => Ok(self),
            false => Err(Error::Refused("--processor is a factor of 0 to 1000000".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_checked() {
        assert_eq!(share("25%"), Ok(0.25));
        assert_eq!(share("0.5"), Ok(0.5));
        assert!(share("101%").is_err() && share("-1%").is_err() && share("much").is_err() && share("NaN").is_err());
    }
}
