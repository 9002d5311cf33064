//! Arithmetic on `numeric`, exact where PostgreSQL's is, with its scales.
//!
//! A finite value is an integer times a power of ten. Most fit 128 bits; the rest go through big integers. Scales of
//! results: sum and difference take the larger, a product the sum of both, a quotient at least 16 significant digits.

use crate::error::{Result, SqlError, code};
use bigdecimal::num_bigint::{BigInt, BigUint, Sign as BigSign};
use cenote_engine::types::{Numeric, Sign};
use std::cmp::Ordering;

/// Digits after the point that a result may show.
const MAX_SCALE: i32 = 16_383;
/// Digits after the point that a quotient may show.
const MAX_QUOTIENT_SCALE: i32 = 1000;
/// Least significant digits of a quotient.
const MIN_SIGNIFICANT: i32 = 16;

/// `a + b`
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn add(a: &Numeric, b: &Numeric) -> Result<Numeric> {
    if let Some(special) = special_sum(a.sign(), b.sign()) {
        return Ok(Numeric::special(special));
    }
    let scale = a.dscale().max(b.dscale());
    if let (Some(x), Some(y)) = (small(a, scale), small(b, scale))
        && let Some(sum) = x.checked_add(y)
    {
        return from_scaled_i128(sum, scale);
    }
    from_scaled(big(a, scale) + big(b, scale), i32::from(scale))
}

/// `a - b`
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn sub(a: &Numeric, b: &Numeric) -> Result<Numeric> {
    add(a, &neg(b))
}

/// `a * b`
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn mul(a: &Numeric, b: &Numeric) -> Result<Numeric> {
    if !a.is_finite() || !b.is_finite() {
        return Ok(Numeric::special(special_product(a, b)));
    }
    let scale = i32::from(a.dscale()) + i32::from(b.dscale());
    if let (Some(x), Some(y)) = (small(a, a.dscale()), small(b, b.dscale()))
        && let Some(product) = x.checked_mul(y)
        && scale <= MAX_SCALE
    {
        return from_scaled_i128(product, scale as u16);
    }
    let product = big(a, a.dscale()) * big(b, b.dscale());
    if scale <= MAX_SCALE {
        return from_scaled(product, scale);
    }
    from_scaled(shift_rounded(product, MAX_SCALE - scale), MAX_SCALE)
}

/// `a / b`
///
/// # Errors
/// 22012: `b` is zero. 22003: the result has more digits than numeric holds.
pub fn div(a: &Numeric, b: &Numeric) -> Result<Numeric> {
    if a.sign() == Sign::NaN || b.sign() == Sign::NaN || !a.is_finite() && !b.is_finite() {
        return Ok(Numeric::special(Sign::NaN));
    }
    if b.is_zero() {
        return Err(division_by_zero());
    }
    if !a.is_finite() {
        return Ok(Numeric::special(special_product(a, b)));
    }
    if !b.is_finite() {
        return Ok(Numeric::ZERO);
    }
    let scale = quotient_scale(a, b);
    let numerator = shift_rounded(
        big(a, a.dscale()),
        scale + i32::from(b.dscale()) - i32::from(a.dscale()) + 1,
    );
    let quotient = numerator / big(b, b.dscale());
    from_scaled(shift_rounded(quotient, -1), scale)
}

/// `a % b`: the sign is that of `a`.
///
/// # Errors
/// 22012: `b` is zero. 22003: the result has more digits than numeric holds.
pub fn rem(a: &Numeric, b: &Numeric) -> Result<Numeric> {
    if a.sign() == Sign::NaN || b.sign() == Sign::NaN || !a.is_finite() {
        return Ok(Numeric::special(Sign::NaN));
    }
    if b.is_zero() {
        return Err(division_by_zero());
    }
    if !b.is_finite() {
        return Ok(a.clone());
    }
    let scale = a.dscale().max(b.dscale());
    from_scaled(big(a, scale) % big(b, scale), i32::from(scale))
}

