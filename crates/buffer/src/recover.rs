//! Instant recovery: the frames of a dead process, kept but for the few that must be rebuilt.
//!
//! When this begins, the log is whole and durable: groups that were complete in the ring are in it, the others
//! are void (rule 3, in storage). No other thread is about. Then:
//!
//! 1. *Suspects*: frames that latch slots name, and that are latched exclusively by the dead (rule 2). Where the region
//!    is small enough to be looked at whole, or its host was lost, all descriptors are ([`crate::survey`]): those that
//!    are latched, that are newer than the log (host loss), or that contradict themselves. The page hash is built anew
//!    from the believed ones then.
//! 2. *Lists*: found locked, they are taken back to before the change; after host loss, rebuilt.
//! 3. *Repair* (rule 4): one scan of the ring finds the newest record of each suspect's page; from the later of it and
//!    the descriptor's head the chain is followed back to the page's image in storage, or to a logged image, and
//!    applied. Images and chains of many pages are read at once, before any of them is changed. A frame that was
//!    loading, or whose page was never made, is free again.
//! 4. Frames whose descriptor is damaged are free, and the log is replayed from the checkpoint for what pages they may
//!    have held.
//! 5. Slots are wiped.
//!
//! Invariants:
//! - nothing here is believed that was not checked: a frame that does not make sense costs its warmth only;
//! - each step leaves a state from which this can begin again: latches are reset frame by frame, each
//!   after its page is whole; slots go last.

use std::sync::Arc;

use cenote_base::page_io::{PageIo, PageRead};
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, RecordAddr, Result};
use cenote_storage::redo::{self, page_header};
use cenote_storage::{Chains, Control, OwnedRecord, Storage, Survive};

use crate::chain::Chain;
use crate::config::Config;
use crate::hash::{key_of, page_of};
use crate::index::FrameIndex;
use crate::latch;
use crate::layout::{DOUBTING, FrameState, SURVEYING};
use crate::lists::{List, Lists};
use crate::open::{EPOCHS, SURVEYED};
use crate::pool::{Pool, set_state};
use crate::report::{Cause, RecoveryReport, Repaired};
use crate::slots;
use crate::survey::Suspect;
use crate::together::together;

/// Pages whose images and chains are read at once: of 16 KiB and, as chains go, up to some 100 KiB each.
const AT_ONCE: usize = 64;

/// What a page is rebuilt from: its image in storage as of `base`, and the redo that leads from there to `head`.
struct Source {
    bytes: Vec<u8>,
    base: Lsn,
    head: RecordAddr,
    records: Vec<OwnedRecord>,
}

/// A page rebuilt, and what its descriptor is to say.
struct Rebuilt {
    bytes: Vec<u8>,
    lsn: Lsn,
    head: RecordAddr,
    rec: Lsn,
    chain: Chain,
    records: u32,
}

impl Pool {
    /// Makes the frames of the last process this one's.
    pub(crate) fn repair(
        self: &Arc<Self>,
        config: &Config,
        control: &Control,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let host = config.survive == Survive::Host || self.was_host();
        let cut_off = self.frames.header().surveying.load(Ordering::Acquire);
        let small = self.frames.region().len() <= config.scan_limit;
        let all = host || small || cut_off != 0 || self.survey_is_due();
        self.clamp_header();
        self.repair_lists(host, report);
        if !host {
            self.release_untouched();
        }
        let survey = if all {
            self.survey_believing_lists(host, report)
        } else {
            self.survey_slots()
        };
        report.frames_kept = survey.kept;
        let doubt = if cut_off > SURVEYING {
            Doubt::Everything
        } else {
            Doubt::None
        };
        let doubtful = match self.rebuild_suspects(&survey.suspects, host, doubt, control, report) {
            Err(Error::Corrupt(why)) if !all => {
                // The hash is not what it was, perhaps: with all descriptors looked at, it is built anew.
                report.remarks.push(format!("{why}; all frames are looked at"));
                let survey = self.survey_believing_lists(host, report);
                report.frames_kept = survey.kept;
                self.rebuild_suspects(&survey.suspects, host, Doubt::None, control, report)?
            }
            other => other?,
        };
        match doubtful {
            Doubt::None => {}
            Doubt::Pages(pages) => self.replay_pages(control.checkpoint, &pages, report)?,
            Doubt::Everything => self.replay_all(control.checkpoint, report)?,
        }
        slots::wipe(&self.frames, host);
        // Which of the frames are dirty, and whose they are, is found out when it is asked for, or in the background.
        self.sweep.begin(self.touched());
        if all {
            self.note_surveyed();
        }
        self.note_surveying(0);
        Ok(())
    }

