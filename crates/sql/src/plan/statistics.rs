//! Shares of a table's rows by its statistics, as PostgreSQL's `selfuncs.c` estimates them.
//!
//! Pure functions of a column's statistics and of constants. A value that only a run knows is None, and stands for the
//! average. Common values have their own shares; the histogram stands for the others, its buckets for equally many
//! rows. Values are compared as keys of indexes are.

use crate::expr::Comparison;
use cenote_engine::{ColumnStatistics, ColumnType, Datum, Statistics, Table, key};

/// The share of a range whose limits a run gives: PostgreSQL's `DEFAULT_INEQ_SEL`.
const INEQUALITY: f64 = 1.0 / 3.0;
/// No more certain than this of a range in a histogram: rows may have come since, beyond its ends.
const CUTOFF: f64 = 0.01;
/// The least share of a range between two limits, and of a pattern.
const LEAST: f64 = 1e-10;
const PATTERN_LEAST: f64 = 0.0001;
/// A histogram of so many bounds tells how many values match a pattern.
const PATTERN_BOUNDS: f64 = 100.0;
/// Each character behind a pattern's prefix, and `%`, as PostgreSQL weighs them.
const CHARACTER: f64 = 0.2;
const ANY_TEXT: f64 = 5.0;

/// A limit of a range: a value, and whether it is in the range.
pub type Limit<'a> = (&'a Datum, bool);

/// The share of rows whose value is equal to this one, in a table of `rows` rows.
pub fn equal_fraction(column: &ColumnStatistics, value: Option<&Datum>, rows: f64) -> f64 {
    let distinct = column.distinct_values(rows).unwrap_or(rows.max(1.0));
    let some = 1.0 - column.null_fraction;
    let most = column.common.first().map_or(1.0, |(_, share)| *share);
    let Some(value) = value else {
        // The average; the most common value is at least as frequent.
        return (some / distinct).min(most);
    };
    if value.is_null() {
        return 0.0;
    }
    let Some(value) = fitted(column.ty, value) else {
        // Its type holds no such value.
        return 0.0;
    };
    let mut keys = (None, Vec::new());
    let mut common = column.common.iter();
    if let Some((_, share)) = common.find(|(common, _)| is_same(column.ty, common, &value, &mut keys)) {
        return *share;
    }
    let others = (distinct - column.common.len() as f64).max(1.0);
    let least = column.common.last().map_or(1.0, |(_, share)| *share);
    ((some - column.common_fraction()).max(0.0) / others).min(least)
}

/// The share of rows with a value for which `op` this one holds.
pub fn compare_fraction(column: &ColumnStatistics, op: Comparison, value: Option<&Datum>, rows: f64) -> f64 {
    let some = 1.0 - column.null_fraction;
    match (op, value) {
        (Comparison::Eq, _) => equal_fraction(column, value, rows),
        (_, Some(Datum::Null)) => 0.0,
        (Comparison::Ne, _) => (some - equal_fraction(column, value, rows)).max(0.0),
        (_, None) => some * INEQUALITY,
        (Comparison::Lt, Some(value)) => range_fraction(column, None, Some((value, false))),
        (Comparison::Le, Some(value)) => range_fraction(column, None, Some((value, true))),
        (Comparison::Gt, Some(value)) => range_fraction(column, Some((value, false)), None),
        (Comparison::Ge, Some(value)) => range_fraction(column, Some((value, true)), None),
    }
}

/// The share of rows whose value lies between these limits; NULL is in no range.
pub fn range_fraction(column: &ColumnStatistics, low: Option<Limit<'_>>, high: Option<Limit<'_>>) -> f64 {
    if [low, high].iter().flatten().any(|(value, _)| value.is_null()) {
        return 0.0;
    }
    let low = low.map(|(value, inclusive)| Place::of(column.ty, value, !inclusive));
    let high = high.map(|(value, inclusive)| Place::of(column.ty, value, inclusive));
    let mut scratch = Vec::new();
    let mut is_in = |value: &Datum| {
        let Some(key) = key_in(column.ty, value, &mut scratch) else {
            return false;
        };
        low.as_ref().is_none_or(|low| !low.is_above(key)) && high.as_ref().is_none_or(|high| high.is_above(key))
    };
    let common: f64 = column
        .common
        .iter()
        .filter(|(value, _)| is_in(value))
        .map(|(_, share)| share)
        .sum();
    let others = (1.0 - column.null_fraction - column.common_fraction()).max(0.0);
    let below = |place: &Option<Place>, open: f64| place.as_ref().map_or(Some(open), |place| place.below(column));
    let share = match (below(&low, 0.0), below(&high, 1.0)) {
        (Some(low), Some(high)) => (high - low).max(LEAST),
        // Values of which no histogram was made.
        _ => INEQUALITY.powi(i32::from(low.is_some()) + i32::from(high.is_some())),
    };
    (common + share * others).clamp(0.0, 1.0)
}

