//! What a server answers to a statement, and where two answers differ.

use super::generate::Statement;
use crate::Result;
use postgres::{Client, NoTls, SimpleQueryMessage};
use std::fmt::{self, Display, Formatter};

/// A row's values as text; None: NULL.
pub type Row = Vec<Option<String>>;

/// Rows of an answer that are shown.
const ROWS_SHOWN: usize = 12;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The statement ran.
    Done(Done),
    /// The SQLSTATE of its error, and the message.
    Error(String, String),
    /// The server did not answer.
    Lost(String),
}

/// What a statement gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Names and types of the columns.
    pub columns: Vec<(String, String)>,
    /// Rows, sorted where their order is free.
    pub rows: Vec<Row>,
    /// Rows that it gave or changed.
    pub count: u64,
    /// The changed table's rows, sorted.
    pub after: Vec<Row>,
}

/// Where two answers differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Other names or types of columns.
    Columns,
    /// Other rows.
    Rows,
    /// Other rows in the table that was changed.
    After,
    /// SQLSTATEs; None: the statement ran.
    Codes(Option<String>, Option<String>),
    /// A server that did not answer.
    Lost,
}

/// A connection that is made again when its server ends it.
pub struct Connection {
    port: u16,
    database: &'static str,
    client: Option<Client>,
}

impl Connection {
    /// For the server at this port, as user `postgres`.
    pub fn new(port: u16, database: &'static str) -> Connection {
        Connection {
            port,
            database,
            client: None,
        }
    }

    /// The client, connected.
    ///
    /// # Errors
    /// [`crate::Error::Sql`] if the server does not take it.
    pub fn client(&mut self) -> Result<&mut Client> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let url = format!(
                "host=127.0.0.1 port={} user=postgres dbname={}",
                self.port, self.database
            );
            let mut client = Client::connect(&url, NoTls)?;
            client.batch_execute("SET statement_timeout = '10s'")?;
            self.client = Some(client);
        }
        Ok(self.client.as_mut().expect("made above"))
    }

    /// Runs a statement and, if it changes a table, reads that and takes the change back.
    pub fn answer(&mut self, statement: &Statement) -> Answer {
        let answer = match self.client() {
            Ok(client) => run(client, statement),
            Err(error) => return Answer::Lost(error.to_string()),
        };
        answer.unwrap_or_else(|error| match error.as_db_error() {
            Some(e) => Answer::Error(e.code().code().into(), e.message().into()),
            None => Answer::Lost(error.to_string()),
        })
    }

    /// The first line of EXPLAIN; empty if there is none.
    pub fn path(&mut self, statement: &Statement) -> String {
        let explain = format!("EXPLAIN {}", statement.sql());
        let messages = self.client().ok().and_then(|client| client.simple_query(&explain).ok());
        let first = rows_of(messages.unwrap_or_default()).0.into_iter().next();
        first
            .and_then(|row| row.into_iter().next().flatten())
            .unwrap_or_default()
    }
}

fn run(client: &mut Client, statement: &Statement) -> std::result::Result<Answer, postgres::Error> {
    let sql = statement.sql();
    let prepared = client.prepare(&sql)?;
    let column = |c: &postgres::Column| (c.name().to_string(), c.type_().name().to_string());
    let columns = prepared.columns().iter().map(column).collect();
    let Some(target) = statement.target else {
        let (mut rows, count) = rows_of(client.simple_query(&sql)?);
        if !statement.is_ordered() {
            rows.sort();
        }
        let after = Vec::new();
        return Ok(Answer::Done(Done {
            columns,
            rows,
            count,
            after,
        }));
    };
    client.batch_execute("BEGIN")?;
    let changed = client.simple_query(&sql);
    let after = match changed.is_ok() {
        true => client
            .simple_query(&format!("SELECT * FROM {target}"))
            .map(|m| rows_of(m).0),
        false => Ok(Vec::new()),
    };
    client.batch_execute("ROLLBACK")?;
    let ((mut rows, count), mut after) = (rows_of(changed?), after?);
    rows.sort();
    after.sort();
    Ok(Answer::Done(Done {
        columns,
        rows,
        count,
        after,
    }))
}

fn rows_of(messages: Vec<SimpleQueryMessage>) -> (Vec<Row>, u64) {
    let (mut rows, mut count) = (Vec::new(), 0);
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => rows.push((0..row.len()).map(|at| row.get(at).map(String::from)).collect()),
            SimpleQueryMessage::CommandComplete(n) => count = n,
            _ => {}
        }
    }
    (rows, count)
}

/// Where `found` differs from `expected`.
pub fn difference(expected: &Answer, found: &Answer) -> Option<Difference> {
    let code = |answer: &Answer| match answer {
        Answer::Error(code, _) => Some(code.clone()),
        _ => None,
    };
    match (expected, found) {
        (Answer::Lost(_), _) | (_, Answer::Lost(_)) => Some(Difference::Lost),
        (Answer::Done(a), Answer::Done(b)) if a.rows != b.rows || a.count != b.count => Some(Difference::Rows),
        (Answer::Done(a), Answer::Done(b)) if a.after != b.after => Some(Difference::After),
        (Answer::Done(a), Answer::Done(b)) => (a.columns != b.columns).then_some(Difference::Columns),
        _ if code(expected) == code(found) => None,
        _ => Some(Difference::Codes(code(expected), code(found))),
    }
}

/// Whether two answers differ in trailing blanks alone, where PostgreSQL's column is char(n).
pub fn equal_but_padding(expected: &Answer, found: &Answer) -> bool {
    let (Answer::Done(a), Answer::Done(b)) = (expected, found) else {
        return false;
    };
    a.count == b.count && a.after == b.after && unpadded(&a.rows, &a.columns) == unpadded(&b.rows, &a.columns)
}

/// The rows with char(n) as `columns` have it without trailing blanks, sorted.
fn unpadded(rows: &[Row], columns: &[(String, String)]) -> Vec<Row> {
    let value = |(at, value): (usize, &Option<String>)| match columns.get(at) {
        Some((_, ty)) if ty == "bpchar" => value.as_ref().map(|v| v.trim_end_matches(' ').to_string()),
        _ => value.clone(),
    };
    let mut rows: Vec<Row> = rows
        .iter()
        .map(|row| row.iter().enumerate().map(value).collect())
        .collect();
    rows.sort();
    rows
}

impl Display for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done(done) => done.fmt(f),
            Answer::Error(code, message) => write!(f, "    error {code}: {message}"),
            Answer::Lost(what) => write!(f, "    no answer: {what}"),
        }
    }
}

impl Display for Done {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let columns: Vec<String> = self.columns.iter().map(|(name, ty)| format!("{name} {ty}")).collect();
        write!(f, "    {} rows of ({})", self.count, columns.join(", "))?;
        show(&self.rows, f)?;
        if !self.after.is_empty() {
            write!(f, "\n    the table after it:")?;
            show(&self.after, f)?;
        }
        Ok(())
    }
}

fn show(rows: &[Row], f: &mut Formatter<'_>) -> fmt::Result {
    for row in rows.iter().take(ROWS_SHOWN) {
        let values: Vec<&str> = row.iter().map(|v| v.as_deref().unwrap_or("NULL")).collect();
        write!(f, "\n    {}", values.join(" | "))?;
    }
    if rows.len() > ROWS_SHOWN {
        write!(f, "\n    ... {} rows in all", rows.len())?;
    }
    Ok(())
}
