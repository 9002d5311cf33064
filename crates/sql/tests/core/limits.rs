//! Limits that PostgreSQL has too.

use crate::support::{Database, simple};

fn columns(count: usize, of: impl Fn(usize) -> String) -> String {
    (1..=count).map(of).collect::<Vec<_>>().join(", ")
}

/// 50 columns of 100 characters were refused as a row that is too big.
#[test]
fn a_table_has_1600_columns_of_any_length() {
    let database = Database::new();
    let mut session = database.session();
    let create = |count| format!("CREATE TABLE w ({})", columns(count, |i| format!("c{i} text")));
    let error = simple(&mut session, &create(1601)).err().expect("too many");
    assert_eq!(
        (error.code(), error.message()),
        ("54011", "tables can have at most 1600 columns")
    );
    simple(&mut session, &create(1600)).expect("a table");
    let insert = |text: &str| format!("INSERT INTO w VALUES ({})", columns(1600, |_| format!("'{text}'")));
    simple(&mut session, &insert(&"x".repeat(100))).expect("a long row");
    simple(&mut session, "INSERT INTO w DEFAULT VALUES").expect("a row of NULLs");
    simple(&mut session, "UPDATE w SET c800 = 'middle', c1600 = repeat('y', 5000)").expect("both");
    let answer = simple(&mut session, "SELECT c1, c800, length(c1600) FROM w").expect("rows");
    assert_eq!(
        answer.lines(),
        [format!("{}|middle|5000", "x".repeat(100)), "NULL|middle|5000".into()]
    );
    let answer = simple(&mut session, "SELECT * FROM w LIMIT 1").expect("all columns");
    assert_eq!(answer.rows[0].len(), 1600);
    let results = columns(1665, |i| i.to_string());
    let error = simple(&mut session, &format!("SELECT {results}"))
        .err()
        .expect("too many");
    assert_eq!(error.code(), "54011", "{error}");
}

/// An update of an int beside a large value wrote the value again. Whatever its form, a statement that does not name
/// the value neither reads nor writes it.
#[cfg(feature = "analytics")]
#[test]
fn an_update_does_not_write_the_large_value_beside_it() {
    let database = Database::with_datafusion();
    let mut session = database.session();
    let create = "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, m int, c text); CREATE INDEX ON t (m);
        INSERT INTO t SELECT i, i, i, repeat('x', 4000000) FROM generate_series(1, 2) i";
    simple(&mut session, create).expect("two rows");
    let tail = || database.sql.engine().buffer().storage().log().tail().raw();
    for update in [
        "UPDATE t SET n = n + 1 WHERE id = 1",
        "UPDATE t SET n = n + 1 WHERE n > 0 RETURNING id, n",
        "UPDATE t SET n = n + 1, m = 7 WHERE m = 1",
        "UPDATE t SET n = t.n + v.i FROM (VALUES (1)) v(i) WHERE t.id = v.i",
        "INSERT INTO t VALUES (1, 0, 0, 'y') ON CONFLICT (id) DO UPDATE SET n = t.n + 1",
        "DELETE FROM t WHERE id = 2",
    ] {
        let before = tail();
        simple(&mut session, update).expect(update);
        // The checkpointer and purge write, too.
        let written = tail() - before;
        assert!(written < 1_000_000, "{update}: {written} bytes of redo");
    }
    let error = simple(&mut session, "UPDATE t SET n = NULL WHERE id = 1")
        .err()
        .expect("refused");
    assert_eq!(error.code(), "23502");
    let answer = simple(
        &mut session,
        "SELECT id, n, m, length(c), c = repeat('x', 4000000) FROM t",
    )
    .expect("rows");
    assert_eq!(answer.lines(), ["1|6|7|4000000|t"]);
    simple(&mut session, "UPDATE t SET c = c || 'z' RETURNING length(c)").expect("another value");
    let answer = simple(&mut session, "SELECT length(c) FROM t").expect("rows");
    assert_eq!(answer.lines(), ["4000001"]);
}
