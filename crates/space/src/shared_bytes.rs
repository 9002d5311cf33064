//! Bytes of a part that several hosts of a pod reach on one device.
//!
//! ```text
//!   host a: keeper, host, members ── words, lines ──┐                       ┌── host b: members
//!              ▲                                    ├──► device: extents ◄──┤   bytes of whole lines alone: load, store,
//!              └──────────── calls: words, allocation, locks ───────────────┘   written back, invalidated
//! ```
//!
//! A device need not keep the caches of its hosts coherent, not for a single line. So the words of such a part, its
//! descriptors, maps, locks and whatever else is changed by swaps, are its own host's: other hosts ask it. They load
//! and store bytes alone, of lines in which no word lies, and the same lines as no other host at that moment: which
//! host may do so is a matter of the words.
//!
//! Invariants:
//! 1. what a host has stored it writes back before it changes the word that lets others read it, and each host
//!    invalidates what it reads after the word that has let it;
//! 2. what the part's host does for users that map nothing it writes back, and invalidates, too ([`Part::share`]);
//! 3. extents of such a part do not leave it: no word tells another host in the middle of a copy;
//! 4. a process that maps it is ended by its host's agent when it is fenced, and the agent writes back and drops what
//!    the host's caches hold of the part, before others may use what it had.

use super::act::{Act, Outcome};
use super::address::OFFSET_BITS;
use super::layout::Layout;
use super::part::Part;
use super::slot::Use;
use super::{GlobalAddress, Space};
use crate::extent::EXTENT;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use cenote_fabric::{Region, RegionOptions, coherence};
use std::path::Path;

/// A part's memory as another host of the pod maps it.
pub struct SharedBytes {
    region: Region,
    number: u8,
    space: u128,
    layout: Layout,
}

impl SharedBytes {
    /// Maps the part at a path that another host keeps.
    ///
    /// # Errors
    /// [`Error::Mismatch`] or [`Error::Corrupt`] if no part is there.
    pub fn join(path: &Path, options: RegionOptions) -> Result<Self> {
        let region = Region::join(path, options)?;
        let layout = Layout::read(region.identity())?;
        let number = u8::try_from(region.id()).map_err(|_| Error::corrupt("a part's number"))?;
        let space = region.identity().database;
        Ok(Self {
            region,
            number,
            space,
            layout,
        })
    }

    /// Its part's number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Writes back and drops all that this host's caches hold of it: for the host's agent, after a process that mapped
    /// it has ended.
    pub fn drop_lines(&self) {
        let extents = self.layout.extents_at;
        let len = (self.region.len() - extents) as usize;
        coherence::invalidate(&self.region, extents, len);
    }

    /// Where these bytes lie, if one extent has them all.
    fn place(&self, address: GlobalAddress, len: u64) -> Result<u64> {
        let inside = address.place() & (EXTENT - 1);
        let is_there = address.slot() < self.layout.slots && inside.checked_add(len).is_some_and(|end| end <= EXTENT);
        match is_there {
            true => Ok(self.layout.extents_at + address.place()),
            false => Err(Error::OutOfBounds(format!(
                "{len} bytes at {address} of part {}",
                self.number
            ))),
        }
    }
}

impl Space {
    /// Lets bytes of a part be used where they lie, which is [attached](Self::attach_far) as one that this process asks
    /// for its words: [`Space::read_bytes`], [`Space::write_bytes`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it is of another space; [`Error::Invalid`] if the part is mapped already.
    pub fn attach_bytes(&self, bytes: SharedBytes) -> Result<()> {
        let number = bytes.number;
        if bytes.space != self.id() {
            return Err(Error::Mismatch(format!("part {number} is of another space")));
        }
        let is_mapped = self.is_near(GlobalAddress::new(number, 0, 0, 1)?);
        match !is_mapped && self.set_bytes(number, bytes) {
            true => Ok(()),
            false => Err(Error::Invalid(format!("part {number} is mapped already"))),
        }
    }

