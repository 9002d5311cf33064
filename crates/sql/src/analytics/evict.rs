//! Room for what is kept between runs: so many things at most, the oldest go first.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What can be told to give its memory back.
pub(crate) trait Evict: Send + Sync {
    /// Gives back what it keeps.
    fn evict(&self);
}

/// The things that are kept, the oldest first. Their owners drop them as they like.
pub(crate) struct KeptPlans {
    kept: Mutex<VecDeque<Weak<dyn Evict>>>,
    most: usize,
    /// Runs that began by a plan of another run.
    pub runs: AtomicU64,
}

impl KeptPlans {
    /// Room for so many.
    pub fn new(most: usize) -> KeptPlans {
        KeptPlans {
            kept: Mutex::default(),
            most: most.max(1),
            runs: AtomicU64::new(0),
        }
    }

    /// Notes one more; the oldest goes where there are too many.
    pub fn note(&self, new: &Arc<dyn Evict>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= self.most {
            kept.retain(|one| one.strong_count() > 0);
        }
        while kept.len() >= self.most {
            let oldest = kept.pop_front().and_then(|one| one.upgrade());
            oldest.iter().for_each(|one| one.evict());
        }
        kept.push_back(Arc::downgrade(new));
    }
}
