//! A slot for each transaction object, that is for each session: its snapshots, its running transaction, and what waits
//! for it.
//!
//! The oldest snapshot in use bounds what purge may remove. A reader publishes its snapshot in its own line and writes
//! nothing else. Protocol (both sides sequentially consistent):
//! - reader: read the durable position `v`, store it in the slot, read `announced`; if `v < announced`, start again;
//! - purge: read the durable position `h`, raise `announced` to it, then take the least of `h` and all slots.
//!
//! Either purge sees the slot, or the reader sees `announced` and takes a newer snapshot. So no reader ever reads by a
//! snapshot below a horizon that purge works with.
//!
//! A slot publishes two words: the snapshot of the statement that runs, and the oldest one that is *held* beside it, by
//! portals that are suspended and by readers on other threads. However many those are, they need no slot of their own:
//! the `Lease` that they share counts their snapshots, and the slot is free again when the last of them has gone. A
//! flag says whether younger ones than these two may be in use (`has_others`): parts of one query hold one snapshot,
//! portals of a transaction at read committed each their own.
//!
//! Slots lie in chunks, each twice as large as the one before, made when the first of its slots is needed: a slot never
//! moves. Sessions are refused beyond `LEASES`; transactions that the engine itself answers for (losers) are not.
//!
//! Waiting: one waits for a transaction by sleeping on the epoch of the slot that runs it; the end of the transaction
//! moves the epoch on. `waits_for` draws the wait-for graph; each transaction waits for one other at a time.

use crate::error::{Error, Result};
use crate::versions::Interval;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Cts, TxId};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Slots that sessions may have at one time: as many as there can be undo segments.
const LEASES: usize = 1 << 16;
/// Slots in the first chunk.
const FIRST_CHUNK: usize = 1024;
/// Chunks: together they hold more slots than memory does.
const CHUNKS: usize = 22;
/// A slot that reads nothing.
const IDLE: u64 = u64::MAX;
const _: () = {
    assert!(
        LEASES < FIRST_CHUNK * ((1 << CHUNKS) - 1),
        "losers find slots beside those of sessions"
    );
    assert!(
        FIRST_CHUNK * ((1 << CHUNKS) - 1) <= u32::MAX as usize,
        "each slot has an index of 32 bits"
    );
};

/// Snapshots in use at a moment.
pub(crate) struct InUse {
    /// Those that are known, rising.
    snapshots: Vec<Cts>,
    /// From here on others may be in use, or be taken later.
    pub until: Cts,
}

impl InUse {
    /// Those that are known, rising.
    pub(crate) fn snapshots(&self) -> &[Cts] {
        &self.snapshots
    }

    /// Whether a snapshot in use, or one that is not known, sees a version with this interval.
    pub(crate) fn may_see(&self, interval: Interval) -> bool {
        let first = self.snapshots.partition_point(|snapshot| *snapshot < interval.from);
        let is_seen = self
            .snapshots
            .get(first)
            .is_some_and(|snapshot| *snapshot < interval.to);
        is_seen || interval.to > self.until
    }

    /// The greatest snapshot below a commit's timestamp: no snapshot lies between the two. None: one may, or there is
    /// none below, and the commit is purge's.
    pub(crate) fn gap_of(&self, at: Cts) -> Option<Cts> {
        if at > self.until {
            return None;
        }
        let below = self.snapshots.partition_point(|snapshot| *snapshot < at);
        below.checked_sub(1).map(|last| self.snapshots[last])
    }
}

