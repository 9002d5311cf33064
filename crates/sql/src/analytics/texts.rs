//! Values as text where their types or the session decide how they are written, and char(n) beside other strings.
//!
//! A timestamptz is written in the session's time zone. `concat` writes values as a result is written. char(n) runs
//! without its trailing blanks: where they count (LIKE, `concat`) they come back, and where it meets varchar or a
//! literal, those of the other side do not count.

use super::casts;
use super::expressions::changed;
use super::times::Clock;
use super::types::{self, BPCHAR, VARCHAR};
use super::unions::with_union_types;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{BinaryExpr, Case, InList, InSubquery, ScalarFunction};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, lit};
use std::sync::Arc;

/// The plan with its texts as the module's page says.
///
/// # Errors
/// None: the types fit.
pub(crate) fn with_texts(plan: LogicalPlan, clock: &Clock) -> Result<LogicalPlan> {
    let plan = with_union_types(plan)?;
    changed(plan, |expr, schema| match expr {
        Expr::ScalarFunction(call) => of_call(call, schema, clock),
        Expr::Like(mut like) if blanks_of(&like.expr, schema).is_some() => {
            like.expr = Box::new(with_blanks(*like.expr, schema));
            Transformed::yes(Expr::Like(like))
        }
        Expr::BinaryExpr(mut binary) if is_pattern(binary.op) && blanks_of(&binary.left, schema).is_some() => {
            binary.left = Box::new(with_blanks(*binary.left, schema));
            Transformed::yes(Expr::BinaryExpr(binary))
        }
        Expr::BinaryExpr(binary) if is_comparison(binary.op) => of_comparison(binary, schema),
        Expr::Case(case) => of_case(case, schema),
        Expr::InList(list) => of_list(list, schema),
        Expr::InSubquery(within) => of_subquery(within, schema),
        other => Transformed::no(other),
    })
}

fn is_pattern(op: Operator) -> bool {
    use Operator::*;
    matches!(
        op,
        LikeMatch
            | ILikeMatch
            | NotLikeMatch
            | NotILikeMatch
            | RegexMatch
            | RegexIMatch
            | RegexNotMatch
            | RegexNotIMatch
    )
}

fn of_call(mut call: ScalarFunction, schema: &DFSchema, clock: &Clock) -> Transformed<Expr> {
    let output = |arg: Expr| match arg.get_type(schema) {
        Ok(t) if is_zoned(&t) => clock.text().call(vec![arg]),
        Ok(DataType::Utf8) => with_blanks(arg, schema),
        Ok(DataType::Null) | Err(_) => arg,
        Ok(_) => casts::output().call(vec![arg]),
    };
    let zoned = |arg: Expr| match arg.get_type(schema) {
        Ok(t) if is_zoned(&t) => clock.text().call(vec![arg]),
        _ => arg,
    };
    if call.func.name() == "nullif" {
        return of_nullif(call, schema);
    }
    call.args = match call.func.name() {
        "concat" | "concat_ws" => call.args.into_iter().map(output).collect(),
        "cenote_text" | "cenote_varchar" | "cenote_bpchar" if has_zoned(&call.args, schema) => {
            call.args.into_iter().map(zoned).collect()
        }
        _ => return Transformed::no(Expr::ScalarFunction(call)),
    };
    Transformed::yes(Expr::ScalarFunction(call))
}

fn has_zoned(args: &[Expr], schema: &DFSchema) -> bool {
    args.iter().any(|arg| arg.get_type(schema).is_ok_and(|t| is_zoned(&t)))
}

fn is_zoned(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, zone) => zone.is_some(),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_zoned(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|f| is_zoned(f.data_type())),
        _ => false,
    }
}

/// The length of a char(n).
fn blanks_of(expr: &Expr, schema: &DFSchema) -> Option<i64> {
    match types::string_of(expr, schema)? {
        (BPCHAR, modifier) if modifier > 4 => Some(i64::from(modifier) - 4),
        _ => None,
    }
}

fn with_blanks(expr: Expr, schema: &DFSchema) -> Expr {
    match blanks_of(&expr, schema) {
        Some(length) => casts::padded().call(vec![expr, lit(length)]),
        None => expr,
    }
}

/// Two strings that are to be compared: where one is char(n) and the other varchar, or of no type yet, blanks at the
/// end do not count.
pub(crate) fn compared(left: Expr, right: Expr, schema: &DFSchema) -> (Expr, Expr) {
    match (is_bpchar(&left, schema), is_bpchar(&right, schema)) {
        (true, false) => (left, without_blanks(right, schema)),
        (false, true) => (without_blanks(left, schema), right),
        _ => (left, right),
    }
}

fn is_bpchar(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(types::string_of(expr, schema), Some((BPCHAR, _)))
}

