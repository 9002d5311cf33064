//! How a server of storage nodes is one of the servers of its database.

use crate::config::{Role, Settings};
use crate::database;
use crate::server::registry::Registry;
use cenote_base::rt::Nanos;
use cenote_base::{Lsn, Result};
use cenote_cluster::{Look, Looked, Member, OverNodes};
use cenote_engine::Engine;
use cenote_fabric::Origin;
use cenote_storage_node::{NodesClient, Server, ServerRole};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, mpsc};
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
    let is_local = address.ip().is_loopback();
    let cluster = OverNodes {
        client,
        is_refused: Box::new(move |address| is_refused(address, is_local)),
    };
    Ok(Some(Member::join(Box::new(cluster), me, settings.pausing)))
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
        let (position, used) = (engine.upgrade()?.visible_position(), registry.in_use());
        Some(Looked {
            position: Lsn::from_raw(position),
            sessions: used.sessions,
            direct: used.direct,
            statements: used.statements,
        })
    })
}

/// The start that has the database, if this server has it.
pub fn epoch_of(engine: &Engine) -> u64 {
    engine.start_on_nodes().unwrap_or(0)
}

/// No process listens there, by whichever address its name has: its host says so. A name that is looked up for long says
/// nothing, nor does this host's own loopback of a server elsewhere.
fn is_refused(address: &str, is_local: bool) -> bool {
    let (tell, told) = mpsc::channel();
    let address = address.to_owned();
    let asked = std::thread::Builder::new().name("probe".into()).spawn(move || {
        tell.send(all_refuse(&address, is_local)).ok();
    });
    asked.is_ok() && told.recv_timeout(PROBE_TIMEOUT).unwrap_or(false)
}

fn all_refuse(address: &str, is_local: bool) -> bool {
    let Ok(found) = address.to_socket_addrs() else {
        return false;
    };
    let refuses = |address: &SocketAddr| {
        let tried = TcpStream::connect_timeout(address, PROBE_TIMEOUT);
        matches!(tried, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    };
    let found: Vec<SocketAddr> = found.collect();
    let is_elsewhere = found.iter().any(|at| at.ip().is_loopback()) && !is_local;
    !found.is_empty() && !is_elsewhere && found.iter().all(refuses)
}
