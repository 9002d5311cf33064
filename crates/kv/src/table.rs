//! A table that grows a bucket at a time (linear hashing): of the keys, and one of the fields of each hash.
//!
//! ```text
//!   table (64 B):  0 u64 buckets in use   8 u64 entries   16 u64 first segment   24 u64 directory, or null
//!   first segment: buckets 0 to 8191, made twice as long by copying while there are fewer
//!   directory:     u64 address of a segment of 8192 buckets each, for those from 8192 on
//!   bucket:        u64 address of its first entry, or null
//! ```
//!
//! With `top` the greatest power of two up to the number of buckets `n`, a hash is in bucket `hash mod 2 top` if there
//! is one, else in `hash mod top`. To grow, bucket `n - top` is split: those of its entries whose hash has bit `top` go
//! to the new bucket `n`. That changes some words in one step.
//!
//! Read backwards (the lowest bit first), the hashes of a bucket are an interval, and splitting cuts it in two. So a
//! *cursor* is a place among the hashes read backwards: whatever is split meanwhile, an interval begins there, and what
//! lies behind it has not been told of, and what lies before has.

use super::entry::{Draft, Entry, NEXT};
use super::heap::{Heap, offset};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Bytes of a table's object.
const TABLE: u64 = 64;
const BUCKETS: u64 = 0;
const ENTRIES: u64 = 8;
const FIRST: u64 = 16;
const DIRECTORY: u64 = 24;
/// Buckets of a new table.
const BUCKETS_MIN: u64 = 8;
const SEGMENT: u64 = 8192;
/// Hashes have 32 bits: more buckets would be empty.
const BUCKETS_MAX: u64 = 1 << 31;
/// Segments of a new directory.
const DIRECTORY_MIN: u64 = 64;
/// More entries than a space has room for.
const ENTRIES_MAX: u64 = 1 << 48;

const _: () = {
    assert!(BUCKETS + 8 <= ENTRIES && ENTRIES + 8 <= FIRST && FIRST + 8 <= DIRECTORY && DIRECTORY + 8 <= TABLE);
    assert!(BUCKETS_MIN.is_power_of_two() && SEGMENT.is_power_of_two() && BUCKETS_MAX.is_power_of_two());
    assert!(BUCKETS_MIN <= SEGMENT && SEGMENT < BUCKETS_MAX);
    assert!(
        DIRECTORY_MIN.is_power_of_two(),
        "a directory is enlarged at powers of two"
    );
};

/// A table, as it was when it was looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    at: GlobalAddress,
    buckets: u64,
    pub(super) entries: u64,
    first: GlobalAddress,
    directory: GlobalAddress,
}

/// Where an entry is, or would be.
pub(super) enum Place {
    Found(Entry),
    /// The bucket's word.
    Missing(GlobalAddress),
}

/// The entries of a bucket, one after the other.
struct Chain {
    /// The word that leads to the next one.
    link: GlobalAddress,
    at: GlobalAddress,
    /// One that was told of, kept twice as long each time: a circle comes back to it.
    passed: GlobalAddress,
    told: u64,
}

impl Chain {
    #[inline]
    fn of(heap: &Heap, bucket: GlobalAddress) -> Result<Self> {
        Ok(Self {
            link: bucket,
            at: heap.word(bucket)?,
            passed: GlobalAddress::NULL,
            told: 0,
        })
    }

    #[inline]
    fn next(&mut self, heap: &Heap) -> Result<Option<Entry>> {
        let at = self.at;
        if at.is_null() {
            return Ok(None);
        }
        if at == self.passed {
            return Err(Error::Corrupt(format!("the bucket with the entry at {at} is a circle")));
        }
        let entry = Entry::read(heap, at, self.link)?;
        self.told += 1;
        if self.told.is_power_of_two() {
            self.passed = at;
        }
        (self.link, self.at) = (offset(at, NEXT)?, entry.next());
        Ok(Some(entry))
    }
}

impl Table {
    /// A new one that nothing refers to yet.
    pub(super) fn make(heap: &mut Heap) -> Result<Self> {
        let at = heap.alloc(TABLE)?;
        let first = match heap.alloc(BUCKETS_MIN * 8) {
            Ok(first) => first,
            Err(error) => {
                heap.free(at)?;
                return Err(error);
            }
        };
        let words = [BUCKETS_MIN, 0, first.raw(), 0];
        heap.write(at, words.map(u64::to_ne_bytes).as_flattened())?;
        Self::read(heap, at)
    }

