//! What changed of a page since storage got it: a bit for each sector, in the process's own memory.
//!
//! Storage is handed the whole page and what of it is new, so that it need not write the rest. Nothing that matters
//! rests on it being known: of a frame that this process has not read from storage, the whole page is new. It goes with
//! the page to remote memory, and comes back with it ([`crate::lower::Trace`]).
//!
//! Invariants:
//! - a sector is *saved* only if it is byte for byte as the last read or write of the page by this process left it in
//!   storage;
//! - it ceases to be before its bytes change, under the frame's exclusive latch;
//! - a write-back takes what is new while it copies the page, under a latch. What it could not write is new again.

use std::sync::OnceLock;
use std::sync::atomic as raw;

use cenote_base::page_io::Sectors;
use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::fault::{Fault, planted};

use crate::index::FrameIndex;

/// Frames whose words are made together, when one of them is needed.
const CHUNK: usize = 1 << 14;

type Words = Box<[AtomicU32]>;

/// The sectors of each frame that are saved. Where there is no word yet, none is.
pub(crate) struct ChangedSectors {
    chunks: Box<[OnceLock<Words>]>,
}

impl ChangedSectors {
    pub fn new(frames: u32) -> ChangedSectors {
        let chunks = (frames as usize).div_ceil(CHUNK);
        ChangedSectors {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The frame's word. No preemption point: each access is under the frame's latch, but the one that takes bits away.
    #[inline]
    fn known(&self, frame: FrameIndex) -> Option<&raw::AtomicU32> {
        let words = self.chunks[frame.place() / CHUNK].get()?;
        Some(words[frame.place() % CHUNK].as_raw())
    }

    fn word(&self, frame: FrameIndex) -> &raw::AtomicU32 {
        let words = self.chunks[frame.place() / CHUNK].get_or_init(|| (0..CHUNK).map(|_| AtomicU32::new(0)).collect());
        words[frame.place() % CHUNK].as_raw()
    }

    /// `length` bytes of the page from `offset` on are about to change.
    #[inline]
    pub fn note(&self, frame: FrameIndex, offset: usize, length: usize) {
        let Some(saved) = self.known(frame) else { return };
        let new = Sectors::of(offset, length).raw();
        if saved.load(Ordering::Relaxed) & new != 0 && !planted(Fault::ChangedSector) {
            saved.fetch_and(!new, Ordering::Relaxed);
        }
    }

    /// The page is another, or has changed in ways that were not noted.
    pub fn all(&self, frame: FrameIndex) {
        if let Some(saved) = self.known(frame) {
            saved.store(0, Ordering::Relaxed);
        }
    }

    /// The page is as storage has it.
    pub fn none(&self, frame: FrameIndex) {
        self.word(frame).store(u32::MAX, Ordering::Relaxed);
    }

    /// What is saved: a page takes it along to remote memory.
    pub fn in_storage(&self, frame: FrameIndex) -> Sectors {
        let saved = self.known(frame).map_or(0, |word| word.load(Ordering::Relaxed));
        Sectors::from_raw(saved)
    }

    /// The page has come back with this saved, as it left.
    pub fn all_but(&self, frame: FrameIndex, in_storage: Sectors) {
        self.word(frame).store(in_storage.raw(), Ordering::Relaxed);
    }

    /// What is new; from here on nothing is.
    pub fn take(&self, frame: FrameIndex) -> Sectors {
        Sectors::from_raw(!self.word(frame).swap(u32::MAX, Ordering::Relaxed))
    }

    /// Storage did not get what was taken.
    pub fn give_back(&self, frame: FrameIndex, new: Sectors) {
        self.word(frame).fetch_and(!new.raw(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_taken_once_and_may_be_given_back() {
        let (changed, frame) = (ChangedSectors::new(4), FrameIndex::new(2));
        assert!(changed.take(frame).is_whole(), "nothing is known of a new frame");
        assert_eq!(changed.take(frame), Sectors::NONE);
        changed.note(frame, 1000, 100);
        changed.note(frame, 0, 8);
        let taken = changed.take(frame);
        assert_eq!(taken.raw(), 0b111);
        changed.note(frame, 16_000, 1);
        changed.give_back(frame, taken);
        assert_eq!(changed.take(frame).raw(), 0b111 | 1 << 31);
        changed.all(frame);
        assert!(changed.take(frame).is_whole());
        changed.note(frame, 0, 8);
        let (there, back) = (changed.in_storage(frame), FrameIndex::new(3));
        changed.all_but(back, there);
        assert_eq!(changed.take(back).raw(), 1);
        assert_eq!(changed.in_storage(FrameIndex::new(0)), Sectors::NONE);
        changed.all(frame);
        changed.none(frame);
        assert_eq!(changed.take(frame), Sectors::NONE);
    }
}
