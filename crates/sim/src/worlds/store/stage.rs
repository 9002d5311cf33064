//! What all processes of the world have in common, beside the pool's own.

use cenote_base::Error;
use cenote_base::random::Random;
use std::sync::{Arc, OnceLock};

use super::model::Model;
use crate::worlds::pool;
use cenote_space::GlobalAddress;
use cenote_store::{Options, Visibility};

pub(super) struct Stage {
    pub pool: Arc<pool::stage::Stage>,
    pub model: Model,
    /// Ways are cut, programs are killed, a pod is lost: what is lost may be missing.
    pub wild: bool,
    /// Less room than values: they evict each other.
    pub tight: bool,
    pub options: Options,
    /// Lengths of values.
    pub lengths: [usize; 3],
    /// Where the store's root lies.
    pub root: OnceLock<GlobalAddress>,
}

/// Bytes that all items may take where room is short.
const TIGHT: u64 = 100 << 10;

impl Stage {
    pub fn new(pool: &Arc<pool::stage::Stage>, draw: &mut Random) -> Arc<Stage> {
        let (pods, keys) = (pool.pods, pool.shared.plan.rows as usize);
        let is_flush = pods.window.is_some();
        let tight = draw.one_in(4);
        // Values above 16 KiB lie in chunks; a last one has a few bytes, or nearly 1 MiB.
        let long = draw.pick(&[17_000, 40_000, 100_001]);
        let lengths = match pods.twin {
            Some(_) => [50, long, long],
            None => [50, 700, long],
        };
        Arc::new(Stage {
            model: Model::new(keys, pool.count()),
            pool: Arc::clone(pool),
            wild: draw.one_in(2),
            tight,
            options: Options {
                bound: if tight { TIGHT } else { 0 },
                visibility: if is_flush {
                    Visibility::Flush
                } else {
                    Visibility::Coherent
                },
                buckets: 16,
                checksums: draw.one_in(2),
                sweeps: true,
            },
            lengths,
            root: OnceLock::new(),
        })
    }

    pub fn fail(&self, wrong: String) {
        self.pool.shared.fail(wrong);
    }

    pub fn count(&self, what: &str) {
        self.pool.shared.count(what);
    }

    /// Whether nothing goes missing by itself.
    pub fn is_sure(&self) -> bool {
        !self.wild && !self.tight
    }

    /// Whether an error is of a pod that is gone: what lay there, or was on its way from there, is waited for in vain.
    pub fn is_of_lost(&self, error: &Error) -> bool {
        let is_gone = self.pool.alive().len() < self.pool.count();
        is_gone && matches!(error, Error::Lost(_) | Error::Timeout(_))
    }

    /// The hosts that members run on, as far as they are there: pods, their visitors, the twin.
    pub fn hosts(&self) -> Vec<usize> {
        let mut hosts = self.pool.alive();
        hosts.push(self.pool.visitors());
        hosts.extend(self.pool.twin());
        hosts
    }
}
