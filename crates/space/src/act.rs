//! What is done to an object, wherever it lies: the way that is taken when the quick one ([`super::access`]) is none.
//!
//! An extent lies in its own slot, in another slot as a *migrated extent*, or *away*, in another part. Each attempt
//! looks at one part and ends in an [`Outcome`]; an extent that is frozen is about to be somewhere else, or here again,
//! so the next attempt comes a little later. If a check fails, what is wrong is found out here, at leisure.

use super::GlobalAddress;
use super::address::OFFSET_BITS;
use super::class::{Class, live_bit};
use super::layout::run_slots;
use super::part::Part;
use super::pieces::{Piece, cut};
use super::slot::{Slot, Use};
use crate::extent::EXTENT;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::seam::{Points, Seam};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::{HostAtomicU64, Span};
use core::ops::Range;

/// An access, and where.
pub(super) type Step<'a> = (GlobalAddress, Act<'a>);

/// What is to be done at an address.
#[derive(Debug)]
pub(super) enum Act<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    Load,
    Store(u64),
    Swap {
        expected: u64,
        new: u64,
    },
    Add(u64),
    Size,
    /// Where so many bytes lie in the region of the part that has them: the host reads them later, and then looks for
    /// them again.
    Find(u64),
    Free,
    /// Of a run that is freed a piece is.
    FreePiece,
    /// The word must be this one: otherwise the session has lost what it believes to hold, and no later step of the
    /// sequence is done.
    Expect(u64),
    /// The bytes, and what lies around them in the object: whole pages, counted from its first byte. Found is how far
    /// into them the address lies.
    Around {
        len: u64,
        page: u64,
        into: &'a mut Vec<u8>,
    },
}

