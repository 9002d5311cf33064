//! A block whose server goes in a planned switch: its session is made anew at the next server, in the midst of the block.
//!
//! The transaction with its locks and snapshot is the engine's to carry (`Tx::leave_to_next`). Beside it goes what the
//! session has, as text that the engine keeps in the database; so a client, or its proxy, holds a token and nothing that
//! a server would have to believe.
//!
//! A reader keeps nothing in the database, and its blocks have changed nothing: the proxy has the text. A session of
//! the same user goes on with it, read-only; all that a text of another making could do is read by a snapshot that its
//! client might have taken before.

use super::mark::Mark;
use super::prepared::{Prepared, has_plan};
use super::report::{CARRY_ON, TAKE_UP};
use super::state::Session;
use super::transaction::{Phase, TransactionModes};
use crate::error::{Result, SqlError, code};
use crate::parse::{Statement, Utility, parse};
use crate::settings::{Settings, Values};
use cenote_base::rt::atomic::Ordering;
use cenote_engine::{CarriedSnapshot, Isolation, Savepoint};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rows of a statement in a block that are taken back when the server ends, at most: some 10 us each.
const TAKEN_BACK_MAX: u64 = 20_000;

/// Bytes of what a session of a reader has that goes to another server.
const CARRIED_MAX: usize = 1 << 20;

/// What a session has beside its transaction.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Carried {
    user: String,
    block: Block,
    read_only: bool,
    queried: bool,
    first_modes: (bool, bool),
    /// When the transaction began.
    began: i64,
    /// Settings, each once.
    settings: Vec<Values>,
    /// Places in `settings`: at the connection's start, before the transaction if it may have changed any, now.
    start: usize,
    before: Option<usize>,
    now: usize,
    savepoints: Vec<CarriedSavepoint>,
    /// What `currval` answers.
    drawn: Vec<(u32, i64)>,
    last_drawn: Option<u32>,
    /// Statements that PREPARE made.
    prepared: Vec<String>,
}

/// What a session of a reader has, which goes to another server by way of its proxy.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CarriedReading {
    session: Carried,
    is_repeatable: bool,
    /// What the reader showed.
    shown: u64,
    /// At repeatable read, once the first statement has taken it.
    snapshot: Option<CarriedAt>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CarriedAt {
    at: u64,
    low_water: u64,
    tables: Vec<(u32, u64)>,
}

/// How far a session's block is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Block {
    /// There is none: it is the session's prepared statements that go.
    None,
    Open,
    Failed,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CarriedSavepoint {
    name: String,
    settings: usize,
    read_only: bool,
}

/// Settings that are written once each, however many savepoints share them.
#[derive(Default)]
struct Shared {
    seen: Vec<Arc<Settings>>,
}

impl Shared {
    fn place_of(&mut self, settings: &Arc<Settings>) -> usize {
        let known = self.seen.iter().rposition(|seen| Arc::ptr_eq(seen, settings));
        known.unwrap_or_else(|| {
            self.seen.push(settings.clone());
            self.seen.len() - 1
        })
    }
}

