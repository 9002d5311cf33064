//! Arrow cells as PostgreSQL's text and binary representations, straight into the output buffer.

use super::numeric::{decimal_text, decimal_value};
use super::types::{EPOCH_DAYS, EPOCH_MICROS, pg_type};
use crate::error::{Result, SqlError, code};
use crate::types::zone::Zone;
use crate::types::{datetime, float};
use arrow::array::*;
use arrow::datatypes::DataType;
use bytes::{BufMut, BytesMut};
use cenote_engine::types::{Datum, Numeric, Sign};
use std::fmt::Write;

/// Appends the value at `row` of `array`, without its length; false (and nothing appended) for NULL.
pub(crate) fn append_text(out: &mut BytesMut, array: &dyn Array, row: usize, zone: &Zone) -> Result<bool> {
    if is_null(array, row) {
        return Ok(false);
    }
    match array.data_type() {
        DataType::Boolean => out.put_u8(if array.as_boolean().value(row) { b't' } else { b'f' }),
        DataType::Float32 => float::write_f32(array.as_primitive::<arrow::datatypes::Float32Type>().value(row), out),
        DataType::Float64 => float::write_f64(array.as_primitive::<arrow::datatypes::Float64Type>().value(row), out),
        DataType::Decimal128(..) | DataType::Decimal256(..) => out.put_slice(decimal_text(array, row)?.as_bytes()),
        DataType::Date32 | DataType::Date64 => date_text(out, days(array, row)),
        DataType::Timestamp(_, zoned) => timestamp_text(out, micros(array, row)?, zoned.is_some().then_some(zone)),
        DataType::Time32(_) | DataType::Time64(_) => time_text(out, time_micros(array, row)),
        DataType::Interval(_) | DataType::Duration(_) => interval_text(out, interval(array, row)),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
            list_text(out, &*list_item(array, row), zone)?
        }
        DataType::Struct(_) => record_text(out, array, row, zone)?,
        DataType::Dictionary(..) => return append_text(out, &*undictionary(array)?, row, zone),
        _ => match (string(array, row), bytes(array, row), integer(array, row)) {
            (Some(text), ..) => out.put_slice(text.as_bytes()),
            (_, Some(bytes), _) => bytea_text(out, bytes),
            (_, _, Some(value)) => write!(out, "{value}").map_err(no_room)?,
            _ => return Err(unknown_type(array)),
        },
    }
    Ok(true)
}

/// A `char(n)`, whose text is the same in both formats. Queries run without its trailing blanks, which mean nothing;
/// here they come back.
pub(crate) fn append_padded(out: &mut BytesMut, array: &dyn Array, row: usize, modifier: i32) -> Result<bool> {
    if is_null(array, row) {
        return Ok(false);
    }
    let text = string(array, row).ok_or_else(|| unknown_type(array))?;
    out.put_slice(text.as_bytes());
    let missing = (modifier.saturating_sub(4).max(0) as usize).saturating_sub(text.chars().count());
    out.put_bytes(b' ', missing);
    Ok(true)
}

/// Whether values of the type are written as `1 2 3` rather than `{1,2,3}`: `int2vector` and `oidvector`.
pub(crate) fn is_vector(oid: u32) -> bool {
    matches!(oid, 22 | 30)
}

/// A vector's text.
pub(crate) fn append_vector(out: &mut BytesMut, array: &dyn Array, row: usize) -> Result<bool> {
    let start = out.len();
    let there = append_text(out, array, row, &Zone::Utc)?;
    let text = String::from_utf8_lossy(&out[start..])
        .trim_matches(['{', '}'])
        .replace(',', " ");
    out.truncate(start);
    out.put_slice(text.as_bytes());
    Ok(there)
}

