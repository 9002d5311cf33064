//! What outlives all processes of the world, and what is known of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_cluster::Pausing;
use cenote_fabric::message::Network;
use cenote_fabric::profile;
use cenote_storage_node::{NodeOptions, NodesClient};

use crate::clock;
use crate::message::Net;
use crate::worlds::shared::Shared;

/// Hosts of nodes, from 0 on.
pub(super) const NODES: usize = 3;
/// Hosts of servers, behind them.
pub(super) const SERVERS: usize = 3;
/// The proxy's host.
pub(super) const PROXY: usize = NODES + SERVERS;
/// What begins so long after the last fault has to succeed: nodes have a leader, servers have found each other.
const SETTLED: Nanos = Nanos::from_secs(20);

pub(super) struct Stage {
    pub shared: Arc<Shared>,
    pub net: Net,
    pub pausing: Pausing,
    known: Mutex<Known>,
    served: AtomicU64,
    rests: AtomicBool,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// When each start began to serve clients, in the world's time.
    serving: BTreeMap<u64, Nanos>,
    servers: [ServerKnown; SERVERS],
    whole_since: Option<Nanos>,
}

/// A server, as its clients meet it.
#[derive(Default)]
struct ServerKnown {
    /// Its port is open.
    listens: bool,
    /// The start that it has taken the database as, until it leaves that; zero: none.
    has: u64,
    /// The start that serves clients there; zero: a reader.
    epoch: Option<u64>,
    sessions: usize,
    statements: u64,
    /// A client has connected to it, though it is paused.
    is_called: bool,
}

/// The name of a host's program on the network.
pub(super) fn name_of(host: usize) -> String {
    format!("host{host}")
}

fn address(host: usize) -> String {
    format!("{}:5450", name_of(host))
}

