//! What all threads of a server know: its limits, its secret, and what each of them counts.

use super::secret::Secret;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Connections at a time, unless an option says another number.
pub const CONNECTIONS_MAX: usize = 10_000;

/// A number that one thread alone changes, and all read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// So much more.
    #[inline]
    pub fn add(&self, n: u64) {
        // No other thread writes it: cheaper than an addition that others could come between.
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// What it is now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a thread counts. Lines of its own, so that threads do not wait for each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Commands, those that were refused included.
    pub commands: Count,
    /// Keys that the sweep has removed.
    pub swept: Count,
    /// Wrong secrets.
    pub denied: Count,
    /// Connections that were closed.
    pub closed: Count,
    /// Connections that ended because they did not say the secret, or did not come to terms on TLS, in time.
    pub expired: Count,
    /// Bytes of commands.
    pub bytes_in: Count,
    /// Bytes of answers.
    pub bytes_out: Count,
}

/// See the module.
#[derive(Debug)]
pub struct Board {
    /// When the server began, in milliseconds since 1970.
    pub began: u64,
    /// Connections at a time.
    pub connections_max: usize,
    /// What clients have to say, if anything.
    pub secret: Option<Secret>,
    /// Connections that were accepted. (The acceptor's alone.)
    pub accepted: Count,
    /// Connections that were refused, since there were as many as there may be. (The acceptor's alone.)
    pub refused: Count,
    /// By thread.
    pub threads: Vec<Arc<Counters>>,
}

impl Board {
    /// For so many threads.
    pub fn new(threads: usize, connections_max: usize, secret: Option<Secret>, began: u64) -> Self {
        Self {
            began,
            connections_max,
            secret,
            accepted: Count::default(),
            refused: Count::default(),
            threads: (0..threads).map(|_| Arc::default()).collect(),
        }
    }

    /// The sum of what the threads count.
    pub fn sum(&self, count: fn(&Counters) -> &Count) -> u64 {
        self.threads.iter().map(|counters| count(counters).get()).sum()
    }

    /// Connections that there are.
    pub fn connections(&self) -> u64 {
        let closed = self.sum(|counters| &counters.closed);
        self.accepted.get().saturating_sub(closed)
    }
}
