//! Joins in words that DataFusion takes as PostgreSQL does: USING and NATURAL as ON, a join under an alias as a
//! subquery.

use super::build::{empty_query, nothing};
use crate::error::{SqlError, code};
use sqlparser::ast::*;

/// ON all these pairs being equal.
pub(super) fn equal(pairs: Vec<(Expr, Expr)>) -> JoinConstraint {
    let equal = |(left, right)| binary(left, BinaryOperator::Eq, right);
    let all = pairs.into_iter().map(equal);
    let condition = all.reduce(|all, one| binary(all, BinaryOperator::And, one));
    JoinConstraint::On(condition.unwrap_or_else(|| Expr::value(Value::Boolean(true))))
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    let (left, right) = (Box::new(left), Box::new(right));
    Expr::BinaryOp { left, op, right }
}

/// A merged column that would have to be merged with one of a relation whose columns are not known: DataFusion would
/// compare the first column of the name, which may be another.
pub(super) fn refuse_merged(name: &str) -> SqlError {
    let text = format!(
        "USING or NATURAL over column \"{name}\", which an earlier USING or NATURAL merged, is not supported here"
    );
    SqlError::new(code::FEATURE_NOT_SUPPORTED, text).with_hint("Write the join's condition with ON.")
}

/// The join under an alias, as a subquery with these results.
pub(super) fn derived(tables: TableWithJoins, projection: Vec<SelectItem>, alias: Option<TableAlias>) -> TableFactor {
    let mut select = nothing(&[]);
    select.selection = None;
    select.projection = projection;
    select.from = vec![tables];
    let mut subquery = empty_query();
    *subquery.body = SetExpr::Select(Box::new(select));
    TableFactor::Derived {
        lateral: false,
        subquery,
        alias,
        sample: None,
    }
}
