//! The log against crashes, kills, damage and failing disks. Seeds are in the messages.

mod alone;
mod crash;
mod damage;
mod failure;
mod read_ahead;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::AtomicU64;
use cenote_base::{Lsn, PageId, RecordAddr};
use cenote_fabric::Region;
use cenote_testkit::faulty::MemFs;

use super::*;
use crate::redo::{GROUP_HEADER, GroupBuilder, GroupKind, apply};
use crate::testing::*;
use cenote_base::random::Random;

/// The groups of a log from `from` on: start, and the bytes behind the header.
fn groups(log: &Log, from: Lsn) -> BTreeMap<Lsn, (GroupKind, Vec<u8>)> {
    let mut scan = log.scan(from);
    let mut found = BTreeMap::new();
    while let Some(group) = scan.next().expect("whole") {
        let body = group
            .records()
            .flat_map(|r| r.expect("whole").bytes().to_vec())
            .collect();
        found.insert(group.start(), (group.kind(), body));
    }
    found
}

fn in_memory(fs: &MemFs) -> Arc<dyn cenote_base::rt::fs::FileSystem> {
    Arc::new(fs.clone())
}

/// A log directory in a memory file system.
fn dir() -> &'static Path {
    Path::new("/log")
}

/// What a test appended: start of each group, and the bytes behind its header.
#[derive(Default)]
struct Written(BTreeMap<Lsn, Vec<u8>>);

impl Written {
    fn append(&mut self, log: &Log, rng: &mut Random, limit: usize) -> Appended {
        let mut group = random_group(rng, limit);
        let appended = log.append(&mut group, None).expect("appended");
        self.0.insert(appended.start, group[GROUP_HEADER..].to_vec());
        appended
    }

    /// All groups up to `until` are in the log as they were written, and nothing else is.
    fn assert_all(&mut self, log: &Log, until: Lsn, hint: &str) {
        let found = groups(log, FIRST_LSN);
        let end = log.durable();
        assert!(end >= until, "{hint}: the log ends at {end}, {until} was acknowledged");
        self.0.retain(|start, _| *start < end);
        let redo = found.iter().filter(|(_, g)| g.0 == GroupKind::Redo);
        let redo: BTreeMap<Lsn, Vec<u8>> = redo.map(|(at, g)| (*at, g.1.clone())).collect();
        assert_eq!(redo.len(), self.0.len(), "{hint}: number of groups");
        assert!(redo == self.0, "{hint}: the groups differ");
    }
}

fn random_group(rng: &mut Random, limit: usize) -> Vec<u8> {
    let length = 1 + rng.index(limit);
    let bytes = random_bytes(rng, length);
    group(&mut GroupBuilder::new(), rng.index(9) as u32, RecordAddr::NONE, &bytes)
}

fn with_ring(dir: &Path, region: &Arc<Region>) -> LogOptions {
    LogOptions {
        believe_ring: true,
        ..log_options(dir, region)
    }
}

#[test]
fn what_was_appended_is_read_back_over_many_laps_and_segments() {
    let dir = tempfile::tempdir().expect("a directory");
    let region = region();
    let (log, report) = Log::open(log_options(dir.path(), &region)).expect("made");
    assert_eq!(report.ring, RingUse::Created);
    let (mut written, mut rng) = (Written::default(), Random(1));
    let appended: Vec<Appended> = (0..3000).map(|_| written.append(&log, &mut rng, 8000)).collect();
    let end = appended[appended.len() - 1].end;
    assert!(end.raw() > 2 * region.len(), "several laps: {end}");
    log.wait_durable(end).expect("durable");
    assert_eq!(log.durable(), end);
    written.assert_all(&log, end, "open");
    drop(log);

    let (log, report) = Log::open(with_ring(dir.path(), &region)).expect("opens");
    assert_eq!((report.ring, report.end), (RingUse::Used, end));
    written.assert_all(&log, end, "with its ring");
    drop(log);
    let (log, report) = Log::open(log_options(dir.path(), &self::region())).expect("opens");
    assert_eq!((report.ring, report.end), (RingUse::NotOffered, end));
    written.assert_all(&log, end, "without its ring");
    let last = written.append(&log, &mut rng, 100);
    assert_eq!(last.start, end);
    log.wait_durable(last.end).expect("durable");
    log.recycle(end).expect("recycled");
    let first = appended[0].start.advance(GROUP_HEADER as u64);
    assert!(log.read_record(RecordAddr::new(0, first)).is_err());
}

