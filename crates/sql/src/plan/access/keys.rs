//! Key ranges of a path, made of the values that a run gives.

use super::{Items, Limit, Path, key_column};
use crate::error::{Result, SqlError};
use crate::expr::{Env, Expr, literal_prefix};
use crate::types::array;
use cenote_engine::key::{self, KeyRange};
use cenote_engine::{ColumnType, DatumRef, Direction, Table};
use std::ops::Bound;

/// A range of one tree. `index`: position in `Table::indexes`; None: the primary key.
pub type TreeRange = (Option<usize>, KeyRange);

/// How a value lies to the values of a column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// It is one of them; its key part was appended.
    Within,
    /// Below or above all of them.
    Below,
    Above,
    /// NULL: nothing equals it or lies beside it.
    Null,
}

/// Appends a key part; integers of another width are converted where they fit.
fn push_part(ty: ColumnType, value: &DatumRef<'_>, out: &mut Vec<u8>) -> Result<Fit> {
    let wide = match value {
        DatumRef::Null => return Ok(Fit::Null),
        DatumRef::Int2(v) => i64::from(*v),
        DatumRef::Int4(v) => i64::from(*v),
        DatumRef::Int8(v) => *v,
        other if ty.admits(other) => {
            key::push(ty, other, out);
            return Ok(Fit::Within);
        }
        _ => return Err(SqlError::internal("key value of the wrong type")),
    };
    let outside = if wide < 0 { Fit::Below } else { Fit::Above };
    let fitted = match ty {
        ColumnType::Int2 => i16::try_from(wide).ok().map(DatumRef::Int2),
        ColumnType::Int4 => i32::try_from(wide).ok().map(DatumRef::Int4),
        ColumnType::Int8 => Some(DatumRef::Int8(wide)),
        _ => return Err(SqlError::internal("integer key value of a column that is none")),
    };
    Ok(match fitted {
        Some(datum) => {
            key::push(ty, &datum, out);
            Fit::Within
        }
        None => outside,
    })
}

