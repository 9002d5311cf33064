//! What becomes of one row: the change, the row that it gives, and RETURNING of it.

use super::Run;
use super::sink::Sink;
use crate::error::{Result, SqlError, code};
use crate::expr::{Env, Expr, Input};
use crate::types::text::datum_text;
use crate::types::zone::Zone;
use cenote_engine::{Change, Changed, DatumRef, Table};

/// Rows between two looks at the cancel flag.
pub(super) const CANCEL_INTERVAL: u64 = 256;

/// What is done to a row that was found.
pub(super) enum RowChange<'p> {
    Update(&'p [(usize, Expr)]),
    Delete,
}

/// The row with its assignments carried out.
pub(super) fn changed(table: &Table, old: &[u8], assignments: &[(usize, Expr)], env: &Env<'_>) -> Result<Vec<u8>> {
    let mut values = Vec::with_capacity(assignments.len());
    for (column, expr) in assignments {
        values.push((*column, expr.value(env)?));
    }
    let layout = table.layout();
    let value_of = |column: usize| values.iter().find(|(c, _)| *c == column).map(|(_, value)| value.get());
    for (column, value) in &values {
        if value.get().is_null() && table.columns[*column].not_null {
            let row = shown_row(table, old, &value_of)?;
            return Err(null_violation(
                table,
                &table.columns[*column].name,
                row.into_iter(),
                env.session.zone(),
            ));
        }
    }
    let mut out = Vec::with_capacity(old.len() + 16);
    layout.with(old, value_of, &mut out)?;
    Ok(out)
}

/// The values of a changed row, for an error. One that the statement does not read is not shown.
#[cold]
fn shown_row<'v>(
    table: &Table,
    old: &'v [u8],
    changed: &dyn Fn(usize) -> Option<DatumRef<'v>>,
) -> Result<Vec<DatumRef<'v>>> {
    let layout = table.layout();
    let value = |column| match changed(column) {
        Some(value) => Ok(value),
        None if layout.is_external(old, column)? => Ok(DatumRef::Text("...")),
        None => Ok(layout.column(old, column)?),
    };
    (0..layout.columns()).map(value).collect()
}

#[cold]
pub(super) fn null_violation<'v>(
    table: &Table,
    column: &str,
    values: impl Iterator<Item = DatumRef<'v>>,
    zone: &Zone,
) -> SqlError {
    let shown: Vec<String> = values
        .map(|v| {
            if v.is_null() {
                "null".to_string()
            } else {
                datum_text(&v, zone)
            }
        })
        .collect();
    let text = format!(
        "null value in column \"{column}\" of relation \"{}\" violates not-null constraint",
        table.name
    );
    SqlError::new(code::NOT_NULL_VIOLATION, text)
        .with_detail(format!("Failing row contains ({}).", shown.join(", ")))
        .on_table(&table.name)
        .on_column(column)
}

/// RETURNING of a row as it was changed; false where it was not.
pub(super) fn give_changed(
    run: &mut Run<'_>,
    returning: &[Expr],
    table: &Table,
    done: Changed,
    sink: &mut dyn Sink,
) -> Result<bool> {
    let shown = match done {
        Changed::Done {
            change: Change::Update(row),
            ..
        } => row,
        Changed::Done {
            change: Change::Delete,
            before,
        } => before,
        _ => return Ok(false),
    };
    give(run, returning, table, &shown, sink)?;
    Ok(true)
}

/// RETURNING of one row.
pub(super) fn give(
    run: &mut Run<'_>,
    returning: &[Expr],
    table: &Table,
    row: &[u8],
    sink: &mut dyn Sink,
) -> Result<()> {
    if returning.is_empty() {
        return Ok(());
    }
    // What the row was built on must be durable before a client sees it.
    run.tx.wait_built_on()?;
    sink.row(returning, &run.env(Input::Stored(table.layout(), row)))
}
