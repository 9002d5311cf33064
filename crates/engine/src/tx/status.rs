//! Which transactions run, which have committed and when.
//!
//! A transaction's number (`TxId.seq`) is drawn from blocks whose ceiling stands in the control file, so that no number
//! is used twice. Its status is a word: *active* with the slot that runs it, *committed* with its commit timestamp, or
//! *over* (rolled back: no row bears its number any more).
//!
//! The commit timestamp is the LSN at which the commit's mini-transaction ends. It is stored here inside the log's
//! reservation, so the word of every commit below a log position is there before that position is durable. A snapshot
//! is simply the durable position: it sees exactly the commits at or below it.
//!
//! Where the word is found, in this order:
//! 1. number below `low_water`: committed before every snapshot in use (or over); no lookup;
//! 2. the ring of the last numbers (65,536, unless the engine's options say otherwise);
//! 3. `displaced`: transactions that still ran when their place in the ring was needed, and losers of the last run;
//! 4. the CTS pages (see `cts`): committed with that timestamp, or over.
//!
//! Lock order: log reservation → `displaced`; `alloc` → `displaced`.

use super::slots::{SlotIndex, Slots};
use crate::error::{Error, Result};
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Cts, TxId};

/// Top bit of a status word: active, the rest is the slot.
const ACTIVE: u64 = 1 << 63;
const _: () = assert!(ACTIVE > u32::MAX as u64, "the index of a slot lies below the flag");
/// Sizes of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Numbers whose status words lie in the ring.
    pub ring: u64,
    /// Numbers reserved in the control file at a time.
    pub block: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            ring: 1 << 16,
            block: 1 << 16,
        }
    }
}

/// The timestamp told of numbers below the low-water mark, without a look: most have committed, those rolled back count
/// as that.
pub(crate) const BELOW_LOW_WATER: Cts = Cts::from_raw(1);

/// Status of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Runs in this slot.
    Active(SlotIndex),
    /// Has committed with this timestamp.
    Committed(Cts),
    /// Has been rolled back.
    Over,
}

impl Status {
    /// The word: the active slot with its top bit, a timestamp, or zero.
    fn encode(self) -> u64 {
        match self {
            Status::Active(slot) => ACTIVE | u64::from(slot.raw()),
            Status::Committed(cts) => cts.raw(),
            Status::Over => 0,
        }
    }

    /// What [`Status::encode`] gave.
    fn decode(word: u64) -> Status {
        match word {
            0 => Status::Over,
            word if word & ACTIVE != 0 => Status::Active(SlotIndex::from_raw((word & !ACTIVE) as u32)),
            cts => Status::Committed(Cts::from_raw(cts)),
        }
    }
}

/// A place of the ring: whose it is, and that one's status. The tag is zero while the place changes hands, so a reader
/// that finds its number there before and after has read its own status.
#[derive(Default)]
struct Place {
    tag: AtomicU64,
    word: AtomicU64,
}

/// Status of all transactions.
pub(crate) struct TxTable {
    ring: Box<[Place]>,
    /// How often each place was noted anew: at a reader, where a place goes back to older numbers, too.
    notes: Box<[AtomicU64]>,
    /// Numbers reserved at a time.
    block: u64,
    /// First number of this run.
    first: TxId,
    /// Next number to give.
    next: AtomicU64,
    /// Least number that needs a lookup.
    low_water: AtomicU64,
    /// Numbers below this are reserved; guards `next`.
    alloc: rt::Mutex<TxId>,
    displaced: rt::Mutex<HashMap<TxId, Status>>,
    displaced_len: AtomicUsize,
}

impl TxTable {
    /// `first`: least number never used.
    pub(crate) fn new(first: TxId, sizes: Sizes) -> TxTable {
        TxTable {
            ring: (0..sizes.ring.max(1)).map(|_| Place::default()).collect(),
            notes: (0..sizes.ring.max(1)).map(|_| AtomicU64::new(0)).collect(),
            block: sizes.block.max(1),
            first,
            next: AtomicU64::new(first.raw()),
            low_water: AtomicU64::new(0),
            alloc: rt::Mutex::new(first),
            displaced: rt::Mutex::new(HashMap::default()),
            displaced_len: AtomicUsize::new(0),
        }
    }

