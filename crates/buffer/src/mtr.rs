//! Mini-transactions: page changes that are atomic in the log.
//!
//! 1. Latch the pages ([`Mtr::exclusive`], [`Mtr::upgrade`], [`Mtr::create`]), all before the first change.
//! 2. Change them: each change goes to the frame and, as an operation, to the page's redo record.
//! 3. Commit: the redo goes to the log's ring as one group; every changed page gets the group's end as its
//!    LSN; then the latches are released, one by one.
//!
//! Why a crash at any moment leaves each mini-transaction whole or void (rules 1 to 3): until the group is
//! complete in the ring all its pages are latched, so recovery rebuilds them without it. From then on it
//! is in the log: pages that are still latched are rebuilt with it, those that were released have it.
//!
//! Under `host` survival, whose caches are lost, the same with flushes between (rule 5): (a) the latch is in
//! memory before the first change, (c) the redo before any page's release, (d) the page's changed lines before
//! (e) its LSN, head and release, which share the descriptor's one line and reach memory in the order of their stores.
//!
//! Invariants:
//! - a mini-transaction that has changed a page ends by commit or with the process: its destructor aborts;
//! - its redo is bounded: a page whose operations outgrow its image gets the image logged instead, and there
//!   are at most [`PAGES_MAX`] pages;
//! - a page whose chain of records is long gets its image logged (rule 4).

use std::marker::PhantomData;

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::seam::Points;
use cenote_base::rt::{self, atomic::Ordering};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, RecordAddr, Result};
use cenote_fabric::observe::{self, Access, Asks, Observer, On};
use cenote_fabric::{Span, coherence};
use cenote_storage::redo::{RECORD_HEADER, page_header};

use crate::access_trace::PageAccess;
use crate::chain::Chain;
use crate::guard::OptGuard;
use crate::index::SlotIndex;
use crate::latch::{self, Upgrade};
use crate::layout::{FrameState, LINE, SLOT_FRAMES};
use crate::lists::List;
use crate::parts::{Held, PageH, Parts, Place};
use crate::pool::{Pool, transition};
use crate::slots::Latched;
use crate::stats::bump;
use crate::view::PageView;

/// Pages that one mini-transaction can hold.
pub const PAGES_MAX: usize = 64;
const _: () = assert!(
    SLOT_FRAMES >= PAGES_MAX + 2,
    "a slot names the pages of a mini-transaction, one that is read and one that is evicted"
);
/// What stands in the page and the redo until a patch is made: no zeros, so that no image leaves it out.
const PLACEHOLDER: u64 = u64::MAX;

/// The marked places, when their value is known.
pub struct Patch<'a> {
    places: &'a [Place],
    held: &'a [Held],
    pool: &'a Pool,
    group: &'a mut [u8],
}

impl Patch<'_> {
    /// Places marked.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether none is marked.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Gives place `index` (in the order of marking) its value, in page and redo.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn set(&mut self, index: usize, value: u64) {
        let place = &self.places[index];
        assert!(
            place.in_group > 0,
            "a marked place is found in the group before it gets its value"
        );
        self.group[place.in_group..place.in_group + 8].copy_from_slice(&value.to_le_bytes());
        let frame = self.held[place.held.place()].latched.frame;
        self.pool.frames.page(frame).set_u64(place.offset, value);
    }

    /// Gives all places the same value.
    pub fn set_all(&mut self, value: u64) {
        for index in 0..self.places.len() {
            self.set(index, value);
        }
    }
}

/// Called when a commit's place in the log is fixed: the end of its redo, and the marked places.
pub type CommitHook<'a> = &'a mut dyn FnMut(Lsn, &mut Patch<'_>);

/// A mini-transaction of this thread. See the module.
pub struct Mtr<'p> {
    pool: &'p Pool,
    parts: Parts,
    changed: bool,
    done: bool,
    observed: bool,
    _here: PhantomData<*const ()>,
}

impl Pool {
    /// Keeps what a mini-transaction needed for the thread's next, unless that is being asked for this moment.
    fn keep_parts(&self, parts: Parts) {
        assert!(
            parts.held.is_empty() && parts.places.is_empty() && parts.group.is_empty(),
            "a mini-transaction gives its parts back empty"
        );
        if let Some(mut kept) = self.parts.get().try_lock() {
            kept.push(parts);
        }
    }

    /// Begins a mini-transaction.
    pub fn mtr(&self) -> Mtr<'_> {
        let parts = self.parts.get().lock().pop().unwrap_or_default();
        assert!(
            parts.held.is_empty() && parts.group.is_empty(),
            "a mini-transaction begins without pages and without redo"
        );
        Mtr {
            pool: self,
            parts,
            changed: false,
            done: false,
            observed: observe::active(),
            _here: PhantomData,
        }
    }
}

