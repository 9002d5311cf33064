//! A region's mirror: a second memory that gets the lines which are written back.
//!
//! A database that survives its host (design, section 7, rule 5) writes lines back in such an order that it can recover
//! from memory which holds the flushed lines and any of the others. So a mirror needs no more than the flushed lines:
//!
//! ```text
//!   store        the region's line                 mirror: as it was
//!   write_back   stripe locked: line ──copied──▶   mirror, written back there too
//!   fence        completes both
//!   fill         every line, like a write_back ─▶  then the mirror is whole
//! ```
//!
//! Invariants:
//! 1. while a mirror is attached, what was written back and fenced is in it, as it was then or newer;
//! 2. a line of a mirror never goes back: it is loaded and stored under the lock of its *stripe*, else a later copy
//!    could put older words over newer ones;
//! 3. within a line the words are loaded first to last and stored last to first. So a copy that is cut off, or made
//!    during a store to the line, shows a line's first word no newer than the others: a descriptor whose latch
//!    (its first word, released last) is free has all the rest (rule 5e);
//! 4. a mirror is whole when it was attached and then filled to the end: each line was copied since, and is copied with
//!    every later write-back;
//! 5. what is reserved in the region is reserved in the mirror before.
//!
//! A line that is stored and never written back is not in the mirror: a region that is to survive a process only cannot
//! be mirrored. This module does not say whether a mirror may be believed: its [`MirrorKeeper`](crate::MirrorKeeper)
//! writes that down, after the mirror is whole and before a start relies on it.
//!
//! A mirror is mapped here ([`MirrorFile`]), or lies on another machine and is written by one-sided verbs
//! ([`RemoteMirror`]).

mod gathered;
mod journal;
mod lent;
mod lines;
mod remote;

pub use journal::{JOURNAL, Replayed, replay};
pub use lent::{apply, map_lent};
pub use remote::{OnLost, RemoteMirror, RemoteOptions, RemoteTraffic};

use crate::backing::{Backing, Kind};
use crate::memory::{FlushSink, RegionMemory};
use crate::span::Block;
use crate::{LINE, coherence, observe};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use core::sync::atomic::fence;
use std::path::Path;
use std::sync::Arc;

/// Bytes whose lines share a lock: a small page, so that one of 16 KiB takes four.
const STRIPE: u64 = 4096;
const STRIPES: usize = 64;
/// Bytes that [`Region::fill_mirror_step`](crate::Region::fill_mirror_step) copies at most.
pub const FILL_STEP: u64 = 1 << 20;
const _: () = {
    assert!(STRIPE.is_multiple_of(crate::LINE as u64), "a line lies in one stripe");
    assert!(FILL_STEP.is_multiple_of(STRIPE), "a step fills whole stripes");
};

/// What lines are copied to.
pub trait Side: Send + Sync {
    /// Takes the space of all bytes below `end`.
    ///
    /// # Errors
    /// [`Error::Full`].
    fn reserve_to(&self, end: u64) -> Result<()>;

    /// Copies whole lines of `memory` to the same place, and begins to write them back there. The caller holds the lock
    /// of their stripe.
    fn copy(&self, memory: &RegionMemory, off: u64, len: usize);

    /// Returns when this thread's copies are in the mirror's memory.
    fn fence(&self);

    /// Whether [`Side::fence`] has to be asked: the processor's own fence does not complete the copies.
    fn is_apart(&self) -> bool;

    /// Whether what is copied earlier comes earlier without a [`Side::fence`].
    fn is_in_order(&self) -> bool {
        false
    }

    /// Lines are filled from here until [`Side::end_fill`].
    fn begin_fill(&self) {}

    /// Copies lines that no thread writes back: [`Side::copy`] otherwise.
    fn fill(&self, memory: &RegionMemory, off: u64, len: usize) {
        self.copy(memory, off, len);
    }

    /// Returns when what was filled is in the mirror's memory, or the mirror is lost. The caller holds no lock of a
    /// stripe.
    fn end_fill(&self) {
        self.fence();
    }

    /// All that was copied is in the mirror's memory: [`Side::fence`] would not wait.
    fn is_settled(&self) -> bool {
        true
    }

    /// Fences returned without it, and no one may know that it is whole no more: which mirror this is, by a number of
    /// its own.
    fn behind(&self) -> Option<u64> {
        None
    }
}

/// A line's way to a mirror.
#[repr(align(64))]
#[derive(Default)]
struct Stripe(Mutex<Option<Arc<dyn Side>>>);

/// The mirror of a region, and the locks of its lines. Leaves in the order of locks.
pub(crate) struct Mirroring {
    stripes: [Stripe; STRIPES],
    is_apart: AtomicBool,
    /// A fence is needed between copies of which one has to come first.
    orders_by_fence: AtomicBool,
    /// It has no room for what is to be reserved.
    failed: AtomicBool,
}

impl Default for Mirroring {
    fn default() -> Self {
        Self {
            stripes: core::array::from_fn(|_| Stripe::default()),
            is_apart: AtomicBool::new(false),
            orders_by_fence: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }
}

impl Mirroring {
    /// After this has returned, every copy goes to `side`.
    pub(crate) fn set(&self, side: Option<Arc<dyn Side>>) {
        let is_apart = side.as_ref().is_some_and(|side| side.is_apart());
        let is_in_order = side.as_ref().is_none_or(|side| side.is_in_order());
        self.is_apart.store(is_apart, Ordering::Release);
        self.orders_by_fence.store(is_apart && !is_in_order, Ordering::Release);
        for stripe in &self.stripes {
            stripe.0.lock().clone_from(&side);
        }
    }

