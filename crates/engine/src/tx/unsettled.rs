//! Rows with changes that some snapshot may not see, or that may be taken back: of others an index entry says all.
//!
//! An entry is a hint. A reader of nothing but the index's columns need not look at the row where it knows that the
//! entry is the one that the version has which its snapshot sees. That is so of a row without *unsettled* changes:
//! changes that make a row, end it or give it another index key, and that neither purge has passed nor a rollback has
//! taken back. They are counted in DRAM, by a hash of table and primary key.
//!
//! ```text
//!  writer    count ── row (one mini-transaction) ── entries ── commit            count off
//!                                                       └─ purge: stale entries gone ─┤
//!                                                       └─ rollback: own entries gone ┘
//!  scan      copies the entries ── looks at the counts ── validates the leaf
//! ```
//!
//! 1. A change is counted under the latch of the row's leaf, before its mini-transaction ends: before anyone sees the
//!    version, one of its entries, or its commit. Its undo record says that it was (`counted`).
//! 2. Purge counts it off when it has passed the record. By then every snapshot in use or to come sees the change, and
//!    the entries of the version that it replaced are gone, but for those that later versions have.
//! 3. A rollback counts it off when its mini-transaction has ended: the row is back, and the entries are gone that no
//!    other version has. Rows that one record inserted are counted one by one, and count off one by one: each when it goes.
//! 4. A scan looks at the counts behind copying a leaf's entries, and then validates the leaf: what it copied stood
//!    there when it looked.
//!
//! **A count of zero means that the entry is the row's, for the scan's snapshot.** All counted changes of the row that
//! were made before the look are settled. Those that purge has passed are seen by the snapshot (it is in use, so it is
//! not below purge's horizon); those that were taken back never were. What is changed behind the look is committed
//! behind the snapshot. Changes that are not counted keep all index keys. So the snapshot's version has the keys of the
//! newest one. And no other entry of the row stood there at the look: a stale one goes before its change is counted off.
//! The look misses no change that the snapshot sees: a commit that is durable was counted before, and a snapshot is the
//! durable position.
//!
//! A collision of hashes of rows, or a count that is never taken off (purge failed in the middle of a record), costs a
//! look at the row and nothing else; the hash has a key that is drawn at random, so that no client chooses rows that
//! collide. A count that came near its end would be believed too early or never: then nothing is
//! covered any more.
//!
//! What was not counted is waited for, by the numbers of transactions: an index does not cover until purge has passed
//! all below one.
//! - The last run's changes: all indexes, the first number of this run. (Whatever it left is purged or a loser.)
//! - An index that is filled from a table's rows (CREATE INDEX, a table that is rebuilt): changes that were *plain*
//!   before have keys in it, and copied rows have no versions. The next number when it is filled: its writers are
//!   locked out, so all that have changed the table, and the definition itself, are below it.
//!
//! An index that is dropped is not kept up any more, by writers or purge, while readers with the former definition go
//! on. They ask, behind the look, whether the definition that purge goes by still has it.

use crate::error::Result;
use crate::undo::record::{Kind, UndoRecord};
use cenote_base::TxId;
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::{AtomicBool, AtomicU32, Ordering};
use cenote_base::rt::fault::{Fault, planted};

/// Counts. A megabyte: the rows under way, and those that purge has not come to, are to be few beside them.
const COUNTS: usize = 1 << 18;
/// Counts in a cache line.
const LINE: usize = 16;

/// The counts of rows whose keys differ in their last bits alone, and of others.
#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU32; LINE]);
const _: () = assert!(size_of::<Line>() == 64, "a line of counts is a line of the cache");

/// A count from which on none is believed.
const COUNT_MAX: u32 = 1 << 30;

/// See the module.
pub(crate) struct Unsettled {
    /// Key of the hash.
    secret: [u64; 2],
    counts: Box<[Line]>,
    /// A count has come to `COUNT_MAX`.
    is_full: AtomicBool,
    /// Changes of transactions below this were not counted: they are of the last run.
    first: TxId,
    waiting: rt::Mutex<Waiting>,
    /// Whether anything is in `waiting`.
    any_waits: AtomicBool,
}

/// What is waited for until indexes cover: that purge has passed all transactions below a number.
struct Waiting {
    /// For all of them.
    all: Option<TxId>,
    /// By their spaces.
    spaces: HashMap<u32, TxId>,
}

impl Unsettled {
    /// Of a run whose first transaction has this number.
    pub(crate) fn new(first: TxId) -> Unsettled {
        let waiting = Waiting {
            all: Some(first),
            spaces: HashMap::default(),
        };
        Unsettled {
            secret: [rt::random(), rt::random()],
            counts: (0..COUNTS / LINE).map(|_| Line::default()).collect(),
            is_full: AtomicBool::new(false),
            first,
            waiting: rt::Mutex::new(waiting),
            any_waits: AtomicBool::new(true),
        }
    }

    /// A change of this row is about to be made by transaction `tx`; its undo record is `counted`. One that goes on from
    /// the last run is not: no index covers before it has ended.
    pub(crate) fn count(&self, tx: TxId, space: u32, key: &[u8]) {
        if planted(Fault::Uncounted) || tx < self.first {
            return;
        }
        if self.of(space, key).fetch_add(1, Ordering::AcqRel) >= COUNT_MAX {
            self.is_full.store(true, Ordering::Release);
        }
    }

