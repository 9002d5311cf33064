//! Mirrored spaces, by real processes over TCP and libfabric: a memory node is killed and its memory removed, and what
//! was acknowledged is there for the members that were there before, under the locks that they have. What a memory
//! node's process does is [`be_a_node`].

mod common;
#[path = "common/lost_nodes.rs"]
mod lost_nodes;

use cenote_base::Result;
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_space::{EXTENT, GlobalAddress, Mode, Session, Space};
use cenote_store::{Options, Put, PutOptions, Store};
use common::seed;
use lost_nodes::{Pool, be_a_node, can_run, is_away, patiently};
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const KEEP: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: false,
    replicas: 0,
};
#[test]
fn another_process() {
    be_a_node();
}

/// Between a memory node and the manager; it can be cut.
struct Proxy {
    address: String,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn to(manager: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (open, streams) = (Arc::new(AtomicBool::new(true)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (manager, theirs) = (manager.to_owned(), (Arc::clone(&open), Arc::clone(&streams)));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(from), Ok(to)) = (stream, TcpStream::connect(&manager)) else {
                    continue;
                };
                if !theirs.0.load(Ordering::SeqCst) {
                    return;
                }
                let pairs = [(&from, &to), (&to, &from)].map(|(from, to)| {
                    let clone = |stream: &TcpStream| stream.try_clone().expect("a stream");
                    (clone(from), clone(to))
                });
                theirs.1.lock().expect("no panic").extend([from, to]);
                for (mut from, mut to) in pairs {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
            }
        });
        Self { address, open, streams }
    }

    fn cut(&self) {
        self.open.store(false, Ordering::SeqCst);
        // It wakes up, and goes.
        TcpStream::connect(&self.address).ok();
        for stream in self.streams.lock().expect("no panic").drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Objects with a counter each, that one thread raises under a lock: what it knows to be there.
struct Writer {
    session: Session,
    lock: GlobalAddress,
    counters: Vec<GlobalAddress>,
    /// What was acknowledged, and what was begun.
    safe: u64,
    begun: u64,
}

impl Writer {
    fn new(space: &Space, number: usize) -> Self {
        let session = space.session();
        let lock = session.new_lock().expect("room");
        let lens = [64, 5000, 300_000];
        Self {
            lock,
            counters: (0..number)
                .map(|n| session.alloc(lens[n % lens.len()]).expect("room"))
                .collect(),
            session,
            safe: 0,
            begun: 0,
        }
    }

    /// Raises all counters by one, under the lock; an error of a node that is away leaves it unknown.
    fn step(&mut self) -> Result<()> {
        let guard = self.session.lock(self.lock, Mode::Write)?;
        self.begun += 1;
        for counter in &self.counters {
            guard.write(*counter, &self.begun.to_le_bytes())?;
        }
        guard.unlock()?;
        self.safe = self.begun;
        Ok(())
    }

    fn check(&self) {
        for counter in &self.counters {
            let found = patiently("a counter", || self.session.load(*counter));
            assert!(
                (self.safe..=self.begun).contains(&found),
                "{found} of {} to {}",
                self.safe,
                self.begun
            );
        }
    }
}

/// A node is killed while members write, at some moment. They go on, with what was acknowledged, and their locks. A
/// third node gets the new mirrors; then the second is lost too.
#[test]
fn a_space_outlives_its_nodes() {
    if !can_run() {
        return;
    }
    let (mut pool, mut draw) = (Pool::new(2, 48), Random(seed()));
    let client = pool.client();
    client
        .create_mirrored_space("heap", 24 * EXTENT, None)
        .expect("a space");
    pool.until_whole();
    let space = client.open_space("heap").expect("open");
    assert_eq!((space.parts().count(), space.far_parts().count()), (0, 2));
    let held = space.session();
    let lock = held.new_lock().expect("room");
    held.set_root(lock).expect("set");
    let guard = held.lock(lock, Mode::Write).expect("free");
    for loss in 0..2 {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let (mut writer, stop) = (Writer::new(&space, 4), Arc::clone(&stop));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match writer.step() {
                            Err(error) if !is_away(&error) => panic!("{error}"),
                            _ => {}
                        }
                    }
                    writer
                })
            })
            .collect();
        rt::sleep(Nanos::from_millis(draw.below(400)));
        pool.lose(loss);
        rt::sleep(Nanos::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            let mut writer = writer.join().expect("no panic");
            writer.check();
            patiently("a step", || writer.step());
            writer.check();
        }
        pool.add_node();
        pool.until_whole();
        assert!(pool.places().iter().all(|place| *place > loss));
    }
    let other = pool.client().open_space("heap").expect("open");
    assert_eq!(other.root().expect("the root"), lock);
    let taken = other.session().try_lock(lock, Mode::Read).map(|guard| guard.is_some());
    assert!(!taken.expect("asked"), "it is held still");
    guard.unlock().expect("its own still");
    assert!(other.session().try_lock(lock, Mode::Read).expect("asked").is_some());
    assert_eq!(space.audit().expect("looked at"), Vec::<String>::new());
    drop((held, other, space));
    pool.audit();
}

