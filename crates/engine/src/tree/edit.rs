//! Changing a page so that the redo holds only what changed.
//!
//! An insert is: entry bytes, one move of the slots behind, the slot, ten header bytes. A removal is one move
//! and the header. Compaction slides whole runs of entries with move operations and rewrites the slots,
//! which is far below the size of a page image unless every second entry is dead.

use super::layout::{
    AT_COUNT, Header, PAGE_SIZE, PageRead, PageWrite, SLOT, SLOTS, Slot, common_prefix, head_at, head_of, level_of,
    lower_fence, slot_at, upper_fence,
};

/// Heap bytes that an entry of this key needs on the page, its slot included.
pub(crate) fn room_for(header: &Header, key_len: usize, value_len: usize) -> usize {
    key_len.saturating_sub(header.prefix as usize) + value_len + SLOT
}

/// Inserts an entry at `slot`; `false`, and nothing changed, when the page has no room.
pub(crate) fn insert<P: PageWrite>(page: &mut P, slot: usize, key: &[u8], value: &[u8], word: u32) -> bool {
    let header = Header::read(page.view());
    let suffix = &key[(header.prefix as usize).min(key.len())..];
    if header.free() < suffix.len() + value.len() + SLOT {
        return false;
    }
    let mut header = make_gap(page, header, suffix.len() + value.len() + SLOT);
    header.heap -= (suffix.len() + value.len()) as u16;
    write_entry(page, header.heap, suffix, value);
    let behind = SLOT * (header.count() - slot);
    if behind > 0 {
        page.shift(slot_at(slot), slot_at(slot + 1), behind);
    }
    let entry = Slot {
        head: head_of(suffix),
        off: header.heap,
        len: suffix.len() as u16,
        word,
    };
    page.write(slot_at(slot), &entry.encode());
    header.note_insert(slot as u16);
    header.count += 1;
    page.write(AT_COUNT, &header.encode()[..10]);
    true
}

/// Small entries are put together first, so that they are one redo operation.
fn write_entry<P: PageWrite>(page: &mut P, off: u16, suffix: &[u8], value: &[u8]) {
    let mut together = [0; 512];
    let len = suffix.len() + value.len();
    if let Some(entry) = together.get_mut(..len) {
        entry[..suffix.len()].copy_from_slice(suffix);
        entry[suffix.len()..].copy_from_slice(value);
        if len > 0 {
            page.write(off as usize, entry);
        }
        return;
    }
    if !suffix.is_empty() {
        page.write(off as usize, suffix);
    }
    if !value.is_empty() {
        page.write(off as usize + suffix.len(), value);
    }
}

/// Removes the entry at `slot`.
pub(crate) fn remove<P: PageWrite>(page: &mut P, slot: usize) {
    let mut header = Header::read(page.view());
    let level = level_of(page.view()).unwrap_or(0);
    let entry = Slot::read(page.view(), slot);
    let behind = SLOT * (header.count() - slot - 1);
    if behind > 0 {
        page.shift(slot_at(slot + 1), slot_at(slot), behind);
    }
    header.count -= 1;
    header.run = 0;
    release(&mut header, entry.off, entry.entry_len(level));
    page.write(AT_COUNT, &header.encode()[..10]);
}

/// Heap bytes that nothing refers to any more: given back at the heap's edge, garbage elsewhere.
fn release(header: &mut Header, off: u16, len: usize) {
    if off == header.heap && len > 0 {
        header.heap += len as u16;
    } else {
        header.garbage += len as u16;
    }
}

/// Gives the entry at `slot` another value; `false`, and nothing changed, when the page has no room.
pub(crate) fn replace<P: PageWrite>(page: &mut P, slot: usize, value: &[u8]) -> bool {
    let entry = Slot::read(page.view(), slot);
    let old_len = entry.value_len(0);
    if value.len() <= old_len {
        overwrite(page, &entry, value);
        if value.len() < old_len {
            shrink(page, slot, entry, value.len());
        }
        return true;
    }
    grow(page, slot, entry, value)
}

