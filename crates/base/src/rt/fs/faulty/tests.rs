use super::super as fs;
use super::*;

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
