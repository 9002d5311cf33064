//! The rows of `information_schema`'s relations.

use super::*;
use crate::analytics::types::{builtin, format_type, pg_type_of_column};
use cenote_engine::{ColumnType, Table};

/// Rows of the relation; none for one that has no producer.
pub(crate) fn of(snapshot: &Snapshot, name: &str) -> Vec<Row> {
    let all = Objects { snapshot };
    let catalog = snapshot.scope.database.as_str();
    match name {
        "schemata" => ["pg_catalog", "public", "information_schema"]
            .iter()
            .map(|s| row! { "catalog_name" => catalog, "schema_name" => *s, "schema_owner" => snapshot.scope.user.as_str() })
            .collect(),
        "tables" => tables(snapshot),
        "columns" => snapshot.scope.definitions.tables().into_iter().flat_map(|t| columns(catalog, t)).collect(),
        "table_constraints" => all.indexes().iter().filter(|i| i.constraint).map(|i| constraint(catalog, i)).collect(),
        "key_column_usage" | "constraint_column_usage" => all.indexes().iter().filter(|i| i.constraint).flat_map(|i| key_columns(catalog, i)).collect(),
        "sequences" => sequences(snapshot),
        _ => Vec::new(),
    }
}

fn tables(snapshot: &Snapshot) -> Vec<Row> {
    let catalog = snapshot.scope.database.as_str();
    let user = snapshot.scope.definitions.tables().into_iter().map(|t| {
        row! { "table_catalog" => catalog, "table_schema" => "public", "table_name" => t.name.as_str(), "table_type" => "BASE TABLE", "is_insertable_into" => "YES", "is_typed" => "NO" }
    });
    let system = relations().iter().map(|r| {
        let kind = if r.kind == "r" { "BASE TABLE" } else { "VIEW" };
        row! { "table_catalog" => catalog, "table_schema" => r.schema, "table_name" => r.name, "table_type" => kind, "is_insertable_into" => "NO", "is_typed" => "NO" }
    });
    user.chain(system).collect()
}

fn columns(catalog: &str, table: &Table) -> Vec<Row> {
    let column = |(i, c): (usize, &cenote_engine::ColumnDef)| {
        let pg = pg_type_of_column(c.ty);
        let mut row = row! {
            "table_catalog" => catalog, "table_schema" => "public", "table_name" => table.name.as_str(), "column_name" => c.name.as_str(),
            "ordinal_position" => i + 1, "is_nullable" => if c.not_null { "NO" } else { "YES" }, "data_type" => format_type(pg.oid, -1),
            "udt_catalog" => catalog, "udt_schema" => "pg_catalog", "udt_name" => builtin(pg.oid).map_or("", |t| t.name), "dtd_identifier" => (i + 1).to_string(),
            "is_identity" => "NO", "is_generated" => "NEVER", "is_updatable" => "YES", "is_self_referencing" => "NO",
        };
        row.extend(c.default.as_ref().map(|d| ("column_default", Cell::from(d.as_str()))));
        row.extend(measures(c.ty));
        row
    };
    table.columns.iter().enumerate().map(column).collect()
}

/// Lengths and precisions; absent ones are NULL, which 0 would not say.
fn measures(ty: ColumnType) -> Row {
    match ty {
        ColumnType::Varchar(Some(n)) | ColumnType::Char(n) => {
            row! { "character_maximum_length" => n, "character_octet_length" => i64::from(n) * 4 }
        }
        ColumnType::Int2 => {
            row! { "numeric_precision" => 16i64, "numeric_precision_radix" => 2i64, "numeric_scale" => 0i64 }
        }
        ColumnType::Int4 => {
            row! { "numeric_precision" => 32i64, "numeric_precision_radix" => 2i64, "numeric_scale" => 0i64 }
        }
        ColumnType::Int8 => {
            row! { "numeric_precision" => 64i64, "numeric_precision_radix" => 2i64, "numeric_scale" => 0i64 }
        }
        ColumnType::Float4 => row! { "numeric_precision" => 24i64, "numeric_precision_radix" => 2i64 },
        ColumnType::Float8 => row! { "numeric_precision" => 53i64, "numeric_precision_radix" => 2i64 },
        ColumnType::Numeric(Some((p, s))) => {
            row! { "numeric_precision" => i64::from(p), "numeric_precision_radix" => 10i64, "numeric_scale" => i64::from(s) }
        }
        ColumnType::Timestamp | ColumnType::TimestampTz => row! { "datetime_precision" => 6i64 },
        ColumnType::Date => row! { "datetime_precision" => 0i64 },
        _ => Vec::new(),
    }
}

fn constraint(catalog: &str, index: &IndexObject<'_>) -> Row {
    row! {
        "constraint_catalog" => catalog, "constraint_schema" => "public", "constraint_name" => index.name, "table_catalog" => catalog, "table_schema" => "public",
        "table_name" => index.table.name.as_str(), "constraint_type" => if index.primary { "PRIMARY KEY" } else { "UNIQUE" }, "is_deferrable" => "NO",
        "initially_deferred" => "NO", "enforced" => "YES",
    }
}

fn key_columns(catalog: &str, index: &IndexObject<'_>) -> Vec<Row> {
    let column = |(i, c): (usize, &usize)| {
        row! {
            "constraint_catalog" => catalog, "constraint_schema" => "public", "constraint_name" => index.name, "table_catalog" => catalog,
            "table_schema" => "public", "table_name" => index.table.name.as_str(), "column_name" => index.table.columns[*c].name.as_str(), "ordinal_position" => i + 1,
        }
    };
    index.columns.iter().enumerate().map(column).collect()
}

fn sequences(snapshot: &Snapshot) -> Vec<Row> {
    let row = |s: &cenote_engine::SequenceDef| {
        row! {
            "sequence_catalog" => snapshot.scope.database.as_str(), "sequence_schema" => "public", "sequence_name" => s.name.as_str(), "data_type" => "bigint",
            "numeric_precision" => 64i64, "numeric_precision_radix" => 2i64, "start_value" => s.start.to_string(), "minimum_value" => s.min.to_string(),
            "maximum_value" => s.max.to_string(), "increment" => s.increment.to_string(), "cycle_option" => if s.cycle { "YES" } else { "NO" },
        }
    };
    snapshot
        .scope
        .definitions
        .sequences()
        .into_iter()
        .map(|s| row(s))
        .collect()
}
