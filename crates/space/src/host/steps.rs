//! The steps of a move, each at one part: what they change in its descriptors, and in which order, so that a keeper
//! that is killed in between leaves what the next one understands.
//!
//! ```text
//!   the extent lies at X            its home H                      it shall lie at Y
//!   freeze: no access
//!                                                                   receive: MIGRATED says which, its state is 0: not here yet; bytes are fetched from X
//!                                   commit: PLACE says Y.slot  ◄──── from here on it lies at Y
//!                                                                   settle: its state is what it was, the table of migrated extents has it
//!   let go: the memory is vacant
//! ```
//!
//! Invariants:
//! 1. an extent is used in one place at most: where it lies as its home says. Frozen and unsettled ones are used
//!    nowhere;
//! 2. a host that has a frozen or unsettled migrated extent and does not hear how it goes on asks its home: *you have
//!    it* (thaw, settle) or *you do not* (let go). An error is neither;
//! 3. a home that is killed before the commit finds the extent frozen in its own slot, and thaws it; what another host
//!    received is let go by 2;
//! 4. an allocating session looks, inside, whether its slab is still in its slot and its own. So an object is allocated
//!    before the extent is frozen, or not in it. A slab that moves has no owner from the commit on; one that stays is
//!    its session's still;
//! 5. what lies here and is in use is neither received nor let go: an order that says so is late, and about another
//!    move.

use super::super::GlobalAddress;
use super::super::address::{GENERATION_MAX, OFFSET_BITS};
use super::super::extent_table::ExtentTable;
use super::super::keeper::{Lifetime, SessionId};
use super::super::local::LocalKeeper;
use super::super::part::{Moving, Part};
use super::super::slot::{Slot, Use, frozen, is_frozen};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::Span;

/// How long a mover waits for threads that are inside.
const INSIDE: Nanos = Nanos::from_millis(100);

/// What lies where it was frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrozenExtent {
    pub state: u64,
    /// Whether it holds no object.
    pub is_empty: bool,
}

impl ExtentTable {
    /// A frozen slab in its own slot, as a keeper that begins finds it: no move of it was committed.
    pub(in super::super) fn enter_frozen(&mut self, part: &Part, slot: u32, generation: u32) {
        let saved = part.saved(slot).load(Ordering::Acquire);
        match Slot::decode(saved) {
            Some(Slot {
                generation: of,
                used: Use::Slab(..),
            }) if of == generation => {
                part.state(slot).store(saved, Ordering::Release);
                self.go_on(part, slot);
            }
            // Something wrote there. The audit names it.
            _ => {}
        }
    }

    /// A slot whose own extent is away, or that is free and lent: what lies in its memory?
    pub(in super::super) fn enter_migrated(&mut self, part: &Part, slot: u32) {
        let migrated = GlobalAddress::from_raw(part.migrated(slot).load(Ordering::Acquire));
        let state = part.migrated_state(slot).load(Ordering::Acquire);
        if migrated.is_null() {
            self.vacant.insert(slot);
        } else {
            if state == 0 || is_frozen(state) {
                self.unsettled.insert(slot, Nanos::ZERO);
            }
            part.list_migrated(migrated, slot);
        }
    }

    /// A slab stays in its own slot: it is its session's still, if that has not ended meanwhile.
    fn go_on(&mut self, part: &Part, slot: u32) {
        match part.owner(slot).load(Ordering::Acquire) {
            0 => self.set_unowned(part, slot),
            owner if self.sessions.contains(&SessionId(owner)) => {}
            _ => self.orphan(part, slot),
        }
    }

    /// A slab in its own slot has no owner, from now on or still.
    fn set_unowned(&mut self, part: &Part, slot: u32) {
        if let Ok(Slot {
            used: Use::Slab(class, Lifetime::Space),
            ..
        }) = part.slot(slot)
        {
            part.owner(slot).store(0, Ordering::Release);
            part.hint_all(slot, class);
            self.unowned.entry(class).or_default().insert(slot);
        }
    }

    /// Nothing lies in a slot's memory any more.
    fn vacate(&mut self, part: &Part, slot: u32) {
        part.migrated(slot).store(0, Ordering::Release);
        self.unsettled.remove(&slot);
        match part.slot(slot) {
            Ok(Slot {
                generation,
                used: Use::Lent,
            }) => self.release(part, slot, generation),
            Ok(Slot { used: Use::Away, .. }) => _ = self.vacant.insert(slot),
            _ => {}
        }
    }

