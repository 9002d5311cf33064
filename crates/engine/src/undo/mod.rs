//! Undo: what rows were before, for rollback and for readers of older snapshots.
//!
//! 1. Undo is written in *segments*. A segment is a space of its own (`SPACE_BASE` + number) used as an append-only
//!    stream: page 0 is its header, records follow from page 1 on, none crosses a page. A session that writes holds a
//!    segment; its transactions lie there one after the other.
//! 2. The pages are used in a circle, round after round: a *lap*. A position is lap (8 bits), page (29 bits) and offset
//!    in the page (14 bits), and never repeats; so the file never outgrows the circle. A pointer to a record is segment
//!    (16 bits) above position / 8 (48 bits). A segment that has come to its last lap is not given out again: of 65,536
//!    segments, 150 are used up by ten years of 1 GB/s.
//! 3. A row change and its record are one mini-transaction. The record names the transaction's previous record.
//! 4. A transaction's end moves the header's `end` behind its last record: in the commit's mini-transaction, or when it
//!    has been rolled back. So what lies at `end` and behind belongs to a transaction that had not ended: a loser,
//!    after a crash.
//! 5. Taking a change back marks its record *undone* in the same mini-transaction: rollback may stop anywhere and go
//!    on. The record of several inserts (`keys`) is marked when all of its rows are gone.
//! 6. Purge reads each segment from `tail` and moves `tail` on; pages wholly below it are punched out of the file.
//!
//! ```text
//! undo page      0 page header   24 u32 used: offset behind the last record   28 u32 lap   32 records
//! segment header 0 page header   32 u64 magic   40 u64 end   48 u64 last transaction   56 u64 tail
//!                64 u32 circle   72 u64 base: index of its first page
//! ```
//! Invariants: tail <= end; a page's records all lie below its `used` word; positions never repeat; a page is used anew
//! only after purge has given it back (`kept`), and says of which lap its records are, so that no position of another
//! lap is believed there; the page behind the last one with records exists and is empty, so a search for the end of the
//! stream meets no page that was never written.

pub(crate) mod keys;
mod pointer;
pub(crate) mod record;
pub(crate) mod segments;
pub(crate) mod shared;

use crate::circle::Circle;
use crate::error::{Error, Result};
use crate::pool::{BufferPool, Mtr, PageH};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Cts, PAGE_SIZE, PageId, TxId};
pub(crate) use pointer::UndoPointer;
use pointer::{END, UNIT};
use record::{
    AT_BEFORE_UNDO, AT_FLAGS, AT_KIND, FLAG_PLAIN, FLAG_UNDONE, HEADER, Kind, NewRecord, RecordRef, UndoRecord,
};
use std::collections::VecDeque;
use std::ops::Range;

/// Spaces of segments begin here.
pub(crate) const SPACE_BASE: u32 = 0xF000_0000;
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
const AT_CIRCLE: usize = 64;
const AT_BASE: usize = 72;
const AT_LAP: usize = AT_USED + 4;
/// Bytes of positions in a lap.
const LAP: u64 = (PAGE_SIZE as u64) << 29;
/// Laps of a segment.
pub(crate) const LAPS: u32 = (END / LAP) as u32;
/// Pages of the circle, usually: all that a position can name. A file of 8 TiB.
pub(crate) const CIRCLE: u32 = (1 << 29) - 1;
/// The fewest pages of a circle: a transaction has half of it at least.
pub(crate) const CIRCLE_MIN: u32 = 512;
/// Pages whose space on disk is taken at a time, where it was given back.
const RUN: u64 = 64;
/// Longest record.
pub(crate) const MAX_RECORD: usize = PAGE_SIZE - FIRST;
const _: () = {
    assert!(
        AT_USED + 4 <= AT_LAP && AT_LAP + 4 <= FIRST,
        "a page's fill and lap lie before its records"
    );
    assert!(
        AT_MAGIC + 8 <= AT_END && AT_END + 8 <= AT_LAST_TX,
        "the header's words do not overlap"
    );
    assert!(
        AT_LAST_TX + 8 <= AT_TAIL && AT_TAIL + 8 <= AT_CIRCLE && AT_CIRCLE + 4 <= AT_BASE,
        "the header's words do not overlap"
    );
    assert!(LAP * LAPS as u64 == END, "laps end where positions do");
    assert!(
        CIRCLE_MIN as u64 / 2 > RUN + 2,
        "half of a circle is more than what is taken ahead"
    );
    assert!(
        CIRCLE as u64 * (PAGE_SIZE as u64) < LAP && CIRCLE_MIN < CIRCLE,
        "a lap names each page of a circle, and the header"
    );
    assert!(
        MAX_SEGMENTS - 1 <= u16::MAX as u32,
        "a pointer has room for the number of each segment"
    );
};

