//! From the parsed expression to the bound one: names to positions, types settled as PostgreSQL settles them.
//!
//! An untyped literal or parameter takes the type that its surroundings ask for, and text where they ask for nothing. What the short
//! path does not know is a [`Refusal::Shape`]: another planner may know it, and its error is what to say if there is none.

use super::aggregate::{Aggregate, Kind};
use super::functions::{self, Call, Function, Signature};
use super::names::{Places, fold};
use super::type_names::type_named;
use super::{Arithmetic, Comparison, Env, Expr, Input, Number};
use crate::error::{SqlError, code};
use crate::exec::env::SessionEnv;
use crate::types::cast::{Context, castable};
use crate::types::{base_type, is_integer, is_number, is_string, same_base};
use cenote_engine::{ColumnType, Datum, Numeric, Table};
use sqlparser::ast::{
    self, BinaryOperator, CaseWhen, DataType, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Spanned,
    UnaryOperator, Value as Literal,
};
use std::cell::RefCell;
use std::sync::Arc;

/// Why something was not bound.
#[derive(Debug)]
pub enum Refusal {
    /// The statement is wrong.
    Error(SqlError),
    /// Not a shape that the short path knows.
    Shape(SqlError),
}

/// Result of binding.
pub type Bound<T> = std::result::Result<T, Refusal>;

impl From<SqlError> for Refusal {
    fn from(error: SqlError) -> Self {
        Refusal::Error(error)
    }
}

impl From<cenote_engine::Error> for Refusal {
    fn from(error: cenote_engine::Error) -> Self {
        Refusal::Error(error.into())
    }
}

impl From<Refusal> for SqlError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Error(error) | Refusal::Shape(error) => error,
        }
    }
}

/// A refusal of a shape, named.
#[cold]
pub fn shape<T>(what: impl std::fmt::Display) -> Bound<T> {
    Err(Refusal::Shape(SqlError::unsupported(what)))
}

/// An expression with its type; None: an untyped literal or parameter.
#[derive(Debug, Clone)]
pub struct Typed {
    /// The expression.
    pub expr: Expr,
    /// Its type.
    pub ty: Option<ColumnType>,
}

impl Typed {
    fn new(expr: Expr, ty: ColumnType) -> Typed {
        Typed { expr, ty: Some(ty) }
    }
}

/// Types of parameters, as far as they are known.
pub type Params = RefCell<Vec<Option<ColumnType>>>;

/// Grouping under way: group keys, then aggregates, make up the row that the select list sees.
#[derive(Default)]
pub struct Grouping {
    /// GROUP BY expressions and their types.
    pub keys: Vec<(ast::Expr, ColumnType)>,
    /// Aggregates found so far.
    pub aggregates: Vec<Aggregate>,
}

/// What names mean in one statement.
pub struct Binder<'a> {
    /// For error positions.
    pub places: Places<'a>,
    /// Parameter types.
    pub params: &'a Params,
    /// The session, for literals.
    pub session: &'a SessionEnv,
    /// The table in FROM and the name it goes by.
    pub table: Option<(Arc<Table>, String)>,
    /// Whether `excluded` is known.
    pub excluded: bool,
    /// Object id of a sequence by name.
    pub sequence: &'a dyn Fn(&str) -> crate::error::Result<u32>,
    /// Set while the select list of a grouped query is bound.
    pub grouping: Option<RefCell<Grouping>>,
}

