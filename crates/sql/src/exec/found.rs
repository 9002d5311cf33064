//! Changing and locking rows that another planner finds.
//!
//! The query gives primary keys and new values, by the statement's snapshot, before any row is changed. A row that has
//! changed since (read committed) is locked and stays so; then the query is asked again about that row alone: in place
//! of the whole table it reads the row's newest version, and all else on a snapshot of now. No row means that the
//! newest version does not qualify, a row brings its new values (PostgreSQL's EvalPlanQual). Nothing is taken back, and
//! nothing starts again.

use super::Run;
use super::change::{CANCEL_INTERVAL, RowChange, changed, give_changed};
use super::keys::Seen;
use super::row::RowCursor;
use super::select::foreign_rows;
use super::sink::{Gather, Sink};
use crate::env::SessionEnv;
use crate::error::Result;
use crate::expr::{Env, Expr, Input};
use crate::hook::{ForeignQuery, Rows};
use crate::plan::access::tree_columns;
use crate::plan::dml::Finder;
use crate::plan::locking::LockTarget;
use crate::plan::row::RowPlan;
use crate::types::cast::{self, Context};
use cenote_engine::{Change, Changed, Columns, Datum, Locked, Table};

/// Runs the query to its end. What comes back can be asked again.
///
/// # Errors
/// The query fails; 53200: the session may gather no more.
pub fn gather_foreign(run: &mut Run<'_>, query: &ForeignQuery, found: &mut Gather) -> Result<Box<dyn Rows>> {
    let mut rows = run.foreign(query)?;
    foreign_rows(rows.as_mut(), u64::MAX, found)?;
    Ok(rows)
}

/// A query for rows to change, which can be asked again about one of them.
enum Asked<'p> {
    Rows(&'p RowPlan),
    Foreign(Box<dyn Rows>),
}

impl<'p> Asked<'p> {
    /// Runs the query to its end.
    fn all(run: &mut Run<'_>, finder: &'p Finder, found: &mut Gather) -> Result<Asked<'p>> {
        match finder {
            Finder::Rows(plan) => {
                RowCursor::new(plan).advance(run, plan, u64::MAX, found)?;
                Ok(Asked::Rows(plan))
            }
            Finder::Foreign(query) => gather_foreign(run, query, found).map(Asked::Foreign),
        }
    }

    /// What it gives about this row alone, with everything else as it is committed now.
    fn again(&mut self, run: &Run<'_>, row: &[u8]) -> Result<Option<Vec<Datum>>> {
        let reader = run.tx.reader_of_now()?;
        match self {
            Asked::Rows(plan) => {
                let mut found = Gather::new(&run.session.memory);
                RowCursor::about(plan, row).advance_by(run, &reader, plan, 1, &mut found)?;
                Ok(found.0.pop())
            }
            Asked::Foreign(rows) => {
                rows.again(reader, row)?;
                match rows.next()? {
                    true => rows.datums().map(Some),
                    false => Ok(None),
                }
            }
        }
    }
}

/// Changes the rows of a table whose keys and new values the query gives; the table is the first that it reads.
pub(super) fn change_found(
    run: &mut Run<'_>,
    (table, finder, reads): (&Table, &Finder, &Columns),
    deed: &RowChange<'_>,
    returning: &[Expr],
    sink: &mut dyn Sink,
) -> Result<u64> {
    let mut found = Gather::new(&run.session.memory);
    let mut rows = Asked::all(run, finder, &mut found)?;
    let columns = tree_columns(table, None);
    let mut seen = Seen::default();
    let mut count = 0;
    for (at, row) in found.0.iter().enumerate() {
        if (at as u64 + 1).is_multiple_of(CANCEL_INTERVAL) {
            run.session.check_cancel()?;
        }
        let key = key_of(run, table, columns, row)?;
        // As PostgreSQL: a row that several source rows match is changed once.
        if !seen.insert(key.clone(), &run.session.memory)? {
            continue;
        }
        let done = change_one(run, (table, reads), &key, row, deed, &mut rows)?;
        count += u64::from(give_changed(run, returning, table, done, sink)?);
    }
    Ok(count)
}

