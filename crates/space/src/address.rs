//! Where an object lies: an address that means the same in every process that uses the space.
//!
//! ```text
//!   63          46 45      38 37           21 20                     0
//!  ┌──────────────┬──────────┬───────────────┬────────────────────────┐
//!  │ generation   │ part     │ slot          │ offset in the extent   │
//!  │ 18 bits      │ 8 bits   │ 17 bits       │ 21 bits                │
//!  └──────────────┴──────────┴───────────────┴────────────────────────┘
//! ```
//!
//! The generation is that of the extent at the time; it rises each time the extent is handed out, so an address of a
//! former use does not fit any more. Extents of a run have one generation and consecutive slots: `address + n` walks
//! through all of it.

use cenote_base::{Error, Result};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// Bits of the offset in an extent: extents have 2 MiB.
pub(super) const OFFSET_BITS: u32 = 21;
/// Bits of the slot.
pub(super) const SLOT_BITS: u32 = 17;
const PART_BITS: u32 = 8;
const GENERATION_BITS: u32 = 18;
const PART_SHIFT: u32 = OFFSET_BITS + SLOT_BITS;
/// Where the generation begins, in addresses, states of slots and live words alike.
pub(super) const GENERATION_SHIFT: u32 = PART_SHIFT + PART_BITS;
/// The last generation that a slot can have.
pub(super) const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;
/// The place within a part: slot and offset.
const PLACE_MASK: u64 = (1 << PART_SHIFT) - 1;

const _: () = assert!(GENERATION_SHIFT + GENERATION_BITS == 64);
const _: () = assert!(1 << OFFSET_BITS == crate::extent::EXTENT);
// A part's number is a byte, slot and generation are 32 bits, wherever they are cut out of an address.
const _: () = assert!(PART_BITS == u8::BITS);
const _: () = assert!(SLOT_BITS <= u32::BITS && GENERATION_BITS <= u32::BITS);

/// Where an object, or a byte of one, lies in a space. See the module.
///
/// Any `u64` can be made one: it may come from memory that others write. What it means is checked when it is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GlobalAddress(u64);

impl GlobalAddress {
    /// No object's.
    pub const NULL: Self = Self(0);

    /// From its number, which may be any.
    #[inline(always)]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Its number, to be kept in memory.
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Of its fields. Those that have too many bits are an error.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the field.
    pub fn new(part: u8, slot: u32, offset: u32, generation: u32) -> Result<Self> {
        let fits = |name: &str, value: u32, bits: u32| match value >> bits {
            0 => Ok(u64::from(value)),
            _ => Err(Error::Invalid(format!(
                "{name} {value} of an address has more than {bits} bits"
            ))),
        };
        let place = fits("slot", slot, SLOT_BITS)? << OFFSET_BITS | fits("offset", offset, OFFSET_BITS)?;
        let generation = fits("generation", generation, GENERATION_BITS)?;
        Ok(Self(
            generation << GENERATION_SHIFT | u64::from(part) << PART_SHIFT | place,
        ))
    }

    /// The address of its extent's first byte.
    #[inline(always)]
    pub(super) const fn extent(self) -> Self {
        Self(self.0 >> OFFSET_BITS << OFFSET_BITS)
    }

    /// Whether it is no object's.
    #[inline(always)]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The part of the space, that is, the memory node's grant; 0 in no valid one.
    #[inline(always)]
    pub const fn part(self) -> u8 {
        (self.0 >> PART_SHIFT) as u8
    }

    /// The extent's number in its part.
    #[inline(always)]
    pub const fn slot(self) -> u32 {
        (self.0 >> OFFSET_BITS) as u32 & ((1 << SLOT_BITS) - 1)
    }

    /// Bytes from the extent's start.
    #[inline(always)]
    pub const fn offset(self) -> u32 {
        self.0 as u32 & ((1 << OFFSET_BITS) - 1)
    }

    /// The extent's generation when it was given out; 0 in no valid one.
    #[inline(always)]
    pub const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// Bytes from the first extent's start on: slot and offset together.
    #[inline(always)]
    pub(super) const fn place(self) -> u64 {
        self.0 & PLACE_MASK
    }

