//! What homes order to be done here, and what became of migrated extents without news of their move.
//!
//! A home decides about one move at a time, and forgets it when it ends, orders that were not answered included: those
//! may come later, even during the next move of the same extent. So each move has a number (its *migration epoch*,
//! `freeze` in messages). What is frozen here or comes here is known by the number of the move, and orders of other
//! moves do nothing.
//!
//! The [resolver](HostState::resolve) asks homes about migrated extents that are frozen or unsettled. What a home says
//! while it does not move the extent is final for all moves that began before the question, as each of them has ended.
//! So it is believed if the migrated extent belongs to the same move as before the question, and only then. If the home
//! is gone for good, other hosts are asked: [`super::orphans`].

use super::super::GlobalAddress;
use super::step_state::{Coming, Steps};
use super::{HostState, Order, Ordered, image};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use std::collections::BTreeSet;

/// Between two looks at migrated extents without news of their move.
const ASK_EVERY: Nanos = Nanos::from_secs(1);

impl HostState {
    /// Does what a home orders.
    pub(super) fn obey(&self, order: &Order) -> Result<Ordered> {
        match *order {
            Order::Freeze { extent, freeze } => self.freeze_here(extent, freeze),
            Order::Thaw { extent, freeze } => self.thaw_here(extent, freeze).map(|()| Ordered::Done),
            Order::Receive {
                extent,
                state,
                from,
                freeze,
            } => self.receive(extent, state, from, freeze).map(Ordered::Slot),
            Order::Settle { extent, freeze } => self.settle_here(extent, freeze).map(|()| Ordered::Done),
            Order::LetGo { extent, freeze } => self.let_go_here(extent, freeze).map(|()| Ordered::Done),
            Order::Where { extent } => self.place(extent),
            Order::Offer { heat } => Ok(self.consider(heat)),
            Order::Fence { ref members } => self.fence_here(members).map(|()| Ordered::Done),
            Order::GiveUp { extent, freeze } => self.give_up_here(extent, freeze),
            Order::Have { extent, freeze } => Ok(self.have_here(extent, freeze)),
            Order::Relocate { .. } | Order::Reclaim { .. } => Err(Error::corrupt("an order that is the executor's")),
        }
    }

    fn fence_here(&self, members: &[u128]) -> Result<()> {
        let gates = self
            .gates
            .get()
            .ok_or_else(|| Error::Lost("the host serves nobody yet".into()))?;
        gates.fence(self.part.space(), members)
    }

    fn freeze_here(&self, extent: GlobalAddress, freeze: u64) -> Result<Ordered> {
        self.part.check_moves()?;
        let _steps = self.steps.lock();
        let frozen = self.keeper.freeze(extent)?;
        self.frozen.lock().insert(extent, freeze);
        Ok(Ordered::Frozen {
            state: frozen.state,
            is_empty: frozen.is_empty,
        })
    }

    /// Takes out that an extent is frozen, if it is in this epoch: nothing of it is read any more.
    fn end_freeze(&self, extent: GlobalAddress, freeze: u64) -> bool {
        let mut frozen = self.frozen.lock();
        let by = frozen.get(&extent);
        let is_it = by == Some(&freeze) || by.is_some() && planted(Fault::FreezeNumber);
        if is_it {
            frozen.remove(&extent);
        }
        is_it
    }

    fn thaw_here(&self, extent: GlobalAddress, freeze: u64) -> Result<()> {
        let _steps = self.steps.lock();
        match self.end_freeze(extent, freeze) {
            true => self.keeper.thaw(extent),
            false => Ok(()),
        }
    }

    fn receive(&self, extent: GlobalAddress, state: u64, from: u8, freeze: u64) -> Result<u32> {
        self.part.check_moves()?;
        let channel = self.channel(from)?;
        let slot = {
            let mut steps = self.steps.lock();
            let slot = self.keeper.receive(extent, state)?;
            let is_fetched = false;
            steps.received.insert(extent, Coming { freeze, is_fetched });
            slot
        };
        // Not under the lock: the other side may be offline.
        let fetched = image::fetch(&self.part, slot, &channel, extent, freeze);
        if let Some(coming) = self.steps.lock().received.get_mut(&extent) {
            coming.is_fetched = true;
        }
        if fetched.is_err() {
            let _ = self.let_go_here(extent, freeze);
        }
        fetched.map(|()| slot)
    }

