//! Page frames run short: threads wait as long as frames may still come, and say what they waited for when they give
//! up.
//!
//! A write-back that took longer than two seconds once made threads that waited for its frames fail with "give the
//! database more memory"; so did a process that was not run for two seconds.

use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{PageId, Result};
use cenote_buffer::{BufferPool, Config, FRAMES_MIN, Geometry, Kind};
use cenote_sim::{Sim, seeds};
use cenote_storage::DataDir;

const SPACE: u32 = 1000;
/// Pages in use: three times as many as there are frames.
const PAGES: u32 = 3 * FRAMES_MIN;
/// More than there are batches to write back: threads that find nothing to write wait for a frame.
const WRITERS: u32 = 64;
/// A run that goes on for longer hangs.
const STEPS: u64 = 200_000_000;

fn open() -> BufferPool {
    let length = Geometry::len_for(FRAMES_MIN).expect("a size that there is");
    let config = Config::new(Kind::Dram, length);
    let pool = BufferPool::open(config, DataDir::open(Path::new("/data")).expect("data"));
    let pool = pool.expect("a pool").0;
    pool.storage().pages().create_space(SPACE).expect("a space");
    for page in 0..PAGES {
        let mut m = pool.mtr();
        m.create(PageId::new(SPACE, page), 7, 0).expect("made");
        m.commit();
    }
    pool.flush_all().expect("written");
    pool
}

fn change(pool: &BufferPool, page: u32) -> Result<()> {
    let mut m = pool.mtr();
    let held = m.exclusive(PageId::new(SPACE, page))?;
    let before = m.view(held).u32(64);
    m.write_u32(held, 64, before + 1);
    m.commit();
    Ok(())
}

/// What the writers of a run went through.
#[derive(Default)]
struct Noted {
    stop: AtomicBool,
    changes: AtomicU64,
    /// The longest time that one change took.
    longest: AtomicU64,
}

/// Changes pages until told to stop, or refused.
fn write(pool: &BufferPool, noted: &Noted) -> Result<()> {
    while !noted.stop.load(Ordering::SeqCst) {
        let begun = rt::now();
        change(pool, (rt::random() % u64::from(PAGES)) as u32)?;
        noted.longest.fetch_max(rt::now().since(begun).raw(), Ordering::SeqCst);
        noted.changes.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Until no writer has come further for half a second.
fn await_standstill(noted: &Noted) {
    let (mut before, mut quiet) = (u64::MAX, 0);
    while quiet < 50 {
        rt::sleep(Nanos::from_millis(10));
        let now = noted.changes.load(Ordering::SeqCst);
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
    }
}

/// Writers change more pages than there are frames, the drive stops answering, and goes on `stall` after no thread has
/// got a frame any more. What each writer ended with, and how it went.
fn stalled(seed: u64, stall: Nanos) -> (Vec<Result<()>>, Arc<Noted>) {
    println!("CENOTE_SEED={seed}");
    let run = Sim::new(seed).with_step_limit(STEPS).run(|sim| {
        let (pool, noted) = (Arc::new(open()), Arc::new(Noted::default()));
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                let (pool, noted) = (pool.clone(), noted.clone());
                rt::spawn("writer", move || write(&pool, &noted))
            })
            .collect();
        rt::sleep(Nanos::from_millis(20));
        sim.files().stall_until(Nanos::MAX);
        await_standstill(&noted);
        rt::sleep(stall);
        let before = noted.changes.load(Ordering::SeqCst);
        sim.files().stall_until(Nanos::ZERO);
        // Time may jump while writers are ready: those that are left get a minute.
        let goes_on = (0..6000).any(|_| {
            rt::sleep(Nanos::from_millis(10));
            noted.changes.load(Ordering::SeqCst) > before
        });
        noted.stop.store(true, Ordering::SeqCst);
        let ends: Vec<_> = writers.into_iter().map(|w| w.join().expect("no panic")).collect();
        assert!(
            goes_on || ends.iter().all(Result::is_err),
            "no thread goes on after the stall"
        );
        (ends, noted)
    });
    run.value
}

