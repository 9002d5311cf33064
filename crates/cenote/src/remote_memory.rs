//! The memory behind a tiered database's, out of the memory pool: a first part, and slabs by which it grows.
//!
//! ```text
//!   label           "database-…-remote", or "database-…-shared": header, directory, the first pages
//!   label-slab-0    pages; each slab is a grant of its own, on the node that had most room
//!   label-slab-1
//! ```
//!
//! The process that holds the first part may have all slabs: the manager takes them from any other holder, and gives
//! them to no process that has lost the first part (`RemoteGrant::open_slabs` in the pool). So nothing is remembered of
//! a slab that was given back and is asked for again. The first part itself is taken from another holder once, at the
//! start, when this process has taken the data directory; a process that holds it later has taken the directory, too.

use crate::config::PoolSettings;
use crate::log;
use crate::pooled::{credentials, label};
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_engine::{Growth, RemoteProvider, RemoteSource};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::RemoteMemory;
use cenote_pool::holder::{
    Credentials, OnRevoked, ReachedSlab, RemoteAccess, RemoteGrant, RemoteReader, RemoteRequest, SlabsWanted,
};
use cenote_pool::slab_label;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long a memory node may take to register a slab.
const SLAB_PATIENCE: Nanos = Nanos::from_secs(15);

/// What the pool calls the memory behind a tiered database's.
#[derive(Debug, Clone)]
pub enum Label {
    /// As the file in its data directory says.
    Known(String),
    /// By the database's number, which every server of one on storage nodes knows.
    OfDatabase,
}

impl Label {
    /// Of a database in files.
    ///
    /// # Errors
    /// Those of the directory's file.
    pub fn of_directory(data: &Path) -> Result<Label> {
        Ok(Label::Known(format!("{}-remote", label(data)?)))
    }

    fn of(&self, database: u128) -> String {
        match self {
            Label::Known(label) => label.clone(),
            Label::OfDatabase => format!("database-{database:032x}-shared"),
        }
    }

    fn of_slab(&self, database: u128, slab: u32) -> String {
        slab_label(&self.of(database), slab)
    }
}

/// The way to the memory behind a tiered database's. It is asked for when that has its data directory, and not before:
/// the first time it is taken from the process that has had it until then, which has lost the directory to this one.
///
/// # Errors
/// Those of files; where the pool refuses, or is not there, the database goes on with storage, and asks again.
pub fn reach(
    pool: &PoolSettings,
    label: Label,
    data: &Path,
    size: ByteSize,
    growth: Option<Growth>,
) -> Result<RemoteSource> {
    let holder = Holder {
        network: Arc::new(Tcp),
        credentials: credentials(pool)?,
        label,
        description: data.display().to_string(),
        pod: pool.pod.clone(),
        bytes: size.bytes(),
        slab: growth.map_or(0, |growth| growth.slab),
        held: Mutex::default(),
    };
    match growth {
        Some(growth) => RemoteSource::growing(Arc::new(holder), growth),
        None => Ok(RemoteSource::of(Arc::new(holder))),
    }
}

/// The way of a reader to the memory that the database's server fills: under keys that only read, on whichever nodes it
/// is when it is asked for.
///
/// # Errors
/// The secret cannot be read; the manager's addresses are none.
pub fn reach_to_read(pool: &PoolSettings) -> Result<RemoteSource> {
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let access = RemoteAccess::to_read(&network, &credentials(pool)?)?;
    Ok(RemoteSource::of(Arc::new(Reader(access))))
}

/// Of a process that reads. It holds nothing: parts are asked for by name each time.
struct Reader(Arc<RemoteAccess>);

impl RemoteProvider for Reader {
    fn connect(&self, database: u128) -> Result<RemoteMemory> {
        RemoteReader::new(&self.0, Label::OfDatabase.of(database)).connect()
    }

    fn slab(&self, database: u128, slab: u32) -> Result<RemoteMemory> {
        RemoteReader::new(&self.0, Label::OfDatabase.of_slab(database, slab)).connect()
    }

    fn give_back(&self, _: u128, _: u32) -> Result<()> {
        Ok(())
    }
}

