//! Subqueries in expressions: each runs on a tuple of its own when its answer is asked for, and remembers the last
//! answer.

use super::common::CommonState;
use super::gather::{copy_out, keep};
use super::{Context, State, next, push_key, reset, rewind};
use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::expr::{Env, Expr, Subqueries, Subquery};
use crate::plan::learned::Counted;
use crate::plan::row::{Answer, NodeRun, Profile, RowPlan, Subplan};
use cenote_engine::{Charge, ColumnType, Datum, Reader};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

/// What the subqueries of a run share, and where each stands.
pub(super) struct Subplans<'r> {
    pub reader: &'r Reader,
    pub session: &'r SessionEnv,
    pub params: &'r [Datum],
    pub only: Option<&'r [u8]>,
    pub profile: Option<&'r Profile>,
    pub plan: &'r RowPlan,
    pub states: &'r [RefCell<SubplanState>],
    pub commons: &'r [RefCell<CommonState>],
    /// What each scan has done.
    pub counted: &'r [Cell<Counted>],
    /// Rows that the nodes have passed: about the steps of the run.
    pub ticks: Cell<u64>,
    /// Ticks after which the run is given up, until it has given a row; and that it is.
    pub limit: Cell<u64>,
    pub given_up: Cell<bool>,
}

impl Subqueries for Subplans<'_> {
    fn answer(&self, subquery: &Subquery, env: &Env<'_>) -> Result<Datum> {
        let args = subquery
            .args
            .iter()
            .map(|arg| arg.eval(env))
            .collect::<Result<Vec<_>>>()?;
        let at = usize::from(subquery.at);
        let (Some(plan), Some(state)) = (self.plan.subplans.get(at), self.states.get(at)) else {
            return Err(SqlError::internal("a subquery of another plan"));
        };
        let Ok(mut state) = state.try_borrow_mut() else {
            return Err(SqlError::internal("a subquery inside itself"));
        };
        state.answer(plan, (args, subquery.volatile), self)
    }
}

/// The items of `IN (subquery)` that are the same for each operand.
struct Items {
    keys: HashSet<Vec<u8>>,
    /// Rows in which an item is NULL.
    partial: Vec<Vec<Datum>>,
    /// All rows, where they have several items: an operand with NULL is compared with each.
    rows: Vec<Vec<Datum>>,
    memory: Charge,
}

/// Where a subquery stands.
#[derive(Default)]
pub struct SubplanState {
    tuple: Vec<Datum>,
    state: Option<State>,
    /// The last answer, and its arguments.
    last: Option<(Vec<Datum>, Datum)>,
    items: Option<Items>,
    memory: Option<Charge>,
}

impl SubplanState {
    /// The answer for these arguments; `volatile`: it may differ from one for the same.
    fn answer(&mut self, plan: &Subplan, (args, volatile): (Vec<Datum>, bool), run: &Subplans<'_>) -> Result<Datum> {
        if let Some((of, answer)) = &self.last
            && !volatile
            && of.iter().zip(&args).all(|(a, b)| is_identical(a, b))
        {
            return Ok(answer.clone());
        }
        self.begin(plan, run)?;
        if let Some(profile) = run.profile.filter(|_| self.items.is_none()) {
            let begun = NodeRun {
                runs: 1,
                ..NodeRun::default()
            };
            profile.add(&plan.node, begun);
        }
        for (slot, arg) in plan.slots.iter().zip(&args) {
            self.tuple[usize::from(*slot)].clone_from(arg);
        }
        let answer = self.run(plan, run)?;
        if !plan.correlated && args.is_empty() {
            // It is not run again.
            *self = SubplanState::default();
        }
        self.last = Some((args, answer.clone()));
        Ok(answer)
    }

    /// Makes it ready for another run.
    fn begin(&mut self, plan: &Subplan, run: &Subplans<'_>) -> Result<()> {
        match &mut self.state {
            Some(state) if self.items.is_none() => rewind(&plan.node, state),
            Some(_) => {}
            None => {
                let mut memory = Charge::new(&run.session.memory);
                memory.grow(run.plan.slots * size_of::<Datum>())?;
                self.memory = Some(memory);
                self.tuple = vec![Datum::Null; run.plan.slots];
                self.state = Some(State::of(&plan.node));
            }
        }
        Ok(())
    }

    fn run(&mut self, plan: &Subplan, run: &Subplans<'_>) -> Result<Datum> {
        let Some(state) = &mut self.state else {
            return Err(SqlError::internal("a subquery that has not begun"));
        };
        let mut cx = Context::of(run, &mut self.tuple);
        match &plan.answer {
            Answer::Scalar(value) => scalar(value, (plan, state), &mut cx),
            Answer::Exists => next(&plan.node, state, &mut cx).map(Datum::Bool),
            Answer::Any {
                condition, keys: None, ..
            } => any(condition, (plan, state), &mut cx),
            Answer::Any {
                condition,
                keys: Some(keys),
                items,
            } => {
                if self.items.is_none() {
                    self.items = Some(Items::read(keys, items, (plan, state), &mut cx)?);
                }
                match &self.items {
                    Some(set) => set.contains(keys, (condition, items), &mut cx),
                    None => Ok(Datum::Null),
                }
            }
        }
    }
}

