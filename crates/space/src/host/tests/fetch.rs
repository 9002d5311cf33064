//! Reads by the user's own card, and what may happen to an extent while they are under way.

use super::many::{read_words, use_words, write_words};
use super::*;
use crate::FarStats;
use crate::far::{Fetcher, wire};
use crate::layout::Layout;
use crate::{Admission, Pass};
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::AtomicU64;
use cenote_fabric::Mapping;
use cenote_fabric::rdma::{Endpoint, Fabric, Key, Limits, Op, Posted, Registrar, Remote, Work};

type Event = Box<dyn FnOnce() + Send>;

/// A card that reads a part's memory, work after work, and lets things happen in between.
#[derive(Default)]
struct Card {
    part: Mutex<Option<Arc<Part>>>,
    /// Keys that there are, and to how many bytes; how many there were, and how often one is not ended when it shall.
    keys: Mutex<BTreeMap<u64, u64>>,
    made: AtomicU64,
    fails: AtomicU64,
    /// Before the next bytes that are read, and before the look that comes after them.
    before_bytes: Mutex<Option<Event>>,
    before_look: Mutex<Option<Event>>,
    works: AtomicU64,
    posts: AtomicU64,
    /// Works are carried out by a thread of the node, in turn.
    is_served: AtomicBool,
}

/// Bytes of a descriptor, which is what a look reads; the tests' objects have others.
const LOOK: u64 = 64;
const WORD: u64 = 8;

impl core::fmt::Debug for Card {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a card")
    }
}

impl Card {
    fn happen(event: &Mutex<Option<Event>>) {
        let event = event.lock().take();
        event.into_iter().for_each(|event| event());
    }

    fn carry_out(&self, work: &mut Work) {
        self.works.fetch_add(1, Ordering::Relaxed);
        let Some(len) = self.keys.lock().get(&work.memory.key.0).copied() else {
            work.result = Err(Error::Revoked("the key was taken back".into()));
            return;
        };
        let Op::Read(into) = &mut work.op else {
            panic!("{work:?}")
        };
        assert!(work.at + into.len() as u64 <= len, "no key is for so much");
        match into.len() as u64 {
            LOOK => Self::happen(&self.before_look),
            WORD => {}
            _ => Self::happen(&self.before_bytes),
        }
        let part = self.part.lock().clone().expect("a part");
        part.region().span(work.at, into.len() as u64).copy_out(0, into);
        work.result = Ok(into.len() as u64);
    }
}

impl Endpoint for Card {
    fn peer(&self) -> &str {
        "a card's peer"
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: 64,
            transfer: 1 << 20,
        }
    }

    fn fences_are_free(&self) -> bool {
        self.is_served.load(Ordering::Relaxed)
    }

    fn post(&self, mut works: Vec<Work>) -> Posted {
        self.posts.fetch_add(1, Ordering::Relaxed);
        works.iter_mut().for_each(|work| self.carry_out(work));
        Posted::done(works)
    }
}

/// Keys are numbers in turn, and the card reads by those that have not ended.
impl Registrar for Card {
    fn address(&self) -> String {
        "a card's peer".into()
    }

    fn register(&self, _memory: Mapping) -> Result<Remote> {
        Err(Error::Invalid("nothing is written here".into()))
    }

    fn register_to_read(&self, _memory: &Arc<Mapping>, len: u64) -> Result<Remote> {
        let key = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        self.keys.lock().insert(key, len);
        let (key, base) = (Key(key), 0);
        Ok(Remote { key, base, len })
    }

    fn revoke(&self, key: Key) -> Result<bool> {
        let fails = self
            .fails
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if fails.is_ok() {
            return Err(Error::io(
                "ending a registration",
                std::io::ErrorKind::ResourceBusy.into(),
            ));
        }
        Ok(self.keys.lock().remove(&key.0).is_some())
    }
}

fn offer(host: &Host, card: &Arc<Card>) {
    let len = host.part().region().len() as usize;
    let memory = Mapping::anonymous(len).expect("mapped");
    host.offer(Arc::clone(card) as _, memory).expect("offered");
}

/// By pod.
#[derive(Debug, Default)]
struct Cards([Arc<Card>; 2]);

