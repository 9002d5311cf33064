//! SELECT of the short path: streamed where nothing has to be gathered, else gathered in memory, under a bound.

use super::Run;
use super::extremes::extremes;
use super::order::sort;
use super::rows::{CANCEL_INTERVAL, TableRows, qualifies};
use super::sink::{Progress, Sink, size_of_row};
use super::texts::{Texts, single_text};
use super::top::Top;
use crate::error::{Result, SqlError, code};
use crate::expr::aggregate::Accumulator;
use crate::expr::{Env, Expr, Input, same};
use crate::hook::Rows;
use crate::plan::access::keys::push_equal;
use crate::plan::access::{Access, Path};
use crate::plan::select::{Extreme, GroupPlan, SelectPlan, SortKey};
use cenote_engine::{Charge, ColumnType, Datum, LockStrength, Locked, Wait, key};
use std::cell::RefCell;
use std::collections::HashMap;

/// Rows that are fetched at a time where a walk ends behind the last row that is equal in the first columns of an order.
const ROWS_OF_PART: usize = 64;

/// Where a portal stands between two executions.
#[derive(Default)]
pub enum Cursor {
    /// Not begun.
    #[default]
    Start,
    /// Rows are streamed.
    Stream(Box<Stream>),
    /// Rows were gathered, in memory of the session.
    Gathered {
        /// The rows that are left.
        rows: std::vec::IntoIter<Vec<Datum>>,
        /// Columns that are shown.
        visible: usize,
        /// Held as long as the rows are.
        _memory: Charge,
    },
    /// One text column was gathered.
    Texts(Texts),
    /// A run of the row executor.
    Rows(Box<super::row::RowCursor>),
    /// Another planner's query.
    Foreign(Box<dyn Rows>),
    /// At the end.
    Done,
}

impl Cursor {
    /// Bytes that it holds between two executions and that are not charged to the session yet.
    pub fn held_bytes(&self) -> usize {
        match self {
            Cursor::Stream(stream) => stream.rows.batch.bytes(),
            Cursor::Rows(rows) => rows.held_bytes(),
            Cursor::Foreign(rows) => rows.held_bytes(),
            _ => 0,
        }
    }
}

/// A stream of table rows under OFFSET and LIMIT.
pub struct Stream {
    rows: TableRows,
    skip: u64,
    left: u64,
}

/// Gives up to `max` rows (0: all) to the sink.
///
/// # Errors
/// An expression fails, as the engine's reads and locks, or as the sink; 53200: the session may gather no more.
pub fn advance(
    run: &mut Run<'_>,
    plan: &SelectPlan,
    cursor: &mut Cursor,
    max: u64,
    sink: &mut dyn Sink,
) -> Result<Progress> {
    if matches!(cursor, Cursor::Start) {
        if let Some(rows) = at_once(run, plan, sink)? {
            *cursor = Cursor::Done;
            return Ok(Progress { rows, done: true });
        }
        *cursor = start(run, plan)?;
    }
    let max = if max == 0 { u64::MAX } else { max };
    let progress = match cursor {
        Cursor::Stream(stream) => stream_rows(run, plan, stream, max, sink)?,
        Cursor::Gathered { rows, visible, .. } => {
            let mut given = 0;
            while given < max {
                let Some(row) = rows.next() else { break };
                sink.values(&row[..*visible])?;
                given += 1;
            }
            Progress {
                rows: given,
                done: given < max,
            }
        }
        Cursor::Texts(texts) => {
            let mut given = 0;
            while given < max && texts.give(sink)? {
                given += 1;
            }
            Progress {
                rows: given,
                done: given < max,
            }
        }
        Cursor::Foreign(rows) => foreign_rows(rows.as_mut(), max, sink)?,
        Cursor::Rows(_) | Cursor::Start | Cursor::Done => Progress { rows: 0, done: true },
    };
    if progress.done {
        match std::mem::replace(cursor, Cursor::Done) {
            Cursor::Stream(stream) => run.scratch.batch = stream.rows.batch,
            Cursor::Texts(mut texts) => {
                texts.end();
                run.scratch.texts = texts;
            }
            _ => {}
        }
    }
    Ok(progress)
}

