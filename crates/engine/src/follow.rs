//! A reader: a server that reads a database which another one changes (PolarDB Serverless, sections 3.2 and 3.3).
//!
//! ```text
//!  pool       pages as of position P of the log ──────────────── moves on (`cenote_buffer::follow`)
//!  engine     definitions as of P' <= P, then: snapshots are P' ── a thread, behind the pool
//!  statement  snapshot S <= P'; versions behind S lead to those before, by undo pages as of P
//! ```
//!
//! A commit's timestamp is its position in the log, so a snapshot is a position, and no counter is asked for. What a
//! transaction has become says its CTS slot, on a page like all others: the number there names the transaction, and a
//! page that was given back says so in its space's header.
//!
//! **What the server has purged.** Before a round of its purge changes anything, the server writes to the meta page: the
//! *floor*, below which snapshots miss what is purged, and the number below which all transactions have ended for the
//! others. A reader that has read rows looks there afterwards: a snapshot below the floor is too old (72000). So no
//! answer rests on what the server knows of its readers. That it does (each tells the storage nodes its oldest snapshot,
//! and the server purges nothing that one sees) spares statements that end.
//!
//! **How far behind.** The reader asks, ten times a second, where a majority of storage nodes has the log's end, and
//! notes when it gets there: all that was acknowledged before the question is visible then.

pub(crate) mod shared;

use crate::api::{Columns, Direction};
use crate::catalog::state::{self, Definition};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::meta;
use crate::system::{CATALOG_SPACE, META_SPACE};
use crate::tree::{BTree, LeafBatch};
use crate::tx::read::Reader;
use crate::tx::{CancelFlag, Status};
use crate::undo::record::Trailer;
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::sip::sip;
use cenote_base::{Cts, TxId};
use cenote_storage::follower::{Follower, Touched};
use std::sync::{Arc, Weak};

/// Between two looks at where the log ends.
const LOOK: rt::Nanos = rt::Nanos::from_millis(100);
/// Between two steps, at most.
const TURN: rt::Nanos = rt::Nanos::from_millis(200);
/// A node that does not lead a reader so far in this time lags.
const LAGS: rt::Nanos = rt::Nanos::from_secs(2);
/// How long a reader that starts waits for definitions that change all the time.
const START: rt::Nanos = rt::Nanos::from_secs(30);

/// How far a reader is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// What was acknowledged so long ago, or before, is visible.
    pub age: rt::Nanos,
    /// How long it took last until what the storage nodes had was visible here.
    pub behind: rt::Nanos,
    /// The position up to which commits are visible.
    pub visible: u64,
}

impl Engine {
    /// Whether this is a reader: another server changes the database.
    pub fn is_reader(&self) -> bool {
        self.follow.is_some()
    }

    /// How far this reader is behind; `None`: it is no reader.
    pub fn staleness(&self) -> Option<Staleness> {
        let follow = self.follow.as_ref()?;
        let current = follow.current.load(Ordering::Acquire);
        Some(Staleness {
            age: rt::now().since(rt::Nanos(current)),
            behind: rt::Nanos(follow.behind.load(Ordering::Relaxed)),
            visible: self.storage.durable().raw(),
        })
    }

    /// Returns when all is visible that was acknowledged before the call, on whichever server.
    ///
    /// # Errors
    /// 72000 if that takes longer than `patience`; 57014; those of asking storage nodes.
    pub fn catch_up(&self, patience: rt::Nanos, cancel: Option<&CancelFlag>) -> Result<()> {
        let Some(follow) = &self.follow else { return Ok(()) };
        let asked = rt::now();
        let newest = follow.follower.newest_end()?;
        let late = |at| format!("this reader is at position {at} of the log, and storage nodes are at {newest}");
        self.wait_visible(|at| at.position() >= newest, asked + patience, cancel, late)?;
        follow.current.fetch_max(asked.0, Ordering::AcqRel);
        follow.behind.store(rt::now().since(asked).0, Ordering::Relaxed);
        Ok(())
    }

    /// Returns when the commit with this timestamp, and all before it, is visible.
    ///
    /// # Errors
    /// 72000 if that takes longer than `patience`; 57014.
    pub fn catch_up_to(&self, commit: u64, patience: rt::Nanos, cancel: Option<&CancelFlag>) -> Result<()> {
        let late = |at| format!("this reader is at position {at} of the log, and is to be at {commit}");
        self.wait_visible(|at| at.raw() >= commit, rt::now() + patience, cancel, late)
    }

