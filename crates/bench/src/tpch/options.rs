//! What a run is told.

use std::path::PathBuf;
use std::time::Duration;

/// What is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server: `postgres://user@host:port/database`.
    pub url: String,
    /// Where the figures and the plot go.
    pub out: PathBuf,
    /// 1 is 1.5 million orders; fractions down to a thousandth.
    pub scale: f64,
    /// Decides the data.
    pub seed: u64,
    /// Whether tables are dropped, created and filled.
    pub is_loading: bool,
    /// Whether foreign keys get indexes then.
    pub has_indexes: bool,
    /// Which queries, 1 to 22.
    pub queries: Vec<u32>,
    /// Measured repetitions of each query, after one that is not.
    pub repetitions: u32,
    /// How long a query may take.
    pub timeout: Duration,
    /// The server's process, whose processor time is measured.
    pub server_pid: Option<u32>,
    /// Where answers are written.
    pub answers: Option<PathBuf>,
    /// Answers of another server, which these have to be.
    pub compare: Option<PathBuf>,
}
