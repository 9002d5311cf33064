//! COPY FROM STDIN and COPY TO STDOUT, text and csv.
//!
//! COPY FROM STDIN is a state of its session ([`Copying`]), not a call that waits: between two messages of its client
//! it needs no thread.
//!
//! ```text
//!   statement ──► copying ◄──► copy_data, copy_look
//!                    ├── copy_done ──► the rest of the text's statements
//!                    └── an error, fail ──► its transaction fails
//! ```
//!
//! Text: a line a row, columns between delimiters, NULL as a word, backslash escapes (of line ends, too). Csv: values
//! in quotes may hold delimiters, line ends and (escaped) quotes; an unquoted NULL word is NULL. A line of `\.` is the
//! end.

use super::Session;
use super::planning::Prepared;
use super::run::run_plan;
use super::watchdog::Watch;
use crate::error::{Result, SqlError, code};
use crate::exec::Run;
use crate::exec::select::Cursor;
use crate::exec::sink::{Count, Sink};
use crate::exec::write::Inserter;
use crate::expr::bind::Params;
use crate::expr::{Env, Expr, Input};
use crate::hook::Rows;
use crate::names::fold;
use crate::output::{Format, Output};
use crate::parse::{Copy, CopyFormat, CopySource, Statement};
use crate::plan::{Planned, Planner};
use crate::settings::Settings;
use crate::types::cast::{self, Context};
use crate::types::text::{parse_datum, write_datum};
use bytes::{BufMut, BytesMut};
use cenote_engine::{Charge, Datum, DatumRef, Table};
use sqlparser::ast::{Ident, ObjectName};
use std::sync::Arc;

/// Longest line of COPY data, in bytes.
const MAX_LINE: usize = 1 << 30;
/// Bytes of a buffer that a COPY keeps between two messages.
const BUFFER_BYTES_KEPT: usize = 64 << 10;

