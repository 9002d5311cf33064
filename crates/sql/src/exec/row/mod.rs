//! The row executor: runs the nodes of a [`RowPlan`] over one tuple, a row at a time.
//!
//! A node's state stands beside it ([`State`]), so a plan is shared and kept. `next` writes a node's slots and says
//! whether there is a row; `reset` makes it begin anew, since what it reads of the rows around has changed. What reads
//! nothing around it (the kept side of a join under its own loop) keeps its rows. Subqueries in expressions have states
//! and tuples of their own.

mod common;
mod frame;
mod gather;
mod join;
mod profile;
mod scan;
mod series;
mod subquery;
mod window;

use self::common::CommonState;
use self::gather::{AggregateState, DistinctState, KeptRows, SetState};
use self::join::{HashState, NestedState};
use self::scan::ScanState;
use self::series::SeriesState;
use self::subquery::{SubplanState, Subplans};
use self::window::WindowState;
use super::Run;
use super::sink::{Progress, Sink};
use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::expr::{Env, Expr, Input};
use crate::plan::learned::Counted;
use crate::plan::row::{Node, Profile, RowPlan, Step};
use cenote_engine::{ColumnType, Datum, DatumRef, Reader, key};
use std::cell::{Cell, RefCell};

/// Rows between two looks at the cancel flag.
const CANCEL_INTERVAL: u64 = 1024;

/// What the nodes of one run share.
pub(super) struct Context<'r> {
    reader: &'r Reader,
    session: &'r SessionEnv,
    params: &'r [Datum],
    tuple: &'r mut Vec<Datum>,
    /// The only row of the statement's target, where the statement is asked about it alone.
    only: Option<&'r [u8]>,
    /// Measures what the nodes do.
    profile: Option<&'r Profile>,
    /// Subqueries in expressions.
    subplans: &'r Subplans<'r>,
}

impl<'r> Context<'r> {
    /// What a subquery or WITH query sees: the run, on a tuple of its own.
    fn of(run: &'r Subplans<'r>, tuple: &'r mut Vec<Datum>) -> Context<'r> {
        Context {
            reader: run.reader,
            session: run.session,
            params: run.params,
            tuple,
            only: run.only,
            profile: run.profile,
            subplans: run,
        }
    }
}

impl Context<'_> {
    fn env(&self) -> Env<'_> {
        Env {
            params: self.params,
            input: Input::Values(self.tuple),
            outer: &[],
            session: self.session,
            sequences: None,
            subqueries: Some(self.subplans),
        }
    }

    fn holds(&self, condition: &Expr) -> Result<bool> {
        condition.holds(&self.env())
    }

    /// Looks at the cancel flag now and then.
    #[inline]
    fn tick(&mut self) -> Result<()> {
        let ticks = self.subplans.ticks.get() + 1;
        self.subplans.ticks.set(ticks);
        match ticks.is_multiple_of(CANCEL_INTERVAL) {
            true => self.look_around(ticks),
            false => Ok(()),
        }
    }

    #[cold]
    fn look_around(&mut self, ticks: u64) -> Result<()> {
        self.session.check_cancel()?;
        if ticks > self.subplans.limit.get() {
            self.subplans.given_up.set(true);
            return Err(SqlError::internal("a run that is given up"));
        }
        Ok(())
    }

    /// Writes the value, if there is one.
    fn write_some(&mut self, slot: u16, value: Option<Datum>) -> bool {
        value.map(|value| self.write(slot, value)).is_some()
    }

    fn write(&mut self, slot: u16, value: Datum) {
        self.tuple[usize::from(slot)] = value;
    }
}

/// Where a node stands.
pub(super) enum State {
    Row { given: bool },
    Scan(Box<ScanState>),
    Nested(Box<NestedState>),
    Hash(Box<HashState>),
    Over(Box<State>),
    Aggregate(Box<State>, AggregateState),
    Distinct(Box<State>, DistinctState),
    Kept(Box<State>, KeptRows),
    Window(Box<State>, WindowState),
    Limit(Box<State>, Option<(u64, u64)>),
    Set(Box<SetState>),
    Values { at: usize },
    Common { at: usize },
    Series(Box<SeriesState>),
}

