//! Announced access: every read and write of region memory may be told to a sink, and is told to a simulated device.
//!
//! Whether anything observes is asked once for each page operation ([`active`]); the operation is generic over
//! [`Observer`] and exists in a plain copy ([`Off`]: no code at all) and an observed one ([`On`]). Where it is not
//! worth two copies, [`Asks`] asks at each touch. A touch that is observed is a preemption point; then the sink is
//! told, and last the region's simulated device, if it has one: between that and the access itself nothing may preempt.
//!
//! The accessors of [`Span`](crate::Span) and [`Region`](crate::Region) announce by themselves, where the region is
//! *watched*: it lies on a simulated device, or a sink was installed when it was made. Code that has announced already
//! uses [`Span::quiet`](crate::Span::quiet).
//!
//! ```
//! use cenote_fabric::observe::{self, Access, Observer};
//! use cenote_fabric::{Identity, Region, RegionOptions};
//!
//! fn search<O: Observer>(o: O, region: &Region) -> u32 {
//!     o.touch(region, 4096, 8, Access::Read);
//!     42
//! }
//! # let region = Region::dram(65536, Identity::default(), RegionOptions::default()).expect("memory");
//! let found = if observe::active() { search(observe::On, &region) } else { search(observe::Off, &region) };
//! # assert_eq!(found, 42);
//! ```

use crate::map::Mapping;
use crate::memory::RegionMemory;
use crate::raw::Leaked;
use cenote_base::rt::atomic::AtomicU64;
use cenote_base::rt::seam::{Plain, Points, Seam};
use cenote_base::rt::{self, Local, Mutex, Nanos};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

pub use cenote_base::rt::memory::Access;

/// Told of each access, or not: see the module.
pub trait Observer: Copy {
    /// What the preemption points of an operation with this observer are.
    type Seam: Seam;
    /// That.
    fn seam(self) -> Self::Seam;
    /// Whether anything can be told: constant, so that code for it can vanish.
    const ON: bool;
    /// Whether what is told now is heard.
    fn is_on(self) -> bool;
    /// `len` bytes at `off` of a region are about to be read or written.
    fn touch(self, memory: &RegionMemory, off: u64, len: u32, access: Access);
}

/// Nothing observes: for operations that have asked [`active`].
#[derive(Debug, Clone, Copy)]
pub struct Off;

impl Observer for Off {
    type Seam = Points;
    #[inline(always)]
    fn seam(self) -> Points {
        Points
    }
    const ON: bool = false;
    #[inline(always)]
    fn is_on(self) -> bool {
        false
    }
    #[inline(always)]
    fn touch(self, _: &RegionMemory, _: u64, _: u32, _: Access) {}
}

/// Nothing observes and nothing simulates: for operations that have asked [`still`]. Neither touches nor preemption
/// points are any code.
#[derive(Debug, Clone, Copy)]
pub struct Still;

impl Observer for Still {
    type Seam = Plain;
    #[inline(always)]
    fn seam(self) -> Plain {
        Plain
    }
    const ON: bool = false;
    #[inline(always)]
    fn is_on(self) -> bool {
        false
    }
    #[inline(always)]
    fn touch(self, _: &RegionMemory, _: u64, _: u32, _: Access) {}
}

/// Whether [`Still`] may stand for this operation's observer: two loads.
#[inline(always)]
pub fn still() -> bool {
    !active() && !rt::simulated()
}

/// A sink or a simulated device observes.
#[derive(Debug, Clone, Copy)]
pub struct On;

impl Observer for On {
    type Seam = Points;
    #[inline(always)]
    fn seam(self) -> Points {
        Points
    }
    const ON: bool = true;
    #[inline(always)]
    fn is_on(self) -> bool {
        true
    }
    fn touch(self, memory: &RegionMemory, off: u64, len: u32, access: Access) {
        announce(memory, off, len, access);
    }
}

/// Asks at each touch whether anything observes: one load.
#[derive(Debug, Clone, Copy)]
pub struct Asks;

impl Observer for Asks {
    type Seam = Points;
    #[inline(always)]
    fn seam(self) -> Points {
        Points
    }
    const ON: bool = true;
    #[inline(always)]
    fn is_on(self) -> bool {
        active()
    }
    #[inline(always)]
    fn touch(self, memory: &RegionMemory, off: u64, len: u32, access: Access) {
        if active() {
            announce(memory, off, len, access);
        }
    }
}

