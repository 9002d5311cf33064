//! Expressions, bound: names are positions, types are settled, every conversion is written out.
//!
//! Invariants that the binder keeps and evaluation relies on: both sides of an arithmetic operation have the
//! operation's type; both sides of a comparison have one type (integers of different widths excepted); a condition is
//! boolean or NULL.

pub mod aggregate;
mod arithmetic;
pub mod bind;
mod conditions;
pub mod elements;
pub mod functions;
pub mod labels;
mod like;
pub(crate) mod md5;
pub mod type_names;
pub mod windows;

pub use arithmetic::{Arithmetic, Number};
pub use conditions::same;
pub use functions::Call;
pub use like::{fixes_prefix, literal_prefix, test as like_matches};

use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::types::cast::{self, Context};
use cenote_engine::{ColumnType, Datum, DatumRef, RowLayout, Tx};
use std::cell::RefCell;
use std::cmp::Ordering;

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Eq,
    /// `<>`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Comparison {
    /// Whether `ordering` of left to right satisfies it.
    pub fn holds(self, ordering: Ordering) -> bool {
        match self {
            Comparison::Eq => ordering.is_eq(),
            Comparison::Ne => ordering.is_ne(),
            Comparison::Lt => ordering.is_lt(),
            Comparison::Le => ordering.is_le(),
            Comparison::Gt => ordering.is_gt(),
            Comparison::Ge => ordering.is_ge(),
        }
    }

    /// With the sides exchanged.
    pub fn mirrored(self) -> Comparison {
        match self {
            Comparison::Lt => Comparison::Gt,
            Comparison::Le => Comparison::Ge,
            Comparison::Gt => Comparison::Lt,
            Comparison::Ge => Comparison::Le,
            same => same,
        }
    }

    /// The operator.
    pub fn symbol(self) -> &'static str {
        match self {
            Comparison::Eq => "=",
            Comparison::Ne => "<>",
            Comparison::Lt => "<",
            Comparison::Le => "<=",
            Comparison::Gt => ">",
            Comparison::Ge => ">=",
        }
    }
}

/// A bound expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A literal.
    Const(Datum),
    /// `$n`, counted from 0.
    Param(u16),
    /// A column of the input row.
    Column(u16),
    /// A column of `excluded` in ON CONFLICT DO UPDATE.
    Proposed(u16),
    /// A slot of the row executor's tuple, seen from a scan: what relations joined before gave.
    Outer(u16),
    /// `+ - * / %` and bit operations on numbers of one type.
    Arithmetic(Arithmetic, Number, Box<Expr>, Box<Expr>),
    /// `-x`
    Negate(Box<Expr>),
    /// A comparison; `trim`: char(n), whose trailing blanks do not count.
    Compare {
        op: Comparison,
        trim: bool,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// All of these.
    And(Vec<Expr>),
    /// Any of these.
    Or(Vec<Expr>),
    /// `NOT x`
    Not(Box<Expr>),
    /// `IS [NOT] NULL`
    IsNull { operand: Box<Expr>, negated: bool },
    /// `IS [NOT] TRUE | FALSE`; `IS UNKNOWN` is `IS NULL`.
    IsBool {
        operand: Box<Expr>,
        wanted: bool,
        negated: bool,
    },
    /// `IS [NOT] DISTINCT FROM`
    IsDistinct {
        trim: bool,
        left: Box<Expr>,
        right: Box<Expr>,
        negated: bool,
    },
    /// `[NOT] IN (list)`
    InList {
        operand: Box<Expr>,
        list: Vec<Expr>,
        trim: bool,
        negated: bool,
    },
    /// `(a, b) < (c, d)`: the first pair that is not equal decides. Each pair with whether it is char(n).
    CompareRows {
        op: Comparison,
        pairs: Vec<(Expr, Expr, bool)>,
    },
    /// `operand op ANY (array)`, `ALL`: the array is text, `{1,2,NULL}`.
    AnyOf {
        operand: Box<Expr>,
        array: Box<Expr>,
        element: ColumnType,
        op: Comparison,
        all: bool,
        trim: bool,
        /// Its elements, once they are known.
        parsed: elements::Parsed,
    },
    /// `[NOT] [I]LIKE`
    Like {
        text: Box<Expr>,
        pattern: Box<Expr>,
        escape: Option<Box<Expr>>,
        ignore_case: bool,
        negated: bool,
    },
    /// `CASE WHEN c THEN r ... ELSE e END`
    Case {
        branches: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    /// The first that is not NULL.
    Coalesce(Vec<Expr>),
    /// A conversion.
    Cast {
        operand: Box<Expr>,
        to: ColumnType,
        context: Context,
    },
    /// char(n) as text: without trailing blanks.
    TrimBlanks(Box<Expr>),
    /// A function.
    Call(Box<Call>),
    /// A subquery of the row executor, run when its answer is asked for.
    Subquery(Box<Subquery>),
}

/// A subquery, as the expression around it sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Subquery {
    /// Which of the plan's.
    pub at: u16,
    /// What it reads of the row around it.
    pub args: Vec<Expr>,
    /// Whether it may give another answer for the same arguments.
    pub volatile: bool,
}

