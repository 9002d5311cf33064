//! A data directory of a base and the log behind it, up to a moment.
//!
//! 1. The timeline and the base are chosen: the newest of which the moment is no earlier than the base's end.
//! 2. The pages of the base are written, each verified.
//! 3. The log is written from where the base begins, to the last group that the moment has. Spaces that it makes pages
//!    of and that the base lacks are made.
//! 4. The control file is written last: a directory without one is not finished.
//!
//! A start there is classic recovery; transactions that had not committed by the moment are rolled back. The database
//! has an id of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use cenote_base::page_io::PageRead;
use cenote_base::rt::Mutex;
use cenote_base::rt::fs::{self, OpenOptions};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use super::base::{Base, PART, read_part};
use super::names::{self, BaseName};
use super::objects::Objects;
use super::piece::{Piece, Sample};
use super::prefetch::Prefetch;
use super::timeline::Timeline;
use crate::backup::Copy;
use crate::control;
use crate::files::{doing, log_dir, prepare, space_name, spaces_dir};
use crate::log::{LogCopy, LogSource};
use crate::nodes::PageAnswer;
use crate::page_source::PageSource;

/// The moment that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All that the archive has.
    Latest,
    /// What was durable at this time, and nothing later: microseconds since 1970. By samples of the server's clock.
    Time(u64),
    /// What the log has below this position.
    Position(Lsn),
}

/// What is to be restored.
#[derive(Debug, Clone, Copy)]
pub struct RestoreFrom {
    /// The database, where the archive has several.
    pub database: Option<u128>,
    /// The timeline, if not the newest that has the moment.
    pub timeline: Option<u32>,
    /// The moment.
    pub target: Target,
}

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    /// The database it was made of.
    pub database: u128,
    /// Its timeline.
    pub timeline: u32,
    /// Spaces and pages of the base.
    pub spaces: u64,
    /// Pages of the base.
    pub pages: u64,
    /// Bytes of the log behind it.
    pub log_bytes: u64,
    /// The state: everything below.
    pub lsn: Lsn,
    /// The last sample of time up to there, unless none was taken since the base.
    pub at: Option<Sample>,
    /// Whether the timeline has nothing later, as far as times are known.
    pub is_end: bool,
}

/// Makes a database in the directory `data`, which must be empty or missing. `told` hears now and then what part of the
/// base's pages is there, and how many bytes of the log.
///
/// # Errors
/// [`Error::Invalid`] if the archive has no such moment, or the directory is not empty; [`Error::Corrupt`] if an object
/// that is needed is damaged or gone, with its name; those of the object store.
pub fn restore_archive(
    objects: &Arc<dyn Objects>,
    from: RestoreFrom,
    data: &Path,
    told: &dyn Fn(f64, u64),
) -> Result<RestoreReport> {
    let database = database(&**objects, from.database)?;
    let (timeline, name, base) = choose(&**objects, database, from)?;
    let log = ArchivedLog::new(objects, &timeline, base.from)?;
    log.require(from.target)?;
    prepare(data)?;
    let pages = Parts::new(objects, (database, timeline.number), name, &base);
    let mut copy = Copy::new(&pages, data);
    let (all, mut done) = (
        base.spaces.values().map(|pages| u64::from(*pages)).sum::<u64>().max(1),
        0,
    );
    for (space, count) in &base.spaces {
        copy.space(*space, &mut || {
            told(done as f64 / all as f64, 0);
            Ok(())
        })?;
        done += u64::from(*count);
    }
    let read = |at, buffer: &mut [u8]| log.read(at, buffer);
    let source = LogSource::Archive(&read, base.segment_bytes);
    let mut to = LogCopy::new(source, &log_dir(data), copy.database(), base.from)?;
    let reached = log.restore(from.target, &base, &mut to, &|bytes| told(1.0, bytes))?;
    reached.grown.make(data)?;
    let control = control::newest(&name.object(database, timeline.number), &reached.control)?.1;
    let control = control::Control {
        checkpoint: base.from,
        durable: reached.lsn,
        is_filling: false,
        ..control
    };
    let report = copy.finish(to, control)?;
    Ok(RestoreReport {
        database,
        timeline: timeline.number,
        spaces: report.spaces,
        pages: report.pages,
        log_bytes: report.log_bytes,
        lsn: reached.lsn,
        at: reached.at,
        is_end: reached.is_end,
    })
}

