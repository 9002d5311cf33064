//! The tables: fixed columns, seeded indexes and rows, with NULLs and few distinct values, so that joins meet.

use cenote_base::random::Random;

/// What can be compared and united without a conversion that shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// smallint, integer.
    Int,
    /// bigint.
    Big,
    /// numeric of scale 2.
    Numeric,
    /// text, varchar, char.
    Text,
    /// date.
    Date,
    /// boolean.
    Bool,
}

/// All kinds.
pub const KINDS: [Kind; 6] = [Kind::Int, Kind::Big, Kind::Numeric, Kind::Text, Kind::Date, Kind::Bool];

/// A column: its name, its type, its kind, and whether it is always there.
#[derive(Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// As CREATE TABLE names it.
    pub ty: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Part of the primary key.
    pub key: bool,
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its columns, those of the primary key in the key's order.
    pub columns: &'static [Column],
    /// Column lists that an index may have.
    indexes: &'static [&'static str],
}

const fn key(name: &'static str, ty: &'static str, kind: Kind) -> Column {
    Column {
        name,
        ty,
        kind,
        key: true,
    }
}

const fn column(name: &'static str, ty: &'static str, kind: Kind) -> Column {
    Column {
        name,
        ty,
        kind,
        key: false,
    }
}

/// The tables.
pub static TABLES: [Table; 5] = [
    Table {
        name: "t1",
        columns: &[
            key("id", "integer", Kind::Int),
            column("a", "integer", Kind::Int),
            column("b", "bigint", Kind::Big),
            column("q", "numeric(8,2)", Kind::Numeric),
            column("s", "text", Kind::Text),
            column("f", "boolean", Kind::Bool),
        ],
        indexes: &["a", "s, a", "b", "q"],
    },
    Table {
        name: "t2",
        columns: &[
            key("a", "integer", Kind::Int),
            key("k", "integer", Kind::Int),
            column("v", "varchar(6)", Kind::Text),
            column("c", "char(4)", Kind::Text),
            column("d", "date", Kind::Date),
            column("b", "bigint", Kind::Big),
        ],
        indexes: &["v", "b, d", "k", "c"],
    },
    Table {
        name: "t3",
        columns: &[
            key("id", "bigint", Kind::Big),
            column("a", "integer", Kind::Int),
            column("s", "text", Kind::Text),
            column("d", "date", Kind::Date),
            column("q", "numeric(8,2)", Kind::Numeric),
            column("f", "boolean", Kind::Bool),
        ],
        indexes: &["d", "a, s", "q, d", "f"],
    },
    Table {
        name: "t4",
        columns: &[
            key("c", "char(4)", Kind::Text),
            key("d", "date", Kind::Date),
            column("n", "smallint", Kind::Int),
            column("q", "numeric(8,2)", Kind::Numeric),
        ],
        indexes: &["n", "d", "q"],
    },
    Table {
        name: "t5",
        columns: &[
            key("id", "integer", Kind::Int),
            column("a", "integer", Kind::Int),
            column("n", "smallint", Kind::Int),
            column("v", "varchar(6)", Kind::Text),
            column("f", "boolean", Kind::Bool),
        ],
        indexes: &["a", "v, n", "n, f"],
    },
];

/// A literal of this kind that rows are likely to hold.
pub fn literal(random: &mut Random, kind: Kind) -> String {
    match kind {
        Kind::Int => random.below(9).to_string(),
        Kind::Big => random
            .pick(&["0", "1", "2", "3", "4", "5000000000", "-5000000000"])
            .into(),
        Kind::Numeric => random
            .pick(&["0.00", "0.50", "1.00", "1.50", "2.00", "-3.25", "4.00"])
            .into(),
        Kind::Text => random
            .pick(&["''", "'a'", "'b'", "'ab'", "'abc'", "'B'", "'a b'"])
            .into(),
        Kind::Date => format!("date '2024-0{}-0{}'", 1 + random.below(2), 1 + random.below(3)),
        Kind::Bool => random.pick(&["true", "false"]).into(),
    }
}

/// Statements that make the tables, their indexes and rows. One seed of three has larger tables; every other one has
/// statistics of them: plans are others then.
pub fn statements(random: &mut Random) -> Vec<String> {
    let most = if random.one_in(3) { 80 } else { 20 };
    let is_analyzed = random.one_in(2);
    let tables = TABLES.iter().flat_map(|table| of_table(random, table, most));
    let mut all: Vec<String> = tables.collect();
    if is_analyzed {
        all.push("ANALYZE".into());
    }
    all
}

fn of_table(random: &mut Random, table: &Table, most: u64) -> Vec<String> {
    let columns: Vec<String> = table.columns.iter().map(|c| format!("{} {}", c.name, c.ty)).collect();
    let name = table.name;
    let mut all = vec![format!(
        "CREATE TABLE {name} ({}, PRIMARY KEY ({}))",
        columns.join(", "),
        key_columns(table).join(", ")
    )];
    for columns in table.indexes {
        if !random.one_in(3) {
            all.push(format!("CREATE INDEX ON {name} ({columns})"));
        }
    }
    let wanted = if random.one_in(12) { 0 } else { 4 + random.below(most) };
    let mut keys = std::collections::BTreeSet::new();
    for at in 0..wanted {
        let values: Vec<String> = table.columns.iter().map(|c| value(random, c, at)).collect();
        let key: Vec<String> = values
            .iter()
            .zip(table.columns)
            .filter(|(_, c)| c.key)
            .map(|(v, _)| v.clone())
            .collect();
        if keys.insert(key) {
            all.push(format!("INSERT INTO {name} VALUES ({})", values.join(", ")));
        }
    }
    all
}

/// A statement that inserts so many rows more, where their keys are free.
pub fn rows(random: &mut Random, table: &Table, numbers: std::ops::Range<u64>) -> String {
    let row = |at| {
        let values: Vec<String> = table.columns.iter().map(|c| value(random, c, at)).collect();
        format!("({})", values.join(", "))
    };
    let rows: Vec<String> = numbers.map(row).collect();
    format!(
        "INSERT INTO {} VALUES {} ON CONFLICT DO NOTHING",
        table.name,
        rows.join(", ")
    )
}

/// Names of the primary key's columns.
pub fn key_columns(table: &Table) -> Vec<&'static str> {
    table.columns.iter().filter(|c| c.key).map(|c| c.name).collect()
}

fn value(random: &mut Random, column: &Column, at: u64) -> String {
    match column.key {
        true if column.name == "id" => at.to_string(),
        false if random.one_in(5) => "NULL".into(),
        _ => literal(random, column.kind),
    }
}
