//! The extended protocol: parameters in text and binary, portals that suspend, errors and the transaction they end.

use crate::support::{Answer, Database, bind_tail, extended, run_simple, simple};
use cenote_sql::{Bind, Result, Session};

fn prepared(session: &mut Session) {
    simple(
        session,
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT 1, 'a'; INSERT INTO t VALUES \
        (2, 'b'), (3, 'c')",
    )
    .expect("a table");
}

#[test]
fn parameters_take_the_type_of_their_surroundings() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    let mut answer = Answer::default();
    session
        .parse("s", "UPDATE t SET v = $2 WHERE id = $1 + 1 AND v <> $3", &[])
        .expect("parse");
    session.describe_statement("s", &mut answer).expect("describe");
    assert_eq!(answer.params, vec![23, 25, 25]);
    session.sync().expect("sync");
    let answer = extended(
        &mut session,
        "SELECT v, $2::bigint FROM t WHERE id = $1",
        &[Some("2"), None],
    )
    .expect("select");
    assert_eq!(answer.lines(), ["b|NULL"]);
    let error = extended(&mut session, "SELECT v FROM t WHERE id = $1", &[Some("x")])
        .err()
        .expect("no number");
    assert_eq!(error.code(), "22P02");
    assert_eq!(session.status(), b'I');
}

#[test]
fn binary_values_go_both_ways() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    let mut tail = vec![0, 1, 0, 1, 0, 1];
    tail.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 2]);
    tail.extend_from_slice(&[0, 1, 0, 1]);
    let mut answer = Answer::default();
    session
        .parse(
            "",
            "SELECT id, id::bigint, 1.5::numeric, true, v FROM t WHERE id = $1",
            &[],
        )
        .expect("parse");
    session
        .bind("", "", Bind::from_wire(&tail).expect("well formed"))
        .expect("bind");
    session.execute("", 0, &mut answer).expect("execute");
    session.sync().expect("sync");
    let numeric = vec![0, 2, 0, 0, 0, 0, 0, 1, 0, 1, 0x13, 0x88];
    let wanted = vec![
        vec![0, 0, 0, 2],
        vec![0, 0, 0, 0, 0, 0, 0, 2],
        numeric,
        vec![1],
        b"b".to_vec(),
    ];
    assert_eq!(answer.rows, vec![wanted.into_iter().map(Some).collect::<Vec<_>>()]);
}

/// Results of several strings are of the first one's type.
#[test]
fn strings_take_the_type_of_the_first() {
    let database = Database::new();
    let mut session = database.session();
    simple(&mut session, "CREATE TABLE s (v varchar(6), w varchar(9), t text)").expect("a table");
    let text = "SELECT CASE WHEN true THEN v ELSE w END, coalesce(v, w), greatest(v, 'x'), coalesce(v, t), \
        coalesce(t, v), CASE WHEN true THEN t ELSE v END, CASE WHEN true THEN v WHEN false THEN t END FROM s";
    let answer = simple(&mut session, text).expect("no rows");
    let types: Vec<u32> = answer.fields.iter().map(|field| field.type_oid).collect();
    assert_eq!(types, [1043, 1043, 1043, 1043, 25, 1043, 1043]);
}

/// Runs `statement` in a session while another has redefined table `t`, uncommitted: it plans by the former definition,
/// waits for the table's lock, and meets the new one.
fn redefined_under<T: Send>(redefine: &str, statement: impl FnOnce(&mut Session) -> T + Send) -> T {
    let database = Database::new();
    let (mut definer, mut session) = (database.session(), database.session());
    prepared(&mut session);
    simple(&mut definer, &format!("BEGIN; {redefine}")).expect("redefined");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || statement(&mut session));
        // Should the statement be later than this, it plans by the new definition, and the test shows nothing.
        std::thread::sleep(std::time::Duration::from_millis(300));
        simple(&mut definer, "COMMIT").expect("committed");
        waiting.join().expect("no panic")
    })
}

/// RowDescription went out before the first row was asked for; where the table turned out to be redefined, the
/// statement was planned again, and described again.
#[test]
fn a_statement_planned_again_is_described_once() {
    let wait = "SELECT * FROM t WHERE id < 3 FOR UPDATE";
    let answer = redefined_under("TRUNCATE t", move |session| simple(session, wait)).expect("no rows");
    assert_eq!((answer.described, answer.lines().len()), (1, 0));
    let other = "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, a int, b int); INSERT INTO t VALUES (1, 2, 3)";
    let answer = redefined_under(other, move |session| simple(session, wait)).expect("a row");
    assert_eq!((answer.described, answer.fields.len()), (1, 3));
    assert_eq!(answer.lines(), ["1|2|3"]);
}