/// The share of rows whose text begins with `prefix`, and of those that match a pattern. `matches` tells whether a
/// text does; `behind`: what of the pattern comes behind its prefix.
pub fn pattern_fraction(column: &ColumnStatistics, prefix: &str, behind: &str, matches: impl Fn(&str) -> bool) -> f64 {
    let is_match = |value: &Datum| matches!(value, Datum::Text(text) if matches(text));
    let common: f64 = column
        .common
        .iter()
        .filter(|(value, _)| is_match(value))
        .map(|(_, share)| share)
        .sum();
    let others = (1.0 - column.null_fraction - column.common_fraction()).max(0.0);
    let guessed = prefix_share(column, prefix) * behind_share(behind);
    let bounds = column.bounds.len() as f64;
    let share = if bounds > 2.0 {
        let inner = &column.bounds[1..column.bounds.len() - 1];
        let found = inner.iter().filter(|bound| is_match(bound)).count() as f64 / inner.len() as f64;
        let weight = (bounds / PATTERN_BOUNDS).min(1.0);
        found * weight + guessed * (1.0 - weight)
    } else {
        guessed
    };
    (common + share.clamp(PATTERN_LEAST, 1.0 - PATTERN_LEAST) * others).clamp(0.0, 1.0)
}

/// The share of the histogram's values that begin with `prefix`.
fn prefix_share(column: &ColumnStatistics, prefix: &str) -> f64 {
    if prefix.is_empty() {
        return 1.0;
    }
    let place = |after| {
        let value = Datum::Text(prefix.to_string());
        let mut place = Place::of(ColumnType::Text, &value, false);
        if after {
            place.end_of_prefix();
        }
        place.below(column)
    };
    match (place(false), place(true)) {
        (Some(low), Some(high)) => (high - low).max(LEAST),
        _ => CHARACTER.powi(prefix.chars().count().min(5) as i32),
    }
}

/// The share of texts with a pattern's prefix that match what is behind it.
fn behind_share(pattern: &str) -> f64 {
    let weigh = |share: f64, c: char| match c {
        '%' => share * ANY_TEXT,
        '_' => share * 0.9,
        _ => share * CHARACTER,
    };
    // The first `%` is what makes it a prefix.
    let rest = pattern.strip_prefix('%').unwrap_or(pattern);
    rest.chars().fold(1.0, weigh).min(1.0)
}

/// The share of pairs of rows whose values are equal, of columns with statistics or without; the larger number of
/// distinct values decides. None: nothing is known of either.
pub fn join_fraction(left: Option<(&ColumnStatistics, f64)>, right: Option<(&ColumnStatistics, f64)>) -> Option<f64> {
    let known = |side: Option<(&ColumnStatistics, f64)>| {
        let (column, rows) = side?;
        Some((column.distinct_values(rows)?, 1.0 - column.null_fraction))
    };
    let (left, right) = (known(left), known(right));
    let distinct = [left, right]
        .iter()
        .flatten()
        .map(|(distinct, _)| *distinct)
        .fold(0.0, f64::max);
    let some: f64 = [left, right].iter().flatten().map(|(_, some)| *some).product();
    (distinct > 0.0).then(|| some / distinct)
}

/// Rows that have one value of the first columns of a key, by the number of distinct ones. `values`: of these columns,
/// as far as planning knows them; a common one has more rows than the average. `id`: the index's or primary key's.
pub fn rows_of_prefix(
    statistics: &Statistics,
    (id, columns): (u32, &[usize]),
    values: &[Option<&Datum>],
    rows: f64,
) -> Option<f64> {
    let fixed = values.len().min(columns.len());
    let distinct = statistics.distinct_keys(id, fixed, rows)?;
    let (mut found, mut most) = (rows / distinct, rows);
    for (column, value) in columns.iter().zip(values) {
        let (Some(column), Some(value)) = (statistics.column(*column), value) else {
            continue;
        };
        let share = equal_fraction(column, Some(value), rows);
        let average = equal_fraction(column, None, rows);
        if average > 0.0 {
            found *= share / average;
        }
        most = most.min(share * rows);
    }
    Some(found.min(most).max(0.0))
}

