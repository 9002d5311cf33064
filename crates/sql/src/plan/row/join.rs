//! The order of joins and the way each relation is read: by its estimate, exhaustively for few relations, greedily for
//! more.
//!
//! A condition is asked as soon as all that it names has been joined. What names a nullable side is asked behind its
//! outer join; ON of that join is part of it. The answer of a subquery that reads nothing around it serves as a key;
//! one that does is asked behind the join of what it reads.

use super::estimate::{Estimate, HASH, selectivity};
use super::from::{From, Item, Source};
use super::rewrite::share_values;
use super::subquery::slots_of;
use super::{JoinKind, Node, RowPlanner, Scan, SlotNumber, Step};
use crate::expr::bind::{Bound, shape};
use crate::expr::{Comparison, Expr};
use crate::plan::access::{self, Access, Costs, Wanted, all_of};
use crate::plan::learned::Expected;
use crate::plan::statistics::join_fraction;
use crate::types::{base_type, is_integer};
use cenote_engine::{ColumnStatistics, ColumnType, Columns, Statistics, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Items up to which the cheapest order is looked for among all.
const EXHAUSTIVE: usize = 10;
/// Items up to which an order may also join what no condition connects.
const ANY_PAIR: usize = 6;
/// Beyond them it may where the join has no more rows than this: keys that are known look up what comes behind.
const PAIR_ROWS: f64 = 100.0;
/// Items of one join, at most.
const ITEMS_MAX: usize = 60;
/// Joining a row by a kept list of rows.
pub(super) const KEPT_ROW: f64 = 0.3;

/// Items by their positions.
pub(super) type Items = u64;

/// A condition, and which items it names.
pub(super) struct Condition {
    pub(super) expr: Expr,
    uses: Items,
    /// A subquery that reads the row around it is part of it: no relation is read by it.
    late: bool,
    /// It has been asked.
    done: bool,
}

/// How an item is joined to what came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Read anew for each row.
    Lookup,
    /// Read once into a table of hashes.
    Hash,
    /// Read once, and gone through for each row.
    Kept,
}

/// What joining an item costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) method: Method,
    /// Rows for each row before.
    pub(super) matches: f64,
    /// Steps that are taken once.
    pub(super) once: f64,
    /// Steps for each row before.
    pub(super) each: f64,
    /// The share of pairs that match.
    pub(super) share: f64,
}

/// A join order.
#[derive(Debug, Clone)]
pub(super) struct Order {
    order: Vec<usize>,
    rows: f64,
    pub(super) cost: f64,
}

/// The cheapest order found of a set of items, by its last one.
#[derive(Debug, Clone, Copy)]
struct Path {
    last: usize,
    rows: f64,
    cost: f64,
}

impl Path {
    fn start() -> Path {
        Path {
            last: 0,
            rows: 1.0,
            cost: 0.0,
        }
    }
}

/// The order in which the rows of a join are wanted, of which the first will do.
pub(super) struct WantedOrder {
    /// Slots, and whether they fall.
    pub columns: Vec<(SlotNumber, bool)>,
    /// How many rows are wanted.
    pub limit: f64,
}

/// A join, planned.
pub(super) struct Joined {
    pub node: Node,
    /// Steps of a run; where the rows come ordered, of as many as are wanted.
    pub cost: f64,
    /// The rows come in the order that was wanted.
    pub ordered: bool,
}

/// A join, with what planning it looks at.
pub(super) struct Join<'p, 'a> {
    pub(super) rows: &'p RowPlanner<'a>,
    pub(super) items: Vec<Item>,
    pub(super) conditions: Vec<Condition>,
    /// Which item writes a slot.
    owner: BTreeMap<SlotNumber, usize>,
    /// By the item, what of those before it matters, and whether there is any.
    pub(super) choices: BTreeMap<(usize, Items, bool), Choice>,
    /// By the item: those that conditions connect it to, and those that have to come before it.
    touching: Vec<Items>,
    wants: Vec<Items>,
    /// The item that has to come first, read in the order of these columns: joins keep the order of what comes before.
    first: Option<(usize, Vec<Wanted>, f64)>,
}

