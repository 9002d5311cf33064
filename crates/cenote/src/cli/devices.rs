//! `cenote devices`: which memory devices a server can be made to feel, or what a file of profiles holds.

use super::Failure;
use super::say;
use crate::device;
use cenote_fabric::emulate::own_latency_ns;
use cenote_fabric::profile::{self, Profile};
use std::path::Path;
use std::process::ExitCode;

/// Lists the built-in profiles, or checks and lists those of a file.
///
/// # Errors
/// The file cannot be read, or is not made of profiles.
pub fn run(file: Option<&Path>) -> Result<ExitCode, Failure> {
    let profiles = match file {
        Some(file) => device::read(file)?,
        None => profile::built_in(),
    };
    if let (Some(file), true) = (file, profiles.is_empty()) {
        return Err(format!("{} holds no profile: a line [NAME] begins one", file.display()).into());
    }
    let own_ns = own_latency_ns();
    let mut rows = vec![["name", "latency", "bandwidth", "--device", "source"].map(String::from)];
    rows.extend(profiles.iter().map(|profile| row(profile, own_ns)));
    super::print_aligned(&rows);
    say!("");
    say!("This machine's own memory takes {own_ns:.0} ns (measured now); nothing is emulated faster than that.");
    if let Some(file) = file {
        say!("{} is in order.", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn row(profile: &Profile, own_ns: f64) -> [String; 5] {
    let bandwidth = match profile.bandwidth {
        Some(bytes) => format!("{:.1} GB/s", bytes / 1e9),
        None => "not given".into(),
    };
    [
        profile.name.clone(),
        format!("{:.1} ns", profile.load_latency_ns),
        bandwidth,
        usable(profile, own_ns).into(),
        profile.source.clone(),
    ]
}

/// What `--device` makes of it.
fn usable(profile: &Profile, own_ns: f64) -> &'static str {
    if device::is_storage(profile) {
        "no: storage"
    } else if profile.operations.is_some() {
        "yes, a transfer a line"
    } else if profile.load_latency_ns < own_ns {
        "faster than this machine"
    } else {
        "yes"
    }
}
