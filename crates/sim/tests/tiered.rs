//! What the world `tiered` has to go through, lest it find nothing; and what was found there.
//!
//! A memory node is only a cache of what log and storage can rebuild: whatever becomes of it, each commit that was
//! acknowledged is there in the next life, none is half there, and `check` finds nothing wrong.

use std::process::Command;

fn explore(first: u64, seeds: u64) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_cenote-sim"))
        .args(["--world", "tiered", "--no-shrink", "--seed", &first.to_string()])
        .args(["--seeds", &seeds.to_string()])
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// The number behind a count in what the program prints.
fn count(text: &str, what: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(what));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

/// Among these, seed 8: a flush was told by the tier which pages storage lacks; before it had them in frames, purge
/// gave pages of undo up, and they were nowhere: the flush failed with "is asked for and was never written".
#[test]
fn remote_memory_is_used_lost_and_done_without() {
    let needed = [
        "pages read",
        "starts that kept pages",
        "pages rebuilt without it",
        "losses",
    ];
    let mut met = [0; 4];
    for first in (5..).step_by(6).take(6) {
        let text = explore(first, 6);
        println!("{text}");
        for (met, what) in met.iter_mut().zip(needed) {
            *met += count(&text, &format!("remote memory: {what}"));
        }
        if met.iter().all(|n| *n > 0) {
            return;
        }
    }
    panic!("never, of {needed:?}: {met:?}");
}
