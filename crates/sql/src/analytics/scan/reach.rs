//! How a run reaches the rows of a scan: by the ranges it was planned with, or by keys that its filters name by then.

use super::{EngineScan, Reach};
use crate::analytics::access::{datum_of, row_cost};
use crate::analytics::filters::{limits, values};
use cenote_engine::types::Datum;
use cenote_engine::{KeyRange, Reader};
use std::ops::Bound;

/// Cost of going to a leaf, in rows met in the primary key's order, and of finding a key there.
const LEAF: f64 = 15.0;
const KEY: f64 = 5.0;
/// Rows of a leaf, about; entries of an index's.
const LEAF_ROWS: f64 = 100.0;
const LEAF_ENTRIES: f64 = 400.0;

impl EngineScan {
    /// Decides how to reach the rows, once the filters know what they will: keys to look up, where that costs less
    /// than half of the scan.
    pub(super) fn decide(&self, reader: &Reader) -> Reach {
        let primary = self.table.primary_key.iter().map(|key| (None, key.columns[0]));
        let indexes = self.table.indexes.iter().enumerate();
        let secondary = indexes.map(|(i, index)| (Some(i), index.columns[0]));
        let found = primary.chain(secondary).filter_map(|(index, column)| {
            let keys = self.keys(index, column)?;
            Some((self.look_up_cost(reader, index, &keys), index, keys))
        });
        match found.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((cost, index, keys)) if cost * 2.0 < self.access.cost() => Reach::Keys(index, keys.into()),
            _ => Reach::Ranges,
        }
    }

    /// The prefixes of an index's keys (None: the primary key's) that the filters leave, where one of them names values
    /// of its first column.
    fn keys(&self, index: Option<usize>, column: usize) -> Option<Vec<Vec<u8>>> {
        let lists = self.filters.iter().filter_map(|f| values(&f.expr, f.position(column)?));
        let list = lists.min_by_key(Vec::len)?;
        let values = list.iter().filter(|v| !v.is_null());
        let datums = values.map(|v| datum_of(v, self.table.columns[column].ty));
        let mut keys: Vec<_> = datums.map(|d| Some(self.prefix(index, d?))).collect::<Option<_>>()?;
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    fn prefix(&self, index: Option<usize>, value: Datum) -> Vec<u8> {
        let mut key = Vec::new();
        match index {
            None => self.table.key_of_values(&[value], &mut key),
            Some(i) => self
                .table
                .index_key_of_values(&self.table.indexes[i], &[value], &mut key),
        }
        key
    }

    /// Cost of looking keys up, guessed from a few of them.
    fn look_up_cost(&self, reader: &Reader, index: Option<usize>, keys: &[Vec<u8>]) -> f64 {
        let sample = keys.iter().step_by(keys.len().div_ceil(4).max(1));
        let shares: Vec<_> = sample
            .map(|key| reader.share(&self.table, index, &KeyRange::prefix(key)).unwrap_or(1.0))
            .collect();
        let share = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
        let row = row_cost(&self.table, index, &self.columns_read());
        let (keys, rows) = (keys.len() as f64, self.table_rows as f64);
        // Keys that lie close share a leaf.
        let leaves = rows / if index.is_some() { LEAF_ENTRIES } else { LEAF_ROWS };
        LEAF * keys.min(leaves) + keys * (KEY + row * share * rows)
    }

    /// The part of a range that the filters leave, where they limit the first column of its key.
    pub(super) fn narrowed(&self, mut range: KeyRange) -> KeyRange {
        let columns = match self.access.index {
            None => self.table.primary_key.as_ref().map(|key| &key.columns),
            Some(index) => Some(&self.table.indexes[index].columns),
        };
        let Some(column) = columns.and_then(|columns| columns.first()) else {
            return range;
        };
        for filter in &self.filters {
            let Some(at) = filter.position(*column) else { continue };
            let limits = limits(&filter.expr, at);
            let key = |value: &Option<_>| {
                let datum = datum_of(value.as_ref()?, self.table.columns[*column].ty)?;
                Some(self.prefix(self.access.index, datum))
            };
            if let Some(least) = key(&limits.least)
                && is_above(&range.lower, &least)
            {
                range.lower = Bound::Included(least);
            }
            let end = key(&limits.greatest).map(|greatest| KeyRange::prefix(&greatest).upper);
            if let Some(Bound::Excluded(end)) = end
                && is_below(&range.upper, &end)
            {
                range.upper = Bound::Excluded(end);
            }
        }
        range
    }
}

/// Whether a range from `key` on begins behind one that begins at `lower`.
fn is_above(lower: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(lower) | Bound::Excluded(lower) => key > lower.as_slice(),
    }
}

/// Whether a range up to `key` ends before one that ends at `upper`.
fn is_below(upper: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(upper) | Bound::Excluded(upper) => key < upper.as_slice(),
    }
}
