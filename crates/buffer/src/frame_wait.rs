//! A frame that is not to be had: how long a thread waits for one, and what it says when it gives up.
//!
//! ```text
//!   nothing to evict ─► transfers under way?  yes ─► wait for them: frames come when they end, up to [`WAIT_MAX`]
//!                                              no ─► is a frame idle, or has a latch moved? yes ─► wait for it
//!                                                                                          no ─► "more memory"
//! ```
//!
//! Invariants:
//! - A shortage is a standstill, not a time: over [`SPELL`] and [`LOOKS`] looks every frame stays latched or being
//!   written, and none of those latches is released. A process that was stopped, or whose other threads were not run,
//!   has used up time and no looks; nor does more than [`PAUSE_MAX`] of it count against [`WAIT_MAX`].
//! - A stall of storage is not called a shortage of memory: as long as a write-back, a read or one flush of the log has
//!   not come back, the thread waits, and what it says in the end is that storage does not answer.
//! - The wait ends: by a frame, by [`WAIT_MAX`], by the shortage, or because the statement is asked to give up. That is
//!   heard only where work can be refused ([`Need::Work`]): commits and rollbacks go on.

use std::fmt;
use std::sync::Arc;

use cenote_base::random::mix;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Lsn, Result};
use cenote_storage::Need;

use crate::index::FrameIndex;
use crate::interrupt::Interrupt;
use crate::latch;
use crate::pool::Pool;

/// Frames are looked at after so long, and so many looks for a victim, without anything under way that could free one;
/// a second time that finds the same latches is a shortage.
const SPELL: Nanos = Nanos::from_secs(1);
const LOOKS: u32 = 100;
/// A thread waits so long for a frame, whatever is under way.
const WAIT_MAX: Nanos = Nanos::from_secs(60);
/// Between two turns no more than this counts: a thread whose process was stopped for longer has not waited.
const PAUSE_MAX: Nanos = Nanos::from_secs(10);
/// Turns that are short, and turns before they are long.
const TURNS_SHORT: u32 = 16;
const TURNS_MEDIUM: u32 = 1000;

/// What storage has not answered yet.
struct Awaited {
    writes: u32,
    reads: u32,
    flush: bool,
}

impl Awaited {
    fn any(&self) -> bool {
        self.writes > 0 || self.reads > 0 || self.flush
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flush = if self.flush {
            ", and the log is being flushed"
        } else {
            ""
        };
        write!(
            f,
            "{} pages are being written and {} read{flush}",
            self.writes, self.reads
        )
    }
}

/// A thread's wait for a frame.
#[derive(Default)]
pub(crate) struct FrameWait {
    turns: u32,
    /// How far the log was durable when it began.
    begun: Option<Lsn>,
    /// When it was looked at last, and how long it has gone on.
    last: Nanos,
    waited: Nanos,
    /// The time in which nothing has been under way.
    quiet: Option<Quiet>,
}

/// A time in which nothing has been under way that could free a frame.
struct Quiet {
    since: Nanos,
    looks: u32,
    /// The latches at the end of the spell before, if they were all there was.
    held: Option<u64>,
}

impl Quiet {
    fn begin(now: Nanos, held: Option<u64>) -> Self {
        Quiet {
            since: now,
            looks: 0,
            held,
        }
    }

    /// One look more. Whether no thread can give a frame back: two spells have ended with the same latches on all
    /// frames.
    fn is_shortage(&mut self, now: Nanos, pool: &Pool) -> bool {
        self.looks += 1;
        if self.looks < LOOKS || now.since(self.since) < SPELL {
            return false;
        }
        let held = pool.latches_on_all();
        let same = held.is_some() && held == self.held;
        *self = Quiet::begin(now, held);
        same
    }
}

