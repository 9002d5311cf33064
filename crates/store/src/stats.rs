//! What there is, and what this process did.

use super::Store;
use super::layout::root;
use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;

/// At this moment. Counts of all processes are what those that were killed left of them, about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Values: replicas are not counted.
    pub items: u64,
    /// Bytes of the space that they take.
    pub used: u64,
    /// Bytes that they may take; 0: all.
    pub bound: u64,
    /// Buckets of the table.
    pub buckets: u64,
    /// Items that were evicted, by all processes.
    pub evicted: u64,
    /// Items that had expired and were taken out by sweeps.
    pub expired: u64,
    /// Objects of dead members that were freed.
    pub orphans: u64,
    /// Of this process: values that were read.
    pub hits: u64,
    /// Of this process: values that were not there.
    pub misses: u64,
    /// Of this process: values that were not there as a part of the space was not.
    pub lost: u64,
    /// Of this process: items that were not what their checksum says.
    pub damaged: u64,
    /// Of this process: replicas that were not made, for want of room.
    pub unreplicated: u64,
    /// Values in files, of all processes.
    pub in_files: u64,
    /// Of this process: values that were spilled to files.
    pub spilled: u64,
    /// Of this process: values that were read from files.
    pub spill_hits: u64,
    /// Of this process: values that could not be spilled, as too much waited, or a write has failed.
    pub unspilled: u64,
    /// Of this process: bytes read.
    pub bytes_out: u64,
    /// Of this process: bytes put.
    pub bytes_in: u64,
}

/// Of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantStats {
    /// Bytes of the space that its items take.
    pub used: u64,
    /// Bytes that they may take; 0: as much as all may.
    pub bound: u64,
}

impl Store {
    /// See [`StoreStats`].
    ///
    /// # Errors
    /// Those of the space.
    pub fn stats(&self) -> Result<StoreStats> {
        let core = &self.core;
        let word = |at: u64| core.heap.load(core.word(at)?);
        let about = |at: u64| word(at).map(|n| (n as i64).max(0) as u64);
        let of = |counter: &cenote_base::rt::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &core.counters;
        Ok(StoreStats {
            items: (word(root::ITEMS)?.wrapping_sub(word(root::REPLICAS)?) as i64).max(0) as u64,
            used: about(root::USED)?,
            bound: word(root::BOUND)?,
            buckets: core.refresh()?.table.buckets(),
            evicted: word(root::EVICTED)?,
            expired: word(root::EXPIRED)?,
            orphans: word(root::ORPHANS)?,
            hits: of(&counters.hits),
            misses: of(&counters.misses),
            lost: of(&counters.lost),
            damaged: of(&counters.damaged),
            unreplicated: of(&counters.unreplicated),
            in_files: about(root::SPILLED)?,
            spilled: of(&counters.spilled),
            spill_hits: of(&counters.spill_hits),
            unspilled: of(&counters.unspilled) + core.tiers.read().iter().map(|tier| tier.failed()).sum::<u64>(),
            bytes_out: of(&counters.bytes_out),
            bytes_in: of(&counters.bytes_in),
        })
    }

    /// Of this process, without asking the space: values that were not there as a part was not, and items that were not
    /// what their checksum says.
    pub fn missed(&self) -> (u64, u64) {
        let of = |counter: &cenote_base::rt::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.core.counters.lost), of(&self.core.counters.damaged))
    }

    /// See [`TenantStats`].
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if there is no such tenant; those of the space.
    pub fn tenant_stats(&self, tenant: u32) -> Result<TenantStats> {
        let (bound, used) = self.core.tenant(tenant)?;
        let used = self.core.heap.load(used)? as i64;
        Ok(TenantStats {
            used: used.max(0) as u64,
            bound: self.core.heap.load(bound)?,
        })
    }
}
