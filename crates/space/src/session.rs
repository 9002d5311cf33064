//! A session allocates: from slabs of its own, without a message, by setting a bit.
//!
//! Of each class and lifetime it has a slab cache. It fills one group of live words (16 words, two lines) after the
//! other: those that the slab's hint names. Taking a group clears its bit in the hint *before* the words are read, and
//! a session that frees an object sets the bit *after* it has cleared the live bit: so no freed object is overlooked,
//! and a full slab costs its owner one load.
//!
//! 1. The group at hand has a free bit: set it by compare-and-swap, zero the object, done.
//! 2. Else the next group with a hint, in this slab or the next ones of the cache (at most [`LOOKS`] of them).
//! 3. Else a slab from the keeper. On this occasion some others of this session are looked at, and go back to the
//!    keeper if they are empty.
//! 4. If the keeper has none: the hints of all slabs of the class; then all empty slabs go back, for one in return;
//!    then, now and then, hints are set anew.
//!
//! A process that is killed in `alloc` leaves at most the object that it was allocating; one that is killed in `free`
//! has freed it or not (if it did not come to set the hint, the bit is found when the session's slabs go to another
//! owner).

use super::address::GENERATION_SHIFT;
use super::class::{Class, LIVE_BITS};
use super::keeper::{Extent, Keeper, Lifetime, SessionId};
use super::layout::{GROUP_WORDS, groups, run_slots};
use super::lock::Locks;
use super::part::Part;
use super::slot::{Slot, Use};
use super::spread::Spread;
use super::{Attached, EXTENT, FarAttached, GlobalAddress, SLAB_OBJECT_MAX, Space};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Mutex};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use core::ops::Deref;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Slabs that are looked at for room, or for being empty, before another one is asked for.
const LOOKS: usize = 64;
/// Once in so many times that there is no room all live words are read, for what was freed without a hint.
const SEARCHES: u32 = 64;

/// Allocates objects of a space: one for a thread, or for a few that do not mind to wait for each other. Everything
/// that its [`Space`] can do, it can too. Dropping it closes it.
pub struct Session {
    space: Space,
    part_sessions: Mutex<PartSessions>,
    /// The locks of the space that its threads have.
    pub(super) locks: Locks,
}

/// What a session has in each part, and the part that last had room: it is asked first.
#[derive(Default)]
struct PartSessions {
    by_part: BTreeMap<u8, PartSession>,
    /// Its number in parts that this process does not map.
    far: BTreeMap<u8, SessionId>,
    first: u8,
    /// What it chooses other pods by; drawn when it first does.
    spread: Option<u64>,
}

/// A session in one part.
pub(super) struct PartSession {
    part: Arc<Part>,
    keeper: Arc<dyn Keeper>,
    id: SessionId,
    slab_caches: BTreeMap<(Class, Lifetime), SlabCache>,
    /// The slab cache that was last looked at for empty slabs.
    looked_at: Option<(Class, Lifetime)>,
    /// How often there was no room at all.
    found_full: u32,
}

/// Slabs of one class and lifetime.
#[derive(Default)]
struct SlabCache {
    slabs: Vec<Extent>,
    /// Which of them was last found to have room.
    at: usize,
    cursor: Option<Cursor>,
}

/// Where the next object comes from.
#[derive(Clone, Copy)]
struct Cursor {
    slab: Extent,
    /// The live word at hand, and the end of its group.
    word: u32,
    end: u32,
    /// Bits of the word that were free when it was read, and have not been tried since.
    free: u64,
}

impl Session {
    pub(super) fn new(space: Space) -> Self {
        Self {
            space,
            part_sessions: Mutex::default(),
            locks: Locks::default(),
        }
    }

    /// A new object of at least `len` bytes, all zero, that stays until it is freed.
    ///
    /// # Errors
    /// As [`Session::alloc_in`].
    pub fn alloc(&self, len: u64) -> Result<GlobalAddress> {
        self.alloc_in(len, Lifetime::Space)
    }