impl FrameWait {
    /// There was nothing to evict: waits a little.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when all frames are in use, [`Error::Timeout`] when storage does not answer for too long,
    /// [`Error::Canceled`] when the statement is asked to give up.
    pub fn turn(&mut self, pool: &Pool) -> Result<()> {
        pool.check_interrupt()?;
        let now = rt::now();
        if self.begun.is_some() {
            self.waited += now.since(self.last).min(PAUSE_MAX);
        }
        self.last = now;
        let durable = *self.begun.get_or_insert_with(|| pool.storage.log().durable());
        let awaited = pool.awaited(durable);
        if awaited.any() {
            self.quiet = None;
        } else if self
            .quiet
            .get_or_insert_with(|| Quiet::begin(now, None))
            .is_shortage(now, pool)
        {
            return Err(all_in_use(pool));
        }
        if self.waited > WAIT_MAX {
            return Err(waited_too_long(&awaited));
        }
        self.turns += 1;
        rt::sleep(Nanos::from_micros(match self.turns {
            ..TURNS_SHORT => 20,
            TURNS_SHORT..TURNS_MEDIUM => 1000,
            _ => 10_000,
        }));
        Ok(())
    }
}

impl Pool {
    /// What stops the statement that this thread runs from here on, until [`Pool::heed_nothing`].
    #[inline]
    pub fn heed<I: Interrupt + 'static>(&self, flag: &Arc<I>) {
        let cell = self.interrupts.get();
        let at = Arc::as_ptr(flag) as usize;
        if cell.known.as_raw().load(Ordering::Relaxed) != at {
            cell.learn(flag.clone(), at);
        }
        cell.heard.as_raw().store(true, Ordering::Relaxed);
    }

    /// The statement is over.
    #[inline]
    pub fn heed_nothing(&self) {
        self.interrupts.get().heard.as_raw().store(false, Ordering::Relaxed);
    }

    fn check_interrupt(&self) -> Result<()> {
        match self.need() == Need::Work && self.interrupts.get().is_set() {
            true => Err(Error::Canceled),
            false => Ok(()),
        }
    }

    /// A sum over the latches, if every frame is latched or being written; `None`: one is idle, and can be evicted. Few
    /// frames are looked at but in a shortage, when there are no more than threads can latch.
    fn latches_on_all(&self) -> Option<u64> {
        let header = self.frames.header();
        let reserved = header.frames_reserved.load(Ordering::Relaxed).min(self.frames.count());
        if self.touched() < reserved {
            return None;
        }
        FrameIndex::all(0..reserved).try_fold(0, |sum, frame| {
            let word = self.frames.descriptor(frame).latch.load(Ordering::Relaxed);
            let held = latch::is_held(word, self.owner) || self.is_writing(frame);
            held.then(|| mix(sum ^ word).wrapping_add(u64::from(frame.raw())))
        })
    }

    /// What storage has not answered, for a thread that began to wait when the log was durable up to `durable`: flushes
    /// that come back are the daily work of others.
    fn awaited(&self, durable: Lsn) -> Awaited {
        Awaited {
            writes: self.under_way.writes.load(Ordering::Relaxed),
            reads: self.under_way.reads.load(Ordering::Relaxed),
            flush: self.storage.log().is_flushing() && self.storage.log().durable() == durable,
        }
    }
}

#[cold]
fn all_in_use(pool: &Pool) -> Error {
    let frames = pool.frames.header().frames_reserved.load(Ordering::Relaxed);
    Error::OutOfMemory(format!(
        "all {frames} page frames are in use by running statements; give the database more memory (--memory-size)"
    ))
}

#[cold]
fn waited_too_long(awaited: &Awaited) -> Error {
    let seconds = WAIT_MAX.raw() / 1_000_000_000;
    if awaited.any() {
        return Error::Timeout(format!(
            "waited {seconds} s for a page frame, and storage does not answer: {awaited}; see to the drive of the data \
             directory"
        ));
    }
    Error::OutOfMemory(format!(
        "waited {seconds} s for a page frame: other statements took each that came free; give the database more memory \
         (--memory-size), or run fewer statements at a time"
    ))
}
