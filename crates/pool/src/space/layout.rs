//! A part: its file, what lies where in it, and the only ways to reach that.
//!
//! ```text
//!  0        region header (fabric); its geometry names this layout and its version, its identity space, part and tenant
//!  4096     keeper's page     0 u64 made: all below is in order     8 u64 the next session's number
//!  8192     descriptors, 64 B a slot
//!              0 u64 state: generation 18 | code 8: free, retired, a run's head or tail, a class | lifetime 1 | zero 20 | distance to the head 17
//!              8 u64 bytes of the run (in its first slot)
//!             16 u64 owner: the session that allocates in it, 0: nobody
//!  maps_at  maps, 5824 B a slot
//!              0 u64 hint: a bit for each 16 live words, set where there may be room
//!             64 713 live words: generation 18 | a bit an object 46
//!  extents_at   extents, 2 MiB each, 2 MiB aligned
//! ```
//!
//! | field | who writes it | who needs it |
//! |---|---|---|
//! | state, bytes, owner | the keeper | each access; the next keeper |
//! | hint | the owner takes bits, whoever frees sets them | the owner; the keeper, when a session has ended |
//! | live words | the keeper with the extent; then anybody, by compare-and-swap | each access, the owner |
//! | next session | the keeper | the next keeper |
//!
//! Nothing in the file is believed because of where it stands: [`Slot::decode`] knows what a state can be, offsets are computed from the checked geometry.
//! Accesses of words outside the file are not possible by construction: slots and words are compared with what there are.

use super::address::{GENERATION_MAX, GENERATION_SHIFT, SLOT_BITS};
use super::class::{CLASSES, Class, SLAB_CODE, WORDS_MAX};
use super::keeper::Lifetime;
use crate::book::EXTENT;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fs;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::{
    GEOMETRY_WORDS, HEADER_SIZE, HostAtomicU64, Identity, Kind, LINE, Region, RegionOptions, Words, is_blank,
};
use std::path::Path;
use std::sync::Arc;

/// The first geometry word of a part.
const MAGIC: u64 = u64::from_le_bytes(*b"CENOTESP");
/// The version of this layout that is written and understood.
const VERSION: u64 = 1;
/// Slots that a part can have.
const SLOTS_MAX: u64 = 1 << SLOT_BITS;

const KEEPER_AT: u64 = HEADER_SIZE as u64;
const MADE: u64 = KEEPER_AT;
const NEXT_SESSION: u64 = KEEPER_AT + 8;
const DESCRIPTORS_AT: u64 = KEEPER_AT + 4096;
const DESCRIPTOR: u64 = LINE as u64;
const STATE: u64 = 0;
const BYTES: u64 = 8;
const OWNER: u64 = 16;
const WORDS_AT: u64 = LINE as u64;
const MAP: u64 = (WORDS_AT + 8 * WORDS_MAX as u64).next_multiple_of(LINE as u64);
const MAP_WORDS: usize = MAP as usize / 8;
/// Live words that one bit of the hint speaks for: two lines of them.
pub(super) const GROUP_WORDS: u32 = 16;

const _: () = {
    assert!(OWNER + 8 <= DESCRIPTOR && MAP == 5824);
    assert!(WORDS_MAX.div_ceil(GROUP_WORDS) <= 64);
    assert!(DISTANCE_BITS <= LIFETIME_SHIFT);
};

const DISTANCE_BITS: u32 = SLOT_BITS;
const LIFETIME_SHIFT: u32 = CODE_SHIFT - 1;
const CODE_SHIFT: u32 = GENERATION_SHIFT - 8;

const FREE: u8 = 0;
const RETIRED: u8 = 1;
const HEAD: u8 = 2;
const TAIL: u8 = 3;
const _: () = assert!(TAIL < SLAB_CODE && SLAB_CODE as usize + CLASSES <= 256);

/// What a state word says that its slot is: a slab's class, or something else.
#[inline(always)]
pub(super) fn code_of(state: u64) -> u8 {
    (state >> CODE_SHIFT) as u8
}

