//! Parts whose changes reach a mirror: this node asks the manager for mirrors, as holders of grants do, and writes to
//! them.
//!
//! ```text
//!   keep ── a mirror of before? lost ── the part is served ── seek, fill, whole: beside its members
//! ```
//!
//! Invariant: while the grant table calls a mirror whole, no member hears of a change that is not there. So a part that
//! was kept before is served only when the manager has said that a former mirror counts no more; and a keeper that
//! hears that another node keeps the part answers nothing.

use crate::holder::mirror::{Cards, GrantMirror, Lines, MirrorOptions};
use crate::ids::NodeId;
use crate::managers::Managers;
use crate::session::ManagerChannel;
use crate::wire::{Hello, PartOrder, Role, VERSION};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::MirrorKeeper;
use cenote_fabric::message::Network;
use cenote_space::Part;
use std::sync::Arc;

/// Parts of a node that are mirrored at a time: each has a thread.
const MIRRORED_MAX: u64 = 256;
/// Looks at the mirror in a lease.
const LOOKS: u64 = 4;

/// See the module.
pub(super) struct Mirroring {
    lines: Lines,
    cards: Arc<Cards>,
    count: Arc<AtomicU64>,
}

/// What keeps a part mirrored, until it is dropped.
pub(super) struct PartMirror {
    mirror: Arc<GrantMirror>,
    _place: Place,
}

impl Mirroring {
    pub(super) fn new(network: &Arc<dyn Network>, managers: Managers, node: NodeId, secret: &str) -> Self {
        let hello = Hello {
            version: VERSION,
            role: Role::Keeper(node),
            secret: secret.into(),
        };
        let channel = || ManagerChannel {
            network: Arc::clone(network),
            managers: managers.clone(),
            hello: hello.clone(),
            session: Mutex::default(),
        };
        let (quick, slow) = (Arc::new(channel()), Arc::new(channel()));
        Self {
            // What waits for another node holds up no part whose mirror is lost.
            lines: Lines { quick, slow },
            cards: Arc::default(),
            count: Arc::default(),
        }
    }

    /// Begins to mirror a part that is about to be kept; nothing of it is served before.
    ///
    /// # Errors
    /// [`Error::Full`]; those of the way to the manager; [`Error::Revoked`]: it is not this node's to keep.
    pub(super) fn begin(&self, part: &Arc<Part>, order: &PartOrder, lease: Nanos) -> Result<PartMirror> {
        let place = self.place()?;
        let withdrawn = Arc::clone(part);
        let options = MirrorOptions {
            every: Nanos(lease.raw() / LOOKS),
            // A caller that waits is told: other parts' members wait for the same threads.
            patience: Nanos::ZERO,
            cards: Arc::clone(&self.cards),
            on_revoked: Box::new(move || withdrawn.withdraw()),
        };
        // The manager knows the epoch of what it gave this node to keep.
        let mirror = GrantMirror::new(self.lines.clone(), (order.grant, 0), options, Arc::default(), None);
        mirror.take_up()?;
        mirror.begin(&part.shared_region())?;
        Ok(PartMirror { mirror, _place: place })
    }

    fn place(&self) -> Result<Place> {
        let place = Place(Arc::clone(&self.count));
        match self.count.fetch_add(1, Ordering::Relaxed) < MIRRORED_MAX {
            true => Ok(place),
            false => Err(Error::Full(format!(
                "a memory node keeps {MIRRORED_MAX} parts that are mirrored, at most"
            ))),
        }
    }
}

/// One of those that are mirrored at a time.
struct Place(Arc<AtomicU64>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for PartMirror {
    fn drop(&mut self) {
        self.mirror.end();
    }
}
