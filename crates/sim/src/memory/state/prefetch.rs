//! Lines that a thread has prefetched ([`Device::prefetch`](cenote_base::rt::memory::Device::prefetch)): they come
//! while it goes on.
//!
//! A core has so many line fill buffers; each holds one line that is on its way. So misses of one thread that do not
//! wait for each other overlap up to that number, and the next one waits until a buffer is free. Lines of one access
//! overlap as the profile's times by size say; what a core finds by itself, running past a miss, is not modelled:
//! whether one access needs another's result is not announced.
//!
//! ```text
//!   prefetch ─▶ a buffer is free? ── no ──▶ wait for the first to arrive
//!                     │ yes
//!                     ▼
//!              tag PRESENT, not USED; arrives at now + fetch ──▶ first touch: waits for what is left of it
//! ```

use super::super::fills::Fills;
use super::super::host::{Id, PRESENT, USED};
use super::{State, ViewId, Who};
use cenote_base::rt::Nanos;

impl State {
    /// Asks for a line. How long the thread waits for a fill buffer. Where the host sees memory through its cache
    /// alone, nothing comes of the hint: what is prefetched there, the seed says.
    pub(crate) fn prefetch(&mut self, host: usize, id: ViewId, line: Id, who: Who) -> Nanos {
        let is_there = self.hosts[host].cache.has(line, PRESENT);
        if is_there || !self.view(host, id).coherent || self.is_lost(host, id) {
            return Nanos::ZERO;
        }
        let (buffers, slot) = (self.hosts[host].cores.fill_buffers, who.0);
        let all = &mut self.hosts[host].fills;
        if all.len() <= slot {
            all.resize_with(slot + 1, Fills::default);
        }
        let begins = all[slot].free_at(who.1, buffers);
        self.fetch(host, id, line, (line, line), who);
        let others = self.share_with_hosts(host, id, line, (slot, begins));
        let takes = self.view(host, id).medium.fetch(begins, 1, false);
        let fills = &mut self.hosts[host].fills[slot];
        fills.add(line, begins, begins + takes + others);
        begins.since(who.1)
    }

    /// When a line that is in the cache can be used: the thread may have prefetched it.
    pub(super) fn arrival(&self, host: usize, line: Id, (slot, now): Who) -> Nanos {
        let h = &self.hosts[host];
        match h.fills.get(slot) {
            Some(fills) if !h.cache.has(line, USED) => fills.arrival(line).unwrap_or(now),
            _ => now,
        }
    }
}
