//! The order of inner joins.
//!
//! DataFusion joins tables in the order in which FROM names them. So before it optimises, each run of inner joins is
//! taken apart and put together again in the order that leaves the fewest rows between the joins:
//! 1. How many rows each table (or subquery) gives is what its scan says once it has the conditions on that table alone
//!    ([`EngineScan`](super::scan::EngineScan) tries them on some rows).
//! 2. A join by `a = b` leaves one row in as many as the column has values that has more of them.
//! 3. Up to [`EXHAUSTIVE`] tables the best of all left-deep orders is found by dynamic programming; more are added one
//!    by one, the one first that leaves the fewest rows.
//!
//! Outer, semi and anti joins stay where they are; what is beneath them is ordered for itself. The result has the same
//! columns in the same order.

use super::runtime::{QueryRuntime, physical};
use super::scan::EngineTable;
use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, JoinType, NullEquality, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Operator, Projection};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use std::any::Any;
use std::sync::Arc;

/// Tables of which all orders are looked at.
const EXHAUSTIVE: usize = 10;
/// Tables that are ordered at all.
const MOST: usize = 40;
/// An order has to cost so much less than the written one to be taken.
const BETTER: f64 = 0.8;

/// What orders joins.
pub(crate) struct JoinOrder<'a> {
    pub core: &'a QueryRuntime,
    pub state: &'a SessionState,
}

/// A run of inner joins, taken apart.
struct Run {
    inputs: Vec<LogicalPlan>,
    conditions: Vec<Expr>,
}

impl JoinOrder<'_> {
    /// The plan with its inner joins in a better order.
    ///
    /// # Errors
    /// A plan cannot be put together again.
    pub fn of(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        self.ordered(plan).data()
    }

    fn ordered(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let (predicate, joins) = match plan {
            LogicalPlan::Filter(filter) if is_inner(&filter.input) => (Some(filter.predicate), filter.input),
            joins if is_inner(&joins) => (None, Arc::new(joins)),
            other => {
                let within = other.map_subqueries(|plan| self.ordered(plan))?;
                return within.transform_sibling(|plan| plan.map_children(|child| self.ordered(child)));
            }
        };
        let schema = joins.schema().clone();
        let mut run = Run {
            inputs: Vec::new(),
            conditions: predicate.map(split_conjunction_owned).unwrap_or_default(),
        };
        run.take(Arc::unwrap_or_clone(joins));
        let mut inputs = Vec::with_capacity(run.inputs.len());
        for input in std::mem::take(&mut run.inputs) {
            inputs.push(self.of(input)?);
        }
        run.inputs = inputs;
        // Whatever keeps it from being known leaves the order as it is written.
        let order = self.best(&run).unwrap_or_else(|| (0..run.inputs.len()).collect());
        let joined = run.joined(&order)?;
        let joined = joined.map_subqueries(|plan| self.ordered(plan)).data()?;
        if joined.schema() == &schema {
            return Ok(Transformed::yes(joined));
        }
        let as_written = Projection::new_from_schema(Arc::new(joined), schema);
        Ok(Transformed::yes(LogicalPlan::Projection(as_written)))
    }

    /// The order of a run's inputs; None: it is not worth the look, or not known.
    fn best(&self, run: &Run) -> Option<Vec<usize>> {
        let count = run.inputs.len();
        if !(3..=MOST).contains(&count) {
            return None;
        }
        let rows: Option<Vec<f64>> = (0..count).map(|at| self.rows(run, at)).collect();
        let joins = Joins {
            rows: rows?,
            kept: run.selectivities(),
        };
        let written: Vec<usize> = (0..count).collect();
        let best = match count <= EXHAUSTIVE {
            true => joins.best_of_all(),
            false => joins.best_next(),
        };
        (joins.cost(&best) < joins.cost(&written) * BETTER).then_some(best)
    }

    /// Rows that an input gives under the conditions on it alone.
    fn rows(&self, run: &Run, at: usize) -> Option<f64> {
        let input = &run.inputs[at];
        let own = run.conditions.iter().filter(|c| is_about(c, input.schema())).cloned();
        if let Some(table) = table_of(input)
            && let Some(table) = (&*table as &dyn Any).downcast_ref::<EngineTable>()
            && let Ok(rows) = table.rows_under(self.state, own.clone().collect(), input.schema())
        {
            return Some(rows as f64);
        }
        let plan = match conjunction(own) {
            Some(predicate) => LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input.clone())).ok()?),
            None => input.clone(),
        };
        let (_, plan) = self.core.wait(physical(self.state, &plan)).ok()?;
        let statistics = StatisticsContext::new().compute(&*plan, &StatisticsArgs::new()).ok()?;
        statistics.num_rows.get_value().map(|rows| (*rows as f64).max(1.0))
    }
}

