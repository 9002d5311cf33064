//! Locks of transactions, and waiting for transactions.
//!
//! - A *row write lock* is the row's newest version itself: it belongs to the transaction that made it while that runs.
//! - A *row lock* (FOR UPDATE, FOR SHARE) is an entry here, by space and key; it is taken and looked for under the
//!   leaf's latch. No reader looks while there is none at all.
//! - A *table lock* is shared by writers of rows and exclusive to a change of the definition. Names that a definition
//!   statement is about to use are locked the same way, under an id made from the name.
//! - *Unique stripes* serialise, for the time of one insert, transactions that check and then enter the same key of a
//!   unique index.
//!
//! None is logged: after a crash the only transactions left are losers. Those hold their write locks, and alone the
//! tables that they were defining, which the catalog's rows tell (`recovery`). All are freed at the end of the
//! transaction. A transaction that finds a lock taken waits for the *transaction* that holds it (`Waits::wait`); a
//! waiter that would close a cycle gets 40P01. Transactions that want the same row queue for it (`queue`).
//!
//! Lock order: unique stripes (by number) → page latches → row lock shard, row queue shard. No thread waits for a
//! transaction with a stripe or a latch held.

use super::slots::{Slot, SlotIndex, Slots, Waiting};
use crate::api::LockStrength;
use crate::error::{Error, Result};
use cenote_base::TxId;
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::{AtomicU64, AtomicUsize, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use std::hash::{BuildHasher, Hasher};

/// How often a waiter looks at its cancel flag.
const CANCEL_POLL: rt::Nanos = rt::Nanos::from_millis(20);
const SHARDS: usize = 64;
const STRIPES: usize = 1024;

/// Set from another thread to stop what a transaction waits for or scans.
///
/// ```text
/// | statement: 62 bits | out of time: 1 | asked to stop: 1 |
/// ```
/// Number and flags are one word: a time limit stops the statement that it was set for, or nothing.
#[derive(Debug, Default)]
pub struct CancelFlag(AtomicU64);

const ASKED: u64 = 1;
const OUT_OF_TIME: u64 = 2;
const STATEMENT: u64 = 4;
const _: () = assert!(
    ASKED & OUT_OF_TIME == 0 && STATEMENT == ASKED + OUT_OF_TIME + 1,
    "the number of the statement lies above both flags"
);

impl CancelFlag {
    /// Asks the running statement to stop.
    pub fn set(&self) {
        self.0.fetch_or(ASKED, Ordering::AcqRel);
    }

    /// Forgets the request. A time limit that has passed stays passed until its statement ends.
    pub fn clear(&self) {
        self.0.fetch_and(!ASKED, Ordering::AcqRel);
    }

    /// A statement with a time limit begins; its number, by which it [expires](Self::expire).
    pub fn begin_statement(&self) -> u64 {
        self.next() / STATEMENT + 1
    }

    /// The statement is over: its time limit reaches nothing any more. Whether it had run out of time.
    pub fn end_statement(&self) -> bool {
        self.next() & OUT_OF_TIME != 0
    }

    fn next(&self) -> u64 {
        let next = |word: u64| Some((word & !OUT_OF_TIME).wrapping_add(STATEMENT));
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(word) | Err(word) => word,
        }
    }

    /// Stops `statement` because its time is up. False: it has ended, and nothing is stopped.
    pub fn expire(&self, statement: u64) -> bool {
        let expired = |word: u64| (word / STATEMENT == statement).then_some(word | OUT_OF_TIME);
        let done = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, expired);
        done.is_ok()
    }

    /// Whether a stop is asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) & (ASKED | OUT_OF_TIME) != 0
    }

    /// 57014 if a stop is asked for.
    ///
    /// # Errors
    /// 57014: a stop is asked for.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Canceled) } else { Ok(()) }
    }
}

impl cenote_buffer::Interrupt for CancelFlag {
    fn is_set(&self) -> bool {
        self.is_set()
    }
}

