//! The members of a node, by number, and those that were fenced and live on.
//!
//! A connection of a member has a *turn*: its number among all connections of this node, which is never used again. What
//! is asked, given or cleared up for a connection names its turn, and is refused or passed over when the member has
//! another one by then, or when another member has its number.
//!
//! Invariants:
//! - a turn is one connection's of one member;
//! - a member that is fenced, or leaves, gets no turn, no session and no seat, and its number is no other's until it is
//!   removed: by the thread that fences, or by the one that serves its leaving;
//! - a seat is that of the member's connection, and at most one;
//! - a request that is counted as being served is counted of the member that asked, not of one that came after it.
//!
//! Lock order: members → fenced; members → parts → a keeper; members → a ring.

use super::fenced::Fenced;
use super::rings::RingPlace;
use crate::grant_table::SpaceId;
use crate::host::Process;
use crate::member::{MemberHello, MemberId};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use cenote_space::SessionId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Sessions of one member at a time. Their numbers fit into one message, in which it says them when it comes back.
const SESSIONS_MAX: usize = 1 << 15;
/// Bytes of a member's name that are kept.
const NAME_MAX: usize = 128;

/// See the module.
pub(super) struct Membership {
    members: Mutex<Members>,
    fenced: Mutex<Fenced>,
}

#[derive(Default)]
struct Members {
    by_id: BTreeMap<MemberId, Member>,
    /// The turn of the connection that was let in last.
    last_turn: u64,
}

struct Member {
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
    /// Those of its first connection, and of the one that it has now.
    first_turn: u64,
    turn: u64,
    /// What its calls are known by.
    epoch: u64,
    heard: Nanos,
    /// Requests of it that are being served: a member that waits for an answer is not silent, however long that takes.
    asking: u32,
    standing: Standing,
}

/// Whether a member is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Answered,
    /// It is being ended.
    Fenced,
    /// It has said that it leaves: its sessions are being ended.
    Leaving,
}

/// A member that is being fenced.
pub(super) struct Fencing {
    pub(super) space: SpaceId,
    pub(super) process: Option<Process>,
    pub(super) name: String,
    /// Whether it was being fenced before.
    pub(super) is_again: bool,
}

/// A request that is being served. Dropping it is its end.
pub(super) struct Asking<'a> {
    membership: &'a Membership,
    member: MemberId,
    first_turn: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut members = self.membership.members.lock();
        let member = members.by_id.get_mut(&self.member);
        if let Some(member) = member.filter(|member| member.first_turn == self.first_turn) {
            assert!(member.asking > 0, "a request that was served was not counted");
            member.asking -= 1;
            member.heard = rt::now();
        }
    }
}

/// What a member is told that was fenced, or whose connection is another by now.
pub(super) fn revoked() -> Error {
    Error::Revoked("this member was silent for too long: what its sessions had is taken back".into())
}

impl Membership {
    /// Of a node that has begun, with the members that former processes of it have fenced.
    pub(super) fn new(fenced: Fenced) -> Self {
        Self {
            members: Mutex::default(),
            fenced: Mutex::new(fenced),
        }
    }

    // ---- connections ----

    /// Lets a member in over a connection; its turn, and its epoch. A member that is new claims the sessions that it
    /// names; `claim` says whether it may, and which epoch it has.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it was fenced, or is another's number or process, or a session is another's; that of
    /// `claim`.
    pub(super) fn connect(
        &self,
        hello: &MemberHello,
        process: Option<Process>,
        connection: &Arc<dyn Connection>,
        claim: impl FnOnce() -> Result<u64>,
    ) -> Result<(u64, u64)> {
        let mut members = self.members.lock();
        let turn = members.last_turn + 1;
        if !members.by_id.contains_key(&hello.member) {
            self.check_claim(&members, hello)?;
            let epoch = claim()?;
            members
                .by_id
                .insert(hello.member, Member::new(hello, process, (turn, epoch)));
        }
        let member = members.by_id.get_mut(&hello.member).expect("it was found or entered");
        if !member.is_answered() || member.space != hello.space || member.process != process {
            return Err(revoked());
        }
        member.end_connection();
        assert!(
            member.seat.is_none(),
            "a seat ends with the connection that it came with"
        );
        member.connection = Some(Arc::clone(connection));
        (member.heard, member.turn) = (rt::now(), turn);
        let epoch = member.epoch;
        members.last_turn = turn;
        Ok((turn, epoch))
    }

