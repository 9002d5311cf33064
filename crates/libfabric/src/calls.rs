//! Calls as they travel: parts of requests and answers, put together again.
//!
//! A part is as long as fits into a message, but for the last; so its beginning says its place, and a bit for each
//! place says which have come.

use super::protocol::{PART, Part};
use cenote_fabric::rdma::call::LIMIT;

/// Parts of the longest request or answer.
const PLACES: usize = LIMIT.div_ceil(PART);

const _: () = assert!(PLACES <= 32, "a bit for each place");

/// In the status of an answer's part: it is one of what goes into the caller's memory.
pub const FILL: u32 = 1 << 31;
/// In the status of an answer's part: there are such parts beside it.
pub const FILLED: u32 = 1 << 30;
const _: () = assert!(
    FILL & FILLED == 0 && LIMIT < FILLED as usize,
    "a length leaves both bits free"
);

/// Which parts of something have come.
#[derive(Debug)]
pub struct Places {
    total: u32,
    come: u32,
    missing: u32,
}

impl Places {
    /// None, of so many bytes.
    pub fn new(total: u32) -> Self {
        let missing = (total as usize).div_ceil(PART).max(1) as u32;
        Self {
            total,
            come: 0,
            missing,
        }
    }

    /// This one has come; whether it is of that, and had not come before.
    pub fn take(&mut self, part: &Part<'_>) -> bool {
        let bit = 1 << (part.from as usize / PART);
        let is_new = part.total == self.total && self.come & bit == 0;
        if is_new {
            self.come |= bit;
            self.missing -= 1;
        }
        is_new
    }

    /// Whether all have come.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }
}

/// A request or an answer of which not all parts have come.
#[derive(Debug)]
pub struct Whole {
    bytes: Vec<u8>,
    places: Places,
}

impl Whole {
    /// Of so many bytes, in a buffer that is there already.
    pub fn new(mut bytes: Vec<u8>, total: u32) -> Self {
        bytes.clear();
        bytes.resize(total as usize, 0);
        let places = Places::new(total);
        Self { bytes, places }
    }

    /// Bytes, all parts together.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Puts a part in its place; whether all have come. `None`: it is of something else, or has come already.
    pub fn add(&mut self, part: &Part<'_>) -> Option<bool> {
        if !self.places.take(part) {
            return None;
        }
        let from = part.from as usize;
        self.bytes
            .get_mut(from..from + part.payload.len())?
            .copy_from_slice(part.payload);
        Some(self.places.is_whole())
    }

    /// What has been put together.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The part of `bytes` that begins at `from`.
pub fn part(call: u64, status: u32, bytes: &[u8], from: usize) -> Part<'_> {
    let end = (from + PART).min(bytes.len());
    Part {
        call,
        total: bytes.len() as u32,
        from: from as u32,
        status,
        window: None,
        payload: &bytes[from..end],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bytes: &[u8]) -> Vec<Part<'_>> {
        (0..bytes.len().max(1))
            .step_by(PART)
            .map(|from| part(7, 0, bytes, from))
            .collect()
    }

    #[test]
    fn parts_in_any_order_make_the_whole_once() {
        for len in [0, 1, PART - 1, PART, PART + 1, 3 * PART, LIMIT] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let mut whole = Whole::new(vec![1; 5], len as u32);
            let mut parts = parts(&bytes);
            parts.reverse();
            let last = parts.len() - 1;
            for (i, part) in parts.iter().enumerate() {
                assert_eq!(whole.add(part), Some(i == last), "{len} bytes, part {i}");
                assert_eq!(whole.add(part), None, "twice");
            }
            assert_eq!(whole.into_bytes(), bytes);
        }
    }

    #[test]
    fn a_part_of_something_else_is_refused() {
        let bytes = vec![1; 2 * PART];
        let mut whole = Whole::new(Vec::new(), 2 * PART as u32 + 8);
        assert_eq!(whole.add(&part(7, 0, &bytes, 0)), None);
    }
}
