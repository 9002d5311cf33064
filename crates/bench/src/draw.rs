//! What benchmarks' specifications draw: numbers in closed intervals, strings of letters, the skewed numbers of TPC-C.

use cenote_base::random::{Random, mix};

const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// A stream of draws: same seed, same draws.
#[derive(Debug, Clone)]
pub struct Draw(Random);

impl Draw {
    /// The stream of a seed and of a place in the data or in the load, such as a table and a row.
    pub fn new(seed: u64, place: [u64; 2]) -> Self {
        Self(Random(mix(mix(mix(seed) ^ place[0]) ^ place[1])))
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        debug_assert!(low <= high, "an interval that is not empty");
        low + self.0.below((high - low) as u64 + 1) as i64
    }

    /// As [`Draw::between`], of 32 bits.
    #[inline]
    pub fn number(&mut self, low: i32, high: i32) -> i32 {
        self.between(i64::from(low), i64::from(high)) as i32
    }

    /// True so often in a hundred draws.
    #[inline]
    pub fn percent(&mut self, share: u64) -> bool {
        self.0.below(100) < share
    }

    /// From 0 up to 1, without 1.
    pub fn share(&mut self) -> f64 {
        (self.0.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of these.
    #[inline]
    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.0.index(choices.len())]
    }

    /// Which of the weights is hit.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut at = self.0.below(weights.iter().map(|w| u64::from(*w)).sum()) as u32;
        for (n, weight) in weights.iter().enumerate() {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return n,
            }
        }
        weights.len() - 1
    }

    /// Letters and digits, from `low` to `high` of them.
    pub fn letters(&mut self, low: i32, high: i32) -> String {
        let count = self.number(low, high);
        (0..count).map(|_| char::from(*self.of(LETTERS))).collect()
    }

    /// So many digits.
    pub fn digits(&mut self, count: usize) -> String {
        (0..count).map(|_| char::from(b'0' + self.0.below(10) as u8)).collect()
    }

    /// TPC-C's skewed number (clause 2.1.6), from `low` to `high`; `c` is its constant.
    #[inline]
    pub fn skewed(&mut self, a: i32, c: i32, low: i32, high: i32) -> i32 {
        let bits = self.number(0, a) | self.number(low, high);
        (bits + c) % (high - low + 1) + low
    }

    /// `count` numbers from 0 on, in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            numbers.swap(last, self.0.index(last + 1));
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_place_decide_all_draws() {
        let draw = |seed, place| Draw::new(seed, place).letters(20, 20);
        assert_eq!(draw(1, [2, 3]), draw(1, [2, 3]));
        assert!(draw(1, [2, 3]) != draw(1, [3, 2]) && draw(1, [2, 3]) != draw(2, [2, 3]));
    }

    #[test]
    fn intervals_have_both_ends_and_weights_their_shares() {
        let mut draw = Draw::new(1, [0, 0]);
        let mut counts = [0u32; 6];
        (0..60_000).for_each(|_| counts[draw.number(0, 5) as usize] += 1);
        assert!(counts.iter().all(|n| (9_500..10_500).contains(n)), "{counts:?}");
        let mut counts = [0u32; 3];
        (0..100_000).for_each(|_| counts[draw.weighted(&[1, 0, 3])] += 1);
        assert!(counts[1] == 0 && (24_000..26_000).contains(&counts[0]), "{counts:?}");
        let lengths: Vec<usize> = (0..1000).map(|_| draw.letters(3, 5).len()).collect();
        assert!((3..=5).all(|n| lengths.contains(&n)) && lengths.iter().all(|n| (3..=5).contains(n)));
    }

    /// Clause 2.1.6's number is an OR of two draws: with A = 1023 over 1 to 3000, those whose low bits are all set are
    /// drawn far more often than those with few of them, and the constant shifts where they lie.
    #[test]
    fn skewed_numbers_are_skewed_and_shifted_by_their_constant() {
        let histogram = |c| {
            let (mut draw, mut counts) = (Draw::new(3, [0, 0]), vec![0u32; 3001]);
            (0..1_000_000).for_each(|_| counts[draw.skewed(1023, c, 1, 3000) as usize] += 1);
            counts
        };
        let (counts, shifted) = (histogram(0), histogram(100));
        assert_eq!(counts[0], 0);
        let even = 1_000_000 / 3000;
        assert!(counts[1024] > 10 * even, "{}", counts[1024]);
        assert!(counts[2049] < even / 10, "{}", counts[2049]);
        assert!(
            shifted[1124].abs_diff(counts[1024]) < counts[1024] / 10,
            "{}",
            shifted[1124]
        );
    }

    #[test]
    fn a_shuffle_has_each_number_once() {
        let mut numbers = Draw::new(4, [0, 0]).shuffled(1000);
        assert!((0..1000).any(|n| numbers[n] != n));
        numbers.sort_unstable();
        assert!((0..1000).all(|n| numbers[n] == n));
    }
}