/// Writes only the stretches of `value` that differ from what is there.
fn overwrite<P: PageWrite>(page: &mut P, entry: &Slot, value: &[u8]) {
    let at = entry.off as usize + entry.len as usize;
    let mut old = Vec::with_capacity(value.len());
    page.view().copy_to(at, value.len(), &mut old);
    for (from, to) in differences(&old, value) {
        page.write(at + from, &value[from..to]);
    }
}

/// Stretches where `old` and `new` differ; those less than eight bytes apart are one, because a redo
/// operation costs about that much.
fn differences<'a>(old: &'a [u8], new: &'a [u8]) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mut next = 0;
    std::iter::from_fn(move || {
        let from = next + old[next..].iter().zip(&new[next..]).position(|(a, b)| a != b)?;
        let mut to = from + 1;
        for i in from + 1..new.len().min(old.len()) {
            if old[i] != new[i] {
                to = i + 1;
            } else if i - to >= 8 {
                break;
            }
        }
        next = to;
        Some((from, to))
    })
}

fn shrink<P: PageWrite>(page: &mut P, slot: usize, mut entry: Slot, value_len: usize) {
    let mut header = Header::read(page.view());
    header.garbage += (entry.value_len(0) - value_len) as u16;
    entry.word = value_len as u32;
    page.write(slot_at(slot) + 8, &entry.word.to_le_bytes());
    page.write(AT_COUNT + 4, &header.garbage.to_le_bytes());
}

/// Writes a longer value as a new entry.
fn grow<P: PageWrite>(page: &mut P, slot: usize, entry: Slot, value: &[u8]) -> bool {
    let mut header = Header::read(page.view());
    let need = entry.len as usize + value.len();
    let old_len = entry.entry_len(0);
    if header.free() + old_len < need {
        return false;
    }
    let mut suffix = Vec::with_capacity(entry.len as usize);
    page.view().copy_to(entry.off as usize, entry.len as usize, &mut suffix);
    release(&mut header, entry.off, old_len);
    if header.gap() < need {
        bury(page, slot, &header);
        header = compact(page);
    }
    header.heap -= need as u16;
    write_entry(page, header.heap, &suffix, value);
    let entry = Slot {
        off: header.heap,
        len: suffix.len() as u16,
        word: value.len() as u32,
        ..entry
    };
    page.write(slot_at(slot), &entry.encode());
    page.write(AT_COUNT, &header.encode()[..6]);
    true
}

/// Makes the entry of `slot` empty, so that compaction drops its bytes.
fn bury<P: PageWrite>(page: &mut P, slot: usize, header: &Header) {
    let empty = Slot {
        head: Slot::read(page.view(), slot).head,
        off: PAGE_SIZE as u16,
        len: 0,
        word: 0,
    };
    page.write(slot_at(slot), &empty.encode());
    page.write(AT_COUNT, &header.encode()[..6]);
}

fn make_gap<P: PageWrite>(page: &mut P, header: Header, need: usize) -> Header {
    if header.gap() >= need { header } else { compact(page) }
}

/// A piece of the heap that is in use: an entry (`slot`) or a fence.
#[derive(Clone, Copy)]
struct Piece {
    off: usize,
    len: usize,
    owner: Owner,
}

#[derive(Clone, Copy)]
enum Owner {
    Slot(usize),
    Lower,
    Upper,
}

/// Slides all live bytes to the end of the page; returns the new header. Afterwards nothing is garbage.
pub(crate) fn compact<P: PageWrite>(page: &mut P) -> Header {
    let mut header = Header::read(page.view());
    let mut slots: Vec<Slot> = (0..header.count()).map(|slot| Slot::read(page.view(), slot)).collect();
    let level = level_of(page.view()).unwrap_or(0);
    let mut end = PAGE_SIZE;
    let mut run = Run::default();
    for piece in live_pieces(&header, &slots, level) {
        end -= piece.len;
        run.extend(page, piece, end);
        match piece.owner {
            Owner::Slot(slot) => slots[slot].off = end as u16,
            Owner::Lower => header.lower.0 = end as u16,
            Owner::Upper => header.upper.0 = end as u16,
        }
    }
    run.flush(page);
    header.heap = end as u16;
    header.garbage = 0;
    write_slots(page, &slots);
    page.write(AT_COUNT, &header.encode());
    header
}

