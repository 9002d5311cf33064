//! Arithmetic as PostgreSQL defines it: results have its types, overflow is 22003, division by zero 22012, nothing
//! wraps.
//!
//! The planner ([`super::operators`]) brings both sides of an operator to one family and asks here for a function:
//! integers of one width, floats of one width, or numerics, whose result scale [`numeric_type`] decides. Integers and
//! floats run in Arrow's checked kernels; numerics do as long as the plain kernel cannot lose digits, else value by
//! value with 256 bits.

use super::error::outward;
use super::function::{Call, Func};
use super::types::{NUMERIC_ANY, NUMERIC_QUOTIENT};
use crate::error::{Result, SqlError, code};
use arrow::array::*;
use arrow::compute::kernels::numeric;
use arrow::datatypes::*;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr_common::datum::apply;
use std::sync::Arc;

/// The five operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Op {
    fn sign(self) -> &'static str {
        match self {
            Op::Add => "+",
            Op::Subtract => "-",
            Op::Multiply => "*",
            Op::Divide => "/",
            Op::Modulo => "%",
        }
    }
}

fn overflow(what: &str) -> SqlError {
    SqlError::new(code::OUT_OF_RANGE, format!("{what} out of range"))
}

fn division_by_zero() -> SqlError {
    SqlError::new(code::DIVISION_BY_ZERO, "division by zero")
}

/// `left op right` on two integers or two floats of one type.
pub(crate) fn checked(op: Op, data_type: DataType) -> Func {
    let returns = data_type.clone();
    Func::of(&format!("{}{}", op.sign(), short(&data_type)), returns, move |call| {
        kernel(op, call, &data_type)
    })
}

fn short(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Int16 => "int2",
        DataType::Int32 => "int4",
        DataType::Int64 => "int8",
        DataType::Float32 => "float4",
        DataType::Float64 => "float8",
        _ => "numeric",
    }
}

fn kernel(op: Op, call: &Call<'_>, data_type: &DataType) -> Result<ColumnarValue> {
    let run = match op {
        Op::Add => numeric::add,
        Op::Subtract => numeric::sub,
        Op::Multiply => numeric::mul,
        Op::Divide => numeric::div,
        Op::Modulo => numeric::rem,
    };
    let name = match data_type {
        DataType::Int16 => "smallint",
        DataType::Int32 => "integer",
        DataType::Int64 => "bigint",
        _ => "value",
    };
    let result = apply(call.arg(0), call.arg(1), run).map_err(outward).map_err(|e| {
        if e.code() == code::OUT_OF_RANGE {
            overflow(name)
        } else {
            e
        }
    })?;
    if data_type.is_floating() {
        check_floats(op, call, &result)?;
    }
    Ok(result)
}

/// PostgreSQL's floats overflow with an error, unless an operand was infinite already; division by zero is one too.
fn check_floats(op: Op, call: &Call<'_>, result: &ColumnarValue) -> Result<()> {
    let finite = |v: f64| v.is_finite();
    let result = as_doubles(result, call.rows())?;
    if result.iter().flatten().all(finite) {
        return Ok(());
    }
    let (left, right) = (
        as_doubles(call.arg(0), call.rows())?,
        as_doubles(call.arg(1), call.rows())?,
    );
    for row in 0..result.len() {
        if result.is_null(row) || result.value(row).is_finite() {
            continue;
        }
        let at = |array: &Float64Array| array.value(if array.len() == 1 { 0 } else { row });
        if matches!(op, Op::Divide | Op::Modulo) && at(&right) == 0.0 && !at(&left).is_nan() {
            return Err(division_by_zero());
        }
        if at(&left).is_finite() && at(&right).is_finite() {
            return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: overflow"));
        }
    }
    Ok(())
}

fn as_doubles(value: &ColumnarValue, rows: usize) -> Result<Float64Array> {
    let array = value.to_array(rows).map_err(outward)?;
    let cast = arrow::compute::cast(&array, &DataType::Float64).map_err(|e| outward(e.into()))?;
    Ok(cast.as_primitive::<Float64Type>().clone())
}

