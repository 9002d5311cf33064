//! Numbers of a sample: PostgreSQL's `compute_scalar_stats` (`commands/analyze.c`), over keys.
//!
//! Values are compared as the keys of indexes are, so that order and equality are the trees'.
//!
//! The number of distinct values is estimated as by Haas and Stokes ("Estimating the number of classes in a finite
//! population", 1998), their Duj1: `n d / (n - f1 + f1 n / N)`, of `n` sampled rows out of `N` with `d` distinct values,
//! `f1` of which occur once. It supposes that each row is in the sample with the same chance.

use super::ColumnStatistics;
use crate::key;
use crate::types::{ColumnType, Datum, DatumRef};

/// Longer values are counted, and neither compared nor kept: they are all taken for distinct.
pub(crate) const WIDTH_MAX: usize = 1024;
/// A number of distinct values above this share of the rows is taken to grow with them.
const GROWS_ABOVE: f64 = 0.1;

/// Keys one behind the other.
#[derive(Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Keys {
    /// Adds the key that `push` appends.
    pub(crate) fn push(&mut self, push: impl FnOnce(&mut Vec<u8>)) {
        push(&mut self.bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, at: u32) -> &[u8] {
        let at = at as usize;
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.bytes[start..self.ends[at] as usize]
    }

    fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Positions in the order of the keys; equal ones in their own.
    fn sorted(&self) -> Vec<u32> {
        let mut order: Vec<(u64, u32)> = (0..self.len()).map(|at| (head(self.get(at)), at)).collect();
        order.sort_unstable_by(|(a, i), (b, j)| {
            let by_key = || self.get(*i).cmp(self.get(*j));
            a.cmp(b).then_with(by_key).then(i.cmp(j))
        });
        order.into_iter().map(|(_, at)| at).collect()
    }
}

/// The first bytes of a key behind its marker, which decide most comparisons.
fn head(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let first = &key[..key.len().min(9)];
    let first = first.get(1..).unwrap_or_default();
    head[..first.len()].copy_from_slice(first);
    u64::from_be_bytes(head) >> 8 | u64::from(key.first().copied().unwrap_or(0)) << 56
}

/// How large the sample is, and what it is of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Rows of the sample.
    pub sampled: f64,
    /// Rows of the table.
    pub rows: f64,
    /// Entries of lists and buckets of histograms, at most.
    pub target: usize,
}

/// The values of a column in a sample, in the order of the primary key.
pub(crate) struct Values {
    ty: ColumnType,
    keys: Keys,
    values: Vec<Datum>,
    nulls: u64,
    wide: u64,
    width: u64,
}

/// A value of the sample that occurs more than once.
#[derive(Clone, Copy)]
struct Repeated {
    count: u32,
    /// Where the first stands in the sorted sample.
    first: u32,
}

impl Values {
    pub(crate) fn new(ty: ColumnType) -> Values {
        Values {
            ty,
            keys: Keys::default(),
            values: Vec::new(),
            nulls: 0,
            wide: 0,
            width: 0,
        }
    }

    pub(crate) fn push_null(&mut self) {
        self.nulls += 1;
    }

    /// A value of so many bytes that is not looked at.
    pub(crate) fn push_wide(&mut self, width: u64) {
        self.wide += 1;
        self.width += width;
    }

    pub(crate) fn push(&mut self, value: &DatumRef<'_>, width: usize) {
        assert!(!value.is_null(), "NULLs are counted apart");
        if width > WIDTH_MAX {
            return self.push_wide(width as u64);
        }
        self.width += width as u64;
        self.keys.push(|key| key::push(self.ty, value, key));
        self.values.push(value.to_owned());
    }

