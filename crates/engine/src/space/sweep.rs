//! Free pages in a row are taken off the free list, so that their blocks can be given back to the disk.
//!
//! The free list goes through the pages themselves, and a page whose blocks are gone has no link. So the pages of a
//! range leave the list first:
//!
//! 1. `find_runs` reads the list, without a latch, and chooses the longest runs of neighbours. That does not bind:
//!    pages may be in use before it is heard.
//! 2. `claim` enters the runs in the header as *claimed*.
//! 3. `sweep` takes pages off the free list, some in each mini-transaction: those within a claimed range are set aside,
//!    others go to the list of kept pages, which is the free list once that is empty. Others allocate and free
//!    meanwhile.
//! 4. `set_aside` says which pages of a claimed range really are, and `settle` puts the runs of those in its place, as
//!    *going*: from here on no reader asks what these pages hold.
//! 5. Their blocks are given back (`Engine::give_back`), and `given` has the header say so.
//!
//! ```text
//! free list ─ sweep ─► set aside ─ settle ─► going ─ blocks given back ─► given ─ allocate ─► in use
//!          └─ sweep ─► kept ─ (the free list is empty) ─► free list
//! ```
//!
//! After a crash between two steps the header has the ranges and kept pages, and the steps from 3 on are done for what
//! is there. That is why there are two steps at the end: a page whose frame was dropped and whose hole was lost in a
//! power cut is what it was long ago, maybe the page of a large value, and asking it would take it for one in use. One
//! thread at a time sweeps a space.

use super::{Away, KIND_AWAY, RANGES, SpaceLatch, State, header_and_ranges, latch};
use crate::tree::layout::{AT_KIND, AT_NEXT, KIND_FREE, PageRead};
use crate::tree::pages::{Hint, PageH, Pool};
use crate::tree::{Result, until_done};
use cenote_base::PageId;
use std::ops::Range;

/// Pages that one mini-transaction takes off the free list.
const STRIDE: usize = 16;
/// Pages of the free list that are read to find runs.
const LOOK_MAX: usize = 1 << 20;
/// Runs that are claimed at a time: each may come apart, when pages within it were taken.
const RUNS_MAX: usize = 32;

/// The longest runs of at least `shortest` free pages.
pub(crate) fn find_runs(pool: &Pool, space: u32, shortest: u32) -> Result<Vec<Range<u32>>> {
    let (header, ranges) = header_and_ranges(pool, space)?;
    let mut free = Vec::new();
    let mut page = header.free_head;
    while page != 0 && page < header.high_water && free.len() < LOOK_MAX.min(header.free_count as usize) {
        free.push(page);
        let (kind, next) = read(pool, space, page)?;
        if kind != KIND_FREE {
            // It is in use by now: the rest of the list is another one.
            break;
        }
        page = next;
    }
    free.sort_unstable();
    free.dedup();
    let mut runs: Vec<_> = free
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| run[0]..run[run.len() - 1] + 1)
        .filter(|run| run.len() >= shortest as usize)
        .collect();
    runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.len()));
    runs.truncate(RUNS_MAX.min((RANGES - ranges.len()) / 2));
    Ok(runs)
}

/// Kind and link of a page.
fn read(pool: &Pool, space: u32, page: u32) -> Result<(u8, u32)> {
    until_done(|| {
        let guard = pool.optimistic_hint(PageId::new(space, page), Hint::Scan)?;
        let view = guard.view();
        let read = (PageRead::u8(view, AT_KIND), PageRead::u32(view, AT_NEXT));
        Ok(guard.valid().then_some(read))
    })
}

/// Enters runs as claimed ranges.
pub(crate) fn claim(pool: &Pool, space: u32, runs: &[Range<u32>]) -> Result<()> {
    let mut m = pool.mtr();
    let mut header = latch(&mut m, space)?;
    let room = RANGES - header.ranges.len();
    header.ranges.extend(runs.iter().take(room).map(|run| Away {
        pages: run.clone(),
        state: State::Claimed,
    }));
    header.store(&mut m);
    m.commit();
    Ok(())
}

/// Takes pages off the free list; false when that is empty, and the kept ones are the free list.
pub(crate) fn sweep(pool: &Pool, space: u32) -> Result<bool> {
    let mut m = pool.mtr();
    let mut header = latch(&mut m, space)?;
    let kept = std::mem::take(&mut header.header.kept_head);
    let mut taken = Vec::with_capacity(STRIDE);
    while taken.len() < STRIDE && header.header.free_head != 0 {
        taken.push(header.pop_free(&mut m)?);
    }
    header.header.kept_head = kept;
    for (page, h) in &taken {
        header.pass(&mut m, *page, *h);
    }
    let goes_on = header.header.free_head != 0;
    if !goes_on {
        header.header.free_head = std::mem::take(&mut header.header.kept_head);
    }
    header.store(&mut m);
    m.commit();
    Ok(goes_on)
}

