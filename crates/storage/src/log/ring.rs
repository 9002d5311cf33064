//! The redo ring: the newest part of the stream, in memory that may outlive the process.
//!
//! A byte of the stream lies at its position modulo the capacity. All access is word-wise and
//! bounds-checked through the region, so that readers may race with writers: they copy, then ask
//! whether what they copied was still there ([`Ring::still_holds`]).
//!
//! ```text
//! header page of 4096 bytes
//!     0 u64 magic and version   8 u64 capacity   16 u64 start: nothing before it was ever here
//!    24 u64 survival           32 u128 database  48 u32 crc32c of bytes 0..48
//!   128 u64 tail: end of the last reservation
//!   256 mark, even flushes:  u64 durable, u64 start of the group that ends there (0: none),
//!   320 mark, odd flushes:   u32 checksum of that group, u32 crc32c of the 20 bytes
//!   512 64 x u64: start of the first group that begins in each 64th of the ring
//! then `capacity` bytes of the stream, capacity a multiple of 4096
//! ```
//!
//! Invariants:
//! - the header of a group, with its length, is in the ring before the tail moves past it;
//! - a group's state says complete only after all of its bytes are in the ring (and, for `host`
//!   survival, flushed);
//! - bytes from the durable position on are not overwritten.

use std::sync::Arc;

use cenote_base::rt::atomic::{Ordering, fence};
use cenote_base::{Error, Lsn, Result, crc};
use cenote_fabric::{HostAtomicU64, Region, coherence};

use crate::redo::{GROUP_HEADER, MAX_GROUP, STATE_COMPLETE};

/// Bytes before the stream's bytes.
pub const RING_HEADER: u64 = 4096;
/// Block of the stream in which files are written.
pub(crate) const BLOCK: u64 = 4096;
/// The least capacity of a ring: some of the longest groups.
pub const RING_MIN: u64 = 4 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"CenRing1");
const TAIL: u64 = 128;
const MARKS: [u64; 2] = [256, 320];
const BOUNDARIES: u64 = 512;
pub(super) const BOUNDARY_COUNT: u64 = 64;
const _: () = assert!(
    TAIL + 8 <= MARKS[0] && MARKS[0] + 24 <= MARKS[1] && MARKS[1] + 24 <= BOUNDARIES,
    "the fields of the ring's header do not overlap"
);
const _: () = assert!(
    BOUNDARIES + 8 * BOUNDARY_COUNT <= RING_HEADER,
    "the boundaries lie in the header page"
);
const _: () = assert!(
    RING_MIN.is_multiple_of(BLOCK) && RING_MIN >= 2 * MAX_GROUP as u64 + BLOCK,
    "while a longest group is flushed, another one finds place"
);
const _: () = assert!(
    RING_MIN / BOUNDARY_COUNT >= GROUP_HEADER as u64,
    "a 64th of the ring holds a header"
);

/// A header is written before the tail moves, so this much before the floor may be gone.
const SLACK: u64 = GROUP_HEADER as u64;

/// The end that a region's bytes survive, which decides what the log has to flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Survive {
    /// The end of the process.
    #[default]
    Process = 0,
    /// The loss of the host, with the dirty lines of its cache.
    Host = 1,
}

/// Where a ring lies.
#[derive(Clone)]
pub struct RingPlace {
    /// The region.
    pub region: Arc<Region>,
    /// Offset of the ring's header in the region; a multiple of 4096.
    pub offset: u64,
    /// Bytes of header and stream; a multiple of 4096.
    pub length: u64,
}

/// What the ring notes about the durable log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingMark {
    pub durable: Lsn,
    /// Start of the group that ends there; zero if none is known.
    pub last_start: Lsn,
    pub last_checksum: u32,
}

pub(crate) struct Ring {
    region: Arc<Region>,
    base: u64,
    capacity: u64,
    survive: Survive,
}

/// The start of the block in which `at` lies.
pub(crate) fn block_of(at: Lsn) -> Lsn {
    Lsn::from_raw(at.raw() / BLOCK * BLOCK)
}

