//! The elements of an array parameter, taken apart once for all rows that are compared with them.

use super::{Comparison, compare};
use crate::error::Result;
use crate::types::array;
use crate::types::text::TextContext;
use cenote_base::rt::Mutex;
use cenote_engine::{ColumnType, Datum, DatumRef};
use std::cmp::Ordering;
use std::sync::Arc;

/// Elements in order, without NULL.
#[derive(Debug)]
struct Elements {
    text: String,
    sorted: Vec<Datum>,
    has_null: bool,
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
        cx: TextContext<'_>,
    ) -> Result<Arc<Elements>> {
        let DatumRef::Text(text) = array else {
            return Err(crate::error::SqlError::internal("an array that is not held as text"));
        };
        let mut last = self.0.lock();
        if let Some(known) = last.as_ref().filter(|known| known.text == *text) {
            return Ok(known.clone());
        }
        let all = array::values(array, element, cx)?;
        let count = all.len();
        let mut sorted: Vec<Datum> = all.into_iter().filter(|d| !d.is_null()).collect();
        let order = |a: &Datum, b: &Datum| compare(&a.as_ref(), &b.as_ref(), trim).ok().flatten();
        sorted.sort_by(|a, b| order(a, b).unwrap_or(Ordering::Equal));
        let elements = Arc::new(Elements {
            text: (*text).to_string(),
            has_null: sorted.len() < count,
            sorted,
        });
        *last = Some(elements.clone());
        Ok(elements)
    }

    /// `operand op ANY (array)`, or ALL; None: unknown.
    ///
    /// # Errors
    /// 22P02: the array or an element cannot be read.
    pub fn test(
        &self,
        operand: &DatumRef<'_>,
        array: &DatumRef<'_>,
        (element, trim): (ColumnType, bool),
        (op, all): (Comparison, bool),
        cx: TextContext<'_>,
    ) -> Result<Option<bool>> {
        if array.is_null() {
            return Ok(None);
        }
        let elements = self.elements(array, (element, trim), cx)?;
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
