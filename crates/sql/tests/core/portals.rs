//! Portals between two executions: what they see while other statements run, and what becomes of them. What is expected
//! here is what PostgreSQL 15 does.

use crate::support::{Answer, Database, bind_tail, simple};
use cenote_sql::{Bind, Session};
use std::collections::BTreeMap;

fn bind(session: &mut Session, portal: &str, text: &str) {
    session.parse("", text, &[]).expect("parse");
    session
        .bind(portal, "", Bind::from_wire(&bind_tail(&[])).expect("well formed"))
        .expect("bind");
}

/// Up to `rows` rows of a portal, and whether there are more.
fn fetch(session: &mut Session, portal: &str, rows: u32) -> (Vec<String>, bool) {
    let mut answer = Answer::default();
    session.execute(portal, rows, &mut answer).expect("execute");
    (answer.lines(), answer.suspended)
}

fn refused(session: &mut Session, portal: &str) -> String {
    let error = session.execute(portal, 1, &mut Answer::default()).expect_err("refused");
    error.code().to_string()
}

fn run(session: &mut Session, text: &str) {
    simple(session, text).unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// `t` with rows 1 to 6, `v` the same as `id`.
fn six(session: &mut Session) {
    run(
        session,
        "CREATE TABLE t (id int PRIMARY KEY, v int, c text); CREATE INDEX t_v ON t (v)",
    );
    for id in 1..=6 {
        run(session, &format!("INSERT INTO t VALUES ({id}, {id}, 'c')"));
    }
}

fn many(session: &mut Session, rows: i32) {
    run(
        session,
        "CREATE TABLE m (id int PRIMARY KEY, v int, c text); CREATE INDEX m_v ON m (v)",
    );
    for from in (1..=rows).step_by(1000) {
        let values = (from..from + 1000).map(|id| format!("({id}, {id}, 'c{id}')"));
        run(
            session,
            &format!("INSERT INTO m VALUES {}", values.collect::<Vec<_>>().join(", ")),
        );
    }
}

/// At read committed a portal took a new snapshot with each statement beside it: of 20,000 rows it gave 19,001, one of
/// them twice, when others committed between two fetches.
#[test]
fn a_portal_keeps_its_snapshot_whatever_others_commit() {
    let database = Database::new();
    let (mut session, mut other) = (database.session(), database.session());
    many(&mut session, 20_000);
    for order in ["id", "v", "id DESC"] {
        run(&mut session, "BEGIN");
        bind(&mut session, "p", &format!("SELECT id, v, c FROM m ORDER BY {order}"));
        let mut given = BTreeMap::new();
        let mut step = 0;
        loop {
            let (lines, more) = fetch(&mut session, "p", 1000);
            for line in lines {
                let (id, rest) = line.split_once('|').expect("columns");
                assert!(given.insert(id.parse::<i32>().unwrap(), rest.to_string()).is_none());
            }
            if !more {
                break;
            }
            step += 1;
            // The row before the portal moves behind it, one after it is deleted, and the statement beside it takes a
            // new snapshot.
            run(
                &mut other,
                &format!("UPDATE m SET id = id + 30000 WHERE id = {}", step * 1000 - 5),
            );
            run(&mut other, &format!("DELETE FROM m WHERE id = {}", step * 1000 + 500));
            run(
                &mut other,
                &format!("UPDATE m SET v = v + 50000 WHERE id = {}", step * 1000 - 7),
            );
            database.sql.engine().vacuum().expect("purged");
            run(&mut session, "SELECT v FROM m WHERE id = 1");
        }
        session.close_portal("p");
        let now = simple(&mut session, "SELECT id, v, c FROM m").expect("read").lines();
        assert_ne!(given.len(), now.len(), "what others did is seen by the next statement");
        run(&mut session, "ROLLBACK");
        assert_eq!(given.len(), 20_000, "by {order}");
        assert!(
            given.iter().all(|(id, rest)| *rest == format!("{id}|c{id}")),
            "by {order}"
        );
        run(&mut session, "DROP TABLE m");
        many(&mut session, 20_000);
    }
}

/// Rows that were updated as they came (JDBC with a fetch size) were fetched again and again by way of the index:
/// 60,000 from 20,000.
#[test]
fn a_portal_does_not_see_what_its_transaction_does_later() {
    let database = Database::new();
    let mut session = database.session();
    many(&mut session, 20_000);
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        run(&mut session, &format!("BEGIN ISOLATION LEVEL {isolation}"));
        run(&mut session, "UPDATE m SET c = 'before' WHERE id <= 10");
        run(&mut session, "INSERT INTO m VALUES (0, 0, 'before')");
        bind(&mut session, "p", "SELECT id, v, c FROM m WHERE v > -1 ORDER BY v");
        let mut given = 0;
        loop {
            let (lines, more) = fetch(&mut session, "p", 2000);
            for line in &lines {
                let expected = match given {
                    0..=10 => format!("{given}|{given}|before"),
                    _ => format!("{given}|{given}|c{given}"),
                };
                assert_eq!(*line, expected);
                given += 1;
            }
            if !more {
                break;
            }
            let last = given - 1;
            let seen = format!("id > {} AND id <= {last}", last - 1000);
            run(&mut session, &format!("UPDATE m SET v = v + 30000 WHERE {seen}"));
            run(
                &mut session,
                &format!("UPDATE m SET id = id + 100000 WHERE id = {}", last + 7),
            );
            run(&mut session, &format!("DELETE FROM m WHERE id = {}", last + 8));
            run(&mut session, "SAVEPOINT s");
            run(
                &mut session,
                &format!("UPDATE m SET v = 0, c = 'no' WHERE id = {}", last + 9),
            );
            run(&mut session, "ROLLBACK TO s");
            run(
                &mut session,
                &format!("INSERT INTO m VALUES ({}, {}, 'new')", 40_000 + last, last + 5),
            );
        }
        assert_eq!(given, 20_001, "at {isolation}");
        run(&mut session, "ROLLBACK");
    }
}

