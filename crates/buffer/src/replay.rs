//! Classic recovery: redo from the checkpoint on, applied to pages by their LSN (ARIES' redo).
//!
//! The log is read once, in stretches that fit a bounded amount of memory. Within a stretch, records are gathered by
//! page and pages taken in order, so that each is brought in once and storage is read forwards; several threads do so,
//! since they mostly wait for storage or remote memory ([`crate::together`]). A record is applied if it is newer than
//! the page; so replaying what is there already changes nothing, and this may be done twice, or half and then again.
//!
//! A page that storage cannot read, torn or rotten, is no error as long as a later stretch may make it anew.
//!
//! A page can be given up while the log still has records of it: purge logs it empty, waits until that is durable, and
//! drops frame and file block. A stretch that ends in between has records for a page that storage has not; a later one
//! makes it anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_storage::OwnedRecord;
use cenote_storage::redo;

use crate::chain::Chain;
use crate::hash::key_of;
use crate::lists::Hint;
use crate::pool::Pool;
use crate::report::RecoveryReport;
use crate::slots::Latched;
use crate::together::together;

/// Pages for each thread that replays, at least: to start one costs about as much as a few reads.
const PAGES_A_THREAD: usize = 4;
/// Frames for each thread that replays: it holds one at a time, and others must be left to be given up.
const FRAMES_A_THREAD: usize = 8;

/// Redo of one stretch, by page. Each record with the start of its group.
type Gathered = HashMap<PageId, Vec<(Lsn, OwnedRecord)>>;

/// Pages that storage has not got whole and no stretch so far begins, and why.
type Missing = BTreeMap<PageId, Option<Error>>;

/// What became of a page in a stretch.
enum Replayed {
    /// It had all.
    Nothing,
    /// It is newer now.
    Applied,
    /// Storage has not got it whole, and the stretch does not begin it. Why, if it has something.
    Missing(Option<Error>),
}

/// Whether one of the records makes the page, whatever it was.
fn begins(records: &[(Lsn, OwnedRecord)]) -> bool {
    records.iter().any(|(_, record)| record.get().is_base)
}

impl Pool {
    /// Replays everything from `from` on.
    pub(crate) fn replay_all(self: &Arc<Self>, from: Lsn, report: &mut RecoveryReport) -> Result<()> {
        self.replay(from, |_| true, report)
    }

    /// Replays what concerns `pages`.
    pub(crate) fn replay_pages(
        self: &Arc<Self>,
        from: Lsn,
        pages: &[PageId],
        report: &mut RecoveryReport,
    ) -> Result<()> {
        self.replay(from, |page| pages.contains(&page), report)
    }

    fn replay(
        self: &Arc<Self>,
        from: Lsn,
        concerns: impl Fn(PageId) -> bool,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let mut gathered = Gathered::default();
        let mut missing = Missing::default();
        let mut bytes = 0;
        let mut scan = self.storage.log().scan(from);
        while let Some(group) = scan.next()? {
            let start = group.start();
            for record in group.records() {
                let record = record?;
                if concerns(record.page) {
                    bytes += record.len();
                    gathered
                        .entry(record.page)
                        .or_default()
                        .push((start, OwnedRecord::copy(&record)));
                }
            }
            if bytes > self.replay_stretch {
                self.apply_gathered(&mut gathered, &mut missing, report)?;
                bytes = 0;
            }
        }
        report.redo_bytes_read += scan.position().since(from);
        self.apply_gathered(&mut gathered, &mut missing, report)?;
        match missing.pop_first() {
            None => Ok(()),
            Some((_, Some(damage))) => Err(damage),
            Some((page, None)) => Err(Error::corrupt(format!(
                "page {page} is missing from storage, and the log from the checkpoint on does not build it"
            ))),
        }
    }

    fn apply_gathered(
        self: &Arc<Self>,
        gathered: &mut Gathered,
        missing: &mut Missing,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        // A space that is gone was dropped after what the log says here.
        let there = |page: &PageId| self.storage.pages().has_space(page.space);
        let mut pages: Vec<(PageId, Vec<(Lsn, OwnedRecord)>)> =
            gathered.drain().filter(|(page, _)| there(page)).collect();
        // Records of these pages were passed over: nothing but a beginning may be built on, whatever storage says now.
        pages.retain(|(page, records)| !missing.contains_key(page) || begins(records));
        pages.sort_unstable_by_key(|(page, _)| *page);
        let pool = Arc::clone(self);
        let replay = move |(page, records): (PageId, Vec<_>)| (page, pool.replay_page(page, &records));
        let threads = self.frames.count() as usize / FRAMES_A_THREAD;
        for (page, replayed) in together(pages, PAGES_A_THREAD, threads, replay) {
            match replayed? {
                Replayed::Missing(damage) => drop(missing.insert(page, damage)),
                Replayed::Nothing => {}
                Replayed::Applied => {
                    missing.remove(&page);
                    report.pages_replayed += 1;
                }
            }
        }
        Ok(())
    }

