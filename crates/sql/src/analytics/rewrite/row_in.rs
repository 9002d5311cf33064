//! `(a, b) IN (SELECT ...)`, which DataFusion does not know, by EXISTS.
//!
//! It is true where a row of the subquery equals the left side, else NULL where one would but for a NULL in either,
//! else false; a subquery with others inside stands there once, by IN of that comparison. Among the conditions of WHERE
//! and HAVING false is as good as NULL: there one EXISTS says it, which becomes a join.

use super::build::{MARK, call, cast, empty_query, nothing, take};
use super::quantified::rewrite_quantified;
use super::rows::rows;
use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::*;
use std::ops::ControlFlow;

/// Rewrites what the module's page says wherever an expression stands; leaves what else there is.
pub(super) fn rewrite_row_in(expr: &mut Expr) {
    let Some((row, subquery, negated)) = taken(expr) else {
        return;
    };
    if has_subqueries(&subquery) {
        *expr = within(&subquery, &row, negated);
        return;
    }
    let found = exists(&subquery, row.len(), matching(&row, None));
    let open = exists(&subquery, row.len(), matching(&row, Some(true)));
    let null = cast(Expr::value(Value::Null), DataType::Boolean);
    let when = |condition, result| CaseWhen { condition, result };
    *expr = Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![when(found, boolean(!negated)), when(open, null)],
        else_result: Some(Box::new(boolean(negated))),
    };
}

/// Whether a query has subqueries in its expressions: two EXISTS of it would double at each depth.
fn has_subqueries(query: &Query) -> bool {
    let walked = visit_expressions(query, |expr| match expr {
        Expr::InSubquery { .. } | Expr::Exists { .. } | Expr::Subquery(_) => ControlFlow::Break(()),
        Expr::AnyOp { .. } | Expr::AllOp { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    walked.is_break()
}

/// TRUE among the values of whether the subquery's rows equal the left side, which is evaluated row by row.
fn within(subquery: &Query, row: &[Expr], negated: bool) -> Expr {
    Expr::InSubquery {
        expr: Box::new(boolean(true)),
        subquery: items(subquery, row.len(), matching(row, None), None),
        negated,
    }
}

/// As [`rewrite_row_in`] among conditions of which only those that are true count.
pub(super) fn rewrite_conditions(expr: &mut Expr) {
    match expr {
        Expr::Nested(inner) => rewrite_conditions(inner),
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And,
            right,
        } => {
            rewrite_conditions(left);
            rewrite_conditions(right);
        }
        Expr::AnyOp { .. } | Expr::AllOp { .. } | Expr::InSubquery { .. } => {
            if let Some((row, subquery, negated)) = taken(expr) {
                let found = exists(&subquery, row.len(), matching(&row, negated.then_some(false)));
                *expr = match negated {
                    false => found,
                    true => Expr::UnaryOp {
                        op: UnaryOperator::Not,
                        expr: Box::new(found),
                    },
                };
            }
        }
        _ => {}
    }
}

/// The row, the subquery, and whether it is NOT IN.
fn taken(expr: &mut Expr) -> Option<(Vec<Expr>, Box<Query>, bool)> {
    let is_row = |left: &Expr| matches!(left, Expr::Tuple(_));
    match expr {
        Expr::AnyOp { left, .. } | Expr::AllOp { left, .. } if is_row(left) => rewrite_quantified(expr),
        _ => {}
    }
    match expr {
        Expr::InSubquery {
            expr: left,
            subquery,
            negated,
        } if is_row(left) => {
            let Expr::Tuple(row) = take(left) else { return None };
            let subquery = std::mem::replace(subquery, empty_query());
            Some((row, subquery, *negated))
        }
        _ => None,
    }
}

fn boolean(value: bool) -> Expr {
    Expr::value(Value::Boolean(value))
}

fn column(at: usize) -> Ident {
    Ident::with_quote('"', format!("{MARK}item {at}"))
}

/// The row equals the subquery's; `open`: whether that is NULL, or (false) is not false.
fn matching(row: &[Expr], open: Option<bool>) -> Expr {
    let columns: Vec<Expr> = (0..row.len()).map(|at| Expr::Identifier(column(at))).collect();
    let equal = rows(row, &BinaryOperator::Eq, &columns).unwrap_or_else(|| boolean(true));
    let equal = Box::new(Expr::Nested(Box::new(equal)));
    match open {
        None => *equal,
        Some(true) => call("cenote_open", vec![*equal]),
        Some(false) => Expr::IsNotFalse(equal),
    }
}

fn exists(subquery: &Query, width: usize, condition: Expr) -> Expr {
    let one = Expr::value(Value::Number("1".into(), false));
    Expr::Exists {
        subquery: items(subquery, width, one, Some(condition)),
        negated: false,
    }
}

/// A value for each of the subquery's rows that a condition admits.
fn items(subquery: &Query, width: usize, value: Expr, condition: Option<Expr>) -> Box<Query> {
    let name = |at| TableAliasColumnDef {
        name: column(at),
        data_type: None,
    };
    let mut select = nothing(&[]);
    select.projection = vec![SelectItem::UnnamedExpr(value)];
    select.selection = condition;
    select.from = vec![TableWithJoins {
        relation: TableFactor::Derived {
            lateral: false,
            subquery: Box::new(subquery.clone()),
            alias: Some(TableAlias {
                explicit: true,
                name: Ident::with_quote('"', format!("{MARK}items")),
                columns: (0..width).map(name).collect(),
                at: None,
            }),
            sample: None,
        },
        joins: Vec::new(),
    }];
    let mut query = empty_query();
    *query.body = SetExpr::Select(Box::new(select));
    query
}
