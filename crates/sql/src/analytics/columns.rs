//! Columns of rows as Arrow arrays: many rows at a time, straight from the rows' bytes.

use super::error::engine_error;
use super::numeric::{to_i128, to_i256, wire_to_i128, wire_to_i256};
use super::types::{EPOCH_DAYS, EPOCH_MICROS, NUMERIC_ANY, arrow_type, numeric_any};
use crate::error::SqlError;
use arrow::array::*;
use arrow::datatypes::{ArrowPrimitiveType, DataType};
use cenote_engine::types::{ColumnType, DatumRef};
use cenote_engine::{ColumnReader, Error};
use std::sync::Arc;

type Result<T> = std::result::Result<T, SqlError>;

/// A column under construction.
pub(crate) enum Column {
    Bool(BooleanBuilder),
    Int2(Int16Builder),
    Int4(Int32Builder),
    Int8(Int64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    Narrow(Decimal128Builder, i8),
    Wide(Decimal256Builder, i8),
    /// Text; whether trailing blanks go (they mean nothing in `char(n)`).
    Text(StringBuilder, bool),
    Bytes(BinaryBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder, DataType),
}

impl Column {
    /// An empty column.
    pub fn new(column: ColumnType) -> Column {
        let data_type = arrow_type(column);
        match column {
            ColumnType::Bool => Column::Bool(BooleanBuilder::new()),
            ColumnType::Int2 => Column::Int2(Int16Builder::new()),
            ColumnType::Int4 => Column::Int4(Int32Builder::new()),
            ColumnType::Int8 => Column::Int8(Int64Builder::new()),
            ColumnType::Float4 => Column::Float4(Float32Builder::new()),
            ColumnType::Float8 => Column::Float8(Float64Builder::new()),
            ColumnType::Numeric(_) => match data_type {
                DataType::Decimal128(_, scale) => {
                    Column::Narrow(Decimal128Builder::new().with_data_type(data_type), scale)
                }
                DataType::Decimal256(_, scale) => {
                    Column::Wide(Decimal256Builder::new().with_data_type(data_type), scale)
                }
                _ => {
                    let builder = Decimal256Builder::new().with_data_type(numeric_any());
                    Column::Wide(builder, NUMERIC_ANY.1)
                }
            },
            ColumnType::Text | ColumnType::Varchar(_) => Column::Text(StringBuilder::new(), false),
            ColumnType::Char(_) => Column::Text(StringBuilder::new(), true),
            ColumnType::Bytes => Column::Bytes(BinaryBuilder::new()),
            ColumnType::Date => Column::Date(Date32Builder::new()),
            ColumnType::Timestamp | ColumnType::TimestampTz => {
                Column::Timestamp(TimestampMicrosecondBuilder::new(), data_type)
            }
        }
    }

    /// Appends this column of each row.
    ///
    /// # Errors
    /// Bytes that are no row of the table; digits that do not fit the column (22003).
    pub fn append(&mut self, reader: &ColumnReader, rows: &[&[u8]]) -> Result<()> {
        match self {
            Column::Bool(b) => each(reader, rows, |value| {
                b.append_option(value.map(fixed::<1>).transpose()?.map(|v| v[0] != 0));
                Ok(())
            }),
            Column::Int2(b) => primitive(b, reader, rows, |v| Ok(i16::from_le_bytes(fixed(v)?))),
            Column::Int4(b) => primitive(b, reader, rows, |v| Ok(i32::from_le_bytes(fixed(v)?))),
            Column::Int8(b) => primitive(b, reader, rows, |v| Ok(i64::from_le_bytes(fixed(v)?))),
            Column::Float4(b) => primitive(b, reader, rows, |v| Ok(f32::from_le_bytes(fixed(v)?))),
            Column::Float8(b) => primitive(b, reader, rows, |v| Ok(f64::from_le_bytes(fixed(v)?))),
            Column::Narrow(b, scale) => primitive(b, reader, rows, |v| wire_to_i128(v, *scale)),
            Column::Wide(b, scale) => primitive(b, reader, rows, |v| wire_to_i256(v, *scale)),
            Column::Text(b, trimmed) => each(reader, rows, |value| {
                let text = value.map(text).transpose()?;
                b.append_option(text.map(|t| if *trimmed { t.trim_end_matches(' ') } else { t }));
                Ok(())
            }),
            Column::Bytes(b) => each(reader, rows, |value| {
                b.append_option(value);
                Ok(())
            }),
            Column::Date(b) => primitive(b, reader, rows, |v| Ok(since_1970_days(i32::from_le_bytes(fixed(v)?)))),
            Column::Timestamp(b, _) => primitive(b, reader, rows, |v| Ok(since_1970(i64::from_le_bytes(fixed(v)?)))),
        }
    }

