//! The builder that a mini-transaction fills, operation by operation.
//!
//! Operations on several pages arrive interleaved; the records must not be. So each page of the
//! group has a buffer of its own, kept for the next group: in steady state nothing is allocated.
//! [`GroupBuilder::finish`] puts them in a row behind a group header whose position the log fills.
//!
//! A write that touches the one before it on the same page (slot arrays, counters, rows laid down
//! field by field) is merged into it: fewer headers, and the newest bytes win.

use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, RecordAddr, Result, crc};

use super::{
    FLAG_BASE, GROUP_HEADER, KIND_GROUP, MAX_GROUP, MAX_RECORD, OP_IMAGE, OP_INIT, OP_MOVE, OP_SHIFT, OP_WRITE,
    PageRecordRef, RECORD_HEADER, STATE_COMPLETE, seal,
};

const WRITE_HEADER: usize = 4;
/// A hole of zeros shorter than this is not worth leaving out of an image.
const MIN_HOLE: usize = 64;

/// Collects the redo of one mini-transaction. Reused for the next by [`GroupBuilder::clear`].
#[derive(Default)]
pub struct GroupBuilder {
    pages: Vec<PageOps>,
    used: usize,
    bytes: Vec<u8>,
}

/// The operations of one page, without their header.
#[derive(Default)]
struct PageOps {
    page: PageId,
    prev: RecordAddr,
    ops: Vec<u8>,
    count: usize,
    base: bool,
    /// Where the last operation begins in `ops`, if it is a write.
    last_write: Option<usize>,
    /// Where the record begins in the group; known once it is finished.
    offset: u32,
}

impl GroupBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the group, keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.bytes.clear();
    }

    /// Whether no page has been begun since [`GroupBuilder::clear`].
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Begins the record of `page`, whose newest record before this group lies at `prev`.
    /// Returns the handle for operations on it. Asking again for a page of this group
    /// gives the record that it has.
    pub fn page(&mut self, page: PageId, prev: RecordAddr) -> usize {
        if let Some(known) = self.pages[..self.used].iter().position(|p| p.page == page) {
            return known;
        }
        self.begin_page(page, prev)
    }

    /// As [`GroupBuilder::page`], for a caller that knows that the page is new to this group.
    pub fn begin_page(&mut self, page: PageId, prev: RecordAddr) -> usize {
        if self.used == self.pages.len() {
            self.pages.push(PageOps::default());
        }
        self.pages[self.used].begin(page, prev);
        self.used += 1;
        self.used - 1
    }

    /// Bytes `bytes` at `offset` of the page.
    ///
    /// # Panics
    /// If the range is not inside a page, as do all operations here: a page that was changed
    /// outside its bounds cannot be redone.
    pub fn write(&mut self, record: usize, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= PAGE_SIZE, "write past the end of a page");
        if !bytes.is_empty() {
            self.pages[record].write(offset, bytes);
        }
    }

    /// `length` bytes move from `source` to `destination` within the page; they may overlap.
    pub fn move_bytes(&mut self, record: usize, source: usize, destination: usize, length: usize) {
        assert!(
            source.max(destination) + length <= PAGE_SIZE,
            "move past the end of a page"
        );
        if length == 0 || source == destination {
            return;
        }
        let p = &mut self.pages[record];
        p.op(OP_MOVE, source);
        p.ops.extend_from_slice(&(destination as u16).to_le_bytes());
        p.ops.extend_from_slice(&(length as u16).to_le_bytes());
    }

    /// The page becomes an empty one of this kind and level: all zeros but for its header.
    /// The group forgets its former operations on the page.
    pub fn init(&mut self, record: usize, kind: u8, level: u8) {
        let p = &mut self.pages[record];
        p.restart();
        p.op(OP_INIT, 0);
        p.ops.extend_from_slice(&[kind, level]);
    }

    /// The page becomes `page`, whole. The group forgets its former operations on the page.
    pub fn image(&mut self, record: usize, page: &[u8]) {
        assert_eq!(page.len(), PAGE_SIZE, "an image is a whole page");
        let (start, length) = longest_hole(page);
        let p = &mut self.pages[record];
        p.restart();
        p.op(OP_IMAGE, 0);
        p.ops.extend_from_slice(&(start as u16).to_le_bytes());
        p.ops.extend_from_slice(&(length as u16).to_le_bytes());
        p.ops.extend_from_slice(&page[..start]);
        p.ops.extend_from_slice(&page[start + length..]);
    }

    /// Bytes that the group takes in the log as it stands.
    pub fn len(&self) -> usize {
        GROUP_HEADER + self.pages[..self.used].iter().map(PageOps::len).sum::<usize>()
    }

    /// Lays the records out behind a group header without position, ready for the log.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the group is longer than [`MAX_GROUP`], or a record than
    /// [`MAX_RECORD`], or has more operations than its header counts: the mini-transaction has to be split.
    pub fn finish(&mut self) -> Result<&mut [u8]> {
        let length = self.len();
        self.check_bounds(length)?;
        self.bytes.clear();
        self.bytes.reserve(length);
        self.bytes.extend_from_slice(&KIND_GROUP.to_le_bytes());
        self.bytes.extend_from_slice(&(length as u32).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 16]);
        self.bytes.extend_from_slice(&(self.used as u16).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 6]);
        for p in &mut self.pages[..self.used] {
            p.encode(&mut self.bytes);
        }
        assert_eq!(self.bytes.len(), length, "a group is as long as its header says");
        Ok(&mut self.bytes)
    }

    fn check_bounds(&self, length: usize) -> Result<()> {
        let long = self.pages[..self.used]
            .iter()
            .any(|p| p.len() > MAX_RECORD || p.count > u16::MAX as usize);
        if length > MAX_GROUP || long || self.used > u16::MAX as usize {
            return Err(Error::Invalid(format!(
                "a mini-transaction wrote {length} bytes of redo over {} pages, \
                 more than the log takes in one group ({MAX_GROUP} bytes)",
                self.used
            )));
        }
        Ok(())
    }

    /// Bytes from the group's start to the page's record; valid after [`GroupBuilder::finish`].
    /// Added to the group's position in the log, it is the record's address.
    pub fn record_offset(&self, record: usize) -> u32 {
        self.pages[record].offset
    }

    /// Bytes of the page's record in the log as it stands.
    pub fn record_len(&self, record: usize) -> usize {
        self.pages[record].len()
    }

    /// Where in the finished group the bytes lie that it gives the page's range of `length` bytes
    /// at `offset`, if one operation gives them all: so that a hook can patch them when the
    /// group's place in the log is known. They were written as they will be in length.
    pub fn locate(&self, record: usize, offset: usize, length: usize) -> Option<usize> {
        let p = &self.pages[record];
        let bytes = &self.bytes[p.offset as usize..p.offset as usize + p.len()];
        let record = PageRecordRef::from_copy(bytes, RecordAddr::NONE, Lsn::ZERO)?;
        Some(p.offset as usize + record.locate(offset, length)?)
    }

    /// The group as [`GroupBuilder::finish`] laid it out.
    pub fn finished(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The group as it lies in a log at `at` that is durable up to there: what [`crate::Log::append`] makes of it.
    ///
    /// # Errors
    /// As of [`GroupBuilder::finish`].
    pub fn finish_at(&mut self, at: Lsn) -> Result<&[u8]> {
        let group = self.finish()?;
        group[8..16].copy_from_slice(&at.raw().to_le_bytes());
        let body = crc::crc32c(&group[GROUP_HEADER..]);
        let header = group.first_chunk().expect("a group is longer than its header");
        let sum = seal(body, header);
        group[16..20].copy_from_slice(&sum.to_le_bytes());
        group[20..24].copy_from_slice(&STATE_COMPLETE.to_le_bytes());
        Ok(group)
    }

    /// The pages of the group in the order in which they were begun.
    pub fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages[..self.used].iter().map(|p| p.page)
    }
}

