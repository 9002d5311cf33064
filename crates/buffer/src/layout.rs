//! What lies where in a region, and how much of each.
//!
//! ```text
//! 0             region header (fabric's: magic, ids, incarnation, epoch, clean flag, crc)
//! 4 KiB         pool header   (ours: [`PoolHeader`])
//! ring          log ring      (storage's: the redo buffer itself, rule 3)
//! buckets       page hash     u32 x buckets: the first frame of each chain, +1; 0 none
//! slots         latch slots   [`LatchSlot`] x threads ([`Geometry::threads`]): frames that a thread latches exclusively
//! descriptors   [`Descriptor`] x frames, 64 bytes each, dense: a recovery scan reads these alone
//! pages         16 KiB x frames
//! ```
//!
//! Invariants:
//! - nothing in a region is a pointer: frames are named by index, stored as index + 1, 0 is "none";
//! - the geometry is a pure function of the region's length and of the ring's ([`Geometry::plan`]), so
//!   that what is found in a header is compared with it and never followed;
//! - every index read from a region is checked against the geometry before it is used.
//!
//! The writer and the reader of each field are said at the field.

use cenote_base::rt::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use cenote_base::{Error, PAGE_SIZE, Result};

use crate::index::FrameIndex;
use crate::words::{ChainWord, FrameLink, LsnWord, RecordWord};

/// Bytes in a cache line, the unit that is written back as a whole.
pub const LINE: usize = 64;
/// Frames one thread can latch exclusively at a time: those of a mini-transaction, and a few for
/// loading and eviction on its behalf.
pub const SLOT_FRAMES: usize = 94;
/// Threads that a region has latch slots for: 3 MiB, which a small one has not.
pub const THREADS_MAX: usize = cenote_base::rt::MAX_THREADS;
/// Threads that a region of less than [`FRAMES_LARGE`] frames has latch slots for.
pub const THREADS_SMALL: usize = 1024;
/// Fewest frames of a region with latch slots for [`THREADS_MAX`] threads.
pub const FRAMES_LARGE: u32 = 2048;
/// "CENOTEP1": what a pool header begins with.
pub const POOL_MAGIC: u64 = u64::from_le_bytes(*b"CENOTEP1");
/// The version of this layout. Another one makes the region stale: it is rebuilt from storage.
pub const POOL_FORMAT: u32 = 3;

/// Where the pool header starts; the region's own header is before it.
const POOL_HEADER_AT: u64 = 4096;
const RING_AT: u64 = 8192;
/// Boundaries between the parts, so that each can be reserved and faulted in by itself.
const ALIGN: u64 = 4096;
/// Fewest frames a pool can work with: a mini-transaction of 64 pages and room to load beside it.
pub const FRAMES_MIN: u32 = 128;
/// Indices share their word with a two-bit list tag.
pub const FRAMES_MAX: u64 = (1 << 30) - 2;

/// A frame's 64 bytes. One cache line: what is stored to it in one order reaches memory in that
/// order, which rule 5e leans on.
#[repr(C, align(64))]
pub struct Descriptor {
    /// `[version:32][epoch:8][node:8][shared:15][exclusive:1]`, see [`crate::latch`].
    pub latch: AtomicU64,
    /// Complement of the page id's raw word; 0: no page. Written under the exclusive latch.
    pub key: AtomicU64,
    /// End of the group that changed the page last. Written when a mini-transaction commits;
    /// recovery compares it with the durable log.
    pub lsn: LsnWord,
    /// Address of the page's newest redo record not known to be in storage; 0 none. The next
    /// record names it as its predecessor; repair walks from it.
    pub head: RecordWord,
    /// Log position (a group's start or end) at or below the oldest change that is not in storage; 0: the frame
    /// is clean. Checkpoints and eviction ask it. Written under the exclusive latch.
    pub rec: LsnWord,
    /// Next frame of the hash chain, +1. Written under the bucket's lock.
    pub hash_next: FrameLink,
    /// Next frame of the list (towards the cold end), +1. Written under the list lock.
    pub list_next: AtomicU32,
    /// Bits 30-31: which list ([`crate::lists::List`]); below: previous frame, +1.
    pub list_prev: AtomicU32,
    /// `[count:12][lines of 64 bytes:20]` of redo since `rec`, see [`Chain`].
    pub chain: ChainWord,
    /// `[generation:24][state:8]`, see [`FrameState`]. Written under the exclusive latch.
    pub state: AtomicU32,
    /// 1: used since the clock passed. The only word that a hit may store to, and only when 0.
    pub recency: AtomicU16,
    /// Sum over key, lsn, head, rec, chain and state ([`Descriptor::sum`]). Written with them; recovery
    /// believes no descriptor without it.
    pub check: AtomicU16,
}

