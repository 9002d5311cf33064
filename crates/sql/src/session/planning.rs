//! Planning of statements that read or write rows.

use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::exec::{scope, types_of};
use crate::expr::bind::{Bound, Params, Refusal, shape};
use crate::hook::Analytics;
use crate::output::Field;
use crate::parse::Statement;
use crate::plan::ignored::refuse_ignored;
use crate::plan::known::Known;
use crate::plan::learned::Learned;
use crate::plan::row::RowPlan;
use crate::plan::{Plan, Planned, Planner};
use crate::settings::{ROW_EXECUTOR, SHORT_PATH};
use crate::types::{is_array_oid, oid, type_of_oid, type_oid};
use cenote_engine::{ColumnType, Datum, Tx};
use sqlparser::ast::Query;
use std::sync::{Arc, OnceLock};

/// Columns of a result, at most: PostgreSQL's limit.
const RESULTS_MAX: usize = 1664;

/// Steps of planning by analytics, and of a run whose plan is there: 1.06 ms and 73 us for the smallest join that
/// analytics alone has (`what_a_run_costs`), of 45 ns each.
pub(super) const PLANNING_BY_ANALYTICS: f64 = 22_000.0;
const RUN_BY_ANALYTICS: f64 = 1_600.0;
/// Steps of analytics for each of the row executor.
const STEP_OF_ANALYTICS: f64 = 0.25;
/// Steps of the row executor for which analytics keeps its plan: about as many rows as its scans may have then.
const KEPT_BY_ANALYTICS: f64 = 50_000.0;

/// What a statement is planned with.
pub struct StatementPlanner<'a> {
    /// The transaction, whose catalog is the statement's.
    pub tx: &'a Tx,
    /// The session.
    pub env: &'a SessionEnv,
    /// What plans queries that the short path does not know.
    pub analytics: Option<&'a Arc<dyn Analytics>>,
}

