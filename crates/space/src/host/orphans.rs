//! Migrated extents whose home is gone for good while they were on their way: where they were to lie is not recorded
//! anywhere any more.
//!
//! A home that is forgotten is lost with all that lay there. What it had lent to others is used on where it is in use.
//! An extent that was just moving from host to host is frozen at the one, and may have come to the other, or have been
//! used there, or even have gone on from there. The other hosts are asked what they have, all of them, which changes
//! nothing anywhere:
//!
//! ```text
//!   frozen here     another uses it                                        → let go: that is the extent
//!                   it came to another in this epoch, and was not used     → given up there, then used here: both are the same, and no client has written since
//!                   another is offline                                     → stays as it is, and is asked again
//!                   otherwise                                              → let go: it may have been used elsewhere since, by one that is gone too
//!   not used yet    another has it frozen in this epoch                    → stays: that one decides
//!                   another is offline                                     → stays as it is
//!                   otherwise                                              → let go
//! ```
//!
//! So what is used is the extent, or nothing is: an old state of it never comes back. What is let go is lost, as is
//! what lay with its home.
//!
//! Only when all have answered is one told to give it up. It may have done so though its answer was lost, and then it
//! has nothing of it any more. So a host remembers, before it sends that order, that the other had not used it: that
//! other's "nothing" counts as its having given it up. (A host that began anew does not know in which epoch an extent
//! came. That one says so, and is waited for.)

use super::super::GlobalAddress;
use super::super::slot::is_frozen;
use super::step_state::Steps;
use super::{HostState, Order, Ordered};
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// How an extent lies here as a migrated extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MigratedState {
    None,
    InUse,
    Frozen,
    NotUsedYet,
}

/// What becomes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Use,
    LetGo,
    Wait,
}

impl HostState {
    fn migrated_here(&self, extent: GlobalAddress) -> MigratedState {
        let state = self
            .part
            .migrated_slot(extent)
            .map(|slot| self.part.migrated_state(slot));
        match state.map(|state| state.load(Ordering::Acquire)) {
            None => MigratedState::None,
            Some(0) => MigratedState::NotUsedYet,
            Some(state) if is_frozen(state) => MigratedState::Frozen,
            Some(_) => MigratedState::InUse,
        }
    }

    /// Another has it frozen: if it has come here in the same epoch, and was not used, it never will be. The answer
    /// "nothing" may be the second one: the first was lost after the extent was given up.
    ///
    /// # Errors
    /// Those of letting go.
    pub(super) fn give_up_here(&self, extent: GlobalAddress, freeze: Option<u64>) -> Result<Ordered> {
        let mut steps = self.steps.lock();
        match self.had_here(&steps, extent, freeze) {
            Ordered::NotUsed => {
                steps.received.remove(&extent);
                self.keeper.let_go(extent).map(|()| Ordered::Done)
            }
            had => Ok(had),
        }
    }

    /// What another host has to know that has it frozen in this epoch, or to which it came in that.
    pub(super) fn have_here(&self, extent: GlobalAddress, freeze: Option<u64>) -> Ordered {
        self.had_here(&self.steps.lock(), extent, freeze)
    }

    fn had_here(&self, steps: &Steps, extent: GlobalAddress, freeze: Option<u64>) -> Ordered {
        match (self.migrated_here(extent), steps.received.get(&extent)) {
            (MigratedState::InUse, _) => Ordered::InUse,
            (MigratedState::Frozen, _) if freeze.is_some() && self.freeze_of(steps, extent) == freeze => {
                Ordered::Moving
            }
            (MigratedState::NotUsedYet, Some(coming)) if Some(coming.freeze) == freeze => match coming.is_fetched {
                true => Ordered::NotUsed,
                // Its slot is being written.
                false => Ordered::Moving,
            },
            // In any epoch. A host that does not know its own waits for no other: so no two wait for each other.
            (MigratedState::NotUsedYet, None) if freeze.is_some() => Ordered::Moving,
            _ => Ordered::Gone,
        }
    }

