//! Which plans are made: EXPLAIN says what a statement reads.

use crate::support::{Database, extended, simple};

fn explained(session: &mut cenote_sql::Session, text: &str) -> String {
    let answer = simple(session, &format!("EXPLAIN {text}")).expect("explained");
    answer.lines().join("\n")
}

/// 1,000 rows with indexes on `v` and `g`.
fn filled() -> Database {
    let database = Database::new();
    let mut session = database.session();
    for text in [
        "CREATE TABLE ten (n int PRIMARY KEY)",
        "INSERT INTO ten VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
        "CREATE TABLE big (id int PRIMARY KEY, g int, v int, note text)",
        "INSERT INTO big SELECT a.n * 100 + b.n * 10 + c.n, c.n, a.n + b.n, 'n' || b.n FROM ten a, ten b, ten c",
        "CREATE INDEX big_v ON big (v, id)",
        "CREATE INDEX big_g ON big (g)",
        "CREATE INDEX big_note ON big (note)",
    ] {
        simple(&mut session, text).expect(text);
    }
    database
}

#[test]
fn each_shape_has_its_path() {
    let database = filled();
    let mut session = database.session();
    for (text, part) in [
        (
            "SELECT * FROM big WHERE id = 5 OR id = 7",
            "list of keys by primary key big_pkey",
        ),
        (
            "SELECT * FROM big WHERE id = 5 OR g = 7",
            "union of (point by primary key big_pkey, range by index big_g)",
        ),
        (
            "SELECT * FROM big WHERE id = ANY ('{5,7}')",
            "list of keys by primary key big_pkey",
        ),
        ("SELECT * FROM big WHERE note LIKE 'n1%'", "range by index big_note"),
        ("SELECT * FROM big WHERE note LIKE '%1'", "full scan on big"),
        ("SELECT * FROM big WHERE note ILIKE 'n1%'", "full scan on big"),
        ("SELECT * FROM big WHERE v IS NULL", "range by index big_v"),
        (
            "SELECT * FROM big WHERE (v, id) > (3, 5) AND v < 4",
            "range by index big_v",
        ),
        ("SELECT * FROM big WHERE g = 3 AND id > 5 AND id < 9", "range by"),
        ("SELECT * FROM big WHERE id > 5", "range by primary key big_pkey"),
        ("SELECT * FROM big WHERE v > 5", "full scan on big"),
        (
            "SELECT max(v) FROM big",
            "first of Index Only Scan, range by index big_v on big",
        ),
        (
            "SELECT v, id FROM big WHERE v < 3",
            "Index Only Scan, range by index big_v on big",
        ),
        (
            "SELECT count(*) FROM big WHERE v = 3 AND id > 7",
            "Index Only Scan, range by index big_v on big",
        ),
        (
            "SELECT v, g FROM big WHERE v = 3",
            "Short path: range by index big_v on big",
        ),
        (
            "SELECT v FROM big WHERE v = 3 AND g < 5",
            "Short path: range by index big_v on big",
        ),
        (
            "SELECT v FROM big WHERE v = 3 FOR UPDATE",
            "Short path: range by index big_v on big",
        ),
        (
            "SELECT * FROM big ORDER BY v DESC, id LIMIT 3",
            "full scan by index big_v (rows of one v the other way round) on big",
        ),
        (
            "SELECT v FROM big WHERE v = 3 ORDER BY v, id DESC LIMIT 3",
            "Index Only Scan, range by index big_v on big",
        ),
        ("SELECT * FROM big ORDER BY v DESC, id", "Sort"),
        (
            "SELECT * FROM big ORDER BY v DESC, id % 7 LIMIT 3",
            "Rows of these keys",
        ),
        (
            "SELECT max(id), min(v) FROM big WHERE id < 9",
            "first of range by primary key big_pkey",
        ),
        (
            "SELECT id FROM big ORDER BY v DESC, g LIMIT 3",
            "Sort, in part by the index",
        ),
        ("DELETE FROM big WHERE id = 5 OR g = 7", "union of"),
    ] {
        let plan = explained(&mut session, text);
        assert!(plan.contains(part), "{text}\n{plan}");
    }
}

