//! The elements of an array parameter, taken apart once for all rows that are compared with them.

use super::{Comparison, compare};
use crate::env::SessionEnv;
use crate::error::Result;
use crate::types::array;
use cenote_base::rt::Mutex;
use cenote_engine::{Charge, ColumnType, Datum, DatumRef};
use std::cmp::Ordering;
use std::sync::Arc;

/// Elements that take more than this are counted as the session's memory: a plan that is kept holds them between runs.
const BYTES_FREE: usize = 16 << 10;

/// Elements in order, without NULL.
#[derive(Debug)]
struct Elements {
    text: String,
    sorted: Vec<Datum>,
    has_null: bool,
    _memory: Option<Charge>,
}

/// The elements of the array that was met last. Plans are copied without them.
#[derive(Default)]
pub struct Parsed(Mutex<Option<Arc<Elements>>>);

impl Clone for Parsed {
    fn clone(&self) -> Parsed {
        Parsed::default()
    }
}

impl PartialEq for Parsed {
    fn eq(&self, _: &Parsed) -> bool {
        true
    }
}

impl std::fmt::Debug for Parsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parsed")
    }
}

impl Parsed {
    /// The elements of this array; sorted when it is another than the one before.
    fn elements(
        &self,
        array: &DatumRef<'_>,
        (element, trim): (ColumnType, bool),
        session: &SessionEnv,
    ) -> Result<Arc<Elements>> {
        let DatumRef::Text(text) = array else {
            return Err(crate::error::SqlError::internal("an array that is not held as text"));
        };
        let mut last = self.0.lock();
        if let Some(known) = last.as_ref().filter(|known| known.text == *text) {
            return Ok(known.clone());
        }
        // The former ones make room first.
        *last = None;
        let memory = charged(text, session)?;
        let all = array::values(array, element, session.text_context())?;
        let count = all.len();
        let mut sorted: Vec<Datum> = all.into_iter().filter(|d| !d.is_null()).collect();
        let order = |a: &Datum, b: &Datum| compare(&a.as_ref(), &b.as_ref(), trim).ok().flatten();
        sorted.sort_by(|a, b| order(a, b).unwrap_or(Ordering::Equal));
        let elements = Arc::new(Elements {
            text: (*text).to_string(),
            has_null: sorted.len() < count,
            sorted,
            _memory: memory,
        });
        *last = Some(elements.clone());
        Ok(elements)
    }

    /// `operand op ANY (array)`, or ALL; None: unknown.
    ///
    /// # Errors
    /// 22P02: the array or an element cannot be read. 53200: the session may not hold so many.
    pub fn test(
        &self,
        operand: &DatumRef<'_>,
        array: &DatumRef<'_>,
        (element, trim): (ColumnType, bool),
        (op, all): (Comparison, bool),
        session: &SessionEnv,
    ) -> Result<Option<bool>> {
        if array.is_null() {
            return Ok(None);
        }
        let elements = self.elements(array, (element, trim), session)?;
        if elements.sorted.is_empty() && !elements.has_null {
            return Ok(Some(all));
        }
        if operand.is_null() {
            return Ok(None);
        }
        let holds = elements.holds(operand, (op, all), trim)?;
        // A NULL leaves open what no other element settles.
        Ok(match holds {
            holds if holds != all => Some(holds),
            _ if elements.has_null => None,
            holds => Some(holds),
        })
    }
}

/// What an array of this text takes while it is read, and as elements.
fn charged(text: &str, session: &SessionEnv) -> Result<Option<Charge>> {
    let count = text.bytes().filter(|byte| *byte == b',').count() + 1;
    let bytes = 2 * text.len() + count * (size_of::<Datum>() + size_of::<Option<String>>());
    if bytes <= BYTES_FREE {
        return Ok(None);
    }
    let mut memory = Charge::new(&session.memory);
    memory.grow(bytes)?;
    Ok(Some(memory))
}

impl Elements {
    /// By the least and the greatest element, or by a search.
    fn holds(&self, operand: &DatumRef<'_>, (op, all): (Comparison, bool), trim: bool) -> Result<bool> {
        let (Some(least), Some(greatest)) = (self.sorted.first(), self.sorted.last()) else {
            return Ok(all);
        };
        let to = |item: &Datum| compare(operand, &item.as_ref(), trim).map(|o| o.unwrap_or(Ordering::Equal));
        Ok(match (op, all) {
            (Comparison::Eq, false) => self.has(operand, trim)?,
            (Comparison::Ne, true) => !self.has(operand, trim)?,
            (Comparison::Eq, true) => to(least)?.is_eq() && to(greatest)?.is_eq(),
            (Comparison::Ne, false) => to(least)?.is_ne() || to(greatest)?.is_ne(),
            (Comparison::Lt | Comparison::Le, false) | (Comparison::Gt | Comparison::Ge, true) => {
                op.holds(to(greatest)?)
            }
            (Comparison::Gt | Comparison::Ge, false) | (Comparison::Lt | Comparison::Le, true) => op.holds(to(least)?),
        })
    }

    fn has(&self, operand: &DatumRef<'_>, trim: bool) -> Result<bool> {
        let mut failed = None;
        let found = self
            .sorted
            .binary_search_by(|item| match compare(&item.as_ref(), operand, trim) {
                Ok(ordering) => ordering.unwrap_or(Ordering::Equal),
                Err(error) => {
                    failed = Some(error);
                    Ordering::Equal
                }
            });
        match failed {
            Some(error) => Err(error),
            None => Ok(found.is_ok()),
        }
    }
}
