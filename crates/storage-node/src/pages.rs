//! The pages of a node, which it makes of the redo that its Raft log has: read at a position of the log, merged into
//! files behind.
//!
//! ```text
//!   committed entries ──▶ Ingest ──▶ groups ──▶ pending redo, by page ──▶ read: stored page + pending records
//!   (Raft log, cursor)                              │ oldest first
//!                                                   ▼
//!                                                 merge ──▶ PageStore (files, double-write) ──▶ checkpoint: entry
//! ```
//!
//! PolarDB Serverless sends redo to the leader of a page chunk, which replicates it again (section 3.4). Here each node
//! has the log already, by the one replication that made the commit durable: no record travels twice.
//!
//! Invariants:
//! - `pending` has every record above the stored page's LSN, in order; a record leaves it when the page that has it is
//!   durable in its file;
//! - a page is read from `pending` first and from its file after that: what was merged meanwhile is in the file, and its
//!   records are passed over by their LSN;
//! - the checkpoint is an entry with whole groups up to it, all merged, and the state as of that entry.
//!
//! Lock order: `merging`, then `index`. No file is read or written under `index`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use cenote_base::page_io::{PageRead, PageWrite, Sectors};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Condvar, HashMap, Mutex, Nanos};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_storage::control::database_of;
use cenote_storage::nodes::{Anew, Changes, LogEnd, Moment, PageAnswer, SpaceExtent};
use cenote_storage::pages::BATCH;
use cenote_storage::redo::{self, GroupRef};
use cenote_storage::{OwnedRecord, PageStore};

use crate::machine::{Machine, Outcome};
use history::History;
use versions::{FIRST, Kept, Versions};

pub(crate) use lacking::{Lacking, Put};

mod history;
mod kept;
mod lacking;
mod versions;

/// How long a read waits for the redo that it wants.
const READ_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Between two tries where the disk is full.
const FULL_TURN: Nanos = Nanos::from_millis(200);
/// Entries between two states to which the checkpoint may come.
const MARK_EVERY: u64 = 64;
const MARKS_MAX: usize = 64;
/// Pages taken from other nodes between two notes of how far that has come.
const NOTE_EVERY: u64 = 1024;
/// Changed pages and spaces that one answer tells at most.
pub(crate) const CHANGES_MAX: usize = 32 << 10;
/// Bytes of a pending record beside its own.
const RECORD_COST: usize = 96;

/// See the module.
pub(crate) struct Pages {
    store: PageStore,
    versions: Versions,
    index: Mutex<Index>,
    /// Something was ingested, merged, or the node ends.
    changed: Condvar,
    /// Held by the one thread that merges.
    merging: Mutex<()>,
    /// What was saved last.
    last: Mutex<Saved>,
    limits: Limits,
    closing: AtomicBool,
}

/// How much redo may be pending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of records in memory at most; ingestion waits then.
    pub memory: usize,
    /// Bytes of the log behind the checkpoint, from which on pages are merged.
    pub log: u64,
}

/// A page from another node, at least as of a position.
pub(crate) type OtherCopy<'a> = dyn Fn(PageId, Lsn) -> Result<Box<[u8]>> + 'a;

#[derive(Default)]
struct Index {
    pending: HashMap<PageId, Vec<Arc<OwnedRecord>>>,
    /// Position of the oldest pending record of each page.
    by_age: BTreeMap<(Lsn, PageId), ()>,
    bytes: usize,
    /// Pages of each space, at least.
    spaces: BTreeMap<u32, u32>,
    /// Whole groups up to here are in.
    ingested: Lsn,
    /// The last entry that is in, and states as of some entries, to which the checkpoint may come.
    entry: (u64, u64),
    marks: VecDeque<Checkpoint>,
    saved: u64,
    /// Pages that other nodes have yet, and how many there were, once that is known.
    lacking: Option<Lacking>,
    extents: Option<BTreeMap<u32, u32>>,
    /// The others may have given pages as of entries up to this one, once that is known.
    given_up_to: Option<u64>,
    /// What the last entries have changed, and the database as of the last one.
    history: History,
    control: Option<Arc<[u8]>>,
    database: u128,
    /// Which start has the database, as of the last entry.
    epoch: u64,
    log: Option<LogEnd>,
    /// Spaces that an entry drops which is not in yet: their files may be those of the next space of that number.
    dropped: BTreeSet<u32>,
    /// The snapshots that this node has, by number; and the last one that the entries up to here have made.
    kept: BTreeMap<u64, Arc<Kept>>,
    last_snapshot: u64,
    /// A space whose file goes to the snapshots just now.
    leaving: Option<u32>,
    /// Snapshots were dropped, and what only they needed is there yet: where that is looked for next.
    untidy: Option<(PageId, Lsn)>,
    /// Snapshots that were dropped since the start.
    drops: u64,
    /// It is looked for when entries behind this are in.
    tidy_behind: Lsn,
}