/// The database that is meant.
fn database(objects: &dyn Objects, asked: Option<u128>) -> Result<u128> {
    let mut there: Vec<u128> = objects
        .folders()?
        .iter()
        .filter_map(|folder| names::database_of(folder))
        .collect();
    there.retain(|id| asked.is_none_or(|asked| asked == *id));
    match there[..] {
        [one] => Ok(one),
        [] => Err(Error::Invalid(match asked {
            Some(id) => format!("{} has no archive of database {id:032x}", objects.place()),
            None => format!("{} has no archive", objects.place()),
        })),
        _ => Err(Error::Invalid(format!(
            "{} has archives of several databases: say which: {}",
            objects.place(),
            there
                .iter()
                .map(|id| format!("{id:032x}"))
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

/// The newest base that ends no later than the moment, of the newest timeline that has one.
fn choose(objects: &dyn Objects, database: u128, from: RestoreFrom) -> Result<(Timeline, BaseName, Base)> {
    let (mut oldest, mut damaged) = (None, None);
    for number in Timeline::numbers(objects, database)?.into_iter().rev() {
        if from.timeline.is_some_and(|timeline| timeline != number) {
            continue;
        }
        for name in Base::names(objects, database, number)?.into_iter().rev() {
            // One that is damaged, or was removed this moment, is as good as none.
            let base = match Base::read(objects, database, number, name) {
                Err(Error::Corrupt(why) | Error::Mismatch(why)) => {
                    damaged = Some(why);
                    continue;
                }
                base => base?,
            };
            let is_early = match from.target {
                Target::Latest => true,
                Target::Time(micros) => base.ended <= micros,
                Target::Position(lsn) => base.end <= lsn,
            };
            if is_early {
                return Ok((Timeline::read(objects, database, number)?, name, base));
            }
            oldest = Some(base);
        }
    }
    if let Some(why) = damaged {
        return Err(Error::Corrupt(why));
    }
    Err(Error::Invalid(match oldest {
        None => format!("{} has no finished base of that database yet", objects.place()),
        Some(base) => format!(
            "the archive has no base from before that moment: the first state that can be restored is that of position \
             {} of the log (cenote archive status says when that was)",
            base.end
        ),
    }))
}

/// The pages of a base.
struct Parts<'a> {
    base: &'a Base,
    /// Its parts, in order: space, first page.
    parts: Vec<(u32, u32)>,
    prefetch: Prefetch<PartPages>,
    /// The part that is used: which, and its pages.
    part: Mutex<Option<(usize, Result<PartPages>)>>,
}

type PartPages = BTreeMap<u32, Box<[u8]>>;

impl Parts<'_> {
    fn new<'a>(objects: &Arc<dyn Objects>, of: (u128, u32), name: BaseName, base: &'a Base) -> Parts<'a> {
        let firsts = |(space, pages): (&u32, &u32)| {
            let space = *space;
            (0..*pages).step_by(PART as usize).map(move |first| (space, first))
        };
        let parts: Vec<(u32, u32)> = base.spaces.iter().flat_map(firsts).collect();
        let (objects, wanted) = (Arc::clone(objects), parts.clone());
        Parts {
            prefetch: Prefetch::new(parts.len(), move |n| read_part(&*objects, of, name, wanted[n])),
            base,
            parts,
            part: Mutex::default(),
        }
    }

    /// Pages are asked for in order.
    fn page(&self, id: PageId) -> PageAnswer {
        let wanted = self.parts.partition_point(|part| *part <= (id.space, id.page));
        let wanted = wanted.checked_sub(1).expect("a page that is asked for is in a part");
        let mut part = self.part.lock();
        if part.as_ref().is_none_or(|(there, _)| *there != wanted) {
            *part = Some((wanted, self.prefetch.take(wanted)));
        }
        let pages = &part.as_ref().expect("it was read").1;
        Ok(match pages.as_ref().map_err(Error::clone)?.get(&id.page) {
            Some(page) => (page.clone(), PageRead::Present),
            None => (vec![0; PAGE_SIZE].into(), PageRead::NeverWritten),
        })
    }
}

impl PageSource for Parts<'_> {
    fn spaces(&self) -> Vec<u32> {
        self.base.spaces.keys().copied().collect()
    }

    fn has_space(&self, space: u32) -> bool {
        self.base.spaces.contains_key(&space)
    }

    fn page_count(&self, space: u32) -> Result<u32> {
        Ok(self.base.spaces.get(&space).copied().unwrap_or(0))
    }

    fn read(&self, ids: &[PageId]) -> Vec<PageAnswer> {
        ids.iter().map(|id| self.page(*id)).collect()
    }
}