    /// Reads bytes of lines that hold no words, where they lie if this process can. Whether they are the object's still
    /// is for words to tell, looked at afterwards.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn read_bytes(&self, address: GlobalAddress, into: &mut [u8]) -> Result<()> {
        let Some(bytes) = self.bytes_of(address.part()) else {
            return self.read(address, into);
        };
        let at = bytes.place(address, into.len() as u64)?;
        bytes.region.span(at, into.len() as u64).copy_out(0, into);
        Ok(())
    }

    /// Writes such bytes, of an object that is this process's alone.
    ///
    /// # Errors
    /// As [`Space::write`].
    pub fn write_bytes(&self, address: GlobalAddress, from: &[u8]) -> Result<()> {
        let Some(bytes) = self.bytes_of(address.part()) else {
            return self.write(address, from);
        };
        let at = bytes.place(address, from.len() as u64)?;
        bytes.region.span(at, from.len() as u64).copy_in(0, from);
        Ok(())
    }

    /// Does something with the lines of bytes that are used where they lie: whether they are.
    pub(super) fn with_shared_lines(
        &self,
        address: GlobalAddress,
        len: usize,
        f: impl FnOnce(&Region, u64),
    ) -> Result<bool> {
        let Some(bytes) = self.bytes_of(address.part()) else {
            return Ok(false);
        };
        f(&bytes.region, bytes.place(address, len as u64)?);
        Ok(true)
    }
}

impl Part {
    /// Other hosts use its bytes from here on: what is done for users that map nothing is written back, and read from
    /// memory, and its extents stay. To be called before it is hosted.
    ///
    /// # Errors
    /// [`Error::Busy`] if an extent of it lies elsewhere, or is on its way; [`Error::Corrupt`].
    pub fn share(&self) -> Result<()> {
        for slot in 0..self.slots() {
            if matches!(self.slot(slot)?.used, Use::Away | Use::Frozen) {
                let part = self.name();
                return Err(Error::Busy(format!(
                    "slot {slot} of {part} lies elsewhere: it is to come home first"
                )));
            }
        }
        self.is_shared().store(true, Ordering::Release);
        Ok(())
    }

    /// Whether an extent may be moved.
    pub(super) fn check_unshared(&self, extent: GlobalAddress) -> Result<()> {
        match extent.part() == self.number() && self.is_shared().load(Ordering::Acquire) {
            true => Err(Error::Busy(format!("other hosts use {extent} where it lies"))),
            false => Ok(()),
        }
    }

    /// Before an access of a user that maps nothing: what is read comes from memory.
    pub(super) fn before_shared(&self, address: GlobalAddress, act: &Act<'_>) {
        let Act::Read(into) = act else { return };
        self.with_lines_of(address, into.len(), |at, len| {
            coherence::invalidate(self.region(), at, len);
        });
    }

    /// And after it: what was written is in memory.
    pub(super) fn after_shared(&self, address: GlobalAddress, act: &Act<'_>) {
        let Act::Write(from) = act else { return };
        self.with_lines_of(address, from.len(), |at, len| {
            coherence::write_back(self.region(), at, len);
            coherence::fence(self.region());
        });
    }

    /// An object that was made for a user that maps nothing: its zeros are in memory, and no line of it stays here.
    pub(super) fn made_shared(&self, address: GlobalAddress) -> Result<()> {
        if !self.is_shared().load(Ordering::Acquire) {
            return Ok(());
        }
        let Outcome::Done(size, _) = self.act(address, &mut Act::Size)? else {
            return Ok(());
        };
        self.with_lines_of(address, size as usize, |at, len| {
            coherence::invalidate(self.region(), at, len);
        });
        Ok(())
    }

    fn with_lines_of(&self, address: GlobalAddress, len: usize, f: impl FnOnce(u64, usize)) {
        // What other parts have lent to this one no other host reaches.
        if address.part() != self.number() || !self.is_shared().load(Ordering::Acquire) {
            return;
        }
        // Of what is not there, or moves, the access itself says so.
        if let Ok(Outcome::Done(at, _)) = self.act(address, &mut Act::Find(len as u64)) {
            f(at, len);
        }
    }
}

const _: () = assert!(EXTENT == 1 << OFFSET_BITS);
