//! Administration over the protocol: statements of Cenote's own, which `cenote status`, `check` and `backup` send.
//!
//! ```text
//! CENOTE SHOW view        the rows of a view as text, without the planner
//! CENOTE CHECK            verifies every tree, index and list; a row for each finding
//! CENOTE BASE             copies all pages to the archive
//! CENOTE BACKUP 'dir'     writes a consistent copy to an empty directory of the server's machine
//! CENOTE MEMORY 'size'    lets remote memory grow or shrink to that
//! CENOTE MEMORY BY NEED   lets it grow and shrink by what more of it would save
//! CENOTE TRACE 'file'     writes the page accesses from here on to a new file of the server's machine
//! CENOTE TRACE MARK 'x'   ends a part of the workload, of that name
//! CENOTE TRACE END        ends the trace
//! ```
//!
//! They come by the simple protocol, alone in their message, outside of a transaction block. Everything else goes to
//! SQL untouched: recognising them costs a comparison of seven bytes.

use crate::archiving::Archiving;
use crate::config::Settings;
use crate::page_trace::PageTrace;
use crate::server::ServerStatements;
use cenote_base::units::ByteSize;
use cenote_engine::trace::MARK_BYTES;
use cenote_engine::{Datum, Engine, RemoteSize};
use cenote_sql::{CancelHandle, Field, Formats, Output, Result, Session, SqlError, SystemViews, code};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What every such statement begins with.
const PREFIX: &str = "CENOTE ";
const TEXT_OID: u32 = 25;

/// Answers administration statements.
pub struct Administration {
    /// What is administered.
    pub engine: Arc<Engine>,
    /// What can be shown.
    pub views: Arc<dyn SystemViews>,
    /// What archives it, if anything does.
    pub archiving: Option<Archiving>,
    /// Which sizes its remote memory may have; `None`: one, or there is none.
    pub remote: Option<RemoteSizes>,
    /// The trace of page accesses that is under way.
    pub trace: Mutex<Option<Arc<PageTrace>>>,
}

/// Which sizes remote memory may have that grows by slabs.
#[derive(Debug, Clone, Copy)]
pub struct RemoteSizes {
    least: ByteSize,
    most: ByteSize,
    slab: ByteSize,
}

impl RemoteSizes {
    /// As settings say.
    pub fn of(settings: &Settings) -> Option<RemoteSizes> {
        Some(RemoteSizes {
            least: settings.memory_size,
            most: settings.memory_max(),
            slab: ByteSize(settings.growth?.slab),
        })
    }

    /// A size that was asked for, as far as slabs go: what is left of memory_max has no whole slab.
    fn allow(&self, asked: ByteSize) -> Result<RemoteSize> {
        let is_less_than_a_slab = asked.bytes().saturating_sub(self.most.bytes()) < self.slab.bytes();
        match asked >= self.least && is_less_than_a_slab {
            true => Ok(RemoteSize::Bytes(asked.min(self.most).bytes())),
            false => Err(SqlError::new(
                code::INVALID_ARGUMENT,
                format!(
                    "remote memory of {asked}: it may be {} (memory_size) to {}, as memory_max and memory_slab say",
                    self.least, self.most
                ),
            )),
        }
    }
}

impl ServerStatements for Administration {
    fn answer(&self, session: &mut Session, text: &str, out: &mut dyn Output) -> Option<Result<()>> {
        let statement = text.strip_prefix(PREFIX)?;
        Some(match session.status() {
            b'I' => self.administer(&session.cancel_handle(), statement, out),
            _ => Err(SqlError::new(
                code::ACTIVE_TRANSACTION,
                "CENOTE statements cannot run inside a transaction block",
            )),
        })
    }
}

impl Administration {
    fn administer(&self, cancel: &CancelHandle, statement: &str, out: &mut dyn Output) -> Result<()> {
        let statement = statement.trim().trim_end_matches(';').trim_end();
        let (verb, argument) = statement.split_once(' ').unwrap_or((statement, ""));
        match (verb, argument.trim()) {
            ("SHOW", view) => self.show(view, out),
            ("CHECK", "") => self.check(out),
            ("BASE", "") => self.base(cancel, out),
            ("BACKUP", dir) => self.backup(dir, out),
            ("MEMORY", size) => self.set_memory(size, out),
            ("TRACE", "END") => self.end_trace(out),
            ("TRACE", what) => match what.strip_prefix("MARK ") {
                Some(name) => self.mark_trace(name, out),
                None => self.begin_trace(what, out),
            },
            _ => Err(
                SqlError::new(code::SYNTAX_ERROR, format!("unknown statement CENOTE {statement}")).with_hint(
                    "There are CENOTE SHOW view, CENOTE CHECK, CENOTE BASE, CENOTE BACKUP 'dir', CENOTE MEMORY \
                         'size', CENOTE MEMORY BY NEED, CENOTE TRACE 'file', CENOTE TRACE MARK 'name' and CENOTE \
                         TRACE END.",
                ),
            ),
        }
    }

