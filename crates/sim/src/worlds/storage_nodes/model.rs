//! What is known of the database: its pages in all their versions, its spaces, its control record, where its log ends.
//!
//! It is of the last start of the database that took it, and what that one has asked for: all acknowledged but the last
//! thing, which is there or not. The next take says which.

use std::collections::{BTreeMap, VecDeque};

use cenote_base::crc::crc32c;
use cenote_base::page_io::PageRead;
use cenote_base::random::Random;
use cenote_base::{Lsn, PAGE_SIZE, PageId, RecordAddr};
use cenote_storage::nodes::{LogEnd, PageAnswer, Taken};
use cenote_storage::redo::{self, GroupBuilder, GroupRef};
use cenote_storage_node::Snapshot;

use super::snapshots::{Before, Look, Snapshots, State};

/// Numbers of spaces.
pub(super) const SPACES: u32 = 3;
/// Where the log begins.
pub(super) const ORIGIN: Lsn = Lsn::from_raw(4096);
/// Groups of a long append, each with most of a page: more than one command has room for.
const LONG: u64 = 40;
/// Appends that are kept to be compared.
const RECENT: usize = 8;

/// A page as of a group.
#[derive(Debug, Clone, Copy)]
struct Version {
    /// Where the group ends.
    end: Lsn,
    /// What the page says that it is of.
    lsn: Lsn,
    sum: u32,
}

#[derive(Debug, Clone)]
struct Page {
    bytes: Vec<u8>,
    /// The last record.
    head: RecordAddr,
    versions: Vec<Version>,
}

/// What was asked for last and is not answered.
#[derive(Debug)]
enum Pending {
    Nothing,
    /// Groups, with what was there before.
    Append {
        before: LogEnd,
        pages: BTreeMap<PageId, Option<Page>>,
    },
    Made(u32),
    Dropped(u32, BTreeMap<PageId, Page>),
}

/// What a take found.
#[derive(Debug)]
struct Take {
    end: Lsn,
    control: Option<Vec<u8>>,
    /// Whether what the former start had asked for last was carried out.
    carried_out: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Model {
    /// Pages of a space.
    pages_most: u64,
    epoch: u64,
    takes: BTreeMap<u64, Take>,
    /// The latest start that another has tried to replace.
    replaced: u64,
    /// Behind all groups, and behind those that are acknowledged.
    end: LogEnd,
    acknowledged: Lsn,
    pages: BTreeMap<PageId, Page>,
    /// With a number that no other space has had.
    spaces: BTreeMap<u32, u64>,
    made: u64,
    pending: Pending,
    /// The control record, or one of these.
    controls: Vec<Option<Vec<u8>>>,
    recent: VecDeque<(Lsn, Vec<u8>)>,
    snapshots: Snapshots,
}

/// Pages that are to be read, with the spaces' own numbers, as of a position.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub pages: Vec<PageId>,
    made: Vec<u64>,
    pub at: Lsn,
    epoch: u64,
}

impl Wanted {
    pub fn request(&self) -> Vec<(PageId, Lsn)> {
        self.pages.iter().map(|page| (*page, self.at)).collect()
    }
}

impl Model {
    /// Of a database whose spaces have so many pages.
    pub fn new(pages_most: u64) -> Self {
        Model {
            pages_most,
            epoch: 0,
            takes: BTreeMap::new(),
            replaced: 0,
            end: LogEnd::at_origin(ORIGIN),
            acknowledged: ORIGIN,
            pages: BTreeMap::new(),
            spaces: BTreeMap::new(),
            made: 0,
            pending: Pending::Nothing,
            controls: vec![None],
            recent: VecDeque::new(),
            snapshots: Snapshots::default(),
        }
    }

