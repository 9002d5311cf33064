//! The runtime seam: time, threads, waiting, randomness and files, for everything from `base` to
//! `engine` (design, section 3).
//!
//! [`Runtime`] is the contract. Two stand behind it: the operating system ([`os`], here), and the
//! simulator (crate `sim`), which runs coroutines on one thread in virtual time and decides at every *preemption point*
//! which thread goes on. A thread is driven by the operating system unless a runtime has been [`enter`]ed on it; the
//! question is one load and one branch, and a build with `--cfg no_seam` does not ask it.
//!
//! Invariants:
//! - every operation of [`atomic`], every lock and wait of [`sync`](Mutex), [`preempt`] and
//!   [`relax`] is a preemption point; nothing else is;
//! - no destructor is a preemption point (guards only wake), so nothing suspends while unwinding;
//! - a program that takes everything from here runs the same way twice under the same seed: hence
//!   [`HashMap`] with a fixed hasher, and [`random`].
//!
//! ```text
//!   Mutex RwLock Condvar Event Local atomic fs   free functions: now spawn sleep random preempt …
//!        └──────────────┬──────────────────────────────┘
//!                  seamed()?  ── no ──►  os: std threads, futex, pread/pwrite
//!                       └────── yes ──►  the entered `Runtime`
//! ```

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "this is where the forbidden things are wrapped"
)]

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32 as RawU32;
use std::sync::atomic::Ordering::Relaxed;

pub mod atomic;
pub mod barrier;
mod event;
pub mod fault;
pub mod fs;
mod local;
mod map;
pub mod mark;
pub mod memory;
pub mod os;
pub mod seam;
mod sync;
mod thread;

use memory::{Access, Device};

pub use crate::units::Nanos;
pub use event::Event;
pub use local::Local;
pub use map::{FixedHasher, FixedState, HashMap, HashSet};
pub use sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use thread::{JoinHandle, Panic, Spin, cores, spawn, try_spawn};

/// Threads that may run at once; [`thread_slot`] is below this. A server's statements may all wait at once, a thread
/// each: there are as many slots as it may have sessions, and its own threads' on top.
pub const MAX_THREADS: usize = 8192;
const _: () = assert!(
    MAX_THREADS.is_multiple_of(64),
    "the map of thread slots has whole words"
);

/// Why [`Runtime::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Woken, or spuriously: look again.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The time ran out.
    TimedOut,
}

/// A thread that can be waited for.
pub trait Join: Send {
    /// Returns when the thread has ended and its slot is free again. Its body never unwinds.
    fn join(self: Box<Self>);
}

/// What stands behind the seam.
///
/// A runtime's duties: `wait` compares and sleeps atomically with respect to `wake`, and may
/// return early but never sleeps past a `wake` that follows the comparison; slots are dense,
/// unique among live threads, and recycled; `now` never goes back. A user's duties: everything
/// that waits goes through here, and a wake follows every change of a word that is waited on.
pub trait Runtime: Send + Sync {
    /// Monotonic time since some fixed point.
    fn now(&self) -> Nanos;
    /// Microseconds since 1970-01-01 UTC; may jump.
    fn wall_micros(&self) -> i64;
    /// Starts a thread. An error when the system has none to give.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn Join>>;
    /// Sleeps while `word` holds `expected`, until woken or the timeout has passed.
    fn wait(&self, word: &RawU32, expected: u32, timeout: Option<Nanos>) -> Wait;
    /// Wakes at most `count` sleepers on `word`; says how many. Never suspends.
    fn wake(&self, word: &RawU32, count: usize) -> usize;
    /// A place where another thread may go on.
    fn preempt(&self);
    /// One turn of a spinning loop.
    fn relax(&self);
    /// Lets others go on; `relax` for longer waits.
    fn yield_now(&self);
    /// A random word.
    fn random(&self) -> u64;
    /// The index of the calling thread.
    fn thread_slot(&self) -> usize;
    /// The files.
    fn fs(&self) -> Arc<dyn fs::FileSystem>;
    /// An atomic of `bytes` bytes at `address` is about to be used: a preemption point, and where the address
    /// belongs to a view of simulated memory, a touch of it.
    fn access(&self, address: usize, bytes: u32, access: Access) {
        let _ = (address, bytes, access);
        self.preempt();
    }
    /// The line at `address` will be used soon: see [`memory::Device::prefetch`].
    fn prefetch(&self, address: usize) {
        let _ = address;
    }
    /// The calling thread took the lock whose releases `word` counts. Told so that a deadlock's report can name the
    /// holder of each lock.
    fn took(&self, word: &RawU32) {
        let _ = word;
    }
    /// The calling thread released that lock: wakes at most `count` sleepers on `word`. Never suspends.
    fn gave(&self, word: &RawU32, count: usize) {
        self.wake(word, count);
    }
    /// The calling thread has worked for so long. Real work takes its time by itself.
    fn spend(&self, time: Nanos) {
        let _ = time;
    }
    /// The calling thread's host's view of the memory device at `path`; `None` where there is no such device.
    fn memory(&self, path: &Path) -> Option<Arc<dyn Device>> {
        let _ = path;
        None
    }
    /// Whether accesses to regions are to be announced: always where `memory` or `local_memory` may give something.
    fn observes(&self) -> bool {
        false
    }
    /// Ends the calling thread's process where its threads stand, if that is not the runtime's own. Returns only then.
    fn end_process(&self) {}
    /// `len` bytes of the calling thread's host's own memory; `None` where the operating system's is to be used.
    fn local_memory(&self, len: u64) -> Option<Arc<dyn Device>> {
        let _ = len;
        None
    }
}

