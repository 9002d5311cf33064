//! What a run is told.

use std::path::PathBuf;
use std::time::Duration;

/// The transactions, by number.
pub const KINDS: [&str; 5] = ["new order", "payment", "order status", "delivery", "stock level"];

/// How many rows there are of what does not grow with the warehouses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Items, and stock a warehouse.
    pub items: i32,
    /// Customers a district, and its first orders.
    pub customers: i32,
}

impl Sizes {
    /// Clause 1.2.1.
    pub const STANDARD: Sizes = Sizes {
        items: 100_000,
        customers: 3_000,
    };

    /// Of the first orders of a district, those that are delivered (clause 4.3.3.1).
    pub fn delivered(self) -> i32 {
        self.customers / 10 * 7
    }
}

/// Which data a run finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Tables are dropped, created and filled.
    Always,
    /// They are created and filled if there are none.
    IfMissing,
    /// What is there is used.
    Never,
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server: `postgres://user@host:port/database`.
    pub url: String,
    /// Where the figures and the plot go; none: they are not written.
    pub out: Option<PathBuf>,
    /// Warehouses.
    pub warehouses: i32,
    /// Rows of the rest.
    pub sizes: Sizes,
    /// Terminals, each with a connection.
    pub terminals: u32,
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
    /// Whether terminals type and think (clause 5.2.5).
    pub has_waits: bool,
    /// `read committed`, `repeatable read` or `serializable`.
    pub isolation: String,
    /// The server's process, whose processor time is measured.
    pub server_pid: Option<u32>,
}
