//! The parts of spaces that a memory node keeps.
//!
//! ```text
//!  DIR/keep-7     what the manager said of grant 7: space, part, key; checked by a checksum
//!  DIR/grant-7    the part
//! ```
//!
//! The note is there before the part is made, and goes after it: so a node that starts finds what it has to keep without the manager, and a part without a note is
//! nobody's.

use super::{grant_path, sync_directory};
use crate::book::{GrantId, SpaceId};
use crate::key::Key;
use crate::space::{Host, HostOptions, Hosts, Keeper, LocalKeeper, Part, PartOptions, Peer, SessionId, Way};
use crate::wire::{PartOrder, PartView};
use cenote_base::crc::crc32c;
use cenote_base::rt::{self, Mutex, Nanos, fs};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::Callers;
use cenote_fabric::{RegionOptions, is_blank};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NOTE_PREFIX: &str = "keep-";
const NOTE_FORMAT: &str = "cenote-part 1";
/// Lines of a part's audit that are told.
const PROBLEMS_MAX: usize = 100;

/// A part that is open.
pub(super) struct Kept {
    pub(super) order: PartOrder,
    pub(super) path: PathBuf,
    pub(super) keeper: Arc<LocalKeeper>,
    /// Serves it to other pods, and moves its extents, where the node is called over the fabric.
    pub(super) host: Option<Host>,
    /// Of the sessions of the process that kept it before; none if this is the first.
    former: Mutex<Option<Former>>,
}

/// Sessions that began before this process kept the part. Their members may come back.
#[derive(Debug, Clone)]
pub(super) struct Former {
    pub(super) until: Nanos,
    /// Those that own something. (There may be others.)
    pub(super) sessions: BTreeSet<SessionId>,
    /// The number of the first session that began later.
    first_new: SessionId,
    /// Nobody may come back any more: those who have not are being ended.
    pub(super) is_over: bool,
}

/// All of them. Lock order: `opening` → `noted` → `open`. The last two are held for a moment only, since members come through them.
pub(super) struct Parts {
    directory: PathBuf,
    hosting: Option<Hosting>,
    /// Held by who opens, closes or removes a part, which takes long where that is large.
    opening: Mutex<()>,
    noted: Mutex<BTreeMap<GrantId, Noted>>,
    open: Mutex<BTreeMap<GrantId, Arc<Kept>>>,
}

/// How parts are served to other pods.
pub(super) struct Hosting {
    pub(super) hosts: Arc<Hosts>,
    pub(super) options: HostOptions,
}

impl Hosting {
    fn start(&self, keeper: &Arc<LocalKeeper>, order: &PartOrder) -> Result<Host> {
        let options = HostOptions {
            key: order.key.number(),
            ..self.options.clone()
        };
        let host = Host::start(Arc::clone(keeper), options)?;
        self.hosts.add(&host);
        Ok(host)
    }
}

/// What there is a note of.
struct Noted {
    order: PartOrder,
    /// It is being freed, and not opened any more.
    is_closing: bool,
}

impl Noted {
    fn new(order: PartOrder) -> Self {
        Self {
            order,
            is_closing: false,
        }
    }
}

impl Parts {
    /// Reads the notes. Parts are opened by [`Parts::open_noted`].
    pub(super) fn find(directory: &Path, hosting: Option<Hosting>) -> Result<Self> {
        remove_cut_off(directory)?;
        let mut noted = BTreeMap::new();
        for grant in notes_in(directory)? {
            match read_note(directory, grant) {
                Ok(order) => _ = noted.insert(grant, Noted::new(order)),
                // The manager says it again.
                Err(error @ Error::Corrupt(_)) => eprintln!("cenote: memory node: {error}"),
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            directory: directory.into(),
            hosting,
            opening: Mutex::new(()),
            noted: Mutex::new(noted),
            open: Mutex::default(),
        })
    }

