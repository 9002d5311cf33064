//! What a running world is: its schedule, hosts, processes, memory, and draws. Each thread of the machine that runs a
//! world has one.

use crate::clock::{self, fast};
use crate::memory::Memory;
use crate::schedule::{Id, Schedule};
use crate::{trace, views};
use cenote_base::random::{Random, mix};
use cenote_base::rt::fs::FileSystem;
use cenote_base::rt::{self, MAX_THREADS, Nanos};
use cenote_testkit::faulty::MemFs;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// What a sync of files takes, unless told otherwise.
pub(crate) const SYNC_TIME: Nanos = Nanos::from_micros(60);

/// A thread that was asked for and has no coroutine yet.
pub(crate) struct Spawn {
    pub(crate) id: Id,
    pub(crate) body: Box<dyn FnOnce() + Send>,
}

/// A simulated machine's own.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) files: MemFs,
    /// Its wall clock is fast by so many microseconds.
    pub(crate) clock_ahead: i64,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// Its body returned.
    Returned,
    /// Its body panicked, with this message.
    Panicked(String),
    /// It was killed, or its host was lost.
    Killed,
}

/// A process, live or ended.
pub(crate) struct Proc {
    pub(crate) name: String,
    pub(crate) host: usize,
    files: Arc<dyn FileSystem>,
    /// Slots by thread; `None`: free.
    slots: Vec<Option<Id>>,
    main: Id,
    pub(crate) exit: Option<Exit>,
    /// Set when it has ended.
    pub(crate) ended: Arc<AtomicU32>,
    /// Move on then.
    watched_by: Vec<Arc<AtomicU32>>,
}

pub(crate) struct State {
    pub(crate) schedule: Schedule,
    pub(crate) hosts: Vec<Host>,
    pub(crate) processes: Vec<Proc>,
    pub(crate) spawns: Vec<Spawn>,
    /// Killed, and their coroutines not yet put away.
    pub(crate) killed: Vec<Id>,
    /// By thread: the word that is set at its end.
    ends: Vec<Option<Arc<AtomicU32>>>,
    pub(crate) memory: Memory,
    /// For the program's own draws, and for those of the faults: apart from the schedule's.
    pub(crate) program: Random,
    pub(crate) faults: Random,
}

thread_local! {
    /// The running world; `None` while a call changes it ([`with`]). [`entered`] takes it out at the end.
    static STATE: Cell<Running> = const { Cell::new(None) };
}

/// Without a destructor, which each use would have to look after.
type Running = Option<ManuallyDrop<Box<State>>>;

/// Makes `state` the running world; what it was before. (`LocalKey::replace` is no inline function.)
#[inline(always)]
fn replace(state: Running) -> Running {
    STATE
        .try_with(|cell| cell.replace(state))
        .expect("a cell without a destructor")
}

/// Whether this thread of the machine runs a world.
pub(crate) fn is_running() -> bool {
    let state = replace(None);
    let is_running = state.is_some();
    replace(state);
    is_running
}

/// The world's time where one runs, the machine's elsewhere.
pub(crate) fn true_now() -> Nanos {
    if is_running() { clock::now() } else { rt::now() }
}

/// Calls `f` with the running world. Within `f` nothing suspends, and nothing asks for the world again.
pub(crate) fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    struct Taken(Running);
    impl Drop for Taken {
        #[inline(always)]
        fn drop(&mut self) {
            replace(self.0.take());
        }
    }
    // A call within `f` finds none.
    let mut taken = Taken(replace(None));
    f(taken.0.as_mut().expect("no world runs on this thread"))
}

/// What the running world's memory devices look like, for people; nothing if no world runs, or if it is being asked.
pub(crate) fn memory_scene() -> Vec<String> {
    if !is_running() {
        return Vec::new();
    }
    with(|s| {
        let names = |thread| s.schedule.name(thread).to_owned();
        s.memory.scene(&names)
    })
}

/// Runs `f` with `state` as the running world, and gives the state back.
pub(crate) fn entered<T>(state: Box<State>, f: impl FnOnce() -> T) -> (Box<State>, T) {
    assert!(!is_running(), "a world within a world");
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            let state = replace(None).map(ManuallyDrop::into_inner);
            views::clear();
            trace::end();
            drop(state);
        }
    }
    let clear = Clear;
    replace(Some(ManuallyDrop::new(state)));
    let result = f();
    let state = replace(None).map(ManuallyDrop::into_inner);
    drop(clear);
    (state.expect("the world that was set"), result)
}

impl State {
    pub(crate) fn new(schedule: Schedule, hosts: Vec<Host>, memory: Memory, seed: u64) -> Self {
        Self {
            schedule,
            hosts,
            processes: Vec::new(),
            spawns: Vec::new(),
            killed: Vec::new(),
            ends: Vec::new(),
            memory,
            program: Random(mix(seed ^ 0x5EED)),
            faults: Random(mix(seed ^ 0xFA17)),
        }
    }

    /// A process whose first thread is still to be started.
    pub(crate) fn add_process(&mut self, host: usize, name: &str) -> u32 {
        let id = self.processes.len() as u32;
        self.processes.push(Proc {
            name: name.into(),
            host,
            files: Arc::new(self.hosts[host].files.of_process(u64::from(id))),
            slots: Vec::new(),
            main: 0,
            exit: None,
            ended: Arc::default(),
            watched_by: Vec::new(),
        });
        id
    }

