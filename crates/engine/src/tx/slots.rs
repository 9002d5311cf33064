//! A slot for each session and detached reader: its snapshot, its running transaction, and who waits for it.
//!
//! The oldest snapshot in use bounds what purge may remove. A reader publishes its snapshot in its own line and writes
//! nothing else. Protocol (both sides sequentially consistent):
//! - reader: read the durable position `v`, store it in the slot, read `announced`; if `v < announced`, start again;
//! - purge: read the durable position `h`, raise `announced` to it, then take the least of `h` and all slots.
//!
//! Either purge sees the slot, or the reader sees `announced` and takes a newer snapshot. So nobody ever reads by a snapshot
//! below a horizon that purge works with.
//!
//! Waiting: one waits for a transaction by sleeping on the epoch of the slot that runs it; the end of the transaction moves
//! the epoch on. `waits_for` draws the wait-for graph; each transaction waits for one other at a time.

use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Sessions and detached readers at one time.
const SLOTS: usize = 4096;
/// A slot that reads nothing.
const IDLE: u64 = u64::MAX;

/// One session's line.
#[repr(align(128))]
pub(crate) struct Slot {
    /// Snapshot in use (an LSN), or `IDLE`. Written by the owner, read by purge.
    snapshot: AtomicU64,
    /// Number of the running transaction; 0: none. Written by the owner, read by purge and by those who wait.
    pub(crate) tx: AtomicU64,
    /// Moves on when a transaction of this slot ends; futex word of those who wait for it.
    pub(crate) epoch: AtomicU32,
    /// How many sleep on `epoch`.
    pub(crate) waiters: AtomicU32,
    /// Number of the transaction that this one waits for; 0: none. Guarded by the wait graph's mutex.
    pub(crate) waits_for: AtomicU64,
}

/// All slots.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// Slots not in use; also held while a snapshot is shared, and while purge scans the slots.
    free: rt::Mutex<Vec<u32>>,
    /// Slots ever used: bound of scans.
    used: AtomicUsize,
    /// Greatest horizon that purge has worked with.
    announced: AtomicU64,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        let slot = |_| Slot {
            snapshot: AtomicU64::new(IDLE),
            tx: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            waits_for: AtomicU64::new(0),
        };
        Slots {
            slots: (0..SLOTS).map(slot).collect(),
            free: rt::Mutex::new(Vec::new()),
            used: AtomicUsize::new(0),
            announced: AtomicU64::new(0),
        }
    }

    /// Takes a slot; waits where all are taken.
    pub(crate) fn acquire(&self) -> u32 {
        loop {
            {
                let mut free = self.free.lock();
                if let Some(index) = free.pop() {
                    return index;
                }
                let used = self.used.load(Ordering::Relaxed);
                if used < SLOTS {
                    self.used.store(used + 1, Ordering::Release);
                    return used as u32;
                }
            }
            rt::sleep(rt::Nanos::from_millis(1));
        }
    }

    /// Gives a slot back.
    pub(crate) fn release(&self, index: u32) {
        self.withdraw(index);
        self.free.lock().push(index);
    }

    pub(crate) fn get(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// Publishes a snapshot of what `visible` says and returns it.
    pub(crate) fn publish(&self, index: u32, visible: impl Fn() -> u64) -> u64 {
        loop {
            let snapshot = visible();
            self.get(index).snapshot.store(snapshot, Ordering::SeqCst);
            if snapshot >= self.announced.load(Ordering::SeqCst) {
                return snapshot;
            }
        }
    }

    /// Publishes a snapshot that another slot holds while this is called. Not while purge looks at the slots: it might have
    /// passed this one and meet the other when that has gone on.
    pub(crate) fn share(&self, index: u32, snapshot: u64) {
        let _no_scan = self.free.lock();
        self.get(index).snapshot.store(snapshot, Ordering::SeqCst);
    }

    /// The slot reads nothing any more.
    pub(crate) fn withdraw(&self, index: u32) {
        self.get(index).snapshot.store(IDLE, Ordering::Release);
    }

    /// Oldest snapshot in use, at most `visible`: versions that ended before it can be removed.
    pub(crate) fn horizon(&self, visible: u64) -> u64 {
        self.announced.fetch_max(visible, Ordering::SeqCst);
        let _no_sharing = self.free.lock();
        self.in_use()
            .map(|s| s.snapshot.load(Ordering::SeqCst))
            .fold(visible, u64::min)
    }

    /// Least number of a running transaction, at most `next`.
    pub(crate) fn oldest_tx(&self, next: u64) -> u64 {
        self.in_use()
            .map(|s| s.tx.load(Ordering::Acquire))
            .filter(|tx| *tx != 0)
            .fold(next, u64::min)
    }

    /// The slot in which transaction `tx` runs, or holds locks still.
    pub(crate) fn slot_of(&self, tx: u64) -> Option<u32> {
        self.in_use()
            .position(|s| s.tx.load(Ordering::SeqCst) == tx)
            .map(|slot| slot as u32)
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

    fn in_use(&self) -> impl Iterator<Item = &Slot> {
        self.slots[..self.used.load(Ordering::Acquire)].iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_is_the_oldest_snapshot() {
        let slots = Slots::new();
        let (a, b) = (slots.acquire(), slots.acquire());
        assert_eq!(slots.publish(a, || 10), 10);
        assert_eq!(slots.publish(b, || 20), 20);
        assert_eq!(slots.horizon(30), 10);
        slots.withdraw(a);
        assert_eq!(slots.horizon(30), 20);
        let stale = std::cell::Cell::new(25);
        assert_eq!(
            slots.publish(a, || stale.replace(31)),
            31,
            "below what purge announced: taken again"
        );
        slots.release(b);
        assert_eq!(slots.acquire(), b);
    }
}
