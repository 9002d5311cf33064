//! What a server answers to a statement, and where two answers differ.

use super::generate::Statement;
use super::value::{Given, Shown};
use crate::Result;
use postgres::fallible_iterator::FallibleIterator;
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

impl Answer {
    /// Whether the server has not what is asked (0A000).
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Answer::Error(code, _) if code == "0A000")
    }

    /// Whether the statement took longer than it may.
    pub fn timed_out(&self) -> bool {
        matches!(self, Answer::Error(code, _) if code == "57014")
    }
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
    /// EXPLAIN of a statement that runs gives an error.
    Explain,
}

/// A connection that is made again when its server ends it.
pub struct Connection {
    port: u16,
    database: &'static str,
    /// Statements that a new connection begins with.
    settings: &'static str,
    client: Option<Client>,
}

impl Connection {
    /// For the server at this port, as user `postgres`.
    pub fn new(port: u16, database: &'static str) -> Connection {
        Connection::with_settings(port, database, "")
    }

    /// The same, with statements that it begins with.
    pub fn with_settings(port: u16, database: &'static str, settings: &'static str) -> Connection {
        Connection {
            port,
            database,
            settings,
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
            client.batch_execute(self.settings)?;
            self.client = Some(client);
        }
        Ok(self.client.as_mut().expect("made above"))
    }

    /// Runs a statement and, if it changes a table, reads that and takes the change back.
    pub fn answer(&mut self, statement: &Statement) -> Answer {
        self.attempt(|client| run(client, statement))
    }

    /// Prepares a statement. The error is what the server answered.
    ///
    /// # Errors
    /// The answer of a server that refuses it, or is not there.
    pub fn prepare(&mut self, sql: &str) -> std::result::Result<postgres::Statement, Answer> {
        let client = self.client().map_err(|e| Answer::Lost(e.to_string()))?;
        client.prepare(sql).map_err(|e| failed(&e))
    }

    /// Runs a prepared statement with these values; a change is taken back as by [`Connection::answer`].
    pub fn execute(&mut self, prepared: &postgres::Statement, of: &Statement, values: &[Option<String>]) -> Answer {
        self.attempt(|client| {
            let Some(target) = of.target else {
                return execute(client, prepared, values).map(|done| sorted(done, of.is_ordered()));
            };
            client.batch_execute("BEGIN")?;
            let changed = execute(client, prepared, values);
            taken_back(client, target, changed)
        })
    }

    /// Runs a statement whose change stays.
    pub fn change(&mut self, sql: &str) -> Answer {
        self.attempt(|client| {
            let count = rows_of(client.simple_query(sql)?).1;
            Ok(Done {
                count,
                ..Done::default()
            })
        })
    }

    /// The first line of EXPLAIN, with these values of parameters; that analytics is below it is told.
    ///
    /// # Errors
    /// The server's answer.
    pub fn path(&mut self, sql: &str, values: &[Option<String>]) -> std::result::Result<String, Answer> {
        let prepared = self.prepare(&format!("EXPLAIN {sql}"))?;
        let explained = self.attempt(|client| execute(client, &prepared, values));
        match explained {
            Answer::Done(done) => {
                let mut lines = done.rows.into_iter().flatten().flatten();
                let first = lines.next().unwrap_or_default();
                let is_read = lines.any(|line| line.trim_start().starts_with("Analytics"));
                Ok(first + if is_read { ", read by analytics" } else { "" })
            }
            error => Err(error),
        }
    }

    fn attempt(&mut self, run: impl FnOnce(&mut Client) -> Attempt) -> Answer {
        match self.client() {
            Ok(client) => run(client).map_or_else(|e| failed(&e), Answer::Done),
            Err(error) => Answer::Lost(error.to_string()),
        }
    }
}

/// What a run gave.
type Attempt = std::result::Result<Done, postgres::Error>;

fn failed(error: &postgres::Error) -> Answer {
    match error.as_db_error() {
        Some(e) => Answer::Error(e.code().code().into(), e.message().into()),
        None => Answer::Lost(error.to_string()),
    }
}

fn columns_of(prepared: &postgres::Statement) -> Vec<(String, String)> {
    let column = |c: &postgres::Column| (c.name().to_string(), c.type_().name().to_string());
    prepared.columns().iter().map(column).collect()
}

fn run(client: &mut Client, statement: &Statement) -> Attempt {
    let sql = statement.sql();
    let columns = columns_of(&client.prepare(&sql)?);
    let done = |messages| {
        let (rows, count) = rows_of(messages);
        let after = Vec::new();
        Done {
            columns,
            rows,
            count,
            after,
        }
    };
    let Some(target) = statement.target else {
        return client
            .simple_query(&sql)
            .map(|m| sorted(done(m), statement.is_ordered()));
    };
    client.batch_execute("BEGIN")?;
    let changed = client.simple_query(&sql).map(done);
    taken_back(client, target, changed)
}

fn execute(client: &mut Client, prepared: &postgres::Statement, values: &[Option<String>]) -> Attempt {
    let given: Vec<Given<'_>> = values.iter().map(|v| Given(v.as_deref())).collect();
    let mut found = client.query_raw(prepared, given)?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let value = |at| row.try_get::<_, Shown>(at).map(|shown| shown.0);
        rows.push((0..row.len()).map(value).collect::<std::result::Result<Row, _>>()?);
    }
    Ok(Done {
        columns: columns_of(prepared),
        rows,
        count: found.rows_affected().unwrap_or(0),
        after: Vec::new(),
    })
}

/// What a change gave, with the table behind it; then the change is taken back.
fn taken_back(client: &mut Client, target: &str, changed: Attempt) -> Attempt {
    let after = match changed.is_ok() {
        true => client
            .simple_query(&format!("SELECT * FROM {target}"))
            .map(|m| rows_of(m).0),
        false => Ok(Vec::new()),
    };
    client.batch_execute("ROLLBACK")?;
    let mut done = sorted(changed?, false);
    done.after = after?;
    done.after.sort();
    Ok(done)
}

fn sorted(mut done: Done, is_ordered: bool) -> Done {
    if !is_ordered {
        done.rows.sort();
    }
    done
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

/// Whether two answers differ where PostgreSQL's column is char(n) alone: in trailing blanks, or as text.
pub fn equal_but_padding(expected: &Answer, found: &Answer) -> bool {
    let (Answer::Done(a), Answer::Done(b)) = (expected, found) else {
        return false;
    };
    let is_like = |(a, b): (&(String, String), &(String, String))| a == b || a.0 == b.0 && a.1 == "bpchar";
    let padded = a.columns.iter().any(|column| column.1 == "bpchar");
    let alike = padded && a.columns.len() == b.columns.len() && a.columns.iter().zip(&b.columns).all(is_like);
    alike && a.count == b.count && a.after == b.after && unpadded(&a.rows, &a.columns) == unpadded(&b.rows, &a.columns)
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
