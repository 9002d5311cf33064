//! `EXISTS`, `NOT EXISTS` and `IN` of subqueries in WHERE as semi and anti joins.
//!
//! 1. A subquery that only joins and filters is taken apart: its FROM becomes an item of the join around it, its
//!    conditions that item's ON. So an index finds the first match of a row, or the item is read once into a table of
//!    hashes, whatever the conditions name.
//! 2. Another one, of IN, that reads nothing around it is an item that is read whole.
//! 3. All others are asked of each row ([`Expr::Subquery`]).
//!
//! A semi join by equalities of columns may go the other way round: each combination of values of its side is read once
//! and looks the rows up ([`Unique`]).

use super::block::{is_volatile, refuse_odd};
use super::estimate::HASH;
use super::from::{From, Item, ItemSlot, Source, Unique, dependent};
use super::join::{Choice, Items, Join, KEPT_ROW, Method, Order};
use super::scope::Scope;
use super::subquery::slots_of;
use super::{Answer, Block, JoinKind, Node, Output, RowPlanner, SlotNumber, Step};
use crate::expr::bind::{Binder, Bound, Typed, strip};
use crate::expr::{Comparison, Expr};
use crate::plan::access::conjuncts;
use crate::plan::select::{has_aggregate, integer_literal};
use cenote_engine::ColumnType;
use sqlparser::ast::{self, BinaryOperator, Distinct, GroupByExpr, LimitClause, Query, Select, SelectItem, SetExpr};
use sqlparser::ast::{UnaryOperator, Visit, Visitor};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Semi joins of one FROM that are looked at the other way round, at most: each takes another order of all items.
const TURNED_MAX: usize = 8;

/// The conditions that AND joins.
pub(super) fn ast_conjuncts(condition: &ast::Expr) -> Vec<&ast::Expr> {
    match strip(condition) {
        ast::Expr::BinaryOp {
            left,
            op: BinaryOperator::And,
            right,
        } => {
            let mut list = ast_conjuncts(left);
            list.extend(ast_conjuncts(right));
            list
        }
        other => vec![other],
    }
}

/// What has become of a subquery that was taken apart.
enum Taken {
    /// An item of the join around it.
    Joined(Box<Item>),
    /// A condition that is asked once.
    Asked(Expr),
}

/// A condition that asks whether a subquery has a row that matches.
struct Question<'q> {
    query: &'q Query,
    /// What IN compares with the row.
    operands: Option<&'q ast::Expr>,
    kind: JoinKind,
}

impl<'q> Question<'q> {
    fn of(condition: &'q ast::Expr) -> Option<Question<'q>> {
        match strip(condition) {
            ast::Expr::Exists { subquery, negated } => Some(Question {
                query: subquery,
                operands: None,
                kind: if *negated { JoinKind::Anti } else { JoinKind::Semi },
            }),
            ast::Expr::UnaryOp {
                op: UnaryOperator::Not,
                expr,
            } => {
                let inner = Question::of(expr).filter(|q| q.operands.is_none())?;
                let kind = match inner.kind {
                    JoinKind::Anti => JoinKind::Semi,
                    _ => JoinKind::Anti,
                };
                Some(Question { kind, ..inner })
            }
            // NOT IN is none: an item that is NULL leaves it open.
            ast::Expr::InSubquery {
                expr,
                subquery,
                negated: false,
            } => Some(Question {
                query: subquery,
                operands: Some(strip(expr)),
                kind: JoinKind::Semi,
            }),
            ast::Expr::AnyOp {
                left,
                compare_op: BinaryOperator::Eq,
                right,
                ..
            } => match strip(right) {
                ast::Expr::Subquery(query) => Some(Question {
                    query,
                    operands: Some(strip(left)),
                    kind: JoinKind::Semi,
                }),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether IN compares with columns, so that its comparison can be a condition of a join.
    fn is_of_columns(&self, select: &Select) -> bool {
        let is_column = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                matches!(strip(expr), ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_))
            }
            _ => true,
        };
        self.operands.is_none() || select.projection.iter().all(is_column)
    }

    fn operands(&self) -> Vec<&'q ast::Expr> {
        match self.operands {
            None => Vec::new(),
            Some(ast::Expr::Tuple(parts)) => parts.iter().collect(),
            Some(one) => vec![one],
        }
    }
}

