//! Running a body and the threads it starts, to the end, by seed.

#![allow(unsafe_code, reason = "the body borrows, and a coroutine is made of it")]

use crate::runtime::{self, Pause, Resume, SimRuntime, Spawn};
use crate::schedule::{Id, Next, Schedule};
use cenote_base::rt::fs::faulty::MemFs;
use cenote_base::rt::{Nanos, Runtime, os};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// A run to be: its seed and its world.
#[derive(Debug, Clone)]
pub struct Sim {
    seed: u64,
    files: MemFs,
    step_limit: u64,
    stack_bytes: usize,
}

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<T> {
    /// What the body returned.
    pub value: T,
    /// Stands for every choice of the run: equal for equal seeds.
    pub digest: u64,
    /// Preemption points passed.
    pub steps: u64,
    /// Virtual time passed.
    pub time: Nanos,
    /// Threads that had not ended when the body returned. They never go on, and what they own is
    /// leaked.
    pub threads_left: usize,
}

/// Runs `body` with `seed`; what it returned, and how it went. Panics as the body panics, and on
/// a deadlock, with the seed.
pub fn run<T>(seed: u64, body: impl FnOnce(&Sim) -> T) -> Outcome<T> {
    Sim::new(seed).run(body)
}

/// Runs `body` under `runs` seeds: from `CENOTE_SEED` on if that is set, else from a random one.
/// The first seed is run twice, and must go the same way.
pub fn explore(runs: u64, body: impl Fn(&Sim)) {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|s| s.parse().ok());
    let first = given.unwrap_or_else(|| os::random() >> 16);
    let once = run(first, &body);
    assert_eq!(once, run(first, &body), "seed {first} did not run the same way twice");
    for seed in first + 1..first + runs {
        run(seed, &body);
    }
}

impl Sim {
    /// With files in memory of its own.
    pub fn new(seed: u64) -> Self {
        let files = MemFs::new();
        files.set_sync_time(Nanos::from_micros(60));
        Self {
            seed,
            files,
            step_limit: 200_000_000,
            stack_bytes: 1 << 20,
        }
    }

    /// With these files instead.
    pub fn with_files(self, files: MemFs) -> Self {
        Self { files, ..self }
    }

    /// Fails, as a livelock, after so many preemption points.
    pub fn with_step_limit(self, step_limit: u64) -> Self {
        Self { step_limit, ..self }
    }

    /// With stacks of so many bytes (1 MiB unless told; not below 256 KiB).
    pub fn with_stacks(self, bytes: usize) -> Self {
        Self {
            stack_bytes: bytes.max(256 << 10),
            ..self
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The files.
    pub fn files(&self) -> &MemFs {
        &self.files
    }

    /// Runs `body` as the first thread, until it returns.
    pub fn run<T>(self, body: impl FnOnce(&Sim) -> T) -> Outcome<T> {
        let mut schedule = Schedule::new(self.seed);
        schedule.step_limit = self.step_limit;
        let runtime = Arc::new(SimRuntime::new(schedule, Arc::new(self.files.clone())));
        let result = runtime::entered(&runtime, || self.drive(&runtime, body));
        let schedule = runtime.schedule();
        match result {
            Ok(value) => Outcome {
                value,
                digest: schedule.digest,
                steps: schedule.steps,
                time: schedule.now - Nanos::from_secs(1),
                threads_left: schedule.left(),
            },
            Err(panic) => {
                eprintln!("the run of seed {} failed (CENOTE_SEED={})", self.seed, self.seed);
                drop(schedule);
                resume_unwind(panic)
            }
        }
    }

    fn drive<T>(&self, runtime: &SimRuntime, body: impl FnOnce(&Sim) -> T) -> std::thread::Result<T> {
        let result = Mutex::new(None);
        let main = runtime.schedule().start("main").expect("the first slot is free");
        let main_body = |yielder: &Yielder<Resume, Pause>, _: Resume| {
            runtime::begin(yielder);
            let value = catch_unwind(AssertUnwindSafe(|| body(self)));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        };
        let mut threads = Threads {
            runtime,
            live: BTreeMap::new(),
            stack_bytes: self.stack_bytes,
        };
        // SAFETY: what the body borrows outlives this function, and the coroutine is done or
        // leaked, never to be resumed or dropped, when `until_end` has returned.
        let coroutine = unsafe { Thread::with_stack_unchecked(threads.stack(), main_body) };
        threads.live.insert(main, (coroutine, Arc::default()));
        threads.until_end(main)?;
        let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.expect("the main thread has returned, and its last act is to set this")
    }
}

type Thread = Coroutine<Resume, Pause, (), DefaultStack>;

/// The coroutines of a run.
struct Threads<'a> {
    runtime: &'a SimRuntime,
    /// With the words that are set when they end.
    live: BTreeMap<Id, (Thread, Arc<AtomicU32>)>,
    stack_bytes: usize,
}

impl Threads<'_> {
    fn stack(&self) -> DefaultStack {
        DefaultStack::new(self.stack_bytes).expect("address space for a stack")
    }

    /// The loop: resumes whom the schedule names until `main` has ended; the rest is leaked.
    fn until_end(mut self, main: Id) -> std::thread::Result<()> {
        let result = loop {
            self.make_spawned();
            let next = self.runtime.schedule().next();
            match next {
                Next::Run(id) => self.resume(id),
                Next::Deadlock => break Err(self.failure("deadlock: nobody can go on")),
            }
            if !self.live.contains_key(&main) {
                break Ok(());
            }
            if self.too_long() {
                break Err(self.failure("livelock: too many preemption points"));
            }
        };
        // Destructors of threads in the middle of something would run without their runtime.
        self.live.into_values().for_each(std::mem::forget);
        result
    }

    fn make_spawned(&mut self) {
        for Spawn { id, body, ended } in self.runtime.take_spawns() {
            let coroutine = Thread::with_stack(self.stack(), move |yielder, _| {
                runtime::begin(yielder);
                body();
            });
            self.live.insert(id, (coroutine, ended));
        }
    }

    fn resume(&mut self, id: Id) {
        let (coroutine, ended) = self.live.get_mut(&id).expect("the schedule names live threads");
        if let CoroutineResult::Return(()) = coroutine.resume(Resume::Run) {
            self.runtime.schedule().end(id);
            ended.store(1, SeqCst);
            self.runtime.wake(ended, usize::MAX);
            self.live.remove(&id);
        }
    }

    fn too_long(&self) -> bool {
        let schedule = self.runtime.schedule();
        schedule.steps > schedule.step_limit
    }

    /// Says what has failed, and where every thread is.
    fn failure(&mut self, what: &str) -> Box<dyn std::any::Any + Send> {
        let mut text = what.to_owned();
        for (id, (coroutine, _)) in &mut self.live {
            text += &format!("\n  {}", self.runtime.schedule().describe(*id));
            if coroutine.started()
                && let CoroutineResult::Yield(Some(place)) = coroutine.resume(Resume::Where)
            {
                text += &format!("\n      in {place}");
            }
        }
        eprintln!("{text}");
        Box::new(text)
    }
}
