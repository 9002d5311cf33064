//! Emptying the store, entry by entry: replicas go too, and what is lost or damaged, of which no key is known.

use super::Store;
use super::chains::{Placed, is_leaving, placed};
use super::core::Core;
use super::entry::State;
use super::find::Found;
use super::item::Life;
use super::scan::next_cursor;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};

/// How often a bucket is gone over, as its entries change meanwhile.
const TURNS: u32 = 1000;

impl Store {
    /// Takes out all that is there when the call begins: how many entries that were, replicas too. What is put
    /// meanwhile may stay.
    ///
    /// # Errors
    /// Those of the space, and [`Error::Timeout`] while a part of a mirrored one is away: then some is there still.
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
            Ok(Some(header)) if header.control.life() != Life::Live => self.clear_damaged(placed),
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

    /// An item ends after its entry has gone: one whose entry is there, and that is not alive, is damaged. Looked at
    /// again while it is pinned, as its word may name another item by now.
    fn clear_damaged(&self, placed: Placed) -> Result<bool> {
        let item = placed.entry.item();
        let slot = self.member.pin_own(&self.heap, item)?;
        let is_damaged = || {
            let is_there = self.heap.load(placed.at)? == placed.entry.raw();
            let header = self.header_at(item)?;
            Ok::<_, Error>(is_there && header.is_some_and(|header| header.control.life() != Life::Live))
        };
        let forgotten = is_damaged().and_then(|is_damaged| Ok(is_damaged && self.forget(&[placed])?));
        // A pin that stays is freed with the member.
        let _ = self.member.unpin(&self.heap, slot);
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::{Control, Life};
    use super::super::{Options, PutOptions, Store};
    use cenote_space::{Space, SpaceOptions};

    /// An item whose control word is damaged is not alive, and no unlinking of what was read takes it out.
    #[test]
    fn what_is_damaged_goes_too() {
        let space = SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        };
        let space = Space::dram(&space).expect("memory");
        let store = Store::create(&space, Options::default()).expect("a store");
        for key in [&b"sound"[..], b"damaged"] {
            store.put(key, b"value", PutOptions::default()).expect("put");
        }
        let core = &store.core;
        let found = core
            .find(&core.key(b"damaged").expect("a key"))
            .expect("read")
            .expect("there");
        let (item, control) = (found.place.entry.item(), found.header.control);
        let dead = Control::new(control.sequence(), Life::Dead);
        assert!(core.heap.swap(item, control.0, dead.0).expect("swapped"));
        assert_eq!(store.clear().expect("cleared"), 2);
        assert_eq!(store.clear().expect("cleared"), 0);
    }
}
