//! Messages of both sides: cut out of what has come, and made.
//!
//! Lengths that a peer claims take no memory: a buffer grows by what really came, at most twofold at a time.

use crate::server::input::{Fields, FrameError, body_bytes_max};
use crate::server::session::NOT_BEGUN;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes that one read takes, at least.
const READ_BYTES: usize = 8 * 1024;
/// Longest message of a server that is taken as a whole; rows and COPY data pass in pieces.
const SERVER_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A whole message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its type.
    pub tag: u8,
    /// Behind the length.
    pub body: Bytes,
}

impl Message {
    /// Appends it as it came.
    pub fn put(&self, out: &mut BytesMut) {
        put_header(out, self.tag, self.body.len());
        out.extend_from_slice(&self.body);
    }

    /// Bytes that it takes.
    pub fn len(&self) -> usize {
        5 + self.body.len()
    }
}

/// Bytes that have come and were not taken yet.
#[derive(Debug, Default)]
pub struct Inbound {
    bytes: BytesMut,
}

/// What comes next from a server.
#[derive(Debug)]
pub enum FromServer {
    /// A whole message.
    Whole(Message),
    /// A row or COPY data, of which not all is here: so many bytes come with their header.
    Begun(usize),
}

impl Inbound {
    /// Reads once; 0: the peer has closed.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        let here = self.bytes.len();
        self.bytes.reserve(READ_BYTES.max(here.min(1 << 20)));
        from.read_buf(&mut self.bytes).await
    }

    /// The first byte that waits.
    pub fn first(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Gives the memory back if it holds nothing.
    pub fn shrink(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }

    /// The first packet, if all of it is here.
    ///
    /// # Errors
    /// It has a length that none has.
    pub fn startup(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(length) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        if !(8..=crate::server::input::STARTUP_BYTES_MAX).contains(&length) {
            return Err(FrameError::Startup);
        }
        if self.bytes.len() < length {
            return Ok(None);
        }
        let mut packet = self.bytes.split_to(length);
        packet.advance(4);
        Ok(Some(packet.freeze()))
    }

    /// The next message of a client, if all of it is here.
    ///
    /// # Errors
    /// It is of no known type, or of a length that the type has not.
    pub fn next_of_client(&mut self) -> Result<Option<Message>, FrameError> {
        let Some(&tag) = self.bytes.first() else {
            return Ok(None);
        };
        let max = body_bytes_max(tag)?;
        let Some(length) = self.claimed() else { return Ok(None) };
        match usize::try_from(length - 4) {
            Ok(len) if len <= max => Ok(self.take(len)),
            _ => Err(FrameError::Length { tag, length, max }),
        }
    }

    /// What comes next from a server.
    ///
    /// # Errors
    /// It is not of the protocol.
    pub fn next_of_server(&mut self) -> Result<Option<FromServer>, FrameError> {
        let Some(length) = self.claimed() else { return Ok(None) };
        let tag = self.bytes[0];
        let streams = matches!(tag, b'D' | b'd');
        let max = if streams {
            i32::MAX as usize
        } else {
            SERVER_MESSAGE_BYTES_MAX
        };
        match usize::try_from(length - 4) {
            Ok(len) if len <= max => match self.take(len) {
                Some(message) => Ok(Some(FromServer::Whole(message))),
                None => Ok(streams.then_some(FromServer::Begun(5 + len))),
            },
            _ => Err(FrameError::Length { tag, length, max }),
        }
    }

    /// Up to so many bytes as they came.
    pub fn raw(&mut self, most: usize) -> BytesMut {
        self.bytes.split_to(most.min(self.bytes.len()))
    }

    fn claimed(&self) -> Option<i64> {
        let header = self.bytes.first_chunk::<5>()?;
        Some(i32::from_be_bytes([header[1], header[2], header[3], header[4]]).into())
    }

    fn take(&mut self, len: usize) -> Option<Message> {
        if self.bytes.len() < 5 + len {
            return None;
        }
        let tag = self.bytes[0];
        self.bytes.advance(5);
        let body = self.bytes.split_to(len).freeze();
        Some(Message { tag, body })
    }
}

/// Type and length of a message whose body follows.
pub fn put_header(out: &mut BytesMut, tag: u8, body: usize) {
    out.put_u8(tag);
    // Bodies come from messages that were shorter than 2 GiB, or are made here.
    out.put_u32(body as u32 + 4);
}

