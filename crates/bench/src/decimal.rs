//! Numbers of type `numeric` that fit 64 bits, as the wire carries them in binary.
//!
//! ```text
//!   digits of 10,000 (i16) | weight of the first (i16) | sign (0 or 0x4000) | digits behind the point (i16) | digits
//! ```

use bytes::{BufMut, BytesMut};
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use std::error::Error;

const BASE: i128 = 10_000;
const DIGITS: u32 = 4;
const NEGATIVE: u16 = 0x4000;

/// `units` divided by ten to the power of `scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    /// The number without its point.
    pub units: i64,
    /// Digits behind the point.
    pub scale: u16,
}

impl Decimal {
    /// An amount of money in hundredths.
    pub const fn cents(units: i64) -> Self {
        Self { units, scale: 2 }
    }

    /// The value in so many digits behind the point; what is behind them is cut off.
    pub fn to_scale(self, scale: u16) -> i64 {
        match scale.checked_sub(self.scale) {
            Some(more) => self.units * 10i64.pow(u32::from(more)),
            None => self.units / 10i64.pow(u32::from(self.scale - scale)),
        }
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = 10u64.pow(u32::from(self.scale));
        let (sign, units) = (if self.units < 0 { "-" } else { "" }, self.units.unsigned_abs());
        let width = usize::from(self.scale);
        match self.scale {
            0 => write!(f, "{sign}{units}"),
            _ => write!(f, "{sign}{}.{:0width$}", units / unit, units % unit),
        }
    }
}

impl ToSql for Decimal {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        // The digits behind the point fill whole groups of four.
        let behind = u32::from(self.scale).div_ceil(DIGITS);
        let fill = 10i128.pow(behind * DIGITS - u32::from(self.scale));
        let mut rest = i128::from(self.units.unsigned_abs()) * fill;
        let mut groups = Vec::new();
        while rest > 0 {
            groups.push((rest % BASE) as i16);
            rest /= BASE;
        }
        groups.reverse();
        out.put_i16(groups.len() as i16);
        out.put_i16((groups.len() as i16 - behind as i16 - 1).max(if groups.is_empty() { 0 } else { i16::MIN }));
        out.put_u16(if self.units < 0 { NEGATIVE } else { 0 });
        out.put_u16(self.scale);
        groups.iter().for_each(|group| out.put_i16(*group));
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Decimal {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let field = |n: usize| match raw.get(2 * n..2 * n + 2) {
            Some(bytes) => Ok(i16::from_be_bytes([bytes[0], bytes[1]])),
            None => Err("a numeric that ends too early"),
        };
        let (count, weight, sign, scale) = (field(0)?, field(1)?, field(2)? as u16, field(3)? as u16);
        if sign != 0 && sign != NEGATIVE || scale > 18 {
            return Err("a numeric that is no number, or has more than 18 digits behind its point".into());
        }
        let mut units = 0i128;
        for n in 0..i32::from(count) {
            // The group's unit is 10^(4 * place); the result's is 10^-scale.
            let place = (i32::from(weight) - n) * DIGITS as i32 + i32::from(scale);
            let group = i128::from(field(4 + n as usize)?);
            units += match place {
                0..=24 => group * 10i128.pow(place as u32),
                -3..0 => group / 10i128.pow(place.unsigned_abs()),
                _ => return Err("a numeric beyond 64 bits".into()),
            };
        }
        let units = i64::try_from(if sign == NEGATIVE { -units } else { units })?;
        Ok(Self { units, scale })
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(decimal: Decimal) -> Vec<u8> {
        let mut out = BytesMut::new();
        decimal.to_sql(&Type::NUMERIC, &mut out).expect("always possible");
        out.to_vec()
    }

    #[test]
    fn numbers_come_back_as_they_were_sent() {
        for units in [
            0,
            1,
            -1,
            99,
            100,
            12_345,
            -1_000_000,
            30_000_000,
            i64::MAX,
            i64::MIN + 1,
        ] {
            for scale in [0, 2, 4, 5] {
                let decimal = Decimal { units, scale };
                let read = Decimal::from_sql(&Type::NUMERIC, &wire(decimal)).expect("a number");
                assert_eq!(read, decimal, "{decimal}");
            }
        }
    }

    #[test]
    fn the_format_is_that_of_the_server() {
        // 12345.67: two groups before the point, one behind it.
        let bytes = [0, 3, 0, 1, 0, 0, 0, 2, 0, 1, 9, 41, 26, 44];
        assert_eq!(wire(Decimal::cents(1_234_567)), bytes);
        // 0.05, and 3000.00 as a server sends it: without its empty groups.
        assert_eq!(wire(Decimal::cents(5)), [0, 1, 255, 255, 0, 0, 0, 2, 1, 244]);
        let short = [0, 1, 0, 0, 0, 0, 0, 2, 11, 184];
        assert_eq!(
            Decimal::from_sql(&Type::NUMERIC, &short).expect("a number"),
            Decimal::cents(300_000)
        );
        let not_a_number = [0, 0, 0, 0, 192, 0, 0, 0];
        assert!(Decimal::from_sql(&Type::NUMERIC, &not_a_number).is_err());
        assert!(Decimal::from_sql(&Type::NUMERIC, &short[..6]).is_err());
    }

    #[test]
    fn numbers_are_printed_with_their_point() {
        assert_eq!(Decimal::cents(-5).to_string(), "-0.05");
        assert_eq!(Decimal { units: 7, scale: 0 }.to_string(), "7");
        assert_eq!(Decimal::cents(123_456).to_string(), "1234.56");
        assert_eq!(
            (Decimal::cents(150).to_scale(4), Decimal::cents(159).to_scale(1)),
            (15_000, 15)
        );
    }
}
