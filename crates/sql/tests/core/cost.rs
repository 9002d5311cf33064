//! What the short path costs, in process. Run by hand:
//! `cargo test -p cenote-sql --release --test core cost -- --ignored --nocapture`.

use crate::support::{Database, bind_tail, simple};
use cenote_sql::{Bind, Session};
use std::time::Instant;

/// An output that only takes bytes, as the server's does.
struct Blackhole(bytes::BytesMut);

impl cenote_sql::Output for Blackhole {
    fn row_description(&mut self, _: &[cenote_sql::Field], _: cenote_sql::Formats<'_>) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn row(
        &mut self,
        _: u16,
        encode: &mut dyn FnMut(&mut bytes::BytesMut) -> cenote_sql::Result<()>,
    ) -> cenote_sql::Result<()> {
        self.0.clear();
        encode(&mut self.0)
    }
    fn complete(&mut self, _: &str) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn empty_query(&mut self) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn portal_suspended(&mut self) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn parameter_description(&mut self, _: &[u32]) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn no_data(&mut self) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn notice(&mut self, _: &cenote_sql::SqlError) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn parameter_status(&mut self, _: &str, _: &str) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn copy_out(&mut self, _: cenote_sql::Format, _: u16) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn copy_row(
        &mut self,
        _: &mut dyn FnMut(&mut bytes::BytesMut) -> cenote_sql::Result<()>,
    ) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn copy_done(&mut self) -> cenote_sql::Result<()> {
        Ok(())
    }
    fn copy_in(&mut self, _: cenote_sql::Format, _: u16) -> cenote_sql::Result<()> {
        Ok(())
    }
}

const ROWS: i64 = 20_000;

fn timed(session: &mut Session, name: &str, text: &str, block: bool, params: &dyn Fn(i64) -> Vec<String>) {
    let mut out = Blackhole(bytes::BytesMut::with_capacity(1 << 16));
    session.parse(name, text, &[]).expect("parse");
    session.sync().expect("sync");
    let tails: Vec<Vec<u8>> = (0..1000)
        .map(|i| bind_tail(&params(i).iter().map(|p| Some(p.as_str())).collect::<Vec<_>>()))
        .collect();
    if block {
        session.simple("BEGIN", &mut out).expect("begin");
    }
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for tail in &tails {
            session
                .bind("", name, Bind::from_wire(tail).expect("bind"))
                .expect("bind");
            session.describe_portal("", &mut out).expect("describe");
            session.execute("", 0, &mut out).expect("execute");
            session.sync().expect("sync");
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / tails.len() as f64);
    }
    if block {
        session.simple("ROLLBACK", &mut out).expect("rollback");
    }
    println!("{best:>9.0} ns  {text}");
}

fn load(session: &mut Session) {
    let create = "CREATE TABLE sbtest1 (id SERIAL, k INTEGER DEFAULT '0' NOT NULL, c CHAR(120) DEFAULT '' NOT NULL, \
        pad CHAR(60) DEFAULT '' NOT NULL, PRIMARY KEY (id))";
    simple(session, create).expect("create");
    simple(session, "CREATE INDEX k_1 ON sbtest1 (k)").expect("index");
    for chunk in 0..ROWS / 1000 {
        let rows: Vec<String> = (0..1000)
            .map(|i| format!("({}, 'c-{}-{}', 'p')", (chunk * 1000 + i) * 7 % ROWS, i, chunk))
            .collect();
        let insert = format!("INSERT INTO sbtest1 (k, c, pad) VALUES {}", rows.join(","));
        simple(session, &insert).expect("insert");
    }
}

/// Texts that differ in a number, by the simple protocol.
fn timed_texts(session: &mut Session, what: &str, text: &dyn Fn(i64) -> String) {
    let mut out = Blackhole(bytes::BytesMut::with_capacity(1 << 16));
    let start = Instant::now();
    for i in 0..2000 {
        session.simple(&text(i + 1), &mut out).expect("simple");
    }
    let each = start.elapsed().as_secs_f64() * 1e9 / 2000.0;
    println!("{each:>9.0} ns  {what} never seen, simple protocol");
}