impl Fabric for Cards {
    fn connect(&self, peer: &str) -> Result<Arc<dyn Endpoint>> {
        // Whatever else the node is called.
        let pod = PODS.iter().position(|pod| *pod == peer).unwrap_or(0);
        Ok(Arc::clone(&self.0[pod]) as Arc<dyn Endpoint>)
    }
}

/// Pods that offer their memory, and a user of no pod that fetches from there.
struct Fetching {
    pods: Pods,
    cards: Arc<Cards>,
    user: Space,
}

impl Fetching {
    fn new(extents: u64) -> Self {
        Self::of(Pods::still(extents))
    }

    /// Whose hosts look at what is hot, and seldom.
    fn lively(extents: u64) -> Self {
        let every = Nanos::from_secs(3600);
        Self::of(Pods::new(
            extents,
            HostOptions {
                every,
                ..HostOptions::default()
            },
        ))
    }

    fn of(pods: Pods) -> Self {
        let cards = Arc::<Cards>::default();
        for (n, part) in pods.parts.iter().enumerate() {
            *cards.0[n].part.lock() = Some(Arc::clone(part));
            offer(&pods.hosts[n], &cards.0[n]);
        }
        let it = Self {
            pods,
            cards,
            user: Space::new(SPACE),
        };
        for (n, pod) in PODS.into_iter().enumerate() {
            it.attach(&it.user, n, it.channel(n, pod));
        }
        it
    }

    fn channel(&self, n: usize, peer: &str) -> Channel {
        let hello = Hello {
            space: SPACE,
            part: n as u8 + 1,
            key: KEY,
            pod: "nowhere".into(),
        };
        let channel = Channel::new(Arc::clone(&self.pods.nodes) as Arc<dyn Callers>, peer, hello);
        let channel = channel.reading(FarReads::FetchedFrom(1));
        channel.fetching(Arc::clone(&self.cards) as Arc<dyn Fabric>)
    }

    fn attach(&self, user: &Space, n: usize, channel: Channel) {
        let far = FarPart {
            number: n as u8 + 1,
            pod: PODS[n].into(),
            channel: Arc::new(channel),
        };
        let keeper = Arc::clone(self.pods.hosts[n].keeper()) as Arc<dyn Keeper>;
        user.attach_far(far, keeper).expect("attached");
    }

    /// Another user of the first pod's part, which goes there by that node.
    fn user_at(&self, peer: &str, with: impl FnOnce(Channel) -> Channel) -> Space {
        let user = Space::new(SPACE);
        self.attach(&user, 0, with(self.channel(0, peer)));
        user
    }

    /// An object of the first pod, that its bytes can be fetched of.
    fn object(&self, bytes: &[u8]) -> GlobalAddress {
        let address = self.pods.users[0].session().alloc(bytes.len() as u64).expect("room");
        self.pods.users[0].write(address, bytes).expect("written");
        // The first opens the way, the second looks at the slot.
        for _ in 0..2 {
            assert_eq!(read(&self.user, address, bytes.len()).expect("read"), bytes);
        }
        address
    }

    fn stats(&self) -> FarStats {
        self.user.stats().far.swap_remove(0)
    }
}

#[test]
fn cards_read_what_was_written_and_no_host_takes_part() {
    let it = Fetching::new(6);
    let sizes = [100, 1000, 5000, 100_000, 300_000];
    let objects: Vec<_> = sizes
        .into_iter()
        .map(|len| (it.object(&vec![len as u8; len]), len))
        .collect();
    // The key is for what was reserved before most of them were there.
    eventually(|| {
        let fetched = it.stats().fetched;
        for (address, _) in &objects {
            read(&it.user, *address, 100).expect("read");
        }
        it.stats().fetched == fetched + objects.len() as u64
    });
    let (served, fetched) = (it.pods.hosts[0].moved().served, it.stats().fetched);
    for (address, len) in &objects {
        assert!(read(&it.user, *address + 3, len - 3).expect("read") == vec![*len as u8; len - 3]);
    }
    assert_eq!(it.pods.hosts[0].moved().served, served, "no call was made");
    assert!(
        it.stats().fetched > fetched + 5,
        "what is longer than a message is fetched in pieces"
    );
    for (address, len) in &objects {
        let beyond = read(&it.user, *address + 3, *len * 2);
        assert!(matches!(beyond, Err(Error::OutOfBounds(_))), "{beyond:?}");
    }
    let mut bytes: Vec<_> = sizes.iter().map(|len| vec![0; *len]).collect();
    let mut reads: Vec<_> = objects
        .iter()
        .zip(&mut bytes)
        .map(|((address, _), into)| Read {
            address: *address,
            into,
        })
        .collect();
    let served = it.pods.hosts[0].moved().served;
    it.user.read_many(&mut reads).expect("read");
    assert!(
        sizes
            .iter()
            .zip(bytes)
            .all(|(len, bytes)| bytes == vec![*len as u8; *len])
    );
    assert_eq!(it.pods.hosts[0].moved().served, served, "no call was made");
}

