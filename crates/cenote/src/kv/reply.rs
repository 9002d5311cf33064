//! What a client is answered: RESP2, or RESP3 where it has asked for that.

use super::refusal::{Refusal, TOO_MUCH};
use cenote_kv::{Entry, Store, decimal};

/// Bytes of answers that a client is given at once: a key may be asked for any number of times in one command.
pub const ANSWER_MAX: usize = 1 << 30;

/// Answers that were not sent yet.
#[derive(Debug, Default)]
pub struct Reply {
    /// As they go over the wire.
    pub bytes: Vec<u8>,
    /// Whether the client speaks RESP3.
    pub is_resp3: bool,
}

impl Reply {
    fn head(&mut self, kind: u8, number: i64) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(decimal(number, &mut [0; 20]));
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// `OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// A word.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: its first word is what programs look at.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    /// A line is one line, whatever is in the text.
    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        let printed = |byte: u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.bytes.extend(text.bytes().map(printed));
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A number.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// A string.
    pub fn string(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An array of so many that follow.
    pub fn array(&mut self, len: usize) {
        self.head(b'*', len as i64);
    }

    /// Pairs that follow: so many.
    pub fn map(&mut self, pairs: usize) {
        match self.is_resp3 {
            true => self.head(b'%', pairs as i64),
            false => self.array(2 * pairs),
        }
    }

    /// Nothing, where there could be a string.
    #[inline]
    pub fn null(&mut self) {
        let null = if self.is_resp3 { &b"_\r\n"[..] } else { b"$-1\r\n" };
        self.bytes.extend_from_slice(null);
    }

    /// Nothing, where there could be an array.
    pub fn null_array(&mut self) {
        let null = if self.is_resp3 { &b"_\r\n"[..] } else { b"*-1\r\n" };
        self.bytes.extend_from_slice(null);
    }

    /// Whether it is as long as it may become.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= ANSWER_MAX
    }

    /// Whether a string of so many bytes fits.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        len <= ANSWER_MAX.saturating_sub(self.bytes.len())
    }

    /// The string that an entry holds.
    ///
    /// # Errors
    /// `TOO_MUCH`; the store's error.
    #[inline]
    pub fn value(&mut self, store: &Store, entry: &Entry) -> Result<(), Refusal> {
        let len = store.len_of(entry)?;
        self.range(store, entry, 0, len)
    }

    /// A part of the string that an entry holds.
    ///
    /// # Errors
    /// `TOO_MUCH`; the store's error.
    #[inline]
    pub fn range(&mut self, store: &Store, entry: &Entry, from: usize, len: usize) -> Result<(), Refusal> {
        if !self.has_room(len) {
            return Err(TOO_MUCH);
        }
        self.head(b'$', len as i64);
        store.append_value(entry, from, len, &mut self.bytes)?;
        self.bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// The string that an entry holds, or nothing.
    ///
    /// # Errors
    /// `TOO_MUCH`; the store's error.
    #[inline]
    pub fn value_or_null(&mut self, store: &Store, entry: Option<&Entry>) -> Result<(), Refusal> {
        match entry {
            Some(entry) => self.value(store, entry),
            None => {
                self.null();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_kv::Keep;
    use cenote_space::{Space, SpaceOptions};

    #[test]
    fn an_answer_does_not_grow_beyond_its_limit() {
        let space = Space::dram(&SpaceOptions {
            bytes: 64 << 20,
            ..SpaceOptions::default()
        });
        let mut store = Store::open(&space.expect("memory")).expect("a store");
        store.set(b"key", &[b'v'; 100], Keep::At(0), 1).expect("room");
        let entry = store.find(b"key", 1).expect("found");
        // Zeros that are never read take no memory.
        let mut reply = Reply {
            bytes: vec![0; ANSWER_MAX - 99],
            is_resp3: false,
        };
        assert!(reply.value_or_null(&store, entry.as_ref()).is_err() && !reply.is_full());
        assert_eq!(reply.bytes.len(), ANSWER_MAX - 99);
    }
}
