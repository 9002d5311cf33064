//! Accesses to memory of several parts that this process does not map: all parts are asked at once.
//!
//! ```text
//!   accesses ─► by part ─► post to part 1, part 2, part 3 … ─► collect from part 1, part 2, part 3 … ─► the rest, again
//!                 ▲                                                                                        │
//!                 └──────── frozen, moved, not reached where it was (its home is asked) ◄──────────────────┘
//! ```
//!
//! A round takes as long as the slowest of its parts, however many there are. No thread waits for a call: a call is
//! under way from when it is posted until it is collected, and its time runs from the beginning.
//!
//! Invariants:
//! 1. everything that a round has posted is collected before the round ends, also if something in it failed: so nothing
//!    is done after an error is returned that the rules of requests ([`super::far`]) do not allow;
//! 2. an access is in one message at a time, and is asked again only if its outcome says that it was not done;
//! 3. a round has [`ACCESSES_AT_ONCE`] accesses and [`BYTES_AT_ONCE`] at most.

use super::act::{Act, Outcome, Step};
use super::far::wire::TRANSFER_MAX;
use super::far::{ActsInFlight, Answered, NoAnswer};
use super::route::{Near, Turns, still_away};
use super::{GlobalAddress, Space};
use cenote_base::Result;
use std::collections::BTreeMap;

/// Accesses of a round, at most.
const ACCESSES_AT_ONCE: usize = 4096;
/// Bytes that they read and write, at most, but for the last one.
const BYTES_AT_ONCE: u64 = 16 << 20;

const _: () = assert!(ACCESSES_AT_ONCE > 0 && BYTES_AT_ONCE >= TRANSFER_MAX as u64);

/// An access that is not done yet.
struct Pending<'a> {
    step: Step<'a>,
    /// The part to be asked.
    part: u8,
    /// The part where its extent was last, and why that was not reached: its home is asked now.
    unreached: Option<(u8, NoAnswer)>,
}

/// Accesses that one part is asked for.
#[derive(Default)]
struct Asked<'a> {
    steps: Vec<Step<'a>>,
    unreached: Vec<Option<(u8, NoAnswer)>>,
}

/// A part, what it was asked, and how that goes.
type Begun<'a> = (u8, Option<ActsInFlight>, Asked<'a>);

impl<'a> Asked<'a> {
    fn push(&mut self, Pending { step, unreached, .. }: Pending<'a>) {
        self.steps.push(step);
        self.unreached.push(unreached);
    }

    /// Whether some of it can be asked of no other part.
    fn is_at_home(&self, part: u8) -> bool {
        self.steps.iter().any(|(address, _)| address.part() == part)
    }
}

impl Space {
    /// Does all of them, reads and writes of parts that this process does not map.
    ///
    /// # Errors
    /// As [`Space::read`], of one that failed: any of the others may be done.
    pub(super) fn act_far(&self, mut acts: Vec<Step<'_>>) -> Result<()> {
        let mut pending = Vec::with_capacity(acts.len());
        for (address, act) in &mut acts {
            act.check(*address)?;
            match self.attempt_near(*address, act)? {
                Near::There(part) => add_pieces(*address, act, part, &mut pending)?,
                Near::Here(outcome) => _ = self.follow(*address, act, outcome)?,
            }
        }
        let mut pending = self.not_fetched(pending).into_iter().peekable();
        while pending.peek().is_some() {
            self.act_in_rounds(next_round(&mut pending))?;
        }
        Ok(())
    }

