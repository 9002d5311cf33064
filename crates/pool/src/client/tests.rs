//! Spaces that are asked for while the manager drops, makes or has them.

use super::{ClientOptions, Members, Opening, Pool, PoolClient};
use crate::grant_table::{GrantId, NodeId, SpaceId, SpacePhase};
use crate::holder::Credentials;
use crate::key::Key;
use crate::managers::Managers;
use crate::member::{MemberHello, MemberReply, MemberRequest, MemberWelcome};
use crate::settings::DEFAULT_TENANT;
use crate::wire::{self, Failure, Hello, PartView, Reply, Request, SpaceSummary, SpaceView, Welcome};
use cenote_base::Error;
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Connection, Listener, Network};
use cenote_space::SessionId;
use std::sync::{Arc, Weak};

const TIMEOUT: Nanos = Nanos::from_secs(60);

fn summary(phase: SpacePhase) -> SpaceSummary {
    SpaceSummary {
        id: SpaceId(1),
        tenant: DEFAULT_TENANT.into(),
        name: "heap".into(),
        phase,
        parts: Vec::new(),
        lost: Vec::new(),
        mirrored: false,
    }
}

/// A manager that knows one space. Says whether another one was asked for.
fn play(listener: &dyn Listener, phase: SpacePhase) -> bool {
    let connection = listener.accept(TIMEOUT).expect("no error").expect("it comes");
    let send = |reply: &Reply| wire::send(&*connection, reply).expect("sent");
    let _: Hello = wire::receive(&*connection, TIMEOUT).expect("a hello");
    let welcome: Welcome = serde_json::from_str(r#"{"pool":1,"term":1,"lease":1000000000}"#).expect("one");
    wire::send(&*connection, &Ok::<_, Failure>(welcome)).expect("sent");
    loop {
        match wire::receive(&*connection, TIMEOUT) {
            Ok(Request::Spaces) => send(&Reply::Spaces(vec![summary(phase)])),
            Ok(Request::CreateSpace(_)) => {
                let (id, key) = (SpaceId(2), Key::of(2));
                send(&Reply::Space(SpaceView {
                    id,
                    key,
                    parts: Vec::new(),
                }));
                return true;
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => return false,
        }
    }
}

/// The story: a space was being dropped when it was asked for with a size. It counted as there, and then there was
/// none of its name.
#[test]
fn a_space_that_is_being_dropped_is_made_anew() {
    for (phase, makes) in [
        (SpacePhase::Dropping, true),
        (SpacePhase::Ready, false),
        (SpacePhase::Making, false),
    ] {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let credentials = Credentials {
            manager: listener.address(),
            tenant: DEFAULT_TENANT.into(),
            secret: String::new(),
        };
        let playing = rt::spawn("manager", move || play(&*listener, phase));
        let network: Arc<dyn Network> = Arc::new(Tcp);
        let pool = PoolClient::connect(&network, &credentials, ClientOptions::default()).expect("connected");
        pool.ensure_space("heap", 1 << 30).expect("there");
        drop(pool);
        assert_eq!(playing.join().expect("no panic"), makes, "{phase}");
    }
}

/// A memory node that lets a member in, also when it comes again, and does what it asks.
fn play_node() -> String {
    play_node_that(|_| MemberReply::Done)
}

/// The same, with another answer.
fn play_node_that(answers: fn(&MemberRequest) -> MemberReply) -> String {
    play_node_noting(answers).0
}

/// What a node has heard.
type Hellos = Arc<Mutex<Vec<MemberHello>>>;

fn play_node_noting(answers: fn(&MemberRequest) -> MemberReply) -> (String, Hellos) {
    let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
    let (address, hellos) = (listener.address(), Hellos::default());
    let heard = Arc::clone(&hellos);
    rt::spawn("node", move || {
        while let Ok(Some(connection)) = listener.accept(TIMEOUT) {
            serve_member(&*connection, answers, &heard);
        }
    });
    (address, hellos)
}

fn serve_member(connection: &dyn Connection, answers: fn(&MemberRequest) -> MemberReply, heard: &Hellos) {
    heard.lock().push(wire::receive(connection, TIMEOUT).expect("a hello"));
    let welcome = MemberWelcome {
        epoch: 0,
        lease: TIMEOUT.raw(),
        ring: None,
    };
    wire::send(connection, &Ok::<_, Failure>(welcome)).expect("sent");
    while let Ok(request) = wire::receive(connection, TIMEOUT) {
        wire::send(connection, &answers(&request)).ok();
    }
}

/// A manager that knows where the parts of a space are.
fn play_view(view: &SpaceView) -> String {
    let (listener, view) = (Tcp.listen("127.0.0.1:0").expect("a free port"), view.clone());
    let address = listener.address();
    rt::spawn("manager", move || {
        while let Ok(Some(connection)) = listener.accept(TIMEOUT) {
            let view = view.clone();
            rt::spawn("session", move || serve_view(&*connection, &view));
        }
    });
    address
}

fn serve_view(connection: &dyn Connection, view: &SpaceView) {
    let _: Hello = wire::receive(connection, TIMEOUT).expect("a hello");
    let welcome: Welcome = serde_json::from_str(r#"{"pool":1,"term":1,"lease":1000000000}"#).expect("one");
    wire::send(connection, &Ok::<_, Failure>(welcome)).expect("sent");
    while let Ok(Request::OpenSpace { .. }) = wire::receive(connection, TIMEOUT) {
        wire::send(connection, &Reply::Space(view.clone())).expect("sent");
    }
}

fn part(number: u8, node: u64, members: Option<&str>) -> PartView {
    PartView {
        number,
        grant: GrantId(u64::from(number)),
        bytes: 0,
        node: NodeId(node),
        pod: "pod".into(),
        machine: 0,
        path: String::new(),
        members: members.map(str::to_owned),
        calls: None,
        mirrored: true,
    }
}

fn opening(manager: String) -> Arc<Opening> {
    let credentials = Credentials {
        manager,
        tenant: DEFAULT_TENANT.into(),
        secret: String::new(),
    };
    let pool = Arc::new(Pool {
        network: Arc::new(Tcp),
        managers: Managers::parse(&credentials.manager).expect("an address"),
        hello: credentials.tenants_hello(),
        options: ClientOptions {
            timeout: Nanos::from_secs(5),
            ..ClientOptions::default()
        },
        manager: Mutex::new(None),
    });
    Arc::new_cyclic(|me| Opening {
        me: Weak::clone(me),
        pool,
        name: "heap".into(),
        members: Mutex::default(),
        places: Mutex::default(),
        standing: Arc::default(),
        look_at: Default::default(),
    })
}

/// The story: a node that kept two parts was lost, and one of them had no keeper yet. The other, which had one, was not
/// reached either, as long as that was so.
#[test]
fn a_part_that_is_nowhere_keeps_no_other_away() {
    let (former, next) = (play_node(), play_node());
    let view = |parts| SpaceView {
        id: SpaceId(1),
        key: Key::of(1),
        parts,
    };
    let before = view(vec![part(1, 1, Some(&former)), part(2, 1, Some(&former))]);
    let after = view(vec![part(1, 1, None), part(2, 2, Some(&next))]);
    let opening = opening(play_view(&after));
    let member = opening
        .member_at(&mut Members::default(), &before, &before.parts[0], &former)
        .expect("a member");
    let places = [0, 1].map(|n| opening.place(&before.parts[n], Arc::clone(&member)));
    member.set_moved();
    let nodes = || [0, 1].map(|n: usize| places[n].member().node());
    for _ in 0..2 {
        let failed = opening.follow(NodeId(1));
        assert!(matches!(failed, Err(Error::Lost(_))), "{failed:?}");
        assert_eq!(nodes(), [NodeId(1), NodeId(2)]);
    }
}

/// The same, of a request: its part was at the next node by then, and it tried to follow the other one for as long as a
/// request may take, and failed.
#[test]
fn a_request_of_a_part_that_has_moved_waits_for_no_other() {
    let former = play_node_that(|request| match request {
        MemberRequest::Audit { .. } => MemberReply::Failed(Error::Revoked("not kept here".into()).into()),
        _ => MemberReply::Done,
    });
    let next = play_node();
    let view = |parts| SpaceView {
        id: SpaceId(1),
        key: Key::of(1),
        parts,
    };
    let before = view(vec![part(1, 1, Some(&former)), part(2, 1, Some(&former))]);
    let after = view(vec![part(1, 1, None), part(2, 2, Some(&next))]);
    let opening = opening(play_view(&after));
    let member = opening
        .member_at(&mut Members::default(), &before, &before.parts[0], &former)
        .expect("a member");
    let places = [0, 1].map(|n| opening.place(&before.parts[n], Arc::clone(&member)));
    let answer = places[1].ask(&MemberRequest::Audit { part: 2 }, &mut 0);
    assert!(matches!(answer, Ok(MemberReply::Done)), "{answer:?}");
    assert_eq!([0, 1].map(|n: usize| places[n].member().node()), [NodeId(1), NodeId(2)]);
}

/// A part's host was called at the node of its mirror before that had heard what its members had begun: it took that
/// for ended. And it heard it with the next sign of life, which could be later than it waited.
#[test]
fn the_next_node_hears_what_has_begun_before_it_is_asked() {
    let former = play_node_that(|request| match request {
        MemberRequest::Begin { .. } => MemberReply::Begun(SessionId(7)),
        _ => MemberReply::Done,
    });
    let (next, hellos) = play_node_noting(|_| MemberReply::Done);
    let view = |node, members: &str| SpaceView {
        id: SpaceId(1),
        key: Key::of(1),
        parts: vec![part(1, node, Some(members))],
    };
    let before = view(1, &former);
    let opening = opening(play_view(&view(2, &next)));
    let member = opening
        .member_at(&mut Members::default(), &before, &before.parts[0], &former)
        .expect("a member");
    let place = opening.place(&before.parts[0], Arc::clone(&member));
    let begun = place.ask(&MemberRequest::Begin { part: 1 }, &mut 0);
    assert!(matches!(begun, Ok(MemberReply::Begun(SessionId(7)))), "{begun:?}");
    member.set_moved();
    opening.follow(NodeId(1)).expect("it is there");
    assert_eq!(place.member().node(), NodeId(2));
    let last = hellos.lock().last().cloned().expect("a hello");
    assert_eq!((last.sessions, last.ending), (vec![(1, SessionId(7))], vec![]));
}

/// Each error of a mirrored part's request asked the manager where the part was, also one that its node had answered:
/// that took seconds each while the manager was away.
#[test]
fn an_answer_of_its_node_does_not_ask_where_a_part_is() {
    let full = play_node_that(|request| match request {
        MemberRequest::Audit { .. } => MemberReply::Failed(Error::Full("no room".into()).into()),
        _ => MemberReply::Done,
    });
    let next = play_node();
    let view = |node, members: &str| SpaceView {
        id: SpaceId(1),
        key: Key::of(1),
        parts: vec![part(1, node, Some(members))],
    };
    let before = view(1, &full);
    let opening = opening(play_view(&view(2, &next)));
    let member = opening
        .member_at(&mut Members::default(), &before, &before.parts[0], &full)
        .expect("a member");
    let place = opening.place(&before.parts[0], member);
    let answer = place.ask(&MemberRequest::Audit { part: 1 }, &mut 0);
    assert!(matches!(answer, Err(Error::Full(_))), "{answer:?}");
    assert_eq!(place.member().node(), NodeId(1));
}
