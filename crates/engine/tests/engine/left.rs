//! Transactions that a server leaves to the next one.

use crate::common::*;
use cenote_base::rt::Nanos;
use cenote_engine::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How the next start finds the database.
#[derive(Clone, Copy, Debug)]
enum End {
    Shutdown,
    Killed,
    RegionLost,
}

const ENDS: [End; 3] = [End::Shutdown, End::Killed, End::RegionLost];

fn waiting_for(dir: &Path, wait: Nanos) -> EngineOptions {
    let mut options = options(dir, MemoryKind::Cxl);
    options.tuning.left_wait = wait;
    options
}

fn started(dir: &Path) -> Arc<Engine> {
    Engine::open(waiting_for(dir, Nanos::from_secs(3600))).expect("the database opens")
}

fn end(dir: &Path, engine: Arc<Engine>, end: End) {
    match end {
        End::Shutdown => engine.shutdown().expect("shut down"),
        End::Killed | End::RegionLost => engine.halt(),
    }
    assert_eq!(Arc::strong_count(&engine), 1, "a reference to the engine is left");
    drop(engine);
    if matches!(end, End::RegionLost) {
        std::fs::remove_file(dir.join("region")).expect("there is a region");
    }
}

fn table_of(tx: &mut Tx) -> Arc<Table> {
    tx.begin(Isolation::ReadCommitted);
    let table = tx.table("t").expect("readable").expect("it is there");
    tx.rollback().expect("nothing is written");
    table
}

fn lock(tx: &mut Tx, table: &Table, id: i32) -> Result<Locked> {
    tx.lock_row(
        table,
        &key(table, id),
        LockStrength::Update,
        Wait::Block,
        &mut Vec::new(),
    )
}

fn filled(dir: &Path, rows: i32) -> Arc<Engine> {
    let engine = started(dir);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..rows {
        insert(&mut tx, &table, id, 0, "before").expect("inserted");
    }
    tx.commit().expect("committed");
    engine
}

fn take_up(tx: &mut Tx, token: u128) -> Option<TakenUp> {
    tx.take_up(token, &|_| true).expect("written")
}

/// Rows, savepoints, locks and what the session gave are there; others wait for all of it meanwhile.
#[test]
fn a_transaction_goes_on_behind_the_next_start() {
    for how in ENDS {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = filled(dir.path(), 10);
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t").expect("readable").expect("made");
        tx.begin_statement();
        update(&mut tx, &table, 1, 11, "mine").expect("free");
        let point = tx.savepoint();
        insert(&mut tx, &table, 20, 20, "new").expect("free");
        lock(&mut tx, &table, 5).expect("free");
        tx.leave_to_next(7, &[&point], b"a session".to_vec()).expect("left");
        assert!(!tx.is_active() && tx.id().is_none());
        // The session has other things to do meanwhile.
        tx.begin(Isolation::ReadCommitted);
        tx.begin_statement();
        update(&mut tx, &table, 9, 99, "other").expect("free");
        tx.set_lock_timeout(20);
        assert!(matches!(
            update(&mut tx, &table, 1, 0, ""),
            Err(Error::LockNotAvailable(_))
        ));
        tx.commit().expect("committed");
        drop((tx, table));
        end(dir.path(), engine, how);

        let engine = started(dir.path());
        assert_eq!(
            (engine.left_transactions(), engine.recovery_report().losers),
            (1, 0),
            "{how:?}"
        );
        let mut other = engine.tx();
        other.set_lock_timeout(20);
        let table = table_of(&mut other);
        for id in [1, 5] {
            other.begin(Isolation::ReadCommitted);
            other.begin_statement();
            let refused = update(&mut other, &table, id, 0, "another's");
            assert!(
                matches!(refused, Err(Error::LockNotAvailable(_))),
                "{how:?}: {refused:?}"
            );
            other.rollback().expect("rolled back");
        }
        other.begin(Isolation::ReadCommitted);
        assert!(other.drop_table(&table).is_err(), "the table is shared");
        other.rollback().expect("rolled back");

        let mut tx = engine.tx();
        assert!(take_up(&mut tx, 8).is_none(), "another token");
        assert!(
            tx.take_up(7, &|_| false).expect("nothing is written").is_none(),
            "another session's"
        );
        let taken = take_up(&mut tx, 7).expect("it waits");
        assert_eq!((&taken.session[..], taken.savepoints.len()), (&b"a session"[..], 1));
        assert!(take_up(&mut other, 7).is_none(), "once");
        tx.begin_statement();
        assert_eq!(get(&tx, &table, 1), Some((1, 11, "mine".into())));
        assert_eq!(get(&tx, &table, 20), Some((20, 20, "new".into())));
        tx.rollback_to(&taken.savepoints[0]).expect("taken back");
        tx.begin_statement();
        assert_eq!(get(&tx, &table, 20), None);
        update(&mut tx, &table, 5, 55, "mine").expect("locked");
        tx.commit().expect("committed");
        other.begin(Isolation::ReadCommitted);
        other.begin_statement();
        update(&mut other, &table, 5, 56, "another's").expect("free");
        assert_eq!(get(&other, &table, 1), Some((1, 11, "mine".into())));
        assert_eq!(get(&other, &table, 20), None);
        other.commit().expect("committed");
        drop((tx, other));
        assert_eq!((engine.locks_held(), engine.running_transactions()), (0, 0), "{how:?}");
        engine.vacuum().expect("purged");
        let report = engine.check().expect("readable");
        assert_eq!(report.problems, Vec::<String>::new(), "{how:?}");
        engine.shutdown().expect("shut down");
    }
}

