//! Writing rows.
//!
//! One change is one mini-transaction: leaf, undo page, and the space's header where large values are adopted. What
//! will be written is worked out before, from a version that was read without a latch; under the latch it is only
//! checked that this version is still the newest (its undo pointer names it), else all is done again.
//!
//! An answer that changes nothing (a duplicate, no such row, a condition that does not hold) is checked by no step
//! later, so the version that it rests on must have been the newest at a moment at which its transaction was not to be
//! taken back any more. The copy and the question for the status are two moments: a rollback between them leaves a copy
//! of what never was, with a status that is over, or committed where a savepoint was returned to. `Tx::newest` copies
//! again where that is possible.
//!
//! Whose a row is, by its newest version:
//! - made by a transaction in progress: wait for it, look again;
//! - locked explicitly by another: wait for that one;
//! - committed behind the snapshot: at repeatable read 40001, at read committed the caller is asked about the newest
//!   version;
//! - else: free to change, for the one that has waited for it longest (`queue`).
//!
//! A row that has got another primary key meanwhile is followed there, at read committed (`follow`).
//!
//! Before that the snapshot is asked: a row that it does not have is none to UPDATE, DELETE and row locks, whichever
//! transaction is making it, and one that does not meet the condition as the snapshot has it is left alone without a
//! wait (`Tx::change`). Only ON CONFLICT and definitions mean the newest version, whatever the snapshot has
//! (`Tx::change_newest`).
//!
//! Latch order: clustered leaf → undo page → space header.

use super::Tx;
use super::follow::{Found, Identity};
use super::index::{self, NewKeys, Obstacle, Standing};
use super::locks::{row_name, table_lock};
use super::newest::{Blocker, Newest};
use super::queue::Turn;
use super::rollback;
use super::slots::Waiting;
use crate::api::{Change, Changed, Columns, Insert, Isolation, LockStrength, Locked, Outcome, Wait};
use crate::catalog::Table;
use crate::error::{Error, Result};
use crate::large::{self, Before, Stored};
use crate::system::CATALOG_SPACE;
use crate::tree::BTree;
use crate::undo::record::{DELETED, Kind, NewRecord, REINSERTED, REKEYED, TRAILER, Trailer};
use crate::undo::shared::Shared;
use cenote_base::TxId;
use cenote_base::rt;
use cenote_base::rt::fault::{Fault, planted};
use std::borrow::Cow;

/// What `Tx::change` asks about a row's newest version; the flag: it is another than the snapshot sees. An answer is
/// worked out from its arguments alone and keeps nothing: an attempt that was not applied leaves no trace.
pub type Decide<'a, E> = dyn Fn(&[u8], bool) -> std::result::Result<Change, E> + 'a;

/// Memory of a row lock beside its name, which is kept twice.
const ROW_LOCK_BYTES: usize = 160;

/// Memory of a row lock of this name.
pub(super) fn row_lock_bytes(name: &[u8]) -> usize {
    2 * name.len() + ROW_LOCK_BYTES
}

/// A step that may have to wait for a transaction and be done again.
enum Step<T> {
    Done(T),
    WaitFor(Blocker),
}

/// What a change found when it latched the row.
enum Applied {
    Done,
    /// The row is not what it was: begin again.
    Moved,
    WaitFor(Blocker),
}

/// The version that a change begins with.
#[derive(Clone, Copy)]
struct Old<'a> {
    trailer: Trailer,
    /// As it is stored.
    stored: &'a [u8],
    /// Its row.
    before: Before<'a>,
}

/// What a change makes of a row.
enum Next<'a> {
    Version(&'a Stored),
    Deleted,
    /// Deleted: it goes on under this key.
    Rekeyed(&'a [u8]),
}

impl<'a> Next<'a> {
    fn version(&self) -> Option<&'a Stored> {
        match self {
            Next::Version(new) => Some(new),
            Next::Deleted | Next::Rekeyed(_) => None,
        }
    }

    fn new_key(&self) -> &'a [u8] {
        match self {
            Next::Rekeyed(key) => key,
            Next::Version(_) | Next::Deleted => &[],
        }
    }

    fn flags(&self) -> u8 {
        match self {
            Next::Version(_) => 0,
            Next::Deleted => DELETED,
            Next::Rekeyed(_) => DELETED | REKEYED,
        }
    }
}

impl Tx {
    /// Inserts a row. Waits for transactions in progress that hold the same keys. A `Duplicate` changes nothing.
    ///
    /// # Errors
    /// 40001, 40P01, 57014, 55P03 of waiting; the row or a key is too long; the disk is full.
    pub fn insert(&mut self, table: &Table, row: &[u8]) -> Result<Insert> {
        self.insert_unless(table, row, &[], &mut Vec::new())
    }