    fn show(&self, view: &str, out: &mut dyn Output) -> Result<()> {
        let unknown = || SqlError::new(code::UNDEFINED_TABLE, format!("view \"{view}\" does not exist"));
        let columns = self.views.columns(view).ok_or_else(unknown)?;
        let names: Vec<&str> = columns.iter().map(|column| column.0).collect();
        let rows: Vec<Vec<String>> = self
            .views
            .rows(view)
            .iter()
            .map(|row| row.iter().map(text_of).collect())
            .collect();
        answer(out, &names, &rows, "SHOW")
    }

    fn check(&self, out: &mut dyn Output) -> Result<()> {
        let report = self
            .engine
            .check()
            .map_err(|error| SqlError::new(error.sqlstate(), error.to_string()))?;
        let line = |kind: &str, text: &String| vec![kind.to_owned(), text.clone()];
        let looked_at = report.summary.iter().map(|text| line("checked", text));
        let wrong = report.problems.iter().map(|text| line("problem", text));
        answer(
            out,
            &["kind", "text"],
            &looked_at.chain(wrong).collect::<Vec<_>>(),
            "CHECK",
        )
    }

    fn base(&self, cancel: &CancelHandle, out: &mut dyn Output) -> Result<()> {
        let archiving = self.archiving.as_ref().ok_or_else(|| {
            SqlError::new(code::OBJECT_NOT_IN_STATE, "this server has no archive")
                .with_hint("Start it with --archive, or ask the server that has the database.")
        })?;
        let report = archiving.take_base(&|| !cancel.is_canceled()).map_err(|error| {
            let code = if cancel.is_canceled() {
                code::QUERY_CANCELED
            } else {
                code::IO_ERROR
            };
            SqlError::new(code, error)
        })?;
        let row = [report.spaces, report.pages, report.object_bytes].map(|number| number.to_string());
        let lsn = report.end.to_string();
        let row = row.into_iter().chain([lsn]).collect();
        answer(out, &["spaces", "pages", "bytes", "position"], &[row], "BASE")
    }

    fn set_memory(&self, argument: &str, out: &mut dyn Output) -> Result<()> {
        let not_here = |problem: &str, hint: &str| SqlError::new(code::OBJECT_NOT_IN_STATE, problem).with_hint(hint);
        let asked = asked_size(argument)?;
        if self.engine.is_reader() {
            let problem = "this server reads the memory that another server has";
            return Err(not_here(problem, "Ask the server that has the database."));
        }
        let sizes = self.remote.ok_or_else(|| {
            let problem = "this server has no remote memory that grows";
            not_here(problem, "Start it with --memory tiered and --memory-max.")
        })?;
        let size = asked.map_or(Ok(RemoteSize::ByNeed), |asked| sizes.allow(asked))?;
        self.engine
            .set_remote_size(size)
            .map_err(|error| SqlError::new(code::OBJECT_NOT_IN_STATE, error.to_string()))?;
        out.complete("MEMORY")
    }

    fn backup(&self, dir: &str, out: &mut dyn Output) -> Result<()> {
        let dir = absolute_path("CENOTE BACKUP", dir)?;
        self.engine
            .backup(Path::new(&dir))
            .map_err(|error| SqlError::new(error.sqlstate(), error.to_string()))?;
        out.complete("BACKUP")
    }
}

/// Traces of page accesses.
impl Administration {
    fn begin_trace(&self, file: &str, out: &mut dyn Output) -> Result<()> {
        let path = absolute_path("CENOTE TRACE", file)?;
        let mut place = self.trace();
        if let Some(trace) = &*place {
            let problem = format!("a trace to {} is under way", trace.path().display());
            return Err(SqlError::new(code::OBJECT_NOT_IN_STATE, problem).with_hint("End it with CENOTE TRACE END."));
        }
        let trace = PageTrace::begin(Path::new(&path))
            .map_err(|error| SqlError::new(code::IO_ERROR, format!("cannot make {path}: {error}")))?;
        let trace = Arc::new(trace);
        self.engine.buffer().observe_accesses(Some(trace.clone()));
        *place = Some(trace);
        out.complete("TRACE")
    }

    fn mark_trace(&self, name: &str, out: &mut dyn Output) -> Result<()> {
        let name = unquoted(name).filter(|name| name.len() <= MARK_BYTES).ok_or_else(|| {
            let problem = format!("CENOTE TRACE MARK needs a name of at most {MARK_BYTES} bytes between quotes");
            SqlError::new(code::SYNTAX_ERROR, problem)
        })?;
        self.trace()
            .as_ref()
            .ok_or_else(no_trace)?
            .mark(&name.replace("''", "'"));
        out.complete("TRACE")
    }

