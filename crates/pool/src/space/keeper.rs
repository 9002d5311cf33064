//! Who hands out a part's extents.
//!
//! ```text
//!                        take, take_run                                     end: Lifetime::Session
//!   free(generation) ──────────────────► slab or run (generation + 1) ──────────────────────────────► free, or retired
//!        ▲                                  │        ▲                                                (its generations are used up)
//!        │    give_back, free_run           │ end    │ take: adopted
//!        └──────────────────────────────────┤        │
//!        └────────── empty ◄────────────── nobody's ─┘
//! ```
//!
//! Invariants. A process may be killed between any two stores, be it the keeper's or a client's:
//! 1. descriptors are written by the keeper alone, under its lock. An extent is what its state word says; that is one store;
//! 2. a slab's live words and hint are in order, with the new generation and no object, *before* its state says that it is one. A keeper that is
//!    killed before leaves it free, with words that nobody believes, as their generation is not that of the state;
//! 3. a run's tails are written *before* its head, and freed *after* it. So a tail without a head is of a run that was being made or freed: the next
//!    keeper frees it;
//! 4. a slot's generation rises each time that it is handed out, and one with the last generation is never free again: what an address once
//!    meant, it means or is refused;
//! 5. only a slab's owner allocates in it. It is the keeper's again when it is given back empty or when the session has *ended*. A session ends
//!    when it closes or when its process is gone; who ends one that lives on takes its slabs from it, and it is told so by the generation in
//!    the words that it compares and swaps: even then no word is of two minds;
//! 6. what was handed out and never used (the answer was lost, the client was killed) belongs to the session, and comes back when it ends.
//!
//! Lock order: session → keeper. The keeper asks nobody.

use super::address::{GENERATION_MAX, GENERATION_SHIFT};
use super::audit;
use super::free::FreeSlots;
use super::layout::{GROUP_WORDS, Part, Slot, Use, groups, run_slots};
use super::{Class, GlobalAddress};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::Ordering;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A session's number in a part, from 1 on. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u64);

/// How long an object stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Lifetime {
    /// Until it is freed, whatever becomes of the session that allocated it.
    #[default]
    Space,
    /// Until it is freed, or the session that allocated it closes or dies.
    Session,
}

/// A slab that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Its number in the part.
    pub slot: u32,
    /// Its generation since.
    pub generation: u32,
}

/// A run that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Where it begins.
    pub address: GlobalAddress,
    /// Whether its bytes are zero already.
    pub zeroed: bool,
}

/// Who hands out a part's extents: today an object of the same process, later the memory node's daemon over a connection. So each
/// method is a request and its answer: plain data that refers to nothing but what it names. Each may come twice, if an answer was lost: what was
/// taken in vain comes back when the session ends, and the others do nothing the second time.
///
/// A session that has ended, or is of another keeper, gets [`Error::Revoked`].
pub trait Keeper: Send + Sync {
    /// A new session.
    ///
    /// # Errors
    /// Those of the way to the keeper, here and everywhere.
    fn begin(&self) -> Result<SessionId>;

    /// An extent for objects of `class`: a fresh one, or (with [`Lifetime::Space`]) one with room that is nobody's.
    ///
    /// # Errors
    /// [`Error::Full`].
    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent>;

    /// Takes back slabs of the session. Those that are not its own any more are passed over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one holds objects: it stays the session's, and so do those after it.
    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()>;

    /// A run of `bytes`, in extents of its own.
    ///
    /// # Errors
    /// [`Error::Full`] if there are not so many free extents side by side.
    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run>;

    /// Frees a run, whoever has allocated it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no run begins there (any more).
    fn free_run(&self, address: GlobalAddress) -> Result<()>;

    /// The session's process is gone, or will not use it any more: its [`Lifetime::Session`] objects are freed, the others are
    /// nobody's in particular. Of a session that is not there nothing is to be done.
    ///
    /// # Errors
    /// None of its own.
    fn end(&self, session: SessionId) -> Result<()>;

    /// Looks at everything: a list of what is wrong.
    ///
    /// # Errors
    /// None of its own.
    fn audit(&self) -> Result<Vec<String>>;
}

/// The keeper of a part in this process.
pub struct LocalKeeper {
    part: Arc<Part>,
    books: Mutex<Books>,
}

/// What the keeper knows without looking. All of it can be found out from the descriptors.
pub(super) struct Books {
    pub(super) free: FreeSlots,
    /// Slabs without an owner.
    pub(super) nobodys: BTreeMap<Class, BTreeSet<u32>>,
    pub(super) sessions: BTreeSet<SessionId>,
    next_session: u64,
}

impl LocalKeeper {
    /// Takes up a part: frees what a former keeper was killed over. Sessions that own something go on until they are [ended](Keeper::end).
    /// Slots whose descriptors are broken are left alone ([`Keeper::audit`] names them).
    ///
    /// # Errors
    /// [`Error::Invalid`] if another process keeps the part; [`Error::Full`].
    pub fn new(part: Arc<Part>) -> Result<Self> {
        if !part.is_kept_here() {
            return Err(Error::Invalid(format!("{} is kept by another process", part.name())));
        }
        let mut books = Books::empty(&part);
        for slot in 0..part.slots() {
            books.enter(&part, slot);
        }
        let used = (0..part.slots()).rev().find(|slot| !books.free.contains(*slot));
        part.reserve_below(used.map_or(0, |slot| slot + 1))?;
        Ok(Self {
            part,
            books: Mutex::new(books),
        })
    }

