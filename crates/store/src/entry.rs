//! A word of a bucket: where an item lies, and what is being done to it.
//!
//! ```text
//!   63                                6 5      2 1       0
//!  ┌───────────────────────────────────┬────────┬────────┬───────────┐
//!  │ address of the item, a multiple   │ tag    │ frozen │ tentative │
//!  │ of 64; 0: none                    │        │        │           │
//!  └───────────────────────────────────┴────────┴────────┴───────────┘
//!
//!   0 never used ──┬── insert ──► tentative ── commit ──► committed ── freeze ──► frozen ── forward ──► FORWARDED
//!   GONE ──────────┘◄── abort ───────┘                       │
//!     ▲◄──────────────────── remove, evict ─────────────────-┘        free words: ── freeze ──► FORWARDED
//! ```
//!
//! A word that was used is never 0 again: so a table's word that still is 0 was not written by the move from the former
//! table ([`super::grow`]).

use cenote_space::{GRAIN, GlobalAddress};

const TENTATIVE: u64 = 1;
const FROZEN: u64 = 2;
const TAG_SHIFT: u32 = 2;
const TAG_MASK: u64 = 0xf << TAG_SHIFT;
const ADDRESS_MASK: u64 = !(GRAIN - 1);

const _: () = assert!(GRAIN == 64, "the tag and two flags lie below an address's last bit");

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u64);

/// What is known of a word by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Forwarded,
    Tentative,
    Committed,
    Frozen,
}

impl Entry {
    pub(super) const NEVER: Self = Self(0);
    pub(super) const GONE: Self = Self(TENTATIVE);
    pub(super) const FORWARDED: Self = Self(FROZEN);

    pub(super) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(super) const fn raw(self) -> u64 {
        self.0
    }

    /// A committed one.
    pub(super) fn committed(item: GlobalAddress, hash: u64) -> Self {
        assert!(
            item.raw() & !ADDRESS_MASK == 0 && !item.is_null(),
            "{item} is no item's address"
        );
        Self(item.raw() | tag(hash))
    }

    pub(super) const fn tentative(self) -> Self {
        Self(self.0 | TENTATIVE)
    }

    pub(super) const fn frozen(self) -> Self {
        Self(self.0 | FROZEN)
    }

    /// The same, neither tentative nor frozen.
    pub(super) const fn plain(self) -> Self {
        Self(self.0 & !(TENTATIVE | FROZEN))
    }

    pub(super) const fn item(self) -> GlobalAddress {
        GlobalAddress::from_raw(self.0 & ADDRESS_MASK)
    }

    pub(super) const fn state(self) -> State {
        match (self.0 & ADDRESS_MASK, self.0 & (TENTATIVE | FROZEN)) {
            (0, FROZEN) => State::Forwarded,
            (0, _) => State::Free,
            (_, 0) => State::Committed,
            (_, FROZEN) => State::Frozen,
            (_, _) => State::Tentative,
        }
    }

    /// Whether it may be of a key with this hash.
    pub(super) fn may_be(self, hash: u64) -> bool {
        self.0 & ADDRESS_MASK != 0 && self.0 & TAG_MASK == tag(hash)
    }
}

/// Four of the hash's bits that do not choose a bucket.
fn tag(hash: u64) -> u64 {
    hash >> 60 << TAG_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        let item = GlobalAddress::new(3, 9, 128, 5).expect("fits");
        let entry = Entry::committed(item, 0xa << 60);
        assert_eq!((entry.state(), entry.item()), (State::Committed, item));
        assert_eq!(entry.tentative().state(), State::Tentative);
        assert_eq!((entry.frozen().state(), entry.frozen().plain()), (State::Frozen, entry));
        assert!(entry.may_be(0xaf << 56) && !entry.may_be(0xb << 60));
        assert_eq!((Entry::NEVER.state(), Entry::GONE.state()), (State::Free, State::Free));
        assert_eq!(Entry::FORWARDED.state(), State::Forwarded);
        assert!(!Entry::FORWARDED.may_be(0));
    }
}
