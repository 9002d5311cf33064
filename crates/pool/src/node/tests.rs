//! A memory node on a machine that this test plays.

mod mirrored;

use super::directory::PROBE;
use super::*;
use crate::grant_table::SpaceId;
use crate::host::Process;
use crate::key::Key;
use crate::member::{MemberHello, MemberId, MemberReply, MemberRequest, MemberWelcome};
use crate::wire::Failure;
use crate::wire::PartOrder;
use cenote_base::rt::atomic::{AtomicBool, AtomicU32};
use cenote_base::rt::fs;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::call::Caller;
use cenote_fabric::ring::{User, UserOptions};
use cenote_space::{Class, Keeper, Lifetime, SessionId};
use std::path::Path;

const TIMEOUT: Nanos = Nanos::from_secs(60);
/// So long that none lapses here.
const LONG: Nanos = Nanos::from_secs(1000);
const GRANT: GrantId = GrantId(3);

/// What it shows of its processes, and whether they end.
#[derive(Clone, Default)]
struct Stage(Arc<State>);

#[derive(Default)]
struct State {
    is_blind: AtomicBool,
    is_stuck: AtomicBool,
    is_hidden: AtomicBool,
    is_held: AtomicBool,
    /// How often processes that are no members were to be ended.
    ended_others: AtomicU32,
}

impl Host for Stage {
    fn holders(&self, _: &Path) -> Result<Vec<String>> {
        let seen = !self.0.is_blind.load(Ordering::Acquire);
        Ok(seen.then(|| "this process".to_owned()).into_iter().collect())
    }

    fn end_holders(&self, _: &Path, _: Nanos) -> Result<()> {
        match self.0.is_held.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::Busy("this process maps it".into())),
        }
    }

    fn end_others(&self, _: &Path, _: &[Process], _: Nanos) -> Result<()> {
        self.0.ended_others.fetch_add(1, Ordering::AcqRel);
        match self.0.is_stuck.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::Busy("a process does not end".into())),
        }
    }

    fn is_there(&self, _: Process) -> bool {
        true
    }

    fn is_seen(&self, _: Process) -> bool {
        !self.0.is_hidden.load(Ordering::Acquire)
    }

    fn end_process(&self, _: Process, _: &[PathBuf], _: Nanos) -> Result<()> {
        Ok(())
    }
}

type Prepared = Result<(Arc<NodeState>, Box<dyn Listener>)>;

/// A node, before it is heard. No manager is there.
fn prepare(directory: &Path, stage: &Stage) -> Prepared {
    let options = NodeOptions {
        pod: "pod".into(),
        bytes: 16 << 20,
        directory: directory.into(),
        manager: "127.0.0.1:1".into(),
        secret: String::new(),
        listen: "127.0.0.1:0".into(),
        calls: None,
    };
    let prepared = MemoryNode::prepare(options, NodeLimits::default(), Arc::new(Tcp), Box::new(stage.clone()))?;
    prepared.0.lease.store(LONG.raw(), Ordering::Release);
    Ok(prepared)
}

fn order() -> PartOrder {
    PartOrder {
        grant: GRANT,
        space: SpaceId(9),
        part: 1,
        tenant: "default".into(),
        bytes: 8 << 20,
        key: Key::of(7),
        make: true,
        mirrored: false,
    }
}

/// A node that was started anew, with a part.
fn restarted(directory: &Path, stage: &Stage) -> (Arc<NodeState>, Box<dyn Listener>) {
    let (first, _) = prepare(directory, stage).expect("a node");
    first.parts.keep(&order(), LONG).expect("a part");
    drop(first);
    prepare(directory, stage).expect("a node")
}

type Welcomed = (Arc<dyn Connection>, std::result::Result<MemberWelcome, Failure>);

/// A member that this node cannot end, as it runs elsewhere.
fn hello(node: &MemoryNode, member: u128) -> Welcomed {
    hello_of(node, member, 1)
}

fn hello_of(node: &MemoryNode, member: u128, machine: u64) -> Welcomed {
    hello_with(node, member, machine, false)
}