/// Gives up to `max` rows of another planner's query.
///
/// # Errors
/// As the query or the sink.
pub fn foreign_rows(rows: &mut dyn Rows, max: u64, sink: &mut dyn Sink) -> Result<Progress> {
    let mut given = 0;
    while given < max {
        if !rows.next()? {
            return Ok(Progress {
                rows: given,
                done: true,
            });
        }
        sink.foreign(rows)?;
        given += 1;
    }
    Ok(Progress {
        rows: given,
        done: false,
    })
}

/// Statements of at most one row, without a cursor: no table, or a point.
fn at_once(run: &mut Run<'_>, plan: &SelectPlan, sink: &mut dyn Sink) -> Result<Option<u64>> {
    if plan.gathers() {
        return Ok(None);
    }
    let access = match &plan.access {
        None => return bare(run, plan, sink).map(Some),
        Some(access) => access,
    };
    let Path::Point(values) = &access.path else {
        return Ok(None);
    };
    if plan.limit.is_some() || plan.offset.is_some() {
        return Ok(None);
    }
    let mut key = std::mem::take(&mut run.scratch.key);
    let mut row = std::mem::take(&mut run.scratch.row);
    let given = point(run, plan, access, values, &mut key, &mut row, sink);
    (run.scratch.key, run.scratch.row) = (key, row);
    given.map(Some)
}

fn point(
    run: &mut Run<'_>,
    plan: &SelectPlan,
    access: &Access,
    values: &[Expr],
    key: &mut Vec<u8>,
    row: &mut Vec<u8>,
    sink: &mut dyn Sink,
) -> Result<u64> {
    let table = &access.table;
    key.clear();
    if !push_equal(table, None, values, &run.env(Input::Nothing), key)? || !run.tx.get(table, key, row)? {
        return Ok(0);
    }
    if !qualifies(access.filter.as_ref(), &run.env(Input::Stored(table.layout(), row)))? {
        return Ok(0);
    }
    if let Some((strength, wait)) = plan.lock
        && !lock(run, access, key, strength, wait, row)?
    {
        return Ok(0);
    }
    sink.row(
        &plan.outputs[..plan.visible],
        &run.env(Input::Stored(table.layout(), row)),
    )?;
    Ok(1)
}

/// Locks a row, whose newest version goes to `row`; false where it is gone, skipped or no longer qualifies.
fn lock(
    run: &mut Run<'_>,
    access: &Access,
    key: &[u8],
    strength: LockStrength,
    wait: Wait,
    row: &mut Vec<u8>,
) -> Result<bool> {
    match run.tx.lock_row(&access.table, key, strength, wait, row)? {
        Locked::Gone | Locked::Skipped => Ok(false),
        Locked::Row { moved: false } => Ok(true),
        Locked::Row { moved: true } => qualifies(
            access.condition.as_ref(),
            &run.env(Input::Stored(access.table.layout(), row)),
        ),
    }
}

fn bare(run: &mut Run<'_>, plan: &SelectPlan, sink: &mut dyn Sink) -> Result<u64> {
    let (skip, left) = limits(run, plan)?;
    let cell = RefCell::new(&mut *run.tx);
    let sequences = plan.uses_sequences.then_some(&cell);
    let env = Env {
        params: run.params,
        input: Input::Nothing,
        outer: &[],
        session: run.session,
        sequences,
        subqueries: None,
    };
    if skip > 0 || left == 0 || !qualifies(plan.bare_filter.as_ref(), &env)? {
        return Ok(0);
    }
    sink.row(&plan.outputs[..plan.visible], &env)?;
    Ok(1)
}

/// OFFSET and LIMIT as counts.
fn limits(run: &Run<'_>, plan: &SelectPlan) -> Result<(u64, u64)> {
    let env = run.env(Input::Nothing);
    let count = |expr: &Option<Expr>, none: u64, word: &str, state: &'static str| match expr
        .as_ref()
        .map(|e| e.eval(&env))
        .transpose()?
    {
        None | Some(Datum::Null) => Ok(none),
        Some(Datum::Int8(n)) if n >= 0 => Ok(n as u64),
        Some(_) => Err(SqlError::new(state, format!("{word} must not be negative"))),
    };
    Ok((
        count(&plan.offset, 0, "OFFSET", code::INVALID_OFFSET)?,
        count(&plan.limit, u64::MAX, "LIMIT", code::INVALID_LIMIT)?,
    ))
}

