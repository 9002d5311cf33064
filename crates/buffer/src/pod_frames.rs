//! The frames of the server that has the database, as another host of its pod reads them: over the device that both
//! map, without its help (PolarCXLMem, section 3.3; PolarDB Serverless, section 3.1, in a pod).
//!
//! ```text
//!  reader                                            region of the server
//!   bucket of the page ──────────────────────────────▶ hash: a hint
//!   1. descriptor: of this page, sealed, not latched, LSN at most the reader's moment
//!   2. the page's bytes
//!   3. latch again: the version as before, not taken
//!   4. header: the start that serves these frames is the one that has the database as of the moment
//! ```
//!
//! A server writes the latch back before it changes a page, and the page's lines before the descriptor that releases it
//! (rule 5 of recovery, which a device that outlives hosts asks for anyway; memory within the caches of one machine
//! needs neither). So bytes that were read between two looks at one version of the latch are the page as of its LSN. A
//! group of the log that a reader's moment includes had latched its pages before it was appended: a page that is not
//! latched, and whose LSN is no greater than the moment, lacks none.
//!
//! The hash is a hint: chains may be read while they change, or stale. What is not found is read below.
//!
//! Invariants:
//! - nothing is written here, and no index that was read is used unchecked;
//! - lines are dropped before each look, where the memory is beyond this host's caches.

use std::mem::offset_of;
use std::path::Path;

use cenote_base::bytes::get_le;
use cenote_base::rt::atomic::{Ordering, fence};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::{FileRange, RegionMemory, SharedDevice, coherence};
use cenote_storage::redo;

use crate::hash::{self, key_of};
use crate::index::FrameIndex;
use crate::latch;
use crate::layout::{self, Descriptor, FrameState, Geometry, LINE, POOL_FORMAT, POOL_MAGIC, PoolHeader};

/// Frames of a chain that are looked at.
const STEPS: usize = 16;
/// Looks at a frame that is latched, or changes meanwhile, before the page is read below.
const LOOKS: usize = 3;

/// Which start serves a region's frames to readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
    pub database: u128,
    /// Storage nodes count the starts of a database.
    pub epoch: u64,
}

/// A page as a frame has it.
pub(crate) struct PageInPod {
    pub lsn: Lsn,
    pub bytes: Box<[u8]>,
}

/// See the module.
pub(crate) struct PodFrames {
    memory: RegionMemory,
    geometry: Geometry,
    /// Picks a bucket of the hash.
    shift: u32,
    is_beyond_caches: bool,
}

/// A frame whose page is whole.
struct Seen {
    /// What the latch says of it: another version, another page or other bytes.
    version: u64,
    key: u64,
    lsn: Lsn,
}

/// A descriptor's words, each read at once.
struct DescriptorWords([u64; LINE / 8]);

impl DescriptorWords {
    fn word(&self, at: usize) -> u64 {
        self.0[at / 8]
    }

    fn half(&self, at: usize) -> u32 {
        (self.0[at / 8] >> (8 * (at % 8))) as u32
    }

    fn key(&self) -> u64 {
        self.word(offset_of!(Descriptor, key))
    }

    fn next(&self) -> Option<FrameIndex> {
        FrameIndex::from_link(self.half(offset_of!(Descriptor, hash_next)))
    }

    fn is_sealed(&self) -> bool {
        let chain = u64::from(self.half(offset_of!(Descriptor, chain)));
        let sum = layout::sum_of([
            self.key(),
            self.word(offset_of!(Descriptor, lsn)),
            self.word(offset_of!(Descriptor, head)),
            self.word(offset_of!(Descriptor, rec)),
            chain << 32 | u64::from(self.half(offset_of!(Descriptor, state))),
        ]);
        self.word(offset_of!(Descriptor, check)) >> (8 * (offset_of!(Descriptor, check) % 8)) == u64::from(sum)
    }

    /// Of a frame whose page is whole.
    fn seen(&self) -> Option<Seen> {
        let word = self.word(offset_of!(Descriptor, latch));
        let is_used = FrameState::of(self.half(offset_of!(Descriptor, state))) == Some(FrameState::Used);
        (is_used && self.is_sealed() && !latch::is_exclusive(word)).then(|| Seen {
            version: latch::version(word),
            key: self.key(),
            lsn: Lsn::from_raw(self.word(offset_of!(Descriptor, lsn))),
        })
    }
}

const _: () = assert!(
    offset_of!(Descriptor, latch) == 0 && offset_of!(Descriptor, check) == LINE - 2,
    "the latch is read first, and nothing follows the check in its word"
);

