//! What a keeper knows, and what it does to a part's slots: the order of stores is that of the invariants in
//! [`super::keeper`].

use super::address::{GENERATION_MAX, GENERATION_SHIFT};
use super::free::FreeSlots;
use super::keeper::{Extent, Lifetime, SessionId};
use super::layout::{GROUP_WORDS, groups, run_slots};
use super::part::Part;
use super::slot::{Slot, Use};
use super::{Class, GlobalAddress};
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// What the keeper knows without looking. All of it can be found out from the descriptors.
pub(super) struct ExtentTable {
    pub(super) free: FreeSlots,
    /// Slabs without an owner.
    pub(super) unowned: BTreeMap<Class, BTreeSet<u32>>,
    pub(super) sessions: BTreeSet<SessionId>,
    pub(super) next_session: u64,
    /// Slots whose extents are away, with nothing in their memory.
    pub(super) vacant: BTreeSet<u32>,
    /// Slots with a migrated extent of which only its home knows whether it is here, and since when that is so.
    pub(super) unsettled: BTreeMap<u32, Nanos>,
    /// Free slots that are not handed out: where an extent comes first when two change places.
    pub(super) spare: usize,
}

/// Parts of less have no spare slot.
const SPARE_FROM: u32 = 8;

impl ExtentTable {
    pub(super) fn empty(part: &Part) -> Self {
        Self {
            free: FreeSlots::new(part.slots()),
            unowned: BTreeMap::new(),
            sessions: BTreeSet::new(),
            next_session: part.next_session().load(Ordering::Acquire).max(1),
            vacant: BTreeSet::new(),
            unsettled: BTreeMap::new(),
            spare: usize::from(part.is_movable() && part.slots() >= SPARE_FROM),
        }
    }

    /// Enters a slot as it is found by a new keeper.
    pub(super) fn enter(&mut self, part: &Part, slot: u32) {
        let Ok(found) = part.slot(slot) else { return };
        if matches!(found.used, Use::Slab(..)) {
            // It had come home, and the keeper was killed before this.
            let migrated = part.migrated(slot).swap(0, Ordering::AcqRel);
            part.unlist_migrated(GlobalAddress::from_raw(migrated));
        }
        match found.used {
            Use::Free => self.free.add(slot, found.generation),
            Use::Slab(Class::WHOLE, _) if part.is_broken_off(slot, found.generation) => {
                self.release(part, slot, found.generation);
            }
            Use::Slab(class, _) => self.enter_owned(part, slot, Some(class)),
            Use::Head(_) => self.enter_owned(part, slot, None),
            Use::Tail(_) if part.head_of(slot, found).is_none() => self.release(part, slot, found.generation),
            Use::Retired if part.migrated(slot).load(Ordering::Acquire) != 0 => self.enter_migrated(part, slot),
            Use::Tail(_) | Use::Retired => {}
            Use::Frozen => {
                let owner = part.owner(slot).load(Ordering::Acquire);
                if owner != 0 {
                    self.enter_session(SessionId(owner));
                }
                self.enter_frozen(part, slot, found.generation);
            }
            Use::Away => self.enter_migrated(part, slot),
            Use::Lent if part.migrated(slot).load(Ordering::Acquire) == 0 => self.release(part, slot, found.generation),
            Use::Lent => self.enter_migrated(part, slot),
        }
    }

    fn enter_owned(&mut self, part: &Part, slot: u32, class: Option<Class>) {
        match (part.owner(slot).load(Ordering::Acquire), class) {
            (0, Some(class)) => {
                let is_new = self.unowned.entry(class).or_default().insert(slot);
                assert!(is_new, "slot {slot} is entered twice");
            }
            (0, None) => {}
            (owner, _) => self.enter_session(SessionId(owner)),
        }
    }

    fn enter_session(&mut self, session: SessionId) {
        assert!(session.0 > 0, "0 is no session's number");
        self.sessions.insert(session);
        self.next_session = self.next_session.max(session.0.saturating_add(1));
    }

    pub(super) fn check(&self, session: SessionId) -> Result<()> {
        match self.sessions.contains(&session) {
            true => Ok(()),
            false => Err(Error::Revoked(format!("session {} has ended", session.0))),
        }
    }

