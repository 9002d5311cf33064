//! Transactions that a server has left to the next one: in a planned switch their sessions go on there.
//!
//! ```text
//!  session ── leave_to_next ──▶ undo segment: its records │ what a transaction has beside them (kind 5, in pieces)
//!                                                                  │ durable, then the server ends
//!  next start: its number runs, its locks and its snapshot are held ◀── the last record is whole, and not undone
//!      ├── Tx::take_up(token): the record is marked undone; the session goes on
//!      └── no session comes for `Tuning::left_wait`: the record is marked undone; a loser like others
//! ```
//!
//! Invariants:
//! - A transaction that is left is as its session left it, whole: the record says so only while it is the newest one
//!   and not undone. It is marked before anything of the transaction is taken back or added.
//! - Until then others wait for it, as for any transaction that runs, and take no row of it back.
//! - It is taken up once: the token is forgotten under the lock.
//! - What its snapshot sees is kept: the server that leaves holds it until it ends, the next one from before its purge.
//! - The low-water mark that it is left with is good for the next start: all below it are committed at or below its
//!   snapshot, or over, and pages of statuses from it on are there. Purge gives none back while one is left.
//!
//! Lock order: `waiting`, `behind` by themselves.

pub(crate) mod state;

use crate::losers::Loser;
use crate::tx::slots::{Hold, Lease};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicUsize, Ordering, fence};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One that waits for its session.
struct Waiting {
    loser: Loser,
    until: rt::Nanos,
}

/// One that this server leaves: nothing of it is given free while the engine lives.
pub(crate) struct Behind {
    pub _lease: Arc<Lease>,
    pub _hold: Option<Hold>,
}

/// See the module.
pub(crate) struct LeftTransactions {
    /// How long one waits for its session.
    wait: rt::Nanos,
    waiting: rt::Mutex<BTreeMap<u128, Waiting>>,
    behind: rt::Mutex<Vec<Behind>>,
    /// Those that are left, or about to be.
    leaving: AtomicUsize,
}

impl LeftTransactions {
    /// None yet; `wait`: how long one will wait for its session.
    pub(crate) fn new(wait: rt::Nanos) -> LeftTransactions {
        LeftTransactions {
            wait,
            waiting: rt::Mutex::default(),
            behind: rt::Mutex::default(),
            leaving: AtomicUsize::new(0),
        }
    }

    /// One is about to be left: the low-water mark that is read behind this stays good for the next start.
    pub(crate) fn begin_leaving(&self) {
        self.leaving.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// It is not.
    pub(crate) fn stop_leaving(&self) {
        let leaving = self.leaving.fetch_sub(1, Ordering::SeqCst);
        assert!(leaving > 0, "one that is not left was about to be");
    }

    /// Whether the next start may ask for the statuses of numbers that are past by now: behind raising the low-water
    /// mark, before their pages are given back.
    pub(crate) fn any_leaves(&self) -> bool {
        fence(Ordering::SeqCst);
        self.leaving.load(Ordering::SeqCst) > 0
    }

    /// One that the last server left, and that is held. Gives it back if it was not left.
    pub(crate) fn wait_for_session(&self, loser: Loser) -> Option<Loser> {
        self.wait_until(loser, rt::now() + self.wait)
    }

    fn wait_until(&self, loser: Loser, until: rt::Nanos) -> Option<Loser> {
        let Some(left) = &loser.left else { return Some(loser) };
        let (token, waiting) = (left.state.token, Waiting { loser, until });
        self.waiting.lock().insert(token, waiting).map(|former| former.loser)
    }

    /// One that this server leaves.
    pub(crate) fn keep(&self, behind: Behind) {
        self.behind.lock().push(behind);
    }

    /// How many wait for their sessions.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// The one with this token, if `is_its` says so of what its session gave.
    pub(crate) fn take(&self, token: u128, is_its: &dyn Fn(&[u8]) -> bool) -> Option<Loser> {
        let mut waiting = self.waiting.lock();
        let left = waiting.get(&token)?.loser.left.as_ref()?;
        is_its(&left.state.session)
            .then(|| waiting.remove(&token))?
            .map(|waiting| waiting.loser)
    }

    /// Back among those that wait: what had to be written could not be.
    pub(crate) fn put_back(&self, loser: Loser) {
        let lost = self.wait_until(loser, rt::now());
        assert!(lost.is_none(), "it was among them, by its token");
    }

    /// Those whose time is up.
    pub(crate) fn take_late(&self, now: rt::Nanos) -> Vec<Loser> {
        let mut waiting = self.waiting.lock();
        let late: Vec<u128> = waiting
            .iter()
            .filter(|(_, waiting)| waiting.until <= now)
            .map(|(token, _)| *token)
            .collect();
        let taken = late.iter().filter_map(|token| waiting.remove(token));
        taken.map(|waiting| waiting.loser).collect()
    }
}