    /// The part.
    pub fn part(&self) -> &Arc<Part> {
        &self.part
    }

    /// Sessions that have begun and not ended, those of former keepers included as far as they own something.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.books.lock().sessions.iter().copied().collect()
    }

    /// Ends all sessions: none of their processes may be there any more.
    ///
    /// # Errors
    /// None of its own.
    pub fn end_all(&self) -> Result<()> {
        self.sessions().into_iter().try_for_each(|session| self.end(session))
    }

    fn full(&self, books: &Books, wanted: &str) -> Error {
        let (free, all) = (books.free.len(), self.part.slots());
        let name = self.part.name();
        Error::Full(format!(
            "{name} has no room for {wanted}: {free} of its {all} extents are free"
        ))
    }
}

impl Books {
    fn empty(part: &Part) -> Self {
        Self {
            free: FreeSlots::new(part.slots()),
            nobodys: BTreeMap::new(),
            sessions: BTreeSet::new(),
            next_session: part.next_session().load(Ordering::Acquire).max(1),
        }
    }

    /// Enters a slot as it is found by a new keeper.
    fn enter(&mut self, part: &Part, slot: u32) {
        let Ok(found) = part.slot(slot) else { return };
        match found.used {
            Use::Free => self.free.add(slot, found.generation),
            Use::Slab(class, _) => self.enter_owned(part, slot, Some(class)),
            Use::Head(_) => self.enter_owned(part, slot, None),
            Use::Tail(_) if part.head_of(slot, found).is_none() => self.release(part, slot, found.generation),
            Use::Tail(_) | Use::Retired => {}
        }
    }

    fn enter_owned(&mut self, part: &Part, slot: u32, class: Option<Class>) {
        match (part.owner(slot).load(Ordering::Acquire), class) {
            (0, Some(class)) => _ = self.nobodys.entry(class).or_default().insert(slot),
            (0, None) => {}
            (owner, _) => {
                self.sessions.insert(SessionId(owner));
                self.next_session = self.next_session.max(owner.saturating_add(1));
            }
        }
    }

    fn check(&self, session: SessionId) -> Result<()> {
        match self.sessions.contains(&session) {
            true => Ok(()),
            false => Err(Error::Revoked(format!("session {} has ended", session.0))),
        }
    }

    /// The slot is free from here on, if it has generations left.
    fn release(&mut self, part: &Part, slot: u32, generation: u32) {
        let used = if generation == GENERATION_MAX {
            Use::Retired
        } else {
            Use::Free
        };
        part.state(slot)
            .store(Slot { generation, used }.encode(), Ordering::Release);
        if used == Use::Free {
            self.free.add(slot, generation);
        }
    }

    fn release_run(&mut self, part: &Part, head: u32, generation: u32) {
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

    /// A free slot, with its generation, free no longer. Slots that are something else (something wrote there) are passed over for good.
    fn pick(&mut self, part: &Part) -> Option<(u32, u32)> {
        while let Some(slot) = self.free.next() {
            self.free.remove(slot);
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

    /// The first of `n` free slots side by side, with the greatest of their generations, as [`Books::pick`].
    fn pick_run(&mut self, part: &Part, n: u32) -> Option<(u32, u32)> {
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
                    (first..first + n).for_each(|slot| self.free.remove(slot));
                    return Some((first, greatest));
                }
                Err(broken) => self.free.remove(broken),
            }
        }
        None
    }

    /// Frees the slabs that are nobody's and hold nothing.
    fn sweep(&mut self, part: &Part) {
        for (class, slots) in core::mem::take(&mut self.nobodys) {
            for slot in slots {
                match part.slot(slot) {
                    Ok(Slot {
                        generation,
                        used: Use::Slab(..),
                    }) if part.is_empty_slab(slot, class, generation) => {
                        self.release(part, slot, generation);
                    }
                    _ => _ = self.nobodys.entry(class).or_default().insert(slot),
                }
            }
        }
    }

    /// A slab that is nobody's and may have room.
    fn adopt(&mut self, part: &Part, session: SessionId, class: Class) -> Option<Extent> {
        let slots = self.nobodys.get_mut(&class)?;
        let slot = slots
            .iter()
            .copied()
            .find(|slot| part.hint(*slot).load(Ordering::SeqCst) & groups(class) != 0)?;
        slots.remove(&slot);
        match part.slot(slot) {
            Ok(Slot {
                generation,
                used: Use::Slab(found, Lifetime::Space),
            }) if found == class => {
                part.owner(slot).store(session.0, Ordering::Release);
                Some(Extent { slot, generation })
            }
            _ => None,
        }
    }

