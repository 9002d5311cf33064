//! Direct reads: bytes that the fabric sends from where they lie, into memory that the call has lent.

use super::super::hosts::KnownUser;
use super::super::wire::{self, DirectFrom, Item};
use super::*;
use crate::act::Act;
use crate::{FarMode, FarReads, FarStats};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::AtomicU64;
use cenote_fabric::rdma::call::{Answer, Answered, Answering, Caller, CallerId};
use cenote_libfabric::{self as libfabric, MemoryNode, Net, NetOptions, NodeOptions, Provider};

const DIRECT: DirectFrom = DirectFrom(1);
/// Status of an access that has to be asked for again.
const FROZEN: u8 = 2;

fn bytes_of(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|n| (n * 31 + salt * 7 + (n >> 9)) as u8).collect()
}

impl Pods {
    /// In which all users read so.
    fn reading(extents: u64, reads: FarReads) -> Self {
        let mut pods = Self::still(extents);
        pods.reads = [reads; 2];
        pods.users = (0..2).map(|pod| pods.user(pod)).collect();
        pods
    }

    fn far_stats(&self) -> FarStats {
        self.users[1].stats().far.pop().expect("one part is far")
    }
}

#[test]
fn reads_bring_the_same_however_they_are_done() {
    let all = [
        FarReads::Plain,
        FarReads::DirectFrom(0),
        FarReads::DirectFrom(513),
        FarReads::OneSidedFrom(513),
    ];
    for reads in all {
        let pods = Pods::reading(8, reads);
        let session = pods.users[0].session();
        let sizes = [1, 7, 64, 512, 513, 4096, 100_000, 300_000, EXTENT as usize + 5];
        let objects: Vec<_> = sizes
            .into_iter()
            .map(|len| {
                let address = session.alloc(len as u64 + 8).expect("room");
                pods.users[0].write(address, &bytes_of(len + 8, 3)).expect("written");
                (address, len)
            })
            .collect();
        let mut all: Vec<Vec<u8>> = Vec::new();
        for (address, len) in &objects {
            let one = read(&pods.users[1], *address + 3, *len).expect("read");
            assert!(one == bytes_of(len + 8, 3)[3..len + 3], "{reads:?}, {len} bytes");
            all.push(vec![0; *len]);
        }
        let mut many: Vec<_> = objects
            .iter()
            .zip(&mut all)
            .map(|((address, _), into)| Read {
                address: *address,
                into,
            })
            .collect();
        pods.users[1].read_many(&mut many).expect("read");
        for ((_, len), read) in objects.iter().zip(all) {
            assert!(read == bytes_of(len + 8, 3)[..*len], "{reads:?}, {len} bytes of many");
        }
        let stats = pods.far_stats();
        let ways = [stats.direct > 0, stats.one_sided > 0];
        let is_one_sided = matches!(reads, FarReads::OneSidedFrom(_));
        assert_eq!(
            ways,
            [reads != FarReads::Plain && !is_one_sided, is_one_sided],
            "{stats:?}"
        );
        // The first one opens the way.
        assert_eq!(stats.plain == 1, reads == FarReads::DirectFrom(0), "{stats:?}");
    }
}

/// However the bytes of moves come, what has moved is what it was.
#[test]
fn extents_move_in_every_way() {
    for reads in [FarReads::Plain, FarReads::DirectFrom(1), FarReads::OneSidedFrom(1)] {
        let mut pods = Pods::still(6);
        pods.reads = [reads; 2];
        pods.restart();
        let session = pods.users[0].session();
        let objects: Vec<_> = [64, 4096, 100_000]
            .into_iter()
            .map(|len| (session.alloc(len as u64).expect("room"), len))
            .collect();
        for (address, len) in &objects {
            pods.users[0].write(*address, &bytes_of(*len, 5)).expect("written");
        }
        for to in [2, 1] {
            for (address, len) in &objects {
                pods.hosts[0].relocate(address.extent(), to).expect("moved");
                for user in &pods.users {
                    assert!(
                        read(user, *address, *len).expect("read") == bytes_of(*len, 5),
                        "{reads:?}"
                    );
                }
            }
        }
    }
}

