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
//! - a fenced member is *ended first* if it is a process of this machine that maps the space: only when that is
//!   confirmed are its sessions ended, and what they had is free. No other process is touched;
//! - members that a former process of this node had come back with what they had, until a lease has passed. Then each
//!   process that maps a part and is no member is ended, and then the sessions whose members did not come back;
//! - a fenced member that lives on (on another machine, or mapping nothing) is remembered: it does not come back, also
//!   when this process starts anew;
//! - time that this process itself did not run counts for no member's silence, nor does time in which a member waits
//!   for an answer.
//!
//! - a place at a ring lasts as long as the connection over which it was given: a member that comes back has another.
//!
//! Lock order: members → fenced; members → parts → a keeper; members → a ring. No member is ended with a lock held.

use super::Inner;
use super::parts::Kept;
use super::rings::RingPlace;
use crate::acceptor::Place;
use crate::grant_table::SpaceId;
use crate::host::Process;
use crate::member::{MemberHello, MemberId, MemberReply, MemberRequest, MemberWelcome, RingSeat};
use crate::wire::{self, Failure, VERSION};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Listener};
use cenote_space::{Keeper, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Connections of members at a time, and of unknown clients.
pub(super) const CONNECTIONS_MAX: u32 = 500;
pub(super) const STRANGERS_MAX: u32 = 100;
const _: () = assert!(
    STRANGERS_MAX < CONNECTIONS_MAX,
    "unknown clients leave places to members"
);
/// Sessions of one member at a time. Their numbers fit into one message, in which it says them when it comes back.
const SESSIONS_MAX: usize = 1 << 15;
/// Bytes of a member's name that are kept.
const NAME_MAX: usize = 128;
const HELLO_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Between two looks whether the node is to stop.
const TURN: Nanos = Nanos::from_millis(100);
/// Between two looks for members that are silent or gone.
const WATCH_TURN: Nanos = Nanos::from_millis(50);
/// How long ending a member may take, before others are looked after.
const END_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Different things that are said of what failed.
const COMPLAINTS_MAX: usize = 1000;
/// Before what failed is tried again.
const AGAIN: Nanos = Nanos::from_secs(1);

/// All members, by number.
pub(super) type Members = BTreeMap<MemberId, Member>;

pub(super) struct Member {
    space: SpaceId,
    /// If it is of this machine.
    process: Option<Process>,
    name: String,
    sessions: BTreeSet<(u8, SessionId)>,
    connection: Option<Arc<dyn Connection>>,
    /// Its place at a ring, while that connection lasts.
    seat: Option<RingPlace>,
    /// Those that it had before, until nothing is done any more that was asked from there.
    seats_before: Vec<RingPlace>,
    /// Which of its connections that is.
    turn: u64,
    heard: Nanos,
    /// Requests of it that are being served: a member that waits for an answer is not silent, however long that takes.
    asking: u32,
    /// It is being ended, and answered no more.
    is_fenced: bool,
}

impl Member {
    fn end_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
        self.end_seat();
    }

    fn end_seat(&mut self) {
        if let Some(seat) = self.seat.take() {
            seat.dismiss();
            self.seats_before.push(seat);
        }
        self.seats_before.retain(|seat| !seat.is_quiet());
    }
}

/// Says what is tried again, once.
fn complain(error: Error, said: &mut BTreeSet<String>) {
    let text = error.to_string();
    if said.len() < COMPLAINTS_MAX && said.insert(text.clone()) {
        eprintln!("cenote: memory node: {text}; trying again");
    }
}

fn revoked() -> Error {
    Error::Revoked("this member was silent for too long: what its sessions had is taken back".into())
}

// ---- connections ----

impl Inner {
    pub(super) fn accept(self: &Arc<Self>, listener: &dyn Listener) {
        let inner = Arc::clone(self);
        // A client that breaks the protocol, or ends, is told so by the end of the connection.
        let serve = move |connection: &Arc<dyn Connection>, place: &Place| _ = inner.serve_member(connection, place);
        self.acceptor.accept(listener, || self.is_stopping(), serve);
    }

    pub(super) fn close_connections(&self) {
        self.members.lock().values_mut().for_each(Member::end_connection);
    }

    fn serve_member(&self, connection: &Arc<dyn Connection>, place: &Place) -> Result<()> {
        let hello: MemberHello = wire::receive(&**connection, HELLO_TIMEOUT)?;
        let admitted = self.admit_member(&hello, connection, place);
        let welcome = admitted.as_ref().map(|turn| MemberWelcome {
            lease: self.lease().raw(),
            ring: self.seat(&hello, *turn),
        });
        wire::send(&**connection, &welcome.map_err(|error| Failure::from(error.clone())))?;
        let turn = admitted?;
        let served = self.answer_member(hello.member, turn, &**connection);
        if let Some(member) = self
            .members
            .lock()
            .get_mut(&hello.member)
            .filter(|member| member.turn == turn)
        {
            member.connection = None;
            member.end_seat();
        }
        served
    }