/// The log of a timeline, from a piece on.
struct ArchivedLog<'a> {
    objects: &'a dyn Objects,
    timeline: &'a Timeline,
    /// Where the pieces begin.
    starts: Vec<Lsn>,
    /// The pieces that were read last, and those that come.
    read: Mutex<VecDeque<(usize, Arc<Piece>)>>,
    prefetch: Mutex<(usize, Prefetch<Piece>)>,
}

/// Pieces that are kept: the one with the moment as it is known, and the one that is looked at.
const KEPT: usize = 2;

/// How far a restore has come.
struct Reached {
    lsn: Lsn,
    at: Option<Sample>,
    control: Vec<u8>,
    grown: Grown,
    is_end: bool,
}

/// What a piece says of the moment.
struct Cut {
    /// The moment has all groups up to here, as far as is known now.
    end: Option<Lsn>,
    /// The last sample that is no later.
    sample: Option<Sample>,
    /// No later piece has any of it.
    is_last: bool,
}

impl<'a> ArchivedLog<'a> {
    /// From the piece on that has position `from`.
    fn new(objects: &'a Arc<dyn Objects>, timeline: &'a Timeline, from: Lsn) -> Result<ArchivedLog<'a>> {
        let mut starts: Vec<Lsn> = timeline.pieces(&**objects)?.iter().map(|(start, _)| *start).collect();
        let before = starts.partition_point(|start| *start <= from).saturating_sub(1);
        starts.drain(..before.min(starts.len()));
        let (store, of, wanted) = (Arc::clone(objects), timeline.clone(), starts.clone());
        let log = ArchivedLog {
            objects: &**objects,
            timeline,
            read: Mutex::default(),
            prefetch: Mutex::new((0, Prefetch::new(starts.len(), move |n| of.piece(&*store, wanted[n])))),
            starts,
        };
        match log.starts.first() {
            Some(first) if *first > from => Err(log.gap(from, *first)),
            _ => Ok(log),
        }
    }

    /// That it comes as far as the position that is asked for.
    fn require(&self, target: Target) -> Result<()> {
        let Target::Position(lsn) = target else { return Ok(()) };
        let last = self.starts.last().map(|last| self.timeline.piece(self.objects, *last));
        let end = last.transpose()?.map(|piece| piece.end());
        match end.filter(|end| *end < lsn) {
            None => Ok(()),
            Some(end) => Err(Error::Invalid(format!(
                "position {lsn} is not there: the log of timeline {} ends at {end} in {}",
                self.timeline.number,
                self.objects.place()
            ))),
        }
    }

    fn gap(&self, from: Lsn, to: Lsn) -> Error {
        let (number, place) = (self.timeline.number, self.objects.place());
        Error::corrupt(format!(
            "the log of timeline {number} has a gap from {from} to {to} in {place}"
        ))
    }

    /// Piece `n`, which ends where the next one begins.
    fn piece(&self, n: usize) -> Result<Arc<Piece>> {
        if let Some((_, piece)) = self.read.lock().iter().find(|(number, _)| *number == n) {
            return Ok(Arc::clone(piece));
        }
        let piece = Arc::new(self.read_piece(n)?);
        if let Some(next) = self.starts.get(n + 1).filter(|next| **next != piece.end()) {
            return Err(self.gap(piece.end(), *next));
        }
        let mut read = self.read.lock();
        read.truncate(KEPT - 1);
        read.push_front((n, Arc::clone(&piece)));
        Ok(piece)
    }

    /// The next piece was prefetched; any other is read now.
    fn read_piece(&self, n: usize) -> Result<Piece> {
        let mut prefetch = self.prefetch.lock();
        if prefetch.0 != n {
            return self.timeline.piece(self.objects, self.starts[n]);
        }
        prefetch.0 += 1;
        prefetch.1.take(n)
    }

    /// The piece that has position `at`.
    fn piece_at(&self, at: Lsn) -> Result<Option<Arc<Piece>>> {
        match self.starts.partition_point(|start| *start <= at).checked_sub(1) {
            Some(n) => Ok(Some(self.piece(n)?).filter(|piece| at < piece.end())),
            None => Ok(None),
        }
    }

    /// Fills as much of `buffer` from `at` on as there is.
    fn read(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = at.advance(filled as u64);
            let Some(piece) = self.piece_at(at)? else { break };
            let there = &piece.groups[at.since(piece.start) as usize..];
            let length = there.len().min(buffer.len() - filled);
            buffer[filled..filled + length].copy_from_slice(&there[..length]);
            filled += length;
        }
        Ok(filled)
    }

    /// Writes it up to the moment, and at least to where the base ends.
    fn restore(&self, target: Target, base: &Base, to: &mut LogCopy<'_>, told: &dyn Fn(u64)) -> Result<Reached> {
        let mut reached = Reached {
            lsn: base.end,
            at: None,
            control: base.control.clone(),
            grown: Grown::of(base),
            is_end: true,
        };
        for n in 0..self.starts.len() {
            let piece = self.piece(n)?;
            let cut = cut(&piece, target);
            reached.lsn = reached.lsn.max(cut.end.unwrap_or(Lsn::ZERO));
            reached.at = cut.sample.or(reached.at);
            // A later ceiling of numbers holds for an earlier moment, too.
            reached.control.clone_from(&piece.control);
            let known = reached.lsn.min(piece.end());
            to.copy_to(known)?;
            while reached.grown.noted < known {
                let piece = self.piece_at(reached.grown.noted)?;
                reached.grown.note(&piece.expect("it was copied"), known)?;
            }
            told(known.since(base.from));
            if cut.is_last && reached.lsn <= piece.end() {
                reached.is_end = n + 1 == self.starts.len() && reached.lsn == piece.end();
                break;
            }
        }
        Ok(reached)
    }
}