/// Appends the key parts of equal columns of a tree; false where nothing can match.
///
/// # Errors
/// A value cannot be computed.
pub fn push_equal(
    table: &Table,
    index: Option<usize>,
    values: &[Expr],
    env: &Env<'_>,
    out: &mut Vec<u8>,
) -> Result<bool> {
    for (at, value) in values.iter().enumerate() {
        let ty = table.layout().column_type(key_column(table, index, at));
        if push_part(ty, &value.value(env)?.get(), out)? != Fit::Within {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a limit makes of a range's end.
enum End {
    /// The key so far, and whether keys that begin with it are in the range.
    Key(Vec<u8>, bool),
    /// Every value that is not NULL lies on the range's side of it.
    Open,
    /// No value does.
    Empty,
}

/// The end of a range whose keys begin with `start`. `side`: how a value that lies outside of its type has to lie so
/// that all values are in the range.
fn end_of(
    (table, index, at): (&Table, Option<usize>, usize),
    start: &[u8],
    (values, inclusive): (&[Expr], bool),
    side: Fit,
    env: &Env<'_>,
) -> Result<End> {
    let mut end = start.to_vec();
    for (i, value) in values.iter().enumerate() {
        let ty = table.layout().column_type(key_column(table, index, at + i));
        match push_part(ty, &value.value(env)?.get(), &mut end)? {
            Fit::Within => {}
            // The parts before it decide, or are equal: the row itself is asked.
            _ if i > 0 => return Ok(End::Key(end, true)),
            fit if fit == side => return Ok(End::Open),
            _ => return Ok(End::Empty),
        }
    }
    Ok(End::Key(end, inclusive))
}

/// The range of keys between limits; None where it is empty. It may hold more than the limits say where one is a row or
/// a pattern.
///
/// # Errors
/// A limit cannot be computed.
pub fn key_range(
    (table, index): (&Table, Option<usize>),
    prefix: &[Expr],
    lower: Option<&Limit>,
    upper: Option<&Limit>,
    env: &Env<'_>,
) -> Result<Option<KeyRange>> {
    let mut start = Vec::with_capacity(32);
    if !push_equal(table, index, prefix, env, &mut start)? {
        return Ok(None);
    }
    match (lower, upper) {
        (None, None) if prefix.is_empty() => return Ok(Some(KeyRange::all())),
        (None, None) => return Ok(Some(KeyRange::of_prefix(start))),
        (Some(Limit::Null), _) => {
            start.push(key::NULL);
            return Ok(Some(KeyRange::prefix(&start)));
        }
        (Some(Limit::Like { pattern, escape }), _) => {
            return like_range(start, pattern, escape.as_ref(), env);
        }
        _ => {}
    }
    let place = (table, index, prefix.len());
    let (mut low, mut low_inclusive) = (start.clone(), true);
    if let Some(values) = lower.and_then(Limit::values) {
        match end_of(place, &start, values, Fit::Below, env)? {
            End::Key(key, inclusive) => (low, low_inclusive) = (key, inclusive),
            End::Open => {}
            End::Empty => return Ok(None),
        }
    }
    // NULL sorts above every value and satisfies no comparison.
    let mut high = start.clone();
    high.push(key::NULL);
    let mut high_inclusive = false;
    if let Some(values) = upper.and_then(Limit::values) {
        match end_of(place, &start, values, Fit::Above, env)? {
            End::Key(key, inclusive) => (high, high_inclusive) = (key, inclusive),
            End::Open => {}
            End::Empty => return Ok(None),
        }
    }
    let bound = |key, inclusive| {
        if inclusive {
            Bound::Included(key)
        } else {
            Bound::Excluded(key)
        }
    };
    Ok(Some(KeyRange::between(
        bound(low.as_slice(), low_inclusive),
        bound(high.as_slice(), high_inclusive),
    )))
}

/// Whether the range is that of a pattern that begins with a wildcard: the table is read better without the index.
fn fixes_nothing(prefix: &[Expr], lower: Option<&Limit>, env: &Env<'_>) -> Result<bool> {
    let Some(Limit::Like { pattern, escape }) = lower.filter(|_| prefix.is_empty()) else {
        return Ok(false);
    };
    Ok(literal_of(pattern, escape.as_ref(), env)?.is_some_and(|literal| literal.is_empty()))
}

fn literal_of(pattern: &Expr, escape: Option<&Expr>, env: &Env<'_>) -> Result<Option<String>> {
    let pattern = pattern.value(env)?;
    let escape = escape.map(|e| e.value(env)).transpose()?;
    literal_prefix(&pattern.get(), escape.as_ref().map(|e| e.get()))
}

/// Keys whose text begins as the pattern does. A pattern that begins with a wildcard fixes nothing.
fn like_range(mut start: Vec<u8>, pattern: &Expr, escape: Option<&Expr>, env: &Env<'_>) -> Result<Option<KeyRange>> {
    let Some(prefix) = literal_of(pattern, escape, env)? else {
        return Ok(None);
    };
    key::push_text_prefix(&prefix, &mut start);
    Ok(Some(KeyRange::prefix(&start)))
}

/// The ranges of a list of values, ascending and each once.
fn list_ranges(
    (table, index): (&Table, Option<usize>),
    prefix: &[Expr],
    items: &Items,
    env: &Env<'_>,
) -> Result<Vec<KeyRange>> {
    let mut start = Vec::with_capacity(32);
    if !push_equal(table, index, prefix, env, &mut start)? {
        return Ok(Vec::new());
    }
    let ty = table.layout().column_type(key_column(table, index, prefix.len()));
    let mut keys = Vec::new();
    let mut push = |value: &DatumRef<'_>| -> Result<()> {
        let mut key = start.clone();
        if push_part(ty, value, &mut key)? == Fit::Within {
            keys.push(key);
        }
        Ok(())
    };
    match items {
        Items::Exprs(list) => {
            for item in list {
                push(&item.value(env)?.get())?;
            }
        }
        Items::Array { array, element } => {
            for value in array::values(&array.value(env)?.get(), *element, env.session.text_context())? {
                push(&value.as_ref())?;
            }
        }
    }
    keys.sort();
    keys.dedup();
    Ok(keys.iter().map(|k| KeyRange::prefix(k)).collect())
}

/// The ranges that a path reads, in the order in which they are read. No key is in two of them. Of a union, those of
/// one tree stand together.
///
/// # Errors
/// A value or limit cannot be computed.
pub fn ranges(table: &Table, path: &Path, direction: Direction, env: &Env<'_>) -> Result<Vec<TreeRange>> {
    let mut ranges = Vec::new();
    collect(table, path, env, &mut ranges)?;
    if let Path::Union(_) = path {
        return Ok(merged(ranges));
    }
    if direction == Direction::Backward {
        ranges.reverse();
    }
    Ok(ranges)
}

/// The range of a path that reads one; None: nothing matches.
///
/// # Errors
/// As [`ranges`].
pub fn one_range(table: &Table, path: &Path, env: &Env<'_>) -> Result<Option<TreeRange>> {
    let Path::Range {
        index,
        prefix,
        lower,
        upper,
    } = path
    else {
        return Err(SqlError::internal("one range of a path of several"));
    };
    if fixes_nothing(prefix, lower.as_ref(), env)? {
        return Ok(Some((None, KeyRange::all())));
    }
    let range = key_range((table, *index), prefix, lower.as_ref(), upper.as_ref(), env)?;
    Ok(range.map(|range| (*index, range)))
}

fn collect(table: &Table, path: &Path, env: &Env<'_>, out: &mut Vec<TreeRange>) -> Result<()> {
    match path {
        Path::Point(values) => {
            let mut key = Vec::with_capacity(16);
            if push_equal(table, None, values, env, &mut key)? {
                out.push((None, KeyRange::prefix(&key)));
            }
        }
        Path::Range { .. } => out.extend(one_range(table, path, env)?),
        Path::List { index, prefix, items } => {
            let found = list_ranges((table, *index), prefix, items, env)?;
            out.extend(found.into_iter().map(|r| (*index, r)));
        }
        Path::Union(paths) => {
            for path in paths {
                collect(table, path, env, out)?;
            }
        }
    }
    Ok(())
}

/// Ranges by tree and lower end, those that overlap made one.
fn merged(mut ranges: Vec<TreeRange>) -> Vec<TreeRange> {
    ranges.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| lower_order(&x.lower, &y.lower)));
    let mut out: Vec<TreeRange> = Vec::with_capacity(ranges.len());
    for (index, range) in ranges {
        match out.last_mut() {
            Some((last, before)) if *last == index && overlaps(&before.upper, &range.lower) => {
                if upper_order(&before.upper, &range.upper).is_lt() {
                    before.upper = range.upper;
                }
            }
            _ => out.push((index, range)),
        }
    }
    out
}

