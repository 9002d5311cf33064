//! Which subqueries are evaluated row by row (`apply`): those that give other values as the joins of DataFusion.
//!
//! A join says which rows have a match. That is all that a condition of WHERE or HAVING asks of IN, and NOT IN has a
//! join that knows of NULL, but not of a subquery that refers to the row around it. Where the value of IN counts, a
//! join takes NULL for false. And a subquery that refers to the row around it becomes a join by giving up its LIMIT,
//! its windows or the row of an aggregate over no rows.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::InSubquery;
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{Expr, ExprSchemable, FetchType, Limit, LogicalPlan, SkipType};

/// Where an IN stands: as a condition of which only whether it is true counts, or where its value does.
#[derive(Clone, Copy)]
enum Place {
    Condition { negated: bool },
    Value,
}

/// Whether a plan has such a subquery, at any depth.
pub(crate) fn is_needed(plan: &LogicalPlan) -> Result<bool> {
    let mut needed = false;
    plan.apply_with_subqueries(|node| {
        needed |= !chosen_of(node, false)?.is_empty();
        Ok(match needed {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(needed)
}

/// The subqueries in a node's expressions that are such, or that have such inside.
pub(crate) fn chosen(node: &LogicalPlan) -> Result<Vec<Expr>> {
    chosen_of(node, true)
}

fn chosen_of(node: &LogicalPlan, inside: bool) -> Result<Vec<Expr>> {
    let schema = merge_schema(&node.inputs());
    let mut chosen = Vec::new();
    node.apply_expressions(|expr| {
        let parts = match node {
            LogicalPlan::Filter(_) => split_conjunction(expr),
            _ => vec![expr],
        };
        for part in parts {
            let condition = condition(part);
            part.apply(|e| {
                let place = match condition {
                    Some((within, negated)) if std::ptr::eq(within, e) => Place::Condition { negated },
                    _ => Place::Value,
                };
                if is_chosen(e, place, &schema)? || inside && has_inside(e)? {
                    chosen.push(e.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(chosen)
}

fn condition(part: &Expr) -> Option<(&Expr, bool)> {
    match part {
        Expr::InSubquery(within) => Some((part, within.negated)),
        Expr::Not(inner) => match &**inner {
            Expr::InSubquery(within) => Some((inner, !within.negated)),
            _ => None,
        },
        _ => None,
    }
}

fn is_chosen(expr: &Expr, place: Place, schema: &DFSchema) -> Result<bool> {
    match expr {
        Expr::ScalarSubquery(subquery) => is_framed(&subquery.subquery),
        Expr::Exists(exists) => {
            let plan = &exists.subquery.subquery;
            Ok(is_framed(plan)? || loses_rows(below_limit(plan))?)
        }
        Expr::InSubquery(within) => {
            let plan = &within.subquery.subquery;
            let otherwise = match place {
                Place::Condition { negated } => negated && refers(plan),
                Place::Value => has_nulls(within, schema) || !reads_table(plan)?,
            };
            Ok(otherwise || is_framed(plan)? || loses_rows(plan)? || !is_plain(&within.expr)?)
        }
        _ => Ok(false),
    }
}

fn has_inside(expr: &Expr) -> Result<bool> {
    match expr {
        Expr::ScalarSubquery(subquery) => is_needed(&subquery.subquery),
        Expr::Exists(exists) => is_needed(&exists.subquery.subquery),
        Expr::InSubquery(within) => is_needed(&within.subquery.subquery),
        _ => Ok(false),
    }
}

fn refers(plan: &LogicalPlan) -> bool {
    !plan.all_out_ref_exprs().is_empty()
}

/// Whether IN may be NULL.
pub(crate) fn has_nulls(within: &InSubquery, schema: &DFSchema) -> bool {
    within.expr.nullable(schema).unwrap_or(true) || within.subquery.subquery.schema().field(0).is_nullable()
}

/// Whether a subquery reads a table. Of others the optimiser may find that they are empty, and loses rows then.
pub(crate) fn reads_table(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::TableScan(_))))
}

/// Whether the left side of IN is the same wherever and however often it is evaluated.
pub(crate) fn is_plain(left: &Expr) -> Result<bool> {
    let is_subquery = |e: &Expr| matches!(e, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_));
    Ok(!left.is_volatile() && !left.exists(|e| Ok(is_subquery(e)))?)
}

/// Whether a subquery numbers or frames rows of which it takes only those that the row around it wants. As a join it
/// would number the rows of all.
pub(crate) fn is_framed(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        let frames = matches!(node, LogicalPlan::Window(_));
        Ok(frames && node.inputs().into_iter().any(refers))
    })
}

/// Whether a subquery cuts off or adds rows that a join would not: by LIMIT, or by an aggregate over no rows.
pub(crate) fn loses_rows(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        Ok(match node {
            LogicalPlan::Limit(limit) => refers(&limit.input),
            LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty() && refers(&aggregate.input),
            _ => false,
        })
    })
}

/// A subquery of EXISTS without the LIMIT around it that keeps its first row.
fn below_limit(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::Projection(projection) => below_limit(&projection.input),
        LogicalPlan::Limit(limit) if keeps_first(limit) => &limit.input,
        other => other,
    }
}

fn keeps_first(limit: &Limit) -> bool {
    let skips = !matches!(limit.get_skip_type(), Ok(SkipType::Literal(0)));
    !skips && matches!(limit.get_fetch_type(), Ok(FetchType::Literal(Some(1..) | None)))
}
