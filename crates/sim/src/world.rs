//! Worlds: hosts, processes on them, and the faults that befall them.
//!
//! ```
//! use cenote_base::rt;
//! use cenote_sim::{Pace, Topology, World};
//!
//! let world = World::new(1, Pace::Explore, Topology::hosts(2, 1)).expect("a possible topology");
//! let outcome = world.run(|w| {
//!     let one = w.process(0, "one", || rt::sleep(rt::Nanos::from_secs(10)));
//!     let two = w.process(1, "two", || ());
//!     rt::sleep(rt::Nanos::from_secs(1));
//!     one.kill();
//!     two.join();
//! });
//! assert!(outcome.time < rt::Nanos::from_secs(10));
//! ```

use crate::link::Links;
use crate::memory::{Chance, Hazards, ViewTraffic};
use crate::run::{self, BodyPlace, Outcome};
use crate::spec::{Machinery, Pace, WorldSpec};
use crate::state::{self, Exit, Spawn};
use crate::topology::Topology;
use crate::trace::{self, Event};
use crate::{clock, runtime};
use cenote_base::Result;
use cenote_base::rt::Nanos;
use cenote_testkit::faulty::MemFs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A simulated pod. Clones are the same world, and may be moved into its threads.
#[derive(Clone)]
pub struct World {
    spec: Arc<WorldSpec>,
}

/// A process of a simulated host: the threads that its body has started, and theirs. It exits when its body returns.
#[derive(Debug, Clone)]
pub struct Process {
    id: u32,
    host: usize,
}

impl World {
    /// A world to be.
    ///
    /// # Errors
    /// If the topology is impossible; names the field and what it may be.
    pub fn new(seed: u64, pace: Pace, topology: Topology) -> Result<Self> {
        topology.validate()?;
        Ok(Self::of(WorldSpec::new(seed, pace, topology)))
    }

    pub(crate) fn of(spec: WorldSpec) -> Self {
        Self { spec: Arc::new(spec) }
    }

    fn with(mut self, set: impl FnOnce(&mut WorldSpec)) -> Self {
        set(Arc::make_mut(&mut self.spec));
        self
    }

    /// With these costs of the hosts' machinery.
    pub fn with_machinery(self, machinery: Machinery) -> Self {
        self.with(|spec| spec.machinery = machinery)
    }

    /// Keeps the last `steps` steps, to be shown when a run fails. 0: none.
    pub fn with_trace(self, steps: usize) -> Self {
        self.with(|spec| spec.trace = steps)
    }

    /// Fails, as a livelock, after so many preemption points.
    pub fn with_step_limit(self, steps: u64) -> Self {
        self.with(|spec| spec.step_limit = steps)
    }

    /// With stacks of so many bytes (1 MiB unless told; not below 256 KiB). Only what is used takes memory.
    pub fn with_stacks(self, bytes: usize) -> Self {
        self.with(|spec| spec.set_stacks(bytes))
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.spec.seed
    }

    /// How time goes.
    pub fn pace(&self) -> Pace {
        self.spec.pace
    }

    /// What it is made of.
    pub fn topology(&self) -> &Topology {
        &self.spec.topology
    }

    /// Runs `body` as a thread outside of all hosts, until it returns: it starts processes and brings faults.
    /// Panics as the body panics, and on deadlock and livelock, with the seed.
    pub fn run<T>(&self, body: impl FnOnce(&World) -> T) -> Outcome<T> {
        run::run(&self.spec, None, BodyPlace::Outside, || body(self))
    }

    /// Starts a process. The methods from here on are for threads of the running world.
    pub fn process(&self, host: usize, name: &str, body: impl FnOnce() + Send + 'static) -> Process {
        assert!(host < self.spec.topology.hosts.len(), "there is no host {host}");
        state::with(|s| {
            let id = s.add_process(host, name);
            let (thread, _) = s.add_thread(id, name).expect("the first slot is free");
            trace::add(|| format!("starts process {id} \"{name}\" on host {host}, thread {thread}"));
            let body = Box::new(move || exit(id, body));
            s.spawns.push(Spawn { id: thread, body });
            Process { id, host }
        })
    }

    /// Kills a host's processes; what its cache had not written back is lost, and what its files had not synced, in
    /// part or in whole, by the seed. (Files that another host has too are storage of their own, and lose nothing.)
    /// Processes may be started on it again at once.
    pub fn lose_host(&self, host: usize) {
        trace::add(|| format!("host {host} is lost"));
        state::with(|s| s.lose_host(host));
        runtime::die_if_killed();
    }

    /// No thread of a host goes on for so long.
    pub fn pause(&self, host: usize, time: Nanos) {
        trace::add(|| format!("host {host} is paused for {time}"));
        state::with(|s| s.pause(host, time));
    }

    /// Moves a host's wall clock.
    pub fn step_clock(&self, host: usize, micros: i64) {
        trace::add(|| format!("the wall clock of host {host} steps by {micros} us"));
        state::with(|s| s.hosts[host].clock_ahead += micros);
    }