    fn wait_visible(
        &self,
        is_enough: impl Fn(Cts) -> bool,
        until: rt::Nanos,
        cancel: Option<&CancelFlag>,
        late: impl Fn(u64) -> String,
    ) -> Result<()> {
        let Some(follow) = &self.follow else { return Ok(()) };
        loop {
            cancel.map_or(Ok(()), |cancel| cancel.check())?;
            let at = self.storage.durable();
            if is_enough(at) {
                return Ok(());
            }
            follow.follower.check()?;
            if rt::now() > until || self.is_stopping() {
                return Err(Error::SnapshotTooOld(late(at.raw())));
            }
            self.visible_moved.wait_timeout(rt::Nanos::from_millis(1));
            self.visible_moved.reset();
        }
    }

    /// Makes visible what the pool has come to. A thread does so all the time, unless there are none.
    ///
    /// # Errors
    /// Those of reading definitions: what was visible stays so.
    pub fn follow_step(self: &Arc<Self>) -> Result<()> {
        let Some(follow) = &self.follow else { return Ok(()) };
        follow.follower.check()?;
        let (place, touched) = follow.follower.take_touched();
        if touched.has(CATALOG_SPACE) || self.has_defined(Cts::at(place.at.end))? {
            let changed = self.read_definitions(Cts::at(place.at.end));
            if changed.is_err() {
                follow.follower.touch(Touched::everything());
            }
            changed?;
        }
        // At once: statements wait for the position of definitions that are published.
        self.storage.set_visible(Cts::at(place.at.end));
        self.visible_moved.set();
        if touched.has(META_SPACE) {
            // It is asked for behind each look, and is to be there when storage nodes are not.
            let _ = meta::purged(&self.pool);
        }
        let oldest = self.slots.horizon(self.storage.durable());
        if !follow.keeps_oldest.load(Ordering::SeqCst) {
            follow.follower.set_oldest(oldest.position());
        }
        Ok(())
    }

    /// Reads the definitions as of `snapshot`, and publishes those that have changed.
    fn read_definitions(self: &Arc<Self>, snapshot: Cts) -> Result<()> {
        let Some(follow) = &self.follow else { return Ok(()) };
        let rows = self.settle(snapshot, self.definitions_as_of(snapshot))?;
        let (mut known, mut changes, mut found) = (follow.known.lock(), Vec::new(), HashMap::default());
        for (key, row) in rows {
            let hash = sip(follow.secret, &row);
            let definition = match known.get(&key) {
                Some((before, definition)) if *before == hash => definition.clone(),
                _ => {
                    let definition = state::definition_of(&self.catalog.own, &row)?;
                    changes.push(definition.clone());
                    definition
                }
            };
            found.insert(key, (hash, definition));
        }
        let gone = known.iter().filter(|(key, _)| !found.contains_key(*key));
        // Names that went may be those of others now.
        let mut all: Vec<Definition> = gone.map(|(_, (_, definition))| taken_back(definition)).collect();
        all.extend(changes);
        if !all.is_empty() {
            follow.defined.store(snapshot.raw(), Ordering::SeqCst);
            self.catalog.change(&all);
        }
        self.catalog.statistics.forget_all();
        *known = found;
        Ok(())
    }

