//! Rows of regions: each has a word, a map of words, and a block of bytes, in three arrays at regular distances. They
//! are checked when they are made, so that one comparison finds a row, whatever is used of it.
//!
//! ```text
//!   words    ▪──STRIDE──▪──────────▪       row n: words[n]
//!   maps     ▪▪▪▪MAP▪▪▪▪│▪▪▪▪▪▪▪▪▪▪│              maps[n], MAP words
//!   blocks   ░░░BLOCK░░░│░░░░░░░░░░│              blocks[n], BLOCK bytes
//! ```
//!
//! Bytes of a row are not announced ([`observe`](crate::observe)). So a region that is watched has no rows: there each
//! access goes by [`Span`](crate::Span)s.
//!
//! A [`RowTable`] has the rows of several regions by number, so that finding a row does not follow pointers from object
//! to object. What threads have to mark before they use rows are their [`Lines`].

use crate::host::HostAtomicU64;
use crate::raw;
use crate::region::Region;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

/// Words that a row's map can be asked for: the check whether one is inside is none where the compiler sees that its
/// number is small enough. Behind the map lie others, so all of them are in the region.
const MAP_ASKED: usize = 1 << 12;

/// Where a region's rows begin, and how many it has.
#[derive(Debug, Clone, Copy)]
pub struct RowsAt {
    /// The first row's word.
    pub words: u64,
    /// Its map.
    pub maps: u64,
    /// Its block.
    pub blocks: u64,
    /// How many rows.
    pub count: usize,
}

/// Rows of up to `N` regions. See the module.
pub struct RowTable<const N: usize, const STRIDE: usize, const MAP: usize, const BLOCK: usize> {
    /// Each is a region's that `owners` keeps, or has no row.
    rows: [AtomicPtr<Rows<STRIDE, MAP, BLOCK>>; N],
    owners: [OnceLock<Box<Owned<STRIDE, MAP, BLOCK>>>; N],
}

/// Rows, and what keeps them mapped.
struct Owned<const STRIDE: usize, const MAP: usize, const BLOCK: usize> {
    rows: Rows<STRIDE, MAP, BLOCK>,
    _region: Arc<Region>,
    _lines: Option<Arc<Lines>>,
}

/// Rows of one region, or none. Plain fields, which instructions can use where they lie.
pub struct Rows<const STRIDE: usize, const MAP: usize, const BLOCK: usize> {
    count: usize,
    words: *mut u8,
    maps: *mut u8,
    blocks: *mut u8,
    /// Null if a thread has to mark nothing.
    lines: *const Lines,
}

// SAFETY: rows are reached by atomics and by the ways of `raw` only, which are sound from any thread, and do not change.
unsafe impl<const STRIDE: usize, const MAP: usize, const BLOCK: usize> Send for Rows<STRIDE, MAP, BLOCK> {}
// SAFETY: as above.
unsafe impl<const STRIDE: usize, const MAP: usize, const BLOCK: usize> Sync for Rows<STRIDE, MAP, BLOCK> {}

/// A row that there is.
#[derive(Clone, Copy)]
pub struct Row<'a, const BLOCK: usize> {
    word: NonNull<u8>,
    map: NonNull<u8>,
    block: NonNull<u8>,
    _rows: PhantomData<&'a Region>,
}

impl<const N: usize, const STRIDE: usize, const MAP: usize, const BLOCK: usize> Default
    for RowTable<N, STRIDE, MAP, BLOCK>
{
    fn default() -> Self {
        let none = ptr::from_ref(Rows::NONE).cast_mut();
        Self {
            rows: core::array::from_fn(|_| AtomicPtr::new(none)),
            owners: [const { OnceLock::new() }; N],
        }
    }
}

impl<const N: usize, const STRIDE: usize, const MAP: usize, const BLOCK: usize> RowTable<N, STRIDE, MAP, BLOCK> {
    /// Puts a region's rows at `n`, for good; none of a region that is watched. `lines`: what a thread marks before it
    /// uses one. Nothing changes if there are some already.
    ///
    /// # Panics
    /// If they are not all inside of the region, or words are not aligned to 8 bytes, or overlap.
    pub fn set(&self, n: usize, region: Arc<Region>, at: RowsAt, lines: Option<Arc<Lines>>) {
        let rows = Rows::check(&region, at, lines.as_ref());
        if region.is_watched() {
            return;
        }
        let (_region, _lines) = (region, lines);
        let owned = Box::new(Owned { rows, _region, _lines });
        if self.owners[n].set(owned).is_ok()
            && let Some(owned) = self.owners[n].get()
        {
            self.rows[n].store(ptr::from_ref(&owned.rows).cast_mut(), Ordering::Release);
        }
    }

    /// The rows at `n`.
    #[inline(always)]
    pub fn of(&self, n: u8) -> &Rows<STRIDE, MAP, BLOCK> {
        // SAFETY: of a constant, or of what the table keeps as long as it lives, behind a pointer of its own.
        unsafe { &*self.rows[usize::from(n)].load(Ordering::Acquire) }
    }
}

