//! Page swapping, as Fastswap (EuroSys 2020) does it: a bounded number of pages of 4 KiB in the host's own memory, all
//! of them on memory nodes.
//!
//! ```text
//!   access ─► mapped? ── yes ─► load or store in own memory
//!               │ no
//!               ▼
//!      fault: processor time ─► a free page, or the clock's next ─► dirty: its write-back begins, unawaited
//!             ─► one-sided read of 4 KiB
//! ```
//!
//! Pods share nothing: each swaps memory of its own, as large as the whole. Hits cost the memory's time and nothing
//! else. A page whose write-back is under way is read again only after it is done.
//!
//! In its favour: no prefetching is needed for random accesses, so none is here; reclaiming costs no time (Fastswap has
//! a processor for it); the swap's lock is held for no time.

use super::rig::{Rig, name};
use super::store::{Costs, Layout, Place, Store, fill};
use cenote_base::rt::{self, Condvar, HashMap, Mutex};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::{Endpoint, Fabric, Posted, Remote, Work};
use cenote_fabric::{Identity, Region, RegionOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// A pod's memory: see the module.
pub struct Swap {
    layout: Layout,
    costs: Costs,
    ways: Vec<(Arc<dyn Endpoint>, Remote)>,
    frames: Region,
    state: Mutex<State>,
    arrived: Condvar,
}

struct State {
    /// By page.
    mapped: HashMap<u64, usize>,
    frames: Vec<Frame>,
    free: Vec<usize>,
    hand: usize,
    /// Pages whose write-back is under way.
    leaving: BTreeMap<u64, Posted>,
    faults: u64,
    hits: u64,
}

#[derive(Clone, Default)]
struct Frame {
    page: u64,
    /// It is being read.
    arriving: bool,
    used: bool,
    dirty: bool,
    /// Threads that copy from it or to it.
    pins: u32,
}

/// What a pod's memory nodes are to hold: a copy of the whole for each pod. The nodes of a pod hold that of the pod
/// before it.
pub fn open(rig: &Rig, pod: usize) -> Swap {
    let layout = rig.shape.layout;
    let port = rig.network.port(pod);
    let far = (pod + layout.pods - 1) % layout.pods;
    let mine = Layout {
        pods: 1,
        servers: layout.servers,
        bytes: layout.bytes,
    };
    let way = |(server, lane): (usize, usize)| {
        rig.register(lane, mine.lane_bytes(), |bytes| fill_lane(mine, server, bytes));
        let endpoint = port.connect(&name(lane)).expect("the node is there");
        (endpoint, rig.remote(lane))
    };
    let ways = layout.of_pod(far).enumerate().map(way).collect();
    let count = (rig.shape.local / PAGE) as usize;
    Swap {
        layout: mine,
        costs: rig.costs,
        ways,
        frames: frames(count as u64 * PAGE),
        state: Mutex::new(State {
            mapped: HashMap::default(),
            frames: vec![Frame::default(); count],
            free: (0..count).rev().collect(),
            hand: 0,
            leaving: BTreeMap::new(),
            faults: 0,
            hits: 0,
        }),
        arrived: Condvar::default(),
    }
}

/// What is in a node's memory before the first write.
pub fn fill_lane(layout: Layout, lane: usize, bytes: &mut [u8]) {
    let segments = bytes.chunks_mut(super::store::SEGMENT as usize);
    for (at, segment) in (0..).step_by(super::store::SEGMENT as usize).zip(segments) {
        fill(layout.at(Place { lane, at }), segment);
    }
}

/// Bytes of the host's own memory.
pub fn frames(bytes: u64) -> Region {
    let header = 4096;
    Region::dram(bytes + header, Identity::default(), RegionOptions::default()).expect("own memory")
}

/// Where frames begin in such a region.
pub const FRAMES_AT: u64 = 4096;

impl State {
    /// The clock's next frame that may go.
    fn victim(&mut self) -> Option<usize> {
        for _ in 0..2 * self.frames.len() {
            self.hand = (self.hand + 1) % self.frames.len();
            let frame = &mut self.frames[self.hand];
            if frame.pins > 0 || frame.arriving {
                continue;
            }
            if !std::mem::take(&mut frame.used) {
                return Some(self.hand);
            }
        }
        None
    }
}

impl Swap {
    fn span(&self, frame: usize, inside: u64, len: u64) -> cenote_fabric::Span<'_> {
        self.frames.span(FRAMES_AT + frame as u64 * PAGE + inside, len)
    }

    /// The frame of a page, pinned; faults it in if it is not there.
    fn pin(&self, page: u64, write: bool) -> Result<usize> {
        let mut state = self.state.lock();
        loop {
            if let Some(at) = state.mapped.get(&page).copied() {
                if state.frames[at].arriving {
                    state = self.arrived.wait(state);
                    continue;
                }
                let frame = &mut state.frames[at];
                frame.pins += 1;
                frame.used = true;
                frame.dirty |= write;
                state.hits += 1;
                return Ok(at);
            }
            let free = state.free.pop();
            let Some(at) = free.or_else(|| state.victim()) else {
                return Err(Error::Full("all pages are in use at once".into()));
            };
            self.evict(&mut state, at);
            state.frames[at] = Frame {
                page,
                arriving: true,
                ..Frame::default()
            };
            state.mapped.insert(page, at);
            state.faults += 1;
            let leaving = state.leaving.remove(&page);
            drop(state);
            let fetched = self.fetch(page, at, leaving);
            state = self.state.lock();
            state.frames[at].arriving = false;
            if let Err(error) = fetched {
                state.mapped.remove(&page);
                state.free.push(at);
                return Err(error);
            }
            self.arrived.notify_all();
        }
    }

    /// A frame's page goes. Of a dirty one the write-back begins.
    fn evict(&self, state: &mut State, at: usize) {
        let frame = state.frames[at].clone();
        if state.mapped.get(&frame.page) != Some(&at) {
            return;
        }
        state.mapped.remove(&frame.page);
        if frame.dirty {
            let mut bytes = vec![0; PAGE as usize];
            // What the card reads, no processor does.
            self.span(at, 0, PAGE).quiet().copy_out(0, &mut bytes);
            let (way, place) = self.way(frame.page);
            let posted = way.0.post(vec![Work::write(way.1, place.at, bytes.into())]);
            state.leaving.retain(|_, posted| !posted.poll());
            state.leaving.insert(frame.page, posted);
        }
    }

    fn way(&self, page: u64) -> (&(Arc<dyn Endpoint>, Remote), Place) {
        let place = self.layout.place(page * PAGE);
        (&self.ways[place.lane], place)
    }

    /// Reads a page into its frame, after its own write-back.
    fn fetch(&self, page: u64, at: usize, leaving: Option<Posted>) -> Result<()> {
        rt::spend(self.costs.fault);
        for work in leaving.into_iter().flat_map(Posted::wait) {
            work.result?;
        }
        let (way, place) = self.way(page);
        let read = Work::read(way.1, place.at, vec![0; PAGE as usize].into());
        let work = way.0.post(vec![read]).wait().pop();
        let work = work.ok_or_else(|| Error::Invalid("an endpoint lost a work".into()))?;
        self.span(at, 0, PAGE).quiet().copy_in(0, &work.into_bytes()?);
        Ok(())
    }

    fn access(&self, at: u64, len: usize, write: bool, f: impl Fn(cenote_fabric::Span<'_>, usize)) -> Result<()> {
        let mut done = 0;
        while done < len as u64 {
            let (page, inside) = ((at + done) / PAGE, (at + done) % PAGE);
            let some = (PAGE - inside).min(len as u64 - done);
            let frame = self.pin(page, write)?;
            f(self.span(frame, inside, some), done as usize);
            self.state.lock().frames[frame].pins -= 1;
            done += some;
        }
        Ok(())
    }
}

impl Store for Swap {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let into_cell = std::cell::RefCell::new(into);
        let len = into_cell.borrow().len();
        self.access(at, len, false, |span, from| {
            let mut into = into_cell.borrow_mut();
            span.copy_out(0, &mut into[from..from + span.len()]);
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.access(at, bytes.len(), true, |span, from| {
            span.copy_in(0, &bytes[from..from + span.len()]);
        })
    }

    fn tells(&self) -> Vec<(&'static str, u64)> {
        let state = self.state.lock();
        vec![("faults", state.faults), ("hits", state.hits)]
    }
}
