//! A small database to ask.

use bytes::BytesMut;
use cenote_engine::*;
use cenote_sql::analytics::{Config, DataFusion};
use cenote_sql::{Analytics, ForeignQuery, Formats, Result, Rows, Scope, Settings};
use sqlparser::ast::{Query, Statement};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;
use std::sync::Arc;

/// id, small, big, name, code, qty, price, weight, ok, note, free
type ItemRow = (
    i32,
    i16,
    i64,
    &'static str,
    &'static str,
    i32,
    &'static str,
    f64,
    bool,
    Option<&'static str>,
    Option<&'static str>,
);

pub struct Database {
    pub tx: Tx,
    pub analytics: Arc<DataFusion>,
    _dir: tempfile::TempDir,
}

fn column(name: &str, ty: ColumnType, not_null: bool, default: Option<&str>) -> ColumnDef {
    ColumnDef {
        name: name.into(),
        ty,
        not_null,
        default: default.map(str::to_string),
    }
}

fn index(name: &str, columns: Vec<usize>, unique: bool, constraint: bool) -> NewIndex {
    NewIndex {
        name: name.into(),
        columns,
        unique,
        constraint,
    }
}

fn micros(text: &str) -> i64 {
    cenote_sql::types::datetime::parse_timestamp(text, 0).expect("a timestamp")
}

/// TPC-H's tables: name, columns with their types' letters, number of key columns, rows.
const TPCH: &[(&str, &str, usize, &[&str])] = &[
    (
        "region",
        "r_regionkey:i r_name:c25 r_comment:v152",
        1,
        &["1|EUROPE|x", "2|ASIA|x"],
    ),
    (
        "nation",
        "n_nationkey:i n_name:c25 n_regionkey:i n_comment:v152",
        1,
        &["1|GERMANY|1|x", "2|INDIA|2|x"],
    ),
    (
        "supplier",
        "s_suppkey:i s_name:c25 s_address:v40 s_nationkey:i s_phone:c15 s_acctbal:n s_comment:v101",
        1,
        &["1|S1|a|1|11|10.00|x", "2|S2|b|2|12|20.00|x"],
    ),
    (
        "part",
        "p_partkey:i p_name:v55 p_mfgr:c25 p_brand:c10 p_type:v25 p_size:i p_container:c10 p_retailprice:n \
         p_comment:v23",
        1,
        &["1|green forest|M|Brand#12|LARGE BRASS|15|SM BOX|1.00|x"],
    ),
    (
        "partsupp",
        "ps_partkey:i ps_suppkey:i ps_availqty:i ps_supplycost:n ps_comment:v199",
        2,
        &["1|1|100|2.00|x", "1|2|5|3.00|x"],
    ),
    (
        "customer",
        "c_custkey:i c_name:v25 c_address:v40 c_nationkey:i c_phone:c15 c_acctbal:n c_mktsegment:c10 c_comment:v117",
        1,
        &["1|C1|a|1|13-1|5.00|BUILDING|x", "2|C2|b|2|31-1|9.00|BUILDING|x"],
    ),
    (
        "orders",
        "o_orderkey:i o_custkey:i o_orderstatus:c1 o_totalprice:n o_orderdate:d o_orderpriority:c15 o_clerk:c15 \
         o_shippriority:i o_comment:v79",
        1,
        &["1|1|F|100.00|1995-01-01|1-URGENT|c|0|x"],
    ),
    (
        "lineitem",
        "l_orderkey:i l_partkey:i l_suppkey:i l_linenumber:i l_quantity:n l_extendedprice:n l_discount:n l_tax:n \
         l_returnflag:c1 l_linestatus:c1 l_shipdate:d l_commitdate:d l_receiptdate:d l_shipinstruct:c25 l_shipmode:c10 \
         l_comment:v44",
        2,
        &[
            "1|1|1|1|17|1000.00|0.05|0.04|N|O|1995-09-02|1995-09-05|1995-09-10|NONE|MAIL|x",
            "2|1|1|1|36|3600.00|0.05|0.08|R|F|1994-02-02|1994-02-05|1994-02-10|NONE|SHIP|x",
            "3|1|1|1|1|3000.00|0.06|0.08|R|F|1994-02-02|1994-02-05|1994-02-10|NONE|SHIP|x",
            "4|1|1|1|1|3000.00|0.06|0.08|R|F|1999-02-02|1994-02-05|1994-02-10|NONE|SHIP|x",
        ],
    ),
];

impl Database {
    pub fn empty(memory: usize) -> Database {
        Database::spilling(memory, false)
    }

