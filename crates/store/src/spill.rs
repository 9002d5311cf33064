//! Spilling: what the clock takes from memory goes to files where that is asked for, and comes back.
//!
//! ```text
//!   entry ─► item with the value          evict: the value to a tier, which reserves a place;
//!     │                                          one swap of the entry: item ─► stub
//!     └───► stub: key, version, expiry,   get:   the record in the file, if key, generation and checksums are its own
//!           and the place in a file       again: one swap of the entry: stub ─► item
//! ```
//!
//! A *stub* is an item as any other, whose value is a [`Location`]. So what is removed, replaced or expired is dead
//! whatever the files say: no entry leads there. And the table is the index: nothing else knows where values lie.
//!
//! A stub whose file is gone is a miss, and is taken out by the process that had written the file. Stubs are evicted
//! last, unless they have come to take a quarter of the memory.

use super::chains::Placed;
use super::core::{Core, Key};
use super::entry::Entry;
use super::fill::Filling;
use super::find::Found;
use super::heap::offset;
use super::item::{Control, HEADER, Header, Life, body, class_size, footprint};
use super::layout::root;
use super::link::{Linked, OnEntry};
use super::read::{Attempt, Room, Value};
use super::tier::{LOCATION, Location, Read, Tier};
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use std::sync::Arc;

/// How many times larger a value must be than its stub.
const WORTH: u64 = 2;
/// The part of the memory that stubs have before they are evicted as other items.
const STUBS_SHARE: u64 = 4;
/// Objects for stubs that are kept free where there was no room for one.
const STUBS_READY: u64 = 128;
/// Bytes of a stub with a key of a usual length.
const STUB: u64 = 192;

/// What a stub takes of the space.
fn stub_footprint(key_len: usize) -> u64 {
    footprint(key_len, LOCATION as u64)
}

impl Core {
    /// Where a tenant's values are spilled to.
    fn tier_of(&self, tenant: u32) -> Option<Arc<Tier>> {
        let tiers = self.tiers.read();
        let of = |wanted: Option<u32>| tiers.iter().find(|tier| tier.takes() == Some(wanted)).map(Arc::clone);
        of(Some(tenant)).or_else(|| of(None))
    }

    /// Whether this process spills some values.
    pub(super) fn spills(&self) -> bool {
        self.tiers.read().iter().any(|tier| tier.takes().is_some())
    }

    /// Whether stubs take more than their share.
    pub(super) fn has_many_stubs(&self) -> Result<bool> {
        let stubs = self.heap.load(self.word(root::SPILLED)?)? as i64;
        let bound = match self.heap.load(self.word(root::BOUND)?)? {
            0 => self.heap.space().parts().map(|part| part.capacity()).sum(),
            bound => bound,
        };
        Ok(bound > 0 && stubs.max(0) as u64 * STUB > bound / STUBS_SHARE)
    }

