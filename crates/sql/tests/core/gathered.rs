//! Limits: each refuses with an SQLSTATE of class 53, names the holder, and is free again when that has ended. Before,
//! a list of keys or an index's entries grew until the process died, and with it all sessions.

use crate::support::{Answer, Database, bind_tail, extended, simple};
use cenote_sql::{Bind, Session, SessionInfo, SqlError};

fn session(database: &Database, pid: i32) -> Session {
    let info = SessionInfo {
        user: "tester".into(),
        database: "cenote".into(),
        pid,
        ..SessionInfo::default()
    };
    database.sql.session(info).expect("a session")
}

fn run(session: &mut Session, text: &str) {
    simple(session, text).unwrap_or_else(|error| panic!("{text}: {error}"));
}

fn refused(session: &mut Session, text: &str) -> SqlError {
    let error = simple(session, text)
        .err()
        .unwrap_or_else(|| panic!("{text} was not refused"));
    assert_eq!(error.code(), "53200", "{text}: {error}");
    error
}

/// 10,000 rows, `v` the same as `id`.
fn table(session: &mut Session) {
    run(session, "CREATE TABLE m (id int PRIMARY KEY, v int, c text)");
    for from in (0..10_000).step_by(1000) {
        let values = (from..from + 1000).map(|id| format!("({id}, {id}, 'text {id}')"));
        run(
            session,
            &format!("INSERT INTO m VALUES {}", values.collect::<Vec<_>>().join(", ")),
        );
    }
}

