//! Members of spaces: the processes that use the parts that this node keeps. A member is a client process, over one
//! connection at a time.
//!
//! ```text
//!            hello                 its connection breaks             hello: it comes back
//!   (none) ────────▶ connected ───────────────────────────▶ away ───────────────────────▶ connected
//!     ▲               │   │                                  │
//!     │ leave         │   │ silent for a lease                │ its process is gone, or a lease has passed
//!     ├───────────────┘   ▼                                  ▼
//!     └──── confirmed ── fenced ◀────────────────────────────┘
//! ```
//!
//! Invariants:
//! - a session belongs to the member that began it; no other allocates with it or ends it;
//! - nothing of a fenced member can land in any node's memory when its sessions end: [`fencing`](super::fencing);
//! - a fenced member is *ended first* if it is a process of this machine that maps the space: only when that is
//!   confirmed are its sessions ended, and what they had is free. No other process is touched;
//! - members that a former process of this node had come back with what they had, until a lease has passed. Then each
//!   process that maps a part and is no member is ended, and then, when all other nodes have confirmed that they end
//!   too, the sessions whose members did not come back;
//! - of a mirrored part that lease begins when the manager has told this node that members hear where the part is; a
//!   member that claims after it what has ended is fenced;
//! - a fenced member that lives on (on another machine, or mapping nothing) is remembered: it does not come back, also
//!   when this process starts anew;
//! - time that this process itself did not run counts for no member's silence, nor does time in which a member waits
//!   for an answer.
//!
//! - a place at a ring lasts as long as the connection over which it was given: a member that comes back has another.
//!
//! [`membership`](super::membership) has the members; no member is ended with its locks held.

use super::NodeState;
use super::membership::{Fencing, revoked};
use super::parts::{Former, Kept};
use crate::grant_table::SpaceId;
use crate::host::Process;
use crate::member::{MemberHello, MemberId, MemberReply, MemberRequest, MemberWelcome, RingSeat};
use crate::service::{Greeted, Peers, Visit};
use crate::wire::{self, Failure, VERSION};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Listener;
use cenote_space::{Keeper, SessionId};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Members of a tenant that come back though its share of connections is taken.
const MEMBERS_MAX: u32 = 16_384;
/// Between two looks for members that are silent or gone.
const WATCH_TURN: Nanos = Nanos::from_millis(50);
/// How long ending a member may take, before others are looked after.
const END_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Different things that are said of what failed.
const COMPLAINTS_MAX: usize = 1000;
/// Before what failed is tried again.
const AGAIN: Nanos = Nanos::from_secs(1);

/// Says what is tried again, once.
fn complain(error: Error, said: &mut BTreeSet<String>) {
    let text = error.to_string();
    if said.len() < COMPLAINTS_MAX && said.insert(text.clone()) {
        eprintln!("cenote: memory node: {text}; trying again");
    }
}

// ---- connections ----

/// A member that is connected.
pub(super) struct Peer {
    member: MemberId,
    turn: u64,
}

impl NodeState {
    pub(super) fn accept(self: &Arc<Self>, listener: &dyn Listener) {
        let peers = Arc::downgrade(self);
        self.service.accept(listener, peers, || self.is_stopping());
    }
}

impl Peers for NodeState {
    type Peer = Peer;

    fn greet(&self, hello: &[u8], visit: &Arc<Visit>) -> Result<Greeted<Peer>> {
        let hello: MemberHello = wire::read(&*visit.connection, hello)?;
        let admitted = self.admit_member(&hello, visit);
        let welcome = admitted.as_ref().map(|(turn, epoch)| MemberWelcome {
            lease: self.lease().raw(),
            ring: self.seat(&hello, *turn),
            epoch: *epoch,
        });
        let greeted = wire::send(
            &*visit.connection,
            &welcome.map_err(|error| Failure::from(error.clone())),
        );
        let (member, (turn, _)) = (hello.member, admitted?);
        if let Err(error) = greeted {
            self.membership.disconnect(member, turn);
            return Err(error);
        }
        visit.trust();
        Ok(Greeted::Stays(Peer { member, turn }))
    }

