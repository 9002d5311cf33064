//! A look at the tables, at a reader or at the server: what any snapshot has to see.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, Error, Isolation, Result, Table, Tx};

use super::stage::{Carried, Stage};
use super::table::{CLOCK, IDS, OTHERS, decode, key_of, rows_of};

/// How long a reader tries to catch up.
pub(super) const CATCH_UP: Nanos = Nanos::from_secs(10);
/// What all amounts add up to.
const SUM: i32 = 100 * (IDS / 2);

pub(super) struct Look<'s> {
    stage: &'s Arc<Stage>,
    engine: &'s Arc<Engine>,
    tx: Tx,
    pub draw: Random,
    /// The last step of the clock that was seen.
    clock: i32,
}

impl fmt::Debug for Look<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let visible = self.engine.staleness().map_or(0, |s| s.visible);
        let (isolation, snapshot) = (self.tx.isolation(), self.tx.snapshot());
        write!(f, "{isolation:?} at snapshot {snapshot}, visible is {visible}")
    }
}

/// Which rows are missing, and which are not of those.
fn differences(rows: &BTreeMap<i32, i32>, found: &BTreeMap<i32, i32>) -> String {
    let not_in = |a: &BTreeMap<i32, i32>, b: &BTreeMap<i32, i32>| -> Vec<(i32, i32)> {
        let others = a.iter().filter(|(id, n)| b.get(id) != Some(n));
        others.map(|(id, n)| (*id, *n)).collect()
    };
    format!(
        "{:?} are missing, and {:?} are wrong",
        not_in(rows, found),
        not_in(found, rows)
    )
}

pub(super) fn wrong(what: String) -> Error {
    Error::Internal(what)
}

impl<'s> Look<'s> {
    pub fn new(stage: &'s Arc<Stage>, engine: &'s Arc<Engine>, draw: Random) -> Self {
        Look {
            stage,
            engine,
            tx: engine.tx(),
            draw,
            clock: 0,
        }
    }

    /// Goes on with a transaction of another server.
    pub fn go_on(&mut self, carried: &Carried) -> Result<()> {
        match self
            .tx
            .begin_carried(Isolation::RepeatableRead, carried.snapshot.at, Some(&carried.snapshot))
        {
            Ok(()) => self.stage.shared.count("transactions that went on at another server"),
            Err(Error::SnapshotTooOld(_) | Error::Serialization(_)) => {
                self.stage.shared.count("transactions that could not go on");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.look_again(&carried.rows)?;
        self.look_again(&carried.rows)
    }

    /// What it has begun is over.
    pub fn end(&mut self) -> Result<()> {
        self.tx.rollback()
    }

    pub fn look(&mut self) -> Result<()> {
        if self.draw.one_in(4)
            && let Some(carried) = self.stage.take_carried()
        {
            return self.go_on(&carried);
        }
        let at_least = match self.draw.one_in(3) {
            true => {
                let acknowledged = self.stage.acknowledged();
                self.engine.catch_up(CATCH_UP, None)?;
                acknowledged
            }
            false => 0,
        };
        let isolation = match self.draw.one_in(2) {
            true => Isolation::RepeatableRead,
            false => Isolation::ReadCommitted,
        };
        self.tx.begin(isolation);
        self.tx.begin_statement();
        let Some(rows) = self.look_at_amounts()? else {
            return Ok(());
        };
        let clock = rows[&CLOCK];
        if i64::from(clock) < at_least {
            return Err(wrong(format!(
                "the clock shows {clock}, and {at_least} was acknowledged"
            )));
        }
        if clock < self.clock {
            return Err(wrong(format!("the clock goes back from {} to {clock}", self.clock)));
        }
        self.clock = clock;
        self.look_at_others()?;
        if isolation == Isolation::RepeatableRead {
            self.look_again(&rows)?;
            self.carry(rows);
        }
        Ok(())
    }

    /// Now and then the transaction is to go on at another server.
    fn carry(&mut self, rows: BTreeMap<i32, i32>) {
        if self.draw.one_in(2)
            && let Some(snapshot) = self.tx.carried_snapshot()
        {
            self.stage.put_carried(Carried { snapshot, rows });
        }
    }

    fn table(&self, name: &str) -> Result<Option<Arc<Table>>> {
        let table = self.tx.table(name)?;
        if let Some(table) = &table {
            self.tx.reader().refuse_replaced(table)?;
        }
        Ok(table)
    }

    /// None: the table is not made yet.
    fn look_at_amounts(&mut self) -> Result<Option<BTreeMap<i32, i32>>> {
        let Some(table) = self.table("t")? else { return Ok(None) };
        let rows = rows_of(self.tx.reader(), &table, None)?;
        let sum: i32 = rows.iter().filter(|(id, _)| **id != CLOCK).map(|(_, n)| n).sum();
        if sum != SUM || !rows.contains_key(&CLOCK) {
            return Err(wrong(format!(
                "the amounts add up to {sum}, not to {SUM}: {rows:?}, {self:?}"
            )));
        }
        for index in 0..table.indexes.len() {
            let found = rows_of(self.tx.reader(), &table, Some(index))?;
            if found != rows {
                let name = &table.indexes[index].name;
                return Err(wrong(format!(
                    "by index {name} {}, {self:?}",
                    differences(&rows, &found)
                )));
            }
        }
        for _ in 0..3 {
            let id = self.draw.below(IDS as u64 + 1) as i32;
            let mut row = Vec::new();
            let found = self.tx.get(&table, &key_of(&table, id), &mut row)?;
            let found = found.then(|| decode(&table, &row)).transpose()?;
            if found.map(|(_, n)| n) != rows.get(&id).copied() {
                return Err(wrong(format!(
                    "row {id} is {found:?} by its key, and {:?} in a scan",
                    rows.get(&id)
                )));
            }
        }
        Ok(Some(rows))
    }

    fn look_at_others(&mut self) -> Result<()> {
        self.tx.begin_statement();
        let Some(table) = self.table("s")? else { return Ok(()) };
        let rows = rows_of(self.tx.reader(), &table, None)?;
        let first = rows.values().next().copied();
        // A snapshot from before it was made, or emptied, finds none.
        let is_whole = rows.is_empty() || rows.len() == OTHERS as usize;
        if !is_whole || rows.values().any(|n| Some(*n) != first) {
            return Err(wrong(format!("rows of several generations: {rows:?}")));
        }
        let found = rows_of(self.tx.reader(), &table, Some(0))?;
        match found == rows {
            true => Ok(()),
            false => Err(wrong(format!(
                "the second table by its index: {found:?}, by its key: {rows:?}"
            ))),
        }
    }

    /// A snapshot that goes on to be used, while the server goes on.
    fn look_again(&mut self, before: &BTreeMap<i32, i32>) -> Result<()> {
        let longest = self.draw.pick(&[1_000, 30_000, 400_000]);
        rt::sleep(Nanos::from_micros(self.draw.below(longest)));
        self.tx.begin_statement();
        match self.look_at_amounts()? {
            Some(rows) if rows == *before => Ok(()),
            rows => {
                let rows = rows.unwrap_or_default();
                Err(wrong(format!("seen again, {}, {self:?}", differences(before, &rows))))
            }
        }
    }
}
