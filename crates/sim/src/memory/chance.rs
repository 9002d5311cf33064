//! What hardware may or may not do with lines.

use cenote_base::random::Random;

/// What hardware may or may not do, as a seed draws it; or as a test sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance {
    /// Every so many touches of a view something happens that no thread asked for; 0: never.
    pub every: u32,
    /// Of 16 such, so many are prefetches; the others are evictions.
    pub prefetches: u32,
    /// Of 16 dirty lines of a lost host, so many had reached memory.
    pub reached: u32,
}

impl Chance {
    /// As a seed has it.
    pub(super) fn draw(random: &mut Random) -> Self {
        Self {
            every: random.pick(&[0, 8, 40, 200, 1000, 5000]),
            prefetches: random.pick(&[0, 4, 8, 12, 16]),
            reached: random.pick(&[0, 1, 8, 15, 16]),
        }
    }
}
