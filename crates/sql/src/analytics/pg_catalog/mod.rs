//! `pg_catalog` and `information_schema` as tables, and the functions that tools call over them.
//!
//! `relations.txt` lists every relation with PostgreSQL 15's columns. A relation is built when a statement names it,
//! from the engine's catalog under the statement's snapshot ([`rows`], [`information_schema`]); one without rows of its
//! own is empty. A producer names only the columns that say something; the others get the type's neutral value (false,
//! 0, NULL).
//!
//! Object ids: tables, indexes and sequences have the engine's (from 16384). Constraints and defaults have none there;
//! theirs are derived ([`CONSTRAINT_IDS`], [`DEFAULT_IDS`]) and never collide with those.

mod functions;
mod information_schema;
mod rows;
mod statistics;

pub(crate) use functions::function;

use super::snapshot::Snapshot;
use super::types::{arrow_type_of_oid, builtin_by_name, list, with_pg_type};
use crate::error::SqlError;
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema};
use cenote_engine::{ColumnType, Datum};
use datafusion::catalog::TableProvider;
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Added to an index's id, gives its constraint's.
pub(crate) const CONSTRAINT_IDS: u32 = 0x4000_0000;
/// Added to a table's id times 2048 and a column's number, gives the default's.
pub(crate) const DEFAULT_IDS: u32 = 0x8000_0000;
/// The role that owns everything.
pub(crate) const OWNER: i64 = 10;
/// Schema `pg_catalog`.
pub(crate) const CATALOG_SCHEMA: i64 = 11;
/// Schema `public`.
pub(crate) const PUBLIC_SCHEMA: i64 = 2200;
/// Schema `information_schema`.
pub(crate) const INFORMATION_SCHEMA: i64 = 13_183;

/// A cell of a catalog relation.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Null,
}

impl From<bool> for Cell {
    fn from(v: bool) -> Self {
        Cell::Bool(v)
    }
}
impl From<i64> for Cell {
    fn from(v: i64) -> Self {
        Cell::Int(v)
    }
}
impl From<f64> for Cell {
    fn from(v: f64) -> Self {
        Cell::Float(v)
    }
}
impl From<u32> for Cell {
    fn from(v: u32) -> Self {
        Cell::Int(v.into())
    }
}
impl From<usize> for Cell {
    fn from(v: usize) -> Self {
        Cell::Int(v as i64)
    }
}
impl From<&str> for Cell {
    fn from(v: &str) -> Self {
        Cell::Text(v.to_string())
    }
}
impl From<String> for Cell {
    fn from(v: String) -> Self {
        Cell::Text(v)
    }
}

/// A row under construction: columns by name.
pub(crate) type Row = Vec<(&'static str, Cell)>;

/// Writes a [`Row`]: `row! { "relname" => name, ... }`.
macro_rules! row {
    ($($name:literal => $value:expr),* $(,)?) => {
        vec![$(($name, crate::analytics::pg_catalog::Cell::from($value))),*]
    };
}
pub(crate) use row;

/// A relation as `relations.txt` describes it.
pub(crate) struct Relation {
    pub schema: &'static str,
    pub name: &'static str,
    pub kind: &'static str,
    pub oid: u32,
    /// Name and type of each column; the type's name begins with `[` for arrays.
    pub columns: Vec<(&'static str, &'static str)>,
}

/// All relations of the catalog.
pub(crate) fn relations() -> &'static [Relation] {
    static RELATIONS: OnceLock<Vec<Relation>> = OnceLock::new();
    RELATIONS.get_or_init(|| {
        include_str!("relations.txt")
            .lines()
            .filter_map(parse_relation)
            .collect()
    })
}

fn parse_relation(line: &'static str) -> Option<Relation> {
    let (head, columns) = line.strip_prefix('#').is_none().then(|| line.split_once('|'))??;
    let mut words = head.split(' ');
    let (schema, name) = words.next()?.split_once('.')?;
    let (kind, oid) = (words.next()?, words.next()?.parse().ok()?);
    Some(Relation {
        schema,
        name,
        kind,
        oid,
        columns: columns.split(' ').filter_map(|c| c.split_once(':')).collect(),
    })
}

/// Id of the type that stands in `relations.txt` under this name.
pub(crate) fn type_id(name: &str) -> u32 {
    match name.strip_prefix('[') {
        Some(item) => builtin_by_name(item).map_or(1009, |t| if t.array == 0 { 1009 } else { t.array }),
        None => builtin_by_name(name).map_or(25, |t| t.oid),
    }
}

fn column_type(name: &str) -> DataType {
    match name.strip_prefix('[') {
        Some(item) => list(column_type(item)),
        None => builtin_by_name(name)
            .and_then(|t| arrow_type_of_oid(t.oid))
            .unwrap_or(DataType::Utf8),
    }
}

