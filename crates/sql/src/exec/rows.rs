//! The rows of one table that a path finds, one after the other.

use super::groups::Groups;
use super::keys::Seen;
use crate::error::Result;
use crate::expr::{Env, Expr};
use crate::plan::access::keys::{TreeRange, one_range, push_equal, ranges};
use crate::plan::access::{Access, Path};
use cenote_engine::{Account, Columns, KeyRange, Reader, RowBatch, RowScan};
use std::sync::Arc;

/// Below this many rows a scan fetches only what is wanted.
const FEW: usize = 64;

/// Rows between two looks at the cancel flag.
pub(super) const CANCEL_INTERVAL: u64 = 1024;

/// Whether a row passes; no condition passes all.
///
/// # Errors
/// The condition cannot be computed.
pub fn qualifies(condition: Option<&Expr>, env: &Env<'_>) -> Result<bool> {
    condition.map_or(Ok(true), |c| c.holds(env))
}

/// From so many rows on a scan that began with few fetches whole leaves.
const FEW_MAX: usize = 1024;

/// What a walk has to go through.
enum Ranges {
    /// Of most paths, without an allocation.
    One(Option<TreeRange>),
    Several(std::vec::IntoIter<TreeRange>),
}

impl Ranges {
    fn next(&mut self) -> Option<TreeRange> {
        match self {
            Ranges::One(range) => range.take(),
            Ranges::Several(ranges) => ranges.next(),
        }
    }
}

/// A walk over the rows of an access path. The filter is the caller's to apply.
pub struct TableRows {
    ranges: Ranges,
    /// Where the order turns: gives the ranges, one for each group of rows.
    groups: Option<Groups>,
    /// A walk over a tree (position of the index; None: the primary key's), kept for other ranges of it.
    scan: Option<(Option<usize>, RowScan)>,
    /// Whether it stands in a range.
    is_open: bool,
    /// Rows at hand; lent by the session.
    pub batch: RowBatch,
    at: usize,
    point: Option<(Vec<u8>, Vec<u8>)>,
    pending: bool,
    /// Rows to fetch at a time, where few are wanted, and whether more of them each time.
    few: Option<usize>,
    grows: bool,
    /// What is read of them.
    columns: Columns,
    /// Keys of the rows given so far, where several trees may find a row.
    seen: Option<(Seen, Arc<Account>)>,
}

impl TableRows {
    /// Starts the walk; `batch` is memory to use.
    ///
    /// # Errors
    /// A limit of the key range cannot be computed.
    pub fn start(access: &Access, env: &Env<'_>, batch: RowBatch) -> Result<TableRows> {
        let mut rows = TableRows {
            ranges: Ranges::One(None),
            groups: None,
            scan: None,
            is_open: false,
            batch,
            at: 0,
            point: None,
            pending: false,
            few: None,
            grows: true,
            columns: Columns::All,
            seen: None,
        };
        rows.restart(access, env)?;
        Ok(rows)
    }

    /// Starts it again, by the same path with other values around: its memory is used again. How many rows will do is to
    /// be said anew.
    ///
    /// # Errors
    /// As `start`.
    pub fn restart(&mut self, access: &Access, env: &Env<'_>) -> Result<()> {
        self.batch.clear();
        (self.at, self.is_open, self.few, self.seen) = (0, false, None, None);
        self.grows = true;
        let table = &access.table;
        if let Path::Point(values) = &access.path {
            let (mut key, row) = self.point.take().unwrap_or_default();
            key.clear();
            self.pending = push_equal(table, None, values, env, &mut key)?;
            self.point = Some((key, row));
            return Ok(());
        }
        if let Path::Range { .. } = &access.path {
            let range = one_range(table, &access.path, env)?;
            match access.turn {
                Some(turn) => self.groups = range.map(|range| Groups::of(access, turn, range, env)).transpose()?,
                None => self.ranges = Ranges::One(range),
            }
            return Ok(());
        }
        let ranges = ranges(table, &access.path, access.direction, env)?;
        // Ranges of one tree have no row in common.
        let one_tree = ranges.iter().all(|(index, _)| *index == ranges[0].0);
        if !one_tree {
            self.seen = Some((Seen::default(), env.session.memory.clone()));
        }
        self.ranges = Ranges::Several(ranges.into_iter());
        Ok(())
    }

