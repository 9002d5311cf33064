//! Aggregates: count, sum, min, max, avg, bool_and, bool_or.

use super::{Env, Expr, Input, compare};
use crate::error::{Result, SqlError, code};
use crate::types::{is_integer, numeric};
use cenote_engine::{ColumnType, Datum, DatumRef, Numeric};
use std::collections::BTreeSet;

/// Which aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `count(*)`, `count(x)`
    Count,
    /// `sum(x)`
    Sum,
    /// `min(x)`
    Min,
    /// `max(x)`
    Max,
    /// `avg(x)`
    Avg,
    /// `bool_and(x)`, `every(x)`
    And,
    /// `bool_or(x)`
    Or,
}

/// An aggregate of a statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// Which.
    pub kind: Kind,
    /// Its argument; None for `count(*)`.
    pub argument: Option<Expr>,
    /// The argument's type (as converted for the aggregate).
    pub input: ColumnType,
    /// Each value once.
    pub distinct: bool,
    /// FILTER (WHERE ...).
    pub filter: Option<Expr>,
}

impl Kind {
    /// The aggregate of this name.
    pub fn named(name: &str) -> Option<Kind> {
        Some(match name {
            "count" => Kind::Count,
            "sum" => Kind::Sum,
            "min" => Kind::Min,
            "max" => Kind::Max,
            "avg" => Kind::Avg,
            "bool_and" | "every" => Kind::And,
            "bool_or" => Kind::Or,
            _ => return None,
        })
    }

    /// Type of the result for an argument type; None where there is no such aggregate.
    pub fn result(self, input: ColumnType) -> Option<ColumnType> {
        use ColumnType::{Bool, Float4, Float8, Int2, Int4, Int8};
        let numeric = ColumnType::Numeric(None);
        Some(match (self, input) {
            (Kind::Count, _) => Int8,
            (Kind::Sum, Int2 | Int4) => Int8,
            (Kind::Sum | Kind::Avg, Int8 | ColumnType::Numeric(_)) | (Kind::Avg, Int2 | Int4) => numeric,
            (Kind::Sum, Float4) => Float4,
            (Kind::Sum, Float8) | (Kind::Avg, Float4 | Float8) => Float8,
            (Kind::Min | Kind::Max, Bool | ColumnType::Bytes) => return None,
            (Kind::Min | Kind::Max, ColumnType::Varchar(_)) => ColumnType::Text,
            (Kind::Min | Kind::Max, other) => crate::types::base_type(other),
            (Kind::And | Kind::Or, Bool) => Bool,
            _ => return None,
        })
    }
}

/// An aggregate under way.
#[derive(Debug, Clone)]
pub struct Accumulator {
    kind: Kind,
    input: ColumnType,
    count: i64,
    whole: i128,
    float: f64,
    best: Datum,
    seen: Option<BTreeSet<Vec<u8>>>,
}

impl Accumulator {
    /// The start of `aggregate`.
    pub fn new(aggregate: &Aggregate) -> Accumulator {
        Accumulator {
            kind: aggregate.kind,
            input: aggregate.input,
            count: 0,
            whole: 0,
            float: 0.0,
            best: Datum::Null,
            seen: aggregate.distinct.then(BTreeSet::new),
        }
    }

    /// Takes in one row.
    ///
    /// # Errors
    /// The argument or the filter cannot be computed, or a sum is out of range (22003).
    pub fn add(&mut self, aggregate: &Aggregate, env: &Env<'_>) -> Result<()> {
        if let Some(filter) = &aggregate.filter
            && !filter.holds(env)?
        {
            return Ok(());
        }
        let Some(argument) = &aggregate.argument else {
            self.count += 1;
            return Ok(());
        };
        if self.seen.is_none()
            && matches!(self.kind, Kind::Sum | Kind::Avg)
            && let Some(whole) = stored_integer(argument, env)?
        {
            self.count += i64::from(whole.is_some());
            self.whole += i128::from(whole.unwrap_or(0));
            return Ok(());
        }
        let value = argument.value(env)?;
        let value = value.get();
        if value.is_null() || !self.is_new(&value) {
            return Ok(());
        }
        self.count += 1;
        self.take(&value)
    }

    fn is_new(&mut self, value: &DatumRef<'_>) -> bool {
        let Some(seen) = &mut self.seen else { return true };
        let mut key = Vec::new();
        cenote_engine::key::push(self.input, value, &mut key);
        seen.insert(key)
    }