impl RowPlanner<'_> {
    /// Plans a join with its conditions.
    pub(super) fn join(&self, mut from: From, wanted: Option<&WantedOrder>) -> Bound<Joined> {
        self.drop_unread(&mut from);
        share_values(&mut from);
        if from.items.len() > ITEMS_MAX {
            return shape("a join of so many relations");
        }
        let mut owner = BTreeMap::new();
        for (at, item) in from.items.iter().enumerate() {
            owner.extend(item.slots.iter().map(|s| (s.slot, at)));
        }
        let mut join = Join {
            rows: self,
            items: from.items,
            conditions: Vec::new(),
            owner,
            choices: BTreeMap::new(),
            first: None,
            touching: Vec::new(),
            wants: Vec::new(),
        };
        for expr in from.conditions {
            let condition = join.condition(expr);
            join.conditions.push(condition);
        }
        let plain = join.order_of_semi_joins()?;
        let (order, share) = match wanted {
            Some(wanted) => join.first_rows(plain, wanted)?,
            None => (plain, 1.0),
        };
        let ordered = join.first.is_some();
        let (node, cost) = join.build(&order.order)?;
        Ok(Joined {
            node,
            cost: cost * share,
            ordered,
        })
    }

    /// Notes how a scan was estimated; its number.
    fn expect(&self, alias: &str, around: bool, rows: f64) -> usize {
        let mut scans = self.scans.borrow_mut();
        scans.push(Expected {
            alias: alias.to_string(),
            around,
            rows,
        });
        scans.len() - 1
    }

    /// Columns of the item that go to the tuple.
    fn fetch_of(&self, item: &Item) -> Vec<(usize, SlotNumber)> {
        let used = self.used.borrow();
        let wanted = item.slots.iter().filter(|s| used.contains(&s.slot));
        wanted.map(|s| (s.column, s.slot)).collect()
    }
}

/// The type by which values of this type are hashed: integers of all widths together.
pub(super) fn key_type(ty: ColumnType) -> ColumnType {
    if is_integer(ty) {
        ColumnType::Int8
    } else {
        base_type(ty)
    }
}

impl Join<'_, '_> {
    pub(super) fn condition(&self, expr: Expr) -> Condition {
        let mut slots = BTreeSet::new();
        slots_of(&expr, &mut slots);
        let mut uses = self.uses_of(&slots);
        let mut late = false;
        expr.walk(&mut |e| late |= matches!(e, Expr::Subquery(subquery) if !subquery.args.is_empty()));
        if expr.is_volatile() {
            // It is asked of each row of the join.
            (uses, late) = ((1 << self.items.len()) - 1, true);
        }
        Condition {
            expr,
            uses,
            late,
            done: false,
        }
    }

    /// Notes which items conditions connect.
    fn connect(&mut self) {
        let all = 0..self.items.len();
        let usable = |at: usize| self.usable(at, !0).iter().fold(0, |m, i| m | self.conditions[*i].uses);
        let touching = all.clone().map(usable).collect();
        let wants = all.map(|at| self.uses_of(&self.items[at].requires)).collect();
        (self.touching, self.wants) = (touching, wants);
    }

    pub(super) fn uses_of(&self, slots: &BTreeSet<SlotNumber>) -> Items {
        let owners = slots.iter().filter_map(|slot| self.owner.get(slot));
        owners.fold(0, |items, at| items | 1 << at)
    }

    /// The conditions by which an item may be read once `before` has been joined.
    pub(super) fn usable(&self, at: usize, before: Items) -> Vec<usize> {
        let here = 1 << at;
        let usable = |c: &Condition| !c.late && c.uses & here != 0 && c.uses & !(before | here) == 0;
        let all = self.conditions.iter().enumerate();
        all.filter(|(_, c)| usable(c)).map(|(i, _)| i).collect()
    }

