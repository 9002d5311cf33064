//! Pages of a batch of the process before, which are written again before the first write.

use super::spaces::SpaceFile;

/// A page that is in its place as its newest copy says.
pub(super) struct Former {
    pub file: SpaceFile,
    pub page: u32,
    pub bytes: Box<[u8]>,
}