impl<const STRIDE: usize, const MAP: usize, const BLOCK: usize> Rows<STRIDE, MAP, BLOCK> {
    const NONE: &'static Self = &Self {
        count: 0,
        words: ptr::null_mut(),
        maps: ptr::null_mut(),
        blocks: ptr::null_mut(),
        lines: ptr::null(),
    };

    fn check(region: &Region, at: RowsAt, lines: Option<&Arc<Lines>>) -> Self {
        assert!(STRIDE >= 8 && STRIDE.is_multiple_of(8), "words of rows overlap");
        let first = |off: u64, size: usize, more: usize| {
            let len = size.checked_mul(at.count).and_then(|len| len.checked_add(more));
            let end = off.checked_add(len.expect("a length in memory") as u64);
            assert!(
                end.is_some_and(|end| end <= region.len()),
                "rows outside of their region"
            );
            region.base().wrapping_add(off as usize)
        };
        let words = first(at.words, STRIDE, 0);
        let maps = first(at.maps, MAP * 8, MAP_ASKED * 8);
        let is_aligned = words.cast::<u64>().is_aligned() && maps.cast::<u64>().is_aligned();
        assert!(is_aligned, "words of rows are aligned");
        Self {
            count: at.count,
            words,
            maps,
            blocks: first(at.blocks, BLOCK, 0),
            lines: lines.map_or(ptr::null(), Arc::as_ptr),
        }
    }

    /// What a thread marks before it uses a row.
    #[inline(always)]
    pub fn lines(&self) -> Option<&Lines> {
        // SAFETY: null, or kept by the owner of these rows.
        unsafe { self.lines.as_ref() }
    }

    /// The row with this number, if there is one.
    #[inline(always)]
    pub fn get(&self, n: usize) -> Option<Row<'_, BLOCK>> {
        if n >= self.count {
            return None;
        }
        // SAFETY: `n < count`, so they are not null, and all of the row is inside of the memory, as `check` has seen. It
        // is mapped while the table lives.
        unsafe {
            Some(Row {
                word: NonNull::new_unchecked(self.words.add(n * STRIDE)),
                map: NonNull::new_unchecked(self.maps.add(n * (MAP * 8))),
                block: NonNull::new_unchecked(self.blocks.add(n * BLOCK)),
                _rows: PhantomData,
            })
        }
    }
}

// SAFETY: a row is reached by atomics and by the ways of `raw` only, which are sound from any thread.
unsafe impl<const BLOCK: usize> Send for Row<'_, BLOCK> {}
// SAFETY: as above.
unsafe impl<const BLOCK: usize> Sync for Row<'_, BLOCK> {}

impl<'a, const BLOCK: usize> Row<'a, BLOCK> {
    /// Its word.
    #[inline(always)]
    pub fn word(&self) -> &'a HostAtomicU64 {
        // SAFETY: mapped while the table lives, and aligned, as `RowTable::check` has seen.
        unsafe { HostAtomicU64::at(self.word.as_ptr()) }
    }

    /// A word of its map, or of what lies behind it, if it is one of the first 4096.
    #[inline(always)]
    pub fn map(&self, n: usize) -> Option<&'a HostAtomicU64> {
        // SAFETY: inside of the region by the check; else as in `word`.
        (n < MAP_ASKED).then(|| unsafe { HostAtomicU64::at(self.map.as_ptr().add(n * 8)) })
    }

    /// Whether so many bytes at `off` are in its block. (A slice has less than half of what a `usize` can count.)
    #[inline(always)]
    fn contains(off: u32, bytes: &[u8]) -> bool {
        off as usize + bytes.len() <= BLOCK
    }

    /// Fills `into` with its block's bytes from `off` on; false, and nothing, if they are not all inside.
    #[inline(always)]
    pub fn copy_out(&self, off: u32, into: &mut [u8]) -> bool {
        let is_inside = Self::contains(off, into);
        if is_inside {
            // SAFETY: inside of the block, by the check; `into` is exclusively borrowed and no region memory.
            unsafe { raw::copy(self.block.as_ptr().add(off as usize), into.as_mut_ptr(), into.len()) };
        }
        is_inside
    }

    /// Writes `from` to its block's bytes from `off` on; false, and nothing, if they are not all inside.
    #[inline(always)]
    pub fn copy_in(&self, off: u32, from: &[u8]) -> bool {
        let is_inside = Self::contains(off, from);
        if is_inside {
            // SAFETY: inside of the block, by the check; `from` is no region memory.
            unsafe { raw::copy(from.as_ptr(), self.block.as_ptr().add(off as usize), from.len()) };
        }
        is_inside
    }

    /// The word at `off` of its block, if it is aligned and inside.
    #[inline(always)]
    pub fn atomic(&self, off: u32) -> Option<&'a HostAtomicU64> {
        if off as usize + 8 > BLOCK {
            return None;
        }
        // SAFETY: inside of the block, by the check.
        let at = unsafe { self.block.add(off as usize) };
        let is_aligned = at.cast::<u64>().is_aligned();
        // SAFETY: mapped while the table lives, and aligned, by the check.
        is_aligned.then(|| unsafe { HostAtomicU64::at(at.as_ptr()) })
    }
}

