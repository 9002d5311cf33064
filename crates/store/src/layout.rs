//! Where what lies in the store's own objects: the root, members, tables, items. All words are little-endian and eight
//! bytes; each is changed by one word operation of the space.
//!
//! ```text
//! root      0 magic     8 format    16 hash key, two words    32 mode    40 bound of bytes    48 current table
//!          56 next sequence         64 table being built      72 hand of the clock            80 hand of the sweep
//!          88 squeezes                      96 1 if there were replicas ever
//!         104 1 if an entry was dropped whose item was lost, and there were replicas
//!         128 bytes   136 items    192 evictions   200 expired   208 orphans freed   216 items of spilled values
//!         224 items that are replicas
//!         256 tenants: limit, used ... (256 of them)
//!        8192 members, an address each (1024)
//!       16384 pools of free objects, one a class (96)
//! member    0 session: part 8 | number 56, 0 none    8 pins: as far as they were used
//!          64 intents: objects that this member answers for (480)
//!        4096 pins: items that this member uses (1536, and 32 of the store's own)
//!       16640 sequences of the objects that intents name (480)
//!       20480 counters: what all members did that have had this record (32)
//! table     0 magic     8 log2 of buckets   16 previous table, 0 none    24 buckets of it that are forwarded
//!          32 segments made                 40 member that builds it     48 spare lines that were used
//!          64 addresses of segments: the buckets' first lines, then an eighth as many spare ones
//! pool      0 objects in it, about          64 addresses (504)
//! ```

/// A word's bytes.
pub(super) const WORD: u64 = 8;
/// A line's bytes: a bucket.
pub(super) const LINE: u64 = 64;

pub(super) mod root {
    pub const BYTES: u64 = POOLS + super::free_pool::BYTES * POOLS_MAX;
    pub const MAGIC: u64 = 0;
    pub const FORMAT: u64 = 8;
    pub const HASH_KEY: u64 = 16;
    pub const MODE: u64 = 32;
    pub const BOUND: u64 = 40;
    pub const TABLE: u64 = 48;
    pub const SEQUENCE: u64 = 56;
    pub const BUILDING: u64 = 64;
    pub const HAND: u64 = 72;
    pub const SWEEP: u64 = 80;
    pub const SQUEEZES: u64 = 88;
    pub const REPLICATED: u64 = 96;
    pub const FORGOTTEN: u64 = 104;
    pub const USED: u64 = 128;
    pub const ITEMS: u64 = 136;
    pub const EVICTED: u64 = 192;
    pub const EXPIRED: u64 = 200;
    pub const ORPHANS: u64 = 208;
    pub const SPILLED: u64 = 216;
    pub const REPLICAS: u64 = 224;
    pub const TENANTS: u64 = 256;
    pub const TENANTS_MAX: u64 = 256;
    pub const MEMBERS: u64 = 8192;
    pub const MEMBERS_MAX: u64 = 1024;
    pub const POOLS: u64 = 16384;
    pub const POOLS_MAX: u64 = 96;

    /// "CENSTORE".
    pub const MAGIC_VALUE: u64 = u64::from_le_bytes(*b"CENSTORE");
    pub const FORMAT_VALUE: u64 = 3;
    /// A bit of the mode: bytes are written back and invalidated.
    pub const FLUSH: u64 = 1;

    const _: () = assert!(TENANTS + 16 * TENANTS_MAX <= MEMBERS);
    const _: () = assert!(MEMBERS + 8 * MEMBERS_MAX <= POOLS);
}

pub(super) mod member {
    pub const BYTES: u64 = COUNTERS + 8 * COUNTERS_MAX;
    pub const PINS_USED: u64 = 8;
    pub const INTENTS: u64 = 64;
    pub const INTENTS_MAX: u64 = 480;
    /// Of them, those that are for what is filled alone: what waits to be freed does so for as long as a part is away.
    pub const FILL_INTENTS: u64 = INTENTS_MAX / 2;
    pub const PINS: u64 = 4096;
    /// Of callers.
    pub const PINS_MAX: u64 = 1536;
    /// Of steps that pin what they look at, whatever callers have pinned.
    pub const OWN_PINS: u64 = 32;
    pub const PINS_ALL: u64 = PINS_MAX + OWN_PINS;
    pub const SEQUENCES: u64 = PINS + 8 * PINS_ALL;
    pub const COUNTERS: u64 = SEQUENCES + 8 * INTENTS_MAX;
    pub const COUNTERS_MAX: u64 = 32;

    const _: () = assert!(INTENTS + 8 * INTENTS_MAX <= PINS);
}

pub(super) mod table {
    pub const MAGIC: u64 = 0;
    pub const LOG2: u64 = 8;
    pub const PREVIOUS: u64 = 16;
    pub const MOVED: u64 = 24;
    pub const SEGMENTS: u64 = 32;
    pub const BUILDER: u64 = 40;
    pub const SPARES_USED: u64 = 48;
    pub const HEADER: u64 = 64;

    /// "CENTABLE".
    pub const MAGIC_VALUE: u64 = u64::from_le_bytes(*b"CENTABLE");
    /// Lines of a segment: 1 MiB, the largest object that is not a run.
    pub const SEGMENT_LOG2: u32 = 14;
    /// The most that a table has: 2^31 buckets, 15 thousand million entries.
    pub const LOG2_MAX: u32 = 31;
    /// Spare lines of a table are a part of its buckets: some buckets have more entries than a line.
    pub const SPARES_LOG2: u32 = 3;
    /// How much larger the next table is: four times, so that all former ones together are a third of it.
    pub const GROWTH_LOG2: u32 = 2;
}

pub(super) mod free_pool {
    pub const BYTES: u64 = PLACES + 8 * PLACES_MAX;
    pub const COUNT: u64 = 0;
    pub const PLACES: u64 = 64;
    pub const PLACES_MAX: u64 = 504;
}