    /// The column's statistics.
    pub(crate) fn summary(&self, scale: Scale) -> ColumnStatistics {
        let some = self.values.len() as u64 + self.wide;
        assert_eq!(
            (some + self.nulls) as f64,
            scale.sampled,
            "each row has a value or none"
        );
        let null_fraction = if scale.sampled > 0.0 {
            self.nulls as f64 / scale.sampled
        } else {
            0.0
        };
        let order = self.keys.sorted();
        let (distinct_sampled, mut repeated) = self.repeated(&order);
        let distinct = distinct_in_table(
            Sampled {
                rows: some as f64,
                distinct: f64::from(distinct_sampled) + self.wide as f64,
                repeated: repeated.len() as f64,
            },
            scale.rows * (1.0 - null_fraction),
            scale.rows,
        );
        repeated.sort_unstable_by(|a, b| b.count.cmp(&a.count).then(a.first.cmp(&b.first)));
        let all_are_common = self.wide == 0 && repeated.len() == distinct_sampled as usize && distinct > 0.0;
        let mut common = repeated.len().min(scale.target);
        if !(all_are_common && repeated.len() <= scale.target) {
            common = common_enough(&repeated[..common], (distinct, null_fraction), scale);
        }
        let mut taken = repeated[..common].to_vec();
        let share = |r: &Repeated| f64::from(r.count) / scale.sampled;
        let common = taken.iter().map(|r| (self.value(&order, r.first), share(r))).collect();
        taken.sort_unstable_by_key(|r| r.first);
        ColumnStatistics {
            ty: self.ty,
            null_fraction,
            width: if some > 0 { self.width as f64 / some as f64 } else { 0.0 },
            distinct,
            common,
            bounds: self.bounds(&order, &taken, distinct_sampled as usize, scale.target),
            correlation: correlation(&order),
        }
    }

    fn value(&self, order: &[u32], at: u32) -> Datum {
        self.values[order[at as usize] as usize].clone()
    }

    /// How many distinct values there are, and those that occur more than once.
    fn repeated(&self, order: &[u32]) -> (u32, Vec<Repeated>) {
        let (mut distinct, mut repeated) = (0, Vec::new());
        let mut first = 0;
        while first < order.len() {
            let key = self.keys.get(order[first]);
            let count = order[first..]
                .iter()
                .take_while(|at| self.keys.get(**at) == key)
                .count();
            distinct += 1;
            if count > 1 {
                repeated.push(Repeated {
                    count: count as u32,
                    first: first as u32,
                });
            }
            first += count;
        }
        (distinct, repeated)
    }

    /// Bounds of the histogram of what is not `common` (by place in the order).
    fn bounds(&self, order: &[u32], common: &[Repeated], distinct: usize, target: usize) -> Vec<Datum> {
        let count = (distinct - common.len()).min(target + 1);
        if count < 2 {
            return Vec::new();
        }
        let mut rest = Vec::with_capacity(order.len());
        let mut from = 0;
        for run in common {
            rest.extend_from_slice(&order[from..run.first as usize]);
            from = (run.first + run.count) as usize;
        }
        rest.extend_from_slice(&order[from..]);
        assert!(rest.len() >= count, "distinct values are no more than values");
        let at = |i: usize| rest[i * (rest.len() - 1) / (count - 1)] as usize;
        (0..count).map(|i| self.values[at(i)].clone()).collect()
    }
}

/// Correlation of the places of values in the primary key's order with those in their own.
fn correlation(order: &[u32]) -> Option<f64> {
    if order.len() < 2 {
        return None;
    }
    let n = order.len() as f64;
    let products: f64 = (0u32..).zip(order).map(|(i, at)| f64::from(i) * f64::from(*at)).sum();
    let sum = n * (n - 1.0) / 2.0;
    let squares = n * (n - 1.0) * (2.0 * n - 1.0) / 6.0;
    Some(((n * products - sum * sum) / (n * squares - sum * sum)).clamp(-1.0, 1.0))
}

/// What was counted in a sample, of rows that have a value.
struct Sampled {
    rows: f64,
    distinct: f64,
    /// Distinct values that occur more than once.
    repeated: f64,
}

/// Distinct values of a table of `rows` rows, `some` of which have a value: in `n_distinct`'s convention.
fn distinct_in_table(sample: Sampled, some: f64, rows: f64) -> f64 {
    let Sampled {
        rows: n,
        distinct: d,
        repeated,
    } = sample;
    let distinct = if n == 0.0 {
        return 0.0;
    } else if repeated == 0.0 {
        return -(some / rows.max(1.0)).clamp(f64::MIN_POSITIVE, 1.0);
    } else if repeated == d {
        d
    } else {
        let once = d - repeated;
        let some = some.max(n);
        let estimate = n * d / ((n - once) + once * n / some);
        estimate.clamp(d, some).round()
    };
    match distinct > GROWS_ABOVE * rows {
        true => -(distinct / rows).min(1.0),
        false => distinct,
    }
}