fn start(run: &mut Run<'_>, plan: &SelectPlan) -> Result<Cursor> {
    let (skip, left) = limits(run, plan)?;
    if !plan.gathers()
        && let Some(access) = &plan.access
    {
        let batch = std::mem::take(&mut run.scratch.batch);
        let mut rows = TableRows::start(access, &run.env(Input::Nothing), batch)?;
        rows.expect_few(skip.saturating_add(left));
        return Ok(Cursor::Stream(Box::new(Stream { rows, skip, left })));
    }
    if let Some(column) = single_text(plan) {
        return gather_texts(run, plan, column, skip, left).map(Cursor::Texts);
    }
    let wanted = skip.saturating_add(left);
    let (mut rows, memory) = match (&plan.group, &plan.extremes) {
        (Some(group), Some(list)) => (extreme_row(run, plan, group, list)?, Charge::new(&run.session.memory)),
        (Some(group), None) => grouped(run, plan, group)?,
        (None, _) => gathered(run, plan, wanted)?,
    };
    if plan.distinct {
        sort_distinct(&mut rows, plan)?;
    } else if !plan.order.is_empty() {
        sort(&mut rows, &plan.order);
    }
    if plan.lock.is_some() {
        rows = lock_gathered(run, plan, rows, skip, left)?;
    } else {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(rows.len());
        rows.drain(..skip);
        rows.truncate(usize::try_from(left).unwrap_or(usize::MAX));
    }
    Ok(Cursor::Gathered {
        rows: rows.into_iter(),
        visible: plan.visible,
        _memory: memory,
    })
}

fn stream_rows(
    run: &mut Run<'_>,
    plan: &SelectPlan,
    stream: &mut Stream,
    max: u64,
    sink: &mut dyn Sink,
) -> Result<Progress> {
    let Some(access) = &plan.access else {
        return Ok(Progress { rows: 0, done: true });
    };
    let layout = access.table.layout();
    let outputs = &plan.outputs[..plan.visible];
    let (mut given, mut seen) = (0, 0u64);
    let mut newest = std::mem::take(&mut run.scratch.row);
    while given < max {
        if stream.left == 0 || !stream.rows.next(run.tx.reader(), access)? {
            run.scratch.row = newest;
            return Ok(Progress {
                rows: given,
                done: true,
            });
        }
        seen += 1;
        if seen.is_multiple_of(CANCEL_INTERVAL) {
            run.session.check_cancel()?;
        }
        let env = run.env(Input::Stored(layout, stream.rows.row()));
        if !qualifies(access.filter.as_ref(), &env)? {
            continue;
        }
        if stream.skip > 0 && plan.lock.is_none() {
            stream.skip -= 1;
            continue;
        }
        match plan.lock {
            None => sink.row(outputs, &env)?,
            Some((strength, wait)) => {
                if !lock(run, access, stream.rows.key(), strength, wait, &mut newest)? {
                    continue;
                }
                if stream.skip > 0 {
                    stream.skip -= 1;
                    continue;
                }
                sink.row(outputs, &run.env(Input::Stored(layout, &newest)))?;
            }
        }
        given += 1;
        stream.left -= 1;
    }
    run.scratch.row = newest;
    Ok(Progress {
        rows: given,
        done: false,
    })
}

