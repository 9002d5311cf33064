//! `numeric` between the engine's digits of base 10000 and Arrow's scaled integers.

use super::types::{NUMERIC_ANY, NUMERIC_QUOTIENT};
use crate::error::{Result, SqlError, code};
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Decimal128Type, Decimal256Type, i256};
use cenote_engine::types::{Numeric, Sign};

/// Fewest significant digits of a quotient, as in PostgreSQL.
const MIN_SIGNIFICANT_DIGITS: i32 = 16;

fn out_of_range() -> SqlError {
    SqlError::new(
        code::OUT_OF_RANGE,
        "numeric value is out of the range of analytical queries (76 digits)",
    )
}

/// `value * 10^scale` as an integer. Errors: it does not fit 128 bits, or digits beyond `scale` would be lost.
pub(crate) fn to_i128(value: &Numeric, scale: i8) -> Result<i128> {
    let mut acc: i128 = 0;
    for digit in value.digits() {
        acc = acc
            .checked_mul(10_000)
            .and_then(|a| a.checked_add(i128::from(*digit)))
            .ok_or_else(out_of_range)?;
    }
    let exponent = (i32::from(value.weight()) - value.digits().len() as i32 + 1) * 4 + i32::from(scale);
    let scaled = if exponent >= 0 {
        10i128
            .checked_pow(exponent as u32)
            .and_then(|p| acc.checked_mul(p))
            .ok_or_else(out_of_range)?
    } else {
        let divisor = 10i128.checked_pow(exponent.unsigned_abs()).ok_or_else(out_of_range)?;
        if acc % divisor != 0 {
            return Err(out_of_range());
        }
        acc / divisor
    };
    signed(value, scaled, |v| -v)
}

/// As [`to_i128`], with 256 bits.
pub(crate) fn to_i256(value: &Numeric, scale: i8) -> Result<i256> {
    let ten = i256::from_i128(10);
    let mut acc = i256::ZERO;
    for digit in value.digits() {
        acc = acc
            .checked_mul(i256::from_i128(10_000))
            .and_then(|a| a.checked_add(i256::from_i128(i128::from(*digit))))
            .ok_or_else(out_of_range)?;
    }
    let exponent = (i32::from(value.weight()) - value.digits().len() as i32 + 1) * 4 + i32::from(scale);
    let power = ten.checked_pow(exponent.unsigned_abs()).ok_or_else(out_of_range)?;
    let scaled = if exponent >= 0 {
        acc.checked_mul(power).ok_or_else(out_of_range)?
    } else if acc.checked_rem(power) == Some(i256::ZERO) {
        acc.checked_div(power).ok_or_else(out_of_range)?
    } else {
        return Err(out_of_range());
    };
    signed(value, scaled, |v| v.wrapping_neg())
}