/// `-value`.
pub(crate) fn negate() -> Func {
    Func::any(
        "cenote_negate",
        |types, _| Ok(negated_type(&types[0])),
        |call| {
            let data_type = call.return_type().clone();
            call.by_columns(|columns| {
                let value = arrow::compute::cast(&columns[0], &data_type).map_err(|e| outward(e.into()))?;
                numeric::neg(&value).map_err(|e| outward(e.into()))
            })
        },
    )
}

fn negated_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Null | DataType::Utf8 => DataType::Float64,
        DataType::UInt32 | DataType::UInt64 => DataType::Int64,
        other => other.clone(),
    }
}

/// Precision and scale of a numeric or integer type; None for others.
pub(crate) fn decimal_shape(data_type: &DataType) -> Option<(u8, i8)> {
    Some(match data_type {
        DataType::Decimal128(p, s) | DataType::Decimal256(p, s) => (*p, *s),
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        DataType::UInt64 => (20, 0),
        _ => return None,
    })
}

fn wide(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal256(..))
}

/// The numeric type that holds all values of an integer type; a numeric type stays.
pub(crate) fn as_decimal(data_type: &DataType) -> DataType {
    match (data_type, decimal_shape(data_type)) {
        (DataType::Decimal128(..) | DataType::Decimal256(..), _) => data_type.clone(),
        (_, Some((p, s))) => DataType::Decimal128(p, s),
        _ => super::types::numeric_any(),
    }
}

fn special(shapes: [(u8, i8); 2]) -> Option<DataType> {
    if shapes.contains(&NUMERIC_QUOTIENT) {
        Some(DataType::Decimal256(NUMERIC_QUOTIENT.0, NUMERIC_QUOTIENT.1))
    } else if shapes.contains(&NUMERIC_ANY) {
        Some(DataType::Decimal256(NUMERIC_ANY.0, NUMERIC_ANY.1))
    } else {
        None
    }
}

/// The type of `left op right` where at least one is numeric and the other numeric or integer.
pub(crate) fn numeric_type(op: Op, left: &DataType, right: &DataType) -> DataType {
    let (l, r) = (
        decimal_shape(left).unwrap_or(NUMERIC_ANY),
        decimal_shape(right).unwrap_or(NUMERIC_ANY),
    );
    if op == Op::Divide {
        return DataType::Decimal256(NUMERIC_QUOTIENT.0, NUMERIC_QUOTIENT.1);
    }
    if let Some(any) = special([l, r]) {
        return any;
    }
    let narrow = !wide(left) && !wide(right);
    let (precision, scale) = match op {
        Op::Multiply => (u16::from(l.0) + u16::from(r.0), l.1 + r.1),
        _ => {
            let scale = l.1.max(r.1);
            let whole = (l.0 as i8 - l.1).max(r.0 as i8 - r.1);
            ((whole + scale + 1) as u16, scale)
        }
    };
    if narrow && scale <= 20 {
        DataType::Decimal128(precision.min(38) as u8, scale)
    } else if scale < NUMERIC_QUOTIENT.1 {
        DataType::Decimal256(precision.clamp(1, 76) as u8, scale)
    } else {
        super::types::numeric_any()
    }
}

/// The numeric type that holds the values of both.
pub(crate) fn common_numeric(left: &DataType, right: &DataType) -> DataType {
    let (l, r) = (
        decimal_shape(left).unwrap_or(NUMERIC_ANY),
        decimal_shape(right).unwrap_or(NUMERIC_ANY),
    );
    if let Some(any) = special([l, r]) {
        return any;
    }
    let scale = l.1.max(r.1);
    let precision = (i16::from(l.0) - i16::from(l.1)).max(i16::from(r.0) - i16::from(r.1)) + i16::from(scale);
    if precision <= 38 && !wide(left) && !wide(right) {
        DataType::Decimal128(precision as u8, scale)
    } else {
        DataType::Decimal256(precision.clamp(1, 76) as u8, scale)
    }
}

/// `left op right` on two numerics; the result's type is `returns`.
pub(crate) fn numeric(op: Op, returns: DataType) -> Func {
    let result = returns.clone();
    Func::of(
        &format!("{}numeric{}", op.sign(), shape_name(&returns)),
        returns,
        move |call| {
            let by_kernel = matches!(op, Op::Add | Op::Subtract | Op::Modulo)
                || (op == Op::Multiply && special([decimal_shape(&result).unwrap_or(NUMERIC_ANY); 2]).is_none());
            if by_kernel {
                numeric_kernel(op, call, &result)
            } else {
                exact(op, call, &result)
            }
        },
    )
}

