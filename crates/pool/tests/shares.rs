//! Idle clients that take all connections of their tenant, and those who have to get in all the same.

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Connection, Listener, Network};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::{Credentials, GrantedMemory, Operator};
use cenote_pool::limits::ServiceLimits;
use cenote_pool::manager::{Manager, ManagerOptions};
use cenote_pool::node::NodeOptions;
use cenote_pool::settings::Tenants;
use cenote_pool::store::file::FileStore;
use cenote_pool::{GrantView, Phase};
use common::{manager_options, network, node_options, requested, started_node, until};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const LEASE: Nanos = Nanos::from_secs(3);
/// So many that the share of each is small.
const TENANTS: usize = 2048;

fn tenants() -> Tenants {
    let mut text = "secret = \"staff\"\n".to_owned();
    for n in 0..TENANTS {
        text.push_str(&format!("[[tenant]]\nname = \"t{n}\"\nsecret = \"s{n}\"\n"));
    }
    Tenants::parse(&text).expect("tenants")
}

fn credentials(manager: &str, tenant: usize) -> Credentials {
    Credentials {
        manager: manager.into(),
        tenant: format!("t{tenant}"),
        secret: format!("s{tenant}"),
    }
}

/// A network whose connections can be cut.
#[derive(Debug, Default)]
struct Cut {
    made: Mutex<Vec<Arc<dyn Connection>>>,
    count: AtomicUsize,
}

impl Network for Cut {
    fn listen(&self, address: &str) -> Result<Box<dyn Listener>> {
        Tcp.listen(address)
    }

    fn connect(&self, address: &str, timeout: Nanos) -> Result<Arc<dyn Connection>> {
        let connection = Tcp.connect(address, timeout)?;
        self.made.lock().expect("no panic").push(Arc::clone(&connection));
        self.count.fetch_add(1, Ordering::SeqCst);
        Ok(connection)
    }
}

impl Cut {
    fn cut(&self) {
        self.made
            .lock()
            .expect("no panic")
            .drain(..)
            .for_each(|one| one.close());
    }
}

fn grant(manager: &str, tenant: usize) -> GrantView {
    let staff = Credentials {
        secret: "staff".into(),
        ..credentials(manager, 0)
    };
    let status = Operator::connect(&Tcp, &staff).expect("an operator gets in").status();
    let grants = status.expect("a status").grants;
    let its = grants.into_iter().find(|grant| grant.tenant == format!("t{tenant}"));
    its.expect("it is granted")
}

/// 1,000 idle clients of a tenant kept a healthy server from renewing its lease over another connection: it was fenced,
/// which killed it.
#[test]
fn idle_clients_keep_no_holder_from_renewing() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = ManagerOptions {
        tenants: tenants(),
        ..manager_options(&directory.path().join("manager"), "127.0.0.1:0", LEASE)
    };
    let manager = Manager::start(options, &Tcp).expect("a manager");
    let address = manager.address();
    let node = NodeOptions {
        secret: "staff".into(),
        ..node_options(&directory.path().join("node"), address, "east", 8)
    };
    let _node = started_node(node).expect("a node");
    let nets: Vec<Arc<Cut>> = (0..2).map(|_| Arc::default()).collect();
    let fenced: Arc<Mutex<Vec<String>>> = Arc::default();
    let hold = |tenant: usize| {
        let (net, fenced) = (Arc::clone(&nets[tenant]) as Arc<dyn Network>, Arc::clone(&fenced));
        let on_revoked = move |error: &Error| fenced.lock().expect("no panic").push(error.to_string());
        let credentials = credentials(address, tenant);
        GrantedMemory::open(&net, &credentials, requested("a", 2), Box::new(on_revoked)).expect("granted")
    };
    let held = [hold(0), hold(1)];
    let (idle, why) = fill(address);
    assert!(why.to_string().contains("tenant \"t0\" has"), "refused by name: {why}");
    assert!(matches!(why, Error::Busy(_)), "{why:?}");
    let began = rt::now();
    while rt::now().since(began) < Nanos(LEASE.raw() * 3) {
        nets.iter().for_each(|net| net.cut());
        rt::sleep(Nanos(LEASE.raw() / 6));
    }
    // Over a connection that is there, as it is released over it: one that was cut is noticed within a lease.
    let counts = || {
        nets.iter()
            .map(|net| net.count.load(Ordering::SeqCst))
            .collect::<Vec<_>>()
    };
    until("they have come after the last cut", || {
        let before = counts();
        rt::sleep(LEASE);
        counts() == before
    });
    for (tenant, net) in nets.iter().enumerate() {
        assert_eq!(grant(address, tenant).phase, Phase::Held, "tenant {tenant}");
        assert!(net.count.load(Ordering::SeqCst) > 3, "it came again and again");
    }
    assert_eq!(*fenced.lock().expect("no panic"), Vec::<String>::new());
    // The holder came over a place of holders, and may have left one of its tenant's.
    let (more, why) = fill(address);
    assert!(
        matches!(why, Error::Busy(_)) && more.len() <= 1,
        "{}: {why}",
        more.len()
    );
    drop((idle, more));
    until("there is room again", || client(address, 0).is_ok());
    held.into_iter()
        .for_each(|memory| memory.release(true).expect("released"));
}

