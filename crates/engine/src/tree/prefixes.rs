//! Walking the entries under many prefixes that rise, each from where the last one ended.
//!
//! As single keys are looked up in `many`: the leaf of the last prefix is kept, with its parent, so that a prefix
//! whose entries lie in the same leaf costs a search, and only one beyond the parent a descent; some go ahead to their
//! leaves together. Entries of several leaves come in one batch.
//!
//! Each leaf is validated behind the copy of its entries; where it has changed, these are dropped and copied anew. The
//! walk holds no latch and no page between batches.
//!
//! Invariant: what is asked of a kept page is not below what was asked of it before: prefixes rise, none begins
//! another, and a prefix goes on at the fence at which its last leaf ended.

use cenote_fabric::observe::{self, Observer, Off, On, Still};
use std::ops::Range;
use std::sync::Arc;

use super::layout::{Header, PageRead, upper_fence};
use super::many::{GROUP, Near, above};
use super::pages::Pool;
use super::prepare::Prepared;
use super::scan::LeafBatch;
use super::search::lower_bound;
use super::{Attempt, BTree, Error, Result};
use crate::key::successor;

/// Entries after which a batch is complete; what the prefix begun has in its leaf is taken as well.
const BATCH_ENTRIES: usize = 1024;
/// Prefixes after which a batch ends though few have entries: its caller looks in between whether it was cancelled.
const BATCH_PREFIXES: usize = 1024;

/// A walk over the entries under prefixes. It borrows nothing: the pool is handed in at each step.
#[derive(Debug, Clone)]
pub(crate) struct PrefixScan {
    tree: BTree,
    prefixes: Arc<[Vec<u8>]>,
    /// The prefixes that are left.
    left: Range<usize>,
    next: Next,
    prepared: Prepared,
}

/// Where the first of the prefixes that are left goes on.
#[derive(Debug, Clone, Default)]
struct Next {
    key: Vec<u8>,
    /// Whether `key` itself has been given.
    is_behind: bool,
    /// Where the prefix ends; None: at the end of the tree.
    end: Option<Vec<u8>>,
}

impl BTree {
    /// A walk over what is under a part of `prefixes`, which rise; none begins another.
    pub(crate) fn scan_prefixes(&self, prefixes: Arc<[Vec<u8>]>, part: Range<usize>) -> PrefixScan {
        debug_assert!(prefixes.is_sorted_by(|a, b| a < b && !b.starts_with(a)));
        let mut scan = PrefixScan {
            tree: *self,
            prefixes,
            left: part,
            next: Next::default(),
            prepared: Prepared::default(),
        };
        scan.begin_prefix();
        scan
    }
}

impl PrefixScan {
    /// Copies the next entries into `batch` (cleared first), of which there may be none; `false` at the end. `look` is
    /// called for the entries of each leaf, those from this number on: they have been copied and stood in the tree at
    /// that moment, for the leaf is validated behind it. Where that fails the entries may be any bytes, and it is
    /// called again.
    ///
    /// # Errors
    /// Those of reading pages; [`Error::Corrupt`] if a page is none of a tree.
    pub(crate) fn next_batch_looking(
        &mut self,
        pool: &Pool,
        batch: &mut LeafBatch,
        look: &mut dyn FnMut(&LeafBatch, usize),
    ) -> Result<bool> {
        batch.clear();
        // Asked once for all of them.
        if observe::still() {
            self.fill(pool, Still, batch, look)?;
        } else if observe::active() {
            self.fill(pool, On, batch, look)?;
        } else {
            self.fill(pool, Off, batch, look)?;
        }
        Ok(!batch.is_empty() || !self.left.is_empty())
    }

    /// Goes on behind `key`, which it has passed: the entries after it are copied again.
    pub(crate) fn return_to(&mut self, key: &[u8]) {
        let above = self.prefixes.partition_point(|prefix| prefix.as_slice() <= key);
        self.left.start = above.saturating_sub(1);
        self.prepared = Prepared::default();
        self.begin_prefix();
        key.clone_into(&mut self.next.key);
        self.next.is_behind = true;
    }

