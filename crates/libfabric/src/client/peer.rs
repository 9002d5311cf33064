//! A memory node as one connection knows it, and errors that name it.

use crate::address::NodeAddress;
use crate::options::Path;
use crate::shim::Target;
use cenote_base::Error;
use cenote_base::rt::{self, HashMap, Mutex, Nanos};
use cenote_fabric::rdma::Work;
use core::sync::atomic::{AtomicU64, Ordering};

/// A memory node, as it was found by one connection.
pub struct Peer {
    pub(super) address: NodeAddress,
    pub(super) name: String,
    pub(super) target: u64,
    pub(super) state: Mutex<PeerState>,
    /// When it was last heard of, and asked for a sign of life.
    pub(super) heard: AtomicU64,
    pinged: AtomicU64,
    /// Since when questions fail; 0: the last did not.
    failing: AtomicU64,
}

#[derive(Default)]
pub(super) struct PeerState {
    pub(super) session: u64,
    pub(super) path: Option<Path>,
    /// The node writes to memory that calls lend.
    pub(super) writes: bool,
    pub(super) broken: Option<Error>,
    /// What the provider calls registrations: by key, with their length.
    pub(super) keys: HashMap<u64, (Target, u64)>,
}

impl Peer {
    /// The node at `address`, which the endpoint's address table has under `target`; it has not answered yet.
    pub(super) fn new(address: &NodeAddress, target: u64) -> Self {
        Self {
            target,
            name: address.to_string(),
            address: address.clone(),
            state: Mutex::default(),
            heard: AtomicU64::new(rt::now().0),
            pinged: AtomicU64::new(0),
            failing: AtomicU64::new(0),
        }
    }

    pub(super) fn broken(&self) -> Option<Error> {
        self.state.lock().broken.clone()
    }

    pub(super) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.broken.is_some() || state.path.is_some()
    }

    pub(super) fn session(&self) -> u64 {
        self.state.lock().session
    }

    pub(super) fn path(&self) -> Path {
        self.state.lock().path.unwrap_or(Path::Served)
    }

    pub(super) fn to(&self) -> Target {
        Target {
            peer: self.target,
            ..Target::default()
        }
    }

    pub(super) fn lost(&self, why: &str) -> Error {
        Error::Lost(format!("memory node {} is lost: {why}", self.name))
    }
    pub(super) fn hear(&self) {
        self.heard.store(rt::now().0, Ordering::Relaxed);
        self.failing.store(0, Ordering::Relaxed);
    }

    /// For how long questions have failed, as of this failure.
    pub(super) fn has_failed_for(&self, now: Nanos) -> Nanos {
        match self.failing.load(Ordering::Relaxed) {
            0 => {
                self.failing.store(now.0, Ordering::Relaxed);
                Nanos::ZERO
            }
            since => now.since(Nanos(since)),
        }
    }

    /// Whether it was long enough since it was last asked; then it is.
    pub(super) fn may_ping(&self, now: Nanos, pause: Nanos) -> bool {
        let last = Nanos(self.pinged.load(Ordering::Relaxed)).max(Nanos(self.heard.load(Ordering::Relaxed)));
        let due = now.since(last) > pause && self.session() != 0;
        if due {
            self.pinged.store(now.0, Ordering::Relaxed);
        }
        due
    }
}

pub(super) fn revoked(peer: &Peer, key: u64) -> Error {
    Error::Revoked(format!("memory node {}: no memory under key {key:#x}", peer.name))
}

pub(super) fn garbled(peer: &Peer) -> Error {
    Error::Corrupt(format!("memory node {}: an answer that makes no sense", peer.name))
}

pub(super) fn out_of_bounds(peer: &Peer, work: &Work, len: u64) -> Error {
    let (bytes, at) = (work.op.bytes(), work.at);
    Error::OutOfBounds(format!(
        "memory node {}: {bytes} bytes at {at} of memory that has {len}",
        peer.name
    ))
}
