//! How a line comes to its mirror, step by step: a sink that is told of every access looks on, and interferes. One
//! test, as there is one sink a process.

use cenote_base::rt;
use cenote_base::rt::fs;
use cenote_fabric::mirror::{MirrorFile, Side};
use cenote_fabric::observe::{self, Access, Sink};
use cenote_fabric::{Identity, LINE, Region, RegionMemory, RegionOptions, coherence};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const AT: u64 = 65536;

struct TempPath(PathBuf);

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = fs::remove(&self.0);
    }
}

fn path() -> TempPath {
    TempPath(format!("/dev/shm/cenote-test-{:x}", rt::random_u128()).into())
}

/// What was told of the line, and whom the first copy to the mirror has to wait for.
#[derive(Default)]
struct Spy {
    mirror: PathBuf,
    told: Mutex<Vec<(bool, u64, Access)>>,
    is_copying: AtomicBool,
    has_flushed: AtomicBool,
}

impl Sink for Spy {
    fn touch(&self, region: &RegionMemory, off: u64, len: u32, access: Access) {
        let is_line = off >= AT && off + u64::from(len) <= AT + LINE as u64;
        if !is_line {
            return;
        }
        let is_mirror = region.name().ends_with(&*self.mirror.to_string_lossy());
        self.told.lock().expect("no panic").push((is_mirror, off - AT, access));
        if is_mirror && !self.is_copying.swap(true, Ordering::SeqCst) {
            // The words were loaded. Another thread changes them and flushes now; it is waited for as long as it may
            // take him if nothing held him up.
            for _ in 0..60 {
                if self.has_flushed.load(Ordering::SeqCst) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// The story: two threads flush a line, and the copy of the one that loaded earlier comes later: the mirror had the
/// older words for good. And: the first word of a line came before the others, so that a mirror which a process left in
/// the middle of a copy showed a latch as released, and the page as it was before.
#[test]
fn a_line_never_goes_back_and_its_first_word_comes_last() {
    let (file, other) = (path(), path());
    let spy = Arc::new(Spy {
        mirror: other.0.clone(),
        ..Spy::default()
    });
    observe::install(Arc::clone(&spy) as Arc<dyn Sink>);
    let region = Region::create(&file.0, 1 << 20, Identity::default(), RegionOptions::default()).expect("made");
    region.reserve_to(1 << 20).expect("room");
    let mirror: Arc<dyn Side> = Arc::new(MirrorFile::create(&other.0, region.len()).expect("made"));
    region.attach_mirror(mirror).expect("room");
    region.span(AT, 64).set_u64(0, 1);
    spy.told.lock().expect("no panic").clear();
    std::thread::scope(|scope| {
        scope.spawn(|| coherence::flush(&region, AT, LINE));
        while !spy.is_copying.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        region.span(AT, 64).set_u64(0, 2);
        coherence::flush(&region, AT, LINE);
        spy.has_flushed.store(true, Ordering::SeqCst);
    });
    observe::uninstall();
    let found = std::fs::read(&other.0).expect("readable");
    assert_eq!(found[AT as usize..][..8], 2u64.to_le_bytes(), "the later words");

    let told = spy.told.lock().expect("no panic");
    let of = |is_mirror: bool, access: Access| -> Vec<u64> {
        let one = told.iter().filter(|told| (told.0, told.2) == (is_mirror, access));
        one.map(|told| told.1).collect()
    };
    let (up, down): (Vec<u64>, Vec<u64>) = ((0..8).map(|i| 8 * i).collect(), (0..8).rev().map(|i| 8 * i).collect());
    assert_eq!(
        of(false, Access::Read),
        [&up[..], &up[..]].concat(),
        "loaded first to last"
    );
    assert_eq!(
        of(true, Access::Write),
        [&down[..], &down[..]].concat(),
        "stored last to first"
    );
}
