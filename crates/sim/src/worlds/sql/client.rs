//! A client: what it sends, by the simple or the extended protocol, and the rows that come back.

use std::sync::Arc;

use cenote_sql::{Bind, Field, Format, Formats, Output, Result, Session, SessionInfo, Sql, SqlError};

use crate::check::Tag;

/// A row, as far as it was asked for; what was not is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::worlds) struct Row {
    pub id: i32,
    pub tag: Tag,
    pub prev: Tag,
    pub n: i64,
    pub k: i32,
}

/// Rows of an answer, whose columns are `id, tag, prev, n, k`.
#[derive(Default)]
struct Answer {
    rows: Vec<Row>,
    suspended: bool,
}

/// The columns of a row as text.
fn columns(bytes: &[u8]) -> Vec<i64> {
    let (mut rest, mut values) = (bytes, Vec::new());
    while let Some((len, more)) = rest.split_first_chunk() {
        let len = usize::try_from(i32::from_be_bytes(*len)).unwrap_or(0);
        let text = std::str::from_utf8(&more[..len]).unwrap_or("");
        values.push(text.parse().unwrap_or(i64::MIN));
        rest = &more[len..];
    }
    values
}

impl Output for Answer {
    fn row(&mut self, _: u16, encode: &mut dyn FnMut(&mut bytes::BytesMut) -> Result<()>) -> Result<()> {
        let mut buffer = bytes::BytesMut::new();
        encode(&mut buffer)?;
        if let [id, tag, prev, n, k] = columns(&buffer)[..] {
            self.rows.push(Row {
                id: id as i32,
                tag: tag as Tag,
                prev: prev as Tag,
                n,
                k: k as i32,
            });
        }
        Ok(())
    }

    fn portal_suspended(&mut self) -> Result<()> {
        self.suspended = true;
        Ok(())
    }

    fn row_description(&mut self, _: &[Field], _: Formats<'_>) -> Result<()> {
        Ok(())
    }

    fn complete(&mut self, _: &str) -> Result<()> {
        Ok(())
    }

    fn empty_query(&mut self) -> Result<()> {
        Ok(())
    }

    fn parameter_description(&mut self, _: &[u32]) -> Result<()> {
        Ok(())
    }

    fn no_data(&mut self) -> Result<()> {
        Ok(())
    }

    fn notice(&mut self, _: &SqlError) -> Result<()> {
        Ok(())
    }

    fn parameter_status(&mut self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn copy_out(&mut self, _: Format, _: u16) -> Result<()> {
        Ok(())
    }

    fn copy_row(&mut self, _: &mut dyn FnMut(&mut bytes::BytesMut) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn copy_done(&mut self) -> Result<()> {
        Ok(())
    }

    fn copy_in(&mut self, _: Format, _: u16) -> Result<()> {
        Ok(())
    }
}

/// A session, and how it is spoken to.
pub(in crate::worlds) struct Client {
    pub session: Session,
}

/// The tail of a Bind message: text parameters, text results.
fn bind_tail(params: &[i64]) -> Vec<u8> {
    let mut tail = vec![0, 0];
    tail.extend_from_slice(&(params.len() as u16).to_be_bytes());
    for text in params.iter().map(i64::to_string) {
        tail.extend_from_slice(&(text.len() as i32).to_be_bytes());
        tail.extend_from_slice(text.as_bytes());
    }
    tail.extend_from_slice(&[0, 0]);
    tail
}

/// The text with its parameters in their places.
fn with_literals(text: &str, params: &[i64]) -> String {
    let numbered = params.iter().enumerate().rev();
    numbered.fold(text.to_owned(), |text, (n, value)| {
        text.replace(&format!("${}", n + 1), &value.to_string())
    })
}

impl Client {
    /// # Errors
    /// SQL refuses the session.
    pub fn new(sql: &Arc<Sql>) -> Result<Self> {
        let session = sql.session(SessionInfo {
            user: "simulated".into(),
            ..SessionInfo::default()
        })?;
        Ok(Self { session })
    }

    /// One text by the simple protocol.
    ///
    /// # Errors
    /// Those of the statement.
    pub fn text(&mut self, text: &str) -> Result<Vec<Row>> {
        let mut answer = Answer::default();
        self.session.simple(text, &mut answer)?;
        Ok(answer.rows)
    }

    /// A statement with parameters, by one protocol or the other.
    ///
    /// # Errors
    /// Those of the statement.
    pub fn run(&mut self, text: &str, params: &[i64], extended: bool) -> Result<Vec<Row>> {
        if !extended {
            return self.text(&with_literals(text, params));
        }
        let mut answer = Answer::default();
        let ran = self
            .bind("", text, params)
            .and_then(|()| self.session.execute("", 0, &mut answer));
        let synced = self.session.sync();
        ran.and(synced).map(|()| answer.rows)
    }

    fn bind(&mut self, portal: &str, text: &str, params: &[i64]) -> Result<()> {
        self.session.parse("", text, &[])?;
        self.session.bind(portal, "", Bind::from_wire(&bind_tail(params))?)
    }

    /// Opens a portal, and fetches nothing yet.
    ///
    /// # Errors
    /// Those of the statement.
    pub fn open(&mut self, portal: &str, text: &str, params: &[i64]) -> Result<()> {
        let bound = self.bind(portal, text, params);
        let synced = self.session.sync();
        bound.and(synced)
    }

    /// The next rows of a portal, and whether there may be more.
    ///
    /// # Errors
    /// Those of the statement.
    pub fn fetch(&mut self, portal: &str, most: u32) -> Result<(Vec<Row>, bool)> {
        let mut answer = Answer::default();
        let fetched = self.session.execute(portal, most, &mut answer);
        let synced = self.session.sync();
        fetched.and(synced).map(|()| (answer.rows, answer.suspended))
    }
}
