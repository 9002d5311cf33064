//! Rows of a WITH query, read once as far as they are asked for, and kept for all readers.

use super::subquery::Subplans;
use super::{Context, State, next};
use crate::error::{Result, SqlError};
use crate::exec::sink::size_of_row;
use crate::plan::row::Common;
use cenote_engine::{Charge, Datum};

/// Where a WITH query stands.
#[derive(Default)]
pub struct CommonState {
    tuple: Vec<Datum>,
    state: Option<State>,
    rows: Vec<Vec<Datum>>,
    is_done: bool,
    memory: Option<Charge>,
}

impl CommonState {
    /// Its row at this place, from 0; None behind the last.
    ///
    /// # Errors
    /// As the query; 53200: the session may gather no more.
    pub(super) fn row(&mut self, at: usize, plan: &Common, run: &Subplans<'_>) -> Result<Option<&[Datum]>> {
        while self.rows.len() <= at && !self.is_done {
            self.read_row(plan, run)?;
        }
        Ok(self.rows.get(at).map(Vec::as_slice))
    }

    fn read_row(&mut self, plan: &Common, run: &Subplans<'_>) -> Result<()> {
        if self.tuple.is_empty() {
            let mut memory = Charge::new(&run.session.memory);
            memory.grow(run.plan.slots * size_of::<Datum>())?;
            self.memory = Some(memory);
            self.tuple = vec![Datum::Null; run.plan.slots.max(1)];
        }
        let state = self.state.get_or_insert_with(|| State::of(&plan.node));
        let mut cx = Context::of(run, &mut self.tuple);
        let found = next(&plan.node, state, &mut cx)?;
        if !found {
            (self.is_done, self.state) = (true, None);
            return Ok(());
        }
        let env = cx.env();
        let row = plan.values.iter().map(|v| v.eval(&env)).collect::<Result<Vec<_>>>()?;
        let Some(memory) = &mut self.memory else {
            return Err(SqlError::internal("rows of WITH that are not charged"));
        };
        memory.grow(size_of_row(&row))?;
        self.rows.push(row);
        Ok(())
    }
}
