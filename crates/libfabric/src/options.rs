//! How nodes are made and reached: what a program says of them, and the own addresses that follow.

use crate::address::{NodeAddress, Provider};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Which side moves the bytes of reads and writes.
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

    pub(crate) fn from_number(number: u8) -> Option<Self> {
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
    /// Which side moves the bytes; `None`: as [`Path::of`] says. With [`Path::OneSided`] on a software provider the
    /// contract holds but for torn words and transfers that had begun before a revocation.
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

/// A name for an endpoint that was given none.
pub(crate) fn own_name(provider: &Provider) -> Option<String> {
    match provider {
        p if p.is_ip() => Some("127.0.0.1".into()),
        p if p.name() == "shm" => Some(format!("cenote-rdma-{:016x}", rt::random())),
        _ => None,
    }
}

/// The own address from which a node is reached: answers come back to it.
pub(crate) fn own_towards(address: &NodeAddress) -> Result<Option<String>> {
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
