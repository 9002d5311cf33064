//! The device that hosts share, incoherent but for a window.

use cenote_space::EXTENT;
use std::path::PathBuf;

use crate::DeviceSpec;
use crate::worlds::plan::Grants;

const NAME: &str = "shared";
/// Bytes of its directory.
pub(super) const DIRECTORY: u64 = EXTENT;

pub(super) fn bytes(grants: Grants) -> u64 {
    DIRECTORY + grants.extents * EXTENT
}

pub(super) fn path() -> PathBuf {
    format!("/dev/sim/{NAME}").into()
}

/// As the topology has it, where there are hosts that share one.
pub(in crate::worlds) fn spec(grants: Grants) -> Option<DeviceSpec> {
    let device = DeviceSpec::new(NAME, bytes(grants), "cxl-switch").expect("a profile of this program");
    (grants.hosts > 0).then(|| DeviceSpec {
        window: grants.window.min(bytes(grants)),
        ..device
    })
}
