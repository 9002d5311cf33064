//! One SELECT, VALUES, or set operation, with WITH, ORDER BY and LIMIT around it.

use super::common::Named;
use super::from::From;
use super::join::{Joined, WantedOrder};
use super::scope::Scope;
use super::sets::sets_of;
use super::subquery::slots_of;
use super::{BLOCKS_MAX, Block, Key, Node, Output, RowPlanner, SetKind, SlotNumber, Step};
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Binder, Bound, Grouping, Typed, common_type, shape, strip};
use crate::expr::labels::column_label;
use crate::expr::windows::NamedWindows;
use crate::names::{fold, qualified};
use crate::plan::select::{has_aggregate, integer_literal, plain_select_of, plain_wildcard};
use crate::types::cast::Context;
use crate::types::{base_type, is_string};
use cenote_engine::ColumnType;
use sqlparser::ast::{
    self, Distinct, GroupByExpr, OrderByKind, Query, Select, SelectItem, SetExpr, SetOperator, SetQuantifier, Spanned,
    Visit, Visitor,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Rows that a group or a set of distinct rows is of, where nothing is known.
const GROUP_ROWS: f64 = 4.0;

/// Rows that a LIMIT asks for which only a run gives.
const LIMIT_ROWS: f64 = 100.0;

/// Set operations that follow one another, at most: planning goes down them.
const CHAIN_MAX: usize = 100;

/// The results of a SELECT before they have slots of their own.
pub(super) struct Results<'q> {
    pub outputs: Vec<Output>,
    /// What each was in the text.
    sources: Vec<Option<&'q ast::Expr>>,
}

