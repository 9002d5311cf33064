//! Operators with PostgreSQL's types: which side is cast to what, and which function computes it.
//!
//! A literal without a type of its own (`'5'`, `$1`) takes the type of the other side. An integer literal is `int4` if
//! it fits. Integers meet in the wider type, integers and numerics in numeric, anything with a float in float8.

use super::arithmetic::{self, Op, as_decimal, checked, common_numeric, decimal_shape, numeric, numeric_type};
use super::casts;
use super::expressions::changed;
use super::texts::compared;
use super::times::Clock;
use super::types::{arrow_type_of_oid, builtin_by_name, timestamp, timestamptz};
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawBinaryExpr, RawWindowExpr, TypePlanner,
};
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, cast, lit};
use sqlparser::ast::{self, BinaryOperator};
use std::sync::Arc;

/// PostgreSQL's operators and aggregates for DataFusion's planner.
#[derive(Debug)]
pub(crate) struct PgPlanner {
    pub sum: Arc<AggregateUDF>,
    pub count: Arc<AggregateUDF>,
    pub clock: Clock,
}

impl ExprPlanner for PgPlanner {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let RawBinaryExpr { op, left, right } = expr;
        let settled = arithmetic_op(&op).is_some() || is_comparison(&op);
        let (left, right) = if settled {
            settle(left, right, schema, &self.clock)
        } else {
            (as_text_parameter(left), as_text_parameter(right))
        };
        let (left, right) = match is_comparison(&op) {
            true => compared(left, right, schema),
            false => (left, right),
        };
        let (Ok(l), Ok(r)) = (left.get_type(schema), right.get_type(schema)) else {
            return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }));
        };
        let sides = Sides { left, right, l, r };
        Ok(match (arithmetic_op(&op), is_comparison(&op)) {
            (Some(arithmetic), _) => sides.arithmetic(arithmetic, op),
            (_, true) => sides.at_one_moment(&self.clock).comparison(op),
            _ if op == BinaryOperator::StringConcat => sides.concatenation(),
            _ => sides.original(op),
        })
    }

    fn plan_aggregate(&self, expr: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        if expr.args.len() != 1 || !matches!(expr.func.name(), "avg" | "sum") {
            return Ok(PlannerResult::Original(expr));
        }
        let part = |func: &Arc<AggregateUDF>, args| {
            let e = expr.clone();
            Expr::AggregateFunction(AggregateFunction::new_udf(
                func.clone(),
                args,
                e.distinct,
                e.filter,
                e.order_by,
                e.null_treatment,
            ))
        };
        let sum = part(&self.sum, summands(&expr.args));
        Ok(PlannerResult::Planned(match expr.func.name() {
            "avg" => arithmetic::average().call(vec![sum, part(&self.count, expr.args.clone())]),
            _ => sum,
        }))
    }

    fn plan_window(&self, expr: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        if expr.func_def.name() == "ntile" {
            let params = WindowFunctionParams {
                args: expr.args,
                partition_by: expr.partition_by,
                order_by: expr.order_by,
                window_frame: expr.window_frame,
                filter: expr.filter,
                null_treatment: expr.null_treatment,
                distinct: expr.distinct,
            };
            let fun = expr.func_def;
            let number = Expr::WindowFunction(Box::new(WindowFunction { fun, params }));
            return Ok(PlannerResult::Planned(cast(number, DataType::Int32)));
        }
        if expr.args.len() != 1 || !matches!(expr.func_def.name(), "avg" | "sum") {
            return Ok(PlannerResult::Original(expr));
        }
        let part = |func: &Arc<AggregateUDF>, args| {
            let e = expr.clone();
            let params = WindowFunctionParams {
                args,
                partition_by: e.partition_by,
                order_by: e.order_by,
                window_frame: e.window_frame,
                filter: e.filter,
                null_treatment: e.null_treatment,
                distinct: e.distinct,
            };
            Expr::WindowFunction(Box::new(WindowFunction {
                fun: WindowFunctionDefinition::AggregateUDF(func.clone()),
                params,
            }))
        };
        let sum = part(&self.sum, summands(&expr.args));
        Ok(PlannerResult::Planned(match expr.func_def.name() {
            "avg" => arithmetic::average().call(vec![sum, part(&self.count, expr.args.clone())]),
            _ => sum,
        }))
    }
}

fn summands(args: &[Expr]) -> Vec<Expr> {
    args.iter()
        .map(|arg| arithmetic::summand().call(vec![arg.clone()]))
        .collect()
}

