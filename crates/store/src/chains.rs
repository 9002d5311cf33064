//! Tables of buckets. A table is an array of lines in segments of 1 MiB; a bucket is a line of seven entries and the
//! address of the next line, where it has more. A line that was added stays until the table is no more.

use super::entry::{Entry, State};
use super::heap::{Heap, Line, offset};
use super::layout::{LINE, WORD, table};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Entries of a line.
pub(super) const ENTRIES: usize = 7;
/// Lines of a bucket at most: none gets more, and one has more only if what links them is broken.
pub(super) const LINES_MAX: usize = 64;

/// What a process knows of a table: nothing of it changes but how many buckets of the former one are forwarded.
#[derive(Debug)]
pub(super) struct Table {
    pub address: GlobalAddress,
    pub log2: u32,
    pub previous: Option<GlobalAddress>,
    segments: Vec<GlobalAddress>,
}

/// An entry, and the word where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub at: GlobalAddress,
    pub entry: Entry,
}

impl Table {
    /// # Errors
    /// [`Error::Corrupt`] if there is none at the address.
    pub(super) fn read(heap: &Heap, address: GlobalAddress) -> Result<Self> {
        let mut header = [0; table::HEADER as usize];
        heap.read(address, &mut header)?;
        let word = |at: u64| u64::from_le_bytes(core::array::from_fn(|n| header[at as usize + n]));
        let log2 = u32::try_from(word(table::LOG2)).unwrap_or(u32::MAX);
        if word(table::MAGIC) != table::MAGIC_VALUE || !(table::SPARES_LOG2..=table::LOG2_MAX).contains(&log2) {
            return Err(Error::corrupt(format!("no table of the store is at {address}")));
        }
        let mut list = vec![0; 8 * segments(log2) as usize];
        heap.read(offset(address, table::HEADER)?, &mut list)?;
        let previous = GlobalAddress::from_raw(word(table::PREVIOUS));
        Ok(Self {
            address,
            log2,
            previous: (!previous.is_null()).then_some(previous),
            segments: super::item::addresses(&list).collect(),
        })
    }

    pub(super) fn buckets(&self) -> u64 {
        1 << self.log2
    }

    pub(super) fn bucket_of(&self, hash: u64) -> u64 {
        hash & (self.buckets() - 1)
    }

    /// The objects that it consists of, but for lines that buckets got besides.
    pub(super) fn objects(&self) -> impl Iterator<Item = GlobalAddress> {
        [self.address].into_iter().chain(self.segments.iter().copied())
    }

    /// Whether a line lies in its segments.
    pub(super) fn has_line(&self, at: GlobalAddress) -> bool {
        let of = |n: usize| segment_bytes(self.log2, n as u64);
        let has = |(n, segment): (usize, &GlobalAddress)| at.offset_from(*segment).is_some_and(|inside| inside < of(n));
        self.segments.iter().enumerate().any(has)
    }

    /// The address of a bucket's first line.
    pub(super) fn bucket(&self, bucket: u64) -> Result<GlobalAddress> {
        assert!(bucket < self.buckets(), "bucket {bucket} of 2^{}", self.log2);
        self.line_numbered(bucket)
    }

    fn line_numbered(&self, n: u64) -> Result<GlobalAddress> {
        let segment = self.segments[(n >> table::SEGMENT_LOG2) as usize];
        offset(segment, (n & ((1 << table::SEGMENT_LOG2) - 1)) * LINE)
    }

    /// A line that no bucket has, and that stays the table's whatever becomes of it.
    fn spare_line(&self, heap: &Heap) -> Result<Option<GlobalAddress>> {
        let used = offset(self.address, table::SPARES_USED)?;
        if heap.load(used)? >= spares(self.log2) {
            return Ok(None);
        }
        match heap.add(used, 1)? {
            n if n < spares(self.log2) => self.line_numbered(self.buckets() + n).map(Some),
            _ => Ok(None),
        }
    }