/// Values that lie outside of their rows are those of the version that the portal sees.
#[test]
fn a_portal_reads_large_values_that_were_replaced_since() {
    let database = Database::new();
    let mut session = database.session();
    run(&mut session, "CREATE TABLE l (id int PRIMARY KEY, c text)");
    let text = |id: i32, letter: &str| format!("{id}{}", letter.repeat(20_000));
    for id in 0..20 {
        run(
            &mut session,
            &format!("INSERT INTO l VALUES ({id}, '{}')", text(id, "a")),
        );
    }
    run(&mut session, "BEGIN");
    bind(&mut session, "p", "SELECT c FROM l ORDER BY id");
    assert_eq!(fetch(&mut session, "p", 1).0, [text(0, "a")]);
    run(
        &mut session,
        &format!("UPDATE l SET c = '{}' WHERE id < 10", text(0, "b")),
    );
    run(&mut session, "DELETE FROM l WHERE id >= 10");
    database.sql.engine().vacuum().expect("purged");
    let rest: Vec<String> = (1..20).map(|id| text(id, "a")).collect();
    assert_eq!(fetch(&mut session, "p", 0).0, rest);
    run(&mut session, "COMMIT");
}

/// The query of a Bind that failed stayed behind and was given the snapshot of the next statement: what was bound in
/// its place saw by that what was then, however long ago.
#[test]
fn a_bind_that_fails_leaves_nothing() {
    let database = Database::new();
    let mut session = database.session();
    six(&mut session);
    session.parse("s", "SELECT v FROM t WHERE id = $1", &[]).expect("parse");
    let bind = |session: &mut Session, id: &str| {
        let tail = bind_tail(&[Some(id)]);
        session.bind("", "s", Bind::from_wire(&tail).expect("well formed"))
    };
    bind(&mut session, "1").expect("bind");
    assert_eq!(bind(&mut session, "x").expect_err("no number").code(), "22P02");
    session.sync().expect("sync");
    run(&mut session, "SELECT v FROM t WHERE id = 2");
    run(&mut session, "UPDATE t SET v = 100 WHERE id = 1");
    bind(&mut session, "1").expect("bind");
    assert_eq!(fetch(&mut session, "", 0).0, ["100"]);
    session.sync().expect("sync");
}

