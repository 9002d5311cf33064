//! What must be true of a part, looked at word by word.

use super::address::GENERATION_SHIFT;
use super::books::Books;
use super::class::Class;
use super::keeper::{Lifetime, SessionId};
use super::layout::run_slots;
use super::part::Part;
use super::slot::{Slot, Use};
use cenote_base::rt::atomic::Ordering;

/// All that is wrong. The keeper's lock is held: nothing is handed out meanwhile.
pub(super) fn audit(part: &Part, books: &Books) -> Vec<String> {
    let mut problems = Vec::new();
    for slot in 0..part.slots() {
        let found = match part.slot(slot) {
            Ok(found) => found,
            Err(error) => {
                problems.push(error.to_string());
                continue;
            }
        };
        let wrong = of_slot(part, books, slot, found).into_iter();
        problems.extend(wrong.map(|what| format!("{}: slot {slot}: {what}", part.name())));
    }
    problems
}

fn of_slot(part: &Part, books: &Books, slot: u32, found: Slot) -> Vec<String> {
    let mut wrong = match found.used {
        Use::Slab(class, lifetime) => of_slab(part, books, slot, found.generation, class, lifetime),
        Use::Head(lifetime) => of_run(part, books, slot, found.generation, lifetime),
        Use::Tail(_) if part.head_of(slot, found).is_none() => vec!["it goes on with no run".into()],
        Use::Free | Use::Tail(_) | Use::Retired => Vec::new(),
    };
    if books.free.contains(slot) != (found.used == Use::Free) {
        wrong.push(format!("its keeper knows otherwise: {:?}", found.used));
    }
    wrong
}

fn of_slab(part: &Part, books: &Books, slot: u32, generation: u32, class: Class, lifetime: Lifetime) -> Vec<String> {
    let mut wrong = Vec::new();
    for word in 0..class.words() {
        let live = part.live(slot, word).load(Ordering::Acquire);
        let objects = live & ((1 << GENERATION_SHIFT) - 1);
        if live >> GENERATION_SHIFT != u64::from(generation) || objects & !class.mask(word) != 0 {
            wrong.push(format!("live word {word}: {live:#018x}"));
        }
    }
    let owner = part.owner(slot).load(Ordering::Acquire);
    let is_nobodys = books.nobodys.get(&class).is_some_and(|slots| slots.contains(&slot));
    if is_nobodys != (owner == 0) {
        wrong.push(format!("its owner is {owner}, and its keeper knows otherwise"));
    }
    wrong.extend(of_owner(books, owner, lifetime));
    wrong
}

fn of_run(part: &Part, books: &Books, slot: u32, generation: u32, lifetime: Lifetime) -> Vec<String> {
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
        .chain(of_owner(books, part.owner(slot).load(Ordering::Acquire), lifetime))
        .collect()
}

fn of_owner(books: &Books, owner: u64, lifetime: Lifetime) -> Option<String> {
    match owner {
        0 if lifetime == Lifetime::Session => Some("it is of a session, and nobody's".into()),
        0 => None,
        id if books.sessions.contains(&SessionId(id)) => None,
        id => Some(format!("its owner, session {id}, is not there")),
    }
}
