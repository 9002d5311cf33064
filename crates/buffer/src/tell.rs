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
//! written (its bit in `writing`) could get a name after its change: it is looked at again, and if that goes on the
//! watermark of this round stays where it was. A copy that a miss writes is written while its frame is latched and
//! loading: nothing changes the page. A page that was evicted left with a copy as new as it was, or without one; while
//! pages are given up no round runs.
//!
//! The position is durable: a later start of the database, whose log may go on from there, changes nothing at or below
//! it, though it may not reach this memory.

use cenote_base::page_io::PageIo;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Lsn, PageId};

use crate::index::FrameIndex;
use crate::pool::Pool;
use crate::slots;
use crate::writeback::BATCH;

/// How often, and after which time, frames are looked at again that are being written.
const AGAIN: u32 = 10;
const TURN: Nanos = Nanos::from_millis(1);

/// What a frame that is noted has.
enum Changed {
    Page(PageId, Lsn),
    /// No page, or one that is coming in.
    Nothing,
    Moving,
}

impl Pool {
    /// Tells readers of remote memory what has changed. A thread does so all the time, unless the pool has none.
    pub fn tell_readers(&self) {
        let Some(overtaken) = &self.overtaken else { return };
        let _one = self.telling.lock();
        let to = self.told_to();
        let mut busy = Vec::new();
        overtaken.take(BATCH, |frames| {
            frames.chunks(BATCH).for_each(|batch| busy.extend(self.tell(batch)));
        });
        for _ in 0..AGAIN {
            if busy.is_empty() || planted(Fault::WatermarkEarly) {
                break;
            }
            rt::sleep(TURN);
            let left = std::mem::take(&mut busy);
            left.chunks(BATCH).for_each(|batch| busy.extend(self.tell(batch)));
        }
        busy.iter().for_each(|frame| self.overtook(*frame));
        if busy.is_empty() || planted(Fault::WatermarkEarly) {
            self.lower.told_changes(to);
        }
    }

    fn told_to(&self) -> Lsn {
        let durable = self.storage.durable_lsn();
        match slots::least_floor(&self.frames) {
            Some(floor) if !planted(Fault::WatermarkFloor) => floor.min(durable),
            _ => durable,
        }
    }

    /// Those of which readers were not told.
    fn tell(&self, frames: &[FrameIndex]) -> Vec<FrameIndex> {
        let (marked, mut busy): (Vec<FrameIndex>, Vec<FrameIndex>) =
            frames.iter().partition(|frame| self.mark_writing(**frame));
        let mut pages = Vec::with_capacity(marked.len());
        for frame in &marked {
            match self.changed_page(*frame) {
                Changed::Page(page, lsn) => pages.push((page, lsn)),
                Changed::Nothing => {}
                Changed::Moving => busy.push(*frame),
            }
        }
        self.lower.changed(&pages);
        marked.into_iter().for_each(|frame| self.unmark_writing(frame));
        busy
    }

    /// The page of a frame and its LSN. An evictor that had looked before the frame was marked may take the page out,
    /// and another may come in: the LSN is the page's only where that is there afterwards.
    fn changed_page(&self, frame: FrameIndex) -> Changed {
        let Some(page) = self.page_in(frame) else {
            return Changed::Nothing;
        };
        let lsn = self.frames.descriptor(frame).lsn.load(Ordering::SeqCst);
        match self.page_in(frame) == Some(page) {
            false => Changed::Moving,
            true if lsn == Lsn::ZERO => Changed::Nothing,
            true => Changed::Page(page, lsn),
        }
    }

    /// The page of this frame has changed.
    #[inline]
    pub(crate) fn overtook(&self, frame: FrameIndex) {
        if let Some(overtaken) = &self.overtaken {
            overtaken.note(frame);
        }
    }
}