/// Hosts do not see what cards read: they are told, or what is hot would never move.
#[test]
fn heat_is_told_of_what_cards_read() {
    let it = Fetching::lively(6);
    let object = it.object(&[5; 1000]);
    eventually(|| {
        (0..64).for_each(|_| _ = read(&it.user, object, 1000).expect("read"));
        let heat = it.pods.hosts[0].inner.far.lock();
        let pods = heat.get(&object.slot());
        pods.is_some_and(|pods| pods["nowhere"].at(rt::now(), &HostOptions::default().heat) > 50.0)
    });
    let slot = it.pods.parts[0].slots();
    let channel = it.pods.channel(1, 0);
    let refused = ask(&channel, wire::card_reads(slot, 1), Repeat::Freely);
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
}

/// The extent leaves, its memory is another's, and it comes back, all while its bytes are read: nothing but the count of
/// freezings tells that they are not its own.
#[test]
fn bytes_of_an_extent_that_was_away_meanwhile_are_not_believed() {
    let it = Fetching::new(6);
    let object = it.object(&[5; 1000]);
    let fetched = it.stats().fetched;
    let (extent, place) = (object.extent(), it.pods.parts[0].at(object.place()));
    let events = |to: u8| -> Event {
        let (inner, part) = (Arc::clone(&it.pods.hosts[0].inner), Arc::clone(&it.pods.parts[0]));
        Box::new(move || {
            inner.requested(extent, Some(to)).expect("moved");
            if to == 2 {
                part.region().span(place, 1000).copy_in(0, &[9; 1000]);
            }
        })
    };
    *it.cards.0[0].before_bytes.lock() = Some(events(2));
    *it.cards.0[0].before_look.lock() = Some(events(1));
    assert_eq!(read(&it.user, object, 1000).expect("read"), [5; 1000]);
    assert!(it.cards.0[0].before_look.lock().is_none(), "it was away, and came back");
    assert_eq!(it.stats().fetched, fetched, "the host was asked");
    // Its slot is looked at anew, and then fetched from again.
    for _ in 0..2 {
        assert_eq!(read(&it.user, object, 1000).expect("read"), [5; 1000]);
    }
    assert_eq!(it.stats().fetched, fetched + 1);
}

/// It leaves after its bytes were read, or is freed: what is told is what the host says.
#[test]
fn what_is_gone_by_the_second_look_is_asked_for() {
    let it = Fetching::new(6);
    let (moved, freed) = (it.object(&[5; 1000]), it.object(&[6; 5000]));
    let (inner, east) = (Arc::clone(&it.pods.hosts[0].inner), it.pods.users[0].clone());
    *it.cards.0[0].before_look.lock() = Some(Box::new(move || {
        inner.requested(moved.extent(), Some(2)).expect("moved");
        east.write(moved, &[7; 1000]).expect("written");
    }));
    assert_eq!(read(&it.user, moved, 1000).expect("read"), [7; 1000]);
    assert_eq!(
        read(&it.user, moved, 1000).expect("read"),
        [7; 1000],
        "it lies elsewhere"
    );
    it.pods.users[0].free(freed).expect("freed");
    assert!(matches!(read(&it.user, freed, 5000), Err(Error::Invalid(_))));
}

/// A key that was taken back is no error of a read: calls are left.
#[test]
fn where_the_key_is_taken_back_calls_are_left() {
    let it = Fetching::new(4);
    let object = it.object(&[5; 1000]);
    let works = || it.cards.0[0].works.load(Ordering::Relaxed);
    it.cards.0[0].keys.lock().clear();
    let before = works();
    assert_eq!(read(&it.user, object, 1000).expect("read"), [5; 1000]);
    let tried = works();
    assert!(tried > before, "it was tried");
    for _ in 0..3 {
        assert_eq!(read(&it.user, object, 1000).expect("read"), [5; 1000]);
    }
    assert_eq!(works(), tried, "once");
}

