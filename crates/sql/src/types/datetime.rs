//! Dates and times: PostgreSQL's days and microseconds since 2000-01-01, in ISO style.
//!
//! `i32::MAX`/`i64::MAX` stand for `infinity`, the minima for `-infinity`.

use crate::error::{Result, SqlError, code};
use std::fmt::Write;

/// Microseconds in a second.
pub const SECOND: i64 = 1_000_000;
/// Microseconds in a day.
pub const DAY: i64 = 86_400 * SECOND;
/// Days from 1970-01-01 to 2000-01-01.
pub const EPOCH_DAYS: i64 = 10_957;

/// Least and greatest day: 4714-11-24 BC and 5874897-12-31.
pub const DATE_RANGE: std::ops::RangeInclusive<i64> = -2_451_545..=2_145_031_948;
/// Least and greatest timestamp: 4714-11-24 BC to 294276-12-31.
const MICROS: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;

/// Days since 2000-01-01 of a Gregorian date (year 0 is 1 BC).
pub fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let of_era = y - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468 - EPOCH_DAYS
}

/// Year, month, day of days since 2000-01-01.
pub fn civil_of(days: i64) -> (i64, i64, i64) {
    let z = days + EPOCH_DAYS + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z - era * 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * of_year + 2) / 153;
    let month = if m < 10 { m + 3 } else { m - 9 };
    (
        year_of_era + era * 400 + i64::from(month <= 2),
        month,
        of_year - (153 * m + 2) / 5 + 1,
    )
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Appends a date.
pub fn write_date(days: i32, out: &mut impl Write) {
    match days {
        i32::MAX => drop(out.write_str("infinity")),
        i32::MIN => drop(out.write_str("-infinity")),
        _ => {
            let bc = write_day(i64::from(days), out);
            if bc {
                let _ = out.write_str(" BC");
            }
        }
    }
}

/// Appends a timestamp; `offset` (seconds east of UTC) is added and shown for one with time zone.
pub fn write_timestamp(micros: i64, offset: Option<i32>, out: &mut impl Write) {
    if micros == i64::MAX || micros == i64::MIN {
        let _ = out.write_str(if micros > 0 { "infinity" } else { "-infinity" });
        return;
    }
    let local = micros + i64::from(offset.unwrap_or(0)) * SECOND;
    let bc = write_day(local.div_euclid(DAY), out);
    let _ = out.write_char(' ');
    write_time(local.rem_euclid(DAY), out);
    if let Some(seconds) = offset {
        write_offset(seconds, out);
    }
    if bc {
        let _ = out.write_str(" BC");
    }
}

fn write_day(days: i64, out: &mut impl Write) -> bool {
    let (year, month, day) = civil_of(days);
    let bc = year <= 0;
    let _ = write!(out, "{:04}-{month:02}-{day:02}", if bc { 1 - year } else { year });
    bc
}

