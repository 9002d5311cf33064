//! A pod's daemon and the rings over which clients ask it (Rcmp, section 5.2), in memory of the pod: one ring for all
//! requests, or two structures.
//!
//! ```text
//!   one layer    [ header │ payload ][ header │ payload … not whole yet ][ header ] …     near and far, in one order
//!   two layers   near:     [ header ][ header ] …                                         a ring of its own
//!                polling:  [ entry ][ entry ] … ─► data: [ payload ][ payload ] …         an entry when its payload is whole
//! ```
//!
//! A near request is a look-up, answered at once. A far one is a write of some bytes, which the daemon posts to its
//! card out of the ring and does not wait for; it is answered when the write is complete, and its room is free then.
//! Room comes back in the order in which it was reserved, as in any ring of bytes.
//!
//! So one layer makes a near request wait for three things: for a payload before it that is not whole, for room, and
//! for nothing else: its daemon waits for no write. (One that did would answer near requests after microseconds.)
//!
//! Positions are bytes since the beginning, and never come again. Record: a line of *position + 1* (0: not whole), what
//! is asked, by whom, payload's bytes and position; then the payload in lines.

use super::rig::{CXL, LOCAL, NETWORK, histogram, impossible, machinery};
use super::store::Costs;
use crate::ycsb::choose::Random;
use crate::{Error, Result};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_fabric::profile::{self, Profile};
use cenote_fabric::rdma::{Endpoint, Fabric, Posted, Remote, Work};
use cenote_fabric::{Identity, LINE, Region, RegionOptions};
use cenote_sim::rdma::Network;
use cenote_sim::{DeviceSpec, Exit, HostSpec, Pace, Topology, World};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// In one ring, with their payloads.
    One,
    /// Near ones in a ring, far ones as entries with payloads beside.
    Two,
}

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Waited {
    /// Requests a second.
    pub rate: f64,
    /// Microseconds of all requests: median, 99th percentile, 999th of a thousand.
    pub all: [f64; 3],
    /// The same of near ones alone.
    pub near: [f64; 3],
}

/// Bytes of a ring.
const RING: u64 = 256 << 10;
/// A client's answers: the number of the last.
const ANSWERS: u64 = 4096;
/// Where rings lie, each with two lines before it: reserved up to, free up to.
const RINGS: u64 = 8192;
const HEAD: u64 = 2 * LINE as u64;
const WHOLE: u64 = 3 * (RING + HEAD) + RINGS;
/// Payloads of far requests.
const SIZES: [u64; 4] = [64, 1 << 10, 4 << 10, 16 << 10];
/// Far requests of a hundred: two racks, memory used alike.
const FAR: u64 = 50;
/// Between two looks.
const TURN: Nanos = Nanos(30);
const LINE_BYTES: u64 = LINE as u64;

/// A request, as it was found in a ring.
#[derive(Debug, Clone, Copy)]
struct Asked {
    client: u64,
    /// Of a far one.
    bytes: u64,
    /// Where its payload begins in its ring.
    payload: u64,
}

/// One ring. Any number of clients put records, one daemon takes them.
#[derive(Clone)]
struct Ring {
    region: Arc<Region>,
    base: u64,
}

impl Ring {
    fn numbered(region: &Arc<Region>, n: u64) -> Ring {
        Ring {
            region: Arc::clone(region),
            base: RINGS + n * (RING + HEAD),
        }
    }

    fn at(&self, position: u64) -> u64 {
        self.base + HEAD + position % RING
    }

    fn word(&self, position: u64, n: u64) -> &cenote_fabric::HostAtomicU64 {
        self.region.atomic_u64(self.at(position) + 8 * n)
    }

