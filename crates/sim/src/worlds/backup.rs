//! Backups under load: a copy is taken while sessions write, restored beside, opened and read. What it holds is kept
//! until the history is settled: it has to be exactly what had its place in the log below the copy's end.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_engine::{Engine, EngineOptions, MemoryKind, Result};

use super::contents::found;
use super::shared::{BackupCopy, Shared};
use crate::check::durable;
use crate::check::{History, Key};

/// Bytes of memory of a database that is made from a copy.
const MEMORY: u64 = 8 << 20;

/// Takes a copy, makes a database of it, and notes what is in there.
pub(super) fn back_up(shared: &Arc<Shared>, engine: &Arc<Engine>) -> Result<()> {
    let number = shared.tally().get("backups begun");
    shared.befalls("backups begun");
    let (copy, data) = (
        PathBuf::from(format!("/backup-{number}")),
        format!("/restored-{number}"),
    );
    engine.checkpoint()?;
    let report = engine.buffer().storage().backup(&copy)?;
    Engine::restore(&copy, data.as_ref())?;
    let mut options = EngineOptions::new(data, MemoryKind::Dram, MEMORY);
    options.background = false;
    let restored = Engine::open(options)?;
    restored.roll_back_losers()?;
    match found(shared, &restored)? {
        Ok(rows) => shared.backed_up(BackupCopy {
            lsn: report.lsn.raw(),
            rows,
        }),
        Err(problem) => shared.fail(format!("backup {number}: {problem}")),
    }
    let problems = restored.check()?.problems;
    if !problems.is_empty() {
        shared.fail(format!("backup {number}: check: {problems:#?}"));
    }
    restored.halt();
    shared.count("backups");
    Ok(())
}

/// What is wrong with the copies that were taken of a history that is settled now.
pub(super) fn judge(history: &History, copies: Vec<BackupCopy>) -> Vec<String> {
    let wrong = |copy: BackupCopy| {
        let expected = durable::rows_at(history, copy.lsn);
        let keys = expected.keys().chain(copy.rows.keys());
        let differs = |key: &&Key| expected.get(key) != copy.rows.get(key);
        let key = keys.filter(differs).min()?;
        Some(format!(
            "the backup of everything below {} has {:?} at {key:?}, expected {:?}",
            copy.lsn,
            copy.rows.get(key),
            expected.get(key)
        ))
    };
    copies.into_iter().filter_map(wrong).collect()
}
