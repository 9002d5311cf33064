//! SELECT over one table or none: projection, filter, simple grouping, order, DISTINCT, LIMIT, row locks.

use super::access::{self, Access, Costs, Order, Wanted};
use super::row::estimate::Estimator;
use super::{Plan, Planner, computed_field, table_field};
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::aggregate::{Aggregate, Kind};
use crate::expr::bind::{Binder, Bound, Grouping, Refusal, shape, strip};
use crate::expr::labels::column_label;
use crate::names::{fold, qualified};
use crate::output::Field;
use crate::types::cast::Context;
use cenote_engine::{ColumnType, LockStrength, Table, Wait};
use sqlparser::ast::{
    self, Distinct, GroupByExpr, LimitClause, NonBlock, OrderByKind, Query, Select, SelectItem, SetExpr, Spanned,
    Value as Literal, Visit, Visitor,
};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Grouping on a full scan of more rows than this is left to analytics.
const GROUPING_ROWS: u64 = 200_000;
/// Rows of an order up to which their keys are found first, each row being looked up by its key then.
const KEYS_FIRST_ROWS: f64 = 100.0;
/// Rows that a LIMIT asks for which only a run gives.
const LIMIT_ROWS: f64 = 10.0;

/// A column of the materialised row by which results are ordered.
#[derive(Debug, Clone, Copy)]
pub struct SortKey {
    /// Position: select list first, then hidden expressions.
    pub at: usize,
    /// Falling.
    pub descending: bool,
    /// NULLs before values.
    pub nulls_first: bool,
    /// char(n).
    pub trim: bool,
}

/// GROUP BY and aggregates: the row that the select list sees is the group's keys, then the aggregates.
#[derive(Debug)]
pub struct GroupPlan {
    /// Group keys over the table's row, with their types.
    pub keys: Vec<(Expr, ColumnType)>,
    /// Aggregates over the table's row.
    pub aggregates: Vec<Aggregate>,
    /// HAVING over the grouped row.
    pub having: Option<Expr>,
}

/// An aggregate that is the first value of a path in its order.
#[derive(Debug)]
pub struct Extreme {
    /// The path.
    pub access: Access,
    /// The value over the table's row.
    pub value: Expr,
}

/// A SELECT of the short path.
#[derive(Debug)]
pub struct SelectPlan {
    /// The table; None: one row without columns.
    pub access: Option<Access>,
    /// WHERE where there is no table.
    pub bare_filter: Option<Expr>,
    /// Grouping.
    pub group: Option<GroupPlan>,
    /// Select list, then hidden sort expressions.
    pub outputs: Vec<Expr>,
    /// Types of the select list.
    pub types: Vec<ColumnType>,
    /// Length of the select list.
    pub visible: usize,
    /// MIN and MAX of which each is the first value of an index; then `access` is not read.
    pub extremes: Option<Vec<Extreme>>,
    /// ORDER BY that the path does not serve.
    pub order: Vec<SortKey>,
    /// How many of its first keys the path does serve.
    pub served: usize,
    /// The index has the sort keys and what the filter reads, and not the output: the first keys are found by it alone,
    /// and then the rows of these are read.
    pub keys_first: bool,
    /// DISTINCT.
    pub distinct: bool,
    /// LIMIT, bigint.
    pub limit: Option<Expr>,
    /// OFFSET, bigint.
    pub offset: Option<Expr>,
    /// FOR UPDATE, FOR SHARE.
    pub lock: Option<(LockStrength, Wait)>,
    /// Whether `nextval` occurs.
    pub uses_sequences: bool,
    /// Whether `set_config` occurs where it may: there is no table.
    pub sets_config: bool,
}

impl SelectPlan {
    /// Whether rows must be gathered before the first is known.
    pub fn gathers(&self) -> bool {
        self.distinct || !self.order.is_empty() || self.group.is_some()
    }

