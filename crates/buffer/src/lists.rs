//! The free list and the in-use lists, linked through the descriptors.
//!
//! ```text
//!  never used ──claim──▶ frame ──load──▶ warm ◀──used again── cold ◀── read-ahead, scans
//!                          ▲               │ cold end            │ cold end
//!                          └──── free ◀────┴──────── evict ──────┘
//! ```
//! In use is two lists: *warm* for pages that a statement asked for, *cold* for those that a scan brought along. Frames
//! enter at the first end; victims are taken at the last end: from cold while it is longer than its share, else from
//! warm; one whose recency bit is set gets a second chance at the first end of warm. So a scan of everything passes
//! through cold and leaves warm as it was. A hit moves nothing: the search for victims brings the order up to date.
//!
//! Lists are hints with one promise: a frame that is claimed was free. It is kept by the frame's own
//! state under its latch, not by the lists; a list that contradicts itself is rebuilt from the states.
//!
//! Invariants:
//! - lists change only under the list lock: a mutex in local memory, and a word in the region that says so;
//! - each change first notes the old value of each word that it stores to; a process that dies
//!   in a change is followed by one that takes it back, in time that does not depend on the pool's size;
//! - frames at and above `frames_touched` are on no list and have never been used.
//!
//! Lock order: a frame's latch, then a bucket of the page hash, then the list lock; under the list
//! lock latches are only tried.

use std::ops::Range;

use cenote_base::rt::MutexGuard;
use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::mark::{self, Mark};
use cenote_fabric::observe::Access;

use crate::frame::Frames;
use crate::index::FrameIndex;
use crate::layout::{FRAMES_MAX, FrameState, ListHead, UNDO_ENTRIES};

/// How a page that is not in the pool comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// It is asked for: it stays as long as pages of its kind do.
    Warm,
    /// A scan passes by: it leaves before pages that were asked for.
    Scan,
    /// A reader of the database has asked for it: remote memory gets it, and it leaves its frame as one of a scan.
    OfReader,
    /// Nothing asks for it: its changes are to go to storage, and then it leaves.
    ToSave,
}

impl Hint {
    pub(crate) fn list(self) -> List {
        match self {
            Hint::Warm => List::Warm,
            Hint::Scan | Hint::OfReader | Hint::ToSave => List::Cold,
        }
    }

    /// Whether the page is one that something wants to have near.
    pub(crate) fn is_asked(self) -> bool {
        matches!(self, Hint::Warm | Hint::OfReader)
    }
}

/// Which list a frame is on: the tag in its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum List {
    /// None: being claimed or freed.
    None = 0,
    /// Without a page.
    Free = 1,
    /// Pages asked for.
    Warm = 2,
    /// Pages that came along.
    Cold = 3,
}

const _: () = assert!(UNDO_ENTRIES >= 12, "the notes hold the longest change of the lists");

/// The list lock's word while lists are changed word by word, each noted.
pub const HELD: u32 = 1;
/// The list lock's word while lists are built anew: a start that finds it builds them again.
pub const REBUILDING: u32 = 2;

const TAG_SHIFT: u32 = 30;
/// The index part of a descriptor's `list_prev`.
pub const INDEX_MASK: u32 = (1 << TAG_SHIFT) - 1;
const _: () = assert!(
    FRAMES_MAX < INDEX_MASK as u64,
    "an index + 1 leaves the list's tag its two bits"
);

impl List {
    /// The list in a descriptor's `list_prev`.
    pub fn of(list_prev: u32) -> Self {
        match list_prev >> TAG_SHIFT {
            0 => Self::None,
            1 => Self::Free,
            2 => Self::Warm,
            _ => Self::Cold,
        }
    }
}

/// What a descriptor's `list_prev` holds: the list, and the frame before.
fn tagged(list: List, prev: Option<FrameIndex>) -> u32 {
    (list as u32) << TAG_SHIFT | FrameIndex::link_to(prev)
}

/// A list contradicts itself or the descriptors: rebuild.
#[derive(Debug)]
pub struct Broken;

type Step<T = ()> = Result<T, Broken>;

/// Names a word of the lists: what an undo entry holds.
#[derive(Clone, Copy)]
enum Word {
    Next(FrameIndex),
    Prev(FrameIndex),
    First(List),
    Last(List),
    Count(List),
    Touched,
}

