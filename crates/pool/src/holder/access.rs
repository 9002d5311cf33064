//! A process's way to a pool's memory that is reached over the fabric: one for all parts that it has of it.
//!
//! Opening the fabric takes 0.2 s, threads and buffers, and a connection is one of the tenant's share. So parts share
//! both. Each part that is held has a connection beside, over which its lease is renewed.

use super::Credentials;
use super::mirror::Cards;
use crate::session::{ANSWER_TIMEOUT, ManagerChannel};
use crate::wire::{Reply, Request};
use cenote_base::Result;
use cenote_base::rt::{Mutex, Nanos};
use cenote_fabric::message::Network;
use std::sync::Arc;

/// How long a node may be silent, and a read or a write take: for memory that its holder can do without.
const TIMEOUT: Nanos = Nanos::from_secs(1);
/// How long a read may take: a reader has another way to what is there, and a node that is lost without a word holds up
/// each thread for so long.
const READ_TIMEOUT: Nanos = Nanos::from_millis(300);

/// See the module.
pub struct RemoteAccess {
    pub(super) network: Arc<dyn Network>,
    pub(super) credentials: Credentials,
    /// Not those of leases: a node may take longer than a lease has time.
    line: ManagerChannel,
    pub(super) cards: Cards,
    keeps_line: bool,
}

impl RemoteAccess {
    /// Of a process that holds memory. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if the credentials name no managers.
    pub fn to_hold(network: &Arc<dyn Network>, credentials: &Credentials) -> Result<Arc<Self>> {
        Self::new(network, credentials, TIMEOUT, true)
    }

    /// Of a process that reads what another holds. There may be many, which ask seldom: none keeps a connection of its
    /// tenant's share.
    ///
    /// # Errors
    /// As of [`RemoteAccess::to_hold`].
    pub fn to_read(network: &Arc<dyn Network>, credentials: &Credentials) -> Result<Arc<Self>> {
        Self::new(network, credentials, READ_TIMEOUT, false)
    }

    fn new(
        network: &Arc<dyn Network>,
        credentials: &Credentials,
        timeout: Nanos,
        keeps_line: bool,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            network: Arc::clone(network),
            credentials: credentials.clone(),
            line: credentials.tenants_channel(network)?,
            cards: Cards::with_timeout(timeout),
            keeps_line,
        }))
    }

    /// The manager's addresses, for messages.
    pub fn manager(&self) -> &str {
        &self.credentials.manager
    }

    /// Another channel, for a lease. It begins with the manager that answered last, which leads.
    pub(super) fn lease_channel(&self) -> ManagerChannel {
        ManagerChannel {
            network: Arc::clone(&self.network),
            managers: self.line.managers.clone(),
            hello: self.line.hello.clone(),
            session: Mutex::default(),
        }
    }

    pub(super) fn ask(&self, request: &Request) -> Result<Reply> {
        let asked = self.line.ask(request, ANSWER_TIMEOUT);
        if !self.keeps_line {
            self.line.session.lock().take();
        }
        asked
    }
}
