//! One undo record: what a row was before a change, and where the transaction's previous record is.
//!
//! ```text
//!  0 u32 len        whole record, multiple of 8
//!  4 u8  kind       1 insert (there was no row), 2 update, 3 delete, 4 insert of several rows (`keys`)
//!  5 u8  flags      bit 0: undone (the change has been taken back; set in the mini-transaction that does it)
//!                   bit 1: plain (no index key changed and the previous version has nothing outside: purge passes by)
//!                   bit 2: counted (a row was made or ended, or an index key changed: `tx::unsettled`)
//!  6 u16 key_len
//!  8 u64 tx         number of the transaction
//! 16 u64 prev       pointer to the transaction's previous record; 0: first
//! 24 u32 space      clustered tree
//! 28 u32 row_len    previous row
//! 32 u64 row_tx     ┐
//! 40 u64 row_undo   │ trailer of the previous row
//! 48 u8  row_flags  ┘
//! 50 u16 new_len    of a delete that is the first half of an update of the primary key: length of the row's new key; else 0
//! 52 u32 shared     large values of the previous row that the new one has, too (`shared`)
//! 56 key, previous row, new key
//! ```

use super::keys;
use super::pointer::UndoPointer;
use super::shared::Shared;
use crate::error::{Error, Result};
use cenote_base::TxId;
use cenote_base::bytes::read_le;

/// Bytes before the key.
pub(crate) const HEADER: usize = 56;
/// Offset of the kind.
pub(super) const AT_KIND: usize = 4;
/// Offset of the new key's length.
const AT_NEW_LEN: usize = 50;
/// Offset of the shared large values.
const AT_SHARED: usize = 52;
const _: () = assert!(AT_SHARED + 4 == HEADER);
const _: () = assert!(AT_NEW_LEN + 2 <= AT_SHARED, "the new key's length has two bytes");
/// Offset of the undo pointer of the version before.
pub(super) const AT_BEFORE_UNDO: usize = 40;
/// Offset of the flags byte.
pub(crate) const AT_FLAGS: usize = 5;
/// The change has been taken back.
pub(crate) const FLAG_UNDONE: u8 = 1;

/// Purge has nothing to do.
pub(crate) const FLAG_PLAIN: u8 = 2;
/// The change is counted among the unsettled ones, until purge has passed it or it has been taken back.
pub(crate) const FLAG_COUNTED: u8 = 4;
const _: () = assert!(
    FLAG_UNDONE | FLAG_PLAIN | FLAG_COUNTED == FLAG_UNDONE + FLAG_PLAIN + FLAG_COUNTED,
    "each flag is a bit of its own"
);

/// What was done to the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There was no row.
    Insert,
    /// Another version stood there (maybe a delete-marked one).
    Update,
    /// It was delete-marked.
    Delete,
    /// There was none of several rows: the record holds their keys (`undo::keys`).
    InsertMany,
    /// Nothing: a piece of what its transaction was left with to the next server (`left`).
    Left,
}

impl Kind {
    /// Of the byte that a record holds.
    pub(super) fn of(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Insert),
            2 => Some(Kind::Update),
            3 => Some(Kind::Delete),
            4 => Some(Kind::InsertMany),
            5 => Some(Kind::Left),
            _ => None,
        }
    }

    /// Whether no version was before the one that the record's change made, or it made none.
    pub(crate) fn is_insert(self) -> bool {
        matches!(self, Kind::Insert | Kind::InsertMany | Kind::Left)
    }
}

/// Trailer of a row version: its transaction, and what was before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Trailer {
    /// Number of the transaction that made this version.
    pub tx: TxId,
    /// Undo record of the change that made it; none where it was copied into a new tree.
    pub undo: UndoPointer,
    /// `DELETED`, `REKEYED`, `REINSERTED`.
    pub flags: u8,
}

/// Bytes of a trailer.
pub(crate) const TRAILER: usize = 17;
/// Trailer flag: the row is deleted in this version.
pub(crate) const DELETED: u8 = 1;
/// Trailer flag, beside `DELETED`: the row goes on under another primary key. The version's undo record says which.
pub(crate) const REKEYED: u8 = 2;
/// Trailer flag: a deleted version lies somewhere below this one, so those below that may be of another row.
pub(crate) const REINSERTED: u8 = 4;
const _: () = {
    assert!(
        TRAILER == size_of::<TxId>() + size_of::<UndoPointer>() + 1,
        "a trailer is a transaction, a pointer and flags"
    );
    assert!(
        DELETED | REKEYED | REINSERTED == DELETED + REKEYED + REINSERTED,
        "each flag is a bit of its own"
    );
};

