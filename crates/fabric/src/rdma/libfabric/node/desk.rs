//! Where answers to calls wait for the node's thread: whoever answers puts them here, and wakes it if it sleeps.

use super::Shared;
use crate::rdma::call::status;
use crate::rdma::call::{Answering, CallerId};
use cenote_base::Result;
use cenote_base::rt::Mutex;
use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

/// An answer that is not wholly sent.
pub struct Outgoing {
    /// Whom it is for.
    pub session: u64,
    /// The call, as its caller knows it.
    pub call: u64,
    /// 0, or an error's number.
    pub status: u32,
    /// The answer, or the error's text.
    pub bytes: Vec<u8>,
    /// Bytes that are sent.
    pub sent: usize,
}

/// See the module.
pub struct Desk {
    answers: Mutex<VecDeque<Outgoing>>,
    /// The node's thread will look here before it sleeps.
    attended: AtomicBool,
    /// The node is closed: nobody will look any more.
    closed: AtomicBool,
    node: Weak<Shared>,
}

impl Desk {
    /// Of a node, which answers that are kept do not keep open.
    pub fn new(node: Weak<Shared>) -> Self {
        Self {
            answers: Mutex::default(),
            attended: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            node,
        }
    }

    /// Moves what is here to `into`.
    pub fn collect(&self, into: &mut VecDeque<Outgoing>) {
        into.append(&mut self.answers.lock());
    }

    /// The thread is about to sleep; says whether it may. Who answers from now on wakes it.
    pub fn leave(&self) -> bool {
        self.attended.store(false, Ordering::SeqCst);
        self.answers.lock().is_empty()
    }

    /// The thread is awake.
    pub fn come_back(&self) {
        self.attended.store(true, Ordering::SeqCst);
    }

    /// The node ends.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.answers.lock().clear();
    }
}

impl Answering for Desk {
    fn answered(&self, caller: CallerId, call: u64, answer: Result<Vec<u8>>) {
        let (status, bytes) = status::encode(answer);
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        self.answers.lock().push_back(Outgoing {
            session: caller.0,
            call,
            status,
            bytes,
            sent: 0,
        });
        if !self.attended.load(Ordering::SeqCst)
            && let Some(node) = self.node.upgrade()
        {
            node.rail.wake();
        }
    }
}
