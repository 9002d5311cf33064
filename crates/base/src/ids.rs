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

const _: () = assert!(
    PAGE_SIZE.is_power_of_two() && PAGE_SIZE <= u16::MAX as usize,
    "an offset in a page, its end among them, fits 16 bits"
);
const _: () = assert!(
    size_of::<Lsn>() == 8 && size_of::<RecordAddr>() == 8 && size_of::<TxId>() == 8 && size_of::<Cts>() == 8,
    "an id is a word"
);
const _: () = assert!(
    RecordAddr::UNIT.is_power_of_two() && RecordAddr::END.0.is_multiple_of(RecordAddr::UNIT),
    "a stream has a whole number of units"
);
const _: () = assert!(
    RecordAddr::FOREIGN & (RecordAddr::END.0 - RecordAddr::UNIT) == 0,
    "the stream's last unit has an address"
);
const _: () = assert!(
    (TxId::NODE_END as u128) * (TxId::SEQ_END as u128) == 1 << u64::BITS,
    "node and number fill a transaction's id"
);

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

/// Where a redo record lies: in which stream (one today, one a node when there are several writers), and at which byte
/// of it.
///
/// Packed as 8 bits of stream above 56 bits of position in units of [`RecordAddr::UNIT`] bytes, since groups and
/// records begin at multiples of it. So a stream has [`RecordAddr::END`] bytes, which 1 GB/s fills in 18 years; the log
/// refuses work before that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct RecordAddr(u64);

impl RecordAddr {
    /// "None".
    pub const NONE: RecordAddr = RecordAddr(0);
    /// Bytes that a record's position is a multiple of.
    pub const UNIT: u64 = 8;
    /// The first position that has no address: the end of a stream.
    pub const END: Lsn = Lsn(Self::UNIT << Self::POSITION_BITS);
    const POSITION_BITS: u32 = 56;
    /// Bits that no position of a record has.
    const FOREIGN: u64 = !(Self::END.0 - Self::UNIT);

    /// The record at `position` of `stream`.
    ///
    /// # Panics
    /// If no record can lie there: a program that takes one record for another would lose changes. The log's own
    /// positions are below [`RecordAddr::END`], and multiples of the unit.
    #[inline]
    pub const fn new(stream: u8, position: Lsn) -> Self {
        match Self::checked(stream, position) {
            Some(address) => address,
            None => panic!("no redo record can lie at this position"),
        }
    }

    /// As [`RecordAddr::new`], for positions that are not trusted: `None` if no record can lie there.
    #[inline]
    pub const fn checked(stream: u8, position: Lsn) -> Option<Self> {
        if position.0 & Self::FOREIGN != 0 {
            return None;
        }
        let address = Self((stream as u64) << Self::POSITION_BITS | (position.0 / Self::UNIT));
        assert!(
            address.stream() == stream && address.position().0 == position.0,
            "an address gives back the parts that it was made from"
        );
        Some(address)
    }

    /// From the packed word: every word is an address.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The packed word.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The stream.
    #[inline]
    pub const fn stream(self) -> u8 {
        (self.0 >> Self::POSITION_BITS) as u8
    }

    /// The position in the stream.
    #[inline]
    pub const fn position(self) -> Lsn {
        let shift = u64::BITS - Self::POSITION_BITS;
        Lsn(self.0 << shift >> (shift - Self::UNIT.trailing_zeros()))
    }

    /// Whether this is [`Self::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for RecordAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.stream(), self.position().raw())
    }
}

impl fmt::Debug for RecordAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordAddr({self})")
    }
}

/// Names a transaction: the node that ran it and its number there.
///
/// Packed as 12 bits of node above 52 bits of number: 4,096 nodes, each of which may run a million transactions a
/// second for 142 years. Numbers are drawn in blocks, and no block is given out that would pass [`TxId::SEQ_END`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct TxId(u64);

impl TxId {
    /// "None".
    pub const NONE: TxId = TxId(0);
    /// The first transaction of a database that begins at the beginning.
    pub const FIRST: TxId = TxId(1);
    /// The first number that no transaction can have.
    pub const SEQ_END: u64 = 1 << Self::SEQ_BITS;
    /// The first node that cannot be.
    pub const NODE_END: u16 = 1 << (u64::BITS - Self::SEQ_BITS);
    const SEQ_BITS: u32 = 52;

