//! Plans of small statements, kept between runs: planning costs ten times what running such a statement does.
//!
//! 1. The first run of a statement whose tables hold few rows plans it with its parameters as calls of functions
//!    ([`parameters`](super::parameters)), and keeps that plan without a snapshot.
//! 2. A later run takes the plan if it fits ([`Kept::fits`]): its scans are given the run's snapshot and the values of
//!    parameters, and choose their key ranges anew; what operators have gathered is forgotten (`reset_state`).
//! 3. A statement whose plan cannot be kept is planned with the values in their places, each time.
//!
//! Invariants:
//! - A kept plan holds no snapshot: purge does not wait for it.
//! - A kept plan holds nothing that was computed from the session, the time or the catalog of a run. The time zone, which
//!   folds into literals, is compared; what else there is makes a plan tied to its run ([`BoundQuery::tied`]).
//! - One run at a time uses a plan ([`Lease`]), since its parameters are one set of values. Another that begins meanwhile
//!   (of another portal) is planned for itself.
//! - All kept plans together take an eighth of the query memory at most, the oldest go first.

use super::cancel::watched;
use super::error::outward;
use super::evict::Evict;
use super::parameters::{Parameters, with_calls};
use super::plan::{self, BoundQuery, PlannedQuery, QueryForm, fields_of, has_recursion, with_tables};
use super::runtime::QueryRuntime;
use super::scan::{EngineScan, EngineTable, PARALLEL_ROWS};
use super::snapshot::Snapshot;
use super::times::Clock;
use crate::error::Result;
use crate::hook::ForeignQuery;
use cenote_engine::catalog::Table;
use cenote_engine::{CancelFlag, Datum};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Plan = Arc<dyn ExecutionPlan>;

/// A plan that runs again, over other snapshots and with other parameters.
pub(crate) struct Kept {
    plan: Plan,
    /// Whether a scan waits for what joins or sorts learn: their filters are made in each run.
    filtered: bool,
    parameters: Arc<Parameters>,
    clock: Clock,
    cancel: Arc<CancelFlag>,
    tables: Vec<Arc<Table>>,
    form: QueryForm,
    values: Vec<arrow::datatypes::DataType>,
    in_use: AtomicBool,
}

/// What a statement keeps: its plan, until others need the room; or that it keeps none.
enum Slot {
    Plan(Mutex<Option<Arc<Kept>>>),
    Refused,
}

/// The use of a kept plan, by one run.
pub(crate) struct Lease(Arc<Kept>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.parameters.clear();
        self.0.in_use.store(false, Ordering::Release);
    }
}

