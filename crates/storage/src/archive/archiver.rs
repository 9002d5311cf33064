//! Keeps the log of a database in its archive, as it becomes durable.
//!
//! ```text
//!   begins ──▶ the newest timeline ends in this log? ── yes ──▶ goes on behind it
//!                                                    └─ no ───▶ makes the next timeline, which needs a base
//!   ship ────▶ whole groups up to what is durable ──▶ a piece, under the position where the one before ended
//!                                                    └─ it is there already: the same bytes? goes on behind it
//! ```
//!
//! The log keeps what is not archived, and a little before, by which the next start finds that the archive is of this
//! log ([`Log::keep_from`](crate::Log::keep_from)).

use std::sync::Arc;

use cenote_base::{Error, Lsn, Result};

use super::base::Base;
use super::names;
use super::objects::Objects;
use super::piece::{Piece, whole_groups};
use super::timeline::Timeline;
use super::times::Times;
use crate::redo::MAX_GROUP;
use crate::storage::Storage;

/// The most that a piece has of the log: several of the longest groups.
pub(super) const PIECE_MAX: usize = 16 << 20;
/// Bytes before the archive's end that the log keeps, and that are compared: of so many pieces at most.
const COMPARED: u64 = 64 << 10;
const PIECES_COMPARED: usize = 16;

/// See the module. One thread has it.
pub struct Archiver {
    pub(super) storage: Arc<Storage>,
    pub(super) objects: Arc<dyn Objects>,
    pub(super) timeline: Timeline,
    pub(super) times: Arc<Times>,
    /// The archive has the log up to here.
    at: Lsn,
    last_base: Option<u64>,
}

/// What is done now and then while something takes long: whether to go on.
pub type Turn<'a> = dyn Fn(&mut Archiver) -> Result<bool> + 'a;

/// How an archiver began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Began {
    /// It goes on with a timeline.
    GoesOn,
    /// It has made a timeline, for this reason.
    Anew(String),
}

/// A piece that was put into the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shipped {
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the object; zero if another server had put it there.
    pub object_bytes: u64,
}

impl Archiver {
    /// Finds the timeline that this log continues, or makes one. With a reason `anew` it makes one in any case.
    ///
    /// # Errors
    /// Those of the object store; those of reading the log, where it does not answer; [`Error::Revoked`] if another
    /// server has the database.
    pub fn begin(
        storage: Arc<Storage>,
        objects: Arc<dyn Objects>,
        times: Arc<Times>,
        anew: Option<&str>,
    ) -> Result<(Archiver, Began)> {
        storage.log().keep_from(Lsn::ZERO);
        let database = storage.control().get().database;
        let newest = Timeline::numbers(&*objects, database)?.pop();
        let Some(number) = newest else {
            return Self::anew(storage, objects, times, 1, anew.unwrap_or("it is the first"));
        };
        let found = match anew {
            Some(why) => Err(Error::Mismatch(why.to_owned())),
            None => continued(&storage, &*objects, database, number),
        };
        let (timeline, last) = match found {
            Err(Error::Mismatch(why) | Error::Corrupt(why)) => {
                return Self::anew(storage, objects, times, number + 1, &why);
            }
            found => found?,
        };
        let sample = last.as_ref().and_then(|piece| piece.samples.last().copied());
        times.begin(sample.unwrap_or_default());
        let last_base = Base::names(&*objects, database, number)?
            .last()
            .map(|name| name.seconds);
        let archiver = Archiver {
            at: last.as_ref().map_or(timeline.start, Piece::end),
            storage,
            objects,
            timeline,
            times,
            last_base,
        };
        archiver.keep();
        Ok((archiver, Began::GoesOn))
    }

