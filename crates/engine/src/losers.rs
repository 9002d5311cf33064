//! Transactions that are to be taken back, and what keeps them from it.

use crate::error::{Error, Result};
use crate::memory::Charge;
use crate::tx::slots::Lease;
use crate::undo::{Segment, UndoPointer};
use cenote_base::TxId;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A transaction that has ended otherwise than by commit, and is still to be taken back: it ran when the last process
/// ended, or its rollback failed.
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
    pub of_last_run: bool,
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
    /// A transaction of this run whose rollback failed: `place` is its newest record that stands, and where its records
    /// end.
    pub(crate) fn given_up(
        seq: TxId,
        lease: Arc<Lease>,
        segment: Arc<Segment>,
        place: (UndoPointer, u64),
        locks: Locks,
    ) -> Loser {
        Loser {
            seq,
            segment,
            last: place.0,
            end: place.1,
            locks,
            lease: Some(lease),
            of_last_run: false,
        }
    }
}

/// The losers, and what keeps them from being taken back.
///
/// Invariants: a loser waits, or is in the hands of the round that took it (`take_all`, `put_back`). It is counted from
/// when it comes until it is over. The error of a failed attempt is kept only of a loser that is counted, and
/// `any_stuck` says whether one is kept.
#[derive(Default)]
pub(crate) struct Losers {
    /// Wakes the thread.
    signal: Arc<rt::Event>,
    /// Those of the last run are gone.
    done: rt::Event,
    waiting: rt::Mutex<Vec<Loser>>,
    /// Not over yet, those that are being worked on included.
    count: AtomicUsize,
    /// By number: why the last attempt failed.
    stuck: rt::Mutex<BTreeMap<TxId, Stuck>>,
    any_stuck: AtomicBool,
}

struct Stuck {
    error: Error,
    of_last_run: bool,
}

impl Losers {
    /// Those of the last run.
    pub(crate) fn of_last_run(&self, losers: Vec<Loser>) {
        if losers.is_empty() {
            self.done.set();
        }
        self.count.fetch_add(losers.len(), Ordering::AcqRel);
        self.waiting.lock().extend(losers);
        self.signal.set();
    }

    /// Takes over a transaction whose rollback failed with `error`.
    pub(crate) fn give_up(&self, loser: Loser, error: &Error) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.note_stuck(&loser, error.clone());
        self.waiting.lock().push(loser);
        self.signal.set();
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
        if !left.iter().any(|loser| loser.of_last_run) {
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
        let of_last_run = loser.of_last_run;
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