/// The transaction that waits, and for how long.
pub(crate) struct Waiter<'a> {
    pub slot: SlotIndex,
    pub seq: TxId,
    /// None: without end.
    pub timeout: Option<rt::Nanos>,
    pub cancel: &'a CancelFlag,
    /// An error for a transaction that does not end, since it cannot be rolled back: it is not waited for.
    pub stuck: &'a dyn Fn(TxId) -> Result<()>,
    /// Whether there is still a reason to wait, though the transaction runs.
    pub still: &'a dyn Fn() -> bool,
    /// [`Waits::returns`] before the waiter looked at what it waits for.
    pub looked: u64,
}

/// The wait-for graph: its edges are the slots' `waits_for`. An edge that is cleared by another sends its waiter to
/// look again.
#[derive(Default)]
pub(crate) struct Waits {
    graph: rt::Mutex<()>,
    /// How often transactions have returned to savepoints: what was seen of their rows before may be taken back.
    returns: AtomicU64,
}

impl Waits {
    /// Returns when transaction `target`, which runs in `target_slot`, has ended, or there is no reason to wait for it
    /// any more. `slot_of` finds the slot of a running one.
    pub(crate) fn wait(
        &self,
        slots: &Slots,
        waiter: &Waiter<'_>,
        (target, target_slot): Waiting,
        slot_of: &dyn Fn(TxId) -> Result<Option<SlotIndex>>,
    ) -> Result<()> {
        let slot = slots.get(target_slot);
        slot.waiters.fetch_add(1, Ordering::SeqCst);
        let done = self
            .enter(slots, waiter, target, slot_of)
            .and_then(|()| self.sleep(slots, waiter, target, target_slot));
        slots.get(waiter.slot).wait_for(TxId::NONE);
        let waiters = slot.waiters.fetch_sub(1, Ordering::SeqCst);
        assert!(
            waiters > 0,
            "a waiter is counted from before its edge is drawn until after it is cleared"
        );
        done
    }

    /// See [`Waiter::looked`].
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::SeqCst)
    }

    /// Draws the edge, if there is a reason to; refuses one that closes a cycle.
    fn enter(
        &self,
        slots: &Slots,
        waiter: &Waiter<'_>,
        target: TxId,
        slot_of: &dyn Fn(TxId) -> Result<Option<SlotIndex>>,
    ) -> Result<()> {
        let _graph = self.graph.lock();
        if !(waiter.still)() || self.returns() != waiter.looked {
            return Ok(());
        }
        let mut at = if planted(Fault::DeadlockCheck) {
            TxId::NONE
        } else {
            target
        };
        while !at.is_none() {
            if at == waiter.seq {
                return Err(Error::Deadlock(format!(
                    "transaction {} and transaction {} wait for each other",
                    waiter.seq.raw(),
                    target.raw()
                )));
            }
            at = match slot_of(at)? {
                Some(index) if slots.get(index).running() == at => slots.get(index).waits_for(),
                _ => TxId::NONE,
            };
        }
        slots.get(waiter.slot).wait_for(target);
        Ok(())
    }

    fn sleep(&self, slots: &Slots, waiter: &Waiter<'_>, target: TxId, target_slot: SlotIndex) -> Result<()> {
        let (slot, edge) = (slots.get(target_slot), slots.get(waiter.slot));
        let end = waiter.timeout.map(|timeout| rt::now() + timeout);
        loop {
            let epoch = slot.epoch.load(Ordering::SeqCst);
            let drawn = edge.waits_for() == target;
            if !drawn || slot.running() != target || !(waiter.still)() {
                return Ok(());
            }
            waiter.cancel.check()?;
            (waiter.stuck)(target)?;
            let left = end.map_or(CANCEL_POLL, |end| end.since(rt::now()).min(CANCEL_POLL));
            if left == rt::Nanos::ZERO {
                return Err(Error::LockNotAvailable(
                    "canceling statement due to lock timeout".into(),
                ));
            }
            rt::wait(&slot.epoch, epoch, Some(left));
        }
    }

    /// Transaction `own` leaves a row's queue without the row, by `leave`, which gives the slot of the one behind it:
    /// that one looks again. Its edge goes at once, since it waits for `own` no longer, and a cycle through it would be
    /// none.
    ///
    /// Both under the graph: an edge to `own` that the one behind it draws later has another reason, and stays.
    pub(crate) fn leave_queue(
        &self,
        slots: &Slots,
        (own, own_slot): Waiting,
        leave: impl FnOnce() -> Option<SlotIndex>,
    ) {
        {
            let _graph = self.graph.lock();
            let Some(next) = leave() else { return };
            let edge = slots.get(next);
            if edge.waits_for() == own {
                edge.wait_for(TxId::NONE);
            }
        }
        Waits::wake(slots.get(own_slot));
    }

    /// Transaction `own` has returned to a savepoint: the rows that others wait for may be free. Their edges go at
    /// once, so that no cycle is seen through them, and they look again; so does one that has looked before this, and
    /// draws its edge after it.
    pub(crate) fn returned(&self, slots: &Slots, (own, own_slot): Waiting) {
        {
            let _graph = self.graph.lock();
            self.returns.fetch_add(1, Ordering::SeqCst);
            if slots.get(own_slot).waiters.load(Ordering::SeqCst) == 0 {
                return;
            }
            for edge in slots.in_use().filter(|slot| slot.waits_for() == own) {
                edge.wait_for(TxId::NONE);
            }
        }
        Waits::wake(slots.get(own_slot));
    }

    fn wake(slot: &Slot) {
        slot.epoch.fetch_add(1, Ordering::SeqCst);
        if slot.waiters.load(Ordering::SeqCst) > 0 {
            rt::wake(&slot.epoch, usize::MAX);
        }
    }

    /// Wakes all waiters of the transaction that has just ended in `slot`.
    pub(crate) fn ended(slots: &Slots, slot: SlotIndex) {
        let slot = slots.get(slot);
        slot.end();
        Waits::wake(slot);
    }
}