impl Binder<'_> {
    /// Binds an expression.
    pub fn bind(&self, expr: &ast::Expr) -> Bound<Typed> {
        if let Some(key) = self.group_key(expr) {
            return Ok(key);
        }
        match expr {
            ast::Expr::Nested(inner) => self.bind(inner),
            ast::Expr::Value(value) => self.literal(&value.value),
            ast::Expr::Identifier(ident) => self.column(None, ident),
            ast::Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [table, column] => self.column(Some(table), column),
                [_, table, column] => self.column(Some(table), column),
                _ => shape("this name"),
            },
            ast::Expr::BinaryOp { left, op, right } => self.binary(left, op, right),
            ast::Expr::UnaryOp { op, expr } => self.unary(*op, expr),
            ast::Expr::IsNull(e) => self.is_null(e, false),
            ast::Expr::IsNotNull(e) => self.is_null(e, true),
            ast::Expr::IsTrue(e) => self.is_bool(e, true, false),
            ast::Expr::IsNotTrue(e) => self.is_bool(e, true, true),
            ast::Expr::IsFalse(e) => self.is_bool(e, false, false),
            ast::Expr::IsNotFalse(e) => self.is_bool(e, false, true),
            ast::Expr::IsUnknown(e) => self.is_null(e, false),
            ast::Expr::IsNotUnknown(e) => self.is_null(e, true),
            ast::Expr::IsDistinctFrom(a, b) => self.is_distinct(a, b, false),
            ast::Expr::IsNotDistinctFrom(a, b) => self.is_distinct(a, b, true),
            ast::Expr::Between {
                expr,
                negated,
                low,
                high,
            } => self.between(expr, *negated, low, high),
            ast::Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated),
            ast::Expr::Like {
                negated,
                any: false,
                expr,
                pattern,
                escape_char,
            } => self.like(expr, pattern, escape_char.as_ref().map(|v| &v.value), false, *negated),
            ast::Expr::ILike {
                negated,
                any: false,
                expr,
                pattern,
                escape_char,
            } => self.like(expr, pattern, escape_char.as_ref().map(|v| &v.value), true, *negated),
            ast::Expr::Case {
                operand,
                conditions,
                else_result,
                ..
            } => self.case(operand.as_deref(), conditions, else_result.as_deref()),
            ast::Expr::Cast { expr, data_type, .. } => self.cast(expr, data_type),
            ast::Expr::TypedString(typed) => {
                let ty = self.named_type(&typed.data_type)?;
                let operand = self.literal(&typed.value.value)?;
                Ok(Typed::new(self.coerce(operand, ty, Context::Explicit)?, base_type(ty)))
            }
            ast::Expr::Substring {
                expr,
                substring_from,
                substring_for,
                special: false,
                ..
            } => {
                let one = ast::Expr::value(Literal::Number("1".into(), false));
                let from = substring_from.as_deref().unwrap_or(&one);
                let mut args = vec![self.bind(expr)?, self.bind(from)?];
                args.extend(substring_for.as_deref().map(|e| self.bind(e)).transpose()?);
                self.call("substring", args, expr)
            }
            ast::Expr::Trim {
                expr,
                trim_where,
                trim_what,
                trim_characters: None,
            } => {
                let name = match trim_where {
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                    _ => "btrim",
                };
                let mut args = vec![self.bind(expr)?];
                args.extend(trim_what.as_deref().map(|e| self.bind(e)).transpose()?);
                self.call(name, args, expr)
            }
            ast::Expr::Position { expr, r#in } => {
                let args = vec![self.bind(r#in)?, self.bind(expr)?];
                self.call("position", args, expr)
            }
            ast::Expr::Ceil {
                expr,
                field: ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime),
            } => self.call("ceil", vec![self.bind(expr)?], expr),
            ast::Expr::Floor {
                expr,
                field: ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime),
            } => self.call("floor", vec![self.bind(expr)?], expr),
            ast::Expr::Collate { expr, .. } => self.bind(expr).and_then(|_| shape("COLLATE")),
            ast::Expr::Function(function) => self.function(function, expr),
            other => shape(format_args!("the expression {other}")),
        }
    }

    /// Binds a condition.
    pub fn condition(&self, expr: &ast::Expr, clause: &str) -> Bound<Expr> {
        let typed = self.bind(expr)?;
        match typed.ty {
            None | Some(ColumnType::Bool) => self.coerce(typed, ColumnType::Bool, Context::Implicit),
            Some(other) => {
                let text = format!("argument of {clause} must be type boolean, not type {}", other.name());
                Err(SqlError::new(code::DATATYPE_MISMATCH, text)
                    .at(self.places.of(expr.span()))
                    .into())
            }
        }
    }

    /// An expression whose type, if still open, becomes text.
    pub fn settled(&self, typed: Typed) -> Bound<(Expr, ColumnType)> {
        match typed.ty {
            Some(ty) => Ok((typed.expr, ty)),
            None => Ok((
                self.coerce(typed, ColumnType::Text, Context::Implicit)?,
                ColumnType::Text,
            )),
        }
    }

    /// Converts to `to`, or says that it cannot be done.
    pub fn coerce(&self, typed: Typed, to: ColumnType, context: Context) -> Bound<Expr> {
        let Typed { expr, ty } = typed;
        let Some(from) = ty else {
            return self.coerce_open(expr, to, context);
        };
        if !castable(from, to, context) {
            return Err(self.cannot(from, to, context).into());
        }
        let expr = match (from, to) {
            (ColumnType::Char(_), ColumnType::Text | ColumnType::Varchar(_)) => Expr::TrimBlanks(Box::new(expr)),
            _ => expr,
        };
        let modified = matches!(
            to,
            ColumnType::Varchar(Some(_)) | ColumnType::Char(_) | ColumnType::Numeric(Some(_))
        );
        let text_to_text = matches!((from, to), (_, ColumnType::Text | ColumnType::Varchar(None))) && is_string(from);
        if from == to || text_to_text || same_base(from, to) && !modified {
            return Ok(expr);
        }
        let constant = matches!(expr, Expr::Const(_)) && !uses_zone(from, to);
        let cast = Expr::Cast {
            operand: Box::new(expr),
            to,
            context,
        };
        if constant { self.fold(&cast) } else { Ok(cast) }
    }

    /// An untyped literal is read as `to`; an untyped parameter becomes one of that type.
    fn coerce_open(&self, expr: Expr, to: ColumnType, context: Context) -> Bound<Expr> {
        match expr {
            Expr::Const(Datum::Text(text)) => {
                let relative =
                    ["now", "today", "tomorrow", "yesterday"].contains(&text.trim().to_ascii_lowercase().as_str());
                let timely =
                    matches!(to, ColumnType::Date | ColumnType::Timestamp) && relative || to == ColumnType::TimestampTz;
                let cast = Expr::Cast {
                    operand: Box::new(Expr::Const(Datum::Text(text))),
                    to,
                    context,
                };
                if timely { Ok(cast) } else { self.fold(&cast) }
            }
            Expr::Param(index) => {
                let base = match to {
                    ColumnType::Char(_) => ColumnType::Text,
                    other => base_type(other),
                };
                self.params.borrow_mut()[usize::from(index)] = Some(base);
                let modified = matches!(
                    to,
                    ColumnType::Varchar(Some(_)) | ColumnType::Char(_) | ColumnType::Numeric(Some(_))
                );
                let param = Expr::Param(index);
                Ok(if modified {
                    Expr::Cast {
                        operand: Box::new(param),
                        to,
                        context,
                    }
                } else {
                    param
                })
            }
            other => Ok(other),
        }
    }

    fn fold(&self, expr: &Expr) -> Bound<Expr> {
        let env = Env {
            params: &[],
            input: Input::Nothing,
            session: self.session,
            sequences: None,
        };
        Ok(Expr::Const(expr.eval(&env)?))
    }

    #[cold]
    fn cannot(&self, from: ColumnType, to: ColumnType, context: Context) -> SqlError {
        match context {
            Context::Explicit => SqlError::new(
                code::CANNOT_COERCE,
                format!("cannot cast type {} to {}", from.name(), to.name()),
            ),
            _ => SqlError::new(
                code::DATATYPE_MISMATCH,
                format!("expression is of type {} but type {} is wanted", from.name(), to.name()),
            )
            .with_hint("You will need to rewrite or cast the expression."),
        }
    }

    fn named_type(&self, ty: &DataType) -> Bound<ColumnType> {
        type_named(ty).map_err(|e| {
            if e.code() == code::FEATURE_NOT_SUPPORTED {
                Refusal::Shape(e)
            } else {
                e.into()
            }
        })
    }

    fn group_key(&self, expr: &ast::Expr) -> Option<Typed> {
        let grouping = self.grouping.as_ref()?.borrow();
        let expr = strip(expr);
        let at = grouping.keys.iter().position(|(key, _)| key == expr)?;
        Some(Typed::new(Expr::Column(at as u16), grouping.keys[at].1))
    }

    fn literal(&self, value: &Literal) -> Bound<Typed> {
        Ok(match value {
            Literal::Number(digits, _) => number_literal(digits)?,
            Literal::SingleQuotedString(s)
            | Literal::EscapedStringLiteral(s)
            | Literal::UnicodeStringLiteral(s)
            | Literal::NationalStringLiteral(s) => open_text(s),
            Literal::DollarQuotedString(s) => open_text(&s.value),
            Literal::Boolean(b) => Typed::new(Expr::Const(Datum::Bool(*b)), ColumnType::Bool),
            Literal::Null => Typed {
                expr: Expr::Const(Datum::Null),
                ty: None,
            },
            Literal::Placeholder(name) => self.parameter(name)?,
            other => return shape(format_args!("the literal {other}")),
        })
    }

    fn parameter(&self, name: &str) -> Bound<Typed> {
        let number: Option<u16> = name.strip_prefix('$').and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        let Some(number) = number else {
            return Err(SqlError::new(code::UNDEFINED_PARAMETER, format!("there is no parameter {name}")).into());
        };
        let mut params = self.params.borrow_mut();
        if params.len() < usize::from(number) {
            params.resize(usize::from(number), None);
        }
        Ok(Typed {
            expr: Expr::Param(number - 1),
            ty: params[usize::from(number) - 1],
        })
    }

    fn column(&self, qualifier: Option<&Ident>, ident: &Ident) -> Bound<Typed> {
        let name = fold(ident);
        let qualifier_name = qualifier.map(fold);
        let place = || self.places.of(qualifier.unwrap_or(ident).span);
        let bare = ident.quote_style.is_none() && qualifier.is_none();
        if bare
            && WITHOUT_PARENTHESES.contains(&name.as_str())
            && self.table.as_ref().is_none_or(|(t, _)| t.column_named(&name).is_none())
        {
            return self.call(&name, Vec::new(), &ast::Expr::Identifier(ident.clone()));
        }
        let Some((table, alias)) = &self.table else {
            return self.no_table(qualifier_name.as_deref(), &name, place());
        };
        let proposed = self.excluded && qualifier_name.as_deref() == Some("excluded");
        if let Some(q) = &qualifier_name
            && !proposed
            && q != alias
        {
            let error = SqlError::new(
                code::UNDEFINED_TABLE,
                format!("missing FROM-clause entry for table \"{q}\""),
            );
            return Err(error.at(place()).into());
        }
        let Some(index) = table.column_named(&name) else {
            return Err(undefined_column(qualifier_name.as_deref(), &name, place()).into());
        };
        if self.grouping.is_some() {
            let text = format!(
                "column \"{alias}.{name}\" must appear in the GROUP BY clause or be used in an aggregate function"
            );
            return Err(SqlError::new(code::GROUPING_ERROR, text).at(place()).into());
        }
        let expr = if proposed {
            Expr::Proposed(index as u16)
        } else {
            Expr::Column(index as u16)
        };
        Ok(Typed::new(expr, table.columns[index].ty))
    }

    fn no_table(&self, qualifier: Option<&str>, name: &str, place: u32) -> Bound<Typed> {
        match qualifier {
            Some(q) => {
                let error = SqlError::new(
                    code::UNDEFINED_TABLE,
                    format!("missing FROM-clause entry for table \"{q}\""),
                );
                Err(error.at(place).into())
            }
            None => Err(undefined_column(None, name, place).into()),
        }
    }

    fn binary(&self, left: &ast::Expr, op: &BinaryOperator, right: &ast::Expr) -> Bound<Typed> {
        use BinaryOperator as B;
        match op {
            B::And => self.logic(left, right, "AND", Expr::And),
            B::Or => self.logic(left, right, "OR", Expr::Or),
            B::Eq => self.comparison(left, Comparison::Eq, right),
            B::NotEq => self.comparison(left, Comparison::Ne, right),
            B::Lt => self.comparison(left, Comparison::Lt, right),
            B::LtEq => self.comparison(left, Comparison::Le, right),
            B::Gt => self.comparison(left, Comparison::Gt, right),
            B::GtEq => self.comparison(left, Comparison::Ge, right),
            B::Plus => self.arithmetic(left, Arithmetic::Add, right),
            B::Minus => self.arithmetic(left, Arithmetic::Sub, right),
            B::Multiply => self.arithmetic(left, Arithmetic::Mul, right),
            B::Divide => self.arithmetic(left, Arithmetic::Div, right),
            B::Modulo => self.arithmetic(left, Arithmetic::Rem, right),
            B::BitwiseAnd => self.arithmetic(left, Arithmetic::BitAnd, right),
            B::BitwiseOr => self.arithmetic(left, Arithmetic::BitOr, right),
            B::PGBitwiseXor => self.arithmetic(left, Arithmetic::BitXor, right),
            B::PGBitwiseShiftLeft => self.arithmetic(left, Arithmetic::Shl, right),
            B::PGBitwiseShiftRight => self.arithmetic(left, Arithmetic::Shr, right),
            B::StringConcat => self.append(left, right),
            B::PGLikeMatch => self.like(left, right, None, false, false),
            B::PGNotLikeMatch => self.like(left, right, None, false, true),
            B::PGILikeMatch => self.like(left, right, None, true, false),
            B::PGNotILikeMatch => self.like(left, right, None, true, true),
            other => shape(format_args!("the operator {other}")),
        }
    }

    fn logic(&self, left: &ast::Expr, right: &ast::Expr, word: &str, make: fn(Vec<Expr>) -> Expr) -> Bound<Typed> {
        let (left, right) = (self.condition(left, word)?, self.condition(right, word)?);
        let is_and = word == "AND";
        let mut list = Vec::new();
        for side in [left, right] {
            match side {
                Expr::And(inner) if is_and => list.extend(inner),
                Expr::Or(inner) if !is_and => list.extend(inner),
                other => list.push(other),
            }
        }
        Ok(Typed::new(make(list), ColumnType::Bool))
    }

    fn comparison(&self, left: &ast::Expr, op: Comparison, right: &ast::Expr) -> Bound<Typed> {
        let (a, b) = (self.bind(left)?, self.bind(right)?);
        self.compare(a, op, b)
    }

    fn compare(&self, a: Typed, op: Comparison, b: Typed) -> Bound<Typed> {
        let (left, right, trim) = self.comparable(a, op.symbol(), b)?;
        Ok(Typed::new(
            Expr::Compare {
                op,
                trim,
                left: Box::new(left),
                right: Box::new(right),
            },
            ColumnType::Bool,
        ))
    }

    /// Brings two operands to a type that compares; whether trailing blanks do not count.
    fn comparable(&self, a: Typed, symbol: &str, b: Typed) -> Bound<(Expr, Expr, bool)> {
        let common = match (a.ty, b.ty) {
            (Some(x), Some(y)) if is_integer(x) && is_integer(y) => return Ok((a.expr, b.expr, false)),
            (Some(x), Some(y)) => match common_type(x, y) {
                Some(common) => common,
                None => return Err(no_operator(a.ty, symbol, b.ty).into()),
            },
            (Some(x), None) | (None, Some(x)) => match x {
                ColumnType::Char(_) => {
                    let (left, right) = (self.open_as_text(a)?, self.open_as_text(b)?);
                    return Ok((left, right, true));
                }
                other => base_type(other),
            },
            (None, None) => ColumnType::Text,
        };
        let trim = matches!(common, ColumnType::Char(_));
        if trim {
            return Ok((a.expr, b.expr, true));
        }
        Ok((
            self.coerce(a, common, Context::Implicit)?,
            self.coerce(b, common, Context::Implicit)?,
            false,
        ))
    }

    fn open_as_text(&self, typed: Typed) -> Bound<Expr> {
        match typed.ty {
            Some(_) => Ok(typed.expr),
            None => self.coerce(typed, ColumnType::Text, Context::Implicit),
        }
    }

    fn arithmetic(&self, left: &ast::Expr, op: Arithmetic, right: &ast::Expr) -> Bound<Typed> {
        let (a, b) = (self.bind(left)?, self.bind(right)?);
        if let Some(dates) = self.date_arithmetic(&a, op, &b)? {
            return Ok(dates);
        }
        let ty = match (a.ty, b.ty) {
            (Some(x), Some(y)) if is_number(x) && is_number(y) => wider(x, y),
            (Some(x), None) | (None, Some(x)) if is_number(x) => base_type(x),
            (None, None) => {
                let text = format!("operator is not unique: unknown {} unknown", op.symbol());
                return Err(SqlError::new(code::AMBIGUOUS_FUNCTION, text)
                    .with_hint("Could not choose a best candidate operator. You might need to add explicit type casts.")
                    .into());
            }
            (Some(ColumnType::Timestamp | ColumnType::TimestampTz | ColumnType::Date), _)
            | (_, Some(ColumnType::Timestamp | ColumnType::TimestampTz | ColumnType::Date)) => {
                return Err(Refusal::Shape(no_operator(a.ty, op.symbol(), b.ty)));
            }
            _ => return Err(no_operator(a.ty, op.symbol(), b.ty).into()),
        };
        let Some(number) = number_of(ty).filter(|n| admits(op, *n)) else {
            return Err(no_operator(a.ty, op.symbol(), b.ty).into());
        };
        let (x, y) = (self.operand(a, ty)?, self.operand(b, ty)?);
        Ok(Typed::new(Expr::Arithmetic(op, number, Box::new(x), Box::new(y)), ty))
    }

    /// Integers of any width go into integer arithmetic as they are.
    fn operand(&self, typed: Typed, to: ColumnType) -> Bound<Expr> {
        if is_integer(to) && typed.ty.is_some_and(is_integer) {
            return Ok(typed.expr);
        }
        self.coerce(typed, to, Context::Implicit)
    }

    fn date_arithmetic(&self, a: &Typed, op: Arithmetic, b: &Typed) -> Bound<Option<Typed>> {
        use ColumnType::{Date, Int2, Int4};
        let result = match (a.ty, op, b.ty) {
            (Some(Date), Arithmetic::Sub, Some(Date)) => Int4,
            (Some(Date), Arithmetic::Add | Arithmetic::Sub, Some(Int2 | Int4))
            | (Some(Int2 | Int4), Arithmetic::Add, Some(Date)) => Date,
            (Some(Date), Arithmetic::Sub, None) => {
                let right = self.coerce(b.clone(), Date, Context::Implicit)?;
                return Ok(Some(Typed::new(
                    Expr::Arithmetic(op, Number::Date, Box::new(a.expr.clone()), Box::new(right)),
                    Int4,
                )));
            }
            _ => return Ok(None),
        };
        let widen = |t: &Typed| {
            if t.ty == Some(Int2) {
                self.coerce(t.clone(), Int4, Context::Implicit)
            } else {
                Ok(t.expr.clone())
            }
        };
        Ok(Some(Typed::new(
            Expr::Arithmetic(op, Number::Date, Box::new(widen(a)?), Box::new(widen(b)?)),
            result,
        )))
    }

    fn append(&self, left: &ast::Expr, right: &ast::Expr) -> Bound<Typed> {
        let (a, b) = (self.bind(left)?, self.bind(right)?);
        if a.ty == Some(ColumnType::Bytes) || b.ty == Some(ColumnType::Bytes) {
            return shape("|| on bytea");
        }
        if ![a.ty, b.ty].iter().any(|t| t.is_none_or(is_string)) {
            return Err(no_operator(a.ty, "||", b.ty).into());
        }
        let args = vec![
            self.coerce(a, ColumnType::Text, Context::Assignment)?,
            self.coerce(b, ColumnType::Text, Context::Assignment)?,
        ];
        Ok(Typed::new(
            Expr::Call(Box::new(Call {
                function: Function::Append,
                args,
            })),
            ColumnType::Text,
        ))
    }

    fn unary(&self, op: UnaryOperator, operand: &ast::Expr) -> Bound<Typed> {
        match op {
            UnaryOperator::Not => Ok(Typed::new(
                Expr::Not(Box::new(self.condition(operand, "NOT")?)),
                ColumnType::Bool,
            )),
            UnaryOperator::Plus | UnaryOperator::Minus => {
                let inner = self.bind(operand)?;
                let ty = inner.ty.unwrap_or(ColumnType::Float8);
                if !is_number(ty) {
                    let symbol = if op == UnaryOperator::Plus { "+" } else { "-" };
                    let text = format!("operator does not exist: {symbol} {}", ty.name());
                    return Err(SqlError::new(code::UNDEFINED_FUNCTION, text)
                        .with_hint(NO_OPERATOR_HINT)
                        .into());
                }
                let expr = self.coerce(inner, base_type(ty), Context::Implicit)?;
                let negated = match expr {
                    e if op == UnaryOperator::Plus => e,
                    Expr::Const(_) => self.fold(&Expr::Negate(Box::new(expr)))?,
                    e => Expr::Negate(Box::new(e)),
                };
                Ok(Typed::new(negated, base_type(ty)))
            }
            other => shape(format_args!("the operator {other}")),
        }
    }

    fn is_null(&self, operand: &ast::Expr, negated: bool) -> Bound<Typed> {
        let (expr, _) = self.settled(self.bind(operand)?)?;
        Ok(Typed::new(
            Expr::IsNull {
                operand: Box::new(expr),
                negated,
            },
            ColumnType::Bool,
        ))
    }

    fn is_bool(&self, operand: &ast::Expr, wanted: bool, negated: bool) -> Bound<Typed> {
        let clause = if wanted { "IS TRUE" } else { "IS FALSE" };
        let operand = Box::new(self.condition(operand, clause)?);
        Ok(Typed::new(
            Expr::IsBool {
                operand,
                wanted,
                negated,
            },
            ColumnType::Bool,
        ))
    }

    fn is_distinct(&self, a: &ast::Expr, b: &ast::Expr, negated: bool) -> Bound<Typed> {
        let (left, right, trim) = self.comparable(self.bind(a)?, "=", self.bind(b)?)?;
        Ok(Typed::new(
            Expr::IsDistinct {
                trim,
                left: Box::new(left),
                right: Box::new(right),
                negated,
            },
            ColumnType::Bool,
        ))
    }

    fn between(&self, expr: &ast::Expr, negated: bool, low: &ast::Expr, high: &ast::Expr) -> Bound<Typed> {
        let value = self.bind(expr)?;
        let low = self.compare(value.clone(), Comparison::Ge, self.bind(low)?)?.expr;
        let high = self.compare(value, Comparison::Le, self.bind(high)?)?.expr;
        let both = Expr::And(vec![low, high]);
        Ok(Typed::new(
            if negated { Expr::Not(Box::new(both)) } else { both },
            ColumnType::Bool,
        ))
    }

    fn in_list(&self, expr: &ast::Expr, list: &[ast::Expr], negated: bool) -> Bound<Typed> {
        let operand = self.bind(expr)?;
        let items: Vec<Typed> = list.iter().map(|e| self.bind(e)).collect::<Bound<_>>()?;
        let all_integers = operand.ty.is_some_and(is_integer) && items.iter().all(|i| i.ty.is_none_or(is_integer));
        let common = if all_integers {
            operand.ty
        } else {
            self.common(std::iter::once(&operand).chain(&items), "=")?
        };
        let common = common.unwrap_or(ColumnType::Text);
        let trim = matches!(common, ColumnType::Char(_));
        let convert = |t: Typed| match t.ty {
            Some(_) if trim || all_integers => Ok(t.expr),
            None if trim => self.open_as_text(t),
            _ => self.coerce(t, common, Context::Implicit),
        };
        let operand = Box::new(convert(operand)?);
        let list = items.into_iter().map(convert).collect::<Bound<_>>()?;
        Ok(Typed::new(
            Expr::InList {
                operand,
                list,
                trim,
                negated,
            },
            ColumnType::Bool,
        ))
    }

    /// The type that all of these convert to; None where all are open.
    fn common<'t>(&self, items: impl Iterator<Item = &'t Typed>, symbol: &str) -> Bound<Option<ColumnType>> {
        let mut common: Option<ColumnType> = None;
        for item in items {
            common = match (common, item.ty) {
                (None, ty) => ty.map(|t| {
                    if matches!(t, ColumnType::Char(_)) {
                        t
                    } else {
                        base_type(t)
                    }
                }),
                (some, None) => some,
                (Some(x), Some(y)) => match common_type(x, y) {
                    Some(both) => Some(both),
                    None => return Err(no_operator(Some(x), symbol, Some(y)).into()),
                },
            };
        }
        Ok(common)
    }

    fn like(
        &self,
        expr: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&Literal>,
        ignore_case: bool,
        negated: bool,
    ) -> Bound<Typed> {
        let symbol = if ignore_case { "~~*" } else { "~~" };
        let text = self.bind(expr)?;
        let pattern = self.bind(pattern)?;
        for (ty, other) in [(text.ty, pattern.ty)] {
            if ty.is_some_and(|t| !is_string(t)) || other.is_some_and(|t| !is_string(t)) {
                return Err(no_operator(ty, symbol, other).into());
            }
        }
        let text = match text.ty {
            // As PostgreSQL's bpchar ~~ text: the blanks of char(n) count.
            Some(ColumnType::Char(_)) => text.expr,
            _ => self.coerce(text, ColumnType::Text, Context::Implicit)?,
        };
        let pattern = self.coerce(pattern, ColumnType::Text, Context::Implicit)?;
        let escape = escape
            .map(|e| {
                self.literal(e)
                    .and_then(|t| self.coerce(t, ColumnType::Text, Context::Implicit))
            })
            .transpose()?;
        let like = Expr::Like {
            text: Box::new(text),
            pattern: Box::new(pattern),
            escape: escape.map(Box::new),
            ignore_case,
            negated,
        };
        Ok(Typed::new(like, ColumnType::Bool))
    }

    fn case(&self, operand: Option<&ast::Expr>, whens: &[CaseWhen], otherwise: Option<&ast::Expr>) -> Bound<Typed> {
        let mut conditions = Vec::new();
        for when in whens {
            conditions.push(match operand {
                None => self.condition(&when.condition, "CASE/WHEN")?,
                Some(operand) => self.comparison(operand, Comparison::Eq, &when.condition)?.expr,
            });
        }
        let mut results: Vec<Typed> = whens.iter().map(|w| self.bind(&w.result)).collect::<Bound<_>>()?;
        let has_else = otherwise.is_some();
        results.extend(otherwise.map(|e| self.bind(e)).transpose()?);
        let (mut results, ty) = self.unify(results, "CASE")?;
        let otherwise = if has_else { results.pop().map(Box::new) } else { None };
        Ok(Typed::new(
            Expr::Case {
                branches: conditions.into_iter().zip(results).collect(),
                otherwise,
            },
            ty,
        ))
    }

    /// Brings the results of CASE, COALESCE, GREATEST and the like to one type.
    fn unify(&self, items: Vec<Typed>, construct: &str) -> Bound<(Vec<Expr>, ColumnType)> {
        let mut common: Option<ColumnType> = None;
        for ty in items.iter().filter_map(|i| i.ty) {
            common = Some(match common {
                None => base_type(ty),
                Some(so_far) => match common_type(so_far, ty) {
                    Some(both) => both,
                    None => {
                        let text = format!(
                            "{construct} types {} and {} cannot be matched",
                            so_far.name(),
                            ty.name()
                        );
                        return Err(SqlError::new(code::DATATYPE_MISMATCH, text).into());
                    }
                },
            });
        }
        let common = match common {
            Some(ColumnType::Char(_)) | None => ColumnType::Text,
            Some(ty) => ty,
        };
        let converted = items
            .into_iter()
            .map(|i| self.coerce(i, common, Context::Implicit))
            .collect::<Bound<_>>()?;
        Ok((converted, common))
    }

    fn cast(&self, operand: &ast::Expr, data_type: &DataType) -> Bound<Typed> {
        let ty = self.named_type(data_type)?;
        let typed = self.bind(operand)?;
        let shown = match ty {
            ColumnType::Varchar(_) | ColumnType::Char(_) | ColumnType::Numeric(_) => ty,
            other => base_type(other),
        };
        Ok(Typed::new(self.coerce(typed, ty, Context::Explicit)?, shown))
    }

    fn function(&self, function: &ast::Function, whole: &ast::Expr) -> Bound<Typed> {
        let name = super::names::qualified(&function.name)?.1;
        if function.over.is_some() || !function.within_group.is_empty() {
            return shape("a window function");
        }
        if let Some(kind) = Kind::named(&name) {
            return self.aggregate(kind, &name, function);
        }
        if function.filter.is_some() {
            return shape("FILTER of this function");
        }
        match name.as_str() {
            "nextval" | "currval" | "setval" => return self.sequence_function(&name, function),
            _ => {}
        }
        let args: Vec<Typed> = arguments(function)?
            .into_iter()
            .map(|e| self.bind(e))
            .collect::<Bound<_>>()?;
        match name.as_str() {
            "coalesce" => {
                let (args, ty) = self.unify(args, "COALESCE")?;
                Ok(Typed::new(Expr::Coalesce(args), ty))
            }
            "greatest" | "least" => {
                let (args, ty) = self.unify(args, &name.to_uppercase())?;
                let function = if name == "greatest" {
                    Function::Greatest
                } else {
                    Function::Least
                };
                Ok(Typed::new(Expr::Call(Box::new(Call { function, args })), ty))
            }
            "nullif" if args.len() == 2 => {
                let ty = args[0].ty.or(args[1].ty).unwrap_or(ColumnType::Text);
                let mut args = args.into_iter();
                let (Some(a), Some(b)) = (args.next(), args.next()) else {
                    return shape("NULLIF");
                };
                let (a, b, _) = self.comparable(a, "=", b)?;
                Ok(Typed::new(
                    Expr::Call(Box::new(Call {
                        function: Function::NullIf,
                        args: vec![a, b],
                    })),
                    base_type(ty),
                ))
            }
            "mod" if args.len() == 2 => {
                let list = arguments(function)?;
                self.arithmetic(list[0], Arithmetic::Rem, list[1])
            }
            "current_schema" | "current_user" | "session_user" | "user" | "now" | "random" if args.is_empty() => {
                self.call(&name, args, whole)
            }
            _ => self.call(&name, args, whole),
        }
    }

    fn call(&self, name: &str, args: Vec<Typed>, whole: &ast::Expr) -> Bound<Typed> {
        let types: Vec<Option<ColumnType>> = args.iter().map(|a| a.ty).collect();
        let Some(Signature {
            function,
            args: wanted,
            result,
        }) = functions::resolve(name, &types)
        else {
            return Err(Refusal::Shape(self.no_function(name, &types, whole)));
        };
        let context = if function == Function::Concat {
            Context::Assignment
        } else {
            Context::Implicit
        };
        let mut converted = Vec::new();
        for (arg, ty) in args.into_iter().zip(wanted) {
            if let Some(from) = arg.ty
                && !castable(from, ty, context)
            {
                return Err(Refusal::Shape(self.no_function(name, &types, whole)));
            }
            converted.push(self.coerce(arg, ty, context)?);
        }
        Ok(Typed::new(
            Expr::Call(Box::new(Call {
                function,
                args: converted,
            })),
            result,
        ))
    }

    #[cold]
    fn no_function(&self, name: &str, types: &[Option<ColumnType>], whole: &ast::Expr) -> SqlError {
        let shown: Vec<&str> = types.iter().map(|t| t.map_or("unknown", |t| t.name())).collect();
        let text = format!("function {name}({}) does not exist", shown.join(", "));
        SqlError::new(code::UNDEFINED_FUNCTION, text)
            .with_hint(
                "No function matches the given name and argument types. You might need to add explicit type casts.",
            )
            .at(self.places.of(whole.span()))
    }

    fn sequence_function(&self, name: &str, function: &ast::Function) -> Bound<Typed> {
        let list = arguments(function)?;
        let Some(sequence) = list.first().and_then(|e| sequence_name(e)) else {
            return shape(format_args!("{name} of a computed name"));
        };
        let id = (self.sequence)(&sequence)?;
        let mut args = vec![Typed::new(Expr::Const(Datum::Int8(i64::from(id))), ColumnType::Int8)];
        for rest in &list[1..] {
            args.push(self.bind(rest)?);
        }
        self.call(name, args, list[0])
    }

    fn aggregate(&self, kind: Kind, name: &str, function: &ast::Function) -> Bound<Typed> {
        let Some(cell) = &self.grouping else {
            let text = "aggregate functions are not allowed here".to_string();
            return Err(SqlError::new(code::GROUPING_ERROR, text)
                .at(self.places.of(super::names::span_of(&function.name)))
                .into());
        };
        let FunctionArguments::List(list) = &function.args else {
            return shape("this aggregate");
        };
        if !list.clauses.is_empty() {
            return shape("ORDER BY in an aggregate");
        }
        let inner = self.below_grouping();
        let (argument, input) = match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] if kind == Kind::Count => (None, ColumnType::Int8),
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(e))] => {
                let (expr, ty) = inner.settled(inner.bind(e)?)?;
                (Some(expr), ty)
            }
            _ => return shape("this aggregate"),
        };
        let Some(result) = kind.result(input) else {
            let text = format!("function {name}({}) does not exist", input.name());
            let error = SqlError::new(code::UNDEFINED_FUNCTION, text).with_hint(
                "No function matches the given name and argument types. You might need to add explicit type casts.",
            );
            return Err(error.at(self.places.of(super::names::span_of(&function.name))).into());
        };
        let filter = function
            .filter
            .as_deref()
            .map(|f| inner.condition(f, "FILTER"))
            .transpose()?;
        let distinct = matches!(list.duplicate_treatment, Some(ast::DuplicateTreatment::Distinct));
        let mut grouping = cell.borrow_mut();
        grouping.aggregates.push(Aggregate {
            kind,
            argument,
            input,
            distinct,
            filter,
        });
        let at = grouping.keys.len() + grouping.aggregates.len() - 1;
        Ok(Typed::new(Expr::Column(at as u16), result))
    }

    /// The binder for what stands below an aggregate: rows of the table.
    pub fn below_grouping(&self) -> Binder<'_> {
        Binder {
            places: self.places,
            params: self.params,
            session: self.session,
            table: self.table.clone(),
            excluded: self.excluded,
            sequence: self.sequence,
            grouping: None,
        }
    }
}

