//! What a leadership of the managers has written.

use cenote_pool::store::{Change, RecordSet, Stored};

/// The grant table as the last leadership that wrote has left it.
#[derive(Debug, Default)]
pub(super) struct Leaderships {
    /// The last leader: its address.
    pub leader: String,
    /// The last that has begun to write.
    pub(super) writer: i64,
    /// What it has written; `None` while that is not known.
    pub(super) grant_table: Option<Stored>,
}

impl Leaderships {
    /// A write that fails may be done all the same, or come late. What there was before, if that is known.
    pub(super) fn writes(&mut self, leadership: i64) -> Option<Stored> {
        match leadership >= self.writer {
            true => {
                self.writer = leadership;
                self.grant_table.take()
            }
            false => None,
        }
    }

    /// What a leadership has read is what there is, if none has written since.
    pub(super) fn has_read(&mut self, leadership: i64, read: Option<&Stored>) {
        if leadership >= self.writer {
            self.writer = leadership;
            self.grant_table = Some(read.cloned().unwrap_or(Stored::Records(RecordSet::new())));
        }
    }

    /// Managers that were held up after their write may have been followed by another that wrote, too.
    pub(super) fn has_written(&mut self, leadership: i64, before: Option<Stored>, change: &Change) {
        if let (true, Some(Stored::Records(mut book))) = (leadership == self.writer, before) {
            for (name, record) in change {
                match record {
                    Some(record) => _ = book.insert(name.clone(), record.clone()),
                    None => _ = book.remove(name),
                }
            }
            self.grant_table = Some(Stored::Records(book));
        }
    }
}
