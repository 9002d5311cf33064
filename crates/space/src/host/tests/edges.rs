//! What is answered, bounded, cleaned and given up.

use super::super::super::act::{Act, Found};
use super::super::super::address::GENERATION_MAX;
use super::super::super::class::Class;
use super::super::super::slot::{Slot, Use};
use super::super::{Hosts, Queue, WAITING_MAX};
use super::*;
use cenote_base::rt::memory::Access;
use cenote_base::rt::seam::{Points, Seam};
use cenote_fabric::rdma::call::{Answer, CallerId};
use core::cell::Cell;

/// The answers of a thousand accesses that failed were too long for a message: all of them failed, those too that had
/// been done.
#[test]
fn each_of_many_accesses_that_fail_is_answered() {
    let pods = Pods::still(4);
    let there = pods.users[0].session().alloc(64).expect("room");
    // What is said of these is long.
    let never =
        |n: u32| GlobalAddress::new(1, there.slot(), 2_000_000 + 8 * n, GENERATION_MAX - 1).expect("an address");
    let objects: Vec<_> = core::iter::once(there).chain((0..3000).map(never)).collect();
    let far = pods.users[1].far_numbered(1).expect("a part");
    let mut acts: Vec<_> = objects
        .iter()
        .map(|address| (*address, Act::Store(there.raw())))
        .collect();
    let in_flight = far.begin_many(&acts);
    let outcomes = far.end_many(in_flight, &mut acts);
    assert!(outcomes[0].is_ok() && outcomes.len() == objects.len());
    assert!(
        outcomes[1..]
            .iter()
            .all(|outcome| matches!(outcome, Err(no) if matches!(no.error, Error::Invalid(_))))
    );
    assert_eq!(pods.users[0].load(there).expect("a word"), there.raw());
}

/// What far sessions had at a host stayed for good.
#[test]
fn sessions_that_have_ended_leave_nothing_at_a_host() {
    let pods = Pods::still(4);
    let (keeper, far) = (pods.hosts[0].keeper(), pods.users[1].far_numbered(1).expect("a part"));
    let session = keeper.begin().expect("begun");
    far.alloc(session, 64, Lifetime::Space).expect("room");
    let part_sessions = || pods.hosts[0].inner.part_sessions.lock().len();
    assert_eq!(part_sessions(), 1);
    keeper.end(session).expect("ended");
    eventually(|| part_sessions() == 0);
    assert!(matches!(
        far.alloc(session, 64, Lifetime::Space),
        Err(Error::Revoked(_))
    ));
}

/// The heat of an extent that had left by its home's order was taken for that of the next one in its slot.
#[test]
fn heat_goes_with_its_extent() {
    let pods = Pods::new(
        4,
        HostOptions {
            every: Nanos::from_secs(3600),
            ..HostOptions::default()
        },
    );
    let address = pods.users[0].session().alloc(64).expect("room");
    (0..10).for_each(|_| _ = pods.users[1].load(address).expect("a word"));
    let slots = || pods.hosts[0].inner.far.lock().len();
    assert_eq!(slots(), 1);
    pods.relocate(address.extent(), 2).expect("moved");
    assert_eq!(slots(), 0);
}

/// Extents that have moved to the west, of 40 that both pods use alike, 100 times each.
fn moved_of_alike(doubt: f64) -> u64 {
    let mut options = lively();
    options.heat.doubt = doubt;
    let pods = Pods::new(48, options);
    // A session that allocates nothing else has its object in an extent of its own.
    let sessions: Vec<_> = (0..40).map(|_| pods.users[0].session()).collect();
    let alloc = |session: &Session| session.alloc(64).expect("room");
    let all: Vec<_> = sessions.iter().map(alloc).collect();
    for _ in 0..100 {
        for address in &all {
            pods.users
                .iter()
                .for_each(|user| _ = user.load(*address).expect("a word"));
        }
    }
    rt::sleep(Nanos::from_millis(400));
    pods.hosts[1].moved().came
}

/// Near accesses are counted one in 64: of an extent that had 100 none in one case of five. It seemed to be used in the
/// west alone, and went there.
#[test]
fn few_near_accesses_are_not_taken_for_none() {
    assert_eq!(moved_of_alike(HostOptions::default().heat.doubt), 0);
    assert!(moved_of_alike(0.0) > 0, "the load would not show it");
}

