//! What the log's parts share: the ring, the segments, where both end; and how a group is appended.

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{Event, Mutex, Nanos};
use cenote_base::{Error, Lsn, RecordAddr, Result, crc};

use super::ring::{BLOCK, BOUNDARY_COUNT, Ring};
use super::segments::Segments;
use super::waiters::{Flusher, Waiters};
use crate::redo::{GROUP_HEADER, GroupHeader, KIND_GROUP, LAG_AT, MAX_GROUP, STATE_COMPLETE, lag, seal, u32_at};

/// The end of the stream: records behind it would have no address.
pub(super) const END: Lsn = Lsn::from_raw(RecordAddr::END);
/// Segments that are kept ready behind the one in use.
pub(super) const AHEAD: u64 = 2;

/// Where a group was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its first byte; a record's address is this and the record's offset in the group.
    pub start: Lsn,
    /// Behind it: the LSN of the pages that it changed.
    pub end: Lsn,
}

/// A patch of a group at the moment when its place in the log is known, under the reservation
/// lock: gets the group's end and its bytes (header included).
pub type Hook<'a> = &'a mut dyn FnMut(Lsn, &mut [u8]);

pub(crate) struct Core {
    pub ring: Ring,
    pub segments: Segments,
    pub reserve: Mutex<Reserve>,
    pub durable: AtomicU64,
    /// Nothing before it was ever in this ring.
    pub ring_start: Lsn,
    pub flusher: Mutex<Flusher>,
    pub waiters: Waiters,
    pub poisoned: AtomicBool,
    pub poison: Mutex<Option<Error>>,
    /// The last segment could not be made for lack of space.
    pub full: AtomicBool,
    /// When that is tried again, by the runtime's clock.
    pub look_again: AtomicU64,
    pub closing: AtomicBool,
    pub background: bool,
    pub work: Event,
    pub holds: AtomicU64,
    pub recycle_to: AtomicU64,
}

pub(crate) struct Reserve {
    pub tail: Lsn,
    /// How far the tail may go before the durable position has to be asked again.
    pub limit: Lsn,
    /// The ring's part in which a group's start was last noted.
    pub boundary: u64,
}

impl Core {
    pub fn durable(&self) -> Lsn {
        Lsn::from_raw(self.durable.load(Ordering::Acquire))
    }

    pub fn tail(&self) -> Lsn {
        self.ring.tail()
    }

    // ---- appending ----

