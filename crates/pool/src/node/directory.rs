//! The directory of a memory node, which one process has locked: its identity, and the files of its grants.

use crate::grant_table::{GrantId, NodeId};
use crate::host::Host;
use cenote_base::rt::{self, Nanos, fs};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::{Region, RegionOptions};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const IDENTITY: &str = "node.json";
const GRANT_PREFIX: &str = "grant-";
/// Made and removed when the node starts.
pub(super) const PROBE: &str = "probe";

/// What a node is, beyond the life of its process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) id: NodeId,
    pub(super) pool: Option<u128>,
    /// Where it listened last: members look for it there.
    #[serde(default)]
    pub(super) members: Option<String>,
    /// How long a lease lasts in the pool, in nanoseconds.
    #[serde(default)]
    pub(super) lease: Option<u64>,
    /// The latest term that a manager of the pool had: one with an older term leads no more.
    #[serde(default)]
    pub(super) term: u64,
}

/// A directory that this process has locked.
pub(super) struct Directory {
    path: PathBuf,
    /// Held for its lock.
    _lock: fs::File,
}

impl Directory {
    /// Locks the directory for this process, and makes what a new one needs.
    ///
    /// # Errors
    /// [`Error::Busy`] if another node runs there; those of files.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let failed = |what: &str, error| Error::io(format!("{what} {}", path.display()), error);
        fs::create_dir_all(path).map_err(|e| failed("making", e))?;
        let lock = fs::open(path.join("lock"), fs::OpenOptions::CREATE).map_err(|e| failed("opening", e))?;
        match lock.lock_exclusive_within(Nanos::from_millis(200)) {
            Ok(true) => {}
            Ok(false) => {
                let text = format!("{} is in use by another memory node", path.display());
                return Err(Error::Busy(text));
            }
            Err(error) => return Err(failed("locking", error)),
        }
        let directory = Self {
            path: path.into(),
            _lock: lock,
        };
        if !fs::exists(path.join(IDENTITY)).map_err(|e| failed("looking into", e))? {
            directory.write(&Identity {
                id: NodeId(rt::random()),
                pool: None,
                members: None,
                lease: None,
                term: 0,
            })?;
        }
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the node is.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; those of files.
    pub(super) fn identity(&self) -> Result<Identity> {
        let path = self.path.join(IDENTITY);
        let bytes = fs::read(&path).map_err(|error| Error::io(format!("reading {}", path.display()), error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::corrupt(format!(
                "{} does not say which memory node this is: {error}. If nothing of the directory is needed, empty it",
                path.display()
            ))
        })
    }

    fn write(&self, identity: &Identity) -> Result<()> {
        let text = serde_json::to_string(identity).map_err(|e| Error::Invalid(e.to_string()))?;
        fs::replace(self.path.join(IDENTITY), text.as_bytes())
            .map_err(|error| Error::io(format!("writing into {}", self.path.display()), error))
    }

    /// Changes what the next start finds.
    ///
    /// # Errors
    /// As [`Directory::identity`].
    pub(super) fn note(&self, change: impl FnOnce(&mut Identity)) -> Result<()> {
        let before = self.identity()?;
        let mut identity = before.clone();
        change(&mut identity);
        match identity == before {
            true => Ok(()),
            false => self.write(&identity),
        }
    }

    /// What is offered has to be there, grants that exist included.
    ///
    /// # Errors
    /// [`Error::Full`]; those of files.
    pub(super) fn check_room(&self, offered: u64) -> Result<()> {
        let name = self.path.display();
        let failed = |error| Error::io(format!("asking for the space of {name}"), error);
        let free = fs::free_bytes(&self.path).map_err(failed)?;
        let mut used = 0;
        for grant in self.grants()? {
            let file = fs::open(self.grant_path(grant), fs::OpenOptions::READ).map_err(failed)?;
            used += file.allocated().map_err(failed)?;
        }
        if free.saturating_add(used) < offered {
            return Err(Error::Full(format!(
                "{name} has room for {} and {} are offered: offer less (--size), or enlarge it (`mount -o remount,size=... `)",
                ByteSize(free + used),
                ByteSize(offered)
            )));
        }
        Ok(())
    }

    /// The processes that map a file of the directory have to be seen: else no process could be fenced, and memory in
    /// use would be taken for free. On some file systems (btrfs, overlayfs) `/proc` names a mapped file by another
    /// device than the file's own.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they are not; those of files.
    pub(super) fn check_seen(&self, host: &dyn Host) -> Result<()> {
        if rt::simulated() {
            return Ok(());
        }
        let path = self.path.join(PROBE);
        remove_file(&path)?;
        let (options, len) = (RegionOptions::default(), 1 << 20);
        match Region::create(&path, len, cenote_fabric::Identity::default(), options) {
            // All of it is granted: it was seen when the node was new.
            Err(Error::Full(_)) => return remove_file(&path),
            // A process that has its lock counts as a user of it too.
            made => drop(made?),
        }
        let mapped = Region::join(&path, options)?;
        let seen = host.holders(&path);
        drop(mapped);
        remove_file(&path)?;
        match seen?.is_empty() {
            false => Ok(()),
            true => Err(Error::Mismatch(format!(
                "{}: /proc does not show which processes map files there, so none could be fenced: give memory from a tmpfs, or another file system",
                self.path.display()
            ))),
        }
    }

    // ---- grants ----

    /// Where a grant's memory lies.
    pub(super) fn grant_path(&self, grant: GrantId) -> PathBuf {
        grant_path(&self.path, grant)
    }

    /// The grants that have memory here.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn grants(&self) -> Result<Vec<GrantId>> {
        numbered(&self.path, GRANT_PREFIX)
    }

    /// Makes the file of a grant, if it is not there; whether it is new.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn make_grant(&self, grant: GrantId) -> Result<bool> {
        let path = self.grant_path(grant);
        let failed = |error| Error::io(format!("making {}", path.display()), error);
        let file = fs::open(&path, fs::OpenOptions::CREATE).map_err(failed)?;
        let is_new = file.len().map_err(failed)? == 0;
        fs::sync_dir(&self.path).map_err(failed)?;
        Ok(is_new)
    }

    /// Removes the file of a grant, for good.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn remove_grant(&self, grant: GrantId) -> Result<()> {
        remove_file(&self.grant_path(grant))?;
        sync_directory(&self.path)
    }

    /// Bytes of a grant's file.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn grant_len(&self, grant: GrantId) -> Result<u64> {
        let path = self.grant_path(grant);
        let len = fs::open(&path, fs::OpenOptions::READ).and_then(|file| file.len());
        len.map_err(|error| Error::io(format!("looking at {}", path.display()), error))
    }
}

pub(super) fn grant_path(directory: &Path, grant: GrantId) -> PathBuf {
    directory.join(format!("{GRANT_PREFIX}{grant}"))
}

/// Numbers of the files of a kind.
pub(super) fn numbered(directory: &Path, prefix: &str) -> Result<Vec<GrantId>> {
    let names = fs::list(directory).map_err(|error| Error::io(format!("listing {}", directory.display()), error))?;
    let number = |name: &String| name.strip_prefix(prefix)?.parse().ok().map(GrantId);
    let mut grants: Vec<GrantId> = names.iter().filter_map(number).collect();
    grants.sort_unstable();
    Ok(grants)
}

/// The names of a directory are there to stay.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    fs::sync_dir(directory).map_err(|error| Error::io(format!("syncing {}", directory.display()), error))
}

pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("removing {}", path.display()), error))
        }
        _ => Ok(()),
    }
}
