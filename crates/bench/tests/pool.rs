//! The pool's demonstration: real processes, two pods, and hot extents that come to who uses them.

use cenote_bench::pool::{Load, Options, demo};
use cenote_fabric::rdma::libfabric;
use std::path::PathBuf;

/// The program beside the test's own directory; built by `cargo build --workspace`.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    test.ancestors()
        .nth(2)
        .expect("target/release/deps/test")
        .join("cenote")
}

#[test]
fn hot_extents_come_to_who_uses_them() {
    if let Err(error) = libfabric::available() {
        println!("skipped: {error}");
        return;
    }
    let options = |load, seconds| Options {
        program: Some(program()),
        size: 32 << 20,
        objects: 40_000,
        bytes: 1024,
        seconds,
        writes: 20,
        load,
        seed: 1,
    };
    // Whatever the machine does meanwhile: half of the accesses are local at the beginning, and under an even load they stay so.
    let shares = demo(&options(Load::Uniform, 3)).expect("a demonstration");
    assert!(shares.iter().all(|share| (35.0..65.0).contains(share)), "{shares:?}");
    // A slow machine takes longer: then again, for longer.
    let mut shares = Vec::new();
    for seconds in [6, 12, 24, 48] {
        let [east, west] = demo(&options(Load::Own, seconds)).expect("a demonstration");
        shares.push(east.min(west));
        if east.min(west) > 75.0 {
            return;
        }
    }
    panic!("local, in percent: {shares:?}");
}
