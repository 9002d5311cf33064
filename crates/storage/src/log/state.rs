//! The log's state, which appending, group commit, space, reading and recovery share.
//!
//! ```text
//!   ring start      durable            complete           tail
//! ──────┴──────────────┴──────────────────┴─────────────────┴──────► positions
//!        in the files    written by the     reserved: being
//!        and synced      next flush         copied
//! ```
//!
//! Invariants:
//! - `durable` and the tail only grow while a process has the log;
//! - only the lead moves `durable`, with `flusher` locked;
//! - only the holder of `reserve` moves the tail.
//!
//! Lock order: `flusher` (the lead's) before `waiters.queue`, `segments.list`; `reserve` is last and nothing is taken
//! under it.

use std::sync::{Arc, OnceLock};

use cenote_base::bytes::get_le;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{Event, Mutex};
use cenote_base::{Error, Lsn, Result};

use super::flusher::Flusher;
use super::medium::Medium;
use super::ring::{Ring, RingMark};
use super::waiters::Waiters;
use crate::owner::Ownership;
use crate::poison::Poison;
use crate::redo::{GroupHeader, STATE_COMPLETE};

/// See [`super::Log::set_note_durable`].
pub type NoteDurable = Box<dyn Fn(Lsn) -> Result<()> + Send + Sync>;

/// Everything that a log has, but for its threads.
pub(crate) struct LogState {
    pub(super) ring: Ring,
    pub(super) medium: Medium,
    pub(super) reserve: Mutex<Reserve>,
    durable: AtomicU64,
    /// Nothing before it was ever in this ring.
    pub(super) ring_start: Lsn,
    pub(super) flusher: Mutex<Flusher>,
    pub(super) waiters: Waiters,
    pub(super) poison: Poison,
    /// The last segment could not be made for lack of space.
    pub(super) full: AtomicBool,
    /// When the log looks for space again, by the runtime's clock.
    pub(super) look_again: AtomicU64,
    pub(super) closing: AtomicBool,
    pub(super) background: bool,
    /// Who has the data directory.
    pub(super) owner: Option<Arc<Ownership>>,
    /// Notes durably that the log reaches a position, where the ring may be found as it was before.
    pub(super) note_durable: OnceLock<NoteDurable>,
    /// Wakes the background.
    pub(super) work: Event,
    /// Guards of [`super::Log::hold`] that live.
    pub(super) holds: AtomicU64,
    /// Segments from this position on are kept: what is not archived.
    pub(super) keep_from: AtomicU64,
    /// So many bytes before the durable position, at most.
    pub(super) keep_most: AtomicU64,
    /// Records before this position are not needed.
    pub(super) recycle_to: AtomicU64,
}

/// The end of the last reservation, and what the next one needs to know.
pub(super) struct Reserve {
    pub tail: Lsn,
    /// How far the tail may go before the durable position has to be asked again.
    pub limit: Lsn,
    /// The ring's part in which a group's start was last noted.
    pub boundary: u64,
}

impl LogState {
    /// The state of a log that is durable up to `mark`, and reserved up to `tail`.
    pub(super) fn new(
        medium: Medium,
        ring: Ring,
        mark: RingMark,
        tail: Lsn,
        ring_start: Lsn,
        background: bool,
        owner: Option<Arc<Ownership>>,
    ) -> LogState {
        assert!(
            mark.durable <= tail && tail.since(mark.durable) <= ring.capacity(),
            "the ring holds all that is not durable: durable {}, tail {tail}",
            mark.durable
        );
        assert!(
            ring_start <= mark.durable,
            "the ring starts at {ring_start}, behind the durable position {}",
            mark.durable
        );
        let mut flusher = Flusher::new();
        (flusher.last_start, flusher.last_checksum) = (mark.last_start, mark.last_checksum);
        // The next flush leaves the mark alone that counts now.
        flusher.turn = ring.mark().map_or(0, |(turn, _)| turn);
        let boundary = ring.boundary_of(tail).wrapping_sub(1);
        LogState {
            ring,
            medium,
            reserve: Mutex::new(Reserve {
                tail,
                limit: Lsn::ZERO,
                boundary,
            }),
            durable: AtomicU64::new(mark.durable.raw()),
            ring_start,
            flusher: Mutex::new(flusher),
            waiters: Waiters::default(),
            poison: Poison::default(),
            full: AtomicBool::new(false),
            look_again: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            background,
            owner,
            note_durable: OnceLock::new(),
            work: Event::new(),
            holds: AtomicU64::new(0),
            keep_from: AtomicU64::new(u64::MAX),
            keep_most: AtomicU64::new(0),
            recycle_to: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn durable(&self) -> Lsn {
        Lsn::from_raw(self.durable.load(Ordering::Acquire))
    }

    /// Everything before `to` is synced. Called by the lead, with `flusher` locked.
    pub(super) fn set_durable(&self, to: Lsn) {
        let before = self.durable.swap(to.raw(), Ordering::AcqRel);
        assert!(before < to.raw(), "the durable position went from {before} to {to}");
    }

    /// Everything before `end` was appended and synced by others.
    pub(super) fn follow_to(&self, end: Lsn) {
        let _lead = self.flusher.lock();
        let mut reserve = self.reserve.lock();
        assert!(self.poison.is_set(), "a reader appends nothing to its log");
        if end > reserve.tail {
            reserve.tail = end;
            self.ring.set_tail(end);
            self.set_durable(end);
        }
    }

    #[inline]
    pub fn tail(&self) -> Lsn {
        self.ring.tail()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Ends the log's life: an error of a write or sync is never retried.
    pub(super) fn fail(&self, cause: &Error) {
        if let (Error::Revoked(reason), Some(owner)) = (cause, &self.owner) {
            owner.was_refused(reason);
        }
        self.poison.set(|| match cause {
            Error::Revoked(reason) => Error::LogFailed(reason.clone()),
            _ => Error::LogFailed(format!(
                "the redo log failed and takes no more changes ({cause}); what was committed is safe: \
                 see to the disk, then restart"
            )),
        });
    }

    /// Whether what this process has made durable is its own to acknowledge.
    ///
    /// # Errors
    /// [`Error::LogFailed`], for good, if the data directory is another's.
    pub(super) fn check_owner(&self) -> Result<()> {
        match self.owner.as_ref().map_or(Ok(()), |owner| owner.check()) {
            Ok(()) => Ok(()),
            Err(lost) => {
                self.fail(&lost);
                Err(self.poison.error())
            }
        }
    }

    /// As [`LogState::check_owner`], whoever has to be asked: for an instance that changes nothing.
    pub(super) fn ask_owner(&self) -> Result<()> {
        match self.owner.as_ref().map_or(Ok(()), |owner| owner.ask()) {
            Err(lost @ Error::Revoked(_)) => {
                self.fail(&lost);
                Err(self.poison.error())
            }
            asked => asked,
        }
    }

    /// The header of the group at `at`, which is below the tail; `None` while it is incomplete.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the ring holds no group there.
    pub(super) fn complete_header(&self, at: Lsn) -> Result<Option<GroupHeader>> {
        let bytes = self.ring.header(at);
        if get_le::<u32>(&bytes, 20) != Some(STATE_COMPLETE) {
            return Ok(None);
        }
        match GroupHeader::parse(&bytes, at) {
            Some(header) => Ok(Some(header)),
            None => Err(Error::corrupt(format!(
                "the redo ring has no group at {at}, below its tail"
            ))),
        }
    }
}
