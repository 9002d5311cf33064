//! A node that keeps mirrored parts, and a manager that this test plays.

use super::*;
use crate::wire::{MirrorRequest, MirrorView, PartView, Reply, Request};
use cenote_base::rt::{Mutex, fs};
use cenote_fabric::rdma::loopback::Nodes;

/// It knows of one mirror, or none. What it is not to answer it answers later.
struct Manager {
    address: String,
    state: Arc<Silence>,
}

#[derive(Default)]
struct Silence {
    is_over: AtomicBool,
    /// Of all, and of the part that seeks a mirror.
    silent: AtomicBool,
    seeks_nothing: AtomicBool,
    /// No keeper is heard.
    is_away: AtomicBool,
    mirror: Mutex<Option<MirrorView>>,
    heard: Mutex<Vec<MirrorRequest>>,
}

impl Manager {
    fn start() -> Self {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let (address, state) = (listener.address(), Arc::<Silence>::default());
        let theirs = Arc::clone(&state);
        rt::spawn("a manager", move || {
            while !theirs.is_over.load(Ordering::Acquire) {
                if let Ok(Some(connection)) = listener.accept(Nanos::from_millis(100)) {
                    let state = Arc::clone(&theirs);
                    rt::spawn("a session", move || state.serve(&*connection));
                }
            }
        });
        Self { address, state }
    }

    /// From here on it answers nothing.
    fn fall_silent(&self) {
        self.state.silent.store(true, Ordering::Release);
    }

    fn speak(&self) {
        self.state.silent.store(false, Ordering::Release);
        self.state.seeks_nothing.store(false, Ordering::Release);
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.speak();
        self.state.is_over.store(true, Ordering::Release);
    }
}

impl Silence {
    fn serve(&self, connection: &dyn Connection) {
        let hello: Result<Hello> = wire::receive(connection, TIMEOUT);
        let is_away = self.is_away.load(Ordering::Acquire);
        if is_away || !hello.is_ok_and(|hello| matches!(hello.role, Role::Keeper(_))) {
            return connection.close();
        }
        welcome(connection, 1);
        while let Ok(Request::Mirror { what, .. }) = wire::receive(connection, TIMEOUT) {
            let seeks = what == MirrorRequest::Seek;
            while self.silent.load(Ordering::Acquire) || seeks && self.seeks_nothing.load(Ordering::Acquire) {
                rt::sleep(Nanos::from_millis(5));
            }
            if wire::send(connection, &Reply::Mirror(self.answer(what))).is_err() {
                return;
            }
        }
    }

    fn answer(&self, what: MirrorRequest) -> Option<MirrorView> {
        self.heard.lock().push(what);
        let mut mirror = self.mirror.lock();
        mirror.take_if(|view| what == MirrorRequest::Lost(view.grant));
        mirror.clone()
    }
}

fn start(directory: &Path, manager: &Manager) -> MemoryNode {
    start_on(directory, manager, Stage::default())
}

fn start_on(directory: &Path, manager: &Manager, stage: Stage) -> MemoryNode {
    let calls = NodeCalls {
        address: "here".into(),
        callers: Arc::new(Nodes::default()),
        hosts: Arc::default(),
        registrar: None,
        options: HostOptions::default(),
    };
    let options = NodeOptions {
        pod: "pod".into(),
        bytes: 64 << 20,
        directory: directory.into(),
        manager: manager.address.clone(),
        secret: String::new(),
        listen: "127.0.0.1:0".into(),
        calls: Some(calls),
    };
    let host = Box::new(stage);
    let (state, listener) = MemoryNode::prepare(options, NodeLimits::default(), Arc::new(Tcp), host).expect("a node");
    state.lease.store(LONG.raw(), Ordering::Release);
    MemoryNode::run(state, listener)
}

fn mirrored() -> PartOrder {
    PartOrder {
        mirrored: true,
        ..order()
    }
}

fn other(grant: u64) -> PartOrder {
    PartOrder {
        grant: GrantId(grant),
        space: SpaceId(u128::from(grant)),
        key: Key::of(8),
        ..order()
    }
}

fn fence(node: &MemoryNode, member: u128) -> Result<()> {
    cenote_space::Fencing::fence(&*node.state, 9, &[member])
}