impl Act<'_> {
    /// The same, for as long as it is not used itself.
    pub(super) fn reborrow(&mut self) -> Act<'_> {
        match self {
            Act::Read(into) => Act::Read(into),
            Act::Write(from) => Act::Write(from),
            Act::Load => Act::Load,
            Act::Store(value) => Act::Store(*value),
            Act::Swap { expected, new } => Act::Swap {
                expected: *expected,
                new: *new,
            },
            Act::Add(n) => Act::Add(*n),
            Act::Size => Act::Size,
            Act::Find(len) => Act::Find(*len),
            Act::Free => Act::Free,
            Act::FreePiece => Act::FreePiece,
            Act::Expect(value) => Act::Expect(*value),
            Act::Around { len, page, into } => Act::Around {
                len: *len,
                page: *page,
                into,
            },
        }
    }

    /// Bytes that it touches.
    pub(super) fn len(&self) -> u64 {
        match self {
            Act::Read(into) => into.len() as u64,
            Act::Write(from) => from.len() as u64,
            Act::Load | Act::Store(_) | Act::Swap { .. } | Act::Add(_) | Act::Expect(_) => 8,
            Act::Around { len, .. } | Act::Find(len) => *len,
            Act::Size | Act::Free | Act::FreePiece => 0,
        }
    }

    fn is_of_a_word(&self) -> bool {
        matches!(
            self,
            Act::Load | Act::Store(_) | Act::Swap { .. } | Act::Add(_) | Act::Expect(_)
        )
    }

    pub(super) fn is_write(&self) -> bool {
        !matches!(
            self,
            Act::Read(_) | Act::Load | Act::Size | Act::Find(_) | Act::Expect(_) | Act::Around { .. }
        )
    }

    /// Whether it may be done twice. What writes may not, also if it writes the same: another may have written in
    /// between.
    pub(super) fn may_repeat(&self) -> bool {
        !self.is_write() || matches!(self, Act::Add(0))
    }

    /// A read or write as several, of so many bytes at most: each is done by itself, so that none is done again because
    /// another was not.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if there is no address so far; [`Error::Invalid`] if it is something else.
    pub(super) fn in_pieces<'s>(
        &'s mut self,
        address: GlobalAddress,
        most: usize,
        into: &mut Vec<(GlobalAddress, Act<'s>)>,
    ) -> Result<()> {
        let at = |n: usize| {
            let far = || Error::OutOfBounds(format!("{} bytes at {address}", n * most));
            address.checked_add((n * most) as u64).ok_or_else(far)
        };
        match self {
            Act::Read([]) => into.push((address, Act::Read(&mut []))),
            Act::Write([]) => into.push((address, Act::Write(&[]))),
            Act::Read(all) => {
                for (n, piece) in all.chunks_mut(most).enumerate() {
                    into.push((at(n)?, Act::Read(piece)));
                }
            }
            Act::Write(all) => {
                for (n, piece) in all.chunks(most).enumerate() {
                    into.push((at(n)?, Act::Write(piece)));
                }
            }
            _ => {
                return Err(Error::Invalid(
                    "an access in pieces that is neither read nor write".into(),
                ));
            }
        }
        Ok(())
    }

    /// A read or write as several, of an extent each.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if there is no address so far; [`Error::Invalid`] if it is something else.
    pub(super) fn in_extents<'s>(
        &'s mut self,
        address: GlobalAddress,
        into: &mut Vec<(GlobalAddress, Act<'s>)>,
    ) -> Result<()> {
        let first = cut(address, self.len() as usize).unwrap_or(self.len() as usize);
        let next = address.checked_add(first as u64);
        let next = next.ok_or_else(|| Error::OutOfBounds(format!("{first} bytes at {address}")))?;
        match self {
            Act::Read(all) => {
                let (now, later) = all.split_at_mut(first);
                into.push((address, Act::Read(now)));
                for (n, piece) in later.chunks_mut(EXTENT as usize).enumerate() {
                    into.push((extent_after(next, n)?, Act::Read(piece)));
                }
            }
            Act::Write(all) => {
                let (now, later) = all.split_at(first);
                into.push((address, Act::Write(now)));
                for (n, piece) in later.chunks(EXTENT as usize).enumerate() {
                    into.push((extent_after(next, n)?, Act::Write(piece)));
                }
            }
            _ => {
                return Err(Error::Invalid(
                    "an access to several extents that is neither read nor write".into(),
                ));
            }
        }
        Ok(())
    }

    /// What can be known to be wrong before anything is looked at.
    pub(super) fn check(&self, address: GlobalAddress) -> Result<()> {
        if address.is_null() {
            return Err(Error::Invalid("null is no object's address".into()));
        }
        if self.is_of_a_word() && !address.raw().is_multiple_of(8) {
            return Err(Error::Invalid(format!(
                "{address} is no multiple of 8: words that change at once are aligned"
            )));
        }
        Ok(())
    }

    /// Does it to bytes or a word that are there.
    fn on(&mut self, span: Span<'_>) -> u64 {
        match self {
            Act::Read(into) => _ = span.copy_out(0, into),
            Act::Write(from) => span.copy_in(0, from),
            Act::Load => return span.atomic_u64(0).load(Ordering::Acquire),
            Act::Store(value) => span.atomic_u64(0).store(*value, Ordering::Release),
            Act::Swap { expected, new } => return swap(span.atomic_u64(0), *expected, *new),
            Act::Add(n) => return span.atomic_u64(0).fetch_add(*n, Ordering::AcqRel),
            Act::Size | Act::Find(_) | Act::Free | Act::FreePiece | Act::Expect(_) | Act::Around { .. } => {}
        }
        0
    }
}

/// Writes `new` if `expected` is there: what was there.
pub(super) fn swap(word: &HostAtomicU64, expected: u64, new: u64) -> u64 {
    let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
    swapped.unwrap_or_else(|found| found)
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Done: the word that was there, or the size; and in which slot's memory.
    Done(u64, u32),
    /// It is to be freed, and is a run: that is the keeper's business.
    Run,
    /// The extents of its run lie apart: they are to be accessed one by one.
    Split,
    /// The extent is about to move: try again.
    Frozen,
    /// The extent lies in this part.
    Away(u8),
    /// The part has no such extent.
    NotHere,
}

