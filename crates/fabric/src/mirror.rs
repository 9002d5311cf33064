//! A region's mirror: a second memory that gets the lines which are written back.
//!
//! Who keeps to host survival (design, section 7, rule 5) writes lines back in such an order that memory which holds
//! the flushed lines, and of the others any, can be recovered. So a mirror needs no more than those lines:
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
//!    while somebody stores to the line, shows a line's first word no newer than the others: a descriptor whose latch
//!    (its first word, released last) is free has all the rest (rule 5e);
//! 4. a mirror is whole when it was attached and then filled to the end: each line was copied since, and is copied with
//!    every later write-back;
//! 5. what is reserved in the region is reserved in the mirror before.
//!
//! What is stored and never written back is not in the mirror: a region that is to survive a process only cannot be
//! mirrored. Whether a mirror may be believed is not for this module to say: its [`MirrorKeeper`] has it written down
//! somewhere before anybody relies on it, and after it is whole.
//!
//! A mirror is mapped here ([`MirrorFile`]). One that is reached by one-sided verbs would be another [`Side`]: it posts
//! writes in `copy` and waits for them in `fence`.

use crate::{Block, LINE, Region, coherence};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::{Error, Result};
use core::fmt;
use core::sync::atomic::fence;
use std::path::Path;
use std::sync::Arc;

/// Bytes whose lines share a lock: a small page, so that one of 16 KiB takes four.
const STRIPE: u64 = 4096;
const STRIPES: usize = 64;
/// Bytes that [`Region::fill_mirror_step`] copies at most.
pub const FILL_STEP: u64 = 1 << 20;

/// What lines are copied to.
pub trait Side: Send + Sync {
    /// Takes the space of all bytes below `end`.
    ///
    /// # Errors
    /// [`Error::Full`].
    fn reserve_to(&self, end: u64) -> Result<()>;

    /// Copies whole lines of `region` to the same place, and begins to write them back there. The caller holds the lock
    /// of their stripe.
    fn copy(&self, region: &Region, off: u64, len: usize);

    /// Returns when this thread's copies are in the mirror's memory.
    fn fence(&self);

    /// Whether [`Side::fence`] has to be asked: the processor's own fence does not complete the copies.
    fn is_apart(&self) -> bool;
}

/// Who knows where a region's mirror is, and what it may be believed. The region's user tells it when it begins.
pub trait MirrorKeeper: Send + Sync + fmt::Debug {
    /// The region is about to be made anew. When this returns nothing that the mirror holds will be believed.
    ///
    /// # Errors
    /// It could not be seen to: the region is not to be touched.
    fn before_making(&self) -> Result<()>;

    /// The region was opened or made, and what was in it has not been changed by this process yet. From here on it is
    /// mirrored, as far as there is a mirror.
    ///
    /// # Errors
    /// Its mirror counts as whole, cannot be attached, and that could not be noted: the region is not to be touched.
    fn begin(&self, region: &Arc<Region>) -> Result<()>;
}

/// A line's way to a mirror.
#[repr(align(64))]
#[derive(Default)]
struct Stripe(Mutex<Option<Arc<dyn Side>>>);

/// The mirror of a region, and the locks of its lines. Leaves in the order of locks.
pub(crate) struct Mirroring {
    stripes: [Stripe; STRIPES],
    is_apart: AtomicBool,
    /// It has no room for what is to be reserved.
    failed: AtomicBool,
}