fn shape_name(data_type: &DataType) -> String {
    decimal_shape(data_type).map_or(String::new(), |(p, s)| format!("({p},{s})"))
}

fn widened(value: &ColumnarValue, to_wide: bool) -> Result<ColumnarValue> {
    match (value.data_type(), to_wide) {
        (DataType::Decimal128(p, s), true) => value.cast_to(&DataType::Decimal256(p, s), None).map_err(outward),
        _ => Ok(value.clone()),
    }
}

fn numeric_kernel(op: Op, call: &Call<'_>, result: &DataType) -> Result<ColumnarValue> {
    let run = match op {
        Op::Add => numeric::add,
        Op::Subtract => numeric::sub,
        Op::Multiply => numeric::mul,
        Op::Divide => numeric::div,
        Op::Modulo => numeric::rem,
    };
    let (left, right) = (widened(call.arg(0), wide(result))?, widened(call.arg(1), wide(result))?);
    let computed = apply(&left, &right, run).map_err(outward)?;
    computed.cast_to(result, None).map_err(|_| overflow("numeric value"))
}

/// Division, and multiplication that keeps a fixed scale: value by value with 256 bits.
fn exact(op: Op, call: &Call<'_>, result: &DataType) -> Result<ColumnarValue> {
    let scale = decimal_shape(result).unwrap_or(NUMERIC_ANY).1;
    call.by_columns(|columns| {
        let (left, left_scale) = wide_values(&columns[0])?;
        let (right, right_scale) = wide_values(&columns[1])?;
        let rows = (0..left.len()).map(|row| match (left.is_null(row), right.is_null(row)) {
            (false, false) => {
                let (a, b) = ((left.value(row), left_scale), (right.value(row), right_scale));
                if op == Op::Divide {
                    divide(a, b, scale).map(Some)
                } else {
                    multiply(a, b, scale).map(Some)
                }
            }
            _ => Ok(None),
        });
        let values = rows.collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Decimal256Array::from(values).with_data_type(result.clone())) as ArrayRef)
    })
}

fn wide_values(column: &ArrayRef) -> Result<(Decimal256Array, i8)> {
    let (p, s) = decimal_shape(column.data_type()).unwrap_or(NUMERIC_ANY);
    let cast = arrow::compute::cast(column, &DataType::Decimal256(p, s)).map_err(|e| outward(e.into()))?;
    Ok((cast.as_primitive::<Decimal256Type>().clone(), s))
}

/// Drops trailing zeros, so that intermediate products stay small.
fn reduced((mut value, mut scale): (i256, i8)) -> (i256, i32) {
    if value == i256::ZERO {
        return (value, 0);
    }
    for step in [16, 8, 4, 2, 1] {
        let power = i256::from_i128(10i128.pow(step));
        while value.wrapping_rem(power) == i256::ZERO && i32::from(scale) - step as i32 >= -40 {
            value = value.wrapping_div(power);
            scale -= step as i8;
        }
    }
    (value, i32::from(scale))
}

fn power_of_ten(exponent: i32) -> Result<i256> {
    i256::from_i128(10)
        .checked_pow(exponent.unsigned_abs())
        .ok_or_else(|| overflow("numeric value"))
}

/// `value / divisor`, rounded half away from zero.
fn divide_rounded(value: i256, divisor: i256) -> Result<i256> {
    let failed = || overflow("numeric value");
    let quotient = value.checked_div(divisor).ok_or_else(failed)?;
    let rest = value.checked_rem(divisor).ok_or_else(failed)?;
    let twice = rest.wrapping_abs().checked_mul(i256::from_i128(2)).ok_or_else(failed)?;
    if twice < divisor.wrapping_abs() {
        return Ok(quotient);
    }
    let one = if (value < i256::ZERO) == (divisor < i256::ZERO) {
        i256::ONE
    } else {
        i256::MINUS_ONE
    };
    quotient.checked_add(one).ok_or_else(failed)
}

