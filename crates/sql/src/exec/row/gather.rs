//! Nodes that hold rows: groups, sorted and kept rows, sets.

use super::{Context, State, next, push_key};
use crate::error::{Result, SqlError};
use crate::exec::order::sort;
use crate::exec::sink::size_of_row;
use crate::expr::aggregate::{Accumulator, Aggregate};
use crate::expr::{Env, Expr};
use crate::plan::row::{Key, Node, SetKind, Step};
use crate::plan::select::SortKey;
use cenote_engine::{Charge, ColumnType, Datum};
use std::collections::{HashMap, HashSet};

/// What rows are grouped by: its value, its type, and where it goes.
type GroupKey = (Expr, ColumnType, u16);

/// Rows beyond those wanted of an order that are gathered before they are sorted.
const SLACK: usize = 64;

/// Rows that were read and are given in order.
#[derive(Default)]
pub struct KeptRows {
    rows: Vec<Vec<Datum>>,
    at: usize,
    memory: Option<Charge>,
}

impl KeptRows {
    /// Whether the input has been read.
    pub fn is_filled(&self) -> bool {
        self.memory.is_some()
    }

    /// Reads the input to its end, unless that has been done.
    ///
    /// # Errors
    /// As the input; 53200: the session may gather no more.
    pub fn fill(&mut self, (input, state): (&Node, &mut State), carried: &[u16], cx: &mut Context<'_>) -> Result<()> {
        if self.is_filled() {
            return Ok(());
        }
        let mut memory = Charge::new(&cx.session.memory);
        while next(input, state, cx)? {
            keep(&mut self.rows, carried, &mut memory, cx)?;
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Reads the input to its end and sorts it; of the order only the first `wanted` rows are kept.
    ///
    /// # Errors
    /// As the input; 53200: the session may gather no more.
    pub fn fill_sorted(
        &mut self,
        (input, state): (&Node, &mut State),
        carried: &[u16],
        (keys, wanted): (&[Key], u64),
        cx: &mut Context<'_>,
    ) -> Result<()> {
        let keys = sort_keys(keys, carried);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let full = wanted.saturating_mul(2).saturating_add(SLACK);
        let mut memory = Charge::new(&cx.session.memory);
        while next(input, state, cx)? {
            keep(&mut self.rows, carried, &mut memory, cx)?;
            if self.rows.len() >= full {
                sort(&mut self.rows, &keys);
                let dropped = self.rows.drain(wanted..).map(|row| size_of_row(&row)).sum();
                memory.shrink(dropped);
            }
        }
        sort(&mut self.rows, &keys);
        self.memory = Some(memory);
        Ok(())
    }

    /// Writes the next row.
    ///
    /// # Errors
    /// 57014: the statement was cancelled.
    pub fn give(&mut self, carried: &[u16], cx: &mut Context<'_>) -> Result<bool> {
        cx.tick()?;
        let Some(row) = self.rows.get(self.at) else {
            return Ok(false);
        };
        self.at += 1;
        copy_out(row, carried, cx);
        Ok(true)
    }

    /// Gives the rows again.
    pub fn rewind(&mut self) {
        self.at = 0;
    }
}

/// Keeps the tuple's slots as a row.
///
/// # Errors
/// 53200: the session may gather no more.
pub fn keep(rows: &mut Vec<Vec<Datum>>, carried: &[u16], memory: &mut Charge, cx: &Context<'_>) -> Result<()> {
    let row: Vec<Datum> = carried
        .iter()
        .map(|slot| cx.tuple[usize::from(*slot)].clone())
        .collect();
    memory.grow(size_of_row(&row))?;
    rows.push(row);
    Ok(())
}

/// Writes a kept row into the tuple.
pub fn copy_out(row: &[Datum], carried: &[u16], cx: &mut Context<'_>) {
    for (slot, value) in carried.iter().zip(row) {
        cx.tuple[usize::from(*slot)].clone_from(value);
    }
}

/// The sort keys as positions among the carried slots.
pub fn sort_keys(keys: &[Key], carried: &[u16]) -> Vec<SortKey> {
    let place = |key: &Key| SortKey {
        at: carried.iter().position(|slot| *slot == key.slot).unwrap_or_default(),
        descending: key.descending,
        nulls_first: key.nulls_first,
        trim: key.trim,
    };
    keys.iter().map(place).collect()
}

/// A group: which grouping set it is of, its keys, its aggregates.
struct Group {
    set: usize,
    keys: Vec<Datum>,
    aggregates: Vec<Accumulator>,
}

/// Groups under way, then given in the order in which they came up.
#[derive(Default)]
pub struct AggregateState {
    groups: Vec<Group>,
    by_key: HashMap<Vec<u8>, usize>,
    /// The key of the group that the last row went to, and the group: the next one mostly goes there as well.
    last: Option<(Vec<u8>, usize)>,
    /// Memory for a key.
    key: Vec<u8>,
    finished: Option<std::vec::IntoIter<Group>>,
    memory: Option<Charge>,
}

impl AggregateState {
    /// Writes the next group.
    ///
    /// # Errors
    /// As the input and the aggregates; 53200: the session may gather no more.
    pub fn next(&mut self, node: &Node, (input, state): (&Node, &mut State), cx: &mut Context<'_>) -> Result<bool> {
        let Step::Aggregate {
            keys,
            aggregates,
            sets,
            marks,
            ..
        } = &node.step
        else {
            return Err(SqlError::internal("groups of another node"));
        };
        if self.finished.is_none() {
            self.memory = Some(Charge::new(&cx.session.memory));
            while next(input, state, cx)? {
                match sets.as_slice() {
                    [] => self.add((keys, aggregates), cx)?,
                    sets => self.add_to_sets((keys, aggregates), sets, cx)?,
                }
            }
            self.add_empty(keys.len(), aggregates, sets);
            self.by_key.clear();
            self.finished = Some(std::mem::take(&mut self.groups).into_iter());
        }
        let Some(group) = self.finished.as_mut().and_then(Iterator::next) else {
            return Ok(false);
        };
        for ((_, _, slot), value) in keys.iter().zip(group.keys) {
            cx.write(*slot, value);
        }
        for ((_, slot), accumulator) in aggregates.iter().zip(group.aggregates) {
            cx.write(*slot, accumulator.finish()?);
        }
        for (slot, of_set) in marks {
            cx.write(*slot, Datum::Int4(of_set[group.set]));
        }
        Ok(true)
    }

    /// No row at all is one group, where nothing is grouped by.
    fn add_empty(&mut self, keys: usize, aggregates: &[(Aggregate, u16)], sets: &[Vec<usize>]) {
        if !self.groups.is_empty() {
            return;
        }
        let of_nothing = sets
            .iter()
            .enumerate()
            .filter(|(_, set)| set.is_empty())
            .map(|(at, _)| at);
        let empty: Vec<usize> = match sets.is_empty() {
            true => (0..usize::from(keys == 0)).collect(),
            false => of_nothing.collect(),
        };
        self.groups.extend(empty.into_iter().map(|set| Group {
            set,
            keys: vec![Datum::Null; keys],
            aggregates: aggregates.iter().map(|(a, _)| Accumulator::new(a)).collect(),
        }));
    }

    fn add(&mut self, (keys, aggregates): (&[GroupKey], &[(Aggregate, u16)]), cx: &Context<'_>) -> Result<()> {
        let env = cx.env();
        let at = self.group_of(keys, aggregates, &env)?;
        for ((aggregate, _), accumulator) in aggregates.iter().zip(&mut self.groups[at].aggregates) {
            accumulator.add(aggregate, &env)?;
        }
        Ok(())
    }

    /// The group of a row.
    fn group_of(&mut self, keys: &[GroupKey], aggregates: &[(Aggregate, u16)], env: &Env<'_>) -> Result<usize> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        for (expr, ty, _) in keys {
            push_key(*ty, &expr.value(env)?.get(), &mut key);
        }
        let at = match &self.last {
            Some((last, at)) if *last == key => *at,
            _ => {
                let at = match self.by_key.get(&key) {
                    Some(at) => *at,
                    None => {
                        let values = keys.iter().map(|(e, _, _)| e.eval(env)).collect::<Result<Vec<_>>>()?;
                        self.begin(key.clone(), (0, values), aggregates)?
                    }
                };
                let last = self.last.get_or_insert_default();
                std::mem::swap(&mut last.0, &mut key);
                last.1 = at;
                at
            }
        };
        self.key = key;
        Ok(at)
    }

    /// Adds the row to a group of each set: keys that are not of the set are NULL there.
    fn add_to_sets(
        &mut self,
        (keys, aggregates): (&[GroupKey], &[(Aggregate, u16)]),
        sets: &[Vec<usize>],
        cx: &mut Context<'_>,
    ) -> Result<()> {
        cx.tick()?;
        let env = cx.env();
        let values = keys.iter().map(|(e, _, _)| e.eval(&env)).collect::<Result<Vec<_>>>()?;
        for (set, members) in sets.iter().enumerate() {
            let mut key = (set as u64).to_be_bytes().to_vec();
            for at in members {
                push_key(keys[*at].1, &values[*at].as_ref(), &mut key);
            }
            let at = match self.by_key.get(&key) {
                Some(at) => *at,
                None => {
                    let mut of_set = vec![Datum::Null; keys.len()];
                    members.iter().for_each(|at| of_set[*at].clone_from(&values[*at]));
                    self.begin(key, (set, of_set), aggregates)?
                }
            };
            for ((aggregate, _), accumulator) in aggregates.iter().zip(&mut self.groups[at].aggregates) {
                accumulator.add(aggregate, &env)?;
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        key: Vec<u8>,
        (set, keys): (usize, Vec<Datum>),
        aggregates: &[(Aggregate, u16)],
    ) -> Result<usize> {
        if let Some(memory) = &mut self.memory {
            memory.grow(2 * key.len() + size_of_row(&keys) + aggregates.len() * size_of::<Accumulator>())?;
        }
        self.groups.push(Group {
            set,
            keys,
            aggregates: aggregates.iter().map(|(a, _)| Accumulator::new(a)).collect(),
        });
        // One group that all rows go to is looked up in no table.
        if !key.is_empty() {
            self.by_key.insert(key, self.groups.len() - 1);
        }
        Ok(self.groups.len() - 1)
    }
}

/// Rows that have been given.
#[derive(Default)]
pub struct DistinctState {
    seen: HashSet<Vec<u8>>,
    memory: Option<Charge>,
}

impl DistinctState {
    /// Whether the tuple's row has not been met before.
    ///
    /// # Errors
    /// 53200: the session may gather no more.
    pub fn is_new(&mut self, slots: &[(u16, ColumnType)], cx: &Context<'_>) -> Result<bool> {
        let key = row_key(slots, cx);
        if self.seen.contains(&key) {
            return Ok(false);
        }
        let memory = self.memory.get_or_insert_with(|| Charge::new(&cx.session.memory));
        memory.grow(key.len() + 64)?;
        Ok(self.seen.insert(key))
    }
}

fn row_key(slots: &[(u16, ColumnType)], cx: &Context<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    for (slot, ty) in slots {
        push_key(*ty, &cx.tuple[usize::from(*slot)].as_ref(), &mut key);
    }
    key
}

/// Where a set operation stands.
pub struct SetState {
    left: State,
    right: State,
    /// How often the right side has a row that no row of the left has used up.
    counts: Option<HashMap<Vec<u8>, u64>>,
    seen: DistinctState,
    left_done: bool,
    memory: Option<Charge>,
}

impl SetState {
    pub fn of(left: &Node, right: &Node) -> SetState {
        SetState {
            left: State::of(left),
            right: State::of(right),
            counts: None,
            seen: DistinctState::default(),
            left_done: false,
            memory: None,
        }
    }

    /// Writes the next row of the set.
    ///
    /// # Errors
    /// As the sides; 53200: the session may gather no more.
    pub fn next(&mut self, node: &Node, cx: &mut Context<'_>) -> Result<bool> {
        let Step::Set {
            kind,
            all,
            left,
            right,
            slots,
        } = &node.step
        else {
            return Err(SqlError::internal("a set of another node"));
        };
        if *kind == SetKind::Union {
            while self.next_of_both((left, right), cx)? {
                if *all || self.seen.is_new(slots, cx)? {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        if self.counts.is_none() {
            self.counts = Some(self.count(right, slots, cx)?);
        }
        while next(left, &mut self.left, cx)? {
            let left = self.counts.as_mut().and_then(|c| c.get_mut(&row_key(slots, cx)));
            let is_in_right = left.as_ref().is_some_and(|count| **count > 0);
            if *all && let Some(count) = left {
                *count = count.saturating_sub(1);
            }
            if is_in_right == (*kind == SetKind::Intersect) && (*all || self.seen.is_new(slots, cx)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn next_of_both(&mut self, (left, right): (&Node, &Node), cx: &mut Context<'_>) -> Result<bool> {
        if !self.left_done {
            if next(left, &mut self.left, cx)? {
                return Ok(true);
            }
            self.left_done = true;
        }
        next(right, &mut self.right, cx)
    }

    fn count(
        &mut self,
        right: &Node,
        slots: &[(u16, ColumnType)],
        cx: &mut Context<'_>,
    ) -> Result<HashMap<Vec<u8>, u64>> {
        let mut counts = HashMap::new();
        let memory = self.memory.insert(Charge::new(&cx.session.memory));
        while next(right, &mut self.right, cx)? {
            let key = row_key(slots, cx);
            memory.grow(key.len() + 64)?;
            *counts.entry(key).or_insert(0) += 1;
        }
        Ok(counts)
    }
}