/// `-a`
pub fn neg(a: &Numeric) -> Numeric {
    let sign = match a.sign() {
        Sign::Positive if a.is_zero() => Sign::Positive,
        Sign::Positive => Sign::Negative,
        Sign::Negative => Sign::Positive,
        Sign::NaN => Sign::NaN,
        Sign::PositiveInfinity => Sign::NegativeInfinity,
        Sign::NegativeInfinity => Sign::PositiveInfinity,
    };
    with_sign(a, sign)
}

/// `abs(a)`
pub fn abs(a: &Numeric) -> Numeric {
    if matches!(a.sign(), Sign::Negative | Sign::NegativeInfinity) {
        neg(a)
    } else {
        a.clone()
    }
}

/// -1, 0 or 1.
pub fn signum(a: &Numeric) -> i32 {
    match a.sign() {
        Sign::Negative | Sign::NegativeInfinity => -1,
        _ if a.is_zero() => 0,
        _ => 1,
    }
}

/// Rounded half away from zero to `scale` digits after the point (negative: before it).
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn round(a: &Numeric, scale: i32) -> Result<Numeric> {
    rescale(a, scale, shift_rounded)
}

/// Cut off at `scale` digits after the point.
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn trunc(a: &Numeric, scale: i32) -> Result<Numeric> {
    rescale(a, scale, |value, shift| value / BigInt::from(10u8).pow(-shift as u32))
}

fn rescale(a: &Numeric, scale: i32, cut: impl Fn(BigInt, i32) -> BigInt) -> Result<Numeric> {
    let shown = scale.clamp(0, MAX_SCALE);
    if !a.is_finite() {
        return Ok(a.clone());
    }
    if i32::from(a.dscale()) <= scale {
        return Ok(a.clone().with_dscale(shown as u16));
    }
    let shift = scale.max(-131_072) - i32::from(a.dscale());
    let kept = cut(big(a, a.dscale()), shift);
    if scale >= 0 {
        from_scaled(kept, scale)
    } else {
        from_scaled(kept * BigInt::from(10u8).pow(scale.unsigned_abs()), 0)
    }
}

/// Least integer not below `a`.
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn ceil(a: &Numeric) -> Result<Numeric> {
    let whole = trunc(a, 0)?;
    if whole.cmp(a) == Ordering::Less {
        add(&whole, &Numeric::from_i128(1))
    } else {
        Ok(whole)
    }
}

/// Greatest integer not above `a`.
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn floor(a: &Numeric) -> Result<Numeric> {
    let whole = trunc(a, 0)?;
    if whole.cmp(a) == Ordering::Greater {
        sub(&whole, &Numeric::from_i128(1))
    } else {
        Ok(whole)
    }
}

/// Fits `a` into numeric(precision, scale): rounds, then checks the digits before the point.
///
/// # Errors
/// 22003: `a` has more digits before the point than the type, or is infinite.
pub fn fit(a: Numeric, precision: u16, scale: i16) -> Result<Numeric> {
    let limit = i32::from(precision) - i32::from(scale);
    if a.sign() == Sign::NaN {
        return Ok(a);
    }
    if !a.is_finite() {
        return Err(field_overflow(format!(
            "A field with precision {precision}, scale {scale} cannot hold an infinite value."
        )));
    }
    let rounded = round(&a, i32::from(scale))?;
    if !rounded.is_zero() && decimals_before_point(&rounded) > limit {
        let bound = if limit == 0 {
            "1".to_string()
        } else {
            format!("10^{limit}")
        };
        let detail = format!(
            "A field with precision {precision}, scale {scale} must round to an absolute value less than {bound}."
        );
        return Err(field_overflow(detail));
    }
    Ok(rounded)
}

/// The integer nearest to `a`; None for NaN, infinities and what 128 bits cannot hold.
pub fn to_i128(a: &Numeric) -> Option<i128> {
    if !a.is_finite() {
        return None;
    }
    let whole = round(a, 0).ok()?;
    small(&whole, 0)
}

