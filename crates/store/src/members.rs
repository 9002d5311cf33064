//! Members: the processes that use the store, each with a record that says what it answers for.
//!
//! A member notes the object that it fills before it is linked (an *intent*), and the items that it uses in place (a
//! *pin*). When its session is over, whichever member notices takes the record over by one compare-and-swap, frees what
//! was never linked, and the pins with it. An intent says the item's sequence too: one that is found after its item was
//! freed ends no other item that lies there by now.

use super::heap::{Heap, offset};
use super::layout::{WORD, member, root};
use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, SessionId};

/// This process's record.
pub(super) struct Member {
    pub record: GlobalAddress,
    pub tag: u64,
    intents: Mutex<Vec<u16>>,
    pins: Mutex<Vec<u16>>,
}

/// The place of an intent or a pin; given back by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u16);

const NUMBER_BITS: u32 = 56;

/// A session as a word.
pub(super) fn session_tag(part: u8, id: SessionId) -> u64 {
    u64::from(part) << NUMBER_BITS | id.0 & ((1 << NUMBER_BITS) - 1)
}

/// The session of such a word.
pub(super) fn session_of(tag: u64) -> (u8, SessionId) {
    ((tag >> NUMBER_BITS) as u8, SessionId(tag & ((1 << NUMBER_BITS) - 1)))
}

impl Member {
    /// Takes a record that no session has, or makes one.
    ///
    /// # Errors
    /// [`Error::Full`] if there are as many members as there can be.
    pub(super) fn join(heap: &Heap, at: GlobalAddress) -> Result<Self> {
        let part = at.part();
        let tag = session_tag(part, heap.first().begin_in(part)?);
        for n in 0..root::MEMBERS_MAX {
            let record = record(heap, at, n)?;
            if heap.load(record)? == 0 && heap.swap(record, 0, tag)? {
                return Ok(Self {
                    record,
                    tag,
                    intents: Mutex::new((0..member::INTENTS_MAX as u16).rev().collect()),
                    pins: Mutex::new((0..member::PINS_ALL as u16).rev().collect()),
                });
            }
        }
        Err(Error::Full(format!(
            "the store has {} members, and no room for more",
            root::MEMBERS_MAX
        )))
    }

    /// Notes an object that it fills, or will free.
    ///
    /// # Errors
    /// [`Error::Full`] if it fills as many as it can at once.
    pub(super) fn intend(&self, heap: &Heap, item: GlobalAddress, sequence: u64) -> Result<Slot> {
        self.intend_with(heap, item, sequence, 0)
    }

    /// As [`intend`](Self::intend), of what waits, for as long as that takes: the others are for what is filled.
    pub(super) fn intend_beside(&self, heap: &Heap, item: GlobalAddress, sequence: u64) -> Result<Slot> {
        self.intend_with(heap, item, sequence, member::FILL_INTENTS as usize)
    }

    /// Whether those that are left are for what is filled.
    pub(super) fn has_few_intents(&self) -> bool {
        self.intents.lock().len() < member::FILL_INTENTS as usize
    }

    fn intend_with(&self, heap: &Heap, item: GlobalAddress, sequence: u64, left: usize) -> Result<Slot> {
        let mut intents = self.intents.lock();
        let slot = if intents.len() > left {
            intents.pop().map(Slot)
        } else {
            None
        };
        drop(intents);
        let slot = slot.ok_or_else(|| Error::Full(full("fills", member::INTENTS_MAX)))?;
        match self.note_intent(heap, slot, item, sequence) {
            Ok(()) => Ok(slot),
            Err(error) => {
                self.intents.lock().push(slot.0);
                Err(error)
            }
        }
    }

    /// The sequence first: what finds the address finds it too.
    fn note_intent(&self, heap: &Heap, slot: Slot, item: GlobalAddress, sequence: u64) -> Result<()> {
        heap.store(sequence_at(self.record, u64::from(slot.0))?, sequence)?;
        heap.store(self.intent(slot)?, item.raw())
    }

    /// The object is linked, or is about to be freed.
    pub(super) fn forget_intent(&self, heap: &Heap, slot: Slot) -> Result<()> {
        heap.store(self.intent(slot)?, 0)?;
        self.intents.lock().push(slot.0);
        Ok(())
    }

    fn intent(&self, slot: Slot) -> Result<GlobalAddress> {
        offset(self.record, member::INTENTS + WORD * u64::from(slot.0))
    }

    /// Notes an item that it uses; whether it is still linked must be looked at *after* that.
    ///
    /// # Errors
    /// [`Error::Full`] if it uses as many as it can at once.
    pub(super) fn pin(&self, heap: &Heap, item: GlobalAddress) -> Result<Slot> {
        self.pin_beside(heap, item, member::OWN_PINS as usize)
    }

    /// As [`pin`](Self::pin), for a step of the store's own: callers leave a few pins for that.
    pub(super) fn pin_own(&self, heap: &Heap, item: GlobalAddress) -> Result<Slot> {
        self.pin_beside(heap, item, 0)
    }