/// A state as of an entry, with all redo up to it merged.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    /// Index and term.
    pub entry: (u64, u64),
    pub machine: Machine,
}

/// What a node saves of its pages.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub checkpoint: Checkpoint,
    /// Pages that are not here, though the state says so.
    pub lacking: Option<Lacking>,
}

impl Pages {
    /// Opens the files, which hold at least what `saved` says. `redo` is as of [`PageStore::open`].
    ///
    /// # Errors
    /// Those of [`PageStore::open`].
    pub fn open(
        dir: &Path,
        identity: u128,
        saved: &Saved,
        limits: Limits,
        redo: &mut cenote_storage::pages::Redo<'_>,
    ) -> Result<Pages> {
        let (store, report) = PageStore::open(dir, identity, None, redo)?;
        let (versions, damage) = Versions::open(dir)?;
        report
            .remarks()
            .iter()
            .for_each(|remark| eprintln!("cenote storage: {remark}"));
        let checkpoint = &saved.checkpoint;
        let mut index = Index {
            ingested: checkpoint.machine.log().end,
            entry: checkpoint.entry,
            saved: checkpoint.entry.0,
            lacking: saved.lacking.clone(),
            history: History::new(checkpoint.entry.0),
            control: checkpoint.machine.control().cloned(),
            database: checkpoint.machine.control().map_or(0, |slot| database_of(slot)),
            epoch: checkpoint.machine.epoch(),
            log: Some(checkpoint.machine.log()),
            last_snapshot: checkpoint.machine.snapshots().last(),
            untidy: Some(FIRST),
            ..Index::default()
        };
        // One whose file is not there was dropped by a later entry, which comes again. Its redo is not taken in until
        // then: nothing could merge it, and it might take all the room that the entry waits for.
        for space in checkpoint.machine.spaces().filter(|space| store.has_space(*space)) {
            index.spaces.insert(space, store.page_count(space)?);
        }
        index.kept = versions.kept(damage, checkpoint.machine.snapshots())?;
        Ok(Pages {
            store,
            versions,
            index: Mutex::new(index),
            changed: Condvar::default(),
            merging: Mutex::new(()),
            last: Mutex::new(saved.clone()),
            limits,
            closing: AtomicBool::new(false),
        })
    }

    /// The spaces of a checkpoint of which there is no file.
    pub fn missing_spaces(&self, checkpoint: &Checkpoint) -> Vec<u32> {
        let spaces = checkpoint.machine.spaces();
        spaces.filter(|space| !self.store.has_space(*space)).collect()
    }

    /// Notes the spaces that entries drop which come yet.
    pub fn set_dropped(&self, dropped: BTreeSet<u32>) {
        self.index.lock().dropped = dropped;
    }

    // ---- redo that comes ----

