//! Statements of many shapes that touch few rows, each prepared once and run again and again by one client, on one server
//! or on two in turns: what an application's queries cost beyond the point select.
//!
//! Answers of the two servers are compared too.

use crate::oltp::{connect, texts};
use crate::table::{lay_out, median};
use crate::{Error, IoContext, Result};
use indicatif::{ProgressBar, ProgressStyle};
use postgres::Client;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server: `postgres://user@host:port/database`.
    pub url: String,
    /// A server to compare with.
    pub against: Option<String>,
    /// Where the figures go.
    pub out: PathBuf,
    /// Customers; each has five orders.
    pub customers: u32,
    /// Rounds; in each, every server runs every shape.
    pub rounds: u32,
    /// How long a shape is run in a round.
    pub slice: Duration,
}

/// A statement.
struct Shape {
    name: &'static str,
    text: &'static str,
}

/// Tables of a small shop: `{n}` customers.
const TABLES: &str = "
DROP TABLE IF EXISTS shape_ord; DROP TABLE IF EXISTS shape_cust; DROP TABLE IF EXISTS shape_nation;
CREATE TABLE shape_nation (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE shape_cust (id int PRIMARY KEY, nation int NOT NULL, name text NOT NULL, city text, balance numeric(12,2));
CREATE TABLE shape_ord (id int PRIMARY KEY, cust int NOT NULL, day date NOT NULL, total numeric(12,2) NOT NULL, note text);
INSERT INTO shape_nation SELECT i::int, 'nation ' || i FROM generate_series(1, 25) i;
INSERT INTO shape_cust SELECT i::int, (1 + i % 25)::int, 'name' || lpad(i::text, 6, '0'), 'city' || (i % 1000), i
  FROM generate_series(1, {n}) i;
INSERT INTO shape_ord SELECT i::int, (1 + (i::bigint * 7919) % {n})::int, date '2020-01-01' + (i % 1000)::int, i % 5000,
  'note ' || i FROM generate_series(1, {5n}) i;
CREATE INDEX shape_cust_name ON shape_cust (name); CREATE INDEX shape_cust_city ON shape_cust (city, balance);
CREATE INDEX shape_ord_cust ON shape_ord (cust); CREATE INDEX shape_ord_day ON shape_ord (day);
ANALYZE shape_nation; ANALYZE shape_cust; ANALYZE shape_ord;";

/// The shapes. Every order is total, so that answers can be compared.
const SHAPES: [Shape; 24] = [
    shape("point", "SELECT * FROM shape_ord WHERE id = 777"),
    shape(
        "foreign key join",
        "SELECT c.name, o.total FROM shape_cust c JOIN shape_ord o ON o.cust = c.id WHERE c.id = 77 ORDER BY o.id",
    ),
    shape(
        "three tables",
        "SELECT n.name, c.name, o.total FROM shape_nation n JOIN shape_cust c ON c.nation = n.id JOIN shape_ord o \
         ON o.cust = c.id WHERE o.id = 777",
    ),
    shape(
        "left join",
        "SELECT c.id, o.id FROM shape_cust c LEFT JOIN shape_ord o ON o.cust = c.id AND o.total > 4000 WHERE c.id \
         BETWEEN 70 AND 79 ORDER BY c.id, o.id",
    ),
    shape(
        "join, group",
        "SELECT c.city, count(*), sum(o.total) FROM shape_cust c JOIN shape_ord o ON o.cust = c.id WHERE c.id \
         BETWEEN 70 AND 89 GROUP BY c.city ORDER BY c.city",
    ),
    shape(
        "join, first rows",
        "SELECT o.id, c.name FROM shape_ord o JOIN shape_cust c ON c.id = o.cust ORDER BY o.id LIMIT 10",
    ),
    shape(
        "exists",
        "SELECT c.id FROM shape_cust c WHERE c.id < 50 AND EXISTS (SELECT 1 FROM shape_ord o WHERE o.cust = c.id \
         AND o.total > 4000) ORDER BY c.id",
    ),
    shape(
        "in subquery",
        "SELECT id FROM shape_cust WHERE id IN (SELECT cust FROM shape_ord WHERE id < 20) ORDER BY id",
    ),
    shape(
        "scalar subquery",
        "SELECT c.id, (SELECT max(o.total) FROM shape_ord o WHERE o.cust = c.id) FROM shape_cust c WHERE c.id < \
         20 ORDER BY c.id",
    ),
    shape(
        "or, one index",
        "SELECT * FROM shape_ord WHERE id = 5 OR id = 77 ORDER BY id",
    ),
    shape(
        "or, two indexes",
        "SELECT * FROM shape_ord WHERE id = 5 OR cust = 77 ORDER BY id",
    ),
    shape(
        "any array",
        "SELECT * FROM shape_ord WHERE id = ANY ('{5,77,500}'::int[]) ORDER BY id",
    ),
    shape("max of the key", "SELECT max(id) FROM shape_ord"),
    shape("min, max of an index", "SELECT min(day), max(day) FROM shape_ord"),
    shape(
        "like prefix",
        "SELECT * FROM shape_cust WHERE name LIKE 'name00012%' ORDER BY id",
    ),
    shape(
        "row comparison",
        "SELECT * FROM shape_ord WHERE (cust, id) > (990, 5) ORDER BY cust, id LIMIT 10",
    ),
    shape(
        "order by index, first",
        "SELECT * FROM shape_ord WHERE cust = 77 ORDER BY id DESC LIMIT 3",
    ),
    shape("order in part", "SELECT * FROM shape_ord ORDER BY day DESC, id LIMIT 3"),
    shape(
        "distinct on",
        "SELECT DISTINCT ON (cust) cust, id FROM shape_ord WHERE cust IN (77, 78) ORDER BY cust, id DESC",
    ),
    shape(
        "count distinct",
        "SELECT count(DISTINCT cust) FROM shape_ord WHERE id BETWEEN 100 AND 300",
    ),
    shape(
        "union",
        "SELECT id FROM shape_cust WHERE id < 10 UNION SELECT cust FROM shape_ord WHERE id < 10 ORDER BY 1",
    ),
    shape(
        "with",
        "WITH big AS (SELECT cust, sum(total) s FROM shape_ord WHERE cust < 20 GROUP BY cust) SELECT c.name, b.s \
         FROM big b JOIN shape_cust c ON c.id = b.cust ORDER BY b.s DESC, c.id LIMIT 5",
    ),
    shape(
        "update from",
        "UPDATE shape_ord SET total = o.total + 1 FROM shape_ord o, shape_cust c WHERE shape_ord.id = o.id AND \
         o.cust = c.id AND c.id = 77",
    ),
    shape(
        "window",
        "SELECT id, row_number() OVER (ORDER BY total, id) FROM shape_ord WHERE cust = 77 ORDER BY id",
    ),
];

const fn shape(name: &'static str, text: &'static str) -> Shape {
    Shape { name, text }
}

/// What was measured of one shape on one server.
#[derive(Debug, Clone, serde::Serialize)]
struct Measured {
    shape: &'static str,
    server: usize,
    /// Microseconds a statement, a round.
    micros: Vec<f64>,
}

/// Fills the tables, runs the shapes, compares answers, and tells.
///
/// # Errors
/// [`Error::Sql`] if a server refuses something; [`Error::Lost`] if the answers of two servers differ.
pub fn run(options: &Options) -> Result<()> {
    let mut clients = vec![connect(&options.url)?];
    clients.extend(
        options
            .against
            .iter()
            .map(|url| connect(url))
            .collect::<Result<Vec<_>>>()?,
    );
    let orders = 5 * u64::from(options.customers);
    let text = TABLES
        .replace("{n}", &options.customers.to_string())
        .replace("{5n}", &orders.to_string());
    for client in &mut clients {
        client.batch_execute(&text)?;
    }
    let wrong = differing(&mut clients)?;
    let measured = measure(options, &mut clients)?;
    tell(options, &measured, clients.len())?;
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::Lost(format!("answers differ: {}", wrong.join(", ")))),
    }
}

