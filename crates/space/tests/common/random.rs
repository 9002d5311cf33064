//! Choices that a seed repeats.

use cenote_base::rt;

/// Numbers that a seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A seed that is printed: `CENOTE_SEED` runs it again.
pub fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    seed
}