    fn conditions_for(&self, at: usize, before: Items) -> Vec<Expr> {
        if let Some((_, on)) = &self.items[at].on {
            return on.clone();
        }
        let own = self.items[at].unique.iter().flat_map(|u| u.own.iter().cloned());
        let usable = self.usable(at, before).into_iter();
        own.chain(usable.map(|i| self.conditions[i].expr.clone())).collect()
    }

    fn kind(&self, at: usize) -> JoinKind {
        self.items[at].on.as_ref().map_or(JoinKind::Inner, |(kind, _)| *kind)
    }

    /// The order of the items, or one that gives the rows as they are wanted, where the first of them cost less by it;
    /// and the share of it that is run.
    fn first_rows(&mut self, plain: Order, wanted: &WantedOrder) -> Bound<(Order, f64)> {
        let sorted = plain.cost + self.rows.estimator.sort(plain.rows);
        for at in 0..self.items.len() {
            let Some(columns) = self.wanted_columns(at, wanted) else {
                continue;
            };
            self.put_first(Some((at, columns, wanted.limit)));
            if self.gives_order(at) {
                let ordered = self.order()?;
                let share = (wanted.limit / ordered.rows.max(1e-3)).min(1.0);
                if ordered.cost * share < sorted {
                    return Ok((ordered, share));
                }
            }
            self.put_first(None);
        }
        Ok((plain, 1.0))
    }

    fn put_first(&mut self, first: Option<(usize, Vec<Wanted>, f64)>) {
        self.choices.retain(|(_, _, is_first), _| !is_first);
        self.first = first;
    }

    /// The order as columns of this item; None where it is no table that can come first, or other items are named.
    fn wanted_columns(&self, at: usize, wanted: &WantedOrder) -> Option<Vec<Wanted>> {
        let item = &self.items[at];
        if item.on.is_some()
            || item.unique.is_some()
            || !item.requires.is_empty()
            || !matches!(item.source, Source::Table(_, false))
        {
            return None;
        }
        let column = |(slot, descending): &(SlotNumber, bool)| {
            let found = item.slots.iter().find(|s| s.slot == *slot)?;
            Some(Wanted {
                column: found.column,
                descending: *descending,
            })
        };
        wanted.columns.iter().map(column).collect()
    }

    /// Whether the item, read first, gives its rows in the order wanted.
    fn gives_order(&self, at: usize) -> bool {
        let Source::Table(table, _) = &self.items[at].source else {
            return false;
        };
        let (_, served) = self.access_and_order(at, table, &self.conditions_for(at, 0));
        self.first
            .as_ref()
            .is_some_and(|(_, columns, _)| served == columns.len())
    }

    /// The order of the items: the cheapest of all, of each set of items first.
    pub(super) fn order(&mut self) -> Bound<Order> {
        self.connect();
        let count = self.items.len();
        if count > EXHAUSTIVE {
            return self.greedy();
        }
        let all: Items = (1 << count) - 1;
        let mut best: Vec<Option<Path>> = vec![None; 1 << count];
        best[0] = Some(Path::start());
        for mask in 0..all {
            let Some(path) = best[mask as usize] else { continue };
            let strict = count > ANY_PAIR && self.has_connected(mask);
            for at in 0..count {
                let Some(next) = self.extended(&path, mask, at)? else {
                    continue;
                };
                if strict && next.rows > PAIR_ROWS && !self.is_connected(at, mask) {
                    continue;
                }
                let known = &mut best[(mask | 1 << at) as usize];
                if known.is_none_or(|known| next.cost < known.cost) {
                    *known = Some(next);
                }
            }
        }
        let mut order = Vec::with_capacity(count);
        let mut mask = all;
        while let (Some(path), true) = (best[mask as usize], mask != 0) {
            order.push(path.last);
            mask ^= 1 << path.last;
        }
        order.reverse();
        match best[all as usize] {
            Some(path) => Ok(Order {
                order,
                rows: path.rows,
                cost: path.cost,
            }),
            None => shape("a join in this order"),
        }
    }