    pub fn append(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Appended> {
        let length = group.len();
        if !(GROUP_HEADER..=MAX_GROUP).contains(&length)
            || u32_at(group, 0) != Some(KIND_GROUP)
            || u32_at(group, 4) != Some(length as u32)
            || !length.is_multiple_of(8)
        {
            return Err(Error::Invalid(format!(
                "{length} bytes that are no redo group were appended"
            )));
        }
        // The body's checksum does not depend on the place, unless somebody patches it there.
        let body = hook.is_none().then(|| crc::crc32c(&group[GROUP_HEADER..]));
        let is_commit = hook.is_some();
        let start = self.reserve(group, hook)?;
        let body = body.unwrap_or_else(|| crc::crc32c(&group[GROUP_HEADER..]));
        let checksum = seal(body, header_of(group));
        if planted(Fault::BodyAfterState) {
            self.ring.complete(start, checksum);
        }
        mark::pass(Mark::GroupReserved);
        if is_commit {
            mark::pass(Mark::CommitReserved);
        }
        self.ring
            .write(start.advance(GROUP_HEADER as u64), &group[GROUP_HEADER..]);
        if !planted(Fault::RedoFlush) {
            self.ring.persist_stream(start, length as u64);
        }
        self.ring.complete(start, checksum);
        let end = start.advance(length as u64);
        self.push_if_half_full(start, end);
        Ok(Appended { start, end })
    }

    /// Takes the place at the tail: header with length first, then the tail, then the hook.
    pub fn reserve(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Lsn> {
        let length = group.len() as u64;
        let mut reserve = self.reserve.lock();
        while reserve.tail.advance(length) > reserve.limit {
            reserve.limit = self.reserve_limit();
            if reserve.tail.advance(length) > reserve.limit {
                drop(reserve);
                self.make_room()?;
                reserve = self.reserve.lock();
            }
        }
        if self.poisoned() {
            drop(reserve);
            return Err(self.poison_error());
        }
        let start = reserve.tail;
        let end = start.advance(length);
        group[8..16].copy_from_slice(&start.raw().to_le_bytes());
        group[LAG_AT..LAG_AT + 4].copy_from_slice(&lag(start, self.durable()).to_le_bytes());
        self.ring.write_header(start, header_of(group));
        self.ring.set_tail(end);
        // Readers who copy from the ring look at the tail afterwards: it moves before the bytes.
        fence(Ordering::Release);
        reserve.tail = end;
        self.note_boundary(&mut reserve, start);
        if let Some(hook) = hook {
            hook(end, group);
        }
        Ok(start)
    }

    pub fn note_boundary(&self, reserve: &mut Reserve, start: Lsn) {
        let boundary = self.ring.boundary_of(start);
        if boundary != reserve.boundary {
            if start.raw() >= self.ring.capacity() && boundary.is_multiple_of(BOUNDARY_COUNT) {
                mark::pass(Mark::RingRound);
            }
            reserve.boundary = boundary;
            self.ring.set_boundary(start);
        }
    }

    /// What is not durable is not overwritten, nor what a reader may be copying just before it.
    pub fn reserve_limit(&self) -> Lsn {
        if planted(Fault::RingOverwrite) {
            return Lsn::MAX;
        }
        self.durable().advance(self.ring.capacity() - BLOCK).min(END)
    }

    #[cold]
    pub fn make_room(&self) -> Result<()> {
        mark::pass(Mark::RingFull);
        if self.tail().advance(MAX_GROUP as u64) > END {
            return Err(self.ended());
        }
        // The half that is complete; more than what is there need not be waited for.
        let enough = self.durable().advance(self.ring.capacity() / 4);
        let enough = enough.min(self.tail());
        loop {
            match self.wait_durable(enough) {
                // Pages are changed already: whoever is here cannot be refused any more.
                Err(Error::Full(_)) if !self.closing.load(Ordering::Acquire) => {}
                done => return done,
            }
        }
    }

    pub fn push_if_half_full(&self, start: Lsn, end: Lsn) {
        let half = self.ring.capacity() / 2;
        let durable = self.durable();
        if self.background && start.since(durable) < half && end.since(durable) >= half {
            self.work.set();
        }
    }

    /// The header of the group at `at`, which is below the tail; `None` while it is incomplete.
    pub fn complete_header(&self, at: Lsn) -> Result<Option<GroupHeader>> {
        let bytes = self.ring.header(at);
        if u32_at(&bytes, 20) != Some(STATE_COMPLETE) {
            return Ok(None);
        }
        match GroupHeader::parse(&bytes, at) {
            Some(header) => Ok(Some(header)),
            None => Err(Error::corrupt(format!(
                "the redo ring has no group at {at}, below its tail"
            ))),
        }
    }

    // ---- the background ----

    pub fn serve(&self) {
        while !self.closing.load(Ordering::Acquire) {
            self.work
                .wait_timeout(Nanos::from_millis(if self.is_full() { 200 } else { 1000 }));
            self.work.reset();
            if self.poisoned() {
                continue;
            }
            self.prepare_ahead();
            // A failure has poisoned the log: those who wait are told.
            let _ = self.flush_ahead();
        }
    }

    /// After a flush: segments are prepared when one was begun.
    pub fn after_flush(&self, from: Lsn, to: Lsn) {
        if self.segments.number_of(from) != self.segments.number_of(to) {
            self.work.set();
        }
    }

    pub fn recycle(&self, before: Lsn) -> Result<()> {
        self.recycle_to
            .fetch_max(before.min(self.durable()).raw(), Ordering::AcqRel);
        if self.holds.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        // The last durable group stays readable: the ring is compared with it at the next start.
        let last = self.flusher.lock().last_start;
        let to = Lsn::from_raw(self.recycle_to.load(Ordering::Acquire));
        self.segments
            .retire(if last == Lsn::ZERO { to } else { to.min(last) })?;
        self.look_for_space();
        Ok(())
    }

    // ---- poison ----

    pub fn poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    pub fn check(&self) -> Result<()> {
        if self.poisoned() {
            Err(self.poison_error())
        } else {
            Ok(())
        }
    }

    pub fn poison(&self, cause: &Error) {
        let mut poison = self.poison.lock();
        poison.get_or_insert_with(|| {
            Error::Poisoned(format!(
                "the redo log failed and takes no more changes ({cause}); what was committed is safe: \
                 see to the disk, then restart"
            ))
        });
        self.poisoned.store(true, Ordering::Release);
    }

    #[cold]
    pub fn poison_error(&self) -> Error {
        let poison = self.poison.lock().clone();
        poison.unwrap_or_else(|| Error::Poisoned("the redo log failed".into()))
    }
}

fn header_of(group: &[u8]) -> &[u8; GROUP_HEADER] {
    group.first_chunk().expect("a group is longer than its header")
}
