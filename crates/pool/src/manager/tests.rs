//! A manager, with memory nodes that this test plays.

use super::*;
use crate::grant_table::{NodeId, SpacePhase};
use crate::managers::Managers;
use crate::session::ManagerSession;
use crate::settings::{DEFAULT_TENANT, Tenants};
use crate::wire::{
    self, Failure, Hello, MirrorRequest, NodeHello, Order, OrderReply, Reply, Request, Role, SpaceRequest,
    SpaceSummary, VERSION, Welcome,
};
use cenote_fabric::message::Connection;
use cenote_fabric::message::tcp::Tcp;
use cenote_space::EXTENT;

const TIMEOUT: Nanos = Nanos::from_secs(60);

fn hello(role: Role) -> Hello {
    Hello {
        version: VERSION,
        role,
        secret: String::new(),
    }
}

fn node(id: u64) -> Role {
    Role::Node(NodeHello {
        id: NodeId(id),
        pool: None,
        pod: "pod".into(),
        bytes: 64 * EXTENT,
        directory: format!("/nowhere/{id}"),
        machine: id,
        members: format!("127.0.0.1:{id}"),
        calls: Some(format!("127.0.0.1:{id}")),
        last: crate::GrantId::default(),
    })
}

/// Joins as a memory node, and does what it is ordered until the manager is gone.
fn play_node(manager: &str, id: u64) -> rt::JoinHandle<()> {
    let connection = Tcp.connect(manager, TIMEOUT).expect("connected");
    let welcome: std::result::Result<Welcome, Failure> =
        wire::call(&*connection, &hello(node(id)), TIMEOUT).expect("an answer");
    welcome.map_err(Error::from).expect("welcome");
    wire::send(&*connection, &OrderReply::Done).expect("sent");
    rt::spawn("node", move || obey(&*connection))
}

fn obey(connection: &dyn Connection) {
    while let Ok(order) = wire::receive(connection, TIMEOUT) {
        let reply = match order {
            Order::Admit { .. } => OrderReply::Admitted { fresh: true },
            _ => OrderReply::Done,
        };
        if wire::send(connection, &reply).is_err() {
            return;
        }
    }
}

fn spaces(session: &ManagerSession) -> Vec<SpaceSummary> {
    match session.ask(&Request::Spaces).expect("asked") {
        Reply::Spaces(spaces) => spaces,
        other => panic!("{other:?}"),
    }
}

/// A mirrored space, once its parts are kept. Its mirrors are sought by no keeper, so nothing waits for them.
fn make_mirrored(session: &ManagerSession, maker: ManagerSession) -> SpaceSummary {
    let requested = SpaceRequest {
        name: "heap".into(),
        bytes: 8 * EXTENT,
        pods: None,
        mirrored: true,
    };
    rt::spawn("maker", move || maker.ask(&Request::CreateSpace(requested)));
    loop {
        let made = spaces(session).pop();
        if let Some(made) = made.filter(|space| space.phase == SpacePhase::Ready) {
            return made;
        }
        rt::sleep(Nanos::from_millis(10));
    }
}

/// A tenant could have a part's mirror take the part's place while its keeper served it, have it freed, or call it
/// whole.
#[test]
fn a_parts_mirror_is_no_matter_of_its_tenant() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = ManagerOptions {
        directory: directory.path().into(),
        listen: "127.0.0.1:0".into(),
        tenants: Tenants::default(),
        lease: LEASE_DEFAULT,
    };
    let manager = Manager::start(options, &Tcp).expect("a manager");
    let nodes = [1, 2].map(|id| play_node(manager.address(), id));
    let managers = Managers::parse(manager.address()).expect("an address");
    let tenant = || {
        let hello = hello(Role::Tenant(DEFAULT_TENANT.into()));
        ManagerSession::begin(&Tcp, &managers, &hello).expect("a session")
    };
    let session = tenant();
    let made = make_mirrored(&session, tenant());
    let (grant, epoch) = (made.parts[0].grant, 1);
    for what in [MirrorRequest::FailOver, MirrorRequest::Look, MirrorRequest::Seek] {
        let refused = session.ask(&Request::Mirror { grant, epoch, what });
        let Err(Error::Invalid(text)) = &refused else {
            panic!("{what:?}: {refused:?}")
        };
        assert!(
            text.contains(&format!("grant {grant} is part 1 of space \"heap\"")),
            "{text}"
        );
    }
    drop((session, manager));
    nodes.into_iter().for_each(|node| node.join().expect("no panic"));
}
