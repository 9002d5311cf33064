//! What lies below the frames: where a page comes from when no frame has it, and where it goes.
//!
//! Below is storage alone ([`OnlyStorage`]: kinds `cxl` and `dram`), or remote memory and then storage
//! ([`crate::tiered`]). A hit never gets here. Redo, checkpoints and the writing of pages to storage stay the pool's.
//!
//! ```text
//!            miss                    eviction                               write-back to storage
//!   publish: enter ─▶ read     way_out ─▶ [push] ─▶ let_go ─▶ leave: unpublish     before_save ─▶ (write) ─▶ saved
//! ```
//!
//! The pool's duties:
//! - `enter` follows a page's entry in the hash, `leave` goes before its removal, so that a page is entered at most
//!   once;
//! - `push` and `before_save` are given pages that are in frames, stay there until the call returns (their bit in
//!   `writing`), are not given twice at a time, and whose redo is durable;
//! - a page that storage lacks changes of leaves its frame only after `let_go` said yes, unless it is to be forgotten.
//!
//! The lower tier's duties: `read` gives the newest state of a page that no frame has, with its [`Trace`]; what it was
//! let go with counts for checkpoints ([`Lower::oldest_unsaved`]) until `saved` says that storage has it.

use std::ops::Range;
use std::sync::Arc;

use cenote_base::page_io::{PageIo, PageRead, PageWrite, Sectors};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, RecordAddr, Result};
use cenote_storage::Storage;
use cenote_storage::nodes::Changes;
use cenote_storage::redo;

use crate::chain::Chain;
use crate::known_changes::KnownChanges;
use crate::lists::Hint;
use crate::remote::{RemotePart, RemoteSize};
use crate::stats::{PodStats, TierStats};

/// What a descriptor knows of its page's redo; it goes with the page when the page leaves its frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    /// End of the group that changed the page last.
    pub lsn: Lsn,
    /// Its newest redo record; none: storage lacks none.
    pub head: RecordAddr,
    /// At or below the oldest change that storage lacks; zero: none.
    pub rec: Lsn,
    /// Redo since storage or an image had it whole.
    pub chain: Chain,
    /// What of its bytes is known to be in storage as it is ([`crate::changed`]).
    pub in_storage: Sectors,
}

impl Trace {
    /// Of a page as of `lsn` that storage has.
    pub fn saved(lsn: Lsn) -> Self {
        Self { lsn, ..Self::default() }
    }

    /// Whether storage lacks changes of the page.
    pub fn is_dirty(&self) -> bool {
        self.rec != Lsn::ZERO
    }
}

/// A page as `read` found it.
pub(crate) struct Fetched {
    pub bytes: Box<[u8]>,
    pub read: PageRead,
    /// Whether storage was asked.
    pub from_storage: bool,
    pub trace: Trace,
}

/// A copy of a page on its way down.
pub(crate) struct Outgoing {
    pub page: PageId,
    pub lsn: Lsn,
    pub bytes: Box<[u8]>,
}

/// What has to happen before a page may leave its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionStep {
    /// Nothing.
    Free,
    /// The lower tier gets its newest state.
    Push,
    /// Storage gets it.
    Save,
}

/// See the module.
pub(crate) trait Lower: Send + Sync {
    /// The newest state of `page`, which no other frame holds.
    fn read(&self, page: PageId, hint: Hint) -> Result<Fetched>;

    /// As `read`, of pages that were asked for together; in their order.
    fn read_many(&self, pages: &[PageId], hint: Hint) -> Vec<Result<Fetched>>;

    /// `page` is in a frame from now on. May wait; holds nothing up but the calling thread.
    fn enter(&self, page: PageId) {
        let _ = page;
    }

    /// `page` is about to leave its frame. `asked`: it was asked for there, not merely passed by.
    fn leave(&self, page: PageId, asked: bool) {
        let _ = (page, asked);
    }

