//! MIN and MAX of columns whose order an index gives: each is the first value of a walk.

use super::Run;
use super::rows::{CANCEL_INTERVAL, TableRows, qualifies};
use crate::error::Result;
use crate::expr::{Expr, Input};
use crate::plan::access::Access;
use crate::plan::select::Extreme;
use cenote_engine::Datum;

/// The values, as the aggregates of one group.
///
/// # Errors
/// As the engine's reads; a condition cannot be computed; 57014: the statement was cancelled.
pub fn extremes(run: &mut Run<'_>, list: &[Extreme]) -> Result<Vec<Datum>> {
    let each = |extreme: &Extreme| first_value(run, &extreme.access, &extreme.value);
    list.iter().map(each).collect()
}

fn first_value(run: &mut Run<'_>, access: &Access, value: &Expr) -> Result<Datum> {
    let batch = std::mem::take(&mut run.scratch.batch);
    let mut rows = TableRows::start(access, &run.env(Input::Nothing), batch)?;
    rows.expect_few(1);
    let mut found = Datum::Null;
    let mut seen = 0u64;
    while rows.next(run.tx.reader(), access)? {
        seen += 1;
        if seen.is_multiple_of(CANCEL_INTERVAL) {
            run.session.check_cancel()?;
        }
        let env = run.env(Input::Stored(access.table.layout(), rows.row()));
        if qualifies(access.filter.as_ref(), &env)? {
            found = value.eval(&env)?;
            break;
        }
    }
    run.scratch.batch = rows.batch;
    Ok(found)
}