    /// As `insert`, for a caller that has an answer to duplicates in some indexes (None: the primary key): they are
    /// looked at, and waited for, before the others. `row_key` becomes the primary key bytes of the row, a hidden key's
    /// too; they mean nothing where it was not inserted.
    ///
    /// # Errors
    /// As [`Tx::insert`].
    pub fn insert_unless(
        &mut self,
        table: &Table,
        row: &[u8],
        arbiters: &[Option<usize>],
        row_key: &mut Vec<u8>,
    ) -> Result<Insert> {
        self.write_table(table)?;
        row_key.clear();
        if table.has_hidden_key() {
            row_key.extend_from_slice(&self.engine().next_row_numbers(table, 1)?.to_be_bytes());
        } else {
            table.key_of_row(row, row_key)?;
        }
        self.insert_keyed(table, (row, row_key), arbiters)
    }

    /// As `insert_unless`, under this key.
    pub(super) fn insert_keyed(
        &mut self,
        table: &Table,
        (row, row_key): (&[u8], &[u8]),
        arbiters: &[Option<usize>],
    ) -> Result<Insert> {
        let keys = index::new_keys(table, row, None)?;
        index::check_lengths(&keys, row_key)?;
        let stored = large::move_out(self.engine(), table, row, None)?;
        let mut written = false;
        let done = self.insert_stored(table, (row, row_key), &keys, &stored, arbiters, &mut written);
        if !written && !stored.refs.is_empty() {
            large::free(&self.engine().pool, table, &stored.refs)?;
        }
        done
    }

    /// `written` says afterwards whether the row stands, and holds its large values, even where an index entry then
    /// failed.
    fn insert_stored(
        &mut self,
        table: &Table,
        (row, row_key): (&[u8], &[u8]),
        keys: &NewKeys,
        stored: &Stored,
        arbiters: &[Option<usize>],
        written: &mut bool,
    ) -> Result<Insert> {
        let engine = self.engine().clone();
        let unique = index::unique_keys(table, row, keys)?;
        loop {
            let stripes = engine.stripes.hold(&unique);
            let step = match self.find_first_obstacle(table, (row, row_key), keys, arbiters)? {
                Some(Obstacle::InProgress(by)) => Step::WaitFor(by),
                Some(Obstacle::Duplicate(index, existing_key)) if arbiters.contains(&Some(index)) => {
                    return Ok(Insert::Duplicate {
                        index: Some(index),
                        existing_key,
                    });
                }
                Some(Obstacle::Duplicate(index, existing_key)) => {
                    // The primary key is the arbiter where both collide.
                    if let Some(existing_key) = self.live_row(table, row_key)? {
                        return Ok(Insert::Duplicate {
                            index: None,
                            existing_key,
                        });
                    }
                    return Ok(Insert::Duplicate {
                        index: Some(index),
                        existing_key,
                    });
                }
                None => {
                    index::note_free(&unique);
                    self.insert_row(table, row_key, stored)?
                }
            };
            match step {
                Step::Done(Insert::Done) => {
                    *written = true;
                    self.count_change(table);
                    index::enter(&engine, table, keys, row_key)?;
                    return Ok(Insert::Done);
                }
                Step::Done(duplicate) => return Ok(duplicate),
                Step::WaitFor(by) => {
                    drop(stripes);
                    self.wait_for_row(table, &by.key, by.by)?;
                }
            }
        }
    }

    /// As `find_obstacle`; those in the arbiters come first.
    fn find_first_obstacle(
        &self,
        table: &Table,
        (row, row_key): (&[u8], &[u8]),
        keys: &NewKeys,
        arbiters: &[Option<usize>],
    ) -> Result<Option<Obstacle>> {
        if arbiters.contains(&None) {
            let mut value = Vec::new();
            match self.newest(table, row_key, &mut value)? {
                Newest::InProgress(by) => return Ok(Some(Obstacle::InProgress(Blocker::new(by, row_key)))),
                // It decides before the others: see `insert_row`.
                Newest::Row { trailer, .. } if !trailer.deleted() => return Ok(None),
                _ => {}
            }
        }
        let (first, others): (NewKeys, NewKeys) = match arbiters.is_empty() {
            true => return self.find_obstacle(table, row, row_key, keys),
            false => keys.iter().cloned().partition(|(at, _)| arbiters.contains(&Some(*at))),
        };
        match self.find_obstacle(table, row, row_key, &first)? {
            None => self.find_obstacle(table, row, row_key, &others),
            found => Ok(found),
        }
    }

    /// The key, if a row of a transaction that has ended (or of this one) stands there.
    fn live_row(&self, table: &Table, row_key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(match self.newest(table, row_key, &mut value)? {
            Newest::Row { trailer, .. } if !trailer.deleted() => Some(row_key.to_vec()),
            _ => None,
        })
    }

