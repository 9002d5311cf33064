//! The dirty frames, by the age of their oldest change that storage lacks.
//!
//! A checkpoint asks for the least `rec` of all frames, write-back for the frames with the oldest. Both are answered by
//! this list, in memory of the process, whose length is that of what changed: not by a walk over all descriptors.
//!
//! ```text
//!            rec:  0 ──────── 1 MiB ─────── 2 MiB ─────── 3 MiB ──▶ log
//!  stretches       [7, 12, 3]              [9, 4]        [12, 8]       frames, as they became dirty
//! ```
//!
//! The log is divided into stretches. A frame is entered in the stretch of its `rec` when it becomes dirty, and at no
//! other time. No thread takes it out when it is clean again, nor moves it when its `rec` moves up: the thread that
//! walks the list looks at the descriptor, and puts the entry right.
//!
//! Invariants:
//! - a frame whose `rec` is not 0 has an entry in a stretch at or before that of its `rec`. Between the store of a
//!   `rec` and the entry something else keeps the checkpoint below it: the committing thread's floor, or the note of
//!   the tier below;
//! - `rec` is stored before the frame is entered: a walk that finds an entry sees the `rec`, one that finds `rec` 0 may
//!   drop the entry, since the frame is entered anew when it is dirty again;
//! - `rec` never moves down, but through 0;
//! - one walk at a time: it takes a stretch's entries out, looks at the descriptors without a lock on the list, and
//!   puts back what stays.
//!
//! Cost: 4 bytes for each time that a frame became dirty within the log that a checkpoint has not passed (at most a
//! tenth of that log's length), a lock of a sixteenth of the frames and a push for each such time. A walk looks at an
//! entry once for each time that it drops it, moves it up, or finds it where it belongs.
//!
//! Lock order: `walk` before a shard; a shard is taken under anything, and nothing under it.

use std::collections::BTreeMap;

use cenote_base::Lsn;
use cenote_base::rt::{Mutex, MutexGuard};

use crate::index::FrameIndex;

/// Parts of the list, each with a lock; frames are spread over them.
const SHARDS: usize = 16;
/// Stretches in the limit of the log's length.
const STRETCHES: u64 = 1024;

/// A part of the log, by its place among the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch(u64);

impl Stretch {
    /// The first of the log.
    pub const FIRST: Stretch = Stretch(0);

    fn next(self) -> Stretch {
        Stretch(self.0 + 1)
    }
}

/// A dirty frame, and its `rec`; in the order of that.
pub type Dirty = (Lsn, FrameIndex);

/// Frames by stretch.
type Stretches = BTreeMap<Stretch, Vec<FrameIndex>>;

/// On lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<Stretches>);

/// See the module.
pub struct DirtyFrames {
    shards: [Shard; SHARDS],
    walk: Mutex<()>,
    /// Bytes of a stretch, as a power of two.
    shift: u32,
}

/// The list, held by the thread that walks along it; `rec_of` reads a frame's `rec`.
pub struct Walk<'p, F> {
    list: &'p DirtyFrames,
    rec_of: F,
    looked_at: u64,
    _one: MutexGuard<'p, ()>,
}

impl DirtyFrames {
    /// For a log that is to be kept below `log_limit` bytes.
    pub fn new(log_limit: u64) -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
            walk: Mutex::new(()),
            shift: (log_limit / STRETCHES).max(1).ilog2().clamp(12, 24),
        }
    }

    fn stretch(&self, rec: Lsn) -> Stretch {
        Stretch(rec.raw() >> self.shift)
    }

    fn shard(&self, frame: FrameIndex) -> &Mutex<Stretches> {
        &self.shards[shard_of(frame)].0
    }

    /// `frame` became dirty: its `rec`, which was 0, is stored.
    pub fn enter(&self, frame: FrameIndex, rec: Lsn) {
        assert!(
            rec != Lsn::ZERO,
            "a frame that becomes dirty has the position of its first redo"
        );
        let mut stretches = self.shard(frame).lock();
        stretches.entry(self.stretch(rec)).or_default().push(frame);
    }

    /// Forgets all; at a start.
    pub fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.0.lock().clear());
    }

    /// Begins a walk.
    pub fn walk<F: Fn(FrameIndex) -> Lsn>(&self, rec_of: F) -> Walk<'_, F> {
        Walk {
            list: self,
            rec_of,
            looked_at: 0,
            _one: self.walk.lock(),
        }
    }
}

