//! Statements that have to agree with each other do, whatever the data: no other server is asked. Those of which
//! analytics carries out one are counted where they do not.
//!
//! `CENOTE_RELATIONS_SEED`, `.._SEEDS`, `.._COUNT` and `.._ANALYTICS` set what is run; `cenote bench relations` does the
//! same with a report.

use cenote_bench::relations::{Options, check};
use std::path::PathBuf;

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

#[test]
fn statements_that_have_to_agree_do() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options {
        program: program(),
        out: dir.path().to_owned(),
        seed: number("CENOTE_RELATIONS_SEED", 1),
        seeds: number("CENOTE_RELATIONS_SEEDS", 2),
        relations: number("CENOTE_RELATIONS_COUNT", 300) as usize,
        analytics: number("CENOTE_RELATIONS_ANALYTICS", 0) != 0,
    };
    let report = check(&options).unwrap_or_else(|e| panic!("{e}"));
    println!("{report}");
    assert!(
        report.findings.is_empty(),
        "{} relations do not hold",
        report.findings.len()
    );
    let held: usize = report.held.values().sum();
    let asked = (options.seeds as usize) * options.relations;
    assert!(held * 5 > asked * 2, "{held} of {asked} relations were checked only");
    assert!(report.held.len() > 10, "kinds of relations: {:?}", report.held);
}
