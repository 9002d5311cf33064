//! How long a start takes.

use crate::common::*;
use cenote_engine::*;
use std::time::Instant;

const TABLES: usize = 10_000;

/// Prints how long the start after a kill takes with many tables: the budget is 100 ms in the release profile, on an
/// idle machine. `cargo test --release -p cenote-engine --test engine start -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn start_with_10_000_tables() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = options(dir.path(), MemoryKind::Cxl);
    settings.memory_size = 1 << 30;
    let mut engine = Engine::open(settings.clone()).unwrap();
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for table in 0..TABLES {
        tx.create_table(new_table(&format!("t{table}"), false)).unwrap();
        if table % 50 == 49 {
            tx.commit().unwrap();
            tx.begin(Isolation::ReadCommitted);
        }
    }
    tx.rollback().unwrap();
    drop(tx);
    for _ in 0..7 {
        engine.halt();
        drop(engine);
        let begun = Instant::now();
        engine = Engine::open(settings.clone()).unwrap();
        let took = begun.elapsed();
        let report = engine.recovery_report();
        println!(
            "{TABLES} tables: ready after {took:?} ({:.1} ms by its own report)",
            report.duration_ms
        );
    }
    let tx = engine.begin(Isolation::ReadCommitted);
    assert!(tx.table("t9999").unwrap().is_some());
    drop(tx);
    engine.shutdown().unwrap();
}