/// Runs the subqueries of a plan.
pub trait Subqueries {
    /// What the subquery answers for the row of `env`.
    ///
    /// # Errors
    /// An argument cannot be computed, or the subquery fails.
    fn answer(&self, subquery: &Subquery, env: &Env<'_>) -> Result<Datum>;
}

/// The row that columns refer to.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// No FROM.
    Nothing,
    /// A row as stored.
    Stored(&'a RowLayout, &'a [u8]),
    /// Values in memory.
    Values(&'a [Datum]),
    /// ON CONFLICT: the row that is there, and the one proposed.
    Upsert(&'a RowLayout, &'a [u8], &'a [Datum]),
}

/// What evaluation can see.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Parameters.
    pub params: &'a [Datum],
    /// The input row.
    pub input: Input<'a>,
    /// The row executor's tuple around a scan.
    pub outer: &'a [Datum],
    /// The session.
    pub session: &'a SessionEnv,
    /// For `nextval` and `setval`, where the statement may use them.
    pub sequences: Option<&'a RefCell<&'a mut Tx>>,
    /// The subqueries of the row executor's plan.
    pub subqueries: Option<&'a dyn Subqueries>,
}

/// A value that may borrow from row, plan or parameters.
pub enum Value<'a> {
    /// Borrowed.
    Ref(DatumRef<'a>),
    /// Computed.
    Owned(Datum),
}

impl Value<'_> {
    /// The value, borrowed.
    pub fn get(&self) -> DatumRef<'_> {
        match self {
            Value::Ref(datum) => datum.clone(),
            Value::Owned(datum) => datum.as_ref(),
        }
    }

    /// The value, owned.
    pub fn into_datum(self) -> Datum {
        match self {
            Value::Ref(datum) => datum.into_owned(),
            Value::Owned(datum) => datum,
        }
    }
}

impl Env<'_> {
    fn column(&self, index: u16) -> Result<Value<'_>> {
        let index = usize::from(index);
        Ok(match self.input {
            Input::Stored(layout, row) | Input::Upsert(layout, row, _) => Value::Ref(layout.column(row, index)?),
            Input::Values(values) => Value::Ref(values.get(index).ok_or_else(out_of_row)?.as_ref()),
            Input::Nothing => return Err(out_of_row()),
        })
    }

    fn proposed(&self, index: u16) -> Result<Value<'_>> {
        match self.input {
            Input::Upsert(_, _, values) => Ok(Value::Ref(
                values.get(usize::from(index)).ok_or_else(out_of_row)?.as_ref(),
            )),
            _ => Err(out_of_row()),
        }
    }
}

#[cold]
fn out_of_row() -> SqlError {
    SqlError::internal("column outside the row")
}

