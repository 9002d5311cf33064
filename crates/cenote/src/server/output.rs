//! What a client is sent: messages gathered in one buffer and written by one system call.
//!
//! ```text
//! message  | u8 type | i32 length (itself included) | body
//! ```
//!
//! Invariants:
//! - `bytes` holds whole messages, and at most one that is open (`begin` without `end`), which is the last.
//! - An open message is never written: [`OutBuffer::drop_open`] forgets it when a statement fails within a row.
//! - Nothing is allocated once the buffer has its size; one that grew beyond 256 KiB is given back after a flush, and
//!   any one while its session is parked.

use bytes::{Buf, BufMut, BytesMut};
use std::io::{self, Write};

/// Bytes gathered before a large result goes out.
pub const STREAM_BYTES: usize = 64 * 1024;
const BUFFER_BYTES: usize = 4 * 1024;
const BUFFER_BYTES_KEPT: usize = 256 * 1024;

/// The send buffer of a session.
#[derive(Debug)]
pub struct OutBuffer {
    bytes: BytesMut,
    open: Option<usize>,
}

impl OutBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        OutBuffer {
            bytes: BytesMut::new(),
            open: None,
        }
    }

    /// Bytes that wait to be written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets what waits to be written.
    pub fn forget(&mut self) {
        self.bytes.clear();
        self.open = None;
    }

    /// Whether nothing waits to be written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Opens a message; its body is appended to what is returned.
    pub fn begin(&mut self, tag: u8) -> &mut BytesMut {
        assert!(self.open.is_none(), "a message is open");
        self.make_room();
        self.open = Some(self.bytes.len());
        self.bytes.extend_from_slice(&[tag, 0, 0, 0, 0]);
        &mut self.bytes
    }

    /// Closes the open message. Fails when it is longer than the protocol can say.
    ///
    /// # Errors
    /// [`TooLong`]: the message is longer than the protocol can say.
    pub fn end(&mut self) -> Result<(), TooLong> {
        let Some(start) = self.open.take() else { return Ok(()) };
        match i32::try_from(self.bytes.len() - start - 1) {
            Ok(len) => {
                self.bytes[start + 1..start + 5].copy_from_slice(&len.to_be_bytes());
                Ok(())
            }
            Err(_) => {
                self.bytes.truncate(start);
                Err(TooLong)
            }
        }
    }

    /// Forgets the open message, if there is one.
    pub fn drop_open(&mut self) {
        if let Some(start) = self.open.take() {
            self.bytes.truncate(start);
        }
    }

    /// A whole message whose body is at hand and short.
    pub fn message(&mut self, tag: u8, body: &[u8]) {
        self.begin(tag).extend_from_slice(body);
        self.end().expect("bodies at hand are shorter than 2 GiB");
    }

    #[inline]
    fn make_room(&mut self) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(BUFFER_BYTES);
        }
    }

    /// A message without a body, such as ParseComplete.
    pub fn empty(&mut self, tag: u8) {
        self.make_room();
        self.bytes.extend_from_slice(&[tag, 0, 0, 0, 4]);
    }

    /// ReadyForQuery with the state of the transaction: `I`, `T` or `E`.
    pub fn ready_for_query(&mut self, status: u8) {
        self.make_room();
        self.bytes.extend_from_slice(&[b'Z', 0, 0, 0, 5, status]);
    }

    /// CommandComplete.
    pub fn complete(&mut self, tag: &str) {
        let body = self.begin(b'C');
        push_cstr(body, tag.as_bytes());
        self.end().expect("a tag is short");
    }

    /// ParameterStatus.
    pub fn parameter_status(&mut self, name: &str, value: &str) {
        let body = self.begin(b'S');
        push_cstr(body, name.as_bytes());
        push_cstr(body, value.as_bytes());
        self.end().expect("a setting is short");
    }

    /// Gives the memory back if nothing waits to be written.
    pub fn shrink(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }

    /// Writes all whole messages.
    ///
    /// # Errors
    /// Those of writing to the socket.
    pub fn flush(&mut self, mut to: impl Write) -> io::Result<()> {
        let whole = self.open.unwrap_or(self.bytes.len());
        if whole == 0 {
            return Ok(());
        }
        to.write_all(&self.bytes[..whole])?;
        if self.open.is_some() {
            self.bytes.advance(whole);
            self.open = Some(0);
        } else if self.bytes.capacity() > BUFFER_BYTES_KEPT {
            self.bytes = BytesMut::with_capacity(BUFFER_BYTES);
        } else {
            self.bytes.clear();
        }
        Ok(())
    }
}

impl Default for OutBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// A message longer than 2 GiB.
#[derive(Debug)]
pub struct TooLong;

/// Appends a string that ends with a zero byte; zero bytes within it are left out.
pub fn push_cstr(to: &mut BytesMut, text: &[u8]) {
    if text.contains(&0) {
        to.extend(text.iter().filter(|&&byte| byte != 0));
    } else {
        to.extend_from_slice(text);
    }
    to.put_u8(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_fails_half_way_is_never_sent() {
        let mut out = OutBuffer::new();
        out.complete("INSERT 0 1");
        out.begin(b'D').extend_from_slice(b"half");
        let mut sent = Vec::new();
        out.flush(&mut sent).unwrap();
        assert_eq!(sent, b"C\0\0\0\x0fINSERT 0 1\0");
        out.drop_open();
        out.ready_for_query(b'I');
        sent.clear();
        out.flush(&mut sent).unwrap();
        assert_eq!(sent, b"Z\0\0\0\x05I");
    }
}