    fn take(&mut self, value: &DatumRef<'_>) -> Result<()> {
        match self.kind {
            Kind::Count => Ok(()),
            Kind::Sum | Kind::Avg => self.sum(value),
            Kind::Min | Kind::Max => {
                let trim = matches!(self.input, ColumnType::Char(_));
                let ordering = compare(value, &self.best.as_ref(), trim)?;
                let better = ordering.is_none_or(|o| if self.kind == Kind::Min { o.is_lt() } else { o.is_gt() });
                if better {
                    self.best = value.to_owned();
                }
                Ok(())
            }
            Kind::And | Kind::Or => {
                let DatumRef::Bool(value) = value else {
                    return Err(SqlError::internal("aggregate of a non-boolean"));
                };
                self.best = match (&self.best, self.kind) {
                    (Datum::Bool(so_far), Kind::And) => Datum::Bool(*so_far && *value),
                    (Datum::Bool(so_far), _) => Datum::Bool(*so_far || *value),
                    _ => Datum::Bool(*value),
                };
                Ok(())
            }
        }
    }

    fn sum(&mut self, value: &DatumRef<'_>) -> Result<()> {
        match value {
            DatumRef::Int2(v) => self.whole += i128::from(*v),
            DatumRef::Int4(v) => self.whole += i128::from(*v),
            DatumRef::Int8(v) => self.whole += i128::from(*v),
            DatumRef::Float4(v) => self.add_float(f64::from(*v))?,
            DatumRef::Float8(v) => self.add_float(*v)?,
            DatumRef::Numeric(v) => {
                self.best = Datum::Numeric(match &self.best {
                    Datum::Numeric(so_far) => numeric::add(so_far, v)?,
                    _ => v.clone(),
                });
            }
            _ => return Err(SqlError::internal("sum of a value that is no number")),
        }
        Ok(())
    }

    fn add_float(&mut self, value: f64) -> Result<()> {
        let sum = self.float + value;
        if sum.is_infinite() && self.float.is_finite() && value.is_finite() {
            return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: overflow"));
        }
        self.float = sum;
        Ok(())
    }

    /// The result.
    ///
    /// # Errors
    /// 22003: the sum is out of its type's range.
    pub fn finish(self) -> Result<Datum> {
        match self.kind {
            Kind::Count => return Ok(Datum::Int8(self.count)),
            _ if self.count == 0 => return Ok(Datum::Null),
            Kind::Min | Kind::Max | Kind::And | Kind::Or => return Ok(self.best),
            _ => {}
        }
        let average = self.kind == Kind::Avg;
        Ok(match self.input {
            ColumnType::Int2 | ColumnType::Int4 if !average => {
                Datum::Int8(i64::try_from(self.whole).map_err(|_| super::arithmetic::overflow("bigint"))?)
            }
            ColumnType::Int2 | ColumnType::Int4 | ColumnType::Int8 => {
                Datum::Numeric(share(Numeric::from_i128(self.whole), average, self.count)?)
            }
            ColumnType::Float4 if !average => Datum::Float4(self.float as f32),
            ColumnType::Float4 | ColumnType::Float8 => Datum::Float8(if average {
                self.float / self.count as f64
            } else {
                self.float
            }),
            _ => match self.best {
                Datum::Numeric(sum) => Datum::Numeric(share(sum, average, self.count)?),
                other => other,
            },
        })
    }
}

/// An integer column, read from the row as it lies there: None where the argument is something else, inner None for
/// NULL.
fn stored_integer(argument: &Expr, env: &Env<'_>) -> Result<Option<Option<i64>>> {
    let (Expr::Column(column), Input::Stored(layout, row)) = (argument, env.input) else {
        return Ok(None);
    };
    let column = usize::from(*column);
    if !is_integer(layout.column_type(column)) {
        return Ok(None);
    }
    Ok(Some(match layout.column_bytes(row, column)? {
        None => None,
        Some([a, b]) => Some(i64::from(i16::from_le_bytes([*a, *b]))),
        Some([a, b, c, d]) => Some(i64::from(i32::from_le_bytes([*a, *b, *c, *d]))),
        Some(bytes) => Some(i64::from_le_bytes(
            bytes
                .try_into()
                .map_err(|_| SqlError::internal("an integer of another width"))?,
        )),
    }))
}

fn share(sum: Numeric, average: bool, count: i64) -> Result<Numeric> {
    if average {
        numeric::div(&sum, &Numeric::from_i128(i128::from(count)))
    } else {
        Ok(sum)
    }
}
