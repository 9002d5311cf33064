//! The slotted page of a tree, drawn once.
//!
//! ```text
//!  0      32      64                                                16384
//!  +------+-------+------------------+-----------------+---------------+
//!  | page | tree  | slot 0 | slot 1… |  gap            | heap (grows ← )|
//!  | hdr  | hdr   | 12 bytes each    |                 | entries, fences|
//!  +------+-------+------------------+-----------------+---------------+
//!
//!  tree header                                  slot
//!  32 u16 count        slots in use             0 u32 head   first 4 bytes of the suffix, big endian, zero padded
//!  34 u16 heap         lowest used heap byte    4 u16 offset of the entry
//!  36 u16 garbage      dead heap bytes          6 u16 suffix length
//!  38 u16 last         slot of the last insert  8 u32 leaf: value length; inner: child page number
//!  40 u16 run          inserts in a row, each
//!                      just after the one before
//!  42 u16 prefix       bytes cut from every key
//!  44 u16 lower offset   46 u16 lower length
//!  48 u16 upper offset   50 u16 upper length (0xffff: no upper fence)
//! ```
//!
//! An entry is the key's suffix (the key without its first `prefix` bytes) followed by the value, so a
//! longer prefix only needs the slots rewritten. Inner entries have no value.
//!
//! Invariants:
//! - every key of the page lies in `[lower, upper)`; `prefix` is at most the common prefix of both fences,
//!   so every key that belongs here starts with those bytes, and they can be read from the lower fence;
//! - slot 0 of an inner page has the lower fence as its key; child `i` covers `[key i, key i+1)`;
//! - keys rise strictly; `64 + 12 * count <= heap`; heap bytes = live entries + fences + garbage.

use std::cmp::Ordering;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 16384;
/// Page kind of leaf and inner pages (byte 12 of the page header).
pub const KIND_TREE: u8 = 2;
/// Page kind of a page of a large value.
pub const KIND_OVERFLOW: u8 = 3;
/// Page kind of a page on its space's free list.
pub const KIND_FREE: u8 = 4;

/// Longest key in bytes.
pub const MAX_KEY: usize = 2048;
/// Longest value in bytes; two entries of greatest size and two fences fit in a page.
pub const MAX_VALUE: usize = 4000;

pub(crate) const AT_KIND: usize = 12;
pub(crate) const AT_NEXT: usize = 24;
pub(crate) const AT_COUNT: usize = 32;
pub(crate) const AT_PREFIX: usize = 42;
pub(crate) const SLOTS: usize = 64;
pub(crate) const SLOT: usize = 12;
pub(crate) const MAX_SLOTS: usize = (PAGE_SIZE - SLOTS) / SLOT;
pub(crate) const NO_UPPER: u16 = u16::MAX;
pub(crate) const ROOT: u32 = 1;
const _: () = {
    assert!(
        AT_KIND < AT_NEXT && AT_NEXT + 4 <= AT_COUNT,
        "a page's words do not overlap"
    );
    assert!(
        AT_COUNT + 2 <= AT_PREFIX && AT_PREFIX < SLOTS,
        "a page's words lie before its slots"
    );
    assert!(
        MAX_SLOTS < NO_UPPER as usize,
        "no slot has the number that says there is none"
    );
};

const _: () = assert!(SLOTS + 2 * MAX_KEY + 2 * (MAX_KEY + MAX_VALUE + SLOT) <= PAGE_SIZE);

/// Read access to the bytes of a page. Every function is total: bytes outside the page read as zero or are
/// left out, because an optimistic reader may follow an offset that a writer is just changing.
pub(crate) trait PageRead: Copy {
    fn u8(self, off: usize) -> u8;
    fn u16(self, off: usize) -> u16;
    fn u32(self, off: usize) -> u32;
    fn compare(self, off: usize, len: usize, with: &[u8]) -> Ordering;
    fn copy_to(self, off: usize, len: usize, out: &mut Vec<u8>);
}

/// Write access to the bytes of a page under its exclusive latch; each call is one redo operation.
pub(crate) trait PageWrite {
    type View<'v>: PageRead
    where
        Self: 'v;
    fn view(&self) -> Self::View<'_>;
    fn write(&mut self, off: usize, bytes: &[u8]);
    fn shift(&mut self, from: usize, to: usize, len: usize);
}

