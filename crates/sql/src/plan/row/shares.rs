//! The share of a table's rows that conditions leave: by its statistics, and by their form where nothing is known.

use crate::expr::{Comparison, Expr, like_matches, literal_prefix};
use crate::plan::access::{self, Limit, tree_columns};
use crate::plan::known::Known;
use crate::plan::statistics::{
    column_of, compare_fraction, equal_fraction, join_fraction, pattern_fraction, range_fraction, rows_of_prefix,
};
use cenote_engine::{ColumnStatistics, Datum, DatumRef, Statistics, Table};
use std::borrow::Cow;

/// The share of rows in a range with one limit, and with two: PostgreSQL's defaults.
const OPEN_RANGE: f64 = 0.33;
const RANGE: f64 = 0.005;
/// The share of rows in which a column is NULL.
const NULLS: f64 = 0.05;
/// Elements of an array that only a run gives.
pub(super) const ARRAY_ITEMS: f64 = 10.0;
/// Elements of an array up to which each is looked at.
pub(super) const ITEMS_ASKED: usize = 100;

/// What is known of a table for one statement.
#[derive(Clone, Copy)]
pub(super) struct Shares<'a> {
    pub table: &'a Table,
    pub statistics: Option<&'a Statistics>,
    /// Rows of the table now.
    pub rows: f64,
    /// Values that may be looked at.
    pub known: &'a Known<'a>,
}

/// A limit of a range: a value, and whether it is in the range.
type KnownLimit<'e> = (Cow<'e, Datum>, bool);

/// A range of a column that conditions describe together.
struct Range<'a> {
    column: usize,
    low: Option<KnownLimit<'a>>,
    high: Option<KnownLimit<'a>>,
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
        let of_range = |r: &Range<'_>| {
            let column = self.column_at(r.column);
            column.map_or(1.0, |c| {
                range_fraction(c, borrowed(r.low.as_ref()), borrowed(r.high.as_ref()))
            })
        };
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
                let share = list.iter().map(|item| self.equal(column, item)).sum();
                self.or_its_rest(column, share, *negated)
            }
            Expr::AnyOf {
                operand,
                op: Comparison::Eq,
                all: false,
                array,
                element,
                ..
            } => {
                let column = self.column(operand)?;
                let average = || equal_fraction(column, None, self.rows);
                let share = match self.known.elements(array, *element) {
                    None => ARRAY_ITEMS * average(),
                    Some(items) if items.len() > ITEMS_ASKED => items.len() as f64 * average(),
                    Some(items) => items.iter().map(|i| equal_fraction(column, Some(i), self.rows)).sum(),
                };
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
                let share = self.like_share(column, pattern, escape.as_deref(), *ignore_case)?;
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
            (Some(column), None) if !names_a_column(right) => Some(self.compared(column, op, right)),
            (None, Some(column)) if !names_a_column(left) => Some(self.compared(column, op.mirrored(), left)),
            (Some(left), Some(right)) if op == Comparison::Eq => {
                join_fraction(Some((left, self.rows)), Some((right, self.rows)))
            }
            _ => None,
        }
    }

    /// The share of rows for which a column compares so with a value.
    fn compared(&self, column: &ColumnStatistics, op: Comparison, value: &Expr) -> f64 {
        match op {
            Comparison::Eq => self.equal(column, value),
            Comparison::Ne => (1.0 - column.null_fraction - self.equal(column, value)).max(0.0),
            _ => compare_fraction(column, op, self.known.value(value).as_deref(), self.rows),
        }
    }

    /// The share of rows in which a column has a value. Without common values all values are alike.
    fn equal(&self, column: &ColumnStatistics, value: &Expr) -> f64 {
        equal_fraction(column, self.looked_at(column, value).as_deref(), self.rows)
    }

    fn looked_at<'e>(&'e self, column: &ColumnStatistics, value: &'e Expr) -> Option<Cow<'e, Datum>> {
        match column.common.is_empty() {
            true => self.known.value_if_known(value),
            false => self.known.value(value),
        }
    }

    /// A condition that is a limit of a column whose values are known.
    fn limit_of<'e>(&'e self, condition: &'e Expr) -> Option<(usize, KnownLimit<'e>, bool)> {
        let Expr::Compare { op, left, right, .. } = condition else {
            return None;
        };
        let (column, op, value) = match (&**left, &**right) {
            (_, Expr::Column(_)) if matches!(**left, Expr::Column(_)) => return None,
            (Expr::Column(column), value) => (*column, *op, value),
            (value, Expr::Column(column)) => (*column, op.mirrored(), value),
            _ => return None,
        };
        if matches!(op, Comparison::Eq | Comparison::Ne) {
            return None;
        }
        self.column_at(usize::from(column))?;
        let value = self.known.value(value)?;
        let inclusive = matches!(op, Comparison::Le | Comparison::Ge);
        match op {
            Comparison::Gt | Comparison::Ge => Some((usize::from(column), (value, inclusive), true)),
            Comparison::Lt | Comparison::Le => Some((usize::from(column), (value, inclusive), false)),
            Comparison::Eq | Comparison::Ne => None,
        }
    }

    fn column_at(&self, column: usize) -> Option<&'a ColumnStatistics> {
        column_of(self.statistics, self.table, column)
    }

    fn column(&self, expr: &Expr) -> Option<&'a ColumnStatistics> {
        match expr {
            Expr::Column(column) => self.column_at(usize::from(*column)),
            _ => None,
        }
    }

    /// The share of a prefix's rows that lie between limits of the column behind it.
    pub(super) fn of_limits(&self, column: Option<usize>, lower: Option<&Limit>, upper: Option<&Limit>) -> f64 {
        let known = column.and_then(|column| self.column_at(column));
        let known = known.and_then(|column| self.known_limits(column, lower, upper));
        known.unwrap_or_else(|| range_share(lower, upper))
    }

    /// Rows that have one value of the first columns of a tree's key, by statistics.
    pub(super) fn rows_of_prefix<'e>(&'e self, index: Option<usize>, values: &[&'e Expr]) -> Option<f64> {
        let columns = tree_columns(self.table, index);
        let id = match index {
            Some(at) => self.table.indexes[at].id,
            None => self.table.primary_key.as_ref()?.id,
        };
        let statistics = self.statistics?;
        let (own, behind) = values.split_at(values.len().min(columns.len()));
        let of_column = |(column, value): (&usize, &&'e Expr)| {
            let known = statistics.column(*column)?;
            self.looked_at(known, value)
        };
        let looked_at: Vec<Option<Cow<'_, Datum>>> = columns.iter().zip(own).map(of_column).collect();
        let own: Vec<Option<&Datum>> = looked_at.iter().map(Option::as_deref).collect();
        let mut rows = rows_of_prefix(statistics, (id, columns), &own, self.rows)?;
        for (at, value) in behind.iter().enumerate() {
            let column = self.column_at(access::key_column(self.table, index, columns.len() + at))?;
            rows *= self.equal(column, value);
        }
        Some(rows)
    }
}

