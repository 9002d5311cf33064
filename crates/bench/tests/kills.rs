//! A real server, killed at random moments of a write load, again and again.
//!
//! The seed is printed with a violation; `CENOTE_KILL_SEED` replays it, `CENOTE_KILLS` sets how many kills each plan
//! has. (The moments of a kill are real time: a replay kills at the same offsets, not at the same instruction.)

use cenote_bench::kills::{Plan, run};
use std::path::PathBuf;
use std::time::Duration;

/// The program beside the test's own directory; built by `cargo build --workspace`.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    let path = test
        .ancestors()
        .nth(2)
        .expect("target/release/deps/test")
        .join("cenote");
    assert!(
        path.exists(),
        "{} is missing: run cargo build --release --workspace first",
        path.display()
    );
    path
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn kill(memory: &str, memory_size: &str, survive: &str, accounts: i64, default_kills: u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let plan = Plan {
        program: program(),
        seed: number("CENOTE_KILL_SEED", 1),
        kills: number("CENOTE_KILLS", default_kills) as u32,
        memory: memory.into(),
        memory_size: memory_size.into(),
        survive: survive.into(),
        accounts,
        threads: 6,
        longest: Duration::from_millis(600),
        check_every: 10,
    };
    let verdict = run(dir.path(), &plan).unwrap_or_else(|e| panic!("{e}"));
    println!("{memory} {memory_size} {survive}: {verdict:?}");
    assert!(verdict.acknowledged > 0, "the load did nothing");
}

#[test]
fn killed_with_everything_in_a_region() {
    kill("cxl", "64MiB", "process", 2_000, 100);
}

#[test]
fn killed_with_a_region_smaller_than_the_data() {
    kill("cxl", "32MiB", "process", 200_000, 40);
}

#[test]
fn killed_with_host_survival() {
    kill("cxl", "64MiB", "host", 2_000, 40);
}

#[test]
fn killed_with_private_memory() {
    kill("dram", "64MiB", "process", 2_000, 40);
}