fn rescaled(value: i256, from: i32, to: i8) -> Result<i256> {
    let shift = i32::from(to) - from;
    let scaled = if shift >= 0 {
        value
            .checked_mul(power_of_ten(shift)?)
            .ok_or_else(|| overflow("numeric value"))?
    } else if shift < -76 {
        i256::ZERO
    } else {
        divide_rounded(value, power_of_ten(shift)?)?
    };
    in_range(scaled)
}

fn in_range(value: i256) -> Result<i256> {
    if value.wrapping_abs() < power_of_ten(76)? {
        Ok(value)
    } else {
        Err(overflow("numeric value"))
    }
}

fn multiply(left: (i256, i8), right: (i256, i8), scale: i8) -> Result<i256> {
    let ((a, a_scale), (b, b_scale)) = (reduced(left), reduced(right));
    match a.checked_mul(b) {
        Some(product) => rescaled(product, a_scale + b_scale, scale),
        None => {
            // Both have many digits: the digits below the result's scale are given up first.
            let a = rescaled(a, a_scale, scale)?;
            let (a, a_scale) = reduced((a, scale));
            let b = rescaled(b, b_scale, (scale / 2).max(1))?;
            let (b, b_scale) = reduced((b, (scale / 2).max(1)));
            rescaled(
                a.checked_mul(b).ok_or_else(|| overflow("numeric value"))?,
                a_scale + b_scale,
                scale,
            )
        }
    }
}

fn divide(left: (i256, i8), right: (i256, i8), scale: i8) -> Result<i256> {
    if right.0 == i256::ZERO {
        return Err(division_by_zero());
    }
    let ((a, a_scale), (b, b_scale)) = (reduced(left), reduced(right));
    let shift = i32::from(scale) + b_scale - a_scale;
    if shift < 0 {
        let divisor = b
            .checked_mul(power_of_ten(shift)?)
            .ok_or_else(|| overflow("numeric value"))?;
        return in_range(divide_rounded(a, divisor)?);
    }
    match a.checked_mul(power_of_ten(shift)?) {
        Some(dividend) => in_range(divide_rounded(dividend, b)?),
        None => Err(overflow("numeric value")),
    }
}

/// What `sum` adds up, in the type of its result: bigint for smaller integers, numeric for bigint, float8 for floats.
/// Sums never wrap: the type holds what 10^10 rows of the greatest values come to.
pub(crate) fn summand() -> Func {
    Func::any(
        "summand",
        |types, _| Ok(summed_in(&types[0])),
        |call| {
            let data_type = call.return_type().clone();
            if call.arg(0).data_type() == data_type {
                return Ok(call.arg(0).clone());
            }
            call.arg(0).cast_to(&data_type, None).map_err(outward)
        },
    )
}

fn summed_in(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => {
            DataType::Int64
        }
        DataType::Int64 | DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Float16 | DataType::Float32 | DataType::Null => DataType::Float64,
        DataType::Decimal128(p, s) if *p > 28 => DataType::Decimal256((*p).max(39), *s),
        other => other.clone(),
    }
}

/// `sum / count` for `avg`: numeric for integers and numerics, float for floats.
pub(crate) fn average() -> Func {
    let returns = |types: &[DataType], _: &[Option<&ScalarValue>]| {
        Ok(match &types[0] {
            DataType::Float32 | DataType::Float64 => DataType::Float64,
            DataType::Interval(_) | DataType::Duration(_) => {
                return datafusion::common::not_impl_err!("avg of intervals is not supported");
            }
            _ => DataType::Decimal256(NUMERIC_QUOTIENT.0, NUMERIC_QUOTIENT.1),
        })
    };
    Func::any("avg", returns, |call| match call.return_type() {
        DataType::Float64 => call.by_columns(|columns| {
            let sums = arrow::compute::cast(&columns[0], &DataType::Float64).map_err(|e| outward(e.into()))?;
            let counts = arrow::compute::cast(&columns[1], &DataType::Float64).map_err(|e| outward(e.into()))?;
            numeric::div(&sums, &counts).map_err(|e| outward(e.into()))
        }),
        result => {
            let result = result.clone();
            call.by_columns(|columns| {
                let sums = arrow::compute::cast(&columns[0], &as_decimal(columns[0].data_type()))
                    .map_err(|e| outward(e.into()))?;
                let counts =
                    arrow::compute::cast(&columns[1], &DataType::Decimal128(19, 0)).map_err(|e| outward(e.into()))?;
                averages(&sums, &counts, &result)
            })
        }
    })
}

