//! The end of an item: it was unlinked by one swap, and is its unlinker's. It is freed when no member pins it.
//!
//! A pin is noted *before* the pinning member looks whether the item is still linked; the pins are read *after* the item
//! was unlinked. So either the one sees that the item has gone, or the other sees the pin.

use super::core::Core;
use super::heap::offset;
use super::item::{Control, Header, Life, addresses};
use super::members::{pins, records};
use cenote_base::Result;
use cenote_base::rt::HashSet;
use cenote_base::rt::atomic::Ordering;
use cenote_space::GlobalAddress;

impl Core {
    /// Frees an item that this process has unlinked, now or when it is not pinned any more.
    pub(super) fn retire(&self, item: GlobalAddress, header: Header, is_pooled: bool) -> Result<()> {
        let bytes = super::item::footprint(header.key_len as usize, header.value_len);
        self.account(header.tenant, -1, -(bytes as i64))?;
        if !self.is_pinned(item)? {
            return self.free_item(item, &header, is_pooled);
        }
        let slot = self.member.intend(&self.heap, item)?;
        self.retired.lock().push((item, header, slot));
        Ok(())
    }

    /// Whether a member pins an item.
    fn is_pinned(&self, item: GlobalAddress) -> Result<bool> {
        let mut is_pinned = false;
        for (record, _) in records(&self.heap, self.at)? {
            pins(&self.heap, record, |pinned| is_pinned |= pinned == item)?;
        }
        Ok(is_pinned)
    }

    /// All items that members pin.
    pub(super) fn pinned(&self) -> Result<HashSet<GlobalAddress>> {
        let mut pinned = HashSet::default();
        for (record, _) in records(&self.heap, self.at)? {
            pins(&self.heap, record, |item| _ = pinned.insert(item))?;
        }
        Ok(pinned)
    }

    /// Frees what was pinned when it was unlinked and is not any more.
    pub(super) fn free_retired(&self) -> Result<()> {
        if self.retired.lock().is_empty() {
            return Ok(());
        }
        let pinned = self.pinned()?;
        let (stay, go): (Vec<_>, Vec<_>) = self
            .retired
            .lock()
            .drain(..)
            .partition(|(item, ..)| pinned.contains(item));
        self.retired.lock().extend(stay);
        for (item, header, slot) in go {
            self.member.forget_intent(&self.heap, slot)?;
            self.free_item(item, &header, false)?;
        }
        Ok(())
    }

    /// Frees an item's objects: first it is dead, so that whoever still reads it notices.
    pub(super) fn free_item(&self, item: GlobalAddress, header: &Header, is_pooled: bool) -> Result<()> {
        let chunks = self.chunk_list(item, header)?;
        self.heap
            .store(item, Control::new(header.control.sequence(), Life::Dead).0)?;
        chunks.into_iter().chain([item]).try_for_each(|object| match is_pooled {
            true => self.give_pooled(object),
            false => self.heap.free(object),
        })
    }

    /// The chunks of an item that is this process's to free; none if the item does not say what its checksum says:
    /// then they stay, rather than another's objects being freed.
    fn chunk_list(&self, item: GlobalAddress, header: &Header) -> Result<Vec<GlobalAddress>> {
        if header.chunks == 0 || !header.is_sane() {
            return Ok(Vec::new());
        }
        let mut behind = vec![0; (header.object_len() - super::item::HEADER as u64) as usize];
        self.heap.read(offset(item, super::item::HEADER as u64)?, &mut behind)?;
        let (key, list) = behind.split_at((header.body() as usize) - super::item::HEADER);
        let key = &key[..header.key_len as usize];
        let is_whole = header.checksum(key, list) == header.crc;
        if !is_whole {
            self.counters.damaged.fetch_add(1, Ordering::Relaxed);
            return Ok(Vec::new());
        }
        Ok(addresses(list).collect())
    }
}