    /// Takes what an entry did to the state that is in `machine` now.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for redo that is none; an I/O error. The node cannot go on then.
    pub fn ingest(&self, entry: (u64, u64), outcome: &Outcome, machine: &Machine) -> Result<()> {
        let end = machine.log().end;
        match outcome {
            Outcome::Appended { at, groups } => self.ingest_groups((entry.0, end), *at, groups)?,
            Outcome::SpaceMade(space) => self.make_space(*space)?,
            Outcome::SpaceDropped(space) => self.with_room(|| self.drop_space(*space, end))?,
            Outcome::SnapshotMade(number) => self.with_room(|| self.keep(*number, end))?,
            Outcome::SnapshotDropped(number) => self.forget(*number)?,
            _ => {}
        }
        let mut index = self.index.lock();
        match outcome {
            Outcome::SpaceMade(space) => index.history.note_space(entry.0, end, *space, true),
            Outcome::SpaceDropped(space) => index.history.note_space(entry.0, end, *space, false),
            Outcome::Taken { .. } => index.history.note_taken(entry.0, end),
            _ => {}
        }
        index.entry = entry;
        index.ingested = end;
        index.note_control(machine.control());
        index.epoch = machine.epoch();
        index.log = Some(machine.log());
        let last = index.marks.back().map_or(index.saved, |mark| mark.entry.0);
        if machine.is_whole() && entry.0 >= last + MARK_EVERY && index.marks.len() < MARKS_MAX {
            let machine = machine.clone();
            index.marks.push_back(Checkpoint { entry, machine });
        }
        drop(index);
        self.changed.notify_all();
        Ok(())
    }

    fn ingest_groups(&self, (entry, end): (u64, Lsn), start: Lsn, groups: &[u8]) -> Result<()> {
        let records = records_of(start, groups)?;
        let mut index = self.index.lock();
        index.history.note_records(entry, end, &records);
        records.into_iter().for_each(|record| index.add(record));
        Ok(())
    }

    fn make_space(&self, space: u32) -> Result<()> {
        // A node that did this before it ended does it again; what came later is in the log.
        if !self.store.has_space(space) {
            self.store.create_space(space)?;
        }
        self.index.lock().spaces.insert(space, 0);
        Ok(())
    }

    fn drop_space(&self, space: u32, at: Lsn) -> Result<()> {
        // Nothing of it is written from here on.
        let _alone = self.merging.lock();
        let kept_as = self.save_dropped(space, at)?;
        {
            let mut index = self.index.lock();
            index.leaving = Some(space);
            index.spaces.remove(&space);
            index.dropped.remove(&space);
            index.forget_space(space);
            if let Some(lacking) = &mut index.lacking {
                lacking.spaces.remove(&space);
            }
        }
        let left = match kept_as {
            Some(path) => {
                let retired = self.store.retire_space(space, &path);
                retired.and_then(|()| self.versions.note_retired(space, at))
            }
            None => self.store.drop_space(space),
        };
        self.index.lock().leaving = None;
        self.changed.notify_all();
        left
    }

    /// Does it again while the disk has no room for it, until the node ends.
    fn with_room(&self, mut body: impl FnMut() -> Result<()>) -> Result<()> {
        loop {
            match body() {
                Err(Error::Full(_)) if !self.is_closing() => rt::sleep(FULL_TURN),
                done => return done,
            }
        }
    }

    /// Waits until there is room for redo; false if the node ends.
    pub fn wait_for_room(&self) -> bool {
        let mut index = self.index.lock();
        while index.bytes > self.limits.memory && !self.is_closing() {
            index = self.changed.wait_timeout(index, Nanos::from_millis(100)).0;
        }
        !self.is_closing()
    }

    // ---- reading ----

    /// Pages in their newest state, each at least as of its position, and all as of `entry`.
    pub fn read(&self, entry: u64, wanted: &[(PageId, Lsn)]) -> Vec<PageAnswer> {
        let lsn = wanted.iter().map(|(_, lsn)| *lsn).max().unwrap_or(Lsn::ZERO);
        if let Err(error) = self.wait_ingested(entry, lsn) {
            return wanted.iter().map(|_| Err(error.clone())).collect();
        }
        wanted.iter().map(|(id, _)| self.read_one(*id)).collect()
    }

