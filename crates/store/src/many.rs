//! Many keys at once: what lies in other pods is under way for all of them together, and what lies here is prefetched.
//!
//! ```text
//!   1 the buckets' lines ─► 2 headers and keys ─► 3 words again, values or lists of chunks ─► 4 chunks ─► 5 control words
//! ```
//!
//! So a batch takes four or five trips, however many keys it has. What is not as simple as that is looked up alone:
//! keys of buckets that are about to move, or have several lines; what has changed meanwhile, is spilled, or lies in a
//! part that is away; long values of this pod, whose copying takes all the time.
//!
//! An item's bytes were the key's if its entry still stood there after its header was read, and its control word is the
//! same, and live, after all.

use super::chains::{Placed, is_leaving, next, placed};
use super::core::{Core, Key, now_micros};
use super::entry::State;
use super::fill::pieces;
use super::find::{Found, matching};
use super::heap::{Line, offset};
use super::item::{Control, HEADER};
use super::read::Value;
use cenote_base::{Error, Result, crc};
use cenote_space::Read;

/// Keys that are looked up together.
const TOGETHER: usize = 128;
/// Bytes of values that are read together, at most.
const BYTES_TOGETHER: u64 = 8 << 20;
/// Of so many hits in other pods one is counted in its item, as that takes a trip of its own.
const TOUCHED: usize = 16;

/// What is known of a key.
#[derive(Debug, Clone, Copy)]
enum Place {
    Found(Found),
    Nothing,
    /// It is to be looked up alone.
    Alone,
}

/// A value that is read together with others.
struct Reading<'k, 'b> {
    /// Which key of the batch.
    n: usize,
    key: Key<'k>,
    found: Found,
    into: &'b mut [u8],
    /// The addresses of its chunks.
    list: Vec<u8>,
    is_whole: bool,
}

