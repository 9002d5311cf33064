//! Transactions that are to be taken back, and what keeps them from it.
//!
//! They come from three places: the last run, a rollback that failed, and a large rollback whose client does not wait
//! for it (`Tx::hand_over`). One thread takes them back, record by record. A transaction that wants one of their rows
//! does not wait for that: it takes this row back itself (`Tx::take_back_row`). Both hold the row's stripe meanwhile.
//!
//! Lock order: a row's stripe → page latches. `open`, `waiting` and `stuck` by themselves.

use crate::error::{Error, Result};
use crate::left::state::Left;
use crate::memory::Charge;
use crate::tx::locks::{hash, row_name};
use crate::tx::slots::Lease;
use crate::undo::{Segment, UndoPointer};
use cenote_base::TxId;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Rollbacks that clients have left to the background at a time. Each keeps an undo segment and the low-water mark:
/// beyond these the next client waits for its own.
const HANDED_OVER_MAX: usize = 16;
/// Rows of losers that are taken back at a time, at most: a row's stripe is one of these.
const STRIPES: usize = 256;

/// Whence a loser comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It ran when the last process ended.
    LastRun,
    /// Its rollback failed.
    GivenUp,
    /// Its client does not wait for its rollback.
    HandedOver,
    /// It was left to this server, and its session has not come.
    Left,
}

/// A transaction that has ended otherwise than by commit, and is still to be taken back.
pub(crate) struct Loser {
    pub seq: TxId,
    pub segment: Arc<Segment>,
    /// Its newest record that is not known to be taken back.
    pub last: UndoPointer,
    /// Behind its last.
    pub end: u64,
    /// What it holds until it is over; of one of the last run, besides its rows, the tables that it was defining.
    pub locks: Locks,
    /// The slot that stands for it.
    pub lease: Option<Arc<Lease>>,
    pub origin: Origin,
    /// What its session needs to go on with it, if the last server has left it.
    pub left: Option<Box<Left>>,
}

/// Locks that a transaction keeps until it is over.
#[derive(Default)]
pub(crate) struct Locks {
    pub tables: Vec<u64>,
    pub rows: Vec<Vec<u8>>,
    /// The memory that they take.
    pub _memory: Option<Charge>,
}

impl Loser {
    /// A transaction of this run: `place` is its newest record that stands, and where its records end.
    pub(crate) fn of_this_run(
        (seq, origin): (TxId, Origin),
        lease: Arc<Lease>,
        segment: Arc<Segment>,
        place: (UndoPointer, u64),
        locks: Locks,
    ) -> Loser {
        assert!(origin != Origin::LastRun, "it has a slot of this run");
        Loser {
            seq,
            segment,
            last: place.0,
            end: place.1,
            locks,
            lease: Some(lease),
            origin,
            left: None,
        }
    }

    /// Whether it ran when the last process ended.
    pub(crate) fn is_of_last_run(&self) -> bool {
        self.origin == Origin::LastRun
    }
}

/// The losers, and what keeps them from being taken back.
///
/// Invariants: a loser waits, or is in the hands of the round that took it (`take_all`, `put_back`). It is counted, and
/// open, from when it comes until it is over. The error of a failed attempt is kept only of a loser that is counted, and
/// `any_stuck` says whether one is kept. No more than `HANDED_OVER_MAX` are handed over and not over.
pub(crate) struct Losers {
    /// Wakes the thread.
    signal: Arc<rt::Event>,
    /// Those of the last run are gone.
    done: rt::Event,
    waiting: rt::Mutex<Vec<Loser>>,
    /// Not over yet, those that are being worked on included.
    count: AtomicUsize,
    /// Their numbers.
    open: rt::Mutex<BTreeSet<TxId>>,
    /// Those of them that were handed over, or are about to be.
    handed_over: AtomicUsize,
    /// Whether a thread takes them back.
    has_thread: AtomicBool,
    stripes: Vec<rt::Mutex<()>>,
    /// By number: why the last attempt failed.
    stuck: rt::Mutex<BTreeMap<TxId, Stuck>>,
    any_stuck: AtomicBool,
}

