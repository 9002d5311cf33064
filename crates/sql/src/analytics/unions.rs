//! Strings of several types that a UNION brings together: DataFusion gives them the type of one that is marked. Those
//! of PostgreSQL take the first one's type, but a literal's, which has none yet.

use super::casts;
use super::types::{self, BPCHAR, VARCHAR};
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Union};
use std::sync::Arc;

/// A string type and its modifier; None: text.
type Mark = Option<(u32, i32)>;

/// The plan with its unions' strings converted.
///
/// # Errors
/// None: the types fit.
pub(crate) fn with_union_types(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut is_changed = false;
    let changed = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Union(union) => match converted(&union)? {
            Some(union) => {
                is_changed = true;
                Ok(Transformed::yes(LogicalPlan::Union(union)))
            }
            None => Ok(Transformed::no(LogicalPlan::Union(union))),
        },
        // What reads a union tells the types of its columns, too.
        node if is_changed => node.recompute_schema().map(Transformed::yes),
        node => Ok(Transformed::no(node)),
    });
    changed.data()
}

fn converted(union: &Union) -> Result<Option<Union>> {
    let wanted: Vec<Option<Mark>> = (0..union.schema.fields().len()).map(|at| wanted(union, at)).collect();
    if wanted.iter().all(Option::is_none) {
        return Ok(None);
    }
    let inputs = union
        .inputs
        .iter()
        .map(|input| with_marks(input, &wanted).map(Arc::new));
    Union::try_new(inputs.collect::<Result<_>>()?).map(Some)
}

/// What the strings of a column become; None: they may stay.
fn wanted(union: &Union, at: usize) -> Option<Mark> {
    let mark = |input: &LogicalPlan| types::marked(input.schema().field(at));
    let marks: Vec<Mark> = union.inputs.iter().map(|input| mark(input)).collect();
    if marks.iter().all(|one| *one == marks[0]) {
        return None;
    }
    let mut typed = union.inputs.iter().filter(|input| !is_untyped(input, at));
    let first = typed.next().and_then(|input| mark(input));
    Some(match first {
        Some((oid @ (BPCHAR | VARCHAR), _)) => Some((oid, -1)),
        _ => None,
    })
}

/// Whether a column is a literal, whose type the others decide.
fn is_untyped(input: &LogicalPlan, at: usize) -> bool {
    let LogicalPlan::Projection(projection) = input else {
        return false;
    };
    let value = projection.expr.get(at).map(|e| e.clone().unalias());
    matches!(
        value,
        Some(Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Null, _) | Expr::Placeholder(_))
    )
}

fn with_marks(input: &Arc<LogicalPlan>, wanted: &[Option<Mark>]) -> Result<LogicalPlan> {
    let columns = input.schema().columns().into_iter().enumerate();
    let value = |(at, column): (usize, Column)| {
        let is = types::marked(input.schema().field(at));
        match wanted[at] {
            Some(mark) if mark != is => {
                of_type(Expr::Column(column.clone()), mark).alias_qualified(column.relation, column.name)
            }
            _ => Expr::Column(column),
        }
    };
    LogicalPlanBuilder::from(input.clone())
        .project(columns.map(value))?
        .build()
}

fn of_type(value: Expr, mark: Mark) -> Expr {
    match mark {
        Some((BPCHAR, _)) => casts::to_bpchar().call(vec![value]),
        Some(_) => casts::to_varchar().call(vec![value]),
        None => casts::to_text("cenote_text").call(vec![value]),
    }
}
