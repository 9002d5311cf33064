//! Walking a range of keys, a leaf at a time.
//!
//! A step descends to the leaf where the scan stands, copies the qualifying entries into the caller's batch and
//! notes the leaf's fence as the next position; then it validates. If the leaf changed meanwhile, the step is
//! done again. The scan holds no latch and no page between steps, so nothing that happens to the tree can hurt it.
//!
//! Where keys are not asked for, a leaf of which most is taken is copied as it is: its heap in one piece, its slots in
//! another, and the entries are found in the copy. Else each entry is copied behind the part of the key that the leaf's
//! keys share.
//!
//! A scan that has gone through several leaves asks the pool for the next ones ahead of time; their numbers stand
//! in the parent that it passes anyway.

use std::ops::{Bound, Range};

use cenote_fabric::observe::{self, Observer, Off, On};

use super::layout::{Header, PAGE_SIZE, PageRead, SLOT, Slot, child_at, slot_at};
use super::pages::{Hint, Pool};
use super::search::{child_slot, child_slot_below, lower_bound};
use super::{Attempt, BTree, Error, Result, descend::Path};
use crate::api::Direction;
use crate::key::KeyRange;

/// Entries copied out of a leaf, reused from step to step.
#[derive(Debug, Default, Clone)]
pub struct LeafBatch {
    bytes: Vec<u8>,
    rows: Vec<Row>,
    /// What all keys of the leaf begin with.
    prefix: Vec<u8>,
    /// Whether the keys of the entries lack that.
    cut: bool,
    /// Slots of a leaf that was copied as it is.
    slots: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    start: u32,
    key: u16,
    value: u16,
}

impl LeafBatch {
    /// An empty batch.
    pub fn new() -> LeafBatch {
        LeafBatch::default()
    }

    /// Entries in the batch.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it holds no entries.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Key of entry `i`; of a scan without keys, what the leaf holds of it.
    pub fn key(&self, i: usize) -> &[u8] {
        let row = self.rows[i];
        &self.bytes[row.start as usize..][..row.key as usize]
    }

    /// Value of entry `i`.
    pub fn value(&self, i: usize) -> &[u8] {
        let row = self.rows[i];
        &self.bytes[row.start as usize + row.key as usize..][..row.value as usize]
    }

    /// Key and value of each entry, in the scan's order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|i| (self.key(i), self.value(i)))
    }

    /// Where entry `i` lies in the bytes: begin of its key, end of its key, end of its value.
    pub(crate) fn place(&self, i: usize) -> (u32, u32, u32) {
        let row = self.rows[i];
        let key_end = row.start + u32::from(row.key);
        (row.start, key_end, key_end + u32::from(row.value))
    }

    /// Takes other memory for the next entries and gives the bytes of these, in which their places still hold.
    pub(crate) fn swap_bytes(&mut self, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.bytes, bytes);
    }

    /// The whole of a key that the batch has given.
    pub(crate) fn whole_key(&self, key: &[u8]) -> Vec<u8> {
        let cut = if self.cut { &self.prefix[..] } else { &[] };
        [cut, key].concat()
    }

    /// As `whole_key`; where the key is cut it is put together in other memory.
    pub(crate) fn whole_key_in<'a>(&self, key: &'a [u8], whole: &'a mut Vec<u8>) -> &'a [u8] {
        if !self.cut || self.prefix.is_empty() {
            return key;
        }
        whole.clear();
        whole.extend_from_slice(&self.prefix);
        whole.extend_from_slice(key);
        whole
    }

    /// Forgets the entries, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
        self.cut = false;
    }

    /// Where the batch ends.
    pub(super) fn mark(&self) -> (usize, usize) {
        (self.rows.len(), self.bytes.len())
    }

    /// Drops the entries behind a mark.
    pub(super) fn drop_behind(&mut self, (rows, bytes): (usize, usize)) {
        self.rows.truncate(rows);
        self.bytes.truncate(bytes);
    }

    /// Appends the entries of some slots of a leaf.
    #[inline(always)]
    pub(super) fn push_all(&mut self, page: impl PageRead, slots: Range<usize>) {
        if !slots.is_empty() {
            self.begin_leaf(page, &Header::read(page));
            slots.for_each(|slot| self.push(page, slot));
        }
    }

    /// Before the entries of a leaf are pushed.
    fn begin_leaf(&mut self, page: impl PageRead, header: &Header) {
        self.prefix.clear();
        page.copy_to(header.lower.0 as usize, header.prefix as usize, &mut self.prefix);
        self.bytes.reserve(PAGE_SIZE);
    }

    /// Copies the heap of a leaf and these of its slots.
    fn copy_leaf(&mut self, page: impl PageRead, header: &Header, cut: &Cut) {
        self.cut = true;
        self.slots.clear();
        page.copy_to(slot_at(cut.from), SLOT * (cut.to - cut.from), &mut self.slots);
        let heap = (header.heap as usize).min(PAGE_SIZE);
        page.copy_to(heap, PAGE_SIZE - heap, &mut self.bytes);
    }

    /// Finds the entries of a leaf that was copied; false where one is not in its heap.
    fn find_entries(&mut self, header: &Header) -> bool {
        self.rows.reserve(self.slots.len() / SLOT);
        for slot in self.slots.chunks_exact(SLOT) {
            let at = |i: usize| u16::from_le_bytes([slot[i], slot[i + 1]]);
            let (off, key, value) = (at(4), at(6), at(8));
            if !header.reaches(off, key as usize + value as usize) {
                return false;
            }
            let start = u32::from(off.saturating_sub(header.heap)).min(self.bytes.len() as u32);
            self.rows.push(Row { start, key, value });
        }
        true
    }

    #[inline(always)]
    fn push(&mut self, page: impl PageRead, slot: usize) {
        let entry = Slot::read(page, slot);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&self.prefix);
        page.copy_to(entry.off as usize, entry.entry_len(0), &mut self.bytes);
        let copied = self.bytes.len() - start;
        let key = (self.prefix.len() + entry.len as usize).min(copied);
        self.rows.push(Row {
            start: start as u32,
            key: key as u16,
            value: (copied - key) as u16,
        });
    }
}

