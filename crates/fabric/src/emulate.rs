//! Emulated latency: a running program feels the memory device that a profile describes.
//!
//! What a CXL switch does to a program is that a cache line which the processor does not have takes 549 ns to come. Few
//! machines have such a switch; each has a processor that can wait. So each announced access ([`observe`]) is looked up
//! in a *modelled* processor cache, and a miss waits until the profile's time has passed:
//!
//! 1. `Near`: the lines that this thread touched last, as its L1 would hold them. Most accesses end here.
//! 2. `Cache`: the last-level cache, shared by all threads. A line found there costs nothing either: the real
//!    processor does that part by itself.
//! 3. A line found nowhere is a miss. The real line is loaded, and then the thread spins until as much time has passed
//!    since the access began as a line of the device takes. So what the machine's own memory takes is within the
//!    device's time, whatever it is, and a device that is faster than it costs what the machine costs, not less.
//! 4. The lines that one access misses come together, as a processor has several on their way: the first takes the
//!    latency, the others what the profile's transfer times say (`Costs`).
//! 5. A profile with a bandwidth has a queue of its own: a miss ends no earlier than its bytes have gone over
//!    (`Wire`).
//!
//! The model's own work (some nanoseconds an access, measured when the emulator is made) is work that no real device
//! would add. It is noted thread by thread and taken off the next misses' waiting, so that what is left of it is only
//! the part beyond all waiting; [`Emulator::overhead_ns`] says what an access costs.
//!
//! What it does not show: incoherence (that is the simulator's), misses that a real processor would overlap between
//! accesses (out-of-order execution) or prefetch (so it errs on the slow side), and the few accesses that are not
//! announced (links of lists and hash chains). A report of a figure that it had a part in says "emulated" and the
//! profile's name.
//!
//! Invariants:
//! - nothing here waits for another thread: tables are relaxed atomics, and a race costs a line its entry, nothing
//!   else;
//! - a wait is bounded: by the cost of the lines, and with a bandwidth by the queue before them;
//! - memory is read only where the caller is about to access it.

mod cache;
mod clock;

pub use cache::CacheShape;

use crate::memory::RegionMemory;
use crate::observe::{self, Access, Counters, Seen, Sink, Traffic};
use crate::profile::Profile;
use crate::{Identity, LINE, Region, RegionOptions};
use cache::{Cache, Found, Near};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Local, Nanos};
use clock::Clock;
pub use clock::own_latency_ns;

/// Lines whose cost is tabled: a page of 16 KiB. Longer accesses go on at the last slope.
const TABLED: usize = 256;
/// Lines that a processor has on their way at once, where a profile has no transfer times. Table 2 of PolarCXLMem has
/// between 26 and 39 for reads of up to 4 KiB over the switch.
const LINES_IN_FLIGHT: f64 = 32.0;
/// A thread's debt of model work never grows beyond this, so that it pays within a statement or so.
const OWED_MAX_NS: f64 = 20_000.0;
/// Memory on which the model's own cost is measured, and misses for which it is, of this cost each.
const TRIAL_BYTES: u64 = 64 << 10;
const TRIAL_MISSES: u64 = 16;
const TRIAL_NS: f64 = 2000.0;

/// What an emulator did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// All accesses announced, whether they missed or not.
    pub traffic: Traffic,
    /// Lines that reads missed: fetched from the device.
    pub lines_read: u64,
    /// Lines that writes missed: fetched from the device, to be changed.
    pub lines_written: u64,
    /// Changed lines that left the modelled cache for others: written to the device.
    pub lines_returned: u64,
    /// What the misses took, waiting and the model's own work within it.
    pub stalled: Nanos,
}

impl Figures {
    /// What came after `earlier`.
    pub fn since(self, earlier: Figures) -> Figures {
        Figures {
            traffic: self.traffic.since(earlier.traffic),
            lines_read: self.lines_read - earlier.lines_read,
            lines_written: self.lines_written - earlier.lines_written,
            lines_returned: self.lines_returned - earlier.lines_returned,
            stalled: Nanos(self.stalled.0 - earlier.stalled.0),
        }
    }

    /// Bytes that went over the link to the device, both ways.
    pub fn bytes(&self) -> u64 {
        (self.lines_read + self.lines_written + self.lines_returned) * LINE as u64
    }
}

/// A thread's part. Only its thread writes: an increment is a load and a store.
#[derive(Default)]
struct Thread {
    near: Near,
    /// Model work, in ticks, that no waiting has absorbed yet.
    owed: AtomicU64,
    traffic: Counters,
    lines: [AtomicU64; 2],
    returned: AtomicU64,
    stalled: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    let counter = counter.as_raw();
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// Ticks that so many missed lines take, for reads and for writes.
struct Costs([Box<[u64]>; 2]);

impl Costs {
    fn new(profile: &Profile, clock: &Clock) -> Costs {
        Costs([Access::Read, Access::Write].map(|access| {
            let ticks = |lines| clock.ticks(cost_ns(profile, lines, access));
            (0..=TABLED as u64).map(ticks).collect()
        }))
    }