fn field(name: &str, type_name: &str) -> Field {
    let field = Field::new(name, column_type(type_name), true);
    match type_name {
        "name" => with_pg_type(field, 19, -1),
        "char" => with_pg_type(field, 18, -1),
        "int2vector" => with_pg_type(field, 22, -1),
        "oidvector" => with_pg_type(field, 30, -1),
        "regproc" => with_pg_type(field, 24, -1),
        _ => field,
    }
}

/// The catalog relation of this name, with its rows; None where there is none.
pub(crate) fn relation(snapshot: &Arc<Snapshot>, schema: &str, name: &str) -> Option<Arc<dyn TableProvider>> {
    if let Some(view) = (schema == "pg_catalog").then(|| system_view(snapshot, name)).flatten() {
        return Some(view);
    }
    let relation = relations().iter().find(|r| r.schema == schema && r.name == name)?;
    let rows = if schema == "pg_catalog" {
        rows::of(snapshot, name)
    } else {
        information_schema::of(snapshot, name)
    };
    let fields: Vec<Field> = relation.columns.iter().map(|(name, ty)| field(name, ty)).collect();
    let arrays = relation
        .columns
        .iter()
        .zip(&fields)
        .map(|((name, _), field)| column(&rows, name, field.data_type()));
    let arrays = arrays.collect::<datafusion::common::Result<Vec<_>>>().ok()?;
    table(fields, arrays, rows.len())
}

/// The names of such a relation's columns, or a system view's.
pub(crate) fn columns(snapshot: &Snapshot, schema: &str, name: &str) -> Option<Vec<String>> {
    let views = snapshot.views.as_ref().filter(|_| schema == "pg_catalog");
    if let Some(columns) = views.and_then(|views| views.columns(name)) {
        return Some(columns.iter().map(|(name, _)| name.to_string()).collect());
    }
    let relation = relations().iter().find(|r| r.schema == schema && r.name == name)?;
    Some(relation.columns.iter().map(|(name, _)| name.to_string()).collect())
}

fn table(fields: Vec<Field>, arrays: Vec<ArrayRef>, rows: usize) -> Option<Arc<dyn TableProvider>> {
    let schema = Arc::new(Schema::new(fields));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(schema.clone(), arrays, &options).ok()?;
    Some(Arc::new(MemTable::try_new(schema, vec![vec![batch]]).ok()?))
}

fn column(rows: &[Row], name: &str, data_type: &DataType) -> datafusion::common::Result<ArrayRef> {
    if rows.is_empty() {
        return Ok(arrow::array::new_empty_array(data_type));
    }
    let neutral = neutral(data_type)?;
    let values = rows.iter().map(|row| match row.iter().find(|(n, _)| *n == name) {
        Some((_, cell)) => scalar(cell, data_type),
        None => Ok(neutral.clone()),
    });
    ScalarValue::iter_to_array(values.collect::<datafusion::common::Result<Vec<_>>>()?)
}

fn neutral(data_type: &DataType) -> datafusion::common::Result<ScalarValue> {
    match data_type {
        DataType::Boolean
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt32
        | DataType::Float32 => ScalarValue::new_zero_or_false(data_type),
        other => ScalarValue::try_from(other),
    }
}

trait Zero {
    fn new_zero_or_false(data_type: &DataType) -> datafusion::common::Result<ScalarValue>;
}

impl Zero for ScalarValue {
    fn new_zero_or_false(data_type: &DataType) -> datafusion::common::Result<ScalarValue> {
        match data_type {
            DataType::Boolean => Ok(ScalarValue::Boolean(Some(false))),
            other => ScalarValue::new_zero(other),
        }
    }
}

fn scalar(cell: &Cell, data_type: &DataType) -> datafusion::common::Result<ScalarValue> {
    let value = match (cell, data_type) {
        (Cell::Bool(v), _) => ScalarValue::Boolean(Some(*v)),
        (Cell::Int(v), _) => ScalarValue::Int64(Some(*v)),
        (Cell::Float(v), _) => ScalarValue::Float64(Some(*v)),
        (Cell::Text(v), _) => ScalarValue::Utf8(Some(v.clone())),
        (Cell::Floats(items), DataType::List(item)) => {
            let items = items
                .iter()
                .map(|v| ScalarValue::Float64(Some(*v)).cast_to(item.data_type()))
                .collect::<datafusion::common::Result<Vec<_>>>()?;
            ScalarValue::List(ScalarValue::new_list(&items, item.data_type(), true))
        }
        (Cell::Ints(items), DataType::List(item)) => {
            let items = items
                .iter()
                .map(|v| ScalarValue::Int64(Some(*v)).cast_to(item.data_type()))
                .collect::<datafusion::common::Result<Vec<_>>>()?;
            ScalarValue::List(ScalarValue::new_list(&items, item.data_type(), true))
        }
        _ => ScalarValue::try_from(data_type)?,
    };
    if value.data_type() == *data_type {
        Ok(value)
    } else {
        value.cast_to(data_type)
    }
}

