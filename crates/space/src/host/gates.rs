//! Which members' calls a node serves: each member has a gate, which is closed when it is fenced.
//!
//! ```text
//!   admit ──► open: calls enter, next to the access, and leave after it ── close ──► closed ── the last has left ──► quiet
//! ```
//!
//! Invariants:
//! 1. nothing is done for a member but inside of its gate;
//! 2. a gate that is closed is never open again: a member that comes back gets another epoch, or is refused;
//! 3. a gate that is quiet stays so: nothing of its member can land here any more, whatever is on its way;
//! 4. keys by which a member's cards read memory are made inside of its gate, and have ended when it is quiet.

use super::read_keys::ReadKey;
use crate::far::Pass;
use crate::far::wire;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Mutex};
use cenote_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Of a gate's word: it is closed. Below are the calls that are inside.
const CLOSED: u64 = 1 << 63;

/// A member's, at a node. On a line of its own: other members' calls do not wait for it.
#[repr(align(64))]
pub(super) struct Gate {
    epoch: u64,
    inside: AtomicU64,
    /// By which the member's cards read memory of the node.
    keys: Mutex<Vec<Weak<ReadKey>>>,
}

/// A call that is inside of its member's gate. Dropping it is its end.
pub(super) struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let before = self.0.inside.fetch_sub(1, Ordering::Release);
        assert!(before & !CLOSED > 0, "a call leaves that was not inside");
    }
}

/// What a member is told that was fenced.
pub(super) fn revoked() -> Error {
    Error::Revoked("this member of the space was fenced: what its sessions had is taken back".into())
}

impl Gate {
    fn new(epoch: u64, inside: u64) -> Self {
        let inside = AtomicU64::new(inside);
        let keys = Mutex::default();
        Self { epoch, inside, keys }
    }

    /// Ends a key with the gate. It is made inside.
    pub(super) fn keep(&self, key: &Arc<ReadKey>) {
        let mut keys = self.keys.lock();
        keys.retain(|key| key.strong_count() > 0);
        keys.push(Arc::downgrade(key));
    }

    /// # Errors
    /// [`Error::Revoked`] if it is closed.
    pub(super) fn enter(&self) -> Result<Inside<'_>> {
        let inside = self.inside.fetch_add(1, Ordering::Acquire);
        let entered = Inside(self);
        match inside & CLOSED == 0 || planted(Fault::MemberCheck) {
            true => Ok(entered),
            false => Err(revoked()),
        }
    }

    fn is_open(&self) -> bool {
        self.inside.load(Ordering::Acquire) & CLOSED == 0
    }

    /// No call enters any more. Whether none is inside, and no card reads by the member's keys.
    fn close(&self) -> bool {
        let is_left = self.inside.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED == 0;
        is_left && self.end_keys()
    }

    fn end_keys(&self) -> bool {
        let mut keys = self.keys.lock();
        keys.retain(|key| key.upgrade().is_some_and(|key| key.end().is_err()));
        keys.is_empty()
    }
}

/// What a node does to fence members that another node of their space has fenced.
pub trait Fencing: Send + Sync {
    /// Returns when nothing of them can land in memory that this node hosts, and they cannot come back.
    ///
    /// # Errors
    /// [`Error::Busy`] if that is not so yet: it is to be asked again; those of ending a process.
    fn fence(&self, space: u128, members: &[u128]) -> Result<()>;
}

/// The gates of all members of a node, by space and number.
#[derive(Default)]
pub(super) struct Gates {
    all: Mutex<BTreeMap<(u128, u128), Arc<Gate>>>,
    fencing: Mutex<Option<Weak<dyn Fencing>>>,
}

impl Gates {
    /// The member's epoch: as before, if it is one already.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is being fenced.
    pub(super) fn admit(&self, space: u128, member: u128) -> Result<u64> {
        let mut all = self.all.lock();
        let open = || Arc::new(Gate::new(rt::random() | 1, 0));
        let gate = all.entry((space, member)).or_insert_with(open);
        match gate.is_open() {
            true => Ok(gate.epoch),
            false => Err(revoked()),
        }
    }

    /// No call of a member is begun any more, and it is not admitted. Whether none is under way.
    pub(super) fn close(&self, space: u128, member: u128) -> bool {
        let mut all = self.all.lock();
        let closed = || Arc::new(Gate::new(0, CLOSED));
        all.entry((space, member)).or_insert_with(closed).close()
    }

    /// A member is none any more, and does not come back.
    pub(super) fn forget(&self, space: u128, member: u128) {
        if let Some(gate) = self.all.lock().remove(&(space, member)) {
            gate.close();
        }
    }

    /// The gate that a pass is for.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is closed; [`wire::unheard`] if it is not known: its member may come back.
    pub(super) fn of(&self, space: u128, pass: Pass) -> Result<Arc<Gate>> {
        let gate = self.all.lock().get(&(space, pass.member)).cloned();
        match gate {
            Some(gate) if !gate.is_open() && !planted(Fault::MemberCheck) => Err(revoked()),
            Some(gate) if gate.epoch == pass.epoch || planted(Fault::MemberCheck) => Ok(gate),
            _ => Err(wire::unheard("no member of this number and epoch is known here")),
        }
    }

    pub(super) fn set_fencing(&self, fencing: Weak<dyn Fencing>) {
        *self.fencing.lock() = Some(fencing);
    }

    /// Does what another node orders.
    ///
    /// # Errors
    /// As [`Fencing::fence`].
    pub(super) fn fence(&self, space: u128, members: &[u128]) -> Result<()> {
        let fencing = self.fencing.lock().clone();
        if let Some(fencing) = fencing {
            let fencing = fencing
                .upgrade()
                .ok_or_else(|| Error::Lost("the node is stopping".into()))?;
            return fencing.fence(space, members);
        }
        let quiet = members.iter().filter(|member| self.close(space, **member)).count();
        match quiet == members.len() {
            true => Ok(()),
            false => Err(Error::Busy("calls of fenced members are under way: ask again".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_that_is_closed_is_quiet_when_the_last_has_left() {
        let gates = Gates::default();
        let epoch = gates.admit(1, 7).expect("admitted");
        let gate = gates.of(1, Pass { member: 7, epoch }).expect("known");
        let inside = gate.enter().expect("open");
        assert!(!gates.close(1, 7), "a call is inside");
        assert!(matches!(gate.enter(), Err(Error::Revoked(_))));
        assert!(matches!(gates.admit(1, 7), Err(Error::Revoked(_))));
        drop(inside);
        assert!(gates.close(1, 7), "nothing is under way");
        let again = gates.of(1, Pass { member: 7, epoch });
        assert!(matches!(again, Err(Error::Revoked(_))));
    }

    #[test]
    fn members_are_known_by_space_and_epoch() {
        let gates = Gates::default();
        let epoch = gates.admit(1, 7).expect("admitted");
        assert_eq!(gates.admit(1, 7).expect("the same"), epoch);
        for (space, member, epoch) in [(2, 7, epoch), (1, 8, epoch), (1, 7, epoch ^ 2)] {
            let unknown = gates.of(space, Pass { member, epoch });
            assert!(unknown.is_err_and(|error| wire::is_unheard(&error)));
        }
        // One that another node has fenced before it came.
        gates.fence(1, &[9]).expect("nothing is under way");
        assert!(matches!(gates.admit(1, 9), Err(Error::Revoked(_))));
        gates.forget(1, 9);
        assert!(gates.admit(1, 9).is_ok());
    }
}