/// How many of `common`, the most frequent values of the sample, are common enough to be kept: each must be more
/// frequent than the average of what is left out by two standard deviations of its count (`analyze_mcv_list`).
fn common_enough(common: &[Repeated], (distinct, null_fraction): (f64, f64), scale: Scale) -> usize {
    let (n, rows) = (scale.sampled, scale.rows);
    if n >= rows || rows <= 1.0 {
        return common.len();
    }
    let distinct = if distinct < 0.0 { -distinct * rows } else { distinct };
    let mut kept = common.len();
    let mut before: f64 = common
        .iter()
        .take(kept.saturating_sub(1))
        .map(|r| f64::from(r.count))
        .sum();
    while kept > 0 {
        let others = (distinct - (kept as f64 - 1.0)).max(1.0);
        let share = (1.0 - before / n - null_fraction).clamp(0.0, 1.0) / others;
        let count = f64::from(common[kept - 1].count);
        let k = rows * count / n;
        let variance = n * k * (rows - k) * (rows - n) / (rows * rows * (rows - 1.0));
        if count > share * n + 2.0 * variance.max(0.0).sqrt() + 0.5 {
            break;
        }
        kept -= 1;
        before -= kept.checked_sub(1).map_or(0.0, |last| f64::from(common[last].count));
    }
    kept
}

