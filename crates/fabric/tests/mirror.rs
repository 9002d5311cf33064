//! Mirrors: what was flushed is in them, in the order in which it was, whatever else goes on meanwhile. `CENOTE_SEED`
//! repeats the choices.

use cenote_base::Error;
use cenote_base::random::Random;
use cenote_base::rt::{self, atomic::Ordering, fs};
use cenote_fabric::mirror::{FILL_STEP, MirrorFile, Side};
use cenote_fabric::{HEADER_SIZE, Identity, LINE, Region, RegionMemory, RegionOptions, State, coherence};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const MIB: u64 = 1 << 20;
const LEN: u64 = 8 * MIB;

/// A file name in shared memory that is removed in the end.
struct TempPath(PathBuf);

impl TempPath {
    fn new() -> Self {
        Self(format!("/dev/shm/cenote-test-{:x}", rt::random_u128()).into())
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("readable")
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = fs::remove(&self.0);
    }
}

fn seed() -> u64 {
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rt::random() >> 16);
    println!("CENOTE_SEED={seed}");
    seed
}

fn region(path: &TempPath) -> Region {
    let region = Region::create(&path.0, LEN, Identity::default(), RegionOptions::default()).expect("created");
    region.reserve_to(4 * MIB).expect("room");
    region
}

fn attach(region: &Region, path: &TempPath) -> Arc<MirrorFile> {
    let mirror = Arc::new(MirrorFile::create(&path.0, region.len()).expect("made"));
    region
        .attach_mirror(Arc::clone(&mirror) as Arc<dyn Side>)
        .expect("room");
    mirror
}

fn fill(region: &Region) {
    let mut at = 0;
    loop {
        let next = region.fill_mirror_step(at);
        assert!(next - at <= FILL_STEP);
        if next == at {
            return;
        }
        at = next;
    }
}

/// What is stored and not flushed is not in the mirror; what is flushed is, and so are the region's own words and
/// states, space that is reserved later, and words past the cache.
#[test]
fn a_mirror_gets_what_is_written_back() {
    let (path, other) = (TempPath::new(), TempPath::new());
    let region = region(&path);
    region.span(65536, 64).set_u64(0, 7);
    assert!(!region.is_mirrored());
    assert_eq!(region.fill_mirror_step(0), 0, "there is nothing to fill");
    let mirror = attach(&region, &other);
    assert!(region.is_mirrored() && mirror.is_there());
    fill(&region);
    region.span(65536, 64).set_u64(0, 8);
    region.span(131_072, 8192).set_u64(100, 9);
    coherence::flush(&region, 131_072 + 100, 8);
    coherence::store_uncached(&region, 200_000, 10);
    region.set_state(State {
        durable: 11,
        ..State::default()
    });
    region.reserve_to(6 * MIB).expect("room");
    region.span(5 * MIB, 64).set_u64(8, 12);
    coherence::flush(&region, 5 * MIB, 64);
    drop(region);
    drop(mirror);
    let promoted = Region::open(&other.0, RegionOptions::default()).expect("the mirror is a region");
    let word = |at: u64| promoted.span(at, 8).u64(0);
    assert_eq!(word(65536), 7, "what was not flushed is as it was when it was filled");
    assert_eq!((word(131_172), word(200_000), word(5 * MIB + 8)), (9, 10, 12));
    assert_eq!((promoted.state().durable, promoted.reserved()), (11, 6 * MIB));
}

#[test]
fn a_mirror_that_was_left_gets_nothing_more() {
    let (path, other) = (TempPath::new(), TempPath::new());
    let region = region(&path);
    let mirror = attach(&region, &other);
    let taken = MirrorFile::open(&other.0, LEN).err();
    assert!(matches!(taken, Some(Error::Busy(_))), "{taken:?}");
    region.detach_mirror();
    region.span(65536, 64).set_u64(0, 7);
    coherence::flush(&region, 65536, 64);
    assert_eq!(region.fill_mirror_step(0), 0);
    std::fs::remove_file(&other.0).expect("removed");
    assert!(!mirror.is_there());
    drop(mirror);
    let gone = MirrorFile::open(&other.0, LEN).err();
    assert!(matches!(gone, Some(Error::Io { .. })), "{gone:?}");
    std::fs::write(&other.0, vec![0; 4096]).expect("written");
    let short = MirrorFile::open(&other.0, LEN).err();
    assert!(matches!(short, Some(Error::Mismatch(_))), "{short:?}");
}

