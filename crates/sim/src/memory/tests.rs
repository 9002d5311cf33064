//! The cache model by itself: one machine thread plays all hosts.

use super::*;
use crate::topology::{CacheSpec, DeviceSpec};
use cenote_base::rt::memory::Access::{Read, Write};
use cenote_fabric::profile;

mod sharing;

const MIB: u64 = 1 << 20;

fn no_machine_check() {
    panic!("machine check");
}

fn topology(hosts: usize, window: u64) -> Topology {
    let mut topology = Topology::hosts(hosts, 1);
    let device = DeviceSpec::new("pool", 4 * MIB, "cxl-switch").expect("a profile");
    topology.devices.push(DeviceSpec { window, ..device });
    topology
}

/// A host's view of the device, opened by its path.
fn opened(memory: &mut Memory, host: usize) -> Arc<OwnedView> {
    memory.view(host, Path::new("/dev/sim/pool")).expect("it lies there");
    Arc::clone(memory.views[host][0].as_ref().expect("opened"))
}

/// Two hosts and their views of one device, where nothing happens that no thread asked for.
fn pod(hosts: usize, window: u64) -> (Memory, Vec<Arc<OwnedView>>) {
    let mut memory = Memory::new(&topology(hosts, window), 7, no_machine_check);
    memory.set_chance(Chance {
        every: 0,
        prefetches: 0,
        reached: 0,
    });
    let views: Vec<_> = (0..hosts).map(|h| opened(&mut memory, h)).collect();
    views[0].resize(4 * MIB).expect("it is as long");
    (memory, views)
}

fn peek(view: &OwnedView, off: u64) -> u64 {
    view.get().peek(off)
}

fn load(view: &OwnedView, off: u64) -> u64 {
    view.touch(off, 8, Read);
    peek(view, off)
}

fn store(view: &OwnedView, off: u64, value: u64) {
    view.touch(off, 8, Write);
    view.get().poke(off, value);
}

fn flush(view: &OwnedView, off: u64) {
    view.write_back(off, 8);
    view.fence();
}

fn behind(memory: &Memory, off: u64) -> u64 {
    u64::from_le_bytes(memory.behind_caches(0, off, 8).try_into().expect("8 bytes"))
}

const POISONED: u64 = u64::from_le_bytes([POISON; 8]);

#[test]
fn what_was_not_fetched_is_poison() {
    let (_memory, views) = pod(1, 0);
    assert_eq!(peek(&views[0], 4096), POISONED);
    assert_eq!(load(&views[0], 4096), 0);
    assert_eq!(peek(&views[0], 4096 + 64), POISONED, "the next line was not asked for");
    views[0].invalidate(4096, 8);
    assert_eq!(peek(&views[0], 4096), POISONED);
}

#[test]
fn a_change_is_seen_after_flush_there_and_invalidation_here() {
    let (memory, views) = pod(2, 0);
    assert_eq!(load(&views[1], 0), 0);
    store(&views[0], 0, 5);
    assert_eq!((behind(&memory, 0), load(&views[1], 0)), (0, 0));
    views[0].write_back(0, 8);
    assert_eq!(behind(&memory, 0), 0, "on its way");
    views[0].fence();
    assert_eq!((behind(&memory, 0), load(&views[1], 0)), (5, 0), "stale, silently");
    assert_eq!(memory.traffic()[1].stale_reads, 1);
    views[1].invalidate(0, 8);
    assert_eq!(load(&views[1], 0), 5);
    assert_eq!(memory.hazards().total(), 0);
}

#[test]
fn hazards_say_what_and_where() {
    let (memory, views) = pod(2, 0);
    views[0].describe(&[("ring", 4096, 4096)]);
    store(&views[0], 4096, 1);
    store(&views[1], 4100 / 8 * 8, 2);
    views[0].invalidate(4096, 8);
    let hazards = memory.hazards();
    assert_eq!(hazards.of(HazardKind::TwoWriters), 1);
    assert_eq!(hazards.of(HazardKind::DirtyInvalidated), 1);
    assert_eq!(hazards.first[1].part, Some("ring"));
    assert!(
        hazards.first[1]
            .to_string()
            .starts_with("a dirty line was invalidated: pool 0x1000 (ring + 0x0)")
    );
    assert_eq!(behind(&memory, 4096), 1, "a dirty line can only be written back");
    // The other host's line is stale now: what it writes there is lost or loses.
    store(&views[1], 4104, 3);
    assert_eq!(memory.hazards().of(HazardKind::StaleWritten), 1);
}

