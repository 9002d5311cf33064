use super::*;
use cenote_base::rt::fs;

const DIR: &str = "/db";

/// A file system with a directory, and it in use.
fn with_fs<T>(f: impl FnOnce(&MemFs) -> T) -> T {
    let mem = MemFs::new();
    fs::with(Arc::new(mem.clone()), || {
        fs::create_dir_all(DIR).expect("made");
        f(&mem)
    })
}

fn contents(mem: &MemFs, path: &str) -> Option<Vec<u8>> {
    fs::with(Arc::new(mem.clone()), || fs::read(path).ok())
}

fn make(path: &str, bytes: &[u8]) -> File {
    let file = fs::open(path, OpenOptions::CREATE).expect("opened");
    file.write_at(bytes, 0).expect("written");
    file
}

#[test]
fn only_what_was_synced_survives() {
    with_fs(|mem| {
        let file = make("/db/a", b"first");
        file.sync_data().expect("synced");
        assert_eq!(contents(&mem.crash_clone(), "/db/a"), None, "the name was not synced");
        fs::sync_dir(DIR).expect("synced");
        file.write_at(b"second, longer", 0).expect("written");
        assert_eq!(contents(&mem.crash_clone(), "/db/a").expect("there"), b"first");
        assert_eq!(contents(&mem.kill_clone(), "/db/a").expect("there"), b"second, longer");
        file.sync_data().expect("synced");
        assert_eq!(contents(&mem.crash_clone(), "/db/a").expect("there"), b"second, longer");
    });
}

#[test]
fn renames_and_removals_survive_their_directory_only() {
    with_fs(|mem| {
        make("/db/a", b"x").sync_data().expect("synced");
        fs::sync_dir(DIR).expect("synced");
        fs::rename("/db/a", "/db/b").expect("renamed");
        assert_eq!(mem.crash_clone().files(), [Path::new("/db/a")]);
        fs::sync_dir(DIR).expect("synced");
        assert_eq!(mem.crash_clone().files(), [Path::new("/db/b")]);
        fs::remove("/db/b").expect("removed");
        assert_eq!(mem.crash_clone().files(), [Path::new("/db/b")]);
        assert!(mem.files().is_empty());
    });
}

#[test]
fn replacing_a_file_leaves_the_old_or_the_new() {
    with_fs(|mem| {
        fs::replace("/db/control", b"old").expect("replaced");
        for changes in 0..8 {
            let now = mem.kill_clone();
            now.halt_after(changes);
            let done = fs::with(Arc::new(now.clone()), || fs::replace("/db/control", b"new")).is_ok();
            for seed in 0..20 {
                let after = contents(&now.crash_clone_torn(seed), "/db/control").expect("there");
                assert!(
                    after == b"new" || after == b"old" && !done,
                    "{changes} {seed} {after:?}"
                );
            }
        }
    });
}

/// Two processes replace one file, and the first is stopped over it: it does not write to what the second has made.
#[test]
fn what_replaces_a_file_is_no_other_writers_file() {
    with_fs(|mem| {
        fs::replace("/db/control", b"old").expect("replaced");
        let stopped = fs::Replacement::write("/db/control", b"stopped").expect("written");
        let next = fs::Replacement::write("/db/control", b"next").expect("written");
        assert_eq!(mem.files().len(), 3, "each has its own file");
        next.publish().expect("renamed");
        assert_eq!(contents(mem, "/db/control").expect("there"), b"next");
        make("/db/control.next", b"of an earlier version");
        make("/db/controls.next", b"another file's");
        fs::remove_unpublished("/db/control").expect("removed");
        assert_eq!(mem.files(), [Path::new("/db/control"), Path::new("/db/controls.next")]);
        assert!(stopped.publish().is_err(), "what it had written is gone");
        assert_eq!(contents(mem, "/db/control").expect("there"), b"next");
        drop(fs::Replacement::write("/db/control", b"given up").expect("written"));
        assert_eq!(mem.files().len(), 2);
    });
}

#[test]
fn torn_crashes_keep_some_sectors() {
    with_fs(|mem| {
        let file = make("/db/a", &[1; 8192]);
        file.sync_data().expect("synced");
        fs::sync_dir(DIR).expect("synced");
        file.write_at(&[2; 8192], 0).expect("written");
        let mut seen = [false; 3];
        for seed in 0..50 {
            let after = contents(&mem.crash_clone_torn(seed), "/db/a").expect("there");
            for sector in after.chunks(512) {
                assert!(sector.iter().all(|b| *b == sector[0]), "sectors are whole");
            }
            let new = after.iter().filter(|b| **b == 2).count();
            seen[usize::from(new > 0) + usize::from(new == 8192)] = true;
        }
        assert!(seen[0] && seen[1], "{seen:?}");
    });
}

