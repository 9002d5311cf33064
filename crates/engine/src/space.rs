//! Pages of a space: which are in use, which are free.
//!
//! Page 0 of a space is its header:
//!
//! ```text
//!   32 u64 magic   40 u32 format version   44 u32 reserved
//!   48 u32 high-water mark: the first page number never handed out
//!   52 u32 head of the free list, 0 none   56 u32 pages on the free list, kept ones included
//!   60 u32 head of the list of kept pages, 0 none: free pages that a sweep has passed by (see `sweep`)
//!   64 u32 number of ranges
//!   72 (u32 first page, u32 pages, bits 30 and 31: state) x 112  ranges of pages that are on no list ([`State`])
//! 1024 u32 x 3072  pending large values: first pages of chains that no row holds (yet, or any more)
//! ```
//!
//! A free page has kind [`KIND_FREE`] and the number of the next free page at byte 24.
//!
//! Invariants:
//! - every page below the high-water mark is, at the end of each mini-transaction, exactly one of: header, reachable
//!   page of the tree, page of a large value, free (on a list), set aside (kind [`KIND_AWAY`], within a claimed range),
//!   given back (within a range that is not claimed any more: the page has no contents that count). A structure change
//!   allocates and frees within its own mini-transaction, so a crash between two of them leaves no orphan;
//! - the header is latched after all pages of the tree; a free page only by the holder of the header;
//! - freeing a page changes it (kind), so its version moves and an optimistic reader that still looks at it
//!   starts again.

pub(crate) mod sweep;

use crate::tree::layout::{AT_KIND, AT_NEXT, KIND_FREE, KIND_TREE, PageRead, ROOT};
use cenote_base::PageId;
use std::ops::Range;

use crate::tree::image::Image;
use crate::tree::pages::{Mtr, PageH, Pool, latched};
use crate::tree::{Error, PAGE_SIZE, Result};

/// Page kind of a space's header.
pub const KIND_SPACE: u8 = 1;
/// Page kind of a free page that is on no list: its blocks are about to be given back.
pub(crate) const KIND_AWAY: u8 = 5;

const MAGIC: u64 = u64::from_le_bytes(*b"CenoteSp");
const VERSION: u32 = 1;
const AT_LSN: usize = 16;
const AT_MAGIC: usize = 32;
const AT_VERSION: usize = 40;
const AT_HIGH_WATER: usize = 48;
const AT_FREE_HEAD: usize = 52;
const AT_FREE_COUNT: usize = 56;
const AT_KEPT_HEAD: usize = 60;
const AT_RANGES: usize = 64;
const AT_RANGE: usize = 72;
/// Ranges that a header can hold.
const RANGES: usize = 112;
const RANGE: usize = 8;
const STATE_SHIFT: u32 = 30;
const _: () = {
    assert!(
        AT_LSN + 8 <= AT_MAGIC && AT_MAGIC + 8 <= AT_VERSION,
        "the header's words do not overlap"
    );
    assert!(
        AT_VERSION + 4 <= AT_HIGH_WATER && AT_HIGH_WATER + 4 <= AT_FREE_HEAD,
        "the header's words do not overlap"
    );
    assert!(
        AT_FREE_HEAD + 4 <= AT_FREE_COUNT && AT_FREE_COUNT + 4 <= AT_KEPT_HEAD,
        "both lists have words of their own"
    );
    assert!(
        AT_KEPT_HEAD + 4 <= AT_RANGES && AT_RANGES + 4 <= AT_RANGE,
        "the count of ranges lies before them"
    );
};
const _: () = assert!(AT_RANGE + RANGES * RANGE <= AT_PENDING);
const AT_PENDING: usize = 1024;
/// How many large values of a space can be pending at once.
pub(crate) const PENDING: usize = 3072;
const _: () = assert!(AT_PENDING + 4 * PENDING <= PAGE_SIZE);

fn header_page(space: u32) -> PageId {
    PageId::new(space, 0)
}

/// The header's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceHeader {
    /// First page number never handed out: the space's size in pages.
    pub high_water: u32,
    /// First page of the free list, 0 when it is empty.
    pub free_head: u32,
    /// First page of those that a sweep has passed by, 0 when there is none.
    pub kept_head: u32,
    /// Pages on both lists.
    pub free_count: u32,
    /// When the header's page was last changed: the other words may come to be what they were before.
    pub lsn: u64,
}

