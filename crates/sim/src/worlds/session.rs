//! Sessions: random transactions, noted in the history as they go.

use cenote_base::random::Random;
use std::cell::RefCell;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_engine::{
    Change, Changed, Columns, Direction, Engine, Error, Insert, Isolation, LockStrength, Locked, Result, Savepoint,
    Table, Tx, Wait,
};

use super::rows::{self, DEFINED, DEFINED_ROWS, Path, place};
use super::shared::Shared;
use crate::check::history::{color, tag, writer};
use crate::check::{Tag, What};

/// Why a transaction does not go on.
pub(super) enum Stop {
    /// The engine said no.
    Refused(Error),
    /// Something is wrong, and has been noted.
    Failed,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Refused(error)
    }
}

/// What a change met.
pub(super) enum Met {
    /// It replaced (or kept, and locked) this version, of the row with this id.
    Changed(i32, Tag),
    /// It left the row alone: because of this version, or because there was none.
    Left(i32, Tag),
}

pub(super) type Step<T = ()> = std::result::Result<T, Stop>;

/// A session's state.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) tx: Tx,
    pub(super) number: usize,
    pub(super) life: usize,
    pub(super) draw: Random,
    tables: Vec<Arc<Table>>,
    /// The transaction in progress, and how many writes it has noted.
    pub(super) txn: usize,
    pub(super) writes: usize,
    pub(super) floor: u64,
    pub(super) begun: bool,
    pub(super) saved: Option<Savepoint>,
    /// The transaction in progress is left to the next life, if this one comes to its end meanwhile.
    pub(super) leaves: bool,
}

impl Session {
    pub(super) fn new(shared: &Arc<Shared>, engine: &Arc<Engine>, number: usize, life: usize) -> Session {
        let mut tx = engine.tx();
        // In half of the worlds all wait without end, and only a look for cycles ends those.
        let gives_up = shared.plan.seed.is_multiple_of(2) && number.is_multiple_of(3);
        tx.set_lock_timeout(if gives_up { 3 } else { 0 });
        let session = Session {
            shared: shared.clone(),
            tx,
            number,
            life,
            draw: Random(rt::random()),
            tables: Vec::new(),
            txn: 0,
            writes: 0,
            floor: 0,
            begun: false,
            saved: None,
            leaves: false,
        };
        session.suit_leaving()
    }

    /// Works until told to stop.
    pub(super) fn run(mut self) {
        let eager = self.eagerness();
        while !self.shared.is_stopping() {
            if !self.takes_up(eager) {
                self.one();
            }
            self.shared.ended_one();
            if self.draw.one_in(8) {
                rt::sleep(Nanos(self.draw.below(20_000)));
            }
        }
        self.tables.clear();
    }

    fn one(&mut self) {
        let level = match self.draw.below(100) < self.shared.plan.repeatable {
            true => Isolation::RepeatableRead,
            false => Isolation::ReadCommitted,
        };
        self.begin(level);
        let statements = 1 + self.draw.below(self.shared.plan.statements);
        let done = self.look_up_tables().and_then(|()| self.statements(statements));
        self.finish(done);
    }

    /// Ends the transaction, or leaves it to the next life.
    pub(super) fn finish(&mut self, done: Step) {
        match done {
            Ok(()) if self.is_to_leave() => self.leave(),
            Ok(()) if self.draw.below(100) >= self.shared.plan.taken_back => self.commit(),
            Ok(()) | Err(Stop::Failed) => self.roll_back(),
            Err(Stop::Refused(error)) => {
                self.judge(&error);
                self.roll_back();
            }
        }
    }

    pub(super) fn begin(&mut self, level: Isolation) {
        self.tx.begin(level);
        self.writes = 0;
        self.begun = false;
        self.saved = None;
        self.leaves = self.shared.plan.leaves && self.draw.one_in(2);
        self.txn = self.shared.history().begin(self.number, self.life, level);
    }

    pub(super) fn look_up_tables(&mut self) -> Step {
        if !self.tables.is_empty() && self.shared.plan.definers == 0 {
            return Ok(());
        }
        self.tables.clear();
        for table in 0..self.shared.plan.tables {
            let found = self.tx.table(&rows::name(table))?;
            self.tables
                .push(found.ok_or_else(|| self.fail(format!("table {} is gone", rows::name(table))))?);
        }
        Ok(())
    }

    pub(super) fn fail(&self, problem: String) -> Stop {
        self.shared.fail(problem);
        Stop::Failed
    }

