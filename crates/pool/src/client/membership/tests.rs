//! Memberships at a memory node that this test plays.

use super::*;
use crate::client::ClientOptions;
use crate::grant_table::{GrantId, NodeId, SpaceId};
use crate::holder::Credentials;
use crate::managers::Managers;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Listener, Network};
use cenote_fabric::rdma::call::{Answer, Called, CallerId, Callers};
use cenote_fabric::ring::{Node, Options};
use cenote_space::{Channel, FarPart, GlobalAddress, LocalKeeper, Part, PartOptions, Space};

const TIMEOUT: Nanos = Nanos::from_secs(60);
/// Signs of life come each quarter of it.
const LEASE: Nanos = Nanos::from_millis(400);

/// A node that answers as it is told.
struct Played(Box<dyn Listener>);

impl Played {
    fn new() -> Self {
        Self(Tcp.listen("127.0.0.1:0").expect("a free port"))
    }

    /// The next connection, after its hello.
    fn accept(&self) -> (Arc<dyn Connection>, MemberHello) {
        let connection = self.0.accept(TIMEOUT).expect("no error").expect("it comes");
        let hello = wire::receive(&*connection, TIMEOUT).expect("a hello");
        (connection, hello)
    }

    fn welcome(&self) -> Arc<dyn Connection> {
        self.welcome_to(None)
    }

    fn welcome_to(&self, ring: Option<RingSeat>) -> Arc<dyn Connection> {
        let (connection, _) = self.accept();
        welcome(&*connection, ring);
        connection
    }
}

fn welcome(connection: &dyn Connection, ring: Option<RingSeat>) {
    let welcome = MemberWelcome {
        epoch: 0,
        lease: LEASE.raw(),
        ring,
    };
    wire::send(connection, &Ok::<_, Failure>(welcome)).expect("sent");
}

fn hears(connection: &dyn Connection, wanted: &MemberRequest, reply: &MemberReply) {
    let request: MemberRequest = wire::receive(connection, TIMEOUT).expect("a request");
    assert_eq!(request, *wanted);
    wire::send(connection, reply).expect("sent");
}

fn failed(error: Error) -> MemberReply {
    MemberReply::Failed(error.into())
}

/// Begins one; what it is told of its end comes out of the other.
fn begin(node: &Played) -> (rt::JoinHandle<Result<Membership>>, Arc<Mutex<Vec<String>>>) {
    begin_by(node, "127.0.0.1:1")
}

fn begin_by(node: &Played, manager: &str) -> (rt::JoinHandle<Result<Membership>>, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&told);
    let credentials = Credentials {
        manager: manager.into(),
        tenant: "default".into(),
        secret: String::new(),
    };
    let options = ClientOptions {
        on_revoked: Arc::new(move |error| theirs.lock().push(error.to_string())),
        ..ClientOptions::default()
    };
    let pool = Arc::new(Pool {
        network: Arc::new(Tcp),
        managers: Managers::parse(&credentials.manager).expect("an address"),
        hello: credentials.tenants_hello(),
        options,
        manager: Mutex::new(None),
    });
    let part = PartView {
        number: 1,
        grant: GrantId(1),
        bytes: 0,
        node: NodeId(1),
        pod: "pod".into(),
        machine: 0,
        path: String::new(),
        members: None,
        calls: None,
        mirrored: false,
    };
    let view = SpaceView {
        id: SpaceId(1),
        key: Key::of(1),
        parts: vec![part.clone()],
    };
    let address = node.0.address();
    let begin = move || {
        Membership::begin(
            (&pool, "heap"),
            &view,
            &part,
            &address,
            &Arc::default(),
            Box::new(|_| ()),
        )
    };
    (rt::spawn("begins", begin), told)
}

/// Reached once; then no more, until it hangs.
#[derive(Debug, Default)]
struct Hanging {
    was_reached: AtomicBool,
    hangs: Event,
    over: Event,
}

impl Callers for Hanging {
    fn caller(&self, _: &str) -> Result<Arc<dyn Caller>> {
        if self.hangs.is_set() {
            self.over.wait();
        } else if self.was_reached.swap(true, Ordering::AcqRel) {
            return Err(Error::Lost("it is away".into()));
        }
        Ok(Arc::new(Silent))
    }
}

/// Answers hellos, and nothing else.
#[derive(Debug)]
struct Silent;

impl Caller for Silent {
    fn peer(&self) -> &str {
        "silent"
    }

    fn id(&self) -> CallerId {
        CallerId(1)
    }

    fn post(&self, mut calls: Vec<Call>) -> Called {
        for call in &mut calls {
            let is_hello = call.request.windows(5).any(|bytes| bytes == b"space");
            match is_hello {
                true => call.answer = 7u64.to_le_bytes().to_vec(),
                false => call.result = Err(Error::Timeout("no answer".into())),
            }
        }
        Called::done(calls)
    }
}

