//! Callers of a node of this process: its program runs where they post.

use super::Node;
use crate::rdma::call::{
    Answer, Answered, Answering, Call, Called, Caller, CallerId, CallsInFlight, LIMIT, Memory, Serve, Set, TIMEOUT,
};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Between two looks whether the node is lost, while an answer is waited for.
const LOOK: Nanos = Nanos::from_millis(1);

/// See the module.
pub struct Direct {
    peer: String,
    node: Node,
    id: CallerId,
    /// Whom to tell the end.
    program: Option<Arc<dyn Serve>>,
    called: AtomicBool,
    broken: AtomicBool,
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "caller {:#x} of {}", self.id.0, self.peer)
    }
}

impl Direct {
    /// A connection of its own.
    ///
    /// # Errors
    /// [`Error::Lost`] if the node is lost.
    pub fn connect(node: &Node) -> Result<Arc<dyn Caller>> {
        if node.memory().is_lost() {
            return Err(node.memory().gone());
        }
        Ok(Arc::new(Self {
            peer: node.name(),
            node: node.clone(),
            id: CallerId(rt::random() >> 1 | 1),
            program: node.program(),
            called: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }))
    }

    /// Why nothing can be asked: no node, or no program.
    fn closed(&self) -> Option<Error> {
        if self.broken.load(Ordering::Relaxed) || self.node.memory().is_lost() {
            self.broken.store(true, Ordering::Relaxed);
            return Some(self.node.memory().gone());
        }
        let silent = || Error::Invalid(format!("memory node {} serves no calls", self.peer));
        self.program.is_none().then(silent)
    }

    fn ask(&self, set: &Arc<Set>, index: usize) {
        if let Some(error) = set.with(index, |call| call.check().err()).or_else(|| self.closed()) {
            set.complete(index, Err(error));
            return;
        }
        let (request, room) = set.with(index, |call| (core::mem::take(&mut call.request), call.memory.len()));
        self.called.store(true, Ordering::Relaxed);
        let answer = Answer::new(self.id, index as u64, Arc::new(Place(Arc::clone(set)))).with_room(room);
        if let Some(program) = &self.program {
            program.serve(self.id, &request, answer);
        }
        set.with(index, |call| call.request = request);
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        if let Some(program) = self.program.as_ref().filter(|_| *self.called.get_mut()) {
            program.ended(self.id);
        }
    }
}

/// A batch that answers come back to.
struct Place(Arc<Set>);

impl Answering for Place {
    fn answered(&self, _: CallerId, call: u64, answer: Result<Answered>) {
        self.0.answer_filling(call as usize, answer.map(Answered::settle));
    }
}

impl Caller for Direct {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn id(&self) -> CallerId {
        self.id
    }

    fn post(&self, calls: Vec<Call>) -> Called {
        let (set, since) = (Arc::new(Set::new(calls)), rt::now());
        (0..set.len()).for_each(|index| self.ask(&set, index));
        let node = self.node.clone();
        Called::new(Box::new(Waiting { node, set, since }))
    }

    /// All of this process is within reach.
    fn lend(&self, len: usize) -> Option<Memory> {
        (len <= LIMIT).then(|| vec![0; len].into())
    }
}

/// Calls some of which may be kept by the program.
struct Waiting {
    node: Node,
    set: Arc<Set>,
    since: Nanos,
}

impl Waiting {
    /// Ends what is late, or all if the node is lost.
    fn judge(&self) {
        let lost = {
            let memory = self.node.memory();
            memory.is_lost().then(|| memory.gone())
        };
        let waited = rt::now().since(self.since);
        self.set.give_up(|call| {
            let late = waited > call.timeout.unwrap_or(TIMEOUT);
            let late = late.then(|| Error::Timeout(format!("memory node {}: no answer in time", self.node.name())));
            lost.clone().or(late)
        });
    }
}

impl CallsInFlight for Waiting {
    fn poll(&mut self) -> bool {
        if !self.set.is_done() {
            self.judge();
        }
        self.set.is_done()
    }

    fn wait(self: Box<Self>) -> Vec<Call> {
        self.set.slept.store(true, Ordering::SeqCst);
        while !self.set.is_done() {
            self.set.event.wait_timeout(LOOK);
            self.judge();
        }
        self.set.take()
    }
}