    /// A new object of at least `len` bytes, all zero.
    ///
    /// # Errors
    /// [`Error::Full`] if no part has room; why one cannot be asked, if no other has room; [`Error::Invalid`] if `len`
    /// is 0; [`Error::Revoked`] if the session was ended by the keeper; those of the way to it.
    pub fn alloc_in(&self, len: u64, lifetime: Lifetime) -> Result<GlobalAddress> {
        if len == 0 {
            return Err(Error::Invalid("an object has one byte at least".into()));
        }
        let mut part_sessions = self.part_sessions.lock();
        let mut tried = None;
        let first = part_sessions.first;
        if let Some(part_session) = part_sessions.by_part.get_mut(&first) {
            match part_session.alloc(len, lifetime) {
                Err(error) if has_none(&error) => tried = Some((first, error)),
                answer => return answer,
            }
        }
        match self.alloc_elsewhere(&mut part_sessions, len, lifetime, tried) {
            Err(error) if has_none(&error) && self.space.has_grown() => {
                self.alloc_elsewhere(&mut part_sessions, len, lifetime, None)
            }
            answer => answer,
        }
    }

    /// In the first part that has room, of those that have not been tried: first those that this process maps, then
    /// those of other pods in the session's own order ([`Spread`]). If none has, the error names one that is offline, if there is one: it may have room.
    fn alloc_elsewhere(
        &self,
        part_sessions: &mut PartSessions,
        len: u64,
        lifetime: Lifetime,
        tried: Option<(u8, Error)>,
    ) -> Result<GlobalAddress> {
        let (tried, mut why) = match tried {
            Some((part, error)) => (Some(part), error),
            None => (None, Error::Full("the space has no memory yet".into())),
        };
        let near = self.space.attached();
        for attached in near.filter(|attached| Some(attached.number()) != tried) {
            match part_sessions
                .of(attached)
                .and_then(|part_session| part_session.alloc(len, lifetime))
            {
                Err(error) if has_none(&error) => why = more_telling(why, error),
                answer => {
                    part_sessions.first = attached.number();
                    return answer;
                }
            }
        }
        for attached in part_sessions.spread(len).order(self.space.far_attached()) {
            match part_sessions
                .of_far(attached)
                .and_then(|id| attached.part.alloc(id, len, lifetime))
            {
                Err(error) if has_none(&error) => why = more_telling(why, error),
                answer => return answer,
            }
        }
        Err(why)
    }

    /// A new object in one part, as [`Session::alloc`].
    ///
    /// # Errors
    /// As [`Session::alloc`], of this part alone; [`Error::Invalid`] if the space has no such part.
    pub fn alloc_at(&self, part: u8, len: u64) -> Result<GlobalAddress> {
        if len == 0 {
            return Err(Error::Invalid("an object has one byte at least".into()));
        }
        let mut part_sessions = self.part_sessions.lock();
        if let Some(near) = self.space.attached().find(|attached| attached.number() == part) {
            return part_sessions.of(near)?.alloc(len, Lifetime::Space);
        }
        let far = self.space.far_attached().find(|attached| attached.part.number == part);
        let far = far.ok_or_else(|| Error::Invalid(format!("the space has no part {part}")))?;
        let id = part_sessions.of_far(far)?;
        far.part.alloc(id, len, Lifetime::Space)
    }

    /// Gives back all slabs that it has and that are empty: other sessions may need the room.
    ///
    /// # Errors
    /// Those of the way to the keepers.
    pub fn give_back_empty(&self) -> Result<()> {
        let mut part_sessions = self.part_sessions.lock();
        let mut near = part_sessions.by_part.values_mut();
        near.try_for_each(|part_session| part_session.return_all_empty().map(drop))
    }

    /// Its space.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Its number in each part where it has begun.
    pub fn ids(&self) -> Vec<(u8, SessionId)> {
        let part_sessions = self.part_sessions.lock();
        let near = part_sessions
            .by_part
            .iter()
            .map(|(part, part_session)| (*part, part_session.id));
        near.chain(part_sessions.far.iter().map(|(part, id)| (*part, *id)))
            .collect()
    }

    /// Its number in a part; it begins there now if it had not.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the space has no such part; those of the way to its keeper.
    pub fn begin_in(&self, part: u8) -> Result<SessionId> {
        let mut part_sessions = self.part_sessions.lock();
        if let Some(near) = self.space.attached().find(|attached| attached.number() == part) {
            return Ok(part_sessions.of(near)?.id);
        }
        part_sessions.begin_far(part, self.space.keeper_of(part)?)
    }

    /// Ends it: its objects of [`Lifetime::Session`] are freed, its empty slabs go back.
    ///
    /// # Errors
    /// Those of the way to the keepers: then they find out by themselves, as if the process had died.
    pub fn close(self) -> Result<()> {
        self.end()
    }

