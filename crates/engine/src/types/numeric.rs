//! `numeric`: exact decimals in PostgreSQL's representation.
//!
//! A value is `sign * sum(digits[i] * 10000^(weight - i))`; `dscale` is the number of decimal digits shown after the
//! point. Invariants: digits are below 10000; the first and the last digit are not zero; zero has no digits, weight 0
//! and a positive sign; NaN and the infinities have neither digits nor scale. `dscale` takes no part in equality and
//! order.

use super::digits::Digits;
use crate::error::{Error, Result};
use std::cmp::Ordering;
use std::fmt;

/// Sign word, as on PostgreSQL's wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sign {
    /// Zero or more.
    Positive,
    /// Below zero.
    Negative,
    /// Not a number; above all others in order.
    NaN,
    /// Infinity.
    PositiveInfinity,
    /// Negative infinity.
    NegativeInfinity,
}

impl Sign {
    /// The word on the wire.
    pub const fn wire(self) -> u16 {
        match self {
            Sign::Positive => 0x0000,
            Sign::Negative => 0x4000,
            Sign::NaN => 0xC000,
            Sign::PositiveInfinity => 0xD000,
            Sign::NegativeInfinity => 0xF000,
        }
    }

    /// The sign that a wire word names.
    pub const fn from_wire(word: u16) -> Option<Sign> {
        Some(match word {
            0x0000 => Sign::Positive,
            0x4000 => Sign::Negative,
            0xC000 => Sign::NaN,
            0xD000 => Sign::PositiveInfinity,
            0xF000 => Sign::NegativeInfinity,
            _ => return None,
        })
    }

    /// Place in the order of classes: -inf, negative, positive, +inf, NaN.
    const fn rank(self) -> u8 {
        match self {
            Sign::NegativeInfinity => 0,
            Sign::Negative => 1,
            Sign::Positive => 2,
            Sign::PositiveInfinity => 3,
            Sign::NaN => 4,
        }
    }
}

/// Decimal digits in one base-10000 digit.
pub const DECIMALS_PER_DIGIT: i32 = 4;
/// Digits of the greatest integer of 128 bits.
const I128_DIGITS: usize = 10;
const _: () = assert!(u128::MAX.ilog10() < DECIMALS_PER_DIGIT as u32 * I128_DIGITS as u32);
/// Digits before the point that PostgreSQL admits.
const MAX_INTEGER_DECIMALS: i64 = 131_072;
/// Digits after the point that PostgreSQL admits.
const MAX_SCALE: i64 = 16_383;

/// An exact decimal.
#[derive(Debug, Clone)]
pub struct Numeric {
    sign: Sign,
    weight: i16,
    dscale: u16,
    digits: Digits,
}

impl Numeric {
    /// Zero, with no decimals.
    pub const ZERO: Numeric = Numeric {
        sign: Sign::Positive,
        weight: 0,
        dscale: 0,
        digits: Digits::NONE,
    };

    /// A value from its parts; normalises it.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: a digit of 10000 or more, or a scale beyond the greatest.
    pub fn from_parts(sign: Sign, weight: i16, dscale: u16, digits: &[u16]) -> Result<Numeric> {
        Numeric::checked(sign, weight, dscale, Digits::from(digits))
    }

    fn checked(sign: Sign, weight: i16, dscale: u16, digits: Digits) -> Result<Numeric> {
        if digits.iter().any(|d| *d >= 10_000) || i64::from(dscale) > MAX_SCALE {
            return Err(Error::Corrupt("numeric digit or scale out of range".into()));
        }
        Ok(Numeric {
            sign,
            weight,
            dscale,
            digits,
        }
        .normalised())
    }

    /// NaN or an infinity.
    pub fn special(sign: Sign) -> Numeric {
        Numeric { sign, ..Numeric::ZERO }
    }

    /// Sign.
    pub fn sign(&self) -> Sign {
        self.sign
    }

    /// Power of 10000 of the first digit.
    pub fn weight(&self) -> i16 {
        self.weight
    }

    /// Decimal digits shown after the point.
    pub fn dscale(&self) -> u16 {
        self.dscale
    }

    /// Base-10000 digits, most significant first.
    pub fn digits(&self) -> &[u16] {
        &self.digits
    }

    /// Whether this is neither NaN nor an infinity.
    pub fn is_finite(&self) -> bool {
        matches!(self.sign, Sign::Positive | Sign::Negative)
    }

    /// Whether this is zero.
    pub fn is_zero(&self) -> bool {
        self.is_finite() && self.digits.is_empty()
    }

    /// The same value that shows `dscale` decimals (none are removed from the value).
    pub fn with_dscale(mut self, dscale: u16) -> Numeric {
        self.dscale = dscale;
        self
    }

