//! One text column, ordered by itself or made distinct: `SELECT [DISTINCT] c FROM t WHERE ... ORDER BY c`.
//!
//! The texts are gathered end to end in one buffer and only their places are sorted: nothing is allocated a row.

use super::sink::Sink;
use crate::error::{Result, SqlError, code};
use crate::expr::{Expr, compare_padded};
use crate::plan::select::SelectPlan;
use crate::types::is_string;
use cenote_engine::{Account, Charge, ColumnType};
use std::cmp::Ordering;
use std::sync::Arc;

/// Start and length of a text in the buffer; a length of `u32::MAX` is NULL.
type Place = (u32, u32);

const NULL: u32 = u32::MAX;
/// Memory that a session keeps from one statement to the next, in bytes.
const KEPT_BYTES: usize = 1 << 20;

/// The texts of a result.
#[derive(Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    places: Vec<Place>,
    at: usize,
    memory: Option<Charge>,
}

/// The column, where the plan has this shape.
pub fn single_text(plan: &SelectPlan) -> Option<usize> {
    let access = plan.access.as_ref()?;
    let [Expr::Column(column)] = plan.outputs.as_slice() else {
        return None;
    };
    let column = usize::from(*column);
    let plain = plan.group.is_none() && plan.lock.is_none() && plan.order.len() <= 1;
    (plain && is_string(access.table.layout().column_type(column))).then_some(column)
}

impl Texts {
    /// Empty, with the memory kept; what comes is charged to `account`.
    pub fn begin(&mut self, account: &Arc<Account>) {
        self.bytes.clear();
        self.places.clear();
        self.at = 0;
        self.memory = Some(Charge::new(account));
    }

    /// Nothing is needed any more: a little memory is kept for the next.
    pub fn end(&mut self) {
        self.memory = None;
        if self.bytes.capacity() + size_of::<Place>() * self.places.capacity() > KEPT_BYTES {
            (self.bytes, self.places) = Default::default();
        }
    }

    /// Takes in one text.
    ///
    /// # Errors
    /// 53200: the session may gather no more. The texts together are longer than 4 GiB.
    pub fn push(&mut self, text: Option<&[u8]>) -> Result<()> {
        if let Some(memory) = &mut self.memory {
            memory.grow(text.map_or(0, <[u8]>::len) + size_of::<Place>())?;
        }
        let start = self.bytes.len() as u32;
        if self.bytes.len() + text.map_or(0, <[u8]>::len) >= NULL as usize {
            return Err(too_long());
        }
        let Some(text) = text else {
            self.places.push((start, NULL));
            return Ok(());
        };
        self.bytes.extend_from_slice(text);
        self.places.push((start, text.len() as u32));
        Ok(())
    }

    /// Puts them in order, each once if the plan says so, and cuts off what OFFSET and LIMIT leave out.
    pub fn arrange(&mut self, plan: &SelectPlan, skip: u64, left: u64) {
        let trim = matches!(plan.types.first(), Some(ColumnType::Char(_)));
        let (descending, nulls_first) = plan
            .order
            .first()
            .map_or((false, false), |k| (k.descending, k.nulls_first));
        let bytes = &self.bytes;
        let order = |a: &Place, b: &Place| match (text(bytes, *a), text(bytes, *b)) {
            (Some(a), Some(b)) => {
                let ordering = if trim { compare_padded(a, b) } else { a.cmp(b) };
                if descending { ordering.reverse() } else { ordering }
            }
            (None, None) => Ordering::Equal,
            (None, Some(_)) => {
                if nulls_first {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            (Some(_), None) => {
                if nulls_first {
                    Ordering::Greater
                } else {
                    Ordering::Less
                }
            }
        };
        self.places.sort_unstable_by(order);
        if plan.distinct {
            self.places.dedup_by(|a, b| order(a, b).is_eq());
        }
        self.at = usize::try_from(skip).unwrap_or(usize::MAX).min(self.places.len());
        let end = self.at.saturating_add(usize::try_from(left).unwrap_or(usize::MAX));
        self.places.truncate(end);
    }

    /// Gives the next one to the sink; false at the end.
    ///
    /// # Errors
    /// As the sink.
    pub fn give(&mut self, sink: &mut dyn Sink) -> Result<bool> {
        let Some(place) = self.places.get(self.at) else {
            return Ok(false);
        };
        sink.text(text(&self.bytes, *place))?;
        self.at += 1;
        Ok(true)
    }
}

/// Places are numbers of 32 bits.
#[cold]
fn too_long() -> SqlError {
    let text = "query needs more than 4 GiB to sort its texts";
    SqlError::new(code::OUT_OF_MEMORY, text).with_hint("Restrict the rows, or add an index that gives the order.")
}

fn text(bytes: &[u8], (start, len): Place) -> Option<&[u8]> {
    (len != NULL).then(|| &bytes[start as usize..start as usize + len as usize])
}
