//! What this process did.

use cenote_base::rt::atomic::AtomicU64;

/// A counter: how it is called, what it counts, and where.
type Named<'a> = (&'static str, &'static str, &'a AtomicU64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub lost: AtomicU64,
    pub damaged: AtomicU64,
    pub puts: AtomicU64,
    pub removed: AtomicU64,
    pub borrows: AtomicU64,
    pub bytes_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub evicted: AtomicU64,
    pub spilled: AtomicU64,
    pub spilled_bytes: AtomicU64,
    pub spill_hits: AtomicU64,
    pub unspilled: AtomicU64,
    pub unreplicated: AtomicU64,
}

impl Counters {
    pub(super) const MAX: usize = 15;

    /// In the order in which they stand in a member's record: new ones come last.
    pub(super) fn all(&self) -> [Named<'_>; Self::MAX] {
        [
            ("hits", "Gets that found a value.", &self.hits),
            ("misses", "Gets that found none.", &self.misses),
            ("lost", "Values that were lost with a part of the space.", &self.lost),
            (
                "damaged",
                "Items that were not what their checksum says.",
                &self.damaged,
            ),
            ("puts", "Values that were put.", &self.puts),
            ("removed", "Values that were removed.", &self.removed),
            ("borrows", "Values that were lent in place.", &self.borrows),
            ("read_bytes", "Bytes of values that were copied out.", &self.bytes_out),
            ("put_bytes", "Bytes of values that were put.", &self.bytes_in),
            (
                "evictions",
                "Values that were evicted, those that were spilled too.",
                &self.evicted,
            ),
            ("spilled", "Values that went to files.", &self.spilled),
            (
                "spilled_bytes",
                "Bytes of values that went to files.",
                &self.spilled_bytes,
            ),
            ("spill_hits", "Gets that found their value in a file.", &self.spill_hits),
            ("unspilled", "Values that could not go to files.", &self.unspilled),
            (
                "unreplicated",
                "Replicas that were not made, for want of room.",
                &self.unreplicated,
            ),
        ]
    }
}
