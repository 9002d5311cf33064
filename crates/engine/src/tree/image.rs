//! A page built in private memory: the new page of a split, the result of a merge.

use std::cmp::Ordering;

use super::edit;
use super::layout::{
    AT_COUNT, AT_KIND, AT_NEXT, Header, KIND_TREE, NO_UPPER, PAGE_SIZE, PageRead, PageWrite, Slot, common_prefix,
    copy_key, level_of, slot_at,
};

/// Sixteen KiB that no other thread sees, with the same reading and writing functions as a latched page.
#[derive(Clone)]
pub(crate) struct Image {
    bytes: Box<[u8]>,
}

impl Image {
    /// An empty tree page between the fences (`upper` `None`: right edge of the tree).
    pub fn new(level: u8, lower: &[u8], upper: Option<&[u8]>) -> Image {
        let mut image = Image {
            bytes: vec![0; PAGE_SIZE].into_boxed_slice(),
        };
        image.bytes[AT_KIND] = KIND_TREE;
        image.bytes[AT_KIND + 1] = level;
        image.bytes[AT_KIND + 2] = 1;
        let lower_at = PAGE_SIZE - lower.len();
        let upper_at = lower_at - upper.map_or(0, <[u8]>::len);
        image.bytes[lower_at..].copy_from_slice(lower);
        image.bytes[upper_at..lower_at].copy_from_slice(upper.unwrap_or(&[]));
        let header = Header {
            count: 0,
            heap: upper_at as u16,
            garbage: 0,
            last: 0,
            run: 0,
            prefix: common_prefix(lower, upper) as u16,
            lower: (lower_at as u16, lower.len() as u16),
            upper: (upper_at as u16, upper.map_or(NO_UPPER, |fence| fence.len() as u16)),
        };
        image.write(AT_COUNT, &header.encode());
        image
    }

    /// A private copy of a page.
    pub fn copy_of(page: impl PageRead) -> Image {
        let mut bytes = Vec::with_capacity(PAGE_SIZE);
        page.copy_to(0, PAGE_SIZE, &mut bytes);
        bytes.resize(PAGE_SIZE, 0);
        Image {
            bytes: bytes.into_boxed_slice(),
        }
    }

    /// Adds an entry behind the others; `false` when it does not fit.
    pub fn push(&mut self, key: &[u8], value: &[u8], word: u32) -> bool {
        let count = Header::read(self.view()).count();
        edit::insert(self, count, key, value, word)
    }

    /// Adds slots `from..to` of `source` behind the others; `false` when they do not fit.
    pub fn push_all(&mut self, source: &Image, from: usize, to: usize) -> bool {
        let header = Header::read(source.view());
        let level = level_of(source.view()).unwrap_or(0);
        let mut key = Vec::new();
        (from..to).all(|slot| {
            key.clear();
            copy_key(source.view(), &header, slot, &mut key);
            let entry = Slot::read(source.view(), slot);
            let value_at = entry.off as usize + entry.len as usize;
            self.push(
                &key,
                &source.bytes[value_at..value_at + entry.value_len(level)],
                entry.word,
            )
        })
    }

    /// Forgets that the entries came in order: the next insert here starts a new run.
    pub fn forget_run(&mut self) {
        let header = Header {
            last: 0,
            run: 0,
            ..Header::read(self.view())
        };
        self.write(AT_COUNT, &header.encode());
    }

    /// Makes `page` this image (its LSN and identity are its own): slots and heap, not the gap between.
    pub fn install<P: PageWrite>(&self, page: &mut P) {
        let header = Header::read(self.view());
        let slots_end = slot_at(header.count());
        page.write(AT_KIND, &self.bytes[AT_KIND..AT_KIND + 4]);
        page.write(AT_NEXT, &self.bytes[AT_NEXT..slots_end]);
        if (header.heap as usize) < PAGE_SIZE {
            page.write(header.heap as usize, &self.bytes[header.heap as usize..]);
        }
    }
}

impl PageWrite for Image {
    type View<'v> = &'v [u8];

    fn view(&self) -> &[u8] {
        &self.bytes
    }

    fn write(&mut self, off: usize, bytes: &[u8]) {
        self.bytes[off..off + bytes.len()].copy_from_slice(bytes);
    }

    fn shift(&mut self, from: usize, to: usize, len: usize) {
        self.bytes.copy_within(from..from + len, to);
    }
}

impl PageRead for &[u8] {
    fn u8(self, off: usize) -> u8 {
        self.get(off).copied().unwrap_or(0)
    }

    fn u16(self, off: usize) -> u16 {
        let bytes = self.get(off..).and_then(|rest| rest.first_chunk::<2>());
        bytes.map_or(0, |two| u16::from_le_bytes(*two))
    }

    fn u32(self, off: usize) -> u32 {
        let bytes = self.get(off..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |four| u32::from_le_bytes(*four))
    }

    fn compare(self, off: usize, len: usize, with: &[u8]) -> Ordering {
        clip(self, off, len).cmp(with)
    }

    fn copy_to(self, off: usize, len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(clip(self, off, len));
    }
}

fn clip(bytes: &[u8], off: usize, len: usize) -> &[u8] {
    let start = off.min(bytes.len());
    let end = off.saturating_add(len).min(bytes.len());
    &bytes[start..end]
}
