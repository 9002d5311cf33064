//! Statements over many keys whose pages are mostly not near: what it saves to read these pages together (PolarDB
//! Serverless, section 4.2: batched key prepare). Simulated; one session.

use super::cost::Costs;
use super::pod::{Dataset, Far, System, failed, world};
use super::workload::Tables;
use crate::{Error, Result};
use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Datum, Direction, Engine, EngineOptions, Isolation, KeyRange, RowBatch, RowScan, Table, Tx};
use cenote_sim::{Exit, World};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of a statement; of a join so many are drawn, and those drawn twice come once.
const ROWS: i32 = 300;
/// Statements of each kind; of scans, which draw nothing and take longest, a quick run has one of each table.
const STATEMENTS: usize = 40;

/// Mean times of a statement: of 300 rows, or a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Whole rows, by a range of a secondary index.
    pub index_read: Nanos,
    /// Rows by primary keys that lie anywhere: the inner side of an index join.
    pub index_join: Nanos,
    /// All rows of a table, in order.
    pub scan: Nanos,
}

/// Runs each kind on one instance of a system. `together`: whether pages are read so; `costs`: of a row, a hundredth of
/// a range's; `quick`: fewer scans.
///
/// # Errors
/// [`Error::Simulation`] if the world cannot be set up, or if something in it fails.
pub fn measure(
    dataset: &Dataset,
    system: System,
    together: bool,
    costs: &Costs,
    (seed, quick): (u64, bool),
) -> Result<Times> {
    let world = world(system, 1, dataset.scale, seed)?;
    let files = dataset.files(1);
    let run = |w: &World| {
        let far = Far::new(w, system, &files, dataset, seed)?;
        let mut options = far.options(0);
        options.tuning.brings = together;
        let (times, scale, costs) = (Arc::new(Mutex::new(None)), dataset.scale, costs.clone());
        let told = Arc::clone(&times);
        let process = w.process(0, "instance", move || {
            let scans = if quick { scale.tables as usize } else { STATEMENTS };
            let measured = statements(&options, &costs, (scale.tables, scale.rows), scans);
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(measured.map_err(failed("a statement")));
        });
        let exit = process.join();
        let times = times.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (exit, times) {
            (Exit::Returned, Some(times)) => times,
            (exit, _) => Err(Error::Simulation(format!("an instance has ended: {exit:?}"))),
        }
    };
    world.run(run).value
}

fn statements(
    options: &EngineOptions,
    costs: &Costs,
    (tables, rows): (u32, i32),
    scans: usize,
) -> cenote_engine::Result<Times> {
    let engine = Engine::open(options.clone())?;
    Tables::open(&engine, tables, rows)?.warm_up(&engine)?;
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let tables: Vec<Arc<Table>> = (1..=tables)
        .filter_map(|n| tx.table(&format!("sbtest{n}")).transpose())
        .collect::<cenote_engine::Result<_>>()?;
    let mut draw = Random(rt::random());
    type Make<'a> = &'a dyn Fn(&Tx, &Arc<Table>, &mut Random) -> RowScan;
    let mut mean = |count: usize, make: Make| -> cenote_engine::Result<Nanos> {
        let begun = rt::now();
        for n in 0..count {
            tx.begin_statement();
            let mut scan = make(&tx, &tables[n % tables.len()], &mut draw);
            read_all(&tx, &mut scan, costs)?;
        }
        Ok(Nanos(rt::now().since(begun).raw() / count as u64))
    };
    let index_read = mean(STATEMENTS, &|tx, table, draw| {
        by_index(tx, table, 1 + draw.below((rows - ROWS) as u64) as i32)
    })?;
    let index_join = mean(STATEMENTS, &|tx, table, draw| {
        by_keys(tx, table, (0..ROWS).map(|_| draw.below(rows as u64) as i32))
    })?;
    let scan = mean(scans, &|tx, table, _| {
        tx.scan(table, KeyRange::all(), Direction::Forward)
    })?;
    tx.rollback()?;
    engine.halt();
    Ok(Times {
        index_read,
        index_join,
        scan,
    })
}

fn by_index(tx: &Tx, table: &Arc<Table>, first: i32) -> RowScan {
    let bound = |k: i32| {
        let mut key = Vec::new();
        table.index_key_of_values(&table.indexes[0], &[Datum::Int4(k)], &mut key);
        key
    };
    let (from, to) = (bound(first), bound(first + ROWS));
    let range = KeyRange::between(Bound::Included(&from), Bound::Excluded(&to));
    tx.index_scan(table, 0, range, Direction::Forward)
}

fn by_keys(tx: &Tx, table: &Arc<Table>, ids: impl Iterator<Item = i32>) -> RowScan {
    let key = |id: i32| {
        let mut key = Vec::new();
        table.key_of_values(&[Datum::Int4(1 + id)], &mut key);
        key
    };
    let mut keys: Vec<Vec<u8>> = ids.map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    let all = 0..keys.len();
    tx.reader().look_up(table, None, (keys.into(), all))
}

/// The processor's part of a row is an input, as in all figures.
fn read_all(tx: &Tx, scan: &mut RowScan, costs: &Costs) -> cenote_engine::Result<()> {
    let mut batch = RowBatch::new();
    while scan.next_batch(tx.reader(), &mut batch)? {
        rt::spend(Nanos(costs.range.raw() * batch.len() as u64 / 100));
    }
    Ok(())
}