    /// Reserves whole lines, in order; waits for room.
    fn reserve(&self, bytes: u64) -> u64 {
        let (tail, free) = (
            self.region.atomic_u64(self.base),
            self.region.atomic_u64(self.base + LINE_BYTES),
        );
        loop {
            let from = tail.load(Ordering::Acquire);
            let used = from - free.load(Ordering::Acquire);
            let taken = used + bytes <= RING
                && tail
                    .compare_exchange(from, from + bytes, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok();
            if taken {
                return from;
            }
            rt::spend(TURN);
            rt::preempt();
        }
    }

    /// Writes a payload from a position on, around the ring's end. It streams: a core does not wait for line by line,
    /// as the simulated one would.
    fn write(&self, position: u64, bytes: &[u8], memory: &Profile) {
        rt::spend(Nanos(memory.write_time(bytes.len() as u64) as u64));
        let until_end = (RING - position % RING).min(bytes.len() as u64);
        let (now, rest) = bytes.split_at(until_end as usize);
        self.region.span(self.at(position), until_end).quiet().copy_in(0, now);
        if !rest.is_empty() {
            self.region
                .span(self.base + HEAD, rest.len() as u64)
                .quiet()
                .copy_in(0, rest);
        }
    }

    /// A payload as the card reads it: no processor does.
    fn read_by_card(&self, asked: &Asked) -> Vec<u8> {
        let mut bytes = vec![0; asked.bytes as usize];
        let until_end = (RING - asked.payload % RING).min(asked.bytes);
        let (now, rest) = bytes.split_at_mut(until_end as usize);
        self.region
            .span(self.at(asked.payload), until_end)
            .quiet()
            .copy_out(0, now);
        if !rest.is_empty() {
            let begin = self.region.span(self.base + HEAD, rest.len() as u64);
            begin.quiet().copy_out(0, rest);
        }
        bytes
    }

    /// A record is whole from here on.
    fn put(&self, position: u64, asked: Asked) {
        for (n, word) in [(1, asked.client), (2, asked.bytes), (3, asked.payload)] {
            self.word(position, n).store(word, Ordering::Relaxed);
        }
        self.word(position, 0).store(position + 1, Ordering::Release);
    }

    /// The record there, if it is whole.
    fn look(&self, position: u64) -> Option<Asked> {
        if self.word(position, 0).load(Ordering::Acquire) != position + 1 {
            return None;
        }
        let word = |n| self.word(position, n).load(Ordering::Relaxed);
        Some(Asked {
            client: word(1),
            bytes: word(2),
            payload: word(3),
        })
    }

    fn free_to(&self, position: u64) {
        let free = self.region.atomic_u64(self.base + LINE_BYTES);
        free.store(position, Ordering::Release);
    }
}

/// Room of a ring, which is free up to a position: what is given back behind it waits for what is before it.
#[derive(Default)]
struct Room {
    free: u64,
    given: BTreeMap<u64, u64>,
}

impl Room {
    /// Whether more of the ring is free than before.
    fn give_back(&mut self, (begin, end): (u64, u64)) -> bool {
        self.given.insert(begin, end);
        let before = self.free;
        while let Some(end) = self.given.remove(&self.free) {
            self.free = end;
        }
        self.free > before
    }
}

fn lines(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE_BYTES)
}

/// Rings by layers. With one, all three are the first.
#[derive(Clone)]
struct Rings {
    layers: Layers,
    near: Ring,
    polling: Ring,
    data: Ring,
    memory: Profile,
}

impl Rings {
    fn new(layers: Layers, region: &Arc<Region>) -> Self {
        let ring = |n| match layers {
            Layers::One => Ring::numbered(region, 0),
            Layers::Two => Ring::numbered(region, n),
        };
        Self {
            layers,
            near: ring(0),
            polling: ring(1),
            data: ring(2),
            memory: profile::named(CXL).expect("a built-in profile"),
        }
    }

    fn ask_near(&self, client: u64) {
        let at = self.near.reserve(LINE_BYTES);
        let (bytes, payload) = (0, at);
        let asked = Asked { client, bytes, payload };
        self.near.put(at, asked);
    }

    fn ask_far(&self, client: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let (entry, payload) = match self.layers {
            Layers::One => {
                let at = self.near.reserve(LINE_BYTES + lines(len));
                (Some(at), at + LINE_BYTES)
            }
            Layers::Two => (None, self.data.reserve(lines(len))),
        };
        self.data.write(payload, bytes, &self.memory);
        let entry = entry.unwrap_or_else(|| self.polling.reserve(LINE_BYTES));
        let bytes = len;
        self.polling.put(entry, Asked { client, bytes, payload });
    }
}

/// What a ring's reader has read.
struct Reader {
    ring: Ring,
    next: u64,
    room: Room,
}

impl Reader {
    fn new(ring: &Ring) -> Self {
        Self {
            ring: ring.clone(),
            next: 0,
            room: Room::default(),
        }
    }