/// A walk over a range. It borrows nothing: the pool is handed in at each step.
#[derive(Debug, Clone)]
pub struct Scan {
    tree: BTree,
    range: KeyRange,
    direction: Direction,
    done: bool,
    batch_rows: usize,
    with_keys: bool,
    leaves: u32,
    ahead: u32,
}

/// Leaves after which a scan counts as long.
const LONG: u32 = 3;
/// Leaves that a long scan asks for at once.
const READ_AHEAD: usize = 16;

impl BTree {
    /// A scan of `range`, standing at its begin (forward) or end (backward).
    pub fn scan(&self, range: KeyRange, direction: Direction) -> Scan {
        Scan {
            tree: *self,
            range,
            direction,
            done: false,
            batch_rows: usize::MAX,
            with_keys: true,
            leaves: 0,
            ahead: 0,
        }
    }
}

/// The slots of a leaf that a step takes, and whether the range ends within the leaf.
struct Cut {
    from: usize,
    to: usize,
    ends_here: bool,
}

impl Scan {
    /// At most `rows` (at least 1) entries a batch, for callers that want few.
    pub fn batch_rows(mut self, rows: usize) -> Scan {
        self.set_batch_rows(rows);
        self
    }

    /// As `batch_rows`, from the next batch on.
    pub fn set_batch_rows(&mut self, rows: usize) {
        self.batch_rows = rows.max(1);
    }

    /// Values are asked for, keys are not: those of a batch may lack what the leaf's keys share.
    pub fn without_keys(mut self) -> Scan {
        self.with_keys = false;
        self
    }

    /// Stands at the begin of another range of the same tree.
    pub fn restart(&mut self, range: KeyRange) {
        (self.range, self.done, self.leaves, self.ahead) = (range, false, 0, 0);
    }

    /// Copies the next entries into `batch` (cleared first); `false` at the end of the range.
    ///
    /// # Errors
    /// Those of reading pages; [`Error::Corrupt`] if a page is none of a tree.
    pub fn next_batch(&mut self, pool: &Pool, batch: &mut LeafBatch) -> Result<bool> {
        self.next_batch_looking(pool, batch, &mut |_| {})
    }

    /// As `next_batch`. `look` is called when the entries have been copied, and they stood in the tree at that moment: its
    /// leaf is validated behind it. Where that fails the entries may be any bytes, and it is called again.
    ///
    /// # Errors
    /// As `next_batch`.
    pub(crate) fn next_batch_looking(
        &mut self,
        pool: &Pool,
        batch: &mut LeafBatch,
        look: &mut dyn FnMut(&LeafBatch),
    ) -> Result<bool> {
        batch.clear();
        while !self.done && batch.is_empty() {
            while self.try_step(pool, batch, look)?.is_none() {
                batch.clear();
                cenote_base::rt::relax();
            }
        }
        Ok(!batch.is_empty())
    }

