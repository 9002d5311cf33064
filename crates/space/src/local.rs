//! The keeper of a part in this process.

use super::audit;
use super::extent_table::ExtentTable;
use super::keeper::{Extent, Keeper, Lifetime, Run, SessionId};
use super::layout::run_slots;
use super::part::Part;
use super::slot::{Slot, Use};
use super::{Class, GlobalAddress};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use std::sync::Arc;

/// The keeper of a part in this process.
pub struct LocalKeeper {
    pub(super) part: Arc<Part>,
    pub(super) extent_table: Mutex<ExtentTable>,
    /// Extents that began to be frozen in this part's memory: counted before they are.
    pub(super) migration_epochs: AtomicU64,
}

impl LocalKeeper {
    /// Takes up a part: frees what a former keeper was killed over. Sessions that own something go on until they are
    /// [ended](Keeper::end). Slots whose descriptors are broken are left alone ([`Keeper::audit`] names them).
    ///
    /// # Errors
    /// [`Error::Invalid`] if another process keeps the part; [`Error::Full`].
    pub fn new(part: Arc<Part>) -> Result<Self> {
        if !part.is_kept_here() {
            return Err(Error::Invalid(format!("{} is kept by another process", part.name())));
        }
        let mut extent_table = ExtentTable::empty(&part);
        if let Some(moving) = part.moving() {
            let lies_there = |migrated: GlobalAddress, slot: u32| {
                slot < part.slots() && part.migrated(slot).load(Ordering::Acquire) == migrated.raw()
            };
            moving.migrated_extents.retain(lies_there);
        }
        for slot in 0..part.slots() {
            extent_table.enter(&part, slot);
        }
        let used = (0..part.slots()).rev().find(|slot| !extent_table.free.contains(*slot));
        part.reserve_below(used.map_or(0, |slot| slot + 1))?;
        Ok(Self {
            part,
            extent_table: Mutex::new(extent_table),
            migration_epochs: AtomicU64::new(0),
        })
    }

    /// The part.
    pub fn part(&self) -> &Arc<Part> {
        &self.part
    }

    /// Sessions that have begun and not ended, those of former keepers included as far as they own something.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.extent_table.lock().sessions.iter().copied().collect()
    }

    /// Ends all sessions: none of their processes may be there any more.
    ///
    /// # Errors
    /// None of its own.
    pub fn end_all(&self) -> Result<()> {
        self.sessions().into_iter().try_for_each(|session| self.end(session))
    }

    fn full(&self, extent_table: &ExtentTable, wanted: &str) -> Error {
        let (free, all) = (extent_table.free.len(), self.part.slots());
        let name = self.part.name();
        Error::Full(format!(
            "{name} has no room for {wanted}: {free} of its {all} extents are free"
        ))
    }
}

impl Keeper for LocalKeeper {
    fn begin(&self) -> Result<SessionId> {
        let mut extent_table = self.extent_table.lock();
        let id = extent_table.next_session;
        extent_table.next_session = id
            .checked_add(1)
            .ok_or_else(|| Error::corrupt(format!("{}: the next session's number", self.part.name())))?;
        self.part
            .next_session()
            .store(extent_table.next_session, Ordering::Release);
        self.part.changed_page();
        let is_new = extent_table.sessions.insert(SessionId(id));
        assert!(is_new && id > 0, "session {id} begins twice");
        Ok(SessionId(id))
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        extent_table.check(session)?;
        if lifetime == Lifetime::Space
            && let Some(extent) = extent_table.adopt(part, session, class)
        {
            return Ok(extent);
        }
        if extent_table.free.len() <= extent_table.spare {
            extent_table.sweep(part);
        }
        let wanted = || format!("objects of {}", ByteSize(class.size()));
        let (slot, former) = extent_table
            .pick(part)
            .ok_or_else(|| self.full(&extent_table, &wanted()))?;
        part.reserve_below(slot + 1)
            .inspect_err(|_| extent_table.put_back(part, slot..slot + 1))?;
        assert!(
            !extent_table.free.contains(slot),
            "slot {slot} becomes a slab and is free"
        );
        let generation = former + 1;
        part.lay_slab(
            slot,
            Slot {
                generation,
                used: Use::Slab(class, lifetime),
            },
            class,
            session,
        );
        Ok(Extent { slot, generation })
    }

    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        extent_table.check(session)?;
        for extent in extents {
            let Slot { generation, used } = part.slot(extent.slot)?;
            let is_its =
                part.owner(extent.slot).load(Ordering::Acquire) == session.0 && generation == extent.generation;
            let Use::Slab(class, _) = used else { continue };
            if is_its && !part.is_empty_slab(extent.slot, class, generation) {
                return Err(Error::Invalid(format!(
                    "{}: slot {} holds objects",
                    part.name(),
                    extent.slot
                )));
            }
            if is_its {
                extent_table.release(part, extent.slot, generation);
            }
        }
        Ok(())
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        extent_table.check(session)?;
        let wanted = || format!("an object of {}", ByteSize(bytes));
        let slots = run_slots(bytes).ok_or_else(|| self.full(&extent_table, &wanted()))?;
        let mut picked = extent_table.pick_run(part, slots);
        if picked.is_none() {
            extent_table.sweep(part);
            picked = extent_table.pick_run(part, slots);
        }
        let (first, former) = picked.ok_or_else(|| self.full(&extent_table, &wanted()))?;
        part.reserve_below(first + slots)
            .inspect_err(|_| extent_table.put_back(part, first..first + slots))?;
        assert!(
            !extent_table.free.contains(first),
            "slot {first} becomes a run and is free"
        );
        let generation = former + 1;
        let address = GlobalAddress::new(part.number(), first, 0, generation)?;
        let zeroed = former == 0 && part.is_zero_when_new();
        if part.has_pieces(lifetime) {
            part.lay_pieces(first, slots, generation);
            extent_table
                .unowned
                .entry(Class::WHOLE)
                .or_default()
                .extend(first..first + slots);
            return Ok(Run { address, zeroed });
        }
        part.lay_run(
            first,
            slots,
            bytes,
            Slot {
                generation,
                used: Use::Head(lifetime),
            },
            session,
        );
        Ok(Run { address, zeroed })
    }

    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        let Slot { generation, used } = part.slot(address.slot())?;
        let is_its = generation == address.generation() && address.offset() == 0 && address.part() == part.number();
        match used {
            Use::Head(_) if is_its => extent_table.release_run(part, address.slot(), generation),
            // Its users have freed the pieces: what is empty is not used any more.
            Use::Slab(Class::WHOLE, _) | Use::Away | Use::Frozen if is_its => {
                extent_table.release_pieces(part, address.slot(), generation);
            }
            _ => return Err(Error::Invalid(format!("no run begins at {address}"))),
        }
        Ok(())
    }

    fn end(&self, session: SessionId) -> Result<()> {
        let (part, mut extent_table) = (&*self.part, self.extent_table.lock());
        if extent_table.sessions.remove(&session) {
            let owned = |slot: &u32| part.owner(*slot).load(Ordering::Acquire) == session.0;
            (0..part.slots())
                .filter(owned)
                .for_each(|slot| extent_table.orphan(part, slot));
        }
        Ok(())
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        Ok(self.extent_table.lock().sessions.contains(&session))
    }

    fn audit(&self) -> Result<Vec<String>> {
        Ok(audit::audit(&self.part, &self.extent_table.lock()))
    }
}