#[test]
fn the_first_rows_of_a_join_come_by_an_index() {
    let database = filled();
    let mut session = database.session();
    let join = "SELECT b.id, t.n FROM big b JOIN ten t ON t.n = b.g";
    for (order, sorted) in [
        ("b.id LIMIT 5", false),
        ("b.v DESC, b.id DESC LIMIT 5", false),
        ("b.v DESC, b.id LIMIT 5", false),
        ("b.v DESC NULLS LAST LIMIT 5", true),
        ("b.id", true),
        ("b.g + 1 LIMIT 5", true),
        ("b.v, t.n LIMIT 5", true),
    ] {
        let plan = explained(&mut session, &format!("{join} ORDER BY {order}"));
        assert!(plan.starts_with("Row executor"), "{plan}");
        assert_eq!(plan.contains("Sort"), sorted, "{order}\n{plan}");
    }
}

#[test]
fn a_run_is_explained_node_by_node() {
    let database = filled();
    let mut session = database.session();
    let text = "SELECT t.n, count(*) FROM ten t JOIN big b ON b.g = t.n WHERE t.n < 3 GROUP BY t.n";
    let answer = simple(&mut session, &format!("EXPLAIN (ANALYZE, MEMORY, COSTS OFF) {text}")).expect("explained");
    let plan = answer.lines();
    let line = |part: &str| {
        plan.iter()
            .find(|l| l.contains(part))
            .unwrap_or_else(|| panic!("{part}: {plan:#?}"))
    };
    assert!(line("aggregate").contains("rows=3 loops=1"), "{plan:#?}");
    assert!(line("join").contains("rows=300 loops=1"), "{plan:#?}");
    assert!(line("join").contains("(memory: "), "{plan:#?}");
    assert!(!plan.iter().any(|l| l.contains("cost=")), "{plan:#?}");
    assert!(
        plan.iter().any(|l| l.starts_with("Rows: 3; execution time")),
        "{plan:#?}"
    );

    let answer = simple(&mut session, &format!("EXPLAIN (ANALYZE, FORMAT JSON) {text}")).expect("explained");
    let json = answer.lines().join("\n");
    let begins = json.starts_with("[{\"Plan\": {\"Node Type\": \"Row executor\", \"Plans\": [{\"Node Type\": ");
    assert!(
        begins && json.contains("\"Actual Rows\": 300, \"Actual Loops\": 1"),
        "{json}"
    );
    let answer = simple(&mut session, "EXPLAIN (FORMAT JSON) UPDATE big SET v = 1 WHERE id = 5").expect("explained");
    assert!(
        answer.lines()[0].contains("\"Relation Name\": \"big\""),
        "{:?}",
        answer.lines()
    );

    for (option, state) in [
        ("ANALYSE", "42601"),
        ("COSTS maybe", "42601"),
        ("FORMAT yaml", "0A000"),
        ("FORMAT csv", "22023"),
        ("ANALYZE,", "42601"),
    ] {
        let error = simple(&mut session, &format!("EXPLAIN ({option}) {text}"))
            .err()
            .expect(option);
        assert_eq!(error.code(), state, "{option}");
    }
}

/// Drivers send EXPLAIN with the statement's parameters beside it, as PostgreSQL takes them.
#[test]
fn explain_takes_parameters() {
    let database = filled();
    let mut session = database.session();
    let mut explain = |text: &str, value| extended(&mut session, &format!("EXPLAIN {text}"), &[Some(value)]);
    let plan = explain("SELECT * FROM big WHERE id = $1", "5").expect("explained");
    assert!(plan.lines()[0].starts_with("Short path: point"), "{:?}", plan.lines());
    let join = "(ANALYZE) SELECT t.n FROM ten t JOIN big b ON b.g = t.n WHERE b.id < $1";
    let plan = explain(join, "7").expect("explained");
    assert!(
        plan.lines().iter().any(|l| l.starts_with("Rows: 7;")),
        "{:?}",
        plan.lines()
    );
    let refused = |found: cenote_sql::Result<_>| found.err().map(|e: cenote_sql::SqlError| e.code().to_string());
    let one = "SELECT * FROM big WHERE id = $1";
    assert_eq!(refused(explain(one, "x")).as_deref(), Some("22P02"));
    assert_eq!(refused(explain("SELECT 1", "x")).as_deref(), Some("08P01"));
    let bare = simple(&mut session, &format!("EXPLAIN {one}"))
        .err()
        .expect("no parameter");
    assert_eq!(bare.code(), "42P02");
}

