//! PostgreSQL's syntax in words that DataFusion's planner knows.
//!
//! Works on the parsed query, before planning. What it does, in the order in which a reader meets it below: names of
//! result columns as PostgreSQL gives them (with a marker where two would be equal), integer literals typed `int4`
//! where their type decides a result's type, casts whose meaning differs, operators and functions written with a
//! schema, `ARRAY(SELECT …)`, `BETWEEN` as two comparisons, and row sources with their PostgreSQL column names.
//!
//! Invariant: a name made unique carries [`MARK`]; [`shown_name`] cuts there before a name is shown.

mod build;
mod dependent;
mod functions_in_from;
mod joins;
mod names;
mod ordering;
mod parameters;
mod positions;
mod quantified;
mod recursive;
mod row_in;
mod rows;
mod scopes;
mod windows;

pub(crate) use build::shown_name;
pub(crate) use dependent::RelationNames;
pub(crate) use parameters::{cast_parameters, expand_any, placeholders};
pub(crate) use scopes::resolve_names;
pub(crate) use windows::expand_windows;

use build::{call, cast, empty_query, is_small, nothing, take, type_literal};
use names::{ColumnNames, folded, inline_laterals};
use sqlparser::ast::*;
use std::ops::ControlFlow;

/// Rewrites `query` in place.
pub(crate) fn rewrite(query: &mut Query) {
    if asks_for_publications(query) {
        *query.body = SetExpr::Select(Box::new(nothing(&["pubname", "?column?", "?column?"])));
        query.order_by = None;
    }
    let _ = VisitMut::visit(query, &mut Rewriter::default());
}

/// psql's `\d` asks which publications a table is in, by way of array functions in FROM that refer to other tables
/// there. There are no publications.
fn asks_for_publications(query: &Query) -> bool {
    let mut found = false;
    let _ = visit_relations(query, |name| {
        found |= name
            .0
            .last()
            .and_then(|p| p.as_ident())
            .is_some_and(|i| i.value == "pg_publication_rel");
        ControlFlow::<()>::Continue(())
    });
    found && matches!(*query.body, SetExpr::SetOperation { .. })
}

