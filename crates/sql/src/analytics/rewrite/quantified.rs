//! `x > ALL (SELECT …)` and its kin, by the least and the greatest item.
//!
//! `x > ALL` means `x` above the greatest, `x > ANY` above the least; no items make ALL true and ANY false; a NULL
//! among the items makes NULL of what the others leave open.

use sqlparser::ast::{BinaryOperator as Op, Expr};

/// Rewrites a comparison with ANY or ALL of a subquery; leaves what else there is.
pub(super) fn rewrite_quantified(expr: &mut Expr) {
    let (left, op, right, all) = match &*expr {
        Expr::AnyOp {
            left,
            compare_op,
            right,
            ..
        } => (left, compare_op, right, false),
        Expr::AllOp {
            left,
            compare_op,
            right,
        } => (left, compare_op, right, true),
        _ => return,
    };
    let Expr::Subquery(query) = plain(right) else { return };
    if matches!((op, all), (Op::Eq, false) | (Op::NotEq, true)) {
        *expr = Expr::InSubquery {
            expr: left.clone(),
            subquery: query.clone(),
            negated: all,
        };
        return;
    }
    let of_items = |what: &str| format!("(SELECT {what} FROM ({query}) AS \"quantified\" (\"item\"))");
    let with = |end: &str| format!("({left}) {op} {}", of_items(&format!("{end}(\"item\")")));
    let test = match (op, all) {
        (Op::Gt | Op::GtEq, true) | (Op::Lt | Op::LtEq, false) => with("max"),
        (Op::Lt | Op::LtEq, true) | (Op::Gt | Op::GtEq, false) => with("min"),
        (Op::Eq, true) => format!("{} AND {}", with("min"), with("max")),
        (Op::NotEq, false) => format!("{} OR {}", with("min"), with("max")),
        _ => return,
    };
    let (decided, verdict) = if all {
        (format!("NOT ({test})"), "FALSE")
    } else {
        (test.clone(), "TRUE")
    };
    let text = format!(
        "CASE WHEN {} = 0 THEN {all} WHEN {decided} THEN {verdict} WHEN {} > 0 THEN CAST(NULL AS BOOLEAN) ELSE {test} \
         END",
        of_items("count(*)"),
        of_items("count(*) - count(\"item\")")
    );
    if let Ok(rewritten) = crate::parse::parse_expression(&text) {
        *expr = Expr::Nested(Box::new(rewritten));
    }
}

fn plain(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => plain(inner),
        other => other,
    }
}