    fn end(&self) -> Result<()> {
        // Its locks are others' when it has ended: if something of it may come after that, it ends with the process.
        self.locks.abandon(&self.space);
        self.space.settle()?;
        let part_sessions = core::mem::take(&mut *self.part_sessions.lock());
        let near = part_sessions
            .by_part
            .values()
            .map(|part_session| part_session.keeper.end(part_session.id));
        let far = part_sessions
            .far
            .iter()
            .map(|(part, id)| self.space.keeper_of(*part)?.end(*id));
        near.chain(far).fold(Ok(()), Result::and)
    }
}

impl Deref for Session {
    type Target = Space;

    #[inline(always)]
    fn deref(&self) -> &Space {
        &self.space
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A keeper that does not hear of it ends the session with the process.
        let _ = self.end();
    }
}

impl PartSessions {
    /// The part session of a part; it begins now if there was none.
    fn of(&mut self, attached: &Attached) -> Result<&mut PartSession> {
        match self.by_part.entry(attached.number()) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(PartSession::begin(attached)?)),
        }
    }

    /// The order in which it asks other pods for so many bytes.
    fn spread(&mut self, len: u64) -> Spread {
        Spread {
            session: *self.spread.get_or_insert_with(rt::random),
            class: Class::of(len).map_or(u8::MAX, Class::number),
        }
    }

    /// Its number in a part that this process does not map; the session begins there now if it had none.
    fn of_far(&mut self, attached: &FarAttached) -> Result<SessionId> {
        self.begin_far(attached.part.number, &attached.keeper)
    }

    fn begin_far(&mut self, part: u8, keeper: &Arc<dyn Keeper>) -> Result<SessionId> {
        match self.far.entry(part) {
            Entry::Occupied(found) => Ok(*found.get()),
            Entry::Vacant(place) => Ok(*place.insert(keeper.begin()?)),
        }
    }
}

/// Whether a part has nothing to give, for all that is known now. Another may.
fn has_none(error: &Error) -> bool {
    matches!(
        error,
        Error::Full(_) | Error::Busy(_) | Error::Lost(_) | Error::Timeout(_)
    )
}

/// Of several parts that have nothing: that one is full says less than that one is not reached.
fn more_telling(one: Error, other: Error) -> Error {
    match (&one, &other) {
        (Error::Full(_), _) => other,
        _ => one,
    }
}

impl PartSession {
    fn begin(attached: &Attached) -> Result<Self> {
        let id = attached.keeper.begin()?;
        Ok(Self::of(Arc::clone(&attached.part), Arc::clone(&attached.keeper), id))
    }

    /// For a session that has begun.
    pub(super) fn of(part: Arc<Part>, keeper: Arc<dyn Keeper>, id: SessionId) -> Self {
        Self {
            part,
            keeper,
            id,
            slab_caches: BTreeMap::new(),
            looked_at: None,
            found_full: 0,
        }
    }

    pub(super) fn alloc(&mut self, len: u64, lifetime: Lifetime) -> Result<GlobalAddress> {
        match Class::of(len) {
            Some(class) => self.alloc_in_slab(class, lifetime),
            None => self.alloc_run(len, lifetime),
        }
    }

    fn alloc_in_slab(&mut self, class: Class, lifetime: Lifetime) -> Result<GlobalAddress> {
        let slab_cache = self.slab_caches.entry((class, lifetime)).or_default();
        match slab_cache.object((&self.part, self.id), class, LOOKS)? {
            Some(address) => Ok(address),
            None => self.refill(class, lifetime),
        }
    }

    fn alloc_run(&mut self, len: u64, lifetime: Lifetime) -> Result<GlobalAddress> {
        assert!(len > SLAB_OBJECT_MAX, "a run of {len} bytes, which a slab holds");
        let mut taken = self.keeper.take_run(self.id, len, lifetime);
        if matches!(taken, Err(Error::Full(_))) && self.return_all_empty()? {
            taken = self.keeper.take_run(self.id, len, lifetime);
        }
        let run = taken?;
        let pieces = run_slots(len).filter(|_| self.part.has_pieces(lifetime));
        let len = pieces.map_or(len, |pieces| u64::from(pieces) * EXTENT);
        let fits = self
            .part
            .at(run.address.place())
            .checked_add(len)
            .is_some_and(|end| end <= self.part.region().len());
        if !fits || run.address.part() != self.part.number() {
            return Err(Error::corrupt(format!("a run at {}, as its keeper says", run.address)));
        }
        if !run.zeroed {
            self.part
                .region()
                .span(self.part.at(run.address.place()), len)
                .zero(0, len as usize);
            self.part.changed(self.part.at(run.address.place()), len);
        }
        if let Some(pieces) = pieces {
            self.part.set_ready(run.address.slot(), pieces);
        }
        Ok(run.address)
    }

