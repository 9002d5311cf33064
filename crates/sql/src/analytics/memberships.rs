//! `x IN (SELECT ...)` of the row around it, where DataFusion would take NULL for false, as joins nevertheless.
//!
//! Inside of an expression it becomes CASE over two EXISTS, and NOT IN as a condition becomes NOT EXISTS. What such
//! EXISTS would say wrongly, or twice over at each depth, is left for `by_rows`, and so is what refers to nothing
//! outside: it runs once there.

use super::by_rows::{has_nulls, is_framed, is_plain, loses_rows, reads_table};
use super::casts;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ExprSchema, Result, ScalarValue, Spans};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Subquery, SubqueryAlias, lit, when};
use std::sync::Arc;

/// What the rows of the subquery are called: nothing that a statement can write.
const NAME: &str = "\u{1}members";

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
        Expr::InSubquery(within) if !within.negated => Ok(Transformed::no(Expr::InSubquery(within))),
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
    // Without NULLs the join is right.
    if !has_nulls(within, schema) || has_subqueries(&within.subquery.subquery)? {
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

/// Whether a plan's expressions have subqueries, which would be there twice.
fn has_subqueries(plan: &LogicalPlan) -> Result<bool> {
    let mut has = false;
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            has |= !is_plain(expr)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(has)
}

/// Whether the subquery has a row of whose being equal `test` is true; None: that is for `by_rows` to say.
fn exists(within: &InSubquery, schema: &DFSchema, test: impl Fn(Expr) -> Expr) -> Result<Option<Expr>> {
    let items = &within.subquery.subquery;
    let is_join = !items.all_out_ref_exprs().is_empty() && reads_table(items)? && is_plain(&within.expr)?;
    if !is_join || within.expr.contains_outer() || is_framed(items)? || loses_rows(items)? {
        return Ok(None);
    }
    let left = from_inside(&within.expr, schema)?;
    // The subquery may have columns of the same names as the left side, which are others.
    let named = SubqueryAlias::try_new(items.clone(), NAME)?;
    let item = named.schema.columns().remove(0);
    let condition = test(left.eq(Expr::Column(item)));
    let plan = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(LogicalPlan::SubqueryAlias(named)))?);
    let outer_ref_columns = plan.all_out_ref_exprs();
    let subquery = Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns,
        spans: Spans::new(),
    };
    Ok(Some(Expr::Exists(Exists::new(subquery, false))))
}

/// The expression as a subquery says it: its columns are those of the row around it.
fn from_inside(expr: &Expr, schema: &DFSchema) -> Result<Expr> {
    let outer = expr.clone().transform_up(|e| match e {
        Expr::Column(column) => {
            let field = schema.field_from_column(&column)?.clone();
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    });
    outer.data()
}
