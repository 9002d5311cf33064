//! COMMIT behind a drive that does not answer: it says so after a minute (08007), and the session goes on. What was
//! written is in the log's memory: no snapshot sees it, it is committed when the drive answers, and gone where power is
//! cut before.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, AtomicI32, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_engine::{
    Change, ColumnDef, ColumnType, Datum, DatumRef, Engine, EngineOptions, Error, Insert, Isolation, KeyRange,
    MemoryKind, NewTable, Result, Table, Tx,
};
use cenote_sim::{Sim, run, seeds};
use cenote_testkit::faulty::MemFs;

const SESSIONS: i32 = 4;
/// What a COMMIT waits for a log that makes no progress.
const TIMEOUT: Nanos = Nanos::from_secs(60);
/// The rows before the drive stalls, and at the end.
const BEFORE: [i64; SESSIONS as usize] = [1; SESSIONS as usize];
const AFTER: [i64; SESSIONS as usize] = [3; SESSIONS as usize];

struct Region(PathBuf);

impl Region {
    fn new() -> Self {
        Self(format!("/dev/shm/cenote-sim-stalled-{:x}", rt::os::random()).into())
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

fn row(table: &Table, id: i32, n: i64) -> Vec<u8> {
    let mut row = Vec::new();
    let values = [Datum::Int4(id), Datum::Int8(n)];
    table.layout().encode(&values, &mut row).expect("a row");
    row
}

/// A row for each session, at 0.
fn make(engine: &Arc<Engine>) -> Arc<Table> {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let new = NewTable {
        name: "t".into(),
        columns: vec![column("id", ColumnType::Int4), column("n", ColumnType::Int8)],
        primary_key: Some(("t_pkey".into(), vec![0])),
        indexes: Vec::new(),
    };
    let table = tx.create_table(new).expect("made");
    for id in 0..SESSIONS {
        let inserted = tx.insert(&table, &row(&table, id, 0)).expect("inserted");
        assert_eq!(inserted, Insert::Done);
    }
    tx.commit().expect("committed");
    table
}

/// The session's row goes to `n`, in a transaction of its own.
fn change(tx: &mut Tx, table: &Table, id: i32, n: i64) -> Result<()> {
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    let new = row(table, id, n);
    tx.modify(table, &key, &|_, _| Ok::<_, Error>(Change::Update(new.clone())))?;
    tx.commit()
}

/// All rows by a new snapshot.
fn numbers(engine: &Arc<Engine>) -> Vec<i64> {
    let tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").expect("readable").expect("made");
    let rows = tx.collect(&table, KeyRange::all()).expect("readable");
    let number = |row: &Vec<u8>| match table.layout().column(row, 1) {
        Ok(DatumRef::Int8(n)) => n,
        other => panic!("unexpected {other:?}"),
    };
    rows.iter().map(number).collect()
}

/// How a session's COMMIT ended, and how long it took.
type End = (Result<()>, Nanos);

/// Sessions that are ready, and what the drive does.
#[derive(Default)]
struct Course {
    ready: AtomicI32,
    stalled: AtomicBool,
    noted: Mutex<Vec<End>>,
}

fn await_that(what: impl Fn() -> bool) {
    while !what() {
        rt::sleep(Nanos::from_millis(10));
    }
}

/// A session that commits while the drive stalls, notes the end, and goes on behind that commit. It has committed
/// before: a first transaction waits for the drive with its undo segment, and would not come to its COMMIT.
fn session(engine: &Arc<Engine>, table: &Table, id: i32, course: &Course) {
    let mut tx = engine.tx();
    change(&mut tx, table, id, 1).expect("the drive answers");
    course.ready.fetch_add(1, Ordering::SeqCst);
    await_that(|| course.stalled.load(Ordering::SeqCst));
    let begun = rt::now();
    let end = change(&mut tx, table, id, 2);
    assert!(!tx.is_active(), "the transaction has its place in the log and is over");
    course.noted.lock().push((end, rt::now().since(begun)));
    change(&mut tx, table, id, 3).expect("the drive has answered");
}

/// Clients that have been told anything were told 08007, after a minute. How many.
fn refused(course: &Course) -> usize {
    let noted = course.noted.lock();
    for (end, took) in noted.iter() {
        let error = end.as_ref().expect_err("nothing is durable");
        assert_eq!(error.sqlstate(), "08007", "{error}");
        assert!(error.to_string().contains("its drive does not answer"), "{error}");
        // It counts waits of 5 s, which end late where processors are busy.
        assert!(took.0.abs_diff(TIMEOUT.0) <= TIMEOUT.0 / 2, "after {took:?}");
    }
    noted.len()
}

/// Sessions commit while the drive stalls. What power that is cut then leaves behind.
fn work(sim: &Sim) -> MemFs {
    let region = Region::new();
    let engine = open(&region.0);
    let table = make(&engine);
    let course = Arc::new(Course::default());
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|id| {
            let (engine, table, course) = (engine.clone(), table.clone(), course.clone());
            rt::spawn("session", move || session(&engine, &table, id, &course))
        })
        .collect();
    await_that(|| course.ready.load(Ordering::SeqCst) == SESSIONS);
    assert_eq!(numbers(&engine), BEFORE);
    sim.files().stall_until(Nanos::MAX);
    course.stalled.store(true, Ordering::SeqCst);
    let begun = rt::now();
    let told = || course.noted.lock().len() >= SESSIONS as usize - 1;
    await_that(|| told() || rt::now().since(begun) >= Nanos(2 * TIMEOUT.0));
    // The session that leads is in the drive's call: it cannot say anything.
    let refused = refused(&course);
    assert!(refused >= SESSIONS as usize - 1, "{refused} have been told");
    assert_eq!(numbers(&engine), BEFORE, "what could be lost is not seen");
    let remains = sim.files().crash_clone_torn(rt::random());
    sim.files().stall_until(Nanos::ZERO);
    sessions.into_iter().for_each(|s| s.join().expect("no panic"));
    for (end, _) in course.noted.lock().iter() {
        assert!(end.as_ref().err().is_none_or(|e| e.sqlstate() == "08007"), "{end:?}");
    }
    assert_eq!(numbers(&engine), AFTER, "each commit behind the one before");
    let report = engine.check().expect("readable");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    engine.shutdown().expect("a clean end");
    remains
}

#[test]
fn a_commit_behind_a_drive_that_does_not_answer_says_so_and_the_session_goes_on() {
    for seed in seeds(4) {
        println!("CENOTE_SEED={seed}");
        let files = run(seed, work).value;
        Sim::new(seed).with_files(files).run(|_| {
            let region = Region::new();
            let engine = open(&region.0);
            assert_eq!(numbers(&engine), BEFORE, "power was cut before the drive answered");
            engine.shutdown().expect("a clean end");
        });
    }
}
