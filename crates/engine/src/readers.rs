//! What the server of a database on storage nodes knows of its readers, and what it tells them of its purge
//! ([`crate::follow`]).
//!
//! Rules of the server:
//! 1. The horizon of purge is no later than the oldest snapshot of a reader that storage nodes know.
//! 2. Before a round changes anything, the meta page says so: the horizon as the *floor*, and the low-water mark that
//!    belongs to it. Both stand in the log in front of what the round does. The mark is raised for no other horizon.
//! 3. Transactions of before this start count as past for a horizon that is not before the start.
//! 4. The horizon of a round is taken, noted and announced under one lock, and so is a hold of the oldest snapshot.
//! 5. Ways to old versions are cut only while no reader is known, and the floor rises to what the cut went by first.

pub(crate) mod shared;

use crate::engine::Engine;
use crate::error::Result;
use crate::meta::{self, Purged};
use crate::tx::slots::{Hold, Lease};
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Cts, TxId};
use cenote_storage::nodes::ReaderSeen;
use shared::Noted;
use std::sync::Arc;

impl Engine {
    /// The readers of the database that this server knows, of half a second ago at most.
    pub fn readers(&self) -> Vec<ReaderSeen> {
        let nodes = self.storage.0.nodes().filter(|_| !self.is_reader());
        nodes.map_or_else(Vec::new, |nodes| {
            self.readers.ask(nodes);
            self.readers.asked.lock().found.clone()
        })
    }

    /// Where the log ends that is durable.
    pub fn log_end(&self) -> u64 {
        self.storage.0.log().durable().raw()
    }

    /// The horizon of a round that begins, and is noted where readers look; None: nothing can be purged now.
    ///
    /// # Errors
    /// Those of the note's mini-transaction.
    pub(crate) fn begin_purge(&self) -> Result<Option<Cts>> {
        let own = || self.slots.horizon(self.storage.durable());
        let Some(nodes) = self.storage.0.nodes() else {
            let horizon = own();
            self.raise_low_water(horizon);
            self.purge.announce(horizon);
            return Ok(Some(horizon));
        };
        self.readers.ask(nodes);
        // A hold of the oldest snapshot is taken under this lock: before the horizon is, or behind the note.
        let mut noted = self.readers.noted.lock();
        if !self.readers.are_known() {
            return Ok(None);
        }
        let horizon = own().min(Cts::from_raw(self.readers.oldest.load(Ordering::Acquire)));
        if horizon.position() < self.readers.began {
            return Ok(None);
        }
        let horizon = self.note_purge(&mut noted, horizon)?;
        self.purge.announce(horizon);
        Ok(Some(horizon))
    }

    /// The horizon that readers know: this one, unless there is nothing to do for it.
    fn note_purge(&self, noted: &mut Noted, horizon: Cts) -> Result<Cts> {
        let now = Purged {
            floor: horizon.max(noted.purged.floor),
            low_water: self.low_water_of(horizon).max(noted.purged.low_water),
        };
        // An idle database writes nothing.
        let is_idle = self.storage.0.log().tail() == noted.end && !self.has_past(horizon);
        if is_idle || now == noted.purged {
            return Ok(horizon.min(noted.purged.floor));
        }
        self.write_purged(noted, now)?;
        self.txs.raise_low_water(now.low_water);
        Ok(horizon)
    }

    fn has_past(&self, horizon: Cts) -> bool {
        let mut segments = self.segments.all().into_iter();
        segments.any(|segment| segment.next_past(horizon).is_some())
    }

    fn write_purged(&self, noted: &mut Noted, now: Purged) -> Result<()> {
        assert!(
            now.floor >= noted.purged.floor && now.low_water >= noted.purged.low_water,
            "what readers were told of purge is not taken back"
        );
        noted.end = meta::note_purged(&self.pool, now)?;
        noted.purged = now;
        Ok(())
    }

    /// Of a start: the number below which all transactions have ended for every snapshot; `first` is this run's first
    /// number. Readers go on with snapshots of before.
    pub(crate) fn all_past_below(&self, first: TxId) -> TxId {
        let noted = self.readers.noted.lock().purged;
        match self.storage.0.nodes() {
            Some(_) if noted != Purged::default() => noted.low_water.min(first),
            _ => first,
        }
    }

    /// Where no server has told readers anything yet, this start does.
    pub(crate) fn note_start(&self, low_water: TxId) -> Result<()> {
        let mut noted = self.readers.noted.lock();
        if self.storage.0.nodes().is_none() || noted.purged != Purged::default() {
            return Ok(());
        }
        let floor = self.storage.durable();
        self.write_purged(&mut noted, Purged { floor, low_water })
    }

    /// The low-water mark that readers know: what they may ask for is kept.
    pub(crate) fn noted_low_water(&self) -> TxId {
        match self.storage.0.nodes() {
            None => self.txs.low_water(),
            Some(_) => self.readers.noted.lock().purged.low_water,
        }
    }

    /// Holds the oldest snapshot in use, of this server or of a reader that it knows. Readers that it does not know are
    /// told that older ones see less.
    ///
    /// # Errors
    /// Those of telling readers.
    pub(crate) fn hold_oldest(&self, lease: &Arc<Lease>) -> Result<Hold> {
        let Some(nodes) = self.storage.0.nodes() else {
            return Ok(lease.hold_oldest(self.storage.durable()));
        };
        self.readers.ask(nodes);
        // No round goes by a later horizon until it is held, and no snapshot comes meanwhile that is older than all.
        let mut noted = self.readers.noted.lock();
        let hold = lease.hold_oldest(self.storage.durable());
        let own = hold.snapshot();
        let of_readers = Cts::from_raw(self.readers.oldest.load(Ordering::Acquire));
        let oldest = of_readers.max(noted.purged.floor).min(own);
        self.raise_floor(&mut noted, oldest)?;
        if oldest >= own {
            return Ok(hold);
        }
        let mut older = lease.hold(oldest);
        older.cover();
        Ok(older)
    }

    /// Whether ways to versions may be cut that no snapshot of this server sees.
    pub(crate) fn may_cut(&self) -> bool {
        self.storage.0.nodes().is_none() || self.readers.are_none()
    }

    /// Ways are about to be cut by snapshots up to `until`: readers that begin meanwhile are told.
    pub(crate) fn note_cut(&self, until: Cts) -> Result<()> {
        if self.storage.0.nodes().is_none() {
            return Ok(());
        }
        self.raise_floor(&mut self.readers.noted.lock(), until)
    }

    fn raise_floor(&self, noted: &mut Noted, to: Cts) -> Result<()> {
        let now = Purged {
            floor: to.max(noted.purged.floor),
            ..noted.purged
        };
        match now == noted.purged {
            true => Ok(()),
            false => self.write_purged(noted, now),
        }
    }
}
