//! Lines on their way to a mirror: each once, as it was copied last. They are kept by *stripes* of 64 lines, since most
//! of what a database flushes are ranges of a page: a range costs one look-up and one copy, however long it is.

use crate::LINE;
use crate::memory::RegionMemory;
use cenote_base::rt::HashMap;
use core::sync::atomic::{Ordering, fence};

const STRIPE: usize = 64 * LINE;
/// Bytes of the longest run that goes as one write.
const RUN_MAX: usize = 64 << 10;
/// Stripes that may be gathered: their memory is kept, 4 KiB for each.
const STRIPES_MAX: usize = 16;

/// See the module. Emptied, it keeps its memory for the next lines.
#[derive(Default)]
pub(super) struct Lines {
    /// The first `places.len()` are in use.
    stripes: Vec<Stripe>,
    /// Where a stripe stands, by its offset.
    places: HashMap<u64, u32>,
    count: usize,
}

struct Stripe {
    at: u64,
    /// The lines that are there, a bit for each.
    has: u64,
    bytes: Box<[u8; STRIPE]>,
}

/// Adjacent lines of one stripe: where they lie, and their bytes.
pub(super) type Piece<'a> = (u64, &'a [u8]);

impl Lines {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Whether they are of as many stripes as may be gathered.
    pub(super) fn is_spread(&self) -> bool {
        self.places.len() >= STRIPES_MAX
    }

    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.count = 0;
    }

    /// Takes whole lines of `memory`, each in the place of what was taken of it before; how many were not. Words are
    /// loaded first to last: a line that is being stored to shows its first word no newer than the others.
    pub(super) fn take(&mut self, memory: &RegionMemory, off: u64, len: usize) -> usize {
        let before = self.count;
        for (at, from, to) in stripes_of(off, len) {
            let stripe = self.stripe(at);
            for i in from..to {
                let block = memory.block::<LINE>(at + (i * LINE) as u64);
                let line = &mut stripe.bytes[i * LINE..(i + 1) * LINE];
                for (word, bytes) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    *bytes = block.u64(8 * word).to_le_bytes();
                    fence(Ordering::Acquire);
                }
            }
            let mask = mask_of(from, to);
            let newly = (mask & !stripe.has).count_ones();
            stripe.has |= mask;
            self.count += newly as usize;
        }
        self.count - before
    }

    fn stripe(&mut self, at: u64) -> &mut Stripe {
        let next = self.places.len();
        let place = *self.places.entry(at).or_insert(next as u32) as usize;
        if place == next {
            match self.stripes.get_mut(place) {
                Some(stripe) => (stripe.at, stripe.has) = (at, 0),
                None => self.stripes.push(Stripe {
                    at,
                    has: 0,
                    bytes: Box::new([0; STRIPE]),
                }),
            }
        }
        &mut self.stripes[place]
    }

    /// Those that `others` have are not among them any more.
    pub(super) fn forget(&mut self, others: &[Piece<'_>]) {
        for (at, bytes) in others {
            for (at, from, to) in stripes_of(*at, bytes.len()) {
                let Some(place) = self.places.get(&at) else { continue };
                let stripe = &mut self.stripes[*place as usize];
                let gone = stripe.has & mask_of(from, to);
                stripe.has &= !gone;
                self.count -= gone.count_ones() as usize;
            }
        }
    }

    /// All of them, in the order of memory.
    pub(super) fn sorted(&self) -> Vec<Piece<'_>> {
        sorted(core::slice::from_ref(self))
    }
}

/// All lines of all `parts`, which have none twice, in the order of memory.
pub(super) fn sorted(parts: &[Lines]) -> Vec<Piece<'_>> {
    let stripes = parts.iter().flat_map(|lines| &lines.stripes[..lines.places.len()]);
    let mut stripes: Vec<&Stripe> = stripes.collect();
    stripes.sort_unstable_by_key(|stripe| stripe.at);
    let pieces = stripes.into_iter().flat_map(|stripe| {
        let bytes = move |(from, to): (usize, usize)| {
            let at = stripe.at + (from * LINE) as u64;
            (at, &stripe.bytes[from * LINE..to * LINE])
        };
        ranges_of(stripe.has).map(bytes)
    });
    pieces.collect()
}

/// The stripes of a range of whole lines: where each begins, and which of its lines are meant.
fn stripes_of(off: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let (first, end) = (off / STRIPE as u64, off + len as u64);
    (first..end.div_ceil(STRIPE as u64)).map(move |stripe| {
        let at = stripe * STRIPE as u64;
        let inside = |byte: u64| (byte.clamp(at, at + STRIPE as u64) - at) as usize / LINE;
        (at, inside(off), inside(end))
    })
}

/// The bits of lines `from..to`, at least one.
fn mask_of(from: usize, to: usize) -> u64 {
    u64::MAX >> (64 - (to - from)) << from
}

/// The ranges of bits that are set, each as long as it can be, in order.
fn ranges_of(mut bits: u64) -> impl Iterator<Item = (usize, usize)> {
    core::iter::from_fn(move || {
        let from = bits.trailing_zeros() as usize;
        if from == 64 {
            return None;
        }
        let to = from + (bits >> from).trailing_ones() as usize;
        bits &= !mask_of(from, to);
        Some((from, to))
    })
}