    fn try_step(&mut self, pool: &Pool, batch: &mut LeafBatch, look: &mut dyn FnMut(&LeafBatch)) -> Attempt<()> {
        if observe::active() {
            self.step(pool, On, batch, look)
        } else {
            self.step(pool, Off, batch, look)
        }
    }

    #[inline(always)]
    fn step<O: Observer>(
        &mut self,
        pool: &Pool,
        o: O,
        batch: &mut LeafBatch,
        look: &mut dyn FnMut(&LeafBatch),
    ) -> Attempt<()> {
        let Some(leaf) = self.descend(pool, o)? else {
            return Ok(None);
        };
        let page = leaf.node.view;
        let header = Header::read(page);
        let mut cut = self.cut(page, &header);
        let whole = cut.to.saturating_sub(cut.from) <= self.batch_rows;
        if !whole {
            self.shorten(&mut cut);
        }
        batch.begin_leaf(page, &header);
        let as_it_is = whole && self.takes_as_it_is(&header, &cut);
        match as_it_is {
            true => batch.copy_leaf(page, &header, &cut),
            false => self.copy(page, &cut, batch),
        }
        // Where the range ends in the leaf nothing leads on.
        let next = if cut.ends_here { None } else { self.fence(page, &header) };
        look(batch);
        if !leaf.node.guard.valid() {
            return Ok(None);
        }
        if as_it_is && !batch.find_entries(&header) {
            return Err(Error::corrupt(
                self.tree.page(leaf.node.no),
                "an entry lies outside of its heap",
            ));
        }
        self.hint(pool, &leaf);
        if !whole {
            self.resume_behind(batch);
        } else if !self.advance(next) {
            return Err(Error::corrupt(
                self.tree.page(leaf.node.no),
                "its fence leads back where the scan came from",
            ));
        }
        Ok(Some(()))
    }

