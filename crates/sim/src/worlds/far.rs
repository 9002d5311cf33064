//! Remote memory of a world: a memory node behind a network that fails, and what befalls the two.
//!
//! ```text
//!  engine ── port ── network: loss, delay, reordering, cuts ── node: lost and replaced, keys revoked, bits flipped
//! ```
//!
//! Whatever happens here costs the engine warmth, never a row: so nothing of it excuses an error of a session.

use cenote_base::random::Random;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_buffer::{RemoteLayout, RemoteSource};
use cenote_fabric::profile;
use cenote_fabric::rdma::{Fabric, Remote, RemoteMemory};

use super::plan::Tier;
use super::shared::Shared;
use crate::rdma::{Faults, MemoryNode, Network, Port};

/// What nodes are called: a new one takes the place of the one before.
const NODE: &str = "far";

/// A network and the node on it. Outlives every process.
#[derive(Debug)]
pub struct Far {
    network: Network,
    tier: Tier,
    /// From which the way may be cut.
    hosts: Range<usize>,
    now: Mutex<Now>,
}

/// The node of the day.
#[derive(Debug)]
struct Now {
    node: MemoryNode,
    memory: Remote,
    /// Servers that have taken the memory so far: the last of them has it.
    taken: u64,
    cut: bool,
    spoilt: bool,
}

impl Far {
    /// A network as bad as drawn, and an empty node, which is reached from these hosts.
    pub fn new(tier: Tier, hosts: Range<usize>, draw: &mut Random) -> Arc<Far> {
        let profile = profile::named("rdma").expect("a profile of this program");
        let network = Network::new(&profile, draw.word());
        network.set_faults(faults(draw));
        let now = Mutex::new(new_node(&network, tier));
        Arc::new(Far {
            network,
            tier,
            hosts,
            now,
        })
    }

    /// Never held at a preemption point.
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way that an engine on `host` is given: it leads to whatever node there is when it is asked for.
    pub fn source(self: &Arc<Far>, host: usize) -> RemoteSource {
        let (far, port) = (Arc::clone(self), self.network.port(host));
        RemoteSource::new(move |_| far.connect(&port))
    }

    fn connect(&self, port: &Arc<Port>) -> Result<RemoteMemory> {
        let memory = self.now().memory;
        Ok(RemoteMemory::new(port.connect(NODE)?, memory))
    }

    /// The way of a server of a database that has readers: it takes the memory from the one before, whose keys end, and
    /// readers' do. When another has taken it, it is the server's no more.
    pub fn server_source(self: &Arc<Far>, host: usize) -> RemoteSource {
        let (far, port, mine) = (Arc::clone(self), self.network.port(host), AtomicU64::new(0));
        RemoteSource::new(move |_| {
            let memory = far.take(&mine)?;
            Ok(RemoteMemory::new(port.connect(NODE)?, memory))
        })
    }

    fn take(&self, mine: &AtomicU64) -> Result<Remote> {
        let mut now = self.now();
        match mine.load(SeqCst) {
            0 => {
                now.taken += 1;
                mine.store(now.taken, SeqCst);
            }
            taken if taken == now.taken => {}
            _ => return Err(Error::Revoked("another server has the remote memory".into())),
        }
        let anew = now.node.register_anew(now.memory.key);
        now.memory = anew.ok_or_else(|| Error::Lost("the memory is given up".into()))?;
        Ok(now.memory)
    }

    /// The way of a reader, whose key only reads.
    pub fn reader_source(self: &Arc<Far>, host: usize) -> RemoteSource {
        let (far, port) = (Arc::clone(self), self.network.port(host));
        RemoteSource::new(move |_| {
            let memory = {
                let now = far.now();
                now.node.register_to_read(now.memory.key)
            };
            let memory = memory.ok_or_else(|| Error::Lost("the memory is given up".into()))?;
            Ok(RemoteMemory::new(port.connect(NODE)?, memory))
        })
    }

    /// Whether bits of the node's memory were flipped in this life, or are since an earlier one: a check may say so.
    pub fn is_spoilt(&self) -> bool {
        self.now().spoilt
    }

    /// Something happens to the node or to the way there, while an engine uses it.
    pub fn befall(&self, shared: &Shared, draw: &mut Random) {
        match draw.below(8) {
            0..3 => self.cut_or_mend(shared),
            3 => self.replace(shared),
            4 => self.revoke(shared),
            5 => self.flip(shared, draw),
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

    /// The way is whole.
    pub fn mend(&self) {
        let mut now = self.now();
        now.cut = false;
        self.hosts.clone().for_each(|host| self.network.mend(host, &now.node));
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
        let (spoilt, taken) = (now.spoilt, now.taken);
        *now = new_node(&self.network, self.tier);
        (now.spoilt, now.taken) = (spoilt, taken);
    }

    /// The node takes its memory back, and gives out other.
    fn revoke(&self, shared: &Shared) {
        shared.befalls("faults: key revoked");
        let mut now = self.now();
        now.node.revoke(now.memory.key);
        now.memory = now.node.register(RemoteLayout::len_for(self.tier.slots));
    }

    fn flip(&self, shared: &Shared, draw: &mut Random) {
        shared.befalls("faults: bits flipped in remote memory");
        let mut now = self.now();
        now.spoilt = true;
        let bits = draw.pick(&[1, 64, 4000]);
        now.node.inspect(now.memory.key, |bytes| {
            for _ in 0..bits {
                bytes[draw.below(bytes.len() as u64) as usize] ^= 1 << draw.below(8);
            }
        });
    }
}

fn new_node(network: &Network, tier: Tier) -> Now {
    let node = network.add_node(NODE);
    Now {
        memory: node.register(RemoteLayout::len_for(tier.slots)),
        node,
        taken: 0,
        cut: false,
        spoilt: false,
    }
}

/// Sent again soon, as a rule: a thread that waits for a card does nothing else, and lives are short.
fn faults(draw: &mut Random) -> Faults {
    Faults {
        resend: Nanos::from_micros(draw.pick(&[50, 50, 200, 1000])),
        ..Faults::random(draw.word())
    }
}