    /// Puts a stub in the place of an item that is about to be evicted: what the stub takes of the space. `None` if the
    /// value is not spilled, for whatever reason.
    pub(super) fn spill(&self, placed: Placed, header: &Header) -> Result<Option<u64>> {
        let stub = stub_footprint(header.key_len as usize);
        let is_worth = footprint(header.key_len as usize, header.value_len) >= WORTH * stub;
        if header.is_spilled() || !header.is_sane() || !is_worth {
            return Ok(None);
        }
        let Some(tier) = self.tier_of(header.tenant) else {
            return Ok(None);
        };
        let found = Found {
            place: placed,
            header: *header,
        };
        let Some(slot) = or_none(self.member.pin_own(&self.heap, placed.entry.item()))? else {
            return Ok(None);
        };
        let spilled = self.spill_pinned(&tier, &found);
        // A pin that stays is freed with the member.
        let _ = self.member.unpin(&self.heap, slot);
        let is_spilled = match spilled {
            // A chunk of it is: there is nothing to keep.
            Err(Error::Lost(_)) => false,
            spilled => spilled?,
        };
        if is_spilled {
            self.retire(placed.entry.item(), *header, true)?;
            return Ok(Some(stub));
        }
        self.counters.unspilled.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    /// While the item is pinned: so its bytes stay, and its word names no other.
    fn spill_pinned(&self, tier: &Tier, found: &Found) -> Result<bool> {
        let (Placed { at, entry }, header) = (found.place, &found.header);
        if self.heap.load(at)? != entry.raw() || !self.is_still(entry.item(), header)? {
            return Ok(false);
        }
        let mut bytes = vec![0; header.key_len as usize];
        self.heap.read(offset(entry.item(), HEADER as u64)?, &mut bytes)?;
        let key = self.key(&bytes)?;
        // A replica goes: it is read only where its first is lost.
        if key.hash != header.hash {
            return Ok(false);
        }
        let Some(mut stub) = self.begin_stub(&key, header)? else {
            return Ok(false);
        };
        let read = |into: &mut [u8]| Ok(matches!(self.read_found(found, &key, into)?, Attempt::Done(true)));
        let taken = tier.take(key.bytes, header.value_len, header.control.sequence(), read);
        let is_ready = taken.and_then(|location| match location {
            Some(location) => self.fill_stub(&mut stub, &location, header.version).map(|()| true),
            None => Ok(false),
        });
        match is_ready {
            Ok(true) => self.link_stub(found, stub),
            is_ready => self.abandon(stub).and(is_ready),
        }
    }

    /// An object that no eviction is made for; `None` if there is none.
    fn begin_stub(&self, key: &Key<'_>, of: &Header) -> Result<Option<Filling>> {
        let len = body(key.bytes.len()) + LOCATION as u64;
        let object = match self.take_pooled(len, None)? {
            Some(object) => Some(object),
            None => or_none(self.heap.alloc(len))?,
        };
        let Some(object) = object else {
            self.lacks_stubs.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        let stub = Header {
            control: Control::new(self.sequence()?, Life::Filling),
            value_len: LOCATION as u64,
            chunks: 0,
            flags: 0,
            value_crc: 0,
            crc: 0,
            ..*of
        };
        or_none(self.note_or_free(object, stub, key))
    }

    fn fill_stub(&self, stub: &mut Filling, location: &Location, version: u64) -> Result<()> {
        self.fill(stub, &location.encode())?;
        stub.header.set_spilled();
        self.finish_as(stub, version)
    }

    fn link_stub(&self, found: &Found, stub: Filling) -> Result<bool> {
        let entry = Entry::committed(stub.item, stub.header.hash);
        match self.heap.swap(found.place.at, found.place.entry.raw(), entry.raw()) {
            Ok(false) => return self.abandon(stub).map(|()| false),
            Err(error) if !matches!(self.was_linked(&stub), Ok(true)) => return Err(error),
            _ => {}
        }
        self.has_linked(&stub)?;
        let bytes = stub_footprint(stub.header.key_len as usize);
        self.account(stub.header.tenant, 1, bytes as i64)?;
        self.count(root::SPILLED, 1)?;
        self.counters.spilled.fetch_add(1, Ordering::Relaxed);
        let len = found.header.value_len;
        self.counters.spilled_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(true)
    }

    /// Reads a value by its stub, and brings it back to memory if it was read before. What is not there is a miss.
    pub(super) fn read_spilled(
        &self,
        found: &Found,
        key: &Key<'_>,
        room: &mut (impl Room + ?Sized),
    ) -> Result<Attempt<Option<Value>>> {
        let location = match self.location_at(found, key)? {
            Attempt::Changed => return Ok(Attempt::Changed),
            Attempt::Done(None) => return Ok(Attempt::Done(None)),
            Attempt::Done(Some(location)) => location,
        };
        let into = room.of(location.len)?;
        if !self.read_file(found, &location, key, into)? {
            return Ok(Attempt::Done(None));
        }
        let counters = &self.counters;
        for counter in [&counters.hits, &counters.spill_hits] {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        counters.bytes_out.fetch_add(location.len, Ordering::Relaxed);
        if found.header.control.hits() > 0 {
            // For want of room it stays where it is.
            let _ = self.bring(found, key, into);
        }
        self.touch(found);
        Ok(Attempt::Done(Some(value_of(&found.header, &location))))
    }

    /// Where a stub says that the value lies; `None` if the stub is damaged.
    fn location_at(&self, found: &Found, key: &Key<'_>) -> Result<Attempt<Option<Location>>> {
        let mut bytes = [0; LOCATION];
        if found.header.value_len != LOCATION as u64 {
            return Ok(Attempt::Done(None));
        }
        Ok(match self.read_found(found, key, &mut bytes)? {
            Attempt::Changed => Attempt::Changed,
            Attempt::Done(is_whole) => Attempt::Done(Location::decode(&bytes).filter(|_| is_whole)),
        })
    }

    /// Reads from whichever tier has it; a stub that leads nowhere is taken out.
    fn read_file(&self, found: &Found, location: &Location, key: &Key<'_>, into: &mut [u8]) -> Result<bool> {
        let tiers = self.tiers.read().clone();
        for tier in tiers {
            match tier.read(location, key.bytes, into) {
                Read::Whole => return Ok(true),
                Read::Gone => {
                    self.drop_stub(found)?;
                    return Ok(false);
                }
                Read::Elsewhere | Read::NotNow => {}
            }
        }
        Ok(false)
    }

    fn drop_stub(&self, found: &Found) -> Result<()> {
        if self.unlink_found(found)? {
            self.retire(found.place.entry.item(), found.header, true)?;
        }
        Ok(())
    }

    /// What there is to know of a value, in memory or not; `None` if this process cannot read it.
    pub(super) fn value_at(&self, found: &Found, key: &Key<'_>) -> Result<Attempt<Option<Value>>> {
        if !found.header.is_spilled() {
            return Ok(Attempt::Done(Some(Value::of(&found.header))));
        }
        let location = match self.location_at(found, key)? {
            Attempt::Changed => return Ok(Attempt::Changed),
            Attempt::Done(None) => return Ok(Attempt::Done(None)),
            Attempt::Done(Some(location)) => location,
        };
        let tiers = self.tiers.read().clone();
        for tier in tiers {
            if tier.has(&location, key.bytes)? {
                return Ok(Attempt::Done(Some(value_of(&found.header, &location))));
            }
        }
        Ok(Attempt::Done(None))
    }

    /// Whether a value that was found can be read by this process, or something else has come in its place.
    pub(super) fn is_there(&self, found: &Found, key: &Key<'_>) -> Result<bool> {
        Ok(!matches!(self.value_at(found, key)?, Attempt::Done(None)))
    }

    /// Brings a value back to memory: whether it is there, by this process or another.
    pub(super) fn bring_back(&self, found: &Found, key: &Key<'_>) -> Result<bool> {
        let Attempt::Done(location) = self.location_at(found, key)? else {
            return Ok(true);
        };
        let Some(location) = location else { return Ok(false) };
        let mut bytes = vec![0; location.len as usize];
        Ok(self.read_file(found, &location, key, &mut bytes)? && self.bring(found, key, &bytes).map(|()| true)?)
    }

    /// Puts a value's bytes, as the same version, in the place of its stub, if that is there still.
    fn bring(&self, found: &Found, key: &Key<'_>, value: &[u8]) -> Result<()> {
        let stub = &found.header;
        let mut filling = self.begin(key, value.len() as u64, stub.tenant, stub.expires)?;
        filling.header.control = filling.header.control.with_hits(1);
        let linked = self
            .fill(&mut filling, value)
            .and_then(|()| self.finish_as(&mut filling, stub.version))
            .and_then(|()| {
                let on_entry = OnEntry::Sequence(stub.control.sequence());
                self.link(key, filling.item, on_entry, |_| Ok(()))
            });
        self.after_bring(filling, linked)
    }

    fn after_bring(&self, filling: Filling, linked: Result<Linked>) -> Result<()> {
        match linked {
            Ok(Linked::In(replaced)) => {
                self.has_linked(&filling)?;
                let header = &filling.header;
                let bytes = footprint(header.key_len as usize, header.value_len);
                self.account(header.tenant, 1, bytes as i64)?;
                replaced.map_or(Ok(()), |stub| self.retire(stub.place.entry.item(), stub.header, true))
            }
            Ok(Linked::Before) => self.abandon(filling),
            Ok(Linked::Unknown(replaced, error)) => match self.was_linked(&filling) {
                Ok(true) => self.after_bring(filling, Ok(Linked::In(replaced))),
                _ => Err(error),
            },
            Err(error) => self.abandon(filling).and(Err(error)),
        }
    }

    /// Takes a stub out whose segment this process has dropped: whether it was one.
    pub(super) fn has_lost_file(&self, found: &Found) -> Result<bool> {
        let tiers = self.tiers.read().clone();
        if !found.header.is_spilled() || tiers.is_empty() || found.header.value_len != LOCATION as u64 {
            return Ok(false);
        }
        let mut bytes = [0; LOCATION];
        let at = offset(found.place.entry.item(), found.header.body())?;
        or_none(self.heap.read(at, &mut bytes))?;
        let dropped = |location: Location| tiers.iter().any(|tier| tier.has_dropped(&location));
        let is_lost = Location::decode(&bytes).is_some_and(dropped);
        if is_lost {
            self.drop_stub(found)?;
        }
        Ok(is_lost)
    }

    /// Keeps objects for stubs free, if there was no room for one since the last time.
    pub(super) fn make_stubs(&self) -> Result<()> {
        if !self.lacks_stubs.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let len = class_size(STUB);
        let Some(first) = or_none(self.alloc_by_squeezing(len, None))? else {
            return Ok(());
        };
        self.give_pooled(first)?;
        for _ in 1..STUBS_READY {
            match or_none(self.heap.alloc(len))? {
                Some(object) => self.give_pooled(object)?,
                None => break,
            }
        }
        Ok(())
    }
}

fn value_of(stub: &Header, location: &Location) -> Value {
    Value {
        len: location.len,
        generation: location.generation,
        ..Value::of(stub)
    }
}

/// What there is no room for, or has gone, is not done.
fn or_none<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Full(_) | Error::Invalid(_) | Error::OutOfBounds(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
