//! Who owns a data directory: the file `owner`, which each start replaces before it reads anything else.
//!
//! A directory may be reached by several hosts, and file locks hold on one. So a start says in `owner` that the
//! directory is its own, by a token that it has drawn, and then reads the log. An instance that was there before looks
//! at the file after each sync of the log and before it tells anybody, before each batch of pages, and before each
//! change of the control file: it finds another token, tells nobody, and ends.
//!
//! ```text
//!  old:  write log ─ sync ─ read owner ─ still mine? ─ yes ─▶ acknowledged: the new one, which writes `owner` later,
//!                                            │                and reads the log after that, finds it
//!                                            └─ no ──▶ ends; nothing was acknowledged
//!  new:  write owner ─ sync ─ read log ─ take files of an own generation from the log's end on
//! ```
//!
//! What the old one writes later still, stopped between look and write, does not reach the new one's log: the segment
//! in which the log ended was copied, and the control file replaced, when the directory came to another host. Pages in
//! place have no such files: there the host agent's word counts, that no process of the old instance is left.
//!
//! ```text
//! two copies, at 0 and 4096, written at once
//!   0 u64 magic       8 u32 format version  12 u16 length of the host's name
//!  14 u16 flags: 1 the handover from the host before is not finished, 2 the grant is a former owner's
//!  16 u128 token     32 u64 generation      40 u64 host   48 u64 host's epoch
//!  56 u64 grant      64 u64 grant's epoch   72 64 bytes: the host's name
//! 136 u32 crc32c of 0..136
//! ```

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::error::IoContext;
use cenote_base::rt;
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs::{self, OpenOptions, Replacement};
use cenote_base::{Error, Result, crc};
use cenote_fabric::Origin;

use crate::nodes::{StorageNodes, Taken};

const MAGIC: u64 = u64::from_le_bytes(*b"CenOwner");
const FORMAT_VERSION: u32 = 1;
const COPIES: [usize; 2] = [0, 4096];
const UNFINISHED: u16 = 1;
const CARRIED: u16 = 2;
const NAME: usize = 72;
const NAME_MAX: usize = 64;
const SUM: usize = NAME + NAME_MAX;
const SIZE: usize = SUM + 4;
const FILE_SIZE: usize = COPIES[1] + SIZE;
/// Looks at a file that cannot be read as it should be, before that counts.
const LOOKS: usize = 3;
/// How long the system may be short of what a look needs, and when it is looked again.
const PATIENCE: Nanos = Nanos::from_secs(5);
const LOOK_AGAIN: Nanos = Nanos::from_millis(20);
/// Starts that may be faster than one that claims the directory, before it gives up.
const TRIES: usize = 16;

const _: () = assert!(COPIES[0] + SIZE <= COPIES[1], "the copies are apart");

/// A grant of a memory pool, and the epoch in which it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The grant.
    pub grant: u64,
    /// It rises with each holder.
    pub epoch: u64,
}

/// What is called when the directory is found to be another's, with the reason. It should end the process.
pub type OnLost = Arc<dyn Fn(&Error) + Send + Sync>;

/// As whom a start takes a data directory.
#[derive(Clone)]
pub struct Claim {
    /// The host.
    pub host: Origin,
    /// The grant that its memory is, if it is a pool's: a holder of before is refused.
    pub holding: Option<Holding>,
    /// What ends the process when the directory is another's.
    pub on_lost: Option<OnLost>,
    /// The start that it may take a database on storage nodes from, and no other; `None`: from any.
    pub after: Option<u64>,
}

impl Claim {
    /// That of a process of this machine, without a pool.
    pub fn machine() -> Claim {
        Claim::of(Origin::machine())
    }

