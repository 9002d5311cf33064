//! A manager, with memory nodes that this test plays.

use super::reaching::{Place, REACHING_MAX};
use super::*;
use crate::grant_table::{NodeId, SpacePhase};
use crate::managers::Managers;
use crate::session::ManagerSession;
use crate::settings::{DEFAULT_TENANT, Tenants};
use crate::store::{Change, Lead, Leadership, Stored};
use crate::wire::{
    self, Failure, Hello, LentMemory, LentRange, MirrorRequest, NodeHello, OpenRequest, Opened, OpenedSlab, Order,
    OrderReply, Reach, Reply, Request, Role, SlabsRequest, SpaceRequest, SpaceSummary, VERSION, Welcome,
};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_fabric::message::Connection;
use cenote_fabric::message::tcp::Tcp;
use cenote_space::EXTENT;
use std::path::Path;

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
    play(manager, id, obey)
}

/// Joins as a memory node, and goes on as told.
fn play(manager: &str, id: u64, go_on: impl FnOnce(&dyn Connection) + Send + 'static) -> rt::JoinHandle<()> {
    let connection = Tcp.connect(manager, TIMEOUT).expect("connected");
    let welcome: std::result::Result<Welcome, Failure> =
        wire::call(&*connection, &hello(node(id)), TIMEOUT).expect("an answer");
    welcome.map_err(Error::from).expect("welcome");
    wire::send(&*connection, &OrderReply::Done).expect("sent");
    rt::spawn("node", move || go_on(&*connection))
}

fn obey(connection: &dyn Connection) {
    obey_while(connection, |_| true);
}

