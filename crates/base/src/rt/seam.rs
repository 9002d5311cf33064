//! Asking the seam's question once for a whole operation, where once for each of its points is too much.
//!
//! A hit in a buffer pool passes eight preemption points in forty instructions. Such an operation is written once,
//! generic over [`Seam`], and exists twice: with [`Plain`] its points are no code at all; with [`Points`] they are the
//! runtime's. Which of them runs is asked once, by [`simulated`](super::simulated).
//!
//! ```
//! use cenote_base::rt::{self, atomic::{AtomicU64, Ordering}, seam::{Plain, Points, Seam}};
//!
//! fn sum<S: Seam>(s: S, words: &[AtomicU64]) -> u64 {
//!     words.iter().map(|w| w.load_by(s, Ordering::Acquire)).sum()
//! }
//! let words = [AtomicU64::new(1), AtomicU64::new(2)];
//! let total = if rt::simulated() { sum(Points, &words) } else { sum(Plain, &words) };
//! # assert_eq!(total, 3);
//! ```

use super::memory::Access;
use super::{entered, os};

/// Whether an operation's points are points: see the module.
pub trait Seam: Copy {
    /// Whether its points are no code: constant.
    const PLAIN: bool;
    /// A preemption point, before `atomic` is used.
    fn access<T>(self, atomic: &T, access: Access);
    /// The calling thread's slot.
    fn slot(self) -> usize;
}

/// The operating system drives this thread: nothing to ask.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Seam for Plain {
    const PLAIN: bool = true;

    #[inline(always)]
    fn access<T>(self, _: &T, _: Access) {}

    #[inline(always)]
    fn slot(self) -> usize {
        os::thread_slot()
    }
}

/// Some runtime drives this thread.
#[derive(Debug, Clone, Copy)]
pub struct Points;

impl Seam for Points {
    const PLAIN: bool = false;

    fn access<T>(self, atomic: &T, access: Access) {
        super::access(atomic, access);
    }

    fn slot(self) -> usize {
        if super::simulated() {
            entered().thread_slot()
        } else {
            os::thread_slot()
        }
    }
}
