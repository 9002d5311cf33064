//! Several sessions at once: no increment is lost, deadlocks end, what a condition no longer fits is left alone.

use crate::support::{Database, simple};
use cenote_sql::Session;
use std::thread;

const THREADS: i64 = 4;
const ROUNDS: i64 = 100;

/// Runs `work` in several sessions at once.
fn together(database: &Database, work: impl Fn(i64, &mut Session) + Send + Sync) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            let mut session = database.session();
            let work = &work;
            scope.spawn(move || work(number, &mut session));
        }
    });
}

#[test]
fn no_increment_is_lost() {
    let database = Database::new();
    let mut session = database.session();
    simple(
        &mut session,
        "CREATE TABLE n (id int PRIMARY KEY, v int, w int); INSERT INTO n VALUES (1, 0, 0), (2, 0, 0)",
    )
    .expect("a table");
    simple(&mut session, "CREATE INDEX n_w ON n (w)").expect("an index");
    together(&database, |number, session| {
        for round in 0..ROUNDS {
            simple(session, "UPDATE n SET v = v + 1 WHERE id = 1").expect("increment by key");
            simple(session, "UPDATE n SET v = v + 1, w = w + 1 WHERE id > 1 AND v >= 0").expect("increment by range");
            simple(
                session,
                &format!(
                    "INSERT INTO n VALUES ({}, 1, -1) ON CONFLICT (id) DO UPDATE SET v = n.v + 1",
                    10 + round % 3
                ),
            )
            .expect("upsert");
            assert!(number < THREADS);
        }
    });
    let total = THREADS * ROUNDS;
    let lines = simple(&mut session, "SELECT v FROM n WHERE id = 1 OR w > 0 ORDER BY id")
        .expect("rows")
        .lines();
    assert_eq!(lines[0], total.to_string());
    // Rows that the upserts made are in the range too; row 2 itself has missed nothing.
    assert_eq!(lines[1], total.to_string());
}

#[test]
fn transfers_keep_the_sum_through_deadlocks() {
    let database = Database::new();
    let mut session = database.session();
    simple(&mut session, "CREATE TABLE a (id int PRIMARY KEY, v int)").expect("a table");
    simple(&mut session, "INSERT INTO a VALUES (0, 100), (1, 100), (2, 100)").expect("rows");
    together(&database, |number, session| {
        for round in 0..ROUNDS {
            let (from, to) = ((number + round) % 3, (number * 2 + round + 1) % 3);
            let transfer = format!(
                "BEGIN; UPDATE a SET v = v - 1 WHERE id = {from}; UPDATE a SET v = v + 1 WHERE id = {to}; COMMIT"
            );
            if let Err(error) = simple(session, &transfer) {
                assert_eq!(error.code(), "40P01", "{error}");
                assert_eq!(session.status(), b'E');
                simple(session, "ROLLBACK").expect("rollback");
            }
            let sum = simple(session, "SELECT sum(v) FROM a").expect("sum").lines();
            assert_eq!(sum, ["300"]);
        }
    });
}

#[test]
fn a_row_that_no_longer_fits_is_left_alone() {
    let database = Database::new();
    let (mut one, mut two) = (database.session(), database.session());
    simple(
        &mut one,
        "CREATE TABLE q (id int PRIMARY KEY, state text); INSERT INTO q VALUES (1, 'new'), (2, 'new')",
    )
    .expect("a table");
    simple(&mut one, "BEGIN; UPDATE q SET state = 'taken' WHERE id = 1").expect("update");
    let waiter = thread::spawn(move || {
        simple(&mut two, "UPDATE q SET state = 'mine' WHERE state = 'new' RETURNING id")
            .expect("update")
            .lines()
    });
    thread::sleep(std::time::Duration::from_millis(100));
    simple(&mut one, "COMMIT").expect("commit");
    assert_eq!(waiter.join().expect("the waiter ends"), ["2"]);
}

/// A table with (1, 1), and two sessions, the second of which gives up a wait at once.
fn two_sessions(database: &Database) -> (Session, Session) {
    let (mut one, mut two) = (database.session(), database.session());
    let made = "CREATE TABLE s (id int PRIMARY KEY, flag int, u int UNIQUE); INSERT INTO s VALUES (1, 1, 1)";
    simple(&mut one, made).expect("a table");
    simple(&mut two, "SET lock_timeout = 50").expect("set");
    (one, two)
}

/// What a statement says it has done, or the error's code.
fn tag(session: &mut Session, text: &str) -> String {
    match simple(session, text) {
        Ok(answer) => answer.tags.last().expect("an answer").clone(),
        Err(error) => error.code().to_string(),
    }
}

/// UPDATE and DELETE by primary key went to the newest version and passed the snapshot by: they waited for another's
/// uncommitted INSERT, where PostgreSQL finds no row at once.
#[test]
fn an_uncommitted_insert_is_no_row_to_other_transactions() {
    let database = Database::new();
    let (mut one, mut two) = two_sessions(&database);
    simple(&mut one, "BEGIN; INSERT INTO s VALUES (9, 9, 9)").expect("inserted");
    assert_eq!(tag(&mut two, "UPDATE s SET flag = 2 WHERE id = 9"), "UPDATE 0");
    assert_eq!(tag(&mut two, "DELETE FROM s WHERE id = 9"), "DELETE 0");
    assert_eq!(tag(&mut two, "SELECT * FROM s WHERE id = 9 FOR UPDATE"), "SELECT 0");
    let upsert = "INSERT INTO s VALUES (9, 0, 9) ON CONFLICT (id) DO UPDATE SET flag = 3";
    assert_eq!(tag(&mut two, upsert), "55P03", "ON CONFLICT has to know how it ends");
    simple(&mut one, "COMMIT").expect("committed");
    assert_eq!(tag(&mut two, upsert), "INSERT 0 1");
    assert_eq!(tag(&mut two, "DELETE FROM s WHERE id = 9 AND flag = 3"), "DELETE 1");
}

