//! Sessions of SQL: random transactions, whose answers are noted in the history.
//!
//! - A transaction is a block; its COMMIT is noted before it is sent. After 40001 and 40P01 another one is begun, as
//!   clients do.
//! - What has been answered is noted, and judged by the conditions of its statement: a row that RETURNING or FOR UPDATE
//!   gives has met them.
//! - A portal is noted where it was bound: it has to give the rows of that moment, each once, whenever they are
//!   fetched. While it is open only a place for it is in the history.
//! - Locks that a failed statement or a return to a savepoint has given back count as shared from the start: others may
//!   have written since.

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_engine::Isolation;
use cenote_sql::{Sql, SqlError};

use super::client::{Client, Row};
use super::{LIMIT, name};
use crate::check::history::{color, show, tag};
use crate::check::{Tag, What};
use crate::worlds::rows::place;
use crate::worlds::shared::Shared;

const COLUMNS: &str = "id, tag, prev, n, k";
/// Portals at once.
const PORTALS: usize = 2;
/// Writes of a transaction, at most: as many as tags can tell.
const WRITES_MOST: usize = 250;
/// Errors that may come at any time.
const MAY_COME: [&str; 5] = ["40001", "40P01", "55P03", "23505", "57014"];

/// Why a transaction does not go on.
enum Stop {
    Refused(SqlError),
    /// Something is wrong, and has been noted.
    Failed,
}

impl From<SqlError> for Stop {
    fn from(error: SqlError) -> Stop {
        Stop::Refused(error)
    }
}

type Step<T = ()> = std::result::Result<T, Stop>;

/// A query whose rows come in parts.
struct Portal {
    name: String,
    /// Its place among the transaction's operations.
    op: usize,
    /// What it will be, with the rows that have come.
    scan: What,
    /// By rising id, so that a part of the rows is all up to its last.
    rises: bool,
}

pub(in crate::worlds) struct Session {
    shared: Arc<Shared>,
    client: Client,
    number: usize,
    life: usize,
    draw: Random,
    level: Isolation,
    txn: usize,
    writes: usize,
    floor: u64,
    begun: bool,
    /// Operations that there were at the last savepoint.
    mark: Option<usize>,
    portals: Vec<Portal>,
    opened: u64,
}

impl Session {
    /// # Errors
    /// SQL refuses the session or a setting.
    pub fn new(shared: &Arc<Shared>, sql: &Arc<Sql>, number: usize, life: usize) -> Result<Session, SqlError> {
        let mut client = Client::new(sql)?;
        match number % 3 {
            0 => drop(client.text("SET lock_timeout = 3")?),
            1 => drop(client.text("SET statement_timeout = 5")?),
            _ => {}
        }
        Ok(Session {
            shared: Arc::clone(shared),
            client,
            number,
            life,
            draw: Random(rt::random()),
            level: Isolation::ReadCommitted,
            txn: 0,
            writes: 0,
            floor: 0,
            begun: false,
            mark: None,
            portals: Vec::new(),
            opened: 0,
        })
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        while !self.shared.is_stopping() {
            while self.one() == Some("again") && !self.shared.is_stopping() {
                self.shared.count("transactions retried");
            }
            self.shared.ended_one();
            if self.draw.one_in(8) {
                rt::sleep(Nanos(self.draw.below(20_000)));
            }
        }
    }

