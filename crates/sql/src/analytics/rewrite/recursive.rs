//! Numerics of a recursive query. DataFusion takes a column's type from the part that does not refer to the query and
//! casts the other one to it: a numeric of PostgreSQL has no scale there, so it must hold all digits.

use super::build::call;
use crate::expr::labels::column_label;
use crate::names::fold;
use sqlparser::ast::*;
use std::ops::ControlFlow;

/// Gives the numerics of the first part all digits, where the second one refers to the query.
pub(super) fn widen_numerics(cte: &mut Cte) {
    let name = fold(&cte.alias.name);
    if let SetExpr::SetOperation { left, right, .. } = &mut *cte.query.body
        && refers(right, &name)
    {
        widen(left);
    }
}

fn refers(body: &SetExpr, name: &str) -> bool {
    let visited = visit_relations(body, |relation| match relation.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] if fold(ident) == name => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    visited.is_break()
}

fn widen(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) => select.projection.iter_mut().for_each(widen_item),
        SetExpr::Query(query) => widen(&mut query.body),
        SetExpr::SetOperation { left, right, .. } => {
            widen(left);
            widen(right);
        }
        SetExpr::Values(values) => {
            let values = values.rows.iter_mut().flat_map(|row| row.content.iter_mut());
            values.filter(|e| is_unscaled(e)).for_each(widen_value);
        }
        _ => {}
    }
}

fn widen_item(item: &mut SelectItem) {
    match item {
        SelectItem::UnnamedExpr(expr) if is_unscaled(expr) => {
            let alias = Ident::with_quote('"', column_label(expr));
            widen_value(expr);
            let expr = super::take(expr);
            *item = SelectItem::ExprWithAlias { expr, alias };
        }
        SelectItem::ExprWithAlias { expr, .. } if is_unscaled(expr) => widen_value(expr),
        _ => {}
    }
}

fn widen_value(expr: &mut Expr) {
    *expr = call("cenote_unscaled", vec![super::take(expr)]);
}

/// Whether an expression may be a numeric without a declared scale that has one in DataFusion.
fn is_unscaled(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) | Expr::UnaryOp { expr: inner, .. } => is_unscaled(inner),
        Expr::BinaryOp { left, right, .. } => is_unscaled(left) || is_unscaled(right),
        Expr::Value(value) => matches!(&value.value, Value::Number(digits, _) if digits.contains(['.', 'e', 'E'])),
        Expr::Cast { data_type, .. } => is_numeric(data_type),
        Expr::TypedString(typed) => is_numeric(&typed.data_type),
        Expr::Case {
            conditions,
            else_result,
            ..
        } => conditions.iter().any(|c| is_unscaled(&c.result)) || else_result.as_deref().is_some_and(is_unscaled),
        Expr::Function(function) => of_function(function),
        _ => false,
    }
}

fn is_numeric(data_type: &DataType) -> bool {
    use DataType::{Dec, Decimal, Numeric};
    matches!(
        data_type,
        Numeric(ExactNumberInfo::None) | Decimal(ExactNumberInfo::None) | Dec(ExactNumberInfo::None)
    )
}

fn of_function(function: &Function) -> bool {
    let name = function.name.0.last().and_then(ObjectNamePart::as_ident).map(fold);
    let FunctionArguments::List(list) = &function.args else {
        return false;
    };
    let is_unscaled = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => is_unscaled(expr),
        _ => false,
    };
    matches!(name.as_deref(), Some("sum" | "avg")) || list.args.iter().any(is_unscaled)
}