/// What an extent is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Nothing.
    Free,
    /// Objects of a class.
    Slab(Class, Lifetime),
    /// The beginning of a run.
    Head(Lifetime),
    /// More of the run that began so many slots before.
    Tail(u32),
    /// Nothing any more: its generations are used up.
    Retired,
}

/// A slot's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) used: Use,
}

impl Slot {
    pub(super) fn encode(self) -> u64 {
        let life = |lifetime| u64::from(lifetime == Lifetime::Session) << LIFETIME_SHIFT;
        let (code, rest) = match self.used {
            Use::Free => (FREE, 0),
            Use::Slab(class, lifetime) => (class.code(), life(lifetime)),
            Use::Head(lifetime) => (HEAD, life(lifetime)),
            Use::Tail(distance) => (TAIL, u64::from(distance)),
            Use::Retired => (RETIRED, 0),
        };
        u64::from(self.generation) << GENERATION_SHIFT | u64::from(code) << CODE_SHIFT | rest
    }

    /// What a word says, if it says something that [`Slot::encode`] can have said.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let lifetime = match word >> LIFETIME_SHIFT & 1 {
            0 => Lifetime::Space,
            _ => Lifetime::Session,
        };
        let used = match code_of(word) {
            FREE => Use::Free,
            RETIRED => Use::Retired,
            HEAD => Use::Head(lifetime),
            TAIL => Use::Tail(word as u32 & ((1 << DISTANCE_BITS) - 1)),
            code => Use::Slab(Class::of_code(code)?, lifetime),
        };
        let generation = (word >> GENERATION_SHIFT) as u32;
        let slot = Self { generation, used };
        let sound = slot.encode() == word && slot.is_possible();
        sound.then_some(slot)
    }

    fn is_possible(self) -> bool {
        match self.used {
            Use::Free => self.generation < GENERATION_MAX,
            Use::Slab(..) | Use::Head(_) => self.generation > 0,
            Use::Tail(distance) => self.generation > 0 && distance > 0,
            Use::Retired => self.generation == GENERATION_MAX,
        }
    }
}

/// Where things lie, for so many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    slots: u32,
    maps_at: u64,
    extents_at: u64,
}

impl Layout {
    fn of(slots: u32) -> Self {
        let maps_at = DESCRIPTORS_AT + u64::from(slots) * DESCRIPTOR;
        let extents_at = (maps_at + u64::from(slots) * MAP).next_multiple_of(EXTENT);
        Self {
            slots,
            maps_at,
            extents_at,
        }
    }

    fn end(self) -> u64 {
        self.extents_at + u64::from(self.slots) * EXTENT
    }

    /// That with most slots in so many bytes.
    fn within(bytes: u64) -> Result<Self> {
        let most = (bytes / EXTENT).min(SLOTS_MAX) as u32;
        let fitting = (1..=most).rev().map(Self::of).find(|layout| layout.end() <= bytes);
        let small = || {
            Error::Invalid(format!(
                "a part of {} is too small: {} are the least",
                ByteSize(bytes),
                ByteSize(2 * EXTENT)
            ))
        };
        fitting.ok_or_else(small)
    }

    fn geometry(self) -> [u64; GEOMETRY_WORDS] {
        let mut words = [0; GEOMETRY_WORDS];
        words[..6].copy_from_slice(&[
            MAGIC,
            VERSION,
            u64::from(self.slots),
            self.maps_at,
            self.extents_at,
            EXTENT,
        ]);
        words
    }

    fn read(identity: &Identity) -> Result<Self> {
        let words = &identity.geometry;
        if words[0] != MAGIC {
            return Err(Error::Mismatch("magic: it holds no part of a space".into()));
        }
        if words[1] != VERSION {
            let text = format!(
                "version: {} of a part's layout is not {VERSION}, which this program knows",
                words[1]
            );
            return Err(Error::Mismatch(text));
        }
        let slots = u32::try_from(words[2])
            .ok()
            .filter(|n| (1..=SLOTS_MAX as u32).contains(n));
        let layout = slots
            .map(Self::of)
            .filter(|layout| layout.geometry() == *words && layout.end() <= identity.length);
        layout.ok_or_else(|| Error::corrupt("a part's geometry"))
    }
}