/// As [`append_text`], in the binary format of type `oid`.
pub(crate) fn append_binary(out: &mut BytesMut, array: &dyn Array, row: usize, oid: u32) -> Result<bool> {
    if is_null(array, row) {
        return Ok(false);
    }
    match array.data_type() {
        DataType::Boolean => out.put_u8(u8::from(array.as_boolean().value(row))),
        DataType::Float32 => out.put_f32(array.as_primitive::<arrow::datatypes::Float32Type>().value(row)),
        DataType::Float64 => out.put_f64(array.as_primitive::<arrow::datatypes::Float64Type>().value(row)),
        DataType::Decimal128(..) | DataType::Decimal256(..) => numeric_binary(out, &decimal_value(array, row)?),
        DataType::Date32 | DataType::Date64 => out.put_i32(days(array, row)),
        DataType::Timestamp(..) => out.put_i64(micros(array, row)?),
        DataType::Time32(_) | DataType::Time64(_) => out.put_i64(time_micros(array, row)),
        DataType::Interval(_) | DataType::Duration(_) => {
            let (months, days, micros) = interval(array, row);
            out.put_i64(micros);
            out.put_i32(days);
            out.put_i32(months);
        }
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => list_binary(out, array, row)?,
        DataType::Struct(_) => return Err(SqlError::unsupported("the binary format of records")),
        DataType::Dictionary(..) => return append_binary(out, &*undictionary(array)?, row, oid),
        _ => match (string(array, row), bytes(array, row), integer(array, row)) {
            (Some(text), ..) => out.put_slice(text.as_bytes()),
            (_, Some(bytes), _) => out.put_slice(bytes),
            (_, _, Some(value)) => integer_binary(out, value, oid),
            _ => return Err(unknown_type(array)),
        },
    }
    Ok(true)
}

/// The value at `row` as the engine holds it; types that the engine has not become text.
pub(crate) fn datum(array: &dyn Array, row: usize) -> Result<Datum> {
    if is_null(array, row) {
        return Ok(Datum::Null);
    }
    Ok(match array.data_type() {
        DataType::Boolean => Datum::Bool(array.as_boolean().value(row)),
        DataType::Int16 | DataType::Int8 | DataType::UInt8 => {
            Datum::Int2(integer(array, row).unwrap_or_default() as i16)
        }
        DataType::Int32 | DataType::UInt16 => Datum::Int4(integer(array, row).unwrap_or_default() as i32),
        DataType::Int64 | DataType::UInt32 => Datum::Int8(integer(array, row).unwrap_or_default() as i64),
        DataType::UInt64 => {
            Datum::Int8(i64::try_from(integer(array, row).unwrap_or_default()).map_err(|_| out_of_range("bigint"))?)
        }
        DataType::Float32 => Datum::Float4(array.as_primitive::<arrow::datatypes::Float32Type>().value(row)),
        DataType::Float64 => Datum::Float8(array.as_primitive::<arrow::datatypes::Float64Type>().value(row)),
        DataType::Decimal128(..) | DataType::Decimal256(..) => Datum::Numeric(decimal_value(array, row)?),
        DataType::Date32 | DataType::Date64 => Datum::Date(days(array, row)),
        DataType::Timestamp(_, None) => Datum::Timestamp(micros(array, row)?),
        DataType::Timestamp(_, Some(_)) => Datum::TimestampTz(micros(array, row)?),
        _ => match (string(array, row), bytes(array, row)) {
            (Some(text), _) => Datum::Text(text.to_string()),
            (_, Some(bytes)) => Datum::Bytes(bytes.to_vec()),
            _ => Datum::Text(text_of(array, row)?),
        },
    })
}

/// The value at `row` as text, instants in UTC; empty for NULL.
pub(crate) fn text_of(array: &dyn Array, row: usize) -> Result<String> {
    text_in(array, row, &Zone::Utc)
}

