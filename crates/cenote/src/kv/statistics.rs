//! What the server counts.

/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 10_000;

/// What is counted since the start.
#[derive(Debug, Default)]
pub struct Statistics {
    /// When the server began, in milliseconds since 1970.
    pub began: u64,
    /// Commands, those that were refused included.
    pub commands: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections there are.
    pub connections: u64,
    /// Keys that the sweep has removed.
    pub swept: u64,
}
