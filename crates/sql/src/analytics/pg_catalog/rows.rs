//! The rows of `pg_catalog`'s relations.

use super::*;
use crate::analytics::types::{BUILTIN, BuiltinType, builtin, pg_type_of_column};
use cenote_engine::{ColumnDef, SequenceDef, Table};

/// Rows of the relation; none for one that has no producer.
pub(crate) fn of(snapshot: &Snapshot, name: &str) -> Vec<Row> {
    let all = Objects { snapshot };
    match name {
        "pg_namespace" => namespaces(),
        "pg_class" => classes(&all),
        "pg_attribute" => attributes(&all),
        "pg_type" => BUILTIN.iter().map(type_row).collect(),
        "pg_index" => all.indexes().iter().map(index_row).collect(),
        "pg_constraint" => all
            .indexes()
            .iter()
            .filter(|i| i.constraint)
            .map(constraint_row)
            .collect(),
        "pg_attrdef" => defaults(&all),
        "pg_database" => databases(snapshot),
        "pg_authid" | "pg_roles" | "pg_user" | "pg_shadow" => roles(snapshot),
        "pg_am" => vec![
            row! { "oid" => 2i64, "amname" => "heap", "amhandler" => 3i64, "amtype" => "t" },
            row! { "oid" => 403i64, "amname" => "btree", "amhandler" => 330i64, "amtype" => "i" },
        ],
        "pg_tablespace" => vec![
            row! { "oid" => 1663i64, "spcname" => "pg_default", "spcowner" => OWNER },
            row! { "oid" => 1664i64, "spcname" => "pg_global", "spcowner" => OWNER },
        ],
        "pg_collation" => collations(),
        "pg_language" => vec![row! { "oid" => 14i64, "lanname" => "sql", "lanowner" => OWNER, "lanpltrusted" => true }],
        "pg_settings" => settings(snapshot),
        "pg_tables" => snapshot
            .scope
            .definitions
            .tables()
            .into_iter()
            .map(|t| table_row(snapshot, t))
            .collect(),
        "pg_indexes" => all.indexes().iter().map(index_view_row).collect(),
        "pg_sequence" => snapshot
            .scope
            .definitions
            .sequences()
            .into_iter()
            .map(|s| sequence_row(s))
            .collect(),
        "pg_sequences" => snapshot
            .scope
            .definitions
            .sequences()
            .into_iter()
            .map(|s| sequence_view_row(snapshot, s))
            .collect(),
        "pg_depend" => dependencies(&all),
        "pg_stats" => super::statistics::of(snapshot),
        "pg_stat_activity" => activity(snapshot),
        "pg_stat_user_tables" | "pg_stat_all_tables" => snapshot
            .scope
            .definitions
            .tables()
            .into_iter()
            .map(|t| statistics_row(snapshot, t))
            .collect(),
        "pg_stat_database" => {
            vec![row! { "datid" => 1i64, "datname" => &*snapshot.scope.database, "numbackends" => 1i64 }]
        }
        _ => Vec::new(),
    }
}

fn namespaces() -> Vec<Row> {
    let row = |oid: i64, name: &str| row! { "oid" => oid, "nspname" => name, "nspowner" => OWNER };
    vec![
        row(CATALOG_SCHEMA, "pg_catalog"),
        row(PUBLIC_SCHEMA, "public"),
        row(INFORMATION_SCHEMA, "information_schema"),
    ]
}

fn class(oid: u32, name: &str, schema: i64, kind: &str, attributes: usize) -> Row {
    let method: i64 = match kind {
        "r" => 2,
        "i" => 403,
        _ => 0,
    };
    row! {
        "oid" => oid, "relname" => name, "relnamespace" => schema, "relkind" => kind, "relnatts" => attributes, "relowner" => OWNER, "relam" => method,
        "relfilenode" => oid, "relpersistence" => "p", "relreplident" => if kind == "r" { "d" } else { "n" }, "relispopulated" => true,
    }
}

