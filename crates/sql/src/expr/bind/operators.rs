//! Operators: what types they take, and what untyped operands become.

use super::{Binder, Bound, Refusal, Typed, shape};
use crate::error::{SqlError, code};
use crate::expr::functions::{Call, Function};
use crate::expr::{Arithmetic, Comparison, Expr, Number};
use crate::types::cast::Context;
use crate::types::{base_type, is_integer, is_number, is_string, same_base};
use cenote_engine::ColumnType;
use sqlparser::ast::{self, BinaryOperator, UnaryOperator, Value as Literal};

impl Binder<'_> {
    pub(super) fn binary(&self, left: &ast::Expr, op: &BinaryOperator, right: &ast::Expr) -> Bound<Typed> {
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

    pub(super) fn logic(
        &self,
        left: &ast::Expr,
        right: &ast::Expr,
        word: &str,
        make: fn(Vec<Expr>) -> Expr,
    ) -> Bound<Typed> {
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

    pub(super) fn comparison(&self, left: &ast::Expr, op: Comparison, right: &ast::Expr) -> Bound<Typed> {
        if let Some(rows) = self.rows_compared(left, op, right)? {
            return Ok(rows);
        }
        let (a, b) = (self.bind(left)?, self.bind(right)?);
        self.compare(a, op, b)
    }

    pub(crate) fn compare(&self, a: Typed, op: Comparison, b: Typed) -> Bound<Typed> {
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
    pub(super) fn comparable(&self, a: Typed, symbol: &str, b: Typed) -> Bound<(Expr, Expr, bool)> {
        let common = match (a.ty, b.ty) {
            (Some(x), Some(y)) if is_integer(x) && is_integer(y) => return Ok((a.expr, b.expr, false)),
            // As PostgreSQL: varchar gives way to char(n), which gives way to text.
            (Some(ColumnType::Char(_)), Some(ColumnType::Varchar(_))) => {
                return Ok((a.expr, without_blanks(b.expr), true));
            }
            (Some(ColumnType::Varchar(_)), Some(ColumnType::Char(_))) => {
                return Ok((without_blanks(a.expr), b.expr, true));
            }
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

    pub(super) fn open_as_text(&self, typed: Typed) -> Bound<Expr> {
        match typed.ty {
            Some(_) => Ok(typed.expr),
            None => self.coerce(typed, ColumnType::Text, Context::Implicit),
        }
    }

    pub(super) fn arithmetic(&self, left: &ast::Expr, op: Arithmetic, right: &ast::Expr) -> Bound<Typed> {
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
    pub(super) fn operand(&self, typed: Typed, to: ColumnType) -> Bound<Expr> {
        if is_integer(to) && typed.ty.is_some_and(is_integer) {
            return Ok(typed.expr);
        }
        self.coerce(typed, to, Context::Implicit)
    }

    pub(super) fn date_arithmetic(&self, a: &Typed, op: Arithmetic, b: &Typed) -> Bound<Option<Typed>> {
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

    pub(super) fn append(&self, left: &ast::Expr, right: &ast::Expr) -> Bound<Typed> {
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

    pub(super) fn unary(&self, op: UnaryOperator, operand: &ast::Expr) -> Bound<Typed> {
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

    pub(super) fn is_null(&self, operand: &ast::Expr, negated: bool) -> Bound<Typed> {
        let (expr, _) = self.settled(self.bind(operand)?)?;
        Ok(Typed::new(
            Expr::IsNull {
                operand: Box::new(expr),
                negated,
            },
            ColumnType::Bool,
        ))
    }

    pub(super) fn is_bool(&self, operand: &ast::Expr, wanted: bool, negated: bool) -> Bound<Typed> {
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

    pub(super) fn is_distinct(&self, a: &ast::Expr, b: &ast::Expr, negated: bool) -> Bound<Typed> {
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

    pub(super) fn between(&self, expr: &ast::Expr, negated: bool, low: &ast::Expr, high: &ast::Expr) -> Bound<Typed> {
        let value = self.bind(expr)?;
        let low = self.compare(value.clone(), Comparison::Ge, self.bind(low)?)?.expr;
        let high = self.compare(value, Comparison::Le, self.bind(high)?)?.expr;
        let both = Expr::And(vec![low, high]);
        Ok(Typed::new(
            if negated { Expr::Not(Box::new(both)) } else { both },
            ColumnType::Bool,
        ))
    }

    pub(super) fn in_list(&self, expr: &ast::Expr, list: &[ast::Expr], negated: bool) -> Bound<Typed> {
        if let ast::Expr::Tuple(row) = expr {
            return self.row_in_list(row, list, negated);
        }
        let operand = self.bind(expr)?;
        let items: Vec<Typed> = list.iter().map(|e| self.bind(e)).collect::<Bound<_>>()?;
        match mixes_strings(&operand, &items) && !operand.expr.is_volatile() {
            true => self.in_strings(operand, items, negated),
            false => self.in_items(operand, items, negated),
        }
    }

    pub(super) fn in_items(&self, operand: Typed, items: Vec<Typed>, negated: bool) -> Bound<Typed> {
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

    /// IN over strings of which some are char(n). Columns are compared each by itself; the other items, where they are
    /// several, are an array in PostgreSQL, whose type is that of the first string, and so is the comparison with each.
    fn in_strings(&self, operand: Typed, items: Vec<Typed>, negated: bool) -> Bound<Typed> {
        let is_column = |item: &Typed| matches!(item.expr, Expr::Column(_) | Expr::Outer(_));
        let others = items.iter().filter(|item| !is_column(item));
        let first = [&operand].into_iter().chain(others.clone()).find_map(|item| item.ty);
        let together = (others.count() > 1).then_some(first).flatten();
        let mut arms = Vec::new();
        for item in items {
            let (mut left, mut right) = (operand.clone(), item);
            if let Some(ty) = together.filter(|_| !is_column(&right)) {
                (left, right) = (self.as_string(left, ty)?, self.as_string(right, ty)?);
            }
            arms.push(self.compare(left, Comparison::Eq, right)?.expr);
        }
        let any = match arms.len() {
            1 => arms.remove(0),
            _ => Expr::Or(arms),
        };
        let expr = if negated { Expr::Not(Box::new(any)) } else { any };
        Ok(Typed::new(expr, ColumnType::Bool))
    }

    /// The string in the type of another; open ones stay.
    fn as_string(&self, string: Typed, ty: ColumnType) -> Bound<Typed> {
        match (string.ty, ty) {
            (None, _) | (Some(ColumnType::Char(_)), ColumnType::Char(_)) => Ok(string),
            (_, ColumnType::Char(_)) => Ok(Typed::new(without_blanks(string.expr), ty)),
            _ => Ok(Typed::new(
                self.coerce(string, ColumnType::Text, Context::Implicit)?,
                ColumnType::Text,
            )),
        }
    }

    /// The type that all of these convert to; None where all are open.
    pub(super) fn common<'t>(&self, items: impl Iterator<Item = &'t Typed>, symbol: &str) -> Bound<Option<ColumnType>> {
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

    pub(super) fn like(
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
}

/// Whether char(n) stands beside other strings, and nothing but strings does.
fn mixes_strings(operand: &Typed, items: &[Typed]) -> bool {
    let types = || items.iter().chain([operand]).filter_map(|item| item.ty);
    let is_char = |ty: ColumnType| matches!(ty, ColumnType::Char(_));
    types().all(is_string) && types().any(is_char) && !types().all(is_char)
}

/// The text without blanks at its end: as char(n) compares it.
fn without_blanks(text: Expr) -> Expr {
    Expr::Call(Box::new(Call {
        function: Function::TrimRight,
        args: vec![text],
    }))
}

/// The type to which two types convert for a comparison; None where there is none.
pub fn common_type(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    use ColumnType::{Char, Date, Text, Timestamp, TimestampTz};
    match (a, b) {
        (Char(n), Char(m)) => Some(Char(n.max(m))),
        _ if same_base(a, b) => Some(base_type(a)),
        _ if is_string(a) && is_string(b) => Some(Text),
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