impl<F: Fn(FrameIndex) -> Lsn> Walk<'_, F> {
    /// Descriptors looked at so far.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// The least `rec` of frames that `counts` agrees to, if there is one.
    pub fn oldest(&mut self, counts: impl Fn(FrameIndex) -> bool) -> Option<Lsn> {
        (0..SHARDS).filter_map(|shard| self.oldest_of(shard, &counts)).min()
    }

    fn oldest_of(&mut self, shard: usize, counts: &impl Fn(FrameIndex) -> bool) -> Option<Lsn> {
        let mut from = Stretch::FIRST;
        while let Some(stretch) = self.next_of(shard, from) {
            let dirty = self.sift(shard, stretch);
            let counted = dirty.iter().filter(|(_, frame)| counts(*frame));
            if let Some(least) = counted.map(|(rec, _)| *rec).min() {
                return Some(least);
            }
            from = stretch.next();
        }
        None
    }

    /// Dirty frames with a `rec` below `before`, in the order of it, from stretch `at` on: at least `most`, if there
    /// are so many, and those of whole stretches. With the stretch to go on at; `None` when there is nothing further up
    /// to `end`.
    pub fn gather(&mut self, mut at: Stretch, before: Lsn, end: Lsn, most: usize) -> (Vec<Dirty>, Option<Stretch>) {
        assert!(most > 0, "a walk that gathers nothing does not go on");
        let last = self
            .list
            .stretch(end.min(Lsn::from_raw(before.raw().saturating_sub(1))));
        let mut found = Vec::new();
        while found.len() < most {
            let next = (0..SHARDS).filter_map(|shard| Some((self.next_of(shard, at)?, shard)));
            let next: Vec<(Stretch, usize)> = next.collect();
            let Some(stretch) = next.iter().map(|next| next.0).min().filter(|first| *first <= last) else {
                found.sort_unstable();
                return (found, None);
            };
            for (_, shard) in next.into_iter().filter(|next| next.0 == stretch) {
                let dirty = self.sift(shard, stretch);
                found.extend(dirty.into_iter().filter(|(rec, _)| *rec < before));
            }
            assert!(stretch >= at, "a walk along the dirty frames does not go back");
            at = stretch.next();
        }
        found.sort_unstable();
        (found, Some(at))
    }

    /// The first stretch of a shard at or behind `from` that has entries.
    fn next_of(&self, shard: usize, from: Stretch) -> Option<Stretch> {
        let stretches = self.list.shards[shard].0.lock();
        stretches.range(from..).next().map(|(stretch, _)| *stretch)
    }

    /// Looks at the frames entered in a stretch: those whose `rec` is in it, which stay. Others go where they belong.
    fn sift(&mut self, shard: usize, stretch: Stretch) -> Vec<Dirty> {
        let mut entered = {
            let mut stretches = self.list.shards[shard].0.lock();
            stretches.get_mut(&stretch).map(std::mem::take).unwrap_or_default()
        };
        assert!(
            entered.iter().all(|frame| shard_of(*frame) == shard),
            "a frame is entered in its own shard"
        );
        entered.sort_unstable();
        entered.dedup();
        self.looked_at += entered.len() as u64;
        let recs: Vec<Dirty> = entered.iter().map(|frame| ((self.rec_of)(*frame), *frame)).collect();
        let is_here = |rec: Lsn| rec != Lsn::ZERO && self.list.stretch(rec) == stretch;
        let (here, elsewhere): (Vec<_>, Vec<_>) = recs.into_iter().partition(|(rec, _)| is_here(*rec));
        let mut stretches = self.list.shards[shard].0.lock();
        for (rec, frame) in elsewhere.into_iter().filter(|(rec, _)| *rec != Lsn::ZERO) {
            stretches.entry(self.list.stretch(rec)).or_default().push(frame);
        }
        let kept = stretches.entry(stretch).or_default();
        kept.extend(here.iter().map(|(_, frame)| *frame));
        if kept.is_empty() {
            stretches.remove(&stretch);
        }
        here
    }
}

fn shard_of(frame: FrameIndex) -> usize {
    frame.place() % SHARDS
}

#[cfg(test)]
mod tests {
    use cenote_base::rt::atomic::Ordering;