impl Ring {
    /// The ring at `place`, whatever it holds.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `place` is outside its region, too short, or not in whole blocks.
    pub fn new(place: &RingPlace, survive: Survive) -> Result<Ring> {
        let capacity = place.length.saturating_sub(RING_HEADER);
        let fits = place
            .offset
            .checked_add(place.length)
            .is_some_and(|end| end <= place.region.len());
        if !fits || capacity < RING_MIN || !capacity.is_multiple_of(BLOCK) || !place.offset.is_multiple_of(BLOCK) {
            return Err(Error::Invalid(format!(
                "a redo ring of {} bytes at offset {} does not fit a region of {}: at least {} bytes \
                 are needed, in blocks of {BLOCK}",
                place.length,
                place.offset,
                place.region.len(),
                RING_MIN + RING_HEADER
            )));
        }
        Ok(Ring {
            region: place.region.clone(),
            base: place.offset,
            capacity,
            survive,
        })
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    // ---- header ----

    /// Makes the ring an empty one that begins at `start`.
    pub fn format(&self, database: u128, start: Lsn) {
        let mut header = [0u8; RING_HEADER as usize];
        header[..64].copy_from_slice(&self.fixed_fields(database, start));
        header[TAIL as usize..TAIL as usize + 8].copy_from_slice(&start.raw().to_le_bytes());
        self.put(0, &header);
        self.set_mark(
            0,
            RingMark {
                durable: start,
                last_start: Lsn::ZERO,
                last_checksum: 0,
            },
        );
        self.persist(0, RING_HEADER as usize);
    }

    /// Notes the survival that this process keeps to; the rest stays.
    pub fn rewrite_header(&self, database: u128, start: Lsn) {
        self.put(0, &self.fixed_fields(database, start));
        self.persist(0, 64);
    }

    fn fixed_fields(&self, database: u128, start: Lsn) -> [u8; 64] {
        let mut header = [0u8; 64];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&self.capacity.to_le_bytes());
        header[16..24].copy_from_slice(&start.raw().to_le_bytes());
        header[24..32].copy_from_slice(&(self.survive as u64).to_le_bytes());
        header[32..48].copy_from_slice(&database.to_le_bytes());
        let sum = crc::crc32c(&header[..48]);
        header[48..52].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// Checks the fixed fields of a ring that an earlier process left; gives its start.
    ///
    /// # Errors
    /// The field that does not fit: no valid header, another size, another database.
    pub fn check_header(&self, database: u128) -> std::result::Result<Lsn, String> {
        let mut header = [0u8; 64];
        self.get(0, &mut header);
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let sum = u32::from_le_bytes(header[48..52].try_into().expect("4 bytes"));
        if word(0) != MAGIC || sum != crc::crc32c(&header[..48]) {
            return Err("the redo ring has no valid header".into());
        }
        if word(8) != self.capacity {
            return Err(format!("the redo ring is of {} bytes, not {}", word(8), self.capacity));
        }
        if header[32..48] != database.to_le_bytes() {
            return Err("the redo ring is of another database".into());
        }
        Ok(Lsn::from_raw(word(16)))
    }

    pub fn tail(&self) -> Lsn {
        Lsn::from_raw(self.region.atomic_u64(self.base + TAIL).load(Ordering::Acquire))
    }

    /// Hands the reservation up to `end` over to recovery: from here on, it is void or whole.
    pub fn set_tail(&self, end: Lsn) {
        self.region
            .atomic_u64(self.base + TAIL)
            .store(end.raw(), Ordering::Release);
        self.persist_in_order(TAIL, 8);
    }

    pub fn set_mark(&self, turn: u64, mark: RingMark) {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&mark.durable.raw().to_le_bytes());
        bytes[8..16].copy_from_slice(&mark.last_start.raw().to_le_bytes());
        bytes[16..20].copy_from_slice(&mark.last_checksum.to_le_bytes());
        let sum = crc::crc32c(&bytes[..20]);
        bytes[20..].copy_from_slice(&sum.to_le_bytes());
        let at = MARKS[(turn % 2) as usize];
        self.put(at, &bytes);
        self.persist(at, 24);
    }

    /// The mirror that the region goes on without while a start may believe it, with the marks that it has.
    pub fn mirror_behind(&self) -> Option<u64> {
        self.region.mirror_behind()
    }

    /// The newest mark that is whole, and the turn in which it was set, as far as it matters.
    pub fn mark(&self) -> Option<(u64, RingMark)> {
        let marks = MARKS
            .iter()
            .zip(0..)
            .filter_map(|(at, turn)| Some((turn, self.read_mark(*at)?)));
        marks.max_by_key(|(_, m)| m.durable)
    }

    fn read_mark(&self, at: u64) -> Option<RingMark> {
        let mut bytes = [0u8; 24];
        self.get(at, &mut bytes);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        (half(20) == crc::crc32c(&bytes[..20])).then(|| RingMark {
            durable: Lsn::from_raw(word(0)),
            last_start: Lsn::from_raw(word(8)),
            last_checksum: half(16),
        })
    }

    // ---- boundaries ----

    /// Which 64th of the ring `at` lies in, counted from the stream's beginning.
    pub fn boundary_of(&self, at: Lsn) -> u64 {
        at.raw() / self.boundary_span()
    }

    fn boundary_span(&self) -> u64 {
        self.capacity / BOUNDARY_COUNT
    }

    pub fn set_boundary(&self, start: Lsn) {
        let at = BOUNDARIES + 8 * (self.boundary_of(start) % BOUNDARY_COUNT);
        self.region
            .atomic_u64(self.base + at)
            .store(start.raw(), Ordering::Release);
        self.persist_in_order(at, 24);
    }

    /// The earliest known start of a group at or after `floor`, if one is before `tail`.
    pub fn first_boundary(&self, floor: Lsn, tail: Lsn) -> Option<Lsn> {
        (0..BOUNDARY_COUNT)
            .map(|i| {
                self.region
                    .atomic_u64(self.base + BOUNDARIES + 8 * i)
                    .load(Ordering::Acquire)
            })
            .map(Lsn::from_raw)
            .filter(|at| *at >= floor && *at < tail)
            .min()
    }

