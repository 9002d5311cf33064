//! Going down without latches.

use cenote_fabric::observe::{self, Observer, Off, On};

use super::layout::{ROOT, child_at, copy_value, level_of};
use super::pages::{Hint, OptGuard, PageView, Pool};
use super::search::{child_slot, search};
use super::{Attempt, BTree, Error, Result, until_done};

/// Where a descent ended.
pub(crate) struct Path<'p> {
    /// The page reached.
    pub no: u32,
    pub node: OptGuard<'p>,
    /// Its level: at most the one asked for.
    pub level: u8,
    /// Its parent and its slot there; `None` when it is the root.
    pub parent: Option<(OptGuard<'p>, usize)>,
}

impl<'p> Path<'p> {
    /// The page reached, seen by `o`; to be validated with `node`.
    #[inline(always)]
    pub fn view<O: Observer>(&self, o: O) -> PageView<'_, O> {
        self.node.view_as(o)
    }
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
        pick: impl Fn(PageView<'_, O>) -> usize,
    ) -> Attempt<Path<'p>> {
        let node = pool.optimistic(self.page(ROOT))?;
        let Some(at) = level_of(node.view_as(o)) else {
            return self.strange(ROOT, &node);
        };
        let mut path = Path {
            no: ROOT,
            node,
            level: at,
            parent: None,
        };
        while path.level > level {
            let hint = if path.level == level + 1 { hint } else { Hint::Warm };
            match self.step(pool, o, path, hint, &pick)? {
                Some(next) => path = next,
                None => return Ok(None),
            }
        }
        Ok(Some(path))
    }

    /// One level down. The parent is validated before the child is asked for (its number may be torn) and after
    /// (the child may have been split or freed in between).
    #[inline(always)]
    fn step<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        path: Path<'p>,
        hint: Hint,
        pick: impl Fn(PageView<'_, O>) -> usize,
    ) -> Attempt<Path<'p>> {
        let view = path.view(o);
        let slot = pick(view);
        let no = child_at(view, slot);
        if !path.node.valid() {
            return Ok(None);
        }
        let child = self.page(no);
        let asked = if hint == Hint::Warm {
            pool.optimistic(child)
        } else {
            pool.optimistic_hint(child, hint)
        };
        let node = match asked {
            Ok(node) => node,
            Err(_) if !path.node.valid() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !path.node.valid() {
            return Ok(None);
        }
        if level_of(node.view_as(o)) != Some(path.level - 1) {
            return self.strange(no, &node);
        }
        Ok(Some(Path {
            no,
            node,
            level: path.level - 1,
            parent: Some((path.node, slot)),
        }))
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
    pub(crate) fn descend_to<'p, O: Observer>(&self, pool: &'p Pool, o: O, level: u8, key: &[u8]) -> Attempt<Path<'p>> {
        self.descend(pool, o, (level, Hint::Warm), |page| child_slot(page, key))
    }

    /// Copies the value of `key` into `out` (cleared first); `false` when there is none.
    #[inline]
    pub fn get(&self, pool: &Pool, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        if observe::active() {
            return until_done(|| self.try_get(pool, On, key, out));
        }
        until_done(|| self.try_get(pool, Off, key, out))
    }

    #[inline(always)]
    fn try_get<O: Observer>(&self, pool: &Pool, o: O, key: &[u8], out: &mut Vec<u8>) -> Attempt<bool> {
        let Some(leaf) = self.descend_to(pool, o, 0, key)? else {
            return Ok(None);
        };
        out.clear();
        let found = search(leaf.view(o), key);
        if found.exact {
            copy_value(leaf.view(o), found.slot, out);
        }
        Ok(leaf.node.valid().then_some(found.exact))
    }
}