/// A transaction at repeatable read sees behind the start what it saw before, whatever was committed and purged since.
#[test]
fn a_snapshot_goes_with_its_transaction() {
    for how in ENDS {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = filled(dir.path(), 50);
        let mut tx = engine.begin(Isolation::RepeatableRead);
        let table = tx.table("t").expect("readable").expect("made");
        tx.begin_statement();
        let seen = all(&tx, &table);
        let change_all = |engine: &Arc<Engine>, table: &Table, k: i32| {
            for id in 0..50 {
                let mut other = engine.begin(Isolation::ReadCommitted);
                other.begin_statement();
                match id % 5 {
                    4 if k == 1 => delete(&mut other, table, id).expect("free"),
                    4 => continue,
                    _ => update(&mut other, table, id, k, "after").expect("free"),
                };
                other.commit().expect("committed");
            }
        };
        change_all(&engine, &table, 1);
        tx.leave_to_next(1, &[], Vec::new()).expect("left");
        change_all(&engine, &table, 2);
        engine.vacuum().expect("purged");
        drop((tx, table));
        end(dir.path(), engine, how);

        let engine = started(dir.path());
        let table = table_of(&mut engine.tx());
        change_all(&engine, &table, 3);
        engine.vacuum().expect("purged");
        let mut tx = engine.tx();
        take_up(&mut tx, 1).expect("it waits");
        change_all(&engine, &table, 4);
        engine.vacuum().expect("purged");
        tx.begin_statement();
        assert_eq!(all(&tx, &table), seen, "{how:?}");
        let refused = update(&mut tx, &table, 1, 9, "late");
        assert!(matches!(refused, Err(Error::Serialization(_))), "{refused:?}");
        tx.rollback().expect("rolled back");
        drop(tx);
        engine.vacuum().expect("purged");
        assert_eq!(engine.check().expect("readable").problems, Vec::<String>::new());
        engine.shutdown().expect("shut down");
    }
}

/// Found by reading: the mark with which the snapshot was taken lay below pages of statuses that were given back while it
/// was held. The next start began with it, and committed rows were seen by no session any more.
#[test]
fn statuses_that_the_next_start_asks_for_are_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut few = waiting_for(dir.path(), Nanos::from_secs(3600));
    few.tuning.give_back_pages = 1;
    // The mark moves with purge alone.
    few.background = false;
    let engine = Engine::open(few.clone()).expect("the database opens");
    let table = create(&engine, "t", false);
    let mut tx = engine.tx();
    for id in 0..5_000 {
        tx.begin(Isolation::ReadCommitted);
        tx.begin_statement();
        insert(&mut tx, &table, id, id, "x").expect("free");
        tx.commit().expect("committed");
    }
    let mut old = engine.begin(Isolation::RepeatableRead);
    old.begin_statement();
    let seen = all(&old, &table).len();
    for _ in 0..3 {
        engine.vacuum().expect("purged");
    }
    old.leave_to_next(1, &[], Vec::new()).expect("left");
    for _ in 0..3 {
        engine.vacuum().expect("purged");
    }
    drop((tx, old, table));
    end(dir.path(), engine, End::Shutdown);

    let engine = Engine::open(few).expect("the database opens");
    let (mut tx, mut other) = (engine.tx(), engine.tx());
    let table = table_of(&mut other);
    take_up(&mut tx, 1).expect("it waits");
    tx.begin_statement();
    other.begin(Isolation::ReadCommitted);
    other.begin_statement();
    assert_eq!(
        (all(&tx, &table).len(), all(&other, &table).len(), seen),
        (5_000, 5_000, 5_000)
    );
    update(&mut other, &table, 7, 0, "y").expect("free");
    other.commit().expect("committed");
    tx.rollback().expect("rolled back");
    drop((tx, other, table));
    engine.shutdown().expect("shut down");
}

