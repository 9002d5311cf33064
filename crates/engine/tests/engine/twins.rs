//! Two entries of one row whose hashes were equal. Purge took the stale one for the other, and kept it; a scan of the
//! index alone believed it. A client can choose such entries: the hash was known.

use crate::common::*;
use cenote_base::rt::FixedState;
use cenote_engine::*;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;

fn create_texts(dir: &Path) -> (Arc<Engine>, Arc<Table>) {
    let mut options = options(dir, MemoryKind::Dram);
    options.background = false;
    let engine = Engine::open(options).expect("the database opens");
    let mut new = new_table("t", false);
    new.indexes[0].columns = vec![2];
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new).expect("made");
    tx.commit().expect("committed");
    (engine, table)
}

fn state_behind(space: u32, word: [u8; 8]) -> u64 {
    let mut hasher = FixedState.build_hasher();
    hasher.write_u32(space);
    hasher.write(&word);
    hasher.finish()
}

/// Two texts of 15 characters whose entries in the index had one hash. An entry begins with a byte that says that the
/// text is not NULL; the next eight characters make up for what the hash is behind the first seven.
fn twins(space: u32) -> [String; 2] {
    let word = |begin: &[u8]| <[u8; 8]>::try_from(&[&[1], begin].concat()[..]).expect("8 bytes");
    let is_text = |word: u64| word.to_le_bytes().iter().all(u8::is_ascii_graphic);
    let text = |begin: &[u8], end: u64| String::from_utf8([begin, &end.to_le_bytes()].concat()).expect("ASCII");
    let (first, mut random) = (b"aaaaaaa", Random(1));
    loop {
        let second = format!("{:07}", random.below(10_000_000));
        let differ = state_behind(space, word(first)) ^ state_behind(space, word(second.as_bytes()));
        let ends = (0..1000).map(|_| u64::from_le_bytes(std::array::from_fn(|_| 33 + random.below(94) as u8)));
        if let Some(end) = ends.into_iter().find(|end| is_text(end ^ differ)) {
            return [text(first, end), text(second.as_bytes(), end ^ differ)];
        }
    }
}

fn set(engine: &Arc<Engine>, table: &Table, text: &str) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    assert_eq!(update(&mut tx, table, 1, 0, text).expect("updated"), Outcome::Done);
    tx.commit().expect("committed");
}

/// How many rows a scan of the index alone gives.
fn entries(engine: &Arc<Engine>, table: &Arc<Table>) -> usize {
    let tx = engine.begin(Isolation::ReadCommitted);
    let range = KeyRange::all();
    let mut scan = tx.index_scan(table, 0, range, Direction::Forward).index_only();
    let (mut batch, mut rows) = (RowBatch::new(), 0);
    while scan.next_batch(tx.reader(), &mut batch).expect("readable") {
        rows += batch.len();
    }
    rows
}

#[test]
fn an_entry_does_not_stay_for_another_with_its_hash() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, table) = create_texts(dir.path());
    let [stale, newest] = twins(table.indexes[0].space);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 0, &stale).expect("inserted");
    tx.commit().expect("committed");
    set(&engine, &table, "next");
    // An old snapshot keeps so many versions that they are counted without a latch.
    let mut reader = engine.begin(Isolation::RepeatableRead);
    reader.begin_statement();
    (0..40).for_each(|n| set(&engine, &table, &format!("number {n}")));
    set(&engine, &table, &newest);
    engine.vacuum().expect("purged");
    drop((reader, tx));
    engine.vacuum().expect("purged");
    assert_eq!(entries(&engine, &table), 1, "{stale} and {newest}");
    check(&engine);
    engine.shutdown().expect("shut down");
}
