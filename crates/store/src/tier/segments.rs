//! The files of one owner: a directory with its number as its name, a file that is locked as long as the owner lives,
//! and segments by number. They are a cache: nothing of them is synced, and what is read is checked.
//!
//! ```text
//! root/                      as all processes name it that are to read each other's values
//!      3f09…/                an owner
//!            owner           locked; the store's number
//!            1 2 3 …         segments: records one after the other; the oldest goes first
//! ```

use cenote_base::error::IoContext;
use cenote_base::rt;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const OWNER: &str = "owner";

/// The directory of an owner.
pub(super) struct Directory {
    pub path: PathBuf,
    pub owner: u64,
    /// Locked as long as it is open.
    _lock: File,
}

pub(super) fn directory_of(root: &Path, owner: u64) -> PathBuf {
    root.join(format!("{owner:016x}"))
}

impl Directory {
    /// One that an owner of the same store has left, or a new one. What owners of other stores have left under the same
    /// root is of no use to any process, and goes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn take(root: &Path, store: u64) -> Result<Self> {
        fs::create_dir_all(root).doing(|| format!("making the directory {}", root.display()))?;
        let names = fs::list(root).doing(|| format!("listing {}", root.display()))?;
        let numbers = names.iter().filter(|name| name.len() == 16);
        for owner in numbers.filter_map(|name| u64::from_str_radix(name, 16).ok()) {
            if let Some(left) = Self::take_over(root, owner, store) {
                return Ok(left);
            }
        }
        Self::make(root, store)
    }

    /// `None` if the directory's owner lives, or was another store's.
    fn take_over(root: &Path, owner: u64, store: u64) -> Option<Self> {
        let path = directory_of(root, owner);
        let lock = fs::open(path.join(OWNER), OpenOptions::WRITE).ok()?;
        if !lock.lock_exclusive().ok()? {
            return None;
        }
        let mut of = [0; 8];
        lock.read_exact_at(&mut of, 0).ok()?;
        if u64::from_le_bytes(of) != store {
            let _ = fs::remove_dir_all(&path);
            return None;
        }
        Some(Self {
            path,
            owner,
            _lock: lock,
        })
    }

    /// It has its name when it is locked, and says whose it is.
    fn make(root: &Path, store: u64) -> Result<Self> {
        let owner = rt::random().max(1);
        let (path, made) = (directory_of(root, owner), root.join(format!("new-{owner:016x}")));
        let doing = || format!("making {}", path.display());
        fs::create_dir_all(&made).doing(doing)?;
        let lock = fs::open(made.join(OWNER), OpenOptions::NEW).doing(doing)?;
        if !lock.lock_exclusive().doing(doing)? {
            return Err(Error::Busy(format!("{} is locked by another process", made.display())));
        }
        lock.write_at(&store.to_le_bytes(), 0).doing(doing)?;
        fs::rename(&made, &path).doing(doing)?;
        Ok(Self {
            path,
            owner,
            _lock: lock,
        })
    }
}

/// The segments of an owner, with their bytes.
pub(super) struct Segments {
    path: PathBuf,
    bytes_max: u64,
    by_number: BTreeMap<u64, u64>,
}

impl Segments {
    /// Those that are there.
    pub(super) fn of(path: &Path, bytes_max: u64) -> Result<Self> {
        let mut by_number = BTreeMap::new();
        for name in fs::list(path).doing(|| format!("listing {}", path.display()))? {
            let Ok(number) = name.parse::<u64>() else { continue };
            let file = fs::open(path.join(&name), OpenOptions::READ);
            if let Ok(len) = file.and_then(|file| file.len()) {
                by_number.insert(number, len);
            }
        }
        let mut segments = Self {
            path: path.to_owned(),
            bytes_max,
            by_number,
        };
        segments.make_room(u64::MAX, 0);
        Ok(segments)
    }

    /// The number that no segment has had.
    pub(super) fn next(&self) -> u64 {
        self.by_number.last_key_value().map_or(1, |(number, _)| number + 1)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.by_number.values().sum()
    }

    /// The oldest one that is there.
    pub(super) fn oldest(&self) -> u64 {
        self.by_number.first_key_value().map_or(0, |(number, _)| *number)
    }

    /// Drops the oldest segments, but for this one, until there is room for so many bytes.
    fn make_room(&mut self, keeps: u64, bytes: u64) {
        while self.bytes() + bytes > self.bytes_max {
            let Some((&oldest, _)) = self.by_number.first_key_value() else {
                return;
            };
            if oldest >= keeps {
                return;
            }
            // One that cannot be removed is not counted: it goes with the directory.
            let _ = fs::remove(self.path.join(oldest.to_string()));
            self.by_number.remove(&oldest);
        }
    }

    /// Writes records that follow each other.
    pub(super) fn write(&mut self, number: u64, offset: u64, records: &[&[u8]]) -> std::io::Result<()> {
        let bytes: u64 = records.iter().map(|record| record.len() as u64).sum();
        self.make_room(number, bytes);
        let file = fs::open(self.path.join(number.to_string()), OpenOptions::CREATE)?;
        let len = self.by_number.entry(number).or_default();
        *len = (*len).max(offset + bytes);
        file.write_vectored_at(records, offset)
    }
}