    /// A heartbeat waits for nobody: not for a part's keeper either, as others of its tenant may.
    fn may_wait(&self, request: &[u8]) -> bool {
        request != b"\"Ping\""
    }

    fn answer(&self, peer: &mut Peer, request: &[u8], visit: &Arc<Visit>) -> Result<()> {
        if self.is_stopping() {
            return Err(Error::Lost("the memory node is stopping".into()));
        }
        let request: MemberRequest = wire::read(&*visit.connection, request)?;
        let (id, turn) = (peer.member, peer.turn);
        let is_last = request == MemberRequest::Leave;
        let part = request.part();
        let reply = self.attend(id, turn, || match part {
            Some(part) => self.ask_of_part(id, turn, part, request),
            None => self.ask_of_member(id, turn, request),
        });
        let reply = reply.unwrap_or_else(|error| MemberReply::Failed(error.into()));
        wire::answer(&*visit.connection, &reply, MemberReply::Failed)?;
        match is_last {
            true => Err(Error::Lost("the member has left".into())),
            false => Ok(()),
        }
    }

    fn leave(&self, peer: Peer) {
        self.membership.disconnect(peer.member, peer.turn);
    }
}

impl NodeState {
    // ---- coming, and coming back ----

    /// Lets a member in; the turn of its connection, and its epoch.
    fn admit_member(&self, hello: &MemberHello, visit: &Visit) -> Result<(u64, u64)> {
        if hello.version != VERSION {
            return Err(Error::Mismatch(format!(
                "the memory node speaks version {VERSION} of the pool's protocol, this program {}",
                hello.version
            )));
        }
        if !self.parts.is_known(hello.space, hello.key) {
            return Err(Error::Invalid(
                "no space of this number and key has a part on this memory node".into(),
            ));
        }
        // Its former connection, if there is one still, has a place too until a thread has seen that it is over.
        self.membership.close_connection(hello.member);
        self.place(hello, visit)?;
        let hello = &self.of_kept(hello)?;
        let process = (hello.machine == cenote_fabric::boot()).then_some(hello.process);
        self.check_process(process)?;
        let claim = || {
            self.check_ended(hello.space)?;
            self.claim(hello)?;
            self.known.come_back(hello.member);
            self.admit_calls(hello.space, hello.member)
        };
        let admitted = self.membership.connect(hello, process, &visit.connection, claim)?;
        let more = self.claim_more(hello, admitted.0);
        more.inspect_err(|error| self.refuse(hello, admitted.0, error))?;
        Ok(admitted)
    }

    /// A member that is known here is refused for what it claims: it has no connection here. If that has ended, others
    /// may have what it had, wherever it lies: then it is fenced, as if it had been silent to this node.
    fn refuse(&self, hello: &MemberHello, turn: u64, error: &Error) {
        self.membership.disconnect(hello.member, turn);
        if matches!(error, Error::Revoked(_)) && self.membership.lapse(hello.member, turn) {
            let (name, space) = (&hello.name, hello.space);
            eprintln!("cenote: memory node: member \"{name}\" of space {space} comes back too late: it is fenced");
        }
    }

