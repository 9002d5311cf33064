//! A transaction that has changed nothing goes to another server of the database: a reader's, when that reader goes.
//!
//! Nothing of it lies in the database. At read committed there is nothing to carry either: each statement takes a
//! snapshot of its own. At repeatable read the snapshot is a position of the log, which is the same at every server;
//! with it go its low-water mark, which holds for the snapshot and not for a server, and the versions of definitions.
//!
//! A server takes such a snapshot only if
//! - it is the writer: another reader has told the writer of a younger oldest snapshot than this, so purge may come
//!   between, and what is purged leads a walk through undo anywhere;
//! - it shows that position;
//! - nothing has been purged, and no way to an old version cut, that the snapshot sees: that is looked for while it is
//!   held, so that what begins later goes by it;
//! - no table's definition is another one than it was: an index made since has no entries for what the snapshot alone
//!   sees.

use super::Tx;
use crate::api::Isolation;
use crate::error::{Error, Result};
use crate::tx::slots::Hold;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Cts, TxId};

/// The snapshot of a transaction at repeatable read, as another server is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedSnapshot {
    /// Its position, as a commit timestamp.
    pub at: u64,
    /// Transactions below this had ended before it.
    pub low_water: u64,
    /// Tables (ids), and the versions of their definitions.
    pub tables: Vec<(u32, u64)>,
}

impl Tx {
    /// The transaction's snapshot, for [`Tx::begin_carried`]. `None`: each statement takes its own, or none has begun.
    pub fn carried_snapshot(&self) -> Option<CarriedSnapshot> {
        let seen = self.reader.seen.as_ref().filter(|_| self.has_fixed_snapshot())?;
        Some(CarriedSnapshot {
            at: self.reader.snapshot.raw(),
            low_water: self.reader.low_water.raw(),
            tables: seen.by_id.values().into_iter().map(|t| (t.id, t.version)).collect(),
        })
    }

    /// What a reader shows, for [`Tx::begin_carried`]. From here on it tells its server of no younger oldest snapshot:
    /// until others hold what it carries away, that keeps purge from it. It is about to end.
    pub fn carry_away(&self) -> u64 {
        if let Some(follow) = &self.engine().follow {
            follow.keep_oldest();
        }
        self.engine().storage.durable().raw()
    }

    /// Begins the transaction that another server's session had, and that had changed nothing. `shown`: what that
    /// server showed: the transaction's client may have seen it.
    ///
    /// # Errors
    /// 72000: this server does not show that yet, or has purged what the snapshot sees. 40001: a definition is another
    /// one now. No transaction has begun then.
    pub fn begin_carried(
        &mut self,
        isolation: Isolation,
        shown: u64,
        snapshot: Option<&CarriedSnapshot>,
    ) -> Result<()> {
        self.begin(isolation);
        let gone_on = match snapshot {
            _ if Cts::from_raw(shown) > self.engine().storage.durable() => Err(Error::SnapshotTooOld(
                "this server does not show yet what the transaction may have seen at another one".into(),
            )),
            None => Ok(()),
            Some(snapshot) => self.go_on_at(snapshot),
        };
        if gone_on.is_err() {
            self.rollback()?;
        }
        gone_on
    }

    fn go_on_at(&mut self, snapshot: &CarriedSnapshot) -> Result<()> {
        if self.isolation != Isolation::RepeatableRead {
            return Err(Error::WrongState(
                "a snapshot of a transaction at read committed".into(),
            ));
        }
        let at = Cts::from_raw(snapshot.at);
        let seen = self.engine().catalog.current();
        let is_same = |(id, version): &(u32, u64)| seen.by_id.get(id).is_some_and(|table| table.version == *version);
        if !snapshot.tables.iter().all(is_same) && !planted(Fault::CarriedDefinitions) {
            return Err(Error::Serialization("a definition of a table"));
        }
        let hold = self.hold_carried(at)?;
        self.reader.withdraw();
        self.engine().slots.publish_held(self.reader.slot, at);
        self.reader.hold = (!planted(Fault::CarriedUnheld)).then_some(hold);
        self.snapshot_fixed = true;
        self.reader.seen = Some(seen);
        self.reader.snapshot = at;
        let txs = &self.engine().txs;
        let low_water = TxId::from_raw(snapshot.low_water).min(txs.low_water());
        (self.reader.low_water, self.reader.high_water) = (low_water, txs.next());
        Ok(())
    }

    /// A round of purge, and work that holds the oldest snapshot for longer, look at the slots and raise the floor
    /// under the lock that is held here: they meet the hold, or their floor is met. A cut has left its mark, or meets
    /// it.
    fn hold_carried(&self, at: Cts) -> Result<Hold> {
        let engine = self.engine();
        if engine.storage.0.nodes().is_none() {
            return Err(Error::WrongState("this database has one server".into()));
        }
        if engine.is_reader() {
            return Err(Error::SnapshotTooOld(
                "a snapshot of another server is gone on with by the server that has the database alone".into(),
            ));
        }
        if at > engine.storage.durable() {
            return Err(Error::SnapshotTooOld(
                "this server does not show yet what the transaction has seen at another one".into(),
            ));
        }
        let noted = engine.readers.noted.lock();
        let hold = self.reader.lease.hold(at);
        let is_whole = at >= noted.purged.floor && engine.slots.is_uncut(at);
        drop(noted);
        match is_whole || planted(Fault::CarriedPurged) {
            true => Ok(hold),
            false => Err(Error::SnapshotTooOld(
                "the server has purged rows that the transaction's snapshot sees".into(),
            )),
        }
    }
}