fn cut(piece: &Piece, target: Target) -> Cut {
    match target {
        Target::Latest => Cut {
            end: Some(piece.end()),
            sample: piece.samples.last().copied(),
            is_last: false,
        },
        Target::Time(micros) => {
            let known = piece.samples.partition_point(|sample| sample.micros <= micros);
            let sample = known.checked_sub(1).map(|last| piece.samples[last]);
            Cut {
                end: sample.map(|sample| sample.lsn),
                sample,
                is_last: known < piece.samples.len(),
            }
        }
        Target::Position(lsn) => {
            let groups = piece.groups_from(piece.start);
            let end = groups.map(|group| group.end()).take_while(|end| *end <= lsn).last();
            Cut {
                end,
                sample: piece.samples.iter().rev().find(|sample| sample.lsn <= lsn).copied(),
                is_last: piece.end() >= lsn,
            }
        }
    }
}

/// Where spaces grow beyond the base, or are made behind it.
struct Grown {
    /// Pages of each space of the base, at least.
    known: BTreeMap<u32, u32>,
    /// Pages of other spaces that the log makes from nothing.
    made: BTreeMap<u32, BTreeSet<u32>>,
    /// Spaces with pages of before: they were dropped before the base came to them.
    gone: BTreeSet<u32>,
    noted: Lsn,
}

impl Grown {
    fn of(base: &Base) -> Grown {
        Grown {
            known: base.spaces.clone(),
            made: BTreeMap::new(),
            gone: BTreeSet::new(),
            noted: base.from,
        }
    }

    /// Notes the groups of a piece up to `end`, a group's end, those that were not noted.
    fn note(&mut self, piece: &Piece, end: Lsn) -> Result<()> {
        let before = self.noted;
        for group in piece.groups_from(self.noted).take_while(|group| group.end() <= end) {
            for record in group.records() {
                let record = record?;
                self.note_page(record.page, record.is_base);
            }
            self.noted = group.end();
        }
        match before < self.noted {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "no group of the archive's log begins at {before}"
            ))),
        }
    }

    fn note_page(&mut self, page: PageId, is_base: bool) {
        if let Some(pages) = self.known.get_mut(&page.space) {
            *pages = (*pages).max(page.page.saturating_add(1));
        } else if !self.gone.contains(&page.space) {
            let made = self.made.entry(page.space).or_default();
            if is_base {
                made.insert(page.page);
            } else if !made.contains(&page.page) {
                self.made.remove(&page.space);
                self.gone.insert(page.space);
            }
        }
    }

    /// Makes the files of the spaces as long as they have to be.
    fn make(&self, data: &Path) -> Result<()> {
        let made = self
            .made
            .iter()
            .map(|(space, pages)| (*space, pages.last().map_or(0, |last| last + 1)));
        for (space, pages) in self.known.iter().map(|(space, pages)| (*space, *pages)).chain(made) {
            let path = spaces_dir(data).join(space_name(space));
            let file = doing(fs::open(&path, OpenOptions::CREATE), "opening", &path)?;
            let length = u64::from(pages) * PAGE_SIZE as u64;
            if doing(file.len(), "measuring", &path)? < length {
                doing(file.set_len(length), "extending", &path)?;
                doing(file.sync_data(), "syncing", &path)?;
            }
        }
        Ok(())
    }
}