    /// Whether what a member says to have begun may be its own.
    fn check_claim(&self, members: &Members, hello: &MemberHello) -> Result<()> {
        if hello.sessions.len() > SESSIONS_MAX {
            return Err(too_many_sessions());
        }
        let is_claimed = |session: &(u8, SessionId)| members.have(hello.space, *session);
        match self.is_fenced(hello.member) || hello.sessions.iter().any(is_claimed) {
            true => Err(revoked()),
            false => Ok(()),
        }
    }

    /// What a member says to have begun and no member has, as far as this node knows.
    pub(super) fn unclaimed(&self, hello: &MemberHello) -> BTreeSet<(u8, SessionId)> {
        let members = self.members.lock();
        let is_claimed = |session: &(u8, SessionId)| members.have(hello.space, *session);
        let sessions = hello.sessions.iter().take(SESSIONS_MAX);
        sessions.copied().filter(|session| !is_claimed(session)).collect()
    }

    /// A member has begun a session under a former process, and claims it now. No other member does meanwhile, nor is
    /// it ended for want of one: `claim` says whether it may be.
    ///
    /// # Errors
    /// As [`Membership::add_session`]; [`Error::Revoked`] if it is another's; that of `claim`.
    pub(super) fn claim_session(
        &self,
        id: MemberId,
        turn: u64,
        session: (u8, SessionId),
        claim: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut members = self.members.lock();
        let (space, begun) = members
            .hear(id, turn)
            .map(|member| (member.space, member.sessions.len()))?;
        if members.have(space, session) {
            return Err(revoked());
        }
        if begun >= SESSIONS_MAX {
            return Err(too_many_sessions());
        }
        claim()?;
        members.hear(id, turn)?.sessions.insert(session);
        Ok(())
    }

    /// Ends the connection that a member has, if there is one.
    pub(super) fn close_connection(&self, id: MemberId) {
        if let Some(member) = self.members.lock().by_id.get_mut(&id) {
            member.end_connection();
        }
    }

    pub(super) fn close_connections(&self) {
        let mut members = self.members.lock();
        members.by_id.values_mut().for_each(Member::end_connection);
    }

    /// A connection is over.
    pub(super) fn disconnect(&self, id: MemberId, turn: u64) {
        let mut members = self.members.lock();
        if let Some(member) = members.at(id, turn) {
            member.connection = None;
            member.end_seat();
        }
    }

    /// Gives the place at a ring to the member of a connection. If it has been fenced or has come again, the place is
    /// dismissed.
    pub(super) fn seat(&self, id: MemberId, turn: u64, place: RingPlace) {
        let mut members = self.members.lock();
        match members.at(id, turn).filter(|member| member.connection.is_some()) {
            Some(member) => {
                assert!(member.seat.is_none(), "a connection gets one seat");
                member.seat = Some(place);
            }
            None => place.dismiss(),
        }
    }

    // ---- requests ----

    /// A member says something: the space that it is of.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is fenced, or the connection is not the one that it has.
    pub(super) fn hear(&self, id: MemberId, turn: u64) -> Result<SpaceId> {
        Ok(self.members.lock().hear(id, turn)?.space)
    }

