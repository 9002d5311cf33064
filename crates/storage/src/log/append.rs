//! Appending: a group takes its place at the tail of the ring, is copied there, and becomes complete.

use cenote_base::bytes::get_le;
use cenote_base::rt::atomic::{Ordering, fence};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Error, Lsn, Result, crc};

use super::ring::{BLOCK, BOUNDARY_COUNT};
use super::space::END;
use super::state::{LogState, Reserve};
use crate::redo::{GROUP_HEADER, KIND_GROUP, LAG_AT, MAX_GROUP, lag, seal};

/// Where a group was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its first byte; a record's address is this and the record's offset in the group.
    pub start: Lsn,
    /// Behind it: the LSN of the pages that it changed.
    pub end: Lsn,
}

/// A patch of a group at the moment when its place in the log is known, under the reservation lock. It gets the group's
/// end and its bytes (header included).
pub type Hook<'a> = &'a mut dyn FnMut(Lsn, &mut [u8]);

impl LogState {
    /// See [`super::Log::append`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are no group; [`Error::LogFailed`] if the log has failed; [`Error::Full`] if
    /// positions end, or if the log closes while it waits for space.
    pub fn append(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Appended> {
        let length = group.len();
        if !(GROUP_HEADER..=MAX_GROUP).contains(&length)
            || get_le::<u32>(group, 0) != Some(KIND_GROUP)
            || get_le::<u32>(group, 4) != Some(length as u32)
            || !length.is_multiple_of(8)
        {
            return Err(Error::Invalid(format!(
                "{length} bytes are no redo group, and were not appended to the log"
            )));
        }
        // The body's checksum does not depend on the place, unless a hook patches the body there.
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
    pub(super) fn reserve(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Lsn> {
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
        if self.poison.is_set() {
            drop(reserve);
            return Err(self.poison.error());
        }
        let start = reserve.tail;
        let end = start.advance(length);
        group[8..16].copy_from_slice(&start.raw().to_le_bytes());
        let durable = self.durable();
        assert!(
            end.since(durable) <= self.ring.capacity() - BLOCK && end <= END || planted(Fault::RingOverwrite),
            "a group up to {end} would overwrite what is not durable: durable {durable}"
        );
        group[LAG_AT..LAG_AT + 4].copy_from_slice(&lag(start, durable).to_le_bytes());
        self.ring.write_header(start, header_of(group));
        self.ring.set_tail(end);
        // Readers copy from the ring and look at the tail afterwards: it moves before the bytes.
        fence(Ordering::Release);
        reserve.tail = end;
        self.note_boundary(&mut reserve, start);
        if let Some(hook) = hook {
            hook(end, group);
        }
        Ok(start)
    }

    fn note_boundary(&self, reserve: &mut Reserve, start: Lsn) {
        let boundary = self.ring.boundary_of(start);
        if boundary != reserve.boundary {
            if start.raw() >= self.ring.capacity() && boundary.is_multiple_of(BOUNDARY_COUNT) {
                mark::pass(Mark::RingRound);
            }
            reserve.boundary = boundary;
            self.ring.set_boundary(start);
        }
    }

    /// Reservations overwrite nothing that is not durable, nor the block before it, which a reader may be copying.
    fn reserve_limit(&self) -> Lsn {
        if planted(Fault::RingOverwrite) {
            return Lsn::MAX;
        }
        self.durable().advance(self.ring.capacity() - BLOCK).min(END)
    }

    #[cold]
    fn make_room(&self) -> Result<()> {
        mark::pass(Mark::RingFull);
        if self.tail().advance(MAX_GROUP as u64) > END {
            return Err(self.ended());
        }
        // A quarter of the ring is enough, and no more than what is reserved can become durable.
        let enough = self.durable().advance(self.ring.capacity() / 4);
        let enough = enough.min(self.tail());
        loop {
            match self.wait_durable(enough) {
                // The pages of this mini-transaction are changed already: it cannot be refused any more.
                Err(Error::Full(_)) if !self.is_closing() => {}
                // Nodes of which no majority answers have lost nothing, and may answer yet.
                Err(Error::Timeout(_)) if self.medium.files().is_none() && !self.is_closing() => {}
                done => return done,
            }
        }
    }

    fn push_if_half_full(&self, start: Lsn, end: Lsn) {
        let half = self.ring.capacity() / 2;
        let durable = self.durable();
        if self.background && start.since(durable) < half && end.since(durable) >= half {
            self.work.set();
        }
    }
}

fn header_of(group: &[u8]) -> &[u8; GROUP_HEADER] {
    group.first_chunk().expect("a group is longer than its header")
}
