//! Remote memory of a world: a memory node behind a network that fails, and what befalls the two.
//!
//! ```text
//!  engine ── port ── network: loss, delay, reordering, cuts ── node: lost and replaced, keys revoked, bits flipped
//!                                                          └── another with slabs, by which the memory grows
//! ```
//!
//! Whatever happens here costs the engine warmth, never a row: so nothing of it excuses an error of a session.

use cenote_base::random::Random;
use std::collections::BTreeMap;
use std::mem::replace;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::rt::Nanos;
use cenote_base::{Error, PAGE_SIZE, Result};
use cenote_buffer::{Growth, RemoteLayout, RemoteProvider, RemoteSize, RemoteSource};
use cenote_fabric::profile;
use cenote_fabric::rdma::{Fabric, Key, Remote, RemoteMemory};

use super::plan::Tier;
use super::shared::Shared;
use crate::rdma::{Faults, MemoryNode, Network, Port};

/// What nodes are called: a new one takes the place of the one before. Where the first part has moved, with how often.
const NODE: &str = "far";
/// The one that slabs lie on.
const SLAB_NODE: &str = "far-slabs";

/// A network and the node on it. Outlives every process.
#[derive(Debug)]
pub struct Far {
    network: Network,
    tier: Tier,
    /// Half of the memories have slabs.
    growth: Option<Growth>,
    /// From which the way may be cut.
    hosts: Range<usize>,
    now: Mutex<Now>,
}

/// The node of the day.
#[derive(Debug)]
struct Now {
    node: MemoryNode,
    name: String,
    memory: Remote,
    /// Where the first part lay before it moved: it is freed when the ways are mended.
    former: Vec<(MemoryNode, Remote)>,
    moves: u64,
    /// Servers that have taken the memory so far: the last of them has it.
    taken: u64,
    cut: bool,
    spoilt: bool,
    slab_node: MemoryNode,
    slabs: BTreeMap<u32, Remote>,
    slabs_cut: bool,
}

/// The process that a port is of.
#[derive(Debug)]
enum Holder {
    Alone,
    /// Which of the servers it is, by when it took the memory first; 0: not yet.
    Server(AtomicU64),
    Reader,
}

/// A host's way.
#[derive(Debug)]
struct FarPort {
    far: Arc<Far>,
    port: Arc<Port>,
    holder: Holder,
}

impl FarPort {
    /// Whether the memory is the holder's still.
    fn check(&self, now: &Now) -> Result<()> {
        match &self.holder {
            Holder::Server(mine) if mine.load(SeqCst) != now.taken => {
                Err(Error::Revoked("another server has the remote memory".into()))
            }
            _ => Ok(()),
        }
    }

    /// The first part, and its node.
    fn first(&self) -> Result<(Remote, String)> {
        let mut now = self.far.now();
        let given_up = || Error::Lost("the memory is given up".into());
        let memory = match &self.holder {
            Holder::Alone => now.memory,
            Holder::Reader => now.node.register_to_read(now.memory.key).ok_or_else(given_up)?,
            Holder::Server(_) => {
                self.take(&mut now)?;
                now.memory = now.node.register_anew(now.memory.key).ok_or_else(given_up)?;
                now.memory
            }
        };
        Ok((memory, now.name.clone()))
    }

    /// The first time it is taken from the server before.
    fn take(&self, now: &mut Now) -> Result<()> {
        if let Holder::Server(mine) = &self.holder
            && mine.load(SeqCst) == 0
        {
            now.taken += 1;
            mine.store(now.taken, SeqCst);
        }
        self.check(now)
    }

    fn slab(&self, slab: u32) -> Result<Remote> {
        let mut now = self.far.now();
        self.check(&now)?;
        let there = now.slabs.get(&slab).copied();
        let anew = match (&self.holder, there) {
            (Holder::Reader, Some(memory)) => return now.slab_node.register_to_read(memory.key).ok_or_else(no_slab),
            (Holder::Reader, None) => return Err(no_slab()),
            (_, there) => there.and_then(|memory| now.slab_node.register_anew(memory.key)),
        };
        // Not granted, or given up with its node.
        let len = self.far.growth.map_or(0, |growth| growth.slab);
        let memory = anew.unwrap_or_else(|| now.slab_node.register(len));
        now.slabs.insert(slab, memory);
        Ok(memory)
    }
}

fn no_slab() -> Error {
    Error::Lost("there is no such slab".into())
}

impl RemoteProvider for FarPort {
    fn connect(&self, _: u128) -> Result<RemoteMemory> {
        let (memory, node) = self.first()?;
        Ok(RemoteMemory::new(self.port.connect(&node)?, memory))
    }

    /// On a node that is reached. Readers may reach the former one still.
    fn elsewhere(&self, _: u128) -> Result<()> {
        if !matches!(self.holder, Holder::Server(_)) {
            return Err(Error::Invalid("the world of one engine has one node".into()));
        }
        let mut now = self.far.now();
        self.take(&mut now)?;
        now.moves += 1;
        now.name = format!("{NODE}-{}", now.moves);
        let node = self.far.network.add_node(&now.name);
        let memory = node.register(self.far.first_len());
        let (node, memory) = (replace(&mut now.node, node), replace(&mut now.memory, memory));
        now.former.push((node, memory));
        now.cut = false;
        Ok(())
    }