/// An object that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Object {
    /// Where its first byte lies now, counted from the part's first extent on.
    place: u64,
    /// How far the address is inside of it.
    inside: u64,
    /// Bytes that it can hold.
    size: u64,
    /// Its slab's class and place, and its number there; a run has none.
    slab: Option<(Class, u32, u32)>,
}

impl Object {
    /// The whole pages, counted from its first byte, with the `len` bytes in them; the last one ends with it.
    fn pages_around(&self, len: u64, page: u64) -> Range<u64> {
        assert!(page.is_power_of_two(), "a page of {page} bytes");
        let end = (self.inside + len).next_multiple_of(page).min(self.size);
        self.inside - self.inside % page..end
    }
}

/// What an attempt finds.
#[derive(Debug)]
pub(super) enum Found {
    Object(Object),
    No(Outcome),
}

impl Part {
    /// Does it to an object of this part's own, wherever in this part it lies.
    ///
    /// # Errors
    /// Those of [`Space::read`](super::Space::read).
    pub(super) fn act(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        self.inside_at_last(|| match self.own(address)? {
            Found::Object(object) => self.act_on(address, object, act),
            Found::No(Outcome::Away(part)) if part == self.number() => self.act_on_migrated(address, act),
            Found::No(outcome) => Ok(outcome),
        })
    }

    /// Does it to an object of another part that lies in this one.
    pub(super) fn act_as_host(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        if self
            .moving()
            .is_none_or(|moving| moving.migrated_extents.is_empty(Points))
        {
            return Ok(Outcome::NotHere);
        }
        self.inside_at_last(|| self.act_on_migrated(address, act))
    }

    fn act_on_migrated(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<Outcome> {
        match self.as_migrated(Points, address)? {
            Found::Object(object) => self.act_on(address, object, act),
            Found::No(outcome) => Ok(outcome),
        }
    }

    /// Inside, with a line of the thread's own if that is needed.
    pub(super) fn inside_at_last<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let inside = match self.moving() {
            None => None,
            Some(moving) => match moving.presence.enter(Points) {
                Some(inside) => Some(inside),
                None => {
                    moving.presence.join()?;
                    moving.presence.enter(Points)
                }
            },
        };
        let result = f();
        // The callers count these accesses where they are done.
        inside.map(|inside| inside.leave(Points));
        result
    }

    fn act_on(&self, address: GlobalAddress, object: Object, act: &mut Act<'_>) -> Result<Outcome> {
        let len = act.len();
        assert!(object.inside <= object.size, "{address} lies behind its object");
        if len > object.size - object.inside {
            match object.slab {
                Some((Class::WHOLE, slot, _)) => {
                    self.reaches(address, slot, object.inside, len)?;
                    let is_plain = matches!(act, Act::Read(_) | Act::Write(_) | Act::Find(_));
                    if !is_plain || slot != address.slot() || !self.lie_together(address, len) {
                        return Ok(Outcome::Split);
                    }
                }
                _ => return Err(beyond(address, len, object)),
            }
        }
        let slot = ((object.place + object.inside) >> OFFSET_BITS) as u32;
        match act {
            Act::Size => self.size(object).map(|size| Outcome::Done(size, slot)),
            Act::Find(_) => Ok(Outcome::Done(self.at(object.place + object.inside), slot)),
            Act::Free => self.free_object(address, object),
            Act::FreePiece => self.free_piece(address, object),
            Act::Expect(wanted) => {
                let span = self.region().span(self.at(object.place + object.inside), 8);
                let found = span.atomic_u64(0).load(Ordering::Acquire);
                expected(address, *wanted, found).map(|()| Outcome::Done(found, slot))
            }
            Act::Around { len, page, into } => {
                let pages = object.pages_around(*len, *page);
                into.resize((pages.end - pages.start) as usize, 0);
                let at = self.at(object.place + pages.start);
                self.region().span(at, into.len() as u64).copy_out(0, into);
                Ok(Outcome::Done(object.inside - pages.start, slot))
            }
            _ => {
                let at = self.at(object.place + object.inside);
                let found = act.on(self.region().span(at, len));
                if act.is_write() {
                    self.written(at, len);
                }
                Ok(Outcome::Done(found, slot))
            }
        }
    }