    /// What a member says of parts that are kept here. It may not have heard yet that one is elsewhere, or gone: what
    /// it had there it has lost here, and nothing else.
    ///
    /// # Errors
    /// [`Error::Busy`] if one is not open yet; [`Error::Invalid`] if all that it names are kept elsewhere.
    fn of_kept(&self, hello: &MemberHello) -> Result<MemberHello> {
        let mut hello = hello.clone();
        let mut gone = BTreeSet::new();
        let named: BTreeSet<u8> = hello
            .sessions
            .iter()
            .map(|(part, _)| *part)
            .chain(hello.parts.iter().copied())
            .collect();
        for part in named {
            match self.parts.part(hello.space, part) {
                Ok(_) => {}
                Err(Error::Revoked(_)) => _ = gone.insert(part),
                Err(error) => return Err(error),
            }
        }
        let had_parts = !hello.parts.is_empty();
        hello.parts.retain(|part| !gone.contains(part));
        hello.sessions.retain(|(part, _)| !gone.contains(part));
        match had_parts && hello.parts.is_empty() {
            true => Err(Error::Invalid(
                "these parts of the space are not kept by this memory node (any more)".into(),
            )),
            false => Ok(hello),
        }
    }

    /// A place of its tenant's; a member that comes back has one though others have taken all of these.
    fn place(&self, hello: &MemberHello, visit: &Visit) -> Result<()> {
        let (tenant, tenants) = self.parts.tenant_of(hello.space);
        visit.share_as(&tenant);
        let placed = visit.place.give_to(&tenant, tenants);
        match placed.is_err() && self.membership.is_member(hello.member) {
            true => visit
                .place
                .give_to_group(&format!("members of tenant \"{tenant}\""), MEMBERS_MAX),
            false => placed,
        }
    }

    /// A process of this machine has to be one that the node can fence.
    fn check_process(&self, process: Option<Process>) -> Result<()> {
        let Some(process) = process else { return Ok(()) };
        let pid = process.pid;
        if !self.host.is_there(process) {
            return Err(Error::Mismatch(format!(
                "the memory node sees no process {pid} that began when this one did: both have to be in one PID namespace"
            )));
        }
        if !self.host.is_seen(process) {
            return Err(Error::Mismatch(format!(
                "the memory node does not see what process {pid} maps, as it changed its user or has capabilities: it could not be told whether it uses memory"
            )));
        }
        Ok(())
    }

    /// A process that is no member yet waits while those that are none are being ended. (A member is not among them,
    /// however long that takes.)
    fn check_ended(&self, space: SpaceId) -> Result<()> {
        let is_ending = |kept: &Arc<Kept>| kept.former().is_some_and(|former| former.is_ending());
        match self.parts.of_space(space).iter().any(is_ending) {
            false => Ok(()),
            true => Err(Error::Busy("members of before are being ended: ask again".into())),
        }
    }

    /// What a member says to have begun under a former process of this node is its own again: all of it, or none.
    fn claim(&self, hello: &MemberHello) -> Result<()> {
        if self.was_fenced(hello.space, hello.member) {
            return Err(revoked());
        }
        let mut claimed = Vec::new();
        for (part, session) in &hello.sessions {
            let kept = self.parts.part(hello.space, *part)?;
            kept.check_claim(*session)?;
            claimed.push((kept, *session));
        }
        claimed
            .into_iter()
            .try_for_each(|(kept, session)| kept.keeper.readmit(session))
    }

    /// A member that is known here has begun more at another node, whose part is kept here by now.
    ///
    /// # Errors
    /// [`Error::Revoked`] if some of it has ended, and the member has not asked for that; or as it has another
    /// connection by now.
    fn claim_more(&self, hello: &MemberHello, turn: u64) -> Result<()> {
        let more = self.membership.unclaimed(hello);
        if !more.is_empty() && self.was_fenced(hello.space, hello.member) {
            return Err(revoked());
        }
        for (part, session) in more {
            match self.claim_one(hello, turn, part, session) {
                // The answer to its end was lost.
                Err(Error::Revoked(_)) if hello.ending.contains(&(part, session)) => {}
                claimed => claimed?,
            }
        }
        self.membership.hear(hello.member, turn).map(drop)
    }