    /// Whether few rows of an order are wanted, which the entries of the path's index can tell.
    fn finds_keys_first(&self, access: &Access, wanted: Option<f64>) -> bool {
        let few = wanted.is_some_and(|rows| rows <= KEYS_FIRST_ROWS);
        let sorts = few && !self.order.is_empty() && self.group.is_none() && !self.distinct && self.lock.is_none();
        if !sorts || access.index_only {
            return false;
        }
        let mut columns = Vec::new();
        for key in &self.order {
            columns_of(&self.outputs[key.at], &mut columns);
        }
        access.entries_give(&columns)
    }

    /// Columns of the table that are read for the output and for grouping.
    fn columns_read(&self) -> Vec<usize> {
        let mut columns = Vec::new();
        let mut add = |expr: &Expr| columns_of(expr, &mut columns);
        match &self.group {
            None => self.outputs.iter().for_each(&mut add),
            Some(group) => {
                group.keys.iter().for_each(|(key, _)| add(key));
                let read = |a: &Aggregate| a.argument.iter().chain(&a.filter).for_each(&mut add);
                group.aggregates.iter().for_each(read);
            }
        }
        columns
    }
}

/// Adds the columns that an expression reads.
fn columns_of(expr: &Expr, columns: &mut Vec<usize>) {
    expr.walk(&mut |e| {
        if let Expr::Column(column) = e {
            columns.push(usize::from(*column));
        }
    });
}

/// An output column while the list is built.
struct Item {
    expr: Expr,
    ty: ColumnType,
    name: String,
    source: ast::Expr,
}