#[test]
fn stores_that_were_not_announced_are_found() {
    let (memory, views) = pod(1, 0);
    let quietly = |off, value| views[0].get().poke(off, value);
    quietly(8192, 1);
    load(&views[0], 8192);
    load(&views[0], 8256);
    quietly(8256, 2);
    views[0].invalidate(8256, 8);
    assert_eq!(memory.hazards().of(HazardKind::Unannounced), 2);
}

#[test]
fn the_window_is_one_for_all() {
    let (memory, views) = pod(2, 8192);
    assert_eq!(views[0].window(), 8192);
    store(&views[0], 64, 9);
    assert_eq!(load(&views[1], 64), 9);
    store(&views[1], 64, 10);
    assert_eq!((load(&views[0], 64), behind(&memory, 64)), (10, 10));
    store(&views[0], 8192, 1);
    assert_eq!(load(&views[1], 8192), 0, "outside of it nothing is shared");
    assert_eq!(memory.hazards().total(), 0);
}

#[test]
fn a_small_cache_evicts_and_writes_back() {
    let mut topology = topology(1, 0);
    topology.hosts[0].cache = CacheSpec {
        bytes: 64 * 1024,
        ways: 4,
    };
    let mut memory = Memory::new(&topology, 1, no_machine_check);
    memory.set_chance(Chance {
        every: 0,
        prefetches: 0,
        reached: 0,
    });
    let view = opened(&mut memory, 0);
    for line in 0..4096u64 {
        store(&view, line * 64, line + 1);
    }
    let traffic = memory.traffic()[0].clone();
    assert_eq!(
        traffic.moved,
        Lines {
            fetched: 4096,
            written: 3072
        }
    );
    assert_eq!(traffic.moved.bytes_written(), 3072 * 64);
    assert_eq!((traffic.lines_touched, traffic.bytes_written), (4096, 4096 * 8));
    for line in 0..4096u64 {
        assert_eq!(load(&view, line * 64), line + 1, "line {line}");
    }
    // A touch as long as the cache is wide keeps its own lines.
    view.touch(MIB, 16384, Read);
    assert!((0..256).all(|line| peek(&view, MIB + 64 * line) == 0));
    assert_eq!(memory.hazards().total(), 0);
}

#[test]
fn a_lost_host_loses_its_dirty_lines() {
    let (mut memory, views) = pod(2, 0);
    for off in [0, 64, 128] {
        store(&views[0], off, 1);
    }
    flush(&views[0], 0);
    store(&views[0], 0, 2);
    let life = views[0].host();
    memory.host_lost(0);
    assert_ne!(views[0].host(), life);
    assert_eq!([0, 64, 128].map(|off| load(&views[1], off)), [1, 0, 0]);
    memory.set_chance(Chance {
        every: 0,
        prefetches: 0,
        reached: 16,
    });
    store(&views[0], 192, 7);
    memory.host_lost(0);
    assert_eq!(load(&views[1], 192), 7, "evicted in time");
}

#[test]
fn what_is_under_way_may_or_may_not_arrive() {
    let arrived = |seed| {
        let mut memory = Memory::new(&topology(1, 0), seed, no_machine_check);
        memory.set_chance(Chance {
            every: 0,
            prefetches: 0,
            reached: 0,
        });
        let view = opened(&mut memory, 0);
        store(&view, 0, 1);
        view.write_back(0, 8);
        store(&view, 0, 2);
        memory.host_lost(0);
        behind(&memory, 0)
    };
    let seen: std::collections::BTreeSet<u64> = (0..32).map(arrived).collect();
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        [0, 1],
        "never the bytes stored after the write-back"
    );
}

#[test]
fn a_line_that_was_written_back_and_changed_again_waits_for_the_next_flush() {
    let (memory, views) = pod(1, 0);
    store(&views[0], 0, 1);
    views[0].write_back(0, 8);
    store(&views[0], 0, 2);
    views[0].fence();
    assert_eq!(behind(&memory, 0), 1);
    flush(&views[0], 0);
    assert_eq!(behind(&memory, 0), 2);
    for value in [3, 2] {
        store(&views[0], 0, value);
        views[0].write_back(0, 8);
    }
    views[0].fence();
    assert_eq!(behind(&memory, 0), 2, "the newest of what was written back");
    views[0].store_uncached(8, 3);
    assert_eq!((behind(&memory, 0), behind(&memory, 8)), (2, 3));
    assert_eq!((load(&views[0], 0), load(&views[0], 8)), (2, 3));
}

