//! GROUP BY of a primary key: the row is grouped by, so each of its columns may be named. They become keys of the
//! grouping, of all its sets where it has several.

use crate::names::fold;
use sqlparser::ast::*;
use std::collections::HashSet;
use std::ops::ControlFlow;

/// The names of a relation's columns.
#[derive(Clone, Default)]
pub(crate) struct RelationNames {
    pub columns: Vec<String>,
    /// Those of its primary key; none where it has none.
    pub key: Vec<String>,
}

impl RelationNames {
    /// With the first columns called otherwise.
    pub fn renamed(&self, first: Vec<String>) -> RelationNames {
        let later = self.columns.iter().skip(first.len()).cloned();
        let columns: Vec<String> = first.into_iter().chain(later).collect();
        let place = |name: &String| self.columns.iter().position(|own| own == name);
        let key = self.key.iter().filter_map(|name| columns.get(place(name)?).cloned());
        RelationNames {
            key: key.collect(),
            columns,
        }
    }

    pub fn without_key(columns: Vec<String>) -> RelationNames {
        let key = Vec::new();
        RelationNames { columns, key }
    }
}

/// A table in FROM that has a primary key.
#[derive(Clone)]
pub(super) struct Keyed {
    /// What it is called.
    pub path: Vec<Ident>,
    pub names: RelationNames,
}

/// What a FROM clause shows.
#[derive(Clone, Copy)]
pub(super) struct From<'a> {
    pub keyed: &'a [Keyed],
    /// The one column that a name without a table means.
    pub plain: &'a dyn Fn(&str) -> Option<Expr>,
}

/// Adds the columns that the results, HAVING and ORDER BY name of tables whose primary key is grouped by.
pub(super) fn group_by_dependent(select: &mut Select, order: Option<&OrderBy>, from: From<'_>) {
    let GroupByExpr::Expressions(items, _) = &select.group_by else {
        return;
    };
    let grouped = Columns::of(items.iter(), select, from);
    let keyed: Vec<&Keyed> = from.keyed.iter().filter(|table| grouped.hold_key_of(table)).collect();
    if keyed.is_empty() {
        return;
    }
    let named = Named::of(select, order);
    let in_any: Vec<Expr> = items.iter().flat_map(|item| in_item(item, select, from)).collect();
    let more: Vec<Expr> = keyed
        .iter()
        .flat_map(|table| table.names.columns.iter().map(|name| column(table, name)))
        .filter(|column| named.has(column) && !in_any.contains(column))
        .collect();
    if let GroupByExpr::Expressions(items, _) = &mut select.group_by {
        items.extend(more);
    }
}

fn column(table: &Keyed, name: &str) -> Expr {
    let last = Ident::with_quote('"', name);
    Expr::CompoundIdentifier(table.path.iter().cloned().chain([last]).collect())
}

/// Columns of FROM that are in every set of a grouping.
struct Columns(Vec<Expr>);

impl Columns {
    fn of<'e>(items: impl Iterator<Item = &'e Expr>, select: &Select, from: From<'_>) -> Columns {
        let mut found = Vec::new();
        for item in items {
            match item {
                Expr::Tuple(parts) => found.extend(Columns::of(parts.iter(), select, from).0),
                Expr::GroupingSets(sets) => found.extend(in_all(sets, select, from)),
                Expr::Rollup(_) | Expr::Cube(_) => {}
                one => found.extend(column_of(one, select, from)),
            }
        }
        Columns(found)
    }

    fn hold_key_of(&self, table: &Keyed) -> bool {
        table.names.key.iter().all(|name| self.0.contains(&column(table, name)))
    }
}

fn in_all(sets: &[Vec<Expr>], select: &Select, from: From<'_>) -> Vec<Expr> {
    let mut sets = sets.iter().map(|set| Columns::of(set.iter(), select, from).0);
    let first = sets.next().unwrap_or_default();
    sets.fold(first, |all, set| {
        all.into_iter().filter(|one| set.contains(one)).collect()
    })
}

/// The columns of FROM that an item names in any of its sets.
fn in_item(item: &Expr, select: &Select, from: From<'_>) -> Vec<Expr> {
    let of_sets = |sets: &[Vec<Expr>]| -> Vec<Expr> {
        let parts = sets.iter().flatten();
        parts.flat_map(|part| in_item(part, select, from)).collect()
    };
    match item {
        Expr::GroupingSets(sets) | Expr::Rollup(sets) | Expr::Cube(sets) => of_sets(sets),
        Expr::Tuple(parts) => parts.iter().flat_map(|part| in_item(part, select, from)).collect(),
        one => column_of(one, select, from).into_iter().collect(),
    }
}

/// The column of FROM that an item names, by its name or by a result's position.
fn column_of(item: &Expr, select: &Select, from: From<'_>) -> Option<Expr> {
    match item {
        Expr::Nested(inner) => column_of(inner, select, from),
        Expr::Identifier(ident) => (from.plain)(&fold(ident)),
        Expr::CompoundIdentifier(path) => {
            let (last, table) = path.split_last()?;
            let name = fold(last);
            let table = from.keyed.iter().find(|keyed| is_same(&keyed.path, table))?;
            table.names.columns.contains(&name).then(|| column(table, &name))
        }
        Expr::Value(ValueWithSpan {
            value: Value::Number(digits, _),
            ..
        }) => match select.projection.get(digits.parse::<usize>().ok()?.checked_sub(1)?)? {
            SelectItem::UnnamedExpr(expr @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_)))
            | SelectItem::ExprWithAlias {
                expr: expr @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_)),
                ..
            } => column_of(expr, select, from),
            _ => None,
        },
        _ => None,
    }
}

/// Whether both say the same table, whose schema one of them may leave out.
fn is_same(path: &[Ident], other: &[Ident]) -> bool {
    !other.is_empty()
        && path
            .iter()
            .rev()
            .zip(other.iter().rev())
            .all(|(a, b)| fold(a) == fold(b))
}

/// The last parts of all names in some clauses, subqueries included; all names where there is a `*`.
struct Named {
    names: HashSet<String>,
    all: bool,
}

impl Named {
    fn of(select: &Select, order: Option<&OrderBy>) -> Named {
        let is_wildcard = |i: &SelectItem| matches!(i, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        let mut names = HashSet::new();
        let mut note = |expr: &Expr| {
            match expr {
                Expr::Identifier(ident) => drop(names.insert(fold(ident))),
                Expr::CompoundIdentifier(path) => names.extend(path.last().map(fold)),
                _ => {}
            }
            ControlFlow::<()>::Continue(())
        };
        let _ = visit_expressions(&select.projection, &mut note);
        let _ = visit_expressions(&select.having, &mut note);
        let _ = visit_expressions(&select.distinct, &mut note);
        let _ = order.map(|order| visit_expressions(order, &mut note));
        let all = select.projection.iter().any(is_wildcard);
        Named { names, all }
    }

    fn has(&self, column: &Expr) -> bool {
        match column {
            Expr::CompoundIdentifier(path) => {
                self.all || path.last().is_some_and(|name| self.names.contains(&name.value))
            }
            _ => false,
        }
    }
}
