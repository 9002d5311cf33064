//! COPY FROM STDIN between two messages of its client: it needs no thread meanwhile.

use super::copy_lines::{CopyField, Fields, Lines, check_marker};
use super::copy_row;
use super::prepared::Prepared;
use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::exec::Scratch;
use crate::exec::together::Together;
use crate::exec::write::check_not_null;
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

/// What lines are loaded into as rows, and how far it has come. Rows are gathered and inserted together, from one
/// message of the client to the next: so an error may be told some lines late, but names its line.
pub struct Load {
    table: Arc<Table>,
    filled: Vec<usize>,
    defaults: Vec<(usize, Expr)>,
    format: CopyFormat,
    line: u64,
    /// Rows inserted.
    pub count: u64,
    rows: Together,
    /// The lines of the rows that are gathered.
    lines: Vec<u64>,
    values: Vec<Datum>,
}

impl Load {
    /// Of lines with these columns; the others get their defaults.
    pub fn new(table: Arc<Table>, filled: Vec<usize>, defaults: Vec<(usize, Expr)>, format: CopyFormat) -> Load {
        Load {
            table,
            filled,
            defaults,
            format,
            line: 0,
            count: 0,
            rows: Together::default(),
            lines: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Loads the lines that are whole (`last`: all, and no more come).
    ///
    /// # Errors
    /// A line is no row of the table, or cannot be inserted.
    pub fn lines(&mut self, into: &mut LoadTarget<'_>, lines: &mut Lines, last: bool) -> Result<()> {
        while let Some(line) = lines
            .next(&self.format, last)
            .map_err(|e| self.placed_at(self.line + 1, e))?
        {
            self.line += 1;
            if self.line == 1 && self.format.header {
                if self.format.header_match {
                    self.match_header(line)?;
                }
                continue;
            }
            self.load(into, line)?;
        }
        match last {
            true => self.insert(into),
            false => Ok(()),
        }
    }

    fn load(&mut self, into: &mut LoadTarget<'_>, line: &[u8]) -> Result<()> {
        let mut row = std::mem::take(&mut into.scratch.new_row);
        let made = self.make_row(into, line, &mut row);
        let is_full = made.map(|()| self.rows.add(&row));
        into.scratch.new_row = row;
        let is_full = is_full?;
        self.lines.push(self.line);
        match is_full {
            true => self.insert(into),
            false => Ok(()),
        }
    }

    /// The row of a line.
    fn make_row(&mut self, into: &mut LoadTarget<'_>, line: &[u8], row: &mut Vec<u8>) -> Result<()> {
        let text = utf8(line).map_err(|e| self.placed(e, None))?;
        // The columns of the table, in their order.
        let is_whole = self.defaults.is_empty() && self.filled.is_sorted();
        if is_whole {
            let made = copy_row::encode(&self.table, text, &self.format, into.env.text_context(), row);
            if made.map_err(|e| self.placed(e, None))? {
                return Ok(());
            }
        }
        if !self.format.csv {
            check_marker(line).map_err(|e| self.placed(e, None))?;
        }
        let mut values = std::mem::take(&mut self.values);
        let made = self.fill(into, text, &mut values).and_then(|()| {
            let checked = check_not_null(&self.table, &values, into.env);
            let encoded = checked.and_then(|()| Ok(self.table.layout().encode(&values, row)?));
            encoded.map_err(|e| self.placed(e, None))
        });
        self.values = values;
        made
    }

    /// Inserts the rows that were gathered.
    fn insert(&mut self, into: &mut LoadTarget<'_>) -> Result<()> {
        into.env.check_cancel().map_err(|e| self.placed(e, None))?;
        let inserted = self.rows.insert(into.tx, &self.table);
        let lines = std::mem::take(&mut self.lines);
        match inserted {
            Ok(count) => self.count += count,
            Err(failed) => {
                self.line = lines.get(failed.row).copied().unwrap_or(self.line);
                return Err(self.placed(failed.error, None));
            }
        }
        self.lines = lines;
        self.lines.clear();
        Ok(())
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
        match column {
            Some((name, value)) => error.with_context(format!(
                "COPY {}, line {}, column {name}: \"{value}\"",
                self.table.name, self.line
            )),
            None => self.placed_at(self.line, error),
        }
    }

    #[cold]
    fn placed_at(&self, line: u64, error: SqlError) -> SqlError {
        error.with_context(format!("COPY {}, line {line}", self.table.name))
    }
}
