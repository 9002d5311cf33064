//! Giving pages back: an under-full page merges with a neighbour under the same parent.
//!
//! Latch order: parent, left page, right page, space header. The right page's entries move into the left one, the
//! right one is freed, the parent loses its separator; all of that is one mini-transaction. A root with one child
//! takes over the child's contents and the tree loses a level.

use cenote_fabric::observe::Asks;

use super::edit;
use super::image::Image;
use super::layout::{Header, MAX_KEY, PAGE_SIZE, PageWrite, ROOT, SLOTS, child_at, level_of, lower_fence, upper_fence};
use super::pages::{Mtr, PageH, Pool, latched};
use super::{Attempt, BTree, Result, descend::Path, until_done};
use crate::space;

/// A page with fewer bytes in use than this looks for a neighbour to merge with.
pub(crate) const UNDERFULL: usize = PAGE_SIZE * 2 / 5;
/// What a merged page may have in use, so that it does not split again at once (an empty page goes in any case).
const MERGED: usize = PAGE_SIZE * 3 / 4;
const _: () = assert!(
    UNDERFULL < MERGED && MERGED < PAGE_SIZE,
    "a page that was merged is neither underfull nor full"
);

impl BTree {
    /// Merges the leaf of `key` if it is under-full, and pages above it that become so; `true` if any page was freed.
    ///
    /// # Errors
    /// Those of reading and writing pages.
    pub fn compact(&self, pool: &Pool, key: &[u8]) -> Result<bool> {
        let mut freed = false;
        for level in 0..=u8::MAX {
            match until_done(|| self.try_compact(pool, key, level))? {
                Step::Merged => freed = true,
                Step::Kept => {}
                Step::Top => break,
            }
        }
        Ok(freed)
    }

    fn try_compact(&self, pool: &Pool, key: &[u8], level: u8) -> Attempt<Step> {
        let Some(path) = self.descend_to(pool, Asks, level, key)? else {
            return Ok(None);
        };
        if path.node.no == ROOT {
            return self.collapse_root(pool, path);
        }
        let Some((parent, slot)) = path.parent else {
            return Ok(None);
        };
        let used = edit::used(&Header::read(path.node.view));
        let siblings = Header::read(parent.view).count();
        if !path.node.guard.valid() || !parent.guard.valid() {
            return Ok(None);
        }
        if used >= UNDERFULL {
            return Ok(Some(Step::Top));
        }
        if siblings < 2 {
            return Ok(Some(Step::Kept));
        }
        let mut m = pool.mtr();
        let Some(parent) = m.upgrade(parent.guard)? else {
            return Ok(None);
        };
        let mut outcome = Step::Kept;
        for left in [slot, slot.wrapping_sub(1)] {
            let both = left < siblings && left + 1 < siblings;
            if both && matches!(outcome, Step::Kept) {
                outcome = self.merge((&mut m, parent), left)?;
            }
        }
        m.commit();
        Ok(Some(outcome))
    }

    /// Merges children `left` and `left + 1` of the latched parent if they fit in one page.
    fn merge(&self, (m, parent): (&mut Mtr<'_>, PageH), left: usize) -> Result<Step> {
        assert!(
            left + 1 < Header::read(m.view(parent)).count(),
            "a page merges with its right neighbour under the same parent"
        );
        let (left_no, right_no) = (child_at(m.view(parent), left), child_at(m.view(parent), left + 1));
        let left_h = m.exclusive(self.page(left_no))?;
        let right_h = m.exclusive(self.page(right_no))?;
        self.sound(m, parent)?;
        let (a, b) = (self.image(m, left_h)?, self.image(m, right_h)?);
        let Some(merged) = merged(&a, &b) else {
            m.release(right_h);
            m.release(left_h);
            return Ok(Step::Kept);
        };
        let mut header = space::latch(m, self.space)?;
        merged.install(&mut latched(m, left_h));
        edit::remove(&mut latched(m, parent), left + 1);
        header.free(m, right_no, right_h);
        header.store(m);
        Ok(Step::Merged)
    }

    /// A root with a single child becomes what the child is.
    fn collapse_root(&self, pool: &Pool, path: Path<'_, Asks>) -> Attempt<Step> {
        let single = path.node.level > 0 && Header::read(path.node.view).count() == 1;
        if !single {
            return Ok(path.node.guard.valid().then_some(Step::Top));
        }
        let mut m = pool.mtr();
        let Some(root) = m.upgrade(path.node.guard)? else {
            return Ok(None);
        };
        let child_no = child_at(m.view(root), 0);
        let child = m.exclusive(self.page(child_no))?;
        let image = self.image(&m, child)?;
        let mut header = space::latch(&mut m, self.space)?;
        image.install(&mut latched(&mut m, root));
        header.free(&mut m, child_no, child);
        header.store(&mut m);
        m.commit();
        Ok(None)
    }
}

/// What was done at one level.
enum Step {
    /// Nothing to do at this level; pages above may still be under-full.
    Kept,
    /// Two pages became one.
    Merged,
    /// The root, or nothing to do any more.
    Top,
}

/// One page with the contents of both; `None` when it would be too full.
fn merged(left: &Image, right: &Image) -> Option<Image> {
    let bytes = edit::used(&Header::read(left.view())) + edit::used(&Header::read(right.view())) - SLOTS;
    let is_empty = |page: &Image| Header::read(page.view()).count() == 0;
    if bytes > MERGED && !is_empty(left) && !is_empty(right) {
        return None;
    }
    let level = level_of(left.view())?;
    let upper = upper_fence(right.view());
    if lower_fence(left.view()).len() + upper.as_ref().map_or(0, Vec::len) > 2 * MAX_KEY {
        return None;
    }
    let mut page = Image::new(level, &lower_fence(left.view()), upper.as_deref());
    let all = page.push_all(left, 0, Header::read(left.view()).count())
        && page.push_all(right, 0, Header::read(right.view()).count());
    page.forget_run();
    all.then_some(page)
}
