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

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_base::{Error, Lsn, Result};

use super::base::Base;
use super::names;
use super::objects::Objects;
use super::piece::{Piece, Sample, whole_groups};
use super::timeline::Timeline;
use crate::storage::Storage;

/// The most that a piece has of the log: several of the longest groups.
pub(super) const PIECE_MAX: usize = 16 << 20;
/// Bytes before the archive's end that the log keeps, and that are compared.
const COMPARED: u64 = 64 << 10;
/// Samples of time that wait for their piece.
const SAMPLES_MAX: usize = 16 << 10;

/// See the module. One thread has it.
pub struct Archiver {
    pub(super) storage: Arc<Storage>,
    pub(super) objects: Arc<dyn Objects>,
    pub(super) timeline: Timeline,
    /// The archive has the log up to here.
    at: Lsn,
    samples: VecDeque<Sample>,
    last: Sample,
    last_base: Option<u64>,
}

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
    /// Finds the timeline that this log continues, or makes one. `micros` is the time: microseconds since 1970.
    ///
    /// # Errors
    /// Those of the object store; those of reading the log, where it does not answer; [`Error::Revoked`] if another
    /// server has the database.
    pub fn begin(storage: Arc<Storage>, objects: Arc<dyn Objects>, micros: u64) -> Result<(Archiver, Began)> {
        storage.log().keep_from(Lsn::ZERO);
        let database = storage.control().get().database;
        let newest = Timeline::numbers(&*objects, database)?.pop();
        let Some(number) = newest else {
            return Self::anew(storage, objects, 1, "it is the first", micros);
        };
        let timeline = Timeline::read(&*objects, database, number)?;
        let last = timeline.pieces(&*objects)?.pop();
        let last = match last.map(|(start, _)| timeline.piece(&*objects, start)).transpose() {
            Err(Error::Corrupt(why)) => return Self::anew(storage, objects, number + 1, &why, micros),
            last => last?,
        };
        let end = last.as_ref().map_or(timeline.start, Piece::end);
        if let Some(why) = difference(&storage, &timeline, last.as_ref(), COMPARED)? {
            return Self::anew(storage, objects, number + 1, &why, micros);
        }
        let last_base = Base::names(&*objects, database, number)?
            .last()
            .map(|name| name.seconds);
        let sample = last.and_then(|piece| piece.samples.last().copied());
        let archiver = Archiver {
            storage,
            objects,
            timeline,
            at: end,
            samples: VecDeque::new(),
            last: sample.unwrap_or(Sample {
                micros: 0,
                lsn: Lsn::ZERO,
            }),
            last_base,
        };
        archiver.keep();
        Ok((archiver, Began::GoesOn))
    }

    fn anew(
        storage: Arc<Storage>,
        objects: Arc<dyn Objects>,
        number: u32,
        why: &str,
        micros: u64,
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
            began: micros,
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
            at: start,
            samples: VecDeque::new(),
            last: Sample {
                micros: 0,
                lsn: Lsn::ZERO,
            },
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

    /// The last position whose time is known.
    pub fn last_sample(&self) -> Sample {
        self.last
    }

    /// Bytes that are durable, and not archived.
    pub fn waiting(&self) -> u64 {
        let durable = self.storage.log().durable();
        durable.raw().saturating_sub(self.at.raw())
    }

    /// Notes what is durable at this time. A clock that was put back stands still until its time comes again.
    pub fn note_time(&mut self, micros: u64) -> Sample {
        let sample = Sample {
            micros: micros.max(self.last.micros),
            lsn: self.storage.log().durable().max(self.last.lsn),
        };
        if sample.lsn > self.last.lsn {
            // While nothing can be archived each second one will do.
            if self.samples.len() >= SAMPLES_MAX {
                let mut is_kept = false;
                self.samples.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
            }
            self.samples.push_back(sample);
            self.last = sample;
        }
        sample
    }

    /// Puts a piece of what is durable now into the archive; `None` if all of it is there.
    ///
    /// # Errors
    /// Those of the object store, and of a log that does not answer: nothing has changed, and it may be tried again.
    /// [`Error::Past`] if the log from there on is gone, [`Error::Mismatch`] if the archive has another: an archiver
    /// that begins then makes a timeline.
    pub fn ship(&mut self, micros: u64) -> Result<Option<Shipped>> {
        let durable = self.note_time(micros).lsn;
        if durable <= self.at {
            return Ok(None);
        }
        let groups = self.groups(durable)?;
        let end = self.at.advance(groups.len() as u64);
        let piece = Piece {
            timeline: self.timeline.number,
            start: self.at,
            samples: self
                .samples
                .iter()
                .copied()
                .take_while(|sample| sample.lsn <= end)
                .collect(),
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
        while self.samples.front().is_some_and(|sample| sample.lsn <= end) {
            self.samples.pop_front();
        }
        self.keep();
    }

    /// Whole groups from where the archive ends on, verified.
    fn groups(&self, durable: Lsn) -> Result<Vec<u8>> {
        let mut groups = vec![0; (durable.since(self.at)).min(PIECE_MAX as u64) as usize];
        let read = read(&self.storage, self.at, &mut groups)?;
        groups.truncate(read);
        let gone = || Error::Past(format!("the log at {} is gone, before it was archived", self.at));
        if read == 0 {
            return Err(gone());
        }
        let whole = whole_groups(self.at, &groups)?;
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
        if let Some(why) = difference(&self.storage, &self.timeline, Some(&piece), u64::MAX)? {
            return Err(Error::Mismatch(why));
        }
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
        // Nodes say so of what they do not keep.
        Err(Error::Corrupt(_)) if storage.nodes().is_some() => Ok(0),
        read => read,
    }
}

/// Why a timeline, whose last piece this is, does not end in this log; `None` if it does, as its last bytes say, `most` at
/// most.
fn difference(storage: &Storage, timeline: &Timeline, last: Option<&Piece>, most: u64) -> Result<Option<String>> {
    let (number, durable) = (timeline.number, storage.log().durable());
    let end = last.map_or(timeline.start, Piece::end);
    if end > durable {
        return Ok(Some(format!(
            "timeline {number} has the log up to {end}, and this database, up to {durable}, is an earlier state"
        )));
    }
    let Some(piece) = last else {
        // Nothing says whether it is of this log: but for one that begins here there is nothing to lose.
        let mut first = [0; 1];
        let is_there = end == durable || read(storage, end, &mut first)? > 0;
        return Ok((!is_there).then(|| format!("the log where timeline {number} ends, at {end}, is gone")));
    };
    let length = (piece.groups.len() as u64).min(most) as usize;
    let theirs = &piece.groups[piece.groups.len() - length..];
    let mut ours = vec![0; length];
    let at = Lsn::from_raw(end.raw() - length as u64);
    if read(storage, at, &mut ours)? < length {
        return Ok(Some(format!("the log where timeline {number} ends, at {end}, is gone")));
    }
    let is_same = ours == theirs;
    Ok((!is_same)
        .then(|| format!("timeline {number} has another log up to {end}: this database is a copy, or was put back")))
}
