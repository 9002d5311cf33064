//! Large values against the versions that hold them.
//!
//! Versions of a row share chains, and the last of them frees a chain. So each chain of a space that is not pending has
//! exactly one holder: the newest version of a row, or the undo record of a version whose successor does not have it. A
//! chain without one is lost room; a holder without its chain has a value that was freed under it.
//!
//! This can be said only while no transaction writes and nothing is freed; else it is left to the next check.

use crate::api::Direction;
use crate::catalog::Table;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::key::KeyRange;
use crate::large;
use crate::report::CheckReport;
use crate::space::{self, SpaceHeader};
use crate::tree::{BTree, LargeRef, LeafBatch};
use crate::undo;
use crate::undo::Segment;
use crate::undo::record::{TRAILER, Trailer, UndoRecord};
use cenote_base::TxId;
use cenote_base::rt::HashMap;

/// What does not change without writers: the next transaction's number, the space's header.
type Rest = (TxId, SpaceHeader);

/// First pages of chains, with how many hold each.
type Holders = HashMap<u32, u32>;

impl Engine {
    /// None while transactions are in progress.
    pub(super) fn at_rest(&self, table: &Table) -> Result<Option<Rest>> {
        let next = self.txs.next();
        let idle = self.running_transactions() == 0 && self.rollbacks_waiting().0 == 0;
        let header = space::header(&self.pool, table.space)?;
        Ok(idle.then_some((next, header)))
    }

    /// Compares the chains that a check of the tree found with those that versions hold, if nothing has changed since
    /// `before`.
    pub(super) fn check_chains(
        &self,
        table: &Table,
        chains: &[u32],
        before: Rest,
        report: &mut CheckReport,
    ) -> Result<()> {
        let mut holders = Holders::default();
        let mut problems = Vec::new();
        self.hold_newest(table, &mut holders, &mut problems)?;
        let held_by_undo = self.hold_replaced(table, &mut holders, &mut problems);
        if self.at_rest(table)? != Some(before) {
            return Ok(());
        }
        match held_by_undo {
            // `check_undo` names what is wrong there; without it nothing can be said of chains.
            Err(Error::Corrupt(_)) => return Ok(()),
            other => other?,
        }
        let chain = |first: &u32| format!("the large value at page {first} of space {}", table.space);
        for first in chains {
            match holders.remove(first) {
                None => problems.push(format!("{} belongs to no version", chain(first))),
                Some(1) => {}
                Some(times) => problems.push(format!("{} belongs to {times} versions that end with it", chain(first))),
            }
        }
        problems.extend(
            holders
                .keys()
                .map(|first| format!("{} is not there, and a version has it", chain(first))),
        );
        let name = &table.name;
        let told = problems
            .into_iter()
            .map(|problem| format!("table \"{name}\": {problem}"));
        report.problems.extend(told);
        Ok(())
    }

    fn hold_newest(&self, table: &Table, holders: &mut Holders, problems: &mut Vec<String>) -> Result<()> {
        let tree = BTree { space: table.space };
        let (mut scan, mut batch) = (tree.scan(KeyRange::all(), Direction::Forward), LeafBatch::new());
        while scan.next_batch(&self.pool, &mut batch)? {
            for (_, value) in batch.iter() {
                if !Trailer::of(value)?.deleted() {
                    let refs = large::refs_of(&self.pool, table, &value[..value.len() - TRAILER]);
                    hold(refs, holders, problems);
                }
            }
        }
        Ok(())
    }

    fn hold_replaced(&self, table: &Table, holders: &mut Holders, problems: &mut Vec<String>) -> Result<()> {
        for segment in &self.segments.all() {
            self.each_record(segment, &mut |record| {
                let replaced = !record.kind.is_insert() && !record.undone && !record.before.deleted();
                if replaced && record.space == table.space {
                    let refs = large::refs_of(&self.pool, table, &record.row);
                    hold(refs.map(|refs| record.shared.select(refs, false)), holders, problems);
                }
            })?;
        }
        Ok(())
    }

    /// Calls `see` with each record that purge has not passed.
    fn each_record(&self, segment: &Segment, see: &mut dyn FnMut(&UndoRecord)) -> Result<()> {
        let header = undo::header(&self.pool, segment.number)?;
        let mut at = header.tail.max(segment.tail());
        while at < header.end {
            let Some((position, behind, record)) = undo::read_next(&self.pool, segment, at)? else {
                break;
            };
            if position >= header.end {
                break;
            }
            see(&record);
            at = behind;
        }
        Ok(())
    }
}

fn hold(refs: Result<Vec<LargeRef>>, holders: &mut Holders, problems: &mut Vec<String>) {
    match refs {
        Ok(refs) => refs
            .iter()
            .for_each(|large| *holders.entry(large.first).or_default() += 1),
        Err(error) => problems.push(error.to_string()),
    }
}