const HEADER_WORD: u32 = 1 << 31;
const _: () = assert!(
    INDEX_MASK < HEADER_WORD >> 1,
    "a frame's word is told from the header's"
);

impl Word {
    fn pack(self) -> u32 {
        match self {
            Word::Next(frame) => frame.raw() << 1,
            Word::Prev(frame) => frame.raw() << 1 | 1,
            Word::First(list) => HEADER_WORD | (list as u32) << 2,
            Word::Last(list) => HEADER_WORD | (list as u32) << 2 | 1,
            Word::Count(list) => HEADER_WORD | (list as u32) << 2 | 2,
            Word::Touched => HEADER_WORD | 3,
        }
    }

    fn unpack(packed: u32, frames: u32) -> Option<Self> {
        if packed & HEADER_WORD == 0 {
            let frame = FrameIndex::new(packed >> 1);
            let word = if packed & 1 == 0 {
                Word::Next(frame)
            } else {
                Word::Prev(frame)
            };
            return (frame.raw() < frames).then_some(word);
        }
        let list = match (packed & !HEADER_WORD) >> 2 {
            0 => return (packed & 3 == 3).then_some(Word::Touched),
            1 => List::Free,
            2 => List::Warm,
            3 => List::Cold,
            _ => return None,
        };
        match packed & 3 {
            0 => Some(Word::First(list)),
            1 => Some(Word::Last(list)),
            2 => Some(Word::Count(list)),
            _ => None,
        }
    }
}

/// The lists, held by this thread.
pub struct Lists<'p> {
    frames: &'p Frames,
    _local: Option<MutexGuard<'p, ()>>,
}

impl<'p> Lists<'p> {
    /// Takes the lists; `local` is the mutex that goes with them.
    pub fn hold(frames: &'p Frames, local: MutexGuard<'p, ()>) -> Self {
        frames.header().list_lock.store(HELD, Ordering::Release);
        Self {
            frames,
            _local: Some(local),
        }
    }

    /// In recovery, when no other thread is about.
    pub fn alone(frames: &'p Frames) -> Self {
        frames.header().list_lock.store(HELD, Ordering::Release);
        Self { frames, _local: None }
    }

