//! Where answers to calls wait for the node's thread: a thread that answers puts them here, and wakes it if it sleeps.

use crate::calls::{FILL, FILLED, part};
use crate::fabric_endpoint::SLOT;
use crate::protocol::{PART, PartHead, Window, Writer};
use cenote_base::Result;
use cenote_base::rt::Mutex;
use cenote_fabric::rdma::call::status;
use cenote_fabric::rdma::call::{Answered, Answering, CallerId, Source};
use std::collections::VecDeque;
use std::sync::Arc;
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
    /// Where it is written to by itself; none: it goes into parts beside the answer.
    pub window: Option<Window>,
    /// Such writes that are under way.
    pub writes: usize,
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

/// Bytes that are to be written to a caller's memory.
pub struct Stretch {
    /// Where.
    pub window: Window,
    /// How many.
    pub len: usize,
    /// These are the last.
    pub is_last: bool,
}

impl Outgoing {
    /// Whether the next of it is to be written.
    pub fn is_written(&self) -> bool {
        self.source.is_some() && self.window.is_some()
    }

    /// The next of its source, in a slot. When all of it was read the answer may change for the last time.
    pub fn read_stretch(&mut self, slot: &mut [u8]) -> Option<Stretch> {
        let (mut source, window) = (self.source.take()?, self.window?);
        let (size, from) = (source.size(), self.filled);
        let len = (size - from).min(SLOT);
        source.read(from, &mut slot[..len]);
        self.filled += len;
        let is_last = self.filled == size;
        match is_last {
            true => source.finish(&mut self.bytes),
            false => self.source = Some(source),
        }
        let window = Window {
            address: window.address.wrapping_add(from as u64),
            ..window
        };
        Some(Stretch { window, len, is_last })
    }

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

    /// Straight out of the source. When all of it was read the answer may change for the last time, and says that there
    /// is something beside it.
    fn pack_source(&mut self, mut source: Box<dyn Source>, writer: &mut Writer<'_>) -> Packed {
        let (size, from) = (source.size(), self.filled);
        let head = PartHead {
            call: self.call,
            total: size as u32,
            from: from as u32,
            len: (size - from).min(PART) as u32,
            status: FILL,
            window: None,
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
pub struct ReplyQueue {
    answers: Mutex<VecDeque<Outgoing>>,
    /// The node's thread will look here before it sleeps.
    attended: AtomicBool,
    /// The node is closed: its thread does not look here any more.
    closed: AtomicBool,
    /// Wakes the node's thread. It does not keep the node open.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl ReplyQueue {
    /// Of a node whose thread `wake` wakes.
    pub fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            answers: Mutex::default(),
            attended: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            wake,
        }
    }

    /// Moves what is here to `into`.
    pub fn collect(&self, into: &mut VecDeque<Outgoing>) {
        into.append(&mut self.answers.lock());
    }

    /// The thread is about to sleep; says whether it may. A thread that answers from now on wakes it.
    pub fn leave(&self) -> bool {
        self.attended.store(false, Ordering::SeqCst);
        self.answers.lock().is_empty()
    }

    /// The thread does not sleep any more.
    pub fn come_back(&self) {
        self.attended.store(true, Ordering::SeqCst);
    }

    /// The node ends.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.answers.lock().clear();
    }
}

/// The way to the reply queue of an answer whose call has memory that can be written to.
pub struct Through(pub Arc<ReplyQueue>, pub Window);

impl Answering for Through {
    fn answered(&self, caller: CallerId, call: u64, answer: Result<Answered>) {
        self.0.put(caller, call, answer, Some(self.1));
    }
}

impl Answering for ReplyQueue {
    fn answered(&self, caller: CallerId, call: u64, answer: Result<Answered>) {
        self.put(caller, call, answer, None);
    }
}

impl ReplyQueue {
    fn put(&self, caller: CallerId, call: u64, answer: Result<Answered>, window: Option<Window>) {
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
            window,
            writes: 0,
            weight: bytes.len() + source.as_ref().map_or(0, |source| source.size()),
            source,
            bytes,
        });
        if !self.attended.load(Ordering::SeqCst) {
            (self.wake)();
        }
    }
}