/// `HH:MM:SS` inside an interval, in words that DataFusion's parser knows.
fn plain_interval(text: &str) -> String {
    let word = |word: &str| {
        let (sign, digits) = word.strip_prefix('-').map_or(("", word), |d| ("-", d));
        let parts: Vec<&str> = digits.split(':').collect();
        match parts.as_slice() {
            [h, m] => format!("{sign}{h} hours {sign}{m} minutes"),
            [h, m, s] => format!("{sign}{h} hours {sign}{m} minutes {sign}{s} seconds"),
            _ => word.to_string(),
        }
    };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[derive(Default)]
struct Rewriter {
    names: ColumnNames,
}

impl VisitorMut for Rewriter {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        query.locks.clear();
        if let Some(fetch) = query.fetch.take() {
            let offset = match query.limit_clause.take() {
                Some(LimitClause::LimitOffset { offset, .. }) => offset,
                _ => None,
            };
            let limit = Some(fetch.quantity.unwrap_or_else(|| number("1")));
            query.limit_clause = Some(LimitClause::LimitOffset {
                limit,
                offset,
                limit_by: Vec::new(),
            });
        }
        if let SetExpr::Values(values) = &mut *query.body {
            values
                .rows
                .iter_mut()
                .flat_map(|row| row.content.iter_mut())
                .for_each(type_literal);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        inline_laterals(select);
        self.names.give(select);
        let conditions = select.selection.iter_mut().chain(&mut select.having);
        conditions.for_each(row_in::rewrite_conditions);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        functions_in_from::rewrite(factor);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        row_in::rewrite_row_in(expr);
        quantified::rewrite_quantified(expr);
        rows::rewrite_rows(expr);
        if let Expr::Value(value) = expr {
            plain_number(value);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        rewrite_expr(expr);
        ControlFlow::Continue(())
    }
}

/// Writes `1.5e3` as `1500`: it is a numeric, and DataFusion's parser of numerics wants plain digits. Far exponents
/// become text, which the operator or cast around it reads.
fn plain_number(value: &mut ValueWithSpan) {
    let Value::Number(digits, _) = &value.value else { return };
    let lower = digits.to_ascii_lowercase();
    let Some((mantissa, exponent)) = lower.split_once('e') else {
        return;
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    value.value = match exponent.parse::<i32>() {
        Ok(e) if e.abs() <= 30 => {
            let all = format!("{whole}{fraction}");
            let point = whole.len() as i32 + e;
            let text = if point <= 0 {
                format!("0.{}{all}", "0".repeat(point.unsigned_abs() as usize))
            } else if (point as usize) < all.len() {
                format!("{}.{}", &all[..point as usize], &all[point as usize..])
            } else {
                format!("{all}{}", "0".repeat(point as usize - all.len()))
            };
            Value::Number(text, false)
        }
        _ => Value::SingleQuotedString(lower.clone()),
    };
}

fn number(text: &str) -> Expr {
    Expr::value(Value::Number(text.to_string(), false))
}

fn rewrite_expr(expr: &mut Expr) {
    match expr {
        Expr::Collate { expr: inner, .. } => *expr = take(inner),
        Expr::BinaryOp { .. } => rewrite_operator(expr),
        Expr::UnaryOp { .. } => rewrite_unary(expr),
        Expr::Between { .. } => rewrite_between(expr),
        Expr::Cast { .. } | Expr::TypedString(_) => rewrite_cast(expr),
        Expr::Case {
            conditions,
            else_result,
            ..
        } => {
            conditions.iter_mut().for_each(|c| type_literal(&mut c.result));
            else_result.iter_mut().for_each(|e| type_literal(e));
        }
        Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } => array_literal(right),
        Expr::Array(array) if !array.elem.is_empty() => {
            // DataFusion plans the elements of a literal without the names of the queries around it.
            let mut elements = std::mem::take(&mut array.elem);
            elements.iter_mut().for_each(type_literal);
            *expr = call("make_array", elements);
        }
        Expr::Like {
            pattern, escape_char, ..
        }
        | Expr::ILike {
            pattern, escape_char, ..
        } => escape_by_backslash(pattern, escape_char),
        Expr::Function(_) => rewrite_function(expr),
        Expr::Interval(interval) => {
            if let Expr::Value(ValueWithSpan {
                value: Value::SingleQuotedString(text),
                ..
            }) = &mut *interval.value
            {
                *text = plain_interval(text);
            }
        }
        Expr::AtTimeZone { timestamp, time_zone } => *expr = call("timezone", vec![take(time_zone), take(timestamp)]),
        Expr::Extract { field, expr: of, .. } => {
            *expr = call(
                "date_part",
                vec![
                    Expr::value(Value::SingleQuotedString(field.to_string().to_lowercase())),
                    match field {
                        DateTimeField::Epoch => take(of),
                        _ => call("cenote_local", vec![take(of)]),
                    },
                ],
            );
        }
        _ => {}
    }
}

/// Patterns with an escape character of their own are brought to the backslash, the only one that DataFusion knows.
fn escape_by_backslash(pattern: &mut Expr, escape: &mut Option<ValueWithSpan>) {
    if let Some(ValueWithSpan {
        value: Value::SingleQuotedString(own),
        ..
    }) = escape.take()
        && own != "\\"
    {
        *pattern = call(
            "cenote_like_pattern",
            vec![take(pattern), Expr::value(Value::SingleQuotedString(own))],
        );
    }
}

fn rewrite_operator(expr: &mut Expr) {
    let Expr::BinaryOp { op, left, right } = expr else {
        return;
    };
    if let BinaryOperator::PGCustomBinaryOperator(path) = op {
        *op = match path.last().map(String::as_str) {
            Some("~") => BinaryOperator::PGRegexMatch,
            Some("~*") => BinaryOperator::PGRegexIMatch,
            Some("!~") => BinaryOperator::PGRegexNotMatch,
            Some("!~*") => BinaryOperator::PGRegexNotIMatch,
            Some("~~") => BinaryOperator::PGLikeMatch,
            Some("!~~") => BinaryOperator::PGNotLikeMatch,
            Some("=") => BinaryOperator::Eq,
            Some("<>" | "!=") => BinaryOperator::NotEq,
            Some("<") => BinaryOperator::Lt,
            Some("<=") => BinaryOperator::LtEq,
            Some(">") => BinaryOperator::Gt,
            Some(">=") => BinaryOperator::GtEq,
            Some("+") => BinaryOperator::Plus,
            Some("-") => BinaryOperator::Minus,
            Some("*") => BinaryOperator::Multiply,
            Some("/") => BinaryOperator::Divide,
            Some("||") => BinaryOperator::StringConcat,
            _ => return,
        };
    }
    if *op == BinaryOperator::PGExp {
        *expr = call("power", vec![take(left), take(right)]);
    }
}

fn rewrite_unary(expr: &mut Expr) {
    let Expr::UnaryOp { op, expr: inner } = expr else {
        return;
    };
    match op {
        UnaryOperator::Minus if !matches!(&**inner, Expr::Value(_) | Expr::Interval(_)) => {
            *expr = call("cenote_negate", vec![take(inner)])
        }
        UnaryOperator::Plus => *expr = take(inner),
        UnaryOperator::BitwiseNot => {
            *expr = Expr::BinaryOp {
                left: Box::new(take(inner)),
                op: BinaryOperator::PGBitwiseXor,
                right: Box::new(number("-1")),
            }
        }
        UnaryOperator::PGAbs => *expr = call("abs", vec![take(inner)]),
        UnaryOperator::PGSquareRoot => *expr = call("sqrt", vec![take(inner)]),
        _ => {}
    }
}

fn rewrite_between(expr: &mut Expr) {
    let Expr::Between {
        expr: of,
        negated,
        low,
        high,
    } = expr
    else {
        return;
    };
    let compare = |left: Expr, op, right| Expr::BinaryOp {
        left: Box::new(left),
        op,
        right,
    };
    let below = std::mem::replace(high, Box::new(Expr::value(Value::Null)));
    let above = std::mem::replace(low, Box::new(Expr::value(Value::Null)));
    let both = match negated {
        false => (
            compare((**of).clone(), BinaryOperator::GtEq, above),
            BinaryOperator::And,
            compare(take(of), BinaryOperator::LtEq, below),
        ),
        true => (
            compare((**of).clone(), BinaryOperator::Lt, above),
            BinaryOperator::Or,
            compare(take(of), BinaryOperator::Gt, below),
        ),
    };
    *expr = Expr::Nested(Box::new(compare(both.0, both.1, Box::new(both.2))));
}

/// Casts that DataFusion would do otherwise (it truncates to integers, ignores lengths) or does not know (`regclass`).
fn rewrite_cast(expr: &mut Expr) {
    let (inner, data_type) = match expr {
        Expr::Cast { expr, data_type, .. } => (take(expr), data_type.clone()),
        Expr::TypedString(typed) => (Expr::Value(typed.value.clone()), typed.data_type.clone()),
        _ => return,
    };
    let length = |n: &Option<CharacterLength>| match n {
        Some(CharacterLength::IntegerLength { length, .. }) => Some(length.to_string()),
        _ => None,
    };
    let literal = matches!(&inner, Expr::Value(v) if is_small(&v.value));
    *expr = match &data_type {
        DataType::Int2(_) | DataType::SmallInt(_) if !literal => call("cenote_int2", vec![inner]),
        DataType::Int4(_) | DataType::Int(_) | DataType::Integer(_) if !literal => call("cenote_int4", vec![inner]),
        DataType::Int8(_) | DataType::BigInt(_) if !literal => call("cenote_int8", vec![inner]),
        DataType::Numeric(ExactNumberInfo::None) | DataType::Decimal(ExactNumberInfo::None) => {
            call("cenote_numeric", vec![inner])
        }
        DataType::Text => call("cenote_text", vec![inner]),
        DataType::Date => call("cenote_date", vec![inner]),
        DataType::Timestamp(None, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            call("cenote_timestamp", vec![inner])
        }
        DataType::Timestamp(None, TimezoneInfo::Tz | TimezoneInfo::WithTimeZone) => {
            call("cenote_timestamptz", vec![inner])
        }
        DataType::Varchar(n) | DataType::CharacterVarying(n) | DataType::CharVarying(n) => match length(n) {
            Some(n) => call("cenote_varchar", vec![inner, number(&n)]),
            None => call("cenote_varchar", vec![inner]),
        },
        DataType::Char(n) | DataType::Character(n) => {
            let n = length(n).unwrap_or_else(|| "1".into());
            call("cenote_bpchar", vec![inner, number(&n)])
        }
        DataType::Regclass => call("cenote_regclass", vec![inner]),
        DataType::Array(_) => match array_items(&inner) {
            Some(items) if !items.is_empty() => array_of(items, element_type(&data_type)),
            _ => cast(inner, data_type),
        },
        DataType::Custom(name, modifiers) => custom_cast(inner, name, modifiers, data_type.clone()),
        _ => cast(inner, data_type),
    };
}

fn custom_cast(inner: Expr, name: &ObjectName, modifiers: &[String], data_type: DataType) -> Expr {
    let last = name.0.last().and_then(|p| p.as_ident()).map(folded).unwrap_or_default();
    match last.as_str() {
        "regclass" => call("cenote_regclass", vec![inner]),
        "regtype" => call("cenote_regtype", vec![inner]),
        "regnamespace" => call("cenote_regnamespace", vec![inner]),
        "regproc" | "regprocedure" | "regrole" => call("cenote_text", vec![inner]),
        "bpchar" if modifiers.is_empty() => call("cenote_bpchar", vec![inner]),
        "bpchar" => call("cenote_bpchar", vec![inner, number(&modifiers[0])]),
        "varchar" if modifiers.is_empty() => call("cenote_varchar", vec![inner]),
        "text" | "name" | "char" if modifiers.is_empty() => call("cenote_text", vec![inner]),
        "int2" => call("cenote_int2", vec![inner]),
        "int4" => call("cenote_int4", vec![inner]),
        "int8" => call("cenote_int8", vec![inner]),
        "numeric" if modifiers.is_empty() => call("cenote_numeric", vec![inner]),
        _ => cast(inner, data_type),
    }
}

fn element_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Array(ArrayElemTypeDef::SquareBracket(item, _) | ArrayElemTypeDef::AngleBracket(item)) => {
            Some((**item).clone())
        }
        _ => None,
    }
}

