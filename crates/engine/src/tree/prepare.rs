//! Bringing in the leaves of keys that are about to be looked up: batched key prepare (PolarDB Serverless, 4.2).
//!
//! The pages above the leaves say which leaves keys will meet. Where the thread has missed pages lately, those of the
//! next [`WINDOW`] keys that are missing are read together ([`Pool::bring`]), before the first of them is asked for. A
//! lookup depends on none of this: what was not brought in, it reads.

use cenote_fabric::observe::Observer;

use super::descend::Node;
use super::layout::child_at;
use super::pages::Pool;
use super::search::{child_slot, is_below_end};
use super::{Attempt, BTree};

/// Keys whose leaves are brought in together.
const WINDOW: usize = 64;

/// How far the keys of a walk are prepared.
#[derive(Debug, Clone, Default)]
pub(super) struct Prepared(usize);

impl Prepared {
    /// Where the keys from this number on are not prepared, and misses are expected, prepares the next ones. `keys` are
    /// those from there on, and rise; `above`: the parent of the leaf of the one before.
    #[inline(always)]
    pub(super) fn go_on<'p, 'k, O: Observer>(
        &mut self,
        (tree, pool, o): (&BTree, &'p Pool, O),
        above: Option<Node<'p, O>>,
        from: usize,
        keys: impl Iterator<Item = &'k [u8]>,
    ) {
        if from >= self.0 && pool.misses_lately() {
            self.0 = from + WINDOW;
            tree.bring_leaves(pool, o, above, keys.take(WINDOW));
        }
    }
}

impl BTree {
    /// `above` covers no key below the first, if it covers any. What stops it, an error or another thread's change, is
    /// met again by the lookup.
    #[cold]
    #[inline(never)]
    fn bring_leaves<'p, 'k, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        mut above: Option<Node<'p, O>>,
        keys: impl Iterator<Item = &'k [u8]>,
    ) {
        let mut keys = keys.peekable();
        let mut leaves = Vec::new();
        // Of one leaf the lookup does as much.
        if let Some(first) = keys.next()
            && keys.peek().is_some()
        {
            for key in std::iter::once(first).chain(keys) {
                let Ok(Some(leaf)) = self.leaf_number(pool, o, &mut above, key) else {
                    break;
                };
                let leaf = self.page(leaf);
                if leaves.last() != Some(&leaf) {
                    leaves.push(leaf);
                }
            }
        }
        if leaves.len() > 1 {
            pool.bring(&leaves);
        }
    }

    /// The leaf that a key is in, as the page above says, which is kept for the next key; None where the root is the
    /// leaf, or another thread has spoiled it.
    fn leaf_number<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        above: &mut Option<Node<'p, O>>,
        key: &[u8],
    ) -> Attempt<u32> {
        if !above.as_ref().is_some_and(|page| is_below_end(page.view, key)) {
            let path = self.descend_to(pool, o, 1, key)?;
            *above = path.map(|path| path.node).filter(|page| page.level == 1);
        }
        let Some(page) = above else { return Ok(None) };
        let leaf = child_at(page.view, child_slot(page.view, key));
        if page.guard.valid_by(o.seam()) {
            return Ok(Some(leaf));
        }
        *above = None;
        Ok(None)
    }
}
