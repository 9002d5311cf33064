//! What a host knows of extents that come to it.

use crate::GlobalAddress;
use cenote_base::rt::fault::{Fault, planted};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Default)]
pub(super) struct Steps {
    /// Extents that are to lie here and are not settled.
    pub(super) received: BTreeMap<GlobalAddress, Coming>,
    /// Frozen ones whose home is gone for good, in which epoch, and the parts that said that they had it in that and
    /// had not used it: [`super::orphans`].
    pub(super) not_used: BTreeMap<GlobalAddress, (u64, BTreeSet<u8>)>,
}

/// In which migration epoch an extent comes, and whether all of it is here. Before that its slot is being written, and
/// has no other use.
pub(super) struct Coming {
    pub(super) freeze: u64,
    pub(super) is_fetched: bool,
}

impl Steps {
    pub(super) fn has_come(&self, extent: GlobalAddress, freeze: u64) -> bool {
        let coming = self.received.get(&extent);
        coming.is_some_and(|coming| (coming.freeze == freeze || planted(Fault::FreezeNumber)) && coming.is_fetched)
    }
}
