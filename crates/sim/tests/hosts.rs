//! Ranges of a device that hosts share, seen through caches that are not coherent: what agents do with their lines.

use cenote_fabric::{FileRange, SharedDevice, coherence};
use cenote_sim::memory::Chance;
use cenote_sim::{DeviceSpec, Pace, Topology, World};
use std::path::Path;

const MIB: u64 = 1 << 20;
const PATH: &str = "/dev/sim/shared";
const RANGE: FileRange = FileRange {
    offset: 2 * MIB,
    bytes: MIB,
};
/// A word of the range.
const AT: u64 = 8192;

fn open() -> SharedDevice {
    SharedDevice::open(Path::new(PATH)).expect("it is there")
}

fn store(value: u64) {
    let memory = open().map(RANGE).expect("mapped");
    memory.span(AT, 8).set_u64(0, value);
    coherence::flush(&memory, AT, 8);
}

fn load() -> u64 {
    let memory = open().map(RANGE).expect("mapped");
    memory.span(AT, 8).u64(0)
}

fn on(world: &World, host: usize, work: impl FnOnce() + Send + 'static) {
    let process = world.process(host, "process", work);
    let exit = process.join();
    assert!(matches!(exit, cenote_sim::Exit::Returned), "{exit:?}");
}

/// Two hosts, whose caches lose nothing by themselves.
fn two_hosts(story: impl Fn(&World)) {
    let device = DeviceSpec::new("shared", 8 * MIB, "cxl-switch").expect("a profile of this program");
    let world = World::new(1, Pace::Explore, Topology::hosts(2, 1).with_device(device)).expect("a possible topology");
    world.run(|world| {
        world.set_chance(Chance {
            every: 0,
            prefetches: 0,
            reached: 0,
        });
        on(world, 0, || {
            let device = cenote_base::rt::memory(Path::new(PATH)).expect("simulated");
            device.resize(8 * MIB).expect("its length");
        });
        story(world);
    });
}

/// The host that made a range zeros kept the lines, and read them when the range had been another host's since.
#[test]
fn lines_of_what_was_erased_are_dropped() {
    two_hosts(|world| {
        on(world, 0, || {
            store(1);
            open().erase(RANGE).expect("erased");
        });
        on(world, 1, || {
            assert_eq!(load(), 0, "new memory is zeros");
            store(2);
            open().write_back(RANGE).expect("written back");
        });
        on(world, 0, || assert_eq!(load(), 2, "what the other host has written"));
    });
}

/// What an ended process has stored, and not flushed, goes with its range.
#[test]
fn lines_of_a_former_holder_are_written_back() {
    two_hosts(|world| {
        on(world, 1, || assert_eq!(load(), 0));
        on(world, 0, || {
            let memory = open().map(RANGE).expect("mapped");
            memory.span(AT, 8).set_u64(0, 7);
        });
        on(world, 0, || open().write_back(RANGE).expect("written back"));
        on(world, 1, || open().write_back(RANGE).expect("dropped"));
        on(world, 1, || assert_eq!(load(), 7));
    });
}

#[test]
fn a_range_is_inside_of_its_device_and_of_whole_pages() {
    two_hosts(|world| {
        on(world, 0, || {
            for (offset, bytes) in [(8 * MIB, 4096), (4096, 8 * MIB), (100, 4096), (0, 100), (0, 0)] {
                let error = open().map(FileRange { offset, bytes }).expect_err("refused");
                assert!(error.to_string().contains("are no range"), "{error}");
            }
        });
    });
}
