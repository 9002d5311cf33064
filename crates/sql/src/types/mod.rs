//! Types as clients see them: ids, lengths, modifiers, and the two encodings of every value.

pub mod array;
pub mod cast;
pub mod datetime;
pub mod float;
pub mod numeric;
pub mod text;
pub mod wire;
pub mod zone;

use cenote_engine::types::ColumnType;

/// PostgreSQL's type ids.
#[allow(missing_docs)]
pub mod oid {
    pub const BOOL: u32 = 16;
    pub const BYTEA: u32 = 17;
    pub const NAME: u32 = 19;
    pub const INT8: u32 = 20;
    pub const INT2: u32 = 21;
    pub const INT4: u32 = 23;
    pub const TEXT: u32 = 25;
    pub const OID: u32 = 26;
    pub const FLOAT4: u32 = 700;
    pub const FLOAT8: u32 = 701;
    pub const UNKNOWN: u32 = 705;
    pub const BPCHAR: u32 = 1042;
    pub const VARCHAR: u32 = 1043;
    pub const DATE: u32 = 1082;
    pub const TIMESTAMP: u32 = 1114;
    pub const TIMESTAMPTZ: u32 = 1184;
    pub const NUMERIC: u32 = 1700;
}

/// Type id of `ty`.
pub fn type_oid(ty: ColumnType) -> u32 {
    match ty {
        ColumnType::Bool => oid::BOOL,
        ColumnType::Int2 => oid::INT2,
        ColumnType::Int4 => oid::INT4,
        ColumnType::Int8 => oid::INT8,
        ColumnType::Float4 => oid::FLOAT4,
        ColumnType::Float8 => oid::FLOAT8,
        ColumnType::Numeric(_) => oid::NUMERIC,
        ColumnType::Text => oid::TEXT,
        ColumnType::Varchar(_) => oid::VARCHAR,
        ColumnType::Char(_) => oid::BPCHAR,
        ColumnType::Bytes => oid::BYTEA,
        ColumnType::Date => oid::DATE,
        ColumnType::Timestamp => oid::TIMESTAMP,
        ColumnType::TimestampTz => oid::TIMESTAMPTZ,
    }
}

/// Array types by their ids, with the ids of their elements.
const ARRAYS: [(u32, u32); 16] = [
    (1000, oid::BOOL),
    (1001, oid::BYTEA),
    (1003, oid::NAME),
    (1005, oid::INT2),
    (1007, oid::INT4),
    (1009, oid::TEXT),
    (1014, oid::BPCHAR),
    (1015, oid::VARCHAR),
    (1016, oid::INT8),
    (1021, oid::FLOAT4),
    (1022, oid::FLOAT8),
    (1028, oid::OID),
    (1115, oid::TIMESTAMP),
    (1182, oid::DATE),
    (1185, oid::TIMESTAMPTZ),
    (1231, oid::NUMERIC),
];

/// Whether the id is that of an array whose elements the engine has.
pub fn is_array_oid(id: u32) -> bool {
    element_of_array(id).is_some()
}

/// The type of an array's elements, by the array's id. Blanks at the end of bpchar do not count.
pub fn element_of_array(id: u32) -> Option<ColumnType> {
    let (_, element) = ARRAYS.iter().find(|(array, _)| *array == id)?;
    match *element {
        oid::BPCHAR => Some(ColumnType::Char(1)),
        element => type_of_oid(element),
    }
}

/// The id of the array of a type.
pub fn array_oid(element: ColumnType) -> u32 {
    let wanted = type_oid(element);
    let found = ARRAYS.iter().find(|(_, element)| *element == wanted);
    found.map_or(oid::TEXT, |(array, _)| *array)
}

/// The type that `id` names, without modifier; None where Cenote has no such type.
pub fn type_of_oid(id: u32) -> Option<ColumnType> {
    Some(match id {
        oid::BOOL => ColumnType::Bool,
        oid::INT2 => ColumnType::Int2,
        oid::INT4 => ColumnType::Int4,
        oid::INT8 | oid::OID => ColumnType::Int8,
        oid::FLOAT4 => ColumnType::Float4,
        oid::FLOAT8 => ColumnType::Float8,
        oid::NUMERIC => ColumnType::Numeric(None),
        oid::TEXT | oid::NAME => ColumnType::Text,
        oid::VARCHAR => ColumnType::Varchar(None),
        oid::BPCHAR => ColumnType::Text,
        oid::BYTEA => ColumnType::Bytes,
        oid::DATE => ColumnType::Date,
        oid::TIMESTAMP => ColumnType::Timestamp,
        oid::TIMESTAMPTZ => ColumnType::TimestampTz,
        _ => return None,
    })
}

/// Bytes of the type for RowDescription, -1 when they vary.
pub fn type_len(ty: ColumnType) -> i16 {
    ty.fixed_len().map_or(-1, |n| n as i16)
}

/// Type modifier for RowDescription: 4 + length of varchar(n) and char(n), precision and scale of numeric, else -1.
pub fn type_mod(ty: ColumnType) -> i32 {
    match ty {
        // char of no length, in expressions.
        ColumnType::Char(0) => -1,
        ColumnType::Varchar(Some(n)) | ColumnType::Char(n) => n as i32 + 4,
        ColumnType::Numeric(Some((p, s))) => ((i32::from(p)) << 16 | (i32::from(s) & 0x7ff)) + 4,
        _ => -1,
    }
}

/// The type without its modifier: what an operator or function sees.
pub fn base_type(ty: ColumnType) -> ColumnType {
    match ty {
        ColumnType::Numeric(_) => ColumnType::Numeric(None),
        ColumnType::Varchar(_) => ColumnType::Varchar(None),
        other => other,
    }
}

/// Whether both are the same type but for their modifiers.
pub fn same_base(a: ColumnType, b: ColumnType) -> bool {
    std::mem::discriminant(&a) == std::mem::discriminant(&b)
}

/// smallint, integer or bigint.
pub fn is_integer(ty: ColumnType) -> bool {
    matches!(ty, ColumnType::Int2 | ColumnType::Int4 | ColumnType::Int8)
}

/// Any type that arithmetic works on.
pub fn is_number(ty: ColumnType) -> bool {
    is_integer(ty) || matches!(ty, ColumnType::Float4 | ColumnType::Float8 | ColumnType::Numeric(_))
}

/// text, varchar or char.
pub fn is_string(ty: ColumnType) -> bool {
    matches!(ty, ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Char(_))
}
