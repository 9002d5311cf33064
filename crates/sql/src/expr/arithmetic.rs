//! Arithmetic on numbers, with overflow as an error on every path, and the little that dates allow.

use super::Value;
use crate::error::{Result, SqlError, code};
use crate::types::datetime;
use crate::types::numeric::{self, division_by_zero};
use cenote_engine::{Datum, DatumRef};

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Rem,
    /// `&`
    BitAnd,
    /// `|`
    BitOr,
    /// `#`
    BitXor,
    /// `<<`
    Shl,
    /// `>>`
    Shr,
}

impl Arithmetic {
    /// The operator.
    pub fn symbol(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Sub => "-",
            Arithmetic::Mul => "*",
            Arithmetic::Div => "/",
            Arithmetic::Rem => "%",
            Arithmetic::BitAnd => "&",
            Arithmetic::BitOr => "|",
            Arithmetic::BitXor => "#",
            Arithmetic::Shl => "<<",
            Arithmetic::Shr => ">>",
        }
    }
}

/// What both operands are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// smallint
    Int2,
    /// integer
    Int4,
    /// bigint
    Int8,
    /// real
    Float4,
    /// double precision
    Float8,
    /// numeric
    Numeric,
    /// date with days, or date minus date
    Date,
}

/// `left op right`; NULL where one is.
///
/// # Errors
/// 22003, 22008: the result is out of its type's range. 22012: division by zero.
pub fn binary(op: Arithmetic, number: Number, left: &Value<'_>, right: &Value<'_>) -> Result<Datum> {
    let (left, right) = (left.get(), right.get());
    if left.is_null() || right.is_null() {
        return Ok(Datum::Null);
    }
    match (number, &left, &right) {
        (Number::Int2 | Number::Int4 | Number::Int8, ..) => integers(op, number, wide(&left)?, wide(&right)?),
        (Number::Float8, DatumRef::Float8(a), DatumRef::Float8(b)) => floats(op, *a, *b).map(Datum::Float8),
        (Number::Float4, DatumRef::Float4(a), DatumRef::Float4(b)) => singles(op, *a, *b).map(Datum::Float4),
        (Number::Numeric, DatumRef::Numeric(a), DatumRef::Numeric(b)) => Ok(Datum::Numeric(match op {
            Arithmetic::Add => numeric::add(a, b)?,
            Arithmetic::Sub => numeric::sub(a, b)?,
            Arithmetic::Mul => numeric::mul(a, b)?,
            Arithmetic::Div => numeric::div(a, b)?,
            Arithmetic::Rem => numeric::rem(a, b)?,
            _ => return Err(mismatch()),
        })),
        (Number::Date, DatumRef::Date(a), DatumRef::Date(b)) => {
            Ok(Datum::Int4(a.checked_sub(*b).ok_or_else(|| overflow("date"))?))
        }
        (Number::Date, DatumRef::Date(a), DatumRef::Int4(b)) => move_date(op, *a, *b),
        (Number::Date, DatumRef::Int4(a), DatumRef::Date(b)) => move_date(op, *b, *a),
        _ => Err(mismatch()),
    }
}

/// `-operand`
///
/// # Errors
/// 22003: the result is out of its type's range.
pub fn negate(operand: Datum) -> Result<Datum> {
    Ok(match operand {
        Datum::Null => Datum::Null,
        Datum::Int2(v) => Datum::Int2(v.checked_neg().ok_or_else(|| overflow("smallint"))?),
        Datum::Int4(v) => Datum::Int4(v.checked_neg().ok_or_else(|| overflow("integer"))?),
        Datum::Int8(v) => Datum::Int8(v.checked_neg().ok_or_else(|| overflow("bigint"))?),
        Datum::Float4(v) => Datum::Float4(-v),
        Datum::Float8(v) => Datum::Float8(-v),
        Datum::Numeric(v) => Datum::Numeric(numeric::neg(&v)),
        _ => return Err(mismatch()),
    })
}

