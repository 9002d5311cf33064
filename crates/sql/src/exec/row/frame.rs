//! Frames of window functions: for each row of a partition a stretch of it, by rows, by groups of equal rows, or by the
//! distance of the sort key.

use super::Context;
use super::window::{Partition, Values};
use crate::error::{Result, SqlError, code};
use crate::expr::aggregate::{Accumulator, Aggregate};
use crate::plan::row::{Frame, FrameBound, FrameValue, Units};
use crate::types::numeric;
use cenote_engine::{Datum, Numeric};
use std::ops::Range;

/// An offset of a frame, once it is known.
enum Offset {
    None,
    Count(i64),
    Number(Numeric),
}

/// A sort key that has distances.
#[derive(Clone, PartialEq, PartialOrd)]
enum Distance {
    Whole(i128),
    Exact(Numeric),
}

/// A row with its place: itself, and the number of its group of equal rows.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    group: usize,
}

impl Partition<'_> {
    /// Appends the value of each row's frame.
    ///
    /// # Errors
    /// As the expressions; 22013, 22004: an offset is negative or NULL; 53200: the session may gather no more.
    pub(super) fn framed(
        &self,
        (value, frame): (&FrameValue, &Frame),
        values: &mut Values<'_>,
        cx: &mut Context<'_>,
    ) -> Result<()> {
        let start = offset(&frame.start, "starting", frame.units, cx)?;
        let end = offset(&frame.end, "ending", frame.units, cx)?;
        let mut aggregate_of = match value {
            FrameValue::Aggregate(aggregate) => Some(FrameAggregate::new(aggregate)),
            _ => None,
        };
        for (group, peers) in self.peers.iter().enumerate() {
            for row in peers.clone() {
                cx.tick()?;
                let place = Place { row, group };
                let from = self.edge(frame.units, (&frame.start, &start), place, false)?;
                let to = self.edge(frame.units, (&frame.end, &end), place, true)?;
                let stretch = from..to.max(from);
                let value = match &mut aggregate_of {
                    Some(aggregate_of) => aggregate_of.of(self, stretch, cx)?,
                    None => self.value_of(value, place.row, stretch, cx)?,
                };
                values.push(value)?;
            }
        }
        Ok(())
    }

    fn value_of(&self, value: &FrameValue, row: usize, stretch: Range<usize>, cx: &mut Context<'_>) -> Result<Datum> {
        let (expr, at) = match value {
            FrameValue::First(expr) => (expr, Some(stretch.start)),
            FrameValue::Last(expr) => (expr, stretch.end.checked_sub(1)),
            FrameValue::Nth(expr, number) => match self.of_row(row, number, cx)? {
                Datum::Int4(n) if n > 0 => (expr, Some(stretch.start + n as usize - 1)),
                Datum::Int4(_) => {
                    let text = "argument of nth_value must be greater than zero";
                    return Err(SqlError::new(code::INVALID_NTH_VALUE, text));
                }
                _ => return Ok(Datum::Null),
            },
            FrameValue::Aggregate(_) => return Err(SqlError::internal("an aggregate as a row of its frame")),
        };
        match at.filter(|at| stretch.contains(at)) {
            Some(at) => self.of_row(at, expr, cx),
            None => Ok(Datum::Null),
        }
    }

    /// Where the frame begins, or the place behind its last row.
    fn edge(&self, units: Units, (bound, offset): (&FrameBound, &Offset), place: Place, is_end: bool) -> Result<usize> {
        let (part, peers) = (&self.part, &self.peers[place.group]);
        let is_before = match bound {
            FrameBound::Unbounded => return Ok(if is_end { part.end } else { part.start }),
            FrameBound::Current if units == Units::Rows => return Ok(place.row + usize::from(is_end)),
            FrameBound::Current => return Ok(if is_end { peers.end } else { peers.start }),
            FrameBound::Preceding(_) => true,
            FrameBound::Following(_) => false,
        };
        let moved = |from: usize, by: i64| from as i128 + if is_before { -i128::from(by) } else { i128::from(by) };
        match (units, offset) {
            (Units::Rows, Offset::Count(by)) => {
                let at = moved(place.row, *by) + i128::from(is_end);
                Ok(at.clamp(part.start as i128, part.end as i128) as usize)
            }
            (Units::Groups, Offset::Count(by)) => {
                let at = moved(place.group, *by);
                Ok(match usize::try_from(at).map(|at| self.peers.get(at)) {
                    Err(_) => part.start,
                    Ok(None) => part.end,
                    Ok(Some(group)) if is_end => group.end,
                    Ok(Some(group)) => group.start,
                })
            }
            (Units::Range, offset) => self.edge_by_distance(offset, (is_before, is_end), place),
            _ => Err(SqlError::internal("a frame without its offset")),
        }
    }

    /// The edge of the rows whose sort key is at most so far from the row's. NULL is near to NULL alone.
    fn edge_by_distance(&self, offset: &Offset, (is_before, is_end): (bool, bool), place: Place) -> Result<usize> {
        let [key] = self.order else {
            return Err(SqlError::internal("RANGE over several keys"));
        };
        let at = |row: usize| distance(&self.rows[row][key.at]);
        let Some(own) = at(place.row) else {
            let peers = &self.peers[place.group];
            return Ok(if is_end { peers.end } else { peers.start });
        };
        // Backward in the order is downward where that rises.
        let limit = own.moved(offset, is_before != key.descending)?;
        let is_inside = |row: usize| {
            at(row).is_some_and(|value| {
                let passed = if key.descending { value < limit } else { value > limit };
                if is_end { !passed } else { passed || value == limit }
            })
        };
        let known = self.known_keys(key.at);
        let rows = known.clone();
        let count = match is_end {
            false => partition_point(rows, |row| !is_inside(row)),
            true => partition_point(rows, is_inside),
        };
        Ok(known.start + count)
    }

    /// The rows whose key is not NULL: they stand together.
    fn known_keys(&self, key: usize) -> Range<usize> {
        let is_null = |row: &usize| self.rows[*row][key].is_null();
        let first = self.part.start;
        if is_null(&first) {
            let nulls = partition_point(self.part.clone(), |row| is_null(&row));
            return first + nulls..self.part.end;
        }
        first..first + partition_point(self.part.clone(), |row| !is_null(&row))
    }
}