impl<'p> Mtr<'p> {
    /// The pool.
    pub fn pool(&self) -> &'p Pool {
        self.pool
    }

    // ---- latching ----

    /// Latches `page` exclusively. A page that the mini-transaction holds already is given again.
    ///
    /// # Errors
    /// Those of reading the page; [`Error::Invalid`] for more than [`PAGES_MAX`] pages; [`Error::LogFailed`] when
    /// the log takes no more changes, [`Error::Full`] of the first page when it has no room for more.
    pub fn exclusive(&mut self, page: PageId) -> Result<PageH> {
        if let Some(h) = self.find(page) {
            return Ok(h);
        }
        self.check_room()?;
        let latched = self.pool.exclusive(page)?;
        Ok(self.hold(latched, page))
    }

    /// Latches the page that `guard` reads, if it has not changed; `None` if it has.
    ///
    /// # Errors
    /// As [`Mtr::exclusive`].
    pub fn upgrade(&mut self, guard: OptGuard<'_>) -> Result<Option<PageH>> {
        self.check_room()?;
        let (pool, frame) = (self.pool, guard.frame);
        let entry = pool.slots.announce(&pool.frames, frame)?;
        let latch = &pool.frames.descriptor(frame).latch;
        let taken = pool
            .parking
            .until(frame, || match latch::try_upgrade(latch, pool.owner, guard.version) {
                Upgrade::Taken => Some(true),
                Upgrade::Changed => Some(false),
                Upgrade::Shared => None,
            });
        if !taken {
            pool.slots.withdraw(&pool.frames, entry);
            return Ok(None);
        }
        pool.latched(frame);
        let page = pool
            .page_in(frame)
            .ok_or_else(|| Error::corrupt(format!("frame {frame} lost its page")))?;
        pool.asked(page, PageAccess::Write);
        Ok(Some(self.hold(Latched { frame, entry }, page)))
    }

    /// Makes `page` an empty one of `kind` and `level`, whatever it was: it is not read.
    ///
    /// # Errors
    /// As [`Mtr::exclusive`]; [`Error::Full`] if its file cannot grow.
    pub fn create(&mut self, page: PageId, kind: u8, level: u8) -> Result<PageH> {
        let h = match self.find(page) {
            Some(h) => h,
            None => {
                self.check_room()?;
                // A page without space on disk could never leave its frame, nor its redo the log.
                let pages = self.pool.storage.pages();
                pages.reserve(page.space, page.page.saturating_add(1))?;
                self.pool.asked(page, PageAccess::Create);
                let latched = self.pool.exclusive_unread(page)?;
                self.hold(latched, page)
            }
        };
        self.init(h, kind, level);
        Ok(h)
    }

    /// Takes the space on disk of pages that were given back, before they are made anew.
    ///
    /// # Errors
    /// [`Error::Full`]; nothing has changed then.
    pub fn reserve_again(&self, space: u32, pages: std::ops::Range<u32>) -> Result<()> {
        self.pool.storage.pages().reserve_again(space, pages)
    }

    /// The handle of a page that is held.
    pub fn find(&self, page: PageId) -> Option<PageH> {
        let index = self.parts.held.iter().position(|h| h.page == page && !h.released)?;
        Some(PageH::at(index))
    }

    fn check_room(&self) -> Result<()> {
        if self.parts.held.iter().filter(|h| !h.released).count() >= PAGES_MAX {
            return Err(Error::Invalid(format!(
                "a mini-transaction takes more than {PAGES_MAX} pages"
            )));
        }
        match self.parts.held.is_empty() && !self.changed {
            true => self.pool.admit(),
            false => self.pool.storage.log().check_poison(),
        }
    }

    fn hold(&mut self, latched: Latched, page: PageId) -> PageH {
        if self.observed {
            self.pool.announce(latched.frame, On, Access::Write);
        }
        self.parts.held.push(Held {
            latched,
            page,
            record: None,
            redo: 0,
            image: false,
            base: false,
            released: false,
            dirty: [0; PAGE_SIZE / LINE / 64],
        });
        let index = self.parts.held.len() - 1;
        PageH::at(index)
    }

    /// Releases a page that was not changed, ahead of the others.
    ///
    /// # Panics
    /// If it was changed.
    pub fn release(&mut self, h: PageH) {
        let held = &mut self.parts.held[h.place()];
        assert!(
            held.record.is_none(),
            "page {} was changed and is released before commit",
            held.page
        );
        if !held.released {
            held.released = true;
            self.pool.unlatch(held.latched, false);
        }
        // The last ones go at once, so that a long walk does not gather them.
        while self.parts.held.last().is_some_and(|held| held.released) {
            self.parts.held.pop();
        }
    }

    // ---- reading ----

    /// The page; each access asks whether an observer is installed.
    pub fn view(&self, h: PageH) -> PageView<'_> {
        self.view_as(h, Asks)
    }

    /// The page, seen by `observer`.
    pub fn view_as<O: Observer>(&self, h: PageH, observer: O) -> PageView<'_, O> {
        PageView::new(self.span(&self.parts.held[h.place()]), observer)
    }

    /// Which page it is.
    pub fn page(&self, h: PageH) -> PageId {
        self.parts.held[h.place()].page
    }

    fn span(&self, held: &Held) -> Span<'p> {
        self.pool.frames.page(held.latched.frame)
    }

    // ---- changing ----

    /// Writes `bytes` at `offset`.
    ///
    /// # Panics
    /// If it reaches outside the page, as do all that change: the process ends, and recovery
    /// finds the page as it was.
    pub fn write(&mut self, h: PageH, offset: usize, bytes: &[u8]) {
        self.change(h, offset, bytes.len());
        let held = &self.parts.held[h.place()];
        self.span(held).copy_in(offset, bytes);
        if let (Some(record), false) = (held.record, held.image) {
            self.parts.group.write(record, offset, bytes);
            self.count_redo(h, bytes.len() + 4);
        }
    }

    /// Writes four bytes at `offset`.
    pub fn write_u32(&mut self, h: PageH, offset: usize, value: u32) {
        self.write(h, offset, &value.to_le_bytes());
    }

    /// Writes eight bytes at `offset`.
    pub fn write_u64(&mut self, h: PageH, offset: usize, value: u64) {
        self.write(h, offset, &value.to_le_bytes());
    }

    /// Marks eight bytes at `offset` whose value [`Mtr::commit_with`]'s hook gives. Nothing may write there
    /// afterwards in this mini-transaction, nor move it.
    pub fn write_patched_u64(&mut self, h: PageH, offset: usize) {
        self.write_u64(h, offset, PLACEHOLDER);
        self.parts.places.push(Place {
            held: h,
            offset,
            in_group: 0,
        });
    }

    /// Moves `length` bytes from `source` to `destination` within the page; they may overlap.
    pub fn move_bytes(&mut self, h: PageH, source: usize, destination: usize, length: usize) {
        self.change(h, destination, length);
        let held = &self.parts.held[h.place()];
        self.span(held).move_within(source, destination, length);
        if let (Some(record), false) = (held.record, held.image) {
            self.parts.group.move_bytes(record, source, destination, length);
            self.count_redo(h, 6);
        }
    }

    fn init(&mut self, h: PageH, kind: u8, level: u8) {
        self.change(h, 0, PAGE_SIZE);
        let held = &mut self.parts.held[h.place()];
        (held.image, held.base, held.redo) = (false, true, 0);
        let record = held.record.expect("a changed page has a record");
        let (span, page) = (self.pool.frames.page(held.latched.frame), held.page);
        span.zero(0, PAGE_SIZE);
        span.copy_in(page_header::SPACE, &page.to_bytes());
        span.set_u8(page_header::KIND, kind);
        span.set_u8(page_header::LEVEL, level);
        span.set_u16(page_header::VERSION, page_header::FORMAT);
        self.parts.group.init(record, kind, level);
    }

    /// Before the first change of a page: its record is begun; before each: its lines are noted.
    fn change(&mut self, h: PageH, offset: usize, length: usize) {
        let held = &mut self.parts.held[h.place()];
        assert!(!held.released, "page {} was released", held.page);
        if held.record.is_none() {
            self.changed = true;
            let d = self.pool.frames.descriptor(held.latched.frame);
            let mut head = d.head.load(Ordering::Relaxed);
            if planted(Fault::ChainLink) {
                head = RecordAddr::NONE;
            }
            held.record = Some(self.parts.group.begin_page(held.page, head));
            held.image = d.chain.load(Ordering::Relaxed).is_long();
        }
        if self.pool.host {
            note_lines(&mut held.dirty, offset, length);
        }
        self.pool.changed.note(held.latched.frame, offset, length);
        let region = self.pool.frames.region();
        // A watched region's spans announce their writes themselves.
        if self.observed && !region.is_watched() {
            let at = self.pool.frames.geometry().page_at(held.latched.frame) + offset as u64;
            On.touch(region, at, length as u32, Access::Write);
        }
    }

    /// A page whose operations outgrow it is logged whole.
    fn count_redo(&mut self, h: PageH, bytes: usize) {
        let held = &mut self.parts.held[h.place()];
        held.redo += bytes;
        held.image |= held.redo + RECORD_HEADER >= PAGE_SIZE - 64;
    }

    // ---- commit ----

    /// Commits: the end of its redo in the log, which is durable once the log is so up to there.
    /// Without changes, the latches are released and the answer is zero.
    pub fn commit(self) -> Lsn {
        self.commit_inner(None)
    }

    /// Commits, and has `hook` give the marked places their values when the place in the log is fixed:
    /// hooks run one at a time, in the order of the log. It has to be short, and not panic.
    pub fn commit_with(self, hook: CommitHook<'_>) -> Lsn {
        self.commit_inner(Some(hook))
    }

    fn commit_inner(mut self, hook: Option<CommitHook<'_>>) -> Lsn {
        let mut end = Lsn::ZERO;
        if self.changed {
            end = match self.log_and_stamp(hook) {
                Ok(end) => end,
                Err(error) => end_process(error),
            };
        }
        self.done = true;
        end
    }

    fn log_and_stamp(&mut self, hook: Option<CommitHook<'_>>) -> Result<Lsn> {
        self.log_images();
        let (pool, parts) = (self.pool, &mut self.parts);
        let slot = pool.frames.slot(SlotIndex::mine());
        let floor = &slot.expect("a thread that latches pages has a slot").floor;
        // A checkpoint that does not see the pages' new `rec` yet sees this (checkpoint.rs).
        let tail = pool.storage.log().tail();
        floor.store(tail, Ordering::SeqCst);
        parts.group.finish()?;
        for place in &mut parts.places {
            let record = parts.held[place.held.place()]
                .record
                .expect("a marked place was written");
            place.in_group = parts
                .group
                .locate(record, place.offset, 8)
                .ok_or_else(|| Error::Invalid("a marked place was overwritten or moved before its commit".into()))?;
        }
        let (places, held) = (&parts.places[..], &parts.held[..]);
        let group = parts.group.finished();
        let length = group.len() as u64;
        assert!(length > 0, "a mini-transaction that changed a page has redo");
        let appended = match hook {
            None => pool.storage.log().append(group, None)?,
            Some(hook) => {
                let mut patch = |end: Lsn, group: &mut [u8]| {
                    hook(
                        end,
                        &mut Patch {
                            places,
                            held,
                            pool,
                            group,
                        },
                    )
                };
                pool.storage.log().append(group, Some(&mut patch))?
            }
        };
        assert!(
            tail <= appended.start && appended.start < appended.end,
            "a commit's place lies at or behind the floor that it published"
        );
        mark::pass(Mark::CommitLogged);
        if planted(Fault::StalledCommit) {
            stall();
        }
        self.stamp(appended.start, appended.end);
        floor.store(Lsn::ZERO, Ordering::SeqCst);
        bump(&pool.counters().mini_transactions, 1);
        bump(&pool.counters().redo_bytes, length);
        Ok(appended.end)
    }

    /// Pages whose image is due: what was gathered for them is replaced.
    fn log_images(&mut self) {
        let parts = &mut self.parts;
        for held in parts.held.iter_mut().filter(|h| h.image) {
            let Some(record) = held.record else { continue };
            parts.image.resize(PAGE_SIZE, 0);
            self.pool.frames.page(held.latched.frame).copy_out(0, &mut parts.image);
            parts.group.image(record, &parts.image);
            held.base = true;
            mark::pass(Mark::ImageLogged);
            bump(&self.pool.counters().images_logged, 1);
        }
    }

    /// Pages first, then (flushed, under `host`) descriptors; the latches go in [`Mtr::drop`].
    fn stamp(&mut self, start: Lsn, end: Lsn) {
        let (pool, parts) = (self.pool, &mut self.parts);
        for held in parts.held.iter_mut().filter(|h| h.record.is_some()) {
            pool.changed
                .note(held.latched.frame, page_header::LSN, size_of::<u64>());
            pool.frames
                .page(held.latched.frame)
                .set_u64(page_header::LSN, end.raw());
            if pool.host {
                held.dirty[0] |= 1;
                if !planted(Fault::PageFlush) {
                    flush_lines(pool, held);
                }
            }
        }
        if pool.host {
            coherence::order(pool.frames.region());
        }
        for held in &parts.held {
            let Some(record) = held.record else { continue };
            let d = pool.frames.descriptor(held.latched.frame);
            let offset = parts.group.record_offset(record) as u64;
            let length = parts.group.record_len(record);
            assert!(
                start.advance(offset + length as u64) <= end,
                "the redo record of page {} lies in its group",
                held.page
            );
            let chain = match held.base {
                true => Chain::default(),
                false => d.chain.load(Ordering::Relaxed),
            };
            // A base record builds the page from nothing: older ones are not needed any more.
            let was_clean = d.rec.load(Ordering::Relaxed) == Lsn::ZERO;
            if held.base || was_clean {
                d.rec.store(start, Ordering::Release);
            }
            if was_clean {
                pool.became_dirty(held.latched.frame, start);
            }
            d.lsn.store(end, Ordering::Release);
            d.head
                .store(RecordAddr::new(0, start.advance(offset)), Ordering::Release);
            d.chain.store(chain.plus(length), Ordering::Release);
            d.seal();
            pool.overtook(held.latched.frame);
            if self.observed {
                pool.announce(held.latched.frame, On, Access::Write);
            }
        }
    }
}