/// Without parentheses around it.
pub fn strip(expr: &ast::Expr) -> &ast::Expr {
    match expr {
        ast::Expr::Nested(inner) => strip(inner),
        other => other,
    }
}

/// Plain arguments of a function.
fn arguments(function: &ast::Function) -> Bound<Vec<&ast::Expr>> {
    match &function.args {
        FunctionArguments::None => Ok(Vec::new()),
        FunctionArguments::List(list) if list.duplicate_treatment.is_none() && list.clauses.is_empty() => {
            let plain = list.args.iter().map(|a| match a {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Ok(e),
                _ => shape("this argument"),
            });
            plain.collect()
        }
        _ => shape("these arguments"),
    }
}

/// `'name'` or `'name'::regclass`, folded; a schema in front is dropped.
fn sequence_name(expr: &ast::Expr) -> Option<String> {
    let text = match strip(expr) {
        ast::Expr::Value(v) => match &v.value {
            Literal::SingleQuotedString(s) => s.clone(),
            _ => return None,
        },
        ast::Expr::Cast { expr, .. } => return sequence_name(expr),
        _ => return None,
    };
    let last = text.rsplit('.').next().unwrap_or(&text);
    Some(match last.strip_prefix('"').and_then(|s| s.strip_suffix('"')) {
        Some(quoted) => quoted.to_string(),
        None => last.to_lowercase(),
    })
}

