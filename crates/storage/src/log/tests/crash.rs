//! Crashes and kills: what was acknowledged is there, whole; what is there is whole.

use cenote_base::rt::fs::with;
use cenote_testkit::record::Recorder;

use super::*;

/// Appends and waits at random, as one session would; the position up to which was waited for.
fn work(log: &Log, written: &mut Written, rng: &mut Random) -> Lsn {
    let mut acknowledged = log.durable();
    for _ in 0..rng.index(60) {
        let appended = written.append(log, rng, 6000);
        if rng.index(4) == 0 {
            log.wait_durable(appended.end).expect("durable");
            acknowledged = appended.end;
        }
    }
    acknowledged
}

/// The region is lost with the host, again and again; only the files are left, torn at random.
#[test]
fn after_a_crash_every_acknowledged_group_is_there_and_none_is_half() {
    for seed in 0..100 {
        let mut rng = Random(seed);
        let (mut fs, mut written) = (MemFs::new(), Written::default());
        let mut acknowledged = FIRST_LSN;
        for round in 0..6 {
            let region = region();
            let crashed = with(in_memory(&fs), || {
                let (log, _) = Log::open(log_options(dir(), &region)).expect("opens");
                written.assert_all(&log, acknowledged, &format!("seed {seed} round {round}"));
                acknowledged = work(&log, &mut written, &mut rng);
                log.state.closing.store(true, Ordering::Release);
                fs.crash_clone_torn(rng.word())
            });
            fs = crashed;
        }
    }
}

/// The process is killed, its ring stays: all complete groups are kept though they were never
/// synced, those half copied become void, and the next process goes on behind them.
#[test]
fn after_a_kill_complete_groups_are_kept_and_incomplete_ones_are_void() {
    for seed in 0..60 {
        let mut rng = Random(seed);
        let (mut fs, mut region, mut written) = (MemFs::new(), region(), Written::default());
        let mut voided = Vec::new();
        for round in 0..5 {
            let hint = format!("seed {seed} round {round}");
            let killed = with(in_memory(&fs), || {
                let (log, report) = Log::open(with_ring(dir(), &region)).expect("opens");
                assert!(
                    matches!(report.ring, RingUse::Created | RingUse::Used),
                    "{hint}: {report:?}"
                );
                assert_eq!(report.voided, voided, "{hint}");
                written.assert_all(&log, report.end, &hint);
                voided = work_and_be_killed(&log, &mut written, &mut rng);
                region = copy_of(&region);
                // Memory survives; of the files, what was not synced may be lost.
                if rng.index(2) == 0 {
                    fs.kill_clone()
                } else {
                    fs.crash_clone_torn(rng.word())
                }
            });
            fs = killed;
        }
    }
}

/// Groups, of which some are reserved and not, or only half, copied. No thread waits for anything behind the first such
/// one. Gives the incomplete ones.
fn work_and_be_killed(log: &Log, written: &mut Written, rng: &mut Random) -> Vec<(Lsn, Lsn)> {
    work(log, written, rng);
    let mut incomplete = Vec::new();
    for _ in 0..rng.index(40) {
        if rng.index(3) > 0 {
            written.append(log, rng, 3000);
            continue;
        }
        let mut group = random_group(rng, 3000);
        let start = log.state.reserve(&mut group, None).expect("room");
        let copied = rng.index(group.len() - GROUP_HEADER);
        log.state
            .ring
            .write(start.advance(32), &group[GROUP_HEADER..GROUP_HEADER + copied]);
        incomplete.push((start, start.advance(group.len() as u64)));
    }
    incomplete
}

/// After a kill the next process makes what was incomplete void and writes the log behind what was durable. Power goes
/// in the middle of that: a void group that is there behind a gap is no proof that the gap was durable once, and the
/// log opens.
#[test]
fn power_may_go_while_what_a_kill_left_is_written() {
    for seed in 0..200 {
        let mut rng = Random(seed);
        let (fs, region, mut written) = (MemFs::new(), region(), Written::default());
        let (killed, acknowledged) = with(in_memory(&fs), || {
            let (log, _) = Log::open(with_ring(dir(), &region)).expect("opens");
            let acknowledged = work(&log, &mut written, &mut rng);
            work_and_be_killed(&log, &mut written, &mut rng);
            (fs.kill_clone(), acknowledged)
        });
        let left = copy_of(&region);
        killed.halt_after(rng.index(6) as u64);
        let torn = with(in_memory(&killed), || {
            let _ = Log::open(with_ring(dir(), &left));
            killed.crash_clone_torn(rng.word())
        });
        with(in_memory(&torn), || {
            let hint = format!("seed {seed}");
            let opened = Log::open(log_options(dir(), &self::region()));
            let (log, _) = opened.unwrap_or_else(|error| panic!("{hint}: {error}"));
            written.assert_all(&log, acknowledged, &hint);
        });
    }
}