    /// Opens what is noted and not open: those that cannot be opened now stay for another time, or for the manager to decide.
    pub(super) fn open_noted(&self, lease: Nanos) -> Vec<Error> {
        let _opening = self.opening.lock();
        let opened = self.closed().into_iter().map(|order| self.open(&order, lease));
        opened.filter_map(Result::err).collect()
    }

    /// What is noted and not open: it has to be there.
    fn closed(&self) -> Vec<PartOrder> {
        let noted = self.noted.lock();
        let open = self.open.lock();
        let closed = noted
            .values()
            .filter(|noted| !noted.is_closing && !open.contains_key(&noted.order.grant));
        let there = |noted: &Noted| PartOrder {
            make: false,
            ..noted.order.clone()
        };
        closed.map(there).collect()
    }

    /// Keeps a part from here on, if it does not yet.
    pub(super) fn keep(&self, order: &PartOrder, lease: Nanos) -> Result<()> {
        let _opening = self.opening.lock();
        self.note(order)?;
        let is_open = self.open.lock().contains_key(&order.grant);
        if is_open { Ok(()) } else { self.open(order, lease) }
    }

    fn note(&self, order: &PartOrder) -> Result<()> {
        let mut noted = self.noted.lock();
        let same = |known: &PartOrder| {
            PartOrder {
                make: order.make,
                ..known.clone()
            } == *order
        };
        match noted.get(&order.grant) {
            Some(known) if known.is_closing => {
                return Err(Error::Busy(format!("grant {} is being freed", order.grant)));
            }
            Some(known) if !same(&known.order) => {
                let (grant, space, part) = (order.grant, known.order.space, known.order.part);
                return Err(Error::Mismatch(format!(
                    "grant {grant} is part {part} of space {space} here, and nothing else"
                )));
            }
            Some(_) => {}
            None => {
                write_note(&self.directory, order)?;
                noted.insert(order.grant, Noted::new(order.clone()));
            }
        }
        Ok(())
    }

    fn open(&self, order: &PartOrder, lease: Nanos) -> Result<()> {
        let path = grant_path(&self.directory, order.grant);
        let part = Arc::new(open_part(&path, order)?);
        let is_movable = part.is_movable();
        let keeper = Arc::new(LocalKeeper::new(part)?);
        let former = Mutex::new(Former::of(&keeper, lease)?);
        let hosting = self.hosting.as_ref().filter(|_| is_movable);
        let host = hosting.map(|hosting| hosting.start(&keeper, order)).transpose()?;
        let kept = Kept {
            former,
            order: order.clone(),
            path,
            keeper,
            host,
        };
        self.open.lock().insert(order.grant, Arc::new(kept));
        Ok(())
    }

    /// Keeps a part no longer. Whoever is in the middle of a request has it still.
    pub(super) fn close(&self, grant: GrantId) -> Option<PartOrder> {
        let _opening = self.opening.lock();
        if let Some(noted) = self.noted.lock().get_mut(&grant) {
            noted.is_closing = true;
        }
        let kept = self.open.lock().remove(&grant)?;
        if let Some(hosting) = &self.hosting {
            hosting.hosts.remove(kept.order.space.0);
        }
        Some(kept.order.clone())
    }

    /// A part's memory is gone.
    pub(super) fn forget(&self, grant: GrantId) -> Result<()> {
        let _opening = self.opening.lock();
        // Also a note that could not be read.
        remove_file(&note_path(&self.directory, grant))?;
        sync_directory(&self.directory)?;
        self.noted.lock().remove(&grant);
        Ok(())
    }

    /// Whether there are parts of a space here, and this is its key.
    pub(super) fn is_known(&self, space: SpaceId, key: Key) -> bool {
        self.noted
            .lock()
            .values()
            .any(|noted| noted.order.space == space && noted.order.key == key)
    }

    /// The open parts of a space.
    pub(super) fn of_space(&self, space: SpaceId) -> Vec<Arc<Kept>> {
        let open = self.open.lock();
        open.values()
            .filter(|kept| kept.order.space == space)
            .cloned()
            .collect()
    }

