//! Cenote's pool as the system that is compared: `cenote_space` as it is, over simulated memory and cards.
//!
//! Each memory node has a part of the space, in CXL memory of its pod, with a host that serves the other pods' calls
//! and moves extents. Clients of a pod map its parts, and reach the others' by calls. What is the pool's own code, and
//! what is charged beside memory and network: [`Costs::access`](super::store::Costs) for each access where it is
//! carried out.

use super::rig::{PoolSegment, Rig, copies, device, name};
use super::store::{Costs, Layout, Place, SEGMENT, Store, fill};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::{Answer, CallerId, Callers, Serve};
use cenote_space::{
    Channel, Class, Extent, FarPart, FarReads, FarStats, GlobalAddress, HeatOptions, Hello, Host, HostOptions, Keeper,
    Lifetime, LocalKeeper, Mode, Part, PartOptions, Peer, Read, Run, Session, SessionId, Space,
};
use std::sync::{Arc, PoisonError};

const SPACE: u128 = 0x5bace;
const KEY: u128 = 0x5ec2e7;
const EXTENT: u64 = 2 << 20;

/// What is different from run to run. The default is the pool's own, with times that fit a short run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Whether hot extents move.
    pub moves: bool,
    /// Heat from which on an extent is hot.
    pub hot: f64,
    /// How much hotter it has to be elsewhere.
    pub margin: f64,
    /// Samples that chance may have missed.
    pub doubt: f64,
    /// Between two looks at what is hot.
    pub every: Nanos,
    /// How long what has come stays.
    pub stay: Nanos,
    /// How bytes come from another pod. The default is the pool's own: as each connection has measured.
    pub reads: FarReads,
}

impl Default for Options {
    /// The product looks five times a second, and what came stays a second: here a hundred times as often.
    fn default() -> Self {
        let host = HostOptions::default();
        Self {
            moves: true,
            hot: host.heat.hot,
            margin: host.margin,
            doubt: host.heat.doubt,
            every: Nanos(host.every.raw() / 100),
            stay: Nanos(host.stay.raw() / 100),
            reads: FarReads::default(),
        }
    }
}

/// Bytes of a part that holds so many, and migrated extents.
pub fn part_bytes(bytes: u64) -> u64 {
    let extents = bytes.div_ceil(SEGMENT);
    // A quarter is room for migrated extents; the spare slot, the locks' extent and what the part has for itself come
    // on top.
    (extents + extents.div_ceil(4) + 6) * EXTENT
}

/// The hosts of a pod's parts.
pub type Hosts = Vec<Host>;

fn pod_name(pod: usize) -> String {
    format!("pod{pod}")
}

fn number(lane: usize) -> u8 {
    lane as u8 + 1
}

fn channel(rig: &Rig, from: usize, lane: usize, reads: FarReads) -> Arc<Channel> {
    let hello = Hello {
        space: SPACE,
        part: number(lane),
        key: KEY,
        pod: pod_name(from),
    };
    let channel = Channel::new(rig.network.port(from) as Arc<dyn Callers>, name(lane), hello);
    Arc::new(channel.reading(reads))
}

/// Makes a pod's parts, fills them, and hosts them.
pub fn serve(rig: &Rig, pod: usize, options: Options) -> Hosts {
    let lanes = rig.shape.layout.of_pod(pod);
    lanes.map(|lane| host(rig, pod, lane, options)).collect()
}

fn host(rig: &Rig, pod: usize, lane: usize, options: Options) -> Host {
    let layout = rig.shape.layout;
    let keeper = Arc::new(keeper(lane, part_bytes(layout.lane_bytes())));
    let segments = fill_part(&keeper, layout, lane);
    rig.segments[lane].set(segments).expect("once");
    *rig.keepers[lane].lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&keeper));
    let host = Host::start(keeper, host_options(pod, options)).expect("a host");
    for other in (0..layout.lanes()).filter(|other| *other != lane) {
        let peer = Peer {
            pod: pod_name(layout.pod(other)),
            channel: channel(rig, pod, other, options.reads),
        };
        host.set_peer(number(other), peer);
    }
    let hosts = cenote_space::Hosts::default();
    hosts.add(&host);
    let costs = rig.costs;
    rig.serve(&rig.nodes[lane], Arc::new(Charged { hosts, costs }));
    host
}

