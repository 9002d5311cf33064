//! A copy of a database while it is used, and a database made from such a copy.
//!
//! The copy of the pages is fuzzy: each is as it was in storage at some moment. The log makes them one state: the copy
//! has it from the checkpoint that counted at its beginning to a position that was durable at its end. A start on the
//! copy is ordinary recovery from storage.
//!
//! 1. Recycling of the log is held; the checkpoint is read.
//! 2. Spaces are copied page by page, with checksums verified (a page that is read in the middle of a write is read
//!    again without its writer), then those that were made meanwhile, until the end was
//!    read after all of them: the log up to the end names only spaces that were made before it.
//! 3. The log is copied from the checkpoint to the end.
//! 4. The control file is written last: a copy without one is not finished.
//!
//! Storage nodes have no checkpoint of the database's, and keep the log for as long as they like. So the copy begins at
//! what is durable at its beginning: each page is asked for at least as of that. The log is copied on the way. A node
//! may answer a page with redo that is on a majority, and not yet known here to be: the end is read after that is
//! known.
//!
//! Copy and restored database get ids of their own, so that they share neither memory nor files
//! with the original.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use cenote_base::page_io::PageRead;
use cenote_base::rt;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use crate::control::{Control, ControlFile};
use crate::files::{doing, log_dir, prepare, space_name, spaces_dir};
use crate::log::{LogCopy, LogSource};
use crate::nodes::PageAnswer;
use crate::page_source::{PageSource, one_by_one};
use crate::pages::Spaces;
use crate::redo::page_lsn;
use crate::storage::Storage;

/// Pages that are read at a time.
const BATCH: u32 = 32;
/// Pages of a space after which the log is copied: 16 MiB.
const MEANWHILE_EVERY: u32 = 32 * BATCH;

/// The size of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Spaces.
    pub spaces: u64,
    /// Pages that had been written.
    pub pages: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// The state of the database that the copy holds: everything below.
    pub lsn: Lsn,
}

/// Files of a copy, which nobody writes.
struct Copied<'a>(&'a Spaces);

impl PageSource for Copied<'_> {
    fn spaces(&self) -> Vec<u32> {
        self.0.all()
    }

    fn has_space(&self, space: u32) -> bool {
        self.0.exists(space)
    }

    fn page_count(&self, space: u32) -> Result<u32> {
        self.0.get(space)?.pages()
    }

    fn read(&self, ids: &[PageId]) -> Vec<PageAnswer> {
        one_by_one(ids, |id, page| self.0.read_in_place(id, page))
    }
}

impl Storage {
    /// Copies the database to the directory `destination`, which must be empty or missing. May run
    /// while the database is used. The copy has all commits that were acknowledged before the call.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the directory is not empty; [`Error::Corrupt`] if a page is damaged,
    /// with its name; [`Error::Past`] if storage nodes keep the log no longer, [`Error::Timeout`] if they do not answer;
    /// an I/O error.
    /// Without a control file, the copy is no backup.
    pub fn backup(&self, destination: &Path) -> Result<BackupReport> {
        let _hold = self.log().hold();
        let checkpoint = self.control().get().checkpoint;
        self.log().flush_all()?;
        let begin = self.log().durable();
        prepare(destination)?;
        let (pages, from) = self.pages().source(checkpoint, begin);
        let mut copy = Copy::new(&*pages, destination);
        let mut log = LogCopy::new(self.log().source(), &log_dir(destination), copy.database, from)?;
        let (mut copied, mut end) = (BTreeSet::new(), begin);
        loop {
            let new: Vec<u32> = pages.spaces().into_iter().filter(|s| !copied.contains(s)).collect();
            if new.is_empty() {
                break;
            }
            for space in new {
                copy.space(space, &mut || log.copy_to(self.log().durable()))?;
                copied.insert(space);
            }
            self.log().flush_all()?;
            end = self.log().durable();
        }
        let control = Control {
            checkpoint: from,
            durable: end,
            ..self.control().get()
        };
        assert!(from <= end, "a backup has the log from {from} to {end}");
        copy.finish(log, control)
    }
}