/// The items of `'{a,b}'`, unless it is no such literal.
fn array_items(expr: &Expr) -> Option<Vec<String>> {
    let Expr::Value(ValueWithSpan {
        value: Value::SingleQuotedString(text),
        ..
    }) = expr
    else {
        return None;
    };
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    Some(
        inner
            .split(',')
            .map(|item| item.trim().trim_matches('"').to_string())
            .filter(|item| !item.is_empty())
            .collect(),
    )
}

fn array_of(items: Vec<String>, element: Option<DataType>) -> Expr {
    let item = |text: String| {
        let literal = Expr::value(Value::SingleQuotedString(text));
        element
            .clone()
            .map_or(literal.clone(), |data_type| cast(literal, data_type))
    };
    Expr::Array(Array {
        elem: items.into_iter().map(item).collect(),
        named: true,
    })
}

fn array_literal(expr: &mut Expr) {
    let of = match &*expr {
        Expr::Nested(inner) => &**inner,
        other => other,
    };
    let items = array_items(of);
    if let Some(items) = items {
        *expr = array_of(items, None);
    }
}

/// Drops a leading `pg_catalog.` or `information_schema.`.
fn unqualify(name: &mut ObjectName) {
    let schema = name.0.first().and_then(|p| p.as_ident()).map(folded);
    if name.0.len() == 2 && matches!(schema.as_deref(), Some("pg_catalog" | "information_schema" | "public")) {
        name.0.remove(0);
    }
}