#[derive(Default)]
struct TableLock {
    shared: Vec<TxId>,
    exclusive: TxId,
    /// Waits for the sharers; newcomers queue behind it.
    waiting: TxId,
}

impl TableLock {
    /// After each change that gives a transaction the lock.
    fn check(&self) {
        assert!(
            self.exclusive.is_none() || self.shared.iter().all(|by| *by == self.exclusive),
            "the transaction that holds a table lock alone shares it with no other"
        );
    }
}

/// Table locks, by object id (or name id).
#[derive(Default)]
pub(crate) struct TableLocks {
    locks: rt::Mutex<HashMap<u64, TableLock>>,
}

/// Lock id of a table.
pub(crate) fn table_lock(id: u32) -> u64 {
    u64::from(id)
}

/// Lock id of a name.
pub(crate) fn name_lock(name: &str) -> u64 {
    let mut hasher = rt::FixedState.build_hasher();
    hasher.write(name.as_bytes());
    hasher.finish() | 1 << 63
}

impl TableLocks {
    /// Shares the lock; Err: the transaction to wait for.
    pub(crate) fn try_shared(&self, id: u64, seq: TxId) -> std::result::Result<(), TxId> {
        let mut locks = self.locks.lock();
        let lock = locks.entry(id).or_default();
        if lock.exclusive == seq || lock.shared.contains(&seq) {
            return Ok(());
        }
        match [lock.exclusive, lock.waiting]
            .into_iter()
            .find(|by| !by.is_none() && *by != seq)
        {
            Some(by) => Err(by),
            None => {
                lock.shared.push(seq);
                lock.check();
                Ok(())
            }
        }
    }

    /// Takes the lock alone; Err: a transaction to wait for.
    pub(crate) fn try_exclusive(&self, id: u64, seq: TxId) -> std::result::Result<(), TxId> {
        let mut locks = self.locks.lock();
        let lock = locks.entry(id).or_default();
        if !lock.exclusive.is_none() && lock.exclusive != seq {
            return Err(lock.exclusive);
        }
        if let Some(by) = lock.shared.iter().find(|by| **by != seq) {
            if lock.waiting.is_none() {
                lock.waiting = seq;
            }
            return Err(*by);
        }
        lock.exclusive = seq;
        lock.check();
        if lock.waiting == seq {
            lock.waiting = TxId::NONE;
        }
        Ok(())
    }

    /// Locks that are held or waited for.
    pub(crate) fn held(&self) -> usize {
        let is_held = |l: &&TableLock| !l.shared.is_empty() || !l.exclusive.is_none() || !l.waiting.is_none();
        self.locks.lock().values().filter(is_held).count()
    }

