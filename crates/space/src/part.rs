//! A part, mapped: the only ways to reach what lies in it.

mod fenced;

use super::GlobalAddress;
use super::class::WORDS_MAX;
use super::layout::{
    BYTES, DESCRIPTOR, DESCRIPTORS_AT, FREEZINGS, KEEPER_AT, LIVE_AT, Layout, MADE, MAP_WORDS, MIGRATED,
    MIGRATED_STATE, NEXT_SESSION, OWNER, PLACE, ROOT, SAVED, STATE,
};
use super::migrated_extents::MigratedExtents;
use super::mirror_step::Mirrored;
use super::presence::{KEEPER, MARK, Presence};
use super::slot::Slot;
use crate::extent::EXTENT;
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::{Error, Result};
use cenote_fabric::{HostAtomicU64, Identity, Kind, LINE, Region, RegionOptions, Row, RowTable, Rows, RowsAt, Words};
use std::path::Path;
use std::sync::Arc;

// A map is a line for the hint, and the live words.
const _: () = assert!(LIVE_AT + WORDS_MAX as usize <= MAP_WORDS);

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
    /// Whether its extents can move to other parts of the space and theirs to here. Accesses then take a nanosecond or
    /// two more.
    pub movable: bool,
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

/// State word, map and memory of the slots of a space's parts, for accesses that need not be announced.
pub(super) type SlotTable = RowTable<256, { DESCRIPTOR as usize }, MAP_WORDS, { EXTENT as usize }>;
/// Those of one part.
pub(super) type PartRows = Rows<{ DESCRIPTOR as usize }, MAP_WORDS, { EXTENT as usize }>;
/// Those of one slot.
pub(super) type SlotRow<'a> = Row<'a, { EXTENT as usize }>;

/// Memory of a space on one memory node, mapped by this process.
pub struct Part {
    /// A word a slot.
    states: Words<{ DESCRIPTOR as usize }>,
    /// All words of all maps.
    maps: Words<8>,
    /// What it takes for extents to move, where they can.
    moving: Option<Moving>,
    /// What it takes for its changes to reach a mirror, where they shall.
    pub(super) mirrored: Option<Mirrored>,
    region: Arc<Region>,
    number: u8,
    layout: Layout,
    is_kept_here: bool,
    /// Other hosts load and store bytes of it.
    is_shared: AtomicBool,
}

/// What a part has where extents can move.
pub(super) struct Moving {
    pub(super) presence: Presence,
    pub(super) migrated_extents: MigratedExtents,
    /// Reads and writes of each slot's memory, counted now and then.
    pub(super) heat: Words<8>,
}

impl Part {
    /// Makes one in a file or device that holds nothing; this process keeps it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if something is there, or it is too small; [`Error::Busy`], [`Error::Full`].
    pub fn create(path: &Path, options: &PartOptions) -> Result<Self> {
        let layout = Layout::within(options.bytes, options.movable)?;
        let identity = options.identity(layout)?;
        let region = Region::create_new(path, layout.end(), identity, options.region)?;
        Self::format(region, layout)
    }

    /// Makes one in memory of this process, gone with it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too small; [`Error::Full`].
    pub fn dram(options: &PartOptions) -> Result<Self> {
        let layout = Layout::within(options.bytes, options.movable)?;
        Self::format(
            Region::dram(layout.end(), options.identity(layout)?, options.region)?,
            layout,
        )
    }

    fn format(region: Region, layout: Layout) -> Result<Self> {
        region.reserve_to(layout.extents_at)?;
        if region.kind() != Kind::File && region.kind() != Kind::Dram {
            let own = region.span(KEEPER_AT, layout.extents_at - KEEPER_AT);
            own.zero(0, own.len());
        }
        let part = Self::read(region, KEEPER)?;
        part.region.atomic_u64(NEXT_SESSION).store(1, Ordering::Release);
        part.region.atomic_u64(MADE).store(part.made_mark(), Ordering::Release);
        Ok(part)
    }

    /// Opens one; this process keeps it.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process keeps it; [`Error::Mismatch`] or [`Error::Corrupt`] if there is no part,
    /// naming what does not fit.
    pub fn open(path: &Path, options: RegionOptions) -> Result<Self> {
        Self::read(Region::open(path, options)?, KEEPER)?.made()
    }

    /// Maps one that another process of this machine keeps.
    ///
    /// # Errors
    /// As [`Part::open`], without [`Error::Busy`].
    pub fn join(path: &Path, options: RegionOptions) -> Result<Self> {
        Self::join_marked(path, options, rt::random() | MARK)
    }

    /// As [`Part::join`], for a process that its keeper knows by a mark: when it is gone, its threads are
    /// [given up](super::Host::give_up).
    ///
    /// # Errors
    /// As [`Part::join`].
    pub fn join_marked(path: &Path, options: RegionOptions, mark: u64) -> Result<Self> {
        Self::read(Region::join(path, options)?, mark | MARK)?.made()
    }