/// A line of a region for each thread that uses it, as one process knows them: by the threads' numbers.
pub struct Lines {
    lines: Box<[AtomicPtr<u8>]>,
    region: Arc<Region>,
}

/// Words of a line.
const LINE_WORDS: usize = crate::LINE / 8;

/// One of them.
#[derive(Clone, Copy)]
pub struct Line<'a>(&'a [HostAtomicU64; LINE_WORDS]);

impl Lines {
    /// For so many threads, of which none has one.
    pub fn new(region: Arc<Region>, threads: usize) -> Self {
        let none = || AtomicPtr::new(ptr::null_mut());
        let lines = (0..threads).map(|_| none()).collect();
        Self { lines, region }
    }

    /// Gives a thread the line at `off`.
    ///
    /// # Panics
    /// If it is not inside of the region, or not aligned.
    pub fn set(&self, thread: usize, off: u64) {
        let line = crate::LINE as u64;
        let is_inside = off.checked_add(line).is_some_and(|end| end <= self.region.len());
        assert!(is_inside && off.is_multiple_of(8), "a line outside of its region");
        self.lines[thread].store(self.region.base().wrapping_add(off as usize), Ordering::Release);
    }

    /// A thread's, if it has one.
    #[inline(always)]
    pub fn get(&self, thread: usize) -> Option<Line<'_>> {
        let line = self.lines.get(thread)?.load(Ordering::Acquire);
        // SAFETY: null, or a line of the region by the check of `set`, aligned and mapped while the region lives; every
        // bit pattern is a value.
        unsafe { line.cast::<[HostAtomicU64; LINE_WORDS]>().as_ref() }.map(Line)
    }
}

impl<'a> Line<'a> {
    /// A word of it, that there is.
    #[inline(always)]
    pub fn word<const W: usize>(self) -> &'a HostAtomicU64 {
        const { assert!(W < LINE_WORDS, "a line has so many words") };
        &self.0[W]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Small = RowTable<2, 64, 16, 4096>;
    const AT: RowsAt = RowsAt {
        words: 4096,
        maps: 8192,
        blocks: 1 << 15,
        count: 8,
    };

    fn region() -> Arc<Region> {
        Arc::new(Region::dram(65536, Default::default(), Default::default()).expect("memory"))
    }

    fn set(at: RowsAt) -> (Arc<Region>, Small) {
        let (region, table) = (region(), Small::default());
        table.set(1, Arc::clone(&region), at, None);
        (region, table)
    }

    #[test]
    fn rows_are_where_they_should_be_and_end_there() {
        let (region, table) = set(AT);
        let last = table.of(1).get(7).expect("the last");
        last.word().store(7, Ordering::Relaxed);
        last.map(15).expect("the last").store(8, Ordering::Relaxed);
        assert!(last.copy_in(4088, &9u64.to_le_bytes()));
        assert_eq!(region.atomic_u64(4096 + 7 * 64).load(Ordering::Relaxed), 7);
        assert_eq!(region.atomic_u64(8192 + 8 * 128 - 8).load(Ordering::Relaxed), 8);
        assert_eq!(region.atomic_u64(65528).load(Ordering::Relaxed), 9);
        assert_eq!(last.atomic(4088).expect("inside").load(Ordering::Relaxed), 9);
        let mut bytes = [7; 8];
        assert!(!last.copy_out(4089, &mut bytes) && !last.copy_in(u32::MAX, &bytes));
        assert_eq!(bytes, [7; 8], "nothing is read outside");
        assert!(last.copy_out(4088, &mut bytes) && bytes == 9u64.to_le_bytes());
        assert!(last.map(4095).is_some() && last.map(4096).is_none());
        assert!(last.atomic(4089).is_none() && last.atomic(4).is_none() && last.atomic(u32::MAX).is_none());
        assert!(table.of(1).get(8).is_none() && table.of(1).get(usize::MAX).is_none());
        assert!(table.of(0).get(0).is_none() && table.of(1).lines().is_none());
    }

    #[test]
    fn lines_belong_to_threads() {
        let (region, table) = (region(), Small::default());
        let lines = Arc::new(Lines::new(Arc::clone(&region), 3));
        table.set(0, Arc::clone(&region), AT, Some(Arc::clone(&lines)));
        lines.set(2, 4096);
        let known = table.of(0).lines().expect("they were given");
        known
            .get(2)
            .expect("it has one")
            .word::<7>()
            .store(5, Ordering::Relaxed);
        assert_eq!(region.atomic_u64(4096 + 56).load(Ordering::Relaxed), 5);
        assert!(known.get(1).is_none() && known.get(3).is_none());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn rows_outside_of_the_region_are_no_rows() {
        set(RowsAt { count: 9, ..AT });
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn maps_that_may_be_asked_for_too_much_are_none() {
        set(RowsAt { maps: 49152, ..AT });
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn words_of_rows_that_are_not_aligned_are_none() {
        set(RowsAt { words: 4100, ..AT });
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_line_outside_of_the_region_is_none() {
        Lines::new(region(), 1).set(0, 65536 - 32);
    }
}
