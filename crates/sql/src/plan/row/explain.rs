//! EXPLAIN of the row executor's plans: the tree with its estimates and, of a run that was measured, with what it did.

use super::estimate::HASH;
use super::{Answer, JoinKind, Node, Profile, RowPlan, SetKind, Step, Subplan};
use crate::expr::Expr;
use crate::plan::access::describe;
use crate::plan::shown::{Actual, Shown};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The plan's tree. `profile`: a run of it; `memory`: with its accesses.
pub fn shown(plan: &RowPlan, profile: Option<&Profile>, memory: bool) -> Shown {
    let show = Show {
        plan,
        profile,
        memory,
        commons: RefCell::default(),
    };
    let title = match profile.and_then(Profile::handed_over) {
        Some(steps) => format!("Row executor, handed over to analytics after {steps} steps"),
        None => "Row executor".to_string(),
    };
    let mut under = vec![show.tree(&plan.root, 1)];
    under.extend(show.subplans(&plan.outputs.iter().collect::<Vec<_>>()));
    Shown {
        under,
        ..Shown::line(title)
    }
}

struct Show<'p> {
    plan: &'p RowPlan,
    profile: Option<&'p Profile>,
    memory: bool,
    /// WITH queries that have been shown.
    commons: RefCell<BTreeSet<u16>>,
}

impl Show<'_> {
    /// The node, which began so many times.
    fn tree(&self, node: &Node, loops: u64) -> Shown {
        let actual = self.profile.map(|profile| {
            let run = profile.of(node);
            Actual {
                rows: run.rows,
                loops,
                time: run.time,
                traffic: self.memory.then_some(run.traffic),
            }
        });
        let relation = match &node.step {
            Step::Scan(scan) => Some(scan.access.table.name.clone()),
            _ => None,
        };
        Shown {
            title: self.title(node),
            relation,
            estimate: Some((self.cost(node), node.rows)),
            actual,
            under: self
                .under(node, loops)
                .into_iter()
                .chain(self.subplans(&expressions(node)))
                .collect(),
        }
    }

    /// The subqueries that expressions ask.
    fn subplans(&self, exprs: &[&Expr]) -> Vec<Shown> {
        asked(exprs).into_iter().map(|at| self.subplan(at)).collect()
    }

    fn subplan(&self, at: usize) -> Shown {
        let subplan = &self.plan.subplans[at];
        let runs = self.profile.map_or(0, |profile| profile.of(&subplan.node).runs);
        let mut under = vec![self.tree(&subplan.node, runs)];
        if let Answer::Scalar(value) = &subplan.answer {
            under.extend(self.subplans(&[value]));
        }
        Shown {
            under,
            ..Shown::line(subplan_title(subplan))
        }
    }

    /// Steps of a run of the node with what is under it, and with the subqueries that it asks.
    fn cost(&self, node: &Node) -> f64 {
        let (mut steps, rows) = match &node.step {
            Step::Row => (0.0, 1.0),
            Step::Scan(scan) => (scan.cost, node.rows),
            Step::Values { rows, .. } => (rows.len() as f64, rows.len() as f64),
            Step::Common { .. } | Step::Series { .. } | Step::Unnest { .. } => (node.rows, 1.0),
            Step::Nested { outer, inner, .. } => {
                let steps = match &inner.step {
                    Step::Cache { input, .. } => self.cost(input) + outer.rows * input.rows,
                    _ => outer.rows * self.cost(inner),
                };
                (self.cost(outer) + steps, outer.rows * inner.rows)
            }
            Step::Hash { outer, build, .. } => {
                let steps = self.cost(outer) + self.cost(build) + HASH * (build.rows + outer.rows);
                (steps, outer.rows)
            }
            Step::Set { left, right, .. } => (self.cost(left) + self.cost(right) + left.rows + right.rows, 0.0),
            Step::Sort { input, .. } | Step::Window { input, .. } => {
                let rows = input.rows;
                (self.cost(input) + rows * rows.max(2.0).log2(), rows)
            }
            Step::Aggregate { input, .. } | Step::Distinct { input, .. } => (self.cost(input) + input.rows, input.rows),
            Step::Limit { input, .. } => {
                let share = (node.rows / input.rows.max(1e-3)).min(1.0);
                (self.cost(input) * share, 1.0)
            }
            Step::Filter { input, .. } | Step::Project { input, .. } | Step::Cache { input, .. } => {
                (self.cost(input), input.rows)
            }
        };
        for at in asked(&expressions(node)) {
            let subplan = &self.plan.subplans[at];
            let once = self.cost(&subplan.node);
            steps += if subplan.correlated { rows * once } else { once + rows };
        }
        steps
    }

    fn title(&self, node: &Node) -> String {
        match &node.step {
            Step::Common { at, .. } => format!("Rows of WITH {}", self.plan.commons[usize::from(*at)].name),
            _ => title(node),
        }
    }

    fn rows(&self, node: &Node) -> u64 {
        self.profile.map_or(0, |profile| profile.of(node).rows)
    }

    fn under(&self, node: &Node, loops: u64) -> Vec<Shown> {
        match &node.step {
            Step::Row | Step::Scan(_) | Step::Values { .. } | Step::Series { .. } | Step::Unnest { .. } => Vec::new(),
            Step::Common { at, .. } if self.commons.borrow_mut().insert(*at) => {
                vec![self.tree(&self.plan.commons[usize::from(*at)].node, loops.min(1))]
            }
            Step::Common { .. } => Vec::new(),
            Step::Nested { outer, inner, .. } => {
                vec![self.tree(outer, loops), self.tree(inner, self.rows(outer))]
            }
            Step::Hash { outer, build, .. } => {
                vec![self.tree(outer, loops), self.tree(build, self.rows(outer).min(1))]
            }
            Step::Set { left, right, .. } => vec![self.tree(left, loops), self.tree(right, loops)],
            Step::Cache { input, .. } => vec![self.tree(input, loops.min(1))],
            Step::Filter { input, .. }
            | Step::Project { input, .. }
            | Step::Aggregate { input, .. }
            | Step::Distinct { input, .. }
            | Step::Sort { input, .. }
            | Step::Window { input, .. }
            | Step::Limit { input, .. } => vec![self.tree(input, loops)],
        }
    }
}

