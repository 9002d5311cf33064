//! Names of output columns without alias, as PostgreSQL's `FigureColname` gives them.

use super::type_names::type_named;
use crate::names::{fold, parts};
use cenote_engine::ColumnType;
use sqlparser::ast::{ArrayElemTypeDef, DataType, Expr as E, ObjectName, SelectItem, SetExpr, TrimWhereField};

/// The name that PostgreSQL gives an output column without alias.
pub fn column_label(expr: &E) -> String {
    label(expr).unwrap_or_else(|| "?column?".to_string())
}

fn label(expr: &E) -> Option<String> {
    strong_label(expr).or_else(|| weak_label(expr))
}

/// The name of a type or of CASE, which gives way to a name inside.
fn weak_label(expr: &E) -> Option<String> {
    match expr {
        E::Nested(inner) | E::Collate { expr: inner, .. } => weak_label(inner),
        E::Cast { data_type, .. } => type_label(data_type),
        E::TypedString(typed) => type_label(&typed.data_type),
        E::Interval(_) => Some("interval".to_string()),
        E::Case { .. } => Some("case".to_string()),
        _ => None,
    }
}

/// The name of a column or function, also behind a cast, and in the last branch of CASE.
fn strong_label(expr: &E) -> Option<String> {
    Some(match expr {
        E::Identifier(ident) => fold(ident),
        E::CompoundIdentifier(parts) => fold(parts.last()?),
        E::Nested(inner) | E::Collate { expr: inner, .. } => return strong_label(inner),
        E::CompoundFieldAccess { root, .. } => return strong_label(root),
        E::Function(f) => last_of(&f.name)?,
        E::Cast { expr, .. } => return strong_label(expr),
        E::Case { else_result, .. } => return strong_label(else_result.as_deref()?),
        E::Subquery(query) => label_of_query(&query.body),
        other => word_of(other)?.to_string(),
    })
}

/// The name of what has a syntax of its own.
fn word_of(expr: &E) -> Option<&'static str> {
    Some(match expr {
        E::Substring { .. } => "substring",
        E::Overlay { .. } => "overlay",
        E::Trim { trim_where, .. } => match trim_where {
            Some(TrimWhereField::Leading) => "ltrim",
            Some(TrimWhereField::Trailing) => "rtrim",
            _ => "btrim",
        },
        E::Position { .. } => "position",
        E::Ceil { .. } => "ceil",
        E::Floor { .. } => "floor",
        E::Extract { .. } => "extract",
        E::AtTimeZone { .. } => "timezone",
        E::Exists { .. } => "exists",
        E::Array(_) => "array",
        E::Tuple(_) => "row",
        _ => return None,
    })
}

/// A scalar subquery has the name of its column, which may be none.
fn label_of_query(body: &SetExpr) -> String {
    let first = match body {
        SetExpr::Select(select) => match select.projection.first() {
            Some(SelectItem::UnnamedExpr(expr)) => label(expr),
            Some(SelectItem::ExprWithAlias { alias, .. }) => Some(fold(alias)),
            _ => None,
        },
        SetExpr::Query(query) => return label_of_query(&query.body),
        SetExpr::SetOperation { left, .. } => return label_of_query(left),
        SetExpr::Values(_) => Some("column1".to_string()),
        _ => None,
    };
    first.unwrap_or_else(|| "?column?".to_string())
}

fn last_of(name: &ObjectName) -> Option<String> {
    parts(name).pop()
}

/// A cast labels its column by PostgreSQL's internal name of the type; an array's is that of its element.
fn type_label(ty: &DataType) -> Option<String> {
    match ty {
        DataType::Array(ArrayElemTypeDef::SquareBracket(item, _) | ArrayElemTypeDef::AngleBracket(item)) => {
            return type_label(item);
        }
        DataType::Custom(name, _) => return last_of(name),
        DataType::Regclass => return Some("regclass".to_string()),
        _ => {}
    }
    match type_named(ty) {
        Ok(known) => Some(internal_name(known).to_string()),
        Err(_) => {
            let text = ty.to_string().to_lowercase();
            text.split('(').next().map(|bare| bare.trim().to_string())
        }
    }
}

fn internal_name(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::Bool => "bool",
        ColumnType::Int2 => "int2",
        ColumnType::Int4 => "int4",
        ColumnType::Int8 => "int8",
        ColumnType::Float4 => "float4",
        ColumnType::Float8 => "float8",
        ColumnType::Numeric(_) => "numeric",
        ColumnType::Text => "text",
        ColumnType::Varchar(_) => "varchar",
        ColumnType::Char(_) => "bpchar",
        ColumnType::Bytes => "bytea",
        ColumnType::Date => "date",
        ColumnType::Timestamp => "timestamp",
        ColumnType::TimestampTz => "timestamptz",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as PostgreSQL 15 gives them.
    #[test]
    fn labels_are_postgresql_s() {
        for (text, expected) in [
            ("1", "?column?"),
            ("1 + a", "?column?"),
            ("true", "?column?"),
            ("a = 1", "?column?"),
            ("t.a", "a"),
            ("(a)::int8", "a"),
            ("(1 + 1)::int8", "int8"),
            ("null::timestamp with time zone", "timestamptz"),
            ("null::char(3)", "bpchar"),
            ("null::bpchar", "bpchar"),
            ("'{1}'::int[]", "int4"),
            ("cast(null as float)", "float8"),
            ("date '2020-01-01'", "date"),
            ("interval '1 day'", "interval"),
            ("abs(1)::int8", "abs"),
            ("coalesce(1, 2)", "coalesce"),
            ("array[1]", "array"),
            ("(array[1])[1]", "array"),
            ("row(1, 2)", "row"),
            ("now() at time zone 'utc'", "timezone"),
            ("extract(year from a)::int", "extract"),
            ("case when a then 1.0 end", "case"),
            ("case when a then 1 else 2::numeric end", "case"),
            ("case when a then 1 else abs(1) end", "abs"),
            ("case when a then 1 end::int8", "int8"),
            ("(select 1)", "?column?"),
            ("(select 1)::int8", "?column?"),
            ("(select count(*) from t)", "count"),
            ("exists(select 1)", "exists"),
        ] {
            let expr = crate::parse::parse_expression(text).expect("an expression");
            assert_eq!(column_label(&expr), expected, "{text}");
        }
    }
}