    /// A member asks for something. It is not silent until that is answered.
    ///
    /// # Errors
    /// As [`Membership::hear`].
    pub(super) fn ask(&self, id: MemberId, turn: u64) -> Result<Asking<'_>> {
        let mut members = self.members.lock();
        let member = members.hear(id, turn)?;
        member.asking += 1;
        Ok(Asking {
            membership: self,
            member: id,
            first_turn: member.first_turn,
        })
    }

    /// As [`Membership::hear`], of a member that names a session of its own.
    ///
    /// # Errors
    /// As [`Membership::hear`]; [`Error::Revoked`] if the session is not its own, or has ended.
    pub(super) fn hear_of(&self, id: MemberId, turn: u64, part: u8, session: SessionId) -> Result<SpaceId> {
        let mut members = self.members.lock();
        let member = members.hear(id, turn)?;
        match member.sessions.contains(&(part, session)) {
            true => Ok(member.space),
            false => Err(Error::Revoked(format!(
                "session {} of part {part} is not this member's, or has ended",
                session.0
            ))),
        }
    }

    /// A member has begun a session.
    ///
    /// # Errors
    /// As [`Membership::hear`]; [`Error::Full`]. The session is not the member's then.
    pub(super) fn add_session(&self, id: MemberId, turn: u64, part: u8, session: SessionId) -> Result<()> {
        let mut members = self.members.lock();
        let member = members.hear(id, turn)?;
        if member.sessions.len() >= SESSIONS_MAX {
            return Err(too_many_sessions());
        }
        let is_new = member.sessions.insert((part, session));
        assert!(is_new, "session {} of part {part} begins twice", session.0);
        Ok(())
    }

    /// A session of a member has ended.
    pub(super) fn remove_session(&self, id: MemberId, part: u8, session: SessionId) {
        if let Some(member) = self.members.lock().by_id.get_mut(&id) {
            member.sessions.remove(&(part, session));
        }
    }

    /// A part is being freed: no session owns any of it.
    pub(super) fn forget_part(&self, space: SpaceId, part: u8) {
        let mut members = self.members.lock();
        for member in members.by_id.values_mut().filter(|member| member.space == space) {
            member.sessions.retain(|(of, _)| *of != part);
        }
    }

    // ---- leases ----

    /// This node's process did not run for so long, and heard no member.
    pub(super) fn give_time(&self, slept: Nanos) {
        for member in self.members.lock().by_id.values_mut() {
            member.heard = (member.heard + slept).min(rt::now());
        }
    }

    /// The members that are to be fenced, and why. `is_there` says whether a process is.
    pub(super) fn lapsed(&self, lease: Nanos, is_there: impl Fn(Process) -> bool) -> Vec<(MemberId, &'static str)> {
        let away: Vec<(MemberId, Process)> = {
            let members = self.members.lock();
            let away = members.by_id.iter().filter(|(_, member)| member.connection.is_none());
            away.filter_map(|(id, member)| Some((*id, member.process?))).collect()
        };
        let gone = away.into_iter().filter(|(_, process)| !is_there(*process));
        let gone: BTreeSet<MemberId> = gone.map(|(id, _)| id).collect();
        let (now, members) = (rt::now(), self.members.lock());
        let lapsed = |(id, member): (&MemberId, &Member)| Some((*id, member.lapse(now, lease, gone.contains(id))?));
        members.by_id.iter().filter_map(lapsed).collect()
    }

    /// Processes of this machine that are members of a space. What `first` does no member comes in between of.
    pub(super) fn processes(&self, space: SpaceId, first: impl FnOnce()) -> Vec<Process> {
        let members = self.members.lock();
        first();
        let of_space = members.by_id.values().filter(|member| member.space == space);
        of_space.filter_map(|member| member.process).collect()
    }

    /// Those of a part's sessions that are no member's.
    pub(super) fn without_member(
        &self,
        space: SpaceId,
        part: u8,
        mut sessions: BTreeSet<SessionId>,
    ) -> BTreeSet<SessionId> {
        let members = self.members.lock();
        for member in members.by_id.values().filter(|member| member.space == space) {
            let of_part = member.sessions.iter().filter(|(of, _)| *of == part);
            of_part.for_each(|(_, session)| _ = sessions.remove(session));
        }
        sessions
    }

    // ---- ending ----

    /// A member is fenced from here on. `None`: it is none any more, or leaves.
    pub(super) fn begin_fencing(&self, id: MemberId) -> Option<Fencing> {
        let mut members = self.members.lock();
        let member = members.by_id.get_mut(&id)?;
        if member.standing == Standing::Leaving {
            return None;
        }
        let is_again = !member.is_answered();
        member.standing = Standing::Fenced;
        member.end_connection();
        Some(Fencing {
            space: member.space,
            process: member.process,
            name: member.name.clone(),
            is_again,
        })
    }

    /// The member of a connection is to be fenced, whatever it says: whether it was none that is.
    pub(super) fn lapse(&self, id: MemberId, turn: u64) -> bool {
        let mut members = self.members.lock();
        let member = members.at(id, turn).filter(|member| member.is_answered());
        member.is_some_and(|member| {
            member.standing = Standing::Fenced;
            member.end_connection();
            true
        })
    }

    /// Members that were fenced may live on: they do not come back.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn remember_fenced(&self, ids: &[MemberId]) -> Result<()> {
        self.fenced.lock().add(ids)
    }

    /// Also one that is fenced, until that is done.
    pub(super) fn is_member(&self, id: MemberId) -> bool {
        self.members.lock().by_id.contains_key(&id)
    }

    /// Whether a member has sessions: what others may wait for.
    pub(super) fn has_sessions(&self, id: MemberId) -> bool {
        let members = self.members.lock();
        members.by_id.get(&id).is_some_and(|member| !member.sessions.is_empty())
    }

    /// Whether a member was fenced and lives on.
    pub(super) fn is_fenced(&self, id: MemberId) -> bool {
        self.fenced.lock().contains(id)
    }

    /// Whether nothing is done any more that a fenced member asked for, over its connection or a ring.
    pub(super) fn is_quiet(&self, id: MemberId) -> bool {
        let mut members = self.members.lock();
        let Some(member) = members.by_id.get_mut(&id) else {
            return true;
        };
        member.end_seat();
        member.asking == 0 && member.seats_before.is_empty()
    }

    /// A member leaves over a connection: nothing more is done for it.
    ///
    /// # Errors
    /// As [`Membership::hear`].
    pub(super) fn begin_leaving(&self, id: MemberId, turn: u64) -> Result<()> {
        let mut members = self.members.lock();
        let member = members.hear(id, turn)?;
        member.standing = Standing::Leaving;
        member.end_seat();
        Ok(())
    }

    /// The space and the sessions of a member for which nothing more is done. `None`: it is none any more.
    pub(super) fn ending(&self, id: MemberId) -> Option<(SpaceId, BTreeSet<(u8, SessionId)>)> {
        let members = self.members.lock();
        let member = members.by_id.get(&id)?;
        assert!(!member.is_answered(), "a member is ended that is answered");
        Some((member.space, member.sessions.clone()))
    }

    /// A member's sessions have ended: it is none any more.
    pub(super) fn remove(&self, id: MemberId) {
        let removed = self.members.lock().by_id.remove(&id);
        assert!(
            removed.is_none_or(|member| !member.is_answered()),
            "a member is removed that is answered"
        );
    }
}

