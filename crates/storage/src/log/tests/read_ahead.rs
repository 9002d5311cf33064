//! Read-ahead: how many reads it takes, that it brings what reading step by step does, and that what lies behind the
//! end of the log is not believed because it has been read.

use cenote_base::rt::fs::{self, OpenOptions, with};
use cenote_testkit::faulty::{Drive, DriveCounters, DriveSpeed};

use super::*;

/// A drive that takes no time and counts.
fn counting(fs: &MemFs) -> Drive {
    let drive = Drive::new(DriveSpeed {
        read_latency: rt::Nanos::ZERO,
        sync_latency: rt::Nanos::ZERO,
        bytes_per_second: 1e18,
        operations_per_second: 1e18,
    });
    fs.set_drive(Some(drive.clone()));
    drive
}

/// What `f` reads.
fn reads<T>(drive: &Drive, f: impl FnOnce() -> T) -> (T, u64, u64) {
    let DriveCounters { reads, bytes_read, .. } = drive.counters();
    let value = f();
    let now = drive.counters();
    (value, now.reads - reads, now.bytes_read - bytes_read)
}

fn options(segment_bytes: u64) -> LogOptions {
    LogOptions {
        segment_bytes,
        ..log_options(dir(), &region())
    }
}

/// Groups of up to `limit` bytes: every one changes page 0, every `every`th page 1 too. The newest records of both, how
/// many each has, and the log's end.
fn two_chains(
    log: &Log,
    rng: &mut Random,
    groups: usize,
    limit: usize,
    every: usize,
) -> ([(RecordAddr, usize); 2], Lsn) {
    let (mut heads, mut builder) = ([(RecordAddr::NONE, 0); 2], GroupBuilder::new());
    for n in 0..groups {
        builder.clear();
        let mut records = Vec::new();
        let pages = if n % every == 0 { 2 } else { 1 };
        for (page, (head, _)) in (0..).zip(heads.iter().take(pages)) {
            let record = builder.page(PageId::new(1, page), *head);
            let length = 1 + rng.index(limit);
            random_bytes(rng, length)
                .chunks(4000)
                .for_each(|c| builder.write(record, 64, c));
            records.push(record);
        }
        let at = log.append(builder.finish().expect("short"), None).expect("appended");
        for (page, record) in records.iter().enumerate() {
            let address = at.start.advance(builder.record_offset(*record).into());
            heads[page] = (RecordAddr::new(0, address), heads[page].1 + 1);
        }
        if log.tail().since(log.durable()) > 1 << 20 {
            log.flush_all().expect("durable");
        }
    }
    log.flush_all().expect("durable");
    (heads, log.durable())
}

/// The chain, record by record.
fn step_by_step(log: &Log, head: RecordAddr, base: Lsn) -> Vec<OwnedRecord> {
    let (mut chain, mut at) = (Vec::new(), head);
    while !at.is_none() && at.position() >= base {
        let record = log.read_record(at).expect("whole");
        at = record.get().prev;
        chain.push(record);
    }
    chain.reverse();
    chain
}

/// Groups lie across blocks, reads and segments as chance has it; files give as much at a time as they like.
#[test]
fn chains_across_borders_are_what_they_are_record_by_record() {
    for seed in 0..12 {
        let (fs, mut rng) = (MemFs::new(), Random(seed));
        with(in_memory(&fs), || {
            let segment = [64 << 10, 256 << 10, 1 << 20][seed as usize % 3];
            let (log, _) = Log::open(options(segment)).expect("made");
            let (limit, every) = ([900, 6000, 40_000][rng.index(3)], 1 + rng.index(30));
            let (heads, end) = two_chains(&log, &mut rng, 150, limit, every);
            drop(log);
            // Without its ring, so that all of it comes from the files.
            let (log, report) = Log::open(options(segment)).expect("opens");
            assert_eq!(report.end, end, "seed {seed}");
            if seed % 2 == 1 {
                fs.tear_transfers(seed);
            }
            let chains = log.chains();
            for (page, (head, count)) in heads.into_iter().enumerate() {
                let id = PageId::new(1, page as u32);
                let all = chains.collect(id, head, Lsn::ZERO).expect("a chain");
                assert_eq!(all.len(), count, "seed {seed}");
                assert!(all == step_by_step(&log, head, Lsn::ZERO), "seed {seed} page {page}");
                let base = all[rng.index(all.len())].get().lsn;
                let newer = log.collect_chain(id, head, base).expect("a chain");
                assert!(
                    newer == step_by_step(&log, head, base),
                    "seed {seed} page {page} from {base}"
                );
            }
        });
    }
}

