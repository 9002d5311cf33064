//! Conversions between types, each with PostgreSQL's errors, and fitting a value into a column's declared length.

use super::text::{TextContext, datum_text, parse_datum};
use super::zone::Zone;
use super::{datetime, is_string, numeric, same_base};
use crate::error::{Result, SqlError, code};
use cenote_engine::types::{ColumnType, Datum, Numeric};

/// When a conversion happens without being asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Context {
    /// In expressions.
    Implicit,
    /// Storing into a column.
    Assignment,
    /// `CAST`, `::`.
    Explicit,
}

/// Whether `from` converts to `to` in `context`.
pub fn castable(from: ColumnType, to: ColumnType, context: Context) -> bool {
    use ColumnType::{
        Bool, Bytes, Char, Date, Float4, Float8, Int2, Int4, Int8, Numeric, Text, Timestamp, TimestampTz, Varchar,
    };
    if same_base(from, to) {
        return true;
    }
    let needs = match (from, to) {
        (Text | Varchar(_) | Char(_), Text | Varchar(_) | Char(_)) => Context::Implicit,
        (Int2, Int4 | Int8 | Numeric(_) | Float4 | Float8)
        | (Int4, Int8 | Numeric(_) | Float4 | Float8)
        | (Int8, Numeric(_) | Float4 | Float8)
        | (Numeric(_), Float4 | Float8)
        | (Float4, Float8)
        | (Date, Timestamp | TimestampTz)
        | (Timestamp, TimestampTz) => Context::Implicit,
        (Int4, Int2) | (Int8, Int2 | Int4) | (Numeric(_), Int2 | Int4 | Int8) => Context::Assignment,
        (Float4 | Float8, Int2 | Int4 | Int8 | Numeric(_)) | (Float8, Float4) => Context::Assignment,
        (Timestamp | TimestampTz, Date) | (TimestampTz, Timestamp) => Context::Assignment,
        (_, Text | Varchar(_) | Char(_)) => Context::Assignment,
        (Bool, Int4) | (Int4, Bool) => Context::Explicit,
        (Text | Varchar(_) | Char(_), _) => Context::Explicit,
        (Bytes, _) | (_, Bytes) => return false,
        _ => return false,
    };
    context >= needs
}

/// Converts a value to the base type of `to` and fits it (lengths, precision) as `context` demands.
///
/// # Errors
/// 42846: PostgreSQL has no such conversion. 22003, 22001: the value does not fit. 22P02 and its like: a text is no
/// value of the type.
pub fn cast(value: Datum, to: ColumnType, context: Context, cx: TextContext<'_>) -> Result<Datum> {
    fit(convert(value, to, cx)?, to, context)
}

fn convert(value: Datum, to: ColumnType, cx: TextContext<'_>) -> Result<Datum> {
    use ColumnType as T;
    Ok(match (value, to) {
        (Datum::Null, _) => Datum::Null,
        (v @ Datum::Bool(_), T::Bool)
        | (v @ Datum::Int2(_), T::Int2)
        | (v @ Datum::Int4(_), T::Int4)
        | (v @ Datum::Int8(_), T::Int8)
        | (v @ Datum::Float4(_), T::Float4)
        | (v @ Datum::Float8(_), T::Float8)
        | (v @ Datum::Numeric(_), T::Numeric(_))
        | (v @ Datum::Text(_), T::Text | T::Varchar(_) | T::Char(_))
        | (v @ Datum::Bytes(_), T::Bytes)
        | (v @ Datum::Date(_), T::Date)
        | (v @ Datum::Timestamp(_), T::Timestamp)
        | (v @ Datum::TimestampTz(_), T::TimestampTz) => v,
        (Datum::Text(text), _) => parse_datum(&text, to, cx)?,
        (Datum::Bool(v), T::Int4) => Datum::Int4(i32::from(v)),
        (Datum::Bool(v), T::Text | T::Varchar(_) | T::Char(_)) => Datum::Text(v.to_string()),
        (v, T::Text | T::Varchar(_) | T::Char(_)) => Datum::Text(datum_text(&v.as_ref(), cx.zone)),
        (Datum::Int4(v), T::Bool) => Datum::Bool(v != 0),
        (v, T::Int2) => Datum::Int2(to_int(&v, "smallint")?),
        (v, T::Int4) => Datum::Int4(to_int(&v, "integer")?),
        (v, T::Int8) => Datum::Int8(to_int(&v, "bigint")?),
        (v, T::Float8) => Datum::Float8(to_f64(&v)?),
        (v, T::Float4) => Datum::Float4(to_f32(&v)?),
        (v, T::Numeric(_)) => Datum::Numeric(to_numeric(&v)?),
        (v, T::Date) => Datum::Date(to_date(&v, cx.zone)?),
        (v, T::Timestamp) => Datum::Timestamp(to_timestamp(&v, cx.zone)?),
        (v, T::TimestampTz) => Datum::TimestampTz(to_timestamptz(&v, cx.zone)?),
        (v, _) => return Err(cannot(&v, to)),
    })
}