    /// A part that is open.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is not open yet, [`Error::Revoked`] if it is not kept here (any more).
    pub(super) fn part(&self, space: SpaceId, part: u8) -> Result<Arc<Kept>> {
        let is_it = |order: &PartOrder| order.space == space && order.part == part;
        if let Some(kept) = self.open.lock().values().find(|kept| is_it(&kept.order)) {
            return Ok(Arc::clone(kept));
        }
        match self.noted.lock().values().any(|noted| is_it(&noted.order)) {
            true => Err(Error::Busy(format!(
                "part {part} is being opened or freed by its memory node"
            ))),
            false => Err(Error::Revoked(format!(
                "part {part} of the space is not kept by this memory node (any more)"
            ))),
        }
    }

    /// Where the other parts of a space are.
    pub(super) fn set_peers(&self, space: SpaceId, parts: &[PartView], callers: &Arc<dyn Callers>) {
        for kept in self.of_space(space) {
            let Some(host) = &kept.host else { continue };
            for part in parts.iter().filter(|part| part.number != kept.order.part) {
                let Some(calls) = &part.calls else { continue };
                let hello = crate::space::Hello {
                    space: space.0,
                    key: kept.order.key.number(),
                    pod: self
                        .hosting
                        .as_ref()
                        .map_or_else(String::new, |hosting| hosting.options.pod.clone()),
                };
                let peer = Peer {
                    pod: part.pod.clone(),
                    way: Arc::new(Way::new(Arc::clone(callers), calls.clone(), hello)),
                };
                host.set_peer(part.number, peer);
            }
        }
    }

    /// All that are open.
    pub(super) fn all(&self) -> Vec<Arc<Kept>> {
        self.open.lock().values().cloned().collect()
    }

    /// Looks at all of a part: what is wrong, as far as it can be told in a message.
    pub(super) fn check(&self, grant: GrantId) -> Result<Vec<String>> {
        let kept = self.open.lock().get(&grant).cloned();
        let kept = kept.ok_or_else(|| Error::Invalid(format!("grant {grant} is no part that is open")))?;
        let mut problems = kept.keeper.audit()?;
        let more = problems.len().saturating_sub(PROBLEMS_MAX);
        problems.truncate(PROBLEMS_MAX);
        if more > 0 {
            problems.push(format!("and {more} more"));
        }
        Ok(problems)
    }
}

impl Kept {
    /// Processes of these marks are gone.
    pub(super) fn give_up(&self, is_gone: impl Fn(u64) -> bool) {
        if let Some(host) = &self.host {
            host.give_up(is_gone);
        }
    }

    pub(super) fn former(&self) -> Option<Former> {
        self.former.lock().clone()
    }

    pub(super) fn set_former_until(&self, until: Nanos) {
        if let Some(former) = &mut *self.former.lock() {
            former.until = until;
        }
    }

    pub(super) fn set_former(&self, former: Option<Former>) {
        *self.former.lock() = former;
    }

    /// Whether a session that is not here may be one of before whose member has not come back yet. It may have ended long ago: only after a lease that is known, and until then nobody may take
    /// what it holds.
    pub(super) fn may_come_back(&self, session: SessionId) -> bool {
        self.former().is_some_and(|former| session < former.first_new)
    }

    /// Whether a session that began under the process that kept it before can be somebody's again.
    ///
    /// # Errors
    /// [`Error::Revoked`] if that is over; [`Error::Busy`] if it is just ending.
    pub(super) fn check_claim(&self, session: SessionId) -> Result<()> {
        let former = self.former();
        if former.as_ref().is_some_and(|former| former.is_over) {
            return Err(Error::Busy("sessions of before are being ended: ask again".into()));
        }
        match former.filter(|former| session < former.first_new) {
            Some(_) => Ok(()),
            None => Err(Error::Revoked(format!(
                "session {} of part {} has ended: its member was silent for too long",
                session.0, self.order.part
            ))),
        }
    }
}