    /// The step that is under way uses it, and frees it if it is taken back.
    pub(super) fn adopted(self, heap: &mut Heap) -> Result<Self> {
        let mut objects = Vec::new();
        self.each_object(heap, |at| objects.push(at))?;
        objects.into_iter().for_each(|at| heap.adopt(at));
        Ok(self)
    }

    pub(super) fn read(heap: &Heap, at: GlobalAddress) -> Result<Self> {
        let mut bytes = [[0; 8]; 4];
        heap.read(at, bytes.as_flattened_mut())?;
        let [buckets, entries, first, directory] = bytes.map(u64::from_ne_bytes);
        if !(BUCKETS_MIN..=BUCKETS_MAX).contains(&buckets) {
            return Err(Error::Corrupt(format!("a table of {buckets} buckets at {at}")));
        }
        if entries > ENTRIES_MAX {
            return Err(Error::Corrupt(format!("a table of {entries} entries at {at}")));
        }
        Ok(Self {
            at,
            buckets,
            entries,
            first: GlobalAddress::from_raw(first),
            directory: GlobalAddress::from_raw(directory),
        })
    }

    pub(super) fn at(&self) -> GlobalAddress {
        self.at
    }

    pub(super) fn buckets(&self) -> u64 {
        self.buckets
    }

    /// The bucket of a hash.
    #[inline(always)]
    fn index(&self, hash: u32) -> u64 {
        let (hash, top) = (u64::from(hash), self.top());
        let wide = hash & (2 * top - 1);
        if wide < self.buckets { wide } else { hash & (top - 1) }
    }

    #[inline(always)]
    fn top(&self) -> u64 {
        1 << (63 - self.buckets.leading_zeros())
    }

    /// The word of a bucket.
    #[inline]
    fn bucket(&self, heap: &Heap, index: u64) -> Result<GlobalAddress> {
        if index < SEGMENT {
            return offset(self.first, 8 * index);
        }
        let segment = heap.word(offset(self.directory, 8 * (index / SEGMENT - 1))?)?;
        offset(segment, 8 * (index % SEGMENT))
    }

    /// The word of a hash's bucket; null if it cannot be told.
    #[inline]
    pub(super) fn place_of(&self, heap: &Heap, hash: u32) -> GlobalAddress {
        self.bucket(heap, self.index(hash)).unwrap_or(GlobalAddress::NULL)
    }

    /// The entry of a key, or where it would be.
    #[inline]
    pub(super) fn find(&self, heap: &Heap, hash: u32, key: &[u8]) -> Result<Place> {
        let bucket = self.bucket(heap, self.index(hash))?;
        let mut chain = Chain::of(heap, bucket)?;
        while let Some(entry) = chain.next(heap)? {
            if entry.is_of(heap, hash, key)? {
                return Ok(Place::Found(entry));
            }
        }
        Ok(Place::Missing(bucket))
    }

    /// Makes an entry the first of the bucket whose word is `bucket`, in one store. The table may grow before: what
    /// fails has changed nothing.
    pub(super) fn insert(
        &mut self,
        heap: &mut Heap,
        draft: &Draft<'_>,
        bucket: GlobalAddress,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let mut bucket = bucket;
        if self.entries >= self.buckets && self.buckets < BUCKETS_MAX {
            self.grow(heap)?;
            bucket = self.bucket(heap, self.index(draft.hash))?;
        }
        let next = heap.word(bucket)?;
        let entry = draft.make(heap, next, scratch)?;
        heap.put(bucket, entry.raw())?;
        self.entries += 1;
        Ok(())
    }

    /// Puts another entry in the place of one, in one store. The former is not freed.
    pub(super) fn replace(
        &self,
        heap: &mut Heap,
        former: &Entry,
        draft: &Draft<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let entry = draft.make(heap, former.next(), scratch)?;
        heap.put(former.link, entry.raw())
    }

    /// Takes an entry out, in one store. It is not freed.
    pub(super) fn unlink(&mut self, heap: &mut Heap, entry: &Entry) -> Result<()> {
        heap.put(entry.link, entry.next().raw())?;
        self.entries = self.entries.saturating_sub(1);
        Ok(())
    }

    /// Writes the number of entries down. A process that is killed before leaves it wrong: the next start counts.
    pub(super) fn note_entries(&self, heap: &mut Heap) -> Result<()> {
        heap.put(offset(self.at, ENTRIES)?, self.entries)
    }

