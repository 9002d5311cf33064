//! A node and what is sent to it that is none of the messages it knows, or too much.

use super::super::calls::part;
use super::super::protocol::{PART, Part, Window};
use super::*;
use crate::fabric_endpoint::Registration;
use crate::{Net, NetOptions, Provider, available};
use cenote_fabric::Mapping;
use cenote_fabric::rdma::call::{self, Answer, Call, Caller, CallerId, Callers, LIMIT};
use cenote_fabric::rdma::{Fabric, RemoteMemory};
use cenote_testkit::contract::calls;

fn cut(call: u64, bytes: &[u8], from: usize) -> Part<'_> {
    part(call, 0, bytes, from)
}

/// With a timeout for a busy machine.
fn net() -> Net {
    let options = NetOptions {
        timeout: Nanos::from_secs(30),
        ..NetOptions::default()
    };
    Net::new(options).expect("there")
}

/// Of one memory for many readers each has a key: it is read by, and no more, and ends by itself.
#[test]
fn keys_to_read_end_one_by_one_and_change_nothing() {
    if let Err(error) = available() {
        eprintln!("not tested: {error}");
        return;
    }
    for path in [Path::Served, Path::OneSided] {
        let options = NodeOptions {
            path: Some(path),
            ..NodeOptions::new(Provider::tcp())
        };
        let node = MemoryNode::start(&options).expect("a node");
        let (registrar, address) = (node.registrar(), node.address().to_string());
        let memory = Arc::new(Mapping::anonymous(1 << 20).expect("mapped"));
        for len in [0, 12, (1 << 20) + 8] {
            assert!(matches!(
                registrar.register_to_read(&memory, len),
                Err(Error::Invalid(_))
            ));
        }
        let [first, second] = [4096, 1 << 20].map(|len| registrar.register_to_read(&memory, len).expect("registered"));
        let net = net();
        let by = |key| RemoteMemory::new(net.connect(&address).expect("there"), key);
        let mut bytes = [9; 64];
        by(first).read(0, &mut bytes).expect("read");
        assert_eq!(bytes, [0; 64]);
        let word = [by(first).fetch_add(0, 1), by(first).compare_and_swap(0, 0, 1)];
        assert!(
            word.iter().all(|done| matches!(done, Err(Error::Invalid(_)))),
            "{word:?}"
        );
        // Cards break the connection for it, and the work is in doubt then.
        let written = by(first).write(0, &[1; 64]);
        assert!(written.is_err() && (path == Path::OneSided || matches!(written, Err(Error::Invalid(_)))));
        let beyond = Remote { len: 1 << 20, ..first };
        assert!(matches!(by(beyond).read(4096, &mut bytes), Err(Error::OutOfBounds(_))));
        assert!(registrar.revoke(first.key).expect("ended"));
        assert!(matches!(by(first).read(0, &mut bytes), Err(Error::Revoked(_))));
        by(second).read(4096, &mut bytes).expect("the other's is there");
        assert_eq!(bytes, [0; 64]);
        node.close();
    }
}

/// Sends bytes as they are.
fn send(fabric_endpoint: &FabricEndpoint, target: &Target, bytes: &[u8]) {
    send_and_hear(fabric_endpoint, target, bytes, |complete| {
        fabric_endpoint.give(complete.slot)
    });
}

fn send_and_hear(fabric_endpoint: &FabricEndpoint, target: &Target, bytes: &[u8], mut hear: impl FnMut(Complete)) {
    let mut slot = fabric_endpoint.take().expect("a slot");
    fabric_endpoint.bytes(&mut slot)[..bytes.len()].copy_from_slice(bytes);
    let mut waiting = Some(slot);
    while let Some(slot) = waiting.take() {
        match fabric_endpoint.send(slot, bytes.len(), target, 1, false) {
            Started::Yes => {}
            Started::Later(slot) => waiting = Some(slot),
            Started::No(_, error) => panic!("{error}"),
        }
        fabric_endpoint.poll(&mut hear).expect("polled");
    }
}