    /// That of a process of `host`.
    pub fn of(host: Origin) -> Claim {
        Claim {
            host,
            holding: None,
            on_lost: None,
            after: None,
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim of {} ({:?})", self.host, self.holding)
    }
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    token: u128,
    generation: u64,
    host: u64,
    host_epoch: u64,
    holding: Option<Holding>,
    /// The holding is of an owner before this one, which has none.
    is_carried: bool,
    /// Control file and log may be files that the host before has open.
    is_unfinished: bool,
    name: String,
}

impl Owner {
    fn encode(&self) -> Vec<u8> {
        let mut copy = [0; SIZE];
        let name = self.name.as_bytes();
        let name = &name[..name.len().min(NAME_MAX)];
        let mut put = |at: usize, bytes: &[u8]| copy[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(12, &(name.len() as u16).to_le_bytes());
        let flags = if self.is_unfinished { UNFINISHED } else { 0 } | if self.is_carried { CARRIED } else { 0 };
        put(14, &flags.to_le_bytes());
        put(16, &self.token.to_le_bytes());
        let (grant, epoch) = self.holding.map_or((0, 0), |held| (held.grant, held.epoch));
        for (i, word) in [self.generation, self.host, self.host_epoch, grant, epoch]
            .iter()
            .enumerate()
        {
            put(32 + 8 * i, &word.to_le_bytes());
        }
        put(NAME, name);
        let sum = crc::crc32c(&copy[..SUM]);
        copy[SUM..].copy_from_slice(&sum.to_le_bytes());
        let mut file = vec![0; FILE_SIZE];
        COPIES
            .iter()
            .for_each(|at| file[*at..*at + SIZE].copy_from_slice(&copy));
        file
    }

    /// The first whole copy; `None` if there is none.
    fn decode(file: &[u8]) -> Result<Option<Owner>> {
        for copy in COPIES.iter().filter_map(|at| file.get(*at..*at + SIZE)) {
            let is_whole =
                get_le::<u64>(copy, 0) == Some(MAGIC) && get_le::<u32>(copy, SUM) == Some(crc::crc32c(&copy[..SUM]));
            if !is_whole {
                continue;
            }
            match get_le::<u32>(copy, 8) {
                Some(FORMAT_VERSION) => return Ok(Self::fields(copy)),
                version => {
                    return Err(Error::Mismatch(format!(
                        "the file owner of the data directory has format version {}, this program knows \
                         {FORMAT_VERSION}",
                        version.unwrap_or(0)
                    )));
                }
            }
        }
        Ok(None)
    }

    fn fields(copy: &[u8]) -> Option<Owner> {
        let length = usize::from(get_le::<u16>(copy, 12)?).min(NAME_MAX);
        let flags = get_le::<u16>(copy, 14)?;
        let holding = Holding {
            grant: get_le::<u64>(copy, 56)?,
            epoch: get_le::<u64>(copy, 64)?,
        };
        Some(Owner {
            token: get_le::<u128>(copy, 16)?,
            generation: get_le::<u64>(copy, 32)?,
            host: get_le::<u64>(copy, 40)?,
            host_epoch: get_le::<u64>(copy, 48)?,
            holding: (holding.epoch > 0).then_some(holding),
            is_carried: flags & CARRIED != 0,
            is_unfinished: flags & UNFINISHED != 0,
            name: String::from_utf8_lossy(&copy[NAME..NAME + length]).into_owned(),
        })
    }

    fn is_on(&self, host: &Origin) -> bool {
        (self.host, self.host_epoch) == (host.number(), host.epoch())
    }

    /// The one on record; `None` if there was none yet.
    fn found(path: &Path) -> Result<Option<Owner>> {
        if !fs::exists(path).doing(|| format!("looking for {}", path.display()))? {
            return Ok(None);
        }
        let owner = Owner::read(path)?.ok_or_else(|| {
            Error::corrupt(format!(
                "both copies in {} are damaged: it says of which generation the log's files are. Restore the data \
                 directory from a backup",
                path.display()
            ))
        })?;
        Ok(Some(owner))
    }

    fn read(path: &Path) -> Result<Option<Owner>> {
        let bytes = Self::bytes(path).doing(|| format!("reading {}", path.display()))?;
        Self::decode(&bytes)
    }

    fn bytes(path: &Path) -> io::Result<Vec<u8>> {
        let file = fs::open(path, OpenOptions::READ)?;
        let mut bytes = vec![0; FILE_SIZE];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

/// Where the record of the owner lies.
enum Place {
    /// In the file `owner` of a data directory.
    File(PathBuf),
    /// On storage nodes, which refuse what an earlier start asks for.
    Nodes(Arc<dyn StorageNodes>),
}

/// A data directory that this process has claimed.
pub struct Ownership {
    place: Place,
    owner: Owner,
    /// Files of later generations are of a start that lost a race for the directory.
    believed: u64,
    is_lost: AtomicBool,
    on_lost: Option<OnLost>,
}

impl Ownership {
    /// Says in `data` that the directory is this process's from here on. Its log has not been read before.
    /// `was_stopped` says whether the last process that had the database shut it down.
    ///
    /// # Errors
    /// [`Error::Revoked`] if a later holder of the same grant has the directory, or a start that was faster;
    /// [`Error::Busy`] if others take it all the time, or one in a pool's memory has not stopped; [`Error::Corrupt`] if
    /// the file is damaged; an I/O error.
    pub(crate) fn claim(data: &Path, claim: &Claim, was_stopped: &dyn Fn() -> Result<bool>) -> Result<Ownership> {
        let path = data.join("owner");
        for _ in 0..TRIES {
            let former = Owner::found(&path)?;
            if let Some(former) = &former {
                refuse_former_holder(former, claim)?;
                refuse_beside_a_holder(
                    &format!("data directory {}", data.display()),
                    former,
                    claim,
                    was_stopped,
                )?;
            }
            let claimed = Ownership::after(Place::File(path.clone()), former.as_ref(), claim);
            let doing = || format!("writing {}", path.display());
            let next = Replacement::write(&path, &claimed.owner.encode()).doing(doing)?;
            // Another start that took the directory meanwhile removes what it finds of this one's, or is found here.
            if Owner::found(&path)? != former {
                continue;
            }
            next.publish().doing(doing)?;
            for file in [&path, &data.join("control")] {
                fs::remove_unpublished(file).doing(|| format!("clearing {}", data.display()))?;
            }
            claimed.check()?;
            return Ok(claimed);
        }
        Err(Error::Busy(format!(
            "the data directory {} is being taken by other servers",
            data.display()
        )))
    }

    /// Takes the database on `nodes` for this process, if its control record is one that `check` does not refuse.
    /// `is_clean` says of a control record whether the process that wrote it last shut the database down.
    ///
    /// # Errors
    /// Those of [`Ownership::claim`]; [`Error::Timeout`] if no majority of the nodes answers.
    pub(crate) fn claim_on(
        nodes: &Arc<dyn StorageNodes>,
        claim: &Claim,
        check: &dyn Fn(Option<&[u8]>) -> Result<()>,
        is_clean: &dyn Fn(Option<&[u8]>) -> Result<bool>,
    ) -> Result<(Ownership, Taken)> {
        for _ in 0..TRIES {
            let found = nodes.owner()?;
            if claim.after.is_some_and(|after| after != found.epoch) {
                break;
            }
            check(found.control.as_deref())?;
            let former = Owner::decode(&found.record)?;
            let name = format!("database on {}", nodes.name());
            if let Some(former) = &former {
                let was_stopped = || is_clean(found.control.as_deref());
                refuse_former_holder(former, claim)?;
                refuse_beside_a_holder(&name, former, claim, &was_stopped)?;
            }
            let mut claimed = Ownership::after(Place::Nodes(Arc::clone(nodes)), former.as_ref(), claim);
            // No other host has a file of it open.
            claimed.owner.is_unfinished = false;
            match nodes.take(found.epoch, &claimed.owner.encode()) {
                Err(Error::Busy(_)) => {}
                taken => return Ok((claimed, taken?)),
            }
        }
        Err(Error::Busy(format!(
            "the database on {} is being taken by other servers",
            nodes.name()
        )))
    }

    /// Of a reader of the database on `nodes`: it takes nothing that another start could take from it.
    pub(crate) fn of_reader(nodes: &Arc<dyn StorageNodes>, claim: &Claim) -> Ownership {
        let mut none = Ownership::after(Place::Nodes(Arc::clone(nodes)), None, claim);
        none.owner.is_unfinished = false;
        none
    }

    fn after(place: Place, former: Option<&Owner>, claim: &Claim) -> Ownership {
        let believed = former.map_or(0, |former| former.generation);
        let stays = former.is_none_or(|former| former.is_on(&claim.host));
        let was_unfinished = former.is_some_and(|former| former.is_unfinished);
        let had = former.and_then(|former| former.holding);
        let owner = Owner {
            token: rt::random_u128(),
            generation: if stays {
                believed
            } else {
                believed + 1 + rt::random() % (1 << 16)
            },
            host: claim.host.number(),
            host_epoch: claim.host.epoch(),
            holding: claim.holding.or(had),
            is_carried: claim.holding.is_none() && had.is_some(),
            is_unfinished: !stays || was_unfinished,
            name: claim.host.to_string(),
        };
        Ownership {
            place,
            owner,
            believed,
            is_lost: AtomicBool::new(false),
            on_lost: claim.on_lost.clone(),
        }
    }

    /// The generation of the files that this process makes.
    pub(crate) fn generation(&self) -> u64 {
        self.owner.generation
    }

    /// The last generation of files that were found and count.
    pub(crate) fn believed(&self) -> u64 {
        self.believed
    }

    /// Whether the files that were found may be open on another host still: also if a start that was to hand them over
    /// has not come to its end.
    pub(crate) fn has_moved(&self) -> bool {
        self.owner.is_unfinished
    }

    /// Control file and log are of this host: says so for the next start.
    ///
    /// # Errors
    /// Those of [`Ownership::check`]; an I/O error.
    pub(crate) fn handed_over(&self) -> Result<()> {
        let Place::File(path) = &self.place else { return Ok(()) };
        if !self.owner.is_unfinished {
            return Ok(());
        }
        let finished = Owner {
            is_unfinished: false,
            ..self.owner.clone()
        };
        let doing = || format!("writing {}", path.display());
        let next = Replacement::write(path, &finished.encode()).doing(doing)?;
        // An owner that takes the directory after this look removes `next`, or finds what it became.
        self.check()?;
        next.publish().doing(doing)
    }

    /// Whether the directory is this process's still. Once it is not it never is again.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is not, or if that cannot be found out. Where the system is short of something for the
    /// moment it is waited, some seconds: nothing is acknowledged meanwhile.
    pub fn check(&self) -> Result<()> {
        match &self.place {
            Place::File(path) => self.check_by(path, || Owner::bytes(path)),
            Place::Nodes(_) => self.check_former(),
        }
    }

    /// As [`Ownership::check`]; nodes, which refuse all that would change something, are asked, too.
    ///
    /// # Errors
    /// Those of [`Ownership::check`]; [`Error::Timeout`] if no majority of the nodes answers.
    pub(crate) fn ask(&self) -> Result<()> {
        let Place::Nodes(nodes) = &self.place else {
            return self.check();
        };
        self.check_former()?;
        nodes.check().map_err(|error| match error {
            Error::Revoked(reason) => self.lose(&reason),
            other => other,
        })
    }

    /// Nodes have refused a change since the database is another's.
    pub(crate) fn was_refused(&self, reason: &str) {
        if let Place::Nodes(_) = &self.place {
            self.lose(reason);
        }
    }

    fn check_by(&self, path: &Path, mut look: impl FnMut() -> io::Result<Vec<u8>>) -> Result<()> {
        if planted(Fault::OwnerUnasked) {
            return Ok(());
        }
        let mut reason = String::from("its file owner cannot be read as it was written");
        let until = rt::now() + PATIENCE;
        let mut looks = 0;
        while looks < LOOKS {
            let looked = look();
            if looked.as_ref().is_err_and(fs::is_passing) && rt::now() < until {
                rt::sleep(LOOK_AGAIN);
                continue;
            }
            looks += 1;
            let found = looked.doing(|| format!("reading {}", path.display()));
            match found.and_then(|bytes| Owner::decode(&bytes)) {
                Ok(Some(now)) if now.token == self.owner.token => return self.check_former(),
                Ok(Some(now)) => {
                    reason = format!("it was taken over by {}", now.name);
                    break;
                }
                Ok(None) => {}
                Err(error) => reason = error.to_string(),
            }
        }
        Err(self.lose(&reason))
    }

    fn check_former(&self) -> Result<()> {
        match self.is_lost.load(Ordering::Acquire) {
            true => Err(self.revoked("it was not this instance's at an earlier look")),
            false => Ok(()),
        }
    }

    fn revoked(&self, reason: &str) -> Error {
        let what = match &self.place {
            Place::File(path) => format!("data directory {}", path.parent().unwrap_or(path).display()),
            Place::Nodes(nodes) => format!("database on {}", nodes.name()),
        };
        Error::Revoked(format!(
            "the {what} is not this instance's any more ({reason}): nothing is acknowledged from here on"
        ))
    }

    fn lose(&self, reason: &str) -> Error {
        let error = self.revoked(reason);
        let is_first = !self.is_lost.swap(true, Ordering::AcqRel);
        if let Some(end) = self.on_lost.as_ref().filter(|_| is_first) {
            end(&error);
        }
        error
    }
}

fn refuse_former_holder(former: &Owner, claim: &Claim) -> Result<()> {
    match (former.holding, claim.holding) {
        (Some(had), Some(has)) if had.grant == has.grant && has.epoch < had.epoch => Err(Error::Revoked(format!(
            "the data directory was taken over by {} as holder {} of grant {}: this start is of holder {}",
            former.name, had.epoch, had.grant, has.epoch
        ))),
        _ => Ok(()),
    }
}

/// A server in a pool's memory may run on another host: one without a pool, or a tool, does not end it unasked.
fn refuse_beside_a_holder(
    what: &str,
    former: &Owner,
    claim: &Claim,
    was_stopped: &dyn Fn() -> Result<bool>,
) -> Result<()> {
    let held = former.holding.filter(|_| !former.is_carried);
    match held.filter(|_| claim.holding.is_none()) {
        Some(held) if !was_stopped()? => Err(Error::Busy(format!(
            "the {what} is of the server on {}, which holds grant {} of a memory pool and has not stopped: \
             stop it first; if it is over, start the server with a pool, and stop that",
            former.name, held.grant
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