impl Drop for Mtr<'_> {
    fn drop(&mut self) {
        if self.pool.abandoned.as_raw().load(Ordering::Relaxed) {
            return;
        }
        if self.changed && !self.done {
            end_process(Error::Invalid(
                "a mini-transaction that had changed pages was dropped without commit".into(),
            ));
        }
        for held in self.parts.held.iter().filter(|h| !h.released) {
            self.pool.unlatch(held.latched, held.record.is_some());
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.held.clear();
        parts.places.clear();
        parts.group.clear();
        self.pool.keep_parts(parts);
    }
}

/// Rule 1: pages are half changed and latched; only recovery can put them right.
fn end_process(why: Error) -> ! {
    eprintln!("cenote: {why}: the process ends here; start it again, recovery is instant");
    rt::fault::end_process(why)
}

/// Tests: what the log holds of this commit may be overwritten before the pages say that it was there.
#[cold]
fn stall() {
    if rt::random().is_multiple_of(500) {
        rt::sleep(rt::Nanos(rt::random() % 2_000_000_000));
    }
}

fn note_lines(dirty: &mut [u64; 4], offset: usize, length: usize) {
    if length == 0 {
        return;
    }
    for line in offset / LINE..=(offset + length - 1).min(PAGE_SIZE - 1) / LINE {
        dirty[line / 64] |= 1 << (line % 64);
    }
}

