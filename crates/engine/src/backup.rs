//! A consistent copy of the database while it runs, and a database made from one.
//!
//! The copy is the storage's: pages as they were at some moment, and the log that makes them one state. Opening what
//! was restored is ordinary recovery from the log; transactions that ran at the end of the copy are rolled back like
//! losers. A database on storage nodes is copied the same way, and its copy is one in files.

use crate::engine::Engine;
use crate::error::Result;
use std::path::Path;

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

    /// Makes a database in the directory `data`, which must be empty or missing, from a backup; all of it is verified.
    ///
    /// # Errors
    /// The backup is damaged or incomplete, or `data` is not empty.
    pub fn restore(backup: &Path, data: &Path) -> Result<()> {
        cenote_storage::restore(backup, data)?;
        Ok(())
    }
}
