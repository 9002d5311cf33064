//! Draws for what goes wrong.

use cenote_base::rt::os;

/// splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A word.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        os::mix(self.0)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.word() % n
    }

    /// One of these.
    pub(crate) fn pick<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[self.below(N as u64) as usize]
    }

    /// Yes, with this probability. Draws nothing where it is 0.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (self.word() >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }
}
