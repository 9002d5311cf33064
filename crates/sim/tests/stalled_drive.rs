//! A drive that stalls while memory is full of changed pages: whoever needs a frame waits for the drive, and what is said in
//! the end is that storage does not answer.
//!
//! The story: a sync of 10 s kept a batch of pages from becoming clean; sessions that found no other frame to take gave up
//! after 2 s, with "all page frames are in use by running statements; give the database more memory".

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_engine::{
    ColumnDef, ColumnType, Datum, Engine, EngineOptions, Error, Isolation, MemoryKind, NewTable, Result, Table, Tx,
};
use cenote_sim::Sim;

/// A run that goes on for longer hangs.
const STEPS: u64 = 60_000_000;
const SESSIONS: i32 = 6;
/// Rows of a session: all together are more than memory holds.
const ROWS: i32 = 2000;

struct Region(PathBuf);

impl Region {
    fn new() -> Self {
        Self(format!("/dev/shm/cenote-sim-stall-{:x}", rt::os::random()).into())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(region: &Path) -> Arc<Engine> {
    let mut options = EngineOptions::new("/data", MemoryKind::Cxl, 16 << 20);
    options.region = Some(region.to_owned());
    Engine::open(options).expect("the engine opens")
}

fn made(engine: &Arc<Engine>) -> Arc<Table> {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(NewTable {
        name: "t".into(),
        columns: vec![column("id", ColumnType::Int4), column("c", ColumnType::Text)],
        primary_key: Some(("t_pkey".into(), vec![0])),
        indexes: Vec::new(),
    });
    let table = table.expect("made");
    tx.commit().expect("committed");
    table
}

fn insert(tx: &mut Tx, table: &Table, id: i32) -> Result<()> {
    let mut row = Vec::new();
    let values = [Datum::Int4(id), Datum::Text("x".repeat(1800))];
    table.layout().encode(&values, &mut row)?;
    tx.begin_statement();
    tx.insert(table, &row).map(drop)
}

/// Sessions fill memory with changed pages while each sync takes `stall`; what each of them failed with.
fn fill_while_stalled(
    seed: u64,
    stall: Nanos,
    after: impl FnOnce(&Sim, &Arc<Engine>, &Arc<Table>, Vec<Option<Error>>),
) {
    Sim::new(seed).with_step_limit(STEPS).run(|sim| {
        let region = Region::new();
        let engine = open(&region.0);
        let table = made(&engine);
        sim.files().set_sync_time(stall);
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|session| {
                let (engine, table) = (engine.clone(), table.clone());
                rt::spawn("session", move || {
                    let mut tx = engine.begin(Isolation::ReadCommitted);
                    let first = session * 1_000_000;
                    let done = (first..first + ROWS).try_for_each(|id| insert(&mut tx, &table, id));
                    tx.rollback().ok();
                    done.err()
                })
            })
            .collect();
        let ends = sessions
            .into_iter()
            .map(|session| session.join().expect("no panic"))
            .collect();
        after(sim, &engine, &table, ends);
    });
}

#[test]
fn a_drive_that_stalls_is_waited_for() {
    for seed in 1..4 {
        fill_while_stalled(seed, Nanos::from_secs(10), |_, _, _, ends| {
            for error in ends.into_iter().flatten() {
                panic!("seed {seed}: {error}");
            }
        });
    }
}

#[test]
fn a_drive_that_does_not_come_back_is_named() {
    for seed in 1..4 {
        fill_while_stalled(seed, Nanos::from_secs(400), |sim, engine, table, ends| {
            let errors: Vec<Error> = ends.into_iter().flatten().collect();
            for error in &errors {
                assert_eq!(error.sqlstate(), "58030", "seed {seed}: {error}");
                assert!(
                    error.to_string().contains("storage does not answer"),
                    "seed {seed}: {error}"
                );
            }
            println!("seed {seed}: {} of {SESSIONS} sessions gave up", errors.len());
            sim.files().set_sync_time(Nanos(0));
            let end = rt::now() + Nanos::from_secs(2000);
            let mut tx = engine.begin(Isolation::ReadCommitted);
            while insert(&mut tx, table, 9_999_999).is_err() {
                assert!(rt::now() < end, "the drive is back");
                tx.rollback().ok();
                rt::sleep(Nanos::from_secs(1));
                tx.begin(Isolation::ReadCommitted);
            }
            tx.commit().expect("the drive is back");
        });
    }
}
