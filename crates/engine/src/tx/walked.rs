//! What a scan by an index remembers of rows whose versions it has walked.
//!
//! An index has an entry for each version of a row that had a key of its own, and each leads to the row. A row that was
//! changed a thousand times since the snapshot would be walked a thousand times, a thousand versions each. What the
//! scan's snapshot sees of it is the same each time: it is walked once, and found here for its other entries.

use cenote_base::rt::HashMap;

/// Rows of shorter walks are not worth a copy.
const STEPS: u32 = 8;
/// Bytes that are held, before all are forgotten.
const BYTES: usize = 256 << 10;
/// Bytes of a row beside its key and its columns, about.
const ENTRY: usize = 100;

/// See the module.
#[derive(Default)]
pub(super) struct WalkedRows {
    /// By the keys of the rows: what the snapshot sees, or that it sees no row.
    rows: HashMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

impl WalkedRows {
    /// Puts what the snapshot sees of the row under this key into `row`; false: no row; None: that is not known.
    pub(super) fn get(&self, key: &[u8], row: &mut Vec<u8>) -> Option<bool> {
        if self.rows.is_empty() {
            return None;
        }
        let known = self.rows.get(key)?;
        if let Some(bytes) = known {
            row.clear();
            row.extend_from_slice(bytes);
        }
        Some(known.is_some())
    }

    /// A walk of so many steps found this row, or none.
    pub(super) fn note(&mut self, key: &[u8], row: Option<&[u8]>, steps: u32) {
        let more = ENTRY + key.len() + row.map_or(0, <[u8]>::len);
        if steps < STEPS || more > BYTES / 4 {
            return;
        }
        if self.bytes + more > BYTES {
            *self = WalkedRows::default();
        }
        if self.rows.insert(key.to_vec(), row.map(<[u8]>::to_vec)).is_none() {
            self.bytes += more;
        }
        assert!(self.bytes <= BYTES, "each row is a quarter of what is held at most");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_known_as_it_was_found() {
        let (mut walked, mut row) = (WalkedRows::default(), b"as before".to_vec());
        walked.note(b"near", Some(b"row"), STEPS - 1);
        walked.note(b"gone", None, STEPS);
        walked.note(b"far", Some(b"row"), STEPS);
        assert_eq!(walked.get(b"near", &mut row), None);
        assert_eq!(walked.get(b"gone", &mut row), Some(false));
        assert_eq!(row, b"as before");
        assert_eq!(walked.get(b"far", &mut row), Some(true));
        assert_eq!(row, b"row");
    }

    #[test]
    fn what_is_held_is_bounded() {
        let (mut walked, mut row) = (WalkedRows::default(), Vec::new());
        let long = vec![7; BYTES / 4];
        walked.note(b"too long", Some(&long), STEPS);
        assert_eq!(walked.get(b"too long", &mut row), None);
        for n in 0..100u32 {
            walked.note(&n.to_le_bytes(), Some(&long[..BYTES / 8]), STEPS);
            assert!(walked.bytes <= BYTES);
            assert_eq!(walked.get(&n.to_le_bytes(), &mut row), Some(true));
        }
        assert!(walked.rows.len() < 8);
    }
}