    fn claim_one(&self, hello: &MemberHello, turn: u64, part: u8, session: SessionId) -> Result<()> {
        let kept = match self.parts.part(hello.space, part) {
            // It has left just now: what has begun there is claimed elsewhere.
            Err(Error::Revoked(_)) => return Ok(()),
            kept => kept?,
        };
        kept.check_claim(session)?;
        if !self.membership.has_sessions(hello.member) {
            self.known.note(hello.member, hello.space)?;
        }
        let claim = || {
            kept.check_claim(session)?;
            kept.keeper.readmit(session)
        };
        self.membership
            .claim_session(hello.member, turn, (part, session), claim)
    }

    // ---- requests ----

    /// Gives a member a place at a ring, if it is of this machine and there is one.
    fn seat(&self, hello: &MemberHello, turn: u64) -> Option<RingSeat> {
        let process = Some(hello.process).filter(|_| hello.ring && hello.machine == cenote_fabric::boot())?;
        let mut parts = hello
            .parts
            .iter()
            .filter_map(|part| self.parts.part(hello.space, *part).ok());
        let (place, seat) = parts.find_map(|kept| self.parts.rings().seat(&kept, process, (hello.member, turn)))?;
        self.membership.seat(hello.member, turn, place);
        Some(seat)
    }

    pub(super) fn ask_of_member(&self, id: MemberId, turn: u64, request: MemberRequest) -> Result<MemberReply> {
        let part = |part| self.part_for(id, turn, part, None);
        let its = |part, session| self.part_for(id, turn, part, Some(session));
        Ok(match request {
            MemberRequest::Ping => {
                self.membership.hear(id, turn)?;
                MemberReply::Done
            }
            MemberRequest::Leave => {
                self.membership.begin_leaving(id, turn)?;
                self.end_calls(id);
                self.end_sessions(id);
                MemberReply::Done
            }
            MemberRequest::Begin { part: number } => {
                MemberReply::Begun(self.begin(id, turn, number, &*part(number)?)?)
            }
            MemberRequest::Take {
                part,
                session,
                class,
                lifetime,
            } => MemberReply::Slab(its(part, session)?.keeper.take(session, class, lifetime)?),
            MemberRequest::GiveBack { part, session, extents } => {
                its(part, session)?.keeper.give_back(session, &extents)?;
                MemberReply::Done
            }
            MemberRequest::TakeRun {
                part,
                session,
                bytes,
                lifetime,
            } => MemberReply::Run(its(part, session)?.keeper.take_run(session, bytes, lifetime)?),
            MemberRequest::FreeRun { part: number, address } => {
                part(number)?.keeper.free_run(address)?;
                MemberReply::Done
            }
            MemberRequest::End { part: number, session } => {
                let kept = part(number)?;
                if kept.keeper.is_alive(session)? {
                    its(number, session)?.keeper.end(session)?;
                }
                self.membership.remove_session(id, number, session);
                MemberReply::Done
            }
            MemberRequest::IsAlive { part: number, session } => {
                let kept = part(number)?;
                MemberReply::Alive(kept.keeper.is_alive(session)? || kept.may_come_back(session))
            }
            MemberRequest::Audit { part: number } => {
                let grant = part(number)?.order.grant;
                MemberReply::Problems(self.parts.check(grant)?)
            }
        })
    }

    /// As [`Self::ask_of_member`], of one part: what is mirrored is told when the mirror has it. While that is not to
    /// be had nothing is begun, as it would be asked for again and again.
    fn ask_of_part(&self, id: MemberId, turn: u64, number: u8, request: MemberRequest) -> Result<MemberReply> {
        let kept = self.part_for(id, turn, number, None)?;
        kept.keeper.part().settle()?;
        let reply = self.ask_of_member(id, turn, request)?;
        let settled = kept.keeper.part().settle();
        if let (Err(_), MemberReply::Begun(session)) = (&settled, &reply)
            && kept.keeper.end(*session).is_ok()
        {
            self.membership.remove_session(id, number, *session);
        }
        settled.map(|()| reply)
    }