/// After Describe the client counts on the columns: it gets an error, as in PostgreSQL, and not rows of other columns.
#[test]
fn a_described_portal_does_not_change_its_columns() {
    let wait = "SELECT * FROM t WHERE id < 3 FOR UPDATE";
    let other = "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, a int, b int); INSERT INTO t VALUES (1, 2, 3)";
    match redefined_under(other, move |session| extended(session, wait, &[])) {
        Err(error) => assert_eq!(error.code(), "0A000", "{error}"),
        Ok(answer) => assert_eq!(answer.fields.len(), 3, "planned by the new definition from the start"),
    }
    let answer = redefined_under("TRUNCATE t", move |session| extended(session, wait, &[])).expect("no rows");
    assert_eq!((answer.described, answer.lines().len()), (1, 0));
}

#[test]
fn portals_suspend_and_go_on() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    let steps = |session: &mut Session, order: &str| -> Result<Vec<Vec<String>>> {
        let mut given = Vec::new();
        session.parse("", &format!("SELECT v FROM t {order}"), &[])?;
        session.bind("p", "", Bind::from_wire(&bind_tail(&[]))?)?;
        loop {
            let mut answer = Answer::default();
            session.execute("p", 2, &mut answer)?;
            given.push(answer.lines());
            if !answer.suspended {
                session.close_portal("p");
                session.sync()?;
                return Ok(given);
            }
        }
    };
    assert_eq!(steps(&mut session, "").expect("streamed"), [vec!["a", "b"], vec!["c"]]);
    assert_eq!(
        steps(&mut session, "ORDER BY v DESC").expect("sorted"),
        [vec!["c", "b"], vec!["a"]]
    );
}

#[test]
fn a_pipeline_is_one_transaction() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    let mut answer = Answer::default();
    session.parse("", "INSERT INTO t VALUES (9, 'z')", &[]).expect("parse");
    session
        .bind("", "", Bind::from_wire(&bind_tail(&[])).expect("well formed"))
        .expect("bind");
    session.execute("", 0, &mut answer).expect("execute");
    assert_eq!(
        session.parse("", "SELECT nothing FROM t", &[]).unwrap_err().code(),
        "42703"
    );
    session.sync().expect("sync");
    assert_eq!(
        simple(&mut session, "SELECT count(*) FROM t WHERE id = 9")
            .expect("count")
            .lines(),
        ["0"]
    );
}

#[test]
fn a_prepared_statement_survives_definitions() {
    let database = Database::new();
    let (mut session, mut other) = (database.session(), database.session());
    prepared(&mut session);
    session.parse("s", "SELECT v FROM t WHERE v = $1", &[]).expect("parse");
    session.sync().expect("sync");
    simple(&mut other, "CREATE INDEX i ON t (v)").expect("index");
    let mut answer = Answer::default();
    session
        .bind("", "s", Bind::from_wire(&bind_tail(&[Some("b")])).expect("well formed"))
        .expect("bind");
    session.execute("", 0, &mut answer).expect("execute");
    session.sync().expect("sync");
    assert_eq!(answer.lines(), ["b"]);
    simple(&mut other, "DROP TABLE t").expect("drop");
    let error = session
        .bind("", "s", Bind::from_wire(&bind_tail(&[Some("b")])).expect("well formed"))
        .unwrap_err();
    assert_eq!(error.code(), "42P01");
    session.sync().expect("sync");
}

#[test]
fn another_thread_cancels() {
    let database = Database::new();
    let mut session = database.session();
    let handle = session.cancel_handle();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        handle.cancel();
    });
    assert_eq!(
        simple(&mut session, "SELECT pg_sleep(20)")
            .err()
            .expect("cancelled")
            .code(),
        "57014"
    );
    thread.join().expect("the thread ends");
    assert_eq!(simple(&mut session, "SELECT 1").expect("goes on").lines(), ["1"]);
}

