//! How the plans of one statement were run, and what that tells: which of them is taken next, and whether the generic one
//! is to be made anew.

use crate::plan::Planned;
use crate::plan::learned::Learned;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};

/// Runs that are planned for their values before costs are compared.
const CUSTOM_FIRST: u64 = 5;
/// How often a generic plan is made anew since it was wrong: each time it knows more.
const ANEW_MAX: u32 = 3;

/// `plan_cache_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanCacheMode {
    /// By costs.
    Auto,
    /// The generic plan.
    Generic,
    /// A plan for each run.
    Custom,
}

impl PlanCacheMode {
    /// The mode by its name.
    pub fn named(name: &str) -> PlanCacheMode {
        match name {
            "force_generic_plan" => PlanCacheMode::Generic,
            "force_custom_plan" => PlanCacheMode::Custom,
            _ => PlanCacheMode::Auto,
        }
    }
}

/// How often custom plans were run, and what they cost. All copies of a session's statement share it; it goes with the
/// generic plan.
#[derive(Debug)]
pub struct History {
    custom: AtomicU64,
    /// The sum of the custom plans' costs: bits of an f64.
    cost: AtomicU64,
    /// What runs told of the generic plan and of custom ones.
    learned: Mutex<[Option<Learned>; 2]>,
    /// The generic plan was wrong, and is to be made anew.
    wrong: AtomicBool,
    /// How often that was done.
    anew: u32,
    /// The plan stays whatever its runs tell: another would answer otherwise.
    settled: bool,
}

impl Default for History {
    fn default() -> History {
        History {
            custom: AtomicU64::new(0),
            cost: AtomicU64::new(0),
            learned: Mutex::new([None, None]),
            wrong: AtomicBool::new(false),
            anew: 0,
            settled: false,
        }
    }
}

impl History {
    /// Whether the next run is to be planned for its values.
    pub fn wants_custom(&self, mode: PlanCacheMode, generic: &Planned) -> bool {
        match mode {
            PlanCacheMode::Generic => false,
            PlanCacheMode::Custom => true,
            PlanCacheMode::Auto => {
                let runs = self.custom.load(Ordering::Relaxed);
                generic.by_values && (runs < CUSTOM_FIRST || self.sum() < generic.cost * runs as f64)
            }
        }
    }

    /// Whether the generic plan is to be made anew.
    #[inline]
    pub fn is_wrong(&self) -> bool {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Whether the plan stays whatever its runs tell.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// What runs of the generic plan, or of custom ones, have told.
    pub fn learned(&self, custom: bool) -> Option<Learned> {
        self.learned.lock()[usize::from(custom)].clone()
    }

    /// Notes what a run told.
    pub fn learn(&self, custom: bool, more: &Learned) {
        let mut learned = self.learned.lock();
        let known = &mut learned[usize::from(custom)];
        *known = Some(known.take().unwrap_or_default().and(more));
        if !custom && self.anew < ANEW_MAX && !self.settled {
            self.wrong.store(true, Ordering::Relaxed);
        }
    }

    /// Of a plan that stays whatever its runs tell.
    pub fn settled() -> History {
        History {
            settled: true,
            ..History::default()
        }
    }

    /// The history of the plan that is made in this one's place.
    pub fn next(&self) -> History {
        History {
            learned: Mutex::new(self.learned.lock().clone()),
            anew: self.anew + 1,
            ..History::default()
        }
    }

    fn sum(&self) -> f64 {
        f64::from_bits(self.cost.load(Ordering::Relaxed))
    }

    /// A custom plan of this cost is run.
    pub fn note_custom(&self, cost: f64) {
        self.custom.fetch_add(1, Ordering::Relaxed);
        self.cost.store((self.sum() + cost).to_bits(), Ordering::Relaxed);
    }
}
