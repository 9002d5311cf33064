//! A request, what is known of whether it was done, and what may be done when its answer is lost: see [`super::way`].

use super::modes::Line;
use super::wire;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::Call;

/// How often a request is sent at most, and one that is not repeated: again if it was not looked at.
const TRIES: u32 = 4;
const TRIES_OF_NEVER: u32 = 2;

/// What may be done with a request whose answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It is sent again: to do it twice does no harm.
    Freely,
    /// It is sent again, with its number.
    Numbered,
    /// It is not sent again.
    Never,
}

impl Repeat {
    /// What changes nothing may be done twice.
    pub fn of(may_repeat: bool) -> Self {
        match may_repeat {
            true => Repeat::Freely,
            false => Repeat::Numbered,
        }
    }

    fn tries(self) -> u32 {
        match self {
            Repeat::Never => TRIES_OF_NEVER,
            Repeat::Freely | Repeat::Numbered => TRIES,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Question {
    /// With its buffers, which are the same each time.
    call: Call,
    repeat: Repeat,
    /// Of the last try; 0 is none.
    number: u32,
    tries: u32,
    /// It may have been done, and this memory would know of it.
    doubt: Option<u64>,
}

/// Why there is no answer, or what was answered instead of one.
#[derive(Debug, Clone)]
pub struct NoAnswer {
    pub error: Error,
    /// Whether it was done is not known.
    pub may_be_done: bool,
}

impl NoAnswer {
    /// Nobody is there to answer, and nothing was done: another may be asked.
    pub fn is_of_nobody(&self) -> bool {
        !self.may_be_done && matches!(self.error, Error::Lost(_) | Error::Timeout(_))
    }
}

impl From<Error> for NoAnswer {
    /// Of what was not asked for, or was answered so.
    fn from(error: Error) -> Self {
        let may_be_done = false;
        Self { error, may_be_done }
    }
}

impl From<NoAnswer> for Error {
    fn from(no: NoAnswer) -> Self {
        no.error
    }
}

/// What a request came to.
pub type Answered<T> = core::result::Result<T, NoAnswer>;

/// What came of one try.
#[derive(Debug)]
pub enum Tried {
    /// The call, complete.
    Answered(Call),
    /// It was not looked at, or the answer is lost and it may be sent again.
    Again(Question),
    Failed(NoAnswer),
}

impl Question {
    pub fn new(call: Call, repeat: Repeat) -> Self {
        let (number, tries, doubt) = (0, 0, None);
        Self {
            call,
            repeat,
            number,
            tries,
            doubt,
        }
    }

    /// Of a user for whom it is forwarded, who has numbered it if it has to be done once. He sends it again himself.
    pub fn forwarded(mut request: Vec<u8>) -> Self {
        let is_numbered = wire::split(&request).is_ok_and(|(head, _)| head.number != 0);
        wire::set_number(&mut request, 0, false);
        let repeat = if is_numbered { Repeat::Numbered } else { Repeat::Never };
        Self::new(Call::new(request), repeat)
    }

    /// Bytes of the request.
    pub fn len(&self) -> usize {
        self.call.request.len()
    }

    /// What is to be posted, over a connection of this memory; of a `next` number if it is new there.
    ///
    /// # Errors
    /// [`Error::Lost`]: it may have been done, which nobody knows any more.
    pub fn call(&mut self, line: &Line, next: impl Fn() -> u32) -> Result<Call> {
        if self.doubt.is_some_and(|memory| memory != line.memory) {
            return Err(Error::Lost(
                "whether it was done is not known: its host has begun anew since".into(),
            ));
        }
        if self.repeat == Repeat::Numbered {
            if self.doubt.is_none() {
                self.number = next();
            }
            wire::set_number(&mut self.call.request, self.number, self.doubt.is_some());
        }
        self.tries += 1;
        self.call.result = Ok(());
        Ok(core::mem::replace(&mut self.call, Call::new(Vec::new())))
    }

    /// Whether it may be done yet, after it was given up.
    pub fn is_late(&self, call: &Call) -> bool {
        self.repeat != Repeat::Freely && matches!(call.result, Err(Error::Timeout(_)))
    }

    /// It is not sent (again), for this reason.
    pub fn unanswered(&self, error: Error) -> NoAnswer {
        let may_be_done = self.doubt.is_some();
        let error = match error {
            error @ (Error::Lost(_) | Error::Timeout(_)) => error,
            other if may_be_done => Error::Lost(other.to_string()),
            other => other,
        };
        NoAnswer { error, may_be_done }
    }

    /// What came of a try over a connection of this memory.
    pub fn judge(mut self, memory: u64, call: Call) -> Tried {
        let error = match call.result.clone() {
            Ok(()) => return Tried::Answered(call),
            Err(error) => error,
        };
        self.call = call;
        let is_looked_at = match error {
            Error::Revoked(_) => false,
            Error::Lost(_) if self.repeat != Repeat::Never => {
                self.doubt = (self.repeat == Repeat::Numbered).then_some(memory);
                true
            }
            error => {
                let is_open = matches!(error, Error::Lost(_) | Error::Timeout(_));
                let may_be_done = is_open && self.repeat != Repeat::Freely;
                return Tried::Failed(NoAnswer { error, may_be_done });
            }
        };
        if self.tries < self.repeat.tries() {
            return Tried::Again(self);
        }
        // Who is told again and again that he is not known has no way there. (Of what is not repeated it is an answer.)
        Tried::Failed(self.unanswered(match error {
            Error::Revoked(text) if !is_looked_at && self.repeat != Repeat::Never => Error::Lost(text),
            other => other,
        }))
    }
}

/// A call that nobody brought back.
pub fn lost_call() -> Call {
    Call {
        result: Err(Error::Lost("a caller lost a call".into())),
        ..Call::new(Vec::new())
    }
}
