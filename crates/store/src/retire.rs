//! The end of an item: it was unlinked by one swap, and is its unlinker's. It is freed when no member pins it.
//!
//! A pin is noted *before* the pinning member looks whether the item is still linked; the pins are read *after* the item
//! was unlinked. So either the one sees that the item has gone, or the other sees the pin.

use super::core::Core;
use super::heap::offset;
use super::item::{Control, Header, Life, addresses};
use super::layout::root;
use super::members::{pins, records};
use cenote_base::rt::HashSet;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// How often an item's death is tried: readers count hits in the same word meanwhile, three each.
const TURNS: u32 = 1000;

/// What became of an item that was to be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freed {
    Now,
    /// Another process has freed it, or does.
    ByAnother,
    /// Nothing of it: an object of it lies in a part that is away, and may come back.
    Waits,
}

impl Core {
    /// Frees an item that this process has unlinked, now or when it is not pinned any more.
    pub(super) fn retire(&self, item: GlobalAddress, header: Header, is_pooled: bool) -> Result<()> {
        if header.is_sane() && u64::from(header.tenant) < root::TENANTS_MAX {
            let bytes = super::item::footprint(header.key_len as usize, header.value_len);
            self.account(header.tenant, -1, -(bytes as i64))?;
        } else {
            // It is damaged: what it was counted as is not known.
            self.heap.add(self.word(root::ITEMS)?, u64::MAX)?;
        }
        if header.is_spilled() {
            self.count(root::SPILLED, u64::MAX)?;
        }
        if header.is_replica() {
            self.count(root::REPLICAS, u64::MAX)?;
        }
        match self.is_pinned(item)? || self.free_item(item, &header, is_pooled)? == Freed::Waits {
            true => self.keep_retired(item, header),
            false => Ok(()),
        }
    }

    /// Answers for an item until no member pins it, and its parts are there. Where few intents are left it is this
    /// process's alone, and lost with it: puts need them.
    pub(super) fn keep_retired(&self, item: GlobalAddress, header: Header) -> Result<()> {
        let slot = match self.member.intend_beside(&self.heap, item, header.control.sequence()) {
            Err(Error::Full(_)) => None,
            noted => Some(noted?),
        };
        self.retired.lock().push((item, header, slot));
        Ok(())
    }

    /// Whether a member pins an item.
    pub(super) fn is_pinned(&self, item: GlobalAddress) -> Result<bool> {
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

    /// Frees what was pinned when it was unlinked and is not any more, or waited for a part that is there again.
    pub(super) fn free_retired(&self) -> Result<()> {
        // First these, which were all unlinked by now, and then the pins: of one that comes in between a pin might be
        // missed that was noted before it was unlinked.
        let unlinked = core::mem::take(&mut *self.retired.lock());
        if unlinked.is_empty() {
            return Ok(());
        }
        let pinned = match self.pinned() {
            Ok(pinned) => pinned,
            Err(error) => {
                self.retired.lock().extend(unlinked);
                return Err(error);
            }
        };
        let (stay, go): (Vec<_>, Vec<_>) = unlinked.into_iter().partition(|(item, ..)| pinned.contains(item));
        self.retired.lock().extend(stay);
        let mut failed = Ok(());
        for (item, header, slot) in go {
            let freed = self.free_item(item, &header, false);
            if matches!(freed, Ok(Freed::Waits)) {
                self.retired.lock().push((item, header, slot));
                continue;
            }
            let forgotten = slot.map_or(Ok(()), |slot| self.member.forget_intent(&self.heap, slot));
            failed = failed.and(freed.map(drop)).and(forgotten);
        }
        failed
    }

    /// Ends an item that was unlinked, or never linked, and frees its objects, if no other process has done so.
    pub(super) fn free_item(&self, item: GlobalAddress, header: &Header, is_pooled: bool) -> Result<Freed> {
        if self.chunks_wait(item, header)? {
            return Ok(Freed::Waits);
        }
        let life = match self.kill(item, header.control.sequence()) {
            Err(Error::Timeout(_)) => return Ok(Freed::Waits),
            killed => killed?,
        };
        let Some(life) = life else {
            return Ok(Freed::ByAnother);
        };
        let chunks = self.chunks_of(item, header, life);
        self.free_objects(chunks.into_iter().flatten().chain([item]), is_pooled)?;
        Ok(Freed::Now)
    }

    /// The chunks of an item that is this process's to free, by the state in which it was.
    pub(super) fn chunks_of(&self, item: GlobalAddress, header: &Header, life: Life) -> Result<Vec<GlobalAddress>> {
        match life {
            Life::Filling => self.noted_chunks(item, header),
            _ => self.chunk_list(item, header),
        }
    }

    /// The chunks that an item had got when its filling ended.
    fn noted_chunks(&self, item: GlobalAddress, header: &Header) -> Result<Vec<GlobalAddress>> {
        if !header.is_sane() {
            return Ok(Vec::new());
        }
        let mut list = vec![0; 8 * header.chunks as usize];
        self.heap.read(offset(item, header.body())?, &mut list[..])?;
        Ok(addresses(&list).filter(|chunk| !chunk.is_null()).collect())
    }

    /// Makes an item dead: a process that still reads it notices, and of all that try to free it, one does. In which
    /// state it was; `None` if it is another's to free, or gone.
    pub(super) fn kill(&self, item: GlobalAddress, sequence: u64) -> Result<Option<Life>> {
        for _ in 0..TURNS {
            let control = self.heap.control(item);
            let control = match control.map_err(|error| self.heap.failure_at(item, error)) {
                Ok(control) => control,
                Err(Error::Lost(_) | Error::Invalid(_) | Error::OutOfBounds(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            if control.sequence() != sequence || !matches!(control.life(), Life::Filling | Life::Live) {
                return Ok(None);
            }
            if self.heap.swap(item, control.0, Control::new(sequence, Life::Dead).0)? {
                return Ok(Some(control.life()));
            }
        }
        Err(Error::Busy("an item that was unlinked is read all the time".into()))
    }

    /// Frees what a dead item had. What is lost, or is no object, does not keep the rest: the first other error is
    /// told.
    pub(super) fn free_objects(&self, objects: impl Iterator<Item = GlobalAddress>, is_pooled: bool) -> Result<()> {
        let free = |object| match is_pooled {
            true => self.give_pooled(object),
            false => self.heap.free(object),
        };
        let mut failed = Ok(());
        for object in objects {
            match free(object) {
                Ok(()) | Err(Error::Lost(_) | Error::Invalid(_)) => {}
                error => failed = failed.and(error),
            }
        }
        failed
    }

    /// The chunks of an item that is this process's to free; none if the item does not say what its checksum says:
    /// then they stay, rather than another's objects being freed.
    pub(super) fn chunk_list(&self, item: GlobalAddress, header: &Header) -> Result<Vec<GlobalAddress>> {
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