impl Core {
    /// Copies values, each to memory of its own.
    pub(super) fn read_many_into<'a>(&self, mut pairs: Vec<(&'a [u8], &'a mut [u8])>) -> Vec<Result<Option<Value>>> {
        let mut results = Vec::with_capacity(pairs.len());
        for some in pairs.chunks_mut(TOGETHER) {
            let keys: Vec<_> = some.iter().map(|(key, _)| *key).collect();
            let places = self.places_of(&keys);
            let lens = self.together_lens(&places);
            let rooms = some.iter_mut().zip(lens);
            let rooms = rooms.map(|((_, into), len)| len.and_then(|len| into.get_mut(..len)));
            let values = self.read_together(&keys, &places, rooms.collect());
            for (n, (key, into)) in some.iter_mut().enumerate() {
                results.push(match (values[n], places[n]) {
                    (Some(value), _) => Ok(Some(value)),
                    (None, Place::Nothing) => self.missed(),
                    _ => self.read_to(key, &mut **into),
                });
            }
        }
        results
    }

    /// Copies values to memory that is used again and again, and tells of each, as long as `each` wants more.
    pub(super) fn read_each<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
        room: &mut Vec<u8>,
        mut each: impl FnMut(Result<Option<Value>>, &[u8]) -> bool,
    ) {
        let mut keys = keys.into_iter();
        loop {
            let some: Vec<_> = keys.by_ref().take(TOGETHER).collect();
            if some.is_empty() || !self.read_some(&some, room, &mut each) {
                return;
            }
        }
    }

    /// Whether more are wanted.
    fn read_some(
        &self,
        keys: &[&[u8]],
        room: &mut Vec<u8>,
        each: &mut impl FnMut(Result<Option<Value>>, &[u8]) -> bool,
    ) -> bool {
        let places = self.places_of(keys);
        let lens = self.together_lens(&places);
        let bytes = lens.iter().flatten().sum();
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        let (mut rest, mut rooms) = (&mut room[..], Vec::with_capacity(keys.len()));
        for len in &lens {
            rooms.push(len.map(|len| rest.split_off_mut(..len).unwrap_or_default()));
        }
        let values = self.read_together(keys, &places, rooms);
        let (mut at, mut alone) = (0, Vec::new());
        for (n, key) in keys.iter().enumerate() {
            let bytes = &room[at..at + lens[n].unwrap_or(0)];
            at += bytes.len();
            let is_wanted = match (values[n], places[n]) {
                (Some(value), _) => each(Ok(Some(value)), bytes),
                (None, Place::Nothing) => each(self.missed(), &[]),
                _ => {
                    let read = self.read_to(key, &mut alone);
                    let len = read.as_ref().map_or(0, |value| value.map_or(0, |_| alone.len()));
                    each(read, &alone[..len])
                }
            };
            if !is_wanted {
                return false;
            }
        }
        true
    }

    /// Which keys are there; `None`: to be looked up alone.
    pub(super) fn are_there(&self, keys: &[Key<'_>]) -> Vec<Option<bool>> {
        let mut there = Vec::with_capacity(keys.len());
        for some in keys.chunks(TOGETHER) {
            let keys: Vec<_> = some.iter().copied().map(Some).collect();
            let places = self.places(&keys);
            let found = places.iter().filter_map(|place| match place {
                Place::Found(found) => Some(found.place),
                _ => None,
            });
            let found: Vec<_> = found.collect();
            let at: Vec<_> = found.iter().map(|place| place.at).collect();
            let words = self.heap.words(&at).unwrap_or_default();
            let mut is_linked = words.iter().zip(&found).map(|(word, place)| *word == place.entry.raw());
            there.extend(places.iter().map(|place| match place {
                Place::Nothing => Some(false),
                Place::Found(_) => is_linked.next().filter(|is_linked| *is_linked),
                Place::Alone => None,
            }));
        }
        there
    }

    fn places_of(&self, keys: &[&[u8]]) -> Vec<Place> {
        let keys: Vec<_> = keys.iter().map(|key| self.key(key).ok()).collect();
        self.places(&keys)
    }

    /// Steps 1 and 2. What is wrong with a key, or a part, is found out by those that are looked up alone.
    fn places(&self, keys: &[Option<Key<'_>>]) -> Vec<Place> {
        let mut places = vec![Place::Alone; keys.len()];
        match self.look_together(keys, &mut places) {
            Ok(()) => places,
            Err(_) => vec![Place::Alone; keys.len()],
        }
    }

    fn look_together(&self, keys: &[Option<Key<'_>>], places: &mut [Place]) -> Result<()> {
        let view = self.view();
        let settled = |key: &Key<'_>| view.former(key.hash).is_none();
        let keys: Vec<_> = keys.iter().map(|key| key.filter(settled)).collect();
        let known = keys.iter().enumerate().filter_map(|(n, key)| Some((n, (*key)?)));
        let known: Vec<(usize, Key<'_>)> = known.collect();
        let bucket = |(_, key): &(usize, Key<'_>)| view.table.bucket(view.table.bucket_of(key.hash));
        let buckets = known.iter().map(bucket).collect::<Result<Vec<_>>>()?;
        let mut candidates = Vec::with_capacity(known.len());
        for ((n, key), line) in known.iter().zip(self.heap.lines(&buckets)?) {
            let before = candidates.len();
            if is_leaving(&line) {
                continue;
            }
            add_candidates(&line, *n, key, &mut candidates)?;
            if candidates.len() == before && next(&line).is_none() {
                places[*n] = Place::Nothing;
            }
        }
        self.see_together(&keys, candidates, places)
    }

    fn see_together(
        &self,
        keys: &[Option<Key<'_>>],
        candidates: Vec<(usize, Placed)>,
        places: &mut [Place],
    ) -> Result<()> {
        let len = |n: usize| HEADER + keys[n].map_or(0, |key| key.bytes.len());
        let mut bytes = vec![0; candidates.iter().map(|(n, _)| len(*n)).sum()];
        let (mut rest, mut reads) = (&mut bytes[..], Vec::with_capacity(candidates.len()));
        for (n, placed) in &candidates {
            reads.push(Read {
                address: placed.entry.item(),
                into: rest.split_off_mut(..len(*n)).unwrap_or_default(),
            });
        }
        self.heap.read_all(&mut reads)?;
        for ((n, place), read) in candidates.into_iter().zip(reads) {
            let header = keys[n].and_then(|key| matching(read.into, &key));
            match header {
                Some(header) if header.has_expired(now_micros) => places[n] = Place::Nothing,
                Some(header) if header.is_spilled() || !header.is_sane() => {}
                Some(header) => places[n] = Place::Found(Found { place, header }),
                None => {}
            }
        }
        Ok(())
    }

    /// How many bytes of a value are read together with others; `None` if it is read alone.
    fn together_lens(&self, places: &[Place]) -> Vec<Option<usize>> {
        let mut bytes = 0;
        let len = |place: &Place| {
            let Place::Found(found) = place else { return None };
            let (header, item) = (&found.header, found.place.entry.item());
            bytes += header.value_len;
            let is_together = header.chunks == 0 || !self.heap.space().is_near(item);
            (is_together && bytes <= BYTES_TOGETHER).then_some(header.value_len as usize)
        };
        places.iter().map(len).collect()
    }

    /// Steps 3 to 5: the values that were copied whole.
    fn read_together(&self, keys: &[&[u8]], places: &[Place], rooms: Vec<Option<&mut [u8]>>) -> Vec<Option<Value>> {
        let (mut values, mut readings) = (vec![None; keys.len()], Vec::new());
        for (n, room) in rooms.into_iter().enumerate() {
            if let (Place::Found(found), Some(into), Ok(key)) = (places[n], room, self.key(keys[n])) {
                readings.push(Reading::new(n, key, found, into));
            }
        }
        if self.copy_together(&mut readings).is_err() {
            return values;
        }
        let mut far = 0;
        for reading in readings.iter().filter(|reading| reading.is_whole) {
            let found = &reading.found;
            let is_near = self.heap.space().is_near(found.place.entry.item());
            far += usize::from(!is_near);
            if is_near || far % TOUCHED == 1 {
                self.touch(found);
            }
            values[reading.n] = Some(self.counted_hit(&found.header));
        }
        values
    }

    fn copy_together(&self, readings: &mut [Reading<'_, '_>]) -> Result<()> {
        let entries: Vec<_> = readings.iter().map(|reading| reading.found.place.at).collect();
        let items: Vec<_> = readings
            .iter()
            .map(|reading| reading.found.place.entry.item())
            .collect();
        let mut reads = readings.iter_mut().map(Reading::first).collect::<Result<Vec<_>>>()?;
        reads.retain(|read| !read.into.is_empty());
        // The words after the headers were read, and before the control words are.
        let words = self.heap.read_with_words(reads, &entries)?;
        for (reading, word) in readings.iter_mut().zip(words) {
            reading.is_whole = word == reading.found.place.entry.raw() && reading.has_list();
        }
        let mut chunks = Vec::new();
        for reading in readings.iter_mut().filter(|reading| reading.is_whole) {
            reading.add_chunks(&mut chunks)?;
        }
        if !chunks.is_empty() {
            self.heap.read_all(&mut chunks)?;
        }
        for (reading, control) in readings.iter_mut().zip(self.heap.words(&items)?) {
            let is_same = Control(control).is_same_live(reading.found.header.control);
            reading.is_whole &= is_same && reading.has_value();
        }
        Ok(())
    }
}

impl<'k, 'b> Reading<'k, 'b> {
    fn new(n: usize, key: Key<'k>, found: Found, into: &'b mut [u8]) -> Self {
        Self {
            n,
            key,
            found,
            into,
            list: vec![0; 8 * found.header.chunks as usize],
            is_whole: false,
        }
    }

    /// What is read first: the value, or the list of its chunks.
    fn first(&mut self) -> Result<Read<'_>> {
        let address = offset(self.found.place.entry.item(), self.found.header.body())?;
        let into = match self.list.is_empty() {
            true => &mut *self.into,
            false => &mut self.list[..],
        };
        Ok(Read { address, into })
    }

    /// Whether header, key and list are what their checksum says.
    fn has_list(&self) -> bool {
        let header = &self.found.header;
        header.checksum(self.key.bytes, &self.list) == header.crc
    }

    fn has_value(&self) -> bool {
        let header = &self.found.header;
        !header.has_checksum() || crc::crc32c(self.into) == header.value_crc
    }

    /// The reads of its chunks.
    fn add_chunks<'r>(&'r mut self, reads: &mut Vec<Read<'r>>) -> Result<()> {
        let (item, header) = (self.found.place.entry.item(), &self.found.header);
        if self.list.is_empty() {
            return Ok(());
        }
        let mut rest = &mut *self.into;
        for (address, len) in pieces(item, header, &self.list, 0, header.value_len) {
            let too_short = || Error::corrupt("a value's pieces are longer than it is");
            reads.push(Read {
                address: address?,
                into: rest.split_off_mut(..len as usize).ok_or_else(too_short)?,
            });
        }
        Ok(())
    }
}

/// The entries of a line that may be the key's.
fn add_candidates(line: &Line, n: usize, key: &Key<'_>, to: &mut Vec<(usize, Placed)>) -> Result<()> {
    for placed in placed(line) {
        let placed = placed?;
        if placed.entry.state() == State::Committed && placed.entry.may_be(key.hash) {
            to.push((n, placed));
        }
    }
    Ok(())
}