impl RowPlanner<'_> {
    /// Adds the conditions of WHERE to the join.
    pub(super) fn where_conditions(
        &self,
        scope: &Scope<'_>,
        binder: &Binder<'_>,
        selection: Option<&ast::Expr>,
        from: &mut From,
    ) -> Bound<()> {
        for condition in selection.into_iter().flat_map(ast_conjuncts) {
            if !self.semi_join(scope, binder, condition, from)? {
                from.conditions
                    .extend(conjuncts(Some(binder.condition(condition, "WHERE")?)));
            }
        }
        Ok(())
    }

    /// Adds a condition to the join, as an item of its own where that can be; false where it cannot, and nothing was
    /// added.
    fn semi_join(&self, scope: &Scope<'_>, binder: &Binder<'_>, condition: &ast::Expr, from: &mut From) -> Bound<bool> {
        let Some(question) = Question::of(condition).filter(|_| !from.items.is_empty()) else {
            return Ok(false);
        };
        if let Some(select) = plain_select(&question).filter(|select| question.is_of_columns(select)) {
            let known = self.planner.params.known();
            match self.taken_apart(scope, (binder, from), &question, select)? {
                Some(Taken::Joined(item)) => from.items.push(*item),
                Some(Taken::Asked(condition)) => from.conditions.push(condition),
                // It is planned anew: a parameter is as open as it was.
                None => {
                    self.planner.params.restore(known);
                    return self.asked_or_read(scope, binder, &question, from);
                }
            }
            return Ok(true);
        }
        self.asked_or_read(scope, binder, &question, from)
    }

    /// Adds a condition with IN of a subquery that cannot be taken apart; false where it is another one.
    fn asked_or_read(
        &self,
        scope: &Scope<'_>,
        binder: &Binder<'_>,
        question: &Question<'_>,
        from: &mut From,
    ) -> Bound<bool> {
        let Some(operand) = question.operands else {
            return Ok(false);
        };
        let block = self.query(question.query, Some(binder), &scope.common)?;
        let operands = question.operands();
        let is_whole = block.outer.is_empty() && block.outputs.len() == operands.len();
        if !is_whole || block.outputs.iter().any(|o| o.open) {
            // It is asked of each row.
            let volatile = is_volatile(question.query);
            let found = scope.any_of_block(binder, operand, Comparison::Eq, (block, volatile))?;
            from.conditions.push(found);
            return Ok(true);
        }
        let item = self.read_whole(binder, &operands, block)?;
        from.items.push(item);
        Ok(true)
    }

    /// A subquery that only joins and filters; None where that is of no use: its rows do not depend on the items of FROM.
    fn taken_apart(
        &self,
        scope: &Scope<'_>,
        (binder, around): (&Binder<'_>, &From),
        question: &Question<'_>,
        select: &Select,
    ) -> Bound<Option<Taken>> {
        self.count_block()?;
        let sequence = |name: &str| self.planner.sequence(name);
        let inner = Scope::new(self, Some(binder), scope.common.clone());
        let mut from = inner.from(&select.from, &sequence)?;
        let within = inner.binder(&sequence);
        self.where_conditions(&inner, &within, select.selection.as_ref(), &mut from)?;
        let used = self.used.borrow().clone();
        let results = self.results(&inner, &within, select)?;
        match question.operands {
            // What EXISTS selects is checked, and not read.
            None => *self.used.borrow_mut() = used,
            Some(_) => {
                let Some(equal) = self.equalities(binder, &question.operands(), &results.outputs)? else {
                    return Ok(None);
                };
                from.conditions.extend(equal);
            }
        }
        let own = slots_of_items(&from.items);
        if !reads_one_of(&from, &slots_of_items(&around.items)) {
            return match question.operands {
                None => self.asked(scope, from, (&inner, question.kind)).map(Some),
                Some(_) => Ok(None),
            };
        }
        let is_single = matches!(from.items.as_slice(), [item] if item.on.is_none());
        let all = std::mem::take(&mut from.conditions).into_iter();
        let (inside, on): (Vec<Expr>, Vec<Expr>) = all.partition(|c| !is_single && names_only(c, &own));
        from.conditions = inside;
        let item = dependent(from, question.kind, on);
        Ok(Some(Taken::Joined(Box::new(item))))
    }

    /// EXISTS of rows that do not depend on those of the join around: the answer is the same for all of them.
    fn asked(&self, scope: &Scope<'_>, from: From, (inner, kind): (&Scope<'_>, JoinKind)) -> Bound<Taken> {
        let joined = self.join(from, None)?;
        let block = Block {
            node: joined.node,
            outputs: Vec::new(),
            outer: inner.outer.take(),
            cost: joined.cost,
        };
        let found = scope.subplan(block, Answer::Exists, false, Vec::new())?;
        Ok(Taken::Asked(match kind {
            JoinKind::Anti => Expr::Not(Box::new(found)),
            _ => found,
        }))
    }

    /// The operands of IN compared with the subquery's columns; None where these are no columns of its relations.
    fn equalities(&self, binder: &Binder<'_>, operands: &[&ast::Expr], outputs: &[Output]) -> Bound<Option<Vec<Expr>>> {
        let is_plain = |o: &Output| matches!(o.expr, Expr::Column(_)) && !o.open;
        if operands.len() != outputs.len() || !outputs.iter().all(is_plain) {
            return Ok(None);
        }
        let equal = |(operand, output): (&&ast::Expr, &Output)| {
            Ok(binder
                .compare(binder.bind(operand)?, Comparison::Eq, output.typed())?
                .expr)
        };
        operands
            .iter()
            .zip(outputs)
            .map(equal)
            .collect::<Bound<Vec<_>>>()
            .map(Some)
    }

    /// The item of a subquery of IN that reads nothing around it.
    fn read_whole(&self, binder: &Binder<'_>, operands: &[&ast::Expr], block: Block) -> Bound<Item> {
        let (mut values, mut slots, mut on) = (Vec::new(), Vec::new(), Vec::new());
        for (column, (operand, output)) in operands.iter().zip(block.outputs).enumerate() {
            let slot = self.slot()?;
            self.used.borrow_mut().insert(slot);
            let item = Typed::new(Expr::Column(slot), output.ty);
            on.push(binder.compare(binder.bind(operand)?, Comparison::Eq, item)?.expr);
            values.push((slot, output.expr));
            slots.push(ItemSlot {
                slot,
                column,
                ty: output.ty,
            });
        }
        let rows = block.node.rows;
        let input = Box::new(block.node);
        let node = Node::new(Step::Project { input, values }, rows);
        let from = From {
            items: vec![Item {
                source: Source::Block(node, block.cost + rows),
                alias: String::new(),
                slots,
                on: None,
                unique: None,
                requires: BTreeSet::new(),
                lateral: BTreeSet::new(),
            }],
            conditions: Vec::new(),
        };
        Ok(dependent(from, JoinKind::Semi, on))
    }
}