impl Trailer {
    /// Reads the trailer at the end of a clustered entry's value.
    pub(crate) fn of(value: &[u8]) -> Result<Trailer> {
        let at = value
            .len()
            .checked_sub(TRAILER)
            .ok_or_else(|| Error::Corrupt("row without a trailer".into()))?;
        Ok(Trailer {
            tx: TxId::from_raw(read_le::<u64>(value, at)),
            undo: UndoPointer::from_raw(read_le::<u64>(value, at + 8)),
            flags: value[at + 16],
        })
    }

    /// The bytes.
    pub(crate) fn encode(self) -> [u8; TRAILER] {
        let mut out = [0; TRAILER];
        out[..8].copy_from_slice(&self.tx.raw().to_le_bytes());
        out[8..16].copy_from_slice(&self.undo.raw().to_le_bytes());
        out[16] = self.flags;
        out
    }

    /// Whether the row is deleted in this version.
    pub(crate) fn deleted(self) -> bool {
        self.flags & DELETED != 0
    }

    /// Whether the row goes on under another primary key.
    pub(crate) fn rekeyed(self) -> bool {
        self.flags & REKEYED != 0
    }

    /// Whether this version may be of another row than one below it, or its row have another key.
    pub(crate) fn may_be_another(self) -> bool {
        self.flags & (REKEYED | REINSERTED) != 0
    }
}

/// A record, copied out of its page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UndoRecord {
    pub kind: Kind,
    pub undone: bool,
    pub plain: bool,
    pub counted: bool,
    pub tx: TxId,
    pub prev: UndoPointer,
    pub space: u32,
    pub before: Trailer,
    pub shared: Shared,
    pub key: Vec<u8>,
    pub row: Vec<u8>,
    /// The row's new primary key; empty: it has none.
    pub new_key: Vec<u8>,
}

/// Length of a record with such a key, previous row and new key.
fn len_of(key: usize, row: usize, new_key: usize) -> usize {
    (HEADER + key + row + new_key).next_multiple_of(8)
}

/// What goes into a record.
pub(crate) struct NewRecord<'a> {
    pub kind: Kind,
    pub plain: bool,
    pub counted: bool,
    pub tx: TxId,
    pub prev: UndoPointer,
    pub space: u32,
    pub before: Trailer,
    pub shared: Shared,
    pub key: &'a [u8],
    pub row: &'a [u8],
    /// Of a delete: the key under which the row goes on, if it does.
    pub new_key: &'a [u8],
}

impl NewRecord<'_> {
    /// Length when encoded.
    pub(crate) fn len(&self) -> usize {
        len_of(self.key.len(), self.row.len(), self.new_key.len())
    }

    /// Writes the record to `out` (cleared first).
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert!(
            self.new_key.is_empty() || self.kind == Kind::Delete,
            "only a row that is deleted under its key goes on under another"
        );
        assert!(
            self.key.len() <= usize::from(u16::MAX) && self.new_key.len() <= usize::from(u16::MAX),
            "the lengths of keys have 16 bits"
        );
        out.clear();
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        out.push(match self.kind {
            Kind::Insert => 1,
            Kind::Update => 2,
            Kind::Delete => 3,
            Kind::InsertMany => 4,
            Kind::Left => 5,
        });
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        out.push(flag(self.plain, FLAG_PLAIN) | flag(self.counted, FLAG_COUNTED));
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.tx.raw().to_le_bytes());
        out.extend_from_slice(&self.prev.raw().to_le_bytes());
        out.extend_from_slice(&self.space.to_le_bytes());
        out.extend_from_slice(&(self.row.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.before.encode());
        out.resize(AT_NEW_LEN, 0);
        out.extend_from_slice(&(self.new_key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.shared.0.to_le_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.row);
        out.extend_from_slice(self.new_key);
        out.resize(self.len(), 0);
    }
}