/// Applies the length of varchar and char, and precision and scale of numeric.
///
/// # Errors
/// 22001: the text is too long. 22003: the number has too many digits.
pub fn fit(value: Datum, to: ColumnType, context: Context) -> Result<Datum> {
    match (value, to) {
        (Datum::Text(text), ColumnType::Varchar(Some(limit))) => fit_text(text, limit, to, context).map(Datum::Text),
        (Datum::Text(text), ColumnType::Char(limit)) => {
            Ok(Datum::Text(pad(fit_text(text, limit, to, context)?, limit)))
        }
        (Datum::Numeric(v), ColumnType::Numeric(Some((precision, scale)))) => {
            Ok(Datum::Numeric(numeric::fit(v, precision, scale)?))
        }
        (value, _) => Ok(value),
    }
}

/// Cuts what is too long: silently when asked for, blanks only when storing.
fn fit_text(mut text: String, limit: u32, ty: ColumnType, context: Context) -> Result<String> {
    if text.len() <= limit as usize {
        return Ok(text);
    }
    let Some((end, _)) = text.char_indices().nth(limit as usize) else {
        return Ok(text);
    };
    if context != Context::Explicit && text[end..].bytes().any(|b| b != b' ') {
        return Err(SqlError::new(
            code::STRING_TOO_LONG,
            format!("value too long for type {ty}"),
        ));
    }
    text.truncate(end);
    Ok(text)
}

fn pad(mut text: String, limit: u32) -> String {
    let missing = (limit as usize).saturating_sub(if text.is_ascii() {
        text.len()
    } else {
        text.chars().count()
    });
    text.extend(std::iter::repeat_n(' ', missing));
    text
}

/// The number as a double.
///
/// # Errors
/// 42846: the value is no number. 22003: the number is out of range.
pub fn to_f64(value: &Datum) -> Result<f64> {
    Ok(match value {
        Datum::Int2(v) => f64::from(*v),
        Datum::Int4(v) => f64::from(*v),
        Datum::Int8(v) => *v as f64,
        Datum::Float4(v) => f64::from(*v),
        Datum::Float8(v) => *v,
        Datum::Numeric(v) => {
            let wide = v.to_f64();
            if wide.is_infinite() && v.is_finite() {
                return Err(SqlError::new(
                    code::OUT_OF_RANGE,
                    format!("\"{v}\" is out of range for type double precision"),
                ));
            }
            wide
        }
        other => return Err(cannot(other, ColumnType::Float8)),
    })
}

fn to_f32(value: &Datum) -> Result<f32> {
    let wide = to_f64(value)?;
    let narrow = wide as f32;
    if narrow.is_infinite() && wide.is_finite() {
        return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: overflow"));
    }
    if narrow == 0.0 && wide != 0.0 {
        return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: underflow"));
    }
    Ok(narrow)
}

/// The number as numeric.
///
/// # Errors
/// 42846: the value is no number. 22003: the number is out of range.
pub fn to_numeric(value: &Datum) -> Result<Numeric> {
    Ok(match value {
        Datum::Int2(v) => Numeric::from_i128(i128::from(*v)),
        Datum::Int4(v) => Numeric::from_i128(i128::from(*v)),
        Datum::Int8(v) => Numeric::from_i128(i128::from(*v)),
        Datum::Numeric(v) => v.clone(),
        Datum::Float4(v) => Numeric::parse(&format!("{:.5e}", v))
            .map(trim_scale)
            .unwrap_or_else(|_| Numeric::from_f64(f64::from(*v))),
        Datum::Float8(v) => Numeric::from_f64(*v),
        other => return Err(cannot(other, ColumnType::Numeric(None))),
    })
}