fn arithmetic_op(op: &BinaryOperator) -> Option<Op> {
    Some(match op {
        BinaryOperator::Plus => Op::Add,
        BinaryOperator::Minus => Op::Subtract,
        BinaryOperator::Multiply => Op::Multiply,
        BinaryOperator::Divide => Op::Divide,
        BinaryOperator::Modulo => Op::Modulo,
        _ => return None,
    })
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator::*;
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

/// Types literals and parameters by the other side.
fn settle(left: Expr, right: Expr, schema: &DFSchema, clock: &Clock) -> (Expr, Expr) {
    let (left, right) = (narrowed(left), narrowed(right));
    let (l, r) = (left.get_type(schema).ok(), right.get_type(schema).ok());
    let left = match &r {
        Some(r) => typed_as(moment(left, r, clock), r),
        None => left,
    };
    let right = match &l {
        Some(l) => typed_as(moment(right, l, clock), l),
        None => right,
    };
    (left, right)
}

/// Beside an operator of strings a parameter without type is text.
fn as_text_parameter(expr: Expr) -> Expr {
    typed_as(expr, &DataType::Utf8)
}

/// An integer literal in PostgreSQL's type for it.
fn narrowed(expr: Expr) -> Expr {
    match &expr {
        Expr::Literal(ScalarValue::Int64(Some(value)), None) => i32::try_from(*value).map_or(expr, lit),
        Expr::Literal(ScalarValue::UInt64(Some(value)), None) => {
            lit(ScalarValue::Decimal128(Some(i128::from(*value)), 20, 0))
        }
        _ => expr,
    }
}

/// A string literal beside a date or time is read in the session's time zone.
fn moment(expr: Expr, other: &DataType, clock: &Clock) -> Expr {
    match (&expr, other) {
        (Expr::Literal(ScalarValue::Utf8(Some(_)), _), DataType::Date32 | DataType::Timestamp(..)) => {
            clock.cast_to("cenote_moment", other.clone()).call(vec![expr])
        }
        _ => expr,
    }
}

/// A parameter without type, or a string literal beside something that is no string, takes `other`'s type.
fn typed_as(expr: Expr, other: &DataType) -> Expr {
    match expr {
        Expr::Placeholder(mut placeholder) if placeholder.field.is_none() && !other.is_null() => {
            let settled = if decimal_shape(other).is_some() && other.is_decimal() {
                super::types::numeric_any()
            } else {
                other.clone()
            };
            placeholder.field = Some(Arc::new(Field::new(placeholder.id.clone(), settled, true)));
            Expr::Placeholder(placeholder)
        }
        Expr::Literal(ScalarValue::Utf8(Some(text)), metadata) => match other {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null | DataType::Interval(_) => {
                Expr::Literal(ScalarValue::Utf8(Some(text)), metadata)
            }
            DataType::List(item) => list_literal(&text, item),
            DataType::Int16 | DataType::Int32 | DataType::Int64 => integer_literal(text, other),
            DataType::Decimal128(..) | DataType::Decimal256(..) => casts::to_numeric().call(vec![lit(text)]),
            DataType::Boolean => boolean_literal(text),
            _ => cast(lit(text), other.clone()),
        },
        other_expr => other_expr,
    }
}

/// The plan in which string literals of a list beside a boolean are booleans: DataFusion asks no planner about lists.
///
/// # Errors
/// None: the types fit.
pub(crate) fn with_boolean_lists(plan: LogicalPlan) -> Result<LogicalPlan> {
    changed(plan, |expr, schema| match expr {
        Expr::InList(mut within) if within.expr.get_type(schema).is_ok_and(|t| t == DataType::Boolean) => {
            let items = std::mem::take(&mut within.list).into_iter();
            within.list = items.map(|item| typed_as(item, &DataType::Boolean)).collect();
            Transformed::yes(Expr::InList(within))
        }
        other => Transformed::no(other),
    })
}

fn integer_literal(text: String, data_type: &DataType) -> Expr {
    casts::to_integer("cenote_integer", data_type.clone()).call(vec![lit(text)])
}

fn boolean_literal(text: String) -> Expr {
    match text.trim().to_lowercase().as_str() {
        "t" | "true" | "yes" | "y" | "on" | "1" => lit(true),
        "f" | "false" | "no" | "n" | "off" | "0" => lit(false),
        _ => cast(lit(text), DataType::Boolean),
    }
}

fn list_literal(text: &str, item: &FieldRef) -> Expr {
    let Some(inner) = text.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}')) else {
        return lit(text);
    };
    let items: Vec<ScalarValue> = inner
        .split(',')
        .filter(|t| !t.trim().is_empty())
        .filter_map(|t| ScalarValue::try_from_string(t.trim().to_string(), item.data_type()).ok())
        .collect();
    Expr::Literal(
        ScalarValue::List(ScalarValue::new_list(&items, item.data_type(), true)),
        None,
    )
}

