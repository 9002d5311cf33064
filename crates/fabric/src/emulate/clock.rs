//! A clock that is cheap to read: the processor's time-stamp counter where it runs evenly, else the system's clock.

use crate::LINE;
use cenote_base::rt::{self, Nanos};

/// How long the counter's speed is measured.
const MEASURE: Nanos = Nanos::from_millis(3);
/// A wait of less than this is not worth a pause instruction, which takes up to 50 ns.
const PAUSE_NS: f64 = 150.0;
/// Memory that the machine's own latency is measured in: more than most caches hold.
const CHASE_BYTES: usize = 64 << 20;
/// Measurements are made of many short ones, most of which no other program disturbs: their median counts.
const BATCHES: usize = 61;
const CHASE_STEPS: usize = 300;

/// Ticks, and how long one is.
pub(super) struct Clock {
    ticks_per_ns: f64,
    is_counter: bool,
    pause_ticks: u64,
}

impl Clock {
    /// Measures for 3 ms.
    pub fn new() -> Clock {
        let is_counter = counter::is_even();
        let ticks_per_ns = if is_counter { measure() } else { 1.0 };
        Clock {
            ticks_per_ns,
            is_counter,
            pause_ticks: (PAUSE_NS * ticks_per_ns) as u64,
        }
    }

    #[inline(always)]
    pub fn now(&self) -> u64 {
        if self.is_counter { counter::read() } else { rt::now().0 }
    }

    pub fn ticks(&self, ns: f64) -> u64 {
        self.ticks_f64(ns) as u64
    }

    pub fn ticks_f64(&self, ns: f64) -> f64 {
        ns * self.ticks_per_ns
    }

    pub fn nanos(&self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_per_ns
    }

    /// Ticks that a call of `f` takes, with the numbers up to `count` in turn.
    pub fn each(&self, count: u64, f: impl Fn(u64)) -> u64 {
        median(|| {
            let began = self.now();
            (0..count).for_each(&f);
            (self.now() - began) as f64 / count as f64
        }) as u64
    }

    /// Spins until the clock shows `until`.
    #[inline]
    pub fn spin_until(&self, until: u64) {
        loop {
            let left = until.saturating_sub(self.now());
            if left == 0 {
                return;
            }
            if left > self.pause_ticks {
                rt::relax();
            }
        }
    }
}

fn median(mut measure: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..BATCHES).map(|_| measure()).collect();
    all.sort_by(f64::total_cmp);
    all[BATCHES / 2]
}

fn measure() -> f64 {
    let (began, ticks) = both();
    while rt::now().since(began) < MEASURE {
        rt::relax();
    }
    let (ended, until) = both();
    (until - ticks) as f64 / ended.since(began).0 as f64
}

/// Both clocks at one moment: of some tries, that in which least came between.
fn both() -> (Nanos, u64) {
    let tries = (0..9).map(|_| {
        let before = counter::read();
        let now = rt::now();
        (counter::read() - before, now, before)
    });
    let (gap, now, before) = tries.min_by_key(|t| t.0).expect("nine tries");
    (now, before + gap / 2)
}

/// Waits until the loads before it have their values.
#[inline(always)]
pub(super) fn finish_loads() {
    counter::finish_loads();
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use core::arch::x86_64 as x86;

    /// Whether it runs at one speed, whatever the processor does.
    pub fn is_even() -> bool {
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        x86::__cpuid(0x8000_0000).eax >= POWER && x86::__cpuid(POWER).edx & INVARIANT != 0
    }

    #[inline(always)]
    pub fn read() -> u64 {
        crate::instructions::read_counter()
    }

    #[inline(always)]
    pub fn finish_loads() {
        crate::instructions::finish_loads();
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub fn is_even() -> bool {
        false
    }

    pub fn read() -> u64 {
        0
    }

    pub fn finish_loads() {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
}

/// What a load from this machine's own memory takes, in nanoseconds, measured by following a chain through 64 MiB
/// (which a large last-level cache may hold in part): nothing can be emulated that is faster. Takes some 30 ms.
pub fn own_latency_ns() -> f64 {
    let lines = CHASE_BYTES / LINE;
    let words = LINE / size_of::<u64>();
    let mut memory = vec![0u64; CHASE_BYTES / size_of::<u64>()];
    // Each page is there before the clock runs.
    memory
        .iter_mut()
        .step_by(4096 / size_of::<u64>())
        .for_each(|word| *word = 1);
    memory
        .iter_mut()
        .step_by(4096 / size_of::<u64>())
        .for_each(|word| *word = 0);
    let mut line = 0usize;
    median(|| {
        let began = rt::now();
        for _ in 0..CHASE_STEPS {
            // A step depends on the word loaded (a zero), and visits the lines in an order that is hard to guess.
            let loaded = core::hint::black_box(memory[line * words]) as usize;
            line = (line.wrapping_mul(MULTIPLIER).wrapping_add(1) + loaded) % lines;
        }
        rt::now().since(began).0 as f64 / CHASE_STEPS as f64
    })
}

/// Makes a sequence that comes to each number below a power of two (Knuth's linear congruential method).
const MULTIPLIER: usize = 0x5851_F42D_4C95_7F2D;