#[test]
fn keys_that_a_statement_gathers_are_bounded() {
    let database = Database::new();
    let mut session = session(&database, 1);
    table(&mut session);
    run(&mut session, "CREATE TABLE copy (id int PRIMARY KEY, v int, c text)");
    let memory = database.sql.engine().memory().clone();
    let all = memory.limit();
    memory.set_limit(128 << 10);
    for text in [
        "UPDATE m SET v = v + 1",
        "DELETE FROM m WHERE v >= 0",
        "INSERT INTO copy SELECT id, v, c FROM m",
        "SELECT id, v, c FROM m ORDER BY c, v",
        "SELECT c FROM m ORDER BY c",
        "SELECT v, count(*) FROM m GROUP BY v",
        "SELECT id FROM m FOR UPDATE",
    ] {
        refused(&mut session, text);
        assert_eq!(memory.used(), 0, "{text}");
        assert_eq!(database.sql.engine().locks_held(), 0, "{text}");
        run(&mut session, "UPDATE m SET v = v + 0 WHERE id < 10");
    }
    let count = simple(&mut session, "SELECT count(*) FROM m WHERE v = id").expect("read");
    assert_eq!(count.lines(), ["10000"], "nothing was changed");
    // Sorted on disk: it was refused here, too.
    run(&mut session, "CREATE INDEX i ON m (c)");
    run(&mut session, "UPDATE m SET c = 'text 1' WHERE id = 2");
    let twice = simple(&mut session, "CREATE UNIQUE INDEX j ON m (c)")
        .err()
        .expect("not unique");
    assert_eq!(twice.code(), "23505", "{twice}");
    run(&mut session, "UPDATE m SET c = 'text 2' WHERE id = 2");
    run(&mut session, "CREATE UNIQUE INDEX j ON m (c)");
    assert_eq!(memory.used(), 0);
    memory.set_limit(all);
    run(&mut session, "UPDATE m SET v = v + 1");
    let problems = database.sql.engine().check().expect("checked").problems;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn row_locks_are_bounded_and_go_with_their_transaction() {
    let database = Database::new();
    let (mut holder, mut other) = (session(&database, 1), session(&database, 2));
    table(&mut holder);
    let memory = database.sql.engine().memory().clone();
    memory.set_limit(1 << 20);
    run(&mut holder, "BEGIN");
    run(&mut holder, "SELECT id FROM m WHERE id < 1000 FOR UPDATE");
    run(&mut holder, "SELECT id FROM m WHERE id < 1000 FOR UPDATE");
    let error = refused(&mut holder, "SELECT id FROM m FOR UPDATE");
    assert!(error.to_string().contains("session 1 of tester"), "{error}");
    run(&mut other, "UPDATE m SET v = 0 WHERE id = 1");
    run(&mut holder, "ROLLBACK");
    assert_eq!((memory.used(), database.sql.engine().locks_held()), (0, 0));
}

#[test]
fn a_message_that_the_server_holds_is_gathered_by_its_session() {
    let database = Database::new();
    let mut session = session(&database, 1);
    let memory = database.sql.engine().memory().clone();
    memory.set_limit(8 << 20);
    session.hold_message(2 << 20).expect("room");
    session.hold_message(3 << 20).expect("instead of the former");
    assert!(memory.used() >= 3 << 20);
    let error = session.hold_message(5 << 20).expect_err("more than half");
    assert_eq!(error.code(), "53200");
    assert!(error.to_string().contains("session 1 of tester"), "{error}");
    assert_eq!(memory.used(), 0);
    session.hold_message(3 << 20).expect("room");
    session.hold_message(0).expect("nothing");
    assert_eq!(memory.used(), 0);
}

/// The unnamed portal keeps its parameters while it is suspended, and until the next is bound.
#[test]
fn large_parameters_of_the_unnamed_portal_are_gathered() {
    let database = Database::new();
    let mut session = session(&database, 1);
    let memory = database.sql.engine().memory().clone();
    memory.set_limit(16 << 20);
    session.parse("s", "SELECT length($1::text)", &[]).expect("parse");
    let before = memory.used();
    let mut bind = |bytes: usize| {
        let tail = bind_tail(&[Some(&"x".repeat(bytes))]);
        session.bind("", "s", Bind::from_wire(&tail).expect("well formed"))
    };
    bind(1 << 19).expect("free");
    assert_eq!(memory.used(), before);
    bind(2 << 20).expect("room");
    assert!(memory.used() >= before + (2 << 20));
    let error = bind(5 << 20).expect_err("too much");
    assert_eq!(error.code(), "53200", "{error}");
    assert_eq!(memory.used(), before);
}

/// A plan that is kept holds the elements of the last array that its condition met: 256 kept plans held 256 of them, on
/// nobody's account.
#[test]
fn elements_of_an_array_that_a_kept_plan_holds_are_gathered() {
    let database = Database::new();
    let mut session = session(&database, 1);
    table(&mut session);
    let memory = database.sql.engine().memory().clone();
    let array = |count: u32| {
        format!(
            "{{{}}}",
            (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
        )
    };
    let text = "SELECT count(*) FROM m WHERE v = ANY ($1::int[])";
    let mut count = |elements| extended(&mut session, text, &[Some(&array(elements))]).map(|answer| answer.lines());
    assert_eq!(count(10).expect("room"), ["10"]);
    assert_eq!(memory.used(), 0, "few are free");
    assert_eq!(count(20_000).expect("room"), ["10000"]);
    assert!(memory.used() > 20_000 * 32, "{}", memory.used());
    memory.set_limit(256 << 10);
    assert_eq!(count(20_001).expect_err("too many").code(), "53200");
    assert_eq!(count(20).expect("room"), ["20"]);
    assert_eq!(memory.used(), 0, "the former ones are gone");
}

/// Each savepoint keeps the settings of its time: a session of a thousand long ones took 64 MiB with each, unseen.
#[test]
fn settings_that_savepoints_keep_are_bounded() {
    let database = Database::new();
    let mut session = session(&database, 1);
    let memory = database.sql.engine().memory().clone();
    memory.set_limit(8 << 20);
    let value = "x".repeat(60 << 10);
    run(&mut session, "SET my.short = 'x'");
    assert_eq!(memory.used(), 0);
    for n in 0..10 {
        run(&mut session, &format!("SET my.s{n} = '{value}'"));
    }
    let before = memory.used();
    run(&mut session, "BEGIN");
    let refused = (0..1000)
        .find_map(|n| simple(&mut session, &format!("SAVEPOINT s; SET my.short = '{n}'")).err())
        .expect("too much");
    assert_eq!(refused.code(), "53200", "{refused}");
    run(&mut session, "ROLLBACK");
    assert_eq!(memory.used(), before);
    run(&mut session, "RESET ALL");
    session.report_settings(&mut Answer::default()).expect("told");
    assert_eq!(memory.used(), 0);
}

/// A session gets no more than half; what two hold, a third is told by name, until one of them ends.
#[test]
fn gathered_portals_are_held_by_name() {
    let database = Database::new();
    let mut sessions: Vec<_> = (1..=3).map(|pid| session(&database, pid)).collect();
    table(&mut sessions[0]);
    let memory = database.sql.engine().memory().clone();
    memory.set_limit(8 << 20);
    let fill = |session: &mut Session| -> (usize, SqlError) {
        run(session, "BEGIN");
        for n in 0..100 {
            session
                .parse("", "SELECT id, v, c FROM m WHERE id < 1000 ORDER BY v, c", &[])
                .expect("parse");
            let done = session
                .bind(
                    &format!("p{n}"),
                    "",
                    Bind::from_wire(&bind_tail(&[])).expect("well formed"),
                )
                .and_then(|()| session.execute(&format!("p{n}"), 1, &mut Answer::default()));
            if let Err(error) = done {
                return (n, error);
            }
        }
        panic!("no end of memory");
    };
    let mut held = Vec::new();
    for session in &mut sessions[..2] {
        let (portals, error) = fill(session);
        assert_eq!(error.code(), "53200", "{error}");
        assert!(portals > 5);
        // The failed block has given its portals back; the next keeps some.
        run(session, "ROLLBACK");
        run(session, "BEGIN");
        for n in 0..portals {
            session
                .parse("", "SELECT id, v, c FROM m WHERE id < 1000 ORDER BY v, c", &[])
                .expect("parse");
            session
                .bind(
                    &format!("p{n}"),
                    "",
                    Bind::from_wire(&bind_tail(&[])).expect("well formed"),
                )
                .expect("bind");
            session
                .execute(&format!("p{n}"), 1, &mut Answer::default())
                .expect("execute");
        }
        held.push(portals);
    }
    let (_, error) = fill(&mut sessions[2]);
    let text = error.to_string();
    assert!(
        text.contains("session 1 of tester") || text.contains("session 2 of tester"),
        "{text}"
    );
    run(&mut sessions[2], "ROLLBACK");
    sessions.remove(0);
    let (portals, _) = fill(&mut sessions[1]);
    assert!(portals > 5, "there is room now");
    drop(sessions);
    assert_eq!(memory.used(), 0);
}

#[test]
fn portals_and_prepared_statements_are_counted() {
    let database = Database::new();
    let mut session = session(&database, 9);
    run(&mut session, "BEGIN");
    session.parse("", "SELECT 1", &[]).expect("parse");
    let bind = |session: &mut Session, n: usize| {
        let tail = bind_tail(&[]);
        session.bind(&format!("p{n}"), "", Bind::from_wire(&tail).expect("well formed"))
    };
    let refused = (0..20_000).find_map(|n| bind(&mut session, n).err().map(|error| (n, error)));
    let (count, error) = refused.expect("a limit");
    assert_eq!((count, error.code()), (16_384, "53400"), "{error}");
    assert!(error.to_string().contains("session 9 of tester"), "{error}");
    run(&mut session, "ROLLBACK");
    run(&mut session, "BEGIN");
    session.parse("", "SELECT 1", &[]).expect("parse");
    bind(&mut session, 0).expect("they went with the transaction");
    run(&mut session, "COMMIT");
    let refused = (0..20_000).find_map(|n| {
        let error = session.parse(&format!("s{n}"), "SELECT 1", &[]).err()?;
        Some((n, error))
    });
    let (count, error) = refused.expect("a limit");
    assert_eq!((count, error.code()), (16_384, "53400"), "{error}");
    session.sync().expect("sync");
    assert_eq!(
        simple(&mut session, "PREPARE more AS SELECT 1")
            .err()
            .expect("a limit")
            .code(),
        "53400"
    );
    session.close_statement("s7");
    run(&mut session, "PREPARE more AS SELECT 1");
    run(&mut session, "DEALLOCATE ALL");
    assert_eq!(database.sql.engine().memory().used(), 0);
}

/// Savepoints of a transaction were not counted: a loop of them took memory until the process died.
#[test]
fn savepoints_are_counted() {
    const MOST: usize = 16_384;
    let database = Database::new();
    let mut session = session(&database, 1);
    table(&mut session);
    run(&mut session, "BEGIN; INSERT INTO m VALUES (-1, 0, 'kept')");
    for _ in 0..MOST - 1 {
        run(&mut session, "SAVEPOINT s");
    }
    run(&mut session, "SAVEPOINT last");
    run(&mut session, "RELEASE last");
    run(&mut session, "SAVEPOINT last");
    let error = simple(&mut session, "SAVEPOINT t").err().expect("too many");
    assert_eq!(error.code(), "53400", "{error}");
    assert!(
        error.to_string().contains("session 1 of tester has 16384 savepoints"),
        "{error}"
    );
    run(&mut session, "ROLLBACK TO s; RELEASE s; SAVEPOINT t; COMMIT");
    run(&mut session, "DELETE FROM m WHERE id = -1 AND c = 'kept'");
}

/// The values of a window function were charged without what they hold: the first text of a partition is copied for each
/// of its rows.
#[test]
fn texts_of_window_functions_are_bounded() {
    let database = Database::new();
    let mut session = database.session();
    for text in [
        "CREATE TABLE w (id int PRIMARY KEY, v text)",
        "INSERT INTO w VALUES (1, repeat('x', 1000000)), (2, ''), (3, ''), (4, ''), (5, ''), (6, ''), (7, ''), (8, '')",
        "INSERT INTO w SELECT a.id * 8 + b.id, '' FROM w a, w b",
    ] {
        simple(&mut session, text).expect(text);
    }
    database.sql.engine().memory().set_limit(16 << 20);
    let text = "SELECT id, first_value(v) OVER (ORDER BY id) FROM w";
    let refused = simple(&mut session, text).err().expect("too much");
    assert_eq!(refused.code(), "53200");
    let text = "SELECT count(*) FROM (SELECT row_number() OVER (ORDER BY id) FROM w) x";
    assert_eq!(simple(&mut session, text).expect("fits").lines(), ["72"]);
}

/// What subqueries, WITH, semi and full joins and frames keep is charged, and free behind the statement.
#[test]
fn rows_that_other_shapes_keep_are_bounded() {
    let database = Database::new();
    let mut session = session(&database, 1);
    table(&mut session);
    let memory = database.sql.engine().memory().clone();
    let all = memory.limit();
    for (text, answer) in [
        (
            "SELECT count(*) FROM m a WHERE a.id < 0 OR (a.id, a.v) IN (SELECT b.v, b.id FROM m b)",
            "10000",
        ),
        (
            "WITH s AS (SELECT c FROM m) SELECT (SELECT count(*) FROM s), (SELECT count(c) FROM s)",
            "10000|10000",
        ),
        ("SELECT count(*) FROM m a FULL JOIN m b ON a.v = b.v + 1", "10001"),
        (
            "SELECT count(*) FROM m a WHERE NOT EXISTS (SELECT 1 FROM m b WHERE b.v = a.v + 1)",
            "1",
        ),
        (
            "SELECT count(*) FROM m a WHERE EXISTS (SELECT 1 FROM m b WHERE b.v = a.v AND b.id <> a.id)",
            "0",
        ),
        (
            "SELECT max(s) FROM (SELECT sum(v) OVER (ORDER BY id ROWS 1 PRECEDING) AS s FROM m) w",
            "19997",
        ),
    ] {
        memory.set_limit(128 << 10);
        refused(&mut session, text);
        assert_eq!(memory.used(), 0, "{text}");
        memory.set_limit(all);
        assert_eq!(simple(&mut session, text).expect(text).lines(), [answer], "{text}");
        assert_eq!(memory.used(), 0, "{text}");
    }
}