fn averages(sums: &ArrayRef, counts: &ArrayRef, result: &DataType) -> Result<ArrayRef> {
    let ((sums, scale), (counts, _)) = (wide_values(sums)?, wide_values(counts)?);
    let rows = (0..sums.len()).map(|row| match sums.is_null(row) {
        true => Ok(None),
        false => divide((sums.value(row), scale), (counts.value(row), 0), NUMERIC_QUOTIENT.1).map(Some),
    });
    let values = rows.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Decimal256Array::from(values).with_data_type(result.clone())))
}

/// `round(numeric, digits)` and `trunc(numeric, digits)`, and of floats without digits.
pub(crate) fn rounding(name: &'static str) -> Func {
    Func::any(
        name,
        |types, constants| Ok(rounded_type(types, constants)),
        move |call| {
            let returns = call.return_type().clone();
            call.by_columns(|columns| match &returns {
                DataType::Float64 => {
                    let values =
                        arrow::compute::cast(&columns[0], &DataType::Float64).map_err(|e| outward(e.into()))?;
                    let round = if name == "round" {
                        f64::round_ties_even
                    } else {
                        f64::trunc
                    };
                    Ok(Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(round)) as ArrayRef)
                }
                _ => round_numerics(columns, &returns, name == "round"),
            })
        },
    )
}

fn rounded_type(types: &[DataType], constants: &[Option<&ScalarValue>]) -> DataType {
    if types.len() == 1 && (types[0].is_floating() || matches!(types[0], DataType::Null | DataType::Utf8)) {
        return DataType::Float64;
    }
    let (precision, scale) = decimal_shape(&types[0]).unwrap_or(NUMERIC_ANY);
    let digits = match (types.len(), constants.get(1).copied().flatten()) {
        (1, _) => 0,
        (_, Some(ScalarValue::Int64(Some(n)))) => *n,
        (_, Some(ScalarValue::Int32(Some(n)))) => i64::from(*n),
        _ => return super::types::numeric_any(),
    };
    let to = digits.clamp(0, 28) as i8;
    let whole = (i16::from(precision) - i16::from(scale) + 1).max(1);
    let precision = (whole + i16::from(to)).clamp(1, 76) as u8;
    if precision <= 38 && !wide(&types[0]) {
        DataType::Decimal128(precision, to)
    } else {
        DataType::Decimal256(precision.max(39), to)
    }
}

fn round_numerics(columns: &[ArrayRef], returns: &DataType, half_up: bool) -> Result<ArrayRef> {
    let source = match columns[0].data_type() {
        DataType::Decimal128(..) | DataType::Decimal256(..) => columns[0].clone(),
        other => arrow::compute::cast(&columns[0], &as_decimal(other)).map_err(|e| outward(e.into()))?,
    };
    let (values, scale) = wide_values(&source)?;
    let (precision, to) = decimal_shape(returns).unwrap_or(NUMERIC_ANY);
    let rows = (0..values.len()).map(|row| {
        let digits = if columns.len() > 1 {
            super::function::integer_at(&columns[1], row)
        } else {
            Some(0)
        };
        match (values.is_null(row), digits) {
            (false, Some(digits)) => round_one(
                values.value(row),
                scale,
                digits.clamp(-76, i64::from(scale)) as i32,
                half_up,
            )
            .and_then(|v| rescaled(v, i32::from(scale), to))
            .map(Some),
            _ => Ok(None),
        }
    });
    let rounded = Decimal256Array::from(rows.collect::<Result<Vec<_>>>()?)
        .with_data_type(DataType::Decimal256(precision.max(1), to));
    if wide(returns) {
        return Ok(Arc::new(rounded));
    }
    arrow::compute::cast(&rounded, returns).map_err(|_| overflow("numeric value"))
}

fn round_one(value: i256, scale: i8, digits: i32, half_up: bool) -> Result<i256> {
    let power = power_of_ten(i32::from(scale) - digits)?;
    let units = if half_up {
        divide_rounded(value, power)?
    } else {
        value.checked_div(power).ok_or_else(|| overflow("numeric value"))?
    };
    units.checked_mul(power).ok_or_else(|| overflow("numeric value"))
}