    /// Cuts a host off from a device: an access finds no device, which the processor answers by ending the process that
    /// made it. So all of the host's processes are killed, what its cache had not written back is lost, and the device
    /// is not found from there until [`World::mend_link`]. What is in it stays.
    pub fn cut_link(&self, host: usize, device: usize) {
        trace::add(|| format!("host {host} is cut off from memory device {device}"));
        state::with(|s| {
            s.kill_all(host);
            s.memory.host_lost(host);
            s.memory.links().device(host, device).set_cut(true);
        });
        runtime::die_if_killed();
    }

    /// Ends a cut.
    pub fn mend_link(&self, host: usize, device: usize) {
        trace::add(|| format!("host {host} reaches memory device {device} again"));
        state::with(|s| s.memory.links().device(host, device).set_cut(false));
    }

    /// A memory device is gone, with all that was in it. Caches still have what they have of it; an access that needs
    /// the device finds nothing, which the processor answers by ending the process. The process that opens the device
    /// next finds an empty one in its place.
    pub fn lose_device(&self, device: usize) {
        trace::add(|| format!("memory device {device} is lost"));
        state::with(|s| s.memory.device_lost(device));
    }

    /// What every host has done so far to every memory device, and to its own memory.
    pub fn traffic(&self) -> Vec<ViewTraffic> {
        state::with(|s| s.memory.traffic())
    }

    /// What has gone wrong so far between caches.
    pub fn hazards(&self) -> Hazards {
        state::with(|s| s.memory.hazards())
    }

    /// What caches do without being asked, in place of what the seed has drawn.
    pub fn set_chance(&self, chance: Chance) {
        state::with(|s| s.memory.set_chance(chance));
    }

    /// What a memory device holds, whatever is in caches.
    pub fn behind_caches(&self, device: usize, off: u64, len: usize) -> Vec<u8> {
        state::with(|s| s.memory.behind_caches(device, off, len))
    }

    /// The links, for faults and reports.
    pub fn links(&self) -> Arc<Links> {
        state::with(|s| s.memory.links())
    }

    /// The files of a host's processes.
    pub fn files(&self, host: usize) -> MemFs {
        state::with(|s| s.hosts[host].files.clone())
    }

    /// Gives a host other files: those of another host too, for storage that hosts share. Running processes see them at
    /// their next call; what they have open stays with the files before.
    pub fn set_files(&self, host: usize, files: &MemFs) {
        state::with(|s| s.set_files(host, files));
    }

    /// A random word from the seed, apart from what the program draws by `rt::random` and from the order of threads.
    pub fn draw(&self) -> u64 {
        state::with(|s| s.faults.word())
    }

    /// Preemption points passed so far.
    pub fn steps(&self) -> u64 {
        clock::fast(|f| f.steps.get())
    }

    /// The last steps, oldest first, if [`World::with_trace`] asked for them; after a run, those before its end.
    pub fn trace(&self) -> Vec<Event> {
        trace::events()
    }
}

/// A process's first thread: runs the body and says how it ended.
fn exit(process: u32, body: impl FnOnce()) {
    let exit = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(()) => Exit::Returned,
        Err(panic) => Exit::Panicked(message(&*panic)),
    };
    state::with(|s| s.processes[process as usize].exit = Some(exit));
}

/// What a panic says.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_default()
}

impl Process {
    /// Its number, in the order of starting, from 1; never used again.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What it is called.
    pub fn name(&self) -> String {
        state::with(|s| s.processes[self.id as usize].name.clone())
    }

    /// The host that it runs on.
    pub fn host(&self) -> usize {
        self.host
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        state::with(|s| s.processes[self.id as usize].exit.is_none())
    }

    /// Waits for its end.
    pub fn join(&self) -> Exit {
        let ended = state::with(|s| Arc::clone(&s.processes[self.id as usize].ended));
        runtime::wait_for(&ended);
        let exit = state::with(|s| s.processes[self.id as usize].exit.clone());
        exit.expect("set before the word is")
    }

    /// None of its threads goes on for so long, wherever they stand; other processes of its host do.
    ///
    /// # Panics
    /// In a projection ([`Pace::Project`]), which has no such faults.
    pub fn pause(&self, time: Nanos) {
        trace::add(|| format!("process {} \"{}\" is paused for {time}", self.id, self.name()));
        state::with(|s| s.pause_process(self.id, time));
    }

    /// Ends it where its threads stand: none goes on, no destructor runs, its locks of devices and files are free, its
    /// lines stay in the host's cache. What it had on the heap is leaked: a program that kills thousands of processes
    /// should do so in several processes of its own.
    pub fn kill(&self) {
        trace::add(|| format!("kills process {} \"{}\"", self.id, self.name()));
        state::with(|s| s.end_process(self.id, Exit::Killed));
        runtime::die_if_killed();
    }
}