    /// Transaction `seq` of `node`; `None` if there can be none.
    #[inline]
    pub const fn new(node: u16, seq: u64) -> Option<Self> {
        if node >= Self::NODE_END || seq >= Self::SEQ_END {
            return None;
        }
        let id = Self((node as u64) << Self::SEQ_BITS | seq);
        assert!(
            id.node() == node && id.seq() == seq,
            "an id gives back the parts that it was made from"
        );
        Some(id)
    }

    /// From the packed word: every word is an id.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The packed word.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The node.
    #[inline]
    pub const fn node(self) -> u16 {
        (self.0 >> Self::SEQ_BITS) as u16
    }

    /// The number within the node.
    #[inline]
    pub const fn seq(self) -> u64 {
        self.0 & (Self::SEQ_END - 1)
    }

    /// Whether this is [`Self::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node(), self.seq())
    }
}

impl fmt::Debug for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxId({self})")
    }
}

/// A commit timestamp: orders commits. Zero: not committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Cts(u64);

impl Cts {
    /// "Not committed".
    pub const ZERO: Cts = Cts(0);
    /// Above every commit.
    pub const MAX: Cts = Cts(u64::MAX);

    /// Of a commit whose mini-transaction ends at `position` of the log; of a snapshot that sees the commits up to it.
    #[inline]
    pub const fn at(position: Lsn) -> Self {
        Self(position.0)
    }

    /// The position of the log that it is.
    #[inline]
    pub const fn position(self) -> Lsn {
        Lsn(self.0)
    }

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
        let last = Lsn::from_raw(RecordAddr::END.raw() - RecordAddr::UNIT);
        for position in [0, 8, 0x1234_5678_9AB8, 1 << 48, RecordAddr::END.raw() - 8].map(Lsn::from_raw) {
            let a = RecordAddr::new(255, position);
            assert_eq!((a.stream(), a.position()), (255, position));
            assert_eq!(RecordAddr::from_raw(a.raw()), a);
            assert!(a < RecordAddr::new(255, last) || position == last);
        }
        assert!(RecordAddr::new(1, Lsn::ZERO) > RecordAddr::new(0, last));
        let t = TxId::new(4095, TxId::SEQ_END - 1).expect("the last one");
        assert_eq!((t.node(), t.seq()), (4095, TxId::SEQ_END - 1));
        assert!(TxId::new(1, 0) > TxId::new(0, TxId::SEQ_END - 1));
        let p = PageId::new(3, 9);
        assert_eq!(PageId::from_raw(p.raw()), p);
        assert_eq!(PageId::from_bytes(p.to_bytes()), p);
        assert!(PageId::new(1, u32::MAX) < PageId::new(2, 0));
        assert!(PageId::new(1, u32::MAX).raw() < PageId::new(2, 0).raw());
    }

    /// Positions beyond 2^48 were masked: record 2^48 + 4096 was found at 4096, and was another page's.
    #[test]
    fn what_has_no_place_in_the_word_is_refused_and_not_masked() {
        for position in [RecordAddr::END.raw(), u64::MAX, u64::MAX - 7, 4] {
            assert_eq!(RecordAddr::checked(0, Lsn::from_raw(position)), None);
        }
        assert_eq!(TxId::new(0, TxId::SEQ_END), None);
        assert_eq!(TxId::new(TxId::NODE_END, 1), None);
    }

    /// The design's rates: 1 GB/s of redo, a million transactions a second.
    #[test]
    fn the_words_last_ten_years() {
        let ten_years = 10 * 366 * 24 * 3600;
        assert!(RecordAddr::END.raw() / 1_000_000_000 > ten_years);
        assert!(TxId::SEQ_END / 1_000_000 > ten_years);
    }

    #[test]
    fn lsn_prints_as_halves() {
        assert_eq!(Lsn::from_raw(0x1_0000_00FF).to_string(), "1/FF");
        assert_eq!(Lsn::from_raw(5).since(Lsn::from_raw(9)), 0);
    }
}
