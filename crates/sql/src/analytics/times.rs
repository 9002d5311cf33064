//! Dates and times in the session's time zone: casts, `AT TIME ZONE`, `date_trunc`.
//!
//! Arrow's `timestamptz` is UTC. What PostgreSQL decides by the session's zone (text without an offset, the day of an
//! instant) is decided here, by functions that are bound to the statement. Text is read as the short path reads it.

use super::casts::strict;
use super::function::{Func, text_at};
use super::snapshot::Snapshot;
use super::types::{EPOCH_DAYS, EPOCH_MICROS, timestamp, timestamptz};
use crate::error::{Result, SqlError, code};
use crate::types::datetime::{self, DAY, SECOND, civil_of, days_of};
use crate::types::zone::Zone;
use arrow::array::{Array, ArrayRef, AsArray, Date32Array, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, TimestampMicrosecondType};
use datafusion::common::ScalarValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// What a statement knows of time.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    pub zone: Zone,
    now: Arc<Now>,
    key: usize,
}

/// The time of a run.
#[derive(Debug, Default)]
struct Now {
    /// Start of the transaction, microseconds since 2000 UTC.
    micros: AtomicI64,
    /// Whether a text asked for it, as `today` does.
    asked: AtomicBool,
}

impl Clock {
    pub fn of(snapshot: &Arc<Snapshot>) -> Clock {
        let scope = &snapshot.scope;
        Clock {
            zone: scope.settings.zone().clone(),
            now: Arc::new(Now {
                micros: AtomicI64::new(scope.transaction_time),
                asked: AtomicBool::new(false),
            }),
            key: Arc::as_ptr(snapshot) as usize,
        }
    }

    /// Moves to the transaction of another run.
    pub fn set(&self, transaction_time: i64) {
        self.now.micros.store(transaction_time, Ordering::Relaxed);
    }

    /// Whether a value depends on the time at which it was computed.
    pub fn was_asked(&self) -> bool {
        self.now.asked.load(Ordering::Relaxed)
    }

    /// The time for a text, which may ask for it: all that do begin with a letter.
    fn now_for(&self, text: &str) -> i64 {
        if text.trim_start().starts_with(|c: char| c.is_ascii_alphabetic()) {
            self.now.asked.store(true, Ordering::Relaxed);
        }
        self.now.micros.load(Ordering::Relaxed)
    }

    /// The cast to a date or time.
    pub fn cast_to(&self, name: &str, to: DataType) -> Func {
        let clock = self.clone();
        let returns = to.clone();
        Func::of(name, returns, move |call| {
            call.by_columns(|columns| clock.moments(&columns[0], &to))
        })
        .stable(self.key)
    }

    fn moments(&self, column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
        use DataType::{Date32, LargeUtf8, Timestamp, Utf8, Utf8View};
        match (column.data_type(), to) {
            (from, to) if from == to => Ok(column.clone()),
            (Utf8 | LargeUtf8 | Utf8View, _) => self.read(column, to),
            (Timestamp(_, Some(_)), Timestamp(_, None)) => shifted(column, to, |m| self.zone.to_local(m)),
            (Timestamp(_, Some(_)), Date32) => strict(&shifted(column, &timestamp(), |m| self.zone.to_local(m))?, to),
            (Timestamp(_, None) | Date32, Timestamp(_, Some(_))) => shifted(column, to, |m| self.zone.to_utc(m)),
            _ => strict(column, to),
        }
    }

