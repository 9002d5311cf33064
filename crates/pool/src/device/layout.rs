//! Where what lies on a device, and its header.
//!
//! ```text
//!   0 magic "CENOTEDV"     8 u32 format version    12 zero
//!  16 u128 pool           32 u64 device            40 u64 length of the device in bytes
//!  48 u32 extents         52 u32 bytes of an extent, in MiB      56 zero     60 u32 crc32c of bytes 0..60
//! ```

use super::slot::{HostRecord, RangeRecord, Record};
use crate::grant_table::NodeId;
use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::{FileRange, LINE, RegionMemory, coherence};
use cenote_space::EXTENT;

const MAGIC: [u8; 8] = *b"CENOTEDV";
/// The version of this format that is written and understood.
const FORMAT_VERSION: u32 = 1;
const VERSION: usize = 8;
const POOL: usize = 16;
const DEVICE: usize = 32;
const LENGTH: usize = 40;
const EXTENTS: usize = 48;
const GRANULE_MIB: usize = 52;
const CRC: usize = 60;
const HEADER: usize = 64;
const MIB: u64 = 1 << 20;

/// What ranges are multiples of, where the device asks for no more.
const GRANULE: u64 = EXTENT;
/// Hosts of a device.
pub(super) const HOSTS_MAX: u64 = 64;
const HOSTS: u64 = 4096;
const RANGES: u64 = HOSTS + HOSTS_MAX * HostRecord::SLOT;
/// Bytes of the directory before the ranges.
pub(super) const HEAD: u64 = RANGES;
const _: () = assert!(
    HEADER == LINE,
    "the header is one line, which arrives whole or not at all"
);
const _: () = assert!(RANGES.is_multiple_of(LINE as u64), "a slot begins with a line");
const _: () = assert!(GRANULE.is_multiple_of(MIB), "an extent is said in MiB");

/// Where what lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) extents: u64,
    /// Bytes of an extent.
    pub(super) granule: u64,
    /// Where the first one begins.
    pub(super) start: u64,
}

impl Layout {
    /// Of a device of `length` bytes with this alignment.
    pub(super) fn of(length: u64, align: u64) -> Result<Self> {
        let granule = GRANULE.max(align);
        if !granule.is_multiple_of(GRANULE) || !granule.is_multiple_of(align) || granule / MIB > u64::from(u32::MAX) {
            return Err(Error::Mismatch(format!(
                "an alignment of {} cannot be used",
                ByteSize(align)
            )));
        }
        let start = |extents: u64| (RANGES + extents * RangeRecord::SLOT).next_multiple_of(granule);
        let mut extents = (length / granule).min(u64::from(u32::MAX));
        while extents > 0 && start(extents) + extents * granule > length {
            extents -= 1;
        }
        match extents {
            0 => Err(Error::Full(format!(
                "a device of {} has no room for a directory and an extent of {}",
                ByteSize(length),
                ByteSize(granule)
            ))),
            _ => Ok(Self {
                extents,
                granule,
                start: start(extents),
            }),
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.extents * self.granule
    }

    pub(super) fn host_slot(number: u64) -> u64 {
        HOSTS + number * HostRecord::SLOT
    }

    pub(super) fn range_slot(&self, extent: u64) -> u64 {
        RANGES + extent * RangeRecord::SLOT
    }

    /// The first extent of a range, if it is one of whole extents.
    pub(super) fn extent_of(&self, range: FileRange) -> Option<u64> {
        let from = range.offset.checked_sub(self.start)?;
        let is_whole = from.is_multiple_of(self.granule) && range.bytes.is_multiple_of(self.granule);
        let is_inside = range.bytes > 0 && range.end()? <= self.end();
        (is_whole && is_inside).then(|| from / self.granule)
    }
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) pool: u128,
    pub(super) device: NodeId,
    pub(super) length: u64,
    pub(super) granule: u64,
    pub(super) extents: u64,
}

impl Header {
    pub(super) fn write(&self, memory: &RegionMemory) {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[VERSION..VERSION + 4].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[POOL..POOL + 16].copy_from_slice(&self.pool.to_le_bytes());
        bytes[DEVICE..DEVICE + 8].copy_from_slice(&self.device.0.to_le_bytes());
        bytes[LENGTH..LENGTH + 8].copy_from_slice(&self.length.to_le_bytes());
        bytes[EXTENTS..EXTENTS + 4].copy_from_slice(&(self.extents as u32).to_le_bytes());
        bytes[GRANULE_MIB..GRANULE_MIB + 4].copy_from_slice(&((self.granule / MIB) as u32).to_le_bytes());
        let crc = crc32c(&bytes[..CRC]);
        bytes[CRC..].copy_from_slice(&crc.to_le_bytes());
        memory.span(0, HEADER as u64).copy_in(0, &bytes);
        coherence::flush(memory, 0, HEADER);
    }

    pub(super) fn read(memory: &RegionMemory, name: &str) -> Result<Self> {
        coherence::invalidate(memory, 0, HEADER);
        Self::decode(&memory.span(0, HEADER as u64).to_vec(), name)
    }

    pub(super) fn decode(bytes: &[u8], name: &str) -> Result<Self> {
        let (u32_at, u64_at) = (|at| get_le::<u32>(bytes, at), |at| get_le::<u64>(bytes, at));
        if bytes.get(..8) != Some(&MAGIC) {
            return Err(Error::Mismatch(format!(
                "{name} has no directory of a pool: format it, on one host (cenote host --format), or make it a file (--size)"
            )));
        }
        if u32_at(VERSION) != Some(FORMAT_VERSION) {
            let version = u32_at(VERSION).unwrap_or(0);
            return Err(Error::Mismatch(format!(
                "{name} has a directory of format {version}; this program knows {FORMAT_VERSION}"
            )));
        }
        if u32_at(CRC) != Some(crc32c(&bytes[..CRC])) {
            return Err(Error::corrupt(format!("{name}: the directory's header: its checksum")));
        }
        let header = || {
            Some(Self {
                pool: get_le::<u128>(bytes, POOL)?,
                device: NodeId(u64_at(DEVICE)?),
                length: u64_at(LENGTH)?,
                granule: u64::from(u32_at(GRANULE_MIB)?) * MIB,
                extents: u64::from(u32_at(EXTENTS)?),
            })
        };
        header().ok_or_else(|| Error::corrupt(format!("{name}: the directory's header: its length")))
    }
}

/// Whether a directory's place holds nothing.
pub(super) fn is_blank(memory: &RegionMemory) -> bool {
    coherence::invalidate(memory, 0, memory.len() as usize);
    memory.span(0, memory.len()).to_vec().iter().all(|byte| *byte == 0)
}