/// Of the process that holds it. Grants may be lost: their node is given up, or the lease lapsed.
struct Holder {
    network: Arc<dyn Network>,
    credentials: Credentials,
    label: Label,
    description: String,
    pod: Option<String>,
    bytes: u64,
    /// Bytes of a slab.
    slab: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    access: Option<Arc<RemoteAccess>>,
    first: Option<RemoteGrant>,
    slabs: BTreeMap<u32, RemoteGrant>,
    /// The first part was granted to this process.
    was_granted: bool,
}

impl Held {
    fn first(&self) -> Result<&RemoteGrant> {
        let none = || Error::Lost("the first part of remote memory is not held: its slabs wait for it".into());
        self.first.as_ref().ok_or_else(none)
    }

    /// A slab that is held is reached anew; `None`: it is not held.
    fn connect(&mut self, slab: u32) -> Option<Result<RemoteMemory>> {
        let connected = self.slabs.get(&slab)?.connect();
        if matches!(connected, Err(Error::Revoked(_))) {
            self.slabs.remove(&slab);
        }
        Some(connected)
    }

    /// Slabs belong to the first part. Their leases lapse; the pool keeps the memory for the next holder of that.
    fn lose(&mut self) {
        self.first = None;
        self.slabs.clear();
    }
}

impl Holder {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requested(&self, label: String, bytes: u64) -> RemoteRequest {
        RemoteRequest {
            label,
            description: self.description.clone(),
            bytes,
            pod: self.pod.clone(),
        }
    }

    /// The fabric is opened, and the manager asked, over one access for all parts.
    fn access(&self, held: &mut Held) -> Result<Arc<RemoteAccess>> {
        if let Some(access) = &held.access {
            return Ok(Arc::clone(access));
        }
        let access = RemoteAccess::to_hold(&self.network, &self.credentials)?;
        held.access = Some(Arc::clone(&access));
        Ok(access)
    }

    /// A process that holds it after this one has the data directory too: it is not taken back.
    fn open_first(&self, held: &mut Held, database: u128) -> Result<()> {
        let (requested, takes) = (self.requested(self.label.of(database), self.bytes), !held.was_granted);
        let on_revoked = Box::new(|error: &Error| log::warn!("{error}; going on without remote memory"));
        let opened = RemoteGrant::open(&self.access(held)?, requested, takes, on_revoked)?;
        self.say("", &opened);
        held.was_granted = true;
        held.first = Some(opened);
        Ok(())
    }

    /// From a memory node that is away to another: also if another process of this database holds it, the first time.
    fn move_first(&self, held: &mut Held, database: u128) -> Result<()> {
        let requested = self.requested(self.label.of(database), self.bytes);
        let on_revoked = Box::new(|error: &Error| log::warn!("{error}; going on without remote memory"));
        let (access, whose) = (self.access(held)?, (!held.was_granted, held.first.as_ref()));
        let opened = RemoteGrant::open_elsewhere(&access, requested, whose, on_revoked)?;
        self.say("", &opened);
        held.was_granted = true;
        held.first = Some(opened);
        Ok(())
    }

    /// Asks for slabs that are not held, and keeps those that there are.
    fn open_slabs(
        &self,
        held: &mut Held,
        slabs: &[u32],
        patience: Nanos,
        reached: &mut dyn FnMut(u32, Result<RemoteMemory>),
    ) -> Result<()> {
        let on_revoked =
            |slab: u32| -> OnRevoked { Box::new(move |error| log::warn!("{error}; going on without slab {slab}")) };
        let wanted = SlabsWanted {
            slabs,
            bytes: self.slab,
            description: &self.description,
            pod: self.pod.as_deref(),
            patience,
            on_revoked: &on_revoked,
        };
        let mut opened = BTreeMap::new();
        let asked = held
            .first()?
            .open_slabs(&wanted, &mut |slab, answer: Result<ReachedSlab>| {
                let memory = answer.map(|(grant, memory)| {
                    self.say(&format!("slab {slab}: "), &grant);
                    opened.insert(slab, grant);
                    memory
                });
                reached(slab, memory);
            });
        held.slabs.append(&mut opened);
        asked
    }

    fn open_slab(&self, held: &mut Held, slab: u32) -> Result<RemoteMemory> {
        let mut memory = Err(Error::Lost(format!("slab {slab} is not granted")));
        self.open_slabs(held, &[slab], SLAB_PATIENCE, &mut |_, reached| memory = reached)?;
        memory
    }