/// What a former process mirrored goes on where it was: nothing of it is lost by attaching it again.
#[test]
fn a_mirror_is_attached_again() {
    let (path, other) = (TempPath::new(), TempPath::new());
    let first = region(&path);
    drop(attach(&first, &other));
    fill(&first);
    first.span(65536, 64).set_u64(0, 7);
    coherence::flush(&first, 65536, 64);
    drop(first);
    let again = Region::open(&path.0, RegionOptions::default()).expect("there");
    let mirror = MirrorFile::open(&other.0, again.len()).expect("there");
    again.attach_mirror(Arc::new(mirror)).expect("room");
    again.span(65536, 64).set_u64(8, 8);
    coherence::flush(&again, 65536, 64);
    drop(again);
    let bytes = other.bytes();
    assert_eq!(
        bytes[65536..65536 + 16],
        [7u64.to_le_bytes(), 8u64.to_le_bytes()].concat()
    );
}

/// Threads write lines that others write too, and flush them; meanwhile mirrors come, are filled and go. In the end the
/// last one has every flushed line.
#[test]
fn a_mirror_equals_the_region_when_all_is_flushed() {
    let seed = seed();
    let (path, mirrors) = (TempPath::new(), [TempPath::new(), TempPath::new(), TempPath::new()]);
    let region = region(&path);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (region, stop) = (&region, &stop);
            scope.spawn(move || {
                let mut random = Random(seed + thread);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Few lines, so that copies of one meet; some ranges go over several stripes.
                    let at = 65536 + random.below(40) * LINE as u64;
                    let far = if random.below(8) == 0 { 9000 } else { 8 };
                    region.atomic_u64(at).fetch_add(1, Ordering::AcqRel);
                    region.atomic_u64(at + far / 8 * 8).fetch_add(1, Ordering::AcqRel);
                    coherence::flush(region, at, far as usize + 8);
                }
            });
        }
        for mirror in &mirrors {
            let attached = attach(&region, mirror);
            for _ in 0..20 {
                fill(&region);
            }
            drop(attached);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let (wanted, found) = (path.bytes(), mirrors[2].bytes());
    let differs = wanted.iter().zip(&found).position(|(a, b)| a != b);
    assert_eq!(
        (wanted.len(), differs),
        (found.len(), None),
        "the first byte that differs"
    );
    assert!(
        wanted[65536..65536 + 8].iter().any(|b| *b != 0),
        "something was written"
    );
}

/// One line's words are stored last to first, each line after the one before it is flushed. A reader that looks at the
/// mirror at any moment finds no line ahead of the one before, and in no line a first word ahead of the others: also
/// while it is filled and after that.
#[test]
fn a_mirror_is_never_ahead_of_what_was_before() {
    let (path, other) = (TempPath::new(), TempPath::new());
    let region = region(&path);
    let lines = [65536u64, 200_000 / 64 * 64, HEADER_SIZE as u64, 3 * MIB];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut turn = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                turn += 1;
                for at in lines {
                    for word in (0..8).rev() {
                        region.span(at, 64).set_u64(8 * word, turn);
                    }
                    coherence::flush(&region, at, LINE);
                }
            }
            turn
        });
        let mirror = attach(&region, &other);
        fill(&region);
        let seen = {
            // A look that is no copy of its own: the words of the mapped file.
            let view = Region::join(&other.0, RegionOptions::default()).expect("it has the region's header by now");
            let filler = scope.spawn(|| (0..30).for_each(|_| fill(&region)));
            let mut looks = 0u64;
            while !filler.is_finished() || looks < 200_000 {
                looks += 1;
                // Last line first: what is found in it was flushed in the others before.
                let mut least = 0;
                for at in lines.into_iter().rev() {
                    let words: [u64; 8] =
                        core::array::from_fn(|i| view.atomic_u64(at + 8 * i as u64).load(Ordering::Acquire));
                    assert!(words[0] >= least, "line {at} has {words:?}, a later one {least}");
                    let behind = words.iter().any(|word| *word < words[0]);
                    assert!(!behind, "line {at} has {words:?}");
                    least = words[0];
                }
            }
            view.atomic_u64(lines[0]).load(Ordering::Acquire)
        };
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let turns = writer.join().expect("no panic");
        assert!(seen > 1 && turns >= seen, "{turns} turns, {seen} seen");
        drop(mirror);
    });
}