/// From an integer times `10^-scale`.
///
/// # Errors
/// 22003: the result has more digits than numeric holds.
pub fn from_scaled_i128(value: i128, scale: u16) -> Result<Numeric> {
    let pad = (4 - scale % 4) % 4;
    let Some(mut rest) = value.unsigned_abs().checked_mul(10u128.pow(u32::from(pad))) else {
        return from_scaled(BigInt::from(value), i32::from(scale));
    };
    let mut digits = [0u16; 10];
    let mut used = 0;
    while rest > 0 {
        digits[used] = (rest % 10_000) as u16;
        rest /= 10_000;
        used += 1;
    }
    digits[..used].reverse();
    let weight = used as i32 - 1 - i32::from((scale + pad) / 4);
    let sign = if value < 0 { Sign::Negative } else { Sign::Positive };
    Ok(Numeric::from_parts(sign, weight as i16, scale, &digits[..used])?)
}

/// The value times `10^scale`, if 128 bits hold it and its own digits do not reach beyond `scale`.
fn small(a: &Numeric, scale: u16) -> Option<i128> {
    if a.digits().len() > 8 {
        return None;
    }
    let value = a.digits().iter().fold(0i128, |sum, d| sum * 10_000 + i128::from(*d));
    let lowest = 4 * (i32::from(a.weight()) + 1 - a.digits().len() as i32);
    let shift = i32::from(scale) + lowest;
    let scaled = if shift >= 0 {
        value.checked_mul(10i128.checked_pow(shift as u32)?)?
    } else {
        let unit = 10i128.checked_pow(shift.unsigned_abs())?;
        (value % unit == 0).then_some(value / unit)?
    };
    Some(if a.sign() == Sign::Negative { -scaled } else { scaled })
}

fn big(a: &Numeric, scale: u16) -> BigInt {
    if let Some(value) = small(a, scale) {
        return BigInt::from(value);
    }
    let hundreds: Vec<u8> = a
        .digits()
        .iter()
        .flat_map(|d| [(d / 100) as u8, (d % 100) as u8])
        .collect();
    let magnitude = BigUint::from_radix_be(&hundreds, 100).unwrap_or_default();
    let lowest = 4 * (i32::from(a.weight()) + 1 - a.digits().len() as i32);
    let value = shift_rounded(
        BigInt::from_biguint(BigSign::Plus, magnitude),
        i32::from(scale) + lowest,
    );
    if a.sign() == Sign::Negative { -value } else { value }
}

/// `value * 10^shift`, rounded half away from zero.
fn shift_rounded(value: BigInt, shift: i32) -> BigInt {
    if shift >= 0 {
        return value * BigInt::from(10u8).pow(shift as u32);
    }
    let unit = BigInt::from(10u8).pow(shift.unsigned_abs());
    let half = &unit / BigInt::from(2u8);
    if value.sign() == BigSign::Minus {
        (value - half) / unit
    } else {
        (value + half) / unit
    }
}

fn from_scaled(value: BigInt, scale: i32) -> Result<Numeric> {
    if let Ok(small) = i128::try_from(&value)
        && small.unsigned_abs() < 1 << 110
    {
        return from_scaled_i128(small, scale as u16);
    }
    let text = value.to_string();
    let parsed = Numeric::parse(&format!("{text}e-{scale}")).map_err(|_| overflow())?;
    Ok(parsed.with_dscale(scale as u16))
}

fn with_sign(a: &Numeric, sign: Sign) -> Numeric {
    Numeric::from_parts(sign, a.weight(), a.dscale(), a.digits()).unwrap_or(Numeric::special(Sign::NaN))
}

/// Digits before the point; zero or less for values below one.
fn decimals_before_point(a: &Numeric) -> i32 {
    let first = a.digits().first().copied().unwrap_or(0);
    let digits = match first {
        0..10 => 1,
        10..100 => 2,
        100..1000 => 3,
        _ => 4,
    };
    4 * i32::from(a.weight()) + digits
}

