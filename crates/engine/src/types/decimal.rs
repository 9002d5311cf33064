//! Numerics as most are written, from text to the wire form: no value in between, and no list of digits.

use super::Sign;

/// Decimal digits that are read here. With three zeros more they still fit 64 bits.
const DIGITS_MAX: usize = 16;
/// Digits of base 10000 that so many can make: a group may be cut by the point.
const GROUPS_MAX: usize = DIGITS_MAX.div_ceil(4) + 1;
const _: () = assert!(10_u128.pow(DIGITS_MAX as u32 + 3) <= u64::MAX as u128 + 1);

/// Appends the wire form (`Numeric::write_wire`) of a sign, digits and maybe a point, with precision and scale of a
/// numeric(p, s). False, with nothing appended, for all other text: what is no number, what has to be rounded or does not
/// fit the type, and numbers of more than 16 digits.
pub fn write_decimal(text: &[u8], fit: Option<(u16, i16)>, out: &mut Vec<u8>) -> bool {
    let Some((sign, value, scale)) = read(text) else {
        return false;
    };
    let Some(shown) = shown_scale(value, scale, fit) else {
        return false;
    };
    let pad = (4 - scale % 4) % 4;
    let mut rest = value * 10_u64.pow(pad);
    let mut weight = -1 - ((scale + pad) / 4) as i16;
    let (mut groups, mut used) = ([0_u16; GROUPS_MAX], 0);
    while rest > 0 {
        let group = (rest % 10_000) as u16;
        rest /= 10_000;
        weight += 1;
        // Zeros behind the last digit are not kept.
        if group > 0 || used > 0 {
            groups[used] = group;
            used += 1;
        }
    }
    let (sign, weight) = if used == 0 { (Sign::Positive, 0) } else { (sign, weight) };
    out.extend_from_slice(&(used as u16).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&sign.wire().to_be_bytes());
    out.extend_from_slice(&shown.to_be_bytes());
    for group in groups[..used].iter().rev() {
        out.extend_from_slice(&group.to_be_bytes());
    }
    true
}

/// Sign, all digits as one number, and how many of them are behind the point.
fn read(text: &[u8]) -> Option<(Sign, u64, u32)> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (Sign::Negative, digits),
        [b'+', digits @ ..] => (Sign::Positive, digits),
        digits => (Sign::Positive, digits),
    };
    if digits.len() > DIGITS_MAX + 1 {
        return None;
    }
    let (mut value, mut count, mut point) = (0_u64, 0, None);
    for byte in digits {
        match byte {
            b'0'..=b'9' => {
                value = value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
                count += 1;
            }
            b'.' if point.is_none() => point = Some(count),
            _ => return None,
        }
    }
    let scale = point.map_or(0, |before| count - before);
    (1..=DIGITS_MAX).contains(&count).then_some((sign, value, scale as u32))
}

/// Digits that the value shows behind the point; None: it does not fit as it is.
fn shown_scale(value: u64, scale: u32, fit: Option<(u16, i16)>) -> Option<u16> {
    let Some((precision, most)) = fit else {
        return Some(scale as u16);
    };
    let most = u16::try_from(most).ok().filter(|most| scale <= u32::from(*most))?;
    let before = u32::from(precision.checked_sub(most)?);
    let bound = 10_u64.checked_pow(before).unwrap_or(u64::MAX);
    (value / 10_u64.pow(scale) < bound).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Numeric;
    use proptest::prelude::*;

    fn wire(text: &str) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        write_decimal(text.as_bytes(), None, &mut out).then_some(out)
    }

    fn wanted(text: &str) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        Numeric::parse(text).ok()?.write_wire(&mut out);
        Some(out)
    }

    proptest! {
        #[test]
        fn decimals_are_as_a_numeric_writes_them(text in "[-+]?[0-9]{0,12}0{0,5}[.]?0{0,5}[0-9]{0,6}") {
            if let Some(bytes) = wire(&text) {
                prop_assert_eq!(Some(bytes), wanted(&text));
            } else {
                let digits = text.bytes().filter(u8::is_ascii_digit).count();
                prop_assert!(digits == 0 || digits > DIGITS_MAX, "{}", text);
            }
        }

        #[test]
        fn what_is_taken_is_a_number(text in "[-+0-9.eE xNa_]{0,6}") {
            if let Some(bytes) = wire(&text) {
                prop_assert_eq!(Some(bytes), wanted(&text));
            }
        }
    }

    #[test]
    fn edges() {
        for text in [
            "0",
            "-0.00",
            "9999999999999999",
            "0.000000000000001",
            "10000",
            "0.0001",
            "5.",
            ".5",
            "-1.0",
        ] {
            assert_eq!(wire(text), wanted(text), "{text}");
            assert!(wire(text).is_some(), "{text}");
        }
        for text in ["", "-", ".", "1.2.3", "1e5", " 1", "NaN", "12345678901234567"] {
            assert_eq!(wire(text), None, "{text}");
        }
        let fits = |text: &str, fit| write_decimal(text.as_bytes(), Some(fit), &mut Vec::new());
        assert!(fits("99.99", (4, 2)) && fits("0.5", (2, 2)) && fits("-7", (1, 0)) && fits("1", (1000, 2)));
        assert!(!fits("100", (4, 2)) && !fits("0.555", (4, 2)) && !fits("1", (2, 2)) && !fits("7", (3, -1)));
        assert!(!fits("0.1", (2, 5)), "its precision is below its scale");
    }
}
