//! Numbers beside the rows, in a tree of their own, changed outside transactions: sequences, row counts.
//!
//! Key: kind byte, object id (u32 big endian). Sequence values are reserved in advance: the tree holds a value that
//! `RESERVED` calls of `nextval` reach, memory counts up to it. So a crash skips values and never repeats one that a
//! commit has used: the tree's mini-transaction stands before that commit in the log, and a transaction that only drew
//! values waits until it is durable. A clean shutdown writes the exact values.

use crate::catalog::SequenceDef;
use crate::counters::Position;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::system::COUNTERS_SPACE;
use crate::tree::BTree;
use cenote_base::Lsn;
use cenote_base::rt;
use std::sync::Arc;

const TREE: BTree = BTree { space: COUNTERS_SPACE };
const KIND_SEQUENCE: u8 = b's';
const KIND_ROWS: u8 = b'r';
/// Values reserved at once.
const RESERVED: i64 = 32;

fn key(kind: u8, id: u32) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&id.to_be_bytes());
    key
}

impl Engine {
    fn put_counter(&self, kind: u8, id: u32, value: &[u8]) -> Result<Lsn> {
        let key = key(kind, id);
        let mut m = self.pool.mtr();
        let pos = TREE.seek_write(&mut m, &key, key.len() + value.len())?;
        if pos.found {
            TREE.replace_at(&mut m, &pos, value)?;
        } else {
            TREE.insert_at(&mut m, &pos, &key, value)?;
        }
        Ok(m.commit())
    }

    fn get_counter(&self, kind: u8, id: u32) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(TREE.get(&self.pool, &key(kind, id), &mut value)?.then_some(value))
    }

    fn position_of(&self, id: u32) -> Result<Arc<rt::Mutex<Position>>> {
        if let Some(position) = self.counters.sequences.lock().get(&id) {
            return Ok(position.clone());
        }
        let stored = self.get_counter(KIND_SEQUENCE, id)?;
        let bytes: [u8; 9] = stored
            .and_then(|v| v.try_into().ok())
            .ok_or_else(|| Error::Corrupt(format!("sequence {id} has no value")))?;
        let mut value = [0; 8];
        value.copy_from_slice(&bytes[..8]);
        let position = Position {
            value: i64::from_le_bytes(value),
            called: bytes[8] != 0,
            ahead: 0,
            written: Lsn::ZERO,
        };
        Ok(self
            .counters
            .sequences
            .lock()
            .entry(id)
            .or_insert_with(|| Arc::new(rt::Mutex::new(position)))
            .clone())
    }

    fn write_position(&self, id: u32, value: i64, called: bool) -> Result<Lsn> {
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.push(u8::from(called));
        self.put_counter(KIND_SEQUENCE, id, &bytes)
    }

    /// The next value of a sequence, and the position of the log behind which it is not given again.
    pub(crate) fn next_value(&self, def: &SequenceDef) -> Result<(i64, Lsn)> {
        self.refuse_reader("nextval()")?;
        let position = self.position_of(def.id)?;
        let mut position = position.lock();
        let value = if position.called {
            step(def, position.value)?
        } else {
            position.value
        };
        if position.ahead == 0 {
            let reach = value
                .saturating_add(def.increment.saturating_mul(RESERVED))
                .clamp(def.min, def.max);
            let reach = if def.cycle { value } else { reach };
            assert!(
                (def.min..=def.max).contains(&reach) || !(def.min..=def.max).contains(&value),
                "what is reserved stays inside of the sequence"
            );
            position.written = self.write_position(def.id, reach, true)?;
            position.ahead = if def.cycle {
                0
            } else {
                reach
                    .abs_diff(value)
                    .checked_div(def.increment.unsigned_abs())
                    .unwrap_or(0) as i64
            };
        } else {
            assert!(position.ahead > 0, "a value that is given was reserved");
            position.ahead -= 1;
        }
        (position.value, position.called) = (value, true);
        Ok((value, position.written))
    }

    /// Sets a sequence; returns the position of the log behind which it is set.
    pub(crate) fn set_value(&self, id: u32, value: i64, called: bool) -> Result<Lsn> {
        self.refuse_reader("setval()")?;
        let position = self
            .counters
            .sequences
            .lock()
            .entry(id)
            .or_insert_with(|| {
                Arc::new(rt::Mutex::new(Position {
                    value,
                    called,
                    ahead: 0,
                    written: Lsn::ZERO,
                }))
            })
            .clone();
        let mut position = position.lock();
        let written = self.write_position(id, value, called)?;
        *position = Position {
            value,
            called,
            ahead: 0,
            written,
        };
        Ok(written)
    }

    /// Writes the exact values, so that a clean restart skips none.
    pub(crate) fn settle_sequences(&self) -> Result<()> {
        for (id, position) in self.counters.sequences.lock().iter() {
            let mut position = position.lock();
            if position.ahead > 0 {
                self.write_position(*id, position.value, position.called)?;
                position.ahead = 0;
            }
        }
        Ok(())
    }

    /// Notes how many rows a table has.
    pub(crate) fn put_row_count(&self, table: u32, rows: u64) -> Result<()> {
        self.put_counter(KIND_ROWS, table, &rows.to_le_bytes())?;
        Ok(())
    }

    /// Rows as last counted.
    pub(crate) fn row_count(&self, table: u32) -> Result<Option<u64>> {
        Ok(self
            .get_counter(KIND_ROWS, table)?
            .and_then(|v| v.try_into().ok())
            .map(u64::from_le_bytes))
    }
}

fn step(def: &SequenceDef, from: i64) -> Result<i64> {
    let next = from
        .checked_add(def.increment)
        .filter(|v| (def.min..=def.max).contains(v));
    match next {
        Some(next) => Ok(next),
        None if def.cycle => Ok(if def.increment > 0 { def.min } else { def.max }),
        None => {
            let (end, limit) = if def.increment > 0 {
                ("maximum", def.max)
            } else {
                ("minimum", def.min)
            };
            Err(Error::SequenceLimit(format!(
                "nextval: reached {end} value of sequence \"{}\" ({limit})",
                def.name
            )))
        }
    }
}