fn host_options(pod: usize, options: Options) -> HostOptions {
    HostOptions {
        pod: pod_name(pod),
        key: KEY,
        heat: HeatOptions {
            hot: options.hot,
            doubt: options.doubt,
            ..HeatOptions::default()
        },
        margin: options.margin,
        every: if options.moves { options.every } else { Nanos::ZERO },
        stay: options.stay,
        ..HostOptions::default()
    }
}

fn keeper(lane: usize, bytes: u64) -> LocalKeeper {
    let options = PartOptions {
        space: SPACE,
        part: number(lane),
        tenant: 0,
        bytes: bytes - EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    let part = Part::create(&device(lane), &options).expect("the device is there");
    LocalKeeper::new(Arc::new(part)).expect("no other keeper")
}

/// Allocates a part's segments and fills them; where they are. A session that allocates nothing else has its object in
/// an extent of its own, of which the rest stays empty: so there are as many extents as the paper has pages.
fn fill_part(keeper: &Arc<LocalKeeper>, layout: Layout, lane: usize) -> Vec<PoolSegment> {
    let space = Space::new(SPACE);
    let as_keeper = Arc::clone(keeper) as Arc<dyn Keeper>;
    space
        .attach(Arc::clone(keeper.part()), as_keeper)
        .expect("its first part");
    let locks = space.session();
    let mut bytes = vec![0; SEGMENT as usize];
    let segment = |n: u64| {
        let session = space.session();
        let address = session.alloc(SEGMENT).expect("room");
        fill(layout.at(Place { lane, at: n * SEGMENT }), &mut bytes);
        space.write(address, &bytes).expect("written");
        let lock = locks.new_lock().expect("room");
        (PoolSegment { bytes: address, lock }, session)
    };
    // All sessions last until the last has its extent: one that had ended would leave its to the next.
    let segments: Vec<_> = (0..layout.lane_bytes() / SEGMENT).map(segment).collect();
    segments.into_iter().map(|(segment, _)| segment).collect()
}

/// The pool's program, with the processor time of the accesses that it carries out.
struct Charged {
    hosts: cenote_space::Hosts,
    costs: Costs,
}

impl Serve for Charged {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        // How many accesses a request has stands in its head (`space::far::wire`).
        let count = match request {
            [2, _, low, high, ..] => u64::from(u16::from_le_bytes([*low, *high])),
            _ => 0,
        };
        rt::spend(Nanos(self.costs.access.raw() * count));
        self.hosts.serve(caller, request, answer);
    }

    fn ended(&self, caller: CallerId) {
        self.hosts.ended(caller);
    }
}

/// The keeper of another pod's part. Sessions begin there before anything is measured, and ask it for the holder of a
/// lock; no session allocates there.
struct FarKeeper(Arc<LocalKeeper>);

fn no_allocation<T>() -> Result<T> {
    Err(Error::Invalid("no session allocates in another pod here".into()))
}

impl Keeper for FarKeeper {
    fn begin(&self) -> Result<SessionId> {
        self.0.begin()
    }

    fn take(&self, _: SessionId, _: Class, _: Lifetime) -> Result<Extent> {
        no_allocation()
    }

    fn give_back(&self, _: SessionId, _: &[Extent]) -> Result<()> {
        no_allocation()
    }

    fn take_run(&self, _: SessionId, _: u64, _: Lifetime) -> Result<Run> {
        no_allocation()
    }

    fn free_run(&self, _: GlobalAddress) -> Result<()> {
        no_allocation()
    }

    /// The part may be gone with its pod by then.
    fn end(&self, _: SessionId) -> Result<()> {
        Ok(())
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        self.0.is_alive(session)
    }

