//! The operating system behind the seam: threads, the monotonic clock, futexes, real files.
//!
//! Thread slots: a thread made by [`spawn`] is given its slot before it starts and gives it back
//! when it ends; any other thread takes one when it first asks, and a thread-local's destructor
//! gives it back. The lowest free slot is taken, so that they stay dense.

use super::fs::{FileSystem, OsFileSystem};
use super::{Join, MAX_THREADS, Nanos, Wait};
use crate::random::{Random, mix};
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, SystemTimeError};

/// See [`super::now`]: since the first call. (Through the standard library: rustix reads the kernel's table of
/// functions itself, which crashes under valgrind, and callgrind is how instructions are counted.)
#[inline]
pub fn now() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    // Not zero at the first call, so that zero can stand for "never".
    Nanos::from_secs(1) + START.get_or_init(Instant::now).elapsed().into()
}

/// See [`super::wall_micros`].
pub fn wall_micros() -> i64 {
    let since = |t: Result<Duration, SystemTimeError>| match t {
        Ok(after) => after.as_micros() as i64,
        Err(before) => -(before.duration().as_micros() as i64),
    };
    since(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH))
}

/// See [`super::relax`].
#[inline]
pub fn relax() {
    std::hint::spin_loop();
}

/// See [`super::yield_now`].
pub fn yield_now() {
    std::thread::yield_now();
}

/// See [`super::wait`].
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
    wait_as(futex::Flags::PRIVATE, word, expected, timeout)
}

/// See [`super::wait_shared`].
pub fn wait_shared(word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
    wait_as(futex::Flags::empty(), word, expected, timeout)
}

/// See [`super::wait_any_shared`].
pub fn wait_any_shared(words: &[(&AtomicU32, u32)], timeout: Nanos) -> Option<usize> {
    let waits = words.iter().map(|(word, expected)| {
        let mut wait = futex::Wait::new();
        wait.val = u64::from(*expected);
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait.flags = futex::WaitFlags::SIZE_U32;
        wait
    });
    let waits: Vec<futex::Wait> = waits.collect();
    // The system counts this time from its start.
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let until = timespec(Nanos(timespec_nanos(now)) + timeout);
    let clock = ClockId::Monotonic;
    match futex::waitv(&waits, futex::WaitvFlags::empty(), Some(&until), clock) {
        Ok(index) => Some(index),
        // Before Linux 5.16.
        Err(rustix::io::Errno::NOSYS) => {
            std::thread::sleep(std::time::Duration::from_nanos(timeout.min(super::POLL).raw()));
            None
        }
        Err(_) => None,
    }
}

fn timespec(time: Nanos) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (time.0 % 1_000_000_000) as i64,
    }
}

fn timespec_nanos(time: Timespec) -> u64 {
    (time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_nsec as u64
}

fn wait_as(flags: futex::Flags, word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
    let limit = timeout.map(timespec);
    match futex::wait(word, flags, expected, limit.as_ref()) {
        Err(rustix::io::Errno::AGAIN) => Wait::Changed,
        Err(rustix::io::Errno::TIMEDOUT) => Wait::TimedOut,
        _ => Wait::Woken,
    }
}

/// See [`super::wake`].
pub fn wake(word: &AtomicU32, count: usize) -> usize {
    wake_as(futex::Flags::PRIVATE, word, count)
}

/// See [`super::wake_shared`].
pub fn wake_shared(word: &AtomicU32, count: usize) -> usize {
    wake_as(futex::Flags::empty(), word, count)
}

fn wake_as(flags: futex::Flags, word: &AtomicU32, count: usize) -> usize {
    let count = i32::try_from(count).unwrap_or(i32::MAX) as u32;
    futex::wake(word, flags, count).unwrap_or(0)
}

thread_local! {
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    static SLOT: Cell<u32> = const { Cell::new(NO_SLOT) };
    static SLOT_OWNER: SlotOwner = const { SlotOwner };
    /// Files that stand in for the real ones.
    static FILES: RefCell<Option<Arc<dyn FileSystem>>> = const { RefCell::new(None) };
}

/// See [`super::random`]: the kernel seeds each thread's stream once.
pub fn random() -> u64 {
    let before = RANDOM.try_with(Cell::get).unwrap_or(0);
    let mut random = Random(if before == 0 { seed() } else { before });
    let word = random.word();
    let _ = RANDOM.try_with(|r| r.set(random.0));
    word
}

fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => mix(now().0 ^ u64::from(std::process::id()) << 32),
    }
}

