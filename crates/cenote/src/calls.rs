//! How this program calls memory nodes of other pods, and is called: over libfabric, where it is there.

use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::Callers;
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Provider};
use cenote_pool::node::NodeCalls;
use cenote_space::{HostOptions, Hosts};
use std::sync::Arc;

/// A provider that is none.
pub const NONE: &str = "none";

/// A memory node's side: what is called, and by what name.
pub struct Called {
    /// Held for its thread.
    _node: MemoryNode,
    /// What the pool is told.
    pub calls: NodeCalls,
}

/// Begins to be called over `provider`, at this machine's address `name`, or on loopback alone.
///
/// # Errors
/// [`Error::Invalid`] if libfabric is not there, or the provider is not.
pub fn called(provider: &str, name: Option<&str>, options: HostOptions) -> Result<Called> {
    let provider: Provider = provider.parse()?;
    let node = MemoryNode::start(&NodeOptions {
        name: name.map(str::to_owned),
        ..NodeOptions::new(provider)
    })?;
    let hosts = Arc::new(Hosts::default());
    node.serve(Arc::clone(&hosts) as _);
    let calls = NodeCalls {
        address: node.address().to_string(),
        callers: callers()?,
        hosts,
        registrar: Some(node.registrar()),
        options,
    };
    Ok(Called { _node: node, calls })
}

/// The way to memory nodes of other pods.
///
/// # Errors
/// [`Error::Invalid`] with what to install, if libfabric is not there.
pub fn callers() -> Result<Arc<dyn Callers>> {
    Ok(Arc::new(Net::new(NetOptions::default())?))
}

/// What an error says, without its kind.
pub fn text(error: &Error) -> String {
    match error {
        Error::Invalid(text) => text.clone(),
        other => other.to_string(),
    }
}
