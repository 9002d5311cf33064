//! Identities: what the database names its pages, records, transactions and instants by.
//!
//! Each is a type with its encoding beside it, so that a page number is never taken for a log
//! position. Invariants:
//! - all are little endian when written, and fit the widths given here for good;
//! - zero is "none" for [`Lsn`], [`RecordAddr`], [`TxId`] and [`Cts`]; a page id has no "none";
//! - their order is the order of their parts as declared, which for packed ones is that of `raw()`.

use core::fmt;

/// Bytes in a page of the database, in a frame, and in a block of page storage.
pub const PAGE_SIZE: usize = 16 * 1024;

/// Names a page: which file of pages (a *space*), and which page in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct PageId {
    /// The space; each tree has its own.
    pub space: u32,
    /// The page within the space, from 0 (the space's header).
    pub page: u32,
}

const _: () = assert!(size_of::<PageId>() == 8);

impl PageId {
    /// The page `page` of space `space`.
    #[inline]
    pub const fn new(space: u32, page: u32) -> Self {
        Self { space, page }
    }

    /// Both parts in one word, space above page: ordered as the type is.
    #[inline]
    pub const fn raw(self) -> u64 {
        (self.space as u64) << 32 | self.page as u64
    }

    /// What [`PageId::raw`] packed.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Self::new((raw >> 32) as u32, raw as u32)
    }

    /// As it is written: space, then page, each little endian.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 8] {
        let (s, p) = (self.space.to_le_bytes(), self.page.to_le_bytes());
        [s[0], s[1], s[2], s[3], p[0], p[1], p[2], p[3]]
    }

    /// What [`PageId::to_bytes`] wrote.
    #[inline]
    pub const fn from_bytes(b: [u8; 8]) -> Self {
        Self::new(
            u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        )
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.space, self.page)
    }
}

impl fmt::Debug for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageId({self})")
    }
}

/// A position in the redo log, in bytes since the database was made. Of a page: the end of the
/// last mini-transaction that changed it. Zero: never changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Lsn(u64);

impl Lsn {
    /// "Never": below every position of the log.
    pub const ZERO: Lsn = Lsn(0);
    /// Above every position of the log.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// The position `raw`.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The position as a number of bytes.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// `bytes` further on.
    #[inline]
    pub const fn advance(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Bytes from `earlier` to here; zero if it is not earlier.
    #[inline]
    pub const fn since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 as u32)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lsn({self})")
    }
}

/// Names a type that packs 16 bits above 48 into one word.
macro_rules! packed_16_48 {
    ($(#[$doc:meta])* $name:ident, $high:ident: $high_doc:literal, $low:ident: $low_doc:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// "None".
            pub const NONE: $name = $name(0);
            /// The greatest low part: 48 bits of ones.
            pub const LOW_MAX: u64 = (1 << 48) - 1;

            #[doc = concat!("From ", $high_doc, " and ", $low_doc, ", of which 48 bits are kept.")]
            #[inline]
            pub const fn new($high: u16, $low: u64) -> Self {
                debug_assert!($low <= Self::LOW_MAX);
                Self(($high as u64) << 48 | ($low & Self::LOW_MAX))
            }

            /// From the packed word.
            #[inline]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The packed word.
            #[inline]
            pub const fn raw(self) -> u64 {
                self.0
            }

            #[doc = concat!("The ", $high_doc, ".")]
            #[inline]
            pub const fn $high(self) -> u16 {
                (self.0 >> 48) as u16
            }

            #[doc = concat!("The ", $low_doc, ".")]
            #[inline]
            pub const fn $low(self) -> u64 {
                self.0 & Self::LOW_MAX
            }

            /// Whether this is [`Self::NONE`].
            #[inline]
            pub const fn is_none(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.$high(), self.$low())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

packed_16_48!(
    /// Where a redo record lies: in which stream (one today, one a node when there are several
    /// writers), and at which byte of it.
    RecordAddr, stream: "stream", position: "position in the stream, in bytes"
);

packed_16_48!(
    /// Names a transaction: the node that ran it and its number there.
    TxId, node: "node", seq: "number within the node"
);

/// A commit timestamp: orders commits. Zero: not committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Cts(u64);

impl Cts {
    /// "Not committed".
    pub const ZERO: Cts = Cts(0);
    /// Above every commit.
    pub const MAX: Cts = Cts(u64::MAX);

    /// The timestamp `raw`.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// As a number.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Cts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Cts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cts({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_parts_and_order() {
        let a = RecordAddr::new(7, 0x1234_5678_9ABC);
        assert_eq!((a.stream(), a.position()), (7, 0x1234_5678_9ABC));
        assert_eq!(RecordAddr::from_raw(a.raw()), a);
        assert!(TxId::new(1, 0) > TxId::new(0, TxId::LOW_MAX));
        let p = PageId::new(3, 9);
        assert_eq!(PageId::from_raw(p.raw()), p);
        assert_eq!(PageId::from_bytes(p.to_bytes()), p);
        assert!(PageId::new(1, u32::MAX) < PageId::new(2, 0));
        assert!(PageId::new(1, u32::MAX).raw() < PageId::new(2, 0).raw());
    }

    #[test]
    fn lsn_prints_as_halves() {
        assert_eq!(Lsn::from_raw(0x1_0000_00FF).to_string(), "1/FF");
        assert_eq!(Lsn::from_raw(5).since(Lsn::from_raw(9)), 0);
    }
}
