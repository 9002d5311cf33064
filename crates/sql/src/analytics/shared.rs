//! A query of WITH that a statement names several times, carried out once.
//!
//! DataFusion puts the query in each place that names it, and would carry it out for each. So equal subqueries that
//! group, join, sort or number rows are planned for themselves, and each place reads what the first run of that plan has
//! gathered. As in PostgreSQL, conditions around one place are not pushed into it.
//!
//! What is gathered counts as the query's memory. A query that is refused memory starts over without this
//! (`plan::spilling`).

use super::cancel::watched;
use super::order::JoinOrder;
use super::runtime::physical;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use cenote_engine::CancelFlag;
use datafusion::catalog::default_table_source::provider_as_source;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, SubqueryAlias, TableType};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::statistics::StatisticsContext;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, StatisticsArgs, execute_stream,
};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryStreamExt};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The plan with its equal subqueries shared; None: it has none.
///
/// # Errors
/// A plan cannot be put together again.
pub(crate) fn with_shared(
    order: &JoinOrder<'_>,
    cancel: &Arc<CancelFlag>,
    plan: &LogicalPlan,
) -> Result<Option<LogicalPlan>> {
    let mut found: Vec<(Arc<LogicalPlan>, usize)> = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::SubqueryAlias(alias) = node
            && is_dear(&alias.input)
        {
            match found.iter_mut().find(|(known, _)| *known == alias.input) {
                Some((_, times)) => *times += 1,
                None => found.push((alias.input.clone(), 1)),
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut shared = Vec::new();
    for (input, _) in found
        .into_iter()
        .filter(|(input, times)| *times > 1 && stands_alone(input))
    {
        let ordered = order.of(input.as_ref().clone())?;
        let (_, planned) = order.core.wait(physical(order.state, &ordered))?;
        let table = SharedTable {
            schema: planned.schema(),
            plan: watched(planned, cancel)?,
            gathered: Arc::default(),
        };
        shared.push((input, Arc::new(table)));
    }
    if shared.is_empty() {
        return Ok(None);
    }
    plan.clone()
        .transform_down_with_subqueries(|node| replaced(node, &shared))
        .data()
        .map(Some)
}

fn replaced(node: LogicalPlan, shared: &[(Arc<LogicalPlan>, Arc<SharedTable>)]) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::SubqueryAlias(alias) = &node else {
        return Ok(Transformed::no(node));
    };
    let Some((_, table)) = shared.iter().find(|(input, _)| *input == alias.input) else {
        return Ok(Transformed::no(node));
    };
    let source = provider_as_source(table.clone());
    let scan = LogicalPlanBuilder::scan("shared", source, None)?.build()?;
    let named = SubqueryAlias::try_new(Arc::new(scan), alias.alias.clone())?;
    let named = LogicalPlan::SubqueryAlias(named);
    Ok(Transformed::new(named, true, TreeNodeRecursion::Jump))
}

/// Whether a subquery does more than to choose among a table's rows.
fn is_dear(plan: &LogicalPlan) -> bool {
    let dear = |node: &LogicalPlan| {
        use LogicalPlan::{Aggregate, Distinct, Join, Sort, Window};
        Ok(matches!(
            node,
            Aggregate(_) | Distinct(_) | Join(_) | Sort(_) | Window(_)
        ))
    };
    plan.exists(dear).unwrap_or(false)
}

/// Whether a subquery gives the same rows wherever it stands.
fn stands_alone(plan: &LogicalPlan) -> bool {
    let mut alone = true;
    let walked = plan.apply_with_subqueries(|node| {
        alone &= !node.contains_outer_reference();
        node.apply_expressions(|expr| {
            alone &= !expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })
    });
    walked.is_ok() && alone
}

/// Rows that were gathered, and the memory that they are charged to.
struct Gathered {
    batches: Vec<RecordBatch>,
    _memory: MemoryReservation,
}

type Gathering = Shared<BoxFuture<'static, std::result::Result<Arc<Gathered>, Arc<DataFusionError>>>>;

/// A subquery as a table.
struct SharedTable {
    plan: Arc<dyn ExecutionPlan>,
    schema: SchemaRef,
    /// Begun by the first that asks. All that ask drive it, so none waits for one that does not go on.
    gathered: Arc<Mutex<Option<Gathering>>>,
}

impl fmt::Debug for SharedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shared subquery")
    }
}

#[async_trait]
impl TableProvider for SharedTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all = || (0..self.schema.fields().len()).collect();
        let columns: Vec<usize> = projection.cloned().unwrap_or_else(all);
        let schema = Arc::new(self.schema.project(&columns)?);
        Ok(Arc::new(SharedScan {
            plan: self.plan.clone(),
            gathered: self.gathered.clone(),
            properties: Arc::new(PlanProperties::new(
                EquivalenceProperties::new(schema.clone()),
                Partitioning::UnknownPartitioning(1),
                EmissionType::Final,
                Boundedness::Bounded,
            )),
            columns: columns.into(),
            schema,
        }))
    }
}

/// Reads what a shared subquery has gathered.
struct SharedScan {
    plan: Arc<dyn ExecutionPlan>,
    gathered: Arc<Mutex<Option<Gathering>>>,
    columns: Arc<[usize]>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl fmt::Debug for SharedScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(DisplayFormatType::Default, f)
    }
}

impl DisplayAs for SharedScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
        write!(f, "Shared subquery, columns [{}]", names.join(", "))
    }
}

async fn gather(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> std::result::Result<Arc<Gathered>, Arc<DataFusionError>> {
    let run = async {
        let memory = MemoryConsumer::new("shared subquery").register(context.memory_pool());
        let mut batches = Vec::new();
        let mut stream = execute_stream(plan, context)?;
        while let Some(batch) = stream.try_next().await? {
            memory.try_grow(batch.get_array_memory_size())?;
            batches.push(batch);
        }
        Ok(Arc::new(Gathered {
            batches,
            _memory: memory,
        }))
    };
    run.await.map_err(Arc::new)
}

impl ExecutionPlan for SharedScan {
    fn name(&self) -> &str {
        "SharedScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let gathering = {
            let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = || gather(self.plan.clone(), context).boxed().shared();
            gathered.get_or_insert_with(begin).clone()
        };
        let columns = self.columns.clone();
        let batches = async move {
            let gathered = gathering.await.map_err(DataFusionError::Shared)?;
            let project = move |batch: &RecordBatch| Ok(batch.project(&columns)?);
            let batches: Vec<Result<RecordBatch>> = gathered.batches.iter().map(project).collect();
            Ok::<_, DataFusionError>(futures::stream::iter(batches))
        };
        let batches = futures::stream::once(batches).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema.clone(),
            batches.boxed(),
        )))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let all = StatisticsContext::new().compute(&*self.plan, &StatisticsArgs::new())?;
        let mut statistics = Statistics::new_unknown(&self.schema);
        statistics.num_rows = all.num_rows.to_inexact();
        Ok(Arc::new(statistics))
    }
}
