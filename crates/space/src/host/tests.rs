//! Two pods in one process: a part and a host in each, a user in each that maps its own part alone. Calls go through
//! memory.

mod crew;
mod direct;
mod edges;
mod fetch;
mod files;
mod handed;
mod late;
mod many;
mod mirrored;
mod offline;
mod orphans;
mod pieces;
mod read_hot;

use super::super::far::wire::Hello;
use super::super::far::{Channel, Question, Repeat};
use super::super::{
    FarPart, FarReads, GlobalAddress, Keeper, Lifetime, LocalKeeper, Part, PartOptions, Read, Session, Space, Write,
};
use super::{Host, HostOptions, Hosts, Peer};
use crate::extent::EXTENT;
use cenote_base::random::Random;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::{Call, Callers, Serve};
use cenote_fabric::rdma::loopback::Nodes;
use std::collections::BTreeMap;
use std::sync::Arc;

const SPACE: u128 = 77;
const KEY: u128 = 99;
const PODS: [&str; 2] = ["east", "west"];

struct Pods {
    nodes: Arc<Nodes>,
    parts: Vec<Arc<Part>>,
    hosts: Vec<Host>,
    users: Vec<Space>,
    options: HostOptions,
    /// How the users of each read.
    reads: [FarReads; 2],
    /// What stands before each pod's host.
    door: Box<dyn Fn(usize, Hosts) -> Arc<dyn Serve>>,
}