/// Messages that are none, and operations of a session that no user has.
fn garbage(key: u64) -> Vec<Vec<u8>> {
    let mut bytes = vec![0; super::super::fabric_endpoint::SLOT];
    let item = |ask| Item {
        ask,
        fenced: false,
        len: 8,
        key,
        at: 0,
        operand: 1,
        new: 2,
        payload: &[9; 8],
    };
    let mut writer = Writer::new(&mut bytes);
    writer.item(&item(Ask::Write));
    let len = writer.finish(Kind::Works, 77, 1);
    let forged = bytes[..len].to_vec();
    let mut writer = Writer::new(&mut bytes);
    (0..3).for_each(|call| writer.part(&cut(call, b"not from a caller", 0)));
    let len = writer.finish(Kind::Calls, 77, 1);
    let call = bytes[..len].to_vec();
    let mut writer = Writer::new(&mut bytes);
    writer.blob(b"not an address");
    let len = writer.finish(Kind::Hello, 0, 1);
    let hello = bytes[..len].to_vec();
    let mut all: Vec<Vec<u8>> = (0..forged.len()).map(|cut| forged[..cut].to_vec()).collect();
    all.extend([forged, hello, call, vec![0xff; 4096], vec![0; 64]]);
    all.retain(|m| !m.is_empty());
    all
}

/// The number of a call that its user does not come to.
const FORGED: u64 = 1 << 40;

const LAST: &[u8] = b"the last of them";

/// Requests that begin and do not end, that come twice, and that are torn, of a session that a user has.
fn torn_calls(session: u64) -> Vec<Vec<u8>> {
    let (mut bytes, large) = (vec![0; super::super::fabric_endpoint::SLOT], vec![5; LIMIT]);
    let mut message = |parts: &[Part<'_>]| {
        let mut writer = Writer::new(&mut bytes);
        parts.iter().for_each(|part| writer.part(part));
        let len = writer.finish(Kind::Calls, session, 0);
        bytes[..len].to_vec()
    };
    let mut all: Vec<Vec<u8>> = (FORGED..FORGED + 40)
        .map(|call| message(&[cut(call, &large, PART)]))
        .collect();
    all.push(message(&[cut(FORGED, &large, PART)]));
    all.push(message(&[cut(FORGED, &large[..2 * PART + 8], PART)]));
    let whole = message(&[cut(500, b"whole", 0), cut(501, b"torn", 0)]);
    for bit in HEAD * 8..whole.len() * 8 {
        let mut torn = whole.clone();
        torn[bit / 8] ^= 1 << (bit % 8);
        all.push(torn);
    }
    all.push(message(&[cut(502, LAST, 0)]));
    all
}

#[test]
fn torn_calls_do_no_harm() {
    if available().is_err() {
        return;
    }
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    let last = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&last);
    node.serve(Arc::new(move |_: CallerId, request: &[u8], answer: Answer| {
        assert!(request.len() <= LIMIT);
        theirs.fetch_or(request == LAST, Ordering::Relaxed);
        answer.with(request);
    }));
    let net = net();
    let caller = net.caller(&node.address().to_string()).expect("reachable");
    let fabric_endpoint = FabricEndpoint::open(&Provider::tcp(), Some("127.0.0.1"), None).expect("opened");
    let target = Target {
        peer: fabric_endpoint.insert(node.address()).expect("known"),
        ..Target::default()
    };
    let messages = torn_calls(caller.id().0);
    messages
        .iter()
        .for_each(|message| send(&fabric_endpoint, &target, message));
    while !last.load(Ordering::Relaxed) {
        fabric_endpoint
            .poll(|complete| fabric_endpoint.give(complete.slot))
            .expect("polled");
    }
    let batch = (0..64).map(|i| Call::new(vec![i; 1000])).collect();
    for (i, call) in caller.post(batch).wait().into_iter().enumerate() {
        assert_eq!(call.into_answer().expect("answered"), vec![i as u8; 1000]);
    }
    // Many of its session never ended: their users may have given them up. That is not held against those that come.
    let other = net.caller(&node.address().to_string()).expect("reachable");
    for caller in [&caller, &other, &caller, &other] {
        let batch = (0..16).map(|i| Call::new(vec![i; LIMIT])).collect();
        for (i, call) in caller.post(batch).wait().into_iter().enumerate() {
            assert!(call.into_answer().expect("answered") == vec![i as u8; LIMIT]);
        }
    }
    node.close();
}