    pub fn is_current(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// Where the log ends that is acknowledged.
    pub fn acknowledged(&self) -> Lsn {
        self.acknowledged
    }

    // ---- who has the database ----

    /// A start tries to take the database from `former`.
    pub fn begin_take(&mut self, former: u64) {
        self.replaced = self.replaced.max(former);
    }

    /// A start hears that it took the database when another has taken it from it already.
    pub fn is_late(&self, epoch: u64) -> bool {
        epoch < self.epoch && epoch <= self.replaced
    }

    /// A start has taken the database and found this.
    pub fn took(&mut self, epoch: u64, taken: &Taken) -> Vec<String> {
        if epoch <= self.epoch {
            return vec![format!("start {epoch} takes the database behind start {}", self.epoch)];
        }
        let mut wrong = Vec::new();
        if !self.controls.contains(&taken.control) {
            wrong.push(format!(
                "start {epoch} finds the control record {:?}, it can be one of {:?}",
                taken.control, self.controls
            ));
        }
        let was_begun = taken.control.is_some();
        let carried_out = was_begun && self.settle(epoch, taken, &mut wrong);
        self.controls = vec![taken.control.clone()];
        self.epoch = epoch;
        self.acknowledged = self.end.end;
        let take = Take {
            end: self.end.end,
            control: taken.control.clone(),
            carried_out,
        };
        self.takes.insert(epoch, take);
        wrong
    }

    /// What was asked for last was carried out or not; all else is as it was acknowledged.
    fn settle(&mut self, epoch: u64, taken: &Taken, wrong: &mut Vec<String>) -> bool {
        let has = |space: u32| taken.spaces.iter().any(|extent| extent.space == space);
        let carried_out = match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Append { before, pages } if taken.log == before => {
                self.take_back(before, pages);
                false
            }
            Pending::Made(space) if has(space) => {
                self.add_space(space);
                true
            }
            Pending::Made(_) => false,
            Pending::Dropped(space, pages) if has(space) => {
                self.add_space(space);
                self.pages.extend(pages);
                false
            }
            Pending::Nothing | Pending::Append { .. } | Pending::Dropped(..) => true,
        };
        if taken.log != self.end {
            wrong.push(format!(
                "start {epoch} finds the log's end {:?}, it has to be {:?} (acknowledged: {})",
                taken.log, self.end, self.acknowledged
            ));
        }
        let found: Vec<u32> = taken.spaces.iter().map(|extent| extent.space).collect();
        let known: Vec<u32> = self.spaces.keys().copied().collect();
        if found != known {
            wrong.push(format!("start {epoch} finds the spaces {found:?}, not {known:?}"));
        }
        for extent in &taken.spaces {
            let last = self.pages_of(extent.space).map(|page| page.page + 1).max().unwrap_or(0);
            if extent.pages < last {
                wrong.push(format!(
                    "start {epoch} finds {} pages in space {}, there are {last}",
                    extent.pages, extent.space
                ));
            }
        }
        carried_out
    }

    fn take_back(&mut self, before: LogEnd, pages: BTreeMap<PageId, Option<Page>>) {
        for (id, page) in pages {
            match page {
                Some(page) => self.pages.insert(id, page),
                None => self.pages.remove(&id),
            };
        }
        self.end = before;
        while self.recent.back().is_some_and(|(at, _)| *at >= before.end) {
            self.recent.pop_back();
        }
    }

    /// A start was told that it has the database no more.
    pub fn was_revoked(&self, epoch: u64) -> Option<String> {
        (self.replaced < epoch).then(|| format!("start {epoch} was revoked, and no other tried to take its place"))
    }

    /// What the take after that of an earlier start found.
    fn take_after(&self, epoch: u64) -> Option<&Take> {
        self.takes.range(epoch + 1..).next().map(|(_, take)| take)
    }

    // ---- the log ----