/// The value at `row` as text, instants in this time zone; empty for NULL.
pub(crate) fn text_in(array: &dyn Array, row: usize, zone: &Zone) -> Result<String> {
    let mut out = BytesMut::new();
    append_text(&mut out, array, row, zone)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn is_null(array: &dyn Array, row: usize) -> bool {
    array.is_null(row) || matches!(array.data_type(), DataType::Null)
}

fn no_room(_: std::fmt::Error) -> SqlError {
    SqlError::internal("the output buffer refused a value")
}

fn unknown_type(array: &dyn Array) -> SqlError {
    SqlError::unsupported(format!("a result of type {}", array.data_type()))
}

fn out_of_range(name: &str) -> SqlError {
    SqlError::new(code::OUT_OF_RANGE, format!("{name} out of range"))
}

fn undictionary(array: &dyn Array) -> Result<ArrayRef> {
    let DataType::Dictionary(_, value) = array.data_type() else {
        return Err(unknown_type(array));
    };
    arrow::compute::cast(array, value).map_err(|_| unknown_type(array))
}

fn string(array: &dyn Array, row: usize) -> Option<&str> {
    match array.data_type() {
        DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(array.as_string_view().value(row)),
        _ => None,
    }
}

fn bytes(array: &dyn Array, row: usize) -> Option<&[u8]> {
    match array.data_type() {
        DataType::Binary => Some(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Some(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Some(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => Some(array.as_fixed_size_binary().value(row)),
        _ => None,
    }
}

/// Any integer, wide enough for all of them.
pub(crate) fn integer(array: &dyn Array, row: usize) -> Option<i128> {
    use arrow::datatypes::*;
    Some(match array.data_type() {
        DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).into(),
        _ => return None,
    })
}

fn integer_binary(out: &mut BytesMut, value: i128, oid: u32) {
    match oid {
        21 => out.put_i16(value as i16),
        20 => out.put_i64(value as i64),
        _ => out.put_i32(value as i32),
    }
}

fn days(array: &dyn Array, row: usize) -> i32 {
    use arrow::datatypes::{Date32Type, Date64Type};
    let since_1970 = match array.data_type() {
        DataType::Date32 => array.as_primitive::<Date32Type>().value(row),
        _ => (array.as_primitive::<Date64Type>().value(row) / 86_400_000) as i32,
    };
    match since_1970 {
        i32::MIN | i32::MAX => since_1970,
        day => day.saturating_sub(EPOCH_DAYS),
    }
}

fn micros(array: &dyn Array, row: usize) -> Result<i64> {
    use arrow::datatypes::*;
    let since_1970 = match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => array
            .as_primitive::<TimestampSecondType>()
            .value(row)
            .checked_mul(1_000_000),
        DataType::Timestamp(TimeUnit::Millisecond, _) => array
            .as_primitive::<TimestampMillisecondType>()
            .value(row)
            .checked_mul(1000),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            Some(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        _ => Some(
            array
                .as_primitive::<TimestampNanosecondType>()
                .value(row)
                .div_euclid(1000),
        ),
    };
    match since_1970 {
        Some(infinity @ (i64::MIN | i64::MAX)) => Ok(infinity),
        Some(value) => value.checked_sub(EPOCH_MICROS).ok_or_else(|| out_of_range("timestamp")),
        None => Err(out_of_range("timestamp")),
    }
}

fn time_micros(array: &dyn Array, row: usize) -> i64 {
    use arrow::datatypes::*;
    match array.data_type() {
        DataType::Time32(TimeUnit::Second) => {
            i64::from(array.as_primitive::<Time32SecondType>().value(row)) * 1_000_000
        }
        DataType::Time32(_) => i64::from(array.as_primitive::<Time32MillisecondType>().value(row)) * 1000,
        DataType::Time64(TimeUnit::Microsecond) => array.as_primitive::<Time64MicrosecondType>().value(row),
        _ => array.as_primitive::<Time64NanosecondType>().value(row) / 1000,
    }
}

/// Months, days and microseconds of an interval or duration.
fn interval(array: &dyn Array, row: usize) -> (i32, i32, i64) {
    use arrow::datatypes::*;
    match array.data_type() {
        DataType::Interval(IntervalUnit::YearMonth) => (array.as_primitive::<IntervalYearMonthType>().value(row), 0, 0),
        DataType::Interval(IntervalUnit::DayTime) => {
            let value = array.as_primitive::<IntervalDayTimeType>().value(row);
            (0, value.days, i64::from(value.milliseconds) * 1000)
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            (value.months, value.days, value.nanoseconds / 1000)
        }
        DataType::Duration(TimeUnit::Second) => split_days(
            array
                .as_primitive::<DurationSecondType>()
                .value(row)
                .saturating_mul(1_000_000),
        ),
        DataType::Duration(TimeUnit::Millisecond) => split_days(
            array
                .as_primitive::<DurationMillisecondType>()
                .value(row)
                .saturating_mul(1000),
        ),
        DataType::Duration(TimeUnit::Microsecond) => {
            split_days(array.as_primitive::<DurationMicrosecondType>().value(row))
        }
        _ => split_days(array.as_primitive::<DurationNanosecondType>().value(row) / 1000),
    }
}

/// PostgreSQL's difference of two timestamps counts whole days apart.
fn split_days(micros: i64) -> (i32, i32, i64) {
    const DAY: i64 = 86_400_000_000;
    (0, (micros / DAY) as i32, micros % DAY)
}

fn date_text(out: &mut BytesMut, days: i32) {
    datetime::write_date(days, out);
}

fn time_text(out: &mut BytesMut, micros: i64) {
    let seconds = micros / 1_000_000;
    let written = write!(
        out,
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    written.expect("writing to a growing buffer cannot fail");
    fraction_text(out, micros % 1_000_000);
}

fn fraction_text(out: &mut BytesMut, micros: i64) {
    if micros != 0 {
        let digits = format!("{micros:06}");
        out.put_u8(b'.');
        out.put_slice(digits.trim_end_matches('0').as_bytes());
    }
}

fn timestamp_text(out: &mut BytesMut, micros: i64, zone: Option<&Zone>) {
    match zone {
        Some(zone) if micros != i64::MAX && micros != i64::MIN => {
            let offset = zone.offset_at_utc(micros);
            datetime::write_timestamp(micros, Some(offset), out);
        }
        Some(_) => datetime::write_timestamp(micros, Some(0), out),
        None => datetime::write_timestamp(micros, None, out),
    }
}

fn interval_text(out: &mut BytesMut, (months, days, micros): (i32, i32, i64)) {
    let mut parts = Vec::new();
    let mut part = |n: i32, unit: &str| {
        if n != 0 {
            parts.push(format!("{n} {unit}{}", if n == 1 { "" } else { "s" }));
        }
    };
    part(months / 12, "year");
    part(months % 12, "mon");
    part(days, "day");
    if micros != 0 || parts.is_empty() {
        let mut time = BytesMut::new();
        time_text(&mut time, micros.abs());
        parts.push(format!(
            "{}{}",
            if micros < 0 { "-" } else { "" },
            String::from_utf8_lossy(&time)
        ));
    }
    out.put_slice(parts.join(" ").as_bytes());
}

fn bytea_text(out: &mut BytesMut, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.put_slice(b"\\x");
    for byte in bytes {
        out.put_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

fn list_item(array: &dyn Array, row: usize) -> ArrayRef {
    match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().value(row),
        DataType::LargeList(_) => array.as_list::<i64>().value(row),
        _ => array.as_fixed_size_list().value(row),
    }
}

fn list_text(out: &mut BytesMut, items: &dyn Array, zone: &Zone) -> Result<()> {
    out.put_u8(b'{');
    for row in 0..items.len() {
        if row > 0 {
            out.put_u8(b',');
        }
        let mut item = BytesMut::new();
        if !append_text(&mut item, items, row, zone)? {
            out.put_slice(b"NULL");
        } else if matches!(items.data_type(), DataType::List(_) | DataType::LargeList(_)) || !needs_quotes(&item) {
            out.put_slice(&item);
        } else {
            quoted(out, &item);
        }
    }
    out.put_u8(b'}');
    Ok(())
}

fn needs_quotes(item: &[u8]) -> bool {
    item.is_empty() || item.eq_ignore_ascii_case(b"null") || item.iter().any(|c| b"{},\"\\ \t\n\r".contains(c))
}

fn quoted(out: &mut BytesMut, item: &[u8]) {
    out.put_u8(b'"');
    for &c in item {
        if c == b'"' || c == b'\\' {
            out.put_u8(b'\\');
        }
        out.put_u8(c);
    }
    out.put_u8(b'"');
}

fn record_text(out: &mut BytesMut, array: &dyn Array, row: usize, zone: &Zone) -> Result<()> {
    out.put_u8(b'(');
    for (i, column) in array.as_struct().columns().iter().enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        let mut item = BytesMut::new();
        if append_text(&mut item, &**column, row, zone)? {
            if item.is_empty() || item.iter().any(|c| b"(),\"\\ ".contains(c)) {
                quoted(out, &item)
            } else {
                out.put_slice(&item)
            }
        }
    }
    out.put_u8(b')');
    Ok(())
}

fn list_binary(out: &mut BytesMut, array: &dyn Array, row: usize) -> Result<()> {
    let (DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _)) = array.data_type()
    else {
        return Err(unknown_type(array));
    };
    let items = list_item(array, row);
    let oid = pg_type(field).oid;
    out.put_i32(i32::from(!items.is_empty()));
    out.put_i32(i32::from(items.null_count() > 0));
    out.put_u32(oid);
    if items.is_empty() {
        return Ok(());
    }
    out.put_i32(items.len() as i32);
    out.put_i32(1);
    for row in 0..items.len() {
        append_counted(out, |out| append_binary(out, &*items, row, oid))?;
    }
    Ok(())
}

/// Appends an i32 length (-1 for NULL) and what `append` appends.
pub(crate) fn append_counted(out: &mut BytesMut, append: impl FnOnce(&mut BytesMut) -> Result<bool>) -> Result<()> {
    let start = out.len();
    out.put_i32(-1);
    if append(out)? {
        let len = i32::try_from(out.len() - start - 4)
            .map_err(|_| SqlError::new(code::PROGRAM_LIMIT, "a value is larger than 2 GiB"))?;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }
    Ok(())
}

fn numeric_binary(out: &mut BytesMut, value: &Numeric) {
    out.put_u16(value.digits().len() as u16);
    out.put_i16(value.weight());
    out.put_u16(Sign::wire(value.sign()));
    out.put_u16(value.dscale());
    for digit in value.digits() {
        out.put_u16(*digit);
    }
}
