//! A server killed at random moments, over and over, on one data directory: after each restart everything that was
//! acknowledged must be there, nothing half done, and now and then every tree, index and list is checked.

use crate::ledger::{self, Transfers, Verdict};
use crate::load::{self, Progress};
use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::{Error, IoContext, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What is killed, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Chooses the accounts and the moments of the kills.
    pub seed: u64,
    /// How many kills.
    pub kills: u32,
    /// `cxl` or `dram`.
    pub memory: String,
    /// Such as `64MiB`.
    pub memory_size: String,
    /// `process` or `host`.
    pub survive: String,
    /// Accounts that transfers move between.
    pub accounts: i64,
    /// Client threads.
    pub threads: i64,
    /// The longest load before a kill.
    pub longest: Duration,
    /// `cenote check` on the stopped database after each so many kills.
    pub check_every: u32,
}

/// Runs the plan in `dir`; the first violation is an error that names the seed and the kill.
///
/// # Errors
/// [`Error::Server`] if a server does not start, answer or stop; [`Error::Sql`] if a statement fails; [`Error::Io`] of
/// a file or process. [`Error::Lost`] with the seed and the kill at the first violation.
pub fn run(dir: &Path, plan: &Plan) -> Result<Verdict> {
    let server = CenoteOptions {
        program: plan.program.clone(),
        data: dir.join("data"),
        memory: plan.memory.clone(),
        memory_size: plan.memory_size.clone(),
        port: free_port()?,
        survive: plan.survive.clone(),
        region: RegionFile::new(),
    };
    let mut running = Server::cenote(&server)?;
    ledger::prepare(&mut load::connect(server.port)?, plan.accounts, |_| {})?;
    let mut workers: Vec<Transfers> = (0..plan.threads)
        .map(|w| Transfers::new(w, plan.accounts, 1, plan.seed))
        .collect();
    let mut verdict = Verdict::default();
    for kill in 0..plan.kills {
        workers = load_and_kill(&mut running, plan, kill, workers);
        if kill % plan.check_every == plan.check_every - 1 {
            check(&server)?;
        }
        running = Server::cenote(&server)?;
        verdict = ledger::verify(&mut load::connect(server.port)?, plan.accounts, workers.iter())?;
        verdict.must_hold().map_err(|e| at(plan, kill, &e))?;
    }
    running.stop(Duration::from_secs(30));
    check(&server)?;
    Ok(verdict)
}

fn at(plan: &Plan, kill: u32, error: &Error) -> Error {
    Error::Lost(format!(
        "{error} (seed {}, kill {kill}, --memory {} {})",
        plan.seed, plan.memory, plan.memory_size
    ))
}

fn load_and_kill(running: &mut Server, plan: &Plan, kill: u32, workers: Vec<Transfers>) -> Vec<Transfers> {
    let progress = Progress::new(Duration::from_secs(600));
    let running_load = load::run(running.port, &progress, workers);
    std::thread::sleep(moment(plan, kill));
    running.kill();
    progress.stop();
    load::join(running_load).into_iter().map(|r| r.workload).collect()
}

/// When to kill: from the seed, and short ones often.
fn moment(plan: &Plan, kill: u32) -> Duration {
    let mut x = plan
        .seed
        .wrapping_add(u64::from(kill) + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 31;
    let share = (x.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f64 / f64::from(1 << 24);
    plan.longest.mul_f64(share * share)
}

/// `cenote check` on the data directory of a server that does not run.
///
/// # Errors
/// [`Error::Lost`] with the output of `cenote check` if that finds damage; [`Error::Io`] if it cannot be started.
pub fn check(server: &CenoteOptions) -> Result<()> {
    let mut command = Command::new(&server.program);
    command
        .arg("check")
        .arg("--data")
        .arg(&server.data)
        .args(["--memory", &server.memory]);
    if server.memory == "cxl" {
        command.arg("--region").arg(server.region.path());
    }
    let output = command.output().context("starting cenote check")?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Err(Error::Lost(format!("cenote check is not content:\n{text}")))
}