    pub(super) fn statements(&mut self, count: u64) -> Step {
        let seldom = if self.shared.plan.leaves { 4 } else { 12 };
        for _ in 0..count {
            if self.is_to_leave() {
                break;
            }
            if self.draw.one_in(seldom) {
                self.saved = Some(self.tx.savepoint());
                self.note(What::Savepoint);
            } else if self.saved.is_some() && self.draw.one_in(6) {
                self.return_to_savepoint()?;
            }
            self.statement()?;
            // As clients do that idle in their transactions.
            if self.draw.one_in(2) {
                self.tx.end_statement();
            }
        }
        Ok(())
    }

    pub(super) fn return_to_savepoint(&mut self) -> Step {
        if let Some(point) = &self.saved {
            self.tx.rollback_to(point)?;
            self.note(What::RolledBack);
        }
        Ok(())
    }

    /// Begins a statement: what is acknowledged by now, it must see.
    pub(super) fn begin_statement(&mut self) {
        if !(self.begun && self.tx.isolation() == Isolation::RepeatableRead) {
            self.floor = self.shared.history().acknowledged;
        }
        self.begun = true;
        self.tx.begin_statement();
        // By now it has waited for what it has built on.
        self.shared.history().statement(self.txn);
    }

    pub(super) fn note(&self, what: What) {
        self.shared
            .history()
            .note(self.txn, self.tx.snapshot(), self.floor, what);
    }

    fn statement(&mut self) -> Step {
        let table = self.draw.below(self.tables.len() as u64) as u8;
        let id = self.draw.below(self.shared.plan.rows as u64) as i32;
        let reads = self.draw.below(100) < self.shared.plan.reading;
        self.begin_statement();
        match (reads, self.draw.below(20)) {
            (true, 0..10) => self.get(table, id),
            (true, 10..13) => self.lock(table, id),
            (true, 13..15) => self.by_color(table),
            (true, 15..18) if self.shared.plan.definers > 0 => self.look_at_defined(),
            (true, _) => self.scan(table, id),
            (false, 0..7) => self.insert(table, id),
            (false, 7..9) => self.move_row(table, id),
            (false, 9..12) => self.delete(table, id),
            (false, _) => self.update(table, id),
        }
    }

    fn next_tag(&mut self) -> Tag {
        self.writes += 1;
        tag(self.txn, self.writes)
    }

    pub(super) fn wrote(&self, table: u8, id: i32, before: Tag, after: Tag) {
        let key = place(table, id);
        self.note(What::Write { key, before, after });
    }

    /// Notes what a statement met that asked for a row by its id.
    fn wanted(&self, table: u8, id: i32, saw: Tag) {
        let key = place(table, id);
        self.note(What::Wanted { key, saw });
    }

    fn left(&self, table: u8, id: i32, saw: Tag) {
        let key = place(table, id);
        self.note(What::Met { key, saw });
    }

    fn decode(&self, table: &Table, row: &[u8]) -> Step<(i32, Tag)> {
        self.shared
            .plan
            .shape
            .decode(table, row)
            .map_err(|problem| self.fail(problem))
    }

    fn get(&mut self, table: u8, id: i32) -> Step {
        let (handle, mut row) = (self.tables[table as usize].clone(), Vec::new());
        let there = self.tx.get(&handle, &rows::key(&handle, id), &mut row)?;
        let saw = match there {
            true => self.found(&handle, id, &row)?,
            false => 0,
        };
        self.note(What::Read {
            key: place(table, id),
            saw,
        });
        Ok(())
    }

    /// The tag of a row that was asked for by its id.
    fn found(&self, table: &Table, id: i32, row: &[u8]) -> Step<Tag> {
        match self.decode(table, row)? {
            (found, tag) if found == id => Ok(tag),
            (found, _) => Err(self.fail(format!("{}[{id}] was asked for, [{found}] delivered", table.name))),
        }
    }

    fn lock(&mut self, table: u8, id: i32) -> Step {
        let (handle, mut row) = (self.tables[table as usize].clone(), Vec::new());
        let alone = self.draw.one_in(2);
        let strength = if alone {
            LockStrength::Update
        } else {
            LockStrength::Share
        };
        let wait = self
            .draw
            .pick(&[Wait::Block, Wait::Block, Wait::NoWait, Wait::SkipLocked]);
        let key = rows::key(&handle, id);
        match self.tx.lock_row(&handle, &key, strength, wait, &mut row)? {
            Locked::Row { .. } => {
                let (found, saw) = self.followed(&handle, id, self.decode(&handle, &row)?)?;
                self.wanted(table, id, saw);
                self.note(What::Lock {
                    key: place(table, found),
                    saw,
                    alone,
                });
            }
            Locked::Gone => self.wanted(table, id, 0),
            Locked::Skipped => {}
        }
        Ok(())
    }