impl PodFrames {
    /// Maps a region, of a server or of what was one.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for one that is no pool's, or of another format; those of mapping.
    pub fn open(path: &Path) -> Result<Self> {
        let device = SharedDevice::open(path)?;
        let range = FileRange {
            offset: 0,
            bytes: device.len() / device.align() * device.align(),
        };
        let not_of_a_pool = || Error::Mismatch(format!("{} is not the memory of a server", path.display()));
        if range.bytes < Geometry::HEADER_AT + size_of::<PoolHeader>() as u64 {
            return Err(not_of_a_pool());
        }
        let (memory, is_beyond_caches) = (device.map(range)?, device.is_beyond_caches());
        if is_beyond_caches {
            coherence::invalidate(&memory, Geometry::HEADER_AT, LINE);
        }
        let mut line = [0; LINE];
        memory.span(Geometry::HEADER_AT, LINE as u64).copy_out(0, &mut line);
        let word = |at| get_le::<u64>(&line, at).unwrap_or_default();
        let half = |at| get_le::<u32>(&line, at).unwrap_or_default();
        let found = (
            word(offset_of!(PoolHeader, magic)),
            half(offset_of!(PoolHeader, format)),
        );
        if found != (POOL_MAGIC, POOL_FORMAT) {
            return Err(not_of_a_pool());
        }
        let lengths = (
            word(offset_of!(PoolHeader, region_len)),
            word(offset_of!(PoolHeader, ring_len)),
        );
        if lengths.0 > memory.len() || lengths.1 > lengths.0 {
            return Err(not_of_a_pool());
        }
        let geometry = Geometry::plan(lengths.0, lengths.1)?;
        if half(offset_of!(PoolHeader, frames)) != geometry.frames || geometry.end() > memory.len() {
            return Err(not_of_a_pool());
        }
        Ok(Self {
            shift: hash::shift_of(geometry.buckets),
            memory,
            geometry,
            is_beyond_caches,
        })
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.geometry.region_len
    }

    /// Its frames.
    pub fn frames(&self) -> u32 {
        self.geometry.frames
    }

    fn forget_lines(&self, at: u64, len: usize) {
        if self.is_beyond_caches && !planted(Fault::PodLinesKept) {
            coherence::invalidate(&self.memory, at, len);
        }
    }

    /// The latch first: what is read behind it is of that version, or of a later one.
    fn words(&self, at: u64) -> [u64; LINE / 8] {
        self.forget_lines(at, LINE);
        std::array::from_fn(|n| self.memory.atomic_u64(at + 8 * n as u64).load(Ordering::Acquire))
    }

    fn descriptor(&self, frame: FrameIndex) -> Option<DescriptorWords> {
        let has = frame.raw() < self.geometry.frames;
        has.then(|| DescriptorWords(self.words(self.geometry.descriptor_at(frame))))
    }

    /// Whether the frame is as it was seen: its latch had to be taken for anything else.
    fn is_still(&self, frame: FrameIndex, seen: &Seen) -> bool {
        // What was copied is read before the latch is, and before its line is dropped.
        fence(Ordering::SeqCst);
        let at = self.geometry.descriptor_at(frame);
        self.forget_lines(at, LINE);
        let word = self.memory.atomic_u64(at).load(Ordering::Acquire);
        latch::version(word) == seen.version && !latch::is_exclusive(word)
    }

    /// The start that serves the frames; none: nobody may read them.
    pub fn served(&self) -> Option<Served> {
        let words = self.words(Geometry::HEADER_AT + offset_of!(PoolHeader, served) as u64);
        (words[0] != 0).then(|| Served {
            epoch: words[0],
            database: u128::from(words[1]) | u128::from(words[2]) << 64,
        })
    }

    /// The page as of `at`, if a frame has it so that it can be told, and the start that serves the frames is `by`.
    pub fn read(&self, page: PageId, at: Lsn, by: Served) -> Option<PageInPod> {
        let key = key_of(page);
        let frame = self.find(key)?;
        for _ in 0..LOOKS {
            let Some(seen) = self.descriptor(frame)?.seen() else {
                continue;
            };
            let is_past = seen.lsn <= at || planted(Fault::PodFrameAhead);
            if seen.key != key || seen.lsn == Lsn::ZERO || !is_past {
                return None;
            }
            let bytes = self.page(frame);
            if !self.is_still(frame, &seen) && !planted(Fault::PodFrameChanged) {
                continue;
            }
            let is_it = (redo::page_id(&bytes), redo::page_lsn(&bytes)) == (page, seen.lsn);
            if !is_it && !planted(Fault::PodFrameChanged) {
                return None;
            }
            let is_served = self.served() == Some(by) || planted(Fault::PodStartUnread);
            return is_served.then_some(PageInPod { lsn: seen.lsn, bytes });
        }
        None
    }

    /// The frame that seems to hold a page.
    fn find(&self, key: u64) -> Option<FrameIndex> {
        let at = self.geometry.buckets_at + 4 * hash::bucket_by(self.shift, key) as u64;
        self.forget_lines(at, 4);
        let mut next = FrameIndex::from_link(self.memory.atomic_u32(at).load(Ordering::Acquire));
        for _ in 0..STEPS {
            let frame = next?;
            let descriptor = self.descriptor(frame)?;
            if descriptor.key() == key {
                return Some(frame);
            }
            next = descriptor.next();
        }
        None
    }

    fn page(&self, frame: FrameIndex) -> Box<[u8]> {
        let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
        let at = self.geometry.page_at(frame);
        self.forget_lines(at, PAGE_SIZE);
        self.memory.span(at, PAGE_SIZE as u64).copy_out(0, &mut bytes);
        bytes
    }
}
