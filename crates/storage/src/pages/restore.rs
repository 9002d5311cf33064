//! Repair at the start: the pages that the double-write area lists.
//!
//! | in place | copies | then |
//! |---|---|---|
//! | the newest listed version, or a newer one | | is written again before the first write (`former`) |
//! | damaged, older or unreadable | the newest listed version | the copy is put in place |
//! | damaged, older or unreadable | older ones, or none | redo builds the newest, or the page is *lost* |
//!
//! Redo from the checkpoint on builds the newest version on the newest that is whole, or makes the page anew behind it.
//!
//! A copy may have only what its write changed. It makes its version with what is in place, and with the copies of other
//! writes that may not have arrived. So bits that rot elsewhere in a page are not repaired by it: redo does it, or the
//! page is lost.
//!
//! Only a page that was read is called lost. A place or copy that cannot be read may hold the newest version. If
//! nothing else brings that version, the start fails with an error that names the page. It has written nothing then,
//! and the next start finds the same.
//!
//! The last row is a batch that was cut off while it was written, or bits that have rotted. Repair cannot tell them
//! apart, and need not. The checkpoint does not pass a batch that was cut off, so redo builds its pages. Where redo
//! does not, the checkpoint has passed the version, and an older one would be stale rows under a good checksum. A lost
//! page is damaged in its place; repair damages it if it is not.
//!
//! Redo builds version `v` on version `b` if its first record after `b` needs nothing before it or nothing that `b`
//! lacks, the versions that were listed in between come by, and it ends with `v`.
//!
//! A page may change, and its image be logged, while a batch with an older version of it is written: then the
//! checkpoint may pass that version.
//!
//! A version that redo built is written as any page is, by a new batch. Its base is in place before that, since the new
//! batch may write over copies.

use std::collections::BTreeMap;

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use super::doublewrite::{Areas, BLOCK, Listed};
use super::former::FormerPage;
use super::spaces::{SpaceFile, Spaces};
use crate::log::OwnedRecord;
use crate::reads::at_once;
use crate::redo::{apply, page_lsn, set_page_checksum, verify_page};

/// Finds the redo of pages: for each, the records up to its LSN, oldest first, from the checkpoint or the last base
/// record on.
pub type Redo<'a> = dyn FnMut(&BTreeMap<PageId, Lsn>) -> Result<BTreeMap<PageId, Vec<OwnedRecord>>> + 'a;

/// The repairs of a start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PagesReport {
    /// Pages that were torn or lost in place and were put back from the double-write area.
    pub restored: Vec<PageId>,
    /// Pages whose newest version was neither in place nor in the double-write area, and was built again by redo.
    pub rebuilt: Vec<PageId>,
    /// Pages whose newest version could not be had: reading them is an error.
    pub lost: Vec<PageId>,
}

impl PagesReport {
    /// A line for each page that cannot be read.
    pub fn remarks(&self) -> Vec<String> {
        let lost = |id| format!("page {id} was damaged with its copy, and redo does not build it: it cannot be read");
        self.lost.iter().map(lost).collect()
    }
}

/// The outcome of repair.
pub(super) struct Restored {
    /// Pages to be written again before this process writes anything else.
    pub former: Vec<FormerPage>,
    /// Newest versions that redo built: to be written as any page is.
    pub built: Vec<(PageId, Box<[u8]>)>,
    pub report: PagesReport,
}

/// A page that is listed, and where it belongs.
struct Listing {
    id: PageId,
    file: SpaceFile,
    /// Newest first.
    copies: Vec<Listed>,
}

/// A page that is not in its place as its newest copy was made.
struct Doubtful<'a> {
    listing: &'a Listing,
    /// What is in its place; `None`: that cannot be read.
    place: Option<Box<[u8]>>,
    /// What of its place can be read, with zeros for the other blocks: what copies are laid over.
    ground: Box<[u8]>,
    /// The newest whole version of the copies, if it is better than what is in place.
    better: Option<Version>,
    /// Why its place or a copy cannot be read.
    unread: Option<Error>,
}