    /// A new thread of a process; its slot is the lowest that is free. `None` if there is none.
    pub(crate) fn add_thread(&mut self, process: u32, name: &str) -> Option<(Id, Arc<AtomicU32>)> {
        let of = &mut self.processes[process as usize];
        let free = of.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(of.slots.len());
        if slot >= MAX_THREADS {
            return None;
        }
        let id = self.schedule.start(name, of.host, process, slot);
        if slot == of.slots.len() {
            of.slots.push(None);
            if slot == 0 {
                of.main = id;
            }
        }
        of.slots[slot] = Some(id);
        let ended = Arc::new(AtomicU32::new(0));
        self.ends.resize(id, None);
        self.ends.push(Some(Arc::clone(&ended)));
        Some((id, ended))
    }

    /// A thread of the calling thread's process.
    pub(crate) fn spawn(&mut self, name: &str, body: Box<dyn FnOnce() + Send>) -> Option<Arc<AtomicU32>> {
        let (id, ended) = self.add_thread(clock::process(), name)?;
        trace::add(|| format!("starts thread {id} \"{name}\""));
        self.spawns.push(Spawn { id, body });
        Some(ended)
    }

    /// A thread's body has returned: if it is its process's first, the process exits.
    pub(crate) fn thread_returned(&mut self, id: Id) {
        let (process, slot) = self.schedule.place_of(id);
        trace::add(|| "ends".into());
        self.schedule.end(id);
        let of = &mut self.processes[process as usize];
        of.slots[slot] = None;
        let exits = of.main == id;
        self.tell_end(id);
        if exits {
            self.end_process(process, Exit::Returned);
        }
    }

    fn tell_end(&mut self, id: Id) {
        if let Some(ended) = self.ends[id].take() {
            ended.store(1, SeqCst);
            self.schedule.wake_word(ended.as_ptr() as usize, usize::MAX);
        }
    }

    /// Ends a process: whatever threads it has never go on. The first reason counts.
    pub(crate) fn end_process(&mut self, process: u32, exit: Exit) {
        let of = &mut self.processes[process as usize];
        let already = of.exit.is_some();
        of.exit.get_or_insert(exit);
        let (host, threads) = (of.host, std::mem::take(&mut of.slots));
        for id in threads.into_iter().flatten() {
            self.schedule.end(id);
            self.killed.push(id);
            self.ends[id] = None;
        }
        if already && self.processes[process as usize].ended.load(SeqCst) == 1 {
            return;
        }
        self.memory.process_ended(host, process);
        rt::bare(|| self.hosts[host].files.end_process(u64::from(process)));
        let ended = Arc::clone(&self.processes[process as usize].ended);
        ended.store(1, SeqCst);
        self.schedule.wake_word(ended.as_ptr() as usize, usize::MAX);
        for word in std::mem::take(&mut self.processes[process as usize].watched_by) {
            word.fetch_add(1, SeqCst);
            self.schedule.wake_word(word.as_ptr() as usize, usize::MAX);
        }
    }

    pub(crate) fn has_ended(&self, process: u32) -> bool {
        self.processes[process as usize].exit.is_some()
    }

    /// `word` moves on when a process ends.
    pub(crate) fn watch_end(&mut self, process: u32, word: &Arc<AtomicU32>) {
        let watching = &mut self.processes[process as usize].watched_by;
        watching.retain(|word| Arc::strong_count(word) > 1);
        watching.push(Arc::clone(word));
    }

    /// Ends a process in the middle of itself, unless it is the world's own.
    pub(crate) fn end_itself(&mut self, process: u32) {
        if process != self.schedule.main_process() {
            self.end_process(process, Exit::Killed);
        }
    }

    /// Kills all processes of a host; what its cache and its files had not brought to safety is lost, or in part. Files
    /// that another host has too are storage of their own, and lose nothing.
    pub(crate) fn lose_host(&mut self, host: usize) {
        self.kill_all(host);
        self.memory.host_lost(host);
        let (seed, files) = (self.faults.word(), self.hosts[host].files.clone());
        if self.hosts.iter().filter(|h| h.files.same(&files)).count() == 1 {
            rt::bare(|| files.crash(Some(seed)));
        }
    }

    pub(crate) fn kill_all(&mut self, host: usize) {
        for process in 0..self.processes.len() {
            let of = &self.processes[process];
            if of.host == host && of.exit.is_none() {
                self.end_process(process as u32, Exit::Killed);
            }
        }
    }

    /// Gives a host other files, and its running processes.
    pub(crate) fn set_files(&mut self, host: usize, files: &MemFs) {
        self.hosts[host].files = files.clone();
        for (id, process) in self.processes.iter_mut().enumerate().filter(|(_, p)| p.host == host) {
            process.files = Arc::new(files.of_process(id as u64));
        }
    }

    pub(crate) fn pause(&mut self, host: usize, time: Nanos) {
        self.schedule.pause(host, clock::now().0 + time.0);
    }

    pub(crate) fn pause_process(&mut self, process: u32, time: Nanos) {
        self.schedule.pause_process(process, clock::now().0 + time.0);
    }

    pub(crate) fn files(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.processes[clock::process() as usize].files)
    }

    /// By how much the calling thread's wall clock is fast, in microseconds.
    pub(crate) fn clock_ahead(&self) -> i64 {
        self.hosts[clock::host()].clock_ahead
    }

    /// Whether the calling thread has been killed, by itself or in the name of its host.
    pub(crate) fn is_killed(&self) -> bool {
        self.schedule.is_ended(fast(|f| f.thread.get()))
    }

    pub(crate) fn host_names(&self) -> Vec<String> {
        self.hosts.iter().map(|h| h.name.clone()).collect()
    }
}
