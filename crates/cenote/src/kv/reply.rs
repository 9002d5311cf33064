//! What a client is answered: RESP2, or RESP3 where it has asked for that.

use cenote_pool::kv::{Entry, Failure, Store, decimal};

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

    /// The string that an entry holds.
    #[inline]
    pub fn value(&mut self, store: &Store, entry: &Entry) -> Result<(), Failure> {
        let len = store.len_of(entry)?;
        self.range(store, entry, 0, len)
    }

    /// A part of the string that an entry holds.
    #[inline]
    pub fn range(&mut self, store: &Store, entry: &Entry, from: usize, len: usize) -> Result<(), Failure> {
        self.head(b'$', len as i64);
        store.append_value(entry, from, len, &mut self.bytes)?;
        self.bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// The string that an entry holds, or nothing.
    #[inline]
    pub fn value_or_null(&mut self, store: &Store, entry: Option<&Entry>) -> Result<(), Failure> {
        match entry {
            Some(entry) => self.value(store, entry),
            None => {
                self.null();
                Ok(())
            }
        }
    }
}