    fn audit(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The space, as a pod's clients see it.
pub struct Pool {
    layout: Layout,
    pod: usize,
    space: Space,
    costs: Costs,
    /// By lane, then by row.
    segments: Vec<Vec<PoolSegment>>,
    /// By client.
    sessions: Vec<Session>,
}

/// Opens it.
pub fn open(rig: &Rig, pod: usize, hosts: &Hosts, options: Options) -> Pool {
    let (space, layout) = (Space::new(SPACE), rig.shape.layout);
    for host in hosts {
        let keeper = Arc::clone(host.keeper()) as Arc<dyn Keeper>;
        space
            .attach(Arc::clone(host.part()), keeper)
            .expect("a part of the pod");
    }
    for lane in (0..layout.lanes()).filter(|lane| layout.pod(*lane) != pod) {
        let far = FarPart {
            number: number(lane),
            pod: pod_name(layout.pod(lane)),
            channel: channel(rig, pod, lane, options.reads),
        };
        let keeper = rig.keepers[lane].lock().unwrap_or_else(PoisonError::into_inner).clone();
        let keeper = FarKeeper(keeper.expect("all serve"));
        space.attach_far(far, Arc::new(keeper)).expect("a part of another pod");
    }
    let segments = rig
        .segments
        .iter()
        .map(|lane| lane.get().expect("it is served").clone());
    Pool {
        layout,
        pod,
        costs: rig.costs,
        segments: segments.collect(),
        sessions: (0..rig.shape.clients).map(|_| space.session()).collect(),
        space,
    }
}

impl Pool {
    fn address(&self, at: u64) -> Result<GlobalAddress> {
        let inside = at % SEGMENT;
        let address = self.segment(at)?.bytes.checked_add(inside);
        address.ok_or_else(|| Error::OutOfBounds(format!("nothing is at {at}")))
    }

    /// What comes from another pod, or goes there, is copied once at this end: out of the answer or the memory that was
    /// lent, or into the request.
    fn spend_copying(&self, at: u64, bytes: usize) {
        if self.layout.pod(self.layout.place(at).lane) != self.pod {
            rt::spend(Nanos((bytes as f64 * 1e9 / copies()) as u64));
        }
    }

    fn segment(&self, at: u64) -> Result<PoolSegment> {
        let place = self.layout.place(at);
        let segment = self.segments[place.lane].get((place.at / SEGMENT) as usize);
        segment
            .copied()
            .ok_or_else(|| Error::OutOfBounds(format!("nothing is at {at}")))
    }
}

impl Store for Pool {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        rt::spend(self.costs.access);
        self.spend_copying(at, into.len());
        self.space.read(self.address(at)?, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        rt::spend(self.costs.access);
        self.spend_copying(at, from.len());
        self.space.write(self.address(at)?, from)
    }

    fn tells(&self) -> Vec<(&'static str, u64)> {
        let far = self.space.stats().far;
        let tell = |far: &FarStats| {
            [
                ("not plain from", far.direct_from.unwrap_or(0)),
                ("plain", far.plain),
                ("direct", far.direct),
                ("one-sided", far.one_sided),
            ]
        };
        far.iter().flat_map(tell).collect()
    }

    fn read_many(&self, at: &[u64], into: &mut [Vec<u8>]) -> Result<()> {
        rt::spend(Nanos(self.costs.access.raw() * at.len() as u64));
        let mut reads = Vec::with_capacity(at.len());
        for (at, into) in at.iter().zip(into) {
            let address = self.address(*at)?;
            reads.push(Read { address, into });
        }
        self.space.read_many(&mut reads)
    }

    fn write_locked(&self, client: usize, at: &[u64], from: &[u8], is_buffered: bool) -> Result<()> {
        let Some(first) = at.first() else { return Ok(()) };
        rt::spend(self.costs.access);
        let guard = self.sessions[client].lock(self.segment(*first)?.lock, Mode::Write)?;
        for at in at {
            rt::spend(self.costs.access);
            match is_buffered {
                true => guard.write(self.address(*at)?, from)?,
                false => self.space.write(self.address(*at)?, from)?,
            }
        }
        guard.unlock()
    }
}

/// Accesses that a pod's hosts have served, extents that have come, and moves that have failed.
pub fn tells(hosts: &Hosts) -> Vec<(&'static str, u64)> {
    let moved = hosts.iter().map(Host::moved);
    let one = |moved: cenote_space::Moved| {
        [
            ("served", moved.served),
            ("moved", moved.came),
            ("failed", moved.failed),
        ]
    };
    moved.flat_map(one).collect()
}
