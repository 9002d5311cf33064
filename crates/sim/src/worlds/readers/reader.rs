//! A reader: it follows the server, and looks at its tables.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, Error, Isolation, Promotion, Result, Table, Tx};

use super::server;
use super::stage::Stage;
use super::table::{CLOCK, IDS, OTHERS, decode, key_of, rows_of};
use crate::clock;

/// How long a reader tries to catch up.
const CATCH_UP: Nanos = Nanos::from_secs(10);
/// Between two looks whether it is to have the database.
const TURN: Nanos = Nanos::from_millis(5);
/// Threads that look, in each reader.
const THREADS: usize = 2;
/// What all amounts add up to.
const SUM: i32 = 100 * (IDS / 2);

/// The body of its process.
pub(super) fn run(stage: &Arc<Stage>, host: usize, number: u64) {
    let begun = clock::now();
    let opened = stage.engine_options(host, number, true).and_then(Engine::open);
    let engine = match opened {
        Ok(engine) => engine,
        // The database is not made yet, or storage does not answer.
        Err(error) if stage.is_excused(begun) => {
            return stage
                .shared
                .step(format!("reader {number} does not start: {} {error}", error.sqlstate()));
        }
        Err(error) => return stage.fail(format!("reader {number}: {} {error}", error.sqlstate())),
    };
    stage.shared.count("starts of readers");
    let ends = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let (stage, engine, ends) = (stage.clone(), engine.clone(), ends.clone());
            rt::spawn("looks", move || look_on(&stage, &engine, (number, n), &ends))
        })
        .collect();
    let promotion = await_promotion(stage, &engine, host, number);
    ends.store(true, SeqCst);
    if let Some(remote) = engine.pool_stats().remote {
        stage
            .shared
            .add("pages that readers had from remote memory", remote.hits);
    }
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    match promotion {
        Some((promotion, begun)) => {
            stage.shared.count("promotions");
            server::promoted(stage, number, begun, || promotion.open(engine));
        }
        None => {
            if let Err(error) = engine.shutdown() {
                stage.fail(format!("reader {number} does not stop: {error}"));
            }
        }
    }
}

/// Until the world is over, or it is to have the database, and has taken it: threads go on to look meanwhile.
fn await_promotion(stage: &Arc<Stage>, engine: &Arc<Engine>, host: usize, number: u64) -> Option<(Promotion, Nanos)> {
    while !stage.is_over() {
        rt::sleep(TURN);
        if !stage.takes_asked(host) {
            continue;
        }
        let begun = clock::now();
        stage.shared.step(format!("reader {number} is to have the database"));
        let options = stage.promotion_options(host, number);
        match options.and_then(|options| engine.promote(options)) {
            Ok(promotion) => {
                // It may have been asked for long ago, and waited for nodes; the server that had it finds out now.
                stage.unsettle();
                stage.shared.step(format!("reader {number} has the database"));
                return Some((promotion, begun));
            }
            Err(error) => stage.shared.step(format!(
                "reader {number} does not have it: {} {error}",
                error.sqlstate()
            )),
        }
    }
    None
}

fn look_on(stage: &Arc<Stage>, engine: &Arc<Engine>, who: (u64, usize), ends: &AtomicBool) {
    let mut look = Look {
        stage,
        engine,
        tx: engine.tx(),
        draw: Random(rt::random()),
        clock: 0,
    };
    while !stage.is_over() && !ends.load(SeqCst) {
        let begun = clock::now();
        let looked = look.look();
        let ended = look.tx.rollback();
        match looked.and(ended) {
            Ok(()) => stage.count_look(),
            Err(Error::SnapshotTooOld(_) | Error::Serialization(_)) => stage.count_too_old(),
            Err(Error::Io(_)) if stage.is_excused(begun) => stage.shared.count("looks without an answer"),
            Err(error) => {
                return stage.fail(format!("reader {who:?}: {} {error}", error.sqlstate()));
            }
        }
        rt::sleep(Nanos::from_micros(look.draw.below(20_000)));
    }
}

struct Look<'s> {
    stage: &'s Arc<Stage>,
    engine: &'s Arc<Engine>,
    tx: Tx,
    draw: Random,
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

fn wrong(what: String) -> Error {
    Error::Internal(what)
}

impl Look<'_> {
    fn look(&mut self) -> Result<()> {
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
        }
        Ok(())
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

/// The body of a process that compares what a reader has with the server's rows, which change no more.
pub(super) fn compare(stage: &Arc<Stage>, host: usize, number: u64) {
    if let Err(error) = try_compare(stage, host, number) {
        stage.fail(format!("the last reader: {} {error}", error.sqlstate()));
    }
}

fn try_compare(stage: &Arc<Stage>, host: usize, number: u64) -> Result<()> {
    let engine = Engine::open(stage.engine_options(host, number, true)?)?;
    engine.catch_up(CATCH_UP, None)?;
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let table = tx.table("t")?.ok_or_else(|| wrong("no table".into()))?;
    let rows = rows_of(tx.reader(), &table, None)?;
    if Some(&rows) != stage.last().as_ref() {
        return Err(wrong(format!("the reader has {rows:?}, the server {:?}", stage.last())));
    }
    tx.rollback()?;
    drop(tx);
    engine.shutdown()
}