    /// Gets another slab, and the first object of it.
    fn refill(&mut self, class: Class, lifetime: Lifetime) -> Result<GlobalAddress> {
        assert!(
            class.size() <= SLAB_OBJECT_MAX,
            "a slab of objects of {} bytes",
            class.size()
        );
        self.return_some_empty()?;
        match self.take_slab(class, lifetime) {
            Err(Error::Full(text)) => self.make_do(class, lifetime, Error::Full(text)),
            answer => answer,
        }
    }

    /// A slab from the keeper, and the first object of it. One that went away before it was looked at, or that had no
    /// room after all, is followed by another.
    fn take_slab(&mut self, class: Class, lifetime: Lifetime) -> Result<GlobalAddress> {
        for _ in 0..=self.part.slots() {
            let slab = self.keeper.take(self.id, class, lifetime)?;
            if let Some(address) = self.put_up(slab, class, lifetime)? {
                return Ok(address);
            }
        }
        let class = ByteSize(class.size());
        Err(Error::Busy(format!(
            "slabs of {class} move away faster than they are used"
        )))
    }

    /// The keeper has nothing: an object in what the session has, as far as it takes to find one.
    fn make_do(&mut self, class: Class, lifetime: Lifetime, full: Error) -> Result<GlobalAddress> {
        let slab_cache = self.slab_caches.entry((class, lifetime)).or_default();
        if let Some(found) = slab_cache.object((&self.part, self.id), class, usize::MAX)? {
            return Ok(found);
        }
        if self.return_all_empty()? {
            return self.take_slab(class, lifetime);
        }
        self.found_full += 1;
        if self.found_full % SEARCHES == 1 {
            let slab_cache = self.slab_caches.entry((class, lifetime)).or_default();
            slab_cache.hint_all(&self.part, class);
            return slab_cache.object((&self.part, self.id), class, usize::MAX)?.ok_or(full);
        }
        Err(full)
    }

    /// Adds a slab to its slab cache: the first object of it, if it is there still and has room. (A hint may be left of
    /// what was freed and allocated again.)
    fn put_up(&mut self, slab: Extent, class: Class, lifetime: Lifetime) -> Result<Option<GlobalAddress>> {
        if !self.part.check_slab(slab, class, lifetime)? {
            return Ok(None);
        }
        let slab_cache = self.slab_caches.entry((class, lifetime)).or_default();
        slab_cache.add(slab);
        slab_cache.object((&self.part, self.id), class, 1)
    }

    /// Looks at the slabs of one slab cache, another one each time, and gives back those that are empty.
    fn return_some_empty(&mut self) -> Result<()> {
        let after = |key: &(Class, Lifetime)| self.looked_at.is_none_or(|last| *key > last);
        let next = self.slab_caches.keys().copied().find(after);
        self.looked_at = next;
        match next {
            Some(key) => self.return_empty(key, LOOKS).map(drop),
            None => Ok(()),
        }
    }

    /// Gives back all slabs that are empty; whether there were any.
    fn return_all_empty(&mut self) -> Result<bool> {
        let keys: Vec<_> = self.slab_caches.keys().copied().collect();
        let mut any = false;
        for key in keys {
            any |= self.return_empty(key, usize::MAX)?;
        }
        Ok(any)
    }

    fn return_empty(&mut self, key: (Class, Lifetime), looks: usize) -> Result<bool> {
        let Some(slab_cache) = self.slab_caches.get_mut(&key) else {
            return Ok(false);
        };
        let empty = slab_cache.take_empty(&self.part, key.0, looks);
        if !empty.is_empty() {
            self.keeper.give_back(self.id, &empty)?;
        }
        Ok(!empty.is_empty())
    }
}

impl SlabCache {
    fn add(&mut self, slab: Extent) {
        // One that is handed out anew is the same slot, not another.
        self.slabs.retain(|known| known.slot != slab.slot);
        self.at = self.slabs.len();
        self.slabs.push(slab);
    }