fn part(number: u8, extents: u64) -> Arc<Part> {
    let options = PartOptions {
        space: SPACE,
        part: number,
        tenant: 0,
        bytes: (extents + 1) * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    Arc::new(Part::dram(&options).expect("memory"))
}

impl Pods {
    /// Pods of so many extents each. Nothing moves by itself if `options.every` is zero.
    fn new(extents: u64, options: HostOptions) -> Self {
        let mut pods = Self {
            nodes: Arc::new(Nodes::default()),
            parts: (1..=2).map(|number| part(number, extents)).collect(),
            hosts: Vec::new(),
            users: Vec::new(),
            options,
            reads: [FarReads::Measured, FarReads::DirectFrom(64)],
            door: Box::new(|_, hosts| Arc::new(hosts)),
        };
        pods.start();
        pods
    }

    fn start(&mut self) {
        self.start_hosts();
        self.introduce();
        self.users = (0..2).map(|pod| self.user(pod)).collect();
    }

    fn still(extents: u64) -> Self {
        let every = Nanos::ZERO;
        Self::new(
            extents,
            HostOptions {
                every,
                ..HostOptions::default()
            },
        )
    }

    fn channel(&self, from: usize, to: usize) -> Arc<Channel> {
        let hello = Hello {
            space: SPACE,
            part: to as u8 + 1,
            key: KEY,
            pod: PODS[from].into(),
        };
        let channel = Channel::new(Arc::clone(&self.nodes) as Arc<dyn Callers>, PODS[to], hello);
        Arc::new(channel.reading(self.reads[from]))
    }

    fn start_hosts(&mut self) {
        for (n, part) in self.parts.iter().enumerate() {
            let keeper = Arc::new(LocalKeeper::new(Arc::clone(part)).expect("a keeper"));
            let options = HostOptions {
                pod: PODS[n].into(),
                key: KEY,
                ..self.options.clone()
            };
            let host = Host::start(keeper, options).expect("a host");
            let hosts = Hosts::default();
            hosts.add(&host);
            self.nodes.add(PODS[n]).serve((self.door)(n, hosts));
            self.hosts.push(host);
        }
    }

    /// Tells each host the way to the other.
    fn introduce(&self) {
        for (n, host) in self.hosts.iter().enumerate() {
            let other = 1 - n;
            let peer = Peer {
                pod: PODS[other].into(),
                channel: self.channel(n, other),
            };
            host.set_peer(other as u8 + 1, peer);
        }
    }

    fn user(&self, pod: usize) -> Space {
        let (space, other) = (Space::new(SPACE), 1 - pod);
        let keeper = |n: usize| Arc::clone(self.hosts[n].keeper()) as Arc<dyn Keeper>;
        space
            .attach(Arc::clone(&self.parts[pod]), keeper(pod))
            .expect("attached");
        let far = FarPart {
            number: other as u8 + 1,
            pod: PODS[other].into(),
            channel: self.channel(pod, other),
        };
        space.attach_far(far, keeper(other)).expect("attached");
        space
    }

    fn relocate(&self, extent: GlobalAddress, to: u8) -> Result<()> {
        self.hosts[usize::from(extent.part()) - 1].relocate(extent, to)
    }

    fn audit(&self) {
        for host in &self.hosts {
            assert_eq!(host.keeper().audit().expect("an audit"), Vec::<String>::new());
        }
    }

    fn ask_homes(&self) {
        self.hosts.iter().for_each(|host| host.inner.ask_homes(Nanos::ZERO));
    }

    /// All keepers and hosts as after a restart, that do not know of each other yet.
    fn restart_hosts(&mut self) {
        self.hosts.clear();
        self.nodes = Arc::new(Nodes::default());
        self.start_hosts();
    }

    /// All keepers and hosts as after a restart.
    fn restart(&mut self) {
        self.hosts.clear();
        self.nodes = Arc::new(Nodes::default());
        self.start();
        self.ask_homes();
    }
}

fn read(space: &Space, address: GlobalAddress, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    space.read(address, &mut bytes).map(|()| bytes)
}

#[test]
fn far_memory_is_used_as_near_memory_is() {
    let pods = Pods::still(4);
    let (east, west) = (&pods.users[0], &pods.users[1]);
    let session = east.session();
    let address = session.alloc(1000).expect("room");
    west.write(address, &[7; 1000]).expect("written");
    assert_eq!(read(east, address, 1000).expect("read"), [7; 1000]);
    assert_eq!(read(west, address + 8, 8).expect("read"), [7; 8]);
    assert_eq!(
        west.size_of(address).expect("a size"),
        east.size_of(address).expect("a size")
    );
    west.store(address, 5).expect("stored");
    assert_eq!(west.fetch_add(address, 2).expect("added"), 5);
    assert_eq!(west.compare_and_swap(address, 7, 9).expect("swapped"), 7);
    assert_eq!(
        (east.load(address).expect("a word"), west.load(address).expect("a word")),
        (9, 9)
    );
    west.free(address).expect("freed");
    for space in [east, west] {
        assert!(matches!(space.load(address), Err(Error::Invalid(_))), "it was freed");
        assert!(matches!(space.free(address), Err(Error::Invalid(_))), "it was freed");
    }
}

impl core::ops::Add<u64> for GlobalAddress {
    type Output = Self;

    fn add(self, bytes: u64) -> Self {
        self.checked_add(bytes).expect("an address")
    }
}

#[test]
fn what_is_wrong_is_said_of_far_memory_too() {
    let pods = Pods::still(4);
    let (east, west) = (&pods.users[0], &pods.users[1]);
    let address = east.session().alloc(64).expect("room");
    let invalid = |result: Result<u64>| assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    assert!(matches!(read(west, address, 65), Err(Error::OutOfBounds(_))));
    invalid(west.load(address + 4));
    invalid(west.load(address + 64));
    invalid(west.load(GlobalAddress::NULL));
    invalid(west.load(GlobalAddress::new(1, 3, 0, 1).expect("an address")));
    invalid(west.load(GlobalAddress::new(1, 100, 0, 1).expect("an address")));
    invalid(west.load(GlobalAddress::new(3, 0, 0, 1).expect("an address")));
}

#[test]
fn long_and_many_accesses_go_in_pieces() {
    let pods = Pods::still(8);
    let (east, west) = (&pods.users[0], &pods.users[1]);
    let session = east.session();
    let run = session.alloc(3 * EXTENT).expect("room");
    let bytes: Vec<u8> = (0..3 * EXTENT).map(|n| ((n * 7) >> 3) as u8).collect();
    west.write(run, &bytes).expect("written");
    assert!(
        read(east, run, bytes.len()).expect("read") == bytes && read(west, run, bytes.len()).expect("read") == bytes
    );
    let objects: Vec<_> = (0..3000).map(|_| session.alloc(100).expect("room")).collect();
    let texts: Vec<[u8; 100]> = (0..3000u32).map(|n| [n as u8; 100]).collect();
    let writes: Vec<_> = objects
        .iter()
        .zip(&texts)
        .map(|(address, from)| Write {
            address: *address,
            from,
        })
        .collect();
    west.write_many(&writes).expect("written");
    let mut back = vec![[0; 100]; 3000];
    let mut reads: Vec<_> = objects
        .iter()
        .zip(&mut back)
        .map(|(address, into)| Read {
            address: *address,
            into,
        })
        .collect();
    west.read_many(&mut reads).expect("read");
    assert!(back == texts);
    west.free(run).expect("freed");
    assert!(read(east, run, 1).is_err());
    pods.audit();
}

#[test]
fn a_session_without_room_near_allocates_far() {
    let pods = Pods::still(9);
    let session = pods.users[0].session();
    let mut parts = BTreeMap::new();
    let all: Vec<_> = core::iter::from_fn(|| session.alloc(EXTENT / 4).ok()).collect();
    for address in &all {
        *parts.entry(address.part()).or_insert(0) += 1;
        pods.users[1].store(*address, address.raw()).expect("stored");
    }
    assert_eq!(
        parts,
        BTreeMap::from([(1, 32), (2, 32)]),
        "but for a spare extent in each"
    );
    assert!(
        all.iter()
            .all(|address| pods.users[0].load(*address).expect("a word") == address.raw())
    );
    let scratch = session.alloc_in(64, Lifetime::Session);
    assert!(matches!(scratch, Err(Error::Full(_))), "{scratch:?}");
    all.iter().for_each(|address| session.free(*address).expect("freed"));
    pods.audit();
}

#[test]
fn an_address_stays_right_wherever_its_extent_goes() {
    let pods = Pods::still(4);
    let session = pods.users[0].session();
    let all: Vec<_> = (0..100).map(|_| session.alloc(64).expect("room")).collect();
    let extent = all[0].extent();
    let check = |to: u8| {
        pods.relocate(extent, to).expect("moved");
        for (n, address) in all.iter().enumerate() {
            for user in &pods.users {
                assert_eq!(
                    user.fetch_add(*address, 1).expect("a word") % 2,
                    n as u64 % 2,
                    "in part {to}"
                );
                user.fetch_add(*address, 1).expect("a word");
            }
        }
        pods.audit();
    };
    for (n, address) in all.iter().enumerate() {
        pods.users[0].store(*address, n as u64).expect("stored");
    }
    [2, 1, 2, 1].into_iter().for_each(check);
    pods.relocate(extent, 2).expect("moved");
    // Its owner goes on in another slab; what it frees is freed where it is.
    let more = session.alloc(64).expect("room");
    assert_ne!(more.extent(), extent);
    session.free(all[1]).expect("freed");
    assert!(pods.users[1].load(all[1]).is_err() && pods.users[0].load(all[1]).is_err());
    all.iter().filter(|address| **address != all[1]).for_each(|address| {
        session.free(*address).expect("freed");
    });
    pods.hosts[0]
        .inner
        .requested(extent, None)
        .expect("it is empty, and ends");
    assert!(pods.users[1].load(all[0]).is_err());
    pods.audit();
    assert_eq!(pods.users[0].stats().parts[0].away, 0);
    assert_eq!(pods.users[1].stats().parts[0].migrated_extents, 0);
}

/// A session that did not look while its slab was away and came back went on in it. The slab had no owner by then, and
/// another one soon. That owner could give it back, empty as it was, while the first session used it.
#[test]
fn a_slab_that_was_away_is_another_session_s() {
    let pods = Pods::still(4);
    let (first, second) = (pods.users[0].session(), pods.users[0].session());
    let address = first.alloc(64).expect("room");
    [2, 1]
        .into_iter()
        .for_each(|to| pods.relocate(address.extent(), to).expect("moved"));
    let adopted = second.alloc(64).expect("room");
    assert_eq!(adopted.extent(), address.extent(), "it had no owner");
    assert_ne!(
        first.alloc(64).expect("room").extent(),
        address.extent(),
        "it is the second's"
    );
    pods.audit();
}

#[test]
fn scratch_memory_stays() {
    let pods = Pods::still(6);
    let session = pods.users[0].session();
    let run = session.alloc_in(EXTENT + 1, Lifetime::Session).expect("room");
    let scratch = session.alloc_in(64, Lifetime::Session).expect("room");
    for address in [run, scratch] {
        assert!(pods.relocate(address.extent(), 2).is_err());
        pods.users[1].store(address, 1).expect("it is where it was");
    }
    pods.audit();
}

/// Everything at random, against a model.
#[test]
fn spaces_that_move_are_spaces() {
    let seed = seed();
    for round in 0..20 {
        random_life(seed.wrapping_add(round));
    }
}

/// What a test draws from: `CENOTE_SEED`, or a random one.
fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    seed
}

