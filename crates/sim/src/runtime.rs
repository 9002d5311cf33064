//! The runtime that the seam calls: it asks the schedule and suspends the running coroutine.
//!
//! It is one for all worlds and holds nothing: the running world is known by the machine's thread ([`state`]). A
//! preemption point looks at [`fast`] and, unless a bound is reached, is done.

use crate::clock::{self, fast};
use crate::coroutine::{here, suspend};
use crate::state::{self, Exit};
use crate::{trace, views};
use cenote_base::rt::fs::FileSystem;
use cenote_base::rt::memory::{Access, Device};
use cenote_base::rt::{Join, Nanos, Runtime, Wait};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A preemption point.
#[inline(always)]
fn point() {
    if fast(|f| f.due()) {
        point_due();
    }
}

/// One that has reached a bound.
#[cold]
#[inline(never)]
fn point_due() {
    if !std::thread::panicking() && state::with(|s| s.schedule.point()) {
        suspend();
    }
}

/// A turn of a spinning loop.
fn spin(patient: bool) {
    fast(|f| f.due());
    if !std::thread::panicking() && state::with(|s| s.schedule.spin(patient)) {
        suspend();
    }
}

/// Never returns if the calling thread has been killed.
pub(crate) fn die_if_killed() {
    if state::with(|s| s.is_killed()) {
        suspend();
        unreachable!("the schedule names no ended thread");
    }
}

/// An access found no device: the processor ends the process that made it. (What unwinds is let through, since nothing
/// suspends there.)
pub(crate) fn machine_check() {
    if std::thread::panicking() {
        return;
    }
    assert!(state::is_running(), "machine check: the memory device is lost");
    trace::add(|| "machine check: the memory device is lost".into());
    state::with(|s| s.end_process(clock::process(), Exit::Killed));
    die_if_killed();
}

/// The runtime of all worlds.
pub(crate) struct SimRuntime;

pub(crate) static RUNTIME: SimRuntime = SimRuntime;

impl Runtime for SimRuntime {
    fn now(&self) -> Nanos {
        clock::host_now()
    }

    /// The years of virtual time begin in 2026.
    fn wall_micros(&self) -> i64 {
        1_767_225_600_000_000 + clock::host_now().as_micros() as i64 + state::with(|s| s.clock_ahead())
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn Join>> {
        let none_left = || io::Error::other("all thread slots are taken");
        let ended = state::with(|s| s.spawn(name, body)).ok_or_else(none_left)?;
        Ok(Box::new(SimThread(ended)))
    }

    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
        if std::thread::panicking() {
            eprintln!("a thread waits while it unwinds: {}", here());
            std::process::abort();
        }
        self.preempt();
        // From here to the suspension no other thread runs: compare and sleep are one.
        if word.load(SeqCst) != expected {
            return Wait::Changed;
        }
        let timeout = timeout.map(clock::world_span);
        state::with(|s| s.schedule.sleep(word.as_ptr() as usize, timeout));
        suspend();
        state::with(|s| s.schedule.awoken())
    }

    fn wake(&self, word: &AtomicU32, count: usize) -> usize {
        state::with(|s| s.schedule.wake_word(word.as_ptr() as usize, count))
    }

    fn took(&self, word: &AtomicU32) {
        state::with(|s| s.schedule.took(word.as_ptr() as usize));
    }

    fn gave(&self, word: &AtomicU32, count: usize) {
        state::with(|s| {
            s.schedule.gave(word.as_ptr() as usize);
            s.schedule.wake_word(word.as_ptr() as usize, count);
        });
    }

    fn preempt(&self) {
        point();
    }

    fn relax(&self) {
        spin(false);
    }

    fn yield_now(&self) {
        spin(true);
    }

    fn random(&self) -> u64 {
        state::with(|s| s.program.word())
    }

    fn thread_slot(&self) -> usize {
        fast(|f| f.slot.get())
    }

    fn fs(&self) -> Arc<dyn FileSystem> {
        state::with(|s| s.files())
    }

    #[inline]
    fn access(&self, address: usize, bytes: u32, access: Access) {
        point();
        views::touch(address, bytes, access);
    }

    fn prefetch(&self, address: usize) {
        views::prefetch(address);
    }

    fn spend(&self, time: Nanos) {
        clock::charge(time);
    }

    fn end_process(&self) {
        state::with(|s| s.end_itself(clock::process()));
        die_if_killed();
    }

    fn observes(&self) -> bool {
        fast(|f| f.observes.get())
    }

    fn memory(&self, path: &Path) -> Option<Arc<dyn Device>> {
        self.observes()
            .then(|| state::with(|s| s.memory.view(clock::host(), path)))?
    }

    fn local_memory(&self, len: u64) -> Option<Arc<dyn Device>> {
        let here = || state::with(|s| s.memory.local(clock::host(), clock::process(), len));
        self.observes().then(here)?
    }
}

struct SimThread(Arc<AtomicU32>);

impl Join for SimThread {
    fn join(self: Box<Self>) {
        wait_for(&self.0);
    }
}

/// Returns when `ended` is set.
pub(crate) fn wait_for(ended: &AtomicU32) {
    while ended.load(SeqCst) == 0 {
        RUNTIME.wait(ended, 0, None);
    }
}
