//! Subqueries that DataFusion cannot turn into joins, evaluated as functions of the columns they refer to.
//!
//! PostgreSQL admits a subquery wherever an expression stands and lets it refer to the outer row in any way; DataFusion
//! only plans those that it can decorrelate, and some of them wrongly (`by_rows`). Those are replaced, and when a plan
//! fails, all its subquery expressions: for each row, the outer columns are put into the subquery as constants, and the
//! rest is planned and run. Results are kept for equal outer values, so the cost grows with the number of different
//! ones; of IN the rows are kept, whatever is looked for among them. So a subquery that refers to nothing outside runs
//! once. What is kept counts as query memory, and a subquery that keeps too much is refused (53200).

use super::by_rows::{chosen, is_needed};
use super::cancel::{check, watched};
use super::error::{inward, unplanned};
use super::items::Items;
use super::outer::{outer_columns, with_constants};
use super::runtime::QueryRuntime;
use crate::error::{SqlError, code};
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use cenote_engine::CancelFlag;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};
use datafusion::physical_plan::execute_stream;
use futures::StreamExt;
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::function::Func;

/// What a subquery stands for in its expression.
#[derive(Clone, Copy)]
enum Use {
    Value,
    Exists { negated: bool },
    In { negated: bool },
}

/// What subqueries are evaluated with.
type Shared<'a> = (&'a Arc<QueryRuntime>, &'a Arc<CancelFlag>);

/// Which of a plan's subquery expressions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that are wrong as joins.
    Chosen,
    All,
}

/// `plan` with its subquery expressions replaced; None where it has none.
///
/// # Errors
/// A part cannot be built.
pub(crate) fn subqueries(
    core: &Arc<QueryRuntime>,
    cancel: &Arc<CancelFlag>,
    plan: &LogicalPlan,
    which: Which,
) -> Result<Option<LogicalPlan>> {
    let replaced = plan.clone().transform_up(|node| {
        let chosen = match which {
            Which::Chosen => Some(chosen(&node)?),
            Which::All => None,
        };
        replace_in((core, cancel), node, chosen.as_deref())
    })?;
    Ok(replaced.transformed.then_some(replaced.data))
}

fn replace_in(core: Shared<'_>, node: LogicalPlan, chosen: Option<&[Expr]>) -> Result<Transformed<LogicalPlan>> {
    let is_chosen = |e: &Expr| chosen.is_none_or(|chosen| chosen.contains(e));
    let names = NamePreserver::new(&node);
    let mapped = node.map_expressions(|expr| {
        let name = names.save(&expr);
        let replaced = expr.transform_down(|e| match is_chosen(&e) {
            true => replace(core, e),
            false => Ok(Transformed::no(e)),
        })?;
        Ok(if replaced.transformed {
            replaced.update_data(|e| name.restore(e))
        } else {
            replaced
        })
    })?;
    if mapped.transformed {
        mapped.map_data(LogicalPlan::recompute_schema)
    } else {
        Ok(mapped)
    }
}

fn replace(core: Shared<'_>, expr: Expr) -> Result<Transformed<Expr>> {
    let called = match expr {
        Expr::ScalarSubquery(subquery) => call(core, subquery, Use::Value, None),
        Expr::Exists(exists) => {
            let negated = exists.negated;
            call(core, exists.subquery, Use::Exists { negated }, None)
        }
        Expr::InSubquery(within) => {
            let negated = within.negated;
            call(core, within.subquery, Use::In { negated }, Some(*within.expr))
        }
        other => return Ok(Transformed::no(other)),
    };
    called.map(Transformed::yes)
}

/// The call that stands for a subquery: its arguments are the outer columns, and the left side of IN after them.
fn call((core, cancel): Shared<'_>, subquery: Subquery, usage: Use, left: Option<Expr>) -> Result<Expr> {
    let outer = outer_columns(&subquery.subquery)?;
    let args = outer.iter().cloned().map(Expr::Column).chain(left).collect();
    let returns = match usage {
        Use::Value => subquery.subquery.schema().field(0).data_type().clone(),
        _ => DataType::Boolean,
    };
    let key = Arc::as_ptr(&subquery.subquery) as usize;
    let evaluation = Evaluation {
        core: core.clone(),
        cancel: cancel.clone(),
        plan: subquery.subquery,
        outer,
        usage,
        returns: returns.clone(),
        known: Mutex::default(),
        held: reservation(core),
    };
    let function = Func::of("subquery", returns, move |call| {
        call.by_columns(|columns| {
            let values = (0..columns.first().map_or(1, |c| c.len())).map(|row| {
                let arguments = columns
                    .iter()
                    .map(|c| ScalarValue::try_from_array(c, row))
                    .collect::<Result<Vec<_>>>();
                arguments
                    .and_then(|a| evaluation.value(a))
                    .map_err(super::error::outward)
            });
            let values = values.collect::<std::result::Result<Vec<_>, SqlError>>()?;
            if values.is_empty() {
                return Ok(arrow::array::new_empty_array(&evaluation.returns));
            }
            ScalarValue::iter_to_array(values).map_err(super::error::outward)
        })
    });
    Ok(function.stable(key).call(args))
}

