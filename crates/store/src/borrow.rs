//! Borrows: values that are used where they lie, and items that are filled where they will lie.

use super::Store;
use super::core::Core;
use super::fill::{Filling, pieces};
use super::heap::Visibility;
use super::item::Header;
use super::link::OnEntry;
use super::members::Slot;
use super::put::{Put, PutOptions};
use super::read::Value;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Result, crc};
use cenote_space::GlobalAddress;
use std::sync::Arc;

/// An item that stays where it is until this is dropped: it is neither evicted nor freed, though it may be removed or
/// replaced meanwhile. If this process is taken for dead, the pin ends: [`Borrow::end`] says so.
pub struct Pin {
    core: Arc<Core>,
    item: GlobalAddress,
    header: Header,
    slot: Option<Slot>,
}

/// A value in place.
pub struct Borrow {
    pin: Pin,
    pieces: Vec<(GlobalAddress, u64)>,
}

/// Room for a value, to be filled in place and published.
pub struct Allocation {
    core: Arc<Core>,
    filling: Option<Filling>,
    options: PutOptions,
}

impl Pin {
    pub(super) fn of(core: &Arc<Core>, item: GlobalAddress, header: Header, slot: Slot) -> Self {
        Self {
            core: Arc::clone(core),
            item,
            header,
            slot: Some(slot),
        }
    }

    /// Whether it has held until now.
    ///
    /// # Errors
    /// Those of the space.
    pub fn holds(&self) -> Result<bool> {
        let Some(slot) = self.slot else { return Ok(false) };
        let is_noted = self.core.member.has_pin(&self.core.heap, slot, self.item)?;
        Ok(is_noted && (planted(Fault::BorrowGeneration) || self.core.is_still(self.item, &self.header)?))
    }

    /// The value's length and version.
    pub fn value(&self) -> Value {
        Value::of(&self.header)
    }

    /// The generation of the item: no other item ever has it.
    pub fn generation(&self) -> u64 {
        self.header.control.sequence()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // A pin that stays is freed with the member.
            let _ = self.core.member.unpin(&self.core.heap, slot);
        }
    }
}

impl Borrow {
    /// The value's pieces in their order: where each lies, and its bytes.
    pub fn pieces(&self) -> &[(GlobalAddress, u64)] {
        &self.pieces
    }

    /// The pin that it rests on.
    pub fn pin(&self) -> &Pin {
        &self.pin
    }

    /// Reads some bytes of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if it ends before.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let len = self.pin.header.value_len;
        if at.checked_add(into.len() as u64).is_none_or(|end| end > len) {
            return Err(Error::OutOfBounds(format!(
                "{} bytes at {at} of a value of {len}",
                into.len()
            )));
        }
        let (mut skip, mut rest) = (at, into);
        for (piece, len) in &self.pieces {
            if skip >= *len {
                skip -= len;
                continue;
            }
            let n = (len - skip).min(rest.len() as u64) as usize;
            let (first, behind) = core::mem::take(&mut rest).split_at_mut(n);
            let at = super::heap::offset(*piece, skip)?;
            self.pin.core.heap.read_own(at, first, self.pin.header.chunks > 0)?;
            (rest, skip) = (behind, 0);
        }
        Ok(())
    }

    /// Ends it: whether the bytes were the value's to the end. If not, what was read may be anything.
    ///
    /// # Errors
    /// Those of the space: then it is not known.
    pub fn end(self) -> Result<bool> {
        self.pin.holds()
    }
}

impl Allocation {
    /// The value's length.
    pub fn len(&self) -> u64 {
        self.filling.as_ref().map_or(0, |filling| filling.header.value_len)
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its bytes lie, to be filled in place.
    ///
    /// # Errors
    /// [`Error::Corrupt`] does not come of what others write: it is this process's own.
    pub fn pieces(&self) -> Result<Vec<(GlobalAddress, u64)>> {
        let filling = self.filling.as_ref().ok_or_else(done)?;
        filling.pieces().map(|(at, len)| Ok((at?, len))).collect()
    }

    /// Writes some bytes of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if it ends before.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.core.fill_at(self.filling.as_ref().ok_or_else(done)?, at, bytes)
    }