fn trim_scale(value: Numeric) -> Numeric {
    let text = value.to_string();
    let trimmed = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    Numeric::parse(trimmed).unwrap_or(value)
}

fn to_int<T: TryFrom<i128>>(value: &Datum, ty: &str) -> Result<T> {
    let out_of_range = || SqlError::new(code::OUT_OF_RANGE, format!("{ty} out of range"));
    let wide: i128 = match value {
        Datum::Int2(v) => i128::from(*v),
        Datum::Int4(v) => i128::from(*v),
        Datum::Int8(v) => i128::from(*v),
        Datum::Float4(v) => rounded(f64::from(*v)).ok_or_else(out_of_range)?,
        Datum::Float8(v) => rounded(*v).ok_or_else(out_of_range)?,
        Datum::Numeric(v) if !v.is_finite() => {
            let what = if v.to_f64().is_nan() { "NaN" } else { "infinity" };
            return Err(SqlError::new(
                code::FEATURE_NOT_SUPPORTED,
                format!("cannot convert {what} to {ty}"),
            ));
        }
        Datum::Numeric(v) => numeric::to_i128(v).ok_or_else(out_of_range)?,
        other => {
            return Err(SqlError::new(
                code::CANNOT_COERCE,
                format!("cannot cast type {} to {ty}", datum_type(other)),
            ));
        }
    };
    T::try_from(wide).map_err(|_| out_of_range())
}

/// Half to even, as rint does.
fn rounded(value: f64) -> Option<i128> {
    let whole = value.round_ties_even();
    (whole.abs() < 1e19).then_some(whole as i128)
}

fn to_date(value: &Datum, zone: &Zone) -> Result<i32> {
    let local = match value {
        Datum::Timestamp(v) => *v,
        Datum::TimestampTz(v) if *v == i64::MAX || *v == i64::MIN => *v,
        Datum::TimestampTz(v) => zone.to_local(*v),
        other => return Err(cannot(other, ColumnType::Date)),
    };
    Ok(match local {
        i64::MAX => i32::MAX,
        i64::MIN => i32::MIN,
        micros => micros.div_euclid(datetime::DAY) as i32,
    })
}

fn to_timestamp(value: &Datum, zone: &Zone) -> Result<i64> {
    match value {
        Datum::Date(i32::MAX) | Datum::TimestampTz(i64::MAX) => Ok(i64::MAX),
        Datum::Date(i32::MIN) | Datum::TimestampTz(i64::MIN) => Ok(i64::MIN),
        Datum::Date(v) => datetime::in_range(i64::from(*v).saturating_mul(datetime::DAY), "date"),
        Datum::TimestampTz(v) => Ok(zone.to_local(*v)),
        other => Err(cannot(other, ColumnType::Timestamp)),
    }
}

fn to_timestamptz(value: &Datum, zone: &Zone) -> Result<i64> {
    let local = match value {
        Datum::Timestamp(v) => *v,
        other => to_timestamp(other, zone)?,
    };
    Ok(if local == i64::MAX || local == i64::MIN {
        local
    } else {
        zone.to_utc(local)
    })
}

/// Type of a value that is not NULL.
pub fn datum_type(value: &Datum) -> ColumnType {
    match value {
        Datum::Null | Datum::Text(_) => ColumnType::Text,
        Datum::Bool(_) => ColumnType::Bool,
        Datum::Int2(_) => ColumnType::Int2,
        Datum::Int4(_) => ColumnType::Int4,
        Datum::Int8(_) => ColumnType::Int8,
        Datum::Float4(_) => ColumnType::Float4,
        Datum::Float8(_) => ColumnType::Float8,
        Datum::Numeric(_) => ColumnType::Numeric(None),
        Datum::Bytes(_) => ColumnType::Bytes,
        Datum::Date(_) => ColumnType::Date,
        Datum::Timestamp(_) => ColumnType::Timestamp,
        Datum::TimestampTz(_) => ColumnType::TimestampTz,
    }
}

#[cold]
fn cannot(value: &Datum, to: ColumnType) -> SqlError {
    let text = format!("cannot cast type {} to {}", datum_type(value).name(), to.name());
    SqlError::new(
        if is_string(to) {
            code::INTERNAL_ERROR
        } else {
            code::CANNOT_COERCE
        },
        text,
    )
}
