//! COPY FROM STDIN: how data is cut into rows and values. What is expected here is what PostgreSQL 15 does.

use crate::support::{Answer, Database, run_simple, simple};
use cenote_sql::{Result, Session};

/// What data becomes, however it is cut into messages.
fn copied(session: &mut Session, options: &str, data: &[u8]) -> Result<Vec<String>> {
    let whole = load(session, options, data.chunks(data.len().max(1)));
    for size in [1, 2, 3] {
        let cut = load(session, options, data.chunks(size));
        assert_eq!(
            cut.as_ref().map_err(|error| error.code()),
            whole.as_ref().map_err(|error| error.code()),
            "{data:?} in messages of {size}"
        );
    }
    whole
}

fn load<'d>(session: &mut Session, options: &str, messages: impl Iterator<Item = &'d [u8]>) -> Result<Vec<String>> {
    simple(session, "DROP TABLE IF EXISTS t; CREATE TABLE t (a text, b text)")?;
    let mut answer = Answer {
        copy_input: messages.map(<[u8]>::to_vec).collect(),
        ..Answer::default()
    };
    run_simple(session, &format!("COPY t FROM STDIN {options}"), &mut answer)?;
    Ok(simple(session, "SELECT a, b FROM t")?.lines())
}

/// A line end that is escaped cut its value in two.
#[test]
fn an_escaped_line_end_is_a_part_of_its_value() {
    let database = Database::new();
    let mut session = database.session();
    let mut text = |data: &[u8]| copied(&mut session, "", data).expect("rows");
    assert_eq!(text(b"a\\\nb\tc\n"), ["a\nb|c"]);
    assert_eq!(text(b"a\\\\\tb\nc\t\\\\\\\n\n"), ["a\\|b", "c|\\\n"]);
    assert_eq!(text(b"\\\n\t\\\n\\\n\n"), ["\n|\n\n"]);
    assert_eq!(text(b"a\tb\n\\.\nc\n"), ["a|b"]);
}

/// A zero byte by its escape was taken into a text, which no client can be sent.
#[test]
fn a_zero_byte_is_no_text() {
    let database = Database::new();
    let mut session = database.session();
    for data in [&b"a\\000b\tc\n"[..], b"a\\0\tc\n", b"a\\x00\tc\n", b"a\0\tc\n"] {
        let error = copied(&mut session, "", data).expect_err("no text");
        assert_eq!(error.code(), "22021", "{data:?}: {error}");
    }
    assert_eq!(copied(&mut session, "", b"\\x41\t\\102\n").expect("rows"), ["A|B"]);
}

/// The end of the data by its mark was taken for a row in csv.
#[test]
fn the_mark_of_the_end_ends_csv_too() {
    let database = Database::new();
    let mut session = database.session();
    let mut csv = |data: &[u8]| copied(&mut session, "(FORMAT csv)", data);
    assert_eq!(csv(b"a,b\n\\.\nc\n").expect("rows"), ["a|b"]);
    assert_eq!(csv(b"\"x\n\\.\n\",b\n\\.\n").expect("rows"), ["x\n\\.\n|b"]);
    assert_eq!(csv(b"\"\\.\"\n").expect_err("one column").code(), "22P04");
}

/// `\.x` was data, and so was a mark behind a value, which ends the data. PostgreSQL 15 answers so.
#[test]
fn marks_in_lines_and_years_before_1_are_refused() {
    let database = Database::new();
    let mut session = database.session();
    let mut text = |data: &[u8]| {
        copied(&mut session, "", data)
            .map_err(|e| (e.message().to_string(), e.context().unwrap_or_default().to_string()))
    };
    let corrupt = |line: &str| Err(("end-of-copy marker corrupt".to_string(), line.to_string()));
    assert_eq!(text(b"a\tb\n\\.x\n"), corrupt("COPY t, line 2"));
    assert_eq!(text(b"a\tb\nc\\.d\te\n"), corrupt("COPY t, line 2"));
    assert_eq!(text(b"a\tb\n\\."), corrupt("COPY t, line 2"));
    assert_eq!(text(b"a\tb\nc\td\\.\nno\trow\n"), Ok(vec!["a|b".into(), "c|d".into()]));
    simple(&mut session, "CREATE TABLE times (d date, ts timestamp)").expect("made");
    for line in ["0000-01-01\t\\N\n", "\\N\t0000-12-31 00:00:00\n"] {
        let mut answer = Answer {
            copy_input: vec![line.as_bytes().to_vec()],
            ..Answer::default()
        };
        let error = run_simple(&mut session, "COPY times FROM STDIN", &mut answer).expect_err("refused");
        assert_eq!(error.code(), "22008", "{line}");
    }
}

