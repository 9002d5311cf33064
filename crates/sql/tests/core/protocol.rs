//! The extended protocol: parameters in text and binary, portals that suspend, errors and the transaction they end.

use crate::support::{Answer, Database, bind_tail, extended, simple};
use cenote_sql::{Bind, Result, Session};

fn prepared(session: &mut Session) {
    simple(session, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT 1, 'a'; INSERT INTO t VALUES (2, 'b'), (3, 'c')").expect("a table");
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

/// Runs `statement` in a session while another has redefined table `t`, uncommitted: it plans by the former definition, waits for the
/// table's lock, and meets the new one.
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

/// RowDescription went out before the first row was asked for; where the table turned out to be redefined, the statement was planned
/// again, and described again.
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
