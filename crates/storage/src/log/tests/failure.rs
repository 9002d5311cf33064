//! Disks that fail or fill.

use crate::log::segments::{Generations, Segments};
use cenote_base::Error;
use cenote_base::rt::fs::with;

use super::*;

#[test]
fn a_failed_sync_poisons_the_log_for_good() {
    for after in 0..4 {
        let (fs, mut rng, mut written) = (MemFs::new(), Random(after), Written::default());
        let acknowledged = with(in_memory(&fs), || {
            let (log, _) = Log::open(log_options(dir(), &region())).expect("made");
            fs.fail_syncs(after, 1);
            let mut acknowledged = FIRST_LSN;
            let error = loop {
                let end = written.append(&log, &mut rng, 3000).end;
                match log.wait_durable(end) {
                    Ok(()) => acknowledged = end,
                    Err(e) => break e,
                }
            };
            assert!(
                !matches!(error, Error::LogFailed(_)),
                "the first error says what failed: {error}"
            );
            // The disk works again, and nothing is believed any more.
            for _ in 0..3 {
                let mut group = random_group(&mut rng, 100);
                assert!(matches!(log.append(&mut group, None), Err(Error::LogFailed(_))));
                assert!(matches!(log.wait_durable(log.tail()), Err(Error::LogFailed(_))));
                assert!(log.admit(Need::Work).is_err());
            }
            assert!(log.wait_durable(acknowledged).is_ok(), "what was durable stays so");
            acknowledged
        });
        with(in_memory(&fs.crash_clone()), || {
            let (log, _) = Log::open(log_options(dir(), &region())).expect("opens");
            written.assert_all(&log, acknowledged, &format!("after {after} syncs"));
        });
    }
}

/// The process ended with the failed sync; the next one reads what the system still shows, goes on behind it, and a
/// power cut leaves what the disk has.
#[test]
fn what_a_failed_sync_dropped_is_written_again_before_anything_stands_on_it() {
    for after in 0..4 {
        let (fs, mut rng, mut written) = (MemFs::new(), Random(after), Written::default());
        with(in_memory(&fs), || {
            let (log, _) = Log::open(log_options(dir(), &region())).expect("made");
            fs.fail_syncs(after, 1);
            while log.wait_durable(written.append(&log, &mut rng, 3000).end).is_ok() {}
        });
        let found = fs.kill_clone();
        let acknowledged = with(in_memory(&found), || {
            let (log, _) = Log::open(log_options(dir(), &region())).expect("opens");
            let end = written.append(&log, &mut rng, 3000).end;
            log.wait_durable(end).expect("durable");
            end
        });
        with(in_memory(&found.crash_clone()), || {
            let (log, _) = Log::open(log_options(dir(), &region())).expect("opens");
            written.assert_all(&log, acknowledged, &format!("after {after} syncs"));
        });
    }
}

/// A start that finds nothing durable empties the log's one segment, and may end before it has written anything: the
/// next one would take a directory without a segment for that of a log that was lost.
#[test]
fn a_log_that_begins_anew_keeps_its_segment() {
    let fs = MemFs::new();
    with(in_memory(&fs), || {
        let open = || Segments::open(dir(), DATABASE, 64 << 10, Generations::default()).expect("opens");
        let segments = open();
        let first = segments.number_of(FIRST_LSN);
        (first..first + 3).for_each(|number| segments.prepare(number, true).expect("made"));
        let begin = segments.start_of(first);
        segments.truncate(begin, begin).expect("truncated");
        assert_eq!(open().numbers(), [first]);
        // Where others are left, it goes: nothing would be read of it.
        segments.prepare(first + 1, true).expect("made");
        let next = segments.start_of(first + 1);
        segments.truncate(next, next).expect("truncated");
        assert_eq!(open().numbers(), [first]);
        // One that lies behind the end's own goes, as there would be a gap before it.
        let other = Path::new("/other");
        let open = || Segments::open(other, DATABASE, 64 << 10, Generations::default()).expect("opens");
        let segments = open();
        segments.prepare(5, true).expect("made");
        let before = Lsn::from_raw(segments.start_of(5).raw() - 8);
        segments.truncate(before, before).expect("truncated");
        assert_eq!(open().numbers(), [0; 0]);
    });
}

/// All waiters are told, whichever leads.
#[test]
fn every_waiter_learns_of_the_failure() {
    let fs = MemFs::new();
    with(in_memory(&fs), || {
        let (log, _) = Log::open(log_options(dir(), &region())).expect("made");
        let log = Arc::new(log);
        fs.set_sync_time(Nanos::from_millis(2));
        fs.fail_syncs(3, 1);
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let log = log.clone();
                rt::spawn("session", move || {
                    let mut rng = Random(n);
                    loop {
                        let mut group = random_group(&mut rng, 300);
                        let appended = log.append(&mut group, None);
                        if appended.and_then(|a| log.wait_durable(a.end)).is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
    });
}

/// The disk fills: new work is refused before the log lacks segments; work under way waits; when there is space again,
/// all goes on and nothing is lost.
#[test]
fn a_full_disk_refuses_work_and_recovers() {
    let (fs, mut rng, mut written) = (MemFs::new(), Random(2), Written::default());
    with(in_memory(&fs), || {
        let options = LogOptions {
            background: true,
            ..log_options(dir(), &region())
        };
        let (log, _) = Log::open(options).expect("made");
        fs.set_capacity(Some(400 << 10));
        let refused = (0..4000).find(|_| {
            let end = written.append(&log, &mut rng, 1000).end;
            log.wait_durable(end).expect("durable");
            log.admit(Need::Work).is_err()
        });
        assert!(refused.is_some(), "the full disk was not noticed");
        assert!(matches!(log.admit(Need::Work), Err(Error::Full(_))));
        fs.set_capacity(None);
        for _ in 0..200 {
            let end = written.append(&log, &mut rng, 1000).end;
            log.wait_durable(end).expect("durable");
        }
        let end = log.tail();
        while log.admit(Need::Work).is_err() {
            rt::sleep(Nanos::from_millis(10));
        }
        written.assert_all(&log, end, "after the disk was full");
    });
}