/// Distinct keys of each prefix of an index: `keys` are whole ones, `ends` says for each where its prefixes end.
pub(crate) fn distinct_prefixes(keys: &Keys, ends: &[Vec<u32>], scale: Scale) -> Vec<f64> {
    let order = keys.sorted();
    let columns = ends.first().map_or(0, Vec::len);
    (0..columns)
        .map(|column| {
            let prefix = |at: u32| &keys.get(at)[..ends[at as usize][column] as usize];
            let (mut distinct, mut repeated, mut run) = (0.0, 0.0, 0u32);
            for (i, at) in order.iter().enumerate() {
                let is_new = i == 0 || prefix(order[i - 1]) != prefix(*at);
                run = if is_new { 1 } else { run + 1 };
                distinct += f64::from(u8::from(is_new));
                repeated += f64::from(u8::from(run == 2));
            }
            let sample = Sampled {
                rows: scale.sampled,
                distinct,
                repeated,
            };
            distinct_in_table(sample, scale.rows, scale.rows)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::random::Random;

    const ROWS: usize = 400_000;
    const SAMPLE: usize = 30_000;

    /// The statistics of a column whose `i`-th row has the value that `value` gives, from a sample of its rows.
    fn sampled(seed: u64, value: impl Fn(usize, &mut Random) -> Option<i64>) -> ColumnStatistics {
        let mut random = Random(seed);
        let all: Vec<Option<i64>> = (0..ROWS).map(|i| value(i, &mut random)).collect();
        let mut values = Values::new(ColumnType::Int8);
        let mut left = SAMPLE;
        for (i, value) in all.iter().enumerate() {
            if random.below((ROWS - i) as u64) < left as u64 {
                left -= 1;
                match value {
                    Some(value) => values.push(&DatumRef::Int8(*value), 8),
                    None => values.push_null(),
                }
            }
        }
        values.summary(Scale {
            sampled: SAMPLE as f64,
            rows: ROWS as f64,
            target: 100,
        })
    }

    fn within(found: f64, wanted: f64, share: f64) {
        assert!(
            (found - wanted).abs() <= share * wanted.abs(),
            "{found} is not about {wanted}"
        );
    }

    #[test]
    fn uniform_values_have_a_histogram_and_no_common_ones() {
        for seed in 1..=5 {
            let column = sampled(seed, |_, random| Some(random.below(20_000) as i64));
            within(column.distinct_values(ROWS as f64).unwrap(), 20_000.0, 0.05);
            // A few of them are outliers of the sample.
            assert!(column.common_fraction() < 0.005, "{:?}", column.common);
            assert_eq!(column.bounds.len(), 101);
            for (i, bound) in column.bounds.iter().enumerate() {
                let Datum::Int8(bound) = bound else { panic!("{bound:?}") };
                assert!((*bound - 200 * i as i64).abs() < 700, "bound {i} is {bound}");
            }
            assert!(column.correlation.unwrap().abs() < 0.05);
            assert_eq!((column.null_fraction, column.width), (0.0, 8.0));
        }
    }

    #[test]
    fn few_values_are_all_common() {
        for seed in 1..=5 {
            let column = sampled(seed, |i, _| (i % 4 != 0).then_some((i % 50) as i64));
            within(column.null_fraction, 0.25, 0.05);
            assert_eq!((column.distinct, column.common.len()), (50.0, 50), "{column:?}");
            assert!(column.bounds.is_empty());
            within(column.common_fraction(), 0.75, 0.02);
        }
    }

    /// Zipf's law with exponent 1: the share of the k-th of n values is 1 / (k * H(n)).
    #[test]
    fn frequent_values_of_a_skewed_column_are_found_with_their_shares() {
        let n = 10_000;
        let mut sums = Vec::with_capacity(n);
        let mut sum = 0.0;
        for k in 1..=n {
            sum += 1.0 / k as f64;
            sums.push(sum);
        }
        for seed in 1..=5 {
            let column = sampled(seed, |_, random| {
                let at = random.below(1 << 40) as f64 / (1u64 << 40) as f64 * sum;
                Some(sums.partition_point(|s| *s <= at) as i64)
            });
            assert!(column.common.len() > 50, "{}", column.common.len());
            for k in 0..10 {
                let of = |(value, _): &&(Datum, f64)| *value == Datum::Int8(k);
                let (_, share) = column.common.iter().find(of).expect("among the common ones");
                within(*share, 1.0 / ((k + 1) as f64 * sum), 0.15);
            }
            assert!(column.common.is_sorted_by(|a, b| a.1 >= b.1));
            // Duj1 takes rare values for as frequent as each other, and finds too few of a skewed column's.
            within(column.distinct_values(ROWS as f64).unwrap(), n as f64, 0.5);
            assert!(column.bounds.len() > 90);
        }
    }

    #[test]
    fn rising_values_are_unique_and_follow_the_key() {
        for seed in 1..=5 {
            let column = sampled(seed, |i, _| Some(i as i64));
            assert_eq!((column.distinct, column.common.len()), (-1.0, 0));
            within(column.correlation.unwrap(), 1.0, 1e-6);
            let falling = sampled(seed, |i, _| Some(-(i as i64)));
            within(falling.correlation.unwrap(), -1.0, 1e-6);
        }
    }

    #[test]
    fn nulls_alone_say_nothing_of_values() {
        let column = sampled(1, |_, _| None);
        assert_eq!((column.null_fraction, column.distinct, column.width), (1.0, 0.0, 0.0));
        assert!(column.common.is_empty() && column.bounds.is_empty() && column.correlation.is_none());
        assert_eq!(column.distinct_values(100.0), None);
    }

    #[test]
    fn a_column_of_an_empty_table_has_no_values() {
        let scale = Scale {
            sampled: 0.0,
            rows: 0.0,
            target: 100,
        };
        let column = Values::new(ColumnType::Text).summary(scale);
        assert_eq!((column.null_fraction, column.distinct), (0.0, 0.0));
        assert!(column.bounds.is_empty());
    }

    #[test]
    fn groups_of_ten_rows_are_counted_by_the_first_column_of_a_key() {
        for seed in 1..=5 {
            let (mut keys, mut ends, mut random) = (Keys::default(), Vec::new(), Random(seed));
            let mut left = SAMPLE;
            for i in 0..ROWS {
                if random.below((ROWS - i) as u64) < left as u64 {
                    left -= 1;
                    let mut end = Vec::new();
                    keys.push(|key| {
                        let start = key.len();
                        for part in [i / 10, i % 10] {
                            key::push(ColumnType::Int8, &DatumRef::Int8(part as i64), key);
                            end.push((key.len() - start) as u32);
                        }
                    });
                    ends.push(end);
                }
            }
            let scale = Scale {
                sampled: SAMPLE as f64,
                rows: ROWS as f64,
                target: 100,
            };
            let distinct = distinct_prefixes(&keys, &ends, scale);
            assert_eq!(distinct[1], -1.0, "the whole key is unique");
            within(
                distinct[0].abs() * if distinct[0] < 0.0 { ROWS as f64 } else { 1.0 },
                40_000.0,
                0.05,
            );
        }
    }

    #[test]
    fn wide_values_are_counted_as_distinct() {
        let mut values = Values::new(ColumnType::Text);
        let long = "x".repeat(WIDTH_MAX + 1);
        (0..10).for_each(|_| values.push(&DatumRef::Text(&long), long.len()));
        (0..10).for_each(|_| values.push(&DatumRef::Text("a"), 1));
        let scale = Scale {
            sampled: 20.0,
            rows: 20.0,
            target: 100,
        };
        let column = values.summary(scale);
        assert_eq!(column.distinct_values(20.0), Some(11.0));
        assert_eq!(column.common, [(Datum::Text("a".into()), 0.5)]);
        assert_eq!(column.width, (10.0 * 1025.0 + 10.0) / 20.0);
    }
}
