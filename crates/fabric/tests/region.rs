//! Regions from their making to their end, and what is said when they do not fit.

use cenote_base::rt::{self, atomic::Ordering};
use cenote_base::{Error, rt::fs};
use cenote_fabric::{
    FileRange, Foothold, HEADER_SIZE, Identity, Kind, Region, RegionOptions, SharedDevice, State, coherence, is_blank,
    is_blank_at, list, peek, peek_at, remove,
};
use std::path::{Path, PathBuf};

/// A file name in shared memory that is removed in the end.
struct TempPath(PathBuf);

impl TempPath {
    fn new() -> Self {
        Self(format!("/dev/shm/cenote-test-{:x}", rt::random_u128()).into())
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = fs::remove(&self.0);
    }
}

const MIB: u64 = 1 << 20;

/// What another process has mapped of a region stays there when that is made anew, with zeros: else each look at it in
/// that moment would end the process.
#[test]
fn a_region_that_is_made_anew_stays_where_it_is_mapped() {
    let path = TempPath::new();
    let region = create(&path.0, 4 * MIB);
    region.reserve(0, 4 * MIB).unwrap();
    let last = 4 * MIB - 8;
    region.atomic_u64(last).store(7, Ordering::SeqCst);
    drop(region);
    let device = SharedDevice::open(&path.0).unwrap();
    let range = FileRange {
        offset: 0,
        bytes: device.len(),
    };
    let mapped = device.map(range).unwrap();
    assert_eq!(mapped.atomic_u64(last).load(Ordering::SeqCst), 7);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let word = mapped.atomic_u64(last).load(Ordering::SeqCst);
                assert!(word == 0 || word == 7, "{word}");
            }
        });
        (0..200).for_each(|_| drop(create(&path.0, 4 * MIB)));
        stop.store(true, Ordering::SeqCst);
        looks.join().unwrap();
    });
    assert_eq!(mapped.atomic_u64(last).load(Ordering::SeqCst), 0);
}

fn identity() -> Identity {
    Identity {
        database: 77,
        region: 3,
        directory: "/srv/db".into(),
        ..Identity::default()
    }
}

fn create(path: &Path, len: u64) -> Region {
    Region::create(path, len, identity(), RegionOptions::default()).expect("created")
}

fn open(path: &Path) -> cenote_base::Result<Region> {
    Region::open(path, RegionOptions::default())
}

#[test]
fn what_was_written_is_there_after_reopening() {
    let path = TempPath::new();
    let region = create(&path.0, 8 * MIB);
    assert_eq!(region.kind(), Kind::File);
    region.reserve_to(MIB).expect("reserved");
    region.span(HEADER_SIZE as u64, 64).copy_in(5, b"cenote");
    region.atomic_u64(8192).store(42, Ordering::Release);
    region.update_state(|s| s.durable = 99);
    drop(region);

    let region = open(&path.0).expect("opened");
    assert_eq!(region.identity().database, 77);
    assert_eq!(region.identity().directory, "/srv/db");
    assert_eq!(region.identity().length, 8 * MIB);
    assert!(region.span(HEADER_SIZE as u64, 64).eq(5, b"cenote"));
    assert_eq!(region.atomic_u64(8192).load(Ordering::Acquire), 42);
    assert_eq!(
        region.state(),
        State {
            durable: 99,
            ..State::default()
        }
    );
    assert_eq!(region.reserved(), MIB);
}

#[test]
fn a_region_has_one_user() {
    let path = TempPath::new();
    let region = create(&path.0, MIB);
    assert!(matches!(open(&path.0), Err(Error::Busy(_))));
    assert!(matches!(remove(&path.0), Err(Error::Busy(_))));
    assert!(peek(&path.0).expect("readable").in_use);
    drop(region);
    assert!(!peek(&path.0).expect("readable").in_use);
    let found = list(Path::new("/dev/shm")).expect("listed");
    let this = found.iter().find(|f| f.path == path.0).expect("it is listed");
    assert_eq!(this.content.as_ref().expect("valid").0.database, 77);
    remove(&path.0).expect("removed");
    assert!(open(&path.0).is_err());
}

