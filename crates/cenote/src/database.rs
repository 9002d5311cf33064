//! Opening, checking and copying the database that settings mean.

use crate::config::{Memory, Settings};
use crate::regions;
use cenote_base::units::ByteSize;
use cenote_engine::{Engine, EngineOptions, Error, Result};
use std::path::Path;
use std::sync::Arc;

/// What recovery did at start, in the words of `cenote_recovery`.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// `clean`, `instant` or `log`.
    pub mode: String,
    /// Frames kept as they were.
    pub frames_kept: u64,
    /// Frames rebuilt from redo.
    pub frames_repaired: u64,
    /// Frames discarded.
    pub frames_discarded: u64,
    /// Redo read.
    pub redo_bytes_read: u64,
    /// Transactions of the former process rolled back so far.
    pub transactions_rolled_back: u64,
    /// Until ready.
    pub duration_ms: f64,
    /// A line for each page that was rebuilt, with its cause, and whatever else is worth a line.
    pub notes: Vec<String>,
}

/// What recovery did.
pub fn recovery(engine: &Engine) -> Recovery {
    let report = engine.recovery_report();
    Recovery {
        mode: report.mode,
        frames_kept: report.frames_kept,
        frames_repaired: report.frames_repaired,
        frames_discarded: report.frames_discarded,
        redo_bytes_read: report.redo_bytes_read,
        transactions_rolled_back: report.transactions_rolled_back,
        duration_ms: report.duration_ms,
        notes: report.notes,
    }
}

/// Opens the database, making it if it is new.
pub fn open(settings: &Settings) -> Result<Arc<Engine>> {
    // Absolute, since the region names it for those who look at regions from elsewhere.
    let data = std::path::absolute(&settings.data).unwrap_or_else(|_| settings.data.clone());
    let mut options = EngineOptions::new(data, settings.memory.into(), settings.memory_size.bytes());
    options.region = settings.region.clone();
    options.survive = settings.survive.into();
    Engine::open(options)
}

/// Opens the database; an error if there is none. Unless a size is asked for, a region that is there is taken as large as it
/// is, so that looking at a database does not cost its warmth.
pub fn open_existing(
    settings: &Settings,
) -> std::result::Result<Arc<Engine>, Box<dyn std::error::Error + Send + Sync>> {
    let is_empty = std::fs::read_dir(&settings.data).map(|mut entries| entries.next().is_none());
    if is_empty.unwrap_or(true) {
        let data = settings.data.display();
        return Err(format!("there is no database in {data}; name its directory with --data, or make one with `cenote run --data {data}`").into());
    }
    let kept =
        (settings.memory == Memory::Cxl && !settings.memory_size_given).then(|| regions::length_for(&settings.data));
    let memory_size = kept.flatten().map_or(settings.memory_size, ByteSize);
    Ok(open(&Settings {
        memory_size,
        ..settings.clone()
    })?)
}

/// Makes a data directory from a backup.
pub fn restore(_from: &Path, _data: &Path) -> Result<()> {
    Err(Error::Unsupported("restore".into()))
}
