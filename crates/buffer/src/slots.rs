//! Latch slots: where a thread writes down which frames it latches exclusively.
//!
//! The entry is stored before the latch is taken and cleared after it is released, so after a crash
//! the slots name every frame that a dead thread held, without a walk over the frames. They may
//! name some that it only waited for: recovery looks at the latch itself.
//!
//! Which entries of a slot are in use is kept in local memory, by the slot's thread alone.

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{Local, atomic::AtomicU64, atomic::Ordering};
use cenote_base::{Error, Lsn, Result};
use cenote_fabric::observe::Access;

use crate::frame::Frames;
use crate::index::{FrameIndex, SlotIndex};
use crate::layout::{FRAMES_LARGE, SLOT_FRAMES};

const _: () = assert!(SLOT_FRAMES <= 128, "an entry's use is one bit of two words");

/// An entry of the calling thread's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    slot: SlotIndex,
    place: u16,
}

#[derive(Default)]
struct InUse([AtomicU64; 2]);

/// Entries in use, of all threads.
#[derive(Default)]
pub struct Slots {
    in_use: Local<InUse>,
}

impl Slots {
    /// Writes down that this thread is about to latch `frame` exclusively.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the thread holds as many as its slot can name; [`Error::OutOfMemory`] when the region
    /// has no slot for one thread more.
    pub fn announce(&self, frames: &Frames, frame: FrameIndex) -> Result<Entry> {
        let mine = SlotIndex::mine();
        let slot = frames.slot(mine).ok_or_else(|| too_many_threads(frames))?;
        let place = take_bit(self.in_use.of(mine.place()))
            .ok_or_else(|| Error::Invalid(format!("a thread latches more than {SLOT_FRAMES} pages at a time")))?;
        let header = frames.header();
        if header.slots_used.load(Ordering::Relaxed) < mine.count() {
            header.slots_used.fetch_max(mine.count(), Ordering::AcqRel);
        }
        if !planted(Fault::SlotEntry) {
            slot.frames[place].store(Some(frame), Ordering::Release);
        }
        Ok(Entry {
            slot: mine,
            place: place as u16,
        })
    }

    /// Wipes the entry out, once the latch is released or was not taken.
    pub fn withdraw(&self, frames: &Frames, entry: Entry) {
        let (slot, place) = (entry.slot.place(), entry.place as usize);
        let named = &frames.slots()[slot].frames[place];
        frames.touch_raw(named, Access::Write);
        named.as_raw().store(0, Ordering::Release);
        let word = self.in_use.of(slot).0[place / 64].as_raw();
        let (bits, bit) = (word.load(Ordering::Relaxed), 1 << (place % 64));
        assert!(bits & bit != 0, "an entry is withdrawn once");
        word.store(bits & !bit, Ordering::Relaxed);
    }
}

#[cold]
fn too_many_threads(frames: &Frames) -> Error {
    let (pages, threads) = (frames.count(), frames.slots().len());
    Error::OutOfMemory(format!(
        "memory of {pages} pages serves {threads} threads at a time: give more memory (at least {FRAMES_LARGE} pages)"
    ))
}

fn take_bit(in_use: &InUse) -> Option<usize> {
    for (i, word) in in_use.0.iter().enumerate() {
        let bits = word.as_raw().load(Ordering::Relaxed);
        let bit = (!bits).trailing_zeros() as usize;
        if bit < 64 && i * 64 + bit < SLOT_FRAMES {
            word.as_raw().store(bits | 1 << bit, Ordering::Relaxed);
            return Some(i * 64 + bit);
        }
    }
    None
}

/// Frames that slots of a former start name, each once; in recovery.
pub fn named(frames: &Frames) -> Vec<FrameIndex> {
    let used = (frames.header().slots_used.load(Ordering::Acquire) as usize).min(frames.slots().len());
    let mut named: Vec<FrameIndex> = frames.slots()[..used]
        .iter()
        .flat_map(|slot| &slot.frames)
        .filter_map(|f| f.load(Ordering::Acquire))
        .filter(|f| frames.has(*f))
        .collect();
    named.sort_unstable();
    named.dedup();
    named
}

/// The least log position at which a commit of any thread may have its place without having stamped its pages.
pub fn least_floor(frames: &Frames) -> Option<Lsn> {
    let used = (frames.header().slots_used.load(Ordering::SeqCst) as usize).min(frames.slots().len());
    let floors = frames.slots()[..used]
        .iter()
        .map(|slot| slot.floor.load(Ordering::SeqCst));
    floors.filter(|floor| *floor != Lsn::ZERO).min()
}

/// Wipes all slots of a former start; the last step of recovery. After the loss of a host the count of slots in use may
/// be an old one, and floors beyond it would hold up checkpoints as soon as those slots are used again: then all are
/// wiped.
pub fn wipe(frames: &Frames, host: bool) {
    let (used, all) = (
        frames.header().slots_used.load(Ordering::Acquire) as usize,
        frames.slots().len(),
    );
    for slot in &frames.slots()[..if host { all } else { used.min(all) }] {
        slot.floor.store(Lsn::ZERO, Ordering::Relaxed);
        slot.frames
            .iter()
            .for_each(|frame| frame.store(None, Ordering::Relaxed));
    }
    frames.header().slots_used.store(0, Ordering::Release);
}

/// A frame that this thread latches exclusively.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latched {
    pub frame: FrameIndex,
    pub entry: Entry,
}