fn page_of(segment: u16, position: u64) -> PageId {
    PageId::new(
        SPACE_BASE + u32::from(segment),
        (position % LAP / PAGE_SIZE as u64) as u32,
    )
}

fn lap_of(position: u64) -> u32 {
    (position / LAP) as u32
}

/// Where the stream begins that begins with `lap`.
fn lap_start(lap: u64) -> u64 {
    lap * LAP + (PAGE_SIZE + FIRST) as u64
}

fn offset_of(position: u64) -> usize {
    (position % PAGE_SIZE as u64) as usize
}

impl Circle {
    /// The index of the page at `position`. The place behind the last page of a lap counts to the next one's first.
    fn index_at(self, position: u64) -> u64 {
        let page = position % LAP / PAGE_SIZE as u64;
        position / LAP * self.len() + page.saturating_sub(1)
    }

    /// Where the page of an index has its first record.
    fn start_of(self, index: u64) -> u64 {
        lap_start(index / self.len()) + index % self.len() * PAGE_SIZE as u64
    }

    /// Where the page behind `position` has its first record; a position at a page's very end is already on the next.
    fn next_page(self, position: u64) -> u64 {
        let on_next = offset_of(position) < FIRST;
        self.start_of(self.index_at(position) + u64::from(!on_next))
    }
}

/// A transaction that has ended, for purge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// Position behind its last record.
    pub end: u64,
    /// Position of the log at which it ended: once no snapshot is older, its undo is not needed.
    pub at: Cts,
    /// The least number of this transaction and those that ended behind it: rises along the queue.
    pub tx: TxId,
}

/// A segment, as all know it.
pub(crate) struct Segment {
    pub number: u16,
    circle: Circle,
    /// Index of its first page.
    base: u64,
    /// Indexes of pages below this have been given back. Written by purge.
    kept: AtomicU64,
    /// Purged up to here. Written by purge.
    tail: AtomicU64,
    /// Records before this have been made to lead past what no snapshot needs. Written by purge.
    cut: AtomicU64,
    /// Transactions that purge has not passed, oldest first: within a segment positions and numbers rise.
    ended: rt::Mutex<VecDeque<Ended>>,
}

impl Segment {
    /// As its header says. What a former run had not given back far below the tail is made anew when its turn comes.
    pub(crate) fn new(number: u16, header: &SegmentHeader) -> Segment {
        let SegmentHeader { tail, circle, base, .. } = *header;
        Segment {
            number,
            circle,
            base,
            kept: AtomicU64::new((circle.index_at(tail) / RUN * RUN).max(base)),
            tail: AtomicU64::new(tail),
            cut: AtomicU64::new(tail),
            ended: rt::Mutex::new(VecDeque::new()),
        }
    }

    /// Purged up to here.
    pub(crate) fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Purge has passed all before `position`.
    pub(crate) fn pass(&self, position: u64) {
        assert!(
            self.tail.as_raw().load(Ordering::Acquire) <= position,
            "purge goes on to the end of a transaction's records, not beyond"
        );
        self.tail.store(position, Ordering::Release);
    }

    /// The oldest transaction that purge has not passed, if it has ended at `horizon` or before.
    pub(crate) fn next_past(&self, horizon: Cts) -> Option<Ended> {
        self.ended.lock().front().copied().filter(|ended| ended.at <= horizon)
    }

    /// Purge has passed the oldest transaction.
    pub(crate) fn note_passed(&self) {
        let passed = self.ended.lock().pop_front();
        let tail = self.tail.as_raw().load(Ordering::Acquire);
        assert!(
            passed.is_some_and(|ended| ended.end <= tail),
            "the tail has come to the end of a transaction that is passed"
        );
    }

    /// Where the records end of the transactions that have ended at `until` or before.
    pub(crate) fn end_of_past(&self, until: Cts) -> Option<u64> {
        let ended = self.ended.lock();
        let past = ended.partition_point(|ended| ended.at <= until);
        past.checked_sub(1).map(|last| ended[last].end)
    }

