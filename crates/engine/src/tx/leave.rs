//! A transaction is left to the next server, and taken up there (see `left`).

use super::{Savepoint, Tx};
use crate::error::{Error, Result};
use crate::left::Behind;
use crate::left::state::{Left, PIECE, STATE_MAX, Snapshot, State};
use crate::losers::Loser;
use crate::pool::Need;
use crate::tx::write::{no_segment, row_lock_bytes};
use crate::undo::record::{Kind, NewRecord, Trailer};
use crate::undo::shared::Shared;
use crate::undo::{UndoPointer, Writer};
use cenote_base::rt::fault::{Fault, planted};
use std::sync::Arc;

/// What a session gets that takes a transaction up.
pub struct TakenUp {
    /// What the session that left it gave.
    pub session: Vec<u8>,
    /// Its savepoints, the oldest first.
    pub savepoints: Vec<Savepoint>,
}

impl Tx {
    /// Leaves the transaction to the next server of the database, where [`Tx::take_up`] with `token` goes on with it,
    /// its savepoints and what its `session` gives. It is durable when this returns, and this session has none any
    /// more. Other transactions wait for it until the engine ends, which has to follow.
    ///
    /// # Errors
    /// 55000: it has made definitions or statistics. 54000: it has locked too many rows, or its undo is full. Those of
    /// writing. The transaction goes on as it was.
    pub fn leave_to_next(&mut self, token: u128, savepoints: &[&Savepoint], session: Vec<u8>) -> Result<()> {
        self.refuse_definitions()?;
        self.wait_built_on()?;
        self.engine().left.begin_leaving();
        let left = self.write(token, savepoints, session);
        match &left {
            Ok(()) => self.stay_behind(),
            Err(_) => self.engine().left.stop_leaving(),
        }
        left
    }

    fn write(&mut self, token: u128, savepoints: &[&Savepoint], session: Vec<u8>) -> Result<()> {
        let bytes = self.state(token, savepoints, session)?.encode();
        if bytes.len() > STATE_MAX {
            return Err(Error::TooLarge(format!(
                "a transaction that has {} bytes beside its changes is not left to another server: {STATE_MAX} are the most",
                bytes.len()
            )));
        }
        let before = self.savepoint();
        if let Err(error) = self.write_state(&bytes) {
            // No start takes it for whole: this marks the records, whatever comes next.
            self.rollback_to(&before)?;
            return Err(error);
        }
        Ok(())
    }

    fn refuse_definitions(&self) -> Result<()> {
        if !self.active {
            return Err(Error::WrongState("no transaction is in progress".into()));
        }
        if self.has_defined() {
            let text = "a transaction that has made definitions or statistics is not left to another server";
            return Err(Error::WrongState(text.into()));
        }
        Ok(())
    }

    fn state(&self, token: u128, savepoints: &[&Savepoint], session: Vec<u8>) -> Result<State> {
        let own = self.reader.own;
        let strength = |name: &Vec<u8>| {
            let strength = self.engine().row_locks.strength(name, own);
            strength.ok_or_else(|| Error::Internal("a row lock that is not held".into()))
        };
        let locks = self.row_locks.iter();
        Ok(State {
            token,
            isolation: self.isolation,
            snapshot: self.has_fixed_snapshot().then_some(Snapshot {
                at: self.reader.snapshot,
                low_water: self.engine().txs.low_water(),
                high_water: self.reader.high_water,
            }),
            rows: self.rows,
            savepoints: savepoints.iter().map(|kept| (kept.undo, kept.rows)).collect(),
            tables: self.table_locks.clone(),
            locks: locks
                .map(|name| Ok((name.clone(), strength(name)?)))
                .collect::<Result<_>>()?,
            changed: self.changed.clone(),
            seen: self.seen_spaces(),
            session,
        })
    }

