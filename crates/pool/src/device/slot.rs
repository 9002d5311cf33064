//! A slot of the directory: two copies of a record, written in turn.
//!
//! ```text
//!  0 u64 sequence, the greater valid one counts    8 .. N-4 what the record says    N-4 u32 crc32c of bytes 0..N-4
//! ```
//!
//! A copy that fails its checksum is one that was being written, if the other one is valid or blank. Two that fail are
//! damage.

use crate::grant_table::GrantId;
use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Result};
use cenote_fabric::{FileRange, LINE, RegionMemory, coherence};

/// Bytes of a sequence.
const SEQUENCE: usize = 8;
/// Bytes of a host's longest name.
pub(crate) const HOST_NAME_MAX: usize = 64;

/// What a slot keeps.
pub(super) trait Record: Sized {
    /// Bytes of a copy: whole lines.
    const BYTES: usize;
    /// Bytes of a slot.
    const SLOT: u64 = 2 * Self::BYTES as u64;

    /// Writes it behind the sequence.
    fn encode(&self, bytes: &mut [u8]);

    /// Reads what [`Record::encode`] wrote, `None` if it cannot have.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// What a copy is.
enum Copy<R> {
    Blank,
    Torn,
    Valid(u64, R),
}

fn copy_of<R: Record>(bytes: &[u8]) -> Copy<R> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Copy::Blank;
    }
    let crc_at = R::BYTES - 4;
    let record = || {
        let is_whole = get_le::<u32>(bytes, crc_at)? == crc32c(&bytes[..crc_at]);
        let sequence = get_le::<u64>(bytes, 0).filter(|sequence| is_whole && *sequence > 0)?;
        Some((sequence, R::decode(&bytes[SEQUENCE..crc_at])?))
    };
    record().map_or(Copy::Torn, |(sequence, record)| Copy::Valid(sequence, record))
}

/// The record that counts, with its sequence and the number of its copy.
fn newest<R: Record>(memory: &RegionMemory, at: u64) -> Result<Option<(u64, usize, R)>> {
    if !planted(Fault::SlotDrop) {
        coherence::invalidate(memory, at, 2 * R::BYTES);
    }
    let bytes = memory.span(at, R::SLOT).to_vec();
    let (first, second) = bytes.split_at(R::BYTES);
    match (copy_of::<R>(first), copy_of::<R>(second)) {
        (Copy::Torn, Copy::Torn) => Err(Error::corrupt("both of its copies")),
        (Copy::Valid(one, _), Copy::Valid(two, record)) if two > one => Ok(Some((two, 1, record))),
        (Copy::Valid(sequence, record), _) => Ok(Some((sequence, 0, record))),
        (_, Copy::Valid(sequence, record)) => Ok(Some((sequence, 1, record))),
        _ => Ok(None),
    }
}

/// What a slot says, from memory; `None` if nothing was ever written there to its end.
pub(super) fn read<R: Record>(memory: &RegionMemory, at: u64) -> Result<Option<R>> {
    Ok(newest(memory, at)?.map(|(_, _, record)| record))
}

/// Writes a record over the older copy; it is in memory when this returns.
pub(super) fn write<R: Record>(memory: &RegionMemory, at: u64, record: &R) -> Result<()> {
    let (sequence, former) = newest::<R>(memory, at)?.map_or((0, 1), |(sequence, copy, _)| (sequence, copy));
    let mut bytes = vec![0; R::BYTES];
    let next = sequence.checked_add(1).ok_or_else(|| Error::corrupt("its sequence"))?;
    bytes[..SEQUENCE].copy_from_slice(&next.to_le_bytes());
    let crc_at = R::BYTES - 4;
    record.encode(&mut bytes[SEQUENCE..crc_at]);
    let crc = crc32c(&bytes[..crc_at]);
    bytes[crc_at..].copy_from_slice(&crc.to_le_bytes());
    let at = at + if former == 0 { R::BYTES as u64 } else { 0 };
    memory.span(at, R::BYTES as u64).copy_in(0, &bytes);
    if !planted(Fault::SlotFlush) {
        coherence::flush(memory, at, R::BYTES);
    }
    Ok(())
}

/// Where a grant lies on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrantPlace {
    pub(crate) grant: GrantId,
    /// Its holder's, or that of its freeing.
    pub(crate) epoch: u64,
    pub(crate) range: FileRange,
}

/// What has become of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeState {
    Granted,
    /// It holds zeros.
    Free,
}

/// What the directory says of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeRecord {
    pub(crate) place: GrantPlace,
    pub(crate) state: RangeState,
}

const GRANTED: u32 = 1;
const FREE: u32 = 2;

impl RangeRecord {
    pub(super) fn granted(place: GrantPlace) -> Self {
        let state = RangeState::Granted;
        Self { place, state }
    }

    pub(super) fn freed(place: GrantPlace) -> Self {
        let state = RangeState::Free;
        Self { place, state }
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.state == RangeState::Granted
    }
}

impl Record for RangeRecord {
    const BYTES: usize = LINE;

    fn encode(&self, bytes: &mut [u8]) {
        let GrantPlace { grant, epoch, range } = self.place;
        let words = [grant.0, epoch, range.offset, range.bytes];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let state = if self.is_granted() { GRANTED } else { FREE };
        bytes[32..36].copy_from_slice(&state.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| get_le::<u64>(bytes, 8 * at);
        let state = match get_le::<u32>(bytes, 32)? {
            GRANTED => RangeState::Granted,
            FREE => RangeState::Free,
            _ => return None,
        };
        let range = FileRange {
            offset: word(2)?,
            bytes: word(3)?,
        };
        let place = GrantPlace {
            grant: GrantId(word(0)?),
            epoch: word(1)?,
            range,
        };
        Some(Self { place, state })
    }
}

/// What the agent of a host keeps beyond the life of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostRecord {
    pub(crate) name: String,
    /// The host's epoch when it joined last.
    pub(crate) epoch: u64,
    /// The latest term that a manager of the pool had: one with an older term leads no more.
    pub(crate) term: u64,
}

impl Record for HostRecord {
    const BYTES: usize = 2 * LINE;

    fn encode(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.term.to_le_bytes());
        let name = &self.name.as_bytes()[..self.name.len().min(HOST_NAME_MAX)];
        bytes[16..20].copy_from_slice(&(name.len() as u32).to_le_bytes());
        bytes[20..20 + name.len()].copy_from_slice(name);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let len = get_le::<u32>(bytes, 16)? as usize;
        let name = bytes
            .get(20..20 + len.min(HOST_NAME_MAX))
            .filter(|name| name.len() == len)?;
        Some(Self {
            name: std::str::from_utf8(name).ok()?.into(),
            epoch: get_le(bytes, 0)?,
            term: get_le(bytes, 8)?,
        })
    }
}

const _: () = assert!(
    HostRecord::BYTES >= SEQUENCE + 20 + HOST_NAME_MAX + 4,
    "a host's record holds its name"
);
const _: () = assert!(RangeRecord::BYTES == LINE, "a range's record is one line");