    /// Where the records begin that have not been looked at to be cut.
    pub(crate) fn cut_to(&self) -> u64 {
        self.cut.load(Ordering::Acquire).max(self.tail())
    }

    /// Records before `position` have been looked at to be cut.
    pub(crate) fn note_cut(&self, position: u64) {
        self.cut.store(position, Ordering::Release);
    }

    /// The least number of a transaction that purge has not passed.
    fn oldest(&self) -> Option<TxId> {
        self.ended.lock().front().map(|ended| ended.tx)
    }

    /// The least number of a transaction that has ended behind `horizon`.
    fn oldest_recent(&self, horizon: Cts) -> Option<TxId> {
        let ended = self.ended.lock();
        let recent = ended.get(ended.partition_point(|ended| ended.at <= horizon));
        recent.map(|ended| ended.tx)
    }

    /// Pages below the tail that have not been given back, in whole runs of `many`: their indexes.
    pub(crate) fn past(&self, many: u64) -> Range<u64> {
        let to = self.circle.index_at(self.tail()) / many * many;
        let from = self.kept.load(Ordering::Acquire);
        from..to.max(from)
    }

    /// The pages of these indexes.
    pub(crate) fn pages(&self, past: &Range<u64>) -> Vec<Range<u32>> {
        self.circle.pages(past.clone())
    }

    /// Whether the page is the header, or has records between the tail and the end.
    pub(crate) fn uses(&self, header: &SegmentHeader, page: u32) -> bool {
        let tail = header.tail.max(self.tail());
        let (first, last) = (self.circle.index_at(tail), self.circle.index_at(header.end.max(tail)));
        assert!(
            last - first < self.circle.len(),
            "tail and end of a segment are less than a circle apart"
        );
        let used = self.circle.pages(first..last + 1);
        page == 0 || used.iter().any(|run| run.contains(&page))
    }

    /// These pages are empty, and may be used anew.
    pub(crate) fn note_given_back(&self, past: Range<u64>) {
        assert!(
            past.end >= self.kept.as_raw().load(Ordering::Acquire)
                && past.end
                    <= self
                        .circle
                        .index_at(self.tail.as_raw().load(Ordering::Acquire))
                        .max(past.start),
            "pages are given back in order, and none at the tail or behind it"
        );
        self.kept.store(past.end, Ordering::Release);
    }

    /// Notes a transaction's end. Numbers are drawn before segments are taken, so a later end may have a lesser number:
    /// those before it then answer for it (`Ended::tx`).
    pub(crate) fn note_end(&self, new: Ended) {
        let mut ended = self.ended.lock();
        for before in ended.iter_mut().rev().take_while(|before| before.tx > new.tx) {
            before.tx = new.tx;
        }
        assert!(
            ended.back().is_none_or(|before| before.end <= new.end),
            "the transactions of a segment end in the order of their records"
        );
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
    /// Bytes of the record that it is for.
    len: usize,
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
        let position = if fits { self.position } else { self.turn()? };
        let h = m.exclusive(page_of(self.segment.number, position))?;
        Ok(Place { h, position, len })
    }

    /// Whether a transaction may begin here: half of the circle is free, and the last laps have not come.
    pub(crate) fn has_room(&self) -> bool {
        self.free() >= self.segment.circle.len() / 2 && lap_of(self.position) < LAPS - 2
    }

    /// No transaction will begin here any more.
    pub(crate) fn is_used_up(&self) -> bool {
        lap_of(self.position) >= LAPS - 2
    }

    /// Pages that may be used before the circle closes; of the page behind the last, the space of a whole run is taken.
    fn free(&self) -> u64 {
        let Segment { circle, kept, .. } = &*self.segment;
        let used = circle.index_at(self.position) + 2 + RUN;
        (kept.load(Ordering::Acquire) + circle.len()).saturating_sub(used)
    }

    /// Where the next page has its first record. Errors: the transaction has used up the circle, or the positions.
    #[cold]
    fn turn(&self) -> Result<u64> {
        let position = self.segment.circle.next_page(self.position);
        if self.free() > 0 && lap_of(position) < LAPS - 1 {
            return Ok(position);
        }
        Err(Error::TooLarge(format!(
            "the transaction's undo does not fit its segment of {} pages of {PAGE_SIZE} bytes: change fewer rows at a time",
            self.segment.circle.len()
        )))
    }

