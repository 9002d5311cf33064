//! One-sided verbs over libfabric: TCP, the shared memory of one machine, verbs, EFA, by name.
//!
//! ```text
//!   user                                                memory node
//!   Net ─ connect(address) ─► Connection                MemoryNode::start ─► address()
//!         few endpoints serve all threads                     progress thread, registry of keys
//!              │ Path::Served: works as messages, done by the node's progress thread, in order
//!              └ Path::OneSided: reads and writes by the network card; atomics as messages
//! ```
//!
//! Which path? The node's provider decides ([`Path::of`]). On TCP and shared memory libfabric's own "one-sided"
//! operations are code of the node's progress thread as well, and worse code for the [contract](cenote_fabric::rdma): a wrong key
//! ends the connection with all that is under way on it, a revocation does not wait for a transfer that has begun,
//! words come torn. So there works travel as messages: many of them in one, copied by whole words, each with an answer
//! of its own. A card on which one-sided operations are what they say does reads and writes; a refusal there is
//! explained by asking the node. Atomics are messages on all paths, done by the node's processor: what libfabric offers
//! for the endpoints used here is the same, in the provider, and two kinds of atomics on one word are none.
//!
//! Calls ([`call`](cenote_fabric::rdma::call)) are messages too, over the same endpoints and sessions: as many in one as fit, large
//! ones in parts.
//!
//! Nobody is authenticated: keys are drawn at random and are all that protects memory, addresses are for networks
//! that are trusted. The default address is this machine's own.
//!
//! See `docs/decisions/libfabric.md` for what could have been otherwise.

#![allow(
    unsafe_code,
    reason = "the shim over libfabric, and memory that a network card writes to"
)]

mod address;
pub mod bare;
mod batch;
mod calls;
mod client;
mod fabric_endpoint;
mod node;
mod protocol;
mod registered_memory;
mod shim;

pub use address::{NodeAddress, Provider};
pub use node::MemoryNode;

use cenote_base::rt::{self, HashMap, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Caller, Callers};
use cenote_fabric::rdma::{Endpoint, Fabric};
use client::{Channel, Connection, Handle};
use core::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Weak};

/// Who moves the bytes of reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Path {
    /// The node's progress thread.
    Served = 1,
    /// The provider.
    OneSided = 2,
}

impl Path {
    /// The one that keeps the contract with this provider.
    pub fn of(provider: &Provider) -> Self {
        if provider.is_hardware() {
            Path::OneSided
        } else {
            Path::Served
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        [Path::Served, Path::OneSided].into_iter().find(|p| *p as u8 == number)
    }
}

/// How a memory node is reached.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The provider.
    pub provider: Provider,
    /// Own IP address, or name with `shm`. `None`: this machine's own, not reached from others; a name that is drawn.
    pub name: Option<String>,
    /// Own port, where there are ports. `None`: any.
    pub port: Option<u16>,
    /// Who moves the bytes; `None`: as [`Path::of`] says. With [`Path::OneSided`] on a software provider the contract
    /// holds but for torn words and transfers that had begun before a revocation.
    pub path: Option<Path>,
    /// Whether what goes into memory that calls lend is written there by the provider, if it can and the caller's
    /// memory is registered; else it comes in messages. Not over shared memory, unless it is said: many writes at once
    /// take four times as long as messages there.
    pub writes: bool,
    /// How long a user that has called may be silent, though asked, before its connection is over for the node's
    /// program.
    pub silence: Nanos,
}

impl NodeOptions {
    /// On this machine alone, any port.
    pub fn new(provider: Provider) -> Self {
        Self {
            writes: provider != Provider::shm(),
            provider,
            name: None,
            port: None,
            path: None,
            silence: Nanos::from_secs(10),
        }
    }
}

/// How nodes are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetOptions {
    /// How long a work may take, and a node may be silent.
    pub timeout: Nanos,
    /// Endpoints of one provider and own address: more serve more threads at once, each has some 20 MiB of buffers.
    pub fabric_endpoints: usize,
}

impl Default for NetOptions {
    fn default() -> Self {
        Self {
            timeout: Nanos::from_secs(5),
            fabric_endpoints: 1,
        }
    }
}

/// Whether RDMA is there: libfabric was there when this was built, and can be loaded.
///
/// # Errors
/// [`Error::Invalid`] with what to install.
pub fn available() -> Result<()> {
    shim::load()
}

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
            "{} rails",
            self.open.values().filter(|h| h.strong_count() > 0).count()
        )
    }
}

impl Net {
    /// With nothing open yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] if RDMA is not there.
    pub fn new(options: NetOptions) -> Result<Self> {
        available()?;
        Ok(Self {
            options,
            fabric_endpoints: Mutex::default(),
        })
    }

    /// A new endpoint towards the node at `address`.
    ///
    /// # Errors
    /// [`Error::Lost`] when it cannot be reached, [`Error::Io`] if the provider is not there.
    pub fn connect_to(&self, address: &NodeAddress) -> Result<Arc<dyn Endpoint>> {
        Ok(Arc::new(Connection(self.channel(address)?)))
    }

    fn channel(&self, address: &NodeAddress) -> Result<Arc<Channel>> {
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

/// A name for an endpoint that was given none.
fn own_name(provider: &Provider) -> Option<String> {
    match provider {
        p if p.is_ip() => Some("127.0.0.1".into()),
        p if p.name() == "shm" => Some(format!("cenote-rdma-{:016x}", rt::random())),
        _ => None,
    }
}

/// The own address from which a node is reached: answers come back to it.
fn own_towards(address: &NodeAddress) -> Result<Option<String>> {
    match address.socket() {
        Some(to) => Ok(Some(source_for(to)?.to_string())),
        None => Ok(own_name(address.provider())),
    }
}

/// What the system would send from. (Nothing is sent: a datagram socket is only told where it would.)
fn source_for(to: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let source = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|s| {
        s.connect(to)?;
        s.local_addr()
    });
    source
        .map(|a| a.ip())
        .map_err(|e| Error::Lost(format!("there is no way to {to}: {e}")))
}