/// Nothing yet, of the memory of all queries.
fn reservation(core: &QueryRuntime) -> MemoryReservation {
    MemoryConsumer::new("a subquery's rows").register(&core.single().runtime_env().memory_pool)
}

struct Evaluation {
    core: Arc<QueryRuntime>,
    cancel: Arc<CancelFlag>,
    plan: Arc<LogicalPlan>,
    outer: Vec<Column>,
    usage: Use,
    returns: DataType,
    known: Mutex<HashMap<Vec<ScalarValue>, Found>>,
    /// The memory of `known`.
    held: MemoryReservation,
}

/// What a subquery gives for some outer values.
#[derive(Clone)]
enum Found {
    Value(ScalarValue),
    Items(Arc<Items>),
}

impl Found {
    /// Bytes, about.
    fn size(&self) -> usize {
        match self {
            Found::Value(value) => value.size(),
            Found::Items(items) => items.size(),
        }
    }
}

impl Evaluation {
    fn value(&self, mut arguments: Vec<ScalarValue>) -> Result<ScalarValue> {
        let (left, negated) = match self.usage {
            Use::In { negated } => (arguments.pop().unwrap_or(ScalarValue::Null), negated),
            _ => (ScalarValue::Null, false),
        };
        Ok(match self.found(arguments, &left)? {
            Found::Value(value) => value,
            Found::Items(items) => ScalarValue::Boolean(items.contain(&left)?.map(|found| found != negated)),
        })
    }

    fn found(&self, outer: Vec<ScalarValue>, left: &ScalarValue) -> Result<Found> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&outer) {
            return Ok(found.clone());
        }
        let found = self.evaluate(&outer, left)?;
        self.held.try_grow(ScalarValue::size_of_vec(&outer) + found.size())?;
        known().insert(outer, found.clone());
        Ok(found)
    }

    fn evaluate(&self, outer: &[ScalarValue], left: &ScalarValue) -> Result<Found> {
        let values: Vec<_> = self.outer.iter().cloned().zip(outer.iter().cloned()).collect();
        let plan = with_constants(self.plan.as_ref().clone(), &values)?;
        let passing = reservation(&self.core);
        let batches = self.run(&plan, &passing)?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let value = match self.usage {
            Use::Exists { negated } => ScalarValue::Boolean(Some((rows > 0) != negated)),
            Use::In { .. } => {
                let own = plan.schema().field(0).data_type();
                return Items::of(&batches, own, &left.data_type()).map(|items| Found::Items(Arc::new(items)));
            }
            Use::Value if rows > 1 => {
                return Err(inward(SqlError::new(
                    code::CARDINALITY_VIOLATION,
                    "more than one row returned by a subquery used as an expression",
                )));
            }
            Use::Value => match batches.iter().find(|b| b.num_rows() == 1) {
                Some(batch) => ScalarValue::try_from_array(batch.column(0), 0)?.cast_to(&self.returns)?,
                None => ScalarValue::try_from(&self.returns)?,
            },
        };
        Ok(Found::Value(value))
    }

    /// All rows, whose memory `passing` has.
    fn run(&self, plan: &LogicalPlan, passing: &MemoryReservation) -> Result<Vec<RecordBatch>> {
        let state = self.core.single();
        let cancel = &self.cancel;
        let chosen = match is_needed(plan)? {
            true => subqueries(&self.core, cancel, plan, Which::Chosen)?,
            false => None,
        };
        match drive(execute(state, cancel, chosen.as_ref().unwrap_or(plan), passing)) {
            Ok(batches) => Ok(batches),
            Err(error) => match subqueries(&self.core, cancel, plan, Which::All)? {
                Some(applied) => drive(execute(state, cancel, &applied, passing)),
                None => Err(inward(unplanned(error))),
            },
        }
    }
}

async fn execute(
    state: &SessionState,
    cancel: &Arc<CancelFlag>,
    plan: &LogicalPlan,
    passing: &MemoryReservation,
) -> Result<Vec<RecordBatch>> {
    check(cancel)?;
    let optimized = state.optimize(plan)?;
    let physical = state.query_planner().create_physical_plan(&optimized, state).await?;
    let mut stream = execute_stream(watched(physical, cancel)?, state.task_ctx())?;
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await.transpose()? {
        passing.try_grow(batch.get_array_memory_size())?;
        batches.push(batch);
    }
    Ok(batches)
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread, which may be inside another future's poll: hence without tokio's budget of
/// polls.
fn drive<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