    /// Numbers below this are visible to every snapshot.
    #[inline]
    pub(crate) fn low_water(&self) -> TxId {
        TxId::from_raw(self.low_water.load(Ordering::Acquire))
    }

    /// Next number that will be given.
    pub(crate) fn next(&self) -> TxId {
        TxId::from_raw(self.next.load(Ordering::Acquire))
    }

    /// Leaves out numbers, as if as many transactions had run.
    #[cfg(test)]
    pub(crate) fn skip(&self, numbers: u64) {
        let _alloc = self.alloc.lock();
        self.next.fetch_add(numbers, Ordering::AcqRel);
    }

    /// Raises the low-water mark and forgets displaced words below it.
    pub(crate) fn raise_low_water(&self, to: TxId) {
        assert!(
            to.raw() <= self.next.as_raw().load(Ordering::Acquire),
            "the low-water mark does not pass the next transaction number"
        );
        self.low_water.fetch_max(to.raw(), Ordering::AcqRel);
        if self.displaced_len.load(Ordering::Acquire) > 0 {
            let mut displaced = self.displaced.lock();
            displaced.retain(|seq, status| *seq >= to || matches!(status, Status::Active(_)));
            self.displaced_len.store(displaced.len(), Ordering::Release);
        }
    }

    /// Draws a number for the transaction that starts in `slot`. `reserve` makes a new ceiling durable.
    pub(crate) fn start(
        &self,
        slots: &Slots,
        slot: SlotIndex,
        reserve: impl FnOnce(TxId) -> Result<()>,
    ) -> Result<TxId> {
        let mut ceiling = self.alloc.lock();
        let seq = TxId::from_raw(self.next.load(Ordering::Relaxed));
        if seq >= *ceiling {
            let end = seq.raw() + self.block;
            if end > TxId::SEQ_END {
                return Err(Error::TooLarge(format!(
                    "transaction {} would be the last one: numbers end at {}. Dump the database, and load it into a new one",
                    seq.raw(),
                    TxId::SEQ_END
                )));
            }
            if !planted(Fault::TxCeiling) {
                reserve(TxId::from_raw(end))?;
            }
            *ceiling = TxId::from_raw(end);
        }
        assert!(
            seq < *ceiling,
            "a transaction number is given only below the reserved ceiling"
        );
        self.make_place(seq, Status::Active(slot));
        slots.get(slot).run(seq);
        self.next.store(seq.raw() + 1, Ordering::Release);
        Ok(seq)
    }

    /// Gives the place in the ring to `seq`; a transaction that still runs there moves to `displaced` first, so that it
    /// is found at every moment.
    fn make_place(&self, seq: TxId, status: Status) {
        let place = self.place(seq);
        let displaced_one = TxId::from_raw(seq.raw().wrapping_sub(self.ring.len() as u64));
        let old = place.word.load(Ordering::Acquire);
        let runs = old & ACTIVE != 0 && !planted(Fault::Displaced);
        let mut displaced = runs.then(|| self.displaced.lock());
        if let Some(displaced) = &mut displaced {
            mark::pass(Mark::StatusDisplaced);
            displaced.insert(displaced_one, Status::decode(old));
            self.displaced_len.store(displaced.len(), Ordering::SeqCst);
        }
        place.tag.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let found = place.word.swap(status.encode(), Ordering::AcqRel);
        if let Some(displaced) = &mut displaced
            && found != old
        {
            displaced.insert(displaced_one, Status::decode(found));
        }
        place.tag.store(seq.raw(), Ordering::Release);
    }

    /// Registers a loser of the last run, which `slot` stands for until it has been rolled back.
    pub(crate) fn adopt(&self, slots: &Slots, slot: SlotIndex, seq: TxId) {
        let mut displaced = self.displaced.lock();
        displaced.insert(seq, Status::Active(slot));
        self.displaced_len.store(displaced.len(), Ordering::Release);
        slots.get(slot).run(seq);
    }

    /// Called inside the log's reservation: from here on `seq` is committed for every snapshot at or above `cts`.
    pub(crate) fn set_committed(&self, seq: TxId, slot: SlotIndex, cts: Cts) {
        assert!(
            cts != Cts::ZERO && cts.raw() & ACTIVE == 0,
            "a commit timestamp is a position of the log"
        );
        self.set(seq, slot, Status::Committed(cts));
    }