fn change_one(
    run: &mut Run<'_>,
    (table, reads): (&Table, &Columns),
    key: &[u8],
    found: &[Datum],
    deed: &RowChange<'_>,
    rows: &mut Asked<'_>,
) -> Result<Changed> {
    let on = (run.params, run.session);
    let done = run.tx.change_reading(table, key, reads, &|newest, moved| match moved {
        true => Ok(Change::Keep),
        false => change_of(on, table, (newest, found), deed),
    })?;
    let Changed::Done {
        change: Change::Keep,
        mut before,
    } = done
    else {
        return Ok(done);
    };
    run.tx.bring_in(table, &mut before)?;
    let Some(found) = rows.again(run, &before)? else {
        return Ok(Changed::Skipped);
    };
    // The row is locked, maybe under a key that it got meanwhile: its newest version is the one that was asked about.
    let mut key = key.to_vec();
    if !table.has_hidden_key() {
        table.key_of_row(&before, &mut key)?;
    }
    run.tx.change_newest(table, &key, reads, &|newest, _| {
        change_of(on, table, (newest, &found), deed)
    })
}

/// What becomes of the newest version of a row, by what the query gave for it.
fn change_of(
    (params, session): (&[Datum], &SessionEnv),
    table: &Table,
    (newest, found): (&[u8], &[Datum]),
    deed: &RowChange<'_>,
) -> Result<Change> {
    let RowChange::Update(assignments) = deed else {
        return Ok(Change::Delete);
    };
    let env = |input| Env {
        params,
        input,
        outer: &[],
        session,
        sequences: None,
        subqueries: None,
    };
    let source = env(Input::Values(found));
    let value = |(column, expr): &(usize, Expr)| expr.eval(&source).map(|v| (*column, Expr::Const(v)));
    let values: Vec<(usize, Expr)> = assignments.iter().map(value).collect::<Result<_>>()?;
    let stored = env(Input::Stored(table.layout(), newest));
    Ok(Change::Update(changed(table, newest, &values, &stored)?))
}

/// Locks the rows whose keys the queries find. Where one of them had changed since, the rows are found again on a new
/// snapshot, with the locks kept: each round locks rows that it had not locked before, or is the last.
///
/// # Errors
/// As the query and the engine's row locks; 57014: the statement was cancelled.
pub fn lock_found(run: &mut Run<'_>, targets: &[LockTarget]) -> Result<()> {
    while !lock_once(run, targets)? {
        run.tx.begin_statement();
        run.session.check_cancel()?;
    }
    Ok(())
}

/// False: a row had changed; find the rows again.
fn lock_once(run: &mut Run<'_>, targets: &[LockTarget]) -> Result<bool> {
    let mut unchanged = true;
    for target in targets {
        let (table, mut found) = (&target.table, Gather::new(&run.session.memory));
        gather_foreign(run, &target.keys, &mut found)?;
        let mut newest = Vec::new();
        for (seen, row) in found.0.iter().enumerate() {
            if (seen as u64 + 1).is_multiple_of(CANCEL_INTERVAL) {
                run.session.check_cancel()?;
            }
            let key = key_of(run, table, tree_columns(table, None), row)?;
            let locked = run
                .tx
                .lock_row(table, &key, target.strength, target.wait, &mut newest)?;
            unchanged &= matches!(locked, Locked::Row { moved: false });
        }
    }
    Ok(unchanged)
}

/// The primary key that a row of the query begins with.
fn key_of(run: &Run<'_>, table: &Table, columns: &[usize], row: &[Datum]) -> Result<Vec<u8>> {
    let mut values = Vec::with_capacity(columns.len());
    for (column, value) in columns.iter().zip(row) {
        values.push(cast::cast(
            value.clone(),
            table.columns[*column].ty,
            Context::Assignment,
            run.session.text_context(),
        )?);
    }
    let mut key = Vec::new();
    table.key_of_values(&values, &mut key);
    Ok(key)
}