fn is_integer(t: &DataType) -> bool {
    t.is_integer()
}

fn width(t: &DataType) -> u8 {
    match t {
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => 2,
        DataType::UInt16 | DataType::Int32 => 4,
        _ => 8,
    }
}

fn integer_of(width: u8) -> DataType {
    match width {
        2 => DataType::Int16,
        4 => DataType::Int32,
        _ => DataType::Int64,
    }
}

fn to(expr: Expr, from: &DataType, target: &DataType) -> Expr {
    match expr {
        _ if from == target => expr,
        Expr::Literal(value, None) if !value.is_null() => match value.cast_to(target) {
            Ok(value) => Expr::Literal(value, None),
            Err(_) => cast(Expr::Literal(value, None), target.clone()),
        },
        expr => cast(expr, target.clone()),
    }
}

struct Sides {
    left: Expr,
    right: Expr,
    l: DataType,
    r: DataType,
}

impl Sides {
    fn original(self, op: BinaryOperator) -> PlannerResult<RawBinaryExpr> {
        PlannerResult::Original(RawBinaryExpr {
            op,
            left: self.left,
            right: self.right,
        })
    }

    fn both(self, data_type: &DataType) -> Vec<Expr> {
        vec![to(self.left, &self.l, data_type), to(self.right, &self.r, data_type)]
    }

    fn arithmetic(mut self, op: Op, sql: BinaryOperator) -> PlannerResult<RawBinaryExpr> {
        if self.l.is_null() && !self.r.is_null() && self.r.is_numeric() {
            self.l = self.r.clone();
            self.left = cast(self.left, self.r.clone());
        } else if self.r.is_null() && !self.l.is_null() && self.l.is_numeric() {
            self.r = self.l.clone();
            self.right = cast(self.right, self.l.clone());
        }
        if is_integer(&self.l) && is_integer(&self.r) {
            let data_type = integer_of(width(&self.l).max(width(&self.r)));
            return PlannerResult::Planned(checked(op, data_type.clone()).call(self.both(&data_type)));
        }
        if self.l.is_numeric() && self.r.is_numeric() {
            if self.l.is_floating() || self.r.is_floating() {
                let single = self.l == DataType::Float32 && self.r == DataType::Float32;
                let data_type = if single { DataType::Float32 } else { DataType::Float64 };
                return PlannerResult::Planned(checked(op, data_type.clone()).call(self.both(&data_type)));
            }
            return PlannerResult::Planned(self.numerics(op));
        }
        self.dates(op, sql)
    }

    fn numerics(self, op: Op) -> Expr {
        let returns = numeric_type(op, &self.l, &self.r);
        let (l, r) = (as_decimal(&self.l), as_decimal(&self.r));
        numeric(op, returns).call(vec![to(self.left, &self.l, &l), to(self.right, &self.r, &r)])
    }

    /// date ± integer is a date, date - date an integer, date ± interval a timestamp.
    fn dates(self, op: Op, sql: BinaryOperator) -> PlannerResult<RawBinaryExpr> {
        let days = |expr, from: &DataType| {
            if *from == DataType::Date32 {
                cast(expr, DataType::Int32)
            } else {
                to(expr, from, &DataType::Int32)
            }
        };
        let date_and_integer = (self.l == DataType::Date32 && is_integer(&self.r))
            || (is_integer(&self.l) && self.r == DataType::Date32 && op == Op::Add);
        let dates = self.l == DataType::Date32 && self.r == DataType::Date32 && op == Op::Subtract;
        if matches!(op, Op::Add | Op::Subtract) && (date_and_integer || dates) {
            let sum = checked(op, DataType::Int32).call(vec![days(self.left, &self.l), days(self.right, &self.r)]);
            return PlannerResult::Planned(if dates { sum } else { cast(sum, DataType::Date32) });
        }
        match (&self.l, &self.r) {
            (DataType::Date32, DataType::Interval(_)) => PlannerResult::Original(RawBinaryExpr {
                op: sql,
                left: to(self.left, &self.l, &timestamp()),
                right: self.right,
            }),
            (DataType::Interval(_), DataType::Date32) => PlannerResult::Original(RawBinaryExpr {
                op: sql,
                left: self.left,
                right: to(self.right, &self.r, &timestamp()),
            }),
            _ => self.original(sql),
        }
    }

