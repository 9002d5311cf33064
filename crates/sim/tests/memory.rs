//! The engine over incoherent memory: what it does is announced, flushed and invalidated, or it would show here.

#[allow(dead_code)]
mod books;

use books::{Noted, options};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{self, Fault};
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, MemoryKind, Survive};
use cenote_sim::memory::HazardKind;
use cenote_sim::{CacheSpec, DeviceSpec, Exit, Outcome, Pace, Topology, World, seeds};
use std::panic::catch_unwind;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn pod(hosts: usize, cache: u64) -> Topology {
    let mut topology = Topology::hosts(hosts, 2);
    for host in &mut topology.hosts {
        host.cache = CacheSpec { bytes: cache, ways: 16 };
    }
    topology.with_device(DeviceSpec::new("pool", 32 * MIB, "cxl-switch").expect("a profile"))
}

fn no_hazards(w: &World) {
    let hazards = w.hazards();
    assert_eq!(hazards.total(), 0, "{:#?}", hazards.first);
}

/// Opens the engine on a host, works until `commits` more were acknowledged, stops in order.
fn one_life(w: &World, host: usize, kind: MemoryKind, survive: Survive, noted: &Noted, commits: u64) {
    let theirs = noted.clone();
    let process = w.process(host, "engine", move || {
        let engine = Engine::open(options(kind, 16 * MIB, survive)).expect("the engine opens");
        books::prepare(&engine);
        books::verify(&engine, &theirs.all(), "at the start");
        let stop = Arc::new(AtomicBool::new(false));
        let goal = theirs.sum() + commits;
        let (counted, until) = (theirs.clone(), stop.clone());
        let watch = rt::spawn("watch", move || {
            while counted.sum() < goal {
                rt::sleep(Nanos::from_micros(200));
            }
            until.store(true, Ordering::SeqCst);
        });
        books::work(&engine, &theirs, &stop);
        watch.join().expect("no panic");
        engine.shutdown().expect("a clean end");
    });
    assert_eq!(process.join(), Exit::Returned);
}

fn announce(seed: u64, kind: MemoryKind, survive: Survive) -> Outcome<u64> {
    println!("CENOTE_SEED={seed}");
    let world = World::new(seed, Pace::Explore, pod(1, 256 << 10)).expect("a possible topology");
    world.run(|w| {
        let noted = Noted::new();
        one_life(w, 0, kind, survive, &noted, 8);
        no_hazards(w);
        w.traffic().iter().map(|t| t.moved.fetched).sum()
    })
}

#[test]
fn the_engine_announces_what_it_does() {
    for seed in seeds(3) {
        announce(seed, MemoryKind::Cxl, Survive::Process);
        announce(seed, MemoryKind::Cxl, Survive::Host);
        announce(seed, MemoryKind::Dram, Survive::Process);
    }
}

#[test]
fn the_same_seed_moves_the_same_lines() {
    let seed = seeds(1).start;
    let once = announce(seed, MemoryKind::Cxl, Survive::Host);
    assert_eq!(once, announce(seed, MemoryKind::Cxl, Survive::Host));
}

/// After a clean stop any host may go on; each meets its own old lines again, two lives later.
fn take_turns(seed: u64, hosts: usize) {
    println!("CENOTE_SEED={seed}");
    let world = World::new(seed, Pace::Explore, pod(hosts, 1 << 20)).expect("a possible topology");
    world.run(|w| {
        let noted = Noted::new();
        let survive = if seed.is_multiple_of(2) {
            Survive::Process
        } else {
            Survive::Host
        };
        for turn in 0..4 {
            let host = turn % hosts;
            w.set_files(host, &w.files(0));
            one_life(w, host, MemoryKind::Cxl, survive, &noted, 3);
            no_hazards(w);
        }
    });
}

#[test]
fn hosts_take_turns() {
    seeds(4).for_each(|seed| take_turns(seed, 2));
}

/// Opening forgets no lines: the second turn of a host believes what it has from the first.
#[test]
fn lines_of_a_former_use_are_found_if_they_are_believed() {
    let _broken = fault::plant(Fault::Invalidate);
    let believed = |seed| catch_unwind(|| take_turns(seed, 2)).is_ok();
    assert!(
        !seeds(8).all(believed),
        "stale lines were believed, and nothing came of it under any seed"
    );
}

#[test]
fn a_killed_process_is_followed_on_its_host() {
    for seed in seeds(4) {
        println!("CENOTE_SEED={seed}");
        let world = World::new(seed, Pace::Explore, pod(1, 512 << 10)).expect("a possible topology");
        world.run(|w| {
            let noted = Noted::new();
            for _ in 0..3 {
                let theirs = noted.clone();
                let process = w.process(0, "engine", move || {
                    let engine = Engine::open(options(MemoryKind::Cxl, 16 * MIB, Survive::Process)).expect("it opens");
                    books::prepare(&engine);
                    books::verify(&engine, &theirs.all(), "after a kill");
                    books::work(&engine, &theirs, &Arc::default());
                });
                let goal = noted.sum() + 1 + w.draw() % 6;
                while noted.sum() < goal && process.is_running() {
                    rt::sleep(Nanos::from_micros(100));
                }
                rt::sleep(Nanos(w.draw() % 1_000_000));
                assert!(process.is_running(), "{:?}", process.join());
                process.kill();
            }
            assert_eq!(w.hazards().of(HazardKind::Unannounced), 0);
        });
    }
}