impl RowPlanner<'_> {
    /// Plans a query. `around`: the clause in which it stands as a subquery.
    pub(super) fn query(&self, query: &Query, around: Option<&Binder<'_>>, common: &[Named<'_>]) -> Bound<Block> {
        if !query.locks.is_empty() {
            return shape("FOR UPDATE in a subquery");
        }
        if query.for_clause.is_some() || query.settings.is_some() || !query.pipe_operators.is_empty() {
            return shape("this query");
        }
        if chain_of(&query.body) > CHAIN_MAX || query.order_by.is_some() && matches!(*query.body, SetExpr::Query(_)) {
            return shape("this query");
        }
        let all = self.named(query, around, common)?;
        match &*query.body {
            SetExpr::Select(_) => self.select(query, around, all),
            SetExpr::SetOperation { .. } | SetExpr::Values(_) | SetExpr::Query(_) => {
                let block = self.body(&query.body, around, &all)?;
                self.ordered_by_outputs(block, query)
            }
            _ => shape("this query"),
        }
    }

    fn body(&self, body: &SetExpr, around: Option<&Binder<'_>>, common: &[Named<'_>]) -> Bound<Block> {
        match body {
            SetExpr::Query(query) => self.query(query, around, common),
            SetExpr::Select(select) => {
                let query = plain_select_of(select);
                self.select(&query, around, common.to_vec())
            }
            SetExpr::SetOperation {
                left,
                op,
                right,
                set_quantifier,
            } => {
                let all = match set_quantifier {
                    SetQuantifier::All => true,
                    SetQuantifier::None | SetQuantifier::Distinct => false,
                    _ => return shape("this set operation"),
                };
                let kind = match op {
                    SetOperator::Union => SetKind::Union,
                    SetOperator::Intersect => SetKind::Intersect,
                    SetOperator::Except | SetOperator::Minus => SetKind::Except,
                };
                let (left, right) = (self.body(left, around, common)?, self.body(right, around, common)?);
                self.set(kind, all, left, right)
            }
            SetExpr::Values(values) => self.values(values, around, common),
            _ => shape("this query"),
        }
    }

    /// UNION and its like: both sides write the same slots, in types that both convert to.
    fn set(&self, kind: SetKind, all: bool, left: Block, right: Block) -> Bound<Block> {
        if left.outputs.len() != right.outputs.len() {
            let word = match kind {
                SetKind::Union => "UNION",
                SetKind::Intersect => "INTERSECT",
                SetKind::Except => "EXCEPT",
            };
            let text = format!("each {word} query must have the same number of columns");
            return Err(SqlError::new(code::SYNTAX_ERROR, text).into());
        }
        let slots = self.slots(left.outputs.len())?;
        let binder = self
            .planner
            .binder(None, &|_| Err(SqlError::internal("a sequence in a set operation")));
        let (mut outputs, mut typed) = (Vec::new(), Vec::new());
        let (mut from_left, mut from_right) = (Vec::new(), Vec::new());
        for ((a, b), slot) in left.outputs.into_iter().zip(right.outputs).zip(&slots) {
            let ty = self.set_type(&a, &b)?;
            self.used.borrow_mut().insert(*slot);
            typed.push((*slot, ty));
            outputs.push(Output {
                name: a.name.clone(),
                expr: Expr::Column(*slot),
                ty,
                source: None,
                open: false,
            });
            from_left.push((*slot, binder.coerce(a.typed(), ty, Context::Implicit)?));
            from_right.push((*slot, binder.coerce(b.typed(), ty, Context::Implicit)?));
        }
        let project = |node: Node, values| {
            let rows = node.rows;
            let input = Box::new(node);
            Box::new(Node::new(Step::Project { input, values }, rows))
        };
        let rows = left.node.rows + right.node.rows;
        let cost = left.cost + right.cost + rows;
        let step = Step::Set {
            kind,
            all,
            left: project(left.node, from_left),
            right: project(right.node, from_right),
            slots: typed,
        };
        let mut outer = left.outer;
        outer.extend(right.outer);
        Ok(Block {
            node: Node::new(step, rows),
            outputs,
            outer,
            cost,
        })
    }

    /// The type of a column of a set operation, as PostgreSQL settles it: an open literal takes the other's.
    fn set_type(&self, a: &Output, b: &Output) -> Bound<ColumnType> {
        let ty = match (a.open, b.open) {
            (true, true) => Some(ColumnType::Text),
            (true, false) => Some(b.ty),
            (false, true) => Some(a.ty),
            (false, false) if a.ty == b.ty => Some(a.ty),
            // Strings convert to each other: the first one's type stays. char(n) with others becomes text.
            (false, false) if matches!(a.ty, ColumnType::Varchar(_)) && is_string(b.ty) => {
                Some(ColumnType::Varchar(None))
            }
            (false, false) => common_type(a.ty, b.ty).map(base_type),
        };
        ty.ok_or_else(|| {
            let text = format!("UNION types {} and {} cannot be matched", a.ty.name(), b.ty.name());
            SqlError::new(code::DATATYPE_MISMATCH, text).into()
        })
    }

    fn values(&self, values: &ast::Values, around: Option<&Binder<'_>>, common: &[Named<'_>]) -> Bound<Block> {
        let scope = Scope::new(self, around, common.to_vec());
        let sequence = |name: &str| self.planner.sequence(name);
        let binder = scope.binder(&sequence);
        let width = values.rows.first().map_or(0, |r| r.content.len());
        let mut columns: Vec<Vec<Typed>> = vec![Vec::new(); width];
        for row in &values.rows {
            if row.content.len() != width {
                return Err(SqlError::new(code::SYNTAX_ERROR, "VALUES lists must all be the same length").into());
            }
            for (column, value) in columns.iter_mut().zip(&row.content) {
                column.push(binder.bind(value)?);
            }
        }
        let slots = self.slots(width)?;
        let mut rows: Vec<Vec<Expr>> = vec![Vec::new(); values.rows.len()];
        let mut outputs = Vec::new();
        for (at, (column, slot)) in columns.into_iter().zip(&slots).enumerate() {
            let (column, ty) = binder.unify(column, "VALUES")?;
            rows.iter_mut().zip(column).for_each(|(row, value)| row.push(value));
            outputs.push(Output {
                name: format!("column{}", at + 1),
                expr: Expr::Column(*slot),
                ty,
                source: None,
                open: false,
            });
        }
        let count = rows.len() as f64;
        Ok(Block {
            node: Node::new(Step::Values { rows, slots }, count),
            outputs,
            outer: scope.outer.into_inner(),
            cost: count,
        })
    }

    /// ORDER BY and LIMIT of a set operation: only its results can be named.
    fn ordered_by_outputs(&self, mut block: Block, query: &Query) -> Bound<Block> {
        let mut keys = Vec::new();
        for item in order_items(query)? {
            let at = match (integer_literal(&item.expr), &item.expr) {
                (Some(position), _) => self.position(position, block.outputs.len(), &item.expr)?,
                (None, ast::Expr::Identifier(ident)) => {
                    let name = fold(ident);
                    let found = block.outputs.iter().position(|o| o.name == name);
                    found.ok_or_else(|| {
                        let text = format!("column \"{name}\" does not exist");
                        SqlError::new(code::UNDEFINED_COLUMN, text).at(self.planner.places().of(item.expr.span()))
                    })?
                }
                _ => {
                    let text = "invalid UNION/INTERSECT/EXCEPT ORDER BY clause";
                    return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, text).into());
                }
            };
            keys.push((at, item.options));
        }
        let slots = self.project(&mut block, Vec::new())?;
        let keys = keys
            .into_iter()
            .map(|(at, options)| Key::of(slots[at], block.outputs[at].ty, options));
        let keys: Vec<Key> = keys.collect();
        self.sorted_and_limited(block, keys, slots, query)
    }

    fn position(&self, position: i64, count: usize, expr: &ast::Expr) -> Bound<usize> {
        let at = usize::try_from(position).ok().filter(|p| (1..=count).contains(p));
        at.map(|p| p - 1).ok_or_else(|| {
            let text = format!("ORDER BY position {position} is not in select list");
            let place = self.planner.places().of(expr.span());
            SqlError::new(code::INVALID_COLUMN_REFERENCE, text).at(place).into()
        })
    }

    /// Gives the results, and `more`, slots of their own.
    fn project(&self, block: &mut Block, more: Vec<Expr>) -> Bound<Vec<SlotNumber>> {
        self.project_but(block, more, &|_, _| false)
    }

    /// Gives the results, and `more`, slots of their own; those that are computed later keep theirs empty.
    fn project_but(
        &self,
        block: &mut Block,
        more: Vec<Expr>,
        later: &dyn Fn(usize, &Expr) -> bool,
    ) -> Bound<Vec<SlotNumber>> {
        let (mut slots, mut values) = (Vec::new(), Vec::new());
        for (at, output) in block.outputs.iter_mut().enumerate() {
            let slot = self.slot()?;
            slots.push(slot);
            if !later(at, &output.expr) {
                let expr = std::mem::replace(&mut output.expr, Expr::Column(slot));
                values.push((slot, expr));
            }
        }
        for expr in more {
            let slot = self.slot()?;
            values.push((slot, expr));
            slots.push(slot);
        }
        let rows = block.node.rows;
        let input = std::mem::replace(&mut block.node, Node::new(Step::Row, 1.0));
        let step = Step::Project {
            input: Box::new(input),
            values,
        };
        block.node = Node::new(step, rows);
        Ok(slots)
    }

    fn sorted_and_limited(
        &self,
        mut block: Block,
        keys: Vec<Key>,
        carried: Vec<SlotNumber>,
        query: &Query,
    ) -> Bound<Block> {
        let sequence = |name: &str| self.planner.sequence(name);
        let (limit, offset) = self.planner.limits(&self.planner.binder(None, &sequence), query)?;
        let first = limit.clone().map(|limit| (limit, offset.clone()));
        block = sorted(block, keys, &carried, first);
        let rows = block.node.rows;
        if limit.is_some() || offset.is_some() {
            let wanted = self.planner.known.rows_wanted(limit.as_ref(), None, LIMIT_ROWS);
            let rows = wanted.map_or(rows, |wanted| rows.min(wanted));
            let step = Step::Limit {
                input: Box::new(block.node),
                limit,
                offset,
            };
            block.node = Node::new(step, rows);
        }
        Ok(block)
    }

    /// Counts a SELECT that is planned.
    pub(super) fn count_block(&self) -> Bound<()> {
        self.planner.session.check_cancel()?;
        self.blocks.set(self.blocks.get() + 1);
        match self.blocks.get() > BLOCKS_MAX {
            true => shape("a query of so many SELECTs"),
            false => Ok(()),
        }
    }

    fn select(&self, query: &Query, around: Option<&Binder<'_>>, common: Vec<Named<'_>>) -> Bound<Block> {
        let SetExpr::Select(select) = &*query.body else {
            return shape("this query");
        };
        refuse_odd(select)?;
        self.count_block()?;
        let sequence = |name: &str| self.planner.sequence(name);
        let mut scope = Scope::new(self, around, common);
        let places = self.planner.places();
        scope.window_names = NamedWindows::of(&select.named_window, &|name| places.of(name.span))?;
        let mut from = scope.from(&select.from, &sequence)?;
        let mut binder = scope.binder(&sequence);
        self.where_conditions(&scope, &binder, select.selection.as_ref(), &mut from)?;
        let grouped = self.start_grouping(&scope, &mut binder, select, query)?;
        scope.takes_windows.set(true);
        let results = self.results(&scope, &binder, select)?;
        scope.takes_windows.set(false);
        let having = select
            .having
            .as_ref()
            .map(|e| binder.condition(e, "HAVING"))
            .transpose()?;
        let distinct = match &select.distinct {
            None | Some(Distinct::All) => false,
            Some(Distinct::Distinct) => true,
            Some(Distinct::On(_)) => false,
        };
        let mut more = Vec::new();
        scope.takes_windows.set(true);
        let keys = self.order(&binder, query, &results, distinct, &mut more)?;
        scope.takes_windows.set(false);
        let first_of = match &select.distinct {
            Some(Distinct::On(list)) => Some(self.distinct_on(&binder, list, &results, &keys, &mut more)?),
            _ => None,
        };
        let grouping = binder.grouping.take().map(RefCell::into_inner);
        drop(binder);
        let grouping = grouping.filter(|_| grouped);
        let windows = scope.windows.take();
        let plain = grouping.is_none() && !distinct && first_of.is_none() && windows.is_empty();
        let wanted = match plain {
            true => self.wanted_order(&keys, &results.outputs, &more, query)?,
            false => None,
        };
        let (mut block, ordered) = self.rows_of_select(&scope, (from, wanted), grouping, having, results.outputs)?;
        if !windows.is_empty() {
            block = self.windowed(block, windows, &more)?;
        }
        if ordered {
            return self.sorted_and_limited(block, Vec::new(), Vec::new(), query);
        }
        if let Some(columns) = first_of {
            return self.first_of_each(block, columns, keys, more, query);
        }
        self.finish(block, distinct, keys, more, query)
    }

    /// What DISTINCT ON names: positions among the results and `more`. ORDER BY has to begin with them.
    fn distinct_on(
        &self,
        binder: &Binder<'_>,
        list: &[ast::Expr],
        results: &Results<'_>,
        keys: &[(usize, ColumnType, ast::OrderByOptions)],
        more: &mut Vec<Expr>,
    ) -> Bound<Vec<(usize, ColumnType)>> {
        let mut columns: Vec<(usize, ColumnType)> = Vec::new();
        for expr in list {
            let column = self.sort_target(binder, expr, results, false, more)?;
            if !columns.iter().any(|(at, _)| *at == column.0) {
                columns.push(column);
            }
        }
        let mut open: Vec<usize> = columns.iter().map(|(at, _)| *at).collect();
        for (key, ..) in keys {
            if open.is_empty() {
                break;
            }
            if !columns.iter().any(|(at, _)| at == key) {
                let text = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions";
                return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text).into());
            }
            open.retain(|at| at != key);
        }
        Ok(columns)
    }

    /// The first row, in the order, of each combination of the columns.
    fn first_of_each(
        &self,
        mut block: Block,
        columns: Vec<(usize, ColumnType)>,
        keys: Vec<(usize, ColumnType, ast::OrderByOptions)>,
        more: Vec<Expr>,
        query: &Query,
    ) -> Bound<Block> {
        let slots = self.project(&mut block, more)?;
        let keys = keys
            .into_iter()
            .map(|(at, ty, options)| Key::of(slots[at], ty, options));
        let mut block = sorted(block, keys.collect(), &slots, None);
        let rows = block.node.rows;
        block.cost += rows;
        let step = Step::Distinct {
            input: Box::new(block.node),
            slots: columns.into_iter().map(|(at, ty)| (slots[at], ty)).collect(),
        };
        block.node = Node::new(step, (rows / GROUP_ROWS).max(1.0));
        self.sorted_and_limited(block, Vec::new(), Vec::new(), query)
    }

    /// The order of the rows, where only the first are wanted and it is one of columns.
    fn wanted_order(
        &self,
        keys: &[(usize, ColumnType, ast::OrderByOptions)],
        outputs: &[Output],
        more: &[Expr],
        query: &Query,
    ) -> Bound<Option<WantedOrder>> {
        let sequence = |name: &str| self.planner.sequence(name);
        let (limit, offset) = self.planner.limits(&self.planner.binder(None, &sequence), query)?;
        let wanted = self.planner.rows_wanted(limit.as_ref(), offset.as_ref());
        let Some(limit) = wanted.filter(|_| !keys.is_empty()) else {
            return Ok(None);
        };
        let column = |(at, _, options): &(usize, ColumnType, ast::OrderByOptions)| {
            let expr = outputs.get(*at).map_or_else(|| &more[*at - outputs.len()], |o| &o.expr);
            let descending = options.asc == Some(false);
            match expr {
                Expr::Column(slot) if options.nulls_first.is_none_or(|first| first == descending) => {
                    Some((*slot, descending))
                }
                _ => None,
            }
        };
        let columns = keys.iter().map(column).collect::<Option<Vec<_>>>();
        Ok(columns.map(|columns| WantedOrder { columns, limit }))
    }

    /// DISTINCT, ORDER BY and LIMIT over the results.
    fn finish(
        &self,
        mut block: Block,
        distinct: bool,
        keys: Vec<(usize, ColumnType, ast::OrderByOptions)>,
        more: Vec<Expr>,
        query: &Query,
    ) -> Bound<Block> {
        if !distinct && keys.is_empty() {
            return self.sorted_and_limited(block, Vec::new(), Vec::new(), query);
        }
        let visible = block.outputs.len();
        let is_key = |at: usize| keys.iter().any(|(key, ..)| *key == at);
        let is_limited = query.limit_clause.is_some() || query.fetch.is_some();
        // A literal stays one, so that its place can say its type. Subqueries of rows that LIMIT drops are not run.
        let is_later = |expr: &Expr| match expr {
            Expr::Const(_) | Expr::Param(_) => true,
            expr => is_limited && asks_subquery(expr),
        };
        let later = |at: usize, expr: &Expr| !distinct && !is_key(at) && is_later(expr);
        let mut slots = self.project_but(&mut block, more, &later)?;
        if distinct {
            let typed = slots[..visible]
                .iter()
                .zip(&block.outputs)
                .map(|(slot, o)| (*slot, o.ty));
            let (typed, rows) = (typed.collect(), block.node.rows);
            block.cost += rows;
            let step = Step::Distinct {
                input: Box::new(block.node),
                slots: typed,
            };
            block.node = Node::new(step, (rows / GROUP_ROWS).max(1.0));
        }
        let keys = keys
            .into_iter()
            .map(|(at, ty, options)| Key::of(slots[at], ty, options))
            .collect();
        let mut read = BTreeSet::new();
        block.outputs.iter().for_each(|o| slots_of(&o.expr, &mut read));
        read.retain(|slot| !slots.contains(slot) && !block.outer.contains(slot));
        slots.extend(read);
        self.sorted_and_limited(block, keys, slots, query)
    }

    /// FROM, WHERE, GROUP BY and HAVING; whether the rows come in the order wanted.
    fn rows_of_select(
        &self,
        scope: &Scope<'_>,
        (from, wanted): (From, Option<WantedOrder>),
        grouping: Option<Grouping>,
        having: Option<Expr>,
        outputs: Vec<Output>,
    ) -> Bound<(Block, bool)> {
        let Joined {
            mut node,
            mut cost,
            ordered,
        } = self.join(from, wanted.as_ref())?;
        if let Some(grouping) = grouping {
            let arguments = grouping
                .aggregates
                .iter()
                .flat_map(|a| a.argument.iter().chain(&a.filter));
            cost += node.rows * (1.0 + self.subquery_cost(arguments.chain(&grouping.bound_keys)));
            let rows = match grouping.keys.is_empty() {
                true => 1.0,
                false => (node.rows / GROUP_ROWS).max(1.0) * grouping.sets.len().max(1) as f64,
            };
            let step = aggregated(node, grouping);
            node = Node::new(step, rows);
        }
        cost += node.rows * self.subquery_cost(outputs.iter().map(|o| &o.expr).chain(&having));
        if let Some(condition) = having {
            let rows = (node.rows / 2.0).max(1.0);
            let input = Box::new(node);
            node = Node::new(Step::Filter { input, condition }, rows);
        }
        let block = Block {
            node,
            outputs,
            outer: scope.outer.take(),
            cost,
        };
        Ok((block, ordered))
    }

    fn start_grouping(
        &self,
        scope: &Scope<'_>,
        binder: &mut Binder<'_>,
        select: &Select,
        query: &Query,
    ) -> Bound<bool> {
        let GroupByExpr::Expressions(keys, modifiers) = &select.group_by else {
            return shape("GROUP BY ALL");
        };
        if !modifiers.is_empty() {
            return shape("GROUP BY modifiers");
        }
        if keys.is_empty() && select.having.is_none() && !has_aggregate(select, query) {
            return Ok(false);
        }
        let found = sets_of(keys, &|key| self.group_target(scope, select, key))?;
        let mut grouping = Grouping::default();
        for key in found.keys {
            let (expr, ty) = binder.settled(binder.bind(key)?)?;
            grouping.key_slots.push(self.slot()?);
            grouping.bound_keys.push(expr);
            grouping.keys.push((key.clone(), ty));
        }
        // One column may be named in two ways: a set that has one of them has the other.
        let bound = &grouping.bound_keys;
        let with_equals = |set: Vec<usize>| {
            let is_in = |at: &usize| set.iter().any(|member| bound[*member] == bound[*at]);
            (0..bound.len()).filter(is_in).collect()
        };
        grouping.sets = found.sets.into_iter().map(with_equals).collect();
        binder.grouping = Some(RefCell::new(grouping));
        Ok(true)
    }

    /// A GROUP BY item may be a position or the name of a result (a column of FROM goes first).
    fn group_target<'e>(&self, scope: &Scope<'_>, select: &'e Select, key: &'e ast::Expr) -> Bound<&'e ast::Expr> {
        if let Some(position) = integer_literal(key) {
            let is_plain = |i: &SelectItem| matches!(i, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
            if !select.projection.iter().all(is_plain) {
                return shape("a position in GROUP BY beside *");
            }
            let at = usize::try_from(position).ok().filter(|p| *p > 0);
            return match at.and_then(|p| select.projection.get(p - 1)) {
                Some(SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. }) => Ok(e),
                _ => {
                    let text = format!("GROUP BY position {position} is not in select list");
                    Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text).into())
                }
            };
        }
        if let ast::Expr::Identifier(ident) = key {
            let name = fold(ident);
            if scope.find(None, &name, 0)?.is_none() {
                for item in &select.projection {
                    if let SelectItem::ExprWithAlias { expr, alias } = item
                        && fold(alias) == name
                    {
                        return Ok(expr);
                    }
                }
            }
        }
        Ok(key)
    }

    pub(super) fn results<'q>(&self, scope: &Scope<'_>, binder: &Binder<'_>, select: &'q Select) -> Bound<Results<'q>> {
        let mut results = Results {
            outputs: Vec::new(),
            sources: Vec::new(),
        };
        for item in &select.projection {
            let (expr, alias) = match item {
                SelectItem::UnnamedExpr(expr) => (expr, None),
                SelectItem::ExprWithAlias { expr, alias } => (expr, Some(fold(alias))),
                SelectItem::Wildcard(options) if plain_wildcard(options) => {
                    self.all_columns(scope, binder, None, &mut results)?;
                    continue;
                }
                SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), options)
                    if plain_wildcard(options) =>
                {
                    let relation = qualified(name)?.1;
                    self.all_columns(scope, binder, Some(&relation), &mut results)?;
                    continue;
                }
                other => return shape(format_args!("the output column {other}")),
            };
            let typed = binder.bind(expr)?;
            let open = typed.ty.is_none();
            let (bound, ty) = binder.settled(typed)?;
            let source = scope.source_of(&bound);
            results.outputs.push(Output {
                name: alias.unwrap_or_else(|| column_label(expr)),
                expr: bound,
                ty,
                source,
                open,
            });
            results.sources.push(Some(strip(expr)));
        }
        Ok(results)
    }

    /// `*`, or `relation.*`.
    fn all_columns(
        &self,
        scope: &Scope<'_>,
        binder: &Binder<'_>,
        relation: Option<&str>,
        results: &mut Results<'_>,
    ) -> Bound<()> {
        let places = scope.columns_of(relation)?;
        for at in places {
            let (name, typed) = scope.column_at(binder, at)?;
            let (expr, ty) = binder.settled(typed)?;
            let source = scope.source_of(&expr);
            results.outputs.push(Output {
                name,
                expr,
                ty,
                source,
                open: false,
            });
            results.sources.push(None);
        }
        Ok(())
    }

    /// Sort keys: positions among the results and `more`.
    fn order(
        &self,
        binder: &Binder<'_>,
        query: &Query,
        results: &Results<'_>,
        distinct: bool,
        more: &mut Vec<Expr>,
    ) -> Bound<Vec<(usize, ColumnType, ast::OrderByOptions)>> {
        let mut keys = Vec::new();
        for item in order_items(query)? {
            let (at, ty) = self.sort_target(binder, &item.expr, results, distinct, more)?;
            keys.push((at, ty, item.options));
        }
        Ok(keys)
    }

    fn sort_target(
        &self,
        binder: &Binder<'_>,
        expr: &ast::Expr,
        results: &Results<'_>,
        distinct: bool,
        more: &mut Vec<Expr>,
    ) -> Bound<(usize, ColumnType)> {
        let outputs = &results.outputs;
        if let Some(position) = integer_literal(expr) {
            let at = self.position(position, outputs.len(), expr)?;
            return Ok((at, outputs[at].ty));
        }
        if let ast::Expr::Identifier(ident) = expr {
            let name = fold(ident);
            let mut named = outputs.iter().enumerate().filter(|(_, o)| o.name == name);
            if let Some((at, output)) = named.next() {
                if named.any(|(_, other)| other.expr != output.expr) {
                    let text = format!("ORDER BY \"{name}\" is ambiguous");
                    let place = self.planner.places().of(expr.span());
                    return Err(SqlError::new(code::AMBIGUOUS_COLUMN, text).at(place).into());
                }
                return Ok((at, output.ty));
            }
        }
        let same = |source: &Option<&ast::Expr>| source.is_some_and(|s| s == strip(expr));
        if let Some(at) = results.sources.iter().position(same) {
            return Ok((at, outputs[at].ty));
        }
        let (bound, ty) = binder.settled(binder.bind(expr)?)?;
        let is_result = |o: &Output| matches!((&o.expr, &bound), (Expr::Column(a), Expr::Column(b)) if a == b);
        if let Some(at) = outputs.iter().position(is_result) {
            return Ok((at, ty));
        }
        if distinct {
            let text = "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
            let place = self.planner.places().of(expr.span());
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text).at(place).into());
        }
        if let Some(at) = more.iter().position(|e| *e == bound) {
            return Ok((outputs.len() + at, ty));
        }
        more.push(bound);
        Ok((outputs.len() + more.len() - 1, ty))
    }
}

