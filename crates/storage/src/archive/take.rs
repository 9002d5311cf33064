//! Takes a base while the database is used.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cenote_base::page_io::PageRead;
use cenote_base::{Error, Lsn, PageId, Result, rt};

use super::archiver::{Archiver, Turn};
use super::base::{Base, PART};
use super::names::BaseName;
use super::piece::Sample;
use super::sealed::{Kind, seal};
use crate::codec::Writer;
use crate::page_source::PageSource;
use crate::redo::page_lsn;

/// Pages that are read at a time.
const BATCH: u32 = 32;

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
    fn remove(&mut self) -> Result<()> {
        let (objects, timeline) = (&self.archiver.objects, &self.archiver.timeline);
        let parts = objects.list(&self.name.pages(timeline.database, timeline.number))?;
        let names: Vec<String> = parts.into_iter().map(|part| part.name).collect();
        self.archiver.remove(&names, self.turn).map(drop)
    }
}
