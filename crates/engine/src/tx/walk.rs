//! How a scan of rows goes through a tree: over one range, or over what is under many prefixes.

use crate::key::KeyRange;
use crate::tree::pages::Pool;
use crate::tree::{LeafBatch, PrefixScan, Result, Scan};

/// The walk of a scan.
pub(super) enum Walk {
    /// Over a range, a leaf at a time.
    Range(Scan),
    /// Over prefixes that rise.
    Prefixes(PrefixScan),
}

impl Walk {
    /// Copies the next entries into `batch`; `false` at the end.
    pub fn next_batch(&mut self, pool: &Pool, batch: &mut LeafBatch) -> Result<bool> {
        match self {
            Walk::Range(scan) => scan.next_batch(pool, batch),
            Walk::Prefixes(scan) => scan.next_batch_looking(pool, batch, &mut |_, _| {}),
        }
    }

    /// As `next_batch`. `look` is called for the entries of each leaf, from this number on, before the leaf is
    /// validated.
    pub fn next_batch_looking(
        &mut self,
        pool: &Pool,
        batch: &mut LeafBatch,
        look: &mut dyn FnMut(&LeafBatch, usize),
    ) -> Result<bool> {
        match self {
            Walk::Range(scan) => scan.next_batch_looking(pool, batch, &mut |leaf| look(leaf, 0)),
            Walk::Prefixes(scan) => scan.next_batch_looking(pool, batch, look),
        }
    }

    /// Goes on behind `key`, which it has passed.
    pub fn return_to(&mut self, key: &[u8]) {
        match self {
            Walk::Range(scan) => scan.return_to(key),
            Walk::Prefixes(scan) => scan.return_to(key),
        }
    }

    /// Fetches about so many entries at a time; over prefixes as many as it likes.
    pub fn set_batch_rows(&mut self, rows: usize) {
        if let Walk::Range(scan) = self {
            scan.set_batch_rows(rows);
        }
    }

    /// Keys of entries will not be read.
    pub fn without_keys(self) -> Walk {
        match self {
            Walk::Range(scan) => Walk::Range(scan.without_keys()),
            prefixes => prefixes,
        }
    }

    /// Goes on with a range of the same tree.
    ///
    /// # Panics
    /// If it is a walk over prefixes.
    pub fn restart(&mut self, range: KeyRange) {
        match self {
            Walk::Range(scan) => scan.restart(range),
            Walk::Prefixes(_) => panic!("a walk over prefixes has no range"),
        }
    }
}