#[test]
fn a_failed_sync_loses_for_good() {
    with_fs(|mem| {
        let file = make("/db/a", b"old");
        file.sync_data().expect("synced");
        fs::sync_dir(DIR).expect("synced");
        mem.fail_syncs(0, 1);
        file.write_at(b"new", 0).expect("written");
        assert!(file.sync_data().is_err());
        file.sync_data().expect("succeeds, and covers nothing");
        assert_eq!(fs::read("/db/a").expect("read"), b"new");
        assert_eq!(contents(&mem.crash_clone(), "/db/a").expect("there"), b"old");
    });
}

#[test]
fn disks_fill_and_holes_take_no_space() {
    with_fs(|mem| {
        mem.set_capacity(Some(64 << 10));
        let file = make("/db/a", &[1; 4096]);
        file.allocate(0, 32 << 10).expect("fits");
        let full = file.allocate(0, 128 << 10).expect_err("does not fit");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        file.write_at(&[3; 10], 1 << 30).expect("a sparse file");
        assert_eq!(file.len().expect("known"), (1 << 30) + 10);
        file.punch(0, 32 << 10).expect("punched");
        assert_eq!(file.allocated().expect("known"), 4096);
        let mut byte = [9];
        file.read_exact_at(&mut byte, 100).expect("read");
        assert_eq!(byte, [0]);
        file.set_len(5).expect("cut");
        file.set_len(4096).expect("grown");
        assert_eq!(fs::read("/db/a").expect("read"), [0; 4096]);
    });
}

#[test]
fn flips_locks_short_transfers_and_unreadable_files() {
    with_fs(|mem| {
        mem.tear_transfers(7);
        let bytes: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        let file = make("/db/a", &bytes);
        assert_eq!(fs::read("/db/a").expect("read"), bytes);
        mem.flip("/db/a", 5000, 0x10).expect("flipped");
        assert_eq!(fs::read("/db/a").expect("read")[5000], bytes[5000] ^ 0x10);
        assert!(file.lock_exclusive().expect("asked"));
        let other = fs::open("/db/a", OpenOptions::WRITE).expect("opened");
        assert!(!other.lock_exclusive().expect("asked"));
        drop(file);
        assert!(other.lock_exclusive().expect("asked"));
        mem.fail_reads_of("/db/a");
        assert!(fs::read("/db/a").is_err());
        mem.heal();
        assert!(
            fs::open("/db/a", OpenOptions::READ)
                .expect("opened")
                .write_at(b"x", 0)
                .is_err()
        );
        assert_eq!(fs::list(DIR).expect("listed"), ["a"]);
        fs::remove_dir_all(DIR).expect("removed");
        assert!(!fs::exists("/db/a").expect("asked"));
    });
}

/// Threads started inside use the same files.
#[test]
fn threads_inherit_the_files() {
    with_fs(|mem| {
        rt::spawn("writer", || make("/db/t", b"t")).join().expect("no panic");
        assert_eq!(mem.files(), [Path::new("/db/t")]);
    });
}

/// A drive whose latencies can be told apart on a busy machine.
fn slow_drive() -> Drive {
    Drive::new(DriveSpeed {
        read_latency: Nanos::from_millis(4),
        sync_latency: Nanos::from_millis(7),
        bytes_per_second: 1e8,
        operations_per_second: 1e6,
    })
}

#[test]
fn a_drive_queues_what_it_transfers() {
    let drive = slow_drive();
    let (now, later) = (Nanos::from_secs(1), Nanos::from_secs(2));
    assert_eq!(drive.read(now, 100_000), Nanos::from_millis(1 + 4));
    assert_eq!(drive.read(now, 100_000), Nanos::from_millis(2 + 4), "behind the first");
    assert_eq!(drive.write(now, 1_000_000), Nanos::ZERO, "buffered");
    assert_eq!(drive.sync(now), Nanos::from_millis(12 + 7), "for all that is queued");
    assert_eq!(
        drive.write(now, 20_000_000),
        Nanos::from_millis(212) - BUFFERED,
        "too far ahead"
    );
    assert_eq!(drive.read(later, 100), Nanos(4_001_000), "idle again");
    let used = drive.counters();
    assert_eq!(
        (used.reads, used.bytes_read, used.writes, used.syncs),
        (3, 200_100, 2, 1)
    );
}

#[test]
fn operations_take_the_time_of_the_drive_and_batches_of_the_slowest() {
    with_fs(|mem| {
        let file = make("/db/a", &[1; 65536]);
        mem.set_drive(Some(slow_drive()));
        let took = |f: &dyn Fn()| {
            let begin = rt::now();
            f();
            rt::now() - begin
        };
        let read = took(&|| file.read_exact_at(&mut [0; 4096], 0).expect("read"));
        assert!(read >= Nanos::from_millis(4), "{read}");
        let synced = took(&|| file.sync_data().expect("synced"));
        assert!(synced >= Nanos::from_millis(7), "{synced}");
        let requests = |n: u64| {
            (0..n)
                .map(|i| IoRequest::read(file.clone(), i * 512, vec![0; 512].into(), i))
                .collect()
        };
        let batch = took(&|| {
            let batch = fs::submit(requests(64));
            assert!(!batch.is_complete());
            assert!(batch.complete().iter().all(|r| matches!(r.result, Ok(512))));
        });
        assert!(
            (Nanos::from_millis(4)..Nanos::from_millis(128)).contains(&batch),
            "{batch}"
        );
    });
}

