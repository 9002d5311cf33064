//! Snapshots as a node has them: the pages as of positions of the log, of which only those are kept apart that have
//! changed since.
//!
//! ```text
//!  page as of a snapshot:  its space was dropped since?  ── yes ─▶ a version, else the file that was kept
//!                             │ no
//!                             ▼
//!                          stored page no later, with pending redo up to there   ─ else ─▶ a version
//! ```
//!
//! A merge saves the versions that snapshots lose by it before it writes pages; so does the drop of a space, whose file
//! is kept under another name. So a snapshot costs nothing when it is made, and a page no more than once for each state
//! of it that snapshots have.
//!
//! A node that was given a state has none of the snapshots from before, and none that is made while it takes its pages:
//! they come as of later, or their space is dropped already where they come from. Others answer.
//!
//! Invariants:
//! - of each page of a snapshot that this node has, there is a version, or its file is no later than the snapshot;
//! - redo that a snapshot needs is pending until its version is durable, also where an image follows;
//! - what takes in redo again, after a start, meets the snapshots between it in the same order.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::rt;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_storage::OwnedRecord;
use cenote_storage::nodes::{PageAnswer, SpaceExtent};
use cenote_storage::pages::BATCH;
use cenote_storage::redo;

use super::versions::{FIRST, Kept, Save, not_kept};
use super::{Pages, READ_TIMEOUT};

/// Times that a page is looked for while merges move it, or its space is being dropped.
const TURNS: usize = 8;

impl Pages {
    // ---- snapshots come and go ----

    /// The database as of here is snapshot `number`.
    pub(super) fn keep(&self, number: u64, end: Lsn) -> Result<()> {
        // Whether pages are lacking stays as it is.
        let _alone = self.merging.lock();
        let (spaces, is_lacking) = {
            let index = self.index.lock();
            (index.spaces.clone(), index.lacking.is_some())
        };
        let is_here = number > self.versions.since() && !is_lacking;
        if is_here {
            // One that was noted before a start knows spaces that were dropped since.
            let spaces = match self.versions.spaces_of(number)? {
                Some(noted) => noted,
                None => {
                    self.versions.note_spaces(number, &spaces)?;
                    spaces
                }
            };
            self.index.lock().kept.insert(number, Arc::new(Kept { end, spaces }));
        } else if is_lacking && number > self.versions.since() {
            self.versions.begin_after(number)?;
        }
        self.index.lock().last_snapshot = number;
        Ok(())
    }

    /// Snapshot `number` is dropped.
    pub(super) fn forget(&self, number: u64) -> Result<()> {
        {
            let mut index = self.index.lock();
            index.kept.remove(&number);
            (index.untidy, index.tidy_behind) = (Some(FIRST), Lsn::ZERO);
            index.drops += 1;
        }
        self.versions.forget_spaces(number)
    }

    /// Snapshots up to this number are not here: the node was given a state.
    ///
    /// # Errors
    /// An I/O error.
    pub(super) fn begin_without_snapshots(&self) -> Result<()> {
        let last = self.index.lock().last_snapshot;
        self.index.lock().kept.clear();
        self.versions.begin_after(last)
    }

    /// The snapshots that are here.
    pub fn snapshots(&self) -> Vec<u64> {
        self.index.lock().kept.keys().copied().collect()
    }

    /// Frees some of what no snapshot needs any more; whether there is more to look at.
    ///
    /// # Errors
    /// An I/O error, after which the node cannot go on.
    pub fn tidy(&self) -> Result<bool> {
        let _alone = self.merging.lock();
        let (from, drops, before, kept) = {
            let index = self.index.lock();
            let Some(from) = index.untidy.filter(|_| index.ingested > index.tidy_behind) else {
                return Ok(false);
            };
            let kept: Vec<Arc<Kept>> = index.kept.values().cloned().collect();
            (from, index.drops, index.ingested, kept)
        };
        let ends: Vec<Lsn> = kept.iter().map(|kept| kept.end).collect();
        let next = self.versions.tidy(from, before, &ends)?;
        let mut is_left = false;
        if next.is_none() {
            // What was retired where the entries that are in end, or behind, may belong to a snapshot that comes yet.
            let needs = |space: u32, (after, at): (Lsn, Lsn)| {
                let has = |kept: &Kept| kept.spaces.contains_key(&space) && (after..=at).contains(&kept.end);
                at >= before || kept.iter().any(|kept| has(kept))
            };
            self.versions.tidy_retired(&needs)?;
            is_left = self.versions.retired_from(before);
        }
        let mut index = self.index.lock();
        // A snapshot that was dropped meanwhile has it begin again.
        if index.drops == drops {
            index.untidy = next.or(is_left.then_some(FIRST));
            index.tidy_behind = if is_left { before } else { Lsn::ZERO };
        }
        Ok(next.is_some())
    }

