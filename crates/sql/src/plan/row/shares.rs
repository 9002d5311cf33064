//! The share of a table's rows that conditions leave: by its statistics, and by their form where nothing is known.

use crate::expr::{Comparison, Expr, like_matches, literal_prefix};
use crate::plan::access::{self, Limit, tree_columns};
use crate::plan::statistics::{
    column_of, compare_fraction, equal_fraction, join_fraction, pattern_fraction, range_fraction, rows_of_prefix,
};
use cenote_engine::{ColumnStatistics, Datum, DatumRef, Statistics, Table};

/// The share of rows in a range with one limit, and with two: PostgreSQL's defaults.
const OPEN_RANGE: f64 = 0.33;
const RANGE: f64 = 0.005;
/// The share of rows in which a column is NULL.
const NULLS: f64 = 0.05;
/// Elements of an array that only a run gives.
pub(super) const ARRAY_ITEMS: f64 = 10.0;

/// What is known of a table for one statement.
#[derive(Clone, Copy)]
pub(super) struct Shares<'a> {
    pub table: &'a Table,
    pub statistics: Option<&'a Statistics>,
    /// Rows of the table now.
    pub rows: f64,
}

/// A range of a column that conditions describe together.
struct Range<'a> {
    column: usize,
    low: Option<(&'a Datum, bool)>,
    high: Option<(&'a Datum, bool)>,
}

impl<'a> Shares<'a> {
    /// The share of rows for which all these conditions hold. Limits of one column are one range.
    pub(super) fn of_all(&self, conditions: &[Expr]) -> f64 {
        let mut ranges: Vec<Range<'_>> = Vec::new();
        let mut share = 1.0;
        for condition in conditions {
            match self.limit_of(condition) {
                Some((column, limit, is_low)) => {
                    let is_open = |r: &&mut Range<'_>| {
                        r.column == column && if is_low { r.low.is_none() } else { r.high.is_none() }
                    };
                    let (low, high) = if is_low {
                        (Some(limit), None)
                    } else {
                        (None, Some(limit))
                    };
                    match ranges.iter_mut().find(is_open) {
                        Some(range) if is_low => range.low = low,
                        Some(range) => range.high = high,
                        None => ranges.push(Range { column, low, high }),
                    }
                }
                None => share *= self.of(condition),
            }
        }
        let of_range = |r: &Range<'_>| self.known(r.column).map_or(1.0, |c| range_fraction(c, r.low, r.high));
        share * ranges.iter().map(of_range).product::<f64>()
    }

    /// The share of rows for which a condition holds.
    pub(super) fn of(&self, condition: &Expr) -> f64 {
        self.of_known(condition)
            .map_or_else(|| selectivity(condition), |share| share.clamp(0.0, 1.0))
    }

    fn of_known(&self, condition: &Expr) -> Option<f64> {
        self.statistics?;
        Some(match condition {
            Expr::Compare { op, left, right, .. } => self.comparison(*op, left, right)?,
            Expr::CompareRows { op, pairs } => {
                let (left, right, _) = pairs.first()?;
                self.comparison(*op, left, right)?
            }
            Expr::IsNull { operand, negated } => {
                let nulls = self.column(operand)?.null_fraction;
                if *negated { 1.0 - nulls } else { nulls }
            }
            Expr::InList {
                operand, list, negated, ..
            } => {
                let column = self.column(operand)?;
                let equal = |item: &Expr| equal_fraction(column, constant(item), self.rows);
                self.or_its_rest(column, list.iter().map(equal).sum(), *negated)
            }
            Expr::AnyOf {
                operand,
                op: Comparison::Eq,
                all: false,
                ..
            } => {
                let column = self.column(operand)?;
                let share = ARRAY_ITEMS * equal_fraction(column, None, self.rows);
                self.or_its_rest(column, share, false)
            }
            Expr::Like {
                text,
                pattern,
                escape,
                ignore_case,
                negated,
            } => {
                let column = self.column(text)?;
                let share = like_share(column, pattern, escape.as_deref(), *ignore_case)?;
                self.or_its_rest(column, share, *negated)
            }
            Expr::IsBool {
                operand,
                wanted,
                negated,
            } => {
                let share = equal_fraction(self.column(operand)?, Some(&Datum::Bool(*wanted)), self.rows);
                if *negated { 1.0 - share } else { share }
            }
            Expr::Column(_) => equal_fraction(self.column(condition)?, Some(&Datum::Bool(true)), self.rows),
            Expr::Not(inner) => 1.0 - self.of(inner),
            Expr::And(list) => self.of_all(list),
            Expr::Or(list) => 1.0 - list.iter().map(|c| 1.0 - self.of(c)).product::<f64>(),
            _ => return None,
        })
    }

    /// A share of rows, or of the others that are not NULL.
    fn or_its_rest(&self, column: &ColumnStatistics, share: f64, negated: bool) -> f64 {
        let some = 1.0 - column.null_fraction;
        let share = share.min(some);
        if negated { some - share } else { share }
    }

    fn comparison(&self, op: Comparison, left: &Expr, right: &Expr) -> Option<f64> {
        match (self.column(left), self.column(right)) {
            (Some(column), None) if !names_a_column(right) => {
                Some(compare_fraction(column, op, constant(right), self.rows))
            }
            (None, Some(column)) if !names_a_column(left) => {
                Some(compare_fraction(column, op.mirrored(), constant(left), self.rows))
            }
            (Some(left), Some(right)) if op == Comparison::Eq => {
                join_fraction(Some((left, self.rows)), Some((right, self.rows)))
            }
            _ => None,
        }
    }

    /// A condition that is a limit of a column whose values are known.
    fn limit_of<'e>(&self, condition: &'e Expr) -> Option<(usize, (&'e Datum, bool), bool)> {
        let Expr::Compare { op, left, right, .. } = condition else {
            return None;
        };
        let (column, op, value) = match (&**left, &**right) {
            (Expr::Column(column), Expr::Const(value)) => (*column, *op, value),
            (Expr::Const(value), Expr::Column(column)) => (*column, op.mirrored(), value),
            _ => return None,
        };
        self.known(usize::from(column))?;
        let inclusive = matches!(op, Comparison::Le | Comparison::Ge);
        match op {
            Comparison::Gt | Comparison::Ge => Some((usize::from(column), (value, inclusive), true)),
            Comparison::Lt | Comparison::Le => Some((usize::from(column), (value, inclusive), false)),
            Comparison::Eq | Comparison::Ne => None,
        }
    }

    fn known(&self, column: usize) -> Option<&'a ColumnStatistics> {
        column_of(self.statistics, self.table, column)
    }

    fn column(&self, expr: &Expr) -> Option<&'a ColumnStatistics> {
        match expr {
            Expr::Column(column) => self.known(usize::from(*column)),
            _ => None,
        }
    }

    /// The share of a prefix's rows that lie between limits of the column behind it.
    pub(super) fn of_limits(&self, column: Option<usize>, lower: Option<&Limit>, upper: Option<&Limit>) -> f64 {
        let known = column.and_then(|column| self.known(column));
        let known = known.and_then(|column| known_limits(column, lower, upper));
        known.unwrap_or_else(|| range_share(lower, upper))
    }

    /// Rows that have one value of the first columns of a tree's key, by statistics.
    pub(super) fn rows_of_prefix(&self, index: Option<usize>, values: &[&Expr]) -> Option<f64> {
        let columns = tree_columns(self.table, index);
        let id = match index {
            Some(at) => self.table.indexes[at].id,
            None => self.table.primary_key.as_ref()?.id,
        };
        let (own, behind) = values.split_at(values.len().min(columns.len()));
        let own: Vec<Option<&Datum>> = own.iter().map(|value| constant(value)).collect();
        let mut rows = rows_of_prefix(self.statistics?, (id, columns), &own, self.rows)?;
        for (at, value) in behind.iter().enumerate() {
            let column = self.known(access::key_column(self.table, index, columns.len() + at))?;
            rows *= equal_fraction(column, constant(value), self.rows);
        }
        Some(rows)
    }
}

