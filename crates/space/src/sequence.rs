//! Accesses that are done one after the other: none is begun before the one before it is done.
//!
//! Those of far memory that follow each other, and lie in one part, are one message, which its host carries out in
//! order and breaks off at the first that is not done: as its extent is moving, has moved, or something is wrong. From
//! there on it is tried again. So what was done is at any time a beginning of the sequence, whichever process is
//! killed. A sequence that begins with a condition ([`Act::Expect`]) is not done when that does not hold any more, also
//! if it comes late.

use super::access::{Read, Write};
use super::act::{Act, Outcome, Step};
use super::far::{Answered, RequestsInFlight};
use super::route::{Near, Turns, still_away};
use super::{GlobalAddress, Space};
use cenote_base::Result;

/// The beginning of a sequence that is on its way to a far part.
pub(super) struct SequenceInFlight {
    part: u8,
    /// How many steps it has.
    pub(super) count: usize,
    under_way: RequestsInFlight,
}

impl Space {
    /// Does all of them; what each found.
    ///
    /// # Errors
    /// As [`Space::read`], of the first that fails: those before it are done, those after it not begun.
    /// [`Error::Lost`](cenote_base::Error::Lost) and [`Error::Timeout`](cenote_base::Error::Timeout): some of them may
    /// have been done, from the first on.
    pub(super) fn act_in_order(&self, steps: &mut [Step<'_>], found: &mut [u64]) -> Result<()> {
        assert_eq!(steps.len(), found.len(), "each step finds something");
        let (mut done, mut turns) = (0, Turns::default());
        loop {
            done += self.go_on(&mut steps[done..], &mut found[done..])?;
            let Some((address, _)) = steps.get(done) else {
                turns.has_come(self);
                return Ok(());
            };
            turns.wait(self, *address)?;
        }
    }

    /// Goes as far as it can without waiting for an extent that moves: how many are done.
    pub(super) fn go_on(&self, steps: &mut [Step<'_>], found: &mut [u64]) -> Result<usize> {
        let mut done = 0;
        while done < steps.len() {
            match self.advance(&mut steps[done..], &mut found[done..])? {
                0 => break,
                more => done += more,
            }
        }
        assert!(done <= steps.len(), "{done} of {} steps are done", steps.len());
        Ok(done)
    }

    /// Does the first here, or the first few with one message.
    fn advance(&self, steps: &mut [Step<'_>], found: &mut [u64]) -> Result<usize> {
        let (address, act) = &mut steps[0];
        if let Some(value) = self.quickly(*address, act) {
            found[0] = value;
            return Ok(1);
        }
        act.check(*address)?;
        match self.attempt_near(*address, act)? {
            Near::Here(Outcome::Done(value, _)) => {
                found[0] = value;
                Ok(1)
            }
            Near::Here(outcome @ Outcome::Split) => {
                found[0] = self.follow(*address, act, outcome)?;
                Ok(1)
            }
            Near::Here(outcome) => {
                self.learn(*address, &outcome);
                Ok(0)
            }
            // It was here, and is not any more.
            Near::There(part) if part != address.part() && self.far_numbered(part).is_none() => {
                self.learn(*address, &Outcome::NotHere);
                Ok(0)
            }
            Near::There(part) => self.advance_far(part, steps, found),
        }
    }

    /// With one message to a part: where the first one's extent was last, or its home if that part is not reached.
    fn advance_far(&self, part: u8, steps: &mut [Step<'_>], found: &mut [u64]) -> Result<usize> {
        let first = steps[0].0;
        let (count, outcomes) = match self.ask_in_order(part, steps) {
            Err(unreached) if self.may_be_at_home(part, first, &unreached) => {
                let (count, outcomes) = self.ask_in_order(first.part(), steps)?;
                still_away(part, outcomes.first(), unreached)?;
                (count, outcomes)
            }
            asked => asked?,
        };
        let done = self.take_in(&steps[..count], &outcomes, found);
        if let (0, [Outcome::Split, ..]) = (done, &outcomes[..]) {
            let (address, act) = &mut steps[0];
            found[0] = self.follow(*address, act, Outcome::Split)?;
            return Ok(1);
        }
        Ok(done)
    }

    /// As many as are to be asked of that part, and fit into a message: how many these are, and what came of them.
    fn ask_in_order(&self, part: u8, steps: &mut [Step<'_>]) -> Answered<(usize, Vec<Outcome>)> {
        let count = self.that_lie_there(steps, part);
        assert!(count > 0, "the first step lies where it is asked for");
        let far = self.far_part(part, steps[0].0)?;
        Ok((count, far.act_in_order(&mut steps[..count])?))
    }

    /// What is done with a load or a store.
    fn quickly(&self, address: GlobalAddress, act: &mut Act<'_>) -> Option<u64> {
        match act {
            Act::Load => self.load_at_once(address),
            Act::Store(value) => self.store_at_once(address, *value).map(|()| 0),
            Act::Swap { expected, new } => self.swap_at_once(address, *expected, *new),
            Act::Add(n) => self.add_at_once(address, *n),
            Act::Write(from) => self.write_at_once(Write { address, from }).map(|()| 0),
            Act::Read(into) => self.read_at_once(Read { address, into }).map(|()| 0),
            _ => None,
        }
    }

    /// How many from the first on are to be asked of the part, as far as it is known: those of parts that are not
    /// mapped, and of the first one's extent.
    fn that_lie_there(&self, steps: &[Step<'_>], part: u8) -> usize {
        let first = steps[0].0.extent();
        let lies_there = |address: GlobalAddress| {
            address.extent() == first || self.is_far(address) && self.location_cache().of(address) == part
        };
        steps.iter().take_while(|(address, _)| lies_there(*address)).count()
    }

    /// What the outcomes are, and what they tell of where an extent is: how many were done.
    fn take_in(&self, steps: &[Step<'_>], outcomes: &[Outcome], found: &mut [u64]) -> usize {
        assert!(
            outcomes.len() <= steps.len(),
            "{} outcomes of fewer steps",
            outcomes.len()
        );
        self.count_asked(outcomes.len());
        for (n, outcome) in outcomes.iter().enumerate() {
            match outcome {
                Outcome::Done(value, _) => found[n] = *value,
                other => {
                    self.learn(steps[n].0, other);
                    return n;
                }
            }
        }
        outcomes.len()
    }

    /// Begins a sequence, if all of it can be one message to a far part, and waits for nothing. [`Space::end_sequence`]
    /// does.
    pub(super) fn begin_sequence(&self, steps: &[Step<'_>]) -> Result<Option<SequenceInFlight>> {
        let Some((first, _)) = steps.first().filter(|(first, _)| self.is_far(*first)) else {
            return Ok(None);
        };
        let part = self.location_cache().of(*first);
        let Some(far) = self.far_numbered(part) else {
            return Ok(None);
        };
        if self.that_lie_there(steps, part) < steps.len() {
            return Ok(None);
        }
        let (count, under_way) = far.begin_in_order(steps)?;
        Ok(Some(SequenceInFlight { part, count, under_way }))
    }

    /// Waits for what was begun: how many of its steps are done.
    pub(super) fn end_sequence(&self, begun: SequenceInFlight, steps: &mut [Step<'_>]) -> Result<usize> {
        let SequenceInFlight { part, count, under_way } = begun;
        let steps = &mut steps[..count];
        let outcomes = self.far_part(part, steps[0].0)?.end_in_order(under_way, steps)?;
        Ok(self.take_in(steps, &outcomes, &mut vec![0; count]))
    }
}