    /// Whether a condition, or what it requires, connects the item to others of these.
    fn is_connected(&self, at: usize, mask: Items) -> bool {
        (self.touching[at] | self.wants[at]) & mask != 0
    }

    fn has_connected(&self, mask: Items) -> bool {
        (0..self.items.len()).any(|at| mask & 1 << at == 0 && self.is_connected(at, mask))
    }

    fn greedy(&mut self) -> Bound<Order> {
        let (mut mask, mut path) = (0, Path::start());
        let mut order = Vec::with_capacity(self.items.len());
        while order.len() < self.items.len() {
            let mut best: Option<Path> = None;
            for at in 0..self.items.len() {
                let Some(next) = self.extended(&path, mask, at)? else {
                    continue;
                };
                let weight = |p: &Path| p.cost + p.rows;
                if best.as_ref().is_none_or(|b| weight(&next) < weight(b)) {
                    best = Some(next);
                }
            }
            let Some(next) = best else {
                return shape("a join in this order");
            };
            order.push(next.last);
            (mask, path) = (mask | 1 << next.last, next);
        }
        Ok(Order {
            order,
            rows: path.rows,
            cost: path.cost,
        })
    }

    /// The path with this item behind it; None where it is in it, or wants others before.
    fn extended(&mut self, path: &Path, mask: Items, at: usize) -> Bound<Option<Path>> {
        let is_behind = mask == 0 && self.first.as_ref().is_some_and(|(first, ..)| *first != at);
        if mask & 1 << at != 0 || self.wants[at] & !mask != 0 || is_behind {
            return Ok(None);
        }
        let choice = self.choice(at, mask)?;
        let rows = self.kind(at).rows(path.rows, choice.matches);
        Ok(Some(Path {
            last: at,
            rows,
            cost: path.cost + choice.once + path.rows * choice.each + rows * 0.2,
        }))
    }

    /// The cheapest way to join an item to what came before.
    fn choice(&mut self, at: usize, before: Items) -> Bound<Choice> {
        let key = (at, before & self.touching[at], before == 0);
        if let Some(choice) = self.choices.get(&key) {
            return Ok(*choice);
        }
        if self.items[at].unique.is_some() {
            let choice = self.choice_of_unique(at, before);
            self.choices.insert(key, choice);
            return Ok(choice);
        }
        let conditions = self.conditions_for(at, before);
        let looked_up = self.read(at, &conditions);
        let own: Vec<Expr> = conditions.iter().filter(|c| self.is_own(at, c)).cloned().collect();
        let alone = self.read(at, &own);
        let (share, equal) = self.joining(at, &conditions);
        let mut choice = Choice {
            method: Method::Lookup,
            matches: looked_up.rows,
            once: 0.0,
            // A first match ends the search, but there may be none.
            each: looked_up.cost,
            share,
        };
        let correlated = self.uses_of(&self.items[at].lateral) != 0;
        if !correlated && before != 0 {
            let other = Choice {
                method: if equal { Method::Hash } else { Method::Kept },
                matches: alone.rows * share,
                once: alone.cost + alone.rows * HASH,
                each: if equal { HASH } else { alone.rows * KEPT_ROW },
                share,
            };
            // A scan is worth it where some tens of rows come before; what comes before is at least one.
            if other.once + 20.0 * other.each < 20.0 * choice.each {
                choice = Choice {
                    matches: choice.matches.min(other.matches.max(1e-3)),
                    ..other
                };
            }
        }
        self.choices.insert(key, choice);
        Ok(choice)
    }