    /// Some groups at the end of a start's log; where they end. Those of a start that has the database no more are of
    /// no consequence, whatever becomes of them.
    pub fn begin_append(&mut self, epoch: u64, at: LogEnd, long: bool, draw: &mut Random) -> Option<(Vec<u8>, LogEnd)> {
        let is_current = self.is_current(epoch);
        assert!(!is_current || at == self.end, "a start appends at the end of its log");
        let spaces: Vec<u32> = self.spaces.keys().copied().collect();
        if spaces.is_empty() {
            return None;
        }
        let (mut bytes, mut end, mut before) = (Vec::new(), at, BTreeMap::new());
        let most = draw.pick(&[1, 1, 3, 12]);
        let count = if long { LONG } else { 1 + draw.below(most) };
        for _ in 0..count {
            let id = PageId::new(draw.pick(&spaces), draw.below(self.pages_most) as u32);
            let head = self.pages.get(&id).map(|page| page.head).filter(|_| is_current);
            let group = group_of(id, head, end.end, long, draw);
            let parsed = GroupRef::parse(&group, end.end).expect("a group");
            end = LogEnd {
                end: parsed.end(),
                last_start: parsed.start(),
                last_checksum: parsed.checksum(),
            };
            if is_current {
                before.entry(id).or_insert_with(|| self.pages.get(&id).cloned());
                self.note(&parsed);
            }
            bytes.extend_from_slice(&group);
        }
        if is_current {
            self.pending = Pending::Append {
                before: self.end,
                pages: before,
            };
            self.recent.push_back((self.end.end, bytes.clone()));
            let surplus = self.recent.len().saturating_sub(RECENT);
            self.recent.drain(..surplus);
            self.end = end;
        }
        Some((bytes, end))
    }

    fn note(&mut self, group: &GroupRef<'_>) {
        for record in group.records() {
            let record = record.expect("a record");
            let page = self.pages.entry(record.page).or_insert_with(|| Page {
                bytes: vec![0; PAGE_SIZE],
                head: RecordAddr::NONE,
                versions: Vec::new(),
            });
            redo::apply(&mut page.bytes, &record).expect("applied");
            redo::set_page_checksum(&mut page.bytes);
            page.head = record.address;
            page.versions.push(Version {
                end: group.end(),
                lsn: redo::page_lsn(&page.bytes),
                sum: crc32c(&page.bytes),
            });
        }
    }

    pub fn end_append(&mut self, epoch: u64, end: Lsn) -> Option<String> {
        if self.is_current(epoch) {
            self.pending = Pending::Nothing;
            self.acknowledged = end;
            return None;
        }
        let found = self.take_after(epoch).map_or(Lsn::ZERO, |take| take.end);
        (end > found).then(|| {
            format!("start {epoch} was told that its log is durable up to {end}, and the next found its end at {found}")
        })
    }

    /// A position in the log, and what lies there.
    pub fn any_log(&self, epoch: u64, draw: &mut Random) -> Option<(Lsn, Vec<u8>)> {
        if !self.is_current(epoch) || self.recent.is_empty() || !matches!(self.pending, Pending::Nothing) {
            return None;
        }
        let from = draw.index(self.recent.len());
        let bytes = self
            .recent
            .iter()
            .skip(from)
            .flat_map(|(_, bytes)| bytes.iter().copied());
        Some((self.recent[from].0, bytes.collect()))
    }

    // ---- control records ----

    pub fn begin_control(&mut self, epoch: u64, control: &[u8]) {
        if self.is_current(epoch) {
            self.controls.push(Some(control.to_vec()));
        }
    }

    pub fn end_control(&mut self, epoch: u64, control: &[u8]) -> Option<String> {
        if self.is_current(epoch) {
            self.controls = vec![Some(control.to_vec())];
            return None;
        }
        let found = self.take_after(epoch).and_then(|take| take.control.as_deref());
        (found != Some(control))
            .then(|| format!("start {epoch} was told that {control:?} is noted, and the next found {found:?}"))
    }

    // ---- spaces ----

    /// A space to be made (true) or dropped.
    pub fn any_space(&self, most: u32, draw: &mut Random) -> (u32, bool) {
        let space = 7 + draw.below(u64::from(most)) as u32;
        (space, !self.spaces.contains_key(&space))
    }

    pub fn has_spaces(&self) -> bool {
        !self.spaces.is_empty()
    }