impl Expr {
    /// The value, without copying where it is a column, literal or parameter.
    ///
    /// # Errors
    /// A part of the expression cannot be computed, such as 22012 and 22003.
    pub fn value<'a>(&'a self, env: &'a Env<'_>) -> Result<Value<'a>> {
        match self {
            Expr::Const(datum) => Ok(Value::Ref(datum.as_ref())),
            Expr::Param(index) => match env.params.get(usize::from(*index)) {
                Some(datum) => Ok(Value::Ref(datum.as_ref())),
                None => Err(SqlError::new(
                    code::UNDEFINED_PARAMETER,
                    format!("there is no parameter ${}", index + 1),
                )),
            },
            Expr::Column(index) => env.column(*index),
            Expr::Proposed(index) => env.proposed(*index),
            Expr::Outer(slot) => match env.outer.get(usize::from(*slot)) {
                Some(datum) => Ok(Value::Ref(datum.as_ref())),
                None => Err(out_of_row()),
            },
            computed => computed.compute(env).map(Value::Owned),
        }
    }

    /// The value, owned.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    pub fn eval(&self, env: &Env<'_>) -> Result<Datum> {
        Ok(self.value(env)?.into_datum())
    }

    fn compute(&self, env: &Env<'_>) -> Result<Datum> {
        match self {
            Expr::Const(_) | Expr::Param(_) | Expr::Column(_) | Expr::Proposed(_) | Expr::Outer(_) => self.eval(env),
            Expr::Arithmetic(op, number, left, right) => {
                arithmetic::binary(*op, *number, &left.value(env)?, &right.value(env)?)
            }
            Expr::Negate(operand) => arithmetic::negate(operand.eval(env)?),
            Expr::Case { branches, otherwise } => {
                for (condition, result) in branches {
                    if condition.holds(env)? {
                        return result.eval(env);
                    }
                }
                otherwise.as_ref().map_or(Ok(Datum::Null), |e| e.eval(env))
            }
            Expr::Coalesce(list) => {
                for item in list {
                    let value = item.eval(env)?;
                    if !value.is_null() {
                        return Ok(value);
                    }
                }
                Ok(Datum::Null)
            }
            Expr::Cast { operand, to, context } => {
                cast::cast(operand.eval(env)?, *to, *context, env.session.text_context())
            }
            Expr::TrimBlanks(operand) => Ok(match operand.eval(env)? {
                Datum::Text(mut text) => {
                    text.truncate(text.trim_end_matches(' ').len());
                    Datum::Text(text)
                }
                other => other,
            }),
            Expr::Call(call) => functions::call(call, env),
            Expr::Subquery(subquery) => match env.subqueries {
                Some(subqueries) => subqueries.answer(subquery, env),
                None => Err(SqlError::internal("a subquery outside of the row executor")),
            },
            condition => Ok(condition.test(env)?.map_or(Datum::Null, Datum::Bool)),
        }
    }

    /// Whether a condition is true (NULL is not).
    ///
    /// # Errors
    /// An operand cannot be computed.
    pub fn holds(&self, env: &Env<'_>) -> Result<bool> {
        Ok(self.test(env)? == Some(true))
    }

    /// Calls `visit` with this expression and all below it.
    pub fn walk(&self, visit: &mut dyn FnMut(&Expr)) {
        visit(self);
        match self {
            Expr::Const(_) | Expr::Param(_) | Expr::Column(_) | Expr::Proposed(_) | Expr::Outer(_) => {}
            Expr::Arithmetic(_, _, a, b)
            | Expr::Compare { left: a, right: b, .. }
            | Expr::IsDistinct { left: a, right: b, .. } => {
                a.walk(visit);
                b.walk(visit);
            }
            Expr::Negate(a) | Expr::Not(a) | Expr::TrimBlanks(a) => a.walk(visit),
            Expr::IsNull { operand, .. } | Expr::IsBool { operand, .. } | Expr::Cast { operand, .. } => {
                operand.walk(visit)
            }
            Expr::And(list) | Expr::Or(list) | Expr::Coalesce(list) => list.iter().for_each(|e| e.walk(visit)),
            Expr::InList { operand, list, .. } => {
                operand.walk(visit);
                list.iter().for_each(|e| e.walk(visit));
            }
            Expr::CompareRows { pairs, .. } => pairs.iter().for_each(|(a, b, _)| {
                a.walk(visit);
                b.walk(visit);
            }),
            Expr::AnyOf { operand, array, .. } => {
                operand.walk(visit);
                array.walk(visit);
            }
            Expr::Like {
                text, pattern, escape, ..
            } => {
                text.walk(visit);
                pattern.walk(visit);
                escape.iter().for_each(|e| e.walk(visit));
            }
            Expr::Case { branches, otherwise } => {
                branches.iter().for_each(|(c, r)| {
                    c.walk(visit);
                    r.walk(visit);
                });
                otherwise.iter().for_each(|e| e.walk(visit));
            }
            Expr::Call(call) => call.args.iter().for_each(|e| e.walk(visit)),
            Expr::Subquery(subquery) => subquery.args.iter().for_each(|e| e.walk(visit)),
        }
    }

    /// Calls `visit` with this expression and all below it, to change them.
    pub fn each_mut(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        visit(self);
        match self {
            Expr::Const(_) | Expr::Param(_) | Expr::Column(_) | Expr::Proposed(_) | Expr::Outer(_) => {}
            Expr::Arithmetic(_, _, a, b)
            | Expr::Compare { left: a, right: b, .. }
            | Expr::IsDistinct { left: a, right: b, .. } => {
                a.each_mut(visit);
                b.each_mut(visit);
            }
            Expr::Negate(a) | Expr::Not(a) | Expr::TrimBlanks(a) => a.each_mut(visit),
            Expr::IsNull { operand, .. } | Expr::IsBool { operand, .. } | Expr::Cast { operand, .. } => {
                operand.each_mut(visit)
            }
            Expr::And(list) | Expr::Or(list) | Expr::Coalesce(list) => list.iter_mut().for_each(|e| e.each_mut(visit)),
            Expr::InList { operand, list, .. } => {
                operand.each_mut(visit);
                list.iter_mut().for_each(|e| e.each_mut(visit));
            }
            Expr::CompareRows { pairs, .. } => pairs.iter_mut().for_each(|(a, b, _)| {
                a.each_mut(visit);
                b.each_mut(visit);
            }),
            Expr::AnyOf { operand, array, .. } => {
                operand.each_mut(visit);
                array.each_mut(visit);
            }
            Expr::Like {
                text, pattern, escape, ..
            } => {
                text.each_mut(visit);
                pattern.each_mut(visit);
                escape.iter_mut().for_each(|e| e.each_mut(visit));
            }
            Expr::Case { branches, otherwise } => {
                branches.iter_mut().for_each(|(c, r)| {
                    c.each_mut(visit);
                    r.each_mut(visit);
                });
                otherwise.iter_mut().for_each(|e| e.each_mut(visit));
            }
            Expr::Call(call) => call.args.iter_mut().for_each(|e| e.each_mut(visit)),
            Expr::Subquery(subquery) => subquery.args.iter_mut().for_each(|e| e.each_mut(visit)),
        }
    }

    /// Whether the value is the same for every row of a statement.
    pub fn is_row_free(&self) -> bool {
        let mut free = true;
        self.walk(&mut |e| {
            free &= !matches!(e, Expr::Column(_) | Expr::Proposed(_)) && !e.is_volatile_itself();
        });
        free
    }

    /// Whether a function occurs that may give another value on each call.
    pub fn is_volatile(&self) -> bool {
        let mut found = false;
        self.walk(&mut |e| found |= e.is_volatile_itself());
        found
    }

    fn is_volatile_itself(&self) -> bool {
        match self {
            Expr::Call(call) => call.function.is_volatile(),
            Expr::Subquery(subquery) => subquery.volatile,
            _ => false,
        }
    }

    /// Whether `nextval` or `setval` occurs.
    pub fn uses_sequences(&self) -> bool {
        let mut found = false;
        self.walk(&mut |e| found |= matches!(e, Expr::Call(call) if call.function.uses_sequences()));
        found
    }

    /// Whether `set_config` occurs.
    pub fn sets_config(&self) -> bool {
        let mut found = false;
        self.walk(&mut |e| found |= matches!(e, Expr::Call(call) if call.function == functions::Function::SetConfig));
        found
    }
}