    /// As `empty`; whether queries may spill.
    pub fn spilling(memory: usize, spills: bool) -> Database {
        let dir = tempfile::tempdir().expect("a directory");
        let engine =
            Engine::open(EngineOptions::new(dir.path(), MemoryKind::Dram, 64 << 20)).expect("the engine opens");
        let tx = engine.begin(Isolation::RepeatableRead);
        let analytics = DataFusion::new(
            engine,
            None,
            Config {
                memory_limit: memory,
                spill: spills.then(|| dir.path().join("spill")),
                threads: 2,
            },
        );
        Database {
            tx,
            analytics,
            _dir: dir,
        }
    }

    pub fn with_memory(memory: usize) -> Database {
        Database::empty(memory)
    }

    pub fn with_samples() -> Database {
        let mut db = Database::empty(256 << 20);
        db.tx.begin_statement();
        let items = db.items();
        let rows: [ItemRow; 5] = [
            (
                1,
                1,
                1,
                "anvil",
                "a",
                5,
                "120.00",
                50.5,
                true,
                Some("heavy"),
                Some("1.5"),
            ),
            (2, 2, 2, "bolt", "b", 1, "0.05", 0.1, false, None, Some("2")),
            (3, 3, 3, "nut", "c", 2, "1.04", 0.2, false, Some("round"), None),
            (
                4,
                4,
                4,
                "rope",
                "d",
                12,
                "10.00",
                2.0,
                true,
                Some("long"),
                Some("1000000"),
            ),
            (5, 5, 5, "spare", "e", 6, "30.00", 1e-7, true, None, Some("0.00001")),
        ];
        for (id, small, big, name, code, qty, price, weight, ok, note, free) in rows {
            let numeric = |t: &str| Datum::Numeric(t.parse().expect("a numeric"));
            let text = |t: Option<&str>| t.map_or(Datum::Null, |t| Datum::Text(t.into()));
            let day = cenote_sql::types::datetime::parse_date("2024-01-15", 0).expect("a date");
            db.insert(
                &items,
                &[
                    Datum::Int4(id),
                    Datum::Int2(small),
                    Datum::Int8(big),
                    Datum::Text(name.into()),
                    Datum::Text(format!("{code:<3}")),
                    Datum::Int4(qty),
                    numeric(price),
                    Datum::Float8(weight),
                    Datum::Bool(ok),
                    text(note),
                    Datum::Date(day + id - 1),
                    Datum::Timestamp(micros("2024-01-15 10:30:00.5")),
                    Datum::TimestampTz(micros("2024-01-15 10:30:00")),
                    Datum::Bytes(vec![1, 0xab]),
                    free.map_or(Datum::Null, numeric),
                ],
            );
        }
        let orders = db.orders();
        for (id, item, amount) in [(1, Some(1), 2), (2, Some(2), 10), (3, Some(1), 3), (4, None, 1)] {
            db.insert(
                &orders,
                &[
                    Datum::Int8(id),
                    item.map_or(Datum::Null, Datum::Int4),
                    Datum::Int4(amount),
                ],
            );
        }
        db.tx.begin_statement();
        db
    }

    fn items(&mut self) -> Arc<Table> {
        let columns = vec![
            column("id", ColumnType::Int4, true, None),
            column("small", ColumnType::Int2, false, None),
            column("big", ColumnType::Int8, false, None),
            column("name", ColumnType::Varchar(Some(20)), true, Some("'x'")),
            column("code", ColumnType::Char(3), false, None),
            column("qty", ColumnType::Int4, false, None),
            column("price", ColumnType::Numeric(Some((10, 2))), false, None),
            column("weight", ColumnType::Float8, false, None),
            column("ok", ColumnType::Bool, false, None),
            column("note", ColumnType::Text, false, None),
            column("made", ColumnType::Date, false, None),
            column("stamped", ColumnType::Timestamp, false, None),
            column("zoned", ColumnType::TimestampTz, false, Some("now()")),
            column("data", ColumnType::Bytes, false, None),
            column("free", ColumnType::Numeric(None), false, None),
        ];
        let new = NewTable {
            name: "items".into(),
            columns,
            primary_key: Some(("items_pkey".into(), vec![0])),
            indexes: vec![
                index("items_name", vec![3], false, false),
                index("items_code_key", vec![4, 5], true, true),
            ],
        };
        self.tx.create_table(new).expect("a table")
    }

    fn orders(&mut self) -> Arc<Table> {
        let columns = vec![
            column("id", ColumnType::Int8, true, Some("nextval('orders_id_seq'::regclass)")),
            column("item", ColumnType::Int4, false, None),
            column("amount", ColumnType::Int4, false, None),
        ];
        let table = self
            .tx
            .create_table(NewTable {
                name: "orders".into(),
                columns,
                primary_key: None,
                indexes: vec![],
            })
            .expect("a table");
        let sequence = NewSequence {
            owned_by: Some((table.id, 0)),
            ..NewSequence::ascending("orders_id_seq", i64::MAX)
        };
        self.tx.create_sequence(sequence).expect("a sequence");
        table
    }