/// A file that was brought back with holes has fewer blocks than its header says are reserved: all of it that may hold
/// something is in the mirror when that is filled.
#[test]
fn what_was_reserved_before_is_filled_of_a_sparse_region() {
    let (path, other) = (TempPath::new(), TempPath::new());
    let first = region(&path);
    first.span(3 * MIB, 64).set_u64(0, 7);
    let reserved = first.reserved();
    drop(first);
    let bytes = path.bytes();
    let file = std::fs::File::create(&path.0).expect("emptied");
    file.set_len(LEN).expect("sparse");
    for (at, page) in bytes.chunks(4096).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, at as u64 * 4096).expect("written");
        }
    }
    drop(file);
    let again = Region::open(&path.0, RegionOptions::default()).expect("there");
    assert!(again.reserved() < reserved, "its blocks do not bear it out");
    drop(attach(&again, &other));
    fill(&again);
    drop(again);
    let promoted = Region::open(&other.0, RegionOptions::default()).expect("a region");
    assert_eq!(promoted.span(3 * MIB, 8).u64(0), 7);
    assert_eq!(promoted.reserved(), reserved);
}

/// A mirror that has no room for what is reserved is not attached, and what it has no room for is not reserved later.
#[test]
fn space_is_taken_in_the_mirror_first() {
    struct Small;
    impl Side for Small {
        fn reserve_to(&self, end: u64) -> cenote_base::Result<()> {
            match end <= 5 * MIB {
                true => Ok(()),
                false => Err(Error::Full("the mirror".into())),
            }
        }
        fn copy(&self, _: &RegionMemory, _: u64, _: usize) {}
        fn fence(&self) {}
        fn is_apart(&self) -> bool {
            false
        }
    }
    let path = TempPath::new();
    let region = region(&path);
    region.attach_mirror(Arc::new(Small)).expect("room");
    region.reserve_to(5 * MIB).expect("room");
    let full = region.reserve_to(6 * MIB);
    assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
    assert_eq!(region.reserved(), 5 * MIB);
    assert!(region.has_mirror_failed(), "it is the mirror that has no room");
    region.detach_mirror();
    region.reserve_to(6 * MIB).expect("room");
    assert!(!region.has_mirror_failed());
    let refused = region.attach_mirror(Arc::new(Small));
    assert!(
        matches!(refused, Err(Error::Full(_))) && !region.is_mirrored(),
        "{refused:?}"
    );
}

/// What a side does in its own time is waited for by the fence.
#[test]
fn a_fence_waits_for_a_mirror_that_is_apart() {
    #[derive(Default)]
    struct Apart(AtomicBool, AtomicBool);
    impl Side for Apart {
        fn reserve_to(&self, _: u64) -> cenote_base::Result<()> {
            Ok(())
        }
        fn copy(&self, _: &RegionMemory, off: u64, len: usize) {
            assert_eq!((off % 64, len % 64), (0, 0), "whole lines");
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        fn fence(&self) {
            let posted = self.0.load(std::sync::atomic::Ordering::Relaxed);
            self.1.store(posted, std::sync::atomic::Ordering::Relaxed);
        }
        fn is_apart(&self) -> bool {
            true
        }
    }
    let path = TempPath::new();
    let region = region(&path);
    let side = Arc::new(Apart::default());
    region.attach_mirror(Arc::clone(&side) as Arc<dyn Side>).expect("room");
    coherence::write_back(&region, 65_540, 3);
    assert!(!side.1.load(std::sync::atomic::Ordering::Relaxed));
    coherence::fence(&region);
    assert!(side.1.load(std::sync::atomic::Ordering::Relaxed));
}