/// An instant's parts are those of its local time.
fn local_argument(function: &mut Function, position: usize) {
    if let FunctionArguments::List(list) = &mut function.args
        && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))) = list.args.get_mut(position)
    {
        *arg = call("cenote_local", vec![take(arg)]);
    }
}

fn rewrite_function(expr: &mut Expr) {
    let Expr::Function(function) = expr else { return };
    unqualify(&mut function.name);
    let name = function
        .name
        .0
        .last()
        .and_then(|p| p.as_ident())
        .map(folded)
        .unwrap_or_default();
    if let FunctionArguments::Subquery(query) = &mut function.args {
        if name == "array" {
            let query = std::mem::replace(query, empty_query());
            *expr = array_subquery(query);
        }
        return;
    }
    let plain = match name.as_str() {
        "coalesce" | "greatest" | "least" | "nullif" | "sum" | "avg" | "min" | "max" | "array_agg" => true,
        "mod" => {
            if let [left, right] = arguments_of(function).as_mut_slice() {
                *expr = Expr::Nested(Box::new(Expr::BinaryOp {
                    left: Box::new(take(left)),
                    op: BinaryOperator::Modulo,
                    right: Box::new(take(right)),
                }));
            }
            return;
        }
        "every" => return rename(function, "bool_and"),
        "variance" => return rename(function, "var_samp"),
        "to_char" => return local_argument(function, 0),
        "date_part" if !function.to_string().to_lowercase().contains("'epoch'") => return local_argument(function, 1),
        "generate_subscripts" => {
            rename(function, "cenote_subscripts");
            *expr = call("unnest", vec![take(expr)]);
            return;
        }
        "char_length" | "character_length" => return rename(function, "length"),
        "generate_series" if function.over.is_none() => {
            *expr = call("unnest", vec![take(expr)]);
            return;
        }
        "transaction_timestamp" | "statement_timestamp" | "clock_timestamp" | "current_timestamp" => {
            return rename(function, "now");
        }
        _ => false,
    };
    if let (true, FunctionArguments::List(list)) = (plain, &mut function.args) {
        for arg in &mut list.args {
            if let FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) = arg {
                type_literal(arg);
            }
        }
    }
}

