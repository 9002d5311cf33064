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
