//! Reading a value: found, copied, and still the same afterwards.

use super::chains::Placed;
use super::core::{Core, Key, now_micros};
use super::fill::{STEP, pieces};
use super::find::Found;
use super::heap::offset;
use super::item::{HITS_MAX, Header, VALUE_MAX};
use super::members::Slot;
use super::replicate::{REPLICAS_MAX, replica_keys};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Result, crc};
use cenote_space::GlobalAddress;

/// How often a value is read again because it was replaced meanwhile.
const TURNS: u32 = 100;

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// Its bytes.
    pub len: u64,
    /// Which version it is: 1, or one more than that of the value which it has replaced.
    pub version: u64,
    /// No other value of the store ever has it, of this key or another.
    pub generation: u64,
    /// When it is there no more, in microseconds since 1970; 0: never.
    pub expires: u64,
}

impl Value {
    pub(super) fn of(header: &Header) -> Self {
        Self {
            len: header.value_len,
            version: header.version,
            generation: header.control.sequence(),
            expires: header.expires,
        }
    }
}

/// Where a value is read to.
pub(super) trait Room {
    /// Memory for so many bytes, which is asked for again when the value was replaced.
    fn of(&mut self, len: u64) -> Result<&mut [u8]>;
}

impl Room for [u8] {
    fn of(&mut self, len: u64) -> Result<&mut [u8]> {
        let given = self.len();
        let too_short = || Error::OutOfBounds(format!("the value has {len} bytes, the memory for it {given}"));
        usize::try_from(len)
            .ok()
            .and_then(|len| self.get_mut(..len))
            .ok_or_else(too_short)
    }
}

impl Room for Vec<u8> {
    fn of(&mut self, len: u64) -> Result<&mut [u8]> {
        // A damaged header may say anything.
        self.resize(len.min(VALUE_MAX) as usize, 0);
        Ok(self)
    }
}

/// How an attempt to read ended.
pub(super) enum Attempt<T> {
    Done(T),
    Changed,
}

impl Core {
    /// Reads a value. What is lost, damaged or expired is not there, and what is lost may have replicas.
    pub(super) fn read_to(&self, key: &[u8], room: &mut (impl Room + ?Sized)) -> Result<Option<Value>> {
        let key = self.key(key)?;
        for key in replica_keys(&key, REPLICAS_MAX.into()) {
            match self.read_one(&key, room) {
                Err(Error::Lost(_)) => {}
                read => return read,
            }
        }
        self.lost()
    }

    /// Of one of a value's items.
    fn read_one(&self, key: &Key<'_>, room: &mut (impl Room + ?Sized)) -> Result<Option<Value>> {
        for _ in 0..TURNS {
            let found = self.find(key)?.filter(|found| !found.header.has_expired(now_micros));
            let Some(found) = found else { return self.missed() };
            if found.header.is_spilled() {
                match self.read_spilled(&found, key, room)? {
                    Attempt::Done(None) => return self.missed(),
                    Attempt::Done(value) => return Ok(value),
                    Attempt::Changed => continue,
                }
            }
            let into = room.of(found.header.value_len)?;
            match self.read_found(&found, key, into)? {
                Attempt::Done(true) => return Ok(Some(self.hit(&found))),
                Attempt::Done(false) => return self.missed(),
                Attempt::Changed => {}
            }
        }
        Err(Error::Busy("the value is replaced faster than it is read".into()))
    }

