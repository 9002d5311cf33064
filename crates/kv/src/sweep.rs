//! What a start finds: counts that it can believe, or else everything is looked at, and what nothing refers to is
//! freed.

use super::fields::Fields;
use super::heap::{Heap, offset};
use super::{CLOSED, EXPIRING, Result, Store};
use cenote_base::Error;
use cenote_space::EXTENT;
use cenote_space::{GRAIN, GlobalAddress, Space};
use std::collections::BTreeMap;

/// What [`Store::open_reporting`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Keys, those included that have expired.
    pub keys: u64,
    /// Whether the last process has closed the store: nothing was looked at.
    pub is_closed: bool,
    /// Objects that nothing referred to, and that were freed.
    pub freed: u64,
}

/// A bit for each place where an object can begin, of each part of the space.
struct Seen(BTreeMap<u8, Bits>);

struct Bits {
    words: Vec<u64>,
    /// How many they can become.
    most: usize,
}

impl Seen {
    fn of(space: &Space) -> Self {
        let bits = |bytes: u64| Bits {
            words: Vec::new(),
            most: (bytes / GRAIN).div_ceil(64) as usize,
        };
        Self(
            space
                .parts()
                .map(|part| (part.number(), bits(part.region().len())))
                .collect(),
        )
    }

    /// What lies outside of the space is no object of it, and takes no room here: it comes from a word that is broken.
    fn insert(&mut self, at: GlobalAddress) {
        let (word, bit) = place(at);
        let Some(bits) = self.0.get_mut(&at.part()).filter(|bits| word < bits.most) else {
            return;
        };
        if bits.words.len() <= word {
            bits.words.resize((word + 1).next_power_of_two().min(bits.most), 0);
        }
        bits.words[word] |= bit;
    }

    fn contains(&self, at: GlobalAddress) -> bool {
        let (word, bit) = place(at);
        let found = self.0.get(&at.part()).and_then(|bits| bits.words.get(word));
        found.is_some_and(|word| word & bit != 0)
    }
}

fn place(at: GlobalAddress) -> (usize, u64) {
    let grain = (u64::from(at.slot()) * EXTENT + u64::from(at.offset())) / GRAIN;
    ((grain / 64) as usize, 1 << (grain % 64))
}

impl Store {
    /// Takes the counts from where [`Store::close`] wrote them, or counts. From here on they are not believed.
    pub(super) fn take_stock(&mut self) -> Result<Found> {
        let closed = offset(self.root, CLOSED)?;
        let keys = self.heap.load(closed)?;
        if keys > 0 {
            self.expiring = self.heap.load(offset(self.root, EXPIRING)?)?;
            self.table.entries = keys - 1;
            self.heap.put(closed, 0)?;
            return Ok(Found {
                keys: keys - 1,
                is_closed: true,
                freed: 0,
            });
        }
        let mut seen = Seen::of(self.space());
        [self.root, self.heap.journal()]
            .into_iter()
            .for_each(|at| seen.insert(at));
        self.count_keys(&mut seen)?;
        let freed = self.free_unseen(&seen)?;
        Ok(Found {
            keys: self.table.entries,
            is_closed: false,
            freed,
        })
    }

    fn count_keys(&mut self, seen: &mut Seen) -> Result<()> {
        let (mut keys, mut expiring, mut hashes) = (0, 0, Vec::new());
        self.table.each_object(&self.heap, |at| seen.insert(at))?;
        self.table.each(&self.heap, |entry| {
            keys += 1;
            expiring += u64::from(entry.expiry() != 0);
            seen.insert(entry.at);
            entry.referred().into_iter().for_each(|at| seen.insert(at));
            if entry.is_hash() {
                hashes.push(GlobalAddress::from_raw(entry.value()));
            }
            Ok(())
        })?;
        (self.table.entries, self.expiring) = (keys, expiring);
        for hash in hashes {
            count_fields(&mut self.heap, hash, seen)?;
        }
        Ok(())
    }

    fn free_unseen(&mut self, seen: &Seen) -> Result<u64> {
        let mut unseen = Vec::new();
        let space = self.space().clone();
        space.each_object(|at, _| {
            if !seen.contains(at) {
                unseen.push(at);
            }
        })?;
        unseen.iter().try_for_each(|at| space.free(*at))?;
        Ok(unseen.len() as u64)
    }
}

fn count_fields(heap: &mut Heap, hash: GlobalAddress, seen: &mut Seen) -> Result<(), Error> {
    let Fields::Table(mut table) = Fields::read(heap, hash)? else {
        return Ok(());
    };
    let mut fields = 0;
    table.each_object(heap, |at| seen.insert(at))?;
    table.each(heap, |entry| {
        fields += 1;
        seen.insert(entry.at);
        entry.referred().into_iter().for_each(|at| seen.insert(at));
        Ok(())
    })?;
    if table.entries != fields {
        table.entries = fields;
        table.note_entries(heap)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_space::SpaceOptions;

    /// A broken word may name any slot of any part: bits for all of them are 512 MiB each.
    #[test]
    fn what_lies_outside_of_the_space_takes_no_room() {
        let space = Space::dram(&SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        });
        let space = space.expect("memory");
        let object = space.session().alloc(64).expect("room");
        let mut seen = Seen::of(&space);
        for part in 0..=u8::MAX {
            for slot in [0, 5, 1000, (1 << 17) - 1] {
                seen.insert(GlobalAddress::new(part, slot, 64, 3).expect("fits"));
            }
        }
        seen.insert(object);
        assert!(seen.contains(object));
        let bytes: usize = seen.0.values().map(|bits| 8 * bits.words.len()).sum();
        assert!(bytes < 1 << 20, "{bytes} bytes");
    }
}
