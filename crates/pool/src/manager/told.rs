//! Which parts of spaces each memory node has been told of, since this leadership began.
//!
//! A member that is fenced is over when each node of its space has confirmed it, and which nodes these are a node knows
//! from the manager. So no member hears of a part before all nodes of its space know of it: one that is cut off while
//! the space grows would otherwise hand locks over though their former holder may still write to the new part.

use crate::grant_table::{GrantId, NodeId, SpaceId};
use cenote_base::rt::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Default)]
pub(super) struct Told(Mutex<State>);

/// A part's number in its space.
type Number = (SpaceId, u8);

#[derive(Default)]
struct State {
    by_node: BTreeMap<NodeId, BTreeSet<Number>>,
    /// Parts that their nodes have made, and not all nodes know of.
    made: BTreeSet<GrantId>,
}

impl Told {
    /// A node knows of these; whether it did not before.
    pub(super) fn note(&self, node: NodeId, parts: impl Iterator<Item = Number>) -> bool {
        let mut state = self.0.lock();
        let known = state.by_node.entry(node).or_default();
        // All are to be noted.
        parts.fold(false, |any, part| known.insert(part) | any)
    }

    pub(super) fn knows(&self, node: NodeId, part: Number) -> bool {
        let state = self.0.lock();
        state.by_node.get(&node).is_some_and(|known| known.contains(&part))
    }

    /// Its node has made it.
    pub(super) fn set_made(&self, id: GrantId) {
        self.0.lock().made.insert(id);
    }

    pub(super) fn is_made(&self, id: GrantId) -> bool {
        self.0.lock().made.contains(&id)
    }

    /// A node is gone: what it was told, and that it has made these, is to be heard from it anew.
    pub(super) fn is_gone(&self, node: NodeId, grants: &[GrantId]) {
        let mut state = self.0.lock();
        state.by_node.remove(&node);
        state.made.retain(|id| !grants.contains(id));
    }

    /// It is kept, or taken back.
    pub(super) fn is_over(&self, id: GrantId) {
        self.0.lock().made.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_was_told_is_news_once() {
        let told = Told::default();
        let part = |number: u8| (SpaceId(7), number);
        let of = |numbers: &[u8]| numbers.iter().map(|n| (SpaceId(7), *n)).collect::<Vec<_>>().into_iter();
        assert!(told.note(NodeId(1), of(&[1, 2])) && !told.note(NodeId(1), of(&[2, 1])));
        assert!(told.note(NodeId(1), of(&[2, 3])) && told.note(NodeId(2), of(&[2])));
        assert!(told.knows(NodeId(1), part(3)) && !told.knows(NodeId(2), part(3)));
        told.set_made(GrantId(3));
        assert!(told.is_made(GrantId(3)) && !told.is_made(GrantId(2)));
        told.set_made(GrantId(4));
        told.is_gone(NodeId(1), &[GrantId(4)]);
        assert!(told.is_made(GrantId(3)) && !told.is_made(GrantId(4)));
        assert!(!told.knows(NodeId(1), part(3)) && told.knows(NodeId(2), part(2)));
        told.is_over(GrantId(3));
        assert!(!told.is_made(GrantId(3)));
    }
}
