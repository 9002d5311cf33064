//! A part's file: what lies where in it.
//!
//! ```text
//!  0        region header (fabric); its geometry names this layout and its version, its identity space, part and tenant
//!  4096     keeper's page     0 u64 made: all below is in order     8 u64 the next session's number
//!                            16 u64 root: the address that what lies here is found by     24 u64 migrated extents that lie here
//!                            32 u64 members that were fenced, counted     64 504 of them, the last ones, a word each
//!   (where it is mirrored)
//!  8192     descriptors, 64 B a slot
//!              0 u64 state: generation 18 | code 8: free, retired, a run's head or tail, a class | lifetime 1 | zero 20 | distance to the head 17
//!              8 u64 bytes of the run (in its first slot)
//!             16 u64 owner: the session that allocates in it, 0: none
//!             24 u64 place of what is away: part 8 | slot 32       32 u64 migrated extent: the address of the extent that lies in the slot's memory, 0: its own or nothing
//!             40 u64 the migrated extent's state; 0: it has not come yet     48 u64 the state before it was frozen, of what lies here
//!             56 u64 freezings: how often what lies here began to be frozen, counted before its state says so
//!  threads_at  2048 lines, of a thread each       0 u64 whose     8 u64 odd while it uses the part     (only where extents can move, and the next two)
//!             16 u64 the count at which its next access is counted     24 u64 1 where its fences are light
//!  migrated_at 32 B a slot, and up to the next power of two: pairs of migrated extent and slot, four a line, a migrated extent in one of two lines
//!  heat_at     8 B a slot: reads 32 | writes 32, counted now and then
//!  maps_at     maps, 5824 B a slot
//!              0 u64 hint: a bit for each 16 live words, set where there may be room
//!             64 713 live words: generation 18 | a bit an object 46
//!  extents_at  extents, 2 MiB each, 2 MiB aligned
//! ```
//!
//! | field | written by | needed by |
//! |---|---|---|
//! | state, bytes, owner | the keeper | each access; the next keeper |
//! | hint | the owner takes bits, a session that frees sets them | the owner; the keeper, when a session has ended |
//! | live words | the keeper with the extent; then any client, by compare-and-swap | each access, the owner |
//! | freezings | the keeper, before it freezes | readers of other pods, whose card reads what lies there ([`far::fetcher`](super::far)) |
//! | next session | the keeper | the next keeper |
//! | root | a process that keeps something in the space | the next such process |
//!
//! Nothing in the file is believed because of where it stands: [`Slot::decode`](super::slot::Slot::decode) knows what a
//! state can be, offsets are computed from the checked geometry. Accesses of words outside the file are not possible by
//! construction: slots and words are compared with what there are.

use super::address::SLOT_BITS;
use super::class::{Class, WORDS_MAX};
use crate::extent::EXTENT;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::{GEOMETRY_WORDS, HEADER_SIZE, Identity, LINE};

/// The first geometry word of a part.
const MAGIC: u64 = u64::from_le_bytes(*b"CENOTESP");
/// The version of this layout that is written and understood.
const VERSION: u64 = 1;
/// Slots that a part can have.
const SLOTS_MAX: u64 = 1 << SLOT_BITS;

pub(super) const KEEPER_AT: u64 = HEADER_SIZE as u64;
pub(super) const MADE: u64 = KEEPER_AT;
pub(super) const NEXT_SESSION: u64 = KEEPER_AT + 8;
pub(super) const ROOT: u64 = KEEPER_AT + 16;
pub(super) const DESCRIPTORS_AT: u64 = KEEPER_AT + 4096;
pub(super) const DESCRIPTOR: u64 = LINE as u64;
pub(super) const STATE: u64 = 0;
pub(super) const BYTES: u64 = 8;
pub(super) const OWNER: u64 = 16;
pub(super) const PLACE: u64 = 24;
pub(super) const MIGRATED: u64 = 32;
pub(super) const MIGRATED_STATE: u64 = 40;
pub(super) const SAVED: u64 = 48;
pub(super) const FREEZINGS: u64 = 56;
pub(super) const MIGRATED_COUNT: u64 = KEEPER_AT + 24;
pub(super) const FENCED_COUNT: u64 = KEEPER_AT + 32;
pub(super) const FENCED_AT: u64 = KEEPER_AT + 64;
/// Members that are noted as fenced.
pub(super) const FENCED: u64 = 504;
/// Threads that can use a part at a time, where extents can move.
pub(super) const THREADS: usize = 2048;
/// Migrated extents that a line of their table has.
pub(super) const MIGRATED_A_LINE: usize = 4;
const WORDS_AT: u64 = LINE as u64;
const MAP: u64 = (WORDS_AT + 8 * WORDS_MAX as u64).next_multiple_of(LINE as u64);
pub(super) const MAP_WORDS: usize = MAP as usize / 8;
/// Where its live words begin: a line is the hint's.
pub(super) const LIVE_AT: usize = WORDS_AT as usize / 8;
/// Live words that one bit of the hint speaks for: two lines of them.
pub(super) const GROUP_WORDS: u32 = 16;