    /// Finds out what becomes of a migrated extent whose home is gone for good, and does it.
    ///
    /// # Errors
    /// Those of hosts that are offline: it stays as it is.
    pub(super) fn resolve_orphan(&self, extent: GlobalAddress, slot: u32) -> Result<()> {
        let freeze = self.freeze_of(&self.steps.lock(), extent);
        let migrated = self.migrated_here(extent);
        let verdict = match migrated {
            MigratedState::Frozen => self.judge_frozen(extent, freeze)?,
            MigratedState::NotUsedYet => judge(&self.ask_others(extent, freeze)?),
            MigratedState::None | MigratedState::InUse => return Ok(()),
        };
        let mut steps = self.steps.lock();
        let is_written = steps.received.get(&extent).is_some_and(|coming| !coming.is_fetched);
        let is_same = self.migrated_here(extent) == migrated && self.part.migrated_slot(extent) == Some(slot);
        if is_written || !is_same || self.freeze_of(&steps, extent) != freeze || verdict == Verdict::Wait {
            return Ok(());
        }
        self.frozen.lock().remove(&extent);
        steps.received.remove(&extent);
        steps.not_used.remove(&extent);
        match verdict {
            Verdict::Use => self.keeper.thaw(extent),
            _ => self.keeper.let_go(extent),
        }
    }

    /// What becomes of one that is frozen here. Another gives it up only after all have said that none of them uses it.
    fn judge_frozen(&self, extent: GlobalAddress, freeze: Option<u64>) -> Result<Verdict> {
        let said = self.ask_others(extent, freeze)?;
        let verdict = judge(&said);
        let (Verdict::LetGo, false) = (verdict, said.values().any(|said| *said == Ordered::InUse)) else {
            return Ok(verdict);
        };
        let had = self.remember_not_used(extent, freeze, &said);
        for part in had.iter().filter(|part| said.contains_key(part)) {
            match self.order(*part, &Order::GiveUp { extent, freeze })? {
                Ordered::Done | Ordered::Gone => {}
                Ordered::InUse => return Ok(Verdict::LetGo),
                _ => return Ok(Verdict::Wait),
            }
        }
        // One that has gone for good before it answered may have used it.
        let all_have_given_up = had.iter().all(|part| said.contains_key(part));
        Ok(match !had.is_empty() && all_have_given_up {
            true => Verdict::Use,
            false => Verdict::LetGo,
        })
    }

    /// The parts that it came to in this epoch and that had not used it, as they say now or said before.
    fn remember_not_used(
        &self,
        extent: GlobalAddress,
        freeze: Option<u64>,
        said: &BTreeMap<u8, Ordered>,
    ) -> BTreeSet<u8> {
        let Some(freeze) = freeze else { return BTreeSet::new() };
        let now = said.iter().filter(|(_, said)| **said == Ordered::NotUsed);
        let now = now.map(|(part, _)| *part);
        let mut steps = self.steps.lock();
        let known = steps.not_used.entry(extent).or_default();
        if known.0 != freeze {
            *known = (freeze, BTreeSet::new());
        }
        known.1.extend(now);
        known.1.clone()
    }

    /// What all other hosts of the space say that they have. That changes nothing there.
    ///
    /// # Errors
    /// [`Error::Lost`] if one of them is offline, and those of calls.
    fn ask_others(&self, extent: GlobalAddress, freeze: Option<u64>) -> Result<BTreeMap<u8, Ordered>> {
        let gone = self.gone.lock().clone();
        let (others, unreached): (Vec<u8>, _) = {
            let peers = self.peers.lock();
            (peers.keys().copied().collect(), self.unreached.lock().clone())
        };
        if let Some(part) = unreached.difference(&gone).next() {
            return Err(Error::Lost(format!("the way to part {part} is not known yet")));
        }
        let ask = |part| Ok((part, self.order(part, &Order::Have { extent, freeze })?));
        let others = others.into_iter().filter(|part| !gone.contains(part));
        others.map(ask).collect()
    }
}

/// What follows from what the others have, as long as no host gives anything up.
fn judge(said: &BTreeMap<u8, Ordered>) -> Verdict {
    let is_settled = |said: &Ordered| matches!(said, Ordered::Gone | Ordered::NotUsed);
    match said.values().any(|said| *said == Ordered::InUse) || said.values().all(is_settled) {
        true => Verdict::LetGo,
        false => Verdict::Wait,
    }
}
