//! Random numbers from a seed: the same seed gives the same numbers.
//!
//! The generator is splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). Tests,
//! simulated worlds and benchmarks draw from it, and the operating system's runtime behind
//! [`rt::random`](crate::rt::random). Seeds that tests, documents and reports record replay the same draws as long as
//! its words, and the way that each method uses them, stay as they are.

/// What the state advances by: 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const _: () = assert!(STEP & 1 == 1, "an odd step passes every state before one comes again");

/// splitmix64's output function: every bit of `z` moves every bit of the result.
#[inline]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of random numbers. It holds the state, which a seed starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `n`; 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n.max(1)
    }

    /// An index of something that has `len` entries; 0 if it has none.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `n` draws on average.
    #[inline]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// True with this probability. A probability of 0 draws no word.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (self.word() >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    #[inline]
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        assert!(!of.is_empty(), "one is picked of some");
        of[self.index(of.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first words of the reference implementation (`splitmix64.c` of Vigna) for the seed 1234567.
    #[test]
    fn words_are_those_of_the_reference() {
        let mut random = Random(1_234_567);
        let words = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(words.map(|_| random.word()), words);
    }

    #[test]
    fn draws_keep_their_bounds() {
        let mut random = Random(7);
        assert_eq!(random.below(0), 0);
        assert!((0..1000).all(|_| random.below(10) < 10 && [3, 5].contains(&random.pick(&[3, 5]))));
        let before = random.clone();
        assert!(!random.chance(0.0));
        assert_eq!(random, before, "a probability of 0 draws no word");
    }
}
