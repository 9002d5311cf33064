//! Disks of many sizes that run full under load: no session waits without end, nothing acknowledged is lost, and
//! service goes on when there is space again. And rollbacks that storage does not let through: the background gets them
//! done later.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error as BaseError, Lsn, PageId, RecordAddr};
use cenote_engine::{
    Change, ColumnDef, ColumnType, Datum, DatumRef, Direction, Engine, EngineOptions, Error, Insert, Isolation,
    KeyRange, MemoryKind, NewTable, Outcome, Result, RowBatch, Table, Tx,
};
use cenote_fabric::{Identity, RegionOptions};
use cenote_sim::{Outcome as Run, Sim};
use cenote_storage::redo::GroupBuilder;
use cenote_storage::{FIRST_LSN, Log, LogOptions, Need, RING_HEADER, RING_MIN, RingPlace, Survive};
use cenote_testkit::faulty::MemFs;

/// A run that goes on for longer hangs.
const STEPS: u64 = 60_000_000;
const MIB: u64 = 1 << 20;

struct Region(PathBuf);

impl Region {
    fn new() -> Self {
        Self(format!("/dev/shm/cenote-sim-full-{:x}", rt::os::random()).into())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options(region: &Path) -> EngineOptions {
    let mut options = EngineOptions::new("/data", MemoryKind::Cxl, 16 << 20);
    options.region = Some(region.to_owned());
    options
}

fn open(region: &Path) -> Arc<Engine> {
    Engine::open(options(region)).expect("the engine opens")
}

fn made(region: &Path) -> (Arc<Engine>, Arc<Table>) {
    filled(open(region))
}

fn filled(engine: Arc<Engine>) -> (Arc<Engine>, Arc<Table>) {
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
    (engine, table)
}

fn row(table: &Table, id: i32, length: usize) -> Vec<u8> {
    let mut row = Vec::new();
    let values = [Datum::Int4(id), Datum::Text("x".repeat(length))];
    table.layout().encode(&values, &mut row).expect("a row");
    row
}

fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.key_of_values(&[Datum::Int4(id)], &mut key);
    key
}

/// The ids that the newest snapshot sees.
fn ids(engine: &Arc<Engine>) -> Vec<i32> {
    let tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").expect("readable").expect("made");
    let (mut ids, mut batch) = (Vec::new(), RowBatch::new());
    let mut scan = tx.scan(&table, KeyRange::all(), Direction::Forward);
    while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
        for i in 0..batch.len() {
            let Ok(DatumRef::Int4(id)) = table.layout().column(batch.row(i), 0) else {
                panic!("no id");
            };
            ids.push(id);
        }
    }
    ids
}

fn insert(tx: &mut Tx, table: &Table, id: i32) -> Result<()> {
    tx.begin_statement();
    let done = tx.insert(table, &row(table, id, 1800))?;
    assert_eq!(done, Insert::Done);
    Ok(())
}

/// Transactions of `many` rows until one is refused: the first id that was not acknowledged, and why.
fn fill(engine: &Arc<Engine>, table: &Table, first: i32, many: i32) -> (i32, Error) {
    let mut tx = engine.tx();
    for start in (first..).step_by(many as usize) {
        tx.begin(Isolation::ReadCommitted);
        let written = (start..start + many).try_for_each(|id| insert(&mut tx, table, id));
        if let Err(error) = written.and_then(|()| tx.commit()) {
            if tx.is_active() {
                // What does not succeed here is the background's.
                tx.rollback().ok();
            }
            return (start, error);
        }
    }
    unreachable!("numbers do not end")
}

fn await_rollbacks(engine: &Engine) {
    // Of 176 runs the longest took 62 s: ten thousand rows are taken back one by one on a drive that others use.
    let end = rt::now() + Nanos::from_secs(300);
    while engine.rollbacks_waiting().0 > 0 {
        assert!(rt::now() < end, "still waiting: {:?}", engine.rollbacks_waiting());
        rt::sleep(Nanos::from_millis(50));
    }
}

/// Takes no longer than `limit`, in the run's time.
fn within<T>(limit: Nanos, what: &str, f: impl FnOnce() -> T) -> T {
    let begun = rt::now();
    let value = f();
    let took = rt::now().since(begun);
    assert!(took <= limit, "{what} took {took:?}");
    value
}