/// Calls `each` for every row that qualifies, with its key, until it gives false.
fn for_each(run: &mut Run<'_>, plan: &SelectPlan, each: &mut dyn FnMut(&[u8], &Env<'_>) -> Result<bool>) -> Result<()> {
    let Some(access) = &plan.access else {
        let env = run.env(Input::Nothing);
        if qualifies(plan.bare_filter.as_ref(), &env)? {
            each(&[], &env)?;
        }
        return Ok(());
    };
    let batch = std::mem::take(&mut run.scratch.batch);
    let mut rows = TableRows::start(access, &run.env(Input::Nothing), batch)?;
    if plan.served > 0 && plan.limit.is_some() {
        rows.expect_end(ROWS_OF_PART);
    }
    let mut seen = 0u64;
    while rows.next(run.tx.reader(), access)? {
        seen += 1;
        if seen.is_multiple_of(CANCEL_INTERVAL) {
            run.session.check_cancel()?;
        }
        let env = run.env(Input::Stored(access.table.layout(), rows.row()));
        if qualifies(access.filter.as_ref(), &env)? && !each(rows.key(), &env)? {
            break;
        }
    }
    run.scratch.batch = rows.batch;
    Ok(())
}

fn gather_texts(run: &mut Run<'_>, plan: &SelectPlan, column: usize, skip: u64, left: u64) -> Result<Texts> {
    let mut texts = std::mem::take(&mut run.scratch.texts);
    texts.begin(&run.session.memory);
    for_each(run, plan, &mut |_, env| match env.input {
        Input::Stored(layout, row) => texts.push(layout.column_bytes(row, column)?).map(|()| true),
        _ => Err(SqlError::internal("a text column without a row")),
    })?;
    texts.arrange(plan, skip, left);
    Ok(texts)
}

/// Output rows (with hidden sort columns; where rows are to be locked, with the key at the end). Of an order the first
/// `wanted` rows are there; others may be.
fn gathered(run: &mut Run<'_>, plan: &SelectPlan, wanted: u64) -> Result<(Vec<Vec<Datum>>, Charge)> {
    if plan.lock.is_none()
        && !plan.distinct
        && let Some(mut top) = Top::new(plan, wanted, &run.session.memory)
    {
        for_each(run, plan, &mut |key, env| top.push(key, env))?;
        return match plan.keys_first {
            true => rows_of_keys(run, plan, top),
            false => Ok(top.finish()),
        };
    }
    let mut out = Vec::new();
    let mut memory = Charge::new(&run.session.memory);
    for_each(run, plan, &mut |key, env| {
        let mut row = Vec::with_capacity(plan.outputs.len() + usize::from(plan.lock.is_some()));
        for output in &plan.outputs {
            row.push(output.eval(env)?);
        }
        if plan.lock.is_some() {
            row.push(Datum::Bytes(key.to_vec()));
        }
        memory.grow(size_of_row(&row)).map_err(too_much)?;
        out.push(row);
        Ok(true)
    })?;
    Ok((out, memory))
}

/// The rows of the first keys, which the same snapshot has seen in the index.
fn rows_of_keys(run: &Run<'_>, plan: &SelectPlan, top: Top<'_>) -> Result<(Vec<Vec<Datum>>, Charge)> {
    let Some(access) = &plan.access else {
        return Err(SqlError::internal("keys without a table"));
    };
    let (keys, mut memory) = top.finish_keys();
    let (mut out, mut stored) = (Vec::with_capacity(keys.len()), Vec::new());
    for (at, key) in keys.iter().enumerate() {
        if (at as u64 + 1).is_multiple_of(CANCEL_INTERVAL) {
            run.session.check_cancel()?;
        }
        if !run.tx.reader().get(&access.table, key, &mut stored)? {
            return Err(SqlError::internal("an index leads to a row that its table has not"));
        }
        let env = run.env(Input::Stored(access.table.layout(), &stored));
        let row = plan.outputs.iter().map(|o| o.eval(&env)).collect::<Result<Vec<_>>>()?;
        memory.grow(size_of_row(&row)).map_err(too_much)?;
        out.push(row);
    }
    Ok((out, memory))
}

