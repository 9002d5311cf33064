//! `set_config` in a query. What is expected here is what PostgreSQL 15 answers, but for what is refused with 0A000.

use crate::support::{Answer, Database, extended, run_simple, simple};
use cenote_sql::Session;

fn value(session: &mut Session, text: &str) -> String {
    let answer = simple(session, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    answer.lines().join(" ")
}

fn error(session: &mut Session, text: &str) -> String {
    let error = simple(session, text).err().unwrap_or_else(|| panic!("{text} succeeds"));
    error.code().to_string()
}

/// It answered the value, and set nothing.
#[test]
fn set_config_sets() {
    let database = Database::new();
    let mut session = database.session();
    for (text, answer, shown) in [
        (
            "SELECT pg_catalog.set_config('search_path', '', false)",
            "",
            "SHOW search_path",
        ),
        (
            "SELECT set_config('statement_timeout', '60000', false)",
            "1min",
            "SHOW statement_timeout",
        ),
        ("SELECT set_config('My.Own', 'a', NULL)", "a", "SHOW my.own"),
        (
            "SELECT set_config('lock_timeout', '5s', 'f'), 1",
            "5s|1",
            "SELECT current_setting('lock_timeout'), 1",
        ),
        (
            "SELECT set_config('lock_timeout', NULL, false)",
            "0",
            "SHOW lock_timeout",
        ),
    ] {
        assert_eq!(value(&mut session, text), answer, "{text}");
        assert_eq!(value(&mut session, shown), answer, "{text}");
    }
    let both = "SELECT set_config('a.b', 'x', false), current_setting('a.b'), set_config('a.b', 'y' || '!', false)";
    assert_eq!(value(&mut session, both), "x|x|y!");
    assert_eq!(value(&mut session, "SHOW a.b"), "y!");
    let mut answer = Answer::default();
    let text = "SELECT set_config('application_name', 'dump', false)";
    run_simple(&mut session, text, &mut answer).expect("set");
    assert_eq!(
        answer.parameters,
        [("application_name".to_string(), "dump".to_string())]
    );
}

#[test]
fn its_arguments_may_be_parameters() {
    let database = Database::new();
    let mut session = database.session();
    for n in ["1", "2"] {
        let params = [Some("a.b"), Some(n), Some("f")];
        let answer = extended(&mut session, "SELECT set_config($1, $2, $3)", &params).expect("set");
        assert_eq!(answer.lines(), [n]);
        assert_eq!(value(&mut session, "SHOW a.b"), n);
    }
    simple(&mut session, "PREPARE p AS SELECT set_config('a.b', $1, false)").expect("prepared");
    assert_eq!(value(&mut session, "EXECUTE p('three')"), "three");
    assert_eq!(value(&mut session, "SHOW a.b"), "three");
}

#[test]
fn it_follows_the_transaction_as_set_does() {
    let database = Database::new();
    let mut session = database.session();
    value(&mut session, "SELECT set_config('a.b', 'begin', false)");
    value(&mut session, "BEGIN; SELECT set_config('a.b', 'local', true)");
    assert_eq!(value(&mut session, "SHOW a.b"), "local");
    value(
        &mut session,
        "SAVEPOINT s; SELECT set_config('a.b', 'session', false); ROLLBACK TO s",
    );
    assert_eq!(value(&mut session, "SHOW a.b"), "local");
    value(&mut session, "COMMIT");
    assert_eq!(value(&mut session, "SHOW a.b"), "begin");
    value(&mut session, "BEGIN; SELECT set_config('a.b', 'lost', false); ROLLBACK");
    assert_eq!(value(&mut session, "SHOW a.b"), "begin");
    assert_eq!(value(&mut session, "SELECT set_config('a.b', 'alone', true)"), "alone");
    assert_eq!(
        value(&mut session, "SHOW a.b"),
        "begin",
        "its transaction was the statement's"
    );
    assert_eq!(
        error(&mut session, "SELECT set_config('a.b', 'failed', false), 1 / 0"),
        "22012"
    );
    assert_eq!(value(&mut session, "SHOW a.b"), "begin");
}

#[cfg(feature = "analytics")]
#[test]
fn what_it_cannot_set_is_an_error() {
    let database = Database::of_any_shape();
    let mut session = database.session();
    simple(
        &mut session,
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, '')",
    )
    .expect("a table");
    value(&mut session, "SELECT set_config('a.b', 'before', false)");
    for (text, code) in [
        ("SELECT set_config('nothing', 'a', false)", "42704"),
        ("SELECT set_config('server_version', 'a', false)", "55P02"),
        ("SELECT set_config('statement_timeout', 'a', false)", "22023"),
        ("SELECT set_config(NULL, 'a', false)", "22004"),
        ("SELECT set_config('a.b', 'a')", "42883"),
        // Refused, where PostgreSQL sets.
        ("SELECT set_config('a.b', v, false) FROM t", "0A000"),
        ("SELECT 1 FROM t WHERE set_config('a.b', v, false) = ''", "0A000"),
        ("SELECT 1 WHERE set_config('a.b', 'a', false) = 'a'", "0A000"),
        (
            "SELECT s FROM (SELECT set_config('a.b', 'a', false) AS s) AS q",
            "0A000",
        ),
        ("SELECT set_config('a.b', 'a', false) UNION ALL SELECT 'b'", "0A000"),
        ("UPDATE t SET v = set_config('a.b', 'a', false)", "0A000"),
        ("INSERT INTO t VALUES (2, set_config('a.b', 'a', false))", "0A000"),
        ("EXPLAIN ANALYZE SELECT set_config('a.b', 'a', false)", "0A000"),
        ("SELECT set_config('transaction_read_only', 'on', false)", "0A000"),
        (
            "SELECT set_config('default_transaction_isolation', 'serializable', false)",
            "0A000",
        ),
    ] {
        assert_eq!(error(&mut session, text), code, "{text}");
        assert_eq!(value(&mut session, "SHOW a.b"), "before", "{text}");
    }
}

/// A plan that is kept is not run any more once its path is turned off.
#[test]
fn paths_are_turned_off() {
    let database = Database::new();
    let mut session = database.session();
    simple(
        &mut session,
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)",
    )
    .expect("a table");
    let path = |session: &mut Session| value(session, "EXPLAIN SELECT id FROM t WHERE id = 2");
    let rows = |session: &mut Session| value(session, "SELECT id FROM t WHERE id = 2");
    assert_eq!(rows(&mut session), "2");
    assert!(path(&mut session).starts_with("Short path: point"));
    simple(&mut session, "SET enable_short_path = off").expect("a setting");
    assert_eq!(rows(&mut session), "2");
    assert!(path(&mut session).starts_with("Row executor"));
    simple(&mut session, "SET enable_row_executor = off").expect("a setting");
    assert_eq!(error(&mut session, "SELECT id FROM t WHERE id = 2"), "0A000");
    assert_eq!(error(&mut session, "SELECT count(*) FROM t, t u"), "0A000");
    simple(&mut session, "RESET enable_short_path").expect("a setting");
    assert_eq!(rows(&mut session), "2");
    assert_eq!(error(&mut session, "SET enable_short_path = 2"), "22023");
}
