//! A part whose changes reach a mirror: a second memory, on another memory node, that takes its place when it is lost.
//!
//! ```text
//!   call ── step: store, copy the lines; store, copy … ── queued ── settle: one fence for all that wait ── answered
//!                         (`Part::changed`)                             the mirror has it, or is void
//! ```
//!
//! All that changes such a part goes through the process that keeps it: no other maps it. So what there is to send is
//! known where it is done, and in which order.
//!
//! Invariants:
//! 1. each store of objects, of their maps, of descriptors, of the root and of sessions' numbers is followed by
//!    [`Part::changed`] with its bytes, before the next that needs it. So a mirror has a beginning of the changes;
//! 2. an access and the copies of what it changed are one *step*: no other access sees what is not copied yet;
//! 3. nothing is answered before what was copied until then is in the mirror ([`Part::settle`]), or the manager has
//!    said that the mirror counts no more. That holds for reads too: what a caller has seen is on both sides;
//! 4. a keeper that hears that it is the keeper no more ([`Part::withdraw`]) answers nothing.
//!
//! What is not copied: marks of threads that are inside, and heat. Nothing moves in such a part.

use super::mirror_step::{Mirrored, Step};
use super::part::Part;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Result};
use cenote_fabric::coherence;

impl Part {
    /// The same, whose changes reach a mirror of its region from here on, if one is attached.
    #[must_use]
    pub fn into_mirrored(mut self) -> Self {
        self.region().expect_mirror();
        self.mirrored = Some(Mirrored::default());
        self
    }

    /// Whether its changes reach a mirror.
    pub fn is_mirrored(&self) -> bool {
        self.mirrored.is_some()
    }

    /// This process is its keeper no more: it answers nothing.
    pub fn withdraw(&self) {
        if let Some(mirrored) = &self.mirrored {
            mirrored.withdrawn.store(true, Ordering::Release);
        }
    }

    /// Whether its users are answered here: otherwise they look for it elsewhere.
    pub(super) fn is_served(&self) -> bool {
        let Some(mirrored) = &self.mirrored else { return true };
        !mirrored.withdrawn.load(Ordering::Acquire) && self.region().mirror_behind().is_none()
    }

    /// These bytes of the region have changed.
    #[inline]
    pub(super) fn changed(&self, off: u64, len: u64) {
        if self.mirrored.is_some() {
            coherence::write_back(self.region(), off, len as usize);
        }
    }

    /// An access has changed these bytes of an object.
    #[inline]
    pub(super) fn written(&self, off: u64, len: u64) {
        if self.is_mirrored() && !planted(Fault::MirroredCopy) {
            self.changed(off, len);
        }
    }

    /// Begins an access.
    pub(super) fn step(&self) -> Step<'_> {
        Step::begin(self.mirrored.as_ref())
    }

    /// Whether what was done so far may be answered at once.
    pub(super) fn is_settled(&self) -> bool {
        let Some(mirrored) = &self.mirrored else { return true };
        let is_there = self.region().is_mirror_settled() || planted(Fault::MirroredAnswer);
        is_there && !mirrored.withdrawn.load(Ordering::Acquire)
    }

    /// Returns when all that was done before may be answered.
    ///
    /// # Errors
    /// [`Error::Lost`]: the mirror is not reached, and the manager has not said yet that it counts no more, or another
    /// node keeps the part. What was done since may be lost.
    pub fn settle(&self) -> Result<()> {
        let Some(mirrored) = &self.mirrored else { return Ok(()) };
        coherence::fence(self.region());
        let why = match (
            mirrored.withdrawn.load(Ordering::Acquire),
            self.region().mirror_behind(),
        ) {
            (true, _) => "it is kept by another memory node",
            (false, Some(_)) => "its mirror is not reached, and it is not known yet whether that has taken its place",
            (false, None) => return Ok(()),
        };
        Err(Error::Lost(format!("{}: {why}", self.name())))
    }

    /// # Errors
    /// [`Error::Invalid`] if extents of this part do not move.
    pub(super) fn check_moves(&self) -> Result<()> {
        match self.may_move() {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "{}: what is mirrored does not move",
                self.name()
            ))),
        }
    }
}
