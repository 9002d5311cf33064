//! The tables of clause 1.4, filled by COPY.

use super::options::Options;
use super::rows::Rows;
use crate::table::{lay_out, thousands};
use crate::{IoContext, Result, processor};
use indicatif::{ProgressBar, ProgressStyle};
use postgres::Client;
use std::io::Write as _;
use std::time::Instant;

/// Text goes to the server in pieces of so many bytes.
const PIECE: usize = 256 << 10;

/// Each table with its columns, in the order in which they are filled.
const TABLES: [(&str, &str); 8] = [
    (
        "region",
        "r_regionkey INTEGER PRIMARY KEY, r_name CHAR(25) NOT NULL, r_comment VARCHAR(152)",
    ),
    (
        "nation",
        "n_nationkey INTEGER PRIMARY KEY, n_name CHAR(25) NOT NULL, n_regionkey INTEGER NOT NULL, n_comment VARCHAR(152)",
    ),
    (
        "supplier",
        "s_suppkey INTEGER PRIMARY KEY, s_name CHAR(25) NOT NULL, s_address VARCHAR(40) NOT NULL, s_nationkey INTEGER NOT \
         NULL, s_phone CHAR(15) NOT NULL, s_acctbal NUMERIC(15,2) NOT NULL, s_comment VARCHAR(101) NOT NULL",
    ),
    (
        "part",
        "p_partkey INTEGER PRIMARY KEY, p_name VARCHAR(55) NOT NULL, p_mfgr CHAR(25) NOT NULL, p_brand CHAR(10) NOT NULL, \
         p_type VARCHAR(25) NOT NULL, p_size INTEGER NOT NULL, p_container CHAR(10) NOT NULL, p_retailprice \
         NUMERIC(15,2) NOT NULL, p_comment VARCHAR(23) NOT NULL",
    ),
    (
        "partsupp",
        "ps_partkey INTEGER NOT NULL, ps_suppkey INTEGER NOT NULL, ps_availqty INTEGER NOT NULL, ps_supplycost \
         NUMERIC(15,2) NOT NULL, ps_comment VARCHAR(199) NOT NULL, PRIMARY KEY (ps_partkey, ps_suppkey)",
    ),
    (
        "customer",
        "c_custkey INTEGER PRIMARY KEY, c_name VARCHAR(25) NOT NULL, c_address VARCHAR(40) NOT NULL, c_nationkey INTEGER \
         NOT NULL, c_phone CHAR(15) NOT NULL, c_acctbal NUMERIC(15,2) NOT NULL, c_mktsegment CHAR(10) NOT NULL, \
         c_comment VARCHAR(117) NOT NULL",
    ),
    (
        "orders",
        "o_orderkey INTEGER PRIMARY KEY, o_custkey INTEGER NOT NULL, o_orderstatus CHAR(1) NOT NULL, o_totalprice \
         NUMERIC(15,2) NOT NULL, o_orderdate DATE NOT NULL, o_orderpriority CHAR(15) NOT NULL, o_clerk CHAR(15) NOT \
         NULL, o_shippriority INTEGER NOT NULL, o_comment VARCHAR(79) NOT NULL",
    ),
    (
        "lineitem",
        "l_orderkey INTEGER NOT NULL, l_partkey INTEGER NOT NULL, l_suppkey INTEGER NOT NULL, l_linenumber INTEGER NOT \
         NULL, l_quantity NUMERIC(15,2) NOT NULL, l_extendedprice NUMERIC(15,2) NOT NULL, l_discount NUMERIC(15,2) NOT \
         NULL, l_tax NUMERIC(15,2) NOT NULL, l_returnflag CHAR(1) NOT NULL, l_linestatus CHAR(1) NOT NULL, l_shipdate \
         DATE NOT NULL, l_commitdate DATE NOT NULL, l_receiptdate DATE NOT NULL, l_shipinstruct CHAR(25) NOT NULL, \
         l_shipmode CHAR(10) NOT NULL, l_comment VARCHAR(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber)",
    ),
];