    /// One bucket more. If there is no room for that, chains get longer.
    fn grow(&mut self, heap: &mut Heap) -> Result<()> {
        let former = *self;
        let mark = heap.begin();
        match self.make_room(heap).and_then(|()| self.split(heap)) {
            Ok(()) => heap.commit(),
            Err(error) => {
                // What it has allocated is freed: nothing of it may stay in the copy of the words.
                *self = former;
                heap.roll_back(mark)?;
                match error {
                    Error::Full(_) => Ok(()),
                    error => Err(error),
                }
            }
        }
    }

    /// Sees to it that the next bucket has a word.
    fn make_room(&mut self, heap: &mut Heap) -> Result<()> {
        if self.buckets < SEGMENT {
            if self.buckets.is_power_of_two() {
                self.first = enlarged(heap, self.first, 8 * self.buckets, offset(self.at, FIRST)?)?;
            }
            return Ok(());
        }
        if self.buckets.is_multiple_of(SEGMENT) {
            self.add_segment(heap, self.buckets / SEGMENT - 1)?;
        }
        Ok(())
    }

    fn add_segment(&mut self, heap: &mut Heap, n: u64) -> Result<()> {
        let word = offset(self.at, DIRECTORY)?;
        if self.directory.is_null() {
            self.directory = heap.alloc(8 * DIRECTORY_MIN)?;
            heap.put(word, self.directory.raw())?;
        } else if n >= DIRECTORY_MIN && n.is_power_of_two() {
            self.directory = enlarged(heap, self.directory, 8 * n, word)?;
        }
        let segment = heap.alloc(8 * SEGMENT)?;
        heap.put(offset(self.directory, 8 * n)?, segment.raw())
    }

    /// Moves the entries that belong there to the next bucket.
    fn split(&mut self, heap: &mut Heap) -> Result<()> {
        let (new, top) = (self.buckets, self.top());
        let (from, to) = (self.bucket(heap, new - top)?, self.bucket(heap, new)?);
        let (mut chain, mut link, mut moved) = (Chain::of(heap, from)?, from, GlobalAddress::NULL);
        while let Some(entry) = chain.next(heap)? {
            if u64::from(entry.hash()) & top == 0 {
                link = offset(entry.at, NEXT)?;
            } else {
                heap.put(link, entry.next().raw())?;
                heap.put(offset(entry.at, NEXT)?, moved.raw())?;
                moved = entry.at;
            }
        }
        heap.put(to, moved.raw())?;
        heap.put(offset(self.at, BUCKETS)?, new + 1)?;
        self.buckets = new + 1;
        Ok(())
    }

    /// Tells of all entries in a bucket.
    pub(super) fn each_in(&self, heap: &Heap, index: u64, mut each: impl FnMut(&Entry) -> Result<()>) -> Result<()> {
        let mut chain = Chain::of(heap, self.bucket(heap, index)?)?;
        while let Some(entry) = chain.next(heap)? {
            each(&entry)?;
        }
        Ok(())
    }

    /// Tells of all entries.
    pub(super) fn each(&self, heap: &Heap, mut each: impl FnMut(&Entry) -> Result<()>) -> Result<()> {
        (0..self.buckets).try_for_each(|index| self.each_in(heap, index, &mut each))
    }

    /// Tells of the entries behind a cursor, as many as one bucket has; the next cursor, 0 at the end.
    pub(super) fn scan(&self, heap: &Heap, cursor: u32, each: impl FnMut(&Entry) -> Result<()>) -> Result<u32> {
        let index = self.index(cursor.reverse_bits());
        self.each_in(heap, index, each)?;
        let top = self.top();
        let is_split = index >= top || index < self.buckets - top;
        let bits = top.trailing_zeros() + u32::from(is_split);
        let begin = (index as u32).reverse_bits();
        Ok(begin.wrapping_add((1u64 << (32 - bits)) as u32))
    }

    /// The objects of the table itself: not its entries.
    pub(super) fn each_object(&self, heap: &Heap, mut each: impl FnMut(GlobalAddress)) -> Result<()> {
        each(self.at);
        each(self.first);
        if !self.directory.is_null() {
            each(self.directory);
        }
        for n in 0..self.buckets.div_ceil(SEGMENT) - 1 {
            each(heap.word(offset(self.directory, 8 * n)?)?);
        }
        Ok(())
    }
}

/// A copy of twice the size, which `word` refers to from here on.
fn enlarged(heap: &mut Heap, former: GlobalAddress, bytes: u64, word: GlobalAddress) -> Result<GlobalAddress> {
    let mut held = Vec::new();
    heap.append_to(former, bytes as usize, &mut held)?;
    let larger = heap.alloc(2 * bytes)?;
    heap.write(larger, &held)?;
    heap.put(word, larger.raw())?;
    heap.free(former)?;
    Ok(larger)
}