/// Powers of ten that fit 64 bits.
const POWERS: [i64; 19] = {
    let (mut powers, mut i) = ([1; 19], 1);
    while i < powers.len() {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

/// [`to_i128`] of a numeric's bytes in a row. Most have few digits and need no [`Numeric`] in between.
#[inline]
pub(crate) fn wire_to_i128(bytes: &[u8], scale: i8) -> Result<i128> {
    match few_digits(bytes, scale) {
        Some(value) => Ok(i128::from(value)),
        None => to_i128(&Numeric::read_wire(bytes)?, scale),
    }
}

/// [`to_i256`] of a numeric's bytes in a row.
#[inline]
pub(crate) fn wire_to_i256(bytes: &[u8], scale: i8) -> Result<i256> {
    match few_digits(bytes, scale) {
        Some(value) => Ok(i256::from_i128(i128::from(value))),
        None => to_i256(&Numeric::read_wire(bytes)?, scale),
    }
}

/// `value * 10^scale` where it is finite, has up to four digits of base 10000, and fits; None for others.
#[inline]
fn few_digits(bytes: &[u8], scale: i8) -> Option<i64> {
    let ([c0, c1, w0, w1, s0, s1, _, _], digits) = bytes.split_first_chunk::<8>()?;
    let count = u16::from_be_bytes([*c0, *c1]);
    if count > 4 || digits.len() != 2 * usize::from(count) {
        return None;
    }
    let mut value = 0i64;
    for digit in digits.chunks_exact(2) {
        let digit = u16::from_be_bytes([digit[0], digit[1]]);
        if digit >= 10_000 {
            return None;
        }
        value = value * 10_000 + i64::from(digit);
    }
    let weight = i32::from(i16::from_be_bytes([*w0, *w1]));
    let exponent = (weight - i32::from(count) + 1) * 4 + i32::from(scale);
    let power = *POWERS.get(exponent.unsigned_abs() as usize)?;
    let magnitude = match exponent >= 0 {
        true => value.checked_mul(power)?,
        false if value % power == 0 => value / power,
        false => return None,
    };
    match u16::from_be_bytes([*s0, *s1]) {
        0 => Some(magnitude),
        0x4000 => Some(-magnitude),
        _ => None,
    }
}

fn signed<T>(value: &Numeric, magnitude: T, negate: impl Fn(T) -> T) -> Result<T> {
    match value.sign() {
        Sign::Positive => Ok(magnitude),
        Sign::Negative => Ok(negate(magnitude)),
        _ => Err(SqlError::unsupported(format!("numeric {value} in an analytical query"))),
    }
}

/// The decimal at `row` as PostgreSQL writes it. Errors: more digits than its type has.
pub(crate) fn decimal_text(array: &dyn Array, row: usize) -> Result<String> {
    let (digits, precision, scale) = match array.data_type() {
        DataType::Decimal128(p, s) => (array.as_primitive::<Decimal128Type>().value(row).to_string(), *p, *s),
        DataType::Decimal256(p, s) => (array.as_primitive::<Decimal256Type>().value(row).to_string(), *p, *s),
        other => return Err(SqlError::internal(format!("{other} is not a decimal"))),
    };
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |d| ("-", d));
    let most = if precision <= 38 { 38 } else { 76 };
    if digits.len() > most {
        return Err(out_of_range());
    }
    Ok(shown(sign, digits, scale, array.data_type()))
}

/// The decimal at `row` as an engine value.
pub(crate) fn decimal_value(array: &dyn Array, row: usize) -> Result<Numeric> {
    let text = decimal_text(array, row)?;
    text.parse().map_err(|_| out_of_range())
}

fn shown(sign: &str, digits: &str, scale: i8, data_type: &DataType) -> String {
    let scale = scale.max(0) as usize;
    let padded = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = padded.split_at(padded.len() - scale);
    match data_type {
        DataType::Decimal256(p, s) if (*p, *s) == NUMERIC_ANY => join(sign, whole, fraction.trim_end_matches('0')),
        DataType::Decimal256(p, s) if (*p, *s) == NUMERIC_QUOTIENT => {
            round(sign, whole, fraction, quotient_scale(whole, fraction))
        }
        _ => join(sign, whole, fraction),
    }
}

fn join(sign: &str, whole: &str, fraction: &str) -> String {
    let zero = whole.bytes().chain(fraction.bytes()).all(|b| b == b'0');
    let sign = if zero { "" } else { sign };
    if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

/// Decimals that PostgreSQL shows of a quotient: at least 16 significant digits, counted in groups of four.
fn quotient_scale(whole: &str, fraction: &str) -> usize {
    let weight = if whole != "0" {
        (whole.len() as i32 - 1) / 4
    } else {
        match fraction.bytes().position(|b| b != b'0') {
            Some(zeros) => -1 - (zeros as i32) / 4,
            // Zero: as a quotient of a zero with no more digits before the point than the divisor has.
            None => -1,
        }
    };
    (MIN_SIGNIFICANT_DIGITS - weight * 4).clamp(0, i32::from(NUMERIC_QUOTIENT.1) - 1) as usize
}

/// Rounds half away from zero to `keep` decimals.
fn round(sign: &str, whole: &str, fraction: &str, keep: usize) -> String {
    if keep >= fraction.len() {
        return join(sign, whole, fraction);
    }
    let up = fraction.as_bytes()[keep] >= b'5';
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes().take(keep)).collect();
    if up {
        carry(&mut digits);
    }
    let point = digits.len() - keep;
    let text = String::from_utf8_lossy(&digits).into_owned();
    join(sign, &text[..point], &text[point..])
}

fn carry(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        if *digit < b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
    digits.insert(0, b'1');
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Decimal128Array, Decimal256Array};

    #[test]
    fn numerics_survive_the_way_through_arrow() {
        for text in [
            "0",
            "1",
            "-1.50",
            "12345678901234567890.123",
            "0.0001",
            "10000",
            "-99990000.00010000",
        ] {
            let value: Numeric = text.parse().expect("a numeric");
            let scale = value.dscale() as i8;
            let array = Decimal128Array::from(vec![to_i128(&value, scale).expect("fits")])
                .with_precision_and_scale(38, scale)
                .expect("decimal");
            assert_eq!(decimal_text(&array, 0).expect("text"), text);
            let array = Decimal256Array::from(vec![to_i256(&value, 30).expect("fits")])
                .with_precision_and_scale(76, 30)
                .expect("decimal");
            assert_eq!(decimal_value(&array, 0).expect("value"), value);
        }
    }

    #[test]
    fn a_row_s_bytes_give_what_the_numeric_gives() {
        let texts = [
            "0",
            "0.00",
            "1",
            "-1.5",
            "17.00",
            "99999999.99",
            "-0.07",
            "0.0001",
            "123456789012.3400",
            "9999999999999999",
            "12345678901234567890.12",
            "100000000",
            "-99990000.01",
            "NaN",
            "Infinity",
            "1234.5678",
        ];
        for text in texts {
            let value: Numeric = text.parse().expect("a numeric");
            let mut bytes = Vec::new();
            value.write_wire(&mut bytes);
            for scale in [0, 2, 4, 18, 30] {
                let (fast, slow) = (wire_to_i128(&bytes, scale), to_i128(&value, scale));
                assert_eq!(fast.ok(), slow.ok(), "{text} with {scale} decimals");
                let (fast, slow) = (wire_to_i256(&bytes, scale), to_i256(&value, scale));
                assert_eq!(fast.ok(), slow.ok(), "{text} with {scale} decimals");
            }
        }
        assert!(wire_to_i128(&[0, 1, 0, 0], 2).is_err(), "bytes that are no numeric");
    }

    #[test]
    fn quotients_show_as_many_digits_as_postgresql() {
        let show = |whole: &str, fraction: &str| {
            let fraction = format!("{fraction:0<29}");
            shown(
                "",
                &format!("{whole}{fraction}"),
                NUMERIC_QUOTIENT.1,
                &DataType::Decimal256(76, 29),
            )
        };
        assert_eq!(show("1", "5"), "1.5000000000000000");
        assert_eq!(show("12345", "5"), "12345.500000000000");
        assert_eq!(show("0", "5"), "0.50000000000000000000");
        assert_eq!(show("0", &"3".repeat(29)), "0.33333333333333333333");
        assert_eq!(show("0", &"6".repeat(29)), "0.66666666666666666667");
        assert_eq!(show("0", ""), "0.00000000000000000000");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let big: Numeric = format!("1{}", "0".repeat(60)).parse().expect("a numeric");
        assert!(to_i128(&big, 0).is_err());
        assert!(to_i256(&big, 0).is_ok());
        assert!(to_i256(&big, 30).is_err());
        let fine: Numeric = "0.001".parse().expect("a numeric");
        assert!(to_i128(&fine, 2).is_err(), "digits are not dropped in silence");
    }
}
