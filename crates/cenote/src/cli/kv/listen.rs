//! Where the server listens, and what it asks of its clients.

use super::KvArguments;
use crate::cli::Failure;
use crate::kv::{Secret, Settings};
use crate::server::access::is_loopback;
use crate::{log, pooled, tls};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// What clients have to say and how they are encrypted.
///
/// # Errors
/// A file cannot be read, or is of no use.
pub fn settings(arguments: &KvArguments) -> Result<Settings, Failure> {
    let secret = arguments.secret_file.as_deref().map(pooled::read_secret).transpose()?;
    let identity = arguments.tls_cert.clone().zip(arguments.tls_key.clone());
    let files = identity.map(|(certificate, key)| tls::ServerFiles {
        certificate,
        key,
        client_authority: arguments.tls_client_authority.clone(),
    });
    Ok(Settings {
        connections_max: arguments.max_connections,
        secret: secret.as_deref().map(Secret::new),
        tls: files.as_ref().map(tls::server).transpose()?,
        ..Settings::default()
    })
}

/// Binds the address of `--listen`.
///
/// # Errors
/// It is none; others could reach it without a secret; the system refuses it.
pub fn bind(arguments: &KvArguments) -> Result<TcpListener, Failure> {
    let listen = &arguments.listen;
    let unknown = |_| format!("--listen {listen} is no address: give one with a port, such as 127.0.0.1:6380");
    let addresses: Vec<_> = listen.to_socket_addrs().map_err(unknown)?.collect();
    let is_open = !is_local(&addresses);
    if is_open && arguments.secret_file.is_none() && arguments.tls_client_authority.is_none() {
        return Err(format!(
            "refusing to listen on {listen} without a secret: every client that reaches it could read and change \
             everything. Listen on a loopback address, such as 127.0.0.1:6380, or write a secret to a file and give \
             that with --secret-file"
        )
        .into());
    }
    if is_open && arguments.tls_cert.is_none() {
        log::warn!("clients send the secret and all data to {listen} in clear: give --tls-cert and --tls-key");
    }
    let failed = |error| format!("cannot listen on {listen}: {error}; name another address with --listen");
    Ok(TcpListener::bind(&addresses[..]).map_err(failed)?)
}

/// Binds the address of `--metrics`.
///
/// # Errors
/// It is none; the system refuses it.
pub fn bind_metrics(metrics: &str) -> Result<TcpListener, Failure> {
    let failed = |error| format!("cannot listen on {metrics}: {error}; name another address with --metrics");
    let addresses: Vec<_> = metrics.to_socket_addrs().map_err(failed)?.collect();
    Ok(TcpListener::bind(&addresses[..]).map_err(failed)?)
}

fn is_local(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| is_loopback(address.ip()))
}