    /// Whether a start before this one has to be recovered from as after the loss of a host.
    fn was_host(&self) -> bool {
        self.frames.region().state().words[crate::open::OWED] == 1
    }

    /// Latches hold eight bits of the epoch, of which [`EPOCHS`] values are in use: before one comes again, every
    /// descriptor has to have been looked at, so that no shared count of its first use is met. A start that dies before
    /// its survey owes it to the next.
    fn survey_is_due(&self) -> bool {
        let state = self.frames.region().state();
        state.epoch.saturating_sub(state.words[SURVEYED]) >= EPOCHS
    }

    /// All descriptors were looked at: no shared count of a former epoch is left.
    fn note_surveyed(&self) {
        self.frames.region().update_state(|s| s.words[SURVEYED] = s.epoch);
    }

    /// Frames that the dead had latched to use them for the first time, and that do not count as used yet. Not after
    /// the loss of a host: the count was in its cache, and a frame beyond an old one may hold a page in the middle of a
    /// change.
    fn release_untouched(&self) {
        let touched = self.touched();
        for frame in slots::named(&self.frames)
            .into_iter()
            .filter(|frame| frame.raw() >= touched)
        {
            let latch = &self.frames.descriptor(frame).latch;
            if latch::is_exclusive(latch.load(Ordering::Relaxed)) {
                latch::reset(latch);
            }
        }
    }

    /// Counts that lead outside the pool are cut.
    fn clamp_header(&self) {
        let header = self.frames.header();
        let touched = header.frames_touched.load(Ordering::Relaxed).min(self.frames.count());
        header.frames_touched.store(touched, Ordering::Relaxed);
    }