    fn pin_beside(&self, heap: &Heap, item: GlobalAddress, left: usize) -> Result<Slot> {
        let mut pins = self.pins.lock();
        let slot = if pins.len() > left { pins.pop().map(Slot) } else { None };
        drop(pins);
        let slot = slot.ok_or_else(|| Error::Full(full("pins", member::PINS_MAX)))?;
        let noted = self.note_pin(heap, slot, item);
        if noted.is_err() {
            self.pins.lock().push(slot.0);
        }
        noted.map(|()| slot)
    }

    fn note_pin(&self, heap: &Heap, slot: Slot, item: GlobalAddress) -> Result<()> {
        let used = offset(self.record, member::PINS_USED)?;
        let mut now = heap.load(used)?;
        while now <= u64::from(slot.0) && !heap.swap(used, now, u64::from(slot.0) + 1)? {
            now = heap.load(used)?;
        }
        // By a swap, which no later load of this thread comes before.
        let at = self.pin_at(slot)?;
        let before = heap.load(at)?;
        match heap.swap(at, before, item.raw())? {
            true => Ok(()),
            false => Err(Error::Revoked("another member has ended this one's pins".into())),
        }
    }

    pub(super) fn unpin(&self, heap: &Heap, slot: Slot) -> Result<()> {
        heap.store(self.pin_at(slot)?, 0)?;
        self.pins.lock().push(slot.0);
        Ok(())
    }

    /// Whether a pin is noted still: not if another member has ended this one.
    pub(super) fn has_pin(&self, heap: &Heap, slot: Slot, item: GlobalAddress) -> Result<bool> {
        Ok(heap.load(self.record)? == self.tag && heap.load(self.pin_at(slot)?)? == item.raw())
    }

    fn pin_at(&self, slot: Slot) -> Result<GlobalAddress> {
        offset(self.record, member::PINS + WORD * u64::from(slot.0))
    }

    /// Gives the record back. What it still answers for stays noted, for the others.
    pub(super) fn leave(&self, heap: &Heap) -> Result<()> {
        let all_free = self.intents.lock().len() == member::INTENTS_MAX as usize;
        if !all_free {
            return Ok(()); // Its session ends, and another member finds what it leaves.
        }
        clear_pins(heap, self.record)?;
        heap.swap(self.record, self.tag, 0).map(drop)
    }
}

fn full(does: &str, at_most: u64) -> String {
    format!("this process {does} {at_most} objects of the store at once, and that is the most")
}

/// The record with a number, made if there was none.
fn record(heap: &Heap, at: GlobalAddress, n: u64) -> Result<GlobalAddress> {
    let word = offset(at, root::MEMBERS + WORD * n)?;
    let known = heap.load(word)?;
    if known != 0 {
        return Ok(GlobalAddress::from_raw(known));
    }
    let made = heap.alloc_at(at.part(), member::BYTES)?;
    if heap.swap(word, 0, made.raw())? {
        return Ok(made);
    }
    heap.free(made)?;
    heap.load(word).map(GlobalAddress::from_raw)
}

/// The records of all members that there ever were, with their sessions.
pub(super) fn records(heap: &Heap, at: GlobalAddress) -> Result<Vec<(GlobalAddress, u64)>> {
    let mut found = Vec::new();
    for n in 0..root::MEMBERS_MAX {
        let record = GlobalAddress::from_raw(heap.load(offset(at, root::MEMBERS + WORD * n)?)?);
        if record.is_null() {
            break;
        }
        found.push((record, heap.load(record)?));
    }
    Ok(found)
}

/// Items that a record pins.
pub(super) fn pins(heap: &Heap, record: GlobalAddress, mut each: impl FnMut(GlobalAddress)) -> Result<()> {
    let used = heap.load(offset(record, member::PINS_USED)?)?.min(member::PINS_ALL);
    for n in 0..used {
        let item = heap.load(offset(record, member::PINS + WORD * n)?)?;
        if item != 0 {
            each(GlobalAddress::from_raw(item));
        }
    }
    Ok(())
}

/// Takes all pins of a record out.
pub(super) fn clear_pins(heap: &Heap, record: GlobalAddress) -> Result<()> {
    let used = offset(record, member::PINS_USED)?;
    for n in 0..heap.load(used)?.min(member::PINS_ALL) {
        heap.store(offset(record, member::PINS + WORD * n)?, 0)?;
    }
    heap.store(used, 0)
}

/// Takes the objects out, one after the other, that a record answers for: each with its sequence. What fails stays, and
/// the others go on: the first error is told.
pub(super) fn take_intents(
    heap: &Heap,
    record: GlobalAddress,
    mut each: impl FnMut(GlobalAddress, u64) -> Result<()>,
) -> Result<()> {
    let mut failed = Ok(());
    for n in 0..member::INTENTS_MAX {
        let at = offset(record, member::INTENTS + WORD * n)?;
        let item = heap.load(at)?;
        if item == 0 {
            continue;
        }
        let sequence = heap.load(sequence_at(record, n)?)?;
        match each(GlobalAddress::from_raw(item), sequence) {
            Ok(()) => drop(heap.swap(at, item, 0)?),
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed
}

fn sequence_at(record: GlobalAddress, intent: u64) -> Result<GlobalAddress> {
    offset(record, member::SEQUENCES + WORD * intent)
}