#[test]
#[ignore = "a measurement"]
fn cost_of_the_short_path() {
    let database = Database::new();
    let mut session = database.session();
    load(&mut session);
    let id = |i: i64| vec![((i * 7919) % ROWS + 1).to_string()];
    let range = |i: i64| {
        let first = (i * 7919) % (ROWS - 100);
        vec![(first + 1).to_string(), (first + 100).to_string()]
    };
    let long = |i: i64| vec!["x".repeat(120), id(i).remove(0)];
    let s = &mut session;
    timed(s, "point", "SELECT c FROM sbtest1 WHERE id=$1", false, &id);
    timed(s, "point2", "SELECT c FROM sbtest1 WHERE id=$1", true, &id);
    timed(s, "one", "SELECT 1", false, &|_| vec![]);
    for (name, list, order) in [
        ("range", "c", ""),
        ("sum", "SUM(k)", ""),
        ("order", "c", " ORDER BY c"),
        ("distinct", "DISTINCT c", " ORDER BY c"),
    ] {
        let text = format!("SELECT {list} FROM sbtest1 WHERE id BETWEEN $1 AND $2{order}");
        timed(s, name, &text, false, &range);
    }
    timed(s, "upd", "UPDATE sbtest1 SET k=k+1 WHERE id=$1", true, &id);
    timed(s, "updc", "UPDATE sbtest1 SET c=$1 WHERE id=$2", true, &long);
    timed_texts(s, "a text", &|i| {
        format!("SELECT abs(k), c FROM sbtest1 WHERE id = {i}")
    });
    timed_texts(s, "an update (of nothing)", &|i| {
        format!("UPDATE sbtest1 SET k = k + {i} WHERE id = 99999999")
    });
    timed(s, "del", "DELETE FROM sbtest1 WHERE id=$1", true, &id);
}

/// The tables of `cenote bench shapes`.
fn load_shop(session: &mut Session, customers: i64) {
    let tables = "CREATE TABLE cust (id int PRIMARY KEY, name text NOT NULL, city text, balance numeric(12,2));\
        CREATE TABLE ord (id int PRIMARY KEY, cust int NOT NULL, day date NOT NULL, total numeric(12,2) NOT NULL, \
        note text);\
        CREATE INDEX ord_cust ON ord (cust); CREATE INDEX ord_day ON ord (day);\
        CREATE INDEX cust_city ON cust (city, balance)";
    simple(session, tables).expect("tables");
    let mut insert = |table: &str, count: i64, row: &dyn Fn(i64) -> String| {
        for from in (1..=count).step_by(1000) {
            let rows: Vec<String> = (from..(from + 1000).min(count + 1)).map(row).collect();
            simple(session, &format!("INSERT INTO {table} VALUES {}", rows.join(","))).expect("rows");
        }
    };
    insert("cust", customers, &|i| {
        format!("({i}, 'name{i:06}', 'city{}', {i})", i % 1000)
    });
    let (first, month) = (2020, |day: i64| (day / 28 % 12 + 1, day % 28 + 1));
    insert("ord", 5 * customers, &|i| {
        let (year, (month, day)) = (first + i % 1000 / 336, month(i % 1000));
        let (cust, total) = (1 + (i * 7919) % customers, i % 5000);
        format!("({i}, {cust}, '{year}-{month:02}-{day:02}', {total}, 'note {i}')")
    });
    simple(session, "ANALYZE cust; ANALYZE ord").expect("analyzed");
}

/// Statements that read rows by a secondary index: the best of many short runs, beside whatever else runs.
/// `CENOTE_CUSTOMERS`: how many there are; `CENOTE_SHAPE`: what the statements have in their text; `RUNS`: half as
/// many. Under callgrind with `--toggle-collect=*cenote_sql*Session*execute*` the instructions of `2 * RUNS + 10` runs.
#[test]
#[ignore = "a measurement"]
fn cost_of_rows_by_an_index() {
    let number = |name: &str, none| std::env::var(name).map_or(none, |n| n.parse().expect("a number"));
    let (customers, runs) = (number("CENOTE_CUSTOMERS", 100_000), number("RUNS", 300));
    let with = std::env::var("CENOTE_SHAPE").unwrap_or_default();
    let database = Database::new();
    let mut session = database.session();
    load_shop(&mut session, customers);
    let mut out = Blackhole(bytes::BytesMut::with_capacity(1 << 16));
    let shapes = [
        "SELECT * FROM ord WHERE id = 777",
        "SELECT * FROM ord ORDER BY day DESC, id LIMIT 3",
        "SELECT c.id FROM cust c WHERE c.id < 50 AND EXISTS (SELECT 1 FROM ord o WHERE o.cust = c.id AND o.total > \
         4000) ORDER BY c.id",
        "SELECT c.id FROM cust c WHERE c.id < 50 AND EXISTS (SELECT 1 FROM ord o WHERE o.cust = c.id) ORDER BY c.id",
        "SELECT c.id, (SELECT max(o.total) FROM ord o WHERE o.cust = c.id) FROM cust c WHERE c.id < 20 ORDER BY c.id",
        "SELECT c.city, count(*), sum(o.total) FROM cust c JOIN ord o ON o.cust = c.id WHERE c.id BETWEEN 70 AND 89 \
         GROUP BY c.city ORDER BY c.city",
        "SELECT * FROM ord WHERE (cust, id) > (990, 5) ORDER BY cust, id LIMIT 10",
        "SELECT count(*) FROM ord WHERE cust BETWEEN 100 AND 200",
        "SELECT sum(cust) FROM ord WHERE id BETWEEN 1000 AND 3000",
        "SELECT sum(total) FROM ord WHERE day BETWEEN '2020-03-03' AND '2020-03-12'",
        "SELECT cust, id FROM ord WHERE cust BETWEEN 100 AND 200 ORDER BY cust, id",
    ];
    for text in shapes.into_iter().filter(|text| text.contains(&with)) {
        session.parse("", text, &[]).expect("parse");
        let tail = bind_tail(&[]);
        let mut run = |times: u32| {
            let begin = Instant::now();
            for _ in 0..times {
                let bind = Bind::from_wire(&tail).expect("no parameters");
                session.bind("", "", bind).expect("bind");
                session.execute("", 0, &mut out).expect("execute");
                session.sync().expect("sync");
            }
            begin.elapsed().as_secs_f64() * 1e6 / f64::from(times)
        };
        run(10);
        let best = (0..runs).map(|_| run(2)).fold(f64::MAX, f64::min);
        println!("{best:>9.1} us  {text}");
    }
}