/// The statistics' column of a table, if the planner's table is the one that was analyzed.
pub fn column_of<'s>(statistics: Option<&'s Statistics>, table: &Table, column: usize) -> Option<&'s ColumnStatistics> {
    let known = statistics?.column(column)?;
    (known.ty == table.columns.get(column)?.ty).then_some(known)
}

/// A place among values: behind all that lie below a value, and behind the value itself too or not.
struct Place {
    /// The value's key; None: the value lies beyond all of the type.
    key: Option<Vec<u8>>,
    /// Where it lies then: below all or above all.
    above_all: bool,
    behind: bool,
    value: Option<Datum>,
}

impl Place {
    fn of(ty: ColumnType, value: &Datum, behind: bool) -> Place {
        let fitted = fitted(ty, value);
        Place {
            key: fitted.as_ref().map(|value| raw_key(ty, value)),
            above_all: integer(value).is_some_and(|number| number > 0),
            behind,
            value: fitted,
        }
    }

    /// Moves it behind all texts that begin with its value.
    fn end_of_prefix(&mut self) {
        if let Some(key) = &mut self.key {
            // Behind the text its key has a terminator, which other texts with this beginning have not.
            key.truncate(key.len() - 2);
            key.push(0xFF);
        }
        self.behind = true;
        if let Some(Datum::Text(text)) = &mut self.value {
            text.push(char::MAX);
        }
    }

    /// Whether the value of this key lies before the place.
    fn is_above(&self, key: &[u8]) -> bool {
        match &self.key {
            None => self.above_all,
            Some(own) => key < own.as_slice() || self.behind && key == own.as_slice(),
        }
    }

    /// The share of the histogram before the place; None without a histogram.
    fn below(&self, column: &ColumnStatistics) -> Option<f64> {
        let bounds = &column.bounds;
        let buckets = bounds.len().checked_sub(1).filter(|buckets| *buckets > 0)? as f64;
        let mut scratch = Vec::new();
        let is_before = |bound: &Datum| key_in(column.ty, bound, &mut scratch).is_some_and(|key| self.is_above(key));
        let at = bounds.partition_point(is_before);
        let share = match at {
            0 => 0.0,
            all if all == bounds.len() => 1.0,
            at => {
                let within = self
                    .value
                    .as_ref()
                    .map_or(0.5, |value| between(&bounds[at - 1], value, &bounds[at]));
                (at as f64 - 1.0 + within) / buckets
            }
        };
        let cutoff = CUTOFF / buckets;
        Some(share.clamp(cutoff, 1.0 - cutoff))
    }
}

/// Where a value lies between two bounds: 0 to 1.
fn between(low: &Datum, value: &Datum, high: &Datum) -> f64 {
    let place = match (number(low), number(value), number(high)) {
        (Some(low), Some(value), Some(high)) if high > low => (value - low) / (high - low),
        (None, None, None) => between_bytes(bytes(low), bytes(value), bytes(high)),
        _ => 0.5,
    };
    if place.is_nan() { 0.5 } else { place.clamp(0.0, 1.0) }
}

/// Texts as fractions to the base 256, behind what both bounds begin with.
fn between_bytes(low: &[u8], value: &[u8], high: &[u8]) -> f64 {
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let fraction = |bytes: &[u8]| {
        let digits = bytes.get(common..).unwrap_or_default().iter().take(8);
        digits.rev().fold(0.0, |sum, byte| (sum + f64::from(*byte)) / 256.0)
    };
    let (low, value, high) = (fraction(low), fraction(value), fraction(high));
    match high > low {
        true => (value - low) / (high - low),
        false => 0.5,
    }
}

fn bytes(value: &Datum) -> &[u8] {
    match value {
        Datum::Text(text) => text.as_bytes(),
        Datum::Bytes(bytes) => bytes,
        _ => &[],
    }
}

