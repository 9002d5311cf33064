//! By what the host of a part knows the member that asks: docs/fencing.md.

use cenote_base::Result;
use serde::{Deserialize, Serialize};

/// A member of a space, as a host of its memory has admitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// The member's number, the same at all hosts.
    pub member: u128,
    /// What the host has handed out with its admission; closed when it fences the member.
    pub epoch: u64,
}

/// This process as a member of a space at one host.
pub trait Admission: Send + Sync {
    /// Its pass.
    ///
    /// # Errors
    /// [`Error::Revoked`](cenote_base::Error::Revoked) if it was fenced; [`Error::Lost`](cenote_base::Error::Lost) if it
    /// is no member there any more, or not yet.
    fn pass(&self) -> Result<Pass>;

    /// The host does not know that one: it began anew. The pass after coming back there.
    ///
    /// # Errors
    /// As [`Admission::pass`].
    fn renew(&self, refused: Pass) -> Result<Pass>;
}
