//! Unqualified names, resolved as PostgreSQL does, before DataFusion sees them.
//!
//! A name without a table is looked for in the innermost FROM, then in the one around it, and so on. The first FROM
//! that has it decides: two columns of that name there are 42702, unless USING or NATURAL merged them into one.
//! DataFusion takes two columns for none and goes on outwards: in
//! `DELETE FROM t WHERE id IN (SELECT id FROM a JOIN b USING (id))` it compared `t.id` with itself, and every row was
//! deleted. So a merged column is written here as what it means (the left table's, the right one's after RIGHT, the
//! first that is not NULL after FULL), and ambiguity is an error.
//!
//! USING and NATURAL become ON (`joins.rs`) for the same reason: DataFusion compares the first column of the name,
//! which in `a FULL JOIN b USING (id) JOIN c USING (id)` is `a.id` and not the merged one.
//!
//! A relation whose columns are not known here leaves its FROM *open*: a name that is not found there stays as it is.

use super::dependent::{self, From, Keyed, RelationNames};
use super::joins;
use super::ordering::keys_as_results;
use super::recursive;
use super::{positions, windows};
use crate::analytics::rewrite::call;
use crate::error::{Result, SqlError, code};
use crate::expr::labels::column_label;
use crate::names::fold;
use sqlparser::ast::*;
use std::ops::ControlFlow;

/// The names in a relation; None where there is no such relation.
pub(crate) type Relations<'a> = dyn Fn(&ObjectName) -> Option<RelationNames> + 'a;

/// Writes every merged column of `query` as what it means.
pub(crate) fn resolve_names(query: &mut Query, relations: &Relations<'_>) -> Result<()> {
    let mut resolver = Resolver {
        relations,
        common: Vec::new(),
        scopes: Vec::new(),
        missing: None,
    };
    resolver.query(query).map(drop)
}

/// A column that a name without a table can mean.
#[derive(Clone)]
struct Visible {
    name: String,
    means: Expr,
    /// USING or NATURAL made it from two.
    merged: bool,
}

impl Visible {
    fn result(&self) -> SelectItem {
        let (expr, alias) = (self.means.clone(), Ident::with_quote('"', self.name.clone()));
        SelectItem::ExprWithAlias { expr, alias }
    }
}

/// What a FROM clause shows.
#[derive(Clone, Default)]
struct NameScope {
    columns: Vec<Visible>,
    /// Its tables that have a primary key.
    keyed: Vec<Keyed>,
    /// The relations by name, with the names of all their columns: what `t.*` shows.
    relations: Vec<(String, Option<Vec<String>>)>,
    /// It has relations whose columns are not known.
    open: bool,
}

/// Which side of a join its merged columns come from.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
    Both,
}

impl NameScope {
    fn of(columns: Option<Vec<String>>, path: &[Ident]) -> NameScope {
        let visible = |name: String| {
            let column = Ident::with_quote('"', name.clone());
            let means = Expr::CompoundIdentifier(path.iter().cloned().chain([column]).collect());
            Visible {
                name,
                means,
                merged: false,
            }
        };
        NameScope {
            open: columns.is_none(),
            keyed: Vec::new(),
            relations: path.last().map(|i| (fold(i), columns.clone())).into_iter().collect(),
            columns: columns.into_iter().flatten().map(visible).collect(),
        }
    }

    fn and(mut self, other: NameScope) -> NameScope {
        self.columns.extend(other.columns);
        self.relations.extend(other.relations);
        self.keyed.extend(other.keyed);
        self.open |= other.open;
        self
    }