fn open_text(text: &str) -> Typed {
    Typed {
        expr: Expr::Const(Datum::Text(text.to_string())),
        ty: None,
    }
}

fn number_literal(digits: &str) -> Bound<Typed> {
    if let Ok(value) = digits.parse::<i32>() {
        return Ok(Typed::new(Expr::Const(Datum::Int4(value)), ColumnType::Int4));
    }
    if let Ok(value) = digits.parse::<i64>() {
        return Ok(Typed::new(Expr::Const(Datum::Int8(value)), ColumnType::Int8));
    }
    let value = Numeric::parse(digits)?;
    Ok(Typed::new(
        Expr::Const(Datum::Numeric(value)),
        ColumnType::Numeric(None),
    ))
}

/// The type to which two types convert for a comparison; None where there is none.
pub fn common_type(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    use ColumnType::{Char, Date, Text, Timestamp, TimestampTz};
    match (a, b) {
        (Char(n), Char(m)) => Some(Char(n.max(m))),
        _ if is_string(a) && is_string(b) => Some(Text),
        _ if same_base(a, b) => Some(base_type(a)),
        _ if is_number(a) && is_number(b) => Some(wider(a, b)),
        (Date, Timestamp) | (Timestamp, Date) => Some(Timestamp),
        (Date | Timestamp, TimestampTz) | (TimestampTz, Date | Timestamp) => Some(TimestampTz),
        _ => None,
    }
}