/// The groups of the rows.
fn aggregated(node: Node, grouping: Grouping) -> Step {
    let mark = |(keys, slot): (Vec<usize>, SlotNumber)| {
        let of_set = |set: &Vec<usize>| {
            let bits = keys.iter().map(|key| i32::from(!set.contains(key)));
            bits.fold(0, |mark, bit| mark << 1 | bit)
        };
        let values: Vec<i32> = grouping.sets.iter().map(of_set).collect();
        (slot, if values.is_empty() { vec![0] } else { values })
    };
    let marks = grouping.marks.into_iter().map(mark).collect();
    let types = grouping.keys.iter().map(|(_, ty)| *ty);
    let keys = grouping.bound_keys.into_iter().zip(types).zip(grouping.key_slots);
    Step::Aggregate {
        input: Box::new(node),
        keys: keys.map(|((expr, ty), slot)| (expr, ty, slot)).collect(),
        aggregates: grouping.aggregates.into_iter().zip(grouping.aggregate_slots).collect(),
        sets: grouping.sets,
        marks,
    }
}

/// Sorts the rows, unless there are no keys.
fn sorted(mut block: Block, keys: Vec<Key>, carried: &[SlotNumber], first: Option<(Expr, Option<Expr>)>) -> Block {
    if keys.is_empty() {
        return block;
    }
    let rows = block.node.rows;
    block.cost += rows * 2.0;
    let step = Step::Sort {
        input: Box::new(block.node),
        keys,
        carried: carried.to_vec(),
        first,
    };
    block.node = Node::new(step, rows);
    block
}