    fn descend<'p, O: Observer>(&self, pool: &'p Pool, o: O) -> Attempt<Path<'p, O>> {
        let to = (0, if self.leaves < LONG { Hint::Warm } else { Hint::Scan });
        match (self.direction, &self.range.lower, &self.range.upper) {
            (Direction::Forward, Bound::Unbounded, _) => self.tree.descend(pool, o, to, |_| 0),
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _)
            | (Direction::Backward, _, Bound::Included(key)) => {
                self.tree.descend(pool, o, to, |page| child_slot(page, key))
            }
            (Direction::Backward, _, Bound::Excluded(key)) => {
                self.tree.descend(pool, o, to, |page| child_slot_below(page, Some(key)))
            }
            (Direction::Backward, _, Bound::Unbounded) => {
                self.tree.descend(pool, o, to, |page| child_slot_below(page, None))
            }
        }
    }

    /// The part of the leaf that lies in the range.
    fn cut(&self, page: impl PageRead, header: &Header) -> Cut {
        let from = match &self.range.lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => lower_bound(page, key).slot,
            Bound::Excluded(key) => behind(page, key),
        };
        let to = match &self.range.upper {
            Bound::Unbounded => header.count(),
            Bound::Included(key) => behind(page, key),
            Bound::Excluded(key) => lower_bound(page, key).slot,
        };
        let ends_here = match self.direction {
            Direction::Forward => to < header.count(),
            Direction::Backward => from > 0,
        };
        Cut { from, to, ends_here }
    }

    /// Whether most of a leaf is taken, and no keys.
    fn takes_as_it_is(&self, header: &Header, cut: &Cut) -> bool {
        let taken = cut.to.saturating_sub(cut.from);
        !self.with_keys && self.direction == Direction::Forward && taken * 2 > header.count()
    }

    fn shorten(&self, cut: &mut Cut) {
        match self.direction {
            Direction::Forward => cut.to = cut.from + self.batch_rows,
            Direction::Backward => cut.from = cut.to - self.batch_rows,
        }
    }

    fn copy(&self, page: impl PageRead, cut: &Cut, batch: &mut LeafBatch) {
        match self.direction {
            Direction::Forward => (cut.from..cut.to).for_each(|slot| batch.push(page, slot)),
            Direction::Backward => (cut.from..cut.to).rev().for_each(|slot| batch.push(page, slot)),
        }
    }

    /// The leaf's far fence: where the next leaf begins, `None` at the edge of the tree.
    fn fence(&self, page: impl PageRead, header: &Header) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        match self.direction {
            Direction::Forward if header.has_upper() => {
                page.copy_to(header.upper.0 as usize, header.upper_len(), &mut key);
            }
            Direction::Backward if header.lower.1 > 0 => {
                page.copy_to(header.lower.0 as usize, header.lower.1 as usize, &mut key);
            }
            _ => return None,
        }
        Some(key)
    }

    /// Moves to the leaf behind the fence, if there is one and the range goes beyond it. `false`, and the end, when the
    /// fence does not lead on.
    fn advance(&mut self, fence: Option<Vec<u8>>) -> bool {
        let Some(fence) = fence else {
            self.done = true;
            return true;
        };
        self.leaves += 1;
        let leads_on = match self.direction {
            Direction::Forward => is_above(&fence, &self.range.lower),
            Direction::Backward => is_below(&fence, &self.range.upper),
        };
        match self.direction {
            Direction::Forward => {
                self.done = begins_at_or_behind(&fence, &self.range.upper);
                self.range.lower = Bound::Included(fence);
            }
            Direction::Backward => {
                self.done = ends_at_or_before(&fence, &self.range.lower);
                self.range.upper = Bound::Excluded(fence);
            }
        }
        self.done |= !leads_on;
        leads_on
    }

    /// Stays in the leaf, behind the last entry of the batch.
    fn resume_behind(&mut self, batch: &LeafBatch) {
        self.return_to(&batch.whole_key(batch.key(batch.len() - 1)));
    }

    /// Goes on behind `key`, which it has passed: the entries after it are copied again.
    pub(crate) fn return_to(&mut self, key: &[u8]) {
        self.done = false;
        let last = Bound::Excluded(key.to_vec());
        match self.direction {
            Direction::Forward => self.range.lower = last,
            Direction::Backward => self.range.upper = last,
        }
    }

    /// Asks for the leaves that come next, when fewer than half of `READ_AHEAD` have been asked for and not reached.
    fn hint<O: Observer>(&mut self, pool: &Pool, leaf: &Path<'_, O>) {
        let Some((parent, slot)) = &leaf.parent else { return };
        let asked = self.ahead.saturating_sub(self.leaves) as usize;
        if self.leaves < LONG || asked >= READ_AHEAD / 2 {
            return;
        }
        let page = parent.view;
        let next = |step: usize| match self.direction {
            Direction::Forward => slot + step,
            Direction::Backward => slot.wrapping_sub(step),
        };
        let count = Header::read(page).count();
        let slots = (asked + 1..=asked + READ_AHEAD).map(next).filter(|slot| *slot < count);
        let wanted: Vec<_> = slots.map(|slot| self.tree.page(child_at(page, slot))).collect();
        if parent.guard.valid() && !wanted.is_empty() {
            pool.prefetch(&wanted);
            self.ahead = self.leaves + (asked + wanted.len()) as u32;
        }
    }
}

/// First slot whose key is above `key`.
fn behind(page: impl PageRead, key: &[u8]) -> usize {
    let found = lower_bound(page, key);
    found.slot + usize::from(found.exact)
}

/// Whether a scan that stood at `lower` gets further by going to `fence`.
fn is_above(fence: &[u8], lower: &Bound<Vec<u8>>) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(lower) | Bound::Excluded(lower) => fence > &lower[..],
    }
}

/// The same for a scan that goes backward.
fn is_below(fence: &[u8], upper: &Bound<Vec<u8>>) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(upper) => fence <= &upper[..],
        Bound::Excluded(upper) => fence < &upper[..],
    }
}

fn begins_at_or_behind(fence: &[u8], upper: &Bound<Vec<u8>>) -> bool {
    match upper {
        Bound::Unbounded => false,
        Bound::Included(upper) => fence > &upper[..],
        Bound::Excluded(upper) => fence >= &upper[..],
    }
}

/// Keys below `fence` are all outside of a range that begins at `lower`.
fn ends_at_or_before(fence: &[u8], lower: &Bound<Vec<u8>>) -> bool {
    match lower {
        Bound::Unbounded => false,
        Bound::Included(lower) | Bound::Excluded(lower) => fence <= &lower[..],
    }
}