    fn begin_prefix(&mut self) {
        if let Some(prefix) = self.prefixes[..self.left.end].get(self.left.start) {
            prefix.clone_into(&mut self.next.key);
            self.next.is_behind = false;
            self.next.end = successor(prefix);
        }
    }

    fn fill<O: Observer>(
        &mut self,
        pool: &Pool,
        o: O,
        batch: &mut LeafBatch,
        look: &mut dyn FnMut(&LeafBatch, usize),
    ) -> Result<()> {
        let mut near = None;
        let until = self.left.end.min(self.left.start + BATCH_PREFIXES);
        while self.left.start < until && batch.len() < BATCH_ENTRIES {
            let group = self.left.start..self.left.end.min(self.left.start + GROUP);
            let first = std::iter::once(&self.next.key);
            let all = first.clone().chain(&self.prefixes[group.start + 1..self.left.end]);
            self.prepared
                .go_on((&self.tree, pool, o), above(&near), group.start, all.map(Vec::as_slice));
            let keys = first.chain(&self.prefixes[group.start + 1..group.end]);
            let ahead = self.tree.go_ahead(pool, o, &mut near, keys.map(Vec::as_slice))?;
            for (n, mut ahead) in group.zip(ahead) {
                while self.left.start == n && batch.len() < BATCH_ENTRIES {
                    let last = self.step_surely(pool, o, ahead, batch, look)?;
                    ahead = match self.left.start == n {
                        true => self.tree.go(pool, o, Some(last), &self.next.key)?,
                        false => None,
                    };
                }
            }
        }
        Ok(())
    }

    /// A step, as often as another thread spoils it: in the leaf to which its key has gone ahead, then by descents.
    fn step_surely<'p, O: Observer>(
        &mut self,
        pool: &'p Pool,
        o: O,
        mut ahead: Option<Near<'p, O>>,
        batch: &mut LeafBatch,
        look: &mut dyn FnMut(&LeafBatch, usize),
    ) -> Result<Near<'p, O>> {
        let before = batch.mark();
        loop {
            if let Some(at) = self.tree.arrive(pool, o, ahead.take(), &self.next.key)?
                && self.step(o, &at, batch, look)?.is_some()
            {
                return Ok(at);
            }
            batch.drop_behind(before);
            cenote_base::rt::relax();
        }
    }

    /// Copies what the first prefix has in its leaf.
    #[inline(always)]
    fn step<O: Observer>(
        &mut self,
        o: O,
        at: &Near<'_, O>,
        batch: &mut LeafBatch,
        look: &mut dyn FnMut(&LeafBatch, usize),
    ) -> Attempt<()> {
        let (page, before) = (at.leaf.view, batch.len());
        let slots = self.next.slots(page);
        let ends_here = slots.end < Header::read(page).count();
        batch.push_all(page, slots);
        // The prefix may go on in the next leaf.
        let fence = if ends_here { None } else { upper_fence(page) };
        look(batch, before);
        if !at.leaf.guard.valid_by(o.seam()) {
            return Ok(None);
        }
        match fence.filter(|fence| self.next.reaches(fence)) {
            Some(fence) if fence <= self.next.key => return Err(self.leads_back(at.leaf.no)),
            Some(fence) => (self.next.key, self.next.is_behind) = (fence, false),
            None => {
                self.left.start += 1;
                self.begin_prefix();
            }
        }
        Ok(Some(()))
    }

    #[cold]
    fn leads_back(&self, leaf: u32) -> Error {
        let page = self.tree.page(leaf);
        Error::corrupt(page, "its fence leads back where the scan came from")
    }
}

impl Next {
    /// The slots of a leaf from the key on that belong to the prefix.
    fn slots(&self, page: impl PageRead) -> Range<usize> {
        let from = lower_bound(page, &self.key);
        let end = match &self.end {
            Some(end) => lower_bound(page, end).slot,
            None => Header::read(page).count(),
        };
        from.slot + usize::from(from.exact && self.is_behind)..end
    }

    /// Whether the prefix has keys from `fence` on.
    fn reaches(&self, fence: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| fence < end)
    }
}
