//! The latch word of a frame, and waiting for it.
//!
//! ```text
//! 63            32 31     24 23    16 15        1 0
//! [  version:32   ][epoch:8 ][node:8 ][shared:15 ][exclusive]
//! ```
//!
//! - **Optimistic**: remember the version, read, compare. Nothing is stored.
//! - **Shared**: count up. A count belongs to an epoch (one start of the pool): one of another epoch was left by a dead
//!   process and is zero, so no thread has to walk the frames to reset them.
//! - **Exclusive**: the bit, taken when no count is left. Releasing a changed page raises the version.
//!
//! A thread that finds the latch taken spins for a while, then parks on a word in local memory; the releasing side
//! looks there only (one load) and wakes the parked threads.
//!
//! Invariants:
//! - the version changes only while the exclusive bit is set; so an optimistic reader who sees the
//!   same version, bit clear, before and after has read one state of the page;
//! - `waiters` is raised before the latch is looked at for the last time, and looked at after the
//!   latch is released, both in one order (SeqCst): no wake-up is lost.

use cenote_base::rt::atomic::{AtomicU32, AtomicU64, Ordering};
use cenote_base::rt::{self, Spin};

use crate::index::FrameIndex;

/// Exclusive bit.
pub const EXCLUSIVE: u64 = 1;
const SHARED_ONE: u64 = 1 << 1;
const SHARED_MASK: u64 = 0x7FFF << 1;
const SHARED_MAX: u64 = 0x7FF0 << 1;
const OWNER_MASK: u64 = 0xFFFF << 16;
/// One more version.
pub const VERSION_ONE: u64 = 1 << 32;

/// Epoch and node of this process as they stand in a latch word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// Of start `epoch` (never 0) on node `node`.
    pub fn new(epoch: u8, node: u8) -> Self {
        assert!(epoch != 0, "no start has the epoch of a word that was never held");
        Self((epoch as u64) << 24 | (node as u64) << 16)
    }
}

/// Version part of a word.
#[inline(always)]
pub fn version(word: u64) -> u64 {
    word >> 32
}

/// Whether the exclusive bit is set.
#[inline(always)]
pub fn is_exclusive(word: u64) -> bool {
    word & EXCLUSIVE != 0
}

/// Whether the word counts shared holders, of whatever epoch.
pub fn has_shared(word: u64) -> bool {
    word & SHARED_MASK != 0
}

/// Whether any thread of `owner`'s epoch holds the latch.
pub fn is_held(word: u64, owner: Owner) -> bool {
    is_exclusive(word) || shared(word, owner) > 0
}

/// Shared count that `owner`'s epoch vouches for.
fn shared(word: u64, owner: Owner) -> u64 {
    if word & OWNER_MASK == owner.0 {
        word & SHARED_MASK
    } else {
        0
    }
}

/// The word with one shared holder more, if that may be.
fn with_shared(word: u64, owner: Owner) -> Option<u64> {
    let count = shared(word, owner);
    let free = !is_exclusive(word) && count < SHARED_MAX;
    free.then(|| (word & !(OWNER_MASK | SHARED_MASK)) | owner.0 | (count + SHARED_ONE))
}

/// The word held exclusively by `owner`, if that may be.
fn with_exclusive(word: u64, owner: Owner) -> Option<u64> {
    let free = !is_exclusive(word) && shared(word, owner) == 0;
    free.then_some((word & !(OWNER_MASK | SHARED_MASK)) | owner.0 | EXCLUSIVE)
}

/// Takes the latch shared if no thread holds it exclusively.
pub fn try_shared(latch: &AtomicU64, owner: Owner) -> bool {
    latch
        .fetch_update(Ordering::Acquire, Ordering::Relaxed, |w| with_shared(w, owner))
        .is_ok()
}

/// Gives a shared hold back. As all that releases, this runs in destructors: no preemption point.
pub fn release_shared(latch: &AtomicU64) {
    let before = latch.as_raw().fetch_sub(SHARED_ONE, Ordering::SeqCst);
    assert!(has_shared(before), "a shared hold is given back once");
}

/// Takes the latch exclusively if no thread holds it. The caller's latch slot names the frame already.
pub fn try_exclusive(latch: &AtomicU64, owner: Owner) -> bool {
    let taken = latch
        .fetch_update(Ordering::Acquire, Ordering::Relaxed, |w| with_exclusive(w, owner))
        .is_ok();
    if taken {
        // The page's stores must not be seen before the bit is.
        rt::atomic::fence(Ordering::Release);
    }
    taken
}

/// As [`try_exclusive`], and only if the version still is `version`.
pub fn try_upgrade(latch: &AtomicU64, owner: Owner, expected: u64) -> Upgrade {
    let word = latch.load(Ordering::Relaxed);
    if is_exclusive(word) || version(word) != expected {
        return Upgrade::Changed;
    }
    let Some(next) = with_exclusive(word, owner) else {
        return Upgrade::Shared;
    };
    match latch.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => {
            rt::atomic::fence(Ordering::Release);
            Upgrade::Taken
        }
        Err(_) => Upgrade::Shared,
    }
}