impl Join<'_, '_> {
    /// The order of the items, after each semi join was looked at the other way round.
    pub(super) fn order_of_semi_joins(&mut self) -> Bound<Order> {
        let mut best = self.order()?;
        let mut turned = 0;
        for at in 0..self.items.len() {
            let Some(keys) = self.unique_keys(at).filter(|_| turned < TURNED_MAX) else {
                continue;
            };
            turned += 1;
            let conditions = self.conditions.len();
            let requires = std::mem::take(&mut self.items[at].requires);
            let on = self.items[at].on.take();
            self.turn(at, keys, on.as_ref().map_or(&[], |(_, on)| on));
            match self.order() {
                Ok(order) if order.cost < best.cost => best = order,
                _ => {
                    self.choices.clear();
                    self.conditions.truncate(conditions);
                    let item = &mut self.items[at];
                    (item.on, item.unique, item.requires) = (on, None, requires);
                }
            }
        }
        Ok(best)
    }

    /// Makes the item one that gives each combination of the keys once.
    fn turn(&mut self, at: usize, keys: Vec<(SlotNumber, ColumnType)>, on: &[Expr]) {
        self.choices.clear();
        let (own, between): (Vec<Expr>, Vec<Expr>) = on.iter().cloned().partition(|c| self.is_own(at, c));
        self.items[at].unique = Some(Unique { keys, own });
        for condition in between {
            let condition = self.condition(condition);
            self.conditions.push(condition);
        }
    }

