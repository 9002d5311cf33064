//! Engine tables as DataFusion reads them.
//!
//! A scan runs over the primary key or one index, narrowed to a key range where conditions on its first columns allow
//! it, decodes only the columns asked for, and delivers batches of [`BATCH_ROWS`] rows on whatever thread polls it. It
//! takes no row locks and never waits. Conditions are pushed down inexactly: the range may hold more rows than qualify,
//! the filter above decides.

use super::error::{canceled, inward};
use super::numeric::{to_i128, to_i256};
use super::snapshot::Snapshot;
use super::types::{EPOCH_DAYS, EPOCH_MICROS, NUMERIC_ANY, arrow_type, column_field};
use crate::error::SqlError;
use arrow::array::*;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use async_trait::async_trait;
use cenote_engine::catalog::Table;
use cenote_engine::types::{ColumnType, Datum, DatumRef, Numeric};
use cenote_engine::{CancelFlag, Direction, KeyRange, Reader, RowBatch, RowScan};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, StatisticsArgs,
};
use futures::Stream;
use std::fmt;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Rows in a batch.
pub(crate) const BATCH_ROWS: usize = 8192;

/// The error of an engine call on its way through DataFusion.
pub(crate) fn engine_error(error: cenote_engine::Error) -> SqlError {
    match error {
        cenote_engine::Error::Canceled => canceled(),
        other => other.into(),
    }
}

/// An engine table under a statement's snapshot.
pub(crate) struct EngineTable {
    table: Arc<Table>,
    scope: Arc<Snapshot>,
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
            scope,
            schema: Arc::new(Schema::new(fields)),
            first,
        }
    }

    /// The same table as another snapshot sees it.
    pub fn on_snapshot(&self, scope: &Arc<Snapshot>) -> EngineTable {
        EngineTable::new(self.table.clone(), scope.clone(), self.first)
    }

    fn rows(&self) -> usize {
        self.scope.engine.row_estimate(&self.table) as usize
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
            .map(|f| match Condition::read(f, &self.table) {
                Some(_) => TableProviderFilterPushDown::Inexact,
                None => TableProviderFilterPushDown::Unsupported,
            })
            .collect())
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(unknown_but_rows(&self.schema, self.rows()))
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns = projection
            .cloned()
            .unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let schema = Arc::new(self.schema.project(&columns)?);
        let conditions: Vec<Condition> = filters.iter().filter_map(|f| Condition::read(f, &self.table)).collect();
        let access = ScanAccess::choose(&self.table, &conditions);
        Ok(Arc::new(EngineScan::new(self, access, columns, schema, limit)))
    }
}

fn unknown_but_rows(schema: &Schema, rows: usize) -> Statistics {
    let mut statistics = Statistics::new_unknown(schema);
    statistics.num_rows = Precision::Inexact(rows);
    statistics
}

/// `column op value`, with a value of the column's type.
struct Condition {
    column: usize,
    op: Operator,
    value: Datum,
}

impl Condition {
    fn read(filter: &Expr, table: &Table) -> Option<Condition> {
        let Expr::BinaryExpr(BinaryExpr { left, op, right }) = filter else {
            return None;
        };
        let (column, op, literal) = match (&**left, &**right) {
            (Expr::Column(column), Expr::Literal(literal, _)) => (column, *op, literal),
            (Expr::Literal(literal, _), Expr::Column(column)) => (column, op.swap()?, literal),
            _ => return None,
        };
        if !matches!(
            op,
            Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq
        ) {
            return None;
        }
        let column = table.column_named(&column.name)?;
        let leads = table.primary_key.as_ref().is_some_and(|k| k.columns.contains(&column))
            || table.indexes.iter().any(|i| i.columns.contains(&column));
        let value = datum_of(literal, table.columns[column].ty)?;
        leads.then_some(Condition { column, op, value })
    }
}

/// A literal as a key's value; None where its type is not the column's.
fn datum_of(literal: &ScalarValue, column: ColumnType) -> Option<Datum> {
    Some(match (literal, column) {
        (ScalarValue::Boolean(Some(v)), ColumnType::Bool) => Datum::Bool(*v),
        (ScalarValue::Int16(Some(v)), ColumnType::Int2) => Datum::Int2(*v),
        (ScalarValue::Int32(Some(v)), ColumnType::Int4) => Datum::Int4(*v),
        (ScalarValue::Int64(Some(v)), ColumnType::Int8) => Datum::Int8(*v),
        (ScalarValue::Utf8(Some(v)), ColumnType::Text | ColumnType::Varchar(_)) => Datum::Text(v.clone()),
        (ScalarValue::Binary(Some(v)), ColumnType::Bytes) => Datum::Bytes(v.clone()),
        (ScalarValue::Date32(Some(v)), ColumnType::Date) => Datum::Date(v.checked_sub(EPOCH_DAYS)?),
        (ScalarValue::TimestampMicrosecond(Some(v), None), ColumnType::Timestamp) => {
            Datum::Timestamp(v.checked_sub(EPOCH_MICROS)?)
        }
        (ScalarValue::TimestampMicrosecond(Some(v), Some(_)), ColumnType::TimestampTz) => {
            Datum::TimestampTz(v.checked_sub(EPOCH_MICROS)?)
        }
        _ => return None,
    })
}

