//! A remote copy of a page, and what the server knows of the page.

use cenote_base::Lsn;

use super::layout::RemoteSlot;
use crate::lower::Trace;

/// Where a page's remote copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    pub slot: RemoteSlot,
    /// The page's LSN in it; zero: not there yet, or it is not known what is there.
    pub lsn: Lsn,
    /// The page's checksum in it.
    pub sum: u32,
}

/// What is known of a page.
#[derive(Debug, Default, Clone, Copy)]
pub struct Entry {
    pub copy: Option<Copy>,
    /// It is in a frame.
    pub registered: bool,
    /// When it left its frame, by the table's clock; zero: not since it has its slot.
    pub idle_since: u64,
    /// It is in its frame only to be saved: it leaves it as old as it was.
    pub keeps_age: bool,
    /// As of when it left its frame, or was found at the start.
    pub trace: Trace,
}

impl Entry {
    /// The page leaves its frame now. `asked`: it was asked for there.
    pub fn leave(&mut self, asked: bool, now: u64) {
        self.registered = false;
        if asked || !self.keeps_age || self.idle_since == 0 {
            self.idle_since = now;
        }
        self.keeps_age = false;
    }

    /// Whether the page without its copy is read as any other: storage has it, or is nodes, which make it out of redo.
    pub fn is_saved(&self, has_nodes: bool) -> bool {
        has_nodes || !self.trace.is_dirty()
    }

    /// Found at the start, and newer than storage perhaps; which redo it has is not known before the log is replayed.
    pub fn is_unproven(&self) -> bool {
        self.trace.is_dirty() && self.trace.head.is_none()
    }
}
