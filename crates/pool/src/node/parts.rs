//! The parts of spaces that a memory node keeps.
//!
//! ```text
//!  DIR/keep-7     what the manager said of grant 7: space, part, key; checked by a checksum
//!  DIR/grant-7    the part
//! ```
//!
//! The note is there before the part is made, and goes after it: so a node that starts finds what it has to keep
//! without the manager, and a part without a note belongs to no grant.

mod opening;

use super::directory::{grant_path, numbered, remove_file, sync_directory};
use super::mirroring::{Mirroring, PartMirror};
use super::rings::{self, PartRing, Rings};
use crate::grant_table::{GrantId, NodeId, SpaceId};
use crate::key::Key;
use crate::wire::{PartOrder, PartView};
use cenote_base::crc::crc32c;
use cenote_base::rt::{self, Mutex, Nanos, fs};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::Registrar;
use cenote_fabric::rdma::call::Callers;
use cenote_fabric::{RegionOptions, is_blank};
use cenote_space::{
    Channel, Crew, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Part, PartOptions, Peer, SessionId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NOTE_PREFIX: &str = "keep-";
const NOTE_FORMAT: &str = "cenote-part 1";
/// Members that are known to be noted in a part.
const FENCED_MAX: usize = 16384;
/// Lines of a part's audit that are told.
const PROBLEMS_MAX: usize = 100;

/// A part that is open.
pub(super) struct Kept {
    pub(super) order: PartOrder,
    pub(super) path: PathBuf,
    pub(super) keeper: Arc<LocalKeeper>,
    /// Serves it to other pods, and moves its extents, where the node is called over the fabric.
    pub(super) host: Option<Host>,
    /// Over which its members of this machine ask.
    pub(super) ring: Arc<PartRing>,
    /// Where its changes reach a mirror.
    mirror: Mutex<Option<PartMirror>>,
    /// Of the sessions of the process that kept it before; none if this is the first.
    former: Mutex<Option<Former>>,
    /// Members whose fencing this process has noted in the part, which has room for the last ones.
    noted: Mutex<BTreeSet<u128>>,
}

/// Sessions that began before this process kept the part. Their members may come back.
#[derive(Debug, Clone)]
pub(super) struct Former {
    pub(super) until: Nanos,
    /// How long they have, from when they can find the part here.
    lease: Nanos,
    /// Members that look for the part may not find it here yet: none has had its time.
    pub(super) is_unnamed: bool,
    /// Those that own something. (There may be others.)
    pub(super) sessions: BTreeSet<SessionId>,
    /// The number of the first session that began later.
    first_new: SessionId,
    /// No member may come back any more: those that have not are being ended.
    pub(super) is_over: bool,
    /// No process maps the part but members. What those that did not come back had is not free yet.
    pub(super) is_ended: bool,
}

impl Former {
    /// Whether processes are being ended: none may become a member.
    pub(super) fn is_ending(&self) -> bool {
        self.is_over && !self.is_ended
    }

    /// Whether those that are to come back have come.
    pub(super) fn is_due(&self) -> bool {
        !self.is_unnamed && rt::now() > self.until
    }
}

/// All of them. Lock order: `opening` → `noted` → `peers` → `open`. The last three are held for a moment only, since
/// members come through them. The manager is asked with none of them held.
pub(super) struct Parts {
    directory: PathBuf,
    hosting: Option<Hosting>,
    rings: Arc<Rings>,
    /// Held by a thread that opens, closes or removes a part, which takes long where that is large.
    opening: Mutex<()>,
    /// Of parts that are mirrored.
    mirrored: opening::Mirrored,
    /// All parts of the spaces that some are kept of, as the manager last told.
    peers: Mutex<BTreeMap<SpaceId, Peers>>,
    noted: Mutex<BTreeMap<GrantId, Noted>>,
    open: Mutex<BTreeMap<GrantId, Arc<Kept>>>,
}

/// All parts of a space.
#[derive(Default)]
struct Peers {
    parts: Vec<PartView>,
    /// Those that are gone for good.
    lost: Vec<u8>,
    /// Those that are being made: members may have heard of them by now.
    coming: Vec<u8>,
}

/// How parts are served to other pods.
pub(super) struct Hosting {
    pub(super) hosts: Arc<Hosts>,
    /// The way to others.
    pub(super) callers: Arc<dyn Callers>,
    pub(super) options: HostOptions,
    /// The threads of all hosts.
    pub(super) crew: Arc<Crew>,
    /// Of parts that are mirrored.
    pub(super) mirroring: Option<Mirroring>,
    /// Registers parts for the cards of users, if it can.
    pub(super) registrar: Option<Arc<dyn Registrar>>,
}

impl Hosting {
    fn start(&self, keeper: &Arc<LocalKeeper>, order: &PartOrder) -> Result<Host> {
        let options = HostOptions {
            key: order.key.number(),
            members_only: true,
            // What is mirrored does not move.
            every: if order.mirrored {
                Nanos::ZERO
            } else {
                self.options.every
            },
            ..self.options.clone()
        };
        let host = Host::start_with(Arc::clone(keeper), options, Arc::clone(&self.crew))?;
        // A card shows what is not in the mirror yet, and would be gone with this memory; a host's answer waits for it.
        if !order.mirrored
            && let Err(error) = self.offer(&host)
        {
            eprintln!("cenote: memory node: {error}; the part is read by calls only");
        }
        self.hosts.add(&host);
        Ok(host)
    }

    /// Lets the cards of its members read the part's memory.
    fn offer(&self, host: &Host) -> Result<()> {
        let Some(registrar) = &self.registrar else {
            return Ok(());
        };
        let memory = host.part().region().map_again()?;
        memory.map_or(Ok(()), |memory| host.offer(Arc::clone(registrar), memory))
    }

    /// What a part's host is to know of another part: what it knows, if that is right, so that calls under way go on;
    /// also while the other's node is unknown.
    fn peer(&self, host: &Host, order: &PartOrder, part: &PartView) -> Option<Peer> {
        let known = host.peer(part.number).filter(|peer| peer.pod == part.pod);
        let Some(calls) = &part.calls else { return known };
        known.filter(|peer| peer.channel.peer() == *calls).or_else(|| {
            let hello = Hello {
                space: order.space.0,
                part: part.number,
                key: order.key.number(),
                pod: self.options.pod.clone(),
            };
            let channel = Channel::new(Arc::clone(&self.callers), calls.clone(), hello);
            Some(Peer {
                pod: part.pod.clone(),
                channel: Arc::new(channel),
            })
        })
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
    pub(super) fn find(directory: &Path, hosting: Option<Hosting>, rings: Arc<Rings>) -> Result<Self> {
        remove_cut_off(directory)?;
        rings::remove_former(directory)?;
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
            rings,
            opening: Mutex::new(()),
            mirrored: opening::Mirrored::default(),
            peers: Mutex::default(),
            noted: Mutex::new(noted),
            open: Mutex::default(),
        })
    }

    /// Opens what is noted, not mirrored and not open: those that cannot be opened now stay for another time, or for
    /// the manager to decide.
    pub(super) fn open_noted(&self, lease: Nanos) -> Vec<Error> {
        let _opening = self.opening.lock();
        let opened = self.closed(false).into_iter().map(|order| self.open(&order, lease));
        opened.filter_map(Result::err).collect()
    }

    /// What is noted and not open, of those that are mirrored or of the others: it has to be there.
    fn closed(&self, mirrored: bool) -> Vec<PartOrder> {
        let noted = self.noted.lock();
        let open = self.open.lock();
        let closed = noted.values().filter(|noted| {
            !noted.is_closing && noted.order.mirrored == mirrored && !open.contains_key(&noted.order.grant)
        });
        let there = |noted: &Noted| PartOrder {
            make: false,
            ..noted.order.clone()
        };
        closed.map(there).collect()
    }

    /// Keeps a part from here on, if it does not yet.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is mirrored, and the manager has not answered yet; those of opening it.
    pub(super) fn keep(&self, order: &PartOrder, lease: Nanos) -> Result<()> {
        // What another thread opens or closes first counts as waiting.
        let until = rt::now() + self.mirrored.patience(order);
        self.keep_until(until, order, lease)
    }

    /// The same; for one that is mirrored it waits so long at most, but for what another thread opens or closes.
    fn keep_until(&self, until: Nanos, order: &PartOrder, lease: Nanos) -> Result<()> {
        let opening = self.opening.lock();
        self.note(order)?;
        if self.is_open(order.grant) {
            return Ok(());
        }
        if !order.mirrored {
            return self.open(order, lease);
        }
        self.request(order)?;
        drop(opening);
        self.await_open(order, until)
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
        let part = open_part(&grant_path(&self.directory, order.grant), order)?;
        self.serve(Arc::new(part), &mut None, order, lease)
    }

    /// Serves a part to members. If it is mirrored that has begun: what is changed from here on counts.
    fn serve(&self, part: Arc<Part>, mirror: &mut Option<PartMirror>, order: &PartOrder, lease: Nanos) -> Result<()> {
        let is_movable = part.is_movable();
        let keeper = Arc::new(LocalKeeper::new(part)?);
        let former = Mutex::new(Former::of(&keeper, lease, order.mirrored)?);
        let hosting = self.hosting.as_ref().filter(|_| is_movable);
        let host = hosting.map(|hosting| hosting.start(&keeper, order)).transpose()?;
        let kept = Kept {
            ring: self.rings.start(&self.directory, order),
            former,
            noted: Mutex::default(),
            mirror: Mutex::new(mirror.take()),
            order: order.clone(),
            path: grant_path(&self.directory, order.grant),
            keeper,
            host,
        };
        let kept = Arc::new(kept);
        self.open.lock().insert(order.grant, Arc::clone(&kept));
        // The manager may have told before the part could be opened.
        let peers = self.peers.lock();
        self.introduce(&kept, peers.get(&order.space).unwrap_or(&Peers::default()));
        Ok(())
    }

    /// No part's changes reach a mirror any more: the node ends.
    pub(super) fn end_mirrors(&self) {
        self.all().iter().for_each(|kept| kept.end_mirror());
    }

    /// Keeps a part no longer. A request under way has it still; no card of another machine reads its memory any more.
    ///
    /// # Errors
    /// A key to it did not end, or [`Error::Busy`] while it is being opened: to be done again.
    pub(super) fn close(&self, grant: GrantId) -> Result<Option<PartOrder>> {
        let opening = self.opening.lock();
        if let Some(noted) = self.noted.lock().get_mut(&grant) {
            noted.is_closing = true;
        }
        self.mirrored.check_idle(grant)?;
        let kept = self.open.lock().get(&grant).cloned();
        let Some(kept) = kept else { return Ok(None) };
        kept.host.as_ref().map_or(Ok(()), Host::withdraw)?;
        self.open.lock().remove(&grant);
        if let Some(hosting) = &self.hosting {
            hosting.hosts.remove(kept.order.space.0, kept.order.part);
        }
        // It waits for what was asked of other nodes. No thread opens the part again meanwhile.
        drop(opening);
        kept.ring.close();
        kept.end_mirror();
        Ok(Some(kept.order.clone()))
    }

    /// No member is heard over rings any more.
    pub(super) fn close_rings(&self) {
        self.all().iter().for_each(|kept| kept.ring.close());
    }

    /// A part's memory is gone.
    pub(super) fn forget(&self, grant: GrantId) -> Result<()> {
        let _opening = self.opening.lock();
        // Also a note that could not be read.
        remove_file(&note_path(&self.directory, grant))?;
        sync_directory(&self.directory)?;
        let mut noted = self.noted.lock();
        noted.remove(&grant);
        let is_kept = |space: &SpaceId| noted.values().any(|noted| noted.order.space == *space);
        self.peers.lock().retain(|space, _| is_kept(space));
        Ok(())
    }

    /// Whether there are parts of a space here, and this is its key.
    pub(super) fn is_known(&self, space: SpaceId, key: Key) -> bool {
        self.noted
            .lock()
            .values()
            .any(|noted| noted.order.space == space && noted.order.key == key)
    }

    /// The tenant of a space that has parts here, and how many tenants have some.
    pub(super) fn tenant_of(&self, space: SpaceId) -> (String, usize) {
        let noted = self.noted.lock();
        let orders = || noted.values().map(|noted| &noted.order);
        let its = orders().find(|order| order.space == space);
        let tenants: BTreeSet<&str> = orders().map(|order| order.tenant.as_str()).collect();
        (
            its.map_or_else(String::new, |order| order.tenant.clone()),
            tenants.len(),
        )
    }

    /// The open parts of a space.
    pub(super) fn of_space(&self, space: SpaceId) -> Vec<Arc<Kept>> {
        let open = self.open.lock();
        open.values()
            .filter(|kept| kept.order.space == space)
            .cloned()
            .collect()
    }

    /// Whether a process that is no member may map a part of a space, be it open or not: one from before this process
    /// began, and not ended yet.
    pub(super) fn may_have_strangers(&self, space: SpaceId) -> bool {
        let noted = self.noted.lock();
        let open = self.open.lock();
        let has_ended = |kept: &Arc<Kept>| kept.former().is_none_or(|former| former.is_ended);
        let kept_here = noted
            .values()
            .filter(|noted| noted.order.space == space && !noted.is_closing);
        kept_here
            .map(|noted| open.get(&noted.order.grant))
            .any(|kept| !kept.is_some_and(has_ended))
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

    /// All parts of a space, and where they are; those that it had, and that are gone for good; those that are being
    /// made.
    pub(super) fn set_peers(&self, space: SpaceId, parts: &[PartView], lost: &[u8], coming: &[u8]) {
        let told = Peers {
            parts: parts.to_vec(),
            lost: lost.to_vec(),
            coming: coming.to_vec(),
        };
        let mut peers = self.peers.lock();
        self.of_space(space).iter().for_each(|kept| self.introduce(kept, &told));
        peers.insert(space, told);
    }

    /// Tells a part's host of the others: all, and no others.
    fn introduce(&self, kept: &Kept, told: &Peers) {
        if told.parts.iter().any(|part| part.grant == kept.order.grant) {
            kept.be_named();
        }
        if let (Some(hosting), Some(host)) = (&self.hosting, &kept.host) {
            let others = told.parts.iter().filter(|part| part.number != kept.order.part);
            let (mut peers, mut unreached) = (BTreeMap::new(), BTreeSet::new());
            for part in others {
                match hosting.peer(host, &kept.order, part) {
                    Some(peer) => _ = peers.insert(part.number, peer),
                    None => _ = unreached.insert(part.number),
                }
            }
            // Those that are gone for good at last: what is decided then needs to know of all others.
            host.set_peers(peers, unreached);
            host.set_gone(told.lost.iter().copied().collect());
        }
    }

    /// Whether a grant is a part that is open here.
    pub(super) fn is_open(&self, grant: GrantId) -> bool {
        self.open.lock().contains_key(&grant)
    }

    /// Whether a grant is a part of this node's, open or not.
    pub(super) fn is_noted(&self, grant: GrantId) -> bool {
        self.noted.lock().contains_key(&grant)
    }

    /// What serves calls to the parts that are here.
    pub(super) fn hosts(&self) -> Option<&Arc<Hosts>> {
        Some(&self.hosting.as_ref()?.hosts)
    }

    /// The parts of a space at other nodes that are called over the fabric, or may be, by node; `None`: that is not
    /// known, as the manager has told nothing yet, or not what has become of a part that was being made, or of a mirrored
    /// one that was freed here: it may be at another node.
    pub(super) fn elsewhere(&self, space: SpaceId) -> Option<BTreeMap<NodeId, Vec<u8>>> {
        // Those that cannot be opened too: this node would ask itself for ever. A part whose mirror is kept here is not
        // its former node's: this one is known by its own grants.
        let (noted_here, here) = self.grants_of(space);
        let peers = self.peers.lock();
        let mut elsewhere: BTreeMap<NodeId, Vec<u8>> = BTreeMap::new();
        // A node that is there, and has no calls, serves none.
        let has_calls = |part: &&PartView| part.calls.is_some() || part.members.is_none();
        let told = peers.get(&space).filter(|told| told.coming.is_empty())?;
        let parts = &told.parts;
        let is_here = |part: &&PartView| noted_here.contains(&part.grant);
        let own: BTreeSet<NodeId> = parts.iter().filter(is_here).map(|part| part.node).collect();
        let is_freed = |part: &PartView| part.mirrored && own.contains(&part.node) && !here.contains(&part.grant);
        if parts.iter().any(is_freed) {
            return None;
        }
        let others = parts.iter().filter(|part| !own.contains(&part.node));
        for part in others.filter(has_calls) {
            elsewhere.entry(part.node).or_default().push(part.number);
        }
        Some(elsewhere)
    }

    /// Grants of this node's that are parts of a space; and those without the mirrored ones that are being freed, whose
    /// parts may be at other nodes by now.
    fn grants_of(&self, space: SpaceId) -> (BTreeSet<GrantId>, BTreeSet<GrantId>) {
        let noted = self.noted.lock();
        let of_space = || noted.values().filter(|noted| noted.order.space == space);
        let stays = |noted: &&Noted| !(noted.is_closing && noted.order.mirrored);
        let grant = |noted: &Noted| noted.order.grant;
        (
            of_space().map(grant).collect(),
            of_space().filter(stays).map(grant).collect(),
        )
    }

    pub(super) fn rings(&self) -> &Arc<Rings> {
        &self.rings
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
    /// Notes members that are being fenced in the part, each once: more than it has room for would else displace each
    /// other again and again while they wait.
    ///
    /// # Errors
    /// As [`Part::note_fenced`].
    pub(super) fn note_fenced(&self, members: &[u128]) -> Result<()> {
        let new: Vec<u128> = {
            let noted = self.noted.lock();
            members
                .iter()
                .copied()
                .filter(|member| !noted.contains(member))
                .collect()
        };
        // Those of before are settled with them.
        let settled = self.keeper.part().note_fenced(&new);
        let mut noted = self.noted.lock();
        // The oldest are not known: all of them may be noted once more.
        if noted.len() + new.len() > FENCED_MAX {
            noted.clear();
        }
        noted.extend(new);
        settled
    }

    fn end_mirror(&self) {
        let mirror = self.mirror.lock().take();
        drop(mirror);
    }

    /// Processes of these marks are gone.
    pub(super) fn give_up(&self, is_gone: impl Fn(u64) -> bool) {
        if let Some(host) = &self.host {
            host.give_up(is_gone);
        }
    }

    pub(super) fn former(&self) -> Option<Former> {
        self.former.lock().clone()
    }

    /// This process did not run for so long, and heard no member.
    pub(super) fn give_time(&self, slept: Nanos) {
        if let Some(former) = &mut *self.former.lock() {
            former.until += slept;
        }
    }

    pub(super) fn set_former_until(&self, until: Nanos) {
        if let Some(former) = &mut *self.former.lock() {
            former.until = until;
        }
    }

    /// The manager tells members that the part is here: from now on they come.
    fn be_named(&self) {
        if let Some(former) = &mut *self.former.lock()
            && core::mem::take(&mut former.is_unnamed)
        {
            former.until = rt::now() + former.lease;
        }
    }

    pub(super) fn set_former(&self, former: Option<Former>) {
        *self.former.lock() = former;
    }

    /// Whether a session that is not here may be one of before whose member has not come back yet. It may have ended
    /// long ago: only after a lease that is known, and until then no session may take what it holds.
    pub(super) fn may_come_back(&self, session: SessionId) -> bool {
        self.former().is_some_and(|former| session < former.first_new)
    }

    /// Whether a session that began under the process that kept it before can have a member again.
    ///
    /// # Errors
    /// [`Error::Revoked`] if that is over; [`Error::Busy`] if it is just ending.
    pub(super) fn check_claim(&self, session: SessionId) -> Result<()> {
        let former = self.former();
        if former.as_ref().is_some_and(Former::is_ending) {
            return Err(Error::Busy("sessions of before are being ended: ask again".into()));
        }
        match former.filter(|former| !former.is_ended && session < former.first_new) {
            Some(_) => Ok(()),
            None => Err(Error::Revoked(format!(
                "session {} of part {} has ended: its member was silent for too long",
                session.0, self.order.part
            ))),
        }
    }
}

impl Former {
    /// A mirrored part may have been another node's: its members find it when the manager says where it is, which may
    /// be long after it is open, as that is confirmed with an order that may have to come again.
    fn of(keeper: &LocalKeeper, lease: Nanos, is_mirrored: bool) -> Result<Option<Self>> {
        let first_new = keeper.begin()?;
        keeper.end(first_new)?;
        let sessions = keeper.sessions().into_iter().collect();
        let is_new = first_new == SessionId(1);
        Ok((!is_new).then(|| Self {
            until: rt::now() + lease,
            lease,
            is_unnamed: is_mirrored,
            sessions,
            first_new,
            is_over: false,
            is_ended: false,
        }))
    }
}

/// Opens the part's file, or makes it if no client has heard of it yet.
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
    numbered(directory, NOTE_PREFIX)
}

/// Notes whose writing a former process was killed over: no client has heard of them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fabric::rdma::loopback::Nodes;
    use cenote_space::EXTENT;

    const LEASE: Nanos = Nanos::from_secs(10);
    const SPACE: SpaceId = SpaceId(7);

    fn parts(directory: &Path) -> Parts {
        let hosting = Hosting {
            hosts: Arc::default(),
            callers: Arc::new(Nodes::default()),
            options: HostOptions::default(),
            registrar: None,
            crew: Arc::new(Crew::new(1).expect("threads")),
            mirroring: None,
        };
        let host: Arc<dyn crate::host::Host> = Arc::new(crate::host::Machine);
        let rings = Rings::new(&host, 1).expect("threads");
        Parts::find(directory, Some(hosting), Arc::new(rings)).expect("parts")
    }

    fn order() -> PartOrder {
        PartOrder {
            grant: GrantId(1),
            space: SPACE,
            part: 1,
            tenant: "tenant".into(),
            bytes: 4 * EXTENT,
            key: Key::of(5),
            make: true,
            mirrored: false,
        }
    }

    fn view(number: u8, calls: Option<&str>) -> PartView {
        PartView {
            number,
            grant: GrantId(number.into()),
            bytes: 4 * EXTENT,
            node: NodeId(number.into()),
            pod: "east".into(),
            machine: 0,
            path: String::new(),
            members: None,
            calls: calls.map(str::to_owned),
            mirrored: false,
        }
    }

    fn peer(parts: &Parts, number: u8) -> Option<Peer> {
        let kept = parts.part(SPACE, 1).expect("it is open");
        kept.host.as_ref().expect("it is hosted").peer(number)
    }

    /// A part that could not be opened when the manager told where the others are never heard of them: nothing of it
    /// moved, and its migrated extents could ask no part.
    #[test]
    fn a_part_that_is_opened_late_knows_the_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = parts(directory.path());
        parts.set_peers(SPACE, &[view(1, Some("a")), view(2, Some("b"))], &[], &[]);
        parts.keep(&order(), LEASE).expect("kept");
        assert_eq!(peer(&parts, 2).expect("it was told").channel.peer(), "b");
        assert!(peer(&parts, 1).is_none(), "that is itself");
    }

    /// A part whose node was never heard of was taken for none: of migrated extents whose home is gone for good it was
    /// not asked.
    #[test]
    fn a_part_at_an_unknown_address_counts_as_a_part() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = parts(directory.path());
        parts.keep(&order(), LEASE).expect("kept");
        let unreached = || {
            let kept = parts.part(SPACE, 1).expect("it is open");
            kept.host.as_ref().expect("it is hosted").unreached()
        };
        parts.set_peers(SPACE, &[view(1, None), view(2, None), view(3, Some("c"))], &[], &[]);
        assert_eq!(unreached(), BTreeSet::from([2]));
        parts.set_peers(SPACE, &[view(1, None), view(2, Some("b")), view(3, None)], &[], &[]);
        assert_eq!(unreached(), BTreeSet::new(), "where the third was is known");
    }

    /// A part of this node that could not be opened counted as another node's: it asked itself whether a member was
    /// fenced there, for ever.
    #[test]
    fn parts_of_this_node_are_not_elsewhere() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = parts(directory.path());
        parts.keep(&order(), LEASE).expect("kept");
        let (grant, part) = (GrantId(2), 2);
        parts.note(&PartOrder { grant, part, ..order() }).expect("noted");
        let mut views = [1, 2, 3].map(|number| view(number, Some("a")));
        views[1].node = NodeId(1);
        parts.set_peers(SPACE, &views, &[], &[]);
        let elsewhere = parts.elsewhere(SPACE).expect("it was told");
        assert_eq!(elsewhere, BTreeMap::from([(NodeId(3), vec![3])]));
        assert!(
            parts.may_have_strangers(SPACE),
            "what maps the part that is not open is not known"
        );
    }

    /// A mirror had taken a part's place, and the manager had not said so yet: its new node took the former one for
    /// itself, and that one no other node for the part's.
    #[test]
    fn a_part_whose_mirror_took_its_place_is_elsewhere() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = parts(directory.path());
        parts.keep(&order(), LEASE).expect("kept");
        let mut views = [1, 2, 3].map(|number| PartView {
            mirrored: true,
            ..view(number, Some("a"))
        });
        views[2].node = NodeId(2);
        let (grant, part) = (GrantId(9), 2);
        parts.note(&PartOrder { grant, part, ..order() }).expect("noted");
        parts.set_peers(SPACE, &views, &[], &[]);
        let elsewhere = parts.elsewhere(SPACE).expect("it was told");
        assert_eq!(elsewhere, BTreeMap::from([(NodeId(2), vec![2, 3])]));
        views[2].node = NodeId(1);
        parts.set_peers(SPACE, &views, &[], &[]);
        assert_eq!(parts.elsewhere(SPACE), None, "it is not here any more");
    }

    /// A node that was cut off from the manager while a space grew knew nothing of the new part: it handed locks over
    /// though their former holder might write there.
    #[test]
    fn while_a_part_is_being_made_it_is_not_known_which_nodes_there_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = parts(directory.path());
        parts.keep(&order(), LEASE).expect("kept");
        let views = [view(1, Some("a")), view(2, Some("b"))];
        parts.set_peers(SPACE, &views, &[], &[3]);
        assert_eq!(parts.elsewhere(SPACE), None, "members may use part 3 by now");
        parts.set_peers(SPACE, &views, &[], &[]);
        let elsewhere = parts.elsewhere(SPACE).expect("it was told");
        assert_eq!(elsewhere, BTreeMap::from([(NodeId(2), vec![2])]), "it was taken back");
    }

    /// A mirrored part was being freed, as its mirror had taken its place. The node took it for its own until it was
    /// gone, asked no other about it, and handed over what members had that were not fenced there.
    #[test]
    fn a_mirrored_part_that_is_being_freed_may_be_elsewhere() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = parts(directory.path());
        let mut views = [1, 2, 3].map(|number| PartView {
            mirrored: true,
            ..view(number, Some("a"))
        });
        views[1].node = NodeId(1);
        for number in [1, 2] {
            let (grant, part, mirrored) = (GrantId(number.into()), number, true);
            let order = PartOrder {
                grant,
                part,
                mirrored,
                ..order()
            };
            parts.note(&order).expect("noted");
        }
        parts.set_peers(SPACE, &views, &[], &[]);
        let elsewhere = || parts.elsewhere(SPACE);
        assert_eq!(elsewhere(), Some(BTreeMap::from([(NodeId(3), vec![3])])));
        parts.close(GrantId(2)).expect("closed");
        assert_eq!(elsewhere(), None, "the manager has not said where it is");
        parts.close(GrantId(1)).expect("closed");
        assert_eq!(elsewhere(), None, "this node asks itself nothing");
        (views[0].grant, views[0].node) = (GrantId(8), NodeId(2));
        (views[1].grant, views[1].node) = (GrantId(9), NodeId(2));
        parts.set_peers(SPACE, &views, &[], &[]);
        let theirs = BTreeMap::from([(NodeId(2), vec![1, 2]), (NodeId(3), vec![3])]);
        assert_eq!(elsewhere(), Some(theirs));
    }

    /// Parts that are gone stayed peers for good: extents were offered to them.
    #[test]
    fn a_part_that_is_gone_is_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = parts(directory.path());
        parts.keep(&order(), LEASE).expect("kept");
        parts.set_peers(
            SPACE,
            &[view(1, None), view(2, Some("b")), view(3, Some("c"))],
            &[],
            &[],
        );
        let before = peer(&parts, 2).expect("it was told");
        // Its node is away for a while.
        parts.set_peers(SPACE, &[view(1, None), view(2, None)], &[], &[]);
        let after = peer(&parts, 2).expect("it is a part still");
        assert!(Arc::ptr_eq(&before.channel, &after.channel), "calls under way go on");
        assert!(peer(&parts, 3).is_none());
        let is_gone = |part| {
            let kept = parts.part(SPACE, 1).expect("it is open");
            kept.host.as_ref().expect("it is hosted").is_gone(part)
        };
        assert!(!is_gone(3), "the manager has not said so");
        parts.set_peers(SPACE, &[view(1, None), view(2, Some("d"))], &[3], &[]);
        assert!(is_gone(3) && !is_gone(2));
        assert_eq!(peer(&parts, 2).expect("it was told").channel.peer(), "d");
    }
}
