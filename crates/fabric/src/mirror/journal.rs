//! The journal of a mirror on another machine: what makes a fence's lines arrive all or not at all.
//!
//! A write over the fabric may be seen in part, in any order of words, and a holder may die in it. So lines do not go to
//! their places first. A *record* of them is appended to a ring beside the mirror, with its number and a checksum, and
//! only when it is there may its lines be placed:
//!
//! ```text
//!      0  slot 0 │ slot 1      number and place of the first record whose lines are not all placed; the later one counts
//!   4096  record 17 │ record 18 │ record 19, cut off ...          each at a multiple of 64, none goes round the end
//!
//!   record    0 u64 magic   8 u64 stream   16 u64 number   24 u32 runs   28 u32 bytes of the body
//!            32 u32 crc32c of the body    36 u32 crc32c of 0..36        64 body: runs (u64 offset, u64 bytes), then lines
//!   slot      0 u64 magic   8 u64 stream   16 u64 number   24 u64 place   32 u32 crc32c of 0..32
//! ```
//!
//! Invariants:
//! 1. records are numbered without a gap, so what [`replay`] finds is a *prefix of the order of fences*: it stops at the
//!    first record that is not there whole, whatever has come of later ones;
//! 2. a line is placed after its record is there, and a record is overwritten after its lines are placed, or a later
//!    record that is there has them, and a slot says so: a line that arrived half is written again from its record;
//! 3. a stream begins with an empty journal, and has a number of its own: what an earlier one left is not believed.

use super::lines::{Piece, bytes_of, runs};
use crate::LINE;
use cenote_base::bytes::read_le;
use cenote_base::crc::crc32c;
use cenote_base::{Error, Result};

/// Bytes of a journal.
pub const JOURNAL: u64 = 8 << 20;
/// Bytes before the records.
pub(super) const RECORDS_AT: u64 = 4096;
/// Bytes of all records.
pub(super) const CAPACITY: u64 = JOURNAL - RECORDS_AT;
/// Lines of a record at most.
pub(super) const LINES_MAX: usize = 8192;
const RUN: usize = 16;
const HEAD: usize = 64;
pub(super) const SLOT: usize = 64;
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"CENOTEMR");
const SLOT_MAGIC: u64 = u64::from_le_bytes(*b"CENOTEMS");
/// Bytes of a record at most.
pub(super) const RECORD_MAX: u64 = (HEAD + LINES_MAX * (RUN + LINE)) as u64;
const _: () = {
    assert!(RECORD_MAX * 8 < CAPACITY, "many records are in a journal");
    assert!(RECORDS_AT >= 2 * SLOT as u64, "slots lie before the records");
};

/// Where the records begin that have to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) stream: u64,
    pub(super) number: u64,
    pub(super) place: u64,
}

impl Slot {
    pub(super) fn encode(self) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        let words = [SLOT_MAGIC, self.stream, self.number, self.place];
        bytes[..32].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        let crc = crc32c(&bytes[..32]);
        bytes[32..36].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let is_whole = read_le::<u32>(bytes, 32) == crc32c(&bytes[..32]);
        let slot = Self {
            stream: read_le(bytes, 8),
            number: read_le(bytes, 16),
            place: read_le(bytes, 24),
        };
        let is_sound = slot.place < CAPACITY && slot.place.is_multiple_of(LINE as u64);
        (is_whole && is_sound && read_le::<u64>(bytes, 0) == SLOT_MAGIC).then_some(slot)
    }
}

