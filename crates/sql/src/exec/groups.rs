//! Rows in an order that turns within a tree's key: `ORDER BY a DESC, b` by an index of (a, b).
//!
//! 1. The first row in the path's direction says which *group* comes first: the rows that are equal in the columns
//!    before the turn.
//! 2. The group is a range of its own, which the caller reads in the other direction.
//! 3. What is left of the path's range lies behind the group; the next one is looked for there.
//!
//! So LIMIT ends within a group, however many rows that has. A group costs two descents.

use crate::error::Result;
use crate::expr::Env;
use crate::plan::access::keys::{TreeRange, common, push_equal};
use crate::plan::access::{Access, Path, key_column};
use cenote_engine::key::{self, KeyRange};
use cenote_engine::{Columns, Direction, Reader, RowBatch, RowScan};
use std::ops::Bound;

/// Entries that are looked at together for the first row of a group: entries whose rows are gone may stand before it.
const ROWS_TO_FIRST: usize = 16;

/// The groups of a path, one after the other.
pub(super) struct Groups {
    index: Option<usize>,
    /// What is left of the path's range; None: nothing.
    left: Option<KeyRange>,
    /// What all keys of it begin with.
    prefix: Vec<u8>,
    /// The columns that rows of a group are equal in, behind the prefix.
    columns: Vec<usize>,
    scan: Option<RowScan>,
    first: RowBatch,
}

impl Groups {
    /// Those of a range of the path's tree; `turn`: columns of its key within which rows go in the path's direction.
    ///
    /// # Errors
    /// A value of the path cannot be computed.
    pub fn of(access: &Access, turn: usize, (index, range): TreeRange, env: &Env<'_>) -> Result<Groups> {
        let (mut prefix, mut fixed) = (Vec::new(), 0);
        if let Path::Range { prefix: values, .. } = &access.path {
            push_equal(&access.table, index, values, env, &mut prefix)?;
            fixed = values.len();
        }
        Ok(Groups {
            index,
            left: Some(range),
            prefix,
            columns: (fixed..turn).map(|at| key_column(&access.table, index, at)).collect(),
            scan: None,
            first: RowBatch::new(),
        })
    }

    /// The range of the next group; None behind the last.
    ///
    /// # Errors
    /// As the engine's reads.
    pub fn next(&mut self, reader: &Reader, access: &Access) -> Result<Option<TreeRange>> {
        let Some(left) = self.left.take() else { return Ok(None) };
        self.stand(reader, access, left.clone());
        let Some(scan) = &mut self.scan else { return Ok(None) };
        if !scan.next_batch(reader, &mut self.first)? {
            return Ok(None);
        }
        let group = self.group(access)?;
        self.left = behind(&left, &group, access.direction);
        Ok(Some((self.index, common(&left, &KeyRange::prefix(&group)))))
    }

    /// Stands before the first row of a range.
    fn stand(&mut self, reader: &Reader, access: &Access, range: KeyRange) {
        if let Some(scan) = &mut self.scan {
            return scan.restart(range);
        }
        let (table, direction) = (&access.table, access.direction);
        let scan = match self.index {
            None => reader.scan(table, range, direction),
            Some(index) => reader.index_scan(table, index, range, direction),
        };
        let columns = Columns::Only(self.columns.as_slice().into());
        let scan = scan.columns(&columns).batch_rows(ROWS_TO_FIRST);
        self.scan = Some(if access.index_only { scan.index_only() } else { scan });
    }

    /// What the keys of the group of the row at hand begin with.
    fn group(&self, access: &Access) -> Result<Vec<u8>> {
        let (layout, mut group) = (access.table.layout(), self.prefix.clone());
        for column in &self.columns {
            let value = layout.column(self.first.row(0), *column)?;
            key::push(layout.column_type(*column), &value, &mut group);
        }
        Ok(group)
    }
}

/// What is left of a range behind the keys that begin so.
fn behind(range: &KeyRange, group: &[u8], direction: Direction) -> Option<KeyRange> {
    let mut left = range.clone();
    match direction {
        Direction::Forward => left.lower = Bound::Included(key::successor(group)?),
        Direction::Backward => left.upper = Bound::Excluded(group.to_vec()),
    }
    Some(left)
}