/// What foreign keys would be of; those that begin a primary key have an index already.
const INDEXES: [&str; 7] = [
    "CREATE INDEX nation_region ON nation (n_regionkey)",
    "CREATE INDEX supplier_nation ON supplier (s_nationkey)",
    "CREATE INDEX customer_nation ON customer (c_nationkey)",
    "CREATE INDEX partsupp_supplier ON partsupp (ps_suppkey)",
    "CREATE INDEX orders_customer ON orders (o_custkey)",
    "CREATE INDEX lineitem_part ON lineitem (l_partkey, l_suppkey)",
    "CREATE INDEX lineitem_supplier ON lineitem (l_suppkey)",
];

/// Drops, creates and fills all tables, makes the indexes, and tells how long each step took.
///
/// # Errors
/// [`crate::Error::Sql`] if the server refuses something.
pub fn load(client: &mut Client, options: &Options) -> Result<()> {
    let rows = Rows::new(options.scale, options.seed);
    let style = ProgressStyle::with_template("{msg} {bar:30} {percent}%  {eta} left").expect("a constant template");
    let bar = ProgressBar::new(all_units(&rows)).with_style(style);
    let mut steps = Vec::new();
    for (table, columns) in TABLES {
        client.batch_execute(&format!("DROP TABLE IF EXISTS {table}"))?;
        client.batch_execute(&format!("CREATE TABLE {table} ({columns})"))?;
        bar.set_message(format!("loading {table}"));
        steps.push(step(options, table, || copy(client, table, &rows, &bar))?);
    }
    bar.set_message("indexes");
    if options.has_indexes {
        steps.push(step(options, "indexes", || {
            INDEXES.iter().try_for_each(|index| client.batch_execute(index))?;
            Ok(0)
        })?);
    }
    steps.push(step(options, "VACUUM ANALYZE", || {
        for (table, _) in TABLES {
            client.batch_execute(&format!("VACUUM ANALYZE {table}"))?;
        }
        Ok(0)
    })?);
    bar.finish_and_clear();
    println!(
        "{}",
        lay_out(&["loaded", "rows", "seconds", "processor seconds"], &steps)
    );
    Ok(())
}

/// A line of the table: a step that says how many rows it has made.
fn step(options: &Options, name: &str, make: impl FnOnce() -> Result<u64>) -> Result<Vec<String>> {
    let before = options.server_pid.map(processor::seconds).transpose()?;
    let began = Instant::now();
    let rows = make()?;
    let wall = began.elapsed().as_secs_f64();
    let after = options.server_pid.map(processor::seconds).transpose()?;
    let used = before
        .zip(after)
        .map(|(before, after)| format!("{:.2}", after - before));
    Ok(vec![
        name.to_string(),
        if rows == 0 { "-".into() } else { thousands(rows as f64) },
        format!("{wall:.2}"),
        used.unwrap_or_else(|| "-".into()),
    ])
}

/// What numbers a table's rows have: an order's lines, and a part's suppliers, come together.
fn numbers(table: &str, rows: &Rows) -> std::ops::Range<i64> {
    match table {
        "region" => 0..5,
        "nation" => 0..25,
        "supplier" => 1..rows.suppliers + 1,
        "part" | "partsupp" => 1..rows.parts + 1,
        "customer" => 1..rows.customers + 1,
        _ => 0..rows.orders,
    }
}

fn all_units(rows: &Rows) -> u64 {
    let count = |(table, _): &(&str, &str)| {
        let numbers = numbers(table, rows);
        (numbers.end - numbers.start) as u64
    };
    TABLES.iter().map(count).sum()
}

fn copy(client: &mut Client, table: &str, rows: &Rows, bar: &ProgressBar) -> Result<u64> {
    let mut writer = client.copy_in(&format!("COPY {table} FROM STDIN"))?;
    let (mut text, mut units) = (String::new(), 0);
    for n in numbers(table, rows) {
        match table {
            "region" => rows.region(&mut text, n),
            "nation" => rows.nation(&mut text, n),
            "supplier" => rows.supplier(&mut text, n),
            "part" => rows.part(&mut text, n),
            "partsupp" => rows.part_suppliers(&mut text, n),
            "customer" => rows.customer(&mut text, n),
            "orders" => rows.order(&mut text, n),
            _ => rows.lines(&mut text, n),
        }
        units += 1;
        if text.len() >= PIECE {
            writer.write_all(text.as_bytes()).context("sending rows")?;
            text.clear();
            bar.inc(std::mem::take(&mut units));
        }
    }
    writer.write_all(text.as_bytes()).context("sending rows")?;
    bar.inc(units);
    Ok(writer.finish()?)
}