fn random_life(seed: u64) {
    let mut dice = Random(seed);
    let mut pods = Pods::still(10);
    let mut sessions: Vec<Session> = pods.users.iter().map(Space::session).collect();
    let mut model: Vec<(GlobalAddress, Vec<u8>)> = Vec::new();
    for step in 0..400 {
        let user = dice.index(2);
        let pick = if model.is_empty() {
            None
        } else {
            Some(dice.index(model.len()))
        };
        match (dice.index(12), pick) {
            (0..4, _) => {
                let len = match dice.index(40) {
                    0 => EXTENT + 5000,
                    n => [1, 64, 100, 5000, 100_000][n % 5],
                };
                if let Ok(address) = sessions[user].alloc(len) {
                    let zeros = read(&pods.users[1 - user], address, len as usize).expect("read");
                    assert!(
                        zeros.iter().all(|byte| *byte == 0),
                        "seed {seed}, step {step}: not zero"
                    );
                    model.push((address, zeros));
                }
            }
            (4..7, Some(n)) => {
                let (address, bytes) = &mut model[n];
                let at = match bytes.len() > EXTENT as usize && dice.index(2) == 0 {
                    // Where the one extent ends and the next begins.
                    true => EXTENT as usize - dice.index(300),
                    false => dice.index(bytes.len()),
                };
                let text = vec![dice.index(256) as u8; (bytes.len() - at).min(300)];
                pods.users[user].write(*address + at as u64, &text).expect("written");
                bytes[at..at + text.len()].copy_from_slice(&text);
            }
            (7..9, Some(n)) => {
                let (address, bytes) = &model[n];
                assert!(
                    read(&pods.users[user], *address, bytes.len()).expect("read") == *bytes,
                    "seed {seed}, step {step}"
                );
            }
            (9, Some(n)) => {
                let (address, _) = model.swap_remove(n);
                pods.users[user].free(address).expect("freed");
                assert!(
                    pods.users[1 - user]
                        .load(address.extent() + (address.raw() - address.extent().raw()) / 64 * 64)
                        .is_err()
                );
            }
            (10, Some(n)) => {
                let pieces = model[n].1.len().div_ceil(EXTENT as usize);
                let extent = model[n].0.extent() + dice.index(pieces) as u64 * EXTENT;
                let _ = pods.relocate(extent, 1 + dice.index(2) as u8);
            }
            (11, _) if dice.index(10) == 0 => {
                sessions.clear();
                pods.restart();
                sessions = pods.users.iter().map(Space::session).collect();
            }
            _ => {}
        }
    }
    pods.audit();
    for (address, bytes) in &model {
        for user in &pods.users {
            assert!(
                read(user, *address, bytes.len()).expect("read") == *bytes,
                "seed {seed}, at the end"
            );
        }
    }
}