    fn constant(ticks: u64) -> Costs {
        Costs([(); 2].map(|()| vec![ticks; TABLED + 1].into()))
    }

    fn of(&self, lines: u64, access: Access) -> u64 {
        let table = &self.0[access as usize];
        match table.get(lines as usize) {
            Some(ticks) => *ticks,
            None => table[TABLED] + (lines - TABLED as u64) * (table[TABLED] - table[TABLED - 1]),
        }
    }
}

/// Nanoseconds that an access takes that misses so many lines: the latency for the first; for the others what
/// the profile's transfer times or stream add, or, where it has neither, a share of the latency.
pub fn cost_ns(profile: &Profile, lines: u64, access: Access) -> f64 {
    if lines == 0 {
        return 0.0;
    }
    let transfer = match access {
        Access::Read => Profile::read_time,
        Access::Write => Profile::write_time,
    };
    let line = LINE as u64;
    let known = transfer(profile, lines * line) - transfer(profile, line);
    let others = match known > 0.0 {
        true => known,
        false => (lines - 1) as f64 * profile.load_latency_ns / LINES_IN_FLIGHT,
    };
    profile.load_latency_ns + others
}

/// The link's bandwidth: transfers go over it one after another.
struct Wire {
    ticks_per_line: f64,
    free_at: AtomicU64,
}

impl Wire {
    fn new(bytes_per_second: f64, clock: &Clock) -> Wire {
        Wire {
            ticks_per_line: clock.ticks_f64(LINE as f64 / bytes_per_second * 1e9),
            free_at: AtomicU64::new(0),
        }
    }

    /// When `lines` that are asked for at `now` have gone over, in ticks.
    fn send(&self, lines: u64, now: u64) -> u64 {
        let takes = (self.ticks_per_line * lines as f64) as u64;
        let free_at = self.free_at.as_raw();
        let mut seen = free_at.load(Ordering::Relaxed);
        loop {
            let end = seen.max(now) + takes;
            match free_at.compare_exchange_weak(seen, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return end,
                Err(other) => seen = other,
            }
        }
    }
}

/// A sink that makes announced accesses take as long as on a device. See the module.
pub struct Emulator {
    profile: Profile,
    cache: Cache,
    clock: Clock,
    costs: Costs,
    wire: Option<Wire>,
    threads: Local<Thread>,
    own: Own,
    owed_max: u64,
}

/// What the model itself costs, in ticks.
#[derive(Default)]
struct Own {
    /// An access that finds its line near.
    near: u64,
    /// One that finds it in the cache.
    look: u64,
    /// What a miss takes beyond the wait.
    exit: u64,
}

impl Emulator {
    /// An emulator of `profile` behind a processor cache of that shape. Takes some milliseconds to learn the clock's
    /// speed and what the model itself costs.
    pub fn new(profile: Profile, shape: CacheShape) -> Emulator {
        let clock = Clock::new();
        let mut emulator = Emulator {
            cache: Cache::new(shape),
            costs: Costs::constant(clock.ticks(TRIAL_NS)),
            wire: None,
            threads: Local::default(),
            own: Own::default(),
            owed_max: clock.ticks(OWED_MAX_NS),
            profile,
            clock,
        };
        emulator.own = emulator.measure_itself();
        emulator.cache.clear();
        emulator.threads = Local::default();
        emulator.costs = Costs::new(&emulator.profile, &emulator.clock);
        emulator.wire = emulator.profile.bandwidth.map(|b| Wire::new(b, &emulator.clock));
        emulator
    }

    /// What it emulates.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The modelled cache.
    pub fn shape(&self) -> CacheShape {
        self.cache.shape()
    }

    /// Nanoseconds of the model's own work: for an access that finds its line near, and for one that finds it in the
    /// modelled cache.
    pub fn overhead_ns(&self) -> (f64, f64) {
        (self.clock.nanos(self.own.near), self.clock.nanos(self.own.look))
    }

    /// What the calling thread (or one before it with its slot) did.
    pub fn mine(&self) -> Figures {
        self.figures_of(self.threads.get())
    }

    /// What all threads did.
    pub fn total(&self) -> Figures {
        let threads = self.threads.iter().map(|thread| self.figures_of(thread));
        threads.fold(Figures::default(), |a, b| Figures {
            traffic: a.traffic.and(b.traffic),
            lines_read: a.lines_read + b.lines_read,
            lines_written: a.lines_written + b.lines_written,
            lines_returned: a.lines_returned + b.lines_returned,
            stalled: a.stalled + b.stalled,
        })
    }

    fn figures_of(&self, thread: &Thread) -> Figures {
        let get = |counter: &AtomicU64| counter.as_raw().load(Ordering::Relaxed);
        Figures {
            traffic: thread.traffic.traffic(),
            lines_read: get(&thread.lines[Access::Read as usize]),
            lines_written: get(&thread.lines[Access::Write as usize]),
            lines_returned: get(&thread.returned),
            stalled: Nanos(self.clock.nanos(get(&thread.stalled)) as u64),
        }
    }