/// A record of `lines`, which are in the order of memory.
pub(super) fn record(stream: u64, number: u64, lines: &[Piece<'_>]) -> Box<[u8]> {
    let count = runs(lines).count();
    let body = count * RUN + bytes_of(lines);
    let len = (HEAD + body).next_multiple_of(LINE);
    let mut record = Vec::with_capacity(len);
    record.resize(HEAD, 0);
    for run in runs(lines) {
        record.extend_from_slice(&run[0].0.to_le_bytes());
        record.extend_from_slice(&(bytes_of(run) as u64).to_le_bytes());
    }
    lines.iter().for_each(|(_, bytes)| record.extend_from_slice(bytes));
    let crc = crc32c(&record[HEAD..]);
    let words = [RECORD_MAGIC, stream, number];
    record[..24].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
    let words = [count as u32, body as u32, crc];
    record[24..36].copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
    let crc = crc32c(&record[..36]);
    record[36..40].copy_from_slice(&crc.to_le_bytes());
    record.resize(len, 0);
    record.into_boxed_slice()
}

/// The lines of a record that [`record`] has made.
pub(super) fn lines_of(record: &[u8]) -> Vec<Piece<'_>> {
    let (count, len): (u32, u32) = (read_le(record, 24), read_le(record, 28));
    let runs = runs_of(count as usize, &record[HEAD..HEAD + len as usize], u64::MAX);
    runs.expect("the runs of a record lie in it")
}

/// Where a record of `len` bytes goes that comes after `tail`: none goes round the end.
pub(super) fn place_after(tail: u64, len: u64) -> u64 {
    if tail + len <= CAPACITY { tail } else { 0 }
}

/// The body of the record with this number at `place`, if it is there whole; and its runs.
fn body(records: &[u8], place: u64, slot: Slot, number: u64) -> Option<(usize, &[u8])> {
    let record = records.get(place as usize..)?;
    let head = record.get(..HEAD)?;
    let words: [u64; 3] = core::array::from_fn(|i| read_le(head, 8 * i));
    let is_it = words == [RECORD_MAGIC, slot.stream, number] && read_le::<u32>(head, 36) == crc32c(&head[..36]);
    let (runs, len, crc) = (
        read_le::<u32>(head, 24),
        read_le::<u32>(head, 28),
        read_le::<u32>(head, 32),
    );
    let body = record.get(HEAD..)?.get(..len as usize).filter(|_| is_it)?;
    let fits = runs as usize * RUN <= body.len() && crc32c(body) == crc;
    fits.then_some((runs as usize, body))
}

/// What a journal had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were there whole, one after the other.
    pub records: u64,
    /// Lines that they had.
    pub lines: u64,
}