/// 240 reads were made for a page: three for each record.
#[test]
fn a_dense_chain_takes_large_reads_and_a_sparse_one_a_read_a_record() {
    let (fs, mut rng) = (MemFs::new(), Random(5));
    let drive = counting(&fs);
    with(in_memory(&fs), || {
        let (log, _) = Log::open(options(16 << 20)).expect("made");
        let (heads, end) = two_chains(&log, &mut rng, 3000, 4000, 120);
        drop(log);
        let (log, _) = Log::open(options(16 << 20)).expect("opens");
        let [dense, sparse] = heads;
        assert_eq!(sparse.1, 25);
        let collect = |page, head| {
            log.collect_chain(PageId::new(1, page), head, Lsn::ZERO)
                .expect("a chain")
        };
        let (chain, operations, bytes) = reads(&drive, || collect(0, dense.0));
        assert_eq!(chain.len(), 3000);
        assert!(operations <= 6 + end.raw() / (1 << 20), "{operations} reads of {end}");
        assert!(bytes <= end.raw() + (64 << 10), "{bytes} bytes of {end}");
        let (chain, operations, bytes) = reads(&drive, || collect(1, sparse.0));
        assert_eq!(chain.len(), 25);
        assert!(operations <= 26, "{operations} reads of 25 records");
        assert!(bytes <= 25 * (40 << 10), "{bytes} bytes of 25 records");
        // Together with another chain that leads the same way, next to nothing is read.
        let chains = log.chains();
        let near = |page, head| chains.collect(PageId::new(1, page), head, Lsn::from_raw(end.raw() - (2 << 20)));
        near(0, dense.0).expect("a chain");
        let (_, operations, _) = reads(&drive, || near(1, sparse.0).expect("a chain"));
        assert!(operations <= 1, "{operations} reads of what is there");
    });
}

/// The log is gone through twice, for its end and to be replayed, by reads of a mebibyte; what is behind its end is
/// read once.
#[test]
fn the_end_is_found_and_the_log_scanned_by_large_reads() {
    let (fs, mut rng) = (MemFs::new(), Random(6));
    let drive = counting(&fs);
    with(in_memory(&fs), || {
        let (log, _) = Log::open(options(4 << 20)).expect("made");
        let (_, end) = two_chains(&log, &mut rng, 4000, 4000, 2);
        drop(log);
        let all = end.raw().next_multiple_of(4 << 20);
        let written = drive.counters().bytes_written;
        let ((log, _), operations, bytes) = reads(&drive, || Log::open(options(4 << 20)).expect("opens"));
        assert!(operations <= 16 + all / (1 << 20), "{operations} reads of {all} bytes");
        // What no group says to have been durable is read and written again: no more than fits the ring.
        let again = RING_MIN;
        assert!(bytes <= all + again + (128 << 10), "{bytes} bytes of {all}");
        let written = drive.counters().bytes_written - written;
        assert!(
            written <= again + 4 * ring::BLOCK,
            "nothing is there to be cleared: {written} bytes"
        );
        let (found, operations, bytes) = reads(&drive, || groups(&log, FIRST_LSN));
        assert_eq!(found.len(), 4000);
        assert!(operations <= 10 + end.raw() / (1 << 20), "{operations} reads of {end}");
        assert!(bytes <= end.raw(), "nothing behind the end: {bytes} bytes of {end}");
    });
}

