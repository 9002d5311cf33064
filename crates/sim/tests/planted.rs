//! Each rule that the checkers guard, broken on purpose: the worlds must notice within a bounded number of seeds.

use std::process::Command;

use cenote_base::rt::fault::Fault;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cenote-sim");

/// The world in which a fault shows, and after how many seeds it must have.
fn place(fault: Fault) -> (&'static str, u64) {
    match fault {
        Fault::PageFlush => ("host-loss", 40),
        Fault::Invalidate => ("handover", 40),
        Fault::SyncError | Fault::PageChecksum => ("disk", 60),
        Fault::PageBeforeLog => ("crash", 40),
        Fault::ChainLink | Fault::ListLock => ("crash", 40),
        Fault::RowLock | Fault::WriteLock | Fault::StaleCts | Fault::EarlyAnswer => ("transactions", 20),
        Fault::AbortedVersion => ("transactions", 40),
        Fault::RemoteBeforeLog | Fault::StaleCopy | Fault::StillOwned | Fault::LostTrace => ("tiered", 40),
        Fault::StaleCache | Fault::LostFlush | Fault::HeatComparison | Fault::MoveFence => ("pool", 60),
        Fault::GrantFence => ("grants", 40),
        Fault::StalledCommit | Fault::StalledLook => unreachable!("breaks no rule, and is not among `ALL`"),
    }
}

/// How many seeds it took.
fn find(fault: Fault) -> Option<(u64, String)> {
    let (world, seeds) = place(fault);
    let output = Command::new(PROGRAM)
        .args(["--world", world, "--seed", "1", "--no-shrink", "--plant", fault.name()])
        .args(["--seeds", &seeds.to_string()])
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{text}");
    let seed = text.lines().find_map(|l| l.strip_prefix("FAILED: seed "))?;
    let seed = seed.split(' ').next().and_then(|s| s.parse().ok())?;
    let what = text
        .lines()
        .skip_while(|l| !l.starts_with("FAILED"))
        .nth(1)
        .unwrap_or_default();
    Some((seed, what.chars().take(110).collect()))
}

#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let (world, seeds) = place(fault);
        match find(fault) {
            Some((seed, what)) => println!("{:<16} world {world:<13} seed {seed:>3}: {}", fault.name(), what.trim()),
            None => missed.push(format!("{} in {seeds} seeds of {world}", fault.name())),
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
