//! Commits that a mirror lacks, which may count as whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cenote_base::Error;
use cenote_fabric::{RegionMemory, Side};

use super::*;

/// A mirror that was given up by patience, or was not.
#[derive(Default)]
struct Behind(AtomicU64);

impl Side for Behind {
    fn reserve_to(&self, _end: u64) -> Result<()> {
        Ok(())
    }

    fn copy(&self, _memory: &RegionMemory, _off: u64, _len: usize) {}

    fn fence(&self) {}

    fn is_apart(&self) -> bool {
        true
    }

    fn behind(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst)).filter(|number| *number > 0)
    }
}

/// The first two flushes behind each mirror are noted before they are acknowledged. A start that knows of them does not
/// believe the ring as it was then, and loses nothing; a note that cannot be made ends the log.
#[test]
fn what_a_mirror_lacks_is_noted_before_it_is_acknowledged() {
    let (dir, memory) = (tempfile::tempdir().expect("a directory"), region());
    let (log, _) = Log::open(log_options(dir.path(), &memory)).expect("made");
    let log = Arc::new(log);
    let (noted, fails) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (notes, failing, of) = (Arc::clone(&noted), Arc::clone(&fails), Arc::downgrade(&log));
    log.set_note_durable(Box::new(move |to: Lsn| {
        assert!(
            of.upgrade().is_some_and(|log| log.durable() < to),
            "acknowledged before"
        );
        notes.lock().expect("no panic").push(to);
        match failing.load(Ordering::SeqCst) {
            true => Err(Error::Poisoned("the control file".into())),
            false => Ok(()),
        }
    }));
    let mirror = Arc::new(Behind::default());
    memory
        .attach_mirror(Arc::clone(&mirror) as Arc<dyn Side>)
        .expect("room");
    let (mut written, mut rng, mut expected) = (Written::default(), Random(5), Vec::new());
    let mut lost = None;
    for (number, flushes) in [(0, 3), (7, 4), (8, 1), (0, 1), (8, 2)] {
        if number == 7 {
            // What a mirror has that gets no more.
            lost = Some(copy_of(&memory));
        }
        mirror.0.store(number, Ordering::SeqCst);
        for flush in 0..flushes {
            let end = written.append(&log, &mut rng, 100).end;
            log.wait_durable(end).expect("durable");
            if (number == 7 && flush < 2) || (number == 8 && flush == 0) {
                expected.push(end);
            }
        }
    }
    assert_eq!(*noted.lock().expect("no panic"), expected);
    fails.store(true, Ordering::SeqCst);
    mirror.0.store(9, Ordering::SeqCst);
    let end = log.durable();
    let more = written.append(&log, &mut rng, 100).end;
    assert!(matches!(log.wait_durable(more), Err(Error::Poisoned(_))));
    assert!(matches!(log.wait_durable(more), Err(Error::LogFailed(_))));
    assert_eq!(log.durable(), end);
    drop(log);

    let old = lost.expect("seen");
    let options = LogOptions {
        believe_ring: true,
        known_durable: expected[expected.len() - 1],
        ..log_options(dir.path(), &old)
    };
    let (log, report) = Log::open(options).expect("opens");
    assert!(matches!(report.ring, RingUse::Discarded(_)), "{report:?}");
    written.assert_all(&log, end, "after the loss of the memory");
}
