//! Which part is asked for what lies at an address, and which one next.
//!
//! The address names the extent's *home*. An extent that was moved here is a migrated extent of a part that this
//! process maps, so those are looked through first; then its home is asked, or the part that last was known to have it.
//! Each answer is the truth or the way to it: *done*, *frozen* (again in a moment), *away* (in that part), *not here*
//! (ask its home).

use super::act::{Act, Outcome};
use super::far::wire::TRANSFER_MAX;
use super::far::{Answered, FarPart, NoAnswer};
use super::stalled::PATIENCE;
use super::{GlobalAddress, Space};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};

/// Turns without sleeping.
const TURNS: u32 = 64;
/// Then the first sleep; each is twice as long as the one before, up to the other. Where an extent's home has to be
/// asked first that takes seconds.
const SLEEP_FIRST: Nanos = Nanos::from_micros(50);
const SLEEP_MOST: Nanos = Nanos::from_millis(2);
/// How long several that move may be waited for, one after the other.
const ALL_MOST: Nanos = Nanos(4 * PATIENCE.0);

const _: () = assert!(0 < SLEEP_FIRST.0 && SLEEP_FIRST.0 <= SLEEP_MOST.0 && SLEEP_MOST.0 < PATIENCE.0);

/// Waiting for an extent that moves; for one after the other, where several do.
#[derive(Default)]
pub(super) struct Turns {
    waiting: Option<Waiting>,
    /// When it ends, whichever is waited for: two could move by turns.
    ends: Option<Nanos>,
}

struct Waiting {
    extent: GlobalAddress,
    turns: u32,
    sleep: Nanos,
    until: Nanos,
}

impl Waiting {
    fn begin(space: &Space, extent: GlobalAddress) -> Self {
        Self {
            extent,
            turns: 0,
            sleep: SLEEP_FIRST,
            until: rt::now() + space.stalled().patience(extent),
        }
    }
}

impl Turns {
    /// For what lies at an address.
    ///
    /// # Errors
    /// [`Error::Timeout`] after half a minute, or sooner where it was so before: a move ends soon, unless the part on
    /// its other side is away.
    pub(super) fn wait(&mut self, space: &Space, address: GlobalAddress) -> Result<()> {
        let extent = address.extent();
        if self.waiting.as_ref().is_some_and(|waiting| waiting.extent != extent) {
            self.has_come(space);
        }
        let ends = *self.ends.get_or_insert_with(|| rt::now() + ALL_MOST);
        let waiting = self.waiting.get_or_insert_with(|| Waiting::begin(space, extent));
        waiting.turns += 1;
        if waiting.turns < TURNS {
            rt::yield_now();
            return Ok(());
        }
        let now = rt::now();
        if now > waiting.until.min(ends) {
            if now > waiting.until {
                space.stalled().note(extent);
            }
            return Err(Error::Timeout(format!(
                "the extent of {address} is moving, and does not arrive"
            )));
        }
        rt::sleep(waiting.sleep);
        waiting.sleep = Nanos(2 * waiting.sleep.raw()).min(SLEEP_MOST);
        Ok(())
    }

    /// What was waited for, if anything was, is there.
    pub(super) fn has_come(&mut self, space: &Space) {
        if let Some(waiting) = self.waiting.take() {
            space.stalled().forget(waiting.extent);
        }
    }
}

/// What came of an attempt in the parts that this process maps.
pub(super) enum Near {
    Here(Outcome),
    /// Nothing: this part is to be asked.
    There(u8),
}

