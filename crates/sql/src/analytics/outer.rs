//! The columns of the rows around a subquery, and values in their places.
//!
//! A subquery inside may call a relation of its own as the rows further out are called. Then its columns are those of
//! the nearest relation of that name.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};
use std::sync::Arc;

/// The different columns of rows around `plan` that it refers to, at any depth.
///
/// # Errors
/// None: the plan is read.
pub(crate) fn outer_columns(plan: &LogicalPlan) -> Result<Vec<Column>> {
    let mut found: Vec<Column> = Vec::new();
    let mut add = |column: Column| {
        if !found.contains(&column) {
            found.push(column);
        }
    };
    plan.apply(|node| {
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|e| {
                match (e, subquery_of(e)) {
                    (Expr::OuterReferenceColumn(_, column), _) => add(column.clone()),
                    (_, Some(subquery)) => {
                        let deeper = outer_columns(&subquery.subquery)?.into_iter();
                        deeper.filter(|c| !schema.has_column(c)).for_each(&mut add);
                    }
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery) => Some(subquery),
        Expr::Exists(exists) => Some(&exists.subquery),
        Expr::InSubquery(within) => Some(&within.subquery),
        _ => None,
    }
}

/// `plan` with these values in place of columns of the rows around it.
///
/// # Errors
/// A part cannot be built.
pub(crate) fn with_constants(plan: LogicalPlan, values: &[(Column, ScalarValue)]) -> Result<LogicalPlan> {
    let substituted = plan.transform_up(|node| {
        let (names, schema) = (NamePreserver::new(&node), merge_schema(&node.inputs()));
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let replaced = expr.transform_up(|e| replaced(e, values, &schema))?;
            Ok(match replaced.transformed {
                true => replaced.update_data(|e| name.restore(e)),
                false => replaced,
            })
        })
    });
    substituted.data()
}

fn replaced(expr: Expr, values: &[(Column, ScalarValue)], schema: &DFSchema) -> Result<Transformed<Expr>> {
    let inside = |subquery: Subquery| {
        let others = values.iter().filter(|(column, _)| !schema.has_column(column));
        let plan = with_constants(subquery.subquery.as_ref().clone(), &others.cloned().collect::<Vec<_>>())?;
        Ok::<_, datafusion::common::DataFusionError>(Subquery {
            outer_ref_columns: plan.all_out_ref_exprs(),
            subquery: Arc::new(plan),
            spans: subquery.spans,
        })
    };
    Ok(Transformed::yes(match expr {
        Expr::OuterReferenceColumn(field, column) => match values.iter().find(|(c, _)| *c == column) {
            Some((_, value)) => Expr::Literal(value.clone(), None),
            None => return Ok(Transformed::no(Expr::OuterReferenceColumn(field, column))),
        },
        Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(inside(subquery)?),
        Expr::Exists(mut exists) => {
            exists.subquery = inside(exists.subquery)?;
            Expr::Exists(exists)
        }
        Expr::InSubquery(mut within) => {
            within.subquery = inside(within.subquery)?;
            Expr::InSubquery(within)
        }
        other => return Ok(Transformed::no(other)),
    }))
}
