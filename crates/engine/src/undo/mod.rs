//! Undo: what rows were before, for rollback and for readers of older snapshots.
//!
//! 1. Undo is written in *segments*. A segment is a space of its own (`SPACE_BASE` + number) used as an append-only
//!    stream: page 0 is its header, records follow from page 1 on, none crosses a page. A session that writes holds a
//!    segment; its transactions lie there one after the other.
//! 2. A pointer to a record is segment (16 bits) above the byte position in the space (48 bits).
//! 3. A row change and its record are one mini-transaction. The record names the transaction's previous record.
//! 4. A transaction's end moves the header's `end` behind its last record: in the commit's mini-transaction, or when it has
//!    been rolled back. So what lies at `end` and behind belongs to a transaction that had not ended: a loser, after a crash.
//! 5. Taking a change back marks its record *undone* in the same mini-transaction: rollback may stop anywhere and go on.
//! 6. Purge reads each segment from `tail` and moves `tail` on; pages wholly below it are punched out of the file.
//!
//! ```text
//! undo page      0 page header (word at 24: offset behind the last record)   32 records
//! segment header 0 page header   32 u64 magic   40 u64 end   48 u64 last transaction   56 u64 tail
//! ```
//! Invariants: tail <= end; a page's records all lie below its `used` word; positions never repeat, pages are never reused;
//! the page behind the last one with records exists and is empty, so whoever looks for the end of the stream meets no page
//! that was never written.

pub(crate) mod record;

use crate::error::{Error, Result};
use crate::pool::{BufferPool, Mtr, PageH};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{PAGE_SIZE, PageId};
use record::{AT_FLAGS, FLAG_UNDONE, HEADER, NewRecord, UndoRecord};
use std::collections::VecDeque;

/// Spaces of segments begin here.
pub(crate) const SPACE_BASE: u32 = 0x1000_0000;
/// Segments at most.
pub(crate) const MAX_SEGMENTS: u32 = 1 << 16;
/// Page kind of undo records.
pub(crate) const KIND_UNDO: u8 = 0x20;
/// Page kind of a segment's header.
pub(crate) const KIND_UNDO_HEADER: u8 = 0x21;

const MAGIC: u64 = u64::from_le_bytes(*b"CenoteUn");
const AT_USED: usize = 24;
const FIRST: usize = 32;
const AT_MAGIC: usize = 32;
const AT_END: usize = 40;
const AT_LAST_TX: usize = 48;
const AT_TAIL: usize = 56;
/// Where the stream begins.
pub(crate) const STREAM_START: u64 = PAGE_SIZE as u64 + FIRST as u64;
/// Longest record.
pub(crate) const MAX_RECORD: usize = PAGE_SIZE - FIRST;

/// Segment and position of a pointer.
pub(crate) fn split(pointer: u64) -> (u16, u64) {
    ((pointer >> 48) as u16, pointer & ((1 << 48) - 1))
}

fn pointer(segment: u16, position: u64) -> u64 {
    u64::from(segment) << 48 | position
}

fn page_of(segment: u16, position: u64) -> PageId {
    PageId::new(SPACE_BASE + u32::from(segment), (position / PAGE_SIZE as u64) as u32)
}

fn offset_of(position: u64) -> usize {
    (position % PAGE_SIZE as u64) as usize
}

/// Where the page behind `position` has its first record; a position at a page's very end is already on the next.
fn next_page(position: u64) -> u64 {
    let page = if offset_of(position) < FIRST {
        position / PAGE_SIZE as u64
    } else {
        position / PAGE_SIZE as u64 + 1
    };
    page * PAGE_SIZE as u64 + FIRST as u64
}

/// A transaction that has ended, for purge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// Position behind its last record.
    pub end: u64,
    /// Position of the log at which it ended: once no snapshot is older, its undo is not needed.
    pub at: u64,
    /// The least number of this transaction and those that ended behind it: rises along the queue.
    pub tx: u64,
}

/// A segment, as all know it.
pub(crate) struct Segment {
    pub number: u16,
    /// Purged up to here. Written by purge.
    pub tail: AtomicU64,
    /// Transactions that purge has not passed, oldest first.
    pub ended: rt::Mutex<VecDeque<Ended>>,
}

impl Segment {
    pub(crate) fn new(number: u16, tail: u64) -> Segment {
        Segment {
            number,
            tail: AtomicU64::new(tail),
            ended: rt::Mutex::new(VecDeque::new()),
        }
    }