/// What a part is made with.
#[derive(Debug, Clone)]
pub struct PartOptions {
    /// The space that it is of.
    pub space: u128,
    /// Its number there, from 1 on.
    pub part: u8,
    /// The tenant whose memory it is, where a pool serves several.
    pub tenant: u32,
    /// Its size in bytes, all that it needs for itself included: 4 MiB at least.
    pub bytes: u64,
    /// How it is mapped.
    pub region: RegionOptions,
}

impl PartOptions {
    fn identity(&self, layout: Layout) -> Result<Identity> {
        if self.part == 0 {
            return Err(Error::Invalid("parts are numbered from 1 on".into()));
        }
        Ok(Identity {
            database: self.space,
            region: self.part.into(),
            tenant: self.tenant,
            geometry: layout.geometry(),
            ..Identity::default()
        })
    }
}

/// Memory of a space on one memory node, mapped by this process.
pub struct Part {
    /// A word a slot.
    states: Words<{ DESCRIPTOR as usize }>,
    /// All words of all maps.
    maps: Words<8>,
    region: Arc<Region>,
    number: u8,
    layout: Layout,
    is_kept_here: bool,
}

impl Part {
    /// Makes one in a file or device that holds nothing; this process keeps it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if something is there, or it is too small; [`Error::Busy`], [`Error::Full`].
    pub fn create(path: &Path, options: &PartOptions) -> Result<Self> {
        let layout = Layout::within(options.bytes)?;
        let identity = options.identity(layout)?;
        let is_there = fs::exists(path).map_err(|e| Error::io(format!("looking for {}", path.display()), e))?;
        if is_there && !is_blank(path) {
            return Err(Error::Invalid(format!(
                "{} holds something: a part is not made over it",
                path.display()
            )));
        }
        Self::format(Region::create(path, layout.end(), identity, options.region)?, layout)
    }

    /// Makes one in memory of this process, gone with it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too small; [`Error::Full`].
    pub fn dram(options: &PartOptions) -> Result<Self> {
        let layout = Layout::within(options.bytes)?;
        Self::format(
            Region::dram(layout.end(), options.identity(layout)?, options.region)?,
            layout,
        )
    }

    fn format(region: Region, layout: Layout) -> Result<Self> {
        region.reserve_to(layout.extents_at)?;
        let part = Self::read(region, true)?;
        if !part.is_zero_when_new() {
            let own = part.region.span(KEEPER_AT, layout.extents_at - KEEPER_AT);
            own.zero(0, own.len());
        }
        part.region.atomic_u64(NEXT_SESSION).store(1, Ordering::Release);
        part.region.atomic_u64(MADE).store(part.mark(), Ordering::Release);
        Ok(part)
    }

    /// Opens one; this process keeps it.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process keeps it; [`Error::Mismatch`] or [`Error::Corrupt`] if there is no part, naming what does not fit.
    pub fn open(path: &Path, options: RegionOptions) -> Result<Self> {
        Self::read(Region::open(path, options)?, true)?.made()
    }

    /// Maps one that another process of this machine keeps.
    ///
    /// # Errors
    /// As [`Part::open`], without [`Error::Busy`].
    pub fn join(path: &Path, options: RegionOptions) -> Result<Self> {
        Self::read(Region::join(path, options)?, false)?.made()
    }