/// Callers that reach no node; how often that was tried.
#[derive(Debug, Default)]
struct Unreached(AtomicU64);

impl Callers for Unreached {
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(Error::Lost(format!("{peer} is not there")))
    }
}

/// A host that fetched from one that was not reached tried once for each piece, one after the other: its worker did
/// nothing else for most of a minute.
#[test]
fn a_node_that_is_not_reached_is_tried_once() {
    let pods = Pods::still(4);
    let unreached = Arc::<Unreached>::default();
    let hello = Hello {
        space: SPACE,
        part: 2,
        key: KEY,
        pod: PODS[0].into(),
    };
    let channel = Channel::new(Arc::clone(&unreached) as Arc<dyn Callers>, PODS[1], hello);
    let extent = pods.users[0].session().alloc(64).expect("room").extent();
    let fetched = super::super::image::fetch(&pods.parts[0], 1, &channel, extent, 1);
    assert!(matches!(fetched, Err(Error::Lost(_))), "{fetched:?}");
    assert_eq!(unreached.0.load(Ordering::Relaxed), 1);
}

/// A piece of an extent that is thawed while it is sent is not taken for the extent's.
#[test]
fn what_is_thawed_while_it_is_fetched_is_not_fetched() {
    let pods = Pods::still(4);
    let session = pods.users[0].session();
    let address = session.alloc(100_000).expect("room");
    let host = &pods.hosts[0].inner;
    let extent = address.extent();
    host.keeper.freeze(extent).expect("frozen");
    host.frozen.lock().insert(extent, 7);
    let fetch = |len| {
        wire::fetch(wire::Fetch {
            extent,
            freeze: 7,
            from: 0,
            len,
        })
    };
    let Answered { mut bytes, source } = ask(&pods, &fetch(8192), 8192).expect("found");
    assert_eq!(bytes, wire::FETCHED);
    let (mut source, mut half) = (source.expect("the bytes"), [0; 4096]);
    source.read(0, &mut half);
    host.frozen.lock().remove(&extent);
    source.read(4096, &mut half);
    source.finish(&mut bytes);
    assert_eq!(bytes, [0; 8]);
    assert!(matches!(ask(&pods, &fetch(8192), 0), Err(Error::Revoked(_))));
    host.frozen.lock().insert(extent, 7);
    assert_eq!(ask(&pods, &fetch(8192), 0).expect("found").bytes.len(), 8192);
    assert!(ask(&pods, &fetch(1 << 20), 0).is_err() && ask(&pods, &fetch(1 << 20), 8192).is_err());
    let beyond = wire::Fetch {
        extent,
        freeze: 7,
        from: u64::MAX,
        len: 4096,
    };
    assert!(matches!(ask(&pods, &wire::fetch(beyond), 8192), Err(Error::Invalid(_))));
    host.frozen.lock().remove(&extent);
    host.keeper.thaw(extent).expect("thawed");
}

#[test]
fn what_is_wrong_is_said_of_direct_reads_too() {
    let pods = Pods::reading(4, FarReads::DirectFrom(1));
    let (east, west) = (&pods.users[0], &pods.users[1]);
    let session = east.session();
    let [first, freed, last] = [(); 3].map(|()| session.alloc(1000).expect("room"));
    for address in [first, last] {
        east.write(address, &[5; 1000]).expect("written");
    }
    session.free(freed).expect("freed");
    // The way is open after the first one.
    read(west, first, 8).expect("read");
    assert!(matches!(read(west, freed, 8), Err(Error::Invalid(_))));
    assert!(matches!(read(west, first, 5000), Err(Error::OutOfBounds(_))));
    let mut into = [[1; 1000], [1; 1000], [1; 1000]];
    let addresses = [first, freed, last];
    let mut reads: Vec<_> = addresses
        .into_iter()
        .zip(&mut into)
        .map(|(address, into)| Read { address, into })
        .collect();
    assert!(matches!(west.read_many(&mut reads), Err(Error::Invalid(_))));
    assert_eq!(into, [[5; 1000], [1; 1000], [5; 1000]], "the others are read");
}

/// An answer that is not sent yet.
#[derive(Default)]
struct Kept(Mutex<Option<Result<Answered>>>);

