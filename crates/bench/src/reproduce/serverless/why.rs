//! Why our numbers differ from the paper's where they do: shown beside a comparison that is off by more than a fifth.

/// Figure 11, at PolarDB's cost and at Cenote's.
pub const LOSS: [&str; 2] = ["to be told", "to be told"];

/// Figure 10, as much remote memory as PolarDB has local.
pub const EQUAL_REMOTE: &str = "to be told";

/// Figure 10, as much local memory as PolarDB.
pub const EQUAL_LOCAL: &str = "to be told";

/// Figure 10, all local.
pub const ALL_LOCAL: &str = "to be told";

/// Figure 9, replay.
pub const REPLAY: &str = "to be told";

/// Figure 9, a cold start on storage nodes.
pub const COLD: &str = "to be told";

/// Figure 9, a switch.
pub const SWITCH: &str = "to be told";

/// Figure 14.
pub const OPTIMISTIC: &str = "to be told";

/// Figure 15, over remote memory and over storage.
pub const PREFETCH: [&str; 2] = ["to be told", "to be told"];
