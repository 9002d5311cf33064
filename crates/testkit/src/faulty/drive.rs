//! What a drive costs in time: a queue of transfers, and latencies.
//!
//! Reads wait for the transfers before them, then take their latency and their transfer. Writes are buffered: they go
//! on beside, but take their place in the queue, and no writer may be further ahead of the drive than [`BUFFERED`]. A
//! sync waits for the whole queue and then takes its latency. Several file systems may lie on one drive, or behind one
//! network.

use cenote_base::rt::{Mutex, Nanos};
use cenote_fabric::profile::Profile;
use std::sync::Arc;

/// What a drive can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DriveSpeed {
    /// Until the first byte of a read is there.
    pub read_latency: Nanos,
    /// Until what was written is durable, once it has reached the drive.
    pub sync_latency: Nanos,
    /// Bytes a second, reads and writes together.
    pub bytes_per_second: f64,
    /// Reads and writes a second.
    pub operations_per_second: f64,
}

/// A drive. Clones are the same drive.
#[derive(Debug, Clone)]
pub struct Drive(Arc<Mutex<State>>);

/// How far writers may be ahead of the drive.
pub const BUFFERED: Nanos = Nanos::from_millis(100);

#[derive(Debug)]
struct State {
    speed: DriveSpeed,
    /// The latest arrival, and what was queued then.
    last: Nanos,
    queued: Nanos,
    used: DriveCounters,
}

/// What a drive has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriveCounters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Syncs.
    pub syncs: u64,
    /// Time that it was transferring.
    pub busy: Nanos,
}

impl Drive {
    /// A drive with the times of `profile`.
    pub fn of(profile: &Profile) -> Self {
        Self::new(DriveSpeed {
            read_latency: Nanos(profile.load_latency_ns as u64),
            sync_latency: Nanos(profile.sync_ns as u64),
            bytes_per_second: profile.bandwidth.unwrap_or(f64::INFINITY),
            operations_per_second: profile.operations.unwrap_or(f64::INFINITY),
        })
    }

    /// Idle.
    pub fn new(speed: DriveSpeed) -> Self {
        Self(Arc::new(Mutex::new(State {
            speed,
            last: Nanos::ZERO,
            queued: Nanos::ZERO,
            used: DriveCounters::default(),
        })))
    }

    /// What it has done.
    pub fn counters(&self) -> DriveCounters {
        self.0.lock().used
    }

    /// How long a read of `bytes` at `now` takes.
    pub fn read(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut state = self.0.lock();
        (state.used.reads, state.used.bytes_read) = (state.used.reads + 1, state.used.bytes_read + bytes);
        state.queue(now, bytes) + state.speed.read_latency
    }

    /// How long a writer of `bytes` at `now` is held up.
    pub fn write(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut state = self.0.lock();
        (state.used.writes, state.used.bytes_written) = (state.used.writes + 1, state.used.bytes_written + bytes);
        state.queue(now, bytes).since(BUFFERED)
    }

    /// How long a sync at `now` takes.
    pub fn sync(&self, now: Nanos) -> Nanos {
        let mut state = self.0.lock();
        state.used.syncs += 1;
        state.queue(now, 0) + state.speed.sync_latency
    }
}

impl State {
    /// Queues a transfer; until it is through.
    fn queue(&mut self, now: Nanos, bytes: u64) -> Nanos {
        let passed = now.since(self.last);
        self.last += passed;
        self.queued = self.queued.since(passed);
        if bytes > 0 {
            let transfer = bytes as f64 / self.speed.bytes_per_second;
            let time = transfer.max(1.0 / self.speed.operations_per_second) * 1e9;
            self.queued += Nanos(time as u64);
            self.used.busy += Nanos(time as u64);
        }
        self.queued
    }
}
