//! An extent's bytes on their way: its map, and its objects. They come in the answers, or into memory that the calls
//! lend: as is faster, which is known by what was measured of reads ([`modes`](super::super::far::modes)). So where
//! cards can, the transfer is one-sided (Rcmp, section 5.3).
//!
//! The first piece has the map, which says where objects are. Of the rest those pieces come that have some: an
//! allocation fills its object with zeros, so that nobody reads what lies between objects.

use super::super::class::{Class, LIVE_BITS};
use super::super::far::Channel;
use super::super::far::wire::{self, Fetch};
use super::super::layout::MAP_WORDS;
use super::super::part::Part;
use super::super::slot::{Slot, Use};
use super::super::{EXTENT, GlobalAddress};
use super::HostState;
use super::steps::gone;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use cenote_fabric::LINE;
use cenote_fabric::rdma::call::{Answer, Call, LIMIT, Source};
use std::sync::{Arc, Weak};

/// Bytes of a piece.
const PIECE: u64 = LIMIT as u64 / 2;
/// Pieces under way at a time.
const AT_ONCE: usize = 8;

/// Bytes of a map, with which an image begins.
const MAP: u64 = MAP_WORDS as u64 * 8;
/// Bytes of an extent that are fetched if an object lies in them.
const GRANULE: u64 = 16 << 10;
const GRANULES: usize = (EXTENT / GRANULE) as usize;

const _: () = assert!(PIECE <= LIMIT as u64 && PIECE.is_multiple_of(GRANULE) && MAP < PIECE);
const _: () = assert!(EXTENT.is_multiple_of(GRANULE) && Part::image_len() == MAP + EXTENT);

/// Reads a piece out of a slot where an extent lies frozen: as many bytes as there is place for.
fn read(part: &Part, fetch: Fetch, into: &mut [u8]) -> Result<()> {
    let slot = slot_of(part, fetch.extent)?;
    let mut rest = into;
    for piece in part.image(slot, fetch.from, rest.len() as u64)? {
        let (now, later) = rest.split_at_mut(piece.len());
        piece.copy_out(0, now);
        rest = later;
    }
    assert!(rest.is_empty(), "{} bytes of an image were not read", rest.len());
    Ok(())
}

impl HostState {
    /// Answers a fetch.
    pub(super) fn serve_fetch(self: &Arc<Self>, rest: &[u8], mut answer: Answer) {
        let room = answer.room();
        match self.fetch(rest, room, answer.bytes()) {
            Ok(None) => answer.send(),
            Ok(Some(fetch)) => answer.send_from(Box::new(Image {
                host: Arc::downgrade(self),
                fetch,
                is_whole: true,
            })),
            Err(error) => answer.fail(error),
        }
    }

    /// Its bytes in the answer, or what is to go into the memory that was lent.
    fn fetch(&self, rest: &[u8], room: usize, answer: &mut Vec<u8>) -> Result<Option<Fetch>> {
        let fetch = wire::read_fetch(rest)?;
        let is_inside = fetch
            .from
            .checked_add(fetch.len)
            .is_some_and(|end| end <= Part::image_len());
        if fetch.len > LIMIT as u64 || !is_inside {
            return Err(Error::Invalid(format!(
                "{} bytes of an extent from {} on",
                fetch.len, fetch.from
            )));
        }
        if room > 0 {
            answer.extend_from_slice(&wire::FETCHED);
            return Ok(Some(fetch));
        }
        answer.resize(fetch.len as usize, 0);
        self.read_frozen(fetch, answer).map(|()| None)
    }

    fn read_frozen(&self, fetch: Fetch, into: &mut [u8]) -> Result<()> {
        let frozen = self.frozen.lock();
        if frozen.get(&fetch.extent) != Some(&fetch.freeze) {
            return Err(Error::Revoked(format!("{} is not frozen for that", fetch.extent)));
        }
        read(&self.part, fetch, into)
    }
}

/// A piece that is read when it is sent. Each read looks whether the extent is frozen still, in the same migration
/// epoch, which never comes again: so all bytes are of one state.
struct Image {
    host: Weak<HostState>,
    fetch: Fetch,
    is_whole: bool,
}

