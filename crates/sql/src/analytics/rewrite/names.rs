//! Names of result columns as PostgreSQL gives them, and names that stand for expressions.

use super::build::{MARK, type_literal};
use crate::expr::labels::column_label;
use sqlparser::ast::*;
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Names of a query's result columns; the number makes each marked name one of a kind.
#[derive(Default)]
pub(super) struct ColumnNames {
    serial: usize,
}

impl ColumnNames {
    /// Gives each unnamed result column PostgreSQL's name, and equal names a marker.
    pub(super) fn give(&mut self, select: &mut Select) {
        let wildcard = select
            .projection
            .iter()
            .any(|i| matches!(i, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)));
        let mut seen = HashSet::new();
        for item in &mut select.projection {
            let (expr, name, named) = match item {
                SelectItem::UnnamedExpr(expr) => {
                    let name = column_label(expr);
                    (expr, name, false)
                }
                SelectItem::ExprWithAlias { expr, alias } => {
                    let name = folded(alias);
                    (expr, name, true)
                }
                _ => continue,
            };
            let plain = matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
            let expr: &mut Expr = expr;
            type_literal(expr);
            let unique = if plain {
                seen.insert(qualified_text(expr, &name, named)) && !wildcard
            } else {
                seen.insert(name.clone())
            };
            if plain && unique && !named {
                continue;
            }
            if unique && named {
                continue;
            }
            let label = if unique { name } else { self.marked(&name) };
            *item = SelectItem::ExprWithAlias {
                expr: expr.clone(),
                alias: Ident::with_quote('"', label),
            };
        }
    }

    fn marked(&mut self, name: &str) -> String {
        self.serial += 1;
        format!("{name}{MARK}{}", self.serial)
    }
}

/// `CROSS JOIN LATERAL (SELECT expression) AS o(n)` names an expression over the other tables: its uses become the
/// expression.
pub(super) fn inline_laterals(select: &mut Select) {
    let mut named = Vec::new();
    for table in &mut select.from {
        table.joins.retain(|join| {
            let columns = lateral_columns(&join.relation);
            let inlined = columns.is_some() && matches!(join.join_operator, JoinOperator::CrossJoin(_));
            named.extend(columns.filter(|_| inlined).into_iter().flatten());
            !inlined
        });
    }
    if !named.is_empty() {
        let _ = VisitMut::visit(select, &mut Inline(named));
    }
}

/// Table and column name and expression of each column of such a subquery; None for anything else.
fn lateral_columns(factor: &TableFactor) -> Option<Vec<(String, String, Expr)>> {
    let TableFactor::Derived {
        lateral: true,
        subquery,
        alias: Some(alias),
        ..
    } = factor
    else {
        return None;
    };
    let SetExpr::Select(select) = &*subquery.body else {
        return None;
    };
    if !select.from.is_empty() || select.selection.is_some() {
        return None;
    }
    let column = |(i, item): (usize, &SelectItem)| {
        let (expr, own) = match item {
            SelectItem::UnnamedExpr(expr) => (expr.clone(), column_label(expr)),
            SelectItem::ExprWithAlias { expr, alias } => (expr.clone(), folded(alias)),
            _ => return None,
        };
        Some((
            folded(&alias.name),
            alias.columns.get(i).map_or(own, |c| folded(&c.name)),
            expr,
        ))
    };
    select.projection.iter().enumerate().map(column).collect()
}

struct Inline(Vec<(String, String, Expr)>);

impl VisitorMut for Inline {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(path) = &*expr
            && let [table, column] = path.as_slice()
        {
            let (table, column) = (folded(table), folded(column));
            if let Some((.., named)) = self.0.iter().find(|(t, c, _)| *t == table && *c == column) {
                *expr = Expr::Nested(Box::new(named.clone()));
            }
        }
        ControlFlow::Continue(())
    }
}

/// What two plain columns must not share: `t.a` and `u.a` may stand side by side, `t.a` twice may not.
fn qualified_text(expr: &Expr, name: &str, named: bool) -> String {
    if named { name.to_string() } else { expr.to_string() }
}

pub(super) fn folded(ident: &Ident) -> String {
    if ident.quote_style.is_some() {
        ident.value.clone()
    } else {
        ident.value.to_lowercase()
    }
}

/// A function in FROM names its one column after its alias, or after itself.
pub(super) fn name_function_column(function: &str, alias: &mut Option<TableAlias>) {
    let column = |name: &Ident| TableAliasColumnDef {
        name: name.clone(),
        data_type: None,
    };
    match alias {
        Some(alias) if alias.columns.is_empty() => alias.columns.push(column(&alias.name)),
        Some(_) => {}
        None => {
            let name = Ident::new(function);
            *alias = Some(TableAlias {
                explicit: true,
                columns: vec![column(&name)],
                name,
                at: None,
            });
        }
    }
}