    /// The slot is free from here on, if it has generations left.
    pub(super) fn release(&mut self, part: &Part, slot: u32, generation: u32) {
        let used = if generation == GENERATION_MAX {
            Use::Retired
        } else {
            Use::Free
        };
        part.state(slot)
            .store(Slot { generation, used }.encode(), Ordering::Release);
        part.changed_slot(slot);
        if used == Use::Free {
            assert!(generation < GENERATION_MAX, "slot {slot} has no generations left");
            self.free.add(slot, generation);
        }
    }

    pub(super) fn release_run(&mut self, part: &Part, head: u32, generation: u32) {
        let slots = run_slots(part.run_bytes(head).load(Ordering::Acquire)).unwrap_or(1);
        self.release(part, head, generation);
        for slot in head + 1..head.saturating_add(slots).min(part.slots()) {
            let is_its = part.slot(slot).is_ok_and(|s| {
                s == Slot {
                    generation,
                    used: Use::Tail(slot - head),
                }
            });
            if is_its {
                self.release(part, slot, generation);
            }
        }
    }

    /// A free slot, with its generation, free no longer. Slots that are something else (something wrote there) are
    /// passed over for good.
    pub(super) fn pick(&mut self, part: &Part) -> Option<(u32, u32)> {
        if self.free.len() <= self.spare {
            return None;
        }
        self.pick_any(part)
    }

    /// As [`ExtentTable::pick`], the spare one too.
    pub(super) fn pick_any(&mut self, part: &Part) -> Option<(u32, u32)> {
        while let Some(slot) = self.free.next() {
            self.free.remove(slot);
            assert!(!self.free.contains(slot), "slot {slot} is handed out and free");
            match part.slot(slot) {
                Ok(Slot {
                    generation,
                    used: Use::Free,
                }) => return Some((slot, generation)),
                _ => continue,
            }
        }
        None
    }

    /// The first of `n` free slots side by side, with the greatest of their generations, as [`ExtentTable::pick`].
    pub(super) fn pick_run(&mut self, part: &Part, n: u32) -> Option<(u32, u32)> {
        assert!(n > 0, "a run has a slot");
        if self.free.len() < n as usize + self.spare {
            return None;
        }
        while let Some(first) = self.free.next_run(n) {
            let generation = |slot| match part.slot(slot) {
                Ok(Slot {
                    generation,
                    used: Use::Free,
                }) => Some(generation),
                _ => None,
            };
            match (first..first + n)
                .map(|slot| generation(slot).ok_or(slot))
                .try_fold(0, |max, g| g.map(|g| g.max(max)))
            {
                Ok(greatest) => {
                    let before = self.free.len();
                    (first..first + n).for_each(|slot| self.free.remove(slot));
                    assert_eq!(
                        self.free.len() + n as usize,
                        before,
                        "a run has slots that were not free"
                    );
                    return Some((first, greatest));
                }
                Err(broken) => self.free.remove(broken),
            }
        }
        None
    }

    /// Slots that were picked and not used are free again, each with the wear that it has.
    pub(super) fn put_back(&mut self, part: &Part, slots: Range<u32>) {
        for slot in slots {
            if let Ok(Slot {
                generation,
                used: Use::Free,
            }) = part.slot(slot)
            {
                self.free.add(slot, generation);
            }
        }
    }

    /// Frees the slabs that have no owner and hold nothing.
    pub(super) fn sweep(&mut self, part: &Part) {
        for (class, slots) in core::mem::take(&mut self.unowned) {
            for slot in slots {
                match part.slot(slot) {
                    Ok(Slot {
                        generation,
                        used: Use::Slab(..),
                    }) if part.is_empty_slab(slot, class, generation) => {
                        self.release(part, slot, generation);
                    }
                    _ => _ = self.unowned.entry(class).or_default().insert(slot),
                }
            }
        }
    }

    /// A slab that has no owner and may have room.
    pub(super) fn adopt(&mut self, part: &Part, session: SessionId, class: Class) -> Option<Extent> {
        let slots = self.unowned.get_mut(&class)?;
        let slot = slots
            .iter()
            .copied()
            .find(|slot| part.hint(*slot).load(Ordering::SeqCst) & groups(class) != 0)?;
        assert!(slots.remove(&slot), "slot {slot} is adopted twice");
        match part.slot(slot) {
            Ok(Slot {
                generation,
                used: Use::Slab(found, Lifetime::Space),
            }) if found == class => {
                part.owner(slot).store(session.0, Ordering::Release);
                part.changed_slot(slot);
                Some(Extent { slot, generation })
            }
            _ => None,
        }
    }