    /// Those that cards have not done.
    fn not_fetched<'a>(&self, pending: Vec<Pending<'a>>) -> Vec<Pending<'a>> {
        let (mut steps, parts): (Vec<_>, Vec<_>) = pending.into_iter().map(|one| (one.step, one.part)).unzip();
        let done = self.fetch(&mut steps);
        let all = steps.into_iter().zip(parts).zip(done);
        let rest = all.filter(|(_, is_done)| !is_done);
        let pending = |((step, part), _)| Pending {
            step,
            part,
            unreached: None,
        };
        rest.map(pending).collect()
    }

    /// Asks until all are done.
    fn act_in_rounds(&self, mut pending: Vec<Pending<'_>>) -> Result<()> {
        let mut turns = Turns::default();
        loop {
            pending = self.ask_parts(pending)?;
            let Some(Pending { step: (address, _), .. }) = pending.first() else {
                turns.has_come(self);
                return Ok(());
            };
            turns.wait(self, *address)?;
            pending = self.that_are_far(pending)?;
        }
    }

    /// Does those whose extents have come to a part that this process maps, meanwhile. The others, and where to ask.
    fn that_are_far<'a>(&self, pending: Vec<Pending<'a>>) -> Result<Vec<Pending<'a>>> {
        let mut far = Vec::with_capacity(pending.len());
        for mut one in pending {
            let (address, act) = &mut one.step;
            match self.attempt_near(*address, act)? {
                Near::Here(Outcome::Done(..)) => continue,
                Near::Here(outcome @ Outcome::Split) => {
                    self.follow(*address, act, outcome)?;
                    continue;
                }
                Near::Here(outcome) => {
                    self.learn(*address, &outcome);
                    one.part = self.location_cache().of(*address);
                }
                Near::There(part) => one.part = part,
            }
            far.push(one);
        }
        Ok(far)
    }

    /// One round: what is not done after it.
    fn ask_parts<'a>(&self, pending: Vec<Pending<'a>>) -> Result<Vec<Pending<'a>>> {
        let mut by_part: BTreeMap<u8, Asked<'a>> = BTreeMap::new();
        for one in pending {
            by_part.entry(one.part).or_default().push(one);
        }
        let (mut rest, mut failed) = (Vec::new(), Ok(()));
        for begun in self.begin_parts(by_part) {
            for (one, outcome) in self.end_part(begun) {
                match self.take_outcome(one, outcome) {
                    Ok(again) => rest.extend(again),
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
        }
        failed.map(|()| rest)
    }

    /// Asks all parts. To those that have to be connected to first, which may take seconds, nothing else waits to be
    /// sent.
    fn begin_parts<'a>(&self, by_part: BTreeMap<u8, Asked<'a>>) -> Vec<Begun<'a>> {
        let is_known = |part: &u8| self.far_numbered(*part).is_none_or(|far| far.is_connected());
        let (known, others): (Vec<_>, Vec<_>) = by_part.into_iter().partition(|(part, _)| is_known(part));
        let mut is_lost = false;
        let begin = |(part, asked): (u8, Asked<'a>)| {
            // A part that is away takes seconds; others that are would take them again, for the same error.
            let in_flight = (!is_lost).then(|| self.begin_at(part, &asked.steps)).flatten();
            is_lost |= in_flight.as_ref().is_some_and(ActsInFlight::has_failed) && asked.is_at_home(part);
            (part, in_flight, asked)
        };
        known.into_iter().chain(others).map(begin).collect()
    }

    /// Nothing if this process maps the part, or does not know it.
    fn begin_at(&self, part: u8, steps: &[Step<'_>]) -> Option<ActsInFlight> {
        if self.part_numbered(part).is_some() {
            return None;
        }
        let far = self.far_numbered(part)?;
        self.count_asked(steps.len());
        Some(far.begin_many(steps))
    }

    /// What came of the accesses that one part was asked for.
    fn end_part<'a>(&self, (part, in_flight, mut asked): Begun<'a>) -> Vec<(Pending<'a>, Answered<Outcome>)> {
        let outcomes = match self.far_numbered(part).zip(in_flight) {
            Some((far, in_flight)) => far.end_many(in_flight, &mut asked.steps),
            None => self.not_asked(part, &asked.steps),
        };
        let pending = |(step, unreached)| Pending { step, part, unreached };
        let all = asked.steps.into_iter().zip(asked.unreached).map(pending);
        all.zip(outcomes).collect()
    }

    /// The part has come to be mapped here, or is not attached.
    fn not_asked(&self, part: u8, steps: &[Step<'_>]) -> Vec<Answered<Outcome>> {
        let is_here = self.part_numbered(part).is_some();
        let outcome = |(address, _): &Step<'_>| match is_here {
            true => Ok(Outcome::NotHere),
            false => Ok(self.far_part(part, *address).map(|_| Outcome::NotHere)?),
        };
        steps.iter().map(outcome).collect()
    }

    /// What an outcome means for an access: done (nothing), or to be asked again.
    fn take_outcome<'a>(&self, mut one: Pending<'a>, outcome: Answered<Outcome>) -> Result<Option<Pending<'a>>> {
        let (address, act) = &mut one.step;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(unreached) if self.may_be_at_home(one.part, *address, &unreached) => {
                one.unreached = Some((one.part, unreached));
                return Ok(Some(one));
            }
            Err(no) => return Err(no.into()),
        };
        if let Some((part, unreached)) = one.unreached.take() {
            still_away(part, Some(&outcome), unreached)?;
        }
        match outcome {
            Outcome::Done(..) => Ok(None),
            Outcome::Run | Outcome::Split => self.follow(*address, act, outcome).map(|_| None),
            other => {
                self.learn(*address, &other);
                Ok(Some(one))
            }
        }
    }
}

/// An access, in pieces that one message takes each.
fn add_pieces<'a>(address: GlobalAddress, act: &'a mut Act<'_>, part: u8, to: &mut Vec<Pending<'a>>) -> Result<()> {
    let mut pieces = Vec::new();
    act.in_pieces(address, TRANSFER_MAX, &mut pieces)?;
    let pending = |step| Pending {
        step,
        part,
        unreached: None,
    };
    to.extend(pieces.into_iter().map(pending));
    Ok(())
}

/// As many as one round takes, from the first on.
fn next_round<'a>(all: &mut impl Iterator<Item = Pending<'a>>) -> Vec<Pending<'a>> {
    let (mut round, mut bytes) = (Vec::new(), 0);
    while round.len() < ACCESSES_AT_ONCE && bytes < BYTES_AT_ONCE {
        let Some(one) = all.next() else { break };
        bytes += one.step.1.len();
        round.push(one);
    }
    round
}