/// Carries out COPY.
pub fn run(session: &mut Session, copy: &Copy, text: &str, out: &mut dyn Output) -> Result<()> {
    match (&copy.source, copy.from) {
        (CopySource::Table(name, columns), true) => {
            session.refuse_read_only("COPY FROM")?;
            copy_in(session, name, columns, &copy.format, text, out)
        }
        (CopySource::Table(name, columns), false) => {
            let list = if columns.is_empty() {
                "*".to_string()
            } else {
                columns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            let (table, _) = target(session, name, columns, text)?;
            drop(table);
            let query = crate::parse::parse_query(&format!("SELECT {list} FROM {name}"))?;
            copy_out(session, &Statement::Query(Box::new(query)), &copy.format, text, out)
        }
        (CopySource::Query(query), _) => copy_out(session, &Statement::Query(query.clone()), &copy.format, text, out),
    }
}

/// The table and the columns that a line fills, in its order.
fn target(session: &Session, name: &ObjectName, columns: &[Ident], text: &str) -> Result<(Arc<Table>, Vec<usize>)> {
    let params = Params::default();
    let planner = Planner {
        tx: &session.tx,
        session: &session.env,
        text,
        params: &params,
        analytics: false,
    };
    let table = planner.table(name).map_err(SqlError::from)?;
    let mut filled = Vec::new();
    for ident in columns {
        let name = fold(ident);
        let missing = || {
            let text = format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
            SqlError::new(code::UNDEFINED_COLUMN, text).at(planner.places().of(ident.span))
        };
        let at = table.column_named(&name).ok_or_else(missing)?;
        if filled.contains(&at) {
            return Err(SqlError::new(
                code::DUPLICATE_COLUMN,
                format!("column \"{name}\" specified more than once"),
            ));
        }
        filled.push(at);
    }
    if columns.is_empty() {
        filled = (0..table.columns.len()).collect();
    }
    Ok((table, filled))
}

fn copy_in(
    session: &mut Session,
    name: &ObjectName,
    columns: &[Ident],
    format: &CopyFormat,
    text: &str,
    out: &mut dyn Output,
) -> Result<()> {
    let (table, filled) = target(session, name, columns, text)?;
    let defaults = defaults(session, &table, &filled)?;
    out.copy_in(Format::Text, filled.len() as u16)?;
    session.copying = Some(Box::new(Copying {
        load: Load {
            table,
            filled,
            defaults,
            format: format.clone(),
            line: 0,
            count: 0,
        },
        lines: Lines::new(Charge::new(&session.env.memory)),
        watch: None,
        rest: None,
    }));
    Ok(())
}

/// COPY FROM STDIN between two messages of its client.
pub struct Copying {
    load: Load,
    lines: Lines,
    /// Its `statement_timeout`.
    watch: Option<Watch>,
    /// A simple text whose statements go on behind it: the text, its statements, the next of them.
    pub rest: Option<(String, Vec<Prepared>, usize)>,
}

/// What lines are loaded into as rows, and how far it has come.
struct Load {
    table: Arc<Table>,
    filled: Vec<usize>,
    defaults: Vec<(usize, Expr)>,
    format: CopyFormat,
    line: u64,
    count: u64,
}

impl Session {
    /// Whether the last statement waits for COPY data: `copy_data` and `copy_done` go on with it,
    /// [`fail`](Session::fail) ends it, and nothing else is to be called meanwhile.
    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Data of a COPY FROM STDIN.
    ///
    /// # Errors
    /// A line is no row of the table, or cannot be inserted; the statement was cancelled, or its time is up. The COPY
    /// has failed.
    pub fn copy_data(&mut self, data: &[u8]) -> Result<()> {
        let Some(mut copying) = self.copying.take() else {
            return Ok(());
        };
        match self.feed(&mut copying, data, false) {
            Ok(()) => {
                self.copying = Some(copying);
                Ok(())
            }
            failed => {
                let failed = self.unwatch(copying.watch.take(), failed);
                failed.map_err(|error| self.failed(error))
            }
        }
    }

    /// The client of a COPY says nothing: whether it is to wait on.
    ///
    /// # Errors
    /// As [`copy_data`](Self::copy_data).
    pub fn copy_look(&mut self) -> Result<()> {
        match self.env.check_cancel() {
            Ok(()) => Ok(()),
            Err(_) => self.copy_data(&[]),
        }
    }

    /// The data is at its end; the statements behind the COPY in its text follow.
    ///
    /// # Errors
    /// As [`copy_data`](Self::copy_data), and what the statements behind it fail with.
    pub fn copy_done(&mut self, out: &mut dyn Output) -> Result<()> {
        let Some(mut copying) = self.copying.take() else {
            return Ok(());
        };
        let done = self.feed(&mut copying, &[], true);
        let done = done.and_then(|()| out.complete(&format!("COPY {}", copying.load.count)));
        match (self.unwatch(copying.watch.take(), done), copying.rest) {
            (Ok(()), Some((text, statements, next))) => self.simple_from(&text, statements, next, out),
            (done, _) => done.map_err(|error| self.failed(error)),
        }
    }

    fn feed(&mut self, copying: &mut Copying, data: &[u8], last: bool) -> Result<()> {
        self.env.check_cancel()?;
        self.heed();
        copying.lines.push(data);
        let done = copying.load.lines(self, &mut copying.lines, last);
        self.sql.engine().heed_nothing();
        done.and_then(|()| copying.lines.compact())
    }

    /// As `unwatch`; the clock of a COPY that waits for its client runs on.
    pub(super) fn unwatch_unless_copying(&mut self, watch: Option<Watch>, done: Result<()>) -> Result<()> {
        match &mut self.copying {
            Some(copying) if done.is_ok() => {
                copying.watch = watch;
                self.sql.engine().heed_nothing();
                Ok(())
            }
            _ => self.unwatch(watch, done),
        }
    }
}

/// DEFAULTs of the columns that the lines do not fill.
fn defaults(session: &Session, table: &Arc<Table>, filled: &[usize]) -> Result<Vec<(usize, Expr)>> {
    let params = Params::default();
    let planner = Planner {
        tx: &session.tx,
        session: &session.env,
        text: "",
        params: &params,
        analytics: false,
    };
    let sequence = |name: &str| planner.sequence(name);
    let binder = planner.binder(None, &sequence);
    let missing = (0..table.columns.len()).filter(|c| !filled.contains(c));
    missing
        .map(|c| {
            planner
                .default(&binder, table, c)
                .map(|e| (c, e))
                .map_err(SqlError::from)
        })
        .collect()
}

impl Load {
    /// Loads the lines that are whole (`last`: all).
    fn lines(&mut self, session: &mut Session, lines: &mut Lines, last: bool) -> Result<()> {
        let table = self.table.clone();
        let mut inserter = Inserter::into_table(&table, None, &[]);
        let done = self.insert_lines(session, lines, last, &mut inserter);
        self.count += inserter.count;
        done
    }

    fn insert_lines(
        &mut self,
        session: &mut Session,
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
            self.load(session, line, inserter)?;
        }
        Ok(())
    }

    fn load(&self, session: &mut Session, line: &[u8], inserter: &mut Inserter<'_>) -> Result<()> {
        let text = crate::types::wire::utf8(line).map_err(|e| self.placed(e, None))?;
        self.fill(session, text, inserter.values())?;
        let mut run = Run {
            tx: &mut session.tx,
            session: &session.env,
            params: &[],
            param_oids: &[],
            scratch: &mut session.scratch,
            analytics: None,
        };
        inserter.insert(&mut run, &mut Count).map_err(|e| self.placed(e, None))
    }

    /// HEADER MATCH: the first line has to name the columns.
    fn match_header(&self, line: &[u8]) -> Result<()> {
        let line = crate::types::wire::utf8(line).map_err(|e| self.placed(e, None))?;
        let mut fields = Fields {
            rest: Some(line),
            format: &self.format,
            scratch: String::new(),
        };
        let refuse = |text| Err(self.placed(SqlError::new(code::BAD_COPY_FORMAT, text), None));
        for (i, column) in self.filled.iter().enumerate() {
            let (number, name) = (i + 1, &self.table.columns[*column].name);
            match fields.next().map_err(|e| self.placed(e, None))? {
                Some(Field::Value(found)) if found == name => {}
                None => {
                    let text = format!(
                        "wrong number of fields in header line: got {i}, expected {}",
                        self.filled.len()
                    );
                    return refuse(text);
                }
                Some(Field::Null) => {
                    let text = format!(
                        "column name mismatch in header line field {number}: got null value, expected \"{name}\""
                    );
                    return refuse(text);
                }
                Some(Field::Value(found)) => {
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

    fn fill(&self, session: &mut Session, line: &str, values: &mut Vec<Datum>) -> Result<()> {
        values.clear();
        values.resize(self.table.columns.len(), Datum::Null);
        let mut fields = Fields {
            rest: Some(line),
            format: &self.format,
            scratch: String::new(),
        };
        for column in &self.filled {
            let definition = &self.table.columns[*column];
            match fields.next().map_err(|e| self.placed(e, None))? {
                None => {
                    let text = format!("missing data for column \"{}\"", definition.name);
                    return Err(self.placed(SqlError::new(code::BAD_COPY_FORMAT, text), None));
                }
                Some(Field::Null) => {}
                Some(Field::Value(value)) => {
                    let cx = session.env.text_context();
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
        let cell = std::cell::RefCell::new(&mut session.tx);
        let env = Env {
            params: &[],
            input: Input::Nothing,
            session: &session.env,
            sequences: Some(&cell),
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

/// Lines in the data received so far.
struct Lines {
    buffer: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    /// Up to where its end was looked for, and whether quotes are open there, or the next byte is escaped.
    searched: usize,
    quoted: bool,
    escaped: bool,
    finished: bool,
    memory: Charge,
}

impl Lines {
    fn new(memory: Charge) -> Lines {
        Lines {
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            quoted: false,
            escaped: false,
            finished: false,
            memory,
        }
    }

    fn push(&mut self, data: &[u8]) {
        if !self.finished {
            self.buffer.extend_from_slice(data);
        }
    }

    /// The next line that is whole (`last`: what is left is one), without its end.
    fn next(&mut self, format: &CopyFormat, last: bool) -> Result<Option<&[u8]>> {
        let whole = self.buffer.len();
        if self.finished || self.at == whole {
            return Ok(None);
        }
        let found = match format.csv {
            true => self.csv_end(format),
            false => self.text_end(),
        };
        let (end, next) = match found {
            Some(end) => (end, end + 1),
            None if last => (whole, whole),
            None if whole - self.at > MAX_LINE => {
                return Err(SqlError::new(code::PROGRAM_LIMIT, "a line of COPY data is too long"));
            }
            None => {
                self.searched = whole;
                return Ok(None);
            }
        };
        let start = std::mem::replace(&mut self.at, next);
        (self.searched, self.quoted, self.escaped) = (next, false, false);
        let line = &self.buffer[start..end];
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The first line end before which no backslash makes it a part of a value.
    fn text_end(&self) -> Option<usize> {
        let mut from = self.searched;
        loop {
            let end = from + memchr(&self.buffer[from..])?;
            let before = self.buffer[self.at..end].iter().rev();
            if before.take_while(|byte| **byte == b'\\').count() % 2 == 0 {
                return Some(end);
            }
            from = end + 1;
        }
    }

    /// The first line end outside quotes.
    fn csv_end(&mut self, format: &CopyFormat) -> Option<usize> {
        for at in self.searched..self.buffer.len() {
            let byte = self.buffer[at];
            if std::mem::take(&mut self.escaped) {
                continue;
            }
            if self.quoted && byte == format.escape && format.escape != format.quote {
                self.escaped = true;
            } else if byte == format.quote {
                self.quoted = !self.quoted;
            } else if byte == b'\n' && !self.quoted {
                return Some(at);
            }
        }
        None
    }

    /// Ignores what still comes.
    fn finish(&mut self) {
        self.finished = true;
    }

    /// Gives back what was read, and accounts for what was not: the beginning of a line.
    fn compact(&mut self) -> Result<()> {
        if self.finished {
            self.at = self.buffer.len();
        }
        self.buffer.drain(..self.at);
        self.searched = self.searched.saturating_sub(self.at);
        self.at = 0;
        self.memory.clear();
        if self.buffer.is_empty() {
            self.buffer.shrink_to(BUFFER_BYTES_KEPT);
            return Ok(());
        }
        Ok(self.memory.grow(self.buffer.capacity())?)
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|b| *b == b'\n')
}

enum Field<'a> {
    Null,
    Value(&'a str),
}

/// Columns of a line.
struct Fields<'a> {
    rest: Option<&'a str>,
    format: &'a CopyFormat,
    scratch: String,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<Field<'_>>> {
        let Some(rest) = self.rest else { return Ok(None) };
        if self.format.csv {
            self.next_csv(rest).map(Some)
        } else {
            self.next_text(rest).map(Some)
        }
    }

    fn next_text(&mut self, rest: &'a str) -> Result<Field<'_>> {
        let bytes = rest.as_bytes();
        let mut end = 0;
        let mut escaped = false;
        while end < bytes.len() && bytes[end] != self.format.delimiter {
            if bytes[end] == b'\\' {
                escaped = true;
                end += 1;
            }
            end += 1;
        }
        let end = end.min(bytes.len());
        let raw = &rest[..end];
        self.rest = (end < bytes.len()).then(|| &rest[end + 1..]);
        if raw == self.format.null {
            return Ok(Field::Null);
        }
        if !escaped {
            return Ok(Field::Value(raw));
        }
        self.scratch = unescape(raw)?;
        Ok(Field::Value(&self.scratch))
    }

    fn next_csv(&mut self, rest: &'a str) -> Result<Field<'_>> {
        let (quote, escape, delimiter) = (self.format.quote, self.format.escape, self.format.delimiter);
        let bytes = rest.as_bytes();
        self.scratch.clear();
        let (mut at, mut start, mut was_quoted, mut quoted) = (0, 0, false, false);
        while at < bytes.len() {
            let byte = bytes[at];
            if quoted && byte == escape && bytes.get(at + 1).is_some_and(|next| *next == quote || *next == escape) {
                self.scratch.push_str(&rest[start..at]);
                start = at + 1;
                at += 2;
                continue;
            }
            if byte == quote {
                self.scratch.push_str(&rest[start..at]);
                start = at + 1;
                quoted = !quoted;
                was_quoted = true;
            } else if byte == delimiter && !quoted {
                break;
            }
            at += 1;
        }
        if quoted {
            return Err(SqlError::new(code::BAD_COPY_FORMAT, "unterminated CSV quoted field"));
        }
        self.scratch.push_str(&rest[start..at]);
        self.rest = (at < bytes.len()).then(|| &rest[at + 1..]);
        if !was_quoted && self.scratch == self.format.null {
            return Ok(Field::Null);
        }
        Ok(Field::Value(&self.scratch))
    }
}

/// Backslash sequences of the text format.
fn unescape(raw: &str) -> Result<String> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let digits = |bytes: &mut std::iter::Peekable<std::str::Bytes<'_>>, radix: u32, most: usize, first: u32| {
            let mut value = first;
            for _ in 0..most {
                let Some(digit) = bytes.peek().and_then(|b| (*b as char).to_digit(radix)) else {
                    break;
                };
                value = value * radix + digit;
                bytes.next();
            }
            value as u8
        };
        out.push(match bytes.next() {
            None => b'\\',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'v') => 11,
            Some(b'x') if bytes.peek().is_some_and(u8::is_ascii_hexdigit) => digits(&mut bytes, 16, 2, 0),
            Some(octal @ b'0'..=b'7') => digits(&mut bytes, 8, 2, u32::from(octal - b'0')),
            Some(other) => other,
        });
    }
    crate::types::wire::utf8(&out).map(str::to_string)
}

fn copy_out(
    session: &mut Session,
    statement: &Statement,
    format: &CopyFormat,
    text: &str,
    out: &mut dyn Output,
) -> Result<()> {
    let planned: Planned = session.plan_statement(statement, text, &[], true)?;
    out.copy_out(Format::Text, planned.fields.len() as u16)?;
    if format.header {
        let names: Vec<Datum> = planned.fields.iter().map(|f| Datum::Text(f.name.to_string())).collect();
        out.copy_row(&mut |buffer| {
            put_line(names.iter().map(Datum::as_ref), format, &[], session.env.zone(), buffer);
            Ok(())
        })?;
    }
    let forced: Vec<bool> = match &format.force_quote {
        None => vec![true; planned.fields.len()],
        Some(names) => planned
            .fields
            .iter()
            .map(|f| names.iter().any(|n| **n == *f.name))
            .collect(),
    };
    let settings = session.env.settings.clone();
    let mut sink = CopySink {
        out,
        format,
        forced,
        settings: &settings,
    };
    let analytics = session.sql.analytics();
    let mut run = Run {
        tx: &mut session.tx,
        session: &session.env,
        params: &[],
        param_oids: &[],
        scratch: &mut session.scratch,
        analytics,
    };
    let (count, _) = run_plan(&mut run, &planned, &mut Cursor::Start, 0, &mut sink)?;
    out.copy_done()?;
    out.complete(&format!("COPY {count}"))
}

struct CopySink<'a> {
    out: &'a mut dyn Output,
    format: &'a CopyFormat,
    forced: Vec<bool>,
    settings: &'a Settings,
}

impl Sink for CopySink<'_> {
    fn row(&mut self, outputs: &[Expr], env: &Env<'_>) -> Result<()> {
        let values = outputs.iter().map(|e| e.eval(env)).collect::<Result<Vec<_>>>()?;
        self.values(&values)
    }

    fn values(&mut self, row: &[Datum]) -> Result<()> {
        let (format, forced, zone) = (self.format, &self.forced, self.settings.zone());
        self.out.copy_row(&mut |buffer| {
            put_line(row.iter().map(Datum::as_ref), format, forced, zone, buffer);
            Ok(())
        })
    }

    fn foreign(&mut self, rows: &dyn Rows) -> Result<()> {
        self.values(&rows.datums()?)
    }
}

fn put_line<'d>(
    values: impl Iterator<Item = DatumRef<'d>>,
    format: &CopyFormat,
    forced: &[bool],
    zone: &crate::types::zone::Zone,
    out: &mut BytesMut,
) {
    let mut text = String::new();
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.put_u8(format.delimiter);
        }
        if value.is_null() {
            out.put_slice(format.null.as_bytes());
            continue;
        }
        text.clear();
        write_datum(&value, zone, &mut text);
        if format.csv {
            put_csv(&text, format, forced.get(i) == Some(&true), out);
        } else {
            put_text(&text, format.delimiter, out);
        }
    }
    out.put_u8(b'\n');
}

fn put_text(text: &str, delimiter: u8, out: &mut BytesMut) {
    for byte in text.bytes() {
        let escape = match byte {
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            b'\\' => b'\\',
            other if other == delimiter => other,
            other => {
                out.put_u8(other);
                continue;
            }
        };
        out.put_slice(&[b'\\', escape]);
    }
}

fn put_csv(text: &str, format: &CopyFormat, forced: bool, out: &mut BytesMut) {
    let special = |b: u8| b == format.delimiter || b == format.quote || b == b'\n' || b == b'\r';
    let quoted = forced || text == format.null || text == "\\." || text.bytes().any(special);
    if !quoted {
        return out.put_slice(text.as_bytes());
    }
    out.put_u8(format.quote);
    for byte in text.bytes() {
        if byte == format.quote || byte == format.escape {
            out.put_u8(format.escape);
        }
        out.put_u8(byte);
    }
    out.put_u8(format.quote);
}