/// The type that arithmetic on two numbers works in.
fn wider(a: ColumnType, b: ColumnType) -> ColumnType {
    use ColumnType::{Float4, Float8};
    let rank = |t: ColumnType| match t {
        ColumnType::Int2 => 0,
        ColumnType::Int4 => 1,
        ColumnType::Int8 => 2,
        ColumnType::Numeric(_) => 3,
        ColumnType::Float4 => 4,
        _ => 5,
    };
    match (a, b) {
        (Float4, Float4) => Float4,
        (Float4, _) | (_, Float4) => Float8,
        _ if rank(a) >= rank(b) => base_type(a),
        _ => base_type(b),
    }
}

fn number_of(ty: ColumnType) -> Option<Number> {
    Some(match ty {
        ColumnType::Int2 => Number::Int2,
        ColumnType::Int4 => Number::Int4,
        ColumnType::Int8 => Number::Int8,
        ColumnType::Float4 => Number::Float4,
        ColumnType::Float8 => Number::Float8,
        ColumnType::Numeric(_) => Number::Numeric,
        _ => return None,
    })
}

fn admits(op: Arithmetic, number: Number) -> bool {
    match op {
        Arithmetic::Add | Arithmetic::Sub | Arithmetic::Mul | Arithmetic::Div => true,
        Arithmetic::Rem => !matches!(number, Number::Float4 | Number::Float8),
        _ => matches!(number, Number::Int2 | Number::Int4 | Number::Int8),
    }
}