/// Says hello; the session.
fn greet(fabric_endpoint: &FabricEndpoint, target: &Target) -> u64 {
    let slot = fabric_endpoint.take().expect("a slot");
    assert!(matches!(fabric_endpoint.receive(slot), Started::Yes));
    let mut bytes = vec![0; 1024];
    let mut writer = Writer::new(&mut bytes);
    writer.blob(fabric_endpoint.address().expect("its own").bytes());
    let len = writer.finish(Kind::Hello, 0, 1);
    let session = core::cell::Cell::new(0);
    let mut hear = |mut complete: Complete| {
        let len = complete.result.expect("delivered");
        if complete.received {
            let (head, _) = Reader::new(&fabric_endpoint.bytes(&mut complete.slot)[..len]).expect("a message");
            session.set(head.session);
        }
        fabric_endpoint.give(complete.slot);
    };
    send_and_hear(fabric_endpoint, target, &bytes[..len], &mut hear);
    while session.get() == 0 {
        fabric_endpoint.poll(&mut hear).expect("polled");
    }
    session.get()
}

/// A user that says hello and then only what it is told to: it reads nothing that comes.
struct Deaf {
    fabric_endpoint: FabricEndpoint,
    target: Target,
    session: u64,
}

impl Deaf {
    fn new(node: &MemoryNode) -> Self {
        let fabric_endpoint = FabricEndpoint::open(&Provider::tcp(), Some("127.0.0.1"), None).expect("opened");
        let target = Target {
            peer: fabric_endpoint.insert(node.address()).expect("known"),
            ..Target::default()
        };
        let session = greet(&fabric_endpoint, &target);
        Self {
            fabric_endpoint,
            target,
            session,
        }
    }

    /// Calls of one more session that put much into memory, which is there.
    fn lend_much(&self, session: u64, window: Window) {
        let mut bytes = vec![0; super::super::fabric_endpoint::SLOT];
        let mut writer = Writer::new(&mut bytes);
        let request = [&b"m"[..], &(LIMIT as u64).to_le_bytes()].concat();
        for call in 1..5 {
            writer.part(&Part {
                window: Some(window),
                ..part(call, LIMIT as u32, &request, 0)
            });
        }
        let len = writer.finish(Kind::Calls, session, 0);
        send(&self.fabric_endpoint, &self.target, &bytes[..len]);
    }

    /// So many calls of four bytes.
    fn call(&self, count: u64) {
        let mut bytes = vec![0; super::super::fabric_endpoint::SLOT];
        let mut writer = Writer::new(&mut bytes);
        (0..count).for_each(|call| writer.part(&cut(call, b"more", 0)));
        let len = writer.finish(Kind::Calls, self.session, 0);
        send(&self.fabric_endpoint, &self.target, &bytes[..len]);
    }
}

/// A user that asks for much and takes none of it, as a process that was stopped, holds up itself alone.
#[test]
fn a_caller_that_takes_no_answers_holds_up_no_other() {
    if available().is_err() {
        return;
    }
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    node.serve(Arc::new(|_: CallerId, request: &[u8], answer: Answer| {
        answer.with(if request == b"more" { &[7; LIMIT] } else { request });
    }));
    let deaf = Deaf::new(&node);
    let net = net();
    let caller = net.caller(&node.address().to_string()).expect("reachable");
    (0..4).for_each(|_| deaf.call(200));
    for n in 0..100u8 {
        let call = caller.post(vec![Call::new(vec![n; 1000])]).wait().remove(0);
        assert_eq!(call.into_answer().expect("answered"), vec![n; 1000]);
    }
    node.close();
}