/// PostgreSQL's `select_div_scale`.
fn quotient_scale(a: &Numeric, b: &Numeric) -> i32 {
    let weight = |n: &Numeric| if n.is_zero() { 0 } else { i32::from(n.weight()) };
    let first = |n: &Numeric| n.digits().first().copied().unwrap_or(0);
    let mut quotient = weight(a) - weight(b);
    if first(a) <= first(b) {
        quotient -= 1;
    }
    let shown = i32::from(a.dscale().max(b.dscale()));
    (MIN_SIGNIFICANT - 4 * quotient).max(shown).clamp(0, MAX_QUOTIENT_SCALE)
}

fn special_sum(a: Sign, b: Sign) -> Option<Sign> {
    use Sign::{NaN, Negative, NegativeInfinity, Positive, PositiveInfinity};
    Some(match (a, b) {
        (Positive | Negative, Positive | Negative) => return None,
        (NaN, _) | (_, NaN) | (PositiveInfinity, NegativeInfinity) | (NegativeInfinity, PositiveInfinity) => NaN,
        (PositiveInfinity, _) | (_, PositiveInfinity) => PositiveInfinity,
        _ => NegativeInfinity,
    })
}

fn special_product(a: &Numeric, b: &Numeric) -> Sign {
    if a.sign() == Sign::NaN || b.sign() == Sign::NaN || a.is_zero() || b.is_zero() {
        return Sign::NaN;
    }
    if signum(a) * signum(b) < 0 {
        Sign::NegativeInfinity
    } else {
        Sign::PositiveInfinity
    }
}

/// 22012
#[cold]
pub fn division_by_zero() -> SqlError {
    SqlError::new(code::DIVISION_BY_ZERO, "division by zero")
}

#[cold]
fn overflow() -> SqlError {
    SqlError::new(code::OUT_OF_RANGE, "value overflows numeric format")
}

#[cold]
fn field_overflow(detail: String) -> SqlError {
    SqlError::new(code::OUT_OF_RANGE, "numeric field overflow").with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bigdecimal::BigDecimal;
    use proptest::prelude::*;
    use std::str::FromStr;

    fn n(text: &str) -> Numeric {
        Numeric::parse(text).unwrap()
    }

    #[test]
    fn scales_are_postgresqls() {
        let cases = [
            (div(&n("1"), &n("3")), "0.33333333333333333333"),
            (div(&n("10"), &n("3")), "3.3333333333333333"),
            (div(&n("1.50"), &n("0.5")), "3.0000000000000000"),
            (div(&n("100000"), &n("7")), "14285.714285714286"),
            (mul(&n("1.50"), &n("2.000")), "3.00000"),
            (add(&n("0.1"), &n("0.20")), "0.30"),
            (rem(&n("-7.5"), &n("2")), "-1.5"),
            (round(&n("2.5"), 0), "3"),
            (round(&n("-2.345"), 2), "-2.35"),
            (round(&n("1250"), -2), "1300"),
            (trunc(&n("-2.9"), 0), "-2"),
            (ceil(&n("2.1")), "3"),
            (floor(&n("-2.1")), "-3"),
            (fit(n("123.456"), 5, 2), "123.46"),
            (round(&n("0.5"), 3), "0.500"),
        ];
        for (got, want) in cases {
            assert_eq!(got.unwrap().to_string(), want);
        }
        assert_eq!(fit(n("1234.5"), 5, 2).unwrap_err().code(), "22003");
        assert_eq!(div(&n("1"), &n("0")).unwrap_err().code(), "22012");
    }

    proptest! {
        #[test]
        fn agrees_with_big_decimals(a in "-?[0-9]{1,40}(\\.[0-9]{1,20})?", b in "-?[0-9]{1,30}(\\.[0-9]{1,9})?") {
            let (x, y) = (n(&a), n(&b));
            let (p, q) = (BigDecimal::from_str(&a).unwrap(), BigDecimal::from_str(&b).unwrap());
            let same = |got: Numeric, want: BigDecimal| BigDecimal::from_str(&got.to_string()).unwrap() == want;
            prop_assert!(same(add(&x, &y).unwrap(), &p + &q));
            prop_assert!(same(sub(&x, &y).unwrap(), &p - &q));
            prop_assert!(same(mul(&x, &y).unwrap(), &p * &q));
        }
    }
}