    /// The change of the row with the record's key was taken back.
    pub(crate) fn settle(&self, record: &UndoRecord) {
        if self.has_counted(record) {
            self.settle_row(record.space, &record.key);
        }
    }

    /// Purge has passed the record, or nothing of it is there to be taken back.
    ///
    /// # Errors
    /// [`crate::error::Error::Corrupt`]: its list of keys contradicts itself.
    pub(crate) fn settle_all(&self, record: &UndoRecord) -> Result<()> {
        if record.kind != Kind::InsertMany {
            self.settle(record);
        } else if self.has_counted(record) {
            record.keys()?.iter().for_each(|key| self.settle_row(record.space, key));
        }
        Ok(())
    }

    fn has_counted(&self, record: &UndoRecord) -> bool {
        record.counted && record.tx >= self.first && !planted(Fault::Uncounted)
    }

    fn settle_row(&self, space: u32, key: &[u8]) {
        let before = self.of(space, key).fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a change is counted before it is settled");
    }

    /// Whether the row had no unsettled change just now.
    #[inline]
    pub(crate) fn is_settled(&self, space: u32, key: &[u8]) -> bool {
        self.of(space, key).load(Ordering::Acquire) == 0
    }

    #[inline]
    fn of(&self, space: u32, key: &[u8]) -> &AtomicU32 {
        let (line, within) = place(self.secret, space, key);
        &self.counts[line].0[within]
    }

    /// Whether entries of the index in this space may be believed, where their rows are settled.
    #[inline]
    pub(crate) fn covers(&self, space: u32) -> bool {
        if self.is_full.load(Ordering::Acquire) {
            return false;
        }
        if !self.any_waits.load(Ordering::Acquire) {
            return true;
        }
        let waiting = self.waiting.lock();
        waiting.all.is_none() && !waiting.spaces.contains_key(&space)
    }

    /// An index is filled in this space, while no transaction changes its table: it shows changes that are not counted,
    /// of transactions below `until`.
    pub(crate) fn wait_for(&self, space: u32, until: TxId) {
        self.waiting.lock().spaces.insert(space, until);
        self.any_waits.store(true, Ordering::Release);
    }

    /// Whether anything waits for purge.
    pub(crate) fn any_waits(&self) -> bool {
        self.any_waits.load(Ordering::Acquire)
    }

    /// All transactions below this number have ended, and purge has passed them.
    pub(crate) fn note_purged(&self, below: TxId) {
        let mut waiting = self.waiting.lock();
        waiting.all = waiting.all.filter(|until| *until > below);
        waiting.spaces.retain(|_, until| *until > below);
        let any = waiting.all.is_some() || !waiting.spaces.is_empty();
        self.any_waits.store(any, Ordering::Release);
    }
}

/// The place of a row's count: a line, and the place in it. A collision costs time only, so a folded multiplication
/// with a secret is enough. Keys that differ in the last bits alone, as those of numbers that were counted up, share a
/// line: a load and purge touch it once for all of them.
#[inline]
fn place([start, factor]: [u64; 2], space: u32, key: &[u8]) -> (usize, usize) {
    let mix = |hash: u64, word: u64| {
        let wide = u128::from(hash ^ word) * u128::from(factor | 1);
        wide as u64 ^ (wide >> 64) as u64
    };
    let (words, last) = key.split_at(key.len().saturating_sub(1) / 8 * 8);
    let mut hash = mix(start, u64::from(space) << 32 | key.len() as u64);
    for word in words.as_chunks::<8>().0 {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let last = last.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let hash = mix(hash, last / LINE as u64) >> 32;
    let (line, within) = (hash as usize / LINE, (hash ^ last) as usize);
    (line % (COUNTS / LINE), within % LINE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SECRET: [u64; 2] = [0x243F_6A88_85A3_08D3, 0x9E37_79B9_7F4A_7C15];

    fn places(keys: impl Iterator<Item = Vec<u8>>) -> HashSet<(usize, usize)> {
        keys.map(|key| place(SECRET, 1000, &key)).collect()
    }

    /// Keys as an int4, an int8 and a text make them, with marks and ends.
    #[test]
    fn neighbours_share_a_line_and_all_keys_spread() {
        let numbers = |from: u32| (from..from + 1024).map(|n| [&[1], &n.to_be_bytes()[..]].concat());
        let wide = (0..1024_u64).map(|n| n.to_be_bytes().to_vec());
        let texts = (0..1024).map(|n| format!("\u{1}name{n:06}\0\0").into_bytes());
        for (what, keys) in [
            ("numbers", numbers(0x8000_0000).collect::<Vec<_>>()),
            ("wide numbers", wide.collect()),
            ("texts", texts.collect()),
        ] {
            let found = places(keys.into_iter());
            assert!(found.len() >= 960, "{what}: {} places of 1024 keys", found.len());
        }
        let lines: HashSet<usize> = places(numbers(0x8000_0000)).iter().map(|(line, _)| *line).collect();
        assert!(lines.len() <= 1024 / LINE, "{} lines of 1024 numbers", lines.len());
    }
}