    /// `seq` has been rolled back (or has changed nothing).
    pub(crate) fn set_over(&self, seq: TxId, slot: SlotIndex) {
        self.set(seq, slot, Status::Over);
    }

    fn set(&self, seq: TxId, slot: SlotIndex, status: Status) {
        let active = Status::Active(slot).encode();
        let in_ring = seq >= self.first
            && self
                .place(seq)
                .word
                .compare_exchange(active, status.encode(), Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if !in_ring {
            self.displaced.lock().insert(seq, status);
        }
    }

    /// Status of `seq`; `from_page` reads the CTS page. One below the low-water mark counts as committed before all
    /// snapshots: its slot's page may be gone, or go (and be emptied first) while it is read, so the mark is asked
    /// again behind that.
    pub(crate) fn status(&self, seq: TxId, from_page: impl FnOnce(TxId) -> Result<Cts>) -> Result<Status> {
        if seq < self.low_water() {
            return Ok(Status::Committed(BELOW_LOW_WATER));
        }
        match self.in_place(seq) {
            Some(status) => Ok(status),
            None => self.looked_up(seq, from_page),
        }
    }

    /// As `status`, at a reader.
    pub(crate) fn noted_status(&self, seq: TxId, from_page: impl FnOnce(TxId) -> Result<Cts>) -> Result<Status> {
        if seq < self.low_water() {
            return Ok(Status::Committed(BELOW_LOW_WATER));
        }
        match self.noted(seq) {
            Some(status) => Ok(status),
            None => self.looked_up(seq, from_page),
        }
    }

    fn looked_up(&self, seq: TxId, from_page: impl FnOnce(TxId) -> Result<Cts>) -> Result<Status> {
        if self.displaced_len.load(Ordering::Acquire) > 0
            && let Some(status) = self.displaced.lock().get(&seq)
        {
            return Ok(*status);
        }
        mark::pass(Mark::CtsRead);
        let word = from_page(seq);
        fence(Ordering::Acquire);
        if seq < self.low_water() && !planted(Fault::EmptiedCts) {
            Ok(Status::Committed(BELOW_LOW_WATER))
        } else {
            word.map(|cts| Status::decode(cts.raw()))
        }
    }

    /// A page says that `seq` has committed: at a reader, where no transaction runs.
    pub(crate) fn note_committed(&self, seq: TxId, cts: Cts) {
        let _alone = self.alloc.lock();
        let place = self.place(seq);
        self.notes[self.index(seq)].fetch_add(1, Ordering::SeqCst);
        place.tag.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        place.word.store(Status::Committed(cts).encode(), Ordering::Release);
        place.tag.store(seq.raw(), Ordering::Release);
    }

    /// The status of `seq` that its place has, where that was noted. A place that goes to another number and back to
    /// this one between two looks at its tag has given that one's word: the count of notes says so.
    fn noted(&self, seq: TxId) -> Option<Status> {
        self.noted_while(seq, || {})
    }

    /// As `noted`; `beside` is done between its looks at the place.
    #[inline]
    fn noted_while(&self, seq: TxId, beside: impl FnMut()) -> Option<Status> {
        let notes = &self.notes[self.index(seq)];
        let before = notes.load(Ordering::Acquire);
        let found = self.in_place_while(seq, beside);
        fence(Ordering::Acquire);
        found.filter(|_| notes.load(Ordering::Relaxed) == before)
    }

    /// The status of `seq` that its place has, if it has it still.
    #[inline]
    fn in_place(&self, seq: TxId) -> Option<Status> {
        self.in_place_while(seq, || {})
    }

    #[inline]
    fn in_place_while(&self, seq: TxId, mut beside: impl FnMut()) -> Option<Status> {
        let place = self.place(seq);
        if place.tag.load(Ordering::Acquire) != seq.raw() {
            return None;
        }
        beside();
        let word = place.word.load(Ordering::Acquire);
        beside();
        fence(Ordering::Acquire);
        (place.tag.load(Ordering::Relaxed) == seq.raw()).then(|| Status::decode(word))
    }

    fn index(&self, seq: TxId) -> usize {
        (seq.raw() % self.ring.len() as u64) as usize
    }

    fn place(&self, seq: TxId) -> &Place {
        &self.ring[self.index(seq)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const RING: u64 = 1 << 16;

    fn page(_: TxId) -> Result<Cts> {
        Ok(Cts::from_raw(77))
    }

    #[test]
    fn a_transaction_that_outlives_the_ring_is_still_found() {
        let (slots, table) = (
            Arc::new(Slots::new()),
            TxTable::new(TxId::from_raw(5), Sizes::default()),
        );
        let leases = (slots.lease_always(), slots.lease_always());
        let (long, short) = (leases.0.slot, leases.1.slot);
        let first = table.start(&slots, long, |_| Ok(())).unwrap();
        let second = table.start(&slots, short, |_| Ok(())).unwrap();
        table.set_committed(second, short, Cts::from_raw(1000));
        for _ in 0..RING + 10 {
            let seq = table.start(&slots, short, |_| Ok(())).unwrap();
            table.set_over(seq, short);
            assert_eq!(table.status(seq, page).unwrap(), Status::Over);
        }
        assert_eq!(table.status(first, page).unwrap(), Status::Active(long));
        assert_eq!(
            table.status(second, page).unwrap(),
            Status::Committed(Cts::from_raw(77)),
            "left the ring: the page knows"
        );
        table.set_committed(first, long, Cts::from_raw(2000));
        assert_eq!(
            table.status(first, page).unwrap(),
            Status::Committed(Cts::from_raw(2000))
        );
        table.raise_low_water(TxId::from_raw(first.raw() + 1));
        assert_eq!(table.status(first, page).unwrap(), Status::Committed(Cts::from_raw(1)));
    }

    /// A reader looks for a commit; meanwhile others note a later one in its place, and the first one again. Its tag is
    /// the same before and after, and the word that was there in between is the other's.
    #[test]
    fn a_place_that_goes_back_and_forth_gives_no_other_s_word() {
        let table = TxTable::new(TxId::from_raw(5), Sizes::default());
        let numbers = [TxId::from_raw(7), TxId::from_raw(7 + RING)];
        let note = |n: usize| table.note_committed(numbers[n], Cts::from_raw(1000 * (n as u64 + 1)));
        note(0);
        let first = Status::Committed(Cts::from_raw(1000));
        assert_eq!(table.noted_while(numbers[0], || {}), Some(first));
        let mut next = [1, 0].into_iter();
        let beside = || next.next().into_iter().for_each(note);
        assert_eq!(table.noted_while(numbers[0], beside), None, "nothing is said");
        assert_eq!(table.noted_status(numbers[0], page).unwrap(), first);
    }

    /// A long snapshot asks about a commit that has left the ring; before it reads the CTS page, purge raises the
    /// low-water mark over that number and empties the page. The empty word must not count as "rolled back".
    #[test]
    fn a_cts_page_that_goes_while_it_is_read_is_not_believed() {
        let (slots, table) = (
            Arc::new(Slots::new()),
            TxTable::new(TxId::from_raw(5), Sizes::default()),
        );
        let lease = slots.lease_always();
        let slot = lease.slot;
        let old = table.start(&slots, slot, |_| Ok(())).unwrap();
        table.set_committed(old, slot, Cts::from_raw(1000));
        for _ in 0..RING {
            let seq = table.start(&slots, slot, |_| Ok(())).unwrap();
            table.set_over(seq, slot);
        }
        let emptied = |_| {
            table.raise_low_water(TxId::from_raw(old.raw() + 1));
            Ok(Cts::ZERO)
        };
        assert_eq!(table.status(old, emptied).unwrap(), Status::Committed(Cts::from_raw(1)));
    }

    #[test]
    fn ceilings_are_reserved_before_use() {
        let (slots, table) = (
            Arc::new(Slots::new()),
            TxTable::new(TxId::from_raw(1), Sizes::default()),
        );
        let lease = slots.lease_always();
        let slot = lease.slot;
        let reserved = std::cell::Cell::new(TxId::NONE);
        for _ in 0..3 {
            let seq = table
                .start(&slots, slot, |to| {
                    reserved.set(to);
                    Ok(())
                })
                .unwrap();
            assert!(seq < reserved.get());
        }
        assert!(
            TxTable::new(TxId::from_raw(1), Sizes::default())
                .start(&slots, slot, |_| Err(crate::Error::Io("full".into())))
                .is_err()
        );
    }
}