/// No write is lost and no word torn while extents in use go to and fro.
#[test]
fn nothing_is_lost_while_extents_move() {
    let pods = Pods::still(6);
    let session = pods.users[0].session();
    let shared: Vec<_> = (0..8).map(|_| session.alloc(64).expect("room")).collect();
    let own: Vec<_> = (0..4).map(|_| session.alloc(256).expect("room")).collect();
    let done = Arc::new(AtomicBool::new(false));
    let worker = |n: usize| {
        let (space, shared, own, done) = (pods.users[n % 2].clone(), shared.clone(), own[n], Arc::clone(&done));
        rt::spawn("worker", move || {
            let mut added = 0u64;
            while !done.load(Ordering::Acquire) {
                let text = [added as u8; 256];
                space.write(own, &text).expect("written");
                space.fetch_add(shared[added as usize % 8], 1).expect("added");
                let back = read(&space, own, 256).expect("read");
                assert!(back == text, "worker {n}: what was written last is not there");
                added += 1;
            }
            added
        })
    };
    let workers: Vec<_> = (0..4).map(worker).collect();
    let extents = [shared[0].extent(), own[0].extent()];
    let mut moved = 0;
    for n in 0..60 {
        let extent = extents[n % 2];
        moved += u32::from(pods.relocate(extent, (1 + (n / 2 + 1) % 2) as u8).is_ok());
    }
    done.store(true, Ordering::Release);
    let added: u64 = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
    let found: u64 = shared
        .iter()
        .map(|address| pods.users[1].load(*address).expect("a word"))
        .sum();
    assert_eq!(found, added, "{moved} moves");
    assert!(moved > 0);
    pods.audit();
}

