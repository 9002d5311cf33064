//! Group commit: waiting threads write the log for each other.
//!
//! There is no commit thread to hand over to. Of the threads that wait for durability one *leads*: it writes all
//! complete groups, syncs, and wakes the threads that this covers. Threads that come meanwhile queue, and their redo
//! gathers in the ring while the sync runs. When the sync ends, the lead passes to the thread that has waited longest,
//! before any other is woken, so that the disk is not idle.
//!
//! ```text
//! wait_durable ─ durable already? ────────────────────────────────► return
//!      │ no leader: LEAD ─ flush ─ pass the lead on ─ wake the covered ─► return
//!      └ a leader: queue ─ WAITING (spin with the sync, then sleep)
//!              ├ DONE: covered, or the log is poisoned ───────────► look again
//!              ├ a minute without any progress ───────────────────► leave the queue: unknown
//!              └ LEAD: the lead was handed over ──────────────────► flush …
//! ```
//!
//! Lock order: `queue` and `reserve` are never held together; `flusher` is held only by the lead
//! and is taken before either.

use cenote_base::bytes::get_le;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Lsn, Result};

use super::flusher::Flusher;
use super::medium::{Medium, NODE_BATCH};
use super::ring::{RingMark, block_of};
use super::segments::Segments;
use super::space::Timeout;
use super::state::LogState;
use super::waiters::{LOOK, LOOKS_MAX, Progress, Turn};
use crate::nodes::LogEnd;
use crate::redo::{GROUP_HEADER, STATE_COMPLETE};

fn stalled(lsn: Lsn, durable: Lsn) -> Error {
    Error::Timeout(format!(
        "the log is durable up to {durable} and has made no progress for {} s, so position {lsn} is not durable: \
         its drive does not answer. \
         What was written is in the log's memory, and becomes durable when the drive answers",
        LOOKS_MAX * LOOK.0 / 1_000_000_000
    ))
}