/// Memory of a user that nodes may write to. Dropped before its endpoint.
struct Written {
    window: Window,
    _registration: Registration,
}

impl Written {
    fn new(fabric_endpoint: &FabricEndpoint) -> Self {
        let memory = Arc::new(Mapping::anonymous(LIMIT).expect("mapped"));
        let registered = fabric_endpoint.register(&memory, LIMIT, Access::Written, rt::random());
        let (registration, target) = registered.expect("registered");
        Self {
            window: Window {
                address: target.address,
                key: target.key,
            },
            _registration: registration,
        }
    }
}

/// A program that says how often it was asked, and which callers have ended.
#[derive(Default)]
struct Watched {
    program: calls::Program,
    asked: Mutex<usize>,
    ended: Mutex<Vec<CallerId>>,
}

impl Serve for Watched {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        *self.asked.lock() += 1;
        self.program.serve(caller, request, answer);
    }

    fn ended(&self, caller: CallerId) {
        self.ended.lock().push(caller);
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = rt::now() + Nanos::from_secs(60);
    while !is_so() {
        assert!(rt::now() < until, "{what}");
        rt::sleep(Nanos::from_micros(100));
    }
}

/// Asks for so many bytes, in memory that it lends.
fn fill(caller: &dyn Caller, memory: call::Memory) {
    let request = [&b"m"[..], &(memory.len() as u64).to_le_bytes()].concat();
    let call = Call::new(request).into_memory(memory).within(Nanos::from_secs(60));
    let filled = caller.post(vec![call]).wait().pop().expect("one");
    assert!(filled.result.is_ok(), "{filled:?}");
    assert!(filled.memory.iter().any(|byte| *byte != 0));
}

/// A process can say hello as often as it likes: the node's slots for it are not more for that.
#[test]
fn sessions_of_one_address_hold_as_many_slots_as_one() {
    if available().is_err() {
        return;
    }
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    let program = Arc::<Watched>::default();
    node.serve(Arc::clone(&program) as _);
    let net = net();
    let caller = net.caller(&node.address().to_string()).expect("reachable");
    let deaf = Deaf::new(&node);
    let written = Written::new(&deaf.fabric_endpoint);
    let sessions: Vec<u64> = (0..13).map(|_| greet(&deaf.fabric_endpoint, &deaf.target)).collect();
    sessions
        .iter()
        .for_each(|session| deaf.lend_much(*session, written.window));
    wait_for("all are asked", || *program.asked.lock() == 4 * sessions.len());
    for _ in 0..20 {
        fill(&*caller, caller.lend(50_000).expect("there is"));
    }
    node.close();
    drop((written, deaf));
}

/// Many processes that do not let writes to them end, as if they were stopped, leave the node slots for answers.
#[test]
fn writes_leave_slots_for_answers() {
    if available().is_err() {
        return;
    }
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    let program = Arc::<Watched>::default();
    node.serve(Arc::clone(&program) as _);
    let net = net();
    let caller = net.caller(&node.address().to_string()).expect("reachable");
    let deaf: Vec<Deaf> = (0..13).map(|_| Deaf::new(&node)).collect();
    let written: Vec<Written> = deaf.iter().map(|deaf| Written::new(&deaf.fabric_endpoint)).collect();
    for (deaf, written) in deaf.iter().zip(&written) {
        deaf.lend_much(deaf.session, written.window);
    }
    wait_for("all are asked", || *program.asked.lock() == 4 * deaf.len());
    for _ in 0..20 {
        fill(&*caller, vec![0; 50_000].into());
    }
    node.close();
    drop((written, deaf));
}