/// What goes on for long hears of it: series, subqueries in expressions, semi joins, WITH, frames.
#[test]
fn every_shape_is_cancelled() {
    let database = Database::new();
    let mut session = database.session();
    for text in [
        "SELECT count(*) FROM generate_series(1, 4000000000000)",
        "SELECT (SELECT count(*) FROM generate_series(1, 1000000000) h WHERE h > g) FROM generate_series(1, 10) g",
        "SELECT sum((SELECT count(*) FROM generate_series(1, 100) h WHERE h > g)) FROM generate_series(1, 100000000) g",
        "WITH s AS MATERIALIZED (SELECT g FROM generate_series(1, 1000000000) g WHERE g < 0) SELECT count(*) FROM s",
        "SELECT count(*) FROM generate_series(1, 100000) a WHERE EXISTS \
         (SELECT 1 FROM generate_series(1, 100000) b WHERE b < -a)",
        "SELECT sum(a) OVER (ORDER BY a ROWS BETWEEN 30000 PRECEDING AND 30000 FOLLOWING) \
         FROM generate_series(1, 100000) a",
        "SELECT count(*) FROM generate_series(1, 1000000) a FULL JOIN generate_series(1, 1000000) b ON a < -b",
    ] {
        let handle = session.cancel_handle();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            handle.cancel();
        });
        let error = simple(&mut session, text)
            .err()
            .unwrap_or_else(|| panic!("{text} ended"));
        assert_eq!(error.code(), "57014", "{text}: {error}");
        thread.join().expect("the thread ends");
    }
}

/// A subquery that is planned as a join and again in its place took a parameter's type the first time.
#[test]
fn parameters_of_subqueries_stay_open() {
    let database = Database::new();
    let mut session = database.session();
    simple(
        &mut session,
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)",
    )
    .expect("a table");
    for (text, params, rows) in [
        (
            "SELECT id FROM t WHERE id IN (SELECT $1 FROM t u WHERE u.id = t.id)",
            vec![Some("2")],
            "2",
        ),
        (
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.id = t.id + $1)",
            vec![Some("2")],
            "1",
        ),
        (
            "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM t u WHERE u.id = t.id + $1)",
            vec![None],
            "1 2 3",
        ),
        (
            "SELECT id FROM t WHERE id = (WITH s AS (SELECT t.id + $1 AS x) SELECT x - 1 FROM s)",
            vec![Some("1")],
            "1 2 3",
        ),
        ("SELECT g FROM generate_series(1, $1) g", vec![Some("2")], "1 2"),
    ] {
        let answer = extended(&mut session, text, &params).expect(text);
        assert_eq!(answer.lines().join(" "), rows, "{text}");
    }
}

#[test]
fn a_vanished_session_leaves_no_locks() {
    let database = Database::new();
    let (mut session, mut other) = (database.session(), database.session());
    prepared(&mut session);
    simple(&mut session, "BEGIN; UPDATE t SET v = 'x' WHERE id = 1").expect("update");
    drop(session);
    simple(&mut other, "SET lock_timeout = 1000; UPDATE t SET v = 'y' WHERE id = 1").expect("no lock is left");
}

#[test]
fn settings_that_clients_follow_are_reported() {
    let database = Database::new();
    let mut session = database.session();
    let answer = simple(&mut session, "SET application_name = 'me'; SET TimeZone = '+01'").expect("set");
    assert_eq!(
        answer.parameters,
        [
            ("application_name".into(), "me".into()),
            ("TimeZone".into(), "+01".into())
        ]
    );
    assert!(
        session
            .reported_settings()
            .iter()
            .any(|(name, value)| *name == "server_version" && value.starts_with("15"))
    );
    let answer = simple(&mut session, "COMMIT").expect("a warning");
    assert_eq!(answer.notices[0].code(), "25P01");
}

/// Each statement with a limit stayed on the watchdog's list until its time was up; and one that ended as its time did
/// could have the next stopped.
#[test]
fn statements_with_a_time_limit_leave_nothing_behind() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    simple(&mut session, "SET statement_timeout = '1h'").expect("set");
    for n in 0..10_000 {
        simple(&mut session, "SELECT v FROM t WHERE id = 1").expect("read");
        extended(&mut session, "SELECT v FROM t WHERE id = $1", &[Some("2")]).expect("read");
        if n % 100 == 0 {
            assert!(simple(&mut session, "SELECT 1/0").is_err());
            assert!(simple(&mut session, "BEGIN; COPY t FROM STDIN; SELECT 1/0").is_err());
            simple(&mut session, "ROLLBACK").expect("rollback");
        }
    }
    assert_eq!(database.sql.statements_watched(), 0);
    let lines = (10..20_000).map(|n| format!("{n}\tv{n}\n")).collect::<String>();
    let mut answer = Answer {
        copy_input: vec![lines.into_bytes()],
        ..Answer::default()
    };
    run_simple(
        &mut session,
        "COPY t FROM STDIN; SET statement_timeout = 1",
        &mut answer,
    )
    .expect("rows");
    let mut stopped = 0;
    for _ in 0..200 {
        match simple(&mut session, "SELECT count(*) FROM t WHERE v > 'v1'") {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.code(), "57014", "{error}");
                stopped += 1;
            }
        }
        let text = "SET statement_timeout = 0; SELECT v FROM t WHERE id < 1000; SET statement_timeout = 1";
        simple(&mut session, text).expect("no limit, and not that of the statement before");
    }
    println!("{stopped} were stopped");
    assert_eq!(database.sql.statements_watched(), 0);
}

