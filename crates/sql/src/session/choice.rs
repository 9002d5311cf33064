//! Which plan a run of a statement takes: the generic one, for any parameters, or a custom one, made for its own.
//!
//! As PostgreSQL's plan cache:
//! 1. The generic plan, where no values would give another ([`Planned::by_values`]): all that parameters decide then is
//!    which row of a unique key is met, or how average keys of a table without common ones.
//! 2. Else the first runs are planned for their values.
//! 3. Then the generic plan is taken where it costs less than the custom ones did on average, their planning included.
//!
//! A run whose plan was wrong by ten tells how many rows its scans gave: the generic plan is made anew with that, and so
//! are custom ones where one of them was wrong.
//!
//! Invariant: both name the parameters ([`crate::plan::known`]), so that each gives the right rows for any values. What a
//! client was told of the statement (types of parameters, columns) is the generic plan's; a custom one that would answer
//! otherwise is not taken.

use super::history::PlanCacheMode;
use super::planning::PLANNING_BY_ANALYTICS;
use super::prepared::Prepared;
use super::state::Session;
use crate::error::Result;
use crate::plan::{Plan, Planned};
use cenote_engine::Datum;
use std::sync::Arc;

/// Steps of planning, once, and for each table that is joined. By `cost_of_planning_a_join` under callgrind one table
/// takes 51,000 instructions (4.6 us), and joins of two, three and four tables 227,000, 540,000 (60 us) and 812,000; a
/// step of a run takes 45 ns, 25 to 90 (`cost_of_rows_by_an_index`).
const PLANNING: f64 = 100.0;
const PLANNING_A_JOIN: f64 = 650.0;

impl Session {
    /// The plan for a run with these parameters; None: the generic one.
    ///
    /// # Errors
    /// As planning.
    #[inline]
    pub(super) fn custom_plan(
        &mut self,
        prepared: &Prepared,
        generic: &Planned,
        params: &[Datum],
    ) -> Result<Option<Arc<Planned>>> {
        if params.is_empty() || !generic.by_values && self.settings.plan_cache_mode == PlanCacheMode::Auto {
            return Ok(None);
        }
        self.chosen_plan(prepared, generic, params)
    }

    fn chosen_plan(
        &mut self,
        prepared: &Prepared,
        generic: &Planned,
        params: &[Datum],
    ) -> Result<Option<Arc<Planned>>> {
        let Some(history) = prepared.compiled.as_ref().map(|compiled| compiled.history.clone()) else {
            return Ok(None);
        };
        if !history.wants_custom(self.settings.plan_cache_mode, generic) {
            return Ok(None);
        }
        self.tx.ensure_snapshot();
        let mut custom = self.plan_for(prepared, Some(params))?;
        custom.stays = generic.stays.clone();
        if !generic.answers_like(&custom) {
            return Ok(None);
        }
        history.note_custom(custom.cost + planning_cost(&custom.plan));
        Ok(Some(Arc::new(custom)))
    }
}

impl Prepared {
    /// Takes over what a run of a plan of this statement told of its estimates.
    pub fn learn_from(&self, planned: &Planned) {
        if let (Some(learned), Some(compiled)) = (planned.learned.get(), &self.compiled) {
            let custom = !std::ptr::eq(&*compiled.planned, planned);
            compiled.history.learn(custom, learned);
        }
    }
}

fn planning_cost(plan: &Plan) -> f64 {
    match plan {
        Plan::Foreign(_) | Plan::Locking(_) => PLANNING_BY_ANALYTICS,
        plan => {
            let joined = plan.joins().map_or(0, |rows| rows.tables.len().saturating_sub(1));
            PLANNING + PLANNING_A_JOIN * joined as f64
        }
    }
}