impl Descriptor {
    /// What `check` has to be.
    pub fn sum(&self) -> u16 {
        let words = [
            self.key.load(Ordering::Relaxed),
            self.lsn.load(Ordering::Relaxed).raw(),
            self.head.load(Ordering::Relaxed).raw(),
            self.rec.load(Ordering::Relaxed).raw(),
            u64::from(self.chain.load(Ordering::Relaxed).pack()) << 32 | u64::from(self.state.load(Ordering::Relaxed)),
        ];
        sum_of(words)
    }

    /// Writes the check; after each change of what it covers, under the same latch.
    pub fn seal(&self) {
        self.check.store(self.sum(), Ordering::Release);
    }

    /// Whether the check fits.
    pub fn is_sealed(&self) -> bool {
        self.check.load(Ordering::Relaxed) == self.sum()
    }
}

/// The check of key, lsn, head, rec, and chain and state.
pub fn sum_of(words: [u64; 5]) -> u16 {
    // A product by an odd number keeps each bit of a word; the fold brings the upper bits down. The
    // sum of a descriptor that was never written is 0.
    let mixed = words.iter().fold(0u64, |sum, word| {
        let mixed = (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 32
    });
    (mixed ^ mixed >> 16) as u16
}

const _: () = assert!(size_of::<Descriptor>() == LINE && align_of::<Descriptor>() == LINE);
const _: () = assert!(
    PAGE_SIZE.is_multiple_of(LINE) && PAGE_SIZE.is_multiple_of(ALIGN as usize),
    "pages begin and end with lines, and parts with pages of the system"
);

/// What a frame is doing.
///
/// ```text
///            claim (lists.rs)            load done / created
///   Free ────────────────────▶ Loading ────────────────────▶ Used
///    ▲                            │ read failed, page raced     │
///    └────────────────────────────┴──────────── evict, discard ─┘
/// ```
/// Loading and every transition happen under the exclusive latch; Used with `rec` = 0 is clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameState {
    /// No page.
    Free = 0,
    /// A page is on its way in; nothing in it may be believed.
    Loading = 1,
    /// A page.
    Used = 2,
}

impl FrameState {
    /// The state in a descriptor's word; `None` for bits that no state has.
    pub fn of(word: u32) -> Option<Self> {
        match word as u8 {
            0 => Some(Self::Free),
            1 => Some(Self::Loading),
            2 => Some(Self::Used),
            _ => None,
        }
    }
}

/// The frames that one thread of the process latches exclusively, each as index + 1. An entry is
/// stored before the latch is taken and cleared after it is released, so that recovery finds every
/// frame of a dead owner here, and a few that it did not hold after all.
#[repr(C, align(64))]
pub struct LatchSlot {
    /// At or below the log position of the thread's commit under way; 0: none. From before the commit takes its
    /// place until its pages are stamped: checkpoints stay below it, recovery scans the ring from there.
    pub floor: LsnWord,
    /// Index + 1 of a frame; 0 unused.
    pub frames: [FrameLink; SLOT_FRAMES],
}

const _: () = assert!(size_of::<LatchSlot>() == 8 + SLOT_FRAMES * 4 && size_of::<LatchSlot>().is_multiple_of(LINE));

/// See [`PoolHeader::surveying`].
pub const SURVEYING: u32 = 1;
/// See [`PoolHeader::surveying`].
pub const DOUBTING: u32 = 2;

/// One of the lists' ends, as +1 indices.
#[repr(C)]
pub struct ListHead {
    /// Hot end: where frames enter.
    pub first: AtomicU32,
    /// Cold end: where victims are taken.
    pub last: AtomicU32,
    /// Frames in the list.
    pub count: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
}

/// Old values of list words, so that a change that a crash cut in half is taken back.
#[repr(C)]
pub struct UndoEntry {
    /// Which word ([`crate::lists`] packs it).
    pub word: AtomicU32,
    /// What it held.
    pub old: AtomicU32,
}

/// Entries in the lists' undo record: the longest change (move between lists) stores 12 words.
pub const UNDO_ENTRIES: usize = 24;

