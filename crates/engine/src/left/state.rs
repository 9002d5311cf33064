//! What a transaction is left with, in its bytes (see `left`).

use crate::api::{Isolation, LockStrength};
use crate::error::Result;
use crate::pool::BufferPool;
use crate::tx::slots::Hold;
use crate::undo::record::{Kind, UndoRecord};
use crate::undo::{self, UndoPointer};
use cenote_base::bytes::get_le;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Cts, TxId};

/// Bytes of a state that one undo record holds.
pub(crate) const PIECE: usize = 8 << 10;
/// Bytes of a state at most: one that is longer is not left.
pub(crate) const STATE_MAX: usize = 1 << 20;
const PIECES_MAX: u32 = (STATE_MAX / PIECE) as u32;
const VERSION: u8 = 1;

/// The snapshot of a transaction at repeatable read, with its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub at: Cts,
    pub low_water: TxId,
    pub high_water: TxId,
}

/// What a transaction has beside its rows and their undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    /// By which its session finds it.
    pub token: u128,
    pub isolation: Isolation,
    /// Repeatable read: once the first statement has taken it.
    pub snapshot: Option<Snapshot>,
    /// Rows that it has changed.
    pub rows: u64,
    /// Newest record and changed rows of each savepoint, the oldest first.
    pub savepoints: Vec<(UndoPointer, u64)>,
    /// Tables that it shares.
    pub tables: Vec<u64>,
    /// Rows that it has locked.
    pub locks: Vec<(Vec<u8>, LockStrength)>,
    /// Tables, and how many of their rows it has changed.
    pub changed: Vec<(u32, u64)>,
    /// With a snapshot: tables (ids), and the spaces of their trees when it was taken.
    pub seen: Vec<(u32, u32)>,
    /// What its session needs, which the engine does not read.
    pub session: Vec<u8>,
}

/// What a loser has that was left.
pub(crate) struct Left {
    pub state: State,
    /// Keeps its snapshot.
    pub hold: Option<Hold>,
}

impl State {
    /// The bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.isolation == Isolation::RepeatableRead)];
        out.extend_from_slice(&self.token.to_le_bytes());
        let none = Snapshot {
            at: Cts::ZERO,
            low_water: TxId::NONE,
            high_water: TxId::NONE,
        };
        let snapshot = self.snapshot.unwrap_or(none);
        for word in [
            snapshot.at.raw(),
            snapshot.low_water.raw(),
            snapshot.high_water.raw(),
            self.rows,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        put_list(&mut out, &self.savepoints, |out, (undo, rows)| {
            put_words(out, [undo.raw(), *rows]);
        });
        put_list(&mut out, &self.tables, |out, table| put_words(out, [*table]));
        put_list(&mut out, &self.locks, |out, (name, strength)| {
            out.push(u8::from(*strength == LockStrength::Update));
            put_bytes(out, name);
        });
        put_list(&mut out, &self.changed, |out, (table, rows)| {
            put_words(out, [u64::from(*table), *rows]);
        });
        put_list(&mut out, &self.seen, |out, (table, space)| {
            put_words(out, [u64::from(*table) << 32 | u64::from(*space)]);
        });
        put_bytes(&mut out, &self.session);
        out
    }

    /// Of bytes that a page holds. `None`: they are none of this version, or contradict themselves.
    fn decode(bytes: &[u8]) -> Option<State> {
        let mut fields = Fields(bytes);
        if fields.byte()? != VERSION {
            return None;
        }
        let isolation = match fields.byte()? {
            0 => Isolation::ReadCommitted,
            1 => Isolation::RepeatableRead,
            _ => return None,
        };
        let token = fields.number::<u128>(16)?;
        let (at, low_water, high_water) = (fields.word()?, fields.word()?, fields.word()?);
        let snapshot = Snapshot {
            at: Cts::from_raw(at),
            low_water: TxId::from_raw(low_water),
            high_water: TxId::from_raw(high_water),
        };
        let state = State {
            token,
            isolation,
            snapshot: (at != 0).then_some(snapshot),
            rows: fields.word()?,
            savepoints: fields.list(|fields| Some((UndoPointer::from_raw(fields.word()?), fields.word()?)))?,
            tables: fields.list(Fields::word)?,
            locks: fields.list(|fields| {
                let strength = match fields.byte()? {
                    0 => LockStrength::Share,
                    1 => LockStrength::Update,
                    _ => return None,
                };
                Some((fields.bytes()?.to_vec(), strength))
            })?,
            changed: fields.list(|fields| Some((u32::try_from(fields.word()?).ok()?, fields.word()?)))?,
            seen: fields.list(|fields| fields.word().map(|word| ((word >> 32) as u32, word as u32)))?,
            session: fields.bytes()?.to_vec(),
        };
        let fits = state.snapshot.is_none() || isolation == Isolation::RepeatableRead;
        (fits && fields.0.is_empty()).then_some(state)
    }
}

