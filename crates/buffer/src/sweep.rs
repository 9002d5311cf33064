//! What a start leaves to later: a look at the frames that were kept.
//!
//! Which frames are dirty, and which space each belongs to, is known from lists in memory of the process
//! ([`crate::dirty`], [`crate::spaces`]), which a start has to make anew. It does not wait for that: it is done in the
//! background, part by part, and a caller that needs the lists before takes parts, with a thread for each processor.
//!
//! ```text
//!  frames kept   [ done | done | under way | under way | next ────────────── ] end
//! ```
//!
//! Invariants:
//! - no checkpoint is taken, no page is written back by age, and no space is dropped before all parts are done;
//! - the pool is in use meanwhile: a thread that changes a frame enters it in the lists, whether it was looked at or
//!   not. Here a frame is entered as it was found, which leaves an entry too many at worst.

use std::ops::Range;

use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::fault::{Fault, planted};

/// How far the look has come, in frames.
#[derive(Default)]
pub(crate) struct Sweep {
    pub end: AtomicU32,
    pub next: AtomicU32,
    pub done: AtomicU32,
}

impl Sweep {
    /// Frames below `end` are to be looked at; when no other thread is about.
    pub fn begin(&self, end: u32) {
        let end = if planted(Fault::UnsweptFrames) { 0 } else { end };
        self.next.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.end.store(end, Ordering::Release);
    }

    pub fn is_over(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.end.load(Ordering::Relaxed)
    }

    /// Parts that no thread has taken.
    pub fn left(&self, step: u32) -> usize {
        let end = self.end.load(Ordering::Acquire);
        let next = self.next.load(Ordering::Relaxed).min(end);
        (end - next).div_ceil(step) as usize
    }

    pub fn take(&self, step: u32) -> Option<Range<u32>> {
        assert!(step > 0, "a part of the frames kept has frames");
        let end = self.end.load(Ordering::Acquire);
        let from = self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| {
            (next < end).then(|| next.saturating_add(step).min(end))
        });
        let from = from.ok()?;
        Some(from..from.saturating_add(step).min(end))
    }

    /// A part of `frames` frames was looked at.
    pub fn finish(&self, frames: u32) {
        let done = self.done.fetch_add(frames, Ordering::AcqRel) + frames;
        let taken = self.next.as_raw().load(Ordering::Relaxed);
        assert!(done <= taken, "{done} frames were looked at, and {taken} were taken");
    }
}
