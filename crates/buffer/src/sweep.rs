//! What a start leaves to later: a look at the frames that were kept.
//!
//! Which frames are dirty, and which space each belongs to, is known from lists in memory of the process
//! ([`crate::dirty`], [`crate::spaces`]), which a start has to make anew. It does not wait for that: it is done in the
//! background, part by part, and whoever needs the lists before takes parts, with a thread for each processor.
//!
//! ```text
//!  frames kept   [ done | done | under way | under way | next ────────────── ] end
//! ```
//!
//! Invariants:
//! - no checkpoint is taken, no page is written back by age, and no space is dropped before all parts are done;
//! - the pool is in use meanwhile: whoever changes a frame enters it in the lists, whether it was looked at or not.
//!   Here a frame is entered as it was found, which leaves an entry too many at worst.

use std::ops::Range;
use std::sync::{Arc, Weak};

use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, JoinHandle, Nanos};

use crate::pool::Pool;
use crate::stats::bump;

/// Threads that one who needs all parts starts, at most.
const HELPERS: usize = 15;
/// How long one who needs all parts waits for those of others, between two looks.
const TURN: Nanos = Nanos::from_micros(50);

/// How far the look has come, in frames.
#[derive(Default)]
pub(crate) struct Sweep {
    end: AtomicU32,
    next: AtomicU32,
    done: AtomicU32,
}

impl Sweep {
    /// Frames below `end` are to be looked at; when no other thread is about.
    pub fn begin(&self, end: u32) {
        let end = if planted(Fault::UnsweptFrames) { 0 } else { end };
        self.next.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.end.store(end, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.end.load(Ordering::Relaxed)
    }

    /// Parts that nobody has taken.
    fn left(&self, step: u32) -> usize {
        let end = self.end.load(Ordering::Acquire);
        let next = self.next.load(Ordering::Relaxed).min(end);
        (end - next).div_ceil(step) as usize
    }

    fn take(&self, step: u32) -> Option<Range<u32>> {
        let end = self.end.load(Ordering::Acquire);
        let from = self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| {
            (next < end).then(|| next.saturating_add(step).min(end))
        });
        let from = from.ok()?;
        Some(from..from.saturating_add(step).min(end))
    }
}

impl Pool {
    /// Returns when the look at the frames that were kept is over; until then all processors take part in it.
    pub(crate) fn know_all_frames(&self) {
        if self.sweep.is_over() {
            return;
        }
        let helpers = self.start_helpers();
        while self.sweep_part() {}
        for helper in helpers {
            if let Err(panic) = helper.join() {
                std::panic::resume_unwind(panic);
            }
        }
        while !self.sweep.is_over() {
            rt::sleep(TURN);
        }
    }

    /// Threads that take parts as well, as far as the system has any to give.
    fn start_helpers(&self) -> Vec<JoinHandle<()>> {
        let most = rt::cores().min(HELPERS + 1).min(self.sweep.left(self.survey_part));
        let start = |pool: Arc<Pool>| rt::try_spawn("pool-sweep", move || while pool.sweep_part() {});
        let me = || self.me.get().and_then(Weak::upgrade);
        (1..most).map_while(|_| start(me()?).ok()).collect()
    }

    /// Looks at one part; false if there is none left to take.
    pub(crate) fn sweep_part(&self) -> bool {
        let Some(part) = self.sweep.take(self.survey_part) else {
            return false;
        };
        let frames = part.len() as u32;
        part.for_each(|frame| self.enter_found(frame));
        bump(&self.counters().descriptors_examined, u64::from(frames));
        self.sweep.done.fetch_add(frames, Ordering::AcqRel);
        true
    }

    /// Enters a frame in the lists as its descriptor says.
    pub(crate) fn enter_found(&self, frame: u32) {
        let d = self.frames.descriptor(frame);
        self.spaces.enter(frame, || d.key.load(Ordering::Acquire));
        match d.rec.load(Ordering::Acquire) {
            0 => {}
            rec => self.dirty.enter(frame, rec),
        }
    }
}
