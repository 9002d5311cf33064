//! Access to objects: the hot path.
//!
//! 1. the address names part and slot: the slot's state word must be of the address's generation;
//! 2. a slab: the class gives the object's number, by a multiplication; its live word must be of the same generation, and its bit set. A run: its
//!    first slot tells how many bytes it has;
//! 3. the bytes asked for must end within the object;
//! 4. they are copied, announced as all region memory is ([`cenote_fabric::observe`]).
//!
//! Three lines of memory are read: the slot's descriptor, the live word, the object; none depends on another's arrival but for the check. If a check fails, what is
//! wrong is found out at leisure ([`Space::why`]).
//!
//! The checks are of the moment: who frees an object while another uses it is told so at his next access. In an object that was freed nothing is
//! promised: its place may be another's of the same class by then, until the extent is handed out anew.

use super::address::OFFSET_BITS;
use super::class::{Class, divide, live_bit};
use super::layout::run_slots;
use super::part::Part;
use super::slot::{Slot, Use, code_of};
use super::{GlobalAddress, Space};
use crate::book::EXTENT;
use cenote_base::rt;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::seam::{Plain, Points, Seam};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::{HostAtomicU64, LINE, Quiet, Span};

/// Accesses that memory is asked for ahead.
const AHEAD: usize = 16;
/// Bytes of each of them; the processor goes on by itself.
const PREFETCH: u64 = 512;

/// One of many reads.
#[derive(Debug)]
pub struct Read<'a> {
    /// From where.
    pub address: GlobalAddress,
    /// Into what; its length is what is read.
    pub into: &'a mut [u8],
}

/// One of many writes.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// To where.
    pub address: GlobalAddress,
    /// What.
    pub from: &'a [u8],
}

/// An object that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Object {
    /// Its first byte, counted from the first extent on.
    place: u64,
    /// Bytes that it can hold.
    size: u64,
    /// Its number in its slab, and the slab's class; a run has none.
    slab: Option<(Class, u32)>,
}

impl Part {
    /// Where in the region the `len` bytes at `address` lie, if they are an object's in a slab. (If not it may be a run's.)
    #[inline(always)]
    fn locate<S: Seam>(&self, seam: S, address: GlobalAddress, len: u64) -> Option<u64> {
        let state = self.state_of(address.slot())?.load_by(seam, Ordering::Acquire);
        let (index, end) = divide(code_of(state), address.offset());
        let wanted = u64::from(address.offset()) + len;
        // Objects end in their extent: only what a broken word makes of the rest behind them does not.
        let is_inside = wanted <= end && wanted <= EXTENT;
        let is_there = address.is_of(state) && is_inside && self.is_live(seam, address, index);
        is_there.then(|| self.at(address.place()))
    }

    #[inline(always)]
    fn is_live<S: Seam>(&self, seam: S, address: GlobalAddress, index: u32) -> bool {
        let (word, bit) = live_bit(index);
        let live = self
            .live_of(address.slot(), word)
            .map(|live| live.load_by(seam, Ordering::Acquire));
        live.is_some_and(|live| address.is_of(live) && live >> bit & 1 != 0)
    }

    /// Asks the processor for what an access will need: the live word, and the first bytes.
    #[inline(always)]
    fn prefetch(&self, address: GlobalAddress, len: u64) {
        let at = self.at(address.place());
        (0..len.min(PREFETCH))
            .step_by(LINE)
            .for_each(|line| self.region().prefetch(at + line));
        if let Some(state) = self.state_of(address.slot()) {
            let (index, _) = divide(code_of(state.load_by(Plain, Ordering::Relaxed)), address.offset());
            self.prefetch_live(address.slot(), live_bit(index).0);
        }
    }

    fn locate_in_run(&self, address: GlobalAddress, len: u64) -> Option<u64> {
        let object = self.object(address).ok()??;
        let is_inside = len <= object.size && address.place() - object.place <= object.size - len;
        is_inside.then(|| self.at(address.place()))
    }

    /// The object at an address; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Invalid`] if there is no such slot.
    fn object(&self, address: GlobalAddress) -> Result<Option<Object>> {
        let slot = self.slot(address.slot())?;
        if slot.generation != address.generation() {
            return Ok(None);
        }
        match slot.used {
            Use::Slab(class, _) => Ok(self.object_in_slab(address, class)),
            Use::Head(_) => self.object_of_run(address.slot(), address),
            Use::Tail(_) => match self.head_of(address.slot(), slot) {
                Some(head) => self.object_of_run(head, address),
                None => Ok(None),
            },
            Use::Free | Use::Retired => Ok(None),
        }
    }

    fn object_in_slab(&self, address: GlobalAddress, class: Class) -> Option<Object> {
        let index = class.index(address.offset());
        let is_there = index < class.count() && self.is_live(Points, address, index);
        let start = address.place() - u64::from(address.offset()) + u64::from(index) * class.size();
        is_there.then_some(Object {
            place: start,
            size: class.size(),
            slab: Some((class, index)),
        })
    }

