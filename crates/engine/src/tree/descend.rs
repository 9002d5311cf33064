//! Going down without latches.

use cenote_fabric::observe::{self, Observer, Off, On, Still};

use super::layout::{ROOT, child_at, copy_value, level_of};
use super::pages::{Hint, OptGuard, PageView, Pool};
use super::search::{child_slot, search};
use super::{Attempt, BTree, Error, Result, until_done};

/// A page on the way, looked at: what is read from `view` counts once `guard` says it is valid.
#[derive(Clone, Copy)]
pub(crate) struct Node<'p, O: Observer> {
    pub no: u32,
    pub guard: OptGuard<'p>,
    pub view: PageView<'p, O>,
    pub level: u8,
}

/// Where a descent ended, and what it passed last.
pub(crate) struct Path<'p, O: Observer> {
    /// The page reached; its level is at most the one asked for.
    pub node: Node<'p, O>,
    /// Its parent and its slot there; `None` when it is the root.
    pub parent: Option<(Node<'p, O>, usize)>,
}

impl BTree {
    /// Descends to `level`, choosing each child with `pick`. What is read from the page reached must still be
    /// validated with its guard. The page reached is asked for with `hint`, those above stay warm.
    #[inline(always)]
    pub(crate) fn descend<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        (level, hint): (u8, Hint),
        pick: impl Fn(PageView<'p, O>) -> usize,
    ) -> Attempt<Path<'p, O>> {
        let Some(node) = self.root(pool, o)? else {
            return Ok(None);
        };
        let mut path = Path { node, parent: None };
        while path.node.level > level {
            let hint = if path.node.level == level + 1 { hint } else { Hint::Warm };
            let slot = pick(path.node.view);
            let Some(node) = self.child(pool, &path.node, slot, hint)? else {
                return Ok(None);
            };
            path = Path {
                node,
                parent: Some((path.node, slot)),
            };
        }
        Ok(Some(path))
    }

    /// Descends to the leaf of `key`, remembering nothing of the way.
    #[inline(always)]
    pub(crate) fn leaf_of<'p, O: Observer>(&self, pool: &'p Pool, o: O, key: &[u8]) -> Attempt<Node<'p, O>> {
        let Some(mut node) = self.root(pool, o)? else {
            return Ok(None);
        };
        while node.level > 0 {
            let slot = child_slot(node.view, key);
            match self.child(pool, &node, slot, Hint::Warm)? {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    #[inline(always)]
    fn root<'p, O: Observer>(&self, pool: &'p Pool, o: O) -> Attempt<Node<'p, O>> {
        let guard = pool.optimistic_by(o.seam(), self.page(ROOT))?;
        let view = guard.view_as(o);
        match level_of(view) {
            Some(level) => Ok(Some(Node {
                no: ROOT,
                guard,
                view,
                level,
            })),
            None => self.strange(ROOT, &guard),
        }
    }

    /// One level down. The parent is validated before the child is asked for (its number may be torn) and after
    /// (the child may have been split or freed in between).
    #[inline(always)]
    pub(super) fn child<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        parent: &Node<'p, O>,
        slot: usize,
        hint: Hint,
    ) -> Attempt<Node<'p, O>> {
        let no = child_at(parent.view, slot);
        let seam = parent.view.observer().seam();
        if !parent.guard.valid_by(seam) {
            return Ok(None);
        }
        let page = self.page(no);
        let asked = if hint == Hint::Warm {
            pool.optimistic_by(seam, page)
        } else {
            pool.optimistic_hint(page, hint)
        };
        if !parent.guard.valid_by(seam) {
            return Ok(None);
        }
        let guard = asked?;
        let view = guard.view_as(parent.view.observer());
        let level = parent.level - 1;
        if level_of(view) != Some(level) {
            return self.strange(no, &guard);
        }
        Ok(Some(Node { no, guard, view, level }))
    }

    /// A page that is not what its parent says: it has just changed, or the tree is corrupt.
    #[cold]
    fn strange<T>(&self, no: u32, node: &OptGuard<'_>) -> Attempt<T> {
        if node.valid() {
            return Err(Error::corrupt(
                self.page(no),
                "its kind or level is not what its parent says",
            ));
        }
        Ok(None)
    }

    /// Descends to the page of `level` that covers `key`.
    #[inline(always)]
    pub(crate) fn descend_to<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        level: u8,
        key: &[u8],
    ) -> Attempt<Path<'p, O>> {
        self.descend(pool, o, (level, Hint::Warm), |page| child_slot(page, key))
    }

    /// Copies the value of `key` into `out` (cleared first); `false` when there is none.
    ///
    /// # Errors
    /// Those of reading pages; [`Error::Corrupt`] if a page is none of a tree.
    #[inline]
    pub fn get(&self, pool: &Pool, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        // Asked once for the whole way down.
        if observe::still() {
            return until_done(|| self.try_get(pool, Still, key, out));
        }
        self.get_watched(pool, key, out)
    }

    #[cold]
    #[inline(never)]
    fn get_watched(&self, pool: &Pool, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        if observe::active() {
            return until_done(|| self.try_get(pool, On, key, out));
        }
        until_done(|| self.try_get(pool, Off, key, out))
    }

    #[inline(always)]
    fn try_get<O: Observer>(&self, pool: &Pool, o: O, key: &[u8], out: &mut Vec<u8>) -> Attempt<bool> {
        let Some(leaf) = self.leaf_of(pool, o, key)? else {
            return Ok(None);
        };
        out.clear();
        let found = search(leaf.view, key);
        if found.exact {
            copy_value(leaf.view, found.slot, out);
        }
        Ok(leaf.guard.valid_by(o.seam()).then_some(found.exact))
    }
}
