//! Canceling a query in the middle of a step.
//!
//! A step of an operator is not interrupted from outside: the thread that polls it waits. A scan checks the cancel flag
//! in each batch. But a join works on gathered rows, and may go on for minutes without asking for another row. So the flag
//! is checked from inside:
//! - a join's condition is evaluated for every few thousand pairs: [`WatchedExpr`] around it ends the join with 57014;
//! - what multiplies rows (joins, unnest, recursion) hands its batches through [`Watched`], which ends the
//!   operator above that gathers them.
//!
//! Both cost a load for each batch. They are put into the plan when it is final: no rule of the optimiser meets them.

use super::error::{canceled, inward};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use cenote_engine::CancelFlag;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt};
use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Operators that may give many rows for few.
const MULTIPLIERS: [&str; 8] = [
    "NestedLoopJoinExec",
    "HashJoinExec",
    "CrossJoinExec",
    "SortMergeJoinExec",
    "PiecewiseMergeJoinExec",
    "SymmetricHashJoinExec",
    "UnnestExec",
    "RecursiveQueryExec",
];

/// The plan, looking at the flag wherever it may go on for long.
pub(crate) fn watched(plan: Arc<dyn ExecutionPlan>, cancel: &Arc<CancelFlag>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        if !MULTIPLIERS.contains(&node.name()) {
            return Ok(Transformed::no(node));
        }
        let input = with_watched_filter(node, cancel)?;
        Ok(Transformed::yes(Arc::new(Watched {
            input,
            cancel: cancel.clone(),
        })))
    })
    .data()
}

/// The join with its condition watched; other nodes as they are.
fn with_watched_filter(node: Arc<dyn ExecutionPlan>, cancel: &Arc<CancelFlag>) -> Result<Arc<dyn ExecutionPlan>> {
    let any: &dyn Any = &*node;
    if let Some(join) = any.downcast_ref::<NestedLoopJoinExec>() {
        if let Some(filter) = join.filter() {
            let filter = Some(watched_filter(filter, cancel));
            return Ok(Arc::new(
                NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()?,
            ));
        }
    } else if let Some(join) = any.downcast_ref::<HashJoinExec>()
        && let Some(filter) = join.filter()
    {
        return join
            .builder()
            .with_filter(Some(watched_filter(filter, cancel)))
            .build_exec();
    }
    Ok(node)
}

fn watched_filter(filter: &JoinFilter, cancel: &Arc<CancelFlag>) -> JoinFilter {
    let expr = WatchedExpr {
        inner: filter.expression().clone(),
        cancel: cancel.clone(),
    };
    JoinFilter::new(
        Arc::new(expr),
        filter.column_indices().to_vec(),
        filter.schema().clone(),
    )
}

/// 57014 once the flag is set.
pub(crate) fn check(cancel: &CancelFlag) -> Result<()> {
    if cancel.is_set() {
        Err(inward(canceled()))
    } else {
        Ok(())
    }
}

/// A node that hands its input's batches on until the flag is set.
#[derive(Debug)]
struct Watched {
    input: Arc<dyn ExecutionPlan>,
    cancel: Arc<CancelFlag>,
}

impl DisplayAs for Watched {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl ExecutionPlan for Watched {
    fn name(&self) -> &str {
        "Watched"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().unwrap_or_else(|| self.input.clone());
        let cancel = self.cancel.clone();
        Ok(Arc::new(Watched { input, cancel }))
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().unwrap_or_else(|| self.input.clone());
        let cancel = self.cancel.clone();
        Ok(Arc::new(Watched { input, cancel }))
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Ok(Box::pin(WatchedStream {
            input: self.input.execute(partition, context)?,
            cancel: self.cancel.clone(),
        }))
    }
}

struct WatchedStream {
    input: SendableRecordBatchStream,
    cancel: Arc<CancelFlag>,
}

impl Stream for WatchedStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match check(&self.cancel) {
            Ok(()) => self.input.poll_next_unpin(context),
            Err(canceled) => Poll::Ready(Some(Err(canceled))),
        }
    }
}

impl RecordBatchStream for WatchedStream {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

/// A condition that is an error once the flag is set.
#[derive(Debug)]
struct WatchedExpr {
    inner: Arc<dyn PhysicalExpr>,
    cancel: Arc<CancelFlag>,
}

impl PartialEq for WatchedExpr {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for WatchedExpr {}

impl Hash for WatchedExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl fmt::Display for WatchedExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PhysicalExpr for WatchedExpr {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.inner.data_type(input)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.inner.nullable(input)
    }

    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.inner.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        check(&self.cancel)?;
        self.inner.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.pop().unwrap_or_else(|| self.inner.clone());
        let cancel = self.cancel.clone();
        Ok(Arc::new(WatchedExpr { inner, cancel }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
