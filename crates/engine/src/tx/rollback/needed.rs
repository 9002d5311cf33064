//! Which index entries of a version that is taken back the row's versions below need.
//!
//! Only versions down to the first that every snapshot sees count; purge takes the entries of older ones. Usually a
//! step or two decide. A row that its transaction has changed a thousand times has a thousand versions below the
//! newest, each of which is taken back in turn. So rollback looks at `STEPS` versions under the leaf's latch. Where
//! that does not decide it gives the latch up, walks the versions once without it, and counts how many have each entry
//! (a *memo*); each version that is taken back is taken off the counts.
//!
//! What makes a memo hold: the newest version is the rollback's own, so no other transaction puts one above it, and
//! what lies below does not change. Purge might pass versions that the memo counts, with the entry left in place for
//! the newest one's sake: it would then never be removed. So rollback holds the oldest snapshot in use from its first
//! memo on.
//!
//! A memo counts hashes of entries. Two entries with one hash may keep an entry that no version needs: a hint, as those
//! that a crash leaves.

use super::{Entries, Version, entries_of};
use crate::catalog::Table;
use crate::engine::Engine;
use crate::error::Result;
use crate::tree::BTree;
use crate::tx::locks::row_name;
use crate::tx::slots::{Hold, Lease};
use crate::undo::record::{TRAILER, Trailer};
use cenote_base::Cts;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{FixedState, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// Versions that are walked under a latch at most.
const STEPS: usize = 16;
/// Versions that the memos of a rollback count together, before all but the one in work are forgotten. 32 bytes an
/// entry, about.
const COUNTED_MAX: usize = 1 << 19;

/// What a rollback remembers of the rows that it takes back.
pub(crate) struct Memos<'e> {
    engine: &'e Engine,
    lease: &'e Arc<Lease>,
    hold: Option<Hold>,
    rows: HashMap<Vec<u8>, Memo>,
    counted: usize,
}

/// A row's versions.
#[derive(Default)]
struct Memo {
    /// The newest one.
    newest: Trailer,
    /// Version of the table's definition: another one has other indexes.
    definition: u64,
    /// How many are counted, from the newest on.
    counted: usize,
    /// By hashes of entries.
    entries: HashMap<u64, Holders>,
}

/// Which version has an entry.
#[derive(Default)]
struct Holders {
    /// Of the versions that are counted.
    counted: usize,
    /// Whether one below those has it.
    below: bool,
}