/// Gives the lines of all records that have to be placed to `place`, in the order of fences: offset and bytes. A
/// journal in which no stream has begun has none. One that names lines outside of `len` bytes ends there.
///
/// # Errors
/// [`Error::Mismatch`] if it is no journal; those of `place`.
pub fn replay(journal: &[u8], len: u64, mut place: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<Replayed> {
    if journal.len() as u64 != JOURNAL {
        let text = format!("a mirror's journal has {JOURNAL} bytes, and not {}", journal.len());
        return Err(Error::Mismatch(text));
    }
    let slots = [0, SLOT].map(|at| Slot::decode(&journal[at..at + SLOT]));
    let mut done = Replayed::default();
    let Some(slot) = slots.into_iter().flatten().max_by_key(|slot| slot.number) else {
        return Ok(done);
    };
    let records = &journal[RECORDS_AT as usize..];
    let (mut at, mut number) = (slot.place, slot.number);
    loop {
        let found = [at, 0]
            .into_iter()
            .find_map(|at| Some((at, body(records, at, slot, number)?)));
        let Some((from, (runs, body))) = found else {
            return Ok(done);
        };
        let Some(runs) = runs_of(runs, body, len) else {
            return Ok(done);
        };
        for (at, lines) in runs {
            place(at, lines)?;
            done.lines += (lines.len() / LINE) as u64;
        }
        done.records += 1;
        at = from + ((HEAD + body.len()).next_multiple_of(LINE)) as u64;
        // No stream comes so far: only nonsense has the last number.
        let Some(next) = number.checked_add(1) else {
            return Ok(done);
        };
        number = next;
    }
}

/// The runs of a body, if all of them lie within `len` bytes.
fn runs_of(runs: usize, body: &[u8], len: u64) -> Option<Vec<(u64, &[u8])>> {
    let (heads, mut lines) = body.split_at(runs * RUN);
    let mut found = Vec::with_capacity(runs);
    for head in heads.as_chunks::<RUN>().0 {
        let (at, bytes): (u64, u64) = (read_le(head, 0), read_le(head, 8));
        at.checked_add(bytes).filter(|end| *end <= len)?;
        let (run, rest) = lines.split_at_checked(usize::try_from(bytes).ok()?)?;
        found.push((at, run));
        lines = rest;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal_of(records: &[Box<[u8]>], slot: Slot) -> Vec<u8> {
        let mut journal = vec![0; JOURNAL as usize];
        journal[..SLOT].copy_from_slice(&slot.encode());
        let mut at = slot.place;
        for record in records {
            let place = place_after(at, record.len() as u64);
            let from = (RECORDS_AT + place) as usize;
            journal[from..from + record.len()].copy_from_slice(record);
            at = place + record.len() as u64;
        }
        journal
    }

    fn replayed(journal: &[u8]) -> Result<(Replayed, Vec<(u64, u8)>)> {
        let mut placed = Vec::new();
        let done = replay(journal, 1 << 20, |at, bytes| {
            placed.push((at, bytes[0]));
            Ok(())
        })?;
        Ok((done, placed))
    }

    fn record_of(stream: u64, number: u64, at: u64, value: u8) -> Box<[u8]> {
        record(stream, number, &[(at, &[value; LINE])])
    }

    /// Whichever byte of a record is missing, neither it nor a later one counts.
    #[test]
    fn a_record_that_arrived_half_ends_the_journal() {
        let slot = Slot {
            stream: 9,
            number: 5,
            place: 128,
        };
        let records: Vec<Box<[u8]>> = (0..3).map(|i| record_of(9, 5 + i, 64 * i, 1 + i as u8)).collect();
        let whole = journal_of(&records, slot);
        assert_eq!(replayed(&whole).expect("sound").1, [(0, 1), (64, 2), (128, 3)]);
        let second = (RECORDS_AT + 128) as usize + records[0].len();
        for byte in (0..36).chain(HEAD..HEAD + RUN + LINE) {
            let mut cut = whole.clone();
            cut[second + byte] ^= 0xff;
            let (done, placed) = replayed(&cut).expect("sound");
            assert_eq!((done.records, placed), (1, vec![(0, 1)]), "byte {byte}");
        }
    }

    #[test]
    fn a_record_gives_its_lines_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        let sorted = [(0, &bytes[..64]), (128, &bytes[64..192]), (4096, &bytes[192..])];
        assert_eq!(lines_of(&record(9, 1, &sorted)), sorted);
    }

    /// What another stream left is not believed, nor a slot that arrived half, and records go on at the beginning when
    /// there is no room for them at the end.
    #[test]
    fn streams_slots_and_the_end_of_the_ring() {
        let last = CAPACITY - 192;
        let slot = Slot {
            stream: 9,
            number: 1,
            place: last,
        };
        let records = [record_of(9, 1, 0, 1), record_of(9, 2, 64, 2), record_of(8, 3, 0, 3)];
        let mut journal = journal_of(&records, slot);
        assert_eq!(replayed(&journal).expect("sound").1, [(0, 1), (64, 2)]);
        let later = Slot {
            number: 2,
            place: 0,
            ..slot
        };
        journal[SLOT..2 * SLOT].copy_from_slice(&later.encode());
        assert_eq!(replayed(&journal).expect("sound").1, [(64, 2)]);
        journal[SLOT + 20] ^= 1;
        assert_eq!(
            replayed(&journal).expect("sound").0.records,
            2,
            "the former slot counts"
        );
        journal[..SLOT].fill(0);
        assert_eq!(replayed(&journal).expect("sound").0, Replayed::default());
        assert!(replay(&journal[1..], 64, |_, _| Ok(())).is_err());
        let last = Slot {
            number: u64::MAX,
            place: 0,
            ..slot
        };
        let end = journal_of(&[record_of(9, u64::MAX, 0, 1)], last);
        assert_eq!(replayed(&end).expect("a journal").0.records, 1, "no number follows");
        let beyond = journal_of(&[record_of(9, 1, 1 << 20, 1)], slot);
        assert_eq!(
            replayed(&beyond).expect("a journal").0,
            Replayed::default(),
            "nonsense ends it"
        );
    }
}
