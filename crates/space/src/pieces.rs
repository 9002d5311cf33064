//! Runs whose extents can move: each extent is a slab of one object, as large as the extent ([`Class::WHOLE`]), and
//! moves by itself, as every slab does.
//!
//! ```text
//!   home      │ piece 0 │ away ──┐ │ piece 2 │          a run of three extents, side by side when it was handed out
//!   elsewhere           │ piece 1 ◄┘
//! ```
//!
//! So a run is what its address says: extents of one generation, one after the other. In each one's map stands which
//! piece of how many it is, beside the live word. It goes where the extent goes, so that wherever an access finds a
//! piece it knows how far the run reaches. An access that goes beyond a piece is done at once where the next pieces lie
//! behind it, as they did at first; else in pieces ([`super::runs`]).
//!
//! Invariants:
//! 1. pieces are laid from the last to the first. So one whose first extent is of an older generation is of a run that
//!    was being handed out: the next keeper frees it;
//! 2. a piece is not frozen before it is *ready*: until then its session fills it with zeros where it was handed out;
//! 3. pieces are freed from the last to the first, each where it lies, by its live bit. A process that is killed over
//!    it leaves the first, and with it the run, to be freed again. Pieces have no owner: empty ones are the keeper's.

use super::GlobalAddress;
use super::address::{GENERATION_SHIFT, OFFSET_BITS};
use super::class::{Class, WORDS_MAX};
use super::extent_table::ExtentTable;
use super::keeper::Lifetime;
use super::part::Part;
use super::slot::{Slot, Use};
use crate::extent::EXTENT;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};

/// Words of a piece's map behind its live word: how many pieces the run has, which this is, and whether it is ready.
const COUNT: u32 = 1;
const NUMBER: u32 = 2;
const READY: u32 = 3;
const _: () = assert!(READY < WORDS_MAX);

/// A piece of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which, from 0 on.
    pub(super) number: u32,
    /// Of how many.
    pub(super) count: u32,
}

impl Piece {
    /// Bytes of its run.
    pub(super) fn run_bytes(self) -> u64 {
        u64::from(self.count) * EXTENT
    }

    /// How far into the run the byte at `inside` of the piece is.
    pub(super) fn place(self, inside: u64) -> u64 {
        u64::from(self.number) * EXTENT + inside
    }
}

const WHOLE: Use = Use::Slab(Class::WHOLE, Lifetime::Space);

impl Part {
    /// Whether a run that stays until it is freed is handed out as pieces here.
    pub(super) fn has_pieces(&self, lifetime: Lifetime) -> bool {
        self.may_move() && lifetime == Lifetime::Space
    }

    /// The piece that lies in a slot's memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: something wrote there.
    pub(super) fn piece(&self, slot: u32) -> Result<Piece> {
        let [number, count] = [NUMBER, COUNT].map(|word| self.live(slot, word).load(Ordering::Acquire));
        match (u32::try_from(number), u32::try_from(count)) {
            (Ok(number), Ok(count)) if number < count && count <= 1 << 17 => Ok(Piece { number, count }),
            _ => Err(Error::Corrupt(format!(
                "{}: slot {slot} has piece {number} of {count} of a run",
                self.name()
            ))),
        }
    }

    /// Makes `count` free slots a run in pieces, from the last to the first.
    pub(super) fn lay_pieces(&self, first: u32, count: u32, generation: u32) {
        assert!(count > 0 && generation > 0, "{count} pieces of generation {generation}");
        for number in (0..count).rev() {
            let slot = first + number;
            self.owner(slot).store(0, Ordering::Relaxed);
            self.hint(slot).store(0, Ordering::Relaxed);
            for (word, value) in [(COUNT, count), (NUMBER, number), (READY, 0)] {
                self.live(slot, word).store(value.into(), Ordering::Relaxed);
            }
            let live = u64::from(generation) << GENERATION_SHIFT | 1;
            self.live(slot, 0).store(live, Ordering::Relaxed);
            let used = WHOLE;
            self.state(slot)
                .store(Slot { generation, used }.encode(), Ordering::Release);
        }
    }

    /// The pieces of a run that was just handed out are zero: they may move from here on.
    pub(super) fn set_ready(&self, first: u32, count: u32) {
        let ready = |slot| self.live(slot, READY).store(1, Ordering::Release);
        (first..first + count).for_each(ready);
    }

    /// Whether a slab in its own slot may be frozen, for all that its session does.
    pub(super) fn is_ready(&self, slot: u32, class: Class) -> bool {
        class != Class::WHOLE || self.live(slot, READY).load(Ordering::Acquire) == 1
    }

    /// Whether a piece is of a run that was never handed out: its keeper was killed before it laid the first one.
    pub(super) fn is_broken_off(&self, slot: u32, generation: u32) -> bool {
        let first = self.piece(slot).ok().and_then(|piece| slot.checked_sub(piece.number));
        // What does not make sense stays: the audit names it.
        first.is_some_and(|first| self.slot(first).is_ok_and(|found| found.generation < generation))
    }

    /// Whether `len` bytes from `inside` of a piece on are all of its run.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if not.
    pub(super) fn reaches(&self, address: GlobalAddress, slot: u32, inside: u64, len: u64) -> Result<Piece> {
        let piece = self.piece(slot)?;
        let (begin, all) = (piece.place(inside), piece.run_bytes());
        match begin.checked_add(len).is_some_and(|end| end <= all) {
            true => Ok(piece),
            false => Err(Error::OutOfBounds(format!(
                "{len} bytes at {address}: its object has {all}, and begins {begin} bytes before"
            ))),
        }
    }

    /// Whether the pieces with the next `len` bytes from an address on lie behind each other, in their own slots.
    pub(super) fn lie_together(&self, address: GlobalAddress, len: u64) -> bool {
        let last = ((u64::from(address.offset()) + len - 1) >> OFFSET_BITS) as u32;
        let here = |slot: u32| {
            let (generation, used) = (address.generation(), WHOLE);
            let is_its = self.slot(slot).is_ok_and(|found| found == Slot { generation, used });
            is_its && self.live(slot, 0).load(Ordering::Acquire) & 1 != 0
        };
        address.part() == self.number() && (0..=last).all(|n| here(address.slot() + n))
    }
}

impl ExtentTable {
    /// Frees the empty ones of a run's pieces that lie at home.
    pub(super) fn release_pieces(&mut self, part: &Part, first: u32, generation: u32) {
        for slot in first..part.slots() {
            let Ok(found) = part.slot(slot) else { return };
            match found.used {
                _ if found.generation != generation => return,
                WHOLE if part.is_empty_slab(slot, Class::WHOLE, generation) => {
                    if let Some(slots) = self.unowned.get_mut(&Class::WHOLE) {
                        slots.remove(&slot);
                    }
                    self.release(part, slot, generation);
                }
                Use::Away | Use::Frozen | Use::Free | Use::Lent | Use::Retired => {}
                _ => return,
            }
        }
    }
}

/// Where in so many bytes from an address on the next extent begins, if it does.
pub(super) fn cut(address: GlobalAddress, len: usize) -> Option<usize> {
    let rest = (EXTENT - u64::from(address.offset())) as usize;
    (rest < len).then_some(rest)
}