    /// What becomes of something that an ended session owned.
    pub(super) fn orphan(&mut self, part: &Part, slot: u32) {
        let Ok(Slot { generation, used }) = part.slot(slot) else {
            return;
        };
        match used {
            Use::Slab(_, Lifetime::Session) => self.release(part, slot, generation),
            Use::Slab(class, Lifetime::Space) if part.is_empty_slab(slot, class, generation) => {
                self.release(part, slot, generation);
            }
            Use::Slab(class, Lifetime::Space) => {
                part.hint_all(slot, class);
                part.owner(slot).store(0, Ordering::Release);
                part.changed_slot(slot);
                self.unowned.entry(class).or_default().insert(slot);
            }
            Use::Head(Lifetime::Session) => self.release_run(part, slot, generation),
            Use::Head(Lifetime::Space) => {
                part.owner(slot).store(0, Ordering::Release);
                part.changed_slot(slot);
            }
            Use::Free | Use::Tail(_) | Use::Retired | Use::Frozen | Use::Away | Use::Lent => {}
        }
    }
}

impl Part {
    /// Whether a slab holds no object, and is in order.
    pub(super) fn is_empty_slab(&self, slot: u32, class: Class, generation: u32) -> bool {
        let empty = u64::from(generation) << GENERATION_SHIFT;
        (0..class.words()).all(|word| self.live(slot, word).load(Ordering::Acquire) == empty)
    }

    /// The first slot of the run that a tail belongs to, if there is such a run.
    pub(super) fn head_of(&self, slot: u32, tail: Slot) -> Option<u32> {
        let Use::Tail(distance) = tail.used else { return None };
        let head = slot.checked_sub(distance)?;
        let found = self.slot(head).ok()?;
        let slots = run_slots(self.run_bytes(head).load(Ordering::Acquire))?;
        let is_its = matches!(found.used, Use::Head(_)) && found.generation == tail.generation && slots > distance;
        is_its.then_some(head)
    }

    /// Sets the hint for each group of live words with room: for a slab whose owner is gone, and with it what it had
    /// taken from the hint.
    pub(super) fn hint_all(&self, slot: u32, class: Class) {
        let has_room = |word: u32| !self.live(slot, word).load(Ordering::SeqCst) & class.mask(word) != 0;
        let groups = (0..class.words())
            .filter(|word| has_room(*word))
            .map(|word| 1 << (word / GROUP_WORDS));
        let hint = groups.fold(0, |all, group: u64| all | group);
        self.hint(slot).fetch_or(hint, Ordering::SeqCst);
        self.changed_hint(slot);
    }

    /// Makes a free slot a slab: see the invariants.
    pub(super) fn lay_slab(&self, slot: u32, slab: Slot, class: Class, owner: SessionId) {
        assert!(slab.generation > 0, "slot {slot} is handed out and has no generation");
        assert!(
            matches!(slab.used, Use::Slab(of, _) if of == class),
            "slot {slot} is laid out for another class"
        );
        self.owner(slot).store(owner.0, Ordering::Relaxed);
        let empty = u64::from(slab.generation) << GENERATION_SHIFT;
        for word in 0..class.words() {
            self.live(slot, word).store(empty, Ordering::Relaxed);
        }
        self.hint(slot).store(groups(class), Ordering::Relaxed);
        self.changed_live(slot, 0, class.words());
        self.changed_hint(slot);
        self.state(slot).store(slab.encode(), Ordering::Release);
        self.changed_slot(slot);
    }

    /// Makes `n` free slots a run: see the invariants.
    pub(super) fn lay_run(&self, first: u32, n: u32, bytes: u64, head: Slot, owner: SessionId) {
        assert_eq!(run_slots(bytes), Some(n), "slots of a run of {bytes} bytes");
        assert!(
            matches!(head.used, Use::Head(_)) && head.generation > 0,
            "a run begins with {head:?}"
        );
        for distance in 1..n {
            let tail = Slot {
                generation: head.generation,
                used: Use::Tail(distance),
            };
            self.state(first + distance).store(tail.encode(), Ordering::Release);
            self.changed_slot(first + distance);
        }
        self.run_bytes(first).store(bytes, Ordering::Relaxed);
        self.owner(first).store(owner.0, Ordering::Relaxed);
        self.state(first).store(head.encode(), Ordering::Release);
        self.changed_slot(first);
    }
}