#[test]
fn locks_of_a_killed_owner_are_free_again() {
    with_fs(|mem| {
        make("/db/a", b"x");
        let open = |owner| {
            mem.of_process(owner)
                .open(Path::new("/db/a"), OpenOptions::WRITE)
                .expect("opened")
        };
        let (dead, other) = (open(1), open(2));
        assert!(dead.lock_exclusive().expect("asked"));
        assert!(!other.lock_exclusive().expect("asked"));
        mem.end_process(2);
        assert!(!other.lock_exclusive().expect("asked"), "not this owner's");
        mem.end_process(1);
        assert!(other.lock_exclusive().expect("asked"));
        drop(dead);
        assert!(
            !open(3).lock_exclusive().expect("asked"),
            "the dead handle frees no other handle's lock"
        );
    });
}

#[test]
fn a_crash_in_place_is_seen_through_all_handles() {
    with_fs(|mem| {
        let file = make("/db/a", b"kept");
        file.sync_data().expect("synced");
        fs::sync_dir(DIR).expect("synced");
        file.write_at(b"lost", 0).expect("written");
        make("/db/b", b"lost");
        assert!(file.lock_exclusive().expect("asked"));
        mem.crash(None);
        assert_eq!(
            (contents(mem, "/db/a"), contents(mem, "/db/b")),
            (Some(b"kept".to_vec()), None)
        );
        let again = fs::open("/db/a", OpenOptions::WRITE).expect("opened");
        assert!(again.lock_exclusive().expect("asked"));
    });
}

/// How 2000 writes and reads of a file go under a plan.
fn under(plan: FaultPlan, seed: u64) -> (FaultCounts, u64, u64) {
    with_fs(|mem| {
        let file = make("/db/pages", &[0; 4096]);
        mem.set_plan(plan.clone(), seed);
        let (mut errors, mut wrong) = (0, 0);
        let mut page = [0; 4096];
        for i in 0..2000u32 {
            let bytes = [i as u8; 4096];
            let written = file.write_at(&bytes, 0).is_ok();
            errors += u64::from(!written);
            match file.read_exact_at(&mut page, 0) {
                Ok(()) => wrong += u64::from(written && page != bytes),
                Err(_) => errors += 1,
            }
        }
        (mem.faults_met(), errors, wrong)
    })
}

#[test]
fn plans_strike_as_often_as_they_say_and_the_same_way_twice() {
    let rate = 0.05;
    let none = FaultPlan::default();
    let plan = |set: fn(&mut FaultPlan, f64)| {
        let mut plan = none.clone();
        set(&mut plan, rate);
        under(plan, 7)
    };
    assert_eq!(under(none.clone(), 7), (FaultCounts::default(), 0, 0));
    let (met, errors, wrong) = plan(|p, r| p.failed_read = r);
    assert!((50..150).contains(&met.failed_reads) && errors == met.failed_reads && wrong == 0);
    let (met, errors, wrong) = plan(|p, r| p.failed_write = r);
    assert!((50..150).contains(&met.failed_writes) && errors == met.failed_writes && wrong == 0);
    let (met, errors, _) = plan(|p, r| p.full = r);
    assert!((50..150).contains(&met.full) && errors == met.full);
    let (met, errors, wrong) = plan(|p, r| p.flipped_read = r);
    assert!((50..150).contains(&met.flipped_reads) && errors == 0 && wrong == met.flipped_reads);
    let (met, errors, wrong) = plan(|p, r| p.flipped_write = r);
    assert!((50..150).contains(&met.flipped_writes) && errors == 0 && wrong == met.flipped_writes);
    let (met, errors, wrong) = plan(|p, r| p.short = r);
    assert!(met.short > 100 && (errors, wrong) == (0, 0), "callers go on");
    let elsewhere = FaultPlan {
        failed_read: 1.0,
        files: "wal".into(),
        ..none
    };
    assert_eq!(under(elsewhere, 7).1, 0);
    for seed in 0..20 {
        let mut failing = FaultPlan::failing(seed);
        failing.stall = 0.0;
        assert_eq!(under(failing.clone(), seed), under(failing, seed));
    }
}

#[test]
fn a_drawn_sync_failure_loses_what_it_was_for() {
    with_fs(|mem| {
        let file = make("/db/a", b"old");
        file.sync_data().expect("synced");
        fs::sync_dir(DIR).expect("synced");
        file.write_at(b"new", 0).expect("written");
        let plan = FaultPlan {
            failed_sync: 1.0,
            ..FaultPlan::default()
        };
        mem.set_plan(plan, 1);
        assert!(file.sync_data().is_err() && fs::sync_dir(DIR).is_err());
        mem.set_plan(FaultPlan::default(), 1);
        file.sync_data().expect("synced, but not that");
        assert_eq!(contents(&mem.crash_clone(), "/db/a").expect("there"), b"old");
    });
}