    /// Serves a request of a member.
    pub(super) fn attend<T>(&self, id: MemberId, turn: u64, serve: impl FnOnce() -> Result<T>) -> Result<T> {
        let _asking = self.membership.ask(id, turn)?;
        serve()
    }

    /// The part that a request is about, if its session is the member's.
    fn part_for(&self, id: MemberId, turn: u64, part: u8, session: Option<SessionId>) -> Result<Arc<Kept>> {
        let space = match session {
            Some(session) => self.membership.hear_of(id, turn, part, session)?,
            None => self.membership.hear(id, turn)?,
        };
        self.parts.part(space, part)
    }

    fn begin(&self, id: MemberId, turn: u64, part: u8, kept: &Kept) -> Result<SessionId> {
        if !self.membership.has_sessions(id) {
            self.known.note(id, kept.order.space)?;
        }
        let session = kept.keeper.begin()?;
        let added = self.membership.add_session(id, turn, part, session);
        if added.is_err() {
            kept.keeper.end(session)?;
        }
        added.map(|()| session)
    }
}

// ---- leases ----

impl NodeState {
    /// Opens what is to be kept, as far as that can be done now.
    pub(super) fn open_parts(&self, said: &mut BTreeSet<String>) {
        let failed = self.parts.open_noted(self.lease());
        failed.into_iter().for_each(|error| complain(error, said));
    }

    /// The thread that opens parts that are mirrored: it waits for the manager, and no other does for it.
    pub(super) fn open_mirrored_parts(&self) {
        let mut said = BTreeSet::new();
        while !self.is_stopping() {
            let failed = self.parts.open_mirrored(self.lease(), || self.is_stopping());
            failed.into_iter().for_each(|error| complain(error, &mut said));
            self.parts.await_request(AGAIN);
        }
    }

    pub(super) fn watch(&self) {
        self.begin_leases();
        let mut opened = rt::now();
        let mut said = BTreeSet::new();
        while !self.is_stopping() {
            self.timed(Nanos::ZERO, || rt::sleep(WATCH_TURN));
            for (id, why) in self.lapsed() {
                let fenced = self.timed(END_TIMEOUT, || self.fence(id, why));
                fenced.unwrap_or_else(|error| complain(error, &mut said));
            }
            for kept in self.parts.all() {
                let ended = self.timed(END_TIMEOUT, || self.end_former(&kept));
                ended.unwrap_or_else(|error| complain(error, &mut said));
            }
            if rt::now().since(opened) > AGAIN {
                self.timed(Nanos::ZERO, || self.open_parts(&mut said));
                opened = rt::now();
            }
        }
    }

    /// Members can be heard from here on: opening the parts may have taken longer than a lease.
    fn begin_leases(&self) {
        for kept in self.parts.all() {
            kept.set_former_until(rt::now() + self.lease());
        }
    }

    /// Does something that takes so long at most. If it took much longer this process did not run, and heard no member.
    fn timed<T>(&self, most: Nanos, work: impl FnOnce() -> T) -> T {
        let due = rt::now() + most;
        let done = work();
        let late = rt::now().since(due);
        if late > Nanos(self.lease().raw() / 4) {
            self.give_time(late);
        }
        done
    }

    /// This process did not run for so long, and heard no member.
    fn give_time(&self, slept: Nanos) {
        self.membership.give_time(slept);
        self.parts.all().iter().for_each(|kept| kept.give_time(slept));
    }

    pub(super) fn lapsed(&self) -> Vec<(MemberId, &'static str)> {
        self.membership
            .lapsed(self.lease(), |process| self.host.is_there(process))
    }

    /// Ends a member's process if it is one of this machine that maps the space, and then its sessions.
    fn fence(&self, id: MemberId, why: &str) -> Result<()> {
        let Some(fencing) = self.membership.begin_fencing(id) else {
            return Ok(());
        };
        if let Some(process) = fencing.process {
            self.end_process(process, &fencing, why)?;
        }
        if fencing.process.is_none_or(|process| self.host.is_there(process)) {
            self.remember_fenced(fencing.space, &[id])?;
        }
        self.check_quiet(id, &fencing.name)?;
        self.close_calls(fencing.space, id)?;
        // What it has sent to other nodes is not to land after another has what it had.
        if self.is_confirmed(fencing.space, id) {
            self.end_sessions(id);
        }
        Ok(())
    }