/// Three groups were written by one sync that never ended; of the second nothing reached the disk. The third is whole,
/// in its place, and was read along with the first: it is not part of the log, and does not become so when the log
/// grows up to it again.
#[test]
fn what_was_read_behind_the_end_is_not_believed() {
    let fs = MemFs::new();
    with(in_memory(&fs), || {
        let (log, _) = Log::open(options(1 << 20)).expect("made");
        let mut at = Vec::new();
        for (page, length) in [(0, 100), (1, 9000), (2, 100)] {
            let mut bytes = group(&mut GroupBuilder::new(), page, RecordAddr::NONE, &vec![7; length]);
            at.push(log.append(&mut bytes, None).expect("appended"));
        }
        log.flush_all().expect("written");
        drop(log);
        let name = format!("/log/{:016x}.log", 0);
        let file = fs::open(&name, OpenOptions::WRITE).expect("there");
        let offset = |at: Lsn| segments::SEGMENT_HEADER + at.raw();
        let hole = vec![0; at[1].end.since(at[1].start) as usize];
        file.write_at(&hole, offset(at[1].start)).expect("written");
        for _ in 0..2 {
            let (log, report) = Log::open(options(1 << 20)).expect("opens");
            assert_eq!(report.end, at[0].end);
            assert_eq!(
                groups(&log, FIRST_LSN).keys().copied().collect::<Vec<_>>(),
                [at[0].start]
            );
            let third = RecordAddr::new(0, at[2].start.advance(GROUP_HEADER as u64));
            assert!(log.collect_chain(PageId::new(1, 2), third, Lsn::ZERO).is_err());
        }
        let mut rest = vec![1; at[2].end.since(at[0].end) as usize];
        file.read_exact_at(&mut rest, offset(at[0].end)).expect("there");
        assert!(rest.iter().all(|b| *b == 0), "what is behind the end was cleared");
    });
}

/// Nothing above what was durable when a scan began is read by it, however far its read-ahead goes.
#[test]
fn a_scan_ends_where_the_log_was_durable() {
    let (fs, mut written, mut rng) = (MemFs::new(), Written::default(), Random(7));
    with(in_memory(&fs), || {
        let (log, _) = Log::open(options(64 << 10)).expect("made");
        for _ in 0..400 {
            written.append(&log, &mut rng, 8000);
        }
        log.flush_all().expect("durable");
        drop(log);
        let (log, report) = Log::open(options(64 << 10)).expect("opens");
        let (mut scan, end) = (log.scan(FIRST_LSN), report.end);
        let mut seen = 0;
        while let Some(group) = scan.next().expect("whole") {
            assert!(group.end() <= end);
            seen += 1;
            // The log goes on meanwhile, in the segment that is being read.
            written.append(&log, &mut rng, 3000);
            log.flush_all().expect("durable");
        }
        assert_eq!((seen, scan.position()), (400, end));
    });
}

/// A segment that was in use before holds what it held then. It is cleared behind the end once, and is found clear by
/// the next start; one that is clear is not written to, however large it is.
#[test]
fn a_reused_segment_is_cleared_once() {
    for (segment, rounds) in [(1 << 20, 4), (16 << 20, 0)] {
        let (fs, mut rng) = (MemFs::new(), Random(11));
        let drive = counting(&fs);
        with(in_memory(&fs), || {
            let (log, _) = Log::open(options(segment)).expect("made");
            for _ in 0..rounds {
                let (_, end) = two_chains(&log, &mut rng, 400, 4000, 2);
                log.recycle(end).expect("recycled");
            }
            let (_, end) = two_chains(&log, &mut rng, 100, 4000, 2);
            drop(log);
            let from_here = || LogOptions {
                checkpoint: end,
                ..options(segment)
            };
            let written = [0; 3].map(|_| {
                let before = drive.counters().bytes_written;
                let (_, report) = Log::open(from_here()).expect("opens");
                assert_eq!(report.end, end);
                drive.counters().bytes_written - before
            });
            assert_eq!(written[0] > written[1], rounds > 0, "{written:?}");
            assert!(written[1] == written[2] && written[2] <= ring::BLOCK, "{written:?}");
        });
    }
}