impl StatementPlanner<'_> {
    /// Plans a statement that reads or writes rows; `any_shape`: analytics takes what the short path refuses.
    ///
    /// # Errors
    /// 42P01, 42703, 42883 and their like: names and types do not fit. 0A000: no planner knows the statement's shape.
    pub fn plan(&self, statement: &Statement, text: &str, declared: &[u32], any_shape: bool) -> Result<Planned> {
        self.plan_for((statement, text, declared), any_shape, None, None)
    }

    /// Plans a statement for a run with these parameters; None: for any run. `learned`: what former runs told.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn plan_for(
        &self,
        (statement, text, declared): (&Statement, &str, &[u32]),
        any_shape: bool,
        values: Option<&[Datum]>,
        learned: Option<&Learned>,
    ) -> Result<Planned> {
        let declared_arrays = declared.iter().copied().enumerate().filter(|(_, id)| is_array_oid(*id));
        let params = Params::new(
            declared.iter().map(|id| declared_type(*id)).collect(),
            declared_arrays.collect(),
        );
        let analytics = self.analytics.filter(|_| any_shape);
        let planner = Planner {
            tx: self.tx,
            session: self.env,
            text,
            params: &params,
            analytics: analytics.is_some(),
            for_many: self.analytics.is_some(),
            known: Known::new(self.env, values).with(learned),
        };
        let foreign = |query: &Query| {
            self.describe_foreign(analytics, query, &params, declared)
                .map(|fields| types_of(fields.iter().map(|f| f.type_oid)))
        };
        let bound: Bound<(Plan, Vec<Field>)> = match statement {
            Statement::Query(query) => match self.short(&planner, query) {
                Err(Refusal::Shape(_)) => match (self.rows(&planner, query), analytics) {
                    (Err(Refusal::Shape(_)), Some(_)) => self
                        .describe_foreign(analytics, query, &params, declared)
                        .map_err(Refusal::Error)
                        .and_then(|fields| Ok((planner.read_by_analytics(query)?, fields))),
                    (Err(Refusal::Shape(why)), None) => Err(Refusal::Error(why)),
                    (planned, _) => planned.map(|(plan, fields)| (Plan::Rows(Box::new(plan)), fields)),
                },
                bound => bound,
            },
            Statement::Insert(insert) => planner.insert(insert, &foreign),
            Statement::Update(update) => planner.update(update, &foreign),
            Statement::Delete(delete) => planner.delete(delete, &foreign),
            _ => return Err(SqlError::internal("a statement without a plan")),
        };
        let (plan, fields) = bound?;
        if fields.len() > RESULTS_MAX {
            let text = format!("target lists can have at most {RESULTS_MAX} entries");
            return Err(SqlError::new(code::TOO_MANY_COLUMNS, text));
        }
        let (found, arrays) = params.known();
        let (mut types, mut param_oids) = (Vec::new(), Vec::new());
        for (at, found) in found.into_iter().enumerate() {
            let ty = found.unwrap_or(ColumnType::Text);
            let array = arrays.get(&at).copied();
            types.push(ty);
            param_oids.push(reported_oid(array.as_ref().or(declared.get(at)), ty));
        }
        // What analytics runs whatever it costs has no other plan.
        let has_others = !matches!(plan, Plan::Foreign(_) | Plan::Locking(_)) || planner.known.cost() > 0.0;
        Ok(Planned {
            params: types,
            param_oids,
            fields: fields.into(),
            by_values: planner.known.asked() && has_others,
            cost: cost_of(&plan, planner.known.cost()),
            stays: Arc::default(),
            learned: OnceLock::new(),
            plan,
        })
    }

    fn short(&self, planner: &Planner<'_>, query: &Query) -> Bound<(Plan, Vec<Field>)> {
        match self.env.settings.is_off(SHORT_PATH) {
            true => shape("a query without the short path"),
            false => planner.select(query),
        }
    }

    fn rows(&self, planner: &Planner<'_>, query: &Query) -> Bound<(RowPlan, Vec<Field>)> {
        match self.env.settings.is_off(ROW_EXECUTOR) {
            true => shape("a query without the row executor"),
            false => planner.rows(query, false),
        }
    }

    /// Columns of another planner's query; parameter types that it infers are taken over. Arrays, which the engine has
    /// not, are noted by their ids: drivers send them as such (`= ANY($1::bigint[])`).
    fn describe_foreign(
        &self,
        analytics: Option<&Arc<dyn Analytics>>,
        query: &Query,
        params: &Params,
        declared: &[u32],
    ) -> Result<Vec<Field>> {
        let analytics = analytics.ok_or_else(|| SqlError::unsupported("a query of this shape"))?;
        refuse_ignored(query)?;
        let known: Vec<u32> = params
            .borrow()
            .iter()
            .enumerate()
            .map(|(i, t)| t.map_or(0, |t| reported_oid(declared.get(i), t)))
            .collect();
        let description = analytics.describe(&scope(self.tx, self.env), query, &known)?;
        for (i, id) in description.param_types.iter().enumerate() {
            if params.borrow().len() <= i {
                params.borrow_mut().push(None);
            }
            if params.borrow()[i].is_none() {
                params.borrow_mut()[i] = type_of_oid(*id);
                if is_array_oid(*id) {
                    params.set_array(i, *id);
                }
            }
        }
        Ok(description.fields)
    }
}

/// Steps of a run: those of the row executor, or what analytics takes for as many. It passes over rows faster, and
/// plans a run of many anew.
fn cost_of(plan: &Plan, steps: f64) -> f64 {
    let planning = if steps < KEPT_BY_ANALYTICS {
        0.0
    } else {
        PLANNING_BY_ANALYTICS
    };
    match plan {
        Plan::Foreign(_) | Plan::Locking(_) => planning + RUN_BY_ANALYTICS + steps * STEP_OF_ANALYTICS,
        _ => steps,
    }
}

/// A client that declared varchar or bpchar gets that back.
fn reported_oid(declared: Option<&u32>, ty: ColumnType) -> u32 {
    match declared {
        Some(id) if *id != 0 && *id != oid::UNKNOWN => *id,
        _ => type_oid(ty),
    }
}

/// Types that the engine has not (arrays, ...) travel as text under the id that the client declared: analytics knows
/// them.
fn declared_type(id: u32) -> Option<ColumnType> {
    match id {
        0 | oid::UNKNOWN => None,
        id => Some(type_of_oid(id).unwrap_or(ColumnType::Text)),
    }
}
