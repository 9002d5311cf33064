//! Which objects of the space are the store's: each byte of it is free, or something here says whose it is.

use super::Store;
use super::chains::{Table, next};
use super::core::Core;
use super::entry::State;
use super::heap::offset;
use super::item::{Header, addresses};
use super::layout::{WORD, free_pool, member, root};
use super::members::records;
use cenote_base::Result;
use cenote_space::GlobalAddress;

/// An object that the store answers for, and what it is.
pub type Owned = (GlobalAddress, &'static str);

impl Store {
    /// All objects that the store answers for, for an audit of the space: what is told twice is used twice, and what
    /// the space has besides is lost to both. For when no process changes anything.
    ///
    /// # Errors
    /// Those of the space.
    pub fn objects(&self) -> Result<Vec<Owned>> {
        let (core, mut found) = (&*self.core, vec![(self.core.at, "the root")]);
        core.tables(&mut found)?;
        core.of_members(&mut found)?;
        core.pools(&mut found)?;
        Ok(found)
    }
}

impl Core {
    /// The table, those before it, the one that is built, and what is linked in them.
    fn tables(&self, found: &mut Vec<Owned>) -> Result<()> {
        let building = self.heap.load(self.word(root::BUILDING)?)?;
        let mut at = Some(GlobalAddress::from_raw(self.heap.load(self.word(root::TABLE)?)?));
        if building != 0 && Some(building) != at.map(GlobalAddress::raw) {
            found.push((GlobalAddress::from_raw(building), "a table that is built"));
        }
        while let Some(address) = at {
            let table = Table::read(&self.heap, address)?;
            found.extend(table.objects().map(|object| (object, "a table")));
            for bucket in 0..table.buckets() {
                self.of_bucket(&table, bucket, found)?;
            }
            at = table.previous;
        }
        Ok(())
    }

    fn of_bucket(&self, table: &Table, bucket: u64, found: &mut Vec<Owned>) -> Result<()> {
        table.each_line(&self.heap, bucket, |line| {
            let more = next(line).filter(|at| !table.has_line(*at));
            found.extend(more.map(|at| (at, "a line of a bucket")));
            Ok(true)
        })?;
        for placed in table.entries(&self.heap, bucket)? {
            if matches!(placed.entry.state(), State::Committed | State::Frozen) {
                self.of_item(placed.entry.item(), "a linked item", found)?;
            }
        }
        Ok(())
    }

    /// An item with its chunks, those of them that it has got.
    fn of_item(&self, item: GlobalAddress, what: &'static str, found: &mut Vec<Owned>) -> Result<()> {
        found.push((item, what));
        let Some(header) = self.header_at(item)?.filter(|header| header.is_sane()) else {
            return Ok(());
        };
        let mut list = vec![0; 8 * header.chunks as usize];
        if !list.is_empty() {
            self.heap.read(offset(item, header.body())?, &mut list)?;
        }
        let chunks = addresses(&list).filter(|chunk| !chunk.is_null());
        found.extend(chunks.map(|chunk| (chunk, "a chunk")));
        Ok(())
    }

    /// Records, and what they answer for and no table names.
    fn of_members(&self, found: &mut Vec<Owned>) -> Result<()> {
        for (record, _) in records(&self.heap, self.at)? {
            found.push((record, "a member's record"));
            for n in 0..member::INTENTS_MAX {
                let intent = self.heap.load(offset(record, member::INTENTS + WORD * n)?)?;
                let item = GlobalAddress::from_raw(intent);
                if intent == 0 || found.iter().any(|(object, _)| *object == item) {
                    continue;
                }
                // A note that stayed when its item went ends nothing else that lies there.
                let sequence = self.heap.load(offset(record, member::SEQUENCES + WORD * n)?)?;
                let is_its = |header: Header| header.control.sequence() == sequence;
                if self.header_at(item)?.is_some_and(is_its) {
                    self.of_item(item, "an item that a member answers for", found)?;
                }
            }
        }
        Ok(())
    }

    fn pools(&self, found: &mut Vec<Owned>) -> Result<()> {
        for n in 0..root::POOLS_MAX * free_pool::PLACES_MAX {
            let (pool, place) = (n / free_pool::PLACES_MAX, n % free_pool::PLACES_MAX);
            let at = root::POOLS + pool * free_pool::BYTES + free_pool::PLACES + WORD * place;
            let object = self.heap.load(self.word(at)?)?;
            if object != 0 {
                found.push((GlobalAddress::from_raw(object), "free, in a pool"));
            }
        }
        Ok(())
    }
}