/// The story: a member was fenced, and another had taken its lock. Then its part's node was lost, and the member woke
/// up: the mirror's node knew nothing of it, and gave it back the sessions that had been ended.
#[test]
fn a_member_that_was_fenced_is_fenced_where_a_mirror_takes_the_parts_place() {
    let [first, second] = [0, 1].map(|_| tempfile::tempdir_in("/dev/shm").expect("a directory"));
    let manager = Manager::start();
    let node = start(first.path(), &manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    let sessions = [5, 6].map(|member| {
        let (connection, welcome) = hello(&node, member);
        welcome.expect("a member");
        begin(&*connection).0
    });
    fence(&node, 5).expect("nothing is under way");
    // A member of other nodes may not have been here at all.
    fence(&node, 7).expect("nothing is under way");
    drop(node);
    // All that a mirror has.
    let (from, to) = (first.path().join("grant-3"), second.path().join("grant-3"));
    fs::replace(&to, &fs::read(&from).expect("read")).expect("copied");
    let node = start(second.path(), &manager);
    let there = PartOrder {
        make: false,
        ..mirrored()
    };
    node.state.parts.keep(&there, LONG).expect("kept");
    for hello in [
        claiming(5, 1, sessions[0]),
        MemberHello {
            sessions: vec![],
            ..claiming(7, 1, 1)
        },
    ] {
        let refused = say_hello(&node, &hello).1.map_err(Error::from);
        assert!(matches!(refused, Err(Error::Revoked(_))), "{refused:?}");
    }
    say_hello(&node, &claiming(6, 1, sessions[1])).1.expect("its own still");
}

/// A part whose mirror has taken its place at this node, and a session of member 6 that had begun before.
fn taken_over(directory: &Path, manager: &Manager, stage: &Stage) -> (MemoryNode, SessionId) {
    let first = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let node = start(first.path(), manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    let (connection, welcome) = hello(&node, 6);
    welcome.expect("a member");
    let session = begin(&*connection);
    drop(node);
    // All that a mirror has.
    let all = fs::read(first.path().join("grant-3")).expect("read");
    fs::replace(directory.join("grant-3"), &all).expect("copied");
    let node = start_on(directory, manager, stage.clone());
    let there = PartOrder {
        make: false,
        ..mirrored()
    };
    node.state.parts.keep(&there, LONG).expect("kept");
    (node, session)
}

/// The manager says that members are told where the part is.
fn name_part(node: &MemoryNode) {
    let part = PartView {
        number: 1,
        grant: GRANT,
        bytes: mirrored().bytes,
        node: NodeId(1),
        pod: "pod".into(),
        machine: 0,
        path: String::new(),
        members: None,
        calls: None,
        mirrored: true,
    };
    let named = Order::Peers {
        space: SpaceId(9),
        parts: vec![part],
        lost: Vec::new(),
        coming: Vec::new(),
    };
    assert_eq!(node.state.execute(&named).expect("heard"), OrderReply::Done);
}

/// A mirror had taken a part's place, and for longer than a lease the manager told no member of it, as its order to
/// keep the part had to come again: the sessions of all of them had ended when they heard it.
#[test]
fn members_have_a_lease_from_when_they_can_find_their_part() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (manager, stage) = (Manager::start(), Stage::default());
    let (node, session) = taken_over(directory.path(), &manager, &stage);
    let kept = node.state.parts.all().pop().expect("a part");
    for _ in 0..20 {
        kept.set_former_until(Nanos::ZERO);
        rt::sleep(Nanos::from_millis(20));
    }
    assert_eq!(stage.0.ended_others.load(Ordering::Acquire), 0);
    name_part(&node);
    let waits = |kept: &parts::Kept| kept.former().is_some_and(|former| former.until > rt::now());
    assert!(waits(&kept), "a whole lease");
    say_hello(&node, &claiming(6, 1, session.0)).1.expect("its own still");
}

/// A member that was known at the mirror's node came there too late with what it had begun in the part. It was let in
/// without, and went on: each allocation said that its session had ended, and what its locks had protected was
/// another's.
#[test]
fn a_member_that_comes_too_late_with_its_sessions_is_fenced() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    let (node, session) = taken_over(directory.path(), &manager, &Stage::default());
    name_part(&node);
    let kept = node.state.parts.all().pop().expect("a part");
    until("those of before have ended", || {
        kept.set_former_until(Nanos::ZERO);
        kept.former().is_none()
    });
    hello(&node, 6).1.expect("a member, without sessions");
    let late = claiming(6, 1, session.0);
    let ending = late.sessions.clone();
    let over = MemberHello { ending, ..late.clone() };
    say_hello(&node, &over).1.expect("it has asked for that end itself");
    let refused = say_hello(&node, &late).1.map_err(Error::from);
    assert!(matches!(refused, Err(Error::Revoked(_))), "{refused:?}");
    until("it is fenced", || node.state.membership.is_fenced(MemberId(6)));
    let refused = hello(&node, 6).1.map_err(Error::from);
    assert!(matches!(refused, Err(Error::Revoked(_))), "{refused:?}");
}