    fn anew(
        storage: Arc<Storage>,
        objects: Arc<dyn Objects>,
        times: Arc<Times>,
        number: u32,
        why: &str,
    ) -> Result<(Archiver, Began)> {
        // One that has lost the database sees less of the log than the archive has.
        storage.check_owner()?;
        // The log keeps everything from before this is read.
        let start = match storage.nodes() {
            None => storage.control().get().checkpoint,
            Some(_) => storage.log().durable(),
        };
        let timeline = Timeline {
            database: storage.control().get().database,
            number,
            start,
            began: times.now(),
            why: why.to_owned(),
        };
        if !timeline.make(&*objects)? {
            return Err(Error::Busy(format!(
                "another server has just made timeline {number} in {}",
                objects.place()
            )));
        }
        let archiver = Archiver {
            storage,
            objects,
            timeline,
            times,
            at: start,
            last_base: None,
        };
        archiver.keep();
        Ok((archiver, Began::Anew(why.to_owned())))
    }

    /// The log before this is not needed any more.
    fn keep(&self) {
        self.storage
            .log()
            .keep_from(Lsn::from_raw(self.at.raw().saturating_sub(COMPARED)));
    }

    /// The number of its timeline.
    pub fn timeline(&self) -> u32 {
        self.timeline.number
    }

    /// When the last base of the timeline was begun, in seconds since 1970: without one nothing can be restored of it.
    pub fn last_base(&self) -> Option<u64> {
        self.last_base
    }

    pub(super) fn note_base(&mut self, seconds: u64) {
        self.last_base = Some(seconds);
    }

    /// The archive has the log up to here.
    pub fn archived(&self) -> Lsn {
        self.at
    }

    /// Bytes that are durable, and not archived.
    pub fn waiting(&self) -> u64 {
        let durable = self.storage.log().durable();
        durable.raw().saturating_sub(self.at.raw())
    }

    /// That the archive is as this archiver left it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if its timeline was removed; those of the object store.
    pub(super) fn check_timeline(&self) -> Result<()> {
        match Timeline::read(&*self.objects, self.timeline.database, self.timeline.number) {
            Err(Error::Corrupt(why)) => Err(Error::Mismatch(why)),
            found => found.map(drop),
        }
    }

    /// Puts a piece of what is durable now into the archive; `None` if all of it is there.
    ///
    /// # Errors
    /// Those of the object store, and of a log that does not answer: nothing has changed, and it may be tried again.
    /// [`Error::Past`] if the log from there on is gone, [`Error::Mismatch`] if the archive has another, or the log is
    /// damaged: the next archiver is to make a timeline.
    pub fn ship(&mut self) -> Result<Option<Shipped>> {
        let durable = self.times.note(self.storage.log()).lsn;
        if durable <= self.at {
            return Ok(None);
        }
        let groups = self.groups(durable)?;
        let end = self.at.advance(groups.len() as u64);
        let piece = Piece {
            timeline: self.timeline.number,
            start: self.at,
            samples: self.times.between(self.at, end),
            control: self.storage.control().record(),
            groups,
        };
        let bytes = piece.seal(self.timeline.database)?;
        let name = names::piece(self.timeline.database, self.timeline.number, self.at);
        let object_bytes = match self.objects.put_new(&name, &bytes)? {
            true => bytes.len() as u64,
            false => return self.adopt().map(Some),
        };
        let log_bytes = end.since(self.at);
        self.go_to(end);
        Ok(Some(Shipped {
            log_bytes,
            object_bytes,
        }))
    }

    fn go_to(&mut self, end: Lsn) {
        assert!(self.at < end, "a piece is not empty");
        self.at = end;
        self.times.forget(end);
        self.keep();
    }

    /// Whole groups from where the archive ends on, verified.
    fn groups(&self, durable: Lsn) -> Result<Vec<u8>> {
        let mut groups = vec![0; durable.since(self.at).min(PIECE_MAX as u64) as usize];
        let read = read(&self.storage, self.at, &mut groups)?;
        groups.truncate(read);
        if read == 0 {
            return Err(Error::Past(format!(
                "the log at {} is gone, before it was archived",
                self.at
            )));
        }
        let whole = whole_groups(self.at, &groups).map_err(|error| Error::Mismatch(error.to_string()))?;
        groups.truncate(whole);
        Ok(groups)
    }