    /// Notes a transaction's end. Numbers are drawn before segments are taken, so a later end may have a lesser number: those
    /// before it then answer for it (`Ended::tx`).
    pub(crate) fn note_end(&self, new: Ended) {
        let mut ended = self.ended.lock();
        for before in ended.iter_mut().rev().take_while(|before| before.tx > new.tx) {
            before.tx = new.tx;
        }
        ended.push_back(new);
    }
}

/// The right to append to a segment.
pub(crate) struct Writer {
    pub segment: std::sync::Arc<Segment>,
    /// Where the next record goes (on the next page if it does not fit).
    pub position: u64,
}

/// Place for a record, latched.
pub(crate) struct Place {
    h: PageH,
    position: u64,
    page: PageId,
}

impl Writer {
    /// Latches the page where a record of `len` bytes goes: the last latch of the mini-transaction.
    pub(crate) fn prepare(&self, m: &mut Mtr<'_>, len: usize) -> Result<Place> {
        if len > MAX_RECORD {
            return Err(Error::TooLarge(format!(
                "row of {len} bytes is too big for an undo record"
            )));
        }
        let fits = offset_of(self.position) + len <= PAGE_SIZE && offset_of(self.position) >= FIRST;
        let position = if fits { self.position } else { next_page(self.position) };
        let page = page_of(self.segment.number, position);
        Ok(Place {
            h: m.exclusive(page)?,
            position,
            page,
        })
    }

    /// No pointer of a record written so far is at or above this, and none that follows below.
    pub(crate) fn next_pointer(&self) -> u64 {
        pointer(self.segment.number, self.position)
    }

    /// Pointer that the record at `place` will have.
    pub(crate) fn pointer(&self, place: &Place) -> u64 {
        pointer(self.segment.number, place.position)
    }

    /// Writes the record. The first on a page makes the page behind it. The writer moves on: the mini-transaction must be
    /// committed. Errors: only before the first change.
    pub(crate) fn append(
        &mut self,
        m: &mut Mtr<'_>,
        place: &Place,
        record: &NewRecord<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<u64> {
        record.encode(scratch);
        let at = offset_of(place.position);
        if at == FIRST {
            m.create(PageId::new(place.page.space, place.page.page + 1), KIND_UNDO, 0)?;
        }
        m.write(place.h, at, scratch);
        m.write_u64(place.h, AT_USED, (at + scratch.len()) as u64);
        self.position = place.position + scratch.len() as u64;
        Ok(pointer(self.segment.number, place.position))
    }
}

/// Makes the empty segment `number`, whose space exists and is empty.
pub(crate) fn create(pool: &BufferPool, number: u16) -> Result<()> {
    let mut m = pool.mtr();
    let h = m.create(header_page(number), KIND_UNDO_HEADER, 0)?;
    m.write_u64(h, AT_MAGIC, MAGIC);
    m.write_u64(h, AT_END, STREAM_START);
    m.write_u64(h, AT_LAST_TX, 0);
    m.write_u64(h, AT_TAIL, STREAM_START);
    // Should this fail, the segment is not counted yet and is made anew.
    let first = m.create(page_of(number, STREAM_START), KIND_UNDO, 0);
    m.commit();
    Ok(first.map(drop)?)
}

fn header_page(number: u16) -> PageId {
    PageId::new(SPACE_BASE + u32::from(number), 0)
}

/// Words of a segment's header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentHeader {
    /// Behind the last record of a transaction that has ended.
    pub end: u64,
    /// Purged up to here.
    pub tail: u64,
}

/// Reads a segment's header. Errors: it is none.
pub(crate) fn header(pool: &BufferPool, number: u16) -> Result<SegmentHeader> {
    let guard = pool.shared(header_page(number))?;
    let view = guard.view();
    let header = SegmentHeader {
        end: view.u64(AT_END),
        tail: view.u64(AT_TAIL),
    };
    if view.u64(AT_MAGIC) != MAGIC || header.tail > header.end || header.tail < STREAM_START {
        return Err(Error::Corrupt(format!("header of undo segment {number}")));
    }
    Ok(header)
}

/// Latches a segment's header.
pub(crate) fn latch_header(m: &mut Mtr<'_>, number: u16) -> Result<PageH> {
    Ok(m.exclusive(header_page(number))?)
}

/// A transaction has ended at `end`.
pub(crate) fn set_end(m: &mut Mtr<'_>, h: PageH, end: u64, tx: u64) {
    m.write_u64(h, AT_END, end);
    m.write_u64(h, AT_LAST_TX, tx);
}

/// Purge has passed everything below `tail`.
pub(crate) fn set_tail(m: &mut Mtr<'_>, h: PageH, tail: u64) {
    m.write_u64(h, AT_TAIL, tail);
}