/// Makes a database in the directory `data`, which must be empty or missing, from a backup.
/// Everything is verified on the way.
///
/// # Errors
/// [`Error::Invalid`] if the directory is not empty; [`Error::Corrupt`] if something in the backup
/// is damaged, with its name.
pub fn restore(backup: &Path, data: &Path) -> Result<BackupReport> {
    let control_path = backup.join("control");
    if !doing(fs::exists(&control_path), "looking for", &control_path)? {
        return Err(Error::Invalid(format!(
            "{} holds no finished backup: there is no control file",
            backup.display()
        )));
    }
    let control = ControlFile::open(backup)?.get();
    prepare(data)?;
    let spaces = Spaces::open(&spaces_dir(backup))?;
    let pages = Copied(&spaces);
    let mut copy = Copy::new(&pages, data);
    for space in spaces.all() {
        copy.space(space, &mut || Ok(()))?;
    }
    let source = LogSource::of_copy(&log_dir(backup), control.database)?;
    let log = LogCopy::new(source, &log_dir(data), copy.database, control.checkpoint)?;
    copy.finish(log, control)
}

/// A copy that is being made.
pub(crate) struct Copy<'a> {
    pages: &'a dyn PageSource,
    to: &'a Path,
    /// The id of the database that it becomes.
    database: u128,
    /// The newest change in a page.
    highest: Lsn,
    report: BackupReport,
}

impl<'a> Copy<'a> {
    /// In the directory `to`.
    pub fn new(pages: &'a dyn PageSource, to: &'a Path) -> Copy<'a> {
        Copy {
            pages,
            to,
            database: rt::random_u128(),
            highest: Lsn::ZERO,
            report: BackupReport::default(),
        }
    }

    /// The id of the database that it becomes.
    pub fn database(&self) -> u128 {
        self.database
    }

    /// Copies a space; `meanwhile` is done now and then.
    pub fn space(&mut self, space: u32, meanwhile: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let count = match self.pages.page_count(space) {
            // The space was dropped meanwhile: the log up to the end says so too.
            Err(_) if !self.pages.has_space(space) => return Ok(()),
            count => count?,
        };
        let path = spaces_dir(self.to).join(space_name(space));
        let file = doing(fs::open(&path, OpenOptions::TRUNCATE), "making", &path)?;
        let mut copied = 0;
        for first in (0..count).step_by(BATCH as usize) {
            if first % MEANWHILE_EVERY == 0 {
                meanwhile()?;
            }
            let numbers = first..count.min(first.saturating_add(BATCH));
            let Some(pages) = self.batch(space, numbers, &file, &path)? else {
                // Redo of before would miss the pages that were not copied; that of a space which is not there is
                // passed over.
                return doing(fs::remove(&path), "removing", &path);
            };
            copied += pages;
        }
        self.report.pages += copied;
        self.report.spaces += 1;
        settle(&file, u64::from(count) * PAGE_SIZE as u64, &path)
    }

    /// Copies pages of a space: how many; `None` if it was dropped.
    fn batch(&mut self, space: u32, numbers: Range<u32>, file: &File, path: &Path) -> Result<Option<u64>> {
        let mut copied = 0;
        let ids: Vec<PageId> = numbers.map(|number| PageId::new(space, number)).collect();
        for (id, answer) in ids.iter().zip(self.pages.read(&ids)) {
            match answer {
                Ok((_, PageRead::NeverWritten)) => {}
                Ok((page, _)) => {
                    let at = u64::from(id.page) * PAGE_SIZE as u64;
                    doing(file.write_at(&page, at), "writing", path)?;
                    copied += 1;
                    self.highest = self.highest.max(page_lsn(&page));
                }
                Err(_) if !self.pages.has_space(space) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(copied))
    }

    /// The rest of the log, then the directories, then the control file.
    pub fn finish(mut self, log: LogCopy<'_>, control: Control) -> Result<BackupReport> {
        let (from, end) = (control.checkpoint, control.durable);
        if self.highest > end {
            return Err(Error::corrupt(format!(
                "a page has changes up to {}, and the log of the copy ends at {end}",
                self.highest
            )));
        }
        log.finish(end)?;
        (self.report.log_bytes, self.report.lsn) = (end.since(from), end);
        doing(fs::sync_dir(spaces_dir(self.to)), "syncing", &spaces_dir(self.to))?;
        let control = Control {
            database: self.database,
            incarnation: 0,
            clean: false,
            ..control
        };
        ControlFile::write_new(self.to, &control)?;
        Ok(self.report)
    }
}

fn settle(file: &File, length: u64, path: &Path) -> Result<()> {
    if doing(file.len(), "measuring", path)? < length {
        doing(file.set_len(length), "extending", path)?;
    }
    doing(file.sync_data(), "syncing", path)
}