    /// A free object, zero and no longer free. All of it happens inside, so that its slab stays where it is meanwhile.
    fn object(&mut self, (part, id): (&Part, SessionId), class: Class, looks: usize) -> Result<Option<GlobalAddress>> {
        part.inside_at_last(|| {
            let Some((slab, index)) = self.find((part, id), class, looks)? else {
                return Ok(None);
            };
            assert!(index < class.count(), "object {index} of a slab of {}", class.count());
            let size = class.size();
            let address = GlobalAddress::new(part.number(), slab.slot, index * size as u32, slab.generation)?;
            let span = part.region().span(part.at(address.place()), size);
            mark::pass(Mark::ObjectTaken);
            if !planted(Fault::ObjectZero) {
                span.zero(0, size as usize);
                part.changed(part.at(address.place()), size);
            }
            Ok(Some(address))
        })
    }

    /// A free object, its bit set from now on: its slab and its number there. At most `looks` slabs are looked at.
    fn find(&mut self, (part, id): (&Part, SessionId), class: Class, looks: usize) -> Result<Option<(Extent, u32)>> {
        loop {
            let gone = self
                .cursor
                .filter(|cursor| part.is_movable() && !part.is_here(cursor.slab, class, id));
            if let Some(cursor) = gone {
                self.cursor = None;
                self.slabs
                    .retain(|slab| *slab != cursor.slab || part.may_stay(cursor.slab));
            }
            if let Some(cursor) = &mut self.cursor {
                match cursor.next(part, class) {
                    Ok(Some(index)) => return Ok(Some((cursor.slab, index))),
                    Ok(None) => self.cursor = None,
                    Err(error) => return Err(self.forget(error)),
                }
            }
            self.cursor = self.next_group((part, id), class, looks);
            if self.cursor.is_none() {
                return Ok(None);
            }
        }
    }

    /// The slab at hand is not what it should be: it is not looked at again.
    fn forget(&mut self, error: Error) -> Error {
        if let Some(cursor) = self.cursor.take() {
            self.slabs.retain(|slab| *slab != cursor.slab);
        }
        error
    }

    /// Takes a group of words with room: of the slab at hand, or of the next ones. The hint of a slot whose slab has
    /// gone is another's.
    fn next_group(&mut self, (part, id): (&Part, SessionId), class: Class, looks: usize) -> Option<Cursor> {
        for _ in 0..self.slabs.len().min(looks) {
            self.at %= self.slabs.len().max(1);
            let slab = *self.slabs.get(self.at)?;
            let is_here = !part.is_movable() || part.is_here(slab, class, id);
            if !is_here && !part.may_stay(slab) {
                self.slabs.remove(self.at);
                continue;
            }
            if is_here && let Some(group) = part.take_hint(slab.slot, class) {
                return Some(Cursor::new(part, class, slab, group));
            }
            self.at += 1;
        }
        None
    }

    /// Sets all hints anew: a process that was killed in between has freed without a hint.
    fn hint_all(&self, part: &Part, class: Class) {
        self.slabs.iter().for_each(|slab| part.hint_all(slab.slot, class));
    }

    /// Takes out slabs that are empty. If not all are to be looked at, the one at hand stays, and those without all
    /// hints are passed over.
    fn take_empty(&mut self, part: &Part, class: Class, looks: usize) -> Vec<Extent> {
        let at_hand = self.cursor.map(|cursor| cursor.slab);
        let may_be = |slab: &Extent| {
            let hint = part.hint(slab.slot).load(Ordering::Relaxed);
            looks == usize::MAX || Some(*slab) != at_hand && hint & groups(class) == groups(class)
        };
        let is_empty = |slab: &Extent| may_be(slab) && part.is_empty_slab(slab.slot, class, slab.generation);
        let count = self.slabs.len();
        let first = count.saturating_sub(looks);
        let (empty, rest): (Vec<_>, Vec<_>) = self.slabs.drain(first..).partition(is_empty);
        self.slabs.splice(0..0, rest);
        assert_eq!(
            self.slabs.len() + empty.len(),
            count,
            "a slab was lost, or is there twice"
        );
        self.cursor.take_if(|cursor| empty.contains(&cursor.slab));
        empty
    }
}

