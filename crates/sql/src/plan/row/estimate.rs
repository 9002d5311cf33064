//! How many rows a path gives, and what reading them costs. Costs are in steps of a scan, some 100 ns each.

use super::shares::{ARRAY_ITEMS, ITEMS_ASKED, Shares};
use crate::expr::Expr;
use crate::plan::access::{Access, Costs, Items, Limit, Path, conjuncts, key_column, key_length, tree_columns};
use crate::plan::known::Known;
use cenote_engine::{Statistics, Table, Tx};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use super::shares::selectivity;

/// Descending a tree to a key.
pub(super) const DESCENT: f64 = 6.0;
/// A row found by an index: its entry, and the row behind it.
const INDEX_ROW: f64 = 5.0;
/// A row made of an index's entry alone; rows that have changed of late are visited all the same.
const ENTRY: f64 = 1.2;
/// A row of a scan of the table.
const ROW: f64 = 1.0;
/// The exponent of a table's rows that gives those of one key of an index that is not unique.
const KEY_ROWS: f64 = 0.3;
/// Paths are chosen as if a table had so many rows at least: a plan is kept while a table grows, and where it has few
/// rows any path will do.
const GROWING: f64 = 10_000.0;
/// A comparison of a sort.
const SORT: f64 = 0.5;
/// Looking a row up in a table of hashes, or putting it there.
pub(super) const HASH: f64 = 2.0;

/// What an access gives for one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate {
    /// Rows that pass all conditions.
    pub rows: f64,
    /// Steps.
    pub cost: f64,
}

/// Estimates for one statement.
pub(in crate::plan) struct Estimator<'a> {
    tx: &'a Tx,
    known: &'a Known<'a>,
    /// Rows of tables, by their ids: each is counted once.
    counts: RefCell<BTreeMap<u32, f64>>,
    /// Their statistics.
    statistics: RefCell<BTreeMap<u32, Option<Arc<Statistics>>>>,
}

impl<'a> Estimator<'a> {
    pub(in crate::plan) fn new(tx: &'a Tx, known: &'a Known<'a>) -> Estimator<'a> {
        Estimator {
            tx,
            known,
            counts: RefCell::default(),
            statistics: RefCell::default(),
        }
    }

    /// What is known of a table's contents.
    pub(super) fn statistics(&self, table: &Table) -> Option<Arc<Statistics>> {
        let mut statistics = self.statistics.borrow_mut();
        let known = statistics.entry(table.id).or_insert_with(|| self.tx.statistics(table));
        known.clone()
    }

    /// The rows of a table, at least one.
    pub(super) fn table_rows(&self, table: &Table) -> f64 {
        let mut counts = self.counts.borrow_mut();
        let count = || (self.tx.engine().row_estimate(table) as f64).max(1.0);
        *counts.entry(table.id).or_insert_with(count)
    }

    /// The rows of the tables that were counted, by their ids.
    pub(super) fn into_counts(self) -> BTreeMap<u32, f64> {
        self.counts.into_inner()
    }

    /// What the access gives.
    pub(super) fn estimate(&self, access: &Access) -> Estimate {
        self.estimate_of(access, self.table_rows(&access.table))
    }

    fn estimate_of(&self, access: &Access, total: f64) -> Estimate {
        let statistics = self.statistics(&access.table);
        let shares = Shares {
            table: &access.table,
            statistics: statistics.as_deref(),
            rows: total,
            known: self.known,
        };
        let (found, cost) = path(&shares, &access.path, access.index_only);
        let rows = match asks_again(&access.path) && statistics.is_some() {
            // The keys and the filter answer the same condition.
            true => found.min(total * shares.of_all(&conjuncts(access.condition.clone()))),
            false => found * shares.of_all(&conjuncts(access.filter.clone())),
        };
        Estimate { rows, cost }
    }
}

/// Whether a condition by which the path looks is asked again of the rows that it finds.
fn asks_again(path: &Path) -> bool {
    let again = |limit: &Option<Limit>| matches!(limit, Some(Limit::Like { .. } | Limit::Row(..)));
    matches!(path, Path::Range { lower, upper, .. } if again(lower) || again(upper))
}

/// Rows that a path finds, and steps.
fn path(shares: &Shares<'_>, of: &Path, index_only: bool) -> (f64, f64) {
    let (table, total) = (shares.table, shares.rows);
    match of {
        Path::Point(_) => (1.0, DESCENT),
        Path::Range {
            index,
            prefix,
            lower,
            upper,
        } => {
            let values: Vec<&Expr> = prefix.iter().collect();
            let behind = (prefix.len() < key_length(table, *index)).then(|| key_column(table, *index, prefix.len()));
            let share = shares.of_limits(behind, lower.as_ref(), upper.as_ref());
            let found = (rows_of_prefix(shares, *index, &values) * share).max(1.0);
            (found, DESCENT + found * row_cost(*index, index_only))
        }
        Path::List { index, prefix, items } => {
            let of_key = |item| {
                let values: Vec<&Expr> = prefix.iter().chain([item]).collect();
                rows_of_prefix(shares, *index, &values)
            };
            let (keys, found): (f64, f64) = match items {
                Items::Exprs(list) => (list.len() as f64, list.iter().map(of_key).sum()),
                Items::Array { array, element } => match shares.known.elements(array, *element) {
                    None => (ARRAY_ITEMS, of_key(array) * ARRAY_ITEMS),
                    Some(items) => {
                        let count = items.len() as f64;
                        let asked: Vec<Expr> = items.into_iter().take(ITEMS_ASKED).map(Expr::Const).collect();
                        let found: f64 = asked.iter().map(of_key).sum();
                        (count, found * count / (asked.len() as f64).max(1.0))
                    }
                },
            };
            let found = found.min(total);
            (found, keys * DESCENT + found * row_cost(*index, index_only))
        }
        Path::Union(paths) => {
            let sum = |(rows, cost): (f64, f64), (r, c): (f64, f64)| (rows + r, cost + c + r * HASH);
            let (rows, cost) = paths.iter().map(|p| path(shares, p, false)).fold((0.0, 0.0), sum);
            (rows.min(total), cost)
        }
    }
}

impl Costs for Estimator<'_> {
    fn of(&self, access: &Access) -> (f64, f64) {
        let total = self.table_rows(&access.table).max(GROWING);
        let estimate = self.estimate_of(access, total);
        (estimate.cost, estimate.rows)
    }