    fn slab(&self, _: u128, slab: u32) -> Result<RemoteMemory> {
        let memory = self.slab(slab)?;
        Ok(RemoteMemory::new(self.port.connect(SLAB_NODE)?, memory))
    }

    fn give_back(&self, _: u128, slab: u32) -> Result<()> {
        let mut now = self.far.now();
        self.check(&now)?;
        if let Some(memory) = now.slabs.remove(&slab) {
            now.slab_node.revoke(memory.key);
        }
        Ok(())
    }
}

impl Far {
    /// A network as bad as drawn, and an empty node, which is reached from these hosts.
    pub fn new(tier: Tier, hosts: Range<usize>, draw: &mut Random) -> Arc<Far> {
        let profile = profile::named("rdma").expect("a profile of this program");
        let network = Network::new(&profile, draw.word());
        network.set_faults(faults(draw));
        let growth = (!draw.one_in(2)).then(|| Growth {
            slab: draw.pick(&[10, 40, 150]) * PAGE_SIZE as u64,
            most: draw.pick(&[1, 3, 8]),
            worth: draw.pick(&[1, 1000, 1_000_000]),
        });
        let now = Mutex::new(new_node(&network, tier, growth));
        Arc::new(Far {
            network,
            tier,
            growth,
            hosts,
            now,
        })
    }

    /// Never held at a preemption point.
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way that an engine on `host` is given: it leads to whatever nodes there are when it is asked for.
    pub fn source(self: &Arc<Far>, host: usize) -> RemoteSource {
        self.through(host, Holder::Alone)
    }

    /// The way of a server of a database that has readers: it takes the memory from the one before, whose keys end, and
    /// readers' do. When another has taken it, it is the server's no more.
    pub fn server_source(self: &Arc<Far>, host: usize) -> RemoteSource {
        self.through(host, Holder::Server(AtomicU64::new(0)))
    }

    /// The way of a reader, whose key only reads.
    pub fn reader_source(self: &Arc<Far>, host: usize) -> RemoteSource {
        self.through(host, Holder::Reader)
    }

    fn through(self: &Arc<Far>, host: usize, holder: Holder) -> RemoteSource {
        let is_reader = matches!(holder, Holder::Reader);
        let port = Arc::new(FarPort {
            far: Arc::clone(self),
            port: self.network.port(host),
            holder,
        });
        match self.growth.filter(|_| !is_reader) {
            Some(growth) => RemoteSource::growing(port, growth).expect("slabs of a page at least"),
            None => RemoteSource::of(port),
        }
    }

    fn first_len(&self) -> u64 {
        RemoteLayout::first_len_for(self.tier.slots, self.growth)
    }

    /// How far the memory grows.
    pub fn growth(&self) -> Option<Growth> {
        self.growth
    }

    /// A size that it may have.
    pub fn draw_size(&self, draw: u64) -> RemoteSize {
        let first = RemoteLayout::first_len_for(self.tier.slots, self.growth);
        match self.growth {
            Some(growth) if !draw.is_multiple_of(4) => {
                let slabs = draw / 4 % (u64::from(growth.most) + 1);
                RemoteSize::Bytes(first + slabs * growth.slab)
            }
            _ => RemoteSize::ByNeed,
        }
    }

    /// Whether bits of the node's memory were flipped in this life, or are since an earlier one: a check may say so.
    pub fn is_spoilt(&self) -> bool {
        self.now().spoilt
    }

    /// Whether ways to the first part are cut.
    pub fn is_cut(&self) -> bool {
        self.now().cut
    }

    /// How often the first part has moved.
    pub fn moves(&self) -> u64 {
        self.now().moves
    }

    /// Something happens to the node or to the way there, while an engine uses it.
    pub fn befall(&self, shared: &Shared, draw: &mut Random) {
        match draw.below(if self.growth.is_some() { 14 } else { 8 }) {
            0..3 if self.hosts.len() > 1 && draw.one_in(2) => self.cut_some(shared, draw),
            0..3 => self.cut_or_mend(shared),
            3 => self.replace(shared),
            4 => self.revoke(shared),
            5 => self.flip(shared, draw),
            8..11 => self.cut_or_mend_slabs(shared),
            11 => self.replace_slabs(shared),
            12 => self.revoke_slab(shared, draw),
            13 => self.flip_in_slab(shared, draw),
            _ => {
                shared.befalls("faults: another network");
                self.network.set_faults(faults(draw));
            }
        }
    }

    /// Between two lives: the way is mended, most often, and another node may be there.
    pub fn between_lives(&self, shared: &Shared, draw: &mut Random) {
        if self.now().cut && !draw.one_in(4) {
            self.cut_or_mend(shared);
        }
        if self.now().slabs_cut && !draw.one_in(4) {
            self.cut_or_mend_slabs(shared);
        }
        if draw.one_in(4) {
            self.replace(shared);
            self.now().spoilt = false;
        }
    }