impl Answering for Kept {
    fn answered(&self, _: CallerId, _: u64, answer: Result<Answered>) {
        *self.0.lock() = Some(answer);
    }
}

/// What the first pod's host answers, of which nothing is read yet.
fn ask(pods: &Pods, request: &[u8], room: usize) -> Result<Answered> {
    let kept = Arc::new(Kept::default());
    let answer = Answer::new(CallerId(1), 1, Arc::clone(&kept) as _).with_room(room);
    let host = &pods.hosts[0].inner;
    let user = KnownUser::come(host, PODS[1], CallerId(1)).expect("let in");
    host.serve((&user.user, &user.pod, None), request, answer);
    let answered = kept.0.lock().take();
    answered.expect("at once")
}

/// Asks for a direct read, reads half of it, lets something happen, and reads the rest: the access's status.
fn status_if(pods: &Pods, address: GlobalAddress, meanwhile: impl FnOnce()) -> u8 {
    let mut into = vec![0; 4096];
    let act = Act::Read(&mut into);
    let request = wire::accesses(wire::ACCESSES, &[Item::of(address, &act, DIRECT)], Vec::new());
    let Answered { mut bytes, source } = ask(pods, &request, 4096).expect("found");
    let (mut source, mut read) = (source.expect("the bytes"), [0; 2048]);
    source.read(0, &mut read);
    meanwhile();
    source.read(2048, &mut read);
    source.finish(&mut bytes);
    bytes[8]
}

/// The bytes are sent after they were found, and no mover waits for that: they may belong to another object by then.
/// Then what was sent does not count.
#[test]
fn what_moved_while_it_was_sent_is_asked_for_again() {
    let pods = Pods::still(6);
    let session = pods.users[0].session();
    let address = session.alloc(4096).expect("room");
    let extent = address.extent();
    let status = |meanwhile: &dyn Fn()| status_if(&pods, address, meanwhile);
    assert_eq!(status(&|| ()), 0, "it stayed");
    assert_eq!(status(&|| pods.relocate(extent, 2).expect("moved")), FROZEN);
    pods.relocate(extent, 1).expect("moved");
    let there_and_back = || {
        pods.relocate(extent, 2).expect("moved");
        pods.relocate(extent, 1).expect("moved");
    };
    assert_eq!(
        status(&there_and_back),
        FROZEN,
        "it is where it was, and was not all the time"
    );
    assert_eq!(status(&|| session.free(address).expect("freed")), FROZEN);
    pods.audit();
}

#[test]
fn what_is_asked_for_goes_into_the_memory_that_is_lent() {
    let pods = Pods::still(4);
    let address = pods.users[0].session().alloc(4096).expect("room");
    let mut into = vec![0; 4096];
    let act = Act::Read(&mut into);
    let item = || Item::of(address, &act, DIRECT);
    for (items, room) in [(1, 4095), (1, 0), (2, 8191)] {
        let items: Vec<_> = (0..items).map(|_| item()).collect();
        let request = wire::accesses(wire::ACCESSES, &items, Vec::new());
        let refused = ask(&pods, &request, room).map(drop);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    // What was not found leaves a gap of zeros, and never what the buffer had before.
    let beyond = Item::of(address + 1, &act, DIRECT);
    let request = wire::accesses(wire::ACCESSES, &[beyond, item()], Vec::new());
    let mut source = ask(&pods, &request, 8192)
        .expect("an answer")
        .source
        .expect("the other's");
    let mut read = vec![9; 8192];
    pods.users[0].write(address, &[4; 4096]).expect("written");
    source.read(0, &mut read);
    assert!(read[..4096].iter().all(|byte| *byte == 0) && read[4096..].iter().all(|byte| *byte == 4));
}

/// A door that answers direct reads with something else.
struct Liar {
    hosts: Hosts,
    change: fn(&mut Vec<u8>),
}

impl Serve for Liar {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        if request.first() != Some(&wire::ACCESSES) || answer.room() == 0 {
            return self.hosts.serve(caller, request, answer);
        }
        // Done, of 64 bytes.
        let mut bytes = vec![0; 24];
        bytes[2] = 1;
        bytes[16] = 64;
        (self.change)(&mut bytes);
        answer.with(&bytes);
    }
}

