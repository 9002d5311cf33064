//! Values that planning may look at: constants, and what is made of them and of the parameters of the run that it plans
//! for.
//!
//! Invariant: a plan holds none of these values. It names the parameter, and so is right for every value of it; only
//! which plan is taken depends on the value. What planning would have looked at and did not know it notes
//! ([`Known::asked`]): where it notes nothing, no other values would have given another plan.

use crate::env::SessionEnv;
use crate::expr::{Env, Expr, Input};
use crate::plan::learned::Learned;
use crate::types::array;
use cenote_engine::{ColumnType, Datum};
use std::borrow::Cow;
use std::cell::Cell;

/// A longer array is not taken apart while planning.
const ARRAY_BYTES: usize = 64 << 10;

/// What is known of values while one statement is planned.
pub struct Known<'a> {
    session: &'a SessionEnv,
    /// Of the run that is planned for; None: of any.
    params: Option<&'a [Datum]>,
    /// Of former runs of the plan.
    learned: Option<&'a Learned>,
    asked: Cell<bool>,
    cost: Cell<f64>,
}

impl<'a> Known<'a> {
    /// What is known for a run with these parameters; None: for any run.
    pub fn new(session: &'a SessionEnv, params: Option<&'a [Datum]>) -> Known<'a> {
        Known {
            session,
            params,
            learned: None,
            asked: Cell::new(false),
            cost: Cell::new(0.0),
        }
    }

    /// Also what former runs have told.
    pub fn with(self, learned: Option<&'a Learned>) -> Known<'a> {
        Known { learned, ..self }
    }

    /// The rows that a run of such a scan has given, where the plan before was wrong.
    pub fn learned(&self, alias: &str, around: bool) -> Option<f64> {
        self.learned?.rows(alias, around)
    }

    /// Whether an estimate would have looked at the value of a parameter that is not known.
    pub fn asked(&self) -> bool {
        self.asked.get()
    }

    /// Whether the cost of the plan will be compared with that of another.
    pub fn is_compared(&self) -> bool {
        self.asked.get() || self.params.is_some()
    }

    /// Steps of a run of the plan, as estimated.
    pub fn cost(&self) -> f64 {
        self.cost.get()
    }

    /// Notes what a run of the plan costs.
    pub fn note_cost(&self, cost: f64) {
        self.cost.set(cost);
    }

    /// The value of an expression that is the same for each row, where it is known.
    pub fn value<'e>(&'e self, expr: &'e Expr) -> Option<Cow<'e, Datum>> {
        let value = self.value_if_known(expr);
        if value.is_none() && self.params.is_none() && depends_on_a_run(expr) {
            self.asked.set(true);
        }
        value
    }

    /// As [`value`](Self::value), where little depends on the value.
    pub fn value_if_known<'e>(&'e self, expr: &'e Expr) -> Option<Cow<'e, Datum>> {
        match expr {
            Expr::Const(value) => Some(Cow::Borrowed(value)),
            Expr::Param(at) => self.params?.get(usize::from(*at)).map(Cow::Borrowed),
            Expr::Column(_) | Expr::Outer(_) | Expr::Proposed(_) => None,
            computed => self.computed(computed).map(Cow::Owned),
        }
    }

    fn computed(&self, expr: &Expr) -> Option<Datum> {
        let (mut fixed, mut open) = (true, false);
        expr.walk(&mut |e| match e {
            Expr::Column(_) | Expr::Outer(_) | Expr::Proposed(_) | Expr::Subquery(_) => fixed = false,
            Expr::Param(_) => open = true,
            Expr::Call(call) => fixed &= !call.function.is_volatile(),
            _ => {}
        });
        if !fixed || open && self.params.is_none() {
            return None;
        }
        let env = Env {
            params: self.params.unwrap_or_default(),
            input: Input::Nothing,
            outer: &[],
            session: self.session,
            sequences: None,
            subqueries: None,
        };
        expr.eval(&env).ok()
    }

    /// The elements of an array, where it is known.
    pub fn elements(&self, array: &Expr, element: ColumnType) -> Option<Vec<Datum>> {
        let array = self.value(array)?;
        if matches!(&*array, Datum::Text(text) if text.len() > ARRAY_BYTES) {
            return None;
        }
        array::values(&array.as_ref().as_ref(), element, self.session.text_context()).ok()
    }

    /// The rows that LIMIT and OFFSET ask for, `guess` for each of them that only a run gives; None without LIMIT.
    pub fn rows_wanted(&self, limit: Option<&Expr>, offset: Option<&Expr>, guess: f64) -> Option<f64> {
        let count = |expr: &Expr| match self.value(expr).as_deref() {
            Some(Datum::Int8(n)) => Some(n.max(&0).to_owned() as f64),
            Some(_) => None,
            None => Some(guess),
        };
        Some(count(limit?)? + offset.and_then(count).unwrap_or(0.0))
    }
}

/// Whether a parameter is part of an expression that is the same for each row.
fn depends_on_a_run(expr: &Expr) -> bool {
    let (mut fixed, mut open) = (true, false);
    expr.walk(&mut |e| match e {
        Expr::Column(_) | Expr::Outer(_) | Expr::Proposed(_) | Expr::Subquery(_) => fixed = false,
        Expr::Param(_) => open = true,
        _ => {}
    });
    fixed && open
}
