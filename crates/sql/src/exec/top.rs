//! The first rows of an order: what is behind them is not kept.

use super::order::{compare_keys, sort};
use super::sink::size_of_row;
use crate::error::Result;
use crate::expr::{Env, Expr};
use crate::plan::select::{SelectPlan, SortKey};
use cenote_engine::{Account, Charge, Datum};
use std::cmp::Ordering;
use std::sync::Arc;

/// Rows up to which the first of an order are kept apart.
const KEPT_MAX: u64 = 100_000;
/// Rows beyond those wanted that are gathered before they are sorted.
const SLACK: usize = 64;

/// Rows under way, of which the first `keep` are wanted. Of each its outputs are kept; where the plan finds the first
/// rows by an index alone, its sort keys and at the end its primary key.
pub struct Top<'p> {
    plan: &'p SelectPlan,
    keep: usize,
    /// What is kept.
    outputs: Vec<&'p Expr>,
    /// The order, over what is kept, and over the values of the sort keys alone.
    order: Vec<SortKey>,
    places: Vec<SortKey>,
    rows: Vec<Vec<Datum>>,
    /// The sort keys of the last row wanted, as far as is known.
    worst: Option<Vec<Datum>>,
    keys: Vec<Datum>,
    memory: Charge,
}

/// The sort keys as positions in a list of their values.
fn by_place(keys: &[SortKey]) -> Vec<SortKey> {
    let place = |(at, key): (usize, &SortKey)| SortKey { at, ..*key };
    keys.iter().enumerate().map(place).collect()
}

impl<'p> Top<'p> {
    /// For the first `wanted` rows of a plan's order; None where so many are wanted that all are gathered.
    pub fn new(plan: &'p SelectPlan, wanted: u64, account: &Arc<Account>) -> Option<Top<'p>> {
        let is_few = wanted <= KEPT_MAX && !plan.order.is_empty();
        let keep = usize::try_from(wanted).ok().filter(|_| is_few || plan.keys_first)?;
        let (outputs, order) = match plan.keys_first {
            true => (
                plan.order.iter().map(|key| &plan.outputs[key.at]).collect(),
                by_place(&plan.order),
            ),
            false => (plan.outputs.iter().collect(), plan.order.clone()),
        };
        Some(Top {
            plan,
            keep,
            outputs,
            order,
            places: by_place(&plan.order),
            rows: Vec::new(),
            worst: None,
            keys: Vec::with_capacity(plan.order.len()),
            memory: Charge::new(account),
        })
    }

    /// Takes in a row with this primary key; false where no row that follows can be one of the first.
    ///
    /// # Errors
    /// An output cannot be computed; 53200: the session may gather no more.
    pub fn push(&mut self, key: &[u8], env: &Env<'_>) -> Result<bool> {
        if self.keep == 0 {
            return Ok(false);
        }
        if let Some(worst) = &self.worst {
            self.keys.clear();
            for key in &self.order {
                self.keys.push(self.outputs[key.at].eval(env)?);
            }
            if compare_keys(&self.keys, worst, &self.places[..self.plan.served]) == Ordering::Greater {
                return Ok(false);
            }
            if compare_keys(&self.keys, worst, &self.places) != Ordering::Less {
                return Ok(true);
            }
        }
        let mut row = Vec::with_capacity(self.outputs.len() + 1);
        for output in &self.outputs {
            row.push(output.eval(env)?);
        }
        if self.plan.keys_first {
            row.push(Datum::Bytes(key.to_vec()));
        }
        self.memory.grow(size_of_row(&row))?;
        self.rows.push(row);
        if self.rows.len() >= self.keep.saturating_mul(2).saturating_add(SLACK) {
            self.settle();
        }
        Ok(true)
    }

    /// Drops what is not among the first.
    fn settle(&mut self) {
        self.cut();
        let last = &self.rows[self.keep - 1];
        self.worst = Some(self.order.iter().map(|key| last[key.at].clone()).collect());
    }

    /// Leaves the rows that are wanted of those so far, in order.
    fn cut(&mut self) {
        sort(&mut self.rows, &self.order);
        let keep = self.keep.min(self.rows.len());
        let dropped: usize = self.rows.drain(keep..).map(|row| size_of_row(&row)).sum();
        self.memory.shrink(dropped);
    }

    /// The primary keys of the rows wanted, in order, and the memory of what was kept: of a plan that finds them by an index
    /// alone.
    pub fn finish_keys(mut self) -> (Vec<Vec<u8>>, Charge) {
        self.cut();
        let key = |mut row: Vec<Datum>| match row.pop() {
            Some(Datum::Bytes(key)) => Some(key),
            _ => None,
        };
        (self.rows.into_iter().filter_map(key).collect(), self.memory)
    }

    /// The rows, of which the first `keep` are those wanted once they are sorted, and their memory.
    pub fn finish(self) -> (Vec<Vec<Datum>>, Charge) {
        (self.rows, self.memory)
    }
}
