//! Window functions over rows that are kept: sorted by partition and order, each partition gone through once a
//! function.

use super::gather::{copy_out, keep, sort_keys};
use super::{Context, State, next};
use crate::error::{Result, SqlError, code};
use crate::exec::order::{compare_keys, sort};
use crate::exec::sink::size_of_row;
use crate::expr::Expr;
use crate::expr::aggregate::{Accumulator, Aggregate};
use crate::plan::row::{Key, Node, Step, WindowFunction};
use crate::plan::select::SortKey;
use cenote_engine::{Charge, Datum};
use std::ops::Range;

/// Where the rows of a window stand.
#[derive(Default)]
pub struct WindowState {
    rows: Vec<Vec<Datum>>,
    /// Values of each function, a row each.
    values: Vec<Vec<Datum>>,
    at: usize,
    memory: Option<Charge>,
}

impl WindowState {
    /// Writes the next row with the values of its functions.
    ///
    /// # Errors
    /// As the input and the functions' arguments; 53200: the session may gather no more; 57014: the statement was
    /// cancelled.
    pub fn next(&mut self, node: &Node, (input, state): (&Node, &mut State), cx: &mut Context<'_>) -> Result<bool> {
        let Step::Window {
            partition,
            order,
            functions,
            carried,
            ..
        } = &node.step
        else {
            return Err(SqlError::internal("a window of another node"));
        };
        if self.memory.is_none() {
            let mut memory = Charge::new(&cx.session.memory);
            while next(input, state, cx)? {
                keep(&mut self.rows, carried, &mut memory, cx)?;
            }
            self.compute((partition, order), functions, (carried, &mut memory), cx)?;
            self.memory = Some(memory);
        }
        cx.tick()?;
        let Some(row) = self.rows.get(self.at) else {
            return Ok(false);
        };
        copy_out(row, carried, cx);
        for ((_, slot), values) in functions.iter().zip(&mut self.values) {
            cx.write(*slot, std::mem::replace(&mut values[self.at], Datum::Null));
        }
        self.at += 1;
        Ok(true)
    }

    fn compute(
        &mut self,
        (partition, order): (&[Key], &[Key]),
        functions: &[(WindowFunction, u16)],
        (carried, memory): (&[u16], &mut Charge),
        cx: &mut Context<'_>,
    ) -> Result<()> {
        let partition = sort_keys(partition, carried);
        let order = sort_keys(order, carried);
        let both: Vec<SortKey> = partition.iter().chain(&order).copied().collect();
        if !both.is_empty() {
            sort(&mut self.rows, &both);
        }
        self.values = vec![Vec::with_capacity(self.rows.len()); functions.len()];
        for part in runs(&self.rows, 0..self.rows.len(), &partition) {
            let peers = runs(&self.rows, part.clone(), &order);
            for ((function, _), values) in functions.iter().zip(&mut self.values) {
                let partition = Partition {
                    rows: &self.rows,
                    part: part.clone(),
                    peers: &peers,
                    order: &order,
                    carried,
                };
                partition.values(function, &mut Values { values, memory }, cx)?;
            }
        }
        Ok(())
    }
}

/// Stretches of rows that are equal by the keys; one, where there are no keys.
fn runs(rows: &[Vec<Datum>], within: Range<usize>, keys: &[SortKey]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = within.start;
    for at in within.clone() {
        let is_last = at + 1 == within.end;
        if is_last || compare_keys(&rows[at], &rows[at + 1], keys).is_ne() {
            runs.push(start..at + 1);
            start = at + 1;
        }
    }
    runs
}

/// The values of a function, charged to the session as they come: one of a text may be a copy of it a row.
pub(super) struct Values<'v> {
    values: &'v mut Vec<Datum>,
    memory: &'v mut Charge,
}

impl Values<'_> {
    pub(super) fn push(&mut self, value: Datum) -> Result<()> {
        self.memory.grow(size_of_row(std::slice::from_ref(&value)))?;
        self.values.push(value);
        Ok(())
    }
}

/// One partition.
pub(super) struct Partition<'w> {
    pub rows: &'w [Vec<Datum>],
    pub part: Range<usize>,
    /// Stretches of rows that are equal in the order.
    pub peers: &'w [Range<usize>],
    /// The order, as positions in a row.
    pub order: &'w [SortKey],
    carried: &'w [u16],
}

