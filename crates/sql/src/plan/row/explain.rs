//! EXPLAIN of the row executor's plans: the tree with its estimates and, of a run that was measured, with what it did.

use super::estimate::HASH;
use super::{Apply, ApplyKind, JoinKind, Node, Profile, RowPlan, SetKind, Step};
use crate::plan::access::describe;
use crate::plan::shown::{Actual, Shown};

/// The plan's tree. `profile`: a run of it; `memory`: with its accesses.
pub fn shown(plan: &RowPlan, profile: Option<&Profile>, memory: bool) -> Shown {
    let show = Show { profile, memory };
    Shown {
        under: vec![show.tree(&plan.root, 1)],
        ..Shown::line("Row executor")
    }
}

struct Show<'p> {
    profile: Option<&'p Profile>,
    memory: bool,
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
            title: title(node),
            relation,
            estimate: Some((cost(node), node.rows)),
            actual,
            under: self.under(node, loops),
        }
    }

    fn rows(&self, node: &Node) -> u64 {
        self.profile.map_or(0, |profile| profile.of(node).rows)
    }

    fn under(&self, node: &Node, loops: u64) -> Vec<Shown> {
        match &node.step {
            Step::Row | Step::Scan(_) | Step::Values { .. } => Vec::new(),
            Step::Nested { outer, inner, .. } => {
                vec![self.tree(outer, loops), self.tree(inner, self.rows(outer))]
            }
            Step::Hash { outer, build, .. } => {
                vec![self.tree(outer, loops), self.tree(build, self.rows(outer).min(1))]
            }
            Step::Set { left, right, .. } => vec![self.tree(left, loops), self.tree(right, loops)],
            Step::Apply { input, apply } => {
                let runs = match runs_once(apply) {
                    true => self.rows(input).min(1),
                    false => self.rows(input),
                };
                vec![self.tree(input, loops), self.tree(&apply.node, runs)]
            }
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

fn runs_once(apply: &Apply) -> bool {
    apply.outer.is_empty() || matches!(apply.kind, ApplyKind::Any { key: Some(_), .. })
}

/// Steps of a run of the node with what is under it.
fn cost(node: &Node) -> f64 {
    match &node.step {
        Step::Row => 0.0,
        Step::Scan(scan) => scan.cost,
        Step::Values { rows, .. } => rows.len() as f64,
        Step::Nested { outer, inner, .. } => match &inner.step {
            Step::Cache { input, .. } => cost(outer) + cost(input) + outer.rows * input.rows,
            _ => cost(outer) + outer.rows * cost(inner),
        },
        Step::Hash { outer, build, .. } => cost(outer) + cost(build) + HASH * (build.rows + outer.rows),
        Step::Set { left, right, .. } => cost(left) + cost(right) + left.rows + right.rows,
        Step::Apply { input, apply } if runs_once(apply) => cost(input) + cost(&apply.node) + input.rows,
        Step::Apply { input, apply } => cost(input) + input.rows * cost(&apply.node),
        Step::Sort { input, .. } | Step::Window { input, .. } => cost(input) + input.rows * input.rows.max(2.0).log2(),
        Step::Aggregate { input, .. } | Step::Distinct { input, .. } => cost(input) + input.rows,
        Step::Limit { input, .. } => cost(input) * (node.rows / input.rows.max(1e-3)).min(1.0),
        Step::Filter { input, .. } | Step::Project { input, .. } | Step::Cache { input, .. } => cost(input),
    }
}

fn title(node: &Node) -> String {
    let joined = |kind: &JoinKind| if *kind == JoinKind::Left { " left" } else { "" };
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
        Step::Apply { apply, .. } => {
            let what = match &apply.kind {
                ApplyKind::Scalar(_) => "Scalar subquery",
                ApplyKind::Exists => "EXISTS subquery",
                ApplyKind::Any { key: Some(_), .. } => "IN subquery, hashed",
                ApplyKind::Any { .. } => "ANY subquery",
            };
            format!("{what}{}", if apply.outer.is_empty() { ", once" } else { "" })
        }
        Step::Project { .. } => "Project".into(),
        Step::Aggregate { keys, .. } if keys.is_empty() => "Aggregate".into(),
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
    }
}
