//! The values and types that rows are made of.
//!
//! `Datum` owns its value, `DatumRef` borrows it from a row; `ColumnType` says what a column admits. Times are
//! PostgreSQL's: days and microseconds since 2000-01-01.

mod decimal;
mod digits;
mod numeric;

pub use decimal::write_decimal;
pub use numeric::{Numeric, Sign};

use std::cmp::Ordering;

/// A value, owned.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// SQL NULL.
    Null,
    /// boolean
    Bool(bool),
    /// smallint
    Int2(i16),
    /// integer
    Int4(i32),
    /// bigint
    Int8(i64),
    /// real
    Float4(f32),
    /// double precision
    Float8(f64),
    /// numeric
    Numeric(Numeric),
    /// text, varchar, char (char is stored padded, as PostgreSQL does)
    Text(String),
    /// bytea
    Bytes(Vec<u8>),
    /// date: days since 2000-01-01
    Date(i32),
    /// timestamp without time zone: microseconds since 2000-01-01
    Timestamp(i64),
    /// timestamp with time zone: microseconds since 2000-01-01 00:00 UTC
    TimestampTz(i64),
}

/// A value borrowed from a row.
#[derive(Debug, Clone, PartialEq)]
pub enum DatumRef<'a> {
    /// SQL NULL.
    Null,
    /// boolean
    Bool(bool),
    /// smallint
    Int2(i16),
    /// integer
    Int4(i32),
    /// bigint
    Int8(i64),
    /// real
    Float4(f32),
    /// double precision
    Float8(f64),
    /// numeric
    Numeric(Numeric),
    /// text, varchar, char
    Text(&'a str),
    /// bytea
    Bytes(&'a [u8]),
    /// date: days since 2000-01-01
    Date(i32),
    /// timestamp: microseconds since 2000-01-01
    Timestamp(i64),
    /// timestamptz: microseconds since 2000-01-01 00:00 UTC
    TimestampTz(i64),
}

/// What a column admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// boolean
    Bool,
    /// smallint
    Int2,
    /// integer
    Int4,
    /// bigint
    Int8,
    /// real
    Float4,
    /// double precision
    Float8,
    /// numeric, with (precision, scale) where declared
    Numeric(Option<(u16, i16)>),
    /// text
    Text,
    /// varchar, with its limit in characters
    Varchar(Option<u32>),
    /// char(n), in characters
    Char(u32),
    /// bytea
    Bytes,
    /// date
    Date,
    /// timestamp without time zone
    Timestamp,
    /// timestamp with time zone
    TimestampTz,
}

impl ColumnType {
    /// Bytes of a value in a row's fixed part; None where the length varies.
    pub const fn fixed_len(self) -> Option<usize> {
        match self {
            ColumnType::Bool => Some(1),
            ColumnType::Int2 => Some(2),
            ColumnType::Int4 | ColumnType::Float4 | ColumnType::Date => Some(4),
            ColumnType::Int8 | ColumnType::Float8 | ColumnType::Timestamp | ColumnType::TimestampTz => Some(8),
            ColumnType::Numeric(_)
            | ColumnType::Text
            | ColumnType::Varchar(_)
            | ColumnType::Char(_)
            | ColumnType::Bytes => None,
        }
    }

    /// PostgreSQL's name of the type (`format_type` without modifier).
    pub const fn name(self) -> &'static str {
        match self {
            ColumnType::Bool => "boolean",
            ColumnType::Int2 => "smallint",
            ColumnType::Int4 => "integer",
            ColumnType::Int8 => "bigint",
            ColumnType::Float4 => "real",
            ColumnType::Float8 => "double precision",
            ColumnType::Numeric(_) => "numeric",
            ColumnType::Text => "text",
            ColumnType::Varchar(_) => "character varying",
            ColumnType::Char(_) => "character",
            ColumnType::Bytes => "bytea",
            ColumnType::Date => "date",
            ColumnType::Timestamp => "timestamp without time zone",
            ColumnType::TimestampTz => "timestamp with time zone",
        }
    }

    /// Whether `datum` may be stored in a column of this type (NULL always may).
    pub fn admits(self, datum: &DatumRef<'_>) -> bool {
        matches!(
            (self, datum),
            (_, DatumRef::Null)
                | (ColumnType::Bool, DatumRef::Bool(_))
                | (ColumnType::Int2, DatumRef::Int2(_))
                | (ColumnType::Int4, DatumRef::Int4(_))
                | (ColumnType::Int8, DatumRef::Int8(_))
                | (ColumnType::Float4, DatumRef::Float4(_))
                | (ColumnType::Float8, DatumRef::Float8(_))
                | (ColumnType::Numeric(_), DatumRef::Numeric(_))
                | (
                    ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Char(_),
                    DatumRef::Text(_)
                )
                | (ColumnType::Bytes, DatumRef::Bytes(_))
                | (ColumnType::Date, DatumRef::Date(_))
                | (ColumnType::Timestamp, DatumRef::Timestamp(_))
                | (ColumnType::TimestampTz, DatumRef::TimestampTz(_))
        )
    }

    /// Two u32 words that stand for the type in the catalog: kind and modifier.
    pub fn to_words(self) -> (u32, u32) {
        match self {
            ColumnType::Bool => (1, 0),
            ColumnType::Int2 => (2, 0),
            ColumnType::Int4 => (3, 0),
            ColumnType::Int8 => (4, 0),
            ColumnType::Float4 => (5, 0),
            ColumnType::Float8 => (6, 0),
            ColumnType::Numeric(None) => (7, 0),
            ColumnType::Numeric(Some((p, s))) => (8, u32::from(p) << 16 | u32::from(s as u16)),
            ColumnType::Text => (9, 0),
            ColumnType::Varchar(n) => (10, n.unwrap_or(0)),
            ColumnType::Char(n) => (11, n),
            ColumnType::Bytes => (12, 0),
            ColumnType::Date => (13, 0),
            ColumnType::Timestamp => (14, 0),
            ColumnType::TimestampTz => (15, 0),
        }
    }

    /// The type that `to_words` wrote.
    pub fn from_words(kind: u32, modifier: u32) -> Option<ColumnType> {
        Some(match kind {
            1 => ColumnType::Bool,
            2 => ColumnType::Int2,
            3 => ColumnType::Int4,
            4 => ColumnType::Int8,
            5 => ColumnType::Float4,
            6 => ColumnType::Float8,
            7 => ColumnType::Numeric(None),
            8 => ColumnType::Numeric(Some(((modifier >> 16) as u16, modifier as u16 as i16))),
            9 => ColumnType::Text,
            10 => ColumnType::Varchar((modifier != 0).then_some(modifier)),
            11 => ColumnType::Char(modifier),
            12 => ColumnType::Bytes,
            13 => ColumnType::Date,
            14 => ColumnType::Timestamp,
            15 => ColumnType::TimestampTz,
            _ => return None,
        })
    }
}

