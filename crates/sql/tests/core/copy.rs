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
