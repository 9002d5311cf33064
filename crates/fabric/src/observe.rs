//! Announced access: every read and write of region memory may be told to a sink.
//!
//! Whether anything observes is asked once for each page operation ([`active`]); the operation is
//! generic over [`Observer`] and exists in a plain copy ([`Off`]: no code at all) and an observed
//! one ([`On`]). A touch that is observed is a preemption point.
//!
//! ```
//! use cenote_fabric::observe::{self, Access, Observer};
//!
//! fn search<O: Observer>(o: O) -> u32 {
//!     o.touch(1, 4096, 8, Access::Read);
//!     42
//! }
//! let found = if observe::active() { search(observe::On) } else { search(observe::Off) };
//! # assert_eq!(found, 42);
//! ```

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Local, RwLock};
use std::sync::Arc;

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// Told of each access, or not: see the module.
pub trait Observer: Copy {
    /// Whether anything is told: constant, so that code for it can vanish.
    const ON: bool;
    /// `len` bytes at `off` of a region are about to be read or written.
    fn touch(self, region: u32, off: u64, len: u32, access: Access);
}

/// Nothing observes.
#[derive(Debug, Clone, Copy)]
pub struct Off;

impl Observer for Off {
    const ON: bool = false;
    #[inline(always)]
    fn touch(self, _: u32, _: u64, _: u32, _: Access) {}
}

/// The installed sink observes.
#[derive(Debug, Clone, Copy)]
pub struct On;

impl Observer for On {
    const ON: bool = true;
    fn touch(self, region: u32, off: u64, len: u32, access: Access) {
        rt::preempt();
        if let Some(sink) = SINK.read().as_ref() {
            sink.touch(region, off, len, access);
        }
    }
}

/// Where touches go: a counter, an emulator of latency, the simulator.
pub trait Sink: Send + Sync {
    /// See [`Observer::touch`]. Called by any thread.
    fn touch(&self, region: u32, off: u64, len: u32, access: Access);
}

static ACTIVE: AtomicBool = AtomicBool::new(false);
static SINK: RwLock<Option<Arc<dyn Sink>>> = RwLock::new(None);

/// Whether a sink is installed: one load.
#[inline(always)]
pub fn active() -> bool {
    ACTIVE.as_raw().load(Ordering::Relaxed)
}

/// Installs a sink for the whole process, in place of the one before. Operations that have begun
/// are not observed by it.
pub fn install(sink: Arc<dyn Sink>) {
    *SINK.write() = Some(sink);
    ACTIVE.store(true, Ordering::Release);
}

/// Removes the sink.
pub fn uninstall() {
    ACTIVE.store(false, Ordering::Release);
    *SINK.write() = None;
}

/// What was read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Cache lines that the reads touched.
    pub lines_read: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Cache lines that the writes touched.
    pub lines_written: u64,
}

impl Traffic {
    /// What came after `earlier`.
    pub fn since(self, earlier: Traffic) -> Traffic {
        Traffic {
            reads: self.reads - earlier.reads,
            bytes_read: self.bytes_read - earlier.bytes_read,
            lines_read: self.lines_read - earlier.lines_read,
            writes: self.writes - earlier.writes,
            bytes_written: self.bytes_written - earlier.bytes_written,
            lines_written: self.lines_written - earlier.lines_written,
        }
    }
}

/// Cache lines that `len` bytes at `off` lie in.
pub fn lines(off: u64, len: u32) -> u64 {
    let line = crate::LINE as u64;
    if len == 0 {
        0
    } else {
        (off + u64::from(len) - 1) / line - off / line + 1
    }
}

/// Counts, bytes, lines, for reads and for writes: of one thread.
#[derive(Default)]
struct Counters([AtomicU64; 6]);

impl Counters {
    fn add(&self, first: usize, bytes: u64, lines: u64) {
        for (counter, n) in self.0[first..].iter().zip([1, bytes, lines]) {
            counter.as_raw().fetch_add(n, Ordering::Relaxed);
        }
    }

    fn traffic(&self) -> Traffic {
        let [reads, bytes_read, lines_read, writes, bytes_written, lines_written] =
            [0, 1, 2, 3, 4, 5].map(|i: usize| self.0[i].as_raw().load(Ordering::Relaxed));
        Traffic {
            reads,
            bytes_read,
            lines_read,
            writes,
            bytes_written,
            lines_written,
        }
    }
}

/// A sink that counts, each thread for itself.
#[derive(Default)]
pub struct Counting {
    threads: Local<Counters>,
}

impl Counting {
    /// What the calling thread (or one before it with its slot) did.
    pub fn mine(&self) -> Traffic {
        self.threads.get().traffic()
    }

    /// What all threads did.
    pub fn total(&self) -> Traffic {
        self.threads
            .iter()
            .map(Counters::traffic)
            .fold(Traffic::default(), |a, b| Traffic {
                reads: a.reads + b.reads,
                bytes_read: a.bytes_read + b.bytes_read,
                lines_read: a.lines_read + b.lines_read,
                writes: a.writes + b.writes,
                bytes_written: a.bytes_written + b.bytes_written,
                lines_written: a.lines_written + b.lines_written,
            })
    }
}

impl Sink for Counting {
    fn touch(&self, _region: u32, off: u64, len: u32, access: Access) {
        let first = match access {
            Access::Read => 0,
            Access::Write => 3,
        };
        self.threads.get().add(first, u64::from(len), lines(off, len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_counts_bytes_and_lines() {
        let counting = Arc::new(Counting::default());
        install(counting.clone());
        assert!(active());
        On.touch(1, 60, 8, Access::Read);
        On.touch(1, 0, 64, Access::Write);
        uninstall();
        assert!(!active());
        let t = counting.mine();
        assert_eq!((t.reads, t.bytes_read, t.lines_read), (1, 8, 2));
        assert_eq!((t.writes, t.bytes_written, t.lines_written), (1, 64, 1));
        assert_eq!(counting.total(), t);
    }
}
