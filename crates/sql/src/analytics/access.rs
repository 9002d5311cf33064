//! How a scan reaches its rows: over the primary key or an index, narrowed to a key range where conditions on its first
//! columns allow it.

use super::parameters::{is_of_parameters, type_of, value_of};
use super::types::{EPOCH_DAYS, EPOCH_MICROS, arrow_type};
use cenote_engine::catalog::Table;
use cenote_engine::types::{ColumnType, Datum};
use cenote_engine::{KeyRange, Reader};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// `column op value`, with a value of the column's type.
#[derive(Clone)]
pub(crate) struct Condition {
    column: usize,
    op: Operator,
    value: Datum,
}

impl Condition {
    /// Reads a condition on a column that a key or index has; None: it is of another kind.
    pub fn read(filter: &Expr, table: &Table) -> Option<Condition> {
        let Expr::BinaryExpr(BinaryExpr { left, op, right }) = filter else {
            return None;
        };
        let (side, op, literal) = match (&**left, &**right) {
            (side, Expr::Literal(literal, _)) => (side, *op, literal.clone()),
            (Expr::Literal(literal, _), side) => (side, op.swap()?, literal.clone()),
            _ => return None,
        };
        let (column, op, literal) = match side {
            Expr::Column(column) => (column, op, literal),
            Expr::ScalarFunction(cast) if cast.name() == CAST_TO_TIMESTAMP => {
                let [Expr::Column(column)] = cast.args.as_slice() else {
                    return None;
                };
                let (op, day) = on_days(op, &literal)?;
                (column, op, day)
            }
            _ => return None,
        };
        let column = key_column(table, &column.name).filter(|_| is_comparison(op))?;
        let value = datum_of(&literal, table.columns[column].ty)?;
        Some(Condition { column, op, value })
    }
}

/// `column op value`, with a value that parameters give.
#[derive(Clone)]
pub(crate) struct OpenCondition {
    column: usize,
    op: Operator,
    value: Arc<dyn PhysicalExpr>,
    ty: ColumnType,
}

impl OpenCondition {
    /// Reads a condition on a column that a key or index has; None: it is of another kind.
    pub fn read(filter: &Expr, table: &Table) -> Option<OpenCondition> {
        let (column, op, value) = Self::parts(filter, table)?;
        let (properties, context) = (ExecutionProps::new(), PhysicalPlanningContext::default());
        Some(OpenCondition {
            column,
            op,
            value: create_physical_expr(value, &DFSchema::empty(), &properties, &context).ok()?,
            ty: table.columns[column].ty,
        })
    }

    /// Whether a condition is one that [`OpenCondition::read`] reads once the plan is final.
    pub fn is_one(filter: &Expr, table: &Table) -> bool {
        Self::parts(filter, table).is_some()
    }

    fn parts<'e>(filter: &'e Expr, table: &Table) -> Option<(usize, Operator, &'e Expr)> {
        let Expr::BinaryExpr(BinaryExpr { left, op, right }) = filter else {
            return None;
        };
        let (column, op, value) = match (&**left, &**right) {
            (Expr::Column(column), value) => (column, *op, value),
            (value, Expr::Column(column)) => (column, op.swap()?, value),
            _ => return None,
        };
        let column = key_column(table, &column.name).filter(|_| is_comparison(op) && is_of_parameters(value))?;
        (type_of(value)? == arrow_type(table.columns[column].ty)).then_some((column, op, value))
    }

    /// The condition in this run; None: it says nothing about keys there.
    pub fn settled(&self) -> Option<Condition> {
        let value = datum_of(&value_of(&self.value).ok()?, self.ty)?;
        let (column, op) = (self.column, self.op);
        Some(Condition { column, op, value })
    }
}

/// A column that a key or index of the table has.
fn key_column(table: &Table, name: &str) -> Option<usize> {
    let column = table.column_named(name)?;
    let leads = table.primary_key.as_ref().is_some_and(|k| k.columns.contains(&column))
        || table.indexes.iter().any(|i| i.columns.contains(&column));
    leads.then_some(column)
}

fn is_comparison(op: Operator) -> bool {
    matches!(
        op,
        Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq
    )
}

/// The function that a cast to timestamp is.
pub(crate) const CAST_TO_TIMESTAMP: &str = "cenote_timestamp";
const DAY_MICROS: i64 = 86_400_000_000;