fn read_header(space: u32, page: impl PageRead) -> Result<SpaceHeader> {
    let magic = page.u32(AT_MAGIC) as u64 | (page.u32(AT_MAGIC + 4) as u64) << 32;
    let sound = page.u8(AT_KIND) == KIND_SPACE && magic == MAGIC && page.u32(AT_VERSION) == VERSION;
    if !sound {
        return Err(Error::corrupt(
            header_page(space),
            "the first page of the space is no space header",
        ));
    }
    Ok(SpaceHeader {
        high_water: page.u32(AT_HIGH_WATER),
        free_head: page.u32(AT_FREE_HEAD),
        free_count: page.u32(AT_FREE_COUNT),
        kept_head: page.u32(AT_KEPT_HEAD),
        lsn: page.u32(AT_LSN) as u64 | (page.u32(AT_LSN + 4) as u64) << 32,
    })
}

/// Reads the space's header.
///
/// # Errors
/// The page cannot be read, or is no header.
pub fn header(pool: &Pool, space: u32) -> Result<SpaceHeader> {
    loop {
        let guard = pool.optimistic(header_page(space))?;
        let read = read_header(space, guard.view());
        if guard.valid() {
            return read;
        }
        cenote_base::rt::relax();
    }
}

/// Size of the space in pages, free ones included, but not those whose blocks were given back.
///
/// # Errors
/// Those of [`header`].
pub fn pages(pool: &Pool, space: u32) -> Result<u32> {
    let (header, ranges) = header_and_ranges(pool, space)?;
    let given = ranges
        .iter()
        .filter(|away| away.state == State::Given)
        .map(|away| away.pages.len() as u32);
    Ok(header.high_water.saturating_sub(given.sum()))
}

/// Pages in a row that are on no list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Away {
    pub pages: Range<u32>,
    pub state: State,
}

/// How far a range has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its blocks are gone; its pages can be made again.
    Given = 0,
    /// All of its pages are set aside, and their blocks are about to go: what they hold does not count any more.
    Going = 1,
    /// A sweep sets aside those of its pages that are free; the others are in use.
    Claimed = 2,
}

/// The header's ranges. Errors: more than a header holds, or one that leaves the space.
fn read_ranges(space: u32, page: impl PageRead) -> Result<Vec<Away>> {
    let corrupt = |what| Error::corrupt(header_page(space), what);
    let (count, high_water) = (page.u32(AT_RANGES) as usize, page.u32(AT_HIGH_WATER));
    if count > RANGES {
        return Err(corrupt(
            "the space header names more ranges of free pages than it has room for",
        ));
    }
    let range = |i: usize| {
        let (first, word) = (page.u32(AT_RANGE + RANGE * i), page.u32(AT_RANGE + RANGE * i + 4));
        let pages = first..first.saturating_add(word & ((1 << STATE_SHIFT) - 1));
        let state = match word >> STATE_SHIFT {
            0 => State::Given,
            1 => State::Going,
            2 => State::Claimed,
            _ => return Err(corrupt("a range of free pages is in a state that does not exist")),
        };
        if first <= ROOT || pages.end > high_water {
            return Err(corrupt("a range of free pages leaves the space"));
        }
        Ok(Away { pages, state })
    };
    (0..count).map(range).collect()
}

/// As [`header`], with the ranges.
pub(crate) fn header_and_ranges(pool: &Pool, space: u32) -> Result<(SpaceHeader, Vec<Away>)> {
    loop {
        let guard = pool.optimistic(header_page(space))?;
        let read = read_header(space, guard.view()).and_then(|header| Ok((header, read_ranges(space, guard.view())?)));
        if guard.valid() {
            return read;
        }
        cenote_base::rt::relax();
    }
}

/// Writes an empty root leaf and the header of a new space, in one mini-transaction.
pub(crate) fn format(pool: &Pool, space: u32) -> Result<()> {
    let mut m = pool.mtr();
    let root = m.create(PageId::new(space, ROOT), KIND_TREE, 0)?;
    Image::new(0, &[], None).install(&mut latched(&mut m, root));
    // Should this fail, the space stays without a header, and is none.
    let header = m.create(header_page(space), KIND_SPACE, 0);
    if let Ok(header) = header {
        m.write(header, AT_MAGIC, &MAGIC.to_le_bytes());
        m.write(header, AT_VERSION, &VERSION.to_le_bytes());
        m.write(header, AT_HIGH_WATER, &(ROOT + 1).to_le_bytes());
    }
    m.commit();
    header.map(drop).map_err(Error::from)
}

/// The header, latched: the last latch of a mini-transaction on the tree (only free pages come after it).
pub(crate) struct SpaceLatch {
    h: PageH,
    space: u32,
    header: SpaceHeader,
    ranges: Vec<Away>,
}

