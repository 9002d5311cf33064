//! A run: versions of a space, sorted by key and end, that are not changed any more.
//!
//! ```text
//! entries   how the key begins │ interval │ where its bytes lie, lengths       40 bytes each, sorted
//! bytes     key, row │ key, row │ ...                                          in the order of the entries
//! ```

use cenote_base::Cts;
use std::cmp::Ordering;

/// The snapshots that see a version: from the commit that made it, up to and without the one that ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub from: Cts,
    pub to: Cts,
}

/// One version.
#[derive(Debug, Clone, Copy)]
struct Entry {
    head: u64,
    interval: Interval,
    /// Where its key begins; the row follows.
    at: u32,
    row_len: u32,
    key_len: u16,
    /// The row is deleted in this version.
    deleted: bool,
}

impl Entry {
    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.at as usize..][..usize::from(self.key_len)]
    }

    fn row<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.at as usize + usize::from(self.key_len)..][..self.row_len as usize]
    }
}

/// How a key begins, as a number: keys are in the order of these, as far as they go.
fn head_of(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(8);
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

/// What is looked for: the version of a key that a snapshot sees.
pub(super) struct Probe<'k> {
    key: &'k [u8],
    head: u64,
    snapshot: Cts,
}

impl<'k> Probe<'k> {
    pub(super) fn new(key: &'k [u8], snapshot: Cts) -> Probe<'k> {
        Probe {
            key,
            head: head_of(key),
            snapshot,
        }
    }
}

/// Versions on their way into a run, in any order.
#[derive(Default)]
pub(crate) struct Builder {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

impl Builder {
    /// Bytes that a version takes.
    pub(super) fn bytes_of(key: &[u8], row: Option<&[u8]>) -> usize {
        size_of::<Entry>() + key.len() + row.map_or(0, <[u8]>::len)
    }

    /// Adds a version of the row under `key`; without a row it is one in which the row is deleted.
    pub(super) fn push(&mut self, key: &[u8], row: Option<&[u8]>, interval: Interval) {
        assert!(
            interval.from < interval.to,
            "a version that a snapshot sees is one for a while"
        );
        let at = self.bytes.len();
        let row_bytes = row.unwrap_or_default();
        assert!(
            key.len() <= usize::from(u16::MAX) && at + key.len() + row_bytes.len() <= u32::MAX as usize,
            "places and lengths fit their fields"
        );
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(row_bytes);
        self.entries.push(Entry {
            head: head_of(key),
            interval,
            at: at as u32,
            row_len: row_bytes.len() as u32,
            key_len: key.len() as u16,
            deleted: row.is_none(),
        });
    }

    /// The run.
    pub(super) fn finish(self) -> Run {
        let Builder { mut entries, bytes } = self;
        entries.sort_unstable_by(|a, b| order((a, &bytes), (b, &bytes)));
        let mut run = Run::with_capacity(entries.len(), bytes.len());
        entries.iter().for_each(|entry| run.push(entry, &bytes));
        run
    }
}

/// By key, then by end.
fn order((a, a_bytes): (&Entry, &[u8]), (b, b_bytes): (&Entry, &[u8])) -> Ordering {
    let keys = || a.key(a_bytes).cmp(b.key(b_bytes));
    a.head
        .cmp(&b.head)
        .then_with(keys)
        .then_with(|| a.interval.to.cmp(&b.interval.to))
}

/// See the module.
#[derive(Default)]
pub(crate) struct Run {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// The greatest end of an interval.
    until: Cts,
}

impl Run {
    fn with_capacity(entries: usize, bytes: usize) -> Run {
        Run {
            entries: Vec::with_capacity(entries),
            bytes: Vec::with_capacity(bytes),
            until: Cts::ZERO,
        }
    }

    /// How many versions there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>() + self.bytes.len()
    }

    /// The greatest end of an interval.
    pub(super) fn until(&self) -> Cts {
        self.until
    }

    /// Appends an entry of other bytes, which is behind all that are there.
    fn push(&mut self, entry: &Entry, bytes: &[u8]) {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(entry.key(bytes));
        self.bytes.extend_from_slice(entry.row(bytes));
        self.entries.push(Entry { at, ..*entry });
        self.until = self.until.max(entry.interval.to);
    }

    /// Both runs' versions that are needed.
    pub(super) fn merge(a: &Run, b: &Run, is_needed: &dyn Fn(Interval) -> bool) -> Run {
        let mut merged = Run::with_capacity(a.len() + b.len(), a.bytes.len() + b.bytes.len());
        let (mut i, mut j) = (0, 0);
        loop {
            let (entry, bytes) = match (a.entries.get(i), b.entries.get(j)) {
                (None, None) => break,
                (Some(left), Some(right)) if order((left, &a.bytes), (right, &b.bytes)).is_gt() => (right, &b.bytes),
                (None, Some(right)) => (right, &b.bytes),
                (Some(left), _) => (left, &a.bytes),
            };
            match std::ptr::eq(bytes, &b.bytes) {
                true => j += 1,
                false => i += 1,
            }
            if is_needed(entry.interval) {
                merged.push(entry, bytes);
            }
        }
        merged.entries.shrink_to_fit();
        merged.bytes.shrink_to_fit();
        merged
    }

    /// The version that is looked for, if it is here: its row, or none where it is deleted. `place` is where the last
    /// one was looked for, and then where this one was.
    #[inline]
    pub(super) fn find(&self, probe: &Probe<'_>, place: &mut usize) -> Option<Option<&[u8]>> {
        *place = self.seek(probe, *place);
        let entry = self.entries.get(*place)?;
        let is_it =
            entry.head == probe.head && entry.interval.from <= probe.snapshot && entry.key(&self.bytes) == probe.key;
        is_it.then(|| (!entry.deleted).then(|| entry.row(&self.bytes)))
    }

    /// The first entry that is not below what is looked for. The search begins at `from` and widens.
    #[inline]
    fn seek(&self, probe: &Probe<'_>, from: usize) -> usize {
        let (mut low, mut high, mut step) = (from.min(self.len()), self.len(), 1);
        if low > 0 && !self.is_below(low - 1, probe) {
            // It lies before: `high` is not below, and goes down until `low` is.
            high = low - 1;
            low = 0;
            while high >= step {
                if self.is_below(high - step, probe) {
                    low = high - step + 1;
                    break;
                }
                high -= step;
                step *= 2;
            }
        } else {
            while low + step <= self.len() {
                if !self.is_below(low + step - 1, probe) {
                    high = low + step - 1;
                    break;
                }
                low += step;
                step *= 2;
            }
        }
        while low < high {
            let middle = low.midpoint(high);
            match self.is_below(middle, probe) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Whether the entry is of a lesser key, or of a version of this key that ended at the snapshot or before.
    #[inline]
    fn is_below(&self, at: usize, probe: &Probe<'_>) -> bool {
        let entry = &self.entries[at];
        if entry.head != probe.head {
            return entry.head < probe.head;
        }
        match entry.key(&self.bytes).cmp(probe.key) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => entry.interval.to <= probe.snapshot,
        }
    }
}