    /// The trees of tables when the snapshot was taken: what has been replaced since is told by them.
    fn seen_spaces(&self) -> Vec<(u32, u32)> {
        match (&self.reader.seen_spaces, &self.reader.seen) {
            _ if !self.has_fixed_snapshot() => Vec::new(),
            (Some(seen), _) => seen.iter().map(|(table, space)| (*table, *space)).collect(),
            (None, Some(seen)) => seen
                .by_id
                .values()
                .into_iter()
                .map(|table| (table.id, table.space))
                .collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Writes the state in pieces, and waits until they are durable.
    fn write_state(&mut self, bytes: &[u8]) -> Result<()> {
        let read_only = std::mem::replace(&mut self.read_only, false);
        let ready = self.ready_to_write();
        self.read_only = read_only;
        ready?;
        let pieces = bytes.len().div_ceil(PIECE);
        let engine = self.engine().clone();
        let _need = engine.pool.begin_need(Need::Commit);
        for (at, piece) in bytes.chunks(PIECE).enumerate() {
            let is_newest = at + 1 == pieces;
            let count = (pieces as u32).to_le_bytes();
            self.write_piece(piece, if is_newest { &count } else { &[] })?;
        }
        engine.storage.wait_durable(engine.storage.0.log().tail())
    }

    fn write_piece(&mut self, piece: &[u8], count: &[u8]) -> Result<()> {
        let engine = self.engine().clone();
        let record = NewRecord {
            kind: Kind::Left,
            plain: true,
            counted: false,
            tx: self.reader.own,
            prev: self.last_undo,
            space: 0,
            before: Trailer::default(),
            shared: Shared::default(),
            key: count,
            row: piece,
            new_key: &[],
        };
        let mut m = engine.pool.mtr();
        let writer = self.writer.as_mut().ok_or_else(no_segment)?;
        let place = writer.prepare(&mut m, record.len())?;
        self.last_undo = writer.append(&mut m, &place, &record, &mut self.scratch.record)?;
        m.commit();
        Ok(())
    }

    /// Number, slot, locks and snapshot stay with this server until it ends; the session has another slot.
    fn stay_behind(&mut self) {
        let hold = self
            .has_fixed_snapshot()
            .then(|| self.reader.lease.hold(self.reader.snapshot));
        self.active = false;
        self.reader.withdraw();
        self.engine().left.keep(Behind {
            _lease: self.reader.lease.clone(),
            _hold: hold,
        });
        self.writer = None;
        self.leave_number();
    }

    /// Goes on with the transaction that the last server left with this token, if `is_its` says so of what its session
    /// gave then. `None`: there is none, or no more.
    ///
    /// # Errors
    /// Those of writing that it was taken up; it waits on then.
    pub fn take_up(&mut self, token: u128, is_its: &dyn Fn(&[u8]) -> bool) -> Result<Option<TakenUp>> {
        assert!(
            !self.active && self.reader.own.is_none(),
            "the former transaction has ended"
        );
        let engine = self.engine().clone();
        let Some(mut loser) = engine.left.take(token, is_its) else {
            return Ok(None);
        };
        if !planted(Fault::LeftTwice)
            && let Err(error) = engine.mark_taken(&loser)
        {
            engine.left.put_back(loser);
            return Err(error);
        }
        let Some(left) = loser.left.take() else { return Ok(None) };
        let Left { state, hold } = *left;
        self.go_on_with(loser, &state);
        drop(hold);
        Ok(Some(TakenUp {
            savepoints: state.savepoints.into_iter().map(savepoint).collect(),
            session: state.session,
        }))
    }

    /// Becomes the transaction of a loser, whose slot publishes its snapshot from here on.
    fn go_on_with(&mut self, loser: Loser, state: &State) {
        let Loser {
            seq,
            segment,
            last,
            end,
            locks,
            lease,
            ..
        } = loser;
        let engine = self.engine().clone();
        if let Some(former) = self.writer.replace(Writer { segment, position: end }) {
            engine.segments.give_back(former);
        }
        if let Some(lease) = lease {
            (self.reader.slot, self.reader.lease) = (lease.slot, lease);
        }
        self.begin(state.isolation);
        self.reader.withdraw();
        self.reader.own = seq;
        (self.last_undo, self.taken_back) = (last, true);
        (self.table_locks, self.row_locks) = (locks.tables, locks.rows);
        // It has them: more than the session may take is no reason to give any back.
        let bytes: usize = self.row_locks.iter().map(|name| row_lock_bytes(name)).sum();
        self.lock_memory.grow(bytes).ok();
        (self.changed, self.rows) = (state.changed.clone(), state.rows);
        if let Some(snapshot) = state.snapshot {
            self.read_by(snapshot, &state.seen);
        }
    }

    fn read_by(&mut self, snapshot: Snapshot, seen: &[(u32, u32)]) {
        let engine = self.engine().clone();
        engine.slots.publish_held(self.reader.slot, snapshot.at);
        self.snapshot_fixed = true;
        self.reader.seen_spaces = Some(Arc::new(seen.iter().copied().collect()));
        self.reader.snapshot = snapshot.at;
        (self.reader.low_water, self.reader.high_water) = (snapshot.low_water, snapshot.high_water);
    }
}

fn savepoint((undo, rows): (UndoPointer, u64)) -> Savepoint {
    Savepoint {
        undo,
        definitions: 0,
        analyzed: 0,
        rows,
    }
}
