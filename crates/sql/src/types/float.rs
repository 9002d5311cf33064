//! Floats as text: the shortest digits that read back to the same value, laid out as PostgreSQL does.

use crate::error::{Result, SqlError, code};
use std::fmt::Write;

/// Appends `value` as `float8out` writes it.
pub fn write_f64(value: f64, out: &mut impl Write) {
    if !write_special(value, out) {
        let mut scratch = DigitBuffer::default();
        let _ = write!(scratch, "{value:e}");
        lay_out(scratch.text(), 15, out);
    }
}

/// Appends `value` as `float4out` writes it.
pub fn write_f32(value: f32, out: &mut impl Write) {
    if !write_special(f64::from(value), out) {
        let mut scratch = DigitBuffer::default();
        let _ = write!(scratch, "{value:e}");
        lay_out(scratch.text(), 6, out);
    }
}

/// Reads what `float8in` reads.
///
/// # Errors
/// 22P02: the text is no number. 22003: the number is out of range.
pub fn parse_f64(text: &str) -> Result<f64> {
    let value = parse_any(text, "double precision")?;
    let finite_input = !text
        .trim()
        .trim_start_matches(['+', '-'])
        .to_ascii_lowercase()
        .starts_with("inf");
    if value.is_infinite() && finite_input || value == 0.0 && has_nonzero_mantissa(text) {
        return Err(out_of_range(text, "double precision"));
    }
    Ok(value)
}

/// Reads what `float4in` reads.
///
/// # Errors
/// 22P02: the text is no number. 22003: the number is out of range.
pub fn parse_f32(text: &str) -> Result<f32> {
    let wide = parse_any(text, "real")?;
    let value: f32 = if wide.is_finite() {
        text.trim().parse().unwrap_or(wide as f32)
    } else {
        wide as f32
    };
    let finite_input = !text
        .trim()
        .trim_start_matches(['+', '-'])
        .to_ascii_lowercase()
        .starts_with("inf");
    if value.is_infinite() && finite_input || value == 0.0 && has_nonzero_mantissa(text) {
        return Err(out_of_range(text, "real"));
    }
    Ok(value)
}

fn parse_any(text: &str, ty: &str) -> Result<f64> {
    let trimmed = text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let lower = trimmed.to_ascii_lowercase();
    match lower.as_str() {
        "nan" => return Ok(f64::NAN),
        "infinity" | "+infinity" | "inf" | "+inf" => return Ok(f64::INFINITY),
        "-infinity" | "-inf" => return Ok(f64::NEG_INFINITY),
        _ => {}
    }
    if !lower
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e'))
    {
        return Err(bad(text, ty));
    }
    trimmed.parse().map_err(|_| bad(text, ty))
}

fn has_nonzero_mantissa(text: &str) -> bool {
    text.split(['e', 'E'])
        .next()
        .is_some_and(|m| m.bytes().any(|b| (b'1'..=b'9').contains(&b)))
}

#[cold]
fn bad(text: &str, ty: &str) -> SqlError {
    SqlError::new(
        code::INVALID_TEXT,
        format!("invalid input syntax for type {ty}: \"{text}\""),
    )
}

#[cold]
fn out_of_range(text: &str, ty: &str) -> SqlError {
    SqlError::new(
        code::OUT_OF_RANGE,
        format!("\"{}\" is out of range for type {ty}", text.trim()),
    )
}

fn write_special(value: f64, out: &mut impl Write) -> bool {
    let text = if value.is_nan() {
        "NaN"
    } else if value == f64::INFINITY {
        "Infinity"
    } else if value == f64::NEG_INFINITY {
        "-Infinity"
    } else {
        return false;
    };
    let _ = out.write_str(text);
    true
}

/// Turns Rust's `d.ddde-7` into PostgreSQL's form; plain where the exponent is in `-4..limit`.
fn lay_out(scientific: &str, limit: i32, out: &mut impl Write) {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |m| ("-", m));
    let (head, tail) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let _ = out.write_str(sign);
    if !(-4..limit).contains(&exponent) {
        let point = if tail.is_empty() { "" } else { "." };
        let _ = write!(
            out,
            "{head}{point}{tail}e{}{:02}",
            if exponent < 0 { '-' } else { '+' },
            exponent.abs()
        );
    } else if exponent < 0 {
        let _ = write!(out, "0.{:0>width$}{tail}", head, width = -exponent as usize);
    } else {
        let exponent = exponent as usize;
        let _ = match tail.split_at_checked(exponent) {
            Some((whole, "")) => write!(out, "{head}{whole}"),
            Some((whole, fraction)) => write!(out, "{head}{whole}.{fraction}"),
            None => write!(out, "{head}{tail:0<exponent$}"),
        };
    }
}

/// Room for the longest float.
struct DigitBuffer {
    bytes: [u8; 40],
    len: usize,
}

impl Default for DigitBuffer {
    fn default() -> Self {
        DigitBuffer { bytes: [0; 40], len: 0 }
    }
}

impl DigitBuffer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or("0e0")
    }
}

impl Write for DigitBuffer {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = self
            .bytes
            .get_mut(self.len..self.len + s.len())
            .ok_or(std::fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: f64) -> String {
        let mut out = String::new();
        write_f64(value, &mut out);
        out
    }

    #[test]
    fn as_postgresql_prints() {
        let cases = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (100000.0, "100000"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (0.00012345, "0.00012345"),
            (123456.789, "123456.789"),
            (1e300, "1e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
        ];
        for (value, want) in cases {
            assert_eq!(text(value), want);
        }
        let mut out = String::new();
        write_f32(1e6, &mut out);
        write_f32(0.1, &mut out);
        assert_eq!(out, "1e+060.1");
    }

    #[test]
    fn range_is_checked() {
        assert_eq!(parse_f64("1e400").unwrap_err().code(), "22003");
        assert_eq!(parse_f64("1e-400").unwrap_err().code(), "22003");
        assert_eq!(parse_f32("1e39").unwrap_err().code(), "22003");
        assert_eq!(parse_f64("abc").unwrap_err().code(), "22P02");
        assert_eq!(parse_f64(" -Infinity ").unwrap(), f64::NEG_INFINITY);
    }
}