/// Order of two values of one type (integers of any width among each other); None where one is NULL.
///
/// # Errors
/// XX000: the values have types that do not compare.
pub fn compare(a: &DatumRef<'_>, b: &DatumRef<'_>, trim: bool) -> Result<Option<Ordering>> {
    if let (Some(x), Some(y)) = (integer(a), integer(b)) {
        return Ok(Some(x.cmp(&y)));
    }
    if a.is_null() || b.is_null() {
        return Ok(None);
    }
    if trim && let (DatumRef::Text(x), DatumRef::Text(y)) = (a, b) {
        return Ok(Some(compare_padded(x.as_bytes(), y.as_bytes())));
    }
    match a.compare(b) {
        Some(ordering) => Ok(Some(ordering)),
        None => Err(SqlError::internal("comparison of values of different types")),
    }
}

/// Order without trailing blanks, found without looking for them where the texts differ before.
pub fn compare_padded(a: &[u8], b: &[u8]) -> Ordering {
    let blank = |rest: &[u8]| rest.iter().all(|b| *b == b' ');
    let common = a.len().min(b.len());
    match a[..common].iter().zip(&b[..common]).position(|(x, y)| x != y) {
        Some(at) if a[at] == b' ' && blank(&a[at..]) => Ordering::Less,
        Some(at) if b[at] == b' ' && blank(&b[at..]) => Ordering::Greater,
        Some(at) => a[at].cmp(&b[at]),
        None if a.len() > common && !blank(&a[common..]) => Ordering::Greater,
        None if b.len() > common && !blank(&b[common..]) => Ordering::Less,
        None => Ordering::Equal,
    }
}

#[inline]
fn integer(datum: &DatumRef<'_>) -> Option<i64> {
    match datum {
        DatumRef::Int2(v) => Some(i64::from(*v)),
        DatumRef::Int4(v) => Some(i64::from(*v)),
        DatumRef::Int8(v) => Some(*v),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn padding_does_not_count(a in "[\u{1} ab]{0,5}", b in "[\u{1} ab]{0,5}") {
            let trimmed = |s: &str| s.trim_end_matches(' ').as_bytes().to_vec();
            prop_assert_eq!(compare_padded(a.as_bytes(), b.as_bytes()), trimmed(&a).cmp(&trimmed(&b)));
        }
    }
}