fn hello_with(node: &MemoryNode, member: u128, machine: u64, ring: bool) -> Welcomed {
    let sessions = Vec::new();
    say_hello(
        node,
        &MemberHello {
            ring,
            sessions,
            ..claiming(member, machine, 1)
        },
    )
}

fn say_hello(node: &MemoryNode, hello: &MemberHello) -> Welcomed {
    let connection = Tcp.connect(node.address(), TIMEOUT).expect("connected");
    let welcome = wire::call(&*connection, hello, TIMEOUT).expect("an answer");
    (connection, welcome)
}

/// A hello that names a session of part 1.
fn claiming(member: u128, machine: u64, session: u64) -> MemberHello {
    MemberHello {
        version: VERSION,
        space: SpaceId(9),
        key: Key::of(7),
        member: MemberId(member),
        parts: vec![1],
        machine,
        process: Process { pid: 1, start: 1 },
        name: "x".into(),
        sessions: vec![(1, SessionId(session))],
        ending: Vec::new(),
        ring: false,
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = rt::now();
    while !is_so() {
        assert!(rt::now().since(began) < TIMEOUT, "{what}");
        rt::sleep(Nanos::from_millis(5));
    }
}

/// On some file systems no process is seen to map anything, and memory in use would be given to the next.
#[test]
fn a_directory_that_does_not_show_its_users_is_refused() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let stage = Stage::default();
    stage.0.is_blind.store(true, Ordering::Release);
    let refused = prepare(directory.path(), &stage).err();
    assert!(
        matches!(&refused, Some(Error::Mismatch(text)) if text.contains("fenced")),
        "{refused:?}"
    );
    stage.0.is_blind.store(false, Ordering::Release);
    prepare(directory.path(), &stage).expect("a node");
    assert!(!directory.path().join(PROBE).exists());
    let options = prepare(directory.path(), &stage).expect("a node").0.options.clone();
    let node = MemoryNode::start(options, Arc::new(Tcp), Box::new(crate::host::Machine));
    node.expect("this machine shows it");
}

/// The story: a process had changed its user since it began, so that its memory map is not shown. It counted as one
/// that maps nothing: it was not ended, and what it used was free.
#[test]
fn a_process_that_hides_its_mappings_is_no_member() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let stage = Stage::default();
    let (inner, listener) = restarted(directory.path(), &stage);
    let node = MemoryNode::run(inner, listener);
    let here = cenote_fabric::boot();
    hello_of(&node, 5, here).1.expect("a member");
    stage.0.is_hidden.store(true, Ordering::Release);
    let refused = hello_of(&node, 6, here).1.map_err(Error::from);
    assert!(
        matches!(&refused, Err(Error::Mismatch(text)) if text.contains("maps")),
        "{refused:?}"
    );
    hello(&node, 7).1.expect("elsewhere that does not matter");
    assert!(crate::host::Machine.is_seen(Process::this()));
}

/// The bug: a node took longer than a lease to open its parts, and heard no member meanwhile. Then it ended all of its
/// members for their silence.
#[test]
fn members_have_a_whole_lease_however_long_the_start_took() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let stage = Stage::default();
    let (inner, listener) = restarted(directory.path(), &stage);
    let kept = inner.parts.all().pop().expect("a part");
    kept.set_former_until(Nanos::ZERO);
    let _node = MemoryNode::run(inner, listener);
    let waits = |kept: &parts::Kept| kept.former().is_some_and(|former| former.until > rt::now());
    until("it waits for them", || {
        waits(&kept) || stage.0.ended_others.load(Ordering::Acquire) > 0
    });
    rt::sleep(Nanos::from_millis(200));
    assert_eq!(stage.0.ended_others.load(Ordering::Acquire), 0);
    assert!(waits(&kept));
}

