//! What the agent of a host sees, in place of `/proc`: which of its processes map which ranges of the device.

use std::path::Path;
use std::sync::Arc;

use cenote_base::Result;
use cenote_base::rt::Nanos;
use cenote_fabric::FileRange;
use cenote_pool::host::{Process as Named, RangeHost, Sight};

use super::machine::end;
use super::role::agent_host;
use super::stage::Stage;

/// A host, in one of its lives.
pub(super) struct HostSight {
    pub stage: Arc<Stage>,
    pub host: usize,
    pub life: u64,
}

impl HostSight {
    fn users_of(&self, range: FileRange) -> Vec<u32> {
        let users = self.stage.machine().ranges_on(agent_host(self.host)).into_iter();
        users
            .filter(|(_, mapped)| mapped.overlaps(&range))
            .map(|(user, _)| user)
            .collect()
    }
}

impl RangeHost for HostSight {
    fn sight(&self) -> Sight {
        Sight {
            boot: (self.host as u64) << 32 | self.life,
            // Numbers of namespaces are equal on equal machines.
            processes: 1,
        }
    }

    fn mappings(&self, _: &Path) -> Result<Vec<(String, FileRange)>> {
        let mapped = self.stage.machine().ranges_on(agent_host(self.host)).into_iter();
        Ok(mapped.map(|(user, range)| (format!("process {user}"), range)).collect())
    }

    /// A simulated process does not know its own number. Where a holder elsewhere has named this host, and maps the
    /// range, it may be the one that asks: a process of this host is not taken for it.
    fn is_user(&self, _: &Path, range: FileRange, _: Named) -> Result<bool> {
        Ok(self.stage.machine().is_named_by_its_own(agent_host(self.host), range))
    }

    fn end_users(&self, _: &Path, range: FileRange, timeout: Nanos) -> Result<()> {
        let what = format!("the range at {}", range.offset);
        end(&self.stage, &what, timeout, || Ok(self.users_of(range)))
    }
}