/// A part that is away, and comes first, kept all others of its pod from getting anything.
#[test]
fn a_part_that_is_away_keeps_nothing_from_others() {
    let pods = Pods::new(6, lively());
    let hello = Hello {
        space: SPACE,
        part: 0,
        key: KEY,
        pod: PODS[0].into(),
    };
    let channel = Arc::new(Channel::new(
        Arc::clone(&pods.nodes) as Arc<dyn Callers>,
        "nowhere",
        hello,
    ));
    let pod = PODS[1].into();
    pods.hosts[0].set_peer(0, Peer { pod, channel });
    let address = pods.users[0].session().alloc(64).expect("room");
    eventually(|| {
        pods.users[1].fetch_add(address, 1).expect("added");
        pods.hosts[1].moved().came == 1
    });
}

/// Keeps all orders, and answers none.
struct Mute {
    hosts: Hosts,
    kept: rt::Mutex<Vec<Answer>>,
}

impl Serve for Mute {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        match request.first() == Some(&super::super::wire::ORDER) {
            true => self.kept.lock().push(answer),
            false => self.hosts.serve(caller, request, answer),
        }
    }
}

/// A host that was about to stop waited for others as long as an order may take, and its owner with it.
#[test]
fn a_host_that_stops_does_not_wait() {
    let mut pods = Pods::still(4);
    pods.options.timeout = Nanos::from_secs(1_000_000);
    pods.door = Box::new(|_, hosts| {
        let kept = rt::Mutex::default();
        Arc::new(Mute { hosts, kept })
    });
    pods.hosts.clear();
    pods.start();
    let extent = pods.users[0].session().alloc(64).expect("room").extent();
    let (host, is_moving) = (pods.hosts.swap_remove(0), Arc::clone(&pods.parts[0]));
    let inner = Arc::clone(&host.inner);
    let mover = rt::spawn("mover", move || inner.requested(extent, Some(2)));
    let frozen = || Slot::decode(is_moving.state(extent.slot()).load(Ordering::Acquire)).map(|slot| slot.used);
    eventually(|| frozen() == Some(Use::Frozen));
    drop(host);
    let moved = mover.join().expect("no panic");
    assert!(matches!(moved, Err(Error::Lost(_))), "{moved:?}");
    assert!(matches!(frozen(), Some(Use::Slab(..))), "the move was undone");
}

#[test]
fn a_queue_takes_so_many_and_no_more() {
    let queue = Queue::default();
    assert!((0..WAITING_MAX).all(|n| queue.add(n).is_ok()));
    assert_eq!(queue.add(7), Err(7));
    assert_eq!(queue.take().0, Some(0));
    assert!(queue.add(7).is_ok());
}

/// A user that had last found an extent in a part that is offline now did not find it any more, though it had come home
/// before.
#[test]
fn an_extent_that_has_come_home_is_found_though_its_host_is_away() {
    let mut pods = Pods::still(4);
    let user = Space::new(SPACE);
    for (n, pod) in PODS.iter().enumerate() {
        let far = FarPart {
            number: n as u8 + 1,
            pod: (*pod).into(),
            channel: pods.channel(n, n),
        };
        let keeper = Arc::clone(pods.hosts[n].keeper()) as Arc<dyn Keeper>;
        user.attach_far(far, keeper).expect("attached");
    }
    let session = pods.users[0].session();
    let words = [session.alloc(64).expect("room"), session.alloc(64).expect("room")];
    let extent = words[0].extent();
    assert_eq!(extent, words[1].extent());
    pods.relocate(extent, 2).expect("moved");
    user.store(words[0], 42).expect("stored, and its place noted");
    pods.relocate(extent, 1).expect("moved");
    pods.hosts.truncate(1);
    let many = || {
        let mut into = [[0; 8]; 2];
        let mut reads = into
            .iter_mut()
            .zip(words)
            .map(|(into, address)| Read { address, into })
            .collect::<Vec<_>>();
        user.read_many(&mut reads).expect("read");
        into.map(u64::from_le_bytes)
    };
    assert_eq!(many(), [42, 0]);
    user.location_cache().set(words[0], 2);
    assert_eq!(user.load(words[0]).expect("a word"), 42);
    // What may not be done twice was not done either, as no host was asked.
    user.location_cache().set(words[0], 2);
    assert_eq!(user.fetch_add(words[0], 1).expect("a word"), 42);
    user.location_cache().set(words[0], 2);
    let (mut steps, mut found) = ([(words[0], Act::Add(1)), (words[1], Act::Load)], [0; 2]);
    user.act_in_order(&mut steps, &mut found).expect("done at home");
    assert_eq!(found, [43, 0]);
    // An address of a part that the space does not have is invalid.
    let unknown = GlobalAddress::new(9, 0, 0, 1).expect("an address");
    assert!(matches!(user.load(unknown), Err(Error::Invalid(_))));
    user.location_cache().set(words[0], 9);
    assert_eq!(user.fetch_add(words[0], 1).expect("done at home"), 44);
}