impl State {
    /// A node that has not begun.
    fn of(node: &Node) -> State {
        let under = |node: &Node| Box::new(State::of(node));
        match &node.step {
            Step::Row => State::Row { given: false },
            Step::Scan(_) => State::Scan(Box::default()),
            Step::Nested { outer, inner, .. } => State::Nested(Box::new(NestedState::of(outer, inner))),
            Step::Hash { outer, build, .. } => State::Hash(Box::new(HashState::of(outer, build))),
            Step::Filter { input, .. } | Step::Project { input, .. } => State::Over(under(input)),
            Step::Aggregate { input, .. } => State::Aggregate(under(input), AggregateState::default()),
            Step::Distinct { input, .. } => State::Distinct(under(input), DistinctState::default()),
            Step::Sort { input, .. } | Step::Cache { input, .. } => State::Kept(under(input), KeptRows::default()),
            Step::Window { input, .. } => State::Window(under(input), WindowState::default()),
            Step::Limit { input, .. } => State::Limit(under(input), None),
            Step::Set { left, right, .. } => State::Set(Box::new(SetState::of(left, right))),
            Step::Values { .. } => State::Values { at: 0 },
            Step::Common { .. } => State::Common { at: 0 },
            Step::Series { .. } | Step::Unnest { .. } => State::Series(Box::default()),
        }
    }
}

/// Writes the node's next row; false at its end.
fn next(node: &Node, state: &mut State, cx: &mut Context<'_>) -> Result<bool> {
    match cx.profile {
        None => step(node, state, cx),
        Some(profile) => profile::measured(node, state, cx, profile),
    }
}