impl Partition<'_> {
    /// Appends the function's value of each row.
    fn values(&self, function: &WindowFunction, values: &mut Values<'_>, cx: &mut Context<'_>) -> Result<()> {
        let first = self.part.start;
        match function {
            WindowFunction::RowNumber => {
                (1..=self.part.len()).try_for_each(|n| values.push(Datum::Int8(n as i64)))?;
            }
            WindowFunction::Rank => {
                self.each_peers(values, |_, peers| Datum::Int8((peers.start - first + 1) as i64))?;
            }
            WindowFunction::DenseRank => self.each_peers(values, |n, _| Datum::Int8(n as i64 + 1))?,
            WindowFunction::First(value) => {
                let value = self.of_row(first, value, cx)?;
                self.each_peers(values, |_, _| value.clone())?;
            }
            WindowFunction::Last(value) => {
                for peers in self.peers {
                    let value = self.of_row(peers.end - 1, value, cx)?;
                    peers.clone().try_for_each(|_| values.push(value.clone()))?;
                }
            }
            WindowFunction::Aggregate(aggregate) => self.aggregate(aggregate, values, cx)?,
            WindowFunction::Framed(value, frame) => self.framed((value, frame), values, cx)?,
            WindowFunction::Ntile(buckets) => self.ntile(buckets, values, cx)?,
            WindowFunction::PercentRank => {
                let others = (self.part.len() - 1).max(1) as f64;
                self.each_peers(values, |_, peers| Datum::Float8((peers.start - first) as f64 / others))?;
            }
            WindowFunction::CumeDist => {
                let all = self.part.len() as f64;
                self.each_peers(values, |_, peers| Datum::Float8((peers.end - first) as f64 / all))?;
            }
            WindowFunction::Shifted {
                value,
                offset,
                default,
                ahead,
            } => {
                for at in self.part.clone() {
                    cx.tick()?;
                    let shifted = self.shifted(at, (offset.as_ref(), *ahead), cx)?;
                    let value = match (shifted, default) {
                        (Shift::Nowhere, _) | (Shift::Outside, None) => Datum::Null,
                        (Shift::Row(row), _) => self.of_row(row, value, cx)?,
                        (Shift::Outside, Some(default)) => self.of_row(at, default, cx)?,
                    };
                    values.push(value)?;
                }
            }
        }
        Ok(())
    }

    fn each_peers(&self, values: &mut Values<'_>, mut value: impl FnMut(usize, &Range<usize>) -> Datum) -> Result<()> {
        for (n, peers) in self.peers.iter().enumerate() {
            let value = value(n, peers);
            peers.clone().try_for_each(|_| values.push(value.clone()))?;
        }
        Ok(())
    }

    /// Puts a row into the tuple.
    pub(super) fn show(&self, row: usize, cx: &mut Context<'_>) {
        copy_out(&self.rows[row], self.carried, cx);
    }

    /// The value of an expression over a row.
    pub(super) fn of_row(&self, row: usize, expr: &Expr, cx: &mut Context<'_>) -> Result<Datum> {
        self.show(row, cx);
        expr.eval(&cx.env())
    }

    /// The number of each row's bucket; the first buckets have a row more where they are not equal.
    fn ntile(&self, buckets: &Expr, values: &mut Values<'_>, cx: &mut Context<'_>) -> Result<()> {
        let buckets = match self.of_row(self.part.start, buckets, cx)? {
            Datum::Int4(n) if n > 0 => n as usize,
            Datum::Int4(_) => {
                let text = "argument of ntile must be greater than zero";
                return Err(SqlError::new(code::INVALID_NTILE, text));
            }
            _ => return self.part.clone().try_for_each(|_| values.push(Datum::Null)),
        };
        let (size, larger) = (self.part.len() / buckets, self.part.len() % buckets);
        let in_larger = larger * (size + 1);
        (0..self.part.len()).try_for_each(|at| {
            let bucket = match at < in_larger {
                true => at / (size + 1),
                false => larger + (at - in_larger) / size,
            };
            values.push(Datum::Int4(bucket as i32 + 1))
        })
    }

    /// The aggregate of each row's frame, which grows with the order.
    fn aggregate(&self, aggregate: &Aggregate, values: &mut Values<'_>, cx: &mut Context<'_>) -> Result<()> {
        let mut under_way = Accumulator::new(aggregate);
        for peers in self.peers {
            for row in peers.clone() {
                cx.tick()?;
                copy_out(&self.rows[row], self.carried, cx);
                under_way.add(aggregate, &cx.env())?;
            }
            let value = under_way.clone().finish()?;
            peers.clone().try_for_each(|_| values.push(value.clone()))?;
        }
        Ok(())
    }

    fn shifted(&self, at: usize, (offset, ahead): (Option<&Expr>, bool), cx: &mut Context<'_>) -> Result<Shift> {
        let offset = match offset {
            None => 1,
            Some(offset) => match self.of_row(at, offset, cx)? {
                Datum::Int4(offset) => i64::from(offset),
                Datum::Int2(offset) => i64::from(offset),
                _ => return Ok(Shift::Nowhere),
            },
        };
        let place = at as i64 + if ahead { offset } else { -offset };
        let row = usize::try_from(place).ok().filter(|row| self.part.contains(row));
        Ok(row.map_or(Shift::Outside, Shift::Row))
    }
}

/// Where a shifted row lies.
enum Shift {
    Row(usize),
    /// Outside of the partition.
    Outside,
    /// The offset is NULL.
    Nowhere,
}