fn constant(expr: &Expr) -> Option<&Datum> {
    match expr {
        Expr::Const(value) => Some(value),
        _ => None,
    }
}

fn names_a_column(expr: &Expr) -> bool {
    let mut found = false;
    expr.walk(&mut |e| found |= matches!(e, Expr::Column(_)));
    found
}

/// The share of rows that match a pattern that is known.
fn like_share(column: &ColumnStatistics, pattern: &Expr, escape: Option<&Expr>, ignore_case: bool) -> Option<f64> {
    let pattern = constant(pattern)?.as_ref();
    let escape = match escape {
        Some(escape) => Some(constant(escape)?.as_ref()),
        None => None,
    };
    let DatumRef::Text(text) = pattern else {
        // NULL.
        return Some(0.0);
    };
    let prefix = match ignore_case {
        true => String::new(),
        false => literal_prefix(&pattern, escape.clone()).ok()??,
    };
    let behind: String = text.chars().skip(prefix.chars().count()).collect();
    let matches = |text: &str| {
        let found = like_matches(&DatumRef::Text(text), &pattern, escape.clone(), ignore_case);
        matches!(found, Ok(Some(true)))
    };
    Some(pattern_fraction(column, &prefix, &behind, matches))
}

/// The share between limits, as far as they are known; None: of a limit of a form that says nothing.
fn known_limits(column: &ColumnStatistics, lower: Option<&Limit>, upper: Option<&Limit>) -> Option<f64> {
    let some = 1.0 - column.null_fraction;
    match (lower, upper) {
        (None, None) => return Some(1.0),
        (Some(Limit::Null), _) => return Some(column.null_fraction),
        (None, Some(Limit::Null)) => return Some(some),
        (Some(Limit::Like { pattern, escape }), _) => {
            let prefix = literal_prefix(&constant(pattern)?.as_ref(), constant_escape(escape.as_ref())?);
            let prefix = prefix.ok()??;
            return Some(pattern_fraction(column, &prefix, "%", |text| text.starts_with(&prefix)));
        }
        _ => {}
    }
    let value = |limit: Option<&'_ Limit>| -> Option<Option<(Datum, bool)>> {
        match limit {
            None | Some(Limit::Null) => Some(None),
            Some(Limit::Value(value, inclusive)) => Some(Some((constant(value)?.clone(), *inclusive))),
            // The first column decides most.
            Some(Limit::Row(values, _)) => Some(Some((constant(values.first()?)?.clone(), true))),
            Some(Limit::Like { .. }) => None,
        }
    };
    let range = |low: Option<&(Datum, bool)>, high: Option<&(Datum, bool)>| {
        range_fraction(column, low.map(|l| (&l.0, l.1)), high.map(|l| (&l.0, l.1)))
    };
    match (value(lower), value(upper)) {
        (Some(low), Some(high)) => Some(range(low.as_ref(), high.as_ref())),
        (Some(Some(low)), None) => Some(range(Some(&low), None) * OPEN_RANGE),
        (None, Some(Some(high))) => Some(range(None, Some(&high)) * OPEN_RANGE),
        _ => Some(some * range_share(lower, upper)),
    }
}

/// The escape of a pattern, if it is known whether there is one.
fn constant_escape(escape: Option<&Expr>) -> Option<Option<DatumRef<'_>>> {
    match escape {
        None => Some(None),
        Some(escape) => Some(Some(constant(escape)?.as_ref())),
    }
}

/// The share of a prefix's rows that lie between limits, by their form.
fn range_share(lower: Option<&Limit>, upper: Option<&Limit>) -> f64 {
    match (lower, upper) {
        (None, None) => 1.0,
        (Some(Limit::Null), _) => NULLS,
        (None, Some(Limit::Null)) => 1.0 - NULLS,
        (Some(Limit::Like { .. }), _) | (Some(_), Some(_)) => RANGE,
        _ => OPEN_RANGE,
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
