//! Remote memory is filled with what readers use (PolarDB Serverless, section 3.1: one remote memory for all servers).
//!
//! ```text
//!  reader:  miss, asked for ─▶ noted ─▶ with the next question to a storage node, which keeps it for
//!  server:  twice a second: pages that readers have asked for
//!             in a frame, copy missing or old, page not changed since the last turn ─▶ written to its slot
//!             in no frame, has a copy  ─▶ its slot counts as used now
//!             in no frame, has none    ─▶ read from storage, written to a slot, its frame is the next to leave
//!           and while slots are free: pages in frames without a copy, not changed since ─▶ written to a slot
//! ```
//!
//! So the pages of a memory node that was lost are registered again from the server's frames (section 5.2), as soon as
//! slots are free: in other slabs, in one more, or in memory that is reached again, empty.
//!
//! A page comes here as by any other miss, so nothing has to be known of it for certain. One that changes all the time
//! is left to storage nodes: its copy would be overtaken at once. What is too much for a turn is dropped: a page that
//! is in use is asked for again.

use cenote_base::page_io::PageIo;
use cenote_base::rt::atomic::AtomicU64;
use cenote_base::{Lsn, PageId, Result};

use crate::filling::Filling;
use crate::hash::key_of;
use crate::index::FrameIndex;
use crate::lists::Hint;
use crate::lower::EvictionStep;
use crate::pool::Pool;
use crate::stats::bump;
use crate::writeback::BATCH;

/// Pages that are written to remote memory for readers in a turn: 32 MiB.
const MOST: usize = 2048;
/// How often frames are looked for, for a batch.
const TRIES: u32 = 4;
/// Pages of frames that get a copy in a turn: 8 MiB; and frames that are looked at for that.
const REGISTERED_MOST: usize = 512;
const LOOKED_AT: u32 = 8192;

impl Pool {
    /// Fills remote memory that servers share, with what readers have asked for, and with pages in frames while there
    /// is room. A thread does so twice a second.
    ///
    /// # Errors
    /// Those of asking storage nodes, and of the log. What was asked for is dropped then.
    pub fn fill_remote(&self) -> Result<()> {
        if !self.lower.has_readers() {
            return Ok(());
        }
        let mut filling = self.filling.lock();
        let now = self.storage.durable_lsn();
        let filled = self.fill_for_readers(filling.settled);
        let registered = self.register_frames(&mut filling);
        filling.settled = now;
        filled.and(registered)
    }

    fn fill_for_readers(&self, settled: Lsn) -> Result<()> {
        let Some(nodes) = self.storage.nodes() else {
            return Ok(());
        };
        let asked = nodes.take_asked()?;
        if self.is_stopping() {
            return Ok(());
        }
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for page in asked
            .into_iter()
            .filter(|page| self.storage.pages().has_space(page.space))
        {
            match self.hash.find(&self.frames, key_of(page)) {
                Some(frame) => inside.push(frame),
                None => outside.push(page),
            }
        }
        let pushed = self.push_for_readers(&inside, settled);
        self.bring_for_readers(&outside);
        pushed
    }

    /// The page of a frame, unless it has changed since `settled`.
    fn settled_in(&self, frame: FrameIndex, settled: Lsn) -> Option<PageId> {
        self.page_in(frame).filter(|_| self.trace_of(frame).lsn <= settled)
    }

    /// Pages in frames that have not changed since `settled`.
    fn push_for_readers(&self, frames: &[FrameIndex], settled: Lsn) -> Result<()> {
        let is_lacking = |frame: &&FrameIndex| {
            let way = |page| self.lower.way_out(page, &self.trace_of(**frame), true);
            self.settled_in(**frame, settled).map(way) == Some(EvictionStep::Push)
        };
        let lacking: Vec<FrameIndex> = frames.iter().filter(is_lacking).copied().take(MOST).collect();
        self.push_all(&lacking, &self.counters().pages_filled)
    }

    fn push_all(&self, frames: &[FrameIndex], counter: &AtomicU64) -> Result<()> {
        for batch in frames.chunks(BATCH).take_while(|_| !self.is_stopping()) {
            self.push_down(batch)?;
            bump(counter, batch.len() as u64);
        }
        Ok(())
    }

    /// Pages in frames that were asked for and have no copy get one, some in a turn, while slots are free.
    fn register_frames(&self, filling: &mut Filling) -> Result<()> {
        let room = self.lower.room_for_frames().min(REGISTERED_MOST);
        let (mut lacking, frames) = (Vec::new(), self.frames.count());
        for _ in 0..LOOKED_AT.min(frames) {
            if lacking.len() == room {
                break;
            }
            let frame = FrameIndex::new(filling.next % frames);
            filling.next = (filling.next + 1) % frames;
            let page = self.settled_in(frame, filling.settled).filter(|_| self.is_warm(frame));
            lacking.extend(page.filter(|page| self.lower.lacks_copy(*page)).map(|_| frame));
        }
        self.push_all(&lacking, &self.counters().pages_registered)
    }

    fn bring_for_readers(&self, pages: &[PageId]) {
        let lacking = self.lower.used_by_readers(pages);
        let lacking = &lacking[..lacking.len().min(MOST)];
        for batch in lacking.chunks(self.together_most()) {
            if self.is_stopping() {
                return;
            }
            self.make_room_for(batch.len());
            self.bring_some(batch, Hint::OfReader);
        }
    }

    /// Frames for a batch: those of the last one are the first to go, and are where they belong already.
    fn make_room_for(&self, wanted: usize) {
        for _ in 0..TRIES {
            let free = self.free_now(&self.lists()) as usize;
            // What fails, fails for the threads that need a frame.
            if free >= wanted || self.evict_some(wanted - free).is_err() {
                return;
            }
        }
    }
}
