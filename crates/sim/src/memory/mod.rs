//! Memory of simulated hosts and devices.
//!
//! A device is bytes; a host sees it through a *view*, an address range that holds what the host's cache holds of it,
//! and poison elsewhere. Programs read and write views with their ordinary instructions; each access is announced
//! before ([`Device::touch`]), which brings the lines that are not there, and takes others out to make room. So
//! - what was not announced reads poison;
//! - what another host has changed is not seen before the line has left and come again;
//! - what was not flushed reaches memory when the line happens to be evicted, or never, if the host is lost before.
//!
//! ```text
//!    program ── touch ──▶ tag of the line: there, and changed already if it is to be? ── yes ──▶ (nothing)
//!                              │ no                                                    hit: a load and a compare
//!                              ▼
//!        make room: evict a line (to memory, if DIRTY) ─▶ fetch from memory ─▶ charge what links and profile say
//! ```
//!
//! A *coherent* device (for projections) and a host's own memory are their own views: the cache decides what an access
//! costs, and nothing else. The hardware-coherent window of an incoherent device is shared by all views, byte for byte.
//! What sharing costs there, among hosts and among the cores of a host, stands in `state/sharing.rs`.
//!
//! The seed decides what hardware leaves open: which lines are fetched without being asked for, which are evicted
//! early, and which changes a lost host had written back already ([`chance`](self)).
//!
//! One machine thread runs a world, and so its memory: the one that has made it owns it, any other panics.

mod chance;
mod contended;
mod fills;
mod host;
mod maps;
mod owned;
mod report;
mod shared;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod view;

use crate::link::Links;
use crate::topology::Topology;
use crate::views;
use cenote_base::rt::memory::Device;
use shared::Shared;
use state::State;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use view::View;

pub use chance::Chance;
pub(crate) use host::owner;
pub use maps::POISON;
pub use report::{Hazard, HazardKind, Hazards, Lines, ViewTraffic};
pub(crate) use view::OwnedView;

/// Atomics in the view are touches of it from now on.
fn declared(view: Arc<OwnedView>) -> Arc<OwnedView> {
    views::add(&view);
    view
}

/// No thread uses the view any more.
fn withdraw(view: &Arc<OwnedView>) {
    let (host, base, _) = view.get().place();
    views::remove(host, base);
}

/// The memory of a world: all devices, and each host's views of them.
pub(crate) struct Memory {
    shared: Rc<Shared>,
    /// By host, then device.
    views: Vec<Vec<Option<Arc<OwnedView>>>>,
    /// Hosts' own memory, by host and process.
    local: Vec<(usize, u32, Arc<OwnedView>)>,
}

impl Memory {
    /// The devices of a topology, all empty. `seed` is for what the memory itself draws; `machine_check` ends the
    /// running process, which has accessed a device that is gone.
    pub(crate) fn new(topology: &Topology, seed: u64, machine_check: fn()) -> Self {
        let state = State::new(topology, seed);
        let views = topology.hosts.iter().map(|_| vec![None; topology.devices.len()]);
        Self {
            views: views.collect(),
            local: Vec::new(),
            shared: Rc::new(Shared::new(state, machine_check)),
        }
    }

    /// A host's view of the device at a path.
    pub(crate) fn view(&mut self, host: usize, path: &Path) -> Option<Arc<dyn Device>> {
        let device = self.shared.with(|s| s.device_at(path))?;
        // A thread outside of all hosts has no memory.
        let seen = &mut self.views.get_mut(host)?[device];
        if self.shared.with(|s| s.links.device(host, device).is_cut()) {
            return None;
        }
        self.shared.with(|s| s.renew(device));
        let view = seen.get_or_insert_with(|| declared(View::of_device(&self.shared, host, device)));
        Some(Arc::clone(view) as Arc<dyn Device>)
    }

    /// Memory of a host's own, for a process.
    pub(crate) fn local(&mut self, host: usize, process: u32, len: u64) -> Option<Arc<dyn Device>> {
        if host >= self.views.len() {
            return None;
        }
        let view = declared(View::local(&self.shared, host, len)?);
        self.local.push((host, process, Arc::clone(&view)));
        Some(view)
    }

    /// A process has ended or was killed: its device locks are free and its local memory is gone. Lines of devices
    /// stay.
    pub(crate) fn process_ended(&mut self, host: usize, process: u32) {
        self.shared.with(|s| s.unlock_all(host, Some(process)));
        self.local.retain(|(h, p, view)| {
            let ended = (*h, *p) == (host, process);
            if ended {
                withdraw(view);
                view.get().release();
            }
            !ended
        });
    }

    /// A host is lost, after its processes: its dirty lines are lost, or were evicted in time, by what is drawn.
    pub(crate) fn host_lost(&mut self, host: usize) {
        self.shared.with(|s| {
            s.unlock_all(host, None);
            s.host_lost(host);
        });
    }

    /// A device is lost: what was in it is gone, and an access to it is a machine check, until it is opened anew.
    pub(crate) fn device_lost(&mut self, device: usize) {
        self.shared.with(|s| s.device_lost(device));
    }

    /// The links, for faults and reports.
    pub(crate) fn links(&self) -> Arc<Links> {
        self.shared.with(|s| Arc::clone(&s.links))
    }

    /// What every host has done to every device, and to its own memory.
    pub(crate) fn traffic(&self) -> Vec<ViewTraffic> {
        let views = self.views.iter().flatten().flatten();
        let devices = views.map(|view| view.get().traffic());
        let mut all: Vec<ViewTraffic> = devices.collect();
        for host in 0..self.views.len() {
            let mut sum = self.shared.with(|s| s.past_local(host));
            let own = self.local.iter().filter(|(h, ..)| *h == host);
            own.for_each(|(_, _, view)| report::add_to(&mut sum, &view.get().traffic()));
            all.push(sum);
        }
        all
    }

    /// What has gone wrong so far.
    pub(crate) fn hazards(&self) -> Hazards {
        self.shared.with(|s| s.hazards.clone())
    }

    /// The last steps, and what is not in memory, for people; nothing where a call that is under way has failed.
    pub(crate) fn scene(&self, thread: &dyn Fn(usize) -> String) -> Vec<String> {
        match self.shared.is_busy() {
            true => Vec::new(),
            false => self.shared.with(|s| s.scene(thread)),
        }
    }

    /// In place of what the seed has drawn.
    pub(crate) fn set_chance(&mut self, chance: Chance) {
        self.shared.with(|s| s.chance = chance);
        for view in self.views.iter().flatten().flatten() {
            view.get().next_chance();
        }
    }

    /// The bytes that memory holds now, whatever caches hold.
    pub(crate) fn behind_caches(&self, device: usize, off: u64, len: usize) -> Vec<u8> {
        self.shared.with(|s| s.bytes(device, off, len))
    }
}

impl Drop for Memory {
    /// Killed processes never let go of their views: the memory goes all the same.
    fn drop(&mut self) {
        let devices = self.views.iter().flatten().flatten();
        let own = self.local.iter().map(|(_, _, view)| view);
        devices.chain(own).for_each(withdraw);
        self.shared.end();
    }
}
