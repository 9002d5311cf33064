//! Reading a table for the tuple.

use super::Context;
use crate::error::Result;
use crate::exec::rows::TableRows;
use crate::expr::{Env, Expr, Input};
use crate::plan::access::Path;
use crate::plan::access::keys::push_equal;
use crate::plan::row::Scan;
use cenote_engine::{Datum, DatumRef, RowBatch};

/// Rows that are fetched at first where the first may do.
const FIRST_ROWS: u64 = 16;

/// Where a scan stands.
#[derive(Default)]
pub struct ScanState {
    begun: bool,
    /// Of a former run until this one has begun: its memory is used again.
    rows: Option<TableRows>,
    key: Vec<u8>,
    row: Vec<u8>,
}

impl ScanState {
    pub fn reset(&mut self) {
        self.begun = false;
    }

    /// Writes the columns of the next row.
    ///
    /// # Errors
    /// As the engine's reads; a key or condition cannot be computed.
    pub fn next(&mut self, scan: &Scan, cx: &mut Context<'_>) -> Result<bool> {
        let access = &scan.access;
        if let (true, Some(only)) = (scan.is_target, cx.only) {
            let found = !std::mem::replace(&mut self.begun, true) && passes(access.condition.as_ref(), scan, only, cx)?;
            if found {
                fetch(scan, only, cx)?;
            }
            return Ok(found);
        }
        if let Path::Point(values) = &access.path {
            return self.point(scan, values, cx);
        }
        if !std::mem::replace(&mut self.begun, true) {
            let counted = &cx.subplans.counted[scan.number];
            counted.set(counted.get().begun());
            self.begin(scan, cx)?;
        }
        let Some(rows) = &mut self.rows else { return Ok(false) };
        while rows.next(cx.reader, access)? {
            cx.tick()?;
            if passes(access.filter.as_ref(), scan, rows.row(), cx)? {
                fetch(scan, rows.row(), cx)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begin(&mut self, scan: &Scan, cx: &Context<'_>) -> Result<()> {
        let (access, env) = (&scan.access, around(cx, Input::Nothing));
        let rows = match &mut self.rows {
            Some(rows) => {
                rows.restart(access, &env)?;
                rows
            }
            none => {
                let rows = none.insert(TableRows::start(access, &env, RowBatch::new())?);
                rows.expect_columns(&scan.columns);
                rows
            }
        };
        if scan.few {
            rows.expect_few(FIRST_ROWS);
        }
        Ok(())
    }

    fn point(&mut self, scan: &Scan, values: &[Expr], cx: &mut Context<'_>) -> Result<bool> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(false);
        }
        cx.tick()?;
        let table = &scan.access.table;
        self.key.clear();
        if !push_equal(table, None, values, &around(cx, Input::Nothing), &mut self.key)?
            || !cx.reader.get_columns(table, &self.key, &scan.columns, &mut self.row)?
            || !passes(scan.access.filter.as_ref(), scan, &self.row, cx)?
        {
            return Ok(false);
        }
        fetch(scan, &self.row, cx)?;
        Ok(true)
    }
}

/// The stored row with the tuple around it.
fn around<'e>(cx: &'e Context<'_>, input: Input<'e>) -> Env<'e> {
    Env {
        params: cx.params,
        input,
        outer: cx.tuple,
        session: cx.session,
        sequences: None,
        subqueries: Some(cx.subplans),
    }
}

fn passes(condition: Option<&Expr>, scan: &Scan, row: &[u8], cx: &Context<'_>) -> Result<bool> {
    let Some(condition) = condition else { return Ok(true) };
    condition.holds(&around(cx, Input::Stored(scan.access.table.layout(), row)))
}

/// Writes the columns that are read above into the tuple.
fn fetch(scan: &Scan, row: &[u8], cx: &mut Context<'_>) -> Result<()> {
    let counted = &cx.subplans.counted[scan.number];
    counted.set(counted.get().given());
    let layout = scan.access.table.layout();
    for (column, slot) in &scan.fetch {
        let value = layout.column(row, *column)?;
        match (&mut cx.tuple[usize::from(*slot)], value) {
            (Datum::Text(text), DatumRef::Text(new)) => {
                text.clear();
                text.push_str(new);
            }
            (place, value) => *place = value.into_owned(),
        }
    }
    Ok(())
}