    fn head(&self, list: List) -> &'p ListHead {
        &self.frames.header().lists[(list as usize).max(1) - 1]
    }

    fn word(&self, word: Word) -> &'p AtomicU32 {
        match word {
            Word::Next(frame) => &self.frames.descriptor(frame).list_next,
            Word::Prev(frame) => &self.frames.descriptor(frame).list_prev,
            Word::First(list) => &self.head(list).first,
            Word::Last(list) => &self.head(list).last,
            Word::Count(list) => &self.head(list).count,
            Word::Touched => &self.frames.header().frames_touched,
        }
    }

    /// Notes the old value, counts the note, stores the new one: in this order, each a release, so that
    /// none is seen before the one that it depends on.
    fn set(&mut self, word: Word, value: u32) -> Step {
        let header = self.frames.header();
        let noted = header.undo_count.load(Ordering::Relaxed) as usize;
        let entry = header.undo.get(noted).ok_or(Broken)?;
        entry.word.store(word.pack(), Ordering::Release);
        entry
            .old
            .store(self.word(word).load(Ordering::Relaxed), Ordering::Release);
        header.undo_count.store(noted as u32 + 1, Ordering::Release);
        self.word(word).store(value, Ordering::Release);
        Ok(())
    }

    /// The change is whole: its notes are void.
    fn done(&mut self) {
        self.frames.header().undo_count.store(0, Ordering::Release);
    }

    /// Takes back what a dead process left half done. Says whether the notes made sense.
    pub fn undo(&mut self) -> bool {
        let header = self.frames.header();
        let noted = header.undo_count.load(Ordering::Acquire) as usize;
        for entry in header.undo[..noted.min(UNDO_ENTRIES)].iter().rev() {
            let packed = entry.word.load(Ordering::Relaxed);
            let Some(word) = Word::unpack(packed, self.frames.count()) else {
                return false;
            };
            self.word(word)
                .store(entry.old.load(Ordering::Relaxed), Ordering::Release);
        }
        self.done();
        noted <= UNDO_ENTRIES
    }

    fn follow(&self, link: u32) -> Step<Option<FrameIndex>> {
        match FrameIndex::from_link(link & INDEX_MASK) {
            Some(frame) if !self.frames.has(frame) => Err(Broken),
            named => Ok(named),
        }
    }

    /// Frames on `list`.
    pub fn count(&self, list: List) -> u32 {
        self.head(list).count.load(Ordering::Relaxed)
    }

    /// The frame at the cold end of `list`.
    pub fn last(&self, list: List) -> Step<Option<FrameIndex>> {
        self.follow(self.head(list).last.load(Ordering::Relaxed))
    }

    /// The frame at the first end of `list`.
    pub fn first(&self, list: List) -> Step<Option<FrameIndex>> {
        self.follow(self.head(list).first.load(Ordering::Relaxed))
    }

    /// The frame before `frame`, away from the cold end.
    pub fn before(&self, frame: FrameIndex) -> Step<Option<FrameIndex>> {
        self.follow(self.frames.descriptor(frame).list_prev.load(Ordering::Relaxed))
    }

    /// Which list `frame` is on.
    pub fn of(&self, frame: FrameIndex) -> List {
        List::of(self.frames.descriptor(frame).list_prev.load(Ordering::Relaxed))
    }

    fn set_prev(&mut self, frame: FrameIndex, list: List, prev: Option<FrameIndex>) -> Step {
        self.set(Word::Prev(frame), tagged(list, prev))
    }

    fn unlink_noted(&mut self, frame: FrameIndex) -> Step {
        let list = self.of(frame);
        if list == List::None {
            return Ok(());
        }
        let prev = self.before(frame)?;
        let next = self.follow(self.frames.descriptor(frame).list_next.load(Ordering::Relaxed))?;
        self.join(list, frame, prev, next)?;
        mark::pass(Mark::ListChanging);
        let count = self.count(list).checked_sub(1).ok_or(Broken)?;
        self.set(Word::Count(list), count)?;
        self.set(Word::Next(frame), 0)?;
        self.set_prev(frame, List::None, None)
    }

    /// Makes `prev` and `next` neighbours, having checked that `frame` stands between them.
    fn join(&mut self, list: List, frame: FrameIndex, prev: Option<FrameIndex>, next: Option<FrameIndex>) -> Step {
        let me = Some(frame);
        let after_prev = match prev {
            Some(p) => self.follow(self.frames.descriptor(p).list_next.load(Ordering::Relaxed))?,
            None => self.first(list)?,
        };
        let before_next = match next {
            Some(n) => self.before(n)?,
            None => self.last(list)?,
        };
        if after_prev != me || before_next != me {
            return Err(Broken);
        }
        match prev {
            Some(p) => self.set(Word::Next(p), FrameIndex::link_to(next))?,
            None => self.set(Word::First(list), FrameIndex::link_to(next))?,
        }
        match next {
            Some(n) => self.set_prev(n, list, prev),
            None => self.set(Word::Last(list), FrameIndex::link_to(prev)),
        }
    }

    fn push_noted(&mut self, list: List, frame: FrameIndex) -> Step {
        assert!(list != List::None, "a frame is put on a list");
        let (first, link) = (self.first(list)?, FrameIndex::link_to(Some(frame)));
        self.set(Word::Next(frame), FrameIndex::link_to(first))?;
        self.set_prev(frame, list, None)?;
        match first {
            Some(f) => self.set_prev(f, list, Some(frame))?,
            None => self.set(Word::Last(list), link)?,
        }
        self.set(Word::First(list), link)?;
        let count = self.count(list) + 1;
        self.set(Word::Count(list), count)
    }

    /// Puts `frame` at the first end of `list`, from wherever it is.
    pub fn put(&mut self, list: List, frame: FrameIndex) {
        let moved = self.unlink_noted(frame).and_then(|()| self.push_noted(list, frame));
        self.finish(moved);
    }

    /// Takes `frame` off its list.
    pub fn take_off(&mut self, frame: FrameIndex) {
        let taken = self.unlink_noted(frame);
        self.finish(taken);
    }

    /// Counts one more frame as touched; the caller has latched it.
    pub fn touch_next(&mut self) {
        let next = self.frames.header().frames_touched.load(Ordering::Relaxed) + 1;
        let touched = self.set(Word::Touched, next);
        self.finish(touched);
    }

    fn finish(&mut self, step: Step) {
        match step {
            Ok(()) => self.done(),
            Err(Broken) => self.rebuild(),
        }
    }

    /// Builds the lists anew from the states of the frames. Warm order is that of the frames. A frame that is being
    /// claimed or freed (latched) goes by its state too: the thread that holds it puts it where it belongs when done,
    /// which works from any list.
    pub fn rebuild(&mut self) {
        let frames = self.frames;
        self.rebuild_by(|touched| vec![link_part(frames, 0..touched)]);
    }

    /// As [`Lists::rebuild`], where `link` has [`link_part`] done for parts that follow each other up to the number it
    /// is given.
    pub fn rebuild_by(&mut self, link: impl FnOnce(u32) -> Vec<[Linked; 3]>) {
        let header = self.frames.header();
        header.list_lock.store(REBUILDING, Ordering::Release);
        header.undo_count.store(0, Ordering::Release);
        let touched = header.frames_touched.load(Ordering::Relaxed).min(self.frames.count());
        header.frames_touched.store(touched, Ordering::Relaxed);
        let parts = link(touched);
        let linked: u64 = parts.iter().flatten().map(|list| u64::from(list.count)).sum();
        assert!(
            linked == u64::from(touched),
            "each of {touched} touched frames is on one list, and {linked} are linked"
        );
        for list in [List::Free, List::Warm, List::Cold] {
            let whole = parts
                .iter()
                .map(|part| part[list as usize - 1])
                .fold(Linked::default(), |whole, next| self.append(list, whole, next));
            let head = self.head(list);
            head.first.store(FrameIndex::link_to(whole.first), Ordering::Relaxed);
            head.last.store(FrameIndex::link_to(whole.last), Ordering::Relaxed);
            head.count.store(whole.count, Ordering::Relaxed);
        }
        header.list_lock.store(HELD, Ordering::Release);
    }

    fn append(&self, list: List, before: Linked, after: Linked) -> Linked {
        let (Some(last), Some(first)) = (before.last, after.first) else {
            return if before.count == 0 { after } else { before };
        };
        assert!(
            before.count <= self.frames.count() - after.count,
            "two parts have no frame in common"
        );
        join(self.frames, list, last, first);
        Linked {
            first: before.first,
            last: after.last,
            count: before.count + after.count,
        }
    }
}

