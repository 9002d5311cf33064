//! Choices that a seed repeats.

pub use cenote_base::random::Random;
use cenote_base::rt;

/// A seed that is printed: `CENOTE_SEED` runs it again.
pub fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    seed
}