/// The tree header, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub count: u16,
    pub heap: u16,
    pub garbage: u16,
    pub last: u16,
    pub run: u16,
    pub prefix: u16,
    pub lower: (u16, u16),
    pub upper: (u16, u16),
}

impl Header {
    pub fn read(page: impl PageRead) -> Header {
        let at = |i: usize| page.u16(AT_COUNT + 2 * i);
        Header {
            count: at(0),
            heap: at(1),
            garbage: at(2),
            last: at(3),
            run: at(4),
            prefix: at(5),
            lower: (at(6), at(7)),
            upper: (at(8), at(9)),
        }
    }

    pub fn encode(&self) -> [u8; 20] {
        let words = [
            self.count,
            self.heap,
            self.garbage,
            self.last,
            self.run,
            self.prefix,
            self.lower.0,
            self.lower.1,
            self.upper.0,
            self.upper.1,
        ];
        let mut out = [0; 20];
        for (bytes, word) in out.chunks_exact_mut(2).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    pub fn count(&self) -> usize {
        (self.count as usize).min(MAX_SLOTS)
    }

    /// Bytes between the slots and the heap.
    pub fn gap(&self) -> usize {
        (self.heap as usize).saturating_sub(SLOTS + SLOT * self.count())
    }

    /// Bytes that an insert can have, after compaction.
    pub fn free(&self) -> usize {
        self.gap() + self.garbage as usize
    }

    pub fn has_upper(&self) -> bool {
        self.upper.1 != NO_UPPER
    }

    pub fn upper_len(&self) -> usize {
        if self.has_upper() { self.upper.1 as usize } else { 0 }
    }

    /// Whether the numbers keep slots and heap inside the page: asked before a page is changed.
    #[inline]
    pub fn is_sound(&self) -> bool {
        let slots_end = SLOTS + SLOT * self.count as usize;
        slots_end <= self.heap as usize
            && self.heap as usize + self.garbage as usize <= PAGE_SIZE
            && self.prefix <= self.lower.1
            && self.reaches(self.lower.0, self.lower.1 as usize)
            && self.reaches(self.upper.0, self.upper_len())
    }

    /// Whether `len` bytes at `off` lie in the heap.
    #[inline]
    pub fn reaches(&self, off: u16, len: usize) -> bool {
        len == 0 || (off >= self.heap && off as usize + len <= PAGE_SIZE)
    }

    /// Counts an insert at `slot` into the ascending run.
    pub fn note_insert(&mut self, slot: u16) {
        let follows = self.count > 0 && slot == self.last.wrapping_add(1);
        self.run = if follows { self.run.saturating_add(1) } else { 0 };
        self.last = slot;
    }
}

/// One slot, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub head: u32,
    pub off: u16,
    pub len: u16,
    pub word: u32,
}

impl Slot {
    pub fn read(page: impl PageRead, slot: usize) -> Slot {
        let at = slot_at(slot);
        Slot {
            head: page.u32(at),
            off: page.u16(at + 4),
            len: page.u16(at + 6),
            word: page.u32(at + 8),
        }
    }

    pub fn encode(&self) -> [u8; SLOT] {
        let mut out = [0; SLOT];
        out[..4].copy_from_slice(&self.head.to_le_bytes());
        out[4..6].copy_from_slice(&self.off.to_le_bytes());
        out[6..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..].copy_from_slice(&self.word.to_le_bytes());
        out
    }

    /// Heap bytes of the entry on a page of `level`.
    pub fn entry_len(&self, level: u8) -> usize {
        self.len as usize + self.value_len(level)
    }

    pub fn value_len(&self, level: u8) -> usize {
        if level == 0 { self.word as usize & 0xffff } else { 0 }
    }
}

#[inline(always)]
pub(crate) fn slot_at(slot: usize) -> usize {
    SLOTS + SLOT * slot
}

/// The first four bytes of a key suffix, so that comparing heads compares keys as far as they go.
#[inline(always)]
pub(crate) fn head_of(suffix: &[u8]) -> u32 {
    match *suffix {
        [a, b, c, d, ..] => u32::from_be_bytes([a, b, c, d]),
        [a, b, c] => u32::from_be_bytes([a, b, c, 0]),
        [a, b] => u32::from_be_bytes([a, b, 0, 0]),
        [a] => u32::from_be_bytes([a, 0, 0, 0]),
        [] => 0,
    }
}