/// Does something at one of the points of an operation.
#[derive(Clone, Copy)]
struct Meddling<'a> {
    left: &'a Cell<u32>,
    meddle: &'a dyn Fn(),
}

impl Seam for Meddling<'_> {
    const PLAIN: bool = false;

    fn access<T>(self, _: &T, _: Access) {
        match self.left.get() {
            0 => {}
            n => {
                self.left.set(n - 1);
                if n == 1 {
                    (self.meddle)();
                }
            }
        }
    }

    fn slot(self) -> usize {
        Points.slot()
    }
}

/// An access that looked for a migrated extent that was about to leave, and was held up, found the next migrated extent
/// in its slot. That had the same generation, so the access read and wrote another object.
#[test]
fn a_migrated_extent_is_not_taken_for_the_next_one() {
    let mut meddled = 0;
    for point in 1..20 {
        let pods = Pods::still(4);
        let sessions = [pods.users[0].session(), pods.users[0].session()];
        let [one, other] = [0, 1].map(|n: usize| sessions[n].alloc(64).expect("room").extent());
        assert!(one != other && one.generation() == other.generation());
        pods.relocate(one, 2).expect("moved");
        let keeper = pods.hosts[1].keeper();
        let state = keeper.freeze(one).expect("frozen").state;
        let meddle = || {
            let slot = pods.parts[1].migrated_slot(one);
            keeper.let_go(one).expect("let go");
            assert_eq!(keeper.receive(other, state).ok(), slot);
            keeper.settle(other).expect("settled");
        };
        let left = Cell::new(point);
        let meddling = Meddling {
            left: &left,
            meddle: &meddle,
        };
        let found = pods.parts[1].as_migrated(meddling, one);
        meddled += u32::from(left.get() == 0);
        assert!(matches!(found, Ok(Found::No(_))), "point {point}: {found:?}");
    }
    assert!(meddled > 3, "{meddled}");
}

/// A migrated extent in the memory of a slot whose generations are used up was lost when the next keeper began.
#[test]
fn a_migrated_extent_in_a_retired_slot_stays() {
    let part = part(1, 4);
    for slot in 0..part.slots() {
        let (generation, used) = (GENERATION_MAX - 1, Use::Free);
        part.state(slot)
            .store(Slot { generation, used }.encode(), Ordering::Release);
    }
    let keeper = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
    let class = Class::of(64).expect("a class");
    let own = keeper
        .take(keeper.begin().expect("begun"), class, Lifetime::Space)
        .expect("a slab");
    let own = GlobalAddress::new(1, own.slot, 0, own.generation).expect("an address");
    keeper.freeze(own).expect("frozen");
    keeper.commit(own, 2, 0).expect("committed");
    let migrated = GlobalAddress::new(2, 3, 0, 1).expect("an address");
    let (generation, used) = (1, Use::Slab(class, Lifetime::Space));
    let slot = keeper
        .receive(migrated, Slot { generation, used }.encode())
        .expect("room");
    assert_eq!(slot, own.slot());
    part.live_all(slot, class, generation);
    keeper.settle(migrated).expect("settled");
    keeper.end_extent(own).expect("ended");
    for _ in 0..2 {
        let next = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
        assert_eq!(
            part.moving().expect("it moves").migrated_extents.find(Points, migrated),
            Some(slot)
        );
        assert_eq!(next.audit().expect("an audit"), Vec::<String>::new());
    }
    let next = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
    next.freeze(migrated).expect("frozen");
    next.let_go(migrated).expect("let go");
    assert_eq!(next.audit().expect("an audit"), Vec::<String>::new());
}

impl Part {
    /// Empty live words.
    fn live_all(&self, slot: u32, class: Class, generation: u32) {
        let empty = u64::from(generation) << super::super::super::address::GENERATION_SHIFT;
        (0..class.words()).for_each(|word| self.live(slot, word).store(empty, Ordering::Release));
    }
}