impl PageOps {
    fn begin(&mut self, page: PageId, prev: RecordAddr) {
        (self.page, self.prev, self.base) = (page, prev, false);
        self.ops.clear();
        (self.count, self.last_write) = (0, None);
    }

    fn restart(&mut self) {
        self.ops.clear();
        (self.count, self.last_write, self.base) = (0, None, true);
    }

    fn len(&self) -> usize {
        RECORD_HEADER + self.ops.len().next_multiple_of(8)
    }

    fn op(&mut self, kind: u16, offset: usize) {
        self.ops
            .extend_from_slice(&(kind << OP_SHIFT | offset as u16).to_le_bytes());
        self.last_write = None;
        self.count += 1;
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.merge(offset, bytes) {
            return;
        }
        let at = self.ops.len();
        self.op(OP_WRITE, offset);
        self.ops.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.ops.extend_from_slice(bytes);
        self.last_write = Some(at);
    }

    /// Joins a write that begins inside the last one or where it ends.
    fn merge(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let Some(at) = self.last_write else { return false };
        let begin = u16::from_le_bytes([self.ops[at], self.ops[at + 1]]) as usize;
        let length = u16::from_le_bytes([self.ops[at + 2], self.ops[at + 3]]) as usize;
        if offset < begin || offset > begin + length {
            return false;
        }
        let overlap = bytes.len().min(begin + length - offset);
        let to = at + WRITE_HEADER + offset - begin;
        self.ops[to..to + overlap].copy_from_slice(&bytes[..overlap]);
        self.ops.extend_from_slice(&bytes[overlap..]);
        let merged = (length + bytes.len() - overlap) as u16;
        self.ops[at + 2..at + 4].copy_from_slice(&merged.to_le_bytes());
        true
    }

    fn encode(&mut self, out: &mut Vec<u8>) {
        self.offset = out.len() as u32;
        let flags = if self.base { FLAG_BASE } else { 0 };
        let length = self.len();
        assert!(
            length <= MAX_RECORD && self.count <= u16::MAX as usize,
            "the record of page {} does not fit its header",
            self.page
        );
        out.extend_from_slice(&self.page.to_bytes());
        out.extend_from_slice(&self.prev.raw().to_le_bytes());
        out.extend_from_slice(&((length / 8) as u16).to_le_bytes());
        out.extend_from_slice(&(self.count as u16).to_le_bytes());
        out.extend_from_slice(&(self.offset | flags).to_le_bytes());
        out.extend_from_slice(&self.ops);
        out.resize(self.offset as usize + length, 0);
    }
}

/// The longest run of zeros, in blocks: (start, length), (0, 0) if none is worth it.
fn longest_hole(page: &[u8]) -> (usize, usize) {
    let (mut best, mut run) = ((0, 0), (0, 0));
    for (i, block) in page.chunks_exact(MIN_HOLE).enumerate() {
        if block.iter().any(|b| *b != 0) {
            run = ((i + 1) * MIN_HOLE, 0);
            continue;
        }
        run.1 += MIN_HOLE;
        if run.1 > best.1 {
            best = run;
        }
    }
    // A hole of the whole page would need 15 bits; the header is never part of one.
    if best.1 == PAGE_SIZE {
        (MIN_HOLE, PAGE_SIZE - MIN_HOLE)
    } else {
        best
    }
}
