//! The cheapest path to the rows of a table.

use super::matching::Match;
use super::{Access, Path, Wanted, all_of, conjuncts, has_all, key_column, key_length};
use crate::expr::{Comparison, Expr};
use cenote_engine::{Direction, Table};
use std::sync::Arc;

/// Arms of an OR that are looked at, at most.
const ARMS_MAX: usize = 5_000;

/// What a path costs.
pub trait Costs {
    /// Steps of reading all rows of the path, and how many pass its conditions.
    fn of(&self, access: &Access) -> (f64, f64);
    /// Steps of sorting so many rows.
    fn sort(&self, rows: f64) -> f64;
    /// Rows of the path that are equal in the first so many columns of its tree's key, and steps of finding those that
    /// come next.
    fn group(&self, access: &Access, columns: usize) -> (f64, f64);
}

/// The order in which rows are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Order<'w> {
    /// By these columns.
    pub columns: &'w [Wanted],
    /// How many of the first rows are wanted; None: all.
    pub limit: Option<f64>,
}

/// A path, and how many of the first columns of the order wanted it gives.
struct Candidate {
    access: Access,
    served: usize,
}

/// Chooses the path. `reads`: the columns that are read of the rows beside those of the filter; None: rows are wanted
/// whole. The answer says by how many of the first columns of the order wanted the rows come ordered.
pub fn choose(
    table: &Arc<Table>,
    condition: Option<Expr>,
    order: Option<Order<'_>>,
    reads: Option<&[usize]>,
    costs: &dyn Costs,
) -> (Access, usize) {
    let list: Vec<Expr> = conjuncts(condition.clone()).into_iter().map(as_list).collect();
    let mut candidates = Vec::new();
    for index in trees(table) {
        let in_order = order.is_some_and(|o| !o.columns.is_empty());
        let found = Match::new(table, index, &list, in_order);
        let served = served(table, &found, order);
        if !found.fixes() && served.columns == 0 {
            continue;
        }
        let filter = all_of(found.rest());
        let index_only = reads.is_some_and(|reads| has_all(table, index, reads, filter.as_ref()));
        let candidate = Candidate {
            access: Access {
                table: table.clone(),
                path: found.path(),
                filter,
                condition: condition.clone(),
                direction: served.direction,
                turn: None,
                index_only,
            },
            served: served.columns,
        };
        if found.unique && index.is_none() {
            return (candidate.access, candidate.served);
        }
        candidates.extend(turned(&candidate, &served, order));
        candidates.push(candidate);
    }
    candidates.extend(union(table, &list, &condition, costs));
    if candidates.is_empty() {
        return (whole_table(table, condition), 0);
    }
    let whole = Candidate {
        access: whole_table(table, condition),
        served: 0,
    };
    let costed = |c: Candidate| (cost(&c.access, c.served, order, costs), c);
    let whole = costed(whole);
    // Of equals the first, as the trees stand in the table.
    let cheaper = |best: (f64, Candidate), other: (f64, Candidate)| if other.0 < best.0 { other } else { best };
    let best = candidates.into_iter().map(costed).reduce(cheaper);
    let best = best.filter(|(cost, _)| *cost <= whole.0).unwrap_or(whole).1;
    (best.access, best.served)
}

/// Steps of a path with the sort behind it. One that gives the order ends where the limit does; one that gives the first
/// columns of it ends behind the last row that is equal in them.
pub fn cost(access: &Access, served: usize, order: Option<Order<'_>>, costs: &dyn Costs) -> f64 {
    let (steps, rows) = costs.of(access);
    let Some(order) = order.filter(|o| !o.columns.is_empty()) else {
        return steps;
    };
    let rows = rows.max(1.0);
    // Steps of finding the groups of so many rows, and how many rows these groups have.
    let groups = |columns: usize, read: f64| {
        let (group, find) = costs.group(access, columns);
        let count = (read.min(rows) / group).ceil();
        (count * find, count * group)
    };
    let sorted = |read: f64| costs.sort(order.limit.map_or(read, |l| l.min(read)));
    let share = |read: f64| (read / rows).min(1.0);
    match (served, order.limit) {
        (0, _) => steps + sorted(rows),
        (all, None) if all == order.columns.len() => steps,
        (all, Some(limit)) if all == order.columns.len() => {
            steps * share(limit) + access.turn.map_or(0.0, |turn| groups(turn, limit).0)
        }
        (_, None) => steps + sorted(rows),
        (some, Some(limit)) => {
            let (_, read) = groups(key_columns(access, &order.columns[..some]), limit);
            steps * share(read) + sorted(read)
        }
    }
}

/// How many columns of the path's tree come with these of the order, which it serves.
fn key_columns(access: &Access, served: &[Wanted]) -> usize {
    let Path::Range { index, prefix, .. } = &access.path else {
        return 0;
    };
    let fixed = prefix.len();
    let is_fixed = |wanted: &&Wanted| (0..fixed).any(|at| key_column(&access.table, *index, at) == wanted.column);
    fixed + served.iter().filter(|wanted| !is_fixed(wanted)).count()
}

