//! Mirrors of simulated instances on a memory node that they reach by cards (`fabric`'s own [`RemoteMirror`] over the
//! profile `rdma`): what a mirror on another machine costs.

use crate::{Error, Result};
use cenote_base::rt::Nanos;
use cenote_engine::{EngineOptions, Survive};
use cenote_fabric::mirror::{JOURNAL, RemoteMirror, RemoteOptions};
use cenote_fabric::rdma::{Fabric, Remote, RemoteMemory};
use cenote_fabric::{MirrorKeeper, Region, profile};
use cenote_sim::rdma::{Network, Port};
use std::sync::Arc;

/// What an instance's memory survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// The process.
    Process,
    /// The host, which loses its caches.
    Host,
    /// The host with its memory: there is a mirror on another machine.
    Mirrored,
}

/// How instances survive that.
#[derive(Default)]
pub(crate) struct Mirrors {
    survives_host: bool,
    /// The way to each one's mirror.
    mirrors: Vec<Arc<CardMirror>>,
}

impl Mirrors {
    /// A memory node for the mirrors of so many instances of so much memory each.
    ///
    /// # Errors
    /// [`Error::Simulation`]: there is no such profile.
    pub(crate) fn of(survival: Survival, instances: usize, bytes: u64, seed: u64) -> Result<Self> {
        let network = Network::new(
            &profile::named("rdma").map_err(|error| Error::Simulation(error.to_string()))?,
            seed,
        );
        network.share_card(0..instances);
        let node = network.add_node(NODE);
        let mirror = |instance| CardMirror {
            port: network.port(instance),
            memory: node.register(bytes),
            journal: node.register(JOURNAL),
        };
        let count = if survival == Survival::Mirrored { instances } else { 0 };
        Ok(Self {
            survives_host: survival != Survival::Process,
            mirrors: (0..count).map(|instance| Arc::new(mirror(instance))).collect(),
        })
    }

    /// The same options, of an instance that survives that.
    pub(crate) fn give(&self, instance: usize, mut options: EngineOptions) -> EngineOptions {
        if self.survives_host {
            options.survive = Survive::Host;
        }
        options.mirror = self.mirrors.get(instance).map(|mirror| Arc::clone(mirror) as _);
        options
    }
}

const NODE: &str = "mirrors";

/// A mirror that is filled when its region is opened, before there is a load.
struct CardMirror {
    port: Arc<Port>,
    memory: Remote,
    journal: Remote,
}

impl core::fmt::Debug for CardMirror {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a mirror over host {}'s card", self.port.host())
    }
}

impl MirrorKeeper for CardMirror {
    fn before_making(&self) -> cenote_base::Result<()> {
        Ok(())
    }

    fn begin(&self, region: &Arc<Region>) -> cenote_base::Result<()> {
        region.expect_mirror();
        let endpoint = self.port.connect(NODE)?;
        let options = RemoteOptions {
            believed: false,
            patience: Nanos::from_secs(1),
            on_lost: Box::new(|error| eprintln!("a simulated mirror: {error}")),
        };
        let memory = RemoteMemory::new(Arc::clone(&endpoint), self.memory);
        let mirror = RemoteMirror::begin(memory, RemoteMemory::new(endpoint, self.journal), options)?;
        let mirror = Arc::new(mirror);
        region.attach_mirror(Arc::clone(&mirror) as _)?;
        let mut at = 0;
        loop {
            match region.fill_mirror_step(at) {
                next if next == at => break,
                next => at = next,
            }
        }
        mirror.set_whole();
        mirror.lost().map_or(Ok(()), Err)
    }
}