// The words of the keeper's page, and of a descriptor, lie apart.
const _: () = {
    assert!(MADE + 8 <= NEXT_SESSION && NEXT_SESSION + 8 <= ROOT && ROOT + 8 <= MIGRATED_COUNT);
    assert!(MIGRATED_COUNT + 8 <= FENCED_COUNT && FENCED_COUNT + 8 <= FENCED_AT);
    assert!(FENCED_AT + FENCED * 8 <= DESCRIPTORS_AT && DESCRIPTORS_AT.is_multiple_of(DESCRIPTOR));
    // `Part` maps the states as the words at the descriptors' beginnings.
    assert!(STATE == 0 && STATE + 8 <= BYTES && BYTES + 8 <= OWNER && OWNER + 8 <= PLACE);
    assert!(PLACE + 8 <= MIGRATED && MIGRATED + 8 <= MIGRATED_STATE && MIGRATED_STATE + 8 <= SAVED);
    assert!(SAVED + 8 <= FREEZINGS && FREEZINGS + 8 <= DESCRIPTOR && MAP == 5824);
};
// A map: the hint, then the live words from the next line on.
const _: () = {
    assert!(WORDS_MAX.div_ceil(GROUP_WORDS) <= 64);
    assert!(WORDS_AT >= 8 && WORDS_AT + 8 * WORDS_MAX as u64 <= MAP && MAP.is_multiple_of(8));
};
// A place is a part's number and a slot in one word; a line of the migrated extents' table has whole pairs of words.
const _: () = assert!(SLOTS_MAX <= 1 << 32);
const _: () = assert!(MIGRATED_A_LINE * 16 == LINE);

/// Where things lie, for so many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slots: u32,
    /// Whether extents can move: then there are the three areas that this takes.
    pub(super) movable: bool,
    pub(super) threads_at: u64,
    pub(super) migrated_at: u64,
    pub(super) heat_at: u64,
    pub(super) maps_at: u64,
    pub(super) extents_at: u64,
}

impl Layout {
    fn of(slots: u32, movable: bool) -> Self {
        assert!((1..=SLOTS_MAX).contains(&u64::from(slots)), "a part of {slots} slots");
        let sized = |bytes: u64| if movable { bytes } else { 0 };
        let threads_at = DESCRIPTORS_AT + u64::from(slots) * DESCRIPTOR;
        let migrated_at = threads_at + sized((THREADS * LINE) as u64);
        let heat_at = migrated_at + sized((migrated_lines(slots) * LINE) as u64);
        let maps_at = heat_at + sized(u64::from(slots) * 8).next_multiple_of(LINE as u64);
        let extents_at = (maps_at + u64::from(slots) * MAP).next_multiple_of(EXTENT);
        let starts = [threads_at, migrated_at, heat_at, maps_at];
        assert!(starts.is_sorted(), "the areas of a part overlap");
        assert!(
            starts.iter().all(|at| at.is_multiple_of(LINE as u64)),
            "an area begins within a line"
        );
        Self {
            slots,
            movable,
            threads_at,
            migrated_at,
            heat_at,
            maps_at,
            extents_at,
        }
    }

    /// Of a part of so many slots whose extents can move, if there can be one.
    pub(super) fn movable(slots: u32) -> Option<Self> {
        (1..=SLOTS_MAX)
            .contains(&u64::from(slots))
            .then(|| Self::of(slots, true))
    }

    pub(super) fn end(self) -> u64 {
        self.extents_at + u64::from(self.slots) * EXTENT
    }

    /// That with most slots in so many bytes.
    pub(super) fn within(bytes: u64, movable: bool) -> Result<Self> {
        let most = (bytes / EXTENT).min(SLOTS_MAX) as u32;
        let fitting = (1..=most)
            .rev()
            .map(|slots| Self::of(slots, movable))
            .find(|layout| layout.end() <= bytes);
        let small = || {
            Error::Invalid(format!(
                "a part of {} is too small: {} are the least",
                ByteSize(bytes),
                ByteSize(2 * EXTENT)
            ))
        };
        fitting.ok_or_else(small)
    }

    pub(super) fn geometry(self) -> [u64; GEOMETRY_WORDS] {
        let mut words = [0; GEOMETRY_WORDS];
        words[..7].copy_from_slice(&[
            MAGIC,
            VERSION,
            u64::from(self.slots),
            self.maps_at,
            self.extents_at,
            EXTENT,
            u64::from(self.movable),
        ]);
        words
    }

    pub(super) fn read(identity: &Identity) -> Result<Self> {
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
            .map(|slots| Self::of(slots, words[6] == 1))
            .filter(|layout| layout.geometry() == *words && layout.end() <= identity.length);
        layout.ok_or_else(|| Error::corrupt("a part's geometry"))
    }
}

/// Lines of the migrated extents' table: never more than half full.
pub(super) fn migrated_lines(slots: u32) -> usize {
    (slots as usize).next_power_of_two().div_ceil(2).max(2)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_uses_what_there_is() {
        for extents in [2, 3, 300, 356, 357, 2048, 131_072, 200_000] {
            let layout = Layout::within(extents * EXTENT, false).expect("enough");
            assert!(layout.end() <= extents * EXTENT && layout.extents_at.is_multiple_of(EXTENT));
            let own = extents - u64::from(layout.slots);
            assert!(
                own <= 1 + extents / 340 || u64::from(layout.slots) == SLOTS_MAX,
                "{extents}: {own}"
            );
        }
        assert!(Layout::within(2 * EXTENT - 1, true).is_err());
    }

    #[test]
    fn a_geometry_that_does_not_fit_is_refused() {
        let layout = Layout::of(7, true);
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
        for field in 2..8 {
            let mut other = identity.clone();
            other.geometry[field] += 1;
            assert!(matches!(Layout::read(&other), Err(Error::Corrupt(_))), "{field}");
        }
        assert!(matches!(broken(|i| i.length -= 1), Error::Corrupt(_)));
    }
}
