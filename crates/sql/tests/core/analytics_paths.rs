//! How analytics reads tables and orders joins, through sessions: by statistics, and by an index alone.

use crate::support::{Database, simple};
use cenote_sql::Session;

fn run(session: &mut Session, text: &str) -> Vec<String> {
    simple(session, text).unwrap_or_else(|e| panic!("{text}: {e}")).lines()
}

fn with_analytics(database: &Database) -> Session {
    let mut session = database.session();
    run(&mut session, "SET enable_row_executor = off");
    session
}

/// A column of a small table that led no key was taken to have a tenth as many values as rows: TPC-H's q05 joined
/// suppliers and customers by their nation first, a million pairs.
#[test]
fn joins_are_ordered_by_the_values_that_statistics_count() {
    let database = Database::with_datafusion();
    let mut session = with_analytics(&database);
    let tables = [
        ("a", 1_000, "id % 10, 0"),
        ("b", 3_000, "id % 10, 0"),
        ("c", 60_000, "id % 3000, id % 1000"),
    ];
    for (name, rows, columns) in tables {
        run(
            &mut session,
            &format!("CREATE TABLE {name} (id int PRIMARY KEY, x int, y int)"),
        );
        let select = format!("SELECT id, {columns} FROM generate_series(0, {}) AS s (id)", rows - 1);
        run(&mut session, &format!("INSERT INTO {name} {select}"));
    }
    run(&mut session, "ANALYZE a, b, c");
    let query = "SELECT count(*) FROM a, b, c WHERE a.x = b.x AND b.id = c.x AND a.id = c.y";
    let plan = run(&mut session, &format!("EXPLAIN {query}")).join("\n");
    let first = |table: &str| plan.find(&format!("TableScan: {table}")).expect("its scan");
    assert!(first("c") < first("b"), "{plan}");
    assert_eq!(run(&mut session, query), ["60000"]);
}

/// Where an index has all columns that are read, analytics makes rows of its entries: changed ones are visited.
#[test]
fn analytics_reads_an_index_alone() {
    let database = Database::with_datafusion();
    let mut session = with_analytics(&database);
    run(&mut session, "CREATE TABLE few (k int PRIMARY KEY)");
    run(
        &mut session,
        "INSERT INTO few SELECT 7 * k FROM generate_series(0, 40) AS s (k)",
    );
    run(
        &mut session,
        "CREATE TABLE t (id int PRIMARY KEY, k int, n numeric(8,2), c text)",
    );
    run(&mut session, "CREATE INDEX t_k ON t (k, n)");
    run(
        &mut session,
        "INSERT INTO t SELECT id, id / 4, id % 9 + 0.25, 'text' FROM generate_series(0, 59999) AS s (id)",
    );
    run(&mut session, "DELETE FROM t WHERE id % 5 = 0");
    run(&mut session, "UPDATE t SET k = 70 WHERE id = 44444");
    run(&mut session, "UPDATE t SET n = NULL WHERE id = 281");
    let alone = "SELECT count(*), count(t.n), sum(t.n), min(t.id), max(t.id) FROM few JOIN t ON t.k = few.k";
    let rows = "SELECT count(c), count(t.n), sum(t.n), min(t.id), max(t.id) FROM few JOIN t ON t.k = few.k";
    let plan = run(&mut session, &format!("EXPLAIN ANALYZE {alone}")).join("\n");
    assert!(plan.contains("keys of t_k alone"), "{plan}");
    let plan = run(&mut session, &format!("EXPLAIN ANALYZE {rows}")).join("\n");
    assert!(plan.contains("keys of t_k") && !plan.contains("t_k alone"), "{plan}");
    let answer = run(&mut session, alone);
    assert_eq!(answer, run(&mut session, rows));
    let whole = alone.replace("JOIN t ON t.k = few.k", "JOIN t ON t.k + 0 = few.k");
    assert_eq!(answer, run(&mut session, &whole), "by a scan of the table");
    assert_eq!(
        run(
            &mut session,
            "SELECT count(*), min(id) FROM t WHERE k BETWEEN 70 AND 71"
        ),
        run(
            &mut session,
            "SELECT count(c), min(id) FROM t WHERE k BETWEEN 70 AND 71"
        ),
    );
}
