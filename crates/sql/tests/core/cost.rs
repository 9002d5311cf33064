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