/// A session was begun, and could not be told, as the mirror was lost. It was asked for again: twenty a second, and
/// none ended.
#[test]
fn nothing_is_begun_that_cannot_be_told() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    let node = start(directory.path(), &manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    let (connection, welcome) = hello(&node, 5);
    welcome.expect("a member");
    begin(&*connection);
    let kept = node.state.parts.all().pop().expect("a part");
    let before = kept.keeper.sessions();
    assert_eq!(before.len(), 1);
    kept.keeper.part().withdraw();
    for _ in 0..3 {
        let request = MemberRequest::Begin { part: 1 };
        let failed: MemberReply = wire::call(&*connection, &request, TIMEOUT).expect("an answer");
        let MemberReply::Failed(failure) = failed else {
            panic!("{failed:?}")
        };
        assert!(matches!(Error::from(failure), Error::Lost(_)));
    }
    assert_eq!(kept.keeper.sessions(), before);
}

/// A mirrored part waits for the manager before it is served. The whole node waited with it: for that long no part of
/// any other space was opened or freed, and no member fenced.
#[test]
fn a_mirrored_part_that_waits_for_the_manager_holds_up_nothing_else() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    let node = start(directory.path(), &manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    node.state.parts.keep(&other(4), LONG).expect("kept");
    drop(node);
    manager.fall_silent();
    let node = start(directory.path(), &manager);
    let parts = &node.state.parts;
    parts.part(SpaceId(4), 1).expect("open");
    let there = PartOrder {
        make: false,
        ..mirrored()
    };
    let free = Order::Free { grant: GRANT };
    for waits in [
        parts.keep(&there, LONG),
        parts.part(SpaceId(9), 1).map(drop),
        fence(&node, 5),
    ] {
        assert!(matches!(waits, Err(Error::Busy(_))), "{waits:?}");
    }
    parts.keep(&other(5), LONG).expect("kept");
    let other = Order::Free { grant: GrantId(4) };
    assert_eq!(node.state.execute(&other).expect("freed"), OrderReply::Done);
    manager.speak();
    until("it is open", || parts.part(SpaceId(9), 1).is_ok());
    parts.keep(&there, LONG).expect("kept");
    assert_eq!(node.state.execute(&free).expect("freed"), OrderReply::Done);
    assert!(matches!(parts.part(SpaceId(9), 1), Err(Error::Revoked(_))));
}

/// The manager was not reached by a node's question: it took the error for that of its own order's connection, and
/// dismissed the node.
#[test]
fn a_question_that_is_lost_is_asked_again() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    let away = |is_away| manager.state.is_away.store(is_away, Ordering::Release);
    let node = start(directory.path(), &manager);
    away(true);
    let there = PartOrder {
        make: false,
        ..mirrored()
    };
    node.state.parts.keep(&mirrored(), LONG).expect_err("not yet");
    let waits = node.state.parts.keep(&there, LONG);
    assert!(matches!(waits, Err(Error::Busy(_))), "{waits:?}");
    away(false);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
}

/// A mirror that had taken a part's place was fenced and mapped, and waited for the manager. The order to keep it came
/// again, and before it that to fence it: for 5 s the node waited for itself to let go of the file.
#[test]
fn a_part_that_waits_for_the_manager_is_not_fenced_again() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (manager, stage) = (Manager::start(), Stage::default());
    let node = start(directory.path(), &manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    drop(node);
    manager.fall_silent();
    let node = start_on(directory.path(), &manager, stage.clone());
    let there = PartOrder {
        make: false,
        ..mirrored()
    };
    let waits = node.state.parts.keep(&there, LONG);
    assert!(matches!(waits, Err(Error::Busy(_))), "{waits:?}");
    // As this process does.
    stage.0.is_held.store(true, Ordering::Release);
    let fence = |grant| node.state.execute(&Order::Fence { grant });
    assert_eq!(fence(GRANT).expect("it was fenced before"), OrderReply::Done);
    let held = fence(GrantId(8));
    assert!(
        matches!(held, Err(Error::Busy(_))),
        "it is no part of this node's: {held:?}"
    );
    manager.speak();
}

