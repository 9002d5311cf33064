//! What lies where in remote memory.
//!
//! ```text
//! 0        header       128 bytes: whose it is
//! 512      watermark    32 bytes: as of which position of the log readers may believe names
//! 4 KiB    directory    [`Name`] x slots, 32 bytes each: which page a slot holds; of all parts
//!          index        64 bytes x buckets: which slot has a page (`super::index`); of all parts
//!          slots        16 KiB x slots of the first part
//!
//! slab     slots        16 KiB x slots of a slab; slab n has the n-th so many behind those of the first part
//!
//! header   0 u64 magic "CENOTER1"   8 u32 format  12 u32 slots  16 u128 database
//!         32 u128 incarnation      48 u128 next
//!         64 u32 slots of a slab   68 u32 slabs at most   72 u64 bits of slabs that may be granted
//!         80 .. zeros                                    124 u32 crc32c of 0..124
//! name     0 u64 key, the complement of the page's id; 0: none
//!          8 u64 lsn of the page   16 u64 low half of the incarnation that wrote this
//!         24 u32 the page's checksum                   28 u32 crc32c of 0..28
//! watermark 0 u64 lsn   8 u64 low half of the incarnation that wrote this   16 .. zeros   28 u32 crc32c of 0..28
//! ```
//!
//! Invariants:
//! - nothing read from here is believed before its checksum fits, and the slot's bytes not before they are those of the
//!   name;
//! - a name of another incarnation is none: what a dead process had under way may arrive late.

use std::fmt;
use std::ops::Range;

use cenote_base::bytes::get_le;
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result, crc};

use super::source::{Growth, NAMED, SLABS_MAX};
use crate::hash::{key_of, page_of};

/// Bytes of the header.
pub const HEADER: usize = 128;
/// Where the directory begins.
pub const NAMES_AT: u64 = 4096;
/// Bytes of a slot's entry in the directory.
pub const NAME: usize = 32;
/// Where the watermark lies.
pub const WATERMARK_AT: u64 = 512;
/// Bytes of the watermark.
pub const WATERMARK: usize = 32;
/// Bytes of a bucket of the index.
pub const BUCKET: usize = 64;
/// Slots for each bucket: so few that nearly none of its eight words is short.
const SLOTS_PER_BUCKET: u32 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"CENOTER1");
const FORMAT: u32 = 3;
/// Slots are named by an index of 32 bits.
const SLOTS_MAX: u64 = u32::MAX as u64;

const _: () = assert!(WATERMARK_AT as usize >= HEADER && NAMES_AT >= WATERMARK_AT + WATERMARK as u64);
const _: () = assert!(PAGE_SIZE.is_multiple_of(NAME) && PAGE_SIZE.is_multiple_of(BUCKET));

/// A slot for a page in remote memory, by its place among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteSlot(u32);

impl RemoteSlot {
    /// The slots from `first` on, of which there are `slots` in all.
    pub fn all(first: u32, slots: u32) -> impl DoubleEndedIterator<Item = Self> {
        (first..slots).map(Self)
    }

    /// As a place in a slice with an element for each slot.
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for RemoteSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A part of remote memory: a grant of its own, on whichever node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The one with header, directory and index.
    First,
    /// The slab of this number: slots alone.
    Slab(u32),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::First => f.write_str("the first part"),
            Part::Slab(slab) => write!(f, "slab {slab}"),
        }
    }
}

/// The slabs by which remote memory may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slabs {
    /// Pages that one holds.
    pub slots: u32,
    /// How many there may be.
    pub most: u32,
}

impl Slabs {
    /// Of slabs of so many bytes.
    pub fn of(growth: Option<Growth>) -> Self {
        let slots = |growth: Growth| (growth.slab / PAGE_SIZE as u64).min(SLOTS_MAX) as u32;
        growth.map_or(Self::default(), |growth| Self {
            slots: slots(growth),
            most: growth.most,
        })
    }

    /// A bit for each.
    pub fn all(self) -> u64 {
        assert!(self.most <= SLABS_MAX, "slabs are bits of a word");
        u64::MAX.checked_shr(SLABS_MAX - self.most).unwrap_or(0)
    }

    fn slots_of_all(self) -> u64 {
        u64::from(self.slots) * u64::from(self.most)
    }
}

