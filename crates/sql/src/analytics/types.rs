//! PostgreSQL's types as Arrow's, and back.
//!
//! Engine values become Arrow arrays on the way in, Arrow arrays become PostgreSQL values on the way out; between the
//! two a type is an Arrow type, plus a word in the field's metadata where Arrow has one type for several of
//! PostgreSQL's (text, varchar, char, name).
//!
//! `numeric` needs a scale in Arrow. Declared ones keep theirs. Two scales stand for a meaning (both with precision
//! 76): [`NUMERIC_ANY`] is a numeric without declared scale, shown without trailing zeros; [`NUMERIC_QUOTIENT`] comes
//! out of a division or an average, and is shown with as many digits as PostgreSQL's division gives.

use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use cenote_engine::types::ColumnType;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, ExprSchemable};
use std::collections::HashMap;

/// Precision and scale of a numeric without declared scale.
pub(crate) const NUMERIC_ANY: (u8, i8) = (76, 30);
/// Precision and scale of a quotient.
pub(crate) const NUMERIC_QUOTIENT: (u8, i8) = (76, 29);
/// Type id of `char(n)`.
pub(crate) const BPCHAR: u32 = 1042;
/// Type id of `varchar`.
pub(crate) const VARCHAR: u32 = 1043;
/// Days from 1970-01-01 to 2000-01-01.
pub(crate) const EPOCH_DAYS: i32 = 10_957;
/// Microseconds from 1970-01-01 to 2000-01-01.
pub(crate) const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400_000_000;
/// Key of a field's metadata under which the PostgreSQL type stands.
const PG_TYPE: &str = "pg_type";

/// A type as the protocol names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PgType {
    /// Type id.
    pub oid: u32,
    /// Bytes, -1 when they vary.
    pub len: i16,
    /// Modifier as in `pg_attribute.atttypmod`.
    pub modifier: i32,
}

/// A built-in type of `pg_type`.
pub(crate) struct BuiltinType {
    pub oid: u32,
    pub name: &'static str,
    pub len: i16,
    pub category: char,
    /// Id of the type of its arrays, 0 for none.
    pub array: u32,
    /// Id of its element's type, 0 for none.
    pub element: u32,
}

const fn t(oid: u32, name: &'static str, len: i16, category: char, array: u32, element: u32) -> BuiltinType {
    BuiltinType {
        oid,
        name,
        len,
        category,
        array,
        element,
    }
}

/// The types that Cenote knows or whose ids tools expect to find.
pub(crate) const BUILTIN: &[BuiltinType] = &[
    t(16, "bool", 1, 'B', 1000, 0),
    t(17, "bytea", -1, 'U', 1001, 0),
    t(18, "char", 1, 'Z', 1002, 0),
    t(19, "name", 64, 'S', 1003, 18),
    t(20, "int8", 8, 'N', 1016, 0),
    t(21, "int2", 2, 'N', 1005, 0),
    t(22, "int2vector", -1, 'A', 1006, 21),
    t(23, "int4", 4, 'N', 1007, 0),
    t(24, "regproc", 4, 'N', 1008, 0),
    t(25, "text", -1, 'S', 1009, 0),
    t(26, "oid", 4, 'N', 1028, 0),
    t(28, "xid", 4, 'U', 1011, 0),
    t(30, "oidvector", -1, 'A', 1013, 26),
    t(114, "json", -1, 'U', 199, 0),
    t(194, "pg_node_tree", -1, 'Z', 0, 0),
    t(700, "float4", 4, 'N', 1021, 0),
    t(701, "float8", 8, 'N', 1022, 0),
    t(705, "unknown", -2, 'X', 0, 0),
    t(1000, "_bool", -1, 'A', 0, 16),
    t(1001, "_bytea", -1, 'A', 0, 17),
    t(1002, "_char", -1, 'A', 0, 18),
    t(1003, "_name", -1, 'A', 0, 19),
    t(1005, "_int2", -1, 'A', 0, 21),
    t(1007, "_int4", -1, 'A', 0, 23),
    t(1009, "_text", -1, 'A', 0, 25),
    t(1014, "_bpchar", -1, 'A', 0, 1042),
    t(1015, "_varchar", -1, 'A', 0, 1043),
    t(1016, "_int8", -1, 'A', 0, 20),
    t(1021, "_float4", -1, 'A', 0, 700),
    t(1022, "_float8", -1, 'A', 0, 701),
    t(1028, "_oid", -1, 'A', 0, 26),
    t(1033, "aclitem", 12, 'U', 1034, 0),
    t(1034, "_aclitem", -1, 'A', 0, 1033),
    t(1042, "bpchar", -1, 'S', 1014, 0),
    t(1043, "varchar", -1, 'S', 1015, 0),
    t(1082, "date", 4, 'D', 1182, 0),
    t(1083, "time", 8, 'D', 1183, 0),
    t(1114, "timestamp", 8, 'D', 1115, 0),
    t(1115, "_timestamp", -1, 'A', 0, 1114),
    t(1182, "_date", -1, 'A', 0, 1082),
    t(1184, "timestamptz", 8, 'D', 1185, 0),
    t(1185, "_timestamptz", -1, 'A', 0, 1184),
    t(1186, "interval", 16, 'T', 1187, 0),
    t(1187, "_interval", -1, 'A', 0, 1186),
    t(1231, "_numeric", -1, 'A', 0, 1700),
    t(1700, "numeric", -1, 'N', 1231, 0),
    t(2205, "regclass", 4, 'N', 2210, 0),
    t(2206, "regtype", 4, 'N', 2211, 0),
    t(2249, "record", -1, 'P', 2287, 0),
    t(2278, "void", 4, 'P', 0, 0),
    t(2950, "uuid", 16, 'U', 2951, 0),
    t(3802, "jsonb", -1, 'U', 3807, 0),
    t(4089, "regnamespace", 4, 'N', 4090, 0),
];