    /// A slot whose memory a migrated extent can have, taken for it.
    fn take_vacancy(&mut self, part: &Part, extent: GlobalAddress) -> Option<u32> {
        let own = (extent.part() == part.number()).then(|| extent.slot());
        let vacant = own
            .filter(|slot| self.vacant.contains(slot))
            .or_else(|| self.vacant.first().copied());
        if let Some(slot) = vacant {
            assert!(self.vacant.remove(&slot), "slot {slot} is taken twice");
            return Some(slot);
        }
        let (slot, generation) = self.pick_any(part)?;
        // A slot of generation 0 was never used: its memory is taken for zeros.
        let generation = generation.max(1);
        let lent = Slot {
            generation,
            used: Use::Lent,
        };
        part.state(slot).store(lent.encode(), Ordering::Release);
        Some(slot)
    }
}

impl Part {
    fn list_migrated(&self, migrated: GlobalAddress, slot: u32) {
        if let Some(moving) = self.moving() {
            // It is there, since it came. If something wrote there: the audit names it.
            let _ = moving.migrated_extents.insert(migrated, slot);
        }
    }

    pub(in super::super) fn unlist_migrated(&self, migrated: GlobalAddress) {
        if let Some(moving) = self.moving().filter(|_| !migrated.is_null()) {
            moving.migrated_extents.remove(migrated);
        }
    }

    /// The slot that an extent lies in as a migrated extent, or is to.
    pub(super) fn migrated_slot(&self, extent: GlobalAddress) -> Option<u32> {
        let listed = self
            .moving()?
            .migrated_extents
            .find(cenote_base::rt::seam::Points, extent);
        let is_its = |slot: &u32| *slot < self.slots() && self.migrated(*slot).load(Ordering::Acquire) == extent.raw();
        listed.filter(is_its).or_else(|| (0..self.slots()).find(is_its))
    }

    /// Whether an extent lies in its own slot: a slab, of this generation.
    pub(super) fn own_state(&self, extent: GlobalAddress) -> Result<Option<Slot>> {
        if extent.part() != self.number() {
            return Ok(None);
        }
        let slot = self.slot(extent.slot())?;
        Ok((slot.generation == extent.generation()).then_some(slot))
    }

    /// A slot's map and objects, one after the other: bytes `from` on, `len` of them, in one or two pieces.
    pub(super) fn image(&self, slot: u32, from: u64, len: u64) -> Result<Vec<Span<'_>>> {
        let ends = from.checked_add(len).filter(|end| *end <= Self::image_len());
        ends.filter(|_| slot < self.slots())
            .ok_or_else(|| Error::OutOfBounds(format!("{len} bytes from {from} on of an extent's image")))?;
        let (map_at, map_len) = self.map_at(slot);
        let in_map = len.min(map_len.saturating_sub(from));
        let mut pieces = Vec::new();
        if in_map > 0 {
            pieces.push(self.region().span(map_at + from, in_map));
        }
        assert!(in_map <= len && in_map <= map_len, "{in_map} bytes of a map");
        if len > in_map {
            let first = (from + in_map) - map_len;
            let at = self.at((u64::from(slot) << OFFSET_BITS) + first);
            pieces.push(self.region().span(at, len - in_map));
        }
        Ok(pieces)
    }
}

pub(super) fn gone(extent: GlobalAddress) -> Error {
    Error::Invalid(format!("the extent of {extent} does not lie here"))
}

fn is_moving(extent: GlobalAddress) -> Error {
    Error::Busy(format!("{extent} is about to move already"))
}

impl LocalKeeper {
    fn moving(&self) -> Result<&Moving> {
        let immovable = || Error::Invalid("the part's extents cannot move".into());
        self.part.moving().ok_or_else(immovable)
    }

    /// No access uses the extent from here on, until it is thawed or let go. Nothing is changed if that cannot be had.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it does not lie here, or is nothing that moves; [`Error::Busy`]: it is frozen already,
    /// other hosts use its bytes, or a thread stays in the middle of an access.
    pub(super) fn freeze(&self, extent: GlobalAddress) -> Result<FrozenExtent> {
        self.part.check_unshared(extent)?;
        self.migration_epochs.fetch_add(1, Ordering::SeqCst);
        let (state, slot) = self.set_frozen(extent)?;
        if !planted(Fault::MoveFence)
            && let Err(error) = self.moving()?.presence.quiesce(INSIDE)
        {
            self.thaw(extent)?;
            return Err(error);
        }
        let class = match Slot::decode(state).map(|found| found.used) {
            Some(Use::Slab(class, _)) => class,
            _ => return Err(Error::corrupt("the state of a frozen extent")),
        };
        let is_empty = self.part.is_empty_slab(slot, class, extent.generation());
        Ok(FrozenExtent { state, is_empty })
    }