/// The other side of a comparison with char(n), if its type gives way to that.
fn without_blanks(expr: Expr, schema: &DFSchema) -> Expr {
    match expr {
        Expr::Literal(ScalarValue::Utf8(Some(text)), metadata) => {
            Expr::Literal(ScalarValue::Utf8(Some(text.trim_end_matches(' ').into())), metadata)
        }
        Expr::Placeholder(_) => casts::trimmed().call(vec![expr]),
        expr if matches!(types::string_of(&expr, schema), Some((VARCHAR, _))) => casts::trimmed().call(vec![expr]),
        expr => expr,
    }
}

fn is_comparison(op: Operator) -> bool {
    use Operator::*;
    matches!(
        op,
        Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom
    )
}

/// The planner of operators knows `=` and its like, but not yet the types of what a union brings together.
fn of_comparison(binary: BinaryExpr, schema: &DFSchema) -> Transformed<Expr> {
    let is_changed = is_bpchar(&binary.left, schema) != is_bpchar(&binary.right, schema);
    let (left, right) = compared(*binary.left, *binary.right, schema);
    let changed = BinaryExpr::new(Box::new(left), binary.op, Box::new(right));
    Transformed::new_transformed(Expr::BinaryExpr(changed), is_changed)
}

/// `CASE x WHEN y`: each `y` is compared by itself, so `x` is written out where its blanks do not count for one.
fn of_case(mut case: Case, schema: &DFSchema) -> Transformed<Expr> {
    let Some(value) = case.expr.take() else {
        return Transformed::no(Expr::Case(case));
    };
    let differs = |when: &Expr| is_bpchar(when, schema) != is_bpchar(&value, schema);
    if !case.when_then_expr.iter().any(|(when, _)| differs(when)) || value.is_volatile() {
        case.expr = Some(value);
        return Transformed::no(Expr::Case(case));
    }
    for (when, _) in &mut case.when_then_expr {
        let (left, right) = compared((*value).clone(), (**when).clone(), schema);
        **when = left.eq(right);
    }
    Transformed::yes(Expr::Case(case))
}

/// `nullif(x, y)` is `x` with its blanks, whether or not they count in the comparison.
fn of_nullif(call: ScalarFunction, schema: &DFSchema) -> Transformed<Expr> {
    let [value, other] = call.args.as_slice() else {
        return Transformed::no(Expr::ScalarFunction(call));
    };
    if is_bpchar(value, schema) == is_bpchar(other, schema) || value.is_volatile() {
        return Transformed::no(Expr::ScalarFunction(call));
    }
    let (left, right) = compared(value.clone(), other.clone(), schema);
    let then = Box::new(lit(ScalarValue::Utf8(None)));
    let case = Case::new(
        None,
        vec![(Box::new(left.eq(right)), then)],
        Some(Box::new(value.clone())),
    );
    Transformed::yes(Expr::Case(case))
}

fn of_list(mut list: InList, schema: &DFSchema) -> Transformed<Expr> {
    if is_bpchar(&list.expr, schema) {
        list.list = list.list.into_iter().map(|item| without_blanks(item, schema)).collect();
        return Transformed::yes(Expr::InList(list));
    }
    // Several items that are no columns are an array in PostgreSQL, and of the type of the first string.
    let others = list.list.iter().filter(|item| !matches!(item, Expr::Column(_)));
    if others.count() < 2 && list.list.iter().any(|item| is_bpchar(item, schema)) {
        list.expr = Box::new(without_blanks(*list.expr, schema));
        return Transformed::yes(Expr::InList(list));
    }
    Transformed::no(Expr::InList(list))
}

fn of_subquery(mut within: InSubquery, schema: &DFSchema) -> Transformed<Expr> {
    let item = within.subquery.subquery.schema().field(0);
    let item = types::marked(item).map(|(oid, _)| oid);
    match (is_bpchar(&within.expr, schema), item) {
        (false, Some(BPCHAR)) => within.expr = Box::new(without_blanks(*within.expr, schema)),
        (true, Some(VARCHAR)) => match items_without_blanks(&within.subquery.subquery) {
            Ok(items) => within.subquery.subquery = Arc::new(items),
            Err(_) => return Transformed::no(Expr::InSubquery(within)),
        },
        _ => return Transformed::no(Expr::InSubquery(within)),
    }
    Transformed::yes(Expr::InSubquery(within))
}

fn items_without_blanks(plan: &Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let columns = plan.schema().columns().into_iter();
    let trimmed = columns.map(|c| casts::trimmed().call(vec![Expr::Column(c.clone())]).alias(c.name));
    LogicalPlanBuilder::from(plan.clone()).project(trimmed)?.build()
}
