//! How a client of the pool behaves.

use crate::host::Process;
use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::Callers;
use cenote_space::FarReads;
use std::sync::Arc;

/// Called when a membership is over: what the space was used for has to end, as the process is about to be ended.
pub type OnRevoked = Arc<dyn Fn(&Error) + Send + Sync>;

/// How a client uses spaces.
#[derive(Clone)]
pub struct ClientOptions {
    /// Its name, for people.
    pub name: String,
    /// The pod that it is in: only that pod's parts are mapped, others count as far. Without one, all parts of this
    /// machine are mapped.
    pub pod: Option<String>,
    /// The way to memory nodes of other pods and machines; without one what lies there cannot be reached.
    pub callers: Option<Arc<dyn Callers>>,
    /// How what lies there is read; what is relayed is read plainly.
    pub far_reads: FarReads,
    /// How parts are mapped.
    pub region: RegionOptions,
    /// Ask memory nodes of this machine over rings, where they have any.
    pub rings: bool,
    /// How far parts are reached.
    pub far: Far,
    /// How long a request waits for a memory node that is away.
    pub timeout: Nanos,
    /// See there.
    pub on_revoked: OnRevoked,
}

/// How parts are reached that a process does not map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Far {
    /// Over its own connections.
    #[default]
    Direct,
    /// By way of a memory node of its machine, over a ring and that node's connections: the process needs none. Where
    /// that is not to be had, over its own, if it has any.
    Relay,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            name: format!("process {}", Process::this().pid),
            pod: None,
            callers: None,
            far_reads: FarReads::default(),
            region: RegionOptions::default(),
            rings: true,
            far: Far::Direct,
            timeout: Nanos::from_secs(30),
            on_revoked: Arc::new(|error| eprintln!("cenote: {error}")),
        }
    }
}