    fn set_frozen(&self, extent: GlobalAddress) -> Result<(u64, u32)> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        if let Some(own) = part.own_state(extent)? {
            let slot = extent.slot();
            match own.used {
                Use::Slab(class, Lifetime::Space) if !part.is_ready(slot, class) => {
                    return Err(Error::Busy(format!("{extent} is being handed out")));
                }
                Use::Slab(class, Lifetime::Space) => {
                    let state = own.encode();
                    if let Some(slots) = extent_table.unowned.get_mut(&class) {
                        slots.remove(&slot);
                    }
                    part.saved(slot).store(state, Ordering::Release);
                    part.freezings(slot).fetch_add(1, Ordering::SeqCst);
                    part.state(slot).store(frozen(state), Ordering::Release);
                    return Ok((state, slot));
                }
                Use::Frozen => return Err(is_moving(extent)),
                Use::Away => {}
                _ => return Err(gone(extent)),
            }
        }
        let slot = part.migrated_slot(extent).ok_or_else(|| gone(extent))?;
        let state = part.migrated_state(slot).load(Ordering::Acquire);
        match Slot::decode(state).map(|found| found.used) {
            Some(Use::Slab(..)) => {
                part.saved(slot).store(state, Ordering::Release);
                part.freezings(slot).fetch_add(1, Ordering::SeqCst);
                part.migrated_state(slot).store(frozen(state), Ordering::Release);
                extent_table.unsettled.insert(slot, rt::now());
                Ok((state, slot))
            }
            Some(Use::Frozen) => Err(is_moving(extent)),
            _ => Err(gone(extent)),
        }
    }

    /// How many extents began to be frozen here. What has not changed hands since was not frozen since.
    pub(super) fn migration_epochs(&self) -> u64 {
        self.migration_epochs.load(Ordering::SeqCst)
    }

    /// It stays, and is used again.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn thaw(&self, extent: GlobalAddress) -> Result<()> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        if let Some(Slot {
            used: Use::Frozen,
            generation,
        }) = part.own_state(extent)?
        {
            extent_table.enter_frozen(part, extent.slot(), generation);
            return Ok(());
        }
        if let Some(slot) = part.migrated_slot(extent)
            && is_frozen(part.migrated_state(slot).load(Ordering::Acquire))
        {
            let saved = part.saved(slot).load(Ordering::Acquire);
            part.migrated_state(slot).store(saved, Ordering::Release);
            extent_table.unsettled.remove(&slot);
        }
        Ok(())
    }

    /// Makes room for an extent that is about to come: the slot.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Busy`] if it lies here already, settled or not; [`Error::Invalid`] if it is this
    /// part's own and not away.
    pub(super) fn receive(&self, extent: GlobalAddress, state: u64) -> Result<u32> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        let is_slab = |found: &Slot| {
            matches!(found.used, Use::Slab(_, Lifetime::Space)) && found.generation == extent.generation()
        };
        if !Slot::decode(state).is_some_and(|found| is_slab(&found)) {
            return Err(Error::corrupt(format!("the state of {extent}: {state:#018x}")));
        }
        if part.migrated_slot(extent).is_some() {
            return Err(Error::Busy(format!("{extent} lies here already")));
        }
        if extent.part() == part.number() && part.own_state(extent)?.map(|found| found.used) != Some(Use::Away) {
            return Err(gone(extent));
        }
        let migrated_extents = &self.moving()?.migrated_extents;
        if !migrated_extents.has_place(extent) {
            return Err(Error::Full(format!(
                "{} has no place in its table of migrated extents",
                part.name()
            )));
        }
        let slot = extent_table.take_vacancy(part, extent);
        let slot = slot.ok_or_else(|| Error::Full(format!("{} has no room for a migrated extent", part.name())))?;
        part.migrated_state(slot).store(0, Ordering::Release);
        part.saved(slot).store(state, Ordering::Release);
        // Before it is a migrated extent: so each migrated extent has its place there, and settling cannot fail.
        migrated_extents.insert(extent, slot)?;
        part.migrated(slot).store(extent.raw(), Ordering::Release);
        extent_table.unsettled.insert(slot, rt::now());
        if let Err(error) = part.reserve_below(slot + 1) {
            migrated_extents.remove(extent);
            extent_table.vacate(part, slot);
            return Err(error);
        }
        Ok(slot)
    }

    /// The extent has come, and lies here as its home says: it is used from here on. Whether it was not before.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has not come.
    pub(super) fn settle(&self, extent: GlobalAddress) -> Result<bool> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        let slot = part.migrated_slot(extent).ok_or_else(|| gone(extent))?;
        let state = part.saved(slot).load(Ordering::Acquire);
        if part.migrated_state(slot).load(Ordering::Acquire) != 0 {
            return Ok(false);
        }
        extent_table.unsettled.remove(&slot);
        if extent.part() == part.number() && extent.slot() == slot {
            part.state(slot).store(state, Ordering::Release);
            part.migrated(slot).store(0, Ordering::Release);
            self.moving()?.migrated_extents.remove(extent);
            extent_table.set_unowned(part, slot);
            return Ok(true);
        }
        part.migrated_state(slot).store(state, Ordering::Release);
        Ok(true)
    }

    /// The migrated extent does not lie here any more, or did not come. Of one that is not here nothing is to be done.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is in use.
    pub(super) fn let_go(&self, extent: GlobalAddress) -> Result<()> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        let Some(slot) = part.migrated_slot(extent) else {
            return Ok(());
        };
        let state = part.migrated_state(slot).load(Ordering::Acquire);
        if state != 0 && !is_frozen(state) {
            return Err(Error::Busy(format!("{extent} is in use here")));
        }
        self.moving()?.migrated_extents.remove(extent);
        part.migrated_state(slot).store(0, Ordering::Release);
        extent_table.vacate(part, slot);
        Ok(())
    }

    /// Where an extent of this part lies, as its home knows it; `None` if there is none any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this is not its home, or has never had it; [`Error::Corrupt`]. They say nothing of where
    /// it lies.
    pub(super) fn location_of(&self, extent: GlobalAddress) -> Result<Option<(u8, u32)>> {
        let (part, slot) = (&*self.part, extent.slot());
        if extent.part() != part.number() {
            return Err(Error::Invalid(format!("{} is not the home of {extent}", part.name())));
        }
        let Slot { generation, used } = part.slot(slot)?;
        match used {
            _ if generation > extent.generation() => Ok(None),
            _ if generation < extent.generation() => {
                Err(Error::Invalid(format!("{} has never had {extent}", part.name())))
            }
            Use::Away => Ok(Some(part.place_of(slot))),
            Use::Slab(..) | Use::Frozen => Ok(Some((part.number(), slot))),
            Use::Free | Use::Lent | Use::Retired => Ok(None),
            Use::Head(_) | Use::Tail(_) => Err(Error::corrupt(format!("{extent} is a run"))),
        }
    }

    /// From here on the extent, which is this part's and frozen where it was, lies there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not frozen.
    pub(super) fn commit(&self, extent: GlobalAddress, part: u8, slot: u32) -> Result<()> {
        let (home, mut extent_table) = (&*self.part, self.extent_table.lock());
        let place = u64::from(part) << 32 | u64::from(slot);
        match home.own_state(extent)?.map(|found| found.used) {
            Some(Use::Frozen) => {
                home.place(extent.slot()).store(place, Ordering::Release);
                let away = Slot {
                    generation: extent.generation(),
                    used: Use::Away,
                };
                home.state(extent.slot()).store(away.encode(), Ordering::Release);
                home.owner(extent.slot()).store(0, Ordering::Release);
                extent_table.vacant.insert(extent.slot());
                Ok(())
            }
            Some(Use::Away) => {
                home.place(extent.slot()).store(place, Ordering::Release);
                Ok(())
            }
            _ => Err(gone(extent)),
        }
    }

    /// The extent, which is this part's and empty, is nothing any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not away.
    pub(super) fn end_extent(&self, extent: GlobalAddress) -> Result<()> {
        let (home, mut extent_table) = (&*self.part, self.extent_table.lock());
        match home.own_state(extent)?.map(|found| found.used) {
            Some(Use::Away) => {}
            _ => return Err(gone(extent)),
        }
        let (slot, generation) = (extent.slot(), extent.generation());
        if extent_table.vacant.remove(&slot) {
            extent_table.release(home, slot, generation);
        } else {
            // A migrated extent lies in its memory.
            let used = if generation < GENERATION_MAX {
                Use::Lent
            } else {
                Use::Retired
            };
            home.state(slot)
                .store(Slot { generation, used }.encode(), Ordering::Release);
        }
        Ok(())
    }

    /// Migrated extents of whom only their homes know whether they are here, for longer than `age`.
    pub(super) fn unsettled(&self, age: Nanos) -> Vec<(GlobalAddress, u32)> {
        let (now, extent_table) = (rt::now(), self.extent_table.lock());
        let old = extent_table
            .unsettled
            .iter()
            .filter(|(_, since)| now.since(**since) >= age);
        old.map(|(slot, _)| {
            let migrated = self.part.migrated(*slot).load(Ordering::Acquire);
            (GlobalAddress::from_raw(migrated), *slot)
        })
        .collect()
    }

    /// Whether a migrated extent would find room without another one leaving; `kept` free slots are not for migrated
    /// extents.
    pub(super) fn has_room_for_migrated(&self, kept: usize) -> bool {
        let extent_table = self.extent_table.lock();
        !extent_table.vacant.is_empty() || extent_table.free.len() > kept + extent_table.spare
    }
}
