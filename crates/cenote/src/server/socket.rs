//! A client's socket: TCP, or a Unix socket of this machine, which costs the kernel half as much.

use crate::sockets;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// Of the network.
    Tcp(TcpStream),
    /// Of this machine.
    Unix(UnixStream),
}

/// The client's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A client by TCP.
    Address(SocketAddr),
    /// One by a Unix socket, which has no address.
    Local,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => address.fmt(f),
            Peer::Local => f.write_str("[local]"),
        }
    }
}

impl Socket {
    /// Sets what a session needs: reads that end after `pause`, and a kernel that notices a machine which is gone.
    ///
    /// # Errors
    /// The system refuses it: the client has left.
    pub fn prepare(&self, pause: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(pause))?;
        if let Socket::Tcp(stream) = self {
            stream.set_nodelay(true)?;
            sockets::notice_loss(stream)?;
        }
        Ok(())
    }

    /// How long a read waits.
    ///
    /// # Errors
    /// Those of the system.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
            Socket::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Ends one or both directions for all threads that use the socket.
    ///
    /// # Errors
    /// It is no longer connected.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Unix(stream) => stream.shutdown(how),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(buffer),
            Socket::Unix(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            Socket::Unix(stream) => (&*stream).write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
