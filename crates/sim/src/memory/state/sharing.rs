//! What sharing a line costs where hardware keeps it coherent: among hosts, and among the cores of a host.
//!
//! **Among hosts**, for lines of coherent devices and of windows. A host's tag is its state; whether a line that it has
//! is its alone is looked up when it matters, as the device's directory would:
//!
//! ```text
//!              read, no other host has it          write: nothing to ask
//!   Invalid ─────────────────────────▶ Exclusive ────────────────────────▶ Modified
//!     ▲ │                                  │ another host reads                │ another host reads: written back by force
//!     │ └── read, others have it ──▶ Shared ◀──────────────────────────────────┘   [share_with_hosts: snoop]
//!     │                                │ write: the others lose it
//!     │                                └──────────────────────────────▶ Modified   [take_from_hosts: request + snoop]
//!     └── another host writes, from any state; Modified is written back before     [take_from_hosts: snoop, on top of its own miss]
//! ```
//!
//! **Among the cores of a host**, for all lines in its cache. The owner bits of the tag say which cores have it in a
//! cache of its own:
//!
//! ```text
//!   core c brings it ──▶ c alone ── c reads, writes ──▶ (free: a hit)
//!                           │ d reads: c has not changed it ──▶ any core (free)
//!                           │ d reads: c has changed it ──────▶ some: {c, d}   [transfer]
//!                           └ d writes ───────────────────────▶ d alone        [transfer]
//!   some ── e reads, is not among them ──▶ some, and e                         [load]
//!   some, any core ── c writes ──────────▶ c alone: the others lose it         [transfer]
//! ```
//!
//! Transfers and snoops of one line queue: a line is at one place at a time, so that a word that all change costs each
//! of them the time of those before. Loads of what several have do not: the cache that all share serves them.
//!
//! Times are the profile's: `core_transfer_ns`, `core_load_ns` of the host's own memory, `snoop_ns` of the device.

use super::super::host::{DIRTY, Id, OWNER, PRESENT, SOME, Tag, core_bit};
use super::super::report::Lines;
use super::{State, ViewId, Who};
use crate::clock;
use cenote_base::rt::Nanos;

impl State {
    /// Whether hardware keeps a line the same for all hosts.
    pub(super) fn is_shared(&self, host: usize, id: ViewId, line: Id) -> bool {
        let view = self.view(host, id);
        view.coherent || line - view.first < view.window_lines
    }

    /// A line's name among all lines of the world; never 0.
    fn name_of(&self, host: usize, id: ViewId, line: Id) -> u64 {
        let view = self.view(host, id);
        match view.device {
            Some(device) if self.is_shared(host, id, line) => (device as u64 + 1) << 40 | u64::from(line - view.first),
            _ => 1 << 63 | (host as u64) << 40 | u64::from(line),
        }
    }

    /// Another host that has a view of the line's device, by number: itself, its view, and the line there.
    fn other(&self, host: usize, id: ViewId, line: Id, number: usize) -> Option<(usize, ViewId, Id)> {
        let view = self.view(host, id);
        let (other, theirs) = *self.devices[view.device?].views.get(number)?;
        let line = self.view(other, theirs).first + (line - view.first);
        (other != host).then_some((other, theirs, line))
    }

    fn views_of(&self, host: usize, id: ViewId, line: Id) -> usize {
        let device = self.view(host, id).device;
        let shared = device.filter(|_| self.is_shared(host, id, line));
        shared.map_or(0, |device| self.devices[device].views.len())
    }

    /// Changes of another host go to memory, over its own way.
    fn force_back(&mut self, (other, theirs, line): (usize, ViewId, Id), now: Nanos) {
        self.count(other, theirs, line, Lines { fetched: 0, written: 1 });
        self.view(other, theirs).medium.write_back(now, 1, true);
    }

    /// A host reads a line that has just come: the host that has changed it writes it back, and shares it from now on.
    pub(super) fn share_with_hosts(&mut self, host: usize, id: ViewId, line: Id, who: Who) -> Nanos {
        for number in 0..self.views_of(host, id, line) {
            let Some(other) = self.other(host, id, line, number) else {
                continue;
            };
            let cache = &mut self.hosts[other.0].cache;
            let tag = cache.tag(other.2);
            if tag & DIRTY != 0 {
                cache.set_tag(other.2, tag & !DIRTY);
                self.force_back(other, who.1);
                return self.snoop(host, id, line, who.1);
            }
        }
        Nanos::ZERO
    }

    /// A host writes to a line, which it has unless `is_new`: the others lose theirs.
    pub(super) fn take_from_hosts(&mut self, host: usize, id: ViewId, line: Id, is_new: bool, who: Who) -> Nanos {
        let mut held = false;
        for number in 0..self.views_of(host, id, line) {
            let Some(other) = self.other(host, id, line, number) else {
                continue;
            };
            let cache = &mut self.hosts[other.0].cache;
            let tag = cache.tag(other.2);
            cache.set_tag(other.2, 0);
            held |= tag & PRESENT != 0;
            if tag & DIRTY != 0 {
                self.force_back(other, who.1);
            }
        }
        if !held {
            return Nanos::ZERO;
        }
        // A write that misses asks along with its fetch; one that has the line asks the device for leave.
        let request = match is_new {
            true => Nanos::ZERO,
            false => Nanos(self.view(host, id).medium.profile().load_latency_ns as u64),
        };
        request + self.snoop(host, id, line, who.1)
    }

    /// The device asks those that have a line, and waits for their answers: all at once.
    fn snoop(&mut self, host: usize, id: ViewId, line: Id, now: Nanos) -> Nanos {
        let takes = Nanos(self.view(host, id).medium.profile().snoop_time() as u64);
        let name = self.name_of(host, id, line);
        self.contended.pass(name, now, takes)
    }

    /// The running thread's core uses a line of its host's cache: which cores have it then, and what that takes.
    pub(super) fn pass_to_core(&mut self, host: usize, id: ViewId, line: Id, write: bool, who: Who) -> (Tag, Nanos) {
        let (tag, me) = (self.hosts[host].cache.tag(line), clock::owner());
        match tag & OWNER {
            owner if owner == me => (me, Nanos::ZERO),
            _ if write => (me, self.core_transfer(host, id, line, who)),
            0 => (0, Nanos::ZERO),
            SOME => self.load_from_some(host, id, line, me),
            _ if tag & DIRTY == 0 => (0, Nanos::ZERO),
            owner => {
                let takes = self.core_transfer(host, id, line, who);
                let name = self.name_of(host, id, line);
                self.contended.at(name).cores = core_bit(owner) | core_bit(me);
                (SOME, takes)
            }
        }
    }

    fn core_transfer(&mut self, host: usize, id: ViewId, line: Id, who: Who) -> Nanos {
        let (name, takes) = (self.name_of(host, id, line), self.hosts[host].cores.transfer);
        self.contended.pass(name, who.1, takes)
    }

    /// A core reads what some have: it is one of them, or becomes one. Where all have it, no core need be asked any
    /// more.
    fn load_from_some(&mut self, host: usize, id: ViewId, line: Id, me: Tag) -> (Tag, Nanos) {
        let name = self.name_of(host, id, line);
        let cores = &mut self.contended.at(name).cores;
        if *cores & core_bit(me) != 0 {
            return (SOME, Nanos::ZERO);
        }
        *cores |= core_bit(me);
        let (cores, of_host) = (*cores, &self.hosts[host].cores);
        let owner = if cores == of_host.all { 0 } else { SOME };
        (owner, of_host.load)
    }
}
