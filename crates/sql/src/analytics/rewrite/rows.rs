//! Comparisons of rows, `(a, b) < (c, d)`, and with the elements of an array that is written out, as comparisons of values:
//! DataFusion compares structs with NULL as a value, and takes the text of an array for one element.

use super::build::cast;
use super::element_type;
use crate::types::array;
use sqlparser::ast::{BinaryOperator as Op, Expr, Value, ValueWithSpan};

/// Elements up to which a comparison with each is written out.
const ELEMENTS_MAX: usize = 500;

/// Rewrites what the module's page says; leaves what else there is.
pub(super) fn rewrite_rows(expr: &mut Expr) {
    let rewritten = match &*expr {
        Expr::BinaryOp { left, op, right } => match (&**left, &**right) {
            (Expr::Tuple(left), Expr::Tuple(right)) => rows(left, op, right),
            _ => None,
        },
        Expr::InList { expr, list, negated } => match &**expr {
            Expr::Tuple(row) => row_in_list(row, list, *negated),
            _ => None,
        },
        Expr::AnyOp {
            left,
            compare_op,
            right,
            ..
        } => elements(right).and_then(|items| quantified(left, compare_op, items, false)),
        Expr::AllOp {
            left,
            compare_op,
            right,
        } => elements(right).and_then(|items| quantified(left, compare_op, items, true)),
        _ => None,
    };
    if let Some(rewritten) = rewritten {
        *expr = Expr::Nested(Box::new(rewritten));
    }
}

fn compare(left: &Expr, op: Op, right: &Expr) -> Expr {
    binary(left.clone(), op, right.clone())
}

fn binary(left: Expr, op: Op, right: Expr) -> Expr {
    Expr::BinaryOp {
        left: Box::new(left),
        op,
        right: Box::new(right),
    }
}

/// All of them by one operator, as a tree that is not deep.
fn joined(mut list: Vec<Expr>, op: &Op) -> Option<Expr> {
    match list.len() {
        0 => None,
        1 => list.pop(),
        n => {
            let right = joined(list.split_off(n / 2), op)?;
            let left = joined(list, op)?;
            Some(Expr::Nested(Box::new(binary(left, op.clone(), right))))
        }
    }
}

/// The first pair that is not equal decides.
pub(super) fn rows(left: &[Expr], op: &Op, right: &[Expr]) -> Option<Expr> {
    if left.len() != right.len() || left.is_empty() {
        return None;
    }
    let pairs = || left.iter().zip(right);
    match op {
        Op::Eq => joined(pairs().map(|(a, b)| compare(a, Op::Eq, b)).collect(), &Op::And),
        Op::NotEq => joined(pairs().map(|(a, b)| compare(a, Op::NotEq, b)).collect(), &Op::Or),
        Op::Lt | Op::Gt | Op::LtEq | Op::GtEq => {
            let strict = match op {
                Op::LtEq => Op::Lt,
                Op::GtEq => Op::Gt,
                other => other.clone(),
            };
            let (a, b) = pairs().next_back()?;
            let mut decided = compare(a, op.clone(), b);
            for (a, b) in pairs().rev().skip(1) {
                let equal = binary(compare(a, Op::Eq, b), Op::And, Expr::Nested(Box::new(decided)));
                let first = compare(a, strict.clone(), b);
                decided = binary(first, Op::Or, Expr::Nested(Box::new(equal)));
            }
            Some(decided)
        }
        _ => None,
    }
}

fn row_in_list(row: &[Expr], list: &[Expr], negated: bool) -> Option<Expr> {
    let equal = |item: &Expr| match item {
        Expr::Tuple(item) => rows(row, &Op::Eq, item).map(|e| Expr::Nested(Box::new(e))),
        _ => None,
    };
    let found = joined(list.iter().map(equal).collect::<Option<Vec<_>>>()?, &Op::Or)?;
    Some(match negated {
        true => Expr::UnaryOp {
            op: sqlparser::ast::UnaryOperator::Not,
            expr: Box::new(Expr::Nested(Box::new(found))),
        },
        false => found,
    })
}

/// The elements of `ARRAY[...]`, `'{...}'` and either with a type.
fn elements(array: &Expr) -> Option<Vec<Expr>> {
    match array {
        Expr::Nested(inner) => elements(inner),
        Expr::Array(array) => Some(array.elem.clone()),
        Expr::Cast { expr, data_type, .. } => {
            let element = element_type(data_type)?;
            Some(
                elements_of(expr)?
                    .into_iter()
                    .map(|e| cast(e, element.clone()))
                    .collect(),
            )
        }
        other => elements_of(other),
    }
}

fn elements_of(array: &Expr) -> Option<Vec<Expr>> {
    match array {
        Expr::Nested(inner) => elements_of(inner),
        Expr::Array(array) => Some(array.elem.clone()),
        Expr::Value(ValueWithSpan {
            value: Value::SingleQuotedString(text),
            ..
        }) => {
            let items = array::items(text).ok()?;
            let item = |item: Option<String>| Expr::value(item.map_or(Value::Null, Value::SingleQuotedString));
            Some(items.into_iter().map(item).collect())
        }
        _ => None,
    }
}

fn quantified(left: &Expr, op: &Op, items: Vec<Expr>, all: bool) -> Option<Expr> {
    if items.is_empty() {
        return Some(Expr::value(Value::Boolean(all)));
    }
    match (op, all) {
        (Op::Eq, false) | (Op::NotEq, true) => Some(Expr::InList {
            expr: Box::new(left.clone()),
            list: items,
            negated: all,
        }),
        (Op::Eq | Op::NotEq | Op::Lt | Op::LtEq | Op::Gt | Op::GtEq, _) if items.len() <= ELEMENTS_MAX => {
            let each = items.iter().map(|item| compare(left, op.clone(), item)).collect();
            joined(each, if all { &Op::And } else { &Op::Or })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> String {
        let mut expr = crate::parse::parse_expression(text).expect("an expression");
        rewrite_rows(&mut expr);
        expr.to_string()
    }

    #[test]
    fn rows_and_elements_are_written_out() {
        for (text, expected) in [
            ("(a, b) < (1, 2)", "(a < 1 OR (a = 1 AND (b < 2)))"),
            ("(a, b) >= (1, 2)", "(a > 1 OR (a = 1 AND (b >= 2)))"),
            ("(a, b) = (1, 2)", "((a = 1 AND b = 2))"),
            ("(a, b) <> (1, 2)", "((a <> 1 OR b <> 2))"),
            ("(a, b) IN ((1, 2))", "(((a = 1 AND b = 2)))"),
            ("a = ANY ('{}'::INT[])", "(false)"),
            ("a <> ALL ('{b,NULL}')", "(a NOT IN ('b', NULL))"),
            ("a > ALL ('{1,2}')", "((a > '1' AND a > '2'))"),
            ("(a, b) < (1, 2, 3)", "(a, b) < (1, 2, 3)"),
            ("a = ANY (b)", "a = ANY(b)"),
        ] {
            assert_eq!(rewritten(text), expected, "{text}");
        }
    }
}