/// The pool's own header.
#[repr(C, align(64))]
pub struct PoolHeader {
    // Line 0: written once when the region is made, compared at each open.
    /// [`POOL_MAGIC`].
    pub magic: AtomicU64,
    /// [`POOL_FORMAT`].
    pub format: AtomicU32,
    /// Frames.
    pub frames: AtomicU32,
    /// Length of the log ring.
    pub ring_len: AtomicU64,
    /// Length of the region.
    pub region_len: AtomicU64,
    /// Where the log ring began when the frames were formatted. A ring that begins elsewhere was made anew by a start
    /// that died before it could forget the frames.
    pub ring_start: LsnWord,
    reserved0: [AtomicU64; 3],
    // Line 1: slots.
    /// Latch slots at and above this were never used.
    pub slots_used: AtomicU32,
    /// [`SURVEYING`] while recovery builds hash and lists anew: a start that finds it so builds them again.
    /// [`DOUBTING`] from before it frees a frame that may have held changes until the log is replayed: a start that
    /// finds it so replays it.
    pub surveying: AtomicU32,
    reserved1: [AtomicU32; 14],
    // Line 2: lists.
    /// Owner's thread + 1 while a list is being changed (rule 2: found locked, it is repaired).
    pub list_lock: AtomicU32,
    /// Undo entries that count.
    pub undo_count: AtomicU32,
    /// Frames at and above this were never used: they are on no list and their descriptors are zero.
    pub frames_touched: AtomicU32,
    /// Frames below this have memory behind them.
    pub frames_reserved: AtomicU32,
    /// Free, warm, cold.
    pub lists: [ListHead; 3],
    // Lines 3..: the undo record.
    /// See [`UndoEntry`].
    pub undo: [UndoEntry; UNDO_ENTRIES],
    // Line 6: readers of the pod.
    /// Which start of the database lets readers read the frames where they lie; 0: none does. Then the database's
    /// number, lower half first.
    pub served: [AtomicU64; 3],
    reserved2: [AtomicU64; 5],
}

const _: () = assert!(size_of::<PoolHeader>() == 7 * LINE && size_of::<PoolHeader>() <= 4096);
const _: () = assert!(std::mem::offset_of!(PoolHeader, slots_used) == LINE);
const _: () = assert!(std::mem::offset_of!(PoolHeader, list_lock) == 2 * LINE);
const _: () = assert!(std::mem::offset_of!(PoolHeader, undo) == 3 * LINE);
const _: () = assert!(std::mem::offset_of!(PoolHeader, served) == 6 * LINE);

/// Sizes and places of a region's parts, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Of the whole region.
    pub region_len: u64,
    /// Of the log ring.
    pub ring_len: u64,
    /// Frames, and so descriptors and pages.
    pub frames: u32,
    /// Hash buckets, a power of two.
    pub buckets: u32,
    /// Where the buckets start.
    pub buckets_at: u64,
    /// Where the latch slots start.
    pub slots_at: u64,
    /// Where the descriptors start.
    pub descriptors_at: u64,
    /// Where the pages start.
    pub pages_at: u64,
}

impl Geometry {
    /// Where the pool header lies.
    pub const HEADER_AT: u64 = POOL_HEADER_AT;
    /// Where the log ring lies.
    pub const RING_AT: u64 = RING_AT;

    /// A ring that suits a region: 1/64 of it, 4 to 16 MiB, and the ring's own header.
    pub fn ring_for(region_len: u64) -> u64 {
        (region_len / 64).next_power_of_two().clamp(4 << 20, 16 << 20) + ALIGN
    }

    /// Divides a region of `region_len` bytes with a ring of `ring_len`.
    ///
    /// # Errors
    /// When fewer than [`FRAMES_MIN`] frames fit.
    pub fn plan(region_len: u64, ring_len: u64) -> Result<Self> {
        let large = Self::fit(region_len, ring_len, FRAMES_LARGE.into()..FRAMES_MAX + 1);
        let small = || Self::fit(region_len, ring_len, FRAMES_MIN.into()..FRAMES_LARGE.into());
        if let Some(plan) = large.or_else(small) {
            assert!(
                plan.buckets >= plan.frames,
                "there are at least as many buckets as frames"
            );
            assert!(
                plan.buckets_at < plan.slots_at
                    && plan.slots_at < plan.descriptors_at
                    && plan.descriptors_at < plan.pages_at,
                "the region's parts follow each other"
            );
            assert!(
                plan.threads() >= THREADS_SMALL,
                "a region has latch slots for its threads"
            );
            return Ok(plan);
        }
        let least = Self::lay_out(0, ring_len, FRAMES_MIN).end();
        Err(Error::Invalid(format!(
            "memory of {region_len} bytes is too small: a pool with a log ring of {ring_len} bytes needs {least}"
        )))
    }

    /// The plan with most frames, of so many.
    fn fit(region_len: u64, ring_len: u64, number: std::ops::Range<u64>) -> Option<Self> {
        let per_frame = (PAGE_SIZE + LINE) as u64 + 4;
        let room = region_len.saturating_sub(RING_AT + ring_len);
        let mut frames = (room / per_frame).min(number.end - 1);
        while frames >= number.start {
            let plan = Self::lay_out(region_len, ring_len, frames as u32);
            if plan.end() <= region_len {
                return Some(plan);
            }
            frames -= ((plan.end() - region_len).div_ceil(per_frame)).min(frames);
        }
        None
    }

