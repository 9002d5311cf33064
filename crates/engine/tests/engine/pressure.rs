//! More data than memory, more undo than is kept.

use crate::common::*;
use cenote_engine::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().blocks() * 512);
    files.sum()
}

/// Pages come and go while several sessions write; then the same after a crash.
#[test]
fn data_larger_than_memory() {
    for memory in [MemoryKind::Cxl, MemoryKind::Dram] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), memory);
        create(&engine, "t", false);
        let load = |engine: &std::sync::Arc<Engine>, round: i32| {
            let sessions: Vec<_> = (0..3)
                .map(|n| {
                    let engine = engine.clone();
                    std::thread::spawn(move || {
                        let mut random = Random(round as u64 * 10 + n as u64);
                        let mut tx = engine.tx();
                        tx.begin(Isolation::ReadCommitted);
                        let table = tx.table("t").unwrap().unwrap();
                        tx.rollback().unwrap();
                        let mut model = BTreeMap::new();
                        for _ in 0..40 {
                            tx.begin(Isolation::ReadCommitted);
                            for _ in 0..150 {
                                let id = n * 1_000_000 + random.below(12_000) as i32;
                                let k = random.below(1000) as i32;
                                let text = "v".repeat(800 + random.below(400) as usize);
                                if !matches!(insert(&mut tx, &table, id, k, &text).unwrap(), Insert::Done) {
                                    update(&mut tx, &table, id, k, &text).unwrap();
                                }
                                model.insert(id, k);
                            }
                            tx.commit().unwrap();
                        }
                        model
                    })
                })
                .collect();
            sessions.into_iter().map(|s| s.join().unwrap()).collect::<Vec<_>>()
        };
        let mut expected = BTreeMap::new();
        load(&engine, 1).into_iter().for_each(|m| expected.extend(m));
        engine.halt();
        drop(engine);
        let engine = open(dir.path(), memory);
        load(&engine, 2).into_iter().for_each(|m| expected.extend(m));
        let tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t").unwrap().unwrap();
        let rows: BTreeMap<i32, i32> = all(&tx, &table).into_iter().map(|(id, k, _)| (id, k)).collect();
        assert!(rows == expected, "{} rows, {} expected", rows.len(), expected.len());
        assert!(engine.table_bytes(&table) > MEMORY);
        drop(tx);
        check(&engine);
        engine.shutdown().unwrap();
    }
}

/// Undo that is not needed gives its space on disk back, and a replay of the log does not miss it.
#[test]
fn undo_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in 0..50 {
        insert(&mut tx, &table, id, 0, &"x".repeat(1500)).unwrap();
    }
    tx.commit().unwrap();
    for round in 0..800 {
        tx.begin(Isolation::ReadCommitted);
        for id in 0..50 {
            update(&mut tx, &table, id, round % 3, &format!("{round:0>1500}")).unwrap();
        }
        tx.commit().unwrap();
        if round % 100 == 0 {
            engine.checkpoint().unwrap();
        }
    }
    drop(tx);
    engine.vacuum().unwrap();
    engine.checkpoint().unwrap();
    let used = allocated(&dir.path().join("data/spaces"));
    assert!(
        used < 30 << 20,
        "60 MiB of undo were written, {used} bytes of all spaces are left"
    );
    engine.halt();
    drop(engine);
    let engine = open(dir.path(), MemoryKind::Dram);
    let tx = engine.begin(Isolation::ReadCommitted);
    assert_eq!(all(&tx, &table).len(), 50);
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}

/// A measurement: how long purge takes for many updates of one indexed row, of which the first half are past while a
/// snapshot of the middle is in use, and the others when that has gone. CENOTE_UPDATES gives their number.
#[test]
#[ignore = "a measurement: cargo test --release -p cenote-engine --test engine hot_row -- --ignored --nocapture"]
fn purge_of_a_hot_row() {
    let updates: i32 = std::env::var("CENOTE_UPDATES").map_or(155_000, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), MemoryKind::Dram);
    (options.background, options.memory_size) = (false, 256 << 20);
    let engine = Engine::open(options).unwrap();
    let table = create(&engine, "t", false);
    let mut tx = engine.begin(Isolation::ReadCommitted);
    insert(&mut tx, &table, 1, 0, "").unwrap();
    tx.commit().unwrap();
    let mut reader = engine.tx();
    for n in 0..updates {
        if n % 100 == 0 {
            tx.begin(Isolation::ReadCommitted);
        }
        update(&mut tx, &table, 1, n, "").unwrap();
        if n % 100 == 99 || n + 1 == updates {
            tx.commit().unwrap();
        }
        if n == updates / 200 * 100 {
            reader.begin(Isolation::RepeatableRead);
            reader.begin_statement();
        }
    }
    for what in ["behind a snapshot of the middle", "behind all"] {
        let begun = std::time::Instant::now();
        let passed = engine.vacuum().unwrap();
        println!(
            "{passed} records of {updates} updates purged {what}: {:?}",
            begun.elapsed()
        );
        if reader.is_active() {
            reader.commit().unwrap();
        }
    }
    check(&engine);
    drop((tx, reader));
    engine.shutdown().unwrap();
}

