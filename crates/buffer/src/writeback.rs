//! Write-back: changed pages go to storage, in sorted batches, after their redo.
//!
//! 1. Mark the frame as being written; copy its page under a shared latch that is only tried; let go.
//! 2. Make the log durable up to the greatest LSN of the batch (write-ahead rule).
//! 3. Hand the batch, sorted by page, to storage: torn-safe and synced when it returns.
//! 4. For each frame that still holds the page: it is clean, or, if it changed meanwhile, its oldest
//!    unsaved change lies at or above the LSN of the copy.
//!
//! Invariants:
//! - one write-back of a frame at a time: its bit in `writing`;
//! - a page handed to storage has an LSN that is durable: asserted here, and at each read (pool.rs);
//! - a descriptor changes in step 4 under its exclusive latch, so that a process which dies in the middle of it leaves
//!   a frame that is repaired; the page does not change, so its version stays. If the latch is not to be had soon (its
//!   holder may be waiting for this thread), the frame stays dirty: it is written again, nothing is wrong;
//! - while a frame's bit in `writing` is set its page does not leave it: eviction passes by, and a thread that gives
//!   the page up waits (discard.rs). So nothing reaches storage of a page that was given up.

use cenote_base::page_io::{PageIo, PageWrite, Sectors};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self};
use cenote_base::{Lsn, PAGE_SIZE, PageId, RecordAddr, Result};

use crate::chain::Chain;
use crate::hash::page_of;
use crate::index::FrameIndex;
use crate::latch;
use crate::layout::{Descriptor, FrameState};
use crate::lower::Outgoing;
use crate::pool::Pool;
use crate::stats::bump;

/// Pages written at once.
pub(crate) const BATCH: usize = 256;
/// Turns spent on a latch at the end of a write-back.
const TURNS: usize = 2000;

/// A page on its way to storage.
struct Copied {
    frame: FrameIndex,
    page: PageId,
    lsn: Lsn,
    chain: Chain,
    /// What storage lacks of it.
    new: Sectors,
    /// Which part of the batch's buffer.
    at: usize,
}

impl Pool {
    /// Writes back those of `frames` that are dirty and free to read, at most [`BATCH`]; says how many.
    ///
    /// # Errors
    /// Those of the log and of storage; frames stay dirty then.
    pub(crate) fn write_back(&self, frames: &[FrameIndex]) -> Result<usize> {
        let mut buffer = Vec::with_capacity(frames.len().min(BATCH) * PAGE_SIZE);
        let mut copied = Vec::new();
        for frame in frames.iter().take(BATCH) {
            if self.mark_writing(*frame) {
                match self.copy_dirty(*frame, &mut buffer) {
                    Some(copy) => copied.push(copy),
                    None => self.unmark_writing(*frame),
                }
            }
        }
        assert!(copied.len() <= BATCH, "a batch has at most {BATCH} pages");
        assert!(
            buffer.len() == copied.len() * PAGE_SIZE,
            "the buffer holds one copy of each page of the batch"
        );
        let mut written = if copied.is_empty() {
            Ok(())
        } else {
            let _writing = self.under_way.write(copied.len());
            self.write_copies(&mut copied, &buffer)
        };
        if written.is_err() {
            copied
                .iter()
                .for_each(|copy| self.changed.give_back(copy.frame, copy.new));
        }
        for copy in &copied {
            if written.is_ok() {
                written = self.complete(copy);
            }
            self.unmark_writing(copy.frame);
        }
        written.map(|()| copied.len())
    }