impl<'e> Memos<'e> {
    /// Of a rollback of the transaction that has this slot.
    pub(crate) fn new(engine: &'e Engine, lease: &'e Arc<Lease>) -> Memos<'e> {
        Memos {
            engine,
            lease,
            hold: None,
            rows: HashMap::default(),
            counted: 0,
        }
    }

    /// Leaves in `entries`, those of the version `newest`, the ones that no version from `below` on needs. False: that
    /// takes more steps than are made under a latch. The row's leaf is latched.
    pub(super) fn keep_needed(
        &self,
        (table, key): (&Table, &[u8]),
        newest: Trailer,
        below: Option<Version>,
        entries: &mut Entries,
    ) -> Result<bool> {
        if let Some(memo) = self.memo(table, key).filter(|memo| memo.newest == newest) {
            entries.retain(|(space, entry)| memo.is_last(hash(*space, entry)));
            return Ok(true);
        }
        let horizon = self.engine.purge.horizon();
        let (mut version, mut steps) = (below, 0);
        while let Some((trailer, row)) = version {
            if entries.is_empty() || planted(Fault::EntryNeeded) {
                break;
            }
            if steps == STEPS {
                return Ok(false);
            }
            steps += 1;
            if !trailer.deleted() {
                let needed = self.walk(table, key, &row)?;
                entries.retain(|entry| !needed.contains(entry));
            }
            version = self.next(trailer, horizon)?;
        }
        Ok(true)
    }

    fn memo(&self, table: &Table, key: &[u8]) -> Option<&Memo> {
        if self.rows.is_empty() {
            return None;
        }
        let memo = self.rows.get(&row_name(table.space, key))?;
        (memo.definition == table.version).then_some(memo)
    }

    /// Entries of a version that the walk has come to.
    fn walk(&self, table: &Table, key: &[u8], row: &[u8]) -> Result<Entries> {
        self.engine.purge.walked.fetch_add(1, Ordering::Relaxed);
        entries_of(self.engine, table, key, row)
    }

    /// The next version below, unless every snapshot sees this one.
    fn next(&self, trailer: Trailer, horizon: Cts) -> Result<Option<Version>> {
        match self.engine.is_seen_by_all(trailer.tx, horizon)? {
            true => Ok(None),
            false => self.engine.version_before(trailer),
        }
    }

    /// Walks the row's versions without a latch, and counts their entries.
    pub(super) fn learn(&mut self, table: &Table, key: &[u8]) -> Result<()> {
        if self.counted > COUNTED_MAX {
            (self.rows, self.counted) = (HashMap::default(), 0);
        }
        let (engine, lease) = (self.engine, self.lease);
        let hold = self
            .hold
            .get_or_insert_with(|| lease.hold_oldest(engine.storage.durable()));
        let horizon = hold.snapshot();
        let (mut value, mut memo) = (Vec::new(), Memo::default());
        if !(BTree { space: table.space }).get(&engine.pool, key, &mut value)? {
            return Ok(());
        }
        (memo.newest, memo.definition) = (Trailer::of(&value)?, table.version);
        value.truncate(value.len() - TRAILER);
        let mut version = Some((memo.newest, value));
        while let Some((trailer, row)) = version {
            let entries = match trailer.deleted() {
                true => Entries::new(),
                false => self.walk(table, key, &row)?,
            };
            memo.count(&entries);
            version = self.next(trailer, horizon)?;
        }
        self.counted += memo.counted;
        self.rows.insert(row_name(table.space, key), memo);
        Ok(())
    }

    /// The newest version of the row, with these entries, was taken back; now it is the one with trailer `now`.
    pub(super) fn took_back(&mut self, (table, key): (&Table, &[u8]), entries: &[u64], now: Trailer) {
        if self.rows.is_empty() {
            return;
        }
        let name = row_name(table.space, key);
        let Some(memo) = self.rows.get_mut(&name) else { return };
        memo.take_off(entries, now);
        self.counted = self.counted.saturating_sub(1);
        if memo.counted == 0 {
            self.rows.remove(&name);
        }
    }
}

impl Memo {
    /// Counts the next version below, as long as there is room; then it is only noted which of the entries counted are
    /// needed there.
    fn count(&mut self, entries: &Entries) {
        let hashes = entries.iter().map(|(space, entry)| hash(*space, entry));
        if self.counted < COUNTED_MAX {
            self.counted += 1;
            hashes.for_each(|hash| self.entries.entry(hash).or_default().counted += 1);
            return;
        }
        for hash in hashes {
            if let Some(holders) = self.entries.get_mut(&hash) {
                holders.below = true;
            }
        }
    }

    /// Whether no version but the newest has the entry.
    fn is_last(&self, hash: u64) -> bool {
        self.entries
            .get(&hash)
            .is_none_or(|holders| holders.counted <= 1 && !holders.below)
    }

    fn take_off(&mut self, entries: &[u64], now: Trailer) {
        self.newest = now;
        assert!(self.counted > 0, "a memo goes with its last version");
        self.counted -= 1;
        for hash in entries {
            if let Some(holders) = self.entries.get_mut(hash) {
                holders.counted -= 1;
                if holders.counted == 0 && !holders.below {
                    self.entries.remove(hash);
                }
            }
        }
    }
}

/// What a memo knows of an entry.
pub(crate) fn hash(space: u32, entry: &[u8]) -> u64 {
    let mut hasher = FixedState.build_hasher();
    hasher.write_u32(space);
    hasher.write(entry);
    hasher.finish()
}
