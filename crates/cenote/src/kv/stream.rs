//! A connection's bytes: those of the socket, or what TLS makes of them. Nothing waits: what is not possible now is
//! `WouldBlock`, and the socket says when it is.

use mio::net::TcpStream;
use rustls::ServerConnection;
use std::io::{self, ErrorKind, Read, Write};

/// See the module.
pub enum Stream {
    /// As they are.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<Tls>),
}

/// A session of TLS.
pub struct Tls {
    socket: TcpStream,
    session: ServerConnection,
}

impl Stream {
    /// Encrypted by a session that begins.
    pub fn tls(socket: TcpStream, session: ServerConnection) -> Self {
        Self::Tls(Box::new(Tls { socket, session }))
    }

    /// The socket.
    pub fn socket(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &mut tls.socket,
        }
    }

    /// Whether the two sides have not come to terms yet.
    pub fn is_arriving(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.session.is_handshaking(),
        }
    }

    /// Reads; nothing is the end of what the other side says.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }

    /// Whether there may be more to read though a read has given less than there was room for.
    pub fn holds_more(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Takes bytes to be sent. TLS keeps some of them until [`Stream::flush`].
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    /// Sends what is kept.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }

    /// Whether nothing is kept.
    pub fn is_sent(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(tls) => !tls.session.wants_write(),
        }
    }

    /// Says that there is no more, as far as that is possible now.
    pub fn end(&mut self) {
        if let Self::Tls(tls) = self {
            tls.session.send_close_notify();
            tls.flush().ok();
        }
    }
}

impl Tls {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The other side has gone without a word of TLS: what it had said is whole commands, or is not run.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.session.read_tls(&mut self.socket)?;
            if let Err(error) = self.session.process_new_packets() {
                // The other side is told why, as far as that is possible now.
                self.flush().ok();
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            if self.session.is_handshaking() {
                match self.flush() {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.session.writer().write(bytes)?;
        if taken > 0 {
            return Ok(taken);
        }
        self.flush()?;
        match self.session.writer().write(bytes)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
