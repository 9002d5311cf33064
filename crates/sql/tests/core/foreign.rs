//! Statements whose rows another planner finds: what the engine does with its keys and values. The planner here is a
//! stand-in that answers from a list.

use crate::support::{Answer, Database, simple};
use cenote_engine::{ColumnType, Datum, Reader};
use cenote_sql::{
    Analytics, Description, Field, ForeignQuery, Formats, Result, Rows, Scope, Settings, SqlError, types,
};
use sqlparser::ast::Query;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Answers every query with the same rows, and keeps what it was asked.
#[derive(Default)]
pub struct Script {
    types: Vec<ColumnType>,
    rows: Vec<Vec<Datum>>,
    pub asked: Mutex<Vec<String>>,
    /// Whether its answers fail before their first row.
    pub fails: AtomicBool,
}

struct Answers {
    fields: Vec<Field>,
    rows: std::vec::IntoIter<Vec<Datum>>,
    current: Vec<Datum>,
    fails: bool,
}

fn fields(types: &[ColumnType]) -> Vec<Field> {
    let field = |ty: &ColumnType| Field {
        name: "x".into(),
        table_oid: 0,
        column: 0,
        type_oid: types::type_oid(*ty),
        type_len: types::type_len(*ty),
        type_mod: -1,
    };
    types.iter().map(field).collect()
}

impl Analytics for Script {
    fn describe(&self, _: &Scope, _: &Query, param_types: &[u32]) -> Result<Description> {
        Ok(Description {
            fields: fields(&self.types),
            param_types: param_types.to_vec(),
        })
    }

    fn query(&self, _: &Scope, query: &ForeignQuery, _: &[(Datum, u32)]) -> Result<Box<dyn Rows>> {
        self.asked.lock().expect("not poisoned").push(query.to_string());
        let rows = self.rows.clone().into_iter();
        Ok(Box::new(Answers {
            fields: fields(&self.types),
            rows,
            current: Vec::new(),
            fails: self.fails.load(Ordering::Relaxed),
        }))
    }

    fn explain(&self, _: &Scope, _: &Query, _: &[(Datum, u32)], _: bool) -> Result<Vec<String>> {
        Ok(vec!["  as written".into()])
    }
}

impl Rows for Answers {
    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn next(&mut self) -> Result<bool> {
        if self.fails {
            return Err(SqlError::unsupported("such a value"));
        }
        self.current = self.rows.next().unwrap_or_default();
        Ok(!self.current.is_empty())
    }

    fn encode(&self, formats: Formats<'_>, settings: &Settings, out: &mut bytes::BytesMut) -> Result<()> {
        for (i, value) in self.current.iter().enumerate() {
            types::wire::put_datum(&value.as_ref(), formats.of(i), settings.zone(), out);
        }
        Ok(())
    }

    fn datums(&self) -> Result<Vec<Datum>> {
        Ok(self.current.clone())
    }

    fn again(&mut self, _: Reader, _: &[u8]) -> Result<()> {
        Err(SqlError::unsupported("a second look"))
    }
}

pub fn with_rows(types: &[ColumnType], rows: Vec<Vec<Datum>>) -> (Database, Arc<Script>) {
    let script = Arc::new(Script {
        types: types.to_vec(),
        rows,
        ..Script::default()
    });
    (Database::with_analytics(Some(script.clone())), script)
}

const TABLE: &str =
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(5)); INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')";

