//! COPY FROM STDIN between two messages of its client: it needs no thread meanwhile.

use super::copy_lines::{CopyField, Fields, Lines};
use super::prepared::Prepared;
use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::exec::sink::Count;
use crate::exec::write::Inserter;
use crate::exec::{Run, Scratch};
use crate::expr::{Env, Expr, Input};
use crate::parse::CopyFormat;
use crate::types::cast::{self, Context};
use crate::types::text::parse_datum;
use crate::types::wire::utf8;
use crate::watchdog::Watch;
use cenote_engine::{Datum, Table, Tx};
use std::cell::RefCell;
use std::sync::Arc;

/// COPY FROM STDIN between two messages of its client.
pub struct Copying {
    /// The rows.
    pub load: Load,
    /// The data.
    pub lines: Lines,
    /// Its `statement_timeout`.
    pub watch: Option<Watch>,
    /// The simple text whose statements go on behind it.
    pub rest: Option<RestOfText>,
}

/// Statements of a simple text that are still to run.
pub struct RestOfText {
    /// The text.
    pub text: String,
    /// All its statements.
    pub statements: Vec<Prepared>,
    /// The next of them to run.
    pub next: usize,
}

/// What rows are loaded with.
pub struct LoadTarget<'a> {
    /// The transaction.
    pub tx: &'a mut Tx,
    /// The session.
    pub env: &'a SessionEnv,
    /// Memory used again and again.
    pub scratch: &'a mut Scratch,
}

/// What lines are loaded into as rows, and how far it has come.
pub struct Load {
    pub table: Arc<Table>,
    pub filled: Vec<usize>,
    pub defaults: Vec<(usize, Expr)>,
    pub format: CopyFormat,
    pub line: u64,
    pub count: u64,
}

impl Load {
    /// Loads the lines that are whole (`last`: all).
    ///
    /// # Errors
    /// A line is no row of the table, or cannot be inserted.
    pub fn lines(&mut self, into: &mut LoadTarget<'_>, lines: &mut Lines, last: bool) -> Result<()> {
        let table = self.table.clone();
        let mut inserter = Inserter::into_table(&table, None, &[]);
        let done = self.insert_lines(into, lines, last, &mut inserter);
        self.count += inserter.count;
        done
    }

    fn insert_lines(
        &mut self,
        into: &mut LoadTarget<'_>,
        lines: &mut Lines,
        last: bool,
        inserter: &mut Inserter<'_>,
    ) -> Result<()> {
        while let Some(line) = lines.next(&self.format, last)? {
            self.line += 1;
            if self.line == 1 && self.format.header {
                if self.format.header_match {
                    self.match_header(line)?;
                }
                continue;
            }
            if line == b"\\." {
                lines.finish();
                break;
            }
            self.load(into, line, inserter)?;
        }
        Ok(())
    }

    fn load(&self, into: &mut LoadTarget<'_>, line: &[u8], inserter: &mut Inserter<'_>) -> Result<()> {
        let text = utf8(line).map_err(|e| self.placed(e, None))?;
        self.fill(into, text, inserter.values())?;
        let mut run = Run {
            tx: into.tx,
            session: into.env,
            params: &[],
            param_oids: &[],
            scratch: into.scratch,
            analytics: None,
            profile: None,
        };
        inserter.insert(&mut run, &mut Count).map_err(|e| self.placed(e, None))
    }

    /// HEADER MATCH: the first line has to name the columns.
    fn match_header(&self, line: &[u8]) -> Result<()> {
        let line = utf8(line).map_err(|e| self.placed(e, None))?;
        let mut fields = Fields::of(line, &self.format);
        let refuse = |text| Err(self.placed(SqlError::new(code::BAD_COPY_FORMAT, text), None));
        for (i, column) in self.filled.iter().enumerate() {
            let (number, name) = (i + 1, &self.table.columns[*column].name);
            match fields.next().map_err(|e| self.placed(e, None))? {
                Some(CopyField::Value(found)) if found == name => {}
                None => {
                    let text = format!(
                        "wrong number of fields in header line: got {i}, expected {}",
                        self.filled.len()
                    );
                    return refuse(text);
                }
                Some(CopyField::Null) => {
                    let text = format!(
                        "column name mismatch in header line field {number}: got null value, expected \"{name}\""
                    );
                    return refuse(text);
                }
                Some(CopyField::Value(found)) => {
                    let text = format!(
                        "column name mismatch in header line field {number}: got \"{found}\", expected \"{name}\""
                    );
                    return refuse(text);
                }
            }
        }
        match fields.rest {
            None => Ok(()),
            Some(_) => refuse(format!(
                "wrong number of fields in header line: expected {}",
                self.filled.len()
            )),
        }
    }

    fn fill(&self, into: &mut LoadTarget<'_>, line: &str, values: &mut Vec<Datum>) -> Result<()> {
        values.clear();
        values.resize(self.table.columns.len(), Datum::Null);
        let mut fields = Fields::of(line, &self.format);
        for column in &self.filled {
            let definition = &self.table.columns[*column];
            match fields.next().map_err(|e| self.placed(e, None))? {
                None => {
                    let text = format!("missing data for column \"{}\"", definition.name);
                    return Err(self.placed(SqlError::new(code::BAD_COPY_FORMAT, text), None));
                }
                Some(CopyField::Null) => {}
                Some(CopyField::Value(value)) => {
                    let cx = into.env.text_context();
                    let parsed = parse_datum(value, definition.ty, cx)
                        .and_then(|d| cast::fit(d, definition.ty, Context::Assignment));
                    values[*column] = parsed.map_err(|e| self.placed(e, Some((&definition.name, value))))?;
                }
            }
        }
        if fields.rest.is_some() {
            return Err(self.placed(
                SqlError::new(code::BAD_COPY_FORMAT, "extra data after last expected column"),
                None,
            ));
        }
        if self.defaults.is_empty() {
            return Ok(());
        }
        let cell = RefCell::new(&mut *into.tx);
        let env = Env {
            params: &[],
            input: Input::Nothing,
            outer: &[],
            session: into.env,
            sequences: Some(&cell),
            subqueries: None,
        };
        for (column, default) in &self.defaults {
            values[*column] = default.eval(&env)?;
        }
        Ok(())
    }

    /// `COPY t, line 3, column a: "x"`
    #[cold]
    fn placed(&self, error: SqlError, column: Option<(&str, &str)>) -> SqlError {
        let place = match column {
            Some((name, value)) => format!(
                "COPY {}, line {}, column {name}: \"{value}\"",
                self.table.name, self.line
            ),
            None => format!("COPY {}, line {}", self.table.name, self.line),
        };
        error.with_context(place)
    }
}