/// A way over which a store was given up.
fn in_doubt(node: &Arc<Hanging>) -> Arc<Channel> {
    let hello = cenote_space::Hello {
        space: 1,
        part: 2,
        key: 1,
        pod: "pod".into(),
    };
    let channel = Arc::new(Channel::new(Arc::clone(node) as _, "silent", hello));
    let space = Space::new(1);
    let far = FarPart {
        number: 2,
        pod: "other".into(),
        channel: Arc::clone(&channel),
    };
    let options = PartOptions {
        space: 1,
        part: 2,
        tenant: 0,
        bytes: 16 << 20,
        movable: true,
        region: cenote_fabric::RegionOptions::default(),
    };
    let keeper = Arc::new(LocalKeeper::new(Arc::new(Part::dram(&options).expect("memory"))).expect("a keeper"));
    space.attach_far(far, keeper).expect("attached");
    let address = GlobalAddress::new(2, 1, 0, 1).expect("an address");
    space.store(address, 1).expect_err("it is given up");
    assert!(!channel.is_settled());
    channel
}

/// While a process that closed a space waited for a node that hung, it said nothing to the others: one of them took it
/// for silent, and ended it.
#[test]
fn a_member_that_waits_for_a_node_that_hangs_is_not_silent() {
    let (node, hanging) = (Played::new(), Arc::new(Hanging::default()));
    let (member, connection, _) = begun(&node);
    member.0.standing.add_channel(&in_doubt(&hanging));
    hanging.hangs.set();
    drop(member);
    (0..5).for_each(|_| hears(&*connection, &MemberRequest::Ping, &MemberReply::Done));
    hanging.over.set();
    loop {
        let request: MemberRequest = wire::receive(&*connection, TIMEOUT).expect("a request");
        wire::send(&*connection, &MemberReply::Done).expect("sent");
        if request == MemberRequest::Leave {
            break;
        }
    }
}

fn begun(node: &Played) -> (Membership, Arc<dyn Connection>, Arc<Mutex<Vec<String>>>) {
    let (beginning, told) = begin(node);
    let connection = node.welcome();
    hears(&*connection, &MemberRequest::Ping, &MemberReply::Done);
    let member = beginning.join().expect("no panic").expect("a member");
    (member, connection, told)
}

/// A node was lost, and its parts' mirrors were there. A member asked the manager for them once a second, and came
/// later than after a lease of a second: its sessions had ended.
#[test]
fn a_node_is_looked_for_several_times_in_a_lease() {
    const LOOKS: u64 = 9;
    let (node, manager) = (Played::new(), Tcp.listen("127.0.0.1:0").expect("a free port"));
    let (beginning, _) = begin_by(&node, &manager.address());
    let connection = node.welcome();
    hears(&*connection, &MemberRequest::Ping, &MemberReply::Done);
    let _member = beginning.join().expect("no panic").expect("a member");
    drop(node);
    connection.close();
    let began = rt::now();
    for _ in 0..LOOKS {
        let asked = manager.accept(TIMEOUT).expect("no error");
        asked.expect("the manager is asked").close();
    }
    assert!(rt::now().since(began) < Nanos(FIND_AGAIN.raw() * (LOOKS - 1)));
}

/// It says which sessions may have ended, as it has asked for that: a node may have done it, and not have been heard.
#[test]
fn an_end_that_is_not_answered_is_said_with_the_next_hello() {
    let node = Played::new();
    let (member, connection, _) = begun(&node);
    let (part, session) = (1, SessionId(3));
    let member = Arc::new(member);
    let theirs = Arc::clone(&member);
    let asking = rt::spawn("asks", move || {
        theirs.ask(&MemberRequest::Begin { part }, &mut 0).expect("begun");
        theirs.ask(&MemberRequest::End { part, session }, &mut 0)
    });
    while !hears_soon(
        &*connection,
        &MemberRequest::Begin { part },
        &MemberReply::Begun(session),
    ) {}
    let end = MemberRequest::End { part, session };
    // Signs of life may come first.
    while wire::receive::<MemberRequest>(&*connection, TIMEOUT).expect("a request") != end {
        wire::send(&*connection, &MemberReply::Done).expect("sent");
    }
    connection.close();
    let (connection, hello) = node.accept();
    assert_eq!(
        (&hello.sessions, &hello.ending),
        (&vec![(part, session)], &hello.sessions)
    );
    welcome(&*connection, None);
    while !hears_soon(&*connection, &end, &MemberReply::Done) {}
    assert_eq!(asking.join().expect("no panic").expect("ended"), MemberReply::Done);
    assert!(member.0.link.lock().sessions.is_empty());
}

