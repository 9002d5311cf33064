//! Versions that no snapshot needs are left out of the way to those that one does.
//!
//! An old snapshot keeps purge from all that was replaced behind it, though it sees one version of each row. A row that
//! is updated again and again gets a chain of undo records between its newest version and that one, and a reader by the
//! old snapshot reads them all.
//!
//! 1. The snapshots in use, and the durable position as the least that one may be taken later, cut time into *gaps*. A
//!    version that was made and replaced in one gap is seen by none of them.
//! 2. Records of transactions that have ended are read once, in the order of their segment. A record whose transaction
//!    committed in a gap holds a version of that gap as a rule; the record that one leads to holds the version before,
//!    and so on down to the first version that is older than the gap. The record is made to lead straight to the record
//!    that holds this one: eight bytes, in a mini-transaction. Those passed over stay, for purge, which finds them by
//!    their segment.
//! 3. So a reader that sees none of a gap's versions passes two records for it, not one for each version.
//! 4. A record whose transaction committed in a gap, and that holds a version older than the gap, holds what the
//!    snapshot before the gap sees. That version is copied to where scans read it in the order of keys (`versions`).
//!
//! Invariants:
//! - The trailer of a row's newest version names the record of its change: only records' trailers are changed, of
//!   transactions that have committed, so no rollback puts one back.
//! - A version that is deleted, has got another key or lies above a deleted one is not passed over: `tx::follow` looks
//!   for it. Nor is one of the catalog, of which a start reads all.
//! - Of a slot that holds several snapshots for readers beside its statement only the oldest is known: nothing behind
//!   that one is passed over.

use super::shared::Standing;
use crate::engine::Engine;
use crate::error::Result;
use crate::system::CATALOG_SPACE;
use crate::tx::Status;
use crate::tx::slots::InUse;
use crate::undo::record::{Kind, UndoRecord};
use crate::undo::{self, Segment, UndoPointer};
use crate::versions::{Gathered, Interval};
use cenote_base::rt;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::{Cts, TxId};

/// Records that are looked at in a round, so that purge comes to its own work again.
const RECORDS_MAX: u64 = 20_000;
/// Records of one row that are passed over at once: more only where snapshots went that had kept them.
const STEPS: usize = 64;

/// What a round looks at records for.
struct Look<'a> {
    in_use: &'a InUse,
    /// Records that it may look at still.
    left: u64,
    gathered: Gathered,
    /// Records that lead elsewhere.
    cut: u64,
}

impl Engine {
    /// Cuts the ways to old versions short, where the oldest snapshot has been in use for a while. Returns how many
    /// records lead elsewhere.
    pub(super) fn cut_if_it_stands(&self, horizon: Cts) -> Result<u64> {
        let now = rt::now();
        {
            let mut standing = self.purge.standing.lock();
            if standing.horizon != horizon {
                *standing = Standing { horizon, since: now };
            }
            if now.since(standing.since) < self.cut_after {
                return Ok(0);
            }
        }
        if !self.may_cut() {
            return Ok(0);
        }
        self.cut()
    }

    /// The same, whatever the age of the oldest snapshot. By one thread at a time.
    pub(super) fn cut(&self) -> Result<u64> {
        let in_use = self.slots.snapshots(self.storage.durable());
        if !self.note_cut_if_any(&in_use)? {
            return Ok(0);
        }
        let mut look = Look {
            in_use: &in_use,
            left: RECORDS_MAX,
            gathered: Gathered::default(),
            cut: 0,
        };
        let segments = self.segments.all();
        let mut segments = segments.iter().take_while(|_| !self.is_stopping());
        let done = segments.try_for_each(|segment| self.cut_segment(segment, &mut look));
        let needed = &|interval| in_use.may_see(interval);
        self.versions.take(look.gathered, in_use.snapshots(), needed);
        done.map(|()| look.cut)
    }