/// Does what it is ordered; what is refused, and all behind it, has no answer.
fn obey_while(connection: &dyn Connection, mut obeys: impl FnMut(&Order) -> bool) {
    let mut is_silent = false;
    while let Ok(order) = wire::receive(connection, TIMEOUT) {
        is_silent |= !obeys(&order);
        let reply = match order {
            _ if is_silent => continue,
            Order::Admit { .. } => OrderReply::Admitted { fresh: true },
            Order::LendGrant { grant, len } => OrderReply::LentGrant(LentMemory {
                address: "nowhere".into(),
                memory: LentRange {
                    key: grant.0,
                    base: 0,
                    len,
                },
            }),
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

fn options(directory: &Path) -> ManagerOptions {
    ManagerOptions {
        directory: directory.into(),
        listen: "127.0.0.1:0".into(),
        tenants: Tenants::default(),
        lease: LEASE_DEFAULT,
    }
}

fn tenant(manager: &Manager) -> ManagerSession {
    let managers = Managers::parse(manager.address()).expect("an address");
    let hello = hello(Role::Tenant(DEFAULT_TENANT.into()));
    ManagerSession::begin(&Tcp, &managers, &hello).expect("a session")
}

/// A grant table in files, that counts its changes.
struct Counted {
    store: FileStore,
    writes: Arc<AtomicU64>,
}

struct CountedLeadership(Arc<dyn Leadership>, Arc<AtomicU64>);

impl GrantTableStore for Counted {
    fn lead(&self, name: &str) -> Result<Lead> {
        Ok(match self.store.lead(name)? {
            Lead::Here(leadership) => Lead::Here(Arc::new(CountedLeadership(leadership, Arc::clone(&self.writes)))),
            elsewhere => elsewhere,
        })
    }
}

impl Leadership for CountedLeadership {
    fn leads(&self) -> bool {
        self.0.leads()
    }

    fn confirm(&self) -> Result<()> {
        self.0.confirm()
    }

    fn read(&self) -> Result<Option<Stored>> {
        self.0.read()
    }

    fn write(&self, change: &Change) -> Result<()> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.write(change)
    }

    fn resign(&self) {
        self.0.resign();
    }
}

fn open_first(session: &ManagerSession) -> Opened {
    let requested = OpenRequest {
        label: "db".into(),
        description: String::new(),
        bytes: EXTENT,
        pod: None,
        keep: None,
        machine: 0,
        mirror: false,
        host: None,
        reach: Reach::Remote {
            takes: true,
            moves: None,
        },
    };
    match session.ask(&Request::Open(requested)).expect("asked") {
        Reply::Opened(opened) => opened,
        other => panic!("{other:?}"),
    }
}

type SlabAnswers = Vec<std::result::Result<OpenedSlab, Failure>>;

fn open_slabs(session: &ManagerSession, first: &Opened, slabs: std::ops::Range<u32>) -> SlabAnswers {
    open_slabs_within(session, first, slabs, TIMEOUT).expect("asked")
}

fn open_slabs_within(
    session: &ManagerSession,
    first: &Opened,
    slabs: std::ops::Range<u32>,
    within: Nanos,
) -> Result<SlabAnswers> {
    let request = Request::OpenSlabs(SlabsRequest {
        first: first.grant,
        epoch: first.epoch,
        slabs: slabs.collect(),
        bytes: EXTENT,
        description: String::new(),
        pod: None,
        within: within.raw(),
    });
    match session.ask(&request)? {
        Reply::Slabs(answers) => Ok(answers),
        other => panic!("{other:?}"),
    }
}

/// However many slabs there are, they are the next holder's by one change of the grant table.
#[test]
fn slabs_are_taken_by_one_change() {
    let (directory, writes) = (tempfile::tempdir().expect("a directory"), Arc::default());
    let store = Arc::new(Counted {
        store: FileStore::new(directory.path()),
        writes: Arc::clone(&writes),
    });
    let manager = Manager::start_on(store, options(directory.path()), &Tcp).expect("a manager");
    let nodes = [1, 2].map(|id| play_node(manager.address(), id));
    let session = tenant(&manager);
    let former = open_slabs(&session, &open_first(&session), 0..64);
    let next = open_first(&session);
    let before = writes.load(Ordering::SeqCst);
    let taken = open_slabs(&session, &next, 0..64);
    assert_eq!(writes.load(Ordering::SeqCst) - before, 1);
    for (former, taken) in former.iter().zip(&taken) {
        let (former, taken) = (former.as_ref().expect("opened"), taken.as_ref().expect("taken"));
        assert_eq!(
            (taken.opened.grant, taken.lent.memory.key),
            (former.opened.grant, former.opened.grant.0)
        );
        assert!(taken.opened.epoch > former.opened.epoch);
    }
    drop((session, manager));
    nodes.into_iter().for_each(|node| node.join().expect("no panic"));
}

/// A node that says nothing any more, and has not been missed yet, costs its own slabs; so does one that is away.
#[test]
fn a_silent_node_costs_its_slabs() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = Manager::start(options(directory.path()), &Tcp).expect("a manager");
    let (silent, silenced) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let is_silent = Arc::clone(&silent);
    let go_on = move |connection: &dyn Connection| {
        obey_while(connection, |order| {
            // It ends behind one more slab.
            let is_last = is_silent.load(Ordering::SeqCst) && matches!(order, Order::LendGrant { .. });
            !silenced.swap(silenced.load(Ordering::SeqCst) || is_last, Ordering::SeqCst)
        });
    };
    let nodes = [play_node(manager.address(), 1), play(manager.address(), 2, go_on)];
    let session = tenant(&manager);
    let first = open_first(&session);
    let before = open_slabs(&session, &first, 0..20);
    silent.store(true, Ordering::SeqCst);
    let began = rt::now();
    let answers = open_slabs(&session, &first, 0..20);
    let took = rt::now().since(began);
    assert!(took < links::ORDER_TIMEOUT, "{took}: it is not missed so soon");
    let path = |slab: &OpenedSlab| slab.opened.path.starts_with("/nowhere/2/");
    let of_silent = before.iter().flatten().filter(|slab| path(slab)).count();
    let reached: Vec<&OpenedSlab> = answers.iter().flatten().collect();
    let last = reached.iter().filter(|slab| path(slab)).count();
    assert!(of_silent > 1 && last == 1, "{of_silent} lie there, {last} was reached");
    assert_eq!(reached.len(), 20 - of_silent + last, "all that lie elsewhere");
    let failures = answers
        .into_iter()
        .filter_map(std::result::Result::err)
        .map(Error::from);
    failures.for_each(|error| assert!(matches!(error, Error::Timeout(_)), "{error}"));
    drop((session, manager));
    nodes.into_iter().for_each(|node| node.join().expect("no panic"));
}

/// There is nothing to be had without a node that has all slabs: it has the time that there is.
#[test]
fn a_node_that_has_all_slabs_is_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = Manager::start(options(directory.path()), &Tcp).expect("a manager");
    let go_on = |connection: &dyn Connection| {
        obey_while(connection, |order| {
            if matches!(order, Order::LendGrant { .. }) {
                rt::sleep(slabs::SILENCE + Nanos::from_millis(300));
            }
            true
        });
    };
    let node = play(manager.address(), 1, go_on);
    let session = tenant(&manager);
    let answers = open_slabs(&session, &open_first(&session), 0..2);
    assert_eq!(answers.iter().flatten().count(), 2, "{answers:?}");
    drop((session, manager));
    node.join().expect("no panic");
}