impl Planner<'_> {
    /// Plans a query for the short path.
    pub fn select(&self, query: &Query) -> Bound<(Plan, Vec<Field>)> {
        let select = plain_select(query)?;
        let sequence = |name: &str| self.sequence(name);
        let table = match select.from.as_slice() {
            [] => None,
            [one] => Some(self.single_table(one)?),
            _ => return shape("a join"),
        };
        let mut binder = self.binder(table.clone(), &sequence);
        let condition = select
            .selection
            .as_ref()
            .map(|e| binder.condition(e, "WHERE"))
            .transpose()?;
        let group = self.start_grouping(&mut binder, select, query)?;
        let items = self.items(&binder, select)?;
        let having = select
            .having
            .as_ref()
            .map(|e| binder.condition(e, "HAVING"))
            .transpose()?;
        let distinct = match &select.distinct {
            None | Some(Distinct::All) => false,
            Some(Distinct::Distinct) => true,
            Some(Distinct::On(_)) => return shape("DISTINCT ON"),
        };
        let mut outputs: Vec<Expr> = items.iter().map(|i| i.expr.clone()).collect();
        let order = self.order(&binder, query, &items, &mut outputs, distinct)?;
        let (limit, offset) = self.limits(&binder, query)?;
        let lock = self.lock(query, select, &table)?;
        let fields: Vec<Field> = items
            .iter()
            .map(|i| field_of(i, table.as_ref().map(|t| &*t.0), group))
            .collect();
        let types = items.iter().map(|i| i.ty).collect();
        let grouping = binder.grouping.take().map(RefCell::into_inner);
        let group = grouping.map(|g| self.finish_grouping(&binder, g, having)).transpose()?;
        let wanted = (group.is_none() && !distinct).then(|| wanted_order(&order, &outputs));
        let visible = items.len();
        let uses_sequences = outputs.iter().any(Expr::uses_sequences);
        let sets_config = table.is_none() && outputs.iter().any(Expr::sets_config);
        let mut plan = SelectPlan {
            access: None,
            bare_filter: None,
            group,
            extremes: None,
            outputs,
            types,
            visible,
            order,
            served: 0,
            keys_first: false,
            distinct,
            limit,
            offset,
            lock,
            uses_sequences,
            sets_config,
        };
        match table {
            None => plan.bare_filter = condition,
            Some((table, _)) => self.add_access(&mut plan, table, condition, wanted.as_deref())?,
        }
        Ok((Plan::Select(Box::new(plan)), fields))
    }

    fn add_access(
        &self,
        plan: &mut SelectPlan,
        table: Arc<Table>,
        condition: Option<Expr>,
        wanted: Option<&[Wanted]>,
    ) -> Bound<()> {
        let order = wanted.map(|columns| Order {
            columns,
            limit: self.rows_wanted(plan.limit.as_ref(), plan.offset.as_ref()),
        });
        let estimator = Estimator::new(self.tx, &self.known);
        plan.extremes = extremes(plan.group.as_ref(), &table, condition.as_ref(), &estimator);
        let reads = plan.lock.is_none().then(|| plan.columns_read());
        let (access, served) = access::choose(&table, condition, order, reads.as_deref(), &estimator);
        plan.served = served;
        if self.known.is_compared() {
            self.known.note_cost(access::cost(&access, served, order, &estimator));
        }
        if served > 0 && served == plan.order.len() {
            plan.order.clear();
        }
        let heavy = plan.group.as_ref().is_some_and(|g| !g.keys.is_empty())
            || plan.distinct
            || !plan.order.is_empty() && plan.limit.is_none();
        let heavy = heavy && plan.served == 0;
        if self.analytics && heavy && plan.lock.is_none() && access::is_full(&access.path) {
            let rows = self.tx.engine().row_estimate(&access.table);
            if rows > GROUPING_ROWS {
                return shape("grouping of a large table");
            }
        }
        let wanted = self.rows_wanted(plan.limit.as_ref(), plan.offset.as_ref());
        plan.keys_first = plan.finds_keys_first(&access, wanted);
        plan.access = Some(Access {
            index_only: access.index_only || plan.keys_first,
            ..access
        });
        Ok(())
    }

    /// The rows that LIMIT and OFFSET ask for; None without LIMIT.
    pub(crate) fn rows_wanted(&self, limit: Option<&Expr>, offset: Option<&Expr>) -> Option<f64> {
        self.known.rows_wanted(limit, offset, LIMIT_ROWS)
    }

    fn start_grouping(&self, binder: &mut Binder<'_>, select: &Select, query: &Query) -> Bound<bool> {
        let GroupByExpr::Expressions(keys, modifiers) = &select.group_by else {
            return shape("GROUP BY ALL");
        };
        if !modifiers.is_empty() {
            return shape("GROUP BY modifiers");
        }
        let grouped = !keys.is_empty() || select.having.is_some() || has_aggregate(select, query);
        if !grouped {
            return Ok(false);
        }
        let mut grouping = Grouping::default();
        for key in keys {
            let key = strip(self.group_target(select, binder, key)?);
            let (_, ty) = binder.settled(binder.bind(key)?)?;
            grouping.key_slots.push(grouping.keys.len() as u16);
            grouping.keys.push((key.clone(), ty));
        }
        binder.grouping = Some(RefCell::new(grouping));
        Ok(true)
    }

    /// A GROUP BY item may be a position or the name of an output column (a column of the table goes first).
    fn group_target<'e>(&self, select: &'e Select, binder: &Binder<'_>, key: &'e ast::Expr) -> Bound<&'e ast::Expr> {
        if let Some(position) = integer_literal(key) {
            let item = usize::try_from(position)
                .ok()
                .filter(|p| *p > 0)
                .and_then(|p| select.projection.get(p - 1));
            return match item {
                Some(SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. }) => Ok(e),
                _ => Err(SqlError::new(
                    code::INVALID_COLUMN_REFERENCE,
                    format!("GROUP BY position {position} is not in select list"),
                )
                .into()),
            };
        }
        if let ast::Expr::Identifier(ident) = key {
            let name = fold(ident);
            let in_table = binder
                .table
                .as_ref()
                .is_some_and(|(t, _)| t.column_named(&name).is_some());
            if !in_table {
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

    fn finish_grouping(&self, binder: &Binder<'_>, grouping: Grouping, having: Option<Expr>) -> Bound<GroupPlan> {
        let mut keys = Vec::new();
        for (key, ty) in &grouping.keys {
            keys.push((binder.settled(binder.bind(key)?)?.0, *ty));
        }
        Ok(GroupPlan {
            keys,
            aggregates: grouping.aggregates,
            having,
        })
    }

    fn items(&self, binder: &Binder<'_>, select: &Select) -> Bound<Vec<Item>> {
        let mut items = Vec::new();
        for item in &select.projection {
            self.push_item(binder, item, &mut items)?;
        }
        Ok(items)
    }

    fn push_item(&self, binder: &Binder<'_>, item: &SelectItem, items: &mut Vec<Item>) -> Bound<()> {
        let (expr, alias) = match item {
            SelectItem::UnnamedExpr(expr) => (expr, None),
            SelectItem::ExprWithAlias { expr, alias } => (expr, Some(fold(alias))),
            SelectItem::Wildcard(options) if plain_wildcard(options) => return self.push_all(binder, items),
            SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), options)
                if plain_wildcard(options) =>
            {
                let (_, wanted) = qualified(name)?;
                let known = binder.table.as_ref().is_some_and(|(_, alias)| *alias == wanted);
                if !known {
                    let text = format!("missing FROM-clause entry for table \"{wanted}\"");
                    return Err(SqlError::new(code::UNDEFINED_TABLE, text)
                        .at(self.places().of(item.span()))
                        .into());
                }
                return self.push_all(binder, items);
            }
            other => return shape(format_args!("the output column {other}")),
        };
        let (bound, ty) = binder.settled(binder.bind(expr)?)?;
        let name = alias.unwrap_or_else(|| column_label(expr));
        items.push(Item {
            expr: bound,
            ty,
            name,
            source: strip(expr).clone(),
        });
        Ok(())
    }

    fn push_all(&self, binder: &Binder<'_>, items: &mut Vec<Item>) -> Bound<()> {
        let Some((table, _)) = &binder.table else {
            return Err(SqlError::new(code::SYNTAX_ERROR, "SELECT * with no tables specified is not valid").into());
        };
        for column in &table.columns {
            let ident = ast::Ident::with_quote('"', column.name.clone());
            let source = ast::Expr::Identifier(ident);
            let (expr, ty) = binder.settled(binder.bind(&source)?)?;
            items.push(Item {
                expr,
                ty,
                name: column.name.clone(),
                source,
            });
        }
        Ok(())
    }

    /// Sort keys; expressions that are not in the select list are added to `outputs`.
    fn order(
        &self,
        binder: &Binder<'_>,
        query: &Query,
        items: &[Item],
        outputs: &mut Vec<Expr>,
        distinct: bool,
    ) -> Bound<Vec<SortKey>> {
        let Some(order_by) = &query.order_by else {
            return Ok(Vec::new());
        };
        let OrderByKind::Expressions(list) = &order_by.kind else {
            return shape("ORDER BY ALL");
        };
        let mut keys = Vec::new();
        for item in list {
            let (at, ty) = self.sort_target(binder, &item.expr, items, outputs, distinct)?;
            let descending = item.options.asc == Some(false);
            let nulls_first = item.options.nulls_first.unwrap_or(descending);
            keys.push(SortKey {
                at,
                descending,
                nulls_first,
                trim: matches!(ty, ColumnType::Char(_)),
            });
        }
        Ok(keys)
    }

    fn sort_target(
        &self,
        binder: &Binder<'_>,
        expr: &ast::Expr,
        items: &[Item],
        outputs: &mut Vec<Expr>,
        distinct: bool,
    ) -> Bound<(usize, ColumnType)> {
        let place = || self.places().of(expr.span());
        if let Some(position) = integer_literal(expr) {
            return match usize::try_from(position).ok().filter(|p| (1..=items.len()).contains(p)) {
                Some(p) => Ok((p - 1, items[p - 1].ty)),
                None => Err(SqlError::new(
                    code::INVALID_COLUMN_REFERENCE,
                    format!("ORDER BY position {position} is not in select list"),
                )
                .at(place())
                .into()),
            };
        }
        if let ast::Expr::Identifier(ident) = expr {
            let name = fold(ident);
            if let Some(at) = items.iter().position(|i| i.name == name) {
                return Ok((at, items[at].ty));
            }
        }
        if let Some(at) = items.iter().position(|i| i.source == *strip(expr)) {
            return Ok((at, items[at].ty));
        }
        if distinct {
            let text = "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text).at(place()).into());
        }
        let (bound, ty) = binder.settled(binder.bind(expr)?)?;
        outputs.push(bound);
        Ok((outputs.len() - 1, ty))
    }

    pub(crate) fn limits(&self, binder: &Binder<'_>, query: &Query) -> Bound<(Option<Expr>, Option<Expr>)> {
        let bigint = |e: &ast::Expr| {
            let typed = binder.bind(e)?;
            binder.coerce(typed, ColumnType::Int8, Context::Assignment)
        };
        let (mut limit, mut offset) = (None, None);
        match &query.limit_clause {
            None => {}
            Some(LimitClause::LimitOffset {
                limit: l,
                offset: o,
                limit_by,
            }) if limit_by.is_empty() => {
                limit = l.as_ref().map(bigint).transpose()?;
                offset = o.as_ref().map(|o| bigint(&o.value)).transpose()?;
            }
            Some(_) => return shape("this LIMIT"),
        }
        if let Some(fetch) = &query.fetch {
            if fetch.with_ties || fetch.percent {
                return shape("FETCH WITH TIES");
            }
            let one = ast::Expr::value(Literal::Number("1".into(), false));
            limit = Some(bigint(fetch.quantity.as_ref().unwrap_or(&one))?);
        }
        Ok((limit, offset))
    }

    fn lock(
        &self,
        query: &Query,
        select: &Select,
        table: &Option<(Arc<Table>, String)>,
    ) -> Bound<Option<(LockStrength, Wait)>> {
        let mut strongest: Option<(LockStrength, Wait)> = None;
        for lock in &query.locks {
            let strength = lock_strength(lock);
            let wait = match lock.nonblock {
                None => Wait::Block,
                Some(NonBlock::Nowait) => Wait::NoWait,
                Some(NonBlock::SkipLocked) => Wait::SkipLocked,
            };
            if let Some(of) = &lock.of
                && table
                    .as_ref()
                    .is_none_or(|(_, alias)| qualified(of).map_or(true, |(_, n)| n != *alias))
            {
                let text = format!(
                    "relation \"{of}\" in FOR {} clause not found in FROM clause",
                    lock.lock_type
                );
                return Err(SqlError::new(code::UNDEFINED_TABLE, text).into());
            }
            strongest = Some(strongest.map_or((strength, wait), |(s, w)| (s.max(strength), w)));
        }
        let grouped = select.distinct.is_some()
            || select.having.is_some()
            || !matches!(&select.group_by, GroupByExpr::Expressions(k, _) if k.is_empty());
        if strongest.is_some() && (grouped || has_aggregate(select, query)) {
            let clause = if select.distinct.is_some() {
                "DISTINCT clause"
            } else {
                "GROUP BY clause or aggregate functions"
            };
            let text = format!(
                "{} is not allowed with {clause}",
                query
                    .locks
                    .first()
                    .map_or(String::new(), |l| format!("FOR {}", l.lock_type))
            );
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, text).into());
        }
        Ok(strongest.filter(|_| table.is_some()))
    }
}

