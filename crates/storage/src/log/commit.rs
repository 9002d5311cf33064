//! Group commit: who writes the log, and who waits.
//!
//! There is no commit thread to hand over to. Of those who wait for durability one *leads*: it
//! writes all that is complete, syncs, and wakes whom that covers. Those who come meanwhile
//! queue; their redo gathers in the ring while the sync runs, and the one who waits longest is
//! handed the lead when it ends, before anybody else is woken, so that the disk is not idle.
//!
//! ```text
//! wait_durable ─ durable already? ────────────────────────────────► return
//!      │ nobody leads: LEAD ─ flush ─ pass the lead on ─ wake the covered ─► return
//!      └ somebody leads: queue ─ WAITING (keep the sync company, then sleep)
//!              ├ DONE: covered, or the log is poisoned ───────────► look again
//!              ├ a minute without any progress ───────────────────► leave the queue: unknown
//!              └ LEAD: the lead was handed over ──────────────────► flush …
//! ```
//!
//! Lock order: `queue` and `reserve` are never held together; `flusher` is held only by the lead
//! and is taken before either.

use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Local, Mutex, Nanos};
use cenote_base::{Error, Lsn, Result};

use super::block_of;
use super::ring::{BLOCK, Ring};
use super::space::Timeout;
use super::sync_spinner::SyncSpinner;
use crate::redo::{GROUP_HEADER, STATE_COMPLETE, u32_at};

/// Between two looks of a waiter at how far the log has come.
const LOOK: Nanos = Nanos::from_secs(5);
/// Looks, a minute, after which a waiter gives up where nothing at all has become durable: the lead's write or sync
/// does not come back. They are counted, so that a machine that was suspended is not taken for a drive that does not
/// answer.
const LOOKS_MAX: u64 = 12;

const WAITING: u32 = 0;
const SLEEPING: u32 = 1;
const DONE: u32 = 2;
const LEAD: u32 = 3;

#[derive(Default)]
pub(crate) struct Waiters {
    queue: Mutex<Queue>,
    words: Local<Word>,
    pub sync_spinner: SyncSpinner,
}

#[derive(Default)]
struct Word(AtomicU32);

#[derive(Default)]
struct Queue {
    led: bool,
    waiting: Vec<Waiter>,
}

struct Waiter {
    lsn: Lsn,
    slot: usize,
}

/// What a waiter is to do.
pub(crate) enum Turn {
    /// Flush, then [`Waiters::pass_on`].
    Lead,
    /// Look whether it is durable now.
    Look,
    /// The log makes no progress.
    Stalled,
}

/// How far the log had come when a waiter looked, and how many looks ago that was new.
struct Progress {
    durable: Lsn,
    looks: u64,
}

impl Progress {
    fn new(durable: Lsn) -> Progress {
        Progress { durable, looks: 0 }
    }

    /// A look: whether it has come no further for too long.
    fn is_stalled(&mut self, durable: Lsn) -> bool {
        if durable != self.durable {
            *self = Progress::new(durable);
        }
        self.looks += 1;
        self.looks >= LOOKS_MAX
    }
}

impl Waiters {
    /// Leads if nobody does, else waits until the lead is handed over or `lsn` is covered. `covered` is asked under the
    /// queue's lock, which the lead takes after each flush; `stalled`, now and then, while it sleeps.
    pub fn enter(&self, lsn: Lsn, covered: impl Fn() -> bool, stalled: impl FnMut() -> bool) -> Turn {
        let slot = rt::thread_slot();
        let word = &self.words.of(slot).0;
        {
            let mut queue = self.queue.lock();
            if covered() {
                return Turn::Look;
            }
            if !queue.led {
                queue.led = true;
                return Turn::Lead;
            }
            word.store(WAITING, Ordering::Relaxed);
            queue.waiting.push(Waiter { lsn, slot });
        }
        self.await_word(slot, stalled)
    }

    /// Whether somebody leads: a flush is under way.
    pub fn is_led(&self) -> bool {
        self.queue.lock().led
    }

    /// Leads if nobody does; does not wait.
    pub fn try_lead(&self) -> bool {
        let mut queue = self.queue.lock();
        !std::mem::replace(&mut queue.led, true)
    }

    /// Takes the waiter of `slot` out of the queue. False: it has been signalled.
    fn leave(&self, slot: usize) -> bool {
        let mut queue = self.queue.lock();
        let before = queue.waiting.len();
        queue.waiting.retain(|waiter| waiter.slot != slot);
        queue.waiting.len() < before
    }

    fn await_word(&self, slot: usize, mut stalled: impl FnMut() -> bool) -> Turn {
        let word = &self.words.of(slot).0;
        self.sync_spinner.keep(|| word.load(Ordering::Acquire) == WAITING);
        if word
            .compare_exchange(WAITING, SLEEPING, Ordering::Acquire, Ordering::Acquire)
            .is_ok()
        {
            while word.load(Ordering::Acquire) == SLEEPING {
                let wait = rt::wait(word, SLEEPING, Some(LOOK));
                if wait == rt::Wait::TimedOut && stalled() && self.leave(slot) {
                    return Turn::Stalled;
                }
            }
        }
        if word.load(Ordering::Acquire) == LEAD {
            Turn::Lead
        } else {
            Turn::Look
        }
    }