/// Members looked for the part of a lost node once a second, whatever a lease was: their sessions had ended when they
/// came, at about each second loss, and never began again.
#[test]
fn sessions_outlive_nodes_with_a_short_lease() {
    if !can_run() {
        return;
    }
    let lease = Nanos::from_secs(1);
    let (mut pool, mut draw) = (Pool::leased(2, 24, lease), Random(seed()));
    let client = pool.client();
    client
        .create_mirrored_space("heap", 16 * EXTENT, Some(&["pod-0".into()]))
        .expect("a space");
    let space = client.open_space("heap").expect("open");
    let (owner, idle) = (space.session(), space.session());
    owner.alloc(64).expect("room");
    let number = idle.begin_in(1).expect("begun");
    for loss in 0..4 {
        pool.until_whole();
        rt::sleep(Nanos(draw.below(lease.raw())));
        pool.lose(loss);
        // Until all that is late has ended. Nothing but signs of life looks for the part meanwhile.
        rt::sleep(Nanos(3 * lease.raw()));
        patiently("an object of before", || owner.alloc(64));
        patiently("an object", || idle.alloc_at(1, 64));
        assert_eq!(idle.begin_in(1).expect("it has begun"), number);
        pool.add_node();
    }
    assert_eq!(space.audit().expect("looked at"), Vec::<String>::new());
}

/// Values of the shared store that were put before a node was lost are there after it.
#[test]
fn a_store_outlives_its_node() {
    if !can_run() {
        return;
    }
    let mut pool = Pool::new(2, 64);
    let client = pool.client();
    client
        .create_mirrored_space("store", 32 * EXTENT, None)
        .expect("a space");
    pool.until_whole();
    let space = client.open_space("store").expect("open");
    let store = Store::create(&space, Options::default()).expect("a store");
    let mut draw = Random(seed());
    let values: BTreeMap<Vec<u8>, Vec<u8>> = (0..100u32)
        .map(|n| {
            let len = draw.pick(&[1, 100, 4000, 70_000]);
            (n.to_le_bytes().to_vec(), (0..len).map(|_| draw.word() as u8).collect())
        })
        .collect();
    for (key, value) in &values {
        store.put(key, value, KEEP).expect("put");
    }
    pool.lose(0);
    for (key, value) in &values {
        let found = patiently("a value", || store.get(key));
        assert!(found.as_ref() == Some(value), "{key:?}");
    }
    patiently("a put", || store.put(b"new", b"value", KEEP));
    let other = pool.client().open_space("store").expect("open");
    let opened = Store::open(&other, Options::default()).expect("the store");
    assert_eq!(opened.get(b"new").expect("asked").as_deref(), Some(&b"value"[..]));
}