    /// The transaction waits for the lock no longer.
    pub(crate) fn stop_waiting(&self, id: u64, seq: TxId) {
        if let Some(lock) = self.locks.lock().get_mut(&id)
            && lock.waiting == seq
        {
            lock.waiting = TxId::NONE;
        }
    }

    /// Whether the transaction holds one of these alone.
    pub(crate) fn is_alone(&self, ids: &[u64], seq: TxId) -> bool {
        let locks = self.locks.lock();
        ids.iter()
            .any(|id| locks.get(id).is_some_and(|lock| lock.exclusive == seq))
    }

    /// Frees the transaction's hold on these locks.
    pub(crate) fn release(&self, ids: &[u64], seq: TxId) {
        let mut locks = self.locks.lock();
        for id in ids {
            let Some(lock) = locks.get_mut(id) else { continue };
            lock.shared.retain(|by| *by != seq);
            for word in [&mut lock.exclusive, &mut lock.waiting] {
                if *word == seq {
                    *word = TxId::NONE;
                }
            }
            if lock.shared.is_empty() && lock.exclusive.is_none() && lock.waiting.is_none() {
                locks.remove(id);
            }
        }
    }
}

type RowLocksShard = HashMap<Vec<u8>, Vec<(TxId, LockStrength)>>;

/// Explicit row locks.
pub(crate) struct RowLocks {
    shards: Vec<rt::Mutex<RowLocksShard>>,
    count: AtomicUsize,
}

impl Default for RowLocks {
    fn default() -> Self {
        RowLocks {
            shards: (0..SHARDS).map(|_| rt::Mutex::new(HashMap::default())).collect(),
            count: AtomicUsize::new(0),
        }
    }
}

impl RowLocks {
    /// Rows that are locked.
    pub(crate) fn held(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Name of a row among the row locks.
pub(crate) fn row_name(space: u32, key: &[u8]) -> Vec<u8> {
    let mut name = space.to_be_bytes().to_vec();
    name.extend_from_slice(key);
    name
}

pub(crate) fn hash(bytes: &[u8]) -> usize {
    let mut hasher = rt::FixedState.build_hasher();
    hasher.write(bytes);
    hasher.finish() as usize
}

impl RowLocks {
    fn shard(&self, name: &[u8]) -> &rt::Mutex<RowLocksShard> {
        &self.shards[hash(name) % SHARDS]
    }

    /// A transaction whose lock keeps `seq` from locking (or, with `Update`, writing) the row.
    pub(crate) fn conflict(&self, space: u32, key: &[u8], seq: TxId, strength: LockStrength) -> Option<TxId> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let name = row_name(space, key);
        let shard = self.shard(&name).lock();
        let conflicts = |held: LockStrength| held == LockStrength::Update || strength == LockStrength::Update;
        shard
            .get(&name)?
            .iter()
            .find(|(by, held)| *by != seq && conflicts(*held))
            .map(|(by, _)| *by)
    }

    /// How the transaction has locked the row with this name, if it has.
    pub(crate) fn strength(&self, name: &[u8], seq: TxId) -> Option<LockStrength> {
        let shard = self.shard(name).lock();
        let mine = shard.get(name)?.iter().find(|(by, _)| *by == seq);
        mine.map(|(_, strength)| *strength)
    }

    /// Whether the transaction has locked the row.
    pub(crate) fn holds(&self, space: u32, key: &[u8], seq: TxId) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let name = row_name(space, key);
        let shard = self.shard(&name).lock();
        shard.get(&name).is_some_and(|all| all.iter().any(|(by, _)| *by == seq))
    }

