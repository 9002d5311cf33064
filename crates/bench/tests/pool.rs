//! The pool's demonstration: real processes, two pods, and hot extents that come to the pod that uses them.

use cenote_bench::pool::{Load, Options, demo};
use cenote_bench::ycsb::record::Layout;
use cenote_bench::ycsb::workload::Distribution;
use cenote_bench::{sweep, ycsb};
use cenote_libfabric as libfabric;
use std::path::{Path, PathBuf};

/// The program beside the test's own directory; built by `cargo build --workspace`.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    test.ancestors()
        .nth(2)
        .expect("target/release/deps/test")
        .join("cenote")
}

#[test]
fn hot_extents_come_to_the_pod_that_uses_them() {
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
    // Whatever the machine does meanwhile: half of the accesses are local at the beginning, and under an even load they
    // stay so.
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

/// Each workload finds each record in a table over two pods; the sweep runs from its first figure to its picture.
#[test]
fn records_in_two_pods_are_found_and_the_sweep_is_told() {
    if let Err(error) = libfabric::available() {
        println!("skipped: {error}");
        return;
    }
    let out = std::env::temp_dir().join(format!("cenote-pool-bench-{}", std::process::id()));
    ycsb::run(&ycsb_options(&out)).expect("each record is there");
    sweep::run(&sweep_options(&out)).expect("measured");
    for name in ["ycsb.json", "ycsb.svg", "pool.json", "pool.txt", "pool.svg", "pool.png"] {
        assert!(out.join(name).metadata().is_ok_and(|file| file.len() > 100), "{name}");
    }
    let text = std::fs::read_to_string(out.join("pool.json")).expect("written");
    let figures: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let far = |figure: &serde_json::Value| figure["far"].as_f64().expect("a share");
    let by_size = figures["sizes"].as_array().expect("some");
    let is_right = |figure: &serde_json::Value| match figure["place"].as_str() {
        Some("own pod") => far(figure) == 0.0,
        _ => far(figure) > 99.0,
    };
    assert!(by_size.len() == 16 && by_size.iter().all(is_right), "{text}");
    let pods: Vec<f64> = figures["pods"].as_array().expect("some").iter().map(far).collect();
    assert!(pods[0] == 0.0 && (30.0..70.0).contains(&pods[1]), "{text}");
    std::fs::remove_dir_all(&out).expect("removed");
}

fn ycsb_options(out: &Path) -> ycsb::Options {
    let all = ["a", "b", "c", "d", "e", "f"];
    ycsb::Options {
        out: out.to_owned(),
        targets: vec![ycsb::TargetKind::Pool],
        workloads: all.iter().map(|name| name.parse().expect("known")).collect(),
        distributions: vec![Distribution::Zipfian],
        layout: Layout::Hash,
        records: 3000,
        fields: 10,
        field_bytes: 100,
        length: ycsb::Length::Operations(2000),
        rounds: 1,
        threads: 2,
        pods: 2,
        program: Some(program()),
        connections: 2,
        pipeline: 1,
        seed: 1,
        is_pinned: false,
    }
}

fn sweep_options(out: &Path) -> sweep::Options {
    sweep::Options {
        out: out.to_owned(),
        program: Some(program()),
        memory: 4 << 20,
        sizes: vec![64, 16 << 10],
        clients: vec![2],
        pods: vec![1, 2],
        writes: 50,
        seconds: 0.05,
        rounds: 1,
        seed: 1,
    }
}