    /// Takes space in the mirror, if there is one. The caller holds the region's `reserving`.
    pub(crate) fn reserve_to(&self, end: u64) -> Result<()> {
        let reserved = self.side().map_or(Ok(()), |side| side.reserve_to(end));
        self.failed.store(reserved.is_err(), Ordering::Release);
        reserved
    }

    /// The mirror, if there is one.
    pub(crate) fn side(&self) -> Option<Arc<dyn Side>> {
        self.stripes[0].0.lock().clone()
    }

    fn stripe(&self, off: u64) -> &Stripe {
        &self.stripes[(off / STRIPE) as usize % STRIPES]
    }

    /// Whether it had no room for what was to be reserved last.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// What a former side failed to do does not count for the next one.
    pub(crate) fn forget_failure(&self) {
        self.failed.store(false, Ordering::Release);
    }
}

impl Mirroring {
    /// Copies the lines of a range that no thread writes back.
    pub(crate) fn fill(&self, memory: &RegionMemory, off: u64, len: usize) {
        let Some(side) = self.side() else { return };
        side.begin_fill();
        self.each_stripe(off, len, |side, at, len| side.fill(memory, at, len));
        side.end_fill();
    }

    /// Calls `f` with the lines of a range, by stripes, each with its lock held.
    fn each_stripe(&self, off: u64, len: usize, f: impl Fn(&dyn Side, u64, usize)) {
        if len == 0 {
            return;
        }
        let end = (off + len as u64).next_multiple_of(LINE as u64);
        let mut at = off / LINE as u64 * LINE as u64;
        while at < end {
            let next = end.min((at / STRIPE + 1) * STRIPE);
            if let Some(side) = &*self.stripe(at).0.lock() {
                f(&**side, at, (next - at) as usize);
            }
            at = next;
        }
    }
}

impl FlushSink for Mirroring {
    /// Copies the lines of a range.
    #[cold]
    fn write_back(&self, memory: &RegionMemory, off: u64, len: usize) {
        self.each_stripe(off, len, |side, at, len| side.copy(memory, at, len));
    }

    #[cold]
    fn fence(&self) {
        if self.is_apart.load(Ordering::Acquire)
            && let Some(side) = self.side()
        {
            side.fence();
        }
    }

    #[cold]
    fn order(&self) {
        // A mirror on another machine keeps the order of copies: this is asked several times a mini-transaction.
        if self.orders_by_fence.load(Ordering::Acquire)
            && let Some(side) = self.side()
        {
            side.fence();
        }
    }
}

/// A mirror in a file or device that this process maps, and has locked. It has no header of its own: it gets the
/// region's.
pub struct MirrorFile {
    memory: RegionMemory,
    backing: Backing,
    reserved: Mutex<u64>,
}

impl MirrorFile {
    /// An empty one, for a region of `len` bytes. What was in the file is lost.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it; those of files.
    pub fn create(path: &Path, len: u64) -> Result<Self> {
        Self::mapped(path, len, true)
    }

    /// What a former process left.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it; [`Error::Mismatch`] if it is not of `len` bytes; those of files.
    pub fn open(path: &Path, len: u64) -> Result<Self> {
        Self::mapped(path, len, false)
    }

    fn mapped(path: &Path, len: u64, anew: bool) -> Result<Self> {
        let backing = Backing::open(path, anew)?;
        if anew {
            backing.resize(len)?;
        }
        let have = backing.len()?;
        if have < len || (have != len && backing.kind == Kind::File) {
            return Err(Error::Mismatch(format!(
                "{}: length: the file has {}, the region that it is to mirror {}",
                backing.named(),
                ByteSize(have),
                ByteSize(len)
            )));
        }
        let memory = observe::memory(backing.map(len as usize)?, backing.named());
        if memory.device().is_none() {
            memory.mapping().advise_huge();
        }
        Ok(Self {
            memory,
            backing,
            reserved: Mutex::new(0),
        })
    }

    /// Whether the file still has its name: a later start does not find it otherwise.
    pub fn is_there(&self) -> bool {
        self.backing.has_name()
    }
}

impl Side for MirrorFile {
    fn reserve_to(&self, end: u64) -> Result<()> {
        let mut reserved = self.reserved.lock();
        if *reserved < end {
            if end > self.memory.len() {
                return Err(Error::Mismatch(format!("{} is too short", self.backing.named())));
            }
            self.backing.take_space(*reserved, end - *reserved)?;
            *reserved = end;
        }
        Ok(())
    }

    fn copy(&self, memory: &RegionMemory, off: u64, len: usize) {
        for at in (off..off + len as u64).step_by(LINE) {
            copy_line(memory.block(at), self.memory.block(at));
        }
        coherence::write_back(&self.memory, off, len);
    }

    fn fence(&self) {
        coherence::fence(&self.memory);
    }

    fn is_apart(&self) -> bool {
        self.memory.is_simulated()
    }
}

/// Invariant 3. The fences cost nothing on x86-64.
fn copy_line(from: Block<'_, LINE>, to: Block<'_, LINE>) {
    let words: [u64; LINE / 8] = core::array::from_fn(|i| {
        let word = from.u64(8 * i);
        fence(core::sync::atomic::Ordering::Acquire);
        word
    });
    for (i, word) in words.into_iter().enumerate().rev() {
        fence(core::sync::atomic::Ordering::Release);
        to.set_u64(8 * i, word);
    }
}