    fn free_object(&self, address: GlobalAddress, object: Object) -> Result<Outcome> {
        let inside = object.inside;
        if inside != 0 {
            return Err(Error::Invalid(format!(
                "{address} is {inside} bytes inside of its object"
            )));
        }
        match object.slab {
            Some((Class::WHOLE, slot, _)) => self.free_whole(address, slot),
            Some((class, slot, index)) if self.clear(address, class, slot, index) => Ok(Outcome::Done(0, slot)),
            Some(_) => Err(gone(address)),
            None => Ok(Outcome::Run),
        }
    }

    /// A run of one piece is freed; of one of more nothing is done yet. How many pieces it has.
    fn free_whole(&self, address: GlobalAddress, slot: u32) -> Result<Outcome> {
        let piece = self.piece(slot)?;
        match piece.number {
            0 if piece.count > 1 || self.clear(address, Class::WHOLE, slot, 0) => {
                Ok(Outcome::Done(piece.count.into(), slot))
            }
            0 => Err(gone(address)),
            _ => Err(Error::Invalid(format!(
                "{address} is {} bytes inside of its object",
                piece.place(0)
            ))),
        }
    }

    fn free_piece(&self, address: GlobalAddress, object: Object) -> Result<Outcome> {
        match object.slab {
            Some((Class::WHOLE, slot, _)) if object.inside == 0 && self.clear(address, Class::WHOLE, slot, 0) => {
                Ok(Outcome::Done(0, slot))
            }
            _ => Err(gone(address)),
        }
    }

    /// Bytes of an object: of a piece those of its run.
    fn size(&self, object: Object) -> Result<u64> {
        match object.slab {
            Some((Class::WHOLE, slot, _)) => self.piece(slot).map(Piece::run_bytes),
            _ => Ok(object.size),
        }
    }

    /// Clears an object's live bit, if it is set.
    fn clear(&self, address: GlobalAddress, class: Class, slot: u32, index: u32) -> bool {
        assert!(index < class.count(), "object {index} of a slab of {}", class.count());
        let (word, bit) = live_bit(index);
        let live = self.live(slot, word);
        let cleared = |now: u64| (address.is_of(now) && now >> bit & 1 != 0).then_some(now & !(1 << bit));
        let is_done = live.fetch_update(Ordering::SeqCst, Ordering::SeqCst, cleared).is_ok();
        if is_done {
            self.changed_live(slot, word, 1);
            self.hint_at(slot, class, word);
        }
        is_done
    }

    fn own(&self, address: GlobalAddress) -> Result<Found> {
        let slot = self.slot(address.slot())?;
        if slot.generation != address.generation() && !planted(Fault::StaleAddress) {
            return Err(stale(address, slot));
        }
        match slot.used {
            Use::Slab(class, _) => self.in_slab(address, class, address.slot()),
            Use::Head(_) => self.in_run(address.slot(), address),
            Use::Tail(_) => match self.head_of(address.slot(), slot) {
                Some(head) => self.in_run(head, address),
                None => Err(gone(address)),
            },
            Use::Frozen => self.frozen(address, address.slot()),
            Use::Away => Ok(Found::No(Outcome::Away(self.place_of(address.slot()).0))),
            Use::Free | Use::Lent | Use::Retired => Err(gone(address)),
        }
    }

    pub(super) fn as_migrated<S: Seam>(&self, seam: S, address: GlobalAddress) -> Result<Found> {
        let extent = address.extent();
        let slot = self
            .moving()
            .and_then(|moving| moving.migrated_extents.find(seam, extent));
        let is_its = |slot: &u32| self.migrated(*slot).load_by(seam, Ordering::Acquire) == extent.raw();
        let Some(slot) = slot.filter(|slot| *slot < self.slots()).filter(is_its) else {
            return Ok(Found::No(Outcome::NotHere));
        };
        let state = self.migrated_state(slot).load_by(seam, Ordering::Acquire);
        // If it was frozen when we came inside, it may have been let go since, and the state be another migrated
        // extent's: that says whose it is before its state is set.
        if !is_its(&slot) {
            return Ok(Found::No(Outcome::NotHere));
        }
        match Slot::decode(state).filter(|found| found.generation == address.generation()) {
            Some(Slot {
                used: Use::Slab(class, _),
                ..
            }) => self.in_slab(address, class, slot),
            Some(Slot { used: Use::Frozen, .. }) => self.frozen(address, slot),
            _ if state == 0 => Ok(Found::No(Outcome::NotHere)),
            _ => Err(Error::Corrupt(format!(
                "{}: state of the migrated extent in slot {slot}: {state:#018x}",
                self.name()
            ))),
        }
    }

