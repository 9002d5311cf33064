//! What all change is at one place at a time: threads on vCPUs of their own, in virtual time.

use cenote_base::rt::atomic::Ordering::SeqCst;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::{Identity, Region, RegionOptions};
use cenote_sim::{DeviceSpec, Exit, Machinery, Pace, Topology, World};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const THREADS: u64 = 8;
const TURNS: u64 = 2000;
/// A core's transfer, of the profile `dram`.
const TRANSFER: u64 = 51;
const BYTES: u64 = 1 << 20;

/// Nanoseconds until eight threads have each added 2000 times to a word: all to one, or each to one in a line of its
/// own.
fn adding(lines: u64) -> u64 {
    let device = DeviceSpec {
        coherent: true,
        ..DeviceSpec::new("m", BYTES, "cxl-switch").expect("a profile")
    };
    let topology = Topology::hosts(1, THREADS as u32).with_device(device);
    let machinery = Machinery {
        slack: Nanos(20),
        ..Machinery::default()
    };
    let world = World::new(1, Pace::Project, topology)
        .expect("a topology")
        .with_machinery(machinery);
    let took = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&took);
    let body = move || {
        let region = Region::create(
            Path::new("/dev/sim/m"),
            BYTES,
            Identity::default(),
            RegionOptions::default(),
        );
        let region = Arc::new(region.expect("a device of this size"));
        let begun = rt::now();
        let add = |thread: u64| {
            let region = Arc::clone(&region);
            rt::spawn("adds", move || {
                let word = region.atomic_u64(8192 + thread % lines * 64);
                for _ in 0..TURNS {
                    word.fetch_add(1, SeqCst);
                }
            })
        };
        let threads: Vec<_> = (0..THREADS).map(add).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let sum: u64 = (0..lines).map(|n| region.atomic_u64(8192 + n * 64).load(SeqCst)).sum();
        assert_eq!(sum, THREADS * TURNS);
        theirs.store(rt::now().since(begun).0, Relaxed);
    };
    let exit = world.run(|w| w.process(0, "adds", body).join()).value;
    assert_eq!(exit, Exit::Returned);
    took.load(Relaxed)
}

/// Sixteen sessions that all drew from one counter cost each of them nothing, so that a counter for all looked as good
/// as one for each.
#[test]
fn a_word_for_all_is_as_slow_as_its_line_is_passed_on() {
    let (shared, own) = (adding(1), adding(THREADS));
    let passed_on = THREADS * TURNS * TRANSFER;
    assert!(
        shared > passed_on / 2 && shared < passed_on * 2,
        "{shared} ns, where the line is passed on for {passed_on}"
    );
    assert!(own < shared / 3, "{own} ns with words of their own, {shared} with one");
}
