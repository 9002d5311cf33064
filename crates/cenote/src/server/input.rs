//! What a client sends: bytes gathered from the socket, cut into messages.
//!
//! ```text
//! startup  | i32 length (itself included) | body          no type byte, at most 10,000 bytes
//! message  | u8 type | i32 length (itself included) | body
//! ```
//!
//! One buffer a session, used again until the session is parked: a message is handed out as a range of it and stays
//! valid until the next [`Input::fill`].
//!
//! Invariants:
//! - `start <= end <= buffer.len()`; the bytes between are received and not yet consumed.
//! - A length that a client claims is never trusted with memory: the buffer at most doubles with each time
//!   that it was filled to its end by bytes that really came.
//! - Lengths outside their type's limit are refused before a byte of the body is waited for.

use std::io::{self, Read};

/// Bytes of the buffer of an idle session.
const BUFFER_BYTES: usize = 8 * 1024;
/// A buffer that grew beyond this is given back once it is empty.
const BUFFER_BYTES_KEPT: usize = 256 * 1024;
/// The largest startup packet, as in PostgreSQL.
pub const STARTUP_BYTES_MAX: usize = 10_000;
/// The largest message that carries no data of the user, as in PostgreSQL.
const SMALL_MESSAGE_BYTES_MAX: usize = 10_000;
/// The largest message that carries statements, parameters or COPY data.
pub const LARGE_MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A whole message in the buffer; its body is reached by [`Input::body`].
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The type byte; 0 for a startup packet.
    pub tag: u8,
    start: usize,
    len: usize,
}

/// A message that cannot be one: the connection has lost its frame and must be closed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No message of the protocol has this type.
    #[error("invalid frontend message type {0}")]
    UnknownType(u8),
    /// The length field is below 4 or above what the type may carry.
    #[error("invalid length {length} of a message of type '{}' (at most {max} bytes)", char::from(*.tag))]
    Length {
        /// The message's type byte.
        tag: u8,
        /// The length that it claims.
        length: i64,
        /// The longest body allowed for the type.
        max: usize,
    },
    /// The first packet of a connection is not a startup packet.
    #[error("invalid length of startup packet")]
    Startup,
}

/// The receive buffer of a session.
#[derive(Debug)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes still to come of a message that is dropped.
    dropping: usize,
}

impl Input {
    /// An empty buffer.
    pub fn new() -> Self {
        Input {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            dropping: 0,
        }
    }

    /// Gives the memory back if it holds nothing; messages that were handed out are no longer valid.
    pub fn shrink(&mut self) {
        if self.start == self.end {
            self.buffer = Vec::new();
            (self.start, self.end) = (0, 0);
        }
    }

    /// Whether a message has begun to come that is not consumed.
    pub fn has_bytes(&self) -> bool {
        self.start < self.end || self.dropping > 0
    }

    /// The type byte of the next message, as soon as it is here.
    pub fn next_tag(&self) -> Option<u8> {
        self.buffer[self.start..self.end].first().copied()
    }

    /// The next message if all of it is here.
    ///
    /// # Errors
    /// [`FrameError`]: a message of an unknown kind, or of a length that none has.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        let Some(&[tag, a, b, c, d]) = self.buffer[self.start..self.end].first_chunk::<5>() else {
            return self.refuse_early();
        };
        let length = i32::from_be_bytes([a, b, c, d]);
        let max = body_bytes_max(tag)?;
        let len = match usize::try_from(i64::from(length) - 4) {
            Ok(len) if len <= max => len,
            _ => {
                return Err(FrameError::Length {
                    tag,
                    length: length.into(),
                    max,
                });
            }
        };
        Ok(self.take(tag, 5, len))
    }

    /// Drops the message that has begun, of whose header all is here, and what is still to come of it; its type.
    pub fn drop_message(&mut self) -> u8 {
        let here = &self.buffer[self.start..self.end];
        let (tag, length) = (here[0], i32::from_be_bytes([here[1], here[2], here[3], here[4]]));
        self.dropping = 1 + length as usize - here.len();
        self.start = self.end;
        tag
    }

    /// The type byte alone is enough to refuse what is not our protocol.
    fn refuse_early(&self) -> Result<Option<Message>, FrameError> {
        match self.next_tag() {
            Some(tag) => body_bytes_max(tag).map(|_| None),
            None => Ok(None),
        }
    }

    /// The first packet of a connection if all of it is here.
    ///
    /// # Errors
    /// [`FrameError`]: a packet of a length that none has.
    pub fn next_startup(&mut self) -> Result<Option<Message>, FrameError> {
        let Some(length) = self.buffer[self.start..self.end].first_chunk::<4>() else {
            return Ok(None);
        };
        let length = i32::from_be_bytes(*length);
        match usize::try_from(length) {
            Ok(length) if (8..=STARTUP_BYTES_MAX).contains(&length) => Ok(self.take(0, 4, length - 4)),
            _ => Err(FrameError::Startup),
        }
    }

    fn take(&mut self, tag: u8, header: usize, len: usize) -> Option<Message> {
        if self.end - self.start < header + len {
            return None;
        }
        let start = self.start + header;
        self.start = start + len;
        Some(Message { tag, start, len })
    }

    /// The body of a message that was handed out since the last [`fill`](Self::fill).
    pub fn body(&self, message: Message) -> &[u8] {
        &self.buffer[message.start..message.start + message.len]
    }

    /// Reads once from the client; 0 means that it has closed the connection.
    ///
    /// # Errors
    /// Those of reading from the socket.
    pub fn fill(&mut self, mut from: impl Read) -> io::Result<usize> {
        self.make_room();
        let read = from.read(&mut self.buffer[self.end..])?;
        self.end += read;
        let dropped = self.dropping.min(self.end - self.start);
        self.start += dropped;
        self.dropping -= dropped;
        Ok(read)
    }

    /// Bytes that the buffer will have for what [`fill`](Self::fill) reads next.
    pub fn bytes_to_fill(&self) -> usize {
        let (here, len) = (self.end - self.start, self.buffer.len());
        match here {
            0 if len == 0 || len > BUFFER_BYTES_KEPT => BUFFER_BYTES,
            1.. if self.end == len && here > len / 2 => 2 * len,
            _ => len,
        }
    }

    fn make_room(&mut self) {
        let bytes = self.bytes_to_fill();
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if bytes != self.buffer.len() {
                self.buffer = vec![0; bytes];
            }
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            self.buffer.resize(bytes, 0);
        }
    }
}