/// The second looks of several reads waited for the first, though a fence would have been enough.
#[test]
fn several_reads_take_one_doorbell_where_fences_are_free() {
    let it = Fetching::new(4);
    let (objects, card) = ([it.object(&[5; 1000]), it.object(&[6; 1000])], &it.cards.0[0]);
    for (is_served, doorbells) in [(false, 2), (true, 1)] {
        card.is_served.store(is_served, Ordering::Relaxed);
        let (fetched, posts) = (it.stats().fetched, card.posts.load(Ordering::Relaxed));
        let mut bytes = [[0; 1000]; 2];
        let reads = objects.iter().zip(&mut bytes);
        let mut reads: Vec<_> = reads
            .map(|(address, into)| Read {
                address: *address,
                into,
            })
            .collect();
        it.user.read_many(&mut reads).expect("read");
        assert_eq!(bytes, [[5; 1000], [6; 1000]]);
        assert_eq!(it.stats().fetched, fetched + 2);
        assert_eq!(card.posts.load(Ordering::Relaxed), posts + doorbells);
    }
}

/// What was measured for one read was taken for many: those took more than twice as long as by a call, where a thread
/// of the node carries works out.
#[test]
fn many_reads_are_not_fetched_by_what_was_measured_for_one() {
    let it = Fetching::new(4);
    let card = &it.cards.0[0];
    let layout = Layout::movable(it.pods.parts[0].slots()).expect("a part's");
    let window = wire::Window {
        key: 1,
        base: 0,
        len: layout.end(),
        slots: layout.slots,
    };
    let fetcher = Fetcher::new(Arc::clone(card) as _, &window, 1).expect("a part's memory");
    let measured = it.channel(0, PODS[0]).reading(FarReads::Measured);
    assert!(measured.fetches_many(&fetcher), "a card does them");
    card.is_served.store(true, Ordering::Relaxed);
    assert!(!measured.fetches_many(&fetcher));
    assert!(it.channel(0, PODS[0]).fetches_many(&fetcher), "it was said so");
}

/// A user that is a member of the space.
struct Member(Pass);

impl Admission for Member {
    fn pass(&self) -> Result<Pass> {
        Ok(self.0)
    }

    fn renew(&self, _unheard: Pass) -> Result<Pass> {
        Err(Error::Revoked("this member was fenced".into()))
    }
}

/// A member that was stopped beyond its lease went on reading by its key, and never heard that it was fenced.
#[test]
fn a_member_that_is_fenced_reads_nothing_more() {
    let it = Fetching::new(4);
    let object = it.object(&[5; 1000]);
    let (hosts, card) = (Arc::new(Hosts::default()), &it.cards.0[0]);
    hosts.add(&it.pods.hosts[0]);
    it.pods.nodes.add("door").serve(Arc::clone(&hosts) as _);
    let others = card.keys.lock().clone();
    let (member, epoch) = (7, hosts.admit(SPACE, 7).expect("admitted"));
    let user = it.user_at("door", |channel| {
        channel.admitted_by(Arc::new(Member(Pass { member, epoch })))
    });
    for _ in 0..3 {
        assert_eq!(read(&user, object, 1000).expect("read"), [5; 1000]);
    }
    assert_eq!(user.stats().far[0].fetched, 1);
    let own: BTreeMap<_, _> = card
        .keys
        .lock()
        .clone()
        .into_iter()
        .filter(|(key, _)| !others.contains_key(key))
        .collect();
    assert_eq!(own.len(), 1, "a key of its own");
    // The provider does not end it at once: the member is not said to be gone then.
    card.fails.store(1, Ordering::Relaxed);
    assert!(!hosts.close(SPACE, member), "its key is there");
    assert!(hosts.close(SPACE, member), "it is not");
    assert_eq!(*card.keys.lock(), others, "those of others are there");
    let after = read(&user, object, 1000);
    assert!(matches!(after, Err(Error::Revoked(_))), "{after:?}");
    assert_eq!(user.stats().far[0].fetched, 1);
    assert_eq!(read(&it.user, object, 1000).expect("read"), [5; 1000]);
}