impl Session {
    /// Why an open block cannot go to another server; `None`: it can, or there is none.
    pub fn stays_because(&self) -> Option<&'static str> {
        if self.report.is_none() || !self.transaction.in_block() {
            return None;
        }
        if self.copying.is_some() {
            return Some("a COPY is under way");
        }
        if self.portals.is_any_suspended() {
            return Some("a cursor is open");
        }
        match self.tx.is_active() && self.tx.has_defined() {
            true => Some("it has made definitions or statistics"),
            false => None,
        }
    }

    /// The server sets `ends` when it ends.
    pub fn heed_end(&mut self, ends: Arc<AtomicBool>) {
        self.leaving.ends = Some(ends);
    }

    /// A batch of the client begins: if the server ends before it is answered, the session
    /// [returns](Self::return_to_mark) here. Only the sessions of proxies do.
    #[inline]
    pub fn mark_batch(&mut self) {
        if self.report.is_some() {
            self.mark();
        }
    }

    fn mark(&mut self) {
        let phase = self.transaction.phase();
        self.transaction.touched = false;
        self.leaving.is_back = false;
        self.leaving.mark = Some(Mark {
            phase,
            begun: self.transaction.begun,
            savepoint: (phase == Phase::Block).then(|| self.tx.savepoint()),
            settings: self.env.settings.clone(),
            read_only: self.transaction.read_only,
            queried: self.transaction.queried,
            committed: self.committed_at().as_raw().load(Ordering::Relaxed),
            prepared: self.statements.commanded_changes(),
            rows: if phase == Phase::Block {
                self.tx.rows_changed()
            } else {
                0
            },
            sequences_set: self.tx.sequences_set(),
            has_portals: self.portals.is_any_suspended(),
        });
    }

    /// Takes back all that the batch under way has done. False: it has done what cannot be taken back.
    pub fn return_to_mark(&mut self) -> bool {
        if self.leaving.is_back {
            return true;
        }
        let Some(mark) = self.leaving.mark.take() else {
            return false;
        };
        let committed = self.committed_at().as_raw().load(Ordering::Relaxed);
        let done_for_good = committed != mark.committed
            || self.statements.commanded_changes() != mark.prepared
            || self.tx.sequences_set() != mark.sequences_set;
        if done_for_good || mark.has_portals {
            return false;
        }
        self.leaving.is_back = match mark.phase {
            Phase::Idle => self.begin_batch_anew(mark.settings),
            Phase::Block => self.return_in_block(&mark),
            Phase::Implicit | Phase::Failed => false,
        };
        self.leaving.is_back
    }

    fn begin_batch_anew(&mut self, settings: Arc<Settings>) -> bool {
        self.copying = None;
        self.transaction.end();
        let done = self.rollback().is_ok();
        self.put_settings(settings);
        done
    }

    fn return_in_block(&mut self, mark: &Mark) -> bool {
        let is_as_before = self.transaction.phase() == Phase::Block
            && self.transaction.begun == mark.begun
            && !self.transaction.touched;
        // More would take longer than an end in order waits: such a block fails, and the background takes it back.
        let is_short = self.tx.rows_changed().saturating_sub(mark.rows) <= TAKEN_BACK_MAX;
        let Some(savepoint) = mark.savepoint.as_ref().filter(|_| is_as_before && is_short) else {
            return false;
        };
        self.copying = None;
        self.portals.close_all();
        if self.tx.rollback_to(savepoint).is_err() {
            return false;
        }
        self.put_settings(mark.settings.clone());
        self.set_read_only(mark.read_only);
        self.transaction.queried = mark.queried;
        self.give_up_snapshot();
        true
    }

    /// What another server's session needs to go on with the open block, and with statements that PREPARE made, by
    /// `_cenote.carry_on`. `None`: there is neither, or no proxy; or this is no reader, whose blocks have changes
    /// ([`Session::leave_to_next`]). From here on the session is good for nothing.
    ///
    /// # Errors
    /// 55000: the block cannot go. 54000: it has too much.
    pub fn carry_away(&mut self) -> Result<Option<String>> {
        let has_some = self.transaction.in_block() || self.holds();
        if self.report.is_none() || !has_some || !self.sql.engine().is_reader() {
            return Ok(None);
        }
        self.refuse_what_stays()?;
        self.portals.close_all();
        let (is_active, shown) = (self.tx.is_active(), self.tx.carry_away());
        let snapshot = self.tx.carried_snapshot().filter(|_| is_active);
        let reading = CarriedReading {
            session: self.carried(),
            is_repeatable: is_active && self.tx.isolation() == Isolation::RepeatableRead,
            shown,
            snapshot: snapshot.map(|snapshot| CarriedAt {
                at: snapshot.at,
                low_water: snapshot.low_water,
                tables: snapshot.tables,
            }),
        };
        self.transaction.forget_savepoints();
        self.transaction.end();
        self.rollback()?;
        let text = serde_json::to_string(&reading).map_err(|error| SqlError::internal(error.to_string()))?;
        match text.len() <= CARRIED_MAX {
            true => Ok(Some(text)),
            false => Err(SqlError::new(
                code::PROGRAM_LIMIT,
                format!(
                    "a transaction with {} bytes of state does not go to another server",
                    text.len()
                ),
            )),
        }
    }

    fn refuse_what_stays(&self) -> Result<()> {
        let Some(reason) = self.stays_because() else {
            return Ok(());
        };
        let text = format!("the transaction is not left to another server: {reason}");
        Err(SqlError::new(code::OBJECT_NOT_IN_STATE, text))
    }

    /// Leaves the open block, and statements that PREPARE made, to the next server, where a session's `_cenote.take_up`
    /// with `token` goes on with them. False: the session has neither, or no proxy that would. From here on the session
    /// is good for nothing.
    ///
    /// # Errors
    /// 55000: the block cannot go. Those of writing.
    pub fn leave_to_next(&mut self, token: u128) -> Result<bool> {
        let has_some = self.transaction.in_block() || self.holds();
        if self.report.is_none() || !has_some || self.sql.engine().is_reader() {
            return Ok(false);
        }
        self.refuse_what_stays()?;
        self.portals.close_all();
        if !self.tx.is_active() {
            // No block, or one that failed and has taken all back.
            self.tx.begin(Isolation::ReadCommitted);
        }
        let text = serde_json::to_vec(&self.carried()).map_err(|error| SqlError::internal(error.to_string()))?;
        let savepoints: Vec<&Savepoint> = self
            .transaction
            .savepoints()
            .iter()
            .map(|kept| &kept.savepoint)
            .collect();
        self.tx.leave_to_next(token, &savepoints, text)?;
        self.transaction.forget_savepoints();
        self.transaction.end();
        Ok(true)
    }

    fn carried(&self) -> Carried {
        let mut shared = Shared::default();
        let savepoints = self.transaction.savepoints().iter();
        let savepoints = savepoints.map(|kept| CarriedSavepoint {
            name: kept.name().to_owned(),
            settings: shared.place_of(&kept.settings),
            read_only: kept.read_only,
        });
        let savepoints = savepoints.collect();
        let start = shared.place_of(self.settings.start());
        let before = self.settings.before().map(|before| shared.place_of(before));
        let now = shared.place_of(&self.env.settings);
        let first = self.transaction.first_modes();
        Carried {
            user: self.env.user.clone(),
            block: match self.transaction.phase() {
                Phase::Idle | Phase::Implicit => Block::None,
                Phase::Block => Block::Open,
                Phase::Failed => Block::Failed,
            },
            read_only: self.transaction.read_only,
            queried: self.transaction.queried,
            first_modes: (first.isolation == Isolation::RepeatableRead, first.read_only),
            began: self.env.transaction_time,
            settings: shared.seen.iter().map(|settings| settings.values()).collect(),
            start,
            before,
            now,
            savepoints,
            drawn: self
                .env
                .last_values
                .borrow()
                .iter()
                .map(|(id, value)| (*id, *value))
                .collect(),
            last_drawn: self.env.last_sequence.get(),
            prepared: self.statements.commanded(),
        }
    }

    /// Goes on with a block that the last server left.
    pub(super) fn take_up(&mut self, text: &str) -> Result<()> {
        let Some(token) = self.proven(TAKE_UP, text)? else {
            return Ok(());
        };
        let token = u128::from_str_radix(token, 16).map_err(|_| not_there())?;
        // The statement that says so began a transaction of its own.
        self.transaction.end();
        self.commit()?;
        let user = &self.env.user;
        let is_its = |session: &[u8]| read(session).is_some_and(|carried| carried.user == *user);
        let taken = self.tx.take_up(token, &is_its)?.ok_or_else(not_there)?;
        let done = read(&taken.session)
            .ok_or_else(not_there)
            .and_then(|carried| self.carry_on(carried, taken.savepoints));
        if done.is_err() {
            self.transaction.end();
            self.rollback()?;
        }
        done
    }

    /// Goes on with what a reader's session had.
    pub(super) fn carry_on_reading(&mut self, text: &str) -> Result<()> {
        let Some(text) = self.proven(CARRY_ON, text)?.map(str::to_owned) else {
            return Ok(());
        };
        self.transaction.end();
        self.commit()?;
        let reading: CarriedReading = serde_json::from_str(&text).map_err(|_| not_there())?;
        // A reader's transaction may not write: one that could would have been at another server.
        let may_write = |carried: &Carried| {
            carried.block == Block::Open && !carried.read_only || carried.savepoints.iter().any(|kept| !kept.read_only)
        };
        if reading.session.user != self.env.user || may_write(&reading.session) {
            return Err(not_there());
        }
        let done = self.begin_reading(reading);
        if done.is_err() {
            self.transaction.end();
            self.rollback()?;
        }
        done
    }

    fn begin_reading(&mut self, reading: CarriedReading) -> Result<()> {
        let isolation = match reading.is_repeatable {
            true => Isolation::RepeatableRead,
            false => Isolation::ReadCommitted,
        };
        let snapshot = reading.snapshot.map(|snapshot| CarriedSnapshot {
            at: snapshot.at,
            low_water: snapshot.low_water,
            tables: snapshot.tables,
        });
        self.tx.begin_carried(isolation, reading.shown, snapshot.as_ref())?;
        let mut session = reading.session;
        // What has taken its snapshot has read.
        session.queried |= snapshot.is_some();
        let savepoints = session.savepoints.iter().map(|_| self.tx.savepoint());
        let savepoints = savepoints.collect();
        self.carry_on(session, savepoints)
    }

    fn carry_on(&mut self, carried: Carried, savepoints: Vec<Savepoint>) -> Result<()> {
        let Some(origin) = self.report.as_ref().map(|report| report.origin.clone()) else {
            return Err(not_there());
        };
        let settings = carried.settings.iter();
        let settings: Vec<Arc<Settings>> = settings
            .map(|values| Settings::of_values(&origin, values).map(Arc::new))
            .collect::<Result<_>>()?;
        let of = |place: usize| settings.get(place).cloned().ok_or_else(not_there);
        let has_block = carried.block != Block::None;
        if carried.savepoints.len() != savepoints.len() || !has_block && !savepoints.is_empty() {
            return Err(not_there());
        }
        let (isolation, read_only) = carried.first_modes;
        let isolation = match isolation {
            true => Isolation::RepeatableRead,
            false => Isolation::ReadCommitted,
        };
        if has_block {
            self.transaction.start(TransactionModes { isolation, read_only });
            self.transaction.open_block();
        }
        for (kept, savepoint) in carried.savepoints.iter().zip(savepoints) {
            self.transaction.read_only = kept.read_only;
            self.transaction.push(&kept.name, savepoint, of(kept.settings)?);
        }
        if carried.block == Block::Failed {
            self.transaction.fail_block();
        }
        self.transaction.queried = carried.queried;
        self.set_read_only(carried.read_only);
        self.env.transaction_time = carried.began;
        self.change_client((of(carried.start)?, of(carried.now)?), origin)?;
        self.settings.put_before(carried.before.map(of).transpose()?);
        *self.env.last_values.borrow_mut() = carried.drawn.into_iter().collect();
        self.env.last_sequence.set(carried.last_drawn);
        carried.prepared.iter().try_for_each(|text| self.prepare_again(text))?;
        match carried.block {
            Block::None => Ok(self.tx.rollback()?),
            Block::Open | Block::Failed => Ok(()),
        }
    }

    /// PREPARE of the former session. One that cannot be planned any more fails when it is executed.
    fn prepare_again(&mut self, text: &str) -> Result<()> {
        let parsed = parse(text)?.into_iter().next().ok_or_else(not_there)?;
        let (name, parsed) = match &parsed.statement {
            Statement::Utility(Utility::Prepare { name, .. }) => (name.clone(), Arc::new(parsed)),
            _ => return Err(not_there()),
        };
        if self.statements.named(&name).is_some() {
            return Ok(());
        }
        let mut prepared = self.commanded(&name, &parsed)?;
        if has_plan(prepared.statement()) {
            self.plan(&mut prepared).ok();
            self.statements.insert(&name, prepared);
        }
        Ok(())
    }

    fn commanded(&self, name: &str, parsed: &Arc<crate::parse::Parsed>) -> Result<Prepared> {
        let Statement::Utility(Utility::Prepare { types, .. }) = &parsed.statement else {
            return Err(not_there());
        };
        let mut prepared = Prepared::of_command(types, parsed)?;
        prepared.memory = Some(self.room_for_statement(name, &parsed.text)?);
        Ok(prepared)
    }
}

fn read(session: &[u8]) -> Option<Carried> {
    serde_json::from_slice(session).ok()
}

#[cold]
fn not_there() -> SqlError {
    let text = "there is no such transaction that the last server left to this session";
    SqlError::new(code::OBJECT_NOT_IN_STATE, text)
}