    fn read(region: Region, mark: u64) -> Result<Self> {
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
            moving: layout.movable.then(|| Moving {
                presence: Presence::new(&region, layout.threads_at, mark),
                migrated_extents: MigratedExtents::new(&region, layout),
                heat: Words::new(Arc::clone(&region), layout.heat_at, slots),
            }),
            mirrored: None,
            region,
            number,
            layout,
            is_kept_here: mark == KEEPER,
            is_shared: AtomicBool::new(false),
        })
    }

    /// What says that it is made: not what a former one left.
    fn made_mark(&self) -> u64 {
        (self.region.identity().made_micros as u64) << 1 | 1
    }

    fn made(self) -> Result<Self> {
        match self.region.atomic_u64(MADE).load(Ordering::Acquire) == self.made_mark() {
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

    /// The tenant whose memory it is, as it was made for.
    pub(super) fn tenant(&self) -> u32 {
        self.region.identity().tenant
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

    pub(super) fn is_shared(&self) -> &AtomicBool {
        &self.is_shared
    }

    /// Its memory.
    #[inline(always)]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The same, for those that keep it.
    pub fn shared_region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// What lies where in it.
    #[cfg(test)]
    pub(super) fn layout(&self) -> Layout {
        self.layout
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

    /// Makes its slots known to accesses that take the short way. Where the system has no light fences, and extents
    /// move, there is none.
    pub(super) fn enter_in(&self, table: &SlotTable) {
        let at = RowsAt {
            words: DESCRIPTORS_AT,
            maps: self.layout.maps_at,
            blocks: self.layout.extents_at,
            count: self.layout.slots as usize,
        };
        let lines = self.moving.as_ref().map(|moving| moving.presence.light_lines());
        if lines.as_ref().is_none_or(Option::is_some) {
            table.set(self.number.into(), Arc::clone(&self.region), at, lines.flatten());
        }
    }

    /// The state word of a slot that there is.
    pub(super) fn state(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, STATE)
    }

    /// The bytes of the run that begins in a slot.
    pub(super) fn run_bytes(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, BYTES)
    }

    /// Where a slot's extent is, that is away.
    pub(super) fn place(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, PLACE)
    }

    /// The address of the extent of another slot that lies in a slot's memory; 0: none.
    pub(super) fn migrated(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, MIGRATED)
    }

    /// The state word of that extent; 0 while it has not come yet.
    pub(super) fn migrated_state(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, MIGRATED_STATE)
    }

    /// The state word, before it was frozen, of what lies in a slot's memory.
    pub(super) fn saved(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, SAVED)
    }

    /// How often what lies in a slot's memory began to be frozen.
    pub(super) fn freezings(&self, slot: u32) -> &HostAtomicU64 {
        self.descriptor(slot, FREEZINGS)
    }

    /// What it has for moving extents, if they can.
    #[inline(always)]
    pub(super) fn moving(&self) -> Option<&Moving> {
        self.moving.as_ref()
    }

    /// Whether its extents can move.
    pub fn is_movable(&self) -> bool {
        self.moving.is_some()
    }

    /// Whether extents of it go to other parts, and others' come: what is mirrored stays.
    pub(super) fn may_move(&self) -> bool {
        self.is_movable() && self.mirrored.is_none()
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

    /// The address that what lies in the part is found by.
    pub(super) fn root(&self) -> &HostAtomicU64 {
        self.region.atomic_u64(ROOT)
    }

    /// Sets it, if it was another one.
    pub(super) fn swap_root(&self, was: GlobalAddress, root: GlobalAddress) {
        let swapped = self
            .root()
            .compare_exchange(was.raw(), root.raw(), Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_ok() {
            self.changed_page();
        }
    }

    /// Sets that.
    pub(super) fn set_root(&self, root: GlobalAddress) {
        self.root().store(root.raw(), Ordering::Release);
        self.changed_page();
    }

    /// Where a slot's map says that there may be room.
    pub(super) fn hint(&self, slot: u32) -> &HostAtomicU64 {
        self.maps.get(slot as usize * MAP_WORDS).expect("a slot of the part")
    }

    /// A live word of a slot, if there is one.
    #[inline(always)]
    pub(super) fn live_of(&self, slot: u32, word: u32) -> Option<&HostAtomicU64> {
        self.maps.get(slot as usize * MAP_WORDS + LIVE_AT + word as usize)
    }

    /// Asks the processor for a live word.
    #[inline(always)]
    pub(super) fn prefetch_live(&self, slot: u32, word: u32) {
        self.maps.prefetch(slot as usize * MAP_WORDS + LIVE_AT + word as usize);
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

    /// A slot's descriptor has changed.
    pub(super) fn changed_slot(&self, slot: u32) {
        self.changed(DESCRIPTORS_AT + u64::from(slot) * DESCRIPTOR, DESCRIPTOR);
    }

    /// A slot's hint has changed.
    pub(super) fn changed_hint(&self, slot: u32) {
        self.changed(self.map_at(slot).0, 8);
    }

    /// Live words of a slot have changed: the first `n` from `word` on.
    pub(super) fn changed_live(&self, slot: u32, word: u32, n: u32) {
        let at = self.map_at(slot).0 + (LIVE_AT as u64 + u64::from(word)) * 8;
        self.changed(at, u64::from(n) * 8);
    }

    /// The keeper's own page has changed.
    pub(super) fn changed_page(&self) {
        self.changed(KEEPER_AT, LINE as u64);
    }

    /// Where a slot's map lies in the region, and its length in bytes.
    pub(super) fn map_at(&self, slot: u32) -> (u64, u64) {
        assert!(slot < self.layout.slots, "a map outside the part");
        let len = MAP_WORDS as u64 * 8;
        (self.layout.maps_at + u64::from(slot) * len, len)
    }

    /// Bytes of an extent's image: its map, and its objects.
    pub(super) const fn image_len() -> u64 {
        MAP_WORDS as u64 * 8 + EXTENT
    }

    /// Where byte `place` of the extents lies in the region.
    #[inline(always)]
    pub(super) fn at(&self, place: u64) -> u64 {
        self.layout.extents_at + place
    }

    /// Takes the space of the extents below `slot`, so that using them cannot fail.
    pub(super) fn reserve_below(&self, slot: u32) -> Result<()> {
        assert!(slot <= self.layout.slots, "{slot} slots of {}", self.layout.slots);
        self.region.reserve_to(self.at(u64::from(slot) * EXTENT))
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
