//! Whether a thread is to expect that it misses pages.

use cenote_base::rt::atomic::{AtomicU32, Ordering};

/// Times that a thread expects misses after its last one.
const LATELY: u32 = 16;

/// How often a thread is still to expect that it will miss; its own.
#[derive(Default)]
pub(crate) struct Expectation(AtomicU32);

impl Expectation {
    /// It has missed.
    pub fn missed(&self) {
        self.0.as_raw().store(LATELY, Ordering::Relaxed);
    }

    /// Whether it is to expect to miss. Each question counts.
    #[inline]
    pub fn ask(&self) -> bool {
        let left = self.0.as_raw();
        let times = left.load(Ordering::Relaxed);
        if times > 0 {
            left.store(times - 1, Ordering::Relaxed);
        }
        times > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_expected_for_some_time() {
        let expectation = Expectation::default();
        assert!(!expectation.ask(), "it has missed nothing");
        expectation.missed();
        assert!((0..LATELY).all(|_| expectation.ask()));
        assert!(!expectation.ask(), "that was long ago");
    }
}