impl Output {
    /// As a value for a binder.
    pub(super) fn typed(&self) -> Typed {
        Typed {
            ty: (!self.open).then_some(self.ty),
            expr: self.expr.clone(),
        }
    }
}

fn asks_subquery(expr: &Expr) -> bool {
    let mut found = false;
    expr.walk(&mut |e| found |= matches!(e, Expr::Subquery(_)));
    found
}

fn order_items(query: &Query) -> Bound<&[ast::OrderByExpr]> {
    match query.order_by.as_ref().map(|o| &o.kind) {
        None => Ok(&[]),
        Some(OrderByKind::Expressions(list)) => Ok(list),
        Some(_) => shape("ORDER BY ALL"),
    }
}

pub(super) fn refuse_odd(select: &Select) -> Bound<()> {
    let odd = select.top.is_some()
        || select.into.is_some()
        || !select.lateral_views.is_empty()
        || select.prewhere.is_some()
        || select.qualify.is_some()
        || !select.connect_by.is_empty();
    if odd { shape("this query") } else { Ok(()) }
}

/// Set operations that follow one another.
fn chain_of(body: &SetExpr) -> usize {
    let (mut body, mut length) = (body, 0);
    while let SetExpr::SetOperation { left, .. } = body {
        (body, length) = (left, length + 1);
    }
    length
}

/// Whether the body of a query is made of SELECT and VALUES alone.
pub(super) fn reads_only(body: &SetExpr) -> bool {
    match body {
        SetExpr::Select(_) | SetExpr::Values(_) => true,
        SetExpr::Query(query) => reads_only(&query.body),
        SetExpr::SetOperation { left, right, .. } => reads_only(left) && reads_only(right),
        _ => false,
    }
}

/// Whether a function that gives other values on each call stands in the query.
pub(super) fn is_volatile(query: &Query) -> bool {
    struct Look;
    impl Visitor for Look {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            let ast::Expr::Function(function) = expr else {
                return ControlFlow::Continue(());
            };
            let name = qualified(&function.name).map(|(_, name)| name).unwrap_or_default();
            match name.as_str() {
                "random" | "nextval" | "setval" | "clock_timestamp" | "pg_sleep" | "set_config" | "gen_random_uuid" => {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    query.visit(&mut Look).is_break()
}