/// A connection that is lost costs a holder one turn of its lease, and not two: the renewal that notices it goes over
/// another at once.
#[test]
fn a_lost_connection_costs_no_renewal() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = manager_options(&directory.path().join("manager"), "127.0.0.1:0", LEASE);
    let manager = Manager::start(options, &Tcp).expect("a manager");
    let _node = started_node(node_options(
        &directory.path().join("node"),
        manager.address(),
        "east",
        8,
    ));
    let net = Arc::<Cut>::default();
    let network = Arc::clone(&net) as Arc<dyn Network>;
    let credentials = common::credentials(manager.address());
    let held = GrantedMemory::open(&network, &credentials, requested("a", 2), Box::new(|_| ())).expect("granted");
    let count = || net.count.load(Ordering::SeqCst);
    // Cut when it has just come: it comes again with the next renewal, a quarter of a lease later.
    let took: Vec<Nanos> = (0..5)
        .map(|_| {
            let (before, began) = (count(), rt::now());
            net.cut();
            until("it comes again", || count() > before);
            rt::now().since(began)
        })
        .collect();
    let least = took.iter().min().copied().unwrap_or(Nanos::MAX);
    assert!(least < Nanos(LEASE.raw() * 2 / 5), "it came again after {took:?}");
    held.release(true).expect("released");
}

/// Of one tenant, which may have all but the last that are kept for others.
#[test]
fn a_manager_has_as_many_connections_as_it_was_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let limits = ServiceLimits {
        connections: 20,
        ..ServiceLimits::MANAGER
    };
    let store = Arc::new(FileStore::new(directory.path()));
    let options = manager_options(directory.path(), "127.0.0.1:0", LEASE);
    let manager = Manager::start_limited(store, options, limits, &Tcp).expect("a manager");
    let mut idle = Vec::new();
    let why = loop {
        match common::client(manager.address(), None).and_then(|client| client.spaces().map(|_| client)) {
            Ok(client) => idle.push(client),
            Err(why) => break why,
        }
        assert!(idle.len() <= 20, "there is a limit");
    };
    assert!(idle.len() >= 10, "{} clients", idle.len());
    assert!(
        matches!(why, Error::Busy(_)) && why.to_string().contains(" of 20 "),
        "{why}"
    );
}

fn client(manager: &str, tenant: usize) -> Result<PoolClient> {
    let client = PoolClient::connect(&network(), &credentials(manager, tenant), ClientOptions::default())?;
    client.spaces().map(|_| client)
}

/// All of a tenant's share is taken by clients that do nothing; and what the next one is told.
fn fill(manager: &str) -> (Vec<PoolClient>, Error) {
    let mut idle = Vec::new();
    loop {
        match client(manager, 0) {
            Ok(one) => idle.push(one),
            Err(error) => return (idle, error),
        }
        assert!(idle.len() < 1000, "there is a limit");
    }
}
