//! A connection whose statements are counted.

use super::wire::{Client, Row, STARTING, Statement, Values};
use crate::{Error, IoContext, Result};
use postgres::{NoTls, SimpleQueryMessage};
use std::time::{Duration, Instant};

/// Connects by a URL such as `postgres://user@host:5432/database`, or by words such as `host=... user=...`. A server that
/// says that it is starting (57P03) is asked again.
///
/// # Errors
/// [`crate::Error::Sql`] if the URL cannot be read, or the server does not accept the connection.
pub fn connect(url: &str) -> Result<postgres::Client> {
    let mut config: postgres::Config = url.parse()?;
    config.connect_timeout(Duration::from_secs(10));
    let began = Instant::now();
    loop {
        match config.connect(NoTls) {
            Err(error) if error.code().is_some_and(|c| c.code() == "57P03") && began.elapsed() < STARTING => {
                std::thread::sleep(Duration::from_millis(50));
            }
            result => return Ok(result?),
        }
    }
}

/// A connection.
pub struct Session {
    client: Client,
    /// Statements that were sent.
    pub statements: u64,
}

impl Session {
    /// Of a URL.
    ///
    /// # Errors
    /// As of [`Client::connect`].
    pub fn connect(url: &str) -> Result<Session> {
        let client = Client::connect(url)?;
        Ok(Session { client, statements: 0 })
    }

    /// The client itself: what goes through it is not counted.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server.
    pub fn begin(&mut self) -> Result<Work<'_>> {
        self.statements += 1;
        self.client.batch("BEGIN")?;
        Ok(Work {
            session: self,
            is_over: false,
        })
    }

    /// Rows of a statement that is a transaction by itself.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server.
    pub fn query(&mut self, statement: &Statement, values: Values<'_>) -> Result<Vec<Row>> {
        self.statements += 1;
        self.client.query(statement, values)
    }

    /// Rows that a statement has changed, which is a transaction by itself.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server.
    pub fn execute(&mut self, statement: &Statement, values: Values<'_>) -> Result<u64> {
        self.statements += 1;
        self.client.execute(statement, values)
    }
}

/// A transaction that is under way. It is rolled back unless it is committed.
pub struct Work<'a> {
    session: &'a mut Session,
    is_over: bool,
}

impl Work<'_> {
    /// All rows.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server.
    pub fn query(&mut self, statement: &Statement, values: Values<'_>) -> Result<Vec<Row>> {
        self.session.query(statement, values)
    }

    /// The only row.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server; [`Error::Refused`] if there is not exactly one.
    pub fn row(&mut self, statement: &Statement, values: Values<'_>) -> Result<Row> {
        let row = self.row_if_any(statement, values)?;
        row.ok_or_else(|| Error::Refused("a statement of one row has found none".into()))
    }

    /// The only row, or none.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server; [`Error::Refused`] if there are more.
    pub fn row_if_any(&mut self, statement: &Statement, values: Values<'_>) -> Result<Option<Row>> {
        let mut rows = self.query(statement, values)?;
        match rows.len() {
            0 | 1 => Ok(rows.pop()),
            n => Err(Error::Refused(format!("a statement of one row has found {n}"))),
        }
    }

    /// Changed rows.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server.
    pub fn execute(&mut self, statement: &Statement, values: Values<'_>) -> Result<u64> {
        self.session.execute(statement, values)
    }

    /// Makes it durable.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server.
    pub fn commit(mut self) -> Result<()> {
        self.end("COMMIT")
    }

    /// Undoes it.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server.
    pub fn rollback(mut self) -> Result<()> {
        self.end("ROLLBACK")
    }

    fn end(&mut self, how: &str) -> Result<()> {
        self.is_over = true;
        self.session.statements += 1;
        self.session.client.batch(how)
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // A connection that is lost shows at the next statement.
            self.end("ROLLBACK").ok();
        }
    }
}

/// Names of columns, and rows.
pub type Texts = (Vec<String>, Vec<Vec<Option<String>>>);

/// The rows of a statement as texts, and the names of its columns.
///
/// # Errors
/// [`crate::Error::Sql`] of the server.
pub fn texts(client: &mut postgres::Client, sql: &str) -> Result<Texts> {
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    for message in client.simple_query(sql)? {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                names = columns.iter().map(|column| column.name().to_string()).collect();
            }
            SimpleQueryMessage::Row(row) => {
                rows.push((0..row.len()).map(|n| row.get(n).map(str::to_string)).collect());
            }
            _ => {}
        }
    }
    Ok((names, rows))
}

/// Prints how the server carries out each statement of a benchmark. `samples` are literals for `$1`, `$2`, ...
///
/// # Errors
/// [`crate::Error::Sql`] if the connection is refused. What the server says against a statement is printed.
pub fn explain<'a>(url: &str, statements: impl Iterator<Item = (String, &'a str, &'a [&'a str])>) -> Result<()> {
    use std::io::Write;
    let (mut client, mut out) = (connect(url)?, std::io::stdout());
    for (name, text, samples) in statements {
        let plan = match texts(&mut client, &format!("EXPLAIN {}", with_samples(text, samples))) {
            Ok((_, rows)) => rows.into_iter().flatten().flatten().collect::<Vec<_>>().join("\n  "),
            Err(error) => error.to_string(),
        };
        writeln!(out, "{name}: {text}\n  {plan}").context("printing")?;
    }
    Ok(())
}

/// Puts literals in the place of parameters.
fn with_samples(text: &str, samples: &[&str]) -> String {
    // From the last on: $1 is the beginning of $12.
    let put = |text: String, (n, sample): (usize, &&str)| text.replace(&format!("${}", n + 1), sample);
    samples.iter().enumerate().rev().fold(text.to_string(), put)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_literals() {
        let samples = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "'x'"];
        assert_eq!(
            with_samples("a = $1 AND b = $10 OR $2", &samples),
            "a = 1 AND b = 'x' OR 2"
        );
    }
}