    /// Whether the condition names no other item.
    pub(super) fn is_own(&self, at: usize, condition: &Expr) -> bool {
        let mut slots = BTreeSet::new();
        slots_of(condition, &mut slots);
        self.uses_of(&slots) & !(1 << at) == 0
    }

    /// The share of pairs that the conditions with other items leave, and whether one of them is an equality to hash
    /// by.
    pub(super) fn joining(&self, at: usize, conditions: &[Expr]) -> (f64, bool) {
        let between: Vec<&Expr> = conditions.iter().filter(|c| !self.is_own(at, c)).collect();
        let equal = between.iter().any(|c| self.hash_key(at, c).is_some());
        (between.iter().map(|c| self.share_of_pairs(at, c)).product(), equal)
    }

    /// The share of pairs for which a condition between items holds.
    fn share_of_pairs(&self, at: usize, condition: &Expr) -> f64 {
        let of_columns = self.hash_key(at, condition).and_then(|(outer, own, _)| {
            let (outer, own) = (self.known_column(&outer), self.known_column(&own));
            join_fraction(outer.as_ref().and_then(known_side), own.as_ref().and_then(known_side))
        });
        of_columns.unwrap_or_else(|| selectivity(condition))
    }

    /// The statistics of the table whose column a slot shows, the column, and the table's rows.
    fn known_column(&self, key: &Expr) -> Option<KnownColumn> {
        let Expr::Column(slot) = key else { return None };
        let mut found = self.items.iter().filter_map(|item| match &item.source {
            Source::Table(table, _) => Some((table, item.slots.iter().find(|s| s.slot == *slot)?.column)),
            _ => None,
        });
        let (table, column) = found.next()?;
        let rows = self.rows.estimator.table_rows(table);
        Some((self.rows.estimator.statistics(table)?, column, rows))
    }

    /// The two sides of an equality between other items and this one, and the type by which they are compared.
    pub(super) fn hash_key(&self, at: usize, condition: &Expr) -> Option<(Expr, Expr, ColumnType)> {
        let Expr::Compare {
            op: Comparison::Eq,
            trim: false,
            left,
            right,
        } = condition
        else {
            return None;
        };
        let side = |e: &Expr| {
            let mut slots = BTreeSet::new();
            slots_of(e, &mut slots);
            let uses = self.uses_of(&slots);
            (uses == 1 << at, uses & (1 << at) == 0)
        };
        match (side(left), side(right)) {
            ((_, true), (true, _)) => Some(((**left).clone(), (**right).clone(), self.type_of_key((right, left))?)),
            ((true, _), (_, true)) => Some(((**right).clone(), (**left).clone(), self.type_of_key((left, right))?)),
            _ => None,
        }
    }

    pub(super) fn read(&self, at: usize, conditions: &[Expr]) -> Estimate {
        match &self.items[at].source {
            Source::Table(table, _) => {
                let access = self.access(at, table, conditions);
                self.estimate(at, &access).0
            }
            Source::Block(node, cost) => Estimate {
                rows: node.rows * conditions.iter().map(selectivity).product::<f64>(),
                cost: *cost,
            },
            Source::Kept(_, rows) => Estimate {
                rows: rows * conditions.iter().map(selectivity).product::<f64>(),
                cost: *rows,
            },
            Source::Full(_) => {
                let whole = self.whole(&self.items[at]);
                Estimate {
                    rows: whole * conditions.iter().map(selectivity).product::<f64>(),
                    cost: whole * (1.0 + HASH),
                }
            }
            // Its own order is settled when it is built: by keys from outside, or whole.
            Source::Group(from) => {
                let by_key = conditions.iter().any(|c| !self.is_own(at, c));
                let whole: f64 = from.items.iter().map(|item| self.whole(item)).sum();
                Estimate {
                    rows: if by_key { 1.0 } else { whole },
                    cost: if by_key { 20.0 * from.items.len() as f64 } else { whole },
                }
            }
        }
    }

