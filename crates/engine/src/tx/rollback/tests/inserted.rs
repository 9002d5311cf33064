//! Rows that were inserted together: one undo record stands for a leaf of them. Rollbacks were measured in undo pages,
//! so one of hundreds of thousands of such rows counted as small or short, and its client waited for it.

use super::{filled, without_a_thread};
use crate::testing::{assert_clean, indexed_where, key, row, write};
use crate::*;
use std::sync::Arc;

const MANY: i32 = 3_000;

/// Inserts rows from this id on, in a transaction that goes on.
fn insert_from(tx: &mut Tx, table: &Table, first: i32) {
    tx.begin(Isolation::ReadCommitted);
    let mut rows = NewRows::default();
    (first..first + MANY).for_each(|id| rows.push(&row(table, id, 3)));
    assert_eq!(tx.insert_rows(table, &rows, &mut 0).expect("inserted"), None);
}

fn rollbacks_left(engine: &Arc<Engine>) -> usize {
    engine.rollbacks_waiting().0
}

#[test]
fn a_rollback_of_rows_inserted_together_is_left_and_each_is_had_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = without_a_thread(dir.path());
    let mut tx = engine.tx();
    // Less than a page of undo: it was done by the client, row by row.
    insert_from(&mut tx, &table, 10_000);
    tx.rollback().expect("left to the background");
    assert_eq!(rollbacks_left(&engine), 1);
    let mut other = engine.begin(Isolation::ReadCommitted);
    other.set_lock_timeout(1_000);
    for id in [10_000, 11_234, 10_000 + MANY - 1] {
        assert_eq!(other.insert(&table, &row(&table, id, 5)).expect("free"), Insert::Done);
    }
    other.commit().expect("committed");
    assert_eq!(rollbacks_left(&engine), 1, "the other rows are as they were");
    let mut value = Vec::new();
    let tree = crate::tree::BTree { space: table.space };
    let stands = tree.get(&engine.pool, &key(&table, 11_235), &mut value);
    assert!(
        stands.expect("readable"),
        "a neighbour in the record was not taken back with it"
    );
    engine.roll_back_losers().expect("taken back");
    engine.vacuum().expect("purged");
    assert_clean(&engine, super::ROWS as usize + 3);
    drop((tx, other));
    engine.shutdown().expect("shut down");
}

#[test]
fn a_rollback_of_rows_inserted_together_is_short_by_its_rows() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = filled(indexed_where(dir.path(), MANY as u64));
    let (mut first, mut second) = (engine.tx(), engine.tx());
    insert_from(&mut first, &table, 10_000);
    first.rollback().expect("left to the background");
    insert_from(&mut second, &table, 20_000);
    second.rollback().expect("left to the background");
    assert_eq!(rollbacks_left(&engine), 2, "not short: its client does not wait");
    engine.roll_back_losers().expect("taken back");
    // What a return to a savepoint has taken back does not count.
    second.begin(Isolation::ReadCommitted);
    let savepoint = second.savepoint();
    let mut rows = NewRows::default();
    (30_000..30_000 + MANY).for_each(|id| rows.push(&row(&table, id, 3)));
    second.insert_rows(&table, &rows, &mut 0).expect("inserted");
    second.rollback_to(&savepoint).expect("taken back");
    write(&mut second, &table, 1, std::iter::once(9));
    second.rollback().expect("taken back");
    assert_eq!(rollbacks_left(&engine), 0, "one row");
    engine.vacuum().expect("purged");
    assert_clean(&engine, super::ROWS as usize);
    drop((first, second));
    engine.shutdown().expect("shut down");
}