    /// Ends the caller's lead: hands it to the first who is not covered, then wakes those who
    /// are (all, if the log is poisoned).
    pub fn pass_on(&self, durable: Lsn, all: bool) {
        let mut queue = self.queue.lock();
        let covered = |w: &Waiter| all || w.lsn <= durable;
        let heir = queue
            .waiting
            .iter()
            .position(|w| !covered(w))
            .map(|i| queue.waiting.remove(i));
        queue.led = heir.is_some();
        if let Some(heir) = heir {
            self.signal(heir.slot, LEAD);
        }
        queue.waiting.retain(|w| {
            let done = covered(w);
            if done {
                self.signal(w.slot, DONE);
            }
            !done
        });
    }

    fn signal(&self, slot: usize, state: u32) {
        let word = &self.words.of(slot).0;
        if word.swap(state, Ordering::Release) == SLEEPING {
            rt::wake(word, 1);
        }
    }
}

/// What the lead needs: the buffer between ring and file, and what it wrote last.
pub(crate) struct Flusher {
    staging: Vec<u8>,
    /// The durable bytes of the block in which the durable log ends. They are not taken from the
    /// ring again: what is durable must not be overwritten by what may be damaged since.
    pub block: [u8; BLOCK as usize],
    /// The newest group that is durable.
    pub last_start: Lsn,
    pub last_checksum: u32,
    /// Counts flushes, for the ring's two marks.
    pub turn: u64,
}

impl Flusher {
    const STAGING: usize = 1 << 20;

    pub fn new() -> Flusher {
        Flusher {
            staging: vec![0; Self::STAGING],
            block: [0; BLOCK as usize],
            last_start: Lsn::ZERO,
            last_checksum: 0,
            turn: 0,
        }
    }

    /// The `length` bytes at `at`, a block's start, padded with zeros to whole blocks: from the
    /// ring those from `from` on, which are new.
    fn stage(&mut self, at: Lsn, from: Lsn, length: usize, ring: &Ring) -> &[u8] {
        let known = from.since(at) as usize;
        let blocks = &mut self.staging[..length.next_multiple_of(BLOCK as usize)];
        blocks[..known].copy_from_slice(&self.block[..known]);
        ring.read(at.advance(known as u64), &mut blocks[known..length]);
        blocks[length..].fill(0);
        blocks
    }

    /// Remembers the block of `to`, if it is in what was staged from `at` on.
    fn keep_block(&mut self, at: Lsn, to: Lsn) {
        let offset = block_of(to).since(at) as usize;
        if block_of(to) >= at && offset < Self::STAGING {
            self.block
                .copy_from_slice(&self.staging[offset..offset + BLOCK as usize]);
        }
    }
}

fn stalled(lsn: Lsn, durable: Lsn) -> Error {
    Error::Timeout(format!(
        "the log is durable up to {durable} and has made no progress for {} s, so position {lsn} is not: its drive does not answer. \
         What was written is in the log's memory, and becomes durable when the drive does",
        LOOKS_MAX * LOOK.0 / 1_000_000_000
    ))
}

