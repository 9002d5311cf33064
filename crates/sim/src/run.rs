//! Running a world to its end: a coroutine for each thread, and the loop that resumes whom the schedule names.

#![allow(
    unsafe_code,
    reason = "the body borrows, and killed threads are forgotten where they stand"
)]

use crate::clock::{START, fast};
use crate::memory::Memory;
use crate::runtime::{self, Pause, RUNTIME, Resume};
use crate::schedule::{Id, Next, Schedule};
use crate::spec::WorldSpec;
use crate::state::{self, Host, State};
use crate::{trace, views};
use cenote_base::rt::{self, Nanos};
use cenote_testkit::faulty::MemFs;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

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

/// Where the body runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyPlace {
    /// Outside of all hosts.
    Outside,
    /// As a process of the first host.
    FirstHost,
}

/// Runs `body` in a world as `spec` describes it, with these files on the first host if given.
pub(crate) fn run<T>(
    spec: &WorldSpec,
    files: Option<&MemFs>,
    place: BodyPlace,
    body: impl FnOnce() -> T,
) -> Outcome<T> {
    let mut state = state_of(spec, files);
    prepare(spec);
    let modelled = place == BodyPlace::Outside;
    fast(|f| f.observes.set(modelled));
    let _simulating = modelled.then(cenote_fabric::observe::simulating);
    let result = state::entered(&mut state, || {
        let process = state::with(|s| start_first(s, place));
        rt::enter(&RUNTIME, || drive(spec.stack_bytes, process, body))
    });
    match result {
        Ok(value) => Outcome {
            value,
            digest: state.schedule.digest,
            steps: fast(|f| f.steps.get()),
            time: Nanos(fast(|f| f.now.get())).since(START),
            threads_left: state.schedule.left(),
        },
        Err(panic) => {
            eprintln!("the run of seed {} failed (CENOTE_SEED={})", spec.seed, spec.seed);
            resume_unwind(panic)
        }
    }
}

fn state_of(spec: &WorldSpec, files: Option<&MemFs>) -> State {
    let topology = &spec.topology;
    let mut vcpus: Vec<Option<u32>> = topology.hosts.iter().map(|h| Some(h.vcpus)).collect();
    vcpus.push(None);
    fast(|f| f.now.set(START.0));
    let mut schedule = Schedule::new(spec.seed, spec.pace, &vcpus, spec.costs());
    schedule.step_limit = spec.step_limit;
    schedule.drifts = topology.hosts.iter().map(|host| host.drift).collect();
    let names = topology.hosts.iter().map(|h| h.name.as_str()).chain([""]);
    let hosts = names.enumerate().map(|(i, name)| Host {
        name: name.into(),
        files: files.filter(|_| i == 0).cloned().unwrap_or_else(new_files),
        clock_ahead: 0,
    });
    let memory = Memory::new(topology, spec.seed, runtime::machine_check);
    State::new(schedule, hosts.collect(), memory, spec.seed)
}

fn new_files() -> MemFs {
    let files = MemFs::new();
    files.set_sync_time(state::SYNC_TIME);
    files
}

/// Sets what the machine's thread knows of the running world.
fn prepare(spec: &WorldSpec) {
    let names: Vec<&str> = spec.topology.hosts.iter().map(|h| h.name.as_str()).collect();
    trace::begin(spec.trace, &names);
    views::clear();
    fast(|f| {
        f.now.set(START.0);
        f.drift.set(0);
        f.limit.set(0);
        f.steps.set(0);
        f.stop.set(0);
        f.step_cost.set(spec.step_cost());
    });
}

/// The process of the body, and its first thread.
fn start_first(state: &mut State, place: BodyPlace) -> Id {
    let outside = state.hosts.len() - 1;
    let mut process = state.add_process(outside, "outside");
    if place == BodyPlace::FirstHost {
        process = state.add_process(0, "main");
    }
    let (main, _) = state.add_thread(process, "main").expect("the first slot is free");
    state.schedule.main(main);
    main
}

type Thread = Coroutine<Resume, Pause, (), DefaultStack>;

fn drive<T>(stack_bytes: usize, main: Id, body: impl FnOnce() -> T) -> std::thread::Result<T> {
    let result = Cell::new(None);
    let main_body = |yielder: &Yielder<Resume, Pause>, _: Resume| {
        runtime::begin(yielder);
        result.set(Some(catch_unwind(AssertUnwindSafe(body))));
    };
    let mut threads = Threads {
        live: Vec::new(),
        stack_bytes,
    };
    // SAFETY: what the body borrows outlives this function, and the coroutine is done or
    // leaked, never to be resumed or dropped, when `until_end` has returned.
    let coroutine = unsafe { Thread::with_stack_unchecked(stack(stack_bytes), main_body) };
    threads.insert(main, coroutine);
    threads.until_end(main)?;
    result
        .take()
        .unwrap_or_else(|| Err(Box::new("the body's own thread was killed".to_owned())))
}

