//! Where a hash's fields lie: packed beside each other, or in a table of their own.

use super::heap::Heap;
use super::packed::Packed;
use super::table::Table;
use cenote_base::Error;
use cenote_space::GlobalAddress;

/// Bytes of a packed hash that are asked for before its first word is looked at.
const EXPECTED: usize = 512;

/// Where a hash's fields are.
pub(super) enum Fields {
    Table(Table),
    /// There, with this first word.
    Packed(GlobalAddress, u64),
}

impl Fields {
    /// Those that the word of a hash leads to.
    pub(super) fn read(heap: &Heap, hash: GlobalAddress) -> Result<Self, Error> {
        // A packed hash is read as a whole: its other lines come with the first.
        heap.expect(hash, EXPECTED);
        let word = heap.load(hash)?;
        match Packed::is_marked(word) {
            true => Ok(Self::Packed(hash, word)),
            false => Table::read(heap, hash).map(Self::Table),
        }
    }
}