    /// Enters a lock that conflicts with none; true if the transaction had none on the row yet.
    pub(crate) fn add(&self, name: &[u8], seq: TxId, strength: LockStrength) -> bool {
        let mut shard = self.shard(name).lock();
        let holders = shard.entry(name.to_vec()).or_default();
        if let Some(mine) = holders.iter_mut().find(|(by, _)| *by == seq) {
            mine.1 = mine.1.max(strength);
            return false;
        }
        let update = LockStrength::Update;
        assert!(
            holders.is_empty() || strength != update && holders.iter().all(|(_, held)| *held != update),
            "FOR UPDATE shares a row with no other transaction's lock"
        );
        holders.push((seq, strength));
        self.count.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Frees a transaction's lock.
    pub(crate) fn release(&self, name: &[u8], seq: TxId) {
        let mut shard = self.shard(name).lock();
        let Some(holders) = shard.get_mut(name) else { return };
        let before = holders.len();
        holders.retain(|(by, _)| *by != seq);
        assert_eq!(
            before - holders.len(),
            1,
            "a transaction releases a row lock that it holds, once"
        );
        if holders.is_empty() {
            shard.remove(name);
        }
        let count = self.count.fetch_sub(1, Ordering::SeqCst);
        assert!(count > 0, "each row lock is counted while its shard is locked");
    }
}

/// Mutexes by which unique keys are checked and entered as one.
pub(crate) struct UniqueStripes {
    stripes: Vec<rt::Mutex<()>>,
}

impl Default for UniqueStripes {
    fn default() -> Self {
        UniqueStripes {
            stripes: (0..STRIPES).map(|_| rt::Mutex::new(())).collect(),
        }
    }
}

impl UniqueStripes {
    /// Holds the stripes of these (index space, key) pairs.
    pub(crate) fn hold(&self, keys: &[(u32, Vec<u8>)]) -> Vec<rt::MutexGuard<'_, ()>> {
        if planted(Fault::UniqueStripe) {
            return Vec::new();
        }
        let mut stripes: Vec<usize> = keys
            .iter()
            .map(|(space, key)| hash(&row_name(*space, key)) % STRIPES)
            .collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|s| self.stripes[s].lock()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const fn tx(number: u64) -> TxId {
        TxId::from_raw(number)
    }

    /// A limit that was found to have passed as its statement ended stopped the session's next one.
    #[test]
    fn a_time_limit_reaches_no_other_statement_than_its_own() {
        let flag = CancelFlag::default();
        let first = flag.begin_statement();
        assert!(!flag.end_statement());
        assert!(!flag.expire(first), "between statements");
        let second = flag.begin_statement();
        assert!(!flag.expire(first) && !flag.is_set());
        flag.set();
        assert!(flag.expire(second) && flag.is_set());
        flag.clear();
        assert!(flag.is_set(), "the request is forgotten, the limit stays");
        assert!(flag.end_statement() && !flag.is_set());
    }

    #[test]
    fn limits_that_pass_as_statements_end_stop_nothing_that_follows() {
        let flag = Arc::new(CancelFlag::default());
        let running = Arc::new(AtomicU64::new(0));
        let (dog, seen) = (flag.clone(), running.clone());
        let watcher = rt::spawn("watcher", move || {
            loop {
                match seen.load(Ordering::Acquire) {
                    u64::MAX => return,
                    statement => dog.expire(statement),
                };
            }
        });
        for statement in 0..200_000 {
            let number = flag.begin_statement();
            // The watcher is told of every other statement.
            if statement % 2 == 0 {
                running.store(number, Ordering::Release);
            }
            let stopped = flag.is_set();
            let expired = flag.end_statement();
            assert!(
                statement % 2 == 0 || !(stopped || expired),
                "statement {statement} had no limit"
            );
        }
        running.store(u64::MAX, Ordering::Release);
        assert!(watcher.join().is_ok());
    }

    #[test]
    fn table_locks_queue_newcomers_behind_a_waiting_definition() {
        let locks = TableLocks::default();
        assert_eq!(locks.try_shared(1, tx(10)), Ok(()));
        assert_eq!(locks.try_shared(1, tx(11)), Ok(()));
        assert_eq!(locks.try_exclusive(1, tx(12)), Err(tx(10)));
        assert_eq!(locks.try_shared(1, tx(13)), Err(tx(12)));
        assert_eq!(locks.try_shared(1, tx(10)), Ok(()), "a holder keeps it");
        locks.release(&[1], tx(10));
        assert_eq!(locks.try_exclusive(1, tx(12)), Err(tx(11)));
        locks.release(&[1], tx(11));
        assert_eq!(locks.try_exclusive(1, tx(12)), Ok(()));
        assert_eq!(locks.try_shared(1, tx(13)), Err(tx(12)));
        locks.release(&[1], tx(12));
        assert_eq!(locks.try_shared(1, tx(13)), Ok(()));
    }

