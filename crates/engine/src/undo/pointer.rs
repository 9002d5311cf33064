//! Where an undo record lies.

/// Positions end here, in bytes: a pointer has 48 bits for units of 8.
pub(super) const END: u64 = UNIT << POSITION_BITS;
const POSITION_BITS: u32 = 48;
/// Bytes that a record's position is a multiple of.
pub(super) const UNIT: u64 = 8;
const _: () = assert!(
    POSITION_BITS + u16::BITS == u64::BITS,
    "segment and position fill a pointer"
);

/// An undo record's segment (16 bits) above its position / 8 (48 bits). Within a segment pointers rise as records are
/// appended, and no pointer repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub(crate) struct UndoPointer(u64);

impl UndoPointer {
    /// "No record": a transaction's first record has no previous one.
    pub(crate) const NONE: UndoPointer = UndoPointer(0);
    /// Above the pointers of all records.
    pub(crate) const MAX: UndoPointer = UndoPointer(u64::MAX);

    /// The record at `position`, in bytes, of `segment`.
    pub(crate) fn new(segment: u16, position: u64) -> UndoPointer {
        assert!(
            position < END && position.is_multiple_of(UNIT),
            "a record lies at a position that a pointer can name"
        );
        UndoPointer((u64::from(segment) << POSITION_BITS) | (position / UNIT))
    }

    /// From the word of a page. Every word is a pointer; reading the record finds out whether it lies there.
    pub(crate) const fn from_raw(raw: u64) -> UndoPointer {
        UndoPointer(raw)
    }

    /// The word that a page holds.
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// The number of the segment.
    pub(crate) const fn segment(self) -> u16 {
        (self.0 >> POSITION_BITS) as u16
    }

    /// The position in the segment, in bytes.
    pub(crate) const fn position(self) -> u64 {
        self.0 << (u64::BITS - POSITION_BITS) >> (u64::BITS - POSITION_BITS - UNIT.trailing_zeros())
    }

    /// Whether there is no record.
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }
}
