//! How many rows a path gives, and what reading them costs. Costs are in steps of a scan, some 100 ns each.

use super::RowPlanner;
use crate::expr::{Comparison, Expr};
use crate::plan::access::{Access, Path, conjuncts};
use cenote_engine::Table;

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

impl RowPlanner<'_> {
    /// The rows of a table, at least one; counted once a statement.
    pub(super) fn table_rows(&self, table: &Table) -> f64 {
        let mut counts = self.row_counts.borrow_mut();
        let count = || (self.planner.tx.engine().row_estimate(table) as f64).max(1.0);
        *counts.entry(table.id).or_insert_with(count)
    }

    /// What the access gives.
    pub(super) fn estimate(&self, access: &Access) -> Estimate {
        let total = self.table_rows(&access.table);
        let (found, each, descents) = match &access.path {
            Path::Point(_) => (1.0, 0.0, 1.0),
            Path::Range {
                index,
                prefix,
                lower,
                upper,
            } => {
                let limits = usize::from(lower.is_some()) + usize::from(upper.is_some());
                let share = [1.0, OPEN_RANGE, RANGE][limits];
                let found = (rows_of_prefix(access, *index, prefix.len(), total) * share).max(1.0);
                (found, row_cost(*index), 1.0)
            }
            Path::List { index, prefix, list } => {
                let each = rows_of_prefix(access, *index, prefix.len() + 1, total);
                let keys = list.len() as f64;
                ((each * keys).min(total), row_cost(*index), keys)
            }
        };
        let passing = conjuncts(access.filter.clone())
            .iter()
            .map(selectivity)
            .product::<f64>();
        Estimate {
            rows: found * passing,
            cost: descents * DESCENT + found * each,
        }
    }
}

fn row_cost(index: Option<usize>) -> f64 {
    if index.is_some() { INDEX_ROW } else { ROW }
}

/// Rows that have one value of the first `fixed` columns of a tree's key. No statistics are kept: it is one for a whole
/// unique key, and else a power of the table's rows that falls with each column.
fn rows_of_prefix(access: &Access, index: Option<usize>, fixed: usize, total: f64) -> f64 {
    let table = &access.table;
    let (columns, unique) = match index {
        Some(at) => (table.indexes[at].columns.len(), table.indexes[at].unique),
        None => (table.primary_key.as_ref().map_or(0, |p| p.columns.len()), true),
    };
    match fixed {
        0 => total,
        all if unique && all >= columns => 1.0,
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
