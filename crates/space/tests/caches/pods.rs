//! Two pods in one process, and calls between them that are counted and may go wrong.

use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::{Call, Called, Caller, CallerId, Callers};
use cenote_fabric::rdma::loopback::Nodes;
use cenote_space::EXTENT;
use cenote_space::{
    Channel, FarPart, GlobalAddress, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Part, PartOptions, Peer,
    Session, Space,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const SPACE: u128 = 78;
const KEY: u128 = 99;
const PODS: [&str; 2] = ["east", "west"];

/// What happens to the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// It is not carried out, and its sender hears that the way is lost.
    IsLost,
    /// It is carried out, and its sender hears that the way is lost.
    AnswerIsLost,
    /// Of a batch the first is carried out, then something else happens, then the rest.
    IsSplit,
    /// Its sender hears that there is no answer in time, and it is carried out when it is
    /// [let through](Fabric::let_through).
    IsLate,
}

/// Calls through memory that are counted, and may go wrong.
#[derive(Debug)]
pub struct Fabric {
    nodes: Nodes,
    messages: AtomicU64,
    /// Of messages that were posted together.
    posts: AtomicU64,
    /// Of requests.
    bytes: AtomicU64,
    fate: Mutex<Fate>,
    late: Mutex<Vec<Late>>,
    meanwhile: Mutex<Option<Meanwhile>>,
    /// No connection is made.
    is_cut: AtomicBool,
    /// How often one was tried to be made.
    tries: AtomicU64,
}

/// What another session does before a sender hears that its answer is lost, or between the messages of a batch.
struct Meanwhile(Box<dyn FnOnce() + Send>);

impl core::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Meanwhile")
    }
}

/// Calls that no thread waits for any more.
type Late = (Arc<dyn Caller>, Vec<Call>);

#[derive(Debug)]
struct Line {
    fabric: Arc<Fabric>,
    caller: Arc<dyn Caller>,
}

#[derive(Debug)]
struct Lines(Arc<Fabric>);

impl Callers for Lines {
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        self.0.tries.fetch_add(1, Ordering::Relaxed);
        if self.0.is_cut.load(Ordering::Relaxed) {
            return Err(Error::Lost("the way is cut".into()));
        }
        let (fabric, caller) = (Arc::clone(&self.0), self.0.nodes.caller(peer)?);
        Ok(Arc::new(Line { fabric, caller }))
    }
}

fn failed(mut calls: Vec<Call>, error: &Error) -> Called {
    for call in &mut calls {
        (call.answer, call.result) = (Vec::new(), Err(error.clone()));
    }
    Called::done(calls)
}

impl Caller for Line {
    fn peer(&self) -> &str {
        self.caller.peer()
    }

    fn id(&self) -> CallerId {
        self.caller.id()
    }

    fn post(&self, mut calls: Vec<Call>) -> Called {
        self.fabric.messages.fetch_add(calls.len() as u64, Ordering::Relaxed);
        self.fabric.posts.fetch_add(1, Ordering::Relaxed);
        let bytes = calls.iter().map(|call| call.request.len() as u64).sum();
        self.fabric.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fate = core::mem::replace(&mut *self.fabric.fate.lock().expect("whole"), Fate::Arrives);
        let lost = Error::Lost("the way is gone".into());
        match fate {
            Fate::Arrives => self.caller.post(calls),
            Fate::IsLost => failed(calls, &lost),
            Fate::AnswerIsLost => {
                let calls = self.caller.post(calls).wait();
                self.fabric.meanwhile();
                failed(calls, &lost)
            }
            Fate::IsSplit => {
                let rest = calls.split_off(1);
                let mut done = self.caller.post(calls).wait();
                self.fabric.meanwhile();
                done.extend(self.caller.post(rest).wait());
                Called::done(done)
            }
            Fate::IsLate => {
                let copies = calls.iter().map(|call| Call::new(call.request.clone())).collect();
                let mut late = self.fabric.late.lock().expect("whole");
                late.push((Arc::clone(&self.caller), copies));
                failed(calls, &Error::Timeout("no answer in time".into()))
            }
        }
    }
}

/// The way to a node that is away now and then.
#[derive(Debug)]
struct Gate<T: ?Sized> {
    is_away: Arc<AtomicBool>,
    behind: Arc<T>,
}

