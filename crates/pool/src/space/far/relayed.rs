//! Requests that a memory node forwards for members of its machine, over its own way. To the host they are the node's: it numbers them anew, and sends them again. Between member and node nothing
//! is sent twice: a member that did not hear what became of a change finds another memory when it says hello again.

use super::question::{NoAnswer, Question, Tried, lost_call};
use super::way::{UnderWay, Way};
use super::{modes::Line, wire};
use cenote_base::{Error, Result, rt};
use std::sync::Arc;

/// A connection that a user's request can be forwarded over, at once.
pub(crate) struct RelayLine {
    way: Arc<Way>,
    line: Arc<Line>,
}

impl RelayLine {
    /// Waits for the connection, if there is none: for seconds, if the node is not there.
    pub(crate) fn to(way: &Arc<Way>) -> Result<Self> {
        let (line, way) = (way.line()?, Arc::clone(way));
        Ok(Self { way, line })
    }

    /// Posts it, and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Lost`]: it may have been done, which nobody knows any more.
    pub(crate) fn post(self, forwarded: Forwarded) -> Result<Relayed> {
        let Self { way, line } = self;
        let under_way = way.begin_over(line, vec![forwarded.0])?;
        Ok(Relayed { way, under_way })
    }
}

/// A user's request that is to be forwarded for him.
pub(crate) struct Forwarded(Question);

impl Forwarded {
    /// As it came.
    pub(crate) fn new(request: Vec<u8>) -> Self {
        Self(Question::forwarded(request))
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// What the user is told if it is not posted (again).
    pub(crate) fn unanswered(&self, error: Error) -> Error {
        told(self.0.unanswered(error))
    }
}

/// What was not done is [`Error::Revoked`] to the user: not looked at, so that he knows it.
fn told(no: NoAnswer) -> Error {
    match no.is_of_nobody() {
        true => Error::Revoked(no.error.to_string()),
        false => no.error,
    }
}

/// A user's request that is forwarded for him.
pub(crate) struct Relayed {
    way: Arc<Way>,
    under_way: UnderWay,
}

impl Relayed {
    /// Whether it is answered. Never blocks.
    pub(crate) fn poll(&mut self) -> bool {
        self.under_way.poll()
    }

    /// What came of it. Waits for that.
    pub(crate) fn end(self) -> Ended {
        let Self { way, under_way } = self;
        match way.end_once(under_way).pop() {
            Some(Tried::Answered(call)) => Ended::Answered(Ok(call.answer)),
            Some(Tried::Failed(no)) => Ended::Answered(Err(told(no))),
            Some(Tried::Again(question)) => Ended::Again(Forwarded(question)),
            None => Ended::Answered(lost_call().into_answer()),
        }
    }
}

/// What came of posting it.
pub(crate) enum Ended {
    Answered(Result<Vec<u8>>),
    /// It is to be posted again.
    Again(Forwarded),
}

/// Whether a message says who asks, and asks for nothing.
pub(crate) fn is_hello(request: &[u8]) -> bool {
    request.first() == Some(&wire::HELLO)
}

/// What a user who says hello is answered.
pub(crate) fn relayed_hello() -> Vec<u8> {
    rt::random().to_le_bytes().into()
}

/// Whether users ask for that, and not hosts of each other.
pub(crate) fn is_users_request(request: &[u8]) -> bool {
    let kinds = [wire::ACCESSES, wire::SEQUENCE, wire::ALLOC, wire::ROOT];
    request.first().is_some_and(|kind| kinds.contains(kind))
}