#[test]
fn answers_that_lie_are_an_error() {
    let changes: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes[16] = 63,
        |bytes| bytes[12] = 8,
        |bytes| bytes[2] = 2,
        |bytes| bytes.truncate(20),
        |bytes| bytes[8] = 77,
    ];
    for change in changes {
        let mut pods = Pods::reading(4, FarReads::DirectFrom(64));
        pods.hosts.clear();
        pods.nodes = Arc::new(Nodes::default());
        pods.door = Box::new(move |_, hosts| Arc::new(Liar { hosts, change }));
        pods.start();
        let address = pods.users[0].session().alloc(64).expect("room");
        read(&pods.users[1], address, 8).expect("a plain one");
        let read = read(&pods.users[1], address, 64);
        assert!(matches!(read, Err(Error::Corrupt(_))), "{read:?}");
    }
}

/// Counts probes.
struct Counting {
    hosts: Hosts,
    probes: Arc<AtomicU64>,
}

impl Serve for Counting {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        self.probes
            .fetch_add(u64::from(request.first() == Some(&wire::PROBE)), Ordering::SeqCst);
        self.hosts.serve(caller, request, answer);
    }
}

#[test]
fn the_size_to_read_directly_from_is_measured_once_for_each_connection() {
    let mut pods = Pods::reading(4, FarReads::Measured);
    let probes = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&probes);
    pods.hosts.clear();
    pods.door = Box::new(move |_, hosts| {
        let probes = Arc::clone(&theirs);
        Arc::new(Counting { hosts, probes })
    });
    pods.start();
    let address = pods.users[0].session().alloc(4096).expect("room");
    let west = pods.users[1].clone();
    let probed_by = |len: usize| {
        let before = probes.load(Ordering::SeqCst);
        read(&west, address, len).expect("read");
        probes.load(Ordering::SeqCst) - before
    };
    assert_eq!(
        (probed_by(8), probed_by(511)),
        (0, 0),
        "for small ones it does not matter"
    );
    assert!(probed_by(4096) > 0);
    assert_eq!(probed_by(4096), 0, "once");
    let stats = pods.far_stats();
    let is_probed = |from: u64| stats.probed.iter().any(|probed| probed.bytes == from);
    assert!(stats.direct_from.is_none_or(is_probed), "{stats:?}");
    // Hosts that start anew do not know the connection: there is another one.
    pods.hosts.clear();
    pods.start_hosts();
    pods.introduce();
    let before = probes.load(Ordering::SeqCst);
    read(&west, address, 8).expect("read over another connection");
    assert!(pods.far_stats().probed.is_empty(), "which was not measured");
    read(&west, address, 4096).expect("read");
    assert!(probes.load(Ordering::SeqCst) > before);
}

/// Answers no probe, now or ever.
struct Mute {
    hosts: Hosts,
    kept: Mutex<Vec<Answer>>,
}

impl Serve for Mute {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        match request.first() {
            Some(&wire::PROBE) => self.kept.lock().push(answer),
            _ => self.hosts.serve(caller, request, answer),
        }
    }
}

#[test]
fn a_channel_that_cannot_measure_reads_plainly() {
    let mut pods = Pods::reading(4, FarReads::Measured);
    pods.hosts.clear();
    pods.nodes = Arc::new(Nodes::default());
    pods.door = Box::new(|_, hosts| {
        let kept = Mutex::default();
        Arc::new(Mute { hosts, kept })
    });
    pods.start();
    let address = pods.users[0].session().alloc(4096).expect("room");
    for _ in 0..3 {
        read(&pods.users[1], address, 4096).expect("read");
    }
    let stats = pods.far_stats();
    assert_eq!(
        (stats.direct, stats.one_sided, stats.direct_from, stats.plain),
        (0, 0, None, 3),
        "{stats:?}"
    );
}