    fn object_of_run(&self, head: u32, address: GlobalAddress) -> Result<Option<Object>> {
        let size = self.run_bytes(head).load(Ordering::Acquire);
        let ends_inside = run_slots(size).is_some_and(|n| n <= self.slots() - head);
        if !ends_inside {
            return Err(Error::Corrupt(format!(
                "{}: bytes of the run in slot {head}: {size}",
                self.name()
            )));
        }
        let place = u64::from(head) << OFFSET_BITS;
        let is_inside = address.place() < place + size.next_multiple_of(EXTENT);
        Ok(is_inside.then_some(Object {
            place,
            size,
            slab: None,
        }))
    }

    /// Clears an object's live bit, if it is set.
    fn clear(&self, address: GlobalAddress, class: Class, index: u32) -> bool {
        let (word, bit) = live_bit(index);
        let live = self.live(address.slot(), word);
        let cleared = |now: u64| (address.is_of(now) && now >> bit & 1 != 0).then_some(now & !(1 << bit));
        let is_done = live.fetch_update(Ordering::SeqCst, Ordering::SeqCst, cleared).is_ok();
        if is_done {
            self.hint_at(address.slot(), class, word);
        }
        is_done
    }
}

impl Space {
    /// An object's `len` bytes at `address`, where the short way suffices: in a slab, and nobody watches (as somebody does wherever memory is simulated).
    /// No calls: whoever has this inlined needs to keep nothing for later.
    #[inline(always)]
    fn at_once(&self, address: GlobalAddress, len: usize) -> Option<Quiet<'_>> {
        let part = self.part_numbered(address.part())?;
        let region = part.region();
        if region.is_watched() {
            return None;
        }
        let at = part.locate(Plain, address, len as u64)?;
        Some(region.span(at, len as u64).quiet())
    }

    /// The same in all cases, announced.
    fn announced(&self, address: GlobalAddress, len: usize) -> Result<Span<'_>> {
        let part = self.part_numbered(address.part()).ok_or_else(|| self.why(address, 0))?;
        let found = part.locate(Points, address, len as u64);
        match found.or_else(|| part.locate_in_run(address, len as u64)) {
            Some(at) => Ok(part.region().span(at, len as u64)),
            None => Err(self.why(address, len as u64)),
        }
    }

    #[inline(always)]
    fn word(&self, address: GlobalAddress) -> Result<&HostAtomicU64> {
        if !address.raw().is_multiple_of(8) {
            return Err(unaligned(address));
        }
        match self
            .part_numbered(address.part())
            .and_then(|part| Some((part, part.locate(Points, address, 8)?)))
        {
            Some((part, at)) => Ok(part.region().atomic_u64(at)),
            None => self.word_elsewhere(address),
        }
    }

    #[inline(never)]
    fn word_elsewhere(&self, address: GlobalAddress) -> Result<&HostAtomicU64> {
        Ok(self.announced(address, 8)?.atomic_u64(0))
    }

    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no object is there (it was freed, was never allocated, is of a former use of its extent or of another space);
    /// [`Error::OutOfBounds`]: it ends before; [`Error::Corrupt`]: the part's own data are broken. The same for all accesses.
    #[inline]
    pub fn read(&self, address: GlobalAddress, into: &mut [u8]) -> Result<()> {
        match self.at_once(address, into.len()) {
            Some(bytes) => {
                bytes.copy_out(0, into);
                Ok(())
            }
            None => self.read_announced(address, into),
        }
    }

    #[inline(never)]
    fn read_announced(&self, address: GlobalAddress, into: &mut [u8]) -> Result<()> {
        self.announced(address, into.len())?.copy_out(0, into);
        Ok(())
    }

    /// Writes `from` to the bytes from `address` on. Whoever reads meanwhile may see a part of it.
    ///
    /// # Errors
    /// As [`Space::read`].
    #[inline]
    pub fn write(&self, address: GlobalAddress, from: &[u8]) -> Result<()> {
        match self.at_once(address, from.len()) {
            Some(bytes) => {
                bytes.copy_in(0, from);
                Ok(())
            }
            None => self.write_announced(address, from),
        }
    }

    #[inline(never)]
    fn write_announced(&self, address: GlobalAddress, from: &[u8]) -> Result<()> {
        self.announced(address, from.len())?.copy_in(0, from);
        Ok(())
    }

    /// The word at `address`, at once, with acquire order.
    ///
    /// # Errors
    /// As [`Space::read`]; [`Error::Invalid`] if it is not aligned to 8.
    #[inline]
    pub fn load(&self, address: GlobalAddress) -> Result<u64> {
        Ok(self.word(address)?.load(Ordering::Acquire))
    }

    /// Writes the word at `address`, at once, with release order.
    ///
    /// # Errors
    /// As [`Space::load`].
    #[inline]
    pub fn store(&self, address: GlobalAddress, value: u64) -> Result<()> {
        self.word(address)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Writes `new` to the word at `address` if it is `expected`, in one step. The word that was there: it was done if that is `expected`.
    ///
    /// # Errors
    /// As [`Space::load`].
    #[inline]
    pub fn compare_and_swap(&self, address: GlobalAddress, expected: u64, new: u64) -> Result<u64> {
        let swapped = self
            .word(address)?
            .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(swapped.unwrap_or_else(|found| found))
    }

    /// Adds to the word at `address`, wrapping, in one step. The word that was there.
    ///
    /// # Errors
    /// As [`Space::load`].
    #[inline]
    pub fn fetch_add(&self, address: GlobalAddress, n: u64) -> Result<u64> {
        Ok(self.word(address)?.fetch_add(n, Ordering::AcqRel))
    }

    /// Reads in turn. The first that fails ends it: those before it are done, those after it not begun. Memory is asked for ahead: many at once take
    /// a fraction of their time one by one, where they are in nobody's cache.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        for some in reads.chunks_mut(AHEAD) {
            self.prefetch(some.iter().map(|read| (read.address, read.into.len())));
            some.iter_mut()
                .try_for_each(|read| self.read(read.address, read.into))?;
        }
        Ok(())
    }

    /// Writes in turn. The first that fails ends it: those before it are done, those after it not begun. As [`Space::read_many`].
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn write_many(&self, writes: &[Write<'_>]) -> Result<()> {
        for some in writes.chunks(AHEAD) {
            self.prefetch(some.iter().map(|write| (write.address, write.from.len())));
            some.iter()
                .try_for_each(|write| self.write(write.address, write.from))?;
        }
        Ok(())
    }

    #[inline(always)]
    fn prefetch(&self, accesses: impl Iterator<Item = (GlobalAddress, usize)>) {
        if rt::simulated() {
            return;
        }
        for (address, len) in accesses {
            if let Some(part) = self.part_numbered(address.part()) {
                part.prefetch(address, len as u64);
            }
        }
    }

    /// Bytes that the object at `address` can hold: at least those that were asked for. `address` may lie inside of it.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn size_of(&self, address: GlobalAddress) -> Result<u64> {
        Ok(self.object(address)?.1.size)
    }

    /// Frees the object that begins at `address`, whoever has allocated it.
    ///
    /// # Errors
    /// As [`Space::read`]; [`Error::Invalid`] if it does not begin there. Of a run: those of the way to the keeper.
    pub fn free(&self, address: GlobalAddress) -> Result<()> {
        let (part, object) = self.object(address)?;
        let inside = address.place() - object.place;
        if inside != 0 {
            return Err(Error::Invalid(format!(
                "{address} is {inside} bytes inside of its object"
            )));
        }
        match object.slab {
            Some((class, index)) if part.clear(address, class, index) => Ok(()),
            Some(_) => Err(gone(address)),
            None => self.keeper_of(address.part())?.free_run(address),
        }
    }

    fn object(&self, address: GlobalAddress) -> Result<(&Part, Object)> {
        let part = self.part_numbered(address.part()).ok_or_else(|| self.why(address, 0))?;
        match part.object(address)? {
            Some(object) => Ok((part, object)),
            None => Err(self.why(address, 0)),
        }
    }

    /// Why `len` bytes at an address cannot be had.
    #[cold]
    #[inline(never)]
    fn why(&self, address: GlobalAddress, len: u64) -> Error {
        if address.is_null() {
            return Error::Invalid("null is no object's address".into());
        }
        let Some(part) = self.part_numbered(address.part()) else {
            return Error::Invalid(format!(
                "{address} is of part {}, which this space does not have",
                address.part()
            ));
        };
        match part.slot(address.slot()) {
            Err(error) => error,
            Ok(slot) if slot.generation != address.generation() => stale(address, slot),
            Ok(_) => match part.object(address) {
                Err(error) => error,
                Ok(None) => gone(address),
                Ok(Some(object)) => beyond(address, len, object),
            },
        }
    }
}

fn gone(address: GlobalAddress) -> Error {
    Error::Invalid(format!("no object is at {address}: it was freed, or never allocated"))
}

fn stale(address: GlobalAddress, slot: Slot) -> Error {
    let now = slot.generation;
    if now < address.generation() {
        return Error::Invalid(format!(
            "no object is at {address}: its extent comes to be of generation {now} only"
        ));
    }
    Error::Invalid(format!(
        "no object is at {address}: its extent is of generation {now} by now"
    ))
}

fn beyond(address: GlobalAddress, len: u64, object: Object) -> Error {
    let (size, inside) = (ByteSize(object.size), address.place() - object.place);
    if inside + len <= object.size {
        return Error::Invalid(format!("no object was at {address} a moment ago; one is now"));
    }
    let begins = if inside == 0 {
        String::new()
    } else {
        format!(", and begins {inside} bytes before")
    };
    Error::OutOfBounds(format!("{len} bytes at {address}: its object has {size}{begins}"))
}

#[cold]
#[inline(never)]
fn unaligned(address: GlobalAddress) -> Error {
    Error::Invalid(format!(
        "{address} is no multiple of 8: words that change at once are aligned"
    ))
}
