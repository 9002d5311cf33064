//! A database in files, put on storage nodes.
//!
//! Nodes take redo, and nothing else. So each page goes there as a group of redo that has all of it, behind the last
//! position of the log that the files have: what pages say of positions (commits, above all) stays in the past.
//!
//! ```text
//!   nodes    no database ──▶ being filled ──▶ spaces, pages ──▶ a database, shut down in order, with an id of its own
//!                               ▲   │ the process ends, or nodes do not answer
//!                               └───┘ from the beginning: what is there is dropped
//! ```
//!
//! The control record says that the database is being filled, and of which one it is a copy, until all of it is there:
//! no server takes it before. A load of the same database takes the nodes from one that is under way.
//!
//! What nodes do not answer in time, or have no room for now, is tried again for [`PATIENCE`]. A load goes no faster
//! than a node takes redo in: what they have acknowledged alone would fill their logs.

use std::path::Path;
use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::page_io::PageRead;
use cenote_base::rt::fs;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Lsn, PageId, RecordAddr, Result};

use crate::branch::{Branch, Branched};
use crate::control::{self, Control};
use crate::files::doing;
use crate::log::NODE_BATCH;
use crate::nodes::{LogEnd, StorageNodes, Taken};
use crate::owner::{Claim, Ownership};
use crate::page_source::PageSource;
use crate::pages::{InUse, PageStore};
use crate::redo::GroupBuilder;
use crate::storage::DataDir;

/// Pages that are read at a time.
const BATCH: u32 = 32;
/// The log begins at a multiple of this.
const BLOCK: u64 = 4096;
/// Where the checksum lies in a group.
const CHECKSUM: usize = 16;
/// How long nodes that do not answer, or are full, are asked again.
const PATIENCE: Nanos = Nanos::from_secs(300);
/// Between two tries.
const AGAIN: Nanos = Nanos::from_millis(200);
/// Bytes of redo after which a node is to have taken it in.
const PACE: u64 = 64 << 20;

/// What was put on nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Spaces.
    pub spaces: u64,
    /// Pages that had been written.
    pub pages: u64,
    /// Bytes of redo that they took.
    pub log_bytes: u64,
}

/// Puts a copy of the database in the directory `data` on `nodes`, which have none, or one whose filling was not
/// finished. It has to have been shut down, and stays as it is; of a branch ([`crate::branch`]) the pages that it
/// shares come from `parent`, and the copy is whole. `told` hears now and then how many pages of how many
/// are there.
///
/// # Errors
/// [`Error::Invalid`] if there is no database in `data`, or it was not shut down, or the nodes have one;
/// [`Error::Busy`] if another process has it; [`Error::Corrupt`] if a page is damaged; [`Error::Full`] if the disks of
/// nodes stay full; [`Error::Timeout`] if no majority of them answers; [`Error::Revoked`] if a server, or another load,
/// takes the database.
pub fn load(
    data: &Path,
    parent: Option<&Arc<dyn StorageNodes>>,
    nodes: &Arc<dyn StorageNodes>,
    claim: &Claim,
    told: &dyn Fn(u64, u64),
) -> Result<LoadReport> {
    load_within((data, parent), nodes, claim, told, PATIENCE)
}

/// The same, with so much patience.
pub(crate) fn load_within(
    (data, parent): (&Path, Option<&Arc<dyn StorageNodes>>),
    nodes: &Arc<dyn StorageNodes>,
    claim: &Claim,
    told: &dyn Fn(u64, u64),
    patience: Nanos,
) -> Result<LoadReport> {
    let path = data.join("control");
    if !doing(fs::exists(&path), "looking for", &path)? {
        return Err(Error::Invalid(format!("there is no database in {}", data.display())));
    }
    let dir = DataDir::open(data)?;
    let control = dir.control().get();
    if !control.clean {
        return Err(Error::Invalid(format!(
            "the database in {} was not shut down: start it, and stop it",
            data.display()
        )));
    }
    let mut no_redo = |_: &_| {
        Err(Error::corrupt(format!(
            "pages in {} are torn: start the database, which makes them good, and stop it",
            data.display()
        )))
    };
    let branch = Branch::open(data, parent)?;
    let (store, _) = PageStore::open(data, control.database, None, &mut no_redo)?;
    let pages: Box<dyn PageSource + '_> = match &branch {
        Some(branch) => Box::new(Branched(&store, branch)),
        None => Box::new(InUse(&store)),
    };
    let mut filling = Filling::begin(Arc::clone(nodes), claim, &control, patience)?;
    filling.fill(&*pages, told)?;
    filling.finish(control)
}