    /// All lines of a bucket, as long as `each` wants more.
    pub(super) fn each_line(
        &self,
        heap: &Heap,
        bucket: u64,
        mut each: impl FnMut(&Line) -> Result<bool>,
    ) -> Result<()> {
        let mut at = self.bucket(bucket)?;
        for _ in 0..LINES_MAX {
            let line = heap.line(at)?;
            if !each(&line)? {
                return Ok(());
            }
            match next(&line) {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
        Err(Error::corrupt(format!(
            "bucket {bucket} of the table at {} has no end",
            self.address
        )))
    }

    /// All words of a bucket in their order.
    pub(super) fn entries(&self, heap: &Heap, bucket: u64) -> Result<Vec<Placed>> {
        let mut entries = Vec::with_capacity(ENTRIES);
        self.each_line(heap, bucket, |line| {
            for placed in placed(line) {
                entries.push(placed?);
            }
            Ok(true)
        })?;
        Ok(entries)
    }

    /// Adds a line to a bucket; another process may have done so at the same time.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room, or it has as many as it can.
    pub(super) fn add_line(&self, heap: &Heap, bucket: u64) -> Result<()> {
        let (mut last, mut lines) = (None, 0);
        self.each_line(heap, bucket, |line| {
            (last, lines) = (Some(*line), lines + 1);
            Ok(true)
        })?;
        if lines == LINES_MAX {
            return Err(Error::Full(format!(
                "a bucket of the store's table has {LINES_MAX} lines"
            )));
        }
        let last = last.ok_or_else(|| Error::corrupt(format!("bucket {bucket} has no line")))?;
        match last.words[ENTRIES] {
            0 => {}
            word if Entry::from_raw(word) == Entry::FORWARDED => return Ok(()),
            word => {
                return Err(Error::corrupt(format!(
                    "the line at {} is followed by {word:#x}",
                    last.at
                )));
            }
        }
        let spare = self.spare_line(heap)?;
        let line = spare.map_or_else(|| heap.alloc_at(self.address.part(), LINE), Ok)?;
        if !heap.swap(offset(last.at, ENTRIES as u64 * WORD)?, 0, line.raw())? && spare.is_none() {
            heap.free(line)?;
        }
        Ok(())
    }
}

/// Spare lines of a table.
fn spares(log2: u32) -> u64 {
    1 << (log2 - table::SPARES_LOG2)
}

/// Lines of a table, spare ones included.
fn lines(log2: u32) -> u64 {
    (1 << log2) + spares(log2)
}

/// Segments of a table.
pub(super) fn segments(log2: u32) -> u64 {
    lines(log2).div_ceil(1 << table::SEGMENT_LOG2)
}

/// Bytes of a segment of a table.
pub(super) fn segment_bytes(log2: u32, n: u64) -> u64 {
    LINE * (lines(log2) - (n << table::SEGMENT_LOG2)).min(1 << table::SEGMENT_LOG2)
}

/// The words of a line.
pub(super) fn placed(line: &Line) -> impl Iterator<Item = Result<Placed>> {
    let words = line.words.iter().take(ENTRIES).enumerate();
    words.map(|(n, word)| {
        let at = offset(line.at, n as u64 * WORD)?;
        Ok(Placed {
            at,
            entry: Entry::from_raw(*word),
        })
    })
}

/// The next line of a bucket, whether or not it may still get one.
pub(super) fn next(line: &Line) -> Option<GlobalAddress> {
    let next = Entry::from_raw(line.words[ENTRIES]).item();
    (!next.is_null()).then_some(next)
}

/// Whether words of a line are about to be forwarded, or were.
pub(super) fn is_leaving(line: &Line) -> bool {
    let leaves = |word: &u64| matches!(Entry::from_raw(*word).state(), State::Forwarded | State::Frozen);
    line.words.iter().any(leaves)
}