/// The bug: a request took longer than a lease, as the part is large. The member, and all that waited for the same
/// keeper, were ended for saying nothing.
#[test]
fn a_member_that_waits_for_an_answer_is_not_silent() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    let (_connection, welcome) = hello(&node, 5);
    welcome.expect("a member");
    let inner = &node.state;
    let served = inner.attend(MemberId(5), 1, || {
        inner.lease.store(1, Ordering::Release);
        rt::sleep(Nanos::from_millis(300));
        let lapsed = inner.lapsed();
        inner.lease.store(LONG.raw(), Ordering::Release);
        Ok(lapsed)
    });
    assert_eq!(served.expect("served"), []);
    inner.attend(MemberId(5), 1, || Ok(())).expect("a member still");
    inner.lease.store(1, Ordering::Release);
    until("then it is", || {
        inner.attend(MemberId(5), 1, || Ok(())).is_err() || {
            rt::sleep(Nanos::from_millis(100));
            false
        }
    });
}

/// The story: a process that maps a part, and is no member, does not end. Members whose connection broke meanwhile were
/// not let in again, and ended.
#[test]
fn a_member_comes_back_while_strangers_are_being_ended() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let stage = Stage::default();
    let (inner, listener) = restarted(directory.path(), &stage);
    let node = MemoryNode::run(inner, listener);
    let (connection, welcome) = hello(&node, 5);
    welcome.expect("a member");
    stage.0.is_stuck.store(true, Ordering::Release);
    let kept = node.state.parts.all().pop().expect("a part");
    until("they are to be ended", || {
        // Again and again: the thread that watches may begin only now, and gives them a whole lease then.
        kept.set_former_until(Nanos::ZERO);
        stage.0.ended_others.load(Ordering::Acquire) > 1
    });
    connection.close();
    hello(&node, 5).1.expect("it is a member");
    let refused = hello(&node, 6).1.map_err(Error::from);
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    stage.0.is_stuck.store(false, Ordering::Release);
    until("they are ended", || kept.former().is_none());
    hello(&node, 6).1.expect("a member");
}

/// A node that had begun anew knew no member of before: it said at once that nothing of one could land there, while its
/// process mapped a part, and wrote on.
#[test]
fn a_node_that_begins_anew_confirms_no_fencing_before_it_has_ended_strangers() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let stage = Stage::default();
    let (inner, listener) = restarted(directory.path(), &stage);
    let fence = |node: &NodeState| cenote_space::Fencing::fence(node, 9, &[77]);
    let is_refused = |node: &NodeState| matches!(fence(node), Err(Error::Busy(_)));
    stage.0.is_stuck.store(true, Ordering::Release);
    let node = MemoryNode::run(inner, listener);
    let kept = node.state.parts.all().pop().expect("a part");
    assert!(is_refused(&node.state), "members may come back");
    until("they are to be ended", || {
        kept.set_former_until(Nanos::ZERO);
        stage.0.ended_others.load(Ordering::Acquire) > 1
    });
    assert!(is_refused(&node.state), "one does not end");
    stage.0.is_stuck.store(false, Ordering::Release);
    until("they are ended", || kept.former().is_none());
    fence(&node.state).expect("nothing can land");
}

/// A node said that nothing of a member could land there while a request of it was being served: what it freed late was
/// another's by then.
#[test]
fn a_fencing_is_confirmed_when_no_request_of_the_member_is_under_way() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    let (_connection, welcome) = hello(&node, 5);
    welcome.expect("a member");
    let asking = node.state.membership.ask(MemberId(5), 1).expect("a member");
    let fence = || cenote_space::Fencing::fence(&*node.state, 9, &[5]);
    assert!(matches!(fence(), Err(Error::Busy(_))));
    drop(asking);
    fence().expect("nothing is under way");
}

/// What is freed leaves nothing, also where its note cannot be read, or its writing was cut off; and what is there is
/// known to the manager, so that it gives no number anew.
#[test]
fn nothing_is_left_of_what_is_freed() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let stage = Stage::default();
    drop(restarted(directory.path(), &stage));
    for (name, text) in [
        ("keep-3", "garbage"),
        ("keep-5.next", "cenote-part 1"),
        ("keep-8", ""),
        ("grant-6", ""),
    ] {
        std::fs::write(directory.path().join(name), text).expect("written");
    }
    let (inner, _listener) = prepare(directory.path(), &stage).expect("a node");
    assert_eq!(inner.last_grant().expect("listed"), GrantId(8));
    for grant in [3, 6, 8] {
        let order = Order::Free { grant: GrantId(grant) };
        assert_eq!(inner.execute(&order).expect("freed"), OrderReply::Done);
    }
    let names = fs::list(directory.path()).expect("listed");
    assert!(names.iter().all(|name| !name.contains('-')), "{names:?}");
}