/// A preemption point; then the sink is told, then the device.
#[cold]
#[inline(never)]
pub(crate) fn announce(memory: &RegionMemory, off: u64, len: u32, access: Access) {
    rt::preempt();
    if let Some(sink) = sink() {
        sink.touch(memory, off, len, access);
    }
    memory.touch_device(off, len, access);
}

/// Where touches go beside simulated devices: a counter, an emulator of latency.
pub trait Sink: Send + Sync {
    /// See [`Observer::touch`]. Called by any thread.
    fn touch(&self, memory: &RegionMemory, off: u64, len: u32, access: Access);
    /// What the calling thread was seen to do, as far as this sink counts it.
    fn seen(&self) -> Option<Seen> {
        None
    }
}

/// What a thread did, and what of it reached an emulated device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// All accesses.
    pub traffic: Traffic,
    /// The device, `emulated NAME`, if there is one.
    pub device: Option<String>,
    /// Lines that it had to give.
    pub lines_missed: u64,
    /// What these took.
    pub stalled: Nanos,
}

impl Seen {
    /// What came after `earlier`.
    pub fn since(self, earlier: &Seen) -> Seen {
        Seen {
            traffic: self.traffic.since(earlier.traffic),
            device: self.device,
            lines_missed: self.lines_missed - earlier.lines_missed,
            stalled: Nanos(self.stalled.0 - earlier.stalled.0),
        }
    }
}

/// Runs `f`, and says what this thread did meanwhile: counted by the sink that is installed if it counts, by one that
/// is there for so long if none is installed.
pub fn seen_during<T>(f: impl FnOnce() -> T) -> (T, Option<Seen>) {
    let _counting = MeanwhileCounting::begin();
    let before = sink().and_then(Sink::seen);
    let result = f();
    let after = sink().and_then(Sink::seen);
    let seen = before.zip(after).map(|(before, after)| after.since(&before));
    (result, seen)
}

/// What the calling thread was seen to do so far; None where nothing counts.
pub fn seen_so_far() -> Option<Seen> {
    sink().and_then(Sink::seen)
}

/// How many [`seen_during`] need a counting sink now.
static MEANWHILE: Mutex<usize> = Mutex::new(0);

/// One that needs it; the last takes the sink away.
struct MeanwhileCounting(());

impl MeanwhileCounting {
    /// The one counting sink, which is made once and installed again and again.
    fn sink() -> &'static Arc<dyn Sink> {
        static COUNTING: OnceLock<Arc<dyn Sink>> = OnceLock::new();
        COUNTING.get_or_init(|| Arc::new(Counting::default()))
    }

    fn begin() -> Option<Self> {
        let mut users = MEANWHILE.lock();
        if *users == 0 && !install_first(Self::sink()) {
            return None;
        }
        *users += 1;
        Some(Self(()))
    }
}