/// A parameter that its column does not take was not told where UPDATE found no row.
#[test]
fn a_value_that_a_column_does_not_take_is_told_where_no_row_is_found() {
    let database = Database::new();
    let mut session = database.session();
    let mut run = |text: &str| simple(&mut session, text).map(drop).map_err(|e| e.code().to_string());
    run("CREATE TABLE n (i int PRIMARY KEY, b bigint)").expect("made");
    run("PREPARE p(bigint) AS UPDATE n SET i = $1 WHERE i = 1").expect("prepared");
    assert_eq!(run("EXECUTE p(3000000000)"), Err("22003".into()));
    assert_eq!(run("EXECUTE p(3)"), Ok(()));
    assert_eq!(run("UPDATE n SET i = 3000000000 WHERE i = 1"), Err("22003".into()));
    assert_eq!(run("UPDATE n SET i = b + 3000000000 WHERE i = 1"), Ok(()));
}

/// Rows are inserted together: the line of a duplicate is that row's, though later lines were read by then, and a line
/// that is no row is told before a duplicate above it.
#[test]
fn errors_of_rows_that_go_together_name_their_lines() {
    let database = Database::new();
    let mut session = database.session();
    let mut copy = |definition: &str, data: &[u8]| {
        simple(
            &mut session,
            &format!("DROP TABLE IF EXISTS p; CREATE TABLE p {definition}"),
        )
        .expect("made");
        let mut answer = Answer {
            copy_input: data.chunks(5).map(<[u8]>::to_vec).collect(),
            ..Answer::default()
        };
        let error = run_simple(&mut session, "COPY p FROM STDIN", &mut answer).expect_err("refused");
        assert_eq!(
            simple(&mut session, "SELECT * FROM p").expect("readable").lines().len(),
            0
        );
        (
            error.code().to_string(),
            error.context().unwrap_or_default().to_string(),
        )
    };
    let keyed = "(a int primary key, b int not null)";
    let told = |code: &str, context: &str| (code.to_string(), context.to_string());
    assert_eq!(
        copy(keyed, b"1\t1\n2\t2\n1\t3\n2\t4\n"),
        told("23505", "COPY p, line 3")
    );
    assert_eq!(
        copy(keyed, b"9\t1\n2\t2\n9\t3\n2\t4\n5\t5\n"),
        told("23505", "COPY p, line 3")
    );
    assert_eq!(
        copy(keyed, b"1\t1\n1\t2\nx\t3\n"),
        told("22P02", "COPY p, line 3, column a: \"x\"")
    );
    assert_eq!(
        copy("(a int, b int unique)", b"1\t1\n2\t1\n3\t1\n"),
        told("23505", "COPY p, line 2")
    );
    let long = [b"1\tx\n2\t", &b"y".repeat(3000)[..], b"\n3\tz\n"].concat();
    assert_eq!(
        copy("(a int, b text primary key)", &long),
        told("54000", "COPY p, line 2")
    );
}

/// Values in every spelling come to the same rows by the quick way and by the other (which a column list in another
/// order takes), more of them than go together, and out of order.
#[test]
fn both_ways_read_the_same_values() {
    let database = Database::new();
    let mut session = database.session();
    let columns =
        "a int primary key, n numeric(8,2), d date, s timestamp, c char(5), v varchar(6), m numeric, f float8";
    simple(
        &mut session,
        &format!("CREATE TABLE quick ({columns}); CREATE TABLE slow ({columns})"),
    )
    .expect("made");
    let spellings = [
        "1.5\t2026-11-25\t2026-11-25 22:44:19\tab\tabc\t-0.0700\t1.5",
        "1e2\t25 Nov 2026\t2026-11-25 22:44:19.25\té\t\\N\tNaN\tinf",
        " 7 \t20261125\t2026-11-25\t\\N\ta\\tb\t12345678901234567890.5\t-1e-3",
        "0.125\tinfinity\t0044-03-15 BC\tabcde\t\t0.000\t0",
    ];
    let lines = (0..2500).map(|i| format!("{}\t{}\n", (i * 7919) % 2500, spellings[i % spellings.len()]));
    let quick: Vec<String> = lines.collect();
    let mut load = |into: &str, lines: &[String]| {
        let mut answer = Answer {
            copy_input: lines.iter().map(|line| line.as_bytes().to_vec()).collect(),
            ..Answer::default()
        };
        run_simple(&mut session, &format!("COPY {into} FROM STDIN"), &mut answer).expect("copied");
    };
    load("quick", &quick);
    let swapped = |line: &String| {
        let mut fields: Vec<&str> = line.trim_end_matches('\n').split('\t').collect();
        fields.swap(0, 1);
        format!("{}\n", fields.join("\t"))
    };
    load(
        "slow (n, a, d, s, c, v, m, f)",
        &quick.iter().map(swapped).collect::<Vec<_>>(),
    );
    let mut rows = |from: &str| {
        simple(&mut session, &format!("SELECT * FROM {from} ORDER BY a"))
            .expect("readable")
            .lines()
    };
    let (quick, slow) = (rows("quick"), rows("slow"));
    assert_eq!(quick.len(), 2500);
    assert_eq!(quick, slow);
    assert_eq!(quick[0], "0|1.50|2026-11-25|2026-11-25 22:44:19|ab   |abc|-0.0700|1.5");
}