    fn scan(&mut self, table: u8, id: i32) -> Step {
        let length = match self.draw.one_in(10) {
            true => self.shared.plan.rows,
            false => 1 + self.draw.below(12) as i32,
        };
        let direction = self.draw.pick(&[Direction::Forward, Direction::Backward]);
        self.scan_from(table, (id, id + length), direction)
    }

    /// Reads all rows of a table.
    pub(super) fn scan_all(&mut self, table: u8) -> Step {
        self.scan_from(table, (0, self.shared.plan.rows), Direction::Forward)
    }

    fn scan_from(&mut self, table: u8, (from, to): (i32, i32), direction: Direction) -> Step {
        let handle = self.tables[table as usize].clone();
        let range = rows::range(&handle, from, to);
        let saw = self.read(&handle, Path::Primary, range, direction)?;
        let color = None;
        self.note(What::Scan {
            table,
            from,
            to,
            saw,
            color,
        });
        Ok(())
    }

    fn by_color(&mut self, table: u8) -> Step {
        let handle = self.tables[table as usize].clone();
        let color = self.draw.below(9) as i32;
        let range = rows::color_range(&handle, color);
        let saw = self.read(&handle, Path::Index(0), range, Direction::Forward)?;
        let (from, to) = (0, self.shared.plan.rows);
        let color = Some(color);
        self.note(What::Scan {
            table,
            from,
            to,
            saw,
            color,
        });
        Ok(())
    }

    pub(super) fn read(
        &self,
        table: &Arc<Table>,
        path: Path,
        range: cenote_engine::KeyRange,
        direction: Direction,
    ) -> Step<Vec<(i32, Tag)>> {
        let shape = &self.shared.plan.shape;
        let read = rows::read(self.tx.reader(), shape, table, path, range, direction)?;
        read.map_err(|problem| self.fail(problem))
    }

    /// A definer's table has all of its rows or none, all of one transaction.
    fn look_at_defined(&mut self) -> Step {
        let number = self.draw.below(self.shared.plan.definers as u64) as u8;
        let Some(table) = self.tx.table(&rows::name(DEFINED + number))? else {
            return Ok(());
        };
        // As a statement that has been planned, and waits for its client.
        if self.draw.one_in(3) {
            rt::sleep(Nanos(self.draw.below(2_000_000)));
        }
        let rows = self.read(
            &table,
            Path::Primary,
            cenote_engine::KeyRange::all(),
            Direction::Forward,
        )?;
        let writers: Vec<_> = rows.iter().map(|(_, tag)| writer(*tag)).collect();
        let whole = rows.is_empty() || rows.len() == DEFINED_ROWS as usize && writers.iter().all(|w| *w == writers[0]);
        if whole {
            return Ok(());
        }
        Err(self.fail(format!("half a definition: {} has {rows:?}", table.name)))
    }

    fn insert(&mut self, table: u8, id: i32) -> Step {
        let (handle, tag) = (self.tables[table as usize].clone(), self.next_tag());
        let row = self.shared.plan.shape.encode(&handle, id, tag)?;
        if self.tx.insert(&handle, &row)? == Insert::Done {
            self.wrote(table, id, 0, tag);
        }
        Ok(())
    }

    fn update(&mut self, table: u8, id: i32) -> Step {
        let (handle, tag) = (self.tables[table as usize].clone(), self.next_tag());
        let new = self.shared.plan.shape.encode(&handle, id, tag)?;
        let change = if self.draw.one_in(15) {
            Change::Keep
        } else {
            Change::Update(new)
        };
        let kept = change == Change::Keep;
        // A condition on a column, as of an UPDATE.
        let condition: fn(Tag) -> bool = if self.draw.one_in(4) {
            |tag| color(tag) < 5
        } else {
            |_| true
        };
        match self.modify_noted(table, id, change, condition)? {
            Met::Changed(found, saw) if kept => {
                // As RETURNING does, before the client sees the row.
                self.tx.wait_built_on()?;
                let (key, alone) = (place(table, found), true);
                self.note(What::Lock { key, saw, alone });
            }
            // The new version has the id that was asked for: it goes back there.
            Met::Changed(found, before) => self.gave(table, (found, before), (id, tag)),
            Met::Left(found, saw) => self.left(table, found, saw),
        }
        Ok(())
    }

    fn delete(&mut self, table: u8, id: i32) -> Step {
        match self.modify_noted(table, id, Change::Delete, |_| true)? {
            Met::Changed(found, before) => self.wrote(table, found, before, 0),
            Met::Left(found, saw) => self.left(table, found, saw),
        }
        Ok(())
    }

    /// Gives a row another primary key.
    fn move_row(&mut self, table: u8, id: i32) -> Step {
        let (handle, tag) = (self.tables[table as usize].clone(), self.next_tag());
        let to = self.draw.below(self.shared.plan.rows as u64) as i32;
        let new = self.shared.plan.shape.encode(&handle, to, tag)?;
        match self.modify_noted(table, id, Change::Update(new), |_| true)? {
            Met::Changed(found, before) => self.gave(table, (found, before), (to, tag)),
            Met::Left(found, saw) => self.left(table, found, saw),
        }
        Ok(())
    }

