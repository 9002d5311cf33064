//! Regions that are opened on another host, or on a host that was lost meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::PageId;
use cenote_base::rt::fs;
use cenote_fabric::{Origin, Region, RegionOptions};
use cenote_storage::{DataDir, Survive};
use cenote_testkit::faulty::MemFs;

use crate::config::{Config, Kind};
use crate::open::{BufferPool, OWED, SURVIVE, check_origin, take_over};
use crate::report::{Mode, RecoveryReport};

const SPACE: u32 = 1000;
const VALUE_AT: usize = 64;
const PAGE: PageId = PageId::new(SPACE, 1);

fn config(region: &Path, host: (&str, u64), survive: Survive) -> Config {
    Config {
        region: Some(region.to_owned()),
        ring: Some((4 << 20) + 4096),
        background: false,
        origin: Some(Origin::host(host.0, host.1)),
        survive,
        ..Config::new(Kind::Cxl, 12 << 20)
    }
}

/// A database whose hosts share files and a region.
struct Moving {
    files: MemFs,
    dir: tempfile::TempDir,
}

impl Moving {
    fn new() -> Self {
        Self {
            files: MemFs::new(),
            dir: tempfile::tempdir_in("/dev/shm").expect("dir"),
        }
    }

    fn region(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    fn open(&self, host: (&str, u64), survive: Survive) -> (BufferPool, RecoveryReport) {
        fs::with(Arc::new(self.files.clone()), || {
            let data = DataDir::open(Path::new("/data")).expect("data");
            BufferPool::open(config(&self.region(), host, survive), data).expect("pool")
        })
    }

    /// Begins on a host and leaves a committed value behind, after a stop in order if `clean`.
    fn begin(&self, host: (&str, u64), survive: Survive, clean: bool) {
        let (pool, _) = self.open(host, survive);
        fs::with(Arc::new(self.files.clone()), || {
            pool.storage().pages().create_space(SPACE).expect("space");
            let mut m = pool.mtr();
            let h = m.create(PAGE, 7, 0).expect("create");
            m.write_u64(h, VALUE_AT, 7);
            m.commit();
            pool.storage().log().flush_all().expect("durable");
            if clean {
                pool.shutdown().expect("stopped");
            }
        });
    }

    fn expect(&self, host: (&str, u64), survive: Survive, mode: Mode) -> Vec<String> {
        let (pool, report) = self.open(host, survive);
        assert_eq!(report.mode, mode, "{:?}", report.remarks);
        fs::with(Arc::new(self.files.clone()), || {
            assert_eq!(pool.shared(PAGE).expect("page").view().u64(VALUE_AT), 7);
        });
        report.remarks
    }
}

#[test]
fn what_survives_a_process_alone_is_not_believed_on_another_host() {
    let moving = Moving::new();
    moving.begin(("a", 1), Survive::Process, false);
    let remarks = moving.expect(("b", 1), Survive::Process, Mode::Log);
    assert!(remarks[0].contains("last used on a, epoch 1"), "{remarks:?}");
    assert!(remarks[0].contains("this is host b, epoch 1"), "{remarks:?}");
}

/// The same host under the same name, which the pool had given up meanwhile: its caches may have been lost.
#[test]
fn what_survives_a_process_alone_is_not_believed_in_another_epoch() {
    let moving = Moving::new();
    moving.begin(("a", 1), Survive::Process, false);
    moving.expect(("a", 2), Survive::Process, Mode::Log);
    moving.expect(("a", 2), Survive::Process, Mode::Instant);
}

#[test]
fn what_survives_its_host_is_warm_on_another() {
    let moving = Moving::new();
    moving.begin(("a", 1), Survive::Host, false);
    moving.expect(("b", 1), Survive::Process, Mode::Instant);
    // Under the other setting from here on.
    moving.expect(("a", 1), Survive::Process, Mode::Log);
}

#[test]
fn a_clean_stop_lets_any_host_go_on_under_either_setting() {
    for survive in [Survive::Process, Survive::Host] {
        let moving = Moving::new();
        moving.begin(("a", 1), survive, true);
        moving.expect(("b", 4), survive, Mode::Clean);
    }
}

/// Host and survival were noted by the last step of a start. One that moved a region which was clean, or had been kept
/// under `host`, and was lost with its host before that, left a region that said more than it kept: the former host
/// believed it, without the lines that had been lost.
#[test]
fn a_start_that_is_cut_off_leaves_a_region_that_says_no_more_than_it_keeps() {
    for (survive, clean) in [(Survive::Process, true), (Survive::Host, false)] {
        let moving = Moving::new();
        moving.begin(("a", 1), survive, clean);
        let region = Region::open(&moving.region(), RegionOptions::default()).expect("region");
        let b = config(&moving.region(), ("b", 1), Survive::Process);
        assert!(check_origin(&region, &Origin::host("b", 1)).is_ok());
        take_over(&region, &b);
        let words = region.state().words;
        assert_eq!(words[SURVIVE], Survive::Process as u64);
        assert_eq!(
            words[OWED] == 1,
            survive == Survive::Host,
            "the next start has more to do"
        );
        assert!(check_origin(&region, &Origin::host("b", 1)).is_ok());
        drop(region);
        // Storage has all of it after a stop in order: nothing is replayed.
        let mode = if clean { Mode::Clean } else { Mode::Log };
        let remarks = moving.expect(("a", 1), Survive::Process, mode);
        assert!(remarks[0].contains("discarded"), "{remarks:?}");
    }
}
