//! What an archive has.

use cenote_base::{Error, Lsn, Result};

use super::base::Base;
use super::names;
use super::objects::Objects;
use super::piece::Sample;
use super::timeline::Timeline;

/// A base that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BaseSeen {
    /// From here on each state can be restored.
    pub end: Lsn,
    /// When that was: microseconds since 1970.
    pub ended: u64,
    /// Spaces.
    pub spaces: u64,
    /// Pages, those that were never written among them.
    pub pages: u64,
    /// Of the program that made it.
    pub version: String,
    /// Why it cannot be restored, if so.
    pub damage: Option<String>,
}

/// A timeline that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineSeen {
    /// The database.
    pub database: u128,
    /// Its number.
    pub number: u32,
    /// Why it began, and when: microseconds since 1970.
    pub why: String,
    /// When it began.
    pub began: u64,
    /// Its bases, in order.
    pub bases: Vec<BaseSeen>,
    /// Where its log ends.
    pub end: Lsn,
    /// The last position whose time is known.
    pub last: Option<Sample>,
    /// Pieces of its log.
    pub pieces: u64,
    /// Bytes of their objects.
    pub log_bytes: u64,
    /// Bytes of the objects of its bases.
    pub base_bytes: u64,
    /// What is wrong with its last piece, if something is.
    pub damage: Option<String>,
}

/// Looks at all of an archive: timelines by database and number.
///
/// # Errors
/// Those of the object store; [`Error::Corrupt`] with the name of an object that is damaged.
pub fn survey(objects: &dyn Objects) -> Result<Vec<TimelineSeen>> {
    let mut seen = Vec::new();
    for database in objects
        .folders()?
        .iter()
        .filter_map(|folder| names::database_of(folder))
    {
        for number in Timeline::numbers(objects, database)? {
            seen.push(look(objects, read(objects, database, number)?)?);
        }
    }
    Ok(seen)
}

/// The last moment that is known of a timeline, in microseconds since 1970.
///
/// # Errors
/// As of [`survey`].
pub(super) fn last_moment(objects: &dyn Objects, database: u128, number: u32) -> Result<u64> {
    let seen = look(objects, read(objects, database, number)?)?;
    let last = seen.last.map_or(seen.began, |last| last.micros);
    Ok(seen.bases.iter().map(|base| base.ended).fold(last, u64::max))
}

/// A timeline whose own object is damaged has what it has.
fn read(objects: &dyn Objects, database: u128, number: u32) -> Result<Timeline> {
    let damaged = |why: String| Timeline {
        database,
        number,
        start: Lsn::ZERO,
        began: 0,
        why,
    };
    match Timeline::read(objects, database, number) {
        Err(Error::Corrupt(why) | Error::Mismatch(why)) => Ok(damaged(why)),
        read => read,
    }
}

fn look(objects: &dyn Objects, timeline: Timeline) -> Result<TimelineSeen> {
    let (database, number, mut damage) = (timeline.database, timeline.number, None);
    let pieces = timeline.pieces(objects)?;
    let last = match pieces
        .last()
        .map(|(start, _)| timeline.piece(objects, *start))
        .transpose()
    {
        Err(Error::Corrupt(why) | Error::Mismatch(why)) => {
            damage = Some(why);
            None
        }
        last => last?,
    };
    let mut bases = Vec::new();
    for name in Base::names(objects, database, number)? {
        bases.push(match Base::read(objects, database, number, name) {
            Ok(base) => BaseSeen {
                end: base.end,
                ended: base.ended,
                spaces: base.spaces.len() as u64,
                pages: base.spaces.values().map(|pages| u64::from(*pages)).sum(),
                version: base.version,
                damage: None,
            },
            Err(error @ (Error::Corrupt(_) | Error::Mismatch(_))) => BaseSeen {
                end: name.from,
                ended: name.seconds * 1_000_000,
                damage: Some(error.to_string()),
                ..BaseSeen::default()
            },
            Err(error) => return Err(error),
        });
    }
    let parts = objects.list(&names::all_pages(database, number))?;
    Ok(TimelineSeen {
        database,
        number,
        why: timeline.why,
        began: timeline.began,
        bases,
        end: match (&last, pieces.last()) {
            (Some(piece), _) => piece.end(),
            (None, last) => last.map_or(timeline.start, |(start, _)| *start),
        },
        damage,
        last: last.and_then(|piece| piece.samples.last().copied()),
        pieces: pieces.len() as u64,
        log_bytes: pieces.iter().map(|(_, bytes)| bytes).sum(),
        base_bytes: parts.iter().map(|seen| seen.bytes).sum(),
    })
}
