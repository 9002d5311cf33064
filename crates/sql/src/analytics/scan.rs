//! Engine tables as DataFusion reads them.
//!
//! 1. A scan runs over the primary key or one index ([`access`](super::access)), over several key ranges side by side
//!    where the table is large.
//! 2. It takes over the conditions of WHERE on its columns and what joins learn while they run
//!    ([`filters`](super::filters)). Where those name few values of a key's first column, it looks these up instead.
//! 3. Rows come in chunks of whole leaves ([`stream`](super::stream)): the filters' columns are decoded, rows that do
//!    not pass go, the columns asked for are decoded of the rest ([`columns`](super::columns)).
//!
//! It takes no row locks and never waits. Conditions are pushed down inexactly into key ranges: the range may hold more
//! rows than qualify, the filters decide.

mod estimate;
mod reach;

use super::access::{Condition, OpenCondition, ScanAccess, is_covered};
use super::distinct::distinct_values;
use super::error::inward;
use super::filters::{ScanFilter, add, settled, without_dynamic};
use super::snapshot::Snapshot;
use super::stream::{ScanStream, Source};
use super::types::column_field;
use crate::error::SqlError;
use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use cenote_engine::catalog::Table;
use cenote_engine::{CancelFlag, Columns, Direction, KeyRange, Reader, RowScan};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::expressions::Column as ColumnExpr;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, StatisticsArgs,
};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Rows that are read as they are, without waiting for what joins learn of them.
const FEW_ROWS: usize = 500;

/// Rows from which on a query is spread over threads.
pub(crate) const PARALLEL_ROWS: u64 = 50_000;

/// An engine table under a statement's snapshot.
pub(crate) struct EngineTable {
    table: Arc<Table>,
    /// None in a plan that is kept: it may not hold a snapshot.
    scope: Option<Arc<Snapshot>>,
    schema: SchemaRef,
    /// Whether it is the first of the query: the one that `Snapshot::only` is about.
    first: bool,
}

impl EngineTable {
    /// `table` as `scope` sees it; `first`: it is the first that the query names.
    pub fn new(table: Arc<Table>, scope: Arc<Snapshot>, first: bool) -> EngineTable {
        let fields: Vec<_> = table
            .columns
            .iter()
            .map(|c| column_field(&c.name, c.ty, !c.not_null))
            .collect();
        EngineTable {
            table,
            scope: Some(scope),
            schema: Arc::new(Schema::new(fields)),
            first,
        }
    }

    /// The same table without a snapshot, for a plan that is kept.
    pub fn detached(&self) -> EngineTable {
        EngineTable {
            table: self.table.clone(),
            scope: None,
            schema: self.schema.clone(),
            first: self.first,
        }
    }

    /// The same table as another snapshot sees it.
    pub fn on_snapshot(&self, scope: &Arc<Snapshot>) -> EngineTable {
        EngineTable::new(self.table.clone(), scope.clone(), self.first)
    }

    /// About how many values a column has; None: that is not known.
    pub fn values_of(&self, column: &str) -> Option<usize> {
        let (scope, column) = (self.scope.as_ref()?, self.table.column_named(column)?);
        distinct_values(scope, &self.table, self.rows(), column)
    }

    /// About how many rows it has.
    pub fn rows(&self) -> usize {
        let estimate = |scope: &Arc<Snapshot>| scope.engine.row_estimate(&self.table) as usize;
        self.scope.as_ref().map_or(0, estimate)
    }
}

impl fmt::Debug for EngineTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table.name)
    }
}