    /// There is a piece that begins where this archiver's next one does: an answer was lost, or another server that had
    /// the database put it there.
    fn adopt(&mut self) -> Result<Shipped> {
        let piece = self.timeline.piece(&*self.objects, self.at);
        let piece = piece.map_err(|error| match error {
            Error::Corrupt(why) => Error::Mismatch(why),
            other => other,
        })?;
        require_same(&self.storage, self.timeline.number, piece.end(), &piece.groups)?;
        self.times.begin(piece.samples.last().copied().unwrap_or_default());
        let log_bytes = piece.groups.len() as u64;
        self.go_to(piece.end());
        Ok(Shipped {
            log_bytes,
            object_bytes: 0,
        })
    }
}

/// Bytes of the log: none if it does not go back so far.
fn read(storage: &Storage, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
    match storage.log().read_durable(at, buffer) {
        // Nodes say so of what they do not keep; those of an older version say that it is corrupt.
        Err(Error::Past(_) | Error::Corrupt(_)) if storage.nodes().is_some() => Ok(0),
        read => read,
    }
}

/// A timeline, and its last piece, that ends in this log.
///
/// # Errors
/// [`Error::Mismatch`] if it does not; [`Error::Corrupt`] if that cannot be told; those of the object store and the
/// log.
fn continued(
    storage: &Storage,
    objects: &dyn Objects,
    database: u128,
    number: u32,
) -> Result<(Timeline, Option<Piece>)> {
    let timeline = Timeline::read(objects, database, number)?;
    // A long timeline is not listed as a whole, if it need not be.
    let base = Base::names(objects, database, number)?.pop();
    let mut starts = base.map_or(Ok(Vec::new()), |base| timeline.pieces_behind(objects, base.from))?;
    if starts.is_empty() {
        starts = timeline.pieces(objects)?;
    }
    let (mut last, mut bytes, mut end) = (None, Vec::new(), timeline.start);
    // An idle server's pieces are small, and alike.
    for (start, _) in starts.iter().rev().take(PIECES_COMPARED) {
        let piece = timeline.piece(objects, *start)?;
        bytes.splice(0..0, piece.groups.iter().copied());
        if last.is_none() {
            (end, last) = (piece.end(), Some(piece));
        }
        if bytes.len() as u64 >= COMPARED {
            break;
        }
    }
    bytes.drain(..bytes.len().saturating_sub(COMPARED as usize));
    match last.is_none() {
        true => require_group(storage, number, end)?,
        false => require_same(storage, number, end, &bytes)?,
    }
    Ok((timeline, last))
}

/// That this log has these bytes before `end`.
fn require_same(storage: &Storage, number: u32, end: Lsn, theirs: &[u8]) -> Result<()> {
    require_end(storage, number, end)?;
    let at = Lsn::from_raw(end.raw() - theirs.len() as u64);
    let mut ours = vec![0; theirs.len()];
    if read(storage, at, &mut ours)? < ours.len() {
        return Err(Error::Mismatch(format!(
            "the log where timeline {number} ends, at {end}, is gone"
        )));
    }
    match ours == theirs {
        true => Ok(()),
        false => Err(Error::Mismatch(format!(
            "timeline {number} has another log up to {end}: this database is a copy, or was put back"
        ))),
    }
}

/// That this log can go on from `at`, where nothing says which log it is of.
fn require_group(storage: &Storage, number: u32, at: Lsn) -> Result<()> {
    require_end(storage, number, at)?;
    let mut groups = vec![0; storage.log().durable().since(at).min(2 * MAX_GROUP as u64) as usize];
    let read = read(storage, at, &mut groups)?;
    match groups.is_empty() || whole_groups(at, &groups[..read]).is_ok_and(|whole| whole > 0) {
        true => Ok(()),
        false => Err(Error::Mismatch(format!(
            "the log where timeline {number} ends, at {at}, is gone"
        ))),
    }
}

fn require_end(storage: &Storage, number: u32, end: Lsn) -> Result<()> {
    let durable = storage.log().durable();
    match end <= durable {
        true => Ok(()),
        false => Err(Error::Mismatch(format!(
            "timeline {number} has the log up to {end}, and this database, up to {durable}, is an earlier state"
        ))),
    }
}