    /// The clustered entry of an insert.
    fn insert_row(&mut self, table: &Table, row_key: &[u8], stored: &Stored) -> Result<Step<Insert>> {
        let engine = self.engine().clone();
        let (tree, own) = (BTree { space: table.space }, self.reader.own);
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, row_key, row_key.len() + stored.row.len() + TRAILER)?;
        let mut before = Trailer::default();
        self.scratch.old.clear();
        if pos.found {
            tree.value(&m, &pos, &mut self.scratch.old);
            before = Trailer::of(&self.scratch.old)?;
            // Under the latch: a rollback would have to take its version away before its status could change.
            match self.standing(before.tx)? {
                Standing::InProgress(by) => return Ok(Step::WaitFor(Blocker::new(by, row_key))),
                Standing::Over => return Err(bears_no_transaction(table, before)),
                Standing::Seen | Standing::Committed => {}
            }
            if !before.deleted() {
                return Ok(Step::Done(Insert::Duplicate {
                    index: None,
                    existing_key: row_key.to_vec(),
                }));
            }
            self.scratch.old.truncate(self.scratch.old.len() - TRAILER);
        }
        let kind = if pos.found { Kind::Update } else { Kind::Insert };
        let record = NewRecord {
            kind,
            // Before it there was no row, or a deleted one: nothing that purge would have to remove.
            plain: true,
            counted: true,
            tx: own,
            prev: self.last_undo,
            space: table.space,
            before,
            shared: Shared::default(),
            key: row_key,
            row: &self.scratch.old,
            new_key: &[],
        };
        let writer = self.writer.as_mut().ok_or_else(no_segment)?;
        let place = writer.prepare(&mut m, record.len())?;
        let trailer = Trailer {
            tx: own,
            undo: writer.pointer(&place),
            flags: if pos.found { REINSERTED } else { 0 },
        };
        self.scratch.value.clear();
        self.scratch.value.extend_from_slice(&stored.row);
        self.scratch.value.extend_from_slice(&trailer.encode());
        let adoption = large::prepare_adoption(&mut m, table, &stored.refs)?;
        self.last_undo = writer.append(&mut m, &place, &record, &mut self.scratch.record)?;
        adoption.apply(&mut m);
        if pos.found {
            tree.replace_at(&mut m, &pos, &self.scratch.value)?;
        } else {
            tree.insert_at(&mut m, &pos, row_key, &self.scratch.value)?;
        }
        engine.unsettled.count(own, table.space, row_key);
        m.commit();
        Ok(Step::Done(Insert::Done))
    }

    /// As `change`, for callers that only want to know what became of the row.
    ///
    /// # Errors
    /// As [`Tx::change`].
    pub fn modify<E: From<Error>>(
        &mut self,
        table: &Table,
        key: &[u8],
        f: &Decide<'_, E>,
    ) -> std::result::Result<Outcome, E> {
        Ok(match self.change(table, key, f)? {
            Changed::Done { .. } => Outcome::Done,
            Changed::Skipped => Outcome::Skipped,
            Changed::Gone => Outcome::Gone,
        })
    }

    /// Changes the row with this primary key as `f` says, when it is this transaction's to change. A row that the
    /// snapshot does not see is `Gone`, without a wait. `f` gets the version that the snapshot sees, then the newest
    /// one if that is another, and whether it is (then a condition has to be evaluated again). So `f` may be asked
    /// several times, each time about a newer version; the answer that was applied comes back. Where another key of the
    /// new row has to be waited for, the row stays locked meanwhile.
    ///
    /// # Errors
    /// Those of `f`; otherwise as [`Tx::insert`].
    pub fn change<E: From<Error>>(
        &mut self,
        table: &Table,
        key: &[u8],
        f: &Decide<'_, E>,
    ) -> std::result::Result<Changed, E> {
        self.change_reading(table, key, &Columns::All, f)
    }

    /// As `change`, where `f` and the receiver of the rows read these columns only.
    ///
    /// # Errors
    /// Those of `f`; those of reading, waiting and writing.
    pub fn change_reading<E: From<Error>>(
        &mut self,
        table: &Table,
        key: &[u8],
        columns: &Columns,
        f: &Decide<'_, E>,
    ) -> std::result::Result<Changed, E> {
        self.write_table(table)?;
        let mut value = Vec::new();
        let newest = self.newest(table, key, &mut value)?;
        if self.is_disputed(table, key, &newest) {
            match self.version_seen(table, &value, columns)? {
                Seen::None => return Ok(Changed::Gone),
                Seen::Row(row) if f(&row, false)? == Change::Skip => return Ok(Changed::Skipped),
                Seen::Row(_) | Seen::Unknown => {}
            }
        }
        self.change_found(table, key, Identity::Seen, (newest, value), (columns, f))
    }

    /// As `change_reading`, of the newest version even where the snapshot sees none: for INSERT ... ON CONFLICT DO
    /// UPDATE, and for rows that are locked.
    ///
    /// # Errors
    /// As [`Tx::change`].
    pub fn change_newest<E: From<Error>>(
        &mut self,
        table: &Table,
        key: &[u8],
        columns: &Columns,
        f: &Decide<'_, E>,
    ) -> std::result::Result<Changed, E> {
        self.write_table(table)?;
        let mut value = Vec::new();
        let newest = self.newest(table, key, &mut value)?;
        self.change_found(table, key, Identity::Any, (newest, value), (columns, f))
    }

    /// Changes the row of this identity, under whatever key it is found.
    fn change_found<E: From<Error>>(
        &mut self,
        table: &Table,
        key: &[u8],
        mut identity: Identity,
        mut found: (Newest, Vec<u8>),
        what: (&Columns, &Decide<'_, E>),
    ) -> std::result::Result<Changed, E> {
        let mut key = Cow::Borrowed(key);
        loop {
            let mut turn = Turn::default();
            let done = self.change_in_turn(table, (&key, identity), found, what, &mut turn);
            self.leave(turn, matches!(done, Ok(Reached::Row(Changed::Done { .. }))));
            match done? {
                Reached::Row(changed) => return Ok(changed),
                Reached::Elsewhere(new_key, landing) => (key, identity) = (Cow::Owned(new_key), landing),
            }
            let mut value = Vec::new();
            found = (self.newest(table, &key, &mut value)?, value);
        }
    }

    /// `newest` was found, with `value`.
    fn change_in_turn<E: From<Error>>(
        &mut self,
        table: &Table,
        (key, identity): (&[u8], Identity),
        (mut newest, mut value): (Newest, Vec<u8>),
        (columns, f): (&Columns, &Decide<'_, E>),
        turn: &mut Turn,
    ) -> std::result::Result<Reached<Changed>, E> {
        loop {
            let wish = (LockStrength::Update, Wait::Block);
            let (trailer, moved) = match self.settle(table, (key, identity), newest, wish, turn, &mut value)? {
                Settled::Row { trailer, moved } => (trailer, moved),
                Settled::Elsewhere(key, identity) => return Ok(Reached::Elsewhere(key, identity)),
                Settled::Gone => return Ok(Reached::Row(Changed::Gone)),
                Settled::Skipped => return Ok(Reached::Row(Changed::Skipped)),
            };
            self.refuse_moved(moved, trailer)?;
            if trailer.deleted() {
                return Ok(Reached::Row(Changed::Gone));
            }
            value.truncate(value.len() - TRAILER);
            let pool = &self.engine().pool;
            let opened = large::open(pool, table, &value)?;
            let was_whole = matches!(opened, Cow::Owned(_));
            let before = large::bring_in_some(pool, table, Cow::Borrowed(&*opened), columns)?.into_owned();
            let change = f(&before, moved)?;
            let old = Old {
                trailer,
                stored: &value,
                before: Before {
                    opened: &opened,
                    was_whole,
                    seen: &before,
                },
            };
            let applied = match &change {
                Change::Skip => return Ok(Reached::Row(Changed::Skipped)),
                Change::Keep => self.apply_lock(table, key, trailer, LockStrength::Update)?,
                Change::Delete => self.apply(table, key, old, Next::Deleted, false)?,
                Change::Update(new) => self.apply_update(table, key, old, new)?,
            };
            match applied {
                Applied::Done => {
                    if !matches!(change, Change::Keep) {
                        self.count_change(table);
                    }
                    return Ok(Reached::Row(Changed::Done { change, before }));
                }
                Applied::Moved => {}
                Applied::WaitFor(by) => {
                    if let Applied::Done = self.apply_lock(table, key, trailer, LockStrength::Update)? {
                        self.leave(std::mem::take(turn), true);
                        self.wait_for_row(table, &by.key, by.by)?;
                    }
                }
            }
            newest = self.newest(table, key, &mut value)?;
        }
    }

    /// Whether another transaction has to do with the row, so that what the snapshot sees of it is to be looked at
    /// before that is waited for, or believed.
    fn is_disputed(&self, table: &Table, key: &[u8], newest: &Newest) -> bool {
        match newest {
            Newest::Missing => false,
            Newest::InProgress(_) | Newest::Row { moved: true, .. } => true,
            Newest::Row { .. } => self.lock_conflict(table, key, LockStrength::Update).is_some(),
        }
    }

    /// What the snapshot sees of the row whose newest version `value` holds, or held.
    fn version_seen(&self, table: &Table, value: &[u8], columns: &Columns) -> Result<Seen> {
        let mut row = value.to_vec();
        match self.reader.visible_version(&mut row) {
            Ok(false) => Ok(Seen::None),
            Ok(true) => {
                self.reader.complete(table, &mut row, columns)?;
                Ok(Seen::Row(row))
            }
            // It lies in a tree that this one has replaced.
            Err(Error::Serialization(_)) if self.isolation == Isolation::ReadCommitted => Ok(Seen::Unknown),
            Err(error) => Err(error),
        }
    }

    /// Locks the row with this primary key and gives its newest version. A row that the snapshot does not see is
    /// `Gone`, without a wait. One that a later statement of this transaction has changed counts as gone, as PostgreSQL
    /// has it: a portal meets it that began before.
    ///
    /// # Errors
    /// 40001, 40P01, 57014, 55P03 of waiting.
    pub fn lock_row(
        &mut self,
        table: &Table,
        key: &[u8],
        strength: LockStrength,
        wait: Wait,
        row: &mut Vec<u8>,
    ) -> Result<Locked> {
        self.share_table(table)?;
        let newest = self.newest(table, key, row)?;
        let is_seen = matches!(newest, Newest::Missing | Newest::Row { moved: false, .. });
        if !is_seen && matches!(self.version_seen(table, row, &Columns::Only([].into()))?, Seen::None) {
            return Ok(Locked::Gone);
        }
        let done = self.lock_found(table, key, newest, (strength, wait), row)?;
        if let Locked::Row { .. } = done {
            row.truncate(row.len() - TRAILER);
            self.reader.complete(table, row, &Columns::All)?;
            self.wait_built_on()?;
        }
        Ok(done)
    }

    /// Locks the row that the snapshot sees under this key, under whatever key it is found.
    fn lock_found(
        &mut self,
        table: &Table,
        key: &[u8],
        mut newest: Newest,
        wish: (LockStrength, Wait),
        row: &mut Vec<u8>,
    ) -> Result<Locked> {
        let (mut key, mut identity) = (Cow::Borrowed(key), Identity::Seen);
        loop {
            let mut turn = Turn::default();
            let done = self.lock_in_turn(table, (&key, identity), newest, wish, &mut turn, row);
            // Others may share what is locked to be shared.
            let alone = matches!(done, Ok(Reached::Row(Locked::Row { .. }))) && wish.0 == LockStrength::Update;
            self.leave(turn, alone);
            match done? {
                Reached::Row(locked) => return Ok(locked),
                Reached::Elsewhere(new_key, landing) => (key, identity) = (Cow::Owned(new_key), landing),
            }
            newest = self.newest(table, &key, row)?;
        }
    }

    fn lock_in_turn(
        &mut self,
        table: &Table,
        (key, identity): (&[u8], Identity),
        mut newest: Newest,
        (strength, wait): (LockStrength, Wait),
        turn: &mut Turn,
        row: &mut Vec<u8>,
    ) -> Result<Reached<Locked>> {
        loop {
            let (trailer, moved) = match self.settle(table, (key, identity), newest, (strength, wait), turn, row)? {
                Settled::Row { trailer, moved } => (trailer, moved),
                Settled::Elsewhere(key, identity) => return Ok(Reached::Elsewhere(key, identity)),
                Settled::Gone => return Ok(Reached::Row(Locked::Gone)),
                Settled::Skipped => return Ok(Reached::Row(Locked::Skipped)),
            };
            if self.is_own(trailer) && !self.reader.sees(trailer)? {
                return Ok(Reached::Row(Locked::Gone));
            }
            if !planted(Fault::LockMoved) {
                self.refuse_moved(moved, trailer)?;
            }
            if trailer.deleted() {
                return Ok(Reached::Row(Locked::Gone));
            }
            if let Applied::Done = self.apply_lock(table, key, trailer, strength)? {
                return Ok(Reached::Row(Locked::Row { moved }));
            }
            newest = self.newest(table, key, row)?;
        }
    }

    fn is_own(&self, version: Trailer) -> bool {
        version.tx == self.reader.own
    }

    /// At repeatable read, a version behind the snapshot cannot be changed. It is durable by the time that the client
    /// hears of it, if the drive answers: rows are free before that, and a snapshot taken earlier would not see it, and be
    /// refused again.
    fn refuse_moved(&self, moved: bool, newest: Trailer) -> Result<()> {
        if moved && self.isolation == Isolation::RepeatableRead {
            self.wait_built_on().ok();
            let is_gone = newest.deleted() && !newest.rekeyed();
            return Err(Error::Serialization(if is_gone { "delete" } else { "update" }));
        }
        Ok(())
    }

    /// Waits until the newest version of the row, found as `newest` with `value`, is no other transaction's, and those
    /// have had it that waited before; gives it with its trailer. A row of this identity that is not under this key any
    /// more is not waited for.
    fn settle(
        &mut self,
        table: &Table,
        (key, identity): (&[u8], Identity),
        mut newest: Newest,
        (strength, wait): (LockStrength, Wait),
        turn: &mut Turn,
        value: &mut Vec<u8>,
    ) -> Result<Settled> {
        loop {
            let holder = match newest {
                Newest::Missing => return Ok(Settled::Gone),
                Newest::InProgress(by) => Holder::Writes(by),
                // The snapshot has no row: there is nothing to wait for, whichever transaction queues for the key.
                Newest::Row { trailer, moved: false } if identity == Identity::Seen && trailer.deleted() => {
                    return Ok(Settled::Gone);
                }
                Newest::Row { trailer, moved } => match self.lock_conflict(table, key, strength) {
                    _ if trailer.may_be_another()
                        && let Some(settled) = self.settled_elsewhere(identity, trailer)? =>
                    {
                        return Ok(settled);
                    }
                    Some(by) => Holder::Locks(by),
                    None if self.may_take(table, key, trailer, turn) => return Ok(Settled::Row { trailer, moved }),
                    None => Holder::Nobody,
                },
            };
            match wait {
                _ if let Holder::Writes(by) = holder
                    && self.take_back_row(table, key, by)? => {}
                Wait::Block => self.wait_in_turn(table, key, &holder, turn)?,
                Wait::SkipLocked => return Ok(Settled::Skipped),
                Wait::NoWait => {
                    return Err(Error::LockNotAvailable(format!(
                        "could not obtain lock on row in relation \"{}\"",
                        table.name
                    )));
                }
            }
            newest = self.newest(table, key, value)?;
        }
    }

    /// What is to be said of a row that is not under the key any more; None: it is there, or its identity does not
    /// matter. At repeatable read: 40001 where another transaction changed the row that this one's statement has put
    /// another in place of.
    #[cold]
    fn settled_elsewhere(&self, identity: Identity, newest: Trailer) -> Result<Option<Settled>> {
        if self.isolation == Isolation::RepeatableRead {
            if identity == Identity::Seen
                && self.is_own(newest)
                && let Some(other) = self.reader.changed_below(newest)?
            {
                self.refuse_moved(true, other)?;
            }
            return Ok(None);
        }
        if planted(Fault::FormerKey) {
            return Ok(None);
        }
        Ok(match self.reader.whereabouts(identity, newest)? {
            Found::Here => None,
            Found::Gone => Some(Settled::Gone),
            Found::Elsewhere(key, landing) => Some(Settled::Elsewhere(key, landing)),
        })
    }

    /// Waits for a transaction that has a row with this key, or frees the row where it is to be taken back anyway.
    fn wait_for_row(&self, table: &Table, key: &[u8], by: TxId) -> Result<()> {
        match self.take_back_row(table, key, by)? {
            true => Ok(()),
            false => self.wait_for(by),
        }
    }

    /// Takes a row back on demand, where transaction `by` is to be taken back and has it. False: it is to be waited for.
    /// No latch or unique stripe is held.
    #[cold]
    fn take_back_row(&self, table: &Table, key: &[u8], by: TxId) -> Result<bool> {
        let losers = &self.engine().losers;
        // Definitions are waited for: files go with them. One that is stuck is told of where it would be waited for.
        if table.space == CATALOG_SPACE || !losers.is_open(by) || losers.check(by).is_err() {
            return Ok(false);
        }
        rollback::take_back_row(self.engine(), &self.reader.lease, (table, key), by, &self.reader.cancel)
    }

    /// Whether a free row is this transaction's to take: its own already, or no other has waited for it longer.
    fn may_take(&self, table: &Table, key: &[u8], newest: Trailer, turn: &Turn) -> bool {
        let (engine, own) = (self.engine(), self.reader.own);
        engine.row_queues.is_empty()
            || newest.tx == own
            || self.ahead(&turn.name_of(table.space, key)).is_none()
            || engine.row_locks.holds(table.space, key, own)
    }

    /// Queues for the row. The first in the queue waits for the row's holder, each other one for the one before it.
    fn wait_in_turn(&self, table: &Table, key: &[u8], holder: &Holder, turn: &mut Turn) -> Result<()> {
        let (engine, own) = (self.engine(), self.reader.own);
        if !engine.row_locks.holds(table.space, key, own) {
            turn.join(&engine.row_queues, (table.space, key), (own, self.reader.slot));
        }
        match (self.ahead(&turn.name_of(table.space, key)), holder) {
            (Some(before), _) if turn.is_taken() => self.wait_behind(before, turn),
            (_, Holder::Writes(by)) => self.wait_for_row(table, key, *by),
            (_, Holder::Locks(by)) => self.wait_for_locks(*by),
            (_, Holder::Nobody) => Ok(()),
        }
    }

    /// The transaction before this one in a row's queue; the last where this one is not in it. One that has ended waits
    /// for nothing: its session was unwound in the middle of a step, and left its place behind.
    fn ahead(&self, name: &[u8]) -> Option<Waiting> {
        let (engine, own) = (self.engine(), self.reader.own);
        loop {
            let before = engine.row_queues.ahead(name, own)?;
            if engine.slots.get(before.1).running() == before.0 {
                return Some(before);
            }
            engine.row_queues.leave(name, before.0);
        }
    }

    /// Waits until another has left the queue without the row, or its transaction has ended.
    fn wait_behind(&self, before: Waiting, turn: &Turn) -> Result<()> {
        let (queues, own) = (&self.engine().row_queues, self.reader.own);
        self.wait_while(before, &|| {
            queues.ahead(&turn.name, own).is_some_and(|(seq, _)| seq == before.0)
        })
    }

    /// Gives up the place in the queue. `with_row`: the row is this transaction's, and the next one waits for its end;
    /// otherwise that one looks again.
    fn leave(&self, turn: Turn, with_row: bool) {
        if !turn.is_taken() {
            return;
        }
        let (engine, own) = (self.engine(), self.reader.own);
        let leave = || engine.row_queues.leave(&turn.name, own);
        if with_row {
            leave();
        } else {
            engine.waits.leave_queue(&engine.slots, (own, self.reader.slot), leave);
        }
    }

    /// Copies the newest version. One that the snapshot sees was committed before it was copied, and one of a
    /// transaction in progress is waited for. Any other may have been taken back between the copy and the question for
    /// its transaction's status: it counts if it still stands there behind that.
    pub(super) fn newest(&self, table: &Table, key: &[u8], value: &mut Vec<u8>) -> Result<Newest> {
        let (mut committed, mut over) = (None, None);
        loop {
            if !(BTree { space: table.space }).get(&self.engine().pool, key, value)? {
                return Ok(Newest::Missing);
            }
            let trailer = Trailer::of(value)?;
            if committed == Some(trailer) {
                let moved = !self.reader.sees(trailer)?;
                return Ok(Newest::Row { trailer, moved });
            }
            if over == Some(trailer) {
                return Err(bears_no_transaction(table, trailer));
            }
            if planted(Fault::StalledLook) {
                stand_still();
            }
            match self.standing(trailer.tx)? {
                Standing::InProgress(by) => return Ok(Newest::InProgress(by)),
                Standing::Seen => return Ok(Newest::Row { trailer, moved: false }),
                _ if planted(Fault::AbortedVersion) => return Ok(Newest::Row { trailer, moved: true }),
                Standing::Committed => committed = Some(trailer),
                Standing::Over => over = Some(trailer),
            }
        }
    }

    /// Whether the newest version of the row still is the one with this trailer. Positions of undo are not used twice,
    /// so it then was all the while.
    fn is_still(&self, table: &Table, key: &[u8], seen: Trailer) -> Result<bool> {
        let mut value = Vec::new();
        Ok((BTree { space: table.space }).get(&self.engine().pool, key, &mut value)? && Trailer::of(&value)? == seen)
    }

    /// Whether the snapshot sees the newest version of the row: the one that a `Duplicate` was found in, unless another
    /// transaction has changed the row since.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn sees_newest(&self, table: &Table, key: &[u8]) -> Result<bool> {
        let newest = self.newest(table, key, &mut Vec::new())?;
        Ok(matches!(newest, Newest::Row { trailer, moved: false } if !trailer.deleted()))
    }

    fn lock_conflict(&self, table: &Table, key: &[u8], strength: LockStrength) -> Option<TxId> {
        self.engine()
            .row_locks
            .conflict(table.space, key, self.reader.own, strength)
    }

    /// Enters an explicit lock, if the row is still as `seen`.
    fn apply_lock(&mut self, table: &Table, key: &[u8], seen: Trailer, strength: LockStrength) -> Result<Applied> {
        let engine = self.engine().clone();
        if seen.tx == self.reader.own {
            return Ok(Applied::Done);
        }
        let tree = BTree { space: table.space };
        let mut m = engine.pool.mtr();
        let pos = tree.seek_write(&mut m, key, 0)?;
        if !pos.found {
            return Ok(Applied::Moved);
        }
        tree.value(&m, &pos, &mut self.scratch.old);
        if Trailer::of(&self.scratch.old)? != seen {
            return Ok(Applied::Moved);
        }
        if let Some(by) = self.lock_conflict(table, key, strength) {
            return Ok(Applied::WaitFor(Blocker::new(by, key)));
        }
        let name = row_name(table.space, key);
        if planted(Fault::RowLock) {
            return Ok(Applied::Done);
        }
        if engine.row_locks.add(&name, self.reader.own, strength) {
            if let Err(error) = self.lock_memory.grow(row_lock_bytes(&name)) {
                engine.row_locks.release(&name, self.reader.own);
                return Err(error);
            }
            self.row_locks.push(name);
        }
        Ok(Applied::Done)
    }

    fn apply_update(&mut self, table: &Table, key: &[u8], old: Old<'_>, new: &[u8]) -> Result<Applied> {
        let mut new_key = key.to_vec();
        if !table.has_hidden_key() {
            table.key_of_row(new, &mut new_key)?;
        }
        if new_key != key {
            return self.apply_move(table, key, old, (new, &new_key));
        }
        let keys = index::new_keys(table, new, Some(old.before.seen))?;
        index::check_lengths(&keys, key)?;
        let unique = index::unique_keys(table, new, &keys)?;
        let engine = self.engine().clone();
        let _stripes = engine.stripes.hold(&unique);
        if !unique.is_empty() {
            match self.find_obstacle(table, new, key, &keys)? {
                Some(Obstacle::InProgress(by)) => return Ok(Applied::WaitFor(by)),
                // Of the row as it was seen: one that has changed since is looked at again.
                Some(Obstacle::Duplicate(..)) if !self.is_still(table, key, old.trailer)? => return Ok(Applied::Moved),
                Some(Obstacle::Duplicate(index, _)) => return Err(table.unique_violation(Some(index), new)),
                None => index::note_free(&unique),
            }
        }
        let new = large::move_out(&engine, table, new, Some(old.before))?;
        let applied = self.apply(table, key, old, Next::Version(&new), keys.is_empty());
        match applied {
            Ok(Applied::Done) => index::enter(&engine, table, &keys, key)?,
            _ => large::free(&engine.pool, table, &new.refs)?,
        }
        applied
    }

    /// An update that changes the primary key: the old row goes, the new one comes, with large values of its own. The
    /// record of the former says the new key, and the record of the latter follows it: so transactions that wanted the
    /// row find it.
    fn apply_move(
        &mut self,
        table: &Table,
        key: &[u8],
        old: Old<'_>,
        (new, new_key): (&[u8], &[u8]),
    ) -> Result<Applied> {
        let new = large::bring_in(&self.engine().pool, table, new)?;
        let before = self.savepoint();
        match self.apply(table, key, old, Next::Rekeyed(new_key), false)? {
            Applied::Done => {}
            other => return Ok(other),
        }
        let inserted = self.insert(table, &new);
        if !matches!(inserted, Ok(Insert::Done)) {
            self.rollback_to(&before)?;
        }
        match inserted? {
            Insert::Done => Ok(Applied::Done),
            Insert::Duplicate { index, .. } => Err(table.unique_violation(index, &new)),
        }
    }

    /// Gives the row another version, or marks it deleted, if it is still the `old` one. `same_keys`: no index key
    /// changes.
    fn apply(&mut self, table: &Table, key: &[u8], old: Old<'_>, next: Next<'_>, same_keys: bool) -> Result<Applied> {
        let (seen, old, new) = (old.trailer, old.stored, next.version());
        let engine = self.engine().clone();
        let (tree, own) = (BTree { space: table.space }, self.reader.own);
        let mut m = engine.pool.mtr();
        // In place where the length allows it: then a full leaf is not split.
        let grows = new.is_some_and(|new| new.row.len() > old.len());
        let room = new
            .filter(|_| grows)
            .map_or(0, |new| key.len() + new.row.len() + TRAILER);
        let pos = tree.seek_write(&mut m, key, room)?;
        if !pos.found {
            return Ok(Applied::Moved);
        }
        tree.value(&m, &pos, &mut self.scratch.old);
        if Trailer::of(&self.scratch.old)? != seen {
            return Ok(Applied::Moved);
        }
        if let Some(by) = self.lock_conflict(table, key, LockStrength::Update) {
            return Ok(Applied::WaitFor(Blocker::new(by, key)));
        }
        let kind = if new.is_some() { Kind::Update } else { Kind::Delete };
        let ends_chains = large::is_external(old) && !new.is_some_and(|new| new.shares_all);
        let plain = same_keys && !ends_chains && table.space != CATALOG_SPACE;
        let record = NewRecord {
            kind,
            plain,
            counted: !same_keys,
            tx: own,
            prev: self.last_undo,
            space: table.space,
            before: seen,
            shared: new.map_or(Shared::default(), |new| new.shared),
            key,
            row: old,
            new_key: next.new_key(),
        };
        let writer = self.writer.as_mut().ok_or_else(no_segment)?;
        let place = writer.prepare(&mut m, record.len())?;
        let trailer = Trailer {
            tx: own,
            undo: writer.pointer(&place),
            flags: next.flags() | seen.flags & REINSERTED,
        }
        .encode();
        let adoption = large::prepare_adoption(&mut m, table, new.map_or(&[], |new| &new.refs))?;
        self.last_undo = writer.append(&mut m, &place, &record, &mut self.scratch.record)?;
        adoption.apply(&mut m);
        match new {
            None => tree.write_value_bytes_at(&mut m, &pos, old.len(), &trailer),
            Some(new) => {
                self.scratch.value.clear();
                self.scratch.value.extend_from_slice(&new.row);
                self.scratch.value.extend_from_slice(&trailer);
                tree.replace_at(&mut m, &pos, &self.scratch.value)?;
            }
        }
        if !same_keys {
            engine.unsettled.count(own, table.space, key);
        }
        m.commit();
        Ok(Applied::Done)
    }

    /// Makes sure that this transaction may write rows of the table: number, segment, shared table lock, newest
    /// definition.
    pub(crate) fn write_table(&mut self, table: &Table) -> Result<()> {
        self.ready_to_write()?;
        self.share_table(table)
    }

    fn share_table(&mut self, table: &Table) -> Result<()> {
        let id = table_lock(table.id);
        if !self.table_locks.contains(&id) {
            self.lock_table(id, false)?;
        }
        if self.is_current(table) {
            Ok(())
        } else {
            Err(Error::StaleTable(table.name.clone()))
        }
    }
}

