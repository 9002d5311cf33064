//! Going over all keys, a few buckets at a time, while others put, remove and let the table grow.
//!
//! The cursor is a bucket's number with its bits reversed, as Redis has it: the buckets that a bucket's entries go to
//! when the table grows follow each other in that order. So what is there all the time is told of at least once, and
//! twice only if the table grew meanwhile.

use super::Store;
use super::chains::{Placed, is_leaving};
use super::core::{Core, now_micros};
use super::entry::State;
use super::heap::offset;
use super::item::{HEADER, Header, KEY_MAX, Life};
use cenote_base::{Error, Result};

/// How often a bucket is looked at again because its table was left meanwhile.
const TURNS: u32 = 100;
/// Bytes of keys that one call tells of, and a bucket's more at most.
const BYTES: usize = 4 << 20;

/// Some of a store's keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scanned {
    /// The keys.
    pub keys: Vec<Vec<u8>>,
    /// Where to go on; 0: that was all.
    pub cursor: u64,
}

impl Store {
    /// The keys of the next buckets: about `count` of them, or 4 MiB, and a bucket's keys more at most. The cursor of
    /// the first call is 0, that of each other what the one before said. Any cursor is possible.
    ///
    /// # Errors
    /// Those of the space; what lies in a part that is away is passed over, and is [`Error::Timeout`] in a mirrored
    /// space, as it comes back.
    pub fn scan(&self, cursor: u64, count: usize) -> Result<Scanned> {
        let mut scanned = Scanned {
            keys: Vec::new(),
            cursor,
        };
        // Empty buckets count too: no call goes over all of a table that has few keys.
        let mut bytes = 0;
        for _ in 0..count.max(1) {
            let before = scanned.keys.len();
            scanned.cursor = self.core.scan_bucket(scanned.cursor, &mut scanned.keys)?;
            bytes += scanned.keys[before..].iter().map(Vec::len).sum::<usize>();
            if scanned.cursor == 0 || scanned.keys.len() >= count || bytes >= BYTES {
                break;
            }
        }
        Ok(scanned)
    }
}

impl Core {
    /// Adds the keys of the cursor's bucket: the next cursor.
    fn scan_bucket(&self, cursor: u64, keys: &mut Vec<Vec<u8>>) -> Result<u64> {
        self.current()?;
        for _ in 0..TURNS {
            // The cursor's low bits are those of the hashes that its bucket has.
            let view = self.settled_view(cursor)?;
            let bucket = view.table.bucket_of(cursor);
            let (mut entries, mut is_left) = (Vec::new(), false);
            view.table.each_line(&self.heap, bucket, |line| {
                is_left |= is_leaving(line);
                for placed in super::chains::placed(line) {
                    entries.push(placed?);
                }
                Ok(!is_left)
            })?;
            if !is_left {
                entries.retain(|placed| placed.entry.state() == State::Committed);
                for placed in entries {
                    keys.extend(self.key_at(placed)?);
                }
                return Ok(next_cursor(cursor, view.table.buckets() - 1));
            }
            self.refresh_from(&view)?;
        }
        Err(Error::Busy("the store's table changes faster than it is read".into()))
    }

    /// The key of an entry's item; nothing if it has expired, is a replica, or is another's by now.
    fn key_at(&self, placed: Placed) -> Result<Option<Vec<u8>>> {
        let item = placed.entry.item();
        let header = match self.header_at(item) {
            Ok(header) => header,
            Err(Error::Lost(_)) => None,
            Err(error) => return Err(error),
        };
        let is_fresh = |header: &Header| {
            header.control.life() == Life::Live && !header.has_expired(now_micros) && header.is_sane()
        };
        let Some(header) = header.filter(is_fresh) else {
            return Ok(None);
        };
        let mut bytes = vec![0; (header.key_len as usize).min(KEY_MAX)];
        let read = self.heap.read(offset(item, HEADER as u64)?, &mut bytes);
        match read.map_err(|error| self.heap.failure_at(item, error)) {
            Ok(()) => {}
            Err(Error::Lost(_) | Error::Invalid(_) | Error::OutOfBounds(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        let is_whole = !bytes.is_empty() && self.key(&bytes)?.hash == header.hash;
        Ok(is_whole.then_some(bytes))
    }
}

/// The next one after a cursor, in a table with this mask: the bits beyond it count no more.
pub(super) fn next_cursor(cursor: u64, mask: u64) -> u64 {
    (cursor | !mask).reverse_bits().wrapping_add(1).reverse_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_passes_each_bucket_once_also_while_a_table_grows() {
        let (mut cursor, mut seen) = (0, Vec::new());
        // Three buckets of a table of eight, the rest of one of 32.
        for n in 0.. {
            let mask = if n < 3 { 7 } else { 31 };
            (0..32_u64)
                .filter(|hash| hash & mask == cursor & mask)
                .for_each(|hash| seen.push(hash));
            cursor = next_cursor(cursor, mask);
            if cursor == 0 {
                break;
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..32).collect::<Vec<_>>());
    }
}