/// Latches the header of `space`.
pub(crate) fn latch(m: &mut Mtr<'_>, space: u32) -> Result<SpaceLatch> {
    let h = m.exclusive(header_page(space))?;
    let header = read_header(space, m.view(h))?;
    let ranges = read_ranges(space, m.view(h))?;
    Ok(SpaceLatch {
        h,
        space,
        header,
        ranges,
    })
}

impl SpaceLatch {
    /// Latches `count` pages for use, from the free list first, then from the ranges that were given back. It takes the
    /// mini-transaction, which must not have changed anything: should it fail after a page was made, that page goes to
    /// the free list and the mini-transaction ends there; else nothing has happened. The header changes with
    /// [`SpaceLatch::store`].
    ///
    /// # Errors
    /// Those of making and reading pages; the space is full.
    pub fn allocate<'p>(&mut self, mut m: Mtr<'p>, count: usize, kind: u8) -> Result<(Mtr<'p>, Vec<(u32, PageH)>)> {
        let mut pages = Vec::with_capacity(count);
        while pages.len() < count && self.first_free() != 0 {
            pages.push(self.pop_free(&mut m)?);
        }
        let popped = pages.len();
        while pages.len() < count {
            match self.make(&mut m, kind) {
                Ok(page) => pages.push(page),
                Err(error) => {
                    if pages.len() > popped {
                        pages.iter().for_each(|(page, h)| self.free(&mut m, *page, *h));
                        self.store(&mut m);
                        m.commit();
                    }
                    return Err(error);
                }
            }
        }
        assert!(pages.len() == count, "as many pages as were asked for");
        Ok((m, pages))
    }

    /// Makes a page that was given back, or the one at the high-water mark.
    fn make(&mut self, m: &mut Mtr<'_>, kind: u8) -> Result<(u32, PageH)> {
        let Some(at) = self.ranges.iter().position(|away| away.state == State::Given) else {
            return self.extend(m, kind);
        };
        let page = self.ranges[at].pages.start;
        m.reserve_again(self.space, page..page + 1)?;
        let h = m.create(PageId::new(self.space, page), kind, 0)?;
        self.ranges[at].pages.start += 1;
        if self.ranges[at].pages.is_empty() {
            self.ranges.remove(at);
        }
        Ok((page, h))
    }

    fn extend(&mut self, m: &mut Mtr<'_>, kind: u8) -> Result<(u32, PageH)> {
        let page = self.header.high_water;
        let next = page.checked_add(1).ok_or(Error::SpaceFull { space: self.space })?;
        let h = m.create(PageId::new(self.space, page), kind, 0)?;
        assert!(next > page, "the high-water mark rises");
        self.header.high_water = next;
        Ok((page, h))
    }

    /// The page that is used next, 0 none: kept ones first, since the sweep wants to see the others.
    fn first_free(&self) -> u32 {
        match self.header.kept_head {
            0 => self.header.free_head,
            kept => kept,
        }
    }

    /// Takes the next page off its list.
    fn pop_free(&mut self, m: &mut Mtr<'_>) -> Result<(u32, PageH)> {
        let page = self.first_free();
        let id = PageId::new(self.space, page);
        if page >= self.header.high_water || self.header.free_count == 0 {
            return Err(Error::corrupt(
                header_page(self.space),
                "the free list leaves the space",
            ));
        }
        let h = m.exclusive(id)?;
        if PageRead::u8(m.view(h), AT_KIND) != KIND_FREE {
            return Err(Error::corrupt(id, "a page on the free list is in use"));
        }
        let next = PageRead::u32(m.view(h), AT_NEXT);
        match self.header.kept_head {
            0 => self.header.free_head = next,
            _ => self.header.kept_head = next,
        }
        self.header.free_count -= 1;
        Ok((page, h))
    }

    /// Puts a page that is latched and no longer reachable on the free list.
    pub fn free(&mut self, m: &mut Mtr<'_>, page: u32, h: PageH) {
        m.write(h, AT_KIND, &[KIND_FREE, 0]);
        m.write(h, AT_NEXT, &self.header.free_head.to_le_bytes());
        self.header.free_head = page;
        self.header.free_count += 1;
    }

    /// Writes high-water mark, lists and ranges as they are after `allocate` and `free`.
    pub fn store(&self, m: &mut Mtr<'_>) {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.header.high_water.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.header.free_head.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.header.free_count.to_le_bytes());
        bytes[12..].copy_from_slice(&self.header.kept_head.to_le_bytes());
        m.write(self.h, AT_HIGH_WATER, &bytes);
        let stored = read_ranges(self.space, m.view(self.h));
        if !stored.is_ok_and(|stored| stored == self.ranges) {
            self.store_ranges(m);
        }
    }

    fn store_ranges(&self, m: &mut Mtr<'_>) {
        assert!(self.ranges.len() <= RANGES, "the caller that adds ranges has made room");
        let mut bytes = Vec::with_capacity(RANGE * (1 + self.ranges.len()));
        bytes.extend_from_slice(&(self.ranges.len() as u64).to_le_bytes());
        for away in &self.ranges {
            assert!(
                away.pages.len() < 1 << STATE_SHIFT && away.pages.end <= self.header.high_water,
                "a range of free pages fits its word and lies in the space"
            );
            let state = (away.state as u32) << STATE_SHIFT;
            bytes.extend_from_slice(&away.pages.start.to_le_bytes());
            bytes.extend_from_slice(&(away.pages.len() as u32 | state).to_le_bytes());
        }
        m.write(self.h, AT_RANGES, &bytes);
    }

    /// The first page of pending chain `slot`, 0 none.
    pub fn pending(&self, m: &Mtr<'_>, slot: usize) -> u32 {
        assert!(slot < PENDING, "a slot of the pending list");
        PageRead::u32(m.view(self.h), AT_PENDING + 4 * slot)
    }

    /// Sets the first page of pending chain `slot`, 0 none.
    pub fn set_pending(&self, m: &mut Mtr<'_>, slot: usize, first: u32) {
        assert!(slot < PENDING, "a slot of the pending list");
        m.write(self.h, AT_PENDING + 4 * slot, &first.to_le_bytes());
    }

    /// `count` slots of the pending list that are not in use.
    ///
    /// # Errors
    /// [`Error::TooManyPending`]: fewer slots are free.
    pub fn vacant(&self, m: &Mtr<'_>, count: usize) -> Result<Vec<usize>> {
        let vacant: Vec<_> = (0..PENDING)
            .filter(|slot| self.pending(m, *slot) == 0)
            .take(count)
            .collect();
        if vacant.len() == count {
            Ok(vacant)
        } else {
            Err(Error::TooManyPending { space: self.space })
        }
    }
}

