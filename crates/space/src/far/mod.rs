//! A part that this process does not map: its node is asked, by calls.
//!
//! What is asked is checked there as it is here, by the same code ([`super::act`]), next to the memory. So there is no
//! second table of where things are that could be out of date, and an access is one trip. Several are one message. The
//! bytes of large reads may come by themselves: [`modes`].

mod channel;
mod doubts;
mod fetcher;
mod lend;
pub(super) mod modes;
mod pass;
mod question;
pub(super) mod wire;

use super::GlobalAddress;
use super::act::{Act, Outcome};
use super::keeper::{Lifetime, SessionId};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::Call;
use core::ops::Range;
use std::sync::Arc;
use wire::DirectFrom;

pub(super) use channel::RequestsInFlight;
pub use channel::{Channel, Resolver};
pub(super) use fetcher::{FETCHES_TOLD, Fetch, Fetcher, FetchesInFlight, LooksInFlight};
use modes::lost_call;
pub use pass::{Admission, Pass};
pub(super) use question::{Answered, NoAnswer, Question, Repeat};

/// Accesses of one part that were asked for. Dropping it does not stop them.
pub(super) struct ActsInFlight {
    /// Those of each message.
    groups: Vec<Range<usize>>,
    direct: DirectFrom,
    begun: Result<RequestsInFlight>,
}

impl ActsInFlight {
    /// Whether nothing was asked, as the node cannot be reached.
    pub(super) fn has_failed(&self) -> bool {
        self.begun.is_err()
    }
}

/// A part on another pod, or another machine.
#[derive(Debug, Clone)]
pub struct FarPart {
    /// Its number in the space.
    pub number: u8,
    /// Its pod.
    pub pod: String,
    /// The way to its node.
    pub channel: Arc<Channel>,
}

impl FarPart {
    /// Does it there, or hears that it has to be done elsewhere.
    ///
    /// # Errors
    /// Those of [`Space::read`](super::Space::read), and of calls.
    pub(super) fn act(&self, address: GlobalAddress, act: &mut Act<'_>) -> Answered<Outcome> {
        let mut acts = [(address, act.reborrow())];
        let direct = self.channel.direct_from(&acts);
        let call = self.channel.ask(self.question(wire::ACCESSES, &acts, direct))?;
        let outcome = self.channel.outcomes(call, &mut acts, direct)?.pop();
        Ok(outcome.unwrap_or_else(|| Err(lost_call()))?)
    }