/// One session's line.
#[repr(align(128))]
pub(crate) struct Slot {
    /// Snapshot in use (an LSN), or `IDLE`. Written by the owner, read by purge.
    snapshot: AtomicU64,
    /// Oldest snapshot held beside it, or `IDLE`. Written under the lease's mutex, read by purge.
    held: AtomicU64,
    /// Whether snapshots may be in use that neither word says, all younger than the one held. Set before such a one may
    /// be missing in both; cleared when `held` says the only one.
    has_others: AtomicBool,
    /// Number of the running transaction; 0: none. Written by the owner, read by purge and by waiters.
    tx: AtomicU64,
    /// Moves on when a transaction of this slot ends; futex word of its waiters.
    pub(crate) epoch: AtomicU32,
    /// How many sleep on `epoch`.
    pub(crate) waiters: AtomicU32,
    /// Number of the transaction that this one waits for; 0: none. Guarded by the wait graph's mutex.
    waits_for: AtomicU64,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            snapshot: AtomicU64::new(IDLE),
            held: AtomicU64::new(IDLE),
            has_others: AtomicBool::new(false),
            tx: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            waits_for: AtomicU64::new(0),
        }
    }

    /// The transaction that runs here, or holds locks still.
    pub(crate) fn running(&self) -> TxId {
        TxId::from_raw(self.tx.load(Ordering::SeqCst))
    }

    /// A transaction begins here.
    pub(crate) fn run(&self, tx: TxId) {
        assert!(!tx.is_none(), "a transaction that runs has a number");
        self.tx.store(tx.raw(), Ordering::Release);
    }

    /// The transaction has freed its locks.
    pub(crate) fn end(&self) {
        self.tx.store(TxId::NONE.raw(), Ordering::SeqCst);
    }

    /// The transaction that the one of this slot waits for.
    pub(crate) fn waits_for(&self) -> TxId {
        TxId::from_raw(self.waits_for.load(Ordering::SeqCst))
    }

    /// Draws the edge to `target`, or clears it with none. The wait graph is locked, or the edge is cleared by its own
    /// transaction.
    pub(crate) fn wait_for(&self, target: TxId) {
        self.waits_for.store(target.raw(), Ordering::Release);
    }
}

/// A transaction that waits, or is waited for: its number and slot.
pub(crate) type Waiting = (TxId, SlotIndex);

/// Which slot: its place among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotIndex(u32);

impl SlotIndex {
    pub(crate) const fn from_raw(raw: u32) -> SlotIndex {
        SlotIndex(raw)
    }

    pub(crate) const fn raw(self) -> u32 {
        self.0
    }
}

/// All slots.
pub(crate) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// Slots not in use; also held while a snapshot begins to be held, and while purge scans the slots.
    free: rt::Mutex<Vec<SlotIndex>>,
    /// Slots ever used: bound of scans.
    used: AtomicUsize,
    /// The durable position when purge last looked at the slots.
    announced: AtomicU64,
    /// Greatest horizon that purge has been given. Written while `free` is held.
    horizon: AtomicU64,
    /// The durable position when ways to old versions were cut last, by the snapshots in use. Written likewise.
    cut: AtomicU64,
}