/// First page that is still needed when everything below `tail` is not.
pub(crate) fn first_page_kept(tail: u64) -> u32 {
    (tail / PAGE_SIZE as u64) as u32
}

/// Copies the record at `pointer`. Errors: there is none, or it contradicts itself.
pub(crate) fn read(pool: &BufferPool, pointer: u64) -> Result<UndoRecord> {
    let (segment, position) = split(pointer);
    let mut bytes = Vec::new();
    loop {
        let guard = pool.optimistic(page_of(segment, position))?;
        let view = guard.view();
        let at = offset_of(position);
        let (used, len) = (view.u64(AT_USED) as usize, view.u32(at) as usize);
        let sound = at >= FIRST && len >= HEADER && used <= PAGE_SIZE && at + len <= used && view.u8(12) == KIND_UNDO;
        bytes.clear();
        if sound {
            view.copy_to(at, len, &mut bytes);
        }
        if !guard.valid() {
            rt::relax();
            continue;
        }
        if !sound {
            return Err(Error::Corrupt(format!(
                "no undo record at {segment}:{position} (its page says {used} bytes used, the place a record of {len})"
            )));
        }
        return UndoRecord::decode(&bytes);
    }
}

/// The record at or behind `position`, where a page may end before it: (its position, position behind it, record).
/// None where the stream ends.
pub(crate) fn read_next(pool: &BufferPool, segment: u16, mut position: u64) -> Result<Option<(u64, u64, UndoRecord)>> {
    for _ in 0..2 {
        if offset_of(position) < FIRST {
            position = position - offset_of(position) as u64 + FIRST as u64;
        }
        let used = used_of(pool, segment, position)?;
        if used > offset_of(position) {
            let record = read(pool, pointer(segment, position))?;
            let len = record::len_of(record.key.len(), record.row.len());
            return Ok(Some((position, position + len as u64, record)));
        }
        if used == 0 {
            return Ok(None);
        }
        position = next_page(position);
    }
    Ok(None)
}

/// Offset behind the last record of the page at `position`; 0 where it has none.
fn used_of(pool: &BufferPool, segment: u16, position: u64) -> Result<usize> {
    let guard = pool.shared(page_of(segment, position))?;
    let view = guard.view();
    Ok(if view.u8(12) == KIND_UNDO {
        view.u64(AT_USED) as usize
    } else {
        0
    })
}

/// The last record of the stream behind `end`: (its position, position behind it, record). Looks at few pages, however long
/// that part is: pages with records are followed by an empty one, then by pages never written.
pub(crate) fn read_last(pool: &BufferPool, segment: u16, end: u64) -> Result<Option<(u64, u64, UndoRecord)>> {
    let Some(first) = read_next(pool, segment, end)? else {
        return Ok(None);
    };
    let page_at = |page: u64| page * PAGE_SIZE as u64 + FIRST as u64;
    let has_records = |page: u64| used_of(pool, segment, page_at(page)).is_ok_and(|used| used > FIRST);
    let from = first.0 / PAGE_SIZE as u64;
    let mut step = 1;
    while has_records(from + step) {
        step *= 2;
    }
    let (mut low, mut high) = (from + step / 2, from + step);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if has_records(middle) {
            low = middle
        } else {
            high = middle
        }
    }
    // A page that cannot be read in between would end the search early: then go step by step, and meet it.
    let sure = used_of(pool, segment, page_at(low + 1)).is_ok_and(|used| used <= FIRST);
    let mut last = if sure && low > from {
        read_next(pool, segment, page_at(low))?.unwrap_or(first)
    } else {
        first
    };
    while let Some(next) = read_next(pool, segment, last.1)? {
        last = next;
    }
    Ok(Some(last))
}

/// Pointer to a record that `read_next` found.
pub(crate) fn pointer_to(segment: u16, position: u64) -> u64 {
    pointer(segment, position)
}

/// Latches the page of a record, to mark it undone.
pub(crate) fn latch_record(m: &mut Mtr<'_>, pointer: u64) -> Result<PageH> {
    let (segment, position) = split(pointer);
    Ok(m.exclusive(page_of(segment, position))?)
}

/// Marks the record, whose page is latched, undone.
pub(crate) fn mark_undone(m: &mut Mtr<'_>, h: PageH, pointer: u64) {
    let (_, position) = split(pointer);
    m.write(h, offset_of(position) + AT_FLAGS, &[FLAG_UNDONE]);
}

/// Whether purge has already passed the record.
pub(crate) fn is_purged(segment: &Segment, pointer: u64) -> bool {
    split(pointer).1 < segment.tail.load(Ordering::Acquire)
}