/// How many rows at the beginning of the stretch are so; behind the first that is not, none is.
fn partition_point(rows: Range<usize>, mut is_so: impl FnMut(usize) -> bool) -> usize {
    let (mut low, mut high) = (rows.start, rows.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_so(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low - rows.start
}

/// An aggregate of a frame: rows that the next frame has in addition are added to it.
struct FrameAggregate<'a> {
    aggregate: &'a Aggregate,
    state: Accumulator,
    of: Range<usize>,
}

impl FrameAggregate<'_> {
    fn new(aggregate: &Aggregate) -> FrameAggregate<'_> {
        FrameAggregate {
            aggregate,
            state: Accumulator::new(aggregate),
            of: 0..0,
        }
    }

    fn of(&mut self, partition: &Partition<'_>, stretch: Range<usize>, cx: &mut Context<'_>) -> Result<Datum> {
        if self.of.start != stretch.start || self.of.end > stretch.end {
            self.state = Accumulator::new(self.aggregate);
            self.of = stretch.start..stretch.start;
        }
        for row in self.of.end..stretch.end {
            cx.tick()?;
            partition.show(row, cx);
            self.state.add(self.aggregate, &cx.env())?;
        }
        self.of = stretch;
        self.state.clone().finish()
    }
}

fn offset(bound: &FrameBound, which: &str, units: Units, cx: &Context<'_>) -> Result<Offset> {
    let expr = match bound {
        FrameBound::Unbounded | FrameBound::Current => return Ok(Offset::None),
        FrameBound::Preceding(expr) | FrameBound::Following(expr) => expr,
    };
    let offset = match expr.eval(&cx.env())? {
        Datum::Null => {
            let text = format!("frame {which} offset must not be null");
            return Err(SqlError::new(code::NULL_NOT_ALLOWED, text));
        }
        Datum::Int2(n) => Offset::Count(i64::from(n)),
        Datum::Int4(n) => Offset::Count(i64::from(n)),
        Datum::Int8(n) => Offset::Count(n),
        Datum::Numeric(n) => Offset::Number(n),
        _ => return Err(SqlError::internal("a frame offset of another type")),
    };
    let is_negative = match &offset {
        Offset::Count(n) => *n < 0,
        Offset::Number(n) => *n < Numeric::ZERO || !n.is_finite(),
        Offset::None => false,
    };
    if is_negative {
        let text = match units {
            Units::Range => "invalid preceding or following size in window function".to_string(),
            _ => format!("frame {which} offset must not be negative"),
        };
        return Err(SqlError::new(code::INVALID_FRAME_OFFSET, text));
    }
    Ok(offset)
}

fn distance(value: &Datum) -> Option<Distance> {
    match value {
        Datum::Int2(v) => Some(Distance::Whole(i128::from(*v))),
        Datum::Int4(v) => Some(Distance::Whole(i128::from(*v))),
        Datum::Int8(v) => Some(Distance::Whole(i128::from(*v))),
        Datum::Numeric(v) => Some(Distance::Exact(v.clone())),
        _ => None,
    }
}

impl Distance {
    fn moved(&self, offset: &Offset, down: bool) -> Result<Distance> {
        match (self, offset) {
            (Distance::Whole(value), Offset::Count(by)) => {
                let by = i128::from(*by);
                Ok(Distance::Whole(if down { value - by } else { value + by }))
            }
            (Distance::Exact(value), Offset::Number(by)) => {
                let moved = if down {
                    numeric::sub(value, by)
                } else {
                    numeric::add(value, by)
                };
                moved.map(Distance::Exact)
            }
            _ => Err(SqlError::internal("a frame offset of another type than the key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::partition_point;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_partition_point_is_where_rows_change(start in 0_usize..20, before in 0_usize..20, behind in 0_usize..20) {
            let rows = start..start + before + behind;
            prop_assert_eq!(partition_point(rows, |row| row < start + before), before);
        }
    }
}