impl Former {
    fn of(keeper: &LocalKeeper, lease: Nanos) -> Result<Option<Self>> {
        let first_new = keeper.begin()?;
        keeper.end(first_new)?;
        let sessions = keeper.sessions().into_iter().collect();
        let is_new = first_new == SessionId(1);
        Ok((!is_new).then(|| Self {
            until: rt::now() + lease,
            sessions,
            first_new,
            is_over: false,
        }))
    }
}

/// Opens the part's file, or makes it if nobody has heard of it yet.
fn open_part(path: &Path, order: &PartOrder) -> Result<Part> {
    let region = RegionOptions::default();
    let exists = fs::exists(path).map_err(|e| Error::io(format!("looking for {}", path.display()), e))?;
    let is_there = exists && !is_blank(path);
    if !is_there && !order.make {
        let (path, space, part) = (path.display(), order.space, order.part);
        return Err(Error::Mismatch(format!(
            "{path}: it was part {part} of space {space}, and holds nothing any more"
        )));
    }
    if is_there {
        match Part::open(path, region) {
            // Its making was cut off.
            Err(Error::Mismatch(_) | Error::Corrupt(_)) if order.make => remove_file(path)?,
            part => return part.and_then(|part| check(part, order)),
        }
    }
    let options = PartOptions {
        space: order.space.0,
        part: order.part,
        tenant: crc32c(order.tenant.as_bytes()),
        bytes: order.bytes,
        movable: true,
        region,
    };
    Part::create(path, &options)
}

fn check(part: Part, order: &PartOrder) -> Result<Part> {
    match part.space() == order.space.0 && part.number() == order.part {
        true => Ok(part),
        false => Err(Error::Mismatch(format!(
            "{part:?} is not part {} of space {}",
            order.part, order.space
        ))),
    }
}

// ---- notes ----

fn note_path(directory: &Path, grant: GrantId) -> PathBuf {
    directory.join(format!("{NOTE_PREFIX}{grant}"))
}

/// Of which grants there are notes.
pub(super) fn notes_in(directory: &Path) -> Result<Vec<GrantId>> {
    super::numbered(directory, NOTE_PREFIX)
}

/// Notes whose writing a former process was killed over: nobody has heard of them.
fn remove_cut_off(directory: &Path) -> Result<()> {
    let names = fs::list(directory).map_err(|error| Error::io(format!("listing {}", directory.display()), error))?;
    let is_cut_off = |name: &&String| name.starts_with(NOTE_PREFIX) && name.ends_with(".next");
    let mut cut_off = names.iter().filter(is_cut_off);
    cut_off.try_for_each(|name| remove_file(&directory.join(name)))
}

fn write_note(directory: &Path, order: &PartOrder) -> Result<()> {
    let path = note_path(directory, order.grant);
    let body = serde_json::to_string(order).map_err(|e| Error::Invalid(e.to_string()))?;
    let text = format!("{NOTE_FORMAT} {:08x}\n{body}\n", crc32c(body.as_bytes()));
    fs::replace(&path, text.as_bytes()).map_err(|error| Error::io(format!("writing {}", path.display()), error))
}

fn read_note(directory: &Path, grant: GrantId) -> Result<PartOrder> {
    let path = note_path(directory, grant);
    let bytes = fs::read(&path).map_err(|error| Error::io(format!("reading {}", path.display()), error))?;
    let broken = || {
        Error::corrupt(format!(
            "{} does not say which part of which space grant {grant} is: it is not served until the manager says so",
            path.display()
        ))
    };
    let order = parse_note(&bytes).ok_or_else(broken)?;
    if order.grant == grant { Ok(order) } else { Err(broken()) }
}

fn parse_note(bytes: &[u8]) -> Option<PartOrder> {
    let (head, body) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    let body = body.trim_end_matches('\n');
    let sum = head.strip_prefix(NOTE_FORMAT)?.trim_start();
    let is_whole = u32::from_str_radix(sum, 16).ok()? == crc32c(body.as_bytes());
    is_whole.then(|| serde_json::from_str(body).ok()).flatten()
}

pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("removing {}", path.display()), error))
        }
        _ => Ok(()),
    }
}