/// A view whose rows the server knows.
pub(crate) fn system_view(snapshot: &Arc<Snapshot>, name: &str) -> Option<Arc<dyn TableProvider>> {
    let views = snapshot.views.as_ref()?;
    let columns = views.columns(name)?;
    let rows = views.rows(name);
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, ty)| super::types::column_field(name, *ty, true))
        .collect();
    let arrays: Option<Vec<ArrayRef>> = columns
        .iter()
        .enumerate()
        .map(|(i, (_, ty))| view_column(&rows, i, *ty).ok())
        .collect();
    table(fields, arrays?, rows.len())
}

fn view_column(rows: &[Vec<Datum>], column: usize, ty: ColumnType) -> Result<ArrayRef, SqlError> {
    let mut builder = super::columns::Column::new(ty);
    for row in rows {
        builder.push(row.get(column).unwrap_or(&Datum::Null).as_ref())?;
    }
    Ok(builder.finish())
}

/// What several relations ask of the engine's catalog.
pub(crate) struct Objects<'a> {
    pub snapshot: &'a Snapshot,
}

/// An index or primary key.
pub(crate) struct IndexObject<'a> {
    pub id: u32,
    pub name: &'a str,
    pub table: &'a cenote_engine::Table,
    pub columns: &'a [usize],
    pub unique: bool,
    pub primary: bool,
    pub constraint: bool,
}

impl<'a> Objects<'a> {
    /// All indexes, primary keys among them.
    pub fn indexes(&self) -> Vec<IndexObject<'a>> {
        let mut all = Vec::new();
        for table in self.snapshot.scope.definitions.tables() {
            if let Some(key) = &table.primary_key {
                all.push(IndexObject {
                    id: key.id,
                    name: &key.name,
                    table,
                    columns: &key.columns,
                    unique: true,
                    primary: true,
                    constraint: true,
                });
            }
            for i in &table.indexes {
                all.push(IndexObject {
                    id: i.id,
                    name: &i.name,
                    table,
                    columns: &i.columns,
                    unique: i.unique,
                    primary: false,
                    constraint: i.constraint,
                });
            }
        }
        all
    }
}

impl IndexObject<'_> {
    /// Names of its columns, quoted where needed, parted by commas.
    pub fn column_list(&self) -> String {
        let names: Vec<String> = self
            .columns
            .iter()
            .map(|c| quote_ident(&self.table.columns[*c].name))
            .collect();
        names.join(", ")
    }

    /// CREATE INDEX as PostgreSQL prints it.
    pub fn definition(&self) -> String {
        let unique = if self.unique { "UNIQUE " } else { "" };
        format!(
            "CREATE {unique}INDEX {} ON public.{} USING btree ({})",
            quote_ident(self.name),
            quote_ident(&self.table.name),
            self.column_list()
        )
    }

    /// The constraint as PostgreSQL prints it.
    pub fn constraint_definition(&self) -> String {
        format!(
            "{} ({})",
            if self.primary { "PRIMARY KEY" } else { "UNIQUE" },
            self.column_list()
        )
    }
}

/// An identifier as SQL writes it: quoted unless it is plain and no keyword.
pub(crate) fn quote_ident(name: &str) -> String {
    let plain = name
        .bytes()
        .enumerate()
        .all(|(i, b)| b == b'_' || b.is_ascii_lowercase() || (i > 0 && b.is_ascii_digit()));
    const RESERVED: &[&str] = &[
        "all",
        "analyse",
        "analyze",
        "and",
        "any",
        "array",
        "as",
        "asc",
        "both",
        "case",
        "cast",
        "check",
        "collate",
        "column",
        "constraint",
        "create",
        "default",
        "desc",
        "distinct",
        "do",
        "else",
        "end",
        "except",
        "false",
        "fetch",
        "for",
        "foreign",
        "from",
        "grant",
        "group",
        "having",
        "in",
        "into",
        "leading",
        "limit",
        "not",
        "null",
        "offset",
        "on",
        "only",
        "or",
        "order",
        "primary",
        "references",
        "select",
        "some",
        "table",
        "then",
        "to",
        "trailing",
        "true",
        "union",
        "unique",
        "user",
        "using",
        "when",
        "where",
        "window",
        "with",
    ];
    if plain && !name.is_empty() && !RESERVED.contains(&name) {
        name.to_string()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

/// The names of objects by id, for functions that turn ids into names.
pub(crate) fn names_by_id(snapshot: &Snapshot) -> HashMap<u32, String> {
    let mut names: HashMap<u32, String> = relations()
        .iter()
        .map(|r| {
            (
                r.oid,
                if r.schema == "pg_catalog" {
                    r.name.to_string()
                } else {
                    format!("{}.{}", r.schema, r.name)
                },
            )
        })
        .collect();
    for table in snapshot.scope.definitions.tables() {
        names.insert(table.id, quote_ident(&table.name));
    }
    for index in (Objects { snapshot }).indexes() {
        names.insert(index.id, quote_ident(index.name));
    }
    for sequence in snapshot.scope.definitions.sequences() {
        names.insert(sequence.id, quote_ident(&sequence.name));
    }
    names
}