    pub(super) fn end_process(&self, process: Process, fencing: &Fencing, why: &str) -> Result<()> {
        let parts = self.parts.of_space(fencing.space);
        let files: Vec<PathBuf> = parts.iter().map(|kept| kept.path.clone()).collect();
        let was_there = self.host.is_there(process);
        self.host.end_process(process, &files, END_TIMEOUT)?;
        if !self.host.is_there(process) {
            let parts = self.parts.of_space(fencing.space);
            parts
                .iter()
                .for_each(|kept| kept.give_up(|mark| mark == process.mark()));
        }
        if was_there && !(fencing.is_again && self.host.is_there(process)) {
            let (name, space, pid) = (&fencing.name, fencing.space, process.pid);
            eprintln!("cenote: memory node: member \"{name}\" (process {pid}) of space {space} {why}: it is fenced");
        }
        Ok(())
    }

    /// Whether no request of a member is under way any more, of this node's keepers or to other parts: it ends by
    /// itself, within a call's time. It looks once, as other members wait.
    pub(super) fn check_quiet(&self, id: MemberId, name: &str) -> Result<()> {
        match self.membership.is_quiet(id) {
            true => Ok(()),
            false => Err(Error::Busy(format!(
                "member \"{name}\": what it has asked for is not answered yet"
            ))),
        }
    }

    /// A member maps nothing any more: its sessions end, and it is forgotten.
    fn end_sessions(&self, id: MemberId) {
        let Some((space, sessions)) = self.membership.ending(id) else {
            return;
        };
        for (part, session) in sessions {
            // A part that is not there any more has no sessions either.
            if let Ok(kept) = self.parts.part(space, part) {
                kept.keeper.end(session).ok();
            }
        }
        self.membership.remove(id);
        self.forget_calls(space, id);
    }

    /// When the members that may come back have had their time: ends each process that maps a part without being a
    /// member. That waits for no other node, as others wait for it. Then, when all have confirmed, the sessions without
    /// a member.
    fn end_former(&self, kept: &Kept) -> Result<()> {
        let Some(former) = kept.former().filter(Former::is_due) else {
            return Ok(());
        };
        if !former.is_ended {
            self.end_strangers(kept, former.clone())?;
        }
        let (space, part) = (kept.order.space, kept.order.part);
        let away = self.known.former_of(space);
        // A process may map another part of the space here, and write to what one of these sessions has locked.
        if !self.are_confirmed(space, &away)? || self.parts.may_have_strangers(space) {
            return Ok(());
        }
        for session in self.membership.without_member(space, part, former.sessions) {
            kept.keeper.end(session)?;
        }
        kept.set_former(None);
        let is_over = |kept: &Arc<Kept>| kept.former().is_none();
        if self.parts.of_space(space).iter().all(is_over) {
            away.iter().for_each(|id| self.forget_calls(space, *id));
        }
        Ok(())
    }

    /// Ends each process that maps a part without being a member. A process that is none has to wait meanwhile; and
    /// those that were members before are none again.
    fn end_strangers(&self, kept: &Kept, mut former: Former) -> Result<()> {
        let space = kept.order.space;
        let processes = self.membership.processes(space, || {
            former.is_over = true;
            kept.set_former(Some(former.clone()));
        });
        self.host.end_others(&kept.path, &processes, END_TIMEOUT)?;
        kept.give_up(|mark| processes.iter().all(|process| process.mark() != mark));
        self.remember_fenced(space, &self.known.former_of(space))?;
        former.is_ended = true;
        kept.set_former(Some(former));
        Ok(())
    }
}