#[test]
fn a_query_that_was_bound_sees_nothing_of_statements_that_begin_later() {
    let database = Database::new();
    let mut session = database.session();
    six(&mut session);
    run(&mut session, "BEGIN");
    bind(&mut session, "p", "SELECT v FROM t WHERE id > 3 ORDER BY id");
    bind(&mut session, "point", "SELECT v FROM t WHERE id = 1");
    run(&mut session, "UPDATE t SET v = v + 100");
    bind(&mut session, "after", "SELECT v FROM t WHERE id = 1");
    run(&mut session, "UPDATE t SET v = v + 100");
    assert_eq!(fetch(&mut session, "p", 2), (vec!["4".into(), "5".into()], true));
    assert_eq!(fetch(&mut session, "point", 0).0, ["1"]);
    assert_eq!(fetch(&mut session, "after", 0).0, ["101"]);
    assert_eq!(fetch(&mut session, "p", 0).0, ["6"]);
    run(&mut session, "COMMIT");
    assert_eq!(
        simple(&mut session, "SELECT v FROM t WHERE id = 1")
            .expect("read")
            .lines(),
        ["201"]
    );
}

/// A query that was bound took its snapshot with the next statement of its session, or its own Execute: it gave rows
/// that were committed after Bind. PostgreSQL takes it at Bind (PortalStart); for a statement that writes at Execute.
#[test]
fn a_query_sees_what_was_committed_at_bind() {
    let database = Database::new();
    let (mut session, mut other) = (database.session(), database.session());
    six(&mut session);
    for block in [false, true] {
        if block {
            run(&mut session, "BEGIN");
        }
        bind(&mut session, "all", "SELECT id, v FROM t WHERE id > 4 ORDER BY id");
        run(&mut other, "UPDATE t SET v = v + 100; INSERT INTO t VALUES (7, 7, 'c')");
        bind(&mut session, "point", "SELECT v FROM t WHERE id = 5");
        bind(&mut session, "locked", "SELECT v FROM t WHERE id = 6 FOR UPDATE");
        bind(&mut session, "write", "UPDATE t SET c = 'w' WHERE id >= 5 RETURNING v");
        bind(&mut session, "", "SELECT v FROM t WHERE id = 1");
        run(&mut other, "UPDATE t SET v = v + 100; DELETE FROM t WHERE id = 2");
        assert_eq!(fetch(&mut session, "all", 1).0, ["5|5"]);
        assert_eq!(fetch(&mut session, "", 0).0, ["101"]);
        assert_eq!(fetch(&mut session, "point", 0).0, ["105"]);
        assert_eq!(fetch(&mut session, "locked", 0).0, ["206"], "the row as it is locked");
        assert_eq!(fetch(&mut session, "write", 0).0, ["205", "206", "107"]);
        assert_eq!(fetch(&mut session, "all", 0).0, ["6|6"]);
        session.sync().expect("sync");
        if block {
            run(&mut session, "COMMIT");
        }
        run(&mut session, "DROP TABLE t");
        six(&mut session);
    }
}

#[test]
fn a_portal_that_locks_passes_by_what_its_transaction_has_changed_since() {
    let database = Database::new();
    let mut session = database.session();
    six(&mut session);
    run(&mut session, "BEGIN");
    bind(&mut session, "p", "SELECT id, v FROM t ORDER BY id FOR UPDATE");
    assert_eq!(fetch(&mut session, "p", 2).0, ["1|1", "2|2"]);
    run(&mut session, "UPDATE t SET v = -1 WHERE id IN (3, 5)");
    assert_eq!(fetch(&mut session, "p", 0).0, ["4|4", "6|6"]);
    bind(&mut session, "p2", "SELECT id, v FROM t ORDER BY id FOR UPDATE");
    assert_eq!(fetch(&mut session, "p2", 3).0, ["1|1", "2|2", "3|-1"]);
    run(&mut session, "COMMIT");
}

