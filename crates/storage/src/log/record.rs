//! A page record that outlives the group in which it was read.

use cenote_base::{Lsn, RecordAddr};

use crate::redo::PageRecordRef;

/// A page record copied out of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRecord {
    address: RecordAddr,
    lsn: Lsn,
    bytes: Box<[u8]>,
}

impl OwnedRecord {
    /// A copy that outlives the group.
    pub fn copy(record: &PageRecordRef<'_>) -> OwnedRecord {
        OwnedRecord {
            address: record.address,
            lsn: record.lsn,
            bytes: record.bytes().into(),
        }
    }

    /// The record, to be applied.
    pub fn get(&self) -> PageRecordRef<'_> {
        PageRecordRef::from_copy(&self.bytes, self.address, self.lsn)
            .expect("the bytes were a record when they were copied")
    }
}