    fn settle_here(&self, extent: GlobalAddress, freeze: u64) -> Result<()> {
        let mut steps = self.steps.lock();
        match steps.has_come(extent, freeze) {
            true => self.settle(&mut steps, extent),
            false => Ok(()),
        }
    }

    fn settle(&self, steps: &mut Steps, extent: GlobalAddress) -> Result<()> {
        if self.keeper.settle(extent)? {
            self.note_arrival(extent);
        }
        steps.received.remove(&extent);
        Ok(())
    }

    /// At the source, or where it was to lie.
    fn let_go_here(&self, extent: GlobalAddress, freeze: u64) -> Result<()> {
        let mut steps = self.steps.lock();
        if self.end_freeze(extent, freeze) {
            self.counters.left.fetch_add(1, Ordering::Relaxed);
            self.forget_heat(self.part.migrated_slot(extent).unwrap_or(extent.slot()));
        } else if !steps.has_come(extent, freeze) {
            return Ok(());
        }
        steps.received.remove(&extent);
        self.keeper.let_go(extent)
    }

    /// Where an extent lies, which is this part's.
    pub(super) fn place(&self, extent: GlobalAddress) -> Result<Ordered> {
        if *self.under_way.lock() == Some(extent) {
            return Ok(Ordered::Moving);
        }
        Ok(match self.keeper.location_of(extent)? {
            Some((part, slot)) => Ordered::At { part, slot },
            None => Ordered::Gone,
        })
    }

    /// The resolver.
    pub(super) fn resolve(&self) {
        self.ask_homes(self.unsettled());
    }

    /// When the resolver asks again.
    pub(super) fn next_question(&self) -> Nanos {
        super::policy::on_turn(rt::now() + ASK_EVERY.min(self.unsettled()))
    }

    /// For so long a migrated extent waits for news by itself.
    fn unsettled(&self) -> Nanos {
        Nanos(self.options.timeout.raw() / 2)
    }

    /// Asks homes what became of their migrated extents here that have had no news for longer than `age`. Nothing
    /// changes for those whose home does not say it; of those whose home is gone for good, see [`super::orphans`].
    pub(super) fn ask_homes(&self, age: Nanos) {
        let mut silent = BTreeSet::new();
        for (extent, slot) in self.keeper.unsettled(age) {
            let home = extent.part();
            if self.is_stopping() || silent.contains(&home) {
                continue;
            }
            if self.gone.lock().contains(&home) {
                // The resolver waits for a part that is offline, and asks again.
                let _ = self.resolve_orphan(extent, slot);
                continue;
            }
            let freeze = self.freeze_of(&self.steps.lock(), extent);
            match self.order(home, &Order::Where { extent }) {
                Ok(place) => _ = self.believe((extent, slot), freeze, &place),
                // The home is offline, and the resolver would wait as long for each of its extents.
                Err(Error::Lost(_) | Error::Timeout(_)) => _ = silent.insert(home),
                Err(_) => {}
            }
        }
    }

    /// The move that a migrated extent is frozen for or comes by; none if a former process of this host knew.
    pub(super) fn freeze_of(&self, steps: &Steps, extent: GlobalAddress) -> Option<u64> {
        let received = steps.received.get(&extent).map(|coming| coming.freeze);
        received.or_else(|| self.frozen.lock().get(&extent).copied())
    }

    /// Does what follows from a home's answer, if the migrated extent belongs to the same move as before the question.
    fn believe(&self, (extent, slot): (GlobalAddress, u32), freeze: Option<u64>, place: &Ordered) -> Result<()> {
        let mut steps = self.steps.lock();
        let is_written = steps.received.get(&extent).is_some_and(|coming| !coming.is_fetched);
        let is_other = self.freeze_of(&steps, extent) != freeze && !planted(Fault::FreezeNumber);
        if is_written || is_other {
            return Ok(());
        }
        let is_here = match *place {
            Ordered::At { part, slot: there } => (part, there) == (self.part.number(), slot),
            Ordered::Gone => false,
            _ => return Ok(()),
        };
        self.frozen.lock().remove(&extent);
        if is_here {
            self.settle(&mut steps, extent)?;
            return self.keeper.thaw(extent);
        }
        steps.received.remove(&extent);
        self.keeper.let_go(extent)
    }
}