/// `ceil(value)` and `floor(value)`: numeric without decimals of a numeric, else a float.
pub(crate) fn to_whole(name: &'static str) -> Func {
    let returns = |types: &[DataType], _: &[Option<&ScalarValue>]| {
        Ok(match (&types[0], decimal_shape(&types[0])) {
            (DataType::Decimal128(..), Some((precision, scale))) => {
                DataType::Decimal128(whole_digits(precision, scale), 0)
            }
            (DataType::Decimal256(..), Some((precision, scale))) => {
                DataType::Decimal256(whole_digits(precision, scale), 0)
            }
            _ => DataType::Float64,
        })
    };
    Func::any(name, returns, move |call| {
        let returns = call.return_type().clone();
        call.by_columns(|columns| match &returns {
            DataType::Float64 => {
                let values = arrow::compute::cast(&columns[0], &returns).map_err(|e| outward(e.into()))?;
                let whole = if name == "floor" { f64::floor } else { f64::ceil };
                Ok(Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(whole)) as ArrayRef)
            }
            _ => whole_numerics(&columns[0], &returns, name == "floor"),
        })
    })
}

/// Digits before the point, and one more for a carry.
fn whole_digits(precision: u8, scale: i8) -> u8 {
    let most = if precision <= 38 { 38 } else { 76 };
    (i16::from(precision) - i16::from(scale) + 1).clamp(1, most) as u8
}

fn whole_numerics(column: &ArrayRef, returns: &DataType, down: bool) -> Result<ArrayRef> {
    let (values, scale) = wide_values(column)?;
    let power = power_of_ten(i32::from(scale))?;
    let whole = |value: i256| {
        let (quotient, rest) = (value.wrapping_div(power), value.wrapping_rem(power));
        match (down, rest < i256::ZERO, rest > i256::ZERO) {
            (true, true, _) => quotient.wrapping_sub(i256::ONE),
            (false, _, true) => quotient.wrapping_add(i256::ONE),
            _ => quotient,
        }
    };
    let wide: ArrayRef = Arc::new(
        values
            .unary::<_, Decimal256Type>(whole)
            .with_data_type(DataType::Decimal256(76, 0)),
    );
    arrow::compute::cast(&wide, returns).map_err(|_| overflow("numeric value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn big(value: i128) -> i256 {
        i256::from_i128(value)
    }

    #[test]
    fn quotients_round_half_away_from_zero() {
        assert_eq!(divide((big(2), 0), (big(3), 0), 4).expect("in range"), big(6667));
        assert_eq!(divide((big(-2), 0), (big(3), 0), 4).expect("in range"), big(-6667));
        assert_eq!(divide((big(1), 0), (big(8), 0), 2).expect("in range"), big(13));
        assert_eq!(
            divide((big(1_000_000), 0), (big(100), 1), 2).expect("in range"),
            big(10_000_000)
        );
        assert_eq!(
            divide((big(1), 0), (big(0), 0), 2).expect_err("by zero").code(),
            code::DIVISION_BY_ZERO
        );
    }

    #[test]
    fn products_keep_the_scale_they_are_given() {
        assert_eq!(
            multiply((big(15), 1), (big(15), 1), 30).expect("in range"),
            power_of_ten(28).expect("fits") * big(225)
        );
        assert!(multiply((power_of_ten(75).expect("fits"), 0), (big(1_000_000), 0), 30).is_err());
    }

    #[test]
    fn result_types_follow_the_operands() {
        let (a, b) = (DataType::Decimal128(15, 2), DataType::Decimal128(15, 2));
        assert_eq!(numeric_type(Op::Add, &a, &b), DataType::Decimal128(16, 2));
        assert_eq!(numeric_type(Op::Multiply, &a, &b), DataType::Decimal128(30, 4));
        assert_eq!(
            numeric_type(Op::Divide, &a, &DataType::Int32),
            DataType::Decimal256(76, 29)
        );
        assert_eq!(
            numeric_type(Op::Add, &super::super::types::numeric_any(), &a),
            super::super::types::numeric_any()
        );
        assert_eq!(common_numeric(&DataType::Int64, &a), DataType::Decimal128(21, 2));
    }
}