/// Frames linked among themselves, and both ends.
#[derive(Debug, Default, Clone, Copy)]
pub struct Linked {
    first: Option<FrameIndex>,
    last: Option<FrameIndex>,
    count: u32,
}

/// Links the frames of a part among themselves, by their states: those of the free, the warm and the cold list.
pub fn link_part(frames: &Frames, part: Range<u32>) -> [Linked; 3] {
    assert!(part.end <= frames.count(), "a part is made of frames that there are");
    assert!(part.start <= part.end, "a part of the frames goes up");
    let mut lists = [Linked::default(); 3];
    for frame in FrameIndex::all(part) {
        let d = frames.descriptor(frame);
        let was = List::of(d.list_prev.load(Ordering::Relaxed));
        let list = match FrameState::of(d.state.load(Ordering::Relaxed)) {
            Some(FrameState::Used) if was == List::Cold => List::Cold,
            Some(FrameState::Used) => List::Warm,
            _ => List::Free,
        };
        let linked = &mut lists[list as usize - 1];
        d.list_next.store(0, Ordering::Relaxed);
        d.list_prev.store(tagged(list, None), Ordering::Relaxed);
        match linked.last {
            None => linked.first = Some(frame),
            Some(last) => join(frames, list, last, frame),
        }
        linked.last = Some(frame);
        linked.count += 1;
    }
    lists
}

/// Makes two frames neighbours on `list`.
fn join(frames: &Frames, list: List, before: FrameIndex, after: FrameIndex) {
    let next = &frames.descriptor(before).list_next;
    next.store(FrameIndex::link_to(Some(after)), Ordering::Relaxed);
    let prev = &frames.descriptor(after).list_prev;
    prev.store(tagged(list, Some(before)), Ordering::Relaxed);
}

impl Drop for Lists<'_> {
    fn drop(&mut self) {
        // A change cut off by unwinding leaves its notes: they are taken back like those of the dead.
        let (noted, lock) = (&self.frames.header().undo_count, &self.frames.header().list_lock);
        self.frames.touch_raw(noted, Access::Read);
        if noted.as_raw().load(Ordering::Relaxed) != 0 {
            self.undo();
        }
        self.frames.touch_raw(lock, Access::Write);
        lock.as_raw().store(0, Ordering::Release);
    }
}