/// A measurement: a sum over all rows by a snapshot, when it is taken and behind many updates. CENOTE_ROWS and
/// CENOTE_UPDATES give their numbers, CENOTE_MIB the memory, CENOTE_CUT_AFTER the milliseconds after which the ways to
/// old versions are cut short.
#[test]
#[ignore = "a measurement: cargo test --release -p cenote-engine --test engine old_snapshot -- --ignored --nocapture"]
fn sum_of_an_old_snapshot() {
    let number = |name, usual| std::env::var(name).map_or(usual, |n| n.parse::<u64>().unwrap());
    let (rows, updates) = (number("CENOTE_ROWS", 200_000), number("CENOTE_UPDATES", 2_000_000));
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), MemoryKind::Cxl);
    options.memory_size = number("CENOTE_MIB", 1 << 10) << 20;
    options.tuning.cut_after = cenote_base::rt::Nanos::from_millis(number("CENOTE_CUT_AFTER", 1_000));
    options.tuning.version_bytes = number("CENOTE_VERSION_BYTES", options.tuning.version_bytes);
    let engine = Engine::open(options).unwrap();
    let table = create(&engine, "t", false);
    let (mut tx, mut random) = (engine.begin(Isolation::ReadCommitted), Random(5));
    for id in 0..rows as i32 {
        insert(&mut tx, &table, id, 1, "some text of an ordinary row").unwrap();
    }
    tx.commit().unwrap();
    engine.vacuum().unwrap();
    let snapshot = || {
        let mut reader = engine.begin(Isolation::RepeatableRead);
        reader.begin_statement();
        reader
    };
    let reader = snapshot();
    // As the parts of a query that run on other threads.
    let held: Vec<_> = (0..number("CENOTE_HELD", 0)).map(|_| reader.reader().clone()).collect();
    let sum = |what: &str, reader: &Tx| {
        let sum = [false, true].map(|copies_leaves| {
            let times = [0; 5].map(|_| sum_of_rows(&table, reader, copies_leaves, rows));
            (times[0], times.into_iter().min().unwrap())
        });
        println!(
            "the sum over {rows} rows {what}: {:?}, by copies of leaves {:?}",
            sum[0], sum[1]
        );
    };
    sum("at first", &reader);
    let begun = std::time::Instant::now();
    for n in 0..updates {
        if n % 50 == 0 {
            tx.begin(Isolation::ReadCommitted);
        }
        let id = random.below(rows) as i32;
        update(
            &mut tx,
            &table,
            id,
            1,
            &format!("some text of an ordinary row {}", n % 9),
        )
        .unwrap();
        if n % 50 == 49 || n + 1 == updates {
            tx.commit().unwrap();
        }
    }
    println!("{updates} updates: {:?}", begun.elapsed());
    sum("behind them", &reader);
    std::thread::sleep(std::time::Duration::from_secs(5));
    sum("5 seconds later", &reader);
    sum("by a snapshot of now", &snapshot());
    drop((tx, held, reader));
    engine.shutdown().unwrap();
}

/// Time of this thread's processor that the sum over the second column takes, which is 1 in each row.
fn sum_of_rows(table: &Arc<Table>, reader: &Tx, copies_leaves: bool, rows: u64) -> std::time::Duration {
    let begun = processor_time();
    let mut scan = reader.scan(table, KeyRange::all(), Direction::Forward);
    if copies_leaves {
        scan = scan.without_keys();
    }
    let (mut batch, mut sum) = (RowBatch::new(), 0);
    while scan.next_batch(reader.reader(), &mut batch).unwrap() {
        let k = |i| match table.layout().column(batch.row(i), 1) {
            Ok(DatumRef::Int4(k)) => u64::try_from(k).unwrap(),
            other => panic!("{other:?}"),
        };
        sum += (0..batch.len()).map(k).sum::<u64>();
    }
    assert_eq!(sum, rows);
    processor_time() - begun
}

/// Processor time of this thread, of Linux, which counts it when the thread yields.
fn processor_time() -> std::time::Duration {
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    std::time::Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}