    /// A date beside a timestamp becomes one in microseconds: DataFusion would compare nanoseconds, which begin in
    /// 1677.
    fn at_one_moment(mut self, clock: &Clock) -> Sides {
        let moment = |other: &DataType| match other {
            DataType::Timestamp(_, Some(_)) => Some(("cenote_timestamptz", timestamptz())),
            DataType::Timestamp(_, None) => Some(("cenote_timestamp", timestamp())),
            _ => None,
        };
        if let (DataType::Date32, Some((name, to))) = (&self.l, moment(&self.r)) {
            self.left = clock.cast_to(name, to.clone()).call(vec![self.left]);
            self.l = to;
        } else if let (Some((name, to)), DataType::Date32) = (moment(&self.l), &self.r) {
            self.right = clock.cast_to(name, to.clone()).call(vec![self.right]);
            self.r = to;
        }
        self
    }

    fn comparison(self, op: BinaryOperator) -> PlannerResult<RawBinaryExpr> {
        let numeric = |t: &DataType| t.is_decimal();
        let data_type = if (numeric(&self.l) && self.r.is_floating()) || (numeric(&self.r) && self.l.is_floating()) {
            DataType::Float64
        } else if (numeric(&self.l) && self.r.is_numeric()) || (numeric(&self.r) && self.l.is_numeric()) {
            if self.l == self.r {
                self.l.clone()
            } else {
                common_numeric(&self.l, &self.r)
            }
        } else if is_integer(&self.l) && is_integer(&self.r) && self.l != self.r {
            self.integers_compared()
        } else {
            return self.original(op);
        };
        let mut sides = self.both(&data_type).into_iter();
        match (sides.next(), sides.next()) {
            (Some(left), Some(right)) => PlannerResult::Original(RawBinaryExpr { op, left, right }),
            _ => PlannerResult::Planned(lit(ScalarValue::Boolean(None))),
        }
    }

    /// A literal is brought to the other side's type where it fits: so conditions on keys stay on the plain column.
    fn integers_compared(&self) -> DataType {
        let fits = |expr: &Expr, t: &DataType| match expr {
            Expr::Literal(value, None) => value.cast_to(t).is_ok_and(|v| !v.is_null()),
            _ => false,
        };
        if fits(&self.right, &self.l) {
            self.l.clone()
        } else if fits(&self.left, &self.r) {
            self.r.clone()
        } else {
            integer_of(width(&self.l).max(width(&self.r)))
        }
    }

    fn concatenation(self) -> PlannerResult<RawBinaryExpr> {
        let list = |t: &DataType| {
            matches!(
                t,
                DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
            )
        };
        let text = |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        if list(&self.l) || list(&self.r) {
            return self.original(BinaryOperator::StringConcat);
        }
        let as_text = |expr, from: &DataType| {
            if text(from) {
                expr
            } else {
                casts::to_text("cenote_text").call(vec![expr])
            }
        };
        let (left, right) = (as_text(self.left, &self.l), as_text(self.right, &self.r));
        PlannerResult::Original(RawBinaryExpr {
            op: BinaryOperator::StringConcat,
            left,
            right,
        })
    }
}

/// PostgreSQL's type names for DataFusion's planner.
#[derive(Debug)]
pub(crate) struct PgTypes;

impl TypePlanner for PgTypes {
    fn plan_type_field(&self, sql: &ast::DataType) -> Result<Option<FieldRef>> {
        let data_type = match sql {
            ast::DataType::Timestamp(_, zone) => match zone {
                ast::TimezoneInfo::Tz | ast::TimezoneInfo::WithTimeZone => timestamptz(),
                _ => timestamp(),
            },
            ast::DataType::Time(..) => DataType::Time64(TimeUnit::Microsecond),
            ast::DataType::Float(info) => match info {
                ast::ExactNumberInfo::Precision(p) if *p <= 24 => DataType::Float32,
                _ => DataType::Float64,
            },
            ast::DataType::Numeric(info) | ast::DataType::Decimal(info) | ast::DataType::Dec(info) => match info {
                ast::ExactNumberInfo::None => super::types::numeric_any(),
                ast::ExactNumberInfo::Precision(p) => super::types::decimal(*p as u16, 0),
                ast::ExactNumberInfo::PrecisionAndScale(p, s) => super::types::decimal(*p as u16, *s as i16),
            },
            ast::DataType::Uuid | ast::DataType::JSON | ast::DataType::JSONB => DataType::Utf8,
            ast::DataType::Regclass => DataType::UInt32,
            ast::DataType::Custom(name, _) => {
                let name = name
                    .0
                    .last()
                    .and_then(|p| p.as_ident())
                    .map(|i| i.value.clone())
                    .unwrap_or_default();
                match builtin_by_name(&name).and_then(|t| arrow_type_of_oid(t.oid)) {
                    Some(data_type) => data_type,
                    None => {
                        return Err(super::error::inward(crate::error::SqlError::new(
                            crate::error::code::UNDEFINED_OBJECT,
                            format!("type \"{name}\" does not exist"),
                        )));
                    }
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", data_type, true))))
    }
}