/// A page's chain leads from its newest record back to its base, out of the ring or the files.
#[test]
fn a_chain_rebuilds_its_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let region = region();
    let (log, _) = Log::open(log_options(dir.path(), &region)).expect("made");
    let (mut rng, mut builder) = (Random(3), GroupBuilder::new());
    let mut pages: Vec<(Vec<u8>, RecordAddr)> = (0..5).map(|_| (blank(), RecordAddr::NONE)).collect();
    let mut stored = pages.clone();
    for step in 0..2500 {
        let number = rng.index(5);
        let (page, head) = &mut pages[number];
        let id = PageId::new(1, number as u32);
        builder.clear();
        // Another page's record first, so that records do not all lie behind the header.
        builder.page(PageId::new(2, 0), RecordAddr::NONE);
        let record = builder.page(id, *head);
        if head.is_none() || rng.index(200) == 0 {
            page.fill(0);
            page[4..12].copy_from_slice(&id.to_bytes());
            page[14] = 1;
            builder.init(record, 0, 0);
        }
        let (offset, bytes) = (100 + rng.index(8000), {
            let n = rng.index(7000);
            random_bytes(&mut rng, n)
        });
        page[offset..offset + bytes.len()].copy_from_slice(&bytes);
        builder.write(record, offset, &bytes);
        let group = builder.finish().expect("short");
        let appended = log.append(group, None).expect("appended");
        *head = RecordAddr::new(0, appended.start.advance(builder.record_offset(record).into()));
        crate::redo::set_page_lsn(page, appended.end);
        if rng.index(40) == 0 {
            stored[number] = pages[number].clone();
        }
        if step % 50 == 0 {
            log.wait_durable(appended.end).expect("durable");
            for (number, (page, head)) in pages.iter().enumerate() {
                let id = PageId::new(1, number as u32);
                let (mut base, _) = stored[number].clone();
                let lsn = crate::redo::page_lsn(&base);
                for record in log.collect_chain(id, *head, lsn).expect("a chain") {
                    apply(&mut base, &record.get()).expect("applies");
                }
                assert!(base == *page, "page {number} at step {step}");
            }
        }
    }
    let (_, head) = pages[0];
    assert!(
        log.collect_chain(PageId::new(1, 4), head, Lsn::ZERO).is_err(),
        "another page's chain"
    );
    assert!(log.read_record(RecordAddr::new(0, head.position().advance(8))).is_err());
}

#[test]
fn the_hook_sees_the_order_of_the_log_and_its_patch_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, _) = Log::open(log_options(dir.path(), &region())).expect("made");
    let log = Arc::new(log);
    let next = Arc::new(AtomicU64::new(1));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (log, next) = (log.clone(), next.clone());
            rt::spawn("appender", move || {
                for _ in 0..2000 {
                    let mut builder = GroupBuilder::new();
                    let record = builder.page(PageId::new(1, n), RecordAddr::NONE);
                    builder.write(record, 64, &[0xFF; 8]);
                    builder.finish().expect("short");
                    let at = builder.locate(record, 64, 8).expect("there");
                    let mut hook = |_: Lsn, group: &mut [u8]| {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        group[at..at + 8].copy_from_slice(&n.to_le_bytes());
                    };
                    log.append(builder.finish().expect("short"), Some(&mut hook))
                        .expect("appended");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
    log.flush_all().expect("durable");
    let numbers: Vec<u64> = groups(&log, FIRST_LSN)
        .values()
        .map(|(_, body)| u64::from_le_bytes(body[28..36].try_into().expect("8 bytes")))
        .collect();
    assert_eq!(numbers, (1..=8000).collect::<Vec<_>>());
}

/// The end of all positions: new work is refused a terabyte before it, the ends of transactions later, and a group that
/// would pass it has no place. It is an error and no position that another record has had.
#[test]
fn the_end_of_the_stream_is_a_refusal_and_no_wrap() {
    let near = |left: u64, then: &dyn Fn(&Log)| {
        let fs = MemFs::new();
        rt::fs::with(in_memory(&fs), || {
            let region = region();
            let mut options = log_options(dir(), &region);
            options.origin = Lsn::from_raw(RecordAddr::END.raw() - left);
            (options.checkpoint, options.known_durable) = (options.origin, options.origin);
            let (log, report) = Log::open(options).expect("opens");
            assert_eq!(report.ring, RingUse::Created);
            then(&log);
        });
    };
    let append = |log: &Log| {
        log.append(
            &mut group(&mut GroupBuilder::new(), 1, RecordAddr::NONE, &[1; 8000]),
            None,
        )
    };
    near((1 << 40) + (1 << 20), &|log| {
        let refused = (0..1000).find_map(|_| {
            log.flush_all().expect("written");
            append(log).expect("admitted");
            log.admit(Need::Work).err()
        });
        let refused = refused.expect("refused in the end").to_string();
        assert!(refused.contains("record addresses end"), "{refused}");
        log.admit(Need::Commit).expect("what was begun may end");
        log.flush_all().expect("and becomes durable");
    });
    near((1 << 39) - (1 << 20), &|log| {
        let refused = (0..100).any(|_| {
            append(log).expect("admitted");
            log.flush_all().expect("written");
            log.admit(Need::Cleanup).is_err()
        });
        assert!(refused && log.admit(Need::Commit).is_ok());
    });
    near(2 << 20, &|log| {
        let refused = (0..1000).find_map(|_| append(log).err()).expect("no position is left");
        assert!(refused.to_string().contains("record addresses end"), "{refused}");
        assert!(log.tail() <= RecordAddr::END);
        log.flush_all().expect("what found a place is written");
    });
}