impl Default for Input {
    fn default() -> Self {
        Self::new()
    }
}

/// The longest body that a message of this type may have.
///
/// # Errors
/// No message of clients has this type.
pub fn body_bytes_max(tag: u8) -> Result<usize, FrameError> {
    match tag {
        b'Q' | b'P' | b'B' | b'd' | b'F' => Ok(LARGE_MESSAGE_BYTES_MAX),
        b'E' | b'D' | b'C' | b'S' | b'H' | b'X' | b'c' | b'f' | b'p' => Ok(SMALL_MESSAGE_BYTES_MAX),
        _ => Err(FrameError::UnknownType(tag)),
    }
}

/// Reads the fields of a message's body in order; `None` where the body ends too early.
#[derive(Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next 16 bits.
    pub fn i16(&mut self) -> Option<i16> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i16::from_be_bytes(*field))
    }

    /// The next 32 bits.
    pub fn i32(&mut self) -> Option<i32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*field))
    }

    /// A count: 16 bits that are not negative.
    pub fn count(&mut self) -> Option<usize> {
        usize::try_from(self.i16()?).ok()
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    /// The bytes up to the next zero byte, which is consumed.
    pub fn cstr(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let field = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(field)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(bytes: &[u8], chunk: usize) -> Vec<(u8, Vec<u8>)> {
        let mut input = Input::new();
        let mut got = Vec::new();
        for part in bytes.chunks(chunk) {
            let mut part = part;
            while !part.is_empty() {
                input.fill(&mut part).unwrap();
                while let Some(message) = input.next_message().unwrap() {
                    got.push((message.tag, input.body(message).to_vec()));
                }
            }
        }
        assert!(!input.has_bytes());
        got
    }

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn messages_come_out_whole_however_they_are_cut() {
        let bodies: Vec<Vec<u8>> = [0, 1, 5, 100, 8187, 8188, 20_000, 700_000, 3]
            .iter()
            .map(|&n| vec![n as u8; n])
            .collect();
        let stream: Vec<u8> = bodies.iter().flat_map(|body| message(b'd', body)).collect();
        for chunk in [1usize, 2, 3, 7, 4096, 65_537, stream.len()] {
            if chunk < 3 && stream.len() > 10_000 && chunk == 1 {
                continue;
            }
            let got: Vec<Vec<u8>> = fed(&stream, chunk).into_iter().map(|(_, body)| body).collect();
            assert_eq!(got, bodies, "cut into {chunk}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_at_once() {
        let refused = |bytes: &[u8]| {
            let mut input = Input::new();
            input.fill(bytes).unwrap();
            input.next_message().unwrap_err()
        };
        assert_eq!(refused(b"\x16\x03\x01"), FrameError::UnknownType(0x16));
        assert!(matches!(refused(b"Q\0\0\0\x03"), FrameError::Length { length: 3, .. }));
        assert!(matches!(
            refused(b"Q\xff\xff\xff\xff"),
            FrameError::Length { length: -1, .. }
        ));
        assert!(matches!(refused(b"Q\x7f\xff\xff\xff"), FrameError::Length { .. }));
        assert!(matches!(refused(b"S\0\x01\0\0"), FrameError::Length { .. }));
    }

    #[test]
    fn a_message_that_is_dropped_loses_nothing_behind_it() {
        let stream = [message(b'Q', &[1; 30_000]), message(b'S', b"")].concat();
        for chunk in [1, 100, 8192, stream.len()] {
            let (mut input, mut dropped, mut got) = (Input::new(), 0, Vec::new());
            for mut part in stream.chunks(chunk) {
                while !part.is_empty() {
                    input.fill(&mut part).unwrap();
                    if dropped == 0 && input.next_message().unwrap().is_none() && input.bytes_to_fill() > BUFFER_BYTES {
                        assert_eq!(input.drop_message(), b'Q');
                        dropped += 1;
                        assert_eq!(input.bytes_to_fill(), BUFFER_BYTES);
                    }
                    got.extend(input.next_message().unwrap().map(|message| message.tag));
                }
            }
            assert_eq!((dropped, got), (1, vec![b'S']), "cut into {chunk}");
        }
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let mut input = Input::new();
        input.fill(&b"Q\x0f\xff\xff\xff"[..]).unwrap();
        assert!(input.next_message().unwrap().is_none());
        assert_eq!(input.buffer.len(), BUFFER_BYTES);
    }
}
