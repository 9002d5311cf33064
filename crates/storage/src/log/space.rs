//! Space for the log, and admission while the disk runs full.
//!
//! A group that is in the ring has to reach a segment, whatever the disk says. So the log reserves space before work
//! begins: it makes segments ahead of the tail, and admits a mini-transaction ([`LogState::admit`]) only while enough
//! of them are prepared. It refuses new work first, then rollbacks, and commits last.
//!
//! ```text
//!        durable       tail                                        end of the last segment
//! ───────────┴───────────┼────────────── room ───────────────────────────┤
//!                        Work is admitted while room ≥ 8 MiB │ Cleanup ≥ 4 MiB │ Commit ≥ 1 MiB
//! ```
//!
//! The reserve does not hold hundreds of page images at one moment. They still lose nothing, and no thread waits
//! without end: the lead writes the groups that have segments, and threads that wait for others get an error after
//! [`TIMEOUT`].
//!
//! Positions end, too ([`RecordAddr::END`]): a terabyte before that, the same call refuses new work for good.
//!
//! Invariants:
//! - the lead never waits for space, since all others wait for the lead;
//! - a refusal has changed nothing; it names the file system and what to do.

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Lsn, RecordAddr, Result};

use super::medium::Medium;
use super::state::LogState;
use crate::redo::MAX_GROUP;

/// The end of the stream: records behind it would have no address.
pub(super) const END: Lsn = RecordAddr::END;
/// Segments that are kept ready behind the one in use.
const AHEAD: u64 = 2;
/// The log's last space is at most this.
const RESERVE_MAX: u64 = 16 << 20;
/// New work is refused from here on: 1 TiB before positions end. Rollbacks and commits use the rest.
const WORK_END: Lsn = Lsn::from_raw(END.raw() - (1 << 40));
const _: () = assert!(
    END.raw() - WORK_END.raw() > RESERVE_MAX + 2 * MAX_GROUP as u64,
    "the last positions hold what is under way when new work is refused"
);
/// How long a change that is in the ring waits for space on disk before its thread gets the error.
const TIMEOUT: Nanos = Nanos::from_secs(5);
/// How often the log looks for space.
const TURN: Nanos = Nanos::from_millis(50);

/// The purpose of redo, which decides how far it may use the log's last space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Need {
    /// New work: refused first.
    #[default]
    Work,
    /// Rolling work back, giving space back.
    Cleanup,
    /// Ending a transaction: refused last.
    Commit,
}

impl Need {
    /// Bytes that must be left prepared, where segments hold `payload` bytes.
    fn reserve(self, payload: u64) -> u64 {
        let share = match self {
            Need::Work => 2,
            Need::Cleanup => 4,
            Need::Commit => 16,
        };
        payload.min(RESERVE_MAX) / share
    }

    /// Positions that must be left at the end of all, in bytes.
    fn left_at_end(self) -> u64 {
        match self {
            Need::Work => 1 << 40,
            Need::Cleanup => 1 << 39,
            Need::Commit => 1 << 38,
        }
    }
}

/// When a thread stops waiting for space.
#[derive(Default)]
pub(super) struct Timeout(Option<Nanos>);

impl LogState {
    /// Bytes behind the tail whose space on disk is taken.
    fn room(&self) -> u64 {
        match &self.medium {
            Medium::Files(segments) => segments.prepared_end().since(self.tail()),
            // They are asked each second, and leave themselves room for what is under way.
            Medium::Nodes(log) if self.is_full() => Need::Cleanup.reserve(log.segment_bytes),
            Medium::Nodes(_) => END.since(self.tail().min(END)),
        }
    }

    #[inline]
    fn has_room(&self, need: Need) -> bool {
        self.room() >= need.reserve(self.medium.segment_bytes())
    }

    /// Whether work for `need` may begin.
    ///
    /// # Errors
    /// [`Error::Full`] if it may not; [`Error::LogFailed`] if the log has failed.
    #[inline]
    pub fn admit(&self, need: Need) -> Result<()> {
        self.poison.check()?;
        if self.has_room(need) {
            Ok(())
        } else {
            self.find_room(need)
        }
    }

    /// Finds out whether the background is behind or the disk is full.
    #[cold]
    fn find_room(&self, need: Need) -> Result<()> {
        self.prepare_segments();
        if !self.has_room(need) && self.tail() >= WORK_END {
            // From here on the lead makes segments one by one, where it needs them.
            return match END.since(self.tail()) >= need.left_at_end() {
                true => Ok(()),
                false => Err(self.ended()),
            };
        }
        if self.is_full() && !self.has_room(need) {
            return Err(self.full());
        }
        Ok(())
    }