fn title(node: &Node) -> String {
    let joined = |kind: &JoinKind| match kind {
        JoinKind::Inner => "",
        JoinKind::Left => " left",
        JoinKind::Full => " full",
        JoinKind::Semi => " semi",
        JoinKind::Anti => " anti",
    };
    match &node.step {
        Step::Row => "One row".into(),
        Step::Scan(scan) => {
            let table = &scan.access.table;
            let filter = scan.access.filter.as_ref().map_or("", |_| ", filter");
            let alias = if scan.alias == table.name {
                String::new()
            } else {
                format!(" {}", scan.alias)
            };
            format!("{} on {}{alias}{filter}", describe(&scan.access), table.name)
        }
        Step::Nested { kind, .. } => format!("Nested loop{} join", joined(kind)),
        Step::Hash { kind, .. } => format!("Hash{} join", joined(kind)),
        Step::Filter { .. } => "Filter".into(),
        Step::Project { .. } => "Project".into(),
        Step::Aggregate { keys, sets, .. } if keys.is_empty() && sets.is_empty() => "Aggregate".into(),
        Step::Aggregate { sets, .. } if !sets.is_empty() => format!("Hash aggregate, {} grouping sets", sets.len()),
        Step::Aggregate { .. } => "Hash aggregate".into(),
        Step::Distinct { .. } => "Distinct".into(),
        Step::Sort { .. } => "Sort".into(),
        Step::Window { functions, .. } => format!("Window functions, {}", functions.len()),
        Step::Limit { .. } => "Limit".into(),
        Step::Cache { .. } => "Cache".into(),
        Step::Set { kind, all, .. } => {
            let word = match kind {
                SetKind::Union => "Union",
                SetKind::Intersect => "Intersect",
                SetKind::Except => "Except",
            };
            format!("{word}{}", if *all { " all" } else { "" })
        }
        Step::Values { .. } => "Values".into(),
        Step::Common { .. } => "Rows of WITH".into(),
        Step::Series { .. } => "Function generate_series".into(),
        Step::Unnest { .. } => "Function unnest".into(),
    }
}

/// The subqueries that the expressions ask, each once.
fn asked(exprs: &[&Expr]) -> Vec<usize> {
    let mut asked = BTreeSet::new();
    for expr in exprs {
        expr.walk(&mut |e| {
            if let Expr::Subquery(subquery) = e {
                asked.insert(usize::from(subquery.at));
            }
        });
    }
    asked.into_iter().collect()
}

fn subplan_title(subplan: &Subplan) -> String {
    let what = match &subplan.answer {
        Answer::Scalar(_) => "Scalar subquery",
        Answer::Exists => "EXISTS subquery",
        Answer::Any { keys: Some(_), .. } => "IN subquery, hashed",
        Answer::Any { .. } => "ANY subquery",
    };
    format!("{what}{}", if subplan.correlated { "" } else { ", once" })
}

/// The expressions that the node evaluates.
fn expressions(node: &Node) -> Vec<&Expr> {
    match &node.step {
        Step::Row
        | Step::Distinct { .. }
        | Step::Cache { .. }
        | Step::Set { .. }
        | Step::Sort { .. }
        | Step::Common { .. } => Vec::new(),
        Step::Scan(scan) => scan.access.condition.iter().chain(&scan.access.filter).collect(),
        Step::Nested { on, .. } => on.iter().collect(),
        Step::Hash { keys, on, .. } => keys.iter().flat_map(|(a, b, _)| [a, b]).chain(on).collect(),
        Step::Filter { condition, .. } => vec![condition],
        Step::Project { values, .. } => values.iter().map(|(_, e)| e).collect(),
        Step::Aggregate { keys, aggregates, .. } => {
            let arguments = aggregates.iter().flat_map(|(a, _)| a.argument.iter().chain(&a.filter));
            keys.iter().map(|(e, ..)| e).chain(arguments).collect()
        }
        Step::Window { functions, .. } => functions.iter().flat_map(|(f, _)| f.expressions()).collect(),
        Step::Limit { limit, offset, .. } => limit.iter().chain(offset).collect(),
        Step::Values { rows, .. } => rows.iter().flatten().collect(),
        Step::Series { start, stop, by, .. } => [start, stop].into_iter().chain(by).collect(),
        Step::Unnest { array, .. } => vec![array],
    }
}