/// A version of a page that copies make.
struct Version {
    listed: Listed,
    page: Box<[u8]>,
    /// The copies that it is made of, as they were read.
    copies: Vec<(Listed, Box<[u8]>)>,
}

/// Repair's decision on a doubtful page.
enum Verdict {
    /// In place, or with its copy, it is the newest.
    Whole,
    /// This is its newest version.
    Built(Box<[u8]>),
    /// Redo makes it anew behind its newest listed version: nothing that is in place or listed is needed.
    Anew,
    Lost,
}

/// Pages whose place is torn, or older than their copy, get the copy. A place that is as its copy says will be written
/// again (see `former`). The files count as dirty and the areas as unsettled, so that no area is written over before
/// they are synced.
///
/// Places are read at once, and of the copies those only whose page is not found in its place.
///
/// # Errors
/// An I/O error, which names the page where its newest version may be unreadable; one of `redo`; [`Error::Mismatch`]
/// for areas of another database.
pub(super) fn restore(spaces: &Spaces, areas: &Areas, redo: &mut Redo<'_>) -> Result<Restored> {
    let listings = listings(spaces, areas)?;
    let (former, mut doubtful) = in_their_places(&listings);
    look_at_copies(areas, &mut doubtful);
    let verdicts = verdicts(&doubtful, redo)?;
    all_known(&doubtful, &verdicts)?;
    put_back(areas, &doubtful, &verdicts)?;
    spaces.sync_dirty()?;
    listings.iter().for_each(|listing| listing.file.mark_dirty());
    let built = |(d, verdict): (&Doubtful<'_>, _)| match verdict {
        Verdict::Built(page) => Some((d.listing.id, page)),
        _ => None,
    };
    Ok(Restored {
        former,
        report: report(&doubtful, &verdicts),
        built: doubtful.iter().zip(verdicts).filter_map(built).collect(),
    })
}

/// The pages that the areas list and whose spaces are there.
fn listings(spaces: &Spaces, areas: &Areas) -> Result<Vec<Listing>> {
    let mut listings = Vec::new();
    for (id, copies) in areas.listed()? {
        assert!(!copies.is_empty(), "page {id} is listed without a copy");
        if let Some(file) = spaces.find(id.space)? {
            listings.push(Listing { id, file, copies });
        }
    }
    Ok(listings)
}

/// Reads the places of pages: those that are as their newest copy, and the others.
fn in_their_places(listings: &[Listing]) -> (Vec<FormerPage>, Vec<Doubtful<'_>>) {
    let requests = listings.iter().zip(0..).map(|(l, tag)| l.file.request(l.id.page, tag));
    let (mut former, mut doubtful) = (Vec::new(), Vec::new());
    for (listing, request) in listings.iter().zip(at_once(requests.collect())) {
        let (place, unread) = match listing.file.answer(request) {
            Ok(bytes) if listing.copies[0].is(&bytes, listing.id) => {
                let (file, page) = (listing.file.clone(), listing.id.page);
                former.push(FormerPage { file, page, bytes });
                continue;
            }
            Ok(bytes) => (Some(bytes), None),
            Err(error) => (None, Some(error)),
        };
        let blocks = || listing.file.readable_blocks(listing.id.page, BLOCK);
        let ground = place.clone().unwrap_or_else(blocks);
        doubtful.push(Doubtful {
            listing,
            place,
            ground,
            better: None,
            unread,
        });
    }
    (former, doubtful)
}

