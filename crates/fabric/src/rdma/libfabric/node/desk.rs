//! Where answers to calls wait for the node's thread: whoever answers puts them here, and wakes it if it sleeps.

use super::Shared;
use crate::rdma::call::status;
use crate::rdma::call::{Answered, Answering, CallerId, Source};
use crate::rdma::libfabric::calls::{FILL, FILLED, part};
use crate::rdma::libfabric::protocol::{PART, PartHead, Writer};
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
    /// Bytes of it that are sent.
    pub sent: usize,
    /// What is to be put into the caller's memory before, and how much of it was.
    pub source: Option<Box<dyn Source>>,
    pub filled: usize,
    /// Bytes of both.
    pub weight: usize,
}

/// What became of packing an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    /// There was no room.
    Nothing,
    /// A part, and there are more.
    Part,
    /// The last part.
    Last,
}

impl Outgoing {
    /// Packs its next part, if it fits: those for the caller's memory first.
    pub fn pack(&mut self, writer: &mut Writer<'_>) -> Packed {
        if let Some(source) = self.source.take() {
            return self.pack_source(source, writer);
        }
        let part = part(self.call, self.status, &self.bytes, self.sent);
        if part.size() > writer.room() {
            return Packed::Nothing;
        }
        writer.part(&part);
        self.sent += part.payload.len();
        match self.sent == self.bytes.len() {
            true => Packed::Last,
            false => Packed::Part,
        }
    }

    /// Straight out of the source. When all of it was read the answer may change for the last time, and says that there is something beside it.
    fn pack_source(&mut self, mut source: Box<dyn Source>, writer: &mut Writer<'_>) -> Packed {
        let (size, from) = (source.size(), self.filled);
        let head = PartHead {
            call: self.call,
            total: size as u32,
            from: from as u32,
            len: (size - from).min(PART) as u32,
            status: FILL,
        };
        let packed = head.size() <= writer.room();
        if packed {
            writer.part_from(&head, |into| source.read(from, into));
            self.filled += head.len as usize;
        }
        if self.filled == size {
            source.finish(&mut self.bytes);
            self.status |= FILLED;
        } else {
            self.source = Some(source);
        }
        if packed { Packed::Part } else { Packed::Nothing }
    }
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
    fn answered(&self, caller: CallerId, call: u64, answer: Result<Answered>) {
        let (answer, source) = match answer {
            Ok(answered) => (Ok(answered.bytes), answered.source),
            Err(error) => (Err(error), None),
        };
        let source = source.filter(|source| source.size() > 0);
        let (status, bytes) = status::encode(answer);
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        self.answers.lock().push_back(Outgoing {
            session: caller.0,
            call,
            status,
            sent: 0,
            filled: 0,
            weight: bytes.len() + source.as_ref().map_or(0, |source| source.size()),
            source,
            bytes,
        });
        if !self.attended.load(Ordering::SeqCst)
            && let Some(node) = self.node.upgrade()
        {
            node.rail.wake();
        }
    }
}