    /// What becomes of something that an ended session owned.
    fn orphan(&mut self, part: &Part, slot: u32) {
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
                self.nobodys.entry(class).or_default().insert(slot);
            }
            Use::Head(Lifetime::Session) => self.release_run(part, slot, generation),
            Use::Head(Lifetime::Space) => part.owner(slot).store(0, Ordering::Release),
            Use::Free | Use::Tail(_) | Use::Retired => {}
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

    /// Sets the hint for each group of live words with room: for a slab whose owner is gone, and with it what it had taken from the hint.
    pub(super) fn hint_all(&self, slot: u32, class: Class) {
        let has_room = |word: u32| !self.live(slot, word).load(Ordering::SeqCst) & class.mask(word) != 0;
        let groups = (0..class.words())
            .filter(|word| has_room(*word))
            .map(|word| 1 << (word / GROUP_WORDS));
        let hint = groups.fold(0, |all, group: u64| all | group);
        self.hint(slot).fetch_or(hint, Ordering::SeqCst);
    }

    /// Makes a free slot a slab: see the invariants.
    fn lay_slab(&self, slot: u32, slab: Slot, class: Class, owner: SessionId) {
        self.owner(slot).store(owner.0, Ordering::Relaxed);
        let empty = u64::from(slab.generation) << GENERATION_SHIFT;
        for word in 0..class.words() {
            self.live(slot, word).store(empty, Ordering::Relaxed);
        }
        self.hint(slot).store(groups(class), Ordering::Relaxed);
        self.state(slot).store(slab.encode(), Ordering::Release);
    }

    /// Makes `n` free slots a run: see the invariants.
    fn lay_run(&self, first: u32, n: u32, bytes: u64, head: Slot, owner: SessionId) {
        for distance in 1..n {
            let tail = Slot {
                generation: head.generation,
                used: Use::Tail(distance),
            };
            self.state(first + distance).store(tail.encode(), Ordering::Release);
        }
        self.run_bytes(first).store(bytes, Ordering::Relaxed);
        self.owner(first).store(owner.0, Ordering::Relaxed);
        self.state(first).store(head.encode(), Ordering::Release);
    }
}

impl Keeper for LocalKeeper {
    fn begin(&self) -> Result<SessionId> {
        let mut books = self.books.lock();
        let id = books.next_session;
        books.next_session = id
            .checked_add(1)
            .ok_or_else(|| Error::corrupt(format!("{}: the next session's number", self.part.name())))?;
        self.part.next_session().store(books.next_session, Ordering::Release);
        books.sessions.insert(SessionId(id));
        Ok(SessionId(id))
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        let (part, mut books) = (&*self.part, self.books.lock());
        books.check(session)?;
        if lifetime == Lifetime::Space
            && let Some(extent) = books.adopt(part, session, class)
        {
            return Ok(extent);
        }
        if books.free.len() == 0 {
            books.sweep(part);
        }
        let wanted = || format!("objects of {}", ByteSize(class.size()));
        let (slot, former) = books.pick(part).ok_or_else(|| self.full(&books, &wanted()))?;
        part.reserve_below(slot + 1)
            .inspect_err(|_| books.free.add(slot, former))?;
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
        let (part, mut books) = (&*self.part, self.books.lock());
        books.check(session)?;
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
                books.release(part, extent.slot, generation);
            }
        }
        Ok(())
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        let (part, mut books) = (&*self.part, self.books.lock());
        books.check(session)?;
        let wanted = || format!("an object of {}", ByteSize(bytes));
        let slots = run_slots(bytes).ok_or_else(|| self.full(&books, &wanted()))?;
        let mut picked = books.pick_run(part, slots);
        if picked.is_none() {
            books.sweep(part);
            picked = books.pick_run(part, slots);
        }
        let (first, former) = picked.ok_or_else(|| self.full(&books, &wanted()))?;
        if let Err(error) = part.reserve_below(first + slots) {
            (first..first + slots).for_each(|slot| books.free.add(slot, former));
            return Err(error);
        }
        let generation = former + 1;
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
        let address = GlobalAddress::new(part.number(), first, 0, generation)?;
        Ok(Run {
            address,
            zeroed: former == 0 && part.is_zero_when_new(),
        })
    }

    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        let (part, mut books) = (&*self.part, self.books.lock());
        let Slot { generation, used } = part.slot(address.slot())?;
        let is_there = matches!(used, Use::Head(_)) && generation == address.generation() && address.offset() == 0;
        if !is_there || address.part() != part.number() {
            return Err(Error::Invalid(format!("no run begins at {address}")));
        }
        books.release_run(part, address.slot(), generation);
        Ok(())
    }

    fn end(&self, session: SessionId) -> Result<()> {
        let (part, mut books) = (&*self.part, self.books.lock());
        if books.sessions.remove(&session) {
            let owned = |slot: &u32| part.owner(*slot).load(Ordering::Acquire) == session.0;
            (0..part.slots())
                .filter(owned)
                .for_each(|slot| books.orphan(part, slot));
        }
        Ok(())
    }

    fn audit(&self) -> Result<Vec<String>> {
        Ok(audit::audit(&self.part, &self.books.lock()))
    }
}
