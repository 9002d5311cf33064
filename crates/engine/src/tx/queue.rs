//! The transactions that wait for a row, in the order of coming.
//!
//! 1. A transaction that finds a row taken, or others waiting for it, joins the row's queue ([`Turn::join`]).
//! 2. The first in the queue waits for the row's holder; each other one waits for the transaction before it.
//! 3. A transaction that gets the row leaves the queue. The next one sleeps on: it waits for that same transaction,
//!    which is the holder now. So the end of a transaction wakes one waiter for each row, the one that has waited
//!    longest.
//! 4. A transaction that leaves without the row (it does not want this version, is canceled, closes a cycle) has the
//!    next one look again (`Waits::leave_queue`).
//!
//! Invariants:
//! - A transaction is in one queue at most, and only while it settles and changes that one row: it leaves before it
//!   waits for anything else. So each of those in a queue runs, or waits for the one before it or for the holder.
//! - What a transaction holds already, it does not queue for: those in the queue wait for it.
//! - No thread looks into a queue while there is none at all: a row without waiters costs one load.

use super::locks::{hash, row_name};
use super::slots::{SlotIndex, Waiting};
use cenote_base::TxId;
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;

const SHARDS: usize = 64;
const _: () = assert!(SHARDS.is_power_of_two(), "a hash is cut down by a mask");

type Shard = HashMap<Vec<u8>, VecDeque<Waiting>>;

/// Queues of all rows that are waited for, by space and key.
pub(crate) struct RowQueues {
    shards: Vec<rt::Mutex<Shard>>,
    count: AtomicUsize,
}

impl Default for RowQueues {
    fn default() -> Self {
        RowQueues {
            shards: (0..SHARDS).map(|_| rt::Mutex::new(HashMap::default())).collect(),
            count: AtomicUsize::new(0),
        }
    }
}

impl RowQueues {
    /// Whether no row is waited for.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn shard(&self, name: &[u8]) -> &rt::Mutex<Shard> {
        &self.shards[hash(name) % SHARDS]
    }

    fn join(&self, name: &[u8], waiting: Waiting) {
        let mut shard = self.shard(name).lock();
        let queue = shard.entry(name.to_vec()).or_default();
        assert!(
            queue.iter().all(|(by, _)| *by != waiting.0),
            "a transaction has one place in a row's queue"
        );
        queue.push_back(waiting);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// The one before transaction `seq` in the row's queue; the last where that is not in it.
    pub(crate) fn ahead(&self, name: &[u8], seq: TxId) -> Option<Waiting> {
        let shard = self.shard(name).lock();
        let queue = shard.get(name)?;
        match queue.iter().position(|(by, _)| *by == seq) {
            Some(at) => queue.get(at.checked_sub(1)?).copied(),
            None => queue.back().copied(),
        }
    }

    /// Takes transaction `seq` out of the row's queue; the slot of the one behind it.
    pub(crate) fn leave(&self, name: &[u8], seq: TxId) -> Option<SlotIndex> {
        let mut shard = self.shard(name).lock();
        let queue = shard.get_mut(name)?;
        let at = queue.iter().position(|(by, _)| *by == seq)?;
        queue.remove(at);
        let count = self.count.fetch_sub(1, Ordering::SeqCst);
        assert!(count > 0, "each place is counted while its shard is locked");
        let next = queue.get(at).map(|(_, slot)| *slot);
        if queue.is_empty() {
            shard.remove(name);
        }
        next
    }
}

/// A transaction's place in a row's queue, once it has one. It is given up by `Tx::leave`.
#[derive(Default)]
pub(super) struct Turn {
    /// The row; empty: not queued.
    pub(super) name: Vec<u8>,
}

impl Turn {
    /// Whether there is a place to give up.
    pub(super) fn is_taken(&self) -> bool {
        !self.name.is_empty()
    }

    /// Queues at the end, if that has not been done.
    pub(super) fn join(&mut self, queues: &RowQueues, (space, key): (u32, &[u8]), waiting: Waiting) {
        if !self.is_taken() {
            self.name = row_name(space, key);
            queues.join(&self.name, waiting);
        }
    }

    /// The row's name among the queues.
    pub(super) fn name_of(&self, space: u32, key: &[u8]) -> std::borrow::Cow<'_, [u8]> {
        match self.is_taken() {
            true => (&self.name[..]).into(),
            false => row_name(space, key).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn waiting(number: u32) -> Waiting {
        (TxId::from_raw(10 + number as u64), SlotIndex::from_raw(number))
    }

    #[test]
    fn a_row_goes_to_the_one_that_has_waited_longest() {
        let queues = RowQueues::default();
        let mut turns: Vec<Turn> = (0..3).map(|_| Turn::default()).collect();
        for (i, turn) in turns.iter_mut().enumerate() {
            turn.join(&queues, (5, b"k"), waiting(i as u32));
            turn.join(&queues, (5, b"k"), waiting(i as u32));
        }
        let name = row_name(5, b"k");
        assert_eq!(queues.ahead(&name, waiting(0).0), None);
        assert_eq!(queues.ahead(&name, waiting(2).0), Some(waiting(1)));
        assert_eq!(
            queues.ahead(&name, waiting(89).0),
            Some(waiting(2)),
            "newcomers come last"
        );
        assert_eq!(queues.leave(&name, waiting(1).0), Some(waiting(2).1));
        assert_eq!(queues.ahead(&name, waiting(2).0), Some(waiting(0)));
        assert_eq!(queues.leave(&name, waiting(0).0), Some(waiting(2).1));
        assert_eq!(queues.leave(&name, waiting(2).0), None);
        assert!(queues.is_empty());
    }
}