    /// Says that about so many rows will do. Where they do not, twice as many are fetched each time.
    pub fn expect_few(&mut self, rows: u64) {
        self.few = usize::try_from(rows).ok().filter(|n| *n < FEW).map(|n| n.max(1));
    }

    /// Says that the walk will end within a leaf, wherever: so many rows are fetched at a time.
    pub fn expect_end(&mut self, rows: usize) {
        (self.few, self.grows) = (Some(rows.max(1)), false);
    }

    /// Says that only these columns are read.
    pub fn expect_columns(&mut self, columns: &Columns) {
        self.columns = columns.clone();
    }

    /// Moves to the next row; false at the end.
    ///
    /// # Errors
    /// As the engine's reads; 57014: the statement was cancelled.
    pub fn next(&mut self, reader: &Reader, access: &Access) -> Result<bool> {
        if let Some((key, row)) = &mut self.point {
            return Ok(std::mem::take(&mut self.pending) && reader.get_columns(&access.table, key, &self.columns, row)?);
        }
        loop {
            if !self.step(reader, access)? {
                return Ok(false);
            }
            let Some((seen, memory)) = &mut self.seen else {
                return Ok(true);
            };
            if seen.insert(self.batch.key(self.at).to_vec(), memory)? {
                return Ok(true);
            }
        }
    }

    /// Moves to the next row of the ranges, which may have been met in another tree.
    fn step(&mut self, reader: &Reader, access: &Access) -> Result<bool> {
        self.at += 1;
        while self.at >= self.batch.len() {
            self.at = 0;
            let Some((_, scan)) = self.scan.as_mut().filter(|_| self.is_open) else {
                self.batch.clear();
                let next = match &mut self.groups {
                    Some(groups) => groups.next(reader, access)?,
                    None => self.ranges.next(),
                };
                let Some((index, range)) = next else { return Ok(false) };
                self.open(reader, access, index, range);
                continue;
            };
            if !scan.next_batch(reader, &mut self.batch)? {
                self.is_open = false;
            } else if let Some(rows) = self.few.filter(|_| self.grows) {
                self.few = Some(2 * rows).filter(|more| *more < FEW_MAX);
                scan.set_batch_rows(self.few.unwrap_or(usize::MAX));
            }
        }
        Ok(true)
    }

    /// Stands at the begin of a range.
    fn open(&mut self, reader: &Reader, access: &Access, index: Option<usize>, range: KeyRange) {
        let rows = self.few.unwrap_or(usize::MAX);
        self.is_open = true;
        if let Some((_, scan)) = self.scan.as_mut().filter(|(known, _)| *known == index) {
            scan.restart(range);
            return scan.set_batch_rows(rows);
        }
        let scan = match index {
            None => reader.scan(&access.table, range, access.direction_of_ranges()),
            Some(index) => reader.index_scan(&access.table, index, range, access.direction_of_ranges()),
        };
        let scan = scan.columns(&self.columns).batch_rows(rows);
        self.scan = Some((index, if access.index_only { scan.index_only() } else { scan }));
    }

    /// Primary key bytes of the row here.
    pub fn key(&self) -> &[u8] {
        self.point
            .as_ref()
            .map_or_else(|| self.batch.key(self.at), |(key, _)| key)
    }

    /// The row here.
    pub fn row(&self) -> &[u8] {
        self.point
            .as_ref()
            .map_or_else(|| self.batch.row(self.at), |(_, row)| row)
    }
}
