//! How a client of the pool behaves.

use crate::host::Process;
use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::Callers;
use cenote_space::FarReads;
use std::sync::Arc;

/// Called once when this process is fenced: what the space was used for has to end. Each further access is
/// [`Error::Revoked`] anyway, or the process is ended, if it maps what it would access.
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
    /// How what lies there is read.
    pub far_reads: FarReads,
    /// How parts are mapped.
    pub region: RegionOptions,
    /// Ask memory nodes of this machine over rings, where they have any.
    pub rings: bool,
    /// How long a request waits for a memory node that is away.
    pub timeout: Nanos,
    /// See there.
    pub on_revoked: OnRevoked,
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
            timeout: Nanos::from_secs(30),
            on_revoked: Arc::new(|_| ()),
        }
    }
}
