//! Waiting for a row: in which order, with what locked, and what remains of attempts that were not applied.

use crate::common::*;
use cenote_engine::*;
use std::cell::RefCell;
use std::sync::Arc;
use std::thread::JoinHandle;

fn until_waiting(engine: &Engine, count: usize) {
    while engine.waiting_transactions() != count {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn made(unique: bool) -> (tempfile::TempDir, Arc<Engine>, Arc<Table>) {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", unique);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 10, "").unwrap();
    tx.commit().unwrap();
    (dir, engine, table)
}

fn lock(tx: &mut Tx, table: &Table, id: i32, strength: LockStrength, wait: Wait) -> Result<Locked> {
    tx.lock_row(table, &key(table, id), strength, wait, &mut Vec::new())
}

/// Adds `mark` to the row's text and commits, in a thread that is known to wait.
fn writer(engine: &Arc<Engine>, table: &Arc<Table>, mark: usize) -> JoinHandle<()> {
    let waiting = engine.waiting_transactions();
    let (e, t) = (engine.clone(), table.clone());
    let thread = std::thread::spawn(move || {
        let mut tx = e.begin(Isolation::ReadCommitted);
        tx.modify(&t, &key(&t, 1), &|r, _| {
            let (id, k, c) = values(&t, r);
            Ok::<_, Error>(Change::Update(row(&t, id, k, &format!("{c}{mark}"))))
        })
        .unwrap();
        tx.commit().unwrap();
    });
    until_waiting(engine, waiting + 1);
    thread
}

fn text(engine: &Arc<Engine>, table: &Table) -> String {
    let tx = engine.begin(Isolation::ReadCommitted);
    get(&tx, table, 1).expect("the row").2
}

/// ON CONFLICT DO UPDATE ... WHERE told its client of a row that was never written: the first attempt had worked out a
/// new row, the row changed before it was applied, and the second attempt left the row alone; what the first had noted
/// was taken for done.
#[test]
fn an_attempt_that_was_not_applied_leaves_nothing() {
    let (_dir, engine, table) = made(false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let between = RefCell::new(Some(engine.begin(Isolation::ReadCommitted)));
    let done = tx.change(&table, &key(&table, 1), &|newest, _| {
        if let Some(mut other) = between.borrow_mut().take() {
            update(&mut other, &table, 1, 7, "other").unwrap();
            other.commit().unwrap();
        }
        Ok::<_, Error>(match values(&table, newest).1 {
            10 => Change::Update(row(&table, 1, 99, "mine")),
            _ => Change::Keep,
        })
    });
    let kept = Changed::Done {
        change: Change::Keep,
        before: row(&table, 1, 7, "other"),
    };
    assert_eq!(done.unwrap(), kept);
    tx.commit().unwrap();
    engine.shutdown().unwrap();
}

/// A transaction that had been asked about a row, and then had to wait for another key of the new version, left the row
/// free meanwhile: others changed it, and the condition was asked again about what they had made of it.
#[test]
fn a_row_stays_locked_while_its_new_key_is_waited_for() {
    let (_dir, engine, table) = made(true);
    let mut first = engine.begin(Isolation::ReadCommitted);
    insert(&mut first, &table, 2, 99, "").unwrap();
    let (e, t) = (engine.clone(), table.clone());
    let second = std::thread::spawn(move || {
        let mut tx = e.begin(Isolation::ReadCommitted);
        let asked = RefCell::new(Vec::new());
        tx.modify(&t, &key(&t, 1), &|r, _| {
            asked.borrow_mut().push(values(&t, r).1);
            Ok::<_, Error>(Change::Update(row(&t, 1, 99, "")))
        })
        .unwrap();
        tx.commit().unwrap();
        asked.into_inner()
    });
    until_waiting(&engine, 1);
    let mut third = engine.begin(Isolation::ReadCommitted);
    let refused = lock(&mut third, &table, 1, LockStrength::Share, Wait::NoWait);
    assert!(matches!(refused, Err(Error::LockNotAvailable(_))), "{refused:?}");
    first.rollback().unwrap();
    assert_eq!(second.join().unwrap(), [10, 10]);
    third.rollback().unwrap();
    drop((first, third));
    engine.shutdown().unwrap();
}

/// The end of a transaction woke all waiters of its row, and the first to run had it: others waited for seconds.
#[test]
fn a_row_goes_to_its_waiters_in_the_order_of_coming() {
    let (_dir, engine, table) = made(false);
    let mut holder = engine.begin(Isolation::ReadCommitted);
    update(&mut holder, &table, 1, 10, "").unwrap();
    let waiters: Vec<_> = (0..8).map(|mark| writer(&engine, &table, mark)).collect();
    holder.commit().unwrap();
    waiters.into_iter().for_each(|w| w.join().unwrap());
    assert_eq!(text(&engine, &table), "01234567");
    drop(holder);
    engine.shutdown().unwrap();
}

/// One that gives up, and one that does not want the row and goes on with its transaction, hold up no transaction
/// behind them.
#[test]
fn a_waiter_that_leaves_lets_the_next_have_the_row() {
    let (_dir, engine, table) = made(false);
    let mut holder = engine.begin(Isolation::ReadCommitted);
    update(&mut holder, &table, 1, 10, "").unwrap();
    let mut canceled = engine.begin(Isolation::ReadCommitted);
    let cancel = canceled.cancel_flag();
    let (t, waiting) = (table.clone(), engine.waiting_transactions());
    let canceled = std::thread::spawn(move || {
        let done = update(&mut canceled, &t, 1, 11, "canceled");
        assert!(matches!(done, Err(Error::Canceled)));
        canceled
    });
    until_waiting(&engine, waiting + 1);
    let mut skips = engine.begin(Isolation::ReadCommitted);
    let t = table.clone();
    let skips = std::thread::spawn(move || {
        // Wanted as the snapshot has it, and waited for; not wanted as it is then.
        let done = skips.modify(&t, &key(&t, 1), &|_, moved| {
            Ok::<_, Error>(if moved { Change::Skip } else { Change::Keep })
        });
        assert_eq!(done.unwrap(), Outcome::Skipped);
        skips
    });
    until_waiting(&engine, waiting + 2);
    let last = writer(&engine, &table, 3);
    cancel.set();
    let open = canceled.join().unwrap();
    holder.commit().unwrap();
    let open = (open, skips.join().unwrap());
    last.join().unwrap();
    assert_eq!(text(&engine, &table), "3");
    drop((open, holder));
    engine.shutdown().unwrap();
}

/// The holder of a row does not queue behind its waiters; a transaction that closes a cycle through a queue is told so.
#[test]
fn queues_are_part_of_the_wait_for_graph() {
    let (_dir, engine, table) = made(false);
    let mut holder = engine.begin(Isolation::ReadCommitted);
    insert(&mut holder, &table, 2, 20, "").unwrap();
    lock(&mut holder, &table, 1, LockStrength::Share, Wait::Block).unwrap();
    let first = writer(&engine, &table, 0);
    let locked = lock(&mut holder, &table, 1, LockStrength::Update, Wait::Block).unwrap();
    assert!(matches!(locked, Locked::Row { .. }));

    let mut second = engine.begin(Isolation::ReadCommitted);
    insert(&mut second, &table, 3, 30, "").unwrap();
    let (t, waiting) = (table.clone(), engine.waiting_transactions());
    let second = std::thread::spawn(move || {
        update(&mut second, &t, 1, 11, "second").unwrap();
        second.commit().unwrap();
    });
    until_waiting(&engine, waiting + 1);
    // holder → second → first → holder
    let closed = insert(&mut holder, &table, 3, 31, "");
    assert!(matches!(closed, Err(Error::Deadlock(_))), "{closed:?}");
    holder.rollback().unwrap();
    first.join().unwrap();
    second.join().unwrap();
    assert_eq!(text(&engine, &table), "second");
    drop(holder);
    engine.shutdown().unwrap();
}

/// A statement that panicked in its turn left its place in the queue behind: the row was free, and NOWAIT refused it
/// for good.
#[test]
fn a_statement_that_panics_in_its_turn_leaves_no_place_behind() {
    let (_dir, engine, table) = made(false);
    let mut holder = engine.begin(Isolation::ReadCommitted);
    update(&mut holder, &table, 1, 10, "").unwrap();
    let (e, t, waiting) = (engine.clone(), table.clone(), engine.waiting_transactions());
    let panics = std::thread::spawn(move || {
        let mut tx = e.begin(Isolation::ReadCommitted);
        tx.modify(&t, &key(&t, 1), &|_, moved| {
            assert!(!moved, "as it is meant to be");
            Ok::<_, Error>(Change::Delete)
        })
        .ok();
    });
    until_waiting(&engine, waiting + 1);
    holder.commit().unwrap();
    assert!(panics.join().is_err());
    let mut next = engine.begin(Isolation::ReadCommitted);
    let locked = lock(&mut next, &table, 1, LockStrength::Update, Wait::NoWait).unwrap();
    assert!(matches!(locked, Locked::Row { .. }));
    next.rollback().unwrap();
    drop((next, holder));
    engine.shutdown().unwrap();
}

/// A transaction returned to a savepoint: the rows that it had changed were free, and those that waited for them slept
/// on until it ended. Where it then wanted a row of theirs, or queued behind them for its former one, that was a
/// deadlock (40P01).
#[test]
fn a_return_to_a_savepoint_wakes_waiters_for_its_rows() {
    let (_dir, engine, table) = made(false);
    let mut holder = engine.begin(Isolation::ReadCommitted);
    insert(&mut holder, &table, 2, 20, "").unwrap();
    let savepoint = holder.savepoint();
    update(&mut holder, &table, 1, 10, "holder").unwrap();
    let waiter = writer(&engine, &table, 3);
    holder.rollback_to(&savepoint).unwrap();
    holder.begin_statement();
    update(&mut holder, &table, 1, 10, "again").unwrap();
    waiter.join().unwrap();
    holder.commit().unwrap();
    assert_eq!(text(&engine, &table), "again");
    drop(holder);
    engine.shutdown().unwrap();
}

/// A commit frees its rows before it is durable, and a snapshot sees it once it is. An update that it refused at
/// repeatable read was refused again and again meanwhile: eight clients on one row failed 40 times for each success.
#[test]
fn what_refuses_an_update_is_seen_by_the_next_snapshot() {
    let (_dir, engine, table) = made(false);
    for round in 0..20 {
        let mut a = engine.begin(Isolation::ReadCommitted);
        update(&mut a, &table, 1, round, "a").unwrap();
        let (e, t) = (engine.clone(), table.clone());
        let other = std::thread::spawn(move || {
            let mut b = e.begin(Isolation::RepeatableRead);
            assert!(get(&b, &t, 1).is_some());
            let refused = update(&mut b, &t, 1, 0, "b").expect_err("it has changed since");
            assert_eq!(refused.sqlstate(), "40001");
            b.rollback().unwrap();
            b.begin(Isolation::RepeatableRead);
            update(&mut b, &t, 1, 100, "b").expect("the new snapshot sees what refused the former");
            b.commit().unwrap();
        });
        until_waiting(&engine, 1);
        a.commit().unwrap();
        other.join().unwrap();
    }
    engine.shutdown().unwrap();
}