/// A tenant had the manager begin a thread with each request that it did not wait for. They end with the manager.
#[test]
fn threads_for_slabs_are_bounded() {
    let (directory, writes) = (tempfile::tempdir().expect("a directory"), Arc::<AtomicU64>::default());
    let store = Arc::new(Counted {
        store: FileStore::new(directory.path()),
        writes: Arc::clone(&writes),
    });
    let manager = Manager::start_on(store, options(directory.path()), &Tcp).expect("a manager");
    let is_asked = Arc::new(rt::Event::new());
    let node = play(manager.address(), 1, {
        let is_asked = Arc::clone(&is_asked);
        move |connection| {
            obey_while(connection, |order| {
                let is_slab = matches!(order, Order::Admit { grant } if *grant != crate::GrantId(1));
                is_slab.then(|| is_asked.set()).is_none()
            });
        }
    });
    let session = tenant(&manager);
    let first = open_first(&session);
    let reaching = Arc::clone(&manager.election.reaching);
    // Others have most of them.
    let places: Vec<Place> = (4..REACHING_MAX).map(|_| reaching.place().expect("free")).collect();
    for threads in places.len() + 1..=REACHING_MAX {
        let answers = open_slabs_within(&session, &first, 0..1, Nanos::ZERO).expect("asked");
        let error = Error::from(answers.into_iter().next().expect("one").expect_err("it is silent"));
        assert!(matches!(error, Error::Timeout(_)), "{error}");
        // From then on the others wait for it.
        is_asked.wait();
        assert_eq!(reaching.count(), threads);
    }
    let before = writes.load(Ordering::SeqCst);
    let refused = open_slabs_within(&session, &first, 0..1, Nanos::ZERO);
    assert!(
        matches!(&refused, Err(Error::Busy(text)) if text.contains("64 threads")),
        "{refused:?}"
    );
    assert_eq!(writes.load(Ordering::SeqCst), before, "nothing is changed");
    assert_eq!(reaching.count(), REACHING_MAX);
    drop((places, session, manager));
    assert_eq!(reaching.count(), 0);
    node.join().expect("no panic");
}

