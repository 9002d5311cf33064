//! Which record is next: uniform, Zipfian or the latest, as YCSB draws them (its classes `ScrambledZipfianGenerator`,
//! `SkewedLatestGenerator`).
//!
//! Zipfian numbers by Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994), with the
//! exponent 0.99. Drawing one takes some ten nanoseconds: the power that it needs is the hundredth, which is eight
//! multiplications.

use cenote_base::random;

/// The exponent.
const THETA: f64 = 0.99;
/// 1 / (1 - θ).
const ALPHA: i32 = 100;
/// YCSB draws from so many and disperses them over the records there are, however many those are.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// The sum of 1/i^θ over these, as YCSB has it.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Random numbers as YCSB draws them: same seed, same numbers.
#[derive(Debug, Clone)]
pub struct Random(random::Random);

impl Random {
    /// Of a seed.
    pub fn new(seed: u64) -> Self {
        Self(random::Random(disperse(seed)))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.word()
    }

    /// A number below `n`.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// From 0 to 1.
    #[inline]
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// FNV-1a over the eight bytes of a number, the lowest first, without its sign: as YCSB disperses numbers.
#[inline]
pub fn disperse(number: u64) -> u64 {
    let bytes = number.to_le_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash as i64).unsigned_abs()
}

/// Ranks from 0 on, the first the most frequent.
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    eta: f64,
    half: f64,
}

impl Zipfian {
    /// Of so many items. Takes a step for each of them.
    pub fn new(items: u64) -> Self {
        Self::with_zeta(items, (1..=items).map(term).sum())
    }

    fn with_zeta(items: u64, zeta: f64) -> Self {
        let eta = eta(items, zeta);
        let half = 1.0 + term(2);
        Self { items, zeta, eta, half }
    }

    /// One item more.
    pub fn grow(&mut self) {
        self.items += 1;
        self.zeta += term(self.items);
        self.eta = eta(self.items, self.zeta);
    }

    /// How many items there are.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The next rank.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        let share = random.share();
        let place = share * self.zeta;
        if place < 1.0 {
            return 0;
        }
        if place < self.half {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * share - self.eta + 1.0).powi(ALPHA);
        (rank as u64).min(self.items - 1)
    }
}

fn term(n: u64) -> f64 {
    (n as f64).powf(-THETA)
}

fn eta(items: u64, zeta: f64) -> f64 {
    (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - (1.0 + term(2)) / zeta)
}

/// How records are chosen.
#[derive(Debug, Clone)]
pub enum Chooser {
    /// Each as often as any other.
    Uniform,
    /// Some far more often than others, wherever they lie.
    Scrambled(Zipfian),
    /// The newer the more often.
    Latest(Zipfian),
}

impl Chooser {
    /// [`Chooser::Scrambled`].
    pub fn scrambled() -> Self {
        Self::Scrambled(Zipfian::with_zeta(SCRAMBLED_ITEMS, SCRAMBLED_ZETA))
    }

    /// One of so many records; the last is the newest.
    #[inline]
    pub fn next(&mut self, random: &mut Random, records: u64) -> u64 {
        match self {
            Self::Uniform => random.below(records),
            Self::Scrambled(zipfian) => disperse(zipfian.next(random)) % records,
            Self::Latest(zipfian) => {
                while zipfian.items() < records {
                    zipfian.grow();
                }
                records - 1 - zipfian.next(random).min(records - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 2_000_000;

    fn counts(chooser: &mut Chooser, records: u64, seed: u64) -> Vec<u64> {
        let (mut random, mut counts) = (Random::new(seed), vec![0; records as usize]);
        (0..DRAWS).for_each(|_| counts[chooser.next(&mut random, records) as usize] += 1);
        counts
    }

    /// Chi-squared per degree of freedom is about 1 for numbers that are what they should be.
    fn chi_squared(counts: &[u64], expected: impl Fn(usize) -> f64) -> f64 {
        let term = |(n, count): (usize, &u64)| (*count as f64 - expected(n)).powi(2) / expected(n);
        counts.iter().enumerate().map(term).sum::<f64>() / (counts.len() - 1) as f64
    }

    #[test]
    fn uniform_numbers_are_uniform() {
        let counts = counts(&mut Chooser::Uniform, 1000, 1);
        let found = chi_squared(&counts, |_| DRAWS as f64 / 1000.0);
        assert!((0.8..1.2).contains(&found), "chi-squared {found}");
    }

    /// Ranks have the shares 1/i^0.99: the first two exactly, the others as Gray's formula comes near them, in sum
    /// within two hundredths.
    #[test]
    fn zipfian_ranks_have_their_shares() {
        let (items, mut random) = (1000, Random::new(2));
        let zipfian = Zipfian::new(items);
        let mut counts = vec![0u64; items as usize];
        (0..DRAWS).for_each(|_| counts[zipfian.next(&mut random) as usize] += 1);
        let share = |n: u64| term(n) / zipfian.zeta;
        let drawn = |upto: usize| counts[..upto].iter().sum::<u64>() as f64 / DRAWS as f64;
        for (first, wanted) in [(1, share(1)), (2, share(1) + share(2))] {
            assert!(
                (drawn(first) / wanted - 1.0).abs() < 0.01,
                "first {first}: {}, not {wanted}",
                drawn(first)
            );
        }
        for upto in [5, 10, 30, 100, 300, 900] {
            let wanted: f64 = (1..=upto as u64).map(share).sum();
            assert!(
                (drawn(upto) - wanted).abs() < 0.02,
                "first {upto}: {}, not {wanted}",
                drawn(upto)
            );
        }
        assert!(counts.iter().all(|count| *count > 0));
    }

    /// A set that has grown item by item is as one that was made so large.
    #[test]
    fn a_set_that_grows_is_as_a_large_one() {
        let (mut grown, made) = (Zipfian::new(10), Zipfian::new(5000));
        (10..5000).for_each(|_| grown.grow());
        assert!((grown.zeta / made.zeta - 1.0).abs() < 1e-9 && (grown.eta / made.eta - 1.0).abs() < 1e-9);
    }

    /// YCSB's constant is the sum that it is said to be: the integral of the rest, behind a million terms.
    #[test]
    fn the_sum_of_ten_billion_terms_is_known() {
        let million: f64 = (1..=1_000_000).map(term).sum();
        let rest = |n: f64| n.powf(1.0 - THETA) / (1.0 - THETA);
        let all = million + rest(SCRAMBLED_ITEMS as f64 + 0.5) - rest(1_000_000.5);
        assert!((all / SCRAMBLED_ZETA - 1.0).abs() < 1e-6, "{all}");
    }

    #[test]
    fn scrambled_ranks_are_dispersed_and_the_latest_are_the_last() {
        let scrambled = counts(&mut Chooser::scrambled(), 1000, 3);
        let most = |counts: &[u64]| (0..counts.len()).max_by_key(|n| counts[*n]).unwrap_or(0) as u64;
        assert_eq!(most(&scrambled), disperse(0) % 1000);
        let share = scrambled[most(&scrambled) as usize] as f64 / DRAWS as f64;
        let of_first = 1.0 / SCRAMBLED_ZETA;
        assert!(share > of_first && share < of_first + 0.01, "{share}");
        let latest = counts(&mut Chooser::Latest(Zipfian::new(500)), 1000, 4);
        assert_eq!(most(&latest), 999);
        assert!(latest[990..].iter().sum::<u64>() > latest[..500].iter().sum::<u64>());
    }

    #[test]
    fn a_seed_decides_everything() {
        let draw = |seed| counts(&mut Chooser::scrambled(), 50, seed);
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
