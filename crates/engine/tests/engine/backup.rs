//! A copy taken while sessions write is one state of the database.

use crate::common::*;
use cenote_engine::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

#[test]
fn a_backup_taken_under_load_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), MemoryKind::Cxl);
    let table = create(&engine, "t", false);
    let (stop, noted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
    let writer = {
        let (engine, table, stop, noted) = (engine.clone(), table.clone(), stop.clone(), noted.clone());
        std::thread::spawn(move || {
            let mut tx = engine.tx();
            for n in 1.. {
                tx.begin(Isolation::ReadCommitted);
                for part in 0..5 {
                    insert(&mut tx, &table, n * 5 + part, n, &"x".repeat(300)).unwrap();
                }
                if n > 3 {
                    delete(&mut tx, &table, (n - 3) * 5).unwrap();
                }
                tx.commit().unwrap();
                noted.store(n, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    return n;
                }
            }
            unreachable!()
        })
    };
    while noted.load(Ordering::SeqCst) < 300 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let before = noted.load(Ordering::SeqCst);
    engine.backup(&dir.path().join("copy")).unwrap();
    stop.store(true, Ordering::SeqCst);
    let last = writer.join().unwrap();
    assert!(engine.backup(&dir.path().join("copy")).is_err(), "not empty");
    engine.shutdown().unwrap();
    drop(engine);

    let restored = dir.path().join("restored");
    Engine::restore(&dir.path().join("copy"), &restored.join("data")).unwrap();
    let engine = open(&restored, MemoryKind::Dram);
    let tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.table("t").unwrap().unwrap();
    let rows = all(&tx, &table);
    let newest = rows.iter().map(|r| r.1).max().unwrap();
    assert!(before <= newest && newest <= last, "{before} {newest} {last}");
    let expected = (newest * 5) - (newest - 3);
    assert_eq!(rows.len() as i32, expected, "half a transaction");
    drop(tx);
    check(&engine);
    engine.shutdown().unwrap();
}
