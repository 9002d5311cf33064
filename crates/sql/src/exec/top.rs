//! The first rows of an order: what is behind them is not kept.

use super::order::{compare_keys, sort};
use super::sink::size_of_row;
use crate::error::Result;
use crate::expr::Env;
use crate::plan::select::{SelectPlan, SortKey};
use cenote_engine::{Account, Charge, Datum};
use std::cmp::Ordering;
use std::sync::Arc;

/// Rows up to which the first of an order are kept apart.
const KEPT_MAX: u64 = 100_000;
/// Rows beyond those wanted that are gathered before they are sorted.
const SLACK: usize = 64;

/// Rows under way, of which the first `keep` are wanted.
pub struct Top<'p> {
    plan: &'p SelectPlan,
    keep: usize,
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
        let keep = usize::try_from(wanted).ok().filter(|_| is_few)?;
        Some(Top {
            plan,
            keep,
            rows: Vec::new(),
            worst: None,
            keys: Vec::with_capacity(plan.order.len()),
            memory: Charge::new(account),
        })
    }

    /// Takes in a row; false where no row that follows can be one of the first.
    ///
    /// # Errors
    /// An output cannot be computed; 53200: the session may gather no more.
    pub fn push(&mut self, env: &Env<'_>) -> Result<bool> {
        if self.keep == 0 {
            return Ok(false);
        }
        if let Some(worst) = &self.worst {
            self.keys.clear();
            for key in &self.plan.order {
                self.keys.push(self.plan.outputs[key.at].eval(env)?);
            }
            let places = by_place(&self.plan.order);
            if compare_keys(&self.keys, worst, &places[..self.plan.served]) == Ordering::Greater {
                return Ok(false);
            }
            if compare_keys(&self.keys, worst, &places) != Ordering::Less {
                return Ok(true);
            }
        }
        let row = self
            .plan
            .outputs
            .iter()
            .map(|o| o.eval(env))
            .collect::<Result<Vec<_>>>()?;
        self.memory.grow(size_of_row(&row))?;
        self.rows.push(row);
        if self.rows.len() >= 2 * self.keep + SLACK {
            self.settle();
        }
        Ok(true)
    }

    /// Drops what is not among the first.
    fn settle(&mut self) {
        sort(&mut self.rows, &self.plan.order);
        let dropped: usize = self.rows.drain(self.keep..).map(|row| size_of_row(&row)).sum();
        self.memory.shrink(dropped);
        let last = &self.rows[self.keep - 1];
        self.worst = Some(self.plan.order.iter().map(|key| last[key.at].clone()).collect());
    }

    /// The rows, of which the first `keep` are those wanted once they are sorted, and their memory.
    pub fn finish(self) -> (Vec<Vec<Datum>>, Charge) {
        (self.rows, self.memory)
    }
}