    /// The item that a get of the key would read, if it has not expired: where the first is lost, a replica. That all
    /// are lost makes it a miss.
    pub(super) fn find_fresh(&self, key: &Key<'_>) -> Result<Option<Found>> {
        for key in replica_keys(key, REPLICAS_MAX.into()) {
            match self.find(&key) {
                Ok(found) => return Ok(found.filter(|found| !found.header.has_expired(now_micros))),
                Err(Error::Lost(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.lost()
    }

    pub(super) fn missed<T>(&self) -> Result<Option<T>> {
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    fn lost<T>(&self) -> Result<Option<T>> {
        // A chunk may be, whose item was read.
        if self.heap.space().is_mirrored() {
            return Err(Error::Timeout(
                "the value is away, until its mirror takes its place".into(),
            ));
        }
        self.counters.lost.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    fn hit(&self, found: &Found) -> Value {
        self.touch(found);
        self.counted_hit(&found.header)
    }

    pub(super) fn counted_hit(&self, header: &Header) -> Value {
        self.counters.hits.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_out.fetch_add(header.value_len, Ordering::Relaxed);
        Value::of(header)
    }

    /// Counts a hit in the item, up to three. That it is not counted, as another was, does no harm.
    pub(super) fn touch(&self, found: &Found) {
        let control = found.header.control;
        if control.hits() < HITS_MAX {
            let _ = self.heap.swap(
                found.place.entry.item(),
                control.0,
                control.with_hits(control.hits() + 1).0,
            );
        }
    }

    /// Copies a value: whether it is whole.
    pub(super) fn read_found(&self, found: &Found, key: &Key<'_>, into: &mut [u8]) -> Result<Attempt<bool>> {
        let (item, header) = (found.place.entry.item(), &found.header);
        let copied = self.list_of(item, header, key).and_then(|list| match list {
            Some(list) => self.copy(item, header, &list, into),
            None => Ok(false),
        });
        // Looked at last, whatever came of the rest: of an item that was freed meanwhile anything may have been read.
        if !self.is_still(item, header)? {
            return Ok(Attempt::Changed);
        }
        match copied {
            Ok(true) => Ok(Attempt::Done(true)),
            Ok(false) | Err(Error::Invalid(_) | Error::OutOfBounds(_)) => {
                self.counters.damaged.fetch_add(1, Ordering::Relaxed);
                Ok(Attempt::Done(false))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the item is the same still.
    pub(super) fn is_still(&self, item: GlobalAddress, header: &Header) -> Result<bool> {
        match self
            .heap
            .control(item)
            .map_err(|error| self.heap.failure_at(item, error))
        {
            Ok(control) => Ok(control.is_same_live(header.control)),
            Err(Error::Invalid(_) | Error::OutOfBounds(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The addresses of an item's chunks; `None` if its checksum says that it is damaged.
    pub(super) fn list_of(&self, item: GlobalAddress, header: &Header, key: &Key<'_>) -> Result<Option<Vec<u8>>> {
        if !header.is_sane() {
            return Ok(None);
        }
        let mut list = vec![0; 8 * header.chunks as usize];
        if !list.is_empty() {
            let read = self.heap.read(offset(item, header.body())?, &mut list);
            read.map_err(|error| self.heap.failure_at(item, error))?;
        }
        Ok((header.checksum(key.bytes, &list) == header.crc).then_some(list))
    }

    /// Copies a value's bytes: whether they are what their checksum says, if they have one.
    fn copy(&self, item: GlobalAddress, header: &Header, list: &[u8], into: &mut [u8]) -> Result<bool> {
        let mut rest = &mut into[..];
        let mut checksum = crc::crc32c(&[]);
        for (piece, len) in pieces(item, header, list, 0, header.value_len) {
            let piece = piece?;
            // A chunk may lie in another part than its item.
            let failed = |error| self.heap.failure_at(piece, error);
            let (first, behind) = rest.split_at_mut(len as usize);
            rest = behind;
            if !header.has_checksum() {
                self.heap.read_value(piece, first, !list.is_empty()).map_err(failed)?;
                continue;
            }
            for (n, step) in first.chunks_mut(STEP).enumerate() {
                let at = offset(piece, (n * STEP) as u64)?;
                self.heap.read_value(at, step, !list.is_empty()).map_err(failed)?;
                checksum = crc::append(checksum, step);
            }
        }
        Ok(!header.has_checksum() || checksum == header.value_crc)
    }

    /// Whether a get would give out what was found, or something else has come in its place.
    pub(super) fn is_intact(&self, found: &Found, key: &Key<'_>) -> Result<bool> {
        if found.header.is_spilled() {
            return self.is_there(found, key);
        }
        let (item, header) = (found.place.entry.item(), &found.header);
        let is_whole = self.list_of(item, header, key).and_then(|list| match list {
            None => Ok(false),
            Some(_) if !header.has_checksum() => Ok(true),
            Some(list) => {
                let pieces = pieces(item, header, &list, 0, header.value_len).map(|(at, len)| Ok((at?, len)));
                self.is_whole(header, &pieces.collect::<Result<Vec<_>>>()?)
            }
        });
        match is_whole {
            Ok(false) | Err(Error::Invalid(_) | Error::OutOfBounds(_)) => Ok(!self.is_still(item, header)?),
            is_whole => is_whole,
        }
    }

    /// Pins a key's item: no process frees its bytes until the pin is given back.
    pub(super) fn pin_key(&self, key: &Key<'_>) -> Result<Option<(Found, Slot)>> {
        for _ in 0..TURNS {
            let Some(found) = self.find_fresh(key)? else {
                return Ok(None);
            };
            if found.header.is_spilled() {
                match self.bring_back(&found, key)? {
                    true => continue,
                    false => return Ok(None),
                }
            }
            let slot = self.member.pin(&self.heap, found.place.entry.item())?;
            let is_there = || {
                let is_linked = self.is_linked_there(found.place)?;
                Ok::<_, Error>(is_linked && self.is_still(found.place.entry.item(), &found.header)?)
            };
            if planted(Fault::BorrowGeneration) || is_there()? {
                self.touch(&found);
                return Ok(Some((found, slot)));
            }
            self.member.unpin(&self.heap, slot)?;
        }
        Err(Error::Busy("the value is replaced faster than it is pinned".into()))
    }

    /// Whether an entry stands where it was found: after the pin was noted.
    fn is_linked_there(&self, place: Placed) -> Result<bool> {
        Ok(self.heap.load(place.at)? == place.entry.raw())
    }
}
