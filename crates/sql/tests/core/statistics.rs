//! ANALYZE: what it answers, and what plans make of it.

use crate::support::{Answer, Database, bind_tail, extended, simple};
use cenote_sql::{Bind, Session};

fn run(session: &mut Session, text: &str) -> Answer {
    simple(session, text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(session: &mut Session, text: &str) -> String {
    let error = simple(session, text)
        .err()
        .unwrap_or_else(|| panic!("{text} is not refused"));
    format!("{} {}", error.code(), error.message())
}

fn explained(session: &mut Session, text: &str) -> String {
    run(session, &format!("EXPLAIN {text}")).lines().join("\n")
}

/// 20,000 rows: `kind` is 0 in most of them and 1 to 100 in ten each; `at` rises; `name` begins with one of 26 letters.
fn filled(database: &Database) -> Session {
    let mut session = database.session();
    run(
        &mut session,
        "CREATE TABLE t (id int PRIMARY KEY, kind int, at int NOT NULL, name text, filler text);
         CREATE INDEX t_kind ON t (kind); CREATE INDEX t_at ON t (at)",
    );
    for chunk in 0..20 {
        let rows: Vec<String> = (1000 * chunk..1000 * (chunk + 1))
            .map(|id| {
                let kind = if id % 20 == 0 { id / 20 % 100 + 1 } else { 0 };
                let letter = char::from(b'a' + (id % 26) as u8);
                format!("({id}, {kind}, {id}, '{letter}{id}', 'some text that fills the row')")
            })
            .collect();
        run(&mut session, &format!("INSERT INTO t VALUES {}", rows.join(", ")));
    }
    session
}

#[test]
fn an_index_is_used_for_the_values_that_are_rare() {
    let database = Database::new();
    let mut session = filled(&database);
    let frequent = "SELECT filler FROM t WHERE kind = 0";
    assert!(
        explained(&mut session, frequent).contains("range by index t_kind"),
        "guessed to be rare"
    );
    run(&mut session, "ANALYZE t");
    let plan = explained(&mut session, frequent);
    assert!(plan.contains("full scan on t"), "{plan}");
    for rare in ["kind = 7", "kind = 7777", "kind IN (3, 4, 5)", "kind IS NULL"] {
        let plan = explained(&mut session, &format!("SELECT filler FROM t WHERE {rare}"));
        assert!(plan.contains("by index t_kind"), "{rare}: {plan}");
    }
}

#[test]
fn a_range_is_read_by_its_index_only_where_it_is_narrow() {
    let database = Database::new();
    let mut session = filled(&database);
    run(&mut session, "VACUUM ANALYZE t");
    for (range, by_index) in [
        ("at > 19900", true),
        ("at BETWEEN 500 AND 700", true),
        ("at < 100", true),
        ("at > 100", false),
        ("at BETWEEN 500 AND 19000", false),
        ("at >= 0", false),
    ] {
        let plan = explained(&mut session, &format!("SELECT filler FROM t WHERE {range}"));
        assert_eq!(plan.contains("by index t_at"), by_index, "{range}: {plan}");
    }
}

/// A statement that was planned before is planned anew, by the analysis of another session; an open portal goes on.
#[test]
fn kept_plans_notice_an_analysis_and_open_portals_do_not_mind() {
    let database = Database::new();
    let mut session = filled(&database);
    let sum = "SELECT count(*), sum(at) FROM t WHERE kind = $1";
    let before = extended(&mut session, sum, &[Some("0")]).expect("rows").lines();
    run(&mut session, "BEGIN");
    session.parse("s", "SELECT id FROM t ORDER BY id", &[]).expect("parsed");
    let tail = bind_tail(&[]);
    session
        .bind("open", "s", Bind::from_wire(&tail).expect("bound"))
        .expect("bound");
    let mut first = Answer::default();
    session.execute("open", 2, &mut first).expect("rows");
    let epoch = database.sql.engine().statistics_epoch();
    run(&mut database.session(), "ANALYZE");
    assert!(database.sql.engine().statistics_epoch() > epoch);
    let mut rest = Answer::default();
    session.execute("open", 3, &mut rest).expect("rows");
    assert_eq!(
        (first.lines(), rest.lines()),
        (vec!["0".into(), "1".into()], vec!["2".into(), "3".into(), "4".into()])
    );
    session.sync().expect("synced");
    run(&mut session, "COMMIT");
    assert_eq!(extended(&mut session, sum, &[Some("0")]).expect("rows").lines(), before);
}

#[test]
fn analyze_in_a_block_belongs_to_the_transaction() {
    let database = Database::new();
    let mut session = filled(&database);
    let frequent = "SELECT filler FROM t WHERE kind = 0";
    run(&mut session, "BEGIN; SAVEPOINT a; ANALYZE t");
    assert!(explained(&mut session, frequent).contains("full scan"));
    assert!(explained(&mut database.session(), frequent).contains("by index t_kind"));
    run(&mut session, "ROLLBACK TO a");
    assert!(explained(&mut session, frequent).contains("by index t_kind"));
    run(&mut session, "ANALYZE t; COMMIT");
    assert!(explained(&mut database.session(), frequent).contains("full scan"));
    // Rows that only this transaction sees.
    run(
        &mut session,
        "BEGIN; CREATE TABLE u (x int); INSERT INTO u VALUES (1), (2), (3); ANALYZE u; ROLLBACK",
    );
    run(&mut session, "BEGIN READ ONLY; ANALYZE t; ANALYZE (VERBOSE) t (kind)");
    assert_eq!(
        refused(&mut session, "DELETE FROM t"),
        "25006 cannot execute DELETE in a read-only transaction"
    );
    run(&mut session, "ROLLBACK");
}

#[test]
fn what_analyze_and_vacuum_answer() {
    let database = Database::new();
    let mut session = database.session();
    run(
        &mut session,
        "CREATE TABLE t (a int, \"B\" int, c text); INSERT INTO t VALUES (1, 2, 'x'), (2, 2, NULL)",
    );
    for text in [
        "ANALYZE",
        "ANALYSE t",
        "ANALYZE t (a, \"B\"), public.t (c)",
        "ANALYZE (VERBOSE off, SKIP_LOCKED) t",
        "VACUUM (ANALYZE, PARALLEL 2) t (a)",
        "VACUUM FULL VERBOSE ANALYZE t",
        "VACUUM (VERBOSE false)",
    ] {
        run(&mut session, text);
    }
    for (text, answer) in [
        ("ANALYZE x", "42P01 relation \"x\" does not exist"),
        ("ANALYZE t, x", "42P01 relation \"x\" does not exist"),
        (
            "ANALYZE t (a, x)",
            "42703 column \"x\" of relation \"t\" does not exist",
        ),
        ("ANALYZE t (b)", "42703 column \"b\" of relation \"t\" does not exist"),
        (
            "ANALYZE t (a, a)",
            "42701 column \"a\" of relation \"t\" appears more than once",
        ),
        ("ANALYZE (FULL) t", "42601 unrecognized ANALYZE option \"full\""),
        ("ANALYZE (VERBOSE maybe) t", "42601 verbose requires a Boolean value"),
        ("ANALYZE (VERBOSE", "42601 syntax error at end of input"),
        ("ANALYZE (VERBOSE on off) t", "42601 syntax error at or near \"off\""),
        ("ANALYZE t,", "42601 syntax error at end of input"),
        ("VACUUM (SLOW) t", "42601 unrecognized VACUUM option \"slow\""),
        (
            "VACUUM t (a)",
            "0A000 ANALYZE option must be specified when a column list is provided",
        ),
        (
            "SET default_statistics_target = 0",
            "22023 0 is outside the valid range for parameter \"default_statistics_target\" (1 .. 10000)",
        ),
    ] {
        assert_eq!(refused(&mut session, text), answer, "{text}");
    }
}

#[test]
fn verbose_tells_what_was_read() {
    let database = Database::new();
    let mut session = filled(&database);
    run(
        &mut session,
        "SET default_statistics_target = 10; DELETE FROM t WHERE id >= 19000",
    );
    let answer = run(&mut session, "ANALYZE VERBOSE t");
    let texts: Vec<&str> = answer.notices.iter().map(|notice| notice.message()).collect();
    assert_eq!(texts[0], "analyzing \"public.t\"");
    assert!(
        texts[1].contains("3000 rows in sample") || texts[1].contains("dead rows"),
        "{}",
        texts[1]
    );
    assert!(answer.notices.iter().all(|notice| notice.severity().word() == "INFO"));
    let table = database.sql.engine().tx().table("t").expect("readable").expect("there");
    let known = database.sql.engine().statistics(&table).expect("analyzed");
    assert_eq!(known.column(2).expect("analyzed").bounds.len(), 11);
    assert!((known.rows - 19_000.0).abs() < 500.0, "{}", known.rows);
}

/// Rows that EXPLAIN expects of the join.
fn rows_of_join(session: &mut Session, text: &str) -> f64 {
    let plan = explained(session, text);
    let line = plan.lines().find(|line| line.to_lowercase().contains("join"));
    let line = line.unwrap_or_else(|| panic!("no join in\n{plan}"));
    let rows = line
        .split("rows=")
        .nth(1)
        .unwrap_or_else(|| panic!("no estimate in\n{plan}"));
    let end = rows.find(|c: char| !c.is_ascii_digit()).unwrap_or(rows.len());
    rows[..end].parse().expect("a number")
}

#[test]
fn a_join_of_columns_without_an_index_is_estimated_by_their_distinct_values() {
    let database = Database::new();
    let mut session = database.session();
    for (table, distinct) in [("a", 500), ("b", 250)] {
        let rows: Vec<String> = (0..1000).map(|id| format!("({id}, {})", id % distinct)).collect();
        run(
            &mut session,
            &format!(
                "CREATE TABLE {table} (id int PRIMARY KEY, k int); INSERT INTO {table} VALUES {}",
                rows.join(", ")
            ),
        );
    }
    let join = "SELECT a.id, b.id FROM a JOIN b ON a.k = b.k";
    let guessed = rows_of_join(&mut session, join);
    assert!(guessed > 20_000.0, "{guessed}");
    run(&mut session, "ANALYZE");
    let known = rows_of_join(&mut session, join);
    // 250 values that both have, in two rows of the one and four of the other.
    let found = run(&mut session, join).rows.len();
    assert_eq!(found, 2000);
    assert!((1_000.0..4_000.0).contains(&known), "{known}, {found} are found");
}