    fn end_trace(&self, out: &mut dyn Output) -> Result<()> {
        let mut place = self.trace();
        let trace = place.take().ok_or_else(no_trace)?;
        self.engine.buffer().observe_accesses(None);
        drop(place);
        let summary = trace.end().map_err(|error| {
            let problem = format!("{} is not whole: {error}", trace.path().display());
            SqlError::new(code::IO_ERROR, problem)
        })?;
        let numbers = [
            summary.accesses,
            summary.lists,
            u64::from(summary.threads),
            summary.bytes,
        ];
        let row = numbers
            .iter()
            .map(u64::to_string)
            .chain([trace.path().display().to_string()]);
        answer(
            out,
            &["accesses", "lists", "threads", "bytes", "file"],
            &[row.collect()],
            "TRACE",
        )
    }

    fn trace(&self) -> MutexGuard<'_, Option<Arc<PageTrace>>> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_trace() -> SqlError {
    SqlError::new(code::OBJECT_NOT_IN_STATE, "no trace is under way").with_hint("Begin one with CENOTE TRACE 'file'.")
}

/// The path that a statement names, on the server's machine.
fn absolute_path(statement: &str, text: &str) -> Result<String> {
    let path = unquoted(text).filter(|path| path.starts_with('/')).ok_or_else(|| {
        SqlError::new(
            code::SYNTAX_ERROR,
            format!("{statement} needs an absolute path between quotes"),
        )
    })?;
    Ok(path.replace("''", "'"))
}

fn unquoted(text: &str) -> Option<&str> {
    text.strip_prefix('\'')?.strip_suffix('\'')
}

/// What CENOTE MEMORY asks for; `None`: by need.
fn asked_size(argument: &str) -> Result<Option<ByteSize>> {
    if argument == "BY NEED" {
        return Ok(None);
    }
    let size = unquoted(argument).ok_or_else(|| {
        SqlError::new(
            code::SYNTAX_ERROR,
            "CENOTE MEMORY needs a size between quotes, or BY NEED",
        )
    })?;
    let size = size.parse::<ByteSize>();
    size.map(Some)
        .map_err(|error| SqlError::new(code::INVALID_ARGUMENT, error.to_string()))
}

fn answer(out: &mut dyn Output, columns: &[&str], rows: &[Vec<String>], tag: &str) -> Result<()> {
    let field = |name: &&str| Field {
        name: (*name).into(),
        table_oid: 0,
        column: 0,
        type_oid: TEXT_OID,
        type_len: -1,
        type_mod: -1,
    };
    out.row_description(&columns.iter().map(field).collect::<Vec<_>>(), Formats(&[]))?;
    for row in rows {
        out.row(row.len() as u16, &mut |bytes| {
            for text in row {
                bytes.extend_from_slice(&(text.len() as i32).to_be_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
            Ok(())
        })?;
    }
    out.complete(tag)
}

fn text_of(datum: &Datum) -> String {
    match datum {
        Datum::Null => String::new(),
        Datum::Text(text) => text.clone(),
        Datum::Int4(number) => number.to_string(),
        Datum::Int8(number) => number.to_string(),
        Datum::Float8(number) => format!("{number:.1}"),
        Datum::TimestampTz(micros) => micros.to_string(),
        Datum::Bool(truth) => truth.to_string(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_asked_for_by_size_or_by_need() {
        assert_eq!(asked_size("BY NEED").unwrap(), None);
        assert_eq!(asked_size("'8GiB'").unwrap(), Some(ByteSize::gib(8)));
        for (wrong, code) in [
            ("", code::SYNTAX_ERROR),
            ("8GiB", code::SYNTAX_ERROR),
            ("'8GiB", code::SYNTAX_ERROR),
            ("'", code::SYNTAX_ERROR),
            ("BY HAND", code::SYNTAX_ERROR),
            ("'much'", code::INVALID_ARGUMENT),
        ] {
            assert_eq!(asked_size(wrong).unwrap_err().code(), code, "{wrong}");
        }
    }

    #[test]
    fn memory_has_sizes_that_settings_allow() {
        let sizes = RemoteSizes {
            least: ByteSize::gib(1),
            most: ByteSize::mib(1024 + 3 * 256),
            slab: ByteSize::mib(256),
        };
        let allowed = |mib| match sizes.allow(ByteSize::mib(mib)) {
            Ok(RemoteSize::Bytes(bytes)) => Ok(bytes >> 20),
            Ok(RemoteSize::ByNeed) => Err("by need"),
            Err(error) => Err(error.code()),
        };
        for (mib, wanted) in [
            (1023, Err(code::INVALID_ARGUMENT)),
            (1024, Ok(1024)),
            (1100, Ok(1100)),
            (1792, Ok(1792)),
            (2047, Ok(1792)),
            (2048, Err(code::INVALID_ARGUMENT)),
        ] {
            assert_eq!(allowed(mib), wanted, "{mib} MiB");
        }
    }
}