/// One disk: sessions fill it, with transactions of `many` rows; then `after` is done with it.
fn one_disk(seed: u64, room: u64, many: i32, after: impl FnOnce(&Sim, &Arc<Engine>, &Table, &[(i32, i32)])) {
    Sim::new(seed).with_step_limit(STEPS).run(|sim| {
        let region = Region::new();
        let (engine, table) = made(&region.0);
        sim.files().set_capacity(Some(sim.files().used() + room));
        let sessions: Vec<_> = (0..2)
            .map(|session| {
                let (engine, table, first) = (engine.clone(), table.clone(), session * 1_000_000);
                rt::spawn("session", move || (first, fill(&engine, &table, first, many)))
            })
            .collect();
        let mut kept = Vec::new();
        for session in sessions {
            let (first, (end, error)) = session.join().expect("no panic");
            assert_eq!(error.sqlstate(), "53100", "seed {seed}, {room} bytes: {error}");
            assert!(error.to_string().contains("space"), "{error}");
            kept.push((first, end));
        }
        after(sim, &engine, &table, &kept);
    });
}

fn assert_kept(engine: &Arc<Engine>, kept: &[(i32, i32)]) {
    let expected: Vec<i32> = kept.iter().flat_map(|(first, end)| *first..*end).collect();
    assert_eq!(ids(engine), expected);
}

/// Rows are refused with 53100, reads go on, a checkpoint comes back; with space again all is as acknowledged, and can
/// be written.
#[test]
fn disks_of_many_sizes_refuse_and_go_on() {
    for (seed, room) in [0, 1, 3, 5, 9, 15, 17, 20, 25, 33, 40].into_iter().enumerate() {
        for many in [1, 20_000] {
            one_disk(
                seed as u64,
                room * MIB + seed as u64 * 4096,
                many,
                |sim, engine, table, kept| {
                    assert_kept(engine, kept);
                    within(Nanos::from_secs(30), "a checkpoint", || engine.checkpoint().ok());
                    sim.files().set_capacity(None);
                    rt::sleep(Nanos::from_secs(2));
                    await_rollbacks(engine);
                    let mut tx = engine.begin(Isolation::ReadCommitted);
                    insert(&mut tx, table, 9_999_999).expect("room again");
                    tx.commit().expect("room again");
                    tx.begin(Isolation::ReadCommitted);
                    // Where rows were taken back, too.
                    insert(&mut tx, table, kept[0].1).expect("free");
                    tx.rollback().expect("taken back");
                    let kept: Vec<_> = kept.iter().copied().chain([(9_999_999, 10_000_000)]).collect();
                    assert_kept(engine, &kept);
                    let report = engine.check().expect("readable");
                    assert!(report.problems.is_empty(), "{:#?}", report.problems);
                    drop(tx);
                    engine.shutdown().expect("a clean end");
                },
            );
        }
    }
}

/// A shutdown while the disk is full comes back, whether it could write everything or not, and the next start has what
/// was acknowledged, with the region and without.
#[test]
fn a_full_disk_does_not_hold_up_a_shutdown() {
    for (seed, room) in [0, 2, 16, 30].into_iter().enumerate() {
        for many in [1, 20_000] {
            one_disk(seed as u64, room * MIB, many, |sim, engine, _, kept| {
                within(Nanos::from_secs(60), "a shutdown", || engine.shutdown().ok());
                let (files, kept) = (sim.files().crash_clone(), kept.to_vec());
                files.heal();
                let seed = sim.seed() + 100;
                std::thread::spawn(move || {
                    Sim::new(seed).with_files(files).run(|_| {
                        let region = Region::new();
                        let engine = open(&region.0);
                        await_rollbacks(&engine);
                        assert_kept(&engine, &kept);
                        engine.shutdown().expect("a clean end");
                    });
                })
                .join()
                .expect("as acknowledged");
            });
        }
    }
}