impl Space {
    /// Does it, wherever it has to be done.
    #[inline(never)]
    pub(super) fn act(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<u64> {
        act.check(address)?;
        let outcome = self.attempt(address, act)?;
        self.follow(address, act, outcome)
    }

    /// From an outcome on.
    pub(super) fn follow(&self, address: GlobalAddress, act: &mut Act<'_>, first: Outcome) -> Result<u64> {
        let (mut outcome, mut turns) = (first, Turns::default());
        loop {
            match outcome {
                Outcome::Done(value, _) => {
                    turns.has_come(self);
                    return Ok(value);
                }
                Outcome::Run => return self.keeper_of(address.part())?.free_run(address).map(|()| 0),
                Outcome::Split => return self.act_split(address, act).map(|()| 0),
                other => self.learn(address, &other),
            }
            turns.wait(self, address)?;
            outcome = self.attempt(address, act)?;
        }
    }

    /// What an outcome says of where the extent is.
    pub(super) fn learn(&self, address: GlobalAddress, outcome: &Outcome) {
        match outcome {
            Outcome::Away(part) => self.location_cache().set(address, *part),
            Outcome::NotHere => self.location_cache().set(address, address.part()),
            Outcome::Done(..) | Outcome::Run | Outcome::Split | Outcome::Frozen => {}
        }
    }

    fn attempt(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        match self.attempt_near(address, act)? {
            Near::There(part) => self.attempt_far(part, address, act),
            Near::Here(outcome) => Ok(outcome),
        }
    }

    /// Does it if that can be done in the parts that this process maps; otherwise which part is to be asked.
    pub(super) fn attempt_near(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Near> {
        let Some(part) = self.part_numbered(address.part()) else {
            return Ok(match self.attempt_as_host(address, act)? {
                Outcome::NotHere => Near::There(self.location_cache().of(address)),
                outcome => Near::Here(outcome),
            });
        };
        let outcome = part.act(address, act)?;
        if let Outcome::Done(_, slot) = outcome {
            part.count(slot, act.is_write(), 1);
        }
        match outcome {
            Outcome::Away(elsewhere) => match self.part_numbered(elsewhere) {
                Some(part) => part.act_as_host(address, act).map(Near::Here),
                None => Ok(Near::There(elsewhere)),
            },
            outcome => Ok(Near::Here(outcome)),
        }
    }

    /// Where it last was, or at home: also if it was in a part that is offline by now, and may have come back before.
    fn attempt_far(&self, part: u8, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        if act.len() > TRANSFER_MAX as u64 {
            let mut pieces = Vec::new();
            act.in_pieces(address, TRANSFER_MAX, &mut pieces)?;
            return self.act_far(pieces).map(|()| Outcome::Done(0, 0));
        }
        if matches!(act, Act::Read(_)) && part == address.part() && self.fetch_one(address, act) {
            return Ok(Outcome::Done(0, 0));
        }
        match self.attempt_at(part, address, act) {
            Err(unreached) if self.may_be_at_home(part, address, &unreached) => {
                let outcome = self.attempt_at(address.part(), address, act)?;
                still_away(part, Some(&outcome), unreached).map(|()| outcome)
            }
            outcome => Ok(outcome?),
        }
    }

    fn fetch_one(&self, address: GlobalAddress, act: &mut Act<'_>) -> bool {
        self.fetch(&mut [(address, act.reborrow())])[0]
    }

    /// Whether an extent's home is to be asked, as the part where it was last was not reached.
    pub(super) fn may_be_at_home(&self, part: u8, address: GlobalAddress, no: &NoAnswer) -> bool {
        let home = address.part();
        let may_be = no.was_not_reached() && part != home && self.part_numbered(home).is_none();
        if may_be {
            self.location_cache().set(address, home);
        }
        may_be
    }

    /// In the parts that this process maps.
    pub(super) fn attempt_as_host(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        for part in self.parts() {
            match part.act_as_host(address, act)? {
                Outcome::NotHere => {}
                outcome => {
                    if let Outcome::Done(_, slot) = outcome {
                        part.count(slot, act.is_write(), 1);
                    }
                    return Ok(outcome);
                }
            }
        }
        Ok(Outcome::NotHere)
    }

    /// In a part, which another pod is asked for as a rule.
    fn attempt_at(&self, number: u8, address: GlobalAddress, act: &mut Act<'_>) -> Answered<Outcome> {
        if let Some(part) = self.part_numbered(number) {
            return Ok(part.act_as_host(address, act)?);
        }
        self.count_asked(1);
        self.far_part(number, address)?.act(address, act)
    }

    /// A part that is to be asked for an address.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the address is of no part of the space; [`Error::Lost`] if its extent lies in one that is
    /// not attached: then it is an object's, for all that is known here.
    pub(super) fn far_part(&self, number: u8, address: GlobalAddress) -> Result<&FarPart> {
        self.far_numbered(number).ok_or_else(|| match number == address.part() {
            true => Error::Invalid(format!("{address} is of part {number}, which this space does not have")),
            false => Error::Lost(format!("{address} lies in part {number}, which is not attached")),
        })
    }

    /// Whether an address is of a part that this process does not map.
    #[inline(always)]
    pub(super) fn is_far(&self, address: GlobalAddress) -> bool {
        self.part_numbered(address.part()).is_none() && self.far_numbered(address.part()).is_some()
    }
}

/// What its home says of an extent that is not reached where it was last: if it is there still, no other part can be
/// asked.
///
/// # Errors
/// Why it is not reached.
pub(super) fn still_away(part: u8, outcome: Option<&Outcome>, unreached: NoAnswer) -> Result<()> {
    match outcome {
        Some(Outcome::Away(there)) if *there == part => Err(unreached.into()),
        _ => Ok(()),
    }
}