/// Live pieces from the end of the page downwards.
fn live_pieces(header: &Header, slots: &[Slot], level: u8) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(slots.len() + 2);
    pieces.push(Piece {
        off: header.lower.0 as usize,
        len: header.lower.1 as usize,
        owner: Owner::Lower,
    });
    pieces.push(Piece {
        off: header.upper.0 as usize,
        len: header.upper_len(),
        owner: Owner::Upper,
    });
    pieces.extend(slots.iter().enumerate().map(|(slot, entry)| Piece {
        off: entry.off as usize,
        len: entry.entry_len(level),
        owner: Owner::Slot(slot),
    }));
    pieces.sort_unstable_by_key(|piece| std::cmp::Reverse((piece.off, piece.len)));
    pieces
}

/// Adjacent pieces that move by the same distance: one move operation.
#[derive(Default)]
struct Run {
    from: usize,
    to: usize,
    len: usize,
}

impl Run {
    fn extend<P: PageWrite>(&mut self, page: &mut P, piece: Piece, to: usize) {
        let joins = piece.off + piece.len == self.from && to + piece.len == self.to;
        if joins {
            (self.from, self.to, self.len) = (piece.off, to, self.len + piece.len);
        } else if piece.len > 0 {
            self.flush(page);
            (self.from, self.to, self.len) = (piece.off, to, piece.len);
        }
    }

    fn flush<P: PageWrite>(&self, page: &mut P) {
        if self.len > 0 && self.from != self.to {
            page.shift(self.from, self.to, self.len);
        }
    }
}

fn write_slots<P: PageWrite>(page: &mut P, slots: &[Slot]) {
    let bytes: Vec<u8> = slots.iter().flat_map(Slot::encode).collect();
    if !bytes.is_empty() {
        page.write(SLOTS, &bytes);
    }
}

/// Keeps the first `count` entries and takes `upper` as the new upper fence; lengthens the prefix where the
/// closer fences allow it. The caller has checked that the fence fits (`truncated_size`).
pub(crate) fn truncate<P: PageWrite>(page: &mut P, count: usize, upper: &[u8]) {
    let mut header = Header::read(page.view());
    let level = level_of(page.view()).unwrap_or(0);
    for slot in count..header.count() {
        let entry = Slot::read(page.view(), slot);
        header.garbage += entry.entry_len(level) as u16;
    }
    header.garbage += header.upper_len() as u16;
    header.upper = (0, 0);
    header.count = count as u16;
    header.run = 0;
    if header.gap() < upper.len() {
        page.write(AT_COUNT, &header.encode());
        header = compact(page);
    }
    header.heap -= upper.len() as u16;
    header.upper = (header.heap, upper.len() as u16);
    if !upper.is_empty() {
        page.write(header.heap as usize, upper);
    }
    page.write(AT_COUNT, &header.encode());
    lengthen_prefix(page);
}

/// Cuts as many bytes from every key as both fences share: offsets in the slots advance, entries stay.
fn lengthen_prefix<P: PageWrite>(page: &mut P) {
    let mut header = Header::read(page.view());
    let longer = common_prefix(&lower_fence(page.view()), upper_fence(page.view()).as_deref());
    let cut = longer.saturating_sub(header.prefix as usize);
    if cut == 0 {
        return;
    }
    let slots: Vec<Slot> = (0..header.count())
        .map(|slot| cut_suffix(page.view(), slot, cut))
        .collect();
    header.prefix = longer as u16;
    header.garbage += (cut * slots.len()) as u16;
    write_slots(page, &slots);
    page.write(AT_COUNT, &header.encode());
}

fn cut_suffix(page: impl PageRead, slot: usize, cut: usize) -> Slot {
    let old = Slot::read(page, slot);
    let (off, len) = (old.off as usize + cut, (old.len as usize).saturating_sub(cut));
    Slot {
        head: head_at(page, off, len),
        off: off as u16,
        len: len as u16,
        word: old.word,
    }
}

/// Bytes in use on the page: what a page of the same content without garbage would take.
pub(crate) fn used(header: &Header) -> usize {
    PAGE_SIZE - header.free()
}
