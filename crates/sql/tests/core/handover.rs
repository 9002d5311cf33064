//! A run of the row executor that meets far more rows than were estimated, or more than its session may gather: analytics
//! takes it over, as long as nothing was given. Before, such a statement went on for as long as it took, or failed. The
//! analytics here is a stand-in that answers from a list.

use crate::foreign::{Script, with_rows};
use crate::support::{Answer, Database, bind_tail, extended, simple};
use cenote_engine::{ColumnType, Datum};
use cenote_sql::{Bind, Session};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Estimated to read some tens of outer rows: nothing is known of the sums.
const WRONG: &str = "FROM big a JOIN big b ON b.g >= a.g - 100 WHERE a.v + 0 >= 0 AND a.g + 0 >= 0 AND a.id + 0 >= 0";

fn run(session: &mut Session, text: &str) -> Answer {
    simple(session, text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// 1,000 rows; analytics answers with these.
fn filled(types: &[ColumnType], rows: Vec<Vec<Datum>>) -> (Database, Arc<Script>, Session) {
    let (database, script) = with_rows(types, rows);
    let mut session = database.session();
    run(
        &mut session,
        "CREATE TABLE ten (n int PRIMARY KEY); CREATE TABLE big (id int PRIMARY KEY, g int, v int, note text);
         CREATE TABLE counted (n bigint PRIMARY KEY)",
    );
    run(
        &mut session,
        "INSERT INTO ten VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
    );
    run(
        &mut session,
        "INSERT INTO big SELECT a.n * 100 + b.n * 10 + c.n, c.n, a.n + b.n, 'n' || b.n FROM ten a, ten b, ten c",
    );
    assert_eq!(asked(&script), 0);
    (database, script, session)
}

fn asked(script: &Script) -> usize {
    script.asked.lock().expect("not poisoned").len()
}

#[test]
fn a_run_that_meets_too_many_rows_is_taken_over() {
    let (_database, script, mut session) = filled(&[ColumnType::Int8], vec![vec![Datum::Int8(42)]]);
    let text = format!("SELECT count(*) AS x {WRONG}");
    let plan = run(&mut session, &format!("EXPLAIN {text}")).lines().join("\n");
    assert!(plan.starts_with("Row executor"), "{plan}");
    let answer = run(&mut session, &text);
    assert_eq!(
        (answer.lines(), answer.described, answer.tags),
        (vec!["42".into()], 1, vec!["SELECT 1".into()])
    );
    assert_eq!(asked(&script), 1);
    let plan = run(&mut session, &format!("EXPLAIN (ANALYZE) {text}"))
        .lines()
        .join("\n");
    assert!(
        plan.starts_with("Row executor, handed over to analytics after "),
        "{plan}"
    );
    assert!(plan.contains("Rows: 1"), "{plan}");
}

/// The columns that a client was told of stay: where analytics has others, the row executor goes on, and does not ask
/// again.
#[test]
fn a_run_stays_where_analytics_would_answer_otherwise() {
    let (_database, script, mut session) = filled(&[ColumnType::Int4], vec![vec![Datum::Int4(42)]]);
    let text = format!("SELECT count(*) {WRONG}");
    for _ in 0..3 {
        assert_eq!(extended(&mut session, &text, &[]).expect("run").lines(), ["1000000"]);
        assert_eq!(asked(&script), 1);
    }
}

/// Analytics refuses values that the row executor takes, such as numeric NaN, and finds that out while it runs.
#[test]
fn a_run_goes_on_where_analytics_fails_before_its_first_row() {
    let (_database, script, mut session) = filled(&[ColumnType::Int8], vec![vec![Datum::Int8(42)]]);
    script.fails.store(true, Ordering::Relaxed);
    let text = format!("SELECT count(*) {WRONG}");
    for _ in 0..2 {
        assert_eq!(extended(&mut session, &text, &[]).expect("run").lines(), ["1000000"]);
        assert_eq!(asked(&script), 1);
    }
}

/// Analytics writes a timestamptz in UTC where it becomes a text.
#[test]
fn a_run_that_reads_a_timestamptz_is_taken_over_in_utc_alone() {
    let (_database, script, mut session) = filled(&[ColumnType::Int8], vec![vec![Datum::Int8(42)]]);
    run(&mut session, "CREATE TABLE at (id int PRIMARY KEY, t timestamptz)");
    run(&mut session, "INSERT INTO at VALUES (0, '2020-01-01 00:00:00+00')");
    let text = format!("SELECT count(*) FROM (SELECT a.id, b.id {WRONG}) AS x, at WHERE at.t::text <> ''");
    for (zone, times) in [("Asia/Tokyo", 0), ("UTC", 1)] {
        run(&mut session, &format!("SET timezone = '{zone}'"));
        let wanted = if times == 0 { "1000000" } else { "42" };
        assert_eq!(run(&mut session, &text).lines(), [wanted], "{zone}");
        assert_eq!(asked(&script), times, "{zone}");
    }
}

#[test]
fn nothing_is_given_twice() {
    let (_database, script, mut session) = filled(&[ColumnType::Int4; 2], vec![vec![Datum::Int4(1), Datum::Int4(2)]]);
    let text = format!("SELECT a.id, b.id {WRONG} AND a.id * b.id = 0");
    assert_eq!(run(&mut session, &text).lines().len(), 1999);
    assert_eq!(asked(&script), 0);
}

#[test]
fn what_writes_is_not_taken_over() {
    let (_database, script, mut session) = filled(&[ColumnType::Int8], vec![vec![Datum::Int8(42)]]);
    run(&mut session, &format!("INSERT INTO counted SELECT count(*) {WRONG}"));
    assert_eq!(run(&mut session, "SELECT n FROM counted").lines(), ["1000000"]);
    assert_eq!(asked(&script), 0);
}

#[test]
fn a_portal_goes_on_with_what_took_it_over() {
    let rows = (0..3).map(|n| vec![Datum::Int8(n)]).collect();
    let (_database, script, mut session) = filled(&[ColumnType::Int8], rows);
    let text = format!("SELECT count(*) AS x {WRONG}");
    run(&mut session, "BEGIN");
    session.parse("", &text, &[]).expect("parsed");
    let tail = bind_tail(&[]);
    session
        .bind("p", "", Bind::from_wire(&tail).expect("a Bind"))
        .expect("bound");
    for (wanted, suspended) in [(vec!["0", "1"], true), (vec!["2"], false)] {
        let mut answer = Answer::default();
        session.execute("p", 2, &mut answer).expect("executed");
        assert_eq!(
            (answer.lines(), answer.suspended),
            (wanted.iter().map(|s| s.to_string()).collect(), suspended)
        );
    }
    run(&mut session, "COMMIT");
    assert_eq!(asked(&script), 1);
}

/// A sort and a group that would hold more than the session may; what they had gathered is free when analytics begins.
#[test]
fn what_may_gather_no_more_is_taken_over() {
    let (database, script, mut session) = filled(&[ColumnType::Text], vec![vec![Datum::Text("r".into())]]);
    let memory = database.sql.engine().memory().clone();
    memory.set_limit(1 << 20);
    let before = memory.used();
    for (n, text) in [
        "SELECT a.note || b.n || repeat('x', 500) AS x FROM big a, ten b ORDER BY x",
        "SELECT a.id || repeat('x', 2000) AS x FROM big a, ten b WHERE b.n < 1 GROUP BY a.id || repeat('x', 2000)",
        "SELECT DISTINCT a.id || repeat('x', 2000) AS x FROM big a, ten b WHERE b.n < 1 ORDER BY 1",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(run(&mut session, text).lines(), ["r"], "{text}");
        assert_eq!((asked(&script), memory.used()), (n + 1, before), "{text}");
    }
}