fn write_time(micros: i64, out: &mut impl Write) {
    let seconds = micros / SECOND;
    let _ = write!(
        out,
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    let fraction = micros % SECOND;
    if fraction != 0 {
        let mut digits = fraction;
        let mut width = 6;
        while digits % 10 == 0 {
            digits /= 10;
            width -= 1;
        }
        let _ = write!(out, ".{digits:0width$}");
    }
}

fn write_offset(seconds: i32, out: &mut impl Write) {
    let abs = seconds.abs();
    let _ = write!(out, "{}{:02}", if seconds < 0 { '-' } else { '+' }, abs / 3600);
    if abs % 3600 != 0 {
        let _ = write!(out, ":{:02}", abs / 60 % 60);
    }
    if abs % 60 != 0 {
        let _ = write!(out, ":{:02}", abs % 60);
    }
}

/// What a text said: a point in local time, and the offset if it named one.
struct DateTimeText {
    days: i64,
    micros: i64,
    offset: Option<i64>,
}

enum Reading {
    At(DateTimeText),
    Infinity,
    MinusInfinity,
    Now(i64),
}

/// Reads a date; `now` (microseconds since 2000 in local time) serves `today` and the like.
///
/// # Errors
/// 22007: the text is no date. 22008: a field or the date is out of range.
pub fn parse_date(text: &str, now: i64) -> Result<i32> {
    match read(text, "date")? {
        Reading::Infinity => Ok(i32::MAX),
        Reading::MinusInfinity => Ok(i32::MIN),
        Reading::Now(days) => Ok((now.div_euclid(DAY) + days) as i32),
        Reading::At(p) if DATE_RANGE.contains(&p.days) => Ok(p.days as i32),
        Reading::At(_) => Err(SqlError::new(
            code::DATETIME_OVERFLOW,
            format!("date out of range: \"{text}\""),
        )),
    }
}

/// Reads a timestamp without time zone; an offset in the text is ignored, as PostgreSQL does.
///
/// # Errors
/// 22007: the text is no timestamp. 22008: a field or the timestamp is out of range.
pub fn parse_timestamp(text: &str, now: i64) -> Result<i64> {
    match read(text, "timestamp")? {
        Reading::Infinity => Ok(i64::MAX),
        Reading::MinusInfinity => Ok(i64::MIN),
        Reading::Now(0) if text.trim().eq_ignore_ascii_case("now") => Ok(now),
        Reading::Now(days) => Ok((now.div_euclid(DAY) + days) * DAY),
        Reading::At(p) => in_range(p.days * DAY + p.micros, text),
    }
}

/// Reads a timestamp with time zone: UTC microseconds; `zone` gives the offset (seconds east) of a local time without
/// one.
///
/// # Errors
/// 22007: the text is no timestamp. 22008: a field or the timestamp is out of range.
pub fn parse_timestamptz(text: &str, now_utc: i64, zone: impl Fn(i64) -> i32) -> Result<i64> {
    let local_now = now_utc + i64::from(zone(now_utc)) * SECOND;
    let to_utc = |local: i64| local - i64::from(zone(local)) * SECOND;
    match read(text, "timestamp with time zone")? {
        Reading::Infinity => Ok(i64::MAX),
        Reading::MinusInfinity => Ok(i64::MIN),
        Reading::Now(0) if text.trim().eq_ignore_ascii_case("now") => Ok(now_utc),
        Reading::Now(days) => Ok(to_utc((local_now.div_euclid(DAY) + days) * DAY)),
        Reading::At(p) => {
            let local = in_range(p.days * DAY + p.micros, text)?;
            in_range(
                p.offset
                    .map_or_else(|| to_utc(local), |seconds| local - seconds * SECOND),
                text,
            )
        }
    }
}

/// A date written `2026-11-21`, of the years 1 to 9999; None for all other text.
pub fn plain_date(text: &[u8]) -> Option<i32> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = *text else {
        return None;
    };
    let year = two_digits(y1, y2)? * 100 + two_digits(y3, y4)?;
    let (month, day) = (two_digits(m1, m2)?, two_digits(d1, d2)?);
    let is_one = year > 0 && (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    is_one.then(|| days_of(year, month, day) as i32)
}

/// A timestamp written `2026-11-21 20:32:56` or with up to six digits of a fraction; None for all other text.
pub fn plain_timestamp(text: &[u8]) -> Option<i64> {
    let (day, clock) = text.split_at_checked(10)?;
    let ([b' ', h1, h2, b':', m1, m2, b':', s1, s2], fraction) = clock.split_first_chunk::<9>()? else {
        return None;
    };
    let (hour, minute, second) = (two_digits(*h1, *h2)?, two_digits(*m1, *m2)?, two_digits(*s1, *s2)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let micros = match fraction {
        [] => 0,
        [b'.', digits @ ..] if (1..=6).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) => {
            let value = digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
            value * 10_i64.pow(6 - digits.len() as u32)
        }
        _ => return None,
    };
    let seconds = (hour * 60 + minute) * 60 + second;
    Some(i64::from(plain_date(day)?) * DAY + seconds * SECOND + micros)
}

fn two_digits(tens: u8, ones: u8) -> Option<i64> {
    let (tens, ones) = (tens.wrapping_sub(b'0'), ones.wrapping_sub(b'0'));
    (tens <= 9 && ones <= 9).then_some(i64::from(tens * 10 + ones))
}

/// Refuses a timestamp outside PostgreSQL's range.
///
/// # Errors
/// 22008: the timestamp is out of range.
pub fn in_range(micros: i64, text: &str) -> Result<i64> {
    if MICROS.contains(&micros) {
        return Ok(micros);
    }
    Err(SqlError::new(
        code::DATETIME_OVERFLOW,
        format!("timestamp out of range: \"{text}\""),
    ))
}

#[cold]
fn bad(text: &str, ty: &str) -> SqlError {
    SqlError::new(
        code::INVALID_DATETIME,
        format!("invalid input syntax for type {ty}: \"{text}\""),
    )
}

#[cold]
fn field_range(text: &str) -> SqlError {
    SqlError::new(
        code::DATETIME_OVERFLOW,
        format!("date/time field value out of range: \"{text}\""),
    )
}

fn read(text: &str, ty: &str) -> Result<Reading> {
    let trimmed = text.trim();
    match trimmed.to_ascii_lowercase().as_str() {
        "infinity" | "+infinity" => return Ok(Reading::Infinity),
        "-infinity" => return Ok(Reading::MinusInfinity),
        "now" | "today" => return Ok(Reading::Now(0)),
        "tomorrow" => return Ok(Reading::Now(1)),
        "yesterday" => return Ok(Reading::Now(-1)),
        "epoch" => {
            return Ok(Reading::At(DateTimeText {
                days: -EPOCH_DAYS,
                micros: 0,
                offset: Some(0),
            }));
        }
        _ => {}
    }
    let (trimmed, bc) = match trimmed.get(trimmed.len().saturating_sub(2)..) {
        Some(end) if end.eq_ignore_ascii_case("bc") => (trimmed[..trimmed.len() - 2].trim_end(), true),
        Some(end) if end.eq_ignore_ascii_case("ad") => (trimmed[..trimmed.len() - 2].trim_end(), false),
        _ => (trimmed, false),
    };
    let split = trimmed
        .find(':')
        .and_then(|colon| trimmed[..colon].rfind([' ', 'T', 't']));
    let (day, time) = split.map_or((trimmed, ""), |at| (&trimmed[..at], trimmed[at + 1..].trim()));
    let (mut year, month, dom) = read_day(day).ok_or_else(|| bad(text, ty))?;
    // The year before 1 is 1 BC.
    if year < 1 {
        return Err(field_range(text));
    }
    if bc {
        year = 1 - year;
    }
    if !(1..=12).contains(&month) || dom < 1 || dom > days_in_month(year, month) || year > 5_874_897 {
        return Err(field_range(text));
    }
    let (micros, offset) = if time.is_empty() {
        (0, None)
    } else {
        read_time(time, text, ty)?
    };
    Ok(Reading::At(DateTimeText {
        days: days_of(year, month, dom),
        micros,
        offset,
    }))
}

/// `2026-11-21`, `20261121`, `11/21/2026`, `2026/11/21`, `21-Nov-2026`, `Nov 21, 2026`, `21 November 2026`.
fn read_day(day: &str) -> Option<(i64, i64, i64)> {
    let parts: Vec<&str> = day.split(['-', '/', '.', ' ', ',']).filter(|p| !p.is_empty()).collect();
    if let [one] = parts[..] {
        let compact = one.len() == 8 && one.bytes().all(|b| b.is_ascii_digit());
        return compact.then(|| Some((one[..4].parse().ok()?, one[4..6].parse().ok()?, one[6..].parse().ok()?)))?;
    }
    let [a, b, c] = parts[..] else { return None };
    let number = |s: &str| {
        s.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| s.parse::<i64>().ok())
            .flatten()
    };
    let year = |s: &str| {
        number(s).map(|y| {
            if s.len() <= 2 {
                if y < 70 { y + 2000 } else { y + 1900 }
            } else {
                y
            }
        })
    };
    if let Some(month) = month_named(a) {
        return Some((year(c)?, month, number(b)?));
    }
    if let Some(month) = month_named(b) {
        return if a.len() > 2 {
            Some((year(a)?, month, number(c)?))
        } else {
            Some((year(c)?, month, number(a)?))
        };
    }
    if a.len() > 2 {
        Some((number(a)?, number(b)?, number(c)?))
    } else {
        Some((year(c)?, number(a)?, number(b)?))
    }
}

