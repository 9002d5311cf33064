//! Accesses of users of other pods: done at once, but for the bytes of direct reads. Those are found, and sent by the
//! fabric from where they lie.
//!
//! ```text
//!   found, after freeze n ·· sent piece by piece, as there is room on the way ··· found again, at the same place, after freeze n still ─► done
//!                                                                                   not so ─► frozen: the user asks again
//! ```
//!
//! An extent may begin to move meanwhile: nothing waits for a transfer, however slow its user is. Before anything in a
//! slot changes hands it is frozen there, and each freeze is counted before it begins. So if the count is what it was
//! when the bytes were found, and they are found there again, they were the object's all the time. What is written
//! beside it may be seen in part, as by any read.
//!
//! A transfer does not keep its host: if that stops, what was to come is withdrawn.

use super::super::GlobalAddress;
use super::super::access::PREFETCHED;
use super::super::act::{Act, Outcome};
use super::super::far::wire::{self, Direct, Head, PROBE_MAX};
use super::super::keeper::Keeper;
use super::HostState;
use cenote_base::Result;
use cenote_base::rt::atomic::{Ordering, fence};
use cenote_fabric::rdma::call::{Answer, Source};
use std::sync::{Arc, Weak};

impl HostState {
    /// Does the accesses of a request, and answers.
    pub(super) fn serve_accesses(self: &Arc<Self>, pod: &str, head: Head, items: &[u8], mut answer: Answer) {
        // What goes later than its answer would be newer than what was settled.
        let room = if self.part.is_mirrored() { 0 } else { answer.room() };
        let migration_epoch = self.keeper.migration_epochs();
        match self.carry_out(pod, head, items, room, answer.bytes()) {
            Ok(direct) if direct.is_empty() => self.reply(answer),
            Ok(direct) => answer.send_from(Box::new(Transfer::new(Arc::downgrade(self), direct, migration_epoch))),
            Err(error) => answer.fail(error),
        }
    }

    /// Does the accesses of a request: the direct reads that are to be sent, of which there is `room` for so many
    /// bytes.
    pub(super) fn carry_out(
        &self,
        pod: &str,
        head: Head,
        items: &[u8],
        room: usize,
        answer: &mut Vec<u8>,
    ) -> Result<Vec<Direct>> {
        let mut counted: Vec<(u32, bool)> = Vec::with_capacity(head.count);
        let mut upcoming = wire::requested_accesses(items);
        let mut begun = 0;
        let done = wire::carry_out((head.kind, head.count), items, answer, room, |address, act| {
            if begun % PREFETCHED == 0 {
                self.prefetch(upcoming.by_ref().take(PREFETCHED));
            }
            begun += 1;
            self.part.before_shared(address, act);
            let outcome = self.act(address, act)?;
            self.part.after_shared(address, act);
            if let Outcome::Done(_, slot) = outcome {
                counted.push((slot, act.is_write()));
            }
            Ok(outcome)
        });
        self.counters.served.fetch_add(counted.len() as u64, Ordering::Relaxed);
        self.count_far(pod, &counted);
        done
    }

    /// Asks the processor for what the next accesses need: they come from all over the part, and would wait for memory
    /// one after the other.
    fn prefetch(&self, accesses: impl Iterator<Item = (GlobalAddress, u64)>) {
        let own = accesses.filter(|(address, _)| address.part() == self.part.number());
        own.for_each(|(address, len)| self.part.prefetch(address, len));
    }

    fn act(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        let _step = self.part.step();
        if address.part() != self.part.number() {
            return self.part.act_as_host(address, act);
        }
        match self.part.act(address, act)? {
            Outcome::Run => {
                self.keeper.free_run(address)?;
                Ok(Outcome::Done(0, address.slot()))
            }
            outcome => Ok(outcome),
        }
    }

    /// Answers a probe, of bytes that mean nothing.
    pub(super) fn serve_probe(&self, rest: &[u8], mut answer: Answer) {
        match wire::read_probe(rest) {
            Ok((len, true)) => {
                assert!(len <= self.probe.len(), "a probe of {len} bytes");
                let bytes = Arc::clone(&self.probe);
                answer.send_from(Box::new(Probe { bytes, len }));
            }
            Ok((len, false)) => {
                answer.bytes().extend_from_slice(&self.probe[..len]);
                answer.send();
            }
            Err(error) => answer.fail(error),
        }
    }
}

/// What probes bring.
pub(super) fn probe_bytes() -> Arc<[u8]> {
    vec![0x5a; PROBE_MAX].into()
}

struct Probe {
    bytes: Arc<[u8]>,
    len: usize,
}

impl Source for Probe {
    fn size(&self) -> usize {
        self.len
    }

    fn read(&mut self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
    }
}

/// The direct reads of a request, one after the other.
struct Transfer {
    host: Weak<HostState>,
    pieces: Vec<Piece>,
    size: usize,
    migration_epoch: u64,
}

/// A read, and where its bytes begin among those of all.
struct Piece {
    read: Direct,
    from: usize,
}

impl Transfer {
    fn new(host: Weak<HostState>, direct: Vec<Direct>, migration_epoch: u64) -> Self {
        let mut size = 0;
        let piece = |read: Direct| {
            let from = size;
            size += read.len.next_multiple_of(8);
            Piece { read, from }
        };
        let pieces = direct.into_iter().map(piece).collect();
        assert!(size.is_multiple_of(8), "each read is filled up to 8 bytes: {size}");
        Self {
            host,
            pieces,
            size,
            migration_epoch,
        }
    }

    /// The host, as long as it serves.
    fn host(&self) -> Option<Arc<HostState>> {
        self.host.upgrade().filter(|host| !host.is_stopping())
    }

    /// Whether a read's bytes still lie where they were found.
    fn lies_there(host: &HostState, read: &Direct) -> bool {
        let mut find = Act::Find(read.len as u64);
        matches!((host.act(read.address, &mut find), read.place), (Ok(Outcome::Done(now, _)), Some(place)) if now == place)
    }
}

impl Piece {
    /// Copies those of its bytes that are in the window from `at` on.
    fn copy(&self, host: &HostState, at: usize, into: &mut [u8]) {
        let Some(place) = self.read.place else { return };
        let (begin, end) = (self.from.max(at), (self.from + self.read.len).min(at + into.len()));
        if begin < end {
            let span = host
                .part
                .region()
                .span(place + (begin - self.from) as u64, (end - begin) as u64);
            span.copy_out(0, &mut into[begin - at..end - at]);
        }
    }
}

impl Source for Transfer {
    fn size(&self) -> usize {
        self.size
    }

    fn read(&mut self, at: usize, into: &mut [u8]) {
        // The bytes between them, and those that were not found, are zero.
        into.fill(0);
        let Some(host) = self.host() else { return };
        let first = self.pieces.partition_point(|piece| piece.from + piece.read.len <= at);
        let end = at + into.len();
        let within = self.pieces[first..].iter().take_while(|piece| piece.from < end);
        within.for_each(|piece| piece.copy(&host, at, into));
    }

    fn finish(self: Box<Self>, answer: &mut [u8]) {
        // What was copied was read before the count of freezes is read again.
        fence(Ordering::Acquire);
        let host = self
            .host()
            .filter(|host| host.keeper.migration_epochs() == self.migration_epoch);
        let found = self.pieces.iter().filter(|piece| piece.read.place.is_some());
        for piece in found {
            if !host.as_ref().is_some_and(|host| Self::lies_there(host, &piece.read)) {
                piece.read.withdraw(answer);
            }
        }
    }
}