    fn wait_ingested(&self, entry: u64, lsn: Lsn) -> Result<()> {
        let until = rt::now() + READ_TIMEOUT;
        let mut index = self.index.lock();
        while (index.ingested < lsn || index.entry.0 < entry) && !planted(Fault::PageEarly) {
            let left = until.since(rt::now());
            if left == Nanos::ZERO || self.is_closing() {
                return Err(Error::Timeout(format!(
                    "this storage node has redo up to {}, of entry {}, and {lsn} of entry {entry} is asked for",
                    index.ingested, index.entry.0
                )));
            }
            index = self.changed.wait_timeout(index, left).0;
        }
        Ok(())
    }

    fn read_one(&self, id: PageId) -> PageAnswer {
        let (records, lacks) = {
            let index = self.index.lock();
            if !index.spaces.contains_key(&id.space) {
                return Err(Error::Invalid(format!("there is no space {}", id.space)));
            }
            (index.pending.get(&id).cloned().unwrap_or_default(), index.lacks(id))
        };
        match self.build(id, &records, lacks) {
            // The space is there as far as this node has come: another has come further.
            Err(Error::Invalid(why)) => Err(Error::Timeout(why)),
            built => built,
        }
    }

    /// Pages as of a moment, neither older nor newer.
    pub fn read_at(&self, at: Moment, wanted: &[PageId]) -> Vec<PageAnswer> {
        if planted(Fault::PageTooNew) {
            let newest: Vec<(PageId, Lsn)> = wanted.iter().map(|id| (*id, at.end)).collect();
            return self.read(at.entry, &newest);
        }
        if let Err(error) = self.wait_ingested(at.entry, at.end) {
            return wanted.iter().map(|_| Err(error.clone())).collect();
        }
        wanted.iter().map(|id| self.read_one_at(*id, at.end)).collect()
    }

    fn read_one_at(&self, id: PageId, at: Lsn) -> PageAnswer {
        let (mut records, lacks, end) = {
            let index = self.index.lock();
            if index.dropped.contains(&id.space) {
                return Err(Error::Timeout(format!(
                    "space {} is being dropped here again",
                    id.space
                )));
            }
            let records = index.pending.get(&id).cloned().unwrap_or_default();
            let is_there = index.spaces.contains_key(&id.space);
            (is_there.then_some(records), index.lacks(id), index.ingested)
        };
        let Some(records) = &mut records else {
            // It was dropped since, or there never was one.
            return Err(match end > at {
                true => Error::Ahead(end),
                false => Error::Past(format!("space {} is not kept any more", id.space)),
            });
        };
        // Nothing from before an image is kept.
        if let Some(image) = records
            .first()
            .map(|first| first.get())
            .filter(|first| first.is_base && first.lsn > at)
        {
            return Err(Error::Ahead(image.lsn));
        }
        records.retain(|record| record.get().lsn <= at);
        match self.build(id, records, lacks) {
            Err(Error::Invalid(why)) => Err(Error::Timeout(why)),
            Ok((page, PageRead::Present)) if redo::page_lsn(&page) > at => Err(Error::Ahead(redo::page_lsn(&page))),
            built => built,
        }
    }

    /// What has changed since a moment; waits a while for something.
    ///
    /// # Errors
    /// [`Error::Timeout`] if this node has not come that far, or lacks pages where all are asked for;
    /// [`Error::Mismatch`] if there is no database.
    pub fn changes(&self, since: Option<Moment>, wait: Nanos) -> Result<Changes> {
        let Some(since) = since else {
            return self.index.lock().anew();
        };
        self.wait_ingested(since.entry, since.end)?;
        let until = rt::now() + wait;
        let mut index = self.index.lock();
        while !index.history.has_news(since.entry) && !self.is_closing() {
            let left = until.since(rt::now());
            if left == Nanos::ZERO {
                break;
            }
            index = self.changed.wait_timeout(index, left).0;
        }
        index.changes(since)
    }