    /// Applies what is newer than the page.
    fn replay_page(&self, page: PageId, records: &[(Lsn, OwnedRecord)]) -> Result<Replayed> {
        let latched = match self.bring_for_replay(page, records) {
            Err(damage @ Error::Corrupt(_)) => return Ok(Replayed::Missing(Some(damage))),
            other => other?,
        };
        let d = self.frames.descriptor(latched.frame);
        let lsn = d.lsn.load(Ordering::Relaxed);
        let first = records
            .iter()
            .position(|(_, r)| r.get().lsn > lsn)
            .unwrap_or(records.len());
        let (present, newer) = records.split_at(first);
        self.note_present(latched, present);
        let applied = self.apply_newer(latched, lsn, newer);
        match &applied {
            Ok(Replayed::Applied) => self.unlatch(latched, true),
            Ok(Replayed::Nothing) if lsn != Lsn::ZERO => self.unlatch(latched, false),
            // Zeros that nothing was built on.
            _ => self.unpublish(latched)?,
        }
        applied
    }

    /// The page's frame, latched. A page that storage cannot read is built from nothing, if a
    /// record here does so.
    fn bring_for_replay(&self, page: PageId, records: &[(Lsn, OwnedRecord)]) -> Result<Latched> {
        match self.load_for_replay(page) {
            Err(Error::Corrupt(_)) if begins(records) => self.exclusive_unread(page),
            other => other,
        }
    }

    fn load_for_replay(&self, page: PageId) -> Result<Latched> {
        loop {
            let frame = match self.hash.find(&self.frames, key_of(page)) {
                Some(frame) => frame,
                None => self.load(page, Hint::Warm, true)?,
            };
            if let Some(latched) = self.latch_exclusive(frame, key_of(page))? {
                return Ok(latched);
            }
        }
    }

    /// A page out of remote memory has redo that storage lacks: which, is known from here on.
    fn note_present(&self, latched: Latched, present: &[(Lsn, OwnedRecord)]) {
        let d = self.frames.descriptor(latched.frame);
        if d.rec.load(Ordering::Relaxed) == Lsn::ZERO {
            return;
        }
        let head = d.head.load(Ordering::Relaxed);
        let mut chain = d.chain.load(Ordering::Relaxed);
        for record in present.iter().map(|(_, r)| r.get()).filter(|r| r.address > head) {
            chain = if record.is_base { Chain::default() } else { chain }.plus(record.len());
            d.head.store(record.address, Ordering::Release);
        }
        d.chain.store(chain, Ordering::Release);
        d.seal();
    }

    fn apply_newer(&self, latched: Latched, lsn: Lsn, newer: &[(Lsn, OwnedRecord)]) -> Result<Replayed> {
        // What is before the last record that needs nothing is not needed.
        let base = newer.iter().rposition(|(_, r)| r.get().is_base);
        let newer = &newer[base.unwrap_or(0)..];
        let (Some((start, _)), Some((_, last))) = (newer.first(), newer.last()) else {
            return Ok(Replayed::Nothing);
        };
        if lsn == Lsn::ZERO && base.is_none() {
            return Ok(Replayed::Missing(None));
        }
        let (d, span) = (self.frames.descriptor(latched.frame), self.frames.page(latched.frame));
        let mut bytes = vec![0; PAGE_SIZE];
        span.copy_out(0, &mut bytes);
        let mut chain = d.chain.load(Ordering::Relaxed);
        for (_, record) in newer {
            let record = record.get();
            redo::apply(&mut bytes, &record)?;
            chain = if record.is_base { Chain::default() } else { chain }.plus(record.len());
        }
        self.changed.all(latched.frame);
        span.copy_in(0, &bytes);
        if self.host {
            self.persist_page(latched.frame);
        }
        let last = last.get();
        let was_clean = d.rec.load(Ordering::Relaxed) == Lsn::ZERO;
        if base.is_some() || was_clean {
            d.rec.store(*start, Ordering::Release);
        }
        if was_clean {
            self.became_dirty(latched.frame, *start);
        }
        d.lsn.store(last.lsn, Ordering::Release);
        d.head.store(last.address, Ordering::Release);
        d.chain.store(chain, Ordering::Release);
        d.seal();
        Ok(Replayed::Applied)
    }
}