    /// Publishes it under its key.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn publish(mut self) -> Result<Put> {
        let mut filling = self.filling.take().ok_or_else(done)?;
        match self.core.checksum_in_place(&mut filling) {
            Ok(()) => self.core.publish(filling, &self.options),
            Err(error) => self.core.abandon(filling).and(Err(error)),
        }
    }
}

fn done() -> Error {
    Error::Invalid("the allocation was published".into())
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(filling) = self.filling.take() {
            // What is left is found when the member ends.
            let _ = self.core.abandon(filling);
        }
    }
}

impl Core {
    /// The checksum of a value that was filled in place, where it has one.
    fn checksum_in_place(&self, filling: &mut Filling) -> Result<()> {
        if !self.wants_checksum(filling.header.value_len) {
            return Ok(());
        }
        let (mut checksum, mut step) = (crc::crc32c(&[]), vec![0; super::fill::STEP]);
        for (piece, len) in filling.pieces() {
            let piece = piece?;
            for at in (0..len).step_by(step.len()) {
                let n = (len - at).min(step.len() as u64) as usize;
                let at = super::heap::offset(piece, at)?;
                self.heap.read_own(at, &mut step[..n], filling.is_chunked())?;
                checksum = crc::append(checksum, &step[..n]);
            }
        }
        filling.header.set_value_checksum(Some(checksum));
        Ok(())
    }

    /// Whether a pinned value is what its checksum says.
    pub(super) fn is_whole(&self, header: &Header, pieces: &[(GlobalAddress, u64)]) -> Result<bool> {
        let (mut checksum, mut step) = (crc::crc32c(&[]), vec![0; super::fill::STEP]);
        for (piece, len) in pieces {
            for at in (0..*len).step_by(step.len()) {
                let n = (len - at).min(step.len() as u64) as usize;
                let at = super::heap::offset(*piece, at)?;
                let read = self.heap.read_value(at, &mut step[..n], header.chunks > 0);
                read.map_err(|error| self.heap.failure_at(at, error))?;
                checksum = crc::append(checksum, &step[..n]);
            }
        }
        Ok(!header.has_checksum() || checksum == header.value_crc)
    }
}

impl Store {
    /// Lends a key's value where it lies. In the mode *flush* it is invalidated, and its checksum looked at, now.
    ///
    /// # Errors
    /// As [`Store::get_into`]; [`Error::Full`] if this process pins as many as it can.
    pub fn borrow(&self, key: &[u8]) -> Result<Option<Borrow>> {
        let core = &self.core;
        let key = core.key(key)?;
        let Some((found, slot)) = core.pin_key(&key)? else {
            return Ok(None);
        };
        let (item, header) = (found.place.entry.item(), found.header);
        let pin = Pin::of(core, item, header, slot);
        let Some(list) = core.list_of(item, &header, &key)? else {
            return Ok(None);
        };
        let pieces: Result<Vec<_>> = pieces(item, &header, &list, 0, header.value_len)
            .map(|(at, len)| Ok((at?, len)))
            .collect();
        let pieces = pieces?;
        if core.heap.visibility == Visibility::Flush && !core.is_whole(&header, &pieces)? {
            return Ok(None);
        }
        core.counters.borrows.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Borrow { pin, pieces }))
    }

    /// Room for a key's value of so many bytes, to be filled in place; others see it when it is published.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn alloc(&self, key: &[u8], len: u64, options: PutOptions) -> Result<Allocation> {
        let key = self.core.key(key)?;
        let filling = self.core.begin(&key, len, options.tenant, options.expires())?;
        Ok(Allocation {
            core: Arc::clone(&self.core),
            filling: Some(filling),
            options,
        })
    }
}

impl PutOptions {
    pub(super) fn on_entry(&self) -> OnEntry {
        if self.replaces { OnEntry::Replace } else { OnEntry::Keep }
    }
}