impl LogState {
    /// Returns once everything below `lsn` is synced; leads if no thread does. The wait cannot be cancelled, since its
    /// group has a place in the log.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed. [`Error::Full`] if there is no space for a segment for 5 s.
    /// [`Error::Timeout`] if the drive has not answered for a minute; the group may become durable yet.
    /// [`Error::Corrupt`] if `lsn` is beyond the log's end.
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
            self.poison.check()?;
            let covered = || self.durable() >= lsn || self.poison.is_set();
            match self.waiters.enter(lsn, covered, || progress.is_stalled(self.durable())) {
                Turn::Lead => {
                    let flushed = self.flush(lsn);
                    self.waiters.pass_on(self.durable(), self.poison.is_set());
                    match flushed {
                        Err(full @ Error::Full(_)) => self.pause(&mut timeout, full)?,
                        done => done?,
                    }
                }
                Turn::Look => {}
                Turn::Stalled => return Err(stalled(lsn, self.durable())),
            }
        }
        Ok(())
    }

    /// Makes the complete groups durable, unless another thread leads.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed, the error that makes it fail, or [`Error::Full`] if a segment cannot
    /// be made.
    pub fn flush_early(&self) -> Result<()> {
        if self.durable() >= self.tail() || !self.waiters.try_lead() {
            return Ok(());
        }
        let flushed = self.flush(self.durable());
        self.waiters.pass_on(self.durable(), self.poison.is_set());
        flushed
    }

    /// As the lead: writes and syncs all complete groups, at least up to `target` as far as there are segments for
    /// them.
    fn flush(&self, target: Lsn) -> Result<()> {
        self.poison.check()?;
        let mut flusher = self.flusher.lock();
        let from = self.durable();
        let (reach, full) = self.reach(from, self.tail()).inspect_err(|e| self.fail(e))?;
        let to = self
            .complete_up_to(from, target.min(reach), reach, &mut flusher)
            .inspect_err(|e| self.fail(e))?;
        if to == from {
            return full.map_or(Ok(()), Err);
        }
        assert!(
            from <= flusher.last_start && flusher.last_start < to,
            "the last group, at {}, lies in what is flushed: {from} to {to}",
            flusher.last_start
        );
        mark::pass(Mark::RedoGathered);
        // In this order: a new owner that has not said so yet reads the log after this sync.
        self.make_durable(from, to, &mut flusher)?;
        let mark = RingMark {
            durable: to,
            last_start: flusher.last_start,
            last_checksum: flusher.last_checksum,
        };
        flusher.turn += 1;
        self.ring.set_mark(flusher.turn, mark);
        self.note_alone(to, &mut flusher).inspect_err(|e| self.fail(e))?;
        self.set_durable(to);
        self.after_flush(from, to);
        Ok(())
    }

    /// Before anything is acknowledged that a mirror lacks which may count as whole: the control file says how long the
    /// log is. A start from that mirror finds a ring that ends before, and takes the log from its files. Two flushes
    /// are noted, since the mirror may have the mark of the first; it has that of no later one.
    fn note_alone(&self, to: Lsn, flusher: &mut Flusher) -> Result<()> {
        let Some(mirror) = self.ring.mirror_behind() else {
            return Ok(());
        };
        if flusher.alone.0 != mirror {
            flusher.alone = (mirror, 0);
        }
        if flusher.alone.1 < 2
            && let Some(note) = self.note_durable.get()
        {
            note(to)?;
            flusher.alone.1 += 1;
        }
        Ok(())
    }

    /// The end of the complete groups from `from` on that end at `reach` at the latest. Groups before `target` that are
    /// not complete yet are waited for: their threads copy them this moment, unless one has lost its processor.
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
            if self.is_batch(at.since(from)) && (at >= target || self.medium.files().is_none()) {
                break;
            }
        }
        Ok(at)
    }

    /// Whether so many bytes are enough for one flush.
    fn is_batch(&self, bytes: u64) -> bool {
        let batch = match &self.medium {
            Medium::Files(_) => u64::MAX,
            Medium::Nodes(_) => NODE_BATCH,
        };
        bytes >= batch.min(self.ring.capacity() / 2)
    }

    /// What is in the ring from `from` to `to` becomes durable, as this start's.
    fn make_durable(&self, from: Lsn, to: Lsn, flusher: &mut Flusher) -> Result<()> {
        let log = match &self.medium {
            Medium::Files(segments) => {
                return self
                    .write_out(segments, from, to, flusher)
                    .and_then(|()| self.check_owner())
                    .inspect_err(|e| self.fail(e));
            }
            Medium::Nodes(log) => log,
        };
        let end = LogEnd {
            end: to,
            last_start: flusher.last_start,
            last_checksum: flusher.last_checksum,
        };
        // Nodes that do not answer have lost nothing: the same bytes are sent again.
        log.append(from, end, &self.ring).map_err(|error| match error {
            Error::Timeout(_) => error,
            lost @ Error::Revoked(_) => {
                self.fail(&lost);
                self.poison.error()
            }
            other => {
                self.fail(&other);
                other
            }
        })
    }

    /// See [`super::Log::wait_complete`].
    pub(super) fn wait_complete(&self, lsn: Lsn) -> Result<()> {
        let mut at = self.durable();
        let mut spin = rt::Spin::new();
        while at < lsn {
            match self.complete_header(at) {
                Ok(Some(header)) => {
                    // The caller builds on this group. So its state has to reach the memory that outlives the host
                    // before anything of the caller does.
                    self.ring.persist_state(at);
                    at = header.end();
                    spin = rt::Spin::new();
                }
                Ok(None) => spin.wait(),
                // The group became durable meanwhile, and was written over.
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
            let length = get_le::<u32>(&header, 4).filter(|length| *length >= GROUP_HEADER as u32);
            at = length.map_or(Lsn::MAX, |length| at.advance(length.into()));
            if at == lsn {
                return get_le::<u32>(&header, 20) != Some(STATE_COMPLETE);
            }
        }
        false
    }

    fn write_out(&self, segments: &Segments, from: Lsn, to: Lsn, flusher: &mut Flusher) -> Result<()> {
        assert!(from < to, "nothing is to be written: {from} to {to}");
        let mut at = block_of(from);
        while at < to {
            let segment_end = segments.start_of(segments.number_of(at) + 1);
            let length = to.min(segment_end).since(at).min(Flusher::STAGING as u64) as usize;
            let blocks = flusher.stage(at, from, length, &self.ring);
            segments.write(at, blocks)?;
            flusher.keep_block(at, to);
            at = at.advance(length as u64);
        }
        self.sync(segments, from, to)
    }

    fn sync(&self, segments: &Segments, from: Lsn, to: Lsn) -> Result<()> {
        let payload = segments.payload();
        let sync = self.waiters.sync_spinner.begin(self.background);
        let synced = (from.raw() / payload..=(to.raw() - 1) / payload).try_for_each(|number| segments.sync(number));
        self.waiters.sync_spinner.end(sync);
        if planted(Fault::SyncError) { Ok(()) } else { synced }
    }

    // ---- the background ----

    /// The body of the background thread: prepares segments, writes before a commit asks.
    pub fn serve(&self) {
        while !self.is_closing() {
            self.work
                .wait_timeout(Nanos::from_millis(if self.is_full() { 200 } else { 1000 }));
            self.work.reset();
            if self.poison.is_set() {
                continue;
            }
            // One that only reads is to end, too.
            if self.ask_owner().is_err() {
                continue;
            }
            self.prepare_segments();
            // A failure has poisoned the log, and the waiters get its error.
            let _ = self.flush_early();
        }
    }

    /// After a flush: segments are prepared when one was begun.
    fn after_flush(&self, from: Lsn, to: Lsn) {
        let begun = |segments: &Segments| segments.number_of(from) != segments.number_of(to);
        if self.medium.files().is_some_and(begun) {
            self.work.set();
        }
    }
}
