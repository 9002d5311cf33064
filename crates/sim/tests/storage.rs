//! Storage of simulated hosts: its time, shared and alone, and what a killed process and a lost host leave of it.

use cenote_base::rt::fs::{self, File, IoRequest, OpenOptions};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile::named;
use cenote_sim::{Exit, Pace, Topology, World};
use cenote_testkit::faulty::{Drive, FaultPlan, MemFs};
use std::sync::Arc;

fn world(seed: u64, pace: Pace) -> World {
    World::new(seed, pace, Topology::hosts(2, 4)).expect("possible")
}

fn drive() -> Drive {
    Drive::of(&named("storage").expect("known"))
}

fn made(path: &str, bytes: usize) -> File {
    let file = fs::open(path, OpenOptions::CREATE).expect("opened");
    file.write_at(&vec![1; bytes], 0).expect("written");
    file
}

fn took(f: impl FnOnce()) -> u64 {
    let begin = rt::now();
    f();
    (rt::now() - begin).0
}

/// Nearly so long: waking takes a context switch, and more where vCPUs are few.
fn about(time: u64, expected: u64) {
    assert!((expected..expected + 3000).contains(&time), "{time} ns, not {expected}");
}

#[test]
fn files_take_the_time_of_their_drive() {
    world(1, Pace::Project).run(|w| {
        w.files(0).set_drive(Some(drive()));
        let process = w.process(0, "one", || {
            let file = made("a", 1 << 20);
            about(took(|| file.sync_data().expect("synced")), (1 << 20) / 3 + 50_000);
            let page = || IoRequest::read(file.clone(), 0, vec![0; 16384].into(), 0);
            about(took(|| _ = page().run()), 60_000 + 16384 / 3);
            let batch = (0..64).map(|_| page()).collect();
            about(took(|| _ = fs::submit(batch).complete()), 60_000 + 64 * 16384 / 3);
        });
        assert_eq!(process.join(), Exit::Returned);
        let used = w.files(0).drive().expect("set").counters();
        assert_eq!((used.reads, used.bytes_read, used.syncs), (65, 65 * 16384, 1));
    });
}

#[test]
fn hosts_share_a_drive_or_files() {
    world(1, Pace::Project).run(|w| {
        let shared = MemFs::new();
        shared.set_drive(Some(drive()));
        (0..2).for_each(|host| w.set_files(host, &shared));
        let first = w.process(0, "writes", || made("a", 30 << 20).sync_data().expect("synced"));
        first.join();
        let second = w.process(1, "reads", || assert_eq!(fs::read("a").expect("there").len(), 30 << 20));
        assert_eq!(second.join(), Exit::Returned);
        let (one, two) = (MemFs::new(), MemFs::new());
        let both = drive();
        for (host, files) in [&one, &two].into_iter().enumerate() {
            files.set_drive(Some(both.clone()));
            w.set_files(host, files);
        }
        let write = |host| w.process(host, "writes", || made("b", 30 << 20).sync_data().expect("synced"));
        let begin = rt::now();
        [write(0), write(1)].iter().for_each(|p| _ = p.join());
        let together = (rt::now() - begin).0;
        assert!(
            together > 2 * (30 << 20) / 3,
            "one waits for the other's bytes: {together}"
        );
    });
}

#[test]
fn a_lost_host_loses_what_it_had_not_synced_and_keeps_its_drive() {
    let mut torn = 0;
    for seed in 0..20 {
        world(seed, Pace::Explore).run(|w| {
            w.files(0).set_drive(Some(drive()));
            let process = w.process(0, "dies", || {
                let file = made("a", 8192);
                file.sync_data().expect("synced");
                fs::sync_dir("").expect("synced");
                file.write_at(&[2; 8192], 0).expect("written");
                rt::sleep(Nanos::from_secs(100));
            });
            rt::sleep(Nanos::from_secs(1));
            w.lose_host(0);
            assert_eq!(process.join(), Exit::Killed);
            let left = Arc::new(rt::Mutex::new(Vec::new()));
            let theirs = Arc::clone(&left);
            let again = w.process(0, "again", move || *theirs.lock() = fs::read("a").expect("there"));
            assert_eq!(again.join(), Exit::Returned);
            let left = left.lock();
            assert!(left.len() == 8192 && left.chunks(512).all(|s| s.iter().all(|b| *b == s[0])));
            torn += u32::from(left.contains(&1) && left.contains(&2));
            assert!(w.files(0).drive().is_some());
        });
    }
    assert!(torn > 0);
}

#[test]
fn faults_of_a_plan_strike_while_a_world_runs() {
    let mut failed = 0;
    for seed in 0..40 {
        world(seed, Pace::Explore).run(|w| {
            let file = made_by(w);
            w.files(0).set_plan(FaultPlan::failing(seed), seed);
            let process = w.process(0, "works", move || {
                for i in 0..400u64 {
                    let _ = file.write_at(&[i as u8; 512], i * 512);
                    let _ = file.read_at(&mut [0; 512], i * 512);
                    let _ = file.sync_data();
                }
            });
            assert_eq!(process.join(), Exit::Returned);
            let met = w.files(0).faults_met();
            failed += met.failed_reads + met.failed_writes + met.failed_syncs + met.full;
        });
    }
    assert!(failed > 40, "{failed}");
}

/// A file on host 0, opened from outside of all hosts.
fn made_by(w: &World) -> File {
    use cenote_base::rt::fs::FileSystem;
    w.files(0).open("a".as_ref(), OpenOptions::CREATE).expect("opened")
}