fn too_many_sessions() -> Error {
    Error::Full(format!("a member has {SESSIONS_MAX} sessions at most"))
}

impl Members {
    /// Whether a session is a member's.
    fn have(&self, space: SpaceId, session: (u8, SessionId)) -> bool {
        let mut of_space = self.by_id.values().filter(|member| member.space == space);
        of_space.any(|member| member.sessions.contains(&session))
    }

    /// The member whose connection has this turn.
    fn at(&mut self, id: MemberId, turn: u64) -> Option<&mut Member> {
        self.by_id.get_mut(&id).filter(|member| member.turn == turn)
    }

    /// The same, which says something and is answered.
    fn hear(&mut self, id: MemberId, turn: u64) -> Result<&mut Member> {
        let member = self.at(id, turn).filter(|member| member.is_answered());
        let member = member.ok_or_else(revoked)?;
        member.heard = rt::now();
        Ok(member)
    }
}

impl Member {
    fn new(hello: &MemberHello, process: Option<Process>, (turn, epoch): (u64, u64)) -> Self {
        let name = hello.name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        Self {
            space: hello.space,
            process,
            name,
            sessions: hello.sessions.iter().copied().collect(),
            connection: None,
            seat: None,
            seats_before: Vec::new(),
            first_turn: turn,
            turn,
            epoch,
            heard: rt::now(),
            asking: 0,
            standing: Standing::Answered,
        }
    }

    fn is_answered(&self) -> bool {
        self.standing == Standing::Answered
    }

    /// Why it is to be fenced, if it is.
    fn lapse(&self, now: Nanos, lease: Nanos, is_gone: bool) -> Option<&'static str> {
        match self.standing {
            Standing::Leaving => None,
            Standing::Fenced => Some("is being ended"),
            Standing::Answered if is_gone && self.connection.is_none() => Some("is gone"),
            Standing::Answered if self.asking == 0 && now.since(self.heard) > lease => {
                Some("has said nothing for a lease")
            }
            Standing::Answered => None,
        }
    }

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