    /// One transaction; what the client does after it.
    fn one(&mut self) -> Option<&'static str> {
        self.level = match self.draw.below(100) < self.shared.plan.repeatable {
            true => Isolation::RepeatableRead,
            false => Isolation::ReadCommitted,
        };
        let statements = 1 + self.draw.below(self.shared.plan.statements);
        let done = self.begin().and_then(|()| self.statements(statements));
        match done {
            Ok(()) if self.draw.below(100) >= self.shared.plan.taken_back => {
                self.commit();
                None
            }
            Ok(()) | Err(Stop::Failed) => {
                self.roll_back();
                None
            }
            Err(Stop::Refused(error)) => {
                self.judge(&error);
                self.roll_back();
                ["40001", "40P01"].contains(&error.code()).then_some("again")
            }
        }
    }

    fn begin(&mut self) -> Step {
        (self.writes, self.begun, self.mark) = (0, false, None);
        self.portals.clear();
        self.txn = self.shared.history().begin(self.number, self.life, self.level);
        self.client.text(match self.level {
            Isolation::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            Isolation::ReadCommitted => "BEGIN",
        })?;
        Ok(())
    }

    fn fail(&self, problem: String) -> Stop {
        self.shared
            .fail(format!("session {} T{}: {problem}", self.number, self.txn));
        Stop::Failed
    }

    fn expect(&self, judged: Result<(), String>) -> Step {
        judged.map_err(|problem| self.fail(problem))
    }

    fn judge(&self, error: &SqlError) {
        match MAY_COME.contains(&error.code()) {
            true => self.shared.count(error.code()),
            false => self
                .shared
                .fail(format!("session {}: {} {error}", self.number, error.code())),
        }
    }

    // ---- ends ----

    fn commit(&mut self) {
        while let Some(portal) = self.portals.pop() {
            self.keep_part(portal);
        }
        let cts = self.client.session.committed_at();
        self.shared.history().ask(self.txn, cts);
        match self.client.text("COMMIT") {
            Ok(_) => self.shared.history().answer(self.txn, true),
            Err(error) => {
                self.judge(&error);
                self.shared.history().answer(self.txn, false);
            }
        }
    }

    fn roll_back(&mut self) {
        self.portals.clear();
        self.unlock(0);
        self.shared.history().give_up(self.txn);
        match self.client.text("ROLLBACK") {
            Ok(_) => self.shared.history().abort(self.txn),
            Err(error) => self.judge(&error),
        }
    }

    /// What was locked from the `from`th operation on may be locked by others.
    fn unlock(&self, from: usize) {
        let mut history = self.shared.history();
        let Some(txn) = history.txns.get_mut(self.txn) else {
            return;
        };
        for op in txn.ops.iter_mut().skip(from) {
            if let What::Lock { alone, .. } = &mut op.what {
                *alone = false;
            }
        }
    }

    // ---- statements ----

    fn statements(&mut self, count: u64) -> Step {
        for _ in 0..count {
            if self.draw.one_in(8) {
                self.client.text("SAVEPOINT s")?;
                self.note(What::Savepoint);
                self.mark = Some(self.ops());
            } else if self.mark.is_some() && self.draw.one_in(8) {
                self.return_to_savepoint()?;
            }
            match self.statement() {
                Err(Stop::Refused(error)) if self.mark.is_some() && self.draw.one_in(2) => {
                    self.judge(&error);
                    self.shared.count("statements taken back");
                    self.return_to_savepoint()?;
                }
                done => done?,
            }
        }
        Ok(())
    }

    fn return_to_savepoint(&mut self) -> Step {
        let mark = self.mark.unwrap_or(0);
        // Those bound behind it are gone; others go on.
        while let Some(at) = self.portals.iter().position(|portal| portal.op >= mark) {
            let portal = self.portals.swap_remove(at);
            self.keep_part(portal);
        }
        self.unlock(mark);
        self.client.text("ROLLBACK TO s")?;
        self.note(What::RolledBack);
        Ok(())
    }

    fn ops(&self) -> usize {
        let history = self.shared.history();
        history.txns.get(self.txn).map_or(0, |txn| txn.ops.len())
    }

    /// Before a statement is sent: what is acknowledged by now, it must see.
    fn begin_statement(&mut self) {
        if !(self.begun && self.level == Isolation::RepeatableRead) {
            self.floor = self.shared.history().acknowledged;
        }
        self.begun = true;
    }

    fn note(&self, what: What) {
        let snapshot = self.client.session.snapshot();
        self.shared.history().note(self.txn, snapshot, self.floor, what);
    }

    /// Runs a statement that may take a snapshot.
    fn run_statement(&mut self, text: &str, params: &[i64]) -> Step<Vec<Row>> {
        self.begin_statement();
        let extended = self.draw.one_in(2);
        let rows = self.client.run(text, params, extended)?;
        self.shared.history().statement(self.txn);
        self.shared.count("statements");
        Ok(rows)
    }

    fn statement(&mut self) -> Step {
        let table = self.draw.below(u64::from(self.shared.plan.tables)) as u8;
        let id = self.draw.below(self.shared.plan.rows as u64) as i32;
        if !self.portals.is_empty() && self.draw.one_in(2) {
            return self.fetch();
        }
        let reads = self.draw.below(100) < self.shared.plan.reading || self.writes > WRITES_MOST;
        match (reads, self.draw.below(12)) {
            (true, 0..3) => self.get(table, id),
            (true, 3..6) => self.lock(table, id),
            (true, 6..8) => self.scan(table, id),
            (true, _) => self.open(table, id),
            (false, 0..5) => self.upsert(table, id),
            (false, 5) => self.insert(table, id),
            (false, 6..8) => self.delete(table, id),
            (false, _) => self.update(table, id),
        }
    }

    fn next_tag(&mut self) -> Tag {
        self.writes += 1;
        tag(self.txn, self.writes)
    }

    // ---- reads ----

    /// Rows that were read are as their versions were written.
    fn saw(&self, table: u8, rows: &[Row]) -> Step {
        for row in rows {
            let judged = self.shared.counters().saw(row);
            self.expect(judged.map_err(|problem| format!("{}{problem}", name(table))))?;
        }
        Ok(())
    }

    fn get(&mut self, table: u8, id: i32) -> Step {
        let text = format!("SELECT {COLUMNS} FROM {} WHERE id = $1", name(table));
        let rows = self.run_statement(&text, &[id.into()])?;
        self.saw(table, &rows)?;
        if rows.len() > 1 || rows.iter().any(|row| row.id != id) {
            return Err(self.fail(format!("{}[{id}] was asked for: {rows:?}", name(table))));
        }
        self.note(What::Read {
            key: place(table, id),
            saw: rows.first().map_or(0, |row| row.tag),
        });
        Ok(())
    }

    /// The text of a query of several rows, its parameters, what it is in the history, and whether its ids rise.
    fn query(&mut self, table: u8, id: i32) -> (String, Vec<i64>, What, bool) {
        // An upsert of two rows goes one beyond.
        let (name, rows, saw) = (name(table), self.shared.plan.rows + 1, Vec::new());
        let to = id + 1 + self.draw.below(12) as i32;
        let (from, to, only, tail, rises) = match self.draw.below(5) {
            0 => (0, rows, None, "ORDER BY id".to_owned(), true),
            1 => (0, rows, None, "ORDER BY k".to_owned(), false),
            2 => (
                0,
                rows,
                Some(self.draw.below(9) as i32),
                "WHERE k = $1".to_owned(),
                false,
            ),
            3 => (
                id,
                to,
                None,
                "WHERE id >= $1 AND id < $2 ORDER BY id DESC".to_owned(),
                false,
            ),
            _ => (id, to, None, "WHERE id >= $1 AND id < $2 ORDER BY id".to_owned(), true),
        };
        let params = match (only, tail.contains("$2")) {
            (Some(k), _) => vec![k.into()],
            (_, true) => vec![from.into(), to.into()],
            _ => Vec::new(),
        };
        let scan = What::Scan {
            table,
            from,
            to,
            saw,
            color: only,
        };
        (format!("SELECT {COLUMNS} FROM {name} {tail}"), params, scan, rises)
    }

    fn scan(&mut self, table: u8, id: i32) -> Step {
        let (text, params, mut scan, _) = self.query(table, id);
        let rows = self.run_statement(&text, &params)?;
        self.saw(table, &rows)?;
        if let What::Scan { saw, .. } = &mut scan {
            saw.extend(rows.iter().map(|row| (row.id, row.tag)));
        }
        self.note(scan);
        Ok(())
    }

    fn lock(&mut self, table: u8, id: i32) -> Step {
        let tail = self.draw.pick(&["", "", " NOWAIT", " SKIP LOCKED"]);
        let (wanted, params) = match self.draw.below(3) {
            0 => (
                "id >= $1 AND id < $2 AND k < 5 ORDER BY id",
                vec![id.into(), (id + 3).into()],
            ),
            1 => ("id = $1 AND k < 5", vec![id.into()]),
            _ => ("id = $1", vec![id.into()]),
        };
        let text = format!("SELECT {COLUMNS} FROM {} WHERE {wanted} FOR UPDATE{tail}", name(table));
        let rows = self.run_statement(&text, &params)?;
        self.saw(table, &rows)?;
        for row in rows {
            self.meets(table, wanted.contains("k <"), row.tag, "is locked")?;
            let (key, saw, alone) = (place(table, row.id), row.tag, true);
            self.note(What::Lock { key, saw, alone });
        }
        Ok(())
    }

    // ---- portals ----

    fn open(&mut self, table: u8, id: i32) -> Step {
        if self.portals.len() == PORTALS {
            return self.fetch();
        }
        self.opened += 1;
        let portal = format!("p{}", self.opened);
        let (text, params, scan, rises) = self.query(table, id);
        self.begin_statement();
        self.client.open(&portal, &text, &params)?;
        self.shared.history().statement(self.txn);
        self.shared.count("portals");
        // Nothing was read yet.
        let nothing = What::Scan {
            table,
            from: 0,
            to: 0,
            saw: Vec::new(),
            color: None,
        };
        let op = self.ops();
        self.note(nothing);
        self.portals.push(Portal {
            name: portal,
            op,
            scan,
            rises,
        });
        if self.draw.one_in(3) {
            return Ok(());
        }
        self.fetch()
    }

    /// Some rows more of a portal.
    fn fetch(&mut self) -> Step {
        let at = self.draw.below(self.portals.len() as u64) as usize;
        let most = self.draw.pick(&[1, 2, 3, 10]);
        let fetched = self.client.fetch(&self.portals[at].name, most);
        if fetched.is_err() {
            // Whenever it was bound: a portal does not survive its own error.
            self.portals.swap_remove(at);
        }
        let (rows, more) = fetched?;
        self.shared.count("fetches");
        let portal = &mut self.portals[at];
        if let What::Scan { saw, table, .. } = &mut portal.scan {
            saw.extend(rows.iter().map(|row| (row.id, row.tag)));
            let table = *table;
            self.saw(table, &rows)?;
        }
        if !more {
            let portal = self.portals.swap_remove(at);
            self.client.session.close_portal(&portal.name);
            self.shared.count("portals read to the end");
            self.keep(portal);
        }
        Ok(())
    }

    /// What a portal has given goes to its place in the history.
    fn keep(&self, portal: Portal) {
        let mut history = self.shared.history();
        if let Some(op) = history
            .txns
            .get_mut(self.txn)
            .and_then(|txn| txn.ops.get_mut(portal.op))
        {
            op.what = portal.scan;
        }
    }

    /// One that was not read to its end has given all rows up to the last that came, if it gives them by rising id.
    fn keep_part(&self, mut portal: Portal) {
        if let (What::Scan { saw, to, .. }, true) = (&mut portal.scan, portal.rises)
            && let Some((last, _)) = saw.last()
        {
            *to = last + 1;
            self.keep(portal);
        }
    }

    // ---- writes ----

    /// A row that was changed where `k` is low: the version that was changed had met that.
    fn meets(&self, table: u8, asked: bool, version: Tag, what: &str) -> Step {
        if asked && version != 0 && color(version) >= LIMIT {
            let (k, name) = (color(version), name(table));
            return Err(self.fail(format!(
                "{name}: {} {what} where k < {LIMIT}, and has k {k}",
                show(version)
            )));
        }
        Ok(())
    }

    /// RETURNING of what was written.
    fn wrote(&self, table: u8, rows: &[Row], sent: &[(i32, Tag)], asked: bool) -> Step {
        for row in rows {
            if !sent.contains(&(row.id, row.tag)) {
                return Err(self.fail(format!("{}: {row:?} was returned, {sent:?} was sent", name(table))));
            }
            self.meets(table, asked, row.prev, "was changed")?;
            let judged = self.shared.counters().wrote(row);
            self.expect(judged.map_err(|problem| format!("{}{problem}", name(table))))?;
            let (key, before, after) = (place(table, row.id), row.prev, row.tag);
            self.note(What::Write { key, before, after });
        }
        Ok(())
    }

    fn insert(&mut self, table: u8, id: i32) -> Step {
        let tag = self.next_tag();
        let tail = self
            .draw
            .pick(&["", "ON CONFLICT DO NOTHING", "ON CONFLICT (id) DO NOTHING"]);
        let text = format!(
            "INSERT INTO {} (id, tag, prev, n, k) VALUES ($1, $2, 0, 1, $3) {tail} RETURNING {COLUMNS}",
            name(table)
        );
        let rows = self.run_statement(&text, &[id.into(), tag as i64, color(tag).into()])?;
        self.wrote(table, &rows, &[(id, tag)], false)
    }

    /// One row or two; where a row is there, it is changed if its `k` is low.
    fn upsert(&mut self, table: u8, id: i32) -> Step {
        let asked = !self.draw.one_in(3);
        let count = if self.draw.one_in(4) { 2 } else { 1 };
        let sent: Vec<(i32, Tag)> = (0..count).map(|n| (id + n, self.next_tag())).collect();
        let params: Vec<i64> = sent
            .iter()
            .flat_map(|(id, tag)| [i64::from(*id), *tag as i64, i64::from(color(*tag))])
            .collect();
        let values = ["($1, $2, 0, 1, $3)", "($1, $2, 0, 1, $3), ($4, $5, 0, 1, $6)"][count as usize - 1];
        let name = name(table);
        let condition = if asked {
            format!("WHERE {name}.k < 5")
        } else {
            String::new()
        };
        let text = format!(
            "INSERT INTO {name} (id, tag, prev, n, k) VALUES {values} ON CONFLICT (id) DO UPDATE SET tag = EXCLUDED.tag, \
             prev = {name}.tag, n = {name}.n + 1, k = EXCLUDED.k {condition} RETURNING {COLUMNS}"
        );
        let rows = self.run_statement(&text, &params)?;
        self.shared.count("upserts");
        self.wrote(table, &rows, &sent, asked)?;
        for (id, _) in sent.into_iter().filter(|(id, _)| rows.iter().all(|row| row.id != *id)) {
            self.was_refused(table, id)?;
        }
        Ok(())
    }

    /// An upsert has left a row alone, and holds it locked: it is one with a high `k`.
    fn was_refused(&mut self, table: u8, id: i32) -> Step {
        self.shared.count("upserts that left the row alone");
        let text = format!("SELECT {COLUMNS} FROM {} WHERE id = $1 FOR UPDATE", name(table));
        let rows = self.run_statement(&text, &[id.into()])?;
        self.saw(table, &rows)?;
        match rows.first().map_or(0, |row| row.tag) {
            saw if saw != 0 && color(saw) >= LIMIT => {
                let (key, alone) = (place(table, id), true);
                self.note(What::Lock { key, saw, alone });
                Ok(())
            }
            saw => Err(self.fail(format!(
                "{}[{id}]: an upsert where k < {LIMIT} has left {} alone, with k {}",
                name(table),
                show(saw),
                color(saw)
            ))),
        }
    }

    fn update(&mut self, table: u8, id: i32) -> Step {
        let (tag, asked) = (self.next_tag(), !self.draw.one_in(3));
        let condition = if asked { " AND k < 5" } else { "" };
        let text = format!(
            "UPDATE {} SET tag = $2, prev = tag, n = n + 1, k = $3 WHERE id = $1{condition} RETURNING {COLUMNS}",
            name(table)
        );
        let rows = self.run_statement(&text, &[id.into(), tag as i64, color(tag).into()])?;
        self.shared.count("updates");
        self.wrote(table, &rows, &[(id, tag)], asked)
    }

    fn delete(&mut self, table: u8, id: i32) -> Step {
        let (condition, to) = if self.draw.one_in(3) {
            (" AND k < 5", id + 3)
        } else {
            ("", id + 1)
        };
        let text = format!(
            "DELETE FROM {} WHERE id >= $1 AND id < $2{condition} RETURNING {COLUMNS}",
            name(table)
        );
        let rows = self.run_statement(&text, &[id.into(), to.into()])?;
        self.saw(table, &rows)?;
        for row in rows {
            self.meets(table, !condition.is_empty(), row.tag, "was deleted")?;
            let (key, before, after) = (place(table, row.id), row.tag, 0);
            self.note(What::Write { key, before, after });
        }
        Ok(())
    }
}