    /// Keys and rows of the catalog that a snapshot sees; which transactions have newer ones is noted.
    fn definitions_as_of(self: &Arc<Self>, snapshot: Cts) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let own = &self.catalog.own;
        let mut reader = Reader::new(self);
        reader.read_as_of(snapshot);
        let mut scan = BTree { space: own.space }.scan(state::definition_keys(own), Direction::Forward);
        let (mut batch, mut rows, mut pending) = (LeafBatch::new(), Vec::new(), Vec::new());
        while scan.next_batch(&self.pool, &mut batch)? {
            for i in 0..batch.len() {
                let mut row = batch.value(i).to_vec();
                let newest = Trailer::of(&row)?;
                if !reader.sees(newest)? && !pending.contains(&newest.tx) {
                    pending.push(newest.tx);
                }
                if reader.visible_version(&mut row)? && reader.complete(own, &mut row, &Columns::All)? {
                    rows.push((batch.whole_key(batch.key(i)), row));
                }
            }
        }
        if let Some(follow) = &self.follow {
            *follow.pending.lock() = pending;
        }
        Ok(rows)
    }

    /// Whether a transaction has committed since whose definitions were not seen.
    fn has_defined(&self, snapshot: Cts) -> Result<bool> {
        let Some(follow) = &self.follow else { return Ok(false) };
        for tx in &*follow.pending.lock() {
            if matches!(self.status(*tx)?, Status::Committed(at) if at <= snapshot) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first step of a start.
    pub(crate) fn begin_following(self: &Arc<Self>) -> Result<()> {
        let until = rt::now() + START;
        loop {
            let Some(follow) = &self.follow else { return Ok(()) };
            follow.follower.touch(Touched::everything());
            match self.follow_step() {
                // The server has purged what the step's moment saw.
                Err(Error::SnapshotTooOld(_)) if rt::now() < until => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(()),
            }
        }
    }

    /// The last step of a start: the reader shows all that was acknowledged before it.
    pub(crate) fn catch_up_at_start(&self) -> Result<()> {
        let until = rt::now() + START;
        loop {
            match (self.catch_up(LAGS, None), &self.follow) {
                (Err(Error::SnapshotTooOld(_)), Some(follow)) if rt::now() < until => follow.follower.leave_node(),
                (caught_up, _) => return caught_up,
            }
        }
    }

    /// Goes on to what storage nodes have now: for a reader without threads.
    ///
    /// # Errors
    /// Those of following.
    pub fn follow_now(self: &Arc<Self>) -> Result<()> {
        self.pool.follow_turn(rt::Nanos::ZERO)?;
        self.follow_step()
    }

    /// Whether the published definitions are as of this snapshot, or older.
    pub(crate) fn shows_definitions(&self, snapshot: Cts) -> bool {
        let defined = self.follow.as_ref().map(|follow| follow.defined.load(Ordering::SeqCst));
        defined.is_none_or(|defined| snapshot.raw() >= defined)
    }

    /// Whether a reader follows still; a server that is none always does.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub fn check_following(&self) -> Result<()> {
        let checked = self.follow.as_ref().map(|follow| follow.follower.check());
        Ok(checked.unwrap_or(Ok(()))?)
    }

    /// What a reader has found, unless the server has purged what its snapshot sees.
    #[inline]
    pub(crate) fn settle<T>(&self, snapshot: Cts, found: Result<T>) -> Result<T> {
        match self.follow {
            None => found,
            Some(_) => self.settle_followed(snapshot, found),
        }
    }

    fn settle_followed<T>(&self, snapshot: Cts, found: Result<T>) -> Result<T> {
        if planted(Fault::HorizonUnread) {
            return found;
        }
        match meta::purged(&self.pool)?.floor <= snapshot {
            true => found,
            false => Err(Error::SnapshotTooOld(
                "the server has purged rows that this statement's snapshot sees".into(),
            )),
        }
    }

    /// When transaction `seq` has committed, as its page says; zero: it has not. The low-water mark is raised where the
    /// page may be another number's.
    pub(crate) fn followed_commit(&self, seq: TxId) -> Result<Cts> {
        let found = self.cts.read_anew(&self.pool, seq);
        if let Ok(Some(at)) = found
            && at != Cts::ZERO
        {
            self.txs.note_committed(seq, at);
            return Ok(at);
        }
        // The page of a number below the mark may be gone.
        self.txs.raise_low_water(meta::purged(&self.pool)?.low_water);
        found.map(|_| Cts::ZERO)
    }
}

/// The change that takes a definition back.
fn taken_back(definition: &Definition) -> Definition {
    match definition {
        Definition::Table(table) => Definition::DropTable(table.id),
        Definition::Sequence(sequence) => Definition::DropSequence(sequence.id),
        other => other.clone(),
    }
}

/// The thread that makes visible what the pool has come to.
pub(crate) fn run(engine: &Weak<Engine>, follower: &Follower) {
    let (mut known, mut said) = (0, String::new());
    loop {
        known = follower.wait_moved(known, TURN).moves;
        let Some(engine) = engine.upgrade() else { return };
        if engine.is_stopping() {
            return;
        }
        match engine.follow_step() {
            Ok(()) => said.clear(),
            // Its moment was overtaken: the next one is another.
            Err(Error::SnapshotTooOld(_)) => {}
            Err(error) => {
                let text = error.to_string();
                if said != text {
                    eprintln!("cenote: reader: definitions cannot be read: {text}");
                    said = text;
                }
                rt::sleep(LOOK);
            }
        }
    }
}

/// The thread that looks how far behind the reader is.
pub(crate) fn watch(engine: &Weak<Engine>, follower: &Follower) {
    loop {
        follower.pause(LOOK);
        let Some(engine) = engine.upgrade() else { return };
        if engine.is_stopping() {
            return;
        }
        // What goes wrong shows: the age grows. It may be the node's: another one is asked then.
        if let Err(Error::SnapshotTooOld(_)) = engine.catch_up(LAGS, None)
            && let Some(follow) = &engine.follow
        {
            follow.follower.leave_node();
        }
    }
}