/// Chunk of a slot, and its place there.
fn place(index: SlotIndex) -> (usize, usize) {
    let chunk = (index.0 as usize / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index.0 as usize - FIRST_CHUNK * ((1 << chunk) - 1))
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: rt::Mutex::new(Vec::new()),
            used: AtomicUsize::new(0),
            announced: AtomicU64::new(0),
            horizon: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        }
    }

    /// A slot for a session. Errors: there are too many (53400).
    pub(crate) fn lease(self: &Arc<Self>) -> Result<Arc<Lease>> {
        let mut free = self.free.lock();
        let used = self.used.load(Ordering::Relaxed);
        assert!(free.len() <= used, "a slot is free after it has been in use");
        if used - free.len() >= LEASES {
            return Err(Error::Limit(format!(
                "all {LEASES} transaction slots are taken: end sessions that are not needed"
            )));
        }
        Ok(Lease::new(self, self.take(&mut free)))
    }

    /// A slot for what cannot be refused one: tools, and losers.
    pub(crate) fn lease_always(self: &Arc<Self>) -> Arc<Lease> {
        Lease::new(self, self.take(&mut self.free.lock()))
    }

    fn take(&self, free: &mut Vec<SlotIndex>) -> SlotIndex {
        free.pop().unwrap_or_else(|| {
            let used = self.used.load(Ordering::Relaxed);
            let index = SlotIndex(used as u32);
            self.get(index);
            self.used.store(used + 1, Ordering::Release);
            index
        })
    }

    /// Gives a slot back.
    fn release(&self, index: SlotIndex) {
        self.withdraw(index);
        self.free.lock().push(index);
    }

    #[inline]
    pub(crate) fn get(&self, index: SlotIndex) -> &Slot {
        let (chunk, at) = place(index);
        &self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| Slot::new()).collect())[at]
    }

    /// Publishes a snapshot of what `visible` says and returns it.
    pub(crate) fn publish(&self, index: SlotIndex, visible: impl Fn() -> Cts) -> Cts {
        loop {
            let snapshot = visible();
            mark::pass(Mark::SnapshotRead);
            self.get(index).snapshot.store(snapshot.raw(), Ordering::SeqCst);
            mark::pass(Mark::SnapshotPublished);
            if snapshot.raw() >= self.announced.load(Ordering::SeqCst) || planted(Fault::SnapshotRecheck) {
                return snapshot;
            }
        }
    }

    /// The snapshot that the slot publishes for the statement that runs; zero: none.
    pub(crate) fn published(&self, index: SlotIndex) -> Cts {
        match self.get(index).snapshot.load(Ordering::Relaxed) {
            IDLE => Cts::ZERO,
            snapshot => Cts::from_raw(snapshot),
        }
    }

    /// Publishes a snapshot that is held. Not while purge looks at the slots: it might have read the one word already
    /// and meet the other when that has been let go.
    pub(crate) fn publish_held(&self, index: SlotIndex, snapshot: Cts) {
        let _no_scan = self.free.lock();
        let slot = self.get(index);
        assert!(
            slot.held.as_raw().load(Ordering::SeqCst) <= snapshot.raw(),
            "a snapshot that is published again was held meanwhile"
        );
        slot.snapshot.store(snapshot.raw(), Ordering::SeqCst);
    }

    /// Holds a snapshot that the slot publishes while this is called. Not while purge looks at the slots: it might have
    /// read the one word already and meet the other when that has gone on.
    fn hold(&self, index: SlotIndex, snapshot: Cts) {
        let _no_scan = self.free.lock();
        self.get(index).held.store(snapshot.raw(), Ordering::SeqCst);
    }

    /// Holds the oldest snapshot in use, and gives it: purge has worked with none that is younger. With none in use it
    /// is `visible`, the durable position.
    fn hold_oldest(&self, index: SlotIndex, visible: Cts) -> Cts {
        let _no_scan = self.free.lock();
        let visible = visible.max(Cts::from_raw(self.announced.load(Ordering::SeqCst)));
        // A reader that is about to take a newer snapshot may publish one that purge has passed. One that is held is in
        // use, whatever purge would have passed: it came from another server.
        let published = self.oldest_of(visible, |slot| &slot.snapshot);
        let published = published.max(Cts::from_raw(self.horizon.load(Ordering::Relaxed)));
        let oldest = published.min(self.oldest_of(visible, |slot| &slot.held));
        self.get(index).held.store(oldest.raw(), Ordering::SeqCst);
        oldest
    }

    /// Oldest snapshot in use, at most `visible`.
    fn oldest(&self, visible: Cts) -> Cts {
        self.in_use()
            .flat_map(|s| [&s.snapshot, &s.held])
            .map(|word| Cts::from_raw(word.load(Ordering::SeqCst)))
            .fold(visible, Cts::min)
    }

    fn oldest_of(&self, visible: Cts, word: impl Fn(&Slot) -> &AtomicU64) -> Cts {
        let words = self
            .in_use()
            .map(|slot| Cts::from_raw(word(slot).load(Ordering::SeqCst)));
        words.fold(visible, Cts::min)
    }

    /// Snapshots may be in use that the slot's words do not say.
    fn note_others(&self, index: SlotIndex, has_others: bool) {
        self.get(index).has_others.store(has_others, Ordering::SeqCst);
    }

    /// The oldest snapshot held is a younger one now, or none.
    fn let_go(&self, index: SlotIndex, left: Option<Cts>) {
        self.get(index)
            .held
            .store(left.map_or(IDLE, Cts::raw), Ordering::SeqCst);
    }

    /// The slot's statement reads nothing any more.
    pub(crate) fn withdraw(&self, index: SlotIndex) {
        self.get(index).snapshot.store(IDLE, Ordering::Release);
    }

    /// Oldest snapshot in use, at most `visible`: versions that ended before it can be removed.
    pub(crate) fn horizon(&self, visible: Cts) -> Cts {
        self.announced.fetch_max(visible.raw(), Ordering::SeqCst);
        let _no_holding = self.free.lock();
        if planted(Fault::PurgeHorizon) {
            return visible;
        }
        let horizon = self.oldest(visible);
        self.horizon.fetch_max(horizon.raw(), Ordering::Relaxed);
        horizon
    }

    /// Whether no way was cut to a version that this snapshot sees, which is held from before this is asked, and may be
    /// older than all others.
    pub(crate) fn is_uncut(&self, held: Cts) -> bool {
        let _no_scan = self.free.lock();
        held.raw() >= self.cut.load(Ordering::Relaxed)
    }

    /// The snapshots in use; none taken later is older than `visible`, the durable position.
    pub(crate) fn snapshots(&self, visible: Cts) -> InUse {
        self.announced.fetch_max(visible.raw(), Ordering::SeqCst);
        let _no_holding = self.free.lock();
        self.cut.fetch_max(visible.raw(), Ordering::Relaxed);
        let mut in_use = InUse {
            snapshots: Vec::new(),
            until: visible,
        };
        for slot in self.in_use() {
            // In this order: a snapshot goes from the first word to the flag, and from there to the last word.
            let snapshot = slot.snapshot.load(Ordering::SeqCst);
            let has_others = slot.has_others.load(Ordering::SeqCst);
            let held = slot.held.load(Ordering::SeqCst);
            in_use.snapshots.extend(
                [snapshot, held]
                    .into_iter()
                    .filter(|word| *word != IDLE)
                    .map(Cts::from_raw),
            );
            if has_others {
                in_use.until = in_use.until.min(Cts::from_raw(held));
            }
        }
        in_use.snapshots.sort_unstable();
        in_use.snapshots.dedup();
        in_use
    }

    /// Least number of a running transaction, at most `next`.
    pub(crate) fn oldest_tx(&self, next: TxId) -> TxId {
        self.in_use()
            .map(|s| TxId::from_raw(s.tx.load(Ordering::Acquire)))
            .filter(|tx| !tx.is_none())
            .fold(next, TxId::min)
    }

    /// The slot in which transaction `tx` runs, or holds locks still.
    pub(crate) fn slot_of(&self, tx: TxId) -> Option<SlotIndex> {
        self.in_use()
            .position(|s| s.running() == tx)
            .map(|slot| SlotIndex(slot as u32))
    }

    /// How many transactions have a number and run.
    pub(crate) fn running(&self) -> usize {
        self.in_use().filter(|s| s.tx.load(Ordering::Acquire) != 0).count()
    }

    /// How many transactions wait for another.
    pub(crate) fn waiting(&self) -> usize {
        self.in_use()
            .filter(|s| s.waits_for.load(Ordering::Acquire) != 0)
            .count()
    }

    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Slot> {
        let chunks = self.chunks.iter().map_while(OnceLock::get);
        chunks
            .flat_map(|chunk| chunk.iter())
            .take(self.used.load(Ordering::Acquire))
    }
}

