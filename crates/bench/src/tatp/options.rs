//! What a run is told.

use std::path::PathBuf;
use std::time::Duration;

pub use crate::tpcc::Load;

/// The transactions, by number.
pub const KINDS: [&str; 7] = [
    "get subscriber data",
    "get new destination",
    "get access data",
    "update subscriber data",
    "update location",
    "insert call forwarding",
    "delete call forwarding",
];
/// In a hundred, by number of the transaction.
pub const MIX: [u32; 7] = [35, 10, 35, 2, 14, 2, 2];

/// What is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server: `postgres://user@host:port/database`.
    pub url: String,
    /// Where the figures and the plot go; none: they are not written.
    pub out: Option<PathBuf>,
    /// Subscribers.
    pub subscribers: i32,
    /// Clients, each with a connection.
    pub clients: u32,
    /// Measured time of a round.
    pub measured: Duration,
    /// Before it.
    pub warmup: Duration,
    /// Rounds, the seed of each one more than that of the one before.
    pub rounds: u32,
    /// Which data.
    pub load: Load,
    /// Decides data and inputs.
    pub seed: u64,
    /// The server's process, whose processor time is measured.
    pub server_pid: Option<u32>,
}