#[test]
fn an_update_applies_the_values_that_were_found() {
    let rows = vec![
        vec![Datum::Int4(1), Datum::Text("x".into())],
        vec![Datum::Int4(3), Datum::Text("z".into())],
        vec![Datum::Int4(3), Datum::Text("again".into())],
        vec![Datum::Int4(9), Datum::Text("gone".into())],
    ];
    let (database, script) = with_rows(&[ColumnType::Int4, ColumnType::Text], rows);
    let mut session = database.session();
    simple(&mut session, TABLE).expect("a table");
    let update = "UPDATE t SET v = (SELECT mode() WITHIN GROUP (ORDER BY 'a')) WHERE id IN (SELECT 2) RETURNING id, v";
    // A row that is not there any more is passed over.
    let answer = simple(&mut session, update).expect("update");
    assert_eq!(
        (answer.lines().join(" "), answer.tags.join("")),
        ("1|x 3|z".into(), "UPDATE 2".into())
    );
    simple(&mut session, "INSERT INTO t VALUES (9, 'i')").expect("row 9");
    let answer = simple(&mut session, update).expect("update");
    assert_eq!(
        (answer.lines().join(" "), answer.tags.join("")),
        ("1|x 3|z 9|gone".into(), "UPDATE 3".into())
    );
    let asked = script.asked.lock().expect("not poisoned").pop().expect("asked");
    assert_eq!(
        asked,
        "SELECT t.\"id\", ((SELECT mode() WITHIN GROUP (ORDER BY 'a'))) AS \"value 0\" FROM t WHERE id IN (SELECT 2)"
    );
}

#[test]
fn values_are_fitted_to_their_columns() {
    let rows = vec![vec![Datum::Int4(1), Datum::Text("too long".into())]];
    let (database, _) = with_rows(&[ColumnType::Int4, ColumnType::Text], rows);
    let mut session = database.session();
    simple(&mut session, TABLE).expect("a table");
    let error = simple(
        &mut session,
        "UPDATE t SET v = (SELECT mode() WITHIN GROUP (ORDER BY 'a'))",
    )
    .err()
    .expect("it does not fit");
    assert_eq!(error.code(), "22001");
    let error = simple(
        &mut session,
        "INSERT INTO t SELECT mode() WITHIN GROUP (ORDER BY id), 'too long' FROM t",
    )
    .err()
    .expect("nor here");
    assert_eq!(error.code(), "22001");
}

#[test]
fn deletes_queries_and_copies_go_through_it() {
    let (database, _) = with_rows(&[ColumnType::Int4], vec![vec![Datum::Int4(1)], vec![Datum::Int4(2)]]);
    let mut session = database.session();
    simple(&mut session, TABLE).expect("a table");
    let answer = simple(&mut session, "SELECT mode() WITHIN GROUP (ORDER BY 1) UNION SELECT 2").expect("select");
    assert_eq!(
        (answer.lines().join(" "), answer.tags.join("")),
        ("1 2".into(), "SELECT 2".into())
    );
    assert_eq!(
        simple(
            &mut session,
            "COPY (SELECT mode() WITHIN GROUP (ORDER BY 1) UNION SELECT 2) TO STDOUT"
        )
        .expect("copy")
        .copied,
        "1\n2\n"
    );
    let lines = simple(
        &mut session,
        "EXPLAIN SELECT mode() WITHIN GROUP (ORDER BY 1) UNION SELECT 2",
    )
    .expect("explain")
    .lines();
    assert_eq!(lines, ["Analytics", "  as written"]);
    let answer = simple(
        &mut session,
        "DELETE FROM t USING (SELECT mode() WITHIN GROUP (ORDER BY id) AS id FROM t) AS u WHERE t.id = u.id",
    )
    .expect("delete");
    assert_eq!(answer.tags, ["DELETE 2"]);
    let mut answer = Answer::default();
    session.simple("SELECT id FROM t", &mut answer).expect("select");
    assert_eq!(answer.lines(), ["3"]);
}

#[test]
fn without_it_such_statements_are_refused() {
    let database = Database::new();
    let mut session = database.session();
    let refused = |e: Result<Answer>| -> SqlError { e.err().expect("refused") };
    assert_eq!(
        refused(simple(
            &mut session,
            "SELECT mode() WITHIN GROUP (ORDER BY 1) UNION SELECT 2"
        ))
        .code(),
        "0A000"
    );
    assert_eq!(refused(simple(&mut session, "SELECT nonsense(1)")).code(), "42883");
}