/// Reads the copies of pages: the newest that is whole may be better than what is in place.
fn look_at_copies(areas: &Areas, doubtful: &mut [Doubtful<'_>]) {
    let listed: Vec<Listed> = doubtful.iter().flat_map(|d| &d.listing.copies).copied().collect();
    let mut bytes = areas.copies(&listed).into_iter();
    for d in doubtful {
        let mut read = Vec::with_capacity(d.listing.copies.len());
        for (listed, copy) in d.listing.copies.iter().zip(bytes.by_ref()) {
            match copy {
                Ok(copy) => read.push((*listed, copy)),
                Err(error) => d.unread = d.unread.take().or(Some(error)),
            }
        }
        d.better = d.newest_version(read).filter(|version| d.is_better(version));
    }
}

/// Puts in place what the verdicts say.
fn put_back(areas: &Areas, doubtful: &[Doubtful<'_>], verdicts: &[Verdict]) -> Result<()> {
    let judged = || doubtful.iter().zip(verdicts);
    // A process that was killed before it synced its batch, or whose sync failed, left copies that only the system has.
    // They are written and synced now, or a power cut in the middle of these writes could take page and copy.
    let kept = judged().filter(|(_, verdict)| !matches!(verdict, Verdict::Lost));
    let copies: Vec<_> = kept
        .filter_map(|(d, _)| d.better.as_ref())
        .flat_map(|version| version.copies.iter().map(|(listed, copy)| (*listed, &**copy)))
        .collect();
    if !copies.is_empty() {
        areas.write_again(copies.into_iter())?;
    }
    for (d, verdict) in judged() {
        if let Some(page) = d.put(verdict) {
            d.listing.file.write(d.listing.id.page, &page)?;
        }
    }
    Ok(())
}

/// Asks redo for the pages that lack their newest version.
fn verdicts(doubtful: &[Doubtful<'_>], redo: &mut Redo<'_>) -> Result<Vec<Verdict>> {
    let lacking = doubtful.iter().filter(|d| d.lacks_newest());
    let wanted: BTreeMap<PageId, Lsn> = lacking.map(|d| (d.listing.id, d.newest())).collect();
    let mut found = match wanted.is_empty() {
        true => BTreeMap::new(),
        false => redo(&wanted)?,
    };
    let verdict = |d: &Doubtful<'_>| match wanted.contains_key(&d.listing.id) {
        false => Verdict::Whole,
        true => {
            let records = found.remove(&d.listing.id).unwrap_or_default();
            match records.last() {
                Some(last) if last.get().lsn > d.newest() => Verdict::Anew,
                _ => d.built(&records).map_or(Verdict::Lost, Verdict::Built),
            }
        }
    };
    Ok(doubtful.iter().map(verdict).collect())
}

/// Fails if a verdict depends on a place or copy that could not be read.
fn all_known(doubtful: &[Doubtful<'_>], verdicts: &[Verdict]) -> Result<()> {
    let mut unknown = doubtful
        .iter()
        .zip(verdicts)
        .filter_map(|(d, verdict)| d.unknown(verdict));
    let Some((id, why)) = unknown.next() else {
        return Ok(());
    };
    let others = match unknown.count() {
        0 => String::new(),
        n => format!(" (and {n} others)"),
    };
    Err(match why.clone() {
        Error::Io { doing, message, kind } => Error::Io {
            doing: format!("page {id}{others} cannot be read, and neither copies nor the log have all of it: {doing}"),
            message: format!("{message}; nothing was changed: make the file readable, or restore a backup"),
            kind,
        },
        other => other,
    })
}

fn report(doubtful: &[Doubtful<'_>], verdicts: &[Verdict]) -> PagesReport {
    let mut report = PagesReport::default();
    for (d, verdict) in doubtful.iter().zip(verdicts) {
        match verdict {
            Verdict::Whole if d.better.is_some() => report.restored.push(d.listing.id),
            Verdict::Whole | Verdict::Anew => {}
            Verdict::Built(_) => report.rebuilt.push(d.listing.id),
            // A page that was given up is zeros; a page that is still needed is an error where it is read.
            Verdict::Lost if d.place.iter().flatten().all(|b| *b == 0) => {}
            Verdict::Lost => report.lost.push(d.listing.id),
        }
    }
    report
}

impl Doubtful<'_> {
    /// The newest version that the copies make, laid over what is in place: whatever blocks of the last writes there
    /// arrived, the copies of those writes have them. Copies of writes that were synced are not needed, and may be
    /// spoilt, since their area may be written over: so as few as do it are laid over. `read`: the newest first.
    fn newest_version(&self, read: Vec<(Listed, Box<[u8]>)>) -> Option<Version> {
        let spans = (0..read.len()).flat_map(|newest| (newest + 1..=read.len()).map(move |end| newest..end));
        for span in spans {
            let (listed, mut page) = (read[span.start].0, self.ground.clone());
            for (older, copy) in read[span.clone()].iter().rev() {
                older.lay_over(copy, &mut page);
            }
            if listed.is(&page, self.listing.id) {
                let copies = read.into_iter().take(span.end).skip(span.start).collect();
                return Some(Version { listed, page, copies });
            }
        }
        None
    }

    /// Whether a version of the copies is better than what is in place.
    fn is_better(&self, version: &Version) -> bool {
        match self.whole_place() {
            _ if planted(Fault::RestoreNone) => false,
            Some(place) => page_lsn(place) < page_lsn(&version.page),
            // A place that has rotted, or cannot be read, may be newer than all lists that are left.
            None => version.listed.sure,
        }
    }

    /// What is in place, if it is whole.
    fn whole_place(&self) -> Option<&[u8]> {
        let is_whole = |page: &&[u8]| verify_page(page, self.listing.id).is_ok() || planted(Fault::PageChecksum);
        self.place.as_deref().filter(is_whole)
    }

    /// The page and the error, if the verdict depends on a place or copy that could not be read.
    fn unknown(&self, verdict: &Verdict) -> Option<(PageId, &Error)> {
        let is_needed = match verdict {
            Verdict::Whole => self.place.is_none() && self.better.is_none(),
            Verdict::Built(_) | Verdict::Anew => false,
            Verdict::Lost => true,
        };
        let why = self.unread.as_ref().filter(|_| is_needed);
        Some((self.listing.id, why?))
    }

    /// The newest version that is whole.
    fn base(&self) -> Option<&[u8]> {
        match &self.better {
            Some(version) => Some(&version.page),
            None => self.whole_place(),
        }
    }

    /// The LSN of the newest version, as the lists say.
    fn newest(&self) -> Lsn {
        self.listing.copies.iter().map(|c| c.lsn).max().unwrap_or(Lsn::ZERO)
    }

    fn lacks_newest(&self) -> bool {
        self.base().map_or(Lsn::ZERO, page_lsn) < self.newest()
    }

    /// The newest version, if `records` build it on the base.
    fn built(&self, records: &[OwnedRecord]) -> Option<Box<[u8]>> {
        let from = self.base().map_or(Lsn::ZERO, page_lsn);
        let newer: Vec<_> = records.iter().map(OwnedRecord::get).filter(|r| r.lsn > from).collect();
        let (first, last) = (newer.first()?, newer.last()?);
        let comes_by = |lsn: Lsn| lsn <= from || newer.iter().any(|r| r.lsn == lsn);
        // A record that begins before the base's LSN is in the base.
        let follows =
            from > Lsn::ZERO && first.prev.position() < from && self.listing.copies.iter().all(|c| comes_by(c.lsn));
        if last.lsn != self.newest() || !(first.is_base || follows) {
            return None;
        }
        let mut page: Box<[u8]> = self.base().map_or_else(|| vec![0; PAGE_SIZE].into(), Into::into);
        newer.iter().try_for_each(|record| apply(&mut page, record)).ok()?;
        assert!(
            page_lsn(&page) == last.lsn,
            "redo leaves a page at the LSN of its last record"
        );
        set_page_checksum(&mut page);
        verify_page(&page, self.listing.id).is_ok().then_some(page)
    }

    /// What is to be written in place.
    fn put(&self, verdict: &Verdict) -> Option<Box<[u8]>> {
        match verdict {
            Verdict::Whole => self.better.as_ref().map(|version| version.page.clone()),
            // If it is there already, it may be as a former page.
            Verdict::Built(_) => self.base().map(Into::into),
            // The place could not be read, or is stale.
            Verdict::Anew => Some(vec![0; PAGE_SIZE].into()),
            Verdict::Lost => self.whole_place().map(damaged),
        }
    }
}

/// The page with a checksum that does not fit, so that no read takes it for the newest.
fn damaged(page: &[u8]) -> Box<[u8]> {
    let mut page: Box<[u8]> = page.into();
    page[0] ^= 0xFF;
    page
}
