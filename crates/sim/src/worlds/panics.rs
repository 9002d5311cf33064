//! Panics of simulated threads, background threads of the engine included: each is a failure of its world.

use super::scene;
use std::sync::{Mutex, PoisonError};

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on panics are kept, with where they happened. For programs that do nothing but explore.
pub fn keep() {
    std::panic::set_hook(Box::new(|info| {
        let text = format!("{info}\n{}", frames());
        scene::keep();
        // The process may not live to tell it otherwise.
        eprintln!("{text}");
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }));
}

/// Those since the last call.
pub fn take() -> Vec<String> {
    std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The functions of this project that the panicking thread is in, innermost first.
fn frames() -> String {
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    let lines = trace
        .lines()
        .filter_map(|l| Some(l.trim().split_once(": ")?.1.to_owned()));
    let ours = lines.filter(|l| l.contains("cenote_") && !l.contains("cenote_sim::worlds::panics"));
    let frames: Vec<String> = ours.map(|l| format!("      in {l}")).take(24).collect();
    frames.join("\n")
}
