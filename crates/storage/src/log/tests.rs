//! The log with real files: append, wait, reopen with and without the ring.

use cenote_base::{Lsn, RecordAddr};

use super::*;
use crate::redo::GroupBuilder;
use crate::testing::*;

fn starts(log: &Log, from: Lsn) -> Vec<Lsn> {
    let mut scan = log.scan(from);
    let mut found = Vec::new();
    while let Some(group) = scan.next().expect("whole") {
        found.push(group.start());
    }
    found
}

fn append(log: &Log, builder: &mut GroupBuilder, rng: &mut Rng, limit: usize) -> Appended {
    let bytes = {
        let n = 1 + rng.below(limit);
        rng.bytes(n)
    };
    let mut group = group(builder, rng.below(9) as u32, RecordAddr::NONE, &bytes);
    log.append(&mut group, None).expect("appended")
}

#[test]
fn what_was_appended_is_read_back_over_many_laps_and_segments() {
    let dir = tempfile::tempdir().expect("a directory");
    let region = region();
    let (log, report) = Log::open(log_options(dir.path(), &region)).expect("made");
    assert_eq!(report.ring, RingUse::Created);
    let (mut builder, mut rng) = (GroupBuilder::new(), Rng(1));
    let appended: Vec<Appended> = (0..3000).map(|_| append(&log, &mut builder, &mut rng, 8000)).collect();
    let end = appended[appended.len() - 1].end;
    assert!(end.raw() > 2 * region.len(), "several laps: {end}");
    log.wait_durable(end).expect("durable");
    assert_eq!(log.durable(), end);
    let expected: Vec<Lsn> = appended.iter().map(|a| a.start).collect();
    assert_eq!(starts(&log, FIRST_LSN), expected);
    drop(log);

    // With its ring, then without it.
    let options = LogOptions {
        believe_ring: true,
        ..log_options(dir.path(), &region)
    };
    let (log, report) = Log::open(options).expect("opens");
    assert_eq!((report.ring, report.end), (RingUse::Used, end));
    assert_eq!(starts(&log, FIRST_LSN), expected);
    drop(log);
    let (log, report) = Log::open(log_options(dir.path(), &self::region())).expect("opens");
    assert_eq!((report.ring, report.end), (RingUse::NotOffered, end));
    assert_eq!(starts(&log, FIRST_LSN), expected);
    let last = append(&log, &mut builder, &mut rng, 100);
    assert_eq!(last.start, end);
    log.wait_durable(last.end).expect("durable");
    log.recycle(end).expect("recycled");
    assert!(log.read_record(RecordAddr::new(0, expected[0].raw() + 32)).is_err());
}