    /// Appends a value.
    ///
    /// # Errors
    /// The value is of another type, or its digits do not fit the column (22003).
    pub fn push(&mut self, value: DatumRef<'_>) -> Result<()> {
        match (self, value) {
            (Column::Bool(b), DatumRef::Bool(v)) => b.append_value(v),
            (Column::Int2(b), DatumRef::Int2(v)) => b.append_value(v),
            (Column::Int4(b), DatumRef::Int4(v)) => b.append_value(v),
            (Column::Int8(b), DatumRef::Int8(v)) => b.append_value(v),
            (Column::Float4(b), DatumRef::Float4(v)) => b.append_value(v),
            (Column::Float8(b), DatumRef::Float8(v)) => b.append_value(v),
            (Column::Narrow(b, scale), DatumRef::Numeric(v)) => b.append_value(to_i128(&v, *scale)?),
            (Column::Wide(b, scale), DatumRef::Numeric(v)) => b.append_value(to_i256(&v, *scale)?),
            (Column::Text(b, trimmed), DatumRef::Text(v)) => {
                b.append_value(if *trimmed { v.trim_end_matches(' ') } else { v })
            }
            (Column::Bytes(b), DatumRef::Bytes(v)) => b.append_value(v),
            (Column::Date(b), DatumRef::Date(v)) => b.append_value(since_1970_days(v)),
            (Column::Timestamp(b, _), DatumRef::Timestamp(v) | DatumRef::TimestampTz(v)) => {
                b.append_value(since_1970(v))
            }
            (column, DatumRef::Null) => column.push_null(),
            (_, other) => {
                return Err(SqlError::internal(format!(
                    "a row holds {other:?} in a column of another type"
                )));
            }
        }
        Ok(())
    }

    fn push_null(&mut self) {
        match self {
            Column::Bool(b) => b.append_null(),
            Column::Int2(b) => b.append_null(),
            Column::Int4(b) => b.append_null(),
            Column::Int8(b) => b.append_null(),
            Column::Float4(b) => b.append_null(),
            Column::Float8(b) => b.append_null(),
            Column::Narrow(b, _) => b.append_null(),
            Column::Wide(b, _) => b.append_null(),
            Column::Text(b, _) => b.append_null(),
            Column::Bytes(b) => b.append_null(),
            Column::Date(b) => b.append_null(),
            Column::Timestamp(b, _) => b.append_null(),
        }
    }

    /// The column, which begins anew.
    pub fn finish(&mut self) -> ArrayRef {
        match self {
            Column::Bool(b) => Arc::new(b.finish()),
            Column::Int2(b) => Arc::new(b.finish()),
            Column::Int4(b) => Arc::new(b.finish()),
            Column::Int8(b) => Arc::new(b.finish()),
            Column::Float4(b) => Arc::new(b.finish()),
            Column::Float8(b) => Arc::new(b.finish()),
            Column::Narrow(b, _) => Arc::new(b.finish()),
            Column::Wide(b, _) => Arc::new(b.finish()),
            Column::Text(b, _) => Arc::new(b.finish()),
            Column::Bytes(b) => Arc::new(b.finish()),
            Column::Date(b) => Arc::new(b.finish()),
            Column::Timestamp(b, data_type) => Arc::new(b.finish().with_data_type(data_type.clone())),
        }
    }
}

#[inline(always)]
fn each<'r>(
    reader: &ColumnReader,
    rows: &[&'r [u8]],
    mut append: impl FnMut(Option<&'r [u8]>) -> Result<()>,
) -> Result<()> {
    rows.iter()
        .try_for_each(|row| append(reader.bytes(row).map_err(engine_error)?))
}

#[inline(always)]
fn primitive<T: ArrowPrimitiveType>(
    builder: &mut PrimitiveBuilder<T>,
    reader: &ColumnReader,
    rows: &[&[u8]],
    value: impl Fn(&[u8]) -> Result<T::Native>,
) -> Result<()> {
    each(reader, rows, |bytes| {
        match bytes {
            Some(bytes) => builder.append_value(value(bytes)?),
            None => builder.append_null(),
        }
        Ok(())
    })
}

#[inline(always)]
fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    let wrong = |_| Error::Corrupt("a column of another length than its type's".into());
    bytes.try_into().map_err(wrong).map_err(engine_error)
}

fn text(bytes: &[u8]) -> Result<&str> {
    let wrong = |_| Error::Corrupt("text that is not UTF-8".into());
    std::str::from_utf8(bytes).map_err(wrong).map_err(engine_error)
}

fn since_1970_days(days: i32) -> i32 {
    days.checked_add(EPOCH_DAYS).unwrap_or(i32::MAX)
}

fn since_1970(micros: i64) -> i64 {
    match micros {
        i64::MIN | i64::MAX => micros,
        value => value.saturating_add(EPOCH_MICROS),
    }
}
