//! Values as text: what a client types and reads.

use super::zone::Zone;
use super::{datetime, float};
use crate::error::{Result, SqlError, code};
use cenote_engine::types::{ColumnType, Datum, DatumRef, Numeric};
use std::fmt::Write;

/// What text conversions depend on: the session's time zone and the time of the transaction.
#[derive(Debug, Clone, Copy)]
pub struct TextContext<'a> {
    /// Session time zone.
    pub zone: &'a Zone,
    /// Start of the transaction, microseconds since 2000, UTC.
    pub now: i64,
}

/// Appends a value (not NULL) as text.
pub fn write_datum(datum: &DatumRef<'_>, zone: &Zone, out: &mut impl Write) {
    let _ = match datum {
        DatumRef::Null => Ok(()),
        DatumRef::Bool(v) => out.write_str(if *v { "t" } else { "f" }),
        DatumRef::Int2(v) => write_int(i64::from(*v), out),
        DatumRef::Int4(v) => write_int(i64::from(*v), out),
        DatumRef::Int8(v) => write_int(*v, out),
        DatumRef::Float4(v) => {
            float::write_f32(*v, out);
            Ok(())
        }
        DatumRef::Float8(v) => {
            float::write_f64(*v, out);
            Ok(())
        }
        DatumRef::Numeric(v) => write!(out, "{v}"),
        DatumRef::Text(v) => out.write_str(v),
        DatumRef::Bytes(v) => write_bytea(v, out),
        DatumRef::Date(v) => {
            datetime::write_date(*v, out);
            Ok(())
        }
        DatumRef::Timestamp(v) => {
            datetime::write_timestamp(*v, None, out);
            Ok(())
        }
        DatumRef::TimestampTz(v) => {
            datetime::write_timestamp(*v, Some(zone.offset_at_utc(*v)), out);
            Ok(())
        }
    };
}

/// A value as text, owned. Trailing blanks of char stay.
pub fn datum_text(datum: &DatumRef<'_>, zone: &Zone) -> String {
    let mut out = String::new();
    write_datum(datum, zone, &mut out);
    out
}

/// Appends an integer in decimal.
///
/// # Errors
/// As `out`.
pub fn write_int(value: i64, out: &mut impl Write) -> std::fmt::Result {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.write_str(std::str::from_utf8(&digits[at..]).expect("decimal digits are ASCII"))
}

fn write_bytea(bytes: &[u8], out: &mut impl Write) -> std::fmt::Result {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.write_str("\\x")?;
    for byte in bytes {
        let pair = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
        out.write_str(std::str::from_utf8(&pair).expect("hex digits are ASCII"))?;
    }
    Ok(())
}

/// Reads a value of type `ty`, as its input function does. Lengths of varchar, char and numeric are not applied here.
///
/// # Errors
/// 22P02, 22007: the text is no value of the type. 22003, 22008: the value is out of the type's range.
pub fn parse_datum(text: &str, ty: ColumnType, cx: TextContext<'_>) -> Result<Datum> {
    Ok(match ty {
        ColumnType::Bool => Datum::Bool(parse_bool(text)?),
        ColumnType::Int2 => Datum::Int2(parse_int(text, "smallint", i64::from(i16::MIN)..=i64::from(i16::MAX))? as i16),
        ColumnType::Int4 => Datum::Int4(parse_int(text, "integer", i64::from(i32::MIN)..=i64::from(i32::MAX))? as i32),
        ColumnType::Int8 => Datum::Int8(parse_int(text, "bigint", i64::MIN..=i64::MAX)?),
        ColumnType::Float4 => Datum::Float4(float::parse_f32(text)?),
        ColumnType::Float8 => Datum::Float8(float::parse_f64(text)?),
        ColumnType::Numeric(_) => Datum::Numeric(Numeric::parse(text)?),
        ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Char(_) => Datum::Text(text.to_string()),
        ColumnType::Bytes => Datum::Bytes(parse_bytea(text)?),
        ColumnType::Date => Datum::Date(datetime::parse_date(text, cx.zone.to_local(cx.now))?),
        ColumnType::Timestamp => Datum::Timestamp(datetime::parse_timestamp(text, cx.zone.to_local(cx.now))?),
        ColumnType::TimestampTz => Datum::TimestampTz(datetime::parse_timestamptz(text, cx.now, |local| {
            cx.zone.offset_at_local(local)
        })?),
    })
}

fn parse_int(text: &str, ty: &str, range: std::ops::RangeInclusive<i64>) -> Result<i64> {
    let trimmed = text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(SqlError::new(
            code::INVALID_TEXT,
            format!("invalid input syntax for type {ty}: \"{text}\""),
        ));
    }
    match trimmed.parse::<i64>() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(SqlError::new(
            code::OUT_OF_RANGE,
            format!("value \"{text}\" is out of range for type {ty}"),
        )),
    }
}

fn parse_bool(text: &str) -> Result<bool> {
    let lower = text.trim().to_ascii_lowercase();
    let is = |word: &str, least: usize| lower.len() >= least && word.starts_with(&lower);
    if is("true", 1) || is("yes", 1) || is("on", 2) || lower == "1" {
        return Ok(true);
    }
    if is("false", 1) || is("no", 1) || is("off", 2) || lower == "0" {
        return Ok(false);
    }
    Err(SqlError::new(
        code::INVALID_TEXT,
        format!("invalid input syntax for type boolean: \"{text}\""),
    ))
}

fn parse_bytea(text: &str) -> Result<Vec<u8>> {
    match text.strip_prefix("\\x") {
        Some(hex) => parse_hex(hex),
        None => parse_escaped(text.as_bytes()),
    }
}

fn parse_hex(hex: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(hex.len() / 2);
    let mut high = None;
    for c in hex.chars().filter(|c| !c.is_ascii_whitespace()) {
        let digit = c
            .to_digit(16)
            .ok_or_else(|| SqlError::new(code::INVALID_ARGUMENT, format!("invalid hexadecimal digit: \"{c}\"")))?
            as u8;
        match high.take() {
            None => high = Some(digit),
            Some(h) => out.push(h << 4 | digit),
        }
    }
    match high {
        None => Ok(out),
        Some(_) => Err(SqlError::new(
            code::INVALID_ARGUMENT,
            "invalid hexadecimal data: odd number of digits",
        )),
    }
}

fn parse_escaped(mut text: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    loop {
        text = match text {
            [] => return Ok(out),
            [b'\\', b'\\', rest @ ..] => {
                out.push(b'\\');
                rest
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest
            }
            [b'\\', ..] => return Err(SqlError::new(code::INVALID_TEXT, "invalid input syntax for type bytea")),
            [byte, rest @ ..] => {
                out.push(*byte);
                rest
            }
        };
    }
}
