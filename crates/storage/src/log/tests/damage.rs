//! Damage: flipped bytes, missing and short segments. An error that says where, or all is there;
//! never fewer groups in silence.

use cenote_base::rt::fs::with;

use super::*;

/// A log of several segments and syncs; its end.
fn make(fs: &MemFs, written: &mut Written) -> Lsn {
    with(in_memory(fs), || {
        let (log, _) = Log::open(log_options(dir(), &region())).expect("made");
        let mut rng = Random(4);
        for _ in 0..60 {
            let end = written.append(&log, &mut rng, 8000).end;
            log.wait_durable(end).expect("durable");
        }
        log.durable()
    })
}

#[test]
fn flipped_bytes_of_the_durable_log_are_an_error_that_says_where() {
    let (fs, mut written, mut rng) = (MemFs::new(), Written::default(), Random(8));
    let end = make(&fs, &mut written);
    let last = *written.0.keys().last().expect("some");
    let mut refused = 0;
    for seed in 0..300 {
        let copy = fs.kill_clone();
        let files = copy.files();
        let file = &files[rng.index(files.len())];
        let offset = rng.index(4096 + (64 << 10)) as u64;
        copy.flip(file, offset, 1 << rng.index(8)).expect("inside the file");
        // Sometimes nothing is known but the log itself: then the last sync is not proven.
        let known = if seed % 2 == 0 { end } else { Lsn::ZERO };
        with(in_memory(&copy), || {
            let options = LogOptions {
                known_durable: known,
                ..log_options(dir(), &region())
            };
            match Log::open(options) {
                Err(e) => {
                    refused += 1;
                    let text = e.to_string();
                    assert!(text.contains("/log/0000"), "flip at {offset} of {file:?}: {text}");
                }
                Ok((log, report)) => {
                    let least = if known == end { end } else { last };
                    assert!(report.end >= least, "flip at {offset} of {file:?}: {report:?}");
                    written.0.retain(|at, _| *at < end);
                    assert!(groups(&log, FIRST_LSN).len() + 1 >= written.0.len());
                }
            }
        });
    }
    assert!(refused > 150, "only {refused} flips were noticed");
}

#[test]
fn a_missing_or_short_segment_is_an_error_that_names_it() {
    let (fs, mut written) = (MemFs::new(), Written::default());
    let end = make(&fs, &mut written);
    let used = end.raw().div_ceil(64 << 10) as usize;
    for number in 0..used {
        for cut in [false, true] {
            let copy = fs.kill_clone();
            let name = format!("/log/{number:016x}.log");
            with(in_memory(&copy), || {
                if cut {
                    let file = cenote_base::rt::fs::open(&name, cenote_base::rt::fs::OpenOptions::WRITE);
                    file.expect("there").set_len(30000).expect("cut");
                } else {
                    cenote_base::rt::fs::remove(&name).expect("removed");
                }
                let options = LogOptions {
                    known_durable: end,
                    ..log_options(dir(), &region())
                };
                let error = Log::open(options).err().expect("refused").to_string();
                assert!(error.contains(&name), "{error}");
            });
        }
    }
}

/// Nothing but the log's own files says that there was more of it: the prepared segments do.
#[test]
fn a_lost_segment_is_noticed_without_being_told_how_long_the_log_was() {
    let (fs, mut written) = (MemFs::new(), Written::default());
    let end = make(&fs, &mut written);
    with(in_memory(&fs), || {
        // Prepared segments, as the background makes them.
        let (log, _) = Log::open(log_options(dir(), &region())).expect("opens");
        log.state.prepare_segments();
    });
    let last = end.raw() / (64 << 10);
    for lost in [vec![last], (0..last + 3).collect()] {
        let copy = fs.kill_clone();
        with(in_memory(&copy), || {
            for number in &lost {
                cenote_base::rt::fs::remove(format!("/log/{number:016x}.log")).expect("removed");
            }
            let options = LogOptions {
                checkpoint: Lsn::from_raw(end.raw()),
                ..log_options(dir(), &region())
            };
            let error = Log::open(options).err().expect("refused").to_string();
            assert!(error.contains("missing"), "{error}");
        });
    }
}

/// Any byte of the ring may be flipped: the ring is then used with everything in it, or it is
/// discarded, or what was flipped had not been made durable. What was durable is there.
#[test]
fn flipped_bytes_of_the_ring_lose_nothing_durable() {
    let mut rng = Random(21);
    for seed in 0..150 {
        let (fs, region, mut written) = (MemFs::new(), region(), Written::default());
        let durable = with(in_memory(&fs), || {
            let (log, _) = Log::open(log_options(dir(), &region)).expect("made");
            for _ in 0..10 {
                written.append(&log, &mut rng, 3000);
            }
            log.flush_all().expect("durable");
            for _ in 0..10 {
                written.append(&log, &mut rng, 3000);
            }
            log.durable()
        });
        let at = RING_OFFSET + rng.index(if seed % 3 == 0 { 1024 } else { 70000 }) as u64;
        let span = region.span(at, 1);
        span.set_u8(0, span.u8(0) ^ 1 << rng.index(8));
        with(in_memory(&fs.kill_clone()), || {
            let (log, report) = Log::open(with_ring(dir(), &region)).expect("opens");
            let hint = format!("seed {seed}, byte {at}: {report:?}");
            assert!(report.end >= durable, "{hint}");
            let found = groups(&log, FIRST_LSN);
            for (start, body) in written.0.range(..durable) {
                assert_eq!(found.get(start).map(|g| &g.1), Some(body), "{hint}");
            }
            for (start, (kind, body)) in &found {
                assert!(*kind == GroupKind::Void || written.0.get(start) == Some(body), "{hint}");
            }
        });
    }
}
