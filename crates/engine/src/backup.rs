//! A consistent copy of the database while it runs, and a database made from one.
//!
//! The copy is the storage's: pages as they were at some moment, and the log that makes them one state. Opening what
//! was restored is ordinary recovery from the log; transactions that ran at the end of the copy are rolled back like
//! losers. A database on storage nodes is copied the same way, and its copy is one in files.

use crate::engine::Engine;
use crate::error::Result;
use cenote_storage::archive::{Archiver, BaseReport, Began, Objects, Times, Turn};
use std::path::Path;
use std::sync::Arc;

impl Engine {
    /// Writes a consistent copy of the database to the directory `to`, which must be empty or missing, while running.
    /// All that was acknowledged before the call is in it.
    ///
    /// # Errors
    /// The directory is not empty, the disk is full or fails, or the log has failed.
    pub fn backup(&self, to: &Path) -> Result<()> {
        self.refuse_reader("a backup at a reader")?;
        // A short log makes a short copy and a quick start on it; the copy is as good without.
        self.pool.checkpoint()?;
        self.storage.0.backup(to)?;
        Ok(())
    }

    /// What keeps the log in an archive, from where that ends on; or, for a reason, in a new timeline.
    ///
    /// # Errors
    /// Those of [`Archiver::begin`]; this is a reader.
    pub fn archiver(
        &self,
        objects: Arc<dyn Objects>,
        times: Arc<Times>,
        anew: Option<&str>,
    ) -> cenote_base::Result<(Archiver, Began)> {
        if self.is_reader() {
            return Err(cenote_base::Error::Invalid("a reader has nothing to archive".into()));
        }
        if anew.is_some() {
            // A timeline begins behind what may be damaged of the log.
            self.pool.flush_all()?;
            self.pool.checkpoint()?;
        }
        Archiver::begin(self.storage.0.clone(), objects, times, anew)
    }

    /// Notes what of this database is durable now.
    pub fn note_time(&self, times: &Times) {
        times.note(self.storage.0.log());
    }

    /// Takes a base of this database for its archive: see [`Archiver::base`].
    ///
    /// # Errors
    /// Those of a checkpoint and of [`Archiver::base`].
    pub fn archive_base(&self, archiver: &mut Archiver, turn: &Turn<'_>) -> cenote_base::Result<BaseReport> {
        // It may take long.
        archiver.ship()?;
        // All that is dirty now: the log from before is not needed for this base.
        self.pool.flush_all()?;
        self.pool.checkpoint()?;
        archiver.base(turn)
    }

    /// Makes a database in the directory `data`, which must be empty or missing, from a backup; all of it is verified.
    ///
    /// # Errors
    /// The backup is damaged or incomplete, or `data` is not empty.
    pub fn restore(backup: &Path, data: &Path) -> Result<()> {
        cenote_storage::restore(backup, data)?;
        Ok(())
    }
}
