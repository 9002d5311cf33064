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

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cenote_base::page_io::PageRead;
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result, rt};

use super::archiver::Archiver;
use super::codec::{Reader, Writer};
use super::names::{self, BaseName};
use super::objects::Objects;
use super::piece::Sample;
use super::sealed::{Kind, seal, unseal};
use super::timeline::need;
use crate::page_source::PageSource;
use crate::redo::{page_lsn, verify_page};

/// Pages that a part covers: 8 MiB.
pub(super) const PART: u32 = 512;
/// Pages that are read at a time.
const BATCH: u32 = 32;

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

    fn make(&self, objects: &dyn Objects, database: u128, timeline: u32, name: BaseName) -> Result<()> {
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

/// What a base took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BaseReport {
    /// Spaces.
    pub spaces: u64,
    /// Pages that had been written.
    pub pages: u64,
    /// Bytes of their objects.
    pub object_bytes: u64,
    /// From here on the archive has each state.
    pub end: Lsn,
}

/// What is done between two parts of a base: whether to go on.
pub type Turn<'a> = dyn Fn(&mut Archiver) -> Result<bool> + 'a;

/// A base that is being made.
struct Making<'a> {
    archiver: &'a mut Archiver,
    pages: &'a dyn PageSource,
    name: BaseName,
    /// What is done between two parts: whether to go on.
    turn: &'a Turn<'a>,
    spaces: BTreeMap<u32, u32>,
    /// The newest change in a page.
    highest: Lsn,
    report: BaseReport,
}

impl Archiver {
    /// Takes a base. `turn` is called between two parts of 8 MiB, to keep the log meanwhile, and says whether to go on.
    /// The caller has made a checkpoint, so that little of the log is needed.
    ///
    /// # Errors
    /// Those of [`Archiver::ship`]; [`Error::Corrupt`] if a page is damaged; [`Error::Canceled`]. What is there of the
    /// base means nothing then, and is removed if that can be.
    pub fn base(&mut self, turn: &Turn<'_>) -> Result<BaseReport> {
        self.check_timeline()?;
        let storage = self.storage.clone();
        let checkpoint = storage.control().get().checkpoint;
        storage.log().flush_all()?;
        let (pages, from) = storage.pages().source(checkpoint, storage.log().durable());
        if from < self.timeline.start {
            return Err(Error::Past(format!("the log of a base from {from} is gone")));
        }
        let began = self.times.now();
        let mut making = Making {
            archiver: self,
            pages: &*pages,
            name: BaseName {
                from,
                seconds: began / 1_000_000,
                nonce: rt::random_u128() as u32,
            },
            turn,
            spaces: BTreeMap::new(),
            highest: Lsn::ZERO,
            report: BaseReport::default(),
        };
        let made = making.all_spaces().and_then(|()| making.settle());
        // One that was given up is left to the next removal: its server ends.
        if made.as_ref().is_err_and(|error| !matches!(error, Error::Canceled)) {
            let _ = making.remove();
        }
        making.announce(began, made?)
    }
}

impl Making<'_> {
    /// Copies the spaces that are there, then those that were made meanwhile.
    fn all_spaces(&mut self) -> Result<()> {
        let mut seen = BTreeSet::new();
        loop {
            let new: Vec<u32> = self
                .pages
                .spaces()
                .into_iter()
                .filter(|space| !seen.contains(space))
                .collect();
            if new.is_empty() {
                return Ok(());
            }
            for space in new {
                seen.insert(space);
                self.space(space)?;
            }
            self.archiver.storage.log().flush_all()?;
        }
    }

    fn space(&mut self, space: u32) -> Result<()> {
        let count = match self.pages.page_count(space) {
            // It was dropped meanwhile: the log up to the end says so, too.
            Err(_) if !self.pages.has_space(space) => return Ok(()),
            count => count?,
        };
        for first in (0..count).step_by(PART as usize) {
            if !(self.turn)(self.archiver)? {
                return Err(Error::Canceled);
            }
            if !self.part(space, first..count.min(first.saturating_add(PART)))? {
                return Ok(());
            }
        }
        self.spaces.insert(space, count);
        self.report.spaces += 1;
        Ok(())
    }

    /// Copies pages of a space; false if it was dropped.
    fn part(&mut self, space: u32, numbers: Range<u32>) -> Result<bool> {
        let (mut found, mut bytes) = (Vec::new(), Vec::new());
        for first in numbers.clone().step_by(BATCH as usize) {
            let batch = first..numbers.end.min(first.saturating_add(BATCH));
            let ids: Vec<PageId> = batch.map(|number| PageId::new(space, number)).collect();
            for (id, answer) in ids.iter().zip(self.pages.read(&ids)) {
                match answer {
                    Ok((_, PageRead::NeverWritten)) => {}
                    Ok((page, _)) => {
                        self.highest = self.highest.max(page_lsn(&page));
                        found.push(id.page);
                        bytes.extend_from_slice(&page);
                    }
                    Err(_) if !self.pages.has_space(space) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
        }
        let mut writer = Writer::default();
        writer.lsn(self.name.from).u64(self.name.seconds).u32(self.name.nonce);
        writer.u32(space).u32(numbers.start).u32(found.len() as u32);
        found.iter().for_each(|number| {
            writer.u32(*number);
        });
        writer.bytes(&bytes);
        let timeline = &self.archiver.timeline;
        let object = self.name.part(timeline.database, timeline.number, space, numbers.start);
        let sealed = seal(Kind::Pages, timeline.database, &writer.0)?;
        self.archiver.objects.put_new(&object, &sealed)?;
        self.report.pages += found.len() as u64;
        self.report.object_bytes += sealed.len() as u64;
        Ok(true)
    }

    /// Keeps the log up to where the base ends: there.
    fn settle(&mut self) -> Result<Sample> {
        let archiver = &mut *self.archiver;
        archiver.storage.log().flush_all()?;
        let ended = archiver.times.note(archiver.storage.log());
        if self.highest > ended.lsn {
            return Err(Error::corrupt(format!(
                "a page has changes up to {}, and the log ends at {}",
                self.highest, ended.lsn
            )));
        }
        while archiver.archived() < ended.lsn {
            archiver.ship()?;
        }
        Ok(ended)
    }

    /// From here on it counts. Where no answer comes it may.
    fn announce(mut self, began: u64, ended: Sample) -> Result<BaseReport> {
        let archiver = &mut *self.archiver;
        let timeline = &archiver.timeline;
        let base = Base {
            from: self.name.from,
            end: ended.lsn,
            began,
            ended: ended.micros,
            segment_bytes: archiver.storage.log().segment_bytes(),
            control: archiver.storage.control().record(),
            version: env!("CARGO_PKG_VERSION").into(),
            spaces: std::mem::take(&mut self.spaces),
        };
        base.make(&*archiver.objects, timeline.database, timeline.number, self.name)?;
        archiver.note_base(self.name.seconds);
        self.report.end = base.end;
        Ok(self.report)
    }

    /// Removes its parts.
    fn remove(&self) -> Result<()> {
        let (objects, timeline) = (&self.archiver.objects, &self.archiver.timeline);
        let parts = objects.list(&self.name.pages(timeline.database, timeline.number))?;
        parts.iter().try_for_each(|part| objects.remove(&part.name))
    }
}