/// A node's server without its thread, whose provider does not keep messages behind writes.
fn server() -> Server {
    Server::new(Arc::new(Shared {
        registry: Mutex::default(),
        unended: Mutex::default(),
        program: Mutex::default(),
        stop: AtomicBool::new(false),
        path: Path::Served,
        writes: true,
        write: Start::Write,
        silence: Nanos::from_secs(10),
        fabric_endpoint: FabricEndpoint::open(&Provider::tcp(), Some("127.0.0.1"), None).expect("opened"),
    }))
}

struct Zeros(usize);

impl call::Source for Zeros {
    fn size(&self) -> usize {
        self.0
    }

    fn read(&mut self, _: usize, into: &mut [u8]) {
        into.fill(0);
    }
}

#[test]
fn an_answer_waits_until_all_its_writes_are_complete() {
    if available().is_err() {
        return;
    }
    let (mut server, user) = (
        server(),
        FabricEndpoint::open(&Provider::tcp(), Some("127.0.0.1"), None),
    );
    let user = user.expect("opened");
    let id = server.begin_session(user.address().expect("its own")).expect("known");
    let (window, call) = (Window { address: 0, key: 1 }, 7);
    let answered = call::Answered {
        bytes: b"answer".to_vec(),
        source: Some(Box::new(Zeros(30_000))),
    };
    call::Answering::answered(
        &reply_queue::Through(Arc::clone(&server.reply_queue), window),
        CallerId(id),
        call,
        Ok(answered),
    );
    // Two pieces: the first is not under way before there is a connection, so what waits for that is let through by
    // hand.
    for piece in 1..3 {
        server.send_answers();
        assert_eq!(server.last_write, piece);
        server.write_started(id);
    }
    let waits = |server: &Server| {
        let session = &server.sessions[&id];
        session.answers.is_empty() && session.written.contains_key(&call)
    };
    assert!(waits(&server));
    let tags: Vec<u64> = server.writes.keys().map(|number| 1 << 63 | number).collect();
    assert!(server.wrote(tags[0]).is_some() && waits(&server), "one is missing");
    assert!(server.wrote(tags[1]).is_some());
    let session = &server.sessions[&id];
    assert!(session.written.is_empty() && session.answers.front().is_some_and(|first| first.call == call));
    server.end_session(id);
}

/// What is lent for writing cannot be read.
#[test]
fn memory_to_be_written_to_is_not_read_by_peers() {
    if available().is_err() {
        return;
    }
    let open = || FabricEndpoint::open(&Provider::tcp(), Some("127.0.0.1"), None).expect("opened");
    let (user, peer) = (open(), open());
    let written = Written::new(&user);
    let target = Target {
        peer: peer.insert(&user.address().expect("its own")).expect("known"),
        address: written.window.address,
        key: written.window.key,
    };
    let run = |start: Start| {
        let (mut slot, outcome) = (peer.take(), core::cell::Cell::new(None));
        while outcome.get().is_none() {
            if let Some(free) = slot.take() {
                match peer.start(free, 64, start, &target, 1, false) {
                    Started::Yes => {}
                    Started::Later(free) => slot = Some(free),
                    Started::No(_, error) => panic!("{error}"),
                }
            }
            user.poll(|complete| user.give(complete.slot)).expect("polled");
            let end = |complete: Complete| outcome.set(Some(complete.result.is_ok()));
            peer.poll(end).expect("polled");
        }
        outcome.get()
    };
    assert_eq!(run(Start::Write), Some(true));
    assert_eq!(run(Start::Read), Some(false));
}