/// A row that was committed behind the snapshot is none at repeatable read; it was 40001. One that the snapshot has and
/// another has changed still is.
#[test]
fn a_row_behind_the_snapshot_is_no_row_at_repeatable_read() {
    let database = Database::new();
    let (mut one, mut two) = two_sessions(&database);
    simple(&mut two, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM s").expect("a snapshot");
    simple(&mut one, "INSERT INTO s VALUES (9, 9, 9)").expect("inserted");
    assert_eq!(tag(&mut two, "UPDATE s SET flag = 2 WHERE id = 9"), "UPDATE 0");
    assert_eq!(tag(&mut two, "DELETE FROM s WHERE id = 9"), "DELETE 0");
    simple(&mut one, "DELETE FROM s WHERE id = 9").expect("deleted");
    assert_eq!(tag(&mut two, "DELETE FROM s WHERE id = 9"), "DELETE 0");
    simple(&mut one, "UPDATE s SET flag = 0 WHERE id = 1").expect("updated");
    assert_eq!(
        tag(&mut two, "UPDATE s SET u = 5 WHERE id = 1 AND flag = 0"),
        "UPDATE 0"
    );
    assert_eq!(tag(&mut two, "UPDATE s SET u = 5 WHERE id = 1 AND flag = 1"), "40001");
}

/// A row that does not meet the condition as the snapshot has it is left alone, whatever another is making of it: that
/// was waited for, and then believed.
#[test]
fn a_condition_is_asked_of_the_snapshot_first() {
    let database = Database::new();
    let (mut one, mut two) = two_sessions(&database);
    simple(&mut one, "BEGIN; UPDATE s SET flag = 0 WHERE id = 1").expect("updated");
    assert_eq!(
        tag(&mut two, "UPDATE s SET u = 7 WHERE id = 1 AND flag = 0"),
        "UPDATE 0"
    );
    assert_eq!(tag(&mut two, "DELETE FROM s WHERE id = 1 AND flag = 0"), "DELETE 0");
    assert_eq!(tag(&mut two, "UPDATE s SET u = 7 WHERE id = 1 AND flag = 1"), "55P03");
    simple(&mut one, "ROLLBACK; BEGIN; SELECT * FROM s WHERE id = 1 FOR UPDATE").expect("locked");
    assert_eq!(
        tag(&mut two, "UPDATE s SET u = 7 WHERE id = 1 AND flag = 0"),
        "UPDATE 0"
    );
    assert_eq!(tag(&mut two, "UPDATE s SET u = 7 WHERE id = 1 AND flag = 1"), "55P03");
}

/// ON CONFLICT DO NOTHING at repeatable read met a version behind the snapshot with the same unique value, and passed
/// over the row because the snapshot has another version of that row, with another value. PostgreSQL: 40001.
#[test]
fn a_conflict_that_the_snapshot_does_not_have_is_refused() {
    let database = Database::new();
    let (mut one, mut two) = two_sessions(&database);
    simple(&mut two, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM s").expect("a snapshot");
    assert_eq!(
        tag(&mut two, "INSERT INTO s VALUES (2, 2, 1) ON CONFLICT DO NOTHING"),
        "INSERT 0 0"
    );
    simple(&mut one, "UPDATE s SET u = 2 WHERE id = 1").expect("updated");
    assert_eq!(
        tag(&mut two, "INSERT INTO s VALUES (2, 2, 2) ON CONFLICT DO NOTHING"),
        "40001"
    );
}

/// World `sql`, seeds 12 and 14: SAVEPOINT (and BEGIN, SET, SHOW) took the snapshot of a transaction at repeatable
/// read, so that its first query did not see what was committed before it. What is expected here is what PostgreSQL
/// does.
#[test]
fn what_controls_a_transaction_takes_no_snapshot() {
    let database = Database::new();
    let (mut one, mut two) = two_sessions(&database);
    simple(&mut one, "SET default_transaction_isolation = 'repeatable read'").expect("set");
    simple(&mut one, "BEGIN").expect("begun");
    simple(&mut two, "UPDATE s SET flag = 2").expect("updated");
    for text in [
        "SAVEPOINT a",
        "SHOW lock_timeout",
        "SET lock_timeout = 60",
        "ROLLBACK TO a",
        "RELEASE a",
    ] {
        simple(&mut one, text).expect(text);
        simple(&mut two, "UPDATE s SET flag = flag + 1").expect("updated");
    }
    let seen = |session: &mut Session| simple(session, "SELECT flag FROM s").expect("read").lines();
    assert_eq!(seen(&mut one), ["7"], "as of the query");
    simple(&mut two, "UPDATE s SET flag = 0").expect("updated");
    assert_eq!(seen(&mut one), ["7"], "and for good");
    simple(&mut one, "SAVEPOINT b; ROLLBACK TO b").expect("there and back");
    assert_eq!(seen(&mut one), ["7"]);
    simple(&mut one, "COMMIT").expect("committed");
    assert_eq!(seen(&mut one), ["0"]);
}