    // ---- pages that change ----

    /// Saves the versions that snapshots lose when these pages are merged.
    pub(super) fn save_versions(&self, picked: &[(PageId, Vec<Arc<OwnedRecord>>)]) -> Result<()> {
        let mut saves = Vec::new();
        for (id, records) in picked {
            saves.extend(self.versions_of(*id, records, None)?);
        }
        match planted(Fault::VersionUnsaved) {
            true => Ok(()),
            false => self.versions.save(&saves),
        }
    }

    /// The states of a page that snapshots have and that `records`, all that are pending of it, end; or the drop of its
    /// space does, at `dropped`.
    fn versions_of(&self, id: PageId, records: &[Arc<OwnedRecord>], dropped: Option<Lsn>) -> Result<Vec<Save>> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return Ok(Vec::new());
        };
        let (first, last) = (first.get().lsn, last.get().lsn);
        let mut ends: Vec<Lsn> = {
            let index = self.index.lock();
            let with = index.kept.values().filter(|kept| self.has_current(kept, id.space));
            with.map(|kept| kept.end).collect()
        };
        // A space that is dropped keeps its file, as of before the first of them.
        ends.retain(|end| dropped.map_or(*end < last, |_| *end >= first) && !self.versions.has(id, *end));
        ends.sort_unstable();
        ends.dedup();
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let mut page = vec![0; PAGE_SIZE];
        let is_there = match self.store.read_stable(id, &mut page) {
            Ok(read) => read != PageRead::NeverWritten,
            // Redo makes it from nothing: what snapshots have from before is with other nodes.
            Err(Error::Corrupt(_)) if records[0].get().is_base => {
                ends.retain(|end| *end >= first);
                false
            }
            // The merge finds out what becomes of it; other nodes have the version.
            Err(Error::Corrupt(_) | Error::Invalid(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        match states(id, (page, is_there), records, &ends, dropped) {
            // The merge meets it, too, and takes the page from another node. A file that is kept would be believed.
            Err(Error::Corrupt(_)) if dropped.is_none() => Ok(Vec::new()),
            made => made,
        }
    }

    /// Whether the file that a space has is the one that a snapshot has: no space of this number was dropped since,
    /// also not before a start that has not come to that again.
    fn has_current(&self, kept: &Kept, space: u32) -> bool {
        kept.spaces.contains_key(&space) && !self.versions.is_retired(space, kept.end)
    }

    /// Saves the versions that are lost with a space that is dropped at `at`; where its file is to be kept, if a
    /// snapshot has the space. With `merging` held.
    pub(super) fn save_dropped(&self, space: u32, at: Lsn) -> Result<Option<PathBuf>> {
        let (pending, is_kept) = {
            let index = self.index.lock();
            let is_kept = index.kept.values().any(|kept| self.has_current(kept, space));
            let of_space = index.pending.iter().filter(|(id, _)| id.space == space);
            let pending: Vec<(PageId, Vec<Arc<OwnedRecord>>)> = match is_kept {
                true => of_space.map(|(id, records)| (*id, records.clone())).collect(),
                false => Vec::new(),
            };
            (pending, is_kept)
        };
        if !is_kept || !self.store.has_space(space) || planted(Fault::DroppedGone) {
            return Ok(None);
        }
        for some in pending.chunks(BATCH) {
            let mut saves = Vec::new();
            for (id, records) in some {
                saves.extend(self.versions_of(*id, records, Some(at))?);
            }
            self.versions.save(&saves)?;
        }
        self.versions.retired_path(space, at).map(Some)
    }

    // ---- reading ----

    /// The spaces of a snapshot, with their pages, at least.
    ///
    /// # Errors
    /// [`Error::Past`] if it is not here; [`Error::Timeout`] if this node has not come to it.
    pub fn snapshot_spaces(&self, number: u64) -> Result<Vec<SpaceExtent>> {
        let kept = self.wait_kept(number)?;
        let extent = |(space, pages): (&u32, &u32)| SpaceExtent {
            space: *space,
            pages: *pages,
        };
        Ok(kept.spaces.iter().map(extent).collect())
    }

    /// Pages as of a snapshot.
    pub fn read_snapshot(&self, number: u64, wanted: &[PageId]) -> Vec<PageAnswer> {
        match self.wait_kept(number) {
            Ok(kept) => wanted.iter().map(|id| self.read_kept(&kept, *id)).collect(),
            Err(error) => wanted.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn wait_kept(&self, number: u64) -> Result<Arc<Kept>> {
        let until = rt::now() + READ_TIMEOUT;
        let mut index = self.index.lock();
        while index.last_snapshot < number {
            let left = until.since(rt::now());
            if left.0 == 0 || self.is_closing() {
                return Err(Error::Timeout(format!(
                    "this storage node has not come to snapshot {number}: the last that it knows is {}",
                    index.last_snapshot
                )));
            }
            index = self.changed.wait_timeout(index, left).0;
        }
        let kept = index.kept.get(&number).cloned();
        kept.ok_or_else(|| Error::Past(format!("snapshot {number} is not kept on this storage node")))
    }

    fn read_kept(&self, kept: &Kept, id: PageId) -> PageAnswer {
        match kept.spaces.get(&id.space) {
            None => {
                return Err(Error::Invalid(format!(
                    "there is no space {} in the snapshot",
                    id.space
                )));
            }
            Some(pages) if id.page >= *pages => return Ok((vec![0; PAGE_SIZE].into(), PageRead::NeverWritten)),
            Some(_) => {}
        }
        for _ in 0..TURNS {
            if let Some(found) = self.versions.find(id, kept.end) {
                return found;
            }
            if let Some(found) = self.versions.find_retired(id, kept.end) {
                return found;
            }
            let current = self.read_current(id, kept.end);
            // A space that was dropped meanwhile may have been made again.
            let is_gone =
                || self.index.lock().leaving == Some(id.space) || self.versions.is_retired(id.space, kept.end);
            if let Some(found) = current.filter(|_| !is_gone()) {
                return found;
            }
        }
        Err(not_kept(id, kept.end))
    }

    /// The page out of its file and pending redo, if those are no later; else a merge, or a drop, has made a version of
    /// it meanwhile.
    fn read_current(&self, id: PageId, at: Lsn) -> Option<PageAnswer> {
        let mut records = {
            let mut index = self.index.lock();
            while index.leaving == Some(id.space) && !self.is_closing() {
                index = self.changed.wait_timeout(index, READ_TIMEOUT).0;
            }
            if !index.spaces.contains_key(&id.space) {
                return None;
            }
            index.pending.get(&id).cloned().unwrap_or_default()
        };
        records.retain(|record| record.get().lsn <= at);
        match self.build(id, &records, false) {
            Ok((page, PageRead::Present)) if redo::page_lsn(&page) > at => None,
            // The space was dropped meanwhile.
            Err(Error::Invalid(_)) => None,
            built => Some(built),
        }
    }
}

/// The states that a page had as of each of `ends`, each once, as `records` make them of what is stored.
fn states(
    id: PageId,
    (mut page, mut is_there): (Vec<u8>, bool),
    records: &[Arc<OwnedRecord>],
    ends: &[Lsn],
    dropped: Option<Lsn>,
) -> Result<Vec<Save>> {
    let stored = if is_there { redo::page_lsn(&page) } else { Lsn::ZERO };
    let (mut saves, mut at): (Vec<Save>, usize) = (Vec::new(), 0);
    for end in ends {
        while let Some(record) = records
            .get(at)
            .map(|record| record.get())
            .filter(|record| record.lsn <= *end)
        {
            at += 1;
            if record.lsn <= stored {
                continue;
            }
            if !is_there && !record.is_base {
                // The file is that of a later space of this number: its redo comes again.
                return Ok(saves);
            }
            redo::apply(&mut page, &record)?;
            is_there = true;
        }
        let until = match (records.get(at), dropped) {
            (Some(next), _) => next.get().lsn,
            (None, Some(dropped)) => dropped.advance(1),
            (None, None) => break,
        };
        let lsn = if is_there { redo::page_lsn(&page) } else { *end };
        // What is later than the snapshot was saved before it was stored.
        if lsn > *end || saves.last().is_some_and(|last| last.until == until) {
            continue;
        }
        let mut whole = is_there.then(|| page.clone().into_boxed_slice());
        whole.iter_mut().for_each(|page| redo::set_page_checksum(page));
        saves.push(Save {
            id,
            lsn,
            until,
            page: whole,
        });
    }
    Ok(saves)
}