    fn sort(&self, rows: f64) -> f64 {
        SORT * rows * rows.max(2.0).log2()
    }

    fn group(&self, access: &Access, columns: usize) -> (f64, f64) {
        let Path::Range { index, prefix, .. } = &access.path else {
            return (1.0, DESCENT);
        };
        let total = self.table_rows(&access.table).max(GROWING);
        let statistics = self.statistics(&access.table);
        let shares = Shares {
            table: &access.table,
            statistics: statistics.as_deref(),
            rows: total,
            known: self.known,
        };
        let column = |at| Expr::Column(key_column(&access.table, *index, at) as u16);
        let any: Vec<Expr> = (prefix.len()..columns).map(column).collect();
        let values: Vec<&Expr> = prefix.iter().chain(&any).collect();
        let (found, _) = path(&shares, &access.path, access.index_only);
        let passing = self.estimate_of(access, total).rows / found.max(1.0);
        let group = rows_of_prefix(&shares, *index, &values).min(found) * passing;
        (group.max(1.0), 2.0 * DESCENT)
    }
}

fn row_cost(index: Option<usize>, index_only: bool) -> f64 {
    match index {
        None => ROW,
        Some(_) if index_only => ENTRY,
        Some(_) => INDEX_ROW,
    }
}

/// Rows that have these values of the first columns of a tree's key: one for a whole unique key, else by statistics.
/// Without any it is a power of the table's rows that falls with each column.
fn rows_of_prefix(shares: &Shares<'_>, index: Option<usize>, values: &[&Expr]) -> f64 {
    let (table, total, fixed) = (shares.table, shares.rows, values.len());
    let columns = tree_columns(table, index).len();
    let unique = index.is_none_or(|at| table.indexes[at].unique);
    let is_whole =
        unique && fixed >= columns || fixed >= key_length(table, index) && index.is_some() && fixed > columns;
    match fixed {
        0 => total,
        _ if is_whole => 1.0,
        some => shares
            .rows_of_prefix(index, values)
            .unwrap_or_else(|| match unique {
                true => total.powf(1.0 - some as f64 / columns as f64),
                false => total.powf(KEY_ROWS / some as f64),
            })
            .max(1.0),
    }
}