fn classes(all: &Objects<'_>) -> Vec<Row> {
    let schema = |name: &str| {
        if name == "pg_catalog" {
            CATALOG_SCHEMA
        } else {
            INFORMATION_SCHEMA
        }
    };
    let mut rows: Vec<Row> = relations()
        .iter()
        .map(|r| class(r.oid, r.name, schema(r.schema), r.kind, r.columns.len()))
        .collect();
    for table in all.snapshot.scope.definitions.tables() {
        let estimate = all.snapshot.engine.row_estimate(table);
        let mut row = class(table.id, &table.name, PUBLIC_SCHEMA, "r", table.columns.len());
        row.push((
            "relhasindex",
            (table.primary_key.is_some() || !table.indexes.is_empty()).into(),
        ));
        row.push(("reltuples", Cell::Int(estimate as i64)));
        row.push((
            "relpages",
            Cell::Int((all.snapshot.engine.table_bytes(table) / cenote_base::PAGE_SIZE as u64) as i64),
        ));
        rows.push(row);
    }
    rows.extend(
        all.indexes()
            .iter()
            .map(|i| class(i.id, i.name, PUBLIC_SCHEMA, "i", i.columns.len())),
    );
    rows.extend(
        all.snapshot
            .scope
            .definitions
            .sequences()
            .into_iter()
            .map(|s| class(s.id, &s.name, PUBLIC_SCHEMA, "S", 3)),
    );
    rows
}

fn attribute(relation: u32, number: usize, name: &str, type_id: u32, modifier: i32) -> Row {
    let known = builtin(type_id);
    let len = known.map_or(-1, |t| t.len);
    row! {
        "attrelid" => relation, "attnum" => number, "attname" => name, "atttypid" => type_id, "atttypmod" => i64::from(modifier), "attlen" => i64::from(len),
        "attstattarget" => -1i64, "attcacheoff" => -1i64, "attislocal" => true, "attidentity" => "", "attgenerated" => "", "attcompression" => "",
        "attbyval" => (1..=8).contains(&len), "attalign" => alignment(len), "attstorage" => storage(type_id, len),
        "attcollation" => collation(type_id), "attndims" => i64::from(known.is_some_and(|t| t.category == 'A')),
    }
}

fn storage(type_id: u32, len: i16) -> &'static str {
    match (type_id, len) {
        (1700, _) => "m",
        (_, -1) => "x",
        _ => "p",
    }
}

fn alignment(len: i16) -> &'static str {
    match len {
        1 => "c",
        2 => "s",
        8 => "d",
        _ => "i",
    }
}

fn collation(type_id: u32) -> i64 {
    match type_id {
        25 | 1042 | 1043 | 1009 | 1015 => 100,
        19 => 950,
        _ => 0,
    }
}

fn column_attribute(relation: u32, number: usize, column: &ColumnDef) -> Row {
    let pg = pg_type_of_column(column.ty);
    let mut row = attribute(relation, number, &column.name, pg.oid, pg.modifier);
    row.push(("attnotnull", column.not_null.into()));
    row.push(("atthasdef", column.default.is_some().into()));
    row
}

fn attributes(all: &Objects<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for relation in relations() {
        let columns = relation.columns.iter().enumerate();
        rows.extend(columns.map(|(i, (name, ty))| attribute(relation.oid, i + 1, name, type_id(ty), -1)));
    }
    for table in all.snapshot.scope.definitions.tables() {
        rows.extend(
            table
                .columns
                .iter()
                .enumerate()
                .map(|(i, c)| column_attribute(table.id, i + 1, c)),
        );
    }
    for index in all.indexes() {
        let columns = index.columns.iter().enumerate();
        rows.extend(columns.map(|(i, c)| {
            let column = ColumnDef {
                not_null: false,
                default: None,
                ..index.table.columns[*c].clone()
            };
            column_attribute(index.id, i + 1, &column)
        }));
    }
    for sequence in all.snapshot.scope.definitions.sequences() {
        let columns = [("last_value", 20), ("log_cnt", 20), ("is_called", 16)];
        rows.extend(
            columns
                .iter()
                .enumerate()
                .map(|(i, (name, ty))| attribute(sequence.id, i + 1, name, *ty, -1)),
        );
    }
    rows
}

fn type_row(t: &BuiltinType) -> Row {
    let kind = if t.category == 'P' || t.category == 'X' {
        "p"
    } else {
        "b"
    };
    row! {
        "oid" => t.oid, "typname" => t.name, "typnamespace" => CATALOG_SCHEMA, "typowner" => OWNER, "typlen" => i64::from(t.len),
        "typbyval" => (1..=8).contains(&t.len), "typtype" => kind, "typcategory" => t.category.to_string(), "typisdefined" => true,
        "typispreferred" => matches!(t.oid, 16 | 25 | 26 | 701 | 1184 | 1186), "typdelim" => ",", "typelem" => t.element, "typarray" => t.array,
        "typalign" => alignment(t.len), "typstorage" => if t.len == -1 { "x" } else { "p" }, "typtypmod" => -1i64, "typcollation" => collation(t.oid),
        "typinput" => t.oid, "typoutput" => t.oid,
    }
}

