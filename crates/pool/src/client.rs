//! A client of a pool's spaces: asks the manager for them, maps the parts that lie on this machine, and is a
//! [member](crate::member) at the memory nodes that keep them.
//!
//! ```text
//!  PoolClient ── create, open, grow, drop ──▶ manager
//!     │ open_space
//!     ▼
//!   Space ─┬─ part 1: mapped ── load, store ──▶ DIR/grant-7
//!          │          RemoteKeeper ─┐
//!          ├─ part 2: mapped        ├─ Membership ── begin, take, … ping ──▶ memory node a
//!          │          RemoteKeeper ─┘     one connection, made again when it breaks, and a ring
//!          └─ part 3: RemoteKeeper ──── Membership ─────────────────────────▶ memory node b
//! ```
//!
//! A member that its node does not hear for a lease is fenced, at all nodes of the space: its process is ended where
//! it maps memory, and its calls are refused. A node that is away fences no
//! member, so its members wait for it, and come back with what they had.

mod connection;
mod membership;
mod options;
mod place;
mod standing;
#[cfg(test)]
mod tests;

use crate::grant_table::{NodeId, SpacePhase};
use crate::holder::Credentials;
use crate::host::Process;
use crate::managers::Managers;
use crate::member::{MemberReply, MemberRequest};
use crate::session::unexpected;
use crate::wire::{AuditReport, PartView, Reply, Request, SpaceRequest, SpaceSummary, SpaceView};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::rdma::call::Callers;
use cenote_space::{
    Channel, Class, Extent, FarPart, FarReads, GlobalAddress, Hello, Keeper, Lifetime, Part, PartSource, Run,
    SessionId, Space,
};
use connection::Pool;
use membership::{Membership, RETRY};
pub use options::{ClientOptions, OnRevoked};
use place::Place;
use standing::Standing;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Extents that go back in one message.
const GIVE_BACK_MAX: usize = 4096;
/// Between two questions to the manager about an unknown part.
const LOOK_AGAIN: Nanos = Nanos::from_millis(200);
/// After it could not be reached.
const LOOK_AGAIN_LOST: Nanos = Nanos::from_secs(2);
/// How long it may take to answer that.
const LOOK_TIMEOUT: Nanos = Nanos::from_secs(5);

const _: () = assert!(GIVE_BACK_MAX > 0, "a message gives back one extent at least");
const _: () = assert!(
    LOOK_AGAIN.0 < LOOK_AGAIN_LOST.0,
    "a manager that cannot be reached is asked less often"
);

/// A tenant's way to the spaces of a pool.
#[derive(Clone)]
pub struct PoolClient(Arc<Pool>);

impl PoolClient {
    /// Connects with the manager.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not there; [`Error::Invalid`] if the tenant or its secret is wrong.
    pub fn connect(network: &Arc<dyn Network>, credentials: &Credentials, options: ClientOptions) -> Result<Self> {
        let pool = Pool {
            network: Arc::clone(network),
            managers: Managers::parse(&credentials.manager)?,
            hello: credentials.tenants_hello(),
            options,
            manager: Mutex::new(None),
        };
        pool.find()?;
        Ok(Self(Arc::new(pool)))
    }

    /// Makes a space, its memory spread evenly over the connected nodes of some pods, or of all.
    ///
    /// # Errors
    /// [`Error::Full`] (pool or quota), [`Error::Invalid`] (the name is taken, or no name). [`Error::Lost`] and
    /// [`Error::Timeout`]: whether it was made, [`PoolClient::spaces`] tells.
    pub fn create_space(&self, name: &str, bytes: u64, pods: Option<&[String]>) -> Result<()> {
        let requested = requested(name, bytes, pods);
        self.0.order(&Request::CreateSpace(requested)).map(drop)
    }

    /// The same, mirrored: each part has a second memory on another node, with every change that was acknowledged, and
    /// that takes its place when the part's node is lost. It is used by calls alone, from its own pod too.
    ///
    /// # Errors
    /// As [`PoolClient::create_space`].
    pub fn create_mirrored_space(&self, name: &str, bytes: u64, pods: Option<&[String]>) -> Result<()> {
        let requested = SpaceRequest {
            mirrored: true,
            ..requested(name, bytes, pods)
        };
        self.0.order(&Request::CreateSpace(requested)).map(drop)
    }