/// Nodes that are being filled.
struct Filling {
    nodes: Arc<dyn StorageNodes>,
    origin: Lsn,
    /// Of the control record that is there.
    sequence: u64,
    /// Where the log of the nodes ends.
    at: Lsn,
    builder: GroupBuilder,
    /// Groups that come there next, and where it ends then.
    groups: Vec<u8>,
    end: LogEnd,
    /// The last page that is there, and up to where nodes have come.
    last: Option<PageId>,
    paced: Lsn,
    /// How long nodes that do not answer, or are full, are asked again.
    patience: Nanos,
    report: LoadReport,
}

impl Filling {
    /// Takes the nodes for this process, and makes them empty.
    fn begin(nodes: Arc<dyn StorageNodes>, claim: &Claim, source: &Control, patience: Nanos) -> Result<Filling> {
        let name = nodes.name();
        let is_clean = |slot: Option<&[u8]>| control::is_clean(slot, &name);
        let is_unused = |slot: Option<&[u8]>| match control::filling(slot, &name)? {
            None if slot.is_some() => Err(Error::Invalid(format!("{name} have a database"))),
            Some((_, control)) if control.database != source.database => Err(Error::Invalid(format!(
                "{name} are being filled with another database, or that was not finished: begin with nodes whose \
                 directories are empty"
            ))),
            _ => Ok(()),
        };
        let (_, taken) = Ownership::claim_on(&nodes, claim, &is_unused, &is_clean)?;
        is_unused(taken.control.as_deref())?;
        // Nothing in a page is of a later position than the log that it is in.
        let behind = Lsn::from_raw(source.checkpoint.max(source.durable).raw().next_multiple_of(BLOCK));
        let (sequence, origin, at) = match control::filling(taken.control.as_deref(), &name)? {
            Some((sequence, control)) => (
                sequence,
                control.origin,
                Self::empty(&*nodes, &taken, behind, patience)?,
            ),
            None => {
                let slot = source.being_filled(behind).encode(1);
                patiently(patience, || nodes.begin(&slot, behind))?;
                (1, behind, behind)
            }
        };
        Ok(Filling {
            nodes,
            origin,
            sequence,
            at,
            builder: GroupBuilder::new(),
            groups: Vec::new(),
            end: LogEnd::at_origin(at),
            last: None,
            paced: at,
            patience,
            report: LoadReport::default(),
        })
    }

    /// Drops what a former process has put there; where the log goes on.
    fn empty(nodes: &dyn StorageNodes, taken: &Taken, behind: Lsn, patience: Nanos) -> Result<Lsn> {
        if taken.log.end < behind {
            return Err(Error::Invalid(format!(
                "{} were being filled with this database before it went on: their log ends at {}, before its own, \
                 {behind}; begin with nodes whose directories are empty",
                nodes.name(),
                taken.log.end
            )));
        }
        let drop = |space| patiently(patience, || nodes.drop_space(space));
        taken.spaces.iter().try_for_each(|there| drop(there.space))?;
        Ok(taken.log.end)
    }