    use super::*;
    use crate::words::LsnWord;
    use cenote_base::random::Random;

    /// A list beside the words that descriptors would have.
    struct Model {
        list: DirtyFrames,
        recs: Vec<LsnWord>,
    }

    impl Model {
        fn new(frames: usize) -> Self {
            Self {
                list: DirtyFrames::new(1 << 30),
                recs: (0..frames).map(|_| LsnWord::default()).collect(),
            }
        }

        fn set(&self, frame: FrameIndex, rec: Lsn) {
            if self.recs[frame.place()].swap(rec, Ordering::Relaxed) == Lsn::ZERO && rec != Lsn::ZERO {
                self.list.enter(frame, rec);
            }
        }

        fn rec(&self, frame: FrameIndex) -> Lsn {
            self.recs[frame.place()].load(Ordering::Relaxed)
        }

        fn walk(&self) -> Walk<'_, impl Fn(FrameIndex) -> Lsn> {
            self.list.walk(|frame| self.rec(frame))
        }

        fn dirty_before(&self, before: Lsn) -> Vec<Dirty> {
            let all = FrameIndex::all(0..self.recs.len() as u32).map(|frame| (self.rec(frame), frame));
            let mut dirty: Vec<_> = all.filter(|(rec, _)| *rec != Lsn::ZERO && *rec < before).collect();
            dirty.sort_unstable();
            dirty
        }

        fn gathered(&self, before: Lsn) -> Vec<Dirty> {
            let (mut at, mut all) = (Some(Stretch::FIRST), Vec::new());
            while let Some(from) = at {
                let (found, next) = self.walk().gather(from, before, Lsn::MAX, 3);
                all.extend(found);
                at = next;
            }
            all
        }
    }

    /// Frames become dirty, move up and become clean at random; a walk over all of them is the model.
    #[test]
    fn a_walk_finds_what_a_look_at_all_frames_finds() {
        let seed = 0x5eed_u64;
        let (model, mut random) = (Model::new(50), Random(seed));
        let mut draw = |below: u64| random.below(below);
        let mut tail = Lsn::from_raw(1);
        for step in 0..20_000 {
            tail = tail.advance(draw(1 << 19));
            let frame = FrameIndex::new(draw(50) as u32);
            match draw(4) {
                0 => model.set(frame, Lsn::ZERO),
                1 if model.rec(frame) != Lsn::ZERO => model.set(frame, tail),
                _ if model.rec(frame) == Lsn::ZERO => model.set(frame, tail),
                _ => {}
            }
            let expected = model.dirty_before(Lsn::MAX);
            let least = expected.first().map(|(rec, _)| *rec);
            match draw(8) {
                0 => assert_eq!(model.walk().oldest(|_| true), least, "seed {seed}, step {step}"),
                1 => {
                    let before = Lsn::from_raw(tail.raw() - draw(tail.raw().min(1 << 24)));
                    assert_eq!(
                        model.gathered(before),
                        model.dirty_before(before),
                        "seed {seed}, step {step}"
                    );
                }
                _ => {}
            }
        }
        FrameIndex::all(0..50).for_each(|frame| model.set(frame, Lsn::ZERO));
        assert_eq!(model.walk().oldest(|_| true), None);
        let entries = |shard: &Shard| shard.0.lock().len();
        assert_eq!(
            model.list.shards.iter().map(entries).sum::<usize>(),
            0,
            "what is clean was dropped"
        );
    }

    /// What became clean is looked at once; what is younger than the oldest stretch is not looked at.
    #[test]
    fn a_walk_looks_at_the_oldest_stretch_alone() {
        let model = Model::new(10_000);
        let rec = |frame: FrameIndex| Lsn::from_raw(u64::from(frame.raw() + 1) << 20);
        FrameIndex::all(0..10_000).for_each(|frame| model.set(frame, rec(frame)));
        FrameIndex::all(0..5_000).for_each(|frame| model.set(frame, Lsn::ZERO));
        let looked_at = |model: &Model| {
            let mut walk = model.walk();
            assert_eq!(walk.oldest(|_| true), Some(Lsn::from_raw(5_001 << 20)));
            walk.looked_at()
        };
        assert_eq!(
            looked_at(&model),
            5_000 + SHARDS as u64,
            "the clean ones, and the first of each shard"
        );
        assert_eq!(looked_at(&model), SHARDS as u64);
    }
}