impl Stage {
    pub fn new(shared: &Arc<Shared>, draw: &mut Random) -> Arc<Stage> {
        Arc::new(Stage {
            shared: Arc::clone(shared),
            net: Net::new(&profile::named("rdma").expect("a profile of this program"), draw.word()),
            pausing: Pausing {
                after: Nanos::from_millis(draw.pick(&[500, 2_000, 6_000])),
                reads: draw.pick(&[1, 4, 100]),
            },
            known: Mutex::default(),
            served: AtomicU64::new(0),
            rests: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    pub fn node_options(&self, host: usize) -> NodeOptions {
        let nodes: BTreeMap<u64, String> = (0..NODES).map(|host| (host as u64 + 1, address(host))).collect();
        NodeOptions::new("/node".into(), "world", host as u64 + 1, nodes)
    }

    pub fn network(&self, host: usize) -> Arc<dyn Network> {
        self.net.endpoint(&name_of(host), host)
    }

    pub fn client(&self, host: usize) -> NodesClient {
        let addresses: Vec<String> = (0..NODES).map(address).collect();
        NodesClient::new(self.network(host), "world", "", &addresses)
    }

    /// No preemption point is passed while it is held.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- servers ----

    /// A server's process begins, or has ended.
    pub fn set_listening(&self, host: usize, listens: bool) {
        let mut known = self.known();
        let server = &mut known.servers[host - NODES];
        (server.listens, server.epoch, server.is_called) = (listens, None, false);
        (server.sessions, server.statements, server.has) = (0, 0, 0);
    }

    /// Whether the host of that name refuses connections: its process has ended.
    pub fn is_refused(&self, name: &str) -> bool {
        let host = (NODES..PROXY).find(|host| name_of(*host) == name);
        host.is_some_and(|host| !self.known().servers[host - NODES].listens)
    }

    /// A reader begins to serve clients.
    pub fn begin_reading(&self, host: usize) {
        self.known().servers[host - NODES].epoch = Some(0);
    }

    /// A server serves no client any more, if it has none.
    pub fn close_if_unused(&self, host: usize) -> bool {
        let mut known = self.known();
        let server = &mut known.servers[host - NODES];
        let is_unused = server.sessions == 0;
        if is_unused {
            server.epoch = None;
        }
        is_unused
    }

    /// A start begins to serve clients.
    pub fn begin_serving(&self, host: usize, epoch: u64) {
        let mut known = self.known();
        known.serving.insert(epoch, clock::now());
        known.servers[host - NODES].epoch = Some(epoch);
    }

    /// A server has taken the database as start `epoch`; zero: it has left it.
    pub fn set_has(&self, host: usize, epoch: u64) {
        self.known().servers[host - NODES].has = epoch;
    }

    /// Whether a process is there that has the database as start `epoch`.
    pub fn is_had(&self, epoch: u64) -> bool {
        self.known().servers.iter().any(|server| server.has == epoch)
    }

    /// A server serves no client as the one that has the database.
    pub fn end_serving(&self, host: usize) {
        self.known().servers[host - NODES].epoch = None;
    }

    /// A start has answered a client by its lease, which it looked at after `begun`.
    pub fn note_answer(&self, epoch: u64, begun: Nanos) {
        let known = self.known();
        let later = known.serving.range(epoch + 1..).find(|(_, since)| **since < begun);
        let Some((later, since)) = later.map(|(later, since)| (*later, *since)) else {
            return;
        };
        drop(known);
        self.fail(format!(
            "start {epoch} answers at {begun}, though start {later} serves since {since}"
        ));
    }

    /// The host whose server has the database, and serves.
    pub fn serving_host(&self) -> Option<usize> {
        let known = self.known();
        (NODES..PROXY).find(|host| known.servers[host - NODES].epoch.is_some_and(|epoch| epoch > 0))
    }

    /// A client uses a server that serves as that start, or, zero, as a reader; false: it does not.
    pub fn enter(&self, name: &str, epoch: u64) -> bool {
        let Some(host) = (NODES..PROXY).find(|host| name_of(*host) == name) else {
            return false;
        };
        let mut known = self.known();
        let server = &mut known.servers[host - NODES];
        let serves = server.epoch == Some(epoch);
        if serves {
            server.sessions += 1;
            server.statements += 1;
        }
        serves
    }

    /// The client is done; whether its session was there until now.
    pub fn leave(&self, name: &str, epoch: u64) -> bool {
        let Some(host) = (NODES..PROXY).find(|host| name_of(*host) == name) else {
            return false;
        };
        let mut known = self.known();
        let server = &mut known.servers[host - NODES];
        let was_there = server.epoch == Some(epoch) && server.sessions > 0;
        server.sessions = server.sessions.saturating_sub(1);
        was_there
    }

    /// Sessions and statements of a server.
    pub fn used(&self, host: usize) -> (usize, u64) {
        let known = self.known();
        let server = &known.servers[host - NODES];
        (server.sessions, server.statements)
    }

    /// A client connects to a server itself.
    pub fn call(&self, host: usize) {
        self.known().servers[host - NODES].is_called = true;
    }

    pub fn takes_call(&self, host: usize) -> bool {
        std::mem::take(&mut self.known().servers[host - NODES].is_called)
    }

    // ---- time ----

    /// No fault is active from here on, or one is.
    pub fn set_whole(&self, is_whole: bool) {
        let since = &mut self.known().whole_since;
        match is_whole {
            true => _ = since.get_or_insert_with(clock::now),
            false => *since = None,
        }
    }

    /// Whether nothing is wrong, and all has settled.
    pub fn is_settled(&self) -> bool {
        self.known()
            .whole_since
            .is_some_and(|since| clock::now() > since + SETTLED)
    }

    pub fn count_served(&self) {
        self.served.fetch_add(1, SeqCst);
    }

    pub fn served(&self) -> u64 {
        self.served.load(SeqCst)
    }

    /// The proxy's client is to do nothing from here on.
    pub fn rest(&self) {
        self.rests.store(true, SeqCst);
    }

    pub fn rests(&self) -> bool {
        self.rests.load(SeqCst)
    }

    pub fn end_all(&self) {
        self.is_over.store(true, SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(SeqCst) || self.shared.has_failed()
    }

    /// Waits for something that has to come; if it does not, that is a failure.
    pub fn await_that(&self, what: &str, time: Nanos, mut is_so: impl FnMut() -> bool) -> bool {
        let until = rt::now() + time;
        while !self.shared.has_failed() {
            if is_so() {
                return true;
            }
            if rt::now() > until {
                self.fail(format!("{what}: not within {time}"));
                return false;
            }
            rt::sleep(Nanos::from_millis(20));
        }
        false
    }

    pub fn fail(&self, wrong: String) {
        self.shared.fail(wrong);
    }

    pub fn add_counts(&self) {
        self.shared.add("operations", self.served());
    }
}
