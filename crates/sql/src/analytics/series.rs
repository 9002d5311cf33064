//! `generate_series` of integers as an array, for arguments that rows give.

use super::function::{Func, integer_at};
use crate::error::{Result, SqlError, code};
use arrow::array::{ArrayRef, Int32Builder, Int64Builder, ListBuilder};
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use std::sync::Arc;

/// Numbers that the series of one batch of rows have together, at most.
const NUMBERS_MAX: i128 = 1 << 26;

/// `generate_series(first, last [, step])`: an array of int4 if all are, else of int8.
pub(crate) fn series() -> Func {
    let returns = |types: &[DataType], _: &[Option<&ScalarValue>]| {
        let narrow = |t: &DataType| matches!(t, DataType::Int16 | DataType::Int32 | DataType::Null);
        let item = match types.iter().all(narrow) {
            true => DataType::Int32,
            false => DataType::Int64,
        };
        Ok(super::types::list(item))
    };
    Func::any("cenote_series", returns, |call| {
        let is_narrow = *call.return_type() == super::types::list(DataType::Int32);
        call.by_columns(|columns| {
            if !matches!(columns.len(), 2 | 3) || !columns.iter().all(is_integer_column) {
                return Err(SqlError::unsupported("generate_series of these types with columns"));
            }
            let rows = (0..columns[0].len()).map(|row| limits(columns, row));
            let rows = rows.collect::<Result<Vec<_>>>()?;
            refuse_many(&rows)?;
            Ok(match is_narrow {
                true => narrow(&rows),
                false => wide(&rows),
            })
        })
    })
}

fn is_integer_column(column: &ArrayRef) -> bool {
    column.data_type().is_integer() || column.data_type().is_null()
}

/// First, last and step of a row's series; None: one of them is NULL.
type Limits = Option<(i64, i64, i64)>;

fn limits(columns: &[ArrayRef], row: usize) -> Result<Limits> {
    let step = match columns.get(2) {
        Some(column) => integer_at(column, row),
        None => Some(1),
    };
    match (integer_at(&columns[0], row), integer_at(&columns[1], row), step) {
        (Some(_), Some(_), Some(0)) => Err(SqlError::new(code::INVALID_ARGUMENT, "step size cannot equal zero")),
        (Some(first), Some(last), Some(step)) => Ok(Some((first, last, step))),
        _ => Ok(None),
    }
}

fn refuse_many(rows: &[Limits]) -> Result<()> {
    let count = |limits: &(i64, i64, i64)| {
        let (first, last, step) = (i128::from(limits.0), i128::from(limits.1), i128::from(limits.2));
        ((last - first) / step + 1).max(0)
    };
    match rows.iter().flatten().map(count).sum::<i128>() > NUMBERS_MAX {
        true => Err(SqlError::new(
            code::OUT_OF_MEMORY,
            "out of memory for the series of a batch of rows",
        )),
        false => Ok(()),
    }
}

fn numbers((first, last, step): (i64, i64, i64)) -> impl Iterator<Item = i64> {
    let next = move |at: &i64| at.checked_add(step);
    let is_within = move |at: &i64| if step > 0 { *at <= last } else { *at >= last };
    std::iter::successors(Some(first), next).take_while(is_within)
}

fn wide(rows: &[Limits]) -> ArrayRef {
    let mut lists = ListBuilder::new(Int64Builder::new());
    for row in rows {
        row.iter()
            .flat_map(|r| numbers(*r))
            .for_each(|n| lists.values().append_value(n));
        lists.append(row.is_some());
    }
    Arc::new(lists.finish())
}

fn narrow(rows: &[Limits]) -> ArrayRef {
    let mut lists = ListBuilder::new(Int32Builder::new());
    for row in rows {
        let within = row
            .iter()
            .flat_map(|r| numbers(*r))
            .map_while(|n| i32::try_from(n).ok());
        within.for_each(|n| lists.values().append_value(n));
        lists.append(row.is_some());
    }
    Arc::new(lists.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_end_where_their_type_does() {
        let of = |first, last, step| numbers((first, last, step)).collect::<Vec<_>>();
        assert_eq!(of(1, 3, 1), [1, 2, 3]);
        assert_eq!(of(3, 0, -2), [3, 1]);
        assert!(of(3, 1, 1).is_empty());
        assert_eq!(of(i64::MAX - 1, i64::MAX, 2), [i64::MAX - 1]);
        assert!(refuse_many(&[Some((0, i64::MAX, 1))]).is_err());
    }
}