    /// The one column that a name means, unless it was merged from two that may differ.
    fn plain(&self, name: &str) -> Option<Expr> {
        let mut found = self.named(name);
        match (found.next(), found.next()) {
            (Some(one), None) => matches!(one.means, Expr::CompoundIdentifier(_)).then(|| one.means.clone()),
            _ => None,
        }
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Visible> {
        self.columns.iter().filter(move |c| c.name == name)
    }

    /// Whether `*` is to be written out: DataFusion would show the merged columns twice.
    fn merges(&self) -> bool {
        !self.open && self.columns.iter().any(|c| c.merged)
    }

    /// The columns of a relation; the inner None: they are not known.
    fn relation(&self, name: &str) -> Option<&Option<Vec<String>>> {
        let found = self.relations.iter().find(|(known, _)| known == name);
        found.map(|(_, columns)| columns)
    }

    /// Whether a name alone is a column, or a relation's row.
    fn shows(&self, name: &str) -> bool {
        self.named(name).next().is_some() || self.relation(name).is_some()
    }

    /// These results, what wildcards stand for among them.
    fn written_out(&self, items: &[SelectItem]) -> positions::Results {
        let mut values = Vec::new();
        for item in items {
            match item {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => values.push(expr.clone()),
                SelectItem::Wildcard(_) if !self.open => values.extend(self.columns.iter().map(|c| c.means.clone())),
                item => match self.columns_of(item) {
                    Some(columns) => values.extend(columns),
                    None => {
                        return positions::Results {
                            values,
                            complete: false,
                        };
                    }
                },
            }
        }
        positions::Results { values, complete: true }
    }

    /// What `t.*` stands for.
    fn columns_of(&self, item: &SelectItem) -> Option<Vec<Expr>> {
        let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = item else {
            return None;
        };
        let path: Vec<Ident> = name.0.iter().filter_map(ObjectNamePart::as_ident).cloned().collect();
        let columns = self.relation(&fold(path.last()?))?.clone();
        let scope = NameScope::of(columns, &path);
        (!scope.open).then(|| scope.columns.into_iter().map(|c| c.means).collect())
    }

    fn results(&self) -> Vec<SelectItem> {
        self.columns.iter().map(Visible::result).collect()
    }

    /// The column of this name in one side of a join.
    fn single(&self, name: &str, side: &str) -> Result<Option<&Visible>> {
        let mut found = self.named(name);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => {
                let text = format!("common column name \"{name}\" appears more than once in {side} table");
                Err(SqlError::new(code::AMBIGUOUS_COLUMN, text))
            }
            (None, _) if !self.open => {
                let text = format!("column \"{name}\" specified in USING clause does not exist in {side} table");
                Err(SqlError::new(code::UNDEFINED_COLUMN, text))
            }
            (one, _) => Ok(one),
        }
    }

    fn names(&self) -> Option<Vec<String>> {
        (!self.open).then(|| self.columns.iter().map(|c| c.name.clone()).collect())
    }

    /// The names that NATURAL merges; with an open side those of the other, which it may have too.
    fn common(&self, other: &NameScope) -> Vec<String> {
        let one = self
            .columns
            .iter()
            .filter(|c| other.open || other.named(&c.name).next().is_some());
        let two = other.columns.iter().filter(|_| self.open);
        one.chain(two).map(|c| c.name.clone()).collect()
    }

    /// A join that merges the columns of these names: they stand first. Its constraint becomes ON, unless a side is
    /// open.
    fn merge(
        self,
        other: NameScope,
        names: &[String],
        side: Side,
        constraint: &mut JoinConstraint,
    ) -> Result<NameScope> {
        let (mut merged, mut pairs) = (Vec::new(), Vec::new());
        for name in names {
            let (left, right) = (self.single(name, "left")?, other.single(name, "right")?);
            let (Some(left), Some(right)) = (left, right) else {
                match left.or(right) {
                    Some(known) if known.merged => return Err(joins::refuse_merged(name)),
                    _ => continue,
                }
            };
            let (left, right) = (left.means.clone(), right.means.clone());
            pairs.push((left.clone(), right.clone()));
            merged.push(Visible {
                name: name.clone(),
                merged: true,
                means: side.of(left, right),
            });
        }
        if !self.open && !other.open {
            *constraint = joins::equal(pairs);
        }
        let mut rest = self.and(other);
        rest.columns.retain(|c| !merged.iter().any(|m| m.name == c.name));
        merged.append(&mut rest.columns);
        rest.columns = merged;
        Ok(rest)
    }
}

impl Side {
    /// What the column merged from these means.
    fn of(self, left: Expr, right: Expr) -> Expr {
        match self {
            Side::Left => left,
            Side::Right => right,
            Side::Both => call("coalesce", vec![left, right]),
        }
    }
}