    fn give_back(&mut self, room: (u64, u64)) {
        if self.room.give_back(room) {
            self.ring.free_to(self.room.free);
        }
    }
}

/// A write, what asked for it, and the room that it needs until it is done.
type PostedWrite = (Posted, Asked, (u64, u64));

/// The program that serves a pod's clients.
struct Daemon {
    rings: Rings,
    region: Arc<Region>,
    readers: Vec<Reader>,
    /// Room of payloads that lie in a ring of their own.
    data: Reader,
    card: Arc<dyn Endpoint>,
    memory: Remote,
    posted: Vec<PostedWrite>,
    costs: Costs,
}

impl Daemon {
    fn run(&mut self, clients: &AtomicU64) {
        while clients.load(Ordering::Acquire) > 0 {
            let mut found = self.complete();
            for n in 0..self.readers.len() {
                found |= self.take(n);
            }
            if !found {
                rt::spend(TURN);
            }
            rt::preempt();
        }
    }

    /// Takes the next request of a ring, if it is whole.
    fn take(&mut self, n: usize) -> bool {
        let reader = &mut self.readers[n];
        let at = reader.next;
        let Some(asked) = reader.ring.look(at) else {
            return false;
        };
        let is_inside = self.rings.layers == Layers::One;
        reader.next += LINE_BYTES + if is_inside { lines(asked.bytes) } else { 0 };
        let record = (at, reader.next);
        rt::spend(self.costs.access);
        if asked.bytes == 0 {
            reader.give_back(record);
            self.answer(asked.client);
            return true;
        }
        let (ring, room) = match is_inside {
            true => (&self.rings.near, record),
            false => {
                reader.give_back(record);
                (&self.rings.data, (asked.payload, asked.payload + lines(asked.bytes)))
            }
        };
        let write = Work::write(self.memory, asked.client * SIZES[3], ring.read_by_card(&asked).into());
        self.posted.push((self.card.post(vec![write]), asked, room));
        true
    }

    /// Answers far requests that are done, in any order.
    fn complete(&mut self) -> bool {
        let mut done = Vec::new();
        self.posted.retain_mut(|(write, asked, room)| {
            let is_done = write.poll();
            if is_done {
                done.push((*asked, *room));
            }
            !is_done
        });
        for (asked, room) in &done {
            match self.rings.layers {
                Layers::One => self.readers[0].give_back(*room),
                Layers::Two => self.data.give_back(*room),
            }
            self.answer(asked.client);
        }
        !done.is_empty()
    }

    fn answer(&self, client: u64) {
        let word = self.region.atomic_u64(ANSWERS + client * LINE_BYTES);
        word.fetch_add(1, Ordering::AcqRel);
    }
}

/// What clients have measured.
struct Counted {
    all: Mutex<(Histogram<u64>, Histogram<u64>)>,
    clients: AtomicU64,
}

fn ask_on(rings: &Rings, client: u64, seed: u64, (begin, end): (Nanos, Nanos), counted: &Counted) {
    let (mut dice, mut turn) = (Random::new(seed ^ (client << 8 | 1)), 0);
    let answers = rings.near.region.atomic_u64(ANSWERS + client * LINE_BYTES);
    let (mut all, mut near) = (histogram(), histogram());
    while rt::now() < end {
        let (before, is_far) = (rt::now(), dice.below(100) < FAR);
        match is_far {
            true => {
                let size = SIZES[dice.below(SIZES.len() as u64) as usize];
                rings.ask_far(client, &vec![client as u8; size as usize]);
            }
            false => rings.ask_near(client),
        }
        turn += 1;
        while answers.load(Ordering::Acquire) < turn {
            rt::spend(TURN);
            rt::preempt();
        }
        let now = rt::now();
        if before >= begin && now < end {
            let took = now.since(before).raw().max(1);
            all.record(took).expect("it grows as needed");
            if !is_far {
                near.record(took).expect("it grows as needed");
            }
        }
    }
    let mut counted_all = counted.all.lock();
    counted_all.0.add(&all).expect("of the same kind");
    counted_all.1.add(&near).expect("of the same kind");
    drop(counted_all);
    counted.clients.fetch_sub(1, Ordering::AcqRel);
}