/// A message that is made here.
pub fn put(out: &mut BytesMut, tag: u8, parts: &[&[u8]]) {
    put_header(out, tag, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// A Query.
pub fn put_query(out: &mut BytesMut, text: &str) {
    put(out, b'Q', &[text.as_bytes(), b"\0"]);
}

/// ReadyForQuery.
pub fn put_ready(out: &mut BytesMut, status: u8) {
    put(out, b'Z', &[&[status]]);
}

/// An error that is made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// SQLSTATE.
    pub code: String,
    /// What happened.
    pub message: String,
    /// A server that ends says that it has begun nothing of what it was sent.
    pub not_begun: bool,
}

impl Refusal {
    /// An error with this SQLSTATE.
    pub fn new(code: &str, message: impl Into<String>) -> Refusal {
        Refusal {
            code: code.to_owned(),
            message: message.into(),
            not_begun: false,
        }
    }

    /// Appends the ErrorResponse: ERROR, or FATAL where the connection ends with it.
    pub fn put(&self, out: &mut BytesMut, fatal: bool) {
        let word: &[u8] = if fatal { b"FATAL\0" } else { b"ERROR\0" };
        let (code, message) = (self.code.as_bytes(), self.message.as_bytes());
        put(
            out,
            b'E',
            &[b"S", word, b"V", word, b"C", code, b"\0M", message, b"\0\0"],
        );
    }

    /// Reads an ErrorResponse: whether it is fatal, and what it says.
    pub fn read(body: &[u8]) -> (bool, Refusal) {
        let mut fields = Fields(body);
        let (mut fatal, mut refusal) = (false, Refusal::new("XX000", ""));
        while let Some(kind) = fields.u8().filter(|kind| *kind != 0) {
            let Some(text) = fields.cstr() else { break };
            let text = String::from_utf8_lossy(text).into_owned();
            match kind {
                b'V' => fatal = text == "FATAL" || text == "PANIC",
                b'C' => refusal.code = text,
                b'M' => refusal.message = text,
                b'D' => refusal.not_begun = text == NOT_BEGUN,
                _ => {}
            }
        }
        (fatal, refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the pieces are in which a stream comes, the same messages come out of it.
    #[tokio::test]
    async fn messages_survive_any_cut() {
        let mut stream = BytesMut::new();
        for len in [0usize, 1, 4, 300, 8187, 8192, 70_000, 2] {
            put(&mut stream, b'd', &[&vec![len as u8; len]]);
        }
        let mut seed = 7u64;
        for round in 0..60 {
            let (mut inbound, mut bodies, mut rest) = (Inbound::default(), Vec::new(), &stream[..]);
            while !rest.is_empty() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let most = [3, 50, 9000, 100_000][round % 4];
                let cut = (1 + (seed >> 33) as usize % most).min(rest.len());
                let mut piece = &rest[..cut];
                while !piece.is_empty() {
                    inbound.fill(&mut piece).await.unwrap();
                }
                rest = &rest[cut..];
                while let Some(message) = inbound.next_of_client().unwrap() {
                    bodies.push(message.body.len());
                }
            }
            assert_eq!(bodies, [0, 1, 4, 300, 8187, 8192, 70_000, 2]);
            inbound.shrink();
            assert_eq!(inbound.len(), 0);
        }
    }

    #[tokio::test]
    async fn rows_pass_in_pieces_and_nonsense_is_refused() {
        let mut inbound = Inbound::default();
        inbound.fill(&mut &b"D\0\x10\0\0abc"[..]).await.unwrap();
        assert!(matches!(inbound.next_of_server(), Ok(Some(FromServer::Begun(n))) if n == 0x10_0001));
        assert_eq!(&inbound.raw(100)[..], b"D\0\x10\0\0abc");
        inbound.fill(&mut &b"E\x7f\0\0\0abc"[..]).await.unwrap();
        assert!(inbound.next_of_server().is_err());
        let mut inbound = Inbound::default();
        inbound.fill(&mut &b"GET /"[..]).await.unwrap();
        assert!(inbound.next_of_client().is_err());
    }

    #[test]
    fn errors_are_read_as_they_are_written() {
        let (mut out, refusal) = (BytesMut::new(), Refusal::new("40003", "lost"));
        refusal.put(&mut out, true);
        assert_eq!(Refusal::read(&out[5..]), (true, refusal));
        assert_eq!(Refusal::read(b"Vx").1.code, "XX000");
    }
}