fn scalar(value: &Expr, (plan, state): (&Subplan, &mut State), cx: &mut Context<'_>) -> Result<Datum> {
    if !next(&plan.node, state, cx)? {
        return Ok(Datum::Null);
    }
    let answer = value.eval(&cx.env())?;
    if next(&plan.node, state, cx)? {
        let text = "more than one row returned by a subquery used as an expression";
        return Err(SqlError::new(code::CARDINALITY_VIOLATION, text));
    }
    Ok(answer)
}

fn any(condition: &Expr, (plan, state): (&Subplan, &mut State), cx: &mut Context<'_>) -> Result<Datum> {
    let mut unknown = false;
    while next(&plan.node, state, cx)? {
        match condition.test(&cx.env())? {
            Some(true) => return Ok(Datum::Bool(true)),
            Some(false) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(false) })
}

impl Items {
    fn read(
        keys: &[(Expr, Expr, ColumnType)],
        items: &[u16],
        (plan, state): (&Subplan, &mut State),
        cx: &mut Context<'_>,
    ) -> Result<Items> {
        let mut set = Items {
            keys: HashSet::new(),
            partial: Vec::new(),
            rows: Vec::new(),
            memory: Charge::new(&cx.session.memory),
        };
        while next(&plan.node, state, cx)? {
            let (key, has_null) = key_of(keys.iter().map(|(_, item, ty)| (item, *ty)), cx)?;
            if set.keys.contains(&key) {
                continue;
            }
            set.memory.grow(key.len() + 64)?;
            set.keys.insert(key);
            if has_null {
                keep(&mut set.partial, items, &mut set.memory, cx)?;
            } else if keys.len() > 1 {
                keep(&mut set.rows, items, &mut set.memory, cx)?;
            }
        }
        reset(&plan.node, state);
        Ok(set)
    }

    /// Whether the operands among the arguments are one of the items. NULL where they are not, and the comparison with
    /// one is unknown.
    fn contains(
        &self,
        keys: &[(Expr, Expr, ColumnType)],
        (condition, items): (&Expr, &[u16]),
        cx: &mut Context<'_>,
    ) -> Result<Datum> {
        if self.keys.is_empty() {
            return Ok(Datum::Bool(false));
        }
        let (key, has_null) = key_of(keys.iter().map(|(operand, _, ty)| (operand, *ty)), cx)?;
        if !has_null && self.keys.contains(&key) {
            return Ok(Datum::Bool(true));
        }
        if keys.len() == 1 {
            let unknown = has_null || !self.partial.is_empty();
            return Ok(if unknown { Datum::Null } else { Datum::Bool(false) });
        }
        let others = if has_null { self.rows.as_slice() } else { &[] };
        for row in self.partial.iter().chain(others) {
            cx.tick()?;
            copy_out(row, items, cx);
            if condition.test(&cx.env())?.is_none() {
                return Ok(Datum::Null);
            }
        }
        Ok(Datum::Bool(false))
    }
}

/// The key of the tuple, and whether a part of it is NULL.
fn key_of<'e>(parts: impl Iterator<Item = (&'e Expr, ColumnType)>, cx: &Context<'_>) -> Result<(Vec<u8>, bool)> {
    let (env, mut key, mut has_null) = (cx.env(), Vec::new(), false);
    for (expr, ty) in parts {
        let value = expr.value(&env)?;
        let value = value.get();
        has_null |= value.is_null();
        push_key(ty, &value, &mut key);
    }
    Ok((key, has_null))
}

/// Whether nothing tells the values apart: those that are equal may still show otherwise, as 1.0 and 1.00 do.
fn is_identical(a: &Datum, b: &Datum) -> bool {
    match (a, b) {
        (Datum::Float4(a), Datum::Float4(b)) => a.to_bits() == b.to_bits(),
        (Datum::Float8(a), Datum::Float8(b)) => a.to_bits() == b.to_bits(),
        (Datum::Numeric(x), Datum::Numeric(y)) => x == y && x.dscale() == y.dscale(),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_engine::Numeric;

    #[test]
    fn equal_values_that_show_otherwise_are_not_identical() {
        let numeric = |text| Datum::Numeric(Numeric::parse(text).expect("a number"));
        assert!(is_identical(&numeric("1.50"), &numeric("1.50")));
        assert!(!is_identical(&numeric("1.5"), &numeric("1.50")));
        assert!(!is_identical(&Datum::Float8(0.0), &Datum::Float8(-0.0)));
        assert!(is_identical(&Datum::Float8(f64::NAN), &Datum::Float8(f64::NAN)));
        assert!(is_identical(&Datum::Null, &Datum::Null) && !is_identical(&Datum::Null, &Datum::Int4(0)));
    }
}
