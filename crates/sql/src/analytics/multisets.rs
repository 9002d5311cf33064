//! EXCEPT ALL and INTERSECT ALL.
//!
//! DataFusion plans them as joins that ask whether the other side has such a row at all. In PostgreSQL each copy of a row
//! on one side stands for one copy on the other. So the copies of a row are numbered on both sides, and the join compares
//! their numbers, too: the third copy on the left is matched by the third on the right.

use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, JoinType, NullEquality, Result};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Expr, ExprFunctionExt, Join, LogicalPlan, LogicalPlanBuilder};
use std::sync::Arc;

/// Names of the numbers, as no statement has them.
const NUMBERS: [&str; 2] = ["\u{1}copy on the left", "\u{1}copy on the right"];

/// The plan with the copies of rows counted where that is asked for.
///
/// # Errors
/// A side cannot be numbered.
pub(crate) fn with_copies_counted(plan: LogicalPlan) -> Result<LogicalPlan> {
    let counted = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) if is_of_multisets(&join) => Ok(Transformed::yes(counting(join)?)),
        node => Ok(Transformed::no(node)),
    });
    counted.data()
}

/// Only set operations join in this way before the plan is optimised; those without ALL make the left side distinct, for
/// which it makes no difference.
fn is_of_multisets(join: &Join) -> bool {
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && !matches!(*join.left, LogicalPlan::Distinct(_))
}

fn counting(join: Join) -> Result<LogicalPlan> {
    let schema = join.left.schema().clone();
    let [left, right] = NUMBERS;
    let number = |name: &str| Expr::Column(Column::from_name(name));
    let mut on = join.on;
    on.push((number(left), number(right)));
    let joined = Join::try_new(
        Arc::new(numbered(&join.left, left)?),
        Arc::new(numbered(&join.right, right)?),
        on,
        join.filter,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    let columns = schema.columns().into_iter().map(Expr::Column);
    LogicalPlanBuilder::from(LogicalPlan::Join(joined))
        .project(columns)?
        .build()
}

/// The rows with the number of each among those that equal it.
fn numbered(plan: &Arc<LogicalPlan>, name: &str) -> Result<LogicalPlan> {
    let columns: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
    let number = row_number().partition_by(columns.clone()).build()?;
    let written = Expr::Column(Column::from_name(number.schema_name().to_string())).alias(name);
    LogicalPlanBuilder::from(plan.clone())
        .window([number])?
        .project(columns.into_iter().chain([written]))?
        .build()
}