#[test]
fn garbage_and_foreign_sessions_change_nothing() {
    if available().is_err() {
        return;
    }
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    let memory = node.register(64).expect("registered");
    let fabric_endpoint = FabricEndpoint::open(&Provider::tcp(), Some("127.0.0.1"), None).expect("opened");
    let target = Target {
        peer: fabric_endpoint.insert(node.address()).expect("known"),
        ..Target::default()
    };
    for message in garbage(memory.key.0) {
        send(&fabric_endpoint, &target, &message);
    }
    let net = net();
    let endpoint = net.connect(&node.address().to_string()).expect("the node is alive");
    let remote = RemoteMemory::new(endpoint, memory);
    assert_eq!(remote.load(0).expect("loaded"), 0, "no user with a session wrote");
    assert_eq!(remote.fetch_add(0, 4).expect("added"), 0);
    node.close();
}

/// A node whose provider does not keep messages behind writes, as far as it knows.
struct Unordered(Mutex<Option<MemoryNode>>, String, Net);

impl calls::Bench for Unordered {
    fn caller(&self) -> Arc<dyn Caller> {
        self.2.caller(&self.1).expect("reachable")
    }

    fn lose(&self) {
        self.0.lock().take().expect("not lost").close();
    }
}

#[test]
fn the_contract_holds_where_messages_may_overtake_writes() {
    if available().is_err() {
        return;
    }
    let options = NodeOptions::new(Provider::tcp());
    let fabric_endpoint = FabricEndpoint::open(&options.provider, Some("127.0.0.1"), None).expect("opened");
    let node = MemoryNode::with(&options, fabric_endpoint, Start::Write).expect("a node");
    node.serve(Arc::<calls::Program>::default());
    let (address, timeout) = (node.address().to_string(), Nanos::from_secs(3));
    let net = Net::new(NetOptions {
        timeout,
        ..NetOptions::default()
    });
    let bench: Arc<dyn calls::Bench> = Arc::new(Unordered(Mutex::new(Some(node)), address, net.expect("there")));
    assert!(bench.caller().lend(8).is_some());
    calls::threads_lend_side_by_side(&bench);
    calls::all(&bench);
}

#[test]
fn a_node_that_does_not_write_lends_nothing() {
    if available().is_err() {
        return;
    }
    let options = NodeOptions {
        writes: false,
        ..NodeOptions::new(Provider::tcp())
    };
    let node = MemoryNode::start(&options).expect("a node");
    let caller = net().caller(&node.address().to_string()).expect("reachable");
    assert!(caller.lend(8).is_none());
    node.close();
    assert!(!NodeOptions::new(Provider::shm()).writes, "many at once are slow there");
}

/// A caller that names memory which it does not have ends its own connection with that.
#[test]
fn a_caller_that_names_unknown_memory_harms_no_other() {
    if available().is_err() {
        return;
    }
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    let program = Arc::<Watched>::default();
    node.serve(Arc::clone(&program) as _);
    let user = net();
    let caller = user.caller(&node.address().to_string()).expect("reachable");
    let liar = net();
    let theirs = liar.caller(&node.address().to_string()).expect("reachable");
    let fabric_endpoint = FabricEndpoint::open(&Provider::tcp(), Some("127.0.0.1"), None).expect("opened");
    let to = fabric_endpoint.insert(node.address()).expect("an address");
    let target = Target {
        peer: to,
        ..Target::default()
    };
    for call in 0..20 {
        let mut bytes = vec![0; super::super::fabric_endpoint::SLOT];
        let mut writer = Writer::new(&mut bytes);
        let request = [&b"m"[..], &50_000u64.to_le_bytes()].concat();
        writer.part(&Part {
            window: Some(Window {
                address: 1 << 40,
                key: call,
            }),
            ..part(1 << 60 | call, 50_000, &request, 0)
        });
        let len = writer.finish(Kind::Calls, theirs.id().0, 0);
        send(&fabric_endpoint, &target, &bytes[..len]);
    }
    let number = theirs.id();
    wait_for("the liar is ended", || program.ended.lock().contains(&number));
    for _ in 0..20 {
        fill(&*caller, caller.lend(50_000).expect("there is"));
    }
    assert!(!program.ended.lock().contains(&caller.id()));
    drop((caller, theirs));
    node.close();
}