/// Frames come again when the drive does: no thread is refused, however long that took below the bound, and writers did
/// run short of frames meanwhile.
#[test]
fn frames_are_waited_for_while_the_drive_stalls() {
    for seed in seeds(3) {
        for stall in [3, 15, 50].map(Nanos::from_secs) {
            let (ends, noted) = stalled(seed, stall);
            for end in ends {
                end.unwrap_or_else(|error| panic!("seed {seed}, a stall of {stall:?}: {error}"));
            }
            let longest = Nanos(noted.longest.load(Ordering::SeqCst));
            assert!(
                longest + Nanos::from_secs(1) > stall,
                "no frame was waited for: {longest:?} of {stall:?}"
            );
        }
    }
}

/// A drive that does not answer for longer than the bound: a thread that waits for a frame is refused, and told that it
/// is storage, and what is on its way there. Those that write a batch back themselves wait for the log, which names its
/// drive after the same time.
#[test]
fn a_drive_that_stays_silent_is_named() {
    for seed in seeds(3) {
        let (ends, _) = stalled(seed, Nanos::from_secs(100));
        let errors: Vec<String> = ends
            .into_iter()
            .filter_map(|end| Some(end.err()?.to_string()))
            .collect();
        for text in &errors {
            assert!(
                text.contains("60 s") && text.contains("does not answer"),
                "seed {seed}: {text}"
            );
        }
        let for_frames = errors
            .iter()
            .filter(|text| text.contains("waited 60 s for a page frame"));
        let mut what =
            for_frames.map(|text| text.contains("pages are being written") && text.contains("storage does not"));
        assert!(
            what.next().is_some_and(|named| named) && what.all(|named| named),
            "seed {seed}: {errors:#?}"
        );
    }
}

/// Two statements latch all frames there are, until told to let go; a third wants one more page. `meanwhile` happens to
/// them. What the third ended with.
fn all_latched(seed: u64, meanwhile: impl FnOnce(&Sim, &AtomicBool)) -> Result<()> {
    println!("CENOTE_SEED={seed}");
    let run = Sim::new(seed).with_step_limit(STEPS).run(|sim| {
        let (pool, let_go, held) = (
            Arc::new(open()),
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let half = FRAMES_MIN / 2;
        let holders = [0, half].map(|first| {
            let (pool, let_go, held) = (pool.clone(), let_go.clone(), held.clone());
            rt::spawn("holder", move || {
                let mut m = pool.mtr();
                for page in first..first + half {
                    m.exclusive(PageId::new(SPACE, page)).expect("a frame");
                    held.fetch_add(1, Ordering::SeqCst);
                }
                while !let_go.load(Ordering::SeqCst) {
                    rt::sleep(Nanos::from_millis(1));
                }
            })
        });
        while held.load(Ordering::SeqCst) < u64::from(FRAMES_MIN) {
            rt::sleep(Nanos::from_millis(1));
        }
        let third = {
            let pool = pool.clone();
            rt::spawn("third", move || change(&pool, PAGES - 1))
        };
        rt::sleep(Nanos::from_millis(20));
        meanwhile(sim, &let_go);
        let end = third.join().expect("no panic");
        let_go.store(true, Ordering::SeqCst);
        holders.into_iter().for_each(|holder| holder.join().expect("no panic"));
        end
    });
    run.value
}

/// No thread was run for three seconds, or for longer than a thread waits for a frame at all, and the frames come back
/// at once after that: time alone is no shortage.
#[test]
fn a_process_that_stood_still_is_not_short_of_frames() {
    for (seed, stop) in seeds(8).flat_map(|seed| [3, 100].map(|seconds| (seed, Nanos::from_secs(seconds)))) {
        let end = all_latched(seed, |sim, let_go| {
            sim.world().pause(0, stop);
            // The first sleep ends with the pause, the second when the third statement has looked again.
            rt::sleep(Nanos::from_millis(5));
            rt::sleep(Nanos::from_millis(5));
            let_go.store(true, Ordering::SeqCst);
        });
        end.unwrap_or_else(|error| panic!("seed {seed}, stopped for {stop:?}: {error}"));
    }
}

/// All frames stay latched, and nothing is under way: that is one, and the error says what to do.
#[test]
fn frames_that_cannot_be_given_back_are_a_shortage() {
    for seed in seeds(3) {
        let end = all_latched(seed, |_, _| ());
        let text = end.expect_err("no frame comes").to_string();
        assert!(
            text.contains("all 128 page frames are in use") && text.contains("--memory-size"),
            "seed {seed}: {text}"
        );
    }
}