impl super::Core {
    /// Returns once everything below `lsn` is synced, leading if nobody does. Not to be cancelled: what waits has its
    /// place in the log. Errors: `Timeout` where the drive of the one that leads does not answer; it may become durable
    /// yet.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        if self.durable() >= lsn {
            return Ok(());
        }
        if lsn > self.tail() {
            return Err(Error::corrupt(format!(
                "position {lsn} is beyond the log's end, {}",
                self.tail()
            )));
        }
        let (mut timeout, mut progress) = (Timeout::default(), Progress::new(self.durable()));
        while self.durable() < lsn {
            self.check()?;
            let covered = || self.durable() >= lsn || self.poisoned();
            match self.waiters.enter(lsn, covered, || progress.is_stalled(self.durable())) {
                Turn::Lead => {
                    let flushed = self.flush(lsn);
                    self.waiters.pass_on(self.durable(), self.poisoned());
                    match flushed {
                        Err(full @ Error::Full(_)) => self.bide(&mut timeout, full)?,
                        done => done?,
                    }
                }
                Turn::Look => {}
                Turn::Stalled => return Err(stalled(lsn, self.durable())),
            }
        }
        Ok(())
    }

    /// Makes what is complete now durable, unless somebody is at it.
    pub fn flush_ahead(&self) -> Result<()> {
        if self.durable() >= self.tail() || !self.waiters.try_lead() {
            return Ok(());
        }
        let flushed = self.flush(self.durable());
        self.waiters.pass_on(self.durable(), self.poisoned());
        flushed
    }

    /// As the lead: writes and syncs all complete groups, at least up to `target` as far as there are segments for
    /// them.
    fn flush(&self, target: Lsn) -> Result<()> {
        self.check()?;
        let mut flusher = self.flusher.lock();
        let from = self.durable();
        let (reach, full) = self.reach(from, self.tail()).inspect_err(|e| self.poison(e))?;
        let to = self
            .complete_up_to(from, target.min(reach), reach, &mut flusher)
            .inspect_err(|e| self.poison(e))?;
        if to == from {
            return full.map_or(Ok(()), Err);
        }
        mark::pass(Mark::RedoGathered);
        self.write_out(from, to, &mut flusher).inspect_err(|e| self.poison(e))?;
        let mark = super::ring::Mark {
            durable: to,
            last_start: flusher.last_start,
            last_checksum: flusher.last_checksum,
        };
        flusher.turn += 1;
        self.ring.set_mark(flusher.turn, mark);
        self.durable.store(to.raw(), Ordering::Release);
        self.after_flush(from, to);
        Ok(())
    }

    /// The end of the complete groups from `from` on that end at `reach` at the latest. Groups before `target` that are
    /// not complete yet are waited for: they are being copied this moment, unless their thread has lost its processor.
    fn complete_up_to(&self, from: Lsn, target: Lsn, reach: Lsn, flusher: &mut Flusher) -> Result<Lsn> {
        let (mut at, mut tail) = (from, self.tail());
        let mut spin = rt::Spin::new();
        while at < tail {
            let Some(header) = self.complete_header(at)? else {
                if at >= target {
                    break;
                }
                spin.wait();
                continue;
            };
            spin = rt::Spin::new();
            if header.end() > reach {
                break;
            }
            (flusher.last_start, flusher.last_checksum) = (at, header.checksum);
            at = header.end();
            if at >= tail {
                tail = self.tail();
            }
            if at.since(from) >= self.ring.capacity() / 2 && at >= target {
                break;
            }
        }
        Ok(at)
    }

    /// See [`super::Log::wait_complete`].
    pub(super) fn wait_complete(&self, lsn: Lsn) -> Result<()> {
        let mut at = self.durable();
        let mut spin = rt::Spin::new();
        while at < lsn {
            match self.complete_header(at) {
                Ok(Some(header)) => {
                    // Seen complete here, it must be so in memory that outlives the host before anything that builds on
                    // it.
                    self.ring.persist_state(at);
                    at = header.end();
                    spin = rt::Spin::new();
                }
                Ok(None) => spin.wait(),
                // Durable meanwhile, and written over.
                Err(_) if self.durable() > at => {}
                Err(error) => return Err(error),
            }
            at = at.max(self.durable());
        }
        Ok(())
    }

    /// See [`super::Log::is_incomplete`].
    pub(super) fn is_incomplete(&self, lsn: Lsn) -> bool {
        let mut at = self.durable();
        while at < lsn {
            let header = self.ring.header(at);
            let length = u32_at(&header, 4).filter(|length| *length >= GROUP_HEADER as u32);
            at = length.map_or(Lsn::MAX, |length| at.advance(length.into()));
            if at == lsn {
                return u32_at(&header, 20) != Some(STATE_COMPLETE);
            }
        }
        false
    }

    fn write_out(&self, from: Lsn, to: Lsn, flusher: &mut Flusher) -> Result<()> {
        let mut at = block_of(from);
        while at < to {
            let segment_end = self.segments.start_of(self.segments.number_of(at) + 1);
            let length = to.min(segment_end).since(at).min(Flusher::STAGING as u64) as usize;
            let blocks = flusher.stage(at, from, length, &self.ring);
            self.segments.write(at, blocks)?;
            flusher.keep_block(at, to);
            at = at.advance(length as u64);
        }
        self.sync(from, to)
    }

    fn sync(&self, from: Lsn, to: Lsn) -> Result<()> {
        let payload = self.segments.payload();
        let sync = self.waiters.sync_spinner.begin(self.background);
        let synced =
            (from.raw() / payload..=(to.raw() - 1) / payload).try_for_each(|number| self.segments.sync(number));
        self.waiters.sync_spinner.end(sync);
        if planted(Fault::SyncError) { Ok(()) } else { synced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// One that waited for a lead whose sync never came back waited for ever.
    #[test]
    fn a_waiter_whose_lead_makes_no_progress_leaves_the_queue() {
        let waiters = Arc::new(Waiters::default());
        assert!(waiters.try_lead());
        // A look takes `LOOK`: this test, two of them.
        let behind = waiters.clone();
        let waiter = rt::spawn("waiter", move || {
            let mut looks = 0;
            let stalled = || {
                looks += 1;
                looks == 2
            };
            matches!(behind.enter(Lsn::from_raw(10), || false, stalled), Turn::Stalled)
        });
        assert!(waiter.join().expect("no panic"), "it is told");
        assert!(waiters.queue.lock().waiting.is_empty());
        waiters.pass_on(Lsn::from_raw(10), false);
        assert!(!waiters.is_led(), "nobody was left to lead");
    }

    #[test]
    fn progress_of_any_kind_begins_the_wait_anew() {
        let mut progress = Progress::new(Lsn::from_raw(1));
        for durable in [1, 2] {
            let stalled = (1..=LOOKS_MAX).map(|_| progress.is_stalled(Lsn::from_raw(durable)));
            assert_eq!(stalled.filter(|stalled| *stalled).count(), 1, "at the last look");
        }
    }
}