    fn cut_or_mend(&self, shared: &Shared) {
        if !self.cut(shared) {
            self.mend();
        }
    }

    /// The ways are whole.
    pub fn mend(&self) {
        let mut now = self.now();
        (now.cut, now.slabs_cut) = (false, false);
        for host in self.hosts.clone() {
            self.network.mend(host, &now.node);
            self.network.mend(host, &now.slab_node);
        }
        for (node, memory) in std::mem::take(&mut now.former) {
            node.revoke(memory.key);
        }
    }

    /// Some hosts reach the node no more, others do.
    fn cut_some(&self, shared: &Shared, draw: &mut Random) {
        let mut now = self.now();
        shared.befalls("faults: some ways to the memory node cut");
        now.cut = true;
        for host in self.hosts.clone().filter(|_| draw.one_in(2)) {
            self.network.cut(host, &now.node);
        }
    }

    fn cut_or_mend_slabs(&self, shared: &Shared) {
        let mut now = self.now();
        now.slabs_cut = !now.slabs_cut;
        if now.slabs_cut {
            shared.befalls("faults: way to slabs cut");
        }
        for host in self.hosts.clone() {
            match now.slabs_cut {
                true => self.network.cut(host, &now.slab_node),
                false => self.network.mend(host, &now.slab_node),
            }
        }
    }

    /// The node with the slabs is lost; another takes its place.
    fn replace_slabs(&self, shared: &Shared) {
        shared.befalls("faults: node of slabs lost");
        let mut now = self.now();
        now.slab_node.lose();
        now.slab_node = self.network.add_node(SLAB_NODE);
        now.slabs.clear();
        now.slabs_cut = false;
    }

    /// A slab's keys end; its memory stays, and is reached anew.
    fn revoke_slab(&self, shared: &Shared, draw: &mut Random) {
        let mut now = self.now();
        let slabs: Vec<u32> = now.slabs.keys().copied().collect();
        if slabs.is_empty() {
            return;
        }
        shared.befalls("faults: key of a slab revoked");
        let slab = draw.pick(&slabs);
        let anew = now.slab_node.register_anew(now.slabs[&slab].key);
        if let Some(memory) = anew {
            now.slabs.insert(slab, memory);
        }
    }

    fn flip_in_slab(&self, shared: &Shared, draw: &mut Random) {
        let mut now = self.now();
        let slabs: Vec<u32> = now.slabs.keys().copied().collect();
        if slabs.is_empty() {
            return;
        }
        shared.befalls("faults: bits flipped in a slab");
        now.spoilt = true;
        let key = now.slabs[&draw.pick(&slabs)].key;
        flip_bits(&now.slab_node, key, draw);
    }

    /// Cuts the way, and says whether it was whole.
    pub fn cut(&self, shared: &Shared) -> bool {
        let mut now = self.now();
        if now.cut {
            return false;
        }
        shared.befalls("faults: way to the memory node cut");
        now.cut = true;
        self.hosts.clone().for_each(|host| self.network.cut(host, &now.node));
        true
    }

    /// The node is lost with all that is in it; an empty one takes its place, on a way that is whole.
    fn replace(&self, shared: &Shared) {
        shared.befalls("faults: memory node lost");
        let mut now = self.now();
        now.node.lose();
        now.node = self.network.add_node(&now.name);
        now.memory = now.node.register(self.first_len());
        now.cut = false;
    }

    /// The node takes its memory back, and gives out other.
    fn revoke(&self, shared: &Shared) {
        shared.befalls("faults: key revoked");
        let mut now = self.now();
        now.node.revoke(now.memory.key);
        now.memory = now.node.register(self.first_len());
    }

    fn flip(&self, shared: &Shared, draw: &mut Random) {
        shared.befalls("faults: bits flipped in remote memory");
        let mut now = self.now();
        now.spoilt = true;
        flip_bits(&now.node, now.memory.key, draw);
    }
}

fn flip_bits(node: &MemoryNode, key: Key, draw: &mut Random) {
    let bits = draw.pick(&[1, 64, 4000]);
    node.inspect(key, |bytes| {
        for _ in 0..bits {
            bytes[draw.below(bytes.len() as u64) as usize] ^= 1 << draw.below(8);
        }
    });
}

fn new_node(network: &Network, tier: Tier, growth: Option<Growth>) -> Now {
    let node = network.add_node(NODE);
    Now {
        memory: node.register(RemoteLayout::first_len_for(tier.slots, growth)),
        node,
        name: NODE.into(),
        former: Vec::new(),
        moves: 0,
        taken: 0,
        cut: false,
        spoilt: false,
        slab_node: network.add_node(SLAB_NODE),
        slabs: BTreeMap::new(),
        slabs_cut: false,
    }
}

/// Sent again soon, as a rule: a thread that waits for a card does nothing else, and lives are short.
fn faults(draw: &mut Random) -> Faults {
    Faults {
        resend: Nanos::from_micros(draw.pick(&[50, 50, 200, 1000])),
        ..Faults::random(draw.word())
    }
}
