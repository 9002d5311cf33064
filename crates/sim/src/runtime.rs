//! The runtime that the seam calls: it asks the schedule and suspends the running coroutine.

#![allow(unsafe_code, reason = "a coroutine's yielder is known by its address")]

use crate::schedule::{Id, Schedule};
use cenote_base::rt::fs::FileSystem;
use cenote_base::rt::{Join, Nanos, Runtime, Wait};
use corosensei::Yielder;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a suspended coroutine is resumed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Go on.
    Run,
    /// Say where you are, and suspend again.
    Where,
}

/// What a coroutine suspends with: where it is, if it was asked.
pub(crate) type Pause = Option<String>;

type Suspender = Yielder<Resume, Pause>;

thread_local! {
    /// The yielder of the running coroutine.
    static YIELDER: Cell<*const Suspender> = const { Cell::new(std::ptr::null()) };
}

/// A thread that was asked for and has no coroutine yet.
pub(crate) struct Spawn {
    pub(crate) id: Id,
    pub(crate) body: Box<dyn FnOnce() + Send>,
    pub(crate) ended: Arc<AtomicU32>,
}

pub(crate) struct SimRuntime {
    schedule: Mutex<Schedule>,
    spawns: Mutex<Vec<Spawn>>,
    files: Arc<dyn FileSystem>,
}

/// Declares the running coroutine's yielder. Called first in every coroutine.
pub(crate) fn begin(yielder: &Suspender) {
    YIELDER.set(yielder);
}

/// Suspends the running coroutine until the loop resumes it.
fn suspend() {
    let yielder = YIELDER.get();
    assert!(!yielder.is_null(), "a preemption point outside of any coroutine");
    let mut pause = None;
    loop {
        // SAFETY: set by `begin` in this very coroutine, whose stack holds the yielder until its
        // body returns: no other coroutine runs between a resume and the `set` below.
        let resume = unsafe { &*yielder }.suspend(pause);
        YIELDER.set(yielder);
        match resume {
            Resume::Run => return,
            Resume::Where => pause = Some(here()),
        }
    }
}

/// The functions that the running coroutine is in, innermost first, without the machinery's.
fn here() -> String {
    const MACHINERY: [&str; 6] = ["std::", "core::", "alloc::", "corosensei", "cenote_sim::", "_"];
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    let name = |line: &str| Some(line.trim().split_once(": ")?.1.to_owned());
    let ours = |n: &String| !MACHINERY.iter().any(|m| n.trim_start_matches('<').starts_with(m));
    // Below the coroutine's first frame lies the loop that resumed it.
    let own = trace
        .lines()
        .filter_map(name)
        .take_while(|n| !n.contains("stack_init_trampoline"));
    let frames: Vec<String> = own.filter(ours).collect();
    frames.join("\n      in ")
}

impl SimRuntime {
    pub(crate) fn new(schedule: Schedule, files: Arc<dyn FileSystem>) -> Self {
        Self {
            schedule: Mutex::new(schedule),
            spawns: Mutex::default(),
            files,
        }
    }

    /// The schedule. Never held across a suspension.
    pub(crate) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads asked for since the last call.
    pub(crate) fn take_spawns(&self) -> Vec<Spawn> {
        std::mem::take(&mut self.spawns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a thread; its coroutine is made by the loop.
    pub(crate) fn start(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Arc<AtomicU32>> {
        let none_left = || io::Error::other("all thread slots are taken");
        let id = self.schedule().start(name).ok_or_else(none_left)?;
        let ended = Arc::new(AtomicU32::new(0));
        let spawn = Spawn {
            id,
            body,
            ended: Arc::clone(&ended),
        };
        self.spawns.lock().unwrap_or_else(PoisonError::into_inner).push(spawn);
        Ok(ended)
    }

    /// A preemption point; `choose` asks the schedule whether to suspend.
    fn point(&self, choose: impl FnOnce(&mut Schedule) -> bool) {
        if std::thread::panicking() {
            return;
        }
        let mut schedule = self.schedule();
        let switch = choose(&mut schedule);
        let endless = schedule.steps > schedule.step_limit;
        drop(schedule);
        if switch || endless {
            suspend();
        }
    }
}

impl Runtime for SimRuntime {
    fn now(&self) -> Nanos {
        self.schedule().now
    }

    /// The years of virtual time begin in 2026.
    fn wall_micros(&self) -> i64 {
        1_767_225_600_000_000 + self.now().as_micros() as i64
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn Join>> {
        Ok(Box::new(SimThread(self.start(name, body)?)))
    }

    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
        if std::thread::panicking() {
            eprintln!("a thread waits while it unwinds: {}", here());
            std::process::abort();
        }
        self.preempt();
        // From here to the suspension nobody else runs: compare and sleep are one.
        if word.load(SeqCst) != expected {
            return Wait::Changed;
        }
        self.schedule().sleep(word.as_ptr() as usize, timeout);
        suspend();
        self.schedule().awoken()
    }

    fn wake(&self, word: &AtomicU32, count: usize) -> usize {
        self.schedule().wake_word(word.as_ptr() as usize, count)
    }

    fn preempt(&self) {
        self.point(Schedule::point);
    }

    fn relax(&self) {
        self.point(Schedule::spin);
    }

    fn yield_now(&self) {
        self.relax();
    }

    fn random(&self) -> u64 {
        self.schedule().program.next()
    }

    fn thread_slot(&self) -> usize {
        self.schedule().slot()
    }

    fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.files)
    }
}

struct SimThread(Arc<AtomicU32>);

impl Join for SimThread {
    fn join(self: Box<Self>) {
        while self.0.load(SeqCst) == 0 {
            current().wait(&self.0, 0, None);
        }
    }
}

thread_local! {
    static CURRENT: std::cell::RefCell<Option<Arc<SimRuntime>>> = const { std::cell::RefCell::new(None) };
}

/// The runtime that this thread of the machine runs.
fn current() -> Arc<SimRuntime> {
    CURRENT
        .with(|c| c.borrow().clone())
        .expect("a simulated thread is joined within its run")
}

/// Runs `f` with `runtime` behind the seam.
pub(crate) fn entered<T>(runtime: &Arc<SimRuntime>, f: impl FnOnce() -> T) -> T {
    let before = CURRENT.with(|c| c.replace(Some(Arc::clone(runtime))));
    assert!(before.is_none(), "a run within a run");
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            CURRENT.with(|c| c.replace(None));
        }
    }
    let _clear = Clear;
    cenote_base::rt::enter(Arc::clone(runtime) as Arc<dyn Runtime>, f)
}
