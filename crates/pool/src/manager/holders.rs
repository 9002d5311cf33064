//! Holders that are let in though their tenant's share of connections is taken.

use crate::grant_table::GrantId;
use crate::service::Visit;
use cenote_base::rt::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Connections of holders whose tenants' shares are taken, one for each grant.
#[derive(Default)]
pub(super) struct Holders(Mutex<BTreeMap<GrantId, Weak<Visit>>>);

impl Holders {
    /// A holder has shown that it holds a grant: its former connection is over.
    pub(super) fn come(&self, grant: GrantId, visit: &Arc<Visit>) {
        let mut holders = self.0.lock();
        holders.retain(|_, visit| visit.strong_count() > 0);
        let former = holders.insert(grant, Arc::downgrade(visit));
        if let Some(former) = former.and_then(|former| former.upgrade()) {
            former.connection.close();
        }
    }
}
