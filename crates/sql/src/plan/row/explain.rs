//! EXPLAIN of the row executor's plans: the tree, a node a line, with the rows expected.

use super::{ApplyKind, JoinKind, Node, RowPlan, SetKind, Step};
use crate::plan::access::describe;

/// The plan, a line each.
pub fn explain(plan: &RowPlan) -> Vec<String> {
    let mut lines = vec!["Row executor".to_string()];
    tree(&plan.root, 1, &mut lines);
    lines
}

fn tree(node: &Node, depth: usize, lines: &mut Vec<String>) {
    let text = title(node);
    lines.push(format!(
        "{}{text}  (rows={:.0})",
        "  ".repeat(depth),
        node.rows.max(1.0)
    ));
    let mut under = |node: &Node| tree(node, depth + 1, lines);
    match &node.step {
        Step::Row | Step::Scan(_) | Step::Values { .. } => {}
        Step::Nested { outer, inner, .. } => [outer, inner].into_iter().for_each(|n| under(n)),
        Step::Hash { outer, build, .. } => [outer, build].into_iter().for_each(|n| under(n)),
        Step::Set { left, right, .. } => [left, right].into_iter().for_each(|n| under(n)),
        Step::Apply { input, apply } => {
            under(input);
            under(&apply.node);
        }
        Step::Filter { input, .. }
        | Step::Project { input, .. }
        | Step::Aggregate { input, .. }
        | Step::Distinct { input, .. }
        | Step::Sort { input, .. }
        | Step::Limit { input, .. }
        | Step::Cache { input, .. } => under(input),
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
            format!(
                "{} on {}{alias}{filter}",
                describe(&scan.access.path, table),
                table.name
            )
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
