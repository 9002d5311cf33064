//! Correlated subqueries that DataFusion cannot turn into joins, evaluated as functions of the columns they refer to.
//!
//! PostgreSQL admits a subquery wherever an expression stands and lets it refer to the outer row in any way; DataFusion
//! only plans those that it can decorrelate. When a plan fails, all its subquery expressions are replaced: for each
//! row, the outer columns are put into the subquery as constants, and the rest is planned and run. Results are kept for
//! equal outer values, so the cost grows with the number of different ones. Meant for catalog queries of tools; correct
//! for all.

use super::cancel::{check, watched};
use super::error::{inward, unplanned};
use super::runtime::QueryRuntime;
use crate::error::{SqlError, code};
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use cenote_engine::CancelFlag;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};
use datafusion::physical_plan::collect;
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

/// `plan` with its subquery expressions replaced; None where it has none.
pub(crate) fn subqueries(
    core: &Arc<QueryRuntime>,
    cancel: &Arc<CancelFlag>,
    plan: &LogicalPlan,
) -> Result<Option<LogicalPlan>> {
    let replaced = plan.clone().transform_up(|node| replace_in((core, cancel), node))?;
    Ok(replaced.transformed.then_some(replaced.data))
}

/// Whether a subquery has to be evaluated row by row: it numbers or frames rows of which it takes only those that the
/// row around it wants. As a join it would number the rows of all.
pub(crate) fn is_needed(plan: &LogicalPlan) -> Result<bool> {
    let is_framed = |subquery: &Subquery| {
        subquery.subquery.exists(|node| {
            let frames = matches!(node, LogicalPlan::Window(_));
            Ok(frames && node.inputs().iter().any(|input| !input.all_out_ref_exprs().is_empty()))
        })
    };
    let mut needed = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|e| {
                needed |= match e {
                    Expr::ScalarSubquery(subquery) => is_framed(subquery)?,
                    Expr::Exists(exists) => is_framed(&exists.subquery)?,
                    Expr::InSubquery(within) => is_framed(&within.subquery)?,
                    _ => false,
                };
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(needed)
}

fn replace_in(core: Shared<'_>, node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    let mapped = node.map_expressions(|expr| {
        let name = names.save(&expr);
        let replaced = expr.transform_up(|e| Ok(replace(core, e)))?;
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

fn replace(core: Shared<'_>, expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::ScalarSubquery(subquery) => Transformed::yes(call(core, subquery, Use::Value, None)),
        Expr::Exists(exists) => Transformed::yes(call(
            core,
            exists.subquery,
            Use::Exists {
                negated: exists.negated,
            },
            None,
        )),
        Expr::InSubquery(within) => {
            let negated = within.negated;
            Transformed::yes(call(core, within.subquery, Use::In { negated }, Some(*within.expr)))
        }
        other => Transformed::no(other),
    }
}

/// The call that stands for a subquery: its arguments are the outer columns, and the left side of IN after them.
fn call((core, cancel): Shared<'_>, subquery: Subquery, usage: Use, left: Option<Expr>) -> Expr {
    let mut outer: Vec<Column> = Vec::new();
    for expr in &subquery.outer_ref_columns {
        if let Expr::OuterReferenceColumn(_, column) = expr
            && !outer.contains(column)
        {
            outer.push(column.clone());
        }
    }
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
    };
    Func::of("subquery", returns, move |call| {
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
    })
    .stable(key)
    .call(args)
}

struct Evaluation {
    core: Arc<QueryRuntime>,
    cancel: Arc<CancelFlag>,
    plan: Arc<LogicalPlan>,
    outer: Vec<Column>,
    usage: Use,
    returns: DataType,
    known: Mutex<HashMap<Vec<ScalarValue>, ScalarValue>>,
}

impl Evaluation {
    fn value(&self, arguments: Vec<ScalarValue>) -> Result<ScalarValue> {
        if let Some(known) = self
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&arguments)
        {
            return Ok(known.clone());
        }
        let value = self.evaluate(&arguments)?;
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(arguments, value.clone());
        Ok(value)
    }

    fn evaluate(&self, arguments: &[ScalarValue]) -> Result<ScalarValue> {
        let plan = self.with_constants(arguments)?;
        let batches = self.run(&plan)?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        match self.usage {
            Use::Exists { negated } => Ok(ScalarValue::Boolean(Some((rows > 0) != negated))),
            Use::In { negated } => {
                let left = arguments.last().cloned().unwrap_or(ScalarValue::Null);
                contains(&left, &batches).map(|found| ScalarValue::Boolean(found.map(|f| f != negated)))
            }
            Use::Value if rows > 1 => Err(inward(SqlError::new(
                code::CARDINALITY_VIOLATION,
                "more than one row returned by a subquery used as an expression",
            ))),
            Use::Value => match batches.iter().find(|b| b.num_rows() == 1) {
                Some(batch) => ScalarValue::try_from_array(batch.column(0), 0)?.cast_to(&self.returns),
                None => ScalarValue::try_from(&self.returns),
            },
        }
    }

    /// The subquery with the outer row's values in place of its outer columns.
    fn with_constants(&self, arguments: &[ScalarValue]) -> Result<LogicalPlan> {
        let constant = |column: &Column| {
            self.outer
                .iter()
                .position(|c| c == column)
                .and_then(|i| arguments.get(i))
                .cloned()
        };
        let substituted = self.plan.as_ref().clone().transform_up_with_subqueries(|node| {
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                let replaced = expr.transform_up(|e| match &e {
                    Expr::OuterReferenceColumn(_, column) => {
                        Ok(constant(column).map_or(Transformed::no(e), |v| Transformed::yes(Expr::Literal(v, None))))
                    }
                    _ => Ok(Transformed::no(e)),
                })?;
                Ok(if replaced.transformed {
                    replaced.update_data(|e| name.restore(e))
                } else {
                    replaced
                })
            })
        })?;
        Ok(substituted.data)
    }

    fn run(&self, plan: &LogicalPlan) -> Result<Vec<RecordBatch>> {
        let state = self.core.single();
        let cancel = &self.cancel;
        match drive(execute(state, cancel, plan)) {
            Ok(batches) => Ok(batches),
            Err(error) => match subqueries(&self.core, cancel, plan)? {
                Some(applied) => drive(execute(state, cancel, &applied)),
                None => Err(inward(unplanned(error))),
            },
        }
    }
}

async fn execute(state: &SessionState, cancel: &Arc<CancelFlag>, plan: &LogicalPlan) -> Result<Vec<RecordBatch>> {
    check(cancel)?;
    let optimized = state.optimize(plan)?;
    let physical = state.query_planner().create_physical_plan(&optimized, state).await?;
    collect(watched(physical, cancel)?, state.task_ctx()).await
}

/// SQL's IN: NULL where nothing is equal but something is NULL.
fn contains(left: &ScalarValue, batches: &[RecordBatch]) -> Result<Option<bool>> {
    let mut unknown = left.is_null();
    let mut any = false;
    for batch in batches {
        for row in 0..batch.num_rows() {
            any = true;
            let value = ScalarValue::try_from_array(batch.column(0), row)?;
            if value.is_null() {
                unknown = true;
            } else if !left.is_null() && value.cast_to(&left.data_type())? == *left {
                return Ok(Some(true));
            }
        }
    }
    Ok(if any && unknown { None } else { Some(false) })
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