    /// What an access of the item gives, by what is known of its runs; and whether the rows around decide that.
    fn estimate(&self, at: usize, access: &Access) -> (Estimate, bool) {
        let mut around = false;
        if let Some(condition) = &access.condition {
            condition.walk(&mut |e| around |= matches!(e, Expr::Outer(_)));
        }
        let estimate = self.rows.estimator.estimate(access);
        let learned = self.rows.planner.known.learned(&self.items[at].alias, around);
        let estimate = match learned.filter(|rows| *rows > estimate.rows) {
            Some(rows) => Estimate {
                rows,
                cost: estimate.cost.max(rows),
            },
            None => estimate,
        };
        (estimate, around)
    }

    /// Steps of reading an item whole.
    fn whole(&self, item: &Item) -> f64 {
        match &item.source {
            Source::Table(table, _) => self.rows.estimator.table_rows(table),
            Source::Block(_, cost) | Source::Kept(_, cost) => *cost,
            Source::Group(from) => from.items.iter().map(|item| self.whole(item)).sum(),
            Source::Full(full) => {
                let items = full.left.items.iter().chain(&full.right.items);
                items.map(|item| self.whole(item)).sum()
            }
        }
    }

    /// The path for these conditions: slots of the item are columns of its rows, others lie around.
    fn access(&self, at: usize, table: &Arc<Table>, conditions: &[Expr]) -> Access {
        self.access_and_order(at, table, conditions).0
    }

    fn access_and_order(&self, at: usize, table: &Arc<Table>, conditions: &[Expr]) -> (Access, usize) {
        let columns: BTreeMap<SlotNumber, usize> = self.items[at].slots.iter().map(|s| (s.slot, s.column)).collect();
        let inside = conditions.iter().map(|c| {
            let mut c = c.clone();
            c.each_mut(&mut |e| {
                if let Expr::Column(slot) = e {
                    *e = match columns.get(slot) {
                        Some(column) => Expr::Column(*column as u16),
                        None => Expr::Outer(*slot),
                    };
                }
            });
            c
        });
        let order = self.first.as_ref().filter(|(first, ..)| *first == at);
        let order = order.map(|(_, columns, limit)| access::Order {
            columns,
            limit: Some(*limit),
        });
        let fetched = self.rows.fetch_of(&self.items[at]);
        let reads: Vec<usize> = fetched.iter().map(|(column, _)| *column).collect();
        access::choose(
            table,
            all_of(inside.collect()),
            order,
            Some(&reads),
            &self.rows.estimator,
        )
    }

    /// The nodes of the join in this order.
    fn build(mut self, order: &[usize]) -> Bound<(Node, f64)> {
        let mut cost = 0.0;
        let mut before: Items = 0;
        let mut node = Some(self.asked(None, 0, &mut cost)).filter(|n| !matches!(n.step, Step::Row));
        for at in order {
            let rows = node.as_ref().map_or(1.0, |n| n.rows);
            let choice = self.choice(*at, before)?;
            let conditions = self.conditions_for(*at, before);
            if self.items[*at].on.is_none() {
                self.usable(*at, before)
                    .into_iter()
                    .for_each(|i| self.conditions[i].done = true);
            }
            node = Some(self.attach(*at, node, &choice, conditions)?);
            before |= 1 << at;
            cost += choice.once + rows * choice.each;
            node = Some(self.asked(node, before, &mut cost));
        }
        Ok((node.unwrap_or_else(|| Node::new(Step::Row, 1.0)), cost))
    }