/// Found by reading: a table that was given another tree behind the snapshot was read as an empty one.
#[test]
fn a_table_that_was_replaced_behind_the_snapshot_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = filled(dir.path(), 10);
    let other = create(&engine, "u", false);
    let mut tx = engine.begin(Isolation::RepeatableRead);
    let table = tx.table("t").expect("readable").expect("made");
    tx.begin_statement();
    assert_eq!(all(&tx, &table).len(), 10);
    tx.leave_to_next(1, &[], Vec::new()).expect("left");
    let mut truncates = engine.begin(Isolation::ReadCommitted);
    truncates.truncate(&table).expect("free");
    truncates.commit().expect("committed");
    drop((tx, truncates, table, other));
    end(dir.path(), engine, End::Shutdown);

    let engine = started(dir.path());
    let mut truncates = engine.begin(Isolation::ReadCommitted);
    let other = truncates.table("u").expect("readable").expect("made");
    truncates.truncate(&other).expect("free");
    truncates.commit().expect("committed");
    let mut tx = engine.tx();
    take_up(&mut tx, 1).expect("it waits");
    tx.begin_statement();
    for name in ["t", "u"] {
        let refused = tx.table(name).map(|table| table.is_some());
        assert!(matches!(refused, Err(Error::Serialization(_))), "{name}: {refused:?}");
    }
    tx.rollback().expect("rolled back");
    drop((tx, truncates));
    engine.shutdown().expect("shut down");
}

/// One whose session does not come is rolled back; then no start lets it be taken up, though others have had a row back
/// before.
#[test]
fn one_that_no_session_comes_for_is_rolled_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = filled(dir.path(), 10);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").expect("readable").expect("made");
    tx.begin_statement();
    for id in 0..10 {
        update(&mut tx, &table, id, 1, "mine").expect("free");
    }
    tx.leave_to_next(7, &[], Vec::new()).expect("left");
    drop((tx, table));
    end(dir.path(), engine, End::Shutdown);

    let engine = Engine::open(waiting_for(dir.path(), Nanos::from_millis(50))).expect("the database opens");
    while engine.left_transactions() > 0 || engine.rollbacks_waiting().0 > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut tx = engine.tx();
    assert!(take_up(&mut tx, 7).is_none());
    let table = table_of(&mut tx);
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    assert!(
        all(&tx, &table)
            .iter()
            .all(|(_, k, c)| (*k, c.as_str()) == (0, "before"))
    );
    tx.rollback().expect("rolled back");
    drop(tx);
    assert_eq!((engine.locks_held(), engine.running_transactions()), (0, 0));
    engine.shutdown().expect("shut down");
}

/// What cannot be left is refused, and goes on as it was.
#[test]
fn what_cannot_be_left_goes_on_where_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = filled(dir.path(), 3);
    let mut tx = engine.tx();
    assert!(matches!(
        tx.leave_to_next(1, &[], Vec::new()),
        Err(Error::WrongState(_))
    ));
    tx.begin(Isolation::ReadCommitted);
    tx.create_table(new_table("u", false)).expect("made");
    assert!(matches!(
        tx.leave_to_next(1, &[], Vec::new()),
        Err(Error::WrongState(_))
    ));
    tx.commit().expect("committed");
    tx.begin(Isolation::ReadCommitted);
    let table = tx.table("u").expect("readable").expect("made");
    tx.begin_statement();
    insert(&mut tx, &table, 1, 1, "").expect("free");
    let refused = tx.leave_to_next(1, &[], vec![0; 2 << 20]);
    assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    tx.commit().expect("committed");
    drop((tx, table));
    end(dir.path(), engine, End::Killed);
    let engine = started(dir.path());
    assert_eq!(engine.left_transactions(), 0);
    engine.shutdown().expect("shut down");
}

type Rows = BTreeMap<i32, i32>;

/// One of the transactions of a run, as it should be.
struct Expected {
    token: u128,
    rows: Rows,
    /// At its savepoint.
    saved: Rows,
}

/// Changes rows of a transaction's own range, as the model says.
fn work(random: &mut Random, tx: &mut Tx, table: &Table, rows: &mut Rows, ids: std::ops::Range<i32>) {
    for _ in 0..random.below(12) {
        let (id, k) = (
            ids.start + random.below(ids.len() as u64) as i32,
            random.below(1000) as i32,
        );
        tx.begin_statement();
        match (rows.contains_key(&id), random.below(3)) {
            (false, _) => {
                insert(tx, table, id, k, "x").expect("free");
                rows.insert(id, k);
            }
            (true, 0) => {
                delete(tx, table, id).expect("free");
                rows.remove(&id);
            }
            (true, _) => {
                update(tx, table, id, k, &"x".repeat(k as usize)).expect("free");
                rows.insert(id, k);
            }
        }
    }
}