    /// Makes a space unless there is one. A space that is being dropped is none: the manager waits for its end.
    ///
    /// # Errors
    /// As [`PoolClient::create_space`], but that a space of this name is no error.
    pub fn ensure_space(&self, name: &str, bytes: u64) -> Result<()> {
        let is_it = |space: &SpaceSummary| space.name == name && space.phase != SpacePhase::Dropping;
        let is_there = || Ok::<_, Error>(self.spaces()?.iter().any(is_it));
        if is_there()? {
            return Ok(());
        }
        match self.create_space(name, bytes, None) {
            // Another process was sooner.
            Err(_) if is_there()? => Ok(()),
            answer => answer,
        }
    }

    /// Adds memory to a space. A process that has it open finds the memory when there is no room elsewhere, or by an
    /// address there.
    ///
    /// # Errors
    /// As [`PoolClient::create_space`]; what some of the nodes could give is added in any case.
    pub fn grow_space(&self, name: &str, bytes: u64, pods: Option<&[String]>) -> Result<()> {
        let requested = requested(name, bytes, pods);
        self.0.order(&Request::GrowSpace(requested)).map(drop)
    }

    /// Ends every process that has a space open, this one included, and frees its memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this name.
    pub fn drop_space(&self, name: &str) -> Result<()> {
        let (tenant, name) = (None, name.into());
        self.0.order(&Request::DropSpace { tenant, name }).map(drop)
    }

    /// Has the memory nodes look at all of a space.
    ///
    /// # Errors
    /// As [`PoolClient::drop_space`].
    pub fn audit_space(&self, name: &str) -> Result<AuditReport> {
        match self.0.ask_patiently(&Request::AuditSpace { name: name.into() })? {
            Reply::Audit(report) => Ok(report),
            _ => Err(unexpected()),
        }
    }

    /// The tenant's spaces.
    ///
    /// # Errors
    /// Those of the way to the manager.
    pub fn spaces(&self) -> Result<Vec<SpaceSummary>> {
        match self.0.ask_patiently(&Request::Spaces)? {
            Reply::Spaces(spaces) => Ok(spaces),
            _ => Err(unexpected()),
        }
    }

    /// Opens a space: maps its parts on this machine, and begins to be a member there, until the last handle on the
    /// space is dropped. Memory nodes that are away are waited for; parts of those that do not come are attached when
    /// they are missed. Open a space once in a process: each time is a membership of its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this name, [`Error::Busy`] if it is not ready, [`Error::Lost`] if none of
    /// its parts can be reached.
    pub fn open_space(&self, name: &str) -> Result<Space> {
        let (space, _, attached) = self.open(name)?;
        if let Err(error) = attached {
            eprintln!("cenote: space \"{name}\": {error}; going on without");
        }
        Ok(space)
    }

    /// The same, for a caller that is to see all of it.
    ///
    /// # Errors
    /// As [`PoolClient::open_space`]; [`Error::Lost`] if a part cannot be reached, also where this process has no way
    /// to other pods.
    pub fn open_whole_space(&self, name: &str) -> Result<Space> {
        let (space, view, attached) = self.open(name)?;
        attached?;
        match view.parts.iter().find(|part| space.keeper(part.number).is_none()) {
            None => Ok(space),
            Some(part) => Err(Error::Lost(format!(
                "part {} of space \"{name}\", on memory node {} of pod {}, cannot be reached from here",
                part.number, part.node, part.pod
            ))),
        }
    }

    /// Opens a space with what of it can be reached; what it is as a whole; and what kept some of it away.
    fn open(&self, name: &str) -> Result<(Space, SpaceView, Result<()>)> {
        self.0.find()?;
        let view = self.0.view(name)?;
        let space = Space::new(view.id.0);
        let opening = Arc::new_cyclic(|me| Opening {
            me: Weak::clone(me),
            pool: Arc::clone(&self.0),
            name: name.into(),
            members: Mutex::default(),
            places: Mutex::default(),
            standing: Arc::default(),
            look_at: AtomicU64::new(0),
        });
        let attached = match opening.attach_patiently(&space, &view) {
            Err(error) if space.parts().next().is_none() && space.far_parts().next().is_none() => return Err(error),
            attached => attached,
        };
        let first = view.parts.iter().map(|part| part.number).min().unwrap_or(1);
        space.set_source(Box::new(Parts(opening)), first)?;
        Ok((space, view, attached))
    }
}