/// The arguments of a call that has plain ones alone.
fn arguments_of(function: &Function) -> Vec<Expr> {
    let FunctionArguments::List(list) = &function.args else {
        return Vec::new();
    };
    let plain = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) => Some(arg.clone()),
        _ => None,
    };
    list.args.iter().map(plain).collect::<Option<_>>().unwrap_or_default()
}

fn rename(function: &mut Function, name: &str) {
    function.name = ObjectName::from(vec![Ident::new(name)]);
    if matches!(function.args, FunctionArguments::None) {
        function.args = FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: Vec::new(),
            clauses: Vec::new(),
        });
    }
}

/// `ARRAY(SELECT x …)`: the subquery's rows in its order, an empty array where there are none.
fn array_subquery(mut query: Box<Query>) -> Expr {
    if query.to_string().to_lowercase().contains("unnest(tc.reloptions)") {
        // psql's `\d+` unfolds the storage options of another table's TOAST table: there is none.
        return cast(
            Expr::value(Value::Null),
            DataType::Array(ArrayElemTypeDef::SquareBracket(Box::new(DataType::Text), None)),
        );
    }
    let mut order = query.order_by.take();
    let SetExpr::Select(select) = &mut *query.body else {
        return call("cenote_some_array", vec![Expr::Subquery(query)]);
    };
    let item = match select.projection.first() {
        Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => expr.clone(),
        _ => return call("cenote_some_array", vec![Expr::Subquery(query)]),
    };
    let mut aggregate = call("array_agg", vec![item.clone()]);
    if let (
        Expr::Function(Function {
            args: FunctionArguments::List(list),
            ..
        }),
        Some(OrderBy {
            kind: OrderByKind::Expressions(by),
            ..
        }),
    ) = (&mut aggregate, &mut order)
    {
        for one in by
            .iter_mut()
            .filter(|o| matches!(&o.expr, Expr::Value(v) if is_small(&v.value)))
        {
            one.expr = item.clone();
        }
        list.clauses.push(FunctionArgumentClause::OrderBy(by.clone()));
    }
    select.projection = vec![SelectItem::ExprWithAlias {
        expr: aggregate,
        alias: Ident::new("array"),
    }];
    call("cenote_some_array", vec![Expr::Subquery(query)])
}