/// Flushes the lines noted, run by run.
fn flush_lines(pool: &Pool, held: &Held) {
    let page_at = pool.frames.geometry().page_at(held.latched.frame);
    let is_dirty = |line: usize| held.dirty[line / 64] & 1 << (line % 64) != 0;
    let mut line = 0;
    while line < PAGE_SIZE / LINE {
        let first = line;
        while line < PAGE_SIZE / LINE && is_dirty(line) {
            line += 1;
        }
        if line > first {
            coherence::write_back(
                pool.frames.region(),
                page_at + (first * LINE) as u64,
                (line - first) * LINE,
            );
        }
        line += 1;
    }
}

impl Pool {
    /// The frame of `page`, latched, its bytes not read: for a caller that makes it anew.
    pub(crate) fn exclusive_unread(&self, page: PageId) -> Result<Latched> {
        let key = crate::hash::key_of(page);
        loop {
            if let Some(frame) = self.hash.find(&self.frames, key)
                && let Some(latched) = self.latch_exclusive(frame, key)?
            {
                self.used(Points, self.frames.descriptor(frame));
                return Ok(latched);
            }
            let claimed = self.claim()?;
            if self.publish(claimed, page)?.is_none() {
                bump(&self.counters().misses, 1);
                transition(
                    self.frames.descriptor(claimed.frame),
                    &[FrameState::Loading],
                    FrameState::Used,
                );
                self.lists().put(List::Warm, claimed.frame);
                if self.host && !planted(Fault::NewPageFlush) {
                    // The latch was flushed when the frame was free. Until commit nothing else in memory says which
                    // page is in it, and its redo is durable before that.
                    self.persist_descriptor(claimed.frame);
                }
                return Ok(claimed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_noted() {
        let mut dirty = [0; 4];
        note_lines(&mut dirty, 63, 2);
        note_lines(&mut dirty, PAGE_SIZE - 1, 1);
        note_lines(&mut dirty, 100, 0);
        assert_eq!(dirty, [0b11, 0, 0, 1 << 63]);
    }
}
