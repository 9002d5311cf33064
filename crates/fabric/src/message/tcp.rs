//! Messages over TCP. Each is a frame:
//!
//! ```text
//!  0        4        8        12
//!  | magic  | length | crc32c | bytes ...      little-endian; the checksum is of the bytes
//! ```
//!
//! Nothing is secret on the way: addresses other than loopback belong into a network of their own.

use super::{Connection, Listener, MESSAGE_MAX, Network, ready};
use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::error::IoContext;
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::{Arc, Once};
use std::time::Duration;

const MAGIC: u32 = u32::from_le_bytes(*b"CEN1");
const HEADER: usize = 12;
const _: () = assert!(
    super::MESSAGE_MAX <= u32::MAX as usize,
    "a header has room for each length"
);
/// How long a peer may take to let bytes in, before it counts as gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Before a connection is accepted after one could not be.
const ACCEPT_AGAIN: Nanos = Nanos::from_millis(20);

/// The machine's TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Network for Tcp {
    fn listen(&self, address: &str) -> Result<Box<dyn Listener>> {
        allow_many();
        let listener = TcpListener::bind(resolve(address)?.as_slice()).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => Error::Busy(format!("{address} is in use by another process")),
            _ => Error::io(format!("listening on {address}"), error),
        })?;
        listener
            .set_nonblocking(true)
            .doing(|| format!("listening on {address}"))?;
        Ok(Box::new(Incoming(listener)))
    }

    fn connect(&self, address: &str, timeout: Nanos) -> Result<Arc<dyn Connection>> {
        let stream = connect(address, timeout)?;
        Ok(Arc::new(Stream::new(stream, address.to_owned())?))
    }
}

/// A process that listens may have as many connections as the system lets it: the limit that it begins with is a
/// thousand descriptors in many places.
fn allow_many() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // It goes on with what it has.
        setrlimit(Resource::Nofile, limit).ok();
    });
}