    /// From an integer.
    pub fn from_i128(value: i128) -> Numeric {
        let mut rest = value.unsigned_abs();
        let (mut digits, mut first) = ([0; I128_DIGITS], I128_DIGITS);
        while rest > 0 {
            first -= 1;
            digits[first] = (rest % 10_000) as u16;
            rest /= 10_000;
        }
        let digits = Digits::from(&digits[first..]);
        let weight = digits.len().saturating_sub(1) as i16;
        let sign = if value < 0 { Sign::Negative } else { Sign::Positive };
        Numeric {
            sign,
            weight,
            dscale: 0,
            digits,
        }
        .normalised()
    }

    /// The nearest double.
    pub fn to_f64(&self) -> f64 {
        match self.sign {
            Sign::NaN => f64::NAN,
            Sign::PositiveInfinity => f64::INFINITY,
            Sign::NegativeInfinity => f64::NEG_INFINITY,
            Sign::Positive | Sign::Negative => self.to_string().parse().unwrap_or(f64::NAN),
        }
    }

    /// From a double, by its shortest decimal text with at most 15 significant digits, as PostgreSQL does.
    pub fn from_f64(value: f64) -> Numeric {
        if value.is_nan() {
            return Numeric::special(Sign::NaN);
        }
        if value.is_infinite() {
            return Numeric::special(if value > 0.0 {
                Sign::PositiveInfinity
            } else {
                Sign::NegativeInfinity
            });
        }
        Numeric::parse(&trim_mantissa(&format!("{value:.14e}"))).unwrap_or(Numeric::special(Sign::NaN))
    }

    /// From text: digits with an optional point and exponent, NaN, infinity. Underscores are not admitted.
    ///
    /// # Errors
    /// [`Error::InvalidText`]: the text is no number. The value exceeds what a numeric holds.
    pub fn parse(text: &str) -> Result<Numeric> {
        let trimmed = text.trim();
        let invalid = || Error::InvalidText {
            ty: "numeric",
            text: text.to_string(),
        };
        if let Some(special) = parse_special(trimmed) {
            return Ok(Numeric::special(special));
        }
        let (sign, body) = match trimmed.as_bytes().first() {
            Some(b'-') => (Sign::Negative, &trimmed[1..]),
            Some(b'+') => (Sign::Positive, &trimmed[1..]),
            _ => (Sign::Positive, trimmed),
        };
        let (mantissa, exponent) = match body.find(['e', 'E']) {
            Some(at) => (&body[..at], parse_exponent(&body[at + 1..]).ok_or_else(invalid)?),
            None => (body, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !all_digits(whole) || !all_digits(fraction) {
            return Err(invalid());
        }
        let decimals: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
        from_decimals(
            sign,
            &decimals,
            whole.len() as i64 + exponent,
            fraction.len() as i64 - exponent,
        )
    }

    /// PostgreSQL's binary form: ndigits, weight, sign, dscale, digits; big endian.
    pub fn write_wire(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.digits.len() as u16).to_be_bytes());
        out.extend_from_slice(&self.weight.to_be_bytes());
        out.extend_from_slice(&self.sign.wire().to_be_bytes());
        out.extend_from_slice(&self.dscale.to_be_bytes());
        for digit in self.digits.iter() {
            out.extend_from_slice(&digit.to_be_bytes());
        }
    }

    /// Reads what `write_wire` (or a client) wrote.
    ///
    /// # Errors
    /// [`Error::InvalidText`]: bytes that are no numeric.
    pub fn read_wire(bytes: &[u8]) -> Result<Numeric> {
        let word = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        let corrupt = || Error::InvalidText {
            ty: "numeric",
            text: "(binary)".into(),
        };
        let count = usize::from(word(0).ok_or_else(corrupt)?);
        let weight = word(2).ok_or_else(corrupt)? as i16;
        let sign = word(4).and_then(Sign::from_wire).ok_or_else(corrupt)?;
        let dscale = word(6).ok_or_else(corrupt)?;
        if bytes.len() != 8 + 2 * count {
            return Err(corrupt());
        }
        let digits = bytes[8..].chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        Numeric::checked(sign, weight, dscale, digits.collect())
    }

    /// Memcomparable form: class byte, then weight and digits (inverted where negative).
    pub(crate) fn write_key(&self, out: &mut Vec<u8>) {
        let class = match self.sign {
            Sign::NegativeInfinity => 1,
            Sign::Negative => 2,
            Sign::Positive if self.digits.is_empty() => 3,
            Sign::Positive => 4,
            Sign::PositiveInfinity => 5,
            Sign::NaN => 6,
        };
        out.push(class);
        if self.digits.is_empty() {
            return;
        }
        let start = out.len();
        out.extend_from_slice(&((self.weight as u16) ^ 0x8000).to_be_bytes());
        for digit in self.digits.iter() {
            out.extend_from_slice(&(digit + 1).to_be_bytes());
        }
        out.extend_from_slice(&[0, 0]);
        if self.sign == Sign::Negative {
            out[start..].iter_mut().for_each(|b| *b = !*b);
        }
    }