/// The sessions of a run, each with rows of its own.
struct Run {
    seed: u64,
    random: Random,
    /// By session: its rows as committed.
    committed: Vec<Rows>,
    /// Transactions that were left.
    open: Vec<Option<Expected>>,
}

const SESSIONS: usize = 5;
const RANGE: i32 = 40;

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            seed,
            random: Random(seed),
            committed: vec![Rows::new(); SESSIONS],
            open: (0..SESSIONS).map(|_| None).collect(),
        }
    }

    /// The session's transaction, taken up or begun: what it should see, now and at its savepoint.
    fn begin(&mut self, of: usize, tx: &mut Tx) -> (Rows, Rows, Savepoint) {
        let Some(expected) = self.open[of].take() else {
            tx.begin(Isolation::ReadCommitted);
            return (self.committed[of].clone(), self.committed[of].clone(), tx.savepoint());
        };
        let taken = take_up(tx, expected.token);
        let taken = taken.unwrap_or_else(|| panic!("seed {}: that of session {of} is not there", self.seed));
        (expected.rows, expected.saved, taken.savepoints[0].clone())
    }

    /// Works, and ends, or is left. Gives a transaction back that is open when the server ends.
    fn play(&mut self, of: usize, engine: &Arc<Engine>, table: &Table) -> Option<Tx> {
        let ids = of as i32 * RANGE..(of as i32 + 1) * RANGE;
        let mut tx = engine.tx();
        let (mut rows, mut saved, mut point) = self.begin(of, &mut tx);
        work(&mut self.random, &mut tx, table, &mut rows, ids.clone());
        match self.random.below(4) {
            0 => {
                tx.rollback_to(&point).expect("taken back");
                rows = saved.clone();
            }
            1 => (point, saved) = (tx.savepoint(), rows.clone()),
            _ => {}
        }
        work(&mut self.random, &mut tx, table, &mut rows, ids);
        match self.random.below(5) {
            0 => {
                tx.commit().expect("committed");
                self.committed[of] = rows;
            }
            1 => tx.rollback().expect("rolled back"),
            2 => return Some(tx),
            _ => {
                let token = u128::from(self.random.word() | 1);
                tx.leave_to_next(token, &[&point], Vec::new()).expect("left");
                self.open[of] = Some(Expected { token, rows, saved });
            }
        }
        None
    }

    fn check(&self, engine: &Arc<Engine>) {
        let (mut tx, seed) = (engine.tx(), self.seed);
        let table = table_of(&mut tx);
        tx.begin(Isolation::ReadCommitted);
        tx.begin_statement();
        let found: Rows = all(&tx, &table).into_iter().map(|(id, k, _)| (id, k)).collect();
        let expected: Rows = self.committed.iter().flatten().map(|(id, k)| (*id, *k)).collect();
        assert_eq!(found, expected, "seed {seed}");
        tx.rollback().expect("rolled back");
        drop(tx);
        engine.vacuum().expect("purged");
        assert_eq!(
            engine.check().expect("readable").problems,
            Vec::<String>::new(),
            "seed {seed}"
        );
    }
}

/// Sessions leave transactions, servers end in all ways, some transactions are taken up and go on, others are given up;
/// some are left again. At the end each row is as its last commit made it. More seeds: `CENOTE_SEEDS`.
#[test]
fn runs_of_servers_lose_no_transaction_that_is_taken_up() {
    let seeds: u64 = std::env::var("CENOTE_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(6);
    for seed in 100..100 + seeds {
        let (dir, mut run) = (tempfile::tempdir().expect("a directory"), Run::new(seed));
        let mut engine = filled(dir.path(), 0);
        for round in 0..8 {
            let table = table_of(&mut engine.tx());
            let mut open: Vec<Tx> = (0..SESSIONS).filter_map(|of| run.play(of, &engine, &table)).collect();
            let how = ENDS[run.random.below(3) as usize];
            if matches!(how, End::Shutdown) {
                open.iter_mut().for_each(|tx| tx.rollback().expect("rolled back"));
            } else {
                engine.halt();
            }
            drop((open, table));
            end(dir.path(), engine, how);
            engine = started(dir.path());
            let left = run.open.iter().flatten().count();
            assert_eq!(engine.left_transactions(), left, "seed {seed}, round {round}, {how:?}");
        }
        // Those that wait still are given up.
        end(dir.path(), engine, End::Killed);
        let engine = Engine::open(waiting_for(dir.path(), Nanos::ZERO)).expect("the database opens");
        while engine.left_transactions() > 0 || engine.rollbacks_waiting().0 > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        run.check(&engine);
        engine.shutdown().expect("shut down");
    }
}