impl std::fmt::Display for ColumnType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ColumnType::Numeric(Some((p, s))) => write!(f, "numeric({p},{s})"),
            ColumnType::Varchar(Some(n)) => write!(f, "character varying({n})"),
            ColumnType::Char(n) => write!(f, "character({n})"),
            other => f.write_str(other.name()),
        }
    }
}

impl Datum {
    /// The same value, borrowed.
    pub fn as_ref(&self) -> DatumRef<'_> {
        match self {
            Datum::Null => DatumRef::Null,
            Datum::Bool(v) => DatumRef::Bool(*v),
            Datum::Int2(v) => DatumRef::Int2(*v),
            Datum::Int4(v) => DatumRef::Int4(*v),
            Datum::Int8(v) => DatumRef::Int8(*v),
            Datum::Float4(v) => DatumRef::Float4(*v),
            Datum::Float8(v) => DatumRef::Float8(*v),
            Datum::Numeric(v) => DatumRef::Numeric(v.clone()),
            Datum::Text(v) => DatumRef::Text(v),
            Datum::Bytes(v) => DatumRef::Bytes(v),
            Datum::Date(v) => DatumRef::Date(*v),
            Datum::Timestamp(v) => DatumRef::Timestamp(*v),
            Datum::TimestampTz(v) => DatumRef::TimestampTz(*v),
        }
    }

    /// Whether this is SQL NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Datum::Null)
    }

    /// Order of two values of one type, as PostgreSQL's indexes see it (NaN greatest); None for NULLs and mixed types.
    pub fn compare(&self, other: &Datum) -> Option<Ordering> {
        self.as_ref().compare(&other.as_ref())
    }
}

impl DatumRef<'_> {
    /// The same value, owned.
    #[inline]
    pub fn to_owned(&self) -> Datum {
        match self {
            DatumRef::Null => Datum::Null,
            DatumRef::Bool(v) => Datum::Bool(*v),
            DatumRef::Int2(v) => Datum::Int2(*v),
            DatumRef::Int4(v) => Datum::Int4(*v),
            DatumRef::Int8(v) => Datum::Int8(*v),
            DatumRef::Float4(v) => Datum::Float4(*v),
            DatumRef::Float8(v) => Datum::Float8(*v),
            DatumRef::Numeric(v) => Datum::Numeric(v.clone()),
            DatumRef::Text(v) => Datum::Text((*v).to_string()),
            DatumRef::Bytes(v) => Datum::Bytes(v.to_vec()),
            DatumRef::Date(v) => Datum::Date(*v),
            DatumRef::Timestamp(v) => Datum::Timestamp(*v),
            DatumRef::TimestampTz(v) => Datum::TimestampTz(*v),
        }
    }

    /// As [`to_owned`](Self::to_owned), where the reference is not needed any more.
    #[inline]
    pub fn into_owned(self) -> Datum {
        match self {
            DatumRef::Numeric(v) => Datum::Numeric(v),
            other => other.to_owned(),
        }
    }

    /// Whether this is SQL NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, DatumRef::Null)
    }

    /// Order of two values of one type; None for NULLs and mixed types.
    pub fn compare(&self, other: &DatumRef<'_>) -> Option<Ordering> {
        use DatumRef::*;
        Some(match (self, other) {
            (Bool(a), Bool(b)) => a.cmp(b),
            (Int2(a), Int2(b)) => a.cmp(b),
            (Int4(a), Int4(b)) | (Date(a), Date(b)) => a.cmp(b),
            (Int8(a), Int8(b)) | (Timestamp(a), Timestamp(b)) | (TimestampTz(a), TimestampTz(b)) => a.cmp(b),
            (Float4(a), Float4(b)) => compare_floats(f64::from(*a), f64::from(*b)),
            (Float8(a), Float8(b)) => compare_floats(*a, *b),
            (Numeric(a), Numeric(b)) => a.cmp(b),
            (Text(a), Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Bytes(a), Bytes(b)) => a.cmp(b),
            _ => return None,
        })
    }
}

/// PostgreSQL's order of floats: NaN equals NaN and is above all, -0 equals 0.
pub fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