    pub(crate) fn lists_alone(&self) -> Lists<'_> {
        Lists::alone(&self.frames)
    }

    // ---- repair ----

    fn rebuild_suspects(
        &self,
        suspects: &[Suspect],
        host: bool,
        mut doubt: Doubt,
        control: &Control,
        report: &mut RecoveryReport,
    ) -> Result<Doubt> {
        let mut wanted: HashMap<PageId, RecordAddr> = HashMap::default();
        for suspect in suspects {
            if let Some(page) = self.page_to_repair(suspect) {
                // Two frames can name one page: one was leaving the hash, the other had taken its place.
                let head = wanted.entry(page).or_insert(RecordAddr::NONE);
                *head = (*head).max(self.head_of(suspect.frame));
            }
        }
        self.find_heads(&mut wanted, host, control, report)?;
        let chains = Arc::new(self.storage.log().chains());
        for suspects in suspects.chunks(AT_ONCE) {
            let mut sources = self.gather_sources(&chains, suspects, &wanted);
            for suspect in suspects {
                let Some(page) = self.page_to_repair(suspect) else {
                    if suspect.cause != Cause::Latched {
                        doubt.add(self.pages_of_damaged(suspect.frame));
                        self.note_surveying(DOUBTING);
                    }
                    self.drop_frame(suspect.frame, report)?;
                    continue;
                };
                let source = match sources.remove(&page) {
                    Some(source) => source,
                    None => source(&self.storage, &chains, page, wanted[&page]),
                };
                self.repair_frame(suspect, page, source, control, report)?;
            }
        }
        Ok(doubt)
    }

    /// Image and redo of the pages that `suspects` are to hold, by several threads.
    fn gather_sources(
        &self,
        chains: &Arc<Chains>,
        suspects: &[Suspect],
        wanted: &HashMap<PageId, RecordAddr>,
    ) -> HashMap<PageId, Result<Source>> {
        let mut pages: Vec<PageId> = suspects.iter().filter_map(|s| self.page_to_repair(s)).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.retain(|page| self.storage.pages().has_space(page.space));
        let items: Vec<(PageId, RecordAddr)> = pages.into_iter().map(|page| (page, wanted[&page])).collect();
        let (storage, chains) = (Arc::clone(&self.storage), Arc::clone(chains));
        let read = move |(page, head)| (page, source(&storage, &chains, page, head));
        together(items, 1, usize::MAX, read).into_iter().collect()
    }

    /// The page that a suspect is certainly to hold; `None` if it is to be dropped.
    fn page_to_repair(&self, suspect: &Suspect) -> Option<PageId> {
        let d = self.frames.descriptor(suspect.frame);
        let key = d.key.load(Ordering::Relaxed);
        let used = FrameState::of(d.state.load(Ordering::Relaxed)) == Some(FrameState::Used) && key != 0;
        match suspect.cause {
            Cause::Latched | Cause::TooNew if used => Some(page_of(key)),
            _ => None,
        }
    }

    /// One scan of the log: the newest record of each page in `wanted`. A page can have a newer record than its
    /// descriptor's head only if a commit was under way: the scan begins at the least floor in the slots. If those were
    /// in the caches of a host that was lost, it begins at the checkpoint, below which no commit under way lies: its
    /// thread may have stood still for so long that the ring has gone round since.
    fn find_heads(
        &self,
        wanted: &mut HashMap<PageId, RecordAddr>,
        host: bool,
        control: &Control,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let log = self.storage.log();
        let start = match slots::least_floor(&self.frames) {
            _ if wanted.is_empty() || planted(Fault::RepairHead) => return Ok(()),
            None if !host => return Ok(()),
            // A floor may be older than what the ring holds, if its thread stood still for long: the files have it. One
            // below the checkpoint was read before the checkpoint was taken, and its commit's place lies above.
            Some(floor) if !host => floor.max(control.checkpoint),
            _ => control.checkpoint.min(log.ring_scan_start()),
        };
        if self.scan_heads(start, wanted, report).is_err() {
            // A floor that is no group's start was not written by us.
            self.scan_heads(log.ring_scan_start(), wanted, report)?;
        }
        Ok(())
    }

    fn scan_heads(
        &self,
        start: Lsn,
        wanted: &mut HashMap<PageId, RecordAddr>,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let mut scan = self.storage.log().scan(start);
        while let Some(group) = scan.next()? {
            for record in group.records() {
                let record = record?;
                if let Some(head) = wanted.get_mut(&record.page) {
                    *head = (*head).max(record.address);
                }
            }
        }
        report.redo_bytes_read += scan.position().since(start);
        Ok(())
    }

    fn repair_frame(
        &self,
        suspect: &Suspect,
        page: PageId,
        source: Result<Source>,
        control: &Control,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let frame = suspect.frame;
        if !self.storage.pages().has_space(page.space) {
            return self.drop_frame(frame, report);
        }
        // Another frame may have the page already: one that was leaving the hash when its owner died.
        if let Some(other) = self.hash.alone(&self.frames, key_of(page)).find(key_of(page))?
            && other != frame
        {
            return self.drop_frame(frame, report);
        }
        let rebuilt = match source.and_then(|source| self.rebuild_from_chain(source, frame, control)) {
            Ok(rebuilt) => rebuilt,
            Err(error) => {
                report
                    .remarks
                    .push(format!("page {page}: {error}; its redo is read from the checkpoint on"));
                self.rebuild_from_checkpoint(page, control, report)?
            }
        };
        let Some(rebuilt) = rebuilt else {
            return self.drop_frame(frame, report);
        };
        report.repaired.push(Repaired {
            page,
            cause: suspect.cause,
            records: rebuilt.records,
        });
        self.install(frame, page, &rebuilt)
    }

    /// The descriptor's head, if the log goes that far.
    fn head_of(&self, frame: FrameIndex) -> RecordAddr {
        let head = self.frames.descriptor(frame).head.load(Ordering::Relaxed);
        let inside = head.stream() == 0 && head.position() < self.storage.durable_lsn();
        if inside { head } else { RecordAddr::NONE }
    }

    /// The page from its image in storage and its chain; `None` if it was never made.
    fn rebuild_from_chain(&self, source: Source, frame: FrameIndex, control: &Control) -> Result<Option<Rebuilt>> {
        let Source {
            bytes,
            base,
            head,
            records,
        } = source;
        let whole = base != Lsn::ZERO || records.first().is_none_or(|r| r.get().is_base);
        let rec = self.frames.descriptor(frame).rec.load(Ordering::Relaxed);
        // A dirty frame whose chain leads nowhere has lost its head: storage alone is not enough.
        let lost = records.is_empty() && rec > base && rec < self.storage.durable_lsn();
        if !whole || lost {
            return Err(Error::corrupt(format!(
                "the chain of its redo records is broken: head {head}, image in storage of {base}, dirty from {rec}"
            )));
        }
        // A latched descriptor is not checked by its sum: what is not below the first record was not written by us.
        let first = records.first().map_or(Lsn::MAX, |r| r.get().address.position());
        let believed = rec != Lsn::ZERO && rec < first;
        // Below the checkpoint lie records of pages that were given up, and were about to be made again: the log has
        // them as they were given up.
        let least = base.max(control.checkpoint).min(first);
        let rec = if believed { rec } else { least };
        apply_all(bytes, base, &records, rec)
    }

    fn rebuild_from_checkpoint(
        &self,
        page: PageId,
        control: &Control,
        report: &mut RecoveryReport,
    ) -> Result<Option<Rebuilt>> {
        let (bytes, base) = base_image(&self.storage, page)?;
        let mut records = Vec::new();
        let mut scan = self.storage.log().scan(control.checkpoint);
        while let Some(group) = scan.next()? {
            for record in group.records() {
                let record = record?;
                if record.page == page && record.lsn > base {
                    records.push(OwnedRecord::copy(&record));
                }
            }
        }
        report.redo_bytes_read += scan.position().since(control.checkpoint);
        if base == Lsn::ZERO && records.first().is_some_and(|r| !r.get().is_base) {
            match records.iter().position(|r| r.get().is_base) {
                Some(first) => drop(records.drain(..first)),
                None => {
                    let text = format!("page {page} is missing from storage, and the log does not build it");
                    return Err(Error::corrupt(text));
                }
            }
        }
        apply_all(bytes, base, &records, control.checkpoint)
    }

    /// Puts a rebuilt page into its frame: page, descriptor, hash, list; the latch goes last.
    fn install(&self, frame: FrameIndex, page: PageId, rebuilt: &Rebuilt) -> Result<()> {
        let d = self.frames.descriptor(frame);
        self.changed.all(frame);
        self.frames.page(frame).copy_in(0, &rebuilt.bytes);
        if self.host {
            // Before the descriptor says what the page is: not all frames that are rebuilt are latched.
            self.persist_page(frame);
        }
        d.key.store(key_of(page), Ordering::Relaxed);
        d.lsn.store(rebuilt.lsn, Ordering::Relaxed);
        d.head.store(rebuilt.head, Ordering::Relaxed);
        d.rec.store(rebuilt.rec, Ordering::Relaxed);
        self.enter_found(frame);
        d.chain.store(rebuilt.chain, Ordering::Relaxed);
        d.recency.store(1, Ordering::Relaxed);
        set_state(d, FrameState::Used);
        let bucket = self.hash.alone(&self.frames, key_of(page));
        if bucket.find(key_of(page))?.is_none() {
            bucket.insert(frame);
        }
        self.lists_alone().put(List::Warm, frame);
        latch::reset(&d.latch);
        if self.host {
            self.persist_descriptor(frame);
        }
        Ok(())
    }

    /// Frees a frame, whatever it held; the latch goes last.
    fn drop_frame(&self, frame: FrameIndex, report: &mut RecoveryReport) -> Result<()> {
        let d = self.frames.descriptor(frame);
        let key = d.key.load(Ordering::Relaxed);
        self.hash.alone(&self.frames, key).remove(frame)?;
        report.frames_discarded += u64::from(key != 0);
        self.clear_key(frame);
        d.lsn.store(Lsn::ZERO, Ordering::Relaxed);
        d.head.store(RecordAddr::NONE, Ordering::Relaxed);
        d.rec.store(Lsn::ZERO, Ordering::Relaxed);
        d.chain.store(Chain::default(), Ordering::Relaxed);
        d.recency.store(0, Ordering::Relaxed);
        set_state(d, FrameState::Free);
        self.lists_alone().put(List::Free, frame);
        latch::reset(&d.latch);
        if self.host {
            self.persist_descriptor(frame);
        }
        Ok(())
    }

    /// Pages that a frame with a damaged descriptor may have held: what its key says and what its bytes say, if
    /// they agree. `None`: it could be any.
    fn pages_of_damaged(&self, frame: FrameIndex) -> Option<PageId> {
        let key = self.frames.descriptor(frame).key.load(Ordering::Relaxed);
        let span = self.frames.page(frame);
        let inside = PageId::new(span.u32(page_header::SPACE), span.u32(page_header::PAGE));
        (key == key_of(inside)).then_some(inside)
    }
}

