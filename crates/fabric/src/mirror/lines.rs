//! Lines on their way to a mirror: each once, as it was copied last.

use crate::LINE;
use crate::memory::RegionMemory;
use cenote_base::rt::HashMap;
use core::sync::atomic::{Ordering, fence};

/// Lines of the longest run that goes as one write.
const RUN_MAX: usize = (64 << 10) / LINE;
/// In the place of an offset: no line begins there.
const FORGOTTEN: u64 = u64::MAX;

/// See the module. Emptied, it keeps its memory for the next lines.
#[derive(Default)]
pub(super) struct Lines {
    offs: Vec<u64>,
    bytes: Vec<[u8; LINE]>,
    /// Where a line stands, by its offset.
    places: HashMap<u64, u32>,
}

/// A line: where it lies, and its bytes.
pub(super) type Line<'a> = (u64, &'a [u8; LINE]);

impl Lines {
    pub(super) fn is_empty(&self) -> bool {
        self.offs.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.offs.len()
    }

    pub(super) fn clear(&mut self) {
        self.offs.clear();
        self.bytes.clear();
        self.places.clear();
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

    /// Those that `others` has are not among them any more.
    pub(super) fn forget(&mut self, others: &[Line<'_>]) {
        for (at, _) in others {
            if let Some(place) = self.places.remove(at) {
                self.offs[place as usize] = FORGOTTEN;
            }
        }
    }

    /// All of them, in the order of memory.
    pub(super) fn sorted(&self) -> Vec<Line<'_>> {
        let lines = self.offs.iter().copied().zip(&self.bytes);
        let mut lines: Vec<Line<'_>> = lines.filter(|(at, _)| *at != FORGOTTEN).collect();
        lines.sort_unstable_by_key(|(at, _)| *at);
        lines
    }
}

/// The lines of several batches in the order of memory, each once: as the last batch that has it does.
pub(super) fn latest<'a>(batches: impl Iterator<Item = Line<'a>>) -> Vec<Line<'a>> {
    let lines: Vec<Line<'a>> = batches.collect();
    let mut order: Vec<(u64, u32)> = lines.iter().map(|(at, _)| *at).zip(0..).collect();
    order.sort_unstable();
    let is_last = |i: usize| order.get(i + 1).is_none_or(|next| next.0 != order[i].0);
    (0..order.len())
        .filter(|i| is_last(*i))
        .map(|i| lines[order[i].1 as usize])
        .collect()
}

/// Adjacent lines together, as one write each.
pub(super) fn runs<'l, 'a>(sorted: &'l [Line<'a>]) -> impl Iterator<Item = &'l [Line<'a>]> {
    sorted
        .chunk_by(|one, next| one.0 + LINE as u64 == next.0)
        .flat_map(|run| run.chunks(RUN_MAX))
}

/// The writes that put lines in their places.
pub(super) fn writes(sorted: &[Line<'_>]) -> Vec<(u64, Box<[u8]>)> {
    let bytes = |run: &[Line<'_>]| {
        let mut bytes = Vec::with_capacity(run.len() * LINE);
        run.iter().for_each(|(_, line)| bytes.extend_from_slice(&line[..]));
        bytes.into_boxed_slice()
    };
    runs(sorted).map(|run| (run[0].0, bytes(run))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batch_counts_and_adjacent_lines_go_together() {
        let lines: Vec<[u8; LINE]> = (0..5).map(|i| [i; LINE]).collect();
        let batches = [(128, 0), (0, 1), (64, 2), (128, 3), (512, 4)].map(|(at, i)| (at, &lines[i as usize]));
        let latest = latest(batches.into_iter());
        let ats: Vec<(u64, u8)> = latest.iter().map(|(at, line)| (*at, line[0])).collect();
        assert_eq!(ats, [(0, 1), (64, 2), (128, 3), (512, 4)]);
        let writes: Vec<(u64, usize)> = writes(&latest).iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        assert_eq!(writes, [(0, 3 * LINE), (512, LINE)]);
    }

    #[test]
    fn long_runs_are_cut() {
        let line = [7; LINE];
        let lines: Vec<Line<'_>> = (0..2 * RUN_MAX as u64 + 1).map(|i| (i * LINE as u64, &line)).collect();
        let lens: Vec<usize> = runs(&lines).map(<[_]>::len).collect();
        assert_eq!(lens, [RUN_MAX, RUN_MAX, 1]);
    }
}