fn wide(datum: &DatumRef<'_>) -> Result<i64> {
    match datum {
        DatumRef::Int2(v) => Ok(i64::from(*v)),
        DatumRef::Int4(v) => Ok(i64::from(*v)),
        DatumRef::Int8(v) => Ok(*v),
        _ => Err(mismatch()),
    }
}

fn integers(op: Arithmetic, number: Number, a: i64, b: i64) -> Result<Datum> {
    let result = match op {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Sub => a.checked_sub(b),
        Arithmetic::Mul => a.checked_mul(b),
        Arithmetic::Div | Arithmetic::Rem if b == 0 => return Err(division_by_zero()),
        Arithmetic::Div => a.checked_div(b),
        Arithmetic::Rem => Some(a.wrapping_rem(b)),
        Arithmetic::BitAnd => Some(a & b),
        Arithmetic::BitOr => Some(a | b),
        Arithmetic::BitXor => Some(a ^ b),
        Arithmetic::Shl | Arithmetic::Shr => return Ok(shift(op, number, a, b)),
    };
    match number {
        Number::Int2 => result
            .and_then(|v| i16::try_from(v).ok())
            .map(Datum::Int2)
            .ok_or_else(|| overflow("smallint")),
        Number::Int4 => result
            .and_then(|v| i32::try_from(v).ok())
            .map(Datum::Int4)
            .ok_or_else(|| overflow("integer")),
        _ => result.map(Datum::Int8).ok_or_else(|| overflow("bigint")),
    }
}

/// Bits that leave are lost; the count is taken modulo the width.
fn shift(op: Arithmetic, number: Number, a: i64, count: i64) -> Datum {
    let left = op == Arithmetic::Shl;
    match number {
        Number::Int2 => {
            let (v, n) = (a as i32, count as u32 & 31);
            Datum::Int2(if left {
                v.wrapping_shl(n) as i16
            } else {
                (v >> n) as i16
            })
        }
        Number::Int4 => Datum::Int4(if left {
            (a as i32).wrapping_shl(count as u32)
        } else {
            (a as i32).wrapping_shr(count as u32)
        }),
        _ => Datum::Int8(if left {
            a.wrapping_shl(count as u32)
        } else {
            a.wrapping_shr(count as u32)
        }),
    }
}

fn floats(op: Arithmetic, a: f64, b: f64) -> Result<f64> {
    let result = match op {
        Arithmetic::Add => a + b,
        Arithmetic::Sub => a - b,
        Arithmetic::Mul => a * b,
        Arithmetic::Div if b == 0.0 && !a.is_nan() => return Err(division_by_zero()),
        Arithmetic::Div => a / b,
        _ => return Err(mismatch()),
    };
    if result.is_infinite() && a.is_finite() && b.is_finite() {
        return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: overflow"));
    }
    let shrinks = matches!(op, Arithmetic::Mul | Arithmetic::Div) && a != 0.0 && (b != 0.0 && b.is_finite());
    if result == 0.0 && shrinks {
        return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: underflow"));
    }
    Ok(result)
}

fn singles(op: Arithmetic, a: f32, b: f32) -> Result<f32> {
    let wide = floats(op, f64::from(a), f64::from(b))?;
    let result = wide as f32;
    if result.is_infinite() && wide.is_finite() {
        return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: overflow"));
    }
    Ok(result)
}

fn move_date(op: Arithmetic, date: i32, days: i32) -> Result<Datum> {
    if date == i32::MAX || date == i32::MIN {
        return Ok(Datum::Date(date));
    }
    let moved = if op == Arithmetic::Sub {
        date.checked_sub(days)
    } else {
        date.checked_add(days)
    };
    let in_range = moved.filter(|d| datetime::DATE_RANGE.contains(&i64::from(*d)));
    in_range
        .map(Datum::Date)
        .ok_or_else(|| SqlError::new(code::DATETIME_OVERFLOW, "date out of range"))
}

#[cold]
pub(super) fn overflow(ty: &str) -> SqlError {
    SqlError::new(code::OUT_OF_RANGE, format!("{ty} out of range"))
}

#[cold]
fn mismatch() -> SqlError {
    SqlError::internal("operands of the wrong type")
}