/// What is freed while the manager is asked is opened no more.
#[test]
fn a_part_that_is_freed_while_the_manager_is_asked_is_gone() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    let node = start(directory.path(), &manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    drop(node);
    manager.fall_silent();
    let node = start(directory.path(), &manager);
    let free = || node.state.execute(&Order::Free { grant: GRANT });
    let there = PartOrder {
        make: false,
        ..mirrored()
    };
    let waits = node.state.parts.keep(&there, LONG);
    assert!(matches!(waits, Err(Error::Busy(_))), "{waits:?}");
    let waits = free();
    assert!(matches!(waits, Err(Error::Busy(_))), "{waits:?}");
    manager.speak();
    until("it is given up", || free().is_ok());
    assert!(node.state.parts.all().is_empty() && !directory.path().join("grant-3").exists());
}

/// One part's node was asked for a mirror, and did not answer: other parts could not say meanwhile that theirs counts
/// no more, and answered nothing.
#[test]
fn a_part_that_seeks_a_mirror_holds_up_no_other() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    manager.state.seeks_nothing.store(true, Ordering::Release);
    let node = start(directory.path(), &manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    // It seeks by now, or does soon.
    rt::sleep(Nanos::from_millis(200));
    let other = PartOrder {
        mirrored: true,
        ..other(4)
    };
    node.state.parts.keep(&other, LONG).expect("kept");
}

/// The word of a process that had ended, that its mirror was whole, could come after its successor had begun: of the
/// same mirror, which was being filled from its beginning.
#[test]
fn a_keeper_that_begins_anew_goes_on_with_no_mirror_of_before() {
    for whole in [true, false] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let manager = Manager::start();
        *manager.state.mirror.lock() = Some(MirrorView {
            grant: GrantId(9),
            pod: "other".into(),
            path: "/nowhere/grant-9".into(),
            whole,
            machine: 1,
            lent: None,
        });
        let node = start(directory.path(), &manager);
        node.state.parts.keep(&mirrored(), LONG).expect("kept");
        let heard = manager.state.heard.lock().clone();
        assert_eq!(heard[..2], [MirrorRequest::Look, MirrorRequest::Lost(GrantId(9))]);
    }
}

/// A node with many mirrored parts began anew while the manager did not answer: each order to keep one waited its time,
/// one after the other, and what was to be fenced or freed came after all of them.
#[test]
fn orders_to_keep_parts_do_not_wait_one_after_the_other() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    let node = start(directory.path(), &manager);
    let parts = 4..18;
    let order = |grant, make| PartOrder {
        make,
        mirrored: true,
        ..other(grant)
    };
    let made = |grant| node.state.parts.keep(&order(grant, true), LONG).expect("kept");
    parts.clone().for_each(made);
    drop(node);
    manager.fall_silent();
    let node = start(directory.path(), &manager);
    let began = rt::now();
    for grant in parts {
        let waits = node.state.parts.keep(&order(grant, false), LONG);
        assert!(matches!(waits, Err(Error::Busy(_))), "{waits:?}");
    }
    // One after the other it is 7 s at least.
    assert!(rt::now().since(began) < Nanos::from_secs(5));
    // Nor is any of them opened by a node that stops.
    assert!(node.state.parts.open_mirrored(LONG, || true).is_empty());
    manager.speak();
    until("they are open", || node.state.parts.all().len() == 14);
    node.state.parts.keep(&order(4, false), LONG).expect("kept");
}

/// More members than a part has room to note waited to be confirmed: all of them were noted again, and displaced each
/// other, at each look.
#[test]
fn a_member_that_waits_is_noted_once() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let manager = Manager::start();
    let node = start(directory.path(), &manager);
    node.state.parts.keep(&mirrored(), LONG).expect("kept");
    let kept = node.state.parts.all().pop().expect("a part");
    let members: Vec<u128> = (1..=600).collect();
    kept.note_fenced(&members).expect("noted");
    let known = || {
        members
            .iter()
            .filter(|member| kept.keeper.part().has_fenced(**member))
            .collect::<Vec<_>>()
    };
    let before = known();
    assert!(before.len() < members.len());
    kept.note_fenced(&members[..1]).expect("noted before");
    assert_eq!(known(), before);
    kept.note_fenced(&[601]).expect("noted");
    assert!(kept.keeper.part().has_fenced(601) && !kept.keeper.part().has_fenced(*before[0]));
}