/// What the snapshot sees of a row.
enum Seen {
    None,
    Row(Vec<u8>),
    /// It could say so only of a former tree.
    Unknown,
}

/// Has a row that another wants.
enum Holder {
    /// A transaction in progress made the newest version.
    Writes(TxId),
    /// A transaction has locked it.
    Locks(TxId),
    /// It is free for the first in its queue.
    Nobody,
}

/// What `settle` ends with.
enum Settled {
    /// As of `Newest`.
    Row {
        trailer: Trailer,
        moved: bool,
    },
    /// It goes on under this key, as the row of this identity.
    Elsewhere(Vec<u8>, Identity),
    Gone,
    Skipped,
}

/// What was done to a row under a key.
enum Reached<T> {
    Row(T),
    /// Nothing: it goes on under this key, as the row of this identity.
    Elsewhere(Vec<u8>, Identity),
}

/// Worlds: the window in which a version is taken back under a reader that has copied it.
#[cold]
fn stand_still() {
    if rt::random().is_multiple_of(16) {
        rt::sleep(rt::Nanos(rt::random() % 500_000));
    }
}

/// Every row of a transaction gets its former version before the transaction is over.
fn bears_no_transaction(table: &Table, trailer: Trailer) -> Error {
    Error::Corrupt(format!(
        "table \"{}\": a row bears transaction {}, which was rolled back",
        table.name,
        trailer.tx.raw()
    ))
}

pub(super) fn no_segment() -> Error {
    Error::Internal("a writer without an undo segment".into())
}