    /// Adds `big` of so many rows (id, part = id / 10 with an index, name, day, amount; every 1000th day is NULL), and
    /// `small` of 100 (id, kind = id % 10).
    pub fn add_large(&mut self, rows: i32) {
        self.tx.begin_statement();
        let columns = vec![
            column("id", ColumnType::Int4, true, None),
            column("part", ColumnType::Int4, true, None),
            column("name", ColumnType::Text, true, None),
            column("day", ColumnType::Date, false, None),
            column("amount", ColumnType::Numeric(Some((10, 2))), true, None),
        ];
        let big = self.keyed_table("big", columns, vec![index("big_part", vec![1], false, false)]);
        let first = cenote_sql::types::datetime::parse_date("2024-01-01", 0).expect("a date");
        for id in 0..rows {
            let day = if id % 1000 == 999 {
                Datum::Null
            } else {
                Datum::Date(first + id % 100)
            };
            let amount = Datum::Numeric(format!("{id}.25").parse().expect("a numeric"));
            let name = Datum::Text(format!("{:>60}", id % 17));
            self.insert(&big, &[Datum::Int4(id), Datum::Int4(id / 10), name, day, amount]);
        }
        let columns = vec![
            column("id", ColumnType::Int4, true, None),
            column("kind", ColumnType::Int4, true, None),
        ];
        let small = self.keyed_table("small", columns, vec![]);
        for id in 0..100 {
            self.insert(&small, &[Datum::Int4(id), Datum::Int4(id % 10)]);
        }
        self.tx.begin_statement();
    }

    fn keyed_table(&mut self, name: &str, columns: Vec<ColumnDef>, indexes: Vec<NewIndex>) -> Arc<Table> {
        let new = NewTable {
            name: name.into(),
            columns,
            primary_key: Some((format!("{name}_pkey"), vec![0])),
            indexes,
        };
        self.tx.create_table(new).expect("a table")
    }

    /// TPC-H's tables with a row or two.
    pub fn with_tpch() -> Database {
        let mut db = Database::empty(256 << 20);
        db.tx.begin_statement();
        for (name, columns, key, lines) in TPCH {
            let columns: Vec<ColumnDef> = columns
                .split(' ')
                .filter_map(|c| c.split_once(':'))
                .map(|(name, ty)| column(name, tpch_type(ty), true, None))
                .collect();
            let types: Vec<ColumnType> = columns.iter().map(|c| c.ty).collect();
            let new = NewTable {
                name: name.to_string(),
                columns,
                primary_key: Some((format!("{name}_pkey"), (0..*key).collect())),
                indexes: vec![],
            };
            let table = db.tx.create_table(new).expect("a table");
            for line in *lines {
                let values: Vec<Datum> = line
                    .split('|')
                    .zip(&types)
                    .map(|(text, ty)| tpch_value(text, *ty))
                    .collect();
                db.insert(&table, &values);
            }
        }
        db.tx.begin_statement();
        db
    }

    pub fn insert(&mut self, table: &Table, values: &[Datum]) {
        let mut row = Vec::new();
        table.layout().encode(values, &mut row).expect("a row");
        assert_eq!(self.tx.insert(table, &row).expect("inserted"), Insert::Done);
    }

    pub fn scope(&self) -> Scope {
        Scope {
            reader: self.tx.reader().clone(),
            definitions: self.tx.definitions(),
            user: "tester".into(),
            database: "cenote".into(),
            pid: 42,
            transaction_time: micros("2024-06-01 12:00:00"),
            statement_time: micros("2024-06-01 12:00:00"),
            cancel: self.tx.cancel_flag(),
            settings: Arc::new(Settings::new("tester")),
        }
    }

    fn rows(&self, sql: &str, params: &[(Datum, u32)]) -> Result<Box<dyn Rows>> {
        self.analytics
            .query(&self.scope(), &ForeignQuery::new(parse(sql)), params)
    }

    /// A query of session `pid`, begun.
    pub fn suspended(&self, sql: &str, pid: i32) -> Result<Box<dyn Rows>> {
        let scope = Scope { pid, ..self.scope() };
        self.analytics.query(&scope, &ForeignQuery::new(parse(sql)), &[])
    }