/// Slabs whose node gets no thread are not reached. They are the holder's, as others are, which are.
#[test]
fn a_node_without_a_thread_costs_its_slabs() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = Manager::start(options(directory.path()), &Tcp).expect("a manager");
    let nodes = [1, 2].map(|id| play_node(manager.address(), id));
    let session = tenant(&manager);
    let first = open_first(&session);
    let reaching = &manager.election.reaching;
    let places: Vec<Place> = (1..REACHING_MAX).map(|_| reaching.place().expect("free")).collect();
    let answers = open_slabs(&session, &first, 0..20);
    let path = |slab: &OpenedSlab| slab.opened.path.starts_with("/nowhere/1/");
    let reached = answers.iter().flatten().filter(|slab| path(slab)).count();
    assert_eq!(reached, answers.iter().flatten().count(), "all of the first one's");
    assert!(0 < reached && reached < 20, "{reached} were reached");
    let failures = answers.into_iter().filter_map(std::result::Result::err);
    failures.for_each(|failure| assert!(matches!(Error::from(failure), Error::Busy(_))));
    drop(places);
    assert!(reaching.wait_ended(TIMEOUT));
    assert_eq!(open_slabs(&session, &first, 0..20).iter().flatten().count(), 20);
    drop((session, manager));
    nodes.into_iter().for_each(|node| node.join().expect("no panic"));
}

/// A manager that has ended has nothing of its store any more, in no thread.
#[test]
fn a_manager_ends_after_its_threads_for_slabs() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = Manager::start(options(directory.path()), &Tcp).expect("a manager");
    let (has_ended, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(rt::Event::new()));
    let node = play(manager.address(), 1, {
        let ends = Arc::clone(&ends);
        move |connection| {
            obey(connection);
            ends.set();
        }
    });
    let ended = Arc::clone(&has_ended);
    let body = move || {
        ends.wait();
        rt::sleep(Nanos::from_millis(200));
        ended.store(true, Ordering::SeqCst);
    };
    manager.election.reaching.spawn(body).expect("a thread");
    drop(manager);
    assert!(has_ended.load(Ordering::SeqCst));
    node.join().expect("no panic");
}

/// A process that hears `Revoked` gives up more than a slab, and a manager that leads no more could have said it.
#[test]
fn a_slab_that_is_freed_meanwhile_is_busy() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = Manager::start(options(directory.path()), &Tcp).expect("a manager");
    let (asked, goes_on) = (Arc::new(rt::Event::new()), Arc::new(rt::Event::new()));
    let node = play(manager.address(), 1, {
        let (asked, goes_on) = (Arc::clone(&asked), Arc::clone(&goes_on));
        move |connection| {
            obey_while(connection, |order| {
                if matches!(order, Order::Admit { grant } if *grant != crate::GrantId(1)) {
                    asked.set();
                    goes_on.wait();
                }
                true
            });
        }
    });
    let session = tenant(&manager);
    let first = open_first(&session);
    assert_eq!(first.grant, crate::GrantId(1));
    let operator = {
        let managers = Managers::parse(manager.address()).expect("an address");
        ManagerSession::begin(&Tcp, &managers, &hello(Role::Operator)).expect("a session")
    };
    let opening = rt::spawn("opens", move || (open_slabs(&session, &first, 0..1), session));
    asked.wait();
    let free = Request::Free {
        grant: crate::GrantId(2),
    };
    operator.ask(&free).expect("freed");
    goes_on.set();
    let (answers, session) = opening.join().expect("no panic");
    let errors: Vec<Error> = answers.into_iter().filter_map(|a| a.err().map(Error::from)).collect();
    assert!(matches!(errors[..], [Error::Busy(_)]), "{errors:?}");
    drop((session, operator, manager));
    node.join().expect("no panic");
}

/// A tenant could have a part's mirror take the part's place while its keeper served it, have it freed, or call it
/// whole.
#[test]
fn a_parts_mirror_is_no_matter_of_its_tenant() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = Manager::start(options(directory.path()), &Tcp).expect("a manager");
    let nodes = [1, 2].map(|id| play_node(manager.address(), id));
    let session = tenant(&manager);
    let made = make_mirrored(&session, tenant(&manager));
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
