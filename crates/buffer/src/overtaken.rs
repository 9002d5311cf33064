//! Frames whose page has changed since readers of remote memory were told: a bit each, in the process's own memory.
//!
//! Invariant: a group of redo whose commit is over (its floor is gone) has set the bits of its frames, or had them set
//! and taken behind its changes.

use std::sync::atomic as raw;

use cenote_base::rt::atomic::{AtomicU64, Ordering};

use crate::index::FrameIndex;

/// See the module.
pub(crate) struct OvertakenFrames {
    words: Box<[AtomicU64]>,
    frames: u32,
}

impl OvertakenFrames {
    /// All are to be looked at first: what a start has found of copies may be older than its frames.
    pub fn new(frames: u32) -> Self {
        Self {
            words: (0..frames.div_ceil(64)).map(|_| AtomicU64::new(u64::MAX)).collect(),
            frames,
        }
    }

    fn word(&self, frame: FrameIndex) -> (&raw::AtomicU64, u64) {
        (self.words[frame.place() / 64].as_raw(), 1 << (frame.raw() % 64))
    }

    /// The frame's page has changed: after its LSN says so, before the commit's floor goes. Also where the bit is set
    /// already: a thread that takes it then sees the LSN, which a look alone would not make sure of.
    #[inline]
    pub fn note(&self, frame: FrameIndex) {
        let (word, bit) = self.word(frame);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    /// Takes those that are noted, a batch for `take` at a time.
    pub fn take(&self, batch: usize, mut take: impl FnMut(&[FrameIndex])) {
        let mut gathered = Vec::with_capacity(batch + 64);
        for (at, word) in self.words.iter().enumerate() {
            let mut bits = match word.load(Ordering::SeqCst) {
                0 => continue,
                _ => word.swap(0, Ordering::SeqCst),
            };
            while bits != 0 {
                let frame = (at * 64) as u32 + bits.trailing_zeros();
                bits &= bits - 1;
                gathered.extend((frame < self.frames).then(|| FrameIndex::new(frame)));
            }
            if gathered.len() >= batch {
                take(&gathered);
                gathered.clear();
            }
        }
        if !gathered.is_empty() {
            take(&gathered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(frames: &OvertakenFrames) -> Vec<u32> {
        let mut all = Vec::new();
        frames.take(16, |some| all.extend(some.iter().map(|frame| frame.raw())));
        all
    }

    #[test]
    fn each_is_taken_once_for_each_note() {
        let frames = OvertakenFrames::new(130);
        assert_eq!(taken(&frames), (0..130).collect::<Vec<_>>(), "all at first");
        assert!(taken(&frames).is_empty());
        for frame in [129, 3, 64, 3] {
            frames.note(FrameIndex::new(frame));
        }
        assert_eq!(taken(&frames), [3, 64, 129]);
        assert!(taken(&frames).is_empty());
    }
}