/// How a scan reaches its rows.
#[derive(Clone)]
struct ScanAccess {
    /// Position of the index; None: the primary key.
    index: Option<usize>,
    range: KeyRange,
    /// Leading columns that the range uses; equalities count double.
    use_of_key: usize,
}

impl ScanAccess {
    fn choose(table: &Table, conditions: &[Condition]) -> ScanAccess {
        let primary = table
            .primary_key
            .as_ref()
            .map(|key| Self::by(table, None, &key.columns, conditions));
        let indexes = table
            .indexes
            .iter()
            .enumerate()
            .map(|(i, index)| Self::by(table, Some(i), &index.columns, conditions));
        let whole = ScanAccess {
            index: None,
            range: KeyRange::all(),
            use_of_key: 0,
        };
        primary.into_iter().chain(indexes).fold(
            whole,
            |best, next| if next.use_of_key > best.use_of_key { next } else { best },
        )
    }

    fn by(table: &Table, index: Option<usize>, columns: &[usize], conditions: &[Condition]) -> ScanAccess {
        let on =
            |column: usize, ops: &[Operator]| conditions.iter().find(|c| c.column == column && ops.contains(&c.op));
        let mut equal = Vec::new();
        while let Some(condition) = columns.get(equal.len()).and_then(|c| on(*c, &[Operator::Eq])) {
            equal.push(condition.value.clone());
        }
        let encode = |last: Option<&Condition>| {
            let mut values = equal.clone();
            values.extend(last.map(|c| c.value.clone()));
            let mut key = Vec::new();
            match index {
                None => table.key_of_values(&values, &mut key),
                Some(i) => table.index_key_of_values(&table.indexes[i], &values, &mut key),
            }
            key
        };
        let next = columns.get(equal.len());
        let lower = next.and_then(|c| on(*c, &[Operator::Gt, Operator::GtEq]));
        let upper = next.and_then(|c| on(*c, &[Operator::Lt, Operator::LtEq]));
        let (prefix, low, high) = (encode(None), encode(lower), encode(upper));
        let open = if equal.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Included(prefix.as_slice())
        };
        let low = match lower {
            Some(c) if c.op == Operator::Gt => Bound::Excluded(low.as_slice()),
            Some(_) => Bound::Included(low.as_slice()),
            None => open,
        };
        let high = match upper {
            Some(c) if c.op == Operator::Lt => Bound::Excluded(high.as_slice()),
            Some(_) => Bound::Included(high.as_slice()),
            None => open,
        };
        let use_of_key = 2 * equal.len() + usize::from(lower.is_some()) + usize::from(upper.is_some());
        ScanAccess {
            index,
            range: KeyRange::between(low, high),
            use_of_key,
        }
    }
}

/// The scan as a plan node.
pub(crate) struct EngineScan {
    table: Arc<Table>,
    reader: Reader,
    cancel: Arc<CancelFlag>,
    first: bool,
    /// The table's only row, instead of all that the reader sees.
    only: Option<Vec<u8>>,
    access: ScanAccess,
    columns: Arc<[usize]>,
    schema: SchemaRef,
    limit: Option<usize>,
    rows: usize,
    properties: Arc<PlanProperties>,
}

impl EngineScan {
    fn new(
        of: &EngineTable,
        access: ScanAccess,
        columns: Vec<usize>,
        schema: SchemaRef,
        limit: Option<usize>,
    ) -> EngineScan {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let divisor = match access.use_of_key {
            0 => 1,
            1 => 3,
            used => 10usize.saturating_pow(used as u32),
        };
        EngineScan {
            table: of.table.clone(),
            reader: of.scope.scope.reader.clone(),
            cancel: of.scope.scope.cancel.clone(),
            first: of.first,
            only: of.scope.only.clone().filter(|_| of.first),
            rows: (of.rows() / divisor).max(1),
            access,
            columns: columns.into(),
            schema,
            limit,
            properties: Arc::new(properties),
        }
    }