#[test]
fn savepoints_end_the_portals_that_were_made_behind_them() {
    let database = Database::new();
    let mut session = database.session();
    six(&mut session);
    run(&mut session, "BEGIN");
    bind(&mut session, "a", "SELECT id, v FROM t ORDER BY id");
    assert_eq!(fetch(&mut session, "a", 2).0, ["1|1", "2|2"]);
    run(&mut session, "SAVEPOINT s");
    bind(&mut session, "b", "SELECT id FROM t ORDER BY id");
    assert_eq!(fetch(&mut session, "b", 1).0, ["1"]);
    run(&mut session, "UPDATE t SET v = 0");
    assert!(simple(&mut session, "SELECT 1/0").is_err());
    assert_eq!(refused(&mut session, "a"), "25P02");
    run(&mut session, "ROLLBACK TO s");
    assert_eq!(fetch(&mut session, "a", 1), (vec!["3|3".into()], true));
    assert_eq!(refused(&mut session, "b"), "34000");
    run(&mut session, "ROLLBACK TO s");
    assert_eq!(
        fetch(&mut session, "a", 1).0,
        ["4|4"],
        "it is of the transaction around"
    );
    bind(&mut session, "c", "SELECT 1/(id-2) FROM t ORDER BY id");
    assert_eq!(fetch(&mut session, "c", 1).0, ["-1"]);
    assert_eq!(refused(&mut session, "c"), "22012");
    run(&mut session, "ROLLBACK TO s");
    run(&mut session, "SAVEPOINT inner");
    bind(&mut session, "d", "SELECT id FROM t ORDER BY id");
    assert_eq!(fetch(&mut session, "d", 1).0, ["1"]);
    run(&mut session, "RELEASE inner");
    run(&mut session, "SAVEPOINT other");
    run(&mut session, "ROLLBACK TO other");
    assert_eq!(
        fetch(&mut session, "d", 1).0,
        ["2"],
        "released: of the savepoint around"
    );
    run(&mut session, "ROLLBACK TO s");
    assert_eq!(refused(&mut session, "d"), "34000");
    run(&mut session, "ROLLBACK TO s");
    run(&mut session, "COMMIT");
    run(&mut session, "BEGIN");
    assert_eq!(refused(&mut session, "a"), "34000", "the transaction has ended");
    run(&mut session, "ROLLBACK");
}

#[test]
fn a_table_that_a_portal_reads_is_not_redefined_by_its_session() {
    let database = Database::new();
    let mut session = database.session();
    six(&mut session);
    for definition in [
        "ALTER TABLE t ADD UNIQUE (v)",
        "TRUNCATE t",
        "DROP TABLE t",
        "CREATE INDEX i ON t (c)",
    ] {
        run(&mut session, "BEGIN");
        bind(&mut session, "p", "SELECT id FROM t ORDER BY id");
        assert_eq!(fetch(&mut session, "p", 2).0, ["1", "2"]);
        run(&mut session, "SAVEPOINT s");
        let error = simple(&mut session, definition).err().expect("in use");
        assert_eq!(error.code(), "55006", "{definition}: {error}");
        run(&mut session, "ROLLBACK TO s");
        assert_eq!(fetch(&mut session, "p", 0).0, ["3", "4", "5", "6"]);
        run(&mut session, definition);
        run(&mut session, "ROLLBACK");
    }
}

/// Some 2,100 suspended portals of one session took all 4,096 slots of the server, and all other sessions waited until
/// it was started again.
#[test]
fn suspended_portals_take_nothing_from_other_sessions() {
    let database = Database::new();
    let mut session = database.session();
    six(&mut session);
    run(&mut session, "BEGIN");
    for n in 0..5000 {
        let portal = format!("p{n}");
        bind(&mut session, &portal, "SELECT id FROM t ORDER BY id");
        assert_eq!(fetch(&mut session, &portal, 2).0, ["1", "2"]);
    }
    let mut others: Vec<_> = (0..100).map(|_| database.session()).collect();
    for (n, other) in others.iter_mut().enumerate() {
        run(other, &format!("UPDATE t SET id = id + 1000 WHERE id = {}", n + 3));
        run(other, "SELECT count(*) FROM t");
    }
    database.sql.engine().vacuum().expect("purged");
    assert_eq!(fetch(&mut session, "p4999", 0).0, ["3", "4", "5", "6"]);
    assert_eq!(fetch(&mut session, "p0", 0).0, ["3", "4", "5", "6"]);
    run(&mut session, "COMMIT");
}

/// The two failures by way of the planner for queries of any shape, whose readers saw all that their transaction did.
#[cfg(feature = "analytics")]
#[test]
fn a_query_of_any_shape_gives_each_row_once() {
    let database = Database::with_datafusion();
    let (mut session, mut other) = (database.session(), database.session());
    many(&mut session, 20_000);
    for shape in [
        "SELECT a.id FROM m a WHERE a.v > (SELECT min(v) - 1 FROM m)",
        "SELECT a.id FROM m a JOIN m b ON a.id = b.id",
        "SELECT b.id FROM (SELECT id FROM m WHERE v > 0 UNION ALL SELECT id FROM m WHERE v < 0) b",
    ] {
        run(&mut session, "BEGIN");
        bind(&mut session, "p", shape);
        let mut given: Vec<i32> = Vec::new();
        loop {
            let (lines, more) = fetch(&mut session, "p", 1000);
            let ids: Vec<i32> = lines.iter().map(|line| line.parse().expect("a number")).collect();
            let (low, high) = (ids.iter().min(), ids.iter().max());
            if let (Some(low), Some(high)) = (low, high) {
                let seen = format!("id BETWEEN {low} AND {high}");
                run(&mut session, &format!("UPDATE m SET v = v + 30000 WHERE {seen}"));
            }
            given.extend(&ids);
            if !more {
                break;
            }
            run(&mut session, "UPDATE m SET id = id + 100000 WHERE id = 19999");
            run(&mut session, "DELETE FROM m WHERE id = 19998");
            run(&mut other, "INSERT INTO m SELECT max(id) + 1, 1, 'other' FROM m");
        }
        given.sort_unstable();
        assert_eq!(given, (1..=20_000).collect::<Vec<_>>(), "{shape}");
        run(&mut session, "ROLLBACK");
        run(&mut other, "DELETE FROM m WHERE id > 20000");
    }
}

