//! Calls: a user asks a memory node's program to do something, and gets its answer. Beside the one-sided verbs, over
//! the same endpoints.
//!
//! The user's side is a [`Caller`]: calls ([`Call`]) are posted in batches with one doorbell, any number of them from
//! any number of threads, and come back complete ([`Called`]). The node's side is whatever it was told to [`Serve`]: it
//! is given each request with a handle for the [`Answer`], and answers at once or, from any thread, later.
//!
//! ```text
//!   user                                                 node
//!   post(calls) ─ one doorbell ─► request, request ─────► Serve::serve(caller, request, Answer)
//!      │                                                    │ at once          │ kept: a lock, a move
//!   wait ◄─ calls again ◄──────── answer ◄───────────────── send()   ···later··· send(), from any thread
//! ```
//!
//! # Duties of an implementation of a caller
//! - A call is carried out at most once: exactly once if it is answered; otherwise whether it was is unknown.
//! - Every call ends within its time ([`Call::within`], else the caller's timeout): with the answer, with an error of
//!   the program that serves, or with one of these: [`Error::Timeout`]: no answer in time; [`Error::Lost`]: the node is
//!   gone, or the path to it, or it has given the connection up; the caller is broken for good, and a new one is needed
//!   ([`Callers::caller`]).
//! - No order is promised, neither among calls of a batch nor between a call and a one-sided work. A user that was
//!   answered may rely on what the answer says.
//! - Requests longer than [`LIMIT`] are [`Error::Invalid`], and not sent. Dropping a [`Called`] takes nothing back.
//! - A call may lend memory ([`Call::into_memory`]): what the program puts there ([`Answer::send_from`]) is there when
//!   the call is complete without an error, and nothing beyond it is changed. After an error it holds anything. Once
//!   the call is complete nothing is written to it any more, whatever the node does later.
//! - Where the node's card can write to a caller's memory by itself, the caller has buffers for that
//!   ([`Caller::lend`]). Such a buffer comes back with its call, except after [`Error::Timeout`] and [`Error::Lost`]: a
//!   write may be on its way to it still, so it is not used before it is known that none is, and other memory of its
//!   size comes back in its place.
//!
//! # Duties of a node
//! - Each connection has a number of its own ([`CallerId`]), drawn by the node. After a loss the new connection has
//!   another.
//! - [`Serve::ended`] is told once for each caller that has called, when its connection is over: it said so, or was
//!   silent for long. After that nothing of that caller is served.
//!
//! # Duties of a program that serves
//! - [`Serve::serve`] does not block, nor panic: the node's only thread runs it. What has to wait keeps the [`Answer`].
//! - Several threads may be in it at once; what it is given is as untrusted as anything from a network.
//! - An answer for a caller that is gone is dropped silently.

use super::Endpoint;
use cenote_base::{Error, Result, rt};
use core::fmt;
use std::sync::Arc;

mod memory;
mod set;
mod source;
pub mod status;

pub use memory::{Memory, Registered};
pub use set::Set;
pub use source::{Answered, Source};

/// Bytes of the longest request, of the longest answer, and of the most memory that a call lends.
pub const LIMIT: usize = 128 << 10;

/// How long a call may take, unless it says otherwise.
pub const TIMEOUT: rt::Nanos = rt::Nanos::from_secs(5);

/// A connection, as the node knows it. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u64);

/// A call: what is asked, and then what was answered.
#[derive(Debug)]
pub struct Call {
    /// What is asked. It comes back with the call.
    pub request: Vec<u8>,
    /// The answer, once complete. Bytes that were here before are gone; their room is used.
    pub answer: Vec<u8>,
    /// Memory that it lends to the program. It comes back with the call, or other memory of its size.
    pub memory: Memory,
    /// How long it may take; `None`: the caller's timeout.
    pub timeout: Option<rt::Nanos>,
    /// The user's mark, to know it again.
    pub tag: u64,
    /// How it went, once complete.
    pub result: Result<()>,
}