#[async_trait]
impl TableProvider for EngineTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(filters
            .iter()
            .map(
                |f| match Condition::read(f, &self.table).is_some() || OpenCondition::is_one(f, &self.table) {
                    true => TableProviderFilterPushDown::Inexact,
                    false => TableProviderFilterPushDown::Unsupported,
                },
            )
            .collect())
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(statistics_of(&self.schema, self.rows(), std::iter::empty()))
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns = projection
            .cloned()
            .unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let schema = Arc::new(self.schema.project(&columns)?);
        let scope = self.scope.as_ref().ok_or_else(detached)?;
        let conditions = Conditions {
            known: filters.iter().filter_map(|f| Condition::read(f, &self.table)).collect(),
            open: filters
                .iter()
                .filter_map(|f| OpenCondition::read(f, &self.table))
                .collect(),
        };
        let reader = &scope.scope.reader;
        let access = ScanAccess::choose(reader, &self.table, (self.rows(), &columns), &conditions.settled());
        let wide = access.rows as u64 >= PARALLEL_ROWS && limit.is_none();
        let parts = if wide { state.config().target_partitions() } else { 1 };
        // A tree that cannot be read now says so when it is scanned.
        let ranges = reader.cut(&self.table, access.index, access.range.clone(), parts);
        let ranges = ranges.unwrap_or_else(|_| vec![access.range.clone()]);
        Ok(Arc::new(EngineScan::new(
            (self, scope),
            (conditions, access),
            ranges,
            columns,
            (schema, limit),
        )))
    }
}

/// What is asked of a plan that is kept, before it is given a snapshot.
fn detached() -> DataFusionError {
    inward(SqlError::internal("a plan that is kept has no snapshot"))
}

/// The conditions that a scan's key range is made of.
struct Conditions {
    known: Vec<Condition>,
    /// Known anew in each run.
    open: Vec<OpenCondition>,
}

impl Conditions {
    /// As they are in this run.
    fn settled(&self) -> Vec<Condition> {
        let open = self.open.iter().filter_map(OpenCondition::settled);
        self.known.iter().cloned().chain(open).collect()
    }
}

/// Statistics of so many rows; of columns that begin a key, how many values they have.
fn statistics_of(schema: &Schema, rows: usize, distinct: impl Iterator<Item = Option<usize>>) -> Statistics {
    let mut statistics = Statistics::new_unknown(schema);
    statistics.num_rows = Precision::Inexact(rows);
    for (column, values) in statistics.column_statistics.iter_mut().zip(distinct) {
        if let Some(values) = values {
            column.distinct_count = Precision::Inexact(values.min(rows));
        }
    }
    statistics
}

/// How the rows of a run are reached.
enum Reach {
    /// By the scan's ranges, one for each partition.
    Ranges,
    /// By these prefixes of keys, in order, each partition taking its part of them.
    Keys(Option<usize>, Arc<[Vec<u8>]>),
}

/// The scan as a plan node.
#[derive(Clone)]
pub(crate) struct EngineScan {
    table: Arc<Table>,
    /// None in a plan that is kept: it may not hold a snapshot.
    reader: Option<Reader>,
    cancel: Arc<CancelFlag>,
    first: bool,
    /// The table's only row, instead of all that the reader sees.
    only: Option<Vec<u8>>,
    conditions: Arc<Conditions>,
    access: ScanAccess,
    /// The parts of the access's range, one for each partition.
    ranges: Arc<[KeyRange]>,
    columns: Arc<[usize]>,
    schema: SchemaRef,
    filters: Vec<ScanFilter>,
    limit: Option<usize>,
    /// Which part of the rows the fixed filters let pass, about.
    passing: f64,
    table_rows: usize,
    /// About how many values each of the table's columns has, as far as that is known and the scan gives it.
    distinct: Arc<[Option<usize>]>,
    /// Decided by the partition that runs first, for all.
    reach: Arc<OnceLock<Reach>>,
    properties: Arc<PlanProperties>,
}

fn properties(schema: &SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema.clone()),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

impl EngineScan {
    fn new(
        (of, scope): (&EngineTable, &Snapshot),
        (conditions, access): (Conditions, ScanAccess),
        ranges: Vec<KeyRange>,
        columns: Vec<usize>,
        (schema, limit): (SchemaRef, Option<usize>),
    ) -> EngineScan {
        assert!(!ranges.is_empty(), "a scan has a range for each partition");
        let reader = &scope.scope.reader;
        let known = |c: usize| {
            columns
                .contains(&c)
                .then(|| distinct_values(scope, &of.table, of.rows(), c))
        };
        EngineScan {
            distinct: (0..of.table.columns.len()).map(|c| known(c).flatten()).collect(),
            table: of.table.clone(),
            reader: Some(reader.clone()),
            cancel: scope.scope.cancel.clone(),
            first: of.first,
            only: scope.only.clone().filter(|_| of.first),
            table_rows: of.rows(),
            conditions: Arc::new(conditions),
            access,
            properties: properties(&schema, ranges.len()),
            ranges: ranges.into(),
            columns: columns.into(),
            schema,
            filters: Vec::new(),
            limit,
            passing: 1.0,
            reach: Arc::default(),
        }
    }

