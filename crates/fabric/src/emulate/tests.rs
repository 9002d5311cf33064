//! What the model promises; times of the machine are asserted only where nothing but a wait can be wrong.

use super::*;
use crate::{Identity, RegionOptions, profile};
use cenote_base::units::ByteSize;

fn region(bytes: u64) -> Region {
    Region::dram(bytes, Identity::default(), RegionOptions::default()).expect("memory")
}

fn emulator(name: &str) -> Emulator {
    Emulator::new(profile::named(name).expect("known"), CacheShape::default())
}

fn lab(latency: f64) -> Profile {
    let text = format!("[lab]\nload_latency_ns = {latency}\nsource = \"a test\"\n");
    profile::parse(&text).expect("valid").remove(0)
}

#[test]
fn a_miss_takes_the_latency_and_a_hit_does_not() {
    let (region, emulator) = (region(1 << 20), Emulator::new(lab(50_000.0), CacheShape::default()));
    let timed = |off, len| {
        let began = rt::now();
        emulator.touch(&region, off, len, Access::Read);
        rt::now().since(began)
    };
    assert!(timed(8192, 8) >= Nanos(49_000));
    let again = (0..100).map(|_| timed(8192, 8)).min().expect("some");
    assert!(again < Nanos(20_000), "{again:?}");
    assert!(timed(8250, 12) >= Nanos(49_000), "its second line was missing");
    let figures = emulator.mine();
    assert_eq!((figures.traffic.reads, figures.traffic.bytes_read), (102, 8 * 101 + 12));
    assert_eq!((figures.lines_read, figures.lines_written), (2, 0));
    assert!(figures.stalled >= Nanos(99_000), "{figures:?}");
}

#[test]
fn lines_of_one_access_come_together() {
    let cxl = profile::named("cxl-switch").expect("known");
    assert_eq!(cost_ns(&cxl, 0, Access::Read), 0.0);
    assert_eq!(cost_ns(&cxl, 1, Access::Read), 549.0);
    // 16 KiB over the switch take 2.46 us, 64 bytes 0.75 (table 2).
    assert_eq!(cost_ns(&cxl, 256, Access::Read), 549.0 + 1710.0);
    assert_eq!(cost_ns(&cxl, 256, Access::Write), 549.0 + 900.0);
    let dram = profile::named("dram").expect("known");
    let (one, many) = (cost_ns(&dram, 1, Access::Read), cost_ns(&dram, 33, Access::Read));
    // 2048 bytes at the 15 GB/s that one thread streams.
    assert_eq!((one, many.round()), (146.0, 283.0));
    assert_eq!(cost_ns(&lab(320.0), 33, Access::Read), 640.0);
}

#[test]
fn costs_beyond_the_table_go_on() {
    let clock = Clock::new();
    let costs = Costs::new(&lab(320.0), &clock);
    let step = costs.of(256, Access::Read) - costs.of(255, Access::Read);
    assert_eq!(costs.of(1256, Access::Read), costs.of(256, Access::Read) + 1000 * step);
}

#[test]
fn bandwidth_makes_transfers_queue() {
    let mut slow = lab(100.0);
    // 64 bytes in 640 ns.
    slow.bandwidth = Some(1e8);
    let (region, emulator) = (region(1 << 20), Emulator::new(slow, CacheShape::default()));
    let began = rt::now();
    (0..1000).for_each(|line| emulator.touch(&region, 64 * line, 8, Access::Read));
    let took = rt::now().since(began);
    assert!(took >= Nanos(620_000), "{took:?}");
}

#[test]
fn changed_lines_are_written_back_and_counted() {
    let region = region(4 << 20);
    let shape = CacheShape::new(ByteSize::kib(64), 16).expect("a shape");
    let emulator = Emulator::new(lab(1.0), shape);
    (0..1024).for_each(|line| emulator.touch(&region, 64 * line, 64, Access::Write));
    (1024..65_536).for_each(|line| emulator.touch(&region, 64 * line, 64, Access::Read));
    let figures = emulator.total();
    assert_eq!((figures.lines_written, figures.lines_read), (1024, 65_536 - 1024));
    assert_eq!(figures.lines_returned, 1024);
    assert_eq!(figures.bytes(), 64 * (65_536 + 1024));
}

#[test]
fn accesses_outside_are_of_no_region() {
    let (region, emulator) = (region(1 << 20), emulator("cxl-direct"));
    emulator.touch(&region, region.len() - 4, 8, Access::Read);
    emulator.touch(&region, 0, 0, Access::Read);
    assert_eq!(emulator.total(), Figures::default());
}

#[test]
fn threads_count_for_themselves_and_share_the_cache() {
    let (region, emulator) = (region(1 << 20), Emulator::new(lab(1.0), CacheShape::default()));
    let touch = || (0..512).for_each(|line| emulator.touch(&region, 64 * line, 8, Access::Read));
    touch();
    std::thread::scope(|s| {
        let there = s.spawn(|| {
            touch();
            emulator.mine()
        });
        let theirs = there.join().expect("no panic");
        assert_eq!((theirs.traffic.reads, theirs.lines_read), (512, 0));
    });
    assert_eq!(
        (emulator.total().traffic.reads, emulator.total().lines_read),
        (1024, 512)
    );
}