/// What a comparison of a date, taken as its midnight, with a timestamp says about the date itself: `date + interval`
/// is a timestamp, and a function of the column would hide it from keys.
pub(crate) fn on_days(op: Operator, timestamp: &ScalarValue) -> Option<(Operator, ScalarValue)> {
    let ScalarValue::TimestampMicrosecond(Some(micros), None) = timestamp else {
        return None;
    };
    let (day, exact) = (micros.div_euclid(DAY_MICROS), micros.rem_euclid(DAY_MICROS) == 0);
    let op = match op {
        Operator::Lt if exact => Operator::Lt,
        Operator::Lt | Operator::LtEq => Operator::LtEq,
        Operator::GtEq if exact => Operator::GtEq,
        Operator::Gt | Operator::GtEq => Operator::Gt,
        Operator::Eq if exact => Operator::Eq,
        _ => return None,
    };
    let infinite = matches!(*micros, i64::MIN | i64::MAX);
    let day = i32::try_from(day).ok().filter(|_| !infinite)?;
    Some((op, ScalarValue::Date32(Some(day))))
}

/// A literal as a key's value; None where its type is not the column's.
pub(crate) fn datum_of(literal: &ScalarValue, column: ColumnType) -> Option<Datum> {
    Some(match (literal, column) {
        (ScalarValue::Boolean(Some(v)), ColumnType::Bool) => Datum::Bool(*v),
        (ScalarValue::Int16(Some(v)), ColumnType::Int2) => Datum::Int2(*v),
        (ScalarValue::Int32(Some(v)), ColumnType::Int4) => Datum::Int4(*v),
        (ScalarValue::Int64(Some(v)), ColumnType::Int8) => Datum::Int8(*v),
        (ScalarValue::Utf8(Some(v)), ColumnType::Text | ColumnType::Varchar(_)) => Datum::Text(v.clone()),
        (ScalarValue::Binary(Some(v)), ColumnType::Bytes) => Datum::Bytes(v.clone()),
        (ScalarValue::Date32(Some(v)), ColumnType::Date) => Datum::Date(v.checked_sub(EPOCH_DAYS)?),
        (ScalarValue::TimestampMicrosecond(Some(v), None), ColumnType::Timestamp) => {
            Datum::Timestamp(v.checked_sub(EPOCH_MICROS)?)
        }
        (ScalarValue::TimestampMicrosecond(Some(v), Some(_)), ColumnType::TimestampTz) => {
            Datum::TimestampTz(v.checked_sub(EPOCH_MICROS)?)
        }
        _ => return None,
    })
}

/// Whether the entries of an index give all these columns.
pub(crate) fn is_covered(table: &Table, index: Option<usize>, columns: &[usize]) -> bool {
    index.is_some_and(|index| {
        let given = table.columns_of_entries(index);
        columns.iter().all(|column| given.contains(column))
    })
}

/// Cost of a row that an index leads to (None: the primary key) and of which these columns are read.
pub(crate) fn row_cost(table: &Table, index: Option<usize>, columns: &[usize]) -> f64 {
    match index {
        None => 1.0,
        Some(_) if is_covered(table, index, columns) => OF_ENTRY,
        Some(_) => BY_INDEX,
    }
}

/// How a scan reaches its rows.
#[derive(Clone)]
pub(crate) struct ScanAccess {
    /// Position of the index; None: the primary key.
    pub index: Option<usize>,
    pub range: KeyRange,
    /// Leading columns that the range uses; equalities count double.
    pub use_of_key: usize,
    /// About how many rows the range holds.
    pub rows: usize,
    /// What one of them costs.
    row: f64,
}

/// Cost of a row that an index leads to, where a row that is met in the primary key's order costs 1.
const BY_INDEX: f64 = 16.0;
/// Cost of one that is made of the index's entry.
const OF_ENTRY: f64 = 2.0;

/// Rows by which reading a whole table counts as dearer than it is: a small one may have grown when the plan runs.
const START: f64 = 100.0;