fn is_inner(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Join(join) if is_inner_join(join))
}

fn is_inner_join(join: &Join) -> bool {
    join.join_type == JoinType::Inner && (join.on.is_empty() || join.null_equality == NullEquality::NullEqualsNothing)
}

/// Whether a condition can be evaluated on rows of this schema, and reads them.
fn is_about(condition: &Expr, schema: &DFSchema) -> bool {
    let columns = condition.column_refs();
    !columns.is_empty() && columns.iter().all(|c| schema.has_column(c)) && is_plain(condition)
}

fn is_plain(condition: &Expr) -> bool {
    let foreign = |e: &Expr| {
        Ok(matches!(
            e,
            Expr::OuterReferenceColumn(..)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::ScalarSubquery(_)
                | Expr::SetComparison(_)
        ))
    };
    condition.exists(foreign).is_ok_and(|found| !found) && !condition.is_volatile()
}

impl Run {
    /// Takes joins apart, from left to right.
    fn take(&mut self, plan: LogicalPlan) {
        match plan {
            LogicalPlan::Join(join) if is_inner_join(&join) => {
                let equal = join.on.into_iter().map(|(left, right)| left.eq(right));
                self.conditions.extend(equal);
                self.conditions
                    .extend(join.filter.into_iter().flat_map(split_conjunction_owned));
                self.take(Arc::unwrap_or_clone(join.left));
                self.take(Arc::unwrap_or_clone(join.right));
            }
            input => self.inputs.push(input),
        }
    }

    /// The inputs joined in this order, under all conditions. DataFusion makes joins by keys of them.
    fn joined(self, order: &[usize]) -> Result<LogicalPlan> {
        let mut inputs: Vec<Option<LogicalPlan>> = self.inputs.into_iter().map(Some).collect();
        let mut joined: Option<LogicalPlanBuilder> = None;
        for at in order {
            let input = inputs[*at].take();
            let Some(input) = input else { continue };
            joined = Some(match joined {
                None => LogicalPlanBuilder::from(input),
                Some(before) => before.cross_join(input)?,
            });
        }
        assert!(inputs.iter().all(Option::is_none), "an order has all inputs");
        let Some(joined) = joined else {
            return datafusion::common::internal_err!("joins without inputs");
        };
        match conjunction(self.conditions) {
            Some(predicate) => Ok(LogicalPlan::Filter(Filter::try_new(
                predicate,
                Arc::new(joined.build()?),
            )?)),
            None => joined.build(),
        }
    }

    /// For each two inputs, which part of the pairs of their rows the conditions between them leave.
    fn selectivities(&self) -> Vec<Vec<f64>> {
        let count = self.inputs.len();
        let mut kept = vec![vec![1.0f64; count]; count];
        for condition in &self.conditions {
            let Some((left, right, part)) = self.equality(condition) else {
                continue;
            };
            // Columns of one key depend on each other: the second says less than it seems.
            let before = kept[left][right];
            let both = if before < 1.0 { before * part.sqrt() } else { part };
            (kept[left][right], kept[right][left]) = (both, both);
        }
        kept
    }

    /// The two inputs that `a = b` connects, and which part of the pairs it leaves.
    fn equality(&self, condition: &Expr) -> Option<(usize, usize, f64)> {
        let Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) = condition
        else {
            return None;
        };
        let of = |side: &Expr| self.inputs.iter().position(|input| is_about(side, input.schema()));
        let (a, b) = (of(left)?, of(right)?);
        let values = values_of(left, &self.inputs[a]).max(values_of(right, &self.inputs[b]));
        (a != b).then(|| (a, b, 1.0 / values.max(1.0)))
    }
}

/// About how many values a column of an input has; of what is no table's column, or leads no key, a tenth of the rows.
fn values_of(expr: &Expr, input: &LogicalPlan) -> f64 {
    const UNKNOWN: f64 = 10.0;
    let Some(provider) = table_of(input) else {
        return UNKNOWN;
    };
    let any: &dyn Any = &*provider;
    let Some(table) = any.downcast_ref::<EngineTable>() else {
        return UNKNOWN;
    };
    let column = expr.column_refs();
    let name = column.iter().next().map(|c| c.name.as_str()).unwrap_or_default();
    match table.values_of(name) {
        Some(values) => values as f64,
        None => table.rows() as f64 / UNKNOWN,
    }
}

/// The table that an input is, under other names or none.
fn table_of(input: &LogicalPlan) -> Option<Arc<dyn datafusion::catalog::TableProvider>> {
    match input {
        LogicalPlan::SubqueryAlias(alias) => table_of(&alias.input),
        LogicalPlan::TableScan(scan) => source_as_provider(&scan.source).ok(),
        _ => None,
    }
}

