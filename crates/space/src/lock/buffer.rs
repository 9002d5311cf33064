//! What a session that holds a lock to write has written to far memory, as far as it is not there yet.
//!
//! ```text
//!   write ──► filling ── full ──► flying: a sequence on its way ── answered ──► there
//!                └──────────────── sync, unlock ─────────────────────────────────▲
//! ```
//!
//! Two batches alternate: while one flies, which takes no thread, the other is filled. The next one flies when the one
//! before it is there, and each is a [sequence](crate::sequence). So what is in its place is at any time a
//! beginning of what was written, in that order. A write to near memory is done at once, if nothing far is before it.
//!
//! A batch begins with a look whether the lock is still held as it was ([`Hold::fence`]): one that comes late, when its
//! writer has lost the lock, changes nothing, where both lie in one part.

use super::hold::Hold;
use crate::act::{Act, Step};
use crate::pieces::cut;
use crate::route::Turns;
use crate::sequence::SequenceInFlight;
use crate::{GlobalAddress, Space};
use cenote_base::rt::fault::{self, Fault};
use cenote_base::{Error, Result};
use core::ops::Range;

/// Larger writes are not collected (Rcmp, section 6.5).
pub(super) const BUFFERED_MAX: usize = 256;
/// A batch with so many writes, or bytes, is full.
const WRITES_MAX: usize = 256;
const BYTES_MAX: usize = 16 << 10;

const _: () = assert!(BUFFERED_MAX <= BYTES_MAX && WRITES_MAX > 0);

#[derive(Default)]
pub(super) struct Buffer {
    filling: Batch,
    flying: Option<WriteInFlight>,
    /// The error of an earlier write: every later call on the buffer returns it.
    failed: Option<Error>,
}

/// Writes, oldest first.
#[derive(Default)]
pub(super) struct Batch {
    writes: Vec<(GlobalAddress, Range<usize>)>,
    bytes: Vec<u8>,
}

struct WriteInFlight {
    batch: Batch,
    /// Steps before its writes.
    fenced: usize,
    under_way: SequenceInFlight,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    fn is_full(&self) -> bool {
        self.writes.len() >= WRITES_MAX || self.bytes.len() + BUFFERED_MAX > BYTES_MAX
    }

    fn push(&mut self, address: GlobalAddress, from: &[u8]) {
        assert!(!self.is_full(), "a full batch is sent before the next write");
        assert!(from.len() <= BUFFERED_MAX, "{} bytes are not collected", from.len());
        let start = self.bytes.len();
        self.bytes.extend_from_slice(from);
        self.writes.push((address, start..self.bytes.len()));
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (GlobalAddress, &[u8])> {
        self.writes
            .iter()
            .map(|(address, range)| (*address, &self.bytes[range.clone()]))
    }

    /// The writes from one on.
    pub(super) fn steps(&self, from: usize) -> impl Iterator<Item = Step<'_>> {
        assert!(from <= self.writes.len(), "more writes were done than there are");
        self.iter()
            .skip(from)
            .map(|(address, from)| (address, Act::Write(from)))
    }
}

impl Buffer {
    /// What is to be written yet, when nothing flies.
    pub(super) fn rest(&mut self) -> &Batch {
        assert!(self.flying.is_none(), "what flies comes before the rest");
        self.lose_if_planted();
        &self.filling
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.flying.is_none()
    }

    pub(super) fn write(&mut self, hold: &Hold, space: &Space, address: GlobalAddress, from: &[u8]) -> Result<()> {
        self.check()?;
        Act::Write(from).check(address)?;
        if let Some(first) = cut(address, from.len()).filter(|_| from.len() <= BUFFERED_MAX) {
            // Each of its writes is of one extent, so that a sequence is done or broken off, and never in pieces.
            let (now, later) = from.split_at(first);
            self.write(hold, space, address, now)?;
            let next = address.checked_add(first as u64);
            let next = next.ok_or_else(|| Error::OutOfBounds(format!("{} bytes at {address}", from.len())))?;
            return self.write(hold, space, next, later);
        }
        if from.len() > BUFFERED_MAX {
            self.flush(hold, space)?;
            return space.write(address, from);
        }
        if self.is_empty() && space.write_near(address, from)? {
            return Ok(());
        }
        self.filling.push(address, from);
        space.cache().count_buffered();
        match self.filling.is_full() {
            true => self.turn(hold, space),
            false => Ok(()),
        }
    }

