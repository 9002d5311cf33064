//! What the thread that fills remote memory remembers of its last turn.

use cenote_base::Lsn;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Where the log ended.
    pub settled: Lsn,
    /// The frame that is looked at next.
    pub next: u32,
}
