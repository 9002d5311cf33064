//! A timeline: a stretch of the log without a gap. Where the archive cannot go on from where it ended, another begins:
//! the database was put back to an earlier state, or its log from there on is gone.
//!
//! ```text
//! contents of its object   u64 start  u64 microseconds since 1970  u32 bytes, why it begins
//! ```

use cenote_base::{Error, Lsn, Result};

use super::names;
use super::objects::Objects;
use super::piece::Piece;
use super::sealed::{Kind, seal, unseal};
use crate::codec::{Reader, Writer};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Timeline {
    pub database: u128,
    pub number: u32,
    /// Where its log begins.
    pub start: Lsn,
    /// Microseconds since 1970.
    pub began: u64,
    /// Why it began.
    pub why: String,
}

impl Timeline {
    /// The numbers of a database's timelines, in order.
    ///
    /// # Errors
    /// Those of [`Objects::list`].
    pub fn numbers(objects: &dyn Objects, database: u128) -> Result<Vec<u32>> {
        let seen = objects.list(&names::timelines(database))?;
        Ok(seen.iter().filter_map(|seen| names::number_of(&seen.name)).collect())
    }

    /// One that is there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is gone or damaged; those of [`Objects::get`].
    pub fn read(objects: &dyn Objects, database: u128, number: u32) -> Result<Timeline> {
        let name = names::timeline(database, number);
        let contents = unseal(Kind::Timeline, database, &name, &need(objects, &name)?)?;
        let mut reader = Reader::new(&contents, &name);
        let timeline = Timeline {
            database,
            number,
            start: reader.lsn()?,
            began: reader.u64()?,
            why: String::from_utf8_lossy(reader.counted()?).into_owned(),
        };
        reader.end()?;
        Ok(timeline)
    }

    /// Makes it: false if there is one of this number.
    ///
    /// # Errors
    /// Those of [`Objects::put_new`].
    pub fn make(&self, objects: &dyn Objects) -> Result<bool> {
        let mut writer = Writer::default();
        writer.lsn(self.start).u64(self.began).counted(self.why.as_bytes());
        let name = names::timeline(self.database, self.number);
        objects.put_new(&name, &seal(Kind::Timeline, self.database, &writer.0)?)
    }

    /// Where the pieces of its log begin, in order, with the size of each object.
    ///
    /// # Errors
    /// Those of [`Objects::list`].
    pub fn pieces(&self, objects: &dyn Objects) -> Result<Vec<(Lsn, u64)>> {
        let seen = objects.list(&names::log(self.database, self.number))?;
        let starts = seen
            .iter()
            .filter_map(|seen| Some((names::start_of(&seen.name)?, seen.bytes)));
        Ok(starts.collect())
    }

    /// Those that begin behind `after`.
    ///
    /// # Errors
    /// Those of [`Objects::list_behind`].
    pub fn pieces_behind(&self, objects: &dyn Objects, after: Lsn) -> Result<Vec<(Lsn, u64)>> {
        let name = names::piece(self.database, self.number, after);
        let seen = objects.list_behind(&names::log(self.database, self.number), &name)?;
        let starts = seen
            .iter()
            .filter_map(|seen| Some((names::start_of(&seen.name)?, seen.bytes)));
        Ok(starts.collect())
    }

    /// A piece of its log.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is gone or damaged; those of [`Objects::get`].
    pub fn piece(&self, objects: &dyn Objects, start: Lsn) -> Result<Piece> {
        let bytes = need(objects, &names::piece(self.database, self.number, start))?;
        Piece::unseal(self.database, self.number, start, &bytes)
    }
}

/// An object that has to be there.
///
/// # Errors
/// [`Error::Corrupt`] if it is gone; those of [`Objects::get`].
pub(super) fn need(objects: &dyn Objects, name: &str) -> Result<Vec<u8>> {
    let found = objects.get(name)?;
    found.ok_or_else(|| Error::corrupt(format!("the object {name} is gone from {}", objects.place())))
}