    /// Does them one after the other, as many as one message takes: the outcomes, up to the first that is not done, or
    /// none if it is the first and failed.
    pub(super) fn act_in_order(&self, acts: &mut [(GlobalAddress, Act<'_>)]) -> Answered<Vec<Outcome>> {
        let (count, question) = self.sequence(acts);
        let call = self.channel.ask(question)?;
        Ok(self.outcomes_in_order(call, &mut acts[..count])?)
    }

    /// The same, but for the waiting: [`FarPart::end_in_order`] does.
    pub(super) fn begin_in_order(&self, acts: &[(GlobalAddress, Act<'_>)]) -> Result<(usize, RequestsInFlight)> {
        let (count, question) = self.sequence(acts);
        self.channel.begin(vec![question]).map(|under_way| (count, under_way))
    }

    /// The outcomes of what was begun.
    pub(super) fn end_in_order(
        &self,
        under_way: RequestsInFlight,
        acts: &mut [(GlobalAddress, Act<'_>)],
    ) -> Answered<Vec<Outcome>> {
        let call = self.channel.end(under_way).pop().ok_or_else(lost_call)??;
        Ok(self.outcomes_in_order(call, acts)?)
    }

    /// A message with as many of them as it takes, from the first on, and how many those are.
    fn sequence(&self, acts: &[(GlobalAddress, Act<'_>)]) -> (usize, Question) {
        let groups = wire::groups(acts, DirectFrom::NEVER);
        let count = groups.first().map_or(0, |group| group.end);
        let question = self.question(wire::SEQUENCE, &acts[..count], DirectFrom::NEVER);
        (count, question)
    }

    fn question(&self, kind: u8, acts: &[(GlobalAddress, Act<'_>)], direct: DirectFrom) -> Question {
        let may_repeat = acts.iter().all(|(_, act)| act.may_repeat());
        Question::new(self.channel.call_of(kind, acts, direct), Repeat::of(may_repeat))
    }

    fn outcomes_in_order(&self, call: Call, acts: &mut [(GlobalAddress, Act<'_>)]) -> Result<Vec<Outcome>> {
        let outcomes = outcomes_in_order(&call.answer, acts);
        self.channel.give_back(call);
        outcomes
    }

    /// Whether there is a connection: if not, the first access makes one, which takes seconds if the node is away.
    pub(super) fn is_connected(&self) -> bool {
        self.channel.known().is_some()
    }

    /// What fetches a read of so many bytes, if that is how it is done over the connection that there is.
    pub(super) fn fetcher(&self, len: u64) -> Option<Arc<Fetcher>> {
        self.channel.fetcher(len)
    }

    /// Asks for all of them, in as few messages as they fit in, with one doorbell, and waits for nothing:
    /// [`FarPart::end_many`] does.
    pub(super) fn begin_many(&self, acts: &[(GlobalAddress, Act<'_>)]) -> ActsInFlight {
        let direct = self.channel.direct_from(acts);
        let groups = wire::groups(acts, direct);
        let question = |range: &Range<usize>| self.question(wire::ACCESSES, &acts[range.clone()], direct);
        let begun = self.channel.begin(groups.iter().map(question).collect());
        ActsInFlight { groups, direct, begun }
    }

    /// What came of the accesses that were begun: an outcome each.
    pub(super) fn end_many(
        &self,
        in_flight: ActsInFlight,
        acts: &mut [(GlobalAddress, Act<'_>)],
    ) -> Vec<Answered<Outcome>> {
        let ActsInFlight { groups, direct, begun } = in_flight;
        let answers = match begun {
            Ok(under_way) => self.channel.end(under_way),
            Err(error) => groups.iter().map(|_| Err(error.clone().into())).collect(),
        };
        let mut outcomes = Vec::with_capacity(acts.len());
        for (range, answer) in groups.into_iter().zip(answers) {
            outcomes.extend(self.outcomes_of(answer, &mut acts[range], direct));
        }
        assert_eq!(outcomes.len(), acts.len(), "each access has an outcome");
        outcomes
    }

    /// What became of each of the accesses of one message.
    fn outcomes_of(
        &self,
        answer: Answered<Call>,
        acts: &mut [(GlobalAddress, Act<'_>)],
        direct: DirectFrom,
    ) -> Vec<Answered<Outcome>> {
        match answer.and_then(|call| Ok(self.channel.outcomes(call, acts, direct)?)) {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| Ok(outcome?)).collect(),
            Err(no) => acts.iter().map(|_| Err(no.clone())).collect(),
        }
    }

    /// The address that what lies in the space is found by, after setting it if that is wanted.
    pub(super) fn root(&self, set: Option<GlobalAddress>) -> Result<GlobalAddress> {
        let question = Question::new(Call::new(wire::root(set)), Repeat::of(set.is_none()));
        wire::read_address(&self.channel.ask(question)?.answer)
    }

    /// Sets the root if there is none; the root since.
    pub(super) fn claim_root(&self, root: GlobalAddress) -> Result<GlobalAddress> {
        let question = Question::new(Call::new(wire::claim_root(root)), Repeat::Numbered);
        wire::read_address(&self.channel.ask(question)?.answer)
    }

    /// A new object there.
    pub(super) fn alloc(&self, session: SessionId, len: u64, lifetime: Lifetime) -> Result<GlobalAddress> {
        let question = Question::new(Call::new(wire::alloc(session, len, lifetime)), Repeat::Never);
        let answer = self.channel.ask(question)?.answer;
        let raw = answer
            .first_chunk()
            .ok_or_else(|| Error::corrupt("an answer to alloc"))?;
        Ok(GlobalAddress::from_raw(u64::from_le_bytes(*raw)))
    }
}

fn outcomes_in_order(answer: &[u8], acts: &mut [(GlobalAddress, Act<'_>)]) -> Result<Vec<Outcome>> {
    let (count, mut answers) = wire::Answers::of_sequence(answer, acts.len())?;
    acts[..count].iter_mut().map(|(_, act)| answers.next(act)).collect()
}
