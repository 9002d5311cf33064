//! CXL over Ethernet, as the paper's prototype: clients hand each access to a proxy of their pod, which carries it over
//! the network. Nothing is cached.
//!
//! ```text
//!   client ─ two lines of shared memory ─► proxy: sends ─ one-sided read or write ─► memory node
//!   client ◄──────── two lines ─────────── proxy: completes ◄──────────────────────────┘
//! ```
//!
//! All memory is at the far end, that of the own pod too. A proxy has two threads, so that many accesses are under way
//! at once.

use super::rig::{CXL, Rig, name};
use super::store::{Layout, Store};
use super::swap::fill_lane;
use cenote_base::rt::{self, Condvar, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::profile;
use cenote_fabric::rdma::{Endpoint, Fabric, Posted, Remote, Work};
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue that its reader waits at. `None` ends it.
struct Queue<T> {
    items: Mutex<VecDeque<Option<T>>>,
    more: Condvar,
}

impl<T> Queue<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            items: Mutex::new(VecDeque::new()),
            more: Condvar::default(),
        })
    }

    fn add(&self, item: Option<T>) {
        self.items.lock().push_back(item);
        self.more.notify_all();
    }

    fn next(&self) -> Option<T> {
        let mut items = self.items.lock();
        loop {
            match items.pop_front() {
                Some(item) => return item,
                None => items = self.more.wait(items),
            }
        }
    }
}

/// An access that a client waits for.
struct Asked {
    lane: usize,
    work: Work,
    reply: Arc<Reply>,
}

#[derive(Default)]
struct Reply {
    done: Event,
    work: Mutex<Option<Work>>,
}

/// A pod's memory: all of it beyond its proxies.
pub struct Ethernet {
    layout: Layout,
    memory: Vec<Remote>,
    proxies: Vec<Arc<Queue<Asked>>>,
    /// A line from one processor to another.
    line: Nanos,
}

/// Starts a pod's proxies: as many as it has memory nodes. A client's accesses to a node go through the proxy of the
/// same number.
pub fn open(rig: &Rig, pod: usize) -> Ethernet {
    let layout = rig.shape.layout;
    for lane in layout.of_pod(pod) {
        rig.register(lane, layout.lane_bytes(), |bytes| fill_lane(layout, lane, bytes));
    }
    while rig.memory.iter().any(|memory| memory.get().is_none()) {
        rt::sleep(Nanos::from_micros(1));
    }
    let port = rig.network.port(pod);
    let connect = |lane: usize| port.connect(&name(lane)).expect("the node is there");
    let proxy = |_| start_proxy((0..layout.lanes()).map(connect).collect(), rig.costs.message);
    let line = profile::named(CXL).expect("a built-in profile").load_latency_ns;
    Ethernet {
        layout,
        memory: (0..layout.lanes()).map(|lane| rig.remote(lane)).collect(),
        proxies: (0..layout.servers).map(proxy).collect(),
        line: Nanos(line as u64),
    }
}

fn start_proxy(ways: Vec<Arc<dyn Endpoint>>, cost: Nanos) -> Arc<Queue<Asked>> {
    let (asked, sent) = (Queue::<Asked>::new(), Queue::<(Posted, Arc<Reply>)>::new());
    let (theirs, on_the_way) = (Arc::clone(&asked), Arc::clone(&sent));
    rt::spawn("proxy", move || {
        while let Some(Asked { lane, work, reply }) = theirs.next() {
            rt::spend(cost);
            sent.add(Some((ways[lane].post(vec![work]), reply)));
        }
        sent.add(None);
    });
    rt::spawn("proxy", move || {
        while let Some((posted, reply)) = on_the_way.next() {
            let work = posted.wait().pop();
            rt::spend(cost);
            *reply.work.lock() = work;
            reply.done.set();
        }
    });
    asked
}

impl Ethernet {
    /// Hands it to the proxy, and waits.
    fn carry(&self, lane: usize, work: Work) -> Result<Work> {
        let reply = self.hand(lane, work);
        self.take(&reply)
    }

    fn hand(&self, lane: usize, work: Work) -> Arc<Reply> {
        let reply = Arc::new(Reply::default());
        rt::spend(self.line + self.line);
        self.proxies[lane / self.layout.pods].add(Some(Asked {
            lane,
            work,
            reply: Arc::clone(&reply),
        }));
        reply
    }

    fn take(&self, reply: &Reply) -> Result<Work> {
        reply.done.wait();
        rt::spend(self.line + self.line);
        let work = reply.work.lock().take();
        work.ok_or_else(|| Error::Invalid("a proxy lost a work".into()))
    }

    fn read_work(&self, at: u64, len: usize) -> (usize, Work) {
        let place = self.layout.place(at);
        (
            place.lane,
            Work::read(self.memory[place.lane], place.at, vec![0; len].into()),
        )
    }
}

impl Drop for Ethernet {
    fn drop(&mut self) {
        self.proxies.iter().for_each(|proxy| proxy.add(None));
    }
}

impl Store for Ethernet {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let (lane, work) = self.read_work(at, into.len());
        into.copy_from_slice(&self.carry(lane, work)?.into_bytes()?);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        let place = self.layout.place(at);
        let work = Work::write(self.memory[place.lane], place.at, from.into());
        self.carry(place.lane, work)?.result.map(drop)
    }

    fn read_many(&self, at: &[u64], into: &mut [Vec<u8>]) -> Result<()> {
        let hand = |(at, into): (&u64, &Vec<u8>)| {
            let (lane, work) = self.read_work(*at, into.len());
            self.hand(lane, work)
        };
        let replies: Vec<_> = at.iter().zip(into.iter()).map(hand).collect();
        for (reply, into) in replies.iter().zip(into) {
            into.copy_from_slice(&self.take(reply)?.into_bytes()?);
        }
        Ok(())
    }
}