/// A member of this machine, over its connection and its ring.
fn seated(node: &MemoryNode, member: u128) -> (Arc<dyn Connection>, Arc<dyn Caller>) {
    let (connection, welcome) = hello_with(node, member, cenote_fabric::boot(), true);
    let ring = welcome.expect("a member").ring.expect("a seat");
    let user = User::join(Path::new(&ring.path), ring.seat(), UserOptions::default());
    (connection, user.expect("a ring"))
}

fn ask_ring(ring: &dyn Caller, request: &MemberRequest) -> Result<MemberReply> {
    let (request, mut answer) = (serde_json::to_vec(request).expect("written"), Vec::new());
    ring.call(&request, &mut answer)?;
    match serde_json::from_slice(&answer).expect("an answer") {
        MemberReply::Failed(failure) => Err(failure.into()),
        reply => Ok(reply),
    }
}

fn begin(connection: &dyn Connection) -> SessionId {
    let begun: MemberReply = wire::call(connection, &MemberRequest::Begin { part: 1 }, TIMEOUT).expect("an answer");
    match begun {
        MemberReply::Begun(session) => session,
        other => panic!("{other:?}"),
    }
}

fn take(session: SessionId) -> MemberRequest {
    MemberRequest::Take {
        part: 1,
        session,
        class: Class::of(64).expect("a class"),
        lifetime: Lifetime::Session,
    }
}

#[test]
fn members_ask_over_rings() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    let ((connection, ring), (_held, others)) = (seated(&node, 5), seated(&node, 6));
    let session = begin(&*connection);
    let alive = MemberRequest::IsAlive { part: 1, session };
    assert!(matches!(ask_ring(&*ring, &take(session)), Ok(MemberReply::Slab(_))));
    assert!(matches!(ask_ring(&*others, &alive), Ok(MemberReply::Alive(true))));
    let refused = ask_ring(&*others, &take(session));
    assert!(
        matches!(refused, Err(Error::Revoked(_))),
        "another's session: {refused:?}"
    );
    let refused = ask_ring(&*ring, &MemberRequest::Leave);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let refused = ring.call(b"garbage", &mut Vec::new());
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    assert!(matches!(ask_ring(&*ring, &take(session)), Ok(MemberReply::Slab(_))));
}

/// A member that comes back has another seat, and requests over the former one are not carried out.
#[test]
fn a_seat_lasts_as_long_as_its_connection() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    let (connection, ring) = seated(&node, 5);
    let session = begin(&*connection);
    connection.close();
    until("it ends", || {
        matches!(ask_ring(&*ring, &take(session)), Err(Error::Lost(_)))
    });
    let (_connection, again) = seated(&node, 5);
    assert!(matches!(ask_ring(&*again, &take(session)), Ok(MemberReply::Slab(_))));
    assert!(matches!(ask_ring(&*ring, &take(session)), Err(Error::Lost(_))));
    let order = Order::Free { grant: GRANT };
    node.state.execute(&order).expect("freed");
    assert!(matches!(ask_ring(&*again, &take(session)), Err(Error::Lost(_))));
}

/// It is not ended, as it maps nothing, and asks on: nothing is done for it, and its seat goes to no other member.
#[test]
fn a_fenced_member_is_heard_over_no_ring() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    let (connection, ring) = seated(&node, 5);
    let session = begin(&*connection);
    node.state.lease.store(1, Ordering::Release);
    until("it is fenced", || node.state.membership.is_fenced(MemberId(5)));
    node.state.lease.store(LONG.raw(), Ordering::Release);
    let refused = ask_ring(&*ring, &take(session));
    assert!(matches!(refused, Err(Error::Lost(_))), "{refused:?}");
    let kept = node.state.parts.all().pop().expect("a part");
    until("its session has ended", || {
        kept.keeper.is_alive(session).is_ok_and(|alive| !alive)
    });
}