/// A slot, for as long as its transaction or a reader of it lives.
pub(crate) struct Lease {
    slots: Arc<Slots>,
    pub(crate) slot: SlotIndex,
    held: rt::Mutex<Held>,
}

/// What is held of a lease's slot.
#[derive(Default)]
struct Held {
    /// Snapshots, and how often each.
    snapshots: BTreeMap<Cts, usize>,
    /// Holds behind which unknown snapshots may be in use.
    covers: usize,
}

impl Held {
    fn oldest(&self) -> Option<Cts> {
        self.snapshots.keys().next().copied()
    }

    /// Whether snapshots may be in use that are not the oldest one.
    fn has_others(&self) -> bool {
        self.snapshots.len() > 1 || self.covers > 0
    }
}

impl Lease {
    fn new(slots: &Arc<Slots>, slot: SlotIndex) -> Arc<Lease> {
        Arc::new(Lease {
            slots: slots.clone(),
            slot,
            held: rt::Mutex::default(),
        })
    }

    /// Holds `snapshot`, which the slot publishes, or which is held already.
    pub(crate) fn hold(self: &Arc<Self>, snapshot: Cts) -> Hold {
        let mut held = self.held.lock();
        let oldest = held.oldest();
        *held.snapshots.entry(snapshot).or_default() += 1;
        if held.has_others() {
            self.slots.note_others(self.slot, true);
        }
        if oldest.is_none_or(|oldest| snapshot < oldest) {
            self.slots.hold(self.slot, snapshot);
        }
        self.held_by(snapshot, false)
    }