/// What [`try_upgrade`] met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrade {
    /// The latch is held exclusively now.
    Taken,
    /// The page has changed, or is being changed.
    Changed,
    /// Another thread reads it under the latch, or was faster: look again.
    Shared,
}

/// The word after an exclusive hold, with the version raised if the page (or which page it is) changed.
fn released(word: u64, changed: bool) -> u64 {
    let word = word & !(EXCLUSIVE | SHARED_MASK);
    if changed { word.wrapping_add(VERSION_ONE) } else { word }
}

/// Gives an exclusive hold back.
pub fn release_exclusive(latch: &AtomicU64, changed: bool) {
    let word = latch.as_raw().load(Ordering::Relaxed);
    assert!(is_exclusive(word), "an exclusive hold is given back once");
    latch.as_raw().swap(released(word, changed), Ordering::SeqCst);
}

/// Takes back what a dead owner held, in recovery: no other thread is about.
pub fn reset(latch: &AtomicU64) {
    latch.store(released(latch.load(Ordering::Relaxed), true), Ordering::Release);
}

const LOTS: usize = 512;

#[derive(Default)]
#[repr(align(64))]
struct Lot {
    waiters: AtomicU32,
    turns: AtomicU32,
}

/// Where threads wait for latches: in local memory, a lot for many frames.
pub struct Parking {
    lots: Box<[Lot]>,
}

impl Parking {
    /// Without waiters.
    pub fn new() -> Self {
        Self {
            lots: (0..LOTS).map(|_| Lot::default()).collect(),
        }
    }

    fn lot(&self, frame: FrameIndex) -> &Lot {
        &self.lots[frame.place() % LOTS]
    }

    /// How many wait, for `frame` or one of the same lot.
    #[cfg(test)]
    pub fn waiters(&self, frame: FrameIndex) -> u32 {
        self.lot(frame).waiters.load(Ordering::SeqCst)
    }

    /// Wakes the threads that wait for `frame`; after each release.
    #[inline]
    pub fn released(&self, frame: FrameIndex) {
        let lot = self.lot(frame);
        if lot.waiters.as_raw().load(Ordering::SeqCst) != 0 {
            lot.turns.as_raw().fetch_add(1, Ordering::SeqCst);
            rt::wake(&lot.turns, usize::MAX);
        }
    }

    /// Returns what `attempt` gives once it gives something: spins, then sleeps until a release.
    pub fn until<T>(&self, frame: FrameIndex, mut attempt: impl FnMut() -> Option<T>) -> T {
        let mut spin = Spin::new();
        while !spin.is_out() {
            if let Some(done) = attempt() {
                return done;
            }
            spin.turn();
        }
        let lot = self.lot(frame);
        loop {
            lot.waiters.fetch_add(1, Ordering::SeqCst);
            let turn = lot.turns.load(Ordering::SeqCst);
            let done = attempt();
            if done.is_none() {
                rt::wait(&lot.turns, turn, None);
            }
            let before = lot.waiters.fetch_sub(1, Ordering::SeqCst);
            assert!(before > 0, "a thread that waited was counted");
            if let Some(done) = done {
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word() -> AtomicU64 {
        AtomicU64::new(0)
    }

    #[test]
    fn shared_counts_of_a_former_epoch_are_zero() {
        let (old, new, latch) = (Owner::new(1, 0), Owner::new(2, 0), word());
        assert!(try_shared(&latch, old) && try_shared(&latch, old));
        assert!(!try_exclusive(&latch, old));
        assert!(try_exclusive(&latch, new), "the readers of epoch 1 are dead");
        assert!(!try_shared(&latch, new) && !try_exclusive(&latch, new));
        release_exclusive(&latch, true);
        assert_eq!(version(latch.load(Ordering::Relaxed)), 1);
        assert!(try_shared(&latch, new));
        assert!(!try_exclusive(&latch, new));
        release_shared(&latch);
        assert!(try_exclusive(&latch, new));
    }

    #[test]
    fn an_upgrade_needs_the_version_it_read() {
        let (me, latch) = (Owner::new(3, 0), word());
        assert_eq!(try_upgrade(&latch, me, 0), Upgrade::Taken);
        assert_eq!(try_upgrade(&latch, me, 0), Upgrade::Changed);
        release_exclusive(&latch, false);
        assert!(try_shared(&latch, me));
        assert_eq!(try_upgrade(&latch, me, 0), Upgrade::Shared);
        release_shared(&latch);
        assert_eq!(try_upgrade(&latch, me, 0), Upgrade::Taken);
        release_exclusive(&latch, true);
        assert_eq!(try_upgrade(&latch, me, 0), Upgrade::Changed);
    }
}