/// Connects to the first of the address's that answers; each may take so long.
pub(crate) fn connect(address: &str, timeout: Nanos) -> Result<TcpStream> {
    let mut last = None;
    for candidate in resolve(address)? {
        match TcpStream::connect_timeout(&candidate, duration(timeout)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".into(), |error| error.to_string());
    Err(Error::Lost(format!("no process answers at {address}: {why}")))
}

fn resolve(address: &str) -> Result<Vec<std::net::SocketAddr>> {
    let found = address.to_socket_addrs();
    let found: Vec<_> = found
        .map_err(|error| Error::Invalid(format!("\"{address}\" is no ADDR:PORT: {error}")))?
        .collect();
    Ok(found)
}

/// As the system wants it: not zero, which it takes for "for ever".
pub(crate) fn duration(time: Nanos) -> Duration {
    Duration::from_nanos(time.raw().clamp(1_000_000, 3_600_000_000_000))
}

#[derive(Debug)]
struct Incoming(TcpListener);

impl Listener for Incoming {
    fn address(&self) -> String {
        self.0.local_addr().map(|a| a.to_string()).unwrap_or_default()
    }

    fn accept(&self, timeout: Nanos) -> Result<Option<Arc<dyn Connection>>> {
        let until = rt::now().raw().saturating_add(timeout.raw());
        loop {
            match self.0.accept() {
                Ok((stream, peer)) => return Ok(Some(Arc::new(Stream::new(stream, peer.to_string())?))),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The peer gave up meanwhile, or descriptors ran out: neither is this listener's end.
                Err(e) => {
                    warn(&e);
                    rt::sleep(ACCEPT_AGAIN);
                }
            }
            let left = until.saturating_sub(rt::now().raw());
            if left == 0 {
                return Ok(None);
            }
            ready::wait(self.0.as_fd(), Nanos(left));
        }
    }
}

fn warn(error: &std::io::Error) {
    eprintln!("cenote: a connection could not be accepted: {error}");
}

#[derive(Debug)]
struct Stream {
    peer: String,
    socket: TcpStream,
    /// Held by the thread that writes a message.
    output: Mutex<()>,
    /// What came of the next message.
    input: Mutex<Vec<u8>>,
}

impl Stream {
    fn new(stream: TcpStream, peer: String) -> Result<Self> {
        let doing = || format!("connection with {peer}");
        stream.set_nonblocking(false).doing(doing)?;
        stream.set_nodelay(true).doing(doing)?;
        stream.set_write_timeout(Some(SEND_TIMEOUT)).doing(doing)?;
        Ok(Self {
            peer,
            socket: stream,
            output: Mutex::new(()),
            input: Mutex::default(),
        })
    }

    fn lost(&self, why: impl std::fmt::Display) -> Error {
        self.close();
        Error::Lost(format!("the connection with {} is lost: {why}", self.peer))
    }
}

impl Connection for Stream {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        if message.len() > MESSAGE_MAX {
            return Err(Error::Invalid(format!("a message of {} bytes", message.len())));
        }
        let mut frame = Vec::with_capacity(HEADER + message.len());
        for word in [MAGIC, message.len() as u32, crc32c(message)] {
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.extend_from_slice(message);
        let sent = {
            let _one = self.output.lock();
            (&self.socket).write_all(&frame)
        };
        sent.map_err(|error| self.lost(error))
    }

    fn receive(&self, timeout: Nanos) -> Result<Vec<u8>> {
        let until = rt::now().raw().saturating_add(timeout.raw());
        let mut input = self.input.lock();
        loop {
            if let Some(message) = self.take(&mut input)? {
                return Ok(message);
            }
            let left = until.saturating_sub(rt::now().raw());
            if left == 0 {
                return Err(Error::Timeout(format!("{} has sent nothing in time", self.peer)));
            }
            self.fill(&mut input, Nanos(left))?;
        }
    }

    fn try_receive(&self) -> Result<Option<Vec<u8>>> {
        let mut input = self.input.lock();
        loop {
            if let Some(message) = self.take(&mut input)? {
                return Ok(Some(message));
            }
            if !self.fill_at_once(&mut input)? {
                return Ok(None);
            }
        }
    }

    fn tells(&self) -> bool {
        true
    }

    fn when_ready(&self, wake: ready::Wake) {
        if has_message(&self.input.lock()) {
            return wake();
        }
        let armed = ready::poller().and_then(|poller| poller.arm(self.socket.as_fd(), wake));
        if armed.is_err() {
            self.close();
        }
    }

    fn close(&self) {
        // It may be closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Stream {
    fn take(&self, input: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
        let taken = take_message(input);
        if taken.is_err() {
            input.clear();
            self.close();
        }
        taken
    }

    /// Takes what has come; false: nothing.
    fn fill_at_once(&self, input: &mut Vec<u8>) -> Result<bool> {
        let mut some = [0; 16 << 10];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut some[..], flags) {
            Ok((0, _)) => Err(self.lost("the peer ended it")),
            Ok((n, _)) => {
                input.extend_from_slice(&some[..n]);
                Ok(true)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn fill(&self, input: &mut Vec<u8>, timeout: Nanos) -> Result<()> {
        let mut some = [0; 16 << 10];
        let set = self.socket.set_read_timeout(Some(duration(timeout)));
        match set.and_then(|()| (&self.socket).read(&mut some)) {
            Ok(0) => Err(self.lost("the peer ended it")),
            Ok(n) => {
                input.extend_from_slice(&some[..n]);
                Ok(())
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(())
            }
            Err(e) => Err(self.lost(e)),
        }
    }
}

/// Whether a message is there as a whole, or what can be none.
fn has_message(bytes: &[u8]) -> bool {
    let word = |at| get_le::<u32>(bytes, at);
    let (Some(magic), Some(length)) = (word(0), word(4)) else {
        return false;
    };
    let length = length as usize;
    magic != MAGIC || length > MESSAGE_MAX || bytes.len() >= HEADER + length
}

/// Takes the first message off `bytes`, if it is there as a whole.
fn take_message(bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
    let word = |at| get_le::<u32>(bytes, at);
    let (Some(magic), Some(length), Some(sum)) = (word(0), word(4), word(8)) else {
        return Ok(None);
    };
    let length = length as usize;
    if magic != MAGIC || length > MESSAGE_MAX {
        return Err(Error::corrupt("what came is no message of this protocol"));
    }
    if bytes.len() < HEADER + length {
        return Ok(None);
    }
    let message: Vec<u8> = bytes.drain(..HEADER + length).skip(HEADER).collect();
    match crc32c(&message) == sum {
        true => Ok(Some(message)),
        false => Err(Error::corrupt("a message's checksum")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Nanos = Nanos::from_secs(10);

    /// Whatever comes that is no message ends the connection with an error.
    #[test]
    fn garbage_ends_the_connection() {
        let good: Vec<u8> = [MAGIC, 3, crc32c(b"abc")]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .chain(*b"abc")
            .collect();
        for flipped in (0..8 * good.len()).step_by(5) {
            let mut bad = good.clone();
            bad[flipped / 8] ^= 1 << (flipped % 8);
            // A length that grew: the rest never comes.
            bad.resize(bad.len() + MESSAGE_MAX, 0);
            assert!(take_message(&mut bad).is_err(), "bit {flipped}");
        }
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let mut raw = TcpStream::connect(listener.address()).expect("connected");
        let other = listener.accept(SOON).expect("no error").expect("connected");
        raw.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        assert!(matches!(other.receive(SOON), Err(Error::Corrupt(_))));
        assert!(matches!(other.receive(SOON), Err(Error::Lost(_))));
    }
}
