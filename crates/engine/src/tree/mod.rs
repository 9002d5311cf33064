//! The B+tree: ordered bytes to bytes on 16 KiB slotted pages, in a space of its own.
//!
//! 1. Readers descend optimistically: they note a page's version, read, and check the version before they
//!    believe anything, and before and after they step to a child. They write nothing that is shared.
//! 2. Writers descend the same way and turn the leaf's optimistic guard into an exclusive latch. A change of
//!    one leaf latches nothing else.
//! 3. Where the leaf has no room, a structure change comes first, one level at a time, each a mini-transaction
//!    of its own that leaves a whole tree: parent, then child, then the space's header are latched, a page is
//!    allocated, contents move, the parent gets its separator. Then the writer descends again.
//! 4. Each page knows its fences: the half-open key interval that its parent gives it. Scans go from leaf to leaf
//!    by descending to the fence, so there are no sibling links to keep right.
//! 5. The root stays page 1: when it splits, its contents move out into two new children.
//!
//! Invariants: those of [`layout`] and of [`crate::space`]; latch order parent, child, right neighbour, space
//! header, free page; within one mini-transaction at most one `seek_write` for each tree, before other latches.

pub(crate) mod batch;
mod bulk;
mod check;
mod descend;
mod edit;
pub(crate) mod image;
mod large;
pub(crate) mod layout;
mod many;
mod merge;
pub(crate) mod pages;
mod prefixes;
mod prepare;
mod sample;
mod scan;
mod search;
mod share;
mod split;
mod write;

pub use check::{CheckReport, Finding};
pub(crate) use large::Adoption;
pub use large::LargeRef;
pub use layout::{KIND_FREE, KIND_OVERFLOW, KIND_TREE, MAX_KEY, MAX_VALUE, PAGE_SIZE};
pub(crate) use many::Place;
pub(crate) use prefixes::PrefixScan;
pub(crate) use sample::Sample;
pub use scan::{LeafBatch, Scan};
pub use write::LeafPos;

use cenote_base::PageId;

/// What can go wrong in a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffer could not give a page.
    #[error(transparent)]
    Buffer(#[from] cenote_base::Error),
    /// A page contradicts the tree's invariants.
    #[error("page {page:?} is corrupt: {what}")]
    Corrupt {
        /// The page.
        page: PageId,
        /// What was found.
        what: &'static str,
    },
    /// The key is longer than [`MAX_KEY`].
    #[error("a key of {0} bytes is longer than the maximum of {MAX_KEY}")]
    KeyTooLong(usize),
    /// The value is longer than [`MAX_VALUE`].
    #[error("a value of {0} bytes is longer than the maximum of {MAX_VALUE}")]
    ValueTooLong(usize),
    /// `insert_at` or `replace_at` needs more than was asked of `seek_write`; nothing was changed.
    #[error("the leaf has no room for what is more than was asked for")]
    NoRoom,
    /// The space has used all its page numbers.
    #[error("space {space} has no page numbers left")]
    SpaceFull {
        /// The space.
        space: u32,
    },
    /// All slots of the list of pending large values are taken.
    #[error("too many large values are being written to space {space} at once")]
    TooManyPending {
        /// The space.
        space: u32,
    },
    /// `bulk_load` was given a key that is not above the one before it.
    #[error("keys of a bulk load do not rise")]
    NotSorted,
}

impl Error {
    pub(crate) fn corrupt(page: PageId, what: &'static str) -> Error {
        Error::Corrupt { page, what }
    }
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> crate::Error {
        match error {
            Error::Buffer(error) => error.into(),
            Error::Corrupt { .. } => crate::Error::Corrupt(error.to_string()),
            Error::KeyTooLong(_) | Error::ValueTooLong(_) => crate::Error::TooLarge(error.to_string()),
            Error::SpaceFull { .. } | Error::TooManyPending { .. } => crate::Error::TooLarge(error.to_string()),
            Error::NoRoom | Error::NotSorted => crate::Error::Internal(error.to_string()),
        }
    }
}

/// Result of an operation on a tree.
pub type Result<T> = std::result::Result<T, Error>;

/// An attempt that another thread may have spoiled: `None` says start again.
pub(crate) type Attempt<T> = Result<Option<T>>;

/// Repeats `attempt` until no other thread spoils it.
#[inline(always)]
pub(crate) fn until_done<T>(mut attempt: impl FnMut() -> Attempt<T>) -> Result<T> {
    loop {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        cenote_base::rt::relax();
    }
}

/// A tree: all of it lies in its space, this is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BTree {
    /// The space that holds the tree and its large values.
    pub space: u32,
}

impl BTree {
    #[inline(always)]
    pub(crate) fn page(&self, page: u32) -> PageId {
        PageId::new(self.space, page)
    }
}
