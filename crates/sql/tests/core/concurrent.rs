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