struct Resolver<'a> {
    relations: &'a Relations<'a>,
    /// NameResolution that WITH gives, the innermost last.
    common: Vec<(String, Option<Vec<String>>)>,
    /// FROM clauses around the place that is looked at, the innermost last.
    scopes: Vec<NameScope>,
    /// The first relation that there is none of. DataFusion refuses it; nothing else is to be refused for its sake.
    missing: Option<SqlError>,
}

impl Resolver<'_> {
    /// Resolves a query; the names of its result columns.
    fn query(&mut self, query: &mut Query) -> Result<Option<Vec<String>>> {
        let outside = self.common.len();
        if let Some(with) = &mut query.with {
            for cte in &mut with.cte_tables {
                self.common_table(cte, with.recursive)?;
            }
        }
        let columns = self.body(&mut query.body, query.order_by.as_mut())?;
        self.common.truncate(outside);
        if let (true, Some(columns)) = (self.scopes.is_empty(), &columns) {
            keys_as_results(query, columns);
        }
        Ok(columns)
    }

    fn common_table(&mut self, cte: &mut Cte, recursive: bool) -> Result<()> {
        let name = fold(&cte.alias.name);
        let own = alias_columns(&cte.alias);
        if recursive {
            recursive::widen_numerics(cte);
            let first = self.first_part(cte)?;
            self.common.push((name.clone(), renamed(first, own.clone())));
        }
        let columns = renamed(self.query(&mut cte.query)?, own);
        if recursive {
            self.common.pop();
        }
        self.common.push((name, columns));
        Ok(())
    }

    /// The columns of a recursive query: those of the part that does not refer to it.
    fn first_part(&mut self, cte: &Cte) -> Result<Option<Vec<String>>> {
        match &*cte.query.body {
            SetExpr::SetOperation { left, .. } => self.body(&mut left.clone(), None),
            _ => Ok(None),
        }
    }

    fn body(&mut self, body: &mut SetExpr, order: Option<&mut OrderBy>) -> Result<Option<Vec<String>>> {
        match body {
            SetExpr::Select(select) => self.select(select, order),
            SetExpr::Query(query) => self.query(query),
            SetExpr::SetOperation { left, right, .. } => {
                let columns = self.body(left, None)?;
                self.body(right, None)?;
                Ok(columns)
            }
            SetExpr::Values(values) => {
                self.visit(values)?;
                let width = values.rows.first().map_or(0, |row| row.content.len());
                Ok(Some((1..=width).map(|i| format!("column{i}")).collect()))
            }
            _ => Ok(None),
        }
    }

    fn select(&mut self, select: &mut Select, order: Option<&mut OrderBy>) -> Result<Option<Vec<String>>> {
        let mut from = std::mem::take(&mut select.from);
        let mut scope = NameScope::default();
        for tables in &mut from {
            let joined = self.joined(tables, &scope)?;
            scope = scope.and(joined);
        }
        let outputs = outputs(select, &scope);
        self.scopes.push(scope);
        self.group_by_outputs(select);
        let order_by = order.as_deref();
        if let Some(scope) = self.scopes.last() {
            let (keyed, plain) = (scope.keyed.as_slice(), &|name: &str| scope.plain(name));
            dependent::group_by_dependent(select, order_by, From { keyed, plain });
        }
        self.name_results(select)?;
        let mut distinct = select.distinct.take();
        if let Some(Distinct::On(list)) = &mut distinct {
            self.keys_of_positions(list, &select.projection)?;
        }
        windows::refuse_unknown(select, |path| self.known(path))?;
        select.named_window.clear();
        self.visit(select)?;
        let results = outputs.as_deref().unwrap_or_default();
        if let Some(Distinct::On(list)) = &mut distinct {
            list.iter_mut().try_for_each(|e| self.result_or_column(e, results))?;
        }
        if let Some(OrderByKind::Expressions(list)) = order.map(|o| &mut o.kind) {
            list.iter_mut()
                .try_for_each(|e| self.result_or_column(&mut e.expr, results))?;
        }
        self.scopes.pop();
        select.distinct = distinct;
        select.from = from;
        Ok(outputs)
    }

    fn keys_of_positions(&self, keys: &mut [Expr], items: &[SelectItem]) -> Result<()> {
        let Some(scope) = self.scopes.last() else {
            return Ok(());
        };
        let (results, plain) = (scope.written_out(items), &|name: &str| scope.plain(name));
        let mut keys = keys.iter_mut();
        keys.try_for_each(|key| positions::key_of_position(key, &results, items, plain))
    }

    /// GROUP BY takes a column of FROM, then a result; never one of a query around it.
    fn group_by_outputs(&self, select: &mut Select) {
        let GroupByExpr::Expressions(keys, _) = &mut select.group_by else {
            return;
        };
        let Some(scope) = self.scopes.last().filter(|scope| !scope.open) else {
            return;
        };
        for key in keys {
            let Expr::Identifier(ident) = key else { continue };
            let name = fold(ident);
            let result = select.projection.iter().find_map(|item| match item {
                SelectItem::ExprWithAlias { expr, alias } if fold(alias) == name => Some(expr),
                _ => None,
            });
            if let Some(expr) = result.filter(|_| scope.named(&name).next().is_none()) {
                *key = expr.clone();
            }
        }
    }

    /// A result that is a merged column keeps its name, behind `*` too.
    fn name_results(&self, select: &mut Select) -> Result<()> {
        for item in std::mem::take(&mut select.projection) {
            match item {
                SelectItem::UnnamedExpr(Expr::Identifier(alias)) => {
                    select.projection.push(match self.meaning(&alias)? {
                        Some(expr) => SelectItem::ExprWithAlias { expr, alias },
                        None => SelectItem::UnnamedExpr(Expr::Identifier(alias)),
                    })
                }
                SelectItem::Wildcard(options) => match self.scopes.last().filter(|scope| scope.merges()) {
                    Some(scope) => select.projection.extend(scope.results()),
                    None => select.projection.push(SelectItem::Wildcard(options)),
                },
                item => select.projection.push(item),
            }
        }
        Ok(())
    }

    /// ORDER BY and DISTINCT ON take a result of that name before a column.
    fn result_or_column(&mut self, expr: &mut Expr, results: &[String]) -> Result<()> {
        match expr {
            Expr::Identifier(ident) if results.contains(&fold(ident)) => Ok(()),
            expr => self.visit(expr),
        }
    }

    fn joined(&mut self, tables: &mut TableWithJoins, before: &NameScope) -> Result<NameScope> {
        let mut left = self.factor(&mut tables.relation, before)?;
        for join in &mut tables.joins {
            let visible = before.clone().and(left.clone());
            let right = self.factor(&mut join.relation, &visible)?;
            left = self.join(left, right, &mut join.join_operator)?;
        }
        Ok(left)
    }

    fn join(&mut self, left: NameScope, right: NameScope, operator: &mut JoinOperator) -> Result<NameScope> {
        let Some((side, constraint)) = constraint(operator) else {
            return Ok(left.and(right));
        };
        match constraint {
            JoinConstraint::On(condition) => {
                self.scopes.push(left.and(right));
                self.visit(condition)?;
                Ok(self.scopes.pop().unwrap_or_default())
            }
            JoinConstraint::Using(names) => {
                let last = |name: &ObjectName| name.0.last().and_then(ObjectNamePart::as_ident).map(fold);
                let names: Vec<String> = names.iter().filter_map(last).collect();
                let merged = left.merge(right, &names, side, constraint);
                merged.map_err(|error| self.missing.take().unwrap_or(error))
            }
            JoinConstraint::Natural => {
                let names = left.common(&right);
                let merged = left.merge(right, &names, side, constraint);
                merged.map_err(|error| self.missing.take().unwrap_or(error))
            }
            JoinConstraint::None => Ok(left.and(right)),
        }
    }

    fn factor(&mut self, factor: &mut TableFactor, before: &NameScope) -> Result<NameScope> {
        match factor {
            TableFactor::Table {
                name,
                alias,
                args: None,
                ..
            } => Ok(self.table(name, alias.as_mut())),
            TableFactor::Derived {
                lateral,
                subquery,
                alias,
                ..
            } => {
                self.scopes.extend(lateral.then(|| before.clone()));
                let columns = self.query(subquery)?;
                if *lateral {
                    self.scopes.pop();
                }
                if let (Some(alias), Some(columns)) = (alias.as_mut(), &columns) {
                    complete(alias, columns);
                }
                Ok(aliased(columns, alias.as_ref(), &ObjectName(Vec::new())))
            }
            TableFactor::NestedJoin {
                table_with_joins,
                alias,
            } => {
                let scope = self.joined(table_with_joins, before)?;
                if alias.is_none() {
                    return Ok(scope);
                }
                let shown = aliased(scope.names(), alias.as_ref(), &ObjectName(Vec::new()));
                if scope.merges() {
                    *factor = joins::derived((**table_with_joins).clone(), scope.results(), alias.take());
                }
                Ok(shown)
            }
            function => {
                self.scopes.push(before.clone());
                self.visit(function)?;
                self.scopes.pop();
                Ok(function_column(function))
            }
        }
    }

    fn table(&mut self, name: &ObjectName, mut alias: Option<&mut TableAlias>) -> NameScope {
        let Some(relation) = self.relation(name) else {
            return aliased(None, alias.as_deref(), name);
        };
        if let Some(alias) = alias.as_deref_mut() {
            complete(alias, &relation.columns);
        }
        let alias = alias.as_deref();
        let mut scope = aliased(Some(relation.columns.clone()), alias, name);
        let names = relation.renamed(alias.map(alias_columns).unwrap_or_default());
        if !names.key.is_empty() {
            let own = || name.0.iter().filter_map(ObjectNamePart::as_ident).cloned().collect();
            scope.keyed.push(Keyed {
                path: alias.map_or_else(own, |alias| vec![alias.name.clone()]),
                names,
            });
        }
        scope
    }

    fn relation(&mut self, name: &ObjectName) -> Option<RelationNames> {
        if let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() {
            let name = fold(ident);
            if let Some((_, columns)) = self.common.iter().rev().find(|(n, _)| *n == name) {
                return columns.clone().map(RelationNames::without_key);
            }
        }
        let columns = (self.relations)(name);
        if columns.is_none() && self.missing.is_none() {
            let shown: Vec<String> = name.0.iter().filter_map(ObjectNamePart::as_ident).map(fold).collect();
            let text = format!("relation \"{}\" does not exist", shown.join("."));
            self.missing = Some(SqlError::new(code::UNDEFINED_TABLE, text));
        }
        columns
    }

    /// Refuses a column that no FROM clause shows.
    fn known(&self, path: &[Ident]) -> Result<()> {
        if let [ident] = path {
            self.meaning(ident)?;
        }
        let name = path.last().map(fold).unwrap_or_default();
        let is_open = self.scopes.iter().any(|scope| scope.open);
        let (code, text) = match path {
            [_] if !self.scopes.iter().any(|scope| scope.shows(&name)) => {
                (code::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"))
            }
            [table, _] => {
                let table = fold(table);
                match self.scopes.iter().rev().find_map(|scope| scope.relation(&table)) {
                    Some(Some(columns)) if !columns.contains(&name) => {
                        (code::UNDEFINED_COLUMN, format!("column {table}.{name} does not exist"))
                    }
                    Some(_) => return Ok(()),
                    None => {
                        let text = format!("missing FROM-clause entry for table \"{table}\"");
                        (code::UNDEFINED_TABLE, text)
                    }
                }
            }
            _ => return Ok(()),
        };
        match is_open {
            true => Ok(()),
            false => Err(SqlError::new(code, text)),
        }
    }

    /// What a name means if it is a merged column; None: it may stay as it is.
    fn meaning(&self, ident: &Ident) -> Result<Option<Expr>> {
        let name = fold(ident);
        for scope in self.scopes.iter().rev() {
            let mut found = scope.named(&name);
            match (found.next(), found.next()) {
                (Some(_), Some(_)) => {
                    let text = format!("column reference \"{name}\" is ambiguous");
                    return Err(SqlError::new(code::AMBIGUOUS_COLUMN, text));
                }
                (Some(one), None) => return Ok(one.merged.then(|| one.means.clone())),
                (None, _) if scope.open => return Ok(None),
                (None, _) => {}
            }
        }
        Ok(None)
    }

    fn visit(&mut self, node: &mut impl VisitMut) -> Result<()> {
        let mut names = NameResolution {
            resolver: self,
            depth: 0,
        };
        match node.visit(&mut names) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }
}