    /// Asks the conditions that have become possible, and were not part of reading an item; those with subqueries
    /// behind the others.
    fn asked(&mut self, node: Option<Node>, before: Items, cost: &mut f64) -> Node {
        let mut node = node.unwrap_or_else(|| Node::new(Step::Row, 1.0));
        let is_due = |c: &Condition| !c.done && c.uses & !before == 0;
        let all = std::mem::take(&mut self.conditions).into_iter();
        let (mut due, rest): (Vec<Condition>, Vec<Condition>) = all.partition(is_due);
        self.conditions = rest;
        let dearness = |c: &Condition| self.rows.subquery_cost([&c.expr]);
        due.sort_by(|a, b| dearness(a).total_cmp(&dearness(b)));
        for condition in due {
            *cost += node.rows * self.rows.subquery_cost([&condition.expr]);
            let rows = node.rows * selectivity(&condition.expr);
            let step = Step::Filter {
                input: Box::new(node),
                condition: condition.expr,
            };
            node = Node::new(step, rows);
        }
        node
    }

    /// Joins an item to what came before. The conditions by which it is read are not asked again.
    fn attach(&mut self, at: usize, outer: Option<Node>, choice: &Choice, conditions: Vec<Expr>) -> Bound<Node> {
        let kind = self.kind(at);
        let (own, between): (Vec<Expr>, Vec<Expr>) = conditions.into_iter().partition(|c| self.is_own(at, c));
        let nulls: Vec<SlotNumber> = self.items[at].slots.iter().map(|s| s.slot).collect();
        match (choice.method, outer) {
            (Method::Lookup, outer) => {
                let all: Vec<Expr> = own.into_iter().chain(between).collect();
                let (inner, on) = self.source(at, all)?;
                Ok(nested(kind, outer, inner, on, nulls))
            }
            (_, None) => shape("a join without a first relation"),
            (Method::Kept, Some(outer)) => {
                let (inner, mut on) = self.source(at, own)?;
                on.extend(between);
                let carried = nulls
                    .iter()
                    .copied()
                    .filter(|s| self.rows.used.borrow().contains(s))
                    .collect();
                let rows = inner.rows;
                let step = Step::Cache {
                    input: Box::new(inner),
                    carried,
                };
                Ok(nested(kind, Some(outer), Node::new(step, rows), on, nulls))
            }
            (Method::Hash, Some(outer)) => self.hashed(at, (kind, choice.share), outer, (own, between), nulls),
        }
    }

    fn hashed(
        &mut self,
        at: usize,
        (kind, share): (JoinKind, f64),
        outer: Node,
        (own, between): (Vec<Expr>, Vec<Expr>),
        nulls: Vec<SlotNumber>,
    ) -> Bound<Node> {
        let mut keys = Vec::new();
        let mut on = Vec::new();
        for condition in between {
            match self.hash_key(at, &condition) {
                Some(key) => keys.push(key),
                None => on.push(condition),
            }
        }
        assert!(!keys.is_empty(), "an item is hashed by an equality");
        let (build, rest) = self.source(at, own)?;
        on.extend(rest);
        let carried = nulls
            .iter()
            .copied()
            .filter(|s| self.rows.used.borrow().contains(s))
            .collect();
        let rows = kind.rows(outer.rows, build.rows * share);
        let step = Step::Hash {
            kind,
            outer: Box::new(outer),
            build: Box::new(build),
            keys,
            on: all_of(on),
            carried,
            nulls: Vec::new(),
        };
        Ok(Node::new(step, rows))
    }

    /// The type by which two sides are compared. Both are of one type, and one that is a column, or is converted, says it.
    fn type_of_key(&self, (own, outer): (&Expr, &Expr)) -> Option<ColumnType> {
        let type_of = |expr: &Expr| match expr {
            Expr::Column(slot) => {
                let item = &self.items[*self.owner.get(slot)?];
                item.slots.iter().find(|s| s.slot == *slot).map(|s| s.ty)
            }
            Expr::Cast { to, .. } => Some(*to),
            _ => None,
        };
        type_of(own).or_else(|| type_of(outer)).map(key_type)
    }