/// A ring is not believed beside other files than its own, older or newer.
#[test]
fn a_stale_ring_is_discarded() {
    let (fs, mut rng, mut written) = (MemFs::new(), Random(9), Written::default());
    let old_region = region();
    let old_files = with(in_memory(&fs), || {
        let (log, _) = Log::open(log_options(dir(), &old_region)).expect("made");
        let end = written.append(&log, &mut rng, 5000).end;
        log.wait_durable(end).expect("durable");
        fs.kill_clone()
    });
    let old_ring = copy_of(&old_region);
    let known = with(in_memory(&fs), || {
        // The database went on without that region.
        let (log, report) = Log::open(log_options(dir(), &region())).expect("opens");
        assert_eq!(report.ring, RingUse::NotOffered);
        let end = (0..5)
            .map(|_| written.append(&log, &mut rng, 5000).end)
            .last()
            .expect("five");
        log.wait_durable(end).expect("durable");
        end
    });
    with(in_memory(&fs), || {
        let options = LogOptions {
            known_durable: known,
            ..with_ring(dir(), &old_ring)
        };
        let (log, report) = Log::open(options).expect("opens");
        assert!(matches!(report.ring, RingUse::Discarded(_)), "{report:?}");
        written.assert_all(&log, known, "stale ring");
    });
    // And a newer ring beside files that were restored from a copy.
    let newer = region();
    with(in_memory(&fs), || {
        let (log, _) = Log::open(log_options(dir(), &newer)).expect("opens");
        let end = written.append(&log, &mut rng, 5000).end;
        log.wait_durable(end).expect("durable");
    });
    with(in_memory(&old_files), || {
        let (_, report) = Log::open(with_ring(dir(), &newer)).expect("opens");
        assert!(matches!(report.ring, RingUse::Discarded(_)), "{report:?}");
    });
    // And of another database, or of another size.
    with(in_memory(&fs), || {
        let options = LogOptions {
            database: 1,
            ..with_ring(dir(), &copy_of(&newer))
        };
        assert!(Log::open(options).is_err(), "the files are of another database");
        let bigger = region_of(2 * RING_MIN);
        let (_, report) = Log::open(with_ring(dir(), &bigger)).expect("opens");
        assert!(matches!(report.ring, RingUse::Discarded(_)), "{report:?}");
    });
}

/// Sessions append and wait at the same time; the disk is copied at a moment of its own.
#[test]
fn concurrent_sessions_lose_nothing_acknowledged() {
    for seed in 0..8 {
        let fs = MemFs::new();
        fs.set_sync_time(Nanos::from_micros(50));
        let (acknowledged, crashed) = with(in_memory(&fs), || {
            let options = LogOptions {
                background: seed % 2 == 0,
                ..log_options(dir(), &region())
            };
            let (log, _) = Log::open(options).expect("made");
            let (log, acknowledged) = (Arc::new(log), Arc::new(Mutex::new(BTreeMap::new())));
            let threads: Vec<_> = (0..6)
                .map(|n| {
                    let (log, acknowledged) = (log.clone(), acknowledged.clone());
                    rt::spawn("session", move || {
                        session(&log, &mut Random(seed * 100 + n), &acknowledged)
                    })
                })
                .collect();
            rt::sleep(Nanos::from_millis(1 + seed * 3));
            // First the acknowledgements, then the disk: it may have more, never less.
            let known = acknowledged.lock().clone();
            let crashed = fs.crash_clone_torn(seed);
            threads.into_iter().for_each(|t| t.join().expect("no panic"));
            assert_eq!(log.durable(), log.tail());
            (known, crashed)
        });
        with(in_memory(&crashed), || {
            let (log, _) = Log::open(log_options(dir(), &region())).expect("opens");
            let found = groups(&log, FIRST_LSN);
            for (start, body) in &acknowledged {
                assert_eq!(found.get(start).map(|g| &g.1), Some(body), "seed {seed}: group {start}");
            }
        });
    }
}

fn session(log: &Log, rng: &mut Random, acknowledged: &Mutex<BTreeMap<Lsn, Vec<u8>>>) {
    for _ in 0..150 {
        let mut group = random_group(rng, 2000);
        let appended = log.append(&mut group, None).expect("appended");
        log.wait_durable(appended.end).expect("durable");
        assert!(log.durable() >= appended.end);
        acknowledged
            .lock()
            .insert(appended.start, group[GROUP_HEADER..].to_vec());
    }
}