/// A member that left and came again under its number began with the turns of its former connections: what came over
/// those was done for it, their end took its connection and its seat, and their last answer was counted as one to it.
#[test]
fn a_member_that_left_and_comes_again_has_nothing_in_common_with_the_former() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    let (former, ring) = seated(&node, 5);
    begin(&*former);
    let (membership, id) = (&node.state.membership, MemberId(5));
    let asking = membership.ask(id, 1).expect("a member");
    let left: MemberReply = wire::call(&*former, &MemberRequest::Leave, TIMEOUT).expect("an answer");
    assert_eq!(left, MemberReply::Done);
    let (connection, again) = seated(&node, 5);
    let session = begin(&*connection);
    assert!(
        matches!(membership.hear(id, 1), Err(Error::Revoked(_))),
        "its former turn"
    );
    assert!(matches!(node.state.attend(id, 1, || Ok(())), Err(Error::Revoked(_))));
    membership.disconnect(id, 1);
    assert!(ask_ring(&*ring, &take(session)).is_err());
    assert!(matches!(ask_ring(&*again, &take(session)), Ok(MemberReply::Slab(_))));
    // It waits for an answer, while that to the former one's last request comes to its end.
    let waits = membership.ask(id, 2).expect("a member");
    drop(asking);
    rt::sleep(Nanos::from_millis(5));
    let silent = Nanos::from_millis(1);
    assert_eq!(membership.lapsed(silent, |_| true), [], "it waits for an answer");
    drop(waits);
    rt::sleep(Nanos::from_millis(5));
    assert_eq!(membership.lapsed(silent, |_| true).len(), 1);
}

/// A node comes to a manager.
fn come(manager: &dyn Listener) -> Arc<dyn Connection> {
    let connection = manager.accept(TIMEOUT).expect("no error").expect("the node comes");
    let _: Hello = wire::receive(&*connection, TIMEOUT).expect("a hello");
    connection
}

/// It is welcome to the manager of a term.
fn welcome(connection: &dyn Connection, term: u64) {
    let (pool, lease) = (7, LONG.raw());
    let welcome: std::result::Result<Welcome, Failure> = Ok(Welcome {
        pool,
        term,
        lease,
        host: None,
    });
    // It does not wait for long.
    let _ = wire::send(connection, &welcome);
}

fn is_joined(connection: &dyn Connection) -> bool {
    matches!(wire::receive(connection, TIMEOUT), Ok(OrderReply::Done))
}

/// A hello that named a session twice ended the thread that served it, with the members' lock held.
#[test]
fn a_session_that_is_named_twice_is_claimed_once() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    hello(&node, 5).1.expect("a member");
    let mut twice = claiming(5, 1, 1);
    twice.sessions.push(twice.sessions[0]);
    say_hello(&node, &twice).1.expect("welcome");
    let (connection, welcome) = say_hello(&node, &twice);
    welcome.expect("welcome again");
    let pong: MemberReply = wire::call(&*connection, &MemberRequest::Ping, TIMEOUT).expect("an answer");
    assert_eq!(pong, MemberReply::Done);
    let refused = say_hello(&node, &claiming(6, 1, 1)).1.map_err(Error::from);
    assert!(matches!(refused, Err(Error::Revoked(_))), "another's: {refused:?}");
}

/// A member that was refused for what it claimed counted as connected: when its process ended that was not seen before
/// a lease had passed.
#[test]
fn a_member_whose_claim_is_refused_is_not_connected() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let stage = Stage::default();
    let (inner, listener) = restarted(directory.path(), &stage);
    let node = MemoryNode::run(inner, listener);
    let here = cenote_fabric::boot();
    hello_of(&node, 5, here).1.expect("a member");
    stage.0.is_stuck.store(true, Ordering::Release);
    let kept = node.state.parts.all().pop().expect("a part");
    until("they are to be ended", || {
        kept.set_former_until(Nanos::ZERO);
        stage.0.ended_others.load(Ordering::Acquire) > 1
    });
    let refused = say_hello(&node, &claiming(5, here, 1)).1.map_err(Error::from);
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    let gone = node.state.membership.lapsed(LONG, |_| false);
    assert_eq!(gone, [(MemberId(5), "is gone")]);
    stage.0.is_stuck.store(false, Ordering::Release);
}