fn index_row(index: &IndexObject<'_>) -> Row {
    let count = index.columns.len();
    let class = |c: &usize| match pg_type_of_column(index.table.columns[*c].ty).oid {
        20 => 3124,
        21 => 1979,
        25 | 1043 => 3126,
        1042 => 426,
        _ => 1978,
    };
    let collations = index
        .columns
        .iter()
        .map(|c| collation(pg_type_of_column(index.table.columns[*c].ty).oid));
    row! {
        "indexrelid" => index.id, "indrelid" => index.table.id, "indnatts" => count, "indnkeyatts" => count, "indisunique" => index.unique,
        "indisprimary" => index.primary, "indimmediate" => true, "indisvalid" => true, "indisready" => true, "indislive" => true,
        "indkey" => Cell::Ints(index.columns.iter().map(|c| *c as i64 + 1).collect()), "indoption" => Cell::Ints(vec![0; count]),
        "indclass" => Cell::Ints(index.columns.iter().map(class).collect()), "indcollation" => Cell::Ints(collations.collect()),
    }
}

fn constraint_row(index: &IndexObject<'_>) -> Row {
    row! {
        "oid" => index.id | CONSTRAINT_IDS, "conname" => index.name, "connamespace" => PUBLIC_SCHEMA, "contype" => if index.primary { "p" } else { "u" },
        "convalidated" => true, "conrelid" => index.table.id, "conindid" => index.id, "conislocal" => true, "connoinherit" => true,
        "confupdtype" => " ", "confdeltype" => " ", "confmatchtype" => " ",
        "conkey" => Cell::Ints(index.columns.iter().map(|c| *c as i64 + 1).collect()),
    }
}

fn defaults(all: &Objects<'_>) -> Vec<Row> {
    let of_table = |table: &Table| {
        let id = DEFAULT_IDS.wrapping_add(table.id.wrapping_mul(2048));
        let columns = table
            .columns
            .iter()
            .enumerate()
            .filter_map(|(i, c)| c.default.as_ref().map(|d| (i, d.clone())));
        columns
            .map(|(i, text)| row! { "oid" => id.wrapping_add(i as u32) | DEFAULT_IDS, "adrelid" => table.id, "adnum" => i + 1, "adbin" => text })
            .collect::<Vec<Row>>()
    };
    all.snapshot
        .scope
        .definitions
        .tables()
        .into_iter()
        .flat_map(|t| of_table(t))
        .collect()
}

fn databases(snapshot: &Snapshot) -> Vec<Row> {
    vec![row! {
        "oid" => 1i64, "datname" => &*snapshot.scope.database, "datdba" => OWNER, "encoding" => 6i64, "datlocprovider" => "c", "datallowconn" => true,
        "datconnlimit" => -1i64, "dattablespace" => 1663i64, "datcollate" => "C", "datctype" => "C.UTF-8",
    }]
}

fn roles(snapshot: &Snapshot) -> Vec<Row> {
    let name = &*snapshot.scope.user;
    vec![row! {
        "oid" => OWNER, "rolname" => name, "rolsuper" => true, "rolinherit" => true, "rolcreaterole" => true, "rolcreatedb" => true,
        "rolcanlogin" => true, "rolconnlimit" => -1i64, "rolbypassrls" => true, "rolreplication" => false,
        "usename" => name, "usesysid" => OWNER, "usecreatedb" => true, "usesuper" => true,
    }]
}

fn collations() -> Vec<Row> {
    let row = |oid: i64, name: &str| {
        row! { "oid" => oid, "collname" => name, "collnamespace" => CATALOG_SCHEMA, "collowner" => OWNER, "collprovider" => "c", "collisdeterministic" => true, "collencoding" => -1i64, "collcollate" => name, "collctype" => name }
    };
    vec![row(100, "default"), row(950, "C"), row(951, "POSIX")]
}

fn settings(snapshot: &Snapshot) -> Vec<Row> {
    let all = snapshot.scope.settings.all();
    let row = |(name, value): (String, String)| {
        row! { "name" => name, "setting" => value.clone(), "boot_val" => value.clone(), "reset_val" => value, "category" => "Settings", "short_desc" => "", "context" => "user", "vartype" => "string", "source" => "default" }
    };
    all.into_iter().map(row).collect()
}