/// Lines of several batches, the newest batch first, in the order of memory and each once: as the newest has it, if
/// that is one of the `oldest`, and none of the others.
pub(super) fn latest<'a, B: Iterator<Item = Piece<'a>>>(
    batches: impl ExactSizeIterator<Item = B>,
    oldest: usize,
) -> Vec<Piece<'a>> {
    let mut seen: HashMap<u64, u64> = HashMap::default();
    let mut pieces = Vec::new();
    let newer = batches.len() - oldest;
    let batches = batches.enumerate();
    for (n, (off, bytes)) in batches.flat_map(|(n, batch)| batch.map(move |piece| (n, piece))) {
        for (at, from, to) in stripes_of(off, bytes.len()) {
            let seen = seen.entry(at).or_default();
            let newly = mask_of(from, to) & !*seen;
            *seen |= newly;
            if n < newer {
                continue;
            }
            pieces.extend(ranges_of(newly).map(|(from, to)| {
                let begin = at + (from * LINE) as u64;
                let place = (begin - off) as usize;
                (begin, &bytes[place..place + (to - from) * LINE])
            }));
        }
    }
    pieces.sort_unstable_by_key(|(at, _)| *at);
    pieces
}

/// Adjacent lines together, as one write each.
pub(super) fn runs<'l, 'a>(sorted: &'l [Piece<'a>]) -> impl Iterator<Item = &'l [Piece<'a>]> {
    let mut len = 0;
    sorted.chunk_by(move |one, next| {
        len += one.1.len();
        let goes_on = one.0 + one.1.len() as u64 == next.0 && len + next.1.len() <= RUN_MAX;
        len = if goes_on { len } else { 0 };
        goes_on
    })
}

/// Bytes of them.
pub(super) fn bytes_of(pieces: &[Piece<'_>]) -> usize {
    pieces.iter().map(|(_, bytes)| bytes.len()).sum()
}

/// The writes that put lines in their places.
pub(super) fn writes(sorted: &[Piece<'_>]) -> Vec<(u64, Box<[u8]>)> {
    let joined = |run: &[Piece<'_>]| {
        let mut bytes = Vec::with_capacity(bytes_of(run));
        run.iter().for_each(|(_, piece)| bytes.extend_from_slice(piece));
        bytes.into_boxed_slice()
    };
    runs(sorted).map(|run| (run[0].0, joined(run))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::rt;
    use std::collections::BTreeMap;

    const AREA: u64 = 5 * STRIPE as u64;

    /// A range of whole lines, somewhere in the area.
    fn any_range() -> (u64, usize) {
        let lines = AREA / LINE as u64;
        let from = rt::random() % lines;
        let to = from + 1 + rt::random() % (lines - from).min(1 << (rt::random() % 9));
        (from * LINE as u64, (to.min(lines) - from) as usize * LINE)
    }

    fn by_line(pieces: &[Piece<'_>]) -> Vec<(u64, u8)> {
        let lines = |(at, bytes): &Piece<'_>| {
            let at = *at;
            let firsts: Vec<u8> = bytes.as_chunks::<LINE>().0.iter().map(|line| line[7]).collect();
            firsts
                .into_iter()
                .zip(0..)
                .map(move |(byte, i)| (at + i * LINE as u64, byte))
        };
        pieces.iter().flat_map(lines).collect()
    }

    /// Beside a map from lines to what they had last.
    #[test]
    fn the_last_batch_counts_and_adjacent_lines_go_together() {
        for _ in 0..200 {
            let batches: Vec<(u64, Vec<u8>)> = (1..20)
                .map(|value| (any_range(), value))
                .map(|((at, len), value)| (at, vec![value; len]))
                .collect();
            let oldest = 1 + rt::random() as usize % batches.len();
            let mut model = BTreeMap::new();
            for (at, bytes) in &batches {
                (0..bytes.len() / LINE).for_each(|i| _ = model.insert(at + (i * LINE) as u64, bytes[0]));
            }
            model.retain(|_, value| usize::from(*value) <= oldest);
            let newest_first = batches.iter().rev();
            let newest_first = newest_first.map(|(at, bytes)| core::iter::once((*at, &bytes[..])));
            let found = latest(newest_first, oldest);
            assert_eq!(by_line(&found), model.clone().into_iter().collect::<Vec<_>>());
            let writes = writes(&found);
            assert_eq!(
                writes.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(),
                model.len() * LINE
            );
            let ends = writes.iter().map(|(at, bytes)| at + bytes.len() as u64);
            assert!(
                ends.zip(writes.iter().skip(1)).all(|(end, next)| end < next.0),
                "adjacent ones are together"
            );
        }
    }

    /// What is taken, forgotten and emptied, beside a map; in memory that changes between.
    #[test]
    fn what_was_taken_last_is_there_once() {
        let region = crate::Region::dram(AREA, Default::default(), Default::default()).expect("memory");
        let (mut lines, mut model) = (Lines::default(), BTreeMap::new());
        for round in 0..2_000_u64 {
            let (at, len) = any_range();
            let ats = (0..len / LINE).map(|i| at + (i * LINE) as u64);
            match rt::random() % 16 {
                0 => (lines.clear(), model.clear()).0,
                1 => {
                    lines.forget(&[(at, &vec![0; len])]);
                    ats.for_each(|at| _ = model.remove(&at));
                }
                _ => {
                    let word = round << 56;
                    ats.for_each(|at| {
                        region.span(at, LINE as u64).set_u64(0, word);
                        model.insert(at, word.to_le_bytes()[7]);
                    });
                    _ = lines.take(&region, at, len);
                }
            }
            assert_eq!(lines.len(), model.len());
            assert_eq!(by_line(&lines.sorted()), model.clone().into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn long_runs_are_cut() {
        let bytes = vec![7; 2 * RUN_MAX + LINE];
        let pieces = latest([[(0, &bytes[..])].into_iter()].into_iter(), 1);
        let lens: Vec<usize> = writes(&pieces).iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lens, [RUN_MAX, RUN_MAX, LINE]);
    }
}