    fn read(region: Region, is_kept_here: bool) -> Result<Self> {
        let named = |error| match error {
            Error::Mismatch(text) => Error::Mismatch(format!("{}: {text}", region.name())),
            Error::Corrupt(text) => Error::Corrupt(format!("{}: {text}", region.name())),
            other => other,
        };
        let layout = Layout::read(region.identity()).map_err(named)?;
        let number = u8::try_from(region.id()).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| named(Error::corrupt("a part's number")))?;
        let (region, slots) = (Arc::new(region), layout.slots as usize);
        Ok(Self {
            states: Words::new(Arc::clone(&region), DESCRIPTORS_AT, slots),
            maps: Words::new(Arc::clone(&region), layout.maps_at, slots * MAP_WORDS),
            region,
            number,
            layout,
            is_kept_here,
        })
    }

    /// What says that it is made: not what a former one left.
    fn mark(&self) -> u64 {
        (self.region.identity().made_micros as u64) << 1 | 1
    }

    fn made(self) -> Result<Self> {
        match self.region.atomic_u64(MADE).load(Ordering::Acquire) == self.mark() {
            true => Ok(self),
            false => Err(Error::Mismatch(format!(
                "{}: its making was cut off; remove it",
                self.region.name()
            ))),
        }
    }

    /// Whether what was never used is zero: in a new file and new memory it is, on a device it is what was there.
    pub(super) fn is_zero_when_new(&self) -> bool {
        matches!(self.region.kind(), Kind::File | Kind::Dram)
    }

    /// Its number in the space.
    #[inline(always)]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The space that it is of.
    pub fn space(&self) -> u128 {
        self.region.identity().database
    }

    /// Extents that it has.
    #[inline(always)]
    pub fn slots(&self) -> u32 {
        self.layout.slots
    }

    /// Bytes for objects that it has.
    pub fn capacity(&self) -> u64 {
        u64::from(self.layout.slots) * EXTENT
    }

    /// Whether this process keeps it.
    pub fn is_kept_here(&self) -> bool {
        self.is_kept_here
    }

    /// Its memory.
    #[inline(always)]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// What it is called in messages.
    pub(super) fn name(&self) -> String {
        format!("part {} ({})", self.number, self.region.name())
    }

    /// The state word of a slot, if there is one of this number.
    #[inline(always)]
    pub(super) fn state_of(&self, slot: u32) -> Option<&HostAtomicU64> {
        self.states.get(slot as usize)
    }

    /// The state word of a slot that there is.
    pub(super) fn state(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, STATE)
    }

    /// The bytes of the run that begins in a slot.
    pub(super) fn run_bytes(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, BYTES)
    }

    /// The number of a slot's owner.
    pub(super) fn owner(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, OWNER)
    }

    fn descriptor(&self, slot: u32, field: u64) -> &HostAtomicU64 {
        assert!(slot < self.layout.slots, "a slot outside the part");
        self.region
            .atomic_u64(DESCRIPTORS_AT + u64::from(slot) * DESCRIPTOR + field)
    }

    /// The number of the next session.
    pub(super) fn next_session(&self) -> &HostAtomicU64 {
        self.region.atomic_u64(NEXT_SESSION)
    }

    /// Where a slot's map says that there may be room.
    pub(super) fn hint(&self, slot: u32) -> &HostAtomicU64 {
        self.maps.get(slot as usize * MAP_WORDS).expect("a slot of the part")
    }

    /// A live word of a slot, if there is one.
    #[inline(always)]
    pub(super) fn live_of(&self, slot: u32, word: u32) -> Option<&HostAtomicU64> {
        self.maps.get(slot as usize * MAP_WORDS + LINE / 8 + word as usize)
    }

    /// Asks the processor for a live word.
    #[inline(always)]
    pub(super) fn prefetch_live(&self, slot: u32, word: u32) {
        self.maps.prefetch(slot as usize * MAP_WORDS + LINE / 8 + word as usize);
    }

    /// A live word of a slot.
    pub(super) fn live(&self, slot: u32, word: u32) -> &HostAtomicU64 {
        assert!(word < WORDS_MAX, "a live word outside of its map");
        self.live_of(slot, word).expect("a slot of the part")
    }

    /// What a slot is used for.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Invalid`] if there is no such slot.
    pub(super) fn slot(&self, slot: u32) -> Result<Slot> {
        if slot >= self.slots() {
            return Err(Error::Invalid(format!(
                "{} has no slot {slot}: it has {}",
                self.name(),
                self.slots()
            )));
        }
        let word = self.state(slot).load(Ordering::Acquire);
        Slot::decode(word).ok_or_else(|| Error::Corrupt(format!("{}: state of slot {slot}: {word:#018x}", self.name())))
    }

    /// Where byte `place` of the extents lies in the region.
    #[inline(always)]
    pub(super) fn at(&self, place: u64) -> u64 {
        self.layout.extents_at + place
    }

    /// Takes the space of the extents below `slot`, so that using them cannot fail.
    pub(super) fn reserve_below(&self, slot: u32) -> Result<()> {
        self.region.reserve_to(self.at(u64::from(slot) * EXTENT))
    }
}