/// The built-in type with this id.
pub(crate) fn builtin(oid: u32) -> Option<&'static BuiltinType> {
    BUILTIN.iter().find(|t| t.oid == oid)
}

/// The built-in type with this name, internal (`int4`) or SQL (`integer`), quoted or not.
pub(crate) fn builtin_by_name(name: &str) -> Option<&'static BuiltinType> {
    let name = name
        .trim()
        .trim_matches('"')
        .trim_start_matches("pg_catalog.")
        .trim_matches('"');
    let lower = name.to_ascii_lowercase();
    let internal = match lower.as_str() {
        "boolean" => "bool",
        "smallint" => "int2",
        "integer" | "int" => "int4",
        "bigint" => "int8",
        "real" => "float4",
        "double precision" => "float8",
        "decimal" => "numeric",
        "character varying" => "varchar",
        "character" => "bpchar",
        "timestamp without time zone" => "timestamp",
        "timestamp with time zone" => "timestamptz",
        "time without time zone" => "time",
        other => other,
    };
    BUILTIN.iter().find(|t| t.name == internal)
}

/// A type's name as SQL writes it (`format_type`).
pub(crate) fn format_type(oid: u32, modifier: i32) -> String {
    let Some(builtin) = builtin(oid) else {
        return if oid == 0 { "-".into() } else { "???".into() };
    };
    if builtin.category == 'A' && builtin.name.starts_with('_') {
        return format!("{}[]", format_type(builtin.element, modifier));
    }
    let name = match oid {
        16 => "boolean",
        18 => "\"char\"",
        20 => "bigint",
        21 => "smallint",
        23 => "integer",
        700 => "real",
        701 => "double precision",
        1042 => "character",
        1043 => "character varying",
        1083 => "time without time zone",
        1114 => "timestamp without time zone",
        1184 => "timestamp with time zone",
        _ => builtin.name,
    };
    match (oid, modifier) {
        (1042 | 1043, m) if m >= 4 => format!("{name}({})", m - 4),
        (1700, m) if m >= 4 => format!("{name}({},{})", (m - 4) >> 16, (m - 4) & 0x7ff),
        _ => name.to_string(),
    }
}

/// The protocol's type of an engine column.
pub(crate) fn pg_type_of_column(column: ColumnType) -> PgType {
    let (oid, modifier) = match column {
        ColumnType::Bool => (16, -1),
        ColumnType::Int2 => (21, -1),
        ColumnType::Int4 => (23, -1),
        ColumnType::Int8 => (20, -1),
        ColumnType::Float4 => (700, -1),
        ColumnType::Float8 => (701, -1),
        ColumnType::Numeric(None) => (1700, -1),
        ColumnType::Numeric(Some((p, s))) => (1700, ((i32::from(p) << 16) | (i32::from(s) & 0x7ff)) + 4),
        ColumnType::Text => (25, -1),
        ColumnType::Varchar(n) => (1043, n.map_or(-1, |n| n as i32 + 4)),
        ColumnType::Char(n) => (1042, n as i32 + 4),
        ColumnType::Bytes => (17, -1),
        ColumnType::Date => (1082, -1),
        ColumnType::Timestamp => (1114, -1),
        ColumnType::TimestampTz => (1184, -1),
    };
    PgType {
        oid,
        len: builtin(oid).map_or(-1, |t| t.len),
        modifier,
    }
}

/// The Arrow type of timestamps with time zone.
pub(crate) fn timestamptz() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))
}

/// The Arrow type of timestamps.
pub(crate) fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// The Arrow type of a numeric without declared scale.
pub(crate) fn numeric_any() -> DataType {
    DataType::Decimal256(NUMERIC_ANY.0, NUMERIC_ANY.1)
}

/// The Arrow type that holds `numeric(p, s)`: the narrowest whose digits suffice.
pub(crate) fn decimal(precision: u16, scale: i16) -> DataType {
    let scale = scale.max(0);
    let precision = precision.max(scale as u16).max(1);
    if precision <= 38 {
        DataType::Decimal128(precision as u8, scale as i8)
    } else if precision <= 76 && scale < i16::from(NUMERIC_QUOTIENT.1) {
        DataType::Decimal256(precision as u8, scale as i8)
    } else {
        numeric_any()
    }
}

