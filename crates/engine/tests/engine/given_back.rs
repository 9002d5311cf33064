//! Table files give space back.

use crate::common::*;
use cenote_engine::*;
use std::path::Path;
use std::sync::Arc;

const ROWS: i32 = 3_000;

/// Small runs are given back, too.
fn small_runs(dir: &Path, memory: MemoryKind) -> Arc<Engine> {
    let mut options = options(dir, memory);
    options.background = false;
    options.tuning.give_back_pages = 8;
    Engine::open(options).expect("the database opens")
}

/// Bytes that the spaces of the table take on the disk.
fn on_disk(dir: &Path, table: &Table) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let spaces = std::iter::once(table.space).chain(table.indexes.iter().map(|index| index.space));
    let path = |space: u32| dir.join(format!("data/spaces/{space:08x}.pages"));
    spaces
        .map(|space| std::fs::metadata(path(space)).unwrap().blocks() * 512)
        .sum()
}

fn fill(engine: &Arc<Engine>, table: &Table, ids: impl Iterator<Item = i32>) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in ids {
        let text = "x".repeat(if id % 3 == 0 { 20_000 } else { 1_000 });
        insert(&mut tx, table, id, id, &text).unwrap();
    }
    tx.commit().unwrap();
}

fn clear(engine: &Arc<Engine>, table: &Table, ids: impl Iterator<Item = i32>) {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for id in ids {
        assert_eq!(delete(&mut tx, table, id).unwrap(), Outcome::Done);
    }
    tx.commit().unwrap();
}

fn settle(engine: &Arc<Engine>) {
    engine.buffer().storage().log().flush_all().unwrap();
    while engine.vacuum().unwrap() > 0 {}
    engine.checkpoint().unwrap();
}

fn count(engine: &Arc<Engine>, table: &Arc<Table>) -> usize {
    all(&engine.begin(Isolation::ReadCommitted), table).len()
}

/// A table's file kept the size of its best days: 40 MB for an empty table. Its blocks go when its rows go, wherever in
/// the file they lay, the table says so, and the room is taken again when it is needed; a crash in between loses
/// nothing.
#[test]
fn a_table_file_shrinks_with_its_table() {
    for memory in [MemoryKind::Dram, MemoryKind::Cxl] {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = small_runs(dir.path(), memory);
        let mut table = create(&engine, "t", false);
        fill(&engine, &table, 0..ROWS);
        settle(&engine);
        let (full, named) = (on_disk(dir.path(), &table), engine.table_bytes(&table));
        assert!(full > 30 << 20, "{full} bytes on disk");
        // The older two thirds go.
        clear(&engine, &table, 0..ROWS * 2 / 3);
        settle(&engine);
        check(&engine);
        let part = on_disk(dir.path(), &table);
        assert!(
            part < full / 2,
            "{part} of {full} bytes on disk with a third of the rows"
        );
        assert!(engine.table_bytes(&table) < named / 2, "the table's size");
        // They come again: into the same file, which takes its blocks again.
        fill(&engine, &table, 0..ROWS * 2 / 3);
        check(&engine);
        engine.halt();
        drop((engine, table));
        engine = small_runs(dir.path(), memory);
        table = engine.begin(Isolation::ReadCommitted).table("t").unwrap().unwrap();
        assert_eq!(count(&engine, &table), ROWS as usize);
        settle(&engine);
        check(&engine);
        assert!(on_disk(dir.path(), &table) < full + full / 4);
        clear(&engine, &table, 0..ROWS);
        settle(&engine);
        let empty = on_disk(dir.path(), &table);
        assert!(empty < full / 10, "{empty} of {full} bytes on disk with no rows");
        engine.halt();
        drop((engine, table));
        engine = small_runs(dir.path(), memory);
        table = engine.begin(Isolation::ReadCommitted).table("t").unwrap().unwrap();
        assert_eq!(count(&engine, &table), 0);
        check(&engine);
        engine.shutdown().unwrap();
    }
}

/// Blocks go one by one, and after a power cut a part of a page stood before zeros: the check called a page damaged
/// that is made anew before it is read. A page that rows are on is damage still.
#[test]
fn half_a_page_that_was_given_back_is_no_damage() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let engine = small_runs(dir.path(), MemoryKind::Dram);
    let table = create(&engine, "t", false);
    fill(&engine, &table, 0..ROWS);
    clear(&engine, &table, 0..ROWS * 2 / 3);
    settle(&engine);
    engine.buffer().flush_all().unwrap();
    let path = dir.path().join(format!("data/spaces/{:08x}.pages", table.space));
    let pages = std::fs::read(&path).unwrap();
    let is_gone = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let mut numbered = pages.chunks(16 << 10).enumerate();
    let (gone, _) = numbered
        .by_ref()
        .find(|(_, page)| is_gone(page))
        .expect("a page given back");
    let (used, _) = numbered.rfind(|(_, page)| !is_gone(page)).expect("a page with rows");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (page, problems) in [(gone, 0), (used, 1)] {
        file.write_all_at(&[7; 4096], page as u64 * (16 << 10)).unwrap();
        let found = engine.check().unwrap().problems;
        assert_eq!(found.len(), problems, "page {page}: {found:#?}");
    }
    engine.halt();
}

/// Rows come and go, and the process dies now and then: the rows are those that were committed, each page is accounted
/// for.
#[test]
fn spaces_that_give_back_keep_what_is_theirs() {
    for seed in 0..6 {
        let random = &mut Random(seed);
        let memory = if seed % 2 == 0 {
            MemoryKind::Dram
        } else {
            MemoryKind::Cxl
        };
        let dir = tempfile::tempdir().unwrap();
        let mut engine = small_runs(dir.path(), memory);
        let mut table = create(&engine, "t", false);
        let mut there = vec![false; 400];
        for turn in 0..12 {
            let from = random.below(300) as usize;
            let range = from..from + 1 + random.below(100) as usize;
            let keep = random.below(5) as i32;
            let chosen = |now: bool| range.clone().filter(move |id| *id as i32 % 5 != keep || now);
            let (out, come): (Vec<_>, Vec<_>) = chosen(turn % 2 == 0).partition(|id| there[*id]);
            clear(&engine, &table, out.iter().map(|id| *id as i32));
            fill(&engine, &table, come.iter().map(|id| *id as i32));
            out.iter().for_each(|id| there[*id] = false);
            come.iter().for_each(|id| there[*id] = true);
            if random.below(2) == 0 {
                engine.vacuum().unwrap();
            }
            if random.below(3) == 0 {
                engine.checkpoint().unwrap();
            }
            if random.below(3) == 0 {
                engine.halt();
                drop((engine, table));
                engine = small_runs(dir.path(), memory);
                table = engine.begin(Isolation::ReadCommitted).table("t").unwrap().unwrap();
            }
            let tx = engine.begin(Isolation::ReadCommitted);
            let found: Vec<_> = all(&tx, &table).into_iter().map(|(id, ..)| id as usize).collect();
            let expected: Vec<_> = (0..there.len()).filter(|id| there[*id]).collect();
            assert_eq!(found, expected, "seed {seed}, turn {turn}");
            drop(tx);
            let report = engine.check().unwrap();
            assert!(
                report.problems.is_empty(),
                "seed {seed}, turn {turn}: {:#?}",
                report.problems
            );
        }
        engine.shutdown().unwrap();
    }
}
