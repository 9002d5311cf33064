//! `x IN (SELECT ...)` where DataFusion would take NULL for false.
//!
//! Its joins say which rows have a match. That is all that a condition of WHERE or HAVING asks of IN; NOT IN has a join
//! of its own, which knows of NULL but not of a subquery that refers to the row around it. So what stands inside of an
//! expression becomes CASE over two EXISTS, and NOT IN of such a subquery becomes NOT EXISTS.

use super::casts;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, ExprSchema, Result, ScalarValue, Spans};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, ExprSchemable, Filter, LogicalPlan, Subquery, lit, when};
use std::sync::Arc;

/// The plan with such conditions written as what they mean.
///
/// # Errors
/// A condition cannot be built.
pub(crate) fn with_memberships(plan: LogicalPlan) -> Result<LogicalPlan> {
    let changed = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Filter(filter) => in_filter(filter),
        node => Ok(Transformed::no(node)),
    });
    changed.data()
}

fn in_filter(filter: Filter) -> Result<Transformed<LogicalPlan>> {
    let schema = filter.input.schema().clone();
    let mut transformed = false;
    let mut conditions = Vec::new();
    for one in split_conjunction_owned(filter.predicate.clone()) {
        let changed = condition(one, &schema)?;
        transformed |= changed.transformed;
        conditions.push(changed.data);
    }
    if !transformed {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let predicate = conjunction(conditions).unwrap_or_else(|| lit(true));
    Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(
        predicate,
        filter.input,
    )?)))
}

/// A condition of which only whether it is true counts.
fn condition(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::Not(inner) => match *inner {
            Expr::InSubquery(mut within) => {
                within.negated = !within.negated;
                condition(Expr::InSubquery(within), schema)
            }
            other => inside(Expr::Not(Box::new(other)), schema),
        },
        Expr::InSubquery(within) if !within.negated || within.subquery.outer_ref_columns.is_empty() => {
            Ok(Transformed::no(Expr::InSubquery(within)))
        }
        Expr::InSubquery(within) => match exists(&within, schema, Expr::is_not_false)? {
            Some(found) => Ok(Transformed::yes(Expr::Not(Box::new(found)))),
            None => Ok(Transformed::no(Expr::InSubquery(within))),
        },
        other => inside(other, schema),
    }
}

/// What stands inside of an expression, whose value counts.
fn inside(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|one| match one {
        Expr::InSubquery(within) => Ok(match value(&within, schema)? {
            Some(value) => Transformed::yes(value),
            None => Transformed::no(Expr::InSubquery(within)),
        }),
        other => Ok(Transformed::no(other)),
    })
}

fn value(within: &InSubquery, schema: &DFSchema) -> Result<Option<Expr>> {
    let items = &within.subquery.subquery;
    // Without NULLs the join is right. Over no table the optimiser may find that a side is empty, and loses rows then.
    let has_nulls = within.expr.nullable(schema)? || items.schema().field(0).is_nullable();
    if !has_nulls || !items.exists(|node| Ok(matches!(node, LogicalPlan::TableScan(_))))? {
        return Ok(None);
    }
    let Some(found) = exists(within, schema, |equal| equal)? else {
        return Ok(None);
    };
    let Some(open) = exists(within, schema, |equal| casts::is_open().call(vec![equal]))? else {
        return Ok(None);
    };
    let value = when(found, lit(!within.negated))
        .when(open, lit(ScalarValue::Boolean(None)))
        .otherwise(lit(within.negated))?;
    Ok(Some(value))
}

/// Whether the subquery has a row of whose being equal `test` is true; None: the left side has a subquery of its own.
fn exists(within: &InSubquery, schema: &DFSchema, test: impl Fn(Expr) -> Expr) -> Result<Option<Expr>> {
    let Some(left) = from_inside(&within.expr, schema)? else {
        return Ok(None);
    };
    let items = &within.subquery.subquery;
    let Some(item) = items.schema().columns().into_iter().next() else {
        return Ok(None);
    };
    let condition = test(left.eq(Expr::Column(item)));
    let plan = LogicalPlan::Filter(Filter::try_new(condition, items.clone())?);
    let outer_ref_columns = plan.all_out_ref_exprs();
    let subquery = Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns,
        spans: Spans::new(),
    };
    Ok(Some(Expr::Exists(Exists::new(subquery, false))))
}

/// The expression as a subquery says it: its columns are those of the row around it.
fn from_inside(expr: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let is_subquery = |e: &Expr| matches!(e, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_));
    if expr.exists(|e| Ok(is_subquery(e)))? {
        return Ok(None);
    }
    let outer = expr.clone().transform_up(|e| match e {
        Expr::Column(column) => {
            let field = schema.field_from_column(&column)?.clone();
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    });
    outer.data().map(Some)
}
