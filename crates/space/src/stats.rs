//! What a space is used for.

use super::address::GENERATION_SHIFT;
use super::far::modes::FarStats;
use super::part::Part;
use super::slot::Use;
use super::{Class, GlobalAddress};
use cenote_base::rt::atomic::Ordering;
use std::collections::BTreeMap;

/// A class in a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// Which.
    pub class: Class,
    /// Extents that are cut into its objects.
    pub extents: u32,
    /// Objects that are allocated.
    pub objects: u64,
}

impl ClassStats {
    /// Bytes that the allocated objects can hold.
    pub fn bytes(&self) -> u64 {
        self.objects * self.class.size()
    }
}

/// A part. Its extents are free, slabs, in runs, away, lent (free, with a migrated extent in their memory), retired or
/// broken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartStats {
    /// Its number.
    pub part: u8,
    /// Extents that it has.
    pub extents: u32,
    /// Extents that are free.
    pub free: u32,
    /// Extents that are cut into objects.
    pub slabs: u32,
    /// Extents that runs take.
    pub in_runs: u32,
    /// Extents whose generations are used up.
    pub retired: u32,
    /// Extents that lie in other parts.
    pub away: u32,
    /// Extents of other slots that lie in this one's memory.
    pub migrated_extents: u32,
    /// Of them, how many are of which part.
    pub guests_of: BTreeMap<u8, u32>,
    /// Extents whose descriptors are broken.
    pub broken: u32,
    /// Runs.
    pub runs: u64,
    /// Bytes of the runs, as they were asked for.
    pub run_bytes: u64,
    /// Classes that have extents, smallest first.
    pub classes: Vec<ClassStats>,
}

/// What this process has read and written under locks of what lies in other pods, through a space's handle and its
/// clones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Reads that pages were found for.
    pub hits: u64,
    /// Reads that another pod was asked for.
    pub misses: u64,
    /// Pages that are kept.
    pub pages: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Writes that were collected.
    pub buffered: u64,
    /// Messages with such writes, but for those that also let go of a lock.
    pub flushes: u64,
}

/// A space at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpaceStats {
    /// Its parts, by number.
    pub parts: Vec<PartStats>,
    /// What was read and written of other pods under locks.
    pub cache: CacheStats,
    /// Reads of parts that this process does not map, by part.
    pub far: Vec<FarStats>,
}

impl SpaceStats {
    /// Objects that are allocated, runs included.
    pub fn objects(&self) -> u64 {
        let of = |part: &PartStats| part.runs + part.classes.iter().map(|class| class.objects).sum::<u64>();
        self.parts.iter().map(of).sum()
    }

    /// Bytes that they can hold.
    pub fn bytes(&self) -> u64 {
        let of = |part: &PartStats| part.run_bytes + part.classes.iter().map(ClassStats::bytes).sum::<u64>();
        self.parts.iter().map(of).sum()
    }
}

/// What a part is used for.
pub(super) fn of(part: &Part) -> PartStats {
    let mut stats = PartStats {
        part: part.number(),
        extents: part.slots(),
        ..PartStats::default()
    };
    let (mut classes, mut lent) = (BTreeMap::new(), 0);
    for slot in 0..part.slots() {
        let migrated = GlobalAddress::from_raw(part.migrated(slot).load(Ordering::Acquire));
        if !migrated.is_null() {
            stats.migrated_extents += 1;
            *stats.guests_of.entry(migrated.part()).or_default() += 1;
        }
        match part.slot(slot).map(|found| found.used) {
            Ok(Use::Free) => stats.free += 1,
            Ok(Use::Slab(Class::WHOLE, _)) => {
                stats.in_runs += 1;
                if let (1, Ok(piece)) = (objects(part, slot, Class::WHOLE), part.piece(slot)) {
                    stats.runs += 1;
                    stats.run_bytes = stats.run_bytes.saturating_add(piece.run_bytes());
                }
            }
            Ok(Use::Slab(class, _)) => {
                stats.slabs += 1;
                let of_class = classes.entry(class).or_insert(ClassStats {
                    class,
                    extents: 0,
                    objects: 0,
                });
                of_class.extents += 1;
                of_class.objects += objects(part, slot, class);
            }
            Ok(Use::Head(_)) => {
                stats.in_runs += 1;
                stats.runs += 1;
                stats.run_bytes = stats
                    .run_bytes
                    .saturating_add(part.run_bytes(slot).load(Ordering::Acquire));
            }
            Ok(Use::Tail(_)) => stats.in_runs += 1,
            Ok(Use::Retired) => stats.retired += 1,
            Ok(Use::Frozen) => stats.slabs += 1,
            Ok(Use::Away) => stats.away += 1,
            Ok(Use::Lent) => lent += 1,
            Err(_) => stats.broken += 1,
        }
    }
    let own = stats.free + stats.slabs + stats.in_runs + stats.retired;
    assert_eq!(
        own + stats.away + lent + stats.broken,
        stats.extents,
        "extents are counted once"
    );
    stats.classes = classes.into_values().collect();
    stats
}

/// Objects in a slab that lies in a slot's memory; a run is one of its first piece.
pub(super) fn objects(part: &Part, slot: u32, class: Class) -> u64 {
    let live = |word| part.live(slot, word).load(Ordering::Relaxed) & ((1 << GENERATION_SHIFT) - 1);
    if class == Class::WHOLE && part.piece(slot).is_ok_and(|piece| piece.number > 0) {
        return 0;
    }
    (0..class.words()).map(|word| u64::from(live(word).count_ones())).sum()
}
