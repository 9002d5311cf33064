//! A request, what is known of whether it was done, and what may be done when its answer is lost: see
//! [`super::channel`].

use super::modes::{Line, lost_call};
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
    /// The node was not reached, and nothing was done: the caller may ask another one.
    pub fn was_not_reached(&self) -> bool {
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
    /// It was not looked at, or the answer is lost and it may be sent again: [`Question::again`].
    Again(Question, Error),
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

    /// What is to be posted, over a connection of this memory; of a `next` number if it is new there.
    ///
    /// # Errors
    /// [`Error::Lost`]: it may have been done, and that cannot be found out any more.
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
            assert_ne!(self.number, 0, "0 is the number of requests that may be done twice");
            wire::set_number(&mut self.call.request, self.number, self.doubt.is_some());
        }
        assert!(
            self.tries < self.repeat.tries(),
            "a request is sent {} times",
            self.tries
        );
        self.tries += 1;
        self.call.result = Ok(());
        Ok(core::mem::replace(&mut self.call, Call::new(Vec::new())))
    }

    /// Whether it changes something, and so is done once.
    pub fn is_numbered(&self) -> bool {
        self.repeat == Repeat::Numbered
    }

    /// Whether it may be done yet, after it was given up, but not after another connection is made.
    pub fn is_late(&self, call: &Call) -> bool {
        self.repeat == Repeat::Numbered && matches!(call.result, Err(Error::Timeout(_)))
    }

    /// Whether it may be done yet, by a host that heard it over a connection that may be over.
    pub fn is_in_doubt(&self, call: &Call) -> bool {
        self.repeat == Repeat::Numbered && matches!(call.result, Err(Error::Timeout(_) | Error::Lost(_)))
    }

    /// It is not sent (again), for this reason.
    pub fn unanswered(&self, error: Error) -> NoAnswer {
        let may_be_done = self.doubt.is_some();
        let error = match error {
            error @ (Error::Lost(_) | Error::Timeout(_) | Error::Revoked(_)) => error,
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
        assert!(
            self.doubt.is_none() || self.repeat == Repeat::Numbered,
            "only a request with a number is sent again when it may have been done"
        );
        match error {
            error if wire::is_unheard(&error) => Tried::Again(self, Error::Lost(error.to_string())),
            Error::Lost(_) if self.repeat == Repeat::Freely => Tried::Again(self, error),
            Error::Lost(_) if self.repeat == Repeat::Numbered => {
                self.doubt = Some(memory);
                Tried::Again(self, error)
            }
            Error::Lost(_) | Error::Timeout(_) => {
                let may_be_done = self.repeat != Repeat::Freely;
                Tried::Failed(NoAnswer { error, may_be_done })
            }
            // Of an earlier try it says nothing: it may be the fabric's.
            error => Tried::Failed(self.unanswered(error)),
        }
    }

    /// Its call was not brought back.
    pub fn vanished(self) -> Tried {
        let may_be_done = self.repeat != Repeat::Freely;
        let error = lost_call();
        Tried::Failed(NoAnswer { error, may_be_done })
    }

    /// To be sent again, if it was not sent too often for that; `error` is why the last try was in vain.
    pub fn again(self, error: Error) -> Answered<Self> {
        match self.tries < self.repeat.tries() {
            true => Ok(self),
            false => Err(self.unanswered(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::modes::FarReads;
    use super::*;
    use cenote_fabric::rdma::call::{Called, Caller, CallerId};
    use std::sync::Arc;

    #[derive(Debug)]
    struct NoPeer;

    impl Caller for NoPeer {
        fn peer(&self) -> &str {
            "no peer"
        }

        fn id(&self) -> CallerId {
            CallerId(1)
        }

        fn post(&self, calls: Vec<Call>) -> Called {
            Called::done(calls)
        }
    }

    fn line(memory: u64) -> Line {
        Line::new(Arc::new(NoPeer), memory, FarReads::Plain)
    }

    fn request() -> Vec<u8> {
        wire::root(None)
    }

    fn head(call: &Call) -> (u32, bool) {
        let (head, _) = wire::split(&call.request).expect("a request");
        (head.number, head.is_again)
    }

    /// Sends it, and this comes of it.
    fn tried(mut question: Question, memory: u64, number: u32, error: Error) -> (Tried, (u32, bool)) {
        let mut call = question.call(&line(memory), || number).expect("it may be sent");
        let head = head(&call);
        call.result = Err(error);
        (question.judge(memory, call), head)
    }

    fn again(tried: Tried) -> Question {
        match tried {
            Tried::Again(question, error) => question.again(error).expect("not too often"),
            other => panic!("{other:?}"),
        }
    }

    fn lost() -> Error {
        Error::Lost("gone".into())
    }

    #[test]
    fn a_number_stays_when_it_may_have_been_done_and_only_then() {
        let question = Question::new(Call::new(request()), Repeat::Numbered);
        let (unheard, head) = tried(question, 7, 1, wire::unheard("unknown"));
        assert_eq!(head, (1, false));
        let (in_doubt, head) = tried(again(unheard), 8, 2, lost());
        assert_eq!(head, (2, false), "it was not looked at");
        let mut question = again(in_doubt);
        assert!(
            matches!(question.call(&line(9), || 3), Err(Error::Lost(_))),
            "another memory"
        );
        let (in_doubt, head) = tried(question, 8, 3, wire::unheard("unknown"));
        assert_eq!(head, (2, true));
        assert!(matches!(
            again(in_doubt).unanswered(lost()),
            NoAnswer { may_be_done: true, .. }
        ));
    }

    /// The first answer was lost, and the second try refused by the fabric as busy: that was told as an error after
    /// which nothing is done.
    #[test]
    fn an_error_of_a_later_try_does_not_say_that_it_was_not_done() {
        for error in [Error::Busy("too much".into()), Error::Corrupt("what?".into())] {
            let question = Question::new(Call::new(request()), Repeat::Numbered);
            let (refused, _) = tried(question, 7, 1, error.clone());
            assert!(
                matches!(refused, Tried::Failed(NoAnswer { may_be_done: false, .. })),
                "{refused:?}"
            );
            let question = Question::new(Call::new(request()), Repeat::Numbered);
            let (in_doubt, _) = tried(question, 7, 1, lost());
            let (refused, _) = tried(again(in_doubt), 7, 2, error);
            let is_open = matches!(
                &refused,
                Tried::Failed(NoAnswer {
                    error: Error::Lost(_),
                    may_be_done: true
                })
            );
            assert!(is_open, "{refused:?}");
        }
    }

    #[test]
    fn what_is_not_heard_again_and_again_was_not_done() {
        for repeat in [Repeat::Freely, Repeat::Numbered, Repeat::Never] {
            let mut question = Question::new(Call::new(request()), repeat);
            let no = loop {
                let (unheard, _) = tried(question, 7, 1, wire::unheard("unknown"));
                let Tried::Again(same, error) = unheard else {
                    panic!("{unheard:?}")
                };
                match same.again(error) {
                    Ok(again) => question = again,
                    Err(no) => break no,
                }
            };
            assert!(no.was_not_reached(), "{repeat:?}: {no:?}");
        }
    }
}