impl Source for Image {
    fn size(&self) -> usize {
        self.fetch.len as usize
    }

    fn read(&mut self, at: usize, into: &mut [u8]) {
        let from = self.fetch.from + at as u64;
        let fetch = Fetch { from, ..self.fetch };
        let host = self.host.upgrade().filter(|host| !host.is_stopping());
        let is_read = host.is_some_and(|host| host.read_frozen(fetch, into).is_ok());
        if !is_read {
            into.fill(0);
            self.is_whole = false;
        }
    }

    fn finish(self: Box<Self>, answer: &mut [u8]) {
        if !self.is_whole {
            answer.fill(0);
        }
    }
}

fn slot_of(part: &Part, extent: GlobalAddress) -> Result<u32> {
    let is_frozen = |slot: Slot| slot.used == Use::Frozen;
    if part.own_state(extent)?.is_some_and(is_frozen) {
        return Ok(extent.slot());
    }
    part.migrated_slot(extent).ok_or_else(|| gone(extent))
}

/// Fills a slot with the image of an extent that lies frozen elsewhere.
pub(super) fn fetch(part: &Part, slot: u32, from: &Channel, extent: GlobalAddress, freeze: u64) -> Result<()> {
    from.reach()?;
    let piece = |(from, len)| Fetch {
        extent,
        freeze,
        from,
        len,
    };
    let mut map = Vec::new();
    fetch_some(part, slot, from, &[piece((0, PIECE))], &mut map)?;
    let class = class_of(part, slot)?;
    let rest: Vec<Fetch> = behind_first(class, &map).into_iter().map(piece).collect();
    rest.chunks(AT_ONCE)
        .try_for_each(|some| fetch_some(part, slot, from, some, &mut map))
}

/// The class of the extent that comes to a slot.
fn class_of(part: &Part, slot: u32) -> Result<Class> {
    let state = part.saved(slot).load(Ordering::Acquire);
    match Slot::decode(state).map(|found| found.used) {
        Some(Use::Slab(class, _)) => Ok(class),
        _ => Err(Error::corrupt(format!(
            "the state of what comes to slot {slot}: {state:#018x}"
        ))),
    }
}

/// Fetches some pieces at once, and keeps the map if it is among them.
fn fetch_some(part: &Part, slot: u32, from: &Channel, some: &[Fetch], map: &mut Vec<u8>) -> Result<()> {
    let call = |fetch: &Fetch| Call::new(wire::fetch(*fetch)).into_memory(from.lend(fetch.len as usize));
    for (fetch, call) in some.iter().zip(from.post(some.iter().map(call).collect())?) {
        call.result.clone()?;
        let bytes = fetched(&call)?;
        write(part, slot, *fetch, bytes)?;
        if fetch.from == 0 {
            map.extend_from_slice(&bytes[..MAP as usize]);
        }
        from.give_back(call);
    }
    Ok(())
}

/// The pieces of an image behind its first that have objects, by the map: where they begin, and their length.
fn behind_first(class: Class, map: &[u8]) -> Vec<(u64, u64)> {
    let mut wanted = [false; GRANULES];
    for index in live(class, map) {
        let begin = u64::from(index) * class.size();
        let last = (begin + class.size() - 1) / GRANULE;
        wanted[(begin / GRANULE) as usize..=last as usize].fill(true);
    }
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    let first = (PIECE - MAP) / GRANULE;
    for n in (first..GRANULES as u64).filter(|n| wanted[*n as usize]) {
        let begin = (MAP + n * GRANULE).max(PIECE);
        let end = MAP + (n + 1) * GRANULE;
        match pieces.last_mut() {
            Some((from, len)) if *from + *len == begin && end - *from <= PIECE => *len = end - *from,
            _ => pieces.push((begin, end - begin)),
        }
    }
    pieces
}