thread_local! {
    /// Borrowed for good: a preemption point then costs no count and no borrow, and a thread that is suspended in the
    /// middle of one, never to go on, holds nothing.
    static ENTERED: Cell<Option<&'static dyn Runtime>> = const { Cell::new(None) };
}

/// Whether a runtime other than the operating system drives this thread.
#[inline(always)]
pub(crate) fn seamed() -> bool {
    if cfg!(no_seam) {
        return false;
    }
    // `try_with` is inlined everywhere; `with` and `get` are not, without LTO.
    ENTERED.try_with(|e| e.get().is_some()).unwrap_or(false)
}

/// Whether a runtime other than the operating system drives this thread; see [`seam`].
#[inline(always)]
pub fn simulated() -> bool {
    seamed()
}

/// The entered runtime; only when [`seamed`].
#[inline]
pub(crate) fn entered() -> &'static dyn Runtime {
    ENTERED.with(Cell::get).expect("seamed only while a runtime is entered")
}

/// Puts back what drove this thread before.
struct Restore(Option<&'static dyn Runtime>);

impl Drop for Restore {
    fn drop(&mut self) {
        ENTERED.with(|e| e.set(self.0));
    }
}

/// Runs `f` with `runtime` driving this thread, and puts back what drove it before, also when
/// `f` unwinds. Under `--cfg no_seam` the runtime is ignored.
pub fn enter<T>(runtime: &'static dyn Runtime, f: impl FnOnce() -> T) -> T {
    let _restore = Restore(ENTERED.with(|e| e.replace(Some(runtime))));
    f()
}

/// Runs `f` with the operating system driving this thread, whatever drives it: for a runtime's own use of what is
/// behind the seam.
pub fn bare<T>(f: impl FnOnce() -> T) -> T {
    let _restore = Restore(ENTERED.with(|e| e.replace(None)));
    f()
}

/// Monotonic time since some fixed point.
#[inline]
pub fn now() -> Nanos {
    if seamed() { entered().now() } else { os::now() }
}

/// Microseconds since 1970-01-01 UTC.
#[inline]
pub fn wall_micros() -> i64 {
    if seamed() {
        entered().wall_micros()
    } else {
        os::wall_micros()
    }
}

/// A place where the simulator may let another thread go on. Nothing otherwise.
#[inline(always)]
pub fn preempt() {
    if seamed() {
        preempt_entered();
    }
}

#[cold]
#[inline(never)]
fn preempt_entered() {
    entered().preempt();
}

/// A preemption point before an atomic is used; see [`Runtime::access`].
#[inline(always)]
pub(crate) fn access<T>(atomic: &T, access: Access) {
    if seamed() {
        access_entered(core::ptr::from_ref(atomic).addr(), size_of::<T>() as u32, access);
    }
}

#[cold]
#[inline(never)]
pub(crate) fn access_entered(address: usize, bytes: u32, access: Access) {
    entered().access(address, bytes, access);
}

/// The line at an address will be used soon: simulated memory brings it. With the operating system nothing comes of it;
/// ask the processor there.
pub fn prefetch<T>(at: *const T) {
    if seamed() {
        entered().prefetch(at.addr());
    }
}

/// Processor time that the calling thread has spent: virtual time under the simulator, nothing otherwise.
pub fn spend(time: Nanos) {
    if seamed() {
        entered().spend(time);
    }
}

/// The simulated memory device at `path`, if there is one.
pub fn memory(path: &Path) -> Option<Arc<dyn Device>> {
    if seamed() { entered().memory(path) } else { None }
}

/// `len` bytes of the simulated host's own memory, if the host is simulated.
pub fn local_memory(len: u64) -> Option<Arc<dyn Device>> {
    if seamed() { entered().local_memory(len) } else { None }
}

/// Whether the runtime that drives this thread wants accesses to regions announced.
pub fn observed() -> bool {
    seamed() && entered().observes()
}

/// One turn of a spinning loop; for more than a few turns use [`Spin`].
#[inline]
pub fn relax() {
    if seamed() { entered().relax() } else { os::relax() }
}

/// Gives the rest of this thread's turn to others.
#[inline]
pub fn yield_now() {
    if seamed() {
        entered().yield_now()
    } else {
        os::yield_now()
    }
}

/// A random word: not for secrets.
#[inline]
pub fn random() -> u64 {
    if seamed() { entered().random() } else { os::random() }
}

/// A random 128-bit word, never zero: for identities such as incarnations.
pub fn random_u128() -> u128 {
    loop {
        let word = u128::from(random()) << 64 | u128::from(random());
        if word != 0 {
            return word;
        }
    }
}

/// The dense index of the calling thread, below [`MAX_THREADS`], recycled when threads end.
///
/// # Panics
/// If `MAX_THREADS` threads hold one already. Threads made by [`try_spawn`] have theirs from the
/// start, so only threads made elsewhere can meet this.
#[inline]
pub fn thread_slot() -> usize {
    if seamed() {
        thread_slot_entered()
    } else {
        os::thread_slot()
    }
}

#[cold]
#[inline(never)]
fn thread_slot_entered() -> usize {
    let slot = entered().thread_slot();
    assert!(slot < MAX_THREADS, "thread slot {slot} is one of {MAX_THREADS}");
    slot
}

/// Sleeps while `word` holds `expected`, until woken or the timeout has passed.
pub fn wait(word: &atomic::AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
    wait_raw(word.as_raw(), expected, timeout)
}

/// Wakes at most `count` sleepers on `word`; says how many.
pub fn wake(word: &atomic::AtomicU32, count: usize) -> usize {
    wake_raw(word.as_raw(), count)
}

/// As [`wait`], on a word of memory that other processes map too: they are woken by [`wake_shared`], and wake by it. A
/// word is waited on in one of the two ways only.
pub fn wait_shared(word: &atomic::AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
    if seamed() {
        entered().wait(word.as_raw(), expected, timeout)
    } else {
        os::wait_shared(word.as_raw(), expected, timeout)
    }
}

/// The most words that a thread waits on at once.
pub const WORDS_MAX: usize = 128;

/// As [`wait_shared`], on several words at once, up to [`WORDS_MAX`], until any of them is woken: the index of that
/// word, where it is known. It may return early without a reason, as on a system that cannot wait on several words, and
/// under another runtime, which waits on the first one: so the first is the word that the thread's own process wakes.
pub fn wait_any_shared(words: &[(&atomic::AtomicU32, u32)], timeout: Nanos) -> Option<usize> {
    assert!(words.len() <= WORDS_MAX, "a thread waits on {WORDS_MAX} words at most");
    let changed = |(word, expected): &(&atomic::AtomicU32, u32)| word.as_raw().load(Relaxed) != *expected;
    match words {
        [] => sleep(timeout),
        _ if !seamed() => {
            let words: Vec<_> = words
                .iter()
                .map(|(word, expected)| (word.as_raw(), *expected))
                .collect();
            return os::wait_any_shared(&words, timeout);
        }
        [(word, expected), ..] if !words.iter().any(changed) => {
            entered().wait(word.as_raw(), *expected, Some(timeout.min(POLL)));
        }
        _ => {}
    }
    words.iter().position(changed)
}

/// How long a thread sleeps at most where it cannot wait on several words.
const POLL: Nanos = Nanos::from_millis(5);

/// Wakes at most `count` threads that [`wait_shared`] on `word`, of all processes; says how many.
pub fn wake_shared(word: &atomic::AtomicU32, count: usize) -> usize {
    if seamed() {
        entered().wake(word.as_raw(), count)
    } else {
        os::wake_shared(word.as_raw(), count)
    }
}

pub(crate) fn wait_raw(word: &RawU32, expected: u32, timeout: Option<Nanos>) -> Wait {
    if seamed() {
        entered().wait(word, expected, timeout)
    } else {
        os::wait(word, expected, timeout)
    }
}

pub(crate) fn wake_raw(word: &RawU32, count: usize) -> usize {
    if seamed() {
        entered().wake(word, count)
    } else {
        os::wake(word, count)
    }
}

/// Sleeps for at least `time`.
pub fn sleep(time: Nanos) {
    let end = now() + time;
    let word = RawU32::new(0);
    loop {
        let left = end.since(now());
        if left == Nanos::ZERO || wait_raw(&word, 0, Some(left)) == Wait::TimedOut {
            return;
        }
    }
}

/// The files of whatever drives this thread.
pub fn file_system() -> Arc<dyn fs::FileSystem> {
    if seamed() { entered().fs() } else { os::file_system() }
}

#[cfg(test)]
mod tests;
