//! Which row a version is of, where rows get other primary keys.
//!
//! An update of the primary key deletes the row under its former key and inserts it under the new one. A statement at
//! read committed that wants the row, and finds that this was done behind its snapshot, goes on under the new key, as
//! PostgreSQL follows a row's chain of updates. It must not take another row for it that was inserted under the former
//! key since, nor one that stands where its row was deleted.
//!
//! 1. The deletion is marked `REKEYED`, and its undo record holds the new key. The insert's record is the transaction's
//!    next one: it names the deletion's as the previous (`Identity::Landed`), so the version that the row begins with
//!    there is known exactly.
//! 2. A version that is inserted over a deleted one is marked `REINSERTED`, and so are those made of it. A newest
//!    version without a mark is of the same row as all versions below it: an undisputed row, and one that was only
//!    updated, costs a test.
//! 3. With a mark, the versions are walked from the newest down to the one that identifies the row. The last deletion
//!    on the way is the one that ended it under this key: it leads to another key, or the row is gone. No deletion: it
//!    is there.
//!
//! At repeatable read nothing is followed: the newest version is another transaction's, which is 40001. It may lie
//! below one of the own statement, which has given the key to another of its rows: that is looked for, too.
//!
//! All versions of the walk are younger than the snapshot, which keeps purge from their undo records.

use super::read::Reader;
use crate::error::Result;
use crate::undo::record::Trailer;
use crate::undo::{self, UndoPointer};

/// What makes a row the one that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// Whatever row has the key.
    Any,
    /// It has the version that the snapshot sees.
    Seen,
    /// It came to its key by the insert that follows this undo record.
    Landed(UndoPointer),
}

/// Where a row is, that was looked for under a key.
pub(super) enum Found {
    Here,
    /// It was deleted.
    Gone,
    /// Under this key, as the row of this identity.
    Elsewhere(Vec<u8>, Identity),
}

impl Reader {
    /// Where the row of this identity is, by the newest version under its key, which is committed or of this
    /// transaction.
    pub(super) fn whereabouts(&self, identity: Identity, newest: Trailer) -> Result<Found> {
        let (mut version, mut found) = (newest, Found::Here);
        if identity == Identity::Any {
            return Ok(found);
        }
        loop {
            // What was copied into another tree has no versions below.
            if version.undo.is_none() {
                return Ok(found);
            }
            if self.sees(version)? {
                // Where the snapshot has no row, none is the one that is wanted.
                let is_wanted = identity == Identity::Seen && !version.deleted();
                return Ok(if is_wanted { found } else { Found::Gone });
            }
            let record = undo::read(&self.engine.pool, version.undo)?;
            if version.deleted() {
                found = match version.rekeyed() {
                    true => Found::Elsewhere(record.new_key, Identity::Landed(version.undo)),
                    false => Found::Gone,
                };
            }
            if identity == Identity::Landed(record.prev) {
                return Ok(found);
            }
            if record.kind.is_insert() {
                return Ok(Found::Gone);
            }
            version = record.before;
        }
    }

    /// The version by which another transaction changed the row behind the snapshot, where this one's statement has
    /// given its key to the row of this newest version since.
    pub(super) fn changed_below(&self, newest: Trailer) -> Result<Option<Trailer>> {
        let (mut version, mut other) = (newest, None);
        while !version.undo.is_none() && !self.sees(version)? {
            if version.tx != self.own {
                other.get_or_insert(version);
            }
            let record = undo::read(&self.engine.pool, version.undo)?;
            if record.kind.is_insert() {
                return Ok(None);
            }
            version = record.before;
        }
        Ok(other.filter(|_| !version.deleted()))
    }
}
