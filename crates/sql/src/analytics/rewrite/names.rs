//! Names of result columns as PostgreSQL gives them, and names that stand for expressions.

use super::build::{MARK, type_literal};
use crate::analytics::types::builtin_by_name;
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
                    let name = column_name(expr).unwrap_or_else(|| "?column?".into());
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
            SelectItem::UnnamedExpr(expr) => (expr.clone(), column_name(expr).unwrap_or_else(|| "?column?".into())),
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

/// PostgreSQL's name for an unnamed result column (`FigureColname`); None where it says `?column?`.
pub(super) fn column_name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(ident) => Some(folded(ident)),
        Expr::CompoundIdentifier(idents) => idents.last().map(folded),
        Expr::Function(function) => function.name.0.last().and_then(|p| p.as_ident()).map(folded),
        Expr::Cast { expr, data_type, .. } => column_name(expr).or_else(|| Some(type_label(data_type))),
        Expr::TypedString(typed) => Some(type_label(&typed.data_type)),
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => column_name(inner),
        Expr::Case { else_result, .. } => else_result
            .as_ref()
            .and_then(|e| column_name(e))
            .or_else(|| Some("case".into())),
        Expr::Exists { .. } => Some("exists".into()),
        Expr::Array(_) => Some("array".into()),
        Expr::Extract { .. } => Some("extract".into()),
        Expr::Substring { .. } => Some("substring".into()),
        Expr::Position { .. } => Some("position".into()),
        Expr::Trim {
            trim_where: Some(TrimWhereField::Leading),
            ..
        } => Some("ltrim".into()),
        Expr::Trim {
            trim_where: Some(TrimWhereField::Trailing),
            ..
        } => Some("rtrim".into()),
        Expr::Trim { .. } => Some("btrim".into()),
        Expr::Ceil { .. } => Some("ceil".into()),
        Expr::Floor { .. } => Some("floor".into()),
        Expr::AtTimeZone { .. } => Some("timezone".into()),
        Expr::Interval(_) => Some("interval".into()),
        Expr::Tuple(_) => Some("row".into()),
        Expr::Value(value) if matches!(value.value, Value::Boolean(_)) => Some("bool".into()),
        Expr::CompoundFieldAccess { root, .. } => column_name(root),
        Expr::Subquery(query) => match query.body.as_ref() {
            SetExpr::Select(select) => match select.projection.first()? {
                SelectItem::UnnamedExpr(expr) => column_name(expr),
                SelectItem::ExprWithAlias { alias, .. } => Some(folded(alias)),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

fn type_label(data_type: &DataType) -> String {
    let text = data_type.to_string();
    let bare = text.split('(').next().unwrap_or(&text);
    builtin_by_name(bare).map_or_else(|| bare.to_lowercase(), |t| t.name.to_string())
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