fn borrowed<'l>(limit: Option<&'l KnownLimit<'_>>) -> Option<(&'l Datum, bool)> {
    limit.map(|(value, inclusive)| (&**value, *inclusive))
}

fn names_a_column(expr: &Expr) -> bool {
    let mut found = false;
    expr.walk(&mut |e| found |= matches!(e, Expr::Column(_)));
    found
}

impl Shares<'_> {
    /// The share of rows that match a pattern that is known.
    fn like_share(
        &self,
        column: &ColumnStatistics,
        pattern: &Expr,
        escape: Option<&Expr>,
        ignore_case: bool,
    ) -> Option<f64> {
        let pattern = self.known.value(pattern)?;
        let escape = self.escape(escape)?;
        let (pattern, escape) = (pattern.as_ref().as_ref(), escape.as_deref().map(Datum::as_ref));
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

    /// The escape of a pattern, if it is known whether there is one.
    fn escape<'e>(&'e self, escape: Option<&'e Expr>) -> Option<Option<Cow<'e, Datum>>> {
        match escape {
            None => Some(None),
            Some(escape) => self.known.value(escape).map(Some),
        }
    }

    /// The share between limits, as far as they are known; None: of a limit of a form that says nothing.
    fn known_limits(&self, column: &ColumnStatistics, lower: Option<&Limit>, upper: Option<&Limit>) -> Option<f64> {
        let some = 1.0 - column.null_fraction;
        match (lower, upper) {
            (None, None) => return Some(1.0),
            (Some(Limit::Null), _) => return Some(column.null_fraction),
            (None, Some(Limit::Null)) => return Some(some),
            (Some(Limit::Like { pattern, escape }), _) => {
                return self.share_of_prefix(column, pattern, escape.as_ref());
            }
            _ => {}
        }
        let range = |low: Option<&KnownLimit<'_>>, high: Option<&KnownLimit<'_>>| {
            range_fraction(column, borrowed(low), borrowed(high))
        };
        match (self.limit(lower), self.limit(upper)) {
            (Some(low), Some(high)) => Some(range(low.as_ref(), high.as_ref())),
            (Some(Some(low)), None) => Some(range(Some(&low), None) * OPEN_RANGE),
            (None, Some(Some(high))) => Some(range(None, Some(&high)) * OPEN_RANGE),
            _ => Some(some * range_share(lower, upper)),
        }
    }

    /// The value of a limit: None where it is not known, None inside where there is none.
    fn limit<'e>(&'e self, limit: Option<&'e Limit>) -> Option<Option<KnownLimit<'e>>> {
        match limit {
            None | Some(Limit::Null) => Some(None),
            Some(Limit::Value(value, inclusive)) => Some(Some((self.known.value(value)?, *inclusive))),
            // The first column decides most.
            Some(Limit::Row(values, _)) => Some(Some((self.known.value(values.first()?)?, true))),
            Some(Limit::Like { .. }) => None,
        }
    }

    /// The share of texts that begin as a pattern does.
    fn share_of_prefix(&self, column: &ColumnStatistics, pattern: &Expr, escape: Option<&Expr>) -> Option<f64> {
        let (pattern, escape) = (self.known.value(pattern)?, self.escape(escape)?);
        let prefix = literal_prefix(&pattern.as_ref().as_ref(), escape.as_deref().map(Datum::as_ref));
        match prefix.ok()? {
            Some(prefix) => Some(pattern_fraction(column, &prefix, "%", |text| text.starts_with(&prefix))),
            // A pattern of NULL matches nothing.
            None => Some(0.0),
        }
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