/// A part had left the node: members that had not heard of it were told that they had been fenced.
#[test]
fn a_member_that_names_a_part_that_is_gone_goes_on_with_the_others() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (inner, listener) = restarted(directory.path(), &Stage::default());
    let node = MemoryNode::run(inner, listener);
    let mut named = claiming(5, 1, 1);
    named.parts.push(2);
    named.sessions.push((2, SessionId(8)));
    for _ in 0..2 {
        let (connection, welcome) = say_hello(&node, &named);
        welcome.expect("welcome");
        let request = MemberRequest::IsAlive {
            part: 2,
            session: SessionId(8),
        };
        let gone: MemberReply = wire::call(&*connection, &request, TIMEOUT).expect("an answer");
        let MemberReply::Failed(failure) = gone else {
            panic!("{gone:?}")
        };
        assert!(matches!(Error::from(failure), Error::Revoked(_)));
    }
    named.parts.retain(|part| *part == 2);
    let refused = say_hello(&node, &named).1.map_err(Error::from);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

/// A manager was stopped and another led, which could give this node no orders until it had given the first one up: 10
/// s, in which nothing could be granted here.
#[test]
fn a_manager_of_a_later_term_is_heard_while_the_former_one_is_silent() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let [first, second] = [0, 1].map(|_| Tcp.listen("127.0.0.1:0").expect("a free port"));
    let options = NodeOptions {
        pod: "pod".into(),
        bytes: 16 << 20,
        directory: directory.path().into(),
        manager: format!("{},{}", first.address(), second.address()),
        secret: String::new(),
        listen: "127.0.0.1:0".into(),
        calls: None,
    };
    let node = MemoryNode::start(options, Arc::new(Tcp), Box::new(Stage::default())).expect("a node");
    let former = come(&*first);
    welcome(&*former, 1);
    assert!(is_joined(&*former));
    // It is silent. Of another one that is not later nothing is heard, and it goes on as before.
    let stale = come(&*second);
    welcome(&*stale, 1);
    assert!(wire::receive::<OrderReply>(&*stale, TIMEOUT).is_err(), "it is closed");
    let later = loop {
        let reply: OrderReply = wire::call(&*former, &Order::Ping, TIMEOUT).expect("the former one is obeyed");
        assert_eq!(reply, OrderReply::Done);
        let later = come(&*second);
        let word = former.receive(Nanos::from_millis(1));
        assert!(
            matches!(word, Err(Error::Timeout(_))),
            "its connection is there still: {word:?}"
        );
        welcome(&*later, 2);
        // It does not wait for long, and comes again.
        if is_joined(&*later) {
            break later;
        }
    };
    assert!(former.receive(TIMEOUT).is_err(), "and is closed now");
    let reply: OrderReply = wire::call(&*later, &Order::Ping, TIMEOUT).expect("an answer");
    assert_eq!(reply, OrderReply::Done);
    drop(node);
}

/// A mirror that takes a part's place is fenced, and then kept, by two orders that are confirmed together. If the
/// second was done and that was not written down, both came again: the first waited for this process itself, for good.
#[test]
fn a_part_that_is_kept_here_is_fenced_already() {
    let (directory, stage) = (tempfile::tempdir_in("/dev/shm").expect("a directory"), Stage::default());
    let (node, _) = prepare(directory.path(), &stage).expect("a node");
    node.parts.keep(&order(), LONG).expect("kept");
    stage.0.is_held.store(true, Ordering::Release);
    let fenced = node.execute(&Order::Fence { grant: GRANT });
    assert!(matches!(fenced, Ok(OrderReply::Done)), "{fenced:?}");
    node.execute(&Order::Keep(order())).expect("as before");
    let other = node.execute(&Order::Fence { grant: GrantId(4) });
    assert!(matches!(other, Err(Error::Busy(_))), "{other:?}");
}
