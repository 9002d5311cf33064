//! Several entries into one leaf: one descent, one latch, and one redo operation for all their bytes.
//!
//! 1. [`BTree::plan`] says how many of the entries the latched leaf takes, and before which slots they go: a *run* is
//!    those that go before the same slot.
//! 2. [`BTree::insert_all`] writes a run as its entries end to end in the heap, one move of the slots behind, its slots.
//!
//! So between both a caller can latch and change what goes with the entries.

use super::layout::{AT_COUNT, Header, PageRead, PageWrite, SLOT, Slot, head_of, slot_at, upper_fence};
use super::pages::{Mtr, latched};
use super::search::search;
use super::write::fits;
use super::{BTree, LeafPos, Result, edit};

/// An entry that is to be inserted.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value, or the part of it that is its own.
    pub value: &'a [u8],
}

impl<'a> NewEntry<'a> {
    /// Its key without the page's prefix.
    fn suffix(&self, prefix: usize) -> &'a [u8] {
        &self.key[prefix.min(self.key.len())..]
    }
}

/// Where entries go in a leaf.
#[derive(Debug, Default)]
pub struct Plan {
    /// Slots, rising, and how many entries go before each.
    runs: Vec<(usize, usize)>,
    /// How many entries these are.
    pub count: usize,
}

impl Plan {
    fn add(&mut self, slot: usize) {
        match self.runs.last_mut() {
            Some((last, count)) if *last == slot => *count += 1,
            _ => self.runs.push((slot, 1)),
        }
        self.count += 1;
    }
}

impl BTree {
    /// How many of `entries`, whose keys rise, the latched leaf takes from the first on. That one was looked for at
    /// `pos`, not found, and has room. Each value is followed by `tail` more bytes. The plan ends before a key that
    /// belongs to another leaf, is there, does not rise or finds no room. It holds until the leaf is changed.
    ///
    /// # Errors
    /// The leaf is to be compacted, and contradicts itself.
    pub fn plan(&self, m: &Mtr<'_>, pos: &LeafPos, entries: &[NewEntry<'_>], tail: usize) -> Result<Plan> {
        assert!(!pos.found, "a key is inserted where it was looked for and not found");
        let view = m.view(pos.h);
        let (header, upper) = (Header::read(view), upper_fence(view));
        let (mut plan, mut free, mut before) = (Plan::default(), header.free(), None);
        for entry in entries {
            let need = edit::room_for(&header, entry.key.len(), entry.value.len() + tail);
            let belongs = upper.as_deref().is_none_or(|upper| entry.key < upper);
            let rises = before.is_none_or(|before| before < entry.key);
            if need > free || !belongs || !rises || fits(entry.key.len(), entry.value.len() + tail).is_err() {
                break;
            }
            let Some(slot) = place(view, &header, plan.runs.last(), pos, entry.key) else {
                break;
            };
            plan.add(slot);
            free -= need;
            before = Some(entry.key);
        }
        if header.free() - free > header.gap() {
            self.sound(m, pos.h)?;
        }
        Ok(plan)
    }

    /// Inserts the entries of the plan, each with `tail` behind its value.
    ///
    /// # Panics
    /// If the leaf was changed since the plan was made.
    pub fn insert_all(&self, m: &mut Mtr<'_>, pos: &LeafPos, entries: &[NewEntry<'_>], plan: &Plan, tail: &[u8]) {
        let header = Header::read(m.view(pos.h));
        let room = |entry: &NewEntry<'_>| edit::room_for(&header, entry.key.len(), entry.value.len() + tail.len());
        let need: usize = entries[..plan.count].iter().map(room).sum();
        assert!(need <= header.free(), "a plan takes no more entries than have room");
        if need > header.gap() {
            edit::compact(&mut latched(m, pos.h));
        }
        // From the last on, so that the slots of those before stay where they are.
        let mut end = plan.count;
        for (slot, count) in plan.runs.iter().rev() {
            insert_run(&mut latched(m, pos.h), *slot, &entries[end - count..end], tail);
            end -= count;
        }
    }
}

/// The slot before which `key` goes, which is above those placed so far; none: it is there.
fn place(
    page: impl PageRead,
    header: &Header,
    last: Option<&(usize, usize)>,
    pos: &LeafPos,
    key: &[u8],
) -> Option<usize> {
    match last {
        None => Some(pos.slot),
        // Behind all that are there.
        Some((slot, _)) if *slot == header.count() => Some(*slot),
        Some(_) => {
            let found = search(page, key);
            (!found.exact).then_some(found.slot)
        }
    }
}

/// Inserts entries that go before one slot; the gap has room.
pub(super) fn insert_run<P: PageWrite>(page: &mut P, slot: usize, entries: &[NewEntry<'_>], tail: &[u8]) {
    let mut header = Header::read(page.view());
    let prefix = usize::from(header.prefix);
    let (mut heap, mut slots) = (
        Vec::with_capacity(header.gap()),
        Vec::with_capacity(entries.len() * SLOT),
    );
    // The heap grows to the left: the first entry lies behind the others.
    for entry in entries.iter().rev() {
        heap.extend_from_slice(entry.suffix(prefix));
        heap.extend_from_slice(entry.value);
        heap.extend_from_slice(tail);
    }
    for entry in entries {
        let (suffix, value) = (entry.suffix(prefix), entry.value.len() + tail.len());
        header.heap -= (suffix.len() + value) as u16;
        let new = Slot {
            head: head_of(suffix),
            off: header.heap,
            len: suffix.len() as u16,
            word: value as u32,
        };
        slots.extend_from_slice(&new.encode());
    }
    if !heap.is_empty() {
        page.write(usize::from(header.heap), &heap);
    }
    let behind = SLOT * (header.count() - slot);
    if behind > 0 {
        page.shift(slot_at(slot), slot_at(slot + entries.len()), behind);
    }
    page.write(slot_at(slot), &slots);
    for at in slot..slot + entries.len() {
        header.note_insert(at as u16);
        header.count += 1;
    }
    page.write(AT_COUNT, &header.encode()[..10]);
}