fn month_named(text: &str) -> Option<i64> {
    const NAMES: [&str; 12] = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ];
    let lower = text.to_ascii_lowercase();
    let found = NAMES
        .iter()
        .position(|n| *n == lower || lower.len() == 3 && n.starts_with(&lower))?;
    Some(found as i64 + 1)
}

fn read_time(time: &str, text: &str, ty: &str) -> Result<(i64, Option<i64>)> {
    let end = time
        .find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.'))
        .unwrap_or(time.len());
    let (clock, zone) = (&time[..end], time[end..].trim());
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut fields = clock.split(':').map(|f| f.parse::<i64>().ok());
    let mut next = |missing: Option<i64>| fields.next().unwrap_or(missing).ok_or_else(|| bad(text, ty));
    let (hour, minute, second) = (next(None)?, next(None)?, next(Some(0))?);
    if fields.next().is_some() {
        return Err(bad(text, ty));
    }
    if hour > 24 || minute > 59 || second > 60 || hour == 24 && (minute > 0 || second > 0) {
        return Err(field_range(text));
    }
    let micros = (hour * 3600 + minute * 60 + second) * SECOND + read_fraction(fraction);
    Ok((micros, read_zone(zone).ok_or_else(|| bad(text, ty))?))
}

/// Six digits, rounded.
fn read_fraction(digits: &str) -> i64 {
    let value: f64 = format!("0.{digits}0").parse().unwrap_or(0.0);
    (value * SECOND as f64).round() as i64
}