    fn read(&self, column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
        let texts = (0..column.len()).map(|row| text_at(column, row));
        if matches!(to, DataType::Date32) {
            let day = |text: Option<String>| match text {
                None => Ok(None),
                Some(text) => {
                    let local_now = self.zone.to_local(self.now_for(&text));
                    datetime::parse_date(&text, local_now).map(|d| Some(d.saturating_add(EPOCH_DAYS)))
                }
            };
            return Ok(Arc::new(texts.map(|t| day(t?)).collect::<Result<Date32Array>>()?));
        }
        let zoned = matches!(to, DataType::Timestamp(_, Some(_)));
        let micros = |text: Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let now = self.now_for(&text);
            let read = match zoned {
                true => datetime::parse_timestamptz(&text, now, |local| self.zone.offset_at_local(local)),
                false => datetime::parse_timestamp(&text, self.zone.to_local(now)),
            };
            read.map(|m| Some(m.saturating_add(EPOCH_MICROS)))
        };
        let values = texts
            .map(|t| micros(t?))
            .collect::<Result<TimestampMicrosecondArray>>()?;
        Ok(Arc::new(values.with_data_type(to.clone())))
    }

    /// Instants as local times; the rest as it is.
    fn local(&self) -> Func {
        let clock = self.clone();
        let returns = |types: &[DataType], _: &[Option<&ScalarValue>]| {
            Ok(match &types[0] {
                DataType::Timestamp(_, Some(_)) => timestamp(),
                other => other.clone(),
            })
        };
        Func::any("cenote_local", returns, move |call| {
            let to = call.return_type().clone();
            call.by_columns(|columns| clock.moments(&columns[0], &to))
        })
        .stable(self.key)
    }

    /// A value as a result is written, instants in the session's time zone.
    pub fn text(&self) -> Func {
        let zone = self.zone.clone();
        Func::of("cenote_zoned_text", DataType::Utf8, move |call| {
            call.by_rows_to_text(|columns, row| match columns[0].is_null(row) {
                true => Ok(None),
                false => super::wire::text_in(&*columns[0], row, &zone).map(Some),
            })
        })
        .stable(self.key)
    }

    /// `date_trunc(unit, time)`: of a date it gives an instant, as in PostgreSQL.
    fn truncation(&self) -> Func {
        let clock = self.clone();
        let returns = |types: &[DataType], _: &[Option<&ScalarValue>]| {
            Ok(match types.get(1) {
                Some(DataType::Timestamp(_, None)) => timestamp(),
                _ => timestamptz(),
            })
        };
        Func::any("date_trunc", returns, move |call| {
            let to = call.return_type().clone();
            call.by_columns(|columns| {
                let [units, times] = columns else {
                    return Err(SqlError::unsupported("date_trunc of other than two arguments"));
                };
                let local = clock.moments(&clock.moments(times, &to)?, &timestamp())?;
                let local = local.as_primitive::<TimestampMicrosecondType>();
                let values = (0..local.len()).map(|row| match text_at(units, row)? {
                    Some(unit) if !local.is_null(row) => {
                        let value = local.value(row);
                        if is_infinite(value) {
                            return Ok(Some(value));
                        }
                        truncated(&unit, value - EPOCH_MICROS).map(|m| Some(m + EPOCH_MICROS))
                    }
                    _ => Ok(None),
                });
                let values: ArrayRef = Arc::new(values.collect::<Result<TimestampMicrosecondArray>>()?);
                clock.moments(&values, &to)
            })
        })
        .stable(self.key)
    }
}

/// Functions that depend on the session's time zone.
pub(crate) fn function(clock: &Clock, name: &str) -> Option<Func> {
    Some(match name {
        "cenote_date" => clock.cast_to(name, DataType::Date32),
        "cenote_timestamp" => clock.cast_to(name, timestamp()),
        "cenote_timestamptz" => clock.cast_to(name, timestamptz()),
        "cenote_local" => clock.local(),
        "date_trunc" => clock.truncation(),
        _ => return None,
    })
}

