//! What carries operations out, and what it counts.

use super::workload::{Kind, Operation, Stream};
use crate::Result;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// When a worker ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After so many operations.
    Done(u64),
    /// At this moment.
    At(Instant),
    /// When its stream ends.
    Exhausted,
}

impl Until {
    /// Whether it is time, after so many operations.
    pub fn is_reached(&self, operations: u64) -> bool {
        match self {
            Self::Done(all) => operations >= *all,
            Self::At(end) => Instant::now() >= *end,
            Self::Exhausted => false,
        }
    }
}

/// What a worker brings home.
pub struct Counts {
    /// Operations that were answered, as they should be or not.
    pub operations: u64,
    /// Records that were to be there and were not.
    pub missing: u64,
    /// Answers that were errors, or nothing that can be answered.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// How long operations took, in nanoseconds: all of them, or a sample.
    pub latency_ns: Histogram<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            operations: 0,
            missing: 0,
            errors: 0,
            first_error: None,
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid"),
        }
    }
}

impl Counts {
    /// Counts an operation that took so long.
    #[inline]
    pub fn took(&mut self, time: Duration) {
        self.latency_ns.saturating_record(time.as_nanos() as u64);
    }

    /// Counts an operation that went wrong.
    #[cold]
    pub fn failed(&mut self, what: impl Into<String>) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| what.into());
    }

    /// Adds another worker's.
    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.missing += other.missing;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        // Bounds are the same.
        let _ = self.latency_ns.add(other.latency_ns);
    }
}

/// One thread's way to a store.
pub trait Worker: Send {
    /// Carries out operations of a stream.
    ///
    /// # Errors
    /// If the store cannot be reached any more.
    fn run(&mut self, stream: &mut Stream, until: Until) -> Result<Counts>;
}

/// Operations between two looks whether it is time to end.
const BETWEEN_LOOKS: u64 = 64;
/// One operation in so many is timed: looking at the clock takes a good part of one.
const TIMED: u64 = 16;

/// Carries out operations one after the other, by calls of this process: each says whether its record was there and
/// whole.
#[inline]
pub fn in_turn<E: std::fmt::Display>(
    stream: &mut Stream,
    until: Until,
    mut carry_out: impl FnMut(Operation) -> std::result::Result<bool, E>,
) -> Counts {
    let mut counts = Counts::default();
    loop {
        if counts.operations.is_multiple_of(BETWEEN_LOOKS) && until.is_reached(counts.operations) {
            return counts;
        }
        let Some(operation) = stream.next() else {
            return counts;
        };
        let began = counts.operations.is_multiple_of(TIMED).then(Instant::now);
        match carry_out(operation) {
            Ok(is_there) => counts.missing += u64::from(!is_there),
            Err(error) => counts.failed(error.to_string()),
        }
        if let Some(began) = began {
            counts.took(began.elapsed());
        }
        stream.acknowledge(u64::from(operation.kind == Kind::Insert));
        counts.operations += 1;
    }
}
