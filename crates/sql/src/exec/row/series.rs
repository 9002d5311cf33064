//! Functions in FROM.

use super::Context;
use crate::error::{Result, SqlError, code};
use crate::expr::Expr;
use crate::types::array;
use cenote_engine::{Charge, ColumnType, Datum};

/// Where a function's rows stand.
#[derive(Default)]
pub struct SeriesState {
    numbers: Option<Numbers>,
    items: Option<std::vec::IntoIter<Datum>>,
    memory: Option<Charge>,
}

/// Numbers that are still to come.
#[derive(Clone, Copy)]
struct Numbers {
    next: i128,
    stop: i128,
    by: i128,
}

impl SeriesState {
    /// The next number of a series; None at its end.
    ///
    /// # Errors
    /// 22023: its steps are of size 0; 57014: the statement was cancelled.
    pub(super) fn number(
        &mut self,
        (start, stop, by): (&Expr, &Expr, Option<&Expr>),
        ty: ColumnType,
        cx: &mut Context<'_>,
    ) -> Result<Option<Datum>> {
        cx.tick()?;
        let numbers = match self.numbers {
            Some(numbers) => numbers,
            None => Numbers::of((start, stop, by), cx)?,
        };
        let is_over = match numbers.by > 0 {
            true => numbers.next > numbers.stop,
            false => numbers.next < numbers.stop,
        };
        if is_over {
            self.numbers = Some(numbers);
            return Ok(None);
        }
        self.numbers = Some(Numbers {
            next: numbers.next + numbers.by,
            ..numbers
        });
        // Between two values of the type there are only values of it.
        Ok(Some(match ty {
            ColumnType::Int4 => Datum::Int4(numbers.next as i32),
            _ => Datum::Int8(numbers.next as i64),
        }))
    }

    /// The next element of an array; None at its end.
    ///
    /// # Errors
    /// 22P02: it cannot be read; 53200: the session may gather no more; 57014: the statement was cancelled.
    pub(super) fn element(&mut self, array: &Expr, element: ColumnType, cx: &mut Context<'_>) -> Result<Option<Datum>> {
        cx.tick()?;
        if self.items.is_none() {
            let text = array.eval(&cx.env())?;
            let items = array::values(&text.as_ref(), element, cx.session.text_context())?;
            let memory = self.memory.insert(Charge::new(&cx.session.memory));
            memory.grow(crate::exec::sink::size_of_row(&items))?;
            self.items = Some(items.into_iter());
        }
        Ok(self.items.as_mut().and_then(Iterator::next))
    }
}

impl Numbers {
    /// NULL anywhere makes a series without numbers.
    fn of((start, stop, by): (&Expr, &Expr, Option<&Expr>), cx: &Context<'_>) -> Result<Numbers> {
        let env = cx.env();
        let whole = |e: &Expr| {
            Ok::<_, SqlError>(match e.eval(&env)? {
                Datum::Int2(v) => Some(i128::from(v)),
                Datum::Int4(v) => Some(i128::from(v)),
                Datum::Int8(v) => Some(i128::from(v)),
                _ => None,
            })
        };
        let by = by.map_or(Ok(Some(1)), whole)?;
        let (Some(next), Some(stop), Some(by)) = (whole(start)?, whole(stop)?, by) else {
            return Ok(Numbers {
                next: 1,
                stop: 0,
                by: 1,
            });
        };
        match by {
            0 => Err(SqlError::new(code::INVALID_ARGUMENT, "step size cannot equal zero")),
            by => Ok(Numbers { next, stop, by }),
        }
    }
}