    /// The same scan over another snapshot, for another run.
    pub fn on_snapshot(&self, scope: &Snapshot) -> EngineScan {
        EngineScan {
            reader: Some(scope.scope.reader.clone()),
            only: scope.only.clone().filter(|_| self.first),
            ..self.for_another_run()
        }
    }

    /// The scan of a plan that is kept: it cannot run.
    pub fn detached(&self) -> EngineScan {
        EngineScan {
            reader: None,
            ..self.for_another_run()
        }
    }

    /// The scan of a kept plan in a run, whose parameters have their values.
    ///
    /// # Errors
    /// A filter cannot be put together.
    pub fn settled(&self, scope: &Snapshot) -> Result<EngineScan> {
        let mut scan = self.on_snapshot(scope);
        if scan.filters.iter().any(|f| f.open) {
            scan.filters = settled(&scan.filters, &scan.table)?;
        }
        if !self.conditions.open.is_empty() {
            let conditions = self.conditions.settled();
            let of = (scan.table_rows, &scan.columns_read()[..]);
            scan.access = ScanAccess::choose(&scope.scope.reader, &scan.table, of, &conditions);
            scan.ranges = [scan.access.range.clone()].into();
        }
        Ok(scan)
    }

    /// Whether it has taken a filter that another operator makes while it runs, and has rows enough to need it.
    pub fn waits_for_filters(&self) -> bool {
        self.access.rows > FEW_ROWS && self.filters.iter().any(|f| f.dynamic)
    }

    /// The same scan without what the last run has learned.
    fn for_another_run(&self) -> EngineScan {
        EngineScan {
            filters: without_dynamic(&self.filters),
            reach: Arc::default(),
            ..self.clone()
        }
    }

    fn rows_of(&self, reader: &Reader, index: Option<usize>, range: KeyRange) -> RowScan {
        let scan = match index {
            None => reader.scan(&self.table, range, Direction::Forward).without_keys(),
            Some(index) => reader.index_scan(&self.table, index, range, Direction::Forward),
        };
        self.reading(scan, index)
    }

    /// A scan of rows of which only the columns are read that are asked for, and the filters': by the index alone where
    /// its entries give them.
    fn reading(&self, scan: RowScan, index: Option<usize>) -> RowScan {
        let read = self.columns_read();
        let scan = match is_covered(&self.table, index, &read) {
            true => scan.index_only(),
            false => scan,
        };
        scan.columns(&Columns::Only(read.into()))
    }

    /// What EXPLAIN says of an index that needs no rows.
    fn alone(&self, index: usize) -> &'static str {
        match is_covered(&self.table, Some(index), &self.columns_read()) {
            true => " alone",
            false => "",
        }
    }

    fn columns_read(&self) -> Vec<usize> {
        let filters = self.filters.iter().flat_map(|f| f.columns.iter());
        self.columns.iter().chain(filters).copied().collect()
    }

    /// Where a partition's rows come from: asked when it begins to read.
    fn source(&self, reader: &Reader, partition: usize) -> Source {
        if let Some(row) = &self.only {
            return Source::Row(Some(row.clone()).filter(|_| partition == 0));
        }
        match self.reach.get_or_init(|| self.decide(reader)) {
            Reach::Keys(index, keys) => {
                let part = keys.len().div_ceil(self.ranges.len());
                let end = |n: usize| (n * part).min(keys.len());
                let own = end(partition)..end(partition + 1);
                let rows = reader.look_up(&self.table, *index, (keys.clone(), own));
                Source::Scan(Box::new(self.reading(rows, *index)))
            }
            Reach::Ranges => {
                let scan = self.rows_of(reader, self.access.index, self.narrowed(self.ranges[partition].clone()));
                let few = self.limit.filter(|_| self.filters.is_empty());
                Source::Scan(Box::new(match few {
                    Some(few) => scan.batch_rows(few.max(1)),
                    None => scan,
                }))
            }
        }
    }
}