/// `Z`, `UTC`, `+02`, `+0230`, `-02:30:15`; outer None when unknown.
fn read_zone(zone: &str) -> Option<Option<i64>> {
    if zone.is_empty() {
        return Some(None);
    }
    offset_named(zone).map(|seconds| Some(i64::from(seconds)))
}

/// Seconds east of UTC of a fixed offset or a name of UTC.
pub fn offset_named(zone: &str) -> Option<i32> {
    const UTC: [&str; 9] = [
        "z",
        "utc",
        "gmt",
        "etc/utc",
        "etc/gmt",
        "zulu",
        "universal",
        "etc/uct",
        "uct",
    ];
    if UTC.iter().any(|n| zone.eq_ignore_ascii_case(n)) {
        return Some(0);
    }
    let (sign, rest) = match zone.as_bytes().first()? {
        b'+' => (1, &zone[1..]),
        b'-' => (-1, &zone[1..]),
        _ => return None,
    };
    let field = |s: &str| {
        s.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| s.parse::<i32>().ok())
            .flatten()
    };
    let (hours, minutes, seconds) = if rest.contains(':') {
        let mut parts = rest.split(':');
        (
            field(parts.next()?)?,
            field(parts.next()?)?,
            parts.next().map_or(Some(0), field)?,
        )
    } else if rest.len() <= 2 {
        (field(rest)?, 0, 0)
    } else {
        let value = field(rest)?;
        (value / 100, value % 100, 0)
    };
    (hours <= 15 && minutes < 60 && seconds < 60).then_some(sign * (hours * 3600 + minutes * 60 + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> String {
        let mut out = String::new();
        write_timestamp(parse_timestamp(text, 0).unwrap(), None, &mut out);
        out
    }

    #[test]
    fn days_round_trip() {
        for days in (-2_451_545..3_000_000).step_by(997) {
            let (y, m, d) = civil_of(days);
            assert_eq!(days_of(y, m, d), days);
        }
        assert_eq!(days_of(2000, 1, 1), 0);
        assert_eq!(days_of(1970, 1, 1), -10_957);
    }

    #[test]
    fn reads_and_writes_iso() {
        assert_eq!(stamp("2026-11-21 20:32:56.1230"), "2026-11-21 20:32:56.123");
        assert_eq!(stamp("2026-11-21T20:32"), "2026-11-21 20:32:00");
        assert_eq!(stamp("20261121"), "2026-11-21 00:00:00");
        assert_eq!(stamp("Nov 21, 2026 01:02:03"), "2026-11-21 01:02:03");
        assert_eq!(stamp("infinity"), "infinity");
        assert_eq!(stamp("0044-03-15 BC"), "0044-03-15 00:00:00 BC");
        let utc = parse_timestamptz("2026-11-21 20:00:00+02", 0, |_| 0).unwrap();
        let mut out = String::new();
        write_timestamp(utc, Some(0), &mut out);
        assert_eq!(out, "2026-11-21 18:00:00+00");
    }

    #[test]
    fn refuses_nonsense() {
        assert_eq!(parse_date("2026-02-30", 0).unwrap_err().code(), "22008");
        assert_eq!(parse_date("hello", 0).unwrap_err().code(), "22007");
        assert_eq!(parse_timestamp("2026-01-01 25:00:00", 0).unwrap_err().code(), "22008");
        for text in [
            "0000-01-01",
            "0-1-1",
            "01/01/0000",
            "00000101",
            "0000-01-01 BC",
            "00-01-01",
        ] {
            assert_eq!(parse_date(text, 0).unwrap_err().code(), "22008", "{text}");
            assert_eq!(parse_timestamp(text, 0).unwrap_err().code(), "22008", "{text}");
        }
        assert_eq!(
            parse_date("0001-01-01 BC", 0).unwrap() + 366,
            parse_date("0001-01-01", 0).unwrap()
        );
    }
}