    /// No position is left, or few are.
    pub(super) fn ended(&self) -> Error {
        Error::Full(format!(
            "the redo log in {} is at position {}, and record addresses end at {END}: what was committed is \
             safe and can be read; dump the database, and load it into a new one",
            self.medium.name(),
            self.tail()
        ))
    }

    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(super) fn full(&self) -> Error {
        Error::Full(format!(
            "the disk is full, and there is no space for the redo log in {}; what was committed is safe: make space \
             in that file system, and go on",
            self.medium.name()
        ))
    }

    /// Notes whether segments can be made, and says when that changes.
    fn note_full(&self, full: bool) {
        if self.full.load(Ordering::Relaxed) == full || self.full.swap(full, Ordering::Relaxed) == full {
            return;
        }
        match full {
            true => {
                self.look_again.store((rt::now() + TURN).0, Ordering::Relaxed);
                eprintln!(
                    "cenote: {}; changes are refused where the log's last space begins",
                    self.full()
                );
            }
            false => eprintln!("cenote: there is space for the redo log again"),
        }
    }

    /// Keeps segments ready ahead of the tail.
    pub(super) fn prepare_segments(&self) {
        let segments = match &self.medium {
            Medium::Files(segments) => segments,
            Medium::Nodes(log) => return self.note_full(log.nodes.is_full()),
        };
        let now = rt::now().0;
        if self.is_full() && now < self.look_again.load(Ordering::Relaxed) {
            return;
        }
        self.look_again.store(now + TURN.0, Ordering::Relaxed);
        // In order and without a gap: a gap would say that a segment was lost.
        let first = segments.number_of(self.durable());
        let last = segments.number_of(self.tail()) + AHEAD;
        for number in first..=last.min(segments.number_of(WORK_END)) {
            match segments.prepare(number, !self.background) {
                Ok(()) => {}
                Err(Error::Full(_)) => return self.note_full(true),
                // The lead tries again when it needs the segment, and has the error then.
                Err(_) => return,
            }
        }
        self.note_full(false);
    }

    /// Space may have become free.
    pub(super) fn look_for_space(&self) {
        self.look_again.store(0, Ordering::Relaxed);
        if self.is_full() {
            self.prepare_segments();
        }
    }

    /// How far groups from `from` on, up to `tail`, have segments to be written to; makes the missing ones.
    /// [`Error::Full`] is no failure of the log: it comes back beside how far there is space.
    pub(super) fn reach(&self, from: Lsn, tail: Lsn) -> Result<(Lsn, Option<Error>)> {
        let Some(segments) = self.medium.files() else {
            return Ok((END, None));
        };
        let last = segments.number_of(Lsn::from_raw(tail.raw().saturating_sub(1)));
        for number in segments.number_of(from)..=last {
            match segments.prepare(number, true) {
                Ok(()) => {}
                Err(Error::Full(_)) => {
                    self.note_full(true);
                    return Ok((segments.start_of(number), Some(self.full())));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((segments.start_of(last + 1), None))
    }

    /// Pauses after a flush that found too little space; gives the error once `timeout` has ended.
    pub(super) fn pause(&self, timeout: &mut Timeout, full: Error) -> Result<()> {
        let end = *timeout.0.get_or_insert_with(|| rt::now() + TIMEOUT);
        if self.is_closing() || rt::now() >= end {
            return Err(full);
        }
        self.work.set();
        rt::sleep(TURN);
        Ok(())
    }

    /// From where on segments are kept for the archive: no more than was said, and none when the disk is full.
    pub(super) fn kept_from(&self) -> Lsn {
        if self.is_full() {
            return Lsn::MAX;
        }
        let most = self.keep_most.load(Ordering::SeqCst);
        let least = self.durable().raw().saturating_sub(most);
        Lsn::from_raw(self.keep_from.load(Ordering::SeqCst).max(least))
    }

    /// See [`super::Log::recycle`].
    ///
    /// # Errors
    /// An I/O error of a rename or removal; nothing is lost.
    pub fn recycle(&self, before: Lsn) -> Result<()> {
        self.recycle_to
            .fetch_max(before.min(self.durable()).raw(), Ordering::AcqRel);
        if self.holds.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        // The last durable group stays readable: the ring is compared with it at the next start.
        let last = self.flusher.lock().last_start;
        let to = Lsn::from_raw(self.recycle_to.load(Ordering::Acquire));
        assert!(
            to <= self.durable(),
            "segments up to {to} are recycled before they are durable"
        );
        let Some(segments) = self.medium.files() else {
            return Ok(());
        };
        let to = to.min(self.kept_from());
        segments.retire(if last == Lsn::ZERO { to } else { to.min(last) })?;
        self.look_for_space();
        Ok(())
    }
}