    /// The page as `records`, which are all that were pending, make it of what is stored, unless that `lacks`.
    fn build(&self, id: PageId, records: &[Arc<OwnedRecord>], lacks: bool) -> PageAnswer {
        // What is before an image is pending for snapshots.
        let image = records.iter().rposition(|record| record.get().is_base);
        let records = &records[image.unwrap_or(0)..];
        let mut page = vec![0; PAGE_SIZE].into_boxed_slice();
        let mut read = match self.store.has_space(id.space) {
            true if lacks && !planted(Fault::LackingRead) => Err(lacking::not_here(id)),
            true => self.store.read_stable(id, &mut page),
            false => Err(Error::corrupt(format!("the file of space {} is missing", id.space))),
        };
        if read.is_err() && records.first().is_some_and(|record| record.get().is_base) {
            // Redo makes it from nothing.
            page.fill(0);
            read = Ok(PageRead::NeverWritten);
        }
        let mut read = read?;
        if read == PageRead::NeverWritten && records.first().is_some_and(|record| !record.get().is_base) {
            return Err(self.unfounded(id));
        }
        // After a start this may be above records that come again.
        let stored = redo::page_lsn(&page);
        for record in records {
            let record = record.get();
            if record.lsn > stored {
                redo::apply(&mut page, &record)?;
                read = PageRead::Present;
            }
        }
        if read != PageRead::NeverWritten {
            redo::set_page_checksum(&mut page);
        }
        Ok((page, read))
    }

    /// Redo that is for a page which is not there. Its base was merged, so the file is that of a later space of this
    /// number, which this node has made before it ended: all of it is in the log, and comes again.
    fn unfounded(&self, id: PageId) -> Error {
        match self.index.lock().dropped.contains(&id.space) {
            true => Error::Invalid(format!(
                "space {} is dropped, and this node has not come to that",
                id.space
            )),
            false => Error::corrupt(format!("page {id} is not in its file, and its redo needs it")),
        }
    }

    /// The spaces as of an entry, and what the log up to there has made of them.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn spaces(&self, entry: u64) -> Result<Vec<SpaceExtent>> {
        self.wait_ingested(entry, Lsn::ZERO)?;
        if let Some(page) = self.index.lock().lacking.as_ref().map(|lacking| lacking.next) {
            return Err(lacking::not_here(page));
        }
        Ok(self.index.lock().extents())
    }

    // ---- merging ----

    /// Whether pages should be merged: redo takes up memory, or keeps the log from being cut. `log` is its bytes.
    pub fn wants_merge(&self, log: u64) -> bool {
        let index = self.index.lock();
        index.bytes > self.limits.memory / 2 || log > self.limits.log && !index.pending.is_empty()
    }

    /// Merges the pages whose redo is oldest, a batch of them; how many. `other_copy` gives a page that is damaged here,
    /// at least as of a position.
    ///
    /// # Errors
    /// Those of [`PageStore::write_changes`], after which the node cannot go on.
    pub fn merge(&self, other_copy: &OtherCopy<'_>) -> Result<usize> {
        let _alone = self.merging.lock();
        let picked = {
            let index = self.index.lock();
            // A start that takes in redo again may be before the entry that dropped a space: its redo goes with that.
            let is_there = |space: u32| self.store.has_space(space);
            index.oldest(BATCH, &is_there)
        };
        let (mut built, mut gone) = (Vec::with_capacity(picked.len()), Vec::new());
        self.save_versions(&picked)?;
        for (id, records) in &picked {
            let last = records.last().map_or(Lsn::ZERO, |record| record.get().lsn);
            let lacks = self.index.lock().lacks(*id);
            match self.build(*id, records, lacks) {
                Err(Error::Invalid(_)) => gone.push(*id),
                // It is lacking.
                Err(Error::Timeout(_)) => {}
                Err(Error::Corrupt(_)) => match other_copy(*id, last) {
                    // The others have dropped its space, and this node comes to that entry, too.
                    Err(Error::Invalid(_)) => gone.push(*id),
                    // It is left for later, and the log with it.
                    Err(Error::Timeout(_) | Error::Lost(_) | Error::Busy(_) | Error::Corrupt(_)) => {}
                    copy => built.push((*id, copy?)),
                },
                page => built.push((*id, page?.0)),
            }
        }
        let writes = built.iter().map(|(id, bytes)| PageWrite {
            id: *id,
            bytes,
            changed: Sectors::WHOLE,
        });
        self.store.write_changes(&writes.collect::<Vec<_>>())?;
        let mut index = self.index.lock();
        for (id, page) in &built {
            index.merged(*id, redo::page_lsn(page));
        }
        let done = built.len() + gone.len();
        gone.into_iter().for_each(|id| index.remove(id));
        drop(index);
        self.changed.notify_all();
        Ok(done)
    }

    /// What is to be saved: the last state of which all redo is merged, if it is beyond the one that was saved before;
    /// or that one again, where pages have come since.
    pub fn to_save(&self) -> Option<Saved> {
        let mut saved = self.last.lock().clone();
        let mut index = self.index.lock();
        let checkpoint = index.next_checkpoint();
        let is_news = match (&saved.lacking, &index.lacking) {
            (Some(before), Some(now)) => {
                before.is_begun != now.is_begun
                    || before.next.space != now.next.space
                    || u64::from(now.next.page - before.next.page) >= NOTE_EVERY
            }
            (before, now) => before.is_some() != now.is_some(),
        };
        if checkpoint.is_none() && !is_news {
            return None;
        }
        saved.lacking = index.lacking.clone();
        if let Some(checkpoint) = checkpoint {
            saved.checkpoint = checkpoint;
        }
        Some(saved)
    }

    /// It was saved.
    pub fn note_saved(&self, saved: Saved) {
        *self.last.lock() = saved;
    }

    // ---- the rest ----

    pub fn bytes_on_disk(&self) -> u64 {
        self.store.bytes_on_disk().unwrap_or(0)
    }

    /// Bytes that snapshots take beside those.
    pub fn bytes_of_snapshots(&self) -> u64 {
        self.versions.bytes()
    }

    /// Position up to which redo is in, bytes that are pending, and the entry of the last checkpoint.
    pub fn progress(&self) -> (Lsn, usize, u64) {
        let index = self.index.lock();
        (index.ingested, index.bytes, index.saved)
    }

    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