/// A query that is this SELECT and nothing else.
pub(crate) fn plain_select_of(select: &Select) -> Query {
    Query {
        with: None,
        body: Box::new(SetExpr::Select(Box::new(select.clone()))),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}

/// The SELECT of a query that has nothing else.
fn plain_select(query: &Query) -> Bound<&Select> {
    let extras = query.with.is_some()
        || query.for_clause.is_some()
        || query.settings.is_some()
        || !query.pipe_operators.is_empty();
    let select = match &*query.body {
        SetExpr::Select(select) if !extras => select,
        _ => return shape("this query"),
    };
    let odd = select.top.is_some()
        || select.into.is_some()
        || !select.lateral_views.is_empty()
        || select.prewhere.is_some()
        || !select.named_window.is_empty()
        || select.qualify.is_some()
        || !select.connect_by.is_empty();
    if odd { shape("this query") } else { Ok(select) }
}

pub(crate) fn plain_wildcard(options: &ast::WildcardAdditionalOptions) -> bool {
    options.opt_exclude.is_none()
        && options.opt_except.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none()
        && options.opt_ilike.is_none()
}

/// What FOR UPDATE and FOR SHARE ask for.
pub(crate) fn lock_strength(lock: &ast::LockClause) -> LockStrength {
    match lock.lock_type {
        ast::LockType::Share => LockStrength::Share,
        ast::LockType::Update => LockStrength::Update,
    }
}

/// Whether aggregate functions of this SELECT stand in the results or in ORDER BY. Those inside a subquery are the
/// subquery's.
pub(crate) fn has_aggregate(select: &Select, query: &Query) -> bool {
    let mut look = FindAggregate { depth: 0 };
    select.projection.visit(&mut look).is_break() || query.order_by.visit(&mut look).is_break()
}

struct FindAggregate {
    /// Subqueries around the place that is looked at.
    depth: usize,
}

impl Visitor for FindAggregate {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
        match expr {
            ast::Expr::Function(f)
                if self.depth == 0
                    && f.over.is_none()
                    && qualified(&f.name).is_ok_and(|(_, name)| Kind::named(&name).is_some()) =>
            {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

pub(crate) fn integer_literal(expr: &ast::Expr) -> Option<i64> {
    match expr {
        ast::Expr::Value(v) => match &v.value {
            Literal::Number(digits, _) => digits.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// ORDER BY as table columns, where all keys are such with default NULL placement.
fn wanted_order(order: &[SortKey], outputs: &[Expr]) -> Vec<Wanted> {
    let column = |key: &SortKey| match &outputs[key.at] {
        Expr::Column(c) if key.nulls_first == key.descending => Some(Wanted {
            column: usize::from(*c),
            descending: key.descending,
        }),
        _ => None,
    };
    order.iter().map_while(column).collect()
}

/// The paths of MIN and MAX, where each is of a column whose order a tree gives.
fn extremes(
    group: Option<&GroupPlan>,
    table: &Arc<Table>,
    condition: Option<&Expr>,
    costs: &dyn Costs,
) -> Option<Vec<Extreme>> {
    let group = group.filter(|g| g.keys.is_empty() && !g.aggregates.is_empty())?;
    let each = |aggregate: &Aggregate| {
        let descending = match aggregate.kind {
            Kind::Min => false,
            Kind::Max => true,
            _ => return None,
        };
        let Some(value @ Expr::Column(column)) = aggregate.argument.as_ref().filter(|_| aggregate.filter.is_none())
        else {
            return None;
        };
        let mut conditions = access::conjuncts(condition.cloned());
        conditions.push(Expr::IsNull {
            operand: Box::new(value.clone()),
            negated: true,
        });
        let wanted = [Wanted {
            column: usize::from(*column),
            descending,
        }];
        let order = Order {
            columns: &wanted,
            limit: Some(1.0),
        };
        let reads = [usize::from(*column)];
        let (access, served) = access::choose(table, access::all_of(conditions), Some(order), Some(&reads), costs);
        (served == 1).then(|| Extreme {
            access,
            value: value.clone(),
        })
    };
    group.aggregates.iter().map(each).collect()
}

fn field_of(item: &Item, table: Option<&Table>, grouped: bool) -> Field {
    match (&item.expr, table) {
        (Expr::Column(c), Some(table)) if !grouped => table_field(&item.name, table, usize::from(*c)),
        _ => computed_field(&item.name, item.ty),
    }
}

/// RETURNING: a select list over the table's row.
impl Planner<'_> {
    /// Expressions and result columns of RETURNING; empty without it.
    pub fn returning(
        &self,
        list: Option<&Vec<SelectItem>>,
        table: &Arc<Table>,
        alias: &str,
    ) -> Bound<(Vec<Expr>, Vec<Field>)> {
        let Some(list) = list else {
            return Ok((Vec::new(), Vec::new()));
        };
        let sequence = |name: &str| self.sequence(name);
        let binder = self.binder(Some((table.clone(), alias.to_string())), &sequence);
        let mut items = Vec::new();
        for item in list {
            self.push_item(&binder, item, &mut items).map_err(|r| match r {
                Refusal::Shape(e) | Refusal::Error(e) => Refusal::Error(e),
            })?;
        }
        let fields = items.iter().map(|i| field_of(i, Some(table), false)).collect();
        Ok((items.into_iter().map(|i| i.expr).collect(), fields))
    }
}