    /// The same scan over another snapshot.
    pub fn on_snapshot(&self, scope: &Snapshot) -> EngineScan {
        EngineScan {
            reader: scope.scope.reader.clone(),
            only: scope.only.clone().filter(|_| self.first),
            table: self.table.clone(),
            cancel: self.cancel.clone(),
            first: self.first,
            access: self.access.clone(),
            columns: self.columns.clone(),
            schema: self.schema.clone(),
            limit: self.limit,
            rows: self.rows,
            properties: self.properties.clone(),
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
            (Some(i), _) => write!(f, " by index {}", self.table.indexes[i].name)?,
            (None, 0) => {}
            (None, _) => write!(f, " by primary key")?,
        }
        let names: Vec<_> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
        write!(f, ", columns [{}]", names.join(", "))?;
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

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let range = self.access.range.clone();
        let scan = match (&self.only, self.access.index) {
            (Some(_), _) => None,
            (None, None) => Some(self.reader.scan(&self.table, range, Direction::Forward)),
            (None, Some(index)) => Some(self.reader.index_scan(&self.table, index, range, Direction::Forward)),
        };
        Ok(Box::pin(ScanStream {
            table: self.table.clone(),
            reader: self.reader.clone(),
            cancel: self.cancel.clone(),
            columns: self.columns.clone(),
            schema: self.schema.clone(),
            scan,
            batch: self.only.as_deref().map_or_else(RowBatch::new, RowBatch::of_row),
            at: 0,
            left: self.limit.unwrap_or(usize::MAX),
            done: false,
        }))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::new(unknown_but_rows(&self.schema, self.rows)))
    }
}

struct ScanStream {
    table: Arc<Table>,
    reader: Reader,
    cancel: Arc<CancelFlag>,
    columns: Arc<[usize]>,
    schema: SchemaRef,
    /// None: `batch` holds all there is.
    scan: Option<RowScan>,
    batch: RowBatch,
    /// Next row of `batch`.
    at: usize,
    /// Rows until the limit.
    left: usize,
    done: bool,
}

impl ScanStream {
    fn next(&mut self) -> std::result::Result<Option<RecordBatch>, SqlError> {
        if self.cancel.is_set() {
            return Err(canceled());
        }
        let mut builders: Vec<Column> = self
            .columns
            .iter()
            .map(|c| Column::new(self.table.columns[*c].ty))
            .collect();
        let mut rows = 0;
        while rows < BATCH_ROWS && self.left > 0 && !self.done {
            if self.at == self.batch.len() {
                self.at = 0;
                self.done = match &mut self.scan {
                    Some(scan) => !scan.next_batch(&self.reader, &mut self.batch).map_err(engine_error)?,
                    None => true,
                };
                continue;
            }
            let row = self.batch.row(self.at);
            for (builder, column) in builders.iter_mut().zip(self.columns.iter()) {
                builder.push(self.table.layout().column(row, *column).map_err(engine_error)?)?;
            }
            self.at += 1;
            rows += 1;
            self.left -= 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let arrays = builders
            .into_iter()
            .map(Column::finish)
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options)
            .map(Some)
            .map_err(|e| super::error::outward(e.into()))
    }
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.next().map_err(inward).transpose())
    }
}

impl RecordBatchStream for ScanStream {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// A column under construction.
pub(crate) enum Column {
    Bool(BooleanBuilder),
    Int2(Int16Builder),
    Int4(Int32Builder),
    Int8(Int64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    Narrow(Vec<Option<i128>>, DataType, i8),
    Wide(Vec<Option<arrow::datatypes::i256>>, DataType, i8),
    /// Text; whether trailing blanks go (they mean nothing in `char(n)`).
    Text(StringBuilder, bool),
    Bytes(BinaryBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder, DataType),
}

impl Column {
    /// An empty column.
    pub fn new(column: ColumnType) -> Column {
        let data_type = arrow_type(column);
        match column {
            ColumnType::Bool => Column::Bool(BooleanBuilder::new()),
            ColumnType::Int2 => Column::Int2(Int16Builder::new()),
            ColumnType::Int4 => Column::Int4(Int32Builder::new()),
            ColumnType::Int8 => Column::Int8(Int64Builder::new()),
            ColumnType::Float4 => Column::Float4(Float32Builder::new()),
            ColumnType::Float8 => Column::Float8(Float64Builder::new()),
            ColumnType::Numeric(_) => match data_type {
                DataType::Decimal128(_, scale) => Column::Narrow(Vec::new(), data_type, scale),
                DataType::Decimal256(_, scale) => Column::Wide(Vec::new(), data_type, scale),
                _ => Column::Wide(Vec::new(), super::types::numeric_any(), NUMERIC_ANY.1),
            },
            ColumnType::Text | ColumnType::Varchar(_) => Column::Text(StringBuilder::new(), false),
            ColumnType::Char(_) => Column::Text(StringBuilder::new(), true),
            ColumnType::Bytes => Column::Bytes(BinaryBuilder::new()),
            ColumnType::Date => Column::Date(Date32Builder::new()),
            ColumnType::Timestamp | ColumnType::TimestampTz => {
                Column::Timestamp(TimestampMicrosecondBuilder::new(), data_type)
            }
        }
    }