    /// The columns by which a semi join's side can be gone through first: all that other items are compared with.
    fn unique_keys(&self, at: usize) -> Option<Vec<(SlotNumber, ColumnType)>> {
        let item = &self.items[at];
        let Some((JoinKind::Semi, on)) = &item.on else {
            return None;
        };
        if self.uses_of(&item.lateral) != 0 {
            return None;
        }
        let mut keys: Vec<(SlotNumber, ColumnType)> = Vec::new();
        for condition in on.iter().filter(|c| !self.is_own(at, c)) {
            let (_, Expr::Column(slot), ty) = self.hash_key(at, condition)? else {
                return None;
            };
            if !keys.iter().any(|(known, _)| *known == slot) {
                keys.push((slot, ty));
            }
        }
        (!keys.is_empty()).then_some(keys)
    }

    /// How one of the different values is joined: first, or by hashes.
    pub(super) fn choice_of_unique(&self, at: usize, before: Items) -> Choice {
        let own = self.items[at].unique.as_ref().map_or(&[][..], |u| &u.own);
        let between: Vec<Expr> = self
            .usable(at, before)
            .into_iter()
            .map(|i| self.conditions[i].expr.clone())
            .collect();
        let alone = self.read(at, own);
        let (share, _) = self.joining(at, &between);
        let cost = alone.cost + alone.rows * HASH;
        let (method, once, each) = match (before, between.is_empty()) {
            (0, _) => (Method::Lookup, 0.0, cost),
            (_, true) => (Method::Kept, cost, alone.rows * KEPT_ROW),
            (_, false) => (Method::Hash, cost + alone.rows * HASH, HASH),
        };
        Choice {
            method,
            matches: (alone.rows * share).max(1e-3),
            once,
            each,
            share,
        }
    }
}

fn slots_of_items(items: &[Item]) -> BTreeSet<SlotNumber> {
    items.iter().flat_map(|i| i.slots.iter().map(|s| s.slot)).collect()
}

/// Whether a condition or an item of FROM reads one of these slots.
fn reads_one_of(from: &From, known: &BTreeSet<SlotNumber>) -> bool {
    let mut read: BTreeSet<SlotNumber> = from.items.iter().flat_map(|i| i.requires.iter().copied()).collect();
    from.conditions.iter().for_each(|c| slots_of(c, &mut read));
    !read.is_disjoint(known)
}

/// Whether the expression names these slots alone.
fn names_only(expr: &Expr, own: &BTreeSet<SlotNumber>) -> bool {
    let mut slots = BTreeSet::new();
    slots_of(expr, &mut slots);
    slots.is_subset(own)
}

/// The SELECT of a subquery that only joins and filters: what else it says does not change whether it has a row.
fn plain_select<'q>(question: &Question<'q>) -> Option<&'q Select> {
    let query = question.query;
    let SetExpr::Select(select) = &*query.body else {
        return None;
    };
    let is_grouped =
        !matches!(&select.group_by, GroupByExpr::Expressions(keys, more) if keys.is_empty() && more.is_empty());
    let odd = query.with.is_some()
        || query.order_by.is_some()
        || !takes_a_row(question)
        || query.fetch.is_some()
        || !query.locks.is_empty()
        || query.for_clause.is_some()
        || query.settings.is_some()
        || !query.pipe_operators.is_empty()
        || is_grouped
        || select.having.is_some()
        || matches!(select.distinct, Some(Distinct::On(_)))
        || select.from.is_empty()
        || refuse_odd(select).is_err()
        || !select.named_window.is_empty()
        || has_aggregate(select, query)
        || has_window(&select.projection)
        || is_volatile(query);
    (!odd).then_some(select)
}

/// Whether LIMIT leaves a row where there is one: EXISTS is often written with LIMIT 1.
fn takes_a_row(question: &Question<'_>) -> bool {
    match &question.query.limit_clause {
        None => true,
        Some(LimitClause::LimitOffset {
            limit,
            offset: None,
            limit_by,
        }) if limit_by.is_empty() && question.operands.is_none() => limit
            .as_ref()
            .is_none_or(|limit| integer_literal(limit).is_some_and(|n| n > 0)),
        Some(_) => false,
    }
}

fn has_window(projection: &[SelectItem]) -> bool {
    struct Look;
    impl Visitor for Look {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            match expr {
                ast::Expr::Function(function) if function.over.is_some() => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    projection.iter().any(|item| item.visit(&mut Look).is_break())
}
