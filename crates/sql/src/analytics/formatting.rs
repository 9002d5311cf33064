//! `to_char` of dates and timestamps with PostgreSQL's patterns.

use super::error::outward;
use super::function::{Func, text_at};
use super::types::{EPOCH_MICROS, timestamp};
use crate::error::{Result, SqlError};
use crate::types::datetime::{DAY, SECOND, civil_of};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, TimestampMicrosecondType};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// `to_char(date | timestamp, pattern)`.
pub(crate) fn to_char() -> Func {
    Func::of("to_char", DataType::Utf8, |call| {
        call.by_rows_to_text(|columns, row| {
            let (Some(micros), Some(pattern)) = (micros_at(&columns[0], row)?, text_at(&columns[1], row)?) else {
                return Ok(None);
            };
            Ok(Some(formatted(micros, &pattern)))
        })
    })
}

fn micros_at(column: &ArrayRef, row: usize) -> Result<Option<i64>> {
    if !matches!(
        column.data_type(),
        DataType::Date32 | DataType::Timestamp(..) | DataType::Null
    ) {
        return Err(SqlError::unsupported("to_char of other than dates and timestamps"));
    }
    let one = arrow::compute::cast(&column.slice(row, 1), &timestamp()).map_err(|e| outward(e.into()))?;
    Ok((!one.is_null(0)).then(|| one.as_primitive::<TimestampMicrosecondType>().value(0) - EPOCH_MICROS))
}

/// The parts of a time that patterns name.
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    /// Days since 2000-01-01.
    days: i64,
    micros: i64,
}

/// Patterns, longest first where one begins another.
type Pattern = (&'static str, fn(&Parts) -> String);
const PATTERNS: &[Pattern] = &[
    ("YYYY", |p| format!("{:04}", p.year)),
    ("YY", |p| format!("{:02}", p.year.rem_euclid(100))),
    ("MONTH", |p| {
        format!("{:<9}", MONTHS[p.month as usize - 1].to_uppercase())
    }),
    ("Month", |p| format!("{:<9}", MONTHS[p.month as usize - 1])),
    ("month", |p| {
        format!("{:<9}", MONTHS[p.month as usize - 1].to_lowercase())
    }),
    ("MON", |p| MONTHS[p.month as usize - 1][..3].to_uppercase()),
    ("Mon", |p| MONTHS[p.month as usize - 1][..3].to_string()),
    ("mon", |p| MONTHS[p.month as usize - 1][..3].to_lowercase()),
    ("MM", |p| format!("{:02}", p.month)),
    ("MI", |p| format!("{:02}", p.micros / SECOND / 60 % 60)),
    ("MS", |p| format!("{:03}", p.micros % SECOND / 1000)),
    ("US", |p| format!("{:06}", p.micros % SECOND)),
    ("DAY", |p| format!("{:<9}", weekday(p).to_uppercase())),
    ("Day", |p| format!("{:<9}", weekday(p))),
    ("day", |p| format!("{:<9}", weekday(p).to_lowercase())),
    ("DDD", |p| {
        format!("{:03}", p.days - crate::types::datetime::days_of(p.year, 1, 1) + 1)
    }),
    ("DD", |p| format!("{:02}", p.day)),
    ("DY", |p| weekday(p)[..3].to_uppercase()),
    ("Dy", |p| weekday(p)[..3].to_string()),
    ("dy", |p| weekday(p)[..3].to_lowercase()),
    ("D", |p| ((p.days + 6).rem_euclid(7) + 1).to_string()),
    ("HH24", |p| format!("{:02}", p.micros / SECOND / 3600)),
    ("HH12", |p| format!("{:02}", (p.micros / SECOND / 3600 + 11) % 12 + 1)),
    ("HH", |p| format!("{:02}", (p.micros / SECOND / 3600 + 11) % 12 + 1)),
    ("SS", |p| format!("{:02}", p.micros / SECOND % 60)),
    ("Q", |p| ((p.month - 1) / 3 + 1).to_string()),
    ("AM", |p| if p.micros < DAY / 2 { "AM".into() } else { "PM".into() }),
    ("PM", |p| if p.micros < DAY / 2 { "AM".into() } else { "PM".into() }),
    ("am", |p| if p.micros < DAY / 2 { "am".into() } else { "pm".into() }),
    ("pm", |p| if p.micros < DAY / 2 { "am".into() } else { "pm".into() }),
];

/// 2000-01-01 was a Saturday.
fn weekday(p: &Parts) -> &'static str {
    DAYS[(p.days + 6).rem_euclid(7) as usize]
}

fn formatted(micros: i64, pattern: &str) -> String {
    let days = micros.div_euclid(DAY);
    let (year, month, day) = civil_of(days);
    let parts = Parts {
        year,
        month,
        day,
        days,
        micros: micros.rem_euclid(DAY),
    };
    let mut out = String::new();
    let mut rest = pattern;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').unwrap_or(quoted.len());
            out.push_str(&quoted[..end]);
            rest = quoted.get(end + 1..).unwrap_or("");
            continue;
        }
        let (plain, unpadded) = rest.strip_prefix("FM").map_or((rest, false), |r| (r, true));
        let known = PATTERNS.iter().find(|(name, _)| {
            plain.starts_with(name)
                || (name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
                    && !name.starts_with(['M', 'D', 'A', 'P'])
                    && plain.to_ascii_uppercase().starts_with(name))
        });
        match known {
            Some((name, show)) => {
                let text = show(&parts);
                let trimmed = text.trim_end().trim_start_matches('0');
                out.push_str(if !unpadded {
                    &text
                } else if trimmed.is_empty() {
                    "0"
                } else {
                    trimmed
                });
                rest = &plain[name.len()..];
            }
            None => {
                let mut chars = plain.chars();
                out.extend(chars.next());
                rest = chars.as_str();
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let micros = crate::types::datetime::parse_timestamp("2024-01-05 15:04:09.5", 0).expect("a timestamp");
        assert_eq!(formatted(micros, "YYYY-MM-DD HH24:MI:SS.MS"), "2024-01-05 15:04:09.500");
        assert_eq!(
            formatted(micros, "Dy, FMDD Mon YYYY HH12:MI am"),
            "Fri, 5 Jan 2024 03:04 pm"
        );
        assert_eq!(
            formatted(micros, "\"Week of\" FMMonth Q DDD D"),
            "Week of January 1 005 6"
        );
        assert_eq!(formatted(micros, "yyyy"), "2024");
    }
}