/// The host is lost: of the ring only flushed lines are sure to be there. Every append that had
/// returned is kept, and the ring is believed.
#[test]
fn a_lost_host_keeps_what_append_had_returned() {
    for seed in 0..25 {
        let (fs, region, mut rng) = (MemFs::new(), region(), Random(seed));
        let mut written = Written::default();
        let (image, files) = with(in_memory(&fs), || {
            let options = LogOptions {
                survive: Survive::Host,
                ..log_options(dir(), &region)
            };
            let recorder = Recorder::of(&region, seed);
            let (log, _) = Log::open(options).expect("made");
            work(&log, &mut written, &mut rng);
            work_and_be_killed(&log, &mut written, &mut rng);
            recorder.crash(&region, rng.word(), || fs.crash_clone_torn(seed))
        });
        let region = Arc::new(Region::from_image(&image).expect("an image"));
        with(in_memory(&files), || {
            let options = LogOptions {
                survive: Survive::Host,
                ..with_ring(dir(), &region)
            };
            let (log, report) = Log::open(options).expect("opens");
            assert_eq!(report.ring, RingUse::Used, "seed {seed}");
            written.assert_all(&log, FIRST_LSN, &format!("seed {seed}"));
            assert_eq!(groups(&log, FIRST_LSN).len(), written.0.len() + report.voided.len());
        });
    }
}

/// A start without the ring made it anew where the log ended, and the bytes behind stayed. The next group was as long
/// as the one that had been there, so that the one behind it followed again: the loss of a host brought it back, when
/// other pages were built on what had gone before.
#[test]
fn groups_of_before_do_not_follow_where_a_ring_was_made_anew() {
    for survive in [Survive::Process, Survive::Host] {
        let (fs, region) = (MemFs::new(), region());
        let options = |believe_ring| LogOptions {
            survive,
            believe_ring,
            ..log_options(dir(), &region)
        };
        let one = |byte| group(&mut GroupBuilder::new(), 1, RecordAddr::NONE, &[byte; 100]);
        with(in_memory(&fs), || {
            let (log, _) = Log::open(options(false)).expect("made");
            let first = log.append(&mut one(1), None).expect("appended");
            log.wait_durable(first.end).expect("durable");
            for byte in 2..5 {
                log.append(&mut one(byte), None).expect("appended");
            }
            log.state.closing.store(true, Ordering::Release);
            drop(log);
            let (log, report) = Log::open(options(false)).expect("opens");
            assert_eq!((&report.ring, report.end), (&RingUse::NotOffered, first.end));
            let again = log.append(&mut one(5), None).expect("appended");
            log.state.closing.store(true, Ordering::Release);
            drop(log);
            let (log, report) = Log::open(options(true)).expect("opens");
            assert_eq!((&report.ring, report.end), (&RingUse::Used, again.end), "{survive:?}");
            assert_eq!(groups(&log, FIRST_LSN).len(), 2);
        });
    }
}

/// The tail is flushed before a boundary beyond it is noted, so none should be found; but what is found in a ring is
/// not believed. One beyond the tail came to lie inside a later group, and a lap later the ring was scanned from there.
#[test]
fn a_boundary_beyond_the_tail_is_forgotten() {
    let dir = tempfile::tempdir().expect("a directory");
    let region = region();
    let mut rng = Random(7);
    let (log, _) = Log::open(log_options(dir.path(), &region)).expect("made");
    let end = Written::default().append(&log, &mut rng, 100).end;
    log.wait_durable(end).expect("durable");
    let span = log.ring_capacity() / 64;
    drop(log);
    let wrong = end.raw() / span * span + span + 8;
    let word = place(&region).offset + 512 + 8 * (wrong / span % 64);
    region.atomic_u64(word).store(wrong, Ordering::Release);
    let (log, report) = Log::open(with_ring(dir.path(), &region)).expect("opens");
    assert_eq!(report.ring, RingUse::Used);
    // No group begins in the part of the wrong boundary.
    let mut long = group(&mut GroupBuilder::new(), 1, RecordAddr::NONE, &[1; 8000]);
    while long.len() < 3 * span as usize {
        let mut builder = GroupBuilder::new();
        let pages = long.len() / 8000 + 2;
        let records: Vec<usize> = (0..pages as u32)
            .map(|p| builder.page(PageId::new(1, p), RecordAddr::NONE))
            .collect();
        records.iter().for_each(|r| builder.write(*r, 64, &[1; 8000]));
        long = builder.finish().expect("a group").to_vec();
    }
    log.append(&mut long, None).expect("appended");
    while log.tail().raw() < log.ring_capacity() + end.raw() {
        Written::default().append(&log, &mut rng, 2000);
    }
    log.flush_all().expect("durable");
    groups(&log, log.ring_scan_start());
}