#[test]
fn misses_cost_time_and_hits_none() {
    let (memory, views) = pod(1, 0);
    let took = |f: &dyn Fn()| {
        let begun = crate::clock::now();
        f();
        crate::clock::now().since(begun).0
    };
    let one = took(&|| _ = load(&views[0], 0));
    assert!((540..=560).contains(&one), "{one} ns for a line over a switch: 549");
    assert_eq!(took(&|| _ = load(&views[0], 0)), 0);
    let page = took(&|| views[0].touch(MIB, 16384, Read));
    assert!(
        (2000..=2600).contains(&page),
        "{page} ns for 16 KiB: 2.46 us less the call"
    );
    let next = took(&|| views[0].touch(MIB + 16384, 64, Read));
    assert!(next < 50, "{next} ns where the processor prefetched");
    drop(memory);
}

#[test]
fn own_memory_costs_what_its_profile_says_and_ends_with_its_process() {
    let (mut memory, _views) = pod(1, 0);
    memory.local(0, 1, MIB).expect("memory");
    let own = Arc::clone(&memory.local.last().expect("the newest").2);
    let begun = crate::clock::now();
    assert_eq!(load(&own, 4096), 0);
    let dram = profile::named("dram").expect("a profile").load_latency_ns as u64;
    assert_eq!(crate::clock::now().since(begun).0, dram);
    store(&own, 4096, 5);
    assert_eq!(load(&own, 4096), 5);
    memory.process_ended(0, 1);
    let sum = memory.traffic().pop().expect("the host's own memory comes last");
    assert_eq!((sum.device, sum.moved.fetched), (None, 1));
}

#[test]
fn a_device_is_locked_by_one_process_at_a_time() {
    let (mut memory, views) = pod(2, 0);
    assert!(views[0].try_lock() && !views[1].try_lock());
    views[1].unlock();
    assert!(!views[1].try_lock(), "it was not its lock");
    memory.process_ended(0, 0);
    assert!(views[1].try_lock());
    memory.host_lost(1);
    assert!(views[0].try_lock());
}

#[test]
fn a_lost_device_ends_its_users_and_is_empty_when_opened_anew() {
    let (mut memory, views) = pod(1, 0);
    store(&views[0], 0, 5);
    flush(&views[0], 0);
    memory.device_lost(0);
    assert_eq!((views[0].len(), load(&views[0], 0)), (0, 5), "the cache has it still");
    store(&views[0], 0, 6);
    let ends = |access: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err();
    assert!(ends(&|| views[0].touch(MIB, 8, Read)) && ends(&|| views[0].store_uncached(0, 7)));
    let view = opened(&mut memory, 0);
    view.resize(MIB).expect("there is room");
    assert_eq!(load(&view, 0), 0);
}

/// The same seed evicts and prefetches the same lines; and whatever happens by chance, a host sees its own stores.
#[test]
fn chance_is_the_seeds() {
    let run = |seed| {
        let mut memory = Memory::new(&topology(2, 0), seed, no_machine_check);
        memory.set_chance(Chance {
            every: 3,
            prefetches: 8,
            reached: 8,
        });
        let view = opened(&mut memory, 0);
        let mut random = cenote_base::random::Random(seed);
        let mut model = vec![0u64; 4096];
        for _ in 0..20_000 {
            let word = random.word() as usize % model.len();
            if random.word().is_multiple_of(2) {
                model[word] = random.word();
                store(&view, word as u64 * 40 / 8 * 8, model[word]);
            } else if random.word().is_multiple_of(16) {
                flush(&view, word as u64 * 40 / 8 * 8);
            } else {
                assert_eq!(load(&view, word as u64 * 40 / 8 * 8), model[word]);
            }
        }
        assert_eq!(memory.hazards().total(), 0);
        (memory.traffic(), memory.behind_caches(0, 0, 4096 * 40))
    };
    assert!(run(5) == run(5), "the same twice");
    assert!(run(5) != run(6));
}

/// `cargo test --release -p cenote-sim --lib memory -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn measure() {
    let (_memory, views) = pod(1, 0);
    let time = |name: &str, count: u64, f: &mut dyn FnMut(u64)| {
        let begun = cenote_base::rt::os::now();
        (0..count).for_each(f);
        let took = cenote_base::rt::os::now().since(begun);
        println!("{name}: {:.1} ns", took.0 as f64 / count as f64);
    };
    time("hit of a line", 50_000_000, &mut |i| {
        views[0].touch(i % 64 * 64, 8, Read)
    });
    time("hit of four lines", 10_000_000, &mut |i| {
        views[0].touch(i % 16 * 256, 256, Read)
    });
    time("miss, clean victim", 5_000_000, &mut |i| {
        views[0].touch(i.wrapping_mul(0x9E37_79B9) % 65536 * 64, 8, Read);
    });
    time("store and flush", 2_000_000, &mut |i| {
        store(&views[0], i % 64 * 64, i);
        flush(&views[0], i % 64 * 64);
    });
}