/// A connection that is over leaves no key.
#[test]
fn a_key_ends_with_its_connection() {
    let it = Fetching::new(4);
    let object = it.object(&[5; 1000]);
    let keys = || it.cards.0[0].keys.lock().len();
    let before = keys();
    let user = it.user_at(PODS[0], |channel| channel);
    assert_eq!(read(&user, object, 1000).expect("read"), [5; 1000]);
    assert_eq!(keys(), before + 1);
    drop(user);
    eventually(|| keys() == before);
}

/// What a part's memory is granted to next could be read by the keys of before.
#[test]
fn memory_that_is_withdrawn_has_no_keys_and_gives_none() {
    let it = Fetching::new(4);
    let (object, card) = (it.object(&[5; 1000]), &it.cards.0[0]);
    card.fails.store(1, Ordering::Relaxed);
    assert!(it.pods.hosts[0].withdraw().is_err(), "a key is there");
    it.pods.hosts[0].withdraw().expect("it was ended now");
    assert!(card.keys.lock().is_empty());
    let user = it.user_at(PODS[0], |channel| channel);
    for user in [&it.user, &user] {
        assert_eq!(read(user, object, 1000).expect("read"), [5; 1000]);
    }
    assert!(card.keys.lock().is_empty());
}

/// A key is for what was reserved when it was made: for more there is another, and one at a time.
#[test]
fn what_a_part_has_reserved_since_is_fetched_with_another_key() {
    let it = Fetching::new(6);
    let (first, card) = (it.object(&[5; 1000]), &it.cards.0[0]);
    let (keys, made) = (|| card.keys.lock().len(), card.made.load(Ordering::Relaxed));
    let (before, session) = (keys(), it.pods.users[0].session());
    let large = || session.alloc(1_000_000).expect("room");
    let mut last = large();
    while last.slot() < first.slot() + 2 {
        last = large();
    }
    it.pods.users[0].write(last, &[7; 1000]).expect("written");
    let fetched = it.stats().fetched;
    eventually(|| {
        assert_eq!(read(&it.user, last, 1000).expect("read"), [7; 1000]);
        it.stats().fetched > fetched
    });
    assert_eq!((keys(), card.made.load(Ordering::Relaxed)), (before, made + 1));
}

/// A host that offers nonsense is not believed: no card reads by it.
#[test]
fn memory_that_no_part_has_is_not_read() {
    let it = Fetching::new(4);
    it.pods.hosts[0].withdraw().expect("withdrawn");
    let (part, memory) = (
        it.pods.parts[0].region().len(),
        Mapping::anonymous(4096).expect("mapped"),
    );
    assert!(part > 4096);
    it.pods.hosts[0]
        .offer(Arc::clone(&it.cards.0[0]) as _, memory)
        .expect("offered");
    let object = it.object(&[5; 1000]);
    assert_eq!(read(&it.user, object, 1000).expect("read"), [5; 1000]);
    assert_eq!(it.cards.0[0].works.load(Ordering::Relaxed), 0);
}

/// As `many_of_several_parts_are_what_was_written_while_they_move`, fetched.
#[test]
fn what_is_fetched_is_what_was_written_while_extents_move() {
    let it = Fetching::new(6);
    let words = it.pods.words(20);
    let numbered: Vec<_> = words.iter().map(|word| (*word, 0)).collect();
    write_words(&it.user, &numbered).expect("the ways are open after this");
    for _ in 0..2 {
        read_words(&it.user, &words).expect("read");
    }
    let extents = [words[0].extent(), words[20].extent()];
    let user = {
        let (user, words) = (it.user.clone(), words.clone());
        rt::spawn("user", move || use_words(&user, &words, rt::random()))
    };
    let mut moved = 0;
    while !user.is_finished() {
        for (extent, to) in [(extents[0], 2), (extents[1], 1), (extents[0], 1), (extents[1], 2)] {
            moved += u32::from(it.pods.relocate(extent, to).is_ok());
            rt::sleep(Nanos::from_millis(1));
        }
    }
    user.join().expect("no panic");
    assert!(moved > 0 && it.stats().fetched > 0);
    it.pods.audit();
}