impl Drop for MeanwhileCounting {
    fn drop(&mut self) {
        let mut users = MEANWHILE.lock();
        assert!(*users > 0, "a user of the counting sink is counted until it is dropped");
        *users -= 1;
        if *users == 0 && SINK.clear_if(Self::sink()) {
            ACTIVE.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Sinks installed, and simulations running. A sink is counted before it is installed and until it is removed, so that
/// the count never falls below what there is.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// The installed sink. Sinks are never freed: a thread may be telling the one before.
static SINK: Leaked<Arc<dyn Sink>> = Leaked::empty();

/// Whether accesses are to be announced by this thread: one load, where nothing in the process observes.
#[inline(always)]
pub fn active() -> bool {
    !cfg!(no_observer) && ACTIVE.load(Ordering::Relaxed) != 0 && active_here()
}

#[cold]
#[inline(never)]
fn active_here() -> bool {
    sink().is_some() || rt::observed()
}

fn sink() -> Option<&'static dyn Sink> {
    SINK.get().map(|sink| &**sink)
}

/// Whether a sink is installed.
fn has_sink() -> bool {
    sink().is_some()
}

/// The memory of a mapping, called `name`: watched if a sink is installed now.
pub(crate) fn memory(mapping: Mapping, name: String) -> RegionMemory {
    RegionMemory::new(mapping, name, has_sink())
}

/// Installs a sink for the whole process, in place of the one before. Operations that have begun
/// are not observed by it, nor are the accessors of regions made before (page operations are).
/// Each call leaks its sink.
pub fn install(sink: Arc<dyn Sink>) {
    ACTIVE.fetch_add(1, Ordering::Release);
    if SINK.set(Box::leak(Box::new(sink))) {
        ACTIVE.fetch_sub(1, Ordering::Release);
    }
}

/// Installs a sink if there is none; whether there was none.
fn install_first(sink: &'static Arc<dyn Sink>) -> bool {
    ACTIVE.fetch_add(1, Ordering::Release);
    let first = SINK.set_first(sink);
    if !first {
        ACTIVE.fetch_sub(1, Ordering::Release);
    }
    first
}

/// Removes the sink.
pub fn uninstall() {
    if SINK.clear() {
        ACTIVE.fetch_sub(1, Ordering::Release);
    }
}

/// While it lives, threads driven by a runtime that observes find [`active`] true.
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub struct Simulating(());

/// A simulation with memory of its own begins.
pub fn simulating() -> Simulating {
    ACTIVE.fetch_add(1, Ordering::Release);
    Simulating(())
}

impl Drop for Simulating {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::Release);
    }
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
    /// Both.
    pub fn and(self, other: Traffic) -> Traffic {
        Traffic {
            reads: self.reads + other.reads,
            bytes_read: self.bytes_read + other.bytes_read,
            lines_read: self.lines_read + other.lines_read,
            writes: self.writes + other.writes,
            bytes_written: self.bytes_written + other.bytes_written,
            lines_written: self.lines_written + other.lines_written,
        }
    }

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
pub(crate) struct Counters([AtomicU64; 6]);

impl Counters {
    /// By their own thread only, so that no increment needs to be one operation.
    #[inline]
    pub(crate) fn add(&self, access: Access, bytes: u64, lines: u64) {
        let first = match access {
            Access::Read => 0,
            Access::Write => 3,
        };
        for (counter, n) in self.0[first..].iter().zip([1, bytes, lines]) {
            let counter = counter.as_raw();
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
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
            .fold(Traffic::default(), Traffic::and)
    }
}

impl Sink for Counting {
    fn touch(&self, _memory: &RegionMemory, off: u64, len: u32, access: Access) {
        self.threads.get().add(access, u64::from(len), lines(off, len));
    }

    fn seen(&self) -> Option<Seen> {
        Some(Seen {
            traffic: self.mine(),
            ..Seen::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn counting_counts_bytes_and_lines() {
        let region = Region::dram(65536, Default::default(), Default::default()).expect("memory");
        let counting = Arc::new(Counting::default());
        install(counting.clone());
        assert!(active());
        On.touch(&region, 60, 8, Access::Read);
        Asks.touch(&region, 0, 64, Access::Write);
        uninstall();
        Asks.touch(&region, 0, 64, Access::Write);
        assert!(!active());
        let t = counting.mine();
        assert_eq!((t.reads, t.bytes_read, t.lines_read), (1, 8, 2));
        assert_eq!((t.writes, t.bytes_written, t.lines_written), (1, 64, 1));
        assert_eq!(counting.total(), t);

        // In the same test, since there is one sink a process.
        let ((), seen) = seen_during(|| On.touch(&region, 60, 8, Access::Read));
        let seen = seen.expect("counted");
        assert_eq!((seen.traffic.reads, seen.traffic.lines_read, seen.device), (1, 2, None));
        assert!(!active());
        meanwhile_counting_leaks_nothing();
        sinks_that_come_and_go_at_once_are_counted();
    }

    /// Each EXPLAIN ANALYZE leaked a box.
    fn meanwhile_counting_leaks_nothing() {
        let installed = || seen_during(|| SINK.get().map(core::ptr::from_ref)).0;
        let first = installed();
        assert!(first.is_some() && first == installed());
    }

    /// A sink was counted after it was installed: one that removed it meanwhile took the count below 0.
    fn sinks_that_come_and_go_at_once_are_counted() {
        let counting = Arc::new(Counting::default());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let counting = &counting;
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        if thread == 0 {
                            install(counting.clone());
                            uninstall();
                        } else {
                            seen_during(|| ());
                        }
                        assert!(
                            ACTIVE.load(Ordering::Relaxed) <= 5,
                            "the count is that of sinks on their way"
                        );
                    }
                });
            }
        });
        assert_eq!(ACTIVE.load(Ordering::Relaxed), 0);
        assert!(!has_sink());
    }
}