/// A node that is never reached says so; one that is run for each row says how often.
#[test]
fn loops_of_inner_nodes_are_counted() {
    let database = filled();
    let mut session = database.session();
    let text = "SELECT b.id, (SELECT max(c.id) FROM big c WHERE c.v = b.g) FROM big b WHERE b.id < 5";
    let plan = explained(&mut session, &format!("(ANALYZE) {text}"));
    assert!(plan.contains("loops=5"), "{plan}");
    let text = "SELECT b.id FROM big b JOIN ten t ON t.n = b.v WHERE b.id = -1";
    let plan = explained(&mut session, &format!("(ANALYZE) {text}"));
    assert!(plan.contains("never executed"), "{plan}");
}

/// A semi join looks the first match up, is read once, or goes the other way round, whichever costs less.
#[test]
fn exists_is_a_join() {
    let database = filled();
    let mut session = database.session();
    for (text, parts) in [
        (
            "SELECT * FROM ten t WHERE EXISTS (SELECT 1 FROM big b WHERE b.g = t.n)",
            ["Nested loop semi join", "range by index big_g on big b"],
        ),
        (
            "SELECT * FROM ten t WHERE NOT EXISTS (SELECT 1 FROM big b WHERE b.g = t.n AND b.v > t.n)",
            ["Nested loop anti join", "range by index big_g on big b, filter"],
        ),
        (
            "SELECT * FROM big b WHERE EXISTS (SELECT 1 FROM ten t WHERE t.n + 0 = b.v + 0 AND t.n = b.g)",
            ["Hash semi join", "full scan on ten t"],
        ),
        (
            "SELECT * FROM big b WHERE NOT EXISTS (SELECT 1 FROM big c WHERE c.id + 0 = b.id AND c.note = b.note || 'x')",
            ["anti join", "range by index big_note"],
        ),
        (
            "SELECT * FROM big b WHERE b.id IN (SELECT t.n FROM ten t)",
            ["Distinct", "point by primary key big_pkey on big b"],
        ),
        (
            "SELECT * FROM big b WHERE (b.id, b.g) IN (SELECT t.n, t.n FROM ten t WHERE t.n > 5)",
            ["Distinct", "point by primary key big_pkey on big b"],
        ),
        (
            "SELECT * FROM ten a WHERE NOT EXISTS (SELECT 1 FROM ten b WHERE b.n + 1 = a.n + 0)",
            ["anti join", "Cache"],
        ),
        (
            "SELECT * FROM ten t WHERE EXISTS (SELECT count(*) FROM big b WHERE b.g = t.n)",
            ["EXISTS subquery", "Aggregate"],
        ),
        (
            "SELECT * FROM ten t WHERE t.n NOT IN (SELECT b.g FROM big b)",
            ["IN subquery, hashed, once", "full scan on big b"],
        ),
        (
            "SELECT * FROM big WHERE id = (SELECT max(n) FROM ten)",
            ["point by primary key big_pkey", "Scalar subquery, once"],
        ),
    ] {
        let plan = explained(&mut session, text);
        assert!(parts.iter().all(|part| plan.contains(part)), "{text}\n{plan}");
    }
}