impl State {
    /// Whether its savepoints are places of the transaction whose newest record is this, in their order.
    fn fits(&self, newest: UndoPointer) -> bool {
        let lies_before = |at: UndoPointer| at.is_none() || at.segment() == newest.segment() && at < newest;
        let mut places = self.savepoints.iter().map(|(undo, _)| *undo);
        places.all(lies_before) && self.savepoints.is_sorted_by_key(|(undo, _)| *undo)
    }
}

fn put_words<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_list<T>(out: &mut Vec<u8>, list: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.extend_from_slice(&(list.len() as u32).to_le_bytes());
    list.iter().for_each(|item| put(out, item));
}

/// Bytes that are still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number<T: cenote_base::bytes::LittleEndian>(&mut self, len: usize) -> Option<T> {
        get_le(self.take(len)?, 0)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u64> {
        self.number(8)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.number::<u32>(4)?;
        self.take(len as usize)
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number::<u32>(4)?;
        (0..count).map(|_| item(self)).collect()
    }
}

/// What the loser with this newest record was left with; `None`: it was not left, or is not whole as it was.
///
/// # Errors
/// Those of reading undo.
pub(crate) fn read_state(pool: &BufferPool, newest_at: UndoPointer) -> Result<Option<State>> {
    let newest = undo::read(pool, newest_at)?;
    // The newest piece alone says how many there are: without it a crash came in between.
    let count = get_le::<u32>(&newest.key, 0).filter(|_| is_piece(&newest));
    let Some(count) = count.filter(|count| (1..=PIECES_MAX).contains(count)) else {
        return Ok(None);
    };
    let (mut pieces, mut at) = (vec![newest.row], newest.prev);
    for _ in 1..count {
        let record = undo::read(pool, at)?;
        if !is_piece(&record) || record.tx != newest.tx {
            return Ok(None);
        }
        pieces.push(record.row);
        at = record.prev;
    }
    pieces.reverse();
    Ok(State::decode(&pieces.concat()).filter(|state| state.fits(newest_at)))
}

fn is_piece(record: &UndoRecord) -> bool {
    record.kind == Kind::Left && (!record.undone || planted(Fault::LeftTwice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> impl Strategy<Value = State> {
        let snapshot = proptest::option::of((1..u64::MAX >> 1, any::<u32>(), any::<u32>()));
        let lists = (
            proptest::collection::vec((any::<u64>(), any::<u64>()), 0..4),
            proptest::collection::vec(any::<u64>(), 0..4),
            proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..9), any::<bool>()), 0..4),
            proptest::collection::vec((any::<u32>(), any::<u64>()), 0..4),
            proptest::collection::vec(any::<u8>(), 0..40),
            proptest::collection::vec((any::<u32>(), any::<u32>()), 0..4),
        );
        (any::<u128>(), snapshot, any::<u64>(), lists).prop_map(|(token, snapshot, rows, lists)| State {
            token,
            isolation: match snapshot {
                Some(_) => Isolation::RepeatableRead,
                None => Isolation::ReadCommitted,
            },
            snapshot: snapshot.map(|(at, low, high)| Snapshot {
                at: Cts::from_raw(at),
                low_water: TxId::from_raw(low.into()),
                high_water: TxId::from_raw(high.into()),
            }),
            rows,
            savepoints: lists
                .0
                .into_iter()
                .map(|(undo, rows)| (UndoPointer::from_raw(undo), rows))
                .collect(),
            tables: lists.1,
            locks: lists
                .2
                .into_iter()
                .map(|(name, update)| {
                    (
                        name,
                        if update {
                            LockStrength::Update
                        } else {
                            LockStrength::Share
                        },
                    )
                })
                .collect(),
            changed: lists.3,
            seen: lists.5,
            session: lists.4,
        })
    }

    proptest! {
        #[test]
        fn a_state_comes_back_and_none_that_is_cut_off_does(state in state(), at in any::<proptest::sample::Index>()) {
            let bytes = state.encode();
            prop_assert_eq!(State::decode(&bytes), Some(state));
            prop_assert_eq!(State::decode(&bytes[..at.index(bytes.len())]), None);
            prop_assert_eq!(State::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }
}
