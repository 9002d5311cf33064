//! ORDER BY a subquery.
//!
//! A sort key of PostgreSQL may refer to any column of the FROM. DataFusion adds such columns to the rows that it
//! sorts, but not those that a subquery in the key refers to: it looks for them among the results, and finds none. So
//! the keys become results of the query itself, and a query around it orders by them and leaves them out.

use super::build::{MARK, empty_query, nothing, take};
use crate::names::fold;
use sqlparser::ast::*;
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Where a key of `query` has a subquery, wraps it; `results` are the names of its columns.
pub(super) fn keys_as_results(query: &mut Query, results: &[String]) {
    let Some(OrderByKind::Expressions(keys)) = query.order_by.as_mut().map(|order| &mut order.kind) else {
        return;
    };
    let SetExpr::Select(select) = &mut *query.body else {
        return;
    };
    if !keys.iter().any(|key| has_subquery(&key.expr)) || !can_be_wrapped(select, results) {
        return;
    }
    for (number, key) in keys.iter_mut().enumerate() {
        let name = result_named(&key.expr, results).unwrap_or_else(|| {
            let name = format!("{MARK}key {number}");
            let expr = take(&mut key.expr);
            let alias = quoted(&name);
            select.projection.push(SelectItem::ExprWithAlias { expr, alias });
            name
        });
        key.expr = Expr::Identifier(quoted(&name));
    }
    let mut outer = nothing(&[]);
    outer.selection = None;
    outer.projection = results
        .iter()
        .map(|name| SelectItem::UnnamedExpr(Expr::Identifier(quoted(name))))
        .collect();
    let outer = SetExpr::Select(Box::new(outer));
    let mut inner = empty_query();
    inner.body = std::mem::replace(&mut query.body, Box::new(outer));
    if let SetExpr::Select(outer) = &mut *query.body {
        outer.from = vec![derived(inner)];
    }
}

/// Each result has a name of its own by which it can be referred to.
fn can_be_wrapped(select: &Select, results: &[String]) -> bool {
    let wildcard = |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
    let mut seen = HashSet::new();
    select.distinct.is_none()
        && (select.projection.len() == 1 || !select.projection.iter().any(wildcard))
        && results.iter().all(|name| seen.insert(name))
}

/// The result that a key names, or gives the position of.
fn result_named(key: &Expr, results: &[String]) -> Option<String> {
    match key {
        Expr::Identifier(ident) => Some(fold(ident)).filter(|name| results.contains(name)),
        Expr::Value(ValueWithSpan {
            value: Value::Number(digits, _),
            ..
        }) => digits
            .parse::<usize>()
            .ok()
            .and_then(|position| results.get(position.checked_sub(1)?))
            .cloned(),
        _ => None,
    }
}

fn has_subquery(expr: &Expr) -> bool {
    struct Look;
    impl Visitor for Look {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    expr.visit(&mut Look).is_break()
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

fn derived(subquery: Box<Query>) -> TableWithJoins {
    let alias = TableAlias {
        explicit: true,
        name: quoted(&format!("{MARK}rows")),
        columns: Vec::new(),
        at: None,
    };
    TableWithJoins {
        relation: TableFactor::Derived {
            lateral: false,
            subquery,
            alias: Some(alias),
            sample: None,
        },
        joins: Vec::new(),
    }
}