struct Stuck {
    error: Error,
    of_last_run: bool,
}

impl Default for Losers {
    fn default() -> Losers {
        Losers {
            signal: Arc::default(),
            done: rt::Event::default(),
            waiting: rt::Mutex::default(),
            count: AtomicUsize::new(0),
            open: rt::Mutex::default(),
            handed_over: AtomicUsize::new(0),
            has_thread: AtomicBool::new(false),
            stripes: (0..STRIPES).map(|_| rt::Mutex::new(())).collect(),
            stuck: rt::Mutex::default(),
            any_stuck: AtomicBool::new(false),
        }
    }
}

impl Losers {
    /// Those of the last run; `has_thread`: one takes losers back.
    pub(crate) fn of_last_run(&self, losers: Vec<Loser>, has_thread: bool) {
        if losers.is_empty() {
            self.done.set();
        }
        self.has_thread.store(has_thread, Ordering::Release);
        self.count(&losers);
        self.queue(losers);
    }

    /// Takes over a transaction whose rollback failed with `error`.
    pub(crate) fn give_up(&self, loser: Loser, error: &Error) {
        self.count(std::slice::from_ref(&loser));
        self.note_stuck(&loser, error.clone());
        self.queue([loser]);
    }

    /// Whether one more rollback may be left to the background: then `hand_over` has to follow. A short one does not
    /// stand behind another, which may be long: it shares its tables until it is over.
    pub(crate) fn admit(&self, is_short: bool) -> bool {
        if is_short && self.count.load(Ordering::Acquire) > 0 {
            return false;
        }
        let below_the_limit = |count: usize| (count < HANDED_OVER_MAX).then_some(count + 1);
        self.has_thread.load(Ordering::Acquire)
            && self
                .handed_over
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, below_the_limit)
                .is_ok()
    }

    /// Takes over a transaction whose client does not wait for its rollback, and that was admitted.
    pub(crate) fn hand_over(&self, loser: Loser) {
        assert!(loser.origin == Origin::HandedOver, "it was admitted");
        self.count(std::slice::from_ref(&loser));
        self.queue([loser]);
    }

    /// Takes over a transaction that the last server left, and whose session has not come.
    pub(crate) fn take_in(&self, mut loser: Loser) {
        assert!(loser.origin == Origin::LastRun, "it was found by this start");
        loser.origin = Origin::Left;
        self.count(std::slice::from_ref(&loser));
        self.queue([loser]);
    }

    fn count(&self, losers: &[Loser]) {
        self.count.fetch_add(losers.len(), Ordering::AcqRel);
        self.open.lock().extend(losers.iter().map(|loser| loser.seq));
    }

    fn queue(&self, losers: impl IntoIterator<Item = Loser>) {
        self.waiting.lock().extend(losers);
        self.signal.set();
    }

    /// Whether transaction `seq` is one of them: its rows are taken back, not waited for.
    pub(crate) fn is_open(&self, seq: TxId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.open.lock().contains(&seq)
    }

    /// The stripe of a row: held while one of its versions is taken back.
    pub(crate) fn stripe(&self, space: u32, key: &[u8]) -> &rt::Mutex<()> {
        &self.stripes[hash(&row_name(space, key)) % STRIPES]
    }

    /// The event that wakes the thread that takes them back.
    pub(crate) fn signal(&self) -> Arc<rt::Event> {
        self.signal.clone()
    }

    /// Wakes the thread that takes them back.
    pub(crate) fn wake(&self) {
        self.signal.set();
    }

    /// Those that wait, for a round.
    pub(crate) fn take_all(&self) -> Vec<Loser> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Those that a round has left. Says whether any waits.
    pub(crate) fn put_back(&self, left: Vec<Loser>) -> bool {
        if !left.iter().any(Loser::is_of_last_run) {
            self.done.set();
        }
        let mut waiting = self.waiting.lock();
        waiting.extend(left);
        assert!(
            waiting.len() <= self.count.as_raw().load(Ordering::Acquire),
            "a loser that waits is counted"
        );
        !waiting.is_empty()
    }

    /// Returns true once those of the last run are rolled back, or false after a short while.
    pub(crate) fn wait_a_little(&self) -> bool {
        self.done.wait_timeout(rt::Nanos::from_millis(20))
    }

    /// How many are left, and an error that keeps one from being taken back.
    pub(crate) fn waiting(&self) -> (usize, Option<String>) {
        let stuck = self.stuck.lock();
        assert!(
            stuck.len() <= self.count.as_raw().load(Ordering::Acquire),
            "a loser that is stuck is counted"
        );
        let text = stuck.iter().next().map(|(seq, stuck)| describe(*seq, &stuck.error));
        (self.count.load(Ordering::Acquire), text)
    }

    /// An error if transaction `seq` cannot be rolled back at present: no transaction should wait for it.
    pub(crate) fn check(&self, seq: TxId) -> Result<()> {
        if !self.any_stuck.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.stuck.lock().get(&seq) {
            Some(stuck) => Err(refusal(seq, &stuck.error)),
            None => Ok(()),
        }
    }

    /// An error if one of the last run cannot be rolled back at present.
    pub(crate) fn check_last_run(&self) -> Result<()> {
        self.check_each(|stuck| stuck.of_last_run)
    }

    /// An error if any cannot be rolled back at present.
    pub(crate) fn check_all(&self) -> Result<()> {
        self.check_each(|_| true)
    }

    fn check_each(&self, of: impl Fn(&Stuck) -> bool) -> Result<()> {
        match self.stuck.lock().iter().find(|(_, stuck)| of(stuck)) {
            Some((seq, stuck)) => Err(refusal(*seq, &stuck.error)),
            None => Ok(()),
        }
    }

    /// Says it when a loser's rollback fails first, not at each attempt.
    pub(crate) fn note_stuck(&self, loser: &Loser, error: Error) {
        let of_last_run = loser.is_of_last_run();
        let text = describe(loser.seq, &error);
        let before = self.stuck.lock().insert(loser.seq, Stuck { error, of_last_run });
        self.any_stuck.store(true, Ordering::Relaxed);
        if before.is_none() {
            eprintln!("cenote: {text}");
        }
    }

    pub(crate) fn note_over(&self, loser: &Loser) {
        let mut stuck = self.stuck.lock();
        if stuck.remove(&loser.seq).is_some() {
            eprintln!("cenote: transaction {} has been rolled back after all", loser.seq.raw());
        }
        self.any_stuck.store(!stuck.is_empty(), Ordering::Relaxed);
        drop(stuck);
        assert!(self.open.lock().remove(&loser.seq), "a loser is over once");
        if loser.origin == Origin::HandedOver {
            let count = self.handed_over.fetch_sub(1, Ordering::AcqRel);
            assert!(count > 0, "one that is handed over was admitted");
        }
        let count = self.count.fetch_sub(1, Ordering::AcqRel);
        assert!(count > 0, "each loser is counted until it is over");
    }
}

fn describe(seq: TxId, error: &Error) -> String {
    let seq = seq.raw();
    format!(
        "transaction {seq} could not be rolled back ({error}); its rows stay locked, and it is tried again until it succeeds"
    )
}

/// For a transaction that would wait: an error of the same kind.
fn refusal(seq: TxId, error: &Error) -> Error {
    let text = describe(seq, error);
    match error {
        Error::DiskFull(_) => Error::DiskFull(text),
        Error::OutOfMemory(_) => Error::OutOfMemory(text),
        Error::Poisoned(_) => Error::Poisoned(text),
        Error::Corrupt(_) => Error::Corrupt(text),
        _ => Error::Io(text),
    }
}