/// Hosts and keepers are gone after each of a move's steps: the extent is in one place, with what was in it.
#[test]
fn a_move_that_is_cut_off_is_undone_or_ends() {
    for cut in 0..6 {
        let mut pods = Pods::still(4);
        let session = pods.users[0].session();
        let address = session.alloc(64).expect("room");
        pods.users[0].store(address, 42).expect("stored");
        let extent = address.extent();
        // From home, or back to it.
        for there in [2u8, 1] {
            let from = 3 - there;
            cut_off(&pods, extent, from, there, cut);
            pods.restart();
            for user in &pods.users {
                assert_eq!(user.load(address).expect("a word"), 42, "cut {cut}, to {there}");
            }
            pods.audit();
            pods.relocate(extent, there).expect("it can be moved");
        }
        let (from, to) = (&pods.users[0].stats().parts[0], &pods.users[1].stats().parts[0]);
        assert_eq!(
            (from.away, from.migrated_extents, to.migrated_extents),
            (0, 0, 0),
            "cut {cut}"
        );
    }
}

/// The steps of a move, up to one of them.
fn cut_off(pods: &Pods, extent: GlobalAddress, from: u8, to: u8, cut: u32) {
    steps(pods, extent, (from, to), 1, cut);
}

/// The same, in this migration epoch.
fn steps(pods: &Pods, extent: GlobalAddress, (from, to): (u8, u8), freeze: u64, cut: u32) {
    let of = |part: u8| &pods.hosts[usize::from(part) - 1].inner;
    let home = of(extent.part());
    let steps: [&dyn Fn(u64) -> u64; 5] = [
        &|_| match of(from).obey(&super::Order::Freeze { extent, freeze }) {
            Ok(super::Ordered::Frozen { state, .. }) => state,
            other => panic!("{other:?}"),
        },
        &|state| match of(to).obey(&super::Order::Receive {
            extent,
            state,
            from,
            freeze,
        }) {
            Ok(super::Ordered::Slot(slot)) => slot.into(),
            other => panic!("{other:?}"),
        },
        &|slot| {
            home.keeper.commit(extent, to, slot as u32).expect("committed");
            slot
        },
        &|slot| {
            of(to).obey(&super::Order::Settle { extent, freeze }).expect("settled");
            slot
        },
        &|slot| {
            of(from).obey(&super::Order::LetGo { extent, freeze }).expect("let go");
            slot
        },
    ];
    steps.iter().take(cut as usize).fold(0, |last, step| step(last));
}

fn eventually(f: impl Fn() -> bool) {
    while !f() {
        rt::sleep(Nanos::from_millis(10));
    }
}

fn lively() -> HostOptions {
    HostOptions {
        every: Nanos::from_millis(20),
        stay: Nanos::from_millis(50),
        ..HostOptions::default()
    }
}

