//! Requests that a memory node forwards for members of its machine, over its own way. To the host they are the node's,
//! with numbers of its own, so that what is late is refused there. Nothing is sent twice: a member that did not hear
//! what became of a change finds another memory when it says hello again.

use super::channel::{Channel, RequestsInFlight};
use super::modes::lost_call;
use super::question::{NoAnswer, Question, Tried};
use super::{modes::Line, wire};
use cenote_base::{Error, Result, rt};
use std::sync::Arc;

/// A connection that a user's request can be forwarded over, at once.
pub struct RelayLine {
    channel: Arc<Channel>,
    line: Arc<Line>,
}

impl RelayLine {
    /// Waits for the connection, if there is none: for seconds, if the node is not there.
    ///
    /// # Errors
    /// [`Error::Lost`] or [`Error::Timeout`]: the node is not there.
    pub fn to(channel: &Arc<Channel>) -> Result<Self> {
        let (line, channel) = (channel.line()?, Arc::clone(channel));
        Ok(Self { channel, line })
    }

    /// Posts it, and waits for nothing.
    ///
    /// # Errors
    /// What the user is told.
    pub fn post(self, forwarded: Forwarded) -> Result<Relayed> {
        let Self { channel, line } = self;
        match channel.begin_over(line, vec![forwarded.0]) {
            Ok(under_way) => Ok(Relayed { channel, under_way }),
            Err(no) => Err(told(no)),
        }
    }
}

/// A user's request that is to be forwarded for him.
pub struct Forwarded(Question);

impl Forwarded {
    /// As it came.
    pub fn new(request: Vec<u8>) -> Self {
        Self(Question::forwarded(request))
    }

    /// Number of bytes of the request.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// What the user is told if it is not posted.
    pub fn unanswered(&self, error: Error) -> Error {
        told(self.0.unanswered(error))
    }
}

/// What was certainly not done was not looked at, to the user.
fn told(no: NoAnswer) -> Error {
    match no.is_of_nobody() {
        true => wire::unheard(&no.error.to_string()),
        false => no.error,
    }
}

/// A user's request that is forwarded for him.
pub struct Relayed {
    channel: Arc<Channel>,
    under_way: RequestsInFlight,
}

impl Relayed {
    /// Whether it is answered. Never blocks.
    pub fn poll(&mut self) -> bool {
        self.under_way.poll()
    }

    /// The answer, or what the user is told instead, and whether it may be done yet: until there is another connection.
    /// Waits for it.
    pub fn end(self) -> (Result<Vec<u8>>, bool) {
        let Self { channel, under_way } = self;
        let (mut tried, is_late) = channel.end_once(under_way);
        let told_of = |no: NoAnswer| (no.may_be_done || is_late, Err(told(no)));
        let (is_open, answered) = match tried.pop() {
            Some(Tried::Answered(call)) => (false, Ok(call.answer)),
            Some(Tried::Failed(no)) => told_of(no),
            Some(Tried::Again(question, error)) => told_of(question.unanswered(error)),
            None => (true, Err(lost_call())),
        };
        (answered, is_open)
    }
}

/// Whether a message says who asks, and asks for nothing.
pub fn is_hello(request: &[u8]) -> bool {
    request.first() == Some(&wire::HELLO)
}

/// What a user who says hello is answered.
pub fn relayed_hello() -> Vec<u8> {
    rt::random().to_le_bytes().into()
}

/// Whether users ask for that, and not hosts of each other.
pub fn is_users_request(request: &[u8]) -> bool {
    let kinds = [wire::ACCESSES, wire::SEQUENCE, wire::ALLOC, wire::ROOT];
    request.first().is_some_and(|kind| kinds.contains(kind))
}