fn topology() -> Result<Topology> {
    let host = HostSpec {
        memory: profile::named(LOCAL).map_err(impossible)?,
        ..HostSpec::new("pod", 80)
    };
    let device = DeviceSpec {
        coherent: true,
        ..DeviceSpec::new("rings", WHOLE.next_multiple_of(2 << 20), CXL).map_err(impossible)?
    };
    let hosts = vec![host];
    Ok(Topology {
        hosts,
        ..Topology::default()
    }
    .with_device(device))
}

/// The body of the pod's process.
fn pod(layers: Layers, network: &Network, memory: Remote, clients: u64, window: Nanos, seed: u64) -> Waited {
    let path = std::path::Path::new("/dev/sim/rings");
    let region = Region::create_new(path, WHOLE, Identity::default(), RegionOptions::default());
    let region = Arc::new(region.expect("the device is there"));
    let rings = Rings::new(layers, &region);
    let counted = Arc::new(Counted {
        all: Mutex::new((histogram(), histogram())),
        clients: AtomicU64::new(clients),
    });
    let readers = match layers {
        Layers::One => vec![Reader::new(&rings.near)],
        Layers::Two => vec![Reader::new(&rings.near), Reader::new(&rings.polling)],
    };
    let mut daemon = Daemon {
        data: Reader::new(&rings.data),
        rings: rings.clone(),
        region,
        readers,
        card: network.port(0).connect("memory").expect("the node is there"),
        memory,
        posted: Vec::new(),
        costs: Costs::default(),
    };
    let begin = rt::now() + Nanos::from_micros(100);
    let asking = (0..clients).map(|client| {
        let (rings, counted) = (rings.clone(), Arc::clone(&counted));
        rt::spawn("client", move || {
            ask_on(&rings, client, seed, (begin, begin + window), &counted);
        })
    });
    let asking: Vec<_> = asking.collect();
    daemon.run(&counted.clients);
    for client in asking {
        if let Err(panic) = client.join() {
            std::panic::resume_unwind(panic);
        }
    }
    let all = counted.all.lock();
    Waited {
        rate: all.0.len() as f64 / window.as_secs_f64(),
        all: percentiles(&all.0),
        near: percentiles(&all.1),
    }
}

fn percentiles(of: &Histogram<u64>) -> [f64; 3] {
    [0.5, 0.99, 0.999].map(|quantile| of.value_at_quantile(quantile) as f64 / 1e3)
}

/// Runs so many clients of a pod, half of whose requests are far.
///
/// # Errors
/// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn run(layers: Layers, clients: u64, window: Nanos, seed: u64) -> Result<Waited> {
    let profile = profile::named(NETWORK).map_err(impossible)?;
    let world = World::new(seed, Pace::Project, topology()?).map_err(impossible)?;
    let found = Arc::new(std::sync::Mutex::new(None));
    let told = Arc::clone(&found);
    let exit = world.with_machinery(machinery()).run(|w| {
        let network = Network::new(&profile, seed);
        let memory = network.add_node("memory").register(clients * SIZES[3]);
        let body = move || {
            let waited = pod(layers, &network, memory, clients, window, seed);
            *told.lock().expect("no thread panics with it") = Some(waited);
        };
        w.process(0, "pod", body).join()
    });
    let found = found.lock().expect("no thread panics with it").take();
    match (exit.value, found) {
        (Exit::Returned, Some(waited)) => Ok(waited),
        (exit, _) => Err(Error::Simulation(format!("{layers:?}: the pod has ended: {exit:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_over_either_and_the_same_seed_runs_the_same() {
        for layers in [Layers::One, Layers::Two] {
            let once = run(layers, 6, Nanos::from_micros(400), 3).expect("a run");
            assert!(once.rate > 1e6 && once.near[0] < once.all[2], "{layers:?}: {once:?}");
            assert_eq!(once, run(layers, 6, Nanos::from_micros(400), 3).expect("a run"));
        }
    }

    #[test]
    fn room_comes_back_in_order() {
        let mut room = Room::default();
        assert!(!room.give_back((64, 192)), "what is before it is in use");
        assert!(room.give_back((0, 64)) && room.free == 192);
        assert!(room.give_back((192, 256)) && room.free == 256 && room.given.is_empty());
    }
}