    /// Holds the oldest snapshot in use, of any reader: neither what purge may remove grows while the hold lives, nor
    /// what ways to old versions pass over. `visible` is the durable position.
    pub(crate) fn hold_oldest(self: &Arc<Self>, visible: Cts) -> Hold {
        let mut held = self.held.lock();
        held.covers += 1;
        self.slots.note_others(self.slot, true);
        let snapshot = self.slots.hold_oldest(self.slot, visible);
        *held.snapshots.entry(snapshot).or_default() += 1;
        self.held_by(snapshot, true)
    }

    fn held_by(self: &Arc<Self>, snapshot: Cts, covers: bool) -> Hold {
        Hold {
            lease: self.clone(),
            snapshot,
            covers,
        }
    }

    fn let_go(&self, snapshot: Cts, covers: bool) {
        let mut held = self.held.lock();
        let oldest = held.oldest();
        assert!(
            held.snapshots.contains_key(&snapshot),
            "a hold is counted from its making until it is dropped"
        );
        held.covers -= usize::from(covers);
        if let Some(count) = held.snapshots.get_mut(&snapshot) {
            *count -= 1;
            if *count == 0 {
                held.snapshots.remove(&snapshot);
            }
        }
        let left = held.oldest();
        if left != oldest {
            self.slots.let_go(self.slot, left);
        }
        if !held.has_others() {
            self.slots.note_others(self.slot, false);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let held = self.held.get_mut();
        assert!(
            held.snapshots.is_empty() && held.covers == 0,
            "each hold keeps its lease"
        );
        self.slots.release(self.slot);
    }
}

/// A snapshot that purge respects while this lives.
pub(crate) struct Hold {
    lease: Arc<Lease>,
    snapshot: Cts,
    /// Snapshots may be in use by it that are younger.
    covers: bool,
}

impl Hold {
    /// The snapshot.
    pub(crate) fn snapshot(&self) -> Cts {
        self.snapshot
    }