fn requested(name: &str, bytes: u64, pods: Option<&[String]>) -> SpaceRequest {
    SpaceRequest {
        name: name.into(),
        bytes,
        pods: pods.map(<[String]>::to_vec),
        mirrored: false,
    }
}

/// By memory node.
type Members = BTreeMap<NodeId, Arc<Membership>>;

/// An open space's parts: those that are attached, and how to get more.
struct Opening {
    me: Weak<Opening>,
    pool: Arc<Pool>,
    name: String,
    /// Lock order: members, then places.
    members: Mutex<Members>,
    /// Of the parts that are attached.
    places: Mutex<Vec<Arc<Place>>>,
    standing: Arc<Standing>,
    /// When the manager may be asked again for an unknown part, in nanoseconds.
    look_at: AtomicU64,
}

impl Opening {
    /// As [`Opening::attach`], again while nodes are away.
    fn attach_patiently(&self, space: &Space, view: &SpaceView) -> Result<()> {
        let until = rt::now() + self.pool.options.timeout;
        let mut attached = self.attach(space, view);
        while matches!(attached, Err(Error::Lost(_) | Error::Timeout(_) | Error::Busy(_))) && rt::now() < until {
            rt::sleep(RETRY);
            attached = self
                .pool
                .view(&self.name)
                .and_then(|view| self.attach_same(space, &view));
        }
        attached?;
        match space.parts().next().is_some() || space.far_parts().next().is_some() {
            true => Ok(()),
            false => Err(Error::Lost(format!(
                "space \"{}\" has no part that can be reached from here",
                self.name
            ))),
        }
    }

    /// As [`Opening::attach`], unless the name is another space's since.
    fn attach_same(&self, space: &Space, view: &SpaceView) -> Result<()> {
        match view.id.0 == space.id() {
            true => self.attach(space, view),
            false => Err(Error::Invalid(format!("space \"{}\" was dropped", self.name))),
        }
    }

    /// Attaches what is not attached yet, and can be; the first error.
    fn attach(&self, space: &Space, view: &SpaceView) -> Result<()> {
        // One at a time: another may be attaching the same.
        let mut members = self.members.lock();
        let is_new = |part: &&PartView| space.keeper(part.number).is_none();
        let parts = view.parts.iter().filter(is_new);
        let mut attach = |part: &PartView| match &part.members {
            // Where it runs is not known either.
            None => Err(Error::Lost(format!(
                "memory node {} of pod {}, where part {} lies, is not there",
                part.node, part.pod, part.number
            ))),
            Some(address) if self.pool.is_near(part) => {
                // It is a member before it maps anything: a process that maps a part and is no member is ended.
                let member = self.member_at(&mut members, view, part, address)?;
                self.attach_near(space, part, member)
            }
            Some(address) => match (&self.pool.options.callers, &part.calls) {
                (Some(callers), Some(calls)) => {
                    let member = self.member_at(&mut members, view, part, address)?;
                    self.attach_far(space, view, part, member, (callers, calls))
                }
                _ if part.mirrored => Err(Error::Invalid(format!(
                    "space \"{}\" is mirrored, and so used by calls: this process, or memory node {}, has no way for them",
                    self.name, part.node
                ))),
                // Its node, or this process, has no way for calls: the part is not attached.
                _ => Ok(()),
            },
        };
        parts.map(&mut attach).fold(Ok(()), Result::and)
    }

    fn attach_near(&self, space: &Space, part: &PartView, member: Arc<Membership>) -> Result<()> {
        let mapped = Part::join_marked(Path::new(&part.path), self.pool.options.region, Process::this().mark())?;
        if mapped.number() != part.number {
            return Err(Error::Mismatch(format!(
                "{}: it is not part {}",
                part.path, part.number
            )));
        }
        let keeper = RemoteKeeper(self.place(part, member));
        space.attach(Arc::new(mapped), Arc::new(keeper))
    }

