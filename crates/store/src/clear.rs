//! Emptying the store, entry by entry: replicas go too, and what is lost or damaged, of which no key is known.

use super::Store;
use super::chains::{Placed, is_leaving, placed};
use super::core::Core;
use super::entry::State;
use super::find::Found;
use super::scan::next_cursor;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};

/// How often a bucket is gone over, as its entries change meanwhile.
const TURNS: u32 = 1000;

impl Store {
    /// Takes out all that is there when the call begins: how many entries that were, replicas too. What is put meanwhile
    /// may stay.
    ///
    /// # Errors
    /// Those of the space: then some is there still.
    pub fn clear(&self) -> Result<u64> {
        let core = &self.core;
        core.current()?;
        // Its items go in any order: one that is killed leaves replicas without their first.
        core.note_forgotten()?;
        let (mut cursor, mut cleared) = (0, 0);
        loop {
            cursor = core.clear_bucket(cursor, &mut cleared)?;
            if cursor == 0 {
                return Ok(cleared);
            }
        }
    }
}

impl Core {
    /// Empties the cursor's bucket: the next cursor, as [scans](Store::scan) have it.
    fn clear_bucket(&self, cursor: u64, cleared: &mut u64) -> Result<u64> {
        for _ in 0..TURNS {
            let view = self.settled_view(cursor)?;
            let (mut entries, mut is_left) = (Vec::new(), false);
            view.table.each_line(&self.heap, view.table.bucket_of(cursor), |line| {
                is_left |= is_leaving(line);
                for placed in placed(line) {
                    entries.push(placed?);
                }
                Ok(!is_left)
            })?;
            if is_left {
                self.refresh_from(&view)?;
                continue;
            }
            entries.retain(|placed| placed.entry.state() == State::Committed);
            let mut is_empty = true;
            for placed in entries {
                let is_out = self.clear_entry(placed)?;
                *cleared += u64::from(is_out);
                is_empty &= is_out;
            }
            if is_empty {
                return Ok(next_cursor(cursor, view.table.buckets() - 1));
            }
        }
        Err(Error::Busy(
            "the store's keys change faster than they are taken out".into(),
        ))
    }

    /// Whether the entry was there still, and is not now.
    fn clear_entry(&self, placed: Placed) -> Result<bool> {
        match self.header_at(placed.entry.item()) {
            Ok(Some(header)) => {
                let is_out = self.unlink_found(&Found { place: placed, header })?;
                if is_out {
                    self.retire(placed.entry.item(), header, false)?;
                    self.counters.removed.fetch_add(1, Ordering::Relaxed);
                }
                Ok(is_out)
            }
            Ok(None) | Err(Error::Lost(_)) => self.forget(&[placed]),
            Err(error) => Err(error),
        }
    }
}
