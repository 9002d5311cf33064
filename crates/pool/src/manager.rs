//! The manager: keeps the [grant table](crate::grant table), answers holders and operators, and gives memory nodes
//! their orders.
//!
//! Clients are answered by a fixed number of threads ([`service`](crate::service)), each memory node by one of its own,
//! and one lapses leases. Slabs that are asked for together have a thread for each of their nodes, of which there are
//! 64 at most ([`reaching`]). What a grant's phase asks of its node is done by the thread of that node's connection,
//! again and again until it is confirmed: a node that is away, or a manager that was killed in between, goes on where
//! things are, for they are in the grant table.
//!
//! Invariants:
//! - a change of the grant table is in its [store](crate::store) before any client hears of it; if it cannot be written
//!   it did not happen;
//! - one order at a time goes to a node;
//! - while the manager is away no holder loses anything: holders go on, nodes fence none of themselves. Nor does the
//!   time count in which it was stopped, or waited for its store: no holder was heard then;
//! - of several managers one leads ([`election`]). A manager that leads no more answers no client, and its writes and
//!   orders come to nothing: the store refuses the ones, memory nodes, which know the latest term, the others.
//!
//! A leadership is a [`leader`](leader::Leader) with parts that keep what is said here: the grant table with its store
//! ([`stored`]), the ways to nodes ([`links`]), the reasons for clients that wait ([`not_made`]).
//!
//! Lock order: a link → the grant table; the reasons → the grant table. No thread waits for a node with the grant table
//! locked.

mod agents;
mod election;
mod holders;
mod leader;
mod lent;
mod links;
mod mirrors;
mod not_made;
mod peers;
mod reaching;
mod slabs;
mod spaces;
mod stored;
mod told;

use crate::limits::ServiceLimits;
use crate::store::GrantTableStore;
use crate::store::file::FileStore;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use election::Election;
pub use leader::{LEASE_DEFAULT, ManagerOptions};
pub(crate) use links::ORDER_TIMEOUT;
use std::sync::Arc;

/// A manager that runs. Dropping it stops it; the grant table stays.
pub struct Manager {
    election: Arc<Election>,
    address: String,
    threads: Vec<rt::JoinHandle<()>>,
}

impl Manager {
    /// Takes its directory, reads the grant table or begins one, and listens.
    ///
    /// # Errors
    /// [`Error::Busy`] if another manager has the directory or the address; those of the grant table and of files.
    pub fn start(options: ManagerOptions, network: &dyn Network) -> Result<Self> {
        let store = Arc::new(FileStore::new(&options.directory));
        Self::start_on(store, options, network)
    }

    /// Listens, and leads as soon as no other manager on the store does. A store that is away is waited for.
    ///
    /// # Errors
    /// [`Error::Busy`] if another manager has the address, or the store for good; those of the grant table.
    pub fn start_on(store: Arc<dyn GrantTableStore>, options: ManagerOptions, network: &dyn Network) -> Result<Self> {
        Self::start_limited(store, options, ServiceLimits::MANAGER, network)
    }

    /// As [`Manager::start_on`], with other limits for its clients.
    ///
    /// # Errors
    /// As [`Manager::start_on`]; [`Error::Invalid`] for limits with which none could be served.
    pub fn start_limited(
        store: Arc<dyn GrantTableStore>,
        options: ManagerOptions,
        limits: ServiceLimits,
        network: &dyn Network,
    ) -> Result<Self> {
        limits.check()?;
        let listener = network.listen(&options.listen)?;
        let address = listener.address();
        let election = Arc::new(Election::new(options, store, limits, address.clone()));
        match election.try_to_lead() {
            Err(error @ (Error::Lost(_) | Error::Timeout(_))) => eprintln!("cenote: manager: {error}; trying again"),
            led => led?,
        }
        let (accepting, governing) = (Arc::clone(&election), Arc::clone(&election));
        let threads = vec![
            rt::spawn("pool accept", move || accepting.accept(&*listener)),
            rt::spawn("pool leases", move || governing.govern()),
        ];
        Ok(Self {
            election,
            address,
            threads,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The pool's id.
    ///
    /// # Errors
    /// [`Error::Lost`] if another manager leads; the text says which, if that is known.
    pub fn pool(&self) -> Result<u128> {
        Ok(self.election.leader()?.pool())
    }

    /// Waits until it leads; false if that did not happen in time.
    pub fn wait_leading(&self, timeout: Nanos) -> bool {
        self.election.wait_leading(timeout)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.election.stop();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
        // What is done for a connection, or for slabs, holds no more than the grant table.
        self.election.wait_ended();
    }
}

#[cfg(test)]
mod tests;