impl<T: ?Sized> Gate<T> {
    fn check(&self) -> Result<()> {
        match self.is_away.load(Ordering::Relaxed) {
            true => Err(Error::Lost("its node is away".into())),
            false => Ok(()),
        }
    }
}

impl Callers for Gate<Lines> {
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        self.check()?;
        let (is_away, behind) = (Arc::clone(&self.is_away), self.behind.caller(peer)?);
        Ok(Arc::new(Gate { is_away, behind }))
    }
}

impl Caller for Gate<dyn Caller> {
    fn peer(&self) -> &str {
        self.behind.peer()
    }

    fn id(&self) -> CallerId {
        self.behind.id()
    }

    fn post(&self, calls: Vec<Call>) -> Called {
        match self.check() {
            Ok(()) => self.behind.post(calls),
            Err(error) => failed(calls, &error),
        }
    }
}

impl Fabric {
    fn meanwhile(&self) {
        let meanwhile = self.meanwhile.lock().expect("whole").take();
        if let Some(Meanwhile(work)) = meanwhile {
            work();
        }
    }

    /// This happens between the first message of the next batch and the others.
    pub fn is_split_by(&self, work: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().expect("whole") = Some(Meanwhile(Box::new(work)));
        self.next_is(Fate::IsSplit);
    }

    /// Connections are made no more, or again.
    pub fn set_cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    pub fn next_is(&self, fate: Fate) {
        *self.fate.lock().expect("whole") = fate;
    }

    /// The next answer is lost, and before its sender hears of it `work` is done.
    pub fn answer_is_lost_after(&self, work: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().expect("whole") = Some(Meanwhile(Box::new(work)));
        self.next_is(Fate::AnswerIsLost);
    }

    pub fn let_through(&self) {
        for (caller, calls) in self.late.lock().expect("whole").drain(..) {
            caller.post(calls).wait();
        }
    }

    /// Bytes of the requests that `f` takes.
    pub fn bytes<T>(&self, f: impl FnOnce() -> T) -> (u64, T) {
        let before = self.bytes.load(Ordering::Relaxed);
        let result = f();
        (self.bytes.load(Ordering::Relaxed) - before, result)
    }

    /// Tries to make a connection that `f` takes.
    pub fn tries<T>(&self, f: impl FnOnce() -> T) -> (u64, T) {
        let before = self.tries.load(Ordering::Relaxed);
        let result = f();
        (self.tries.load(Ordering::Relaxed) - before, result)
    }

    /// Trips that `f` takes: what is posted together is one.
    #[allow(dead_code, reason = "used by the store's tests")]
    pub fn posts<T>(&self, f: impl FnOnce() -> T) -> (u64, T) {
        let before = self.posts.load(Ordering::Relaxed);
        let result = f();
        (self.posts.load(Ordering::Relaxed) - before, result)
    }

    /// Messages that `f` takes.
    pub fn messages<T>(&self, f: impl FnOnce() -> T) -> (u64, T) {
        let before = self.messages.load(Ordering::Relaxed);
        let result = f();
        (self.messages.load(Ordering::Relaxed) - before, result)
    }
}

pub struct Pods {
    pub fabric: Arc<Fabric>,
    pub hosts: Vec<Arc<Host>>,
    pub users: Vec<Space>,
}

impl Pods {
    /// Nothing moves by itself.
    pub fn new(extents: u64) -> Self {
        let fabric = Arc::new(Fabric {
            nodes: Nodes::default(),
            messages: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            fate: Mutex::new(Fate::Arrives),
            late: Mutex::default(),
            meanwhile: Mutex::default(),
            is_cut: AtomicBool::new(false),
            tries: AtomicU64::new(0),
        });
        let hosts: Vec<_> = (0..2).map(|pod| host(&fabric, pod, part(pod, extents))).collect();
        let mut pods = Self {
            fabric,
            hosts,
            users: Vec::new(),
        };
        for (pod, host) in pods.hosts.iter().enumerate() {
            let peer = Peer {
                pod: PODS[1 - pod].into(),
                channel: pods.channel(pod),
            };
            host.set_peer(2 - pod as u8, peer);
        }
        pods.users = (0..2).map(|pod| pods.user(pod)).collect();
        pods
    }