    /// Of an extent that is about to move nothing is used.
    fn frozen(&self, address: GlobalAddress, slot: u32) -> Result<Found> {
        if planted(Fault::MoveFence)
            && let Some(saved) = Slot::decode(self.saved(slot).load(Ordering::Acquire))
            && let Use::Slab(class, _) = saved.used
        {
            return self.in_slab(address, class, slot);
        }
        Ok(Found::No(Outcome::Frozen))
    }

    /// The object at an address whose extent is a slab, and lies in `slot`.
    fn in_slab(&self, address: GlobalAddress, class: Class, slot: u32) -> Result<Found> {
        let index = class.index(address.offset());
        let (word, bit) = live_bit(index);
        let is_live = || {
            let live = self.live_of(slot, word).map(|live| live.load(Ordering::Acquire));
            let is_of = |live| address.is_of(live) || planted(Fault::StaleAddress);
            live.is_some_and(|live| is_of(live) && live >> bit & 1 != 0)
        };
        if index >= class.count() || !is_live() {
            return Err(gone(address));
        }
        let start = u64::from(index) * class.size();
        Ok(Found::Object(Object {
            place: (u64::from(slot) << OFFSET_BITS) + start,
            inside: u64::from(address.offset()) - start,
            size: class.size(),
            slab: Some((class, slot, index)),
        }))
    }

    fn in_run(&self, head: u32, address: GlobalAddress) -> Result<Found> {
        let size = self.run_bytes(head).load(Ordering::Acquire);
        let ends_inside = run_slots(size).is_some_and(|n| n <= self.slots() - head);
        if !ends_inside {
            return Err(Error::Corrupt(format!(
                "{}: bytes of the run in slot {head}: {size}",
                self.name()
            )));
        }
        let place = u64::from(head) << OFFSET_BITS;
        let inside = address.place() - place;
        if inside >= size.next_multiple_of(EXTENT) {
            return Err(gone(address));
        }
        if inside > size {
            let (slab, size) = (None, size);
            return Err(beyond(
                address,
                0,
                Object {
                    place,
                    inside,
                    size,
                    slab,
                },
            ));
        }
        Ok(Found::Object(Object {
            place,
            inside,
            size,
            slab: None,
        }))
    }

    /// Where the extent of a slot is, that is away: part and slot.
    pub(super) fn place_of(&self, slot: u32) -> (u8, u32) {
        let place = self.place(slot).load(Ordering::Acquire);
        ((place >> 32) as u8, place as u32)
    }
}

/// The address of the extent that comes so many after one.
fn extent_after(address: GlobalAddress, n: usize) -> Result<GlobalAddress> {
    let far = || Error::OutOfBounds(format!("{n} extents after {address}"));
    address.checked_add(n as u64 * EXTENT).ok_or_else(far)
}

fn expected(address: GlobalAddress, wanted: u64, found: u64) -> Result<()> {
    match found == wanted {
        true => Ok(()),
        false => Err(Error::Revoked(format!(
            "the word at {address} is {found:#x}, and was to be {wanted:#x}"
        ))),
    }
}

pub(super) fn gone(address: GlobalAddress) -> Error {
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
    let (size, inside) = (ByteSize(object.size), object.inside);
    let begins = if inside == 0 {
        String::new()
    } else {
        format!(", and begins {inside} bytes before")
    };
    Error::OutOfBounds(format!("{len} bytes at {address}: its object has {size}{begins}"))
}
