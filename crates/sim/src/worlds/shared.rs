//! What a world's controller, its engines and their sessions share. It outlives every process.

use cenote_engine::CancelFlag;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pages::model::Model as PageModel;
use super::plan::Plan;
use super::scene;
use super::sql::counters::Counters;
use crate::check::History;
use crate::check::durable::Rows;

/// Counts of what a world went through, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<String, u64>);

impl Tally {
    /// Counts `n` more of something.
    pub fn add(&mut self, what: &str, n: u64) {
        *self.0.entry(what.to_owned()).or_default() += n;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Tally) {
        other.0.iter().for_each(|(what, n)| self.add(what, *n));
    }

    /// How many of something.
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// What a copy of a database held.
#[derive(Debug, Clone)]
pub struct BackupCopy {
    /// The state of the database that it is of: everything below.
    pub lsn: u64,
    /// Its rows.
    pub rows: Rows,
}

/// What outlives the processes. Its locks are the machine's own: no preemption point is passed while one is held.
#[derive(Debug)]
pub struct Shared {
    /// What was drawn.
    pub plan: Plan,
    history: Mutex<History>,
    problems: Mutex<Vec<String>>,
    tally: Mutex<Tally>,
    steps: Mutex<Vec<(u64, String)>>,
    stopping: AtomicBool,
    leaving: AtomicBool,
    cancel: Mutex<Arc<CancelFlag>>,
    disk_is_bad: AtomicBool,
    log_may_fail: AtomicBool,
    ready: AtomicBool,
    saving: AtomicBool,
    ended: AtomicU64,
    stage: Mutex<&'static str>,
    copies: Mutex<Vec<BackupCopy>>,
    counters: Mutex<Counters>,
    pages: Mutex<PageModel>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Of a world that has not begun.
    pub fn new(plan: Plan) -> Shared {
        Shared {
            plan,
            history: Mutex::default(),
            problems: Mutex::default(),
            tally: Mutex::default(),
            steps: Mutex::default(),
            stopping: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            cancel: Mutex::default(),
            disk_is_bad: AtomicBool::new(false),
            log_may_fail: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            saving: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            stage: Mutex::default(),
            copies: Mutex::default(),
            counters: Mutex::default(),
            pages: Mutex::default(),
        }
    }

    /// What was noted.
    pub fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    /// What the world of SQL knows of versions.
    pub(super) fn counters(&self) -> MutexGuard<'_, Counters> {
        lock(&self.counters)
    }

    /// What the world of pages knows of each.
    pub(super) fn pages(&self) -> MutexGuard<'_, PageModel> {
        lock(&self.pages)
    }

    /// Notes that something is wrong.
    pub fn fail(&self, problem: String) {
        scene::keep();
        lock(&self.problems).push(problem);
    }

    /// What is wrong.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    /// Whether something is wrong.
    pub fn has_failed(&self) -> bool {
        !lock(&self.problems).is_empty()
    }

    /// Counts one of something.
    pub fn count(&self, what: &str) {
        lock(&self.tally).add(what, 1);
    }

    /// Counts several.
    pub fn add(&self, what: &str, n: u64) {
        lock(&self.tally).add(what, n);
    }

    /// Something befalls the engine: counted, and told among the last steps of a failure.
    pub fn befalls(&self, what: &str) {
        self.count(what);
        self.step(what.to_owned());
    }

    /// Notes a step of something other than a session.
    pub fn step(&self, what: String) {
        let at = self.history().event();
        lock(&self.steps).push((at, what));
    }

    /// The steps of others than sessions, with their places in the history.
    pub fn steps(&self) -> Vec<(u64, String)> {
        lock(&self.steps).clone()
    }

    /// What was counted.
    pub fn tally(&self) -> Tally {
        lock(&self.tally).clone()
    }

    /// A life begins: no thread is to stop, nothing is ready.
    pub fn begin_life(&self) {
        let flags = [
            &self.stopping,
            &self.leaving,
            &self.ready,
            &self.saving,
            &self.disk_is_bad,
            &self.log_may_fail,
        ];
        flags.iter().for_each(|flag| flag.store(false, Ordering::SeqCst));
        *lock(&self.cancel) = Arc::default();
        self.history().listen();
    }

    /// Asks sessions to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Asks sessions to leave their transactions to the next life.
    pub fn begin_to_leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.step("sessions may leave their transactions".into());
    }

    /// Whether sessions are to leave their transactions.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// What stops the statements of this life's sessions.
    pub fn cancel(&self) -> Arc<CancelFlag> {
        lock(&self.cancel).clone()
    }

    /// Whether sessions are to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) || self.has_failed()
    }

    /// From now on errors of the disk are no surprise; `log_may_fail`: nor is one that the log does not survive.
    pub fn spoil_disk(&self, log_may_fail: bool) {
        self.disk_is_bad.store(true, Ordering::SeqCst);
        self.log_may_fail.store(log_may_fail, Ordering::SeqCst);
    }

    /// Whether the log may fail, and with it a process that is in the middle of a mini-transaction.
    pub fn may_log_fail(&self) -> bool {
        self.log_may_fail.load(Ordering::SeqCst)
    }

    /// Whether errors of the disk are no surprise.
    pub fn is_disk_bad(&self) -> bool {
        self.disk_is_bad.load(Ordering::SeqCst)
    }

    /// The engine serves sessions.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::SeqCst);
    }

    /// Whether the engine serves sessions.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// A checkpoint begins or ends: the moment when an order of writes matters most.
    pub fn set_saving(&self, saving: bool) {
        self.saving.store(saving, Ordering::SeqCst);
    }

    /// Whether a checkpoint is under way.
    pub fn is_saving(&self) -> bool {
        self.saving.load(Ordering::SeqCst)
    }

    /// What the engine's first thread does.
    pub fn set_stage(&self, stage: &'static str) {
        *lock(&self.stage) = stage;
    }

    /// What the engine's first thread did last.
    pub fn stage(&self) -> &'static str {
        *lock(&self.stage)
    }

    /// A copy of the database was taken, with these rows.
    pub(super) fn backed_up(&self, copy: BackupCopy) {
        // All of it is durable, acknowledged or not.
        let acknowledged = self.history().acknowledged.max(copy.lsn);
        self.history().acknowledged = acknowledged;
        lock(&self.copies).push(copy);
    }

    /// The copies that were taken since this was asked last.
    pub(super) fn take_copies(&self) -> Vec<BackupCopy> {
        std::mem::take(&mut lock(&self.copies))
    }

    /// A transaction has ended.
    pub fn ended_one(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Transactions that have ended.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }
}