/// Inputs and the conditions between them, as numbers.
struct Joins {
    rows: Vec<f64>,
    kept: Vec<Vec<f64>>,
}

impl Joins {
    /// Rows of a join of `before` with one more input, or a part of one: they are the same whatever the order was.
    fn rows_with(&self, rows: f64, before: impl Iterator<Item = usize>, next: usize) -> f64 {
        let part: f64 = before.map(|at| self.kept[at][next]).product();
        rows * self.rows[next] * part
    }

    /// Rows between the joins of an order, all together.
    fn cost(&self, order: &[usize]) -> f64 {
        let (mut rows, mut cost) = (self.rows[order[0]], 0.0);
        for (place, next) in order.iter().enumerate().skip(1) {
            rows = self.rows_with(rows, order[..place].iter().copied(), *next);
            cost += rows.max(1.0);
        }
        cost
    }

    /// The left-deep order that costs least: for each set of inputs, the best order of it is the best order of all but
    /// one and that one. (Selinger et al., Access Path Selection in a Relational Database Management System, 1979)
    fn best_of_all(&self) -> Vec<usize> {
        let count = self.rows.len();
        let mut best: Vec<Option<(f64, f64, usize)>> = vec![None; 1 << count];
        for at in 0..count {
            best[1 << at] = Some((0.0, self.rows[at], at));
        }
        for set in 1usize..1 << count {
            let Some((cost, rows, _)) = best[set] else { continue };
            for next in (0..count).filter(|next| set & 1 << next == 0) {
                let members = (0..count).filter(|at| set & 1 << at != 0);
                let joined = self.rows_with(rows, members, next);
                let (slot, cost) = (&mut best[set | 1 << next], cost + joined.max(1.0));
                if slot.is_none_or(|(known, ..)| cost < known) {
                    *slot = Some((cost, joined, next));
                }
            }
        }
        let (mut set, mut order) = ((1 << count) - 1, Vec::new());
        while let Some((_, _, last)) = best[set] {
            order.push(last);
            set &= !(1 << last);
        }
        order.reverse();
        self.smaller_first(order)
    }

    /// The order in which each next input leaves the fewest rows, from the smallest on.
    fn best_next(&self) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.rows.len()).collect();
        left.sort_by(|a, b| self.rows[*a].total_cmp(&self.rows[*b]));
        let mut order = vec![left.remove(0)];
        let mut rows = self.rows[order[0]];
        while !left.is_empty() {
            let joined = |next: usize| self.rows_with(rows, order.iter().copied(), next);
            let best = (0..left.len()).min_by(|a, b| joined(left[*a]).total_cmp(&joined(left[*b])));
            let next = left.remove(best.unwrap_or(0));
            rows = joined(next);
            order.push(next);
        }
        order
    }

    /// Of the first two, the smaller is gathered and the larger is asked for its rows.
    fn smaller_first(&self, mut order: Vec<usize>) -> Vec<usize> {
        if self.rows[order[1]] < self.rows[order[0]] {
            order.swap(0, 1);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::random::Random;

    fn random_joins(count: usize, random: &mut Random) -> Joins {
        let rows = (0..count).map(|_| 1.0 + random.below(100_000) as f64).collect();
        let mut kept = vec![vec![1.0; count]; count];
        let pairs = (0..count).flat_map(|a| (0..a).map(move |b| (a, b)));
        for (a, b) in pairs {
            if random.below(3) > 0 {
                let part = 1.0 / (1.0 + random.below(50_000) as f64);
                (kept[a][b], kept[b][a]) = (part, part);
            }
        }
        Joins { rows, kept }
    }

    fn permutations(of: &mut Vec<usize>, from: usize, visit: &mut dyn FnMut(&[usize])) {
        if from == of.len() {
            return visit(of);
        }
        for at in from..of.len() {
            of.swap(from, at);
            permutations(of, from + 1, visit);
            of.swap(from, at);
        }
    }

    #[test]
    fn no_order_costs_less_than_the_best() {
        let mut random = Random(17);
        for count in [2, 3, 4, 5, 6] {
            for _ in 0..20 {
                let joins = random_joins(count, &mut random);
                let best = joins.cost(&joins.best_of_all());
                let mut least = f64::INFINITY;
                permutations(&mut (0..count).collect(), 0, &mut |order| {
                    least = least.min(joins.cost(order))
                });
                assert!(best <= least * 1.000_001, "{best} where {least} can be");
            }
        }
    }

    #[test]
    fn many_are_ordered_one_by_one() {
        let mut random = Random(3);
        let joins = random_joins(30, &mut random);
        let mut order = joins.best_next();
        assert!(joins.cost(&order) <= joins.cost(&(0..30).collect::<Vec<_>>()));
        order.sort_unstable();
        assert_eq!(order, (0..30).collect::<Vec<_>>());
    }
}
