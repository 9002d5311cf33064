//! Reads that the user's own card does, before the rest is asked for by calls: see [`super::far::Fetcher`].

use super::Space;
use super::act::{Act, Step};
use super::far::{Fetch, Fetcher, FetchesInFlight, LooksInFlight};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Slots of a part that are looked at in one round, at most: looks wait for each other.
const LOOKS_AT_ONCE: usize = 16;

const _: () = assert!(LOOKS_AT_ONCE > 0);

/// What one part's memory is read for.
#[derive(Default)]
struct OfPart {
    /// Which of the reads, how, and how long they are.
    fetches: Vec<(usize, Fetch, usize)>,
    /// Slots that were not looked at.
    unseen: Vec<u32>,
}

/// What is under way at one part.
struct Fetching {
    fetcher: Arc<Fetcher>,
    part: u8,
    /// Which of the reads.
    places: Vec<usize>,
    in_flight: FetchesInFlight,
}

impl Space {
    /// Does reads of objects at home in other pods, where cards can do them: which of the steps are done. Nothing is
    /// said of the others, not even that something is wrong with them.
    pub(super) fn fetch(&self, steps: &mut [Step<'_>]) -> Vec<bool> {
        let mut done = vec![false; steps.len()];
        let mut by_part: BTreeMap<u8, (Arc<Fetcher>, OfPart)> = BTreeMap::new();
        for (place, step) in steps.iter().enumerate() {
            self.plan_fetch(place, step, &mut by_part);
        }
        let mut looks: Vec<(Arc<Fetcher>, LooksInFlight)> = Vec::new();
        let mut fetching = Vec::new();
        for (part, (fetcher, OfPart { fetches, unseen })) in by_part {
            if !unseen.is_empty() {
                looks.push((Arc::clone(&fetcher), fetcher.look(unseen)));
            }
            if self.is_worth_it(part, &fetcher, fetches.len()) {
                fetching.push(begin(fetcher, part, fetches));
            }
        }
        let again = |one: Fetching| Fetching {
            in_flight: one.fetcher.look_again(one.in_flight),
            ..one
        };
        // All second looks are under way before any is waited for.
        let fetching: Vec<_> = fetching.into_iter().map(again).collect();
        fetching
            .into_iter()
            .for_each(|one| self.end_fetch(one, steps, &mut done));
        looks.into_iter().for_each(|(fetcher, looks)| fetcher.end_look(looks));
        done
    }

    /// Whether so many reads of a part are to be fetched.
    fn is_worth_it(&self, part: u8, fetcher: &Fetcher, count: usize) -> bool {
        let far = self.far_numbered(part);
        count > 0 && far.is_some_and(|far| count == 1 || far.channel.fetches_many(fetcher))
    }

    fn plan_fetch(&self, place: usize, (address, act): &Step<'_>, by_part: &mut BTreeMap<u8, (Arc<Fetcher>, OfPart)>) {
        let (part, len) = (address.part(), act.len());
        if !matches!(act, Act::Read(_)) || self.location_cache().of(*address) != part {
            return;
        }
        let far = self.far_numbered(part).filter(|_| self.part_numbered(part).is_none());
        let Some(fetcher) = far.and_then(|far| far.fetcher(len)) else {
            return;
        };
        let (fetcher, of_part) = by_part.entry(part).or_insert_with(|| (fetcher, OfPart::default()));
        match fetcher.plan(*address, len as usize) {
            Some(fetch) => of_part.fetches.push((place, fetch, len as usize)),
            None if of_part.unseen.len() < LOOKS_AT_ONCE
                && !of_part.unseen.contains(&address.slot())
                && fetcher.is_unseen(*address) =>
            {
                of_part.unseen.push(address.slot());
            }
            None => {}
        }
    }

    fn end_fetch(&self, one: Fetching, steps: &mut [Step<'_>], done: &mut [bool]) {
        let Fetching {
            fetcher,
            part,
            places,
            in_flight,
        } = one;
        let mut count = 0;
        let (found, told) = fetcher.end(in_flight);
        for (place, bytes) in places.into_iter().zip(found) {
            if let (Some(bytes), (_, Act::Read(into))) = (bytes, &mut steps[place])
                && bytes.len() == into.len()
            {
                into.copy_from_slice(&bytes);
                (done[place], count) = (true, count + 1);
            }
        }
        self.count_asked(count);
        if let Some(far) = self.far_numbered(part) {
            far.channel.count_fetched(count);
            far.channel.tell_fetched(&told);
        }
    }
}

fn begin(fetcher: Arc<Fetcher>, part: u8, fetches: Vec<(usize, Fetch, usize)>) -> Fetching {
    let places = fetches.iter().map(|(place, ..)| *place).collect();
    let reads = fetches.into_iter().map(|(_, fetch, len)| (fetch, len));
    let in_flight = fetcher.begin(reads.collect());
    Fetching {
        fetcher,
        part,
        places,
        in_flight,
    }
}