/// The objects that a map tells of. It may come from a host that is broken: bits beyond the class are none.
fn live(class: Class, map: &[u8]) -> impl Iterator<Item = u32> {
    let word = move |word: u32| {
        let at = LINE + word as usize * 8;
        let bytes = map.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)) & class.mask(word)
    };
    let objects = move |n: u32| {
        let bits = word(n);
        (0..LIVE_BITS)
            .filter(move |bit| bits >> bit & 1 != 0)
            .map(move |bit| n * LIVE_BITS + bit)
    };
    (0..class.words()).flat_map(objects)
}

/// The bytes that a fetch has brought.
fn fetched(call: &Call) -> Result<&[u8]> {
    match (&call.memory[..], &call.answer[..]) {
        ([], bytes) => Ok(bytes),
        (bytes, answer) if answer == wire::FETCHED => Ok(bytes),
        _ => Err(Error::Revoked("an extent was thawed while it was fetched".into())),
    }
}

fn write(part: &Part, slot: u32, fetch: Fetch, bytes: &[u8]) -> Result<()> {
    // Memory that was lent may be longer.
    if (bytes.len() as u64) < fetch.len {
        return Err(Error::corrupt(format!(
            "{} bytes of {} of an extent",
            bytes.len(),
            fetch.len
        )));
    }
    let mut rest = &bytes[..fetch.len as usize];
    for piece in part.image(slot, fetch.from, fetch.len)? {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_in(0, now);
        rest = later;
    }
    assert!(rest.is_empty(), "{} bytes of an image were not written", rest.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_of(objects: &[u32]) -> Vec<u8> {
        let mut map = vec![0xff; LINE];
        map.resize(MAP as usize, 0);
        for object in objects {
            let at = LINE + (object / LIVE_BITS) as usize * 8;
            let word = u64::from_le_bytes(map[at..at + 8].try_into().expect("a word"));
            let word = word | 1 << (object % LIVE_BITS) | 5 << LIVE_BITS;
            map[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        map
    }

    fn is_fetched(pieces: &[(u64, u64)], at: u64) -> bool {
        at < PIECE || pieces.iter().any(|(from, len)| (*from..from + len).contains(&at))
    }

    /// A slab with one object was moved as a full one, 33 pieces.
    #[test]
    fn pieces_have_all_objects_and_little_else() {
        let class = Class::of(32 << 10).expect("a class");
        assert!(behind_first(class, &map_of(&[])).is_empty());
        assert!(behind_first(class, &map_of(&[0])).is_empty(), "the first piece has it");
        assert_eq!(behind_first(class, &map_of(&[40])), [(MAP + 40 * (32 << 10), 32 << 10)]);
        let full = behind_first(class, &map_of(&(0..class.count()).collect::<Vec<_>>()));
        assert_eq!(full.len(), 32, "{full:?}");
    }

    #[test]
    fn every_byte_of_an_object_is_fetched_once() {
        for class in Class::all() {
            let objects: Vec<u32> = (0..class.count()).filter(|n| n % 7 == 3 || n % 61 < 2).collect();
            let pieces = behind_first(class, &map_of(&objects));
            for object in objects {
                let begin = MAP + u64::from(object) * class.size();
                let ends = [begin, begin + class.size() - 1];
                assert!(
                    ends.iter().all(|at| is_fetched(&pieces, *at)),
                    "{class:?}: {object}, {pieces:?}"
                );
            }
            assert!(pieces.iter().all(|(_, len)| (1..=PIECE).contains(len)), "{pieces:?}");
            assert!(
                pieces.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0),
                "{pieces:?}"
            );
            let ends_inside = |(from, len): &(u64, u64)| from + len <= Part::image_len();
            assert!(pieces.iter().all(ends_inside), "{pieces:?}");
        }
    }

    #[test]
    fn bits_that_no_object_has_fetch_nothing() {
        let class = Class::of(256 << 10).expect("a class");
        let mut map = vec![0xff; MAP as usize];
        assert_eq!(live(class, &map).count(), class.count() as usize);
        map.truncate(LINE + 3);
        assert_eq!(live(class, &map).count(), 0, "a map that ends early");
    }
}
