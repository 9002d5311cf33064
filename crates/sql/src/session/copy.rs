//! The statement COPY.
//!
//! COPY FROM STDIN is a state of its session ([`Copying`]), not a call that waits: between two messages of its client
//! it needs no thread.
//!
//! ```text
//!   statement ──► copying ◄──► copy_data, copy_look
//!                    ├── copy_done ──► the rest of the text's statements
//!                    └── an error, fail ──► its transaction fails
//! ```

use super::copy_lines::Lines;
use super::copy_output::{CopySink, put_line};
use super::copying::{Copying, Load};
use super::run::{query_of, run_plan};
use super::state::Session;
use crate::error::{Result, SqlError, code};
use crate::exec::Run;
use crate::exec::select::Cursor;
use crate::expr::Expr;
use crate::expr::bind::Params;
use crate::names::fold;
use crate::output::{Format, Output};
use crate::parse::{Copy, CopyFormat, CopySource, Statement, parse_query};
use crate::plan::known::Known;
use crate::plan::{Planned, Planner};
use cenote_engine::{Charge, Datum, Table};
use sqlparser::ast::{Ident, ObjectName};
use std::sync::Arc;

/// Carries out COPY.
///
/// # Errors
/// 25006: the transaction may not write. 42P01, 42703: the table or a column does not exist. COPY TO: as its query.
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
            let query = parse_query(&format!("SELECT {list} FROM {name}"))?;
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
        for_many: false,
        known: Known::new(&session.env, None),
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
        load: Load::new(table, filled, defaults, format.clone()),
        lines: Lines::new(Charge::new(&session.env.memory)),
        watch: None,
        rest: None,
    }));
    Ok(())
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
        for_many: false,
        known: Known::new(&session.env, None),
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
        profile: None,
        query: query_of(statement),
    };
    let (count, _) = run_plan(&mut run, &planned, &mut Cursor::Start, 0, &mut sink)?;
    out.copy_done()?;
    out.complete(&format!("COPY {count}"))
}
