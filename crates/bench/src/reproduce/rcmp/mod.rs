//! Rcmp's experiments: one pool over several pods against page swapping, objects, coherent caches and CXL over
//! Ethernet.
//!
//! What is compared lies over the same simulated cards and memory, is charged the same processor time, and is asked by
//! the same clients:
//!
//! | module | |
//! |---|---|
//! | [`store`] | what a system is to its clients; where bytes lie; processor time |
//! | [`pool`] | Cenote's pool (`cenote_space`), which follows Rcmp |
//! | [`swap`], [`object`], [`coherent`], [`ethernet`] | Fastswap, FaRM, GAM and CXL over Ethernet, in small |
//! | [`load`], [`rig`] | clients; a world of pods |
//! | [`modes`] | RPC by size |
//! | [`rings`] | a daemon's requests through one ring, or two layers |
//! | [`figures`], [`paper`], [`why`] | the experiments; the paper's numbers; why ours differ |

pub mod coherent;
pub mod ethernet;
pub mod figures;
pub mod load;
pub mod modes;
pub mod object;
pub mod paper;
pub mod pool;
pub mod rig;
pub mod rings;
pub mod run;
pub mod store;
pub mod swap;
pub mod why;

#[cfg(test)]
mod tests;

use super::options::{Options, Progress};
use super::report::Figure;
use crate::Result;

/// All, in the paper's order.
pub const FIGURES: [&str; 8] = ["latency", "clients", "pods", "ycsb", "hot", "locks", "rpc", "rings"];

/// What stands before the figures.
pub const OPENING: &str = include_str!("opening.md");

/// Runs those of [`FIGURES`] that are named.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn figures(options: &Options, names: &[&'static str], progress: &Progress) -> Result<Vec<Figure>> {
    let one = |name: &&'static str| match *name {
        "latency" => figures::latency(options, progress),
        "clients" => figures::clients(options, progress),
        "pods" => figures::pods(options, progress),
        "ycsb" => figures::ycsb(options, progress),
        "hot" => figures::hot(options, progress),
        "locks" => figures::locks(options, progress),
        "rpc" => figures::rpc(options, progress),
        _ => figures::rings(options, progress),
    };
    names.iter().map(one).collect()
}