impl Call {
    /// Asks `request`.
    pub fn new(request: impl Into<Vec<u8>>) -> Self {
        Self {
            request: request.into(),
            answer: Vec::new(),
            memory: Memory::default(),
            timeout: None,
            tag: 0,
            result: Ok(()),
        }
    }

    /// That may take so long: for what waits at the node.
    pub fn within(self, timeout: rt::Nanos) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// With the user's mark.
    pub fn tagged(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// With room for the answer.
    pub fn into_room(self, answer: Vec<u8>) -> Self {
        Self { answer, ..self }
    }

    /// With memory that the program may fill, from its beginning on.
    pub fn into_memory(self, memory: impl Into<Memory>) -> Self {
        let memory = memory.into();
        Self { memory, ..self }
    }

    /// What can be known to be wrong before it is posted.
    ///
    /// # Errors
    /// [`Error::Invalid`]: request or memory longer than [`LIMIT`].
    pub fn check(&self) -> Result<()> {
        check_len("a request", self.request.len())?;
        check_len("memory to be lent", self.memory.len())
    }

    /// The answer, or why there is none.
    ///
    /// # Errors
    /// That of the call: its node's, [`Error::Timeout`] or [`Error::Lost`].
    pub fn into_answer(self) -> Result<Vec<u8>> {
        self.result.map(|()| self.answer)
    }
}

fn check_len(what: &str, len: usize) -> Result<()> {
    if len <= LIMIT {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{what} of {len} bytes; a call takes {LIMIT} at most"
    )))
}

/// Calls under way, as an implementation sees them.
pub trait CallsInFlight: Send {
    /// Whether all are complete. Never blocks.
    fn poll(&mut self) -> bool;
    /// Blocks through `rt` until all are complete; the calls, in the order of posting.
    fn wait(self: Box<Self>) -> Vec<Call>;
}

/// Calls under way. Dropping it does not stop them.
#[must_use = "answers come back with wait"]
pub struct Called(Box<dyn CallsInFlight>);

impl Called {
    /// Around what a caller has started.
    pub fn new(calls: Box<dyn CallsInFlight>) -> Self {
        Self(calls)
    }

    /// Around calls that are complete.
    pub fn done(calls: Vec<Call>) -> Self {
        Self(Box::new(Done(calls)))
    }

    /// Whether all are complete. Never blocks.
    pub fn poll(&mut self) -> bool {
        self.0.poll()
    }

    /// Returns when all are complete: the calls, in the order of posting.
    pub fn wait(self) -> Vec<Call> {
        self.0.wait()
    }
}

impl fmt::Debug for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Called")
    }
}

struct Done(Vec<Call>);

impl CallsInFlight for Done {
    fn poll(&mut self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Vec<Call> {
        self.0
    }
}

/// A way to the program of a memory node, for any number of threads. See the module for both sides' duties.
pub trait Caller: fmt::Debug + Send + Sync {
    /// The node's name, for messages.
    fn peer(&self) -> &str;

    /// What the node calls this connection.
    fn id(&self) -> CallerId;

    /// Starts calls with one doorbell. Blocks only while too many are under way. What cannot be started comes back
    /// complete, with its error.
    fn post(&self, calls: Vec<Call>) -> Called;

    /// So many bytes that the node of this connection can write to by itself, for a call over it to lend; they hold
    /// anything. None if it cannot, or there is nothing to spare now.
    fn lend(&self, len: usize) -> Option<Memory> {
        let _ = len;
        None
    }

    /// The same connection for works on memory that its node has registered, where it carries those.
    fn endpoint(&self) -> Option<Arc<dyn Endpoint>> {
        None
    }

    /// Whether it is known that all further calls are lost. An implementation that does not look says no.
    fn is_over(&self) -> bool {
        false
    }

