//! Running a world to its end: the loop that resumes the thread that the schedule names.

use crate::clock::{START, fast};
use crate::coroutine::Coroutines;
use crate::memory::Memory;
use crate::runtime::{self, RUNTIME};
use crate::schedule::{Id, Next, Schedule};
use crate::spec::WorldSpec;
use crate::state::{self, Host, State};
use crate::{trace, views};
use cenote_base::rt::{self, Nanos};
use cenote_testkit::faulty::MemFs;
use std::any::Any;
use std::cell::Cell;
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
    let state = Box::new(state_of(spec, files));
    prepare(spec);
    let modelled = place == BodyPlace::Outside;
    fast(|f| f.observes.set(modelled));
    let _simulating = modelled.then(cenote_fabric::observe::simulating);
    let (state, result) = state::entered(state, || {
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

fn drive<T>(stack_bytes: usize, main: Id, body: impl FnOnce() -> T) -> std::thread::Result<T> {
    let result = Cell::new(None);
    let mut threads = Threads(Coroutines::new(stack_bytes));
    threads
        .0
        .start(main, || result.set(Some(catch_unwind(AssertUnwindSafe(body)))));
    threads.until_end(main)?;
    result
        .take()
        .unwrap_or_else(|| Err(Box::new("the body's own thread was killed".to_owned())))
}

/// The threads of a run. Those that are left at its end are abandoned.
struct Threads<'body>(Coroutines<'body>);

impl Threads<'_> {
    /// The loop: resumes the thread that the schedule names until `main` has ended.
    fn until_end(mut self, main: Id) -> std::thread::Result<()> {
        loop {
            match state::with(|s| self.turn(s)) {
                Next::Run(id) => self.resume(id),
                Next::Stuck(why) => {
                    let failure = self.failure(why);
                    // The caller's, which goes on: what it borrows is still there, and nothing of it may be undone.
                    self.0.forget(main);
                    return Err(failure);
                }
            }
            if !self.0.is_live(main) {
                return Ok(());
            }
        }
    }

    /// What is to be done between two stretches: coroutines made and put away, the next one chosen.
    fn turn(&mut self, state: &mut State) -> Next {
        for id in std::mem::take(&mut state.killed) {
            self.0.abandon(id);
            let unborn = state.spawns.iter().position(|s| s.id == id);
            // Not dropped: what the body owns is the killed process's.
            unborn
                .into_iter()
                .for_each(|at| std::mem::forget(state.spawns.swap_remove(at)));
        }
        for spawn in state.spawns.drain(..) {
            self.0.start(spawn.id, spawn.body);
        }
        if fast(|f| f.steps.get()) >= state.schedule.step_limit {
            return Next::Stuck("livelock: too many preemption points");
        }
        state.schedule.next()
    }

    fn resume(&mut self, id: Id) {
        if self.0.resume(id) {
            state::with(|s| s.thread_returned(id));
        }
    }

    /// Says what has failed, and where every thread is.
    fn failure(&mut self, what: &str) -> Box<dyn Any + Send> {
        let mut text = what.to_owned();
        for id in self.0.ids() {
            text += &state::with(|s| {
                let hosts = s.host_names();
                format!("\n  {}", s.schedule.describe(id, &hosts))
            });
            if let Some(place) = self.0.place_of(id) {
                text += &format!("\n      in {place}");
            }
        }
        eprintln!("{text}");
        Box::new(text)
    }
}
