//! What readers of remote memory are told: the copies that a change has overtaken, and up to where that is done.
//!
//! ```text
//!  commit: page's LSN, frame's bit ─▶ floor goes        (mtr.rs)
//!  round:  position = least of the log's durable end and the floors of running commits
//!          bits are taken ─▶ names of copies with another LSN are ended, and acknowledged ─▶ watermark = position
//! ```
//!
//! Why it is true. A commit at or below the position has removed its floor before that was looked at, so its frames'
//! bits were set: this round takes them, or one before did and saw the change. A frame from which a copy is just being
//! written (its bit in `writing`) could get a name after its change: it is put back, and the watermark of this round
//! stays where it was. A page that has left its frame left with a copy as new as it was, or without one.
//!
//! The position is durable: a later start of the database, whose log may go on from there, changes nothing at or below
//! it, though it may not reach this memory.

use cenote_base::page_io::PageIo;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Lsn, PageId};

use crate::index::FrameIndex;
use crate::pool::Pool;
use crate::slots;
use crate::writeback::BATCH;

impl Pool {
    /// Tells readers of remote memory what has changed. A thread does so all the time, unless the pool has none.
    pub fn tell_readers(&self) {
        let Some(overtaken) = &self.overtaken else { return };
        let _one = self.telling.lock();
        let to = self.told_to();
        let mut all = true;
        overtaken.take(BATCH, |frames| {
            for batch in frames.chunks(BATCH) {
                all &= self.tell(batch);
            }
        });
        if (all || planted(Fault::WatermarkEarly)) && self.told.load(Ordering::Relaxed) < to {
            self.lower.told_changes(to);
            self.told.store(to, Ordering::Relaxed);
        }
    }

    fn told_to(&self) -> Lsn {
        let durable = self.storage.durable_lsn();
        match slots::least_floor(&self.frames) {
            Some(floor) if !planted(Fault::WatermarkFloor) => floor.min(durable),
            _ => durable,
        }
    }

    /// Says whether all of them were told.
    fn tell(&self, frames: &[FrameIndex]) -> bool {
        let mut marked = Vec::with_capacity(frames.len());
        let mut all = true;
        for frame in frames {
            match self.mark_writing(*frame) {
                true => marked.push(*frame),
                false => {
                    self.overtook(*frame);
                    all = false;
                }
            }
        }
        let pages: Vec<(PageId, Lsn)> = marked.iter().filter_map(|frame| self.changed_page(*frame)).collect();
        let told = self.lower.changed(&pages);
        marked.into_iter().for_each(|frame| self.unmark_writing(frame));
        told && all
    }

    fn changed_page(&self, frame: FrameIndex) -> Option<(PageId, Lsn)> {
        let page = self.page_in(frame)?;
        let lsn = self.frames.descriptor(frame).lsn.load(Ordering::Acquire);
        (lsn != Lsn::ZERO).then_some((page, lsn))
    }

    /// The page of this frame has changed.
    #[inline]
    pub(crate) fn overtook(&self, frame: FrameIndex) {
        if let Some(overtaken) = &self.overtaken {
            overtaken.note(frame);
        }
    }
}
