//! Casts that PostgreSQL defines otherwise than Arrow: floats and numerics round to integers, text is PostgreSQL's
//! text, `varchar(n)` cuts and `char(n)` pads.

use super::arithmetic::as_decimal;
use super::error::outward;
use super::function::{Func, integer_at, text_at};
use super::numeric::{to_i128, to_i256};
use super::types::{BPCHAR, NUMERIC_ANY, VARCHAR, decimal, numeric_any};
use crate::error::{Result, SqlError, code};
use arrow::array::*;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::*;
use cenote_engine::types::Numeric;
use datafusion::common::ScalarValue;
use std::sync::Arc;

/// Arrow's cast, with errors instead of NULLs.
pub(crate) fn strict(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(array, to, &options).map_err(|e| outward(e.into()))
}

fn name_of(to: &DataType) -> &'static str {
    match to {
        DataType::Int16 => "smallint",
        DataType::Int32 => "integer",
        _ => "bigint",
    }
}

/// `CAST(x AS smallint | integer | bigint)`.
pub(crate) fn to_integer(name: &str, to: DataType) -> Func {
    let returns = to.clone();
    Func::of(name, returns, move |call| {
        call.by_columns(|columns| integer_column(&columns[0], &to))
    })
}

fn integer_column(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let out_of_range = |_: SqlError| SqlError::new(code::OUT_OF_RANGE, format!("{} out of range", name_of(to)));
    match column.data_type() {
        DataType::Float32 | DataType::Float64 => {
            let doubles = strict(column, &DataType::Float64)?;
            let rounded: Float64Array = doubles.as_primitive::<Float64Type>().unary(f64::round_ties_even);
            if rounded.iter().flatten().any(|v| !v.is_finite()) {
                return Err(out_of_range(SqlError::internal("")));
            }
            strict(&(Arc::new(rounded) as ArrayRef), to).map_err(out_of_range)
        }
        DataType::Decimal128(p, _) => {
            strict(&strict(column, &DataType::Decimal128((*p).max(1), 0))?, to).map_err(out_of_range)
        }
        DataType::Decimal256(..) => strict(&strict(column, &DataType::Decimal256(76, 0))?, to).map_err(out_of_range),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => integers_from_text(column, to),
        DataType::Boolean => strict(column, to),
        _ => strict(column, to).map_err(out_of_range),
    }
}

fn integers_from_text(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let parse = |row| match text_at(column, row)? {
        None => Ok(None),
        Some(text) => text
            .trim()
            .parse::<i64>()
            .map(Some)
            .map_err(|_| integer_error(&text, to)),
    };
    let values = (0..column.len()).map(parse).collect::<Result<Int64Array>>()?;
    let values: ArrayRef = Arc::new(values);
    strict(&values, to).map_err(|_| {
        SqlError::new(
            code::OUT_OF_RANGE,
            format!("value is out of range for type {}", name_of(to)),
        )
    })
}

fn integer_error(text: &str, to: &DataType) -> SqlError {
    let digits = text.trim().trim_start_matches(['-', '+']);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return SqlError::new(
            code::OUT_OF_RANGE,
            format!("value \"{text}\" is out of range for type {}", name_of(to)),
        );
    }
    SqlError::new(
        code::INVALID_TEXT,
        format!("invalid input syntax for type {}: \"{text}\"", name_of(to)),
    )
}

/// `CAST(x AS numeric)`: all digits stay.
pub(crate) fn to_numeric() -> Func {
    let returns = |types: &[DataType], constants: &[Option<&ScalarValue>]| {
        Ok(match &types[0] {
            DataType::Utf8 => literal_type(constants).unwrap_or_else(numeric_any),
            DataType::Float32 | DataType::Float64 | DataType::Null => numeric_any(),
            other => as_decimal(other),
        })
    };
    Func::any("cenote_numeric", returns, |call| {
        let to = call.return_type().clone();
        call.by_columns(|columns| match columns[0].data_type() {
            DataType::Float32 | DataType::Float64 | DataType::Utf8 => numerics_from_text(&columns[0], &to),
            _ => strict(&columns[0], &to),
        })
    })
}

/// A numeric with room for all digits; other values as they are.
pub(crate) fn unscaled() -> Func {
    let returns = |types: &[DataType], _: &[Option<&ScalarValue>]| {
        Ok(match &types[0] {
            DataType::Decimal128(..) | DataType::Decimal256(..) => numeric_any(),
            other => other.clone(),
        })
    };
    Func::any("cenote_unscaled", returns, |call| {
        let to = call.return_type().clone();
        call.by_columns(|columns| strict(&columns[0], &to))
    })
}

/// The type of a numeric that is written out: its scale is as written.
fn literal_type(constants: &[Option<&ScalarValue>]) -> Option<DataType> {
    let Some(ScalarValue::Utf8(Some(text))) = constants.first().copied().flatten() else {
        return None;
    };
    let value: Numeric = text.trim().parse().ok()?;
    let scale = i16::try_from(value.dscale()).ok().filter(|scale| *scale <= 20)?;
    let digits = (i32::from(value.weight()) + 1).max(0) * 4 + i32::from(scale);
    (digits <= 38).then(|| decimal(38, scale))
}

/// By way of text: a float's shortest digits are its numeric value in PostgreSQL too.
fn numerics_from_text(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let parse = |row| {
        let Some(text) = text_at(column, row)? else {
            return Ok(None);
        };
        let value: Numeric = text.trim().parse().map_err(|_| {
            SqlError::new(
                code::INVALID_TEXT,
                format!("invalid input syntax for type numeric: \"{text}\""),
            )
        })?;
        Ok(Some(value))
    };
    let values = (0..column.len()).map(parse).collect::<Result<Vec<_>>>()?;
    decimals(&values, to)
}

