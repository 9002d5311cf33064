//! What a leadership of the managers has written.

/// The grant table as the last leadership that wrote has left it.
#[derive(Debug, Default)]
pub(super) struct Leaderships {
    /// The last leader: its address.
    pub leader: String,
    /// The last that has begun to write.
    pub(super) writer: i64,
    /// What it has written; `None` while that is not known.
    pub(super) grant_table: Option<Vec<u8>>,
}

impl Leaderships {
    /// A write that fails may be done all the same, or come late.
    pub(super) fn writes(&mut self, leadership: i64) {
        if leadership >= self.writer {
            (self.writer, self.grant_table) = (leadership, None);
        }
    }

    /// Managers that were held up after their write may have been followed by another that wrote, too.
    pub(super) fn has_written(&mut self, leadership: i64, grant_table: &[u8]) {
        if leadership == self.writer {
            self.grant_table = Some(grant_table.to_vec());
        }
    }
}