    fn fill(&mut self, pages: &dyn PageSource, told: &dyn Fn(u64, u64)) -> Result<()> {
        let mut counts = Vec::new();
        for space in pages.spaces() {
            counts.push((space, pages.page_count(space)?));
        }
        let all = counts.iter().map(|(_, count)| u64::from(*count)).sum();
        let mut done = 0;
        for (space, count) in counts {
            patiently(self.patience, || self.nodes.make_space(space))?;
            self.report.spaces += 1;
            for first in (0..count).step_by(BATCH as usize) {
                let numbers = first..count.min(first.saturating_add(BATCH));
                done += numbers.len() as u64;
                self.batch(pages, numbers.map(|number| PageId::new(space, number)).collect())?;
                told(done, all);
            }
        }
        self.send()?;
        self.pace()
    }

    fn batch(&mut self, pages: &dyn PageSource, ids: Vec<PageId>) -> Result<()> {
        for (id, answer) in ids.iter().zip(pages.read(&ids)) {
            match answer? {
                (_, PageRead::NeverWritten) => {}
                (page, _) => self.page(*id, &page)?,
            }
        }
        Ok(())
    }

    /// The next group has all of a page.
    fn page(&mut self, id: PageId, page: &[u8]) -> Result<()> {
        let start = self.at.advance(self.groups.len() as u64);
        self.builder.clear();
        let record = self.builder.page(id, RecordAddr::NONE);
        self.builder.image(record, page);
        let group = self.builder.finish_at(start)?;
        self.end = LogEnd {
            end: start.advance(group.len() as u64),
            last_start: start,
            last_checksum: get_le::<u32>(group, CHECKSUM).unwrap_or(0),
        };
        if self.end.end >= RecordAddr::END {
            return Err(Error::Full(format!(
                "the log of {} would end at {}",
                self.nodes.name(),
                self.end.end
            )));
        }
        self.groups.extend_from_slice(group);
        (self.last, self.report.pages) = (Some(id), self.report.pages + 1);
        match self.groups.len() as u64 >= NODE_BATCH {
            true => self.send(),
            false => Ok(()),
        }
    }

    fn send(&mut self) -> Result<()> {
        if self.groups.is_empty() {
            return Ok(());
        }
        patiently(self.patience, || self.nodes.append(self.at, &self.groups, self.end))?;
        self.report.log_bytes += self.groups.len() as u64;
        self.at = self.end.end;
        self.groups.clear();
        match self.at.since(self.paced) >= PACE {
            true => self.pace(),
            false => Ok(()),
        }
    }

    /// Waits until a node answers pages with what was sent, and their disks have room.
    fn pace(&mut self) -> Result<()> {
        patiently(self.patience, || {
            self.nodes.check()?;
            match self.nodes.is_full() {
                false => Ok(()),
                true => Err(Error::Full(format!(
                    "the disks of {} are nearly full: make room there, and begin again",
                    self.nodes.name()
                ))),
            }
        })?;
        if let Some(last) = self.last {
            let wanted = [(last, self.at)];
            patiently(self.patience, || {
                self.nodes
                    .read_pages(&wanted)
                    .into_iter()
                    .try_for_each(|page| page.map(drop))
            })?;
        }
        self.paced = self.at;
        Ok(())
    }

    /// All is there: it is a database.
    fn finish(self, source: Control) -> Result<LoadReport> {
        assert!(self.groups.is_empty(), "all groups were sent");
        let control = Control {
            database: rt::random_u128(),
            checkpoint: self.at,
            durable: self.at,
            is_filling: false,
            ..source.being_filled(self.origin)
        };
        let slot = control.encode(self.sequence + 1);
        patiently(self.patience, || self.nodes.set_control(&slot))?;
        Ok(self.report)
    }
}

/// Asks again where nodes do not answer in time, or have no room now.
fn patiently(patience: Nanos, call: impl Fn() -> Result<()>) -> Result<()> {
    let until = rt::now() + patience;
    loop {
        match call() {
            Err(Error::Timeout(_) | Error::Full(_)) if rt::now() < until => rt::sleep(AGAIN),
            answer => return answer,
        }
    }
}