/// Looks at the names of one level; subqueries are levels of their own.
struct NameResolution<'r, 'a> {
    resolver: &'r mut Resolver<'a>,
    depth: usize,
}

impl VisitorMut for NameResolution<'_, '_> {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        self.depth += 1;
        match self.depth {
            1 => flow(self.resolver.query(query).map(drop)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<SqlError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        if let (0, Expr::Identifier(ident)) = (self.depth, &*expr) {
            match self.resolver.meaning(ident) {
                Ok(None) => {}
                Ok(Some(means)) => *expr = means,
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
}

fn flow(done: Result<()>) -> ControlFlow<SqlError> {
    done.map_or_else(ControlFlow::Break, ControlFlow::Continue)
}

fn constraint(operator: &mut JoinOperator) -> Option<(Side, &mut JoinConstraint)> {
    use JoinOperator as J;
    match operator {
        J::Join(c) | J::Inner(c) | J::Left(c) | J::LeftOuter(c) | J::CrossJoin(c) => Some((Side::Left, c)),
        J::Right(c) | J::RightOuter(c) => Some((Side::Right, c)),
        J::FullOuter(c) => Some((Side::Both, c)),
        _ => None,
    }
}

fn alias_columns(alias: &TableAlias) -> Vec<String> {
    alias.columns.iter().map(|c| fold(&c.name)).collect()
}

/// Writes the names out that an alias of some columns leaves as they are: DataFusion wants all or none.
fn complete(alias: &mut TableAlias, columns: &[String]) {
    if alias.columns.is_empty() {
        return;
    }
    let later = columns.iter().skip(alias.columns.len());
    let named = |name: &String| TableAliasColumnDef {
        name: Ident::with_quote('"', name.clone()),
        data_type: None,
    };
    let later: Vec<_> = later.map(named).collect();
    alias.columns.extend(later);
}

/// `columns`, the first of them called otherwise.
fn renamed(columns: Option<Vec<String>>, first: Vec<String>) -> Option<Vec<String>> {
    let mut columns = columns?;
    for (column, name) in columns.iter_mut().zip(first) {
        *column = name;
    }
    Some(columns)
}

/// What a relation shows under its alias, or else its own name.
fn aliased(columns: Option<Vec<String>>, alias: Option<&TableAlias>, name: &ObjectName) -> NameScope {
    let Some(alias) = alias else {
        let path: Vec<Ident> = name.0.iter().filter_map(ObjectNamePart::as_ident).cloned().collect();
        return NameScope::of(columns, &path);
    };
    NameScope::of(
        renamed(columns, alias_columns(alias)),
        std::slice::from_ref(&alias.name),
    )
}

/// A function in FROM has one column, called as its alias says, or as the function.
fn function_column(function: &TableFactor) -> NameScope {
    let (alias, name) = match function {
        TableFactor::Table { name, alias, .. } | TableFactor::Function { name, alias, .. } => (alias, name.clone()),
        TableFactor::UNNEST { alias, .. } => (alias, ObjectName::from(vec![Ident::new("unnest")])),
        _ => return NameScope::of(None, &[]),
    };
    let own = name.0.last().and_then(ObjectNamePart::as_ident).map(fold);
    let column = alias.as_ref().map(|a| fold(&a.name)).or(own).unwrap_or_default();
    aliased(Some(vec![column]), alias.as_ref(), &name)
}

/// The names of a SELECT's results; None where a relation behind `*` is not known.
fn outputs(select: &Select, scope: &NameScope) -> Option<Vec<String>> {
    let mut out = Vec::new();
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => out.push(column_label(expr)),
            SelectItem::ExprWithAlias { alias, .. } => out.push(fold(alias)),
            SelectItem::Wildcard(_) => out.extend(scope.names()?),
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
                let name = name.0.last().and_then(ObjectNamePart::as_ident).map(fold)?;
                out.extend(scope.relations.iter().find(|(n, _)| *n == name)?.1.clone()?);
            }
            _ => return None,
        }
    }
    Some(out)
}