    /// No pointer of a record written so far is at or above this, and none that follows below.
    pub(crate) fn next_pointer(&self) -> UndoPointer {
        UndoPointer::new(self.segment.number, self.position)
    }

    /// Pointer that the record at `place` will have.
    pub(crate) fn pointer(&self, place: &Place) -> UndoPointer {
        UndoPointer::new(self.segment.number, place.position)
    }

    /// Writes the record. The first on a page makes the page behind it. The writer moves on: the mini-transaction must
    /// be committed. Errors: only before the first change.
    pub(crate) fn append(
        &mut self,
        m: &mut Mtr<'_>,
        place: &Place,
        record: &NewRecord<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<UndoPointer> {
        record.encode(scratch);
        assert_eq!(
            scratch.len(),
            place.len,
            "a record is as long as the place that was prepared for it"
        );
        assert!(place.position >= self.position, "a segment is append-only");
        let at = offset_of(place.position);
        assert!(
            at >= FIRST && at + scratch.len() <= PAGE_SIZE,
            "a record lies on one page, behind its header"
        );
        if at == FIRST {
            self.make_behind(m, place.position)?;
        }
        m.write(place.h, at, scratch);
        let used = (at + scratch.len()) as u64;
        m.write_u64(place.h, AT_USED, used | u64::from(lap_of(place.position)) << 32);
        self.position = place.position + scratch.len() as u64;
        Ok(UndoPointer::new(self.segment.number, place.position))
    }

    /// Makes the page behind the one at `position`. Where a lap came by before, its space on disk was given back.
    fn make_behind(&self, m: &mut Mtr<'_>, position: u64) -> Result<()> {
        let circle = self.segment.circle;
        let behind = circle.index_at(position) + 1;
        let page = page_of(self.segment.number, circle.start_of(behind));
        if behind >= self.segment.base + circle.len() && (behind.is_multiple_of(RUN) || page.page == 1) {
            let end = u64::from(page.page).saturating_add(RUN).min(circle.len() + 1) as u32;
            m.reserve_again(page.space, page.page..end)?;
        }
        m.create(page, KIND_UNDO, 0)?;
        Ok(())
    }
}

/// Makes the empty segment `number`, whose space exists and is empty; it begins with `lap`. What its header says.
pub(crate) fn create(pool: &BufferPool, number: u16, circle: Circle, lap: u32) -> Result<SegmentHeader> {
    let start = lap_start(u64::from(lap));
    let header = SegmentHeader {
        end: start,
        tail: start,
        circle,
        base: circle.index_at(start),
    };
    let mut m = pool.mtr();
    let h = m.create(header_page(number), KIND_UNDO_HEADER, 0)?;
    m.write_u64(h, AT_MAGIC, MAGIC);
    m.write_u64(h, AT_END, start);
    m.write_u64(h, AT_LAST_TX, TxId::NONE.raw());
    m.write_u64(h, AT_TAIL, start);
    m.write_u32(h, AT_CIRCLE, circle.len() as u32);
    m.write_u64(h, AT_BASE, header.base);
    // Should this fail, the segment is not counted yet and is made anew.
    let first = m.create(page_of(number, start), KIND_UNDO, 0);
    m.commit();
    Ok(first.map(|_| header)?)
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
    /// Its pages.
    pub circle: Circle,
    /// Index of its first page.
    pub base: u64,
}

/// Reads a segment's header. Errors: it is none.
pub(crate) fn header(pool: &BufferPool, number: u16) -> Result<SegmentHeader> {
    let guard = pool.shared(header_page(number))?;
    let view = guard.view();
    let (end, tail, pages, base) = (
        view.u64(AT_END),
        view.u64(AT_TAIL),
        view.u32(AT_CIRCLE),
        view.u64(AT_BASE),
    );
    let corrupt = || Error::Corrupt(format!("header of undo segment {number}"));
    let circle = Circle::new(pages).filter(|_| pages <= CIRCLE && view.u64(AT_MAGIC) == MAGIC);
    let header = SegmentHeader {
        end,
        tail,
        circle: circle.ok_or_else(corrupt)?,
        base,
    };
    header.is_sound().then_some(header).ok_or_else(corrupt)
}

impl SegmentHeader {
    /// Whether tail and end are positions of records, the tail not behind the end, and no page has records of two laps
    /// between them.
    fn is_sound(&self) -> bool {
        let (first, last) = (self.circle.index_at(self.tail), self.circle.index_at(self.end));
        let are_positions = (lap_start(0)..=self.end).contains(&self.tail)
            && self.end < END
            && [self.tail, self.end].iter().all(|at| at.is_multiple_of(UNIT));
        are_positions && self.base <= first && last - first < self.circle.len()
    }
}

/// Latches a segment's header.
pub(crate) fn latch_header(m: &mut Mtr<'_>, number: u16) -> Result<PageH> {
    Ok(m.exclusive(header_page(number))?)
}

/// A transaction has ended at `end`.
pub(crate) fn set_end(m: &mut Mtr<'_>, h: PageH, end: u64, tx: TxId) {
    assert!(end < END, "a transaction ends at a position that a pointer can name");
    m.write_u64(h, AT_END, end);
    m.write_u64(h, AT_LAST_TX, tx.raw());
}

/// Purge has passed everything below `tail`.
pub(crate) fn set_tail(m: &mut Mtr<'_>, h: PageH, tail: u64) {
    assert!(
        tail <= m.view(h).u64(AT_END),
        "purge passes only what transactions that have ended wrote"
    );
    m.write_u64(h, AT_TAIL, tail);
}

/// Copies the record at `pointer`. Errors: there is none, or it contradicts itself.
pub(crate) fn read(pool: &BufferPool, pointer: UndoPointer) -> Result<UndoRecord> {
    let mut bytes = Vec::new();
    copy(pool, pointer, &mut bytes, |_| true)?;
    UndoRecord::decode(&bytes)
}

/// Copies the record at `pointer` to `bytes`, for a reader of the version before its change; None where there was none:
/// a list of keys that were inserted together is not copied. Errors: as `read`.
pub(crate) fn read_before<'b>(
    pool: &BufferPool,
    pointer: UndoPointer,
    bytes: &'b mut Vec<u8>,
) -> Result<Option<RecordRef<'b>>> {
    let has_before = |kind: u8| !Kind::of(kind).is_some_and(Kind::is_insert);
    copy(pool, pointer, bytes, has_before)?;
    match bytes.is_empty() {
        true => Ok(None),
        false => RecordRef::parse(bytes).map(Some),
    }
}