/// The beginning of a line was kept for as long as the client sent no end of it, up to 1 GiB that was not accounted
/// for, and csv data was searched from its start with each message.
#[test]
fn a_line_of_copy_data_is_accounted_for() {
    let database = Database::new();
    let mut session = database.session();
    database.sql.engine().memory().set_limit(16 << 20);
    prepared(&mut session);
    for format in ["", " (FORMAT csv)"] {
        session
            .simple(&format!("COPY t FROM STDIN{format}"), &mut Answer::default())
            .expect("a COPY");
        assert!(session.is_copying());
        let mut part = vec![b'x'; 1 << 20];
        part[0] = b'"';
        let refused = (0..1024)
            .find_map(|_| session.copy_data(&part).err())
            .expect("too much");
        assert_eq!(refused.code(), "53200", "{format}: {refused}");
        assert!(!session.is_copying());
        simple(&mut session, "SELECT 1").expect("goes on");
    }
}

/// What asyncpg sends when a connection goes back to its pool; each of them was refused, and so no pool worked.
#[test]
fn a_connection_is_reset_for_its_next_client() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    simple(&mut session, "BEGIN").expect("begin");
    for name in ["a", "b", "c"] {
        session.parse("", "SELECT id FROM t", &[]).expect("parse");
        let tail = bind_tail(&[]);
        session
            .bind(name, "", Bind::from_wire(&tail).expect("well formed"))
            .expect("bind");
    }
    assert_eq!(simple(&mut session, "CLOSE b").expect("closed").tags, ["CLOSE CURSOR"]);
    session.execute("a", 0, &mut Answer::default()).expect("open");
    let answer = simple(&mut session, "CLOSE ALL; UNLISTEN *; UNLISTEN a").expect("reset");
    assert_eq!(answer.tags, ["CLOSE CURSOR ALL", "UNLISTEN", "UNLISTEN"]);
    let error = session.execute("c", 0, &mut Answer::default()).expect_err("closed");
    assert_eq!(error.code(), "34000");
    simple(&mut session, "ROLLBACK").expect("rollback");
    let error = simple(&mut session, "CLOSE c").err().expect("no such cursor");
    assert_eq!(error.code(), "34000");
}

/// An array parameter was described as text: a driver that goes by the description, such as asyncpg, refused the array.
#[test]
fn array_parameters_are_described_as_what_they_are_compared_with() {
    let database = Database::new();
    each_array_parameter(
        &database,
        &[
            ("SELECT id FROM t WHERE id = ANY($1::int[]) ORDER BY id", 1007),
            ("SELECT id FROM t WHERE id = ANY($1::bigint[]) ORDER BY id", 1016),
            ("SELECT id FROM t WHERE v = ANY($1::text[]) ORDER BY id", 1009),
            ("SELECT id FROM t WHERE id = ANY($1) ORDER BY id", 1007),
            ("SELECT id FROM t WHERE v = ANY($1) ORDER BY id", 1009),
            ("SELECT id FROM t WHERE NOT id <> ALL($1) ORDER BY id", 1007),
            (
                "SELECT id FROM t WHERE id + 1 > ANY($1::int[]) AND id = ANY($1) ORDER BY id",
                1007,
            ),
        ],
    );
}

#[cfg(feature = "analytics")]
#[test]
fn array_parameters_of_types_that_no_table_has_are_described_too() {
    let text = "SELECT id FROM t WHERE id = ANY($1::oid[]) ORDER BY id";
    each_array_parameter(&Database::with_datafusion(), &[(text, 1028)]);
}