    /// Clears the boundaries from `tail` on: no group is there, and the next one may lie across them.
    pub fn forget_boundaries(&self, tail: Lsn) {
        for i in 0..BOUNDARY_COUNT {
            let word = self.region.atomic_u64(self.base + BOUNDARIES + 8 * i);
            if word.load(Ordering::Acquire) >= tail.raw() {
                word.store(0, Ordering::Release);
            }
        }
        self.persist_in_order(BOUNDARIES, 8 * BOUNDARY_COUNT as usize);
    }

    // ---- the stream ----

    /// Where position `at` lies, from the ring's header.
    fn place(&self, at: Lsn) -> u64 {
        RING_HEADER + at.raw() % self.capacity
    }

    fn word(&self, at: Lsn) -> &HostAtomicU64 {
        self.region.atomic_u64(self.base + self.place(at))
    }

    /// Writes a header, all but its word of checksum and state, which says reserved.
    pub fn write_header(&self, at: Lsn, header: &[u8; GROUP_HEADER]) {
        for word in 0..GROUP_HEADER / 8 {
            let bytes = header[word * 8..word * 8 + 8].try_into().expect("8 bytes");
            let value = if word == 2 { 0 } else { u64::from_le_bytes(bytes) };
            self.word(at.advance(word as u64 * 8)).store(value, Ordering::Relaxed);
        }
        self.persist_stream(at, GROUP_HEADER as u64);
    }

    /// Copies `bytes` to position `at`, around the ring's end if need be.
    pub fn write(&self, at: Lsn, bytes: &[u8]) {
        assert!(
            bytes.len() as u64 <= self.capacity,
            "a write would overwrite its own beginning"
        );
        let (head, tail) = bytes.split_at(self.until_wrap(at, bytes.len()));
        self.put(self.place(at), head);
        if !tail.is_empty() {
            self.put(RING_HEADER, tail);
        }
    }

    /// Copies the bytes at position `at`; a later group may have overwritten them.
    pub fn read(&self, at: Lsn, bytes: &mut [u8]) {
        assert!(bytes.len() as u64 <= self.capacity, "a read would go round the ring");
        let cut = self.until_wrap(at, bytes.len());
        let (head, tail) = bytes.split_at_mut(cut);
        self.get(self.place(at), head);
        if !tail.is_empty() {
            self.get(RING_HEADER, tail);
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.region.span(self.base + at, bytes.len() as u64).copy_in(0, bytes);
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        let inside = self.region.span(self.base + at, bytes.len() as u64).copy_out(0, bytes);
        assert!(inside, "the span is as long as the copy");
    }

    fn until_wrap(&self, at: Lsn, length: usize) -> usize {
        let room = self.capacity - at.raw() % self.capacity;
        length.min(usize::try_from(room).unwrap_or(usize::MAX))
    }

    /// Marks the group at `at` complete. From here on it is in the log.
    pub fn complete(&self, at: Lsn, checksum: u32) {
        let word = u64::from(checksum) | u64::from(STATE_COMPLETE) << 32;
        self.word(at.advance(16)).store(word, Ordering::Release);
        self.persist_state(at);
    }

    /// Writes back the word that says whether the group at `at` is complete.
    pub fn persist_state(&self, at: Lsn) {
        self.persist_stream(at.advance(16), 8);
    }

    /// The header at `at`; what follows it in the ring is there if its state is complete.
    pub fn header(&self, at: Lsn) -> [u8; GROUP_HEADER] {
        let mut header = [0; GROUP_HEADER];
        for word in [2, 0, 1, 3] {
            let value = self.word(at.advance(word as u64 * 8)).load(Ordering::Acquire);
            header[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        header
    }

    /// Positions below this may have been overwritten, given the tail.
    pub fn floor(&self, tail: Lsn) -> Lsn {
        Lsn::from_raw((tail.raw() + SLACK).saturating_sub(self.capacity))
    }

    /// Whether bytes that were copied from `at` before this call were those of that position.
    pub fn still_holds(&self, at: Lsn) -> bool {
        fence(Ordering::Acquire);
        at >= self.floor(self.tail())
    }

    // ---- survival of a host ----

    /// Flushes part of the stream, before what is flushed later, if the ring is to survive its host. Nothing outside of
    /// the region's memory follows from it before [`Ring::set_mark`], which waits for all of it.
    pub fn persist_stream(&self, at: Lsn, length: u64) {
        if self.survive == Survive::Process {
            return;
        }
        let head = length.min(self.capacity - at.raw() % self.capacity);
        coherence::write_back(&self.region, self.base + self.place(at), head as usize);
        if head < length {
            coherence::write_back(&self.region, self.base + RING_HEADER, (length - head) as usize);
        }
        coherence::order(&self.region);
    }

    /// As [`Ring::persist_stream`], of what lies beside the stream.
    fn persist_in_order(&self, at: u64, length: usize) {
        if self.survive == Survive::Host {
            coherence::flush_in_order(&self.region, self.base + at, length);
        }
    }

    fn persist(&self, at: u64, length: usize) {
        if self.survive == Survive::Host {
            coherence::flush(&self.region, self.base + at, length);
        }
    }
}
