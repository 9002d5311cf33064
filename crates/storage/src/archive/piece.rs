//! A piece of a timeline's log: whole groups, and what is known of the time at which they became durable.
//!
//! ```text
//! contents   u32 timeline  u64 start  u32 samples  samples x (u64 microseconds since 1970, u64 LSN)
//!            u32 bytes, the control record  the groups
//! ```
//!
//! The control record is as it was read after the end was known: no number of a transaction in the groups is above its
//! ceiling.

use cenote_base::{Error, Lsn, Result};

use super::names;
use super::sealed::{Kind, seal, unseal};
use crate::codec::{Reader, Writer};
use crate::redo::GroupRef;

/// At this time all below a position was durable, and nothing behind it was known to be. Within a timeline both grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds since 1970, by the clock of the server's host.
    pub micros: u64,
    /// The position, a group's end.
    pub lsn: Lsn,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub timeline: u32,
    pub start: Lsn,
    pub samples: Vec<Sample>,
    pub control: Vec<u8>,
    pub groups: Vec<u8>,
}

impl Piece {
    /// Behind its last group.
    pub fn end(&self) -> Lsn {
        self.start.advance(self.groups.len() as u64)
    }

    pub fn seal(&self, database: u128) -> Result<Vec<u8>> {
        let mut writer = Writer::default();
        writer.u32(self.timeline).lsn(self.start).u32(self.samples.len() as u32);
        for sample in &self.samples {
            writer.u64(sample.micros).lsn(sample.lsn);
        }
        writer.counted(&self.control).bytes(&self.groups);
        seal(Kind::Log, database, &writer.0)
    }

    /// The piece that the object `name` holds, its groups verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged or another one.
    pub fn unseal(database: u128, timeline: u32, start: Lsn, bytes: &[u8]) -> Result<Piece> {
        let name = names::piece(database, timeline, start);
        let contents = unseal(Kind::Log, database, &name, bytes)?;
        let mut reader = Reader::new(&contents, &name);
        let (of, at) = (reader.u32()?, reader.lsn()?);
        let samples = reader.many(|reader| {
            Ok(Sample {
                micros: reader.u64()?,
                lsn: reader.lsn()?,
            })
        })?;
        let piece = Piece {
            timeline: of,
            start: at,
            samples,
            control: reader.counted()?.to_vec(),
            groups: reader.rest().to_vec(),
        };
        let is_whole =
            || whole_groups(start, &piece.groups).is_ok_and(|whole| whole > 0 && whole == piece.groups.len());
        match (of, at) == (timeline, start) && is_whole() {
            true => Ok(piece),
            false => Err(Error::corrupt(format!("the object {name} is not what its name says"))),
        }
    }

    /// Its groups that begin at `from` or later.
    pub fn groups_from(&self, from: Lsn) -> impl Iterator<Item = GroupRef<'_>> {
        let mut at = self.start;
        let groups = std::iter::from_fn(move || {
            let rest = self.groups.get(at.since(self.start) as usize..)?;
            // They were verified.
            let group = GroupRef::parse(rest, at).ok()?;
            at = group.end();
            Some(group)
        });
        groups.skip_while(move |group| group.start() < from)
    }
}

/// How many of the bytes from `start` on are whole groups, in a row.
///
/// # Errors
/// [`Error::Corrupt`] if the first is none.
pub(super) fn whole_groups(start: Lsn, bytes: &[u8]) -> Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match GroupRef::parse(&bytes[length..], start.advance(length as u64)) {
            Ok(group) => length += group.end().since(group.start()) as usize,
            Err(error) if length == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(length)
}