impl Cursor {
    fn new(part: &Part, class: Class, slab: Extent, group: u32) -> Self {
        let word = group * GROUP_WORDS;
        let end = (word + GROUP_WORDS).min(class.words());
        assert!(word < end, "group {group} of {} live words", class.words());
        let mut cursor = Self {
            slab,
            word,
            end,
            free: 0,
        };
        cursor.read(part, class);
        cursor
    }

    fn read(&mut self, part: &Part, class: Class) {
        if self.word < self.end {
            self.free = !part.live(self.slab.slot, self.word).load(Ordering::SeqCst) & class.mask(self.word);
        }
    }

    /// Sets the next free bit of the group: the object's number.
    fn next(&mut self, part: &Part, class: Class) -> Result<Option<u32>> {
        while self.word < self.end {
            if self.free == 0 {
                self.word += 1;
                self.read(part, class);
                continue;
            }
            let bit = self.free.trailing_zeros();
            self.free &= self.free - 1;
            if part.set_live(self.slab, self.word, bit)? {
                return Ok(Some(self.word * LIVE_BITS + bit));
            }
        }
        Ok(None)
    }
}

impl Part {
    /// Sets an object's live bit; false if it is set already.
    fn set_live(&self, slab: Extent, word: u32, bit: u32) -> Result<bool> {
        assert!(bit < LIVE_BITS, "bit {bit} is the generation's");
        let live = self.live(slab.slot, word);
        let mut now = live.load(Ordering::Relaxed);
        while now >> bit & 1 == 0 {
            if now >> GENERATION_SHIFT != u64::from(slab.generation) && !planted(Fault::LiveGeneration) {
                let (slot, generation) = (slab.slot, slab.generation);
                return Err(Error::Revoked(format!(
                    "slot {slot} is not this session's any more: {now:#x} is not of generation {generation}"
                )));
            }
            match live.compare_exchange_weak(now, now | 1 << bit, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.changed_live(slab.slot, word, 1);
                    return Ok(true);
                }
                Err(found) => now = found,
            }
        }
        Ok(false)
    }

    /// Takes the lowest group of the hint, if it names any.
    fn take_hint(&self, slot: u32, class: Class) -> Option<u32> {
        let hint = self.hint(slot);
        let groups = hint.load(Ordering::Relaxed) & groups(class);
        if groups == 0 {
            return None;
        }
        let group = groups.trailing_zeros();
        hint.fetch_and(!(1 << group), Ordering::SeqCst);
        self.changed_hint(slot);
        Some(group)
    }

    /// An object of this word has been freed.
    pub(super) fn hint_at(&self, slot: u32, class: Class, word: u32) {
        let (hint, group) = (self.hint(slot), 1u64 << (word / GROUP_WORDS));
        assert!(group & groups(class) != 0, "word {word} is of no group of the class");
        if hint.load(Ordering::SeqCst) & group == 0 {
            hint.fetch_or(group, Ordering::SeqCst);
            self.changed_hint(slot);
        }
    }

    /// Whether a slab is that still, lies in its slot, and is the session's: one that was away and came back is not.
    fn is_here(&self, slab: Extent, class: Class, id: SessionId) -> bool {
        if planted(Fault::LiveGeneration) {
            return true;
        }
        let is_it =
            |found: Slot| found.generation == slab.generation && matches!(found.used, Use::Slab(of, _) if of == class);
        self.slot(slab.slot).is_ok_and(is_it) && self.owner(slab.slot).load(Ordering::Acquire) == id.0
    }

    /// Whether a slab that cannot be used now may be again: it is about to move, and not every move comes to its end.
    fn may_stay(&self, slab: Extent) -> bool {
        let frozen = Slot {
            generation: slab.generation,
            used: Use::Frozen,
        };
        self.slot(slab.slot).is_ok_and(|found| found == frozen)
    }

    /// Whether a slab is what its keeper has said; not if it has gone on since.
    fn check_slab(&self, slab: Extent, class: Class, lifetime: Lifetime) -> Result<bool> {
        let wanted = Slot {
            generation: slab.generation,
            used: Use::Slab(class, lifetime),
        };
        match self.slot(slab.slot)? {
            found if found == wanted => Ok(true),
            found if self.is_movable() && found.has_left(slab.generation) => Ok(false),
            _ => Err(Error::corrupt(format!("slot {}, as its keeper says", slab.slot))),
        }
    }
}