    fn say(&self, what: &str, opened: &RemoteGrant) {
        log::info!(
            "memory pool at {}: {what}grant {} of pod {}, over the fabric, {}",
            self.credentials.manager,
            opened.id(),
            opened.pod(),
            if opened.is_fresh() { "new" } else { "kept from before" }
        );
    }
}

impl RemoteProvider for Holder {
    fn connect(&self, database: u128) -> Result<RemoteMemory> {
        let mut held = self.lock();
        if held.first.is_none() {
            self.open_first(&mut held, database)?;
        }
        let connected = held.first()?.connect();
        if matches!(connected, Err(Error::Revoked(_))) {
            held.lose();
        }
        connected
    }

    fn elsewhere(&self, database: u128) -> Result<()> {
        self.move_first(&mut self.lock(), database)
    }

    fn slab(&self, _: u128, slab: u32) -> Result<RemoteMemory> {
        let mut held = self.lock();
        if let Some(connected) = held.connect(slab) {
            return connected;
        }
        match self.open_slab(&mut held, slab) {
            // It was made with other settings: what is there serves no server of these.
            Err(Error::Mismatch(why)) => {
                log::info!("slab {slab}: {why}; it is freed, and asked for again");
                held.first()?.free_slab(slab)?;
                self.open_slab(&mut held, slab)
            }
            opened => opened,
        }
    }

    fn slabs(&self, _: u128, slabs: &[u32], patience: Nanos, reached: &mut dyn FnMut(u32, Result<RemoteMemory>)) {
        let mut held = self.lock();
        let (there, mut left): (Vec<u32>, Vec<u32>) = slabs.iter().partition(|slab| held.slabs.contains_key(slab));
        let asked = left.clone();
        let outcome = self.open_slabs(&mut held, &asked, patience, &mut |slab, memory| {
            left.retain(|other| *other != slab);
            reached(slab, memory);
        });
        if let Err(error) = outcome {
            left.iter().for_each(|slab| reached(*slab, Err(error.clone())));
        }
        for slab in there {
            held.connect(slab).into_iter().for_each(|memory| reached(slab, memory));
        }
    }

    /// A slab that is not held, as of the start before, is freed as well.
    fn give_back(&self, _: u128, slab: u32) -> Result<()> {
        let mut held = self.lock();
        // First its lease ends: else a renewal would find it revoked, and say so.
        held.slabs.remove(&slab);
        held.first()?.free_slab(slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_called_after_the_first_part() {
        let (known, of_database) = (Label::Known("database-7-remote".into()), Label::OfDatabase);
        assert_eq!(known.of(9), "database-7-remote");
        assert_eq!(known.of_slab(9, 12), "database-7-remote-slab-12");
        let first = of_database.of(0xab);
        assert_eq!(first, format!("database-{:032x}-shared", 0xab));
        assert_eq!(of_database.of_slab(0xab, 0), format!("{first}-slab-0"));
        assert_ne!(of_database.of_slab(0xab, 1), of_database.of_slab(0xac, 1));
    }

    #[test]
    fn a_slab_needs_the_first_part() {
        let pool = PoolSettings {
            manager: "127.0.0.1:1".into(),
            pod: None,
            tenant: "default".into(),
            secret_file: None,
            mirror: false,
        };
        let growth = |most| {
            let (slab, worth) = (16 << 20, 100);
            Some(Growth { slab, most, worth })
        };
        let reach = |growth| reach(&pool, Label::OfDatabase, Path::new("/d"), ByteSize::mib(64), growth);
        assert_eq!(reach(None).expect("it is").growth(), None);
        assert_eq!(reach(growth(3)).expect("it is").growth(), growth(3));
        assert!(reach(growth(65)).is_err());
        let holder = reach(growth(3)).expect("it is");
        let patience = Nanos::from_secs(20);
        for refused in [holder.slab(7, 0, patience).map(drop), holder.give_back(7, 0, patience)] {
            assert!(
                matches!(&refused, Err(Error::Lost(text)) if text.contains("first part")),
                "{refused:?}"
            );
        }
    }
}
