use super::*;
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;

const TIMEOUT: Nanos = Nanos::from_secs(60);

/// Peers say of which tenant they are, and then "wait", "panic" or anything else, which is told back.
#[derive(Default)]
struct Words {
    left: AtomicU64,
    waiting: AtomicU64,
    release: rt::Event,
}

impl Peers for Words {
    type Peer = String;

    fn greet(&self, hello: &[u8], visit: &Arc<Visit>) -> Result<Greeted<String>> {
        let tenant = String::from_utf8_lossy(hello).into_owned();
        visit.share_as(&tenant);
        visit.place.give_to(&tenant, 2)?;
        visit.trust();
        visit.connection.send(b"welcome")?;
        Ok(Greeted::Stays(tenant))
    }

    fn may_wait(&self, request: &[u8]) -> bool {
        request == b"wait"
    }

    fn answer(&self, _: &mut String, request: &[u8], visit: &Arc<Visit>) -> Result<()> {
        match request {
            b"panic" => panic!("planted"),
            b"wait" => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.release.wait();
            }
            _ => {}
        }
        visit.connection.send(request)
    }

    fn leave(&self, _: String) {
        self.left.fetch_add(1, Ordering::SeqCst);
    }
}

/// A service that is open, and where.
struct Open {
    service: Arc<Service<String>>,
    words: Arc<Words>,
    address: String,
    stop: Arc<AtomicBool>,
    thread: Option<rt::JoinHandle<()>>,
}

impl Open {
    fn new(limits: ServiceLimits) -> Self {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let (service, stop) = (Arc::new(Service::new("test", limits)), Arc::new(AtomicBool::new(false)));
        let words = Arc::<Words>::default();
        let (address, theirs, over) = (listener.address(), Arc::clone(&service), Arc::clone(&stop));
        let peers = Arc::downgrade(&words);
        let accepting = move || theirs.accept(&*listener, peers, || over.load(Ordering::Acquire));
        Self {
            service,
            words,
            address,
            stop,
            thread: Some(rt::spawn("door", accepting)),
        }
    }

    fn come(&self) -> Arc<dyn Connection> {
        Tcp.connect(&self.address, TIMEOUT).expect("connected")
    }

    /// Comes, and says of which tenant it is; whether it was let in.
    fn come_as(&self, tenant: &str) -> (Arc<dyn Connection>, bool) {
        let connection = self.come();
        let answer = ask(&*connection, tenant.as_bytes());
        (connection, answer.is_ok())
    }

    fn until(&self, count: u32) {
        until("connections", || self.service.count() == count);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.words.release.set();
        self.stop.store(true, Ordering::Release);
        self.thread.take().map(rt::JoinHandle::join);
        self.service.close();
        assert_eq!(self.service.count(), 0);
    }
}

fn ask(connection: &dyn Connection, words: &[u8]) -> Result<Vec<u8>> {
    connection.send(words)?;
    connection.receive(TIMEOUT)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = rt::now();
    while !is_so() {
        assert!(rt::now().since(began) < TIMEOUT, "{what}");
        rt::sleep(Nanos::from_millis(2));
    }
}

fn limits(connections: u32, unknown: u32) -> ServiceLimits {
    ServiceLimits {
        connections,
        unknown,
        short: 2,
        long: 4,
    }
}

/// The thread of a connection that panicked kept its place: closing the node or manager waited for ever, and in time no
/// client was let in. Threads are few: they go on, too.
#[test]
fn a_place_is_given_back_however_an_answer_ends() {
    let open = Open::new(limits(8, 2));
    for round in 1..=5 {
        let (connection, _) = open.come_as("a");
        assert!(ask(&*connection, b"panic").is_err(), "it is closed");
        open.until(0);
        assert_eq!(open.words.left.load(Ordering::SeqCst), round);
    }
    let (connection, _) = open.come_as("a");
    assert_eq!(ask(&*connection, b"hello").expect("an answer"), b"hello");
}

/// One tenant could take all connections, and unknown clients too.
#[test]
fn no_tenant_takes_all_places() {
    let open = Open::new(limits(40, 3));
    let come = |tenant| open.come_as(tenant);
    let greedy: Vec<_> = (0..25).map(|_| come("a")).filter(|(_, is_in)| *is_in).collect();
    assert_eq!(greedy.len(), 20, "its share");
    open.until(20);
    let others: Vec<_> = (0..25).map(|_| come("b")).filter(|(_, is_in)| *is_in).collect();
    assert_eq!(others.len(), 16, "the last places are for tenants that have few");
    open.until(36);
    assert!(come("c").1, "as this one");
    drop(greedy);
    open.until(16);
}

/// Clients that connected and said nothing kept all others out, for 5 s each.
#[test]
fn a_client_that_says_nothing_makes_room() {
    let open = Open::new(limits(40, 3));
    let silent: Vec<_> = (0..20).map(|_| open.come()).collect();
    let (known, is_in) = open.come_as("a");
    assert!(is_in, "it says what it is");
    until("most of the silent ones are gone", || open.service.count() <= 4);
    assert!(silent[0].receive(TIMEOUT).is_err(), "the first of them goes first");
    assert_eq!(ask(&*known, b"still here").expect("an answer"), b"still here");
}

/// A thread for each connection: a thousand idle clients were a thousand threads.
#[test]
fn many_clients_have_few_threads() {
    let open = Open::new(limits(2000, 64));
    let before = std::fs::read_dir("/proc/self/task").expect("a directory").count();
    let all: Vec<_> = (0..600).map(|_| open.come_as("a").0).collect();
    for (n, connection) in all.iter().enumerate() {
        let words = format!("{n}");
        assert_eq!(
            ask(&**connection, words.as_bytes()).expect("an answer"),
            words.as_bytes()
        );
    }
    let after = std::fs::read_dir("/proc/self/task").expect("a directory").count();
    // Other tests of this process have some, too.
    assert!(after < before + 300, "{before} threads, then {after}");
}

/// Requests that wait for memory nodes took all threads: a lease that had to be renewed was not.
#[test]
fn requests_that_wait_keep_out_no_others() {
    let open = Open::new(ServiceLimits {
        long: 8,
        ..limits(100, 10)
    });
    let waiting: Vec<_> = (0..40).map(|_| open.come_as("a").0).collect();
    waiting
        .iter()
        .for_each(|connection| connection.send(b"wait").expect("sent"));
    until("a tenant's share waits", || {
        open.words.waiting.load(Ordering::SeqCst) == 2
    });
    let (same, _) = open.come_as("a");
    assert_eq!(ask(&*same, b"renew").expect("an answer"), b"renew");
    let (other, _) = open.come_as("b");
    other.send(b"wait").expect("sent");
    until("another tenant's has a thread", || {
        open.words.waiting.load(Ordering::SeqCst) == 3
    });
    open.words.release.set();
    for connection in waiting.iter().chain([&other]) {
        assert_eq!(connection.receive(TIMEOUT).expect("an answer"), b"wait");
    }
}

/// What comes in pieces, and several messages at once.
#[test]
fn messages_come_as_they_were_sent() {
    let open = Open::new(limits(10, 3));
    let (connection, _) = open.come_as("a");
    for n in 0..50u32 {
        connection.send(&n.to_le_bytes()).expect("sent");
    }
    for n in 0..50u32 {
        assert_eq!(connection.receive(TIMEOUT).expect("an answer"), n.to_le_bytes());
    }
    let long = vec![7; 900_000];
    assert!(ask(&*connection, &long).expect("an answer") == long);
}