fn each_array_parameter(database: &Database, statements: &[(&str, u32)]) {
    let mut session = database.session();
    prepared(&mut session);
    for (text, id) in statements {
        session.parse("s", text, &[]).expect("parse");
        let mut answer = Answer::default();
        session.describe_statement("s", &mut answer).expect("describe");
        assert_eq!(answer.params, [*id], "{text}");
        let (values, more) = match id {
            1009 => ("{c,a}", "{}"),
            _ => ("{3,1}", "{NULL}"),
        };
        // The plan is kept: it serves other arrays, and none.
        for (value, lines) in [(Some(values), vec!["1", "3"]), (Some(more), vec![]), (None, vec![])] {
            let tail = bind_tail(&[value]);
            let mut answer = Answer::default();
            session
                .bind("", "s", Bind::from_wire(&tail).expect("well formed"))
                .expect("bind");
            session.execute("", 0, &mut answer).expect("execute");
            assert_eq!(answer.lines(), lines, "{text} of {value:?}");
        }
        session.close_statement("s");
        session.sync().expect("sync");
    }
}

/// A second planner took the array for one of text, where blanks at the end count.
#[test]
fn an_array_parameter_of_char_keeps_its_type_for_each_planner() {
    let database = Database::new();
    let mut session = database.session();
    for text in [
        "CREATE TABLE ch (id int PRIMARY KEY, c char(5))",
        "CREATE INDEX ch_c ON ch (c)",
        "INSERT INTO ch VALUES (1, 'ab'), (2, 'b'), (3, 'ab')",
    ] {
        simple(&mut session, text).expect(text);
    }
    for text in [
        "SELECT id FROM ch WHERE c = ANY ($1) ORDER BY id",
        "SELECT DISTINCT ON (id) id FROM ch WHERE c = ANY ($1) ORDER BY id",
        "SELECT x.id FROM ch x JOIN ch y ON y.id = x.id WHERE x.c = ANY ($1) ORDER BY x.id",
        "SELECT id FROM ch WHERE NOT c <> ALL ($1) ORDER BY id",
    ] {
        let answer = extended(&mut session, text, &[Some("{\"ab \",\"b \"}")]).expect(text);
        assert_eq!(answer.lines(), ["1", "2", "3"], "{text}");
    }
}

/// More arms than 100 read the whole table.
#[test]
fn an_or_of_many_arms_is_a_union() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    simple(&mut session, "CREATE INDEX t_v ON t (v)").expect("index");
    let arms: Vec<String> = (0..500).map(|n| format!("id = {n} AND v = 'b'")).collect();
    let text = format!("SELECT id FROM t WHERE {}", arms.join(" OR "));
    let plan = simple(&mut session, &format!("EXPLAIN {text}")).expect("explained");
    assert!(plan.lines()[0].contains("union of"), "{:.200}", plan.lines()[0]);
    assert_eq!(simple(&mut session, &text).expect("answered").lines(), ["2"]);
}

/// A parameter was taken for a pattern that fixes nothing, or for one of the first run.
#[test]
fn a_pattern_parameter_finds_what_each_run_asks_for() {
    let database = Database::new();
    let mut session = database.session();
    prepared(&mut session);
    simple(&mut session, "CREATE INDEX t_v ON t (v)").expect("index");
    let text = "SELECT v FROM t WHERE v LIKE $1 ORDER BY id";
    for (pattern, lines) in [
        (Some("b%"), vec!["b"]),
        (Some("%"), vec!["a", "b", "c"]),
        (Some("_"), vec!["a", "b", "c"]),
        (Some("%c"), vec!["c"]),
        (Some(""), vec![]),
        (None, vec![]),
    ] {
        let answer = extended(&mut session, text, &[pattern]).expect("select");
        assert_eq!(answer.lines(), lines, "{pattern:?}");
    }
}

/// Names of statements and portals cost memory that was not accounted for.
#[test]
fn names_of_statements_and_portals_are_accounted_for() {
    let database = Database::new();
    let mut session = database.session();
    database.sql.engine().memory().set_limit(16 << 20);
    prepared(&mut session);
    let name = |n: usize| format!("{n}{}", "x".repeat(1 << 20));
    let refused = (0..100).find_map(|n| session.parse(&name(n), "SELECT 1", &[]).err());
    assert_eq!(refused.expect("too much").code(), "53200");
    let mut session = database.session();
    simple(&mut session, "BEGIN").expect("begin");
    session.parse("", "SELECT 1", &[]).expect("parse");
    let tail = bind_tail(&[]);
    let bind = |n| {
        session
            .bind(&name(n), "", Bind::from_wire(&tail).expect("well formed"))
            .err()
    };
    assert_eq!((0..100).find_map(bind).expect("too much").code(), "53200");
}