    /// What has to happen before `page` leaves its frame. `wanted`: it was asked for, not merely passed by.
    fn way_out(&self, page: PageId, trace: &Trace, wanted: bool) -> EvictionStep {
        let _ = (page, wanted);
        if trace.is_dirty() {
            EvictionStep::Save
        } else {
            EvictionStep::Free
        }
    }

    /// Whether `page` may leave its frame as it is; if so, what it leaves behind is noted.
    fn let_go(&self, page: PageId, trace: &Trace) -> bool {
        let _ = page;
        !trace.is_dirty()
    }

    /// Takes the newest state of pages. A failure is not the caller's: the pages stay where they are.
    fn push(&self, pages: Vec<Outgoing>) {
        drop(pages);
    }

    /// Called before storage gets `pages`.
    ///
    /// # Errors
    /// Storage must not get them.
    fn before_save(&self, pages: &[PageWrite<'_>]) -> Result<()> {
        let _ = pages;
        Ok(())
    }

    /// Storage has `page` as of `lsn`, which is its newest state if `all`.
    fn saved(&self, page: PageId, lsn: Lsn, all: bool) {
        let _ = (page, lsn, all);
    }

    /// Forgets pages that are given up. Says whether a frame may have got one from here meanwhile.
    fn forget(&self, space: u32, pages: Range<u32>) -> bool {
        let _ = (space, pages);
        false
    }

    /// At or below every change of pages in here that storage lacks, if there is one.
    fn oldest_unsaved(&self) -> Option<Lsn> {
        None
    }

    /// At most `most` pages in no frame that have such a change from before `before`; oldest first.
    fn unsaved_before(&self, before: Lsn, most: usize) -> Vec<PageId> {
        let _ = (before, most);
        Vec::new()
    }

    /// Whether pages are ever to be written to storage so that others can have their places here.
    fn needs_cleaning(&self) -> bool {
        false
    }

    /// Whether it is time to ask [`Lower::next_to_clean`].
    fn wants_cleaning(&self) -> bool {
        false
    }

    /// Pages in no frame that storage is to get now, at most `most`: then their places here may go to others. None
    /// while enough places are ready to be given.
    fn next_to_clean(&self, most: usize) -> Vec<PageId> {
        let _ = most;
        Vec::new()
    }

    /// Whether `page` is one that storage lacks changes of, as far as this tier knows.
    fn is_unsaved(&self, page: PageId) -> bool {
        let _ = page;
        false
    }

    /// Recovery could not be carried through with what this tier had kept: it forgets all of it. Says whether there was
    /// anything.
    fn forsake(&self) -> bool {
        false
    }

    /// The log has been replayed over what this tier had kept.
    fn replayed(&self) {}

    /// The incarnation of this start, if the tier has told it to another process.
    fn incarnation(&self) -> Option<u128> {
        None
    }

    /// Whether other servers read what the tier has: it is told of changes then ([`Lower::changed`]).
    fn has_readers(&self) -> bool {
        false
    }

    /// Pages, each in a frame that is being written from by no other thread, have changed up to these LSNs: when this
    /// returns no other server takes an older copy for the newest any more.
    fn changed(&self, pages: &[(PageId, Lsn)]) {
        let _ = pages;
    }

    /// Slots that pages in frames may have beside those that leave them.
    fn room_for_frames(&self) -> usize {
        0
    }

    /// Whether a page in a frame has no copy.
    fn lacks_copy(&self, page: PageId) -> bool {
        let _ = page;
        false
    }

    /// All changes up to `to` were told by [`Lower::changed`].
    fn told_changes(&self, to: Lsn) {
        let _ = to;
    }

    /// Readers have used these pages, and had to ask for them. Returns those that no frame has and other servers could
    /// have from here, and have not.
    fn used_by_readers(&self, pages: &[PageId]) -> Vec<PageId> {
        let _ = pages;
        Vec::new()
    }

    /// A reader is being moved on: before the move's end.
    fn moving(&self, changes: &Changes) {
        let _ = changes;
    }

    /// What a reader's tier knows of changes, for the tier of the server that its process becomes.
    fn known_changes(&self) -> Option<KnownChanges> {
        None
    }

    /// Whether [`Lower::maintain`] wants to be called now and then.
    fn needs_maintenance(&self) -> bool {
        false
    }

    /// Repairs what can be repaired.
    fn maintain(&self) {}

    /// Whether [`Lower::scale`] wants to be called now and then, by a thread of its own.
    fn scales(&self) -> bool {
        false
    }

    /// Lets remote memory grow or shrink, if it is to; returns soon when `is_over` says so.
    fn scale(&self, is_over: &dyn Fn() -> bool) {
        let _ = is_over;
    }

    /// How large remote memory is to be.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it has one size.
    fn set_remote_size(&self, size: RemoteSize) -> Result<()> {
        let _ = size;
        Err(Error::Invalid(
            "there is no remote memory that grows and shrinks: set its greatest size (memory_max)".into(),
        ))
    }

    /// The parts of remote memory.
    fn remote_parts(&self) -> Vec<RemotePart> {
        Vec::new()
    }

    /// What contradicts itself.
    fn check(&self, problems: &mut Vec<String>) {
        let _ = problems;
    }

    /// Figures of the tier between frames and storage, if there is one.
    fn stats(&self) -> Option<TierStats> {
        None
    }

    /// Figures of the server's frames that a reader of its pod reads, if this does.
    fn pod_stats(&self) -> Option<PodStats> {
        None
    }
}

/// What was found of `pages`, and of the others what `below` reads, in its order; in the order of `pages`.
pub(crate) fn with_below(
    pages: &[PageId],
    found: Vec<Option<Fetched>>,
    below: impl FnOnce(&[PageId]) -> Vec<Result<Fetched>>,
) -> Vec<Result<Fetched>> {
    assert!(found.len() == pages.len(), "each page was looked for");
    let missing = pages.iter().zip(&found).filter(|(_, found)| found.is_none());
    let missing: Vec<PageId> = missing.map(|(page, _)| *page).collect();
    let mut below = below(&missing).into_iter();
    let each = found.into_iter();
    each.map(|found| found.map_or_else(|| below.next().expect("each page is read"), Ok))
        .collect()
}

/// Nothing between frames and storage.
pub(crate) struct OnlyStorage(pub Arc<Storage>);

impl Lower for OnlyStorage {
    fn read(&self, page: PageId, _: Hint) -> Result<Fetched> {
        read_storage(&self.0, page)
    }