/// Places in remote memory whose first part has a certain length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Pages that fit all parts that there may be.
    pub slots: u32,
    /// Pages that fit the first part.
    pub first: u32,
    /// The other parts.
    pub slabs: Slabs,
    index_at: u64,
    slots_at: u64,
}

impl Layout {
    /// For a first part of `len` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if not one page fits it, or there are more in all than have numbers.
    pub fn plan(len: u64, slabs: Slabs) -> Result<Self> {
        let others = slabs.slots_of_all();
        let room = len.saturating_sub(ONCE + others * EACH_ELSEWHERE);
        let first = (room / EACH).min(SLOTS_MAX) as u32;
        if first == 0 {
            return Err(Error::Invalid(format!(
                "remote memory of {len} bytes holds no page beside a directory of {others} in slabs"
            )));
        }
        let slots = u32::try_from(u64::from(first) + others)
            .map_err(|_| Error::Invalid(format!("remote memory of {others} pages in slabs is too large")))?;
        let index_at = (NAMES_AT + u64::from(slots) * NAME as u64).next_multiple_of(BUCKET as u64);
        let index_end = index_at + u64::from(slots.div_ceil(SLOTS_PER_BUCKET)) * BUCKET as u64;
        let plan = Self {
            slots,
            first,
            slabs,
            index_at,
            slots_at: index_end.next_multiple_of(PAGE_SIZE as u64),
        };
        let slots_at = plan.slots_at;
        assert!(
            NAMES_AT + u64::from(slots) * NAME as u64 <= index_at && index_at + plan.index_len() as u64 <= slots_at,
            "directory and index end before the first slot"
        );
        assert!(
            slots_at + u64::from(first) * PAGE_SIZE as u64 <= len,
            "{first} slots fit {len} bytes of remote memory"
        );
        Ok(plan)
    }

    /// Where a slot's page is.
    pub(crate) fn part_of(&self, slot: RemoteSlot) -> Part {
        assert!(self.has(slot), "slot {slot} is one of {} in remote memory", self.slots);
        match slot.0.checked_sub(self.first) {
            None => Part::First,
            Some(behind) => Part::Slab(behind / self.slabs.slots),
        }
    }

    /// The slots of a part.
    pub(crate) fn slots_of(&self, part: Part) -> Range<u32> {
        match part {
            Part::First => 0..self.first,
            Part::Slab(slab) => {
                assert!(slab < self.slabs.most, "slab {slab} is one of {}", self.slabs.most);
                let from = self.first + slab * self.slabs.slots;
                from..from + self.slabs.slots
            }
        }
    }

    /// Bytes of a slab.
    pub(crate) fn slab_len(&self) -> u64 {
        u64::from(self.slabs.slots) * PAGE_SIZE as u64
    }

    /// Whether there is such a slot.
    pub(crate) fn has(&self, slot: RemoteSlot) -> bool {
        slot.0 < self.slots
    }

    /// Where the page of `slot` lies: in which part, and where in that.
    pub(crate) fn page_at(&self, slot: RemoteSlot) -> (Part, u64) {
        let part = self.part_of(slot);
        let begin = match part {
            Part::First => self.slots_at,
            Part::Slab(_) => 0,
        };
        let place = slot.0 - self.slots_of(part).start;
        (part, begin + u64::from(place) * PAGE_SIZE as u64)
    }

    /// Where the directory's entry of `slot` lies.
    pub(crate) fn name_at(&self, slot: RemoteSlot) -> u64 {
        assert!(
            self.has(slot),
            "slot {slot} is one of {} in the remote directory",
            self.slots
        );
        self.names_at(slot.0)
    }

    /// Where the directory's entries from this slot on lie.
    pub(crate) fn names_at(&self, first: u32) -> u64 {
        NAMES_AT + u64::from(first) * NAME as u64
    }

    /// The slot at this place, if there is one.
    pub(crate) fn slot(&self, place: u32) -> Option<RemoteSlot> {
        (place < self.slots).then_some(RemoteSlot(place))
    }

    /// Buckets of the index.
    pub(crate) fn buckets(&self) -> u32 {
        self.slots.div_ceil(SLOTS_PER_BUCKET)
    }

    /// Where the index begins.
    pub(crate) fn index_at(&self) -> u64 {
        self.index_at
    }

    /// Bytes of the index.
    pub(crate) fn index_len(&self) -> usize {
        self.buckets() as usize * BUCKET
    }