/// The Arrow type of an engine column.
pub(crate) fn arrow_type(column: ColumnType) -> DataType {
    match column {
        ColumnType::Bool => DataType::Boolean,
        ColumnType::Int2 => DataType::Int16,
        ColumnType::Int4 => DataType::Int32,
        ColumnType::Int8 => DataType::Int64,
        ColumnType::Float4 => DataType::Float32,
        ColumnType::Float8 => DataType::Float64,
        ColumnType::Numeric(None) => numeric_any(),
        ColumnType::Numeric(Some((p, s))) => decimal(p, s),
        ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Char(_) => DataType::Utf8,
        ColumnType::Bytes => DataType::Binary,
        ColumnType::Date => DataType::Date32,
        ColumnType::Timestamp => timestamp(),
        ColumnType::TimestampTz => timestamptz(),
    }
}

/// The Arrow field of an engine column.
pub(crate) fn column_field(name: &str, column: ColumnType, nullable: bool) -> Field {
    let field = Field::new(name, arrow_type(column), nullable);
    match column {
        ColumnType::Varchar(_) | ColumnType::Char(_) => {
            let pg = pg_type_of_column(column);
            with_pg_type(field, pg.oid, pg.modifier)
        }
        _ => field,
    }
}

/// Marks `field` as being of another type than its Arrow type says.
pub(crate) fn with_pg_type(field: Field, oid: u32, modifier: i32) -> Field {
    field.with_metadata(HashMap::from([(PG_TYPE.to_string(), format!("{oid},{modifier}"))]))
}

/// The protocol's type of an Arrow field.
pub(crate) fn pg_type(field: &Field) -> PgType {
    let (oid, modifier) = marked(field).unwrap_or_else(|| unmarked(field.data_type()));
    PgType {
        oid,
        len: builtin(oid).map_or(-1, |t| t.len),
        modifier,
    }
}

/// The type and modifier with which `field` is marked.
pub(crate) fn marked(field: &Field) -> Option<(u32, i32)> {
    let (oid, modifier) = field.metadata().get(PG_TYPE)?.split_once(',')?;
    Some((oid.parse().ok()?, modifier.parse().ok()?))
}

/// The type and modifier of an expression that is varchar or char.
pub(crate) fn string_of(expr: &Expr, schema: &DFSchema) -> Option<(u32, i32)> {
    marked(&expr.to_field(schema).ok()?.1)
}

fn unmarked(data_type: &DataType) -> (u32, i32) {
    let oid = match data_type {
        DataType::Boolean => 16,
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => 21,
        DataType::Int32 | DataType::UInt16 => 23,
        DataType::Int64 | DataType::UInt64 => 20,
        DataType::UInt32 => 26,
        DataType::Float16 | DataType::Float32 => 700,
        DataType::Float64 => 701,
        DataType::Decimal128(..) | DataType::Decimal256(..) | DataType::Decimal32(..) | DataType::Decimal64(..) => 1700,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => 17,
        DataType::Date32 | DataType::Date64 => 1082,
        DataType::Time32(_) | DataType::Time64(_) => 1083,
        DataType::Timestamp(_, None) => 1114,
        DataType::Timestamp(_, Some(_)) => 1184,
        DataType::Interval(_) | DataType::Duration(_) => 1186,
        DataType::Dictionary(_, value) => return unmarked(value),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            array_of(pg_type(item).oid)
        }
        DataType::Struct(_) => 2249,
        _ => 25,
    };
    (oid, -1)
}

fn array_of(element: u32) -> u32 {
    builtin(element).map_or(1009, |t| if t.array == 0 { 1009 } else { t.array })
}

/// The Arrow type that stands for a parameter or cast of this type id.
pub(crate) fn arrow_type_of_oid(oid: u32) -> Option<DataType> {
    Some(match oid {
        16 => DataType::Boolean,
        17 => DataType::Binary,
        18 | 19 | 25 | 705 | 1042 | 1043 | 114 | 3802 | 2950 | 194 | 1033 => DataType::Utf8,
        20 => DataType::Int64,
        21 => DataType::Int16,
        23 => DataType::Int32,
        24 | 26 | 28 | 2205 | 2206 | 4089 => DataType::UInt32,
        700 => DataType::Float32,
        701 => DataType::Float64,
        1082 => DataType::Date32,
        1083 => DataType::Time64(TimeUnit::Microsecond),
        1114 => timestamp(),
        1184 => timestamptz(),
        1186 => DataType::Interval(IntervalUnit::MonthDayNano),
        1700 => numeric_any(),
        22 => list(DataType::Int16),
        30 => list(DataType::UInt32),
        _ => list(arrow_type_of_oid(builtin(oid).filter(|t| t.category == 'A')?.element)?),
    })
}

/// The Arrow type of arrays of `item`.
pub(crate) fn list(item: DataType) -> DataType {
    DataType::List(Field::new_list_field(item, true).into())
}
