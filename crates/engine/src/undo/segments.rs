//! The undo segments of a database: which there are, and which of them are free to be written to.
//!
//! Invariants: a segment's place is its number. The meta page counts a segment before a transaction writes to it. The
//! right to append to one is a session's, a loser's, or free. A segment that is used up is not given out again.
//!
//! Lock order: `making` → `all`; `free` by itself.

use super::{MAX_SEGMENTS, SPACE_BASE, Segment, UndoPointer, Writer, create};
use crate::circle::Circle;
use crate::error::{Error, Result};
use crate::meta::AT_SEGMENTS;
use crate::pool::BufferPool;
use crate::system::META_SPACE;
use cenote_base::rt;
use cenote_base::{Cts, PageId, TxId};
use std::sync::Arc;

/// See the module.
pub(crate) struct Segments {
    all: rt::RwLock<Vec<Arc<Segment>>>,
    /// The one that was given back last is at the end.
    free: rt::Mutex<Vec<Writer>>,
    /// One is made at a time.
    making: rt::Mutex<()>,
    /// What a new one is given: its circle, its first lap.
    origin: (Circle, u32),
}

impl Segments {
    /// Those that the meta page counts, of which none is free yet.
    pub(crate) fn new(all: Vec<Arc<Segment>>, origin: (Circle, u32)) -> Segments {
        let in_order = all
            .iter()
            .enumerate()
            .all(|(at, segment)| at == usize::from(segment.number));
        assert!(in_order, "a segment's number is its place");
        Segments {
            all: rt::RwLock::new(all),
            free: rt::Mutex::new(Vec::new()),
            making: rt::Mutex::new(()),
            origin,
        }
    }

    /// Those that there are at present.
    pub(crate) fn all(&self) -> Vec<Arc<Segment>> {
        self.all.read().clone()
    }

    /// The one with this number.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<Segment>> {
        self.all.read().get(number as usize).cloned()
    }

    /// Whether purge has passed the record.
    pub(crate) fn is_purged(&self, pointer: UndoPointer) -> bool {
        let all = self.all.read();
        let segment = all.get(usize::from(pointer.segment()));
        segment.is_none_or(|segment| pointer.position() < segment.tail())
    }

    /// The least of `none` and the numbers of transactions that have ended and that purge has not passed.
    pub(crate) fn oldest_unpurged(&self, none: TxId) -> TxId {
        let all = self.all.read();
        all.iter().filter_map(|segment| segment.oldest()).fold(none, TxId::min)
    }

    /// The least of `none` and the numbers of transactions that have ended behind `horizon`.
    pub(crate) fn oldest_recent(&self, none: TxId, horizon: Cts) -> TxId {
        let all = self.all.read();
        let recent = all.iter().filter_map(|segment| segment.oldest_recent(horizon));
        recent.fold(none, TxId::min)
    }

    /// One to write to: one that is free, or a new one.
    ///
    /// # Errors
    /// [`Error::Limit`]: all are in use; those of making one.
    pub(crate) fn take(&self, pool: &BufferPool) -> Result<Writer> {
        if let Some(writer) = self.take_free() {
            return Ok(writer);
        }
        let _making = self.making.lock();
        let number = self.all.read().len() as u32;
        assert!(number <= MAX_SEGMENTS, "no more segments than there may be");
        if number == MAX_SEGMENTS {
            return Err(Error::Limit(format!(
                "all {MAX_SEGMENTS} undo segments are in use: end transactions that write, or an old snapshot that \
                 keeps purge from them"
            )));
        }
        let writer = self.make(pool, number)?;
        let mut all = self.all.write();
        assert!(all.len() == number as usize, "a segment's number is its place");
        all.push(writer.segment.clone());
        Ok(writer)
    }

    fn make(&self, pool: &BufferPool, number: u32) -> Result<Writer> {
        let (space, pages) = (SPACE_BASE + number, pool.storage().pages());
        // A crash may have come between the space and the count.
        if !pages.has_space(space) {
            pages.create_space(space)?;
        }
        let (circle, lap) = self.origin;
        let header = create(pool, number as u16, circle, lap)?;
        let mut m = pool.mtr();
        let h = m.exclusive(PageId::new(META_SPACE, 0))?;
        m.write_u32(h, AT_SEGMENTS, number + 1);
        m.commit();
        Ok(Writer {
            segment: Arc::new(Segment::new(number as u16, &header)),
            position: header.end,
        })
    }

    /// The one that was given back last, of those with room.
    fn take_free(&self) -> Option<Writer> {
        let mut free = self.free.lock();
        let index = free.iter().rposition(Writer::has_room)?;
        Some(free.remove(index))
    }

    /// Its holder needs the segment no more. One that is used up is not given out again.
    pub(crate) fn give_back(&self, writer: Writer) {
        if !writer.is_used_up() {
            self.free.lock().push(writer);
        }
    }
}
