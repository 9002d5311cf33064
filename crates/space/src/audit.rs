//! What must be true of a part, looked at word by word.

use super::GlobalAddress;
use super::address::GENERATION_SHIFT;
use super::class::Class;
use super::extent_table::ExtentTable;
use super::keeper::{Lifetime, SessionId};
use super::layout::run_slots;
use super::part::Part;
use super::slot::{Slot, Use};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::seam::Points;

/// All that is wrong. The keeper's lock is held: nothing is handed out meanwhile.
pub(super) fn audit(part: &Part, extent_table: &ExtentTable) -> Vec<String> {
    let mut problems = Vec::new();
    for slot in 0..part.slots() {
        let found = match part.slot(slot) {
            Ok(found) => found,
            Err(error) => {
                problems.push(error.to_string());
                continue;
            }
        };
        let wrong = of_slot(part, extent_table, slot, found).into_iter();
        problems.extend(wrong.map(|what| format!("{}: slot {slot}: {what}", part.name())));
    }
    problems
}

fn of_slot(part: &Part, extent_table: &ExtentTable, slot: u32, found: Slot) -> Vec<String> {
    let mut wrong = match found.used {
        Use::Slab(class, lifetime) => of_slab(part, extent_table, slot, found.generation, class, lifetime),
        Use::Head(lifetime) => of_run(part, extent_table, slot, found.generation, lifetime),
        Use::Tail(_) if part.head_of(slot, found).is_none() => vec!["it goes on with no run".into()],
        Use::Retired if part.migrated(slot).load(Ordering::Acquire) != 0 => {
            of_migrated(part, extent_table, slot, found.used)
        }
        Use::Free | Use::Tail(_) | Use::Retired => Vec::new(),
        Use::Frozen => Vec::new(),
        Use::Away | Use::Lent => of_migrated(part, extent_table, slot, found.used),
    };
    if extent_table.free.contains(slot) != (found.used == Use::Free) {
        wrong.push(format!("its keeper knows otherwise: {:?}", found.used));
    }
    wrong
}

/// What lies in the memory of a slot that is not its own extent's.
fn of_migrated(part: &Part, extent_table: &ExtentTable, slot: u32, used: Use) -> Vec<String> {
    let migrated = GlobalAddress::from_raw(part.migrated(slot).load(Ordering::Acquire));
    let is_vacant = extent_table.vacant.contains(&slot);
    if migrated.is_null() {
        let is_known = is_vacant && used == Use::Away;
        return if is_known {
            Vec::new()
        } else {
            vec!["nothing lies in it, and its keeper knows otherwise".into()]
        };
    }
    let mut wrong = Vec::new();
    if is_vacant {
        wrong.push(format!("{migrated} lies in it, and its keeper knows otherwise"));
    }
    let found = part
        .moving()
        .and_then(|moving| moving.migrated_extents.find(Points, migrated));
    let is_settled = !extent_table.unsettled.contains_key(&slot);
    if is_settled && found != Some(slot) {
        wrong.push(format!(
            "{migrated} lies in it, and the table of migrated extents says {found:?}"
        ));
    }
    let state = part.migrated_state(slot).load(Ordering::Acquire);
    match Slot::decode(state) {
        Some(Slot {
            generation,
            used: Use::Slab(class, _),
        }) if generation == migrated.generation() => {
            wrong.extend(of_words(part, slot, generation, class));
        }
        Some(Slot {
            generation,
            used: Use::Frozen,
        }) if generation == migrated.generation() => {}
        _ if !is_settled => {}
        _ => wrong.push(format!("state of the migrated extent {migrated}: {state:#018x}")),
    }
    wrong
}

fn of_words(part: &Part, slot: u32, generation: u32, class: Class) -> Vec<String> {
    let is_wrong = |live: u64, word| {
        let objects = live & ((1 << GENERATION_SHIFT) - 1);
        live >> GENERATION_SHIFT != u64::from(generation) || objects & !class.mask(word) != 0
    };
    let words = (0..class.words()).map(|word| (word, part.live(slot, word).load(Ordering::Acquire)));
    words
        .filter(|(word, live)| is_wrong(*live, *word))
        .map(|(word, live)| format!("live word {word}: {live:#018x}"))
        .collect()
}

fn of_slab(
    part: &Part,
    extent_table: &ExtentTable,
    slot: u32,
    generation: u32,
    class: Class,
    lifetime: Lifetime,
) -> Vec<String> {
    let mut wrong = of_words(part, slot, generation, class);
    let owner = part.owner(slot).load(Ordering::Acquire);
    let is_unowned = extent_table
        .unowned
        .get(&class)
        .is_some_and(|slots| slots.contains(&slot));
    if is_unowned != (owner == 0) {
        wrong.push(format!("its owner is {owner}, and its keeper knows otherwise"));
    }
    wrong.extend(of_owner(extent_table, owner, lifetime));
    wrong
}

fn of_run(part: &Part, extent_table: &ExtentTable, slot: u32, generation: u32, lifetime: Lifetime) -> Vec<String> {
    let bytes = part.run_bytes(slot).load(Ordering::Acquire);
    let Some(slots) = run_slots(bytes).filter(|slots| *slots <= part.slots() - slot) else {
        return vec![format!("a run of {bytes} bytes")];
    };
    let is_missing = |distance: &u32| {
        part.slot(slot + distance).ok()
            != Some(Slot {
                generation,
                used: Use::Tail(*distance),
            })
    };
    let missing = (1..slots)
        .filter(is_missing)
        .map(|distance| format!("its run does not go on in slot {}", slot + distance));
    missing
        .chain(of_owner(
            extent_table,
            part.owner(slot).load(Ordering::Acquire),
            lifetime,
        ))
        .collect()
}

fn of_owner(extent_table: &ExtentTable, owner: u64, lifetime: Lifetime) -> Option<String> {
    match owner {
        0 if lifetime == Lifetime::Session => Some("it is of a session, and has no owner".into()),
        0 => None,
        id if extent_table.sessions.contains(&SessionId(id)) => None,
        id => Some(format!("its owner, session {id}, is not there")),
    }
}