/// What lay in a part that was away was a miss, and a put of its key, or of another in its bucket, forgot it for good.
#[test]
fn a_store_forgets_nothing_of_a_part_that_is_away() {
    if !can_run() {
        return;
    }
    let mut pool = Pool::new(2, 48);
    let client = pool.client();
    client
        .create_mirrored_space("store", 16 * EXTENT, None)
        .expect("a space");
    pool.until_whole();
    let space = client.open_space("store").expect("open");
    let store = Store::create(&space, Options::default()).expect("a store");
    let table = usize::from(store.address().part()) - 1;
    let key = |n: u32| n.to_le_bytes();
    // More than a part has room for, less than both have.
    let value = |n: u32| vec![n as u8; 200_000];
    let put = 45;
    for n in 0..put {
        store.put(&key(n), &value(n), KEEP).expect("room");
    }
    // What is put later is of this size: it has memory by now, and nothing is evicted for it.
    store.put(b"other", b"another", KEEP).expect("room");
    let away = 1 - pool.places()[table];
    let stats = store.stats().expect("counted");
    assert_eq!((stats.evicted, stats.items), (0, u64::from(put) + 1), "all are there");
    pool.nodes[away].kill();
    std::fs::remove_dir_all(pool.node_directory(away)).expect("removed");
    let mut failed = 0;
    for n in (0..put).step_by(8) {
        match store.put(&key(n), b"another", KEEP) {
            Ok(Put::Exists) => {}
            Err(error) if is_away(&error) => failed += 1,
            put => panic!("key {n}: {put:?}"),
        }
        match store.get(&key(n)) {
            Ok(Some(found)) => assert!(found == value(n), "key {n}"),
            Err(error) if is_away(&error) => failed += 1,
            found => panic!("key {n}: {:?}, {:?}", found.map(|found| found.is_some()), store.stats()),
        }
        if failed > 4 {
            break;
        }
    }
    assert!(failed > 0, "some lie in the part that is away");
    pool.forget(away);
    for n in 0..put {
        let found = patiently("a value", || store.get(&key(n)));
        assert!(found.as_ref() == Some(&value(n)), "key {n}");
    }
}

/// A node's process that is killed and started again is the keeper of what it has: nothing acknowledged is lost, also
/// when it is lost right after that.
#[test]
fn a_node_that_starts_anew_has_its_mirrors_filled_again() {
    if !can_run() {
        return;
    }
    let mut pool = Pool::new(2, 24);
    let client = pool.client();
    client
        .create_mirrored_space("heap", 8 * EXTENT, Some(&["pod-0".into()]))
        .expect("a space");
    pool.until_whole();
    let space = client.open_space("heap").expect("open");
    let mut writer = Writer::new(&space, 3);
    (0..20).for_each(|_| writer.step().expect("written"));
    pool.nodes[0].kill();
    pool.nodes[0] = pool.start_node(0);
    writer.check();
    (0..20).for_each(|_| patiently("a step", || writer.step()));
    pool.until_whole();
    pool.lose(0);
    writer.check();
    patiently("a step", || writer.step());
    writer.check();
}

/// A node loses the manager, and not its clients, and is taken for lost: it answered each of them with an error, for
/// good, and none of them looked for the part where it was.
#[test]
fn clients_of_a_former_keeper_go_to_the_mirror() {
    if !can_run() {
        return;
    }
    let mut pool = Pool::new(0, 24);
    let proxy = Proxy::to(pool.manager.address());
    let former = pool.start_node_by(0, &proxy.address);
    pool.nodes.push(former);
    pool.add_node();
    let client = pool.client();
    client
        .create_mirrored_space("heap", 8 * EXTENT, Some(&["pod-0".into()]))
        .expect("a space");
    pool.until_whole();
    let space = client.open_space("heap").expect("open");
    let mut writer = Writer::new(&space, 3);
    (0..20).for_each(|_| writer.step().expect("written"));
    proxy.cut();
    pool.forget(0);
    (0..20).for_each(|_| patiently("a step", || writer.step()));
    writer.check();
    assert_eq!(pool.places(), [1], "it is kept by the other");
    assert!(!pool.nodes[0].has_ended(), "the former one lives on");
    let another = space.session();
    patiently("another session", || another.alloc(64));
}

/// What cannot be mirrored is refused, and says why.
#[test]
fn a_mirrored_space_takes_two_nodes() {
    if !can_run() {
        return;
    }
    let pool = Pool::new(1, 12);
    let client = pool.client();
    let refused = client.create_mirrored_space("heap", 2 * EXTENT, None);
    assert!(
        matches!(&refused, Err(cenote_base::Error::Full(text)) if text.contains("another memory node")),
        "{refused:?}"
    );
    assert!(client.spaces().expect("asked").is_empty());
    client.create_space("heap", 2 * EXTENT, None).expect("without a mirror");
}
