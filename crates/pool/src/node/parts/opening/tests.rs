//! Parts that wait for a manager that this test plays. The test opens them: no thread does.

use super::*;
use crate::host::{Host, Machine};
use crate::key::Key;
use crate::managers::Managers;
use crate::node::parts::Hosting;
use crate::node::rings::Rings;
use crate::wire::{self, Failure, Hello, Reply, Request, Welcome};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Listener, Network};
use cenote_fabric::rdma::loopback::Nodes;
use cenote_space::{Crew, EXTENT, HostOptions};
use std::path::Path;

const LEASE: Nanos = Nanos::from_secs(10);
const TIMEOUT: Nanos = Nanos::from_secs(60);

fn parts(directory: &Path, manager: &str) -> Parts {
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let managers = Managers::parse(manager).expect("an address");
    let hosting = Hosting {
        hosts: Arc::default(),
        callers: Arc::new(Nodes::default()),
        options: HostOptions::default(),
        registrar: None,
        crew: Arc::new(Crew::new(1).expect("threads")),
        mirroring: Some(Mirroring::new(&network, managers, crate::NodeId(1), "")),
    };
    let host: Arc<dyn Host> = Arc::new(Machine);
    let rings = Rings::new(&host, 1).expect("threads");
    Parts::find(directory, Some(hosting), Arc::new(rings)).expect("parts")
}

fn order() -> PartOrder {
    PartOrder {
        grant: GrantId(1),
        space: SpaceId(7),
        part: 1,
        tenant: "tenant".into(),
        bytes: 4 * EXTENT,
        key: Key::of(5),
        make: true,
        mirrored: true,
    }
}

/// It says of each part that another node keeps it.
fn play_manager(listener: &dyn Listener) {
    let connection = listener.accept(TIMEOUT).expect("no error").expect("it comes");
    let _: Hello = wire::receive(&*connection, TIMEOUT).expect("a hello");
    let welcome: Welcome = serde_json::from_str(r#"{"pool":1,"term":1,"lease":1000000000}"#).expect("one");
    wire::send(&*connection, &Ok::<_, Failure>(welcome)).expect("sent");
    while let Ok(Request::Mirror { .. }) = wire::receive(&*connection, TIMEOUT) {
        let refused = Error::Revoked("another node keeps it".into());
        wire::send(&*connection, &Reply::Failed(refused.into())).expect("sent");
    }
}

fn is_held_up(parts: &Parts) -> bool {
    parts.mirrored.is_held_up.load(Ordering::Acquire)
}

/// An order whose time had passed before it was its turn waited for all of it once more, and the manager took the node
/// for lost.
#[test]
fn an_order_to_keep_a_part_waits_from_its_beginning() {
    let directory = tempfile::tempdir().expect("a directory");
    let parts = parts(directory.path(), "127.0.0.1:1");
    let began = rt::now();
    let waited = parts.keep_until(began, &order(), LEASE);
    assert!(matches!(waited, Err(Error::Busy(_))), "{waited:?}");
    assert!(rt::now().since(began) < MAKE_WAIT);
}

/// An order had waited in vain, and what it waited for was freed: for good no order waited for a part any more, though
/// the manager was back.
#[test]
fn parts_that_were_freed_hold_up_no_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let parts = parts(directory.path(), "127.0.0.1:1");
    parts.keep_until(Nanos::ZERO, &order(), LEASE).expect_err("no manager");
    assert_eq!(parts.open_mirrored(LEASE, || false).len(), 1);
    assert!(is_held_up(&parts), "the manager is away");
    parts.close(GrantId(1)).expect("closed");
    assert!(parts.open_mirrored(LEASE, || false).is_empty());
    assert!(!is_held_up(&parts));
}

/// The same, when the manager had answered that the part is not this node's.
#[test]
fn a_part_that_the_manager_refuses_holds_up_no_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
    let parts = parts(directory.path(), &listener.address());
    let playing = rt::spawn("manager", move || play_manager(&*listener));
    parts
        .keep_until(Nanos::ZERO, &order(), LEASE)
        .expect_err("not open yet");
    assert!(is_held_up(&parts));
    let failed = parts.open_mirrored(LEASE, || false);
    assert!(matches!(failed[..], [Error::Revoked(_)]), "{failed:?}");
    assert!(!is_held_up(&parts));
    drop(parts);
    playing.join().expect("no panic");
}