    /// The bucket for a key whose bits are mixed: the high half picks it.
    pub(crate) fn bucket_of(&self, mixed: u64) -> u32 {
        (((mixed >> 32) * u64::from(self.buckets())) >> 32) as u32
    }

    /// Where a bucket of the index lies.
    pub(crate) fn bucket_at(&self, bucket: u32) -> u64 {
        assert!(bucket < self.buckets(), "bucket {bucket} is one of the remote index");
        self.index_at + u64::from(bucket) * BUCKET as u64
    }

    /// Bytes of remote memory in one part that hold `slots` pages.
    pub fn len_for(slots: u32) -> u64 {
        Self::first_len_for(slots, None)
    }

    /// Bytes of a first part that holds `slots` pages, and names those that slabs may hold.
    pub fn first_len_for(slots: u32, growth: Option<Growth>) -> u64 {
        ONCE + u64::from(slots) * EACH + Slabs::of(growth).slots_of_all() * EACH_ELSEWHERE
    }
}

/// Bytes for each slot: with its name, and its share of the index.
const EACH: u64 = PAGE_SIZE as u64 + EACH_ELSEWHERE;
/// The same of slots in slabs: what the first part has of them.
const EACH_ELSEWHERE: u64 = (NAME + BUCKET / SLOTS_PER_BUCKET as usize) as u64;
const _: () = assert!(EACH_ELSEWHERE == NAMED);
/// Bytes for all of them together, and what rounding takes.
const ONCE: u64 = NAMES_AT + (PAGE_SIZE + 2 * BUCKET) as u64;

/// Whose the remote memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Pages that fit all parts that there may be.
    pub slots: u32,
    /// The slabs among them.
    pub slabs: Slabs,
    /// A bit for each slab that may be granted.
    pub granted: u64,
    /// The database.
    pub database: u128,
    /// The start of it that filled the memory.
    pub incarnation: u128,
    /// The start that is taking over, or the same.
    pub next: u128,
}

impl Header {
    /// As it is written.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.slots.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.database.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.next.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.slabs.slots.to_le_bytes());
        bytes[68..72].copy_from_slice(&self.slabs.most.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.granted.to_le_bytes());
        let sum = crc::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if it is none of this format.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let sum = crc::crc32c(bytes.get(..HEADER - 4)?);
        let known = get_le::<u64>(bytes, 0)? == MAGIC && get_le::<u32>(bytes, 8)? == FORMAT;
        if !known || get_le::<u32>(bytes, HEADER - 4)? != sum {
            return None;
        }
        Some(Self {
            slots: get_le::<u32>(bytes, 12)?,
            database: get_le::<u128>(bytes, 16)?,
            incarnation: get_le::<u128>(bytes, 32)?,
            next: get_le::<u128>(bytes, 48)?,
            slabs: Slabs {
                slots: get_le::<u32>(bytes, 64)?,
                most: get_le::<u32>(bytes, 68)?,
            },
            granted: get_le::<u64>(bytes, 72)?,
        })
    }
}

/// As of which position of the log names say the truth: a change of a page up to there has ended the name of every copy
/// that lacks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The position.
    pub lsn: Lsn,
    /// Low half of the incarnation that wrote it. Names of others are none.
    pub tag: u64,
}