impl fmt::Debug for EngineScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(DisplayFormatType::Default, f)
    }
}

impl DisplayAs for EngineScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scan: {}", self.table.name)?;
        match (self.access.index, self.access.use_of_key) {
            (Some(i), _) => write!(f, " by index {}{}", self.table.indexes[i].name, self.alone(i))?,
            (None, 0) => {}
            (None, _) => write!(f, " by primary key")?,
        }
        let names: Vec<_> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
        write!(f, ", columns [{}]", names.join(", "))?;
        if !self.filters.is_empty() {
            let filters: Vec<_> = self.filters.iter().map(|f| f.expr.to_string()).collect();
            write!(f, ", filters [{}]", filters.join(", "))?;
        }
        if let Some(Reach::Keys(index, keys)) = self.reach.get() {
            let by = index.map_or("primary key", |i| &self.table.indexes[i].name);
            let alone = index.map_or("", |i| self.alone(i));
            write!(f, ", looked up {} keys of {by}{alone}", keys.len())?;
        }
        if self.ranges.len() > 1 {
            write!(f, ", partitions {}", self.ranges.len())?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit {limit}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for EngineScan {
    fn name(&self) -> &str {
        "Scan"
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

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.for_another_run()))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for filter in &self.filters {
            if f(&filter.expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let scan = self.clone();
        let reader = self.reader.clone().ok_or_else(detached)?;
        Ok(Box::pin(ScanStream::new(
            (self.table.clone(), reader, self.cancel.clone()),
            Box::new(move |reader| scan.source(reader, partition)),
            (self.columns.clone(), self.schema.clone()),
            self.filters.clone(),
            self.limit,
        )))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let rows = self.row_guess();
        let distinct = self.columns.iter().map(|c| self.distinct[*c]);
        Ok(Arc::new(statistics_of(&self.schema, rows, distinct)))
    }

    fn fetch(&self) -> Option<usize> {
        self.limit
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let single = self.ranges.len() == 1;
        single.then(|| Arc::new(EngineScan { limit, ..self.clone() }) as Arc<dyn ExecutionPlan>)
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let plain = |e: &datafusion::physical_expr::projection::ProjectionExpr| {
            let column = e.expr.downcast_ref::<ColumnExpr>()?;
            (column.name() == e.alias).then(|| column.index())
        };
        let Some(chosen) = projection.expr().iter().map(plain).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let schema = Arc::new(self.schema.project(&chosen)?);
        Ok(Some(Arc::new(EngineScan {
            columns: chosen.iter().map(|c| self.columns[*c]).collect(),
            properties: properties(&schema, self.ranges.len()),
            schema,
            ..self.clone()
        })))
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut scan = self.for_filters();
        let (mut answers, mut taken) = (Vec::new(), false);
        for parent in &result.parent_filters {
            let new = ScanFilter::new(&parent.filter, &self.table, &self.schema);
            // Rows behind a limit are not those that a filter before it would leave.
            let new = new.filter(|f| self.limit.is_none() && (f.dynamic || phase == FilterPushdownPhase::Pre));
            answers.push(match &new {
                Some(filter) if !filter.dynamic => PushedDown::Yes,
                _ => PushedDown::No,
            });
            if let Some(filter) = new {
                add(&mut scan.filters, filter, &self.table);
                taken = true;
            }
        }
        let answer = FilterPushdownPropagation::with_parent_pushdown_result(answers);
        if !taken {
            return Ok(answer);
        }
        if phase == FilterPushdownPhase::Pre {
            scan.passing = scan.part_passing();
        }
        Ok(answer.with_updated_node(Arc::new(scan)))
    }
}

impl EngineScan {
    /// A copy that takes filters, with nothing decided yet.
    fn for_filters(&self) -> EngineScan {
        EngineScan {
            reach: Arc::default(),
            ..self.clone()
        }
    }
}