/// The head of the `len` bytes at `off` of a page.
#[inline(always)]
pub(crate) fn head_at(page: impl PageRead, off: usize, len: usize) -> u32 {
    if off + 4 > PAGE_SIZE {
        return head_at_end(page, off, len);
    }
    let behind = u32::MAX.checked_shr(8 * len as u32).unwrap_or(0);
    page.u32(off).swap_bytes() & !behind
}

#[cold]
fn head_at_end(page: impl PageRead, off: usize, len: usize) -> u32 {
    let mut bytes = Vec::with_capacity(4);
    page.copy_to(off, len.min(4), &mut bytes);
    head_of(&bytes)
}

/// Level of a tree page, 0 for a leaf; `None` when the page is no tree page (or is being replaced).
#[inline(always)]
pub(crate) fn level_of(page: impl PageRead) -> Option<u8> {
    let word = page.u16(AT_KIND);
    (word as u8 == KIND_TREE).then_some((word >> 8) as u8)
}

/// Bytes that both fences start with: what may be cut from every key between them.
pub(crate) fn common_prefix(lower: &[u8], upper: Option<&[u8]>) -> usize {
    let Some(upper) = upper else { return 0 };
    lower.iter().zip(upper).take_while(|(a, b)| a == b).count()
}

/// Appends the whole key of `slot`.
pub(crate) fn copy_key(page: impl PageRead, header: &Header, slot: usize, out: &mut Vec<u8>) {
    let entry = Slot::read(page, slot);
    page.copy_to(header.lower.0 as usize, header.prefix as usize, out);
    page.copy_to(entry.off as usize, entry.len as usize, out);
}

/// Appends the value of leaf slot `slot`.
#[inline(always)]
pub(crate) fn copy_value(page: impl PageRead, slot: usize, out: &mut Vec<u8>) {
    let at = slot_at(slot);
    let (off, len, value) = (page.u16(at + 4), page.u16(at + 6), page.u16(at + 8));
    page.copy_to(off as usize + len as usize, value as usize, out);
}

/// Whether all slots and entries of a tree page lie inside it and the heap adds up: asked before all of them are
/// worked on.
pub(crate) fn is_sound(page: impl PageRead) -> bool {
    let header = Header::read(page);
    let Some(level) = level_of(page) else { return false };
    let mut live = header.lower.1 as usize + header.upper_len();
    let mut slot_fits = |slot| {
        let entry = Slot::read(page, slot);
        live += entry.entry_len(level);
        header.reaches(entry.off, entry.entry_len(level))
    };
    header.is_sound()
        && (0..header.count()).all(&mut slot_fits)
        && live + header.garbage as usize == PAGE_SIZE - header.heap as usize
}

/// Whether `key` lies between the page's fences.
pub(crate) fn covers(page: impl PageRead, key: &[u8]) -> bool {
    let header = Header::read(page);
    let (lower, upper) = (header.lower, header.upper);
    page.compare(lower.0 as usize, lower.1 as usize, key) != Ordering::Greater
        && (!header.has_upper() || page.compare(upper.0 as usize, upper.1 as usize, key) == Ordering::Greater)
}

/// The lower fence, empty at the left edge of the tree.
pub(crate) fn lower_fence(page: impl PageRead) -> Vec<u8> {
    let header = Header::read(page);
    let mut out = Vec::with_capacity(header.lower.1 as usize);
    page.copy_to(header.lower.0 as usize, header.lower.1 as usize, &mut out);
    out
}

/// The upper fence, `None` at the right edge of the tree.
pub(crate) fn upper_fence(page: impl PageRead) -> Option<Vec<u8>> {
    let header = Header::read(page);
    header.has_upper().then(|| {
        let mut out = Vec::with_capacity(header.upper_len());
        page.copy_to(header.upper.0 as usize, header.upper_len(), &mut out);
        out
    })
}

/// Page number of child `slot`.
#[inline(always)]
pub(crate) fn child_at(page: impl PageRead, slot: usize) -> u32 {
    page.u32(slot_at(slot) + 8)
}