/// The keys that both ranges have.
pub fn common(a: &KeyRange, b: &KeyRange) -> KeyRange {
    let lower = std::cmp::max_by(&a.lower, &b.lower, |a, b| lower_order(a, b));
    let upper = std::cmp::min_by(&a.upper, &b.upper, |a, b| upper_order(a, b));
    KeyRange {
        lower: lower.clone(),
        upper: upper.clone(),
    }
}

fn lower_order(a: &Bound<Vec<u8>>, b: &Bound<Vec<u8>>) -> std::cmp::Ordering {
    let part = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Unbounded => (0, Vec::new(), 0),
        Bound::Included(key) => (1, key.clone(), 0),
        Bound::Excluded(key) => (1, key.clone(), 1),
    };
    part(a).cmp(&part(b))
}

fn upper_order(a: &Bound<Vec<u8>>, b: &Bound<Vec<u8>>) -> std::cmp::Ordering {
    let part = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Unbounded => (1, Vec::new(), 0),
        Bound::Excluded(key) => (0, key.clone(), 0),
        Bound::Included(key) => (0, key.clone(), 1),
    };
    part(a).cmp(&part(b))
}

/// Whether a range that ends there and one that begins here have a key in common, or none between them.
fn overlaps(upper: &Bound<Vec<u8>>, lower: &Bound<Vec<u8>>) -> bool {
    match (upper, lower) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Included(u) | Bound::Excluded(u), Bound::Included(l) | Bound::Excluded(l)) => u >= l,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lower: u8, upper: u8) -> KeyRange {
        KeyRange {
            lower: Bound::Included(vec![lower]),
            upper: Bound::Excluded(vec![upper]),
        }
    }

    #[test]
    fn ranges_that_overlap_become_one_and_trees_stay_apart() {
        let given = vec![
            (Some(1), range(5, 9)),
            (None, range(1, 2)),
            (Some(1), range(1, 6)),
            (Some(1), range(2, 3)),
            (Some(0), range(1, 2)),
            (Some(0), range(4, 5)),
            (Some(0), range(2, 3)),
        ];
        let expected = vec![
            (None, range(1, 2)),
            (Some(0), range(1, 3)),
            (Some(0), range(4, 5)),
            (Some(1), range(1, 9)),
        ];
        assert_eq!(merged(given), expected);
    }

    #[test]
    fn an_open_end_takes_in_what_follows() {
        let open = KeyRange {
            lower: Bound::Excluded(vec![3]),
            upper: Bound::Unbounded,
        };
        let given = vec![(None, range(7, 8)), (None, open.clone()), (None, range(0, 1))];
        assert_eq!(merged(given), vec![(None, range(0, 1)), (None, open)]);
    }
}
