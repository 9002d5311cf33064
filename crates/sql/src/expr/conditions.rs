//! Conditions with three values: true, false, and unknown (`None`).

use super::{Comparison, Env, Expr, Value, compare, like};
use crate::error::{Result, SqlError};
use cenote_engine::{Datum, DatumRef};
use std::cmp::Ordering;

impl Expr {
    /// The truth of a condition.
    ///
    /// # Errors
    /// An operand cannot be computed.
    pub fn test(&self, env: &Env<'_>) -> Result<Option<bool>> {
        match self {
            Expr::Compare { op, trim, left, right } => {
                let ordering = compare(&left.value(env)?.get(), &right.value(env)?.get(), *trim)?;
                Ok(ordering.map(|o| op.holds(o)))
            }
            Expr::And(list) => combine(list, env, false),
            Expr::Or(list) => combine(list, env, true),
            Expr::Not(operand) => Ok(operand.test(env)?.map(|b| !b)),
            Expr::IsNull { operand, negated } => Ok(Some(operand.value(env)?.get().is_null() != *negated)),
            Expr::IsBool {
                operand,
                wanted,
                negated,
            } => Ok(Some((operand.test(env)? == Some(*wanted)) != *negated)),
            Expr::IsDistinct {
                trim,
                left,
                right,
                negated,
            } => distinct(&left.value(env)?, &right.value(env)?, *trim).map(|d| Some(d != *negated)),
            Expr::InList {
                operand,
                list,
                trim,
                negated,
            } => Ok(in_list(operand, list, *trim, env)?.map(|found| found != *negated)),
            Expr::CompareRows { op, pairs } => compare_rows(*op, pairs, env),
            Expr::AnyOf {
                operand,
                array,
                element,
                op,
                all,
                trim,
                parsed,
            } => parsed.test(
                &operand.value(env)?.get(),
                &array.value(env)?.get(),
                (*element, *trim),
                (*op, *all),
                env.session,
            ),
            Expr::Like {
                text,
                pattern,
                escape,
                ignore_case,
                negated,
            } => {
                let escape = escape.as_ref().map(|e| e.value(env)).transpose()?;
                let matched = like::test(
                    &text.value(env)?.get(),
                    &pattern.value(env)?.get(),
                    escape.as_ref().map(Value::get),
                    *ignore_case,
                )?;
                Ok(matched.map(|m| m != *negated))
            }
            other => match other.value(env)?.get() {
                DatumRef::Null => Ok(None),
                DatumRef::Bool(b) => Ok(Some(b)),
                _ => Err(SqlError::internal("condition that is not boolean")),
            },
        }
    }
}

/// AND (`decides` false) and OR (`decides` true): one operand with that value settles it.
fn combine(list: &[Expr], env: &Env<'_>, decides: bool) -> Result<Option<bool>> {
    let mut unknown = false;
    for item in list {
        match item.test(env)? {
            Some(value) if value == decides => return Ok(Some(decides)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown { None } else { Some(!decides) })
}

fn distinct(left: &Value<'_>, right: &Value<'_>, trim: bool) -> Result<bool> {
    let (left, right) = (left.get(), right.get());
    Ok(match compare(&left, &right, trim)? {
        Some(ordering) => ordering != Ordering::Equal,
        None => left.is_null() != right.is_null(),
    })
}

fn in_list(operand: &Expr, list: &[Expr], trim: bool, env: &Env<'_>) -> Result<Option<bool>> {
    let operand = operand.value(env)?;
    let operand = operand.get();
    let mut unknown = false;
    for item in list {
        match compare(&operand, &item.value(env)?.get(), trim)? {
            Some(Ordering::Equal) => return Ok(Some(true)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown { None } else { Some(false) })
}

/// The first pair that is not equal decides; one that is NULL before it leaves the answer open.
fn compare_rows(op: Comparison, pairs: &[(Expr, Expr, bool)], env: &Env<'_>) -> Result<Option<bool>> {
    for (left, right, trim) in pairs {
        match compare(&left.value(env)?.get(), &right.value(env)?.get(), *trim)? {
            None => return Ok(None),
            Some(Ordering::Equal) => {}
            Some(unequal) => return Ok(Some(op.holds(unequal))),
        }
    }
    Ok(Some(op.holds(Ordering::Equal)))
}

/// Equality of two values, NULL being equal to NULL: for grouping and DISTINCT.
pub fn same(a: &Datum, b: &Datum, trim: bool) -> bool {
    match compare(&a.as_ref(), &b.as_ref(), trim) {
        Ok(Some(ordering)) => ordering.is_eq(),
        _ => a.is_null() && b.is_null(),
    }
}