/// Slots that a run of `bytes` takes; `None` if no part has so many.
pub(super) fn run_slots(bytes: u64) -> Option<u32> {
    let slots = bytes.div_ceil(EXTENT);
    (1..=SLOTS_MAX).contains(&slots).then_some(slots as u32)
}

/// Bits of the hint that speak for something in a class.
pub(super) fn groups(class: Class) -> u64 {
    match class.words().div_ceil(GROUP_WORDS) {
        64 => u64::MAX,
        n => (1 << n) - 1,
    }
}

impl core::fmt::Debug for Part {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{} of space {:x}, {} extents",
            self.name(),
            self.space(),
            self.slots()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_as_it_was_written() {
        let class = Class::numbered(85).expect("the last");
        let uses = [
            Use::Slab(class, Lifetime::Session),
            Use::Slab(class, Lifetime::Space),
            Use::Head(Lifetime::Session),
            Use::Head(Lifetime::Space),
            Use::Tail(131_071),
        ];
        for used in uses {
            let slot = Slot {
                generation: GENERATION_MAX,
                used,
            };
            assert_eq!(Slot::decode(slot.encode()), Some(slot));
            assert_eq!(Slot::decode(slot.encode() | 1 << (DISTANCE_BITS + 3)), None);
            let never = Slot { generation: 0, used };
            assert_eq!(Slot::decode(never.encode()), None);
        }
        assert_eq!(
            Slot::decode(0),
            Some(Slot {
                generation: 0,
                used: Use::Free
            })
        );
        assert_eq!(Slot::decode(7 << CODE_SHIFT), None);
        let beyond = (u64::from(SLAB_CODE) + CLASSES as u64) << CODE_SHIFT;
        assert_eq!(Slot::decode(1 << GENERATION_SHIFT | beyond), None);
    }

    #[test]
    fn a_layout_uses_what_there_is() {
        for extents in [2, 3, 300, 356, 357, 2048, 131_072, 200_000] {
            let layout = Layout::within(extents * EXTENT).expect("enough");
            assert!(layout.end() <= extents * EXTENT && layout.extents_at.is_multiple_of(EXTENT));
            let own = extents - u64::from(layout.slots);
            assert!(
                own <= 1 + extents / 340 || u64::from(layout.slots) == SLOTS_MAX,
                "{extents}: {own}"
            );
        }
        assert!(Layout::within(2 * EXTENT - 1).is_err());
    }

    #[test]
    fn a_geometry_that_does_not_fit_is_refused() {
        let layout = Layout::of(7);
        let identity = Identity {
            geometry: layout.geometry(),
            length: layout.end(),
            ..Identity::default()
        };
        assert_eq!(Layout::read(&identity).expect("it fits"), layout);
        let broken = |change: fn(&mut Identity)| {
            let mut other = identity.clone();
            change(&mut other);
            Layout::read(&other).expect_err("it does not fit")
        };
        assert!(broken(|i| i.geometry[0] += 1).to_string().contains("magic"));
        assert!(broken(|i| i.geometry[1] += 1).to_string().contains("version"));
        for field in 2..7 {
            let mut other = identity.clone();
            other.geometry[field] += 1;
            assert!(matches!(Layout::read(&other), Err(Error::Corrupt(_))), "{field}");
        }
        assert!(matches!(broken(|i| i.length -= 1), Error::Corrupt(_)));
    }
}
