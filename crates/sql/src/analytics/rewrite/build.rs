//! Parts that rewritten queries are built of.

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::*;

/// Ends the shown part of a column name; what follows makes it unique.
pub(super) const MARK: char = '\u{1}';

/// The part of a column name that users see.
pub(crate) fn shown_name(name: &str) -> &str {
    name.split(MARK).next().unwrap_or(name)
}

/// `SELECT NULL::text AS … WHERE false`.
pub(super) fn nothing(names: &[&str]) -> Select {
    let column = |name: &&str| SelectItem::ExprWithAlias {
        expr: cast(Expr::value(Value::Null), DataType::Text),
        alias: Ident::with_quote('"', *name),
    };
    Select {
        select_token: AttachedToken::empty(),
        optimizer_hints: Vec::new(),
        distinct: None,
        select_modifiers: None,
        top: None,
        top_before_distinct: false,
        projection: names.iter().map(column).collect(),
        exclude: None,
        into: None,
        from: Vec::new(),
        lateral_views: Vec::new(),
        prewhere: None,
        selection: Some(Expr::value(Value::Boolean(false))),
        connect_by: Vec::new(),
        group_by: GroupByExpr::Expressions(Vec::new(), Vec::new()),
        cluster_by: Vec::new(),
        distribute_by: Vec::new(),
        sort_by: Vec::new(),
        having: None,
        named_window: Vec::new(),
        qualify: None,
        window_before_qualify: false,
        value_table_mode: None,
        flavor: SelectFlavor::Standard,
    }
}

pub(super) fn empty_query() -> Box<Query> {
    Box::new(Query {
        with: None,
        body: Box::new(SetExpr::Values(Values {
            explicit_row: false,
            value_keyword: false,
            rows: Vec::new(),
        })),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    })
}

/// Where an integer literal alone decides a type, PostgreSQL's is `int4` if it fits.
pub(super) fn type_literal(expr: &mut Expr) {
    let small = match &*expr {
        Expr::Value(value) => is_small(&value.value),
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } => matches!(&**expr, Expr::Value(v) if is_small(&v.value)),
        _ => false,
    };
    if small {
        *expr = cast(expr.clone(), DataType::Int4(None));
    }
}

pub(super) fn is_small(value: &Value) -> bool {
    matches!(value, Value::Number(digits, _) if digits.parse::<i32>().is_ok())
}

pub(super) fn cast(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(expr),
        data_type,
        array: false,
        format: None,
    }
}

/// A call of one of our functions.
pub(crate) fn call(name: &str, args: Vec<Expr>) -> Expr {
    let args = args
        .into_iter()
        .map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e)))
        .collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

pub(super) fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, Expr::value(Value::Null))
}