    fn answer_member(&self, id: MemberId, turn: u64, connection: &dyn Connection) -> Result<()> {
        while !self.is_stopping() {
            let request: MemberRequest = match wire::receive(connection, TURN) {
                Ok(request) => request,
                Err(Error::Timeout(_)) => continue,
                Err(error) => return Err(error),
            };
            let is_last = request == MemberRequest::Leave;
            let reply = self.attend(id, turn, || self.ask_of_member(id, turn, request));
            let reply = reply.unwrap_or_else(|error| MemberReply::Failed(error.into()));
            wire::answer(connection, &reply, MemberReply::Failed)?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    // ---- coming, and coming back ----

    /// Lets a member in; the number of its connection.
    fn admit_member(&self, hello: &MemberHello, connection: &Arc<dyn Connection>, place: &Place) -> Result<u64> {
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
        // Its former connection, if there is one still, has a place too until its thread has seen that it is over.
        if let Some(member) = self.members.lock().get_mut(&hello.member) {
            member.end_connection();
        }
        let (tenant, tenants) = self.parts.tenant_of(hello.space);
        place.give_to(&tenant, tenants)?;
        for part in &hello.parts {
            self.parts.part(hello.space, *part)?;
        }
        let process = (hello.machine == cenote_fabric::boot()).then_some(hello.process);
        if process.is_some_and(|process| !self.host.is_there(process)) {
            return Err(Error::Mismatch(format!(
                "the memory node sees no process {} that began when this one did: both have to be in one PID namespace",
                hello.process.pid
            )));
        }
        if process.is_some_and(|process| !self.host.is_seen(process)) {
            return Err(Error::Mismatch(format!(
                "the memory node does not see what process {} maps, as it changed its user or has capabilities: it could not be told whether it uses memory",
                hello.process.pid
            )));
        }
        let mut members = self.members.lock();
        if !members.contains_key(&hello.member) {
            self.check_ended(hello.space)?;
            self.claim(&members, hello)?;
            members.insert(hello.member, Member::new(hello, process));
        }
        let member = members.get_mut(&hello.member).expect("it was found or entered");
        if member.is_fenced || member.space != hello.space || member.process != process {
            return Err(revoked());
        }
        member.end_connection();
        assert!(
            member.seat.is_none(),
            "a seat ends with the connection that it came with"
        );
        member.connection = Some(Arc::clone(connection));
        member.heard = rt::now();
        member.turn += 1;
        Ok(member.turn)
    }

    /// A process that is no member yet waits while those that are none are being ended. (A member is not among them,
    /// however long that takes.)
    fn check_ended(&self, space: SpaceId) -> Result<()> {
        let is_ending = |kept: &Arc<Kept>| kept.former().is_some_and(|former| former.is_over);
        match self.parts.of_space(space).iter().any(is_ending) {
            false => Ok(()),
            true => Err(Error::Busy("members of before are being ended: ask again".into())),
        }
    }

    /// What a member says to have begun under a former process of this node is its own again: all of it, or none.
    fn claim(&self, members: &Members, hello: &MemberHello) -> Result<()> {
        if self.fenced.lock().contains(hello.member) {
            return Err(revoked());
        }
        if hello.sessions.len() > SESSIONS_MAX {
            return Err(Error::Full(format!("a member has {SESSIONS_MAX} sessions at most")));
        }
        let mut claimed = Vec::new();
        for (part, session) in &hello.sessions {
            let is_anothers =
                |member: &Member| member.space == hello.space && member.sessions.contains(&(*part, *session));
            if members.values().any(is_anothers) {
                return Err(revoked());
            }
            let kept = self.parts.part(hello.space, *part)?;
            kept.check_claim(*session)?;
            claimed.push((kept, *session));
        }
        claimed
            .into_iter()
            .try_for_each(|(kept, session)| kept.keeper.readmit(session))
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
        let mut members = self.members.lock();
        match members.get_mut(&hello.member) {
            Some(member) if member.turn == turn && member.connection.is_some() => {
                assert!(member.seat.is_none(), "a connection gets one seat");
                member.seat = Some(place);
            }
            // It has been fenced, or has come again.
            _ => place.dismiss(),
        }
        Some(seat)
    }

    pub(super) fn ask_of_member(&self, id: MemberId, turn: u64, request: MemberRequest) -> Result<MemberReply> {
        let part = |part| self.part_for(id, turn, part, None);
        let its = |part, session| self.part_for(id, turn, part, Some(session));
        Ok(match request {
            MemberRequest::Ping => {
                self.hear(id, turn)?;
                MemberReply::Done
            }
            MemberRequest::Leave => {
                self.hear(id, turn)?;
                self.end_sessions(id);
                MemberReply::Done
            }
            MemberRequest::Begin { part: number } => MemberReply::Begun(self.begin(id, number, &*part(number)?)?),
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
                if let Some(member) = self.members.lock().get_mut(&id) {
                    member.sessions.remove(&(number, session));
                }
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

    /// Serves a request of a member.
    pub(super) fn attend<T>(&self, id: MemberId, turn: u64, serve: impl FnOnce() -> Result<T>) -> Result<T> {
        self.hear(id, turn)?;
        self.count_asking(id, 1);
        let answer = serve();
        self.count_asking(id, -1);
        answer
    }

    fn count_asking(&self, id: MemberId, more: i32) {
        if let Some(member) = self.members.lock().get_mut(&id) {
            member.asking = member.asking.saturating_add_signed(more);
            member.heard = rt::now();
        }
    }

    /// A member says something: the space that it is of.
    pub(super) fn hear(&self, id: MemberId, turn: u64) -> Result<SpaceId> {
        let mut members = self.members.lock();
        let member = members
            .get_mut(&id)
            .filter(|member| member.turn == turn && !member.is_fenced);
        let member = member.ok_or_else(revoked)?;
        member.heard = rt::now();
        Ok(member.space)
    }

    /// The part that a request is about, if its session is the member's.
    fn part_for(&self, id: MemberId, turn: u64, part: u8, session: Option<SessionId>) -> Result<Arc<Kept>> {
        let space = self.hear(id, turn)?;
        let is_its = |session| {
            let members = self.members.lock();
            members
                .get(&id)
                .is_some_and(|member| member.sessions.contains(&(part, session)))
        };
        match session {
            Some(session) if !is_its(session) => Err(Error::Revoked(format!(
                "session {} of part {part} is not this member's, or has ended",
                session.0
            ))),
            _ => self.parts.part(space, part),
        }
    }

    fn begin(&self, id: MemberId, part: u8, kept: &Kept) -> Result<SessionId> {
        let session = kept.keeper.begin()?;
        let mut members = self.members.lock();
        let member = members.get_mut(&id).filter(|member| !member.is_fenced);
        let entered = match member {
            Some(member) if member.sessions.len() < SESSIONS_MAX => {
                member.sessions.insert((part, session));
                Ok(session)
            }
            Some(_) => Err(Error::Full(format!("a member has {SESSIONS_MAX} sessions at most"))),
            None => Err(revoked()),
        };
        if entered.is_err() {
            kept.keeper.end(session)?;
        }
        entered
    }

    /// A part is being freed: no session owns any of it.
    pub(super) fn forget_sessions(&self, space: SpaceId, part: u8) {
        let mut members = self.members.lock();
        for member in members.values_mut().filter(|member| member.space == space) {
            member.sessions.retain(|(of, _)| *of != part);
        }
    }
}

impl Member {
    fn new(hello: &MemberHello, process: Option<Process>) -> Self {
        let name = hello.name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        Self {
            space: hello.space,
            process,
            name,
            sessions: hello.sessions.iter().copied().collect(),
            connection: None,
            seat: None,
            seats_before: Vec::new(),
            turn: 0,
            heard: rt::now(),
            asking: 0,
            is_fenced: false,
        }
    }

    /// Why it is to be fenced, if it is.
    fn lapse(&self, now: Nanos, lease: Nanos, is_gone: bool) -> Option<&'static str> {
        match () {
            () if self.is_fenced => Some("is being ended"),
            () if is_gone && self.connection.is_none() => Some("is gone"),
            () if self.asking == 0 && now.since(self.heard) > lease => Some("has said nothing for a lease"),
            () => None,
        }
    }
}

// ---- leases ----

impl Inner {
    /// Opens what is to be kept, as far as that can be done now.
    pub(super) fn open_parts(&self, said: &mut BTreeSet<String>) {
        let failed = self.parts.open_noted(self.lease());
        failed.into_iter().for_each(|error| complain(error, said));
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
        for member in self.members.lock().values_mut() {
            member.heard = (member.heard + slept).min(rt::now());
        }
        for kept in self.parts.all() {
            if let Some(former) = kept.former() {
                kept.set_former_until(former.until + slept);
            }
        }
    }

    pub(super) fn lapsed(&self) -> Vec<(MemberId, &'static str)> {
        let away: Vec<(MemberId, Process)> = {
            let members = self.members.lock();
            let away = members.iter().filter(|(_, member)| member.connection.is_none());
            away.filter_map(|(id, member)| Some((*id, member.process?))).collect()
        };
        let gone = away.into_iter().filter(|(_, process)| !self.host.is_there(*process));
        let gone: BTreeSet<MemberId> = gone.map(|(id, _)| id).collect();
        let (now, lease) = (rt::now(), self.lease());
        let members = self.members.lock();
        let lapsed = |(id, member): (&MemberId, &Member)| Some((*id, member.lapse(now, lease, gone.contains(id))?));
        members.iter().filter_map(lapsed).collect()
    }

    /// Ends a member's process if it is one of this machine that maps the space, and then its sessions.
    fn fence(&self, id: MemberId, why: &str) -> Result<()> {
        let (space, process, name, is_again) = {
            let mut members = self.members.lock();
            let Some(member) = members.get_mut(&id) else {
                return Ok(());
            };
            let is_again = core::mem::replace(&mut member.is_fenced, true);
            member.end_connection();
            (member.space, member.process, member.name.clone(), is_again)
        };
        if let Some(process) = process {
            let files: Vec<PathBuf> = self
                .parts
                .of_space(space)
                .iter()
                .map(|kept| kept.path.clone())
                .collect();
            let was_there = self.host.is_there(process);
            self.host.end_process(process, &files, END_TIMEOUT)?;
            if !self.host.is_there(process) {
                let parts = self.parts.of_space(space);
                parts
                    .iter()
                    .for_each(|kept| kept.give_up(|mark| mark == process.mark()));
            }
            if was_there && !(is_again && self.host.is_there(process)) {
                eprintln!(
                    "cenote: memory node: member \"{name}\" (process {}) of space {space} {why}: it is fenced",
                    process.pid
                );
            }
        }
        if process.is_none_or(|process| self.host.is_there(process)) {
            self.fenced.lock().add(id)?;
        }
        self.check_quiet(id, &name)?;
        self.end_sessions(id);
        Ok(())
    }

    /// Whether no request of a member to other parts is on its way any more: such a request ends by itself, within a
    /// call's time. It looks once, as other members wait.
    pub(super) fn check_quiet(&self, id: MemberId, name: &str) -> Result<()> {
        match self.is_quiet(id) {
            true => Ok(()),
            false => Err(Error::Busy(format!(
                "member \"{name}\": what it has asked other nodes for is not answered yet"
            ))),
        }
    }

    fn is_quiet(&self, id: MemberId) -> bool {
        let mut members = self.members.lock();
        let Some(member) = members.get_mut(&id) else {
            return true;
        };
        member.end_seat();
        member.seats_before.is_empty()
    }

    /// A member maps nothing any more: its sessions end, and it is forgotten.
    fn end_sessions(&self, id: MemberId) {
        let (space, sessions) = {
            let mut members = self.members.lock();
            let Some(member) = members.get_mut(&id) else { return };
            member.is_fenced = true;
            member.end_seat();
            (member.space, member.sessions.clone())
        };
        for (part, session) in sessions {
            // A part that is not there any more has no sessions either.
            if let Ok(kept) = self.parts.part(space, part) {
                kept.keeper.end(session).ok();
            }
        }
        self.members.lock().remove(&id);
    }

    /// When the members that may come back have had their time: ends each process that maps a part without being a
    /// member, then the sessions without a member.
    fn end_former(&self, kept: &Kept) -> Result<()> {
        let Some(mut former) = kept.former().filter(|former| rt::now() > former.until) else {
            return Ok(());
        };
        let (space, part) = (kept.order.space, kept.order.part);
        let processes: Vec<Process> = {
            let members = self.members.lock();
            former.is_over = true;
            kept.set_former(Some(former.clone()));
            let of_space = members.values().filter(|member| member.space == space);
            of_space.filter_map(|member| member.process).collect()
        };
        self.host.end_others(&kept.path, &processes, END_TIMEOUT)?;
        kept.give_up(|mark| processes.iter().all(|process| process.mark() != mark));
        // A process that is no member has to wait meanwhile, so that no member gets any of these.
        for session in self.nobodys(space, part, former.sessions) {
            kept.keeper.end(session)?;
        }
        kept.set_former(None);
        Ok(())
    }

    /// Those of a part's sessions that no member has.
    fn nobodys(&self, space: SpaceId, part: u8, mut sessions: BTreeSet<SessionId>) -> BTreeSet<SessionId> {
        let members = self.members.lock();
        for member in members.values().filter(|member| member.space == space) {
            let of_part = member.sessions.iter().filter(|(of, _)| *of == part);
            of_part.for_each(|(_, session)| _ = sessions.remove(session));
        }
        sessions
    }
}
