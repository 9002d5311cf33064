//! Lines on their way to a mirror: each once, as it was copied last.

use crate::LINE;
use crate::memory::RegionMemory;
use cenote_base::rt::HashMap;
use core::sync::atomic::{Ordering, fence};

/// Bytes of the longest run that goes as one write.
const RUN_MAX: usize = 64 << 10;
/// In the place of an offset: no line begins there.
const FORGOTTEN: u64 = u64::MAX;

/// See the module.
#[derive(Default)]
pub(super) struct Lines {
    offs: Vec<u64>,
    bytes: Vec<[u8; LINE]>,
    /// Where a line stands, by its offset.
    places: HashMap<u64, u32>,
}

/// Adjacent lines: where they lie, and their bytes.
pub(super) type Run = (u64, Vec<u8>);

impl Lines {
    pub(super) fn is_empty(&self) -> bool {
        self.offs.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.offs.len()
    }

    /// Takes whole lines of `memory`, each in the place of what was taken of it before. Words are loaded first to last:
    /// a line that is being stored to shows its first word no newer than the others.
    pub(super) fn take(&mut self, memory: &RegionMemory, off: u64, len: usize) {
        for at in (off..off + len as u64).step_by(LINE) {
            let block = memory.block::<LINE>(at);
            let mut line = [0; LINE];
            for (i, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = block.u64(8 * i).to_le_bytes();
                fence(Ordering::Acquire);
            }
            self.put(at, line);
        }
    }

    fn put(&mut self, at: u64, line: [u8; LINE]) {
        match self.places.get(&at) {
            Some(place) => self.bytes[*place as usize] = line,
            None => {
                self.places.insert(at, self.offs.len() as u32);
                self.offs.push(at);
                self.bytes.push(line);
            }
        }
    }

    /// What was taken after goes over what was taken before.
    pub(super) fn extend(&mut self, later: &Lines) {
        for (at, line) in later.offs.iter().zip(&later.bytes) {
            self.put(*at, *line);
        }
    }

    /// Those that `others` has are not among them any more.
    pub(super) fn forget(&mut self, others: &Lines) {
        for at in &others.offs {
            if let Some(place) = self.places.remove(at) {
                self.offs[place as usize] = FORGOTTEN;
            }
        }
    }

    /// All of them in order, adjacent ones together.
    pub(super) fn runs(&self) -> Vec<Run> {
        let places = self.offs.iter().copied().zip(0..);
        let mut order: Vec<(u64, usize)> = places.filter(|(at, _)| *at != FORGOTTEN).collect();
        order.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        for (at, place) in order {
            match runs.last_mut() {
                Some((from, run)) if *from + run.len() as u64 == at && run.len() < RUN_MAX => {
                    run.extend_from_slice(&self.bytes[place]);
                }
                _ => runs.push((at, self.bytes[place].to_vec())),
            }
        }
        runs
    }
}
