//! How close emulated latency comes to its profile: `cargo run --release -p cenote-fabric --example emulate`.
//!
//! For each profile a chain is followed through 256 MiB by announced loads, of which nearly all miss the modelled
//! cache, and pages of 4 KiB are copied out; beside them what the profile says. Then the same chain through 16 MiB, all
//! of which the modelled cache holds: what is left there beyond the plain loads is the model's own cost.

use cenote_fabric::emulate::{CacheShape, Emulator, cost_ns, own_latency_ns};
use cenote_fabric::observe::{Access, Sink};
use cenote_fabric::profile::{self, Profile};
use cenote_fabric::{Identity, LINE, Region, RegionOptions};
use std::hint::black_box;
use std::time::Instant;

const BYTES: u64 = 256 << 20;
const CACHED: u64 = 16 << 20;
const BATCHES: u64 = 1000;
const BATCH: u64 = 64;
const COPY: usize = 4096;

fn main() {
    let region = Region::dram(BYTES + (1 << 20), Identity::default(), RegionOptions::default()).expect("memory");
    region.reserve_to(region.len()).expect("memory");
    println!(
        "this machine's own memory, by a chain through 64 MiB: {:.0} ns",
        own_latency_ns()
    );
    println!(
        "not emulated: a load {:.0} ns through 256 MiB, {:.0} ns through 16 MiB; a copy of 4 KiB {:.0} ns\n",
        plain(&region, BYTES),
        plain(&region, CACHED),
        copies(&region, |_| ())
    );
    println!(
        "| profile | load ns | emulated | off by | 4 KiB ns | emulated | off by | load cached ns | model ns near, far |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for profile in profile::built_in().into_iter().filter(|p| p.sync_ns == 0.0) {
        measure(&region, profile);
    }
}

fn measure(region: &Region, profile: Profile) {
    let emulator = Emulator::new(profile, CacheShape::default());
    let load = chain(region, BYTES, |at| emulator.touch(region, at, 8, Access::Read));
    let copy = copies(region, |at| emulator.touch(region, at, COPY as u32, Access::Read));
    chain(region, CACHED, |at| emulator.touch(region, at, 8, Access::Read));
    let cached = chain(region, CACHED, |at| emulator.touch(region, at, 8, Access::Read));
    let profile = emulator.profile();
    let wanted = (
        profile.load_latency_ns,
        cost_ns(profile, (COPY / LINE) as u64, Access::Read),
    );
    let off = |got: f64, wanted: f64| format!("{:+.0}%", (got / wanted - 1.0) * 100.0);
    let (near, look) = emulator.overhead_ns();
    println!(
        "| {} | {:.0} | {load:.0} | {} | {:.0} | {copy:.0} | {} | {cached:.0} | {near:.0}, {look:.0} |",
        profile.name,
        wanted.0,
        off(load, wanted.0),
        wanted.1,
        off(copy, wanted.1)
    );
}

fn plain(region: &Region, bytes: u64) -> f64 {
    chain(region, bytes, |_| ());
    chain(region, bytes, |_| ())
}

/// Nanoseconds a step of a chain of loads, each of which depends on the one before: the median of many short chains,
/// most of which no other program disturbs.
fn chain(region: &Region, bytes: u64, announce: impl Fn(u64)) -> f64 {
    let (lines, span) = (bytes / LINE as u64, region.span(0, region.len()));
    let mut line = 1u64;
    let batches = if bytes == CACHED { 2 * lines / BATCH } else { BATCHES };
    median(batches, || {
        for _ in 0..BATCH {
            let at = (1 << 20) + line * LINE as u64;
            announce(at);
            line = next(line, lines, black_box(span.u64(at as usize)));
        }
    })
}

/// Nanoseconds to copy 4 KiB out that are not cached.
fn copies(region: &Region, announce: impl Fn(u64)) -> f64 {
    let (span, mut out) = (region.span(0, region.len()), vec![0; COPY]);
    let (blocks, mut block) = (BYTES / COPY as u64, 1u64);
    median(BATCHES / 4, || {
        for _ in 0..BATCH {
            let at = (1 << 20) + block * COPY as u64;
            announce(at);
            span.copy_out(at as usize, &mut out);
            block = next(block, blocks, u64::from(black_box(out[8])));
        }
    })
}

/// Comes to each number below `count`, a power of two, in an order that is hard to guess. `zero` was loaded: the next
/// load has to wait for it.
fn next(number: u64, count: u64, zero: u64) -> u64 {
    (number.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1) + zero) % count
}

fn median(batches: u64, mut batch: impl FnMut()) -> f64 {
    let timed = |_| {
        let began = Instant::now();
        batch();
        began.elapsed().as_nanos() as f64 / BATCH as f64
    };
    let mut all: Vec<f64> = (0..batches).map(timed).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