    /// Measured with a region of its own and misses of a known cost.
    fn measure_itself(&self) -> Own {
        let Ok(region) = Region::dram(TRIAL_BYTES, Identity::default(), RegionOptions::default()) else {
            return Own::default();
        };
        let sink: &dyn Sink = core::hint::black_box(self);
        let touch = |line: u64| sink.touch(&region, line * LINE as u64, 8, Access::Read);
        // As many lines as the cache holds and the near table does not.
        let lines = TRIAL_BYTES / LINE as u64;
        (0..lines).for_each(touch);
        let look = self.clock.each(lines, touch);
        let near = self.clock.each(lines, |_| touch(0));
        let forgetting = self.clock.each(TRIAL_MISSES, |line| self.forget(&region, 64 * line));
        let missing = self.clock.each(TRIAL_MISSES, |line| {
            self.forget(&region, 64 * line);
            touch(64 * line);
        });
        let exit = missing.saturating_sub(forgetting + self.costs.of(1, Access::Read));
        Own { near, look, exit }
    }

    /// Makes the thread's next touch of a line a miss that nothing is owed for.
    fn forget(&self, region: &Region, line: u64) {
        let (thread, line) = (self.threads.get(), line_number(region.id(), line * LINE as u64));
        thread.near.forget(line);
        self.cache.forget(line);
        thread.owed.as_raw().store(0, Ordering::Relaxed);
    }

    /// Looks `count` lines up, and takes those that are missing; how many these were. `load` is called for each of
    /// them.
    fn look(&self, thread: &Thread, first: u64, count: u64, access: Access, load: impl Fn(u64)) -> u64 {
        let write = access == Access::Write;
        let (mut missed, mut returned) = (0, 0);
        for line in first..first + count {
            if thread.near.holds(line, write) {
                continue;
            }
            if let Found::Missing { returns } = self.cache.take(line, write) {
                load(line - first);
                missed += 1;
                returned += u64::from(returns);
            }
            thread.near.keep(line, write);
        }
        if missed > 0 {
            add(&thread.lines[access as usize], missed);
            add(&thread.returned, returned);
        }
        missed + (returned << 32)
    }

    /// Waits until what was missed at `began` is there.
    fn stall(&self, thread: &Thread, began: u64, missed: u64, returned: u64, access: Access) {
        let cost = self.costs.of(missed, access);
        let owed = thread.owed.as_raw().load(Ordering::Relaxed).min(self.owed_max);
        let absorbed = owed.min(cost);
        thread.owed.as_raw().store(owed - absorbed, Ordering::Relaxed);
        add(&thread.stalled, cost);
        let mut until = began + (cost - absorbed).saturating_sub(self.own.exit);
        if let Some(wire) = &self.wire {
            until = until.max(wire.send(missed + returned, began));
        }
        if rt::simulated() {
            return rt::spend(Nanos(self.clock.nanos(cost) as u64));
        }
        self.clock.spin_until(until);
    }
}

/// The number of a line among those of all regions.
#[inline(always)]
fn line_number(region: u32, off: u64) -> u64 {
    // Regions of up to 64 TiB are told apart.
    (u64::from(region) << 40) + off / LINE as u64
}

impl Sink for Emulator {
    fn touch(&self, memory: &RegionMemory, off: u64, len: u32, access: Access) {
        if len == 0 || off + u64::from(len) > memory.len() {
            return;
        }
        let thread = self.threads.get();
        let first = line_number(memory.id(), off);
        let count = observe::lines(off, len);
        thread.traffic.add(access, u64::from(len), count);
        // The short way: one line, and the thread has just had it.
        if count == 1 && thread.near.holds(first, access == Access::Write) {
            return add(&thread.owed, self.own.near);
        }
        self.touch_lines(thread, memory, off / LINE as u64, (first, count), access);
    }

    fn seen(&self) -> Option<Seen> {
        let mine = self.mine();
        Some(Seen {
            traffic: mine.traffic,
            device: Some(format!("emulated {}", self.profile.name)),
            lines_missed: mine.lines_read + mine.lines_written,
            stalled: mine.stalled,
        })
    }
}

impl Emulator {
    #[inline(never)]
    fn touch_lines(&self, thread: &Thread, memory: &RegionMemory, at: u64, (first, count): (u64, u64), access: Access) {
        let began = self.clock.now();
        let found = self.look(thread, first, count, access, |index| {
            // Inside the region, as the access is (checked in `touch`): a region begins and ends at multiples of lines.
            memory.span((at + index) * LINE as u64, LINE as u64).quiet().u8(0);
        });
        let (missed, returned) = (found & u64::from(u32::MAX), found >> 32);
        if missed == 0 {
            return add(&thread.owed, self.own.look);
        }
        // What was loaded has arrived, so that its time counts.
        clock::finish_loads();
        self.stall(thread, began, missed, returned, access);
    }
}

impl core::fmt::Debug for Emulator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Emulator({}, {:?})", self.profile.name, self.cache.shape())
    }
}

#[cfg(test)]
mod tests;
