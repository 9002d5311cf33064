//! libfabric's own operations, without anything of ours but the slots: what the benchmark measures itself against.

use super::fabric_endpoint::{FabricEndpoint, SLOT, Slot, Started};
use super::shim::{Start, Target};
use crate::address::NodeAddress;
use crate::client::Connection;
use crate::net::Net;
use crate::options::own_towards;
use cenote_base::rt;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::{Endpoint, Remote, RemoteMemory};
use std::sync::Arc;

pub use super::shim::Start as Operation;

/// An endpoint of its own towards registered memory of a node whose path is [`OneSided`](crate::Path::OneSided).
#[derive(Debug)]
pub struct Bare {
    fabric_endpoint: FabricEndpoint,
    target: Target,
}

impl Bare {
    /// Asks the node what the provider calls the memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the provider does not know the memory; those of [`Net::connect_to`] and of a read.
    pub fn connect(net: &Net, address: &NodeAddress, memory: Remote) -> Result<Self> {
        let channel = net.channel(address)?;
        let endpoint: Arc<dyn Endpoint> = Arc::new(Connection(Arc::clone(&channel)));
        RemoteMemory::new(endpoint, memory).load(0)?;
        let known = channel.provider_key(memory.key.0);
        let known =
            known.ok_or_else(|| Error::Invalid("the node's memory is not registered with its provider".into()))?;
        let fabric_endpoint = FabricEndpoint::open(address.provider(), own_towards(address)?.as_deref(), None)?;
        let peer = fabric_endpoint.insert(address)?;
        let target = Target { peer, ..known };
        Ok(Self {
            fabric_endpoint,
            target,
        })
    }

    /// Does `batch` operations of `len` bytes with one doorbell, and returns when all are complete. Atomics take the
    /// operand 1, and expect 0.
    ///
    /// # Errors
    /// [`Error::Io`] with what the provider says.
    pub fn run(&self, what: Operation, len: usize, batch: usize) -> Result<()> {
        let mut open = 0;
        for i in 0..batch {
            let mut slot = self.slot(&mut open)?;
            if matches!(what, Start::FetchAdd | Start::CompareAndSwap) {
                self.fabric_endpoint.bytes(&mut slot)[..24].fill(0);
                self.fabric_endpoint.bytes(&mut slot)[0] = u8::from(what == Start::FetchAdd);
            }
            let mut target = self.target;
            target.address += (i * len) as u64;
            self.start(slot, len.min(SLOT), what, &target, i + 1 < batch, &mut open)?;
        }
        while open > 0 {
            self.poll(&mut open)?;
        }
        Ok(())
    }

    fn slot(&self, open: &mut usize) -> Result<Slot> {
        loop {
            match self.fabric_endpoint.take() {
                Some(slot) => return Ok(slot),
                None => self.poll(open)?,
            }
        }
    }

    fn start(&self, mut slot: Slot, len: usize, what: Start, to: &Target, more: bool, open: &mut usize) -> Result<()> {
        loop {
            match self.fabric_endpoint.start(slot, len, what, to, 1, more) {
                Started::Yes => {
                    *open += 1;
                    return Ok(());
                }
                Started::No(_, error) => return Err(error),
                Started::Later(back) => slot = back,
            }
            self.poll(open)?;
        }
    }

    fn poll(&self, open: &mut usize) -> Result<()> {
        let mut failed = None;
        let count = self.fabric_endpoint.poll(|complete| {
            failed = complete.result.err();
            self.fabric_endpoint.give(complete.slot);
        })?;
        *open -= count;
        if count == 0 {
            rt::relax();
        }
        failed.map_or(Ok(()), |e| Err(super::shim::error("a bare operation", e)))
    }
}
