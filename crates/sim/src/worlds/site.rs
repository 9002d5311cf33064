//! Where an engine lives.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_fabric::Origin;

use super::far::Far;

/// Where an engine lives.
#[derive(Debug, Clone)]
pub struct Site {
    /// Its region.
    pub region: PathBuf,
    /// The host, as a memory pool would say; `None`: as the device says.
    pub origin: Option<Origin>,
    /// Which life it is, from 0.
    pub life: usize,
    /// How its recovery is expected to go: `clean`, `instant` or `log`. `None`: any way.
    pub mode: Option<&'static str>,
    /// It begins anew: there is nothing yet.
    pub first: bool,
    /// It leaves its region where it is, and works in memory of its own: what the region holds is the past for the next
    /// life.
    pub aside: bool,
    /// Remote memory, if it has any.
    pub far: Option<Arc<Far>>,
}