impl Index {
    fn note_control(&mut self, control: Option<&Arc<[u8]>>) {
        let is_same = |(before, now): (&Arc<[u8]>, &Arc<[u8]>)| Arc::ptr_eq(before, now);
        if !self.control.as_ref().zip(control).is_some_and(is_same) {
            self.database = control.map_or(0, |slot| database_of(slot));
            self.control = control.cloned();
        }
    }

    fn moment(&self) -> Moment {
        Moment {
            entry: self.entry.0,
            end: self.ingested,
        }
    }

    /// What has changed since a moment, to which this node has come.
    fn changes(&self, since: Moment) -> Result<Changes> {
        let Some(sum) = self.history.behind(since.entry, CHANGES_MAX) else {
            return self.anew();
        };
        Ok(Changes {
            database: self.database,
            to: sum.cut_at.unwrap_or(self.moment()),
            epoch: self.epoch,
            pages: sum.pages.into_iter().collect(),
            spaces: sum.spaces,
            anew: None,
        })
    }

    /// The database as of now.
    fn anew(&self) -> Result<Changes> {
        if let Some(page) = self.lacking.as_ref().map(|lacking| lacking.next) {
            return Err(lacking::not_here(page));
        }
        let (Some(control), Some(log)) = (&self.control, self.log) else {
            // Another one may have come to it.
            return Err(Error::Mismatch("the storage nodes have no database yet".into()));
        };
        Ok(Changes {
            database: self.database,
            to: self.moment(),
            epoch: self.epoch,
            pages: Vec::new(),
            spaces: Vec::new(),
            anew: Some(Anew {
                control: control.to_vec(),
                log,
                spaces: self.extents(),
            }),
        })
    }

    fn extents(&self) -> Vec<SpaceExtent> {
        let extent = |(space, pages): (&u32, &u32)| SpaceExtent {
            space: *space,
            pages: *pages,
        };
        self.spaces.iter().map(extent).collect()
    }

