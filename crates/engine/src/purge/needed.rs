//! Which index entries of a replaced version the row's later versions need.
//!
//! Only versions that some snapshot may see count: from the newest one back to the first that every snapshot sees. The
//! ones between that and the replaced version have records of their own in what is purged: they take their entries with
//! them. So a record costs the versions behind the horizon, not all that wait to be purged; of most rows that is the
//! newest one.
//!
//! A row that was changed often behind an old snapshot has many of them, and many records, too. Purge looks at `STEPS`
//! versions under the leaf's latch. Where that does not decide it gives the latch up, walks the versions without it,
//! and remembers their entries (a *memo*); then it latches and looks again, until a walk from the newest version meets
//! the one that the memo begins with. What lies below a version does not change, so a memo that is met holds. Each
//! version is walked once a round.
//!
//! A memo holds hashes of entries. Two entries with one hash may keep an entry that no version needs: a hint, as those
//! that a crash leaves.

use crate::catalog::Table;
use crate::engine::Engine;
use crate::error::Result;
use crate::tree::BTree;
use crate::tx::Status;
use crate::tx::locks::row_name;
use crate::tx::rollback::{Entries, Version, entries_of, hash};
use crate::undo::UndoPointer;
use crate::undo::record::{TRAILER, Trailer};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{HashMap, HashSet};
use cenote_base::{Cts, TxId};

/// Versions that are walked under a latch at most.
const STEPS: u64 = 16;
/// Hashes that the memos of a thread hold together before all but the one in work are forgotten. 16 bytes each, about.
const HASHES_MAX: usize = 1 << 20;
/// Attempts at a walk whose newest versions are taken back under it.
const TRIES: usize = 5;

/// Entries of a row's versions, from `newest` back to the first that every snapshot sees.
#[derive(Default)]
struct Memo {
    newest: Trailer,
    /// Version of the table's definition: another one has other indexes.
    definition: u64,
    hashes: HashSet<u64>,
}

/// What a thread remembers of rows during a round.
pub(super) struct Memos {
    pub horizon: Cts,
    rows: HashMap<Vec<u8>, Memo>,
    hashes: usize,
}

impl Memos {
    pub fn new(horizon: Cts) -> Memos {
        Memos {
            horizon,
            rows: HashMap::default(),
            hashes: 0,
        }
    }

    fn of(&self, table: &Table, key: &[u8]) -> Option<&Memo> {
        if self.rows.is_empty() {
            return None;
        }
        let memo = self.rows.get(&row_name(table.space, key))?;
        (memo.definition == table.version).then_some(memo)
    }

    /// Leaves in `entries` those that no version from `newest` back to the one made by the change of record `until`
    /// needs. False: that takes more steps than are made under a latch. The row's leaf is latched.
    ///
    /// # Errors
    /// Those of reading versions.
    pub fn keep_needed(
        &self,
        engine: &Engine,
        table: &Table,
        (key, until): (&[u8], UndoPointer),
        newest: Option<Version>,
        entries: &mut Entries,
    ) -> Result<bool> {
        let memo = self.of(table, key);
        let (mut version, mut steps) = (newest, 0);
        while let Some((trailer, row)) = version {
            if entries.is_empty() || planted(Fault::EntryNeeded) {
                break;
            }
            if let Some(memo) = memo.filter(|memo| memo.newest == trailer) {
                entries.retain(|(space, entry)| !memo.hashes.contains(&hash(*space, entry)));
                break;
            }
            if steps == STEPS {
                return Ok(false);
            }
            steps += 1;
            engine.purge.walked.fetch_add(1, Ordering::Relaxed);
            if !trailer.deleted() {
                let needed = entries_of(engine, table, key, &row)?;
                entries.retain(|entry| !needed.contains(entry));
            }
            version = match trailer.undo == until || engine.is_seen_by_all(trailer.tx, self.horizon)? {
                true => None,
                false => engine.version_before(trailer)?,
            };
        }
        Ok(true)
    }

    /// Walks the row's versions without a latch, and remembers their entries.
    ///
    /// # Errors
    /// Those of reading versions.
    pub fn learn(&mut self, engine: &Engine, table: &Table, key: &[u8]) -> Result<()> {
        if self.hashes > HASHES_MAX {
            (self.rows, self.hashes) = (HashMap::default(), 0);
        }
        let memo = self.rows.entry(row_name(table.space, key)).or_default();
        let before = memo.hashes.len();
        for attempt in 1.. {
            // A version that is taken back under the walk may have lost what it had outside.
            match memo.learn(engine, table, key, self.horizon) {
                Err(_) if attempt < TRIES => {}
                done => {
                    self.hashes = (self.hashes + memo.hashes.len()).saturating_sub(before);
                    return done;
                }
            }
        }
        Ok(())
    }
}

impl Memo {
    fn learn(&mut self, engine: &Engine, table: &Table, key: &[u8], horizon: Cts) -> Result<()> {
        let mut value = Vec::new();
        if !(BTree { space: table.space }).get(&engine.pool, key, &mut value)? {
            *self = Memo::default();
            return Ok(());
        }
        let newest = Trailer::of(&value)?;
        value.truncate(value.len() - TRAILER);
        let (mut version, mut found) = (Some((newest, value)), HashSet::default());
        while let Some((trailer, row)) = version {
            if trailer == self.newest && self.definition == table.version {
                self.newest = newest;
                self.hashes.extend(found);
                return Ok(());
            }
            engine.purge.walked.fetch_add(1, Ordering::Relaxed);
            if !trailer.deleted() {
                let entries = entries_of(engine, table, key, &row)?;
                found.extend(entries.iter().map(|(space, entry)| hash(*space, entry)));
            }
            version = match engine.is_seen_by_all(trailer.tx, horizon)? {
                true => None,
                false => engine.version_before(trailer)?,
            };
        }
        (self.newest, self.definition, self.hashes) = (newest, table.version, found);
        Ok(())
    }
}

impl Engine {
    /// Whether every snapshot in use, and every later one, sees what transaction `tx` made; `horizon` is one that purge
    /// has worked with.
    pub(crate) fn is_seen_by_all(&self, tx: TxId, horizon: Cts) -> Result<bool> {
        if tx < self.txs.low_water() {
            return Ok(true);
        }
        Ok(matches!(self.status(tx)?, Status::Committed(at) if at <= horizon))
    }
}