    /// Tells readers of other servers. False: there is nothing to cut, and an idle database writes nothing.
    fn note_cut_if_any(&self, in_use: &InUse) -> Result<bool> {
        if self.storage.0.nodes().is_none() {
            return Ok(true);
        }
        let has_more = |segment: &std::sync::Arc<Segment>| {
            let end = segment.end_of_past(in_use.until);
            end.is_some_and(|end| segment.cut_to() < end)
        };
        if in_use.snapshots().is_empty() || !self.segments.all().iter().any(has_more) {
            return Ok(false);
        }
        self.note_cut(in_use.until).map(|()| true)
    }

    fn cut_segment(&self, segment: &Segment, look: &mut Look<'_>) -> Result<()> {
        let Some(end) = segment.end_of_past(look.in_use.until) else {
            return Ok(());
        };
        let mut at = segment.cut_to();
        while at < end && look.left > 0 && !self.is_stopping() {
            let Some((position, behind, record)) = undo::read_next(&self.pool, segment, at)? else {
                break;
            };
            if position >= end {
                break;
            }
            look.left -= 1;
            // A way that cannot be read is left as it is: the round goes on behind it.
            at = behind;
            segment.note_cut(at);
            let pointer = UndoPointer::new(segment.number, position);
            look.cut += u64::from(self.cut_record(pointer, &record, look)?);
        }
        Ok(())
    }

    /// Makes the record lead to the newest version that is older than its gap. Copies the version that it holds, if
    /// that one is.
    fn cut_record(&self, pointer: UndoPointer, record: &UndoRecord, look: &mut Look<'_>) -> Result<bool> {
        let Status::Committed(at) = self.status(record.tx)? else {
            return Ok(false);
        };
        let Some(before) = look.in_use.gap_of(at) else {
            return Ok(false);
        };
        if !self.may_be_passed_over(record, before)? {
            self.gather(record, at, before, &mut look.gathered)?;
            return Ok(false);
        }
        let mut to = record.before.undo;
        for _ in 0..STEPS {
            if self.segments.is_purged(to) {
                return Ok(false);
            }
            let next = undo::read(&self.pool, to)?;
            if !self.may_be_passed_over(&next, before)? {
                break;
            }
            to = next.before.undo;
        }
        if to == record.before.undo {
            return Ok(false);
        }
        mark::pass(Mark::ChainCut);
        undo::lead_to(&self.pool, pointer, to)?;
        Ok(true)
    }

    /// Copies the version that the record holds, which ended at `at`, if the snapshot `before` the gap sees it.
    fn gather(&self, record: &UndoRecord, at: Cts, before: Cts, gathered: &mut Gathered) -> Result<()> {
        if record.undone || record.kind.is_insert() || record.space == CATALOG_SPACE {
            return Ok(());
        }
        if let Status::Committed(from) = self.status(record.before.tx)?
            && from <= before
        {
            let row = (!record.before.deleted()).then_some(&record.row[..]);
            let to = if planted(Fault::VersionEnd) { Cts::MAX } else { at };
            gathered.add(&self.versions, record.space, &record.key, row, Interval { from, to });
        }
        Ok(())
    }

    /// Whether the version that the record holds was made behind the snapshot `before` the gap, and is one of an
    /// ordinary row with a version before it.
    fn may_be_passed_over(&self, record: &UndoRecord, before: Cts) -> Result<bool> {
        let is_ordinary = record.kind == Kind::Update
            && !record.undone
            && record.before.flags == 0
            && record.space != CATALOG_SPACE
            && !record.before.undo.is_none();
        Ok(is_ordinary && self.is_committed_behind(record.before.tx, before)?)
    }

    fn is_committed_behind(&self, tx: TxId, snapshot: Cts) -> Result<bool> {
        Ok(matches!(self.status(tx)?, Status::Committed(at) if at > snapshot))
    }
}

#[cfg(test)]
mod tests;