/// Shapes whose answers are not the same.
fn differing(clients: &mut [Client]) -> Result<Vec<&'static str>> {
    let mut wrong = Vec::new();
    for shape in &SHAPES {
        let mut answers = Vec::new();
        for client in clients.iter_mut() {
            client.batch_execute("BEGIN")?;
            answers.push(texts(client, shape.text)?.1);
            client.batch_execute("ROLLBACK")?;
        }
        if answers.windows(2).any(|pair| pair[0] != pair[1]) {
            wrong.push(shape.name);
        }
    }
    Ok(wrong)
}

fn measure(options: &Options, clients: &mut [Client]) -> Result<Vec<Measured>> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}").expect("a constant template");
    let bar = ProgressBar::new(u64::from(options.rounds) * SHAPES.len() as u64).with_style(style);
    let mut all: Vec<Measured> = (0..SHAPES.len() * clients.len())
        .map(|at| Measured {
            shape: SHAPES[at / clients.len()].name,
            server: at % clients.len(),
            micros: Vec::new(),
        })
        .collect();
    for _ in 0..options.rounds {
        for (at, shape) in SHAPES.iter().enumerate() {
            bar.set_message(shape.name);
            let count = clients.len();
            for (server, client) in clients.iter_mut().enumerate() {
                all[at * count + server]
                    .micros
                    .push(time(client, shape, options.slice)?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Microseconds a statement: in a transaction that is rolled back, so that the tables stay.
fn time(client: &mut Client, shape: &Shape, slice: Duration) -> Result<f64> {
    let mut transaction = client.transaction()?;
    let statement = transaction.prepare(shape.text)?;
    // A plan of PostgreSQL is settled after five runs.
    for _ in 0..6 {
        transaction.query(&statement, &[])?;
    }
    let (began, mut count) = (Instant::now(), 0u32);
    while began.elapsed() < slice {
        transaction.query(&statement, &[])?;
        count += 1;
    }
    let micros = began.elapsed().as_secs_f64() * 1e6 / f64::from(count.max(1));
    transaction.rollback()?;
    Ok(micros)
}

fn tell(options: &Options, measured: &[Measured], servers: usize) -> Result<()> {
    let row = |of: &[Measured]| {
        let middle: Vec<f64> = of.iter().map(|m| median(&m.micros)).collect();
        let mut cells = vec![of[0].shape.to_string()];
        cells.extend(middle.iter().map(|m| format!("{m:.1}")));
        if let [its, other] = middle.as_slice() {
            cells.push(format!("{:.2}", its / other));
        }
        cells
    };
    let rows: Vec<Vec<String>> = measured.chunks(servers).map(row).collect();
    let header: &[&str] = match servers {
        1 => &["shape", "us"],
        _ => &["shape", "us", "other us", "ratio"],
    };
    println!("{}", lay_out(header, &rows));
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let raw = options.out.join("shapes.json");
    let text = serde_json::to_string_pretty(measured).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(&raw, text).context("writing shapes.json")?;
    println!("medians of {} rounds; data: {}", options.rounds, raw.display());
    Ok(())
}