#[test]
fn a_common_query_is_shown_once() {
    let database = filled();
    let mut session = database.session();
    let text = "WITH s AS (SELECT g, count(*) AS k FROM big GROUP BY g) SELECT * FROM s a JOIN s b ON a.g = b.k";
    let plan = explained(&mut session, text);
    assert_eq!(plan.matches("Rows of WITH s").count(), 2, "{plan}");
    assert_eq!(plan.matches("full scan on big").count(), 1, "{plan}");
    let plan = explained(
        &mut session,
        "WITH s AS (SELECT g FROM big WHERE id = 3) SELECT * FROM s",
    );
    assert!(!plan.contains("WITH"), "{plan}");
}

#[test]
fn a_side_that_nothing_reads_is_not_joined() {
    let database = filled();
    let mut session = database.session();
    for (text, joined) in [
        ("SELECT b.id FROM big b LEFT JOIN ten t ON t.n = b.g", false),
        (
            "SELECT count(*) FROM big b LEFT JOIN ten t ON b.g = t.n AND t.n > 3",
            false,
        ),
        ("SELECT b.id FROM ten t RIGHT JOIN big b USING (n)", false),
        ("SELECT b.id, t.n FROM big b LEFT JOIN ten t ON t.n = b.g", true),
        (
            "SELECT b.id FROM big b LEFT JOIN ten t ON t.n = b.g WHERE t.n IS NULL",
            true,
        ),
        ("SELECT b.id FROM big b LEFT JOIN ten t ON t.n > b.g", true),
        ("SELECT b.id FROM big b LEFT JOIN ten t ON t.n = t.n + b.g - b.g", true),
        (
            "SELECT b.id FROM big b LEFT JOIN ten t ON t.n = b.g LEFT JOIN big c ON c.id = t.n",
            false,
        ),
        (
            "SELECT b.id FROM big b LEFT JOIN ten t ON t.n = b.g LEFT JOIN big c ON c.g = t.n",
            true,
        ),
        ("SELECT b.id FROM big b JOIN ten t ON t.n = b.g", true),
    ] {
        let text = text.replace("USING (n)", "ON t.n = b.g");
        let plan = explained(&mut session, &text);
        assert_eq!(plan.contains("on ten"), joined, "{text}\n{plan}");
    }
}

#[test]
fn columns_that_are_equal_share_their_value() {
    let database = filled();
    let mut session = database.session();
    for text in [
        "SELECT a.v, b.v FROM big a JOIN big b ON a.id = b.id WHERE a.id = 5",
        "SELECT a.v, b.v, c.n FROM big a, big b, ten c WHERE b.id = a.id AND a.id = c.n AND c.n = 5",
        "SELECT a.v, (SELECT max(b.v + c.n) FROM big b, ten c WHERE b.id = c.n AND c.n = a.id) FROM big a WHERE a.id = 5",
    ] {
        let plan = explained(&mut session, text);
        assert!(plan.starts_with("Row executor"), "{plan}");
        assert!(!plan.contains("scan") && !plan.contains("Hash"), "{text}\n{plan}");
    }
}

/// The order of FROM does not decide: the table of which least is read comes first, and what it leads to follows.
#[test]
fn many_tables_are_joined_from_the_most_selective_one() {
    let database = filled();
    let mut session = database.session();
    for count in [3, 7, 10, 14] {
        let names: Vec<String> = (0..count).map(|n| format!("big t{n}")).collect();
        let chain: Vec<String> = (1..count).map(|n| format!("t{n}.id = t{}.id", n - 1)).collect();
        for first in [0, count / 2, count - 1] {
            let (from, chain) = (names.join(", "), chain.join(" AND "));
            let text = format!("SELECT t0.g FROM {from} WHERE {chain} AND t{first}.v = 7");
            let plan = explained(&mut session, &text);
            let scans: Vec<&str> = plan.lines().filter(|line| line.contains(" on big")).collect();
            assert_eq!(scans.len(), count, "{plan}");
            assert!(scans[0].contains(&format!("by index big_v on big t{first} ")), "{plan}");
            let points = scans.iter().filter(|line| line.contains("point by primary key"));
            assert_eq!(points.count(), count - 1, "{plan}");
        }
    }
}
