//! Where a memory node listens: what a provider calls its address, and a text form for settings.
//!
//! ```text
//!   tcp;ofi_rxm@127.0.0.1:40012      an IP address and port, where the provider's address is one
//!   shm@fi_shm://cenote-4711         a name, where it is one (printable, ends with one 0 byte in memory)
//!   efa@x020000ac...                 its bytes
//! ```
//!
//! Providers believe the addresses that they are given, so [`NodeAddress`] is checked when it is made: length, family,
//! and for names that they are one.

use cenote_base::{Error, Result};
use core::fmt;
use core::str::FromStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Longest address of any provider.
pub const LONGEST: usize = 256;

/// A provider of libfabric, as libfabric names it: `tcp;ofi_rxm`, `shm`, `verbs;ofi_rxm`, `efa`, ...
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Provider(String);

impl Provider {
    /// TCP: on every machine.
    pub fn tcp() -> Self {
        Self("tcp;ofi_rxm".into())
    }

    /// Shared memory of one machine.
    pub fn shm() -> Self {
        Self("shm".into())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether a network card reads and writes memory by itself.
    pub fn is_hardware(&self) -> bool {
        ["verbs", "efa", "cxi", "psm", "opx"]
            .iter()
            .any(|p| self.0.starts_with(p))
    }

    /// Whether its addresses are IP addresses with a port.
    pub fn is_ip(&self) -> bool {
        ["tcp", "verbs", "sockets", "udp", "net"]
            .iter()
            .any(|p| self.0.starts_with(p))
    }
}

impl FromStr for Provider {
    type Err = Error;

    /// `verbs` is `verbs;ofi_rxm`: the part that joins it with unconnected endpoints.
    fn from_str(name: &str) -> Result<Self> {
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ';';
        match name {
            "" => Err(Error::Invalid("a provider of libfabric without a name".into())),
            "verbs" => Ok(Self("verbs;ofi_rxm".into())),
            _ if name.len() <= 64 && name.chars().all(known) => Ok(Self(name.to_owned())),
            _ => Err(Error::Invalid(format!(
                "{name:?} is no provider of libfabric, which are such as tcp;ofi_rxm, shm, verbs, efa"
            ))),
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a memory node is reached. Opaque bytes of a provider, checked when made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    provider: Provider,
    bytes: Vec<u8>,
}

impl NodeAddress {
    /// From a provider's own bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they can be none of that provider's.
    pub fn new(provider: Provider, bytes: Vec<u8>) -> Result<Self> {
        let fits = match () {
            () if bytes.is_empty() || bytes.len() > LONGEST => false,
            () if provider.is_ip() => socket(&bytes).is_some_and(|a| a.port() != 0),
            () if provider.0 == "shm" => name(&bytes).is_some(),
            () => true,
        };
        if fits {
            return Ok(Self { provider, bytes });
        }
        Err(Error::Invalid(format!(
            "{} bytes that are no address of {provider}",
            bytes.len()
        )))
    }

    /// The provider.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// The provider's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The IP address and port, where it is one.
    pub fn socket(&self) -> Option<SocketAddr> {
        socket(&self.bytes).filter(|_| self.provider.is_ip())
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.provider)?;
        if let Some(socket) = self.socket() {
            return write!(f, "{socket}");
        }
        match name(&self.bytes).filter(|n| !n.starts_with('x')) {
            Some(name) => f.write_str(name),
            None => {
                f.write_str("x")?;
                self.bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}

impl FromStr for NodeAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((provider, place)) = text.split_once('@') else {
            return Err(Error::Invalid(format!(
                "{text:?} is no memory node's address, such as tcp;ofi_rxm@127.0.0.1:4000"
            )));
        };
        let provider: Provider = provider.parse()?;
        let bytes = match (place.strip_prefix('x'), place.parse()) {
            (_, Ok(address)) => Some(socket_bytes(address)),
            (Some(digits), _) => from_hex(digits),
            _ => Some([place.as_bytes(), &[0]].concat()),
        };
        let address = bytes.and_then(|b| Self::new(provider.clone(), b).ok());
        address.ok_or_else(|| Error::Invalid(format!("{place:?} is no address of {provider}")))
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |i| u8::from_str_radix(digits.get(i..i + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// A name: printable, with one 0 at its end.
fn name(bytes: &[u8]) -> Option<&str> {
    let (0, text) = bytes.split_last().map(|(last, text)| (*last, text))? else {
        return None;
    };
    let printable = !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
    core::str::from_utf8(text).ok().filter(|_| printable)
}

/// `sockaddr_in`, 16 bytes: family u16, port u16 big-endian, address, zeros; `sockaddr_in6`, 28: family, port, flow,
/// address, scope.
fn socket(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    match (i32::from(family), bytes.len()) {
        (libc::AF_INET, 16) => {
            let ip = Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        (libc::AF_INET6, 28) => {
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?);
            let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        _ => None,
    }
}

fn socket_bytes(address: SocketAddr) -> Vec<u8> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let mut bytes = (family as u16).to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(a) => bytes.extend(a.ip().octets().iter().chain(&[0; 8])),
        SocketAddr::V6(a) => {
            bytes.extend([0; 4]);
            bytes.extend(a.ip().octets());
            bytes.extend(a.scope_id().to_ne_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_text_form_that_reads_back() {
        for text in [
            "tcp;ofi_rxm@127.0.0.1:4000",
            "tcp;ofi_rxm@[::1]:65535",
            "verbs;ofi_rxm@10.0.0.7:9",
            "shm@fi_shm://cenote-1",
            "efa@x0201ff",
        ] {
            let address: NodeAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
            assert_eq!(address.to_string().parse::<NodeAddress>().expect("again"), address);
        }
        assert_eq!(
            "verbs@10.0.0.7:9"
                .parse::<NodeAddress>()
                .expect("short")
                .provider()
                .name(),
            "verbs;ofi_rxm"
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("efa@x{}", "00".repeat(LONGEST + 1));
        for text in [
            "",
            "127.0.0.1:4000",
            "@127.0.0.1:4000",
            "tcp;ofi_rxm@",
            "tcp;ofi_rxm@127.0.0.1",
            "tcp;ofi_rxm@127.0.0.1:0",
            "tcp;ofi_rxm@127.0.0.1:70000",
            "tcp;ofi_rxm@host:4000",
            "tcp;ofi_rxm@x0200",
            "TCP@127.0.0.1:4000",
            "tcp;ofi_rxm\n@127.0.0.1:4000",
            "shm@",
            "shm@a b",
            "shm@na\u{0}me",
            "shm@n\u{e4}me",
            "efa@x",
            "efa@x012",
            "efa@xzz",
            "efa@x+1",
            &long,
        ] {
            let error = text.parse::<NodeAddress>().expect_err(text);
            assert!(matches!(error, Error::Invalid(_)), "{text}: {error}");
        }
    }
}
