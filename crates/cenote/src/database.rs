//! Opening, checking and copying the database that settings mean.

use crate::config::Settings;
use cenote_engine::{Engine, EngineOptions, Error, Result};
use std::path::Path;
use std::sync::Arc;

/// Opens the database, making it if it is new.
pub fn open(settings: &Settings) -> Result<Arc<Engine>> {
    Engine::open(EngineOptions {
        data: settings.data.clone(),
        memory: settings.memory.into(),
        memory_size: settings.memory_size.bytes(),
        region: settings.region.clone(),
        survive: settings.survive.into(),
    })
}

/// Opens the database; an error if there is none.
pub fn open_existing(
    settings: &Settings,
) -> std::result::Result<Arc<Engine>, Box<dyn std::error::Error + Send + Sync>> {
    let is_empty = std::fs::read_dir(&settings.data).map(|mut entries| entries.next().is_none());
    if is_empty.unwrap_or(true) {
        let data = settings.data.display();
        return Err(format!("there is no database in {data}; name its directory with --data, or make one with `cenote run --data {data}`").into());
    }
    Ok(open(settings)?)
}

/// Makes a data directory from a backup.
pub fn restore(_from: &Path, _data: &Path) -> Result<()> {
    Err(Error::Unsupported("restore".into()))
}