/// The bug: the answer to a heartbeat said that it is over. No other was sent, no caller was told, and the application
/// went on with memory that was another's.
#[test]
fn a_fenced_member_is_told_so() {
    let node = Played::new();
    let (_member, connection, told) = begun(&node);
    hears(
        &*connection,
        &MemberRequest::Ping,
        &failed(Error::Revoked("silent".into())),
    );
    let (again, _) = node.accept();
    let refused: std::result::Result<MemberWelcome, Failure> = Err(Error::Revoked("silent".into()).into());
    wire::send(&*again, &refused).expect("sent");
    let began = rt::now();
    while told.lock().is_empty() {
        assert!(rt::now().since(began) < TIMEOUT, "no caller is told");
        rt::sleep(Nanos::from_millis(5));
    }
    assert_eq!(told.lock().len(), 1);
}

/// The story: a space was closed when the connection with its node had just broken. The node took the member for
/// silent, and ended its process, which had opened the space again by then.
#[test]
fn a_node_hears_of_the_end_over_another_connection() {
    let node = Played::new();
    let (member, connection, _) = begun(&node);
    connection.close();
    drop(member);
    // Signs of life may be under way.
    loop {
        let next = node.welcome();
        match wire::receive(&*next, TIMEOUT).expect("a request") {
            MemberRequest::Leave => return wire::send(&*next, &MemberReply::Done).expect("sent"),
            MemberRequest::Ping => next.close(),
            other => panic!("{other:?}"),
        }
    }
}

/// What a ring answers that cannot be, or that is of a connection before, is asked over the connection, which knows;
/// the ring is asked again after that.
#[test]
fn what_a_ring_does_not_tell_is_asked_over_the_connection() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("ring");
    let (alive, revoked) = (MemberReply::Alive(true), failed(Error::Revoked("of before".into())));
    let written = |reply: &MemberReply| serde_json::to_vec(reply).expect("written");
    let answers = Mutex::new(vec![
        written(&alive),
        b"nonsense".to_vec(),
        written(&revoked),
        written(&alive),
    ]);
    let served = move |_, _: &[u8], answer: Answer| answer.with(&answers.lock().pop().expect("asked four times"));
    let ring = Node::start(&path, Options::default(), Arc::new(served)).expect("a ring");
    let seat = RingSeat::new(&path, ring.admit(0).expect("a seat"));
    let node = Played::new();
    let (beginning, _) = begin(&node);
    let connection = node.welcome_to(Some(seat));
    hears(&*connection, &MemberRequest::Ping, &MemberReply::Done);
    let member = Arc::new(beginning.join().expect("no panic").expect("a member"));
    let (part, session) = (1, SessionId(3));
    let request = MemberRequest::IsAlive { part, session };
    for over_connection in [false, true, true, false] {
        let (theirs, asked) = (Arc::clone(&member), request.clone());
        let asking = rt::spawn("asks", move || theirs.ask(&asked, &mut 0));
        while over_connection && !hears_soon(&*connection, &request, &MemberReply::Alive(false)) {}
        let answer = asking.join().expect("no panic").expect("an answer");
        assert_eq!(answer, MemberReply::Alive(!over_connection));
    }
}

/// The next request; signs of life are answered on the way.
fn hears_soon(connection: &dyn Connection, wanted: &MemberRequest, reply: &MemberReply) -> bool {
    let request: MemberRequest = wire::receive(connection, TIMEOUT).expect("a request");
    let is_it = request == *wanted;
    assert!(is_it || request == MemberRequest::Ping, "{request:?}");
    let reply = if is_it { reply } else { &MemberReply::Done };
    wire::send(connection, reply).expect("sent");
    is_it
}

/// The story: a seat that was lost, or had one error, was missed until the connection broke for another reason. Now the
/// next sign of life asks for another.
#[test]
fn a_member_that_has_lost_its_seat_asks_for_another() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("ring");
    let alive = serde_json::to_vec(&MemberReply::Alive(true)).expect("written");
    let served = move |_, _: &[u8], answer: Answer| answer.with(&alive);
    let ring = Node::start(&path, Options::default(), Arc::new(served)).expect("a ring");
    let seat = || ring.admit(0).expect("a seat");
    let (node, first) = (Played::new(), seat());
    let (beginning, _) = begin(&node);
    let connection = node.welcome_to(Some(RingSeat::new(&path, first)));
    hears(&*connection, &MemberRequest::Ping, &MemberReply::Done);
    let member = beginning.join().expect("no panic").expect("a member");
    assert!(member.0.seat().is_some());
    ring.dismiss(CallerId(first.caller));
    assert!(member.0.seat().is_none(), "it is over");
    // Signs of life that were under way.
    while wire::receive::<MemberRequest>(&*connection, TIMEOUT).is_ok() {
        let _ = wire::send(&*connection, &MemberReply::Done);
    }
    let connection = node.welcome_to(Some(RingSeat::new(&path, seat())));
    hears(&*connection, &MemberRequest::Ping, &MemberReply::Done);
    assert!(member.0.seat().is_some_and(|ring| !ring.is_over()));
}