    /// Appends a value.
    ///
    /// # Errors
    /// The value is of another type, or its digits do not fit the column (22003).
    pub fn push(&mut self, value: DatumRef<'_>) -> std::result::Result<(), SqlError> {
        match (self, value) {
            (Column::Bool(b), DatumRef::Bool(v)) => b.append_value(v),
            (Column::Int2(b), DatumRef::Int2(v)) => b.append_value(v),
            (Column::Int4(b), DatumRef::Int4(v)) => b.append_value(v),
            (Column::Int8(b), DatumRef::Int8(v)) => b.append_value(v),
            (Column::Float4(b), DatumRef::Float4(v)) => b.append_value(v),
            (Column::Float8(b), DatumRef::Float8(v)) => b.append_value(v),
            (Column::Narrow(values, _, scale), DatumRef::Numeric(v)) => values.push(Some(narrow(&v, *scale)?)),
            (Column::Wide(values, _, scale), DatumRef::Numeric(v)) => values.push(Some(to_i256(&v, *scale)?)),
            (Column::Text(b, trimmed), DatumRef::Text(v)) => {
                b.append_value(if *trimmed { v.trim_end_matches(' ') } else { v })
            }
            (Column::Bytes(b), DatumRef::Bytes(v)) => b.append_value(v),
            (Column::Date(b), DatumRef::Date(v)) => b.append_value(v.checked_add(EPOCH_DAYS).unwrap_or(i32::MAX)),
            (Column::Timestamp(b, _), DatumRef::Timestamp(v) | DatumRef::TimestampTz(v)) => {
                b.append_value(since_1970(v))
            }
            (column, DatumRef::Null) => column.push_null(),
            (_, other) => {
                return Err(SqlError::internal(format!(
                    "a row holds {other:?} in a column of another type"
                )));
            }
        }
        Ok(())
    }

    fn push_null(&mut self) {
        match self {
            Column::Bool(b) => b.append_null(),
            Column::Int2(b) => b.append_null(),
            Column::Int4(b) => b.append_null(),
            Column::Int8(b) => b.append_null(),
            Column::Float4(b) => b.append_null(),
            Column::Float8(b) => b.append_null(),
            Column::Narrow(values, ..) => values.push(None),
            Column::Wide(values, ..) => values.push(None),
            Column::Text(b, _) => b.append_null(),
            Column::Bytes(b) => b.append_null(),
            Column::Date(b) => b.append_null(),
            Column::Timestamp(b, _) => b.append_null(),
        }
    }

    /// The column.
    ///
    /// # Errors
    /// None now: the values were checked when they were pushed.
    pub fn finish(self) -> std::result::Result<ArrayRef, SqlError> {
        Ok(match self {
            Column::Bool(mut b) => Arc::new(b.finish()),
            Column::Int2(mut b) => Arc::new(b.finish()),
            Column::Int4(mut b) => Arc::new(b.finish()),
            Column::Int8(mut b) => Arc::new(b.finish()),
            Column::Float4(mut b) => Arc::new(b.finish()),
            Column::Float8(mut b) => Arc::new(b.finish()),
            Column::Narrow(values, data_type, _) => Arc::new(Decimal128Array::from(values).with_data_type(data_type)),
            Column::Wide(values, data_type, _) => Arc::new(Decimal256Array::from(values).with_data_type(data_type)),
            Column::Text(mut b, _) => Arc::new(b.finish()),
            Column::Bytes(mut b) => Arc::new(b.finish()),
            Column::Date(mut b) => Arc::new(b.finish()),
            Column::Timestamp(mut b, data_type) => Arc::new(b.finish().with_data_type(data_type)),
        })
    }
}

fn narrow(value: &Numeric, scale: i8) -> std::result::Result<i128, SqlError> {
    to_i128(value, scale)
}

fn since_1970(micros: i64) -> i64 {
    match micros {
        i64::MIN | i64::MAX => micros,
        value => value.saturating_add(EPOCH_MICROS),
    }
}