    /// The last state of which all redo is merged, if it is beyond the one before.
    fn next_checkpoint(&mut self) -> Option<Checkpoint> {
        let mut oldest = self.by_age.keys().next().map_or(Lsn::MAX, |(at, _)| *at);
        if planted(Fault::MergeAhead) {
            oldest = Lsn::MAX;
        }
        let mut found = None;
        while self.marks.front().is_some_and(|mark| mark.machine.log().end <= oldest) {
            found = self.marks.pop_front();
        }
        if let Some(found) = &found {
            self.saved = found.entry.0;
        }
        found
    }

    fn add(&mut self, record: OwnedRecord) {
        let (page, is_base, at) = {
            let record = record.get();
            (record.page, record.is_base, record.address.position())
        };
        // Redo of a space that was dropped, which its transaction did not know yet.
        let Some(pages) = self.spaces.get_mut(&page.space) else {
            return;
        };
        *pages = (*pages).max(page.page.saturating_add(1));
        let is_needed = |first: &Arc<OwnedRecord>| self.kept.values().any(|kept| kept.end >= first.get().lsn);
        let first = self.pending.get(&page).and_then(|there| there.first());
        if is_base && (planted(Fault::ImageForgets) || !first.is_some_and(is_needed)) {
            self.remove(page);
        }
        self.bytes += cost(&record);
        let records = self.pending.entry(page).or_default();
        if records.is_empty() {
            self.by_age.insert((at, page), ());
        }
        records.push(Arc::new(record));
    }

    /// Forgets what is pending of a page.
    fn remove(&mut self, page: PageId) {
        let Some(records) = self.pending.remove(&page) else {
            return;
        };
        let first = records.first().map(|record| record.get().address.position());
        self.by_age.remove(&(first.unwrap_or(Lsn::ZERO), page));
        self.bytes -= records.iter().map(|record| cost(record)).sum::<usize>();
    }

    fn forget_space(&mut self, space: u32) {
        let of_space: Vec<PageId> = self
            .pending
            .keys()
            .filter(|page| page.space == space)
            .copied()
            .collect();
        of_space.into_iter().for_each(|page| self.remove(page));
    }

    /// The pages whose pending redo is oldest, of spaces that are there. One that is lacking waits until it has come,
    /// unless redo makes it from nothing.
    fn oldest(&self, count: usize, is_there: &dyn Fn(u32) -> bool) -> Vec<(PageId, Vec<Arc<OwnedRecord>>)> {
        let pages = self.by_age.keys().map(|(_, page)| *page);
        let there = pages.filter(|page| is_there(page.space));
        let known = there.filter_map(|page| Some((page, self.pending.get(&page)?)));
        let is_made_here = |records: &[Arc<OwnedRecord>]| records.first().is_some_and(|first| first.get().is_base);
        let can = known.filter(|(page, records)| !self.lacks(*page) || is_made_here(records));
        can.take(count).map(|(page, records)| (page, records.clone())).collect()
    }

    /// A page is stored as of `lsn`.
    fn merged(&mut self, page: PageId, lsn: Lsn) {
        let Some(records) = self.pending.get(&page).cloned() else {
            return;
        };
        self.remove(page);
        let rest: Vec<_> = records.into_iter().filter(|record| record.get().lsn > lsn).collect();
        if let Some(first) = rest.first() {
            self.by_age.insert((first.get().address.position(), page), ());
            self.bytes += rest.iter().map(|record| cost(record)).sum::<usize>();
            self.pending.insert(page, rest);
        }
    }
}

/// The records of whole groups that begin at `start`.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that are no groups.
pub(crate) fn records_of(start: Lsn, groups: &[u8]) -> Result<Vec<OwnedRecord>> {
    let (mut at, mut found) = (start, Vec::new());
    while at < start.advance(groups.len() as u64) {
        let group = GroupRef::parse(&groups[at.since(start) as usize..], at)?;
        for record in group.records() {
            found.push(OwnedRecord::copy(&record?));
        }
        at = group.end();
    }
    Ok(found)
}

fn cost(record: &OwnedRecord) -> usize {
    record.get().bytes().len() + RECORD_COST
}
