//! Quantities with their unit in the type: bytes, and nanoseconds of the runtime's clock.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::str::FromStr;

/// A number of bytes, read and printed as people write it: `512MiB`, `4GiB`, `16384`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];
const _: () = assert!(UNITS[UNITS.len() - 1].1 == 1, "each number of bytes has a unit");
const _: () = assert!(
    UNITS[0].1 > UNITS[1].1 && UNITS[1].1 > UNITS[2].1 && UNITS[2].1 > UNITS[3].1 && UNITS[3].1 > UNITS[4].1,
    "the largest unit that fits is found first"
);

impl ByteSize {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    /// Exact when a unit divides it, else with one decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = UNITS.iter().find(|u| self.0 >= u.1).copied().unwrap_or(("B", 1));
        let text = if self.0.is_multiple_of(size) {
            format!("{}{unit}", self.0 / size)
        } else {
            format!("{:.1}{unit}", self.0 as f64 / size as f64)
        };
        f.pad(&text)
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A size that could not be read; says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a size: write a number and a unit, as in 512MiB, 4GiB or 1.5GB")]
pub struct ParseByteSizeError(String);

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    /// A number (with decimals if a unit follows) and an optional unit, in any case:
    /// B, KiB, MiB, GiB, TiB, and for short K, M, G, T and KB, MB, GB, TB, all binary.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseByteSizeError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let factor = unit_factor(unit.trim()).ok_or_else(error)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(ByteSize).ok_or_else(error);
        }
        let real = number.parse::<f64>().map_err(|_| error())? * factor as f64;
        if factor == 1 || !(0.0..9.0e18).contains(&real) {
            return Err(error());
        }
        Ok(ByteSize(real as u64))
    }
}

/// Bytes in a unit, however it is spelt.
fn unit_factor(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    Some(match lower.as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return None,
    })
}

/// A point in, or a span of, the runtime's monotonic time, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// None at all.
    pub const ZERO: Nanos = Nanos(0);
    /// Longer than anything.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// `n` microseconds.
    pub const fn from_micros(n: u64) -> Self {
        Self(n * 1_000)
    }

    /// `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// As a number of nanoseconds.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Whole microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Seconds with decimals.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// From `earlier` to here; zero if it is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    /// Never below zero.
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}

impl From<core::time::Duration> for Nanos {
    fn from(d: core::time::Duration) -> Self {
        Nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for core::time::Duration {
    fn from(n: Nanos) -> Self {
        core::time::Duration::from_nanos(n.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&core::time::Duration::from(*self), f)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("512MiB", 512 << 20),
            ("4GiB", 4 << 30),
            ("16384", 16384),
            ("1.5g", 3 << 29),
            (" 2 kb ", 2048),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "MiB", "12x", "-1", "1.5", "99999999999TiB", "1.2.3M"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_back() {
        for text in ["512MiB", "4GiB", "1B", "3KiB"] {
            assert_eq!(text.parse::<ByteSize>().expect("valid").to_string(), text);
        }
        assert_eq!(ByteSize(1536 << 20).to_string(), "1.5GiB");
    }
}
