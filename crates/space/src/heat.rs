//! How hot an extent is (Rcmp, section 5.3): reads and writes apart, each counted with exponential decay.

use super::part::Part;
use super::presence::SAMPLE;
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;

/// What makes an extent hot. The defaults are the paper's (section 6.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeatOptions {
    /// After so long without an access all is forgotten (T_l).
    pub life: Nanos,
    /// An extent of more heat than this is hot (H_p).
    pub hot: f64,
    /// Decay a second (λ).
    pub decay: f64,
    /// One near access in so many is counted, by chance: an extent that seems to be used elsewhere alone may have had
    /// so many samples' worth of near accesses, and two standard deviations more. (Three: by chance none is counted of
    /// them once in twenty times.)
    pub doubt: f64,
}

impl Default for HeatOptions {
    fn default() -> Self {
        Self {
            life: Nanos::from_secs(100),
            hot: 4.0,
            decay: 0.04,
            doubt: 3.0,
        }
    }
}

/// Accesses of one pod to an extent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Heat {
    reads: f64,
    writes: f64,
    last: Nanos,
}

impl Heat {
    /// Counts accesses that have just been.
    pub fn add(&mut self, reads: u64, writes: u64, now: Nanos, options: &HeatOptions) {
        if reads + writes == 0 {
            return;
        }
        let kept = self.kept(now, options);
        self.reads = self.reads * kept + reads as f64;
        self.writes = self.writes * kept + writes as f64;
        self.last = now;
    }

    /// Heat at a moment: 1 for what is not used at all.
    pub fn at(&self, now: Nanos, options: &HeatOptions) -> f64 {
        (self.reads + self.writes) * self.kept(now, options) + 1.0
    }

    /// What sampled near accesses may have been more than was counted.
    pub fn doubt(&self, now: Nanos, options: &HeatOptions) -> f64 {
        let samples = (self.at(now, options) - 1.0) / SAMPLE as f64;
        match options.doubt > 0.0 {
            true => SAMPLE as f64 * (options.doubt + 2.0 * samples.sqrt()),
            false => 0.0,
        }
    }

    /// What is left of former counts.
    fn kept(&self, now: Nanos, options: &HeatOptions) -> f64 {
        let since = now.since(self.last);
        if since > options.life {
            return 0.0;
        }
        (-options.decay * since.raw() as f64 / 1e9).exp()
    }
}

const WRITES_SHIFT: u32 = 32;

impl Part {
    /// Counts accesses to a slot's memory, where extents can move.
    #[inline(never)]
    pub(super) fn count(&self, slot: u32, is_write: bool, n: u64) {
        assert!(n >> WRITES_SHIFT == 0, "{n} accesses at a time");
        if let Some(heat) = self.moving().and_then(|moving| moving.heat.get(slot as usize)) {
            heat.fetch_add(if is_write { n << WRITES_SHIFT } else { n }, Ordering::Relaxed);
        }
    }

    /// Reads and writes of a slot's memory since this was last asked.
    pub(super) fn counted(&self, slot: u32) -> (u64, u64) {
        let heat = self.moving().and_then(|moving| moving.heat.get(slot as usize));
        let both = heat.map_or(0, |heat| heat.swap(0, Ordering::Relaxed));
        (both & u64::from(u32::MAX), both >> WRITES_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: fn() -> HeatOptions = HeatOptions::default;

    #[test]
    fn heat_decays_and_is_forgotten() {
        let mut heat = Heat::default();
        let second = |n: u64| Nanos::from_secs(1000 + n);
        heat.add(90, 10, second(0), &OPTIONS());
        assert_eq!(heat.at(second(0), &OPTIONS()), 101.0);
        let later = heat.at(second(25), &OPTIONS());
        assert!((later - (100.0 * (-1.0f64).exp() + 1.0)).abs() < 1e-6, "{later}");
        assert!((heat.doubt(second(0), &OPTIONS()) - 64.0 * (3.0 + 2.0 * (100.0f64 / 64.0).sqrt())).abs() < 1e-6);
        heat.add(0, 0, second(50), &OPTIONS());
        assert_eq!(heat.at(second(25), &OPTIONS()), later, "no accesses change nothing");
        assert_eq!(heat.at(second(101), &OPTIONS()), 1.0, "nothing since second 0");
    }
}