/// A user of the second pod that reaches the first over libfabric.
fn far_user(pods: &Pods, node: &MemoryNode, reads: FarReads) -> Space {
    let net = Net::new(NetOptions::default()).expect("there");
    let hello = Hello {
        space: SPACE,
        part: 1,
        key: KEY,
        pod: PODS[1].into(),
    };
    let channel = Channel::new(Arc::new(net), node.address().to_string(), hello).reading(reads);
    let keeper = |n: usize| Arc::clone(pods.hosts[n].keeper()) as Arc<dyn Keeper>;
    let space = Space::new(SPACE);
    space.attach(Arc::clone(&pods.parts[1]), keeper(1)).expect("attached");
    let far = FarPart {
        number: 1,
        pod: PODS[0].into(),
        channel: Arc::new(channel),
    };
    space.attach_far(far, keeper(0)).expect("attached");
    space
}

/// Reads them at once: they are as they were written.
fn read_all(user: &Space, objects: &[(GlobalAddress, usize)]) {
    let mut all: Vec<Vec<u8>> = objects.iter().map(|(_, len)| vec![1; *len]).collect();
    let reads = objects.iter().zip(&mut all);
    let mut reads: Vec<_> = reads
        .map(|((address, _), into)| Read {
            address: *address,
            into,
        })
        .collect();
    user.read_many(&mut reads).expect("read");
    for ((_, len), read) in objects.iter().zip(all) {
        assert!(read == bytes_of(*len, 9), "{len} bytes");
    }
}

/// Bytes that the host's card writes are the object's, or the read is asked for again: while its extent goes to and
/// fro, and after that.
#[test]
fn reads_that_are_written_bring_what_was_there() {
    if libfabric::available().is_err() {
        return;
    }
    let pods = Pods::still(8);
    let node = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
    let hosts = Hosts::default();
    hosts.add(&pods.hosts[0]);
    node.serve(Arc::new(hosts));
    let user = far_user(&pods, &node, FarReads::OneSidedFrom(64));
    let session = pods.users[0].session();
    let objects: Vec<_> = [64, 513, 4096, 30_000, 100_000]
        .into_iter()
        .map(|len| {
            let address = session.alloc(len as u64).expect("room");
            pods.users[0].write(address, &bytes_of(len, 9)).expect("written");
            (address, len)
        })
        .collect();
    read_all(&user, &objects);
    let (reader, theirs) = (user.clone(), objects.clone());
    let is_over = Arc::new(AtomicU64::new(0));
    let over = Arc::clone(&is_over);
    let reader = rt::spawn("reads", move || {
        while over.load(Ordering::SeqCst) == 0 {
            read_all(&reader, &theirs);
        }
    });
    let extents = objects.iter().map(|(address, _)| address.extent().raw());
    let extents: std::collections::BTreeSet<u64> = extents.collect();
    for to in [2, 1, 2, 1] {
        for extent in &extents {
            pods.relocate(GlobalAddress::from_raw(*extent), to).expect("moved");
        }
        rt::sleep(Nanos::from_millis(5));
    }
    is_over.store(1, Ordering::SeqCst);
    reader.join().expect("no panic");
    read_all(&user, &objects);
    let stats = user.stats().far.pop().expect("one part is far");
    assert!(stats.one_sided > 0 && stats.direct == 0, "{stats:?}");
    // Measured, the connection says what it takes.
    let user = far_user(&pods, &node, FarReads::Measured);
    let mut into = vec![0; 4096];
    for _ in 0..2 {
        user.read(objects[2].0, &mut into).expect("read");
    }
    let stats = user.stats().far.pop().expect("one part is far");
    assert_eq!(stats.modes.len(), 8, "{stats:?}");
    for (bytes, mode) in &stats.modes {
        let probed = stats.probed.iter().find(|probed| probed.bytes == *bytes);
        let is_faster = match (mode, probed) {
            (FarMode::Plain, _) => true,
            // The node offers no memory.
            (_, None) | (FarMode::Fetched, _) => false,
            (FarMode::Direct, Some(probed)) => probed.direct < probed.plain,
            (FarMode::OneSided, Some(probed)) => {
                let fastest = probed.direct.min(probed.plain);
                probed.one_sided.is_some_and(|time| time < fastest)
            }
        };
        assert!(is_faster, "{bytes} bytes: {stats:?}");
    }
    drop(user);
    node.close();
}