const NO_SLOT: u32 = u32::MAX;
const _: () = assert!((MAX_THREADS as u64) < NO_SLOT as u64, "no thread has the slot of none");

/// A bit for each slot that is taken.
static SLOTS: Mutex<[u64; MAX_THREADS / 64]> = Mutex::new([0; MAX_THREADS / 64]);

fn take_slot() -> Option<u32> {
    let mut map = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let word = map.iter().position(|w| *w != u64::MAX)?;
    let bit = (!map[word]).trailing_zeros();
    map[word] |= 1 << bit;
    Some(word as u32 * 64 + bit)
}

fn give_slot(slot: u32) {
    let mut map = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let (word, bit) = (&mut map[slot as usize / 64], 1 << (slot % 64));
    assert!(*word & bit != 0, "thread slot {slot} is given back once");
    *word &= !bit;
}

/// Gives the thread's slot back when the thread ends.
struct SlotOwner;

impl Drop for SlotOwner {
    fn drop(&mut self) {
        let slot = SLOT.replace(NO_SLOT);
        if slot != NO_SLOT {
            give_slot(slot);
        }
    }
}

/// See [`super::thread_slot`].
#[inline]
pub fn thread_slot() -> usize {
    let slot = SLOT.try_with(Cell::get).unwrap_or(NO_SLOT);
    if slot != NO_SLOT { slot as usize } else { first_slot() }
}

#[cold]
fn first_slot() -> usize {
    let slot = take_slot().expect("more than MAX_THREADS threads use the database");
    own_slot(slot);
    slot as usize
}

fn own_slot(slot: u32) {
    let before = SLOT.replace(slot);
    assert!(
        before == NO_SLOT,
        "a thread that takes slot {slot} has {before} already"
    );
    // Touching it registers the destructor. A thread past that point keeps its slot for good.
    let _ = SLOT_OWNER.try_with(|_| ());
}

/// A slot on its way from the parent to the thread that is started.
struct Reserved(Option<u32>);

impl Reserved {
    /// The calling thread's, from now on. (Takes the whole of `self`: a closure that named the
    /// field would capture a copy of it and leave the destructor with the parent.)
    fn own(&mut self) {
        if let Some(slot) = self.0.take() {
            own_slot(slot);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            give_slot(slot);
        }
    }
}

struct OsThread(std::thread::JoinHandle<()>);

impl Join for OsThread {
    fn join(self: Box<Self>) {
        // The body catches its panics, so there is nothing to learn here.
        let _ = self.0.join();
    }
}

/// Stack of a thread: sessions evaluate expressions of any depth that the parser lets through.
const STACK_BYTES: usize = 4 << 20;

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// See [`super::spawn`].
///
/// # Errors
/// If all thread slots are taken, or the operating system starts no thread.
pub fn spawn(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn Join>> {
    let none_left = || io::Error::other(format!("all {MAX_THREADS} thread slots are taken"));
    let mut reserved = Reserved(Some(take_slot().ok_or_else(none_left)?));
    let files = FILES.with(|f| f.borrow().clone());
    let thread = std::thread::Builder::new()
        .name(name.chars().filter(|c| *c != '\0').collect())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            reserved.own();
            with_files(files, body);
        })?;
    Ok(Box::new(OsThread(thread)))
}

/// See [`super::file_system`].
pub fn file_system() -> Arc<dyn FileSystem> {
    static REAL: OnceLock<Arc<OsFileSystem>> = OnceLock::new();
    match FILES.with(|f| f.borrow().clone()) {
        Some(files) => files,
        None => REAL.get_or_init(Arc::default).clone(),
    }
}

/// See [`super::fs::with`].
pub(super) fn with_files<T>(files: Option<Arc<dyn FileSystem>>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<dyn FileSystem>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FILES.with(|f| *f.borrow_mut() = self.0.take());
        }
    }
    let _restore = Restore(FILES.with(|f| f.replace(files)));
    f()
}
