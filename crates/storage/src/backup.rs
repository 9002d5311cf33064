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
//! Copy and restored database get ids of their own, so that they share neither memory nor files
//! with the original.

use std::collections::BTreeSet;
use std::path::Path;

use cenote_base::page_io::PageRead;
use cenote_base::rt;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};

use crate::control::{Control, ControlFile};
use crate::files::{doing, log_dir, space_name, spaces_dir};
use crate::log::{LogSource, copy_log};
use crate::pages::Spaces;
use crate::storage::Storage;

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

impl Storage {
    /// Copies the database to the directory `destination`, which must be empty or missing. May run
    /// while the database is used. The copy has all commits that were acknowledged before the call.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the directory is not empty; [`Error::Corrupt`] if a page is damaged,
    /// with its name; an I/O error. Without a control file, the copy is no backup.
    pub fn backup(&self, destination: &Path) -> Result<BackupReport> {
        let pages = self.pages().in_files()?;
        let _hold = self.log().hold();
        let checkpoint = self.control().get().checkpoint;
        self.log().flush_all()?;
        prepare(destination)?;
        let mut report = BackupReport::default();
        let read = |id, page: &mut [u8]| pages.read_stable(id, page);
        let (mut copied, mut end) = (BTreeSet::new(), self.log().durable());
        loop {
            let new: Vec<u32> = pages.spaces().into_iter().filter(|s| !copied.contains(s)).collect();
            if new.is_empty() {
                break;
            }
            for space in new {
                copy_space(pages.files(), &read, space, destination, &mut report)?;
                copied.insert(space);
            }
            end = self.log().durable();
        }
        let control = Control {
            checkpoint,
            durable: end,
            ..self.control().get()
        };
        assert!(
            control.checkpoint <= control.durable,
            "a backup has the log from {checkpoint} to {end}"
        );
        finish(destination, control, self.log().source(), &mut report)?;
        Ok(report)
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
    let mut report = BackupReport::default();
    let spaces = Spaces::open(&spaces_dir(backup))?;
    let read = |id, page: &mut [u8]| spaces.read_in_place(id, page);
    for space in spaces.all() {
        copy_space(&spaces, &read, space, data, &mut report)?;
    }
    let source = LogSource::of_copy(&log_dir(backup), control.database)?;
    finish(data, control, source, &mut report)?;
    Ok(report)
}

/// An empty directory with the directories of a database in it.
fn prepare(path: &Path) -> Result<()> {
    doing(fs::create_dir_all(path), "making", path)?;
    if !doing(fs::list(path), "listing", path)?.is_empty() {
        return Err(Error::Invalid(format!("the directory {} is not empty", path.display())));
    }
    for dir in [spaces_dir(path), log_dir(path)] {
        doing(fs::create_dir_all(&dir), "making", &dir)?;
    }
    doing(fs::sync_dir(path), "syncing", path)
}

/// Reads a page, verified.
type ReadPage<'a> = dyn Fn(PageId, &mut [u8]) -> Result<PageRead> + 'a;

fn copy_space(from: &Spaces, read: &ReadPage<'_>, space: u32, to: &Path, report: &mut BackupReport) -> Result<()> {
    // The space was dropped meanwhile: the log up to the end says so too.
    let Some(file) = from.find(space)? else { return Ok(()) };
    let count = file.pages()?;
    let path = spaces_dir(to).join(space_name(space));
    let file = doing(fs::open(&path, OpenOptions::TRUNCATE), "making", &path)?;
    let mut page = vec![0; PAGE_SIZE];
    for number in 0..count {
        let id = PageId::new(space, number);
        match read(id, &mut page) {
            Ok(PageRead::NeverWritten) => {}
            Ok(_) => {
                let at = u64::from(number) * PAGE_SIZE as u64;
                doing(file.write_at(&page, at), "writing", &path)?;
                report.pages += 1;
            }
            Err(_) if !from.exists(space) => break,
            Err(e) => return Err(e),
        }
    }
    report.spaces += 1;
    settle(&file, u64::from(count) * PAGE_SIZE as u64, &path)
}

fn settle(file: &File, length: u64, path: &Path) -> Result<()> {
    if doing(file.len(), "measuring", path)? < length {
        doing(file.set_len(length), "extending", path)?;
    }
    doing(file.sync_data(), "syncing", path)
}

/// The log, then the directories, then the control file.
fn finish(to: &Path, control: Control, log: LogSource<'_>, report: &mut BackupReport) -> Result<()> {
    let database = rt::random_u128();
    report.log_bytes = copy_log(&log, &log_dir(to), database, control.checkpoint, control.durable)?;
    report.lsn = control.durable;
    doing(fs::sync_dir(spaces_dir(to)), "syncing", &spaces_dir(to))?;
    let control = Control {
        database,
        incarnation: 0,
        clean: false,
        ..control
    };
    ControlFile::write_new(to, &control)
}
