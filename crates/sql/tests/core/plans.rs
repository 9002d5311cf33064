//! Which plans are made: EXPLAIN says what a statement reads.

use crate::support::{Database, simple};

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
        ("SELECT max(v) FROM big", "first of range by index big_v"),
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
        ("b.v DESC, b.id LIMIT 5", true),
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