    /// Threads that a region of so many frames has latch slots for.
    fn threads_of(frames: u32) -> usize {
        if frames >= FRAMES_LARGE {
            THREADS_MAX
        } else {
            THREADS_SMALL
        }
    }

    /// Threads that the region has latch slots for.
    #[inline(always)]
    pub fn threads(&self) -> usize {
        Self::threads_of(self.frames)
    }

    /// Bytes of the smallest region with the usual ring that has exactly `frames` frames.
    ///
    /// # Errors
    /// When there is none: fewer than [`FRAMES_MIN`] frames, or a number at which the ring's size jumps.
    pub fn len_for(frames: u32) -> Result<u64> {
        let rings = [4u64 << 20, 8 << 20, 16 << 20].map(|ring| ring + ALIGN);
        // `plan` wastes less than a few pages: somewhere within these lengths it gives the number.
        let lens = rings.into_iter().flat_map(|ring| {
            let least = Self::lay_out(0, ring, frames).end();
            (0..64).map(move |step| (ring, least + step * ALIGN))
        });
        let exact = |(ring, len): &(u64, u64)| {
            Self::ring_for(*len) == *ring && Self::plan(*len, *ring).is_ok_and(|plan| plan.frames == frames)
        };
        let found = { lens }.find(exact);
        found.map(|(_, len)| len).ok_or_else(|| {
            Error::Invalid(format!(
                "no region has exactly {frames} page frames: at least {FRAMES_MIN} are needed, and a few numbers near 16,000 and 32,500 are left out, where the log's ring grows"
            ))
        })
    }

    fn lay_out(region_len: u64, ring_len: u64, frames: u32) -> Self {
        let up = |at: u64| at.next_multiple_of(ALIGN);
        let buckets = frames.next_power_of_two();
        let buckets_at = up(RING_AT + ring_len);
        let slots_at = up(buckets_at + buckets as u64 * 4);
        let descriptors_at = up(slots_at + (Self::threads_of(frames) * size_of::<LatchSlot>()) as u64);
        let pages_at = up(descriptors_at + frames as u64 * LINE as u64);
        Self {
            region_len,
            ring_len,
            frames,
            buckets,
            buckets_at,
            slots_at,
            descriptors_at,
            pages_at,
        }
    }

    /// First byte after the last page.
    pub fn end(&self) -> u64 {
        self.pages_at + self.frames as u64 * PAGE_SIZE as u64
    }

    /// Where the descriptor of `frame` lies.
    #[inline(always)]
    pub(crate) fn descriptor_at(&self, frame: FrameIndex) -> u64 {
        self.descriptors_at + u64::from(frame.raw()) * LINE as u64
    }

    /// Where the page of `frame` starts.
    #[inline(always)]
    pub(crate) fn page_at(&self, frame: FrameIndex) -> u64 {
        self.pages_at + u64::from(frame.raw()) * PAGE_SIZE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_fill_the_region() {
        for len in [16u64 << 20, 64 << 20, (1 << 30) + 12345, 4 << 30, 1 << 40] {
            let ring = Geometry::ring_for(len);
            let g = Geometry::plan(len, ring).expect("fits");
            assert!(RING_AT + ring <= g.buckets_at);
            assert!(g.buckets_at + g.buckets as u64 * 4 <= g.slots_at);
            assert!(g.slots_at + (g.threads() * size_of::<LatchSlot>()) as u64 <= g.descriptors_at);
            assert!(g.descriptors_at + g.frames as u64 * 64 <= g.pages_at);
            assert!(g.end() <= len);
            assert!(
                len - g.end() < 40 * PAGE_SIZE as u64 || len > 1 << 30,
                "{len}: wasted {}",
                len - g.end()
            );
        }
        assert!(Geometry::plan(1 << 20, 4 << 20).is_err());
    }

    #[test]
    fn a_number_of_frames_can_be_told_exactly() {
        for frames in [
            FRAMES_MIN,
            129,
            140,
            1000,
            FRAMES_LARGE - 1,
            FRAMES_LARGE,
            5000,
            100_000,
            1_000_003,
        ] {
            let len = Geometry::len_for(frames).expect("there is one");
            let plan = Geometry::plan(len, Geometry::ring_for(len)).expect("fits");
            assert_eq!(plan.frames, frames);
        }
        assert!(Geometry::len_for(FRAMES_MIN - 1).is_err());
    }
}