impl ScanAccess {
    /// The way that costs least. Ranges are looked up in their trees, so an index is not taken for a range that holds
    /// most of the table.
    pub fn choose(
        reader: &Reader,
        table: &Table,
        (rows, columns): (usize, &[usize]),
        conditions: &[Condition],
    ) -> ScanAccess {
        let primary = table
            .primary_key
            .as_ref()
            .map(|key| Self::by(table, None, &key.columns, conditions));
        let indexes = table
            .indexes
            .iter()
            .enumerate()
            .map(|(i, index)| Self::by(table, Some(i), &index.columns, conditions));
        let whole = ScanAccess {
            index: None,
            range: KeyRange::all(),
            use_of_key: 0,
            rows: rows.max(1),
            row: 1.0,
        };
        let narrowed = primary
            .into_iter()
            .chain(indexes)
            .filter(|access| access.use_of_key > 0);
        narrowed.fold(whole, |best, mut next| {
            // A tree that cannot be read now says so when it is scanned.
            let share = reader.share(table, next.index, &next.range).unwrap_or(1.0);
            next.rows = ((rows as f64 * share).ceil() as usize).max(1);
            next.row = row_cost(table, next.index, columns);
            let start = if best.use_of_key == 0 { START } else { 0.0 };
            match next.cost().total_cmp(&(best.cost() + start)) {
                Ordering::Less => next,
                Ordering::Equal if next.use_of_key > best.use_of_key => next,
                _ => best,
            }
        })
    }

    /// What reading costs, in rows met in the primary key's order.
    pub fn cost(&self) -> f64 {
        self.rows as f64 * self.row
    }

    fn by(table: &Table, index: Option<usize>, columns: &[usize], conditions: &[Condition]) -> ScanAccess {
        let on =
            |column: usize, ops: &[Operator]| conditions.iter().find(|c| c.column == column && ops.contains(&c.op));
        let mut equal = Vec::new();
        while let Some(condition) = columns.get(equal.len()).and_then(|c| on(*c, &[Operator::Eq])) {
            equal.push(condition.value.clone());
        }
        let encode = |last: Option<&Condition>| {
            let mut values = equal.clone();
            values.extend(last.map(|c| c.value.clone()));
            let mut key = Vec::new();
            match index {
                None => table.key_of_values(&values, &mut key),
                Some(i) => table.index_key_of_values(&table.indexes[i], &values, &mut key),
            }
            key
        };
        let next = columns.get(equal.len());
        let lower = next.and_then(|c| on(*c, &[Operator::Gt, Operator::GtEq]));
        let upper = next.and_then(|c| on(*c, &[Operator::Lt, Operator::LtEq]));
        let (prefix, low, high) = (encode(None), encode(lower), encode(upper));
        let open = if equal.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Included(prefix.as_slice())
        };
        let low = match lower {
            Some(c) if c.op == Operator::Gt => Bound::Excluded(low.as_slice()),
            Some(_) => Bound::Included(low.as_slice()),
            None => open,
        };
        let high = match upper {
            Some(c) if c.op == Operator::Lt => Bound::Excluded(high.as_slice()),
            Some(_) => Bound::Included(high.as_slice()),
            None => open,
        };
        let use_of_key = 2 * equal.len() + usize::from(lower.is_some()) + usize::from(upper.is_some());
        ScanAccess {
            index,
            range: KeyRange::between(low, high),
            use_of_key,
            rows: 0,
            row: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_compare_as_their_midnights() {
        let operators = [Operator::Lt, Operator::LtEq, Operator::Gt, Operator::GtEq, Operator::Eq];
        let holds = |op: Operator, a: i64, b: i64| match op {
            Operator::Lt => a < b,
            Operator::LtEq => a <= b,
            Operator::Gt => a > b,
            Operator::GtEq => a >= b,
            _ => a == b,
        };
        for micros in [
            -DAY_MICROS,
            -DAY_MICROS - 1,
            -1,
            0,
            1,
            5 * DAY_MICROS,
            5 * DAY_MICROS + 7,
        ] {
            for op in operators {
                let timestamp = ScalarValue::TimestampMicrosecond(Some(micros), None);
                let Some((as_days, ScalarValue::Date32(Some(day)))) = on_days(op, &timestamp) else {
                    assert!(op == Operator::Eq && micros % DAY_MICROS != 0, "{op} {micros}");
                    continue;
                };
                for date in -4..9i64 {
                    let (before, after) = (holds(op, date * DAY_MICROS, micros), holds(as_days, date, day.into()));
                    assert_eq!(before, after, "day {date} {op} {micros} is not {as_days} {day}");
                }
            }
        }
        let infinity = ScalarValue::TimestampMicrosecond(Some(i64::MAX), None);
        assert!(on_days(Operator::Lt, &infinity).is_none());
    }
}