/// A record in its bytes.
pub(crate) struct RecordRef<'a> {
    pub kind: Kind,
    /// Trailer of the version before.
    pub before: Trailer,
    pub key: &'a [u8],
    /// The version before.
    pub row: &'a [u8],
    new_key: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// Of bytes that are exactly a record. Errors: they contradict themselves.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<RecordRef<'a>> {
        let bad = |what: &str| Error::Corrupt(format!("undo record: {what}"));
        if bytes.len() < HEADER {
            return Err(bad("shorter than its header"));
        }
        let (key_len, row_len, new_len) = (
            usize::from(u16::from_le_bytes([bytes[6], bytes[7]])),
            read_le::<u32>(bytes, 28) as usize,
            usize::from(u16::from_le_bytes([bytes[AT_NEW_LEN], bytes[AT_NEW_LEN + 1]])),
        );
        if read_le::<u32>(bytes, 0) as usize != bytes.len() || len_of(key_len, row_len, new_len) != bytes.len() {
            return Err(bad("lengths disagree"));
        }
        let row_at = HEADER + key_len;
        Ok(RecordRef {
            kind: Kind::of(bytes[AT_KIND]).ok_or_else(|| bad("unknown kind"))?,
            before: Trailer {
                tx: TxId::from_raw(read_le::<u64>(bytes, 32)),
                undo: UndoPointer::from_raw(read_le::<u64>(bytes, AT_BEFORE_UNDO)),
                flags: bytes[48],
            },
            key: &bytes[HEADER..row_at],
            row: &bytes[row_at..row_at + row_len],
            new_key: &bytes[row_at + row_len..row_at + row_len + new_len],
            bytes,
        })
    }
}

impl UndoRecord {
    /// Reads a record from its bytes (exactly its length).
    pub(crate) fn decode(bytes: &[u8]) -> Result<UndoRecord> {
        let RecordRef {
            kind,
            before,
            key,
            row,
            new_key,
            bytes,
        } = RecordRef::parse(bytes)?;
        Ok(UndoRecord {
            kind,
            undone: bytes[AT_FLAGS] & FLAG_UNDONE != 0,
            plain: bytes[AT_FLAGS] & FLAG_PLAIN != 0,
            counted: bytes[AT_FLAGS] & FLAG_COUNTED != 0,
            tx: TxId::from_raw(read_le::<u64>(bytes, 8)),
            prev: UndoPointer::from_raw(read_le::<u64>(bytes, 16)),
            space: read_le::<u32>(bytes, 24),
            before,
            shared: Shared(read_le::<u32>(bytes, AT_SHARED)),
            key: key.to_vec(),
            row: row.to_vec(),
            new_key: new_key.to_vec(),
        })
    }

    /// Keys of the rows that it stands for. Errors: its list of them contradicts itself.
    pub(crate) fn keys(&self) -> Result<Vec<Vec<u8>>> {
        match self.kind {
            Kind::InsertMany => keys::unpack(&self.key, &self.row),
            Kind::Insert | Kind::Update | Kind::Delete => Ok(vec![self.key.clone()]),
            Kind::Left => Ok(Vec::new()),
        }
    }

    /// The part of it that is of the row with this key: no list.
    pub(crate) fn of_row(&self, key: Vec<u8>) -> UndoRecord {
        assert!(self.kind == Kind::InsertMany, "the others are of one row");
        UndoRecord {
            key,
            row: Vec::new(),
            new_key: Vec::new(),
            ..*self
        }
    }

    /// Length of the record.
    pub(crate) fn len(&self) -> usize {
        len_of(self.key.len(), self.row.len(), self.new_key.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_garbage_is_refused() {
        let before = Trailer {
            tx: TxId::from_raw(9),
            undo: UndoPointer::from_raw(11),
            flags: DELETED,
        };
        let new = NewRecord {
            kind: Kind::Delete,
            plain: true,
            counted: true,
            tx: TxId::from_raw(12),
            prev: UndoPointer::from_raw(5),
            space: 1000,
            before,
            shared: Shared(5),
            key: b"key",
            row: b"some row",
            new_key: b"another key",
        };
        let mut bytes = Vec::new();
        new.encode(&mut bytes);
        assert_eq!(bytes.len(), new.len());
        let read = UndoRecord::decode(&bytes).unwrap();
        assert_eq!(
            (read.kind, read.tx, read.prev, read.space, read.before, read.shared),
            (
                Kind::Delete,
                TxId::from_raw(12),
                UndoPointer::from_raw(5),
                1000,
                before,
                Shared(5)
            )
        );
        assert!(read.plain && read.counted && !read.undone);
        assert_eq!(
            (read.key.as_slice(), read.row.as_slice(), read.new_key.as_slice()),
            (&b"key"[..], &b"some row"[..], &b"another key"[..])
        );
        for i in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[i] ^= 0x40;
            let _ = UndoRecord::decode(&flipped);
            assert!(UndoRecord::decode(&bytes[..i]).is_err());
        }
    }
}