    /// Length of the memcomparable form that `bytes` begin with; None where they are none.
    pub(crate) fn key_len(bytes: &[u8]) -> Option<usize> {
        let end = match bytes.first()? {
            2 => [0xFF; 2],
            4 => [0; 2],
            _ => return Some(1),
        };
        let digits = bytes.get(3..)?.chunks_exact(2).position(|digit| digit == end)?;
        Some(3 + 2 * (digits + 1))
    }

    /// Reads what `write_key` wrote, of a number of this scale.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: bytes that it did not write.
    pub(crate) fn read_key(bytes: &[u8], dscale: u16) -> Result<Numeric> {
        let corrupt = || Error::Corrupt("a number's key that is none".into());
        let negative = match bytes.first().ok_or_else(corrupt)? {
            1 => return Ok(Numeric::special(Sign::NegativeInfinity)),
            2 => true,
            3 => return Numeric::from_parts(Sign::Positive, 0, dscale, &[]),
            4 => false,
            5 => return Ok(Numeric::special(Sign::PositiveInfinity)),
            6 => return Ok(Numeric::special(Sign::NaN)),
            _ => return Err(corrupt()),
        };
        let mut words = bytes[1..].chunks_exact(2).map(|word| {
            let word = u16::from_be_bytes([word[0], word[1]]);
            if negative { !word } else { word }
        });
        let weight = (words.next().ok_or_else(corrupt)? ^ 0x8000) as i16;
        let digits = words.take_while(|digit| *digit != 0).map(|digit| digit - 1).collect();
        let sign = if negative { Sign::Negative } else { Sign::Positive };
        Numeric::checked(sign, weight, dscale, digits)
    }

    fn normalised(mut self) -> Numeric {
        if !self.is_finite() {
            return Numeric::special(self.sign);
        }
        let zeros = self.digits.iter().take_while(|d| **d == 0).count();
        let end = self.digits.iter().rposition(|d| *d != 0).map_or(zeros, |last| last + 1);
        self.digits.keep(zeros..end);
        self.weight = self.weight.wrapping_sub(zeros as i16);
        if self.digits.is_empty() {
            self.weight = 0;
            self.sign = Sign::Positive;
        }
        self
    }

    fn digit_at(&self, power: i32) -> u16 {
        let index = i32::from(self.weight) - power;
        usize::try_from(index)
            .ok()
            .and_then(|i| self.digits.get(i))
            .copied()
            .unwrap_or(0)
    }

    fn compare_magnitude(&self, other: &Numeric) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self
                .weight
                .cmp(&other.weight)
                .then_with(|| self.digits[..].cmp(&other.digits[..])),
        }
    }
}

fn trim_mantissa(text: &str) -> String {
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
        }
        None => text.to_string(),
    }
}

fn parse_special(text: &str) -> Option<Sign> {
    let lower = text.to_ascii_lowercase();
    Some(match lower.as_str() {
        "nan" => Sign::NaN,
        "inf" | "infinity" | "+inf" | "+infinity" => Sign::PositiveInfinity,
        "-inf" | "-infinity" => Sign::NegativeInfinity,
        _ => return None,
    })
}

fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse::<i64>()
        .ok()
        .map(|e| e.clamp(-1_000_000, 1_000_000))
        .or(Some(1_000_000))
}

