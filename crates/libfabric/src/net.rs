//! A user's endpoints, shared by its threads: one or a few for each provider and own address.

use crate::address::{NodeAddress, Provider};
use crate::client::{Channel, Connection, Handle};
use crate::options::{NetOptions, own_towards};
use crate::shim;
use cenote_base::Result;
use cenote_base::rt::{HashMap, Mutex};
use cenote_fabric::rdma::call::{Caller, Callers};
use cenote_fabric::rdma::{Endpoint, Fabric};
use core::fmt;
use std::sync::{Arc, Weak};

/// A process's way to memory nodes. Nodes are named by their address, in its text form.
#[derive(Debug)]
pub struct Net {
    options: NetOptions,
    fabric_endpoints: Mutex<Endpoints>,
}

#[derive(Default)]
struct Endpoints {
    /// By provider, own address, and a number.
    open: HashMap<(Provider, Option<String>, usize), Weak<Handle>>,
    turns: usize,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} endpoints",
            self.open.values().filter(|h| h.strong_count() > 0).count()
        )
    }
}

impl Net {
    /// With nothing open yet.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if RDMA is not there.
    pub fn new(options: NetOptions) -> Result<Self> {
        shim::load()?;
        Ok(Self {
            options,
            fabric_endpoints: Mutex::default(),
        })
    }

    /// A new endpoint towards the node at `address`.
    ///
    /// # Errors
    /// [`Error::Lost`](cenote_base::Error::Lost) when it cannot be reached, [`Error::Io`](cenote_base::Error::Io) if
    /// the provider is not there.
    pub fn connect_to(&self, address: &NodeAddress) -> Result<Arc<dyn Endpoint>> {
        Ok(Arc::new(Connection(self.channel(address)?)))
    }

    pub(crate) fn channel(&self, address: &NodeAddress) -> Result<Arc<Channel>> {
        self.fabric_endpoint(address)?.connect(address)
    }

    /// One of the endpoints for that provider and own address, in turn.
    fn fabric_endpoint(&self, address: &NodeAddress) -> Result<Arc<Handle>> {
        let local = own_towards(address)?;
        let mut fabric_endpoints = self.fabric_endpoints.lock();
        fabric_endpoints.turns += 1;
        // Endpoints with names of their own are not told apart by them.
        let name = address.socket().and(local.clone());
        let place = (
            address.provider().clone(),
            name,
            fabric_endpoints.turns % self.options.fabric_endpoints.max(1),
        );
        if let Some(handle) = fabric_endpoints.open.get(&place).and_then(Weak::upgrade) {
            return Ok(handle);
        }
        let handle = Handle::open(&self.options, address.provider(), local.as_deref())?;
        fabric_endpoints.open.insert(place, Arc::downgrade(&handle));
        Ok(handle)
    }
}

impl Fabric for Net {
    fn connect(&self, peer: &str) -> Result<Arc<dyn Endpoint>> {
        self.connect_to(&peer.parse()?)
    }
}

impl Callers for Net {
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        Ok(Arc::new(Connection(self.channel(&peer.parse()?)?)))
    }
}
