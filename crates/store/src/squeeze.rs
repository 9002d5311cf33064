//! Squeezing: memory that objects of one size have comes to another size as whole extents.
//!
//! 1. The extents with the fewest items are emptied, some values in chunks go, and so does what lies in pools.
//! 2. The root counts a squeeze. Each process that sees it gives its empty extents back to the space.
//! 3. Meanwhile the allocation is tried again, for as long as two sweeps take.

use super::chains::{Placed, Table};
use super::core::{Core, now_micros};
use super::entry::State;
use super::heap::offset;
use super::item::Header;
use super::layout::{LINE, root, table};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, HashMap, HashSet, Nanos};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Extents that are emptied at once, and values in chunks that go with them.
const EXTENTS: usize = 4;
const CHUNKED: usize = 8;
/// Between two tries, and how many there are.
const TURN: Nanos = Nanos::from_millis(50);
const TURNS: u32 = 20;

/// An extent: its part and slot.
type Extent = (u8, u32);

fn extent(address: GlobalAddress) -> Extent {
    (address.part(), address.slot())
}

impl Core {
    /// An object of a size that nothing which could be evicted has, in a part or in any, with zeros in it.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room in spite of all.
    pub(super) fn alloc_by_squeezing(&self, len: u64, part: Option<u8>) -> Result<GlobalAddress> {
        let alloc = || part.map_or_else(|| self.heap.alloc(len), |part| self.heap.alloc_at(part, len));
        let mut tried = alloc();
        for turn in 0..TURNS {
            if !matches!(tried, Err(Error::Full(_))) {
                return tried;
            }
            if turn % 5 == 0 {
                self.empty_extents(part)?;
                self.count(root::SQUEEZES, 1)?;
            } else {
                rt::sleep(TURN);
            }
            self.heap.give_back_empty()?;
            tried = alloc();
        }
        tried
    }

    /// Gives back what is empty, if another process has squeezed since this one did so last.
    pub(super) fn give_way(&self) -> Result<()> {
        let now = self.heap.load(self.word(root::SQUEEZES)?)?;
        match self.squeezed.swap(now, Ordering::Relaxed) == now {
            true => Ok(()),
            false => self.heap.give_back_empty(),
        }
    }

    /// Makes room for a line of the table that grows, while entries are moved to it.
    ///
    /// # Errors
    /// [`Error::Full`] with this reason, if there is no room in spite of all.
    pub(super) fn squeeze_for_line(&self, to: &Table, former: &Table, why: String) -> Result<()> {
        let part = to.address.part();
        for turn in 0..TURNS {
            match self.heap.alloc_at(part, LINE) {
                Err(Error::Full(_)) => {}
                line => return self.heap.free(line?),
            }
            if turn % 5 == 0 {
                self.empty_extents_of(self.moved_entries(to, former)?, Some(part))?;
                self.count(root::SQUEEZES, 1)?;
            } else {
                rt::sleep(TURN);
            }
            self.heap.give_back_empty()?;
        }
        Err(Error::Full(why))
    }

    /// Step 1.
    fn empty_extents(&self, part: Option<u8>) -> Result<()> {
        self.empty_extents_of(self.all_entries()?, part)
    }

    fn empty_extents_of(&self, entries: Vec<Placed>, part: Option<u8>) -> Result<()> {
        let pinned = self.pinned()?;
        let victims = fewest(&entries, &pinned, part);
        let (mut chunked, mut evicted) = (0, 0);
        for placed in entries {
            let item = placed.entry.item();
            if pinned.contains(&item) {
                continue;
            }
            let is_chosen = victims.contains(&extent(item));
            if !is_chosen && chunked == CHUNKED {
                continue;
            }
            let header = match self.header_at(item) {
                Ok(Some(header)) => header,
                // What lies in a part that is away makes no room, and holds nothing up.
                Ok(None) => continue,
                Err(error) if self.heap.is_away(&error) => continue,
                Err(error) => return Err(error),
            };
            if !is_chosen && header.chunks == 0 {
                continue;
            }
            let is_out = match self.squeeze_out(placed, header) {
                Err(error) if self.heap.is_away(&error) => false,
                is_out => is_out?,
            };
            if is_out {
                chunked += usize::from(header.chunks > 0 && !is_chosen);
                evicted += 1;
            }
        }
        self.count_evicted(evicted)?;
        self.drain_pools()
    }

    /// Takes an item's memory, as the clock does: its value goes to a file where values are spilled. Whether it went.
    pub(super) fn squeeze_out(&self, placed: Placed, header: Header) -> Result<bool> {
        let item = placed.entry.item();
        if self.chunks_wait(item, &header)? {
            return Ok(false);
        }
        self.drop_replicas_of(item, &header)?;
        if !header.has_expired(now_micros) && self.spill(placed, &header)?.is_some() {
            return Ok(true);
        }
        let is_gone = self.unlink(placed)?;
        if is_gone {
            self.retire(item, self.header_after(placed, header), false)?;
        }
        Ok(is_gone)
    }

    /// The committed entries of the whole table.
    fn all_entries(&self) -> Result<Vec<Placed>> {
        let view = self.current()?;
        // Otherwise a word that was not used yet might be taken for one whose entry has gone.
        while !self.move_some(&view, 64)? {}
        self.entries_of(&view.table, 0..view.table.buckets())
    }

    /// The committed entries that can be taken out while others wait to be moved. Of a bucket that is not forwarded as
    /// a whole an entry may be frozen in the former table, and its item is not freed until it is forwarded. Replicas go
    /// with their item, and one may lie in the bucket that waits.
    pub(super) fn moved_entries(&self, to: &Table, former: &Table) -> Result<Vec<Placed>> {
        let moved = self.heap.load(offset(to.address, table::MOVED)?)?;
        let buckets = (0..to.buckets()).filter(|bucket| bucket % former.buckets() < moved);
        let mut free_to_go = Vec::new();
        for placed in self.entries_of(to, buckets)? {
            // What lies in other parts makes no room for a line, and may be away.
            if placed.entry.item().part() == to.address.part()
                && self
                    .header_at(placed.entry.item())?
                    .is_some_and(|header| header.replicas() == 0)
            {
                free_to_go.push(placed);
            }
        }
        Ok(free_to_go)
    }

    fn entries_of(&self, table: &Table, buckets: impl Iterator<Item = u64>) -> Result<Vec<Placed>> {
        let mut entries = Vec::new();
        for bucket in buckets {
            let of_bucket = table.entries(&self.heap, bucket)?;
            entries.extend(
                of_bucket
                    .into_iter()
                    .filter(|placed| placed.entry.state() == State::Committed),
            );
        }
        Ok(entries)
    }
}

/// The extents with the fewest items, in a part or in any, of which none is pinned.
fn fewest(entries: &[Placed], pinned: &HashSet<GlobalAddress>, part: Option<u8>) -> HashSet<Extent> {
    let mut items: HashMap<Extent, usize> = HashMap::default();
    let extents = entries.iter().map(|placed| extent(placed.entry.item()));
    for extent in extents.filter(|(of, _)| part.is_none_or(|part| *of == part)) {
        *items.entry(extent).or_default() += 1;
    }
    for item in pinned {
        items.remove(&extent(*item));
    }
    let mut by_items: Vec<_> = items.into_iter().map(|(extent, n)| (n, extent)).collect();
    by_items.sort_unstable();
    by_items.into_iter().take(EXTENTS).map(|(_, extent)| extent).collect()
}
