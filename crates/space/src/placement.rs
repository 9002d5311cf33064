//! Where the extents of a space lie, told by each part's keeper for itself, and whether all of them tell the same.
//!
//! Of an extent that moves two keepers have something: its home says where it lies, and the part where it lies that it
//! is there. While nothing moves the two agree.

use super::GlobalAddress;
use super::local::LocalKeeper;
use super::slot::{Slot, Use};
use super::stats;
use cenote_base::rt::atomic::Ordering;
use std::collections::BTreeMap;

/// What one part knows of extents that are not in their own slots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// Its own that lie elsewhere: in which part, in which slot.
    pub away: BTreeMap<GlobalAddress, (u8, u32)>,
    /// Those of other slots that lie in its memory: in which slot, and whether they are used there. (If not, they are
    /// about to come or to go.)
    pub migrated_extents: BTreeMap<GlobalAddress, (u32, bool)>,
    /// Its own that lie in their slots and are about to go.
    pub frozen: Vec<GlobalAddress>,
    /// Objects in its memory, those of migrated extents included.
    pub objects: u64,
}

impl LocalKeeper {
    /// Where extents lie, as this part's keeper knows it.
    pub fn placement(&self) -> Placement {
        let (part, extent_table) = (&*self.part, self.extent_table.lock());
        let mut placement = Placement::default();
        for slot in 0..part.slots() {
            let migrated = GlobalAddress::from_raw(part.migrated(slot).load(Ordering::Acquire));
            if !migrated.is_null() {
                let is_used = !extent_table.unsettled.contains_key(&slot);
                placement.migrated_extents.insert(migrated, (slot, is_used));
                let state = Slot::decode(part.migrated_state(slot).load(Ordering::Acquire));
                if let Some(Use::Slab(class, _)) = state.map(|found| found.used) {
                    placement.objects += stats::objects(part, slot, class);
                }
            }
            let Ok(found) = part.slot(slot) else { continue };
            let Ok(extent) = GlobalAddress::new(part.number(), slot, 0, found.generation) else {
                continue;
            };
            match found.used {
                Use::Away => _ = placement.away.insert(extent, part.place_of(slot)),
                Use::Frozen => placement.frozen.push(extent),
                Use::Slab(class, _) => placement.objects += stats::objects(part, slot, class),
                Use::Head(_) => placement.objects += 1,
                _ => {}
            }
        }
        placement
    }
}

/// What does not fit together in the placements of a space's parts, by number, while nothing moves. Of parts that are
/// not among them nothing is said.
pub fn audit_placements(parts: &BTreeMap<u8, Placement>) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, part) in parts {
        let frozen = part.frozen.iter();
        problems.extend(frozen.map(|extent| format!("part {number}: {extent} is frozen, and does not move")));
        for (extent, (at, slot)) in &part.away {
            let Some(there) = parts.get(at) else { continue };
            let found = there.migrated_extents.get(extent);
            if found != Some(&(*slot, true)) {
                problems.push(format!(
                    "part {number}: {extent} lies in slot {slot} of part {at}, which has {found:?}"
                ));
            }
        }
        for (migrated, (slot, _)) in &part.migrated_extents {
            let Some(home) = parts.get(&migrated.part()) else {
                continue;
            };
            let said = home.away.get(migrated);
            if said != Some(&(*number, *slot)) {
                problems.push(format!(
                    "part {number}: {migrated} lies in slot {slot}, and its home says {said:?}"
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(slot: u32) -> GlobalAddress {
        GlobalAddress::new(1, slot, 0, 1).expect("fits")
    }

    #[test]
    fn home_and_host_have_to_agree() {
        let mut parts = BTreeMap::from([(1, Placement::default()), (2, Placement::default())]);
        let away = |parts: &mut BTreeMap<u8, Placement>| parts.entry(1).or_default().away.insert(extent(3), (2, 7));
        let migrated = |parts: &mut BTreeMap<u8, Placement>, used| {
            parts
                .entry(2)
                .or_default()
                .migrated_extents
                .insert(extent(3), (7, used))
        };
        assert!(audit_placements(&parts).is_empty());
        away(&mut parts);
        assert_eq!(audit_placements(&parts).len(), 1, "no part has it");
        migrated(&mut parts, false);
        assert_eq!(audit_placements(&parts).len(), 1, "it has not settled");
        migrated(&mut parts, true);
        assert!(audit_placements(&parts).is_empty());
        parts.entry(1).or_default().away.clear();
        assert_eq!(audit_placements(&parts).len(), 1, "two have it");
        parts.remove(&1);
        assert!(audit_placements(&parts).is_empty(), "its home is not known");
        parts.entry(2).or_default().frozen.push(extent(4));
        assert_eq!(audit_placements(&parts).len(), 1);
    }
}
