//! Functions in FROM whose arguments are columns of the items before them: the rows of those, unfolded in place.
//!
//! The planner gives a join whose right side is a subquery over no table. An inner join becomes that subquery over the
//! left side's rows, whose columns it carries along under names of their own. An outer join keeps its left side; the
//! right one becomes the subquery over the different values of the columns that it refers to, and is joined by these.
//! A function that refers to the rows around the whole query alone is a relation as others are.

use super::error::inward;
use crate::error::SqlError;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, NullEquality, Result};
use datafusion::logical_expr::{Distinct, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, SubqueryAlias};
use std::sync::Arc;

/// The plan with such joins written as what they mean.
///
/// # Errors
/// A part cannot be built.
pub(crate) fn with_functions_joined(plan: LogicalPlan) -> Result<LogicalPlan> {
    let changed = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) => of_join(join),
        node @ LogicalPlan::SubqueryAlias(_) => Ok(Transformed::no(node)),
        // What is no side of a join refers to the rows around the whole query.
        node => node.map_children(|child| {
            Ok(match opened(&child)? {
                Some(plan) => Transformed::yes(plan),
                None => Transformed::no(child),
            })
        }),
    });
    changed.data()
}

fn of_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    // Nothing stands before a first item: it refers to the rows around the whole query.
    let first = opened(&join.left)?.map(Arc::new);
    let transformed = first.is_some();
    join.left = first.unwrap_or(join.left);
    Ok(match joined(&join)? {
        Some(plan) => Transformed::yes(plan),
        None => Transformed::new_transformed(LogicalPlan::Join(join), transformed),
    })
}

fn joined(join: &Join) -> Result<Option<LogicalPlan>> {
    let Some(right) = opened(&join.right)? else {
        return Ok(None);
    };
    let refers = |e: &Expr| matches!(e, Expr::OuterReferenceColumn(_, c) if join.left.schema().has_column(c));
    let mut own: Vec<Column> = Vec::new();
    for expr in right.all_out_ref_exprs().iter().filter(|e| refers(e)) {
        if let Expr::OuterReferenceColumn(_, column) = expr
            && !own.contains(column)
        {
            own.push(column.clone());
        }
    }
    match join.join_type {
        _ if own.is_empty() => Ok(Some(LogicalPlan::Join(Join {
            right: Arc::new(right),
            ..join.clone()
        }))),
        JoinType::Inner => inner(join, &right),
        JoinType::Left => left(join, &right, &own),
        _ => Ok(None),
    }
}

/// The right side without the mark that it refers to the left one; None: it does not.
fn opened(right: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    Ok(match right {
        LogicalPlan::Subquery(subquery) => Some((*subquery.subquery).clone()),
        LogicalPlan::SubqueryAlias(alias) => match &*alias.input {
            LogicalPlan::Subquery(subquery) => {
                let named = SubqueryAlias::try_new(subquery.subquery.clone(), alias.alias.clone())?;
                Some(LogicalPlan::SubqueryAlias(named))
            }
            _ => None,
        },
        _ => None,
    })
}

/// What the names of columns that are carried along start with.
const CARRIED: &str = "\u{1}carried ";

/// Columns that are carried along: what the subquery calls them, and what they are.
struct Carried(Vec<(Column, Column)>);

impl Carried {
    fn of(columns: Vec<Column>) -> Carried {
        let name = |(at, column)| (Column::from_name(format!("{CARRIED}{at}")), column);
        Carried(columns.into_iter().enumerate().map(name).collect())
    }

    fn names(&self) -> Vec<Expr> {
        self.0.iter().map(|(name, _)| Expr::Column(name.clone())).collect()
    }

    /// The columns under their names.
    fn named(&self, plan: LogicalPlan) -> Result<LogicalPlanBuilder> {
        let named = |(name, column): &(Column, Column)| Expr::Column(column.clone()).alias(name.name.clone());
        LogicalPlanBuilder::from(plan).project(self.0.iter().map(named))
    }

    /// The expression over the carried columns.
    fn over(&self, expr: Expr) -> Result<Expr> {
        let replaced = expr.transform_up(|e| match &e {
            Expr::OuterReferenceColumn(_, column) => match self.0.iter().find(|(_, c)| c == column) {
                Some((name, _)) => Ok(Transformed::yes(Expr::Column(name.clone()))),
                None => Ok(Transformed::no(e)),
            },
            _ => Ok(Transformed::no(e)),
        });
        replaced.data()
    }

    /// The subquery over these rows; None: it is none over no table.
    fn through(&self, plan: &LogicalPlan, rows: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        let input = match plan {
            LogicalPlan::EmptyRelation(empty) if empty.produce_one_row => return Ok(Some(rows.clone())),
            LogicalPlan::Projection(node) => self.through(&node.input, rows)?,
            LogicalPlan::Unnest(node) => self.through(&node.input, rows)?,
            LogicalPlan::Filter(node) => self.through(&node.input, rows)?,
            LogicalPlan::SubqueryAlias(node) => self.through(&node.input, rows)?,
            _ => None,
        };
        let Some(input) = input else { return Ok(None) };
        let builder = LogicalPlanBuilder::from(input.clone());
        let built = match plan {
            LogicalPlan::Projection(node) => {
                let mut values = self.names();
                for (expr, column) in node.expr.iter().zip(node.schema.columns()) {
                    values.push(self.over(expr.clone())?.alias_qualified(column.relation, column.name));
                }
                builder.project(values)?.build()?
            }
            LogicalPlan::Unnest(node) => builder
                .unnest_columns_with_options(node.exec_columns.clone(), node.options.clone())?
                .build()?,
            LogicalPlan::Filter(node) => {
                let condition = self.over(node.predicate.clone())?;
                LogicalPlan::Filter(Filter::try_new(condition, Arc::new(input))?)
            }
            _ => self.under_alias(&input, plan)?,
        };
        Ok(Some(built))
    }

