//! Guests whose home is gone for good while they were on their way: nobody knows any more where they were to lie.
//!
//! A home that is forgotten is lost with all that lay there. What it had lent to others is used on where it is in use. An extent that was just moving from host to host is frozen at the one, and may
//! have come to the other, or have been used there, or even have gone on from there. The other hosts are asked what they have:
//!
//! ```text
//!   frozen here     another uses it                                        → let go: that is the extent
//!                   it came to another by this freezing, and was not used  → given up there, then used here: both are the same, and nobody has written since
//!                   another is away                                        → stays as it is, and is asked again
//!                   otherwise                                              → let go: it may have been used elsewhere since, by one that is gone too
//!   not used yet    another has it frozen by this freezing                 → stays: that one decides
//!                   another is away                                        → stays as it is
//!                   otherwise                                              → let go
//! ```
//!
//! So what is used is the extent, or nothing is: an old state of it never comes back. What is let go is lost, as is what lay with its home.

use super::super::GlobalAddress;
use super::super::slot::is_frozen;
use super::{Inner, Order, Ordered};
use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;

/// How an extent lies here as a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
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

impl Inner {
    fn guest_here(&self, extent: GlobalAddress) -> Guest {
        let state = self.part.guest_slot(extent).map(|slot| self.part.guest_state(slot));
        match state.map(|state| state.load(Ordering::Acquire)) {
            None => Guest::None,
            Some(0) => Guest::NotUsedYet,
            Some(state) if is_frozen(state) => Guest::Frozen,
            Some(_) => Guest::InUse,
        }
    }

    /// Another has it frozen: if it has come here by the same freezing, and was not used, it never will be.
    ///
    /// # Errors
    /// Those of letting go.
    pub(super) fn give_up_here(&self, extent: GlobalAddress, freeze: Option<u64>) -> Result<Ordered> {
        let mut steps = self.steps.lock();
        match (self.guest_here(extent), steps.received.get(&extent)) {
            (Guest::InUse, _) => Ok(Ordered::InUse),
            (Guest::NotUsedYet, Some(coming)) if Some(coming.freeze) == freeze => {
                // Its slot is being written.
                if !coming.is_fetched {
                    return Ok(Ordered::Moving);
                }
                steps.received.remove(&extent);
                self.keeper.let_go(extent).map(|()| Ordered::Done)
            }
            _ => Ok(Ordered::Gone),
        }
    }

    /// What another has to know to which it came by that freezing.
    pub(super) fn have_here(&self, extent: GlobalAddress, freeze: Option<u64>) -> Ordered {
        let steps = self.steps.lock();
        match self.guest_here(extent) {
            Guest::InUse => Ordered::InUse,
            Guest::Frozen if freeze.is_some() && self.freeze_of(&steps, extent) == freeze => Ordered::Moving,
            _ => Ordered::Gone,
        }
    }

    /// Finds out what becomes of a guest whose home is gone for good, and does it.
    ///
    /// # Errors
    /// Those of hosts that are away: it stays as it is.
    pub(super) fn resolve_orphan(&self, extent: GlobalAddress, slot: u32) -> Result<()> {
        let freeze = self.freeze_of(&self.steps.lock(), extent);
        let guest = self.guest_here(extent);
        let verdict = match guest {
            Guest::Frozen => self.ask_others(&Order::GiveUp { extent, freeze })?,
            Guest::NotUsedYet => self.ask_others(&Order::Have { extent, freeze })?,
            Guest::None | Guest::InUse => return Ok(()),
        };
        let mut steps = self.steps.lock();
        let is_written = steps.received.get(&extent).is_some_and(|coming| !coming.is_fetched);
        let is_same = self.guest_here(extent) == guest && self.part.guest_slot(extent) == Some(slot);
        if is_written || !is_same || self.freeze_of(&steps, extent) != freeze || verdict == Verdict::Wait {
            return Ok(());
        }
        self.frozen.lock().remove(&extent);
        steps.received.remove(&extent);
        match verdict {
            Verdict::Use => self.keeper.thaw(extent),
            _ => self.keeper.let_go(extent),
        }
    }

    /// What all other hosts of the space say together.
    fn ask_others(&self, order: &Order) -> Result<Verdict> {
        let others: Vec<u8> = self.peers.lock().keys().copied().collect();
        let mut verdict = Verdict::LetGo;
        for part in others.into_iter().filter(|part| !self.gone.lock().contains(part)) {
            match self.order(part, order)? {
                Ordered::Done => verdict = Verdict::Use,
                Ordered::InUse => return Ok(Verdict::LetGo),
                Ordered::Gone => {}
                _ => return Ok(Verdict::Wait),
            }
        }
        Ok(verdict)
    }
}