fn number(value: &Datum) -> Option<f64> {
    match value {
        Datum::Bool(v) => Some(f64::from(u8::from(*v))),
        Datum::Float4(v) => Some(f64::from(*v)),
        Datum::Float8(v) => Some(*v),
        Datum::Numeric(v) => v.to_string().parse().ok(),
        Datum::Date(v) => Some(f64::from(*v)),
        Datum::Timestamp(v) | Datum::TimestampTz(v) => Some(*v as f64),
        other => integer(other).map(|v| v as f64),
    }
}

fn integer(value: &Datum) -> Option<i64> {
    match value {
        Datum::Int2(v) => Some(i64::from(*v)),
        Datum::Int4(v) => Some(i64::from(*v)),
        Datum::Int8(v) => Some(*v),
        _ => None,
    }
}

/// The value as one of the column's type: comparisons may be of integers of different widths. None: the type has none.
fn fitted(ty: ColumnType, value: &Datum) -> Option<Datum> {
    if ty.admits(&value.as_ref()) {
        return Some(value.clone());
    }
    let number = integer(value)?;
    match ty {
        ColumnType::Int2 => number.try_into().ok().map(Datum::Int2),
        ColumnType::Int4 => number.try_into().ok().map(Datum::Int4),
        ColumnType::Int8 => Some(Datum::Int8(number)),
        _ => None,
    }
}

/// Whether two values have the same key. `keys`: the second value's, once it is made, and memory for others.
fn is_same(ty: ColumnType, common: &Datum, value: &Datum, keys: &mut (Option<Vec<u8>>, Vec<u8>)) -> bool {
    match (common, value) {
        (Datum::Int2(a), Datum::Int2(b)) => a == b,
        (Datum::Int4(a), Datum::Int4(b)) | (Datum::Date(a), Datum::Date(b)) => a == b,
        (Datum::Int8(a), Datum::Int8(b)) => a == b,
        // The blanks at the end of char(n) do not count.
        (Datum::Text(a), Datum::Text(b)) if !matches!(ty, ColumnType::Char(_)) => a == b,
        _ => {
            let key = keys.0.get_or_insert_with(|| raw_key(ty, value));
            key_in(ty, common, &mut keys.1) == Some(key.as_slice())
        }
    }
}

/// As a key, in memory that is used again: the values of statistics are many.
fn key_in<'s>(ty: ColumnType, value: &Datum, scratch: &'s mut Vec<u8>) -> Option<&'s [u8]> {
    scratch.clear();
    match ty.admits(&value.as_ref()) {
        true => key::push_datum(ty, value, scratch),
        false => key::push_datum(ty, &fitted(ty, value)?, scratch),
    }
    Some(scratch)
}