    /// A younger snapshot will be taken, which is published nowhere.
    pub(crate) fn cover(&mut self) {
        assert!(!self.covers, "a hold covers once");
        let mut held = self.lease.held.lock();
        held.covers += 1;
        self.lease.slots.note_others(self.lease.slot, true);
        self.covers = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.lease.let_go(self.snapshot, self.covers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(position: u64) -> Cts {
        Cts::from_raw(position)
    }

    #[test]
    fn the_horizon_is_the_oldest_snapshot() {
        let slots = Arc::new(Slots::new());
        let (a, b) = (slots.lease_always(), slots.lease_always());
        assert_eq!(slots.publish(a.slot, || at(10)), at(10));
        assert_eq!(slots.publish(b.slot, || at(20)), at(20));
        assert_eq!(slots.horizon(at(30)), at(10));
        slots.withdraw(a.slot);
        assert_eq!(slots.horizon(at(30)), at(20));
        let stale = std::cell::Cell::new(at(25));
        assert_eq!(
            slots.publish(a.slot, || stale.replace(at(31))),
            at(31),
            "below what purge announced: taken again"
        );
        let slot = b.slot;
        drop(b);
        assert_eq!(slots.lease_always().slot, slot);
    }

    #[test]
    fn a_held_snapshot_outlives_the_statement_and_the_transaction() {
        let slots = Arc::new(Slots::new());
        let lease = slots.lease_always();
        let hold = |visible| lease.hold(slots.publish(lease.slot, || visible));
        let (first, second, again) = (hold(at(10)), hold(at(20)), hold(at(20)));
        slots.publish(lease.slot, || at(30));
        assert_eq!(slots.horizon(at(30)), at(10));
        drop(first);
        assert_eq!(slots.horizon(at(30)), at(20));
        drop((second, lease));
        slots.withdraw(again.lease.slot);
        assert_eq!(slots.horizon(at(40)), at(20), "its slot is not free yet");
        drop(again);
        assert_eq!(slots.horizon(at(40)), at(40));
        assert_eq!(slots.free.lock().len(), 1);
    }

    /// While a query ran on several threads, which hold its snapshot, nothing behind that was known.
    #[test]
    fn snapshots_are_known_unless_a_slot_holds_several() {
        let slots = Arc::new(Slots::new());
        let lease = slots.lease_always();
        let known = |visible| {
            let in_use = slots.snapshots(visible);
            (in_use.snapshots().to_vec(), in_use.until)
        };
        slots.publish(lease.slot, || at(10));
        let (one, two) = (lease.hold(at(10)), lease.hold(at(10)));
        assert_eq!(known(at(15)), (vec![at(10)], at(15)), "parts of one query");
        slots.publish(lease.slot, || at(20));
        let three = lease.hold(at(20));
        slots.publish(lease.slot, || at(30));
        assert_eq!(known(at(40)), (vec![at(10), at(30)], at(10)), "20 is in no word");
        drop((one, two));
        assert_eq!(known(at(40)), (vec![at(20), at(30)], at(40)));
        let mut of_now = lease.hold(at(30));
        drop(three);
        of_now.cover();
        assert_eq!(known(at(40)), (vec![at(30)], at(30)));
        drop(of_now);
        assert_eq!(known(at(40)), (vec![at(30)], at(40)));
        let oldest = lease.hold_oldest(at(40));
        assert_eq!(known(at(40)), (vec![at(30)], at(30)));
        drop(oldest);
        slots.withdraw(lease.slot);
        assert_eq!(known(at(40)), (vec![], at(40)));
    }

    #[test]
    fn the_oldest_snapshot_keeps_purge_where_it_is() {
        let slots = Arc::new(Slots::new());
        let (reader, builder) = (slots.lease_always(), slots.lease_always());
        slots.publish(reader.slot, || at(10));
        slots.publish(builder.slot, || at(30));
        let hold = builder.hold_oldest(at(40));
        assert_eq!(hold.snapshot(), at(10));
        slots.withdraw(reader.slot);
        assert_eq!(slots.horizon(at(50)), at(10), "its reader has gone, the hold has not");
        drop(hold);
        assert_eq!(slots.horizon(at(50)), at(30));
        slots.withdraw(builder.slot);
        assert_eq!(slots.horizon(at(60)), at(60));
        // A reader that is about to look at what purge has announced, and to take a newer one.
        slots.get(reader.slot).snapshot.store(55, Ordering::SeqCst);
        assert_eq!(
            builder.hold_oldest(at(60)).snapshot(),
            at(60),
            "purge has worked with 60"
        );
        slots.withdraw(reader.slot);
        // One of another server, of which purge did not know.
        let hold = reader.hold(at(40));
        slots.publish_held(reader.slot, at(40));
        assert_eq!(builder.hold_oldest(at(60)).snapshot(), at(40), "it is in use");
        assert!(slots.is_uncut(at(40)));
        slots.snapshots(at(60));
        assert!(!slots.is_uncut(at(40)) && slots.is_uncut(at(60)));
        drop(hold);
    }

    /// There were 4,096 slots; a transaction or reader beyond them waited for one without end. Now those beyond the
    /// limit are refused, and each end makes room.
    #[test]
    fn sessions_beyond_the_limit_are_refused_until_one_ends() {
        let slots = Arc::new(Slots::new());
        let mut leases: Vec<_> = (0..LEASES).map(|_| slots.lease().expect("there is room")).collect();
        for (i, lease) in leases.iter().enumerate() {
            assert_eq!(lease.slot, SlotIndex(i as u32));
            slots.get(lease.slot).run(TxId::from_raw(i as u64 + 1));
        }
        assert_eq!(
            slots.slot_of(TxId::from_raw(LEASES as u64)),
            Some(SlotIndex(LEASES as u32 - 1))
        );
        assert_eq!(slots.lease().err().map(|error| error.sqlstate()), Some("53400"));
        let loser = slots.lease_always();
        assert_eq!(loser.slot, SlotIndex(LEASES as u32));
        leases.truncate(LEASES - 2);
        assert!(slots.lease().is_ok(), "two have ended, and a loser has come");
    }
}