    /// Parts of other machines and pods are asked by calls.
    fn attach_far(
        &self,
        space: &Space,
        view: &SpaceView,
        part: &PartView,
        member: Arc<Membership>,
        (callers, calls): (&Arc<dyn Callers>, &str),
    ) -> Result<()> {
        let hello = Hello {
            space: view.id.0,
            part: part.number,
            key: view.key.number(),
            pod: self.pool.pod(view),
        };
        // The last sign of life may be a quarter of a lease old when a lock is looked at.
        space.trust_locks_for(Nanos(member.lease().raw() / 2));
        let place = self.place(part, member);
        let admission = Place::admission(&place);
        let keeper = RemoteKeeper(place);
        // What goes later than its answer would be newer than what its mirror has.
        let reads = if part.mirrored {
            FarReads::Plain
        } else {
            self.pool.options.far_reads
        };
        let (pool, name, number) = (Arc::clone(&self.pool), self.name.clone(), part.number);
        let resolver = move || {
            let view = pool.view(&name).ok()?;
            view.parts.into_iter().find(|part| part.number == number)?.calls
        };
        let channel = Channel::new(Arc::clone(callers), calls, hello)
            .resolved_by(Box::new(resolver))
            .admitted_by(admission)
            .reading(reads)
            .mirrored(part.mirrored);
        let channel = Arc::new(channel);
        self.standing.add_channel(&channel);
        let far = FarPart {
            number: part.number,
            pod: part.pod.clone(),
            channel,
        };
        space.attach_far(far, Arc::new(keeper))
    }

    /// Where a part that is to be attached is asked.
    fn place(&self, part: &PartView, member: Arc<Membership>) -> Arc<Place> {
        let opening = Weak::clone(&self.me);
        let follow = move |from| {
            let closed = || Error::Lost("the space was closed".into());
            opening.upgrade().ok_or_else(closed)?.follow(from)
        };
        let (opening, mirrored) = (Weak::clone(&self.me), part.mirrored);
        let look = move |number| {
            let opening = opening.upgrade().filter(|_| mirrored)?;
            let view = opening.pool.view_within(&opening.name, LOOK_TIMEOUT).ok()?;
            let part = view.parts.into_iter().find(|part| part.number == number)?;
            Some(part.node)
        };
        let timeout = self.pool.options.timeout;
        let place = Arc::new(Place::new(
            part.number,
            member,
            (Box::new(follow), Box::new(look)),
            timeout,
        ));
        self.places.lock().push(Arc::clone(&place));
        place
    }

    /// The parts that were asked at a node that keeps them no more are asked where they are now.
    fn follow(&self, from: NodeId) -> Result<()> {
        let mut members = self.members.lock();
        let places = self.places.lock().clone();
        let has_left = |place: &&Arc<Place>| {
            let member = place.member();
            member.node() == from && member.has_moved()
        };
        let left: Vec<_> = places.iter().filter(has_left).collect();
        if left.is_empty() {
            return Ok(());
        }
        // One that began since is of parts that are there.
        members.retain(|node, member| *node != from || !member.has_moved());
        let view = self.pool.view(&self.name)?;
        // One that is nowhere yet keeps no other away.
        left.into_iter()
            .map(|place| self.move_place(place, &mut members, &view))
            .fold(Ok(()), Result::and)
    }

    fn move_place(&self, place: &Place, members: &mut Members, view: &SpaceView) -> Result<()> {
        let part = view.parts.iter().find(|part| part.number == place.part);
        let at = part.and_then(|part| Some((part, part.members.as_ref()?)));
        let (part, address) = at.ok_or_else(|| {
            let (number, name) = (place.part, &self.name);
            Error::Lost(format!(
                "part {number} of space \"{name}\" is kept by no memory node that is there"
            ))
        })?;
        let member = self.member_at(members, view, part, address)?;
        member.take_over(part.number, &place.member())?;
        place.move_to(member);
        Ok(())
    }

