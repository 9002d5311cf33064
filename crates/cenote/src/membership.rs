//! How a server of storage nodes is one of the servers of its database.

use crate::config::{Role, Settings};
use crate::database;
use crate::server::registry::Registry;
use cenote_base::rt::Nanos;
use cenote_base::{Lsn, Result};
use cenote_cluster::{Look, Member, OverNodes};
use cenote_engine::Engine;
use cenote_fabric::Origin;
use cenote_storage_node::{NodesClient, Server, ServerRole};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// How long a word may take until it is said again.
const WORD_TIMEOUT: Nanos = Nanos::from_millis(800);
/// How long one node may take to hear it.
const NODE_TIMEOUT: Nanos = Nanos::from_millis(300);
/// How long an address may take that is asked whether it refuses.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// Begins to say what this server is, if its database is on storage nodes: at first, that it opens it.
///
/// # Errors
/// The secret's file cannot be read.
pub fn join(settings: &Settings, address: SocketAddr) -> Result<Option<Member>> {
    let Some(storage) = &settings.storage else {
        return Ok(None);
    };
    let client = words(database::client(storage)?);
    let name = database::reader_name(settings);
    let me = Server {
        id: cenote_base::rt::random_u128().max(1),
        name: match settings.host.is_some() {
            true => name,
            false => address.to_string(),
        },
        address: settings.advertise.clone().unwrap_or_else(|| reached_at(address)),
        role: ServerRole::Opening,
        epoch: 0,
        position: Lsn::ZERO,
        may_write: settings.role == Role::Auto,
        sessions: 0,
    };
    let cluster = OverNodes { client, is_refused };
    Ok(Some(Member::join(Box::new(cluster), me)))
}

/// Where other machines reach an address of this one.
fn reached_at(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("{}:{}", Origin::machine().name(), address.port()),
        false => address.to_string(),
    }
}

/// A client whose calls are over soon.
pub fn words(client: NodesClient) -> NodesClient {
    client.with_timeout(WORD_TIMEOUT).with_answer_timeout(NODE_TIMEOUT)
}

/// What is said beside what a server is.
pub fn look(engine: &Arc<Engine>, registry: &Arc<Registry>) -> Look {
    let (engine, registry) = (Arc::downgrade(engine), registry.clone());
    Arc::new(move || {
        let position = Lsn::from_raw(engine.upgrade()?.visible_position());
        Some((position, registry.count()))
    })
}

/// The start that has the database, if this server has it.
pub fn epoch_of(engine: &Engine) -> u64 {
    engine.start_on_nodes().unwrap_or(0)
}

/// No process listens there: its host says so.
fn is_refused(address: &str) -> bool {
    let Some(address) = address.to_socket_addrs().ok().and_then(|mut found| found.next()) else {
        return false;
    };
    let tried = TcpStream::connect_timeout(&address, PROBE_TIMEOUT);
    matches!(tried, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}
