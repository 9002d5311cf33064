//! All expressions of a plan, changed without changing the names of columns.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// The plan with what `change` makes of its expressions, the inner ones first; it is told the columns that they may read.
///
/// # Errors
/// The changed expressions do not fit their places.
pub(crate) fn changed(
    plan: LogicalPlan,
    mut change: impl FnMut(Expr, &DFSchema) -> Transformed<Expr>,
) -> Result<LogicalPlan> {
    let replaced = plan.transform_up_with_subqueries(|node| {
        let (names, schema) = (NamePreserver::new(&node), merge_schema(&node.inputs()));
        let mapped = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let replaced = expr.transform_up(|e| Ok(change(e, &schema)))?;
            Ok(match replaced.transformed {
                true => replaced.update_data(|e| name.restore(e)),
                false => replaced,
            })
        })?;
        match mapped.transformed {
            true => mapped.map_data(LogicalPlan::recompute_schema),
            false => Ok(mapped),
        }
    });
    replaced.data()
}
