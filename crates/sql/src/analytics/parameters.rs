//! Parameters of a plan that runs with other values each time.
//!
//! DataFusion's physical plans hold no placeholders. So a plan is optimised with its placeholders, which are nothing to
//! fold, and then each becomes a call of a function without arguments that gives the value of this run. Scans, which
//! choose keys by their conditions, put the value in its place instead ([`with_values`]).

use super::expressions::changed;
use super::function::{Call, Func};
use crate::error::SqlError;
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::Placeholder;
use datafusion::logical_expr::{ColumnarValue, Expr, LogicalPlan};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use std::sync::{Arc, Mutex, PoisonError};

/// The values of a run, which a kept plan's functions read.
#[derive(Debug)]
pub(crate) struct Parameters(Mutex<Arc<[ScalarValue]>>);

impl Parameters {
    /// Of the first run.
    pub fn new(values: Arc<[ScalarValue]>) -> Arc<Parameters> {
        Arc::new(Parameters(Mutex::new(values)))
    }

    /// For the next run. The plan's last one has ended.
    pub fn set(&self, values: Arc<[ScalarValue]>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = values;
    }

    /// After a run: values may be large.
    pub fn clear(&self) {
        self.set(Arc::default());
    }

    fn get(&self) -> Arc<[ScalarValue]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What begins the name of the function that stands for a parameter, as no name in a statement does.
const SIGIL: char = '$';

/// The position of a placeholder's parameter.
fn position(id: &str) -> Option<usize> {
    id.strip_prefix(SIGIL)?.parse::<usize>().ok()?.checked_sub(1)
}

/// The plan with calls in place of its placeholders; None: one of them has no value.
pub(crate) fn with_calls(plan: LogicalPlan, parameters: &Arc<Parameters>) -> Result<Option<LogicalPlan>> {
    let values = parameters.get();
    let mut complete = true;
    let plan = changed(plan, |expr, _| match &expr {
        Expr::Placeholder(Placeholder { id, .. }) => match position(id).filter(|at| *at < values.len()) {
            Some(at) => Transformed::yes(function(parameters, at, &values[at]).call(Vec::new())),
            None => {
                complete = false;
                Transformed::no(expr)
            }
        },
        _ => Transformed::no(expr),
    })?;
    Ok(complete.then_some(plan))
}

fn function(parameters: &Arc<Parameters>, at: usize, value: &ScalarValue) -> Func {
    let (name, key) = (format!("{SIGIL}{}", at + 1), Arc::as_ptr(parameters) as usize);
    let parameters = parameters.clone();
    let body = move |_: &Call<'_>| match parameters.get().get(at) {
        Some(value) => Ok(ColumnarValue::Scalar(value.clone())),
        None => Err(SqlError::internal("a parameter is asked for outside of a run")),
    };
    Func::of(&name, value.data_type(), body).stable(key)
}

fn is_call(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let call = expr.downcast_ref::<ScalarFunctionExpr>();
    call.is_some_and(|f| f.name().starts_with(SIGIL) && f.args().is_empty())
}

/// Whether a parameter is in the expression.
pub(crate) fn has_calls(expr: &Arc<dyn PhysicalExpr>) -> bool {
    is_call(expr) || expr.children().into_iter().any(has_calls)
}

/// Whether an expression of a logical plan has the same value for all rows of a run, which it may get from parameters.
pub(crate) fn is_of_parameters(expr: &Expr) -> bool {
    let mut found = false;
    let walked = expr.apply(|e| {
        found |= match e {
            Expr::Placeholder(_) => true,
            Expr::ScalarFunction(f) => f.name().starts_with(SIGIL),
            _ => false,
        };
        Ok(match e {
            Expr::Placeholder(_) | Expr::Literal(..) | Expr::Cast(_) => TreeNodeRecursion::Continue,
            Expr::ScalarFunction(f) if f.args.is_empty() && f.name().starts_with(SIGIL) => TreeNodeRecursion::Continue,
            _ => {
                found = false;
                TreeNodeRecursion::Stop
            }
        })
    });
    walked.is_ok_and(|end| end == TreeNodeRecursion::Continue) && found
}

/// The type of such an expression.
pub(crate) fn type_of(expr: &Expr) -> Option<arrow::datatypes::DataType> {
    use datafusion::logical_expr::ExprSchemable;
    expr.get_type(&DFSchema::empty()).ok()
}

/// The value of an expression that reads no column.
pub(crate) fn value_of(expr: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
    let one_row = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &one_row)?;
    match expr.evaluate(&row)? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0),
    }
}

/// The expression with this run's values in place of its parameters, and what becomes constant by them computed. What
/// cannot be computed stays, and fails when the first row is asked about.
pub(crate) fn with_values(expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    let constant = |expr: &Arc<dyn PhysicalExpr>| {
        let known = expr.children().iter().all(|c| c.downcast_ref::<Literal>().is_some());
        let leaf = expr.children().is_empty() && !is_call(expr);
        known && !leaf && expr.downcast_ref::<Column>().is_none() && !is_volatile(expr)
    };
    let folded = expr.clone().transform_up(|e| {
        Ok(match constant(&e).then(|| value_of(&e)) {
            Some(Ok(value)) => Transformed::yes(Arc::new(Literal::new(value)) as Arc<dyn PhysicalExpr>),
            _ => Transformed::no(e),
        })
    });
    folded.data()
}