    /// The node of an item read by these conditions, and those that are still to be asked of a pair.
    fn source(&mut self, at: usize, conditions: Vec<Expr>) -> Bound<(Node, Vec<Expr>)> {
        let (mut node, rest) = self.rows_of_source(at, conditions)?;
        let Some(unique) = self.items[at].unique.take() else {
            return Ok((node, rest));
        };
        for condition in rest {
            let rows = node.rows * selectivity(&condition);
            let input = Box::new(node);
            node = Node::new(Step::Filter { input, condition }, rows);
        }
        let rows = node.rows;
        let step = Step::Distinct {
            input: Box::new(node),
            slots: unique.keys,
        };
        Ok((Node::new(step, rows), Vec::new()))
    }

    fn rows_of_source(&mut self, at: usize, conditions: Vec<Expr>) -> Bound<(Node, Vec<Expr>)> {
        let empty = Source::Group(From::default());
        let fetch = self.rows.fetch_of(&self.items[at]);
        match std::mem::replace(&mut self.items[at].source, empty) {
            Source::Table(table, is_target) => {
                let is_zoned = |column: usize| table.columns[column].ty == ColumnType::TimestampTz;
                if fetch.iter().any(|(column, _)| is_zoned(*column)) {
                    self.rows.reads_zoned.set(true);
                }
                // One that is read whole is hashed, or kept.
                let is_own = conditions.iter().all(|c| self.is_own(at, c));
                let access = self.access(at, &table, &conditions);
                let (estimate, around) = self.estimate(at, &access);
                let number = self.rows.expect(&self.items[at].alias, around, estimate.rows);
                let mut read: Vec<usize> = fetch.iter().map(|(column, _)| *column).collect();
                for condition in access.condition.iter().chain(&access.filter) {
                    condition.walk(&mut |e| {
                        if let Expr::Column(column) = e {
                            read.push(usize::from(*column));
                        }
                    });
                }
                read.sort_unstable();
                read.dedup();
                let scan = Scan {
                    access,
                    alias: self.items[at].alias.clone(),
                    fetch,
                    columns: Columns::Only(read.into()),
                    is_target,
                    cost: estimate.cost,
                    number,
                    few: self.first.as_ref().is_some_and(|(first, ..)| *first == at)
                        || self.kind(at).is_decided_by_one() && !is_own,
                };
                Ok((Node::new(Step::Scan(Box::new(scan)), estimate.rows), Vec::new()))
            }
            Source::Block(node, _) => Ok((node, conditions)),
            Source::Full(full) => Ok((self.rows.full_join(*full)?, conditions)),
            Source::Kept(at, rows) => Ok((Node::new(Step::Common { at, columns: fetch }, rows), conditions)),
            Source::Group(mut from) => {
                // What its ON asks may serve as keys inside; what names a nullable side there is asked behind its join.
                from.conditions.extend(conditions);
                let joined = self.rows.join(from, None)?;
                Ok((joined.node, Vec::new()))
            }
        }
    }
}

/// Statistics of a table, one of its columns, and its rows.
type KnownColumn = (Arc<Statistics>, usize, f64);

fn known_side((statistics, column, rows): &KnownColumn) -> Option<(&ColumnStatistics, f64)> {
    Some((statistics.column(*column)?, *rows))
}

fn nested(kind: JoinKind, outer: Option<Node>, inner: Node, on: Vec<Expr>, nulls: Vec<SlotNumber>) -> Node {
    let passing: f64 = on.iter().map(selectivity).product();
    let on = all_of(on);
    let outer = match (outer, kind) {
        (None, JoinKind::Inner) => {
            let rows = inner.rows * passing;
            return match on {
                None => inner,
                Some(condition) => Node::new(
                    Step::Filter {
                        input: Box::new(inner),
                        condition,
                    },
                    rows,
                ),
            };
        }
        (None, _) => Node::new(Step::Row, 1.0),
        (Some(outer), _) => outer,
    };
    let rows = kind.rows(outer.rows, inner.rows * passing);
    let step = Step::Nested {
        kind,
        outer: Box::new(outer),
        inner: Box::new(inner),
        on,
        nulls,
    };
    Node::new(step, rows)
}