#[test]
fn what_is_hot_elsewhere_goes_there() {
    let pods = Pods::new(6, lively());
    let session = pods.users[0].session();
    let address = session.alloc(64).expect("room");
    eventually(|| {
        pods.users[1].fetch_add(address, 1).expect("added");
        pods.hosts[1].moved().came == 1
    });
    let served = pods.hosts[0].moved().served;
    for _ in 0..1000 {
        pods.users[1].fetch_add(address, 1).expect("added");
    }
    assert_eq!(pods.hosts[0].moved().served, served, "users ask its home no more");
    pods.audit();
}

#[test]
fn full_pods_exchange() {
    let pods = Pods::new(10, lively());
    let fill = |pod: usize| {
        let session = pods.users[pod].session();
        let objects = (0..9)
            .map(|_| session.alloc(EXTENT / 2).expect("room"))
            .flat_map(|one| [one, session.alloc(EXTENT / 2).expect("room")]);
        let objects: Vec<_> = objects
            .filter(|address| usize::from(address.part()) == pod + 1)
            .collect();
        (session, objects)
    };
    let (_east, of_east) = fill(0);
    let (_west, of_west) = fill(1);
    let (wanted_by_west, wanted_by_east) = (of_east[0], of_west[0]);
    eventually(|| {
        for _ in 0..20 {
            pods.users[1].fetch_add(wanted_by_west, 1).expect("added");
            pods.users[0].fetch_add(wanted_by_east, 1).expect("added");
        }
        let lies = |pod: usize, address| pods.hosts[pod].inner.part.migrated_slot(address).is_some();
        lies(1, wanted_by_west.extent()) && lies(0, wanted_by_east.extent())
    });
    pods.hosts
        .iter()
        .for_each(|host| host.inner.stop.store(true, Ordering::Release));
    pods.audit();
}

#[test]
fn what_both_use_alike_stays() {
    let pods = Pods::new(6, lively());
    let session = pods.users[0].session();
    let all: Vec<_> = (0..64).map(|_| session.alloc(64).expect("room")).collect();
    // Where none of the near accesses was sampled yet, a few from there count as all that there were.
    for n in 0..4000 {
        pods.users[0].fetch_add(all[n % 64], 1).expect("added");
    }
    for n in 0..40_000 {
        // As often from here, where one in many is counted, as from there.
        pods.users[0].fetch_add(all[n * 7 % 64], 1).expect("added");
        pods.users[1].fetch_add(all[n % 64], 1).expect("added");
    }
    assert_eq!(pods.hosts[1].moved().came, 0);
}

fn ask(channel: &Channel, request: Vec<u8>, repeat: Repeat) -> Result<Vec<u8>> {
    Ok(channel.ask(Question::new(Call::new(request), repeat))?.answer)
}

#[test]
fn unknown_users_and_garbage_are_refused() {
    let pods = Pods::still(4);
    let unknown_user = |hello: Hello| {
        let channel = Channel::new(Arc::clone(&pods.nodes) as Arc<dyn Callers>, PODS[0], hello);
        ask(
            &channel,
            super::wire::accesses(super::wire::ACCESSES, &[], Vec::new()),
            Repeat::Freely,
        )
    };
    let pod = String::new();
    let hello = |space, part, key| Hello {
        space,
        part,
        key,
        pod: pod.clone(),
    };
    assert!(unknown_user(hello(SPACE, 1, KEY)).is_ok());
    for other in [hello(SPACE, 1, KEY + 1), hello(SPACE + 1, 1, KEY), hello(SPACE, 2, KEY)] {
        assert!(matches!(unknown_user(other), Err(Error::Lost(_))));
    }
    let channel = pods.channel(1, 0);
    let seed = seed();
    let mut dice = Random(seed);
    for _ in 0..20_000 {
        let kind = 2 + dice.index(7) as u8;
        let mut request = vec![kind, 0, dice.index(4) as u8, 0, 0, 0, 0, 0];
        request.extend((0..dice.index(120)).map(|_| [0, 1, 8, 11, 255, 64][dice.index(6)]));
        let repeat = [Repeat::Freely, Repeat::Numbered, Repeat::Never][dice.index(3)];
        let _ = ask(&channel, request, repeat);
    }
    pods.audit();
}