/// Whether the conversion depends on the session's time zone.
fn uses_zone(from: ColumnType, to: ColumnType) -> bool {
    from == ColumnType::TimestampTz || to == ColumnType::TimestampTz
}

/// Functions that are called by their bare name.
const WITHOUT_PARENTHESES: [&str; 9] = [
    "current_schema",
    "current_catalog",
    "current_user",
    "current_role",
    "session_user",
    "user",
    "current_date",
    "current_timestamp",
    "localtimestamp",
];

const NO_OPERATOR_HINT: &str =
    "No operator matches the given name and argument types. You might need to add explicit type casts.";

#[cold]
fn no_operator(a: Option<ColumnType>, symbol: &str, b: Option<ColumnType>) -> SqlError {
    let name = |t: Option<ColumnType>| t.map_or("unknown", |t| t.name());
    SqlError::new(
        code::UNDEFINED_FUNCTION,
        format!("operator does not exist: {} {symbol} {}", name(a), name(b)),
    )
    .with_hint(NO_OPERATOR_HINT)
}

#[cold]
fn undefined_column(qualifier: Option<&str>, name: &str, place: u32) -> SqlError {
    let text = match qualifier {
        Some(q) => format!("column {q}.{name} does not exist"),
        None => format!("column \"{name}\" does not exist"),
    };
    SqlError::new(code::UNDEFINED_COLUMN, text).at(place)
}