thread_local! {
    /// Stacks of threads that have ended, to be used again.
    static STACKS: RefCell<Vec<(usize, DefaultStack)>> = const { RefCell::new(Vec::new()) };
}

/// Stacks that are kept.
const MAX_KEPT: usize = 1024;

fn stack(bytes: usize) -> DefaultStack {
    let kept = STACKS.with_borrow_mut(|all| {
        let at = all.iter().rposition(|s| s.0 == bytes)?;
        Some(all.swap_remove(at).1)
    });
    kept.unwrap_or_else(|| DefaultStack::new(bytes).expect("address space for a stack"))
}

fn keep(bytes: usize, stack: DefaultStack) {
    STACKS.with_borrow_mut(|all| {
        if all.len() < MAX_KEPT {
            all.push((bytes, stack));
        }
    });
}

/// The coroutines of a run, by thread.
struct Threads {
    live: Vec<Option<Thread>>,
    stack_bytes: usize,
}

impl Threads {
    fn insert(&mut self, id: Id, thread: Thread) {
        self.live.resize_with(self.live.len().max(id + 1), || None);
        self.live[id] = Some(thread);
    }

    /// The loop: resumes whom the schedule names until `main` has ended. Threads that are left are forgotten.
    fn until_end(mut self, main: Id) -> std::thread::Result<()> {
        let result = loop {
            match state::with(|s| self.turn(s)) {
                Next::Run(id) => self.resume(id),
                Next::Stuck(why) => break Err(self.failure(why)),
            }
            if self.live[main].is_none() {
                break Ok(());
            }
        };
        if result.is_err() {
            // The caller's, which goes on: what it borrows is still there, and nothing of it may be undone.
            std::mem::forget(self.live[main].take());
        }
        (0..self.live.len()).for_each(|id| self.put_away(id));
        result
    }

    /// What is to be done between two stretches: coroutines made and put away, the next one chosen.
    fn turn(&mut self, state: &mut State) -> Next {
        for id in std::mem::take(&mut state.killed) {
            self.put_away(id);
            let unborn = state.spawns.iter().position(|s| s.id == id);
            // Not dropped: what the body owns is the killed process's.
            unborn
                .into_iter()
                .for_each(|at| std::mem::forget(state.spawns.swap_remove(at)));
        }
        for spawn in state.spawns.drain(..) {
            let body = spawn.body;
            let thread = Thread::with_stack(stack(self.stack_bytes), move |yielder, _| {
                runtime::begin(yielder);
                body();
            });
            self.insert(spawn.id, thread);
        }
        if fast(|f| f.steps.get()) >= state.schedule.step_limit {
            return Next::Stuck("livelock: too many preemption points");
        }
        state.schedule.next()
    }

    fn resume(&mut self, id: Id) {
        let thread = self.live[id].as_mut().expect("the schedule names live threads");
        if let CoroutineResult::Return(()) = thread.resume(Resume::Run) {
            state::with(|s| s.thread_returned(id));
            self.put_away(id);
        }
    }

    /// Takes a thread's stack back, wherever the thread stands: nothing of it is dropped.
    fn put_away(&mut self, id: Id) {
        let Some(mut thread) = self.live.get_mut(id).and_then(Option::take) else {
            return;
        };
        if !thread.started() {
            // Its body is still on the stack, and belongs to a killed process.
            std::mem::forget(thread);
            return;
        }
        // SAFETY: it is suspended or done, and never resumed again. What lies on its stack is 'static (all but the
        // first thread's, which is done when it comes here) and is leaked; nothing outside of its world refers to it.
        unsafe { thread.force_reset() };
        keep(self.stack_bytes, thread.into_stack());
    }

    /// Says what has failed, and where every thread is.
    fn failure(&mut self, what: &str) -> Box<dyn Any + Send> {
        let mut text = what.to_owned();
        for (id, thread) in self.live.iter_mut().enumerate() {
            let Some(thread) = thread else { continue };
            text += &state::with(|s| {
                let hosts = s.host_names();
                format!("\n  {}", s.schedule.describe(id, &hosts))
            });
            if thread.started()
                && let CoroutineResult::Yield(Some(place)) = thread.resume(Resume::Where)
            {
                text += &format!("\n      in {place}");
            }
        }
        eprintln!("{text}");
        Box::new(text)
    }
}
