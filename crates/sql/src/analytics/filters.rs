//! Conditions that a scan evaluates itself, on the columns that they need, before it copies any other.
//!
//! Two kinds come from DataFusion's push-down of filters:
//! - fixed ones, out of WHERE: the scan has taken them over, nothing above evaluates them again;
//! - dynamic ones, which joins and top-k sorts learn while they run (the keys of a join's small side). They only spare
//!   work: what made them decides. One that lets most rows pass is left out for a while.
//!
//! What a filter says about the first column of a key or index is read out of its expression: a list of values becomes
//! look-ups ([`values`]), limits become a key range ([`limits`]).
//!
//! Invariant: a dynamic filter belongs to one run of its plan. A plan that runs again is given scans without it
//! ([`without_dynamic`]): the operator that fills it is made anew and fills another.

use super::access::{CAST_TO_TIMESTAMP, on_days};
use super::columns::Column;
use super::error::inward;
use super::parameters::{has_calls, with_values};
use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use cenote_engine::catalog::Table;
use cenote_engine::types::ColumnType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, Column as ColumnExpr, DynamicFilterPhysicalExpr, DynamicFilterTracking, InListExpr, Literal,
    lit,
};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use std::sync::Arc;

/// A condition on some of a table's columns.
#[derive(Clone)]
pub(crate) struct ScanFilter {
    pub expr: Arc<dyn PhysicalExpr>,
    /// The table's columns that it reads, in the order of `schema`.
    pub columns: Arc<[usize]>,
    schema: SchemaRef,
    pub dynamic: bool,
    /// Whether it depends on parameters, whose values this run has still to put in.
    pub open: bool,
}

impl ScanFilter {
    /// A filter over a scan's output; None: it cannot be evaluated there.
    pub fn new(expr: &Arc<dyn PhysicalExpr>, table: &Table, output: &Schema) -> Option<ScanFilter> {
        let mut names: Vec<_> = collect_columns(expr).iter().map(|c| c.name().to_string()).collect();
        names.sort();
        names.dedup();
        let fields = names.iter().map(|name| output.field_with_name(name).cloned());
        let schema = Schema::new(fields.collect::<std::result::Result<Vec<_>, _>>().ok()?);
        let columns = names.iter().map(|name| table.column_named(name));
        let columns: Arc<[usize]> = columns.collect::<Option<Vec<_>>>()?.into();
        if is_volatile(expr) || columns.is_empty() {
            return None;
        }
        let expr = &without_cast(expr, table).unwrap_or_else(|| expr.clone());
        Some(ScanFilter {
            dynamic: DynamicFilterTracking::classify(expr).contains_dynamic_filter(),
            open: has_calls(expr),
            expr: reassign_expr_columns(expr.clone(), &schema).ok()?,
            columns,
            schema: Arc::new(schema),
        })
    }

    /// The filter of this run: with the values of its parameters.
    fn settled(&self, table: &Table) -> Result<ScanFilter> {
        let expr = with_values(&self.expr)?;
        Ok(ScanFilter {
            expr: without_cast(&expr, table).unwrap_or(expr),
            open: false,
            ..self.clone()
        })
    }

    /// Where the filter has a column of the table, if it reads it.
    pub fn position(&self, column: usize) -> Option<usize> {
        self.columns.iter().position(|c| *c == column)
    }

    /// Adds a condition on the same columns.
    fn with(&mut self, other: ScanFilter) {
        self.open |= other.open;
        let (left, right) = (self.expr.clone(), other.expr);
        self.expr = Arc::new(BinaryExpr::new(left, Operator::And, right));
    }

    /// Cheap ones first: comparisons, then others, then those that call functions.
    fn rank(&self, table: &Table) -> u8 {
        let fixed = |c: &usize| table.columns[*c].ty.fixed_len().is_some();
        match self.columns.iter().all(fixed) {
            _ if calls_function(&self.expr) => 3,
            _ if self.dynamic => 2,
            true => 0,
            false => 1,
        }
    }
}

fn calls_function(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<ScalarFunctionExpr>().is_some() || expr.children().into_iter().any(calls_function)
}