/// Copies the bytes of the record at `pointer`; none if it is of a kind that is not `wanted`.
fn copy(pool: &BufferPool, pointer: UndoPointer, bytes: &mut Vec<u8>, wanted: impl Fn(u8) -> bool) -> Result<()> {
    let (segment, position) = (pointer.segment(), pointer.position());
    loop {
        let guard = pool.optimistic(page_of(segment, position))?;
        let view = guard.view();
        let at = offset_of(position);
        let (used, len) = (view.u32(AT_USED) as usize, view.u32(at) as usize);
        let of_this_lap = view.u8(12) == KIND_UNDO && view.u32(AT_LAP) == lap_of(position);
        let sound = at >= FIRST && len >= HEADER && used <= PAGE_SIZE && at + len <= used && of_this_lap;
        bytes.clear();
        if sound && wanted(view.u8(at + AT_KIND)) {
            view.copy_to(at, len, bytes);
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
        return Ok(());
    }
}

/// The record at or behind `position`, where a page may end before it: (its position, position behind it, record).
/// None where the stream ends.
pub(crate) fn read_next(
    pool: &BufferPool,
    segment: &Segment,
    mut position: u64,
) -> Result<Option<(u64, u64, UndoRecord)>> {
    for _ in 0..2 {
        if offset_of(position) < FIRST {
            position = segment.circle.next_page(position);
        }
        let used = used_of(pool, segment.number, position)?;
        if used > offset_of(position) {
            let record = read(pool, UndoPointer::new(segment.number, position))?;
            return Ok(Some((position, position + record.len() as u64, record)));
        }
        if used == 0 {
            return Ok(None);
        }
        position = segment.circle.next_page(position);
    }
    Ok(None)
}

/// Offset behind the last record of the page at `position`; 0 where it has none of this lap.
fn used_of(pool: &BufferPool, segment: u16, position: u64) -> Result<usize> {
    let guard = pool.shared(page_of(segment, position))?;
    let view = guard.view();
    Ok(if view.u8(12) == KIND_UNDO && view.u32(AT_LAP) == lap_of(position) {
        view.u32(AT_USED) as usize
    } else {
        0
    })
}

/// The last record of the stream behind `end`: (its position, position behind it, record). Looks at few pages, however
/// long that part is: pages with records are followed by an empty one, then by pages never written, or not in this lap.
pub(crate) fn read_last(pool: &BufferPool, segment: &Segment, end: u64) -> Result<Option<(u64, u64, UndoRecord)>> {
    let Some(first) = read_next(pool, segment, end)? else {
        return Ok(None);
    };
    let Segment { number, circle, .. } = *segment;
    let has_records = |index| used_of(pool, number, circle.start_of(index)).is_ok_and(|used| used > FIRST);
    let from = circle.index_at(first.0);
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
    let sure = used_of(pool, number, circle.start_of(low + 1)).is_ok_and(|used| used <= FIRST);
    let mut last = if sure && low > from {
        read_next(pool, segment, circle.start_of(low))?.unwrap_or(first)
    } else {
        first
    };
    while let Some(next) = read_next(pool, segment, last.1)? {
        last = next;
    }
    Ok(Some(last))
}

/// Latches the page of a record, to mark it undone.
pub(crate) fn latch_record(m: &mut Mtr<'_>, pointer: UndoPointer) -> Result<PageH> {
    Ok(m.exclusive(page_of(pointer.segment(), pointer.position()))?)
}

/// Marks the record, whose page is latched, undone.
pub(crate) fn mark_undone(m: &mut Mtr<'_>, h: PageH, pointer: UndoPointer) {
    if !planted(Fault::UndoneMark) {
        m.write(h, offset_of(pointer.position()) + AT_FLAGS, &[FLAG_UNDONE]);
    }
}

/// Whether the change has been taken back; the record's page is latched.
pub(crate) fn is_undone(m: &Mtr<'_>, h: PageH, pointer: UndoPointer) -> bool {
    m.view(h).u8(offset_of(pointer.position()) + AT_FLAGS) & FLAG_UNDONE != 0
}

/// Makes a record of a committed transaction lead on to another one than to that of the version that it holds. Purge has
/// not passed either.
pub(crate) fn lead_to(pool: &BufferPool, pointer: UndoPointer, to: UndoPointer) -> Result<()> {
    let mut m = pool.mtr();
    let h = latch_record(&mut m, pointer)?;
    m.write_u64(h, offset_of(pointer.position()) + AT_BEFORE_UNDO, to.raw());
    m.commit();
    Ok(())
}

/// The record is not plain any more: an index was made whose key its change has changed. Purge has not passed it.
pub(crate) fn unmark_plain(pool: &BufferPool, pointer: UndoPointer) -> Result<()> {
    let mut m = pool.mtr();
    let h = latch_record(&mut m, pointer)?;
    let at = offset_of(pointer.position()) + AT_FLAGS;
    let flags = m.view(h).u8(at);
    if flags & FLAG_PLAIN != 0 {
        m.write(h, at, &[flags & !FLAG_PLAIN]);
    }
    m.commit();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_hold_every_position() {
        for position in [lap_start(0), lap_start(255), END - 8, lap_start(7) + 16_000] {
            let pointer = UndoPointer::new(u16::MAX, position);
            assert_eq!((pointer.segment(), pointer.position()), (u16::MAX, position));
            assert_eq!(UndoPointer::from_raw(pointer.raw()), pointer);
        }
        assert_eq!(LAPS, 256);
        let ten_years = 10 * 366 * 24 * 3600;
        assert!(END / 1_000_000_000 * u64::from(MAX_SEGMENTS) > ten_years, "at 1 GB/s");
    }

    #[test]
    fn positions_rise_and_pages_go_round() {
        for pages in [CIRCLE_MIN, CIRCLE] {
            let circle = Circle::new(pages).expect("some pages");
            let last = circle.start_of(3 * circle.len() - 1);
            assert_eq!((lap_of(last), page_of(5, last).page), (2, pages));
            let page_end = last - FIRST as u64 + PAGE_SIZE as u64;
            for position in [last, last + 800, page_end] {
                let next = circle.next_page(position);
                assert_eq!(next, lap_start(3), "behind {position}");
                assert!(next > position);
            }
            assert_eq!(page_of(5, lap_start(3)).page, 1);
            assert_eq!(circle.index_at(page_end), circle.index_at(lap_start(3)));
            for index in [0, 1, circle.len() - 1, circle.len(), 77 * circle.len() + 5] {
                assert_eq!(circle.index_at(circle.start_of(index)), index);
                assert_eq!(page_of(5, circle.start_of(index)).page, circle.page(index));
            }
        }
    }
}