/// A directory may have such a name, and a file may go between the listing and the look.
#[test]
fn what_is_no_file_is_not_listed() {
    let dir = std::env::temp_dir().join(format!("cenote-test-listing-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("cenote-directory")).expect("made");
    std::os::unix::fs::symlink("cenote-gone", dir.join("cenote-link")).expect("made");
    std::fs::write(dir.join("cenote-file"), b"no region").expect("written");
    let found = list(&dir).expect("listed");
    std::fs::remove_dir_all(&dir).expect("removed");
    let names: Vec<_> = found.iter().filter_map(|f| f.path.file_name()).collect();
    assert_eq!(names, ["cenote-file"]);
    assert!(found[0].content.is_err());
}

#[test]
fn others_join_what_its_user_has_open() {
    let path = TempPath::new();
    assert!(
        Region::join(&path.0, RegionOptions::default()).is_err(),
        "nothing is there"
    );
    let region = create(&path.0, MIB);
    region.reserve_to(16384).expect("reserved");
    let joined = Region::join(&path.0, RegionOptions::default()).expect("joined");
    assert_eq!(joined.identity(), region.identity());
    region.atomic_u64(8192).store(5, Ordering::Release);
    assert_eq!(joined.atomic_u64(8192).fetch_add(1, Ordering::AcqRel), 5);
    assert_eq!(region.atomic_u64(8192).load(Ordering::Acquire), 6);
    assert!(matches!(open(&path.0), Err(Error::Busy(_))));
    drop(region);
    // A process that joined has no lock.
    open(&path.0).expect("opened");
    assert_eq!(joined.atomic_u64(8192).load(Ordering::Acquire), 6);
}

#[test]
fn errors_name_the_field() {
    let path = TempPath::new();
    drop(create(&path.0, MIB));
    let file = fs::open(&path.0, fs::OpenOptions::WRITE).expect("opened");
    let broken = |offset: u64, byte: u8| {
        let mut old = [0];
        file.read_exact_at(&mut old, offset).expect("read");
        file.write_at(&[byte], offset).expect("written");
        let error = open(&path.0).expect_err("refused").to_string();
        file.write_at(&old, offset).expect("written");
        error
    };
    assert!(broken(0, b'X').contains("magic"));
    assert!(broken(8, 9).contains("format version: the region has 9"));
    assert!(broken(16, 1).contains("checksum"));
    file.set_len(2 * MIB).expect("resized");
    assert!(open(&path.0).expect_err("refused").to_string().contains("length"));
    file.set_len(100).expect("cut");
    assert!(open(&path.0).expect_err("refused").to_string().contains("length"));
    assert!(peek(&path.0).expect("readable").content.is_err());
}

/// Also where the database's own files are not those of the machine, as in the simulator.
#[test]
fn what_holds_nothing_or_half_a_region_is_blank() {
    let path = TempPath::new();
    let files = std::sync::Arc::new(cenote_testkit::faulty::MemFs::new());
    let blank = || fs::with(files.clone(), || is_blank(&path.0));
    drop(create(&path.0, MIB));
    assert!(!blank(), "a region");
    std::fs::write(&path.0, b"CENOTE..").expect("written");
    assert!(blank(), "its making was cut off");
    std::fs::write(&path.0, vec![0; 1 << 20]).expect("written");
    assert!(blank(), "zeros");
    std::fs::write(&path.0, b"something else").expect("written");
    assert!(!blank());
}

#[test]
fn reservations_grow_and_are_not_believed_without_their_blocks() {
    let path = TempPath::new();
    let region = create(&path.0, 200 * MIB);
    assert_eq!(region.reserved(), HEADER_SIZE as u64);
    let step = region.reserve_step(region.len()).expect("reserved");
    assert!(step > HEADER_SIZE as u64 && step < region.len());
    region.reserve_to(100 * MIB).expect("reserved");
    assert_eq!(region.reserved(), 100 * MIB);
    region.reserve(150 * MIB, MIB).expect("reserved apart");
    assert_eq!(region.reserved(), 100 * MIB);
    drop(region);
    let file = fs::open(&path.0, fs::OpenOptions::WRITE).expect("opened");
    file.punch(50 * MIB, 100 * MIB).expect("punched");
    assert_eq!(open(&path.0).expect("opened").reserved(), HEADER_SIZE as u64);
}

/// Small pages are gathered into huge ones under a user's hands: all of them are covered, and nothing is changed. (A
/// kernel that cannot says so at the first step.)
#[test]
fn huge_pages_hold_what_the_small_ones_held() {
    let path = TempPath::new();
    let region = create(&path.0, 9 * MIB);
    region.reserve_to(region.len()).expect("reserved");
    let words = || (0..region.len() / 8).skip(HEADER_SIZE / 8).step_by(509);
    words().for_each(|n| region.span(n * 8, 8).set_u64(0, n ^ 0xC0FFEE));
    let mut at = 0;
    while at < region.len() {
        let Ok(next) = region.collapse_step(at, region.len()) else {
            break;
        };
        assert!(next > at && next <= region.len());
        at = next;
    }
    assert!(words().all(|n| region.span(n * 8, 8).u64(0) == n ^ 0xC0FFEE));
}

/// Shared memory that runs full is an error that says how to enlarge it, and no SIGBUS.
#[test]
fn full_shared_memory_is_an_error() {
    let path = TempPath::new();
    let stat = rustix::fs::statvfs("/dev/shm").expect("known");
    let total = stat.f_blocks * stat.f_frsize;
    let region = create(&path.0, total + 64 * MIB);
    let error = region.reserve(MIB, total + MIB).expect_err("more than there is");
    let text = error.to_string();
    assert!(matches!(error, Error::Full(_)), "{text}");
    for hint in [
        "/dev/shm",
        "mount -o remount,size=",
        "--shm-size",
        "--memory-size",
        "free",
    ] {
        assert!(text.contains(hint), "{hint} is not in: {text}");
    }
    region.reserve_to(MIB).expect("what there is can still be had");
    region.span(HEADER_SIZE as u64, 100).copy_in(0, &[1; 100]);
}

#[test]
fn memory_regions_work_alike() {
    let region = Region::dram(4 * MIB, identity(), RegionOptions::default()).expect("made");
    region.reserve_to(4 * MIB).expect("populated");
    assert_eq!((region.kind(), region.path()), (Kind::Dram, None));
    let span = region.span(MIB, MIB);
    span.copy_in(0, &[7; 100]);
    coherence::flush(&region, MIB, 100);
    coherence::invalidate(&region, MIB, 100);
    assert_eq!(span.u8(99), 7);
    coherence::store_uncached(&region, MIB, 5);
    assert_eq!(coherence::load_uncached(&region, MIB), 5);
}

#[test]
fn a_numa_node_can_be_named() {
    let on = |node| RegionOptions {
        numa_node: Some(node),
        ..RegionOptions::default()
    };
    assert!(Region::dram(MIB, identity(), on(999)).is_err());
    // Node 0 is everywhere, but a sandbox may forbid asking.
    if let Ok(region) = Region::dram(MIB, identity(), on(0)) {
        region.reserve_to(MIB).expect("populated");
    }
}

/// The search for processes that map a file (`/proc/PID/maps`) finds it, though the file is empty yet.
#[test]
fn a_foothold_is_seen_as_long_as_it_lives() {
    let path = TempPath::new();
    let is_seen = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's");
        maps.contains(&*path.0.to_string_lossy())
    };
    assert!(Foothold::of(&path.0).expect("no error").is_none(), "there is no file");
    std::fs::File::create(&path.0).expect("made");
    let foothold = Foothold::of(&path.0).expect("no error").expect("a file");
    assert!(is_seen());
    // The process that has it is in no other's way.
    let region = Region::create(&path.0, MIB, identity(), RegionOptions::default()).expect("made");
    drop((region, foothold));
    assert!(!is_seen());
}

fn in_range(offset: u64, bytes: u64) -> RegionOptions {
    RegionOptions {
        range: Some(FileRange { offset, bytes }),
        ..RegionOptions::default()
    }
}

/// Two regions in one file: each sees its own bytes, has a lock of its own, and is made anew without the other.
#[test]
fn regions_share_a_file_by_ranges() {
    let path = TempPath::new();
    let file = std::fs::File::create(&path.0).expect("made");
    file.set_len(16 * MIB).expect("its length");
    let (one, two) = (in_range(2 * MIB, 4 * MIB), in_range(6 * MIB, 8 * MIB));
    assert!(is_blank_at(&path.0, one.range), "a hole");
    let made = |options| Region::create_new(&path.0, 4 * MIB, identity(), options).expect("made");
    let (first, second) = (made(one), made(two));
    assert_eq!((first.len(), second.len()), (4 * MIB, 4 * MIB));
    for (region, byte) in [(&first, 1), (&second, 2)] {
        region.reserve_to(4 * MIB).expect("room");
        region.span(0, region.len()).copy_in(3 * MIB as usize, &[byte; 64]);
    }
    assert_eq!((first.span(3 * MIB, 1).u8(0), second.span(3 * MIB, 1).u8(0)), (1, 2));
    let busy = Region::open(&path.0, one).expect_err("it is in use");
    assert!(matches!(busy, Error::Busy(_)), "{busy}");
    assert!(peek_at(&path.0, one.range).expect("looked at").in_use);
    drop(first);
    let found = peek_at(&path.0, one.range).expect("looked at");
    assert!(!found.in_use && found.content.is_ok_and(|(is, _)| is.length == 4 * MIB));
    let again = Region::open(&path.0, one).expect("in order");
    assert_eq!(again.span(3 * MIB, 1).u8(0), 1);
    drop(again);
    let anew = Region::create(&path.0, 4 * MIB, identity(), one).expect("made");
    assert_eq!((anew.span(3 * MIB, 1).u8(0), second.span(3 * MIB, 1).u8(0)), (0, 2));
    drop((anew, second));
    let joined = Region::open(&path.0, two).expect("shorter than its range");
    assert_eq!(
        (joined.len(), file.metadata().expect("there").len()),
        (4 * MIB, 16 * MIB)
    );
}

#[test]
fn a_range_that_the_file_does_not_hold_is_refused() {
    let path = TempPath::new();
    let absent = Region::create(&path.0, MIB, identity(), in_range(0, 2 * MIB));
    assert!(matches!(absent, Err(Error::Io { .. })), "a range makes no file");
    std::fs::File::create(&path.0)
        .expect("made")
        .set_len(4 * MIB)
        .expect("its length");
    for (offset, bytes) in [(3 * MIB, 2 * MIB), (100, MIB), (u64::MAX - 4095, 8192), (0, 0)] {
        let refused = Region::create(&path.0, MIB, identity(), in_range(offset, bytes));
        assert!(
            matches!(refused, Err(Error::Mismatch(_))),
            "{offset} {bytes}: {refused:?}"
        );
    }
    let small = Region::create(&path.0, 2 * MIB, identity(), in_range(0, MIB));
    assert!(matches!(small, Err(Error::Full(_))), "{small:?}");
    assert!(
        Foothold::at(&path.0, in_range(MIB, MIB).range)
            .expect("mapped")
            .is_some()
    );
}