/// A comparison of a date column taken as a timestamp, on the column itself.
fn without_cast(expr: &Arc<dyn PhysicalExpr>, table: &Table) -> Option<Arc<dyn PhysicalExpr>> {
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    let cast = binary.left().downcast_ref::<ScalarFunctionExpr>()?;
    let [argument] = cast.args() else { return None };
    let column = argument.downcast_ref::<ColumnExpr>()?;
    let ty = table.columns[table.column_named(column.name())?].ty;
    if cast.name() != CAST_TO_TIMESTAMP || ty != ColumnType::Date {
        return None;
    }
    let (op, day) = on_days(*binary.op(), literal(binary.right())?)?;
    Some(Arc::new(BinaryExpr::new(argument.clone(), op, lit(day))))
}

/// Adds filters to those that a scan has: fixed ones of the same columns become one.
pub(crate) fn add(filters: &mut Vec<ScanFilter>, new: ScanFilter, table: &Table) {
    let same = |f: &&mut ScanFilter| !f.dynamic && !new.dynamic && f.columns == new.columns;
    let ranks = |f: &ScanFilter| f.rank(table);
    match filters.iter_mut().find(same).filter(|f| ranks(f) == ranks(&new)) {
        Some(filter) => filter.with(new),
        None => filters.push(new),
    }
    filters.sort_by_key(ranks);
}

/// The filters of a run, with the values of their parameters.
pub(crate) fn settled(filters: &[ScanFilter], table: &Table) -> Result<Vec<ScanFilter>> {
    let mut settled = Vec::with_capacity(filters.len());
    for filter in filters {
        match filter.open {
            true => add(&mut settled, filter.settled(table)?, table),
            false => add(&mut settled, filter.clone(), table),
        }
    }
    Ok(settled)
}

/// Which part of these rows the fixed filters let pass, functions left out: they may be dear, and fail.
pub(crate) fn passing(filters: &[ScanFilter], table: &Table, mut rows: Vec<&[u8]>) -> Result<f64> {
    let before = rows.len();
    for filter in filters.iter().filter(|f| !f.dynamic && !calls_function(&f.expr)) {
        if !rows.is_empty() {
            RunningFilter::new(filter.clone()).keep(table, &mut rows)?;
        }
    }
    // None of the sample: a third of a row.
    Ok((rows.len() as f64).max(0.3) / before.max(1) as f64)
}

/// The filters that hold for every run of the plan.
pub(crate) fn without_dynamic(filters: &[ScanFilter]) -> Vec<ScanFilter> {
    filters.iter().filter(|f| !f.dynamic).cloned().collect()
}

/// Rows after which a dynamic filter is judged, and for how many chunks one is left out that was of no use.
const JUDGED_ROWS: usize = 16 << 10;
const CHUNKS_OUT: u32 = 64;

/// A filter at work.
pub(crate) struct RunningFilter {
    filter: ScanFilter,
    /// Rows that it saw and that it let pass.
    seen: (usize, usize),
    out: u32,
}

impl RunningFilter {
    /// Before the first rows.
    pub fn new(filter: ScanFilter) -> RunningFilter {
        let (seen, out) = ((0, 0), 0);
        RunningFilter { filter, seen, out }
    }

    /// Takes the rows away that do not pass.
    pub fn keep(&mut self, table: &Table, rows: &mut Vec<&[u8]>) -> Result<()> {
        if self.filter.dynamic && self.is_out() {
            return Ok(());
        }
        let batch = self.input(table, rows)?;
        let mask = self.filter.expr.evaluate(&batch)?.into_array(rows.len())?;
        let before = rows.len();
        retain(rows, mask.as_boolean());
        self.seen = (self.seen.0 + before, self.seen.1 + rows.len());
        Ok(())
    }

    fn input(&self, table: &Table, rows: &[&[u8]]) -> Result<RecordBatch> {
        let arrays = self.filter.columns.iter().map(|column| {
            let mut builder = Column::new(table.columns[*column].ty);
            builder.append(&table.layout().reader(*column), rows).map_err(inward)?;
            Ok(builder.finish())
        });
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new_with_options(
            self.filter.schema.clone(),
            arrays,
            &options,
        )?)
    }

    fn is_out(&mut self) -> bool {
        if self.out > 0 {
            self.out -= 1;
            return true;
        }
        let (seen, passed) = self.seen;
        if seen >= JUDGED_ROWS {
            self.seen = (0, 0);
            if passed > seen / 10 * 8 {
                self.out = CHUNKS_OUT;
                return true;
            }
        }
        false
    }
}

