//! Where the server listens, and which clients it accepts.

use super::auth::Passwords;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

/// Which clients the server accepts, and how many.
#[derive(Debug)]
pub struct Access {
    /// `None` accepts every client; the server then listens on the loopback interface alone.
    pub passwords: Option<Passwords>,
    /// Sessions at a time.
    pub max_connections: usize,
    /// Threads for sessions that have something to do, at a time; two at least. The system's own limit may be lower.
    pub max_threads: usize,
}

/// An address that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// It is not an address.
    #[error("cannot understand the listen address {0:?}; it is ADDRESS:PORT, such as 127.0.0.1:5433")]
    Address(String),
    /// It is not a loopback address, and there are no passwords.
    #[error(
        "refusing to listen on {0} without passwords: every client that reaches it could read and change everything. \
         Listen on 127.0.0.1, or make a password file (cenote password USER >> passwords) and give it with \
         --password-file passwords"
    )]
    Open(SocketAddr),
    /// The operating system refuses it.
    #[error("cannot listen on {address}: {source}{}", in_use_hint(.source))]
    Socket {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

fn in_use_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            ". Another server has this port: choose another one with --listen, or 127.0.0.1:0 for any free one"
        }
        io::ErrorKind::PermissionDenied => ". Ports below 1024 are for root: choose a higher one with --listen",
        _ => "",
    }
}

/// Binds the address; connections wait from now on. Port 0 takes a free one.
///
/// # Errors
/// [`BindError`]: the address is none, is not loopback without passwords, or the system refuses it.
pub fn bind(listen: &str, with_passwords: bool) -> Result<TcpListener, BindError> {
    let unknown = || BindError::Address(listen.to_owned());
    let addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(|_| unknown())?.collect();
    let address = *addresses
        .iter()
        .find(|address| address.is_ipv4())
        .or(addresses.first())
        .ok_or_else(unknown)?;
    if !with_passwords && !is_loopback(address.ip()) {
        return Err(BindError::Open(address));
    }
    TcpListener::bind(address).map_err(|source| BindError::Socket { address, source })
}

/// Whether only processes of this machine reach an address.
pub fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}