/// First pages of all pending chains with their slots.
pub(crate) fn pending(pool: &Pool, space: u32) -> Result<Vec<(usize, u32)>> {
    loop {
        let guard = pool.optimistic(header_page(space))?;
        let view = guard.view();
        let words = (0..PENDING).map(|slot| (slot, PageRead::u32(view, AT_PENDING + 4 * slot)));
        let found = words.filter(|(_, first)| *first != 0).collect();
        if guard.valid() {
            return Ok(found);
        }
        cenote_base::rt::relax();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::indexed;

    /// A count of ranges beyond the header's room was cut down to it in silence, and a range was believed wherever it
    /// lay: pages in use would have been made anew.
    #[test]
    fn a_header_with_ranges_that_cannot_be_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = indexed(dir.path());
        let high_water = header(&engine.pool, table.space).expect("a header").high_water;
        let put = |count: u64, first: u32, pages: u32| {
            let mut m = engine.pool.mtr();
            let h = m.exclusive(header_page(table.space)).expect("latched");
            m.write(h, AT_RANGES, &count.to_le_bytes());
            m.write(h, AT_RANGE, &[first.to_le_bytes(), pages.to_le_bytes()].concat());
            m.commit();
        };
        let damaged = [
            (RANGES as u64 + 1, 0, 0),
            (u64::from(u32::MAX), 0, 0),
            (1, ROOT, 1),
            (1, high_water, 1),
            (1, ROOT + 1, (1 << STATE_SHIFT) - 1),
            (1, high_water, 3 << STATE_SHIFT),
        ];
        let run = 5..6;
        for (count, first, pages) in damaged {
            put(count, first, pages);
            let name = format!("{count} ranges, {first}: {pages:x}");
            let chosen = sweep::choose(&engine.pool, table.space, vec![run.clone()]);
            assert!(matches!(chosen, Err(Error::Corrupt { .. })), "{name}");
            let latched = latch(&mut engine.pool.mtr(), table.space).map(drop);
            assert!(matches!(latched, Err(Error::Corrupt { .. })), "{name}");
        }
        put(0, 0, 0);
        assert!(sweep::choose(&engine.pool, table.space, vec![run.clone()]).is_ok());
        engine.shutdown().expect("shut down");
    }
}