    pub(crate) fn mark_writing(&self, frame: FrameIndex) -> bool {
        let bit = 1 << (frame.raw() % 64);
        self.writing[frame.place() / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    pub(crate) fn unmark_writing(&self, frame: FrameIndex) {
        let bit = 1 << (frame.raw() % 64);
        let before = self.writing[frame.place() / 64].fetch_and(!bit, Ordering::AcqRel);
        assert!(before & bit != 0, "the write-back of frame {frame} ends once");
    }

    fn copy_dirty(&self, frame: FrameIndex, buffer: &mut Vec<u8>) -> Option<Copied> {
        let d = self.frames.descriptor(frame);
        if d.rec.load(Ordering::Relaxed) == Lsn::ZERO || !latch::try_shared(&d.latch, self.owner) {
            return None;
        }
        let copy = self.copy_latched(frame, d, buffer);
        self.unlatch_shared(frame);
        copy
    }

    fn copy_latched(&self, frame: FrameIndex, d: &Descriptor, buffer: &mut Vec<u8>) -> Option<Copied> {
        let key = d.key.load(Ordering::Relaxed);
        let used = FrameState::of(d.state.load(Ordering::Relaxed)) == Some(FrameState::Used);
        if !used || key == 0 || d.rec.load(Ordering::Relaxed) == Lsn::ZERO {
            return None;
        }
        let at = buffer.len();
        assert!(at.is_multiple_of(PAGE_SIZE), "copies lie page by page in the buffer");
        self.frames.page(frame).append_to(0, PAGE_SIZE, buffer);
        Some(Copied {
            frame,
            page: page_of(key),
            lsn: d.lsn.load(Ordering::Relaxed),
            chain: d.chain.load(Ordering::Relaxed),
            new: self.changed.take(frame),
            at,
        })
    }

    fn write_copies(&self, copied: &mut [Copied], buffer: &[u8]) -> Result<()> {
        let newest = copied.iter().map(|c| c.lsn).max().unwrap_or(Lsn::ZERO);
        if !planted(Fault::PageBeforeLog) {
            self.storage.ensure_durable(newest)?;
        }
        assert!(
            self.storage.durable_lsn() >= newest,
            "write-ahead rule: {newest} is not durable"
        );
        copied.sort_unstable_by_key(|c| c.page);
        // A page of a space that was dropped is saved by not being needed any more.
        let pages: Vec<PageWrite<'_>> = copied
            .iter()
            .filter(|c| self.storage.pages().has_space(c.page.space))
            .map(|c| PageWrite {
                id: c.page,
                bytes: &buffer[c.at..c.at + PAGE_SIZE],
                changed: c.new,
            })
            .collect();
        self.lower.before_save(&pages)?;
        self.storage.write_changes(&pages)?;
        bump(&self.counters().pages_written, pages.len() as u64);
        Ok(())
    }

    fn complete(&self, copy: &Copied) -> Result<()> {
        for _ in 0..TURNS {
            if let Some(latched) = self.try_latch_exclusive(copy.frame)? {
                let d = self.frames.descriptor(copy.frame);
                if d.key.load(Ordering::Relaxed) == crate::hash::key_of(copy.page) {
                    self.saved(d, copy);
                }
                self.unlatch(latched, false);
                return Ok(());
            }
            rt::relax();
        }
        Ok(())
    }

    /// Storage has the page as of the copy.
    fn saved(&self, d: &Descriptor, copy: &Copied) {
        let all = d.lsn.load(Ordering::Relaxed) == copy.lsn || planted(Fault::SavedWhole);
        if all {
            d.head.store(RecordAddr::NONE, Ordering::Release);
            d.chain.store(Chain::default(), Ordering::Release);
            d.rec.store(Lsn::ZERO, Ordering::Release);
        } else {
            mark::pass(Mark::ChangedInFlight);
            since_copy(d, copy);
        }
        d.seal();
        self.lower.saved(copy.page, copy.lsn, all);
    }

    // ---- to the tier below ----

    /// Hands those of `frames` that are free to read to the tier below, at most [`BATCH`]. They stay as they are: it is
    /// not storage that got them.
    ///
    /// # Errors
    /// Those of the log.
    pub(crate) fn push_down(&self, frames: &[FrameIndex]) -> Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        let mut marked = Vec::new();
        let mut outgoing = Vec::new();
        for frame in frames.iter().take(BATCH) {
            if self.mark_writing(*frame) {
                marked.push(*frame);
                outgoing.extend(self.copy_out(*frame));
            }
        }
        assert!(
            outgoing.len() <= marked.len() && marked.len() <= BATCH,
            "only pages of frames that are marked go to the tier below"
        );
        let newest = outgoing.iter().map(|o| o.lsn).max().unwrap_or(Lsn::ZERO);
        let _writing = self.under_way.write(outgoing.len());
        let durable = match planted(Fault::RemoteBeforeLog) {
            true => Ok(()),
            false => self.storage.ensure_durable(newest),
        };
        if durable.is_ok() && !outgoing.is_empty() {
            assert!(
                self.storage.durable_lsn() >= newest,
                "write-ahead rule: {newest} is not durable, and remote memory was to get it"
            );
            self.lower.push(outgoing);
        }
        marked.into_iter().for_each(|frame| self.unmark_writing(frame));
        durable
    }

    fn copy_out(&self, frame: FrameIndex) -> Option<Outgoing> {
        let d = self.frames.descriptor(frame);
        if !latch::try_shared(&d.latch, self.owner) {
            return None;
        }
        let key = d.key.load(Ordering::Relaxed);
        let used = FrameState::of(d.state.load(Ordering::Relaxed)) == Some(FrameState::Used);
        let outgoing = (used && key != 0).then(|| {
            let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
            self.frames.page(frame).copy_out(0, &mut bytes);
            Outgoing {
                page: page_of(key),
                lsn: d.lsn.load(Ordering::Relaxed),
                bytes,
            }
        });
        self.unlatch_shared(frame);
        outgoing
    }

    /// Whether a write-back or a push of `frame` is under way.
    pub(crate) fn is_writing(&self, frame: FrameIndex) -> bool {
        self.writing[frame.place() / 64].load(Ordering::Acquire) & 1 << (frame.raw() % 64) != 0
    }
}

/// The page changed since it was copied: all that storage lacks is in groups after the copy's last.
fn since_copy(d: &Descriptor, copy: &Copied) {
    let now = d.chain.load(Ordering::Relaxed);
    if now.count >= copy.chain.count && now.lines >= copy.chain.lines {
        let since = Chain {
            count: now.count - copy.chain.count,
            lines: now.lines - copy.chain.lines,
        };
        d.chain.store(since, Ordering::Release);
    }
    d.rec
        .store(d.rec.load(Ordering::Relaxed).max(copy.lsn), Ordering::Release);
}