    /// The membership at a part's memory node, which begins now if there is none.
    fn member_at(
        &self,
        members: &mut Members,
        view: &SpaceView,
        part: &PartView,
        address: &str,
    ) -> Result<Arc<Membership>> {
        if let Some(member) = members.get(&part.node) {
            return Ok(Arc::clone(member));
        }
        let opening = Weak::clone(&self.me);
        let on_moved = move |node| {
            if let Some(opening) = opening.upgrade()
                && let Err(error) = opening.follow(node)
            {
                eprintln!("cenote: space \"{}\": {error}; trying again", opening.name);
            }
        };
        let (ours, standing) = ((&self.pool, &*self.name), &self.standing);
        let member = Membership::begin(ours, view, part, address, standing, Box::new(on_moved))?;
        let member = Arc::new(member);
        members.insert(part.node, Arc::clone(&member));
        Ok(member)
    }
}

/// An open space's parts, for the space.
struct Parts(Arc<Opening>);

impl PartSource for Parts {
    fn attach_more(&self, space: &Space, full: bool) -> bool {
        self.0.attach_more(space, full)
    }
}

impl Opening {
    fn attach_more(&self, space: &Space, full: bool) -> bool {
        let now = rt::now().raw();
        let look_at = self.look_at.load(Ordering::Relaxed);
        if look_at > now && !(full && look_at - now <= LOOK_AGAIN.raw()) {
            return false;
        }
        let count = || space.parts().count() + space.far_parts().count();
        let before = count();
        let view = self.pool.view_within(&self.name, LOOK_TIMEOUT);
        let view = view.ok().filter(|view| view.id.0 == space.id());
        let wait = if view.is_some() { LOOK_AGAIN } else { LOOK_AGAIN_LOST };
        self.look_at.store(rt::now().raw() + wait.raw(), Ordering::Relaxed);
        if let Some(view) = view
            && let Err(error) = self.attach(space, &view)
        {
            eprintln!("cenote: space \"{}\": {error}", self.name);
        }
        count() > before
    }
}

// ---- keeper ----

/// The keeper of a part, in its memory node's process.
struct RemoteKeeper(Arc<Place>);

impl RemoteKeeper {
    fn part(&self) -> u8 {
        self.0.part
    }

    fn ask(&self, request: MemberRequest) -> Result<MemberReply> {
        self.0.ask(&request, &mut 0)
    }

    fn tell(&self, request: MemberRequest) -> Result<()> {
        match self.ask(request)? {
            MemberReply::Done => Ok(()),
            _ => Err(misfit()),
        }
    }
}

fn misfit() -> Error {
    Error::corrupt("the memory node's answer does not fit the question")
}

impl Keeper for RemoteKeeper {
    fn begin(&self) -> Result<SessionId> {
        match self.ask(MemberRequest::Begin { part: self.part() })? {
            MemberReply::Begun(session) => Ok(session),
            _ => Err(misfit()),
        }
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        let part = self.part();
        let request = MemberRequest::Take {
            part,
            session,
            class,
            lifetime,
        };
        match self.ask(request)? {
            MemberReply::Slab(extent) => Ok(extent),
            _ => Err(misfit()),
        }
    }

    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        let part = self.part();
        let request = |extents: &[Extent]| MemberRequest::GiveBack {
            part,
            session,
            extents: extents.to_vec(),
        };
        extents
            .chunks(GIVE_BACK_MAX)
            .try_for_each(|some| self.tell(request(some)))
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        let part = self.part();
        let request = MemberRequest::TakeRun {
            part,
            session,
            bytes,
            lifetime,
        };
        match self.ask(request)? {
            MemberReply::Run(run) => Ok(run),
            _ => Err(misfit()),
        }
    }

    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        let part = self.part();
        let request = MemberRequest::FreeRun { part, address };
        let mut tries = 0;
        match self.0.ask(&request, &mut tries) {
            // The answer to the one before was lost.
            Err(Error::Invalid(_)) if tries > 1 => Ok(()),
            answer => answer.map(drop),
        }
    }

    fn end(&self, session: SessionId) -> Result<()> {
        let part = self.part();
        self.tell(MemberRequest::End { part, session })
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        let part = self.part();
        match self.ask(MemberRequest::IsAlive { part, session })? {
            MemberReply::Alive(alive) => Ok(alive),
            _ => Err(misfit()),
        }
    }

    fn audit(&self) -> Result<Vec<String>> {
        match self.ask(MemberRequest::Audit { part: self.part() })? {
            MemberReply::Problems(problems) => Ok(problems),
            _ => Err(misfit()),
        }
    }
}
