//! Transaction blocks: what settles their isolation. What is expected here is what PostgreSQL 15 does.

use crate::support::{Answer, Database, run_simple, simple};
use cenote_sql::Session;

fn run(session: &mut Session, text: &str) {
    simple(session, text).unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// Only queries settled the isolation. After a definition or a COPY, SET TRANSACTION committed what these had done, and
/// ROLLBACK took none of it back.
#[test]
fn whatever_takes_a_snapshot_settles_the_isolation() {
    let database = Database::new();
    let mut session = database.session();
    run(
        &mut session,
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    );
    for text in [
        "CREATE TABLE u (id int)",
        "CREATE SEQUENCE q",
        "TRUNCATE t",
        "COPY t FROM STDIN",
        "COPY t TO STDOUT",
        "EXPLAIN ANALYZE INSERT INTO t VALUES (9)",
        "EXPLAIN SELECT 1",
        "ANALYZE t",
        "PREPARE p AS SELECT 1",
        "DEALLOCATE ALL",
        "DISCARD PLANS",
        "CLOSE ALL",
        "SELECT 1",
    ] {
        run(&mut session, "BEGIN");
        let mut answer = Answer {
            copy_input: vec![b"2\n3\n".to_vec()],
            ..Answer::default()
        };
        run_simple(&mut session, text, &mut answer).unwrap_or_else(|error| panic!("{text}: {error}"));
        let refused = simple(&mut session, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").err();
        run(&mut session, "ROLLBACK");
        assert_eq!(
            refused.map(|error| error.code().to_string()).as_deref(),
            Some("25001"),
            "{text}"
        );
        let left = simple(&mut session, "SELECT id FROM t").expect("rows");
        assert_eq!(left.lines(), ["1"], "{text}");
        run(
            &mut session,
            "CREATE TABLE u (id int); CREATE SEQUENCE q; DROP TABLE u; DROP SEQUENCE q",
        );
    }
    for text in [
        "SHOW application_name",
        "SET application_name = 'x'",
        "UNLISTEN *",
        "CHECKPOINT",
        "SAVEPOINT a; RELEASE a",
    ] {
        run(&mut session, "BEGIN");
        run(&mut session, text);
        run(&mut session, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
        run(&mut session, "ROLLBACK");
    }
}