    /// Asks, and waits: the answer is in `into`, in place of what was there.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a request beyond [`LIMIT`], [`Error::Timeout`], [`Error::Lost`], and the error that the
    /// program at the node answers with.
    fn call(&self, request: &[u8], into: &mut Vec<u8>) -> Result<()> {
        let call = Call::new(request).into_room(core::mem::take(into));
        let call = self.post(vec![call]).wait().pop();
        let call = call.ok_or_else(|| Error::Invalid("a caller lost a call".into()))?;
        *into = call.answer;
        call.result
    }
}

/// Finds the programs of memory nodes by the nodes' names.
pub trait Callers: fmt::Debug + Send + Sync {
    /// A new connection to the node called `peer`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is none of that name, [`Error::Lost`] when it cannot be reached.
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>>;
}

/// The program of a memory node, as its thread calls it. See the module for its duties.
pub trait Serve: Send + Sync {
    /// A call has come. Does not block.
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer);

    /// The connection is over: nothing more comes from that caller. Does not block.
    fn ended(&self, caller: CallerId) {
        let _ = caller;
    }
}

impl<F: Fn(CallerId, &[u8], Answer) + Send + Sync> Serve for F {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        self(caller, request, answer);
    }
}

/// Where answers go, as an implementation provides it.
pub trait Answering: Send + Sync {
    /// The answer to the call that its caller knows by `call`. Does not block. Called once a call. A source is no
    /// larger than the call's memory.
    fn answered(&self, caller: CallerId, call: u64, answer: Result<Answered>);
}

/// The right, and the duty, to answer a call. Dropped, it answers that there is no answer.
pub struct Answer {
    caller: CallerId,
    call: u64,
    bytes: Vec<u8>,
    room: usize,
    to: Option<Arc<dyn Answering>>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({:#x}, call {})", self.caller.0, self.call)
    }
}

impl Answer {
    /// To a call that its caller knows by `call`.
    pub fn new(caller: CallerId, call: u64, to: Arc<dyn Answering>) -> Self {
        let (bytes, to) = (Vec::new(), Some(to));
        Self {
            caller,
            call,
            bytes,
            room: 0,
            to,
        }
    }

    /// To a call that lends so much memory.
    pub fn with_room(mut self, room: usize) -> Self {
        self.room = room.min(LIMIT);
        self
    }

    /// With a buffer for its bytes: what is in it is gone, its room is used.
    pub fn into_buffer(mut self, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        self.bytes = buffer;
        self
    }

    /// Bytes of memory that the call lends.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The caller.
    pub fn caller(&self) -> CallerId {
        self.caller
    }

    /// What will be sent: the program writes it.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Answers with what is in [`Answer::bytes`]. More than [`LIMIT`] becomes an error of the call.
    pub fn send(mut self) {
        let bytes = core::mem::take(&mut self.bytes);
        let checked = check_len("an answer", bytes.len());
        self.end(checked.map(|()| bytes.into()));
    }

    /// Puts what the source has into the call's memory, and then answers with what is in [`Answer::bytes`]. More than
    /// [`Answer::room`], or than [`LIMIT`], becomes an error of the call.
    pub fn send_from(mut self, source: Box<dyn Source>) {
        let bytes = core::mem::take(&mut self.bytes);
        let fits = source::check_room(&*source, self.room);
        let checked = fits.and_then(|()| check_len("an answer", bytes.len()));
        let source = Some(source);
        self.end(checked.map(|()| Answered { bytes, source }));
    }

    /// Answers with these bytes.
    pub fn with(mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.send();
    }

    /// Answers with an error. [`Error::Lost`] comes as [`Error::Timeout`]: it is not this node that is lost.
    pub fn fail(mut self, error: Error) {
        self.end(Err(match error {
            Error::Lost(text) => Error::Timeout(text),
            other => other,
        }));
    }

    fn end(&mut self, answer: Result<Answered>) {
        if let Some(to) = self.to.take() {
            to.answered(self.caller, self.call, answer);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.end(Err(Error::Invalid("the call was not answered".into())));
    }
}