    /// Reads what is there, and what is to come.
    pub(super) fn read(&self, space: &Space, address: GlobalAddress, into: &mut [u8]) -> Result<()> {
        self.check()?;
        let newest = self
            .pending()
            .rev()
            .find_map(|write| common(write, address, into.len()));
        if let Some((_, bytes)) = newest.filter(|(_, bytes)| bytes.len() == into.len()) {
            into.copy_from_slice(bytes);
            return Ok(());
        }
        space.read(address, into)?;
        let len = into.len();
        for (at, bytes) in self.pending().filter_map(|write| common(write, address, len)) {
            into[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// All that is not known to be there, oldest first.
    fn pending(&self) -> impl DoubleEndedIterator<Item = (GlobalAddress, &[u8])> {
        let flying = self.flying.iter().flat_map(|flight| flight.batch.iter());
        flying.chain(self.filling.iter())
    }

    /// Returns when all of it is there.
    pub(super) fn flush(&mut self, hold: &Hold, space: &Space) -> Result<()> {
        self.land(hold, space)?;
        self.lose_if_planted();
        let batch = core::mem::take(&mut self.filling);
        self.note(write_out(hold, space, &batch, 0))
    }

    /// Sends the batch that is full on its way, as soon as the one before is there.
    fn turn(&mut self, hold: &Hold, space: &Space) -> Result<()> {
        self.land(hold, space)?;
        self.lose_if_planted();
        let batch = core::mem::take(&mut self.filling);
        match begin(hold, space, &batch) {
            Ok(Some((fenced, under_way))) => {
                assert!(self.flying.is_none(), "one batch flies at a time");
                self.flying = Some(WriteInFlight {
                    batch,
                    fenced,
                    under_way,
                });
                Ok(())
            }
            Ok(None) | Err(Error::Lost(_)) => self.note(write_out(hold, space, &batch, 0)),
            Err(error) => self.note(Err(error)),
        }
    }

    /// Waits for what flies, and does what could not be done on the way.
    pub(super) fn land(&mut self, hold: &Hold, space: &Space) -> Result<()> {
        self.check()?;
        let Some(flight) = self.flying.take() else {
            return Ok(());
        };
        let WriteInFlight {
            batch,
            fenced,
            under_way,
        } = flight;
        let landed = steps_of(hold, space, &batch, fenced).and_then(|mut steps| {
            let done = space.end_sequence(under_way, &mut steps)?;
            Ok(done.saturating_sub(fenced))
        });
        let done = match landed {
            // It does no harm twice; and if the lock is lost that will be said again.
            Err(Error::Lost(_) | Error::Revoked(_)) => 0,
            Err(error) => return self.note(Err(error)),
            Ok(done) => done,
        };
        self.note(write_out(hold, space, &batch, done))
    }

    /// What was not done is not to be done. What flies lands first, as it cannot be stopped.
    pub(super) fn abandon(&mut self, hold: &Hold, space: &Space) {
        if let Some(flight) = self.flying.take()
            && let Ok(mut steps) = steps_of(hold, space, &flight.batch, flight.fenced)
        {
            let _ = space.end_sequence(flight.under_way, &mut steps);
        }
        self.filling = Batch::default();
    }

    /// Keeps an error for the calls that come later.
    fn note(&mut self, outcome: Result<()>) -> Result<()> {
        if let Err(error) = &outcome {
            self.failed = Some(error.clone());
        }
        outcome
    }

    fn lose_if_planted(&mut self) {
        if fault::planted(Fault::LostFlush) {
            self.filling = Batch::default();
        }
    }
}

fn steps_of<'a>(hold: &Hold, space: &Space, batch: &'a Batch, fenced: usize) -> Result<Vec<Step<'a>>> {
    let fence = hold.fence(space)?.into_iter().take(fenced);
    Ok(fence.chain(batch.steps(0)).collect())
}

/// Sends a batch on its way, if it can be one message; how many steps it has before the writes.
fn begin(hold: &Hold, space: &Space, batch: &Batch) -> Result<Option<(usize, SequenceInFlight)>> {
    let mut fence = hold.fence(space)?;
    let fenced = match space.is_far(hold.lock()) {
        true => fence.len(),
        // What can be seen from here need not be sent.
        false => space.act_in_order(&mut fence, &mut [0; 2]).map(|()| 0)?,
    };
    let begun = space.begin_sequence(&steps_of(hold, space, batch, fenced)?)?;
    if begun.is_some() {
        space.cache().count_flush();
    }
    Ok(begun.map(|under_way| (fenced, under_way)))
}

/// Writes a batch from one of its writes on, and waits for it.
fn write_out(hold: &Hold, space: &Space, batch: &Batch, mut done: usize) -> Result<()> {
    assert!(done <= batch.writes.len(), "more writes were done than there are");
    let mut turns = Turns::default();
    while done < batch.writes.len() {
        let mut steps: Vec<_> = hold.fence(space)?.into();
        let fenced = steps.len();
        steps.extend(batch.steps(done));
        let mut found = vec![0; steps.len()];
        space.cache().count_flush();
        let passed = space.go_on(&mut steps, &mut found)?;
        done += passed.saturating_sub(fenced);
        if let Some((awaited, _)) = steps.get(passed) {
            turns.wait(space, *awaited)?;
        }
    }
    Ok(())
}

/// What a write changes of the `len` bytes at an address: from where in them on, and to what.
fn common((at, bytes): (GlobalAddress, &[u8]), address: GlobalAddress, len: usize) -> Option<(usize, &[u8])> {
    let (start, end) = (at.raw(), at.raw().saturating_add(bytes.len() as u64));
    let from = start.max(address.raw());
    let to = end.min(address.raw().saturating_add(len as u64));
    let count = to.checked_sub(from).filter(|count| *count > 0)? as usize;
    let skipped = (from - start) as usize;
    Some(((from - address.raw()) as usize, &bytes[skipped..skipped + count]))
}