/// `value AT TIME ZONE zone`.
pub(crate) fn timezone() -> Func {
    let returns = |types: &[DataType], _: &[Option<&ScalarValue>]| {
        Ok(match types.get(1) {
            Some(DataType::Timestamp(_, Some(_))) => timestamp(),
            _ => timestamptz(),
        })
    };
    Func::any("timezone", returns, |call| {
        let to = call.return_type().clone();
        call.by_columns(|columns| {
            let times = &columns[1];
            let mut parts: Vec<ArrayRef> = Vec::with_capacity(times.len());
            for row in 0..times.len() {
                let name = text_at(&columns[0], row)?.unwrap_or_default();
                let zone = Zone::named(&name).ok_or_else(|| {
                    let text = format!("time zone \"{name}\" not recognized");
                    SqlError::new(code::INVALID_ARGUMENT, text)
                })?;
                let (now, key) = (Arc::default(), 0);
                let clock = Clock { zone, now, key };
                parts.push(clock.moments(&times.slice(row, 1), &to)?);
            }
            if parts.is_empty() {
                return Ok(arrow::array::new_empty_array(&to));
            }
            let parts: Vec<&dyn Array> = parts.iter().map(|p| &**p).collect();
            arrow::compute::concat(&parts).map_err(|e| super::error::outward(e.into()))
        })
    })
}

fn is_infinite(value: i64) -> bool {
    value == i64::MAX || value <= i64::MIN + EPOCH_MICROS
}

/// Times moved by what `shift` makes of microseconds since 2000; the infinite stay.
fn shifted(column: &ArrayRef, to: &DataType, shift: impl Fn(i64) -> i64) -> Result<ArrayRef> {
    let micros = strict(
        column,
        &DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, None),
    )?;
    let micros = micros.as_primitive::<TimestampMicrosecondType>();
    let moved: TimestampMicrosecondArray = micros.unary(|m| match is_infinite(m) {
        true => m,
        false => shift(m - EPOCH_MICROS) + EPOCH_MICROS,
    });
    Ok(Arc::new(moved.with_data_type(to.clone())))
}

/// Microseconds since 2000, local, cut to the unit.
fn truncated(unit: &str, micros: i64) -> Result<i64> {
    let days = micros.div_euclid(DAY);
    let (year, month, _) = civil_of(days);
    let whole = |step: i64| micros.div_euclid(step) * step;
    // Centuries and millennia begin with year 1; before it they end with year 0.
    let span = |years: i64| (year - 1).div_euclid(years) * years + 1;
    let first = |year, month| days_of(year, month, 1) * DAY;
    Ok(match unit.to_lowercase().as_str() {
        "microsecond" | "microseconds" => micros,
        "millisecond" | "milliseconds" => whole(1000),
        "second" | "seconds" => whole(SECOND),
        "minute" | "minutes" => whole(60 * SECOND),
        "hour" | "hours" => whole(3600 * SECOND),
        "day" | "days" => whole(DAY),
        // 2000-01-01 was a Saturday.
        "week" | "weeks" => (days - (days + 5).rem_euclid(7)) * DAY,
        "month" | "months" => first(year, month),
        "quarter" => first(year, (month - 1) / 3 * 3 + 1),
        "year" | "years" => first(year, 1),
        "decade" | "decades" => first(year.div_euclid(10) * 10, 1),
        "century" | "centuries" => first(span(100), 1),
        "millennium" | "millennia" => first(span(1000), 1),
        _ => {
            let text = format!("timestamp units \"{unit}\" not recognized");
            return Err(SqlError::new(code::INVALID_ARGUMENT, text));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_to_units() {
        let at = |text: &str| datetime::parse_timestamp(text, 0).expect("a timestamp");
        for (unit, expected) in [
            ("hour", "1542-01-06 03:00"),
            ("week", "1542-01-05"),
            ("month", "1542-01-01"),
            ("quarter", "1542-01-01"),
            ("decade", "1540-01-01"),
            ("century", "1501-01-01"),
            ("millennium", "1001-01-01"),
        ] {
            assert_eq!(
                truncated(unit, at("1542-01-06 03:04:05")).expect("a unit"),
                at(expected),
                "{unit}"
            );
        }
        assert!(truncated("fortnight", 0).is_err());
    }
}