    fn read_many(&self, pages: &[PageId], _: Hint) -> Vec<Result<Fetched>> {
        read_storage_many(&self.0, pages)
    }
}

/// The page as storage has it.
pub(crate) fn read_storage(storage: &Storage, page: PageId) -> Result<Fetched> {
    let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
    let read = storage.read_page(page, &mut bytes)?;
    fetched(storage, page, (bytes, read))
}

/// Pages as storage has them, read side by side; in their order.
pub(crate) fn read_storage_many(storage: &Storage, pages: &[PageId]) -> Vec<Result<Fetched>> {
    let read = storage.read_pages(pages).into_iter();
    let read = read.zip(pages).map(|(read, page)| fetched(storage, *page, read?));
    read.collect()
}

fn fetched(storage: &Storage, page: PageId, (bytes, read): (Box<[u8]>, PageRead)) -> Result<Fetched> {
    let lsn = redo::page_lsn(&bytes);
    check_not_ahead(storage, page, lsn)?;
    Ok(Fetched {
        bytes,
        read,
        from_storage: true,
        trace: Trace::saved(lsn),
    })
}

/// The other half of the write-back's assertion: nothing below the frames is ahead of the durable log.
fn check_not_ahead(storage: &Storage, page: PageId, lsn: Lsn) -> Result<()> {
    let durable = storage.durable_lsn();
    if lsn > durable {
        return Err(Error::corrupt(format!(
            "page {page} in storage has LSN {lsn}, beyond the durable log, which ends at {durable}"
        )));
    }
    Ok(())
}
