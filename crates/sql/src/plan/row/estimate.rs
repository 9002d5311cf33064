//! How many rows a path gives, and what reading them costs. Costs are in steps of a scan, some 100 ns each.

use crate::expr::{Comparison, Expr};
use crate::plan::access::{Access, Costs, Items, Limit, Path, conjuncts, key_length, tree_columns};
use cenote_engine::{Table, Tx};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Descending a tree to a key.
pub(super) const DESCENT: f64 = 6.0;
/// A row found by an index: its entry, and the row behind it.
const INDEX_ROW: f64 = 5.0;
/// A row of a scan of the table.
const ROW: f64 = 1.0;
/// The share of rows in a range with one limit, and with two: PostgreSQL's defaults.
const OPEN_RANGE: f64 = 0.33;
const RANGE: f64 = 0.005;
/// The exponent of a table's rows that gives those of one key of an index that is not unique.
const KEY_ROWS: f64 = 0.3;
/// Elements of an array that only a run gives.
const ARRAY_ITEMS: f64 = 10.0;
/// The share of rows in which a column is NULL.
const NULLS: f64 = 0.05;
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
    /// Rows of tables, by their ids: each is counted once.
    counts: RefCell<BTreeMap<u32, f64>>,
}

impl<'a> Estimator<'a> {
    pub(in crate::plan) fn new(tx: &'a Tx) -> Estimator<'a> {
        Estimator {
            tx,
            counts: RefCell::default(),
        }
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
        let (found, cost) = self.path(&access.table, &access.path, total);
        let passing = conjuncts(access.filter.clone())
            .iter()
            .map(selectivity)
            .product::<f64>();
        Estimate {
            rows: found * passing,
            cost,
        }
    }

    /// Rows that a path finds, and steps.
    fn path(&self, table: &Table, path: &Path, total: f64) -> (f64, f64) {
        match path {
            Path::Point(_) => (1.0, DESCENT),
            Path::Range {
                index,
                prefix,
                lower,
                upper,
            } => {
                let share = range_share(lower.as_ref(), upper.as_ref());
                let found = (rows_of_prefix(table, *index, prefix.len(), total) * share).max(1.0);
                (found, DESCENT + found * row_cost(*index))
            }
            Path::List { index, prefix, items } => {
                let keys = match items {
                    Items::Exprs(list) => list.len() as f64,
                    Items::Array { .. } => ARRAY_ITEMS,
                };
                let found = (rows_of_prefix(table, *index, prefix.len() + 1, total) * keys).min(total);
                (found, keys * DESCENT + found * row_cost(*index))
            }
            Path::Union(paths) => {
                let sum = |(rows, cost): (f64, f64), (r, c): (f64, f64)| (rows + r, cost + c + r * HASH);
                let (rows, cost) = paths.iter().map(|p| self.path(table, p, total)).fold((0.0, 0.0), sum);
                (rows.min(total), cost)
            }
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
}

/// The share of a prefix's rows that lie between limits.
fn range_share(lower: Option<&Limit>, upper: Option<&Limit>) -> f64 {
    match (lower, upper) {
        (None, None) => 1.0,
        (Some(Limit::Null), _) => NULLS,
        (None, Some(Limit::Null)) => 1.0 - NULLS,
        (Some(Limit::Like { .. }), _) | (Some(_), Some(_)) => RANGE,
        _ => OPEN_RANGE,
    }
}

fn row_cost(index: Option<usize>) -> f64 {
    if index.is_some() { INDEX_ROW } else { ROW }
}

/// Rows that have one value of the first `fixed` columns of a tree's key. No statistics are kept: it is one for a whole
/// unique key, and else a power of the table's rows that falls with each column.
fn rows_of_prefix(table: &Table, index: Option<usize>, fixed: usize, total: f64) -> f64 {
    let columns = tree_columns(table, index).len();
    let unique = index.is_none_or(|at| table.indexes[at].unique);
    match fixed {
        0 => total,
        all if unique && all >= columns || all >= key_length(table, index) && index.is_some() && all > columns => 1.0,
        some if unique => total.powf(1.0 - some as f64 / columns as f64).max(1.0),
        some => total.powf(KEY_ROWS / some as f64).max(1.0),
    }
}

/// The share of rows for which a condition holds, by its form.
pub(super) fn selectivity(condition: &Expr) -> f64 {
    match condition {
        Expr::Compare { op: Comparison::Eq, .. } => 0.05,
        Expr::Compare { op: Comparison::Ne, .. } => 0.95,
        Expr::Compare { .. } => 0.35,
        Expr::CompareRows { .. } => 0.35,
        Expr::AnyOf { all, .. } => {
            if *all {
                0.5
            } else {
                (0.05 * ARRAY_ITEMS).min(0.5)
            }
        }
        Expr::InList { list, negated, .. } => {
            let share = (0.05 * list.len() as f64).min(0.5);
            if *negated { 1.0 - share } else { share }
        }
        Expr::Like { negated, .. } => {
            if *negated {
                0.9
            } else {
                0.1
            }
        }
        Expr::IsNull { negated, .. } => {
            if *negated {
                0.95
            } else {
                0.05
            }
        }
        Expr::Not(inner) => 1.0 - selectivity(inner),
        Expr::And(list) => list.iter().map(selectivity).product(),
        Expr::Or(list) => 1.0 - list.iter().map(|c| 1.0 - selectivity(c)).product::<f64>(),
        Expr::Const(_) => 1.0,
        _ => 0.5,
    }
}