impl SpaceLatch {
    /// Sets a page that was taken off the free list aside, or keeps it.
    fn pass(&mut self, m: &mut super::Mtr<'_>, page: u32, h: PageH) {
        if self
            .ranges
            .iter()
            .any(|away| away.state == State::Claimed && away.pages.contains(&page))
        {
            m.write(h, AT_KIND, &[KIND_AWAY, 0]);
            return;
        }
        m.write(h, AT_NEXT, &self.header.kept_head.to_le_bytes());
        self.header.kept_head = page;
        self.header.free_count += 1;
    }
}

impl SpaceLatch {
    /// Sorts the ranges, and makes one of neighbours that were given back.
    fn join_ranges(&mut self) {
        self.ranges.sort_unstable_by_key(|away| away.pages.start);
        self.ranges.dedup_by(|next, before| {
            let joins =
                next.state == State::Given && before.state == State::Given && before.pages.end == next.pages.start;
            if joins {
                before.pages.end = next.pages.end;
            }
            joins
        });
    }
}

/// The ranges in this state.
pub(crate) fn ranges(pool: &Pool, space: u32, state: State) -> Result<Vec<Range<u32>>> {
    let ranges = header_and_ranges(pool, space)?.1.into_iter();
    Ok(ranges
        .filter(|away| away.state == state)
        .map(|away| away.pages)
        .collect())
}

/// Pages of a claimed range that are set aside, after a sweep.
pub(crate) fn set_aside(pool: &Pool, space: u32, range: Range<u32>) -> Result<Vec<Range<u32>>> {
    let mut found: Vec<Range<u32>> = Vec::new();
    for page in range {
        if read(pool, space, page)?.0 != KIND_AWAY {
            continue;
        }
        match found.last_mut().filter(|last| last.end == page) {
            Some(last) => last.end += 1,
            None => found.push(page..page + 1),
        }
    }
    Ok(found)
}

/// Puts `runs`, all pages of a claimed range that are set aside still, in its place: they are going.
pub(crate) fn settle(pool: &Pool, space: u32, range: Range<u32>, runs: Vec<Range<u32>>) -> Result<()> {
    let claim = Away {
        pages: range,
        state: State::Claimed,
    };
    let state = State::Going;
    replace(pool, space, &claim, runs.into_iter().map(|pages| Away { pages, state }))
}

/// The blocks of a range that was going are gone.
pub(crate) fn given(pool: &Pool, space: u32, pages: Range<u32>) -> Result<()> {
    let going = Away {
        pages: pages.clone(),
        state: State::Going,
    };
    let state = State::Given;
    replace(pool, space, &going, std::iter::once(Away { pages, state }))
}

fn replace(pool: &Pool, space: u32, old: &Away, new: impl Iterator<Item = Away>) -> Result<()> {
    let mut m = pool.mtr();
    let mut header = latch(&mut m, space)?;
    header.ranges.retain(|away| away != old);
    header.ranges.extend(new);
    header.join_ranges();
    header.store(&mut m);
    m.commit();
    Ok(())
}

/// Runs of pages.
type Runs = Vec<Range<u32>>;

/// Splits the runs of a claimed range into the longest ones, for which the header has room, and the rest.
pub(crate) fn choose(pool: &Pool, space: u32, mut runs: Runs) -> Result<(Runs, Runs)> {
    let room = RANGES + 1 - header_and_ranges(pool, space)?.1.len();
    runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.len()));
    let left = runs.split_off(room.min(runs.len()));
    Ok((runs, left))
}

/// Frees pages again that were set aside.
pub(crate) fn free_again(pool: &Pool, space: u32, pages: Range<u32>) -> Result<()> {
    for step in pages.clone().step_by(STRIDE) {
        let mut m = pool.mtr();
        let mut header = latch(&mut m, space)?;
        let some = step..pages.end.min(step + STRIDE as u32);
        let latched = some.map(|page| Ok((page, m.exclusive(PageId::new(space, page))?)));
        let latched: Vec<_> = latched.collect::<Result<_>>()?;
        latched.iter().for_each(|(page, h)| header.free(&mut m, *page, *h));
        header.store(&mut m);
        m.commit();
    }
    Ok(())
}
