//! The grant table of one leadership, with its store.
//!
//! Invariants:
//! - what a client can see of the grant table is in the store, but for leases and for which nodes are connected;
//! - a change that cannot be written did not happen;
//! - after the leadership is over nothing is written: the store refuses it.

use super::links::{self, Links};
use crate::grant_table::{GrantTable, NodeId};
use crate::settings::Tenants;
use crate::store::{Leadership, Stored};
use cenote_base::Result;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Condvar, Mutex, MutexGuard, Nanos};
use core::ops::Deref;
use std::collections::BTreeSet;
use std::sync::Arc;

/// See the module.
pub(super) struct StoredGrantTable {
    leadership: Arc<dyn Leadership>,
    grant_table: Mutex<GrantTable>,
    /// Something in the grant table, or of the ways to nodes, is another than before.
    changed: Condvar,
    /// Memory nodes for which a change has work are told.
    links: Arc<Links<NodeId>>,
    agents: Arc<Links<(NodeId, String)>>,
}

/// The grant table, while no thread changes it.
pub(super) struct Looked<'a>(MutexGuard<'a, GrantTable>);

impl Deref for Looked<'_> {
    type Target = GrantTable;

    fn deref(&self) -> &GrantTable {
        &self.0
    }
}

impl StoredGrantTable {
    /// Begins a leadership: reads the grant table, or begins one; the term.
    ///
    /// # Errors
    /// Those of the store; [`Error::Corrupt`], [`Error::Mismatch`] if it holds no grant table of this program.
    pub(super) fn begin(leadership: Arc<dyn Leadership>, tenants: Tenants, lease: Nanos) -> Result<(Self, u64)> {
        let read_at = rt::now();
        let stored = leadership.read()?;
        let mut grant_table = match &stored {
            Some(stored) => GrantTable::read(stored, tenants, read_at, lease)?,
            None => GrantTable::new(rt::random_u128(), tenants),
        };
        let term = grant_table.begin_term();
        let change = match stored {
            Some(Stored::Records(_)) => grant_table.changes(),
            Some(Stored::Former(_)) | None => grant_table.whole(),
        };
        leadership.write(&change)?;
        grant_table.keep();
        grant_table.no_holder_was_heard(rt::now().since(read_at));
        let stored = Self {
            leadership,
            grant_table: Mutex::new(grant_table),
            changed: Condvar::default(),
            links: Arc::default(),
            agents: Arc::default(),
        };
        Ok((stored, term))
    }

    /// Looks at the grant table. No thread waits for a node, or changes it, with this held.
    pub(super) fn look(&self) -> Looked<'_> {
        Looked(self.grant_table.lock())
    }

    /// Changes the grant table, and its store before any client sees it.
    ///
    /// # Errors
    /// That of the change, and those of the store: nothing has changed then.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut GrantTable) -> Result<T>) -> Result<T> {
        let mut grant_table = self.grant_table.lock();
        let changed = change(&mut grant_table).and_then(|outcome| Ok((outcome, self.write(&mut grant_table)?)));
        match changed {
            Ok((outcome, differs)) => {
                let concerned = grant_table.concerned();
                grant_table.keep();
                drop(grant_table);
                if differs {
                    self.tell(concerned.as_ref());
                }
                Ok(outcome)
            }
            Err(error) => {
                grant_table.undo();
                Err(error)
            }
        }
    }

    /// Writes what is another by a change; whether anything is.
    fn write(&self, grant_table: &mut GrantTable) -> Result<bool> {
        let change = grant_table.changes();
        if !change.is_empty() && !planted(Fault::BookUnwritten) {
            self.leadership.write(&change)?;
        }
        Ok(!change.is_empty())
    }

    /// Those that wait for a change, and the memory nodes that have something to do by it.
    fn tell(&self, concerned: Option<&BTreeSet<NodeId>>) {
        self.changed.notify_all();
        match concerned {
            Some(nodes) => {
                self.links.work_for(|node| nodes.contains(node));
                self.agents.work_for(|(device, _)| nodes.contains(device));
            }
            None => {
                self.links.work_for_all();
                self.agents.work_for_all();
            }
        }
    }

    /// As [`StoredGrantTable::change`], of a change that cannot fail itself.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn update(&self, update: impl FnOnce(&mut GrantTable)) -> Result<()> {
        self.change(|grant_table| {
            update(grant_table);
            Ok(())
        })
    }

    /// Changes what is not in the store: leases, and which nodes are connected.
    pub(super) fn change_unstored<T>(&self, change: impl FnOnce(&mut GrantTable) -> T) -> T {
        let mut grant_table = self.grant_table.lock();
        let outcome = change(&mut grant_table);
        grant_table.keep();
        outcome
    }

    /// Wakes the threads that wait for a change.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits for a change since it was looked at.
    pub(super) fn wait(&self, looked: Looked<'_>, timeout: Nanos) {
        drop(self.changed.wait_timeout(looked.0, timeout));
    }

    pub(super) fn links(&self) -> Arc<Links<NodeId>> {
        Arc::clone(&self.links)
    }

    pub(super) fn agents(&self) -> Arc<Links<(NodeId, String)>> {
        Arc::clone(&self.agents)
    }

    // ---- the leadership ----

    pub(super) fn leadership(&self) -> &Arc<dyn Leadership> {
        &self.leadership
    }

    /// Whether this manager leads still, for all that it knows.
    pub(super) fn leads(&self) -> bool {
        self.leadership.leads()
    }

    /// A manager that leads no more gives no orders and no answers.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub(super) fn check_leads(&self) -> Result<()> {
        links::check_leads(&*self.leadership)
    }

    /// Asks the store whether this manager leads.
    ///
    /// # Errors
    /// [`Error::Lost`]; those of the way to the store.
    pub(super) fn confirm(&self) -> Result<()> {
        self.leadership.confirm()
    }

    /// Ends the leadership.
    pub(super) fn resign(&self) {
        self.leadership.resign();
    }
}