fn decimals(values: &[Option<Numeric>], to: &DataType) -> Result<ArrayRef> {
    let values = values.iter().map(Option::as_ref);
    if let DataType::Decimal128(_, scale) = to {
        let narrow = values.map(|v| v.map(|v| to_i128(v, *scale)).transpose());
        let narrow = narrow.collect::<Result<Vec<_>>>()?;
        return Ok(Arc::new(Decimal128Array::from(narrow).with_data_type(to.clone())));
    }
    let wide = values.map(|v| v.map(|v| to_i256(v, NUMERIC_ANY.1)).transpose());
    let wide = wide.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Decimal256Array::from(wide).with_data_type(to.clone())))
}

/// `CAST(x AS text)`.
pub(crate) fn to_text(name: &str) -> Func {
    Func::of(name, DataType::Utf8, |call| match call.arg(0).data_type() {
        DataType::Utf8 => Ok(call.arg(0).clone()),
        _ => call.by_rows_to_text(|columns, row| plain_text(&columns[0], row)),
    })
}

/// Text of a value as a cast gives it: as its output, but booleans in full.
fn plain_text(column: &ArrayRef, row: usize) -> Result<Option<String>> {
    match column.data_type() {
        DataType::Boolean if !column.is_null(row) => Ok(Some(column.as_boolean().value(row).to_string())),
        _ => text_at(column, row),
    }
}

/// `CAST(x AS varchar)`, `CAST(x AS varchar(n))`.
pub(crate) fn to_varchar() -> Func {
    let text = Func::of("cenote_varchar", DataType::Utf8, |call| call.by_rows_to_text(limited));
    text.marked(|constants| (VARCHAR, modifier(constants)))
}

/// `CAST(x AS char(n))`, without trailing blanks.
pub(crate) fn to_bpchar() -> Func {
    let text = Func::of("cenote_bpchar", DataType::Utf8, |call| {
        call.by_rows_to_text(|columns, row| Ok(limited(columns, row)?.map(|text| text.trim_end_matches(' ').into())))
    });
    text.marked(|constants| (BPCHAR, modifier(constants)))
}

fn limited(columns: &[ArrayRef], row: usize) -> Result<Option<String>> {
    let limit = columns.get(1).and_then(|lengths| integer_at(lengths, row));
    let text = plain_text(&columns[0], row)?;
    Ok(match limit {
        Some(limit) => text.map(|text| text.chars().take(limit.max(1) as usize).collect()),
        None => text,
    })
}

/// The modifier of a string type whose length is the second argument.
fn modifier(constants: &[Option<&ScalarValue>]) -> i32 {
    let length = match constants.get(1).copied().flatten() {
        Some(ScalarValue::Int64(Some(n))) => i32::try_from(*n).ok(),
        Some(ScalarValue::Int32(Some(n))) => Some(*n),
        _ => None,
    };
    length.map_or(-1, |n| n.saturating_add(4))
}

/// Whether a condition is NULL. DataFusion folds its own IS NULL where it knows of no NULL, and then loses rows in the
/// join of EXISTS with a relation that is empty.
pub(crate) fn is_open() -> Func {
    Func::of("cenote_open", DataType::Boolean, |call| {
        call.by_rows_to_bool(|columns, row| Ok(Some(columns[0].is_null(row))))
    })
}

/// A value as a result is written.
pub(crate) fn output() -> Func {
    Func::of("cenote_output", DataType::Utf8, |call| {
        call.by_rows_to_text(|columns, row| text_at(&columns[0], row))
    })
}

/// A text with blanks behind it up to a length.
pub(crate) fn padded() -> Func {
    Func::of("cenote_padded", DataType::Utf8, |call| {
        call.by_rows_to_text(|columns, row| {
            let length = integer_at(&columns[1], row).unwrap_or(0).max(0) as usize;
            Ok(text_at(&columns[0], row)?.map(|text| format!("{text:<length$}")))
        })
    })
}

/// A text without blanks at its end.
pub(crate) fn trimmed() -> Func {
    Func::of("cenote_trimmed", DataType::Utf8, |call| {
        call.by_rows_to_text(|columns, row| {
            Ok(text_at(&columns[0], row)?.map(|text| text.trim_end_matches(' ').to_string()))
        })
    })
}

/// A LIKE pattern whose escape character is another than the backslash.
pub(crate) fn like_pattern() -> Func {
    Func::of("cenote_like_pattern", DataType::Utf8, |call| {
        call.by_rows_to_text(|columns, row| {
            let (Some(pattern), Some(escape)) = (text_at(&columns[0], row)?, text_at(&columns[1], row)?) else {
                return Ok(None);
            };
            let own = escape.chars().next();
            let mut out = String::new();
            let mut chars = pattern.chars();
            while let Some(c) = chars.next() {
                match c {
                    c if Some(c) == own => {
                        out.push('\\');
                        out.extend(chars.next());
                    }
                    '\\' => out.push_str("\\\\"),
                    c => out.push(c),
                }
            }
            Ok(Some(out))
        })
    })
}

/// `md5(text)`.
pub(crate) fn md5() -> Func {
    Func::of("md5", DataType::Utf8, |call| {
        call.by_rows_to_text(|columns, row| {
            Ok(text_at(&columns[0], row)?.map(|text| crate::expr::md5::hex_digest(text.as_bytes())))
        })
    })
}