    /// Whether a state or live word is of the same generation.
    #[inline(always)]
    pub(super) const fn is_of(self, word: u64) -> bool {
        (self.0 ^ word) >> GENERATION_SHIFT == 0
    }

    /// The address `bytes` further on; `None` if no part reaches so far. Whether it is still in the object is checked
    /// when it is used.
    #[inline]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        if bytes > PLACE_MASK - self.place() {
            return None;
        }
        Some(Self(self.0 + bytes))
    }

    /// The address `bytes` before; `None` if it would lie before the part.
    #[inline]
    pub const fn checked_sub(self, bytes: u64) -> Option<Self> {
        if bytes > self.place() {
            return None;
        }
        Some(Self(self.0 - bytes))
    }

    /// How far it lies behind `start`, in bytes; `None` if it does not, or is of another part or generation.
    pub const fn offset_from(self, start: Self) -> Option<u64> {
        if self.0 & !PLACE_MASK != start.0 & !PLACE_MASK {
            return None;
        }
        self.0.checked_sub(start.0)
    }
}

/// As `part.slot+offset@generation`.
impl fmt::Display for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() {
            return f.write_str("null");
        }
        let (part, slot, offset) = (self.part(), self.slot(), self.offset());
        write!(f, "{part}.{slot}+{offset}@{}", self.generation())
    }
}

impl fmt::Debug for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for GlobalAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "null" {
            return Ok(Self::NULL);
        }
        let fields = || {
            let (part, rest) = text.split_once('.')?;
            let (slot, rest) = rest.split_once('+')?;
            let (offset, generation) = rest.split_once('@')?;
            let number = |digits: &str| digits.parse::<u32>().ok();
            Some((part.parse().ok()?, number(slot)?, number(offset)?, number(generation)?))
        };
        let (part, slot, offset, generation) = fields()
            .ok_or_else(|| Error::Invalid(format!("{text:?} is no address: part.slot+offset@generation is one")))?;
        Self::new(part, slot, offset, generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> GlobalAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn it_reads_as_it_prints() {
        let a = GlobalAddress::new(2, 17, 4096, 3).expect("fits");
        assert_eq!(a.to_string(), "2.17+4096@3");
        assert_eq!(address("2.17+4096@3"), a);
        assert_eq!((a.part(), a.slot(), a.offset(), a.generation()), (2, 17, 4096, 3));
        let last = address("255.131071+2097151@262143");
        assert_eq!(last.raw(), u64::MAX);
        assert_eq!(address("null"), GlobalAddress::NULL);
        assert_eq!(address("0.0+0@0"), GlobalAddress::NULL);
    }

    #[test]
    fn what_is_no_address_is_said() {
        for text in [
            "",
            "1",
            "1.2",
            "1.2+3",
            "256.0+0@1",
            "1.131072+0@1",
            "1.0+2097152@1",
            "1.0+0@262144",
            "1.-1+0@1",
        ] {
            let error = text.parse::<GlobalAddress>().expect_err(text);
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
    }

    #[test]
    fn it_walks_through_the_extents_of_its_part_and_no_further() {
        let a = address("1.7+2097151@9");
        assert_eq!(a.checked_add(1), Some(address("1.8+0@9")));
        assert_eq!(a.checked_add(1).and_then(|b| b.checked_sub(1)), Some(a));
        assert_eq!(a.checked_add(1).and_then(|b| b.offset_from(a)), Some(1));
        let end = address("1.131071+2097151@9");
        assert_eq!(
            (end.checked_add(0), end.checked_add(1), end.checked_add(u64::MAX)),
            (Some(end), None, None)
        );
        let start = address("1.0+5@9");
        assert_eq!(
            (start.checked_sub(5), start.checked_sub(6)),
            (Some(address("1.0+0@9")), None)
        );
        assert_eq!(address("1.0+5@8").offset_from(address("1.0+0@9")), None);
        assert_eq!(address("2.0+5@9").offset_from(address("1.0+0@9")), None);
        assert_eq!(start.offset_from(a), None);
    }
}