    fn add_space(&mut self, space: u32) {
        self.made += 1;
        self.spaces.insert(space, self.made);
    }

    fn pages_of(&self, space: u32) -> impl Iterator<Item = PageId> + '_ {
        self.pages.keys().copied().filter(move |page| page.space == space)
    }

    pub fn begin_space(&mut self, epoch: u64, (space, makes): (u32, bool)) {
        if !self.is_current(epoch) {
            return;
        }
        self.snapshots.leave_spaces(self.end.end);
        if makes {
            self.pending = Pending::Made(space);
            return;
        }
        self.spaces.remove(&space);
        let ids: Vec<PageId> = self.pages_of(space).collect();
        let pages = ids.into_iter().filter_map(|id| Some((id, self.pages.remove(&id)?)));
        self.pending = Pending::Dropped(space, pages.collect());
    }

    pub fn end_space(&mut self, epoch: u64, (space, makes): (u32, bool), was_current: bool) -> Option<String> {
        if self.is_current(epoch) {
            if makes {
                self.add_space(space);
            }
            self.pending = Pending::Nothing;
            return None;
        }
        let carried_out = was_current && self.take_after(epoch).is_none_or(|take| take.carried_out);
        (!carried_out).then(|| format!("start {epoch} has made or dropped space {space}, which was not its any more"))
    }

    // ---- snapshots ----

    pub fn snapshots(&mut self) -> &mut Snapshots {
        &mut self.snapshots
    }

    /// A start asks for a snapshot; false: it does not, since there are enough, or it has the database no more.
    pub fn begin_snapshot(&mut self, epoch: u64, name: &str) -> bool {
        if !self.is_current(epoch) || self.snapshots.are_enough() {
            return false;
        }
        let is_all = matches!(self.pending, Pending::Nothing);
        assert!(is_all, "a start asks for one thing at a time");
        let (end, state) = (self.end.end, self.state_as_of(self.end.end));
        self.snapshots.ask(name, end, state);
        true
    }

    /// Of the spaces that there are.
    fn state_as_of(&self, end: Lsn) -> State {
        let as_of = |page: &Page| {
            let version = page.versions.iter().rfind(|version| version.end <= end);
            version.map(|version| version.sum)
        };
        let pages = self.pages.iter().filter_map(|(id, page)| Some((*id, as_of(page)?)));
        State {
            spaces: self.spaces.keys().copied().collect(),
            pages: pages.collect(),
        }
    }

    /// A start was told that its snapshot is made.
    pub fn end_snapshot(&mut self, epoch: u64, found: &Snapshot) -> Option<String> {
        let end = self.end.end;
        if self.is_current(epoch) && found.end != end {
            let name = &found.name;
            return Some(format!(
                "snapshot {name} is as of {}, it has to be as of {end}",
                found.end
            ));
        }
        if self.is_current(epoch) && !self.controls.contains(&Some(found.control.to_vec())) {
            return Some(format!(
                "snapshot {} has the control record {:?}, it can be one of {:?}",
                found.name, found.control, self.controls
            ));
        }
        self.found_snapshot(found)
    }

    fn found_snapshot(&mut self, found: &Snapshot) -> Option<String> {
        let state = self.snapshots.tells(found.end).then(|| self.state_as_of(found.end));
        self.snapshots.found(found, self.end.end, state)
    }

    /// All that there are were told, behind `before`; what is wrong with them.
    pub fn listed_snapshots(&mut self, before: &Before, found: &[Snapshot]) -> Vec<String> {
        let mut wrong = self.snapshots.missing(before, found);
        for snapshot in found {
            let came_back = self.snapshots.came_back(before, snapshot);
            wrong.extend(came_back.or_else(|| self.found_snapshot(snapshot)));
        }
        wrong
    }

    pub fn any_look(&self, draw: &mut Random) -> Option<Look> {
        self.snapshots.any_look(SPACES, self.pages_most, draw)
    }

    pub fn all_looks(&self) -> Vec<Look> {
        self.snapshots.all_looks(self.pages_most)
    }

    /// Whether a snapshot has the space that there is.
    pub fn is_in_snapshot(&self, space: u32) -> bool {
        self.spaces.contains_key(&space) && self.snapshots.have(space)
    }

    // ---- pages ----

    /// Some pages, as of what is acknowledged; `None`: the start has the database no more.
    pub fn any_pages(&self, epoch: u64, draw: &mut Random) -> Option<Wanted> {
        let spaces: Vec<(u32, u64)> = self.spaces.iter().map(|(space, made)| (*space, *made)).collect();
        if !self.is_current(epoch) || spaces.is_empty() {
            return None;
        }
        let count = draw.pick(&[1, 1, 4, 10]);
        let drawn = (0..count).map(|_| {
            let (space, made) = draw.pick(&spaces);
            // The last one is never written.
            (PageId::new(space, draw.below(self.pages_most + 1) as u32), made)
        });
        let (pages, made) = drawn.unzip();
        Some(self.wanted(epoch, pages, made))
    }

    /// Every page.
    pub fn all_pages(&self) -> Wanted {
        let pages: Vec<PageId> = self.pages.keys().copied().collect();
        let made = pages
            .iter()
            .map(|page| self.spaces.get(&page.space).copied().unwrap_or(0));
        self.wanted(self.epoch, pages.clone(), made.collect())
    }

    fn wanted(&self, epoch: u64, pages: Vec<PageId>, made: Vec<u64>) -> Wanted {
        Wanted {
            pages,
            made,
            at: self.acknowledged,
            epoch,
        }
    }

    /// What is wrong with an answer; one to a start that has the database no more, or of a space that was dropped
    /// meanwhile, may be anything.
    pub fn saw(&self, wanted: &Wanted, n: usize, answer: &PageAnswer) -> Option<String> {
        let (id, at) = (wanted.pages[n], wanted.at);
        if self.epoch != wanted.epoch || self.spaces.get(&id.space) != Some(&wanted.made[n]) {
            return None;
        }
        let versions = self.pages.get(&id).map_or(&[][..], |page| &page.versions);
        let least = versions.iter().rposition(|version| version.end <= at);
        let (bytes, read) = match answer {
            Ok(answer) => answer,
            Err(error) => return Some(format!("page {id} as of {at}: {error}")),
        };
        if *read == PageRead::NeverWritten {
            return least.map(|_| format!("page {id} as of {at}: it is said not to be written"));
        }
        let lsn = redo::page_lsn(bytes);
        let found = versions.iter().position(|version| version.lsn == lsn);
        match found {
            None => Some(format!("page {id} as of {at} is as of {lsn}, and no group ends there")),
            Some(found) if least.is_some_and(|least| found < least) => {
                Some(format!("page {id} as of {at} is stale: as of {lsn}"))
            }
            Some(found) if versions[found].sum != crc32c(bytes) => Some(format!(
                "page {id} as of {at} is not what the group at {lsn} makes of it"
            )),
            Some(_) => None,
        }
    }
}

/// A group that changes a page whose last record is `head`; one without is made.
fn group_of(id: PageId, head: Option<RecordAddr>, at: Lsn, long: bool, draw: &mut Random) -> Vec<u8> {
    let mut builder = GroupBuilder::new();
    let record = builder.begin_page(id, head.unwrap_or(RecordAddr::NONE));
    if head.is_none() || draw.one_in(20) {
        builder.init(record, 1, 0);
    }
    for _ in 0..=draw.below(4) {
        let offset = 64 + draw.index(PAGE_SIZE - 600);
        let data: Vec<u8> = (0..1 + draw.below(400)).map(|_| draw.word() as u8).collect();
        builder.write(record, offset, &data);
    }
    if long {
        builder.write(record, 64, &vec![draw.word() as u8; PAGE_SIZE - 128]);
    }
    builder.finish_at(at).expect("a group").to_vec()
}