/// While the disk is full, a table can be dropped, and that makes space.
#[test]
fn dropping_a_table_makes_space() {
    one_disk(7, 40 * MIB, 1, |_, engine, table, _| {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table_by_id(table.id).expect("readable").expect("there");
        tx.drop_table(&table).expect("allowed while there is room for that");
        tx.commit().expect("committed");
        drop(tx);
        let end = rt::now() + Nanos::from_secs(30);
        while engine.poisoned().is_some() {
            assert!(rt::now() < end, "{:?}", engine.poisoned());
            rt::sleep(Nanos::from_millis(200));
        }
        engine.shutdown().expect("a clean end");
    });
}

/// Beneath the admission: a group that is in the ring when no segment can be made. A thread that waits for it is told,
/// and the log's lead holds up no other.
#[test]
fn a_group_without_a_segment_holds_up_no_other() {
    for seed in 1..6 {
        Sim::new(seed).with_step_limit(STEPS).run(|sim| {
            let length = 4096 + RING_HEADER + RING_MIN;
            let identity = Identity::default();
            let region = cenote_fabric::Region::dram(length, identity, RegionOptions::default()).expect("memory");
            let (log, _) = Log::open(LogOptions {
                dir: Path::new("/log").to_owned(),
                database: 7,
                segment_bytes: 64 << 10,
                ring: RingPlace {
                    region: Arc::new(region),
                    offset: 4096,
                    length: length - 4096,
                },
                believe_ring: false,
                survive: Survive::Process,
                checkpoint: FIRST_LSN,
                origin: FIRST_LSN,
                nodes: None,
                owner: None,
                known_durable: Lsn::ZERO,
                background: true,
            })
            .expect("made");
            rt::sleep(Nanos::from_secs(1));
            sim.files().set_capacity(Some(sim.files().used()));
            let log = Arc::new(log);
            let append = |log: &Log| {
                let mut builder = GroupBuilder::new();
                let record = builder.page(PageId::new(1, 1), RecordAddr::NONE);
                builder.write(record, 64, &[7; 3000]);
                log.append(builder.finish().expect("short"), None)
                    .expect("appended")
                    .end
            };
            // No thread asks for admission here.
            let ends: Vec<Lsn> = (0..100).map(|_| append(&log)).collect();
            let fits = ends.iter().filter(|end| log.wait_durable(**end).is_ok()).count();
            assert!(fits > 10 && fits < 100, "{fits} groups have segments");
            assert!(matches!(log.admit(Need::Commit), Err(BaseError::Full(_))));
            let told = Arc::new(AtomicU64::new(0));
            let waiters: Vec<_> = ends[fits..]
                .iter()
                .take(4)
                .map(|end| {
                    let (log, told, end) = (log.clone(), told.clone(), *end);
                    rt::spawn("waiter", move || {
                        let waited = log.wait_durable(end);
                        assert!(matches!(waited, Err(BaseError::Full(_))), "{waited:?}");
                        told.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            // What is durable is said at once, though others wait. (Time jumps to sleepers' deadlines, every 50 ms,
            // though the one that looks could go on: the bound lies between some of these and the timeout of the
            // others.)
            within(Nanos::from_secs(1), "a look", || {
                log.wait_durable(ends[fits - 1]).expect("durable")
            });
            within(Nanos::from_secs(30), "the others", || {
                waiters.into_iter().for_each(|w| w.join().expect("no panic"));
            });
            assert_eq!(told.load(Ordering::SeqCst), 4);
            sim.files().set_capacity(None);
            log.wait_durable(ends[99]).expect("space again");
            within(Nanos::from_secs(2), "the end", || drop(log));
        });
    }
}

/// Makes all pages of all tables and undo segments unreadable, where they are not in memory.
fn break_reads(files: &MemFs) {
    for path in files
        .files()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "pages"))
    {
        files.fail_reads_of(path);
    }
}

/// A rollback fails on I/O: its rows were locked until the restart. Now the background gets it done when storage works
/// again, and until then a session that wants the rows is told instead of waiting. So it is whether its client has begun
/// it or has left it to the background.
#[test]
fn a_rollback_that_fails_is_done_later() {
    for (seed, left) in [(1, false), (2, false), (3, true), (4, true)] {
        let _: Run<()> = Sim::new(seed).with_step_limit(STEPS).run(|sim| {
            let region = Region::new();
            let mut options = options(&region.0);
            if !left {
                options.tuning.rollback_rows = u64::MAX;
            }
            let (engine, table) = filled(Engine::open(options).expect("the engine opens"));
            let (mut tx, mut other) = (engine.tx(), engine.tx());
            tx.begin(Isolation::ReadCommitted);
            // More than the pool holds.
            (0..8_000).for_each(|id| insert(&mut tx, &table, id).expect("room"));
            engine.checkpoint().expect("written");
            break_reads(sim.files());
            let ended = tx.rollback();
            assert_eq!(ended.is_ok(), left, "its first pages are not in memory: {ended:?}");
            assert!(!tx.is_active());
            assert_eq!(engine.rollbacks_waiting().0, 1);
            let end = rt::now() + Nanos::from_secs(30);
            while engine.rollbacks_waiting().1.is_none() {
                assert!(rt::now() < end, "nothing is said");
                rt::sleep(Nanos::from_millis(20));
            }
            let text = engine.rollbacks_waiting().1.expect("said");
            assert!(text.contains("rolled back"), "{text}");
            // The session goes on; one that wants a row of it is told.
            tx.begin(Isolation::ReadCommitted);
            tx.set_lock_timeout(5_000);
            other.begin(Isolation::ReadCommitted);
            sim.files().heal();
            await_rollbacks(&engine);
            insert(&mut tx, &table, 1).expect("free");
            tx.commit().expect("committed");
            assert_eq!(ids(&engine), vec![1]);
            // Its table lock is gone, too.
            other.begin_statement();
            other.set_lock_timeout(1_000);
            other.truncate(&table).expect("free");
            other.rollback().expect("taken back");
            let report = engine.check().expect("readable");
            assert!(report.problems.is_empty(), "{:#?}", report.problems);
            drop((tx, other));
            engine.shutdown().expect("a clean end");
        });
    }
}

/// A loser of the last run that cannot be rolled back keeps neither the other ones nor their waiters.
#[test]
fn a_stuck_loser_does_not_hold_up_the_others() {
    let files = Sim::new(5)
        .with_step_limit(STEPS)
        .run(|sim| {
            let region = Region::new();
            let (engine, table) = made(&region.0);
            let (mut big, mut small) = (engine.tx(), engine.tx());
            big.begin(Isolation::ReadCommitted);
            (0..8_000).for_each(|id| insert(&mut big, &table, id).expect("room"));
            small.begin(Isolation::ReadCommitted);
            insert(&mut small, &table, 1_000_000).expect("room");
            engine.checkpoint().expect("written");
            let files = sim.files().kill_clone();
            engine.halt();
            std::mem::forget((big, small));
            files
        })
        .value;
    Sim::new(6).with_files(files).with_step_limit(STEPS).run(|sim| {
        let region = Region::new();
        // Undo segment 0 is the big one's.
        let segments: Vec<PathBuf> = undo_files(sim.files());
        let engine = open(&region.0);
        sim.files().fail_reads_of(&segments[0]);
        let end = rt::now() + Nanos::from_secs(30);
        while engine.rollbacks_waiting().0 > 1 {
            assert!(rt::now() < end, "{:?}", engine.rollbacks_waiting());
            rt::sleep(Nanos::from_millis(20));
        }
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t").expect("readable").expect("made");
        tx.begin_statement();
        let done = tx.modify(&table, &key(&table, 1_000_000), &|_, _| Ok::<_, Error>(Change::Delete));
        assert_eq!(done.expect("free"), Outcome::Gone);
        // A definition says why it cannot be done, and does not wait.
        let refused = tx.truncate(&table).expect_err("the big one is in the way");
        assert!(refused.to_string().contains("rolled back"), "{refused}");
        tx.rollback().expect("nothing to do");
        sim.files().heal();
        await_rollbacks(&engine);
        assert_eq!(ids(&engine), Vec::<i32>::new());
        drop(tx);
        engine.shutdown().expect("a clean end");
    });
}

/// The files of the undo segments, in order.
fn undo_files(files: &MemFs) -> Vec<PathBuf> {
    let is_undo = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("");
        u32::from_str_radix(stem, 16).is_ok_and(|space| (0xF000_0000..0xF002_0000).contains(&space))
    };
    files.files().into_iter().filter(is_undo).collect()
}
