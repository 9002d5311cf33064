//! Random statements on Cenote and on PostgreSQL, prepared ones among them: the row executor gives PostgreSQL's rows.
//! Where the short path answers otherwise, and where a column has another type, the report says so; what analytics
//! answers otherwise is counted.
//!
//! `CENOTE_DIFFERENTIAL_SEED`, `.._SEEDS`, `.._STATEMENTS`, `.._PREPARED` and `.._ANALYTICS` set what is run; `cenote
//! bench differential` does the same with a report.

use cenote_bench::differential::{Options, compare};
use cenote_bench::server::find_program;
use std::os::unix::fs::PermissionsExt;
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
fn the_row_executor_gives_the_rows_that_postgresql_gives() {
    if find_program("initdb").is_none() {
        let is_ci = std::env::var("CI").is_ok_and(|v| v == "true");
        assert!(!is_ci, "PostgreSQL is missing: scripts/setup.sh test installs it");
        println!("passed over: PostgreSQL is not installed (scripts/setup.sh test installs it)");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    // PostgreSQL's user has to reach its data directory.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("a folder of this process");
    let options = Options {
        program: program(),
        out: dir.path().to_owned(),
        seed: number("CENOTE_DIFFERENTIAL_SEED", 1),
        seeds: number("CENOTE_DIFFERENTIAL_SEEDS", 2),
        statements: number("CENOTE_DIFFERENTIAL_STATEMENTS", 300) as usize,
        prepared: number("CENOTE_DIFFERENTIAL_PREPARED", 40) as usize,
        analytics: number("CENOTE_DIFFERENTIAL_ANALYTICS", 0) != 0,
        alone: false,
    };
    let report = compare(&options).unwrap_or_else(|e| panic!("{e}"));
    println!("{report}");
    let wrong = report.findings.iter().filter(|f| f.is_wrong_answer_of_rows()).count();
    assert_eq!(wrong, 0, "the row executor answered {wrong} statements otherwise");
    let by_rows = report.paths.get("Row executor").copied().unwrap_or(0);
    let asked = options.seeds as usize * options.statements;
    assert!(by_rows * 5 > asked, "it ran {by_rows} statements only");
}