fn step(node: &Node, state: &mut State, cx: &mut Context<'_>) -> Result<bool> {
    match (&node.step, state) {
        (Step::Scan(scan), State::Scan(state)) => state.next(scan, cx),
        (Step::Nested { .. }, State::Nested(state)) => state.next(node, cx),
        (Step::Hash { .. }, State::Hash(state)) => state.next(node, cx),
        (Step::Filter { input, condition }, State::Over(state)) => {
            while next(input, state, cx)? {
                if cx.holds(condition)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Step::Project { input, values }, State::Over(state)) => {
            if !next(input, state, cx)? {
                return Ok(false);
            }
            for (slot, expr) in values {
                let value = expr.eval(&cx.env())?;
                cx.write(*slot, value);
            }
            Ok(true)
        }
        (Step::Aggregate { input, .. }, State::Aggregate(state, groups)) => groups.next(node, (input, state), cx),
        (Step::Distinct { input, slots }, State::Distinct(state, seen)) => {
            while next(input, state, cx)? {
                if seen.is_new(slots, cx)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (
            Step::Sort {
                input,
                keys,
                carried,
                first,
            },
            State::Kept(state, rows),
        ) => {
            if !rows.is_filled() {
                let wanted = wanted_rows(first.as_ref(), cx)?;
                rows.fill_sorted((input, state), carried, (keys, wanted), cx)?;
            }
            rows.give(carried, cx)
        }
        (Step::Window { input, .. }, State::Window(state, rows)) => rows.next(node, (input, state), cx),
        (Step::Cache { input, carried }, State::Kept(state, rows)) => {
            rows.fill((input, state), carried, cx)?;
            rows.give(carried, cx)
        }
        (Step::Limit { input, limit, offset }, State::Limit(state, left)) => {
            limited((input, state), (limit.as_ref(), offset.as_ref()), left, cx)
        }
        (Step::Set { .. }, State::Set(state)) => state.next(node, cx),
        (_, state) => leaf(node, state, cx),
    }
}

/// The next row of a node over no other.
fn leaf(node: &Node, state: &mut State, cx: &mut Context<'_>) -> Result<bool> {
    match (&node.step, state) {
        (Step::Row, State::Row { given }) => Ok(!std::mem::replace(given, true)),
        (Step::Values { rows, slots }, State::Values { at }) => {
            cx.tick()?;
            let Some(row) = rows.get(*at) else { return Ok(false) };
            *at += 1;
            for (slot, expr) in slots.iter().zip(row) {
                let value = expr.eval(&cx.env())?;
                cx.write(*slot, value);
            }
            Ok(true)
        }
        (
            Step::Series {
                start,
                stop,
                by,
                ty,
                slot,
            },
            State::Series(state),
        ) => {
            let found = state.number((start, stop, by.as_ref()), *ty, cx)?;
            Ok(cx.write_some(*slot, found))
        }
        (Step::Unnest { array, element, slot }, State::Series(state)) => {
            let found = state.element(array, *element, cx)?;
            Ok(cx.write_some(*slot, found))
        }
        (Step::Common { at: which, columns }, State::Common { at }) => {
            let found = common_row((*which, *at), columns, cx)?;
            *at += usize::from(found);
            Ok(found)
        }
        _ => Err(SqlError::internal("a node with the state of another")),
    }
}

/// Makes the node begin anew.
fn reset(node: &Node, state: &mut State) {
    match (&node.step, state) {
        (Step::Scan(_), State::Scan(state)) => state.reset(),
        (Step::Nested { outer, inner, .. }, State::Nested(state)) => state.reset(outer, inner),
        (Step::Hash { outer, build, .. }, State::Hash(state)) => state.reset(outer, build),
        (Step::Filter { input, .. } | Step::Project { input, .. }, State::Over(state)) => reset(input, state),
        (Step::Aggregate { input, .. }, State::Aggregate(state, groups)) => {
            *groups = AggregateState::default();
            reset(input, state);
        }
        (Step::Distinct { input, .. }, State::Distinct(state, seen)) => {
            *seen = DistinctState::default();
            reset(input, state);
        }
        (Step::Sort { input, .. } | Step::Cache { input, .. }, State::Kept(state, rows)) => {
            *rows = KeptRows::default();
            reset(input, state);
        }
        (Step::Window { input, .. }, State::Window(state, rows)) => {
            *rows = WindowState::default();
            reset(input, state);
        }
        (Step::Limit { input, .. }, State::Limit(state, left)) => {
            *left = None;
            reset(input, state);
        }
        (_, state) => *state = State::of(node),
    }
}

/// Begins anew for another row of the loop around: what a cache keeps is the same for each.
fn rewind(node: &Node, state: &mut State) {
    match (&node.step, state) {
        (Step::Cache { .. }, State::Kept(_, rows)) => rows.rewind(),
        (_, state) => reset(node, state),
    }
}

/// Writes the columns of a row of a WITH query, by its place.
fn common_row((which, at): (u16, usize), columns: &[(usize, u16)], cx: &mut Context<'_>) -> Result<bool> {
    cx.tick()?;
    let (run, which) = (cx.subplans, usize::from(which));
    let (Some(plan), Some(state)) = (run.plan.commons.get(which), run.commons.get(which)) else {
        return Err(SqlError::internal("a WITH query of another plan"));
    };
    let Ok(mut state) = state.try_borrow_mut() else {
        return Err(SqlError::internal("a WITH query inside itself"));
    };
    let Some(row) = state.row(at, plan, run)? else {
        return Ok(false);
    };
    for (column, slot) in columns {
        cx.tuple[usize::from(*slot)].clone_from(&row[*column]);
    }
    Ok(true)
}

fn limited(
    (input, state): (&Node, &mut State),
    (limit, offset): (Option<&Expr>, Option<&Expr>),
    left: &mut Option<(u64, u64)>,
    cx: &mut Context<'_>,
) -> Result<bool> {
    let (skip, take) = match left {
        Some(counts) => counts,
        None => left.insert((
            count_of(offset, 0, ("OFFSET", code::INVALID_OFFSET), cx)?,
            count_of(limit, u64::MAX, ("LIMIT", code::INVALID_LIMIT), cx)?,
        )),
    };
    while *take > 0 && next(input, state, cx)? {
        if *skip > 0 {
            *skip -= 1;
            continue;
        }
        *take -= 1;
        return Ok(true);
    }
    Ok(false)
}

/// The first rows that LIMIT and OFFSET read; all without them.
fn wanted_rows(first: Option<&(Expr, Option<Expr>)>, cx: &Context<'_>) -> Result<u64> {
    let Some((limit, offset)) = first else {
        return Ok(u64::MAX);
    };
    let skip = count_of(offset.as_ref(), 0, ("OFFSET", code::INVALID_OFFSET), cx)?;
    let take = count_of(Some(limit), u64::MAX, ("LIMIT", code::INVALID_LIMIT), cx)?;
    Ok(skip.saturating_add(take))
}

fn count_of(expr: Option<&Expr>, none: u64, (word, state): (&str, &'static str), cx: &Context<'_>) -> Result<u64> {
    match expr.map(|e| e.eval(&cx.env())).transpose()? {
        None | Some(Datum::Null) => Ok(none),
        Some(Datum::Int8(n)) if n >= 0 => Ok(n as u64),
        Some(_) => Err(SqlError::new(state, format!("{word} must not be negative"))),
    }
}

/// Appends a value's part of a key by which values are compared for equality; integers of all widths are alike.
fn push_key(ty: ColumnType, value: &DatumRef<'_>, out: &mut Vec<u8>) {
    match (ty, value) {
        (ColumnType::Int8, DatumRef::Int4(v)) => key::push(ty, &DatumRef::Int8(i64::from(*v)), out),
        (ColumnType::Int8, DatumRef::Int2(v)) => key::push(ty, &DatumRef::Int8(i64::from(*v)), out),
        (ty, value) => key::push(ty, value, out),
    }
}

/// What became of a run that may be given up.
pub enum Ran {
    /// It gave rows, or is at its end.
    Gave(Progress),
    /// It has given nothing, and took too many steps; or gathered more than the session may (this error says so).
    GivenUp(Option<SqlError>),
}

/// A run of a plan, between two executions of its portal.
pub struct RowCursor {
    tuple: Vec<Datum>,
    /// Steps before this execution.
    steps: u64,
    counted: Vec<Cell<Counted>>,
    /// A row has been given.
    given: bool,
    state: State,
    subplans: Box<[RefCell<SubplanState>]>,
    commons: Box<[RefCell<CommonState>]>,
    /// The only row of the target, where the query is asked about it alone.
    only: Option<Vec<u8>>,
    done: bool,
}

impl RowCursor {
    /// A run that has not begun.
    pub fn new(plan: &RowPlan) -> RowCursor {
        RowCursor {
            tuple: vec![Datum::Null; plan.slots],
            steps: 0,
            counted: plan.scans.iter().map(|_| Cell::default()).collect(),
            given: false,
            state: State::of(&plan.root),
            subplans: plan.subplans.iter().map(|_| RefCell::default()).collect(),
            commons: plan.commons.iter().map(|_| RefCell::default()).collect(),
            only: None,
            done: false,
        }
    }

    /// A run about one row of the target alone.
    pub fn about(plan: &RowPlan, row: &[u8]) -> RowCursor {
        RowCursor {
            only: Some(row.to_vec()),
            ..RowCursor::new(plan)
        }
    }

    /// Gives up to `max` rows to the sink.
    ///
    /// # Errors
    /// An expression fails, as the engine's reads, or as the sink; 53200: the session may gather no more.
    pub fn advance(&mut self, run: &Run<'_>, plan: &RowPlan, max: u64, sink: &mut dyn Sink) -> Result<Progress> {
        self.advance_by(run, run.tx.reader(), plan, max, sink)
    }

    /// Gives up to `max` rows to the sink; a run that has given none is given up after `limit` steps, or where it may
    /// gather no more.
    ///
    /// # Errors
    /// As `advance`.
    pub fn advance_up_to(
        &mut self,
        run: &Run<'_>,
        plan: &RowPlan,
        (max, limit): (u64, u64),
        sink: &mut dyn Sink,
    ) -> Result<Ran> {
        let mut given_up = false;
        let may_give_up = limit != u64::MAX && !self.given;
        let ran = self.pull(run, (run.tx.reader(), plan), (max, limit, &mut given_up), sink);
        match ran {
            Err(_) if given_up => Ok(Ran::GivenUp(None)),
            Err(error) if may_give_up && !self.given && error.code() == code::OUT_OF_MEMORY => {
                Ok(Ran::GivenUp(Some(error)))
            }
            ran => ran.map(Ran::Gave),
        }
    }

    /// What each scan has done so far.
    pub fn counted(&self) -> Vec<Counted> {
        self.counted.iter().map(Cell::get).collect()
    }

    /// Steps of the run so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// As `advance`, by another reader.
    ///
    /// # Errors
    /// As `advance`.
    pub fn advance_by(
        &mut self,
        run: &Run<'_>,
        reader: &Reader,
        plan: &RowPlan,
        max: u64,
        sink: &mut dyn Sink,
    ) -> Result<Progress> {
        self.pull(run, (reader, plan), (max, u64::MAX, &mut false), sink)
    }

    fn pull(
        &mut self,
        run: &Run<'_>,
        (reader, plan): (&Reader, &RowPlan),
        (max, limit, given_up): (u64, u64, &mut bool),
        sink: &mut dyn Sink,
    ) -> Result<Progress> {
        let subplans = Subplans {
            reader,
            session: run.session,
            params: run.params,
            only: self.only.as_deref(),
            profile: run.profile,
            plan,
            states: &self.subplans,
            commons: &self.commons,
            counted: &self.counted,
            ticks: Cell::new(self.steps),
            limit: Cell::new(if self.given { u64::MAX } else { limit }),
            given_up: Cell::new(false),
        };
        let mut cx = Context {
            reader,
            session: run.session,
            params: run.params,
            tuple: &mut self.tuple,
            only: self.only.as_deref(),
            profile: run.profile,
            subplans: &subplans,
        };
        let mut rows = 0;
        while rows < max && !self.done {
            let found = next(&plan.root, &mut self.state, &mut cx);
            (self.steps, *given_up) = (subplans.ticks.get(), subplans.given_up.get());
            if !found? {
                self.done = true;
                break;
            }
            self.given = true;
            subplans.limit.set(u64::MAX);
            sink.row(&plan.outputs, &cx.env())?;
            rows += 1;
        }
        Ok(Progress { rows, done: self.done })
    }

    /// Bytes that it holds between two executions and that are not charged to the session.
    pub fn held_bytes(&self) -> usize {
        self.tuple.len() * size_of::<Datum>()
    }
}