const ORDER_TABLES: &str = "CREATE TABLE cust (id int PRIMARY KEY, name text, city text);
    CREATE TABLE ord (id int PRIMARY KEY, cust int, day date); CREATE INDEX ord_cust ON ord (cust);
    CREATE TABLE line (ord int, n int, item int, amount int, PRIMARY KEY (ord, n)); CREATE INDEX line_item ON line (item)";

/// Tables as an application has them, analyzed, and a join of three that nobody has planned before: what parsing and
/// planning takes. Run it under callgrind for its steps: `valgrind --tool=callgrind --toggle-collect=*plan_for*` counts
/// planning alone; `RUNS`, and `CENOTE_SHAPE` as above.
#[test]
#[ignore = "a measurement"]
fn cost_of_planning_a_join() {
    let database = Database::new();
    let mut session = database.session();
    simple(&mut session, ORDER_TABLES).expect("tables");
    let rows = |each: &dyn Fn(i64) -> String| (0..2000).map(each).collect::<Vec<_>>().join(",");
    for (table, rows) in [
        ("cust", rows(&|i| format!("({i}, 'name {i}', 'city {}')", i % 40))),
        (
            "ord",
            rows(&|i| format!("({i}, {}, date '2020-01-01' + {})", i * 7 % 500, i % 300)),
        ),
        (
            "line",
            rows(&|i| format!("({}, {}, {}, {i})", i / 4, i % 4, i * 13 % 90)),
        ),
    ] {
        simple(&mut session, &format!("INSERT INTO {table} VALUES {rows}")).expect("rows");
    }
    simple(&mut session, "ANALYZE").expect("analyzed");
    let runs: usize = std::env::var("RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let with = std::env::var("CENOTE_SHAPE").unwrap_or_default();
    let texts = [
        ("one table", "SELECT name FROM cust WHERE city = 'city 7' AND id > 5"),
        (
            "two tables",
            "SELECT c.name, o.day FROM cust c JOIN ord o ON o.cust = c.id WHERE c.city = 'city 7' ORDER BY o.day",
        ),
        (
            "three tables",
            "SELECT c.name, o.day, l.amount FROM cust c JOIN ord o ON o.cust = c.id \
            JOIN line l ON l.ord = o.id WHERE c.city = 'city 7' AND l.item = 5 ORDER BY o.day",
        ),
        (
            "four tables",
            "SELECT c.name, o.day, l.amount, d.name FROM cust c JOIN ord o ON o.cust = c.id JOIN line l ON l.ord = o.id \
             JOIN cust d ON d.id = l.amount WHERE c.city = 'city 7' AND l.item = 5 ORDER BY o.day",
        ),
    ];
    for (what, text) in texts.into_iter().filter(|(_, text)| text.contains(&with)) {
        let start = Instant::now();
        for n in 0..runs {
            session.parse("", &format!("{text} -- {n}"), &[]).expect("planned");
            session.sync().expect("sync");
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / runs as f64;
        println!("{each:>9.0} ns  planning {what}");
    }
}