/// The path that serves all of the order, where what a tree does not serve of it goes on with the tree's columns in the
/// other direction. Without a LIMIT a sort reads no more.
fn turned(candidate: &Candidate, served: &Served, order: Option<Order<'_>>) -> Option<Candidate> {
    let order = order.filter(|order| order.limit.is_some())?;
    let access = Access {
        turn: Some(served.turn?),
        ..candidate.access.clone()
    };
    Some(Candidate {
        access,
        served: order.columns.len(),
    })
}

fn whole_table(table: &Arc<Table>, condition: Option<Expr>) -> Access {
    Access {
        table: table.clone(),
        path: Path::Range {
            index: None,
            prefix: Vec::new(),
            lower: None,
            upper: None,
        },
        filter: condition.clone(),
        condition,
        direction: Direction::Forward,
        turn: None,
        index_only: false,
    }
}

/// An OR of equalities of one column is a list of its values.
fn as_list(condition: Expr) -> Expr {
    let Expr::Or(arms) = &condition else {
        return condition;
    };
    let Some(Expr::Compare { left, trim, .. }) = arms.first() else {
        return condition;
    };
    let (operand, trim) = (left.clone(), *trim);
    let Expr::Column(column) = &*operand else {
        return condition;
    };
    let value = |arm: &Expr| match arm {
        Expr::Compare {
            op: Comparison::Eq,
            trim: t,
            left,
            right,
        } if *t == trim && matches!(&**left, Expr::Column(c) if c == column) && right.is_row_free() => {
            Some((**right).clone())
        }
        _ => None,
    };
    match arms.iter().map(value).collect::<Option<Vec<Expr>>>() {
        Some(list) => Expr::InList {
            operand,
            list,
            trim,
            negated: false,
        },
        None => condition,
    }
}

/// The union of the paths of an OR's arms, where each arm has one. The other conditions serve in each arm.
fn union(table: &Arc<Table>, list: &[Expr], condition: &Option<Expr>, costs: &dyn Costs) -> Vec<Candidate> {
    let mut found = Vec::new();
    for (at, or) in list.iter().enumerate() {
        let Expr::Or(arms) = or else { continue };
        if arms.len() > ARMS_MAX {
            continue;
        }
        let others = |i: &usize| *i != at;
        let rest: Vec<Expr> = (0..list.len()).filter(others).map(|i| list[i].clone()).collect();
        let paths: Option<Vec<Path>> = arms.iter().map(|arm| arm_path(table, arm, &rest, costs)).collect();
        if let Some(paths) = paths {
            found.push(Candidate {
                access: Access {
                    table: table.clone(),
                    path: Path::Union(paths),
                    filter: condition.clone(),
                    condition: condition.clone(),
                    direction: Direction::Forward,
                    turn: None,
                    index_only: false,
                },
                served: 0,
            });
        }
    }
    found
}

/// The cheapest path of one arm that is none through the whole table.
fn arm_path(table: &Arc<Table>, arm: &Expr, rest: &[Expr], costs: &dyn Costs) -> Option<Path> {
    let mut list = conjuncts(Some(arm.clone()));
    list.extend_from_slice(rest);
    let mut best: Option<(f64, Path)> = None;
    for index in trees(table) {
        let found = Match::new(table, index, &list, true);
        if !found.fixes() {
            continue;
        }
        let access = Access {
            path: found.path(),
            filter: all_of(found.rest()),
            ..whole_table(table, None)
        };
        let cost = costs.of(&access).0;
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, access.path));
        }
    }
    best.map(|(_, path)| path)
}

/// What of an order the columns of a tree behind the fixed ones give.
struct Served {
    /// How many of its first columns.
    columns: usize,
    /// Read in which direction.
    direction: Direction,
    /// Columns of the tree's key behind which the order goes on with the key's columns, to its end, in the other
    /// direction.
    turn: Option<usize>,
}

/// A column of the order that has one value in all rows orders nothing.
fn served(table: &Table, found: &Match<'_>, order: Option<Order<'_>>) -> Served {
    let mut served = Served {
        columns: 0,
        direction: Direction::Forward,
        turn: None,
    };
    let Some(order) = order.filter(|_| found.is_one_range()) else {
        return served;
    };
    let fixed = found.fixed_columns();
    let is_fixed = |column: usize| (0..fixed).any(|at| key_column(table, found.index, at) == column);
    let (mut at, mut descending) = (fixed, None);
    for wanted in order.columns {
        if !is_fixed(wanted.column) {
            if at >= key_length(table, found.index) || key_column(table, found.index, at) != wanted.column {
                served.turn = None;
                break;
            }
            let turns = descending.is_some_and(|d| d != wanted.descending);
            if turns != served.turn.is_some() {
                if !turns {
                    served.turn = None;
                    break;
                }
                served.turn = Some(at);
            }
            descending.get_or_insert(wanted.descending);
            at += 1;
        }
        served.columns += usize::from(served.turn.is_none());
    }
    if descending == Some(true) {
        served.direction = Direction::Backward;
    }
    served
}

/// The trees of a table: the primary key's, if it has one, then each index's.
fn trees(table: &Table) -> impl Iterator<Item = Option<usize>> + use<> {
    let primary = table.primary_key.is_some().then_some(None);
    primary.into_iter().chain((0..table.indexes.len()).map(Some))
}