/// `decimals` holds single digits; the point stands after the first `point` of them.
fn from_decimals(sign: Sign, decimals: &[u8], point: i64, scale: i64) -> Result<Numeric> {
    let zeros = decimals.iter().take_while(|d| **d == 0).count();
    let significant = &decimals[zeros..];
    let point = point - zeros as i64;
    if scale > MAX_SCALE || (!significant.is_empty() && point > MAX_INTEGER_DECIMALS) {
        return Err(Error::OutOfRange("value overflows numeric format".into()));
    }
    let dscale = scale.max(0) as u16;
    if significant.is_empty() {
        return Ok(Numeric {
            dscale,
            ..Numeric::ZERO
        });
    }
    let width = i64::from(DECIMALS_PER_DIGIT);
    let groups_before = (point + width - 1).div_euclid(width);
    let lead = (groups_before * width - point) as usize;
    let mut padded = vec![0u8; lead];
    padded.extend_from_slice(significant);
    let groups = padded.chunks(DECIMALS_PER_DIGIT as usize);
    let digit = |group: &[u8]| (0..4).fold(0, |v, i| v * 10 + u16::from(group.get(i).copied().unwrap_or(0)));
    let digits = groups.map(digit).collect();
    Ok(Numeric {
        sign,
        weight: (groups_before - 1) as i16,
        dscale,
        digits,
    }
    .normalised())
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sign {
            Sign::NaN => return f.write_str("NaN"),
            Sign::PositiveInfinity => return f.write_str("Infinity"),
            Sign::NegativeInfinity => return f.write_str("-Infinity"),
            Sign::Negative => f.write_str("-")?,
            Sign::Positive => {}
        }
        let top = if self.digits.is_empty() {
            0
        } else {
            i32::from(self.weight).max(0)
        };
        write!(f, "{}", self.digit_at(top))?;
        for power in (0..top).rev() {
            write!(f, "{:04}", self.digit_at(power))?;
        }
        if self.dscale == 0 {
            return Ok(());
        }
        f.write_str(".")?;
        let mut left = usize::from(self.dscale);
        let mut power = -1;
        while left > 0 {
            let group = format!("{:04}", self.digit_at(power));
            let take = left.min(4);
            f.write_str(&group[..take])?;
            left -= take;
            power -= 1;
        }
        Ok(())
    }
}

impl PartialEq for Numeric {
    fn eq(&self, other: &Numeric) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Numeric {}

impl std::hash::Hash for Numeric {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.sign, self.weight, &self.digits[..]).hash(state);
    }
}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Numeric) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Numeric {
    fn cmp(&self, other: &Numeric) -> Ordering {
        self.sign.rank().cmp(&other.sign.rank()).then_with(|| match self.sign {
            Sign::Positive => self.compare_magnitude(other),
            Sign::Negative => other.compare_magnitude(self),
            _ => Ordering::Equal,
        })
    }
}

impl std::str::FromStr for Numeric {
    type Err = Error;
    fn from_str(text: &str) -> Result<Numeric> {
        Numeric::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_as_postgresql_prints_it() {
        for (given, shown) in [
            ("0", "0"),
            ("0.00", "0.00"),
            ("-0", "0"),
            ("1", "1"),
            ("10000", "10000"),
            ("99999.9999", "99999.9999"),
            ("0.0001", "0.0001"),
            ("0.00001", "0.00001"),
            ("-123456789.987654321", "-123456789.987654321"),
            ("1e10", "10000000000"),
            ("1.5e-3", "0.0015"),
            (".5", "0.5"),
            ("5.", "5"),
            ("000123.4500", "123.4500"),
            ("NaN", "NaN"),
            ("-Infinity", "-Infinity"),
            ("1e-10", "0.0000000001"),
        ] {
            assert_eq!(Numeric::parse(given).unwrap().to_string(), shown, "{given}");
        }
        for bad in ["", "-", ".", "1.2.3", "1e", "abc", "1_0", "e5"] {
            assert!(Numeric::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn order_agrees_with_key_order_and_wire_round_trips() {
        let sorted = [
            "-Infinity",
            "-10000.5",
            "-10000",
            "-9999",
            "-1.1",
            "-1",
            "-0.0001",
            "0",
            "0.00000001",
            "0.0001",
            "0.00011",
            "1",
            "1.0001",
            "9999",
            "10000",
            "123456789012345678901234567890",
            "Infinity",
            "NaN",
        ]
        .map(|t| Numeric::parse(t).unwrap());
        for (i, a) in sorted.iter().enumerate() {
            let mut wire = Vec::new();
            a.write_wire(&mut wire);
            assert_eq!(Numeric::read_wire(&wire).unwrap(), *a);
            for (j, b) in sorted.iter().enumerate() {
                let (mut ka, mut kb) = (Vec::new(), Vec::new());
                a.write_key(&mut ka);
                b.write_key(&mut kb);
                assert_eq!(a.cmp(b), i.cmp(&j), "{a} {b}");
                assert_eq!(ka.cmp(&kb), i.cmp(&j), "{a} {b}");
            }
        }
        assert_eq!(Numeric::parse("1.50").unwrap(), Numeric::parse("1.5").unwrap());
    }

    #[test]
    fn integers_and_doubles() {
        assert_eq!(Numeric::from_i128(-1_234_567_890_123).to_string(), "-1234567890123");
        assert_eq!(Numeric::from_i128(10_000).to_string(), "10000");
        assert_eq!(Numeric::from_f64(0.1).to_string(), "0.1");
        assert_eq!(Numeric::from_f64(1e20).to_string(), "100000000000000000000");
        assert_eq!(Numeric::from_f64(-2.5e-7).to_f64(), -2.5e-7);
    }
}