    /// From one pod to the other.
    fn channel(&self, from: usize) -> Arc<Channel> {
        let hello = Hello {
            space: SPACE,
            part: 2 - from as u8,
            key: KEY,
            pod: PODS[from].into(),
        };
        let lines = Lines(Arc::clone(&self.fabric));
        Arc::new(Channel::new(Arc::new(lines), PODS[1 - from], hello))
    }

    /// A user of both parts by calls, mirrored or not, from whose view the west is away now and then.
    #[allow(dead_code, reason = "used by the store's tests")]
    pub fn far_user(&self, is_mirrored: bool, is_west_away: &Arc<AtomicBool>) -> Space {
        let space = Space::new(SPACE);
        for pod in 0..2 {
            let hello = Hello {
                space: SPACE,
                part: pod as u8 + 1,
                key: KEY,
                pod: "south".into(),
            };
            let gate = Gate {
                is_away: [&Arc::default(), is_west_away][pod].clone(),
                behind: Arc::new(Lines(Arc::clone(&self.fabric))),
            };
            let channel = Channel::new(Arc::new(gate), PODS[pod], hello).mirrored(is_mirrored);
            let far = FarPart {
                number: pod as u8 + 1,
                pod: PODS[pod].into(),
                channel: Arc::new(channel),
            };
            let keeper = Arc::clone(self.hosts[pod].keeper()) as Arc<dyn Keeper>;
            space.attach_far(far, keeper).expect("attached");
        }
        space
    }

    fn user(&self, pod: usize) -> Space {
        let (space, other) = (Space::new(SPACE), 1 - pod);
        let keeper = |n: usize| Arc::clone(self.hosts[n].keeper()) as Arc<dyn Keeper>;
        space
            .attach(Arc::clone(self.hosts[pod].part()), keeper(pod))
            .expect("attached");
        let far = FarPart {
            number: other as u8 + 1,
            pod: PODS[other].into(),
            channel: self.channel(pod),
        };
        space.attach_far(far, keeper(other)).expect("attached");
        space
    }

    pub fn relocate(&self, address: GlobalAddress, to: u8) -> Result<()> {
        relocate(&self.hosts[usize::from(address.part()) - 1], address, to)
    }

    /// What lets another host take the place of a pod's, as after a restart of its memory node.
    pub fn restarting(&self, pod: usize) -> impl FnOnce() -> Arc<Host> + Send + 'static {
        let (fabric, part) = (Arc::clone(&self.fabric), Arc::clone(self.hosts[pod].part()));
        move || host(&fabric, pod, part)
    }

    /// Ends a session as if its process had died.
    pub fn kill(&self, session: &Session) {
        for (part, id) in session.ids() {
            let keeper = self.hosts[usize::from(part) - 1].keeper();
            keeper.end(id).expect("ended");
        }
    }
}

/// Moves the extent of an address, which is one of the host's part.
pub fn relocate(host: &Host, address: GlobalAddress, to: u8) -> Result<()> {
    let extent = address.checked_sub(address.offset().into()).expect("an extent");
    host.relocate(extent, to)
}

fn part(pod: usize, extents: u64) -> Arc<Part> {
    let options = PartOptions {
        space: SPACE,
        part: pod as u8 + 1,
        tenant: 0,
        bytes: (extents + 1) * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    Arc::new(Part::dram(&options).expect("memory"))
}

fn host(fabric: &Fabric, pod: usize, part: Arc<Part>) -> Arc<Host> {
    let options = HostOptions {
        pod: PODS[pod].into(),
        key: KEY,
        every: Nanos::ZERO,
        ..HostOptions::default()
    };
    let host = Host::start(Arc::new(LocalKeeper::new(part).expect("a keeper")), options).expect("a host");
    let hosts = Hosts::default();
    hosts.add(&host);
    fabric.nodes.add(PODS[pod]).serve(Arc::new(hosts));
    Arc::new(host)
}

pub fn at(address: GlobalAddress, bytes: usize) -> GlobalAddress {
    address.checked_add(bytes as u64).expect("inside")
}

pub fn bytes_of(space: &Space, address: GlobalAddress, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    space.read(address, &mut bytes).expect("read");
    bytes
}
