//! Remote memory is filled with what readers use (PolarDB Serverless, section 3.1: one remote memory for all servers).
//!
//! ```text
//!  reader:  miss, asked for ─▶ noted ─▶ with the next question to a storage node, which keeps it for
//!  server:  twice a second: pages that readers have asked for
//!             in a frame, copy missing or old, page not changed since the last turn ─▶ written to its slot
//!             in no frame, has a copy  ─▶ its slot counts as used now
//!             in no frame, has none    ─▶ read from storage, written to a slot, its frame is the next to leave
//! ```
//!
//! A page comes here as by any other miss, so nothing has to be known of it for certain. One that changes all the time
//! is left to storage nodes: its copy would be overtaken at once. What is too much for a turn is dropped: a page that
//! is in use is asked for again.

use cenote_base::page_io::PageIo;
use cenote_base::{Lsn, PageId, Result};

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

impl Pool {
    /// Fills remote memory with what readers have asked for. A thread does so twice a second.
    ///
    /// # Errors
    /// Those of asking storage nodes, and of the log. What was asked for is dropped then.
    pub fn fill_for_readers(&self) -> Result<()> {
        let Some(nodes) = self.storage.nodes().filter(|_| self.lower.has_readers()) else {
            return Ok(());
        };
        let mut settled = self.settled.lock();
        let now = self.storage.durable_lsn();
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
        let pushed = self.push_for_readers(&inside, *settled);
        self.bring_for_readers(&outside);
        *settled = now;
        pushed
    }

    /// Pages in frames that have not changed since `settled`.
    fn push_for_readers(&self, frames: &[FrameIndex], settled: Lsn) -> Result<()> {
        let is_lacking = |frame: &&FrameIndex| {
            let trace = self.trace_of(**frame);
            let page = self.page_in(**frame).filter(|_| trace.lsn <= settled);
            page.is_some_and(|page| self.lower.way_out(page, &trace, true) == EvictionStep::Push)
        };
        let lacking: Vec<FrameIndex> = frames.iter().filter(is_lacking).copied().take(MOST).collect();
        for batch in lacking.chunks(BATCH).take_while(|_| !self.is_stopping()) {
            self.push_down(batch)?;
            bump(&self.counters().pages_filled, batch.len() as u64);
        }
        Ok(())
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