    /// The rows with the columns behind the carried ones called as those of `plan`.
    fn under_alias(&self, input: &LogicalPlan, plan: &LogicalPlan) -> Result<LogicalPlan> {
        let own = input.schema().columns().into_iter().skip(self.0.len());
        let named = own.zip(plan.schema().columns());
        let named = named.map(|(from, to)| Expr::Column(from).alias_qualified(to.relation, to.name));
        let values = self.names().into_iter().chain(named);
        LogicalPlanBuilder::from(input.clone()).project(values)?.build()
    }
}

fn inner(join: &Join, right: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let carried = Carried::of(join.left.schema().columns());
    let rows = carried.named((*join.left).clone())?.build()?;
    let Some(unfolded) = carried.through(right, &rows)? else {
        return Ok(None);
    };
    let restored = carried.0.iter();
    let restored = restored.map(|(name, column)| {
        let column = column.clone();
        Expr::Column(name.clone()).alias_qualified(column.relation, column.name)
    });
    let own = right.schema().columns().into_iter().map(Expr::Column);
    let mut built = LogicalPlanBuilder::from(unfolded).project(restored.chain(own).collect::<Vec<_>>())?;
    for (left, right) in &join.on {
        built = built.filter(left.clone().eq(right.clone()))?;
    }
    if let Some(condition) = &join.filter {
        built = built.filter(condition.clone())?;
    }
    built.build().map(Some)
}

fn left(join: &Join, right: &LogicalPlan, own: &[Column]) -> Result<Option<LogicalPlan>> {
    if !is_repeatable(&join.left)? {
        return Ok(None);
    }
    let carried = Carried::of(own.to_vec());
    let source = source(&join.left, own);
    refuse_many(source)?;
    let rows = carried.named(source.clone())?.distinct()?.build()?;
    let Some(unfolded) = carried.through(right, &rows)? else {
        return Ok(None);
    };
    let on = carried.0.iter();
    let on = on.map(|(name, column)| (Expr::Column(column.clone()), Expr::Column(name.clone())));
    let given = join.on.iter().map(|(left, right)| left.clone().eq(right.clone()));
    let filter = given.chain(join.filter.clone()).reduce(Expr::and);
    let joined = Join::try_new(
        join.left.clone(),
        Arc::new(unfolded),
        on.collect(),
        filter,
        JoinType::Left,
        join.join_constraint,
        NullEquality::NullEqualsNull,
        false,
    )?;
    let columns = join.schema.columns().into_iter().map(Expr::Column);
    let built = LogicalPlanBuilder::from(LogicalPlan::Join(joined));
    built.project(columns.collect::<Vec<_>>())?.build().map(Some)
}

/// The innermost part of `plan` that gives these columns all the values that they have in it: an outer join keeps its
/// left side.
fn source<'p>(plan: &'p LogicalPlan, columns: &[Column]) -> &'p LogicalPlan {
    let has_all = |part: &LogicalPlan| columns.iter().all(|c| part.schema().has_column(c));
    let passes = |exprs: &[Expr]| {
        let same = |c: &Column| exprs.iter().any(|e| matches!(e, Expr::Column(own) if own == c));
        columns.iter().all(same)
    };
    match plan {
        LogicalPlan::Join(join) if join.join_type == JoinType::Left && has_all(&join.left) => {
            source(&join.left, columns)
        }
        LogicalPlan::Projection(node) if passes(&node.expr) => source(&node.input, columns),
        plan => plan,
    }
}

/// Sets of values that the rows of an outer join look up, at most. Each join reads its rows twice: of n joins, each
/// over the one before, they have 2^n - 1.
const SETS_MAX: usize = 3;

/// Refuses rows that such joins in them read too many times.
fn refuse_many(rows: &LogicalPlan) -> Result<()> {
    let mut sets = 0_usize;
    rows.apply_with_subqueries(|node| {
        sets += usize::from(matches!(node, LogicalPlan::Distinct(Distinct::All(input)) if is_carried(input)));
        Ok(TreeNodeRecursion::Continue)
    })?;
    if sets <= SETS_MAX {
        return Ok(());
    }
    let text = "more than three LEFT JOIN LATERAL of functions, each over columns of the one before,";
    Err(inward(SqlError::unsupported(text)))
}

fn is_carried(plan: &LogicalPlan) -> bool {
    let name = plan.schema().fields().first().map(|f| f.name());
    name.is_some_and(|name| name.starts_with(CARRIED))
}

/// Aggregates that depend on the order of their rows.
const ORDERED: &[&str] = &["array_agg", "string_agg", "first_value", "last_value", "nth_value"];

/// Whether the rows are the same when they are read twice.
fn is_repeatable(plan: &LogicalPlan) -> Result<bool> {
    let is_ordered = |e: &Expr| matches!(e, Expr::AggregateFunction(call) if ORDERED.contains(&call.func.name()));
    let mut repeatable = true;
    plan.apply_with_subqueries(|node| {
        repeatable &= match node {
            LogicalPlan::Limit(_) | LogicalPlan::Window(_) | LogicalPlan::Distinct(Distinct::On(_)) => false,
            LogicalPlan::Sort(sort) => sort.fetch.is_none(),
            _ => true,
        };
        for expr in node.expressions() {
            repeatable &= !expr.is_volatile() && !expr.exists(|e| Ok(is_ordered(e)))?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(repeatable)
}