impl Watermark {
    /// As it is written.
    pub fn encode(&self) -> [u8; WATERMARK] {
        let mut bytes = [0; WATERMARK];
        bytes[..8].copy_from_slice(&self.lsn.raw().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        let sum = crc::crc32c(&bytes[..WATERMARK - 4]);
        bytes[WATERMARK - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if there is none, or it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let sum = crc::crc32c(bytes.get(..WATERMARK - 4)?);
        let tag = get_le::<u64>(bytes, 8)?;
        (tag != 0 && get_le::<u32>(bytes, WATERMARK - 4)? == sum).then_some(Self {
            lsn: Lsn::from_raw(get_le::<u64>(bytes, 0)?),
            tag,
        })
    }
}

/// Which page a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// The page.
    pub page: PageId,
    /// Its LSN.
    pub lsn: Lsn,
    /// Low half of the incarnation that wrote it.
    pub tag: u64,
    /// The page's checksum.
    pub sum: u32,
}

impl Name {
    /// As it is written.
    pub fn encode(&self) -> [u8; NAME] {
        let mut bytes = [0; NAME];
        bytes[..8].copy_from_slice(&key_of(self.page).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.raw().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.sum.to_le_bytes());
        let sum = crc::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if the slot is empty, or the entry is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let key = get_le::<u64>(bytes, 0)?;
        if key == 0 || get_le::<u32>(bytes, 28)? != crc::crc32c(&bytes[..28]) {
            return None;
        }
        Some(Self {
            page: page_of(key),
            lsn: Lsn::from_raw(get_le::<u64>(bytes, 8)?),
            tag: get_le::<u64>(bytes, 16)?,
            sum: get_le::<u32>(bytes, 24)?,
        })
    }
}

/// The checksum in a page's header.
pub fn sum_of(page: &[u8]) -> u32 {
    get_le::<u32>(page, 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fit_and_do_not_overlap() {
        for slots in [1u32, 2, 500, 511, 512, 513, 100_000] {
            let len = Layout::len_for(slots);
            let layout = Layout::plan(len, Slabs::default()).expect("fits");
            assert!(layout.slots >= slots, "{slots}: {layout:?}");
            check(&layout, len);
        }
        assert!(Layout::plan(20_000, Slabs::default()).is_err());
    }

    fn check(layout: &Layout, len: u64) {
        assert!(NAMES_AT + u64::from(layout.slots) * NAME as u64 <= layout.bucket_at(0));
        let (part, first) = layout.page_at(RemoteSlot(0));
        assert!(part == Part::First && layout.bucket_at(layout.buckets() - 1) + BUCKET as u64 <= first);
        assert!(layout.bucket_of(u64::MAX) == layout.buckets() - 1 && layout.bucket_of(0) == 0);
        let (part, last) = layout.page_at(RemoteSlot(layout.first - 1));
        assert!(part == Part::First && last + PAGE_SIZE as u64 <= len);
    }

    #[test]
    fn each_slot_is_of_one_part() {
        let growth = Growth {
            slab: 7 * PAGE_SIZE as u64 + 100,
            most: 3,
            worth: 1,
        };
        let (len, slabs) = (Layout::first_len_for(5, Some(growth)), Slabs::of(Some(growth)));
        let layout = Layout::plan(len, slabs).expect("fits");
        check(&layout, len);
        assert_eq!(
            (layout.slots - layout.first, layout.slab_len()),
            (21, 7 * PAGE_SIZE as u64)
        );
        let mut next = 0;
        for part in [Part::First, Part::Slab(0), Part::Slab(1), Part::Slab(2)] {
            assert_eq!(layout.slots_of(part).start, next);
            for slot in layout.slots_of(part) {
                assert_eq!(layout.part_of(RemoteSlot(slot)), part);
            }
            next = layout.slots_of(part).end;
        }
        assert_eq!(
            layout.page_at(RemoteSlot(layout.first + 8)),
            (Part::Slab(1), PAGE_SIZE as u64)
        );
        assert_eq!(next, layout.slots);
        let too_many = Slabs {
            slots: u32::MAX,
            most: 64,
        };
        assert!(
            Layout::plan(1 << 50, too_many).is_err(),
            "slots have numbers of 32 bits"
        );
    }

    #[test]
    fn what_was_written_is_read_and_damage_is_seen() {
        let name = Name {
            page: PageId::new(7, 9),
            lsn: Lsn::from_raw(11),
            tag: 13,
            sum: 17,
        };
        let header = Header {
            slots: 5,
            database: 1 << 100,
            incarnation: 3,
            next: 4,
            slabs: Slabs { slots: 6, most: 7 },
            granted: 1 << 63 | 8,
        };
        assert_eq!(Name::decode(&name.encode()), Some(name));
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert_eq!((Name::decode(&[0; NAME]), Header::decode(&[0; HEADER])), (None, None));
        let watermark = Watermark {
            lsn: Lsn::from_raw(11),
            tag: 13,
        };
        assert_eq!(Watermark::decode(&watermark.encode()), Some(watermark));
        assert_eq!(Watermark::decode(&[0; WATERMARK]), None);
        for bit in 0..NAME * 8 {
            let mut bytes = name.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Name::decode(&bytes), None, "bit {bit}");
            let mut bytes = watermark.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Watermark::decode(&bytes), None, "bit {bit}");
        }
    }
}