    /// Rows as lines, columns parted by `|`, NULL as nothing.
    pub fn ask(&self, sql: &str, params: &[(Datum, u32)]) -> Result<String> {
        let mut rows = self.rows(sql, params)?;
        let mut lines = Vec::new();
        while rows.next()? {
            let mut out = BytesMut::new();
            rows.encode(Formats(&[]), &Settings::new("tester"), &mut out)?;
            let mut binary = BytesMut::new();
            rows.encode(
                Formats(&[cenote_sql::Format::Binary]),
                &Settings::new("tester"),
                &mut binary,
            )?;
            lines.push(cells(&out).join("|"));
            rows.datums()?;
        }
        Ok(lines.join("\n"))
    }

    #[track_caller]
    pub fn check(&self, sql: &str, expected: &str) {
        match self.ask(sql, &[]) {
            Ok(found) => assert_eq!(found, expected, "{sql}"),
            Err(error) => panic!("{sql}\n{error}"),
        }
    }

    #[track_caller]
    pub fn with_params(&self, sql: &str, params: &[(Datum, u32)]) -> String {
        self.ask(sql, params).unwrap_or_else(|e| panic!("{sql}\n{e}"))
    }

    #[track_caller]
    pub fn error(&self, sql: &str) -> &'static str {
        match self.ask(sql, &[]) {
            Ok(rows) => panic!("{sql} answered {rows}"),
            Err(error) => {
                eprintln!("{sql}: {error}");
                error.code()
            }
        }
    }

    pub fn id(&self, name: &str) -> u32 {
        let scope = self.scope();
        let tables = scope.definitions.table(name).map(|t| t.id);
        let indexes = scope
            .definitions
            .tables()
            .into_iter()
            .flat_map(|t| t.indexes.iter())
            .filter(|i| i.name == name)
            .map(|i| i.id);
        let sequences = scope.definitions.sequences().into_iter();
        let sequences = sequences.filter(|s| s.name == name).map(|s| s.id);
        tables
            .into_iter()
            .chain(indexes)
            .chain(sequences)
            .next()
            .expect("an object of this name")
    }

    #[track_caller]
    pub fn types(&self, sql: &str) -> Vec<u32> {
        self.rows(sql, &[])
            .unwrap_or_else(|e| panic!("{sql}\n{e}"))
            .fields()
            .iter()
            .map(|f| f.type_oid)
            .collect()
    }

    #[track_caller]
    pub fn names(&self, sql: &str) -> Vec<String> {
        self.rows(sql, &[])
            .unwrap_or_else(|e| panic!("{sql}\n{e}"))
            .fields()
            .iter()
            .map(|f| f.name.to_string())
            .collect()
    }

    #[track_caller]
    pub fn param_types(&self, sql: &str) -> Vec<u32> {
        self.analytics
            .describe(&self.scope(), &parse(sql), &[])
            .unwrap_or_else(|e| panic!("{sql}\n{e}"))
            .param_types
    }

    #[track_caller]
    pub fn explain(&self, sql: &str) -> String {
        self.explained(sql, false)
    }

    /// The plan with what happened when it ran.
    #[track_caller]
    pub fn explained(&self, sql: &str, analyze: bool) -> String {
        self.analytics
            .explain(&self.scope(), &parse(sql), &[], analyze)
            .unwrap_or_else(|e| panic!("{sql}\n{e}"))
            .join("\n")
    }
}

fn tpch_type(ty: &str) -> ColumnType {
    let n = ty[1..].parse().unwrap_or(1);
    match &ty[..1] {
        "i" => ColumnType::Int4,
        "n" => ColumnType::Numeric(Some((15, 2))),
        "d" => ColumnType::Date,
        "c" => ColumnType::Char(n),
        _ => ColumnType::Varchar(Some(n)),
    }
}

fn tpch_value(text: &str, ty: ColumnType) -> Datum {
    match ty {
        ColumnType::Int4 => Datum::Int4(text.parse().expect("an integer")),
        ColumnType::Numeric(_) => Datum::Numeric(text.parse().expect("a numeric")),
        ColumnType::Date => Datum::Date(cenote_sql::types::datetime::parse_date(text, 0).expect("a date")),
        ColumnType::Char(n) => Datum::Text(format!("{text:<width$}", width = n as usize)),
        _ => Datum::Text(text.to_string()),
    }
}

fn cells(row: &[u8]) -> Vec<String> {
    let mut cells = Vec::new();
    let mut rest = row;
    while rest.len() >= 4 {
        let len = i32::from_be_bytes(rest[..4].try_into().expect("four bytes"));
        let end = 4 + len.max(0) as usize;
        cells.push(String::from_utf8_lossy(&rest[4..end]).into_owned());
        rest = &rest[end..];
    }
    cells
}

pub fn parse(sql: &str) -> Query {
    let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).unwrap_or_else(|e| panic!("{sql}\n{e}"));
    match statements.remove(0) {
        Statement::Query(query) => *query,
        other => panic!("not a query: {other}"),
    }
}
