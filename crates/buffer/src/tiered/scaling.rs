//! What is known of the slabs of remote memory that no table has: which may be granted, and how many are wanted.

use std::collections::BTreeMap;

use cenote_base::rt::{self, Nanos};

use super::link::Former;
use super::policy::Policy;
use super::source::RemoteSource;
use super::table::Uses;
use crate::remote::RemoteSize;

/// What is known of slabs, beside what the table has of those that are there.
pub struct Scaling {
    /// Those that may be granted: bits.
    pub granted: u64,
    /// Of those, the ones that are to be given back.
    pub returning: u64,
    /// Numbers that were refused: others are tried first.
    pub avoided: u64,
    pub size: RemoteSize,
    pub wanted: u32,
    pub policy: Option<Policy>,
    /// What had been counted when the policy last looked, and when that was.
    pub sampled: (Nanos, Uses),
    /// No slab is asked for until then.
    pub held_off: Nanos,
    pub taken: u64,
    pub returned: u64,
    pub moved: u64,
    /// Since when slabs that are granted have been looked for in vain.
    pub away_since: BTreeMap<u32, Nanos>,
}

/// The bit of a slab.
pub fn bit(slab: u32) -> u64 {
    1 << slab
}

/// The slabs whose bits are set.
pub fn slabs_in(bits: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |slab| bits & bit(*slab) != 0)
}

impl Scaling {
    pub fn new(source: &RemoteSource) -> Self {
        Self {
            granted: 0,
            returning: 0,
            avoided: 0,
            size: RemoteSize::ByNeed,
            wanted: 0,
            policy: source.growth().map(Policy::new),
            sampled: (rt::now(), Uses::default()),
            held_off: Nanos::default(),
            taken: 0,
            returned: 0,
            moved: 0,
            away_since: BTreeMap::new(),
        }
    }

    /// What the header says of slabs.
    pub fn learn(&mut self, former: &Former) {
        let new = former.granted & !self.granted;
        self.granted |= new;
        if !former.same_slabs {
            self.returning |= new;
        }
    }

    /// Those that are to be in use.
    pub fn kept(&self) -> u64 {
        self.granted & !self.returning
    }
}
