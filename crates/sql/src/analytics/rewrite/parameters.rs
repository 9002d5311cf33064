//! Parameters whose type or meaning the syntax around them decides: casts, LIMIT, arrays.

use super::build::{cast, take};
use crate::error::{Result, SqlError};
use cenote_engine::Datum;
use sqlparser::ast::*;
use std::ops::ControlFlow;

/// Types that casts give to parameters (`$1::bigint`), by number from 1; and `LIMIT $n`, which is bigint.
pub(crate) fn cast_parameters(query: &Query) -> Vec<(usize, DataType)> {
    let mut found = Vec::new();
    let _ = visit_expressions(query, |expr| {
        if let Expr::Cast { expr, data_type, .. } = expr {
            found.extend(parameter(expr).map(|n| (n, data_type.clone())));
        }
        ControlFlow::<()>::Continue(())
    });
    if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &query.limit_clause {
        let limits = limit.iter().chain(offset.iter().map(|o| &o.value));
        found.extend(limits.filter_map(parameter).map(|n| (n, DataType::BigInt(None))));
    }
    found
}

/// The numbers of all parameters in the text, from 1.
pub(crate) fn placeholders(query: &Query) -> Vec<usize> {
    let mut found = Vec::new();
    let _ = visit_expressions(query, |expr| {
        found.extend(parameter(expr));
        ControlFlow::<()>::Continue(())
    });
    found
}

fn parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Value(ValueWithSpan {
            value: Value::Placeholder(name),
            ..
        }) => name.strip_prefix('$')?.parse().ok(),
        Expr::Nested(inner) => parameter(inner),
        _ => None,
    }
}

/// `x = ANY($1)` and `x <> ALL($1)` with an array for `$1` become lists of its items, or, before the value is known, a
/// list of one text. Whether there was one.
pub(crate) fn expand_any(query: &mut Query, values: Option<&[(Datum, u32)]>) -> Result<bool> {
    let mut expand = Expand { values, found: false };
    match VisitMut::visit(query, &mut expand) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(expand.found),
    }
}

struct Expand<'a> {
    values: Option<&'a [(Datum, u32)]>,
    found: bool,
}

impl VisitorMut for Expand<'_> {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let (left, right, negated) = match expr {
            Expr::AnyOp {
                left,
                compare_op: BinaryOperator::Eq,
                right,
                ..
            } => (left, right, false),
            Expr::AllOp {
                left,
                compare_op: BinaryOperator::NotEq,
                right,
            } => (left, right, true),
            _ => return ControlFlow::Continue(()),
        };
        let Some(number) = array_parameter(right) else {
            return ControlFlow::Continue(());
        };
        let list = match self.list(number, right) {
            Ok(Some(list)) => list,
            Ok(None) => return ControlFlow::Continue(()),
            Err(error) => return ControlFlow::Break(error),
        };
        self.found = true;
        let left = Box::new(take(left));
        *expr = match list.is_empty() {
            true => Expr::value(Value::Boolean(negated)),
            false => Expr::Nested(Box::new(Expr::InList {
                expr: left,
                list,
                negated,
            })),
        };
        ControlFlow::Continue(())
    }
}

impl Expand<'_> {
    fn list(&self, number: usize, right: &Expr) -> Result<Option<Vec<Expr>>> {
        let Some(values) = self.values else {
            let placeholder = match right {
                Expr::Cast { expr, .. } => (**expr).clone(),
                other => other.clone(),
            };
            return Ok(Some(vec![cast(placeholder, DataType::Text)]));
        };
        match number.checked_sub(1).and_then(|i| values.get(i)) {
            Some((Datum::Text(text), _)) => {
                let literal = |item: Option<String>| Expr::value(item.map_or(Value::Null, Value::SingleQuotedString));
                Ok(Some(
                    crate::types::array::items(text)?.into_iter().map(literal).collect(),
                ))
            }
            Some((Datum::Null, _)) => Ok(Some(vec![Expr::value(Value::Null)])),
            _ => Ok(None),
        }
    }
}

/// The number of the parameter that stands here for an array: `$1`, `($1)`, `$1::int[]`.
fn array_parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Cast {
            expr,
            data_type: DataType::Array(_),
            ..
        } => parameter(expr),
        Expr::Nested(inner) => array_parameter(inner),
        other => parameter(other),
    }
}