    #[test]
    fn shared_row_locks_conflict_with_exclusive_ones_only() {
        let locks = RowLocks::default();
        let name = row_name(5, b"k");
        assert!(locks.add(&name, tx(1), LockStrength::Share));
        assert_eq!(locks.conflict(5, b"k", tx(2), LockStrength::Share), None);
        assert_eq!(locks.conflict(5, b"k", tx(2), LockStrength::Update), Some(tx(1)));
        assert!(!locks.add(&name, tx(1), LockStrength::Update));
        assert_eq!(locks.conflict(5, b"k", tx(2), LockStrength::Share), Some(tx(1)));
        locks.release(&name, tx(1));
        assert_eq!(locks.conflict(5, b"k", tx(2), LockStrength::Update), None);
    }

    /// The one behind in a queue took a lock of the one that left for its reason to wait, between the leaving and the
    /// clearing of its edge: that edge was cleared, and a deadlock through it was never seen.
    #[test]
    fn an_edge_that_is_drawn_behind_the_leaving_of_a_queue_stays() {
        let (slots, waits) = (Arc::new(Slots::new()), Arc::new(Waits::default()));
        let (own, next) = (slots.lease_always(), slots.lease_always());
        slots.get(own.slot).run(tx(1));
        let (cancel, behind) = (Arc::new(CancelFlag::default()), next.slot);
        let edge = || slots.get(next.slot).waits_for();
        let mut thread = None;
        waits.leave_queue(&slots, (tx(1), own.slot), || {
            let (slots, waits, cancel, leaver) = (slots.clone(), waits.clone(), cancel.clone(), own.slot);
            let own = slots.clone();
            thread = Some(rt::spawn("behind", move || {
                let waiter = Waiter {
                    slot: behind,
                    seq: tx(2),
                    timeout: None,
                    cancel: &cancel,
                    stuck: &|_| Ok(()),
                    still: &|| true,
                    looked: 0,
                };
                waits.wait(&slots, &waiter, (tx(1), leaver), &|_| Ok(None)).ok();
            }));
            while own.get(leaver).waiters.load(Ordering::SeqCst) == 0 {
                rt::sleep(rt::Nanos::from_millis(1));
            }
            rt::sleep(rt::Nanos::from_millis(20));
            Some(behind)
        });
        let drawn = (0..2_000).any(|_| {
            rt::sleep(rt::Nanos::from_millis(1));
            edge() == tx(1)
        });
        cancel.set();
        if let Some(thread) = thread {
            thread.join().expect("no panic");
        }
        assert!(drawn, "the edge has gone, and its transaction waits on");
    }

    #[test]
    fn two_that_wait_for_each_other_are_a_deadlock() {
        let (slots, waits, cancel) = (Arc::new(Slots::new()), Waits::default(), CancelFlag::default());
        let leases = (slots.lease_always(), slots.lease_always());
        let (a, b) = (leases.0.slot, leases.1.slot);
        slots.get(a).run(tx(1));
        slots.get(b).run(tx(2));
        slots.get(b).wait_for(tx(1));
        let waiter = Waiter {
            slot: a,
            seq: tx(1),
            timeout: None,
            cancel: &cancel,
            stuck: &|_| Ok(()),
            still: &|| true,
            looked: 0,
        };
        let slot_of = |seq| Ok(Some(if seq == tx(1) { a } else { b }));
        assert!(matches!(
            waits.wait(&slots, &waiter, (tx(2), b), &slot_of),
            Err(Error::Deadlock(_))
        ));
        slots.get(b).wait_for(tx(0));
        let waiter = Waiter {
            timeout: Some(rt::Nanos::from_millis(5)),
            ..waiter
        };
        assert!(matches!(
            waits.wait(&slots, &waiter, (tx(2), b), &slot_of),
            Err(Error::LockNotAvailable(_))
        ));
        cancel.set();
        assert!(matches!(
            waits.wait(&slots, &waiter, (tx(2), b), &slot_of),
            Err(Error::Canceled)
        ));
        Waits::ended(&slots, b);
        assert!(waits.wait(&slots, &waiter, (tx(2), b), &slot_of).is_ok());
    }
}