fn table_row(snapshot: &Snapshot, table: &Table) -> Row {
    row! { "schemaname" => "public", "tablename" => table.name.as_str(), "tableowner" => &*snapshot.scope.user, "hasindexes" => table.primary_key.is_some() || !table.indexes.is_empty() }
}

fn index_view_row(index: &IndexObject<'_>) -> Row {
    row! { "schemaname" => "public", "tablename" => index.table.name.as_str(), "indexname" => index.name, "indexdef" => index.definition() }
}

fn sequence_type(sequence: &SequenceDef) -> u32 {
    match sequence.max {
        32_767 => 21,
        2_147_483_647 => 23,
        _ => 20,
    }
}

fn sequence_row(s: &SequenceDef) -> Row {
    row! { "seqrelid" => s.id, "seqtypid" => sequence_type(s), "seqstart" => s.start, "seqincrement" => s.increment, "seqmax" => s.max, "seqmin" => s.min, "seqcache" => 1i64, "seqcycle" => s.cycle }
}

fn sequence_view_row(snapshot: &Snapshot, s: &SequenceDef) -> Row {
    row! {
        "schemaname" => "public", "sequencename" => s.name.as_str(), "sequenceowner" => &*snapshot.scope.user, "data_type" => sequence_type(s),
        "start_value" => s.start, "min_value" => s.min, "max_value" => s.max, "increment_by" => s.increment, "cycle" => s.cycle, "cache_size" => 1i64,
    }
}

/// Sequences belong to their columns, constraints' indexes to their constraints.
fn dependencies(all: &Objects<'_>) -> Vec<Row> {
    const CLASS: i64 = 1259;
    const CONSTRAINT: i64 = 2606;
    let owned = all
        .snapshot
        .scope
        .definitions
        .sequences()
        .into_iter()
        .filter_map(|s| s.owned_by.map(|(table, column)| (s.id, table, column)));
    let mut rows: Vec<Row> = owned
        .map(|(sequence, table, column)| row! { "classid" => CLASS, "objid" => sequence, "refclassid" => CLASS, "refobjid" => table, "refobjsubid" => column + 1, "deptype" => "a" })
        .collect();
    rows.extend(all.indexes().iter().filter(|i| i.constraint).map(|i| {
        row! { "classid" => CLASS, "objid" => i.id, "refclassid" => CONSTRAINT, "refobjid" => i.id | CONSTRAINT_IDS, "deptype" => "i" }
    }));
    rows
}

/// The sessions that the server tells of; at least this one.
fn activity(snapshot: &Snapshot) -> Vec<Row> {
    let told = snapshot
        .views
        .as_ref()
        .and_then(|v| Some((v.columns("cenote_sessions")?, v.rows("cenote_sessions"))));
    let scope = &snapshot.scope;
    let this = row! { "datid" => 1i64, "datname" => scope.database.as_str(), "pid" => i64::from(scope.pid), "usesysid" => OWNER, "usename" => scope.user.as_str(), "state" => "active", "backend_type" => "client backend" };
    let Some((columns, sessions)) = told.filter(|(_, rows)| !rows.is_empty()) else {
        return vec![this];
    };
    let at = |session: &[Datum], names: &[&str]| {
        let found = columns
            .iter()
            .position(|(c, _)| names.contains(c))
            .and_then(|i| session.get(i))?;
        match found {
            Datum::Text(text) => Some(Cell::Text(text.clone())),
            Datum::Int4(v) => Some(Cell::Int((*v).into())),
            Datum::Int8(v) => Some(Cell::Int(*v)),
            _ => None,
        }
    };
    let session_row = |session: &Vec<Datum>| {
        let mut row = row! { "datid" => 1i64, "usesysid" => OWNER, "backend_type" => "client backend" };
        let mut put = |name: &'static str, names: &[&str]| row.extend(at(session, names).map(|cell| (name, cell)));
        put("pid", &["pid", "id"]);
        put("datname", &["database", "datname"]);
        put("usename", &["user", "usename", "username", "user_name"]);
        put("application_name", &["application_name", "application"]);
        put("client_addr", &["client", "client_addr"]);
        put("state", &["state", "status"]);
        put("query", &["query", "statement"]);
        row
    };
    sessions.iter().map(session_row).collect()
}

fn statistics_row(snapshot: &Snapshot, table: &Table) -> Row {
    row! { "relid" => table.id, "schemaname" => "public", "relname" => table.name.as_str(), "n_live_tup" => snapshot.engine.row_estimate(table) as i64 }
}