fn raw_key(ty: ColumnType, value: &Datum) -> Vec<u8> {
    let mut out = Vec::new();
    key::push_datum(ty, value, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_engine::KeyStatistics;

    const ROWS: f64 = 100_000.0;

    /// Integers: a tenth NULL, 7 in a fifth of the rows, 9 in a tenth; the rest 0 to 1,000 in a histogram of ten
    /// buckets.
    fn numbers() -> ColumnStatistics {
        ColumnStatistics {
            ty: ColumnType::Int4,
            null_fraction: 0.1,
            width: 4.0,
            distinct: 602.0,
            common: vec![(Datum::Int4(7), 0.2), (Datum::Int4(9), 0.1)],
            bounds: (0..=10).map(|i| Datum::Int4(100 * i)).collect(),
            correlation: None,
        }
    }

    fn texts(bounds: &[&str]) -> ColumnStatistics {
        let text = |s: &&str| Datum::Text((*s).into());
        ColumnStatistics {
            ty: ColumnType::Text,
            null_fraction: 0.0,
            width: 6.0,
            distinct: -1.0,
            common: Vec::new(),
            bounds: bounds.iter().map(text).collect(),
            correlation: None,
        }
    }

    fn about(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-3, "{found} is not {wanted}");
    }

    #[test]
    fn a_common_value_has_its_share_and_others_the_average_of_the_rest() {
        let column = numbers();
        let equal = |value: i32| equal_fraction(&column, Some(&Datum::Int4(value)), ROWS);
        about(equal(7), 0.2);
        about(equal(9), 0.1);
        about(equal(500), 0.6 / 600.0);
        about(equal_fraction(&column, None, ROWS), 0.9 / 602.0);
        about(equal_fraction(&column, Some(&Datum::Null), ROWS), 0.0);
        about(equal_fraction(&column, Some(&Datum::Int8(7)), ROWS), 0.2);
        about(equal_fraction(&column, Some(&Datum::Int8(1 << 40)), ROWS), 0.0);
        about(
            compare_fraction(&column, Comparison::Ne, Some(&Datum::Int4(7)), ROWS),
            0.7,
        );
    }

    #[test]
    fn no_other_value_is_more_frequent_than_the_least_common_one() {
        let mut column = numbers();
        column.distinct = 3.0;
        about(equal_fraction(&column, Some(&Datum::Int4(500)), ROWS), 0.1);
        column.distinct = 1.0;
        about(equal_fraction(&column, None, ROWS), 0.2);
    }

    #[test]
    fn a_unique_column_has_one_row_a_value_however_large_the_table_has_become() {
        let mut column = numbers();
        (column.distinct, column.common, column.null_fraction) = (-1.0, vec![], 0.0);
        for rows in [10.0, 1e6] {
            let share = equal_fraction(&column, Some(&Datum::Int4(5)), rows);
            assert!((share * rows - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn ranges_are_interpolated_in_the_histogram_and_take_common_values_in() {
        let column = numbers();
        let (v250, v7, v0) = (Datum::Int4(250), Datum::Int4(7), Datum::Int4(0));
        about(range_fraction(&column, None, Some((&v250, false))), 0.3 + 0.25 * 0.6);
        about(range_fraction(&column, Some((&v250, true)), None), 0.75 * 0.6);
        about(
            range_fraction(&column, Some((&v7, true)), Some((&v250, false))),
            0.3 + 0.243 * 0.6,
        );
        about(
            range_fraction(&column, Some((&v7, false)), Some((&v250, false))),
            0.1 + 0.243 * 0.6,
        );
        about(range_fraction(&column, None, Some((&v0, false))), 0.001 * 0.6);
        about(range_fraction(&column, None, None), 0.9);
        about(range_fraction(&column, Some((&Datum::Null, true)), None), 0.0);
        // Beyond what the type holds.
        let (large, small) = (Datum::Int8(1 << 40), Datum::Int8(-(1 << 40)));
        about(range_fraction(&column, None, Some((&large, true))), 0.9);
        about(range_fraction(&column, Some((&small, true)), None), 0.9);
        assert!(range_fraction(&column, Some((&large, true)), None) < 0.002);
    }

    /// `x < c` and `x >= c` are all that is not NULL, wherever c lies.
    #[test]
    fn a_range_and_its_rest_are_the_whole() {
        let column = numbers();
        for value in (-50..1100).step_by(7).map(Datum::Int4) {
            let sides = compare_fraction(&column, Comparison::Lt, Some(&value), ROWS)
                + compare_fraction(&column, Comparison::Ge, Some(&value), ROWS);
            assert!((sides - 0.9).abs() < 1e-9, "{value:?}: {sides}");
            let sides = compare_fraction(&column, Comparison::Le, Some(&value), ROWS)
                + compare_fraction(&column, Comparison::Gt, Some(&value), ROWS);
            assert!((sides - 0.9).abs() < 1e-9, "{value:?}: {sides}");
        }
    }

    /// A wider range has no fewer rows.
    #[test]
    fn ranges_grow_with_their_limits() {
        let column = numbers();
        let mut last = 0.0;
        for value in (-100..1200).map(Datum::Int4) {
            let share = range_fraction(&column, None, Some((&value, true)));
            assert!(
                share >= last && (0.0..=1.0).contains(&share),
                "{value:?}: {share} after {last}"
            );
            last = share;
        }
    }

    #[test]
    fn an_unknown_limit_and_a_column_without_a_histogram_are_guessed() {
        let mut column = numbers();
        about(compare_fraction(&column, Comparison::Lt, None, ROWS), 0.3);
        column.bounds.clear();
        let value = Datum::Int4(8);
        about(range_fraction(&column, None, Some((&value, false))), 0.2 + 0.6 / 3.0);
        about(
            range_fraction(&column, Some((&value, true)), Some((&value, true))),
            0.6 / 9.0,
        );
    }

    #[test]
    fn times_floats_and_numerics_are_interpolated() {
        let of = |ty, low: Datum, high: Datum| ColumnStatistics {
            ty,
            bounds: vec![low, high],
            ..texts(&[])
        };
        let numeric = |s: &str| Datum::Numeric(cenote_engine::Numeric::parse(s).expect("a number"));
        let cases = [
            (of(ColumnType::Date, Datum::Date(0), Datum::Date(100)), Datum::Date(25)),
            (
                of(ColumnType::Float8, Datum::Float8(-1.0), Datum::Float8(1.0)),
                Datum::Float8(-0.5),
            ),
            (
                of(ColumnType::Numeric(None), numeric("10"), numeric("20")),
                numeric("12.5"),
            ),
            (
                of(ColumnType::Timestamp, Datum::Timestamp(0), Datum::Timestamp(400)),
                Datum::Timestamp(100),
            ),
        ];
        for (column, value) in cases {
            about(range_fraction(&column, None, Some((&value, false))), 0.25);
        }
        let text = texts(&["item a", "item e"]);
        let value = Datum::Text("item b".into());
        about(range_fraction(&text, None, Some((&value, false))), 0.25);
    }

    #[test]
    fn char_n_is_compared_without_its_blanks() {
        let mut column = texts(&[]);
        column.ty = ColumnType::Char(5);
        column.common = vec![(Datum::Text("ab   ".into()), 0.5)];
        about(equal_fraction(&column, Some(&Datum::Text("ab".into())), ROWS), 0.5);
    }

    #[test]
    fn a_pattern_with_a_prefix_is_a_range_and_common_values_are_tried() {
        let bounds: Vec<String> = (0..=100).map(|i| format!("{:03}", i * 9)).collect();
        let column = texts(&bounds.iter().map(String::as_str).collect::<Vec<_>>());
        let starts = |prefix: &'static str| move |text: &str| text.starts_with(prefix);
        let found = pattern_fraction(&column, "1", "%", starts("1"));
        assert!((0.09..0.13).contains(&found), "{found}");
        let none = pattern_fraction(&column, "x", "%", starts("x"));
        assert!(none < 0.001, "{none}");
        let few = texts(&["a", "c", "e", "g"]);
        let found = pattern_fraction(&few, "c", "%", starts("c"));
        assert!((0.1..0.45).contains(&found), "{found}");
        let longer = pattern_fraction(&few, "c", "%xyz", |text| text.starts_with('c') && text.ends_with("xyz"));
        assert!(longer < found / 10.0, "{longer}");
        let mut common = few;
        common.common = vec![(Datum::Text("cc".into()), 0.5)];
        common.bounds.clear();
        let found = pattern_fraction(&common, "c", "%", starts("c"));
        assert!((0.5..0.65).contains(&found), "{found}");
    }

    #[test]
    fn the_side_with_more_distinct_values_decides_a_join() {
        let (mut few, mut many) = (numbers(), numbers());
        (few.null_fraction, many.null_fraction) = (0.0, 0.5);
        (few.distinct, many.distinct) = (10.0, -1.0);
        about(
            join_fraction(Some((&few, 50.0)), Some((&many, 1000.0))).expect("known"),
            0.5 / 1000.0,
        );
        about(join_fraction(Some((&few, 50.0)), None).expect("known"), 0.1);
        assert_eq!(join_fraction(None, None), None);
    }

    #[test]
    fn rows_of_a_prefix_follow_its_distinct_keys_and_common_values() {
        let statistics = Statistics {
            serial: 1,
            at_micros: 0,
            rows: ROWS,
            columns: vec![Some(numbers()), None],
            keys: vec![KeyStatistics {
                id: 5,
                distinct: vec![602.0, -0.1],
            }],
        };
        let key = (5, &[0, 1][..]);
        let rows = |values: &[Option<&Datum>]| rows_of_prefix(&statistics, key, values, ROWS).expect("known");
        about(rows(&[None]), ROWS / 602.0);
        about(rows(&[None, None]), 10.0);
        about(rows(&[Some(&Datum::Int4(7))]), 0.2 * ROWS);
        assert!(
            rows(&[Some(&Datum::Int4(7)), None]) > 1000.0,
            "a common value's keys are longer runs"
        );
        assert_eq!(rows_of_prefix(&statistics, (6, &[0]), &[None], ROWS), None);
    }
}
