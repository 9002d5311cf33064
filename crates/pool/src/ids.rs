//! Numbers of grants, nodes and spaces, and what is happening to them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A grant's number, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantId(pub u64);

/// A memory node's number, which it drew when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a slab of the grant with this label is called.
pub fn slab_label(first: &str, slab: u32) -> String {
    format!("{first}{SLAB}{slab}")
}

const SLAB: &str = "-slab-";

/// Whether a label is a slab's: no other grant that is reached over the fabric has such a one.
pub(crate) fn is_slab_label(label: &str) -> bool {
    let number = label.rsplit_once(SLAB).map(|(_, number)| number);
    // As `slab_label` writes them: `+7` and `007` are numbers, too, and no slab's.
    let is_written = |number: &str| number.parse().is_ok_and(|parsed: u32| parsed.to_string() == number);
    number.is_some_and(is_written)
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What is happening to a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It has a holder, with a lease.
    Held,
    /// Kept for its tenant; it has no holder.
    Idle,
    /// Its holder's lease lapsed: its node is ending the holder.
    Fencing,
    /// Its node is ending the processes that map it, and frees its memory.
    Freeing,
    /// A part of a space: its node is making it, and no client has heard of it.
    Keeping,
    /// A part of a space: its node keeps it.
    Kept,
    /// A mirror that lacks something of what it mirrors.
    Filling,
    /// A mirror that has all that was flushed.
    Whole,
}

impl Phase {
    /// Whether a grant goes from here to `next` (docs/pool.md, *A grant's life*; docs/mirrors.md).
    pub(crate) fn may_become(self, next: Phase) -> bool {
        match (self, next) {
            (Phase::Freeing, _) => false,
            (_, Phase::Freeing) => true,
            // A dead holder's grant goes to the next without having been idle.
            (Phase::Held | Phase::Idle, Phase::Held) => true,
            (Phase::Held, Phase::Fencing) | (Phase::Fencing, Phase::Idle) => true,
            (Phase::Keeping, Phase::Kept) => true,
            // The mirror of a part takes its place.
            (Phase::Fencing, Phase::Kept) => true,
            // What a holder says of its mirror may come twice; a promoted mirror is fenced.
            (Phase::Filling | Phase::Whole, Phase::Filling | Phase::Whole) => true,
            (Phase::Whole, Phase::Fencing) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Held => "held",
            Phase::Idle => "idle",
            Phase::Fencing => "fencing",
            Phase::Freeing => "freeing",
            Phase::Keeping => "being made",
            Phase::Kept => "kept",
            Phase::Filling => "being filled",
            Phase::Whole => "whole",
        })
    }
}

/// A space's number, drawn when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpaceId(pub u128);

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What is happening to a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpacePhase {
    /// Its nodes are making its parts.
    Making,
    /// It is used.
    Ready,
    /// Its nodes are freeing its parts.
    Dropping,
}

impl SpacePhase {
    /// Whether a space goes from here to `next`: see [`spaces`](crate::grant_table).
    pub(crate) fn may_become(self, next: SpacePhase) -> bool {
        // A space may be told twice to go.
        next == SpacePhase::Dropping || (self, next) == (SpacePhase::Making, SpacePhase::Ready)
    }
}

impl fmt::Display for SpacePhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SpacePhase::Making => "being made",
            SpacePhase::Ready => "ready",
            SpacePhase::Dropping => "being dropped",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_told_by_their_labels() {
        for first in ["db", "db-slab-", "a-slab-b"] {
            assert!(is_slab_label(&slab_label(first, 63)) && !is_slab_label(first));
        }
        assert_eq!(slab_label("db", 0), "db-slab-0");
        for other in ["+7", "-7", "007", "00", " 7", "7 ", "", "4294967296", "x"] {
            assert!(!is_slab_label(&format!("db-slab-{other}")), "{other:?}");
        }
    }
}