/// Each suspended query of this kind took two of the server's 4,096 slots. Now it takes memory of its session, and is
/// refused by name where there is no more.
#[cfg(feature = "analytics")]
#[test]
fn suspended_queries_of_any_shape_do_not_hang_the_others() {
    let database = Database::with_datafusion();
    let (mut session, mut other) = (database.session(), database.session());
    six(&mut session);
    run(&mut session, "BEGIN");
    session
        .parse("s", "SELECT a.id FROM t a JOIN t b ON a.id = b.id", &[])
        .expect("parse");
    let mut refused = None;
    let mut suspended = 0;
    for n in 0..2200 {
        let (portal, tail) = (format!("p{n}"), bind_tail(&[]));
        let bound = session.bind(&portal, "s", Bind::from_wire(&tail).expect("well formed"));
        let done = bound.and_then(|()| session.execute(&portal, 1, &mut Answer::default()));
        if let Err(error) = done {
            refused = Some(error);
            break;
        }
        suspended += 1;
    }
    assert!(suspended > 50, "{refused:?}");
    if let Some(error) = refused {
        assert_eq!(error.code(), "53200", "{error:?}");
    }
    run(&mut other, "UPDATE t SET v = 0 WHERE id = 1");
    let sum = simple(&mut other, "SELECT sum(a.v) FROM t a JOIN t b ON a.id = b.id").expect("read");
    assert_eq!(sum.lines(), ["20"]);
    drop(session);
    run(&mut other, "SELECT count(a.v) FROM t a JOIN t b ON a.id = b.id");
}

/// A session that idled in its transaction at read committed kept the snapshot of its last statement: purge stood still
/// until the transaction ended, and every table grew. A suspended portal keeps its own, for as long as it is open.
#[test]
fn a_transaction_that_idles_keeps_no_snapshot_from_purge() {
    let database = Database::new();
    let (mut idle, mut writer) = (database.session(), database.session());
    many(&mut writer, 1000);
    let engine = database.sql.engine().clone();
    // Index entries of former versions that are left behind a hundred updates.
    let mut left = || {
        run(&mut writer, "UPDATE m SET v = v + 1000 WHERE id <= 100");
        engine.vacuum().expect("purged");
        engine.check().expect("checked").entries_of_others
    };
    for text in [
        "BEGIN",
        "BEGIN; SELECT count(*) FROM m",
        "BEGIN; SAVEPOINT a; SELECT 1/0",
        "BEGIN; DELETE FROM m WHERE id = 500",
    ] {
        let _ = simple(&mut idle, text);
        assert_eq!(left(), 0, "{text}");
        run(&mut idle, "ROLLBACK");
    }
    run(&mut idle, "BEGIN");
    bind(&mut idle, "", "SELECT count(*) FROM m");
    idle.describe_statement("", &mut Answer::default()).expect("described");
    idle.sync().expect("synced");
    assert_eq!(left(), 100, "bound: it will see what was at Bind");
    idle.close_portal("");
    assert_eq!(left(), 0);
    bind(&mut idle, "p", "SELECT id FROM m");
    assert_eq!(fetch(&mut idle, "p", 10).0.len(), 10);
    idle.sync().expect("synced");
    assert_eq!(left(), 100, "the portal sees what was");
    idle.close_portal("p");
    assert_eq!(left(), 0);
    run(
        &mut idle,
        "COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM m",
    );
    assert_eq!(left(), 100, "the transaction's snapshot");
    run(&mut idle, "COMMIT");
    assert_eq!(left(), 0);
}