impl Evict for Slot {
    fn evict(&self) {
        if let Slot::Plan(kept) = self {
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl Slot {
    fn plan(&self) -> Option<Arc<Kept>> {
        match self {
            Slot::Plan(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Slot::Refused => None,
        }
    }
}

/// The plan of a query in this run: the one that it keeps, or a new one, which it keeps if that can be.
///
/// # Errors
/// As planning. 40001: a table was replaced since the snapshot was taken.
pub(crate) fn planned(
    core: &Arc<QueryRuntime>,
    snapshot: &Arc<Snapshot>,
    query: &ForeignQuery,
    params: &[(Datum, u32)],
) -> Result<(PlannedQuery, Option<Lease>)> {
    let values = plan::values_of(params)?;
    let slot = query.kept().and_then(|kept| kept.downcast::<Slot>().ok());
    let kept = slot.as_ref().and_then(|slot| slot.plan());
    let mut busy = false;
    if let Some(kept) = kept.filter(|kept| kept.fits(snapshot, &values)) {
        match kept.lease() {
            Some(lease) => {
                core.kept.runs.fetch_add(1, Ordering::Relaxed);
                return lease.run(core, snapshot, values);
            }
            None => busy = true,
        }
    }
    let bound = plan::bind(core, snapshot, query, (params, &values))?;
    let refused = slot.is_some_and(|slot| matches!(*slot, Slot::Refused));
    if busy || refused || bound.tied || bound.rows >= PARALLEL_ROWS {
        return Ok((plan::with_values(core, snapshot, bound, &values)?, None));
    }
    let slot = match Kept::make(core, snapshot, &bound, &values) {
        Ok(Some(kept)) => Slot::Plan(Mutex::new(Some(Arc::new(kept)))),
        // Whatever it was: planning with values says what is wrong, if that fails, too.
        Ok(None) | Err(_) => Slot::Refused,
    };
    let slot = Arc::new(slot);
    let kept = slot.plan();
    if kept.is_some() {
        let evicted: Arc<dyn Evict> = slot.clone();
        core.kept.note(&evicted);
    }
    query.keep(slot);
    match kept.and_then(|kept| kept.lease()) {
        Some(lease) => lease.run(core, snapshot, values),
        None => Ok((plan::with_values(core, snapshot, bound, &values)?, None)),
    }
}

impl Lease {
    fn run(
        self,
        core: &Arc<QueryRuntime>,
        snapshot: &Arc<Snapshot>,
        values: Arc<[ScalarValue]>,
    ) -> Result<(PlannedQuery, Option<Lease>)> {
        let kept = &self.0;
        for table in &kept.tables {
            snapshot.scope.reader.refuse_replaced(table)?;
        }
        kept.clock.set(snapshot.scope.transaction_time);
        kept.parameters.set(values.clone());
        let running = kept.on_snapshot(core, snapshot).map_err(outward)?;
        let planned = PlannedQuery::of_form(core, snapshot, (&kept.form, running), values);
        Ok((planned, Some(self)))
    }
}

/// Whether VALUES has a parameter: its rows are computed when the plan is made.
fn has_listed_parameters(plan: &LogicalPlan) -> datafusion::common::Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Values(list) = node {
            let is_parameter = |e: &Expr| Ok(matches!(e, Expr::Placeholder(_)));
            for value in list.values.iter().flatten() {
                found |= value.exists(is_parameter)?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

impl Kept {
    /// The plan of a bound query for any values of its parameters; None: it is good for these alone.
    fn make(
        core: &Arc<QueryRuntime>,
        snapshot: &Arc<Snapshot>,
        bound: &BoundQuery,
        values: &Arc<[ScalarValue]>,
    ) -> datafusion::common::Result<Option<Kept>> {
        if has_listed_parameters(&bound.plan)? {
            return Ok(None);
        }
        let state = core.single();
        let parameters = Parameters::new(values.clone());
        let Some(logical) = with_calls(state.optimize(&bound.plan)?, &parameters)? else {
            return Ok(None);
        };
        let plan = core.wait(state.query_planner().create_physical_plan(&logical, state))?;
        let single = plan.output_partitioning().partition_count() == 1 && scans(&plan).iter().all(is_single);
        if has_recursion(&plan) || !single || bound.clock.was_asked() {
            return Ok(None);
        }
        let filtered = scans(&plan).iter().any(waits_for_filters);
        let cancel = snapshot.scope.cancel.clone();
        let plan = plan
            .transform_up(|node| Ok(of_scan(node, EngineScan::detached)))
            .data()?;
        let detached = bound.plan.clone();
        let detached = detached.transform_up_with_subqueries(|node| with_tables(node, EngineTable::detached));
        Ok(Some(Kept {
            plan: if filtered { plan } else { watched(plan, &cancel)? },
            filtered,
            parameters,
            clock: bound.clock.clone(),
            cancel,
            tables: bound.tables.clone(),
            form: QueryForm {
                fields: fields_of(core, &bound.plan).into(),
                bound: Arc::new(detached.data()?),
                rows: bound.rows,
                tables: bound.tables.iter().map(|t| t.id).collect(),
            },
            values: values.iter().map(ScalarValue::data_type).collect(),
            in_use: AtomicBool::new(false),
        }))
    }

    /// Whether the plan is that of the statement in this run, too: by the same definitions, for about as many rows.
    fn fits(&self, snapshot: &Snapshot, values: &[ScalarValue]) -> bool {
        let (scope, engine) = (&snapshot.scope, &snapshot.engine);
        let same = |table: &Arc<Table>| {
            let now = scope.definitions.table_by_id(table.id);
            now.is_some_and(|now| Arc::ptr_eq(now, table))
        };
        let rows: u64 = self.tables.iter().map(|t| engine.row_estimate(t)).sum();
        let alike = |a: u64, b: u64| a / 2 <= b.saturating_add(ROWS_APART);
        Arc::ptr_eq(&self.cancel, &scope.cancel)
            && self.clock.zone == *scope.settings.zone()
            && values
                .iter()
                .map(ScalarValue::data_type)
                .eq(self.values.iter().cloned())
            && self.tables.iter().all(same)
            && rows < PARALLEL_ROWS
            && alike(rows, self.form.rows)
            && alike(self.form.rows, rows)
    }

    fn lease(self: Arc<Kept>) -> Option<Lease> {
        let taken = self.in_use.swap(true, Ordering::Acquire);
        (!taken).then(|| Lease(self))
    }

    /// The plan to run: its scans read by the snapshot, with the values that the parameters have now.
    fn on_snapshot(&self, core: &QueryRuntime, snapshot: &Arc<Snapshot>) -> datafusion::common::Result<Plan> {
        let plan = self.plan.clone().transform_up(|node| {
            let any: &dyn Any = &*node;
            let node: Plan = match any.downcast_ref::<EngineScan>() {
                Some(scan) => Arc::new(scan.settled(snapshot)?),
                None => node.reset_state()?,
            };
            Ok(Transformed::yes(node))
        });
        let plan = plan.data()?;
        if !self.filtered {
            return Ok(plan);
        }
        let rule = FilterPushdown::new_post_optimization();
        watched(rule.optimize(plan, core.single().config_options())?, &self.cancel)
    }
}

/// Rows that tables may grow by without being planned for anew.
const ROWS_APART: u64 = 500;

/// The scans of tables in a plan.
fn scans(plan: &Plan) -> Vec<Plan> {
    let any: &dyn Any = &**plan;
    match any.is::<EngineScan>() {
        true => vec![plan.clone()],
        false => plan.children().into_iter().flat_map(scans).collect(),
    }
}

fn is_single(scan: &Plan) -> bool {
    scan.output_partitioning().partition_count() == 1
}

fn waits_for_filters(scan: &Plan) -> bool {
    let any: &dyn Any = &**scan;
    any.downcast_ref::<EngineScan>()
        .is_some_and(EngineScan::waits_for_filters)
}

fn of_scan(node: Plan, change: impl Fn(&EngineScan) -> EngineScan) -> Transformed<Plan> {
    let any: &dyn Any = &*node;
    match any.downcast_ref::<EngineScan>() {
        Some(scan) => Transformed::yes(Arc::new(change(scan))),
        None => Transformed::no(node),
    }
}
