//! A base: a copy of the pages of all spaces, made while the database is used. As a backup ([`crate::backup`]) it is
//! fuzzy: the log from where it begins to where it ends makes it one state, and the archive has that.
//!
//! ```text
//! a part     u64 from  u64 seconds  u32 chance  u32 space  u32 first  u32 pages  pages x u32 number   the pages
//! its object u64 from  u64 end  u64 began  u64 ended, in microseconds since 1970  u64 bytes in a segment of the log
//!            u32 bytes, the control record  u32 bytes, the program's version
//!            u32 spaces  spaces x (u32 space  u32 pages)
//! ```
//!
//! Pages that were never written are in no part.

use std::collections::BTreeMap;

use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use super::names::{self, BaseName};
use super::objects::Objects;
use super::sealed::{Kind, seal, unseal};
use super::timeline::need;
use crate::codec::{Reader, Writer};
use crate::redo::verify_page;

/// Pages that a part covers: 8 MiB.
pub(super) const PART: u32 = 512;

/// The object of a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// The log is needed from here on.
    pub from: Lsn,
    /// It is a state from here on.
    pub end: Lsn,
    /// When it was begun, and when the log ended where it ends: microseconds since 1970.
    pub began: u64,
    pub ended: u64,
    pub segment_bytes: u64,
    pub control: Vec<u8>,
    /// Of the program that made it.
    pub version: String,
    /// Its spaces, and how many pages each has.
    pub spaces: BTreeMap<u32, u32>,
}

impl Base {
    /// The finished bases of a timeline, in order, with the sizes of their objects.
    ///
    /// # Errors
    /// Those of [`Objects::list`].
    pub fn names(objects: &dyn Objects, database: u128, timeline: u32) -> Result<Vec<BaseName>> {
        let seen = objects.list(&names::bases(database, timeline))?;
        Ok(seen.iter().filter_map(|seen| BaseName::of(&seen.name)).collect())
    }

    /// A finished base.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is gone or damaged; those of [`Objects::get`].
    pub fn read(objects: &dyn Objects, database: u128, timeline: u32, name: BaseName) -> Result<Base> {
        let object = name.object(database, timeline);
        let contents = unseal(Kind::Base, database, &object, &need(objects, &object)?)?;
        let mut reader = Reader::new(&contents, &object);
        let base = Base {
            from: reader.lsn()?,
            end: reader.lsn()?,
            began: reader.u64()?,
            ended: reader.u64()?,
            segment_bytes: reader.u64()?,
            control: reader.counted()?.to_vec(),
            version: String::from_utf8_lossy(reader.counted()?).into_owned(),
            spaces: reader
                .many(|reader| Ok((reader.u32()?, reader.u32()?)))?
                .into_iter()
                .collect(),
        };
        reader.end()?;
        match base.from == name.from && base.from <= base.end {
            true => Ok(base),
            false => Err(Error::corrupt(format!("the object {object} is not what its name says"))),
        }
    }

    /// Puts it there: from then on it counts.
    ///
    /// # Errors
    /// Those of [`Objects::put_new`]: it may be there all the same.
    pub fn make(&self, objects: &dyn Objects, database: u128, timeline: u32, name: BaseName) -> Result<()> {
        let mut writer = Writer::default();
        writer.lsn(self.from).lsn(self.end).u64(self.began).u64(self.ended);
        writer
            .u64(self.segment_bytes)
            .counted(&self.control)
            .counted(self.version.as_bytes());
        writer.u32(self.spaces.len() as u32);
        self.spaces.iter().for_each(|(space, pages)| {
            writer.u32(*space).u32(*pages);
        });
        let object = name.object(database, timeline);
        // Where it is there already an answer was lost: no other has this name.
        objects
            .put_new(&object, &seal(Kind::Base, database, &writer.0)?)
            .map(drop)
    }
}

/// Pages of a part: each verified.
///
/// # Errors
/// [`Error::Corrupt`] if the part is gone, damaged or another one; those of [`Objects::get`].
pub(super) fn read_part(
    objects: &dyn Objects,
    (database, timeline): (u128, u32),
    base: BaseName,
    (space, first): (u32, u32),
) -> Result<BTreeMap<u32, Box<[u8]>>> {
    let object = base.part(database, timeline, space, first);
    let contents = unseal(Kind::Pages, database, &object, &need(objects, &object)?)?;
    let mut reader = Reader::new(&contents, &object);
    let found = BaseName {
        from: reader.lsn()?,
        seconds: reader.u64()?,
        nonce: reader.u32()?,
    };
    let place = (reader.u32()?, reader.u32()?);
    let numbers = reader.many(Reader::u32)?;
    let mut pages = BTreeMap::new();
    for number in numbers {
        let page = reader.bytes(PAGE_SIZE)?;
        verify_page(page, PageId::new(space, number))?;
        pages.insert(number, page.into());
    }
    reader.end()?;
    let is_inside = pages.keys().all(|number| (first..first + PART).contains(number));
    match found == base && place == (space, first) && is_inside {
        true => Ok(pages),
        false => Err(Error::corrupt(format!("the object {object} is not what its name says"))),
    }
}
