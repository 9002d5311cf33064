//! What a slot's state word says.
//!
//! ```text
//!   63          46 45      38 37         36    17 16               0
//!  ┌──────────────┬──────────┬──────────┬────────┬──────────────────┐
//!  │ generation   │ code     │ lifetime │ zero   │ distance to head │
//!  └──────────────┴──────────┴──────────┴────────┴──────────────────┘
//! ```

use super::Class;
use super::address::{GENERATION_MAX, GENERATION_SHIFT, SLOT_BITS};
use super::class::{CLASS_CODES, SLAB_CODE};
use super::keeper::Lifetime;

const DISTANCE_BITS: u32 = SLOT_BITS;
const LIFETIME_SHIFT: u32 = CODE_SHIFT - 1;
const CODE_SHIFT: u32 = GENERATION_SHIFT - 8;
const GENERATION_MASK: u64 = u64::MAX << GENERATION_SHIFT;

const FREE: u8 = 0;
const RETIRED: u8 = 1;
const HEAD: u8 = 2;
const TAIL: u8 = 3;
const FROZEN: u8 = 4;
const AWAY: u8 = 5;
const LENT: u8 = 6;
const _: () = assert!(LENT < SLAB_CODE && SLAB_CODE as usize + CLASS_CODES <= 256);
// Memory that was never used is zero, and its slots are free.
const _: () = assert!(FREE == 0);
const _: () = assert!(RETIRED < HEAD && HEAD < TAIL && TAIL < FROZEN && FROZEN < AWAY && AWAY < LENT);
const _: () = assert!(DISTANCE_BITS <= LIFETIME_SHIFT && LIFETIME_SHIFT < CODE_SHIFT);

/// The state of the same extent while no access may use it.
pub(super) fn frozen(state: u64) -> u64 {
    assert!(code_of(state) >= SLAB_CODE, "only slabs are frozen: {state:#018x}");
    state & GENERATION_MASK | u64::from(FROZEN) << CODE_SHIFT
}

pub(super) fn is_frozen(state: u64) -> bool {
    code_of(state) == FROZEN
}

/// What a state word says that its slot is: a slab's class, or something else.
#[inline(always)]
pub(super) fn code_of(state: u64) -> u8 {
    (state >> CODE_SHIFT) as u8
}

/// What an extent is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Nothing.
    Free,
    /// Objects of a class.
    Slab(Class, Lifetime),
    /// The beginning of a run.
    Head(Lifetime),
    /// More of the run that began so many slots before.
    Tail(u32),
    /// Nothing any more: its generations are used up.
    Retired,
    /// A slab that is about to move: no access uses it until it has moved, or stays.
    Frozen,
    /// A slab that lies elsewhere: the descriptor says where.
    Away,
    /// Nothing, as [`Use::Free`]; an extent of another slot lies in its memory.
    Lent,
}

/// A slot's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) used: Use,
}

impl Slot {
    pub(super) fn encode(self) -> u64 {
        assert!(self.generation <= GENERATION_MAX, "generation {}", self.generation);
        let life = |lifetime| u64::from(lifetime == Lifetime::Session) << LIFETIME_SHIFT;
        let (code, rest) = match self.used {
            Use::Free => (FREE, 0),
            Use::Slab(class, lifetime) => (class.code(), life(lifetime)),
            Use::Head(lifetime) => (HEAD, life(lifetime)),
            Use::Tail(distance) => {
                assert!(distance >> DISTANCE_BITS == 0, "{distance} slots to the head of a run");
                (TAIL, u64::from(distance))
            }
            Use::Retired => (RETIRED, 0),
            Use::Frozen => (FROZEN, 0),
            Use::Away => (AWAY, 0),
            Use::Lent => (LENT, 0),
        };
        u64::from(self.generation) << GENERATION_SHIFT | u64::from(code) << CODE_SHIFT | rest
    }

    /// What a word says, if it says something that [`Slot::encode`] can have said.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let lifetime = match word >> LIFETIME_SHIFT & 1 {
            0 => Lifetime::Space,
            _ => Lifetime::Session,
        };
        let used = match code_of(word) {
            FREE => Use::Free,
            RETIRED => Use::Retired,
            HEAD => Use::Head(lifetime),
            TAIL => Use::Tail(word as u32 & ((1 << DISTANCE_BITS) - 1)),
            FROZEN => Use::Frozen,
            AWAY => Use::Away,
            LENT => Use::Lent,
            code => Use::Slab(Class::of_code(code)?, lifetime),
        };
        let generation = (word >> GENERATION_SHIFT) as u32;
        let slot = Self { generation, used };
        let sound = slot.encode() == word && slot.is_possible();
        sound.then_some(slot)
    }

    /// Whether a slab that had this generation here is about to go, is elsewhere, or has ended.
    pub(super) fn has_left(self, generation: u32) -> bool {
        let is_going = matches!(self.used, Use::Frozen | Use::Away);
        self.generation > generation || self.generation == generation && is_going
    }

    fn is_possible(self) -> bool {
        match self.used {
            Use::Free | Use::Lent => self.generation < GENERATION_MAX,
            Use::Slab(..) | Use::Head(_) | Use::Frozen | Use::Away => self.generation > 0,
            Use::Tail(distance) => self.generation > 0 && distance > 0,
            Use::Retired => self.generation == GENERATION_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_as_it_was_written() {
        let class = Class::numbered(85).expect("the last");
        let uses = [
            Use::Slab(class, Lifetime::Session),
            Use::Slab(class, Lifetime::Space),
            Use::Head(Lifetime::Session),
            Use::Head(Lifetime::Space),
            Use::Tail(131_071),
            Use::Frozen,
            Use::Away,
        ];
        for used in uses {
            let slot = Slot {
                generation: GENERATION_MAX,
                used,
            };
            assert_eq!(Slot::decode(slot.encode()), Some(slot));
            assert_eq!(Slot::decode(slot.encode() | 1 << (DISTANCE_BITS + 3)), None);
            let never = Slot { generation: 0, used };
            assert_eq!(Slot::decode(never.encode()), None);
        }
        assert_eq!(
            Slot::decode(0),
            Some(Slot {
                generation: 0,
                used: Use::Free
            })
        );
        assert_eq!(Slot::decode(7 << CODE_SHIFT), None);
        let beyond = (u64::from(SLAB_CODE) + CLASS_CODES as u64) << CODE_SHIFT;
        assert_eq!(Slot::decode(1 << GENERATION_SHIFT | beyond), None);
    }
}