impl Default for Mirroring {
    fn default() -> Self {
        Self {
            stripes: core::array::from_fn(|_| Stripe::default()),
            is_apart: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }
}

impl Mirroring {
    /// From the return of this on, every copy goes there.
    fn set(&self, side: Option<Arc<dyn Side>>) {
        self.is_apart
            .store(side.as_ref().is_some_and(|side| side.is_apart()), Ordering::Release);
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

    /// Copies the lines of a range.
    #[cold]
    pub(crate) fn copy(&self, region: &Region, off: u64, len: usize) {
        if len == 0 {
            return;
        }
        let end = (off + len as u64).next_multiple_of(LINE as u64);
        let mut at = off / LINE as u64 * LINE as u64;
        while at < end {
            let next = end.min((at / STRIPE + 1) * STRIPE);
            if let Some(side) = &*self.stripe(at).0.lock() {
                side.copy(region, at, (next - at) as usize);
            }
            at = next;
        }
    }

    #[cold]
    pub(crate) fn fence(&self) {
        if self.is_apart.load(Ordering::Acquire)
            && let Some(side) = self.side()
        {
            side.fence();
        }
    }
}

impl Region {
    /// There may be a mirror later. Said before other threads write, it has every write-back take its stripe's lock
    /// from the first on: else one that sees no mirror yet may have its stores in its processor's store buffer still
    /// when they are to be filled.
    pub fn expect_mirror(&self) {
        self.mirroring.get_or_init(Box::default);
    }

    /// From here on `side` gets every line that is written back. What it lacks is copied by
    /// [`Region::fill_mirror_step`]. It takes the place of a former one.
    ///
    /// # Errors
    /// [`Error::Full`] if it has no room for what is reserved; then it is not attached.
    pub fn attach_mirror(&self, side: Arc<dyn Side>) -> Result<()> {
        // What was in use when the region was opened is in use: it is to be filled, and only what is reserved can be
        // read.
        self.reserve_to(self.found)?;
        let _one = self.reserving.lock();
        side.reserve_to(self.reserved())?;
        let mirroring = self.mirroring.get_or_init(Box::default);
        mirroring.failed.store(false, Ordering::Release);
        mirroring.set(Some(side));
        Ok(())
    }

    /// No more lines are copied. Whoever believes the mirror has to know that before.
    pub fn detach_mirror(&self) {
        if let Some(mirroring) = self.mirroring() {
            let _one = self.reserving.lock();
            mirroring.set(None);
        }
    }

    /// Whether the mirror had no room for what was to be reserved last: the region cannot grow before it is detached.
    pub fn has_mirror_failed(&self) -> bool {
        self.mirroring()
            .is_some_and(|mirroring| mirroring.failed.load(Ordering::Acquire))
    }

    /// Whether there is a mirror.
    pub fn is_mirrored(&self) -> bool {
        self.mirroring().is_some_and(|mirroring| mirroring.side().is_some())
    }

    /// Copies the lines from `from` on, at most [`FILL_STEP`] bytes of what is reserved, beside those who use the
    /// region: where it came to. There is no more to copy when that is `from`.
    pub fn fill_mirror_step(&self, from: u64) -> u64 {
        let to = self.reserved().min(self.len()).min(from + FILL_STEP);
        match self.mirroring() {
            Some(mirroring) if from < to && mirroring.side().is_some() => {
                mirroring.copy(self, from, (to - from) as usize);
                coherence::fence(self);
                to
            }
            _ => from,
        }
    }
}

/// A mirror in a file or device that this process maps, and has locked. It has no header of its own: it gets the
/// region's.
pub struct MirrorFile {
    region: Region,
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
        Ok(Self {
            region: Region::without_header(path, len, anew)?,
            reserved: Mutex::new(0),
        })
    }

    /// Whether the file has its name still: nobody will find it otherwise.
    pub fn is_there(&self) -> bool {
        self.region.has_name()
    }
}

impl Side for MirrorFile {
    fn reserve_to(&self, end: u64) -> Result<()> {
        let mut reserved = self.reserved.lock();
        if *reserved < end {
            if end > self.region.len() {
                return Err(Error::Mismatch(format!("{} is too short", self.region.name())));
            }
            self.region.take_space(*reserved, end - *reserved)?;
            *reserved = end;
        }
        Ok(())
    }

    fn copy(&self, region: &Region, off: u64, len: usize) {
        for at in (off..off + len as u64).step_by(LINE) {
            copy_line(region.block(at), self.region.block(at));
        }
        coherence::write_back(&self.region, off, len);
    }

    fn fence(&self) {
        coherence::fence(&self.region);
    }

    fn is_apart(&self) -> bool {
        self.region.is_simulated()
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
