//! What a reader's threads and the engine share.

use crate::catalog::state::Definition;
use cenote_base::TxId;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, HashMap};
use cenote_storage::follower::Follower;
use std::sync::Arc;

/// What a reader has beside what every engine has.
pub(crate) struct Follow {
    pub(crate) follower: Arc<Follower>,
    /// The position that the published definitions are of, or come to be of this moment.
    pub(super) defined: AtomicU64,
    /// The definitions that are published: their keys, hashes of their rows, and what takes them back.
    pub(super) known: rt::Mutex<HashMap<Vec<u8>, (u64, Definition)>>,
    /// Transactions that had changed definitions when those were read last, and had not committed. A commit changes no
    /// page of the catalog.
    pub(super) pending: rt::Mutex<Vec<TxId>>,
    pub(super) secret: [u64; 2],
    /// What was acknowledged before this time, by the runtime's clock, is visible.
    pub(super) current: AtomicU64,
    /// How long after the question it was.
    pub(super) behind: AtomicU64,
    /// See [`Follow::keep_oldest`].
    pub(super) keeps_oldest: AtomicBool,
}

impl Follow {
    pub(crate) fn new(follower: &Arc<Follower>) -> Follow {
        Follow {
            follower: follower.clone(),
            defined: AtomicU64::new(0),
            known: rt::Mutex::default(),
            pending: rt::Mutex::default(),
            secret: [rt::random(), rt::random()],
            current: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            keeps_oldest: AtomicBool::new(false),
        }
    }

    /// The server hears of no younger oldest snapshot any more: others go on with what this reader had.
    pub(crate) fn keep_oldest(&self) {
        self.keeps_oldest.store(true, Ordering::SeqCst);
    }
}
