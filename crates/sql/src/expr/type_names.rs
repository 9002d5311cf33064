//! Type names of the grammar as types.

use crate::error::{Result, SqlError, code};
use crate::names;
use cenote_engine::ColumnType;
use sqlparser::ast::{CharacterLength, DataType, ExactNumberInfo, TimezoneInfo};

/// Longest varchar(n) and char(n).
const MAX_LENGTH: u64 = 10_485_760;

/// The type that a name of the grammar means. Unknown: 42704; known to PostgreSQL only: 0A000.
///
/// # Errors
/// 42704: no type has this name. 0A000: only PostgreSQL has it. 22023: its modifier is out of range.
pub fn type_named(ty: &DataType) -> Result<ColumnType> {
    Ok(match ty {
        DataType::Bool | DataType::Boolean => ColumnType::Bool,
        DataType::SmallInt(None) | DataType::Int2(None) => ColumnType::Int2,
        DataType::Int(None) | DataType::Integer(None) | DataType::Int4(None) => ColumnType::Int4,
        DataType::BigInt(None) | DataType::Int8(None) => ColumnType::Int8,
        DataType::Real | DataType::Float4 => ColumnType::Float4,
        DataType::Float8 | DataType::DoublePrecision | DataType::Double(ExactNumberInfo::None) => ColumnType::Float8,
        DataType::Float(info) => float(info)?,
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => {
            ColumnType::Numeric(precision(info)?)
        }
        DataType::Text => ColumnType::Text,
        DataType::Varchar(n) | DataType::CharacterVarying(n) | DataType::CharVarying(n) => {
            ColumnType::Varchar(length(n.as_ref(), "varchar")?)
        }
        DataType::Char(n) | DataType::Character(n) => ColumnType::Char(length(n.as_ref(), "char")?.unwrap_or(1)),
        DataType::Bytea => ColumnType::Bytes,
        DataType::Date => ColumnType::Date,
        DataType::Timestamp(_, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => ColumnType::Timestamp,
        DataType::Timestamp(..) => ColumnType::TimestampTz,
        DataType::Custom(name, modifiers) => custom(&names::qualified(name)?.1, modifiers)?,
        other => {
            return Err(SqlError::unsupported(format!(
                "type {}",
                other.to_string().to_lowercase()
            )));
        }
    })
}

fn custom(name: &str, modifiers: &[String]) -> Result<ColumnType> {
    Ok(match name {
        "timestamptz" => ColumnType::TimestampTz,
        "bpchar" => match modifiers {
            [] => ColumnType::Text,
            [n, ..] => ColumnType::Char(n.parse().map_err(|_| undefined(name))?),
        },
        "name" => ColumnType::Text,
        "oid" => ColumnType::Int8,
        "time" | "timetz" | "interval" | "uuid" | "json" | "jsonb" | "xml" | "inet" | "cidr" | "macaddr" | "money"
        | "bit" | "varbit" | "point" | "regclass" | "regtype" | "regproc" | "int4range" | "tsvector" | "tsquery"
        | "hstore" | "citext" | "xid" | "pg_lsn" => {
            return Err(SqlError::unsupported(format!("type {name}")));
        }
        _ => return Err(undefined(name)),
    })
}

#[cold]
fn undefined(name: &str) -> SqlError {
    SqlError::new(code::UNDEFINED_OBJECT, format!("type \"{name}\" does not exist"))
}

/// float(p): real up to 24 bits, then double precision.
fn float(info: &ExactNumberInfo) -> Result<ColumnType> {
    match info {
        ExactNumberInfo::None | ExactNumberInfo::Precision(25..=53) => Ok(ColumnType::Float8),
        ExactNumberInfo::Precision(1..=24) => Ok(ColumnType::Float4),
        ExactNumberInfo::Precision(0) => Err(invalid("precision for type float must be at least 1 bit")),
        _ => Err(invalid("precision for type float must be less than 54 bits")),
    }
}

fn precision(info: &ExactNumberInfo) -> Result<Option<(u16, i16)>> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => return Ok(None),
        ExactNumberInfo::Precision(p) => (*p, 0),
        ExactNumberInfo::PrecisionAndScale(p, s) => (*p, *s),
    };
    if !(1..=1000).contains(&precision) {
        return Err(invalid(&format!(
            "NUMERIC precision {precision} must be between 1 and 1000"
        )));
    }
    if !(-1000..=1000).contains(&scale) {
        return Err(invalid(&format!(
            "NUMERIC scale {scale} must be between -1000 and 1000"
        )));
    }
    Ok(Some((precision as u16, scale as i16)))
}

fn length(length: Option<&CharacterLength>, ty: &str) -> Result<Option<u32>> {
    match length {
        None => Ok(None),
        Some(CharacterLength::IntegerLength { length: 0, .. }) => {
            Err(invalid(&format!("length for type {ty} must be at least 1")))
        }
        Some(CharacterLength::IntegerLength { length, .. }) if *length <= MAX_LENGTH => Ok(Some(*length as u32)),
        _ => Err(invalid(&format!("length for type {ty} cannot exceed {MAX_LENGTH}"))),
    }
}

#[cold]
fn invalid(message: &str) -> SqlError {
    SqlError::new(code::INVALID_ARGUMENT, message)
}