/// Reads what `page` is rebuilt from.
fn source(storage: &Storage, chains: &Chains, page: PageId, head: RecordAddr) -> Result<Source> {
    let (bytes, base) = base_image(storage, page)?;
    let records = chains.collect(page, head, base)?;
    Ok(Source {
        bytes,
        base,
        head,
        records,
    })
}

/// The page as storage has it, and its LSN; zeros and zero if it never was written, or cannot
/// be read (then a logged image must be its base).
fn base_image(storage: &Storage, page: PageId) -> Result<(Vec<u8>, Lsn)> {
    let mut bytes = vec![0; PAGE_SIZE];
    match storage.read_page(page, &mut bytes) {
        Ok(PageRead::NeverWritten) => Ok((bytes, Lsn::ZERO)),
        Ok(PageRead::Present | PageRead::Rebuilt) => {
            let lsn = redo::page_lsn(&bytes);
            Ok((bytes, lsn))
        }
        Err(Error::Corrupt(_)) => Ok((vec![0; PAGE_SIZE], Lsn::ZERO)),
        Err(other) => Err(other),
    }
}

/// Which pages may have lost changes with frames that are not believed.
enum Doubt {
    None,
    Pages(Vec<PageId>),
    Everything,
}

impl Doubt {
    fn add(&mut self, page: Option<PageId>) {
        match (&mut *self, page) {
            (Doubt::Everything, _) => {}
            (_, None) => *self = Doubt::Everything,
            (Doubt::None, Some(page)) => *self = Doubt::Pages(vec![page]),
            (Doubt::Pages(pages), Some(page)) => pages.push(page),
        }
    }
}

/// `rec`: at or below the first record that storage lacks. `None` if there is no page at all.
fn apply_all(mut bytes: Vec<u8>, base: Lsn, records: &[OwnedRecord], rec: Lsn) -> Result<Option<Rebuilt>> {
    let mut chain = Chain::default();
    for record in records {
        let record = record.get();
        redo::apply(&mut bytes, &record)?;
        chain = if record.is_base { Chain::default() } else { chain }.plus(record.len());
    }
    let Some(last) = records.last() else {
        let clean = Rebuilt {
            bytes,
            lsn: base,
            head: RecordAddr::NONE,
            rec: Lsn::ZERO,
            chain,
            records: 0,
        };
        return Ok((base != Lsn::ZERO).then_some(clean));
    };
    let last = last.get();
    let records = records.len() as u32;
    Ok(Some(Rebuilt {
        bytes,
        lsn: last.lsn,
        head: last.address,
        rec,
        chain,
        records,
    }))
}

#[cfg(test)]
mod tests;