fn retain(rows: &mut Vec<&[u8]>, mask: &BooleanArray) {
    if mask.null_count() == 0 && mask.true_count() == rows.len() {
        return;
    }
    let mut at = 0;
    rows.retain(|_| {
        at += 1;
        mask.is_valid(at - 1) && mask.value(at - 1)
    });
}

fn is_column(expr: &Arc<dyn PhysicalExpr>, column: usize) -> bool {
    expr.downcast_ref::<ColumnExpr>().is_some_and(|c| c.index() == column)
}

fn literal(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    expr.downcast_ref::<Literal>().map(Literal::value)
}

/// Values of a column among which are all for which `expr` can be true; None: it does not say.
pub(crate) fn values(expr: &Arc<dyn PhysicalExpr>, column: usize) -> Option<Vec<ScalarValue>> {
    if let Some(dynamic) = expr.downcast_ref::<DynamicFilterPhysicalExpr>() {
        return values(&dynamic.current().ok()?, column);
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        return if list.negated() { None } else { listed(list, column) };
    }
    if let Some(ScalarValue::Boolean(known)) = literal(expr) {
        return (*known != Some(true)).then(Vec::new);
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        let then = case.when_then_expr().iter().map(|(_, then)| then);
        let parts = then.chain(case.else_expr()).map(|part| values(part, column));
        return parts.collect::<Option<Vec<_>>>().map(|parts| parts.concat());
    }
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (binary.left(), binary.right());
    match binary.op() {
        Operator::And => match (values(left, column), values(right, column)) {
            (Some(a), Some(b)) => Some(if a.len() <= b.len() { a } else { b }),
            (a, b) => a.or(b),
        },
        Operator::Or => Some([values(left, column)?, values(right, column)?].concat()),
        Operator::Eq if is_column(left, column) => Some(vec![literal(right)?.clone()]),
        Operator::Eq if is_column(right, column) => Some(vec![literal(left)?.clone()]),
        _ => None,
    }
}

/// The values of a column in a list; joins of several columns make lists of rows.
fn listed(list: &InListExpr, column: usize) -> Option<Vec<ScalarValue>> {
    let items = list.list().iter().map(literal);
    if is_column(list.expr(), column) {
        return items.map(|item| item.cloned()).collect();
    }
    let row = list
        .expr()
        .downcast_ref::<ScalarFunctionExpr>()
        .filter(|f| f.name() == "struct")?;
    let at = row.args().iter().position(|arg| is_column(arg, column))?;
    let part = |item: Option<&ScalarValue>| match item? {
        ScalarValue::Struct(parts) => ScalarValue::try_from_array(parts.column(at), 0).ok(),
        _ => None,
    };
    items.map(part).collect()
}

/// Least and greatest value of a column for which `expr` can be true, as far as it says.
#[derive(Debug, Default, Clone)]
pub(crate) struct Limits {
    pub least: Option<ScalarValue>,
    pub greatest: Option<ScalarValue>,
}

/// The limits that `expr` puts on a column.
pub(crate) fn limits(expr: &Arc<dyn PhysicalExpr>, column: usize) -> Limits {
    if let Some(dynamic) = expr.downcast_ref::<DynamicFilterPhysicalExpr>() {
        return dynamic
            .current()
            .map(|current| limits(&current, column))
            .unwrap_or_default();
    }
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else {
        return Limits::default();
    };
    let (left, right) = (binary.left(), binary.right());
    if *binary.op() == Operator::And {
        let (a, b) = (limits(left, column), limits(right, column));
        return Limits {
            least: a.least.or(b.least),
            greatest: a.greatest.or(b.greatest),
        };
    }
    let value = literal(right).filter(|_| is_column(left, column)).cloned();
    match binary.op() {
        Operator::GtEq | Operator::Gt => Limits {
            least: value,
            greatest: None,
        },
        Operator::LtEq | Operator::Lt => Limits {
            least: None,
            greatest: value,
        },
        _ => Limits::default(),
    }
}