    /// Notes that a row was given another version, and maybe another key.
    fn gave(&self, table: u8, (from, before): (i32, Tag), (to, after): (i32, Tag)) {
        if from == to {
            return self.wrote(table, from, before, after);
        }
        self.wrote(table, from, before, 0);
        self.wrote(table, to, 0, after);
        self.note(What::Rekeyed { before, after });
    }

    /// As `modify`, and notes what was met.
    fn modify_noted(&mut self, table: u8, id: i32, change: Change, condition: impl Fn(Tag) -> bool) -> Step<Met> {
        let handle = self.tables[table as usize].clone();
        let met = self.modify(&handle, id, change, condition)?;
        let (Met::Changed(_, saw) | Met::Left(_, saw)) = met;
        self.wanted(table, id, saw);
        Ok(met)
    }

    /// What a statement met that asked for a row by its id: at read committed the row may have got another one.
    fn followed(&self, table: &Table, id: i32, (found, tag): (i32, Tag)) -> Step<(i32, Tag)> {
        if found != id && self.tx.isolation() == Isolation::RepeatableRead {
            return Err(self.fail(format!("{}[{id}] was asked for, [{found}] met", table.name)));
        }
        Ok((found, tag))
    }

    /// Changes a row where the condition holds. Half of the updates leave the text as it is, and do not look at it.
    pub(super) fn modify(
        &mut self,
        table: &Table,
        id: i32,
        change: Change,
        condition: impl Fn(Tag) -> bool,
    ) -> Step<Met> {
        let shape = self.shared.plan.shape;
        let asked = RefCell::new(Ok((id, 0)));
        let keeps_text = self.draw.one_in(2);
        let columns = match keeps_text {
            true => rows::but_the_text(),
            false => Columns::All,
        };
        let outcome = self
            .tx
            .change_reading(table, &rows::key(table, id), &columns, &|row, _| {
                let found = shape.decode(table, row);
                let holds = found.as_ref().is_ok_and(|(_, tag)| condition(*tag));
                *asked.borrow_mut() = found;
                Ok::<_, Error>(match &change {
                    _ if !holds => Change::Skip,
                    Change::Update(new) if keeps_text => Change::Update(rows::keep_text(table, row, new)?),
                    change => change.clone(),
                })
            })?;
        match (outcome, asked.into_inner()) {
            (_, Err(problem)) => Err(self.fail(problem)),
            (Changed::Gone, _) => Ok(Met::Left(id, 0)),
            (changed, Ok(met)) => {
                let (found, tag) = self.followed(table, id, met)?;
                Ok(match changed {
                    Changed::Done { .. } => Met::Changed(found, tag),
                    Changed::Skipped | Changed::Gone => Met::Left(found, tag),
                })
            }
        }
    }

    pub(super) fn commit(&mut self) {
        self.shared.history().ask(self.txn, self.tx.committed_at());
        let done: Result<()> = self.tx.commit();
        match done {
            Ok(()) => self.shared.history().answer(self.txn, true),
            Err(error) => {
                self.judge(&error);
                self.shared.history().answer(self.txn, false);
                self.abandon();
            }
        }
    }

    pub(super) fn roll_back(&mut self) {
        self.shared.history().give_up(self.txn);
        match self.tx.rollback() {
            Ok(()) => self.shared.history().abort(self.txn),
            Err(error) => self.judge(&error),
        }
    }

    /// After a commit that failed: it is open what became of it, the session goes on.
    fn abandon(&mut self) {
        if self.tx.is_active()
            && let Err(error) = self.tx.rollback()
        {
            self.judge(&error);
        }
    }

    /// Whether an error is one that may come at this moment.
    pub(super) fn judge(&self, error: &Error) {
        let always = ["40001", "40P01", "55P03", "23505", "55000", "42P01", "42P07", "42704"];
        let on_bad_disks = ["58030", "53100", "XX001"];
        let code = error.sqlstate();
        // Numbers of spaces that are few have all been given out at times, and none can be used again yet.
        let scarce = code == "53400" && self.shared.plan.definers > 0 && error.to_string().contains("used again yet");
        let is_canceled = code == "57014" && self.shared.plan.leaves && self.shared.is_stopping();
        if scarce || is_canceled || always.contains(&code) || self.shared.is_disk_bad() && on_bad_disks.contains(&code)
        {
            self.shared.count(code);
            return;
        }
        self.shared.fail(format!("session {}: {code} {error}", self.number));
    }
}