/// Locks rows in their final order, and computes them again from what was locked.
fn lock_gathered(
    run: &mut Run<'_>,
    plan: &SelectPlan,
    rows: Vec<Vec<Datum>>,
    mut skip: u64,
    left: u64,
) -> Result<Vec<Vec<Datum>>> {
    let (Some((strength, wait)), Some(access)) = (plan.lock, &plan.access) else {
        return Ok(rows);
    };
    let mut out = Vec::new();
    let mut newest = Vec::new();
    for mut row in rows {
        if out.len() as u64 >= left {
            break;
        }
        let Some(Datum::Bytes(key)) = row.pop() else { continue };
        if !lock(run, access, &key, strength, wait, &mut newest)? {
            continue;
        }
        if skip > 0 {
            skip -= 1;
            continue;
        }
        let env = run.env(Input::Stored(access.table.layout(), &newest));
        out.push(plan.outputs.iter().map(|e| e.eval(&env)).collect::<Result<_>>()?);
    }
    Ok(out)
}

/// The only row of MIN and MAX that indexes give.
fn extreme_row(run: &mut Run<'_>, plan: &SelectPlan, group: &GroupPlan, list: &[Extreme]) -> Result<Vec<Vec<Datum>>> {
    let row = extremes(run, list)?;
    let env = run.env(Input::Values(&row));
    if !qualifies(group.having.as_ref(), &env)? {
        return Ok(Vec::new());
    }
    Ok(vec![plan.outputs.iter().map(|e| e.eval(&env)).collect::<Result<_>>()?])
}

fn grouped(run: &mut Run<'_>, plan: &SelectPlan, group: &GroupPlan) -> Result<(Vec<Vec<Datum>>, Charge)> {
    let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
    let fresh = || group.aggregates.iter().map(Accumulator::new).collect::<Vec<_>>();
    let mut groups: Vec<(Vec<Datum>, Vec<Accumulator>)> = Vec::new();
    if group.keys.is_empty() {
        groups.push((Vec::new(), fresh()));
    }
    let mut memory = Charge::new(&run.session.memory);
    let mut key_bytes = Vec::new();
    for_each(run, plan, &mut |_, env| {
        let mut at = 0;
        if !group.keys.is_empty() {
            key_bytes.clear();
            for (key, ty) in &group.keys {
                key::push(*ty, &key.value(env)?.get(), &mut key_bytes);
            }
            at = match places.get(&key_bytes) {
                Some(at) => *at,
                None => {
                    let keys: Vec<Datum> = group.keys.iter().map(|(k, _)| k.eval(env)).collect::<Result<_>>()?;
                    let bytes = 2 * key_bytes.len() + size_of_row(&keys) + 128 * group.aggregates.len();
                    memory.grow(bytes).map_err(too_much)?;
                    places.insert(key_bytes.clone(), groups.len());
                    groups.push((keys, fresh()));
                    groups.len() - 1
                }
            };
        }
        let accumulators = &mut groups[at].1;
        accumulators
            .iter_mut()
            .zip(&group.aggregates)
            .try_for_each(|(acc, aggregate)| acc.add(aggregate, env))?;
        Ok(true)
    })?;
    let mut out = Vec::with_capacity(groups.len());
    for (mut row, accumulators) in groups {
        for accumulator in accumulators {
            row.push(accumulator.finish()?);
        }
        let env = run.env(Input::Values(&row));
        if qualifies(group.having.as_ref(), &env)? {
            out.push(plan.outputs.iter().map(|e| e.eval(&env)).collect::<Result<_>>()?);
        }
    }
    Ok((out, memory))
}

/// Orders by ORDER BY, then by the other columns, and drops repetitions.
fn sort_distinct(rows: &mut Vec<Vec<Datum>>, plan: &SelectPlan) -> Result<()> {
    let trim = |at: usize| matches!(plan.types.get(at), Some(ColumnType::Char(_)));
    let mut keys = plan.order.clone();
    for at in 0..plan.visible {
        if !keys.iter().any(|k| k.at == at) {
            keys.push(SortKey {
                at,
                descending: false,
                nulls_first: false,
                trim: trim(at),
            });
        }
    }
    sort(rows, &keys);
    rows.dedup_by(|a, b| (0..plan.visible).all(|at| same(&a[at], &b[at], trim(at))));
    Ok(())
}

/// A refusal to gather more, with what would help.
#[cold]
fn too_much(error: cenote_engine::Error) -> SqlError {
    SqlError::from(error).with_hint("Restrict the rows, or add an index that gives the order.")
}
